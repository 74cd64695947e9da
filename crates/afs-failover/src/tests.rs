//! Tests of what is done about each error code, and which server is asked next.

use std::time::Duration;

use afs_wire::abort::TABLES;
use afs_wire::errno::Errno;
use rx::CallError;
use rx_proto::abort::AbortCode;
use rx_proto::time::Instant;
use rxgen::Abort;

use crate::rotation::{ANEW_MAX, LOOK_WHILE_OFFLINE, OFFLINE_TIMEOUT, WAIT_MAX};
use crate::verdict::VOLUME_CODES;
use crate::{Candidate, Rotation, Step, Verdict, of_call, of_code};

const TIMEOUT: Duration = Duration::from_secs(600);

fn at(millis: u64) -> Instant {
    Instant::ORIGIN + Duration::from_secs(1000) + Duration::from_millis(millis)
}

fn up(server: u32) -> Candidate {
    Candidate { server, down_since: None, has_answered: true }
}

fn down(server: u32, since: Instant) -> Candidate {
    Candidate { down_since: Some(since), ..up(server) }
}

/// Each code that anybody has named, and what is done about it: a new code, or one that moves, shows here.
#[test]
fn every_code_has_its_verdict() {
    use Verdict::*;
    let expected = |table: &str, name: &str| match (table, name) {
        ("V", "VBUSY" | "VRESTARTING" | "VSALVAGING") => Wait,
        ("V", "VOFFLINE") => Offline,
        ("V", "VMOVED" | "VNOVOL") => LookAgain,
        ("V", "VSALVAGE" | "VNOSERVICE" | "VIO") => OtherSite,
        ("V", "VNOVNODE" | "VVOLEXISTS" | "VONLINE" | "VDISKFULL" | "VOVERQUOTA" | "VRESTRICTED") => Fail,
        ("VL", "VL_IO" | "VL_DBBAD" | "VL_NOMEM" | "VL_EMPTY") => OtherSite,
        ("U", "UNOQUORUM" | "USYNC" | "UREINITIALIZE") => Wait,
        ("U", "UNOTSYNC" | "UNOSERVERS" | "UIOERROR" | "UINTERNAL" | "USKEWED") => OtherSite,
        (
            "RXK",
            "RXKADNOAUTH" | "RXKADBADTICKET" | "RXKADUNKNOWNKEY" | "RXKADEXPIRED" | "RXKADBADKEY"
            | "RXKADTICKETLEN",
        )
        | ("RXGK", "RXGK_EXPIRED" | "RXGK_NOTAUTH" | "RXGK_BAD_TOKEN" | "RXGK_BADKEYNO") => Login,
        ("RXK", "RXKADLEVELFAIL") => Fail,
        ("RXK" | "RXGK", _) => Anew,
        ("VL" | "U" | "PT" | "VOLS" | "BZ" | "AJ", _) => Fail,
        other => panic!("{other:?} is new: decide what is to be done"),
    };
    for table in TABLES {
        for code in table.codes {
            assert_eq!(of_code(code.abort), expected(table.name, code.name), "{}", code.name);
        }
    }
}

#[test]
fn errno_numbers_are_answers_but_for_a_servers_own_troubles() {
    for number in 1..130 {
        let errno = Errno(number);
        let is_trouble = matches!(errno, Errno::EIO | Errno::ENOMEM | Errno::ENFILE | Errno::EMFILE);
        let expected = if is_trouble { Verdict::OtherSite } else { Verdict::Fail };
        if let Some(uae) = errno.uae() {
            assert_eq!(of_code(uae), expected, "UA{errno:?}");
        }
        // As they are, some equal the codes of volumes, which come first.
        if errno.name().is_some() && !VOLUME_CODES.iter().any(|(code, _)| code.0 == number) {
            assert_eq!(of_code(Abort(number)), expected, "{errno:?}");
        }
    }
    assert_eq!(of_code(Abort(110)), Verdict::Wait, "VBUSY, and not ETIMEDOUT");
}

#[test]
fn rx_codes_and_what_nobody_has_named() {
    for (code, verdict) in [
        (-1, Verdict::Down),
        (-2, Verdict::Offline),
        (-3, Verdict::Anew),
        (-100, Verdict::Wait),
        (-455, Verdict::Fail),
        (-453, Verdict::Fail),
        (-7777, Verdict::Fail),
        (1 << 20, Verdict::Fail),
        (i32::MIN, Verdict::Fail),
    ] {
        assert_eq!(of_code(Abort(code)), verdict, "{code}");
    }
    let failed = |code| {
        let peer = std::net::SocketAddr::from(([192, 0, 2, 1], 7000));
        CallError::Failed { peer, service: rx_proto::ids::ServiceId(1), code }
    };
    assert_eq!(of_call(&failed(AbortCode::CALL_DEAD)), Verdict::Down);
    assert_eq!(of_call(&failed(AbortCode::PROTOCOL_ERROR)), Verdict::Anew);
    assert_eq!(of_call(&CallError::EndpointClosed), Verdict::Fail);
}

#[test]
fn sites_are_tried_in_order_and_one_that_is_down_is_passed_over() {
    let mut rotation = Rotation::new(at(0), TIMEOUT);
    let sites = [up(1), down(2, at(0)), up(3)];
    assert_eq!(rotation.step(at(0), &sites), Step::Try(1));
    rotation.note(at(0), 1, Verdict::OtherSite);
    assert_eq!(rotation.step(at(0), &sites), Step::Try(3));
}

#[test]
fn a_busy_volume_is_asked_again_ever_less_often_until_patience_ends() {
    let mut rotation = Rotation::new(at(0), TIMEOUT);
    let mut now = at(0);
    let mut pauses = Vec::new();
    loop {
        match rotation.step(now, &[up(1)]) {
            Step::Try(1) => rotation.note(now, 1, Verdict::Wait),
            Step::Wait(until) => {
                pauses.push(until.since(now));
                now = until;
            }
            Step::GiveUp => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(pauses[..3], [250, 500, 1000].map(Duration::from_millis));
    assert_eq!(pauses.last(), Some(&WAIT_MAX));
    let waited = now.since(at(0));
    assert!(waited >= TIMEOUT && waited < TIMEOUT + 2 * WAIT_MAX, "{waited:?}");
}

#[test]
fn a_busy_replica_is_left_for_another_at_once() {
    let mut rotation = Rotation::new(at(0), TIMEOUT);
    let sites = [up(1), up(2)];
    rotation.note(at(0), 1, Verdict::Wait);
    assert_eq!(rotation.step(at(0), &sites), Step::Try(2));
    rotation.note(at(0), 2, Verdict::Wait);
    assert!(matches!(rotation.step(at(0), &sites), Step::Wait(_)), "only when all are");
}

#[test]
fn an_offline_volume_is_waited_for_only_shortly() {
    let mut rotation = Rotation::new(at(0), TIMEOUT);
    let mut now = at(0);
    let steps = std::iter::from_fn(|| match rotation.step(now, &[up(1)]) {
        Step::Try(1) => {
            rotation.note(now, 1, Verdict::Offline);
            Some(())
        }
        Step::Wait(until) => {
            now = until;
            Some(())
        }
        Step::GiveUp => None,
        other => panic!("{other:?}"),
    });
    assert!(steps.count() > 4);
    assert!(now.since(at(0)) < OFFLINE_TIMEOUT + WAIT_MAX);
}

/// In the last part of a move OpenAFS's server says of the volume that it is offline, for as long as what has changed of it takes to
/// the other server. The VLDB tells that somebody works on it.
#[test]
fn a_volume_that_is_offline_for_as_long_as_it_is_moved_is_waited_for() {
    let away = Duration::from_secs(60);
    for (is_worked_on, expected) in [(true, TIMEOUT), (false, OFFLINE_TIMEOUT)] {
        let mut rotation = Rotation::of_volume(at(0), TIMEOUT, away);
        let (mut now, mut looks) = (at(0), 0);
        loop {
            match rotation.step(now, &[up(1)]) {
                Step::Try(1) => rotation.note(now, 1, Verdict::Offline),
                Step::Wait(until) => now = until,
                Step::LookAgain(until) => {
                    now = until;
                    looks += 1;
                    rotation.note_looked(is_worked_on);
                }
                Step::GiveUp => break,
                other => panic!("{other:?}"),
            }
        }
        let waited = now.since(at(0));
        assert!(waited >= expected && waited < expected + 2 * WAIT_MAX, "{is_worked_on}: {waited:?}");
        assert!(looks >= 2 && looks <= waited.as_secs() / LOOK_WHILE_OFFLINE.as_secs(), "{looks}");
    }
}

#[test]
fn a_volume_that_no_server_has_is_looked_for_as_long_as_it_is_moved() {
    let mut rotation = Rotation::of_volume(at(0), TIMEOUT, TIMEOUT);
    let mut now = at(0);
    loop {
        rotation.note(now, 1, Verdict::LookAgain);
        match rotation.step(now, &[up(1)]) {
            Step::LookAgain(until) => now = until,
            Step::GiveUp => break,
            other => panic!("{other:?}"),
        }
        // The move takes a minute.
        rotation.note_looked(now.since(at(0)) < Duration::from_secs(60));
    }
    assert!(now.since(at(0)) >= Duration::from_secs(60), "{:?}", now.since(at(0)));
    assert!(now.since(at(0)) < Duration::from_secs(60) + 2 * WAIT_MAX);
}

#[test]
fn servers_that_are_away_are_waited_for_only_as_long_as_the_caller_says() {
    let mut rotation = Rotation::of_volume(at(0), TIMEOUT, Duration::from_secs(30));
    rotation.note(at(12_000), 1, Verdict::Down);
    let gone = [down(1, at(12_000))];
    assert_eq!(rotation.step(at(12_000), &gone), Step::Wait(at(30_000)));
    assert_eq!(rotation.step(at(30_000), &gone), Step::GiveUp);
    let mut later = Rotation::of_volume(at(42_000), TIMEOUT, Duration::from_secs(30));
    assert_eq!(later.step(at(42_000), &gone), Step::GiveUp, "they are known to be away for as long");
    let mut rotation = Rotation::of_volume(at(0), TIMEOUT, Duration::from_secs(30));
    rotation.note(at(31_000), 1, Verdict::Wait);
    assert!(
        matches!(rotation.step(at(31_000), &[up(1)]), Step::Wait(_)),
        "a busy one says that it will do it"
    );
}

#[test]
fn a_volume_that_has_moved_is_looked_up_at_once_and_then_with_pauses() {
    let mut rotation = Rotation::new(at(0), TIMEOUT);
    rotation.note(at(0), 1, Verdict::LookAgain);
    assert_eq!(rotation.step(at(0), &[up(1)]), Step::LookAgain(at(0)));
    rotation.note_looked(false);
    assert_eq!(rotation.step(at(0), &[up(2)]), Step::Try(2), "the VLDB says another");
    rotation.note(at(0), 2, Verdict::LookAgain);
    assert_eq!(rotation.step(at(0), &[up(2)]), Step::LookAgain(at(250)), "it is on its way: a while later");
    for _ in 0..2 {
        rotation.note_looked(false);
        rotation.note(at(0), 2, Verdict::LookAgain);
        assert!(matches!(rotation.step(at(0), &[up(2)]), Step::LookAgain(_)));
    }
    rotation.note_looked(false);
    rotation.note(at(0), 2, Verdict::LookAgain);
    assert_eq!(rotation.step(at(0), &[up(2)]), Step::GiveUp, "the VLDB is wrong");
}

#[test]
fn a_server_that_has_never_answered_is_not_waited_for() {
    let mut rotation = Rotation::new(at(0), TIMEOUT);
    let fresh = Candidate { server: 1, down_since: None, has_answered: false };
    assert_eq!(rotation.step(at(0), &[fresh]), Step::Try(1));
    rotation.note(at(12_000), 1, Verdict::Down);
    let dead = Candidate { down_since: Some(at(12_000)), ..fresh };
    assert_eq!(rotation.step(at(12_000), &[dead]), Step::GiveUp);
    let mut next = Rotation::new(at(13_000), TIMEOUT);
    assert_eq!(next.step(at(13_000), &[dead]), Step::GiveUp, "nor tried again at once by the next");
    let mut later = Rotation::new(at(120_000), TIMEOUT);
    assert_eq!(later.step(at(120_000), &[dead]), Step::Try(1), "but after a while");
}

#[test]
fn a_server_that_was_there_is_waited_for_and_asked_when_it_is_back() {
    let mut rotation = Rotation::new(at(0), TIMEOUT);
    rotation.note(at(0), 1, Verdict::Down);
    assert!(rotation.is_ambiguous(), "it may have done what it was asked for");
    let gone = [down(1, at(0))];
    assert!(matches!(rotation.step(at(0), &gone), Step::Wait(_)));
    assert!(matches!(rotation.step(at(5_000), &gone), Step::Wait(_)));
    assert_eq!(rotation.step(at(6_000), &[up(1)]), Step::Try(1));
    let mut impatient = Rotation::new(at(0), Duration::from_secs(1));
    impatient.note(at(0), 1, Verdict::Down);
    assert!(matches!(impatient.step(at(0), &gone), Step::Wait(until) if until == at(1000)));
    assert_eq!(impatient.step(at(1000), &gone), Step::GiveUp);
}

#[test]
fn a_broken_connection_is_replaced_a_few_times() {
    let mut rotation = Rotation::new(at(0), TIMEOUT);
    for _ in 0..ANEW_MAX {
        rotation.note(at(0), 1, Verdict::Anew);
        assert_eq!(rotation.step(at(0), &[up(1)]), Step::Try(1));
    }
    rotation.note(at(0), 1, Verdict::Anew);
    assert_eq!(rotation.step(at(0), &[up(1)]), Step::GiveUp);
}

#[test]
fn a_ticket_is_replaced_once() {
    let mut rotation = Rotation::new(at(0), TIMEOUT);
    rotation.note(at(0), 1, Verdict::Login);
    assert_eq!(rotation.step(at(0), &[up(1)]), Step::Try(1));
    rotation.note(at(0), 1, Verdict::Login);
    assert_eq!(rotation.step(at(0), &[up(1)]), Step::GiveUp);
    assert!(!rotation.is_ambiguous(), "nothing was done");
}

#[test]
fn an_answer_ends_it_whatever_others_might_say() {
    let mut rotation = Rotation::new(at(0), TIMEOUT);
    rotation.note(at(0), 1, Verdict::Wait);
    rotation.note(at(0), 2, Verdict::Fail);
    assert_eq!(rotation.step(at(0), &[up(1), up(2), up(3)]), Step::GiveUp);
}

/// Every mixture of answers, in whatever order, ends the operation within its patience and some waits.
#[test]
fn every_mixture_of_answers_comes_to_an_end() {
    let verdicts = [
        Verdict::Wait,
        Verdict::Offline,
        Verdict::LookAgain,
        Verdict::OtherSite,
        Verdict::Down,
        Verdict::Login,
        Verdict::Anew,
    ];
    for seed in 0u64..2000 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut now = at(0);
        let patience = Duration::from_secs(60);
        let mut rotation = match seed % 3 {
            0 => Rotation::new(now, patience),
            _ => Rotation::of_volume(now, patience, patience / 2),
        };
        let mut down_since = [None; 3];
        for step in 0.. {
            assert!(step < 5000, "seed {seed}");
            let candidates: Vec<_> = (0..3)
                .map(|i| Candidate {
                    server: i,
                    down_since: down_since[i as usize],
                    has_answered: seed % 2 == 0,
                })
                .collect();
            match rotation.step(now, &candidates) {
                Step::Try(server) => {
                    now += Duration::from_millis(draw(2000));
                    let verdict = verdicts[draw(7) as usize];
                    if verdict == Verdict::Down {
                        down_since[server as usize] = Some(now);
                    }
                    rotation.note(now, server, verdict);
                }
                Step::LookAgain(until) => {
                    now = now.max(until);
                    rotation.note_looked(draw(2) == 0);
                }
                Step::Wait(until) => {
                    now = now.max(until);
                    if draw(2) == 0 {
                        down_since[draw(3) as usize] = None;
                    }
                }
                Step::GiveUp => break,
            }
        }
        assert!(now.since(at(0)) < Duration::from_secs(400), "seed {seed}");
    }
}
