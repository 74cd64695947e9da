//! Grants: what a call offers while the way to here is short of room. Then its window moves with grants alone, and no more with the
//! reader. Who gets which grant is left to `endpoint::credits`.

use super::Receive;
use crate::ack::AckReason;
use crate::ids::{Seq, Serial};

impl Receive {
    /// True if the window moves by grants alone.
    pub(crate) const fn is_gated(&self) -> bool {
        self.is_gated
    }

    /// Makes the window move by grants alone from now on. At most `keep` packets beyond those that came are offered.
    pub(crate) fn gate(&mut self, keep: u32) {
        self.is_gated = true;
        self.cut(keep);
    }

    /// Offers no more than `keep` packets beyond those that came. What was offered before is still accepted.
    pub(crate) fn cut(&mut self, keep: u32) {
        self.granted = self.granted.min(self.newest().plus(keep));
    }

    /// Offers `packets` less, but what has come.
    pub(crate) fn retract(&mut self, packets: u32) {
        self.granted = Seq(self.granted.0.saturating_sub(packets)).max(self.newest());
    }

    /// The window moves with the reader again.
    pub(crate) fn ungate(&mut self) {
        self.is_gated = false;
        self.follow_reader();
        if self.granted > self.told && self.has_begun() {
            self.tell_window();
        }
    }

    /// Offers `packets` more, and says so.
    pub(crate) fn grant(&mut self, packets: u32) {
        self.granted = self.granted.plus(packets);
        self.accepts = self.accepts.max(self.granted);
        self.tell_window();
    }

    /// The peer is to hear what is offered.
    pub(crate) fn tell_window(&mut self) {
        if self.due.is_none() && !self.is_complete() {
            self.acknowledge_now(AckReason::DELAY, Serial::NONE);
        }
    }

    /// The furthest packet that has come.
    pub(crate) fn newest(&self) -> Seq {
        self.highest.max(Seq(self.next.0 - 1))
    }

    /// The number of packets that are offered and have not come. Nothing comes after the end.
    pub(crate) fn outstanding(&self) -> u32 {
        if !self.has_begun() || self.is_complete() {
            return 0;
        }
        let edge = self.last.unwrap_or(self.granted);
        edge.after(Seq(self.next.0 - 1)).map_or(0, |n| n.saturating_sub(self.later_count))
    }

    /// The number of packets up to this one that have not come.
    pub(crate) fn missing(&self, to: Seq) -> u32 {
        let all = to.after(Seq(self.next.0 - 1)).unwrap_or(0);
        let before = self.beyond.iter().take_while(|r| r.start <= to);
        let came = before.map(|r| r.end.min(to.plus(1)).after(r.start).unwrap_or(0)).sum();
        all.saturating_sub(came)
    }

    /// The number of those that were not offered but are to be expected, as a later one came.
    pub(crate) fn uninvited(&self) -> u32 {
        self.uninvited.min(self.outstanding())
    }

    /// Offers nothing more, and what may come all the same was not offered.
    pub(crate) fn refuse_first_flight(&mut self) {
        self.cut(0);
        (self.uninvited, self.uninvited_to) = (self.outstanding(), self.newest());
    }

    /// Leaves an offer of one packet. The peer may still fill the holes before those that came, by what it was offered before.
    pub(crate) fn leave_one(&mut self) {
        self.cut(1);
        (self.uninvited, self.uninvited_to) = (self.missing(self.newest()), self.newest());
    }

    pub(super) fn note_invitation(&mut self, seq: Seq) {
        if seq < self.uninvited_to {
            self.uninvited = self.uninvited.saturating_sub(1);
        }
        if self.is_gated
            && let Some(beyond) = seq.after(self.granted.plus(1))
        {
            self.uninvited += beyond;
            self.uninvited_to = seq;
        }
        self.granted = self.granted.max(seq);
    }

    /// The number of packets for which there is memory beyond those offered; none once the end is known.
    pub(crate) fn wanted(&self) -> u32 {
        if self.last.is_some() || !self.is_gated {
            return 0;
        }
        self.first_unread().plus(self.window - 1).after(self.granted).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Received;
    use super::super::tests::{STOCK, data, feed};
    use super::*;
    use crate::time::Instant;
    use bytes::Bytes;

    /// Packets that arrive under an older offer are accepted. A sender that has used up its grant hears of no window of 0: it is
    /// told of one packet, which has come.
    #[test]
    fn a_gated_window_moves_by_grants_alone() {
        let mut r = Receive::new(Instant::ORIGIN, 255);
        (1..=3).for_each(|s| _ = feed(&mut r, s, 0, STOCK));
        r.gate(2);
        assert_eq!((r.outstanding(), r.wanted()), (2, 250));
        (4..=5).for_each(|s| _ = feed(&mut r, s, 0, STOCK));
        assert_eq!(r.outstanding(), 0);
        let ack = r.fields(AckReason::IDLE, Serial::NONE, (1444, 1444));
        assert_eq!((ack.first, ack.window), (Seq(5), 1));
        assert_eq!(r.table().collect::<Vec<_>>(), [true]);
        (0..5).for_each(|_| drop(r.read()));
        assert!(!r.is_ack_due(), "reading offers nothing");
        assert_eq!(r.handle_data(Instant::ORIGIN, &data(8, 0), Bytes::new(), STOCK), Received::Held);
        assert_eq!(r.outstanding(), 2, "two before it may still come");
        r.take_due();
        r.grant(4);
        assert!(r.is_ack_due());
        let ack = r.fields(AckReason::IDLE, Serial::NONE, (1444, 1444));
        assert_eq!((ack.first, ack.window, r.outstanding()), (Seq(6), 7, 6));
        assert_eq!(r.handle_data(Instant::ORIGIN, &data(9, 4), Bytes::new(), STOCK), Received::Held);
        assert_eq!((r.outstanding(), r.wanted()), (2, 0), "nothing comes after the end");
        r.ungate();
        assert_eq!(r.fields(AckReason::IDLE, Serial::NONE, (1444, 1444)).window, 255);
    }
}
