//! Captured packets of stock peers, fed into an endpoint that plays the other side: it must put together the same streams,
//! hear of the same aborts, and acknowledge by the rules. What it sends goes nowhere; the captured side acts as it did.

use bytes::Bytes;
use rx_captures::capture;
use rx_captures::conversation::{Call, Conversation, Packet, Side};
use rx_proto::CallError;
use rx_proto::ack::{Ack, AckFields, AckReason};
use rx_proto::config::{CallLimits, Config};
use rx_proto::endpoint::{CallHandle, Endpoint, Event, Read, Service};
use rx_proto::ids::{CallNumber, Channel, SecurityIndex, Seq, Serial};
use rx_proto::packet::{Flags, HEADER_LEN, Header, PacketType};
use rx_proto::security::Null;
use rx_proto::time::Instant;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Captures with connections without security.
const CAPTURES: [&str; 7] = [
    "01-kafs-6.12-anon",
    "02-kafs-6.1-anon",
    "03-oafs-6.1-anon",
    "04-afsd-fuse",
    "09-wan-recv",
    "09-wan-send",
    "10-odd-acks",
];

type Name = (Channel, CallNumber);

/// What the endpoint was given, to judge its ACKs by.
#[derive(Default)]
struct Fed {
    seqs: HashMap<Name, BTreeSet<u32>>,
    serials: BTreeSet<Serial>,
}

impl Fed {
    fn note(&mut self, packet: &Packet) {
        self.serials.insert(packet.header.serial);
        for (header, _) in packet.data() {
            self.serials.insert(header.serial);
            self.seqs.entry((header.channel, header.call)).or_default().insert(header.seq.0);
        }
    }

    /// Rx notes 7: nothing is acknowledged that did not come, nothing in the table contradicts what did.
    fn check(&self, header: &Header, body: &[u8], context: &str) {
        let ack = Ack::parse(body, header.flags.contains(Flags::EXTENDED_SACK)).expect("our own ACK parses");
        let none = BTreeSet::new();
        let seqs = self.seqs.get(&(header.channel, header.call)).unwrap_or(&none);
        let next = (1..).find(|seq| !seqs.contains(seq)).unwrap_or(1);
        assert!((1..=next).contains(&ack.first.0), "{context}: first {:?}, next {next}", ack.first);
        for offset in 0..ack.table.len() {
            let came = seqs.contains(&(ack.first.0 + offset));
            assert_eq!(ack.table.is_received(offset), Some(came), "{context}: entry {offset} of {ack:?}");
        }
        assert!((1..=9).contains(&ack.reason.0), "{context}: {ack:?}");
        assert!(ack.serial == Serial::NONE || self.serials.contains(&ack.serial), "{context}: {ack:?}");
        assert!(ack.trailer.window.is_some_and(|w| w >= 1), "{context}: {ack:?}");
        assert!(!header.flags.contains(Flags::EXTENDED_SACK) || header.kind != PacketType::ACK);
    }
}

#[derive(Default)]
struct Replay {
    fed: Fed,
    acks: usize,
    /// What was read of each call, and its end.
    streams: BTreeMap<Name, (Vec<u8>, bool)>,
    errors: BTreeMap<Name, CallError>,
    /// The first ping that was sent.
    ping: Option<Header>,
}

fn name(call: CallHandle) -> Name {
    (call.channel(), call.number())
}

impl Replay {
    fn send(&mut self, endpoint: &mut Endpoint, now: Instant, context: &str) {
        let mut out = Vec::new();
        while let Some(t) = endpoint.poll_transmit(now, &mut out) {
            for packet in out.chunks(t.segment_len) {
                let header = Header::parse(packet).unwrap();
                if header.kind == PacketType::ACK {
                    self.acks += 1;
                    self.fed.check(&header, &packet[HEADER_LEN..], context);
                    if packet[HEADER_LEN + 16] == AckReason::PING.0 {
                        self.ping.get_or_insert(header);
                    }
                }
            }
        }
    }

    fn read(&mut self, endpoint: &mut Endpoint, now: Instant, call: CallHandle) {
        let stream = self.streams.entry(name(call)).or_default();
        loop {
            match endpoint.read(now, call) {
                Ok(Read::Data(bytes)) => stream.0.extend_from_slice(&bytes),
                Ok(Read::End) => {
                    stream.1 = true;
                    return;
                }
                Ok(Read::Blocked) => return,
                Err(error) => {
                    self.errors.entry(name(call)).or_insert(error);
                    return;
                }
            }
        }
    }
}

/// Lets time pass up to the packet, and gives it to the endpoint.
fn feed(
    endpoint: &mut Endpoint,
    replay: &mut Replay,
    packet: &Packet,
    offset: Duration,
    context: &str,
) -> Instant {
    let at = packet.at + offset;
    while let Some(due) = endpoint.poll_timeout().filter(|&due| due < at) {
        endpoint.handle_timeout(due);
        replay.send(endpoint, due, context);
    }
    replay.fed.note(packet);
    endpoint.handle_datagram(at, packet.from, packet.datagram.clone());
    at
}

fn context(capture: &str, packet: &Packet) -> String {
    format!("{capture} frame {}", packet.frame)
}

/// The captured client calls our server, which answers as the captured one did.
fn replay_client(capture: &str, conversation: &Conversation) -> Replay {
    let mut endpoint = Endpoint::new(Config::default(), [1; 32]);
    endpoint.add_service(Service {
        id: conversation.service,
        security: vec![Arc::new(Null)],
        check_reach: true,
        upgrades_to: None,
        limits: CallLimits::default(),
    });
    let replies: HashMap<Name, Bytes> =
        conversation.calls().iter().map(|c| ((c.channel, c.number), c.reply.bytes().into())).collect();
    let mut replay = Replay::default();
    let mut open: Vec<CallHandle> = Vec::new();
    let mut is_reachable = false;
    let offset = Duration::from_secs(1);
    for packet in conversation.sent_by(Side::Client) {
        let context = context(capture, packet);
        let now = feed(&mut endpoint, &mut replay, packet, offset, &context);
        serve(&mut endpoint, &mut replay, now, &mut open, &replies);
        replay.send(&mut endpoint, now, &context);
        // The one thing that the captured client cannot do: answer our ping, which has a serial of ours.
        if let Some(ping) = replay.ping.filter(|_| !is_reachable) {
            is_reachable = true;
            endpoint.handle_datagram(now, conversation.client, ping_response(&ping));
            serve(&mut endpoint, &mut replay, now, &mut open, &replies);
            replay.send(&mut endpoint, now, &context);
        }
    }
    replay
}

/// The application of a server: reads each request to its end, and answers as the captured server did.
fn serve(
    endpoint: &mut Endpoint,
    replay: &mut Replay,
    now: Instant,
    open: &mut Vec<CallHandle>,
    replies: &HashMap<Name, Bytes>,
) {
    while let Some(event) = endpoint.poll_event() {
        match event {
            Event::Incoming(call) => open.push(call),
            Event::Closed(call, error) => {
                open.retain(|c| *c != call);
                if let Some(error) = error {
                    replay.errors.insert(name(call), error);
                }
                endpoint.release(now, call);
            }
            _ => {}
        }
    }
    for call in open.clone() {
        if replay.streams.get(&name(call)).is_some_and(|s| s.1) {
            continue;
        }
        replay.read(endpoint, now, call);
        if replay.streams[&name(call)].1 {
            let reply = replies.get(&name(call)).cloned().unwrap_or_default();
            endpoint.write(now, call, reply).unwrap();
            endpoint.finish(now, call).unwrap();
        }
    }
}

fn ping_response(ping: &Header) -> Bytes {
    let header = Header { flags: Flags::CLIENT_INITIATED, ..*ping };
    let fields = AckFields {
        first: Seq::FIRST,
        previous: Seq(0),
        serial: ping.serial,
        reason: AckReason::PING_RESPONSE,
        window: 32,
        max_packet_len: 1444,
        natural_packet_len: 1444,
    };
    let mut packet = header.to_bytes().to_vec();
    fields.encode(std::iter::empty(), false, &mut packet);
    packet.into()
}

/// Our client calls, under the captured one's names and when it did, and the captured server answers. `None` if our client
/// would have used other channels, or the beginning of the conversation is missing.
fn replay_server(capture: &str, conversation: &Conversation) -> Option<Replay> {
    let offset = Duration::from_secs(1);
    let mut endpoint = Endpoint::new(Config::default(), [1; 32]);
    let start = Instant::ORIGIN + offset;
    let names = (conversation.epoch, conversation.connection);
    let connection =
        endpoint.connect_as(start, conversation.server, conversation.service, Box::new(Null), names)?;
    assert!(
        endpoint
            .connect_as(start, conversation.server, conversation.service, Box::new(Null), names)
            .is_none(),
        "a name is given once"
    );
    let mut requests: HashMap<Name, Call> =
        conversation.calls().into_iter().map(|c| ((c.channel, c.number), c)).collect();
    let mut replay = Replay::default();
    let mut open: Vec<CallHandle> = Vec::new();
    for packet in &conversation.packets {
        let context = context(capture, packet);
        let called = (packet.header.channel, packet.header.call);
        let now = if packet.sender == Side::Server {
            feed(&mut endpoint, &mut replay, packet, offset, &context)
        } else if packet.header.kind == PacketType::DATA && requests.contains_key(&called) {
            let now = packet.at + offset;
            let call = endpoint.open(now, connection).ok()??;
            if name(call) != called {
                return None;
            }
            let request = requests.remove(&called)?;
            endpoint.write(now, call, request.request.bytes().into()).unwrap();
            endpoint.finish(now, call).unwrap();
            open.push(call);
            now
        } else {
            continue;
        };
        while endpoint.poll_event().is_some() {}
        open.retain(|&call| {
            replay.read(&mut endpoint, now, call);
            let goes_on = !replay.streams[&name(call)].1 && !replay.errors.contains_key(&name(call));
            if !goes_on {
                endpoint.release(now, call);
            }
            goes_on
        });
        replay.send(&mut endpoint, now, &context);
    }
    Some(replay)
}

fn without_security(name: &str) -> Vec<Conversation> {
    let conversations = Conversation::all_of(&capture(name));
    conversations.into_iter().filter(|c| c.security == SecurityIndex(0)).collect()
}

#[test]
fn requests_of_stock_clients_arrive_as_they_were_sent() {
    let (mut calls, mut acks) = (0, 0);
    for capture in CAPTURES {
        for conversation in without_security(capture) {
            let replay = replay_client(capture, &conversation);
            acks += replay.acks;
            for call in conversation.calls().iter().filter(|c| c.request.is_complete()) {
                let what = format!("{capture} frame {}", call.frame);
                let (request, is_whole) = replay.streams.get(&(call.channel, call.number)).expect(&what);
                assert!(*is_whole, "{what}: {:?}", replay.errors.get(&(call.channel, call.number)));
                assert_eq!(*request, call.request.bytes(), "{what}");
                calls += 1;
            }
        }
    }
    assert!(calls > 100 && acks > 100, "{calls} calls, {acks} ACKs");
}

#[test]
fn replies_of_stock_servers_arrive_as_they_were_sent() {
    let (mut calls, mut aborts, mut acks, mut others) = (0, 0, 0, 0);
    for capture in CAPTURES {
        for conversation in without_security(capture) {
            let Some(replay) = replay_server(capture, &conversation) else {
                others += 1;
                continue;
            };
            acks += replay.acks;
            for call in conversation.calls().iter().filter(|c| !c.request.is_empty()) {
                let what = format!("{capture} frame {}", call.frame);
                let name = (call.channel, call.number);
                if let Some(code) = call.aborted {
                    assert_eq!(replay.errors.get(&name), Some(&CallError::AbortedByPeer(code)), "{what}");
                    aborts += 1;
                } else if call.reply.is_complete() {
                    let (reply, is_whole) = replay.streams.get(&name).expect(&what);
                    assert!(*is_whole, "{what}: {:?}", replay.errors.get(&name));
                    assert_eq!(*reply, call.reply.bytes(), "{what}");
                    calls += 1;
                }
            }
        }
    }
    assert!(calls > 100 && acks > 100, "{calls} calls, {aborts} aborts, {acks} ACKs, {others} left out");
}
