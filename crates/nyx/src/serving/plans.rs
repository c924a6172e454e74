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
use nyx_policy::sharing::share::{self, Donation, Gauge, Steps};
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

/// The same of the deep devices: divided by weights where the others are, and nobody goes above its
/// `deep_limit`. What policies that go by latencies want holds on both devices of a tenant, so that
/// no others are needed there.
pub fn deep_plans(config: &Config, prices: &[&CostTable]) -> Result<Vec<Plan>, PlanError> {
    let each = prices.iter().enumerate();
    each.map(|(at, prices)| checked(config, Place::Deep(at), prices))
        .collect()
}

/// The plan of the device at a place.
pub fn plan(config: &Config, device: usize, prices: &CostTable) -> Result<Plan, PlanError> {
    checked(config, Place::Fast(device), prices)
}

fn checked(config: &Config, place: Place, prices: &CostTable) -> Result<Plan, PlanError> {
    let planner = Planner {
        config,
        place,
        prices,
    };
    let plan = planner.plan(config.policy.kind, None);
    let name = match place {
        Place::Fast(at) => &config.devices[at].name,
        Place::Deep(at) => &config.deep_devices[at].name,
    };
    plan.check(&format!("device {name:?}"), config.policy.oversubscribe)?;
    Ok(plan)
}

/// A device, among those of its kind.
#[derive(Clone, Copy)]
enum Place {
    Fast(usize),
    Deep(usize),
}

struct Planner<'a> {
    config: &'a Config,
    place: Place,
    prices: &'a CostTable,
}

impl Planner<'_> {
    /// Of those in a group, or in none.
    fn plan(&self, kind: PolicyKind, group: Option<usize>) -> Plan {
        let tenants = self.config.tenants.iter().enumerate();
        let tenants = tenants.filter(|(_, one)| one.group == group && self.has(one));
        let tenants = tenants.map(|(at, one)| Member {
            name: one.name.clone(),
            who: Who::Tenant(at),
            terms: self.terms(&one.terms, one.deep_limit),
        });
        let groups = self.config.groups.iter().enumerate();
        let groups = groups.filter(|(at, one)| one.group == group && self.has_group(*at));
        let groups = groups.map(|(at, one)| Member {
            name: one.name.clone(),
            who: Who::Group(self.plan(one.kind, Some(at))),
            terms: self.terms(&one.terms, None),
        });
        Plan {
            kind: match self.place {
                Place::Fast(_) => self.kind(kind),
                Place::Deep(_) => self.deep_kind(kind),
            },
            members: tenants.chain(groups).collect(),
        }
    }

    fn has(&self, tenant: &config::Tenant) -> bool {
        match self.place {
            Place::Fast(at) => tenant.device == at,
            Place::Deep(at) => tenant.deep.is_some_and(|share| share.device == at),
        }
    }

    /// Whether a group is on the device: on a deep one, if somebody in it is.
    fn has_group(&self, at: usize) -> bool {
        let Config {
            groups, tenants, ..
        } = self.config;
        if let Place::Fast(device) = self.place {
            return groups[at].device == device;
        }
        let mut inside = groups.iter().enumerate();
        let mut within = tenants.iter().filter(|one| one.group == Some(at));
        within.any(|one| self.has(one))
            || inside.any(|(inner, one)| one.group == Some(at) && self.has_group(inner))
    }

    /// Runs alone tell nothing of a device while a tenant's other one is shared; the device tells
    /// how its tenants fare.
    fn deep_kind(&self, kind: PolicyKind) -> Kind {
        match kind {
            PolicyKind::Share => Kind::Share(share::Settings {
                gauge: Gauge::Told,
                ..self.share_settings()
            }),
            PolicyKind::Partition => Kind::Partition,
            _ => Kind::Limit,
        }
    }

    /// An upper bound as a share of the device: more than that can do is none.
    fn bound(&self, limit: Option<Limit>) -> Option<f64> {
        let share = limit.map(|limit| self.share(limit));
        share.filter(|share| *share <= 1.0)
    }

    /// On a deep device a weight and a limit are all that there is.
    fn terms(&self, terms: &config::Terms, deep_limit: Option<Limit>) -> Terms {
        if let Place::Deep(_) = self.place {
            return Terms {
                weight: terms.weight,
                bounds: Bounds::below(self.bound(deep_limit)),
                ..Terms::default()
            };
        }
        let min = terms.min.map(|min| self.share(min));
        Terms {
            weight: terms.weight,
            bounds: Bounds {
                min: min.unwrap_or(Bounds::NONE.min),
                max: self.bound(terms.limit),
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
            gauge: Gauge::Runs,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::load;
    use crate::config::overrides::Overrides;

    const DEVICES: &str = "[server]\nlisten = [\"127.0.0.1:4000\"]\n\
        [[device]]\nname = \"main\"\nkind = \"anon\"\nsize = \"64MiB\"\n\
        [[device]]\nname = \"ssd\"\nkind = \"block\"\npath = \"ssd\"\nsize = \"1GiB\"\n\
        [[device]]\nname = \"disk\"\nkind = \"block\"\npath = \"disk\"\nsize = \"1GiB\"\n";

    fn tenant(name: &str, more: &str) -> String {
        let prefix = format!("key_prefix = \"{name}:\"");
        format!("[[tenant]]\nname = \"{name}\"\nsize = \"8MiB\"\n{prefix}\n{more}\n")
    }

    /// Plans of both deep devices, on each of which a standard operation takes 10 us.
    fn deep(policy: &str, more: &[String]) -> Vec<Plan> {
        let text = format!("{DEVICES}[policy]\nkind = \"{policy}\"\n{}", more.concat());
        let config = load(&text, &Overrides::default()).expect("sound").config;
        let prices = CostTable::from_max_iops(&[1e5; _], &[1e5; _]);
        deep_plans(&config, &[&prices, &prices]).expect("can be kept")
    }

    fn bounds(plan: &Plan) -> Vec<(&str, f64, Option<f64>)> {
        let members = plan.members.iter();
        let part = |one: &Member| one.terms.bounds.max;
        members
            .map(|one| (&*one.name, one.terms.weight, part(one)))
            .collect()
    }

    #[test]
    fn a_deep_device_is_divided_among_those_who_are_on_it() {
        let tenants = [
            tenant("none", "weight = 7"),
            tenant(
                "a",
                "tiers = [\"main\", \"ssd\"]\nweight = 3\nlimit = \"30%\"",
            ),
            tenant("b", "tiers = [\"main\", \"ssd\"]\ndeep_limit = \"25%\""),
            tenant(
                "c",
                "tiers = [\"main\", \"disk\"]\ndeep_limit = \"1000 std-ops/s\"",
            ),
            tenant(
                "d",
                "tiers = [\"main\", \"disk\"]\ndeep_limit = \"200000 std-ops/s\"",
            ),
        ];
        for (policy, by_weight) in [("share", true), ("limit", false), ("qos", false)] {
            let [ssd, disk] = &deep(policy, &tenants)[..] else {
                panic!("one plan for each");
            };
            assert_eq!(bounds(ssd), [("a", 3.0, None), ("b", 1.0, Some(0.25))]);
            assert!(matches!(&ssd.members[1].who, Who::Tenant(2)));
            // More than the device can do is no limit.
            assert_eq!(bounds(disk), [("c", 1.0, Some(0.01)), ("d", 1.0, None)]);
            match &ssd.kind {
                Kind::Share(settings) => assert!(by_weight && settings.gauge == Gauge::Told),
                kind => assert!(!by_weight && *kind == Kind::Limit, "{kind:?}"),
            }
        }
    }

    #[test]
    fn groups_divide_a_deep_device_where_somebody_in_them_is_on_it() {
        let group = |name: &str, more: &str| format!("[[group]]\nname = \"{name}\"\n{more}\n");
        let plans = deep(
            "share",
            &[
                group("team", "weight = 2\npolicy = \"qos\""),
                group("others", "weight = 5"),
                tenant("a", "group = \"team\"\ntiers = [\"main\", \"ssd\"]"),
                tenant("b", "group = \"team\"\ntiers = [\"main\", \"disk\"]"),
                tenant("c", "group = \"others\""),
            ],
        );
        let [ssd, _] = &plans[..] else {
            panic!("one plan for each");
        };
        assert_eq!(bounds(ssd), [("team", 2.0, None)]);
        let Who::Group(inside) = &ssd.members[0].who else {
            panic!("it is a group");
        };
        assert_eq!(inside.kind, Kind::Limit);
        assert_eq!(bounds(inside), [("a", 1.0, None)]);
    }
}
