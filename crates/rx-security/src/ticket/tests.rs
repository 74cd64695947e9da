//! Tickets as Kerberos and OpenAFS make them, and ours; what is refused, and with what code.

use super::*;
use crate::identity::LocalRealms;
use crate::keys::Key;
use rand::SeedableRng;
use rand::rngs::StdRng;

const NOW: UnixTime = UnixTime(1_700_000_000);

fn krb5_keys() -> KeySet {
    KeySet::of([Key::rxkad_krb5(2, EncType::AES256, &[7; 32])]).unwrap()
}

fn rng() -> StdRng {
    StdRng::seed_from_u64(9)
}

fn who(text: &str) -> Identity {
    Identity::parse(text).unwrap()
}

fn open_it(keys: &KeySet, token: &Token, now: UnixTime) -> Result<Opened, TicketError> {
    open(keys, token.kvno, &token.ticket, now, NameRules::default())
}

#[test]
fn a_ticket_of_ours_opens_whatever_the_key() {
    for kind in [
        EncType::AES256,
        EncType::AES128,
        EncType::AES256_SHA384,
        EncType::AES128_SHA256,
        EncType::DES3,
        EncType::RC4,
    ] {
        let keys = KeySet::of([Key::rxkad_krb5(300, kind, &vec![5; kind.key_len().unwrap()])]).unwrap();
        check(&keys, KVNO_ENCRYPTED_DATA);
    }
    check(&KeySet::of([Key::rxkad(4, *b"\x01\x02\x04\x07\x08\x0b\x0d\x0e")]).unwrap(), 4);
}

fn check(keys: &KeySet, kvno: i32) {
    let token = local_superuser(keys, &mut rng()).unwrap();
    assert_eq!(token.kvno, kvno);
    let opened = open_it(keys, &token, NOW).unwrap();
    assert_eq!((&*opened.name, &*opened.instance, &*opened.realm), ("afs", "", ""));
    assert_eq!(opened.session_key, token.session_key);
    assert_eq!((opened.start, opened.end), (UnixTime::ORIGIN, UnixTime::NEVER));
    let realms = LocalRealms::of_cell("lab.test");
    for (text, realm) in
        [("user1", "LAB.TEST"), ("user1.admin", "LAB.TEST"), ("user1.admin@other.org", "OTHER.ORG")]
    {
        let end = NOW.plus(Duration::from_secs(36_000));
        let token = for_user(keys, &who(text), "lab.test", (NOW, end), &mut rng()).unwrap();
        let opened = open_it(keys, &token, NOW).unwrap();
        assert_eq!(opened.realm, realm);
        assert_eq!((opened.start, opened.end), (NOW, end));
        assert_eq!(realms.identify(&opened.name, &opened.instance, &opened.realm), Some(who(text)));
    }
}

#[test]
fn times_are_those_that_openafs_takes() {
    let now = NOW.0;
    let never = UnixTime::NEVER.0;
    for (start, end, want) in [
        (0, 0x7fff_ffff, Ok(())),
        (0, never, Ok(())),
        (now - 10, now + 100, Ok(())),
        (now + 800, now + 2000, Ok(())),
        (now + 1000, now + 2000, Err(codes::NOAUTH)),
        (now - 1000, now - 800, Ok(())),
        (now - 2000, now - 901, Err(codes::EXPIRED)),
        (now - 2000, now - 899, Ok(())),
        (now - 10, now - 10 + 2_592_000, Ok(())),
        (now - 10, now - 9 + 2_592_000, Err(codes::BADTICKET)),
        (now - 10, never, Ok(())),
        (now, now, Err(codes::BADTICKET)),
        (0, now - 10_000, Err(codes::EXPIRED)),
    ] {
        let got = check_times(UnixTime(start), UnixTime(end), NOW).map_err(TicketError::code);
        assert_eq!(got, want, "{} to {}", i64::from(start) - i64::from(now), i64::from(end) - i64::from(now));
    }
}

#[test]
fn a_kerberos_ticket_ends_when_it_says() {
    let keys = krb5_keys();
    let end = NOW.plus(Duration::from_secs(100));
    let token = for_user(&keys, &who("user1"), "lab.test", (NOW, end), &mut rng()).unwrap();
    assert!(open_it(&keys, &token, end).is_ok());
    assert_eq!(open_it(&keys, &token, UnixTime(end.0 + 1)), Err(TicketError::Expired));
    let early = UnixTime(NOW.0 - 901);
    assert_eq!(open_it(&keys, &token, early), Err(TicketError::NotYetValid));
}

#[test]
fn the_wrong_key_and_damage_are_told_apart_from_a_key_that_is_not_there() {
    let keys = krb5_keys();
    let token = local_superuser(&keys, &mut rng()).unwrap();
    let code =
        |keys: &KeySet, token: &Token| open_it(keys, token, NOW).map_err(TicketError::code).unwrap_err();
    let other = KeySet::of([Key::rxkad_krb5(2, EncType::AES256, &[8; 32])]).unwrap();
    assert_eq!(code(&other, &token), codes::BADTICKET);
    let newer = KeySet::of([Key::rxkad_krb5(3, EncType::AES256, &[7; 32])]).unwrap();
    assert_eq!(code(&newer, &token), codes::UNKNOWNKEY);
    let other_kind = KeySet::of([Key::rxkad_krb5(2, EncType::AES128, &[7; 16])]).unwrap();
    assert_eq!(code(&other_kind, &token), codes::UNKNOWNKEY);
    for at in 0..token.ticket.len() {
        let mut damaged = token.clone();
        damaged.ticket[at] ^= 1;
        assert!([codes::BADTICKET, codes::UNKNOWNKEY].contains(&code(&keys, &damaged)), "byte {at}");
    }
    for len in [0, 31, TICKET_MAX + 1] {
        assert_eq!(code(&keys, &Token { ticket: vec![0x30; len], ..token.clone() }), codes::TICKETLEN);
    }
    for kvno in [-1, 5, 257, 511, 512, 70_000] {
        assert_eq!(code(&keys, &Token { kvno, ..token.clone() }), codes::UNKNOWNKEY);
    }
    assert_eq!(code(&keys, &Token { kvno: KVNO_TICKET, ..token }), codes::BADTICKET);
}

#[test]
fn a_dotted_name_is_taken_only_where_that_is_allowed() {
    let keys = krb5_keys();
    // Such a ticket comes from Kerberos only: an Identity has the dot between name and instance.
    let content = Opened {
        session_key: SessionKey::new([3; 8]),
        name: "dot.ted".into(),
        instance: String::new(),
        realm: "LAB.TEST".into(),
        start: NOW,
        end: UnixTime::NEVER,
    };
    let key = keys.newest(KeyType::RXKAD_KRB5).unwrap();
    let ticket = kerberos::make_encrypted_data(key, &content, &mut rng()).unwrap();
    let open = |allow_dotted| open(&keys, KVNO_ENCRYPTED_DATA, &ticket, NOW, NameRules { allow_dotted });
    assert_eq!(open(false).unwrap_err().code(), codes::BADTICKET);
    assert_eq!(open(true).unwrap(), content);
}

#[test]
fn services_have_the_names_that_kerberos_4_gave_them() {
    let keys = krb5_keys();
    let key = keys.newest(KeyType::RXKAD_KRB5).unwrap();
    for (name, instance, want) in [
        ("host", "a.lab.test", ("rcmd", "a")),
        ("imap", "a.lab.test", ("imap", "a")),
        ("kadmin", "a.b", ("kadmin", "a.b")),
        ("host", "", ("host", "")),
        ("user1", "a.b", ("user1", "a.b")),
    ] {
        let content = Opened {
            session_key: SessionKey::new([3; 8]),
            name: name.into(),
            instance: instance.into(),
            realm: "LAB.TEST".into(),
            start: NOW,
            end: UnixTime::NEVER,
        };
        let ticket = kerberos::make_encrypted_data(key, &content, &mut rng()).unwrap();
        let opened = open(&keys, KVNO_ENCRYPTED_DATA, &ticket, NOW, NameRules::default()).unwrap();
        assert_eq!((&*opened.name, &*opened.instance), want);
    }
}

#[test]
fn a_ticket_needs_a_key_and_times() {
    let no_keys = KeySet::new();
    assert_eq!(local_superuser(&no_keys, &mut rng()), Err(ForgeError::NoKey));
    let bad = for_user(&krb5_keys(), &who("user1"), "lab.test", (NOW, NOW), &mut rng());
    assert!(matches!(bad, Err(ForgeError::BadTimes(_))));
}
