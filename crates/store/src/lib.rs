//! Keeps: a tenant's items. Headers and keys lie in DRAM, values on the medium (NyxCache section
//! 3.5), both in log-structured segments; the hash index of `nyx-index` finds them.
//!
//! What it never does: touch a medium except through a [`nyx_tier::Lane`], read a clock, start a
//! thread, draw a random number, allocate on the path of a GET or a SET, evict another tenant's
//! items, or use more than [`StoreConfig::size`] bytes.
//!
//! * [`Store`]: one tenant's items, shared by all workers. [`Writer`]: one worker's open segments.
//! * [`Eras`]: when memory that was freed may be used again.
//! * [`Range`]: keys in their order, where a store has one.
//! * [`Journal`]: what makes changes survive a power failure.
//! * [`Item`]: what a GET found. [`Put`], [`Condition`]: what a SET wants.

mod backlog;
mod change;
mod check;
mod chunks;
mod config;
mod deep;
mod depth;
mod evict;
mod figures;
mod ghost;
mod header;
mod item;
mod items;
mod journal;
mod kept;
mod order;
mod outlook;
mod reclaim;
mod request;
mod room;
mod segment;
mod shape;
mod space;
mod stage;
mod store;
mod walk;
mod writer;

#[cfg(test)]
extern crate self as nyx_store;
#[cfg(test)]
#[path = "../tests/rig/mod.rs"]
mod rig;

pub use change::Invalidation;
pub use config::{
    DeepPart, Durability, Eviction, Journaling, Keep, Layout, Purpose, StoreConfig, StoreError,
    SyncMode, Tree, WriteMode,
};
pub use item::Item;
pub use journal::{Journal, JournalFigures, JournalHealth, Ready, Replayed, forget_journal};
pub use kept::{
    About, Beginning, DeepHealth, DeepLoss, DeepRange, Health, Remade, ranges_in_image,
};
pub use nyx_index::{Eras, Revived};
pub use order::{Range, RangeError};
pub use outlook::{deep_fillable_bytes, deep_item_dram_bytes};
pub use request::{
    Condition, DeepFigures, DeleteOutcome, Figures, KEY_LEN_MAX, KeyHash, Presence, Put,
    PutOutcome, SegmentCounts, Side, TouchOutcome, Value,
};
pub use shape::DEEP_SEGMENTS_MIN;
pub use store::{Likely, Store};
pub use writer::Writer;
