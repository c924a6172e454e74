//! Finds: from the hash of a key to the place of its item.
//!
//! What it never does: read the bytes of a key or a value. Tags tell most keys apart; the rest is
//! asked of a callback that knows where items lie. It also allocates nothing after it was made
//! (growth touches memory that was reserved before) and frees nothing: what a reader may still look
//! at is its caller's business.
//!
//! * [`ordered`]: what indexes of 8-byte keys can do, the traits of those that follow.
//! * [`fast_fair`]: a B+tree on persistent memory that is whole at any moment.
//! * [`fp_tree`]: a tree whose leaves are on persistent memory and the rest in DRAM.
//! * [`skip_list`]: a list on persistent memory, with levels above it in DRAM.
//! * [`pm_hash`]: a hash table on persistent memory.
//! * [`acs`]: a cache in DRAM before any of them.
//! * [`hybrid`]: a hash on persistent memory and a tree in DRAM, as one index.
//! * [`hybrid_plus`]: a map in DRAM and a tree on persistent memory, as one index.
//! * [`byte_keys`]: keys of 1 to 250 bytes over any ordered one of them.
//! * [`map`]: a hash table in DRAM for 8-byte keys and values.
//! * [`heap`]: blocks of persistent memory, for the indexes that live there.
//! * [`eras`]: when memory that was freed may be used again.
//! * [`hash`]: the table of cache-line buckets in DRAM that every tenant has (NyxCache section 3.5
//!   keeps the index of its Pelikan store in DRAM).

pub mod acs;
pub mod byte_keys;
mod bytes;
mod contract;
pub mod eras;
pub mod fast_fair;
pub mod fp_tree;
pub mod hash;
pub mod heap;
pub mod hybrid;
pub mod hybrid_plus;
mod latch;
pub mod map;
pub mod ordered;
pub mod pm_hash;
mod share;
pub mod skip_list;
mod sync;

pub use byte_keys::{ByteKeys, ByteMap, Items};
pub use eras::Eras;
pub use hash::{Full, Guard, Hash, HashGround, HashShape, Revived, Slot, Unfit};
pub use ordered::{Index, Ordered, Persistent, Unordered};

/// Where an item lies, in units of 8 bytes. Only the item's keeper knows in what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u32);

/// Finds the places of items, whose keys are kept elsewhere.
pub trait Places {
    /// The place of the item whose key hashes to `hash` and of which `is_it` says so.
    fn find(&self, hash: u64, is_it: impl FnMut(Place) -> bool) -> Option<Place>;

    /// Asks for the memory that [`Places::find`] will read first to be brought near.
    fn prefetch(&self, hash: u64);

    /// How many places it holds; exact while nobody changes it.
    fn len(&self) -> u64;

    /// Whether it holds none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of memory that it uses.
    fn bytes(&self) -> u64;
}
