//! Edges of the protocol, as a stock server answered them: each request of a conversation with OpenAFS 1.8.9 is put to ours, and
//! the answers compared: codes, statuses, access lists, promises.

use std::collections::HashMap;

use crate::support::{ALL, Cell, READ, VOLUME};
use afs_wire::ids::{AfsFid, AfsTime, Uniquifier, ViceId, VnodeNumber};
use afs_wire::rights::Rights;
use afs_wire::rxafs::{self, AfsOpaque};
use afs_wire::status::{AfsCallBack, AfsFetchStatus, AfsVolSync};
use bytes::Bytes;
use rxgen::{Decoder, Rpc, Xdr};

const CONVERSATION: &str = include_str!("edges.txt");

/// One call of the conversation.
struct Exchange {
    opcode: u32,
    arguments: Vec<u8>,
    answer: Result<Vec<u8>, i32>,
}

/// What is compared of a reply.
#[derive(Debug, Default, PartialEq)]
struct Reply {
    fid: Option<AfsFid>,
    statuses: Vec<AfsFetchStatus>,
    callback: Option<AfsCallBack>,
    access_list: Option<AfsOpaque>,
}

/// Fids of the conversation, and what they are here.
#[derive(Default)]
struct Fids(HashMap<AfsFid, AfsFid>);

impl Fids {
    fn translate(&self, fid: AfsFid) -> AfsFid {
        self.0.get(&fid).copied().unwrap_or(fid)
    }

    /// The arguments with the fids of here: they stand at multiples of four, as everything does.
    fn translate_bytes(&self, arguments: &[u8]) -> Vec<u8> {
        let mut out = arguments.to_vec();
        for at in (0..arguments.len().saturating_sub(11)).step_by(4) {
            let fid = AfsFid::decode(&mut Decoder::new(&arguments[at..])).unwrap();
            if let Some(ours) = self.0.get(&fid) {
                out[at..at + 12].copy_from_slice(&rxgen::xdr::to_bytes(ours));
            }
        }
        out
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits = text.trim_matches('-');
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn conversation() -> Vec<Exchange> {
    let lines = CONVERSATION.lines().filter(|line| !line.starts_with('#'));
    let exchange = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[2] {
            "ok" => Ok(hex(words[3])),
            _ => Err(words[3].parse().unwrap()),
        };
        Exchange { opcode: words[0].parse().unwrap(), arguments: hex(words[1]), answer }
    };
    lines.map(exchange).collect()
}

fn decode(opcode: u32, bytes: &[u8]) -> Reply {
    fn item<T: Xdr>(decoder: &mut Decoder<'_>) -> T {
        T::decode(decoder).unwrap()
    }
    let decoder = &mut Decoder::new(bytes);
    let mut reply = Reply::default();
    match opcode {
        rxafs::CreateFile::OPCODE | rxafs::MakeDir::OPCODE => {
            reply.fid = Some(item(decoder));
            reply.statuses = vec![item(decoder), item(decoder)];
            reply.callback = Some(item(decoder));
        }
        rxafs::Symlink::OPCODE => {
            reply.fid = Some(item(decoder));
            reply.statuses = vec![item(decoder), item(decoder)];
        }
        rxafs::Link::OPCODE | rxafs::Rename::OPCODE => {
            reply.statuses = vec![item(decoder), item(decoder)];
        }
        rxafs::FetchStatus::OPCODE => {
            reply.statuses = vec![item(decoder)];
            reply.callback = Some(item(decoder));
        }
        rxafs::FetchACL::OPCODE => {
            reply.access_list = Some(item(decoder));
            reply.statuses = vec![item(decoder)];
        }
        rxafs::SetLock::OPCODE | rxafs::ExtendLock::OPCODE | rxafs::ReleaseLock::OPCODE => {}
        _ => reply.statuses = vec![item(decoder)],
    }
    let _: AfsVolSync = item(decoder);
    assert_eq!(decoder.remaining(), 0, "opcode {opcode}");
    reply
}

/// The reply without what differs by the time of day, and with the fids of here.
fn comparable(mut reply: Reply, fids: &Fids) -> Reply {
    for status in &mut reply.statuses {
        let parent = AfsFid { volume: VOLUME, vnode: status.parent_vnode, unique: status.parent_unique };
        let parent = fids.translate(parent);
        (status.parent_vnode, status.parent_unique) = (parent.vnode, parent.unique);
        (status.client_mod_time, status.server_mod_time) = (AfsTime(0), AfsTime(0));
    }
    if let Some(callback) = &mut reply.callback {
        let hours = 14_400..=14_400 + 128;
        assert!(hours.contains(&callback.expiration_seconds), "{callback:?}");
        callback.expiration_seconds = 14_400;
    }
    reply.fid = reply.fid.map(|fid| fids.translate(fid));
    reply
}

#[test]
fn ours_answers_as_a_stock_server_did() {
    let cell = Cell::new();
    cell.grant(&[
        (ViceId::SYSTEM_ADMINISTRATORS, ALL),
        (ViceId::SYSTEM_AUTHUSER, READ),
        (ViceId::SYSTEM_ANYUSER, Rights(127)),
    ]);
    let client = cell.client(2);
    cell.run(async move {
        let connection = client.connection();
        let mut fids = Fids::default();
        for (number, exchange) in conversation().into_iter().enumerate() {
            let Exchange { opcode, arguments, answer } = exchange;
            let what = format!("call {number}, opcode {opcode}, {}", arguments.escape_ascii());
            let mut call = connection.call().await.unwrap();
            let mut request = opcode.to_be_bytes().to_vec();
            request.extend(fids.translate_bytes(&arguments));
            call.send(Bytes::from(request)).await.unwrap();
            call.finish().unwrap();
            let got = call.read_to_end(100_000).await.map_err(|error| error.code().0);
            let (got, expected) = match (got, answer) {
                (Err(got), Err(expected)) => {
                    assert_eq!(got, expected, "{what}");
                    continue;
                }
                (Ok(got), Ok(expected)) => (decode(opcode, &got), decode(opcode, &expected)),
                (got, expected) => panic!("{what}: {got:?} and not {expected:?}"),
            };
            if let (Some(ours), Some(theirs)) = (got.fid, expected.fid) {
                fids.0.insert(theirs, ours);
            }
            let none = Fids::default();
            let (mut got, mut expected) = (comparable(got, &none), comparable(expected, &fids));
            if number == 0 {
                // The root directory had a history.
                got.statuses.pop();
                expected.statuses.pop();
            }
            assert_eq!(got, expected, "{what}");
        }
        assert!(fids.0.len() > 8, "{}", fids.0.len());
    });
}

#[test]
fn fids_are_found_in_arguments() {
    let theirs = AfsFid { volume: VOLUME, vnode: VnodeNumber(7), unique: Uniquifier(14) };
    let ours = AfsFid { volume: VOLUME, vnode: VnodeNumber(3), unique: Uniquifier(2) };
    let mut fids = Fids::default();
    fids.0.insert(theirs, ours);
    let arguments = |fid| [rxgen::xdr::to_bytes(&5u32), rxgen::xdr::to_bytes(&fid)].concat();
    assert_eq!(fids.translate_bytes(&arguments(theirs)), arguments(ours));
    assert_eq!(fids.translate_bytes(&[0; 8]), [0; 8]);
}
