//! The arguments and results of every RPC of every interface: bytes that decode encode to no more than they were, and to
//! something that decodes to the same. The first two bytes of the input pick the RPC, the lowest bit of the third arguments
//! or results; with the next bit, zeros are put behind an input that is too short, so that few bytes reach every RPC.

use crate::shape::Shape;
use afs_wire::interfaces::INTERFACES;
use rxgen::xdr::{CharVec, Opaque, OpaqueFixed, Uuid, XdrArray, XdrList, XdrString};
use rxgen::{Decoder, Interface, RpcInfo, interface, wire_enum, wire_struct};

/// Every procedure there is: those of AFS, and a sample of every kind of type. An interface that is in none of both is
/// added here.
pub fn rpcs() -> impl Iterator<Item = &'static RpcInfo> + Clone {
    INTERFACES.iter().map(|interface| interface.rpcs).chain([Sample::RPCS]).flatten()
}

/// See the module.
pub fn run(input: &[u8]) -> u64 {
    let [high, low, side, body @ ..] = input else { return Shape::EMPTY.feature() };
    let which = usize::from(u16::from_be_bytes([*high, *low])) % rpcs().count();
    let rpc = rpcs().nth(which).expect("less than the count");
    let (decode, size) = match side & 1 {
        0 => (rpc.decode_args, rpc.args_size),
        _ => (rpc.decode_results, rpc.results_size),
    };
    let mut body = body.to_vec();
    if side & 2 != 0 {
        body.resize(body.len().max(size.min), 0);
    }
    let shape = Shape::EMPTY.with(which as u64).with((side & 3).into());
    let mut decoder = Decoder::new(&body);
    match decode(&mut decoder) {
        Err(error) => {
            assert!(error.offset <= body.len(), "{error}");
            assert!(error.needed().is_none_or(|needed| needed > 0), "{error}");
            shape.with_count(error.offset).with(error.needed().is_some().into()).feature()
        }
        Ok(once) => {
            assert!(once.len() <= decoder.offset(), "{} decodes to more than it was", rpc.name);
            let mut again = Decoder::new(&once);
            assert_eq!(decode(&mut again).as_ref(), Ok(&once), "{} is not stable", rpc.name);
            assert_eq!(again.remaining(), 0, "{}", rpc.name);
            shape.with(99).with_count(once.len()).feature()
        }
    }
}

wire_enum! {
    /// An open set.
    enum Kind: u32 {
        /// The only one with a name.
        1 KNOWN;
    }
}

wire_struct! {
    /// Values that fill no word.
    struct Small {
        /// Widened.
        a: u8,
        /// With a sign.
        b: i8,
        /// Widened.
        c: u16,
        /// With a sign.
        d: i16,
    }
}

interface! {
    /// One RPC for each kind of type, so that there are inputs for kinds that no real interface uses.
    Sample on service 1 port 7000 {
        /// Values of fixed size.
        1 Fixed (word: u32, hyper: i64, yes: bool, small: Small, kind: Kind, uuid: Uuid)
            -> (bytes: OpaqueFixed<7>, words: [u16; 3]);
        /// Counted, with limits.
        2 Counted (text: XdrString<40>, bytes: Opaque<40>, chars: CharVec<5>)
            -> (texts: XdrArray<XdrArray<XdrString<9>, 3>, 4>, chain: XdrList<Opaque<5>, 4>);
        /// Counted, without.
        3 Unlimited (words: XdrArray<u32, 0xffff_ffff>, smalls: XdrArray<Small, 0xffff_ffff>)
            -> (texts: XdrArray<XdrString<0xffff_ffff>, 0xffff_ffff>, chain: XdrList<u64, 0xffff_ffff>);
        /// A word each, for nothing.
        4 Empty (nothing: XdrArray<Opaque<0>, 0xffff_ffff>);
    }
}
