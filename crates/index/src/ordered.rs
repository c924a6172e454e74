//! What indexes of 8-byte keys can do, whatever they are made of and wherever they lie.
//!
//! *Thread safety*: all methods take `&self`. Where an index frees memory, a worker is within an
//! era of it while it calls them ([`Persistent::heap`], [`Eras`](crate::Eras)).

use crate::heap::{Damage, Full, Heap, Sweep};
use nyx_base::WorkerId;
use nyx_media::Pmem;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

/// Above every key.
pub(crate) const END: u64 = u64::MAX;
/// The greatest key that there can be.
pub const KEY_MAX: u64 = END - 1;
/// Keys that are looked up together: each waits for a line or two of memory, and a core waits for
/// some ten at a time.
pub(crate) const TOGETHER: usize = 8;

/// The same places of both, [`TOGETHER`] at a time.
pub(crate) fn together<'a>(
    keys: &'a [u64],
    values: &'a mut [Option<u64>],
) -> impl Iterator<Item = (&'a [u64], &'a mut [Option<u64>])> {
    keys.chunks(TOGETHER).zip(values.chunks_mut(TOGETHER))
}

/// Values by 8-byte keys.
///
/// Of one key all calls are as if they came one after the other. Of two keys that is not promised:
/// two workers who each put one and then look for the other's may both find none.
pub trait Index: Send + Sync {
    /// The value of `key`. Nobody is told of what a crash could undo.
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound>;

    /// The share of look-ups that somebody beside it has to know for asking to pay: what fetching
    /// and looking at a few cache lines of DRAM takes, of what is left of a look-up after that.
    fn beside_pays_from(&self) -> f64 {
        0.15
    }

    /// [`Index::get`] where somebody else may know as well: `known` is asked once at most, before
    /// anything is read that decides what [`Index::get`] tells, and while memory that is needed
    /// for that is on its way. What it knows is told. Before that, and while other memory is on its
    /// way if there is a wait for that, `fetch` has what `known` is going to read brought near.
    fn get_beside(
        &self,
        key: u64,
        fetch: impl FnOnce(),
        known: impl FnOnce() -> Option<u64>,
    ) -> Result<Option<u64>, Unsound> {
        fetch();
        match known() {
            Some(value) => Ok(Some(value)),
            None => self.get(key),
        }
    }

    /// The value of each of `keys`, in its place of `values`, as [`Index::get`] tells it: of as
    /// many as the shorter has. Faster where waits for memory overlap.
    fn get_many(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<(), Unsound> {
        for (&key, value) in keys.iter().zip(values) {
            *value = self.get(key)?;
        }
        Ok(())
    }

    /// Makes `value` that of `key`; the one that it had before, if any. Durable on return, where
    /// the index is.
    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError>;

    /// Takes `key` away; the value that it had. Durable on return, where the index is.
    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError>;
}

/// Values by 8-byte keys, in the order of keys.
///
/// A scan is not a snapshot: each entry that is there all the while is met once, in order; one that
/// comes or goes meanwhile may be met or not.
pub trait Ordered: Index {
    /// Calls `each` with the entries of `range` in ascending order until it breaks.
    fn scan(
        &self,
        range: RangeInclusive<u64>,
        each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError>;

    /// Calls `each` with the entries of `range` in descending order until it breaks.
    fn scan_back(
        &self,
        range: RangeInclusive<u64>,
        each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError>;
}

/// Values by 8-byte keys, in an order of positions that says nothing to anybody else.
pub trait Unordered: Index {
    /// Puts the next entries at or behind position `from` into `into`, instead of what is in it;
    /// the position behind them, if there is any. From 0 on until there is none, each entry that is
    /// there all the while is met, and no key twice.
    fn walk(&self, from: u64, into: &mut Vec<(u64, u64)>) -> Result<Option<u64>, Unsound>;
}

/// An index that lies in a heap.
pub trait Persistent<P: Pmem>: Index + Sized {
    /// The index at the root `root` of a heap, which is made where the root is zero.
    fn open(heap: Arc<Heap<P>>, root: usize, worker: WorkerId) -> Result<Self, PutError>;

    /// The heap that it lies in.
    fn heap(&self) -> &Arc<Heap<P>>;

    /// Bytes of DRAM that it uses beside the heap.
    fn dram_bytes(&self) -> u64 {
        0
    }

    /// Names every block to a sweep, and tells how many. May run while the index is used.
    fn mark(&self, sweep: &mut Sweep<'_, P>) -> Result<u64, Unsound>;

    /// Looks at everything. Nobody writes meanwhile.
    fn check(&self) -> Result<Census, Unsound>;
}

/// Why a key could not be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PutError {
    /// The heap has no room for another node.
    #[error(transparent)]
    Full(#[from] Full),
    /// A key that no index can hold.
    #[error("key {key} is above the greatest that there can be, {KEY_MAX}")]
    Key {
        /// Which.
        key: u64,
    },
    /// A key of bytes that is too long, or has none.
    #[error(
        "a key of {bytes} bytes; it has 1 to {}",
        crate::byte_keys::KEY_BYTES_MAX
    )]
    Length {
        /// How many it has.
        bytes: usize,
    },
    /// Byte keys have had as many layers as there are numbers for them.
    #[error("no number is left for another layer of byte keys")]
    Layers,
    /// The index leads nowhere: its image is damaged.
    #[error(transparent)]
    Unsound(#[from] Unsound),
}

impl PutError {
    /// An error for a key that no index can hold.
    pub(crate) fn check(key: u64) -> Result<(), PutError> {
        match key {
            END => Err(PutError::Key { key }),
            _ => Ok(()),
        }
    }
}

/// Why a range cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The index leads nowhere: its image is damaged.
    #[error(transparent)]
    Unsound(#[from] Unsound),
    /// What answers ranges is not built yet, or has no room for what it should have.
    #[error("what answers ranges is not built yet, or has no room")]
    NotReady,
}

/// Why an index cannot be right. The image it lies in is damaged: nothing that Nyx does, and no
/// crash, leaves one like that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsound {
    /// An address where no node can be.
    #[error("address {at} cannot be that of a node")]
    NoNode {
        /// Which.
        at: u64,
    },
    /// A child that is not one level below its parent.
    #[error("the node at {at} is on another level than its place in the tree")]
    Level {
        /// Which.
        at: u64,
    },
    /// Going right or down does not end.
    #[error("the index leads in circles")]
    Endless,
    /// Keys out of order, or at or above the fence of the node or below that of its left sibling.
    #[error("slot {slot} of the node at {at} has key {key}, which does not belong there")]
    Key {
        /// Which node.
        at: u64,
        /// Which slot.
        slot: usize,
        /// Its key.
        key: u64,
    },
    /// A fence below that of the left sibling, or one without a right sibling.
    #[error("the node at {at} ends at {fence}, which is before it begins or leads nowhere")]
    Fence {
        /// Which node.
        at: u64,
        /// Its fence.
        fence: u64,
    },
    /// A slot of byte keys with a value that cannot be there.
    #[error("slot {slot:#x} of byte keys leads to a key that is not its own")]
    Slot {
        /// Which.
        slot: u64,
    },
    /// An item of byte keys that its own key does not lead to.
    #[error("the key of item {item} does not lead to it")]
    Item {
        /// Which.
        item: u64,
    },
    /// A node that the heap knows otherwise.
    #[error(transparent)]
    Block(#[from] Damage),
}

/// What a full check counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Entries.
    pub entries: u64,
    /// Nodes of all levels.
    pub nodes: u64,
    /// Levels on the medium.
    pub levels: u32,
    /// Nodes without keys of their own, which a crash left in the chain.
    pub empty: u64,
    /// Nodes without an entry in the level above: reached by going right.
    pub unlinked: u64,
    /// Entries that a crash left in two slots.
    pub leftovers: u64,
}

/// What is left of the way to anywhere. Who goes further than there are nodes goes in circles,
/// which only a damaged index has.
pub(crate) struct Steps(u64);

impl Steps {
    /// As many as a medium has room for nodes, and some for the levels above.
    pub(crate) fn among<P: Pmem>(heap: &Heap<P>, node_bytes: u64) -> Steps {
        /// More levels than any index that fits into an address space has.
        const LEVELS: u64 = 64;
        Steps(heap.pm().size_bytes() / node_bytes + LEVELS)
    }

    #[inline]
    pub(crate) fn to<T>(&mut self, next: T) -> Result<T, Unsound> {
        self.0 = self.0.checked_sub(1).ok_or(Unsound::Endless)?;
        Ok(next)
    }
}
