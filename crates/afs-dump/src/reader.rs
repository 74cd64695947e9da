//! Reads a dump that comes in pieces of any size. Knows the tags of OpenAFS (Volume service notes 5) and passes over others by their
//! ranges, so that dumps of AuriStor's and of rx-osd's servers can be read as far as they are dumps of files.
//!
//! It checks the stream and each record by itself. What one record says of another (parents, names, counts) is for a
//! caller that has all of them.

mod vnode;

use crate::error::{DumpError, Fault};
use crate::fields::{check_page, number};
use crate::records::{DumpHeader, DumpRange, VnodeRecord, VolumeHeader};
use crate::seen::{Seen, Sighting};
use crate::{CRITICAL, level, magic, schedule, section};
use afs_wire::acl::STORED_SIZE;
use afs_wire::directory::PAGE_SIZE;
use afs_wire::ids::{AfsTime, LocalFid, SecurityLevel, Uniquifier, VnodeNumber, VolumeId};
use std::ops::Range;

use vnode::VnodeBuilder;

/// The next item in a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<'a> {
    /// The dump's header: always first.
    Dump(&'a DumpHeader),
    /// The volume's header. A stream may have it again after vnodes; then the last one counts, as in OpenAFS's volserver.
    Volume(&'a VolumeHeader),
    /// A vnode. If it has a length, so many bytes of data follow.
    Vnode(&'a VnodeRecord),
    /// Some of the data of the last vnode; of a directory a whole page.
    Data(&'a [u8]),
    /// All was there. Nothing may follow.
    End,
}

/// Reads a dump. Call [`Reader::next`] until it gives nothing, then again with more bytes, and [`Reader::finish`] where no more come.
#[derive(Debug, Clone)]
pub struct Reader {
    /// Bytes taken.
    offset: u64,
    state: State,
    /// The section that is being read.
    section: Section,
    /// The place where the item that is being read begins.
    item_at: u64,
    /// Bytes of the item, or of a page.
    held: Vec<u8>,
    /// True if the next tag is marked as one that must be understood.
    is_critical: bool,
    dump: DumpHeader,
    volume: VolumeHeader,
    volume_at: u64,
    /// The place of the level in the volume's header, with the mark before it.
    level_at: Option<Range<u64>>,
    vnode: VnodeBuilder,
    /// The vnodes that were read: of files, and of directories.
    seen: [Seen; 2],
    failed: Option<DumpError>,
}

/// The part that is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Tag,
    /// So many bytes, and then they are understood.
    Item(Item, usize),
    /// Bytes up to a NUL.
    Text(Text),
    /// So many bytes that nobody needs.
    Skip(u64),
    /// So many bytes of a file or symbolic link.
    Data(u64),
    /// So many pages of a directory are left.
    Pages {
        next: u32,
        count: u32,
    },
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    /// A dump's magic and version, after its tag.
    Dump,
    /// A vnode's number and uniquifier, after the tag.
    Vnode,
    /// The mark of the end.
    End,
    /// The value of a tag of the section that is being read.
    Value(u8),
    /// The volume's level, and whether a reader has to know it.
    Level(bool),
    /// The length of the volume's schedule, or of the limit of its snapshots.
    ScheduleLength,
    /// The schedule or limit itself.
    Schedule,
    /// The number of words that follow: dates in the dump's header, uses in the volume's.
    Count(u8),
    /// As many words.
    Words(u8),
    /// The length of what has an unknown tag, or how many bytes say it.
    SkipLength,
    /// The bytes that say it.
    LongSkipLength,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Text {
    DumpName,
    VolumeName,
    OfflineMessage,
    Motd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Start,
    Dump,
    Volume,
    Vnode,
}

/// One step of the reader, without what it borrows.
enum Step<'i> {
    /// More bytes are needed.
    More,
    /// Goes on to the next.
    Go,
    Dump,
    Volume,
    Vnode,
    Data(&'i [u8]),
    Page,
    End,
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// Most ranges of dates in a dump's header (`MAXDUMPTIMES`).
    pub const RANGES_MAX: usize = 50;
    /// Longest text of a dump, in bytes. OpenAFS's names have 31 and its messages 127; others' may be longer.
    pub const TEXT_MAX: usize = 1023;

    /// Makes a reader at the beginning of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self {
            offset: 0,
            state: State::Tag,
            section: Section::Start,
            item_at: 0,
            held: Vec::new(),
            is_critical: false,
            dump: DumpHeader::default(),
            volume: VolumeHeader::default(),
            volume_at: 0,
            level_at: None,
            vnode: VnodeBuilder::new(LocalFid::default(), 0),
            seen: Default::default(),
            failed: None,
        }
    }

    /// Bytes that were read.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The place where the vnode begins that was told of last, in bytes from the beginning.
    #[must_use]
    pub fn vnode_offset(&self) -> u64 {
        self.vnode.at
    }

    /// The place where the volume's header begins that was told of last, in bytes from the beginning.
    #[must_use]
    pub fn volume_offset(&self) -> u64 {
        self.volume_at
    }

    /// The place of the level in the volume's header that was told of last, in bytes from the beginning: without these, the dump is one of
    /// a volume without a level.
    #[must_use]
    pub fn level_range(&self) -> Option<Range<u64>> {
        self.level_at.clone()
    }

    /// Notes that the first bytes of the file that was just told of are not in the stream, as its sender and its receiver have agreed. The
    /// last byte of its data has to be.
    ///
    /// # Errors
    ///
    /// It has not so many; from then on each call gives the same error.
    pub fn lacks(&mut self, bytes: u64) -> Result<(), DumpError> {
        match self.state {
            State::Data(left) if bytes < left => {
                self.state = State::Data(left - bytes);
                Ok(())
            }
            _ => {
                let error = self.bad_vnode("is said to have come in part, and has not so much data");
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Takes bytes from the front of `input`, and gives what is complete with them. `None`: all were taken, and more are needed.
    ///
    /// # Errors
    ///
    /// The stream is no dump, or damaged; from then on each call gives the same error.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Result<Option<Event<'s>>, DumpError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let step = loop {
            match self.step(input) {
                Ok(Step::Go) => {}
                Ok(step) => break step,
                Err(error) => {
                    self.failed = Some(error.clone());
                    return Err(error);
                }
            }
        };
        Ok(match step {
            Step::More => None,
            Step::Go => unreachable!("the loop goes on"),
            Step::Dump => Some(Event::Dump(&self.dump)),
            Step::Volume => Some(Event::Volume(&self.volume)),
            Step::Vnode => Some(Event::Vnode(&self.vnode.record)),
            Step::Data(data) => Some(Event::Data(data)),
            Step::Page => Some(Event::Data(&self.held)),
            Step::End => Some(Event::End),
        })
    }

    /// Notes that no more bytes come.
    ///
    /// # Errors
    ///
    /// The dump is not at its end; or the error that [`Reader::next`] gave.
    pub fn finish(&self) -> Result<(), DumpError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let within = match (self.state, self.section) {
            (State::End, _) => return Ok(()),
            (State::Data(_), _) => "a file's data",
            (State::Pages { .. }, _) => "a directory's pages",
            (State::Item(Item::End, _), _) => "the mark of its end",
            (State::Item(Item::Vnode, _), _) | (_, Section::Vnode) => "a vnode",
            (_, Section::Start | Section::Dump) => "the dump's header",
            (_, Section::Volume) => "the volume's header",
        };
        Err(DumpError { offset: self.offset, fault: Fault::Ends { within } })
    }

    fn step<'i>(&mut self, input: &mut &'i [u8]) -> Result<Step<'i>, DumpError> {
        match self.state {
            State::Tag => {
                self.held.clear();
                self.item_at = self.offset;
                match self.take(input, 1) {
                    [] => Ok(Step::More),
                    [tag, ..] => self.handle_tag(*tag),
                }
            }
            State::Item(item, length) => {
                if !self.hold(input, length) {
                    return Ok(Step::More);
                }
                self.state = State::Tag;
                let held = std::mem::take(&mut self.held);
                let done = self.handle_item(item, &held);
                self.held = held;
                self.held.clear();
                done
            }
            State::Text(text) => {
                let end = input.iter().position(|&byte| byte == 0);
                let piece = self.take(input, end.unwrap_or(usize::MAX));
                if self.held.len() + piece.len() > Self::TEXT_MAX {
                    return Err(self.at_item(Fault::TooLong { what: text.name(), limit: Self::TEXT_MAX }));
                }
                self.held.extend_from_slice(piece);
                if end.is_none() {
                    return Ok(Step::More);
                }
                self.take(input, 1);
                self.state = State::Tag;
                let value = std::mem::take(&mut self.held);
                *match text {
                    Text::DumpName => &mut self.dump.name,
                    Text::VolumeName => &mut self.volume.name,
                    Text::OfflineMessage => &mut self.volume.offline_message,
                    Text::Motd => &mut self.volume.motd,
                } = value;
                Ok(Step::Go)
            }
            State::Skip(left) => {
                let skipped = self.take(input, usize::try_from(left).unwrap_or(usize::MAX)).len() as u64;
                self.state = if skipped == left { State::Tag } else { State::Skip(left - skipped) };
                Ok(if skipped == left { Step::Go } else { Step::More })
            }
            State::Data(left) => {
                let data = self.take(input, usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - data.len() as u64;
                self.state = if left == 0 { State::Tag } else { State::Data(left) };
                Ok(if data.is_empty() { Step::More } else { Step::Data(data) })
            }
            State::Pages { next, count } => {
                if self.held.len() == PAGE_SIZE {
                    // The page before was told.
                    self.held.clear();
                }
                if self.held.is_empty() {
                    self.item_at = self.offset;
                }
                if !self.hold(input, PAGE_SIZE) {
                    return Ok(Step::More);
                }
                if let Err(why) = check_page(&self.held, next, count) {
                    let directory = self.vnode.record.fid;
                    return Err(self.at_item(Fault::BadPage { directory, page: next, why }));
                }
                let next = next + 1;
                self.state = if next == count { State::Tag } else { State::Pages { next, count } };
                Ok(Step::Page)
            }
            State::End if input.is_empty() => Ok(Step::More),
            State::End => Err(self.here(Fault::Continues)),
        }
    }

    /// The next bytes, at most so many.
    fn take<'i>(&mut self, input: &mut &'i [u8], most: usize) -> &'i [u8] {
        let (taken, rest) = input.split_at(most.min(input.len()));
        *input = rest;
        self.offset += taken.len() as u64;
        taken
    }

    /// Collects bytes until there are so many, and says whether there are.
    fn hold(&mut self, input: &mut &[u8], length: usize) -> bool {
        let piece = self.take(input, length - self.held.len());
        self.held.extend_from_slice(piece);
        self.held.len() == length
    }

    fn here(&self, fault: Fault) -> DumpError {
        DumpError { offset: self.offset, fault }
    }

    fn at_item(&self, fault: Fault) -> DumpError {
        DumpError { offset: self.item_at, fault }
    }

    fn bad_vnode(&self, why: &'static str) -> DumpError {
        DumpError { offset: self.vnode.at, fault: Fault::BadVnode { fid: self.vnode.record.fid, why } }
    }

    fn handle_tag<'i>(&mut self, tag: u8) -> Result<Step<'i>, DumpError> {
        if tag <= section::LAST {
            return self.begin_section(tag);
        }
        let state = match self.section {
            Section::Start => return Err(self.at_item(Fault::NotADump)),
            Section::Dump => match tag {
                b'v' => Some(State::Item(Item::Value(tag), 4)),
                b'n' => Some(State::Text(Text::DumpName)),
                b't' => Some(State::Item(Item::Count(tag), 2)),
                _ => None,
            },
            Section::Volume => match tag {
                b's' | b'b' | b't' => Some(State::Item(Item::Value(tag), 1)),
                b'n' => Some(State::Text(Text::VolumeName)),
                schedule::TAG => Some(State::Item(Item::ScheduleLength, 1)),
                level::TAG => Some(State::Item(Item::Level(self.is_critical), 4)),
                b'O' => Some(State::Text(Text::OfflineMessage)),
                b'M' => Some(State::Text(Text::Motd)),
                b'W' => Some(State::Item(Item::Count(tag), 2)),
                // V, the count of updates, is read by OpenAFS's volserver and not used.
                b'i' | b'v' | b'u' | b'p' | b'c' | b'q' | b'm' | b'd' | b'f' | b'a' | b'o' | b'C' | b'A'
                | b'U' | b'E' | b'B' | b'D' | b'Z' | b'V' => Some(State::Item(Item::Value(tag), 4)),
                _ => None,
            },
            Section::Vnode => match tag {
                b't' => Some(State::Item(Item::Value(tag), 1)),
                b'l' | b'b' => Some(State::Item(Item::Value(tag), 2)),
                b'v' | b'm' | b'a' | b'o' | b'g' | b'p' | b's' | b'f' => {
                    Some(State::Item(Item::Value(tag), 4))
                }
                b'h' => Some(State::Item(Item::Value(tag), 8)),
                b'A' => Some(State::Item(Item::Value(tag), STORED_SIZE)),
                _ => None,
            },
        };
        let is_critical = std::mem::take(&mut self.is_critical);
        self.state = match (state, tag) {
            (Some(state), _) => state,
            (None, _) if is_critical => {
                return Err(self.at_item(Fault::UnknownTag { tag, is_critical }));
            }
            (None, 0x15..=0x60) => State::Item(Item::SkipLength, 1),
            (None, 0x61..=0x7a) => State::Skip(4),
            (None, CRITICAL) => {
                self.is_critical = true;
                State::Tag
            }
            (None, 0x7b..=0x7f) => State::Tag,
            (None, _) => return Err(self.at_item(Fault::UnknownTag { tag, is_critical })),
        };
        Ok(Step::Go)
    }

    /// A section begins, so the one before has ended.
    fn begin_section<'i>(&mut self, tag: u8) -> Result<Step<'i>, DumpError> {
        if std::mem::take(&mut self.is_critical) && !(section::DUMP..=section::END).contains(&tag) {
            return Err(self.at_item(Fault::UnknownTag { tag, is_critical: true }));
        }
        let (next, state) = match (self.section, tag) {
            (Section::Start, section::DUMP) => (Section::Start, State::Item(Item::Dump, 8)),
            (Section::Start, _) => return Err(self.at_item(Fault::NotADump)),
            (Section::Dump | Section::Vnode, section::VOLUME) => (Section::Volume, State::Tag),
            (Section::Volume | Section::Vnode, section::VNODE) => {
                (Section::Vnode, State::Item(Item::Vnode, 8))
            }
            (Section::Volume | Section::Vnode, section::END) => (self.section, State::Item(Item::End, 4)),
            _ => return Err(self.at_item(Fault::OutOfPlace { tag })),
        };
        let told = match self.section {
            Section::Start => Step::Go,
            Section::Dump => {
                let missing = match &self.dump {
                    DumpHeader { volume: VolumeId(0), .. } => Some("of which volume it is"),
                    DumpHeader { ranges, .. } if ranges.is_empty() => Some("of which time it is"),
                    _ => None,
                };
                match missing {
                    Some(what) => return Err(self.at_item(Fault::MissingInHeader(what))),
                    None => Step::Dump,
                }
            }
            Section::Volume => Step::Volume,
            Section::Vnode if self.vnode.is_told => Step::Go,
            Section::Vnode => {
                self.complete_vnode(None)?;
                Step::Vnode
            }
        };
        if tag == section::VOLUME {
            (self.volume, self.volume_at) = (VolumeHeader::default(), self.item_at);
            self.level_at = None;
        }
        (self.section, self.state) = (next, state);
        Ok(told)
    }

    fn handle_item<'i>(&mut self, item: Item, held: &[u8]) -> Result<Step<'i>, DumpError> {
        match item {
            Item::Dump => {
                if number(&held[..4]) != u64::from(magic::DUMP) {
                    return Err(self.at_item(Fault::NotADump));
                }
                let version = number(&held[4..]) as u32;
                if version != magic::VERSION {
                    return Err(self.at_item(Fault::Version(version)));
                }
                self.section = Section::Dump;
            }
            Item::Vnode => {
                let (vnode, unique) = (number(&held[..4]) as u32, number(&held[4..]) as u32);
                let fid = LocalFid { vnode: VnodeNumber(vnode), unique: Uniquifier(unique) };
                self.vnode = VnodeBuilder::new(fid, self.item_at);
                if vnode == 0 || unique == 0 {
                    return Err(self.bad_vnode("has a number that no vnode has"));
                }
                match self.seen[usize::from(fid.vnode.is_directory())].note(vnode / 2) {
                    Sighting::New => {}
                    Sighting::Again => return Err(self.at_item(Fault::Twice(fid.vnode))),
                    Sighting::Unknown => return Err(self.at_item(Fault::TooLate(fid.vnode))),
                }
            }
            Item::End => {
                if number(held) != u64::from(magic::END) {
                    return Err(self.at_item(Fault::BadEnd));
                }
                self.state = State::End;
                return Ok(Step::End);
            }
            Item::Count(tag) => self.handle_count(tag, number(held) as u16)?,
            Item::Words(tag) => self.handle_words(tag, held),
            Item::ScheduleLength if [schedule::LENGTH, schedule::LENGTH_OF_LIMIT].contains(&held[0]) => {
                self.state = State::Item(Item::Schedule, held[0].into());
            }
            Item::Schedule => match held.strip_prefix(&schedule::MARK) {
                Some(limit) if limit.len() == 4 => {
                    self.volume.snapshot_limit_kib = Some(number(limit) as u32);
                }
                Some(counts) => {
                    let count = |at: usize| number(&counts[at..at + 2]) as u16;
                    self.volume.schedule = Some([0, 2, 4, 6].map(count));
                }
                None => {}
            },
            // Others may use the tag.
            Item::SkipLength | Item::ScheduleLength => match held[0] {
                length @ 0..0x80 => self.state = State::Skip(length.into()),
                0x80 => {}
                more @ 0x81..=0x88 => {
                    self.state = State::Item(Item::LongSkipLength, usize::from(more & 0x7f))
                }
                _ => return Err(self.at_item(Fault::BadLength)),
            },
            Item::LongSkipLength => self.state = State::Skip(number(held)),
            Item::Level(is_critical) => {
                let value = number(held) as u32;
                let level = SecurityLevel(value & 0xff);
                if value >> 8 == level::MARK && level.word().is_some() {
                    self.volume.level = level;
                    self.level_at = Some(self.item_at - u64::from(is_critical)..self.offset);
                } else if is_critical {
                    return Err(self.at_item(Fault::UnknownTag { tag: level::TAG, is_critical }));
                }
            }
            Item::Value(tag) => match self.section {
                Section::Start => unreachable!("no values before the dump's header"),
                Section::Dump => self.dump.volume = VolumeId(number(held) as u32),
                Section::Volume => self.volume.set(tag, number(held) as u32),
                Section::Vnode => return self.handle_vnode_value(tag, held),
            },
        }
        if matches!(self.state, State::Skip(0)) {
            self.state = State::Tag;
        }
        Ok(Step::Go)
    }

    fn handle_count(&mut self, tag: u8, words: u16) -> Result<(), DumpError> {
        if self.section == Section::Dump {
            if words == 0 || !words.is_multiple_of(2) || usize::from(words) > 2 * Self::RANGES_MAX {
                return Err(self.at_item(Fault::BadRanges(words)));
            }
        } else if words == 0 {
            return Ok(());
        }
        self.state = State::Item(Item::Words(tag), 4 * usize::from(words));
        Ok(())
    }

    fn handle_words(&mut self, _tag: u8, held: &[u8]) {
        let words = held.chunks_exact(4).map(|word| number(word) as u32);
        if self.section == Section::Dump {
            let words: Vec<u32> = words.collect();
            let range = |pair: &[u32]| DumpRange { from: AfsTime(pair[0]), to: AfsTime(pair[1]) };
            self.dump.ranges = words.chunks_exact(2).map(range).collect();
        } else {
            self.volume.week_use.iter_mut().zip(words).for_each(|(day, uses)| *day = uses);
        }
    }
}

impl Text {
    fn name(self) -> &'static str {
        match self {
            Self::DumpName => "the volume's name in the dump's header",
            Self::VolumeName => "the volume's name",
            Self::OfflineMessage => "the message of a volume that is offline",
            Self::Motd => "the message of the day",
        }
    }
}
