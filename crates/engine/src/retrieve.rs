//! `get`, `gets`, `gat`, `gats`: one key, or many at once.
//!
//! A miss costs nothing and is never held (NyxCache section 4.2: "misses in look-aside caches are
//! simply returned after checking the index"): the gate is asked only when an item was found.

use crate::engine::{Cx, Engine, Outcome, Reach, Step, conclude};
use crate::session::Session;
use crate::worker::Worker;
use arrayvec::ArrayVec;
use nyx_base::{Now, TenantId};
use nyx_proto::{Get, Out, reply};
use nyx_store::{Item, KeyHash};

/// How many keys of a multiget are looked up together: enough to hide a memory access behind the
/// others', few enough to stay in the first cache.
const WINDOW: usize = 16;
/// A multiget that has answered this many bytes goes on when they are sent: a line of keys can ask
/// for a thousand times the memory that it takes.
const PART_BYTES: usize = 1 << 20;

/// A key of a multiget and its place in the request, from 1.
struct Wanted<'a> {
    key: &'a [u8],
    tenant: TenantId,
    hash: KeyHash,
    place: u32,
}

impl Engine {
    #[inline]
    pub(crate) fn get_one(
        &self,
        worker: &mut Worker,
        tenant: TenantId,
        get: &Get<'_>,
        hash: KeyHash,
        now: Now,
        out: &mut Out,
    ) -> Outcome {
        let mut cx = self.cx(worker, tenant, now);
        let step = cx.get(get, get.first, hash, out);
        if step == Step::Done {
            reply::end(out);
        }
        conclude(tenant, step, out)
    }

    /// Keys may belong to several tenants; where one must wait, or the answer grows long, the
    /// request waits and later goes on with the key at which it stopped.
    pub(crate) fn get_many(
        &self,
        worker: &mut Worker,
        session: &mut Session,
        get: &Get<'_>,
        now: Now,
        out: &mut Out,
    ) -> Outcome {
        let mut keys = get
            .keys()
            .zip(1u32..)
            .skip(session.keys_done as usize)
            .peekable();
        let before = out.len();
        while keys.peek().is_some() {
            let mut window: ArrayVec<Wanted<'_>, WINDOW> = ArrayVec::new();
            for (key, place) in keys.by_ref().take(WINDOW) {
                // A key that belongs to nobody here is a miss.
                if let Some(tenant) = session.tenant_of(key) {
                    let store = &self.tenants[tenant.index()].store;
                    let hash = store.hash(key);
                    store.prefetch_bucket(hash);
                    window.push(Wanted {
                        key,
                        tenant,
                        hash,
                        place,
                    });
                }
            }
            self.warm_window(worker, &window);
            for (at, wanted) in window.iter().enumerate() {
                if out.len() - before >= PART_BYTES {
                    return Outcome::Full;
                }
                let mut cx = self.cx(worker, wanted.tenant, now);
                let step = cx.get(get, wanted.key, wanted.hash, out);
                if step != Step::Done {
                    session.keys_done = if step == Step::Busy {
                        0
                    } else {
                        session.keys_done
                    };
                    if matches!(step, Step::Away(_)) {
                        self.fetch_window(worker, &window[at + 1..], now);
                    }
                    return conclude(wanted.tenant, step, out);
                }
                session.keys_done = wanted.place;
            }
        }
        session.keys_done = 0;
        reply::end(out);
        Outcome::Done
    }

    /// Begins to fetch the others of a window one of which is waited for.
    #[cold]
    fn fetch_window(&self, worker: &mut Worker, window: &[Wanted<'_>], now: Now) {
        for wanted in window {
            self.cx(worker, wanted.tenant, now)
                .fetch_ahead(wanted.key, wanted.hash);
        }
    }

    fn warm_window(&self, worker: &mut Worker, window: &[Wanted<'_>]) {
        let likely: ArrayVec<_, WINDOW> = window
            .iter()
            .map(|wanted| {
                let store = &self.tenants[wanted.tenant.index()].store;
                store.prefetch_item(wanted.hash)
            })
            .collect();
        for (&Wanted { tenant, .. }, likely) in window.iter().zip(likely) {
            if let Some(likely) = likely {
                let store = &self.tenants[tenant.index()].store;
                if let Some(lane) = worker.tolls.opened(tenant) {
                    store.prefetch_value(&lane, likely);
                }
            }
        }
    }
}

impl<'e> Cx<'e, '_> {
    /// One key of a retrieval: its `VALUE` block, or nothing where it is not there.
    #[inline]
    fn get(&mut self, get: &Get<'_>, key: &[u8], hash: KeyHash, out: &mut Out) -> Step {
        let Some(mut item) = self.store.get(&mut self.lane, key, hash, self.now.unix) else {
            return self.miss(get);
        };
        match self.reach(&mut item) {
            Reach::Here => {}
            Reach::Lost => return self.miss(get),
            Reach::Not(step) => return step,
        }
        if get.touch.is_some() && self.journal_turn() != Step::Done {
            return self.journal_turn();
        }
        self.counters.cmd_get.add(1);
        self.counters.get_hits.add(1);
        match get.touch {
            None => {
                self.send(item, key, get.with_cas, out);
                self.promote(item);
            }
            Some(exptime) => {
                self.counters.cmd_touch.add(1);
                self.counters.touch_hits.add(1);
                let expiry = exptime.resolve(self.now.unix).at(self.now.unix);
                // The answer is the item as it was found: sent before its end moves, because a
                // touch may move the item itself.
                self.send(item, key, get.with_cas, out);
                self.store.touch(
                    self.writer,
                    &mut self.lane,
                    key,
                    hash,
                    expiry,
                    self.now.unix,
                );
            }
        }
        Step::Done
    }

    fn miss(&mut self, get: &Get<'_>) -> Step {
        self.counters.cmd_get.add(1);
        self.counters.get_misses.add(1);
        if get.touch.is_some() {
            self.counters.cmd_touch.add(1);
            self.counters.touch_misses.add(1);
        }
        Step::Done
    }

    /// What was asked for often enough comes back from the deep device, or is written there too,
    /// when it has been answered.
    #[inline]
    pub(crate) fn promote(&mut self, item: Item<'e>) {
        if item.may_be_away() {
            self.store
                .promote(self.writer, &mut self.lane, &item, self.now.unix);
            self.write_back();
        }
    }

    /// Begins to fetch what will be asked for next.
    fn fetch_ahead(&mut self, key: &[u8], hash: KeyHash) {
        if let Some(mut item) = self.store.get(&mut self.lane, key, hash, self.now.unix)
            && item.is_deep()
        {
            self.reach(&mut item);
        }
    }

    #[inline]
    fn send(&mut self, item: Item<'e>, key: &[u8], with_cas: bool, out: &mut Out) {
        let cas = with_cas.then(|| item.cas(&mut self.lane));
        let len = item.value_len();
        reply::value_header(out, key, item.flags(), len, cas);
        item.read(&mut self.lane, out.space(len));
        reply::crlf(out);
        item.mark_access(&mut self.lane, self.now.unix);
    }
}
