//! The round trip against one of MIT Kerberos's, and both ends against each other: what is refused, and why.

use super::*;
use crate::kerberos::bytes;
use crate::ticket::der;
use crate::ticket::kerberos::format_time;
use rand::SeedableRng;
use rand::rngs::StdRng;

// ---- a published vector: a context of MIT Kerberos 1.20, of user1@LAB.TEST with afs-rxgk/_afs.lab.test

const SERVICE_KEY: &str = "f6e349229eb5b78feb47554165b6d1d85acb8148bba9ab18de738dc34cc6e671";
const SESSION_KEY: &str = "bd98eb5386db18bad20c830ca04ea87757f44632a703794fffcdbb4b447e5819";
const INITIATOR_KEY: &str = "d025c717f8c8bd3d9bd19fc1df6deee8280eacd10767b60b62006af0ec3ef8c9";
const ACCEPTOR_KEY: &str = "694fa9aa0a53a4e08c5a5e1880479eb8a7a2b89a2e10d62a661b57eb86b46067";
const MESSAGE: &str = "608202b606092a864886f71201020201006e8202a5308202a1a003020105a10302010ea20703050020000000a38201bc\
        618201b8308201b4a003020105a10a1b084c41422e54455354a2243022a003020103a11b30191b086166732d7278676b\
        1b0d5f6166732e6c61622e74657374a382017930820175a003020112a103020102a282016704820163f682109b64fb55\
        ca70224dcd76d3820db3c8f0b95c003e837bfd2ac47ca855217a225181c139e724ade3f8b23e9f88630ad2c55ff86635\
        66b56d989d991a886557681f3bc2099578460806e5d3041365c2f2073c878ce5fafbecd225338c3a4e340754ea0cd742\
        9ae57942635e572b9ba3d250727b32c624f36c85a8844880b7c9fb6b0f81e359e59cb5465d11ccd20dd89ff2e56cd168\
        09867044f430ef6d3b953d21be11cb9f50cb5cadd5bca34caf2f06523793a4d1ad7b0dbc8905f906f1548ad073c41e06\
        cf317baf6933f0d417df4df088bbfe170bc201c46dced902a58be8d65d27028ba7fc999de445d0b7347e9e654cc8c8cc\
        88709f129093e8a645636a6bf4ecd71a7207b65d2bc96067d595b655aa8d7f9dee440e3ef52518f39f28c92bb2864c69\
        14b16099171bdebf686c4103a0170dccb8b66f2a9cbb1abbfd94b1058a746e18cf8a88651964f402b6aa7e172b0e66de\
        3e1bb6582c236ea1288fd18ba481cb3081c8a003020112a281c00481bd68e57b7ffa06e82ab8b2dfe8bb7af59cf0381f\
        ce1eea9d3adc93056d1881194d45e78f964a2b0688d91664b7dbf8cd13811c88c20462bfa86ccd6fb61d5775992eed1c\
        e327a3f22f227db0b546275649d9efd97f7d2354f3d980e5fda9041d6e88451ecf6c7189659341b263b39d52a59b6646\
        8775ab5d1b3e8aa01b4fc5f0f6f8feee427c5cd102dfee7bd73ab2e2509dbae437e6e7bf7201fb0d1ad6d05261e6aae5\
        0d62371da74bb9caa7d82f22f9394fc2438a3fde143954c2da58";
const ANSWER: &str = "60819906092a864886f71201020202006f8189308186a003020105a10302010fa27a3078a003020112a271046fab0644\
        6c6a41b0a9f1188b71d9d94c0e41a999e902f2334321b41645341b17f3f573bd931ba221baf8fd638d03bcdc67a0b0b8\
        73f8367a9345efb1a0c3b02a9b8a7487bc4bf815b23fd268fd288f6f66dc87cbd118c8f5cac1954c3764c4014dc3773d\
        52b7650d7cdd4507a5df61d9";
const WRAPPED: &str = "050407ff000000000000000006fe760c0c7e07918debd6d6a13e895be6b4283f7492077072c920f250810bb2\
        3477360a02b679bdec2b295a750323e792debce3416aa1abfdd52a0160e493a9fcaed1bb85";
const SIGNATURE_OF_STARTPARAMS: &str = "040405ffffffffff0000000006fe760d100a97ecbb1c583e5a78a307";

fn secret(hex: &str) -> Secret {
    Secret::new(EncType::AES256, &bytes(hex)).unwrap()
}

fn service_keys() -> [Key; 2] {
    let older = Key::rxkad_krb5(1, EncType::AES256, &[1; 32]);
    [older, Key::rxkad_krb5(2, EncType::AES256, &bytes(SERVICE_KEY))]
}

fn rng() -> StdRng {
    StdRng::seed_from_u64(1)
}

/// What is encrypted in the message.
fn authenticator() -> Zeroizing<Vec<u8>> {
    let message = bytes(MESSAGE);
    let request = ApRequest::parse(&message).unwrap();
    decrypt(&secret(SESSION_KEY), usage::AUTHENTICATOR, request.authenticator).unwrap()
}

#[test]
fn the_message_of_mit_kerberos_is_understood() {
    let plain = authenticator();
    let word = Authenticator::parse(&plain).unwrap();
    assert_eq!((word.realm, &word.names[..], word.flags), ("LAB.TEST", &["user1"][..], FLAGS));
    let subkey = bytes(INITIATOR_KEY);
    assert_eq!(word.subkey, Some((EncType::AES256, &subkey[..])));
    assert_eq!(word.sequence, 0x3433_dc84);
    let accepted = accept(&service_keys(), &bytes(MESSAGE), word.time, &mut rng()).unwrap();
    assert_eq!(accepted.principal, "user1@LAB.TEST");
    assert!(accepted.end > word.time);
}

#[test]
fn the_answer_of_mit_kerberos_is_understood() {
    let plain = authenticator();
    let Authenticator { time, micros, sequence, .. } = Authenticator::parse(&plain).unwrap();
    let (session, subkey) = (secret(SESSION_KEY), secret(INITIATOR_KEY));
    let initiator = Initiator { session, subkey, time, micros, sequence };
    let context = initiator.finish(&bytes(ANSWER)).unwrap();
    assert_eq!(context.key, secret(ACCEPTOR_KEY));
    assert_eq!(context.unwrap(&bytes(WRAPPED)).unwrap()[..], *b"hello rxgk clientinfo");
    assert_eq!(context.verify(b"startparams", &bytes(SIGNATURE_OF_STARTPARAMS)), Ok(()));
    let refused = context.verify(b"startparamt", &bytes(SIGNATURE_OF_STARTPARAMS));
    assert_eq!(refused, Err(GssError::BadSignature));
    let seed: Vec<u8> = (0u8..0x14).chain(0x64..0x78).collect();
    assert_eq!(context.pseudo_random(&seed, 16)[..], bytes("29fb432bf2069e6a969e13c07fc383b0"));
    let k0 = bytes("29fb432bf2069e6a969e13c07fc383b0b8a60092e35680ecf528e37d0de36f01");
    assert_eq!(context.pseudo_random(&seed, 32)[..], k0);
}

/// The same signature, made by ours in the acceptor's place.
#[test]
fn a_signature_is_that_of_mit_kerberos() {
    let key = secret(ACCEPTOR_KEY);
    let mut context = Context { key, is_acceptor: true, has_acceptor_key: true, sequence: 0x06fe_760d };
    assert_eq!(context.sign(b"startparams"), bytes(SIGNATURE_OF_STARTPARAMS));
}

// ---- both ends of ours

const NOW: UnixTime = UnixTime(1_700_000_000);

/// A ticket with times, and its session key.
fn ticket(kind: EncType, (start, end): (u32, u32)) -> (Vec<u8>, Secret) {
    let session = random_key(kind, &mut rng());
    let field = |number, value: &[u8]| der::tagged(der::context(number), value);
    let text = |text: &str| der::tagged(der::GENERAL_STRING, text.as_bytes());
    let sequence = |fields: &[Vec<u8>]| der::tagged(der::SEQUENCE, &fields.concat());
    let time = |time| der::tagged(der::GENERALIZED_TIME, format_time(UnixTime(time)).as_bytes());
    let name = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| text(name)).collect();
        sequence(&[field(0, &der::integer(1)), field(1, &sequence(&names))])
    };
    let key = sequence(&[
        field(0, &der::integer(kind.0)),
        field(1, &der::tagged(der::OCTET_STRING, session.bytes())),
    ]);
    let part = sequence(&[
        field(0, &der::tagged(der::BIT_STRING, &[0; 5])),
        field(1, &key),
        field(2, &text("LAB.TEST")),
        field(3, &name(&["user1", "admin"])),
        field(4, &sequence(&[field(0, &der::integer(0)), field(1, &der::tagged(der::OCTET_STRING, &[]))])),
        field(5, &time(start)),
        field(7, &time(end)),
    ]);
    let part = der::tagged(der::application(3), &part);
    let service = secret(SERVICE_KEY);
    let sealed = encrypt(&service, kerberos::USAGE_TICKET, &part, &mut rng());
    let sealed = sequence(&[
        field(0, &der::integer(18)),
        field(1, &der::integer(2)),
        field(2, &der::tagged(der::OCTET_STRING, &sealed)),
    ]);
    let service = name(&["afs-rxgk", "_afs.lab.test"]);
    let fields =
        [field(0, &der::integer(5)), field(1, &text("LAB.TEST")), field(2, &service), field(3, &sealed)];
    (der::tagged(der::application(1), &sequence(&fields)), session)
}

fn good_ticket(kind: EncType) -> (Vec<u8>, Secret) {
    ticket(kind, (NOW.0 - 100, NOW.0 + 100))
}

fn start(kind: EncType) -> (Initiator, Vec<u8>) {
    let (ticket, session) = good_ticket(kind);
    Initiator::start(&ticket, session, ("user1/admin", "LAB.TEST"), NOW, &mut rng())
}

fn meet(kind: EncType) -> (Context, Accepted) {
    let (initiator, message) = start(kind);
    let accepted = accept(&service_keys(), &message, NOW, &mut StdRng::seed_from_u64(2)).unwrap();
    (initiator.finish(&accepted.answer).unwrap(), accepted)
}

#[test]
fn both_ends_have_the_same_key_and_understand_each_other() {
    for kind in crate::rxgk::ENCTYPES {
        let (mut ours, Accepted { context: mut theirs, principal, end, .. }) = meet(kind);
        assert_eq!((&*principal, end), ("user1/admin@LAB.TEST", UnixTime(NOW.0 + 100)));
        assert_eq!(ours.pseudo_random(b"seed", 100), theirs.pseudo_random(b"seed", 100));
        for text in [&b""[..], b"x", &[7; 5000]] {
            let sealed = ours.wrap(text, &mut rng());
            assert_eq!(theirs.unwrap(&sealed).unwrap()[..], *text);
            assert_eq!(ours.unwrap(&sealed), Err(GssError::DefectiveToken), "its own, sent back");
            let sealed = theirs.wrap(text, &mut rng());
            assert_eq!(ours.unwrap(&sealed).unwrap()[..], *text);
            let signature = theirs.sign(text);
            assert_eq!(ours.verify(text, &signature), Ok(()));
            assert!(theirs.verify(text, &signature).is_err());
            assert_eq!(theirs.verify(text, &ours.sign(text)), Ok(()));
        }
    }
}

#[test]
fn whatever_was_changed_is_refused() {
    let (initiator, message) = start(EncType::AES128);
    let accepted = accept(&service_keys(), &message, NOW, &mut StdRng::seed_from_u64(2)).unwrap();
    let refuses = |what: &str, good: &[u8], takes: &dyn Fn(&[u8]) -> bool| {
        assert!(takes(good), "{what}");
        for at in 0..good.len() {
            let mut changed = good.to_vec();
            changed[at] ^= 1 << (at % 8);
            assert!(!takes(&changed), "{what}, byte {at} of {}", good.len());
            assert!(!takes(&good[..at]), "{what}, {at} bytes");
        }
    };
    let again = |initiator: &Initiator| Initiator {
        session: initiator.session.clone(),
        subkey: initiator.subkey.clone(),
        time: initiator.time,
        micros: initiator.micros,
        sequence: initiator.sequence,
    };
    // The names of realm and service stand in the clear in a ticket, and nothing is decided by them; nor by unused options.
    let encrypted = message.len() - 300;
    for at in encrypted..message.len() {
        let mut changed = message.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(
            accept(&service_keys(), &changed, NOW, &mut rng()).is_err(),
            "byte {at} of {}",
            message.len()
        );
    }
    for len in 0..message.len() {
        assert!(accept(&service_keys(), &message[..len], NOW, &mut rng()).is_err(), "{len} bytes");
    }
    refuses("answer", &accepted.answer, &|bytes| again(&initiator).finish(bytes).is_ok());
    let (mut ours, theirs) = (again(&initiator).finish(&accepted.answer).unwrap(), accepted.context);
    refuses("sealed", &ours.wrap(b"text", &mut rng()), &|bytes| theirs.unwrap(bytes).is_ok());
    refuses("signed", &ours.sign(b"text"), &|bytes| theirs.verify(b"text", bytes).is_ok());
}

/// Implementations differ in how they lay out what they seal.
#[test]
fn text_that_was_filled_up_and_turned_round_is_opened() {
    let (ours, Accepted { context: theirs, .. }) = meet(EncType::AES256);
    for (filled, turned) in [(0u16, 0u16), (0, 28), (16, 44), (3, 1), (0, 0xffff)] {
        let mut header = [5, 4, IS_SEALED | BY_ACCEPTOR_KEY, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        header[4..6].copy_from_slice(&filled.to_be_bytes());
        let text = [b"text", &vec![0xff; filled.into()][..], &header].concat();
        let mut sealed = encrypt(&ours.key, usage::INITIATOR_SEAL, &text, &mut rng());
        let len = sealed.len();
        sealed.rotate_right(usize::from(turned) % len);
        header[6..8].copy_from_slice(&turned.to_be_bytes());
        let message = [&header[..], &sealed].concat();
        assert_eq!(theirs.unwrap(&message).unwrap()[..], *b"text", "{filled} {turned}");
    }
    // More filling than there is text.
    let mut header = [5, 4, IS_SEALED | BY_ACCEPTOR_KEY, 0xff, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
    let sealed = encrypt(&ours.key, usage::INITIATOR_SEAL, &[b"text", &header[..]].concat(), &mut rng());
    assert_eq!(theirs.unwrap(&[&header[..], &sealed].concat()), Err(GssError::DefectiveToken));
    header[2] &= !IS_SEALED;
    assert_eq!(theirs.unwrap(&[&header[..], &sealed].concat()), Err(GssError::DefectiveToken), "only signed");
}

#[test]
fn a_ticket_that_is_not_good_now_is_refused_with_the_reason() {
    let check = |times, now: u32, want| {
        let (ticket, session) = ticket(EncType::AES256, times);
        let (_, message) =
            Initiator::start(&ticket, session, ("user1/admin", "LAB.TEST"), UnixTime(now), &mut rng());
        let got = accept(&service_keys(), &message, UnixTime(now), &mut rng());
        assert_eq!(got.map(drop), want, "{times:?} at {now}");
    };
    check((1000, 2000), 1500, Ok(()));
    check((1000, 2000), 2300, Ok(()));
    check((1000, 2000), 2301, Err(GssError::Expired));
    check((1000, 2000), 700, Ok(()));
    check((1000, 2000), 699, Err(GssError::DefectiveCredential));
    let (_, message) = start(EncType::AES256);
    for (now, want) in [
        (NOW.0 + 300, Ok(())),
        (NOW.0 + 301, Err(GssError::ClockSkew)),
        (NOW.0 - 300, Ok(())),
        (NOW.0 - 301, Err(GssError::ClockSkew)),
    ] {
        let got = accept(&service_keys(), &message, UnixTime(now), &mut rng());
        assert_eq!(got.map(drop), want, "{now}");
    }
}

#[test]
fn an_initiator_that_is_not_whom_its_ticket_names_is_refused() {
    let (ticket, session) = good_ticket(EncType::AES256);
    for (who, want) in [
        (("user1/admin", "LAB.TEST"), Ok(())),
        (("user1", "LAB.TEST"), Err(GssError::BadSignature)),
        (("user2/admin", "LAB.TEST"), Err(GssError::BadSignature)),
        (("user1/admin", "OTHER"), Err(GssError::BadSignature)),
    ] {
        let (_, message) = Initiator::start(&ticket, session.clone(), who, NOW, &mut rng());
        assert_eq!(accept(&service_keys(), &message, NOW, &mut rng()).map(drop), want, "{who:?}");
    }
    // The ticket alone, without its session key; and a service without the key.
    let stolen = Secret::new(EncType::AES256, &[1; 32]).unwrap();
    let (_, message) = Initiator::start(&ticket, stolen, ("user1/admin", "LAB.TEST"), NOW, &mut rng());
    assert_eq!(accept(&service_keys(), &message, NOW, &mut rng()).map(drop), Err(GssError::BadSignature));
    let (_, message) = start(EncType::AES256);
    assert_eq!(accept(&service_keys()[..1], &message, NOW, &mut rng()).map(drop), Err(GssError::NoKey));
    let other = [Key::rxkad_krb5(2, EncType::AES256, &[3; 32])];
    let refused = accept(&other, &message, NOW, &mut rng()).map(drop);
    assert_eq!(refused, Err(GssError::DefectiveCredential));
}

#[test]
fn less_than_all_that_is_wanted_is_refused() {
    let (ticket, session) = good_ticket(EncType::AES256);
    for (flags, is_mutual, want) in [
        (FLAGS, true, Ok(())),
        (FLAGS, false, Err(GssError::TooWeak)),
        (FLAGS & !MUTUAL, true, Err(GssError::TooWeak)),
        (FLAGS & !SEALS, true, Err(GssError::TooWeak)),
        (FLAGS & !SIGNS, true, Err(GssError::TooWeak)),
    ] {
        let names = vec!["user1", "admin"];
        let word = Authenticator {
            realm: "LAB.TEST",
            names,
            flags,
            micros: 5,
            time: NOW,
            subkey: None,
            sequence: 6,
        };
        let sealed = encrypt(&session, usage::AUTHENTICATOR, &word.to_bytes(), &mut rng());
        let request = ApRequest { is_mutual, ticket: &ticket, kind: session.kind(), authenticator: &sealed };
        let got = accept(&service_keys(), &request.to_bytes(), NOW, &mut rng());
        assert_eq!(got.map(drop), want, "{flags:x} {is_mutual}");
    }
}

/// Somebody answers in the place of the service, without its key: by an answer to another message.
#[test]
fn an_answer_to_another_message_is_refused() {
    let (ticket, session) = good_ticket(EncType::AES256);
    let start = |seed| {
        let rng = &mut StdRng::seed_from_u64(seed);
        Initiator::start(&ticket, session.clone(), ("user1/admin", "LAB.TEST"), NOW, rng)
    };
    let ((first, message), (second, _)) = (start(3), start(4));
    let accepted = accept(&service_keys(), &message, NOW, &mut rng()).unwrap();
    assert_eq!(second.finish(&accepted.answer).map(drop), Err(GssError::BadSignature));
    assert!(first.finish(&accepted.answer).is_ok());
}

#[test]
fn no_key_is_in_any_debug_text() {
    let (initiator, message) = start(EncType::AES256);
    let accepted = accept(&service_keys(), &message, NOW, &mut rng()).unwrap();
    let text = format!("{initiator:?} {accepted:?}");
    for key in [&initiator.session, &initiator.subkey, &accepted.context.key] {
        let key = format!("{:?}", &key.bytes()[..4]);
        assert!(!text.contains(key.trim_matches(['[', ']'])), "{text}");
    }
}
