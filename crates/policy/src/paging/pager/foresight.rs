//! Whether pages that are read will be written to: those that were, the last time that they were in
//! memory, may be mapped to be written to at once, which saves a fault (ours).
//!
//! A page that is mapped so counts as changed, whatever becomes of it. So one in some is mapped to
//! be read only, as ever, to see whether it is written to still; where too few are, all are.
//!
//! What it never does: know of pages.
//!
//! *Thread safety*: one owner.

/// One in so many is tried.
const TRIED_ONE_IN: u8 = 16;
const SCORE_MAX: u8 = 16;
/// What one that is not written to takes of the score; one that is gives 1. So pages are mapped to
/// be written to where two in three were, at least.
const LOSS: u8 = 2;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Foresight {
    score: u8,
    turn: u8,
}

impl Foresight {
    pub(super) fn new() -> Foresight {
        Foresight {
            score: SCORE_MAX,
            turn: 0,
        }
    }

    /// Whether pages that were written to the last time will be.
    pub(super) fn is_trusted(&self) -> bool {
        self.score >= SCORE_MAX / 2
    }

    /// Whether the next of them is to be tried.
    pub(super) fn tries(&mut self) -> bool {
        self.turn = (self.turn + 1) % TRIED_ONE_IN;
        self.turn == 0 || !self.is_trusted()
    }

    /// One that was tried was written to, or was not.
    pub(super) fn learn(&mut self, is_written: bool) {
        self.score = match is_written {
            true => (self.score + 1).min(SCORE_MAX),
            false => self.score.saturating_sub(LOSS),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_trusted_where_most_are_written_to_and_tries_all_where_it_is_not() {
        let mut foresight = Foresight::new();
        let tried = |foresight: &mut Foresight| (0..160).filter(|_| foresight.tries()).count();
        assert_eq!(tried(&mut foresight), 10);
        (0..5).for_each(|_| foresight.learn(false));
        assert!(!foresight.is_trusted());
        assert_eq!(tried(&mut foresight), 160);
        (0..2).for_each(|_| foresight.learn(true));
        assert!(foresight.is_trusted());
        // Half of them are too few; four in five are not.
        (0..40).for_each(|turn| foresight.learn(turn % 2 == 0));
        assert!(!foresight.is_trusted());
        (0..40).for_each(|turn| foresight.learn(turn % 5 != 0));
        assert!(foresight.is_trusted());
    }
}
