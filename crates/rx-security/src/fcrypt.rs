//! fcrypt, rxkad's cipher: a Feistel network of 16 rounds over blocks of 64 bits, with a key of 56 (Security notes 2.6). The
//! mode is PCBC. It is weak, and used because stock peers speak nothing else.
//!
//! Each S-box is kept as a table of words that are shifted and rotated to where a round wants them, so that a round is four
//! look-ups. Encrypting a chain is bound by their latency: 16 rounds of about a dozen cycles for 8 bytes. So the chains of four
//! packets go side by side. Decrypting need not wait for the block before, so there it is four blocks of one packet.

mod boxes;

use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of a block.
pub(crate) const BLOCK_LEN: usize = 8;
const ROUNDS: usize = 16;

/// Box of the byte at the top of a round's word, and so on down; the output of each has its own place in the word, which is
/// then rotated by 5.
static TOP: [u32; 256] = table(&boxes::S0, 8);
static SECOND: [u32; 256] = table(&boxes::S1, 0);
static THIRD: [u32; 256] = table(&boxes::S2, 16);
static BOTTOM: [u32; 256] = table(&boxes::S3, 24);

const fn table(sbox: &[u8; 256], shift: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = ((sbox[i] as u32) << shift).rotate_right(5);
        i += 1;
    }
    table
}

#[inline(always)]
fn round(word: u32, key: u32) -> u32 {
    let [a, b, c, d] = (word ^ key).to_be_bytes();
    TOP[usize::from(a)] ^ SECOND[usize::from(b)] ^ THIRD[usize::from(c)] ^ BOTTOM[usize::from(d)]
}

/// The round keys of a key.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct Fcrypt([u32; ROUNDS]);

impl Fcrypt {
    /// The lowest bit of each byte of the key does not count.
    pub(crate) fn new(key: [u8; 8]) -> Self {
        let mut bits = key.iter().fold(0u64, |bits, byte| bits << 7 | u64::from(byte >> 1));
        let mut keys = [0; ROUNDS];
        for key in &mut keys {
            *key = bits as u32;
            bits = (bits >> 11 | bits << 45) & 0x00ff_ffff_ffff_ffff;
        }
        bits.zeroize();
        Self(keys)
    }

    /// One block, most significant byte first.
    pub(crate) fn encrypt_block(&self, block: u64) -> u64 {
        self.encrypt_blocks([block])[0]
    }

    /// `N` blocks at once, for the processor to work on side by side.
    #[inline(always)]
    fn encrypt_blocks<const N: usize>(&self, blocks: [u64; N]) -> [u64; N] {
        let mut l = blocks.map(|b| (b >> 32) as u32);
        let mut r = blocks.map(|b| b as u32);
        for keys in self.0.chunks_exact(2) {
            for i in 0..N {
                l[i] ^= round(r[i], keys[0]);
            }
            for i in 0..N {
                r[i] ^= round(l[i], keys[1]);
            }
        }
        std::array::from_fn(|i| u64::from(l[i]) << 32 | u64::from(r[i]))
    }

    /// `N` blocks back at once.
    #[inline(always)]
    fn decrypt_blocks<const N: usize>(&self, blocks: [u64; N]) -> [u64; N] {
        let mut l = blocks.map(|b| (b >> 32) as u32);
        let mut r = blocks.map(|b| b as u32);
        for keys in self.0.chunks_exact(2).rev() {
            for i in 0..N {
                r[i] ^= round(l[i], keys[1]);
            }
            for i in 0..N {
                l[i] ^= round(r[i], keys[0]);
            }
        }
        std::array::from_fn(|i| u64::from(l[i]) << 32 | u64::from(r[i]))
    }

    /// One block back.
    pub(crate) fn decrypt_block(&self, block: u64) -> u64 {
        self.decrypt_blocks([block])[0]
    }

    /// Encrypts whole blocks in place: each is mixed with the plain and the cipher text of the one before.
    ///
    /// # Panics
    /// If `data` ends within a block.
    pub(crate) fn encrypt_pcbc(&self, iv: u64, data: &mut [u8]) {
        self.encrypt_chains(iv, [data]);
    }

    /// Encrypts chains of one length, each for itself.
    ///
    /// # Panics
    /// If one ends within a block, or they differ in length.
    pub(crate) fn encrypt_chains<const N: usize>(&self, iv: u64, chains: [&mut [u8]; N]) {
        let chains = chains.map(|data| {
            let (blocks, rest) = data.as_chunks_mut::<BLOCK_LEN>();
            assert!(rest.is_empty(), "padded by the caller");
            blocks
        });
        let length = chains.first().map_or(0, |blocks| blocks.len());
        assert!(chains.iter().all(|blocks| blocks.len() == length), "of one length, the caller sees to it");
        let mut mix = [iv; N];
        (0..length).for_each(|at| {
            let plain: [u64; N] = std::array::from_fn(|i| u64::from_be_bytes(chains[i][at]));
            let cipher: [u64; N] = self.encrypt_blocks(std::array::from_fn(|i| plain[i] ^ mix[i]));
            for i in 0..N {
                mix[i] = plain[i] ^ cipher[i];
                chains[i][at] = cipher[i].to_be_bytes();
            }
        });
    }

    /// Decrypts whole blocks in place.
    ///
    /// # Panics
    /// If `data` ends within a block.
    pub(crate) fn decrypt_pcbc(&self, iv: u64, data: &mut [u8]) {
        let (blocks, rest) = data.as_chunks_mut::<BLOCK_LEN>();
        assert!(rest.is_empty(), "whole blocks are the caller's to see to");
        let mut mix = iv;
        let (groups, rest) = blocks.as_chunks_mut::<4>();
        for group in groups {
            let cipher = group.map(u64::from_be_bytes);
            let opened = self.decrypt_blocks(cipher);
            for i in 0..4 {
                let plain = opened[i] ^ mix;
                mix = plain ^ cipher[i];
                group[i] = plain.to_be_bytes();
            }
        }
        for block in rest {
            let cipher = u64::from_be_bytes(*block);
            let plain = self.decrypt_block(cipher) ^ mix;
            mix = plain ^ cipher;
            *block = plain.to_be_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn the_boxes_are_those_of_the_notes() {
        for (sbox, digest) in [
            (boxes::S0, "ffd5d4f5f65b62e1755d402b42bf45a6d2778fb23179c02d76323cc31183ebe9"),
            (boxes::S1, "a8f88496c3b3b9db530db1a1fcac30d358227e8eb7809084be7fe32f0e047c6c"),
            (boxes::S2, "8f67fbeac3181363ee5f501b26ffa87951f50817a6847f2692fd0e13d81061ca"),
            (boxes::S3, "207791ac8401cbe5cd5e81841cd1cb28df26e21e9550cbe3da9c0620ceffcab8"),
        ] {
            assert_eq!(hex(&Sha256::digest(sbox)), digest);
        }
    }

    #[test]
    fn blocks_are_those_of_openafs() {
        for (key, plain, cipher) in [
            (0x0000_0000_0000_0000, 0x0000_0000_0000_0000, 0x0e09_00c7_3ef7_ed41),
            (0xffff_ffff_ffff_ffff, 0x0000_0000_0000_0000, 0xcaa0_94c2_caea_9ea4),
            (0x6162_6364_6566_6768, 0x1111_1111_aaaa_aaaa, 0xe03e_8347_d403_f651),
            (0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, 0x4edf_11ed_9078_3113),
        ] {
            let fcrypt = Fcrypt::new(u64::to_be_bytes(key));
            assert_eq!(fcrypt.encrypt_block(plain), cipher);
            assert_eq!(fcrypt.decrypt_block(cipher), plain);
        }
    }

    #[test]
    fn the_schedule_is_that_of_openafs() {
        let want = [
            0x3895_7377,
            0xa267_12ae,
            0x0114_4ce2,
            0xbb80_2289,
            0x5737_7004,
            0x712a_e6ee,
            0x44ce_255c,
            0x0228_99c4,
            0x7700_4513,
            0xae6e_e008,
            0xe255_cddc,
            0x899c_4ab9,
            0x0451_3389,
            0xee00_8a26,
            0x5cdd_c011,
            0xc4ab_9bb8,
        ];
        assert_eq!(Fcrypt::new(u64::to_be_bytes(0x0123_4567_89ab_cdef)).0, want);
    }

    #[test]
    fn the_chain_is_that_of_openafs() {
        let key = *b"abcdefgh";
        let plain: Vec<u8> = (0u32..10).flat_map(u32::to_be_bytes).collect();
        let mut data = plain.clone();
        Fcrypt::new(key).encrypt_pcbc(u64::from_be_bytes(key), &mut data);
        assert_eq!(
            hex(&data),
            "2b77ed9ced78335f35c9ad9ce8d17a16bf10122fb556846575f107b1f57d1f77fb1bdc62e0744ad9"
        );
        Fcrypt::new(key).decrypt_pcbc(u64::from_be_bytes(key), &mut data);
        assert_eq!(data, plain);
    }

    #[test]
    fn chains_side_by_side_are_what_each_is_alone() {
        let (fcrypt, iv) = (Fcrypt::new(*b"\x01\x02\x04\x07\x08\x0b\x0d\x0e"), 77);
        let mut alone: [Vec<u8>; 4] =
            std::array::from_fn(|chain| (0..80).map(|i| (i * 37 + chain * 5) as u8).collect());
        let mut together = alone.clone();
        alone.iter_mut().for_each(|data| fcrypt.encrypt_pcbc(iv, data));
        fcrypt.encrypt_chains(iv, together.each_mut().map(|data| data.as_mut_slice()));
        assert_eq!(together, alone);
    }

    #[test]
    fn every_number_of_blocks_comes_back() {
        let (fcrypt, iv) = (Fcrypt::new(*b"\x01\x02\x04\x07\x08\x0b\x0d\x0e"), 77);
        for blocks in 0..14 {
            let plain: Vec<u8> = (0..blocks * 8).map(|i| (i * 37 + blocks) as u8).collect();
            let mut data = plain.clone();
            fcrypt.encrypt_pcbc(iv, &mut data);
            fcrypt.decrypt_pcbc(iv, &mut data);
            assert_eq!(data, plain, "{blocks} blocks");
        }
    }
}
