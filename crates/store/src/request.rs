//! What callers ask of a store and what they are told.
//!
//! What it never does: hold bytes of its own; everything here borrows or is a number.

use nyx_base::UnixSeconds;

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
}
