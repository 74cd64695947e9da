//! What the targets of rxgk and of its negotiation start from: tokens and answers of our own, as there are no captures of stock peers,
//! and a published message.

use afar_fuzz::targets::gss_message;
use afar_fuzz::targets::rxgk_response::{asking, facts, keys};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_proto::packet::HEADER_LEN;
use rx_proto::security::SecurityClass;
use rx_security::keys::{EncType, Key};
use rx_security::rxgk::{self, AppData, AuthName, Callback, Client, Content, Dialect, ENCTYPES, Form};
use rx_security::rxgk::{Response, RxgkTime, Secret, Token};
use rx_security::{Identity, Level, UnixTime};
use rxgen::xdr::Uuid;
use std::sync::Arc;

const TIMES: (UnixTime, UnixTime) = (UnixTime(1_794_990_000), UnixTime(1_795_100_000));

fn rng() -> StdRng {
    StdRng::seed_from_u64(1)
}

fn app_data(callback: bool) -> AppData {
    let callback =
        callback.then(|| Callback { kind: EncType::AES128, key: vec![5; 16].into(), token: vec![6; 120] });
    let uuid = |byte| Uuid::from_bytes([byte; 16]);
    AppData { client: uuid(0xa1), server: uuid(0xb2), capabilities: vec![1], callback }
}

/// Tokens of each enctype and of several names, their content, and what a cache manager adds.
pub(super) fn tokens() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (which, dialect) in (0..).zip(Dialect::ALL) {
        for kind in ENCTYPES {
            let secret = vec![7; kind.key_len().expect("it is known")];
            for names in [&[][..], &["user1@LAB.TEST"], &["a/admin@LAB.TEST", "b@ELSE.WHERE"]] {
                let names: Vec<AuthName> = names.iter().map(|name| AuthName::of_principal(name)).collect();
                let content = Content {
                    secret: Secret::new(kind, &secret).expect("a good length"),
                    level: Level::Crypt,
                    start: RxgkTime::of(TIMES.0),
                    lifetime: 36_000,
                    bytelife: 30,
                    end: RxgkTime::of(TIMES.1),
                    names,
                };
                let key = Key::rxgk(2, kind, &secret);
                let token = rxgk::seal(&key, dialect, &content, &mut rng()).expect("a good key");
                inputs.push([&[which], &token[..]].concat());
                inputs.push([&[which + 2], &content.to_bytes(dialect)[..]].concat());
            }
        }
        for callback in [false, true] {
            inputs.push([&[which + 4], &app_data(callback).to_bytes(dialect)[..]].concat());
        }
    }
    let whole = inputs.clone();
    inputs.extend(whole.iter().flat_map(|input| (1..input.len()).map(|len| input[..len].to_vec())));
    inputs
}

/// Good answers, the same cut short, what is sealed in them, and challenges.
pub(super) fn responses() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (which, dialect) in (0..).zip(Dialect::ALL) {
        let (_, challenge) = asking(dialect);
        inputs.push([&[which + 4], &challenge[..]].concat());
        inputs.push([&[which + 4], &challenge[..19]].concat());
        for level in Level::ALL {
            for name in ["user1", "user1.admin@else.where"] {
                let (form, who) = (Form { dialect, kind: EncType::AES128, level }, Identity::parse(name));
                let token =
                    Token::of_user(&keys(), form, &who.expect("a name"), "lab.test", TIMES, &mut rng());
                let token = Arc::new(token.expect("there is a key"));
                for data in [None, Some(app_data(false)), Some(app_data(true))] {
                    let mut client = Client::new(Arc::clone(&token), Arc::new(|| TIMES.0), [2; 32]);
                    if let Some(data) = data {
                        client = client.with_app_data(Arc::new(data));
                    }
                    let body = client.handle_challenge(&facts(), &challenge).expect("a good challenge");
                    inputs.push([&[which], &body[..]].concat());
                    let response = Response::parse(&body).expect("it was made above");
                    let bare = Response { authenticator: &[], ..response };
                    inputs.push([&[which], &bare.to_bytes()[..]].concat());
                    inputs.extend([7, 11, 40, 200].map(|len| [&[which], &body[..len]].concat()));
                }
            }
        }
        // Nonce, application's data, level, epoch, connection, and some call numbers.
        for (data, calls) in [(0u32, 4u32), (8, 4), (0, 0), (0, 1), (0, 5)] {
            let mut plain = [&[which + 2], &challenge[..], &data.to_be_bytes()].concat();
            plain.resize(plain.len() + data as usize, 9);
            for word in [2, facts().epoch.0, facts().connection.0, calls].into_iter().chain(1..=calls) {
                plain.extend_from_slice(&word.to_be_bytes());
            }
            inputs.push(plain);
        }
    }
    inputs
}

/// Packets of several lengths and key numbers for each dialect, level and enctype.
pub(super) fn packets() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for mode in 0..24 {
        for (number, len) in [(0u16, 0), (0, 11), (0, 60), (1, 300), (0xffff, 100), (7, 5)] {
            let mut packet = vec![mode];
            packet.resize(1 + HEADER_LEN + len, 0x5a);
            packet[1 + 24..1 + 26].copy_from_slice(&number.to_be_bytes());
            inputs.push(packet);
        }
    }
    inputs
}

/// A good message at every length, and beginnings of what is sealed and signed, with all flags.
pub(super) fn gss_messages() -> Vec<Vec<u8>> {
    let message = gss_message::message();
    let mut inputs: Vec<Vec<u8>> = (0..=message.len()).map(|len| [&[0], &message[..len]].concat()).collect();
    for flags in 0..8 {
        for (mode, first, rest) in
            [(1, 5, [0xff, 0, 0, 0, 0]), (1, 5, [0xff, 0, 16, 0, 28]), (2, 4, [0xff; 5])]
        {
            for len in [0, 12, 60] {
                let mut input = vec![mode, first, 4, flags];
                input.extend_from_slice(&rest);
                input.resize(17 + len, 7);
                inputs.push(input);
            }
        }
    }
    inputs
}
