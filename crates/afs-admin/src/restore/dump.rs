//! A dump on its way to a server: it is checked piece by piece, so that one that is damaged or ends early is told with the place of the
//! fault, and never sent to its end. Where its bytes come from is the caller's.

use std::collections::VecDeque;
use std::io;

use afs_dump::{DumpError, Event, Reader};
use bytes::Bytes;

/// Whether these are the last bytes of a dump.
pub fn ends_a_dump(last: [u8; 4]) -> bool {
    u32::from_be_bytes(last) == afs_dump::END_MARK
}

/// A dump from a source that gives it piece by piece, and an empty piece at its end.
#[derive(Debug)]
pub struct Dump<S> {
    source: S,
    reader: Reader,
    /// What was read to learn what the dump is, and has not been given out yet.
    ahead: VecDeque<Bytes>,
    is_incremental: bool,
}

impl<S: FnMut() -> io::Result<Bytes>> Dump<S> {
    /// Reads so much that it is known what the dump has.
    ///
    /// # Errors
    ///
    /// The source's; or of the kind [`io::ErrorKind::InvalidData`] with the [`DumpError`], when the source gives no dump.
    pub fn begin(source: S) -> io::Result<Self> {
        let mut dump = Self { source, reader: Reader::new(), ahead: VecDeque::new(), is_incremental: false };
        let mut is_known = false;
        while !is_known {
            let piece = (dump.source)()?;
            is_known = dump.check(&piece)?;
            dump.ahead.push_back(piece);
        }
        Ok(dump)
    }

    /// Whether the dump has only what has changed since some time.
    pub const fn is_incremental(&self) -> bool {
        self.is_incremental
    }

    /// How many bytes were read.
    pub fn length(&self) -> u64 {
        self.reader.offset()
    }

    /// The next piece, and an empty one at the end of a whole dump.
    ///
    /// # Errors
    ///
    /// As [`Self::begin`]. No piece with a fault is given out.
    pub fn next_piece(&mut self) -> io::Result<Bytes> {
        if let Some(piece) = self.ahead.pop_front() {
            return Ok(piece);
        }
        let piece = (self.source)()?;
        self.check(&piece)?;
        Ok(piece)
    }

    /// Reads all that is left.
    ///
    /// # Errors
    ///
    /// As [`Self::begin`].
    pub fn check_rest(&mut self) -> io::Result<()> {
        while !self.next_piece()?.is_empty() {}
        Ok(())
    }

    /// Checks a piece. Says whether the dump's header was in it.
    fn check(&mut self, piece: &[u8]) -> io::Result<bool> {
        if piece.is_empty() {
            self.reader.finish().map_err(faulty)?;
        }
        let (mut input, mut has_header) = (piece, false);
        while let Some(event) = self.reader.next(&mut input).map_err(faulty)? {
            if let Event::Dump(header) = event {
                has_header = true;
                self.is_incremental = header.ranges.iter().any(|range| range.from.0 != 0);
            }
        }
        Ok(has_header)
    }
}

fn faulty(error: DumpError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &[u8] = include_bytes!("../../../afs-dump/tests/samples/demo.dump");

    fn pieces(dump: &[u8], length: usize) -> impl FnMut() -> io::Result<Bytes> {
        let mut rest = Bytes::copy_from_slice(dump);
        move || Ok(rest.split_to(length.min(rest.len())))
    }

    #[test]
    fn a_whole_dump_comes_as_it_is_in_pieces_of_any_size() {
        for length in [1, 7, 4096, DUMP.len()] {
            let mut dump = Dump::begin(pieces(DUMP, length)).unwrap();
            assert!(!dump.is_incremental());
            let mut all = Vec::new();
            loop {
                let piece = dump.next_piece().unwrap();
                if piece.is_empty() {
                    break;
                }
                all.extend_from_slice(&piece);
            }
            assert!(all == DUMP);
            assert_eq!(dump.length(), DUMP.len() as u64);
        }
    }

    #[test]
    fn a_dump_that_ends_anywhere_is_never_given_to_its_end() {
        for end in 0..DUMP.len() {
            let cut = Dump::begin(pieces(&DUMP[..end], 1000)).and_then(|mut dump| dump.check_rest());
            let text = cut.unwrap_err().to_string();
            assert!(
                text.starts_with(&format!("byte {end} of the dump: the dump ends here")),
                "{end}: {text}"
            );
        }
    }

    #[test]
    fn what_is_no_dump_is_told_before_anything_is_given_out() {
        for wrong in [&b"#!/bin/sh\n"[..], b"\x01\x00\x00\x00\x00\x00\x00\x00\x01"] {
            let error = Dump::begin(pieces(wrong, 100)).map(drop).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().contains("this is no dump of a volume"), "{error}");
        }
    }

    #[test]
    fn bytes_behind_the_end_are_a_fault() {
        let long = [DUMP, b"x"].concat();
        let error = Dump::begin(pieces(&long, 1000)).and_then(|mut dump| dump.check_rest()).unwrap_err();
        assert!(error.to_string().contains("more bytes follow"), "{error}");
    }
}
