//! An engine, its one device and its clock, put together from a few words.
//!
//! What it never does: start a thread; whoever drives the engine does.

use crate::{Exit, Failure};
use nyx_base::{Clock, DevicePs, Instant, Now, UnixSeconds, WorkerId};
use nyx_engine::{Engine, EngineConfig, TenantConfig, Worker};
use nyx_gate::{CostTable, Device};
use nyx_media::{Emulated, Mapped, Media, TscClock};
use nyx_policy::baselines::Unlimited;
use nyx_sim::client::Load;
use nyx_sim::modelled::Modelled;
use std::sync::Arc;

/// Seeds the hashes of keys: runs are to differ by the machine only.
const HASH_SEED: u64 = 42;

/// A modelled device, for the command line.
///
/// Errors: exit 64 where there is no such model.
pub fn modelled(spec: &str) -> Result<Modelled, Failure> {
    Modelled::named(spec).map_err(|error| Failure::usage(error.to_string()))
}

/// What a stage's values lie on.
pub enum Medium<'a> {
    /// A modelled device over memory: numbers are *emulated*.
    Modelled(&'a Modelled),
    /// Memory as it is, at these prices: numbers are *real*.
    Memory(&'a CostTable),
}

/// See the module. Tenants are in the order of the loads they were made for.
pub struct Stage {
    /// The engine; no policy is in force yet.
    pub engine: Engine,
    /// Real time.
    pub clock: Arc<dyn Clock>,
    began: UnixSeconds,
    modelled: Option<Arc<Emulated<Mapped>>>,
}

impl Stage {
    /// A stage for some tenants, by name, each with room for twice what its load keeps.
    ///
    /// Errors: exit 71 where memory cannot be had.
    pub fn new(medium: Medium<'_>, loads: &[(&str, Load)], workers: u16) -> Result<Stage, Failure> {
        let os = |error: String| Failure::new(Exit::Os, error);
        let tsc = TscClock::start();
        let clock: Arc<dyn Clock> = Arc::new(tsc);
        let tenants: Vec<TenantConfig> = loads
            .iter()
            .map(|(name, load)| load.tenant(name, workers))
            .collect();
        let mapped = Mapped::anonymous(tenants.iter().map(|tenant| tenant.size.0).sum())
            .map_err(|error| os(error.to_string()))?;
        mapped.pretouch(1);
        let mut modelled = None;
        let (media, cost): (Arc<dyn Media>, CostTable) = match medium {
            Medium::Memory(cost) => (Arc::new(mapped), cost.clone()),
            Medium::Modelled(Modelled { params, cost }) => {
                let media = Emulated::in_real_time(mapped, params.clone(), clock.clone());
                let media = modelled.insert(Arc::new(media)).clone();
                (media, cost.clone())
            }
        };
        let device = Device {
            name: "stage".into(),
            media,
            cost,
        };
        let engine = Engine::new(EngineConfig {
            deep_devices: Vec::new(),
            devices: vec![Arc::new(device)],
            tenants,
            tenants_max: 0,
            policy: Box::new(Unlimited).into(),
            workers,
            hash_seed: HASH_SEED,
        })
        .map_err(|error| os(error.to_string()))?;
        Ok(Stage {
            engine,
            clock,
            began: tsc.unix_seconds(),
            modelled,
        })
    }

    /// The hands of worker `index`.
    pub fn worker(&self, index: u16) -> Worker {
        self.engine.worker(WorkerId(index), self.clock.clone())
    }

    /// Both times, at a reading of the stage's clock.
    pub fn at(&self, mono: Instant) -> Now {
        let unix = UnixSeconds(self.began.0 + (mono.0 / 1_000_000_000) as u32);
        Now { mono, unix }
    }

    /// What the tenant at `place` has been charged so far.
    pub fn used(&self, place: usize) -> DevicePs {
        self.engine.tenants()[place].usage().used()
    }

    /// What worker `index` has charged it so far.
    pub fn used_by(&self, place: usize, index: u16) -> DevicePs {
        let tenant = &self.engine.tenants()[place];
        tenant.usage_by(WorkerId(index)).used()
    }

    /// The device time of all accesses so far by the model's own count; nothing where there is no
    /// model.
    pub fn busy(&self) -> DevicePs {
        self.modelled
            .as_ref()
            .map_or(DevicePs::ZERO, |media| media.busy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_media::Op;
    use nyx_sim::client::Client;

    fn load() -> Load {
        Load::uniform(100, 256, 1.0, 4)
    }

    #[test]
    fn what_a_tenant_is_charged_is_what_the_model_was_busy_with() {
        let modelled = modelled("optane-2dimm/8").expect("a preset");
        let stage = Stage::new(Medium::Modelled(&modelled), &[("a", load())], 1).expect("memory");
        let (mut client, mut worker) = (Client::new(load(), 1), stage.worker(0));
        client.fill(&stage.engine, &mut worker, nyx_base::Now::default());
        let price = modelled.cost.price(Op::Write, 256);
        assert_eq!(stage.used(0), DevicePs(100 * price.0));
        let ratio = stage.used(0).as_secs_f64() / stage.busy().as_secs_f64();
        assert!((0.9..1.1).contains(&ratio), "charged {ratio} of busy");
    }

    #[test]
    fn memory_has_no_model_to_be_busy() {
        let unpriced = CostTable::unpriced();
        let stage = Stage::new(
            Medium::Memory(&unpriced),
            &[("a", load()), ("b", load())],
            1,
        )
        .expect("memory");
        assert_eq!(stage.engine.tenants().len(), 2);
        assert_eq!(stage.busy(), DevicePs::ZERO);
    }

    #[test]
    fn an_unknown_model_is_a_usage_error() {
        let failure = modelled("nonesuch").expect_err("no such preset");
        assert_eq!(failure.code, Exit::Usage);
    }
}
