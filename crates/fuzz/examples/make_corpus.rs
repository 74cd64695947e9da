//! Makes `corpus/` from the captured packets of rx-proto's tests, or again after a target has changed: of each target's
//! candidates the shortest for each shape, a few dozen. Files that are already there stay (found failures, kept as a
//! warning), but for those of an earlier run of this program, which begin with `seed-`.
#![forbid(unsafe_code)]

#[path = "../../rx-proto/tests/support/mod.rs"]
mod support;

use afar_fuzz::engine::{self, Target};
use afar_fuzz::targets::{CANARY, TARGETS};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_proto::packet::{HEADER_LEN, Header, PacketType};
use rx_security::keys::{EncType, Key, KeySet};
use rx_security::rxkad;
use rx_security::ticket::{self, Form};
use rx_security::{Identity, UnixTime};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use support::conversation::{Conversation, Packet, Side};

/// Most files for a target.
const MOST: usize = 48;

/// Longest piece of a conversation, in packets and in bytes.
const PIECE_PACKETS: usize = 12;
const PIECE_BYTES: usize = 6000;

fn main() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in TARGETS.iter().filter(|target| target.name != CANARY) {
        let directory = corpus.join(target.name);
        std::fs::create_dir_all(&directory).expect("the corpus can be written");
        for old in std::fs::read_dir(&directory).expect("the corpus can be listed") {
            let old = old.expect("the corpus can be listed").path();
            if old.file_name().is_some_and(|name| name.to_string_lossy().starts_with("seed-")) {
                std::fs::remove_file(old).expect("the corpus can be written");
            }
        }
        let chosen = choose(target, candidates(target.name));
        println!(
            "{}: {} files, {} bytes",
            target.name,
            chosen.len(),
            chosen.iter().map(Vec::len).sum::<usize>()
        );
        for (n, input) in chosen.iter().enumerate() {
            std::fs::write(directory.join(format!("seed-{n:02}")), input).expect("the corpus can be written");
        }
    }
}

/// The shortest of each shape; when there are too many, every so-manyth.
fn choose(target: &Target, mut inputs: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    inputs.sort_by_key(Vec::len);
    let mut seen = HashSet::new();
    inputs.retain(|input| match engine::check(target, input) {
        Ok(cost) => seen.insert(cost.feature),
        Err(failure) => panic!("{}: {failure}: {input:02x?}", target.name),
    });
    let step = inputs.len().div_ceil(MOST).max(1);
    inputs.into_iter().step_by(step).collect()
}

fn candidates(target: &str) -> Vec<Vec<u8>> {
    let wanted: fn(PacketType) -> bool = match target {
        "rx_packet" => |_| true,
        "rx_ack" => |kind| kind == PacketType::ACK,
        "rx_jumbo" => |kind| kind == PacketType::DATA,
        "rx_debug" => |kind| kind == PacketType::DEBUG || kind == PacketType::VERSION,
        "rx_connection" => return pieces(),
        "rxkad_ticket" => return tickets(),
        "rxkad_packet" => return rxkad_packets(),
        "key_file" => return key_files(),
        "xdr" => return numbers(),
        other => panic!("say here what {other} starts from"),
    };
    let with_header = matches!(target, "rx_packet" | "rx_jumbo");
    let mut inputs = Vec::new();
    support::for_each_rx_datagram(|_, datagram| {
        let header = Header::parse(&datagram.payload).expect("captures hold packets");
        if wanted(header.kind) {
            inputs.push(datagram.payload[if with_header { 0 } else { HEADER_LEN }..].to_vec());
        }
    });
    inputs
}

/// Beginnings and middles of conversations, one side's packets and both sides', as `rx_connection` reads them.
fn pieces() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for name in support::CAPTURES {
        for conversation in Conversation::all_of(&support::capture(name)) {
            for side in [Side::Client, Side::Server] {
                let sent: Vec<&Packet> = conversation.sent_by(side).collect();
                for (n, packets) in sent.chunks(PIECE_PACKETS).take(4).enumerate() {
                    inputs.push(script(packets, n as u8 & 7));
                }
            }
        }
    }
    inputs
}

fn script(packets: &[&Packet], modes: u8) -> Vec<u8> {
    let (mut script, mut before) = (vec![modes], packets[0].at);
    for packet in packets {
        if script.len() + packet.datagram.len() > PIECE_BYTES {
            break;
        }
        let units = packet.at.since(before).as_micros() / 50;
        let wait = (u128::BITS - units.leading_zeros()).min(15) as u8;
        before = packet.at;
        script.push(wait);
        script.extend_from_slice(&(packet.datagram.len() as u16).to_be_bytes());
        script.extend_from_slice(&packet.datagram);
    }
    script
}

/// Of the throw-away cell of the captures.
const KEY_FILE_EXT: &[u8] = include_bytes!("../../rx-security/tests/captures/KeyFileExt");
/// Behind a RESPONSE's fixed part its ticket begins.
const TICKET_AT: usize = 56;

/// The tickets of the captures, and what is in them; and ours.
fn tickets() -> Vec<Vec<u8>> {
    let keys = KeySet::parse_key_file_ext(KEY_FILE_EXT).expect("asetkey wrote it");
    let mut inputs = Vec::new();
    let mut add = |mode: u8, bytes: &[u8]| inputs.push([&[mode], bytes].concat());
    support::for_each_rx_datagram(|_, datagram| {
        let header = Header::parse(&datagram.payload).expect("captures hold packets");
        let body = &datagram.payload[HEADER_LEN..];
        if header.kind == PacketType::RESPONSE && header.security == rxkad::INDEX && body.len() > TICKET_AT {
            let kvno = i32::from_be_bytes(body[48..52].try_into().expect("four bytes"));
            let ticket = &body[TICKET_AT..];
            add(u8::from(kvno == ticket::KVNO_TICKET), ticket);
            if let Ok((_, content)) = ticket::decrypt(&keys, kvno, ticket) {
                add(4, &content);
            }
        }
    });
    let mut rng = StdRng::seed_from_u64(1);
    let des = KeySet::of([Key::rxkad(2, [7; 8])]).expect("a good key");
    let known = KeySet::of([Key::rxkad_krb5(2, EncType::AES256, &[7; 32])]).expect("a good key");
    for (mode, keys) in [(0, &known), (2, &des)] {
        for who in ["afs", "user1", "user1.admin", "someone@else.where"] {
            let who = Identity::parse(who).expect("a name");
            let times = (UnixTime(1_794_990_000), UnixTime(1_795_100_000));
            let token = ticket::for_user(keys, &who, "lab.test", times, &mut rng).expect("a good key");
            add(mode, &token.ticket);
            let (form, content) = ticket::decrypt(keys, token.kvno, &token.ticket).expect("the same key");
            add(if form == Form::V4 { 3 } else { 4 }, &content);
        }
    }
    inputs
}

/// Responses with the connection and the challenge that they are for, challenges, and data.
fn rxkad_packets() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    let mut nonces = HashMap::new();
    support::for_each_rx_datagram(|_, datagram| {
        let header = Header::parse(&datagram.payload).expect("captures hold packets");
        let (name, body) = (&datagram.payload[..8], &datagram.payload[HEADER_LEN..]);
        if header.security != rxkad::INDEX {
            return;
        }
        match header.kind {
            PacketType::CHALLENGE => {
                nonces.insert(name.to_vec(), body[4..8].to_vec());
                inputs.push([&[1], body].concat());
            }
            PacketType::RESPONSE => {
                let nonce = nonces.get(name).cloned().unwrap_or_default();
                inputs.push([&[0], name, &nonce, body].concat());
            }
            PacketType::DATA => inputs.extend((2..5).map(|mode| [&[mode], &datagram.payload[..]].concat())),
            _ => {}
        }
    });
    inputs
}

/// A file of each kind, cut at many places.
fn key_files() -> Vec<Vec<u8>> {
    let des = KeySet::of([Key::rxkad(3, [7; 8]), Key::rxkad(4, [8; 8])]).expect("good keys");
    let key_file = des.to_key_file().expect("two keys fit");
    let mut keytab = vec![5, 2, 0, 0, 0, 69, 0, 2, 0, 8];
    keytab.extend_from_slice(b"LAB.TEST\0\x03afs\0\x08lab.test\0\0\0\0\0\0\0\0\x02\0\x12\0\x20");
    keytab.extend_from_slice(&[7; 32]);
    let len = keytab.len() as u8 - 6;
    keytab[5] = len;
    let mut inputs = Vec::new();
    for (mode, file) in [(0, KEY_FILE_EXT), (1, &key_file[..]), (2, &keytab)] {
        inputs.extend((0..=file.len()).map(|len| [&[mode], &file[..len]].concat()));
    }
    inputs
}

/// For XDR: each RPC's arguments and results, all zero and with counts of 1 to 3, at several lengths.
fn numbers() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for which in 0..64 {
        for side in 0..2 {
            for words in 0..24 {
                for value in 0..4u32 {
                    let mut input = vec![which, side];
                    input.extend(std::iter::repeat_n(value.to_be_bytes(), words).flatten());
                    inputs.push(input);
                }
            }
        }
    }
    inputs
}
