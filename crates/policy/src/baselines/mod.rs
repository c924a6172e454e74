//! What Nyx is compared with, on the same interface.
//!
//! * [`Unlimited`]: no policy.
//! * [`bytes`]: a limit on bytes; each byte counts the same.
//! * [`ops`]: a limit on operations; each access counts the same.
//! * [`partition`]: fixed parts of the device's time, nothing is lent.
//! * [`memguard`]: budgets of bytes, lent from period to period.
//! * [`caladan`]: whoever moves the most bytes is throttled for a tenant with a target.

use crate::{Policy, Seen, Want};
use nyx_base::{Instant, Nanos};

pub mod bytes;
pub mod caladan;
pub mod memguard;
pub mod ops;
pub mod partition;

pub use bytes::ByteRate;
pub use caladan::CaladanLike;
pub use memguard::MemGuardLike;
pub use ops::OpRate;
pub use partition::StaticPartition;

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

/// Panics where a rate is not positive and finite.
fn assert_positive<'a>(rates: impl Iterator<Item = &'a f64>) {
    for rate in rates {
        let sound = rate.is_finite() && *rate > 0.0;
        assert!(sound, "rates must be positive, got {rate}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::DevicePs;

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
