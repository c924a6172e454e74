//! Changing an item by writing it again: append and prepend, touch, invalidate.
//!
//! Nothing that readers may be looking at is changed, except the expiry of an item that has one.
//! The new version is appended with the old value copied on the medium, piece by piece, and
//! published only if the item is still the one that was read; else all is done again.
//!
//! What it never does: hold a value in memory, lose a change that another worker made meanwhile.
//!
//! *Thread safety*: as `store`.

use crate::header::{Header, State};
use crate::items::{Draft, Source};
use crate::journal::{self, Kind};
use crate::request::{
    Condition, DeleteOutcome, KeyHash, Presence, Put, PutOutcome, Side, TouchOutcome, Value,
};
use crate::store::{Expect, Found, News, Store};
use crate::writer::Writer;
use nyx_base::UnixSeconds;
use nyx_tier::Lane;

/// What to invalidate, and how.
#[derive(Clone, Copy, Debug)]
pub struct Invalidation<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its hash.
    pub hash: KeyHash,
    /// What must hold; others than `CasIs` mean `Always`.
    pub condition: Condition,
    /// The item's new end.
    pub expiry: Option<UnixSeconds>,
    /// Its new CAS unique; the store chooses one where this is none.
    pub cas: Option<u64>,
}

/// A change to an item that is written again.
struct Change<'a> {
    expiry: Option<UnixSeconds>,
    invalidate: bool,
    /// The new version's CAS unique, where the client names one.
    cas: Option<u64>,
    add: Option<(Side, Value<'a>)>,
}

impl Store {
    /// Adds `put.value` at one end of an item's value and gives it the CAS unique `put.cas`; flags
    /// and expiry of `put` are ignored, its condition may be `Always` or `CasIs`. `NotStored` where
    /// there is no item.
    pub fn extend(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        put: &Put<'_>,
        side: Side,
        now: UnixSeconds,
    ) -> PutOutcome {
        let change = Change {
            expiry: None,
            invalidate: false,
            cas: put.cas,
            add: Some((side, put.value)),
        };
        match self.write_again(w, lane, (put.key, put.hash), put.condition, &change, now) {
            PutOutcome::NotFound => PutOutcome::NotStored,
            outcome => outcome,
        }
    }

    /// Marks an item stale and its token to recache as not given (meta `md` with `I`). Its CAS
    /// unique changes.
    pub fn invalidate(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        asked: &Invalidation<'_>,
        now: UnixSeconds,
    ) -> DeleteOutcome {
        let &Invalidation {
            key,
            hash,
            condition,
            expiry,
            cas,
        } = asked;
        let change = Change {
            expiry,
            invalidate: true,
            cas,
            add: None,
        };
        match self.write_again(w, lane, (key, hash), condition, &change, now) {
            PutOutcome::Stored { .. } => DeleteOutcome::Deleted,
            PutOutcome::Exists => DeleteOutcome::Exists,
            PutOutcome::Away(away) => DeleteOutcome::Away(away),
            PutOutcome::OutOfMemory => self.delete(w, lane, key, hash, condition, now),
            _ => {
                // The journal may have an item that was evicted since.
                if !matches!(condition, Condition::CasIs(_)) {
                    self.delete(w, lane, key, hash, Condition::Absent, now);
                }
                DeleteOutcome::NotFound
            }
        }
    }

    /// Gives an item a new end; one that has come removes it. One for which there is no room to
    /// write it again goes (items get room for an expiry only when they need it).
    pub fn touch(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        key: &[u8],
        hash: KeyHash,
        expiry: UnixSeconds,
        now: UnixSeconds,
    ) -> TouchOutcome {
        if expiry <= now {
            return match self.delete(w, lane, key, hash, Condition::Always, now) {
                DeleteOutcome::Deleted => TouchOutcome::Touched,
                _ => TouchOutcome::NotFound,
            };
        }
        self.begin(w, now);
        let whole = self.approach(hash.0);
        let guard = self.index.lock(w.worker(), hash.0);
        let Some((_, found)) = self.find_locked(lane, &guard, key) else {
            return TouchOutcome::NotFound;
        };
        let Found { place, header } = found;
        if self.is_ended(&header, place, now) || !whole && !self.is_whole(lane, hash, found) {
            return TouchOutcome::NotFound;
        }
        if header.expiry == expiry {
            return TouchOutcome::Touched;
        }
        if header.expiry != UnixSeconds::NEVER && expiry != UnixSeconds::NEVER {
            self.intend(w.worker(), hash);
            self.items.set_expiry(lane, place, &header, expiry);
            self.tell_journal(&touched(key, expiry, now));
            self.intended(w.worker());
            return TouchOutcome::Touched;
        }
        drop(guard);
        let change = Change {
            expiry: Some(expiry),
            invalidate: false,
            cas: None,
            add: None,
        };
        match self.write_again(w, lane, (key, hash), Condition::Always, &change, now) {
            PutOutcome::Stored { .. } => TouchOutcome::Touched,
            PutOutcome::Away(away) => TouchOutcome::Away(away),
            PutOutcome::OutOfMemory | PutOutcome::TooLarge => {
                self.delete(w, lane, key, hash, Condition::Always, now);
                TouchOutcome::NotFound
            }
            _ => TouchOutcome::NotFound,
        }
    }

    /// Writes an item again with a change. `NotFound` where there is none.
    fn write_again(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        (key, hash): (&[u8], KeyHash),
        condition: Condition,
        change: &Change<'_>,
        now: UnixSeconds,
    ) -> PutOutcome {
        self.begin(w, now);
        let mut room_for = None;
        loop {
            let Some(found) = self.find(lane, key, hash, now) else {
                return PutOutcome::NotFound;
            };
            if matches!(condition, Condition::CasIs(cas) if cas != self.cas(found)) {
                return PutOutcome::Exists;
            }
            let state = self.items.state(lane, found.place);
            let Some(header) = self.changed(found, state, change) else {
                return PutOutcome::TooLarge;
            };
            let needs = self.items.footprint(&header);
            let queue = self.young_queue_of(found.place);
            let lot = w.lot(queue, header.expiry, now);
            if room_for != Some((lot, needs)) {
                // Making room may end the era and with it the item that was found: look again.
                if !self.make_room(w, lane, lot, needs, now) {
                    return PutOutcome::OutOfMemory;
                }
                room_for = Some((lot, needs));
                continue;
            }
            room_for = None;
            let state = match change.invalidate {
                true => state.with_stale(true).with_win_sent(false),
                false => state,
            };
            let mut spot = self.items.spot(found.place, &found.header);
            match self.fetch_found(w.worker(), lane, (hash, found), &mut spot, None) {
                Presence::Here => {}
                Presence::Away(away) => return PutOutcome::Away(away),
                Presence::Lost | Presence::Closed(_) => return PutOutcome::NotFound,
            }
            let old_value = self.items.source(spot, found.header.value_len);
            let value = change.value(old_value.expect("it is here"));
            let draft = Draft {
                header,
                state,
                key,
                hash,
                check: self.check_of_changed(lane, found, hash, &value, change),
                value,
            };
            let appended = w.append(&self.items, lane, lot, &draft);
            let news = News {
                hash,
                expect: Expect::Same(found.place),
                change: change.told(key, now),
            };
            match self.publish(w, lane, &news, &appended, now) {
                // Somebody was faster: the item is another one now.
                PutOutcome::Exists => continue,
                outcome => return outcome,
            }
        }
    }

    /// The check of a changed value, where it is to have one: the old one where the value is.
    fn check_of_changed(
        &self,
        lane: &mut Lane<'_>,
        found: Found,
        hash: KeyHash,
        value: &[Source<'_>; 3],
        change: &Change<'_>,
    ) -> Option<u32> {
        self.kept.as_ref()?;
        match change.add {
            None => Some(self.items.checks(found.place, &found.header)?.value),
            Some(_) => Some(self.check_of(lane, hash, value)),
        }
    }

    /// The header of an item after a change; none where it grew too large.
    fn changed(&self, found: Found, state: State, change: &Change<'_>) -> Option<Header> {
        let mut header = found.header;
        header.value_offset = 0;
        header.has_twin = self.is_deep();
        header.has_checks = self.kept.is_some();
        if let Some((_, value)) = change.add {
            let len = header.value_len as usize + value.len();
            header.value_len = u32::try_from(len).ok()?;
            if header.value_len > self.config.item_len_max {
                return None;
            }
        }
        header.expiry = change.expiry.unwrap_or(header.expiry);
        // Touching keeps the unique that somebody may hold; a new value gets a new one.
        header.cas = match change.add.is_none() && !change.invalidate {
            true if state.is_cas_seen() => Some(self.cas(found)),
            true => header.cas,
            false => change.cas,
        };
        (self.items.footprint(&header).medium <= self.config.segment_bytes).then_some(header)
    }
}

/// What the journal is told of a touch.
fn touched(key: &[u8], expiry: UnixSeconds, now: UnixSeconds) -> journal::Change<'_> {
    journal::Change {
        expiry: Some(expiry),
        ..journal::Change::new(Kind::Touch, key, now)
    }
}

impl<'a> Change<'a> {
    /// What the journal is told: the change and not the item, which it has.
    fn told(&self, key: &'a [u8], now: UnixSeconds) -> journal::Change<'a> {
        let (kind, value) = match self.add {
            Some((Side::Append, value)) => (Kind::Append, value),
            Some((Side::Prepend, value)) => (Kind::Prepend, value),
            None if self.invalidate => (Kind::Invalidate, Value::default()),
            None => (Kind::Touch, Value::default()),
        };
        journal::Change {
            value,
            expiry: self.expiry,
            cas: self.cas,
            ..journal::Change::new(kind, key, now)
        }
    }

    /// The pieces of the changed value, given the old one.
    fn value(&self, old: Source<'a>) -> [Source<'a>; 3] {
        match self.add {
            None => [old, Source::Bytes(&[]), Source::Bytes(&[])],
            Some((Side::Append, new)) => [old, Source::Bytes(new.head), Source::Bytes(new.tail)],
            Some((Side::Prepend, new)) => [Source::Bytes(new.head), Source::Bytes(new.tail), old],
        }
    }
}
