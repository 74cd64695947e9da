//! What access lists, owners, administrators and groups allow at the procedures of the file service, and with which code the rest is
//! refused.

use crate::support::client::{mode, owner, text};
use crate::support::{ADMIN, ALL, Cell, FRIENDS, OTHER, READ, ROOT, USER, VOLUME, stamp};
use afs_volume::{SetStatus, VnodeId};
use afs_wire::ids::{AfsFid, HostAddr, SecurityLevel, ViceId};
use afs_wire::rights::Rights;
use afs_wire::rxafs::{self, AfsCbFids, ViceLockType};

const ACCESS: i32 = 49_733_388;
const INVALID: i32 = 49_733_397;
const NOT_OWNER: i32 = 49_733_376;

#[test]
fn what_the_access_list_does_not_grant_is_refused() {
    let cell = Cell::new();
    let (user, other, anyone) = (cell.client_of(1, "user"), cell.client_of(2, "other"), cell.client(3));
    cell.grant(&[(ViceId::SYSTEM_ANYUSER, READ), (USER, Rights(63)), (ViceId(-300), Rights(8 + 4))]);
    cell.run(async move {
        let made = user.create(ROOT, "file").await.unwrap();
        assert_eq!((made.status.owner, made.status.author), (USER, USER));
        assert_eq!((made.status.caller_access, made.status.anonymous_access), (Rights(63), READ));
        let fid = made.fid;
        user.store(fid, 0, b"data", 4).await.unwrap();
        // Reading is for all, the rest for the user.
        assert_eq!(anyone.fetch(fid, 0, 10).await.unwrap().0, b"data");
        assert_eq!(anyone.store(fid, 0, b"x", 1).await.unwrap_err(), ACCESS);
        assert_eq!(anyone.create(ROOT, "x").await.unwrap_err(), ACCESS);
        assert_eq!(anyone.make_dir(ROOT, "x").await.unwrap_err(), ACCESS);
        assert_eq!(anyone.symlink(ROOT, "x", "y").await.unwrap_err(), ACCESS);
        assert_eq!(anyone.link(ROOT, "x", fid).await.unwrap_err(), ACCESS);
        assert_eq!(anyone.remove(ROOT, "file").await.unwrap_err(), ACCESS);
        assert_eq!(anyone.rename((ROOT, "file"), (ROOT, "x")).await.unwrap_err(), ACCESS);
        assert_eq!(anyone.store_status(fid, mode(0o600)).await.unwrap_err(), ACCESS);
        assert_eq!(user.set_acl(ROOT, "0\n0\n").await.unwrap_err(), ACCESS);
        let lock = |kind| rxafs::SetLock { fid, kind };
        assert_eq!(anyone.call(lock(ViceLockType::READ)).await.unwrap_err(), ACCESS);
        user.call(lock(ViceLockType::READ)).await.unwrap();
        // Who may insert but not delete may not replace either.
        other.create(ROOT, "other").await.unwrap();
        assert_eq!(other.rename((ROOT, "other"), (ROOT, "x")).await.unwrap_err(), ACCESS);
        assert_eq!(other.remove(ROOT, "other").await.unwrap_err(), ACCESS);
        assert_eq!(other.status(ROOT).await.unwrap().status.caller_access, Rights(8 + 4 + 1));
    });
}

#[test]
fn an_owner_keeps_what_he_put_into_a_drop_box() {
    let cell = Cell::new();
    let (owner, other) = (cell.client_of(1, "user"), cell.client_of(2, "other"));
    cell.grant(&[(ViceId::SYSTEM_AUTHUSER, Rights(8 + 4))]);
    cell.run(async move {
        let fid = owner.create(ROOT, "file").await.unwrap().fid;
        owner.store(fid, 0, b"data", 4).await.unwrap();
        assert_eq!(owner.fetch(fid, 0, 10).await.unwrap().0, b"data");
        assert_eq!(other.fetch(fid, 0, 10).await.unwrap_err(), ACCESS);
        assert_eq!(other.store(fid, 0, b"x", 1).await.unwrap_err(), ACCESS);
        assert_eq!(other.status(fid).await.unwrap_err(), ACCESS);
    });
}

#[test]
fn administrators_mend_what_they_could_not_read() {
    let cell = Cell::new();
    let (admin, user) = (cell.client_of(1, "admin"), cell.client_of(2, "user"));
    cell.grant(&[(USER, ALL)]);
    cell.run(async move {
        let fid = user.create(ROOT, "file").await.unwrap().fid;
        let status = admin.status(fid).await.unwrap().status;
        assert_eq!(status.caller_access, Rights(8 + 64));
        assert_eq!(admin.fetch(fid, 0, 1).await.unwrap_err(), ACCESS);
        assert_eq!(admin.create(ROOT, "x").await.unwrap_err(), ACCESS);
        assert_eq!(user.store_status(fid, owner(OTHER)).await.unwrap_err(), NOT_OWNER);
        assert_eq!(admin.store_status(fid, owner(OTHER)).await.unwrap().owner, OTHER);
        assert_eq!(admin.store_status(fid, mode(0o4755)).await.unwrap().unix_mode_bits, 0o4755);
        // Who writes into it takes the bit away.
        assert_eq!(user.store(fid, 0, b"x", 1).await.unwrap().unix_mode_bits, 0o755);
        admin.set_acl(ROOT, "1\n1\nsystem:administrators 127\nother 1\n").await.unwrap();
        assert_eq!(admin.acl(ROOT).await.unwrap(), "1\n1\nsystem:administrators\t127\nother\t1\n\0");
        assert_eq!(user.status(fid).await.unwrap_err(), ACCESS);
        admin.create(ROOT, "x").await.unwrap();
    });
}

/// Names that were made longer after the list was set, and one with a blank: the list could be neither seen nor changed.
#[test]
fn a_list_whose_names_do_not_fit_is_shown_with_ids_and_can_be_set_as_it_is_shown() {
    let cell = Cell::new();
    let everybody: Vec<(ViceId, Rights)> =
        (2001..2020).map(|id| (ViceId(id), READ)).chain([(ViceId::SYSTEM_ANYUSER, ALL)]).collect();
    cell.grant(&everybody);
    let client = cell.client(1);
    let volume = cell.volume();
    let list = move || volume.status_and_acl(afs_volume::VnodeId::ROOT).unwrap().1;
    cell.run(async move {
        let text = client.acl(ROOT).await.unwrap();
        assert!(text.len() <= 1024);
        assert!(text.contains("\n2019\t9\n"), "{text}");
        let numbers = text.lines().filter(|line| line.starts_with("20")).count();
        assert!((2..10).contains(&numbers), "{text}");
        let before = list();
        client.set_acl(ROOT, text.trim_end_matches('\0')).await.unwrap();
        assert_eq!(list(), before);
        // A number that nobody has is none.
        assert_eq!(client.set_acl(ROOT, "1\n0\n2999 9\n").await.unwrap_err(), INVALID);
        client.set_acl(ROOT, "1\n0\nsystem:anyuser 9\n").await.unwrap();
    });
}

#[test]
fn a_new_directory_has_its_parents_list_and_then_its_own() {
    let cell = Cell::new();
    let client = cell.client_of(1, "user");
    cell.grant(&[(ViceId::SYSTEM_ANYUSER, ALL)]);
    cell.run(async move {
        let dir = client.make_dir(ROOT, "dir").await.unwrap();
        assert_eq!((dir.status.link_count, dir.dir_status.link_count), (2, 3));
        assert_eq!(client.acl(dir.fid).await.unwrap(), "1\n0\nsystem:anyuser\t127\n\0");
        let reply = client.set_acl(dir.fid, "1\n0\nuser1\t127\n").await.unwrap();
        assert_eq!(reply.status.anonymous_access, Rights::NONE);
        assert_eq!(client.acl(dir.fid).await.unwrap(), "1\n0\nuser1\t127\n\0");
        let file = client.create(dir.fid, "file").await.unwrap().fid;
        assert_eq!(
            client.acl(file).await.unwrap(),
            "1\n0\nuser1\t127\n\0",
            "a file answers with its directory's"
        );
        assert_eq!(client.acl(ROOT).await.unwrap(), "1\n0\nsystem:anyuser\t127\n\0");
        for bad in ["", "1\n0\n", "1\n0\nnosuch 1\n", "21\n0\n", "x\n0\n"] {
            assert_eq!(client.set_acl(dir.fid, bad).await.unwrap_err(), INVALID, "{bad:?}");
        }
        let access_list = rxafs::AfsOpaque::new("1\n0\nuser 127\n").unwrap();
        let without_nul = rxafs::StoreACL { fid: dir.fid, access_list: access_list.clone() };
        assert_eq!(client.call(without_nul).await.unwrap_err(), INVALID);
        client.call(rxafs::OldStoreACL { fid: dir.fid, access_list }).await.unwrap();
        let access_list = rxafs::AfsOpaque::new("1\n0\nuser 127\n\0").unwrap();
        client.call(rxafs::StoreACL { fid: dir.fid, access_list }).await.unwrap();
    });
}

#[test]
fn a_mount_point_needs_the_right_to_administer() {
    let cell = Cell::new();
    let (user, admin) = (cell.client_of(1, "user"), cell.client_of(2, "admin"));
    cell.grant(&[(USER, Rights(63)), (ADMIN, Rights(63))]);
    cell.run(async move {
        let mount = |name| rxafs::Symlink {
            dir: ROOT,
            name: text(name),
            contents: "#root.cell.".try_into().unwrap(),
            status: mode(0o644),
        };
        assert_eq!(user.call(mount("a")).await.unwrap_err(), ACCESS);
        let made = admin.call(mount("a")).await.unwrap();
        assert_eq!((made.status.unix_mode_bits, made.status.length), (0o644, 11));
        user.symlink(ROOT, "b", "a").await.unwrap();
    });
}

/// A user who is put into a group has what it gives within five minutes, or as soon as an administrator says so.
#[test]
fn groups_are_asked_again_when_an_administrator_says_so() {
    let cell = Cell::new();
    let people = cell.people.clone();
    cell.grant(&[(FRIENDS, READ), (ViceId::SYSTEM_ADMINISTRATORS, ALL)]);
    let file = cell.volume().create_file(VnodeId::ROOT, b"a", &SetStatus::default(), stamp()).unwrap();
    let file = AfsFid { volume: VOLUME, vnode: file.vnode.id.vnode, unique: file.vnode.id.unique };
    let (client, user, admin) = (cell.client(1), cell.client_of(2, "user"), cell.client_of(3, "admin"));
    let address = HostAddr(0x0a00_0101);
    cell.run(async move {
        let flush = |ids: &[ViceId], addrs: &[HostAddr]| rxafs::FlushCPS {
            ids: rxafs::ViceIds::new(ids.to_vec()).unwrap(),
            addrs: rxafs::IpAddrs::new(addrs.to_vec()).unwrap(),
            spare1: 0,
        };
        assert_eq!(user.status(file).await.unwrap_err(), ACCESS);
        people.add(USER, FRIENDS);
        assert_eq!(user.status(file).await.unwrap_err(), ACCESS, "his groups are remembered");
        for who in [&client, &user] {
            assert_eq!(who.call(flush(&[USER], &[])).await.unwrap_err(), 1, "EPERM, not translated");
        }
        admin.call(flush(&[OTHER], &[])).await.unwrap();
        assert_eq!(user.status(file).await.unwrap_err(), ACCESS, "that was about somebody else");
        admin.call(flush(&[USER], &[])).await.unwrap();
        user.status(file).await.unwrap();

        assert_eq!(client.status(file).await.unwrap_err(), ACCESS);
        people.add_hosts(FRIENDS);
        assert_eq!(client.status(file).await.unwrap_err(), ACCESS, "the host's groups are remembered");
        admin.call(flush(&[], &[HostAddr(0x0a00_0163)])).await.unwrap();
        assert_eq!(client.status(file).await.unwrap_err(), ACCESS, "that was about another host");
        admin.call(flush(&[], &[address])).await.unwrap();
        client.status(file).await.unwrap();
    });
}

/// Everybody may do everything here, and only over a connection that is protected as well as the volume wants.
#[test]
fn a_volume_of_level_crypt_is_closed_to_calls_that_are_protected_less() {
    let cell = Cell::new();
    cell.grant(&[(ViceId::SYSTEM_ANYUSER, ALL)]);
    let [encrypted, signed, clear] =
        [(1, "user!crypt"), (2, "user!auth"), (3, "user")].map(|(number, name)| cell.client_of(number, name));
    let anyone = cell.client(4);
    let partition = cell.partition.clone();
    cell.run(async move {
        let fid = anyone.create(ROOT, "file").await.unwrap().fid;
        clear.store(fid, 0, b"data", 4).await.unwrap();
        partition.set_level(VOLUME, SecurityLevel::CRYPT).unwrap();
        for refused in [&signed, &clear, &anyone] {
            assert_eq!(refused.fetch(fid, 0, 4).await.unwrap_err(), ACCESS);
            assert_eq!(refused.fetch(ROOT, 0, 4).await.unwrap_err(), ACCESS);
            assert_eq!(refused.store(fid, 0, b"x", 1).await.unwrap_err(), ACCESS);
            assert_eq!(refused.status(fid).await.unwrap_err(), ACCESS);
            assert_eq!(refused.store_status(fid, mode(0o600)).await.unwrap_err(), ACCESS);
            assert_eq!(refused.acl(ROOT).await.unwrap_err(), ACCESS);
            assert_eq!(refused.set_acl(ROOT, "0\n0\n").await.unwrap_err(), ACCESS);
            assert_eq!(refused.create(ROOT, "x").await.unwrap_err(), ACCESS);
            assert_eq!(refused.make_dir(ROOT, "x").await.unwrap_err(), ACCESS);
            assert_eq!(refused.symlink(ROOT, "x", "y").await.unwrap_err(), ACCESS);
            assert_eq!(refused.link(ROOT, "x", fid).await.unwrap_err(), ACCESS);
            assert_eq!(refused.remove(ROOT, "file").await.unwrap_err(), ACCESS);
            assert_eq!(refused.remove_dir(ROOT, "x").await.unwrap_err(), ACCESS);
            assert_eq!(refused.rename((ROOT, "file"), (ROOT, "x")).await.unwrap_err(), ACCESS);
            let lock = rxafs::SetLock { fid, kind: ViceLockType::READ };
            assert_eq!(refused.call(lock).await.unwrap_err(), ACCESS);
            let of_volume = rxafs::GetVolumeStatus { volume: VOLUME };
            assert_eq!(refused.call(of_volume).await.unwrap_err(), ACCESS);
            let fids = AfsCbFids::new(vec![ROOT, fid]).unwrap();
            assert_eq!(refused.call(rxafs::BulkStatus { fids: fids.clone() }).await.unwrap_err(), ACCESS);
            let one_by_one = refused.call(rxafs::InlineBulkStatus { fids }).await.unwrap().statuses;
            assert_eq!(one_by_one.iter().map(|status| status.error_code).collect::<Vec<_>>(), [ACCESS; 2]);
        }
        assert_eq!(encrypted.fetch(fid, 0, 10).await.unwrap().0, b"data");
        encrypted.store(fid, 0, b"more", 4).await.unwrap();
        // At the next level below, signed calls are served too.
        partition.set_level(VOLUME, SecurityLevel::AUTH).unwrap();
        assert_eq!(signed.fetch(fid, 0, 10).await.unwrap().0, b"more");
        assert_eq!(clear.fetch(fid, 0, 10).await.unwrap_err(), ACCESS);
        assert_eq!(anyone.status(ROOT).await.unwrap_err(), ACCESS);
        partition.set_level(VOLUME, SecurityLevel::CLEAR).unwrap();
        assert_eq!(anyone.fetch(fid, 0, 10).await.unwrap().0, b"more");
    });
}
