//! Tests of when callback promises are made and end, and which clients get a callback.

use super::*;
use afs_wire::ids::{Uniquifier, VnodeNumber};

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
const A: HostId = HostId(1);
const B: HostId = HostId(2);
const C: HostId = HostId(3);

fn fid(volume: u32, vnode: u32) -> AfsFid {
    AfsFid { volume: VolumeId(volume), vnode: VnodeNumber(vnode), unique: Uniquifier(1) }
}

fn promised(promises: &[(HostId, AfsFid, Kind)]) -> Callbacks {
    let mut callbacks = Callbacks::new(1000);
    for (host, fid, kind) in promises {
        callbacks.promise(NOW, *host, *fid, *kind);
    }
    callbacks
}

/// Each event, and its effect on the promises of three hosts for two files of a volume and one of another: the hosts that are
/// told, and the promises that are left.
#[test]
fn every_event_ends_what_it_should_and_tells_whom_it_should() {
    type Event = fn(&mut Callbacks) -> Vec<HostId>;
    type Row<'a> = (&'a str, Event, &'a [HostId], &'a [(HostId, AfsFid)]);
    let table: &[Row<'_>] = &[
        ("nothing", |_| vec![], &[], &[(A, fid(7, 2)), (B, fid(7, 2)), (B, fid(7, 4)), (C, fid(8, 2))]),
        (
            "a change by A",
            |c| c.changed(fid(7, 2), Some(A)),
            &[B],
            &[(A, fid(7, 2)), (B, fid(7, 4)), (C, fid(8, 2))],
        ),
        (
            "a change by someone without promises",
            |c| c.changed(fid(7, 2), Some(C)),
            &[A, B],
            &[(B, fid(7, 4)), (C, fid(8, 2))],
        ),
        (
            "a change that all are told of",
            |c| c.changed(fid(7, 2), None),
            &[A, B],
            &[(B, fid(7, 4)), (C, fid(8, 2))],
        ),
        (
            "a change of something nobody has",
            |c| c.changed(fid(7, 6), None),
            &[],
            &[(A, fid(7, 2)), (B, fid(7, 2)), (B, fid(7, 4)), (C, fid(8, 2))],
        ),
        (
            "a removal",
            |c| {
                c.removed(fid(7, 2));
                vec![]
            },
            &[],
            &[(B, fid(7, 4)), (C, fid(8, 2))],
        ),
        ("a volume changes", |c| c.volume_changed(VolumeId(7)), &[A, B], &[(C, fid(8, 2))]),
        (
            "B gives up one",
            |c| {
                c.gave_up(B, fid(7, 2));
                c.changed(fid(7, 2), None)
            },
            &[A],
            &[(B, fid(7, 4)), (C, fid(8, 2))],
        ),
        (
            "B gives up what it has not",
            |c| {
                c.gave_up(B, fid(8, 2));
                vec![]
            },
            &[],
            &[(A, fid(7, 2)), (B, fid(7, 2)), (B, fid(7, 4)), (C, fid(8, 2))],
        ),
        (
            "B gives up a volume it has no promise for as a whole",
            |c| {
                c.gave_up(B, AfsFid::whole_volume(VolumeId(7)));
                vec![]
            },
            &[],
            &[(A, fid(7, 2)), (B, fid(7, 2)), (B, fid(7, 4)), (C, fid(8, 2))],
        ),
        (
            "B is gone",
            |c| {
                c.host_gone(B);
                c.changed(fid(7, 2), None)
            },
            &[A],
            &[(C, fid(8, 2))],
        ),
        (
            "a day passes",
            |c| {
                c.handle_timeout(NOW + Duration::from_secs(86_400));
                vec![]
            },
            &[],
            &[],
        ),
    ];
    for (name, event, told, left) in table {
        let mut callbacks = promised(&[
            (A, fid(7, 2), Kind::Single),
            (B, fid(7, 2), Kind::Single),
            (B, fid(7, 4), Kind::Bulk),
            (C, fid(8, 2), Kind::Single),
        ]);
        assert_eq!(event(&mut callbacks), *told, "{name}");
        assert_eq!(callbacks.len(), left.len(), "{name}");
        for (host, fid) in *left {
            assert!(callbacks.holds(*host, *fid), "{name}: {host:?} {fid:?}");
        }
    }
}

#[test]
fn a_file_of_a_read_only_volume_promises_the_volume() {
    let mut callbacks = promised(&[(A, fid(7, 2), Kind::ReadOnly), (A, fid(7, 4), Kind::ReadOnly)]);
    assert_eq!(callbacks.len(), 1);
    assert!(callbacks.holds(A, fid(7, 1000)));
    assert_eq!(callbacks.changed(fid(7, 2), None), []);
    assert_eq!(callbacks.volume_changed(VolumeId(7)), [A]);
    assert!(callbacks.is_empty());
}

#[test]
fn the_more_holders_the_shorter_the_promise() {
    let check = |holders: u64, kind, seconds: u64| {
        let mut callbacks = Callbacks::new(1000);
        for host in 0..holders {
            callbacks.promise(NOW, HostId(host + 100), fid(7, 2), Kind::Single);
        }
        let life = callbacks.promise(NOW, A, fid(7, 2), kind).as_secs();
        assert!((seconds..=seconds + 128).contains(&life), "{holders} holders: {life} s");
    };
    for (holders, seconds) in
        [(0, 14_400), (7, 14_400), (8, 3600), (16, 1800), (24, 900), (40, 600), (64, 420), (500, 420)]
    {
        check(holders, Kind::Single, seconds);
    }
    check(0, Kind::Bulk, 1800);
    check(2, Kind::Bulk, 900);
    check(0, Kind::ReadOnly, 7200);
}

#[test]
fn a_promise_is_kept_longer_than_was_told() {
    let mut callbacks = Callbacks::new(10);
    let told = callbacks.promise(NOW, A, fid(7, 2), Kind::Single);
    callbacks.handle_timeout(NOW + told + GRACE - Duration::from_secs(1));
    assert!(callbacks.holds(A, fid(7, 2)));
    callbacks.handle_timeout(NOW + told + GRACE + ROUND);
    assert!(callbacks.is_empty());
}

#[test]
fn a_promise_made_again_lasts_from_then() {
    let mut callbacks = promised(&[(A, fid(7, 2), Kind::Single)]);
    let later = NOW + Duration::from_secs(10_000);
    let told = callbacks.promise(later, A, fid(7, 2), Kind::Single);
    for seconds in (0..told.as_secs()).step_by(100) {
        callbacks.handle_timeout(later + Duration::from_secs(seconds));
        assert!(callbacks.holds(A, fid(7, 2)), "after {seconds} s");
    }
    callbacks.handle_timeout(later + told + GRACE + ROUND);
    assert!(callbacks.is_empty());
    assert_eq!(callbacks.poll_timeout(), None);
}

#[test]
fn beyond_the_limit_the_host_with_the_most_pays() {
    let mut callbacks = Callbacks::new(10);
    for vnode in 0..9 {
        callbacks.promise(NOW, A, fid(7, 2 * vnode), Kind::Single);
    }
    callbacks.promise(NOW, B, fid(7, 2), Kind::Single);
    assert_eq!(callbacks.make_room(B, |_| None), []);
    callbacks.promise(NOW, B, fid(7, 4), Kind::Single);
    assert_eq!(callbacks.make_room(B, |_| None), [A]);
    assert_eq!(callbacks.len(), 2);
    assert!(callbacks.holds(B, fid(7, 4)));
}

/// A machine that takes promises under a thousand ports, with fewer at each port than an honest client has: the client with the
/// most was told to forget, again and again.
#[test]
fn a_machine_of_many_small_hosts_gives_up_its_own_promises_and_not_those_of_the_largest_host() {
    let machine_of = |host: HostId| Some(IpAddr::from([10, 0, 0, if host == A { 1 } else { 2 }]));
    let mut callbacks = Callbacks::new(1000);
    for vnode in 0..300 {
        callbacks.promise(NOW, A, fid(7, 2 * vnode), Kind::Single);
    }
    for number in 0..2000 {
        let host = HostId(100 + number);
        for vnode in 0..10 {
            callbacks.promise(NOW, host, fid(8, 2 * vnode), Kind::Single);
            let gone = callbacks.make_room(host, machine_of);
            assert!(!gone.contains(&A) && callbacks.len() <= 1000, "{number}");
        }
    }
    assert!(callbacks.holds(A, fid(7, 2)));
}

/// A client that fetches and gives up in turn leaves entries for the end of promises that are no more.
#[test]
fn giving_up_at_once_costs_no_memory() {
    let mut callbacks = Callbacks::new(1000);
    for turn in 0..100_000 {
        callbacks.promise(NOW, A, fid(7, 2 * (turn % 50)), Kind::Single);
        callbacks.gave_up(A, fid(7, 2 * (turn % 50)));
    }
    assert!(callbacks.is_empty());
    assert!(callbacks.end_entries <= 2048, "{} entries", callbacks.end_entries);
    assert_eq!(callbacks.end_entries, callbacks.ends.values().map(Vec::len).sum());
}

/// Against a model: sets of (host, fid) with their ends.
#[test]
fn random_histories_agree_with_a_plain_set() {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut callbacks = Callbacks::new(usize::MAX);
    let mut model: BTreeMap<(HostId, AfsFid), Instant> = BTreeMap::new();
    let mut now = NOW;
    for _ in 0..20_000 {
        let (host, file) = (HostId(next(5)), fid(next(2) as u32, 2 * next(6) as u32));
        match next(8) {
            0..=3 => {
                let told = callbacks.promise(now, host, file, Kind::Single);
                let end = model.entry((host, file)).or_default();
                *end = (*end).max(now + told);
            }
            4 => {
                let told = callbacks.changed(file, Some(host));
                let expected: Vec<HostId> =
                    model.keys().filter(|(h, f)| *f == file && *h != host).map(|(h, _)| *h).collect();
                assert!(expected.iter().all(|host| told.contains(host)), "{told:?} {expected:?}");
                model.retain(|(h, f), _| *f != file || *h == host);
            }
            5 => {
                callbacks.gave_up(host, file);
                model.remove(&(host, file));
            }
            6 if next(20) == 0 => {
                callbacks.host_gone(host);
                model.retain(|(h, _), _| *h != host);
            }
            _ => {
                now += Duration::from_secs(next(600));
                callbacks.handle_timeout(now);
                model.retain(|_, end| *end > now);
            }
        }
        for (host, fid) in model.keys() {
            assert!(callbacks.holds(*host, *fid), "{host:?} {fid:?}");
        }
        assert!(callbacks.end_entries <= 2 * callbacks.len() + 1100);
    }
}

/// A monitor that asked for the statistics of callbacks saw no more than zeros.
#[test]
fn a_monitor_sees_how_many_promises_were_made_and_what_became_of_them() {
    let one = |host, vnode| (host, fid(7, vnode), Kind::Single);
    let mut callbacks =
        promised(&[one(A, 2), one(A, 2), one(B, 2), one(A, 4), one(A, 6), one(B, 8), one(C, 8), one(C, 10)]);
    callbacks.changed(fid(7, 2), Some(A));
    callbacks.gave_up(A, fid(7, 4));
    callbacks.removed(fid(7, 8));
    callbacks.host_gone(C);
    callbacks.handle_timeout(NOW + Duration::from_secs(24 * 3600));
    let expected =
        Totals { made: 7, broken: 1, files_gone: 1, given_up: 1, clients_gone: 1, timed_out: 2, was_full: 0 };
    assert_eq!((callbacks.totals(), callbacks.len()), (expected, 0));
}
