//! Processors for tests that keep one busy. Most tests wait, so a program of tests runs many of them side by side; those that
//! compute, or that compare times, would be in each other's way, and hold a [`Cpu`] meanwhile.

use std::sync::{Condvar, Mutex, PoisonError};

/// Tests of one program that may keep a processor busy at a time: the smallest machine that runs them has two processors.
const AT_ONCE: usize = 2;

static BUSY: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// A processor, until it is dropped.
#[derive(Debug)]
#[must_use = "it is given back when it is dropped"]
pub struct Cpu(());

/// Waits until fewer than two other tests of this program keep a processor busy.
pub fn cpu() -> Cpu {
    let busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
    let mut busy = ENDED.wait_while(busy, |busy| *busy >= AT_ONCE).unwrap_or_else(PoisonError::into_inner);
    *busy += 1;
    Cpu(())
}

impl Drop for Cpu {
    fn drop(&mut self) {
        *BUSY.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}
