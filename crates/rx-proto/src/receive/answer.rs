//! The content of an ACK for a stream: how far it has come, and what beyond that. The parent decides when one is due; it is written
//! by [`ack`](crate::ack).

use super::Receive;
use crate::ack::{AckFields, AckReason, MAX_TABLE};
use crate::ids::{Seq, Serial};
use std::ops::Range;

/// Ranges in an ordinary ACK, half of them the newest, half the oldest. With an ACK for every fourth packet and 1 % lost each
/// hole is told some 400 times as one of the newest, and the ACKs take 3 % of what the data take.
const FEW_RANGES: usize = 32;

/// The way in which an ACK tells what has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AckForm {
    /// As every peer reads it.
    Table,
    /// An acknowledgement by ranges, in a packet that stays small.
    FewRanges,
    /// An acknowledgement by so many ranges at most.
    Ranges(usize),
}

impl Receive {
    /// The hard acknowledgement: all that has come in order, but never so much that a window of 0 would have to be offered
    /// (Rx notes 17.9).
    fn first(&self) -> Seq {
        let held_back = (self.ready.len() as u32 + 1).saturating_sub(self.window);
        let first = Seq(self.next.0 - held_back.min(self.next.0 - 1));
        if self.is_complete() { first } else { first.min(self.granted.max(Seq::FIRST)) }
    }

    /// Returns the fields of an ACK of this stream. The caller adds sizes.
    pub(crate) fn fields(&mut self, reason: AckReason, serial: Serial, packet_lens: (u32, u32)) -> AckFields {
        let first = self.first();
        self.told = self.granted;
        AckFields {
            first,
            previous: self.highest,
            serial,
            reason,
            window: self.granted.after(first).map_or(1, |n| n + 1).max(1),
            max_packet_len: packet_lens.0,
            natural_packet_len: packet_lens.1,
        }
    }

    /// The ACK's table, from its first packet on.
    pub(crate) fn table(&self) -> impl ExactSizeIterator<Item = bool> + '_ {
        let first = self.first();
        let held = self.next.0 - first.0;
        let count = self.highest.after(first).map_or(0, |n| n + 1).min(MAX_TABLE as u32);
        (0..count).map(move |i| match i.checked_sub(held) {
            None => true,
            Some(distance) => self.later.get(distance as usize).is_some_and(Option::is_some),
        })
    }

    /// The packets that have come, from the ACK's first packet on, as ranges.
    pub(super) fn ranges(&self) -> impl DoubleEndedIterator<Item = Range<Seq>> + Clone + '_ {
        let unread = self.first()..self.next;
        (!unread.is_empty()).then_some(unread).into_iter().chain(self.beyond.iter())
    }

    /// Appends an ACK's body to `out`.
    pub(crate) fn encode_ack(&self, fields: &AckFields, form: AckForm, announce: bool, out: &mut Vec<u8>) {
        match form {
            AckForm::Table => fields.encode(self.table(), announce, out),
            AckForm::FewRanges => fields.encode_ranges(self.ranges(), FEW_RANGES, out),
            AckForm::Ranges(fit) => fields.encode_ranges(self.ranges(), fit, out),
        }
    }
}
