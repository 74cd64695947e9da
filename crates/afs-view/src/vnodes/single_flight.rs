//! Single-flight for statuses: an operation that wants a status for which another one has asked waits for that answer, and does not ask
//! again.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use afs_reach::fid::Fid;
use afs_reach::users::IdentityIndex;

/// The statuses that are in flight, each as one identity is told it.
#[derive(Debug, Default)]
pub struct SingleFlight {
    table: Mutex<HashSet<(IdentityIndex, Fid)>>,
    /// Told when some have come, or will not come.
    done: Notify,
}

/// Statuses that the owner of this asks for; when it is dropped, others may ask.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    single_flight: &'a SingleFlight,
    who: IdentityIndex,
    fids: Vec<Fid>,
}

impl Claim<'_> {
    /// The vnodes that are to be asked for.
    pub(crate) fn fids(&self) -> &[Fid] {
        &self.fids
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut table = self.single_flight.lock();
        for &fid in &self.fids {
            table.remove(&(self.who, fid));
        }
        drop(table);
        self.single_flight.done.notify_waiters();
    }
}

impl SingleFlight {
    fn lock(&self) -> MutexGuard<'_, HashSet<(IdentityIndex, Fid)>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the asking for those that nobody asks for; the others are in flight.
    pub(crate) fn claim(&self, who: IdentityIndex, fids: &[Fid]) -> (Claim<'_>, Vec<Fid>) {
        let mut table = self.lock();
        let (mine, others) = fids.iter().partition(|&&fid| table.insert((who, fid)));
        drop(table);
        (Claim { single_flight: self, who, fids: mine }, others)
    }

    /// Waits until none of these is in flight any more.
    pub(crate) async fn wait(&self, who: IdentityIndex, fids: &[Fid]) {
        loop {
            let mut done = pin!(self.done.notified());
            done.as_mut().enable();
            let is_in_flight = {
                let table = self.lock();
                fids.iter().any(|&fid| table.contains(&(who, fid)))
            };
            if !is_in_flight {
                return;
            }
            done.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afs_reach::fid::CellIndex;
    use afs_wire::ids::VolumeId;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    fn fid(volume: u32) -> Fid {
        Fid::root_of(CellIndex(1), VolumeId(volume))
    }

    #[test]
    fn what_one_asks_for_others_wait_for() {
        let single_flight = SingleFlight::default();
        let (first, others) = single_flight.claim(IdentityIndex::NOBODY, &[fid(1), fid(2)]);
        assert_eq!((first.fids(), others.len()), (&[fid(1), fid(2)][..], 0));
        let (second, others) = single_flight.claim(IdentityIndex::NOBODY, &[fid(2), fid(3)]);
        assert_eq!((second.fids(), &others[..]), (&[fid(3)][..], &[fid(2)][..]));
        assert_eq!(
            single_flight.claim(IdentityIndex::for_tests(1), &[fid(2)]).1,
            [],
            "others are told other rights"
        );
        let mut waiting = pin!(single_flight.wait(IdentityIndex::NOBODY, &others));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        drop(second);
        assert!(waiting.as_mut().poll(&mut cx).is_pending(), "another's has come");
        drop(first);
        assert_eq!(waiting.as_mut().poll(&mut cx), Poll::Ready(()));
    }
}
