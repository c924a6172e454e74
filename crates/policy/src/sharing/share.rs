//! Proportional sharing (NyxCache section 3.4, Algorithm 4): each tenant is entitled to its weight
//! of the device's *time*, and what it leaves idle is lent to those who used up theirs.
//!
//! At the end of an epoch each tenant's desire is judged. Who used up its limit wants
//! `limit / TimeUseUp`, where `TimeUseUp` is the part of the epoch's ticks in which it was not
//! held: leases are paced, so there is no moment at which a budget ends. Who left some idle donates
//! it at once ([`Donation::Naive`]) or by steps while its slowdown is below `1 / entitlement`
//! ([`Donation::Aware`]): lending does not make a tenant with two thirds of the device worse off
//! than with the whole device for two thirds of the time. The device is then divided by
//! water-filling, and limits are enforced as exact leased rates.
//!
//! Beyond the paper, by default ([`Steps::Adaptive`]): steps are in proportion to how far the donor
//! is from its bound, what is lent is halved on overshoot, and a donor's own limit stays at its
//! entitlement. A donation decides only what *others* may have above theirs; who comes back is
//! not held, and at the end of that epoch it has its device time back. [`Steps::Paper`] is the
//! algorithm as printed: fixed steps, and donors are held at what they have not donated.
//!
//! Slowdown is mean latency over stand-alone mean latency, learned in stand-alone runs
//! ([`mechanism::alone`](crate::mechanism::alone)) of donors, between epochs, and only while
//! somebody wants what is idle. The other way, the latency under the full reservation without
//! donation, needs no pause, but takers use their own entitlements meanwhile: what they cost would
//! count as part of being alone, and the bound, which is about being alone, would not hold. Where a
//! device tells how long each request takes nobody is paused ([`Gauge::Told`],
//! [`mechanism::queueing`](crate::mechanism::queueing)).
//!
//! Device time is not performance. A device that is busy with a mix may do less than its prices
//! say, and who is held exactly at its part then leaves the loss to who is not; and bursts of
//! writes make single small gets slow at any share. So, by default, who has more than its bound
//! *of performance* is pinched a little below its part of time for as long as another, who is not
//! held, is beyond its own ([`pinch`](Tenant::pinch)); down to [`PINCH_LEAST`], and never beyond
//! its own bound. Where that does not help, shares of device time are kept and the bound is not.
//! Where the device tells, what it is seen to give is divided instead, and nobody is pinched.
//!
//! What it never does: lend more of a donor whose slowdown is not known, except where it asked for
//! nothing in a whole epoch; assign anybody less than the smaller of its desire and its
//! entitlement, but for what is pinched.
//!
//! *Invariants*: assignments sum to the device. Limits sum to more only under
//! [`Steps::Adaptive`], and matter then for at most the epoch in which a donor comes back.

use super::limit::Epoch;
use crate::mechanism::alone::{self, Alone, Clients};
use crate::mechanism::throttle::{self, Bounds, SHARE_MIN, Throttle};
use crate::mechanism::window::{Tally, ratio};
use crate::{Act, Decision, Policy, Seen, Standing, Want};
use fill::fill;
use nyx_base::{Instant, Nanos};
use std::collections::VecDeque;

mod fill;
#[cfg(test)]
mod tests;

/// Who uses this part of its limit and was held has used it up.
const USED_UP: f64 = 0.9;
/// The largest step of [`Steps::Adaptive`], as a part of what the donor still has.
const STEP_MAX: f64 = 0.25;
/// The largest part of what is lent that [`Steps::Adaptive`] gives back at once.
const BACK_MAX: f64 = 0.5;
/// The part of the way from 1 to a donor's bound at which donating ends and giving back begins: a
/// measured slowdown varies, and its mean over time is to stay below the bound.
const ROOM: f64 = 0.85;
/// The least that is left to who is pinched, as a part of what it is entitled to.
const PINCH_LEAST: f64 = 0.85;
/// The most by which that changes in one epoch.
const PINCH_STEP: f64 = 0.005;
/// By which part of the distance it changes.
const PINCH_GAIN: f64 = 0.05;
/// The part of a bound that pinching aims at.
const PINCH_AIM: f64 = 0.97;
/// Nobody is pinched beyond this part of its own bound: what is measured of it is not exact.
const PINCH_OWN_MOST: f64 = 1.01;
/// What the last epoch weighs in the slowdown that is looked at. A mix may do half a percent more
/// than all bounds together need, and single epochs differ by several.
const EPOCH_WEIGHT: f64 = 0.2;
/// Who uses this part of its limit has all that others could leave it.
const AT_LIMIT: f64 = 0.998;
/// What a taker that has idle time keeps, in parts of what it uses.
const HEADROOM: f64 = 1.25;
/// A change of a limit is a decision from this part of the device on.
const TOLD_MIN: f64 = 0.02;
/// Decisions kept for who does not ask; older ones go.
const DECISIONS_KEPT: usize = 64;

/// What happens to what a tenant leaves idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Donation {
    /// All of it is lent at once (Option 1).
    Naive,
    /// It is lent by steps while the donor's slowdown is below its bound (Option 2).
    Aware,
}

/// How it is known by which factor a tenant is slower than alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gauge {
    /// Others are paused now and then.
    Runs,
    /// The device tells ([`Seen::took`], [`Seen::alone`]).
    Told,
}

/// How large the steps of [`Donation::Aware`] are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Steps {
    /// In proportion to the distance from a target below the bound; what is lent is halved beyond
    /// the bound.
    Adaptive,
    /// As printed.
    Paper {
        /// `DonateStep`, as a part of what the donor has.
        donate_step: f64,
    },
}

/// How a [`Share`] works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// What happens to idle time.
    pub donation: Donation,
    /// How a donor's slowdown is known.
    pub gauge: Gauge,
    /// How large steps are.
    pub steps: Steps,
    /// How often desires are judged, and in how many ticks holds are looked at.
    pub epoch: Epoch,
    /// How a donor's stand-alone latency is measured in runs. Its windows are half an epoch at
    /// least.
    pub alone: alone::Params,
}

impl Default for Settings {
    /// Epochs of 100 ms.
    fn default() -> Settings {
        Settings {
            donation: Donation::Aware,
            gauge: Gauge::Runs,
            steps: Steps::Adaptive,
            epoch: Epoch {
                ticks: 10,
                ..Epoch::default()
            },
            alone: alone::Params::default(),
        }
    }
}

/// Proportional sharing.
#[derive(Debug)]
pub struct Share {
    settings: Settings,
    /// What there is to divide, as a share of the device: all else is in parts of it.
    capacity: f64,
    weights: Vec<f64>,
    bounds: Vec<Bounds>,
    entitled: Vec<f64>,
    /// For reasons.
    names: Vec<String>,
    tenants: Vec<Tenant>,
    alone: Alone,
    /// When the epoch began; none between two, while a donor runs alone.
    began: Option<Instant>,
    decisions: VecDeque<Decision>,
}

#[derive(Debug)]
struct Tenant {
    assigned: f64,
    /// The limit of which the last decision spoke.
    told: f64,
    epoch: Tally,
    holds: u64,
    held_ticks: u32,
    /// It asked for nothing in the last epoch.
    quiet: bool,
    /// How many times slower than alone it was when that was last known.
    slowdown: Option<f64>,
    /// The same over several epochs, and what runs alone give and take.
    steady: Option<f64>,
    /// Where what is not in `pace` yet begins.
    paced: Tally,
    /// Accesses per second over several epochs and the runs between them.
    pace: Option<f64>,
    /// The part of its limit that it is left, for the sake of others' bounds.
    pinch: f64,
}

/// What an epoch tells of one tenant.
#[derive(Clone, Copy, Debug)]
struct Found {
    used: f64,
    desired: f64,
    used_up: bool,
    slowdown: Option<f64>,
}

impl Share {
    /// `weights[i]` is the weight of tenant `i`.
    ///
    /// Panics where a weight is not positive and finite, or an epoch is empty: configurations are
    /// checked before.
    pub fn new(weights: &[f64], settings: Settings) -> Share {
        let entitled = entitlements(weights);
        let epoch = settings.epoch;
        assert!(
            epoch.tick > Nanos::ZERO && epoch.ticks > 0,
            "an epoch takes time: {settings:?}"
        );
        let alone = alone::Params {
            window: settings.alone.window.min(Nanos(length_of(epoch).0 / 2)),
            ..settings.alone
        };
        let tenant = |&entitled: &f64| Tenant {
            assigned: entitled,
            told: entitled,
            epoch: Tally::default(),
            holds: 0,
            held_ticks: 0,
            quiet: false,
            slowdown: None,
            steady: None,
            paced: Tally::default(),
            pace: None,
            pinch: 1.0,
        };
        Share {
            tenants: entitled.iter().map(tenant).collect(),
            settings,
            capacity: 1.0,
            weights: weights.to_vec(),
            names: (0..weights.len())
                .map(|at| format!("tenant {at}"))
                .collect(),
            bounds: vec![Bounds::NONE; weights.len()],
            alone: Alone::new(alone, &vec![Clients::Open; weights.len()]),
            entitled,
            began: None,
            decisions: VecDeque::new(),
        }
    }

    /// The same, with names for reasons, in the order of the weights.
    #[must_use]
    pub fn named(mut self, names: Vec<String>) -> Share {
        self.names = names;
        self
    }

    /// The same, of clients that behave so: where they wait for answers, a donor fares as its
    /// accesses per second do, and otherwise as its latencies do, which is how all are taken to be.
    #[must_use]
    pub fn of_clients(mut self, clients: &[Clients]) -> Share {
        self.alone = Alone::new(self.alone.params(), clients);
        self
    }

    /// The same, within bounds: who is entitled to less than its lower bound has that, who is
    /// entitled to more than its upper bound has that, and the others divide the rest.
    #[must_use]
    pub fn within(mut self, bounds: Vec<Bounds>) -> Share {
        self.bounds = bounds;
        self.entitle();
        for (tenant, &entitled) in self.tenants.iter_mut().zip(&self.entitled) {
            (tenant.assigned, tenant.told) = (entitled, entitled);
        }
        self
    }

    /// Divides what there is by weights and bounds.
    fn entitle(&mut self) {
        let part = |bounds: &Bounds| Bounds {
            min: match bounds.min > SHARE_MIN {
                true => bounds.min / self.capacity,
                false => 0.0,
            },
            max: bounds.max.map(|max| max / self.capacity),
        };
        let parts: Vec<Bounds> = self.bounds.iter().map(part).collect();
        self.entitled = bounded_entitlements(&self.weights, &parts);
    }

    /// What each tenant was assigned in the last epoch, as shares of the device.
    pub fn assigned(&self) -> Vec<f64> {
        self.tenants.iter().map(|tenant| tenant.assigned).collect()
    }

    /// What a tenant may use.
    fn limit(&self, tenant: usize) -> f64 {
        let assigned = self.tenants[tenant].assigned;
        let part = match self.settings.steps {
            Steps::Adaptive => assigned.max(self.entitled[tenant]) * self.tenants[tenant].pinch,
            Steps::Paper { .. } => assigned,
        };
        self.bounds[tenant].clamp(part * self.capacity) / self.capacity
    }

    fn begin_epoch(&mut self, now: Instant, seen: &[Seen]) {
        self.began = Some(now);
        for (tenant, seen) in self.tenants.iter_mut().zip(seen) {
            tenant.epoch = Tally::new(now, seen);
            tenant.holds = seen.holds;
            tenant.held_ticks = 0;
        }
    }

    fn tick(&mut self, seen: &[Seen]) {
        for (tenant, seen) in self.tenants.iter_mut().zip(seen) {
            tenant.held_ticks += u32::from(seen.holds != tenant.holds);
            tenant.holds = seen.holds;
        }
    }

    /// Judges the epoch and divides the device anew. Tells whether a donor runs alone before the
    /// next one.
    fn end_epoch(&mut self, now: Instant, seen: &[Seen]) -> bool {
        let found: Vec<Found> = (0..self.tenants.len())
            .map(|i| self.judge(i, now, &seen[i]))
            .collect();
        let desired: Vec<f64> = found.iter().map(|found| found.desired).collect();
        let parts = fill(&self.entitled, &desired);
        for (tenant, part) in self.tenants.iter_mut().zip(parts) {
            tenant.assigned = part;
        }
        let is_pinching = self.pinch(&found);
        self.tell(now, &found);
        self.measure(&found, is_pinching)
    }

    /// Its slowdown as a part of its bound, when that was last known.
    fn pressure(&self, i: usize) -> Option<f64> {
        Some(self.tenants[i].steady? * self.entitled[i])
    }

    /// It has less than its limit lets it have.
    fn is_short(&self, i: usize, found: &[Found]) -> bool {
        !self.tenants[i].quiet && found[i].used < AT_LIMIT * self.limit(i)
    }

    /// Takes a little of who is held and has more than its bound, while somebody has less and its
    /// own limit is not what keeps it there. Tells whether that is so.
    fn pinch(&mut self, found: &[Found]) -> bool {
        // Where the device tells, what it gives is divided and nobody bears a loss alone.
        if self.settings.steps != Steps::Adaptive || !self.is_by_runs() {
            return false;
        }
        let short = (0..found.len()).filter(|&i| self.is_short(i, found));
        let most = short
            .filter_map(|i| self.pressure(i))
            .max_by(f64::total_cmp);
        for i in (0..found.len()).filter(|&i| found[i].used_up) {
            let own = self.pressure(i).unwrap_or(0.0);
            // Without anybody to be pinched for there is nothing to hold back.
            let error = most.map_or(-1.0, |most| most - PINCH_AIM);
            // Where there is not enough for all to be at the aim, both are to be as near to it.
            let error = match own > PINCH_AIM {
                true => error.min(most.unwrap_or(0.0) - own),
                false => error,
            };
            let error = error.min(PINCH_OWN_MOST - own);
            let step = (PINCH_GAIN * error).clamp(-PINCH_STEP, PINCH_STEP);
            let tenant = &mut self.tenants[i];
            tenant.pinch = (tenant.pinch - step).clamp(PINCH_LEAST, 1.0);
        }
        most.is_some_and(|most| most > PINCH_AIM)
    }

    fn judge(&mut self, i: usize, now: Instant, seen: &Seen) -> Found {
        let (limit, entitled) = (self.limit(i), self.entitled[i]);
        let epoch = self.tenants[i].epoch.since(now, seen);
        let slowdown = match self.settings.gauge {
            Gauge::Runs => self.alone.take_one(i).and_then(|fare| fare.slowdown),
            Gauge::Told => ratio(epoch.took_s, epoch.alone_s).map(|times| times.max(1.0)),
        };
        self.follow(i, now, seen, slowdown);
        let tenant = &mut self.tenants[i];
        tenant.slowdown = slowdown.or(tenant.slowdown);
        let used = epoch.share() / self.capacity;
        let quiet = epoch.ops == 0.0;
        let came_back = std::mem::replace(&mut tenant.quiet, quiet) && !quiet;
        let used_up = tenant.held_ticks > 0 && used >= USED_UP * limit;
        let least = used.min(entitled);
        let desired = match self.settings.donation {
            _ if came_back => entitled,
            _ if used_up => {
                let ticks = self.settings.epoch.ticks;
                let free = ticks.saturating_sub(tenant.held_ticks).max(1);
                (limit * f64::from(ticks) / f64::from(free)).min(1.0)
            }
            Donation::Naive => used,
            // As printed, who took and has idle time falls back to its entitlement and takes it
            // all again, forever; it keeps what it uses and a little more.
            Donation::Aware if tenant.assigned > entitled => {
                (used * HEADROOM).min(tenant.assigned).max(entitled)
            }
            Donation::Aware => {
                let slowdown = if quiet { Some(1.0) } else { slowdown };
                let assigned = tenant.assigned;
                let kept = slowdown.map_or(assigned, |slowdown| self.kept(i, slowdown));
                kept.clamp(least, entitled)
            }
        };
        Found {
            used,
            desired,
            used_up,
            slowdown,
        }
    }

    /// Follows how it fares over several epochs. A run alone is a gift to who runs, of a few
    /// percent of what a small tenant has, and the others pay for it: where clients wait for
    /// answers, their accesses tell that too.
    fn follow(&mut self, i: usize, now: Instant, seen: &Seen, slowdown: Option<f64>) {
        let epoch = length_of(self.settings.epoch).as_secs_f64();
        let tenant = &mut self.tenants[i];
        let since = tenant.paced.since(now, seen);
        tenant.paced = Tally::new(now, seen);
        let weight = 1.0 - (1.0 - EPOCH_WEIGHT).powf(since.time_s / epoch);
        let mixed =
            |before: Option<f64>, new: f64| before.map_or(new, |old| old + weight * (new - old));
        if since.ops > 0.0 {
            tenant.pace = ratio(since.ops, since.time_s).map(|pace| mixed(tenant.pace, pace));
        }
        let known = match self.alone.measures(i) {
            true => slowdown.map(|slowdown| mixed(tenant.steady, slowdown)),
            false => slowdown.and_then(|_| ratio(self.alone.speed(i)?, tenant.pace?)),
        };
        tenant.steady = known.or(tenant.steady);
    }

    /// What a donor keeps at a slowdown, whatever it uses.
    fn kept(&self, i: usize, slowdown: f64) -> f64 {
        let (assigned, entitled) = (self.tenants[i].assigned, self.entitled[i]);
        let bound = 1.0 / entitled;
        match self.settings.steps {
            Steps::Paper { donate_step } if slowdown < bound => assigned * (1.0 - donate_step),
            Steps::Paper { donate_step } => assigned * (1.0 + donate_step),
            Steps::Adaptive => {
                let target = 1.0 + (bound - 1.0) * ROOM;
                let room = ((target - slowdown) / (target - 1.0)).min(1.0);
                let over = ((slowdown - target) / (bound - target)).min(1.0);
                if room >= 0.0 {
                    assigned * (1.0 - STEP_MAX * room)
                } else {
                    assigned + (entitled - assigned) * BACK_MAX * over
                }
            }
        }
    }

    /// Lets somebody run alone who could lend or is short, and whose slowdown is not known well
    /// enough, if that is worth anything: somebody else is held. Who is to be pinched runs alone
    /// too, so that its own bound is known.
    fn measure(&mut self, found: &[Found], is_pinching: bool) -> bool {
        let wanted = found.iter().any(|found| found.used_up);
        let asked: Vec<bool> = (0..found.len())
            .map(|i| self.is_short(i, found) || (is_pinching && !self.tenants[i].quiet))
            .collect();
        self.is_by_runs() && wanted && self.alone.start(|i| asked[i])
    }

    /// Whether slowdowns are looked at, and are known by runs alone.
    fn is_by_runs(&self) -> bool {
        let Settings {
            donation, gauge, ..
        } = self.settings;
        donation == Donation::Aware && gauge == Gauge::Runs
    }

    /// Decisions are about limits that moved.
    fn tell(&mut self, now: Instant, found: &[Found]) {
        for i in 0..self.tenants.len() {
            let (limit, told) = (self.limit(i), self.tenants[i].told);
            if (limit - told).abs() < TOLD_MIN {
                continue;
            }
            self.tenants[i].told = limit;
            if self.decisions.len() == DECISIONS_KEPT {
                self.decisions.pop_front();
            }
            let (from, to) = (told * self.capacity, limit * self.capacity);
            let act = match limit < told {
                true => Act::Throttle { from, to },
                false => Act::Relax { to: Some(to) },
            };
            let why = self.why(i, found);
            self.decisions.push_back(Decision {
                at: now,
                tenant: i,
                act,
                why,
            });
        }
    }

    fn why(&self, i: usize, found: &[Found]) -> String {
        let (entitled, used) = (self.entitled[i], found[i].used);
        let mut why = format!("used {used:.3} of the device, entitled to {entitled:.3}");
        // Whoever is nearest to its bound decides how much is lent.
        let near = |i: &usize| found[*i].slowdown.unwrap_or(0.0) * self.entitled[*i];
        let donors = (0..found.len()).filter(|&i| !found[i].used_up);
        let nearest = donors.max_by(|a, b| near(a).total_cmp(&near(b)));
        if let Some((donor, slowdown)) = nearest.and_then(|i| Some((i, found[i].slowdown?))) {
            let bound = 1.0 / self.entitled[donor];
            let name = &self.names[donor];
            why += &format!("; {name} is slowed {slowdown:.2} times of {bound:.2}");
        }
        why
    }
}

fn length_of(epoch: Epoch) -> Nanos {
    Nanos(epoch.tick.0 * u64::from(epoch.ticks))
}

/// Each tenant's part of the device's time.
///
/// Panics where a weight is not positive and finite: configurations are checked before.
pub fn entitlements(weights: &[f64]) -> Vec<f64> {
    let sound = |weight: &f64| weight.is_finite() && *weight > 0.0;
    assert!(
        weights.iter().all(sound),
        "weights must be positive: {weights:?}"
    );
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

/// The same, of parts between bounds. Where lower bounds sum to more than there is they are scaled
/// to fit; what upper bounds leave is nobody's.
fn bounded_entitlements(weights: &[f64], bounds: &[Bounds]) -> Vec<f64> {
    let mut parts = entitlements(weights);
    let mut fixed = vec![false; weights.len()];
    let floors: f64 = bounds.iter().map(|bounds| bounds.min).sum();
    // Each round fixes somebody or is the last.
    loop {
        let open = |at: &usize| !fixed[*at];
        let taken: f64 = (0..parts.len())
            .filter(|at| fixed[*at])
            .map(|at| parts[at])
            .sum();
        let weight: f64 = (0..parts.len()).filter(open).map(|at| weights[at]).sum();
        let rest = (1.0 - taken).max(0.0);
        let due: Vec<usize> = (0..parts.len()).filter(open).collect();
        for &at in &due {
            parts[at] = rest * weights[at] / weight;
        }
        let below = |at: &usize| parts[*at] < bounds[*at].min;
        let above = |at: &usize| bounds[*at].max.is_some_and(|max| parts[*at] > max);
        // Lower bounds first: they are promises.
        let mut out: Vec<(usize, f64)> = Vec::new();
        if due.iter().any(below) {
            let low = due.iter().filter(|at| below(at));
            out.extend(low.map(|&at| (at, bounds[at].min / floors.max(1.0))));
        } else {
            let high = due.iter().filter(|at| above(at));
            out.extend(high.filter_map(|&at| Some((at, bounds[at].max?))));
        }
        if out.is_empty() {
            return parts;
        }
        for (at, part) in out {
            (parts[at], fixed[at]) = (part, true);
        }
    }
}

impl Policy for Share {
    fn name(&self) -> &'static str {
        match (self.settings.donation, self.settings.steps) {
            (Donation::Naive, _) => "share (naive)",
            (Donation::Aware, Steps::Paper { .. }) => "share (paper)",
            (Donation::Aware, Steps::Adaptive) => "share",
        }
    }

    fn period(&self) -> Nanos {
        match self.began {
            Some(_) => self.settings.epoch.tick,
            None => self.alone.period(),
        }
    }

    fn measures(&self, _tenant: usize) -> bool {
        self.is_by_runs()
    }

    fn set_capacity(&mut self, share: f64) {
        let share = share.max(SHARE_MIN);
        if std::mem::replace(&mut self.capacity, share) != share {
            self.entitle();
        }
    }

    fn reads(&self, tenant: usize) -> bool {
        self.measures(tenant) && self.alone.reads(tenant)
    }

    fn is_probing(&self) -> bool {
        self.alone.is_running()
    }

    fn standing(&self, tenant: usize) -> Standing {
        let (entitled, slowdown) = (self.entitled[tenant], self.tenants[tenant].slowdown);
        Standing {
            limit: self.bounds[tenant].max,
            entitled: Some(entitled * self.capacity),
            slowdown,
            slowdown_most: Some(1.0 / entitled),
            slack: slowdown.map(|slowdown| 1.0 - slowdown * entitled),
            ..Standing::default()
        }
    }

    fn step(&mut self, now: Instant, seen: &[Seen], want: &mut [Want]) {
        self.alone.step(now, seen);
        match self.began {
            _ if self.alone.is_running() => {}
            // The first epoch, or one after a run; or the clock went back.
            None => self.begin_epoch(now, seen),
            Some(began) if now < began => self.begin_epoch(now, seen),
            Some(began) => {
                self.tick(seen);
                if now.since(began) >= length_of(self.settings.epoch) {
                    match self.end_epoch(now, seen) {
                        true => self.began = None,
                        false => self.begin_epoch(now, seen),
                    }
                }
            }
        }
        for (i, want) in want.iter_mut().enumerate() {
            *want = Throttle::at(self.limit(i) * self.capacity).want();
        }
        self.alone.apply(want);
        for (want, &bounds) in want.iter_mut().zip(&self.bounds) {
            throttle::cap(want, bounds);
        }
    }

    fn take_decisions(&mut self) -> Vec<Decision> {
        self.decisions.drain(..).collect()
    }
}
