//! Kerberos 5 encryption as tickets use it: RFC 3961 and 3962 (DES, 3DES, AES with SHA-1), RFC 8009 (AES with SHA-2) and RFC 4757
//! (RC4). Ciphers and hashes are RustCrypto's, the profiles are here.

use crate::keys::EncType;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser};
use aes::{Aes128, Aes256};
use des::{Des, TdesEde3};
use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use md5::{Digest, Md5};
use rand::CryptoRng;
use rc4::{Rc4, StreamCipher};
use sha1::Sha1;
use sha2::{Sha256, Sha384};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The key usage of a ticket's encrypted part (RFC 4120 7.5.1).
pub(crate) const USAGE_TICKET: u32 = 2;

type Plain = Zeroizing<Vec<u8>>;

/// Opens what was encrypted with `key` for `usage`; what comes out may have a few bytes of padding behind it. `None` for a wrong
/// key, damage, and kinds that are not known here.
pub(crate) fn decrypt(kind: EncType, key: &[u8], usage: u32, sealed: &[u8]) -> Option<Plain> {
    if kind.key_len()? != key.len() {
        return None;
    }
    match kind {
        EncType::AES128 => open_sha1::<Aes128>(key, usage, sealed),
        EncType::AES256 => open_sha1::<Aes256>(key, usage, sealed),
        EncType::DES3 => open_sha1::<TdesEde3>(key, usage, sealed),
        EncType::AES128_SHA256 => {
            open_sha2::<Aes128>(&sha2_keys::<Hmac<Sha256>>(key, usage, 16, 16), sealed, mac::<Hmac<Sha256>>)
        }
        EncType::AES256_SHA384 => {
            open_sha2::<Aes256>(&sha2_keys::<Hmac<Sha384>>(key, usage, 32, 24), sealed, mac::<Hmac<Sha384>>)
        }
        EncType::RC4 => open_rc4(key, usage, sealed),
        EncType::DES_CBC_CRC => open_des(key, key, sealed, 4, |data| crc(data).to_le_bytes().to_vec()),
        EncType::DES_CBC_MD5 => open_des(key, &[0; 8], sealed, 16, |data| Md5::digest(data).to_vec()),
        _ => None,
    }
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
    if kind.key_len()? != key.len() {
        return None;
    }
    match kind {
        EncType::AES128 => Some(seal_sha1::<Aes128>(key, usage, plain, rng)),
        EncType::AES256 => Some(seal_sha1::<Aes256>(key, usage, plain, rng)),
        EncType::DES3 => Some(seal_sha1::<TdesEde3>(key, usage, plain, rng)),
        EncType::AES128_SHA256 => {
            let keys = sha2_keys::<Hmac<Sha256>>(key, usage, 16, 16);
            Some(seal_sha2::<Aes128>(&keys, plain, rng, mac::<Hmac<Sha256>>))
        }
        EncType::AES256_SHA384 => {
            let keys = sha2_keys::<Hmac<Sha384>>(key, usage, 32, 24);
            Some(seal_sha2::<Aes256>(&keys, plain, rng, mac::<Hmac<Sha384>>))
        }
        EncType::RC4 => Some(seal_rc4(key, usage, plain, rng)),
        _ => None,
    }
}

/// A block cipher with its key.
trait Cipher: BlockCipherEncrypt + BlockCipherDecrypt + BlockSizeUser + KeyInit {
    /// Bytes of a block.
    const LEN: usize;
    /// Makes a key of the derived bits (RFC 3961 6.3.1 for DES, which has parity).
    fn key_of(bits: &[u8]) -> Plain {
        Zeroizing::new(bits.to_vec())
    }
    /// The number of bytes that a key is made of.
    const SEED_LEN: usize;
    /// Bytes of SHA-1 that the MAC of RFC 3961's profile keeps.
    const MAC_LEN: usize;
    /// True if the mode is CBC with ciphertext stealing, else CBC of whole blocks.
    const STEALS: bool;
}

impl Cipher for Aes128 {
    const LEN: usize = 16;
    const SEED_LEN: usize = 16;
    const MAC_LEN: usize = 12;
    const STEALS: bool = true;
}

impl Cipher for Aes256 {
    const LEN: usize = 16;
    const SEED_LEN: usize = 32;
    const MAC_LEN: usize = 12;
    const STEALS: bool = true;
}

impl Cipher for TdesEde3 {
    const LEN: usize = 8;
    const SEED_LEN: usize = 21;
    const MAC_LEN: usize = 20;
    const STEALS: bool = false;

    /// Each seven bytes become eight: the lowest bits of the seven are the upper ones of the eighth, and parity is set.
    fn key_of(bits: &[u8]) -> Plain {
        let mut key = Zeroizing::new(Vec::with_capacity(24));
        for seven in bits.chunks_exact(7) {
            key.extend_from_slice(seven);
            key.push(seven.iter().enumerate().fold(0, |last, (i, byte)| last | (byte & 1) << (i + 1)));
        }
        crate::des::set_odd_parity(&mut key);
        key
    }
}

impl Cipher for Des {
    const LEN: usize = 8;
    const SEED_LEN: usize = 7;
    const MAC_LEN: usize = 0; // it has a profile of its own
    const STEALS: bool = false;
}

fn cipher<C: Cipher>(key: &[u8]) -> C {
    C::new_from_slice(key).unwrap_or_else(|_| unreachable!("keys have the length of their kind"))
}

fn block_of<C: Cipher>(bytes: &mut [u8]) -> &mut Array<u8, C::BlockSize> {
    bytes.try_into().unwrap_or_else(|_| unreachable!("blocks are cut to their length"))
}

// ---- modes

fn cbc_encrypt<C: Cipher>(key: &[u8], iv: &[u8], data: &mut [u8]) {
    let cipher: C = cipher(key);
    let mut last = iv.to_vec();
    for block in data.chunks_exact_mut(C::LEN) {
        block.iter_mut().zip(&last).for_each(|(b, l)| *b ^= l);
        cipher.encrypt_block(block_of::<C>(block));
        last.copy_from_slice(block);
    }
}

fn cbc_decrypt<C: Cipher>(key: &[u8], iv: &[u8], data: &mut [u8]) {
    let cipher: C = cipher(key);
    let mut last = iv.to_vec();
    for block in data.chunks_exact_mut(C::LEN) {
        let sealed = block.to_vec();
        cipher.decrypt_block(block_of::<C>(block));
        block.iter_mut().zip(&last).for_each(|(b, l)| *b ^= l);
        last = sealed;
    }
}

/// CBC with ciphertext stealing (RFC 3962 5): of any length from a block on; the last two blocks change places, and the first
/// of them is cut.
fn cts_encrypt<C: Cipher>(key: &[u8], iv: &[u8], data: &mut [u8]) {
    let len = data.len();
    if len <= C::LEN {
        return cbc_encrypt::<C>(key, iv, data);
    }
    let mut padded = Zeroizing::new(data.to_vec());
    padded.resize(len.next_multiple_of(C::LEN), 0);
    cbc_encrypt::<C>(key, iv, &mut padded);
    let at = padded.len() - 2 * C::LEN;
    data[..at].copy_from_slice(&padded[..at]);
    data[at..at + C::LEN].copy_from_slice(&padded[at + C::LEN..]);
    let cut = len - at - C::LEN;
    data[at + C::LEN..].copy_from_slice(&padded[at..at + cut]);
}

fn cts_decrypt<C: Cipher>(key: &[u8], iv: &[u8], data: &mut [u8]) {
    let len = data.len();
    if len <= C::LEN {
        return cbc_decrypt::<C>(key, iv, data);
    }
    let at = (len - 1) / C::LEN * C::LEN - C::LEN;
    let cut = len - at - C::LEN;
    // What the cut block has lost is what stands in the other one in place of padding.
    let mut last = data[at..at + C::LEN].to_vec();
    cipher::<C>(key).decrypt_block(block_of::<C>(&mut last));
    let mut padded = Zeroizing::new(data[..at].to_vec());
    padded.extend_from_slice(&data[at + C::LEN..]);
    padded.extend_from_slice(&last[cut..]);
    padded.extend_from_slice(&data[at..at + C::LEN]);
    cbc_decrypt::<C>(key, iv, &mut padded);
    data.copy_from_slice(&padded[..len]);
}

// ---- the profile of RFC 3961: encrypt, with a MAC over the plain text

/// The keys for encrypting and for the MAC.
struct Pair {
    cipher: Plain,
    mac: Plain,
}

fn sha1_keys<C: Cipher>(key: &[u8], usage: u32) -> Pair {
    let derive = |last: u8| {
        let mut constant = usage.to_be_bytes().to_vec();
        constant.push(last);
        let cipher: C = cipher(key);
        let mut block = n_fold(&constant, C::LEN);
        let mut bits = Zeroizing::new(Vec::with_capacity(C::SEED_LEN + C::LEN));
        while bits.len() < C::SEED_LEN {
            cipher.encrypt_block(block_of::<C>(&mut block));
            bits.extend_from_slice(&block);
        }
        C::key_of(&bits[..C::SEED_LEN])
    };
    Pair { cipher: derive(0xaa), mac: derive(0x55) }
}

fn seal_sha1<C: Cipher>(key: &[u8], usage: u32, plain: &[u8], rng: &mut impl CryptoRng) -> Vec<u8> {
    let keys = sha1_keys::<C>(key, usage);
    let mut data = with_confounder(C::LEN, plain, rng);
    let len = data.len();
    if !C::STEALS {
        data.resize(len.next_multiple_of(C::LEN), 0);
    }
    let mac = mac::<Hmac<Sha1>>(&keys.mac, &[&data]);
    let encrypt = if C::STEALS { cts_encrypt::<C> } else { cbc_encrypt::<C> };
    encrypt(&keys.cipher, &vec![0; C::LEN], &mut data);
    let mut out = data.to_vec();
    out.extend_from_slice(&mac[..C::MAC_LEN]);
    out
}

fn open_sha1<C: Cipher>(key: &[u8], usage: u32, sealed: &[u8]) -> Option<Plain> {
    let (body, found) = sealed.split_at_checked(sealed.len().checked_sub(C::MAC_LEN)?)?;
    if body.len() < C::LEN || !C::STEALS && body.len() % C::LEN != 0 {
        return None;
    }
    let keys = sha1_keys::<C>(key, usage);
    let mut data = Zeroizing::new(body.to_vec());
    let decrypt = if C::STEALS { cts_decrypt::<C> } else { cbc_decrypt::<C> };
    decrypt(&keys.cipher, &vec![0; C::LEN], &mut data);
    let mac = mac::<Hmac<Sha1>>(&keys.mac, &[&data]);
    bool::from(mac[..C::MAC_LEN].ct_eq(found)).then(|| Zeroizing::new(data[C::LEN..].to_vec()))
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

// ---- the profile of RFC 8009: encrypt, then a MAC over the cipher text

fn sha2_keys<M: Mac + KeyInit>(key: &[u8], usage: u32, key_len: usize, mac_len: usize) -> Pair {
    let derive = |last: u8, len: usize| {
        let bits = (8 * len as u32).to_be_bytes();
        let digest = mac::<M>(key, &[&1u32.to_be_bytes(), &usage.to_be_bytes(), &[last, 0], &bits]);
        Zeroizing::new(digest[..len].to_vec())
    };
    Pair { cipher: derive(0xaa, key_len), mac: derive(0x55, mac_len) }
}

/// The key of the MAC is as long as the MAC itself.
fn seal_sha2<C: Cipher>(
    keys: &Pair,
    plain: &[u8],
    rng: &mut impl CryptoRng,
    mac: fn(&[u8], &[&[u8]]) -> Plain,
) -> Vec<u8> {
    let mut data = with_confounder(C::LEN, plain, rng);
    cts_encrypt::<C>(&keys.cipher, &[0; 16], &mut data);
    let mac = mac(&keys.mac, &[&[0; 16], &data]);
    let mut out = data.to_vec();
    out.extend_from_slice(&mac[..keys.mac.len()]);
    out
}

fn open_sha2<C: Cipher>(keys: &Pair, sealed: &[u8], mac: fn(&[u8], &[&[u8]]) -> Plain) -> Option<Plain> {
    let mac_len = keys.mac.len();
    let (body, found) = sealed.split_at_checked(sealed.len().checked_sub(mac_len)?)?;
    if body.len() < C::LEN || !bool::from(mac(&keys.mac, &[&[0; 16], body])[..mac_len].ct_eq(found)) {
        return None;
    }
    let mut data = Zeroizing::new(body.to_vec());
    cts_decrypt::<C>(&keys.cipher, &[0; 16], &mut data);
    Some(Zeroizing::new(data[C::LEN..].to_vec()))
}

// ---- RC4 (RFC 4757)

const RC4_CONFOUNDER: usize = 8;
const RC4_MAC: usize = 16;

fn seal_rc4(key: &[u8], usage: u32, plain: &[u8], rng: &mut impl CryptoRng) -> Vec<u8> {
    let key = mac::<Hmac<Md5>>(key, &[&usage.to_le_bytes()]);
    let mut data = with_confounder(RC4_CONFOUNDER, plain, rng);
    let mut out = mac::<Hmac<Md5>>(&key, &[&data]).to_vec();
    let stream = mac::<Hmac<Md5>>(&key, &[&out]);
    rc4_apply(&stream, &mut data);
    out.extend_from_slice(&data);
    out
}

fn open_rc4(key: &[u8], usage: u32, sealed: &[u8]) -> Option<Plain> {
    let (found, body) = sealed.split_at_checked(RC4_MAC)?;
    let key = mac::<Hmac<Md5>>(key, &[&usage.to_le_bytes()]);
    let stream = mac::<Hmac<Md5>>(&key, &[found]);
    let mut data = Zeroizing::new(body.to_vec());
    rc4_apply(&stream, &mut data);
    let is_good = bool::from(mac::<Hmac<Md5>>(&key, &[&data]).ct_eq(found));
    let plain = data.get(RC4_CONFOUNDER..)?;
    is_good.then(|| Zeroizing::new(plain.to_vec()))
}

fn rc4_apply(key: &[u8], data: &mut [u8]) {
    let mut stream = Rc4::new_from_slice(key).unwrap_or_else(|_| unreachable!("a key of 16 bytes"));
    stream.apply_keystream(data);
}

// ---- DES (RFC 3961 6.2): a plain hash among the encrypted text

fn open_des(
    key: &[u8],
    iv: &[u8],
    sealed: &[u8],
    hash_len: usize,
    hash: fn(&[u8]) -> Vec<u8>,
) -> Option<Plain> {
    if sealed.len() < 8 + hash_len || !sealed.len().is_multiple_of(8) {
        return None;
    }
    let mut data = Zeroizing::new(sealed.to_vec());
    cbc_decrypt::<Des>(key, iv, &mut data);
    let found = data[8..8 + hash_len].to_vec();
    data[8..8 + hash_len].fill(0);
    let is_good = bool::from(hash(&data).ct_eq(&found));
    is_good.then(|| Zeroizing::new(data[8 + hash_len..].to_vec()))
}

/// CRC-32 without its usual inversions (RFC 3961 6.1.3).
fn crc(data: &[u8]) -> u32 {
    data.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

// ---- shared

fn with_confounder(len: usize, plain: &[u8], rng: &mut impl CryptoRng) -> Plain {
    // Room for padding too, so that it is not moved and leaves no copy behind.
    let mut data = Zeroizing::new(Vec::with_capacity(len + plain.len() + 8));
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

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: String = hex.split_whitespace().collect();
        (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
    }

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
    fn stealing_is_that_of_rfc_3962() {
        let (key, text) =
            (b"chicken teriyaki", b"I would like the General Gau's Chicken, please, and wonton soup.");
        for (len, want) in [
            (17, "c6353568f2bf8cb4d8a580362da7ff7f97"),
            (31, "fc00783e0efdb2c1d445d4c8eff7ed2297687268d6ecccc0c07b25e25ecfe5"),
            (32, "39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584"),
            (
                48,
                "97687268d6ecccc0c07b25e25ecfe584 9dad8bbb96c4cdc03bc103e1a194bbd8 39312523a78662d5be7fcbcc98ebf5a8",
            ),
        ] {
            let mut data = text[..len].to_vec();
            cts_encrypt::<Aes128>(key, &[0; 16], &mut data);
            assert_eq!(data, bytes(want), "{len} bytes");
            cts_decrypt::<Aes128>(key, &[0; 16], &mut data);
            assert_eq!(data, text[..len]);
        }
    }

    #[test]
    fn derived_keys_of_sha2_are_those_of_rfc_8009() {
        let key = bytes("3705d96080c17728a0e800eab6e0d23c");
        let keys = sha2_keys::<Hmac<Sha256>>(&key, 2, 16, 16);
        assert_eq!(keys.cipher[..], bytes("9b197dd1e8c5609d6e67c3e37c62c72e"));
        assert_eq!(keys.mac[..], bytes("9fda0e56ab2d85e1569a688696c26a6c"));
        let key = bytes("6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52");
        let keys = sha2_keys::<Hmac<Sha384>>(&key, 2, 32, 24);
        assert_eq!(
            keys.cipher[..],
            bytes("56ab22bee63d82d7bc5227f6773f8ea7a5eb1c825160c38312980c442e5c7e49")
        );
        assert_eq!(keys.mac[..], bytes("69b16514e3cd8e56b82010d5c73012b622c4d00ffc23ed1f"));
    }

    /// The last sample of each kind in RFC 8009, appendix A.
    #[test]
    fn sealed_text_of_sha2_opens() {
        let plain: Vec<u8> = (0..=20).collect();
        let (key, sealed) = (
            "3705d96080c17728a0e800eab6e0d23c",
            "720f73b18d9859cd6ccb4346115cd336c70f58edc0c4437c5573544c31c813bce1e6d072c186b39a413c2f92ca9b8334a287ffcbfc",
        );
        assert_eq!(decrypt(EncType::AES128_SHA256, &bytes(key), 2, &bytes(sealed)).unwrap()[..], plain);
        let (key, sealed) = (
            "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52",
            "40013e2df58e8751957d2878bcd2d6fe101ccfd556cb1eae79db3c3ee86429f2b2a602ac86fef6ecb647d6295fae077a1feb517508d2c16b4192e01f62",
        );
        assert_eq!(decrypt(EncType::AES256_SHA384, &bytes(key), 2, &bytes(sealed)).unwrap()[..], plain);
    }

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

    #[test]
    fn des_is_opened_but_not_made() {
        assert_eq!(crc(b"foo"), u32::from_le_bytes([0x33, 0xbc, 0x32, 0x73]), "RFC 3961, A.5");
        assert_eq!(crc(b"test0123456789"), u32::from_le_bytes([0xd6, 0x88, 0x3e, 0xb8]));
        let key = *b"\x01\x02\x04\x07\x08\x0b\x0d\x0e";
        let hash = |data: &[u8]| crc(data).to_le_bytes().to_vec();
        let mut data = vec![5; 40];
        data[8..12].fill(0);
        let sum = hash(&data);
        data[8..12].copy_from_slice(&sum);
        let plain = data.clone();
        cbc_encrypt::<Des>(&key, &key, &mut data);
        assert_eq!(decrypt(EncType::DES_CBC_CRC, &key, 2, &data).unwrap()[..], plain[12..]);
        data[30] ^= 1;
        assert_eq!(decrypt(EncType::DES_CBC_CRC, &key, 2, &data), None);
        assert_eq!(encrypt(EncType::DES_CBC_CRC, &key, 2, b"x", &mut StdRng::seed_from_u64(1)), None);
    }
}
