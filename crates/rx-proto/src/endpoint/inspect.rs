//! Answers to rxdebug and to questions for the version (Rx notes 14, 15), from anyone and about everyone: so they are few.

use super::Endpoint;
use crate::packet::{Flags, Header, PacketType};
use crate::path::Control;
use crate::time::Instant;
use std::net::SocketAddr;
use std::time::Duration;

/// Bytes a second that answers may exceed what was asked with, over all askers: an answer may be eight times its question,
/// and nothing shows that the asker is who he says he is. Enough for a person's rxdebug of some thousand connections a
/// second, and nothing to a flood.
const RATE: u64 = 256 << 10;

/// What answers may still cost.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    tokens: u64,
    filled_at: Instant,
}

impl Allowance {
    fn take(&mut self, now: Instant, bytes: u64) -> bool {
        let gained = RATE as u128 * now.since(self.filled_at).min(Duration::from_secs(1)).as_millis() / 1000;
        if gained > 0 || self.filled_at == Instant::ORIGIN {
            self.tokens = (self.tokens + gained as u64).min(RATE);
            self.filled_at = now;
        }
        let enough = self.tokens >= bytes;
        self.tokens -= if enough { bytes } else { 0 };
        enough
    }
}

impl Endpoint {
    /// A DEBUG or VERSION packet came.
    pub(super) fn handle_question(&mut self, now: Instant, from: SocketAddr, header: &Header, body: &[u8]) {
        // Answers and NAT pings have CLIENT_INITIATED clear: nothing is said to them (Rx notes 11).
        if !header.is_from_client() {
            return;
        }
        let answer = match header.kind {
            PacketType::VERSION => {
                let mut text = [0u8; 65];
                let version = self.config.version.as_bytes();
                let len = version.len().min(64);
                text[..len].copy_from_slice(&version[..len]);
                text.to_vec()
            }
            _ => match self.debug_answer(now, body) {
                Some(answer) => answer,
                None => return,
            },
        };
        if !self.inspect.take(now, answer.len() as u64) {
            self.stats.withheld += 1;
            return;
        }
        let reply = Header { flags: header.flags.without(Flags::CLIENT_INITIATED), ..*header };
        let mut bytes = reply.to_bytes().to_vec();
        bytes.extend_from_slice(&answer);
        let known = self.by_peer.contains_key(&from);
        let index = self.path_index(now, from);
        let path = &mut self.paths[index];
        if !known {
            // The allowance above is the limit here; the path goes as soon as the answer is out.
            path.stats.bytes_received += bytes.len() as u64;
        }
        path.control.push_back(Control::Packet { bytes: bytes.into(), dont_fragment: true });
        self.wake_path(index);
    }

    fn debug_answer(&self, now: Instant, body: &[u8]) -> Option<Vec<u8>> {
        let _ = (now, body);
        None
    }
}
