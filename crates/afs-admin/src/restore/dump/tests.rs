//! Dumps that are whole, damaged, or have come in part.

use super::*;

const DUMP: &[u8] = include_bytes!("../../../../afs-dump/tests/samples/demo.dump");

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
            let piece = dump.next_piece(|| Ok(())).unwrap();
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
        assert!(text.starts_with(&format!("byte {end} of the dump: the dump ends here")), "{end}: {text}");
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
fn a_dump_without_any_vnode_is_refused_with_the_reason() {
    let mut bytes = vec![1];
    bytes.extend([0xb3a1_1322_u32, 1].iter().flat_map(|word| word.to_be_bytes()));
    bytes.extend([b'v', 0x20, 0, 0, 7, b't', 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4]);
    bytes.extend(0x3a21_4b6e_u32.to_be_bytes());
    let all = |bytes: &[u8]| Dump::begin(pieces(bytes, 7)).and_then(|mut dump| dump.check_rest());
    let error = all(&bytes).unwrap_err();
    assert!(error.to_string().contains("has no root directory"), "{error}");
    // One of what has changed since a date may well have nothing.
    let date = bytes.iter().position(|byte| *byte == b't').unwrap() + 3;
    bytes[date + 3] = 9;
    all(&bytes).unwrap();
}

#[test]
fn bytes_behind_the_end_are_a_fault() {
    let long = [DUMP, b"x"].concat();
    let error = Dump::begin(pieces(&long, 1000)).and_then(|mut dump| dump.check_rest()).unwrap_err();
    assert!(error.to_string().contains("more bytes follow"), "{error}");
}

/// Returns the arrival of the first vnodes, and of so many bytes of the one behind them.
fn arrivals(dump: &[u8], whole: usize, bytes: u64) -> Vec<Arrival> {
    let mut all: Vec<(VnodeRecord, Vec<u8>)> = Vec::new();
    let (mut reader, mut input) = (Reader::new(), dump);
    while let Some(event) = reader.next(&mut input).unwrap() {
        match event {
            Event::Vnode(record) => all.push((record.clone(), Vec::new())),
            Event::Data(data) => all.last_mut().unwrap().1.extend_from_slice(data),
            _ => {}
        }
    }
    let arrival = |(n, (record, data)): (usize, &(VnodeRecord, Vec<u8>))| {
        let bytes = (n == whole).then_some(bytes);
        let mut digest = VnodeDigest::of(record).unwrap().unwrap();
        digest.add(&data[..bytes.unwrap_or(data.len() as u64) as usize]);
        Arrival { vnode: record.fid.vnode, bytes, digest: digest.end() }
    };
    let most = whole + usize::from(bytes > 0);
    all.iter().enumerate().take(most).map(arrival).collect()
}

/// A file that lacks its first bytes.
type Rest = Option<(VnodeNumber, u64)>;

/// A dump that leaves out what came, with a copy of it: all that it gives out.
fn rest(dump: &[u8], arrived: &[Arrival], length: usize) -> Option<(Vec<u8>, Rest)> {
    let begun = Dump::begin(pieces(dump, length)).unwrap().with_copy(pieces(dump, length));
    rest_of(begun, arrived)
}

/// The same of a dump that can be read once.
fn rest_once(dump: &[u8], arrived: &[Arrival], length: usize) -> Option<(Vec<u8>, Rest)> {
    rest_of(Dump::begin(pieces(dump, length)).unwrap(), arrived)
}

fn rest_of(
    mut begun: Dump<impl FnMut() -> io::Result<Bytes>>,
    arrived: &[Arrival],
) -> Option<(Vec<u8>, Rest)> {
    let rest = begun.leave_out(arrived, || Ok(true)).unwrap()?;
    let mut all = Vec::new();
    loop {
        let piece = begun.next_piece(|| Ok(())).unwrap();
        if piece.is_empty() {
            return Some((all, rest));
        }
        all.extend_from_slice(&piece);
    }
}

/// The vnodes of a dump in which a file lacks its first bytes: which have attributes, and how many data.
fn vnodes(dump: &[u8], rest: Rest) -> Vec<(VnodeNumber, bool, usize)> {
    let mut found: Vec<(VnodeNumber, bool, usize)> = Vec::new();
    let (mut reader, mut input) = (Reader::new(), dump);
    loop {
        let mut lacks = None;
        match reader.next(&mut input).unwrap() {
            None => break,
            Some(Event::Vnode(record)) => {
                lacks = rest.filter(|(vnode, _)| *vnode == record.fid.vnode);
                found.push((record.fid.vnode, record.attributes.is_some(), 0));
            }
            Some(Event::Data(data)) => found.last_mut().unwrap().2 += data.len(),
            Some(_) => {}
        }
        if let Some((_, bytes)) = lacks {
            reader.lacks(bytes).unwrap();
        }
    }
    reader.finish().unwrap();
    found
}

#[test]
fn what_came_is_left_out_and_the_rest_is_a_dump() {
    let all = vnodes(DUMP, None);
    for length in [1, 7, 4096, DUMP.len()] {
        for whole in 1..=all.len() {
            let arrived = arrivals(DUMP, whole, 0);
            let (given, rest) = rest(DUMP, &arrived, length).unwrap();
            assert_eq!(rest, None);
            let (once, _) = rest_once(DUMP, &arrived, length).unwrap();
            assert!(once == given, "a dump that can be read once: {whole} of pieces of {length}");
            let expected = all.iter().enumerate().map(|(n, &(vnode, _, bytes))| match n < whole {
                true => (vnode, false, 0),
                false => (vnode, true, bytes),
            });
            assert_eq!(vnodes(&given, None), expected.collect::<Vec<_>>(), "{whole} of pieces of {length}");
        }
    }
}

#[test]
fn the_first_bytes_of_a_file_are_left_out() {
    let all = vnodes(DUMP, None);
    let is_file = |vnode: VnodeNumber| !vnode.is_directory();
    let (n, &(vnode, _, bytes)) =
        all.iter().enumerate().find(|(_, (vnode, _, bytes))| is_file(*vnode) && *bytes > 5).unwrap();
    for length in [1, 7, DUMP.len()] {
        let came = bytes as u64 - 2;
        let (given, rest) = rest(DUMP, &arrivals(DUMP, n, came), length).unwrap();
        assert_eq!(rest, Some((vnode, came)));
        let found = vnodes(&given, rest);
        assert_eq!(found[n], (vnode, true, 2));
        assert_eq!(found[n + 1..], all[n + 1..]);
        // What can be read once is sent as a whole.
        let (given, rest) = rest_once(DUMP, &arrivals(DUMP, n, came), length).unwrap();
        assert_eq!(rest, None);
        assert_eq!(vnodes(&given, rest)[n..], all[n..]);
    }
}

#[test]
fn another_file_is_not_taken_for_the_one_that_came() {
    let mut other = DUMP.to_vec();
    // A byte of data: the attributes are all alike.
    let at = (0..DUMP.len()).rev().find(|&at| {
        let mut changed = DUMP.to_vec();
        changed[at] ^= 1;
        let (mut reader, mut input) = (Reader::new(), &changed[..]);
        while let Ok(Some(event)) = reader.next(&mut input) {
            if let Event::Data(_) = event
                && reader.offset() > at as u64
            {
                return true;
            }
        }
        false
    });
    other[at.unwrap()] ^= 1;
    let arrived = arrivals(DUMP, usize::MAX - 1, 0);
    for rest in [rest, rest_once] {
        let (given, _) = rest(&other, &arrived, 4096).unwrap();
        let sent = vnodes(&given, None).into_iter().filter(|(_, is_sent, _)| *is_sent).count();
        assert_eq!(sent, 1, "what has changed is sent");
    }
    let nothing_alike: Vec<Arrival> =
        arrived.iter().map(|arrival| Arrival { digest: [0; 16], ..*arrival }).collect();
    assert_eq!(rest(DUMP, &nothing_alike, 4096), None);
    assert!(rest_once(DUMP, &nothing_alike, 4096).unwrap().0 == DUMP);
}
