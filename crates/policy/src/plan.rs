//! A plan of sharing as plain data: which policy divides a device, among which tenants and groups,
//! on which terms; and the policy object that follows from it. Configuration, scenarios and tests
//! make plans; nobody else constructs policies for a whole engine.
//!
//! A group is to the policy above it one member, and to those inside it a device of its own: as
//! large as the policy above lets it be, divided by a policy of its own. "Proportional across
//! groups, QoS inside" (NyxCache section 6) is a plan whose root is `Share` and whose groups are
//! `Qos`.
//!
//! What it never does: look at a tenant. [`Plan::check`] refuses what cannot be kept by any load,
//! and [`Plan::build`] relies on it.

use crate::Policy;
use crate::baselines::{
    ByteRate, CaladanLike, MemGuardLike, OpRate, StaticPartition, Unlimited, caladan,
};
use crate::mechanism::alone::Clients;
use crate::mechanism::throttle::Bounds;
use crate::sharing::limit::{self, Epoch, Leased};
use crate::sharing::qos::{self, Class, Qos, Target};
use crate::sharing::share::{self, Share};
use crate::sharing::slowdown::{self, Slowdown};
use crate::tree::Tree;
use nyx_base::{DevicePs, Nanos};

/// How one device, or one group's part of it, is divided.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// By which policy.
    pub kind: Kind,
    /// Among whom.
    pub members: Vec<Member>,
}

/// A policy and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Metered, never held.
    None,
    /// Nobody above its upper bound, exactly.
    Limit,
    /// The same, by Algorithm 1 as printed.
    LimitPaper(Epoch),
    /// Targets are kept (Algorithm 2).
    Qos(qos::Params),
    /// Equal slowdowns, or in the proportion of weights (Algorithm 3).
    Slowdown(slowdown::Params),
    /// Weights of the device's time; what is idle is lent (Algorithm 4).
    Share(share::Settings),
    /// Weights of the device's time; what is idle is lost (a baseline).
    Partition,
    /// Upper bounds taken as bytes (a baseline): so many bytes per second are a whole device.
    Bytes {
        /// What a whole device moves.
        whole_bytes_per_s: f64,
    },
    /// Upper bounds taken as operations (a baseline): so many per second are a whole device.
    Ops {
        /// What a whole device does.
        whole_ops_per_s: f64,
    },
    /// Targets are kept at the expense of who moves the most bytes (a baseline).
    Caladan(caladan::Settings),
    /// Weights of the device's bytes, lent period by period (a baseline).
    MemGuard {
        /// What a whole device moves.
        whole_bytes_per_s: f64,
        /// A period.
        period: Nanos,
    },
}

/// One party to a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its name, for reasons.
    pub name: String,
    /// Who it is.
    pub who: Who,
    /// On which terms it takes part.
    pub terms: Terms,
}

/// Who a member is.
#[derive(Clone, Debug, PartialEq)]
pub enum Who {
    /// The tenant at this place.
    Tenant(usize),
    /// All of these together.
    Group(Plan),
}

/// What a member is promised and what it must bear; a policy looks at what concerns it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Its weight against its siblings'.
    pub weight: f64,
    /// Between which shares of the device it may be limited.
    pub bounds: Bounds,
    /// How long it may use saved-up time without regard to its limit: it is remembered for so long.
    pub burst: Nanos,
    /// What its requests are promised; none is best effort.
    pub target: Option<Target>,
    /// The slowdown that it must not exceed.
    pub slowdown_max: Option<f64>,
    /// How its clients behave.
    pub clients: Clients,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            weight: 1.0,
            bounds: Bounds::NONE,
            burst: Nanos::ZERO,
            target: None,
            slowdown_max: None,
            clients: Clients::Closed,
        }
    }
}

/// Why a plan cannot be kept.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A number is none of its kind.
    #[error("{member:?}: {what} of {value} is not {wanted}")]
    Unsound {
        /// Whose.
        member: String,
        /// Which number.
        what: &'static str,
        /// What it is.
        value: f64,
        /// What it should be.
        wanted: &'static str,
    },
    /// The lower bound is above the upper one.
    #[error("{member:?}: at least {min:.1} % of the device is more than at most {max:.1} %")]
    Crossed {
        /// Whose.
        member: String,
        /// The lower bound in percent.
        min: f64,
        /// The upper bound in percent.
        max: f64,
    },
    /// More is guaranteed than there is.
    #[error(
        "{within} guarantees {sum:.1} % of the device to its members, and has {has:.1} %: \
         {members}"
    )]
    Oversubscribed {
        /// The device or group.
        within: String,
        /// The sum of the guarantees in percent.
        sum: f64,
        /// What there is, in percent.
        has: f64,
        /// Who is guaranteed how much.
        members: String,
    },
    /// Bytes or operations inside of something that is limited in device time.
    #[error("{within}: {kind} counts otherwise than in device time and cannot stand in a tree")]
    Uncountable {
        /// The group.
        within: String,
        /// The policy.
        kind: &'static str,
    },
}

impl Plan {
    /// All of these tenants as equals, under one policy, without groups.
    pub fn flat(kind: Kind, terms: impl IntoIterator<Item = (String, Terms)>) -> Plan {
        let member = |(at, (name, terms))| Member {
            name,
            who: Who::Tenant(at),
            terms,
        };
        Plan {
            kind,
            members: terms.into_iter().enumerate().map(member).collect(),
        }
    }

    /// The policy of an engine with so many tenants, whose devices are divided by these plans. A
    /// tenant that no plan names has no limit.
    ///
    /// Panics where a plan does not pass [`Plan::check`], or names a tenant that is not there.
    pub fn build(plans: &[Plan], tenants: usize) -> Box<dyn Policy> {
        let is_whole = |plan: &Plan| {
            let places = plan.members.iter().enumerate();
            let mut places = places.map(|(at, member)| match member.who {
                Who::Tenant(tenant) => tenant == at && member.terms.burst == Nanos::ZERO,
                Who::Group(_) => false,
            });
            plan.members.len() == tenants && places.all(|is_in_place| is_in_place)
        };
        match plans {
            // Nothing to arrange: figures need not be copied.
            [plan] if is_whole(plan) => plan.policy(),
            _ => Box::new(Tree::new(plans, tenants)),
        }
    }

    /// The policy over the members, without what is inside of them.
    pub(crate) fn policy(&self) -> Box<dyn Policy> {
        let terms = || self.members.iter().map(|member| member.terms);
        let names = || self.members.iter().map(|member| member.name.clone());
        let max = || terms().map(|terms| terms.bounds.max);
        let weights: Vec<f64> = terms().map(|terms| terms.weight).collect();
        let rates = || max().map(|share| share.map(|share| DevicePs((share * 1e12) as u64)));
        let of_whole = |whole: f64| {
            max()
                .map(|share| share.map(|share| share * whole))
                .collect()
        };
        match &self.kind {
            Kind::None => Box::new(Unlimited),
            Kind::Limit => Box::new(Leased::new(rates().collect())),
            Kind::LimitPaper(epoch) => Box::new(limit::Paper::new(rates().collect(), *epoch)),
            Kind::Qos(params) => Box::new(Qos::new(
                self.members.iter().map(critical).collect(),
                *params,
            )),
            Kind::Slowdown(params) => {
                let policy = Slowdown::new(*params, terms().map(fair).collect());
                Box::new(policy.named(names().collect()))
            }
            Kind::Share(settings) => {
                let bounds = terms().map(|terms| terms.bounds).collect();
                let clients: Vec<Clients> = terms().map(|terms| terms.clients).collect();
                let policy = Share::new(&weights, *settings).of_clients(&clients);
                Box::new(policy.within(bounds).named(names().collect()))
            }
            Kind::Partition => Box::new(StaticPartition::new(&weights)),
            Kind::Bytes { whole_bytes_per_s } => {
                Box::new(ByteRate::new(of_whole(*whole_bytes_per_s)))
            }
            Kind::Ops { whole_ops_per_s } => Box::new(OpRate::new(of_whole(*whole_ops_per_s))),
            Kind::Caladan(settings) => Box::new(CaladanLike::new(
                terms()
                    .map(|terms| terms.target.and_then(bounded))
                    .collect(),
                *settings,
            )),
            Kind::MemGuard {
                whole_bytes_per_s,
                period,
            } => {
                let parts = share::entitlements(&weights);
                let budgets = parts.iter().map(|part| part * whole_bytes_per_s);
                Box::new(MemGuardLike::new(budgets.collect(), *period))
            }
        }
    }

    /// Whether this can be kept at all, by what stands in it alone. `within` names the device.
    ///
    /// With `oversubscribed` guarantees may sum to more than there is; they are then kept as long
    /// as not everybody asks for theirs.
    pub fn check(&self, within: &str, oversubscribed: bool) -> Result<(), PlanError> {
        self.check_part(within, 1.0, oversubscribed)
    }

    fn check_part(&self, within: &str, has: f64, oversubscribed: bool) -> Result<(), PlanError> {
        for member in &self.members {
            member.check()?;
        }
        let guaranteed = |member: &&Member| member.guarantee() > 0.0;
        let sum: f64 = self.members.iter().map(Member::guarantee).sum();
        if sum > has * (1.0 + 1e-9) && !oversubscribed {
            let told = self.members.iter().filter(guaranteed);
            let told = told.map(|one| format!("{} {:.1} %", one.name, one.guarantee() * 100.0));
            return Err(PlanError::Oversubscribed {
                within: within.into(),
                sum: sum * 100.0,
                has: has * 100.0,
                members: told.collect::<Vec<String>>().join(", "),
            });
        }
        let groups = self.members.iter().filter_map(|member| match &member.who {
            Who::Group(plan) => Some((member, plan)),
            Who::Tenant(_) => None,
        });
        for (member, plan) in groups {
            for kind in [&self.kind, &plan.kind] {
                if let Some(kind) = kind.uncountable() {
                    let within = format!("group {:?}", member.name);
                    return Err(PlanError::Uncountable { within, kind });
                }
            }
            let within = format!("group {:?}", member.name);
            // A group without a guarantee of its own has what its members were promised.
            let least = match member.terms.bounds.min > Bounds::NONE.min {
                true => member.terms.bounds.min,
                false => member.terms.bounds.max.unwrap_or(1.0),
            };
            plan.check_part(&within, least, oversubscribed)?;
        }
        Ok(())
    }

    /// What its members are guaranteed together, as a share of the device.
    fn guarantee(&self) -> f64 {
        self.members.iter().map(Member::guarantee).sum()
    }
}

impl Kind {
    /// The name of a policy that does not count device time.
    fn uncountable(&self) -> Option<&'static str> {
        match self {
            Kind::Bytes { .. } => Some("bytes"),
            Kind::Caladan(_) => Some("caladan"),
            Kind::MemGuard { .. } => Some("memguard"),
            _ => None,
        }
    }
}

impl Member {
    /// What it is guaranteed, as a share of the device.
    fn guarantee(&self) -> f64 {
        let own = match self.terms.bounds.min > Bounds::NONE.min {
            true => self.terms.bounds.min,
            false => 0.0,
        };
        match &self.who {
            Who::Tenant(_) => own,
            Who::Group(plan) => own.max(plan.guarantee()),
        }
    }

    fn check(&self) -> Result<(), PlanError> {
        let Terms {
            weight,
            bounds,
            slowdown_max,
            ..
        } = self.terms;
        let unsound = |what, value, wanted| {
            Err(PlanError::Unsound {
                member: self.name.clone(),
                what,
                value,
                wanted,
            })
        };
        let is_share = |share: f64| share > 0.0 && share <= 1.0;
        if !(weight.is_finite() && weight > 0.0) {
            return unsound("a weight", weight, "above 0");
        }
        if let Some(most) = slowdown_max.filter(|most| !(most.is_finite() && *most >= 1.0)) {
            return unsound("a slowdown limit", most, "at least 1");
        }
        for share in [Some(bounds.min), bounds.max].into_iter().flatten() {
            if !is_share(share) {
                return unsound("a bound", share, "a share of the device");
            }
        }
        match bounds.max {
            Some(max) if max < bounds.min && bounds.min > Bounds::NONE.min => {
                Err(PlanError::Crossed {
                    member: self.name.clone(),
                    min: bounds.min * 100.0,
                    max: max * 100.0,
                })
            }
            _ => Ok(()),
        }
    }
}

fn critical(member: &Member) -> qos::Member {
    qos::Member {
        name: member.name.clone(),
        class: member
            .terms
            .target
            .map_or(Class::BestEffort, Class::Critical),
        bounds: member.terms.bounds,
    }
}

fn fair(terms: Terms) -> slowdown::Terms {
    slowdown::Terms {
        weight: terms.weight,
        slowdown_most: terms.slowdown_max,
        clients: terms.clients,
        bounds: terms.bounds,
    }
}

/// Caladan knows targets on latency only.
fn bounded(target: Target) -> Option<caladan::Target> {
    let (latency, quantile) = match target {
        Target::Mean(latency) => (latency, None),
        Target::Quantile(quantile, latency) => (latency, Some(quantile)),
        Target::OpsPerS(_) => return None,
    };
    Some(caladan::Target { latency, quantile })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Delay, Seen, Want};
    use nyx_base::Instant;

    fn member(name: &str, min: f64, max: Option<f64>) -> (String, Terms) {
        let min = min.max(Bounds::NONE.min);
        let terms = Terms {
            bounds: Bounds { min, max },
            ..Terms::default()
        };
        (name.into(), terms)
    }

    fn group(name: &str, min: f64, max: Option<f64>, plan: Plan) -> Member {
        let (name, terms) = member(name, min, max);
        Member {
            name,
            who: Who::Group(plan),
            terms,
        }
    }

    #[test]
    fn guarantees_beyond_the_device_are_refused_unless_asked_for() {
        let plan = Plan::flat(
            Kind::Limit,
            [member("a", 0.7, None), member("b", 0.4, None)],
        );
        let refusal = plan.check("device \"main\"", false).expect_err("refused");
        assert_eq!(
            refusal.to_string(),
            "device \"main\" guarantees 110.0 % of the device to its members, and has 100.0 %: \
             a 70.0 %, b 40.0 %"
        );
        assert_eq!(plan.check("device \"main\"", true), Ok(()));
    }

    #[test]
    fn a_group_cannot_guarantee_more_than_it_may_use() {
        let inside = || {
            Plan::flat(
                Kind::Limit,
                [member("a", 0.2, None), member("b", 0.2, None)],
            )
        };
        let plan = |min, max| Plan {
            kind: Kind::Share(share::Settings::default()),
            members: vec![group("g", min, max, inside())],
        };
        assert_eq!(plan(0.0, None).check("device", false), Ok(()));
        assert_eq!(plan(0.4, None).check("device", false), Ok(()));
        for (min, max) in [(0.3, None), (0.0, Some(0.3))] {
            let refusal = plan(min, max).check("device", false).expect_err("refused");
            let told = refusal.to_string();
            assert!(told.starts_with("group \"g\" guarantees 40.0 %"), "{told}");
        }
    }

    #[test]
    fn what_its_members_are_guaranteed_a_group_needs_too() {
        let inside = Plan::flat(Kind::Limit, [member("a", 0.8, None)]);
        let (name, terms) = member("b", 0.3, None);
        let who = Who::Tenant(1);
        let b = Member { name, who, terms };
        let plan = Plan {
            kind: Kind::Limit,
            members: vec![group("g", 0.0, None, inside), b],
        };
        let refusal = plan.check("device", false).expect_err("refused");
        assert!(matches!(refusal, PlanError::Oversubscribed { sum, .. } if sum > 109.0));
    }

    #[test]
    fn numbers_that_mean_nothing_are_named() {
        let with = |change: fn(&mut Terms)| {
            let (name, mut terms) = member("a", 0.0, None);
            change(&mut terms);
            let checked = Plan::flat(Kind::None, [(name, terms)]).check("device", false);
            checked.expect_err("refused").to_string()
        };
        assert!(with(|terms| terms.weight = 0.0).contains("a weight of 0 is not above 0"));
        assert!(with(|terms| terms.slowdown_max = Some(0.5)).contains("0.5 is not at least 1"));
        let crossed = with(|terms| {
            terms.bounds = Bounds {
                min: 0.5,
                max: Some(0.25),
            }
        });
        assert!(crossed.contains("at least 50.0 % of the device is more than at most 25.0 %"));
    }

    #[test]
    fn bytes_cannot_stand_in_a_tree() {
        let bytes = Kind::Bytes {
            whole_bytes_per_s: 1e9,
        };
        let plan = Plan {
            kind: Kind::Limit,
            members: vec![group(
                "g",
                0.0,
                None,
                Plan::flat(bytes, [member("a", 0.0, None)]),
            )],
        };
        let refusal = plan.check("device", false).expect_err("refused");
        assert!(matches!(
            refusal,
            PlanError::Uncountable { kind: "bytes", .. }
        ));
    }

    /// Taken out of any of these policies, the bound would be passed.
    #[test]
    fn upper_bounds_hold_under_every_policy_that_moves_limits() {
        let kinds = [
            Kind::Limit,
            Kind::Qos(qos::Params::default()),
            Kind::Slowdown(slowdown::Params::default()),
            Kind::Share(share::Settings::default()),
        ];
        for kind in kinds {
            let plan = Plan::flat(kind, [member("a", 0.0, Some(0.3)), member("b", 0.0, None)]);
            let mut policy = Plan::build(std::slice::from_ref(&plan), 2);
            let mut seen = [Seen::default(), Seen::default()];
            let mut now = Instant(0);
            for _ in 0..2_000 {
                let mut want = [Want::default(); 2];
                policy.step(now, &seen, &mut want);
                let paused = want[0].delay == Delay::Infinite;
                let rate = want[0].rate.map_or(1.0, DevicePs::as_secs_f64);
                assert!(
                    paused || rate <= 0.3 + 1e-9,
                    "{:?}: {:?}",
                    plan.kind,
                    want[0]
                );
                let period = policy.period();
                for seen in &mut seen {
                    seen.used = DevicePs(seen.used.0 + 300 * period.0);
                    seen.ops += period.0 / 1_000;
                    seen.bytes += period.0;
                }
                now += period;
            }
        }
    }

    #[test]
    fn one_device_without_groups_needs_no_tree() {
        let plan = Plan::flat(
            Kind::Limit,
            [member("a", 0.0, Some(0.3)), member("b", 0.0, None)],
        );
        assert_eq!(Plan::build(&[plan], 2).name(), "limit");
    }
}
