//! Which snapshots of a volume callers are told of, and what they may do in one: the rights of then and of now.

use crate::support::{ALL, Cell, ROOT, VOLUME, stamp};
use afs_volume::{SnapshotKind, Stamp, VolumeKind};
use afs_wire::ids::{AfsFid, AfsTime, ViceId, VolumeId};
use afs_wire::rights::Rights;
use afs_wire::rxafs::GetSnapshots;

const ACCESS: i32 = 49_733_388;
const SNAPSHOT: VolumeId = VolumeId(VOLUME.0 + 1);

const fn then(fid: AfsFid) -> AfsFid {
    AfsFid { volume: SNAPSHOT, ..fid }
}

/// Access lists of a directory that let the user read and list, only list, or do nothing there, and the rights that are left of them.
const LISTS: [(&str, Rights); 3] = [
    ("2\n0\nuser 9\nadmin 127\n", Rights(9)),
    ("2\n0\nuser 8\nadmin 127\n", Rights(8)),
    ("1\n0\nadmin 127\n", Rights(0)),
];

#[test]
fn a_right_counts_in_a_snapshot_if_it_was_granted_and_is_granted() {
    let cell = Cell::new();
    cell.grant(&[(ViceId::SYSTEM_ANYUSER, ALL)]);
    let [admin, user, other] =
        [(1, "admin"), (2, "user"), (3, "other")].map(|(n, name)| cell.client_of(n, name));
    let partition = cell.partition.clone();
    cell.run(async move {
        let mut made = Vec::new();
        for (n, (then, of_then)) in LISTS.into_iter().enumerate() {
            for (m, (now, of_now)) in LISTS.into_iter().enumerate() {
                let dir = admin.make_dir(ROOT, &format!("{n}{m}")).await.unwrap().fid;
                let file = admin.create(dir, "file").await.unwrap().fid;
                admin.store(file, 0, b"then", 4).await.unwrap();
                admin.set_acl(dir, then).await.unwrap();
                made.push((dir, file, now, Rights(of_then.0 & of_now.0)));
            }
        }
        partition.make_snapshot(VOLUME, SNAPSHOT, false, stamp()).unwrap();
        for (dir, file, now, rights) in made {
            admin.store(file, 0, b"now!", 4).await.unwrap();
            admin.set_acl(dir, now).await.unwrap();
            assert_eq!(user.status(then(dir)).await.unwrap().status.caller_access, rights, "{now}");
            let read = user.fetch(then(file), 0, 4).await.map(|read| read.0);
            assert_eq!(read, if rights.contains(Rights::READ) { Ok(b"then".to_vec()) } else { Err(ACCESS) });
            let listed = user.fetch(then(dir), 0, 10).await.map(|read| read.0.len());
            assert_eq!(listed, if rights.contains(Rights::LOOKUP) { Ok(10) } else { Err(ACCESS) });
            assert_eq!(other.fetch(then(file), 0, 4).await.unwrap_err(), ACCESS);
            assert_eq!(admin.fetch(then(file), 0, 4).await.unwrap().0, b"then");
        }
    });
}

#[test]
fn the_rights_of_a_directory_that_is_gone_are_those_of_the_nearest_one_above_it() {
    let cell = Cell::new();
    cell.grant(&[(ViceId::SYSTEM_ANYUSER, ALL)]);
    let [admin, user] = [(1, "admin"), (2, "user")].map(|(n, name)| cell.client_of(n, name));
    let partition = cell.partition.clone();
    cell.run(async move {
        let above = admin.make_dir(ROOT, "above").await.unwrap().fid;
        let dir = admin.make_dir(above, "dir").await.unwrap().fid;
        let file = admin.create(dir, "file").await.unwrap().fid;
        admin.store(file, 0, b"then", 4).await.unwrap();
        partition.make_snapshot(VOLUME, SNAPSHOT, false, stamp()).unwrap();
        admin.remove(dir, "file").await.unwrap();
        assert_eq!(user.fetch(then(file), 0, 4).await.unwrap().0, b"then", "its directory is there");
        admin.remove_dir(above, "dir").await.unwrap();
        assert_eq!(user.fetch(then(file), 0, 4).await.unwrap().0, b"then");
        admin.set_acl(above, "1\n0\nadmin 127\n").await.unwrap();
        assert_eq!(user.fetch(then(file), 0, 4).await.unwrap_err(), ACCESS);
        assert_eq!(user.status(then(dir)).await.unwrap().status.caller_access, Rights(0));
        // What somebody makes in the place of a directory that is gone is another one.
        let again = admin.make_dir(above, "dir").await.unwrap().fid;
        admin.set_acl(again, "1\n0\nsystem:anyuser 127\n").await.unwrap();
        assert_eq!(user.fetch(then(file), 0, 4).await.unwrap_err(), ACCESS);
        admin.set_acl(above, "1\n0\nsystem:anyuser 9\n").await.unwrap();
        assert_eq!(user.fetch(then(file), 0, 4).await.unwrap().0, b"then");
        // Nobody knows who may look into the snapshots of a volume that is not here.
        partition.delete_volume(VOLUME).unwrap();
        assert_eq!(user.fetch(then(file), 0, 4).await.unwrap_err(), ACCESS);
        assert_eq!(user.fetch(then(dir), 0, 4).await.unwrap_err(), ACCESS);
        assert!(admin.status(then(file)).await.is_ok());
        assert!(admin.fetch(then(dir), 0, 4).await.is_ok());
    });
}

#[test]
fn who_looks_into_a_snapshot_is_told_when_rights_change() {
    let cell = Cell::new();
    cell.grant(&[(ViceId::SYSTEM_ANYUSER, ALL)]);
    let [admin, user] = [(1, "admin"), (2, "user")].map(|(n, name)| cell.client_of(n, name));
    let partition = cell.partition.clone();
    cell.run(async move {
        let dir = admin.make_dir(ROOT, "dir").await.unwrap().fid;
        partition.make_snapshot(VOLUME, SNAPSHOT, false, stamp()).unwrap();
        user.status(then(dir)).await.unwrap();
        user.heard();
        admin.set_acl(dir, "1\n0\nadmin 127\n").await.unwrap();
        assert_eq!(user.breaks(), [AfsFid::whole_volume(SNAPSHOT)]);
        assert_eq!(user.status(then(dir)).await.unwrap().status.caller_access, Rights(0));
    });
}

#[test]
fn who_may_look_up_a_directory_is_told_of_the_snapshots_in_which_it_is() {
    let cell = Cell::new();
    cell.grant(&[(ViceId::SYSTEM_ANYUSER, ALL)]);
    let [admin, user, other] =
        [(1, "admin"), (2, "user"), (3, "other")].map(|(n, name)| cell.client_of(n, name));
    let partition = cell.partition.clone();
    cell.run(async move {
        let make = |number: u32, seconds| {
            let stamp = Stamp { now: AfsTime(seconds), ..stamp() };
            partition.make_snapshot(VOLUME, VolumeId(VOLUME.0 + number), false, stamp).unwrap();
        };
        // By volume id the newest is first.
        make(9, 100);
        let dir = admin.make_dir(ROOT, "dir").await.unwrap().fid;
        let file = admin.create(dir, "file").await.unwrap().fid;
        admin.set_acl(dir, "2\n0\nuser 8\nadmin 127\n").await.unwrap();
        make(8, 200);
        make(7, 300);
        let told = async |who: &crate::support::client::Client, dir| {
            let reply = who.call(GetSnapshots { dir }).await;
            reply.map(|reply| {
                reply.snapshots.iter().map(|told| (told.volume.0 - VOLUME.0, told.made.0)).collect()
            })
        };
        let of_root: Result<Vec<_>, i32> = told(&other, ROOT).await;
        assert_eq!(of_root, Ok(vec![(9, 100), (8, 200), (7, 300)]));
        assert_eq!(told(&user, dir).await, Ok(vec![(8, 200), (7, 300)]));
        assert_eq!(told(&other, dir).await, Err(ACCESS));
        assert_eq!(told(&admin, file).await, Err(49_733_395), "it is no directory");
        let in_snapshot = AfsFid { volume: VolumeId(VOLUME.0 + 7), ..ROOT };
        assert_eq!(told(&admin, in_snapshot).await, Err(49_733_397), "a snapshot has none");
        let gone = AfsFid { unique: afs_wire::ids::Uniquifier(9999), ..dir };
        assert_eq!(told(&admin, gone).await, Err(102), "no such vnode");
        partition.delete_volume(VolumeId(VOLUME.0 + 8)).unwrap();
        assert_eq!(told(&user, dir).await, Ok(vec![(7, 300)]));
    });
}

#[test]
fn in_a_published_snapshot_the_rights_are_those_of_then() {
    let cell = Cell::new();
    cell.grant(&[(ViceId::SYSTEM_ANYUSER, ALL)]);
    let [admin, user] = [(1, "admin"), (2, "user")].map(|(n, name)| cell.client_of(n, name));
    let partition = cell.partition.clone();
    cell.run(async move {
        let open = admin.make_dir(ROOT, "open").await.unwrap().fid;
        let closed = admin.make_dir(ROOT, "closed").await.unwrap().fid;
        admin.set_acl(closed, "1\n0\nadmin 127\n").await.unwrap();
        let file = admin.create(open, "file").await.unwrap().fid;
        admin.store(file, 0, b"then", 4).await.unwrap();
        let snapshot = partition.make_snapshot(VOLUME, SNAPSHOT, false, stamp()).unwrap();
        admin.set_acl(open, "1\n0\nadmin 127\n").await.unwrap();
        admin.set_acl(closed, "1\n0\nsystem:anyuser 9\n").await.unwrap();
        let set = |kind| snapshot.change_info(|info| info.kind = VolumeKind::Snapshot(kind)).unwrap();
        for _ in 0..2 {
            assert_eq!(user.fetch(then(file), 0, 4).await.unwrap_err(), ACCESS);
            set(SnapshotKind::Published);
            assert_eq!(user.fetch(then(file), 0, 4).await.unwrap().0, b"then");
            assert_eq!(user.status(then(closed)).await.unwrap().status.caller_access, Rights(0));
            assert!(user.store(then(file), 0, b"now", 3).await.is_err(), "nobody writes into it");
            set(SnapshotKind::Manual);
        }
        set(SnapshotKind::Published);
        partition.delete_volume(VOLUME).unwrap();
        assert_eq!(user.fetch(then(file), 0, 4).await.unwrap().0, b"then", "without the volume");
    });
}
