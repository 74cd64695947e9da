//! A capture in a dozen lines of text: packets by type, flags, ACK reasons, windows, table lengths, calls. For the
//! comparison with `captures/summary.txt`, so that a change in how we read packets shows as a change of text.

use crate::conversation::{Call, Conversation};
use crate::pcap::Capture;
use rx_proto::ack::Ack;
use rx_proto::packet::{Flags, HEADER_LEN, Header, PacketType};
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

/// Counts of things, in the things' order.
struct Tally<K>(BTreeMap<K, usize>);

impl<K: Ord> Tally<K> {
    const fn new() -> Self {
        Self(BTreeMap::new())
    }

    fn count(&mut self, what: K) {
        *self.0.entry(what).or_default() += 1;
    }
}

impl<K: Display> Display for Tally<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, (what, count)) in self.0.iter().enumerate() {
            let separator = if n == 0 { "" } else { ", " };
            write!(f, "{separator}{what} x{count}")?;
        }
        Ok(())
    }
}

/// The summary of one capture, which ends with an empty line.
pub fn summary(name: &str, capture: &Capture) -> String {
    let (mut types, mut reasons, mut subpackets) = (Tally::new(), Tally::new(), Tally::new());
    let (mut tables, mut windows) = (Tally::new(), BTreeMap::new());
    let (mut datagrams, mut fragmented, mut largest) = (0, 0, 0);
    for datagram in capture.rx() {
        datagrams += 1;
        fragmented += usize::from(datagram.fragments > 1);
        largest = largest.max(datagram.payload.len());
        let header = Header::parse(&datagram.payload).expect("each datagram of a capture has a header");
        types.count(format!("{:?}/{:02x}", header.kind, header.flags.0));
        if header.kind == PacketType::ACK {
            let striped = header.flags.contains(Flags::EXTENDED_SACK);
            let ack = Ack::parse(&datagram.payload[HEADER_LEN..], striped).expect("each ACK is well-formed");
            reasons.count(format!("{:?}", ack.reason));
            tables.count(ack.table.len());
            let words = [ack.trailer.max_packet_len, ack.trailer.natural_packet_len, ack.trailer.max_jumbo];
            let [max, natural, jumbo] = words.map(|w| w.map_or("-".into(), |w| w.to_string()));
            windows
                .entry((datagram.from.ip(), format!("maxMTU {max}, ifMTU {natural}, jumbo {jumbo}")))
                .or_insert_with(Tally::new)
                .count(ack.trailer.window.unwrap_or(0));
        }
    }
    let conversations = Conversation::all_of(capture);
    let calls: Vec<Call> = conversations.iter().flat_map(Conversation::calls).collect();
    for packet in conversations.iter().flat_map(|c| &c.packets) {
        match packet.data().count() {
            0 | 1 => {}
            several => subpackets.count(several),
        }
    }
    let streams = || calls.iter().flat_map(|c| [&c.request, &c.reply]);
    let aborted = calls.iter().filter(|c| c.aborted.is_some()).count();
    let retransmissions: usize = streams().map(|s| s.retransmissions).sum();
    let bytes: usize = streams().map(|s| s.bytes().len()).sum();

    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        if !value.is_empty() {
            writeln!(text, "  {label:9} {value}").expect("a string takes all");
        }
    };
    line("datagrams", format!("{datagrams}, {fragmented} of them fragmented, up to {largest} bytes"));
    line("types", types.to_string());
    line("reasons", reasons.to_string());
    line("tables", tables.to_string());
    for ((from, sizes), seen) in windows {
        line("windows", format!("from {from} ({sizes}): {seen}"));
    }
    line("jumbo", subpackets.to_string());
    line("calls", format!("{} on {} connections, {aborted} aborted", calls.len(), conversations.len()));
    line("streams", format!("{bytes} bytes, {retransmissions} packets sent again"));
    format!("{name}\n{text}\n")
}
