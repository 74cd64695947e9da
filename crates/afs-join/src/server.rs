//! What a database server asks of strangers before and while they shake hands: a cookie first, not too often, and soon.
//!
//! [`Door::hello`] keeps nothing and costs a hash. [`Door::begin`] wants the cookie, counts the attempt, and costs three Diffie-Hellman
//! operations. [`Door::finish`] takes each handshake once. What a device may then do, the databases decide.

use crate::cookie::{Cookie, CookieJar};
use crate::handshake::{Chance, Channel, Responder};
use crate::keys::{KeyPair, PublicKey};
use crate::rates::{Limits, Rates};
use afs_wire::Abort;
use afs_wire::abort::{AJBADMSG, AJBUSY, AJCOOKIE, AJNOSESSION};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;
use zeroize::Zeroizing;

/// The time from the second message to the third, in which a device does no more than compute: a lost packet is sent again within it.
const SESSION_LIFE: Duration = Duration::from_secs(30);

/// Handshakes that wait for their third message, some 2 KiB each. As many as may begin within their life by [`Limits::default`].
const SESSIONS_MAX: usize = 1700;

/// The reason why a step of a handshake is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The cookie is too old or not of this address: the caller asks for another.
    Cookie,
    /// There were too many attempts.
    Busy,
    /// There is no handshake of this number, or it took too long.
    NoSession,
    /// The message was changed, or made with another key or for another cell.
    BadMessage,
}

impl From<Refusal> for Abort {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Cookie => AJCOOKIE,
            Refusal::Busy => AJBUSY,
            Refusal::NoSession => AJNOSESSION,
            Refusal::BadMessage => AJBADMSG,
        }
    }
}

/// A device that has shown its key.
#[derive(Debug)]
pub struct Shown {
    /// Its key.
    pub device: PublicKey,
    /// What it wants.
    pub request: Zeroizing<Vec<u8>>,
    /// What its answer is sealed with.
    pub channel: Channel,
}

/// The server's side of all handshakes. Times are since any beginning, and never go back.
#[derive(Debug)]
pub struct Door {
    cookies: CookieJar,
    rates: Rates,
    sessions: BTreeMap<u64, Session>,
}

#[derive(Debug)]
struct Session {
    until: Duration,
    responder: Responder,
}

impl Door {
    /// A door at which nobody has been. `secret` is for cookies.
    pub fn new(limits: Limits, secret: [u8; 32]) -> Self {
        Self { cookies: CookieJar::new(secret), rates: Rates::new(limits), sessions: BTreeMap::new() }
    }

    /// The cookie of an address.
    pub fn hello(&self, now: Duration, from: IpAddr) -> Cookie {
        self.cookies.make(now.as_secs(), from)
    }

    /// Takes the first message, to this key of the cell; the number of the handshake, and the second message.
    ///
    /// # Errors
    /// Why not. Nothing but a cookie that is good is counted.
    pub fn begin(
        &mut self,
        (now, from): (Duration, IpAddr),
        cookie: &Cookie,
        (key, cell): (&KeyPair, &str),
        message: &[u8],
        chance: Chance,
    ) -> Result<(u64, Vec<u8>), Refusal> {
        if !self.cookies.check(now.as_secs(), from, cookie) {
            return Err(Refusal::Cookie);
        }
        self.sessions.retain(|_, session| session.until > now);
        if self.sessions.len() >= SESSIONS_MAX || !self.rates.allow(now, from) {
            return Err(Refusal::Busy);
        }
        // Nobody else can guess the number, and so spoil the handshake.
        let number = Sha256::new().chain_update(b"session").chain_update(chance.bytes()).finalize();
        let number = u64::from_be_bytes(*number.first_chunk().expect("SHA-256 gives 32 bytes"));
        let (responder, answer) =
            Responder::begin(key, cell, message, chance).map_err(|_| Refusal::BadMessage)?;
        self.sessions.insert(number, Session { until: now + SESSION_LIFE, responder });
        Ok((number, answer))
    }

    /// Takes the third message. The handshake is over, whatever comes of it.
    ///
    /// # Errors
    /// Why not.
    pub fn finish(&mut self, now: Duration, number: u64, message: &[u8]) -> Result<Shown, Refusal> {
        let session = self.sessions.remove(&number).filter(|session| session.until > now);
        let responder = session.ok_or(Refusal::NoSession)?.responder;
        let (channel, device, request) = responder.finish(message).map_err(|_| Refusal::BadMessage)?;
        Ok(Shown { device, request, channel })
    }
}
