//! DES in the two modes that tickets want, and what makes eight bytes a DES key. The cipher itself is RustCrypto's.

use ::des::Des;
use ::des::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

/// Bytes of a block.
pub(crate) const BLOCK_LEN: usize = 8;

/// The keys under which DES does not do what it should: the weak, then the semi-weak ones (FIPS 74).
const WEAK: [u64; 16] = [
    0x0101_0101_0101_0101,
    0xfefe_fefe_fefe_fefe,
    0x1f1f_1f1f_0e0e_0e0e,
    0xe0e0_e0e0_f1f1_f1f1,
    0x01fe_01fe_01fe_01fe,
    0xfe01_fe01_fe01_fe01,
    0x1fe0_1fe0_0ef1_0ef1,
    0xe01f_e01f_f10e_f10e,
    0x01e0_01e0_01f1_01f1,
    0xe001_e001_f101_f101,
    0x1ffe_1ffe_0efe_0efe,
    0xfe1f_fe1f_fe0e_fe0e,
    0x011f_011f_010e_010e,
    0x1f01_1f01_0e01_0e01,
    0xe0fe_e0fe_f1fe_f1fe,
    0xfee0_fee0_fef1_fef1,
];

/// Gives each byte an odd number of bits by its lowest.
pub(crate) fn set_odd_parity(key: &mut [u8]) {
    for byte in key {
        *byte = *byte & 0xfe | u8::from((*byte >> 1).count_ones() % 2 == 0);
    }
}

/// True if a key with its parity set is one of the weak ones.
pub(crate) fn is_weak(key: [u8; 8]) -> bool {
    WEAK.contains(&u64::from_be_bytes(key))
}

/// Encrypts whole blocks in place, each mixed with the plain and the cipher text of the one before (PCBC).
///
/// # Panics
/// If `data` ends within a block.
pub(crate) fn encrypt_pcbc(key: [u8; 8], data: &mut [u8]) {
    let des = Des::new(&key.into());
    chain(
        key,
        data,
        |block| {
            let mut out = block.to_be_bytes().into();
            des.encrypt_block(&mut out);
            u64::from_be_bytes(out.into())
        },
        true,
    );
}

/// Decrypts whole blocks in place. The key is also the initial vector.
///
/// # Panics
/// If `data` ends within a block.
pub(crate) fn decrypt_pcbc(key: [u8; 8], data: &mut [u8]) {
    let des = Des::new(&key.into());
    chain(
        key,
        data,
        |block| {
            let mut out = block.to_be_bytes().into();
            des.decrypt_block(&mut out);
            u64::from_be_bytes(out.into())
        },
        false,
    );
}

fn chain(iv: [u8; 8], data: &mut [u8], cipher: impl Fn(u64) -> u64, encrypts: bool) {
    let (blocks, rest) = data.as_chunks_mut::<BLOCK_LEN>();
    assert!(rest.is_empty(), "whole blocks are the caller's to see to");
    let mut mix = u64::from_be_bytes(iv);
    for block in blocks {
        let before = u64::from_be_bytes(*block);
        let after = if encrypts { cipher(before ^ mix) } else { cipher(before) ^ mix };
        mix = before ^ after;
        *block = after.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_is_odd() {
        let mut key = [0x00, 0x01, 0x02, 0x03, 0xfe, 0xff, 0x80, 0x7f];
        set_odd_parity(&mut key);
        assert_eq!(key, [0x01, 0x01, 0x02, 0x02, 0xfe, 0xfe, 0x80, 0x7f]);
        assert!(WEAK.iter().all(|weak| {
            let mut key = weak.to_be_bytes();
            set_odd_parity(&mut key);
            is_weak(key)
        }));
        assert!(!is_weak(key));
    }

    #[test]
    fn a_chain_comes_back() {
        let key = *b"\x01\x02\x04\x07\x08\x0b\x0d\x0e";
        let plain: Vec<u8> = (0..40).collect();
        let mut data = plain.clone();
        encrypt_pcbc(key, &mut data);
        assert_ne!(data[8..16], plain[8..16]);
        decrypt_pcbc(key, &mut data);
        assert_eq!(data, plain);
    }
}
