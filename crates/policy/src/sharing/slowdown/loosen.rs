//! Limits under which everybody fares alike may be tighter than they need be. To loosen them is an
//! experiment: where somebody fares worse than the others for it, the last limits that were fair
//! are put back, and the next try is twice as far away. Without that, tenants whose limits are as
//! loose as can be would be taken out of balance every few windows for ever.
//!
//! What it never does: wait longer than [`PATIENCE_MOST`] windows; put limits back for an
//! unfairness that comes later than [`JUDGED`] windows after they were loosened.

use crate::mechanism::throttle::Throttle;

/// A try comes at the latest after so many fair windows.
pub const PATIENCE_MOST: u32 = 64;
/// For so many windows what happens is taken for the work of a try.
pub const JUDGED: u32 = 3;

/// A try that is not judged yet.
#[derive(Clone, Debug)]
struct Try {
    /// The limits before its last move.
    before: Vec<Throttle>,
    /// Windows since then.
    windows: u32,
}

/// When to loosen, and where to go back to.
#[derive(Clone, Debug)]
pub struct Loosening {
    patience_least: u32,
    patience: u32,
    attempt: Option<Try>,
}

impl Loosening {
    /// The first try comes after more than so many fair windows.
    pub fn new(patience: u32) -> Loosening {
        Loosening {
            patience_least: patience,
            patience,
            attempt: None,
        }
    }

    /// For how many windows limits may have been loosened; none yet at zero.
    pub fn due(&self, fair_windows: u32) -> u32 {
        fair_windows.saturating_sub(self.patience)
    }

    /// These limits, under which everybody fared alike, are about to be loosened.
    pub fn begin(&mut self, limits: &[Throttle]) {
        let before = limits.to_vec();
        self.attempt = Some(Try { before, windows: 0 });
    }

    /// What a window says of the try, if there is one: the limits to put back. A try to which
    /// nothing objected makes the next one come as soon as the first.
    pub fn judge(&mut self, unfair: bool) -> Option<Vec<Throttle>> {
        let attempt = self.attempt.as_mut()?;
        attempt.windows += 1;
        if unfair {
            self.patience = (self.patience * 2).clamp(1, PATIENCE_MOST);
            return self.attempt.take().map(|attempt| attempt.before);
        }
        if attempt.windows > JUDGED {
            self.patience = self.patience_least;
            self.attempt = None;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_objects_gets_the_limits_from_before_and_more_patience() {
        let (tight, loose) = ([Throttle::at(0.2)], [Throttle::at(0.3)]);
        let mut loosening = Loosening::new(3);
        assert_eq!((loosening.due(3), loosening.due(4)), (0, 1));
        loosening.begin(&tight);
        assert_eq!(loosening.judge(false), None);
        loosening.begin(&loose);
        let back = loosening.judge(true);
        assert_eq!(back, Some(loose.to_vec()), "the last that were fair");
        assert_eq!((loosening.due(6), loosening.due(7)), (0, 1));
        assert_eq!(loosening.judge(true), None, "there was no other try");
        for _ in 0..9 {
            loosening.begin(&tight);
            assert!(loosening.judge(true).is_some());
        }
        assert_eq!(loosening.due(PATIENCE_MOST + 1), 1);
    }

    #[test]
    fn a_try_that_nobody_minds_is_forgotten() {
        let limits = [Throttle::at(0.2)];
        let mut loosening = Loosening::new(3);
        loosening.begin(&limits);
        assert!(loosening.judge(true).is_some());
        loosening.begin(&limits);
        for _ in 0..=JUDGED {
            assert_eq!(loosening.judge(false), None);
        }
        assert_eq!(loosening.judge(true), None, "that is something else");
        assert_eq!(loosening.due(4), 1);
    }
}
