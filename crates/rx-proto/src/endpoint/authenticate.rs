//! Challenge and response: what a server holds until a client has shown who it is, and how both ends ask and answer (Rx
//! notes 11, 17.3, 17.4). What is in them is the security class's matter (see `security`).

use super::strangers::FEW_HELD;
use super::{ChannelRef, Endpoint};
use crate::abort::AbortCode;
use crate::call::CallError;
use crate::connection::Challenging;
use crate::ids::{CallNumber, Channel};
use crate::packet::{Header, PacketType};
use crate::security::ConnectionFacts;
use crate::time::Instant;
use bytes::Bytes;
use rand::Rng;
use std::time::Duration;

/// Most packets held for a client that has not yet shown who it is: OpenAFS's first window twice.
const MAX_HELD: usize = 32;
/// Most bytes held for it: those packets at the size that every peer takes, and a half more.
const MAX_HELD_BYTES: usize = 64 << 10;

impl Endpoint {
    /// Keeps a DATA packet until the client has shown who it is. What is not kept the client sends again.
    pub(super) fn hold(&mut self, index: usize, header: Header, payload: Bytes) {
        let budget = self.config.strangers_memory;
        let Some(host) = self.connections[index].host() else { return };
        let is_wanted = self.strangers.may_hold(host, payload.len() as u64, budget);
        let most = if self.strangers.has_little(host, budget) { MAX_HELD } else { FEW_HELD };
        let held = &mut self.connections[index].held;
        let is_there =
            |h: &Header| h.seq == header.seq && h.channel == header.channel && h.call == header.call;
        let bytes: usize = held.iter().map(|(_, p)| p.len()).sum();
        if is_wanted
            && held.len() < most
            && bytes + payload.len() <= MAX_HELD_BYTES
            && !held.iter().any(|(h, _)| is_there(h))
        {
            self.strangers.count(host, bytes as u64, (bytes + payload.len()) as u64);
            // A copy, as what was received may hold a whole bundle in memory.
            held.push((header, Bytes::copy_from_slice(&payload)));
        }
    }

    /// Takes out what was kept.
    fn take_held(&mut self, index: usize) -> Vec<(Header, Bytes)> {
        let connection = &mut self.connections[index];
        let held = std::mem::take(&mut connection.held);
        if let Some(host) = connection.host() {
            self.strangers.count(host, held.iter().map(|(_, p)| p.len() as u64).sum(), 0);
        }
        held
    }

    /// Asks the client of a connection who it is, unless that was done lately.
    pub(super) fn challenge(&mut self, now: Instant, index: usize) {
        let nonce = self.rng.random();
        let connection = &mut self.connections[index];
        if connection.challenging.is_some_and(|c| now.since(c.sent_at) < Duration::from_secs(2)) {
            return;
        }
        let tries = connection.challenging.map_or(0, |c| c.tries) + 1;
        connection.challenging = Some(Challenging { sent_at: now, tries });
        let body = connection.security.challenge(nonce);
        let path = connection.path;
        let header = connection.header(PacketType::CHALLENGE, Channel::ALL[0], CallNumber::CONNECTION);
        self.push_packet(path, header, &body);
        self.wake_path(path);
        self.rearm_connection(index);
    }

    pub(super) fn handle_challenge(&mut self, now: Instant, index: usize, body: &[u8]) {
        let connection = &mut self.connections[index];
        let facts = connection.facts(self.paths[connection.path].peer);
        match connection.security.handle_challenge(&facts, body) {
            Ok(response) => {
                let path = connection.path;
                let mut header =
                    connection.header(PacketType::RESPONSE, Channel::ALL[0], CallNumber::CONNECTION);
                header.checksum = connection.security.response_checksum();
                self.push_packet(path, header, &response);
                self.wake_path(path);
            }
            Err(code) => self.fail_connection(now, index, CallError::Failed(code), true),
        }
    }

    pub(super) fn handle_response(&mut self, now: Instant, index: usize, header: &Header, body: &[u8]) {
        let connection = &mut self.connections[index];
        if connection.security.is_authenticated() {
            return;
        }
        let facts = ConnectionFacts {
            checksum: header.checksum,
            ..connection.facts(self.paths[connection.path].peer)
        };
        match connection.security.handle_response(&facts, body) {
            Ok(calls) => {
                connection.challenging = None;
                if connection.security.identity().is_some() {
                    self.remove_stranger(index);
                }
                let connection = &mut self.connections[index];
                for (slot, number) in connection.slots.iter_mut().zip(calls) {
                    // The client's word on where it is; what it has not sent yet is one further (Rx notes 11).
                    slot.number = slot.number.max(CallNumber(number.0.saturating_sub(1)));
                }
                let held = self.take_held(index);
                self.name_anywhere(index);
                let connection = &self.connections[index];
                let path = connection.path;
                self.verify_path(now, path);
                for (header, payload) in held {
                    if !self.connections.contains(index) {
                        return;
                    }
                    let at = ChannelRef { connection: index, channel: header.channel };
                    self.handle_data(now, at, header, payload);
                }
            }
            Err(code) => self.fail_connection(now, index, CallError::Failed(code), true),
        }
    }

    /// Ends a connection with all its calls.
    pub(super) fn fail_connection(&mut self, now: Instant, index: usize, error: CallError, tell: bool) {
        let connection = &mut self.connections[index];
        connection.error = Some(error.code());
        connection.challenging = None;
        self.take_held(index);
        for channel in Channel::ALL {
            self.fail_call(now, ChannelRef { connection: index, channel }, error, false);
        }
        if tell {
            self.push_connection_abort(index, error.code());
        }
    }

    pub(super) fn push_connection_abort(&mut self, index: usize, code: AbortCode) {
        let connection = &mut self.connections[index];
        let path = connection.path;
        let header = connection.header(PacketType::ABORT, Channel::ALL[0], CallNumber::CONNECTION);
        self.push_packet(path, header, &code.0.to_be_bytes());
        self.wake_path(path);
    }
}
