//! The names in tokens, and who they are to AFS (rxgk notes 5.3): Kerberos principals as GSS-API exports them.

use super::Fault;
use crate::identity::{Identity, LocalRealms};
use crate::ticket::{NameRules, name_of_principal};

/// The kind of the name of a file server, in tokens for calling back.
const KIND_FILE_SERVER: i32 = 0;
/// The kind of a name that is the one of Kerberos 4.
const KIND_V4: i32 = 1;
/// The kind of a name that GSS-API has exported.
const KIND_GSS: i32 = 2;

/// What an exported name of Kerberos begins with: its mark, and the mechanism's OID with two lengths in front. The length of the
/// principal follows, and the principal (RFC 2743 3.2).
const EXPORTED: &[u8] = b"\x04\x01\x00\x0b\x06\x09\x2a\x86\x48\x86\xf7\x12\x01\x02\x02";

/// What stands between a user's name and the number of a device, in the text for people.
const DEVICE: &[u8] = b" device ";

/// What stands before a file server's number in the identity of who calls back. No name of AFS has a space.
pub(super) const FILE_SERVER: &str = "file server ";

/// A name in a token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthName {
    /// Its kind.
    pub kind: i32,
    /// The name, as its kind has it.
    pub data: Vec<u8>,
    /// The same for people to read, and the number of a device: see [`Self::device`]. Nothing else is decided by it.
    pub display: Vec<u8>,
}

impl AuthName {
    /// Longest name, and longest text of one, in bytes.
    pub const LEN_MAX: usize = 2048;

    /// The name of a Kerberos principal, as Kerberos writes it: "user1/admin@LAB.TEST".
    pub fn of_principal(principal: &str) -> Self {
        let mut data = EXPORTED.to_vec();
        data.extend_from_slice(&(principal.len() as u32).to_be_bytes());
        data.extend_from_slice(principal.as_bytes());
        Self { kind: KIND_GSS, data, display: principal.as_bytes().to_vec() }
    }

    /// The name that a user of AFS has in Kerberos; `cell` stands for the realm of local users.
    pub fn of_identity(who: &Identity, cell: &str) -> Self {
        let realm = who.realm().unwrap_or(cell).to_uppercase();
        let slash = if who.instance().is_empty() { "" } else { "/" };
        Self::of_principal(&format!("{}{slash}{}@{realm}", who.name(), who.instance()))
    }

    /// The same for a device of the user, by its number in the cell (Join notes). The number stands in the text, which servers of
    /// others do not look at.
    pub fn of_device(who: &Identity, cell: &str, device: u32) -> Self {
        let mut name = Self::of_identity(who, cell);
        name.display.extend_from_slice(DEVICE);
        name.display.extend_from_slice(device.to_string().as_bytes());
        name
    }

    /// The name of a file server that calls back, by its number at the cache manager.
    pub(super) fn of_file_server(number: u32) -> Self {
        Self { kind: KIND_FILE_SERVER, data: number.to_be_bytes().to_vec(), display: Vec::new() }
    }

    /// The number of the device that the token was made for; `None` for users who have shown a ticket.
    pub fn device(&self) -> Option<u32> {
        let at = self.display.windows(DEVICE.len()).rposition(|bytes| bytes == DEVICE)?;
        let digits = &self.display[at + DEVICE.len()..];
        // Without a sign, which parse() would take.
        let digits =
            std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
        digits.parse().ok()
    }

    /// First and second part, and realm. `None` for names of other mechanisms, of three parts, and with a character that
    /// Kerberos escapes, as none of AFS's names has such.
    fn principal(&self) -> Option<(&str, Option<&str>, &str)> {
        let rest = self.data.strip_prefix(EXPORTED)?;
        let (len, principal) = rest.split_first_chunk::<4>()?;
        if u32::from_be_bytes(*len) as usize != principal.len() {
            return None;
        }
        let principal = std::str::from_utf8(principal).ok().filter(|text| !text.contains('\\'))?;
        let (names, realm) = principal.split_once('@').filter(|(_, realm)| !realm.is_empty())?;
        let (name, second) = match names.split_once('/') {
            Some((name, second)) => (name, Some(second)),
            None => (names, None),
        };
        second.is_none_or(|second| !second.contains('/')).then_some((name, second, realm))
    }

    fn identity(&self, realms: &LocalRealms, rules: NameRules) -> Option<Identity> {
        match self.kind {
            KIND_V4 => {
                let who = Identity::parse(std::str::from_utf8(&self.data).ok()?)?;
                realms.identify(who.name(), who.instance(), who.realm().unwrap_or_default())
            }
            KIND_GSS => {
                let (name, second, realm) = self.principal()?;
                let (name, instance) = name_of_principal(name, second, rules).ok()?;
                realms.identify(&name, &instance, realm)
            }
            _ => None,
        }
    }
}

/// The caller whose token has these names: without any, who has the cell's key.
///
/// # Errors
/// If there are several, or the one is nobody's. The name of who has the cell's key is: whoever has that needs no name, and nobody
/// is to come by it otherwise.
pub(super) fn identify(
    names: &[AuthName],
    realms: &LocalRealms,
    rules: NameRules,
) -> Result<Identity, Fault> {
    match names {
        [] => Ok(Identity::local_superuser()),
        [name] => name.identity(realms, rules).filter(|who| !who.is_local_superuser()).ok_or(Fault::NotAuth),
        _ => Err(Fault::Inconsistency),
    }
}

/// The file server whose token for calling back has these names, as text.
///
/// # Errors
/// If they are of anybody else.
pub(super) fn identify_file_server(names: &[AuthName]) -> Result<String, Fault> {
    let [AuthName { kind: KIND_FILE_SERVER, data, .. }] = names else { return Err(Fault::NotAuth) };
    let number = <[u8; 4]>::try_from(&data[..]).map_err(|_| Fault::NotAuth)?;
    Ok(format!("{FILE_SERVER}{}", u32::from_be_bytes(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: AuthName, want: Result<&str, Fault>) {
        let got = identify(&[name], &LocalRealms::of_cell("lab.test"), NameRules::default());
        assert_eq!(got.as_ref().map(ToString::to_string), want.as_ref().map(|text| (*text).to_owned()));
    }

    /// A published vector: as MIT Kerberos exports a name.
    #[test]
    fn an_exported_name_is_that_of_mit_kerberos() {
        let want = "0401000b06092a864886f7120102020000000e7573657231404c41422e54455354";
        assert_eq!(AuthName::of_principal("user1@LAB.TEST").data, crate::kerberos::bytes(want));
    }

    #[test]
    fn the_token_of_a_device_has_its_number_and_no_other_has_one() {
        let alice = Identity::parse("alice").unwrap();
        for number in [0, 1, 7, u32::MAX] {
            let name = AuthName::of_device(&alice, "lab.test", number);
            assert_eq!(name.device(), Some(number));
            check(name, Ok("alice"));
        }
        assert_eq!(AuthName::of_device(&alice, "lab.test", 7).display, b"alice@LAB.TEST device 7");
        let of = |text: &[u8]| AuthName { display: text.to_vec(), ..AuthName::of_principal("a@LAB.TEST") };
        for text in
            ["", "a@LAB.TEST", "a device 7@LAB.TEST", "a device ", "a device +7", "a device 4294967296"]
        {
            assert_eq!(of(text.as_bytes()).device(), None, "{text}");
        }
        assert_eq!(of(b"\xff device 7").device(), Some(7));
    }

    #[test]
    fn names_are_those_of_the_protection_database() {
        let of = AuthName::of_principal;
        check(of("user1@LAB.TEST"), Ok("user1"));
        check(of("user1/admin@lab.test"), Ok("user1.admin"));
        check(of("user1@ELSE.WHERE"), Ok("user1@else.where"));
        check(of("host/a.b.c@LAB.TEST"), Ok("rcmd.a"));
        check(of("dot.ted@LAB.TEST"), Err(Fault::NotAuth));
        check(of("a/b/c@LAB.TEST"), Err(Fault::NotAuth));
        check(of("a\\@b@LAB.TEST"), Err(Fault::NotAuth));
        check(of("user1"), Err(Fault::NotAuth));
        check(of("user1@"), Err(Fault::NotAuth));
        check(of("@LAB.TEST"), Err(Fault::NotAuth));
        check(of("a@b@LAB.TEST"), Err(Fault::NotAuth));
        let v4 = |text: &str| AuthName { kind: 1, data: text.as_bytes().to_vec(), display: Vec::new() };
        check(v4("user1.admin"), Ok("user1.admin"));
        check(v4("user1@LAB.TEST"), Ok("user1"));
        check(v4("user1@x.org"), Ok("user1@x.org"));
        check(AuthName { kind: 0, ..v4("user1") }, Err(Fault::NotAuth));
    }

    #[test]
    fn a_name_of_any_length_but_its_own_is_nobodys() {
        let good = AuthName::of_principal("user1@LAB.TEST");
        for len in 0..good.data.len() {
            check(AuthName { data: good.data[..len].to_vec(), ..good.clone() }, Err(Fault::NotAuth));
        }
        let longer = [&good.data[..], b"x"].concat();
        check(AuthName { data: longer, ..good.clone() }, Err(Fault::NotAuth));
        let mut other = good.clone();
        other.data[8] ^= 1;
        check(other, Err(Fault::NotAuth));
    }

    #[test]
    fn nobody_is_the_superuser_by_name() {
        check(AuthName::of_principal("afs@LAB.TEST"), Err(Fault::NotAuth));
        check(AuthName { kind: 1, data: b"afs".to_vec(), display: Vec::new() }, Err(Fault::NotAuth));
        let (realms, rules) = (LocalRealms::of_cell("lab.test"), NameRules::default());
        assert!(identify(&[], &realms, rules).unwrap().is_local_superuser());
        let two = [AuthName::of_principal("a@LAB.TEST"), AuthName::of_principal("b@LAB.TEST")];
        assert_eq!(identify(&two, &realms, rules), Err(Fault::Inconsistency));
    }
}
