//! Taking nodes that hold nothing out of the tree: leaves without keys, and inner nodes that have
//! nothing left but a leftmost child without keys.
//!
//! Who takes a leaf's last key away unlinks the leaf. With its left sibling, itself and its parent
//! locked, in this order, it makes durable, one after the other:
//!
//! 1. that the parent names it no more: the keys of its range lead to the left sibling, and from
//!    there to the right to it. A split that did not get to the level above leaves the same.
//! 2. that what splits left in the empty slots of the left sibling is cleared, since it would come
//!    to life in 3.
//! 3. the left sibling's fence, which becomes that of the node, and behind it, in the same line,
//!    the node that follows as its sibling. In between the node is an empty stretch of the chain,
//!    as a split leaves one between its two stores, which are the same in the other order.
//!
//! Then the node says that it is gone, and its block is retired. So every prefix of these stores is
//! a state that was there without them, and there is nothing to recover: after 1, a writer that
//! comes across the node names it again, and it stays until it is emptied again or its right
//! neighbour is; after the first half of 3, the next that splits or unlinks at the left sibling
//! leaves the stretch out; after 3, a sweep does not find the node, and frees it.
//!
//! What others see. A reader or writer that goes to the node while the locks are held finds it
//! empty, or goes on to the left sibling. Whoever is at it, or waits for its lock, when it is gone,
//! is within an era, so that it is still a node, and leads to the left sibling. That was where its
//! keys belong when the node was unlinked; so a reader that found no key in it while it was there
//! is right as well. Backward scans come down from the root, to the left sibling. Who splits, and
//! gives the level above an entry for the right half, does so under the lock of the parent, and not
//! where that half is gone meanwhile; a node is gone before the parent's lock is given back.
//!
//! The leftmost child of a parent has no entry that could be taken away, and stays as long as the
//! parent has others. When there are none the parent is unlinked first, by the same steps, one
//! level higher; then the child is one that no parent names. A leaf whose left sibling is empty
//! when it is unlinked has that one tried next: one that stayed for its parent's sake, or that a
//! kill between the removal of a key and the end of all this left. The leftmost node of a level
//! stays for ever. So without keys there is a node per level; and of each parent with an entry at
//! most one child at each level below it is empty.

use super::FastFair;
use super::node::{Mode, Node};
use crate::ordered::Unsound;
use nyx_base::WorkerId;
use nyx_media::Pmem;

/// What became of a node.
enum Tried {
    /// It stays.
    Kept,
    /// It is gone. The greatest key of its left sibling's old range, where that holds nothing.
    Gone(Option<u64>),
    /// Somebody else was there, or something else had to be done first.
    Again,
    /// Its parent has nothing but this node, whose keys begin at this one.
    Alone(u64),
}

impl<P: Pmem, const SLOTS: usize> FastFair<P, SLOTS> {
    /// Unlinks the leaf that `key` belongs to, unless it has keys or has to stay; then those to its
    /// left that hold nothing.
    pub(super) fn prune(&self, worker: WorkerId, mut key: u64) -> Result<(), Unsound> {
        let mut steps = self.steps();
        while let Some(left) = self.unlink(worker, key, 0)? {
            match left {
                Some(left) => key = steps.to(left)?,
                None => break,
            }
        }
        Ok(())
    }

    /// The same of one node of any level; none where it stays.
    fn unlink(
        &self,
        worker: WorkerId,
        key: u64,
        level: u8,
    ) -> Result<Option<Option<u64>>, Unsound> {
        let mut steps = self.steps();
        loop {
            match steps.to(self.try_unlink(worker, key, level)?)? {
                Tried::Kept => return Ok(None),
                Tried::Gone(left) => return Ok(Some(left)),
                Tried::Again => {}
                Tried::Alone(low) => {
                    if self.unlink(worker, low, level + 1)?.is_none() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn try_unlink(&self, worker: WorkerId, key: u64, level: u8) -> Result<Tried, Unsound> {
        let (root, mut low) = (self.root_node()?, 0);
        if root.level() <= level {
            return Ok(Tried::Kept);
        }
        self.reach(root, key, level, &mut low)?;
        let Some(below) = low.checked_sub(1) else {
            return Ok(Tried::Kept);
        };
        let generation = self.heap.generation();
        let (left, spot) = self.lock(self.descend(below, level)?, below, Mode::Right)?;
        if left.fence_key() != low {
            return Ok(Tried::Again);
        }
        if let (beyond, Some(empty)) = self.beyond_empty(*left)? {
            left.lead_to(beyond);
            drop(left);
            self.heap.retire(worker, empty);
            return Ok(Tried::Again);
        }
        let node = self.neighbour(*left)?.lock(generation, Mode::Right);
        if !node.spot(low).is_ok_and(|spot| spot.used == 0) {
            return Ok(Tried::Kept);
        }
        let parent = self.descend(low, level + 1)?;
        if parent.level() != level + 1 {
            return Err(Unsound::Level { at: parent.at });
        }
        let (parent, entry) = self.lock(parent, low, Mode::Left)?;
        if entry.found {
            if parent.value(entry.slot) != node.at {
                return Err(Unsound::NoNode { at: node.at });
            }
            parent.remove(entry.slot);
        }
        if parent.leftmost() == node.at {
            return Ok(match entry.used {
                0 => Tried::Alone(low),
                _ => Tried::Kept,
            });
        }
        let at = node.at;
        left.absorb(&node, spot.used, generation);
        drop((node, parent));
        self.heap.retire(worker, at);
        Ok(Tried::Gone((spot.used == 0).then_some(below)))
    }

    /// The right sibling of a node that is locked and has one. Only a damaged one is refused.
    pub(super) fn neighbour<'t>(&'t self, left: Node<'t, P>) -> Result<Node<'t, P>, Unsound> {
        let (at, low) = (left.sibling(), left.fence_key());
        let node = self.node(at)?;
        self.heap.check(at, Self::CLASS)?;
        if at == left.at || node.level() != left.level() {
            return Err(Unsound::Level { at });
        }
        match node.fence_key() > low {
            true => Ok(node),
            false => Err(Unsound::Fence { at, fence: low }),
        }
    }
}
