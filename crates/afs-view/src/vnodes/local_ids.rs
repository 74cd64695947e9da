//! The numbers of vnodes that were made here: a client that does not wait for the server gives them numbers of its own, by which programs and the
//! kernel know them as long as the client runs. What is sent to servers has the real numbers ([`LocalIds::at_server`]), and what comes from servers
//! is shown under ours ([`LocalIds::shown`]).

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::pause::Pause;
use afs_reach::error::Error;
use afs_reach::fid::{CellIndex, Fid};
use afs_wire::ids::{LocalFid, Uniquifier, VnodeNumber, VolumeId};
use tokio::sync::Notify;

/// The first vnode number that is ours. Servers count from 1 in steps, and are far from it.
const FIRST: u32 = 0xc000_0000;

/// Vnode numbers of each kind that are ours. The uniquifier goes up when they are through.
const NUMBERS: u32 = (u32::MAX - FIRST) / 2;

/// Numbers that are given in the life of a client, as each takes memory until it ends. Beyond, what is made waits for the server.
const GIVEN_MAX: usize = 1_000_000;

/// True if a number is one of ours.
pub(crate) fn is_local(fid: Fid) -> bool {
    fid.vnode.0 >= FIRST && fid.cell.has_volumes()
}

/// What is known of something that was made here.
#[derive(Debug)]
enum Real {
    /// It is to be made at the server; so often that was tried, with this error the last time.
    Waits { failures: u64, error: Option<Error> },
    /// It has these numbers there.
    Known(LocalFid),
    /// It will not be made.
    Never(Error),
}

#[derive(Debug, Default)]
struct Table {
    real: HashMap<Fid, Real>,
    shown: HashMap<Fid, Fid>,
    next: u64,
}

/// The numbers that were given here, and the real ones.
#[derive(Debug, Default)]
pub struct LocalIds {
    table: Mutex<Table>,
    /// How many have real ones: most of the time none.
    known: AtomicUsize,
    changed: Notify,
    /// Whether what is to be made is sent.
    pub(crate) pause: Arc<Pause>,
}

impl LocalIds {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives something a number that is about to be made in a directory.
    pub(crate) fn give(&self, dir: Fid, is_directory: bool) -> Fid {
        let mut table = self.lock();
        let count = table.next;
        table.next += 1;
        let number = u32::try_from(count % u64::from(NUMBERS)).expect("less than a u32");
        let vnode = VnodeNumber(FIRST + 2 * number + u32::from(is_directory));
        let unique = Uniquifier(u32::try_from(count / u64::from(NUMBERS)).unwrap_or(u32::MAX) + 1);
        let fid = Fid { vnode, unique, ..dir };
        table.real.insert(fid, Real::Waits { failures: 0, error: None });
        fid
    }

    /// True if more can be given.
    pub(crate) fn have_room(&self) -> bool {
        self.lock().real.len() < GIVEN_MAX
    }

    /// Takes over a number that an earlier run has given, with the real one if there is one.
    pub(crate) fn restore(&self, fid: Fid, real: Option<LocalFid>) {
        self.note_given(fid.vnode, fid.unique);
        let mut table = self.lock();
        table.real.insert(fid, Real::Waits { failures: 0, error: None });
        drop(table);
        if let Some(real) = real {
            self.note_made(fid, real);
        }
    }

    /// Does not give this number again, if it is one of ours.
    pub(crate) fn note_given(&self, vnode: VnodeNumber, unique: Uniquifier) {
        if let Some(number) = vnode.0.checked_sub(FIRST) {
            let count = u64::from(unique.0.saturating_sub(1)) * u64::from(NUMBERS) + u64::from(number / 2);
            let mut table = self.lock();
            table.next = table.next.max(count + 1);
        }
    }

    /// The server has made it, under these numbers.
    pub(crate) fn note_made(&self, fid: Fid, real: LocalFid) {
        let mut table = self.lock();
        table.real.insert(fid, Real::Known(real));
        table.shown.insert(fid.sibling(real), fid);
        self.known.store(table.shown.len(), Ordering::Release);
        drop(table);
        self.changed.notify_waiters();
    }

    /// A change in a volume has failed and is tried again: who waits for something there, or behind it, is told.
    pub(crate) fn note_failures(&self, cell: CellIndex, volume: VolumeId, why: &Error) {
        for (fid, real) in &mut self.lock().real {
            if let (true, Real::Waits { failures, error }) = ((fid.cell, fid.volume) == (cell, volume), real)
            {
                *failures += 1;
                *error = Some(why.clone());
            }
        }
        self.changed.notify_waiters();
    }

    /// It will not be made.
    pub(crate) fn note_never(&self, fid: Fid, why: Error) {
        self.lock().real.insert(fid, Real::Never(why));
        self.changed.notify_waiters();
    }

    /// The fid by which the server knows something. For what is still to be made, this waits until the server has made it.
    ///
    /// # Errors
    ///
    /// That of an attempt to make it that fails meanwhile; [`Error::Unreachable`] for what an earlier run has made in a cell that is not known now.
    pub async fn at_server(&self, fid: Fid) -> Result<Fid, Error> {
        if !is_local(fid) {
            return Ok(fid);
        }
        let (_passing, mut seen) = (self.pause.pass(), None);
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            match self.lock().real.get(&fid) {
                Some(Real::Known(real)) => return Ok(fid.sibling(*real)),
                Some(Real::Never(error)) => return Err(error.clone()),
                Some(Real::Waits { failures, error }) => match (seen, error) {
                    (Some(before), Some(error)) if before != *failures => return Err(error.clone()),
                    _ => seen = Some(*failures),
                },
                None => {
                    let what = format!("what was made here as {fid}");
                    return Err(Error::Unreachable { what, servers: Vec::new() });
                }
            }
            changed.await;
        }
    }

    /// The fid by which the server knows something, if it has made it by now; else ours.
    pub(crate) fn real_or_own(&self, fid: Fid) -> Fid {
        if !is_local(fid) {
            return fid;
        }
        match self.lock().real.get(&fid) {
            Some(Real::Known(real)) => fid.sibling(*real),
            Some(Real::Waits { .. } | Real::Never(_)) | None => fid,
        }
    }

    /// True if the server knows nothing of it yet.
    pub(crate) fn is_to_be_made(&self, fid: Fid) -> bool {
        is_local(fid) && matches!(self.lock().real.get(&fid), Some(Real::Waits { .. }))
    }

    /// True if nothing that was made here has real numbers: nothing that comes from servers is shown under other ones.
    pub(crate) fn shows_all_as_told(&self) -> bool {
        self.known.load(Ordering::Acquire) == 0
    }

    /// The fid under which something is shown that a server tells of.
    pub fn shown(&self, fid: Fid) -> Fid {
        if self.shows_all_as_told() {
            return fid;
        }
        self.lock().shown.get(&fid).copied().unwrap_or(fid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    const DIR: Fid = Fid::root_of(CellIndex(1), VolumeId(7));
    const REAL: LocalFid = LocalFid { vnode: VnodeNumber(4), unique: Uniquifier(9) };

    #[test]
    fn what_was_made_here_has_one_number_for_programs_and_another_for_the_server() {
        let ids = LocalIds::default();
        let (file, dir) = (ids.give(DIR, false), ids.give(DIR, true));
        assert!(is_local(file) && !file.vnode.is_directory() && dir.vnode.is_directory() && file != dir);
        let mut asked = pin!(ids.at_server(file));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(asked.as_mut().poll(&mut cx).is_pending());
        ids.note_made(file, REAL);
        assert!(matches!(asked.as_mut().poll(&mut cx), Poll::Ready(Ok(fid)) if fid == DIR.sibling(REAL)));
        assert_eq!(ids.shown(DIR.sibling(REAL)), file);
        assert_eq!(ids.shown(DIR), DIR);
    }

    #[test]
    fn who_waits_for_the_real_number_is_told_of_an_attempt_that_fails() {
        let ids = LocalIds::default();
        let file = ids.give(DIR, false);
        ids.note_failures(DIR.cell, DIR.volume, &Error::Closing);
        let mut asked = pin!(ids.at_server(file));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(asked.as_mut().poll(&mut cx).is_pending(), "that was before");
        ids.note_failures(DIR.cell, DIR.volume, &Error::Closing);
        assert!(matches!(asked.as_mut().poll(&mut cx), Poll::Ready(Err(Error::Closing))));
    }

    #[test]
    fn a_number_of_an_earlier_run_is_not_given_again() {
        let (before, ids) = (LocalIds::default(), LocalIds::default());
        let last = [false, true, false].map(|is_directory| before.give(DIR, is_directory))[2];
        ids.restore(last, None);
        let next = ids.give(DIR, false);
        assert!(next.vnode.0 > last.vnode.0, "{next} after {last}");
    }
}
