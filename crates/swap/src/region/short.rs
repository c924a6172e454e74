//! How a desk waits for memory that the kernel does not have: what is refused for want of it is
//! tried again after a moment, for a minute. Whoever can make room, or end the program, has long
//! done it by then.
//!
//! What it never does: read a clock.
//!
//! *Thread safety*: plain data.

use nyx_base::{Instant, Nanos};

/// After this what was refused is tried again.
pub(super) const AGAIN: Nanos = Nanos::from_millis(1);
/// For so long.
pub(super) const PATIENCE: Nanos = Nanos::from_secs(60);

/// Of what is read, or of what is written: either may go on without the other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shortage(Option<Short>);

#[derive(Clone, Copy, Debug)]
struct Short {
    since: Instant,
    /// When the next is tried.
    again: Instant,
}

impl Shortage {
    /// Something was refused; whether it is to be tried again.
    pub(super) fn refused(&mut self, now: Instant) -> bool {
        let again = now + AGAIN;
        let short = self.0.get_or_insert(Short { since: now, again });
        short.again = again;
        now.since(short.since) <= PATIENCE
    }

    /// Something is tried; where there was no memory the next waits.
    pub(super) fn tried(&mut self, now: Instant) {
        if let Some(short) = &mut self.0 {
            short.again = now + AGAIN;
        }
    }

    /// There was memory, or nothing waits for it any more.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether something may be tried.
    pub(super) fn may_try(&self, now: Instant) -> bool {
        self.0.is_none_or(|short| now >= short.again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_tried_each_moment_for_a_minute_and_the_next_shortage_has_its_own() {
        let mut shortage = Shortage::default();
        let mut now = Instant(5);
        assert!(shortage.may_try(now) && !shortage.is_on());
        shortage.tried(now);
        assert!(shortage.may_try(now), "there is memory as far as is known");
        for _ in 0..2 {
            let began = now;
            while shortage.refused(now) {
                assert!(shortage.is_on() && !shortage.may_try(now));
                now += AGAIN;
                assert!(shortage.may_try(now));
                shortage.tried(now);
                assert!(!shortage.may_try(now), "one at a time");
                // It takes a while to be refused.
                now += Nanos(AGAIN.0 * 9);
            }
            assert_eq!(now.since(began).0, PATIENCE.0 + AGAIN.0 * 10);
            shortage.end();
            assert!(shortage.may_try(now) && !shortage.is_on());
        }
    }
}
