//! The places for connections to the control socket. A user has some, all together have more, and root's are beside those of the others.
//! One who comes when they are taken gets the place of a connection that waits for nothing but its peer: so nobody keeps others out by
//! connections that say nothing, under however many numbers of users.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Connections at once of all users but root. A command has one, for as long as it runs.
const ALL_MAX: usize = 256;

/// Connections of one user at once.
pub(super) const PER_USER_MAX: usize = 32;

const ROOT: u32 = 0;

#[derive(Debug)]
struct Taken {
    user: u32,
    /// True while it is answered: then nobody else gets its place.
    is_busy: bool,
    lost: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Table {
    /// Places by numbers that count up.
    taken: HashMap<u64, Taken>,
    next: u64,
}

/// The places.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<Table>);

/// A place, until it is dropped or lost.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    lost: Arc<Notify>,
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more connection of a user; `None` if there is none, and no other can be taken away.
    pub(super) fn take(self: &Arc<Self>, user: u32) -> Option<Place> {
        let mut table = self.lock();
        let of_others = table.taken.values().filter(|taken| taken.user != ROOT).count();
        if table.of_user(user) >= PER_USER_MAX {
            table.make_room(|of| of == user)?;
        } else if user != ROOT && of_others >= ALL_MAX {
            table.make_room(|of| of != ROOT)?;
        }
        let number = table.next;
        table.next += 1;
        let lost = Arc::<Notify>::default();
        table.taken.insert(number, Taken { user, is_busy: false, lost: Arc::clone(&lost) });
        Some(Place { places: Arc::clone(self), number, lost })
    }
}

impl Table {
    fn of_user(&self, user: u32) -> usize {
        self.taken.values().filter(|taken| taken.user == user).count()
    }

    /// Takes away the oldest idle place of the user who has most, of those who are meant.
    fn make_room(&mut self, is_meant: impl Fn(u32) -> bool) -> Option<()> {
        let idle = self.taken.iter().filter(|(_, taken)| is_meant(taken.user) && !taken.is_busy);
        let (&number, _) =
            idle.max_by_key(|(number, taken)| (self.of_user(taken.user), Reverse(**number)))?;
        self.taken.remove(&number).expect("it was there just now").lost.notify_one();
        Some(())
    }
}

impl Place {
    /// Notes whether its connection is being answered.
    pub(super) fn set_busy(&self, is_busy: bool) {
        if let Some(taken) = self.places.lock().taken.get_mut(&self.number) {
            taken.is_busy = is_busy;
        }
    }

    /// Waits until another connection has got it.
    pub(super) async fn is_lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn has_lost(place: &Place) -> bool {
        place.is_lost().now_or_never().is_some()
    }

    #[test]
    fn a_user_keeps_out_neither_others_nor_his_own_commands() {
        let places = Arc::new(Places::default());
        let mut own: Vec<_> = (0..PER_USER_MAX).map(|_| places.take(1).expect("a place")).collect();
        let other = places.take(2).expect("a place");
        own[0].set_busy(true);
        own.push(places.take(1).expect("the place of the oldest that is idle"));
        assert!(!has_lost(&own[0]) && has_lost(&own[1]) && !has_lost(&other));
        own.iter().for_each(|place| place.set_busy(true));
        assert!(places.take(1).is_none(), "all of them are answered");
        own.pop();
        assert!(places.take(1).is_some());
        drop((own, other));
        assert!(places.lock().taken.is_empty(), "who has left is not remembered");
    }

    /// Each user of Debian has 65,536 sub-uids, and with eight of them had all places.
    #[test]
    fn one_person_under_many_numbers_keeps_nobody_out() {
        let places = Arc::new(Places::default());
        let user = places.take(1000).expect("a place");
        let many = (0..ALL_MAX - 1).map(|number| places.take(100_000 + number as u32 / 2).expect("a place"));
        let many: Vec<_> = many.collect();
        let late = places.take(1001).expect("the place of one of them");
        assert!(!has_lost(&user) && has_lost(&many[0]) && !has_lost(&many[1]));
        many.iter().chain([&user, &late]).for_each(|place| place.set_busy(true));
        assert!(places.take(1002).is_none());
        assert!(places.take(ROOT).is_some(), "root's are beside those of the others");
    }
}
