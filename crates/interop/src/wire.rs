//! Judges what our side has sent to a stock peer, from a record of both directions: the rules of Rx notes 7, 8, 9 and 17
//! that no stock peer may see broken. Reads ACKs byte by byte, not with the code under test.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use rx_proto::ids::{Epoch, Serial};
use rx_proto::jumbo::Subpackets;
use rx_proto::packet::{BASE_PACKET_LEN, Flags, HEADER_LEN, Header, PacketType};

use crate::proxy::{Datagram, Way};

/// The packets that a sender may have in flight before it has heard of a window (Rx notes 9).
const FIRST_WINDOW: u32 = 16;

const REASON_PING: u8 = 6;
const REASON_PING_RESPONSE: u8 = 7;

/// The amount of each that was seen, to show that a record has something to judge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    /// DATA packets from us.
    pub data: usize,
    /// The packets among those that were sent again.
    pub resent: usize,
    /// ACKs from us.
    pub acks: usize,
    /// The ACKs among those that have a table with a hole.
    pub with_holes: usize,
    /// Pings from the peer that we have answered.
    pub pings_answered: usize,
    /// Aborts from us.
    pub aborts: usize,
}

/// An ACK as its bytes say.
struct RawAck<'a> {
    first: u32,
    serial: u32,
    reason: u8,
    table: &'a [u8],
    trailer: [u32; 4],
    announces: bool,
}

/// A call, as the record knows it.
#[derive(Default)]
struct CallFacts {
    /// DATA that we have been given.
    arrived: BTreeSet<u32>,
    /// DATA that we have sent.
    sent: BTreeMap<u32, usize>,
    /// The packets that we have acknowledged, and the first packet that the peer must still remember.
    acked: BTreeSet<u32>,
    first: u32,
    ack_serial: u32,
    /// The first packet that the peer's window does not take.
    window_end: u32,
}

/// Checks a record in which our side is the one that sends along `ours`.
///
/// # Errors
///
/// All rules that were broken, a line each.
pub fn judge(record: &[Datagram], ours: Way) -> Result<Seen, String> {
    let mut judge = Judge { ours, unseen_from: first_unseen(record, ours), ..Judge::default() };
    for datagram in record {
        judge.take(datagram);
    }
    // An answer may be among what did not come to the proxy.
    judge.pings.retain(|(epoch, connection, _), _| !judge.unseen_from.contains_key(&(*epoch, *connection)));
    if !judge.pings.is_empty() {
        judge.faults.push(format!("pings of the peer were not answered: {:?}", judge.pings));
    }
    if judge.faults.is_empty() {
        return Ok(judge.seen);
    }
    let count = judge.faults.len();
    judge.faults.truncate(8);
    Err(format!("{count} faults in what we sent: {}", judge.faults.join("; ")))
}

/// The first serial of ours that is missing in the record, by epoch and connection: lost before it came to the proxy.
fn first_unseen(record: &[Datagram], ours: Way) -> HashMap<(u32, u32), u32> {
    let mut serials: HashMap<(u32, u32), BTreeSet<u32>> = HashMap::new();
    for datagram in record.iter().filter(|datagram| datagram.way == ours) {
        if let Ok(header) = Header::parse(&datagram.bytes)
            && header.serial != Serial::NONE
        {
            serials.entry((header.epoch.0, header.connection.0)).or_default().insert(header.serial.0);
        }
    }
    let gap = |serials: BTreeSet<u32>| {
        let last = serials.last().copied()?;
        serials.iter().map(|serial| serial + 1).find(|next| *next < last && !serials.contains(next))
    };
    serials.into_iter().filter_map(|(key, serials)| Some((key, gap(serials)?))).collect()
}

struct Judge {
    ours: Way,
    unseen_from: HashMap<(u32, u32), u32>,
    calls: HashMap<(u32, u32, u32), CallFacts>,
    serials: HashMap<(u32, u32), HashSet<u32>>,
    /// Pings given to us and not answered, by epoch, connection and serial.
    pings: BTreeMap<(u32, u32, u32), String>,
    /// The window that the peer offered last: a new call begins with it (docs/rx-extensions.md).
    offered: u32,
    /// The time when the datagram under judgement came.
    at: Duration,
    seen: Seen,
    faults: Vec<String>,
}

impl Default for Judge {
    fn default() -> Self {
        Self {
            ours: Way::ToServer,
            unseen_from: HashMap::new(),
            calls: HashMap::new(),
            serials: HashMap::new(),
            pings: BTreeMap::new(),
            offered: 0,
            at: Duration::ZERO,
            seen: Seen::default(),
            faults: Vec::new(),
        }
    }
}

impl Judge {
    fn take(&mut self, datagram: &Datagram) {
        self.at = datagram.at;
        let is_ours = datagram.way == self.ours;
        if !is_ours && !datagram.delivered {
            return;
        }
        let Ok(header) = Header::parse(&datagram.bytes) else {
            if is_ours {
                self.faults.push(format!("a datagram of {} bytes is no packet", datagram.bytes.len()));
            }
            return;
        };
        let first_window = self.offered.max(FIRST_WINDOW);
        let call = self.call(&header);
        if call.window_end == 0 {
            call.window_end = 1 + first_window;
        }
        if is_ours {
            self.take_ours(&header, &datagram.bytes);
        } else {
            self.take_theirs(&header, &datagram.bytes);
        }
    }

    fn call(&mut self, header: &Header) -> &mut CallFacts {
        let cid = header.connection.with_channel(header.channel);
        self.calls.entry((header.epoch.0, cid, header.call.0)).or_default()
    }

    fn fault(&mut self, header: &Header, what: impl std::fmt::Display) {
        let Header { kind, call, seq, serial, flags, .. } = header;
        self.faults.push(format!("{kind:?} {call:?} {seq:?} {serial:?} flags {flags:?}: {what}"));
    }

    fn take_theirs(&mut self, header: &Header, bytes: &[u8]) {
        match header.kind {
            PacketType::DATA => {
                let payload = Bytes::copy_from_slice(&bytes[HEADER_LEN..]);
                let seqs: Vec<u32> =
                    Subpackets::new(*header, payload).map(|(header, _)| header.seq.0).collect();
                self.call(header).arrived.extend(seqs);
            }
            PacketType::ACK => {
                let Some(ack) = RawAck::parse(&bytes[HEADER_LEN..]) else { return };
                self.offered = ack.trailer[2];
                let call = self.call(header);
                call.window_end = call.window_end.max(ack.first.saturating_add(ack.trailer[2]));
                if ack.reason == REASON_PING {
                    let name = (header.epoch.0, header.connection.0, header.serial.0);
                    self.pings.insert(name, format!("{header:?} at {:?}", self.at));
                }
            }
            _ => {}
        }
    }

    fn take_ours(&mut self, header: &Header, bytes: &[u8]) {
        if bytes.len() > BASE_PACKET_LEN {
            self.fault(header, format_args!("{} bytes are more than 1444", bytes.len()));
        }
        if header.is_from_client() != (self.ours == Way::ToServer) {
            self.fault(header, "the wrong direction");
        }
        let serials = self.serials.entry((header.epoch.0, header.connection.0)).or_default();
        let is_new = serials.insert(header.serial.0);
        if header.serial == Serial::NONE || !is_new {
            // An ABORT for what we know nothing of is of no connection.
            if header.kind != PacketType::ABORT {
                self.fault(header, "the serial is 0 or was used before");
            }
        }
        if !Epoch::from_random(header.epoch.0).ignores_address() {
            self.fault(header, "the epoch lacks its top bit");
        }
        match header.kind {
            PacketType::DATA => self.take_our_data(header),
            PacketType::ACK => match RawAck::parse(&bytes[HEADER_LEN..]) {
                Some(ack) => self.take_our_ack(header, &ack),
                None => self.fault(header, "an ACK without its four words"),
            },
            PacketType::ABORT => {
                self.seen.aborts += 1;
                if bytes.len() != HEADER_LEN + 4 {
                    self.fault(header, "an ABORT without a code, or with more");
                }
            }
            PacketType::BUSY => {}
            _ => self.fault(header, "nobody has asked for it"),
        }
    }

    fn take_our_data(&mut self, header: &Header) {
        self.seen.data += 1;
        let is_reply = self.ours == Way::ToClient;
        let unseen = self.unseen_from.get(&(header.epoch.0, header.connection.0));
        let is_whole = unseen.is_none_or(|unseen| header.serial.0 < *unseen);
        let call = self.call(header);
        let count = call.sent.entry(header.seq.0).or_default();
        *count += 1;
        let (is_first, window_end) = (*count == 1, call.window_end);
        self.seen.resent += usize::from(!is_first);
        if header.flags.contains(Flags::JUMBO) {
            self.fault(header, "a jumbogram");
        }
        if is_reply
            && is_first
            && is_whole
            && header.flags.contains(Flags::LAST_PACKET.with(Flags::REQUEST_ACK))
        {
            self.fault(header, "the last packet of a reply asks for an ACK");
        }
        if header.seq.0 == 0 || header.seq.0 >= window_end {
            self.fault(header, format_args!("the peer takes packets below {window_end}"));
        }
    }

    fn take_our_ack(&mut self, header: &Header, ack: &RawAck<'_>) {
        self.seen.acks += 1;
        let mut faults = Vec::new();
        let call = self.call(header);
        if ack.table.iter().any(|octet| *octet > 1) {
            faults.push("an octet of the table is neither 0 nor 1".to_owned());
        }
        let highest = call.arrived.last().copied().unwrap_or(0);
        let end = ack.first.saturating_add(ack.table.len() as u32);
        if end > highest + 1 {
            faults.push(format!("its table ends with {}, but {highest} is the last that came", end - 1));
        }
        let said: BTreeSet<u32> =
            (ack.first..end).zip(ack.table).filter(|(_, o)| **o == 1).map(|(seq, _)| seq).collect();
        if let Some(seq) =
            said.iter().chain(&(1..ack.first).collect::<Vec<_>>()).find(|seq| !call.arrived.contains(seq))
        {
            faults.push(format!("it acknowledges {seq}, which has not come"));
        }
        // In the order of their serials, as the network may have turned them round.
        if header.serial.0 > call.ack_serial {
            call.ack_serial = header.serial.0;
            if ack.first < call.first {
                faults.push(format!("its first packet is {}, and was {}", ack.first, call.first));
            }
            if let Some(seq) = call.acked.range(ack.first..).find(|seq| !said.contains(seq)) {
                faults.push(format!("it takes back {seq}"));
            }
            call.first = call.first.max(ack.first);
            call.acked = said;
        }
        let has_hole = ack.table.contains(&0);
        let [max_packet, natural, window, jumbo] = ack.trailer;
        if window == 0 {
            faults.push("its window is 0".to_owned());
        }
        if max_packet < BASE_PACKET_LEN as u32 || natural < BASE_PACKET_LEN as u32 || jumbo > 1 {
            faults.push(format!("it asks for packets of {max_packet} and {natural} bytes, {jumbo} at once"));
        }
        if !ack.announces {
            faults.push("it lacks the announcement".to_owned());
        }
        if header.seq.0 != 0 || header.flags.contains(Flags::EXTENDED_SACK) {
            faults.push("a sequence number, or an unknown flag".to_owned());
        }
        if ack.reason == 0 || ack.reason > 9 {
            faults.push(format!("its reason is {}", ack.reason));
        }
        self.seen.with_holes += usize::from(has_hole);
        if ack.reason == REASON_PING_RESPONSE
            && self.pings.remove(&(header.epoch.0, header.connection.0, ack.serial)).is_some()
        {
            self.seen.pings_answered += 1;
        }
        faults.into_iter().for_each(|what| self.fault(header, what));
    }
}

impl<'a> RawAck<'a> {
    /// The layout is Rx notes 7; `None` if it is cut short.
    fn parse(body: &'a [u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?));
        let count = usize::from(*body.get(17)?);
        let table = body.get(18..18 + count)?;
        let trailer = 18 + count + 3;
        Some(Self {
            first: word(4)?,
            serial: word(12)?,
            reason: body[16],
            table,
            trailer: [word(trailer)?, word(trailer + 4)?, word(trailer + 8)?, word(trailer + 12)?],
            announces: word(trailer + 16).is_some_and(|word| word >> 8 == 0x61_6672),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const REPLY_LAST: u8 = 0x04;

    fn packet(kind: u8, flags: u8, seq: u8, serial: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x80, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, seq, 0, 0, 0, serial];
        bytes.extend([kind, flags, 0, 0, 0, 0, 0, 1]);
        bytes.extend(body);
        bytes
    }

    /// An ACK of ours, or of the peer, as `flags` say.
    fn ack(flags: u8, serial: u8, first: u8, reason: u8, table: &[u8], window: u8) -> Vec<u8> {
        let mut body = vec![0, 0, 0, 0, 0, 0, 0, first, 0, 0, 0, 0, 0, 0, 0, 0, reason, table.len() as u8];
        body.extend(table);
        body.extend([0, 0, 0]);
        body.extend([0, 0, 5, 0xa4, 0, 0, 5, 0xa4, 0, 0, 0, window, 0, 0, 0, 1]);
        body.extend(*b"afr\x01");
        packet(2, flags, 0, serial, &body)
    }

    /// We are the server.
    fn faults(record: &[(Way, Vec<u8>)]) -> String {
        let datagram = |(way, bytes): &(Way, Vec<u8>)| Datagram {
            client: (Ipv4Addr::LOCALHOST, 1).into(),
            at: Duration::ZERO,
            way: *way,
            delivered: true,
            bytes: bytes.clone(),
        };
        let record: Vec<Datagram> = record.iter().map(datagram).collect();
        judge(&record, Way::ToClient).err().unwrap_or_default()
    }

    #[test]
    fn good_manners_are_no_fault() {
        let record = [
            (Way::ToServer, packet(1, 1, 1, 1, b"request")),
            (Way::ToServer, packet(1, 5, 3, 2, b"")),
            (Way::ToClient, ack(0x20, 1, 2, 3, &[0, 1], 255)),
            (Way::ToServer, ack(0x23, 3, 1, 6, &[], 16)),
            (Way::ToClient, packet(1, REPLY_LAST, 1, 2, b"reply")),
        ];
        assert_eq!(faults(&record[..3]), "");
        assert!(faults(&record).contains("pings of the peer were not answered"));
    }

    #[test]
    fn each_broken_rule_is_named() {
        let request = (Way::ToServer, packet(1, 5, 1, 1, b"request"));
        let cases = [
            (ack(0x20, 1, 1, 3, &[2], 255), "neither 0 nor 1"),
            (ack(0x20, 1, 2, 3, &[0], 255), "1 is the last that came"),
            (ack(0x20, 1, 3, 3, &[], 255), "acknowledges 2, which has not come"),
            (ack(0x20, 1, 2, 3, &[], 0), "window is 0"),
            (ack(0x20, 0, 2, 3, &[], 9), "serial is 0"),
            (ack(0x21, 1, 2, 3, &[], 9), "wrong direction"),
            (packet(1, 0, 1, 1, &[0; 1417]), "more than 1444"),
            (packet(1, REPLY_LAST | 2, 1, 1, b""), "last packet of a reply asks for an ACK"),
            (packet(1, 0x20, 1, 1, b""), "jumbogram"),
            (packet(1, 0, 17, 1, b""), "takes packets below 17"),
            (packet(4, 0, 0, 1, b""), "ABORT without a code"),
            (packet(8, 0, 0, 1, b""), "nobody has asked"),
        ];
        for (bytes, expected) in cases {
            let said = faults(&[request.clone(), (Way::ToClient, bytes)]);
            assert!(said.contains(expected), "{expected}: {said}");
        }
        let again = (Way::ToClient, packet(1, 0, 1, 1, b""));
        assert!(faults(&[request, again.clone(), again]).contains("used before"));
    }
}
