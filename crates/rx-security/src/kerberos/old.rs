//! The enctypes of old tickets: 3DES (RFC 3961 6.3), RC4 (RFC 4757), and DES, which is only opened (RFC 3961 6.2).

use super::derive::{ENCRYPTION, INTEGRITY, by_cipher, purpose};
use super::{Cipher, Plain, block_of, cipher, mac, with_confounder};
use crate::keys::EncType;
use des::{Des, TdesEde3};
use hmac::Hmac;
use hmac::digest::KeyInit;
use md5::{Digest, Md5};
use rand::CryptoRng;
use rc4::{Rc4, StreamCipher};
use sha1::Sha1;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// As [`super::decrypt`].
pub(super) fn decrypt(kind: EncType, key: &[u8], usage: u32, sealed: &[u8]) -> Option<Plain> {
    if kind.key_len()? != key.len() {
        return None;
    }
    match kind {
        EncType::DES3 => open_des3(key, usage, sealed),
        EncType::RC4 => open_rc4(key, usage, sealed),
        EncType::DES_CBC_CRC => open_des(key, key, sealed, 4, |data| crc(data).to_le_bytes().to_vec()),
        EncType::DES_CBC_MD5 => open_des(key, &[0; 8], sealed, 16, |data| Md5::digest(data).to_vec()),
        _ => None,
    }
}

/// As [`super::encrypt`].
pub(super) fn encrypt(
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
        EncType::DES3 => Some(seal_des3(key, usage, plain, rng)),
        EncType::RC4 => Some(seal_rc4(key, usage, plain, rng)),
        _ => None,
    }
}

impl Cipher for TdesEde3 {
    const LEN: usize = 8;
    const SEED_LEN: usize = 21;

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
}

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

// ---- 3DES: a MAC of the plain text behind the encrypted text

const DES3_BLOCK: usize = 8;
const DES3_MAC: usize = 20;

/// The keys for encryption and for the MAC.
fn des3_keys(key: &[u8], usage: u32) -> (Plain, Plain) {
    let derive = |last| by_cipher::<TdesEde3>(key, &purpose(usage, last));
    (derive(ENCRYPTION), derive(INTEGRITY))
}

fn seal_des3(key: &[u8], usage: u32, plain: &[u8], rng: &mut impl CryptoRng) -> Vec<u8> {
    let (cipher_key, mac_key) = des3_keys(key, usage);
    let mut data = with_confounder(DES3_BLOCK, plain, DES3_BLOCK + DES3_MAC, rng);
    let len = data.len();
    data.resize(len.next_multiple_of(DES3_BLOCK), 0);
    let mac = mac::<Hmac<Sha1>>(&mac_key, &[&data]);
    cbc_encrypt::<TdesEde3>(&cipher_key, &[0; DES3_BLOCK], &mut data);
    data.extend_from_slice(&mac);
    std::mem::take(&mut *data)
}

fn open_des3(key: &[u8], usage: u32, sealed: &[u8]) -> Option<Plain> {
    let (body, found) = sealed.split_at_checked(sealed.len().checked_sub(DES3_MAC)?)?;
    if body.len() < DES3_BLOCK || !body.len().is_multiple_of(DES3_BLOCK) {
        return None;
    }
    let (cipher_key, mac_key) = des3_keys(key, usage);
    let mut data = Zeroizing::new(body.to_vec());
    cbc_decrypt::<TdesEde3>(&cipher_key, &[0; DES3_BLOCK], &mut data);
    let mac = mac::<Hmac<Sha1>>(&mac_key, &[&data]);
    bool::from(mac.ct_eq(found)).then(|| Zeroizing::new(data[DES3_BLOCK..].to_vec()))
}

// ---- RC4 (RFC 4757)

const RC4_CONFOUNDER: usize = 8;
const RC4_MAC: usize = 16;

fn seal_rc4(key: &[u8], usage: u32, plain: &[u8], rng: &mut impl CryptoRng) -> Vec<u8> {
    let key = mac::<Hmac<Md5>>(key, &[&usage.to_le_bytes()]);
    let mut data = with_confounder(RC4_CONFOUNDER, plain, 0, rng);
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

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

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
