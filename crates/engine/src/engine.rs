//! The engine itself: makes tenants, binds commands to them, hands each to the module that does it.

use crate::config::{EngineConfig, EngineError};
use crate::control::{Controller, DeepRule, Policies};
use crate::counters::Counters;
use crate::ground::{AllGiven, Ground};
use crate::session::Session;
use crate::tenant::Tenant;
use crate::tenants::Tenants;
use crate::worker::Worker;
use nyx_base::{Clock, Instant, Now, TenantId, WorkerId};
use nyx_gate::{Device, Gate};
use nyx_proto::{Command, KeyBuf, Limits, Out, reply};
use nyx_store::{Eras, Item, KeyHash, Likely, Presence, Store, Writer};
use nyx_tier::{Away, Deep, Done, Hand, Lane, Tolls, What};
use std::sync::{Arc, Mutex};

/// The tenants of a process and who decides over them. Shared by all workers.
pub struct Engine {
    pub(crate) tenants: Tenants,
    pub(crate) devices: Vec<Arc<Device>>,
    pub(crate) deep_devices: Vec<Arc<Deep>>,
    pub(crate) eras: Arc<Eras>,
    pub(crate) controller: Mutex<Controller>,
    /// Of each deep device.
    pub(crate) deep_rules: Vec<DeepRule>,
    pub(crate) ground: Mutex<Ground>,
    workers: u16,
}

/// A command, its tenant, its key's hash and, once it was warmed, the item that is likely meant.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub(crate) command: Command<'a>,
    pub(crate) tenant: Option<TenantId>,
    pub(crate) hash: KeyHash,
    likely: Option<Likely>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered, unless the client wanted no answer.
    Done,
    /// Answered, and it took long: the next request of the same client is to wait until the others
    /// had their turn.
    Turn,
    /// Its tenant must wait: execute the same request again at `until`. What it had answered so far
    /// may be sent.
    Held {
        /// Whose budget is used up.
        tenant: TenantId,
        /// When to ask again; [`Instant::NEVER`] means when the controller has ticked.
        until: Instant,
    },
    /// A value is being fetched from a deep device: execute the same request again when that has
    /// landed. What it had answered so far may be sent.
    Away {
        /// Whose value.
        tenant: TenantId,
        /// What to wait for.
        away: Away,
    },
    /// The answer is as long as a driver should have to hold: execute the same request again when
    /// what there is of it has been sent.
    Full,
    /// Close the connection once its output is written.
    Close,
    /// The driver is to answer statistics: see [`crate::stats`].
    Stats,
    /// The client asks the process to stop.
    Shutdown,
}

/// How often [`Store::sweep`], [`Store::reorder`] and [`Store::rewrite`] are called at once.
const STEPS: usize = 8;
/// How many tenants one turn of housekeeping looks at, until one has more to do.
const TENANTS: usize = 16;

/// How one step inside a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Done,
    Wait(Instant),
    Busy,
    Away(Away),
}

/// What became of the value of an item that was found.
pub(crate) enum Reach {
    Here,
    /// It could not be read: the item is gone.
    Lost,
    /// Not yet.
    Not(Step),
}

/// A tenant and a worker's hands on it, for the length of one command.
pub(crate) struct Cx<'e, 'w> {
    pub(crate) tenant: &'e Tenant,
    pub(crate) store: &'e Store,
    pub(crate) counters: &'e Counters,
    pub(crate) lane: Lane<'w>,
    pub(crate) writer: &'w mut Writer,
    pub(crate) now: Now,
}

impl Cx<'_, '_> {
    /// Whether the tenant may access its device now.
    #[inline]
    pub(crate) fn turn(&mut self) -> Step {
        let gate = self.lane.gate(self.now.mono);
        self.pass(gate)
    }

    /// Whether the value of an item may and can be read now: the gate of the device that it is on
    /// is asked, and what is deep is fetched. What has landed has been paid for.
    #[inline]
    pub(crate) fn reach(&mut self, item: &mut Item<'_>) -> Reach {
        if item.may_be_away() {
            return self.reach_either(item);
        }
        match self.turn() {
            Step::Done => Reach::Here,
            step => Reach::Not(step),
        }
    }

    fn reach_either(&mut self, item: &mut Item<'_>) -> Reach {
        let (worker, now) = (self.writer.worker(), self.now.mono);
        match self.store.fetch(worker, &mut self.lane, item, now) {
            Presence::Here => {
                // What has landed was paid for when it was asked for.
                let step = match item.is_deep() {
                    true => Step::Done,
                    false => self.turn(),
                };
                if step != Step::Done {
                    return Reach::Not(step);
                }
                self.store.answered(&self.lane, item);
                Reach::Here
            }
            Presence::Lost => Reach::Lost,
            Presence::Away(away) => Reach::Not(Step::Away(away)),
            Presence::Closed(gate) => Reach::Not(self.pass(gate)),
        }
    }

    /// Takes some steps of background work, if there is any, as long as the tenant may access its
    /// device or they are urgent; whether there is more.
    fn while_open(
        &mut self,
        is_urgent: bool,
        mut more: bool,
        mut step: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        for _ in 0..STEPS {
            if !more || !is_urgent && !matches!(self.lane.gate(self.now.mono), Gate::Open) {
                break;
            }
            more = step(self);
        }
        more
    }

    /// Sets off what waits to be written to the deep device, as far as that takes it now; and what
    /// makes room there, where it is time for that.
    #[inline]
    pub(crate) fn write_back(&mut self) {
        if self.store.has_to_write(self.writer) {
            let now = self.now.mono;
            self.store.write_back(self.writer, &mut self.lane, now);
        }
        if self.store.has_to_compact() {
            self.compact();
        }
    }

    /// Goes on to free segments of the deep device, where few are left.
    pub(crate) fn compact(&mut self) {
        let now = (self.now.mono, self.now.unix);
        self.store.compact(self.writer, &mut self.lane, now);
    }

    /// What the gate said.
    #[inline]
    pub(crate) fn pass(&mut self, gate: Gate) -> Step {
        match gate {
            Gate::Open => Step::Done,
            Gate::Closed { .. } if self.tenant.rejects() => {
                self.counters.rejected.add(1);
                Step::Busy
            }
            Gate::Closed { until } => Step::Wait(until),
        }
    }
}

/// Ends a command as its step ended; a step that was refused is answered here.
#[inline]
pub(crate) fn conclude(tenant: TenantId, step: Step, out: &mut Out) -> Outcome {
    match step {
        Step::Done => Outcome::Done,
        Step::Wait(until) => Outcome::Held { tenant, until },
        Step::Away(away) => Outcome::Away { tenant, away },
        Step::Busy => {
            reply::busy(out);
            Outcome::Done
        }
    }
}

impl Engine {
    /// An engine, or why not.
    pub fn new(config: EngineConfig) -> Result<Engine, EngineError> {
        let eras = Arc::new(Eras::new(config.workers));
        let room = config.tenants_max.max(config.tenants.len());
        let mut ground = Ground {
            given: AllGiven::nothing(config.devices.len(), config.deep_devices.len()),
            devices: config.devices.clone(),
            deep_devices: config.deep_devices.clone(),
            eras: eras.clone(),
            workers: config.workers,
            hash_seed: config.hash_seed,
            room,
        };
        let tenants = Tenants::with_room(room);
        let made = ground.settle(0, config.tenants)?;
        made.into_iter().for_each(|tenant| tenants.push(tenant));
        let Policies { fast, deep } = config.policy;
        let controller = Mutex::new(Controller::new(fast, tenants.len()));
        let deep_rules = DeepRule::each(deep, config.deep_devices.len(), tenants.len());
        let engine = Engine {
            tenants,
            devices: config.devices,
            deep_devices: config.deep_devices,
            eras,
            controller,
            deep_rules,
            ground: Mutex::new(ground),
            workers: config.workers,
        };
        engine.control(Instant(0));
        Ok(engine)
    }

    /// The hands of `worker`: make them once, on the thread that will use them.
    ///
    /// Panics where the system has no queues to a deep device.
    pub fn worker(&self, worker: WorkerId, clock: Arc<dyn Clock>) -> Worker {
        let mut worker = Worker {
            tolls: Tolls::new(worker, clock),
            writers: Vec::new(),
            eras: self.eras.clone(),
            maintained: 0,
            unfinished: false,
        };
        for deep in &self.deep_devices {
            let hand = Hand::new(deep.clone());
            let no_queues = |error| panic!("deep device {:?}: {error}", deep.name);
            worker.tolls.add(hand.unwrap_or_else(no_queues));
        }
        self.open(&mut worker);
        worker
    }

    /// Gives a worker its hands on those tenants that came since it was made, or was here last.
    fn open(&self, worker: &mut Worker) {
        for tenant in self.tenants.iter().skip(worker.writers.len()) {
            let (account, budget) = (tenant.account(worker.id()), tenant.budget.clone());
            let device = tenant.device.clone();
            worker.tolls.open(tenant.id, device, account, budget);
            if let Some(deep) = &tenant.deep {
                let (account, budget) = (deep.account(worker.id()), deep.budget.clone());
                let tolls = &mut worker.tolls;
                tolls.open_deep(tenant.id, &deep.pair, account, budget);
            }
            worker.writers.push(tenant.store.writer(worker.id()));
        }
    }

    /// How many workers there are.
    pub fn workers(&self) -> u16 {
        self.workers
    }

    /// The tenants; a tenant's id is its place.
    pub fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// The devices.
    pub fn devices(&self) -> &[Arc<Device>] {
        &self.devices
    }

    /// The deep devices.
    pub fn deep_devices(&self) -> &[Arc<Deep>] {
        &self.deep_devices
    }

    /// What the parser should accept from a connection: the longest item of the tenants within its
    /// reach. Each tenant's own store refuses what is too long for it.
    pub fn limits(&self, session: &Session) -> Limits {
        let within = session.tenants();
        let longest = within
            .iter()
            .map(|t| self.tenants[t.index()].config.item_len_max)
            .max();
        Limits {
            item_len_max: longest.unwrap_or(1 << 20) as usize,
            ..Limits::default()
        }
    }

    /// Binds a command to its tenant, hashes its first key and asks for its bucket.
    #[inline]
    pub fn request<'a>(&self, session: &Session, command: Command<'a>) -> Request<'a> {
        let Some(key) = command.first_key() else {
            return Request {
                command,
                tenant: session.sole_tenant(),
                hash: KeyHash(0),
                likely: None,
            };
        };
        // Cleared only for the rare key that needs it, not for every request.
        let mut scratch;
        let key = if command.is_base64() {
            scratch = KeyBuf::default();
            scratch.decode(key)
        } else {
            key
        };
        let tenant = session.tenant_of(key);
        let hash = match tenant {
            Some(tenant) => {
                let store = &self.tenants[tenant.index()].store;
                let hash = store.hash(key);
                store.prefetch_bucket(hash);
                hash
            }
            None => KeyHash(0),
        };
        Request {
            command,
            tenant,
            hash,
            likely: None,
        }
    }

    /// Brings the request's item near, once its bucket is.
    #[inline]
    pub fn warm_item(&self, request: &mut Request<'_>) {
        if let Some(tenant) = request.tenant {
            let store = &self.tenants[tenant.index()].store;
            request.likely = store.prefetch_item(request.hash);
        }
    }

    /// Brings the request's value near, once its item is. Call it before anything is executed.
    #[inline]
    pub fn warm_value(&self, worker: &mut Worker, request: &Request<'_>) {
        let (Some(tenant), Some(likely)) = (request.tenant, request.likely) else {
            return;
        };
        if matches!(request.command, Command::Get(_) | Command::MetaGet(_)) {
            let store = &self.tenants[tenant.index()].store;
            // A worker that is new to the tenant has no lane yet; nothing is lost but time.
            if let Some(lane) = worker.tolls.opened(tenant) {
                store.prefetch_value(&lane, likely);
            }
        }
    }

    /// Does what the request says.
    #[inline]
    pub fn execute(
        &self,
        worker: &mut Worker,
        session: &mut Session,
        request: &Request<'_>,
        now: Now,
        out: &mut Out,
    ) -> Outcome {
        match request.command.changes() {
            true => self.execute_change(worker, session, request, now, out),
            false => self.execute_now(worker, session, request, now, out),
        }
    }

    /// The same, whatever a journal says.
    #[inline]
    pub(crate) fn execute_now(
        &self,
        worker: &mut Worker,
        session: &mut Session,
        request: &Request<'_>,
        now: Now,
        out: &mut Out,
    ) -> Outcome {
        if let Command::Get(get) = &request.command {
            return match (get.count, request.tenant) {
                (1, Some(tenant)) => self.get_one(worker, tenant, get, request.hash, now, out),
                _ => self.get_many(worker, session, get, now, out),
            };
        }
        if let Command::Lease(lease) = &request.command {
            return self.lease(worker, session, lease, now, out);
        }
        match request.tenant {
            Some(tenant) => self.execute_keyed(worker, tenant, request, now, out),
            None => self.execute_unkeyed(session, request, out),
        }
    }

    fn execute_keyed(
        &self,
        worker: &mut Worker,
        tenant: TenantId,
        request: &Request<'_>,
        now: Now,
        out: &mut Out,
    ) -> Outcome {
        let hash = request.hash;
        let mut cx = self.cx(worker, tenant, now);
        let step = match &request.command {
            Command::Store(store) => cx.store(store, hash, out),
            Command::Delete { key, noreply } => cx.delete(key, hash, *noreply, out),
            Command::Arith {
                key,
                op,
                delta,
                noreply,
            } => cx.arith(key, hash, *op, *delta, *noreply, out),
            Command::Touch {
                key,
                exptime,
                noreply,
            } => cx.touch(key, hash, *exptime, *noreply, out),
            Command::TooLarge(too_large) => cx.too_large(too_large, hash, out),
            Command::Scan(scan) => {
                return match cx.scan(scan, out) {
                    Step::Done => Outcome::Turn,
                    step => conclude(tenant, step, out),
                };
            }
            Command::MetaGet(meta) => cx.meta_get(meta, hash, out),
            Command::MetaSet(meta) => cx.meta_set(meta, hash, out),
            Command::MetaDelete(meta) => cx.meta_delete(meta, hash, out),
            Command::MetaArith(meta) => cx.meta_arith(meta, hash, out),
            Command::MetaDebug(meta) => cx.meta_debug(meta, hash, out),
            Command::FlushAll { delay, noreply } => cx.flush_all(*delay, *noreply, out),
            other => return unkeyed(other, out),
        };
        conclude(tenant, step, out)
    }

    /// Commands that no tenant within reach can take: those without a key, and keys that belong to
    /// nobody here.
    fn execute_unkeyed(&self, session: &Session, request: &Request<'_>, out: &mut Out) -> Outcome {
        match &request.command {
            Command::FlushAll { noreply, .. } => {
                if !noreply {
                    reply::client_error(
                        out,
                        "several tenants share this port: flush_all is refused",
                    );
                }
                Outcome::Done
            }
            Command::Scan(scan) if scan.first_key().is_none() => {
                let message = "several tenants share this port: a scan names a prefix or a key";
                reply::client_error(out, message);
                Outcome::Done
            }
            command if command.first_key().is_some() => {
                debug_assert!(session.sole_tenant().is_none());
                reply::client_error(out, "no tenant has this key's prefix");
                Outcome::Done
            }
            command => unkeyed(command, out),
        }
    }

    #[inline]
    pub(crate) fn cx<'e, 'w>(
        &'e self,
        worker: &'w mut Worker,
        tenant: TenantId,
        now: Now,
    ) -> Cx<'e, 'w> {
        // The check of the bounds that there is anyway: newcomers cost the others nothing.
        if tenant.index() >= worker.writers.len() {
            return self.cx_anew(worker, tenant, now);
        }
        let id = worker.id();
        let tenant = &self.tenants[tenant.index()];
        let (lane, writer) = worker.hands(tenant.id);
        Cx {
            tenant,
            store: &tenant.store,
            counters: tenant.counters(id),
            lane,
            writer,
            now,
        }
    }

    /// [`Engine::cx`] of a tenant that came after the worker had been here last.
    #[cold]
    #[inline(never)]
    fn cx_anew<'e, 'w>(&'e self, worker: &'w mut Worker, tenant: TenantId, now: Now) -> Cx<'e, 'w> {
        self.open(worker);
        assert!(
            tenant.index() < worker.writers.len(),
            "there is no {tenant}"
        );
        self.cx(worker, tenant, now)
    }

    /// Takes in what has landed from deep devices since, and tells of what somebody may wait for:
    /// execute those requests again. Within no batch. Call it when a hand's event says so, and
    /// again while [`Worker::is_restless`].
    pub fn land(&self, worker: &mut Worker, now: Now, landed: impl FnMut(Away)) {
        worker.tolls.land(now.mono, landed);
        while let Some(Done { tenant, tag, what }) = worker.tolls.next_done() {
            let mut cx = self.cx(worker, tenant, now);
            let (store, w, lane) = (cx.store, &mut *cx.writer, &mut cx.lane);
            match what {
                What::Written => store.written(w, lane, (tag, true), now.unix),
                What::NotWritten => store.written(w, lane, (tag, false), now.unix),
                What::Read(bytes) => store.compacted(w, lane, (tag, Some(bytes)), now.unix),
                What::NotRead => store.compacted(w, lane, (tag, None), now.unix),
            }
            cx.write_back();
            cx.compact();
        }
    }

    /// Bounded housekeeping of one worker: frees what has expired, some tenants at a time. True
    /// where there is more to do at once.
    pub fn maintain(&self, worker: &mut Worker, now: Now) -> bool {
        // Whoever has to wait for its budget holds up nobody else.
        for tenant in self.tenants.iter().skip(worker.maintained).take(TENANTS) {
            worker.maintained += 1;
            let has_more = self.maintain_one(worker, tenant, now);
            worker.unfinished |= has_more;
            if has_more {
                break;
            }
        }
        if worker.maintained < self.tenants.len() {
            return true;
        }
        worker.maintained = 0;
        std::mem::take(&mut worker.unfinished)
    }

    /// The same for one tenant.
    fn maintain_one(&self, worker: &mut Worker, tenant: &Tenant, now: Now) -> bool {
        let mut cx = self.cx(worker, tenant.id, now);
        let expires = cx.store.expire(cx.writer, &mut cx.lane, now.unix);
        let is_urgent = cx.store.must_rewrite();
        // What the sweep reads is the tenant's to pay, and it waits as the tenant does.
        let sweeps = cx.while_open(is_urgent, cx.store.is_sweeping(), |cx| {
            cx.store.sweep(&mut cx.lane)
        });
        let orders = cx.while_open(false, cx.store.is_reordering(), |cx| {
            cx.store.reorder(cx.writer, &mut cx.lane, now.unix)
        });
        cx.write_back();
        cx.compact();
        let follows = cx.store.is_behind() && cx.store.follow(cx.writer, &mut cx.lane, now.unix);
        let rewrites = cx.while_open(is_urgent, cx.store.is_rewriting(), |cx| {
            cx.store.rewrite(cx.writer, &mut cx.lane, now.unix)
        });
        sweeps || orders || follows || expires || rewrites
    }
}

impl Engine {
    /// Closes what survives, when all workers have stopped.
    pub fn close(&self) -> Result<(), EngineError> {
        // All of them, whatever becomes of one.
        let closed = self.tenants.iter().map(|tenant| {
            // What the deep device has lost then is missed, and all else is there.
            let synced = tenant.sync_deep();
            tenant
                .store
                .close()
                .and(synced)
                .map_err(|source| EngineError::Store {
                    tenant: tenant.name().to_owned(),
                    source,
                })
        });
        closed.fold(Ok(()), Result::and)
    }
}

/// What `version` answers: first the memcached release whose protocol is spoken, because clients
/// and test suites decide by it what to expect, then our own.
pub(crate) const VERSION: &str = concat!("1.6.18-nyx-", env!("CARGO_PKG_VERSION"));

fn unkeyed(command: &Command<'_>, out: &mut Out) -> Outcome {
    match command {
        Command::Version => reply::version(out, VERSION),
        Command::MetaNoop => reply::meta_noop(out),
        Command::Verbosity { noreply, .. } if *noreply => {}
        Command::Verbosity { .. } => reply::ok(out),
        Command::Stats { .. } => return Outcome::Stats,
        Command::Quit => return Outcome::Close,
        Command::Shutdown { .. } => return Outcome::Shutdown,
        Command::CacheMemlimit { noreply, .. } => {
            if !noreply {
                reply::client_error(out, "a tenant's size is set by its configuration");
            }
        }
        _ => reply::error(out),
    }
    Outcome::Done
}

impl<'a> Request<'a> {
    /// Whose key it is; none where it has none, or belongs to nobody here.
    pub fn tenant(&self) -> Option<TenantId> {
        self.tenant
    }

    /// Its keys, where it has several.
    pub(crate) fn keys(&self) -> Option<impl Iterator<Item = &'a [u8]>> {
        match &self.command {
            Command::Get(get) if get.count > 1 => Some(get.keys()),
            _ => None,
        }
    }

    /// The command.
    pub fn command(&self) -> &Command<'a> {
        &self.command
    }
}
