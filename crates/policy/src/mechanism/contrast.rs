//! Natural experiments: who is there when a victim suffers and is not when it does not.
//!
//! An experiment ([`super::interference`]) looks at tens of milliseconds. A tenant that comes and
//! goes within those is quiet while it is tried, and somebody else looks guilty. But what it does
//! is an experiment of its own: its use in windows in which targets were missed stands out from its
//! use in the others, while the use of those who always do the same does not.
//!
//! What it never does: take little use under a limit for absence: a tenant that comes up to its
//! limit is there as it was before it had one.
//!
//! *Invariants*: older windows fade, so that a change of habits is learned in some ten windows.

/// What is left of older windows with each new one of their kind.
const FADE: f64 = 0.9;
/// Windows of each kind that a judgement needs, faded.
const WINDOWS_LEAST: f64 = 2.5;
/// A suspect uses so many times more in bad windows than in good ones, and
const STANDS_OUT: f64 = 2.0;
/// at least so much of the device more.
const SHARE_LEAST: f64 = 0.005;

/// A sum that fades, and the weight of its parts.
#[derive(Clone, Copy, Debug, Default)]
struct Faded {
    sum: f64,
    weight: f64,
}

impl Faded {
    fn add(&mut self, value: f64) {
        self.sum = self.sum * FADE + value;
        self.weight = self.weight * FADE + 1.0;
    }

    fn mean(self) -> Option<f64> {
        (self.weight >= WINDOWS_LEAST).then(|| self.sum / self.weight)
    }
}

/// What tenants used of the device in good windows and in bad ones.
#[derive(Clone, Debug)]
pub struct Contrast {
    good: Vec<Faded>,
    bad: Vec<Faded>,
}

impl Contrast {
    /// Of so many tenants.
    pub fn new(tenants: usize) -> Contrast {
        Contrast {
            good: vec![Faded::default(); tenants],
            bad: vec![Faded::default(); tenants],
        }
    }

    /// What a tenant used of the device in a window, in which targets were missed or not; none
    /// where it came up to its limit, and would have used more.
    pub fn note(&mut self, tenant: usize, share: Option<f64>, missed: bool) {
        let usual = |of: &[Faded]| of[tenant].sum / of[tenant].weight.max(1.0);
        let share = share.unwrap_or_else(|| usual(&self.good).max(usual(&self.bad)));
        let of = match missed {
            true => &mut self.bad,
            false => &mut self.good,
        };
        of[tenant].add(share.clamp(0.0, 1.0));
    }

    /// By how much more of the device a tenant used when targets were missed, if that stands out.
    pub fn of(&self, tenant: usize) -> Option<f64> {
        let (bad, good) = (self.bad[tenant].mean()?, self.good[tenant].mean()?);
        let more = bad - good;
        (more >= SHARE_LEAST && bad >= STANDS_OUT * good).then_some(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_with_the_harm_stands_out_and_nobody_else_does() {
        let mut contrast = Contrast::new(3);
        for window in 0..30 {
            let missed = window % 4 == 0;
            contrast.note(0, Some(if missed { 0.2 } else { 0.02 }), missed);
            contrast.note(1, Some(if missed { 0.22 } else { 0.20 }), missed);
            contrast.note(2, Some(if missed { 0.004 } else { 0.0 }), missed);
        }
        let more = contrast.of(0).expect("it comes and goes");
        assert!((more - 0.18).abs() < 1e-9, "{more}");
        assert_eq!([contrast.of(1), contrast.of(2)], [None, None]);
    }

    #[test]
    fn few_windows_say_nothing_and_old_ones_fade() {
        let mut contrast = Contrast::new(1);
        contrast.note(0, Some(0.3), true);
        contrast.note(0, Some(0.3), true);
        (0..9).for_each(|_| contrast.note(0, Some(0.0), false));
        assert_eq!(contrast.of(0), None, "two bad windows may be chance");
        contrast.note(0, Some(0.3), true);
        assert!(contrast.of(0).is_some());
        // It stays, and does no harm any more.
        (0..20).for_each(|_| contrast.note(0, Some(0.3), false));
        assert_eq!(contrast.of(0), None);
    }

    #[test]
    fn under_a_limit_presence_counts_and_not_use() {
        let mut contrast = Contrast::new(2);
        for tenant in 0..2 {
            (0..4).for_each(|_| contrast.note(tenant, Some(0.3), true));
            (0..4).for_each(|_| contrast.note(tenant, Some(0.0), false));
        }
        // Both are limited. One stays and does no harm; the other is there with the harm only.
        for window in 0..30 {
            contrast.note(0, None, window % 3 == 0);
            let missed = window % 3 == 0;
            contrast.note(1, (!missed).then_some(0.0), missed);
        }
        assert_eq!(contrast.of(0), None);
        assert!(contrast.of(1).is_some());
    }
}
