//! A trace played straight into an engine in this process: no sockets, one worker, the trace's own
//! order and its own time, so that miss ratios depend on the trace and the eviction policy alone.
//!
//! What it never does: limit, price or delay anything. Latencies are the engine's, without a
//! network.

use super::LoadError;
use super::link::{Ask, Outcome};
use super::replay::Target;
use super::tally::Tally;
use super::wire::{Answer, Refusal, answer, exptime};
use crate::{Exit, Failure};
use nyx_base::{Bytes, Clock, Now, TenantId, UnixSeconds, WorkerId};
use nyx_engine::{Binding, Engine, EngineConfig, HoldAction, Session, TenantConfig, Worker};
use nyx_gate::{CostTable, Device};
use nyx_media::{Mapped, TscClock};
use nyx_policy::baselines::Unlimited;
use nyx_proto::response::{Parse, parse};
use nyx_proto::{Command, Exptime, Get, Out, Store, StoreVerb};
use nyx_sim::workload::trace::Request;
use nyx_sim::workload::{Op, Values, keys};
use nyx_store::{Eviction, Layout, StoreConfig};
use std::sync::Arc;
use std::time::Instant;

/// Seeds the hash of keys, fixed so that runs repeat.
const HASH_SEED: u64 = 1;
/// Stores between two rounds of housekeeping.
const HOUSEKEEPING: u64 = 65_536;

/// One tenant in an engine.
pub(crate) struct EngineTarget {
    engine: Engine,
    worker: Worker,
    session: Session,
    values: Values,
    version: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    out: Out,
    tally: Tally,
}

impl EngineTarget {
    /// An empty cache of `size` under `eviction`, for values of up to `value_len_max` bytes.
    pub(crate) fn new(
        size: Bytes,
        eviction: Eviction,
        value_len_max: u32,
    ) -> Result<EngineTarget, Failure> {
        let segment_bytes = StoreConfig::segment_bytes_for(size.0, value_len_max);
        let refused = |error: &dyn std::fmt::Display| Failure::new(Exit::Os, error.to_string());
        let medium = Mapped::anonymous(size.0.next_multiple_of(u64::from(segment_bytes)))
            .map_err(|error| refused(&error))?;
        let device = Device {
            name: "replay".into(),
            media: Arc::new(medium),
            cost: CostTable::unpriced(),
        };
        let tenant = TenantConfig {
            name: eviction.to_string(),
            device: 0,
            size,
            segment_bytes,
            item_len_max: value_len_max,
            eviction,
            layout: Layout::Split,
            hold: HoldAction::Delay,
            keep: None,
            ranges: None,
            deep: None,
        };
        let engine = Engine::new(EngineConfig {
            devices: vec![Arc::new(device)],
            deep_devices: Vec::new(),
            tenants: vec![tenant],
            tenants_max: 0,
            policy: Box::new(Unlimited).into(),
            workers: 1,
            hash_seed: HASH_SEED,
        })
        .map_err(|error| refused(&error))?;
        let clock: Arc<dyn Clock> = Arc::new(TscClock::start());
        Ok(EngineTarget {
            worker: engine.worker(WorkerId(0), clock),
            engine,
            session: Session::new(&Binding::to(TenantId(0))),
            values: Values::new(),
            version: 0,
            key: Vec::new(),
            value: Vec::new(),
            out: Out::new(),
            tally: Tally::new(),
        })
    }

    /// Executes one command and says what its answer means.
    fn execute(&mut self, ask: Ask, request: &Request, exptime: Exptime) -> Outcome<'static> {
        let command = match ask {
            Ask::Set | Ask::Fill | Ask::Insert | Ask::Rmw => Command::Store(Store {
                key: &self.key,
                data: &self.value,
                cas: 0,
                exptime,
                flags: 0,
                verb: StoreVerb::Set,
                noreply: false,
            }),
            Ask::Delete => Command::Delete {
                key: &self.key,
                noreply: false,
            },
            Ask::Touch => Command::Touch {
                key: &self.key,
                exptime,
                noreply: false,
            },
            Ask::Get | Ask::Incr | Ask::Look | Ask::Scan => Command::Get(Get {
                first: &self.key,
                rest: b"",
                count: 1,
                with_cas: false,
                touch: None,
            }),
        };
        let now = now(request);
        self.worker.enter();
        let bound = self.engine.request(&self.session, command);
        self.engine.execute(
            &mut self.worker,
            &mut self.session,
            &bound,
            now,
            &mut self.out,
        );
        self.worker.leave();
        let outcome = meaning(self.out.pending());
        self.out.consume(self.out.len());
        outcome
    }
}

/// The trace's own time, in seconds from 1 on: times to live end as they did.
fn now(request: &Request) -> Now {
    Now {
        mono: request.at,
        unix: UnixSeconds((request.at.0 / 1_000_000_000) as u32 + 1),
    }
}

/// What an answer means; a value is a hit.
fn meaning(reply: &[u8]) -> Outcome<'static> {
    if reply.starts_with(b"VALUE ") {
        return Outcome::Hit(None);
    }
    let Parse::Done { response, .. } = parse(reply) else {
        return Outcome::Refused(Refusal::Client);
    };
    match answer(&response) {
        Some(Answer::Done) => Outcome::Done,
        Some(Answer::End | Answer::More(_) | Answer::Not) => Outcome::Miss,
        Some(Answer::Refused(refusal)) => Outcome::Refused(refusal),
        None => Outcome::Refused(Refusal::Client),
    }
}

impl Target for EngineTarget {
    fn request(&mut self, request: &Request, due: Option<Instant>) -> Result<(), LoadError> {
        if let Some(due) = due {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let ask = match request.op {
            Op::Set => Ask::Set,
            Op::Delete => Ask::Delete,
            Op::Touch => Ask::Touch,
            Op::Get | Op::Incr => Ask::Get,
        };
        let len = request.value_len.unwrap_or(0);
        self.key.clear();
        keys::write_padded(
            b"",
            request.key,
            usize::from(request.key_len),
            &mut self.key,
        );
        let write = |target: &mut EngineTarget| {
            target.version += 1;
            target.value.clear();
            target
                .values
                .write(request.key, target.version, len as usize, &mut target.value);
        };
        if ask == Ask::Set {
            write(self);
        }
        let start = Instant::now();
        let outcome = self.execute(ask, request, exptime(request.ttl_s));
        self.tally.latency(ask, start.elapsed().as_nanos() as u64);
        self.tally.key(ask, len, outcome);
        if let (Ask::Get, Outcome::Miss) = (ask, outcome) {
            write(self);
            let filled = self.execute(Ask::Fill, request, Exptime::NEVER);
            self.tally.key(Ask::Fill, len, filled);
        }
        // The bounded housekeeping that a server does once a second.
        if self.version.is_multiple_of(HOUSEKEEPING) {
            self.worker.enter();
            self.engine.maintain(&mut self.worker, now(request));
            self.worker.leave();
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), LoadError> {
        Ok(())
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }
}
