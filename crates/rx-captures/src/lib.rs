//! What tests and the fuzzer's corpus do with captured packets: [`pcap`] reads a capture file into UDP datagrams,
//! [`conversation`] sorts those into Rx connections and calls, [`summary`] counts them. The captures themselves are in
//! `crates/rx-proto/tests/captures`.

#![forbid(unsafe_code)]

pub mod conversation;
pub mod pcap;
pub mod summary;

use std::path::PathBuf;

/// Every capture, by name without `.pcap`.
pub const CAPTURES: [&str; 19] = [
    "01-kafs-6.12-anon",
    "02-kafs-6.1-anon",
    "03-oafs-6.1-anon",
    "04-afsd-fuse",
    "05-bos",
    "05-pts",
    "05-vos",
    "05-vos-encrypt",
    "06-debug-tools",
    "07-kafs-6.12-krb5",
    "07-oafs-6.1-dotted",
    "07-oafs-6.1-krb5",
    "07-oafs-6.1-krb5-clear",
    "08-callback-break",
    "08-server-restart",
    "09-wan-recv",
    "09-wan-send",
    "10-odd-acks",
    "11-rpc-edges",
];

/// The directory that holds the captures.
pub fn captures_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../rx-proto/tests/captures")
}

/// Reads one of [`CAPTURES`].
///
/// # Panics
///
/// If it is not there or not a capture.
pub fn capture(name: &str) -> pcap::Capture {
    let path = captures_dir().join(format!("{name}.pcap"));
    let file = std::fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
    pcap::Capture::parse(&file)
}

/// Calls `check` with every UDP datagram of every capture that carries an Rx packet.
pub fn for_each_rx_datagram(mut check: impl FnMut(&str, &pcap::Datagram)) {
    for name in CAPTURES {
        capture(name).rx().for_each(|datagram| check(name, datagram));
    }
}
