//! Latency: an HDR histogram that travels as text, with the percentiles its samples can bear.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A histogram of times in microseconds, and what can be read from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// How many samples.
    pub count: u64,
    /// Their mean.
    pub mean_ms: Option<f64>,
    /// Half of the samples are at most this.
    pub p50_ms: Option<f64>,
    /// 90 %; needs 100 samples.
    pub p90_ms: Option<f64>,
    /// 99 %; needs 1 000 samples.
    pub p99_ms: Option<f64>,
    /// 99.9 %; needs 10 000 samples.
    pub p999_ms: Option<f64>,
    /// The longest.
    pub max_ms: Option<f64>,
    /// The whole histogram: HdrHistogram V2 encoding, in base64.
    pub v2_base64: String,
}

/// What happened in one second of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Second {
    /// Seconds since the measured time began.
    pub second: u32,
    /// Requests that were answered in it.
    pub count: u64,
    /// Half of them took at most this.
    pub p50_ms: f64,
    /// 99 % of them, or the longest if there are fewer than 100.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// An empty histogram of the range every measurement here has: 1 µs to 10 min, 3 digits.
pub fn histogram() -> Histogram<u64> {
    // Constant bounds that the crate accepts: low >= 1, high >= 2 * low, digits <= 5.
    Histogram::new_with_bounds(1, LONGEST_US, 3).expect("the bounds are constants the crate accepts")
}

/// Records a time; what lies outside the range counts as its end.
pub fn record(histogram: &mut Histogram<u64>, nanos: u64) {
    histogram.saturating_record((nanos / 1_000).clamp(1, LONGEST_US));
}

/// The histogram as text.
pub fn encode(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    // Writing to memory cannot fail, and u64 counts of one run fit the format.
    V2Serializer::new()
        .serialize(histogram, &mut bytes)
        .expect("a histogram goes into memory");
    STANDARD.encode(bytes)
}

/// The histogram of a text, or nothing if the text is none.
pub fn decode(text: &str) -> Option<Histogram<u64>> {
    let bytes = STANDARD.decode(text).ok()?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
}

impl Latency {
    /// What a histogram says.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let count = histogram.len();
        let at = |quantile: f64, needed: u64| (count >= needed).then(|| millis(histogram.value_at_quantile(quantile)));
        Self {
            count,
            mean_ms: (count > 0).then(|| histogram.mean() / 1e3),
            p50_ms: at(0.5, 1),
            p90_ms: at(0.9, 100),
            p99_ms: at(0.99, 1_000),
            p999_ms: at(0.999, 10_000),
            max_ms: (count > 0).then(|| millis(histogram.max())),
            v2_base64: encode(histogram),
        }
    }

    /// Points of the percentile spectrum: (1 / (1 − quantile), milliseconds), as far as the samples reach.
    pub fn spectrum(&self) -> Vec<(f64, f64)> {
        let Some(histogram) = decode(&self.v2_base64) else {
            return Vec::new();
        };
        let mut points = Vec::new();
        let mut nines = 1.0_f64;
        while nines <= histogram.len() as f64 {
            points.push((nines, millis(histogram.value_at_quantile(1.0 - 1.0 / nines))));
            nines *= 1.12;
        }
        if histogram.len() > 1 {
            points.push((histogram.len() as f64, millis(histogram.max())));
        }
        points
    }
}

impl Second {
    /// What a histogram of one second says.
    pub fn of(second: u32, histogram: &Histogram<u64>) -> Self {
        Self {
            second,
            count: histogram.len(),
            p50_ms: millis(histogram.value_at_quantile(0.5)),
            p99_ms: millis(histogram.value_at_quantile(0.99)),
            max_ms: millis(histogram.max()),
        }
    }
}

fn millis(micros: u64) -> f64 {
    micros as f64 / 1e3
}

const LONGEST_US: u64 = 600_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_travels_as_text() {
        let mut there = histogram();
        for nanos in [1_000, 2_000_000, 700_000_000_000] {
            record(&mut there, nanos);
        }
        let back = decode(&encode(&there)).unwrap();
        assert_eq!(back.len(), 3);
        assert_eq!(back.max(), there.max());
        assert!(decode("not a histogram").is_none());
    }

    #[test]
    fn percentiles_need_samples() {
        let mut few = histogram();
        (0..999).for_each(|_| record(&mut few, 5_000_000));
        let latency = Latency::of(&few);
        assert!(latency.p90_ms.is_some() && latency.p99_ms.is_none() && latency.p999_ms.is_none());
        assert_eq!(Latency::of(&histogram()).p50_ms, None);
    }
}
