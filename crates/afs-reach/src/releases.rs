//! The release of a read-only volume that each of its servers has. Servers tell when the volume that they have was made
//! (`AFSVolSync`, File service notes 3); all copies of one release were made by one clone, at one time. While `vos
//! release` goes from server to server, or has missed one, they differ; then the client uses the newest that it has met,
//! and takes nothing from servers that are behind as long as another one has it. A server that could not read its copy is passed over
//! likewise.
//!
//! [`Releases`] decides from what it is told. It asks nobody; who is asked instead is left to `remote`.

use std::time::Duration;

use afs_wire::ids::AfsTime;
use rx_proto::time::Instant;

/// The time for which a server that was behind is left out. A release may reach it in a moment, and until it is asked again there is
/// one server less to go on at; asking too early costs one small call.
const LEFT_OUT_FOR: Duration = Duration::from_secs(10);

/// The time for which a server that could not read what it has is passed over. A disk that fails here and there may go on answering, so
/// that only time tells.
const TROUBLED_FOR: Duration = Duration::from_secs(600);

/// Servers that are remembered of a volume: an entry of the VLDB has thirteen, and some may have moved.
const SERVERS_MAX: usize = 32;

/// A reply's word on the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseSeen {
    /// It is of the release that is used, or says nothing of it.
    Same,
    /// It is of another release, which is used from now on: what was known of the old one is off.
    Another,
    /// It is of an older release, and is not to be used.
    Behind,
}

/// The releases that the servers of one volume have.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    /// The one that is used; 0 is none yet.
    used: AfsTime,
    servers: Vec<Has>,
    /// The servers that could not read their copy, and when.
    troubled: Vec<(u32, Instant)>,
}

#[derive(Debug)]
struct Has {
    server: u32,
    release: AfsTime,
    /// The time when it told of an older release than others had by then.
    behind_at: Option<Instant>,
}

impl Releases {
    /// A server's reply tells when its copy was made. `can_ask` tells whether a server answers, as far as known: an older
    /// copy is better than none.
    pub(crate) fn note(
        &mut self,
        now: Instant,
        server: u32,
        release: AfsTime,
        can_ask: impl Fn(u32) -> bool,
    ) -> ReleaseSeen {
        if release == AfsTime(0) {
            return ReleaseSeen::Same;
        }
        self.servers.retain(|has| has.server != server);
        if self.servers.len() >= SERVERS_MAX {
            self.servers.remove(0);
        }
        let has_used = |has: &Has| has.release == self.used && can_ask(has.server);
        let is_behind = release.0 < self.used.0 && self.servers.iter().any(has_used);
        self.servers.push(Has { server, release, behind_at: is_behind.then_some(now) });
        if is_behind {
            return ReleaseSeen::Behind;
        }
        if self.used == release {
            return ReleaseSeen::Same;
        }
        let is_first = self.used == AfsTime(0);
        self.used = release;
        if is_first { ReleaseSeen::Same } else { ReleaseSeen::Another }
    }

    /// True if a server had an older release than others when it was last asked, and that was not long ago. One that was
    /// asked before the others had the new one may have it by now.
    pub(crate) fn is_behind(&self, now: Instant, server: u32) -> bool {
        let is_left_out = |at: Instant| now.since(at) < LEFT_OUT_FOR;
        self.servers.iter().any(|has| {
            has.server == server && has.release.0 < self.used.0 && has.behind_at.is_some_and(is_left_out)
        })
    }

    /// A server could not read its copy in a call that began at `began`. False if that was known of it before the call began.
    pub(crate) fn note_trouble(&mut self, now: Instant, server: u32, began: Instant) -> bool {
        self.troubled.retain(|&(_, at)| now.since(at) < TROUBLED_FOR);
        if let Some(&(_, at)) = self.troubled.iter().find(|(troubled, _)| *troubled == server) {
            return began <= at;
        }
        if self.troubled.len() >= SERVERS_MAX {
            self.troubled.remove(0);
        }
        self.troubled.push((server, now));
        true
    }

    /// True if a server could not read its copy not long ago.
    pub(crate) fn is_troubled(&self, now: Instant, server: u32) -> bool {
        self.troubled.iter().any(|&(troubled, at)| troubled == server && now.since(at) < TROUBLED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ORIGIN + Duration::from_secs(1000 + seconds)
    }

    const OLD: AfsTime = AfsTime(100);
    const NEW: AfsTime = AfsTime(200);

    #[test]
    fn a_server_that_a_release_has_not_reached_is_left_out_for_a_while() {
        let mut releases = Releases::default();
        assert_eq!(releases.note(at(0), 1, OLD, |_| true), ReleaseSeen::Same);
        assert_eq!(releases.note(at(1), 2, NEW, |_| true), ReleaseSeen::Another);
        assert_eq!(releases.note(at(2), 1, OLD, |_| true), ReleaseSeen::Behind);
        assert!(releases.is_behind(at(3), 1) && !releases.is_behind(at(3), 2));
        assert!(!releases.is_behind(at(12), 1), "it may have it by now");
        assert_eq!(releases.note(at(12), 1, NEW, |_| true), ReleaseSeen::Same);
        assert!(!releases.is_behind(at(13), 1));
    }

    /// A reader had nobody to go on at when its server was stopped soon after a release: the other one had told of the release
    /// before, when that was the newest.
    #[test]
    fn a_server_that_was_asked_before_a_release_is_not_left_out_for_it() {
        let mut releases = Releases::default();
        releases.note(at(0), 1, OLD, |_| true);
        releases.note(at(0), 2, OLD, |_| true);
        assert_eq!(releases.note(at(1), 2, NEW, |_| true), ReleaseSeen::Another);
        assert!(!releases.is_behind(at(1), 1));
    }

    #[test]
    fn an_older_release_is_used_if_nobody_with_the_newer_one_answers() {
        let mut releases = Releases::default();
        releases.note(at(0), 1, NEW, |_| true);
        assert_eq!(releases.note(at(1), 2, OLD, |server| server != 1), ReleaseSeen::Another);
        assert_eq!(releases.note(at(2), 2, OLD, |_| true), ReleaseSeen::Same);
        assert_eq!(
            releases.note(at(3), 1, NEW, |_| true),
            ReleaseSeen::Another,
            "and the newer one as soon as it is back"
        );
    }

    #[test]
    fn a_server_whose_volume_was_replaced_by_an_older_one_is_followed() {
        let mut releases = Releases::default();
        releases.note(at(0), 1, NEW, |_| true);
        assert_eq!(releases.note(at(1), 1, OLD, |_| true), ReleaseSeen::Another);
    }

    #[test]
    fn a_server_that_tells_nothing_of_releases_is_used() {
        let mut releases = Releases::default();
        releases.note(at(0), 1, NEW, |_| true);
        assert_eq!(releases.note(at(1), 2, AfsTime(0), |_| true), ReleaseSeen::Same);
        assert!(!releases.is_behind(at(1), 2));
    }

    #[test]
    fn a_server_that_could_not_read_its_copy_is_passed_over_for_a_while() {
        let mut releases = Releases::default();
        assert!(releases.note_trouble(at(5), 1, at(0)) && releases.note_trouble(at(6), 1, at(1)));
        assert!(!releases.note_trouble(at(7), 1, at(6)), "it was asked though that was known");
        assert!(releases.is_troubled(at(604), 1) && !releases.is_troubled(at(604), 2));
        assert!(!releases.is_troubled(at(605), 1) && releases.note_trouble(at(605), 1, at(604)));
    }

    #[test]
    fn many_servers_cost_no_memory() {
        let mut releases = Releases::default();
        for server in 0..1000 {
            releases.note(at(0), server, OLD, |_| true);
            releases.note_trouble(at(0), server, at(0));
        }
        assert_eq!((releases.servers.len(), releases.troubled.len()), (SERVERS_MAX, SERVERS_MAX));
    }
}
