//! Whole dumps: OpenAFS's samples and our own, read in pieces and written again; tags of others.

use crate::support::{Owned, SAMPLES, attributes, begin, fid, read, small};
use afs_dump::{
    DumpHeader, DumpRange, Event, Fault, Reader, VnodeKind, VnodeRecord, VolumeHeader, WriteError, Writer,
};
use afs_wire::ids::{AfsTime, SecurityLevel, VolumeId, VolumeType};

/// Writes what was read.
fn write(events: &[Owned]) -> Vec<u8> {
    let [Owned::Dump(dump), Owned::Volume(volume), rest @ ..] = events else { panic!("{events:?}") };
    let mut out = Vec::new();
    let mut writer = Writer::new(dump, volume, &mut out).unwrap();
    for event in rest {
        match event {
            Owned::Vnode(record, data) => {
                writer.vnode(record, &mut out).unwrap();
                writer.data(data, &mut out);
            }
            Owned::End => writer.clone().end(&mut out),
            other => panic!("{other:?}"),
        }
    }
    out
}

#[test]
fn openafs_dumps_are_written_again_byte_for_byte() {
    for (name, sample) in SAMPLES {
        let events = read(sample, usize::MAX).unwrap();
        assert!(write(&events) == sample, "{name}");
    }
}

#[test]
fn a_dump_that_comes_byte_by_byte_says_the_same() {
    for (name, sample) in SAMPLES.into_iter().chain([("small", &small()[..])]) {
        let whole = read(sample, usize::MAX).unwrap();
        for piece in [1, 2, 7, 100, 2047, 2049] {
            assert!(read(sample, piece).as_ref() == Ok(&whole), "{name} in pieces of {piece}");
        }
    }
}

#[test]
fn the_demo_volume_has_what_was_put_into_it() {
    let events = read(SAMPLES[0].1, 100).unwrap();
    let [Owned::Dump(dump), Owned::Volume(volume), vnodes @ .., Owned::End] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((dump.volume, &dump.name[..]), (VolumeId(0x2000_0013), &b"demo"[..]));
    assert_eq!((dump.ranges.len(), dump.ranges[0].from), (1, AfsTime(0)));
    assert_eq!((volume.id, volume.kind, volume.version), (dump.volume, VolumeType::READ_WRITE, 1));
    assert!(volume.in_service && volume.blessed);
    assert_eq!((volume.max_quota_kib, volume.used_kib, volume.file_count), (5000, 8, 4));
    assert_eq!(volume.offline_message, b"A volume utility is running.");
    let kinds: Vec<_> = vnodes
        .iter()
        .map(|vnode| match vnode {
            Owned::Vnode(VnodeRecord { fid, attributes: Some(attributes) }, data) => {
                assert_eq!(attributes.length, Some(data.len() as u64));
                (fid.vnode.0, attributes.kind, attributes.mode, data.len())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let (file, link, directory) = (VnodeKind::File, VnodeKind::Symlink, VnodeKind::Directory);
    let expected = [
        (1, directory, 0o777, 2048),
        (3, directory, 0o755, 2048),
        (2, file, 0o644, kinds[2].3),
        (4, link, 0o644, kinds[3].3),
    ];
    assert_eq!(kinds, expected);
    assert!(
        matches!(&vnodes[3], Owned::Vnode(_, target) if target.starts_with(b"#") && target.ends_with(b"."))
    );
}

#[test]
fn vnodes_without_data_and_unchanged_ones_stay_what_they_are() {
    let dump = small();
    let events = read(&dump, usize::MAX).unwrap();
    assert_eq!(write(&events), dump);
    let lengths: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Owned::Vnode(record, _) => Some(record.attributes.as_ref().map(|a| a.length)),
            _ => None,
        })
        .collect();
    assert_eq!(lengths, [Some(Some(2048)), Some(Some(5)), None, Some(None), Some(Some(0)), Some(Some(4))]);
}

#[test]
fn a_file_of_more_than_4_gib_is_read_in_pieces() {
    let length = (1 << 32) + 5;
    let mut stream = Vec::new();
    let mut writer = begin(&mut stream);
    let record = VnodeRecord { fid: fid(2, 2), attributes: Some(attributes(VnodeKind::File, Some(length))) };
    writer.vnode(&record, &mut stream).unwrap();
    writer.pass(length);
    let mut end = Vec::new();
    writer.end(&mut end);

    let mut reader = Reader::new();
    let mut input = &stream[..];
    let mut found = None;
    while let Some(event) = reader.next(&mut input).unwrap() {
        if let Event::Vnode(record) = event {
            found = Some(record.clone());
        }
    }
    assert_eq!(found, Some(record));
    let piece = vec![0; 1 << 20];
    let mut left = length;
    while left > 0 {
        let mut input = &piece[..left.min(piece.len() as u64) as usize];
        left -= input.len() as u64;
        assert!(matches!(reader.next(&mut input), Ok(Some(Event::Data(_)))));
    }
    assert_eq!(reader.offset(), stream.len() as u64 + length);
    assert_eq!(reader.next(&mut &end[..]), Ok(Some(Event::End)));
    assert_eq!(reader.finish(), Ok(()));
}

/// A dump with bytes put in at some place, and the events of the dump without them or the error.
fn with(place: usize, bytes: &[u8]) -> Result<bool, Fault> {
    let dump = small();
    let changed = [&dump[..place], bytes, &dump[place..]].concat();
    match read(&changed, 3) {
        Ok(events) => Ok(Ok(events) == read(&dump, usize::MAX)),
        Err(error) => {
            // The mark of one that must be understood is a byte before it.
            let mark = matches!(error.fault, Fault::UnknownTag { is_critical: true, .. });
            assert_eq!(error.offset, place as u64 + u64::from(mark));
            Err(error.fault)
        }
    }
}

/// Where the sections of `small` have room for more tags: behind the first tags of the dump's header, of the volume's, of the root.
fn places() -> [usize; 4] {
    let dump = small();
    let at = |tag: &[u8]| dump.windows(tag.len()).position(|window| window == tag).unwrap();
    [at(b"nv\0t"), at(b"q\0\0\0\0m"), at(b"t\x02l"), at(b"t\x01l")]
}

#[test]
fn unknown_tags_are_passed_over_by_their_ranges() {
    for place in places() {
        for tag in [
            &b"\x15\x00"[..],
            b"\x15\x03abc",
            b"\x60\x7fxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
            b"\x30\x80",
            b"\x30\x82\x00\x05abcde",
            b"\x30\x88\0\0\0\0\0\0\0\x01z",
            b"zabcd",
            b"x\x03\x03\x03\x03",
            b"\x7b",
            b"\x7c\x7d\x7f",
        ] {
            assert_eq!(with(place, tag), Ok(true), "{} at {place}", tag.escape_ascii());
        }
    }
}

#[test]
fn unknown_tags_that_must_be_understood_are_refused() {
    for place in places() {
        for tag in [&b"\x7e\x15\x00"[..], b"\x7ezabcd", b"\x7e\x7c"] {
            let refused = Err(Fault::UnknownTag { tag: tag[1], is_critical: true });
            assert_eq!(with(place, tag), refused, "{} at {place}", tag.escape_ascii());
        }
        for tag in [0x80, 0xff] {
            assert_eq!(with(place, &[tag]), Err(Fault::UnknownTag { tag, is_critical: false }));
        }
        assert_eq!(with(place, b"\x7e"), Ok(true), "a known tag may be marked");
    }
}

#[test]
fn a_level_is_read_as_it_was_written_and_a_reader_without_it_must_refuse() {
    let ranges = vec![DumpRange::default()];
    let dump = DumpHeader { volume: VolumeId(9), name: b"v".to_vec(), ranges };
    let write = |level| {
        let mut out = Vec::new();
        let volume = VolumeHeader { id: VolumeId(9), name: b"v".to_vec(), level, ..VolumeHeader::default() };
        Writer::new(&dump, &volume, &mut out).unwrap().end(&mut out);
        out
    };
    let plain = write(SecurityLevel::CLEAR);
    for level in [SecurityLevel::AUTH, SecurityLevel::CRYPT] {
        let stream = write(level);
        let (mut reader, mut input) = (Reader::new(), &stream[..]);
        let read = loop {
            match reader.next(&mut input).unwrap() {
                Some(Event::Volume(header)) => break header.level,
                Some(_) => {}
                None => panic!("there is a header"),
            }
        };
        assert_eq!(read, level);
        let range = reader.level_range().unwrap();
        let (start, end) = (range.start as usize, range.end as usize);
        // 7e: a reader that does not know the next tag must not pass over it.
        assert_eq!(stream[start..end], [0x7e, b'l', b'a', b'f', b'r', level.0 as u8]);
        assert_eq!([&stream[..start], &stream[end..]].concat(), plain);
    }
    assert!(!plain.contains(&0x7e));
}

/// OpenAFS's readers skip it: its tag is among those that tell their length.
#[test]
fn a_schedule_is_read_as_it_was_written_and_a_reader_without_it_passes_over_it() {
    let ranges = vec![DumpRange::default()];
    let dump = DumpHeader { volume: VolumeId(9), name: b"v".to_vec(), ranges };
    let write = |schedule, level| {
        let mut out = Vec::new();
        let name = b"v".to_vec();
        let volume = VolumeHeader { id: VolumeId(9), name, schedule, level, ..VolumeHeader::default() };
        Writer::new(&dump, &volume, &mut out).unwrap().end(&mut out);
        out
    };
    for level in [SecurityLevel::CLEAR, SecurityLevel::CRYPT] {
        for schedule in [None, Some([24, 7, 4, 12]), Some([0, 0, 0, 0]), Some([u16::MAX, 1, 256, 0])] {
            let stream = write(schedule, level);
            for piece in [1, 5, usize::MAX] {
                let events = read(&stream, piece).unwrap();
                let Owned::Volume(volume) = &events[1] else { panic!("{events:?}") };
                assert_eq!((volume.schedule, volume.level), (schedule, level));
            }
        }
    }
    let plain = write(None, SecurityLevel::CLEAR);
    let stream = write(Some([24, 7, 4, 12]), SecurityLevel::CLEAR);
    let at = plain.iter().zip(&stream).take_while(|(a, b)| a == b).count();
    let tag = b"S\x0cafr\0\0\x18\0\x07\0\x04\0\x0c";
    assert_eq!(&stream[at..at + tag.len()], tag);
    assert_eq!([&stream[..at], &stream[at + tag.len()..]].concat(), plain);
}

#[test]
fn a_limit_of_snapshots_is_read_as_it_was_written_beside_a_schedule_and_without() {
    let ranges = vec![DumpRange::default()];
    let dump = DumpHeader { volume: VolumeId(9), name: b"v".to_vec(), ranges };
    for schedule in [None, Some([24, 7, 4, 12])] {
        for snapshot_limit_kib in [None, Some(0), Some(0x1234_5678)] {
            let (mut stream, name) = (Vec::new(), b"v".to_vec());
            let id = VolumeId(9);
            let volume = VolumeHeader { id, name, schedule, snapshot_limit_kib, ..VolumeHeader::default() };
            Writer::new(&dump, &volume, &mut stream).unwrap().end(&mut stream);
            let events = read(&stream, 1).unwrap();
            let Owned::Volume(volume) = &events[1] else { panic!("{events:?}") };
            assert_eq!((volume.schedule, volume.snapshot_limit_kib), (schedule, snapshot_limit_kib));
            let tag = b"S\x08afr\0\x12\x34\x56\x78";
            let has = stream.windows(tag.len()).any(|bytes| bytes == tag);
            assert_eq!(has, snapshot_limit_kib == Some(0x1234_5678));
        }
    }
}

#[test]
fn a_tag_of_others_is_no_schedule() {
    let place = places()[1];
    for tag in [&b"S\x00"[..], b"S\x03abc", b"S\x0cabcdefghijkl", b"S\x08abcdefgh", b"S\x81\x05abcde"] {
        assert_eq!(with(place, tag), Ok(true), "{}", tag.escape_ascii());
    }
}

#[test]
fn a_tag_of_others_is_no_level() {
    let place = places()[1];
    for tag in [&b"labcd"[..], b"lafr\x03", b"l\0\0\0\x02"] {
        assert_eq!(with(place, tag), Ok(true), "{}", tag.escape_ascii());
        let marked = [b"\x7e", tag].concat();
        assert_eq!(with(place, &marked), Err(Fault::UnknownTag { tag: b'l', is_critical: true }));
    }
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let mut out = Vec::new();
    let mut writer = begin(&mut out);
    let length = out.len();
    let mut refuse = |vnode, unique, attributes| {
        let error = writer.vnode(&VnodeRecord { fid: fid(vnode, unique), attributes }, &mut out).unwrap_err();
        assert_eq!(out.len(), length, "{error}");
        error
    };
    assert!(matches!(refuse(0, 1, None), WriteError::Order(_) | WriteError::BadVnode { .. }));
    assert!(matches!(refuse(2, 0, None), WriteError::BadVnode { .. }));
    for (vnode, kind, length) in [
        (1, VnodeKind::File, 0),
        (2, VnodeKind::Directory, 2048),
        (1, VnodeKind::Directory, 5),
        (1, VnodeKind::Directory, 0),
    ] {
        let attributes = Some(attributes(kind, Some(length)));
        assert!(matches!(refuse(vnode, 1, attributes), WriteError::BadVnode { .. }));
    }
    writer.vnode(&VnodeRecord { fid: fid(4, 1), attributes: None }, &mut out).unwrap();
    for vnode in [4, 2, 1, 5] {
        let record = VnodeRecord { fid: fid(vnode, 1), attributes: None };
        assert!(matches!(writer.vnode(&record, &mut out), Err(WriteError::Order(_))), "{vnode}");
    }
}
