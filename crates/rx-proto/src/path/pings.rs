//! The pings of a path whose answers are awaited.

use crate::ids::Serial;
use crate::packet::MIN_PACKET_LEN;
use crate::time::Instant;

/// Pings remembered to measure their answers, and before them the last padded ones: a probe of the packet size, and one that passes everywhere.
const PINGS: usize = 2 + 4;

/// A ping whose answer is awaited.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ping {
    /// Serials are counted per connection.
    connection: usize,
    serial: Serial,
    pub(crate) sent_at: Instant,
    /// The size that it was padded to, or 0.
    pub(crate) len: u16,
}

/// Those that were sent last.
#[derive(Debug, Default)]
pub(crate) struct Pings([Ping; PINGS]);

impl Pings {
    /// A ping goes out. It takes the place of the oldest; the padded ones have places of their own, so each is known until the next.
    pub(crate) fn note(&mut self, now: Instant, connection: usize, serial: Serial, len: usize) {
        let ([probe, small], others) = self.0.split_at_mut(2) else { return };
        let place = match len {
            0 => others,
            MIN_PACKET_LEN => std::slice::from_mut(small),
            _ => std::slice::from_mut(probe),
        };
        if let Some(ping) = place.iter_mut().min_by_key(|p| (p.serial != Serial::NONE, p.sent_at)) {
            let len = u16::try_from(len).unwrap_or(u16::MAX);
            *ping = Ping { connection, serial, sent_at: now, len };
        }
    }

    /// Takes out the ping of a connection that has this serial.
    pub(super) fn take(&mut self, connection: usize, serial: Serial) -> Option<Ping> {
        let is_it =
            |p: &&mut Ping| p.serial == serial && p.connection == connection && serial != Serial::NONE;
        self.0.iter_mut().find(is_it).map(std::mem::take)
    }
}
