//! Ranges, both ways, and the greatest key up to another.

use super::FastFair;
use super::node::Node;
use crate::Ordered;
use crate::ordered::{END, ScanError, Unsound};
use nyx_media::Pmem;
use std::ops::{ControlFlow, RangeInclusive};

impl<P: Pmem, const SLOTS: usize> Ordered for FastFair<P, SLOTS> {
    fn scan(
        &self,
        range: RangeInclusive<u64>,
        mut each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        let mut entries = Vec::with_capacity(SLOTS);
        let (mut from, to) = range.into_inner();
        let mut steps = self.steps();
        let mut node = self.descend(from, 0)?;
        loop {
            // The next one comes near while this one is read.
            self.heap
                .pm()
                .fetch(node.sibling(), Self::NODE_BYTES as usize);
            let (fence, sibling) = self.collect(node, from, &mut entries);
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

    fn scan_back(
        &self,
        range: RangeInclusive<u64>,
        mut each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
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
}

impl<P: Pmem, const SLOTS: usize> FastFair<P, SLOTS> {
    /// The entries of the leaf that `key` belongs to, and a key at or below which that leaf begins:
    /// everything between that one and `key` is among the entries.
    fn leaf_of(&self, key: u64, entries: &mut Vec<(u64, u64)>) -> Result<u64, Unsound> {
        let (mut node, mut low) = (self.root_node()?, 0);
        loop {
            node = self.reach(node, key, 0, &mut low)?;
            let (fence, _) = self.collect(node, low, entries);
            // A split may have taken the key away since.
            if key < fence || fence == END {
                return Ok(low);
            }
        }
    }

    /// The node of `level` that `key` belongs to, from `node` on. `low` grows to a key at or below
    /// which it begins; where nobody writes, to the one at which it does.
    pub(super) fn reach<'t>(
        &'t self,
        mut node: Node<'t, P>,
        key: u64,
        level: u8,
        low: &mut u64,
    ) -> Result<Node<'t, P>, Unsound> {
        let mut steps = self.steps();
        loop {
            let seen = node.look(self.heap.generation());
            let (fence, right) = node.right_of(key);
            if let Some(at) = right {
                if node.is_same(seen) {
                    (*low, node) = ((*low).max(fence), steps.to(self.sibling(node, at)?)?);
                }
                continue;
            }
            if node.level() <= level {
                return Ok(node);
            }
            let (separator, child) = node.child(key, seen.mode);
            if node.is_same(seen) {
                *low = (*low).max(separator);
                node = steps.to(self.child(child, node.level())?)?;
            }
        }
    }

    /// The entry with the greatest key that is not above `key`.
    pub fn floor(&self, key: u64) -> Result<Option<(u64, u64)>, Unsound> {
        let mut steps = self.steps();
        let mut node = self.descend(key, 0)?;
        let found = loop {
            let seen = node.look(self.heap.generation());
            let (_, right) = node.right_of(key);
            let found = node.floor(key, seen.mode);
            if !node.is_same(seen) {
                continue;
            }
            match right {
                Some(at) => node = steps.to(self.sibling(node, at)?)?,
                None => {
                    node.make_durable(seen);
                    break found;
                }
            }
        };
        if found.is_some() {
            return Ok(found);
        }
        // Its leaf has none: the next to the left.
        let (mut to, mut entries) = (key, Vec::new());
        loop {
            let low = self.leaf_of(to, &mut entries)?;
            let last = entries.iter().rev().find(|entry| entry.0 <= to);
            if let Some(&last) = last {
                return Ok(Some(last));
            }
            match low.checked_sub(1) {
                Some(next) => to = next,
                None => return Ok(None),
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
