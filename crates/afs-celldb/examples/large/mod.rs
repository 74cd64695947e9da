//! A large cell: 1,000,000 volumes on 200 servers; 1,000,000 users, each in three of 100,000 groups and one of 50,000 members.

use afs_celldb::files::{PrdbContents, VldbContents};
use afs_celldb::ptdb::{self, Flags};
use afs_celldb::vldb::{self, Server, ServerNumber, Site};

pub(crate) const VOLUMES: u32 = 1_000_000;
pub(crate) const SERVERS: u8 = 200;
pub(crate) const USERS: i32 = 1_000_000;
pub(crate) const GROUPS: i32 = 100_000;

/// The volume location database.
pub(crate) fn volumes() -> VldbContents {
    let server = |n: u8| Server::Registered {
        uuid: [n + 1; 16],
        uniquifier: 1,
        addresses: vec![0x0a00_0000 + u32::from(n), 0x0a01_0000 + u32::from(n)],
        has_rxgk: false,
    };
    let site =
        |n: u32, flags| Site { server: ServerNumber((n % u32::from(SERVERS)) as u8), partition: 0, flags };
    let entry = |n: u32| vldb::Entry {
        name: format!("user.u{n:07}").into_bytes(),
        ids: [0x2000_0000 + 3 * n, 0x2000_0001 + 3 * n, 0x2000_0002 + 3 * n],
        clone_id: 0,
        flags: 0x7000,
        lock_timestamp: 0,
        lock_afs_id: 0,
        sites: vec![site(n, 4), site(n, 2), site(n + 1, 2)],
    };
    let servers = (0..SERVERS).map(server).collect();
    VldbContents {
        max_volume_id: 0x2000_0000 + 3 * VOLUMES,
        servers,
        entries: (0..VOLUMES).map(entry).collect(),
    }
}

/// The protection database.
pub(crate) fn principals() -> PrdbContents {
    let group = |id: i32, name: String, list| ptdb::Entry {
        flags: Flags::GROUP.with(Flags::QUOTA),
        id,
        owner: -204,
        creator: -204,
        name: name.into_bytes(),
        list,
        ..ptdb::Entry::default()
    };
    let user = |id: i32, name: String, mut list: Vec<i32>| {
        list.sort_unstable();
        ptdb::Entry { flags: Flags::QUOTA, group_quota: 20, ..group(id, name, list) }
    };
    let groups_of = |n: i32| [n % GROUPS, (n / 10 + 1) % GROUPS, (n / 100 + 50_000) % GROUPS];
    let mut members = vec![Vec::new(); GROUPS as usize];
    let mut users: Vec<ptdb::Entry> = Vec::new();
    for n in 0..USERS {
        let mut list: Vec<i32> = groups_of(n).iter().map(|group| -1000 - group).collect();
        list.sort_unstable();
        list.dedup();
        list.iter().for_each(|group| members[(-1000 - group) as usize].push(n + 1_000_000));
        if n < 50_000 {
            list.push(-500_000);
        }
        users.push(user(n + 1_000_000, format!("u{n:07}"), list));
    }
    let system = ["administrators -204", "backup -205", "anyuser -101", "authuser -102", "ptsviewers -203"];
    let system = system.into_iter().filter_map(|line| line.split_once(' '));
    let mut entries: Vec<ptdb::Entry> =
        system.map(|(name, id)| group(id.parse().unwrap_or(-1), format!("system:{name}"), vec![])).collect();
    entries.push(user(32_766, "anonymous".to_owned(), vec![]));
    entries.extend((0..).zip(members).map(|(n, list)| group(-1000 - n, format!("g{n:06}"), list)));
    entries.push(group(-500_000, "large".to_owned(), (1_000_000..1_050_000).collect()));
    entries.extend(users);
    PrdbContents { max_user: 1_000_000 + USERS, max_group: -500_000, entries }
}
