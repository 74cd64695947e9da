//! The table of what is fuzzed. To add a target: a file under `targets/` with a function `run` from bytes to a
//! [`crate::shape::Shape`]'s number, its line below, and inputs to start from in `corpus/<name>/` (made by
//! `examples/make_corpus.rs`, or by hand).

pub mod acl_text;
pub mod admin_services;
pub mod cache_rows;
pub mod canary;
pub mod client_replies;
pub mod config_files;
pub mod database_files;
pub mod directory;
pub mod file_service;
pub mod gss_message;
pub mod invitation;
pub mod join_handshake;
pub mod key_file;
pub mod rx_ack;
pub mod rx_connection;
pub mod rx_debug;
pub mod rx_jumbo;
pub mod rx_packet;
pub mod rxgk_packet;
pub mod rxgk_response;
pub mod rxgk_token;
pub mod rxkad_packet;
pub mod rxkad_ticket;
pub mod volume_directory;
pub mod volume_dump;
pub mod volume_rows;
pub mod xdr;

use crate::engine::{Bound, Target};

macro_rules! targets {
    ($($name:ident $(within $bound:path;)? $about:literal;)*) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[$(
            Target { name: stringify!($name), about: $about, run: $name::run, bound: targets!(@bound $($bound)?) },
        )*];
    };
    (@bound) => { Bound::DEFAULT };
    (@bound $bound:path) => { $bound };
}

targets! {
    rx_packet "any datagram: its header, then its body by type";
    rx_ack "the body of an ACK, read as plain and as striped, and written again";
    rx_jumbo "a DATA datagram, split into its subpackets";
    rx_debug "the bodies of DEBUG and VERSION packets, of servers of every version";
    rx_connection "an endpoint, server and client at once, that gets a sequence of datagrams";
    volume_rows "rows of every kind, and records of the log, as a disk may have them";
    cache_rows "rows of files, of changes, of data and of what was known, as the disk of a client's cache may have them";
    volume_directory "pages of a directory, read, searched and changed";
    volume_dump "dumps of volumes, which come in pieces";
    database_files "vldb.DB0 and prdb.DB0 with changes in them";
    directory "directory pages, made by changes and as they come";
    acl_text "access lists as text, and as dumps have them";
    rxkad_ticket "tickets as they come, and what is in them";
    rxkad_packet "CHALLENGE, RESPONSE and DATA under rxkad";
    rxgk_token "tokens of rxgk as they come, and what is in them";
    rxgk_response "CHALLENGE and RESPONSE under rxgk";
    rxgk_packet "DATA under rxgk";
    gss_message "messages of Kerberos's GSS-API mechanism";
    invitation "the line of an invitation";
    join_handshake "the messages with which a device shows its key, and the answer";
    key_file "KeyFileExt, KeyFile and keytabs";
    config_files "configuration files, of OpenAFS and of the server";
    xdr "the arguments and results of every RPC";
    file_service within file_service::BOUND; "the arguments of every RPC of the file service, against a live server";
    admin_services within admin_services::BOUND; "the arguments of every RPC of the other services, against live servers";
    client_replies within client_replies::BOUND; "replies of live servers, changed on their way to a client at work";
    canary "fails on purpose: shows that a panic is found";
}

/// The target that must fail: left out where all are run.
pub const CANARY: &str = "canary";

/// The target of this name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
