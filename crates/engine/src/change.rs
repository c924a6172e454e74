//! The classic commands that change something: stores, `delete`, `incr`, `decr`, `touch`,
//! `flush_all`. The gate is asked before a command that writes to the device; a delete or a touch
//! of an item in the split layout writes only DRAM and passes.

use crate::engine::{Cx, Reach, Step};
use nyx_base::UnixSeconds;
use nyx_proto::{ArithOp, Exptime, Out, Store, StoreVerb, TooLarge, reply};
use nyx_store::{Condition, DeleteOutcome, Item, KeyHash, Put, PutOutcome, Side, TouchOutcome};

/// The longest decimal `u64`.
const NUMBER_LEN_MAX: usize = 20;
/// How often an increment is tried again when others change the item in between.
const ARITH_TRIES: usize = 64;

/// How an increment ended.
pub(crate) enum Arith {
    Done {
        value: u64,
        cas: u64,
        expiry: UnixSeconds,
    },
    NotFound,
    Exists,
    NotANumber,
    /// The number is on a deep device.
    Not(Step),
    Failed(PutOutcome),
}

/// What to add or subtract, and what must hold.
#[derive(Clone, Copy)]
pub(crate) struct Change {
    pub(crate) op: ArithOp,
    pub(crate) delta: u64,
    /// Only where the item has this cas value.
    pub(crate) cas: Option<u64>,
    /// The item's new cas value.
    pub(crate) cas_new: Option<u64>,
    /// The item's new end.
    pub(crate) expiry: Option<UnixSeconds>,
}

impl Change {
    fn apply(&self, old: u64) -> u64 {
        match self.op {
            ArithOp::Incr => old.wrapping_add(self.delta),
            ArithOp::Decr => old.saturating_sub(self.delta),
        }
    }
}

impl<'e> Cx<'e, '_> {
    pub(crate) fn store(&mut self, store: &Store<'_>, hash: KeyHash, out: &mut Out) -> Step {
        match self.turn() {
            Step::Done => {}
            other => return other,
        }
        let put = Put {
            flags: store.flags,
            expiry: store.exptime.resolve(self.now.unix).at(self.now.unix),
            condition: match store.verb {
                StoreVerb::Add => Condition::Absent,
                StoreVerb::Replace => Condition::Present,
                StoreVerb::Cas => Condition::CasIs(store.cas),
                StoreVerb::Set | StoreVerb::Append | StoreVerb::Prepend => Condition::Always,
            },
            ..Put::set(store.key, hash, store.data)
        };
        let outcome = match store.verb {
            StoreVerb::Append => self.extend(&put, Side::Append),
            StoreVerb::Prepend => self.extend(&put, Side::Prepend),
            _ => self.put(&put),
        };
        if let PutOutcome::Away(away) = outcome {
            return Step::Away(away);
        }
        if store.verb == StoreVerb::Cas {
            self.count_cas(outcome);
        }
        if outcome == PutOutcome::TooLarge && store.verb == StoreVerb::Set {
            // A cache must not go on serving a value that the client meant to replace.
            self.remove(store.key, hash, Condition::Always);
        }
        if !store.noreply {
            answer_put(outcome, out);
        }
        Step::Done
    }

    pub(crate) fn put(&mut self, put: &Put<'_>) -> PutOutcome {
        let outcome = self
            .store
            .put(self.writer, &mut self.lane, put, self.now.unix);
        self.count_put(outcome);
        self.write_back();
        outcome
    }

    pub(crate) fn extend(&mut self, put: &Put<'_>, side: Side) -> PutOutcome {
        let outcome = self
            .store
            .extend(self.writer, &mut self.lane, put, side, self.now.unix);
        self.count_put(outcome);
        outcome
    }

    fn count_put(&mut self, outcome: PutOutcome) {
        if matches!(outcome, PutOutcome::Away(_)) {
            return;
        }
        self.counters.cmd_set.add(1);
        match outcome {
            PutOutcome::TooLarge => self.counters.store_too_large.add(1),
            PutOutcome::OutOfMemory => self.counters.store_no_memory.add(1),
            _ => {}
        }
    }

    pub(crate) fn count_cas(&mut self, outcome: PutOutcome) {
        match outcome {
            PutOutcome::Stored { .. } => self.counters.cas_hits.add(1),
            PutOutcome::Exists => self.counters.cas_badval.add(1),
            PutOutcome::NotFound => self.counters.cas_misses.add(1),
            _ => {}
        }
    }

    pub(crate) fn remove(
        &mut self,
        key: &[u8],
        hash: KeyHash,
        condition: Condition,
    ) -> DeleteOutcome {
        self.store.delete(
            self.writer,
            &mut self.lane,
            key,
            hash,
            condition,
            self.now.unix,
        )
    }

    pub(crate) fn count_delete(&mut self, outcome: DeleteOutcome) {
        match outcome {
            DeleteOutcome::Deleted => self.counters.delete_hits.add(1),
            DeleteOutcome::NotFound => self.counters.delete_misses.add(1),
            DeleteOutcome::Exists => self.counters.cas_badval.add(1),
            DeleteOutcome::Away(_) => {}
        }
    }

    pub(crate) fn delete(
        &mut self,
        key: &[u8],
        hash: KeyHash,
        noreply: bool,
        out: &mut Out,
    ) -> Step {
        let outcome = self.remove(key, hash, Condition::Always);
        self.count_delete(outcome);
        match outcome {
            _ if noreply => {}
            DeleteOutcome::Deleted => reply::deleted(out),
            DeleteOutcome::NotFound => reply::not_found(out),
            DeleteOutcome::Exists => reply::exists(out),
            DeleteOutcome::Away(away) => return Step::Away(away),
        }
        Step::Done
    }

    pub(crate) fn too_large(
        &mut self,
        refused: &TooLarge<'_>,
        hash: KeyHash,
        out: &mut Out,
    ) -> Step {
        self.counters.cmd_set.add(1);
        self.counters.store_too_large.add(1);
        if refused.drop_old {
            let mut scratch = nyx_proto::KeyBuf::default();
            let key = if refused.base64 {
                scratch.decode(refused.key)
            } else {
                refused.key
            };
            self.remove(key, hash, Condition::Always);
        }
        if !refused.noreply {
            reply::too_large(out);
        }
        Step::Done
    }

    pub(crate) fn touch(
        &mut self,
        key: &[u8],
        hash: KeyHash,
        exptime: Exptime,
        noreply: bool,
        out: &mut Out,
    ) -> Step {
        let expiry = exptime.resolve(self.now.unix).at(self.now.unix);
        let unix = self.now.unix;
        let found = self
            .store
            .touch(self.writer, &mut self.lane, key, hash, expiry, unix);
        if let TouchOutcome::Away(away) = found {
            return Step::Away(away);
        }
        self.counters.cmd_touch.add(1);
        match found.is_touched() {
            true => self.counters.touch_hits.add(1),
            false => self.counters.touch_misses.add(1),
        }
        match found.is_touched() {
            _ if noreply => {}
            true => reply::touched(out),
            false => reply::not_found(out),
        }
        Step::Done
    }

    pub(crate) fn flush_all(&mut self, delay: Exptime, noreply: bool, out: &mut Out) -> Step {
        self.counters.cmd_flush.add(1);
        let now = self.now.unix;
        let at = match delay.resolve(now) {
            nyx_proto::Expiry::At(second) => second,
            nyx_proto::Expiry::Never | nyx_proto::Expiry::Expired => now,
        };
        self.store.flush(at, now);
        if !noreply {
            reply::ok(out);
        }
        Step::Done
    }

    pub(crate) fn arith(
        &mut self,
        key: &[u8],
        hash: KeyHash,
        op: ArithOp,
        delta: u64,
        noreply: bool,
        out: &mut Out,
    ) -> Step {
        match self.turn() {
            Step::Done => {}
            other => return other,
        }
        let change = Change {
            op,
            delta,
            cas: None,
            cas_new: None,
            expiry: None,
        };
        let result = self.change_number(key, hash, &change);
        self.count_arith(op, &result);
        match result {
            Arith::Not(step) => return step,
            _ if noreply => {}
            Arith::Done { value, .. } => reply::number(out, value),
            Arith::NotFound => reply::not_found(out),
            Arith::Exists => reply::exists(out),
            Arith::NotANumber => reply::non_numeric(out),
            Arith::Failed(outcome) => answer_put(outcome, out),
        }
        Step::Done
    }

    pub(crate) fn count_arith(&mut self, op: ArithOp, result: &Arith) {
        let (hits, misses) = match op {
            ArithOp::Incr => (&self.counters.incr_hits, &self.counters.incr_misses),
            ArithOp::Decr => (&self.counters.decr_hits, &self.counters.decr_misses),
        };
        match result {
            Arith::NotFound => misses.add(1),
            Arith::Done { .. } => hits.add(1),
            _ => {}
        }
    }

    /// Reads a number, changes it and stores it where nobody else has changed it meanwhile.
    pub(crate) fn change_number(&mut self, key: &[u8], hash: KeyHash, change: &Change) -> Arith {
        for _ in 0..ARITH_TRIES {
            let Some(mut item) = self.store.get(&mut self.lane, key, hash, self.now.unix) else {
                return Arith::NotFound;
            };
            if item.is_deep() {
                match self.reach(&mut item) {
                    Reach::Here => {}
                    Reach::Lost => return Arith::NotFound,
                    Reach::Not(step) => return Arith::Not(step),
                }
            }
            let seen = item.cas(&mut self.lane);
            if change.cas.is_some_and(|asked| asked != seen) {
                return Arith::Exists;
            }
            let Some(old) = self.number(item) else {
                return Arith::NotANumber;
            };
            let value = change.apply(old);
            let mut digits = itoa::Buffer::new();
            let expiry = change.expiry.unwrap_or(item.expiry());
            let put = Put {
                flags: item.flags(),
                expiry,
                condition: Condition::CasIs(seen),
                cas: change.cas_new,
                // A number that was invalidated does not become valid by being counted on.
                stale: item.stale(),
                win_sent: item.win_sent(),
                ..Put::set(key, hash, digits.format(value).as_bytes())
            };
            match self
                .store
                .put(self.writer, &mut self.lane, &put, self.now.unix)
            {
                PutOutcome::Stored { cas } => return Arith::Done { value, cas, expiry },
                PutOutcome::Exists | PutOutcome::NotFound => {}
                other => return Arith::Failed(other),
            }
        }
        Arith::Failed(PutOutcome::OutOfMemory)
    }

    /// The value as a number: up to 20 digits, nothing else.
    fn number(&mut self, item: Item<'e>) -> Option<u64> {
        let len = item.value_len();
        let mut digits = [0u8; NUMBER_LEN_MAX];
        let digits = digits.get_mut(..len)?;
        item.read(&mut self.lane, digits);
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
}

/// The classic answer to a store.
pub(crate) fn answer_put(outcome: PutOutcome, out: &mut Out) {
    match outcome {
        PutOutcome::Stored { .. } => reply::stored(out),
        PutOutcome::NotStored => reply::not_stored(out),
        PutOutcome::Exists => reply::exists(out),
        PutOutcome::NotFound => reply::not_found(out),
        PutOutcome::TooLarge => reply::too_large(out),
        PutOutcome::OutOfMemory => reply::out_of_memory(out),
        PutOutcome::Away(_) => unreachable!("who has to come again is not answered"),
    }
}
