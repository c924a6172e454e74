//! An engine on anonymous memory, a worker and a clock that stands still until it is told to move.
//!
//! What it never does: open a socket, or know what an answer should be.
#![allow(dead_code, reason = "each test uses its part of the rig")]

use nyx_base::{Bytes, Clock, Instant, Nanos, Now, TenantId, UnixSeconds, WorkerId};
use nyx_engine::{
    Binding, DeepShare, Engine, EngineConfig, HoldAction, Outcome, Session, TenantConfig, Worker,
    WriteMode,
};
use nyx_gate::{CostTable, Device};
use nyx_media::queue::{DeepFile, Through};
use nyx_media::{Mapped, Media};
use nyx_policy::Policy;
use nyx_policy::baselines::Unlimited;
use nyx_policy::nhc::{Bounds, Nhc};
use nyx_proto::{Limits, Out, Parse, parse, reply};
use nyx_store::{Eviction, Layout};
use nyx_tier::Deep;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The Unix second at which every test starts.
pub(crate) const START_S: u32 = 1_700_000_000;
/// Accesses a second, of any kind and size up to 4 KiB, that the rig's device is priced at.
pub(crate) const OPS_PER_S: f64 = 1e6;
/// The same of a deep device.
pub(crate) const DEEP_OPS_PER_S: f64 = 1e4;

/// A clock that moves only when it is told to.
#[derive(Debug, Default)]
pub(crate) struct HandClock(AtomicU64);

impl HandClock {
    /// Moves on.
    pub(crate) fn advance(&self, by: Nanos) {
        self.0.fetch_add(by.0, Relaxed);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Instant {
        Instant(self.0.load(Relaxed))
    }

    fn spin_until(&self, until: Instant) {
        self.0.fetch_max(until.0, Relaxed);
    }
}

/// A tenant with room for everything that a small test stores.
pub(crate) fn roomy(name: &str) -> TenantConfig {
    TenantConfig {
        name: name.to_owned(),
        device: 0,
        size: Bytes(32 << 20),
        segment_bytes: 64 << 10,
        item_len_max: 4096,
        eviction: Eviction::S3Fifo,
        layout: Layout::Split,
        hold: HoldAction::Delay,
        keep: None,
        ranges: None,
        deep: None,
    }
}

/// A small tenant with a larger part of a deep device.
pub(crate) fn deep(name: &str) -> TenantConfig {
    TenantConfig {
        size: Bytes(8 << 20),
        eviction: Eviction::Fifo,
        deep: Some(DeepShare {
            device: 0,
            size: Bytes(64 << 20),
            item_len_min: 1,
            day: None,
            write: WriteMode::Back,
            nhc: Nhc::Classic,
            bounds: Bounds::default(),
        }),
        ..roomy(name)
    }
}

/// An engine and one worker on it.
pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) worker: Worker,
    pub(crate) clock: Arc<HandClock>,
    pub(crate) unix: UnixSeconds,
    /// Its deep device, if a tenant has one.
    pub(crate) deep: Option<Arc<Deep>>,
    _dir: Option<tempfile::TempDir>,
}

/// A device second of writes hurts the latency of others so many times as much as one of reads.
pub(crate) const WRITE_LATENCY_PRICE: f64 = 3.0;

impl Rig {
    /// Without a limit.
    pub(crate) fn new(tenants: Vec<TenantConfig>) -> Rig {
        Rig::under(tenants, Box::new(Unlimited))
    }

    /// Under a policy.
    pub(crate) fn under(tenants: Vec<TenantConfig>, policy: Box<dyn Policy>) -> Rig {
        Rig::roomy(tenants, policy, 0, 0)
    }

    /// With so many bytes of the device to spare, and room for so many tenants in all.
    pub(crate) fn roomy(
        tenants: Vec<TenantConfig>,
        policy: Box<dyn Policy>,
        spare_bytes: u64,
        tenants_max: usize,
    ) -> Rig {
        let len: u64 = tenants.iter().map(|tenant| tenant.size.0 + (2 << 20)).sum();
        let memory = Mapped::anonymous(len + spare_bytes).expect("anonymous memory");
        let dir = tempfile::tempdir().expect("a directory");
        let ground = (Arc::new(memory) as Arc<dyn Media>, dir.path());
        let rig = Rig::on(ground, tenants, policy, tenants_max);
        Rig {
            _dir: Some(dir),
            ..rig
        }
    }

    /// On memory that stays, and on a deep file in a directory that does, if a tenant has one.
    pub(crate) fn on(
        (media, dir): (Arc<dyn Media>, &Path),
        tenants: Vec<TenantConfig>,
        policy: Box<dyn Policy>,
        tenants_max: usize,
    ) -> Rig {
        let device = Device {
            name: "memory".into(),
            media,
            cost: CostTable::from_max_iops(&[OPS_PER_S; _], &[OPS_PER_S; _])
                .with_latency_prices(&[1.0; _], &[WRITE_LATENCY_PRICE; _]),
        };
        let shares = tenants.iter().filter_map(|tenant| tenant.deep);
        let deep_len: u64 = shares.map(|share| share.size.0).sum();
        let deep = (deep_len > 0).then(|| {
            let file = DeepFile::open(&dir.join("deep"), Some(deep_len)).expect("room");
            let deep = Deep::new(
                "deep".into(),
                file,
                CostTable::from_max_iops(&[DEEP_OPS_PER_S; _], &[DEEP_OPS_PER_S; _]),
                Through::Auto,
                None,
            );
            Arc::new(deep)
        });
        let engine = Engine::new(EngineConfig {
            devices: vec![Arc::new(device)],
            deep_devices: deep.clone().into_iter().collect(),
            tenants,
            tenants_max,
            policy: policy.into(),
            workers: 1,
            hash_seed: 42,
        })
        .expect("an engine");
        let clock = Arc::new(HandClock::default());
        Rig {
            worker: engine.worker(WorkerId(0), clock.clone()),
            unix: UnixSeconds(START_S),
            engine,
            clock,
            deep,
            _dir: None,
        }
    }

    /// Now, by both clocks.
    pub(crate) fn now(&self) -> Now {
        Now {
            mono: self.clock.now(),
            unix: self.unix,
        }
    }

    /// Moves both clocks on.
    pub(crate) fn wait_s(&mut self, seconds: u32) {
        self.unix.0 += seconds;
        self.clock.advance(Nanos::from_secs(u64::from(seconds)));
    }

    /// A connection to one tenant alone.
    pub(crate) fn to(&self, tenant: u16) -> Session {
        Session::new(&Binding::to(TenantId(tenant)))
    }

    /// One request, executed once: how it ended. Its answer is appended to `out`.
    pub(crate) fn try_once(
        &mut self,
        session: &mut Session,
        request: &[u8],
        out: &mut Out,
    ) -> Outcome {
        let limits = self.engine.limits(session);
        self.try_within(&limits, session, request, out)
    }

    /// [`Rig::try_once`] with limits that were asked for before, as a driver does it.
    pub(crate) fn try_within(
        &mut self,
        limits: &Limits,
        session: &mut Session,
        request: &[u8],
        out: &mut Out,
    ) -> Outcome {
        let command = match parse(request, limits) {
            Parse::Done { command, .. } => command,
            Parse::Bad { error, .. } => {
                reply::proto_error(out, error);
                return Outcome::Done;
            }
            Parse::Need { .. } => panic!("{} is not complete", request.escape_ascii()),
        };
        self.worker.enter();
        let mut bound = self.engine.request(session, command);
        self.engine.warm_item(&mut bound);
        self.engine.warm_value(&mut self.worker, &bound);
        let now = self.now();
        let outcome = self
            .engine
            .execute(&mut self.worker, session, &bound, now, out);
        self.worker.leave();
        outcome
    }

    /// Takes in what comes from the deep device, until nothing is on its way there.
    pub(crate) fn land(&mut self) {
        loop {
            let now = self.now();
            self.engine.land(&mut self.worker, now, |_| {});
            let hands = self.worker.deep_hands();
            if hands.iter().all(|hand| hand.in_flight() == 0) {
                return;
            }
        }
    }

    /// One request that must not be held, and its answer. Where it is told to come again when
    /// something has landed, it does.
    pub(crate) fn ask(&mut self, session: &mut Session, request: &[u8]) -> Vec<u8> {
        let mut out = Out::new();
        let mut outcome = self.try_once(session, request, &mut out);
        while let Outcome::Away { .. } = outcome {
            self.land();
            outcome = self.try_once(session, request, &mut out);
        }
        let is_done = matches!(outcome, Outcome::Done | Outcome::Turn);
        assert!(is_done, "{}: {outcome:?}", request.escape_ascii());
        out.pending().to_vec()
    }

    /// [`Rig::ask`], for requests and answers that are text.
    pub(crate) fn say(&mut self, session: &mut Session, request: &str) -> String {
        let answer = self.ask(session, request.as_bytes());
        String::from_utf8(answer).expect("a text answer")
    }
}
