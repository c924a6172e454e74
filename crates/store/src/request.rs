//! What callers ask of a store and what they are told.
//!
//! What it never does: hold bytes of its own; everything here borrows or is a number.

use nyx_base::UnixSeconds;
use nyx_gate::Gate;
use nyx_tier::Away;

/// The longest key in bytes.
pub const KEY_LEN_MAX: usize = 250;

/// The hash of a key under a store's seed: compute it once per command, [`crate::Store::hash`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(pub u64);

/// A value in one or two pieces: two where it wraps around a ring buffer or is put together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Value<'a> {
    /// The first bytes.
    pub head: &'a [u8],
    /// The bytes after them; mostly empty.
    pub tail: &'a [u8],
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(head: &'a [u8]) -> Value<'a> {
        Value { head, tail: &[] }
    }
}

impl Value<'_> {
    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// When a put, a delete or an invalidation takes place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Whatever is there.
    #[default]
    Always,
    /// Only where there is no such item (`add`).
    Absent,
    /// Only where there is one (`replace`).
    Present,
    /// Only where the item's CAS unique is this (`cas`).
    CasIs(u64),
    /// As `CasIs`, but where this is *older* (less) than the item's CAS unique, the value is stored
    /// all the same and marked stale (meta `ms` with `C` and `I`). Uniques grow with each write of
    /// one worker; across workers the order of two recent writes may be the other way round.
    CasOrStale(u64),
}

/// One item to be stored.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// 1 to [`KEY_LEN_MAX`] bytes.
    pub key: &'a [u8],
    /// The key's hash.
    pub hash: KeyHash,
    /// The value.
    pub value: Value<'a>,
    /// The client's flags.
    pub flags: u32,
    /// When the item ends; [`UnixSeconds::NEVER`] where it does not.
    pub expiry: UnixSeconds,
    /// When to store at all.
    pub condition: Condition,
    /// An explicit CAS unique for the new item (meta `E`); else the store makes one.
    pub cas: Option<u64>,
    /// The new item is stale from the start.
    pub stale: bool,
    /// The token to recache the new item is already given away (meta `mg` with `N`).
    pub win_sent: bool,
}

impl<'a> Put<'a> {
    /// A plain `set`: no flags, no expiry, no condition.
    pub fn set(key: &'a [u8], hash: KeyHash, value: &'a [u8]) -> Put<'a> {
        Put {
            key,
            hash,
            value: value.into(),
            flags: 0,
            expiry: UnixSeconds::NEVER,
            condition: Condition::Always,
            cas: None,
            stale: false,
            win_sent: false,
        }
    }
}

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// It is stored.
    Stored {
        /// The new item's CAS unique.
        cas: u64,
    },
    /// `Absent` or `Present` did not hold, or there was nothing to append to.
    NotStored,
    /// The item has another CAS unique.
    Exists,
    /// There is no item to compare the CAS unique of.
    NotFound,
    /// The key or the value is longer than the store takes. An item of that key, if any, stays.
    TooLarge,
    /// Nothing could be freed: everything is held by workers in older eras.
    OutOfMemory,
    /// The old value is on the deep device: ask again when it has landed.
    Away(Away),
}

/// What became of a delete or an invalidation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    /// Done.
    Deleted,
    /// There was no such item.
    NotFound,
    /// The item has another CAS unique.
    Exists,
    /// The value is on the deep device: ask again when it has landed.
    Away(Away),
}

/// What became of a touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TouchOutcome {
    /// The item has the new end.
    Touched,
    /// There is no such item, or none any longer.
    NotFound,
    /// The value is on the deep device: ask again when it has landed.
    Away(Away),
}

impl TouchOutcome {
    /// Whether there was an item.
    pub fn is_touched(self) -> bool {
        self == TouchOutcome::Touched
    }
}

/// Where the value of an item is that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It can be read.
    Here,
    /// It is being fetched: find the item again when it has landed.
    Away(Away),
    /// The tenant may not access its deep device now.
    Closed(Gate),
    /// It could not be read, or was not what had been stored. The item is gone.
    Lost,
}

/// At which end [`crate::Store::extend`] adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// After the old value (`append`).
    Append,
    /// Before it (`prepend`).
    Prepend,
}

/// Segments by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    /// Never used or free again.
    pub free: u32,
    /// Being appended to.
    pub open: u32,
    /// Full.
    pub sealed: u32,
    /// Being emptied.
    pub draining: u32,
    /// Empty, waiting for the era to end.
    pub limbo: u32,
}

/// A store's figures. Each is exact when the workers rest and close while they run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Items that can be found (expired ones that nobody has met yet included).
    pub items: u64,
    /// Bytes of keys, headers and values of live items.
    pub live_bytes: u64,
    /// Bytes of items that were overwritten, deleted or expired and still take room.
    pub dead_bytes: u64,
    /// Bytes of all memory in use: segments, key chunks, index and tables; at most `size`.
    pub used_bytes: u64,
    /// Bytes of key chunks (headers and keys in DRAM).
    pub key_bytes: u64,
    /// Bytes of value segments on the medium.
    pub value_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Segments by state.
    pub segments: SegmentCounts,
    /// Items that went although they had not ended: the tenant was full.
    pub evictions: u64,
    /// Items that were found expired or flushed and freed.
    pub expirations: u64,
    /// Items written again to free the segment that they lay in.
    pub relocations: u64,
    /// Bytes of those.
    pub relocated_bytes: u64,
    /// What is deep; none where the store has no deep device.
    pub deep: Option<DeepFigures>,
}

/// What of a store is on its deep device. `figures.live_bytes` and the like include it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeepFigures {
    /// Bytes of live items there: keys, headers and values.
    pub live_bytes: u64,
    /// Bytes of live ones whose items are on the fast device too: about so many.
    pub twin_bytes: u64,
    /// Bytes of items there that are dead.
    pub dead_bytes: u64,
    /// Bytes of keys and headers, which lie in DRAM.
    pub key_bytes: u64,
    /// Segments there that are used, and that there are.
    pub segments: (u32, u32),
    /// Stages that are used, and that there are.
    pub stages: (u32, u32),
    /// Items that were put there as they left the fast device.
    pub demotions: u64,
    /// Items that were not, although they would have been: there was no free stage.
    pub refused_stage: u64,
    /// There was no free segment.
    pub refused_segment: u64,
    /// What may be written in a day was used up, or nearly.
    pub refused_allowance: u64,
    /// Items that left the fast device for their twins, and were not written.
    pub returns: u64,
    /// Items that were put back on the fast device, since they were asked for; what they leave is
    /// their twin.
    pub promotions: u64,
    /// Items of the fast device that were written there too.
    pub mirrors: u64,
    /// New items that were written there alone.
    pub arounds: u64,
    /// Twins that could not be read, or were not what had been stored; their items were read from
    /// the fast device.
    pub lost_twins: u64,
    /// Segments there that were freed by writing what lived in them again.
    pub compactions: u64,
    /// Bytes of that: keys, headers and values.
    pub compacted_bytes: u64,
    /// Items that went since the deep device was full, or their keys took too much.
    pub evictions: u64,
    /// Items that could not be read, or were not what had been stored.
    pub lost: u64,
}
