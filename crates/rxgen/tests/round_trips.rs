//! What holds for every type and every input, tried with random ones: a value survives the wire, its size is within
//! what its type says, each of its beginnings asks for more, and no bytes whatever panic or cost more than themselves.

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use rxgen::xdr::{
    CharVec, Opaque, OpaqueFixed, Uuid, WireSize, Xdr, XdrArray, XdrList, XdrString, from_bytes, to_bytes,
};
use rxgen::{Interface, interface, wire_enum, wire_struct};
use std::fmt::Debug;

wire_enum! {
    /// An open set.
    enum Kind: u32 {
        /// The only one with a name.
        1 KNOWN;
    }
}

wire_struct! {
    /// One field of each kind.
    struct Everything {
        /// An integer.
        word: u32,
        /// A number with a sign.
        signed: i32,
        /// Long.
        hyper: u64,
        /// Long, with a sign.
        signed_hyper: i64,
        /// Yes or no.
        yes: bool,
        /// Widened.
        small: Small,
        /// A newtype.
        kind: Kind,
        /// Bytes without a NUL.
        string: XdrString<40>,
        /// Bytes.
        opaque: Opaque<40>,
        /// So many bytes.
        fixed: OpaqueFixed<7>,
        /// So many words.
        array: [u16; 3],
        /// Chars.
        chars: CharVec<5>,
        /// Nested counts.
        nested: XdrArray<XdrArray<XdrString<9>, 3>, 4>,
        /// A chain.
        list: XdrList<Opaque<5>, 4>,
        /// Eleven words.
        uuid: Uuid,
    }

    /// The small integers.
    struct Small {
        /// Widened.
        a: u8,
        /// Sign-extended.
        b: i8,
        /// Widened.
        c: u16,
        /// Sign-extended.
        d: i16,
    }
}

/// An interface with all of it.
mod all {
    use super::*;

    interface! {
        /// All there is.
        All on service 1 port 7000 {
            /// One of each.
            1 Everything1 (everything: Everything) -> (everything: Everything);
            /// Counts without limits.
            2 Unlimited (words: XdrArray<u32, 0xffff_ffff>, bytes: Opaque<0xffff_ffff>)
                -> (strings: XdrArray<XdrString<0xffff_ffff>, 0xffff_ffff>, list: XdrList<u64, 0xffff_ffff>);
        }
    }
}

fn bytes(rng: &mut StdRng, max: usize) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..=max)];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn text<const MAX: usize>(rng: &mut StdRng) -> XdrString<MAX> {
    XdrString::new(bytes(rng, MAX).into_iter().map(|byte| byte.max(1)).collect::<Vec<u8>>()).unwrap()
}

fn many<T>(rng: &mut StdRng, max: usize, mut item: impl FnMut(&mut StdRng) -> T) -> Vec<T> {
    (0..rng.random_range(0..=max)).map(|_| item(rng)).collect()
}

fn everything(rng: &mut StdRng) -> Everything {
    Everything {
        word: rng.random(),
        signed: rng.random(),
        hyper: rng.random(),
        signed_hyper: rng.random(),
        yes: rng.random(),
        small: Small { a: rng.random(), b: rng.random(), c: rng.random(), d: rng.random() },
        kind: Kind(rng.random_range(0..3)),
        string: text(rng),
        opaque: Opaque::new(bytes(rng, 40)).unwrap(),
        fixed: OpaqueFixed(rng.random()),
        array: rng.random(),
        chars: CharVec(rng.random()),
        nested: XdrArray::new(many(rng, 4, |rng| XdrArray::new(many(rng, 3, text)).unwrap())).unwrap(),
        list: XdrList::new(many(rng, 4, |rng| Opaque::new(bytes(rng, 5)).unwrap())).unwrap(),
        uuid: Uuid {
            time_low: rng.random(),
            time_mid: rng.random(),
            time_hi_and_version: rng.random(),
            clock_seq_hi_and_reserved: rng.random(),
            clock_seq_low: rng.random(),
            node: rng.random(),
        },
    }
}

fn check<T: Xdr + PartialEq + Debug>(value: &T, seed: u64) {
    let wire = to_bytes(value);
    assert_eq!(wire.len() % 4, 0, "seed {seed}");
    assert!(
        (T::SIZE.min..=T::SIZE.max).contains(&wire.len()),
        "seed {seed}: {} bytes, {:?}",
        wire.len(),
        T::SIZE
    );
    assert_eq!(from_bytes::<T>(&wire).as_ref(), Ok(value), "seed {seed}");
    for end in 0..wire.len() {
        let error = from_bytes::<T>(&wire[..end]).expect_err("a beginning is not a value");
        let needed = error.needed().unwrap_or_else(|| panic!("seed {seed}, first {end} bytes: {error}"));
        assert!(needed > 0 && end + needed <= wire.len(), "seed {seed}, first {end} bytes: {error}");
        assert!(error.offset <= end, "seed {seed}, first {end} bytes: {error}");
    }
}

#[test]
fn values_survive_the_wire_and_their_beginnings_ask_for_no_more_than_is_missing() {
    for seed in 0..500 {
        check(&everything(&mut StdRng::seed_from_u64(seed)), seed);
    }
}

#[test]
fn no_bytes_panic_and_what_decodes_is_stable() {
    let mut decoded = 0;
    for seed in 0..20_000 {
        let mut rng = StdRng::seed_from_u64(seed);
        // Half of them valid but for a few bytes, since noise alone does not get far.
        let mut input = if rng.random() { to_bytes(&everything(&mut rng)) } else { bytes(&mut rng, 400) };
        for _ in 0..rng.random_range(0..4) {
            if !input.is_empty() {
                let at = rng.random_range(0..input.len());
                input[at] = *[0, 1, 0x7f, 0xff, rng.random()].get(rng.random_range(0..5)).unwrap();
            }
        }
        for rpc in all::All::RPCS {
            for decode in [rpc.decode_args, rpc.decode_results] {
                let Ok(once) = decode(&mut rxgen::Decoder::new(&input)) else { continue };
                decoded += 1;
                assert!(once.len() <= input.len(), "seed {seed}: {} decodes to more than it was", rpc.name);
                let twice = decode(&mut rxgen::Decoder::new(&once));
                assert_eq!(twice.as_ref(), Ok(&once), "seed {seed}: {}", rpc.name);
            }
        }
    }
    assert!(decoded > 1000, "only {decoded} inputs got through, too few to mean anything");
}

#[test]
fn hostile_counts_are_refused_with_what_they_would_need() {
    let unlimited = &all::All::RPCS[1];
    assert_eq!(unlimited.args_size, WireSize { min: 8, max: 8 + 4 * 0xffff_ffff + 0x1_0000_0000 });
    for decode in [unlimited.decode_args, unlimited.decode_results] {
        let error = decode(&mut rxgen::Decoder::new(&[0xff; 12])).unwrap_err();
        assert_eq!(error.needed(), Some(4 * 0xffff_ffff - 8), "{error}");
    }
}
