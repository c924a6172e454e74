//! A running server: its threads, and how they start and stop.
//!
//! A policy that panics is replaced by its last limits, and requests go on. A worker that panics
//! ends the process: what it had locked nobody would ever unlock.

use crate::batch::EngineWork;
use crate::group::Process;
use crate::held::HOLD_MIN;
use crate::listen::{Door, Listener};
use crate::null::Canned;
use crate::shared::Shared;
use crate::sync::Syncer;
use crate::worker::{Arrival, Inbox, WorkerLoop};
use mio::{Events, Poll, Token};
use nyx_base::{Clock, Instant, WorkerId};
use nyx_engine::{Engine, Session, Worker};
use std::any::Any;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

/// How a server is run.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where connections come in.
    pub doors: Vec<Door>,
    /// Connections beyond this many are refused.
    pub max_connections: u32,
    /// Seconds after which a silent connection is closed.
    pub idle_timeout_s: Option<u32>,
    /// Connections that may wait to be accepted, per listener.
    pub backlog: u32,
    /// Whether each worker is pinned to a CPU of its own.
    pub pin_workers: bool,
    /// Whether the latency of every request is recorded, or only of tenants whose policy looks.
    pub record_latencies: bool,
    /// Whether the `shutdown` command is obeyed.
    pub shutdown_allowed: bool,
}

/// What answers requests.
pub enum Answer {
    /// An engine.
    Engine(Arc<Engine>),
    /// The same hit for every key: the null server, to measure what the loop itself costs.
    Canned {
        /// Bytes of the hit's value.
        value_len: usize,
    },
}

/// Why a server cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// An address is not to be had.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The system refused something else.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServerError {
    move |source| ServerError::System { what, source }
}

/// A running server. Dropping it stops it.
pub struct Running {
    shared: Arc<Shared>,
    inboxes: Vec<Arc<Inbox>>,
    threads: Vec<JoinHandle<()>>,
    clock: Arc<dyn Clock>,
    /// Tenants whose journals, where they have one, are synced.
    attended: usize,
}

/// A server whose addresses are taken and that does not answer yet: clients may connect already,
/// and wait.
pub struct Bound {
    config: ServerConfig,
    listeners: Vec<(Listener, Door)>,
}

/// Takes every address of a configuration, so that one in use is an error before anything else is
/// done.
pub fn bind(config: ServerConfig) -> Result<Bound, ServerError> {
    let bound: Result<Vec<(Listener, Door)>, ServerError> = config
        .doors
        .iter()
        .map(|door| Ok((Listener::bind(&door.address, config.backlog)?, door.clone())))
        .collect();
    Ok(Bound {
        listeners: bound?,
        config,
    })
}

impl Bound {
    /// Starts to answer.
    pub fn start(
        self,
        answer: Answer,
        workers: u16,
        clock: Arc<dyn Clock>,
    ) -> Result<Running, ServerError> {
        start(self, answer, workers, clock)
    }
}

/// The engine's part of a worker that sleeps while it has nothing to do.
fn hands(engine: &Engine, index: u16, clock: Arc<dyn Clock>) -> Worker {
    let mut worker = engine.worker(WorkerId(index), clock);
    worker.hold_at_least(HOLD_MIN);
    worker
}

fn start(
    Bound { config, listeners }: Bound,
    answer: Answer,
    workers: u16,
    clock: Arc<dyn Clock>,
) -> Result<Running, ServerError> {
    let listening = listeners
        .iter()
        .map(|(listener, _)| listener.address())
        .collect();
    let max = u64::from(config.max_connections);
    let tenants = match &answer {
        Answer::Engine(engine) => engine.tenants().room(),
        Answer::Canned { .. } => 0,
    };
    let shared = Arc::new(Shared::new(
        (workers, tenants),
        max,
        config.shutdown_allowed,
        listening,
    ));
    let mut running = Running {
        shared: shared.clone(),
        inboxes: Vec::new(),
        threads: Vec::new(),
        clock: clock.clone(),
        attended: 0,
    };
    for index in 0..workers {
        let process: Box<dyn Process> = match &answer {
            Answer::Engine(engine) => Box::new(EngineWork {
                engine: engine.clone(),
                worker: hands(engine, index, clock.clone()),
                shared: shared.clone(),
                clock: clock.clone(),
                record_all: config.record_latencies,
                answered: Vec::new(),
            }),
            Answer::Canned { value_len } => Box::new(Canned::new(*value_len)),
        };
        let idle = config.idle_timeout_s;
        let at = usize::from(index);
        let worker = WorkerLoop::new(at, shared.clone(), clock.clone(), idle, process)
            .map_err(system("make a worker's poll"))?;
        running.inboxes.push(worker.inbox());
        let pin = config.pin_workers.then_some(at);
        running.spawn(format!("nyx-worker-{index}"), pin, move || worker.run())?;
    }
    let engine = match &answer {
        Answer::Engine(engine) => Some(engine.clone()),
        Answer::Canned { .. } => None,
    };
    if let Some(engine) = &engine {
        running.control(engine)?;
        running.attend(engine)?;
    }
    let acceptor = Acceptor {
        listeners,
        engine,
        inboxes: running.inboxes.clone(),
        shared,
        next: 0,
        refused: Refused::default(),
    };
    running.spawn("nyx-accept".into(), None, move || acceptor.run())?;
    Ok(running)
}

impl Running {
    fn spawn(
        &mut self,
        name: String,
        pin: Option<usize>,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), ServerError> {
        let shared = self.shared.clone();
        let told = name.clone();
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || {
                if let Some(cpu) = pin {
                    pin_to(cpu);
                }
                // Nothing that it shares is looked at after a panic.
                match catch_unwind(AssertUnwindSafe(work)) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        tracing::error!(thread = told, %error, "a thread failed; the server stops");
                        shared.stop();
                    }
                    Err(panic) => {
                        let panic = message_of(&*panic);
                        tracing::error!(
                            thread = told,
                            panic,
                            "a thread panicked; the process ends"
                        );
                        std::process::abort();
                    }
                }
            })
            .map_err(system("start a thread"))?;
        self.threads.push(thread);
        Ok(())
    }

    fn control(&mut self, engine: &Arc<Engine>) -> Result<(), ServerError> {
        let (engine, shared, clock) = (engine.clone(), self.shared.clone(), self.clock.clone());
        self.spawn("nyx-control".into(), None, move || {
            control(&engine, &shared, &*clock);
            Ok(())
        })
    }

    /// Sees that the journals of all tenants are synced, those of newcomers too: to be called
    /// before anybody reaches them.
    pub fn attend(&mut self, engine: &Arc<Engine>) -> Result<(), ServerError> {
        for tenant in engine.tenants().iter().skip(self.attended) {
            self.attended += 1;
            if tenant.store().journal().is_none() {
                continue;
            }
            let syncer = Syncer {
                engine: engine.clone(),
                tenant: tenant.id(),
                shared: self.shared.clone(),
                inboxes: self.inboxes.clone(),
                clock: self.clock.clone(),
            };
            self.spawn(format!("nyx-sync-{}", tenant.id()), None, || syncer.run())?;
        }
        Ok(())
    }

    /// The addresses listened on, ports chosen by the system filled in.
    pub fn listening(&self) -> &[String] {
        &self.shared.listening
    }

    /// Whether it stops or has stopped: asked to by a client, or by a failure that was logged.
    pub fn is_stopping(&self) -> bool {
        self.shared.is_stopping()
    }

    /// Stops it and waits for its threads.
    pub fn stop(mut self) {
        self.stop_now();
    }

    fn stop_now(&mut self) {
        self.shared.stop();
        for inbox in &self.inboxes {
            if let Err(error) = inbox.wake() {
                tracing::warn!(%error, "a worker could not be woken and stops within a second");
            }
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread panicked");
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop_now();
    }
}

/// Pins the calling thread to the n-th CPU that the process may run on.
fn pin_to(index: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    let Some(&cpu) = cpus.get(index % cpus.len().max(1)) else {
        return;
    };
    let mut one = CpuSet::new();
    one.set(cpu);
    if let Err(error) = sched_setaffinity(None, &one) {
        tracing::warn!(cpu, %error, "a worker could not be pinned");
    }
}

/// The longest that a stop can go unnoticed by a thread that sleeps.
const NAP_MAX: Duration = Duration::from_millis(100);

/// What a panic said.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a word")
}

/// Steps the policy for as long as the server runs.
fn control(engine: &Engine, shared: &Shared, clock: &dyn Clock) {
    let mut told = 0;
    while !shared.is_stopping() {
        let nap = tick(engine, clock.now());
        let (decided, decisions) = engine.decisions_since(told);
        told = decided;
        for decision in decisions {
            let tenant = engine.name_of(decision.tenant).unwrap_or_default();
            tracing::info!(tenant, act = %decision.act, why = decision.why, "the policy decided");
        }
        std::thread::sleep(nap);
    }
}

/// Steps the policy once; gives when it wants to be stepped again. One that panics is replaced by
/// its last limits. A running server does this by itself; a driver that has just put a policy in
/// charge need not wait for it.
pub fn tick(engine: &Engine, now: Instant) -> Duration {
    // The controller's lock may be poisoned then, which nobody minds: budgets are written one by
    // one, and whoever panicked is not asked again.
    match catch_unwind(AssertUnwindSafe(|| engine.control(now))) {
        Ok(period) => Duration::from_nanos(period.0).min(NAP_MAX),
        Err(panic) => {
            let panic = message_of(&*panic);
            match engine.keep_limits() {
                Some(policy) => tracing::error!(
                    policy,
                    panic,
                    "the policy failed; its last limits stay in force"
                ),
                None => tracing::error!(panic, "the policy failed; another is in charge already"),
            }
            NAP_MAX
        }
    }
}

/// Accepts connections and deals them out to the workers in turn.
struct Acceptor {
    listeners: Vec<(Listener, Door)>,
    engine: Option<Arc<Engine>>,
    inboxes: Vec<Arc<Inbox>>,
    shared: Arc<Shared>,
    next: usize,
    refused: Refused,
}

/// Connections that could not be accepted, told of at most once in [`TELL_EVERY`].
#[derive(Default)]
struct Refused {
    since_told: u64,
    told: Option<std::time::Instant>,
}

const TELL_EVERY: Duration = Duration::from_secs(10);

impl Refused {
    fn note(&mut self, error: &io::Error) {
        self.since_told += 1;
        if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            let times = self.since_told;
            tracing::warn!(%error, times, "connections could not be accepted");
            (self.since_told, self.told) = (0, Some(std::time::Instant::now()));
        }
    }
}

impl Acceptor {
    fn run(mut self) -> io::Result<()> {
        let mut poll = Poll::new()?;
        for (at, (listener, _)) in self.listeners.iter_mut().enumerate() {
            listener.register(poll.registry(), Token(at))?;
        }
        let mut events = Events::with_capacity(64);
        while !self.shared.is_stopping() {
            match poll.poll(&mut events, Some(NAP_MAX)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                self.accept_all(event.token().0)?;
            }
        }
        Ok(())
    }

    fn accept_all(&mut self, at: usize) -> io::Result<()> {
        while !self.shared.is_stopping() {
            let (listener, door) = &self.listeners[at];
            match listener.accept() {
                Ok(mut stream) => {
                    self.shared.connections_total.fetch_add(1, Relaxed);
                    if self.shared.connections.load(Relaxed) >= self.shared.max_connections {
                        self.shared.connections_rejected.fetch_add(1, Relaxed);
                        // As memcached says it; a client that cannot even take this is gone anyway.
                        let _ = stream.send(b"ERROR Too many open connections\r\n");
                        continue;
                    }
                    let session = Session::new(&door.binding);
                    let limits = match &self.engine {
                        Some(engine) => engine.limits(&session),
                        None => nyx_proto::Limits::default(),
                    };
                    self.shared.connections.fetch_add(1, Relaxed);
                    self.inboxes[self.next % self.inboxes.len()].put(Arrival {
                        stream,
                        session,
                        limits,
                    })?;
                    self.next = self.next.wrapping_add(1);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_passing(&error) => {
                    self.refused.note(&error);
                    // Out of descriptors: wait for some to be closed instead of asking again at
                    // once.
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether an error of `accept` concerns one connection, or will pass: what accept(2) names,
/// network errors of the new connection among them.
fn is_passing(error: &io::Error) -> bool {
    let passing_errno = [
        rustix::io::Errno::MFILE,
        rustix::io::Errno::NFILE,
        rustix::io::Errno::NOBUFS,
        rustix::io::Errno::NOMEM,
        rustix::io::Errno::CONNABORTED,
        rustix::io::Errno::PROTO,
        rustix::io::Errno::PERM,
        rustix::io::Errno::NETDOWN,
        rustix::io::Errno::NETUNREACH,
        rustix::io::Errno::HOSTDOWN,
        rustix::io::Errno::HOSTUNREACH,
        rustix::io::Errno::NONET,
        rustix::io::Errno::NOPROTOOPT,
        rustix::io::Errno::OPNOTSUPP,
        rustix::io::Errno::TIMEDOUT,
    ];
    error.kind() == ErrorKind::Interrupted
        || passing_errno
            .iter()
            .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
