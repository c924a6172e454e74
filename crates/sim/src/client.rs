//! A closed-loop client that talks to an engine without a socket: uniform random keys, values of
//! one size, gets and in-place replaces, as in NyxCache section 4 ("Synthetic Workloads").
//!
//! What it never does: read a clock or wait. The driver - virtual or real - hands the time in and
//! is told when to come again. A held request is asked again, never dropped.

use nyx_base::{Bytes, Instant, Now, Rng, TenantId};
use nyx_engine::{Binding, Engine, HoldAction, Outcome, Request, Session, TenantConfig, Worker};
use nyx_proto::{Command, Exptime, Get, Out, Store, StoreVerb};
use nyx_store::{Eviction, Layout};

/// What a client asks for.
#[derive(Clone, Debug)]
pub struct Load {
    /// Whose client it is.
    pub tenant: TenantId,
    /// How many keys the tenant holds.
    pub keys: u64,
    /// Gets are spread over this many keys, of which only `keys` are there: the hit ratio is
    /// `keys / asked`.
    pub asked: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Part of the operations that are gets, 0 to 1; the others replace a value.
    pub gets: f64,
    /// How many requests are warmed together.
    pub batch: usize,
    /// How the tenant keeps its items; drivers without a store leave keys out.
    pub layout: Layout,
}

const SEGMENT_BYTES: u32 = 1 << 20;
/// Keys, headers and padding of an item, generously.
const ITEM_OVERHEAD_BYTES: u64 = 96;

impl Load {
    /// Gets and replaces of keys that are all there.
    pub fn uniform(keys: u64, value_bytes: usize, gets: f64, batch: usize) -> Load {
        Load {
            tenant: TenantId(0),
            keys,
            asked: keys,
            value_bytes,
            gets,
            batch,
            layout: Layout::Split,
        }
    }

    /// A tenant with room for twice what this keeps, and for the segments that so many workers keep
    /// open.
    pub fn tenant(&self, name: &str, workers: u16) -> TenantConfig {
        let live = self.keys * (self.value_bytes as u64 + ITEM_OVERHEAD_BYTES);
        let open = (u64::from(workers) + 8) * 4 * u64::from(SEGMENT_BYTES);
        TenantConfig {
            name: name.into(),
            device: 0,
            size: Bytes((live * 2 + open).next_multiple_of(u64::from(SEGMENT_BYTES))),
            segment_bytes: SEGMENT_BYTES,
            item_len_max: SEGMENT_BYTES,
            eviction: Eviction::Fifo,
            layout: self.layout,
            hold: HoldAction::Delay,
            keep: None,
            ranges: None,
            deep: None,
        }
    }
}

/// What a client has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Requests answered.
    pub ops: u64,
    /// Gets that found something.
    pub hits: u64,
    /// How often a request was held.
    pub holds: u64,
    /// A hash of all lengths answered, in order: equal runs have equal traces.
    pub trace: u64,
}

/// The most requests that a client warms together.
pub const BATCH_MAX: usize = 32;
const KEY_BYTES: usize = 16;

/// One client.
pub struct Client {
    load: Load,
    session: Session,
    rng: Rng,
    /// The batch in hand, and how much of it is answered: what was held is asked again as it was.
    picks: [(u64, bool); BATCH_MAX],
    at: usize,
    value: Vec<u8>,
    out: Out,
    done: Done,
}

fn key_of(index: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"k00000000000000k";
    let mut rest = index;
    for digit in key[1..KEY_BYTES - 1].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

impl Client {
    /// A client; the same seed asks the same.
    pub fn new(load: Load, seed: u64) -> Client {
        let batch = load.batch.clamp(1, BATCH_MAX);
        let session = Session::new(&Binding::to(load.tenant));
        let value = vec![b'v'; load.value_bytes];
        let mut client = Client {
            load: Load { batch, ..load },
            session,
            rng: Rng::with_seed(seed),
            picks: [(0, false); BATCH_MAX],
            at: 0,
            value,
            out: Out::new(),
            done: Done::default(),
        };
        client.pick();
        client
    }

    /// What it has done so far.
    pub fn done(&self) -> Done {
        self.done
    }

    fn pick(&mut self) {
        for pick in &mut self.picks[..self.load.batch] {
            let get = self.rng.f64() < self.load.gets;
            let among = if get { self.load.asked } else { self.load.keys };
            *pick = (self.rng.u64(..among), get);
        }
        self.at = 0;
    }

    /// Stores every key once. For drivers that have set no limit yet; panics where the engine
    /// refuses, because what follows would measure something else.
    pub fn fill(&mut self, engine: &Engine, worker: &mut Worker, now: Now) {
        for index in 0..self.load.keys {
            worker.enter();
            let key = key_of(index);
            let request = engine.request(&self.session, set(&key, &self.value));
            let outcome = engine.execute(worker, &mut self.session, &request, now, &mut self.out);
            let stored = self.out.pending() == b"STORED\r\n";
            assert!(
                outcome == Outcome::Done && stored,
                "filling stopped at key {index}: {outcome:?}"
            );
            self.out.consume(self.out.len());
        }
        worker.leave();
    }

    /// Executes what is left of the batch in hand. Tells when to come again where the tenant must
    /// wait.
    pub fn step(&mut self, engine: &Engine, worker: &mut Worker, now: Now) -> Option<Instant> {
        worker.enter();
        let picks = self.picks;
        let mut keys = [[0; KEY_BYTES]; BATCH_MAX];
        for (key, pick) in keys.iter_mut().zip(&picks[self.at..self.load.batch]) {
            *key = key_of(pick.0);
        }
        let n = self.load.batch - self.at;
        let mut requests: arrayvec::ArrayVec<Request<'_>, BATCH_MAX> = keys[..n]
            .iter()
            .zip(&picks[self.at..])
            .map(|(key, &(_, is_get))| {
                let command = if is_get {
                    get(key)
                } else {
                    set(key, &self.value)
                };
                engine.request(&self.session, command)
            })
            .collect();
        requests
            .iter_mut()
            .for_each(|request| engine.warm_item(request));
        requests
            .iter()
            .for_each(|request| engine.warm_value(worker, request));
        let mut wait = None;
        for request in &requests {
            match engine.execute(worker, &mut self.session, request, now, &mut self.out) {
                Outcome::Held { until, .. } => {
                    self.done.holds += 1;
                    wait = Some(until);
                    break;
                }
                _ => self.at += 1,
            }
            let answered = self.out.len();
            self.done.ops += 1;
            self.done.hits += u64::from(answered > self.load.value_bytes);
            self.done.trace = self.done.trace.rotate_left(7) ^ answered as u64;
            self.out.consume(answered);
        }
        worker.settle();
        drop(requests);
        // It may be long until its turn comes again, and others may need what it has looked at.
        worker.leave();
        if self.at == self.load.batch {
            self.pick();
        }
        wait
    }
}

/// A `get` of one key.
pub fn get(key: &[u8]) -> Command<'_> {
    Command::Get(Get {
        first: key,
        rest: b"",
        count: 1,
        with_cas: false,
        touch: None,
    })
}

/// A `set` without end or flags.
pub fn set<'a>(key: &'a [u8], data: &'a [u8]) -> Command<'a> {
    Command::Store(Store {
        key,
        data,
        cas: 0,
        exptime: Exptime::NEVER,
        flags: 0,
        verb: StoreVerb::Set,
        noreply: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinct_and_printable() {
        assert_eq!(&key_of(0), b"k00000000000000k");
        assert_eq!(&key_of(1_234_567), b"k00000001234567k");
    }
}
