//! From a checked configuration to a running server: media opened, profiles loaded or made, tenants
//! and doors handed over.
//!
//! What is promised is judged first ([`admission`]), at the start by the profiles alone, later by
//! what tenants did lately too.
//!
//! What it never does: check what the configuration has checked, or decide anything on the data
//! path.

pub mod admission;
mod change;
mod deep;
mod devices;
mod paged;
pub mod plans;
mod recent;
mod tenants;

pub(crate) use deep::once_free;
pub use devices::{Opened, open_device};
pub use recent::Did;

use crate::config::{self, Config};
use crate::{Exit, Failure};
use admission::Priced;
use nyx_base::{Bytes, Clock, UnixSeconds, WorkerId};
use nyx_engine::{Binding, Engine, EngineConfig, Policies, Tenant, TenantConfig};
use nyx_gate::{CostTable, Device};
use nyx_media::profile::Latency;
use nyx_media::{Image, Mapped, TscClock, is_in_memory};
use nyx_policy::Policy;
use nyx_policy::plan::Plan;
use nyx_server::{Address, Answer, Door, Running, ServerConfig, ServerError};
use nyx_store::{Beginning, DeepLoss, Replayed, forget_journal};
use nyx_tier::Deep;
use recent::Recent;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// How often the reading of a journal is told of.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What a command, and not a configuration, says about a server.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The `shutdown` command is obeyed.
    pub shutdown_allowed: bool,
    /// Accesses have no price: no profile is read or made. Only where no policy needs one.
    pub unpriced: bool,
}

/// A server and what must outlive it.
pub struct Serving {
    config: Config,
    engine: Arc<Engine>,
    running: Running,
    /// Of each device, where it is to be closed in order.
    media: Vec<Option<Arc<Mapped>>>,
    /// Of each device, where it is known.
    latencies: Vec<Option<Latency>>,
    recent: Recent,
    clock: Arc<dyn Clock>,
    /// Of each door.
    bindings: Vec<Binding>,
}

impl Serving {
    /// Opens everything and starts.
    ///
    /// Errors: exit 64 where what is promised cannot be kept, 73 or 74 where a data file cannot be
    /// made or used, 71 where the system refuses, 69 where an address is in use.
    pub fn start(config: &Config, options: Options) -> Result<Serving, Failure> {
        let unavailable = |error: ServerError| Failure::new(Exit::Unavailable, error.to_string());
        // Before anything that takes long, such as a first profile.
        let bindings = tenants::bindings(config);
        let doors = tenants::doors(config, &bindings);
        let bound = nyx_server::bind(server_config(config, doors, options)).map_err(unavailable)?;
        make_data_dir(config, options)?;
        let clock: Arc<dyn Clock> = Arc::new(TscClock::start());
        let open = |device| open_device(device, options, &clock);
        let opened: Result<Vec<Opened>, Failure> = config.devices.iter().map(open).collect();
        let (mut media, mut devices, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
        for one in opened? {
            media.push(one.medium);
            devices.push(one.device);
            latencies.push(one.latency);
        }
        let plans = plans_of(config, &devices)?;
        if !options.unpriced {
            let findings = admission::findings(config, &plans, &priced(&devices, &latencies), None);
            warn(admission::admit(
                &findings,
                &[],
                config.policy.oversubscribe,
            )?);
        }
        let deep_devices = config.deep_devices.iter().map(deep::open);
        let deep_devices = deep_devices.collect::<Result<Vec<_>, Failure>>()?;
        let deep_plans = deep_plans_of(config, &deep_devices)?;
        forget_images(config, &config.tenants)?;
        warn_of_memory(config);
        let engine = Engine::new(EngineConfig {
            tenants: engine_tenants(config, &config.tenants, &media),
            tenants_max: config.server.max_tenants,
            policy: Policies {
                fast: Plan::build(&plans, config.tenants.len()),
                deep: deep_policies(&deep_plans, config.tenants.len()),
            },
            workers: config.server.workers,
            hash_seed: random_seed(),
            devices,
            deep_devices,
        })
        .map_err(|error| Failure::new(Exit::Os, error.to_string()))?;
        tell_beginnings(engine.tenants().iter());
        replay(&engine, &clock)?;
        let engine = Arc::new(engine);
        let answer = Answer::Engine(engine.clone());
        let running = bound
            .start(answer, config.server.workers, clock.clone())
            .map_err(unavailable)?;
        Ok(Serving {
            config: config.clone(),
            recent: Recent::new(&engine),
            engine,
            running,
            media,
            latencies,
            clock,
            bindings,
        })
    }

    /// The addresses listened on.
    pub fn listening(&self) -> &[String] {
        self.running.listening()
    }

    /// Whether it stops by itself: asked by a client, or after a failure that was logged.
    pub fn is_stopping(&self) -> bool {
        self.running.is_stopping()
    }

    /// Looks at what tenants do, to be called every now and then: a reload is judged by it.
    pub fn look(&mut self) {
        self.recent.look(&self.engine);
    }

    /// Takes over what of a configuration that was loaded again can change under open connections:
    /// logins (who is logged in stays so), policy, groups, the terms of tenants, and tenants that
    /// are new. Tells what was changed, and what waits for a restart.
    ///
    /// Errors: where the plan cannot be kept, or promises that it makes anew, beside what the
    /// tenants did lately, or where a tenant that is new has no place; then everything stays as it
    /// is.
    pub fn reload(&mut self, config: &Config) -> Result<Reloaded, Failure> {
        let config = match change::over(&self.config, config) {
            Ok(config) => config,
            Err(waits) => {
                return Ok(Reloaded {
                    waits,
                    ..Reloaded::default()
                });
            }
        };
        let plans = plans_of(&config, self.engine.devices())?;
        let deep_plans = deep_plans_of(&config, self.engine.deep_devices())?;
        warn(self.admit(&config, &plans)?);
        let newcomers = &config.tenants[self.config.tenants.len()..];
        let taken_in = newcomers.iter().map(|one| one.name.clone()).collect();
        // A policy that is the same goes on with what it has learned.
        let policy = !change::shares_alike(&self.config, &config);
        if policy {
            let policies = Policies {
                fast: Plan::build(&plans, config.tenants.len()),
                deep: deep_policies(&deep_plans, config.tenants.len()),
            };
            match newcomers.is_empty() {
                true => self.engine.set_policy(policies),
                false => self.take_in(newcomers, policies)?,
            }
        } else if !change::limits_deep_alike(&self.config, &config) {
            let policies = deep_policies(&deep_plans, config.tenants.len());
            self.engine.set_deep_policies(policies);
        }
        tenants::let_in(&config, &self.bindings);
        self.config = config;
        Ok(Reloaded {
            policy,
            taken_in,
            waits: Vec::new(),
        })
    }

    /// Takes in tenants that are new, under a policy for all.
    fn take_in(&mut self, newcomers: &[config::Tenant], policies: Policies) -> Result<(), Failure> {
        let residents = self.engine.tenants().len();
        forget_images(&self.config, newcomers)?;
        let newcomers = engine_tenants(&self.config, newcomers, &self.media);
        let taken_in = self.engine.take_in(newcomers, policies);
        taken_in.map_err(|error| Failure::new(Exit::Os, error.to_string()))?;
        tell_beginnings(self.engine.tenants().iter().skip(residents));
        let attended = self.running.attend(&self.engine);
        attended.map_err(|error| Failure::new(Exit::Os, error.to_string()))?;
        // Their limits hold before anybody reaches them.
        nyx_server::tick(&self.engine, self.clock.now());
        Ok(())
    }

    /// Whether what a configuration promises can be kept, and what there is to warn of.
    fn admit(&self, config: &Config, plans: &[Plan]) -> Result<Vec<String>, Failure> {
        let devices = self.engine.devices();
        let priced = priced(devices, &self.latencies);
        let did = self.recent.did(&self.engine);
        let judge = |config, plans: &[Plan]| {
            admission::findings(config, plans, &priced, Some(did.as_slice()))
        };
        let standing = judge(&self.config, &plans_of(&self.config, devices)?);
        let findings = judge(config, plans);
        admission::admit(&findings, &standing, config.policy.oversubscribe)
    }

    /// Stops, and marks every data file and then every image as closed in order.
    pub fn stop(self) -> Result<(), Failure> {
        self.running.stop();
        for medium in self.media.iter().flatten() {
            medium
                .mark_clean()
                .map_err(|error| Failure::new(Exit::Io, error.to_string()))?;
        }
        let closed = self.engine.close();
        closed.map_err(|error| Failure::new(Exit::Io, error.to_string()))
    }
}

/// What a configuration that was loaded again has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// Whether another policy, or another one of the same kind, is in charge now.
    pub policy: bool,
    /// The names of the tenants that are new.
    pub taken_in: Vec<String>,
    /// What differs and waits for a restart; nothing was changed then.
    pub waits: Vec<String>,
}

/// Tenants in the engine's terms.
fn engine_tenants(
    config: &Config,
    tenants: &[config::Tenant],
    media: &[Option<Arc<Mapped>>],
) -> Vec<TenantConfig> {
    let tenant = |one: &config::Tenant| {
        let data_id = media[one.device].as_ref().and_then(|medium| medium.id());
        tenants::tenant(one, &config.server, data_id)
    };
    tenants.iter().map(tenant).collect()
}

/// Whoever has no durability now goes on without its image, and must not find it as it was later:
/// what is deleted until then would come back. So with a journal, which is older still where it
/// stays: no start then.
fn forget_images(config: &Config, tenants: &[config::Tenant]) -> Result<(), Failure> {
    for tenant in tenants.iter().filter(|one| one.durability.is_none()) {
        let path = tenants::image_of(tenant, &config.server);
        let opened = Image::open(&path);
        let forgotten = opened.and_then(|image| image.map_or(Ok(()), |image| image.mark_lost()));
        if let Err(error) = forgotten {
            let tenant = &tenant.name;
            tracing::warn!(
                tenant,
                "has no durability, and an image that is none: {error}"
            );
        }
    }
    for tenant in tenants.iter().filter(|one| one.sync.is_none()) {
        let path = tenants::journal_of(tenant, &config.server);
        let tenant = &tenant.name;
        let forgotten = forget_journal(&path).map_err(|error| {
            let message = format!("tenant {tenant:?} has no sync, and a journal: {error}");
            Failure::new(Exit::Io, message)
        })?;
        if forgotten {
            tracing::warn!(tenant, "has no sync: its journal was removed");
        }
    }
    Ok(())
}

/// What is synced there is gone with the machine.
fn warn_of_memory(config: &Config) {
    let dir = &config.server.journal_dir;
    let journals = config.tenants.iter().any(|one| one.sync.is_some());
    if journals && is_in_memory(dir) {
        let dir = dir.display();
        tracing::warn!(%dir, "journals lie in memory (tmpfs): they survive no power failure");
    }
}

/// Stores what the journals of tenants have whose images cannot be used.
fn replay(engine: &Engine, clock: &Arc<dyn Clock>) -> Result<(), Failure> {
    let mut worker = engine.worker(WorkerId(0), clock.clone());
    let mut told = std::time::Instant::now();
    let mut tell = |tenant: &Tenant, replayed: &Replayed, is_done: bool| {
        let Replayed {
            changes,
            bytes,
            damaged,
            dropped,
            ..
        } = *replayed;
        let (tenant, read) = (tenant.name(), Bytes(bytes));
        if is_done {
            tracing::info!(tenant, changes, %read, dropped, "was made from its journal");
        } else if told.elapsed() >= TELL_EVERY {
            told = std::time::Instant::now();
            tracing::info!(tenant, changes, %read, "reads its journal");
        }
        if is_done && damaged > 0 {
            tracing::error!(
                tenant,
                damaged,
                "its journal was damaged: some changes that were durable are lost"
            );
        }
    };
    let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let now = UnixSeconds(u32::try_from(now).unwrap_or(u32::MAX));
    let replayed = engine.replay(&mut worker, now, &mut tell);
    replayed.map_err(|error| Failure::new(Exit::Io, error.to_string()))
}

/// Tells what tenants that survive go on with.
fn tell_beginnings<'a>(tenants: impl Iterator<Item = &'a Tenant>) {
    for tenant in tenants {
        let name = tenant.name();
        match tenant.store().beginning() {
            None => {}
            Some(Beginning::New) => tracing::info!(tenant = name, "begins with a new image"),
            Some(Beginning::Empty(why)) => {
                tracing::warn!(
                    tenant = name,
                    "begins empty, although there is an image: {why}"
                );
            }
            Some(Beginning::Stopped) => {
                tracing::info!(
                    tenant = name,
                    "goes on with what it held when it was stopped"
                );
            }
            Some(Beginning::Killed) => {
                tracing::info!(
                    tenant = name,
                    "goes on with what it held when it was killed"
                );
            }
            Some(Beginning::Remade { why, from }) => {
                let why = why.as_deref().unwrap_or("somebody asked for that");
                tracing::warn!(
                    tenant = name,
                    items = from.items,
                    "goes on with an index that was made anew: {why}"
                );
            }
        }
        if let Some(DeepLoss {
            why,
            segments,
            items,
        }) = tenant.store().deep_loss()
        {
            tracing::warn!(
                tenant = name,
                segments,
                items_at_most = items,
                "what it had on its deep device is lost, and missed: {why}"
            );
        }
    }
}

fn warn(warnings: Vec<String>) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

fn priced<'a>(devices: &'a [Arc<Device>], latencies: &'a [Option<Latency>]) -> Vec<Priced<'a>> {
    let each = devices.iter().zip(latencies);
    let priced = |(device, latency): (&'a Arc<Device>, &'a Option<Latency>)| Priced {
        cost: &device.cost,
        latency: latency.as_ref(),
    };
    each.map(priced).collect()
}

fn plans_of(config: &Config, devices: &[Arc<Device>]) -> Result<Vec<Plan>, Failure> {
    let prices: Vec<&CostTable> = devices.iter().map(|device| &device.cost).collect();
    plans::plans(config, &prices).map_err(|error| Failure::usage(error.to_string()))
}

fn deep_plans_of(config: &Config, devices: &[Arc<Deep>]) -> Result<Vec<Plan>, Failure> {
    let prices: Vec<&CostTable> = devices.iter().map(|device| &device.cost).collect();
    plans::deep_plans(config, &prices).map_err(|error| Failure::usage(error.to_string()))
}

/// Of an engine with so many tenants: each deep device is divided by itself.
fn deep_policies(plans: &[Plan], tenants: usize) -> Vec<Box<dyn Policy>> {
    let policy = |plan| Plan::build(std::slice::from_ref(plan), tenants);
    plans.iter().map(policy).collect()
}

fn make_data_dir(config: &Config, options: Options) -> Result<(), Failure> {
    let in_it = |path: &std::path::Path| path.starts_with(&config.server.data_dir);
    let is_deep = |device: &config::DeepDevice| in_it(&device.path) || in_it(&device.profile);
    let mapped = config.devices.iter().any(|device| {
        let file = match &device.medium {
            config::Medium::Anon => None,
            config::Medium::File(path)
            | config::Medium::Dax(path)
            | config::Medium::Paged { path, .. } => Some(path),
        };
        let profile = (!options.unpriced).then_some(&device.profile);
        [file, profile].iter().flatten().any(|path| in_it(path))
    });
    let needed = mapped || config.deep_devices.iter().any(is_deep);
    let survives = config.tenants.iter().any(|one| one.durability.is_some());
    let journals = config.tenants.iter().any(|one| one.sync.is_some());
    let dirs = [
        needed.then_some(&config.server.data_dir),
        survives.then_some(&config.server.image_dir),
        journals.then_some(&config.server.journal_dir),
    ];
    for dir in dirs.into_iter().flatten() {
        std::fs::create_dir_all(dir).map_err(|error| Failure::uncreatable(dir, &error))?;
    }
    Ok(())
}

fn server_config(config: &Config, doors: Vec<Door>, options: Options) -> ServerConfig {
    ServerConfig {
        doors,
        max_connections: config.server.max_connections,
        idle_timeout_s: config.server.idle_timeout_s,
        backlog: config.server.backlog,
        pin_workers: config.server.pin_workers,
        record_latencies: config.server.record_latencies,
        shutdown_allowed: options.shutdown_allowed,
    }
}

/// Where a door is.
fn address(config: &Config, listen: &config::Listen) -> Address {
    match listen {
        config::Listen::Tcp(address) => Address::Tcp(*address),
        config::Listen::Unix(path) => Address::Unix {
            path: path.clone(),
            mode: config.server.unix_mode,
        },
    }
}

/// A seed that no client can guess, from the standard library's own per-process randomness.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}
