//! How fast a donor is alone, learned in short pauses of all others.
//!
//! What it never does: believe one pause. A mean is known from enough samples on, over as many
//! pauses as that takes; older ones fade, so that a change of the load is learned.

use nyx_base::{Instant, Latencies};

/// Samples below this many times what a judgement needs are to become more soon: every judgement
/// is against this mean, and requests that queue behind each other are slow together.
const WANTED: f64 = 4.0;
/// Samples beyond this many times what a judgement needs make older ones fade.
const REMEMBERED: f64 = 8.0;

/// What the pauses told of one tenant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alone {
    sum_ns: f64,
    count: f64,
    paused_at: Option<Instant>,
}

impl Alone {
    /// A pause is over; these were the tenant's latencies.
    pub(super) fn learn(&mut self, now: Instant, latencies: &Latencies, samples: u64) {
        self.paused_at = Some(now);
        let Some(mean_ns) = latencies.mean_ns() else {
            return;
        };
        self.sum_ns += mean_ns * latencies.count() as f64;
        self.count += latencies.count() as f64;
        let fade = (REMEMBERED * samples as f64 / self.count).min(1.0);
        self.sum_ns *= fade;
        self.count *= fade;
    }

    /// Its mean latency alone, once that is known from enough samples.
    pub(super) fn mean_ns(&self, samples: u64) -> Option<f64> {
        (self.count >= samples.max(1) as f64).then(|| self.sum_ns / self.count)
    }

    /// Whether more pauses are needed soon.
    pub(super) fn is_vague(&self, samples: u64) -> bool {
        self.count < WANTED * samples as f64
    }

    /// When it was last learned.
    pub(super) fn paused_at(&self) -> Option<Instant> {
        self.paused_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::{LatencyCounter, Nanos};

    fn of(ns: u64, count: u32) -> Latencies {
        let counter = LatencyCounter::default();
        counter.add(Nanos(ns), count);
        let mut latencies = Latencies::default();
        counter.add_to(&mut latencies);
        latencies
    }

    #[test]
    fn a_mean_needs_enough_samples_and_follows_a_change() {
        let mut alone = Alone::default();
        alone.learn(Instant(1), &of(1_000, 6), 10);
        assert_eq!(alone.mean_ns(10), None);
        alone.learn(Instant(2), &of(2_000, 6), 10);
        assert_eq!(alone.mean_ns(10), Some(1_500.0));
        assert!(alone.is_vague(10));
        for i in 0..40 {
            alone.learn(Instant(3 + i), &of(4_000, 10), 10);
        }
        assert!(!alone.is_vague(10));
        let mean_ns = alone.mean_ns(10).expect("many samples");
        assert!((mean_ns - 4_000.0).abs() < 40.0, "{mean_ns}");
        assert_eq!(alone.paused_at(), Some(Instant(42)));
    }

    #[test]
    fn a_pause_without_requests_teaches_nothing() {
        let mut alone = Alone::default();
        alone.learn(Instant(7), &Latencies::default(), 0);
        assert_eq!(
            (alone.mean_ns(0), alone.paused_at()),
            (None, Some(Instant(7)))
        );
    }
}
