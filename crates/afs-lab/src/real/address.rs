//! Addresses of this machine for the servers that tests start.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Addresses that a process has before it shares some with another that runs beside it.
const EACH: u32 = 512;

/// Returns an address in 127.64.0.0/10 that no other test has, so that each server has AFS's ports to itself.
pub fn own_address() -> Ipv4Addr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = std::process::id().wrapping_mul(EACH).wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
    // No two numbers share an address, and none ends in 0 or 255.
    let [_, b, c, d] = (number / 254 * 256 + number % 254 + 1).to_be_bytes();
    Ipv4Addr::new(127, 64 | b & 0x3f, c, d)
}
