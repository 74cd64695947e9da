//! The databases of a cell whose servers run, asked for by their own calls: OpenAFS's servers and ours. What comes is put into the form
//! of OpenAFS's files and read as these are, so that the same is done about whatever is odd.
//!
//! Not told by any call: when and by whom a volume was locked.

use crate::calls::Caller;
use crate::dates::now;
use crate::login;
use afs_admin::ptdb::{Ids, ProtectionDb};
use afs_admin::vldb::{LocationDb, Registration, ServerKey, Wanted};
use afs_admin::{Error, Login};
use afs_celldb::files::{Oddities, PrdbContents, VldbContents, read_prdb, read_vldb, write_prdb, write_vldb};
use afs_celldb::ptdb::{self, Flags};
use afs_celldb::vldb::{self, Server, ServerNumber, Site};
use afs_wire::abort::{PRTOOMANY, VL_INDEXERANGE, VL_NOENT};
use afs_wire::ids::ViceId;
use afs_wire::pt::{ListEntriesFlags, PrDebugEntry};
use futures_util::{StreamExt, TryStreamExt, stream};
use rx_security::Level;
use rxgen::Abort;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;

/// Places of file servers in a database, at most.
const MAX_SERVERS: i32 = 254;

/// The flags that tell why an entry is locked (VLDB notes 5).
const LOCKED: u32 = 0x1f0;

/// Calls under way at a time, for what has to be asked for each user and group.
const CALLS: usize = 32;

type Both = ((VldbContents, Oddities), (PrdbContents, Oddities));

/// Addresses, for people.
pub(super) fn list(servers: &[Ipv4Addr]) -> String {
    servers.iter().map(Ipv4Addr::to_string).collect::<Vec<_>>().join(", ")
}

/// Asks for both databases, as the superuser of the cell whose key is in this folder.
pub(crate) fn ask(servers: &[Ipv4Addr], keys: &Path) -> Result<Both, String> {
    let no_socket = |error: std::io::Error| format!("cannot open a socket: {error}");
    let caller = Caller::new().map_err(no_socket)?;
    let login = login::superuser(keys, Level::Crypt, caller.seed().map_err(no_socket)?).map_err(|_| {
        format!(
            "{} has no key of the cell: name the servers' configuration folder with --keys",
            keys.display()
        )
    })?;
    let failed = |what: &str| {
        let (what, servers) = (what.to_owned(), list(servers));
        move |error: Error| format!("the {what} servers at {servers}: {error}")
    };
    let date = now();
    let volumes = caller.run(volumes(&caller, servers, &login, date)).map_err(failed("volume location"))?;
    let principals = caller.run(principals(&caller, servers, &login)).map_err(failed("protection"))?;
    let vldb = write_vldb(&volumes, date).and_then(|file| read_vldb(&file, None));
    let prdb = write_prdb(&principals, date).and_then(|file| read_prdb(&file, None));
    Ok((vldb.map_err(|error| error.to_string())?, prdb.map_err(|error| error.to_string())?))
}

async fn volumes(
    caller: &Caller,
    servers: &[Ipv4Addr],
    login: &Login,
    date: u32,
) -> Result<VldbContents, Error> {
    let db = LocationDb::new(caller.endpoint(), servers, login);
    let mut table: Vec<Server> = Vec::new();
    let mut numbers: BTreeMap<Ipv4Addr, ServerNumber> = BTreeMap::new();
    for index in 1..=MAX_SERVERS {
        match db.registration(ServerKey::Index(index)).await {
            Ok(server) => add_registered(&mut table, &mut numbers, &server),
            // A place that is free.
            Err(error) if error.code() == VL_NOENT => {}
            Err(error) if error.code() == VL_INDEXERANGE => break,
            Err(error) => return Err(error),
        }
    }
    for address in db.plain_servers().await? {
        number_of(&mut table, &mut numbers, address);
    }
    let (mut entries, mut start) = (Vec::new(), Some(0));
    while let Some(from) = start {
        let (part, next) = db.entries(Wanted::default(), from).await?;
        for entry in part {
            let sites = entry.sites.iter().map(|site| Site {
                server: number_of(&mut table, &mut numbers, site.server),
                partition: site.partition.0 as u8,
                flags: site.flags.0 as u8,
            });
            entries.push(vldb::Entry {
                sites: sites.collect(),
                name: entry.name.into_bytes(),
                ids: entry.ids.map(|id| id.0),
                clone_id: entry.clone_id.0,
                flags: entry.flags.0 as u32,
                // No call tells since when.
                lock_timestamp: if entry.flags.0 as u32 & LOCKED != 0 { date } else { 0 },
                lock_afs_id: 0,
            });
        }
        start = next;
    }
    let max_volume_id = db.next_volume_id().await?.0;
    Ok(VldbContents { max_volume_id, servers: table, entries })
}

fn add_registered(
    table: &mut Vec<Server>,
    numbers: &mut BTreeMap<Ipv4Addr, ServerNumber>,
    server: &Registration,
) {
    let number = ServerNumber(table.len() as u8);
    for address in &server.addresses {
        numbers.entry(*address).or_insert(number);
    }
    table.push(Server::Registered {
        uuid: server.uuid.to_bytes(),
        uniquifier: server.uniquifier as u32,
        addresses: server.addresses.iter().map(|address| address.to_bits()).collect(),
        has_rxgk: false,
    });
}

/// The number of the server at an address. One that is not in the table is put there.
fn number_of(
    table: &mut Vec<Server>,
    numbers: &mut BTreeMap<Ipv4Addr, ServerNumber>,
    address: Ipv4Addr,
) -> ServerNumber {
    *numbers.entry(address).or_insert_with(|| {
        table.push(Server::Address(address.to_bits()));
        // More than a database has places for are refused when the file is made.
        ServerNumber((table.len() - 1) as u8)
    })
}

async fn principals(caller: &Caller, servers: &[Ipv4Addr], login: &Login) -> Result<PrdbContents, Error> {
    let db = ProtectionDb::new(caller.endpoint(), servers, login);
    let (mut ids, mut start): (Vec<ViceId>, _) = (Vec::new(), Some(0));
    while let Some(from) = start {
        let both = ListEntriesFlags::USERS.union(ListEntriesFlags::GROUPS);
        let (part, next) = db.entries(both, from).await?;
        ids.extend(part.iter().map(|entry| entry.id));
        start = next;
    }
    let asked = ids.into_iter().map(|id| {
        let db = &db;
        async move {
            let entry = db.dump(id).await?;
            let is_group = Flags(entry.flags as u32).has(Flags::GROUP);
            Ok::<_, Error>((entry, if is_group { Some(db.elements(id).await?) } else { None }))
        }
    });
    let asked: Vec<(PrDebugEntry, Option<Ids>)> = stream::iter(asked).buffered(CALLS).try_collect().await?;
    // A membership is with both, so that groups are enough, unless one has more members than a list can carry.
    let mut memberships: BTreeSet<(i32, i32)> = BTreeSet::new();
    for (group, members) in asked.iter().filter_map(|(entry, ids)| Some((entry.id.0, ids.as_ref()?))) {
        memberships.extend(members.ids.iter().map(|member| (group, member.0)));
    }
    let cut: Vec<(&PrDebugEntry, &Ids)> = asked
        .iter()
        .filter_map(|(entry, ids)| Some((entry, ids.as_ref().filter(|ids| ids.is_cut)?)))
        .collect();
    if !cut.is_empty() {
        let theirs = asked.iter().map(|(entry, members)| {
            let (db, id, is_group) = (&db, entry.id, members.is_some());
            async move {
                match is_group {
                    false => Ok::<_, Error>((id, db.elements(id).await?.ids)),
                    // A server that has no such procedure has no groups in groups.
                    true => match db.supergroups(id).await {
                        Err(error) if error.code() == Abort::OPCODE => Ok((id, Vec::new())),
                        groups => Ok((id, groups?.ids)),
                    },
                }
            }
        });
        let theirs: Vec<(ViceId, Vec<ViceId>)> = stream::iter(theirs).buffered(CALLS).try_collect().await?;
        for (member, groups) in theirs {
            memberships.extend(groups.iter().map(|group| (group.0, member.0)));
        }
        // A member that no list names is not left out without a word.
        for (group, _) in cut {
            let known = known_members(group.id, &memberships);
            if (known as i64) < i64::from(group.count) {
                let name = String::from_utf8_lossy(group.name.text());
                let what = format!(
                    "the servers list only {known} of the {} members of {name}: import from prdb.DB0 instead",
                    group.count
                );
                return Err(Error::Local { what, code: PRTOOMANY });
            }
        }
    }
    let (mut members, mut groups) = (BTreeMap::<i32, Vec<i32>>::new(), BTreeMap::<i32, Vec<i32>>::new());
    for (group, member) in memberships {
        members.entry(group).or_default().push(member);
        groups.entry(member).or_default().push(group);
    }
    let entries = asked.into_iter().map(|(entry, _)| {
        let is_in = groups.remove(&entry.id.0).unwrap_or_default();
        let flags = Flags(entry.flags as u32);
        let (list, supergroups) = match flags.has(Flags::GROUP) {
            true => (members.remove(&entry.id.0).unwrap_or_default(), is_in),
            false => (is_in, Vec::new()),
        };
        let time = |index: usize| entry.reserved[index] as u32;
        ptdb::Entry {
            flags,
            id: entry.id.0,
            cell_group: entry.cellid,
            created: time(0),
            added: time(1),
            removed: time(2),
            changed: time(3),
            owner: entry.owner.0,
            creator: entry.creator.0,
            group_quota: entry.ngroups,
            user_quota: entry.nusers,
            name: entry.name.text().to_vec(),
            list,
            supergroups,
        }
    });
    let entries = entries.collect();
    let (max_user, max_group) = db.max().await?;
    Ok(PrdbContents { max_user: max_user.0, max_group: max_group.0, entries })
}

/// The number of members of a group that the lists name.
fn known_members(group: ViceId, memberships: &BTreeSet<(i32, i32)>) -> usize {
    memberships.range((group.0, i32::MIN)..=(group.0, i32::MAX)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_other_groups_do_not_count_for_those_that_no_list_names() {
        let memberships = BTreeSet::from([(-8, 1), (-7, i32::MIN), (-7, -9), (-7, i32::MAX), (-6, 3)]);
        let known = [-9, -8, -7, -6].map(|group| known_members(ViceId(group), &memberships));
        assert_eq!(known, [0, 1, 3, 1]);
    }
}
