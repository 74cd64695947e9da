//! A set of measured values by their ranks.

use crate::record::round;

/// Ranks in a curve, percent: closer where it matters.
const CURVE: [f64; 12] = [1.0, 10.0, 25.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 98.0, 99.0, 100.0];

/// Values in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Distribution {
    sorted: Vec<f64>,
}

impl Distribution {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Distribution {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Distribution { sorted }
    }

    /// The smallest value that so many percent are not above; none of nothing.
    pub(crate) fn percentile(&self, percent: f64) -> Option<f64> {
        let rank = (self.sorted.len() as f64 * percent / 100.0).ceil().max(1.0) as usize;
        self.sorted.get(rank.min(self.sorted.len()).checked_sub(1)?).copied()
    }

    pub(crate) fn max(&self) -> Option<f64> {
        self.sorted.last().copied()
    }

    pub(crate) fn mean(&self) -> Option<f64> {
        let count = self.sorted.len();
        (count > 0).then(|| self.sorted.iter().sum::<f64>() / count as f64)
    }

    /// Value by percent.
    pub(crate) fn curve(&self) -> Vec<(f64, f64)> {
        CURVE.iter().filter_map(|percent| Some((*percent, round(self.percentile(*percent)?)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values = Distribution::of((1..=300).rev().map(f64::from));
        assert_eq!(values.percentile(50.0), Some(150.0));
        assert_eq!(values.percentile(99.0), Some(297.0));
        assert_eq!(values.percentile(99.9), Some(300.0));
        assert_eq!((values.max(), values.mean()), (Some(300.0), Some(150.5)));
        assert_eq!(values.curve().last(), Some(&(100.0, 300.0)));
        assert_eq!(Distribution::of([7.0]).percentile(1.0), Some(7.0));
    }

    #[test]
    fn nothing_has_no_distribution() {
        let none = Distribution::default();
        assert_eq!((none.percentile(99.0), none.max(), none.mean()), (None, None, None));
        assert!(none.curve().is_empty());
    }
}
