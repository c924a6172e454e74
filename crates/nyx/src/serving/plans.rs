//! The plans of a configuration: who shares each device with whom, in the policy room's terms.
//!
//! What it never does: make a policy, or decide whether a plan can be kept; the plan does both.

use crate::config::{self, Config, Limit, Mode, PolicyKind};
use nyx_base::Nanos;
use nyx_gate::CostTable;
use nyx_media::Op;
use nyx_policy::baselines::caladan;
use nyx_policy::mechanism::alone::{self, Clients, Refresh};
use nyx_policy::mechanism::throttle::Bounds;
use nyx_policy::plan::{Kind, Member, Plan, PlanError, Terms, Who};
use nyx_policy::sharing::limit::Epoch;
use nyx_policy::sharing::qos::{self, Target};
use nyx_policy::sharing::share::{self, Donation, Steps};
use nyx_policy::sharing::slowdown;

/// The part of the distance between equal and too unequal at which `slowdown` is content.
const GOAL: f64 = 0.4;
/// Ticks of an epoch of `share`, where nobody says otherwise.
const SHARE_TICKS: u32 = 10;
/// A period of MemGuard, and the latencies that Caladan judges by.
const MEMGUARD_PERIOD: Nanos = Nanos::from_millis(100);
const CALADAN_SAMPLES: u64 = 500;

/// A plan for each device, in their order; what is wrong where one cannot be kept. `prices` are the
/// devices'.
pub fn plans(config: &Config, prices: &[&CostTable]) -> Result<Vec<Plan>, PlanError> {
    let each = prices.iter().enumerate();
    each.map(|(at, prices)| plan(config, at, prices)).collect()
}

/// The plan of the device at a place.
pub fn plan(config: &Config, device: usize, prices: &CostTable) -> Result<Plan, PlanError> {
    let planner = Planner {
        config,
        device,
        prices,
    };
    let plan = planner.plan(config.policy.kind, None);
    let within = format!("device {:?}", config.devices[device].name);
    plan.check(&within, config.policy.oversubscribe)?;
    Ok(plan)
}

struct Planner<'a> {
    config: &'a Config,
    device: usize,
    prices: &'a CostTable,
}

impl Planner<'_> {
    /// Of those in a group, or in none.
    fn plan(&self, kind: PolicyKind, group: Option<usize>) -> Plan {
        let tenants = self.config.tenants.iter().enumerate();
        let tenants = tenants.filter(|(_, one)| one.group == group && one.device == self.device);
        let tenants = tenants.map(|(at, one)| Member {
            name: one.name.clone(),
            who: Who::Tenant(at),
            terms: self.terms(&one.terms),
        });
        let groups = self.config.groups.iter().enumerate();
        let groups = groups.filter(|(_, one)| one.group == group && one.device == self.device);
        let groups = groups.map(|(at, one)| Member {
            name: one.name.clone(),
            who: Who::Group(self.plan(one.kind, Some(at))),
            terms: self.terms(&one.terms),
        });
        Plan {
            kind: self.kind(kind),
            members: tenants.chain(groups).collect(),
        }
    }

    fn terms(&self, terms: &config::Terms) -> Terms {
        let share = |limit: Option<Limit>| limit.map(|limit| self.share(limit));
        Terms {
            weight: terms.weight,
            bounds: Bounds {
                min: share(terms.min).unwrap_or(Bounds::NONE.min),
                // More than the device can do is no limit.
                max: share(terms.limit).filter(|share| *share <= 1.0),
            },
            burst: Nanos(terms.burst_ns),
            target: terms.target.map(|target| match target {
                config::Target::MeanNs(ns) => Target::Mean(Nanos(ns)),
                config::Target::QuantileNs(q, ns) => Target::Quantile(q, Nanos(ns)),
                config::Target::OpsPerS(ops) => Target::OpsPerS(ops as f64),
            }),
            slowdown_max: terms.slowdown_limit,
            clients: match terms.is_open {
                true => Clients::Open,
                false => Clients::Closed,
            },
        }
    }

    /// A limit as a share of the device.
    fn share(&self, limit: Limit) -> f64 {
        match limit {
            Limit::StdOpsPerS(ops) => self.prices.standard().as_secs_f64() * ops as f64,
            Limit::Share(share) => share,
        }
    }

    /// What a whole device moves, as the paper defines it (section 4.2: 1.25 M 4-KB loads/s are
    /// 5 GB/s).
    fn whole_bytes_per_s(&self) -> f64 {
        4096.0 / self.prices.price(Op::Read, 4096).as_secs_f64()
    }

    fn kind(&self, kind: PolicyKind) -> Kind {
        let policy = &self.config.policy;
        let whole_bytes_per_s = self.whole_bytes_per_s();
        match (kind, policy.mode) {
            (PolicyKind::None, _) => Kind::None,
            (PolicyKind::Limit, Mode::Nyx) => Kind::Limit,
            (PolicyKind::Limit, Mode::Paper) => Kind::LimitPaper(self.epoch(100)),
            (PolicyKind::Qos, _) => Kind::Qos(self.qos()),
            (PolicyKind::Slowdown, _) => Kind::Slowdown(self.slowdown()),
            (PolicyKind::Share, _) => Kind::Share(self.share_settings()),
            (PolicyKind::Partition, _) => Kind::Partition,
            (PolicyKind::Bytes, _) => Kind::Bytes { whole_bytes_per_s },
            (PolicyKind::Ops, _) => Kind::Ops {
                whole_ops_per_s: 1.0 / self.prices.standard().as_secs_f64(),
            },
            (PolicyKind::Caladan, _) => Kind::Caladan(caladan::Settings {
                window: self.window(),
                step_bytes_per_s: self.step_bytes_per_s(),
                samples: CALADAN_SAMPLES,
            }),
            (PolicyKind::MemGuard, _) => Kind::MemGuard {
                whole_bytes_per_s,
                period: MEMGUARD_PERIOD,
            },
        }
    }

    fn epoch(&self, ticks: u32) -> Epoch {
        Epoch {
            tick: Nanos::from_millis(u64::from(self.config.policy.tick_ms)),
            ticks: self.config.policy.epoch_ticks.unwrap_or(ticks),
        }
    }

    fn window(&self) -> Nanos {
        Nanos::from_millis(u64::from(self.config.policy.window_ms))
    }

    fn step_bytes_per_s(&self) -> f64 {
        self.share(self.config.policy.experiment_step) * self.whole_bytes_per_s()
    }

    fn qos(&self) -> qos::Params {
        let policy = &self.config.policy;
        qos::Params {
            mode: match policy.mode {
                Mode::Nyx => qos::Mode::Adaptive,
                Mode::Paper => qos::Mode::Paper,
            },
            step_bytes_per_s: self.step_bytes_per_s(),
            slack_ample: policy.slack,
            candidates: policy.candidates,
            design: policy.trials,
            window_max: self.window(),
            ..qos::Params::default()
        }
    }

    fn slowdown(&self) -> slowdown::Params {
        let policy = &self.config.policy;
        slowdown::Params {
            mode: match policy.mode {
                Mode::Nyx => slowdown::Mode::Proportional,
                Mode::Paper => slowdown::Mode::Paper,
            },
            unfairness_threshold: policy.unfairness,
            unfairness_goal: 1.0 + GOAL * (policy.unfairness - 1.0),
            alone: self.alone(),
            ..slowdown::Params::default()
        }
    }

    fn alone(&self) -> alone::Params {
        let policy = &self.config.policy;
        alone::Params {
            mode: match policy.mode {
                Mode::Nyx => Refresh::OnChange,
                Mode::Paper => Refresh::Paper,
            },
            pause: Nanos(policy.pause_ns),
            refresh: Nanos(policy.refresh_ns),
            ..alone::Params::default()
        }
    }

    fn share_settings(&self) -> share::Settings {
        let policy = &self.config.policy;
        share::Settings {
            donation: match policy.is_donation_naive {
                true => Donation::Naive,
                false => Donation::Aware,
            },
            steps: match policy.mode {
                Mode::Nyx => Steps::Adaptive,
                Mode::Paper => Steps::Paper {
                    donate_step: policy.donate_step,
                },
            },
            epoch: self.epoch(SHARE_TICKS),
            alone: self.alone(),
        }
    }
}

/// Checks that need no device: a price list on which a standard operation is all that there is says
/// nothing of limits in operations, which are left out.
pub fn check_shares(config: &Config) -> Result<(), PlanError> {
    let mut known = config.clone();
    let terms = known.tenants.iter_mut().map(|one| &mut one.terms);
    for terms in terms.chain(known.groups.iter_mut().map(|one| &mut one.terms)) {
        let is_share = |limit: &Limit| matches!(limit, Limit::Share(_));
        terms.min = terms.min.filter(is_share);
        terms.limit = terms.limit.filter(is_share);
    }
    let unpriced = CostTable::unpriced();
    plans(&known, &vec![&unpriced; config.devices.len()]).map(|_| ())
}
