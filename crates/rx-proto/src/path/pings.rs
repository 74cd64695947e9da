//! The pings of a path whose answers are awaited.

use crate::ids::Serial;
use crate::time::Instant;

/// Pings remembered to measure their answers, and before them the last probe of the packet size.
const PINGS: usize = 1 + 4;

/// A ping whose answer is awaited.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ping {
    /// Serials are counted per connection.
    connection: usize,
    serial: Serial,
    pub(crate) sent_at: Instant,
    /// It was padded to find the packet size.
    pub(crate) is_probe: bool,
}

/// Those that were sent last.
#[derive(Debug, Default)]
pub(crate) struct Pings([Ping; PINGS]);

impl Pings {
    /// A ping goes out. It takes the place of the oldest; a probe has a place of its own, so it is known until the next.
    pub(crate) fn note(&mut self, now: Instant, connection: usize, serial: Serial, is_probe: bool) {
        let (probe, others) = self.0.split_at_mut(1);
        let place = if is_probe { probe } else { others };
        if let Some(ping) = place.iter_mut().min_by_key(|p| (p.serial != Serial::NONE, p.sent_at)) {
            *ping = Ping { connection, serial, sent_at: now, is_probe };
        }
    }

    /// Takes out the ping of a connection that has this serial.
    pub(super) fn take(&mut self, connection: usize, serial: Serial) -> Option<Ping> {
        let is_it =
            |p: &&mut Ping| p.serial == serial && p.connection == connection && serial != Serial::NONE;
        self.0.iter_mut().find(is_it).map(std::mem::take)
    }
}
