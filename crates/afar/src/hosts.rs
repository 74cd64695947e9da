//! Machines by name and by address. All addresses in AFS's databases are IPv4.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};

/// The address of a machine, given by name or as it is, as `vos` looks for servers: of several addresses one that others can
/// reach too. A name that stands for nothing but this machine's loopback is looked up under the machine's own name, as
/// databases should not say 127.0.0.1 to others; where there is no better one, it is taken.
pub(crate) fn find_server(name: &str) -> Option<Ipv4Addr> {
    if let Ok(address) = name.parse() {
        return Some(address);
    }
    let found = resolve(name);
    let own =
        || fs::read_to_string("/proc/sys/kernel/hostname").map_or(Vec::new(), |own| resolve(own.trim()));
    let is_public = |address: &&Ipv4Addr| !address.is_loopback();
    match found.iter().find(is_public) {
        Some(address) => Some(*address),
        None => found.first().map(|any| own().iter().find(is_public).copied().unwrap_or(*any)),
    }
}

/// True if an address is one of the internet, and not of a network at home, behind a router or in this machine.
pub(crate) fn is_public(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    let is_of_a_carrier = first == 100 && second & 0xc0 == 64;
    let is_local = address.is_unspecified() || address.is_loopback() || address.is_link_local();
    !(is_local || address.is_private() || is_of_a_carrier || address.is_multicast() || address.is_broadcast())
}

/// The first address of a machine, given by name or as it is.
pub(crate) fn find(name: &str) -> Option<Ipv4Addr> {
    name.parse().ok().or_else(|| resolve(name).first().copied())
}

/// The name of the machine that has an address, or the address if nobody knows it.
pub(crate) fn name_of(address: Ipv4Addr) -> String {
    match dns_lookup::lookup_addr(&IpAddr::V4(address)) {
        Ok(name) if !name.is_empty() => name,
        Ok(_) | Err(_) => address.to_string(),
    }
}

fn resolve(name: &str) -> Vec<Ipv4Addr> {
    if name.is_empty() {
        return Vec::new();
    }
    let found = (name, 0).to_socket_addrs();
    let ipv4 = |address: std::net::SocketAddr| match address.ip() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    };
    found.map_or(Vec::new(), |all| all.filter_map(ipv4).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_as_they_are() {
        assert_eq!(find_server("10.88.0.1"), Some(Ipv4Addr::new(10, 88, 0, 1)));
        assert_eq!(find_server("127.0.0.1"), Some(Ipv4Addr::LOCALHOST));
        assert_eq!(find_server(""), None);
        assert_eq!(find(""), None);
    }
}
