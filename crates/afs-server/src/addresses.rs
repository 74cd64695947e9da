//! The addresses that a server tells others: those of the interfaces, as NetInfo and NetRestrict have them.

use std::io;
use std::net::Ipv4Addr;

use afs_config::AddressRules;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// The IPv4 addresses of the interfaces that are up, without those that only this machine can reach.
///
/// # Errors
///
/// When the system does not say.
pub(crate) fn of_interfaces() -> io::Result<Vec<Ipv4Addr>> {
    let is_usable = |flags: InterfaceFlags| {
        flags.contains(InterfaceFlags::IFF_UP) && !flags.contains(InterfaceFlags::IFF_LOOPBACK)
    };
    let mut addresses = Vec::new();
    for interface in getifaddrs()?.filter(|interface| is_usable(interface.flags)) {
        let address = interface.address.and_then(|address| Some(address.as_sockaddr_in()?.ip()));
        addresses.extend(address.filter(|address| !address.is_loopback()));
    }
    Ok(addresses)
}

/// The addresses to tell others for a server that listens on `bind`: that one, or if it is all of them, what the rules make
/// of the interfaces'. A machine without a network has 127.0.0.1. Those that no interface has come last.
pub(crate) fn advertised(
    bind: Ipv4Addr,
    public: &[Ipv4Addr],
    interfaces: &[Ipv4Addr],
    info: Option<&AddressRules>,
    restrict: Option<&AddressRules>,
) -> Vec<Ipv4Addr> {
    let mut chosen = match bind {
        Ipv4Addr::UNSPECIFIED => AddressRules::select(info, restrict, interfaces),
        one => vec![one],
    };
    if chosen.is_empty() && interfaces.is_empty() {
        chosen.push(Ipv4Addr::LOCALHOST);
    }
    for address in public {
        if !chosen.contains(address) {
            chosen.push(*address);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn who_listens_on_one_address_tells_that_one() {
        let (one, two) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let only_two = AddressRules::parse("10.0.0.2", Path::new("F")).unwrap();
        let check = |bind, interfaces: &[_], info, expected: &[_]| {
            assert_eq!(advertised(bind, &[], interfaces, info, None), expected);
        };
        check(one, &[one, two], Some(&only_two), &[one]);
        check(Ipv4Addr::UNSPECIFIED, &[one, two], Some(&only_two), &[two]);
        check(Ipv4Addr::UNSPECIFIED, &[one, two], None, &[one, two]);
        check(Ipv4Addr::UNSPECIFIED, &[], None, &[Ipv4Addr::LOCALHOST]);
        check(Ipv4Addr::UNSPECIFIED, &[one], Some(&only_two), &[]);
    }

    #[test]
    fn the_address_of_a_router_is_told_last_and_once() {
        let (one, router) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 9));
        for bind in [one, Ipv4Addr::UNSPECIFIED] {
            assert_eq!(advertised(bind, &[router, one, router], &[one], None, None), [one, router]);
        }
    }

    #[test]
    fn no_interface_tells_a_loopback_address() {
        assert!(of_interfaces().unwrap().iter().all(|address| !address.is_loopback()));
    }
}
