//! The rate at which strangers may begin handshakes: by their address, and all together. A handshake costs a server four
//! Diffie-Hellman operations, some 0.2 ms of a core.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// How often an address may try at once.
    pub burst_of_source: u32,
    /// After that, one more for each such time.
    pub pause_of_source: Duration,
    /// How often all together may try at once.
    pub burst: u32,
    /// After that, one more for each such time.
    pub pause: Duration,
    /// Addresses that are remembered. One that was forgotten begins anew; the limit of all together stands.
    pub sources: usize,
}

impl Default for Limits {
    /// An office behind one address in which twenty machines start at once gets its tokens; a server spends at most one hundredth of
    /// a core on strangers.
    fn default() -> Self {
        Self {
            burst_of_source: 20,
            pause_of_source: Duration::from_secs(3),
            burst: 200,
            pause: Duration::from_millis(20),
            sources: 4096,
        }
    }
}

/// The attempts of late.
#[derive(Clone, Debug)]
pub struct Rates {
    limits: Limits,
    all: Bucket,
    sources: BTreeMap<IpAddr, Bucket>,
}

/// A bucket that fills by one in each pause: the time at which it is full again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Bucket {
    full_at: Duration,
}

impl Bucket {
    /// The bucket with one taken, if there is one.
    fn take(self, now: Duration, burst: u32, pause: Duration) -> Option<Self> {
        let full_at = self.full_at.max(now) + pause;
        (full_at - now <= pause * burst).then_some(Self { full_at })
    }
}

impl Rates {
    /// Nobody has tried yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, all: Bucket::default(), sources: BTreeMap::new() }
    }

    /// Counts an attempt, unless there were too many. `now` is a time since any beginning, which never goes back.
    pub fn allow(&mut self, now: Duration, source: IpAddr) -> bool {
        let Limits { burst_of_source, pause_of_source, burst, pause, sources } = self.limits;
        let of_source = self.sources.get(&source).copied().unwrap_or_default();
        let Some(of_source) = of_source.take(now, burst_of_source, pause_of_source) else { return false };
        let Some(all) = self.all.take(now, burst, pause) else { return false };
        self.all = all;
        if self.sources.len() >= sources && !self.sources.contains_key(&source) {
            self.make_room(now);
        }
        self.sources.insert(source, of_source);
        true
    }

    /// Forgets those that are as if they had never tried; without any, the one that soonest will be.
    fn make_room(&mut self, now: Duration) {
        self.sources.retain(|_, bucket| bucket.full_at > now);
        if self.sources.len() >= self.limits.sources
            && let Some((source, _)) = self.sources.iter().min_by_key(|(_, bucket)| **bucket)
        {
            let source = *source;
            self.sources.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> Limits {
        Limits { burst_of_source: 3, pause_of_source: 10 * SECOND, burst: 5, pause: SECOND, sources: 4 }
    }

    fn from(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn one_address_is_slowed_down_and_others_are_not() {
        let mut rates = Rates::new(limits());
        let allowed = (0..10).filter(|_| rates.allow(Duration::ZERO, from(1))).count();
        assert_eq!(allowed, 3);
        assert!(rates.allow(Duration::ZERO, from(2)));
        assert!(!rates.allow(9 * SECOND, from(1)) && rates.allow(10 * SECOND, from(1)));
        assert!(!rates.allow(10 * SECOND, from(1)), "one more for each pause");
        let much_later = (0..10).filter(|_| rates.allow(1000 * SECOND, from(1))).count();
        assert_eq!(much_later, 3, "never more than at first");
    }

    #[test]
    fn many_addresses_together_are_slowed_down_and_cost_bounded_memory() {
        let mut rates = Rates::new(limits());
        let allowed = (0..=255).filter(|last| rates.allow(Duration::ZERO, from(*last))).count();
        assert_eq!((allowed, rates.sources.len()), (5, 4));
        let later = (0..100).filter(|second| rates.allow(*second * SECOND, from(*second as u8))).count();
        assert_eq!((later, rates.sources.len()), (99, 4), "one in each second but the first");
    }

    #[test]
    fn refused_attempts_do_not_count() {
        let mut rates = Rates::new(limits());
        assert!((0..3).all(|_| rates.allow(Duration::ZERO, from(1))));
        assert!((0..1000).all(|_| !rates.allow(5 * SECOND, from(1))));
        assert!(rates.allow(10 * SECOND, from(1)));
    }
}
