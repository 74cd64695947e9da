//! Tests of who is who to a cell, and of what becomes of a token that ends.

use super::ends::LOOK_EVERY;
use super::*;
use rx_security::keys::{EncType, Key};
use rx_security::rxgk::RxgkTime;

const CELL: (CellIndex, &str) = (CellIndex(1), "one.test");

fn keys() -> Arc<KeySet> {
    Arc::new(KeySet::of([Key::rxkad_krb5(1, EncType(18), &[7; 32])]).unwrap())
}

fn users() -> Users {
    Users::new(Arc::new(rx::TokioRuntime::current()), Level::Crypt)
}

fn token_of(users: &Users, name: &str) -> Token {
    Token::clone(users.make_tokens(&keys(), name, CELL.1).unwrap().own.rxkad.as_ref().unwrap())
}

fn holder(name: &str) -> Holder {
    Holder { name: name.to_owned(), id: None }
}

#[tokio::test]
async fn users_without_a_token_are_the_same_nobody() {
    let users = users();
    users.log_in_by_key(User::of(1), CELL, &keys(), "alice").unwrap();
    assert_eq!(users.who(User::of(2), CELL.0), IdentityIndex::NOBODY);
    assert_eq!(users.who(User::of(1), CellIndex(2)), IdentityIndex::NOBODY, "a token is for one cell");
    assert_ne!(users.who(User::of(1), CELL.0), IdentityIndex::NOBODY);
}

/// With a PAM module that makes a PAG for each login, root was nobody in a mount with `--localauth`, and the users of `afar up` in their own
/// volumes.
#[tokio::test]
async fn in_a_session_without_a_token_the_ticket_from_the_cells_key_stays_good() {
    let users = users();
    let outside = User::of(1);
    let inside = User { uid: 1, pag: Some(crate::fid::Pag::chosen_by(7)) };
    users.log_in_by_key(outside, CELL, &keys(), "alice").unwrap();
    let by_key = users.who(outside, CELL.0);
    assert_eq!(users.who(inside, CELL.0), by_key);
    assert_eq!(users.tokens(inside), users.tokens(outside));
    assert_eq!(users.noted_name(inside, CELL.0), users.noted_name(outside, CELL.0));
    // A token of the session's comes before it, and is of no other session.
    let token = token_of(&users, "bob");
    users.log_in(inside, CELL, holder("bob"), token.clone(), false);
    assert_ne!(users.who(inside, CELL.0), by_key);
    assert_eq!(users.tokens(inside)[0].holder, holder("bob"));
    assert_eq!(users.who(outside, CELL.0), by_key);
    assert_eq!(users.log_out(inside, None).0, 1);
    assert_eq!(users.who(inside, CELL.0), by_key);
    assert_eq!(users.log_out(inside, None).0, 0, "it is none of the session's");
    // A token that somebody gave outside of the session is not the session's.
    let given = User { uid: 2, pag: None };
    users.log_in(given, CELL, holder("carol"), token, false);
    assert_eq!(users.who(User { pag: inside.pag, ..given }, CELL.0), IdentityIndex::NOBODY);
}

#[tokio::test]
async fn two_users_of_one_name_are_one_until_both_have_left() {
    let users = users();
    users.log_in_by_key(User::of(1), CELL, &keys(), "admin").unwrap();
    users.log_in_by_key(User::of(2), CELL, &keys(), "admin").unwrap();
    let who = users.who(User::of(1), CELL.0);
    assert_eq!(users.who(User::of(2), CELL.0), who);
    assert_eq!(users.log_out(User::of(1), None), (1, vec![]));
    assert_eq!(users.who(User::of(1), CELL.0), IdentityIndex::NOBODY);
    assert_eq!(users.who(User::of(2), CELL.0), who);
    assert_eq!(users.tokens(User::of(2))[0].holder, holder("admin"));
    assert!(users.tokens(User::of(1)).is_empty());
    assert_eq!(users.log_out(User::of(2), Some(CELL)), (1, vec![who]));
    assert_eq!(users.log_out(User::of(2), Some(CELL)), (0, vec![]));
}

/// The end of any session of a user's gave up what the others had written and could not store yet.
#[tokio::test]
async fn what_one_session_has_written_waits_after_another_has_thrown_its_token_away() {
    let users = users();
    let session = |number| User { uid: 1, pag: Some(crate::fid::Pag::chosen_by(number)) };
    let log_in = |user, name| {
        let token = token_of(&users, name);
        users.log_in(user, CELL, holder(name), token, false);
    };
    let waits = |name: &str| users.waits_for_login((1, Some(&name.into())), CELL.0);
    for (user, name) in [(User::of(1), "alice"), (session(1), "alice"), (session(2), "bob")] {
        log_in(user, name);
    }
    users.log_out(session(2), None);
    assert_eq!([waits("alice"), waits("bob")], [true, false]);
    users.log_out(session(1), None);
    assert!(waits("alice"), "another session is alice still");
    users.log_out(User::of(1), Some(CELL));
    assert!(!waits("alice"));
    log_in(session(3), "bob");
    assert_eq!([waits("alice"), waits("bob")], [false, true]);
    users.end(session(3));
    assert!(waits("bob"), "a session that has ended has thrown nothing away");
    assert!(users.waits_for_login((2, Some(&"bob".into())), CELL.0), "nor has another user");
}

#[tokio::test]
async fn a_given_token_that_is_refused_makes_its_owner_nobody_until_the_next() {
    let users = Arc::new(users());
    let token = token_of(&users, "alice");
    assert_eq!(users.log_in(User::of(1), CELL, holder("alice"), token.clone(), false), LoggedIn::Anew(None));
    let who = users.who(User::of(1), CELL.0);
    let index =
        |purpose| users.shown(who, purpose).map(|shown| users.security(shown.as_ref(), [1; 32])().index().0);
    let both = || [Purpose::Read, Purpose::Change].map(index);
    assert_eq!(both(), [Ok(2), Ok(2)]);
    let shown = users.shown(who, Purpose::Change).unwrap();
    assert!(users.refused(who, shown.as_ref()));
    assert_eq!(both(), [Ok(0), Err(NotShown::Ended)], "what nobody may do is not done in the user's place");
    assert!(!users.refused(IdentityIndex::NOBODY, None));
    assert_eq!(users.log_in(User::of(1), CELL, holder("alice"), token, false), LoggedIn::Renewed(who));
    assert_eq!(both(), [Ok(2), Ok(2)]);
    assert!(users.shown(IdentityIndex::NOBODY, Purpose::Change).unwrap().is_none());
}

#[tokio::test]
async fn a_late_refusal_of_the_last_token_leaves_the_new_one_good() {
    let users = users();
    let token = || token_of(&users, "alice");
    users.log_in(User::of(1), CELL, holder("alice"), token(), false);
    let who = users.who(User::of(1), CELL.0);
    let first = users.shown(who, Purpose::Change).unwrap();
    let is_first = |shown: &Shown| first.as_ref().is_some_and(|first| first.is_same(shown));
    users.log_in(User::of(1), CELL, holder("alice"), token(), false);
    assert!(users.refused(who, first.as_ref()), "the call is made again");
    let second = users.shown(who, Purpose::Change).expect("nobody has refused it");
    assert!(!second.as_ref().is_some_and(is_first));
    assert!(!users.has_ended(users.who(User::of(1), CELL.0)));
    users.refused(who, second.as_ref());
    assert!(users.shown(who, Purpose::Change).is_err());
}

#[tokio::test]
async fn a_newer_token_of_the_same_person_is_the_same_identity_and_of_another_person_is_not() {
    let users = users();
    let token = |name| token_of(&users, name);
    let (first, second) = (token("alice"), token("alice"));
    let log_in = |name, token: &Token, is_forced| {
        users.log_in(User::of(1), CELL, holder(name), token.clone(), is_forced)
    };
    log_in("alice", &first, false);
    let who = users.who(User::of(1), CELL.0);
    assert_eq!(log_in("alice", &first, false), LoggedIn::Before);
    assert_eq!(log_in("alice", &first, true), LoggedIn::Renewed(who));
    assert_eq!(log_in("alice", &second, false), LoggedIn::Renewed(who));
    assert_eq!(users.who(User::of(1), CELL.0), who);
    assert_eq!(log_in("bob", &token("bob"), false), LoggedIn::Anew(Some(who)));
    assert_ne!(users.who(User::of(1), CELL.0), who);
    // Somebody else who says to be bob is not the same: nobody here can tell whether that is true.
    users.log_in(User::of(2), CELL, holder("bob"), second, false);
    assert_ne!(users.who(User::of(2), CELL.0), users.who(User::of(1), CELL.0));
    assert!(users.shown(who, Purpose::Read).unwrap().is_none(), "an identity that has left shows nothing");
    assert!(users.shown(who, Purpose::Change).is_err(), "nor does it change anything as nobody");
}

#[tokio::test]
async fn the_end_of_a_token_is_warned_of_once_and_waited_for_after() {
    let users = users();
    let token = token_of(&users, "alice");
    let end = token.end;
    let at = |before: u32| UnixTime(end.0 - before);
    users.log_in(User::of(1), CELL, holder("alice"), token.clone(), false);
    assert_eq!([at(3600), at(900), at(899)].map(|now| users.warn_of_ends(now)), [0, 1, 0]);
    users.log_in(User::of(1), CELL, holder("alice"), token.clone(), true);
    assert_eq!([at(60), UnixTime(end.0 + 1)].map(|now| users.warn_of_ends(now)), [1, 0]);
    assert!(!users.has_ended(users.who(User::of(1), CELL.0)));
    assert_eq!(users.counts(), TokenCounts { all: 1, ended: 0 });
    let who = users.who(User::of(1), CELL.0);
    users.refused(who, users.shown(who, Purpose::Read).unwrap().as_ref());
    assert!(users.has_ended(users.who(User::of(1), CELL.0)));
    assert_eq!(users.counts(), TokenCounts { all: 1, ended: 1 });
    assert!(!users.has_ended(users.who(User::of(2), CELL.0)), "whoever never had one waits for nothing");
    users.log_out(User::of(1), None);
    assert!(!users.has_ended(users.who(User::of(1), CELL.0)), "nor does one who threw it away");
}

#[tokio::test]
async fn the_end_of_a_token_is_told_once_and_once_more_of_the_next() {
    let users = users();
    let token = token_of(&users, "alice");
    let (end, after) = (token.end, UnixTime(token.end.0 + 1));
    let log_in = || users.log_in(User::of(1), CELL, holder("alice"), token.clone(), true);
    log_in();
    let who = users.who(User::of(1), CELL.0);
    assert_eq!([end, after, after].map(|now| users.ended(now).len()), [0, 1, 0]);
    assert_eq!(users.pause(UnixTime(end.0 - 4)), Duration::from_secs(5), "its end is not slept through");
    assert_eq!([UnixTime(1), after].map(|now| users.pause(now)), [LOOK_EVERY; 2]);
    log_in();
    users.refused(who, users.shown(who, Purpose::Read).unwrap().as_ref());
    assert_eq!([end, end].map(|now| users.ended(now)), [vec![(User::of(1), who)], vec![]]);
}

/// A server's refusals between the end of a token by the clock here and the end by the server's
/// clock were never forgotten.
#[tokio::test]
async fn a_refusal_is_told_of_also_when_the_end_was_told_before() {
    let users = users();
    let now = UnixTime::of(users.runtime.wall_clock());
    let token = Token { end: UnixTime(now.0 - 1), ..token_of(&users, "alice") };
    users.log_in(User::of(1), CELL, holder("alice"), token, false);
    let who = users.who(User::of(1), CELL.0);
    assert_eq!([now, now].map(|now| users.ended(now).len()), [1, 0]);
    assert!(users.shows_ended(who));
    users.refused(who, users.shown(who, Purpose::Read).unwrap().as_ref());
    assert_eq!([now, now].map(|now| users.ended(now).len()), [1, 0]);
    assert!(!users.shows_ended(who), "it shows nothing");
}

#[tokio::test]
async fn one_user_does_not_fill_the_memory_with_tokens_of_many_pags() {
    let users = users();
    let token = token_of(&users, "alice");
    let log_in = |user| users.log_in(user, CELL, holder("alice"), token.clone(), true);
    let session = |number| User { uid: 1, pag: Some(crate::fid::Pag::chosen_by(number)) };
    assert_eq!(log_in(User::of(1)), LoggedIn::Anew(None));
    (2..=PER_USER_MAX).for_each(|n| assert_eq!(log_in(session(n as u32)), LoggedIn::Anew(None), "{n}"));
    let (more, other) = (session(1), User { uid: 2, ..session(1) });
    assert_eq!(log_in(more), LoggedIn::TooMany);
    assert_eq!(users.who(more, CELL.0), IdentityIndex::NOBODY);
    assert!(matches!(log_in(session(2)), LoggedIn::Renewed(_)), "in the place of one that there is");
    assert_eq!(log_in(other), LoggedIn::Anew(None), "another user has as many");
    users.log_out(User::of(1), None);
    assert_eq!(log_in(more), LoggedIn::Anew(None));
}

#[tokio::test]
async fn tokens_that_are_replaced_for_years_take_no_more_room() {
    let users = users();
    let token = token_of(&users, "alice");
    for turn in 0..1000 {
        users.log_in(User::of(1), CELL, holder(&format!("user{turn}")), token.clone(), false);
    }
    assert_eq!(users.identities().logins.len(), 1);
}

/// Nothing goes by the weaker class between two calls of `aklog`'s.
#[tokio::test]
async fn a_token_of_rxgk_is_shown_before_the_other_and_stays_while_that_is_renewed() {
    let users = Arc::new(users());
    let both = KeySet::of([Key::rxkad_krb5(1, EncType(18), &[7; 32]), Key::rxgk(1, EncType(18), &[8; 32])]);
    let made = users.make_tokens(&both.unwrap(), "alice", CELL.1).unwrap();
    let rxgk = || Token::clone(made.own.rxkad.as_ref().unwrap());
    let given = || (**made.rxgk.as_ref().unwrap()).clone();
    let (one, nobody) = (User::of(1), User::of(2));
    assert_eq!(users.log_in_by_rxgk(one, CELL.0, given()), None, "there is none to put it beside");
    users.log_in(one, CELL, holder("alice"), rxgk(), false);
    let who = users.who(one, CELL.0);
    assert_eq!(users.anybody_with_rxgk(CELL.0), IdentityIndex::NOBODY);
    assert_eq!(users.log_in_by_rxgk(one, CELL.0, given()), Some(who));
    let index = || {
        let shown = users.shown(who, Purpose::Change).unwrap();
        users.security(shown.as_ref(), [1; 32])().index().0
    };
    assert_eq!(index(), 4);
    assert_eq!(users.anybody_with_rxgk(CELL.0), who);
    users.log_in(one, CELL, holder("alice"), token_of(&users, "alice"), false);
    assert_eq!(index(), 4);
    assert_eq!(users.held_rxgk(one, CELL.0).as_deref(), Some(&given()));
    assert_eq!(users.held_rxgk(nobody, CELL.0), None);
    users.log_in(one, CELL, holder("bob"), token_of(&users, "bob"), false);
    assert_eq!(users.held_rxgk(one, CELL.0), None, "it was another person's");
}

/// In a cell whose servers have rxgk and no other class, a realm need not have the service for rxkad.
#[tokio::test]
async fn a_token_of_rxgk_alone_is_shown_and_renewed_and_a_server_that_refuses_it_makes_nobody_of_its_owner() {
    let users = Arc::new(users());
    let both = KeySet::of([Key::rxkad_krb5(1, EncType(18), &[7; 32]), Key::rxgk(1, EncType(18), &[8; 32])]);
    let made = users.make_tokens(&both.unwrap(), "alice", CELL.1).unwrap();
    let token = || (**made.rxgk.as_ref().unwrap()).clone();
    let one = User::of(1);
    let log_in = || users.log_in_by_rxgk_alone(one, CELL, holder("alice"), token());
    assert_eq!(log_in(), LoggedIn::Anew(None));
    let who = users.who(one, CELL.0);
    let index =
        |purpose| users.shown(who, purpose).map(|shown| users.security(shown.as_ref(), [1; 32])().index().0);
    let both = || [Purpose::Read, Purpose::Change].map(index);
    assert_eq!(both(), [Ok(4), Ok(4)]);
    assert_eq!((users.held(one, CELL.0), users.held_rxgk(one, CELL.0).as_deref()), (None, Some(&token())));
    assert_eq!((users.tokens(one)[0].end, users.tokens(one)[0].is_made_here), (made.own.end, false));
    let shown = users.shown(who, Purpose::Change).unwrap();
    assert!(users.refused(who, shown.as_ref()));
    let refused = || Err(NotShown::Refused { name: "alice".to_owned(), is_device: false });
    assert_eq!(both(), [refused(), refused()]);
    assert_eq!(log_in(), LoggedIn::Renewed(who));
    assert_eq!(both(), [Ok(4), Ok(4)]);
    // A realm that has the other service too, and then has it no more.
    users.log_in(one, CELL, holder("alice"), Token::clone(made.own.rxkad.as_ref().unwrap()), false);
    assert_eq!(both(), [Ok(4), Ok(4)]);
    assert!(users.held(one, CELL.0).is_some());
    assert_eq!(log_in(), LoggedIn::Renewed(who));
    assert_eq!(users.held(one, CELL.0), None);
}

/// A forger of a refusal would have the user read as nobody what anybody may have forged. A token that has ended leaves a user without one, as
/// with OpenAFS.
#[tokio::test]
async fn who_has_a_token_of_rxgk_that_a_server_refuses_reads_nothing_as_nobody_until_it_ends() {
    let users = Arc::new(users());
    let keys = KeySet::of([Key::rxkad_krb5(1, EncType(18), &[7; 32]), Key::rxgk(1, EncType(18), &[8; 32])]);
    let made = users.make_tokens(&keys.unwrap(), "alice", CELL.1).unwrap();
    let rxkad = Token::clone(made.own.rxkad.as_ref().unwrap());
    let rxgk = (**made.rxgk.as_ref().unwrap()).clone();
    let now = UnixTime::of(users.runtime.wall_clock());
    let past = UnixTime(now.0 - 1);
    for (ends, gk_ends, expected) in [
        (rxkad.end, rxgk.end, Err(NotShown::Refused { name: "alice".to_owned(), is_device: false })),
        (past, rxgk.end, Ok(None)),
        (rxkad.end, RxgkTime::of(past), Ok(None)),
    ] {
        let user = User::of(1);
        users.log_in(user, CELL, holder("alice"), Token { end: ends, ..rxkad.clone() }, true);
        let who = users.log_in_by_rxgk(user, CELL.0, rxgk::Token { end: gk_ends, ..rxgk.clone() }).unwrap();
        let shown = users.shown(who, Purpose::Read).unwrap();
        assert!(users.refused(who, shown.as_ref()));
        assert_eq!(users.shown(who, Purpose::Read).map(|shown| shown.map(drop)), expected);
        assert!(users.shown(who, Purpose::Change).is_err());
    }
}

/// A device has no token at first, between two, and when it was revoked.
#[tokio::test]
async fn a_devices_user_neither_reads_nor_changes_anything_while_there_is_no_token() {
    let users = Arc::new(users());
    let keys = KeySet::of([Key::rxkad_krb5(1, EncType(18), &[7; 32]), Key::rxgk(1, EncType(18), &[8; 32])]);
    let made = users.make_tokens(&keys.unwrap(), "alice", CELL.1).unwrap();
    let token = || (**made.rxgk.as_ref().unwrap()).clone();
    let user = User::of(1);
    let (who, wanted) = users.log_in_by_device(user, CELL, "alice");
    let index =
        |purpose| users.shown(who, purpose).map(|shown| users.security(shown.as_ref(), [1; 32])().index().0);
    let both = || [Purpose::Read, Purpose::Change].map(index);
    let refused = || Err(NotShown::Refused { name: "alice".to_owned(), is_device: true });
    assert_eq!(both(), [refused(), refused()]);
    assert!(users.has_ended(who) && users.tokens(user).is_empty());

    assert!(users.renew_by_device(who, token()));
    assert_eq!(both(), [Ok(4), Ok(4)]);
    assert_eq!(users.held(user, CELL.0), None, "there is none of rxkad");
    assert_eq!(users.held_rxgk(user, CELL.0).as_deref(), Some(&token()));
    assert_eq!(users.tokens(user)[0].holder, holder("alice"));
    let session = User { uid: 1, pag: Some(crate::fid::Pag::chosen_by(7)) };
    assert_eq!(users.who(session, CELL.0), who);

    let shown = || users.shown(who, Purpose::Change).unwrap();
    let first = shown();
    assert!(users.renew_by_device(who, token()));
    assert!(users.refused(who, first.as_ref()), "the call is made again");
    assert_eq!(both(), [Ok(4), Ok(4)], "the one before was refused");
    let second = shown();
    assert!(users.refused(who, second.as_ref()));
    assert_eq!(both(), [refused(), refused()]);
    wanted.notified().await;
    users.end_by_device(who);
    assert!(users.tokens(user).is_empty());
    assert_eq!(users.log_out(user, None).0, 1);
    assert!(!users.renew_by_device(who, token()), "the user has thrown it away");
    assert_eq!(both(), [Ok(0), Err(NotShown::Ended)], "who has none is nobody");
}

#[tokio::test]
async fn a_person_of_an_earlier_run_is_the_same_user_of_this_machine_with_the_same_name() {
    let users = users();
    let earlier = users.earlier_person(CELL.0, 1, "alice".into());
    assert_eq!(users.earlier_person(CELL.0, 1, "alice".into()), earlier);
    assert_eq!(users.earlier_person(CELL.0, 1, Arc::default()), IdentityIndex::NOBODY);
    assert_eq!(users.persons(earlier), [(1, "alice".into())], "before anybody is it");
    let token = token_of(&users, "alice");
    let sessions = [User::of(1), User { uid: 1, pag: Some(crate::fid::Pag::chosen_by(7)) }];
    for user in sessions.into_iter().chain([User::of(2)]) {
        users.log_in(user, CELL, holder("alice"), token.clone(), false);
    }
    users.log_in(User::of(3), CELL, holder("bob"), token, false);
    let as_earlier = |user| users.as_earlier(users.who(user, CELL.0));
    assert_eq!(sessions.map(as_earlier), [Some(earlier); 2], "in each session");
    assert_eq!([User::of(2), User::of(3), User::of(4)].map(as_earlier), [None; 3]);
    assert_eq!(users.persons(users.who(User::of(1), CELL.0)), [(1, "alice".into())]);
    assert_eq!(users.persons(IdentityIndex::NOBODY), [(0, Arc::default())]);
}
