//! XDR, and the notation in which an RPC interface is declared.
//!
//! An interface is data: one entry per procedure with its opcode, arguments and results, from which come the types,
//! their encoding, a table of what there is, and the dispatch to handlers. [`interface!`] shows how one is written
//! and read; [`xdr`] says how values look on the wire; [`rpc`] what a call consists of; [`serve`] what a server does
//! with one; [`collect`] how a value is decoded from a stream that gives no length.
//!
//! Nothing here does I/O, reads a clock or spawns anything, and nothing knows of any particular interface or
//! transport: a transport implements [`serve::CallStream`] and calls [`serve::Dispatch`].
//!
//! # What to open for a change
//!
//! - The encoding of values: [`xdr`].
//! - The notation of an interface, and what it makes: [`interface`](mod@interface). Tests: `tests/round_trips.rs`,
//!   `tests/calls.rs`.

#![forbid(unsafe_code)]

pub mod collect;
pub mod interface;
pub mod rpc;
pub mod serve;
pub mod xdr;

pub use rpc::{Abort, Interface, Rpc, RpcInfo, Split, StreamsIn, StreamsOut, decode_reply, encode_request};
pub use serve::{CallStream, Dispatch, Failure, Serve, ServerCall};
pub use xdr::{DecodeError, Decoder, Xdr};
