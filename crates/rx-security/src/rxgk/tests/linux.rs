//! What the kAFS of Linux 7.2 and our servers have said to each other under rxgk, as captured: each answer to a challenge and each DATA
//! packet of both directions opens.

use super::super::transport::{Limits, Origin, Role, Transport};
use super::*;
use crate::kerberos::bytes;
use bytes::Bytes;
use rx_captures::pcap::Capture;
use rx_proto::jumbo::Subpackets;
use rx_proto::packet::PacketType;
use std::collections::{BTreeMap, BTreeSet};

/// The key of the cell, which is no more.
const CELL_KEY: &str = "574bcd929c8a5e3efbbb525a453efc901d0384e0ad0450f3c9d18b41edac967b";

/// What is found of one connection.
#[derive(Default)]
struct Conversation {
    nonce: Vec<u8>,
    /// The transport keys as the server and as the client have them.
    ends: Option<[Transport; 2]>,
    held: Vec<(Header, Bytes)>,
}

#[test]
fn what_linux_says_under_rxgk_is_understood() {
    let capture = Capture::parse(include_bytes!("../../../tests/captures/kafs-7.2-rxgk.pcap"));
    let keys = KeySet::of([Key::rxgk(1, EncType::AES256, &bytes(CELL_KEY))]).unwrap();
    let mut conversations: BTreeMap<(u32, u32), Conversation> = BTreeMap::new();
    let (mut services, mut requests, mut answers) = (BTreeSet::new(), 0, 0);
    for datagram in capture.rx() {
        let Ok(header) = Header::parse(&datagram.payload) else { continue };
        if header.security != Dialect::Yfs.index() {
            continue;
        }
        let body = datagram.payload.slice(HEADER_LEN..);
        let conversation = conversations.entry((header.epoch.0, header.connection.0)).or_default();
        match header.kind {
            PacketType::CHALLENGE => conversation.nonce = body.to_vec(),
            PacketType::RESPONSE => {
                services.insert(header.service.0);
                conversation.ends = Some(understood(&keys, &header, &body, &conversation.nonce));
            }
            PacketType::DATA => conversation.held.extend(Subpackets::new(header, body)),
            _ => {}
        }
        let Some([server, client]) = &mut conversation.ends else { continue };
        for (header, body) in conversation.held.drain(..) {
            let (end, count) = match header.is_from_client() {
                true => (&mut *server, &mut requests),
                false => (&mut *client, &mut answers),
            };
            let opened = end.open(&header, body);
            assert!(opened.is_ok(), "frame {}: {opened:?}", datagram.frame);
            *count += 1;
        }
    }
    let unanswered = conversations.values().filter(|conversation| conversation.ends.is_none()).count();
    assert_eq!((services, requests, answers, unanswered), (BTreeSet::from([1, 52]), 12, 8, 0));
}

/// Reads the answer to a challenge, as the server's end does.
fn understood(keys: &KeySet, header: &Header, body: &[u8], nonce: &[u8]) -> [Transport; 2] {
    let response = Response::parse(body).unwrap();
    let content = open(keys, Dialect::Yfs, response.token).unwrap();
    assert_eq!(content.level, Level::Crypt);
    let origin = || Origin {
        secret: content.secret.clone(),
        epoch: header.epoch,
        connection: header.connection,
        start: response.start,
    };
    let number = header.checksum.into();
    let plain = open_authenticator(&origin().key(number), response.authenticator).unwrap();
    let authenticator = Authenticator::parse(&plain).unwrap();
    assert_eq!(authenticator.nonce[..], *nonce);
    assert_eq!((authenticator.level, authenticator.epoch), (Level::Crypt.number(), header.epoch));
    assert_eq!(authenticator.connection, header.connection.0);
    // Only file servers are told how to call back.
    assert_eq!(authenticator.app_data.is_empty(), header.service != ServiceId(1));
    if header.service == ServiceId(1) {
        let data = AppData::parse(Dialect::Yfs, authenticator.app_data).unwrap();
        let callback = data.callback.unwrap();
        assert_eq!((data.capabilities, callback.kind), (vec![1], EncType::AES256));
        assert_eq!((callback.key.len(), callback.token.len()), (32, 136));
    }
    let limits = Limits::of(Dialect::Yfs, content.lifetime, content.bytelife);
    [Role::Server, Role::Client]
        .map(|role| Transport::new(origin(), role, Dialect::Yfs, content.level, limits, number, rng()))
}
