//! The memory front end of one issuing thread, as a device model sees it: which of the lines that
//! it loads are still outstanding.
//!
//! What it never does: know a device. Real media ignore it.

/// See the module. One per worker, handed to every access of that worker.
#[derive(Debug, Default)]
pub struct Front {
    /// When the last lines arrive, in ticks of the model's clock: a ring.
    done: [u64; Front::LINES],
    next: usize,
    /// When the last line was issued, in ticks.
    pub(crate) issued: u64,
    /// Lines that the prefetcher owes, in parts of a line.
    pub(crate) waste: u64,
}

impl Front {
    /// At most so many lines are outstanding; processors have 10 to 16 fill buffers.
    pub(crate) const LINES: usize = 16;

    /// Notes a line issued at `issued` that arrives at `done`.
    #[inline]
    pub(crate) fn push(&mut self, done: u64, issued: u64) {
        self.done[self.next] = done;
        self.next = (self.next + 1) % Front::LINES;
        self.issued = issued;
    }

    /// The time, `now` or later, from which fewer than `lines` (1 to [`Self::LINES`]) are
    /// outstanding. Counting is much cheaper than ranking, so it comes first.
    #[inline]
    pub(crate) fn fewer_than(&self, lines: usize, now: u64) -> u64 {
        let outstanding = self.done.iter().filter(|&&done| done > now).count();
        if outstanding < lines {
            return now;
        }
        let mut done = self.done;
        *done.select_nth_unstable(Front::LINES - lines).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outstanding_lines_are_counted_by_arrival_not_by_issue() {
        let mut front = Front::default();
        for done in [300, 100, 200] {
            front.push(done, 0);
        }
        assert_eq!(
            [1, 2, 3, 4].map(|lines| front.fewer_than(lines, 0)),
            [300, 200, 100, 0]
        );
        (400..416).for_each(|done| front.push(done, 0));
        assert_eq!(front.fewer_than(Front::LINES, 0), 400);
        assert_eq!(front.fewer_than(1, 0), 415);
        assert_eq!(
            [410, 415, 500].map(|now| front.fewer_than(4, now)),
            [412, 415, 500]
        );
    }
}
