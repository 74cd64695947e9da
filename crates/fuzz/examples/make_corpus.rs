//! Makes `corpus/` from the captured packets of rx-proto's tests, or again after a target has changed: of each target's
//! candidates the shortest for each shape, a few dozen. Files that are already there stay (found failures, kept as a
//! warning), but for those of an earlier run of this program, which begin with `seed-`.
#![forbid(unsafe_code)]

#[path = "../../rx-proto/tests/support/mod.rs"]
mod support;

use afar_fuzz::engine::{self, Target};
use afar_fuzz::targets::{CANARY, TARGETS};
use afs_volume::fuzzing;
use rx_proto::packet::{HEADER_LEN, Header, PacketType};
use std::collections::HashSet;
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
        "volume_rows" => return rows(),
        "volume_directory" => {
            let sizes = [0, 1, 10, 40, 100, 300];
            return sizes.iter().map(|&n| fuzzing::make_directory(n).expect("not full")).collect();
        }
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

/// Rows of each kind, behind the number of the kind.
fn rows() -> Vec<Vec<u8>> {
    fuzzing::samples().into_iter().map(|(kind, bytes)| [vec![kind], bytes].concat()).collect()
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
