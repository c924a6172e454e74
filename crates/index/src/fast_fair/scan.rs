//! Ranges, both ways. A scan is not a snapshot: each entry that is there all the while is met once,
//! in order; one that comes or goes meanwhile may be met or not.

use super::node::{END, Node};
use super::{FastFair, Unsound};
use nyx_media::Pmem;
use std::ops::{ControlFlow, RangeInclusive};

impl<P: Pmem, const SLOTS: usize> FastFair<P, SLOTS> {
    /// Calls `each` with the entries of `range` in ascending order until it breaks.
    pub fn scan(
        &self,
        range: RangeInclusive<u64>,
        mut each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), Unsound> {
        let mut entries = Vec::with_capacity(SLOTS);
        let (mut from, to) = range.into_inner();
        let mut steps = self.steps();
        let mut node = self.descend(from, 0)?;
        loop {
            let (fence, sibling) = self.collect(node, from, &mut entries);
            self.heap.pm().fetch(sibling, Self::NODE_BYTES as usize);
            for &(key, value) in &entries {
                if key > to || each(key, value).is_break() {
                    return Ok(());
                }
            }
            if fence == END || fence > to {
                return Ok(());
            }
            from = from.max(fence);
            node = steps.to(self.node(sibling)?)?;
        }
    }

    /// Calls `each` with the entries of `range` in descending order until it breaks.
    pub fn scan_back(
        &self,
        range: RangeInclusive<u64>,
        mut each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), Unsound> {
        let mut entries = Vec::with_capacity(SLOTS);
        let (from, mut to) = range.into_inner();
        while from <= to {
            let low = self.leaf_of(to, &mut entries)?;
            for &(key, value) in entries.iter().rev() {
                if key < from || key <= to && each(key, value).is_break() {
                    return Ok(());
                }
            }
            let Some(next) = low.checked_sub(1) else {
                return Ok(());
            };
            to = next;
        }
        Ok(())
    }

    /// The entries of the leaf that `key` belongs to, and a key at or below which that leaf begins:
    /// everything between that one and `key` is among the entries.
    fn leaf_of(&self, key: u64, entries: &mut Vec<(u64, u64)>) -> Result<u64, Unsound> {
        let mut low = 0;
        let mut steps = self.steps();
        let mut node = self.root_node()?;
        loop {
            let seen = node.look(self.heap.generation());
            let (fence, next) = self.right_of(node, key)?;
            if let Some(next) = next {
                if node.is_same(seen) {
                    (low, node) = (low.max(fence), steps.to(next)?);
                }
                continue;
            }
            if node.level() == 0 {
                let (fence, _) = self.collect(node, low, entries);
                // A split may have taken the key away since.
                if key < fence || fence == END {
                    return Ok(low);
                }
                continue;
            }
            let (separator, child) = node.child(key, seen.mode);
            if node.is_same(seen) {
                low = low.max(separator);
                node = steps.to(self.child(child, node.level())?)?;
            }
        }
    }

    /// The entries of a leaf from `from` on, with its fence and its sibling.
    fn collect(&self, leaf: Node<'_, P>, from: u64, into: &mut Vec<(u64, u64)>) -> (u64, u64) {
        loop {
            let seen = leaf.look(self.heap.generation());
            let fence = leaf.collect(from, seen.mode, into);
            let sibling = leaf.sibling();
            if leaf.is_same(seen) {
                leaf.make_durable(seen);
                return (fence, sibling);
            }
        }
    }
}
