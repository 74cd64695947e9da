//! The table of what is fuzzed. To add a target: a file under `targets/` with a function `run` from bytes to a
//! [`crate::shape::Shape`]'s number, its line below, and inputs to start from in `corpus/<name>/` (made by
//! `examples/make_corpus.rs`, or by hand).

pub mod acl_text;
pub mod canary;
pub mod directory;
pub mod key_file;
pub mod rx_ack;
pub mod rx_connection;
pub mod rx_debug;
pub mod rx_jumbo;
pub mod rx_packet;
pub mod rxkad_packet;
pub mod rxkad_ticket;
pub mod xdr;

use crate::engine::{Bound, Target};

macro_rules! targets {
    ($($name:ident $about:literal;)*) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[$(
            Target { name: stringify!($name), about: $about, run: $name::run, bound: Bound::DEFAULT },
        )*];
    };
}

targets! {
    rx_packet "any datagram: its header, then its body by type";
    rx_ack "the body of an ACK, read as plain and as striped, and written again";
    rx_jumbo "a DATA datagram, split into its subpackets";
    rx_debug "the bodies of DEBUG and VERSION packets, of servers of every version";
    rx_connection "an endpoint, server and client at once, that gets a sequence of datagrams";
    rxkad_ticket "tickets as they come, and what is in them";
    rxkad_packet "CHALLENGE, RESPONSE and DATA under rxkad";
    key_file "KeyFileExt, KeyFile and keytabs";
    directory "directory pages, made by changes and as they come";
    acl_text "access lists as text, and as dumps have them";
    xdr "the arguments and results of every RPC";
    canary "fails on purpose: shows that a panic is found";
}

/// The target that must fail: left out where all are run.
pub const CANARY: &str = "canary";

/// The target of this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
