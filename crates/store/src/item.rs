//! What a GET found.

use crate::store::Store;
use nyx_base::UnixSeconds;
use nyx_gate::Lane;

/// An item as it was found. It stays readable, even if the key is overwritten or deleted meanwhile,
/// until its worker enters the next era or calls `put`, `extend`, `touch` or `expire` with its writer.
#[derive(Clone, Copy, Debug)]
pub struct Item<'s> {
    store: &'s Store,
}

impl Item<'_> {
    /// The value's length in bytes.
    #[inline]
    pub fn value_len(&self) -> usize {
        0
    }

    /// The client's flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        0
    }

    /// When it ends; [`UnixSeconds::NEVER`] where it does not.
    #[inline]
    pub fn expiry(&self) -> UnixSeconds {
        UnixSeconds::NEVER
    }

    /// Its CAS unique. Asking for it makes the store keep it if the item has to move.
    pub fn cas(&self, lane: &mut Lane<'_>) -> u64 {
        let _ = lane;
        0
    }

    /// When it was last accessed (or written), before this access. Known to 2^20 s (12 days) back.
    pub fn last_access(&self, now: UnixSeconds) -> UnixSeconds {
        now
    }

    /// Whether it had been accessed since it was written, before this access.
    #[inline]
    pub fn fetched(&self) -> bool {
        false
    }

    /// Whether it was invalidated.
    #[inline]
    pub fn stale(&self) -> bool {
        false
    }

    /// Whether the token to recache it was given away before.
    #[inline]
    pub fn win_sent(&self) -> bool {
        false
    }

    /// Takes the token to recache it: true for exactly one caller per item.
    pub fn claim_win(&self, lane: &mut Lane<'_>) -> bool {
        let _ = (lane, self.store);
        false
    }

    /// Counts an access, for the eviction policy, `last_access` and `fetched`.
    #[inline]
    pub fn mark_access(&self, lane: &mut Lane<'_>, now: UnixSeconds) {
        let _ = (lane, now);
    }

    /// Copies the value's first `into.len()` bytes. Panics where the value is shorter.
    #[inline]
    pub fn read(&self, lane: &mut Lane<'_>, into: &mut [u8]) {
        self.read_range(lane, 0, into);
    }

    /// Copies `into.len()` bytes of the value from byte `from`. Panics where the value ends before.
    #[inline]
    pub fn read_range(&self, lane: &mut Lane<'_>, from: usize, into: &mut [u8]) {
        let _ = (lane, from, into);
    }
}
