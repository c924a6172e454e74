//! Drop-behind: what a stream has passed leaves first, where that spares reads.
//!
//! Memory that is full loses what was used longest ago. A program that goes through more than it
//! has memory, from first to last and again, so loses each page just before it wants it. What lies
//! right behind a stream is what such a program wants last of all: where that leaves instead, the
//! rest stays, and what else the program has is not pushed out by pages that are passed once.
//!
//! A program that goes through a part several times before it goes on wants the contrary. From
//! outside the two look alike: pages come back *soon*, before as many came in as memory has, and of
//! what is there nothing is heard. So where many come back soon it is tried: nothing is sent away
//! until as many pages came in as memory has, or that takes much longer than it did before. What
//! has fewer pages come in for the same work of the program is kept to, longer each time that it is
//! found again.
//!
//! *Shapes*: pages. *Thread safety*: one owner. Nothing is allocated after [`DropBehind::new`].
//!
//! What it never does: send a page away; say so of one that was not read ahead.

use super::Span;
use nyx_base::{Instant, Nanos};

/// What was sent away and is remembered: so many stretches, of so many pages at most, or of this
/// part of memory, one in so many.
const STRETCHES: usize = 256;
const STRETCH_PAGES: u64 = 512;
const STRETCH_ONE_IN: u64 = 64;
/// Of the youngest stretches so many may still grow: there are as many streams.
const GROWING: usize = super::STREAMS;
/// It is tried where this part of what was sent away came back soon, one in so many, and it is this
/// part of memory. What was sent away and came back spans a whole round of a loop, which is what is
/// compared: within a round there are times at which all is read, and others at which nothing is.
const SOON_ONE_IN: u64 = 4;
const SOON_OF_MEMORY_ONE_IN: u64 = 32;
/// For so many times as long as it took to fill memory before, at most.
const TRIES_TIMES: u64 = 8;
/// A size of memory is another one where it differs by more than this part, one in so many.
const ALIKE_ONE_IN: u64 = 8;
/// A trial in which the program worked for less than this part of the time before, one in so many,
/// tells nothing: it had nothing to do.
const IDLE_ONE_IN: u64 = 4;
/// What was found holds until memory was filled so often; twice as often where it is found again,
/// up to the most.
const HOLDS_FIRST: u64 = 4;
const HOLDS_MOST: u64 = 64;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct DropBehind {
    memory_pages: u64,
    /// How many it had when what is known of it began.
    known_pages: u64,
    /// Pages that came in.
    brought: u64,
    stretches: Box<[Stretch; STRETCHES]>,
    /// How many there were; the last is the youngest.
    count: usize,
    way: Way,
    /// Nothing is tried, or what is kept stays so, until so many pages came in.
    holds_until: u64,
    holds: u64,
    /// What was found the last time.
    was_kept: Option<bool>,
    /// Since it was thought over.
    begin: Mark,
    sent: u64,
    soon: u64,
}

/// Pages side by side that were sent away.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    span: Span,
    /// What had come in when its first pages were sent.
    brought: u64,
}

const NOTHING: Stretch = Stretch {
    span: Span {
        process: 0,
        first: 0,
        pages: 0,
    },
    brought: 0,
};

/// A moment: what had come in, and how much the program had worked.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    at: Instant,
    brought: u64,
    worked: Nanos,
}

#[derive(Clone, Copy, Debug)]
enum Way {
    /// What is behind leaves first.
    Sends,
    /// It stays for once.
    Tries(Trial),
    /// It stays.
    Keeps,
}

/// What is behind stays, to be compared with how it was before.
#[derive(Clone, Copy, Debug)]
struct Trial {
    before: Rate,
    /// At the latest.
    until: Instant,
    /// Whether memory was filled once since: what it held before tells of how that was.
    is_filled: bool,
}

/// Pages that came in while a program worked so long.
#[derive(Clone, Copy, Debug)]
struct Rate {
    pages: u64,
    worked: Nanos,
}

impl Rate {
    /// Fewer pages for the same work. In doubt it is not: a program may have worked for less than a
    /// clock tells.
    fn is_below(self, other: Rate) -> bool {
        let product = |a: Rate, b: Rate| u128::from(a.pages) * u128::from(b.worked.0);
        product(self, other) < product(other, self)
    }
}

impl Stretch {
    fn shared_with(&self, other: Span) -> u64 {
        let Span { process, first, .. } = self.span;
        if process != other.process {
            return 0;
        }
        let end = self.span.end().min(other.end());
        end.saturating_sub(first.max(other.first))
    }
}

impl DropBehind {
    /// Nothing is known; what is behind leaves first.
    pub(super) fn new() -> DropBehind {
        DropBehind {
            memory_pages: 0,
            known_pages: 0,
            brought: 0,
            stretches: Box::new([NOTHING; STRETCHES]),
            count: 0,
            way: Way::Sends,
            holds_until: 0,
            holds: HOLDS_FIRST,
            was_kept: None,
            begin: Mark::default(),
            sent: 0,
            soon: 0,
        }
    }

    /// Memory has so many pages from now on. Where that is another size, nothing is known of it.
    pub(super) fn set_memory(&mut self, pages: u64) {
        let is_alike = pages.abs_diff(self.known_pages) * ALIKE_ONE_IN <= self.known_pages;
        self.memory_pages = pages;
        if is_alike {
            return;
        }
        self.known_pages = pages;
        (self.was_kept, self.holds) = (None, HOLDS_FIRST);
        (self.holds_until, self.count) = (self.brought, 0);
        let begin = self.begin;
        self.begin_anew(begin.at, begin.worked);
    }

    /// Whether what is behind a stream leaves first.
    pub(super) fn sends(&self) -> bool {
        matches!(self.way, Way::Sends)
    }

    /// So many pages of a span come in.
    pub(super) fn bring(&mut self, span: Span, pages: u64) {
        self.brought += pages;
        let remembered = &self.stretches[..self.count.min(STRETCHES)];
        let soon = remembered
            .iter()
            .filter(|stretch| stretch.brought >= self.begin.brought)
            .filter(|stretch| self.brought - stretch.brought < self.memory_pages)
            .map(|stretch| stretch.shared_with(span))
            .sum::<u64>();
        self.soon += soon.min(pages);
    }

    /// A span was sent away.
    pub(super) fn send(&mut self, span: Span) {
        self.sent += u64::from(span.pages);
        let most = STRETCH_PAGES.max(self.memory_pages / STRETCH_ONE_IN);
        for young in self.count.saturating_sub(GROWING)..self.count {
            let young = &mut self.stretches[young % STRETCHES];
            let whole = young.span.joined(span, 0);
            if let Some(whole) = whole.filter(|whole| u64::from(whole.pages) <= most) {
                young.span = whole;
                return;
            }
        }
        self.stretches[self.count % STRETCHES] = Stretch {
            span,
            brought: self.brought,
        };
        self.count += 1;
    }

    /// Thinks it over, where it is time; `worked` is asked then how long the program has worked.
    pub(super) fn think(&mut self, now: Instant, worked: impl FnOnce() -> Nanos) {
        let is_filled = self.brought - self.begin.brought >= self.memory_pages;
        if self.memory_pages == 0 {
            return;
        }
        match self.way {
            Way::Sends if self.is_doubtful() => self.try_without(now, worked()),
            Way::Sends if is_filled => self.begin_anew(now, worked()),
            Way::Tries(trial) if is_filled && !trial.is_filled && now < trial.until => {
                self.begin_anew(now, worked());
                self.way = Way::Tries(Trial {
                    is_filled: true,
                    ..trial
                });
            }
            Way::Tries(trial) if is_filled || now >= trial.until => {
                self.settle(now, worked(), trial.before);
            }
            Way::Keeps if self.brought >= self.holds_until => self.begin_anew(now, worked()),
            Way::Sends | Way::Tries(_) | Way::Keeps => {}
        }
    }

    /// Whether much of what was sent away came back.
    fn is_doubtful(&self) -> bool {
        let least = (self.memory_pages / SOON_OF_MEMORY_ONE_IN).max(1);
        let is_soon = self.soon >= least && self.soon * SOON_ONE_IN >= self.sent;
        is_soon && self.brought >= self.holds_until
    }

    /// Nothing is sent away for a while.
    fn try_without(&mut self, now: Instant, worked: Nanos) {
        let before = self.rate(worked);
        let until = now + Nanos(now.since(self.begin.at).0 * TRIES_TIMES);
        self.begin_anew(now, worked);
        self.way = Way::Tries(Trial {
            before,
            until,
            is_filled: false,
        });
    }

    /// It was tried: which of both had fewer pages come in for the same work.
    fn settle(&mut self, now: Instant, worked: Nanos, before: Rate) {
        let rate = self.rate(worked);
        if rate.pages < self.memory_pages && rate.worked.0 < before.worked.0 / IDLE_ONE_IN {
            return self.begin_anew(now, worked);
        }
        let is_kept = !before.is_below(rate);
        self.holds = match self.was_kept == Some(is_kept) {
            true => (self.holds * 2).min(HOLDS_MOST),
            false => HOLDS_FIRST,
        };
        self.was_kept = Some(is_kept);
        self.begin_anew(now, worked);
        self.holds_until = self.brought + self.holds * self.memory_pages;
        if is_kept {
            self.way = Way::Keeps;
        }
    }

    /// Since it was thought over.
    fn rate(&self, worked: Nanos) -> Rate {
        Rate {
            pages: self.brought - self.begin.brought,
            worked: Nanos(worked.0.saturating_sub(self.begin.worked.0)),
        }
    }

    /// From now on what is behind leaves first.
    fn begin_anew(&mut self, now: Instant, worked: Nanos) {
        self.begin = Mark {
            at: now,
            brought: self.brought,
            worked,
        };
        (self.sent, self.soon) = (0, 0);
        self.way = Way::Sends;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(process: u32, first: u64, pages: u32) -> Span {
        Span {
            process,
            first,
            pages,
        }
    }

    #[test]
    fn what_comes_back_soon_is_told_from_what_does_not() {
        let mut behind = DropBehind::new();
        behind.set_memory(1_000);
        behind.send(span(1, 500, 64));
        behind.send(span(1, 564, 64));
        assert_eq!(behind.count, 1, "they lie side by side");
        behind.bring(span(2, 500, 64), 64);
        assert_eq!(behind.soon, 0, "of another process");
        behind.bring(span(1, 620, 64), 64);
        assert_eq!(behind.soon, 8, "up to the end of what was sent");
        behind.bring(span(1, 4_000, 64), 872);
        behind.bring(span(1, 500, 64), 64);
        assert_eq!(behind.soon, 8, "as many came in as memory has");
    }

    #[test]
    fn of_as_many_streams_as_there_are_as_much_is_remembered_as_memory_has() {
        let (memory, pages) = (1_000_000, 64);
        let mut behind = DropBehind::new();
        behind.set_memory(memory);
        let streams = super::super::STREAMS as u64;
        let each = memory / streams / pages;
        for turn in 0..each {
            for stream in 0..streams {
                let first = stream * memory + turn * pages;
                behind.send(span(1, first, pages as u32));
            }
        }
        for stream in 0..streams {
            behind.bring(span(1, stream * memory, pages as u32), pages);
        }
        assert_eq!(behind.soon, streams * pages);
    }

    #[test]
    fn far_more_is_remembered_than_memory_has() {
        for memory in [1_000, 1_000_000, 1_000_000_000] {
            let mut behind = DropBehind::new();
            behind.set_memory(memory);
            let chunk = (memory / 32).max(64) as u32;
            for turn in 0..64 {
                behind.send(span(1, turn * u64::from(chunk), chunk));
            }
            behind.bring(span(1, 0, chunk), u64::from(chunk));
            assert_eq!(behind.soon, u64::from(chunk), "of {memory} pages");
        }
    }
}
