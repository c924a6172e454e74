//! Admission: whether promises can be kept beside those who are there, told before and not after
//! (NyxCache section 3.4, "Admission and capacity", which assumes such logic; Paragon predicts so
//! whether a newcomer and its neighbours keep what they are promised).
//!
//! A promise is judged against what *cannot be taken* from the others, because the policy in charge
//! takes the rest when it must:
//!
//! * under `qos` (and its Caladan-like baseline): of best-effort members their minimum; of members
//!   with a target what they use, or their minimum where that is more; of a target in accesses per
//!   second what those accesses take of the device;
//! * under `share` and `partition`: what each is entitled to by its weight, or its minimum;
//! * under all others nobody is throttled for the sake of a promise: what each uses, or where that
//!   is not known what it may use.
//!
//! What somebody uses is as measured; where it is not known, a share is taken for reads of 1 KiB,
//! whose latency price is one. How long an access then takes says
//! [`forecast`](crate::mechanism::forecast). A server's latencies count from the request to the
//! answer, so the CPU's part is added, [`Device::cpu_ns`]: the least that it can be, lest a promise
//! is refused that could be kept.
//!
//! Forecasts err. What they say is refused, or is sound, only beyond [`MEAN_ERROR`] and
//! [`P99_ERROR`]; between them, near saturation, and for quantiles beyond what is forecast, it
//! *cannot tell*, which is no refusal: the policy will find out.
//!
//! Only promises that a policy looks at, or that follow from weights, are judged: targets under
//! `qos`, Caladan-like, `share` and `partition`, and under the latter two slowdown limits too. That
//! guarantees do not sum to more than there is, and that space suffices, is checked elsewhere
//! ([`Plan::check`], the configuration).
//!
//! What it never does: measure, or decide what becomes of a refusal.

use crate::mechanism::forecast::{Access, Basis, CannotTell, Forecast, Load, Used};
use crate::mechanism::throttle::Bounds;
use crate::plan::{Kind, Member, Plan, Who};
use crate::sharing::qos::Target;
use nyx_base::DevicePs;
use std::fmt;

/// The CPU's part of a latency where nobody has measured it, in nanoseconds: one system call that
/// reads a request and some 0.3 us that execute it. A server that is asked one request at a time
/// spends four times as much on each, the writing of the answer included, and one whose requests
/// come in groups lets each wait for its group, so this is the least.
pub const CPU_NS: f64 = 1_000.0;
/// By how much the forecast of a mean errs, as a part of it: three times the mean error that
/// `crates/sim/tests/forecast.rs` asserts.
pub const MEAN_ERROR: f64 = 0.12;
/// The same of a P99: twice its mean error.
pub const P99_ERROR: f64 = 0.22;

/// What is known of a device and of the engine's tenants, beside the plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// What forecasts rest upon. None where the profile has no latencies.
    pub basis: Option<Basis>,
    /// The CPU's part of a latency in nanoseconds; see [`CPU_NS`].
    pub cpu_ns: f64,
    /// The engine's tenants, by their places.
    pub tenants: Vec<Known>,
    /// What a group is taken to ask for.
    pub typical: Vec<Ask>,
}

/// What is known of one tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// What it asks the device for.
    pub asks: Vec<Ask>,
    /// What it used of the device lately. None where that is not known.
    pub used: Option<Load>,
}

/// One kind of access.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Which part of all accesses of its tenant are of this kind; the parts sum to one.
    pub part: f64,
    /// It, in words: `reads of 1024 B`.
    pub what: String,
    /// The device time of one.
    pub price: DevicePs,
    /// Its latencies on the idle device. None where the profile has none.
    pub access: Option<Access>,
}

/// Something that a member was promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Promise {
    /// Its target.
    Target(Target),
    /// So many times slower than alone at most.
    Slowdown(f64),
}

/// What became of one promise.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Whose: a tenant's or a group's name.
    pub member: String,
    /// Which.
    pub promise: Promise,
    /// Whether it can be kept.
    pub verdict: Verdict,
}

/// Whether a promise can be kept. Shares are parts of the device.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It can.
    Sound,
    /// Not even alone on the device.
    TooTight {
        /// What an access takes on the idle device, in nanoseconds.
        idle_ns: f64,
        /// What the CPU takes.
        cpu_ns: f64,
        /// What it asks for, in words.
        asks: String,
    },
    /// Not beside what cannot be taken from the others.
    Broken {
        /// Which figure was forecast; a quantile is missed where even the mean is too long.
        what: &'static str,
        /// It in nanoseconds, the CPU's part included.
        predicted_ns: f64,
        /// What of it is the CPU's.
        cpu_ns: f64,
        /// Who keeps how much of the device.
        others: Vec<(String, f64)>,
        /// What it uses itself.
        own: f64,
    },
    /// So many accesses have no room.
    NoRoom {
        /// What they take.
        takes: f64,
        /// What is left for them.
        left: f64,
        /// What it asks for, in words.
        asks: String,
        /// Who is guaranteed how much.
        others: Vec<(String, f64)>,
    },
    /// The slowdown that its entitlement allows is larger.
    Slower {
        /// What it is entitled to.
        entitled: f64,
    },
    /// Nobody can tell.
    CannotTell(Why),
}

/// Why nobody can tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// The device's profile has no latencies.
    NoLatencies,
    /// There is no forecast.
    NoForecast(CannotTell),
    /// The forecast is too close to the target, or is of another figure than was promised.
    Close {
        /// The figure that was forecast.
        what: &'static str,
        /// Its value in nanoseconds, the CPU's part included.
        predicted_ns: f64,
    },
}

/// What a member has whatever happens to the others.
#[derive(Clone, Debug)]
struct Part {
    name: String,
    /// What it is guaranteed, as a share of the device.
    guaranteed: f64,
    /// What cannot be taken from it.
    keeps: Load,
}

/// Judges every promise of a plan, in its order.
///
/// Panics where the plan names a tenant that `device` does not know.
pub fn judge(plan: &Plan, device: &Device) -> Vec<Finding> {
    let mut findings = Vec::new();
    walk(plan, 1.0, &[], device, &mut findings);
    findings
}

/// Judges those who divide `has` of the device, beside `outside`.
fn walk(plan: &Plan, has: f64, outside: &[Part], device: &Device, findings: &mut Vec<Finding>) {
    let parts = plan.parts(has, device);
    for (at, member) in plan.members.iter().enumerate() {
        let siblings = parts.iter().enumerate().filter(|(other, _)| *other != at);
        let siblings = siblings.map(|(_, part)| part);
        let others: Vec<Part> = siblings.chain(outside).cloned().collect();
        let mut found = |promise, verdict| {
            findings.push(Finding {
                member: member.name.clone(),
                promise,
                verdict,
            });
        };
        let promises = Beside {
            member,
            device,
            others: &others,
        };
        if let Some(target) = member.terms.target.filter(|_| plan.kind.keeps_targets()) {
            found(Promise::Target(target), promises.target(target));
        }
        if let (Some(most), true) = (member.terms.slowdown_max, plan.kind.is_by_weight()) {
            let entitled = parts[at].guaranteed;
            let verdict = match most * entitled < 1.0 - 1e-9 {
                true => Verdict::Slower { entitled },
                false => Verdict::Sound,
            };
            found(Promise::Slowdown(most), verdict);
        }
        if let Who::Group(inside) = &member.who {
            let bounds = member.terms.bounds;
            let has = match plan.kind.is_by_weight() || bounds.min > Bounds::NONE.min {
                true => parts[at].guaranteed,
                false => bounds.max.unwrap_or(has),
            };
            walk(inside, has, &others, device, findings);
        }
    }
}

impl Kind {
    /// Whether it throttles others for the sake of a target.
    fn protects(&self) -> bool {
        matches!(self, Kind::Qos(_) | Kind::Caladan(_))
    }

    /// Whether weights entitle to shares of the device.
    fn is_by_weight(&self) -> bool {
        matches!(self, Kind::Share(_) | Kind::Partition)
    }

    fn keeps_targets(&self) -> bool {
        self.protects() || self.is_by_weight()
    }
}

impl Plan {
    /// What each member has for sure of the `has` that there is.
    fn parts(&self, has: f64, device: &Device) -> Vec<Part> {
        let weights: f64 = self.members.iter().map(|one| one.terms.weight).sum();
        let part = |member: &Member| {
            let entitled = match self.kind.is_by_weight() {
                true => has * member.terms.weight / weights,
                false => 0.0,
            };
            self.part(member, has, entitled, device)
        };
        self.members.iter().map(part).collect()
    }

    /// What a member is guaranteed by its own terms, or those inside of it by theirs.
    fn promised(&self, member: &Member, device: &Device) -> f64 {
        let min = member.terms.bounds.min;
        let own = if min > Bounds::NONE.min { min } else { 0.0 };
        let needed = match member.terms.target {
            Some(Target::OpsPerS(ops)) if self.kind.protects() => {
                share_of(ops, device.asks(member))
            }
            _ => 0.0,
        };
        let inside: f64 = match &member.who {
            Who::Tenant(_) => 0.0,
            Who::Group(plan) => {
                let each = plan.members.iter().map(|one| plan.promised(one, device));
                each.sum()
            }
        };
        own.max(needed).max(inside)
    }

    fn part(&self, member: &Member, has: f64, entitled: f64, device: &Device) -> Part {
        let most = member.terms.bounds.max.unwrap_or(has);
        let guaranteed = self.promised(member, device).max(entitled).min(most);
        let used = device.used(member);
        let uses = used.map(share);
        let is_critical = member.terms.target.is_some();
        let kept = match (self.kind.protects(), self.kind.is_by_weight()) {
            (true, _) if is_critical => uses.unwrap_or(0.0),
            (true, _) | (_, true) => 0.0,
            _ => uses.unwrap_or(most),
        };
        Part {
            name: member.name.clone(),
            guaranteed,
            keeps: scaled(used, kept.min(most).max(guaranteed)),
        }
    }
}

impl Device {
    fn asks<'a>(&'a self, member: &Member) -> &'a [Ask] {
        match &member.who {
            Who::Tenant(at) => &self.tenants[*at].asks,
            Who::Group(_) => &self.typical,
        }
    }

    /// What it used lately, a group all of its tenants together.
    fn used(&self, member: &Member) -> Option<Load> {
        match &member.who {
            Who::Tenant(at) => self.tenants[*at].used,
            Who::Group(plan) => {
                let used = plan.members.iter().filter_map(|one| self.used(one));
                used.reduce(|sum, one| sum + one)
            }
        }
    }
}

/// The share of the device in use.
fn share(load: Load) -> f64 {
    load.reads.share + load.writes.share
}

/// A load of the same composition that uses so much; of none known, reads of 1 KiB.
fn scaled(like: Option<Load>, to: f64) -> Load {
    let scale = |used: Used, by: f64| Used {
        share: used.share * by,
        harm: used.harm * by,
    };
    match like.filter(|load| share(*load) > 0.0) {
        Some(load) => Load {
            reads: scale(load.reads, to / share(load)),
            writes: scale(load.writes, to / share(load)),
        },
        None => Load {
            reads: Used {
                share: to,
                harm: to,
            },
            ..Load::default()
        },
    }
}

/// The share of the device that so many accesses a second take.
fn share_of(ops_per_s: f64, asks: &[Ask]) -> f64 {
    let each = asks.iter().map(|ask| ask.part * ask.price.as_secs_f64());
    ops_per_s * each.sum::<f64>()
}

fn in_words<'a>(asks: impl Iterator<Item = &'a Ask>) -> String {
    asks.map(|ask| ask.what.as_str())
        .collect::<Vec<_>>()
        .join(" and ")
}

/// A member beside those from whom nothing can be taken any more.
struct Beside<'a> {
    member: &'a Member,
    device: &'a Device,
    others: &'a [Part],
}

impl Beside<'_> {
    fn target(&self, target: Target) -> Verdict {
        match target {
            Target::OpsPerS(ops) => self.throughput(ops),
            Target::Mean(most) => self.latency(None, most.0 as f64),
            Target::Quantile(quantile, most) => self.latency(Some(quantile), most.0 as f64),
        }
    }

    fn throughput(&self, ops_per_s: f64) -> Verdict {
        let asks = self.device.asks(self.member);
        let takes = share_of(ops_per_s, asks);
        let guaranteed: f64 = self.others.iter().map(|one| one.guaranteed).sum();
        let most = self.member.terms.bounds.max.unwrap_or(1.0);
        let left = (1.0 - guaranteed).max(0.0).min(most);
        match takes > left * (1.0 + 1e-9) {
            true => Verdict::NoRoom {
                takes,
                left,
                asks: in_words(asks.iter()),
                others: self.listed(|part| part.guaranteed),
            },
            false => Verdict::Sound,
        }
    }

    /// Who has something of the device, and how much.
    fn listed(&self, share: impl Fn(&Part) -> f64) -> Vec<(String, f64)> {
        let listed = self
            .others
            .iter()
            .map(|part| (part.name.clone(), share(part)));
        listed.filter(|(_, share)| *share >= 1e-3).collect()
    }

    /// Judges a mean, or a quantile, of at most so long.
    fn latency(&self, quantile: Option<f64>, most_ns: f64) -> Verdict {
        let asks = self.device.asks(self.member);
        // What is rarer than the requests that may take longer does not move a quantile.
        let counts = |ask: &&Ask| quantile.is_none_or(|quantile| ask.part > 1.0 - quantile);
        let asks: Vec<&Ask> = asks.iter().filter(counts).collect();
        let accesses: Option<Vec<Access>> = asks.iter().map(|ask| ask.access).collect();
        let (Some(basis), Some(accesses)) = (self.device.basis, accesses) else {
            return Verdict::CannotTell(Why::NoLatencies);
        };
        let parts = asks.iter().map(|ask| ask.part);
        let of_all = |each: &dyn Fn(usize) -> f64| match quantile {
            None => parts
                .clone()
                .enumerate()
                .map(|(at, part)| part * each(at))
                .sum(),
            Some(_) => (0..accesses.len()).map(each).fold(0.0, f64::max),
        };
        let cpu_ns = self.device.cpu_ns;
        let idle_ns = of_all(&|at| accesses[at].idle_ns());
        if idle_ns + cpu_ns > most_ns {
            return Verdict::TooTight {
                idle_ns,
                cpu_ns,
                asks: in_words(asks.into_iter()),
            };
        }
        let own = self.device.used(self.member).unwrap_or_default();
        let load = self.others.iter().fold(own, |sum, one| sum + one.keeps);
        let each = accesses.iter().map(|access| basis.forecast(*access, load));
        let told: Vec<Forecast> = match each.collect() {
            Ok(told) => told,
            Err(why) => return Verdict::CannotTell(Why::NoForecast(why)),
        };
        let mean = Predicted {
            what: "mean",
            ns: of_all(&|at| told[at].mean_ns),
            error: MEAN_ERROR,
        };
        let is_tail_told = told.iter().all(|one| one.p99_ns.is_some());
        let p99 = is_tail_told.then(|| Predicted {
            what: "p99",
            ns: of_all(&|at| told[at].p99_ns.unwrap_or_default()),
            error: P99_ERROR,
        });
        // Which figure is never above what is promised, and which is never below.
        let (least, largest) = match (quantile, p99) {
            (None, _) => (mean, Some(mean)),
            (Some(quantile), Some(p99)) if quantile > 0.99 => (p99, None),
            (Some(0.99), Some(p99)) => (p99, Some(p99)),
            // The mean of skewed latencies lies above the median, and below the tail only.
            (Some(quantile), p99) if quantile < 0.95 => {
                let idle = Predicted {
                    what: "idle",
                    ns: idle_ns,
                    error: 0.0,
                };
                (idle, p99)
            }
            (Some(_), p99) => (mean, p99),
        };
        self.compare(least, largest, [idle_ns, most_ns], share(own))
    }

    fn compare(
        &self,
        least: Predicted,
        largest: Option<Predicted>,
        [idle_ns, most_ns]: [f64; 2],
        own: f64,
    ) -> Verdict {
        let cpu_ns = self.device.cpu_ns;
        if (least.ns * (1.0 - least.error)).max(idle_ns) + cpu_ns > most_ns {
            return Verdict::Broken {
                what: least.what,
                predicted_ns: least.ns + cpu_ns,
                cpu_ns,
                others: self.listed(|part| share(part.keeps)),
                own,
            };
        }
        match largest {
            Some(largest) if largest.ns * (1.0 + largest.error) + cpu_ns <= most_ns => {
                Verdict::Sound
            }
            _ => {
                let nearest = largest.unwrap_or(least);
                Verdict::CannotTell(Why::Close {
                    what: nearest.what,
                    predicted_ns: nearest.ns + cpu_ns,
                })
            }
        }
    }
}

/// A figure that was forecast, without the CPU's part, and by how much of it the forecast errs.
#[derive(Clone, Copy, Debug)]
struct Predicted {
    what: &'static str,
    ns: f64,
    error: f64,
}

impl Finding {
    /// Whether the promise is to be refused.
    pub fn is_refusal(&self) -> bool {
        !matches!(self.verdict, Verdict::Sound | Verdict::CannotTell(_))
    }

    /// Whether it is to be warned of.
    pub fn is_doubt(&self) -> bool {
        matches!(self.verdict, Verdict::CannotTell(_))
    }
}

/// Shows `target p99 1.50 us` or `slowdown limit of 1.5`.
impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Promise::Target(target) => write!(f, "target {target}"),
            Promise::Slowdown(most) => write!(f, "slowdown limit of {most}"),
        }
    }
}

fn listed(others: &[(String, f64)]) -> String {
    let each = others
        .iter()
        .map(|(name, share)| format!("{name} {:.1} %", share * 100.0));
    match others {
        [] => "nobody".into(),
        _ => each.collect::<Vec<_>>().join(", "),
    }
}

/// A sentence for operators: whose promise, and why it cannot be kept, with the figures.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: &f64| ns / 1e3;
        let percent = |share: &f64| share * 100.0;
        write!(f, "{:?}: {} ", self.member, self.promise)?;
        match &self.verdict {
            Verdict::Sound => f.write_str("can be kept"),
            Verdict::TooTight {
                idle_ns,
                cpu_ns,
                asks,
            } => write!(
                f,
                "is too tight even alone: {asks} take {:.2} us on the idle device, and the CPU \
                 {:.2} us",
                us(idle_ns),
                us(cpu_ns)
            ),
            Verdict::Broken {
                what,
                predicted_ns,
                cpu_ns,
                others,
                own,
            } => {
                let (predicted, cpu, others) = (us(predicted_ns), us(cpu_ns), listed(others));
                write!(
                    f,
                    "would be missed: a {what} of {predicted:.2} us is predicted ({cpu:.2} us of \
                     it CPU) beside what cannot be taken from the others ({others})"
                )?;
                match *own >= 1e-3 {
                    true => write!(f, " and {:.1} % of the device of its own", percent(own)),
                    false => Ok(()),
                }
            }
            Verdict::NoRoom {
                takes,
                left,
                asks,
                others,
            } => write!(
                f,
                "has no room: so many {asks} take {:.1} % of the device, and {:.1} % are left for \
                 it beside what others are guaranteed ({})",
                percent(takes),
                percent(left),
                listed(others)
            ),
            Verdict::Slower { entitled } => write!(
                f,
                "is less than its entitlement gives: with {:.1} % of the device it may get {:.2} \
                 times slower",
                percent(entitled),
                1.0 / entitled
            ),
            Verdict::CannotTell(why) => write!(f, "may or may not be kept: {why}"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::NoLatencies => f.write_str("the device's profile has no latencies"),
            Why::NoForecast(why) => write!(f, "{why}"),
            Why::Close { what, predicted_ns } => {
                let us = predicted_ns / 1e3;
                write!(
                    f,
                    "the {what} is predicted as {us:.2} us, which says too little"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests;
