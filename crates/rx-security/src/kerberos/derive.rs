//! What is made of a key: others for each use (RFC 3961 5.1 and 5.3, RFC 8009 3).

use super::{Cipher, Plain, block_of, cipher, mac};
use hmac::Mac;
use hmac::digest::KeyInit;
use zeroize::Zeroizing;

/// The last byte of what a key is derived for: encryption, and the checksum of what is encrypted.
pub(super) const ENCRYPTION: u8 = 0xaa;
pub(super) const INTEGRITY: u8 = 0x55;

/// The usage and one of the two above.
pub(super) fn purpose(usage: u32, last: u8) -> [u8; 5] {
    let [a, b, c, d] = usage.to_be_bytes();
    [a, b, c, d, last]
}

/// DK of RFC 3961: a key of the same kind, for a purpose.
pub(super) fn by_cipher<C: Cipher>(key: &[u8], purpose: &[u8]) -> Plain {
    let cipher: C = cipher(key);
    let mut block = n_fold(purpose, C::LEN);
    let mut bits = Zeroizing::new(Vec::with_capacity(C::SEED_LEN + C::LEN));
    while bits.len() < C::SEED_LEN {
        cipher.encrypt_block(block_of::<C>(&mut block));
        bits.extend_from_slice(&block);
    }
    C::key_of(&bits[..C::SEED_LEN])
}

/// KDF-HMAC-SHA2 of RFC 8009: at most as many bytes as the hash has.
pub(super) fn by_hash<M: Mac + KeyInit>(key: &[u8], label: &[u8], context: &[u8], len: usize) -> Plain {
    let bits = (8 * len as u32).to_be_bytes();
    let mut digest = mac::<M>(key, &[&1u32.to_be_bytes(), label, &[0], context, &bits]);
    digest.truncate(len);
    digest
}

/// Stretches or folds bits to a length (RFC 3961 5.1): copies, each turned 13 bits further, added up with the carry coming
/// round.
fn n_fold(input: &[u8], len: usize) -> Vec<u8> {
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let total = input.len() * len / gcd(input.len(), len);
    let bits = input.len() * 8;
    // Byte `at` of the copies in a row.
    let byte = |at: usize| {
        let turned = 13 * (at / input.len());
        (0..8).fold(0u8, |byte, bit| {
            let from = ((at % input.len()) * 8 + bit + bits - turned % bits) % bits;
            byte << 1 | input[from / 8] >> (7 - from % 8) & 1
        })
    };
    let mut sums = vec![0u32; len];
    (0..total).for_each(|at| sums[at % len] += u32::from(byte(at)));
    while sums.iter().any(|sum| *sum > 0xff) {
        let mut carry = 0;
        for sum in sums.iter_mut().rev() {
            *sum += carry;
            carry = *sum >> 8;
            *sum &= 0xff;
        }
        sums[len - 1] += carry;
    }
    sums.into_iter().map(|sum| sum as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::super::bytes;
    use super::*;
    use hmac::Hmac;
    use sha2::{Sha256, Sha384};

    #[test]
    fn n_fold_is_that_of_rfc_3961() {
        for (input, len, want) in [
            (&b"012345"[..], 8, "be072631276b1955"),
            (b"password", 7, "78a07b6caf85fa"),
            (b"Rough Consensus, and Running Code", 8, "bb6ed30870b7f0e0"),
            (b"password", 21, "59e4a8ca7c0385c3c37b3f6d2000247cb6e6bd5b3e"),
            (b"Q", 21, "518a54a2 15a8452a 518a54a2 15a8452a 518a54a2 15"),
            (b"kerberos", 16, "6b65726265726f737b9b5b2b93132b93"),
            (b"kerberos", 32, "6b65726265726f737b9b5b2b93132b935c9bdcdad95c9899c4cae4dee6d6cae4"),
        ] {
            assert_eq!(n_fold(input, len), bytes(want), "{input:?}");
        }
    }

    #[test]
    fn derived_keys_of_des3_are_those_of_rfc_3961() {
        let key = bytes("dce06b1f64c857a11c3db57c51899b2cc1791008ce973b92");
        let derived = by_cipher::<des::TdesEde3>(&key, &bytes("0000000155"));
        assert_eq!(derived[..], bytes("925179d04591a79b5d3192c4a7e9c289b049c71f6ee604cd"));
    }

    #[test]
    fn derived_keys_of_sha2_are_those_of_rfc_8009() {
        let key = bytes("3705d96080c17728a0e800eab6e0d23c");
        for (last, want) in [
            (ENCRYPTION, "9b197dd1e8c5609d6e67c3e37c62c72e"),
            (INTEGRITY, "9fda0e56ab2d85e1569a688696c26a6c"),
        ] {
            assert_eq!(by_hash::<Hmac<Sha256>>(&key, &purpose(2, last), &[], 16)[..], bytes(want));
        }
        let key = bytes("6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52");
        for (last, want) in [
            (ENCRYPTION, "56ab22bee63d82d7bc5227f6773f8ea7a5eb1c825160c38312980c442e5c7e49"),
            (INTEGRITY, "69b16514e3cd8e56b82010d5c73012b622c4d00ffc23ed1f"),
        ] {
            let want = bytes(want);
            assert_eq!(by_hash::<Hmac<Sha384>>(&key, &purpose(2, last), &[], want.len())[..], want);
        }
    }
}
