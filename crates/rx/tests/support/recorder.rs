//! A recorder of the `metrics` facade that keeps what arrives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// Keeps what comes.
#[derive(Clone, Default)]
pub(crate) struct Kept(pub(crate) Arc<Mutex<Values>>);

#[derive(Default)]
pub(crate) struct Values {
    pub(crate) described: BTreeMap<String, (Option<Unit>, String)>,
    pub(crate) numbers: BTreeMap<String, f64>,
    pub(crate) samples: BTreeMap<String, Vec<f64>>,
}

/// One metric, by name and labels.
struct One {
    kept: Kept,
    key: String,
}

impl One {
    fn of(kept: &Kept, key: &Key) -> Arc<Self> {
        let mut labels: Vec<String> = key.labels().map(|l| format!("{}={}", l.key(), l.value())).collect();
        labels.sort();
        Arc::new(Self { kept: kept.clone(), key: [vec![key.name().to_owned()], labels].concat().join(" ") })
    }

    fn change(&self, by: impl FnOnce(f64) -> f64) {
        let mut values = self.kept.0.lock().unwrap();
        let value = values.numbers.entry(self.key.clone()).or_default();
        *value = by(*value);
    }
}

impl CounterFn for One {
    fn increment(&self, n: u64) {
        self.change(|v| v + n as f64);
    }
    fn absolute(&self, n: u64) {
        self.change(|_| n as f64);
    }
}

impl GaugeFn for One {
    fn increment(&self, n: f64) {
        self.change(|v| v + n);
    }
    fn decrement(&self, n: f64) {
        self.change(|v| v - n);
    }
    fn set(&self, n: f64) {
        self.change(|_| n);
    }
}

impl HistogramFn for One {
    fn record(&self, n: f64) {
        self.kept.0.lock().unwrap().samples.entry(self.key.clone()).or_default().push(n);
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, meaning: SharedString) {
        self.0.lock().unwrap().described.insert(key.as_str().to_owned(), (unit, meaning.to_string()));
    }
    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, meaning: SharedString) {
        self.describe_counter(key, unit, meaning);
    }
    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, meaning: SharedString) {
        self.describe_counter(key, unit, meaning);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(One::of(self, key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(One::of(self, key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(One::of(self, key))
    }
}

impl Kept {
    pub(crate) fn number(&self, key: &str) -> f64 {
        self.0.lock().unwrap().numbers.get(key).copied().unwrap_or_default()
    }

    pub(crate) fn samples(&self, key: &str) -> Vec<f64> {
        self.0.lock().unwrap().samples.get(key).cloned().unwrap_or_default()
    }
}
