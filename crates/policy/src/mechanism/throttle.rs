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

/// Between which shares of the device a tenant's limit may move, whatever a policy finds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// It is never limited to less; at least [`SHARE_MIN`].
    pub min: f64,
    /// It never has more; none is no bound.
    pub max: Option<f64>,
}

impl Bounds {
    /// Any limit will do.
    pub const NONE: Bounds = Bounds {
        min: SHARE_MIN,
        max: None,
    };

    /// Nothing above `max`.
    pub fn below(max: Option<f64>) -> Bounds {
        Bounds {
            max,
            ..Bounds::NONE
        }
    }

    /// What a limit becomes within them, whatever figures it was computed from: at least
    /// [`SHARE_MIN`] and at most the whole device. Where they contradict each other the upper one
    /// holds.
    pub fn clamp(self, share: f64) -> f64 {
        // `max` gives the bound where there is no number.
        let share = share.max(self.min.max(SHARE_MIN)).min(1.0);
        self.max.map_or(share, |max| share.min(max.max(SHARE_MIN)))
    }
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds::NONE
    }
}

/// The limit of one tenant, within its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Throttle {
    share: Option<f64>,
    bounds: Bounds,
}

impl Throttle {
    /// No limit and no bounds.
    pub const NONE: Throttle = Throttle {
        share: None,
        bounds: Bounds::NONE,
    };

    /// No limit yet, within bounds.
    pub fn within(bounds: Bounds) -> Throttle {
        Throttle {
            share: None,
            bounds,
        }
    }

    /// A limit at a share of the device, without bounds.
    pub fn at(share: f64) -> Throttle {
        Throttle::NONE.moved(share)
    }

    /// The limit that a policy has set, as a share of the device; none where it has set none.
    pub fn share(self) -> Option<f64> {
        self.share
    }

    /// Whether a policy has set a limit.
    pub fn is_set(self) -> bool {
        self.share.is_some()
    }

    /// The limit elsewhere, within the same bounds.
    #[must_use]
    pub fn moved(self, share: f64) -> Throttle {
        Throttle {
            share: Some(self.bounds.clamp(share)),
            ..self
        }
    }

    /// Without the limit; the bounds stay.
    #[must_use]
    pub fn lifted(self) -> Throttle {
        Throttle {
            share: None,
            ..self
        }
    }

    /// A limit that is `step` of the device below what the tenant may use and does use.
    #[must_use]
    pub fn tightened(self, used: f64, step: f64) -> Throttle {
        let now = self.share.map_or(used, |share| share.min(used));
        self.moved(now - step)
    }

    /// A limit that is `step` of the device looser; none once it is far above what is used.
    #[must_use]
    pub fn relaxed(self, used: f64, step: f64) -> Throttle {
        match self.share {
            None => self,
            Some(share) if share + step > 1.0 || share > LOOSE * used + step => self.lifted(),
            Some(share) => self.moved(share + step),
        }
    }

    /// What the gate is to do.
    pub fn want(self) -> Want {
        let share = self.share.or(self.bounds.max);
        Want {
            rate: share.map(|share| DevicePs((share * 1e12) as u64)),
            ..Want::default()
        }
    }
}

/// Keeps what is wanted of a tenant below its upper bound, also where a stand-alone run has lifted
/// its limit.
pub fn cap(want: &mut Want, bounds: Bounds) {
    if want.rate.is_none() {
        want.rate = Throttle::within(bounds).want().rate;
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
        assert_eq!(Throttle::at(f64::NAN).share(), Some(SHARE_MIN));
        assert_eq!(Throttle::at(f64::INFINITY).share(), Some(1.0));
        assert_eq!(
            Throttle::at(0.4).want().rate,
            Some(DevicePs(400_000_000_000))
        );
    }

    #[test]
    fn a_limit_moves_within_its_bounds_only() {
        let bounds = Bounds {
            min: 0.2,
            max: Some(0.5),
        };
        let free = Throttle::within(bounds);
        assert_eq!((free.share(), free.is_set()), (None, false));
        assert_eq!(free.want(), Throttle::at(0.5).want(), "the upper bound");
        assert_eq!(free.tightened(0.4, 0.1).share(), Some(0.4 - 0.1));
        assert_eq!(free.tightened(0.4, 0.9).share(), Some(0.2));
        assert_eq!(free.moved(0.5).relaxed(0.5, 0.1).share(), Some(0.5));
        assert_eq!(free.moved(0.3).relaxed(0.01, 0.1), free);
        assert_eq!(free.moved(0.3).lifted(), free);
        assert_eq!(Bounds::below(Some(0.1)).clamp(0.5), 0.1);
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
