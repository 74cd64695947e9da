//! rxkad-kdf: rxkad's eight bytes out of a Kerberos session key of any kind (Security notes 3.3). Clients and servers do the
//! same; what comes out is as weak as rxkad is.

use crate::des::{is_weak, set_odd_parity};
use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;
use zeroize::Zeroizing;

/// The bytes behind the counter in what is hashed: the label, its end, and the wanted length in bits.
const LABEL: &[u8] = b"rxkad\0\0\0\0\x40";
/// Lengths of session keys that are taken, in bytes; OpenAFS takes none that is shorter.
const KEY_LEN: std::ops::RangeInclusive<usize> = 7..=256;

/// The rxkad session key of a Kerberos key; `None` for kinds that have none, and keys of the wrong length.
pub(crate) fn derive(kind: i32, key: &[u8]) -> Option<[u8; 8]> {
    match kind {
        1..=3 => key.try_into().ok(),
        5 | 7 | 16 => by_hmac(&squeeze(key.try_into().ok()?)[..]),
        4 | 6 | 8..=15 | ..=0 => None,
        _ if !KEY_LEN.contains(&key.len()) => None,
        _ => by_hmac(key),
    }
}

/// The first of up to 255 hashes that is a good DES key.
fn by_hmac(key: &[u8]) -> Option<[u8; 8]> {
    (1..=255u8).find_map(|counter| {
        let mut hmac = Hmac::<Md5>::new_from_slice(key).expect("an HMAC takes keys of any length");
        hmac.update(&[counter]);
        hmac.update(LABEL);
        let digest = hmac.finalize().into_bytes();
        let mut out: [u8; 8] = *digest.first_chunk().expect("MD5 gives 16 bytes");
        set_odd_parity(&mut out);
        (!is_weak(out)).then_some(out)
    })
}

/// Takes the parity bits out of a 3DES key: each eight bytes become seven, the upper bits of the last filling the lowest of the
/// others.
fn squeeze(key: [u8; 24]) -> Zeroizing<[u8; 21]> {
    let mut out = Zeroizing::new([0; 21]);
    for (group, out) in key.chunks_exact(8).zip(out.chunks_exact_mut(7)) {
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = group[i] & 0xfe | group[7] >> (i + 1) & 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: i32, key: &[u8], want: u64) {
        assert_eq!(derive(kind, key), Some(want.to_be_bytes()), "of kind {kind}");
    }

    #[test]
    fn keys_are_those_of_openafs() {
        let bytes: Vec<u8> = (0..32).collect();
        for kind in [17, 19, 23] {
            check(kind, &bytes[..16], 0x0783_8c58_c11c_64ab);
        }
        for kind in [18, 20] {
            check(kind, &bytes, 0xb60d_b5e3_0b26_6b16);
        }
        let des3 = [
            0x02, 0x0a, 0x14, 0x1c, 0x26, 0x2f, 0x38, 0x4a, 0x52, 0x5d, 0x64, 0x6e, 0x76, 0x81, 0x92, 0x9a,
            0xa4, 0xad, 0xb6, 0xbf, 0xc9, 0xbf, 0xc9, 0xd0,
        ];
        check(16, &des3, 0x8a57_9291_c1ea_1f1a);
        check(1, &0x0123_4567_89ab_cdef_u64.to_be_bytes(), 0x0123_4567_89ab_cdef);
        check(3, &0x0123_4567_89ab_cdef_u64.to_be_bytes(), 0x0123_4567_89ab_cdef);
    }

    #[test]
    fn kinds_and_lengths_that_mean_nothing_are_refused() {
        for (kind, len) in [(0, 8), (-1, 16), (4, 8), (6, 24), (15, 16), (1, 7), (16, 23), (18, 6), (18, 257)]
        {
            assert_eq!(derive(kind, &vec![1; len]), None, "{len} bytes of kind {kind}");
        }
    }
}
