//! A static partition: each tenant has its weight of the device's time, used or not. Isolation is
//! as in proportional sharing, and what is idle is lost.

use crate::mechanism::throttle::Throttle;
use crate::sharing::share::entitlements;
use crate::{Policy, Seen, Want};
use nyx_base::{Instant, Nanos};

/// Fixed parts of the device.
#[derive(Debug)]
pub struct StaticPartition {
    parts: Vec<f64>,
}

impl StaticPartition {
    /// `weights[i]` is the weight of tenant `i`.
    ///
    /// Panics where a weight is not positive and finite: configurations are checked before.
    pub fn new(weights: &[f64]) -> StaticPartition {
        StaticPartition {
            parts: entitlements(weights),
        }
    }
}

impl Policy for StaticPartition {
    fn name(&self) -> &'static str {
        "partition"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(100)
    }

    fn step(&mut self, _now: Instant, _seen: &[Seen], want: &mut [Want]) {
        for (want, &part) in want.iter_mut().zip(&self.parts) {
            *want = Throttle::at(part).want();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::DevicePs;

    #[test]
    fn weights_are_parts_of_the_device() {
        let mut want = [Want::default(); 2];
        let seen = [Seen::default(), Seen::default()];
        StaticPartition::new(&[3.0, 1.0]).step(Instant(0), &seen, &mut want);
        let rates = want.map(|want| want.rate);
        let wanted = [DevicePs(750_000_000_000), DevicePs(250_000_000_000)];
        assert_eq!(rates, wanted.map(Some));
    }
}
