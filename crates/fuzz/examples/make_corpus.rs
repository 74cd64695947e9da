//! Makes `corpus/` from the captured packets of rx-proto's tests, or again after a target has changed: of each target's
//! candidates the shortest for each shape, a few dozen. Files that are already there stay (found failures, kept as a
//! warning), but for those of an earlier run of this program, which begin with `seed-`. The names of targets on the command
//! line have it make theirs alone.
#![forbid(unsafe_code)]

#[path = "make_corpus/admin_calls.rs"]
mod admin_calls;
#[path = "make_corpus/join.rs"]
mod join;
#[path = "make_corpus/rxgk.rs"]
mod rxgk;

use afar_fuzz::engine::{self, Target};
use afar_fuzz::targets::xdr::rpcs;
use afar_fuzz::targets::{CANARY, TARGETS};
use afs_volume::fuzzing;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rx_captures::conversation::{Call, Conversation, Packet, Side};
use rx_proto::packet::{HEADER_LEN, Header, PacketType};
use rx_security::keys::{EncType, Key, KeySet};
use rx_security::rxkad;
use rx_security::ticket::{self, Form};
use rx_security::{Identity, UnixTime};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Most files for a target.
const MOST: usize = 48;

/// Targets whose inputs were written by hand.
const BY_HAND: [&str; 3] = ["config_files", "file_service", "client_replies"];

/// Longest piece of a conversation, in packets and in bytes.
const PIECE_PACKETS: usize = 12;
const PIECE_BYTES: usize = 6000;

fn main() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let is_made = |name: &str| name != CANARY && !BY_HAND.contains(&name);
    for target in TARGETS.iter().filter(|target| is_made(target.name) && is_wanted(target.name)) {
        let directory = corpus.join(target.name);
        std::fs::create_dir_all(&directory).expect("the corpus can be written");
        for old in std::fs::read_dir(&directory).expect("the corpus can be listed") {
            let old = old.expect("the corpus can be listed").path();
            if old.file_name().is_some_and(|name| name.to_string_lossy().starts_with("seed-")) {
                std::fs::remove_file(old).expect("the corpus can be written");
            }
        }
        let mut chosen = choose(target, candidates(target.name));
        if target.name == "xdr" {
            // Beside these, what peers really send would be too long to be chosen.
            chosen.extend(choose(target, captured_values()));
        }
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

/// One change in the files of the cell's databases: words at every so-manyth place among the entries, and logs.
fn database_files() -> Vec<Vec<u8>> {
    let change = |first: u8, place: u32, bytes: &[u8]| {
        let [_, a, b, c] = place.to_be_bytes();
        [&[first, a, b, c, bytes.len() as u8], bytes].concat()
    };
    let words = [0, 1, 8, 140_312, 65_600 + 192 * 9, 0x8000_0000, 1002, u32::MAX];
    let mut inputs = vec![vec![0], vec![1], vec![4], vec![5]];
    for (first, bytes) in [(0, 10_300), (1, 19_500)] {
        let places = (0..bytes).step_by(28).chain((1..160).step_by(4));
        for (place, word) in places.flat_map(|place| words.map(|word| (place, word))) {
            // At an odd place the word begins behind the first byte.
            let bytes = if place % 2 == 0 {
                word.to_be_bytes().to_vec()
            } else {
                [&[0], &word.to_be_bytes()[..]].concat()
            };
            inputs.push(change(first, place, &bytes));
        }
        let log = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
        for behind in [&[101, 1, 1][..], &[102], &[104, 0, 70_000, 101, 1, 1]] {
            inputs.push(change(first | 2, 0, &log(&[&[100, 103, 0, 8, 4, 77][..], behind].concat())));
        }
    }
    inputs
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
        "rxgk_token" => return rxgk::tokens(),
        "rxgk_response" => return rxgk::responses(),
        "rxgk_packet" => return rxgk::packets(),
        "gss_message" => return rxgk::gss_messages(),
        "invitation" => return join::invitations(),
        "join_handshake" => return join::handshakes(),
        "key_file" => return key_files(),
        "volume_rows" => return rows(fuzzing::samples()),
        "cache_rows" => return rows(afs_cache::fuzzing::samples()),
        "volume_directory" => {
            let sizes = [0, 1, 10, 40, 100, 300];
            return sizes.iter().map(|&n| fuzzing::make_directory(n).expect("not full")).collect();
        }
        "volume_dump" => return dumps(),
        "database_files" => return database_files(),
        "xdr" => return numbers(),
        "directory" => return directories(),
        "acl_text" => return access_lists(),
        "admin_services" => return admin_calls::inputs(),
        other => panic!("say here what {other} starts from"),
    };
    let with_header = matches!(target, "rx_packet" | "rx_jumbo");
    let mut inputs = Vec::new();
    rx_captures::for_each_rx_datagram(|_, datagram| {
        let header = Header::parse(&datagram.payload).expect("captures hold packets");
        if wanted(header.kind) {
            inputs.push(datagram.payload[if with_header { 0 } else { HEADER_LEN }..].to_vec());
        }
    });
    inputs
}

/// Dumps of OpenAFS, whole, cut off and in pieces of some sizes, and such of which the pages are left out.
fn dumps() -> Vec<Vec<u8>> {
    let samples = [
        &include_bytes!("../../afs-dump/tests/samples/demo.dump")[..],
        include_bytes!("../../afs-dump/tests/samples/empty.dump"),
        include_bytes!("../../afs-dump/tests/samples/readonly.dump"),
    ];
    let mut inputs = Vec::new();
    for sample in samples {
        for (piece, length) in [(255, usize::MAX), (1, 300), (7, 60), (100, 1000)] {
            inputs.push([&[piece], &sample[..length.min(sample.len())]].concat());
        }
        // Its vnodes named alone, as an incremental dump does.
        let end = sample.iter().position(|&byte| byte == b'Z').expect("the volume's header ends with it") + 5;
        inputs.push(
            [
                &[9],
                &sample[..end],
                b"\x03\0\0\0\x01\0\0\0\x01\x03\0\0\0\x02\0\0\0\x02",
                &sample[sample.len() - 5..],
            ]
            .concat(),
        );
    }
    inputs
}

/// Beginnings and middles of conversations, one side's packets and both sides', as `rx_connection` reads them.
fn pieces() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for name in rx_captures::CAPTURES {
        for conversation in Conversation::all_of(&rx_captures::capture(name)) {
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

/// The key of the throw-away cell of the captures.
const KEY_FILE_EXT: &[u8] = include_bytes!("../../rx-security/tests/captures/KeyFileExt");
/// The place of the ticket, behind a RESPONSE's fixed part.
const TICKET_AT: usize = 56;

/// The tickets of the captures, and what is in them; and ours.
fn tickets() -> Vec<Vec<u8>> {
    let keys = KeySet::parse_key_file_ext(KEY_FILE_EXT).expect("asetkey wrote it");
    let mut inputs = Vec::new();
    let mut add = |mode: u8, bytes: &[u8]| inputs.push([&[mode], bytes].concat());
    rx_captures::for_each_rx_datagram(|_, datagram| {
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
    rx_captures::for_each_rx_datagram(|_, datagram| {
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

/// Rows of each kind, behind the number of the kind.
fn rows(samples: Vec<(u8, Vec<u8>)>) -> Vec<Vec<u8>> {
    samples.into_iter().map(|(kind, bytes)| [vec![kind], bytes].concat()).collect()
}

/// For XDR: each RPC's arguments and results, all zero and with counts of 1 to 3, at several lengths.
fn numbers() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for which in 0..rpcs().count() as u16 {
        for side in 0..4 {
            for words in 0..24 {
                for value in 0..4u32 {
                    let mut input = [&which.to_be_bytes()[..], &[side]].concat();
                    input.extend(std::iter::repeat_n(value.to_be_bytes(), words).flatten());
                    inputs.push(input);
                }
            }
        }
    }
    inputs
}

/// For XDR: what stock peers sent as arguments and results. The interface is guessed from the opcode: a value that is none of
/// this procedure's is as good.
fn captured_values() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for_each_call(|call| {
        let (request, reply) = (call.request.bytes(), call.reply.bytes());
        let Some((opcode, args)) = request.split_first_chunk() else { return };
        for (which, _) in rpcs().enumerate().filter(|(_, rpc)| rpc.opcode == u32::from_be_bytes(*opcode)) {
            let which = (which as u16).to_be_bytes();
            inputs.extend(
                [args, &reply[..]]
                    .iter()
                    .zip(0u8..)
                    .map(|(value, side)| [&which[..], &[side], *value].concat()),
            );
        }
    });
    inputs.retain(|input| input.len() < PIECE_BYTES && is_whole_value(input));
    inputs
}

/// Whether the input of `xdr` is arguments or results of its RPC and nothing else.
fn is_whole_value(input: &[u8]) -> bool {
    let rpc = rpcs().nth(usize::from(u16::from_be_bytes([input[0], input[1]]))).expect("made from the table");
    let decode = if input[2] == 0 { rpc.decode_args } else { rpc.decode_results };
    let mut decoder = rxgen::Decoder::new(&input[3..]);
    decode(&mut decoder).is_ok() && decoder.remaining() == 0
}

fn for_each_call(mut with: impl FnMut(&Call)) {
    for name in rx_captures::CAPTURES {
        for conversation in Conversation::all_of(&rx_captures::capture(name)) {
            conversation.calls().iter().for_each(&mut with);
        }
    }
}

/// Changes of each kind, and the directories that stock servers sent: whatever begins like one.
fn directories() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for seed in 0..20u8 {
        let changes = (0..seed.saturating_mul(9)).flat_map(|n| {
            let what = if n % 5 == 4 { 4 } else { 0 };
            [what, b'a' + n % 26, 0, n.wrapping_mul(seed)]
        });
        let mut input: Vec<u8> = [0].into_iter().chain(changes).collect();
        inputs.push(input.clone());
        input.extend([6, b'b', 0, seed, 7, 0x55, seed, 0x40]);
        inputs.push(input);
    }
    for_each_call(|call| {
        let reply = call.reply.bytes();
        let begin = reply.windows(4).take(16).position(|bytes| bytes[2..] == [0x04, 0xd2]);
        inputs.extend(
            begin.map(|at| [&[1], reply[at..].chunks_exact(2048).next().unwrap_or_default()].concat()),
        );
    });
    inputs
}

/// Lists of several lengths, and what clients sent.
fn access_lists() -> Vec<Vec<u8>> {
    let mut inputs: Vec<Vec<u8>> =
        ["", "0\n0\n\0", "1\n0\nsystem:anyuser\t9\n\0", "0\n1\n-42\t-1\n\0", "21\n0\n\0", "1\n\0", "x"]
            .map(|text| text.into())
            .to_vec();
    for entries in 0..24 {
        let text = format!("{}\n1\n{}\0", entries, "somebody.or.other\t127\n".repeat(entries + 1));
        inputs.push(text.into_bytes());
        let mut stored = [0; 192];
        (stored[3], stored[7], stored[11], stored[15], stored[19]) =
            (28, 1, entries as u8, entries as u8 / 2, 1);
        inputs.push(stored.to_vec());
    }
    for_each_call(|call| {
        let request = call.request.bytes();
        if request.starts_with(&134u32.to_be_bytes()) {
            inputs.extend(request.get(20..).map(<[u8]>::to_vec));
        }
    });
    inputs
}
