//! Which pages of an arena are given away: ranges that are free, taken, or *lost*, which is where
//! the program has put a mapping of its own.
//!
//! What it never does: touch a page; give a page away twice; give one away again that was lost.
//!
//! *Shapes*: pages are numbers from 0. *Thread safety*: one owner. *Invariant*: free ranges neither
//! overlap nor touch each other; each page is in at most one range.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// See the module.
#[derive(Debug)]
pub(super) struct Extents {
    /// By their first page, how many.
    free: BTreeMap<u32, u32>,
    /// The same, by how many they are: the smallest that is large enough is taken.
    by_len: BTreeSet<(u32, u32)>,
    taken: BTreeMap<u32, u32>,
}

impl Extents {
    pub(super) fn new(pages: u32) -> Extents {
        let mut extents = Extents {
            free: BTreeMap::new(),
            by_len: BTreeSet::new(),
            taken: BTreeMap::new(),
        };
        extents.add_free(0..pages);
        extents
    }

    /// Takes so many pages, the first of which `is_aligned` moves on to where it may be.
    pub(super) fn take(&mut self, pages: u32, align: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let fits = |&&(len, first): &&(u32, u32)| {
            align(first).is_some_and(|at| at.saturating_add(pages) <= first + len)
        };
        let &(len, first) = self.by_len.range((pages, 0)..).find(fits)?;
        let at = align(first)?;
        self.remove_free(first);
        self.add_free(first..at);
        self.add_free(at + pages..first + len);
        self.taken.insert(at, pages);
        Some(at)
    }

    /// How many pages were taken at once that begin there.
    pub(super) fn taken_at(&self, first: u32) -> Option<u32> {
        self.taken.get(&first).copied()
    }

    /// The parts of a range that are taken.
    pub(super) fn taken_in(&self, range: Range<u32>) -> Vec<Range<u32>> {
        parts(&self.taken, range)
    }

    /// The parts of a range that are lost.
    pub(super) fn lost_in(&self, range: Range<u32>) -> Vec<Range<u32>> {
        let mut known = parts(&self.taken, range.clone());
        known.extend(parts(&self.free, range.clone()));
        known.sort_unstable_by_key(|part| part.start);
        let mut lost = Vec::new();
        let mut at = range.start;
        for part in known {
            if at < part.start {
                lost.push(at..part.start);
            }
            at = part.end;
        }
        if at < range.end {
            lost.push(at..range.end);
        }
        lost
    }

    /// What is taken of a range is free again.
    pub(super) fn give_back(&mut self, range: Range<u32>) {
        for part in self.taken_in(range) {
            self.cut_taken(&part);
            self.add_free(part);
        }
    }

    /// A range is no more the arena's.
    pub(super) fn lose(&mut self, range: Range<u32>) {
        for part in self.taken_in(range.clone()) {
            self.cut_taken(&part);
        }
        for part in parts(&self.free, range) {
            let (first, len) = before_or_at(&self.free, part.start).expect("it is free");
            self.remove_free(first);
            self.add_free(first..part.start);
            self.add_free(part.end..first + len);
        }
    }

    /// Has what was taken at `first` be two, the first of so many pages.
    pub(super) fn divide(&mut self, first: u32, pages: u32) {
        let len = self.taken_at(first).expect("it is taken");
        self.taken.insert(first, pages);
        self.taken.insert(first + pages, len - pages);
    }

    /// Has what was taken at `first` be so many pages, without moving; false where it cannot.
    pub(super) fn resize(&mut self, first: u32, pages: u32) -> bool {
        let Some(len) = self.taken_at(first) else {
            return false;
        };
        let end = first + len;
        if pages <= len {
            self.give_back(first + pages..end);
            return true;
        }
        let wanted = pages - len;
        match self.free.get(&end) {
            Some(&room) if room >= wanted => {
                self.remove_free(end);
                self.add_free(end + wanted..end + room);
                self.taken.insert(first, pages);
                true
            }
            _ => false,
        }
    }

    fn cut_taken(&mut self, part: &Range<u32>) {
        let (first, len) = before_or_at(&self.taken, part.start).expect("it is taken");
        self.taken.remove(&first);
        if first < part.start {
            self.taken.insert(first, part.start - first);
        }
        if part.end < first + len {
            self.taken.insert(part.end, first + len - part.end);
        }
    }

    fn remove_free(&mut self, first: u32) {
        let len = self.free.remove(&first).expect("it is free");
        self.by_len.remove(&(len, first));
    }

    /// Joins it with its neighbours.
    fn add_free(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let (mut first, mut end) = (range.start, range.end);
        if let Some((before, len)) = before_or_at(&self.free, first)
            && before + len == first
        {
            self.remove_free(before);
            first = before;
        }
        if let Some(&len) = self.free.get(&end) {
            self.remove_free(end);
            end += len;
        }
        self.free.insert(first, end - first);
        self.by_len.insert((end - first, first));
    }
}

fn before_or_at(ranges: &BTreeMap<u32, u32>, page: u32) -> Option<(u32, u32)> {
    let (&first, &len) = ranges.range(..=page).next_back()?;
    Some((first, len))
}

/// What of `range` is in `ranges`, in order.
fn parts(ranges: &BTreeMap<u32, u32>, range: Range<u32>) -> Vec<Range<u32>> {
    let begin = before_or_at(ranges, range.start).map_or(range.start, |(first, _)| first);
    let within = ranges.range(begin..range.end.max(begin));
    within
        .map(|(&first, &len)| first.max(range.start)..(first + len).min(range.end))
        .filter(|part| part.start < part.end)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u32 = 300;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Page {
        Free,
        Taken,
        Lost,
    }

    /// As the model has it: each page, and where ranges were taken.
    fn check(extents: &Extents, model: &[Page]) {
        let mut is = vec![Page::Lost; model.len()];
        for (ranges, kind) in [(&extents.free, Page::Free), (&extents.taken, Page::Taken)] {
            for (&first, &len) in ranges {
                assert!(len > 0);
                for page in first..first + len {
                    assert_eq!(
                        is[page as usize],
                        Page::Lost,
                        "page {page} is in two ranges"
                    );
                    is[page as usize] = kind;
                }
            }
        }
        assert_eq!(is, model);
        for (&first, &len) in &extents.free {
            assert!(!extents.free.contains_key(&(first + len)), "two that touch");
            assert!(extents.by_len.contains(&(len, first)));
        }
        assert_eq!(extents.free.len(), extents.by_len.len());
    }

    fn set(model: &mut [Page], range: Range<u32>, from: &[Page], to: Page) {
        for page in &mut model[range.start as usize..range.end as usize] {
            if from.contains(page) {
                *page = to;
            }
        }
    }

    fn step(rng: &mut fastrand::Rng, extents: &mut Extents, model: &mut [Page]) {
        let begin = rng.u32(0..PAGES);
        let range = begin..rng.u32(begin..=PAGES);
        match rng.u32(0..6) {
            0 | 1 => {
                let (pages, align) = (rng.u32(1..20), 1 << rng.u32(0..4));
                let at = extents.take(pages, |first| first.checked_next_multiple_of(align));
                let Some(at) = at else { return };
                assert!(at.is_multiple_of(align));
                let taken = at as usize..(at + pages) as usize;
                assert!(model[taken].iter().all(|&page| page == Page::Free));
                set(model, at..at + pages, &[Page::Free], Page::Taken);
                assert_eq!(extents.taken_at(at), Some(pages));
            }
            2 => {
                extents.give_back(range.clone());
                set(model, range, &[Page::Taken], Page::Free);
            }
            3 if rng.u32(0..20) == 0 => {
                let range = begin..(begin + 2).min(PAGES);
                extents.lose(range.clone());
                set(model, range, &[Page::Taken, Page::Free], Page::Lost);
            }
            4 => {
                let Some((&first, &len)) = extents.taken.range(begin..).next() else {
                    return;
                };
                let pages = rng.u32(1..len + 10);
                let end = first + pages;
                let room = model.get((first + len) as usize..end.max(first + len) as usize);
                let fits = room.is_some_and(|room| room.iter().all(|&page| page == Page::Free));
                assert_eq!(extents.resize(first, pages), fits, "{first} {len} {pages}");
                if fits {
                    set(model, first..first + len, &[Page::Taken], Page::Free);
                    set(model, first..end, &[Page::Free], Page::Taken);
                }
            }
            _ => {
                for (kind, parts) in [
                    (Page::Taken, extents.taken_in(range.clone())),
                    (Page::Lost, extents.lost_in(range.clone())),
                ] {
                    let pages: Vec<u32> = parts.into_iter().flatten().collect();
                    let of_kind = range.clone().filter(|&page| model[page as usize] == kind);
                    assert!(pages.into_iter().eq(of_kind), "{kind:?}");
                }
            }
        }
    }

    #[test]
    fn ranges_are_as_a_model_of_pages_has_them() {
        for seed in 0..50 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut extents = Extents::new(PAGES);
            let mut model = vec![Page::Free; PAGES as usize];
            for _ in 0..500 {
                step(&mut rng, &mut extents, &mut model);
                check(&extents, &model);
            }
        }
    }

    #[test]
    fn the_smallest_that_is_large_enough_is_taken() {
        let mut extents = Extents::new(20);
        let any = |first| Some(first);
        let all: Vec<u32> = (0..4).map(|_| extents.take(5, any).unwrap()).collect();
        extents.give_back(all[0]..all[0] + 5);
        extents.give_back(all[2]..all[2] + 3);
        assert_eq!(extents.take(3, any), Some(all[2]));
        assert_eq!(extents.take(6, any), None);
    }
}
