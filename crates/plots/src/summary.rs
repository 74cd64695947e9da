//! Several runs as one figure, and figures as people want to read them.

use serde::{Deserialize, Serialize};

/// Median and spread of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The median; of an even number of runs, the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The number of runs.
    pub runs: usize,
}

impl Summary {
    /// None of nothing.
    pub fn of(mut values: Vec<f64>) -> Option<Summary> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 };
        Some(Summary { median: round(median), min, max, runs: values.len() })
    }
}

/// Five significant digits: more would be noise.
pub fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = (4.0 - value.abs().log10().floor()).clamp(0.0, 12.0);
    let scale = 10f64.powf(digits);
    (value * scale).round() / scale
}

/// A figure as people want to read it: three or four digits.
pub fn short(value: f64) -> String {
    let size = value.abs();
    let digits = match size {
        _ if size == 0.0 || size >= 100.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    if !text.contains('.') { text } else { text.trim_end_matches('0').trim_end_matches('.').to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_even_number_the_median_is_between_the_two_in_the_middle() {
        let summary = Summary::of(vec![4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(summary, Summary { median: 2.5, min: 1.0, max: 4.0, runs: 4 });
        assert_eq!(Summary::of(Vec::new()), None);
    }

    #[test]
    fn figures_are_rounded_to_what_they_say() {
        assert_eq!(round(923.456789), 923.46);
        assert_eq!(round(0.000123456), 0.00012346);
        assert_eq!(round(2_000_000_123.0), 2_000_000_123.0);
        assert_eq!([0.0, 0.0831, 2.5, 12.345, 2000.0].map(short), ["0", "0.083", "2.5", "12.3", "2000"]);
    }
}
