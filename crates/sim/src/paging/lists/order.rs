//! Pages in an order: new ones at the head, the oldest at the tail, and any may leave.
//!
//! What it never does: know what a page is. *Thread safety*: one owner.

use std::collections::BTreeMap;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    /// By place; the tail has the least.
    pages: BTreeMap<i64, u32>,
}

impl Order {
    pub(super) fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    /// The oldest.
    pub(super) fn tail(&self) -> Option<u32> {
        self.pages.first_key_value().map(|(_, &page)| page)
    }

    /// Puts a page in front of all; its place.
    pub(super) fn push_head(&mut self, page: u32) -> i64 {
        let place = self.pages.last_key_value().map_or(0, |(last, _)| last + 1);
        self.pages.insert(place, page);
        place
    }

    /// Puts a page behind all; its place.
    pub(super) fn push_tail(&mut self, page: u32) -> i64 {
        let first = self.pages.first_key_value();
        let place = first.map_or(0, |(first, _)| first - 1);
        self.pages.insert(place, page);
        place
    }

    /// The page at this place leaves.
    pub(super) fn remove(&mut self, place: i64) {
        let page = self.pages.remove(&place);
        assert!(page.is_some(), "a page stands at place {place}");
    }

    /// From the tail to the head.
    #[cfg(test)]
    pub(super) fn pages(&self) -> Vec<u32> {
        self.pages.values().copied().collect()
    }
}
