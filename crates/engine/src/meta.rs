//! The meta commands: `mg ms md ma me` (memcached's protocol.txt, "Meta Commands").
//!
//! `mg` carries the protections against a stampede: an item that is missing (`N`), soon to expire
//! (`R`) or stale is to be replaced by exactly one client, the one that *won*.

use crate::change::{Arith, Change};
use crate::engine::{Cx, Reach, Step};
use nyx_base::UnixSeconds;
use nyx_proto::reply::{self, MetaFacts, MetaStatus};
use nyx_proto::{
    Expiry, Exptime, KeyBuf, MetaArith, MetaDebug, MetaDelete, MetaGet, MetaHead, MetaSet, Out,
    StoreVerb,
};
use nyx_store::{Condition, DeleteOutcome, Invalidation, Item, KeyHash, Put, PutOutcome, Side};

impl<'e> Cx<'e, '_> {
    fn end_of(&self, exptime: Exptime) -> UnixSeconds {
        exptime.resolve(self.now.unix).at(self.now.unix)
    }

    fn condition(cas: Option<u64>) -> Condition {
        cas.map_or(Condition::Always, Condition::CasIs)
    }

    pub(crate) fn meta_get(&mut self, meta: &MetaGet<'_>, hash: KeyHash, out: &mut Out) -> Step {
        let mut scratch = KeyBuf::default();
        let key = meta.head.decode_key(&mut scratch);
        let now = self.now.unix;
        let Some(mut item) = self.store.get(&mut self.lane, key, hash, now) else {
            return self.meta_miss(meta, key, hash, out);
        };
        let wants_value =
            meta.wants_value() && meta.cas().is_none_or(|cas| cas != item.cas(&mut self.lane));
        // A touch may have to write a deep item again.
        if wants_value || meta.ttl().is_some() && item.is_deep() {
            match self.reach(&mut item) {
                Reach::Here => {}
                Reach::Lost => return self.meta_miss(meta, key, hash, out),
                Reach::Not(step) => return step,
            }
        }
        self.count_meta_get(true);
        let mut facts = self.facts(item, meta.head.flags().has(b'c'));
        self.judge_win(meta, item, &mut facts);
        if let Some(ttl) = meta.ttl() {
            let end = self.end_of(ttl);
            facts.ttl_s = ttl_s(end, now);
        }
        match wants_value {
            true => {
                reply::meta_value(out, &meta.head, &facts);
                item.read(&mut self.lane, out.space(facts.len));
                reply::crlf(out);
            }
            false => reply::meta_hit(out, &meta.head, &facts),
        }
        if !meta.no_bump() {
            item.mark_access(&mut self.lane, now);
        }
        if let Some(ttl) = meta.ttl() {
            let end = self.end_of(ttl);
            self.store
                .touch(self.writer, &mut self.lane, key, hash, end, now);
            self.counters.cmd_touch.add(1);
            self.counters.touch_hits.add(1);
        } else {
            self.promote(item);
        }
        Step::Done
    }

    /// Makes the cas value that flag `c` sends stay the item's even if the item has to move: the
    /// store keeps those that an item was asked for.
    fn keep_cas(&mut self, head: &MetaHead<'_>, key: &[u8], hash: KeyHash) {
        if head.flags().has(b'c')
            && let Some(item) = self.store.get(&mut self.lane, key, hash, self.now.unix)
        {
            item.cas(&mut self.lane);
        }
    }

    fn count_meta_get(&mut self, hit: bool) {
        self.counters.cmd_meta.add(1);
        self.counters.cmd_get.add(1);
        match hit {
            true => self.counters.get_hits.add(1),
            false => self.counters.get_misses.add(1),
        }
    }

    /// A miss; with `N` an empty item is made and the client wins. Where another client is quicker,
    /// this one sees that client's item.
    fn meta_miss(&mut self, meta: &MetaGet<'_>, key: &[u8], hash: KeyHash, out: &mut Out) -> Step {
        let Some(ttl) = meta.vivify() else {
            self.count_meta_get(false);
            reply::meta_miss(out, &meta.head);
            return Step::Done;
        };
        match self.turn() {
            Step::Done => {}
            other => return other,
        }
        let end = self.end_of(ttl);
        let put = Put {
            expiry: end,
            condition: Condition::Absent,
            cas: meta.cas_new(),
            win_sent: true,
            ..Put::set(key, hash, b"")
        };
        let mut facts = MetaFacts {
            ttl_s: ttl_s(end, self.now.unix),
            ..MetaFacts::default()
        };
        match self.put(&put) {
            PutOutcome::Stored { cas } => {
                self.keep_cas(&meta.head, key, hash);
                (facts.cas, facts.won) = (cas, true);
            }
            PutOutcome::OutOfMemory => {
                reply::out_of_memory(out);
                return Step::Done;
            }
            _ => facts.won_before = true,
        }
        self.count_meta_get(false);
        match meta.wants_value() {
            true => {
                reply::meta_value(out, &meta.head, &facts);
                reply::crlf(out);
            }
            false => reply::meta_hit(out, &meta.head, &facts),
        }
        Step::Done
    }

    /// What is known of an item. The cas value is looked up only where it is asked for.
    fn facts(&mut self, item: Item<'e>, with_cas: bool) -> MetaFacts {
        let now = self.now.unix;
        MetaFacts {
            cas: if with_cas {
                item.cas(&mut self.lane)
            } else {
                0
            },
            client_flags: item.flags(),
            len: item.value_len(),
            ttl_s: ttl_s(item.expiry(), now),
            idle_s: now.0.saturating_sub(item.last_access(now).0),
            hit_before: item.fetched(),
            won: false,
            stale: item.stale(),
            won_before: item.win_sent(),
        }
    }

    /// Whether this client is the one to replace the item: it is stale, or ends soon (`R`).
    fn judge_win(&mut self, meta: &MetaGet<'_>, item: Item<'e>, facts: &mut MetaFacts) {
        let now = self.now.unix;
        let ends_soon = meta.recache().is_some_and(|within| {
            // Nothing ends sooner than within no time at all.
            matches!(within.resolve(now), Expiry::At(second) if item.expiry() < second)
        });
        if (facts.stale || ends_soon) && !facts.won_before {
            facts.won = item.claim_win(&mut self.lane);
            facts.won_before = !facts.won;
        }
    }

    pub(crate) fn meta_set(&mut self, meta: &MetaSet<'_>, hash: KeyHash, out: &mut Out) -> Step {
        match self.turn() {
            Step::Done => {}
            other => return other,
        }
        let mut scratch = KeyBuf::default();
        let key = meta.head.decode_key(&mut scratch);
        let condition = match (meta.verb, meta.cas()) {
            // What is not there has no cas value to compare.
            (StoreVerb::Add, _) => Condition::Absent,
            (StoreVerb::Replace, None) => Condition::Present,
            (_, None) => Condition::Always,
            // A value that is too old to be stored is too old to be added to another one.
            (StoreVerb::Append | StoreVerb::Prepend, Some(cas)) => Condition::CasIs(cas),
            (_, Some(cas)) if meta.invalidates() => Condition::CasOrStale(cas),
            (_, Some(cas)) => Condition::CasIs(cas),
        };
        let put = Put {
            flags: meta.client_flags,
            expiry: meta
                .ttl()
                .map_or(UnixSeconds::NEVER, |ttl| self.end_of(ttl)),
            condition,
            cas: meta.cas_new(),
            ..Put::set(key, hash, meta.data)
        };
        let outcome = match meta.verb {
            StoreVerb::Append => self.meta_extend(meta, &put, Side::Append),
            StoreVerb::Prepend => self.meta_extend(meta, &put, Side::Prepend),
            _ => self.put(&put),
        };
        if let PutOutcome::Away(away) = outcome {
            return Step::Away(away);
        }
        self.counters.cmd_meta.add(1);
        if meta.cas().is_some() {
            self.count_cas(outcome);
        }
        let refused = |status, out: &mut Out| {
            reply::meta_store_failed(out, &meta.head, status, meta.data.len());
        };
        match outcome {
            PutOutcome::Stored { cas } => {
                self.keep_cas(&meta.head, key, hash);
                let len = self.stored_len(meta, key, hash);
                reply::meta_stored(out, &meta.head, cas, len);
            }
            PutOutcome::NotStored => refused(MetaStatus::NotStored, out),
            PutOutcome::Exists => refused(MetaStatus::Exists, out),
            PutOutcome::NotFound => refused(MetaStatus::NotFound, out),
            PutOutcome::TooLarge => {
                if !extends(meta) {
                    // A cache must not go on serving a value that the client meant to replace.
                    self.remove(key, hash, Condition::Always);
                }
                reply::too_large(out);
            }
            PutOutcome::OutOfMemory => reply::out_of_memory(out),
            PutOutcome::Away(_) => unreachable!("who has to come again is not answered"),
        }
        Step::Done
    }

    /// The length of the value that was stored, for flag `s`: of all of it where some was added.
    fn stored_len(&mut self, meta: &MetaSet<'_>, key: &[u8], hash: KeyHash) -> usize {
        if !extends(meta) || !meta.head.flags().has(b's') {
            return meta.data.len();
        }
        let found = self.store.get(&mut self.lane, key, hash, self.now.unix);
        found.map_or(meta.data.len(), |item| item.value_len())
    }

    /// Appends or prepends; with `N` a missing item is made.
    fn meta_extend(&mut self, meta: &MetaSet<'_>, put: &Put<'_>, side: Side) -> PutOutcome {
        match (self.extend(put, side), meta.vivify()) {
            (PutOutcome::NotStored, Some(ttl)) => {
                let expiry = self.end_of(ttl);
                self.put(&Put {
                    expiry,
                    condition: Condition::Absent,
                    ..*put
                })
            }
            (outcome, _) => outcome,
        }
    }

    pub(crate) fn meta_delete(
        &mut self,
        meta: &MetaDelete<'_>,
        hash: KeyHash,
        out: &mut Out,
    ) -> Step {
        if meta.clears_value() {
            match self.turn() {
                Step::Done => {}
                other => return other,
            }
        }
        let mut scratch = KeyBuf::default();
        let key = meta.head.decode_key(&mut scratch);
        let condition = Self::condition(meta.cas());
        let unix = self.now.unix;
        let outcome = if meta.clears_value() {
            self.clear_value(meta, key, hash)
        } else if meta.invalidates() {
            let asked = Invalidation {
                key,
                hash,
                condition,
                expiry: meta.ttl().map(|ttl| self.end_of(ttl)),
                cas: meta.cas_new(),
            };
            self.store
                .invalidate(self.writer, &mut self.lane, &asked, unix)
        } else {
            self.remove(key, hash, condition)
        };
        if let DeleteOutcome::Away(away) = outcome {
            return Step::Away(away);
        }
        self.counters.cmd_meta.add(1);
        self.count_delete(outcome);
        match outcome {
            DeleteOutcome::Deleted => reply::meta_deleted(out, &meta.head),
            DeleteOutcome::NotFound => {
                reply::meta_status(out, &meta.head, MetaStatus::NotFound);
            }
            DeleteOutcome::Exists => reply::meta_status(out, &meta.head, MetaStatus::Exists),
            DeleteOutcome::Away(_) => unreachable!("who has to come again is not answered"),
        }
        Step::Done
    }

    /// Flag `x`: the item stays, without value and client flags; with `I` it is stale too.
    fn clear_value(&mut self, meta: &MetaDelete<'_>, key: &[u8], hash: KeyHash) -> DeleteOutcome {
        loop {
            let Some(item) = self.store.get(&mut self.lane, key, hash, self.now.unix) else {
                // The journal may have an item that was evicted since.
                if meta.cas().is_none() {
                    self.remove(key, hash, Condition::Absent);
                }
                return DeleteOutcome::NotFound;
            };
            let seen = item.cas(&mut self.lane);
            if meta.cas().is_some_and(|asked| asked != seen) {
                return DeleteOutcome::Exists;
            }
            let ttl = meta.ttl().filter(|_| meta.invalidates());
            let put = Put {
                expiry: ttl.map_or(item.expiry(), |ttl| self.end_of(ttl)),
                condition: Condition::CasIs(seen),
                cas: meta.cas_new(),
                stale: meta.invalidates(),
                ..Put::set(key, hash, b"")
            };
            match self.put(&put) {
                // Somebody changed it meanwhile: look again.
                PutOutcome::Exists | PutOutcome::NotFound => {}
                PutOutcome::Stored { .. } => return DeleteOutcome::Deleted,
                // There is no room for it, and with its value it must not stay.
                _ => return self.remove(key, hash, Self::condition(meta.cas())),
            }
        }
    }

    pub(crate) fn meta_arith(
        &mut self,
        meta: &MetaArith<'_>,
        hash: KeyHash,
        out: &mut Out,
    ) -> Step {
        match self.turn() {
            Step::Done => {}
            other => return other,
        }
        let mut scratch = KeyBuf::default();
        let key = meta.head.decode_key(&mut scratch);
        let change = Change {
            op: meta.op,
            delta: meta.delta,
            cas: meta.cas(),
            cas_new: meta.cas_new(),
            expiry: meta.ttl().map(|ttl| self.end_of(ttl)),
        };
        let mut result = self.change_number(key, hash, &change);
        if let (Arith::NotFound, Some(ttl)) = (&result, meta.vivify()) {
            result = self.create_number(meta, key, hash, self.end_of(ttl), &change);
        }
        if let Arith::Not(step) = result {
            return step;
        }
        self.counters.cmd_meta.add(1);
        self.count_arith(meta.op, &result);
        self.keep_cas(&meta.head, key, hash);
        self.answer_arith(meta, &result, out);
        Step::Done
    }

    fn create_number(
        &mut self,
        meta: &MetaArith<'_>,
        key: &[u8],
        hash: KeyHash,
        expiry: UnixSeconds,
        change: &Change,
    ) -> Arith {
        let mut digits = itoa::Buffer::new();
        let put = Put {
            expiry,
            condition: Condition::Absent,
            cas: meta.cas_new(),
            ..Put::set(key, hash, digits.format(meta.initial).as_bytes())
        };
        match self.put(&put) {
            PutOutcome::Stored { cas } => Arith::Done {
                value: meta.initial,
                cas,
                expiry,
            },
            PutOutcome::NotStored => self.change_number(key, hash, change),
            other => Arith::Failed(other),
        }
    }

    fn answer_arith(&mut self, meta: &MetaArith<'_>, result: &Arith, out: &mut Out) {
        match *result {
            Arith::Done { value, cas, expiry } => {
                let facts = MetaFacts {
                    cas,
                    ttl_s: ttl_s(expiry, self.now.unix),
                    ..MetaFacts::default()
                };
                reply::meta_arith(out, &meta.head, value, &facts);
            }
            Arith::NotFound => reply::meta_status(out, &meta.head, MetaStatus::NotFound),
            Arith::Exists => reply::meta_status(out, &meta.head, MetaStatus::Exists),
            Arith::NotANumber => reply::non_numeric(out),
            Arith::Not(_) => unreachable!("who has to come again is not answered"),
            Arith::Failed(PutOutcome::TooLarge) => reply::too_large(out),
            Arith::Failed(_) => reply::out_of_memory(out),
        }
    }

    pub(crate) fn meta_debug(
        &mut self,
        meta: &MetaDebug<'_>,
        hash: KeyHash,
        out: &mut Out,
    ) -> Step {
        self.counters.cmd_meta.add(1);
        let mut scratch = KeyBuf::default();
        let key = if meta.base64 {
            scratch.decode(meta.key)
        } else {
            meta.key
        };
        let now = self.now.unix;
        let Some(item) = self.store.get(&mut self.lane, key, hash, now) else {
            reply::meta_debug_miss(out);
            return Step::Done;
        };
        let facts = self.facts(item, true);
        reply::meta_debug(out, meta.key, &facts, 1, key.len() + facts.len);
        Step::Done
    }
}

/// Whether an `ms` adds to a value instead of replacing it.
fn extends(meta: &MetaSet<'_>) -> bool {
    matches!(meta.verb, StoreVerb::Append | StoreVerb::Prepend)
}

/// Seconds left to live; `None` for ever.
fn ttl_s(end: UnixSeconds, now: UnixSeconds) -> Option<u32> {
    (end != UnixSeconds::NEVER).then(|| end.0.saturating_sub(now.0))
}
