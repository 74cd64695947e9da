//! `NetInfo` and `NetRestrict`: which of a machine's addresses it tells others.

use std::net::Ipv4Addr;
use std::path::Path;

use crate::error::{ConfigError, Problem};
use crate::text;

/// A line of `NetInfo` or `NetRestrict`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRule {
    /// An address, or one of the network.
    pub address: Ipv4Addr,
    /// The number of its leading bits that count; 32 for a single address.
    pub prefix_bits: u8,
    /// True if it counts even if no interface has it (`f 192.0.2.1`): behind address translation, say.
    pub is_forced: bool,
}

impl AddressRule {
    /// True if this address is meant.
    pub fn matches(&self, address: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_bits)).unwrap_or(0);
        (u32::from(address) ^ u32::from(self.address)) & mask == 0
    }
}

/// `NetInfo` or `NetRestrict`: addresses and networks, one a line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressRules {
    /// The rules, in the order of the file.
    pub rules: Vec<AddressRule>,
}

impl AddressRules {
    /// The rules of the text.
    ///
    /// # Errors
    ///
    /// When a line is no address or network.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let parse = |(number, line): (usize, &str)| {
            rule(line).ok_or_else(|| ConfigError::new(path, number, Problem::AddressRule(line.to_owned())))
        };
        Ok(Self { rules: text::lines(text).map(parse).collect::<Result<_, _>>()? })
    }

    /// Reads a file; `None` when it is not there.
    ///
    /// # Errors
    ///
    /// When it cannot be read, and as [`Self::parse`].
    pub fn read(path: &Path) -> Result<Option<Self>, ConfigError> {
        match text::read(path) {
            Ok(text) => Self::parse(&text, path).map(Some),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// True if a rule means this address.
    pub fn matches(&self, address: Ipv4Addr) -> bool {
        self.rules.iter().any(|rule| rule.matches(address))
    }

    /// The addresses to tell others, of those that the interfaces have: all of them, or those that `info` lists and the
    /// ones it forces, without those that `restrict` lists; in the order of the interfaces, each once.
    pub fn select(info: Option<&Self>, restrict: Option<&Self>, interfaces: &[Ipv4Addr]) -> Vec<Ipv4Addr> {
        let listed = interfaces.iter().copied().filter(|a| info.is_none_or(|info| info.matches(*a)));
        let forced = info.into_iter().flat_map(|info| &info.rules).filter(|r| r.is_forced).map(|r| r.address);
        let mut chosen = Vec::new();
        for address in listed.chain(forced) {
            if !chosen.contains(&address) && !restrict.is_some_and(|restrict| restrict.matches(address)) {
                chosen.push(address);
            }
        }
        chosen
    }
}

fn rule(line: &str) -> Option<AddressRule> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let forced = line.strip_prefix(['f', 'F']).filter(|rest| rest.starts_with(char::is_whitespace));
    let text = forced.unwrap_or(line).trim();
    let (address, prefix) = match text.split_once('/') {
        Some((address, bits)) => (address, bits.trim().parse().ok().filter(|bits| *bits <= 32)?),
        None => (text, 32),
    };
    // A network cannot be forced: which of its addresses would it be?
    let address = address.trim().parse().ok().filter(|_| forced.is_none() || prefix == 32)?;
    Some(AddressRule { address, prefix_bits: prefix, is_forced: forced.is_some() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> AddressRules {
        AddressRules::parse(text, Path::new("F")).unwrap()
    }

    fn addresses(text: &str) -> Vec<Ipv4Addr> {
        text.split_whitespace().map(|a| a.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_are_listed_forced_and_restricted() {
        let interfaces = addresses("10.0.0.1 192.168.1.1 192.168.2.1");
        let check = |info: Option<&str>, restrict: Option<&str>, expected: &str| {
            let (info, restrict) = (info.map(rules), restrict.map(rules));
            let chosen = AddressRules::select(info.as_ref(), restrict.as_ref(), &interfaces);
            assert_eq!(chosen, addresses(expected));
        };
        check(None, None, "10.0.0.1 192.168.1.1 192.168.2.1");
        check(None, Some("192.168.0.0/16"), "10.0.0.1");
        check(Some("192.168.1.1\n10.9.9.9\n"), None, "192.168.1.1");
        check(Some("192.168.0.0/16\n"), Some("192.168.2.1"), "192.168.1.1");
        check(Some("f 203.0.113.5\n10.0.0.1 # inner"), None, "10.0.0.1 203.0.113.5");
        check(Some("0.0.0.0/0"), Some("203.0.113.0/24\n"), "10.0.0.1 192.168.1.1 192.168.2.1");
    }

    #[test]
    fn what_is_no_address_is_said_with_its_line() {
        for bad in ["x", "1.2.3", "1.2.3.4/33", "1.2.3.4/", "f", "f 10.0.0.0/8", "10.0.0.1 10.0.0.2"] {
            let error = AddressRules::parse(&format!("10.0.0.1\n\n{bad}\n"), Path::new("F")).unwrap_err();
            assert_eq!(error, ConfigError::new(Path::new("F"), 3, Problem::AddressRule(bad.to_owned())));
        }
    }
}
