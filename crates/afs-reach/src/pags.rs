//! PAGs: which there are, and in which one a process is. A PAG is a supplementary group with a random number, that the client gives
//! out on its control socket. Which tokens a PAG has is in `users`, as for users without one.
//!
//! A number that was made for another user is a PAG without tokens: it gives nobody more than they had, and also not the tokens that the
//! user has outside of PAGs. So is one that processes had when the client began, as it may be of an earlier run of this client, unless its tokens
//! were kept. Any other number is another client's or an ordinary group's, and counts for nothing here.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rand::Rng;
use rand::rngs::StdRng;

use crate::fid::{Pag, User};

/// PAGs of one user at most, so that none of them keeps others from having any: more than sessions that anybody has at once. Those
/// without processes make place, also if they have good tokens: a job that is run each minute leaves one of these each time.
const PER_USER_MAX: usize = 1024;

/// The same, with those whose sessions are over: their numbers are in use until no process has been seen in them for some minutes.
const PER_USER_WITH_OVER_MAX: usize = 4 * PER_USER_MAX;

/// PAGs at most, of 16 million numbers: a guess at one that is in use stays a matter of luck.
const ALL_MAX: usize = 1 << 16;

/// The PAGs that the client has made, or has found processes in when it began.
#[derive(Debug, Default)]
pub struct Pags {
    /// True if there is one: without, nobody looks at the groups of processes. Changes with `all` locked.
    are_in_use: AtomicBool,
    /// True if processes were looked at that may be in PAGs from before.
    has_looked: AtomicBool,
    all: Mutex<HashMap<Pag, Made>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Made {
    /// The user that it was made for; `None` if processes had it before this client began.
    owner: Option<u32>,
    /// The number of looks in a row that found it in no process. The first may have come before the process had it.
    missed: u32,
    /// Its session has said that it is over. There may be processes left.
    is_over: bool,
}

impl Made {
    const fn of(owner: Option<u32>) -> Self {
        Self { owner, missed: 0, is_over: false }
    }

    /// True if it has no processes.
    const fn is_empty(&self) -> bool {
        self.missed >= 2
    }
}

/// A PAG that was made.
#[derive(Debug, PartialEq, Eq)]
pub struct New {
    /// The PAG.
    pub pag: Pag,
    /// There was none before.
    pub is_first: bool,
    /// One that has made place: it has ended.
    pub ended: Option<User>,
}

/// The reason why there is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPag {
    /// There are too many.
    TooMany,
    /// The number is in use here, and not this user's.
    Taken,
}

impl Pags {
    fn lock(&self) -> MutexGuard<'_, HashMap<Pag, Made>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a process may be in one.
    pub fn are_in_use(&self) -> bool {
        self.are_in_use.load(Ordering::Acquire)
    }

    /// Makes one for a user, with a number that none has. If there are too many, the one that has been without processes for longest ends.
    pub fn make(&self, uid: u32, random: &mut StdRng) -> Result<New, NoPag> {
        let mut all = self.lock();
        let pag = loop {
            let pag = Pag::chosen_by(random.random());
            if !all.contains_key(&pag) {
                break pag;
            }
        };
        self.insert(&mut all, pag, uid)
    }

    /// Takes one over that another client of this machine has made for a user, so that it is the same session here.
    pub fn adopt(&self, pag: Pag, uid: u32) -> Result<New, NoPag> {
        let mut all = self.lock();
        match all.get(&pag) {
            Some(made) if made.owner == Some(uid) => Ok(New { pag, is_first: false, ended: None }),
            Some(_) => Err(NoPag::Taken),
            None => self.insert(&mut all, pag, uid),
        }
    }

    fn insert(&self, all: &mut HashMap<Pag, Made>, pag: Pag, uid: u32) -> Result<New, NoPag> {
        let is_theirs = |made: &Made| made.owner == Some(uid);
        let with_over = all.values().filter(|made| is_theirs(made)).count();
        let has_too_many =
            all.values().filter(|made| is_theirs(made) && !made.is_over).count() >= PER_USER_MAX;
        let has_ended_too_many = with_over >= PER_USER_WITH_OVER_MAX;
        let mut ended = None;
        if has_too_many || has_ended_too_many || all.len() >= ALL_MAX {
            // Nobody makes place for a user who has too many.
            let may_end = |made: &Made| {
                made.is_empty()
                    && match (has_too_many, has_ended_too_many) {
                        (true, _) => is_theirs(made) && !made.is_over,
                        (false, true) => is_theirs(made),
                        (false, false) => true,
                    }
            };
            let oldest = all.iter().filter(|(_, made)| may_end(made)).max_by_key(|(_, made)| made.missed);
            let oldest = *oldest.ok_or(NoPag::TooMany)?.0;
            let owner = all.remove(&oldest).and_then(|made| made.owner);
            ended = owner.map(|uid| User { uid, pag: Some(oldest) });
        }
        all.insert(pag, Made::of(Some(uid)));
        Ok(New { pag, is_first: !self.are_in_use.swap(true, Ordering::AcqRel), ended })
    }

    /// A user has a PAG again that an earlier client has made, and that processes are in. Returns whether there was none before.
    pub fn restore(&self, pag: Pag, uid: u32) -> bool {
        self.lock().insert(pag, Made::of(Some(uid)));
        !self.are_in_use.swap(true, Ordering::AcqRel)
    }

    /// The session in a user's PAG is over. Its number stays as long as processes have it, and does not count any more.
    pub fn end(&self, user: User) {
        let mut all = self.lock();
        let theirs = user.pag.and_then(|pag| all.get_mut(&pag)).filter(|made| made.owner == Some(user.uid));
        if let Some(made) = theirs {
            made.is_over = true;
        }
    }

    /// The identity of a process, by its user, its real user and its groups. A program with a set-uid bit that acts as the superuser
    /// counts as the PAG's owner, if they have started it: somebody else who has a way to the number would else have their files looked at
    /// by such a program. Of several numbers the user's own PAG counts: directories of users (sssd, winbind) give ordinary groups such numbers too.
    pub fn user(&self, uid: u32, real: u32, groups: impl Iterator<Item = u32>) -> User {
        let user = User::of(uid);
        if !self.are_in_use() {
            return user;
        }
        let all = self.lock();
        let mut anothers = None;
        for pag in groups.filter_map(Pag::of_group) {
            match all.get(&pag).map(|made| made.owner) {
                Some(Some(owner)) if owner == uid || user.is_superuser() && real == owner => {
                    return User { uid: owner, pag: Some(pag) };
                }
                Some(_) => anothers = anothers.or(Some(pag)),
                None => {}
            }
        }
        User { uid, pag: anothers }
    }

    /// These are the PAGs that processes are in. Returns those that have ended, as no process has been in them at two looks, and nobody
    /// has a token there that is still good.
    pub fn look(&self, alive: &HashSet<Pag>, has_token: impl Fn(User) -> bool) -> Vec<User> {
        let mut all = self.lock();
        if !self.has_looked.swap(true, Ordering::AcqRel) {
            for pag in alive {
                // The number is not to be given to anybody else.
                all.entry(*pag).or_insert(Made::of(None));
                self.are_in_use.store(true, Ordering::Release);
            }
        }
        let mut ended = Vec::new();
        all.retain(|pag, made| {
            made.missed = if alive.contains(pag) { 0 } else { made.missed.saturating_add(1) };
            let user = made.owner.map(|uid| User { uid, pag: Some(*pag) });
            let stays = !made.is_empty() || user.is_some_and(&has_token);
            if !stays {
                ended.extend(user);
            }
            stays
        });
        if all.is_empty() {
            self.are_in_use.store(false, Ordering::Release);
        }
        ended
    }
}

/// The real user of a process and its groups, from its `/proc/PID/status`, if it is that user's or acts as that user: `access` asks as the
/// real user of a set-uid program. What is done in the name of somebody else is not its own.
#[must_use]
pub fn groups_of(status: &str, uid: u32) -> Option<(u32, impl Iterator<Item = u32>)> {
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    // Real, effective, saved, and that for files.
    let mut theirs = line("Uid:")?.split_ascii_whitespace().map_while(|user| user.parse().ok());
    let real = theirs.next()?;
    let groups = line("Groups:")?.split_ascii_whitespace();
    let is_theirs = real == uid || theirs.any(|user: u32| user == uid);
    is_theirs.then(|| (real, groups.filter_map(|group| group.parse().ok())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn random() -> StdRng {
        StdRng::seed_from_u64(1)
    }

    fn who(pags: &Pags, uid: u32, groups: &[u32]) -> User {
        pags.user(uid, uid, groups.iter().copied())
    }

    #[test]
    fn a_process_is_in_the_pag_that_was_made_for_its_user() {
        let pags = Pags::default();
        let stale = Pag::chosen_by(7).group();
        assert_eq!(who(&pags, 1, &[100, stale]), User::of(1), "nobody looks before there is one");
        let New { pag, is_first, .. } = pags.make(1, &mut random()).unwrap();
        assert!(is_first && Pag::of_group(pag.group()) == Some(pag));
        let alice = User { uid: 1, pag: Some(pag) };
        assert_eq!(who(&pags, 1, &[100, pag.group(), 0x4200_0000]), alice);
        assert_eq!(who(&pags, 1, &[100]), User::of(1));
        assert_eq!(pags.user(0, 1, [pag.group()].into_iter()), alice, "her set-uid program");
        for other in [0, 2] {
            let theirs = pags.user(0, other, [pag.group()].into_iter());
            assert_eq!(
                theirs,
                User { uid: 0, pag: Some(pag) },
                "a set-uid program of user {other}: it has no tokens"
            );
        }
    }

    #[test]
    fn a_number_that_was_guessed_gives_nothing() {
        let pags = Pags::default();
        let pag = pags.make(1, &mut random()).unwrap().pag;
        let guesser = who(&pags, 2, &[pag.group()]);
        assert_ne!(guesser, who(&pags, 1, &[pag.group()]));
        assert_eq!(guesser, User { uid: 2, pag: Some(pag) }, "nor the user's own tokens");
    }

    /// The first group in the range was taken for the PAG: a user of a directory that gives groups such numbers had none.
    #[test]
    fn a_user_with_an_ordinary_group_in_the_range_is_in_their_pag_all_the_same() {
        let pags = Pags::default();
        let ordinary = Pag::chosen_by(77).group();
        let [mine, another] =
            [1, 2].map(|uid| pags.make(uid, &mut StdRng::seed_from_u64(uid.into())).unwrap().pag);
        let alice = User { uid: 1, pag: Some(mine) };
        for groups in
            [[ordinary, mine.group()], [another.group(), mine.group()], [mine.group(), another.group()]]
        {
            assert_eq!(who(&pags, 1, &groups), alice, "{groups:?}");
        }
        assert_eq!(who(&pags, 1, &[ordinary]), User::of(1));
        assert_eq!(who(&pags, 1, &[ordinary, another.group()]), User { uid: 1, pag: Some(another) });
    }

    #[test]
    fn a_pag_that_another_client_has_made_is_one_session_in_both() {
        let (here, there) = (Pags::default(), Pags::default());
        let pag = here.make(1, &mut random()).unwrap().pag;
        assert!(there.adopt(pag, 1).unwrap().is_first);
        assert_eq!(who(&there, 1, &[pag.group()]), User { uid: 1, pag: Some(pag) });
        assert!(!there.adopt(pag, 1).unwrap().is_first, "it is told twice");
        assert_eq!(there.adopt(pag, 2), Err(NoPag::Taken));
        for number in 1..PER_USER_MAX as u32 {
            there.adopt(Pag::chosen_by(pag.group() + number), 1).unwrap();
        }
        assert_eq!(there.adopt(Pag::chosen_by(pag.group() - 1), 1), Err(NoPag::TooMany));
    }

    #[test]
    fn a_user_who_makes_very_many_is_told_and_others_are_not() {
        let (pags, mut random) = (Pags::default(), random());
        let made: HashSet<_> = (0..PER_USER_MAX).map(|_| pags.make(1, &mut random).unwrap().pag).collect();
        assert_eq!(made.len(), PER_USER_MAX, "each has a number of its own");
        assert_eq!(pags.make(1, &mut random), Err(NoPag::TooMany));
        assert!(pags.make(2, &mut random).is_ok());
        for _ in 0..2 {
            pags.look(&HashSet::new(), |_| false);
        }
        assert!(pags.make(1, &mut random).is_ok(), "what has no processes makes place");
    }

    /// A job that gets tokens in a PAG of its own each minute was refused one after a day.
    #[test]
    fn sessions_that_are_over_use_up_the_numbers_of_their_user_alone() {
        let (pags, mut random) = (Pags::default(), random());
        for _ in 0..PER_USER_WITH_OVER_MAX {
            let pag = pags.make(1, &mut random).unwrap().pag;
            pags.end(User { uid: 1, pag: Some(pag) });
        }
        assert_eq!(pags.make(1, &mut random), Err(NoPag::TooMany));
        assert!(pags.make(2, &mut random).is_ok());
        for _ in 0..2 {
            pags.look(&HashSet::new(), |_| false);
        }
        assert!(pags.make(1, &mut random).is_ok(), "no process is in them any more");
    }

    #[test]
    fn pags_with_good_tokens_and_without_processes_make_place() {
        let (pags, mut random) = (Pags::default(), random());
        let mut make = |uid| pags.make(uid, &mut random);
        let first = make(1).unwrap().pag;
        pags.look(&HashSet::new(), |_| true);
        let alive: HashSet<_> = (1..PER_USER_MAX - 1).map(|_| make(1).unwrap().pag).collect();
        let last = make(1).unwrap().pag;
        assert_eq!(make(1), Err(NoPag::TooMany), "nobody knows yet that there are no processes");
        pags.look(&alive, |_| true);
        assert_eq!(make(1).unwrap().ended, Some(User { uid: 1, pag: Some(first) }), "the oldest");
        assert_eq!(make(1), Err(NoPag::TooMany), "the others have processes, or are new");
        // One that its session has ended does not count.
        pags.end(User { uid: 2, pag: Some(last) });
        assert_eq!(make(1), Err(NoPag::TooMany), "nor does anybody else end it");
        pags.end(User { uid: 1, pag: Some(last) });
        assert_eq!(make(1).unwrap().ended, None);
        assert_eq!(
            who(&pags, 1, &[last.group()]),
            User { uid: 1, pag: Some(last) },
            "for processes left over"
        );
    }

    #[test]
    fn a_pag_ends_with_its_last_process_unless_it_has_a_good_token() {
        let pags = Pags::default();
        let pag = pags.make(1, &mut random()).unwrap().pag;
        let (user, alive) = (User { uid: 1, pag: Some(pag) }, HashSet::from([pag]));
        let none = HashSet::new();
        assert!(pags.look(&none, |_| false).is_empty(), "its process may not have it yet");
        assert!(pags.look(&alive, |_| false).is_empty());
        assert!(pags.look(&none, |_| false).is_empty());
        assert!(pags.look(&none, |theirs| theirs == user).is_empty());
        assert!(pags.are_in_use());
        assert_eq!(pags.look(&none, |_| false), [user]);
        assert!(!pags.are_in_use(), "and is not looked for any more");
        assert!(pags.make(1, &mut random()).unwrap().is_first);
    }

    #[test]
    fn a_pag_of_an_earlier_client_keeps_its_number_and_has_no_tokens() {
        let pags = Pags::default();
        let old = Pag::chosen_by(5);
        pags.look(&HashSet::from([old]), |_| false);
        assert_eq!(who(&pags, 1, &[old.group()]), User { uid: 1, pag: Some(old) });
        assert_eq!(who(&pags, 0, &[old.group()]), User { uid: 0, pag: Some(old) });
        assert!(pags.lock().contains_key(&old));
    }

    /// A process in a PAG of one client was anonymous in the mounts of all others, also in its own user's.
    #[test]
    fn a_pag_of_another_client_takes_nobody_s_tokens_away() {
        let pags = Pags::default();
        let [before, since] = [5, 6].map(Pag::chosen_by);
        pags.look(&HashSet::from([before]), |_| false);
        assert_eq!(who(&pags, 2, &[before.group()]), User { uid: 2, pag: Some(before) });
        pags.look(&HashSet::from([before, since]), |_| false);
        for uid in 0..3 {
            assert_eq!(who(&pags, uid, &[since.group()]), User::of(uid));
        }
        let own = pags.make(1, &mut random()).unwrap().pag;
        assert_eq!(who(&pags, 1, &[own.group()]), User { uid: 1, pag: Some(own) }, "it was asked for here");
        let none = Pags::default();
        none.look(&HashSet::new(), |_| false);
        none.look(&HashSet::from([since]), |_| false);
        assert!(!none.are_in_use(), "nor does it cost anything");
    }

    #[test]
    fn the_groups_of_a_process_are_told_of_the_users_that_it_may_act_as() {
        let status = "Name:\tsh\nUid:\t1\t0\t2\t5\nGid:\t1\t1\t1\t1\nFDSize:\t64\nGroups:\t4 1090519047 \nNStgid:\t2\n";
        for uid in [1, 0, 2, 5] {
            let (real, groups) = groups_of(status, uid).unwrap();
            assert_eq!((real, groups.collect::<Vec<_>>()), (1, vec![4, 1_090_519_047]), "{uid}");
        }
        assert!(groups_of(status, 4).is_none());
        assert!(groups_of("", 1).is_none());
    }
}
