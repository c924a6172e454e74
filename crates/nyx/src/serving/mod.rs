//! From a checked configuration to a running server: media opened, profiles loaded or made, tenants
//! and doors handed over.
//!
//! What it never does: check what the configuration has checked, or decide anything on the data
//! path.

mod devices;
pub mod plans;
mod tenants;

pub use devices::open_device;

use crate::config::{self, Config};
use crate::{Exit, Failure};
use nyx_base::Clock;
use nyx_engine::{Engine, EngineConfig, Users};
use nyx_gate::{CostTable, Device};
use nyx_media::{Mapped, TscClock};
use nyx_policy::plan::Plan;
use nyx_server::{Address, Answer, Door, Running, ServerConfig, ServerError};
use std::sync::Arc;

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
    media: Vec<Arc<Mapped>>,
    logins: Vec<(Vec<usize>, Arc<Users>)>,
}

impl Serving {
    /// Opens everything and starts.
    ///
    /// Errors: exit 73 or 74 where a data file cannot be made or used, 71 where the system refuses,
    /// 69 where an address is in use.
    pub fn start(config: &Config, options: Options) -> Result<Serving, Failure> {
        let unavailable = |error: ServerError| Failure::new(Exit::Unavailable, error.to_string());
        // Before anything that takes long, such as a first profile.
        let logins = tenants::logins(config);
        let doors = tenants::doors(config, &logins);
        let bound = nyx_server::bind(server_config(config, doors, options)).map_err(unavailable)?;
        make_data_dir(config, options)?;
        let clock: Arc<dyn Clock> = Arc::new(TscClock::start());
        let opened: Result<Vec<_>, Failure> = config
            .devices
            .iter()
            .map(|device| open_device(device, options, &clock))
            .collect();
        let (media, devices): (Vec<Arc<Mapped>>, Vec<Arc<Device>>) = opened?.into_iter().unzip();
        let plans = plans_of(config, &devices)?;
        let engine = Engine::new(EngineConfig {
            tenants: config.tenants.iter().map(tenants::tenant).collect(),
            policy: Plan::build(&plans, config.tenants.len()),
            workers: config.server.workers,
            hash_seed: random_seed(),
            devices,
        })
        .map_err(|error| Failure::new(Exit::Os, error.to_string()))?;
        let engine = Arc::new(engine);
        let answer = Answer::Engine(engine.clone());
        let running = bound
            .start(answer, config.server.workers, clock)
            .map_err(unavailable)?;
        Ok(Serving {
            config: config.clone(),
            engine,
            running,
            media,
            logins,
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

    /// Takes over what of a configuration that was loaded again can change under open connections:
    /// logins (who is logged in stays so), policy, groups, and the terms of tenants. Tells what was
    /// changed, and what waits for a restart.
    ///
    /// Errors: where the plan cannot be kept; then everything stays as it is.
    pub fn reload(&mut self, config: &Config) -> Result<Reloaded, Failure> {
        let waits = tenants::restart_needed(&self.config, config);
        if !waits.is_empty() {
            return Ok(Reloaded {
                policy: false,
                waits,
            });
        }
        let plans = plans_of(config, self.engine.devices())?;
        for (door, (_, users)) in tenants::logins(config).into_iter().zip(&self.logins) {
            users.replace(tenants::users_of(config, &door.0));
        }
        // A policy that is the same goes on with what it has learned.
        let policy = !tenants::shares_alike(&self.config, config);
        if policy {
            let tenants = config.tenants.len();
            self.engine.set_policy(Plan::build(&plans, tenants));
        }
        self.config = config.clone();
        Ok(Reloaded { policy, waits })
    }

    /// Stops, and marks every data file as closed in order.
    pub fn stop(self) -> Result<(), Failure> {
        self.running.stop();
        for medium in &self.media {
            medium
                .mark_clean()
                .map_err(|error| Failure::new(Exit::Io, error.to_string()))?;
        }
        Ok(())
    }
}

/// What a configuration that was loaded again has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reloaded {
    /// Whether another policy, or another one of the same kind, is in charge now.
    pub policy: bool,
    /// What differs and waits for a restart; nothing was changed then.
    pub waits: Vec<String>,
}

fn plans_of(config: &Config, devices: &[Arc<Device>]) -> Result<Vec<Plan>, Failure> {
    let prices: Vec<&CostTable> = devices.iter().map(|device| &device.cost).collect();
    plans::plans(config, &prices).map_err(|error| Failure::usage(error.to_string()))
}

fn make_data_dir(config: &Config, options: Options) -> Result<(), Failure> {
    let needed = config.devices.iter().any(|device| {
        let file = match &device.medium {
            config::Medium::Anon => None,
            config::Medium::File(path) | config::Medium::Dax(path) => Some(path),
        };
        let profile = (!options.unpriced).then_some(&device.profile);
        [file, profile]
            .iter()
            .flatten()
            .any(|p| p.starts_with(&config.server.data_dir))
    });
    if needed {
        let dir = &config.server.data_dir;
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
