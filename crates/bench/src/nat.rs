//! Routers that translate addresses (NAT), by Linux's own netfilter: one before clients in A of a link, and one before servers in B. It does
//! not know what runs behind them.

use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::process::Stdio;

use linkem::{Link, Namespace};

use crate::error::Error;
use crate::network::{DEVICE, ip};

/// The seconds after which a mapping ends that nothing uses, as cheap routers have it.
pub(crate) const MAPPING_S: u32 = 30;
/// The ports that the clients' router gives out, and those after it has started anew.
const PORTS: [&str; 2] = ["20000-29999", "30000-39999"];
/// The servers' own address, behind their router.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 10);

/// A router, which is A of a link, and the machines behind it: all have the router's address outside.
pub(crate) struct Home {
    router: Namespace,
    machines: Vec<Namespace>,
}

impl Home {
    /// Makes so many machines.
    pub(crate) fn behind(link: &Link, count: u8) -> Result<Home, Error> {
        let router = Namespace::open(link.a().name())?;
        let machines = (0..count).map(|_| Namespace::new()).collect::<Result<Vec<_>, _>>()?;
        for (number, machine) in (0..).zip(&machines) {
            let (inside, outside) = (machine.name(), router.name());
            let network = format!("192.168.{}", 70 + number);
            for line in [
                format!("-n {outside} link add home{number} type veth peer name eth0 netns {inside}"),
                format!("-n {outside} addr add {network}.1/24 dev home{number}"),
                format!("-n {outside} link set home{number} up"),
                format!("-n {inside} addr add {network}.2/24 dev eth0"),
                format!("-n {inside} link set lo up"),
                format!("-n {inside} link set eth0 up"),
                format!("-n {inside} route add default via {network}.1"),
            ] {
                ip(&line)?;
            }
        }
        set(&router, &[("ipv4/ip_forward", 1)])?;
        let home = Home { router, machines };
        home.translate(PORTS[0])?;
        Ok(home)
    }

    /// The machines, each a place for a client.
    pub(crate) fn machines(&self) -> &[Namespace] {
        &self.machines
    }

    /// The router starts anew: all mappings end, and the next ones have other ports.
    pub(crate) fn change_ports(&self) -> Result<(), Error> {
        self.translate(PORTS[1])?;
        // Netfilter forgets the mappings of an address that goes.
        for verb in ["del", "add"] {
            ip(&format!("-n {} addr {verb} {}/24 dev {DEVICE}", self.router.name(), linkem::ADDRESS_A))?;
        }
        Ok(())
    }

    fn translate(&self, ports: &str) -> Result<(), Error> {
        rules(
            &self.router,
            &format!(
                "chain out {{ type nat hook postrouting priority srcnat; oifname \"{DEVICE}\" ip protocol udp masquerade to :{ports}; }};"
            ),
        )
    }
}

/// Makes B of a link a router that forwards the ports of a cell to servers at [`SERVER`], which is in B too.
pub(crate) fn forward_ports(link: &Link) -> Result<(), Error> {
    let (router, outside) = (link.b(), linkem::ADDRESS_B);
    ip(&format!("-n {} addr add {SERVER}/32 dev lo", router.name()))?;
    rules(
        router,
        &format!(
            "chain in {{ type nat hook prerouting priority dstnat; iifname \"{DEVICE}\" udp dport {{ 7000, 7002, 7003 }} dnat to {SERVER}; }};\n\
             chain out {{ type nat hook postrouting priority srcnat; oifname \"{DEVICE}\" ip saddr {SERVER} snat to {outside}; }};"
        ),
    )
}

/// Has a namespace translate addresses by these chains, and by no others, with mappings that end soon.
fn rules(router: &Namespace, chains: &str) -> Result<(), Error> {
    let seconds = MAPPING_S;
    let timeouts = ["netfilter/nf_conntrack_udp_timeout", "netfilter/nf_conntrack_udp_timeout_stream"];
    set(router, &timeouts.map(|name| (name, seconds)))?;
    let failed = |why: String| Error::setup(format!("translating addresses in {}: {why}", router.name()));
    let mut nft = router.command("nft");
    nft.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut nft = nft.spawn().map_err(|e| failed(format!("nft (Debian's package nftables): {e}")))?;
    let table = format!("table ip home {{}}\ndelete table ip home\ntable ip home {{\n{chains}\n}}\n");
    // When nft gives up early the pipe breaks; its own message is the better one.
    let _ = nft.stdin.take().expect("it was asked to be a pipe").write_all(table.as_bytes());
    let output = nft.wait_with_output().map_err(|e| failed(e.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_string())),
    }
}

/// Writes settings of a namespace's network.
fn set(namespace: &Namespace, settings: &[(&str, u32)]) -> Result<(), Error> {
    for (name, value) in settings {
        let path = format!("/proc/sys/net/{name}");
        let written = namespace.run_in(|| fs::write(&path, value.to_string()))?;
        written
            .map_err(|e| Error::setup(format!("writing {value} to {path} in {}: {e}", namespace.name())))?;
    }
    Ok(())
}
