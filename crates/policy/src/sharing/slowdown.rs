//! Fair slowdown (NyxCache section 3.4, Algorithm 3): every tenant is slowed by the same factor,
//! or by factors in the proportion of weights; and no tenant is slowed beyond its hard limit.
//!
//! The default takes steps in proportion to how far a tenant is from the geometric mean of all, and
//! smaller ones where the last took it past that: it converges in a few windows and then stays.
//! [`Mode::Paper`] is Algorithm 3 as printed: one tenant up, one down, by a fixed step. (The
//! listing's `getSlowDown` is current over alone; taken by the word that would throttle the one who
//! suffers most, so slowdowns are alone over current here, as in the text.)
//!
//! A tenant with a hard limit takes no part in the equalisation: it is never throttled. It is
//! looked at as often as there is enough to see of it, whoever else is still being measured, and
//! when it comes near its limit those who use the most are brought down to one common level,
//! until what they use together is what the limit leaves ([`guard`]). Who uses little pays
//! nothing.
//!
//! What it never does: throttle below [`throttle::SHARE_MIN`], judge a tenant that is idle, or
//! equalise by an estimate that has not been measured yet.
//!
//! *Invariants*: limits are shares of the device in `SHARE_MIN..=1` or none; at most
//! [`DECISIONS_MOST`] decisions wait to be taken.

pub mod guard;
pub mod loosen;

use crate::mechanism::alone::{self, Alone, Clients, Fare, Refresh};
use crate::mechanism::throttle::{self, Bounds, Throttle};
use crate::{Act, Decision, Policy, Seen, Standing, Want};
use guard::{Guard, Turn};
use loosen::Loosening;
use nyx_base::{Instant, Nanos};

/// How many decisions are kept until they are taken; older ones are dropped.
pub const DECISIONS_MOST: usize = 64;

/// How limits move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In proportion to the distance.
    #[default]
    Proportional,
    /// Algorithm 3 as printed, by fixed steps.
    Paper,
}

/// What is agreed for one tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Slowdowns are in the proportion of weights: 2 is slowed twice as much as 1.
    pub weight: f64,
    /// The slowdown that it must not exceed; it is then outside of the equalisation.
    pub slowdown_most: Option<f64>,
    /// How its clients behave.
    pub clients: Clients,
    /// Between which shares of the device its limit moves.
    pub bounds: Bounds,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            weight: 1.0,
            slowdown_most: None,
            clients: Clients::Closed,
            bounds: Bounds::NONE,
        }
    }
}

/// What can be set about fair slowdown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// How limits move.
    pub mode: Mode,
    /// `UnfairnessThreshold`: above this largest over smallest slowdown, unfairness is an error.
    pub unfairness_threshold: f64,
    /// What the default aims at: below, nothing is moved.
    pub unfairness_goal: f64,
    /// `FairIntervalThreshold`: after so many fair windows limits are loosened.
    pub fair_interval_threshold: u32,
    /// A step: of the device in the paper's mode, of the limit where fair limits are loosened.
    pub step: f64,
    /// The largest part of the distance that is corrected at once.
    pub gain_most: f64,
    /// Limits are not loosened where a slowdown is above this part of its hard limit; what is kept
    /// of it is the middle between this and all.
    pub room: f64,
    /// How slowdowns are measured.
    pub alone: alone::Params,
}

impl Default for Params {
    /// The paper gives no thresholds; 1.05 is what it shows to be reached (section 4.4).
    fn default() -> Params {
        Params {
            mode: Mode::Proportional,
            unfairness_threshold: 1.05,
            unfairness_goal: 1.02,
            fair_interval_threshold: 3,
            step: 0.02,
            gain_most: 0.5,
            room: 0.85,
            alone: alone::Params::default(),
        }
    }
}

impl Params {
    /// Algorithm 3 as printed.
    pub fn paper() -> Params {
        let alone = alone::Params {
            mode: Refresh::Paper,
            ..alone::Params::default()
        };
        Params {
            mode: Mode::Paper,
            alone,
            ..Params::default()
        }
    }
}

const GAIN_LEAST: f64 = 0.1;
/// The part of the goal's distance from 1 at which a correction is done.
const DONE: f64 = 0.25;
/// Changes of a limit by less than this part are not worth a word.
const TRIM: f64 = 0.02;
/// A tenant that uses less than this part of its limit is not bound by it.
const BINDS: f64 = 0.95;
/// By how much more limits are loosened at once where hard limits leave room.
const GIVEN_BACK_MOST: f64 = 1.1;
/// How much faster limits are loosened at most than by one step, when nothing objects.
const STEPS_MOST: u32 = 5;

/// A tenant that takes part in the equalisation, in one window.
#[derive(Clone, Copy, Debug)]
struct Party {
    tenant: usize,
    /// The share of the device that it used.
    used: f64,
    /// Its slowdown over its weight.
    slowdown: f64,
}

/// The part of its distance that a tenant is moved by.
#[derive(Clone, Copy, Debug)]
struct Gain {
    value: f64,
    was_above: Option<bool>,
}

impl Gain {
    fn new(value: f64) -> Gain {
        Gain {
            value,
            was_above: None,
        }
    }

    fn adapt(&mut self, above: bool, most: f64) {
        let past = self
            .was_above
            .replace(above)
            .is_some_and(|was| was != above);
        let factor = if past { 0.5 } else { 1.5 };
        self.value = (self.value * factor).max(GAIN_LEAST).min(most);
    }
}

/// The policy.
#[derive(Debug)]
pub struct Slowdown {
    params: Params,
    terms: Vec<Terms>,
    alone: Alone,
    throttles: Vec<Throttle>,
    slowdowns: Vec<Option<f64>>,
    /// For reasons.
    names: Vec<String>,
    gains: Vec<Gain>,
    guard: Guard,
    is_steering: bool,
    is_protecting: bool,
    fair_intervals: u32,
    loosening: Loosening,
    gave_up: bool,
    decisions: Vec<Decision>,
}

impl Slowdown {
    /// `terms[i]` is agreed for tenant `i`.
    ///
    /// Panics where a weight is not positive and finite, or a slowdown limit below 1:
    /// configurations are checked before.
    pub fn new(params: Params, terms: Vec<Terms>) -> Slowdown {
        for terms in &terms {
            let limit = terms.slowdown_most.unwrap_or(1.0);
            let sound = terms.weight.is_finite() && terms.weight > 0.0 && limit >= 1.0;
            assert!(sound, "terms of fair slowdown: {terms:?}");
        }
        let clients: Vec<Clients> = terms.iter().map(|terms| terms.clients).collect();
        let each = terms.iter();
        Slowdown {
            params,
            alone: Alone::new(params.alone, &clients),
            throttles: each.map(|terms| Throttle::within(terms.bounds)).collect(),
            slowdowns: vec![None; terms.len()],
            guard: Guard::new(terms.iter().map(|terms| terms.slowdown_most).collect()),
            names: (0..terms.len()).map(|at| format!("tenant {at}")).collect(),
            gains: vec![Gain::new(params.gain_most); terms.len()],
            terms,
            is_steering: false,
            is_protecting: false,
            fair_intervals: 0,
            loosening: Loosening::new(params.fair_interval_threshold),
            gave_up: false,
            decisions: Vec::new(),
        }
    }

    /// Names for reasons, in the order of the terms.
    #[must_use]
    pub fn named(mut self, names: Vec<String>) -> Slowdown {
        self.names = names;
        self
    }

    fn decide(&mut self, now: Instant, tenant: usize, act: Act, why: String) {
        if self.decisions.len() == DECISIONS_MOST {
            self.decisions.remove(0);
        }
        self.decisions.push(Decision {
            at: now,
            tenant,
            act,
            why,
        });
    }

    /// Tells of slowdowns that became known, and loosens the limits of who is idle.
    fn note(&mut self, now: Instant, tenant: usize, fare: &Fare) {
        let was = std::mem::replace(&mut self.slowdowns[tenant], fare.slowdown);
        if let (None, Some(slowdown)) = (was, fare.slowdown) {
            let speed = self.alone.speed(tenant).unwrap_or(0.0);
            let why = format!("alone it does {speed:.0} accesses/s, {slowdown:.2} times now");
            self.decide(now, tenant, Act::Measured { slowdown }, why);
        }
        if let (true, Some(share)) = (fare.idle, self.throttles[tenant].share()) {
            self.throttles[tenant] = self.throttles[tenant].relaxed(share, self.params.step);
        }
    }

    fn parties(&self, fares: &[(usize, Fare)]) -> Vec<Party> {
        let party = |(tenant, fare): &(usize, Fare)| {
            Some(Party {
                tenant: *tenant,
                used: fare.share,
                slowdown: fare.slowdown? / self.terms[*tenant].weight,
            })
        };
        fares.iter().filter_map(party).collect()
    }

    /// Equalises those without hard limits.
    fn judge(&mut self, now: Instant, fares: &[(usize, Fare)]) {
        for (tenant, fare) in fares {
            self.note(now, *tenant, fare);
        }
        let parties = self.parties(fares);
        let by_slowdown = |a: &&Party, b: &&Party| a.slowdown.total_cmp(&b.slowdown);
        let least = parties.iter().min_by(by_slowdown).copied();
        let most = parties.iter().max_by(by_slowdown).copied();
        let (Some(least), Some(most), false) = (least, most, self.is_protecting) else {
            self.fair_intervals = 0;
            return;
        };
        let unfairness = most.slowdown / least.slowdown;
        let why = format!(
            "slowdowns over weights are {:.3} to {:.3}, {unfairness:.3} apart",
            least.slowdown, most.slowdown
        );
        let unfair = unfairness > self.params.unfairness_threshold;
        self.fair_intervals = if unfair {
            0
        } else {
            self.fair_intervals.saturating_add(1)
        };
        match self.params.mode {
            Mode::Paper if unfair => self.step_fixed(now, least, most, &why),
            Mode::Paper => {}
            Mode::Proportional => match self.loosening.judge(unfair) {
                Some(before) => self.put_back(now, &parties, &before, &why),
                None => self.equalise(now, &parties, unfairness, &why),
            },
        }
        // Beside hard limits it is the guard that knows whether there is more to be had.
        let steps = self.loosening.due(self.fair_intervals).min(STEPS_MOST);
        if steps > 0 && !self.guard.has_limits() {
            self.loosen(now, &parties, steps, &why);
        }
    }

    /// To loosen limits was unfair to somebody.
    fn put_back(&mut self, now: Instant, parties: &[Party], before: &[Throttle], why: &str) {
        let why = format!("{why}; limits are not loosened");
        for party in parties {
            self.set(now, party.tenant, party.used, before[party.tenant], &why);
        }
    }

    /// Moves everybody toward the mean. Who has no limit is not given one for a difference within
    /// the threshold; what was begun beyond the goal is taken well below it, so that it does not
    /// rest on the edge.
    fn equalise(&mut self, now: Instant, parties: &[Party], unfairness: f64, why: &str) {
        let goal = self.params.unfairness_goal - 1.0;
        let bound = if self.is_steering { goal * DONE } else { goal };
        self.is_steering = unfairness - 1.0 > bound;
        if !self.is_steering {
            return;
        }
        let unfair = unfairness > self.params.unfairness_threshold;
        let mean = geometric_mean(parties);
        for party in parties {
            if unfair || self.throttles[party.tenant].is_set() {
                self.steer(now, party, mean, why);
            }
        }
    }

    /// Moves one tenant toward a slowdown over its weight of `goal`: by less, where the last step
    /// took it past the goal.
    fn steer(&mut self, now: Instant, party: &Party, goal: f64, why: &str) {
        let gain = &mut self.gains[party.tenant];
        gain.adapt(party.slowdown > goal, self.params.gain_most);
        let factor = (party.slowdown / goal).powf(gain.value);
        let throttle = self.throttles[party.tenant];
        let may = throttle.share().unwrap_or(party.used);
        let moved = match factor < 1.0 {
            true => throttle.tightened(party.used, may.min(party.used) * (1.0 - factor)),
            false => throttle.relaxed(party.used, may * (factor - 1.0)),
        };
        self.set(now, party.tenant, party.used, moved, why);
    }

    /// Algorithm 3: the least slowed is throttled up, the most slowed down.
    fn step_fixed(&mut self, now: Instant, least: Party, most: Party, why: &str) {
        let step = self.params.step;
        let relaxed = self.throttles[most.tenant].relaxed(most.used, step);
        let tightened = self.throttles[least.tenant].tightened(least.used, step);
        self.set(now, most.tenant, most.used, relaxed, why);
        self.set(now, least.tenant, least.used, tightened, why);
    }

    /// The middle of the room that is left below a hard limit, as a part of it.
    fn aim(&self) -> f64 {
        (1.0 + self.params.room) / 2.0
    }

    /// Keeps hard limits.
    fn keep(&mut self, now: Instant, turn: &Turn) {
        let Turn { pressed, pressure } = *turn;
        self.is_protecting = pressure > self.aim();
        let why = format!(
            "{} is slowed {pressure:.2} times as much as its limit allows",
            self.names[pressed]
        );
        match self.is_protecting {
            true => self.protect(now, turn, &why),
            false if pressure < self.params.room => self.give_back(now, turn, &why),
            false => {}
        }
    }

    /// Those who use the most are brought down to a common level.
    fn protect(&mut self, now: Instant, turn: &Turn, why: &str) {
        let used: f64 = self.guard.others().map(|(_, used)| used).sum();
        let left = match self.params.mode {
            Mode::Paper => used - self.params.step,
            Mode::Proportional => used * self.correction(turn.pressure),
        };
        let weighed = |(tenant, used): (usize, f64)| (self.terms[tenant].weight, used);
        let level = guard::level(self.guard.others().map(weighed), left);
        let others: Vec<(usize, f64)> = self.guard.others().collect();
        let mut is_lower = false;
        for (tenant, used) in others {
            let (weight, now_is) = (self.terms[tenant].weight, self.throttles[tenant]);
            let moved = now_is.moved(level * weight);
            let is_above = used > level * weight && moved.share() < Some(used);
            if is_above
                && now_is
                    .share()
                    .is_none_or(|share| moved.share() < Some(share))
            {
                is_lower = true;
                self.set(now, tenant, used, moved, why);
            }
        }
        if is_lower {
            self.gave_up = false;
        } else if !std::mem::replace(&mut self.gave_up, true) {
            let why = format!("{why}; nobody can give more");
            self.decide(now, turn.pressed, Act::GaveUp, why);
        }
    }

    /// There is room below all hard limits.
    fn give_back(&mut self, now: Instant, turn: &Turn, why: &str) {
        self.gave_up = false;
        let more = self.correction(turn.pressure).min(GIVEN_BACK_MOST) - 1.0;
        let others: Vec<(usize, f64)> = self.guard.others().collect();
        for (tenant, used) in others {
            let throttle = self.throttles[tenant];
            let step = match self.params.mode {
                Mode::Paper => self.params.step,
                Mode::Proportional => throttle.share().unwrap_or(0.0) * more,
            };
            self.set(now, tenant, used, throttle.relaxed(used, step), why);
        }
    }

    /// By which factor the use of the others is to change.
    fn correction(&self, pressure: f64) -> f64 {
        (self.aim() / pressure).powf(self.params.gain_most)
    }

    /// Everybody is treated fairly: is there more to be had? Where somebody has no limit, the
    /// limits of the others are what fairness needs, and the default leaves them alone. A limit
    /// that does not bind is none.
    fn loosen(&mut self, now: Instant, parties: &[Party], steps: u32, why: &str) {
        let share_of = |party: &Party| self.throttles[party.tenant].share();
        let is_loose = |party: &Party| share_of(party).is_some_and(|s| party.used < BINDS * s);
        let moved = |party: &Party| {
            let step = match self.params.mode {
                Mode::Paper => 1.0,
                Mode::Proportional => share_of(party).unwrap_or(0.0) * f64::from(steps),
            };
            self.throttles[party.tenant].relaxed(party.used, self.params.step * step)
        };
        let all_limited = parties.iter().all(|party| share_of(party).is_some());
        let moves: Vec<(Party, Throttle)> = match self.params.mode {
            Mode::Proportional if !all_limited => Vec::new(),
            Mode::Proportional if parties.iter().any(is_loose) => {
                let loose = parties.iter().filter(|party| is_loose(party));
                let lifted = |party: &Party| self.throttles[party.tenant].lifted();
                loose.map(|party| (*party, lifted(party))).collect()
            }
            _ => parties.iter().map(|party| (*party, moved(party))).collect(),
        };
        if !moves.is_empty() {
            self.loosening.begin(&self.throttles);
        }
        for (party, throttle) in moves {
            self.set(now, party.tenant, party.used, throttle, why);
        }
    }

    /// Puts a limit in force, and tells of it where it is more than a trim.
    fn set(&mut self, now: Instant, tenant: usize, used: f64, to: Throttle, why: &str) {
        let from = std::mem::replace(&mut self.throttles[tenant], to);
        let was = from.share().unwrap_or(used);
        let trim = |share: f64| from.is_set() && (share - was).abs() < TRIM * was;
        let act = match to.share() {
            _ if from == to => return,
            Some(share) if trim(share) => return,
            Some(share) if share < was || !from.is_set() => Act::Throttle {
                from: used,
                to: share,
            },
            to => Act::Relax { to },
        };
        self.decide(now, tenant, act, why.into());
    }
}

fn geometric_mean(parties: &[Party]) -> f64 {
    let logs: f64 = parties.iter().map(|party| party.slowdown.ln()).sum();
    (logs / parties.len() as f64).exp()
}

impl Policy for Slowdown {
    fn name(&self) -> &'static str {
        match self.params.mode {
            Mode::Proportional => "slowdown",
            Mode::Paper => "slowdown (paper)",
        }
    }

    fn period(&self) -> Nanos {
        self.alone.period()
    }

    fn measures(&self, tenant: usize) -> bool {
        self.alone.measures(tenant)
    }

    fn reads(&self, tenant: usize) -> bool {
        self.measures(tenant) && self.alone.reads(tenant)
    }

    fn spans(&self, _tenant: usize) -> bool {
        true
    }

    fn is_probing(&self) -> bool {
        self.alone.is_running()
    }

    fn standing(&self, tenant: usize) -> Standing {
        let (slowdown, most) = (self.slowdowns[tenant], self.terms[tenant].slowdown_most);
        Standing {
            limit: self.terms[tenant].bounds.max,
            throttle: self.throttles[tenant].share(),
            slowdown,
            slowdown_most: most,
            slack: slowdown
                .zip(most)
                .map(|(slowdown, most)| 1.0 - slowdown / most),
            ..Standing::default()
        }
    }

    fn step(&mut self, now: Instant, seen: &[Seen], want: &mut [Want]) {
        self.alone.step(now, seen);
        self.alone.start(|_| true);
        self.guard.see(now, seen);
        let fares = self.guard.fares(&mut self.alone);
        for (tenant, fare) in &fares {
            self.note(now, *tenant, fare);
        }
        if !fares.is_empty()
            && let Some(turn) = self.guard.turn(&fares)
        {
            self.keep(now, &turn);
        }
        let terms = &self.terms;
        let is_free = |tenant: usize| terms[tenant].slowdown_most.is_none();
        if let Some(fares) = self.alone.take_of(is_free) {
            self.judge(now, &fares);
        }
        for (want, throttle) in want.iter_mut().zip(&self.throttles) {
            *want = throttle.want();
        }
        self.alone.apply(want);
        for (want, terms) in want.iter_mut().zip(&self.terms) {
            throttle::cap(want, terms.bounds);
        }
    }

    fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::alone::toy::{Plant, Way};
    use nyx_base::DevicePs;

    fn weighing(weight: f64) -> Terms {
        Terms {
            weight,
            ..Terms::default()
        }
    }

    fn bounded(slowdown_most: f64) -> Terms {
        Terms {
            slowdown_most: Some(slowdown_most),
            ..Terms::default()
        }
    }

    fn drive(policy: &mut Slowdown, plant: &mut Plant, for_s: f64) {
        let end = plant.now + Nanos((for_s * 1e9) as u64);
        while plant.now < end {
            policy.step(plant.now, &plant.seen, &mut plant.want);
            for throttle in &policy.throttles {
                let share = throttle.share().unwrap_or(1.0);
                assert!((throttle::SHARE_MIN..=1.0).contains(&share), "{share}");
            }
            assert!(policy.gains.iter().all(|gain| gain.value.is_finite()));
            assert!(policy.decisions.len() <= DECISIONS_MOST);
            plant.run(policy.period());
        }
    }

    fn driven(terms: Vec<Terms>, plant: &mut Plant, for_s: f64) -> Slowdown {
        let mut policy = Slowdown::new(Params::default(), terms);
        drive(&mut policy, plant, for_s);
        policy
    }

    #[test]
    fn unequal_tenants_are_slowed_alike_and_the_limits_stay() {
        let mut plant = Plant::new(&[(10.0, Way::Steady), (1.0, Way::Steady)]);
        let mut policy = driven(vec![Terms::default(); 2], &mut plant, 6.0);
        let shares = plant.shares();
        assert!((shares[0] / shares[1] - 1.0).abs() < 0.02, "{shares:?}");
        assert_eq!(policy.throttles[1], Throttle::NONE, "who suffered is free");
        let settled = policy.throttles.clone();
        assert!(policy.take_decisions().iter().any(|decision| {
            matches!(decision.act, Act::Throttle { from, to } if to < from)
                && decision.why.contains("apart")
        }));
        drive(&mut policy, &mut plant, 20.0);
        assert_eq!(policy.throttles, settled);
        assert!(policy.take_decisions().is_empty());
    }

    #[test]
    fn weights_are_the_proportion_of_slowdowns() {
        let mut plant = Plant::new(&[(1.0, Way::Steady), (1.0, Way::Steady)]);
        driven(vec![weighing(3.0), weighing(1.0)], &mut plant, 6.0);
        let shares = plant.shares();
        assert!(
            (shares[1] / shares[0] / 3.0 - 1.0).abs() < 0.02,
            "{shares:?}"
        );
    }

    #[test]
    fn a_hard_limit_holds_and_takes_no_more_than_it_needs() {
        let pulls = [(1.0, Way::Steady), (4.0, Way::Steady), (8.0, Way::Steady)];
        let mut plant = Plant::new(&pulls);
        let terms = vec![bounded(1.5), Terms::default(), Terms::default()];
        driven(terms, &mut plant, 12.0);
        let shares = plant.shares();
        let slowdown = 1.0 / shares[0];
        assert!(slowdown < 1.5 && slowdown > 1.3, "{shares:?}");
        assert!((shares[1] / shares[2] - 1.0).abs() < 0.06, "{shares:?}");
    }

    #[test]
    fn a_hard_limit_is_kept_before_the_others_were_seen_alone() {
        let mut plant = Plant::new(&[(1.0, Way::Steady), (8.0, Way::Steady), (0.2, Way::Steady)]);
        let terms = vec![bounded(1.5), Terms::default(), Terms::default()];
        // Runs so rare that only the first in turn has one.
        let mut params = Params::default();
        params.alone.paused_most = 2e-4;
        let names = ["critical", "heavy", "light"].map(String::from);
        let mut policy = Slowdown::new(params, terms).named(names.to_vec());
        drive(&mut policy, &mut plant, 11.0);
        assert_eq!(plant.runs.len(), 1, "{:?}", plant.runs);
        let shares = plant.shares();
        assert!(1.0 / shares[0] < 1.5 && 1.0 / shares[0] > 1.2, "{shares:?}");
        let throttled: Vec<Decision> = policy
            .take_decisions()
            .into_iter()
            .filter(|decision| matches!(decision.act, Act::Throttle { .. }))
            .collect();
        // Who uses little pays nothing until the other has as little.
        let first = &throttled[..throttled.len().min(8)];
        assert!(first.iter().all(|one| one.tenant == 1), "{throttled:?}");
        assert!((shares[2] / shares[1] - 1.0).abs() < 0.1, "{shares:?}");
        assert!(
            throttled[0].why.contains("critical is slowed"),
            "{throttled:?}"
        );
    }

    #[test]
    fn hard_limits_that_cannot_be_met_are_given_up_once() {
        let mut plant = Plant::new(&[(1.0, Way::Steady), (1.0, Way::Steady)]);
        let mut policy = driven(vec![bounded(1.2), bounded(1.2)], &mut plant, 5.0);
        let decisions = policy.take_decisions();
        let given_up = decisions.iter().filter(|d| d.act == Act::GaveUp).count();
        assert_eq!(given_up, 1, "{decisions:?}");
        assert!(policy.throttles.iter().all(|throttle| !throttle.is_set()));
    }

    #[test]
    fn standing_still_when_alone_gains_nothing() {
        let share_of = |way: Way| {
            let mut plant = Plant::new(&[(4.0, way), (1.0, Way::Steady), (1.0, Way::Steady)]);
            let mut policy = driven(vec![Terms::default(); 3], &mut plant, 8.0);
            let before = plant.seen[0].used;
            drive(&mut policy, &mut plant, 4.0);
            DevicePs(plant.seen[0].used.0.wrapping_sub(before.0)).as_secs_f64() / 4.0
        };
        let honest = share_of(Way::Steady);
        assert!((honest - 1.0 / 3.0).abs() < 0.01, "{honest}");
        for way in [Way::StillAlone, Way::StillEverySecondTime] {
            let share = share_of(way);
            assert!(share < honest + 0.005, "{way:?}: {share}, {honest}");
        }
    }

    #[test]
    fn idle_tenants_do_no_harm_and_whoever_is_left_is_freed() {
        let mut plant = Plant::new(&[(8.0, Way::Steady), (1.0, Way::Steady), (0.0, Way::Steady)]);
        let mut policy = driven(vec![Terms::default(); 3], &mut plant, 4.0);
        assert!(policy.throttles[0].is_set());
        plant.pulls[1] = 0.0;
        drive(&mut policy, &mut plant, 4.0);
        assert_eq!(policy.throttles, [Throttle::NONE; 3]);
        plant.pulls[0] = 0.0;
        drive(&mut policy, &mut plant, 4.0);
        assert_eq!(policy.throttles, [Throttle::NONE; 3]);
        driven(vec![], &mut Plant::new(&[]), 0.5);
    }

    #[test]
    fn the_papers_steps_reach_fairness_within_their_size() {
        let mut plant = Plant::new(&[(4.0, Way::Steady), (1.0, Way::Steady)]);
        let mut policy = Slowdown::new(Params::paper(), vec![Terms::default(); 2]);
        drive(&mut policy, &mut plant, 10.0);
        assert_eq!(policy.name(), "slowdown (paper)");
        let shares = plant.shares();
        // Steps of 2 % of the device around a half: at most two of them off.
        assert!((shares[0] - 0.5).abs() < 0.05, "{shares:?}");
    }

    #[test]
    #[should_panic(expected = "terms of fair slowdown")]
    fn a_weight_of_nothing_is_refused() {
        Slowdown::new(Params::default(), vec![weighing(0.0)]);
    }
}
