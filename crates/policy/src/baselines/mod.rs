//! What Nyx is compared with, on the same interface: no policy, and a limit on bytes.

use crate::{Policy, Seen, Want};
use nyx_base::{DevicePs, Instant, Nanos};

/// No policy: everybody takes what they can. Accounts are still kept.
#[derive(Debug, Default)]
pub struct Unlimited;

impl Policy for Unlimited {
    fn name(&self) -> &'static str {
        "none"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(100)
    }

    fn step(&mut self, _now: Instant, _seen: &[Seen], want: &mut [Want]) {
        want.fill(Want::default());
    }
}

/// A bandwidth limit, as for DRAM: each byte counts the same, read or written, alone or in a crowd
/// (NyxCache section 4.2 compares with this).
#[derive(Debug)]
pub struct ByteRate {
    limits: Vec<Option<f64>>,
}

impl ByteRate {
    /// `limits[i]` is the bytes per second of tenant `i`; `None` is no limit.
    ///
    /// Panics where a limit is not positive and finite: configurations are checked before.
    pub fn new(limits: Vec<Option<f64>>) -> ByteRate {
        let sound = |limit: &f64| limit.is_finite() && *limit > 0.0;
        assert!(
            limits.iter().flatten().all(sound),
            "byte rates must be positive: {limits:?}"
        );
        ByteRate { limits }
    }
}

impl Policy for ByteRate {
    fn name(&self) -> &'static str {
        "bytes"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(10)
    }

    /// A limit of `b` bytes a second is a second a second, of which each byte takes `1/b`.
    fn step(&mut self, _now: Instant, _seen: &[Seen], want: &mut [Want]) {
        for (want, limit) in want.iter_mut().zip(&self.limits) {
            *want = Want::default();
            if let Some(bytes_per_s) = limit {
                want.rate = Some(DevicePs::SECOND);
                want.byte_price = Some(DevicePs::of_max_iops(*bytes_per_s));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_costs_its_part_of_the_second() {
        let mut want = [Want::default(); 2];
        ByteRate::new(vec![Some(1e9), None]).step(
            Instant(0),
            &[Seen::default(), Seen::default()],
            &mut want,
        );
        assert_eq!(want[0].byte_price, Some(DevicePs(1000)));
        assert_eq!(want[0].rate, Some(DevicePs::SECOND));
        assert_eq!(want[1], Want::default());
    }

    #[test]
    fn no_policy_lifts_what_an_earlier_one_set() {
        let mut want = [Want {
            rate: Some(DevicePs(1)),
            ..Want::default()
        }];
        Unlimited.step(Instant(0), &[Seen::default()], &mut want);
        assert_eq!(want[0], Want::default());
    }
}
