//! The keys of a cell and of devices: X25519, on which a handshake rests.

use crate::handshake::{CURVE, Chance};
use crate::line;
use sha2::{Digest, Sha256};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use std::fmt;
use zeroize::Zeroizing;

/// Bytes of a key, private or public.
pub const KEY_BYTES: usize = afs_wire::join::JOIN_KEY_BYTES;

/// A public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; KEY_BYTES]);

impl PublicKey {
    /// What a key is named by where a few bytes have to do: the start of its SHA-256.
    pub fn id(&self) -> u64 {
        let digest = Sha256::digest(self.0);
        u64::from_be_bytes(*digest.first_chunk().expect("SHA-256 gives 32 bytes"))
    }

    /// A short text for people to compare, when a device of this key waits to be approved: ten digits, of 50 bits. To have a key with the
    /// digits of another one's takes some 2^50 keys.
    pub fn code(&self) -> String {
        let digest = Sha256::new().chain_update(b"afar device 1").chain_update(self.0).finalize();
        let mut digits = String::new();
        line::encode(&digest[..7], &mut digits);
        format!("{}-{}", &digits[..5], &digits[5..10])
    }

    /// True for the few points for which everybody computes the same secret: who has one as its key has proved nothing with it
    /// (RFC 7748 6.1).
    pub(crate) fn is_degenerate(&self) -> bool {
        let mut curve = DefaultResolver.resolve_dh(&CURVE).expect("the curve is built in");
        // Any private key will do.
        curve.set(&[1; KEY_BYTES]);
        let mut shared = [0; KEY_BYTES];
        curve.dh(&self.0, &mut shared).is_err() || proves_nothing(&shared)
    }
}

/// True for the secret that such a point makes.
fn proves_nothing(shared: &[u8; KEY_BYTES]) -> bool {
    *shared == [0; KEY_BYTES]
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({:016x})", self.id())
    }
}

/// A private key with its public one. Forgotten when dropped, and never printed.
#[derive(Clone)]
pub struct KeyPair {
    private: Zeroizing<[u8; KEY_BYTES]>,
    public: PublicKey,
}

impl KeyPair {
    /// The pair of a private key. Any bytes are one: they should be random.
    pub fn of_private(private: [u8; KEY_BYTES]) -> Self {
        let private = Zeroizing::new(private);
        let mut curve = DefaultResolver.resolve_dh(&CURVE).expect("the curve is built in");
        curve.set(&private[..]);
        let public = curve.pubkey().try_into().expect("a public key has 32 bytes");
        Self { private, public: PublicKey(public) }
    }

    /// A new pair, by chance.
    pub fn generate(chance: Chance) -> Self {
        Self::of_private(*chance.bytes())
    }

    /// The private key.
    pub fn private(&self) -> &[u8; KEY_BYTES] {
        &self.private
    }

    /// The public key.
    pub const fn public(&self) -> PublicKey {
        self.public
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({:?})", self.public)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_other_keys_show_other_codes() {
        let code = PublicKey([7; KEY_BYTES]).code();
        assert_eq!(code.len(), 11);
        assert!(
            code.split('-').all(|half| half.len() == 5 && half.bytes().all(|c| c.is_ascii_alphanumeric()))
        );
        assert_eq!(code, PublicKey([7; KEY_BYTES]).code());
        assert_ne!(code, PublicKey([8; KEY_BYTES]).code());
    }

    #[test]
    fn a_secret_that_everybody_has_proves_nothing() {
        assert!(proves_nothing(&[0; KEY_BYTES]));
        let mut shared = [0; KEY_BYTES];
        shared[KEY_BYTES - 1] = 1;
        assert!(!proves_nothing(&shared));
        assert!((0..20).all(|number| !KeyPair::of_private([number; KEY_BYTES]).public().is_degenerate()));
    }
}
