//! What stock peers put on the wire, read with our eyes: every packet of `captures/` parses, what we also write comes
//! out as it was, and the facts that `captures/README.md` states hold. Sends nothing: for replays against an endpoint see
//! `rx_captures::conversation`.

use rx_captures::conversation::{Call, Conversation, Packet, Side};
use rx_captures::summary::summary;
use rx_captures::{CAPTURES, capture, captures_dir, for_each_rx_datagram};
use rx_proto::abort::AbortCode;
use rx_proto::ack::{ACK_FIXED_LEN, Ack, AckFields, AckReason, Trailer};
use rx_proto::ids::{CallNumber, ConnectionId, Epoch, SecurityIndex, Seq, Serial, ServiceId};
use rx_proto::jumbo::{JUMBO_PAYLOAD_LEN, Subpackets};
use rx_proto::packet::{BASE_PACKET_LEN, Flags, HEADER_LEN, Header, PacketType};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Set to anything, it makes [`the_summary_is_as_recorded`] write the summary instead of comparing.
const REWRITE: &str = "RX_REWRITE_SUMMARY";

const FILESERVER: &str = "10.88.0.1";

#[test]
fn captures_are_whole() {
    for name in CAPTURES {
        let capture = capture(name);
        assert_eq!(capture.incomplete, 0, "{name}: fragments of a datagram are missing");
        assert!(capture.frames > 0, "{name}");
    }
    let files = std::fs::read_dir(captures_dir()).unwrap().map(|e| e.unwrap().file_name());
    let mut found: Vec<String> =
        files.filter_map(|f| Some(f.to_str()?.strip_suffix(".pcap")?.into())).collect();
    found.sort();
    assert_eq!(found, CAPTURES.map(String::from), "the list in rx-captures names every file");
}

#[test]
fn every_header_reads_and_writes_back() {
    let mut count = 0;
    for_each_rx_datagram(|name, d| {
        let header = Header::parse(&d.payload).unwrap_or_else(|e| panic!("{name} frame {}: {e}", d.frame));
        assert_eq!(header.to_bytes(), d.payload[..HEADER_LEN], "{name} frame {}", d.frame);
        assert!(header.kind.name().is_some(), "{name} frame {}: {:?}", d.frame, header.kind);
        count += 1;
    });
    assert_eq!(count, 4286);
}

#[test]
fn every_body_has_the_shape_of_its_type() {
    for_each_rx_datagram(|name, d| {
        let header = Header::parse(&d.payload).unwrap();
        let body = d.payload.slice(HEADER_LEN..);
        let at = format!("{name} frame {}: {:?}", d.frame, header.kind);
        match header.kind {
            PacketType::DATA => {
                let parts: Vec<_> = Subpackets::new(header, body.clone()).collect();
                let data: usize = parts.iter().map(|(_, payload)| payload.len()).sum();
                assert_eq!(data + 4 * (parts.len() - 1), body.len(), "{at}");
                assert!(parts.len() > 1 || d.payload.len() <= BASE_PACKET_LEN, "{at}");
            }
            PacketType::ACK => assert!(body.len() >= ACK_FIXED_LEN, "{at}"),
            PacketType::ABORT => {
                let code = i32::from_be_bytes(body[..].try_into().expect("an ABORT is four bytes"));
                assert_ne!(code, 0, "{at}");
            }
            PacketType::CHALLENGE | PacketType::RESPONSE => {
                assert_eq!((header.call, header.seq), (CallNumber::CONNECTION, Seq(0)), "{at}");
                assert_eq!(header.is_from_client(), header.kind == PacketType::RESPONSE, "{at}");
            }
            // A request is one byte, an answer 65 (Rx notes 15).
            PacketType::VERSION => assert!(matches!(body.len(), 1 | 65), "{at}"),
            PacketType::DEBUG => assert!(body.len() >= 8, "{at}"),
            other => panic!("{at}: no capture holds {other:?}"),
        }
    });
}

#[test]
fn every_ack_reads_and_what_we_write_is_as_on_the_wire() {
    for_each_ack(|name, packet, ack| {
        let at = format!("{name} frame {}", packet.frame);
        assert!((1..=9).contains(&ack.reason.0), "{at}: {:?}", ack.reason);
        assert!(ack.first >= Seq::FIRST, "{at}");
        let body = packet.body();
        let count = usize::from(body[17]);
        let [max, natural, window, jumbo] = [
            ack.trailer.max_packet_len,
            ack.trailer.natural_packet_len,
            ack.trailer.window,
            ack.trailer.max_jumbo,
        ]
        .map(|word| word.unwrap_or_else(|| panic!("{at}: a trailer word is missing")));
        assert!(jumbo == 1 || jumbo == 4, "{at}");
        assert_eq!(ack.trailer.announcement, None, "{at}: none of these peers is ours");
        if name == "10-odd-acks" && packet.sender == Side::Client {
            return; // made odd on purpose: see eight_odd_forms_of_ack_read_alike
        }
        assert_eq!(ack.table.len() as usize, count, "{at}");
        assert_eq!(body.len(), ACK_FIXED_LEN + count + 3 + 16, "{at}");
        let fields = AckFields {
            first: ack.first,
            previous: ack.previous,
            serial: ack.serial,
            reason: ack.reason,
            window,
            max_packet_len: max,
            natural_packet_len: natural,
        };
        let mut ours = Vec::new();
        let table: Vec<bool> = (0..ack.table.len()).map(|i| ack.table.is_received(i).unwrap()).collect();
        fields.encode(table.into_iter(), false, &mut ours);
        // The last word they have and we have, the jumbo limit, differs by intent; so does the word after it.
        let same = body.len() - 4;
        assert_eq!(ours[..same], body[..same], "{at}");
    });
}

#[test]
fn windows_are_those_of_the_peers_versions() {
    let mut windows: BTreeMap<(&str, IpAddr), BTreeSet<u32>> = BTreeMap::new();
    for_each_ack(|name, packet, ack| {
        let from = packet.from.ip();
        windows.entry((name, from)).or_default().insert(ack.trailer.window.unwrap());
    });
    let of = |name, address: &str| &windows[&(name, address.parse().unwrap())];
    assert_eq!(*of("02-kafs-6.1-anon", "10.98.0.6"), BTreeSet::from([63]));
    assert!(
        of("01-kafs-6.12-anon", "10.98.0.5").iter().all(|w| (220..=255).contains(w)),
        "less what is unread"
    );
    assert!(of("01-kafs-6.12-anon", "10.98.0.5").contains(&255));
    assert_eq!(
        *of("01-kafs-6.12-anon", FILESERVER),
        BTreeSet::from([16, 32]),
        "16 until the first packet is in"
    );
    assert_eq!(*of("03-oafs-6.1-anon", "10.98.0.7"), BTreeSet::from([16, 32]));
    assert_eq!(*of("10-odd-acks", "10.88.0.2"), BTreeSet::from([32, 8192]));
}

#[test]
fn kernel_afs_asks_for_an_ack_of_each_request_and_openafs_does_not() {
    let asks = |name: &str| -> Vec<bool> {
        let conversations = Conversation::all_of(&capture(name));
        // The fileserver's callbacks to the client are OpenAFS's requests too.
        let of_client = conversations.iter().filter(|c| c.client.ip().to_string() != FILESERVER);
        let data = of_client.flat_map(|c| c.sent_by(Side::Client)).flat_map(Packet::data);
        // Of one packet: the last of kAFS's long store (01, frame 234) asks for none.
        let last = data.filter(|(h, _)| h.flags.contains(Flags::LAST_PACKET) && h.seq == Seq::FIRST);
        last.map(|(header, _)| header.flags.contains(Flags::REQUEST_ACK)).collect()
    };
    for name in ["01-kafs-6.12-anon", "02-kafs-6.1-anon", "07-kafs-6.12-krb5"] {
        assert!(asks(name).len() > 10 && !asks(name).contains(&false), "{name}");
    }
    for name in ["03-oafs-6.1-anon", "04-afsd-fuse", "05-pts", "05-vos", "07-oafs-6.1-krb5"] {
        assert!(asks(name).len() > 10 && !asks(name).contains(&true), "{name}");
    }
}

#[test]
fn a_store_is_announced_by_the_user_status_of_18_acks() {
    let mut count = 0;
    for_each_ack(|name, packet, _| {
        if name == "01-kafs-6.12-anon" && packet.sender == Side::Server && packet.header.user_status == 1 {
            count += 1;
        }
    });
    assert_eq!(count, 18);
}

#[test]
fn gaps_fill_tables_of_up_to_32_entries() {
    for capture in ["03-oafs-6.1-anon", "09-wan-recv"] {
        let mut longest = 0;
        for_each_ack(|name, _, ack| {
            if name == capture {
                longest = longest.max(ack.table.len());
                let first_is_missing = ack.table.is_received(0) != Some(true);
                assert!(
                    first_is_missing || ack.reason != AckReason::OUT_OF_SEQUENCE || name != "09-wan-recv"
                );
            }
        });
        assert_eq!(longest, 32, "{capture}: a whole window less one, and the hole");
    }
}

#[test]
fn hard_acks_of_a_threaded_receiver_run_backwards() {
    let (mut highest, mut backwards, mut below_first, mut acks) = (Seq(0), 0, 0, 0);
    for_each_ack(|name, packet, ack| {
        if name == "09-wan-recv" && packet.sender == Side::Client {
            acks += 1;
            backwards += usize::from(ack.first < highest);
            below_first +=
                usize::from(ack.previous.after(ack.first).is_none() && ack.previous.plus(1) < ack.first);
            highest = highest.max(ack.first);
        }
    });
    assert_eq!((acks, backwards), (196, 11));
    assert!(below_first > 0, "previousPacket falls below firstPacket after duplicates");
}

#[test]
fn jumbograms_split_into_parts_of_1412_bytes_whose_numbers_continue() {
    for name in ["09-wan-recv", "09-wan-send"] {
        let (mut jumbograms, mut most) = (0, 0);
        for packet in packets(name).into_iter().filter(|p| p.header.flags.contains(Flags::JUMBO)) {
            if packet.header.kind != PacketType::DATA {
                continue;
            }
            let parts: Vec<_> = packet.data().collect();
            jumbograms += 1;
            most = most.max(parts.len());
            assert!(parts.len() >= 2, "{name} frame {}", packet.frame);
            for ((header, payload), n) in parts.iter().zip(0..) {
                let is_end = header.flags.contains(Flags::LAST_PACKET);
                let full = payload.len() == JUMBO_PAYLOAD_LEN;
                assert!(full || (is_end && n as usize == parts.len() - 1), "{name} frame {}", packet.frame);
                assert_eq!(header.seq, packet.header.seq.plus(n));
                assert_eq!(header.serial.0, packet.header.serial.0 + n);
                assert!(!header.flags.contains(Flags::JUMBO));
                assert_eq!(header.is_from_client(), packet.header.is_from_client());
            }
        }
        assert!(jumbograms > 10, "{name}: {jumbograms}");
        assert_eq!(most, 4, "{name}");
        assert_eq!(capture(name).rx().map(|d| d.payload.len()).max(), Some(5688));
    }
}

#[test]
fn eight_odd_forms_of_ack_read_alike() {
    // What each fetch of 26,000 bytes ends with: everything received, an empty table, whatever stands in the pads.
    let mut forms: BTreeMap<(bool, [u8; 3], usize), (usize, u32)> = BTreeMap::new();
    for_each_ack(|name, packet, ack| {
        if name != "10-odd-acks" || packet.sender != Side::Client {
            return;
        }
        let body = packet.body();
        let count = usize::from(body[17]);
        let pads = body[ACK_FIXED_LEN + count..][..3].try_into().unwrap();
        let behind = body.len() - (ACK_FIXED_LEN + count + 3);
        let flag = packet.header.flags.contains(Flags::EXTENDED_SACK);
        let form = forms.entry((flag, pads, behind)).or_default();
        form.0 += 1;
        form.1 = form.1.max(ack.table.len());
        assert!(ack.table.len() <= 6, "frame {}: padding is not part of the table", packet.frame);
        assert_eq!(ack.trailer.max_jumbo, Some(1), "frame {}", packet.frame);
        if !ack.table.is_empty() && ack.reason == AckReason::OUT_OF_SEQUENCE {
            assert_eq!(ack.table.is_received(ack.table.len() - 1), Some(true), "frame {}", packet.frame);
        }
    });
    let seen: Vec<_> = forms.keys().copied().collect();
    assert_eq!(
        seen,
        [
            (false, [0, 0, 0], 16),
            (false, [255, 255, 255], 16),
            (true, [0, 0, 0], 16),
            (true, [1, 4, 0], 16), // twice: with the table as it is, and with 255 octets
            (true, [1, 4, 1], 16 + 256),
            (true, [1, 5, 0], 20),
            (true, [255, 4, 0], 16),
        ]
    );
    assert!(forms.values().all(|(_, longest)| *longest == 6));
}

#[test]
fn every_call_reassembles() {
    for name in CAPTURES {
        for conversation in Conversation::all_of(&capture(name)) {
            let died = conversation
                .packets
                .iter()
                .any(|p| p.header.kind == PacketType::ABORT && p.header.call == CallNumber::CONNECTION);
            for call in conversation.calls() {
                let at = format!("{name}, call from frame {}", call.frame);
                assert!(
                    call.request.contradictions.is_empty() && call.reply.contradictions.is_empty(),
                    "{at}"
                );
                assert!(call.request.is_complete(), "{at}: request");
                let ended = call.reply.is_complete() || call.aborted.is_some() || died;
                assert!(ended && call.reply.is_contiguous(), "{at}: reply");
            }
        }
    }
}

#[test]
fn reads_and_writes_of_the_known_file_carry_its_bytes() {
    let (mut read, mut written) = (BTreeMap::new(), BTreeMap::new());
    for name in CAPTURES {
        let conversations = Conversation::all_of(&capture(name));
        let clear = conversations.iter().filter(|c| c.security == SecurityIndex(0));
        // By the port: the callback service has the same number, and other operations under the same opcodes.
        let of_files = clear.filter(|c| c.service == ServiceId(1) && c.server.port() == 7000);
        for call in of_files.flat_map(Conversation::calls) {
            if let Some(transfer) = Transfer::of(&call) {
                let total = if transfer.is_read { &mut read } else { &mut written };
                *total.entry(name).or_insert(0) += transfer.check(&format!("{name} frame {}", call.frame));
            }
        }
    }
    let whole = 100_000;
    assert_eq!(
        read,
        BTreeMap::from([
            ("01-kafs-6.12-anon", whole),
            ("02-kafs-6.1-anon", whole),
            ("03-oafs-6.1-anon", whole),
            ("04-afsd-fuse", whole),
            ("10-odd-acks", 8 * 26_000),
        ])
    );
    assert_eq!(
        written,
        BTreeMap::from([
            ("01-kafs-6.12-anon", 50_000),
            ("02-kafs-6.1-anon", 50_000),
            ("03-oafs-6.1-anon", 50_000),
            ("04-afsd-fuse", 50_000),
        ])
    );
}

#[test]
fn a_sender_uses_each_serial_once() {
    for name in CAPTURES {
        for conversation in Conversation::all_of(&capture(name)) {
            for side in [Side::Client, Side::Server] {
                let (mut seen, mut restarts) = (BTreeSet::new(), 0);
                for serial in conversation.sent_by(side).flat_map(serials) {
                    assert_ne!(serial, Serial(0), "{name} {:?}", conversation.connection);
                    if !seen.insert(serial) {
                        // A server that has started again knows no connection, so it counts from 1.
                        assert_eq!((name, side, serial), ("08-server-restart", Side::Server, Serial(1)));
                        restarts += 1;
                        seen = BTreeSet::from([serial]);
                    }
                }
                assert!(restarts <= 1);
            }
        }
    }
}

#[test]
fn all_packets_of_a_connection_name_one_service_and_come_from_one_address() {
    for name in CAPTURES {
        for conversation in Conversation::all_of(&capture(name)) {
            for packet in &conversation.packets {
                let named = (packet.header.service, packet.header.security);
                assert_eq!(named, (conversation.service, conversation.security), "{name} {}", packet.frame);
                assert_eq!(packet.from, conversation.address(packet.sender));
            }
        }
    }
}

#[test]
fn a_refused_ticket_ends_the_connection_and_not_a_call() {
    let aborts: Vec<_> = packets("07-oafs-6.1-dotted")
        .into_iter()
        .filter(|p| p.header.kind == PacketType::ABORT)
        .map(|p| (p.frame, p.header.call, p.body().to_vec()))
        .collect();
    // RXKADBADTICKET
    assert_eq!(aborts, [(50, CallNumber::CONNECTION, 19_270_407i32.to_be_bytes().to_vec())]);
}

#[test]
fn version_packets_and_the_nat_ping_are_of_no_connection() {
    let ping = capture("08-callback-break").datagrams.into_iter().find(|d| d.frame == 434).unwrap();
    let header = Header::parse(&ping.payload).unwrap();
    assert_eq!(
        (header.kind, header.flags, header.epoch),
        (PacketType::VERSION, Flags::LAST_PACKET, Epoch(999))
    );
    assert_eq!((header.connection, header.serial, header.call), (ConnectionId(0), Serial(0), CallNumber(0)));
    assert_eq!(ping.payload[HEADER_LEN..], [0]);

    let tools = capture("06-debug-tools");
    let [question, answer] = [0, 1].map(|i| tools.datagrams[i].payload.clone());
    let flags = Flags::CLIENT_INITIATED.with(Flags::LAST_PACKET);
    assert_eq!(Header::parse(&question).unwrap().flags, flags);
    assert_eq!(Header::parse(&question).unwrap().call, CallNumber(101));
    assert!(!Header::parse(&answer).unwrap().is_from_client());
    assert_eq!(question.len() - HEADER_LEN, 1);
    assert!(answer[HEADER_LEN..].starts_with(b"OpenAFS") && answer.len() - HEADER_LEN == 65);
}

/// The packets that the Rx notes print (2 and 7), as whole datagrams.
#[test]
fn the_packets_of_the_notes_read_as_they_say() {
    let data = hex("afd91ae8 e5676e64 00000001 00000001 00000001 01 05 00 00 0000 002a
                    0000004d 6162636465666768696a6b6c");
    let header = Header::parse(&data).unwrap();
    assert_eq!((header.kind, header.service, header.seq), (PacketType::DATA, ServiceId(42), Seq::FIRST));
    let [(_, payload)]: [_; 1] =
        Subpackets::new(header, data[HEADER_LEN..].to_vec().into()).collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(payload[..4], 77u32.to_be_bytes(), "the operation's number");
    assert_eq!(&payload[4..], b"abcdefghijkl");

    let ack = hex("0000 0000 00000002 00000001 00000000 08 00 000000 0000163c 000005a4 00000020 00000004");
    assert_eq!(HEADER_LEN + ack.len(), 65);
    let ack = Ack::parse(&ack, false).unwrap();
    assert_eq!((ack.first, ack.previous, ack.reason), (Seq(2), Seq(1), AckReason::DELAY));
    let words =
        |t: Trailer| [t.max_packet_len, t.natural_packet_len, t.window, t.max_jumbo].map(Option::unwrap);
    assert_eq!(words(ack.trailer), [5692, 1444, 32, 4]);

    let nat_ping = hex("000003e7 00000000 00000000 00000000 00000000 0d 04 00 00 0000 0000 00");
    assert!(!Header::parse(&nat_ping).unwrap().is_from_client());
}

#[test]
fn unknown_operations_are_refused_with_opcode() {
    let aborts = packets("01-kafs-6.12-anon").into_iter().filter(|p| p.header.kind == PacketType::ABORT);
    let codes: Vec<_> =
        aborts.map(|p| AbortCode(i32::from_be_bytes(p.body()[..].try_into().unwrap()))).collect();
    assert_eq!(codes, [AbortCode::OPCODE]);
}

#[test]
fn the_summary_is_as_recorded() {
    let path = captures_dir().join("summary.txt");
    let now: String = CAPTURES.iter().map(|name| summary(name, &capture(name))).collect();
    if std::env::var_os(REWRITE).is_some() {
        std::fs::write(&path, now).unwrap();
        return;
    }
    let recorded = std::fs::read_to_string(&path).unwrap();
    for (line, (now, recorded)) in now.lines().zip(recorded.lines()).enumerate() {
        assert_eq!(now, recorded, "summary.txt line {}; set {REWRITE}=1 to record anew", line + 1);
    }
    assert_eq!(now.len(), recorded.len(), "summary.txt; set {REWRITE}=1 to record anew");
}

/// A FetchData64 or StoreData64 call in clear: which bytes of a file went which way.
struct Transfer {
    is_read: bool,
    offset: usize,
    bytes: Vec<u8>,
}

impl Transfer {
    const FETCH: u32 = 65537;
    const STORE: u32 = 65538;
    /// Where the bytes of a StoreData64 begin: opcode, fid, status of six words, position, length and file length.
    const STORE_HEADER_LEN: usize = 4 + 12 + 24 + 24;

    /// `None` for other calls, and for files whose contents are not those of the known file.
    fn of(call: &Call) -> Option<Self> {
        let (request, reply) = (call.request.bytes(), call.reply.bytes());
        let word = |at: usize| request.get(at..at + 4).map(|b| u32::from_be_bytes(b.try_into().unwrap()));
        let long = |from: &[u8], at: usize| {
            from.get(at..at + 8).map(|b| usize::try_from(u64::from_be_bytes(b.try_into().unwrap())).unwrap())
        };
        match word(0)? {
            // open/data100k has the fid 6.6.
            Self::FETCH if (word(8), word(12)) == (Some(6), Some(6)) => {
                let len = long(&reply, 0)?;
                let bytes = reply.get(8..8 + len)?.to_vec();
                Some(Self { is_read: true, offset: long(&request, 16)?, bytes })
            }
            Self::STORE => {
                let bytes = request.get(Self::STORE_HEADER_LEN..)?.to_vec();
                assert_eq!(long(&request, 48)?, bytes.len(), "the length announced");
                (bytes.len() > 1000).then_some(Self { is_read: false, offset: long(&request, 40)?, bytes })
            }
            _ => None,
        }
    }

    /// Compares with the known file, whose line i is i as nine decimal digits; returns how many bytes there were.
    fn check(&self, at: &str) -> usize {
        for (position, byte) in (self.offset..).zip(&self.bytes) {
            let line = format!("{:09}\n", position / 10);
            assert_eq!(*byte, line.as_bytes()[position % 10], "{at}: byte {position} of the file");
        }
        self.bytes.len()
    }
}

/// The serials a datagram takes: as many as it has subpackets.
fn serials(packet: &Packet) -> Vec<Serial> {
    match packet.header.kind {
        PacketType::DATA => packet.data().map(|(header, _)| header.serial).collect(),
        _ => vec![packet.header.serial],
    }
}

fn packets(name: &str) -> Vec<Packet> {
    let conversations = Conversation::all_of(&capture(name));
    let mut packets: Vec<Packet> = conversations.into_iter().flat_map(|c| c.packets).collect();
    packets.sort_by_key(|p| p.frame);
    packets
}

fn for_each_ack(mut check: impl FnMut(&'static str, &Packet, &Ack<'_>)) {
    for name in CAPTURES {
        for packet in packets(name).iter().filter(|p| p.header.kind == PacketType::ACK) {
            let striped = packet.header.flags.contains(Flags::EXTENDED_SACK);
            let body = packet.body();
            let ack = Ack::parse(&body, striped).unwrap_or_else(|e| panic!("{name} {}: {e}", packet.frame));
            check(name, packet, &ack);
        }
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}
