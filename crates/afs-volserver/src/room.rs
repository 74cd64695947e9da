//! Which snapshots go before their time: those beyond their volume's limit, and what a partition gives up that is nearly full. Knows what snapshots
//! hold and what there is of them: no volume, no disk.

use std::collections::BTreeMap;

use afs_volume::Space;
use afs_wire::ids::{AfsTime, VolumeId};

use crate::schedule::day_of;

/// A partition with less than one part in so many free is nearly full.
const FREE_PART: u64 = 20;

/// A volume's snapshots come near its limit if they hold so many percent of it.
const NEAR_PERCENT: u64 = 80;

/// The snapshots of a volume, and what they hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Most bytes that they may hold, if there is a limit.
    pub(crate) limit: Option<u64>,
    /// Bytes that all of them hold.
    pub(crate) held: u64,
    /// Those that a schedule has made until now, by their times, and the bytes that come back without each and all older ones.
    pub(crate) scheduled: BTreeMap<u32, (VolumeId, u64)>,
}

impl Kept {
    /// Bytes beyond the limit.
    pub(crate) fn over(&self) -> u64 {
        self.limit.map_or(0, |limit| self.held.saturating_sub(limit))
    }

    /// True if they come near the limit, or are beyond it.
    pub(crate) fn is_near(&self) -> bool {
        self.limit.is_some_and(|limit| self.held > limit / 100 * NEAR_PERCENT)
    }

    /// Those that may go before their time, the oldest first: all that a schedule has made but for the newest daily one, the first of the last
    /// day that has any, and the newest one, in whose place the schedule would make another.
    fn may_go(&self) -> impl Iterator<Item = (VolumeId, u64)> {
        let newest = self.scheduled.keys().next_back().copied();
        let last = newest.map(day_of);
        let daily = self.scheduled.keys().copied().find(|time| Some(day_of(*time)) == last);
        let stays = move |time: u32| [newest, daily].contains(&Some(time));
        self.scheduled.iter().filter(move |(time, _)| !stays(**time)).map(|(_, snapshot)| *snapshot)
    }

    /// Most bytes that come back without these.
    fn may_give(&self) -> u64 {
        self.may_go().map(|(_, held)| held).sum()
    }

    /// The oldest ones, as many as have to go at least so that this many bytes come back. It may take more: some of these bytes an older one
    /// may have that stays. None goes without which nothing comes back.
    fn oldest(&self, bytes: u64) -> Vec<VolumeId> {
        let (mut back, mut needed) = (0_u64, 0);
        let mut oldest = Vec::new();
        for (id, held) in self.may_go() {
            if back >= bytes {
                break;
            }
            back = back.saturating_add(held);
            oldest.push(id);
            if held > 0 {
                needed = oldest.len();
            }
        }
        oldest.truncate(needed);
        oldest
    }

    /// Those that go as all hold more than the limit.
    pub(crate) fn beyond_limit(&self) -> Vec<VolumeId> {
        self.oldest(self.over())
    }
}

/// What goes from a partition that is nearly full, one at a time for as long as it is: the oldest one that a removed volume has left, and when there
/// is none, the oldest ones of the volume that can give most back. What is beyond limits has gone before.
pub(crate) fn give_up(space: Space, left: &[(AfsTime, VolumeId)], kept: &[Kept]) -> Vec<VolumeId> {
    let mark = space.total_kib / FREE_PART;
    if space.free_kib >= mark {
        return Vec::new();
    }
    if let Some((_, oldest)) = left.iter().min() {
        return vec![*oldest];
    }
    let most = kept.iter().max_by_key(|kept| kept.may_give());
    most.map_or_else(Vec::new, |kept| kept.oldest((mark - space.free_kib) << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u32 = 3600;
    const DAY: u32 = 24 * HOUR;
    const MIB: u64 = 1 << 20;

    /// A snapshot every 12 hours that holds a mebibyte each, and manual ones that hold the rest.
    fn kept(first_id: u32, count: u32, held_mib: u64, limit_mib: Option<u64>) -> Kept {
        let one = |n| (n * DAY / 2, (VolumeId(first_id + n), MIB));
        let scheduled = (0..count).map(one).collect();
        Kept { limit: limit_mib.map(|limit| limit * MIB), held: held_mib * MIB, scheduled }
    }

    fn ids(from: u32, count: u32) -> Vec<VolumeId> {
        (from..from + count).map(VolumeId).collect()
    }

    #[test]
    fn as_many_of_the_oldest_go_as_are_needed_and_never_the_newest_or_the_newest_daily() {
        for (held, limit, gone) in [(10, Some(10), 0), (10, Some(9), 1), (10, Some(7), 3), (10, None, 0)] {
            assert_eq!(kept(1, 10, held, limit).beyond_limit(), ids(1, gone), "{held} of {limit:?}");
        }
        // The ninth is the first one of the last day, and manual ones hold 90 MiB.
        let full = kept(1, 10, 100, Some(1));
        assert_eq!(full.beyond_limit(), ids(1, 8));
        assert_eq!(kept(1, 1, 100, Some(1)).beyond_limit(), []);
        assert_eq!(kept(1, 0, 100, Some(1)).beyond_limit(), []);
    }

    #[test]
    fn a_limit_comes_near_before_it_is_reached() {
        assert!(!kept(1, 1, 80, Some(100)).is_near() && !kept(1, 1, 80, None).is_near());
        assert!(kept(1, 1, 81, Some(100)).is_near() && kept(1, 1, 101, Some(100)).is_near());
        assert_eq!(kept(1, 1, 100, Some(100)).over(), 0);
        assert_eq!(kept(1, 1, 103, Some(100)).over(), 3 * MIB);
    }

    #[test]
    fn a_full_partition_gives_up_removed_volumes_and_then_those_of_whom_gives_most_back() {
        let space = |free_kib| Space { total_kib: 100 << 10, free_kib };
        let left = [(AfsTime(5), VolumeId(90)), (AfsTime(4), VolumeId(91))];
        let of_each = |first_id, mib: u64| {
            let mut kept = kept(first_id, 10, 100, None);
            kept.scheduled.values_mut().for_each(|(_, held)| *held = mib * MIB);
            kept
        };
        // Manual ones hold all of the last two.
        let all = [kept(1, 10, 20, Some(40)), of_each(21, 2), kept(41, 1, 50, None), of_each(61, 0)];
        assert_eq!(give_up(space(5 << 10), &left, &all), [], "a twentieth is free");
        assert_eq!(give_up(space((5 << 10) - 1), &left, &all), [VolumeId(91)]);
        assert_eq!(give_up(space((5 << 10) - 1), &[], &all), [VolumeId(21)]);
        assert_eq!(give_up(space(2 << 10), &[], &all), ids(21, 2));
        assert_eq!(give_up(space(0), &[], &all[..1]), ids(1, 5));
        assert_eq!(give_up(space(0), &[], &all[2..]), [], "nothing would come back");
    }
}
