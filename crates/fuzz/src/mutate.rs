//! Makes a new input from those there are. Knows nothing of any format: numbers that are known to matter on the wire of Rx
//! and XDR are in a table, in network byte order.

use crate::rng::Rng;

/// Longest input made, in bytes: the largest Rx packet is 16,384, the largest jumbogram of a stock peer 8,524.
pub const MAX_INPUT_LEN: usize = 20_000;

/// Longest piece that is doubled, moved or taken from another input, in bytes.
const MAX_CHUNK: usize = 2048;

/// Most mutations on top of each other.
const MAX_MUTATIONS: usize = 6;

/// Edges of integers, and lengths at which Rx does something else.
const INTERESTING: [u32; 25] = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    28,
    32,
    127,
    128,
    255,
    256,
    1412,
    1416,
    1444,
    2048,
    0x7fff,
    0xffff,
    0x0001_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fffe,
    0xffff_ffff,
];

/// Changes `input` in one to six ways; `others` is what there is to take pieces from.
pub fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut Rng) {
    for _ in 0..=rng.below(MAX_MUTATIONS) {
        match rng.below(11) {
            0 => flip_bit(input, rng),
            1 => set_byte(input, rng),
            2 | 3 => set_interesting(input, rng),
            4 => add_small(input, rng),
            5 => input.truncate(rng.below(input.len() + 1)),
            6 => remove_chunk(input, rng),
            7 => duplicate_chunk(input, rng),
            8 => append_noise(input, rng),
            9 => overwrite_from_other(input, others, rng),
            _ => splice(input, others, rng),
        }
        input.truncate(MAX_INPUT_LEN);
    }
}

fn flip_bit(input: &mut [u8], rng: &mut Rng) {
    let at = rng.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << rng.below(8);
    }
}

fn set_byte(input: &mut [u8], rng: &mut Rng) {
    let at = rng.below(input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte = rng.next() as u8;
    }
}

/// A field of 1, 2 or 4 bytes, at any place: not all fields are aligned.
fn field<'a>(input: &'a mut [u8], rng: &mut Rng) -> Option<&'a mut [u8]> {
    let width = 1 << rng.below(3);
    let at = rng.below((input.len() + 1).saturating_sub(width));
    input.get_mut(at..at + width)
}

fn set_interesting(input: &mut [u8], rng: &mut Rng) {
    let value = INTERESTING[rng.below(INTERESTING.len())].to_be_bytes();
    if let Some(field) = field(input, rng) {
        field.copy_from_slice(&value[4 - field.len()..]);
    }
}

fn add_small(input: &mut [u8], rng: &mut Rng) {
    let delta = rng.below(33) as u32;
    if let Some(field) = field(input, rng) {
        let mut wide = [0; 4];
        wide[4 - field.len()..].copy_from_slice(field);
        let sum = u32::from_be_bytes(wide).wrapping_add(delta).wrapping_sub(16).to_be_bytes();
        field.copy_from_slice(&sum[4 - field.len()..]);
    }
}

/// The beginning and end of a random piece.
fn chunk(len: usize, rng: &mut Rng) -> std::ops::Range<usize> {
    let start = rng.below(len);
    start..start + rng.below((len - start).min(MAX_CHUNK) + 1)
}

fn remove_chunk(input: &mut Vec<u8>, rng: &mut Rng) {
    input.drain(chunk(input.len(), rng));
}

fn duplicate_chunk(input: &mut Vec<u8>, rng: &mut Rng) {
    let copied = input[chunk(input.len(), rng)].to_vec();
    let to = rng.below(input.len() + 1);
    input.splice(to..to, copied);
}

fn append_noise(input: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..rng.below(32) {
        input.push(rng.next() as u8);
    }
}

fn overwrite_from_other(input: &mut [u8], others: &[Vec<u8>], rng: &mut Rng) {
    let Some(other) = others.get(rng.below(others.len())) else { return };
    let piece = &other[chunk(other.len(), rng)];
    let to = rng.below(input.len());
    let len = piece.len().min(input.len() - to);
    input[to..to + len].copy_from_slice(&piece[..len]);
}

/// The beginning of this one, the end of another.
fn splice(input: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut Rng) {
    let Some(other) = others.get(rng.below(others.len())) else { return };
    input.truncate(rng.below(input.len() + 1));
    input.extend_from_slice(&other[rng.below(other.len() + 1)..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs() {
        let others = [b"some bytes".to_vec(), Vec::new(), vec![7; 3000]];
        let run = |seed| {
            let (mut rng, mut input) = (Rng::new(seed), Vec::new());
            for _ in 0..2000 {
                mutate(&mut input, &others, &mut rng);
                assert!(input.len() <= MAX_INPUT_LEN);
            }
            input
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}
