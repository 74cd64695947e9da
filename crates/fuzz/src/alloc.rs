//! The system's allocator, counting per thread what is allocated, so that `engine` can say what an input cost. Only counts
//! when a program names it as its `#[global_allocator]`; decides nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes this thread has allocated less those it has freed; negative if it frees what another allocated.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// The highest value of `LIVE` since the last [`measure`] began.
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Name it as `#[global_allocator]` to have [`measure`] measure.
pub struct Counting;

/// Runs `f`; also returns the most bytes that it held at any one time, beyond what was held before: 0 if this program's
/// allocator is another one.
pub fn measure<R>(f: impl FnOnce() -> R) -> (R, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = f();
    (result, usize::try_from(PEAK.get() - before).unwrap_or(0))
}

/// True if [`Counting`] is this program's allocator.
pub fn is_counting() -> bool {
    measure(|| drop(std::hint::black_box(Box::new(0u64)))).1 > 0
}

/// Layouts are at most `isize::MAX` bytes. Does nothing while a thread ends and its counters are gone.
fn add(bytes: isize) {
    let _ = LIVE.try_with(|live| {
        live.set(live.get().wrapping_add(bytes));
        PEAK.try_with(|peak| peak.set(peak.get().max(live.get())))
    });
}

// SAFETY: every method hands its arguments to `System` as they are and returns what that returns. The counters are plain
// cells with constant initial values and without destructors, so touching them neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: the caller keeps to the contract of `alloc`, which is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: the block came from `System` with this layout, as all blocks of this allocator.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both blocks exist while their contents move.
        add(new_size as isize);
        add(-(layout.size() as isize));
        // SAFETY: as in `dealloc`; the caller vouches for `new_size`.
        unsafe { System.realloc(block, layout, new_size) }
    }
}
