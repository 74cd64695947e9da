//! Dumps that are damaged: cut off, lying, repeating themselves, or changed at random.

use crate::support::{SAMPLES, attributes, begin, fid, read, small};
use afs_dump::{DumpError, Event, Fault, Reader, VnodeKind, VnodeRecord};
use afs_wire::acl::AclError;
use afs_wire::directory::Directory;
use afs_wire::ids::VnodeNumber;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[test]
fn a_dump_that_is_cut_off_anywhere_is_told_by_its_length() {
    for (name, sample) in SAMPLES.into_iter().chain([("small", &small()[..])]) {
        for length in 0..sample.len() {
            match read(&sample[..length], usize::MAX) {
                Err(DumpError { offset, fault: Fault::Ends { .. } }) if offset == length as u64 => {}
                other => panic!("{name} of {length} bytes: {other:?}"),
            }
        }
    }
}

#[test]
fn an_error_tells_the_place_and_what_is_wrong() {
    let text = |stream: &[u8]| read(stream, usize::MAX).unwrap_err().to_string();
    let dump = SAMPLES[1].1;
    assert_eq!(
        text(&dump[..1000]),
        "byte 1000 of the dump: the dump ends here, in the middle of a directory's pages"
    );
    assert_eq!(text(b"BZh9"), "byte 0 of the dump: this is no dump of a volume");
    assert_eq!(
        text(&[dump, &b"\n"[..]].concat()),
        "byte 2463 of the dump: the dump has ended, and more bytes follow"
    );
}

/// A dump of vnodes with their data.
fn dump_of(vnodes: &[(u32, Option<VnodeKind>, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    begin(&mut out);
    for &(vnode, kind, data) in vnodes {
        let attributes = kind.map(|kind| attributes(kind, Some(data.len() as u64)));
        // Each by a writer of its own, which has no order yet.
        let mut writer = begin(&mut Vec::new());
        writer.vnode(&VnodeRecord { fid: fid(vnode, 7), attributes }, &mut out).unwrap();
        writer.data(data, &mut out);
    }
    begin(&mut Vec::new()).end(&mut out);
    out
}

#[test]
fn a_vnode_that_comes_twice_is_refused_where_it_comes_again() {
    let pages = Directory::new(fid(1, 1), fid(1, 1)).into_bytes();
    let first =
        [(1, Some(VnodeKind::Directory), &pages[..]), (4, Some(VnodeKind::File), b"x"), (2, None, b"")];
    let is_read = |more: &[(u32, Option<VnodeKind>, &'static [u8])]| {
        let vnodes: Vec<_> = first.iter().copied().chain(more.iter().copied()).collect();
        read(&dump_of(&vnodes), usize::MAX).map(|_| ())
    };
    assert_eq!(is_read(&[]), Ok(()), "another order is no fault");
    assert_eq!(is_read(&[(6, None, b""), (3, None, b"")]), Ok(()));
    let end = dump_of(&first).len() as u64 - 5;
    for vnode in [1, 2, 4] {
        let refused = DumpError { offset: end, fault: Fault::Twice(VnodeNumber(vnode)) };
        assert_eq!(is_read(&[(vnode, None, b"")]), Err(refused));
    }
}

/// The fault of the small dump with one byte string put in another's place, and its offset from that place.
fn fault_of(old: &[u8], new: &[u8]) -> (i64, Fault) {
    let dump = small();
    let places: Vec<usize> = (0..dump.len()).filter(|&at| dump[at..].starts_with(old)).collect();
    let [at] = places[..] else { panic!("{} stands at {places:?}", old.escape_ascii()) };
    let changed = [&dump[..at], new, &dump[at + old.len()..]].concat();
    let error = read(&changed, 11).unwrap_err();
    assert_eq!(read(&changed, usize::MAX), Err(error.clone()));
    (error.offset as i64 - at as i64, error.fault)
}

#[test]
fn lengths_that_lie_are_noticed() {
    let is_bad_vnode = |fault: &Fault| matches!(fault, Fault::BadVnode { .. });
    // One byte less than there is: the "o" that is left is no tag that may stand there.
    let (_, fault) = fault_of(b"f\0\0\0\x05hello", b"f\0\0\0\x04hello");
    assert!(is_bad_vnode(&fault), "{fault:?}");
    // More than there is: the rest of the dump is data.
    let (_, fault) = fault_of(b"f\0\0\0\x05hello", b"f\x7f\xff\xff\xffhello");
    assert_eq!(fault, Fault::Ends { within: "a file's data" });
    let (_, fault) = fault_of(b"f\0\0\0\x05hello", b"h\xff\xff\xff\xff\xff\xff\xff\xffhello");
    assert!(is_bad_vnode(&fault), "{fault:?}");
    for pages in [&b"f\0\0\x08\x01"[..], b"f\0\0\0\0", b"f\0\x20\0\0"] {
        let (_, fault) = fault_of(b"f\0\0\x08\0", pages);
        assert!(is_bad_vnode(&fault), "{fault:?}");
    }
    let (_, fault) = fault_of(b"f\0\0\0\x04#a:.", b"f\0\0\x10\0#a:.");
    assert!(is_bad_vnode(&fault), "{fault:?}");
    let (at, fault) = fault_of(b"f\0\0\x08\0", b"f\0\0\x10\0");
    assert_eq!(at, 5);
    assert!(matches!(
        fault,
        Fault::BadPage { page: 0, why: "says another number of pages than there are", .. }
    ));
}

#[test]
fn pages_that_are_none_are_noticed() {
    let (at, fault) = fault_of(b"f\0\0\x08\0\0\x01\x04\xd2", b"f\0\0\x08\0\0\x01\x04\xd3");
    assert_eq!(at, 5, "the page's first byte");
    assert!(matches!(fault, Fault::BadPage { page: 0, why: "is no page of a directory", .. }), "{fault:?}");
}

#[test]
fn vnodes_that_cannot_be_are_noticed() {
    for (old, new) in [
        (&b"\x03\0\0\0\x02\0\0\0\x0c"[..], &b"\x03\0\0\0\x02\0\0\0\0"[..]),
        (b"\x03\0\0\0\x02\0\0\0\x0c", b"\x03\0\0\0\0\0\0\0\x0c"),
        (b"\x03\0\0\0\x02\0\0\0\x0c", b"\x03\0\0\0\x03\0\0\0\x0c"),
        (b"t\x02l", b"t\x01l"),
        (b"t\x02l", b"t\x04l"),
        (b"t\x02l", b"l"),
    ] {
        let (_, fault) = fault_of(old, new);
        assert!(matches!(fault, Fault::BadVnode { .. }), "{} {fault:?}", new.escape_ascii());
    }
    let (at, fault) = fault_of(b"A\0\0\0\x1c\0\0\0\x01", b"A\0\0\0\x1c\0\0\0\x02");
    assert!(matches!(fault, Fault::BadAcl { why: AclError::BadHeader, .. }) && at == 0, "{fault:?}");
}

#[test]
fn headers_that_say_too_little_or_too_much_are_refused() {
    let fault = |old: &[u8], new: &[u8]| fault_of(old, new).1;
    assert_eq!(fault(b"\xB3\xA1\x13\x22", b"\xB3\xA1\x13\x23"), Fault::NotADump);
    assert_eq!(fault(b"\x22\0\0\0\x01", b"\x22\0\0\0\x02"), Fault::Version(2));
    assert_eq!(fault(b"v\0\0\0\x09n", b"n"), Fault::MissingInHeader("of which volume it is"));
    assert_eq!(fault(b"t\0\x02\0\0\x01\xf4\0\0\x07\xd0", b""), Fault::MissingInHeader("of which time it is"));
    for words in [0, 1, 3, 102, 0xffff_u16] {
        let new = [&b"t"[..], &words.to_be_bytes()].concat();
        assert_eq!(fault(b"t\0\x02", &new), Fault::BadRanges(words));
    }
    let long = [&b"n"[..], &[b'x'; 2000], b"\0t"].concat();
    assert!(matches!(fault(b"nv\0t", &long), Fault::TooLong { limit: 1023, .. }));
    assert_eq!(fault(b"\x04\x3a\x21", b"\x04\x3a\x22"), Fault::BadEnd);
    assert_eq!(fault(b"\x04\x3a\x21", b"\x05\x3a\x21"), Fault::OutOfPlace { tag: 5 });
}

#[test]
fn damage_at_random_ends_in_an_error_or_another_dump() {
    let seed = 35;
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let small = small();
    let samples: Vec<&[u8]> = SAMPLES.iter().map(|(_, sample)| *sample).chain([&small[..]]).collect();
    let (mut errors, mut dumps) = (0, 0);
    for _ in 0..20_000 {
        let mut stream = samples[rng.random_range(0..samples.len())].to_vec();
        for _ in 0..rng.random_range(1..4) {
            // Mostly where tags are, which is not in pages.
            let end = if rng.random_bool(0.7) { stream.len().min(450) } else { stream.len() };
            let at = rng.random_range(0..end);
            match rng.random_range(0..4) {
                0 => stream[at] = rng.random(),
                1 => stream[at] ^= 1 << rng.random_range(0..8),
                2 => drop(stream.drain(at..(at + rng.random_range(1..9)).min(end))),
                _ => stream.insert(at, rng.random()),
            }
        }
        let mut reader = Reader::new();
        let mut offset = 0;
        let result = stream.chunks(rng.random_range(1..3000)).try_for_each(|mut input| {
            while let Some(event) = reader.next(&mut input)? {
                let Event::Data(data) = event else { continue };
                assert!(!data.is_empty());
            }
            assert!(input.is_empty() && reader.offset() > offset);
            offset = reader.offset();
            Ok(())
        });
        match result.and_then(|()| reader.finish()) {
            Ok(()) => dumps += 1,
            Err(error) => {
                assert!(error.offset <= stream.len() as u64, "{error}");
                assert_eq!(reader.finish(), Err(error), "an error stays");
                errors += 1;
            }
        }
    }
    println!("{errors} errors, {dumps} dumps");
    assert!(errors > 1000 && dumps > 1000);
}
