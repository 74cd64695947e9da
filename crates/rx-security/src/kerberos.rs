//! Kerberos 5 encryption: AES as tickets and rxgk use it (RFC 3962 and 8009, in `kerberos/profile.rs`), and what old tickets have
//! (DES, 3DES, RC4, in `kerberos/old.rs`). Ciphers and hashes are RustCrypto's, the profiles are here.

mod derive;
mod old;
mod profile;
mod stealing;

pub(crate) use derive::{Counter, prf_plus};
pub(crate) use profile::{CONFOUNDER, Checksum, Sealer, checksum, mac_len, sealer};

use crate::keys::EncType;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser};
use aes::{Aes128, Aes256};
use hmac::Mac;
use hmac::digest::KeyInit;
use rand::CryptoRng;
use zeroize::Zeroizing;

/// The key usage of a ticket's encrypted part (RFC 4120 7.5.1).
pub(crate) const USAGE_TICKET: u32 = 2;

type Plain = Zeroizing<Vec<u8>>;

/// Opens what was encrypted with `key` for `usage`; what comes out may have a few bytes of padding behind it. `None` for a wrong
/// key, damage, and kinds that are not known here.
pub(crate) fn decrypt(kind: EncType, key: &[u8], usage: u32, sealed: &[u8]) -> Option<Plain> {
    if mac_len(kind).is_none() {
        return old::decrypt(kind, key, usage, sealed);
    }
    let plain = Zeroizing::new(sealer(kind, key, usage)?.open(sealed)?);
    Some(Zeroizing::new(plain[CONFOUNDER..].to_vec()))
}

/// Encrypts with `key` for `usage`. `None` for kinds that are only opened: DES, for which there is the older form of ticket; and
/// for a key of the wrong length.
pub(crate) fn encrypt(
    kind: EncType,
    key: &[u8],
    usage: u32,
    plain: &[u8],
    rng: &mut impl CryptoRng,
) -> Option<Vec<u8>> {
    let Some(mac_len) = mac_len(kind) else { return old::encrypt(kind, key, usage, plain, rng) };
    let sealer = sealer(kind, key, usage)?;
    let mut data = with_confounder(CONFOUNDER, plain, mac_len, rng);
    sealer.prepare(&mut data, 0);
    sealer.finish(&mut std::iter::once(&mut data[..]));
    // Nothing of the plain text is left in it.
    Some(std::mem::take(&mut *data))
}

/// A block cipher with its key.
pub(crate) trait Cipher: BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser + KeyInit {
    /// Bytes of a block.
    const LEN: usize;
    /// The number of bytes that a key is made of.
    const SEED_LEN: usize;

    /// Makes a key of the derived bits (RFC 3961 6.3.1 for DES, which has parity).
    fn key_of(bits: &[u8]) -> Plain {
        Zeroizing::new(bits.to_vec())
    }
}

impl Cipher for Aes128 {
    const LEN: usize = 16;
    const SEED_LEN: usize = 16;
}

impl Cipher for Aes256 {
    const LEN: usize = 16;
    const SEED_LEN: usize = 32;
}

fn cipher<C: KeyInit>(key: &[u8]) -> C {
    C::new_from_slice(key).unwrap_or_else(|_| unreachable!("keys have the length of their kind"))
}

fn block_of<C: Cipher>(bytes: &mut [u8]) -> &mut Array<u8, C::BlockSize> {
    bytes.try_into().unwrap_or_else(|_| unreachable!("blocks are cut to their length"))
}

/// Random bytes, and the text behind them.
fn with_confounder(len: usize, plain: &[u8], behind: usize, rng: &mut impl CryptoRng) -> Plain {
    // Room for what comes behind too, so that it is not moved and leaves no copy behind.
    let mut data = Zeroizing::new(Vec::with_capacity(len + plain.len() + behind));
    data.resize(len, 0);
    rng.fill_bytes(&mut data);
    data.extend_from_slice(plain);
    data
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Plain {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("an HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    Zeroizing::new(mac.finalize().into_bytes().to_vec())
}

/// The bytes of a text in hexadecimal digits, for tests.
#[cfg(test)]
pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    let digits: String = hex.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn what_is_sealed_opens_with_the_same_key_and_usage_only() {
        let mut rng = StdRng::seed_from_u64(4);
        for kind in [
            EncType::AES128,
            EncType::AES256,
            EncType::AES128_SHA256,
            EncType::AES256_SHA384,
            EncType::DES3,
            EncType::RC4,
        ] {
            let key: Vec<u8> = (0..kind.key_len().unwrap()).map(|i| (i * 29 + 3) as u8).collect();
            for len in [0, 1, 8, 15, 16, 17, 31, 32, 33, 140] {
                let plain: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
                let sealed = encrypt(kind, &key, 2, &plain, &mut rng).unwrap();
                let opened = decrypt(kind, &key, 2, &sealed).unwrap();
                assert_eq!(opened[..len], plain, "{kind:?}");
                assert!(opened.len() < len + 8 && opened[len..].iter().all(|b| *b == 0));
                assert_eq!(decrypt(kind, &key, 3, &sealed), None);
                let mut other = key.clone();
                other[0] ^= 2;
                assert_eq!(decrypt(kind, &other, 2, &sealed), None);
                for at in [0, sealed.len() / 2, sealed.len() - 1] {
                    let mut damaged = sealed.clone();
                    damaged[at] ^= 0x40;
                    assert_eq!(
                        decrypt(kind, &key, 2, &damaged),
                        None,
                        "{kind:?}, byte {at} of {}",
                        sealed.len()
                    );
                }
                for short in 0..sealed.len() {
                    assert_eq!(decrypt(kind, &key, 2, &sealed[..short]), None);
                }
            }
        }
    }
}
