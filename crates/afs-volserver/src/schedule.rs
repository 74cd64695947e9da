//! When snapshots are made and removed by a schedule. Knows the times of those that there are, and the time that it is told to be: no
//! clock, no volume, no disk.

use std::collections::{BTreeMap, BTreeSet};

use afs_volume::Schedule;
use jiff::Timestamp;
use jiff::tz::TimeZone;

const HOUR: u32 = 3600;
const DAY: u32 = 24 * HOUR;

/// What is to be done with the snapshots of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// True if one is to be made now.
    pub(crate) is_due: bool,
    /// The times of those that are to be removed.
    pub(crate) expired: BTreeSet<u32>,
}

/// The number of the day of a time.
pub(crate) fn day_of(time: u32) -> u32 {
    time / DAY
}

/// The numbers of an hour, day, week and month: of two times, they are equal if these are in the same one.
fn slots(time: u32) -> [u32; 4] {
    let days = day_of(time);
    // The first day of all was a Thursday.
    [time / HOUR, days, (days + 3) / 7, month(time)]
}

/// The number of months from the year 0 to a time.
fn month(time: u32) -> u32 {
    let time = Timestamp::from_second(time.into()).expect("jiff has years to 9999");
    let date = TimeZone::UTC.to_datetime(time).date();
    12 * u32::from(date.year().unsigned_abs()) + u32::from(date.month().unsigned_abs())
}

/// Plans what is to be done at a time, by the times of all snapshots that the schedule has made. What lies in the future, after the clock was set
/// back, stays until it is past.
pub(crate) fn plan(schedule: Schedule, made: &BTreeSet<u32>, now: u32) -> Plan {
    let counts = schedule.counts();
    if counts == [0; 4] {
        return Plan::default();
    }
    let mut plan = Plan { is_due: false, expired: made.range(..=now).copied().collect() };
    for (n, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
        let mut first_of = BTreeMap::new();
        for &time in made.range(..=now) {
            first_of.entry(slots(time)[n]).or_insert(time);
        }
        plan.is_due |= !first_of.contains_key(&slots(now)[n]);
        for time in first_of.values().rev().take(count.into()) {
            plan.expired.remove(time);
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-01T00:00:00Z, a Sunday.
    const START: u32 = 1_793_491_200;

    const USUAL: Schedule = Schedule { hourly: 24, daily: 7, weekly: 4, monthly: 12 };

    /// Does what is planned, and says whether one was made.
    fn look(schedule: Schedule, made: &mut BTreeSet<u32>, now: u32) -> bool {
        let Plan { is_due, expired } = plan(schedule, made, now);
        made.retain(|time| !expired.contains(time));
        is_due && made.insert(now)
    }

    #[test]
    fn weeks_begin_on_mondays_and_months_on_their_first_day() {
        let [day, week, month] = [1, 2, 3];
        let is_same = |n: usize, a: u32, b: u32| slots(a)[n] == slots(b)[n];
        assert!(!is_same(week, START, START + DAY), "a Sunday and a Monday");
        assert!((1..7).all(|n| is_same(week, START + DAY, START + n * DAY)));
        assert!(!is_same(month, START - 1, START) && is_same(month, START, START + 29 * DAY));
        assert!(!is_same(day, START - 1, START) && is_same(day, START, START + DAY - 1));
        assert!(slots(u32::MAX)[month] > slots(0)[month], "all times have one");
    }

    #[test]
    fn a_year_of_the_usual_schedule_leaves_hours_days_weeks_and_months() {
        let mut made = BTreeSet::new();
        let mut count = 0;
        for step in 0..365 * 24 * 6 {
            count += u32::from(look(USUAL, &mut made, START + step * 600));
            assert!(made.len() <= 24 + 7 + 4 + 12, "at most what is to be kept");
        }
        assert_eq!(count, 365 * 24, "one an hour");
        let now = START + 365 * DAY - 600;
        look(USUAL, &mut made, now);
        let hours: Vec<u32> = made.range(now - 24 * HOUR..).copied().collect();
        assert_eq!(hours, (0..24).map(|n| START + 364 * DAY + n * HOUR).collect::<Vec<_>>());
        let days = (359..365).map(|n| START + n * DAY);
        assert!(days.clone().all(|day| made.contains(&day)));
        // Mondays, and the first days of months.
        assert!((0..4).all(|n| made.contains(&(START + (358 - 7 * n) * DAY))), "{made:?}");
        let mut months: Vec<u32> = made.iter().map(|time| slots(*time)[3]).collect();
        months.dedup();
        assert_eq!(months.len(), 12);
    }

    #[test]
    fn a_server_that_was_away_for_hours_makes_one_and_removes_none_for_it() {
        let mut made = BTreeSet::new();
        (0..48).for_each(|n| _ = look(USUAL, &mut made, START + n * HOUR));
        let before = made.clone();
        let now = START + 60 * HOUR + 1234;
        assert!(look(USUAL, &mut made, now));
        assert!(!look(USUAL, &mut made, now + 1), "not one for each hour");
        // The newest of each kind are kept, however old they are: only the oldest hour went for the new one.
        assert_eq!(before.difference(&made).count(), 1);
    }

    #[test]
    fn a_clock_that_jumps_makes_no_second_one_of_an_hour_and_loses_none() {
        let mut made = BTreeSet::new();
        (0..30).for_each(|n| _ = look(USUAL, &mut made, START + n * HOUR));
        let before = made.clone();
        // A year ahead: one is made there. Back again it is in the future, and nobody takes it for one of now.
        let ahead = START + 365 * DAY;
        assert!(look(USUAL, &mut made, ahead));
        assert!(!look(USUAL, &mut made, START + 29 * HOUR + 60));
        assert!(look(USUAL, &mut made, START + 30 * HOUR));
        assert!(made.contains(&ahead) && made.contains(&(START + 30 * HOUR)));
        assert!(before.difference(&made).count() <= 2);
        // An hour back: that hour has one.
        assert!(!look(USUAL, &mut made, START + 29 * HOUR));
    }

    #[test]
    fn without_a_schedule_nothing_is_made_and_nothing_removed() {
        let mut made = BTreeSet::from([START, START + 1, START + DAY]);
        assert_eq!(plan(Schedule::default(), &made, START + 90 * DAY), Plan::default());
        // One of days alone makes none of hours, and keeps the first of a day.
        let daily = Schedule { daily: 2, ..Schedule::default() };
        assert!(!look(daily, &mut made, START + DAY + HOUR));
        assert_eq!(made, BTreeSet::from([START, START + DAY]));
        assert!(look(daily, &mut made, START + 5 * DAY));
        look(daily, &mut made, START + 5 * DAY + 1);
        assert_eq!(made, BTreeSet::from([START + DAY, START + 5 * DAY]));
    }
}
