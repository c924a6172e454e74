//! Which way a stream goes: page by page, or in longer steps.
//!
//! *Places* are numbers that grow in the direction of a stream: pages, or the elements of a walk by
//! steps of some bytes, as where a matrix is walked through across its columns. An element is as
//! many pages as faults were seen in behind its first byte.
//!
//! A walk by longer steps is found by bytes, not by pages: three faults that are equally far apart
//! to the byte are seldom so by chance, and where they are known that well the hundredth step is
//! the right page too.
//!
//! *Shapes*: addresses and steps in bytes. *Thread safety*: plain values. Nothing is allocated.

use super::Span;

/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = 4 << 10;
/// A step is at least so long: of a scan the kernel reads eight pages at once, so that the next
/// fault is as far away, or a page more where it is not at a page's first byte.
const STEP_BYTES_LEAST: u64 = 10 * PAGE_BYTES;
const STEP_BYTES_MOST: u64 = 1 << 20;
/// Two faults are by a known step where they are so many apart at most: columns in turns.
const TIMES_MOST: i64 = 4;
/// An element is no longer, in bytes; nor than half of the step.
const ELEMENT_BYTES_MOST: u64 = 4 * PAGE_BYTES;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) enum Course {
    /// All pages, up or down.
    Pages {
        /// Whether it goes down.
        is_down: bool,
    },
    /// The first byte of an element is so far from that of the one before it.
    Steps {
        /// The first byte of element 0.
        origin: i64,
        /// Bytes; below 0 where it goes down.
        step: i64,
        /// Bytes of an element, as far as they are known.
        len: u64,
    },
}

/// The step by which a walk came to a byte from those where it was lately: from one of them by a
/// known step, or from two by another one, with no other between them.
pub(super) fn step_to(
    at: u64,
    lately: impl Iterator<Item = u64> + Clone,
    known: impl Iterator<Item = i64> + Clone,
) -> Option<i64> {
    lately.clone().find_map(|from| {
        let apart = at.wrapping_sub(from) as i64;
        let first = from.wrapping_sub(apart as u64);
        let again = known
            .clone()
            .find_map(|known| step_between(known, from, at));
        let (step, first) = match again {
            Some(step) => (step, from),
            None => (apart, lately.clone().find(|&at| at == first)?),
        };
        let is_of_them = |other: u64| {
            let mut behind = [first, from, at]
                .map(|of| other.wrapping_sub(of))
                .into_iter();
            behind.any(|behind| behind < ELEMENT_BYTES_MOST)
        };
        let way = first.min(at)..first.max(at);
        let mut between = lately.clone().filter(|at| way.contains(at));
        Course::by(step, at)?;
        between.all(is_of_them).then_some(step)
    })
}

/// The step from one byte to another, where that is a known one or up to four of them. Where both
/// begin a page, it is not known where in it the walk is.
fn step_between(known: i64, from: u64, to: u64) -> Option<i64> {
    let apart = (to as i64).checked_sub(from as i64)?;
    let (long, step) = (apart.checked_abs()?, known.abs());
    let times = (long + step / 2) / step;
    let is_whole = |bytes: u64| bytes.is_multiple_of(PAGE_BYTES);
    let most = match is_whole(from) && is_whole(to) && !is_whole(step as u64) {
        true => PAGE_BYTES as i64 - 1,
        false => 0,
    };
    let is_by = (1..=TIMES_MOST).contains(&times) && (long - times * step).abs() <= most;
    is_by.then_some(step * apart.signum())
}

/// The windows of a course, in places.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    /// At first.
    pub(super) first: u32,
    /// A smaller one is none.
    pub(super) least: u32,
    /// At most.
    pub(super) most: u32,
    /// Places of which is asked at once.
    pub(super) at_once: u32,
}

impl Course {
    /// A walk by that step, of which this is the first byte of an element.
    pub(super) fn by(step: i64, origin: u64) -> Option<Course> {
        let (origin, len) = (i64::try_from(origin).ok()?, 1);
        let is_step = (STEP_BYTES_LEAST..=STEP_BYTES_MOST).contains(&step.unsigned_abs());
        is_step.then_some(Course::Steps { origin, step, len })
    }

    /// Its step, where that is longer than a page.
    pub(super) fn step(&self) -> Option<i64> {
        match *self {
            Course::Pages { .. } => None,
            Course::Steps { step, .. } => Some(step),
        }
    }

    /// Its windows.
    pub(super) fn windows(&self) -> Windows {
        match self {
            Course::Pages { .. } => Windows {
                first: 32,
                least: 8,
                most: 1024,
                at_once: super::SPAN_PAGES_MAX,
            },
            // A walk across a tile ends soon, and what was asked for behind its end is in vain.
            Course::Steps { .. } => Windows {
                first: 16,
                least: 4,
                most: 32,
                at_once: 1,
            },
        }
    }

    /// Pages of a place.
    pub(super) fn pages_each(&self) -> u32 {
        match self {
            Course::Pages { .. } => 1,
            Course::Steps { len, .. } => len.div_ceil(PAGE_BYTES) as u32,
        }
    }

    /// The place of a byte, where it is at one. Addresses are below 2^63.
    pub(super) fn place(&self, at: u64) -> Option<i64> {
        match *self {
            Course::Pages { is_down } => {
                let page = (at / PAGE_BYTES) as i64;
                Some(if is_down { -page } else { page })
            }
            Course::Steps { origin, step, len } => {
                let off = i64::try_from(at).ok()?.checked_sub(origin)?;
                let before = off.rem_euclid(step.abs());
                // An element goes on page by page.
                let most = ELEMENT_BYTES_MOST.min(step.unsigned_abs() / 2);
                let most = most.min(len + PAGE_BYTES) as i64;
                (before < most).then(|| (off - before) / step)
            }
        }
    }

    /// A fault was at this byte of one of its places.
    pub(super) fn was_at(&mut self, at: u64) {
        if let Course::Steps { origin, step, len } = self {
            let off = (at as i64 - *origin).rem_euclid(step.abs());
            *len = (*len).max(off.unsigned_abs() + 1);
        }
    }

    /// From a place on so many, of a process; none where there are none. Of longer steps it is one.
    pub(super) fn span(&self, process: u32, at: i64, places: u32) -> Option<Span> {
        let (first, pages) = match *self {
            Course::Pages { is_down: true } => (-(at + i64::from(places) - 1), places),
            Course::Pages { is_down: false } => (at, places),
            Course::Steps { origin, step, len } => {
                let first = origin.checked_add(at.checked_mul(step)?)?;
                let last = first.checked_add_unsigned(len - 1)?;
                let page = |byte: i64| byte.div_euclid(PAGE_BYTES as i64);
                (page(first), (page(last) - page(first) + 1) as u32)
            }
        };
        let first = u64::try_from(first).ok()?;
        Some(Span {
            process,
            first,
            pages,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_endless_steps_are_none() {
        let is_step = |step: i64| Course::by(step, 1 << 40).is_some();
        for (step, is_one) in [
            (60_000, true),
            (-60_000, true),
            (-41_000, true),
            (33_000, false),
            (0, false),
            (i64::MIN, false),
            (STEP_BYTES_MOST as i64 + 8, false),
            // A scan of which each eighth page is a fault.
            (32 << 10, false),
            (64 << 10, true),
        ] {
            assert_eq!(is_step(step), is_one, "{step}");
        }
    }

    #[test]
    fn a_step_is_found_by_three_bytes_with_nothing_between_them() {
        let base = 1 << 40;
        let to = |at: u64, lately: &[u64]| {
            let lately = lately.iter().map(|at| base + at);
            let known = step_to(base + at, lately.clone(), [-60_000].into_iter());
            let new = step_to(base + at, lately, [].into_iter());
            assert!(new.is_none() || new == known);
            new
        };
        assert_eq!(to(120_000, &[60_000, 0]), Some(60_000));
        assert_eq!(to(0, &[60_000, 120_000]), Some(-60_000));
        assert_eq!(to(120_000, &[60_001, 0]), None);
        assert_eq!(to(120_000, &[60_000, 8]), None);
        // Pages of its elements, and others.
        let parts = [64_000, 60_000, 3_000, 900_000, 0];
        assert_eq!(to(120_000, &parts), Some(60_000));
        assert_eq!(to(120_000, &[60_000, 30_000, 0]), None);
        // A scan of records, of which each eighth page is a fault.
        assert_eq!(to(131_200, &[98_400, 65_600, 32_800, 0]), None);
        assert_eq!(to(7, &[7, 7, 7]), None);
        let ends = step_to(u64::MAX, [u64::MAX / 2, 0].into_iter(), [].into_iter());
        assert_eq!(ends, None);
        // By a step that is known one of them is enough.
        let known = |lately: &[u64]| step_to(base, lately.iter().copied(), [60_000].into_iter());
        assert_eq!(known(&[base - 120_000]), Some(60_000));
        assert_eq!(known(&[base + 60_000]), Some(-60_000));
        assert_eq!(known(&[base - 120_000, base - 20_000]), None);
    }

    #[test]
    fn a_known_step_is_found_again_between_two_faults() {
        let at = (1 << 40) + 8;
        let between = |apart: i64| step_between(60_000, at, at.wrapping_add_signed(apart));
        assert_eq!(between(60_000), Some(60_000));
        assert_eq!(between(-180_000), Some(-60_000));
        for apart in [0, 59_992, 180_224, 300_000, i64::MAX, i64::MIN] {
            assert_eq!(between(apart), None, "{apart}");
        }
        let page = 1 << 40;
        assert_eq!(step_between(-60_000, page, page + 180_224), Some(60_000));
        assert_eq!(step_between(-60_000, page, page + 20_480), None);
    }

    #[test]
    fn an_element_has_the_pages_in_which_faults_were_seen() {
        for step in [60_000, -60_000] {
            let origin = (1 << 40) + 3_000;
            let mut course = Course::by(step, origin).unwrap();
            let of = |course: &Course, at| course.span(7, at, 1).unwrap();
            let first = |at: i64| (origin as i64 + at * step) as u64 / PAGE_BYTES;
            let span = |at, pages| Span {
                process: 7,
                first: first(at),
                pages,
            };
            assert_eq!(of(&course, 100), span(100, 1));
            assert_eq!(course.place(origin), Some(0));
            let tenth = (origin as i64 + 10 * step) as u64;
            assert_eq!(course.place(tenth), Some(10));
            // The element goes on into the next page.
            assert_eq!(course.place(tenth + 2_000), Some(10));
            course.was_at(tenth + 2_000);
            assert_eq!(of(&course, 0), span(0, 2));
            assert_eq!(course.place(tenth + 2_001 + PAGE_BYTES), None);
            assert_eq!(course.place(tenth - 1), None);
        }
    }

    #[test]
    fn the_ends_of_memory_are_no_harm() {
        let mut course = Course::by(-60_000, 1_000).unwrap();
        assert_eq!(course.span(1, 1, 1), None, "below 0");
        assert_eq!(course.place(u64::MAX), None);
        course.was_at(1_000);
        let top = i64::MAX as u64;
        let course = Course::by(60_000, top).unwrap();
        assert_eq!(course.span(1, 1, 1), None);
        assert_eq!(course.span(1, i64::MAX, 1), None);
        assert_eq!(
            Course::by(60_000, u64::MAX).map(|course| course.step()),
            None
        );
        let down = Course::Pages { is_down: true };
        assert_eq!(down.span(1, 5, 1), None);
    }
}
