//! Cookies: an address that has proved nothing costs a server one hash and no memory. A caller that shows the cookie, which was sent to
//! its address, has proved that it gets what is sent there.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::net::IpAddr;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A cookie.
pub type Cookie = [u8; afs_wire::join::JOIN_COOKIE_BYTES];

/// Cookies of one period and of the one before are good, so that each is for one minute at least, and for two at most.
const PERIOD_SECONDS: u64 = 60;

/// Makes and checks the cookies of a server.
pub struct CookieJar(Zeroizing<[u8; 32]>);

impl CookieJar {
    /// A server's cookies. The secret is made anew with each start: a client whose cookie is of the time before asks for another.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(Zeroizing::new(secret))
    }

    /// The cookie of an address. Its port is not in it: a NAT may give a client another one meanwhile.
    pub fn make(&self, seconds: u64, address: IpAddr) -> Cookie {
        self.of(seconds / PERIOD_SECONDS, address)
    }

    /// True if this is a cookie of the address, and not too old.
    pub fn check(&self, seconds: u64, address: IpAddr, cookie: &Cookie) -> bool {
        let period = seconds / PERIOD_SECONDS;
        let is = |period| self.of(period, address).ct_eq(cookie);
        (is(period) | is(period.wrapping_sub(1))).into()
    }

    fn of(&self, period: u64, address: IpAddr) -> Cookie {
        let mut hmac = Hmac::<Sha256>::new_from_slice(&self.0[..]).expect("an HMAC takes keys of any length");
        hmac.update(&period.to_be_bytes());
        match address {
            IpAddr::V4(address) => hmac.update(&address.octets()),
            IpAddr::V6(address) => hmac.update(&address.octets()),
        }
        *hmac.finalize().into_bytes().first_chunk().expect("SHA-256 gives 32 bytes")
    }
}

impl fmt::Debug for CookieJar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieJar(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn a_cookie_is_good_at_its_address_for_a_minute_and_not_after_two() {
        let jar = CookieJar::new([7; 32]);
        for made in [0, 59, 60, 1_000_000_019] {
            let cookie = jar.make(made, HERE);
            assert!(jar.check(made, HERE, &cookie) && jar.check(made + 60, HERE, &cookie), "of {made}");
            assert!(!jar.check(made + 120, HERE, &cookie), "of {made}, two minutes later");
            assert!(!jar.check(made, "192.0.2.2".parse().unwrap(), &cookie), "of {made}, elsewhere");
            assert!(!CookieJar::new([8; 32]).check(made, HERE, &cookie), "of {made}, of another start");
        }
    }

    #[test]
    fn a_cookie_with_any_bit_changed_is_refused() {
        let jar = CookieJar::new([7; 32]);
        let cookie = jar.make(100, HERE);
        for bit in 0..8 * cookie.len() {
            let mut changed = cookie;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!jar.check(100, HERE, &changed), "bit {bit}");
        }
    }
}
