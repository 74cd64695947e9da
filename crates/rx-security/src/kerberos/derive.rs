//! What is made of a key: others for each use, and as many pseudo-random bytes as are wanted (RFC 3961 5.1 and 5.3, RFC 8009 3 and
//! 5, RFC 6113 5.1, RFC 4402 3).

use super::{Cipher, Plain, block_of, cipher, mac, profile};
use crate::keys::EncType;
use aes::{Aes128, Aes256};
use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use sha1::{Digest, Sha1};
use sha2::{Sha256, Sha384};
use zeroize::Zeroizing;

/// The last byte of what a key is derived for: a checksum alone, encryption, and the checksum of what is encrypted.
pub(super) const CHECKSUM: u8 = 0x99;
pub(super) const ENCRYPTION: u8 = 0xaa;
pub(super) const INTEGRITY: u8 = 0x55;

/// The usage and one of the three above.
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

/// The pseudo-random function of a key. `None` for kinds that have none here, and a key of the wrong length.
fn prf(kind: EncType, key: &[u8], seed: &[&[u8]]) -> Option<Plain> {
    profile::mac_len(kind)?;
    if kind.key_len()? != key.len() {
        return None;
    }
    Some(match kind {
        EncType::AES128 => prf_by_cipher::<Aes128>(key, seed),
        EncType::AES256 => prf_by_cipher::<Aes256>(key, seed),
        EncType::AES128_SHA256 => by_hash::<Hmac<Sha256>>(key, b"prf", &seed.concat(), 32),
        _ => by_hash::<Hmac<Sha384>>(key, b"prf", &seed.concat(), 48),
    })
}

fn prf_by_cipher<C: Cipher>(key: &[u8], seed: &[&[u8]]) -> Plain {
    let mut hash = Sha1::new();
    seed.iter().for_each(|part| hash.update(part));
    let mut block = Zeroizing::new(hash.finalize()[..C::LEN].to_vec());
    cipher::<C>(&by_cipher::<C>(key, b"prf")).encrypt_block(block_of::<C>(&mut block));
    block
}

/// The number in front of the seed of each block of [`prf_plus`].
#[derive(Clone, Copy)]
pub(crate) enum Counter {
    /// A byte, from 1 on (RFC 6113 5.1).
    Byte,
    /// Four bytes, from this on (RFC 4402 3, which begins with 0).
    Word(u32),
}

/// So many pseudo-random bytes of a key and a seed. `None` for kinds that have none here, and a key of the wrong length.
pub(crate) fn prf_plus(
    kind: EncType,
    key: &[u8],
    counter: Counter,
    seed: &[u8],
    len: usize,
) -> Option<Plain> {
    let mut out = Zeroizing::new(Vec::with_capacity(len + 48));
    let mut block = 0u32;
    while out.len() < len {
        let number = match counter {
            Counter::Byte => (block + 1).to_be_bytes(),
            Counter::Word(first) => (first + block).to_be_bytes(),
        };
        let number = if matches!(counter, Counter::Byte) { &number[3..] } else { &number[..] };
        out.extend_from_slice(&prf(kind, key, &[number, seed])?);
        block += 1;
    }
    out.truncate(len);
    Some(out)
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
            (CHECKSUM, "b31a018a48f54776f403e9a396325dc3"),
            (ENCRYPTION, "9b197dd1e8c5609d6e67c3e37c62c72e"),
            (INTEGRITY, "9fda0e56ab2d85e1569a688696c26a6c"),
        ] {
            assert_eq!(by_hash::<Hmac<Sha256>>(&key, &purpose(2, last), &[], 16)[..], bytes(want));
        }
        let key = bytes("6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52");
        for (last, want) in [
            (CHECKSUM, "ef5718be86cc84963d8bbb5031e9f5c4ba41f28faf69e73d"),
            (ENCRYPTION, "56ab22bee63d82d7bc5227f6773f8ea7a5eb1c825160c38312980c442e5c7e49"),
            (INTEGRITY, "69b16514e3cd8e56b82010d5c73012b622c4d00ffc23ed1f"),
        ] {
            let want = bytes(want);
            assert_eq!(by_hash::<Hmac<Sha384>>(&key, &purpose(2, last), &[], want.len())[..], want);
        }
    }

    #[test]
    fn pseudo_random_bytes_are_those_of_rfc_8009() {
        let key = bytes("3705d96080c17728a0e800eab6e0d23c");
        assert_eq!(
            prf(EncType::AES128_SHA256, &key, &[b"test"]).unwrap()[..],
            bytes("9d188616f63852fe86915bb840b4a886ff3e6bb0f819b49b893393d393854295")
        );
        let key = bytes("6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52");
        assert_eq!(
            prf(EncType::AES256_SHA384, &key, &[b"te", b"st"]).unwrap()[..],
            bytes(
                "9801f69a368c2bf675e59521e177d9a07f67efe1cfde8d3c8d6f6a0256e3b17db3c1b62ad1b8553360d17367eb1514d2"
            )
        );
    }

    /// Published vectors: a key of 00 01 02 and on, over "rxgk".
    #[test]
    fn pseudo_random_bytes_of_each_kind_are_those_that_were_published() {
        for (kind, want) in [
            (EncType::AES128, "1fa46419cba552cf82c66b7559167f00"),
            (EncType::AES256, "20cbf069223190dc473a0ee82934684b"),
            (EncType::AES128_SHA256, "b49bc8bbd0600f55c667382b93d4f5252b1b6e38200d7a4c97e4372d89db0a70"),
            (
                EncType::AES256_SHA384,
                "6a7830c41779d8ef9f8764242d3a92129ec905e275c11da924e031337917af5f7dd3e3f12a467426e7834861f867e244",
            ),
        ] {
            let key: Vec<u8> = (0..kind.key_len().unwrap() as u8).collect();
            assert_eq!(prf(kind, &key, &[b"rxgk"]).unwrap()[..], bytes(want), "{kind:?}");
            assert_eq!(prf(kind, &key[1..], &[b"rxgk"]), None);
        }
        assert_eq!(prf(EncType::DES3, &[0; 24], &[b"rxgk"]), None);
    }

    /// A Kerberos GSS context's pseudo-random bytes (RFC 4402), of its acceptor's and of its initiator's key.
    #[test]
    fn longer_pseudo_random_bytes_are_those_of_mit_kerberos() {
        let seed: Vec<u8> = (0u8..0x14).chain(0x64..0x78).collect();
        for (key, len, want) in [
            (
                "694fa9aa0a53a4e08c5a5e1880479eb8a7a2b89a2e10d62a661b57eb86b46067",
                16,
                "29fb432bf2069e6a969e13c07fc383b0",
            ),
            (
                "694fa9aa0a53a4e08c5a5e1880479eb8a7a2b89a2e10d62a661b57eb86b46067",
                32,
                "29fb432bf2069e6a969e13c07fc383b0b8a60092e35680ecf528e37d0de36f01",
            ),
            (
                "d025c717f8c8bd3d9bd19fc1df6deee8280eacd10767b60b62006af0ec3ef8c9",
                32,
                "5467360265b0715e62b8d33d10361db90b07d00c411cadd712dc37e0dc798b62",
            ),
        ] {
            let got = prf_plus(EncType::AES256, &bytes(key), Counter::Word(0), &seed, len).unwrap();
            assert_eq!(got[..], bytes(want));
        }
    }
}
