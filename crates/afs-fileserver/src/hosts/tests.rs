//! Tests of what the server knows about clients that move, restart or do not answer.

use super::*;
use afs_wire::ids::{Uniquifier, VnodeNumber};

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const EPOCH: Epoch = Epoch(7);

fn address(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 7001))
}

fn uuid(number: u32) -> Uuid {
    Uuid { time_low: number, ..Uuid::default() }
}

fn fid(vnode: u32) -> AfsFid {
    AfsFid { volume: VolumeId(7), vnode: VnodeNumber(vnode), unique: Uniquifier(1) }
}

fn identity(number: u32) -> Option<Identity> {
    Some(Identity { uuid: Some(uuid(number)), capabilities: 1 })
}

/// A host that has called, said who it is and been told to forget: the usual beginning.
fn up(hosts: &mut Hosts, now: Instant, number: u8) -> HostId {
    assert_eq!(hosts.handle_call(now, address(number), EPOCH), Admission::Ask);
    match hosts.handle_identity(now, address(number), EPOCH, identity(number.into())) {
        Admission::Deliver(delivery) => {
            assert_eq!(delivery.message, Message::Reset);
            hosts.handle_delivery(now, &delivery, Outcome::Delivered).unwrap().host
        }
        Admission::Ready(admitted) => admitted.host,
        other => panic!("{other:?}"),
    }
}

/// A host that did not answer a break for the file.
fn down(hosts: &mut Hosts, now: Instant, number: u8, fid: AfsFid) -> HostId {
    let id = up(hosts, now, number);
    let breaks = hosts.breaks(&[id], fid);
    hosts.handle_break(now, &breaks[0], Outcome::NoAnswer);
    id
}

#[derive(Debug, Clone, Copy)]
enum State {
    Unknown,
    BeingAsked,
    Up,
    Down,
    DownForLong,
    OwesReset,
    Restored,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Call,
    CallOfNewEpoch,
    Break,
    Farewell,
    Due,
}

/// Brings host 1 into the state and says when.
fn state(state: State) -> (Hosts, Instant) {
    let mut hosts = Hosts::new(HostLimits::default());
    match state {
        State::Unknown => {}
        State::BeingAsked => assert_eq!(hosts.handle_call(NOW, address(1), EPOCH), Admission::Ask),
        State::Up => drop(up(&mut hosts, NOW, 1)),
        State::Down => drop(down(&mut hosts, NOW, 1, fid(2))),
        State::DownForLong => {
            down(&mut hosts, NOW, 1, fid(2));
            return (hosts, NOW + 15 * SECOND);
        }
        State::OwesReset => {
            let id = up(&mut hosts, NOW, 1);
            hosts.set_reset_pending(NOW, id);
        }
        State::Restored => drop(hosts.restore(NOW, Some(uuid(1)), address(1), vec![VolumeId(7)]).unwrap()),
    }
    (hosts, NOW)
}

fn show(admission: Admission) -> String {
    match admission {
        Admission::Ready(admitted) if admitted.gets_promises => "ready".into(),
        Admission::Ready(_) => "ready without promises".into(),
        Admission::Ask => "ask".into(),
        Admission::Wait => "wait".into(),
        Admission::Deliver(delivery) => format!("first {}", message(&delivery)),
    }
}

fn message(delivery: &Delivery) -> String {
    match &delivery.message {
        Message::Break(fids) => format!("break {}", fids.len()),
        message => message.word().into(),
    }
}

impl Message {
    fn word(&self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Break(_) => "break",
            Self::Probe => "probe",
        }
    }
}

#[test]
fn every_state_answers_every_event() {
    use Event::{Break, Call, CallOfNewEpoch, Due, Farewell};
    use State::{BeingAsked, Down, DownForLong, OwesReset, Restored, Unknown, Up};
    let table: &[(State, Event, &str)] = &[
        (Unknown, Call, "ask"),
        (Unknown, CallOfNewEpoch, "ask"),
        (Unknown, Break, "-"),
        (Unknown, Farewell, "0 hosts"),
        (Unknown, Due, "-"),
        (BeingAsked, Call, "wait"),
        (BeingAsked, CallOfNewEpoch, "wait"),
        (BeingAsked, Break, "-"),
        (BeingAsked, Farewell, "0 hosts"),
        (BeingAsked, Due, "-"),
        (Up, Call, "ready"),
        (Up, CallOfNewEpoch, "ask"),
        (Up, Break, "break 1"),
        (Up, Farewell, "0 hosts"),
        (Up, Due, "-"),
        (Down, Call, "ready without promises"),
        (Down, CallOfNewEpoch, "ask"),
        (Down, Break, "-"),
        (Down, Farewell, "0 hosts"),
        (Down, Due, "-"),
        (DownForLong, Call, "first break 1"),
        (DownForLong, CallOfNewEpoch, "ask"),
        (DownForLong, Break, "-"),
        (DownForLong, Farewell, "0 hosts"),
        (DownForLong, Due, "break 1"),
        (OwesReset, Call, "first reset"),
        (OwesReset, CallOfNewEpoch, "ask"),
        (OwesReset, Break, "reset"),
        (OwesReset, Farewell, "0 hosts"),
        (OwesReset, Due, "reset"),
        (Restored, Call, "ask"),
        (Restored, CallOfNewEpoch, "ask"),
        (Restored, Break, "reset"),
        (Restored, Farewell, "0 hosts"),
        (Restored, Due, "reset"),
    ];
    for (from, event, expected) in table {
        let (mut hosts, now) = state(*from);
        let list = |deliveries: Vec<Delivery>| {
            if deliveries.is_empty() {
                "-".to_owned()
            } else {
                deliveries.iter().map(message).collect::<Vec<_>>().join(", ")
            }
        };
        let got = match event {
            Call => show(hosts.handle_call(now, address(1), EPOCH)),
            CallOfNewEpoch => show(hosts.handle_call(now, address(1), Epoch(8))),
            Break => list(hosts.breaks(&[HostId(1)], fid(4))),
            Farewell => {
                hosts.handle_farewell(HostId(1));
                format!("{} hosts", hosts.len())
            }
            Due => list(hosts.poll_deliveries(now)),
        };
        assert_eq!(got, *expected, "{from:?} {event:?}");
        assert_eq!(hosts.agenda.len(), hosts.len(), "{from:?} {event:?}");
    }
}

#[test]
fn a_new_host_is_told_to_forget_before_it_gets_promises() {
    let mut hosts = Hosts::new(HostLimits::default());
    assert_eq!(hosts.handle_call(NOW, address(1), EPOCH), Admission::Ask);
    let Admission::Deliver(delivery) = hosts.handle_identity(NOW, address(1), EPOCH, identity(1)) else {
        panic!("a reset is due");
    };
    assert_eq!((delivery.address, &delivery.message), (address(1), &Message::Reset));
    assert_eq!(hosts.handle_call(NOW, address(1), EPOCH), Admission::Wait, "others wait for it");
    let admitted = hosts.handle_delivery(NOW, &delivery, Outcome::Delivered).unwrap();
    assert!(admitted.gets_promises);
    assert_eq!(admitted.capabilities, 1);
    assert_eq!(hosts.handle_call(NOW, address(1), EPOCH), Admission::Ready(admitted));
}

/// The fate of a client of UUID 1 and epoch 7 at address 1 when somebody at address 9 says that it is UUID 1. Each row says whether the
/// newcomer is told to forget first, whether it has the old promises too, and what is pending for the old address after its answer.
#[test]
fn a_known_uuid_at_another_address_takes_nothing_from_whoever_was_there() {
    const ANOTHER: Epoch = Epoch(8);
    type Row = (&'static str, Epoch, Outcome, &'static str, bool, &'static str);
    let table: &[Row] = &[
        ("a second address of the same process", EPOCH, Outcome::Delivered, "ready", true, "break 1"),
        ("it has moved", EPOCH, Outcome::NoAnswer, "ready", true, "reset pending"),
        ("it has moved, another is there", EPOCH, Outcome::SomebodyElse, "ready", true, "gone"),
        (
            "a copy, or somebody who asked for the UUID",
            ANOTHER,
            Outcome::Delivered,
            "first reset",
            false,
            "break 1",
        ),
        ("a copy, while the first sleeps", ANOTHER, Outcome::NoAnswer, "first reset", false, "break pending"),
        ("moved and started anew", ANOTHER, Outcome::SomebodyElse, "first reset", false, "gone"),
    ];
    for (what, epoch, answer, newcomer, has_promises_too, old) in table {
        let mut hosts = Hosts::new(HostLimits::default());
        let id = up(&mut hosts, NOW, 1);
        assert!(hosts.note_promise(id));
        assert_eq!(hosts.handle_call(NOW, address(9), *epoch), Admission::Ask, "{what}");
        assert_eq!(show(hosts.handle_identity(NOW, address(9), *epoch, identity(1))), *newcomer, "{what}");
        let moved = hosts.poll_moved();
        assert_eq!(moved.len(), usize::from(*has_promises_too), "{what}");
        assert!(moved.iter().all(|(from, _)| *from == id), "{what}");
        assert_eq!(hosts.len(), 2, "{what}");
        // The old address is asked, and only it.
        let probes = hosts.poll_deliveries(NOW);
        assert_eq!(
            probes.iter().map(|d| (d.address, message(d))).collect::<Vec<_>>(),
            [(address(1), "probe".into())]
        );
        hosts.handle_delivery(NOW, &probes[0], *answer);
        let breaks = hosts.breaks(&[id], fid(2));
        let is_there = hosts.whereabouts(id).is_some();
        let got = match breaks.first() {
            Some(delivery) => message(delivery),
            None if !is_there => "gone".into(),
            None => format!("{} pending", hosts.hosts[&id].message().word()),
        };
        assert_eq!(got, *old, "{what}");
        assert_eq!(hosts.poll_dropped() == [id], *old == "reset pending", "{what}");
        assert!(hosts.poll_deliveries(NOW).is_empty(), "{what}: it is not asked again");
    }
}

#[test]
fn promises_are_carried_to_another_address_once_and_what_is_pending_with_them() {
    let mut hosts = Hosts::new(HostLimits::default());
    let id = down(&mut hosts, NOW, 1, fid(2));
    hosts.handle_call(NOW, address(8), EPOCH);
    assert_eq!(show(hosts.handle_identity(NOW, address(8), EPOCH, identity(1))), "first break 1");
    assert_eq!(hosts.poll_moved().len(), 1);
    assert_eq!(hosts.poll_dropped(), [id], "it did not answer before");
    hosts.handle_call(NOW, address(9), Epoch(70));
    assert_eq!(show(hosts.handle_identity(NOW, address(9), Epoch(70), identity(1))), "first reset");
    assert!(hosts.poll_moved().is_empty());
    // Home again: the client that was away is told there what it missed.
    assert_eq!(show(hosts.handle_call(NOW + 15 * SECOND, address(1), EPOCH)), "first reset");
}

#[test]
fn a_client_that_was_started_anew_is_told_to_forget() {
    let mut hosts = Hosts::new(HostLimits::default());
    let id = up(&mut hosts, NOW, 1);
    for (epoch, expected) in [(8, "ask"), (8, "ready"), (7, "ready"), (8, "ready")] {
        let admission = hosts.handle_call(NOW, address(1), Epoch(epoch));
        assert_eq!(show(admission.clone()), expected, "{epoch}");
        if admission == Admission::Ask {
            let Admission::Deliver(reset) = hosts.handle_identity(NOW, address(1), Epoch(8), identity(1))
            else {
                panic!("a reset is due");
            };
            assert_eq!((reset.host, &reset.message), (id, &Message::Reset));
            hosts.handle_delivery(NOW, &reset, Outcome::Delivered);
        }
    }
}

#[test]
fn another_client_at_an_address_is_another_host() {
    let mut hosts = Hosts::new(HostLimits::default());
    let old = up(&mut hosts, NOW, 1);
    assert_eq!(hosts.handle_call(NOW, address(1), Epoch(8)), Admission::Ask);
    let Admission::Deliver(delivery) = hosts.handle_identity(NOW, address(1), Epoch(8), identity(2)) else {
        panic!("a reset is due");
    };
    assert_ne!(delivery.host, old);
    assert_eq!(hosts.poll_forgotten(), [old], "it has no other address");
    assert_eq!(hosts.len(), 1);
}

#[test]
fn a_client_without_uuid_is_known_by_its_address() {
    let mut hosts = Hosts::new(HostLimits::default());
    hosts.handle_call(NOW, address(1), EPOCH);
    let plain = Some(Identity { uuid: None, capabilities: 0 });
    let Admission::Deliver(delivery) = hosts.handle_identity(NOW, address(1), EPOCH, plain) else {
        panic!("a reset is due");
    };
    hosts.handle_delivery(NOW, &delivery, Outcome::Delivered);
    hosts.handle_call(NOW, address(1), Epoch(8));
    let again = hosts.handle_identity(NOW, address(1), Epoch(8), plain);
    assert!(matches!(again, Admission::Deliver(again) if again == delivery), "started anew");
}

#[test]
fn a_client_that_cannot_be_called_is_served_without_promises_and_without_waiting_each_time() {
    let mut hosts = Hosts::new(HostLimits::default());
    assert_eq!(hosts.handle_call(NOW, address(1), EPOCH), Admission::Ask);
    assert_eq!(show(hosts.handle_identity(NOW, address(1), EPOCH, None)), "ready without promises");
    for second in 0..15 {
        let admission = hosts.handle_call(NOW + second * SECOND, address(1), EPOCH);
        assert_eq!(show(admission), "ready without promises");
    }
    assert_eq!(hosts.handle_call(NOW + 15 * SECOND, address(1), EPOCH), Admission::Ask);
    assert_eq!(show(hosts.handle_identity(NOW, address(1), EPOCH, identity(1))), "first reset");
    assert_eq!(hosts.len(), 1, "who had no name is replaced");
}

/// A client that ended had a call more at the server, which was answered by a closed port; the next one on that machine began at once, and
/// had no promises for 15 s: over 100 ms it read at 256 KiB a round trip.
#[test]
fn a_client_that_begins_where_another_has_just_ended_is_asked_at_once() {
    let mut hosts = Hosts::new(HostLimits::default());
    let old = up(&mut hosts, NOW, 1);
    hosts.handle_farewell(old);
    assert_eq!(hosts.handle_call(NOW, address(1), EPOCH), Admission::Ask);
    assert_eq!(show(hosts.handle_identity(NOW, address(1), EPOCH, None)), "ready without promises");
    assert_eq!(hosts.handle_call(NOW, address(1), Epoch(8)), Admission::Ask);
    assert_eq!(show(hosts.handle_identity(NOW, address(1), Epoch(8), identity(2))), "first reset");
    assert_eq!(hosts.len(), 1, "who ended is gone");
}

#[test]
fn a_silent_address_is_not_asked_for_ever_new_epochs() {
    let mut hosts = Hosts::new(HostLimits::default());
    let asked = (0..100).filter(|n| {
        let epoch = Epoch(*n);
        let is_asked = hosts.handle_call(NOW, address(1), epoch) == Admission::Ask;
        if is_asked {
            hosts.handle_identity(NOW, address(1), epoch, None);
        }
        assert_ne!(hosts.handle_call(NOW, address(1), epoch), Admission::Ask, "a second time");
        is_asked
    });
    assert_eq!(asked.count(), ASKED_MAX);
}

#[test]
fn breaks_for_a_host_that_is_down_are_remembered_and_delivered() {
    let mut hosts = Hosts::new(HostLimits::default());
    let id = down(&mut hosts, NOW, 1, fid(2));
    assert!(hosts.breaks(&[id], fid(4)).is_empty(), "nobody waits for it a second time");
    assert_eq!(show(hosts.handle_call(NOW, address(1), EPOCH)), "ready without promises");
    let later = NOW + SECOND;
    let Admission::Deliver(delivery) = hosts.handle_call(later, address(1), EPOCH) else {
        panic!("breaks are due");
    };
    assert_eq!(delivery.message, Message::Break(vec![fid(2), fid(4)]));
    assert!(hosts.handle_delivery(later, &delivery, Outcome::Delivered).unwrap().gets_promises);
    assert_eq!(show(hosts.handle_call(later, address(1), EPOCH)), "ready");
}

/// It was told when it called the next time, or after a quarter of an hour, and showed old data until then.
#[test]
fn what_changes_while_a_client_is_told_of_another_change_is_told_at_once() {
    let mut hosts = Hosts::new(HostLimits::default());
    let id = down(&mut hosts, NOW, 1, fid(2));
    let later = NOW + SECOND;
    let told = hosts.poll_deliveries(later);
    assert!(hosts.breaks(&[id], fid(4)).is_empty(), "nobody waits for a client that does not answer");
    hosts.handle_delivery(later, &told[0], Outcome::Delivered);
    assert_eq!(hosts.poll_timeout(), Some(later));
    assert_eq!(hosts.poll_deliveries(later)[0].message, Message::Break(vec![fid(4)]));
}

/// Such a client was told to forget everything a second time, and its server forgot a promise that it had given between the two.
#[test]
fn the_answer_to_a_probe_sends_nothing_beside_a_reset_under_way() {
    let mut hosts = Hosts::new(HostLimits::default());
    let id = up(&mut hosts, NOW, 1);
    let later = NOW + 16 * 60 * SECOND;
    let probe = hosts.poll_deliveries(later);
    assert_eq!(probe[0].message, Message::Probe);
    hosts.set_reset_pending(later, id);
    let reset = hosts.poll_deliveries(later);
    assert_eq!(reset[0].message, Message::Reset);
    hosts.handle_delivery(later, &probe[0], Outcome::Delivered);
    assert!(hosts.poll_deliveries(later).is_empty());
    hosts.handle_delivery(later, &reset[0], Outcome::Delivered);
    assert_eq!(show(hosts.handle_call(later, address(1), EPOCH)), "ready");
}

#[test]
fn too_many_remembered_breaks_become_a_reset() {
    let limits = HostLimits { delayed_breaks: 3, ..HostLimits::default() };
    let mut hosts = Hosts::new(limits);
    let id = down(&mut hosts, NOW, 1, fid(2));
    for vnode in [4, 6, 8, 10] {
        hosts.breaks(&[id], fid(vnode));
    }
    let later = NOW + 15 * SECOND;
    assert_eq!(show(hosts.handle_call(later, address(1), EPOCH)), "first reset");
}

#[test]
fn a_host_that_stays_away_is_tried_ever_more_seldom_and_at_last_forgotten() {
    let mut hosts = Hosts::new(HostLimits::default());
    let id = down(&mut hosts, NOW, 1, fid(2));
    let (mut now, mut tries) = (NOW, Vec::new());
    while let Some(at) = hosts.poll_timeout() {
        now = at;
        for delivery in hosts.poll_deliveries(now) {
            tries.push(now.since(NOW).as_secs());
            hosts.handle_delivery(now, &delivery, Outcome::NoAnswer);
        }
    }
    assert_eq!(tries[..12], [1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1623, 2223]);
    assert!(tries.len() < 50, "{} tries", tries.len());
    assert_eq!(hosts.poll_forgotten(), [id]);
    assert!(now.since(NOW) < FORGET_AFTER + 2 * RETRY_AFTER.1);
}

#[test]
fn a_silent_host_is_probed_and_one_that_calls_is_not() {
    let mut hosts = Hosts::new(HostLimits::default());
    up(&mut hosts, NOW, 1);
    let loud = up(&mut hosts, NOW, 2);
    for minute in 0..20 {
        hosts.handle_call(NOW + minute * 60 * SECOND, address(2), EPOCH);
    }
    let now = NOW + 20 * 60 * SECOND;
    let probes = hosts.poll_deliveries(now);
    assert_eq!(probes.iter().map(message).collect::<Vec<_>>(), ["probe"]);
    assert_ne!(probes[0].host, loud);
    hosts.handle_delivery(now, &probes[0], Outcome::SomebodyElse);
    assert_eq!(hosts.poll_forgotten(), [probes[0].host]);
}

#[test]
fn a_restored_host_is_told_for_the_volumes_it_had() {
    let mut hosts = Hosts::new(HostLimits::default());
    hosts.restore(NOW, Some(uuid(1)), address(1), vec![VolumeId(7)]).unwrap();
    let held = hosts.held_before(VolumeId(7));
    assert_eq!(held.len(), 1);
    assert!(hosts.held_before(VolumeId(8)).is_empty());
    let breaks = hosts.breaks(&held, fid(2));
    assert_eq!(breaks[0].message, Message::Reset);
    hosts.handle_break(NOW, &breaks[0], Outcome::Delivered);
    assert!(hosts.held_before(VolumeId(7)).is_empty());
    assert!(hosts.poll_deliveries(NOW).is_empty());
}

#[test]
fn a_full_table_forgets_whom_it_has_not_heard_of_for_longest() {
    let mut hosts = Hosts::new(HostLimits { hosts: 32, ..HostLimits::default() });
    let ids: Vec<HostId> = (0..30).map(|n| up(&mut hosts, NOW + u32::from(n) * SECOND, n)).collect();
    hosts.handle_call(NOW + 40 * SECOND, address(0), EPOCH);
    up(&mut hosts, NOW + 41 * SECOND, 32);
    assert_eq!(hosts.poll_forgotten(), ids[1..3]);
    assert_eq!(hosts.len(), 29);
}

/// A machine that calls from ever new ports, takes promises and answers nothing more: it loses its own. Those who are quiet keep what
/// they have, and where the table is full of such that count alike, those with promises are told before they are forgotten.
#[test]
fn one_machine_with_thousands_of_clients_pushes_out_its_own() {
    let limits = HostLimits { hosts: 64, same_machine: 4, ..HostLimits::default() };
    for takes_promises in [false, true] {
        let mut hosts = Hosts::new(limits);
        let quiet: Vec<HostId> = (0..40).map(|n| up(&mut hosts, NOW, n)).collect();
        for host in &quiet[..20] {
            assert!(hosts.note_promise(*host));
        }
        let machine = |n: u16| SocketAddr::from(([10, 9, 9, (n % 2) as u8], 10_000 + n));
        for n in 0..2000 {
            let now = NOW + SECOND + Duration::from_millis(n.into());
            assert_eq!(hosts.handle_call(now, machine(n), EPOCH), Admission::Ask);
            let Admission::Deliver(reset) =
                hosts.handle_identity(now, machine(n), EPOCH, identity(1000 + u32::from(n)))
            else {
                panic!("a reset is due");
            };
            let id = hosts.handle_delivery(now, &reset, Outcome::Delivered).unwrap().host;
            if takes_promises {
                hosts.note_promise(id);
            }
            for delivery in hosts.poll_deliveries(now) {
                assert!(!quiet.contains(&delivery.host));
                hosts.handle_delivery(now, &delivery, Outcome::NoAnswer);
            }
            assert!(hosts.len() <= 64);
        }
        let left = quiet.iter().filter(|host| hosts.whereabouts(**host).is_some());
        assert_eq!(left.count(), 40, "takes promises: {takes_promises}");
    }
}

#[test]
fn who_holds_promises_is_told_before_it_is_forgotten_and_stays_if_it_calls() {
    let mut hosts = Hosts::new(HostLimits { hosts: 32, ..HostLimits::default() });
    let ids: Vec<HostId> = (0..30).map(|n| up(&mut hosts, NOW + u32::from(n) * SECOND, n)).collect();
    for id in &ids {
        hosts.note_promise(*id);
    }
    let now = NOW + 40 * SECOND;
    up(&mut hosts, now, 40);
    assert_eq!(hosts.poll_dropped(), ids[..2]);
    assert!(hosts.poll_forgotten().is_empty(), "not before they are told");
    let told = hosts.poll_deliveries(now);
    assert_eq!(
        told.iter().map(|d| (d.host, message(d))).collect::<Vec<_>>(),
        [(ids[0], "reset".to_owned()), (ids[1], "reset".to_owned())]
    );
    assert_eq!(show(hosts.handle_call(now, address(1), EPOCH)), "wait");
    for delivery in &told {
        hosts.handle_delivery(now, delivery, Outcome::Delivered);
    }
    assert_eq!(hosts.poll_forgotten(), [ids[0]]);
    assert_eq!(show(hosts.handle_call(now, address(1), EPOCH)), "ready");
}

#[test]
fn what_nobody_reports_on_is_given_out_again() {
    let mut hosts = Hosts::new(HostLimits::default());
    assert_eq!(hosts.handle_call(NOW, address(1), EPOCH), Admission::Ask);
    hosts.abandon(address(1));
    assert_eq!(hosts.handle_call(NOW, address(1), EPOCH), Admission::Ask);
    let first = hosts.handle_identity(NOW, address(1), EPOCH, identity(1));
    assert_eq!(show(first), "first reset");
    hosts.abandon(address(1));
    assert_eq!(show(hosts.handle_call(NOW, address(1), EPOCH)), "first reset");
}

/// Random events never break the table's own bookkeeping.
#[test]
fn random_histories_leave_the_tables_consistent() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut hosts = Hosts::new(HostLimits { hosts: 12, same_machine: 1, delayed_breaks: 3 });
    let (mut now, mut open) = (NOW, Vec::new());
    for _ in 0..50_000 {
        now += Duration::from_millis(next(4000));
        let (at, epoch) = (address(next(20) as u8), Epoch(next(2) as u32));
        let outcome = [Outcome::Delivered, Outcome::NoAnswer, Outcome::SomebodyElse][next(3) as usize];
        match next(8) {
            0..=2 => {
                let mut admission = hosts.handle_call(now, at, epoch);
                if admission == Admission::Ask {
                    let who = (next(4) > 0).then(|| identity(next(15) as u32).unwrap());
                    admission = hosts.handle_identity(now, at, epoch, who);
                }
                if let Admission::Deliver(delivery) = admission {
                    open.push(delivery);
                }
            }
            3 => open.extend(hosts.poll_deliveries(now)),
            4 => {
                for delivery in hosts.breaks(&[HostId(next(hosts.next + 1))], fid(next(9) as u32)) {
                    hosts.handle_break(now, &delivery, outcome);
                }
            }
            5 if next(10) == 0 => hosts.handle_farewell(HostId(next(hosts.next))),
            6 if next(10) == 0 => hosts.set_reset_pending(now, HostId(next(hosts.next))),
            _ if !open.is_empty() => {
                let delivery = open.swap_remove(next(open.len() as u64) as usize);
                hosts.handle_delivery(now, &delivery, outcome);
            }
            _ => {}
        }
        assert!(hosts.len() <= 12 && hosts.agenda.len() == hosts.len());
        assert!(hosts.asking.is_empty());
        for (id, host) in &hosts.hosts {
            assert!(host.epochs.len() <= EPOCHS_MAX);
            assert_eq!(hosts.by_address[&host.address], *id);
            assert!(host.delayed.len() <= 3);
            assert!(hosts.agenda.contains(&(host.due, *id)));
        }
        for (address, id) in &hosts.by_address {
            assert_eq!(hosts.hosts[id].address, *address);
        }
        assert_eq!(hosts.by_uuid.len(), hosts.hosts.values().filter(|host| host.uuid.is_some()).count());
        hosts.poll_moved();
        hosts.poll_dropped();
    }
}
