//! Tests of how long the client takes a status, a right or a break of a promise for valid.

use std::net::SocketAddr;
use std::time::Duration;

use afs_wire::ids::{Uniquifier, ViceId, VnodeNumber, VolumeId};
use afs_wire::status::AfsVolSync;

use super::*;
use crate::vnodes::table::Vnodes;
use afs_reach::fid::CellIndex;
use afs_reach::releases::ReleaseSeen;
use afs_reach::table::{ServerKind, Servers};
use afs_reach::volumes::AWAY_FOR;

const CELL: CellIndex = CellIndex(1);
const VOLUME: VolumeId = VolumeId(7);
const DIR: Fid = Fid::root_of(CELL, VOLUME);
const FILE: Fid = Fid { vnode: VnodeNumber(2), unique: Uniquifier(9), ..DIR };
const ALICE: IdentityIndex = IdentityIndex::NOBODY;

/// A table, a server, and a time that is set by hand.
struct World {
    vnodes: Vnodes,
    server: Arc<Server>,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let socket = SocketAddr::from(([192, 0, 2, 1], 7000));
        let server = Servers::default().get_or_add(ServerKind::File, CELL, None, &[socket]).unwrap();
        let now = Instant::ORIGIN + Duration::from_secs(1000);
        Self { vnodes: Vnodes::new(1000, 1 << 20, Duration::ZERO), server, now }
    }

    fn responder(&self) -> Responder {
        Responder { server: Arc::clone(&self.server), resets: self.server.resets() }
    }

    /// A whole fetch of a status, with nothing in between.
    fn fetch(&self, fid: Fid, version: u64) -> Noted {
        let vnode = self.vnodes.get_or_add(fid);
        let (before, responder) = (vnode.snapshot(), self.responder());
        vnode.note(self.now, (&before, &responder), ALICE, &status(fid, version), Some(&promise()))
    }

    fn is_valid(&self, fid: Fid) -> bool {
        self.vnodes.get(fid).is_some_and(|vnode| vnode.known(self.now, ALICE).is_some())
    }

    fn later(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }
}

pub(crate) fn promise() -> AfsCallBack {
    AfsCallBack::shared(600)
}

pub(crate) fn status(fid: Fid, version: u64) -> AfsFetchStatus {
    let is_dir = fid.vnode.is_directory();
    AfsFetchStatus {
        interface_version: 1,
        file_type: if is_dir { FileType::DIRECTORY } else { FileType::FILE },
        link_count: 1,
        length: 0,
        data_version: DataVersion(version),
        author: ViceId(1),
        owner: ViceId(1),
        caller_access: Rights::ALL,
        anonymous_access: Rights::READ,
        unix_mode_bits: 0o644,
        parent_vnode: DIR.vnode,
        parent_unique: DIR.unique,
        residency_mask: 1,
        client_mod_time: AfsTime(0),
        server_mod_time: AfsTime(0),
        group: ViceId(0),
        sync_counter: 0,
        lock_count: 0,
        error_code: 0,
    }
}

#[test]
fn a_promised_status_counts_until_the_promise_runs_out() {
    let mut world = World::new();
    assert!(world.fetch(FILE, 1).is_valid);
    assert!(world.is_valid(FILE));
    world.later(594);
    assert!(world.is_valid(FILE));
    world.later(1);
    assert!(!world.is_valid(FILE), "a little before the server says");
    let vnode = world.vnodes.get(FILE).unwrap();
    assert_eq!(vnode.last_status().unwrap().data_version, DataVersion(1), "what was last known stays");
}

#[test]
fn each_kind_of_break_ends_a_promise() {
    for (what, breaks) in [
        ("of the vnode", (|world: &World| world.vnodes.note_break(FILE)) as fn(&World)),
        ("of the volume", |world| {
            let whole = Fid { vnode: VnodeNumber(0), unique: Uniquifier(0), ..FILE };
            world.vnodes.note_break(whole);
        }),
        ("of the server", |world| world.server.reset()),
        ("of a forgetful user", |world| world.vnodes.get(FILE).unwrap().forget()),
    ] {
        let world = World::new();
        world.fetch(FILE, 1);
        breaks(&world);
        assert!(!world.is_valid(FILE), "{what}");
        assert!(world.fetch(FILE, 1).is_valid, "{what}: and is good again afterwards");
    }
    let world = World::new();
    world.fetch(FILE, 1);
    world.vnodes.note_break(Fid { vnode: VnodeNumber(4), ..FILE });
    world.vnodes.note_break(Fid { cell: CellIndex(2), ..FILE });
    assert!(world.is_valid(FILE), "another vnode, another cell");
}

#[test]
fn a_promise_that_was_broken_on_its_way_is_none() {
    for breaks in [
        (|world: &World| world.vnodes.note_break(FILE)) as fn(&World),
        |world| world.vnodes.volume(CELL, VOLUME).note_break(),
        |world| world.server.reset(),
    ] {
        let world = World::new();
        let vnode = world.vnodes.get_or_add(FILE);
        let (before, responder) = (vnode.snapshot(), world.responder());
        breaks(&world);
        let noted = vnode.note(world.now, (&before, &responder), ALICE, &status(FILE, 1), Some(&promise()));
        assert!(!noted.is_valid);
        assert!(!world.is_valid(FILE));
    }
}

#[test]
fn what_servers_do_not_promise_is_not_kept_as_promised() {
    let world = World::new();
    let vnode = world.vnodes.get_or_add(FILE);
    for callback in [
        AfsCallBack::NONE,
        AfsCallBack { kind: CallBackType::DROPPED, ..promise() },
        AfsCallBack::shared(0),
        AfsCallBack::shared(5),
    ] {
        let (before, responder) = (vnode.snapshot(), world.responder());
        let noted = vnode.note(world.now, (&before, &responder), ALICE, &status(FILE, 1), Some(&callback));
        assert!(!noted.is_valid, "{callback:?}");
    }
    let (before, responder) = (vnode.snapshot(), world.responder());
    let for_ever = AfsCallBack::shared(u32::MAX);
    vnode.note(world.now, (&before, &responder), ALICE, &status(FILE, 1), Some(&for_ever));
    let until = vnode.known(world.now, ALICE).unwrap().until;
    assert!(until <= world.now + PROMISE_MAX, "nor for longer than makes sense");
}

#[test]
fn an_old_reply_does_not_undo_a_new_one() {
    let world = World::new();
    let vnode = world.vnodes.get_or_add(FILE);
    let (before, responder) = (vnode.snapshot(), world.responder());
    world.fetch(FILE, 5);
    vnode.note(world.now, (&before, &responder), ALICE, &status(FILE, 4), Some(&promise()));
    assert_eq!(vnode.last_status().unwrap().data_version, DataVersion(5));
    // One of the same version, made before a change of ours that leaves the version alone, such as of the mode.
    let before_change = vnode.snapshot();
    let changed = AfsFetchStatus { unix_mode_bits: 0o600, ..status(FILE, 5) };
    let own = vnode.snapshot();
    vnode.note_change(world.now, (&own, &responder), ALICE, &changed, None);
    vnode.note(world.now, (&before_change, &responder), ALICE, &status(FILE, 5), Some(&promise()));
    assert_eq!(vnode.last_status().unwrap().unix_mode_bits, 0o600);
    assert!(world.is_valid(FILE));
}

#[test]
fn others_changes_are_told_and_our_own_are_not() {
    let world = World::new();
    assert!(!world.fetch(FILE, 1).is_other_data, "nothing was known");
    assert!(!world.fetch(FILE, 1).is_other_data);
    assert!(world.fetch(FILE, 2).is_other_data);
    let vnode = world.vnodes.get(FILE).unwrap();
    let (before, responder) = (vnode.snapshot(), world.responder());
    let noted = vnode.note_change(world.now, (&before, &responder), ALICE, &status(FILE, 3), None);
    assert!(!noted.is_other_data && noted.is_valid, "and the promise holds");
}

#[test]
fn a_change_of_our_own_does_not_revive_a_promise_that_had_ended() {
    let mut world = World::new();
    world.fetch(FILE, 1);
    let vnode = world.vnodes.get(FILE).unwrap();
    world.later(1000);
    let (before, responder) = (vnode.snapshot(), world.responder());
    assert!(!vnode.note_change(world.now, (&before, &responder), ALICE, &status(FILE, 2), None).is_valid);
    world.fetch(FILE, 2);
    let (before, responder) = (vnode.snapshot(), world.responder());
    world.vnodes.note_break(FILE);
    assert!(!vnode.note_change(world.now, (&before, &responder), ALICE, &status(FILE, 3), None).is_valid);
}

#[test]
fn rights_are_each_identitys_own_and_go_with_the_promise() {
    let mut world = World::new();
    let users = IdentityIndex::for_tests(5);
    world.fetch(DIR, 1);
    let dir = world.vnodes.get(DIR).unwrap();
    let rights = |world: &World, who| dir.known(world.now, who).and_then(|known| known.rights);
    assert_eq!((rights(&world, ALICE), rights(&world, users)), (Some(Rights::ALL), None));
    let before = dir.snapshot();
    dir.note_rights(world.now, &before, users, Rights::READ);
    assert_eq!(rights(&world, users), Some(Rights::READ));
    // A file's status says nothing of administering: `fs getcalleraccess` of the directory lost it after a look at a file in it.
    dir.note_rights(world.now, &before, ALICE, Rights::ALL.without(Rights::ADMINISTER));
    assert_eq!(rights(&world, ALICE), Some(Rights::ALL));
    world.vnodes.note_break(DIR);
    world.fetch(DIR, 1);
    assert_eq!(rights(&world, users), None, "the list may be another now");
    dir.note_rights(world.now, &before, users, Rights::ALL);
    assert_eq!(rights(&world, users), None, "said before the break");
    let before = dir.snapshot();
    dir.note_rights(world.now, &before, users, Rights::READ);
    world.later(10_000);
    world.fetch(DIR, 1);
    assert_eq!(rights(&world, users), None, "the promise had ended in between");
}

/// Rights that a server had told for a token before its end, and that arrived after it, counted for
/// hours.
#[test]
fn rights_that_were_asked_for_before_they_were_forgotten_are_not_kept() {
    let world = World::new();
    world.fetch(DIR, 1);
    let dir = world.vnodes.get(DIR).unwrap();
    let rights = || dir.known(world.now, ALICE).unwrap().rights;
    let (before, responder) = (dir.snapshot(), world.responder());
    dir.forget_rights(ALICE);
    dir.note(world.now, (&before, &responder), ALICE, &status(DIR, 1), Some(&promise()));
    assert_eq!(rights(), None);
    dir.note_rights(world.now, &before, ALICE, Rights::READ);
    assert_eq!(rights(), None);
    dir.note_rights(world.now, &dir.snapshot(), ALICE, Rights::READ);
    assert_eq!(rights(), Some(Rights::READ));
}

#[test]
fn many_identities_do_not_fill_the_memory() {
    let world = World::new();
    world.fetch(DIR, 1);
    let dir = world.vnodes.get(DIR).unwrap();
    let before = dir.snapshot();
    for number in 1..1000 {
        dir.note_rights(world.now, &before, IdentityIndex::for_tests(number), Rights::READ);
    }
    assert_eq!(dir.state().access.len(), ACCESS_MAX);
    assert_eq!(dir.known(world.now, IdentityIndex::for_tests(999)).unwrap().rights, Some(Rights::READ));
}

#[test]
fn pages_count_only_for_the_version_that_is_promised() {
    let world = World::new();
    world.fetch(DIR, 3);
    let dir = world.vnodes.get(DIR).unwrap();
    let empty = || Arc::new(Directory::new(LocalFid::ROOT, LocalFid::ROOT));
    let pages = |version| Pages { directory: empty(), version: DataVersion(version) };
    world.vnodes.keep_pages(&dir, pages(2));
    assert!(dir.good_pages(world.now).is_none());
    world.vnodes.keep_pages(&dir, pages(3));
    assert!(dir.good_pages(world.now).is_some());
    world.vnodes.keep_pages(&dir, pages(1));
    assert!(dir.good_pages(world.now).is_some(), "older ones come too late");
    world.vnodes.note_break(DIR);
    assert!(dir.good_pages(world.now).is_none());
    world.fetch(DIR, 3);
    assert!(dir.good_pages(world.now).is_some(), "nothing has changed after all");
}

#[test]
fn pages_are_edited_only_when_the_version_grew_by_exactly_one() {
    for (version, is_kept) in [(4, true), (5, false)] {
        let world = World::new();
        world.fetch(DIR, 3);
        let dir = world.vnodes.get(DIR).unwrap();
        let directory = Arc::new(Directory::new(LocalFid::ROOT, LocalFid::ROOT));
        let listing = Arc::clone(&directory);
        world.vnodes.keep_pages(&dir, Pages { directory, version: DataVersion(3) });
        let (before, responder) = (dir.snapshot(), world.responder());
        dir.note_change(world.now, (&before, &responder), ALICE, &status(DIR, version), None);
        dir.edit_pages(DataVersion(version), |pages| pages.insert(b"new", FILE.in_volume()).is_ok());
        let pages = dir.good_pages(world.now);
        assert_eq!(pages.is_some(), is_kept, "{version}");
        assert!(pages.is_none_or(|pages| pages.directory.lookup(b"new").is_some()));
        assert!(listing.lookup(b"new").is_none(), "a listing stays as it was");
    }
}

#[test]
fn pages_that_came_with_a_change_before_its_reply_stay_as_they_are() {
    let world = World::new();
    world.fetch(DIR, 3);
    let dir = world.vnodes.get(DIR).unwrap();
    let (before, responder) = (dir.snapshot(), world.responder());
    world.fetch(DIR, 4);
    let mut directory = Directory::new(LocalFid::ROOT, LocalFid::ROOT);
    directory.insert(b"new", FILE.in_volume()).unwrap();
    world.vnodes.keep_pages(&dir, Pages { directory: Arc::new(directory), version: DataVersion(4) });
    dir.note_change(world.now, (&before, &responder), ALICE, &status(DIR, 4), None);
    dir.edit_pages(DataVersion(4), |_| panic!("it is in there"));
    assert!(dir.good_pages(world.now).unwrap().directory.lookup(b"new").is_some());
}

/// A change is interrupted, and the server makes it all the same: it tells everybody but us.
#[test]
fn a_change_without_an_answer_ends_what_was_promised() {
    let world = World::new();
    for (is_answered, is_valid) in [(true, true), (false, false)] {
        world.fetch(DIR, 1);
        let change = PendingChange::new([world.vnodes.get(DIR).unwrap()]);
        if is_answered {
            change.done();
        } else {
            drop(change);
        }
        assert_eq!(world.is_valid(DIR), is_valid);
    }
}

#[test]
fn a_volume_that_is_restored_goes_back_in_versions() {
    let world = World::new();
    world.fetch(FILE, 9);
    world.vnodes.volume(CELL, VOLUME).note_break();
    assert!(world.fetch(FILE, 4).is_other_data);
    assert_eq!(world.vnodes.get(FILE).unwrap().last_status().unwrap().data_version, DataVersion(4));
}

#[test]
fn a_vnode_that_was_made_has_its_promise_unless_something_unknown_was_broken() {
    for (is_broken, is_valid) in [(false, true), (true, false)] {
        let world = World::new();
        world.fetch(DIR, 1);
        let dir = world.vnodes.get(DIR).unwrap();
        let (before, responder) = (dir.snapshot(), world.responder());
        if is_broken {
            // The server tells of the new number before the reply is here.
            world.vnodes.note_break(FILE);
        }
        let made = (ALICE, DIR.in_volume());
        world.vnodes.note_made(
            world.now,
            FILE,
            (&before, &responder),
            made,
            (&status(FILE, 0), Cause::Asked),
            Some(&promise()),
        );
        assert_eq!(world.is_valid(FILE), is_valid);
        assert_eq!(world.vnodes.get(FILE).unwrap().parent(), Some(DIR.in_volume()));
    }
}

#[test]
fn a_read_only_volume_that_is_released_anew_loses_its_promises() {
    let world = World::new();
    let volume = world.vnodes.volume(CELL, VOLUME);
    let told = |time| {
        let sync = AfsVolSync { creation: AfsTime(time), spares: [0; 5] };
        volume.note_release(world.now, world.server.id, &sync, |_| true)
    };
    assert!(told(10) == ReleaseSeen::Same);
    world.fetch(FILE, 1);
    assert!(told(11) == ReleaseSeen::Same, "of a read-write volume it says nothing");
    volume.set_read_only(true);
    assert!(told(11) == ReleaseSeen::Same && world.is_valid(FILE));
    assert!(told(12) == ReleaseSeen::Another && !world.is_valid(FILE));
    assert!(told(0) == ReleaseSeen::Same, "a server that does not say");
}

#[test]
fn what_was_promised_of_a_read_only_volume_counts_while_nobody_answers() {
    let mut world = World::new();
    let volume = world.vnodes.volume(CELL, VOLUME);
    volume.set_read_only(true);
    world.fetch(FILE, 1);
    world.now += PROMISE_MAX;
    world.server.reset();
    assert!(!world.is_valid(FILE));
    volume.note_away(world.now);
    assert!(world.is_valid(FILE), "nobody can say anything else");
    world.now += AWAY_FOR;
    assert!(!world.is_valid(FILE), "it is to be tried now and then");
    volume.note_away(world.now);
    volume.note_break();
    assert!(!world.is_valid(FILE), "what was broken is off");
}

#[test]
fn the_table_keeps_its_limit_but_lets_nothing_go_that_is_needed() {
    let mut world = World::new();
    world.vnodes = Vnodes::new(64 * 16, 1 << 20, Duration::ZERO);
    let fid = |number: u32| Fid { vnode: VnodeNumber(2 * number), ..FILE };
    let held = world.vnodes.get_or_add(fid(1));
    for number in 2..20_000 {
        world.vnodes.get_or_add(fid(number));
    }
    assert!(world.vnodes.count() <= 64 * 16 + 64, "{}", world.vnodes.count());
    assert!(
        Arc::ptr_eq(&held, &world.vnodes.get(fid(1)).unwrap()),
        "a call is under way, or its data are open"
    );
}

#[test]
fn pages_are_let_go_beyond_their_limit_the_unused_first() {
    let mut world = World::new();
    world.vnodes = Vnodes::new(100_000, 100 * 2048, Duration::ZERO);
    let fid = |number: u32| Fid { vnode: VnodeNumber(2 * number + 1), ..FILE };
    for number in 1..200 {
        let vnode = world.vnodes.get_or_add(fid(number));
        let directory = Arc::new(Directory::new(LocalFid::ROOT, LocalFid::ROOT));
        world.vnodes.keep_pages(&vnode, Pages { directory, version: DataVersion(1) });
    }
    let kept = (1..200).filter(|&n| world.vnodes.get(fid(n)).unwrap().pages().is_some()).count();
    assert!((80..=100).contains(&kept), "{kept}");
    assert!(world.vnodes.get(fid(199)).unwrap().pages().is_some(), "the newest");
}

#[test]
fn the_time_of_change_stays_when_data_are_stored_until_there_is_another_change() {
    let world = World::new();
    let vnode = world.vnodes.get_or_add(FILE);
    let told = |version, server_mod_time| AfsFetchStatus {
        server_mod_time: AfsTime(server_mod_time),
        ..status(FILE, version)
    };
    let note = |told: &AfsFetchStatus, cause| {
        let (before, responder) = (vnode.snapshot(), world.responder());
        vnode.note_caused(world.now, (&before, &responder), ALICE, (told, cause), Some(&promise()));
        vnode.known(world.now, ALICE).unwrap().status.server_mod_time.0
    };
    assert_eq!(note(&told(1, 100), Cause::Asked), 100);
    assert_eq!(note(&told(2, 105), Cause::Shown(AfsTime(103))), 103, "the time of writing");
    assert_eq!(note(&told(2, 105), Cause::Asked), 103, "the server tells of the same change");
    assert_eq!(note(&told(3, 106), Cause::Shown(AfsTime(102))), 103, "never an earlier one");
    assert_eq!(note(&told(3, 109), Cause::Asked), 109, "somebody has changed its mode");
    assert_eq!(note(&told(4, 112), Cause::Shown(AfsTime(110))), 110);
    assert_eq!(note(&told(5, 112), Cause::Asked), 112, "somebody has changed its data");
    assert_eq!(note(&told(6, 115), Cause::Shown(AfsTime(114))), 114);
    assert_eq!(
        note(&told(6, 115), Cause::Change),
        115,
        "we have changed its mode in the second of the store"
    );
}

#[test]
fn what_a_server_told_before_a_change_of_ours_is_not_shown_after_it() {
    let world = World::new();
    let (vnode, responder) = (world.vnodes.get_or_add(FILE), world.responder());
    let with_two = AfsFetchStatus { link_count: 2, ..status(FILE, 1) };
    let told = |before: &Snapshot| vnode.note(world.now, (before, &responder), ALICE, &with_two, None);
    let links = || vnode.last_status().unwrap().link_count;
    told(&vnode.snapshot());
    vnode.note_made_here(1, AfsTime(5), vec![Effect::Links(-1)]);
    told(&vnode.snapshot());
    assert_eq!(links(), 1, "the server has not removed the name yet");
    let before = vnode.snapshot();
    vnode.end_made_here(1);
    vnode.note_break();
    told(&before);
    assert_eq!(links(), 1, "it was asked before, and has answered the removal first");
}

/// A file had a name too many, or one too few, for as long as the answer to a change of its names took.
#[test]
fn the_links_of_a_file_are_not_counted_twice_while_a_change_of_its_names_is_answered() {
    for (links, at_server) in [(1, 2), (-1, 0)] {
        let world = World::new();
        let (vnode, responder) = (world.vnodes.get_or_add(FILE), world.responder());
        let of = |link_count| AfsFetchStatus { link_count, ..status(FILE, 1) };
        let told = |links| vnode.note(world.now, (&vnode.snapshot(), &responder), ALICE, &of(links), None);
        let shown = || vnode.last_status().unwrap().link_count;
        told(1);
        vnode.note_made_here(1, AfsTime(5), vec![Effect::Links(links)]);
        assert_eq!(shown(), at_server);
        vnode.note_sent();
        // Before the server has made it, and after.
        for told_links in [1, at_server] {
            told(told_links);
            assert_eq!(shown(), at_server, "{links}, told {told_links}");
        }
        vnode.end_made_here(1);
        vnode.note_answered(None);
        told(at_server);
        assert_eq!(shown(), at_server);
    }
}
