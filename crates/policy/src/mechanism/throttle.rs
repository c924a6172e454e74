//! A tenant's limit as policies move it: a share of the device that goes down from what the tenant
//! uses and up until it binds no more.
//!
//! The paper throttles by a delay before each access, whose effect depends on how many threads a
//! tenant has and what it does; a share of the device time means the same for everybody and is kept
//! exactly by the gate.

use crate::{Delay, Want};
use nyx_base::DevicePs;

/// The least that a tenant is left, so that what it needs can still be seen: a thousandth.
pub const SHARE_MIN: f64 = 1e-3;
/// A limit so far above what is used that it binds nobody.
const LOOSE: f64 = 1.5;

/// The limit of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Throttle {
    share: Option<f64>,
}

impl Throttle {
    /// No limit.
    pub const NONE: Throttle = Throttle { share: None };

    /// A limit at a share of the device.
    pub fn at(share: f64) -> Throttle {
        Throttle {
            share: Some(share.max(SHARE_MIN)),
        }
    }

    /// The share of the device that the tenant may use; none is no limit.
    pub fn share(self) -> Option<f64> {
        self.share
    }

    /// Whether there is a limit.
    pub fn is_set(self) -> bool {
        self.share.is_some()
    }

    /// A limit that is `step` of the device below what the tenant may use and does use.
    #[must_use]
    pub fn tightened(self, used: f64, step: f64) -> Throttle {
        let now = self.share.map_or(used, |share| share.min(used));
        Throttle::at(now - step)
    }

    /// A limit that is `step` of the device looser; none once it is far above what is used.
    #[must_use]
    pub fn relaxed(self, used: f64, step: f64) -> Throttle {
        match self.share {
            None => Throttle::NONE,
            Some(share) if share + step > 1.0 || share > LOOSE * used + step => Throttle::NONE,
            Some(share) => Throttle::at(share + step),
        }
    }

    /// The tighter of this and a limit that holds in any case.
    #[must_use]
    pub fn within(self, most: Option<f64>) -> Throttle {
        match (self.share, most) {
            (Some(share), Some(most)) => Throttle::at(share.min(most)),
            (share, most) => Throttle {
                share: share.or(most),
            },
        }
    }

    /// What the gate is to do.
    pub fn want(self) -> Want {
        Want {
            rate: self.share.map(|share| DevicePs((share * 1e12) as u64)),
            ..Want::default()
        }
    }
}

/// What the gate is to do with a tenant that pauses.
pub fn pause() -> Want {
    Want {
        delay: Delay::Infinite,
        ..Want::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tightening_begins_at_what_is_used_and_ends_at_the_least() {
        let once = Throttle::NONE.tightened(0.5, 0.1);
        assert_eq!(once.share(), Some(0.4));
        let twice = once.tightened(0.4, 0.1);
        assert!((twice.share().expect("set") - 0.3).abs() < 1e-9);
        assert_eq!(twice.tightened(0.3, 1.0).share(), Some(SHARE_MIN));
        assert_eq!(
            Throttle::at(0.4).want().rate,
            Some(DevicePs(400_000_000_000))
        );
    }

    #[test]
    fn a_limit_holds_in_any_case() {
        assert_eq!(Throttle::NONE.within(None), Throttle::NONE);
        assert_eq!(Throttle::NONE.within(Some(0.3)), Throttle::at(0.3));
        assert_eq!(Throttle::at(0.5).within(Some(0.3)), Throttle::at(0.3));
        assert_eq!(Throttle::at(0.2).within(Some(0.3)), Throttle::at(0.2));
    }

    #[test]
    fn relaxing_ends_without_a_limit() {
        let mut throttle = Throttle::at(0.2);
        // The tenant uses all that it may, up to 0.5.
        for _ in 0..20 {
            let used = throttle.share().unwrap_or(0.5).min(0.5);
            throttle = throttle.relaxed(used, 0.1);
        }
        assert_eq!(throttle, Throttle::NONE);
        assert_eq!(Throttle::NONE.relaxed(0.1, 0.1), Throttle::NONE);
    }
}
