//! Decides: pure step functions from what is [`Seen`] of the tenants to what is [`Want`]ed of them.
//!
//! What this room never does: read a clock, draw a random number, start a thread, know a device, a
//! medium or a protocol. The server and the simulator run the very same objects; time is handed in.
//! A policy's experiments are states inside it.
//!
//! * [`mechanism`]: what policies are made of: windows, interference, stand-alone runs.
//! * [`sharing`]: the policies of NyxCache section 3.4.
//! * [`admission`]: whether what is promised can be kept.
//! * [`nhc`]: where a request goes that two devices could serve.
//! * [`paging`]: for programs that have less memory than they use.
//! * [`plan`]: who shares what with whom, as data; [`tree`]: policies over groups.
//! * [`baselines`]: what Nyx is compared with, on the same interface.

use nyx_base::{DevicePs, Instant, Latencies, Nanos};
use sharing::qos::Target;
use std::fmt;

pub mod admission;
pub mod baselines;
pub mod mechanism;
pub mod nhc;
pub mod paging;
pub mod plan;
pub mod sharing;
pub mod tree;

/// What a policy sees of one tenant on one device. Counts are totals since the tenant's start, and
/// wrap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Device time charged.
    pub used: DevicePs,
    /// Device time weighted by what it does to the latency of others: so much device time of reads
    /// of 1 KiB would do as much harm. As `used` where the device's latency prices are not known.
    pub harm: DevicePs,
    /// Bytes moved to and from the device.
    pub bytes: u64,
    /// Accesses to the device.
    pub ops: u64,
    /// How often it was held.
    pub holds: u64,
    /// How long its requests took on a device that tells of each, and how long they would have
    /// taken if nobody else had been there; nothing where no device does.
    pub took: Nanos,
    /// See `took`.
    pub alone: Nanos,
    /// Latencies of its requests, for tenants that the policy wants to measure.
    pub latencies: Latencies,
}

impl Seen {
    fn clear(&mut self) {
        (self.used, self.harm) = (DevicePs::ZERO, DevicePs::ZERO);
        (self.bytes, self.ops, self.holds) = (0, 0, 0);
        (self.took, self.alone) = (Nanos::ZERO, Nanos::ZERO);
        self.latencies.clear();
    }

    /// Becomes a copy of another, in the memory that it has.
    fn copy(&mut self, other: &Seen) {
        (self.used, self.harm) = (other.used, other.harm);
        (self.bytes, self.ops, self.holds) = (other.bytes, other.ops, other.holds);
        (self.took, self.alone) = (other.took, other.alone);
        self.latencies.clone_from(&other.latencies);
    }

    /// Adds what another did; its latencies where they are `measured`.
    fn add(&mut self, other: &Seen, measured: bool) {
        self.used = DevicePs(self.used.0.wrapping_add(other.used.0));
        self.harm = DevicePs(self.harm.0.wrapping_add(other.harm.0));
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.ops = self.ops.wrapping_add(other.ops);
        self.holds = self.holds.wrapping_add(other.holds);
        self.took = Nanos(self.took.0.wrapping_add(other.took.0));
        self.alone = Nanos(self.alone.0.wrapping_add(other.alone.0));
        if measured {
            self.latencies.add(&other.latencies);
        }
    }
}

/// What a policy wants of one tenant on one device. It stays in force until the next step changes
/// it, so a controller that stops leaves the last safe limits standing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Device time per second that the tenant may use, enforced by exact leases; `None` is no
    /// limit.
    pub rate: Option<DevicePs>,
    /// For how long time that was not used under `rate` is remembered, to be used at once; zero is
    /// the gate's default, which catches up slowly.
    pub burst: Nanos,
    /// What a byte costs of `rate`, where bytes and not device time count (the `bytes` baseline).
    pub byte_price: Option<DevicePs>,
    /// The paper's actuator.
    pub delay: Delay,
}

/// A delay before each access (NyxCache section 3.3, "PM Access Regulation").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delay {
    /// None.
    #[default]
    None,
    /// This many units of 10 ns.
    Units(u32),
    /// Accesses are held until a finite delay is set.
    Infinite,
}

/// Something that a policy did to a tenant, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// When.
    pub at: Instant,
    /// To whom; groups follow the tenants, in the order of [`Policy::groups`].
    pub tenant: usize,
    /// What.
    pub act: Act,
    /// Why, in a sentence for operators, with the figures that led to it.
    pub why: String,
}

/// What a policy did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Act {
    /// Let it use less, in shares of the device; `from` is what it used.
    Throttle {
        /// What it used.
        from: f64,
        /// What it may use.
        to: f64,
    },
    /// Let it use more; `None` is no limit any more.
    Relax {
        /// What it may use.
        to: Option<f64>,
    },
    /// Undid a step that did harm.
    RollBack {
        /// What it may use again.
        to: Option<f64>,
    },
    /// Learned how it would fare alone.
    Measured {
        /// By which factor it is slower now.
        slowdown: f64,
    },
    /// Could do nothing more for it.
    GaveUp,
}

/// Shows what was done in a few words, shares in percent of the device.
impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| share * 100.0;
        let to = |f: &mut fmt::Formatter<'_>, word: &str, to: Option<f64>| match to {
            Some(share) => write!(f, "{word} to {:.1} %", percent(share)),
            None => write!(f, "{word} without a limit"),
        };
        match *self {
            Act::Throttle { from, to } => {
                let (from, to) = (percent(from), percent(to));
                write!(f, "throttled from {from:.1} to {to:.1} %")
            }
            Act::Relax { to: share } => to(f, "relaxed", share),
            Act::RollBack { to: share } => to(f, "rolled back", share),
            Act::Measured { slowdown } => write!(f, "measured, slowdown {slowdown:.2}"),
            Act::GaveUp => f.write_str("not helped"),
        }
    }
}

/// Groups of tenants that have a limit in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Which group each tenant is in; empty where there are no groups.
    pub of_tenant: Vec<Option<usize>>,
    /// The groups.
    pub groups: Vec<Group>,
}

/// One group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// The group that it is in, which stands before it.
    pub parent: Option<usize>,
}

/// How a tenant stands with the policy in charge, for operators. What the policy does not know, or
/// does not look at, is left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// The share of the device that it may use at most, whatever the others do.
    pub limit: Option<f64>,
    /// The share of the device that it has in any case, whatever the others do.
    pub entitled: Option<f64>,
    /// The share of the device that the policy leaves it for now, for the sake of others.
    pub throttle: Option<f64>,
    /// It has what the promises to the others leave.
    pub best_effort: bool,
    /// Its target.
    pub target: Option<Target>,
    /// What it had of its target when it was last judged, in nanoseconds: see [`Target::show`].
    pub had_ns: Option<f64>,
    /// How far that was from what it is promised, in parts of the promise; below 0 it was missed.
    pub slack: Option<f64>,
    /// By which factor it was slower than alone when it was last judged.
    pub slowdown: Option<f64>,
    /// The largest such factor that it is promised.
    pub slowdown_most: Option<f64>,
    /// Who was found to hurt it, who hurts most first: by which part of its mean delay it fared
    /// better while that one was throttled for a trial; `None` where nobody else could be tried.
    pub hurt_by: Vec<(usize, Option<f64>)>,
}

/// A sharing policy. `seen` and `want` have an entry for each tenant, in the same order as the
/// tenants with which the policy was made; `want` has one for each of its groups after them.
pub trait Policy: Send {
    /// Its name in configuration and figures.
    fn name(&self) -> &'static str;

    /// How long to wait until the next step: asked anew after each.
    fn period(&self) -> Nanos;

    /// Whether it looks at a tenant's latencies; the others' need not be collected.
    fn measures(&self, tenant: usize) -> bool {
        let _ = tenant;
        false
    }

    /// The groups that it limits beside the tenants: asked once, before the first step.
    fn groups(&self) -> Groups {
        Groups::default()
    }

    /// What there is to divide, as a share of the device; all of it until this is called.
    fn set_capacity(&mut self, share: f64) {
        let _ = share;
    }

    /// Whether the coming step looks at a tenant's latencies, of those that are measured. Where it
    /// does not they may be those of an earlier step, so that of very many tenants not all have to
    /// be added up in each.
    fn reads(&self, tenant: usize) -> bool {
        self.measures(tenant)
    }

    /// Whether what it wants of a tenant holds on each of the tenant's devices: it goes by
    /// latencies, in which each has its part. It sees then what the tenant does to all of them; as
    /// used, what it used of the one that it used most.
    fn spans(&self, tenant: usize) -> bool {
        let _ = tenant;
        false
    }

    /// Whether what it wants now is for the sake of an experiment or of a stand-alone run, and not
    /// what it would leave in force.
    fn is_probing(&self) -> bool {
        false
    }

    /// How a tenant stands, as of the last step.
    fn standing(&self, tenant: usize) -> Standing {
        let _ = tenant;
        Standing::default()
    }

    /// One step.
    fn step(&mut self, now: Instant, seen: &[Seen], want: &mut [Want]);

    /// What it did since it was last asked, oldest first.
    fn take_decisions(&mut self) -> Vec<Decision> {
        Vec::new()
    }
}
