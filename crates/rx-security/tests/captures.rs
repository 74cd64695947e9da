//! Conversations of OpenAFS 1.8.9 and Linux kAFS under rxkad, as captured: every ticket is opened with the cell's key, every RESPONSE
//! and every DATA packet of both directions checked, and decrypted where it is encrypted.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use rx_captures::pcap::Capture;
use rx_proto::abort::AbortCode;
use rx_proto::ids::{CHANNELS, CallNumber, ConnectionId, Epoch};
use rx_proto::jumbo::Subpackets;
use rx_proto::packet::{HEADER_LEN, Header, PacketType};
use rx_proto::security::{ConnectionFacts, SecurityClass, ServerSecurity};
use rx_security::keys::KeySet;
use rx_security::rxkad::{self, Challenge, ServerOptions, codes};
use rx_security::time::UnixTime;

/// What is found in a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// Connections whose client was known in the end, and by what names, each once.
    connections: usize,
    names: Vec<String>,
    /// Codes by which a client was refused.
    refused: Vec<AbortCode>,
    /// DATA packets that opened.
    data: usize,
    /// DATA packets that opened, from the client, whose payload begins with an opcode below 65,536 where one has to stand.
    requests: usize,
}

struct Conversation {
    end: Box<dyn SecurityClass>,
    held: Vec<(Header, Bytes)>,
}

fn read(name: &str) -> Vec<u8> {
    let path = rx_captures::captures_dir().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn examine(file: &str, allow_dotted: bool) -> Found {
    let bytes = read(file);
    let capture = Capture::parse(&bytes);
    let began = UnixTime(u32::from_le_bytes(bytes[24..28].try_into().unwrap()));
    let keys = KeySet::parse_key_file_ext(include_bytes!("captures/KeyFileExt")).unwrap();
    let mut options = ServerOptions::of_cell("lab.test");
    options.names.allow_dotted = allow_dotted;
    let server = rxkad::Server::new(keys, options, Arc::new(move || began));
    let mut conversations: HashMap<(Epoch, ConnectionId), Conversation> = HashMap::new();
    let mut found = Found::default();
    for datagram in capture.rx() {
        let Ok(header) = Header::parse(&datagram.payload) else { continue };
        if header.security != rxkad::INDEX {
            continue;
        }
        let body = datagram.payload.slice(HEADER_LEN..);
        let facts = ConnectionFacts {
            epoch: header.epoch,
            connection: header.connection,
            service: header.service,
            calls: [CallNumber(0); CHANNELS],
            peer: datagram.from,
            checksum: 0,
        };
        let conversation = conversations
            .entry((header.epoch, header.connection))
            .or_insert_with(|| Conversation { end: server.accept(&facts), held: Vec::new() });
        let Conversation { end, held } = conversation;
        match header.kind {
            PacketType::CHALLENGE => {
                let challenge = Challenge::parse(&body).unwrap();
                // Whatever the server's own chance would have been, it is asked as it was then.
                assert_eq!(end.challenge(challenge.nonce.into())[..], body[..], "frame {}", datagram.frame);
            }
            PacketType::RESPONSE if !end.is_authenticated() => match end.handle_response(&facts, &body) {
                Ok(calls) => {
                    assert!(calls[0].0 >= 1, "a call was under way");
                    found.connections += 1;
                    let name = end.identity().unwrap().to_owned();
                    if !found.names.contains(&name) {
                        found.names.push(name);
                    }
                }
                Err(code) => found.refused.push(code),
            },
            PacketType::DATA => held.extend(Subpackets::new(header, body)),
            _ => {}
        }
        if !end.is_authenticated() {
            continue;
        }
        for (header, body) in held.drain(..) {
            let plain = end.open(&header, body);
            let plain = plain.unwrap_or_else(|code| panic!("{file}, frame {}: {code}", datagram.frame));
            found.data += 1;
            let is_first = header.is_from_client() && header.seq.0 == 1;
            found.requests += usize::from(is_first && plain[..2] == [0, 0]);
        }
    }
    found
}

#[test]
fn what_stock_peers_say_under_rxkad_is_understood() {
    // File, connections, DATA packets, requests, and who called.
    let want = [
        ("05-vos.pcap", 27, 190, 94, "afs"),
        ("05-vos-encrypt.pcap", 3, 8, 4, "afs"),
        ("05-pts.pcap", 10, 78, 38, "afs"),
        ("05-bos.pcap", 4, 45, 27, "afs"),
        ("07-kafs-6.12-krb5.pcap", 2, 29, 8, "user1"),
        ("07-oafs-6.1-krb5.pcap", 2, 78, 25, "user1"),
        ("07-oafs-6.1-krb5-clear.pcap", 2, 28, 8, "user1"),
    ];
    let got = want.map(|(file, ..)| {
        let found = examine(file, false);
        assert_eq!(found.refused, [], "{file}");
        (file, found.connections, found.data, found.requests, found.names.join(" "))
    });
    assert_eq!(
        got,
        want.map(|(file, connections, data, requests, name)| (
            file,
            connections,
            data,
            requests,
            name.to_owned()
        ))
    );
}

#[test]
fn a_dotted_principal_is_refused_as_openafs_refused_it() {
    let found = examine("07-oafs-6.1-dotted.pcap", false);
    assert_eq!(found.names, ["user1.admin"]);
    assert!(
        !found.refused.is_empty() && found.refused.iter().all(|code| *code == codes::BADTICKET),
        "{found:?}"
    );
    assert_eq!(examine("07-oafs-6.1-dotted.pcap", true).names, ["user1.admin", "dot.ted"]);
}
