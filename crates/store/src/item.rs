//! What a GET found.
//!
//! What it never does: own bytes; it is a place, and what the header said.
//!
//! *Thread safety*: belongs to the worker that found it, within its era.

use crate::header::{Header, State};
use crate::items::Spot;
use crate::store::{Found, Store};
use nyx_base::UnixSeconds;
use nyx_index::{Place, Places};
use nyx_tier::Lane;

/// An item as it was found. It stays readable, even if the key is overwritten or deleted meanwhile,
/// until its worker enters the next era or calls a method of the store that takes its writer.
#[derive(Clone, Copy, Debug)]
pub struct Item<'s> {
    pub(crate) store: &'s Store,
    pub(crate) hash: u64,
    pub(crate) place: Place,
    pub(crate) header: Header,
    pub(crate) state: State,
    /// Where the value lies, for as long as the era.
    pub(crate) spot: Spot,
    /// It is read so often that a twin would be of use.
    pub(crate) wants_twin: bool,
}

impl Item<'_> {
    /// What was found, without where its value lies.
    pub(crate) fn found(&self) -> Found {
        Found {
            place: self.place,
            header: self.header,
        }
    }

    /// The value's length in bytes.
    #[inline]
    pub fn value_len(&self) -> usize {
        self.header.value_len as usize
    }

    /// The client's flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.header.flags
    }

    /// When it ends; [`UnixSeconds::NEVER`] where it does not.
    #[inline]
    pub fn expiry(&self) -> UnixSeconds {
        self.header.expiry
    }

    /// Its CAS unique. Asking for it makes the store keep it if the item has to move. (Where the
    /// item moved between being found and being asked, a later compare fails as if the item had
    /// been written.)
    pub fn cas(&self, lane: &mut Lane<'_>) -> u64 {
        self.header.cas.unwrap_or_else(|| {
            self.store
                .items
                .update_state(lane, self.place, State::with_cas_seen);
            self.store.items.unique(self.place)
        })
    }

    /// When it was last accessed or written, before this access. Known to 2^20 s (12 days) back.
    pub fn last_access(&self, now: UnixSeconds) -> UnixSeconds {
        self.state.last_access(now)
    }

    /// Whether it had been accessed since it was written, before this access.
    #[inline]
    pub fn fetched(&self) -> bool {
        self.state.is_fetched()
    }

    /// Whether it was invalidated.
    #[inline]
    pub fn stale(&self) -> bool {
        self.state.is_stale()
    }

    /// Whether the token to recache it had been given away, before this access.
    #[inline]
    pub fn win_sent(&self) -> bool {
        self.state.is_win_sent()
    }

    /// Takes the token to recache it: true for at most one caller per item.
    pub fn claim_win(&self, lane: &mut Lane<'_>) -> bool {
        let items = &self.store.items;
        let before = items.update_state(lane, self.place, |state| state.with_win_sent(true));
        // A copy that was moved meanwhile is no longer the item; its token is not ours to take.
        !before.is_win_sent() && self.is_current()
    }

    fn is_current(&self) -> bool {
        self.store
            .index
            .find(self.hash, |place| place == self.place)
            .is_some()
    }

    /// Counts an access, for the eviction policy, [`Item::last_access`] and [`Item::fetched`].
    #[inline]
    pub fn mark_access(&self, lane: &mut Lane<'_>, now: UnixSeconds) {
        let most = self.store.uses_most;
        self.store
            .items
            .update_state(lane, self.place, |state| state.accessed(now, most));
    }

    /// Whether the value is on the deep device, or was fetched from there.
    #[inline]
    pub fn is_deep(&self) -> bool {
        matches!(self.spot, Spot::Deep(_) | Spot::Landed(_))
    }

    /// Whether the value may have to be fetched before it is read: see [`Store::fetch`].
    #[inline]
    pub fn may_be_away(&self) -> bool {
        self.is_deep() || self.header.has_twin
    }

    /// Copies the value's first `into.len()` bytes. Panics where the value is shorter, or lies on
    /// the deep device and was not fetched ([`Store::fetch`]).
    #[inline]
    pub fn read(&self, lane: &mut Lane<'_>, into: &mut [u8]) {
        self.read_range(lane, 0, into);
    }

    /// Copies `into.len()` bytes of the value from byte `from`. Panics where the value ends before,
    /// or was to be fetched.
    #[inline]
    pub fn read_range(&self, lane: &mut Lane<'_>, from: usize, into: &mut [u8]) {
        let end = from + into.len();
        let len = self.value_len();
        assert!(end <= len, "bytes {from}..{end} of a value of {len} B");
        match self.spot {
            _ if into.is_empty() => {}
            Spot::Fast(at) => lane.read_for_client(at + from as u64, into),
            spot => self.read_deep(lane, spot, from, into),
        }
    }

    #[cold]
    fn read_deep(&self, lane: &mut Lane<'_>, spot: Spot, from: usize, into: &mut [u8]) {
        let source = self.store.items.source(spot, self.header.value_len);
        let source = source.expect("a value on the deep device is fetched before it is read");
        source.read(lane, from, into);
    }
}
