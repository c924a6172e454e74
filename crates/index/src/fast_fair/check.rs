//! What must hold of a tree, and where its nodes are: for sweeps after a restart, for inspection,
//! for tests.

use super::FastFair;
use super::node::{GONE, Node};
use crate::heap::Sweep;
use crate::ordered::{Census, END, Unsound};
use nyx_media::Pmem;
use std::collections::BTreeSet;

impl<P: Pmem, const SLOTS: usize> FastFair<P, SLOTS> {
    pub(super) fn mark_all(&self, sweep: &mut Sweep<'_, P>) -> Result<u64, Unsound> {
        let mut nodes = 0;
        let mut steps = self.steps();
        let mut first = self.root_node()?;
        loop {
            let (mut node, mut is_marked) = (first, false);
            loop {
                if !is_marked {
                    sweep.mark(node.at, Self::CLASS)?;
                    nodes += 1;
                }
                // What a writer that is gone left out may be led to by what is durable: a look
                // makes it so.
                let (fence, next) = node.settled(self.heap.generation());
                if next == 0 {
                    break;
                }
                // From a node that is gone it goes back to where it was.
                is_marked = fence == GONE;
                node = steps.to(self.node(next)?)?;
            }
            if first.level() == 0 {
                return Ok(nodes);
            }
            first = self.child(first.leftmost(), first.level())?;
        }
    }

    pub(super) fn count_all(&self) -> Result<Census, Unsound> {
        let mut census = Census::default();
        let mut first = self.root_node()?;
        census.levels = u32::from(first.level()) + 1;
        // The level above names these; it names no right sibling of the root.
        let mut named = BTreeSet::from([first.at]);
        loop {
            let mut children = BTreeSet::from([first.leftmost()]);
            self.check_level(first, |node, is_empty| {
                census.nodes += 1;
                if is_empty {
                    census.empty += 1;
                    return;
                }
                census.leftovers += node.leftovers();
                census.unlinked += u64::from(!named.remove(&node.at));
                let fence = node.fence_key();
                let held = (0..SLOTS).filter_map(|slot| node.entry(slot));
                let held = held.filter(|&(key, _)| key < fence);
                if node.level() == 0 {
                    census.entries += held.count() as u64;
                } else {
                    children.insert(node.leftmost());
                    children.extend(held.map(|(_, child)| child));
                }
            })?;
            if let Some(&at) = named.first() {
                return Err(Unsound::NoNode { at });
            }
            if first.level() == 0 {
                return Ok(census);
            }
            for &child in &children {
                self.child(child, first.level())?;
            }
            named = children;
            first = self.node(first.leftmost())?;
        }
    }

    /// Calls `see` with each node of a level, and whether it is an empty stretch of the chain.
    fn check_level(
        &self,
        first: Node<'_, P>,
        mut see: impl FnMut(Node<'_, P>, bool),
    ) -> Result<(), Unsound> {
        let (mut node, mut low) = (first, 0);
        let mut steps = self.steps();
        loop {
            if node.level() != first.level() {
                return Err(Unsound::Level { at: node.at });
            }
            self.check_node(node, low)?;
            see(node, node.fence_key() == low);
            low = node.fence_key();
            if node.sibling() == 0 {
                return Ok(());
            }
            node = steps.to(self.node(node.sibling())?)?;
        }
    }

    fn check_node(&self, node: Node<'_, P>, low: u64) -> Result<(), Unsound> {
        let (at, fence) = (node.at, node.fence_key());
        if fence < low || node.is_gone() || (fence < END && node.sibling() == 0) {
            return Err(Unsound::Fence { at, fence });
        }
        let (mut last, mut ended) = (None, false);
        for slot in 0..SLOTS {
            let key = node.key(slot);
            ended |= key >= fence;
            // In an empty stretch of the chain everything is the left neighbour's still.
            let is_below = key < low && fence > low;
            let is_bad = match ended {
                true => key < fence,
                false => is_below || last.is_some_and(|last| key < last),
            };
            if is_bad {
                return Err(Unsound::Key { at, slot, key });
            }
            last = Some(key);
        }
        Ok(())
    }
}

impl<P: Pmem> Node<'_, P> {
    /// Slots whose entry is in the next as well.
    fn leftovers(&self) -> u64 {
        let fence = self.fence_key();
        let is_leftover =
            |&slot: &usize| self.key(slot) < fence && self.key(slot) == self.key(slot + 1);
        (0..self.slots()).filter(is_leftover).count() as u64
    }
}
