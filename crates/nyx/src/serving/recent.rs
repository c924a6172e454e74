//! What tenants did lately: readings of their accounts and latencies, a second apart, so that
//! whoever asks has one between a second and two ago, or from the start.
//!
//! What it never does: judge, or look at more than what accounts hold anyway.

use nyx_base::Latencies;
use nyx_engine::Engine;
use nyx_gate::Usage;
use std::time::{Duration, Instant};

/// Readings are so far apart.
const APART: Duration = Duration::from_secs(1);
/// No less is divided by.
const LEAST: Duration = Duration::from_millis(1);

/// What one tenant did.
#[derive(Debug)]
pub struct Did {
    /// Within so many seconds.
    pub within_s: f64,
    /// What it used of its device.
    pub usage: Usage,
    /// Latencies of its requests, where they are recorded.
    pub latencies: Latencies,
}

/// The last two readings.
#[derive(Debug)]
pub(super) struct Recent {
    older: Reading,
    newer: Reading,
}

#[derive(Clone, Debug)]
struct Reading {
    at: Instant,
    tenants: Vec<(Usage, Latencies)>,
}

impl Reading {
    fn of(engine: &Engine) -> Reading {
        let tenants = engine.tenants().iter().map(|tenant| {
            let mut latencies = Latencies::default();
            tenant.add_latencies(&mut latencies);
            (tenant.usage(), latencies)
        });
        Reading {
            tenants: tenants.collect(),
            at: Instant::now(),
        }
    }
}

impl Recent {
    pub(super) fn new(engine: &Engine) -> Recent {
        let now = Reading::of(engine);
        Recent {
            older: now.clone(),
            newer: now,
        }
    }

    /// Takes a reading where the last one is old enough.
    pub(super) fn look(&mut self, engine: &Engine) {
        if self.newer.at.elapsed() >= APART {
            self.older = std::mem::replace(&mut self.newer, Reading::of(engine));
        }
    }

    /// What each tenant did from the older reading to now, without those that came since.
    pub(super) fn did(&self, engine: &Engine) -> Vec<Did> {
        let now = Reading::of(engine);
        let within = now.at.duration_since(self.older.at).max(LEAST);
        let tenants = now.tenants.iter().zip(&self.older.tenants);
        let did = tenants.map(|((usage, latencies), (before, latencies_before))| Did {
            within_s: within.as_secs_f64(),
            usage: *usage - *before,
            latencies: latencies.since(latencies_before),
        });
        did.collect()
    }
}
