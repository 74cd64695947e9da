//! Memberships: who is in which groups, and which ids of a user count on access lists (PTDB notes 10).

use std::collections::BTreeSet;

use afs_wire::ids::ViceId;

use super::access::Rules;
use super::image::View;
use super::records::Entry;

/// Nobody in particular.
pub(crate) const ANONYMOUS: i32 = ViceId::ANONYMOUS.0;
/// Everybody: system:anyuser.
pub(crate) const ANY_USER: i32 = ViceId::SYSTEM_ANYUSER.0;
/// Everybody of the cell with a name: system:authuser.
pub(crate) const AUTH_USER: i32 = ViceId::SYSTEM_AUTHUSER.0;
/// Those who may see all: system:ptsviewers.
pub(crate) const VIEWERS: i32 = ViceId::SYSTEM_PTSVIEWERS.0;
/// system:administrators.
pub(crate) const ADMINISTRATORS: i32 = ViceId::SYSTEM_ADMINISTRATORS.0;
/// system:backup.
pub(crate) const BACKUP: i32 = ViceId::SYSTEM_BACKUP.0;
/// No id.
pub(crate) const BAD_ID: i32 = ViceId::BAD.0;

/// True if a user, or a group, is in a group; by way of other groups too, where groups may be in groups.
pub(crate) fn is_member(view: &impl View, rules: &Rules, id: i32, group: i32) -> bool {
    match group {
        ANY_USER => true,
        AUTH_USER if id != ANONYMOUS => true,
        ADMINISTRATORS if id == ADMINISTRATORS => true,
        _ if id == 0 || group == 0 => false,
        _ => match rules.supergroups {
            Some(depth) => is_in(view, id, group, depth),
            None => members(view, group).binary_search(&id).is_ok(),
        },
    }
}

/// A group's members; none of what is no group.
fn members(view: &impl View, group: i32) -> &[i32] {
    view.by_id(group).filter(|entry| entry.is_group()).map_or(&[], |entry| &entry.list)
}

/// True if an id is in a group, or in one that is in it: `depth` groups deep, this one counted. Each group is looked at once: users can
/// put groups into each other in any way, and there are far more ways through them than groups.
fn is_in(view: &impl View, id: i32, group: i32, depth: u32) -> bool {
    let (mut seen, mut level) = (BTreeSet::from([group]), vec![group]);
    for _ in 0..depth {
        let mut next = Vec::new();
        for members in level.into_iter().map(|group| members(view, group)) {
            if members.binary_search(&id).is_ok() {
                return true;
            }
            for member in members.iter().take_while(|member| **member < 0) {
                match *member {
                    ANY_USER => return true,
                    AUTH_USER if id != ANONYMOUS => return true,
                    member if seen.insert(member) => next.push(member),
                    _ => {}
                }
            }
        }
        level = next;
    }
    false
}

/// The groups that these ids are in, and those that these groups are in: `depth` groups deep. Each is looked at once, where it is found
/// first, which is where most of its own groups are still within the depth.
fn supergroups(view: &impl View, ids: &[i32], depth: u32) -> BTreeSet<i32> {
    let (mut found, mut level) = (BTreeSet::new(), ids.to_vec());
    for _ in 0..depth {
        let groups = level.iter().filter_map(|id| view.by_id(*id)).flat_map(|entry| &entry.supergroups);
        level = groups.copied().filter(|group| found.insert(*group)).collect();
    }
    found
}

/// All ids with which a user is on access lists: the user's own, their groups', those of everybody, and of the host
/// that they are at if that is an entry. Sorted, none twice. For a group the ids are its own and its members'.
pub(crate) fn cps(view: &impl View, rules: &Rules, entry: &Entry, host: Option<&Entry>) -> Vec<i32> {
    let mut ids = vec![entry.id, ANY_USER];
    ids.extend(&entry.list);
    ids.extend(supergroups(view, &entry.list, rules.group_depth()));
    if entry.id != ANONYMOUS && entry.id != ANY_USER && (host.is_some() || !entry.is_foreign()) {
        ids.push(AUTH_USER);
    }
    ids.extend(host.into_iter().flat_map(|host| &host.list));
    sorted(ids)
}

/// The entry of a host, and those of the networks around it that have one: named by addresses with zeros at the end.
pub(crate) fn hosts(view: &impl View, address: u32) -> (Option<&Entry>, Vec<&Entry>) {
    let find = |address: u32| view.by_name(std::net::Ipv4Addr::from(address).to_string().as_bytes());
    let mut networks: Vec<u32> = [8, 16, 24].map(|bits| address >> bits << bits).to_vec();
    // A network of which nothing is left is none, and one that is as before is not looked for again.
    networks.retain(|network| *network != 0);
    networks.dedup();
    (find(address), networks.into_iter().filter_map(find).collect())
}

/// Adds the groups of the networks that a host is in.
pub(crate) fn add_networks(mut ids: Vec<i32>, networks: &[&Entry]) -> Vec<i32> {
    networks.iter().for_each(|network| ids.extend(&network.list));
    sorted(ids)
}

fn sorted(mut ids: Vec<i32>) -> Vec<i32> {
    ids.sort_unstable();
    ids.dedup();
    ids
}
