//! CBC with ciphertext stealing (RFC 3962 5) over AES, with an initial vector of zeros: of any length from a block on; the last
//! two blocks change places, and the second of them is cut.

use aes::cipher::consts::U16;
use aes::cipher::{
    Array, BlockCipherDecrypt, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt,
    BlockSizeUser, ParBlocks,
};

/// Bytes of a block.
pub(super) const BLOCK: usize = 16;

/// Bodies that are encrypted side by side. A block of a chain waits for the one before it, and AES instructions take several cycles
/// each, of which a processor begins one or two in a cycle: so many chains keep it busy, and `aes` has as many blocks at a time.
const LANES: usize = 8;

/// Encrypts bodies in place, each by itself. Those that stand together and have one length are encrypted side by side. Each has a
/// block at least.
pub(super) fn encrypt<C>(cipher: &C, bodies: &mut dyn Iterator<Item = &mut [u8]>)
where
    C: BlockCipherEncrypt<BlockSize = U16>,
{
    loop {
        let mut lanes: [&mut [u8]; LANES] = std::array::from_fn(|_| bodies.next().unwrap_or_default());
        let mut rest = &mut lanes[..];
        while let Some(first) = rest.first().map(|body| body.len()).filter(|len| *len > 0) {
            let same = rest.iter().take_while(|body| body.len() == first).count();
            let (group, others) = rest.split_at_mut(same);
            cipher.encrypt_with_backend(Chains { bodies: group, len: first });
            rest = others;
        }
        if lanes[LANES - 1].is_empty() {
            return;
        }
    }
}

/// The work of a few chains of one length, for whatever the processor has for AES.
struct Chains<'a, 'b> {
    bodies: &'a mut [&'b mut [u8]],
    len: usize,
}

impl BlockSizeUser for Chains<'_, '_> {
    type BlockSize = U16;
}

impl BlockCipherEncClosure for Chains<'_, '_> {
    // Inlined into what was compiled for the processor's instructions.
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let mut states = ParBlocks::<B>::default();
        for group in self.bodies.chunks_mut(states.len()) {
            states.iter_mut().for_each(|state| state.fill(0));
            let last_at = (self.len - 1) / BLOCK * BLOCK;
            for at in (0..last_at).step_by(BLOCK) {
                for (state, body) in states.iter_mut().zip(group.iter()) {
                    let block = body[at..at + BLOCK].try_into().expect("it is cut to its length");
                    // As numbers: byte by byte this took most of the time.
                    let sum = u128::from_ne_bytes(state.0) ^ u128::from_ne_bytes(block);
                    state.0 = sum.to_ne_bytes();
                }
                encrypt_first(backend, &mut states, group.len());
                for (state, body) in states.iter().zip(group.iter_mut()) {
                    body[at..at + BLOCK].copy_from_slice(state);
                }
            }
            for (state, body) in states.iter_mut().zip(group.iter()) {
                add(state, &body[last_at..]);
            }
            encrypt_first(backend, &mut states, group.len());
            for (state, body) in states.iter().zip(group.iter_mut()) {
                match last_at.checked_sub(BLOCK) {
                    Some(before_at) => {
                        let (before, last) = body[before_at..].split_at_mut(BLOCK);
                        last.copy_from_slice(&before[..last.len()]);
                        before.copy_from_slice(state);
                    }
                    None => body.copy_from_slice(state),
                }
            }
        }
    }
}

#[inline(always)]
fn encrypt_first<B: BlockCipherEncBackend<BlockSize = U16>>(
    backend: &B,
    states: &mut ParBlocks<B>,
    count: usize,
) {
    match count {
        1 => backend.encrypt_block_inplace(&mut states[0]),
        _ => backend.encrypt_par_blocks_inplace(states),
    }
}

#[inline(always)]
fn add(state: &mut [u8], bytes: &[u8]) {
    state.iter_mut().zip(bytes).for_each(|(s, b)| *s ^= b);
}

/// Decrypts a body of a block at least.
pub(super) fn decrypt<C>(cipher: &C, sealed: &[u8]) -> Vec<u8>
where
    C: BlockCipherDecrypt<BlockSize = U16>,
{
    let mut plain = sealed.to_vec();
    let last_at = (sealed.len() - 1) / BLOCK * BLOCK;
    let Some(swapped_at) = last_at.checked_sub(BLOCK) else {
        let (block, _) = Array::slice_as_chunks_mut(&mut plain);
        cipher.decrypt_blocks(block);
        return plain;
    };
    // All but the last two, which have changed places.
    let (blocks, _) = Array::slice_as_chunks_mut(&mut plain[..swapped_at]);
    cipher.decrypt_blocks(blocks);
    if let Some(chained) = plain.get_mut(BLOCK..swapped_at) {
        add(chained, sealed);
    }
    let (ends, cut) = (&sealed[swapped_at..last_at], &sealed[last_at..]);
    let mut last = Array::<u8, U16>::default();
    last.copy_from_slice(ends);
    cipher.decrypt_block(&mut last);
    // What the cut block has lost stands in the other one in place of padding.
    let mut before = last;
    before[..cut.len()].copy_from_slice(cut);
    cipher.decrypt_block(&mut before);
    if let Some(at) = swapped_at.checked_sub(BLOCK) {
        add(&mut before, &sealed[at..swapped_at]);
    }
    add(&mut last, cut);
    plain[swapped_at..last_at].copy_from_slice(&before);
    plain[last_at..].copy_from_slice(&last[..cut.len()]);
    plain
}
