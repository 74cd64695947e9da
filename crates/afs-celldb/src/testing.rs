//! What the tests of this crate share: a future that is ready, and numbers from a seed.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// What comes of a future that does not wait, as none does over the memory store.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store never waits"),
    }
}

/// Xorshift: the same numbers from the same seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(0x2545_f491_4f6c_dd1d_u64.wrapping_mul(seed) | 1)
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 33) as u32) % limit
    }
}
