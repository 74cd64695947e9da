//! Both files as OpenAFS's servers wrote them (tests/data, whose contents Debian's vos, pts, vldb_check and prdb_check have
//! told), damaged in every way that is told apart, and written anew.

use super::bytes::{BUCKETS, id_bucket, name_bucket};
use super::vldb::layout::{self, EntryLayout};
use super::*;
use crate::database::Image as _;
use crate::ptdb::Ptdb;
use crate::testing::Random;
use crate::vldb::{Entry, Server, ServerNumber, Site, Vldb};

const VLDB: &[u8] = include_bytes!("../../tests/data/vldb.DB0");
const PRDB: &[u8] = include_bytes!("../../tests/data/prdb.DB0");

/// Where the database begins in a file.
const START: usize = ubik::HEADER_BYTES;

fn patched(file: &[u8], patches: &[(u32, u32)]) -> Vec<u8> {
    let mut file = file.to_vec();
    for (at, word) in patches {
        file[START + *at as usize..][..4].copy_from_slice(&word.to_be_bytes());
    }
    file
}

fn word(file: &[u8], at: u32) -> u32 {
    super::bytes::Data::new(&file[START..]).u32(at)
}

fn kinds(oddities: &Oddities) -> Vec<(Oddity, u64)> {
    oddities.iter().map(|(oddity, count, _)| (oddity, count)).collect()
}

fn vldb_line(contents: &VldbContents, entry: &Entry) -> String {
    let sites: Vec<String> = entry
        .sites
        .iter()
        .map(|site| {
            let address = contents.servers[usize::from(site.server.0)].first_address();
            format!("{}/{}:{:x}", std::net::Ipv4Addr::from(address), site.partition, site.flags)
        })
        .collect();
    let locked = if entry.lock_timestamp > 0 { " locked" } else { "" };
    let (name, flags) = (String::from_utf8_lossy(&entry.name), entry.flags);
    format!("{name} {:?} {flags:x} {} {}{locked}", entry.ids, entry.clone_id, sites.join(" "))
}

#[test]
fn a_vldb_of_openafs_is_read_as_its_own_tools_show_it() {
    let (contents, oddities) = read_vldb(VLDB, None).unwrap();
    assert_eq!(kinds(&oddities), []);
    assert_eq!((contents.max_volume_id, contents.server_count()), (536_870_939, 4));
    let lines: Vec<String> = contents.entries.iter().map(|entry| vldb_line(&contents, entry)).collect();
    assert_eq!(
        lines,
        [
            "root.afs [536870912, 536870913, 536870914] 1080 536870913 10.89.0.1/0:5 10.89.0.2/0:22 locked",
            "root.cell [536870915, 536870916, 536870917] 7000 536870916 10.89.0.1/0:5 10.89.0.1/0:3 10.89.0.2/0:22",
            "user.alice [536870918, 536870919, 536870920] 5000 0 10.89.0.2/0:4",
            "vol.single [536870930, 536870931, 536870932] 1000 0 10.89.0.9/0:4",
            "proj.locked [536870924, 536870925, 536870926] 1080 0 10.89.0.2/0:4 locked",
            "col.4055 [536879106, 536879107, 536879108] 1000 0 10.89.0.1/0:4",
            "col.4982 [536870933, 536870934, 536870935] 1000 0 10.89.0.9/0:4",
        ]
    );
    let Server::Registered { uuid, uniquifier, addresses, .. } = &contents.servers[1] else {
        panic!("{:?}", contents.servers[1])
    };
    assert_eq!((uuid[..4].to_vec(), *uniquifier), (vec![0x00, 0x13, 0xe3, 0x5e], 1));
    assert_eq!(addresses, &[0x0a59_0001, 0x0a59_0101]);
    assert_eq!(contents.servers[2], Server::Address(0x0a59_0009));
}

#[test]
fn a_prdb_of_openafs_is_read_as_its_own_tools_show_it() {
    let (contents, oddities) = read_prdb(PRDB, None).unwrap();
    assert_eq!(oddities.count(Oddity::Orphan), 2);
    assert!(
        oddities.iter().all(|(kind, ..)| matches!(kind, Oddity::Orphan | Oddity::Nameless)),
        "{oddities:?}"
    );
    assert_eq!((contents.max_user, contents.max_group), (1065, -300));
    assert_eq!(contents.counts(), [63, 27, 2]);
    let find = |name: &str| contents.entries.iter().find(|entry| entry.name == name.as_bytes()).unwrap();
    assert_eq!(find("alice").list, [-300, -209, -207]);
    assert_eq!(find("bob").list.len(), 13);
    assert_eq!((find("alice:big").list.len(), find("alice:big").owner), (56, 1001));
    assert_eq!(find("alice:friends").supergroups, [-215, -214, -213, -209]);
    assert!(find("staff").list.contains(&-207), "{:?}", find("staff"));
    assert_eq!((find("carol:one").owner, find("selfish").owner), (0, -228));
    assert_eq!((find("neg:grp").group_quota, find("neg:grp").id), (-5, -300));
    assert_eq!((find("joe@other.test").id, find("joe@other.test").cell_group), (130_845, -227));
    assert_eq!(find("bob").group_quota, 3);
}

#[test]
fn what_was_written_is_read_as_the_same() {
    let (vldb, _) = read_vldb(VLDB, None).unwrap();
    let (prdb, _) = read_prdb(PRDB, None).unwrap();
    let (again, oddities) = read_vldb(&write_vldb(&vldb, 5).unwrap(), None).unwrap();
    assert_eq!((again, kinds(&oddities)), (vldb, vec![]));
    let (again, oddities) = read_prdb(&write_prdb(&prdb, 5).unwrap(), None).unwrap();
    assert_eq!((again, kinds(&oddities)), (prdb, vec![(Oddity::Orphan, 2)]));
}

#[test]
fn the_rows_of_a_file_are_a_database_with_the_same_contents() {
    let (contents, _) = read_vldb(VLDB, None).unwrap();
    let mut vldb = Vldb::empty();
    contents.rows().for_each(|(key, row)| vldb.set_row(&key, Some(&row)).unwrap());
    assert_eq!(VldbContents::of(&vldb), contents);
    assert_eq!(vldb.find_name(b"root.cell").map(|found| found.slot), Some(1));

    let (contents, _) = read_prdb(PRDB, None).unwrap();
    let mut ptdb = Ptdb::empty();
    contents.rows().for_each(|(key, row)| ptdb.set_row(&key, Some(&row)).unwrap());
    assert_eq!(PrdbContents::of(&ptdb), contents);
    assert_eq!(ptdb.find_name(b"alice").map(|entry| entry.id), Some(1001));
}

/// The addresses of entries in the sample, by name; of both files.
fn at(file: &[u8], name: &str, field: u32) -> u32 {
    let wanted = [name.as_bytes(), &[0]].concat();
    let found = file.windows(wanted.len()).position(|window| window == wanted).expect("the sample has it");
    (found - START) as u32 - field
}

#[test]
fn what_is_odd_in_a_vldb_is_told_and_the_rest_is_read() {
    let entry = |name| at(VLDB, name, EntryLayout::NEW.name);
    let (afs, cell, alice, col) =
        (entry("root.afs"), entry("root.cell"), entry("user.alice"), entry("col.4055"));
    let bucket = |id: u32| layout::IDS + 4 * id_bucket(id);
    let name_of = |name: &str| layout::NAMES + 4 * name_bucket(name.as_bytes(), 63);
    let sites = |place: u32| place + EntryLayout::NEW.sites;
    // Patches of words, how many volumes are left, and what is told.
    type Case<'a> = (&'a [(u32, u32)], usize, &'a [(Oddity, u64)]);
    let first_site = word(VLDB, sites(alice)) & 0x00ff_ffff;
    let cases: &[Case<'_>] = &[
        // An entry's own successor.
        (&[(cell + 28, cell)], 7, &[(Oddity::BrokenChain, 1)]),
        (&[(cell + 28, 5)], 7, &[(Oddity::BrokenChain, 1)]),
        (
            &[(bucket(536_870_918), 0x7fff_fff0)],
            7,
            &[(Oddity::BrokenChain, 1), (Oddity::MissingFromChain, 1)],
        ),
        (&[(name_of("user.alice"), 0)], 7, &[(Oddity::MissingFromChain, 1)]),
        (
            &[(bucket(77), alice), (bucket(536_870_918), 0)],
            7,
            &[(Oddity::WrongChain, 1), (Oddity::MissingFromChain, 1)],
        ),
        (&[(afs, 536_870_918)], 6, &[(Oddity::WrongChain, 1), (Oddity::DuplicateId, 1)]),
        (&[(alice, 0)], 6, &[(Oddity::WrongChain, 1), (Oddity::Nameless, 1)]),
        (&[(alice + layout::FLAGS, 2)], 6, &[(Oddity::Deleted, 1)]),
        (&[(layout::FREE, alice)], 7, &[(Oddity::BrokenFreeList, 1)]),
        (&[(layout::SERVERS, 0)], 7, &[(Oddity::DeadSite, 4), (Oddity::NoSite, 2)]),
        (
            &[(layout::SERVERS, 0xff00_0004)],
            7,
            &[(Oddity::DeadServer, 1), (Oddity::DeadSite, 4), (Oddity::NoSite, 2)],
        ),
        (&[(layout::SERVERS + 16, 0xff00_0001)], 7, &[(Oddity::DeadServer, 1)]),
        (&[(sites(alice), first_site | 77 << 24)], 7, &[(Oddity::DeadSite, 1), (Oddity::NoSite, 1)]),
        (&[(layout::EOF, 0x7fff_ffff)], 7, &[(Oddity::CutShort, 2), (Oddity::Nameless, 4)]),
        (
            &[(alice + EntryLayout::NEW.name, 0x7521_6572)],
            7,
            &[(Oddity::WrongChain, 1), (Oddity::MissingFromChain, 1), (Oddity::OddName, 1)],
        ),
        (&[(layout::BLOCKS, 0)], 7, &[(Oddity::DeadServer, 3), (Oddity::DeadSite, 8), (Oddity::NoSite, 5)]),
    ];
    for (patches, left, expected) in cases {
        let (contents, oddities) = read_vldb(&patched(VLDB, patches), None).unwrap();
        assert_eq!(
            (contents.entries.len(), &kinds(&oddities)[..]),
            (*left, *expected),
            "{patches:x?}: {oddities:?}"
        );
    }
    let mut alone = patched(VLDB, &[(name_of("col.4982"), 0), (col + 28, 0)]);
    for (id, table) in [(536_870_933, 0), (536_870_934, 1), (536_870_935, 2)] {
        alone = patched(&alone, &[(bucket(id) + 4 * BUCKETS * table, 0)]);
    }
    let (contents, oddities) = read_vldb(&alone, None).unwrap();
    assert_eq!((contents.entries.len(), oddities.count(Oddity::Unreachable)), (6, 1), "{oddities:?}");
}

#[test]
fn what_is_odd_in_a_prdb_is_told_and_the_rest_is_read() {
    use super::prdb::layout;
    let entry = |name| at(PRDB, name, layout::NAME);
    let (alice, bob, big, admin) = (entry("alice"), entry("bob"), entry("alice:big"), entry("admin"));
    let by_id = |id: i32| layout::IDS + 4 * id_bucket(id as u32);
    let (_, before) = read_prdb(PRDB, None).unwrap();
    // Patches of words, how many entries fewer are left, and what is told beside what was before.
    type Case<'a> = (&'a [(u32, u32)], usize, &'a [(Oddity, u64)]);
    let cases: &[Case<'_>] = &[
        (&[(by_id(1001), 0)], 0, &[(Oddity::MissingFromChain, 1)]),
        (&[(bob + layout::NEXT_ID, bob)], 0, &[(Oddity::BrokenChain, 1)]),
        (&[(layout::FREE, bob)], 0, &[(Oddity::BrokenFreeList, 1)]),
        (&[(big + layout::OWNER, 999)], 0, &[(Oddity::BrokenList, 1), (Oddity::DeadOwner, 1)]),
        (&[(alice + layout::OWNED, 0)], 0, &[(Oddity::WrongOwnerChain, 3)]),
        (&[(alice + layout::COUNT, 9)], 0, &[(Oddity::WrongCount, 1)]),
        (&[(alice + layout::LIST, 0x8000_0000)], 0, &[(Oddity::OneSided, 1), (Oddity::WrongCount, 1)]),
        (&[(alice + layout::LIST, -999i32 as u32)], 0, &[(Oddity::DeadMember, 1), (Oddity::OneSided, 1)]),
        (&[(alice + layout::LIST, 1002)], 0, &[(Oddity::DeadMember, 1), (Oddity::OneSided, 1)]),
        (
            &[(big + layout::NEXT, big)],
            0,
            &[(Oddity::OneSided, 46), (Oddity::BrokenList, 1), (Oddity::WrongCount, 1)],
        ),
        (
            &[(admin + layout::FLAGS, 8)],
            1,
            &[(Oddity::BrokenChain, 2), (Oddity::DeadMember, 1), (Oddity::UnknownSlot, 1)],
        ),
        (
            &[(admin + layout::ID, 1002)],
            1,
            &[
                (Oddity::DeadMember, 1),
                (Oddity::DuplicateId, 1),
                (Oddity::MissingFromChain, 1),
                (Oddity::WrongChain, 1),
            ],
        ),
        (&[(by_id(-204), 0)], 0, &[(Oddity::MissingFromChain, 1)]),
        (
            &[(entry("anonymous") + layout::ID, 0)],
            1,
            &[(Oddity::NoSystemEntry, 1), (Oddity::BrokenChain, 2), (Oddity::Nameless, 1)],
        ),
    ];
    for (patches, fewer, expected) in cases {
        let (contents, oddities) = read_prdb(&patched(PRDB, patches), None).unwrap();
        let mut told = kinds(&oddities);
        for (kind, count, _) in before.iter() {
            if let Some(found) = told.iter_mut().find(|(found, _)| *found == kind) {
                found.1 -= count;
            }
        }
        told.retain(|(_, count)| *count > 0);
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!((contents.entries.len(), told), (92 - fewer, expected), "{patches:x?}: {oddities:?}");
    }
    let mut same = PRDB.to_vec();
    same[START + (bob + layout::NAME) as usize..][..6].copy_from_slice(b"alice\0");
    let (contents, oddities) = read_prdb(&same, None).unwrap();
    assert_eq!(oddities.count(Oddity::DuplicateName), 1);
    let name = |id| contents.entries.iter().find(|entry| entry.id == id).map(|entry| &entry.name[..]);
    assert_eq!((name(1001), name(1002)), (Some(&b"alice"[..]), Some(&b"alice-1002"[..])));
}

#[test]
fn two_entries_of_one_name_get_two_also_if_others_have_those_that_they_would_get() {
    use super::prdb::layout;
    let (mut contents, _) = read_prdb(PRDB, None).unwrap();
    let bob = contents.entries.iter().find(|entry| entry.name == b"bob").unwrap().clone();
    for mark in 0..40 {
        let marks = ["x".repeat(mark), if mark == 0 { "-0".into() } else { format!("-{mark}") }];
        for (n, end) in marks.iter().enumerate() {
            let id = 5000 + 2 * mark as i32 + n as i32;
            contents.entries.push(crate::ptdb::Entry {
                id,
                name: format!("alice-1002{end}").into(),
                ..bob.clone()
            });
        }
    }
    let mut file = write_prdb(&contents, 1).unwrap();
    let bob = at(&file, "bob", layout::NAME);
    file[START + (bob + layout::NAME) as usize..][..6].copy_from_slice(b"alice\0");
    let (contents, oddities) = read_prdb(&file, None).unwrap();
    assert_eq!(oddities.count(Oddity::DuplicateName), 1);
    let bob = contents.entries.iter().find(|entry| entry.id == 1002).unwrap();
    assert_eq!(bob.name, b"alice-1002-40");
}

#[test]
fn files_of_old_servers_are_read_by_their_own_layout() {
    for (version, servers) in [(1, 31), (2, 255)] {
        let tables = layout::SERVERS + 4 * servers;
        let header = tables + 4 * 4 * BUCKETS + if version == 1 { 0 } else { 4 };
        let mut file = ubik::file(&vec![0; (header + layout::ENTRY_BYTES) as usize], 9);
        let ids = tables + 4 * BUCKETS;
        let words = [
            (layout::VERSION, version),
            (layout::HEADER_SIZE, header),
            (layout::EOF, header + layout::ENTRY_BYTES),
            (layout::SERVERS, 0x0a59_0001),
            (tables + 4 * name_bucket(b"a", 63), header),
            (ids + 4 * id_bucket(7), header),
            (header, 7),
            (header + layout::FLAGS, 0x1000),
            (header + EntryLayout::OLD.name, u32::from(b'a') << 24),
        ];
        file = patched(&file, &words);
        let sites = START + (header + EntryLayout::OLD.sites) as usize;
        file[sites..sites + 24].fill(255);
        (file[sites], file[sites + 8], file[sites + 16]) = (0, 3, 4);
        let (contents, oddities) = read_vldb(&file, None).unwrap();
        assert_eq!(kinds(&oddities), [(Oddity::OldLayout, 1)], "version {version}");
        let site = Site { server: ServerNumber(0), partition: 3, flags: 4 };
        let entry = &contents.entries[0];
        assert_eq!((&entry.name[..], entry.ids, &entry.sites[..]), (&b"a"[..], [7, 0, 0], &[site][..]));
    }
    assert_eq!(read_vldb(&patched(VLDB, &[(0, 5)]), None).unwrap_err(), FileError::Version { version: 5 });
    assert_eq!(read_prdb(&patched(PRDB, &[(0, 1)]), None).unwrap_err(), FileError::Version { version: 1 });
    for new in [ubik::file(&[], 1), ubik::file(&[0; 66_000], 1)] {
        assert_eq!(read_vldb(&new, None).unwrap_err(), FileError::Empty);
        assert_eq!(read_prdb(&new, None).unwrap_err(), FileError::Empty);
    }
    assert!(matches!(read_vldb(&VLDB[..5000], None), Err(FileError::Short { .. })));
    assert!(matches!(read_vldb(PRDB, None), Err(FileError::Version { .. })));
}

/// Damage at random: nothing panics, and what was read is read again as the same from what is written of it.
#[test]
fn whatever_a_file_has_what_is_read_can_be_written() {
    for seed in 1..=300 {
        let mut random = Random::new(seed);
        let mut damage = |file: &[u8]| {
            let mut file = file.to_vec();
            let addresses: Vec<u32> = (0..8)
                .map(|_| 65_600 + 192 * random.below(110))
                .chain([132_120, 140_312, 140_460, 0, 1])
                .collect();
            for _ in 0..=random.below(12) {
                // Where entries are, most of the time.
                let from = if random.below(4) == 0 { 8 } else { 65_600.min(file.len() as u32 - 1000) };
                let at = from + random.below(file.len() as u32 - from - 100) / 4 * 4;
                let word = match random.below(3) {
                    0 => random.below(300),
                    1 => addresses[random.below(13) as usize],
                    _ => random.below(u32::MAX),
                };
                file = patched(&file, &[(at, word)]);
            }
            if random.below(5) == 0 {
                file.truncate(random.below(file.len() as u32) as usize);
            }
            file
        };
        if let Ok((contents, _)) = read_vldb(&damage(VLDB), None) {
            let written = write_vldb(&contents, 1).unwrap();
            assert_eq!(read_vldb(&written, None).unwrap().0, contents, "seed {seed}");
        }
        if let Ok((contents, _)) = read_prdb(&damage(PRDB), None) {
            let written = write_prdb(&contents, 1).unwrap();
            let (again, oddities) = read_prdb(&written, None).unwrap();
            assert_eq!(again, contents, "seed {seed}");
            assert_eq!(
                oddities.count(Oddity::OneSided) + oddities.count(Oddity::WrongCount),
                0,
                "seed {seed}"
            );
        }
    }
}

#[test]
fn more_than_a_file_can_have_is_refused() {
    let registered = |n: u8| Server::Registered {
        uuid: [n + 1; 16],
        uniquifier: 1,
        addresses: vec![n.into()],
        has_rxgk: false,
    };
    let mut contents =
        VldbContents { max_volume_id: 0, servers: (0..252).map(registered).collect(), entries: vec![] };
    let (again, _) = read_vldb(&write_vldb(&contents, 1).unwrap(), None).unwrap();
    assert_eq!((again.server_count(), again.max_volume_id), (252, 0x2000_0000));
    contents.servers.push(registered(252));
    assert_eq!(write_vldb(&contents, 1), Err(FileError::TooMuch { what: "registered servers", limit: 252 }));
}

/// Those behind the last place were left out, and volumes on them were said to be on others: a site has the number of its server in a byte.
#[test]
fn more_servers_than_a_file_has_places_for_are_refused() {
    let servers: Vec<_> = (1..=256).map(Server::Address).collect();
    let written = |count: usize| {
        let contents = VldbContents { max_volume_id: 0, servers: servers[..count].to_vec(), entries: vec![] };
        write_vldb(&contents, 1)
    };
    let (again, _) = read_vldb(&written(255).unwrap(), None).unwrap();
    assert_eq!(again.servers, servers[..255]);
    let refused = written(256).unwrap_err();
    assert_eq!(refused, FileError::TooMuch { what: "servers", limit: 255 });
    assert_eq!(refused.to_string(), "there are more servers than such a file can have, which is 255");
}
