//! The tick: accounts in, policy, budgets out. Data and control meet in a few cache lines per
//! tenant and nowhere else.
//!
//! Each deep device has a policy of its own, which divides its time. The one of the other devices
//! governs what tenants do on deep ones too, where it goes by latencies ([`Policy::spans`]). The
//! budget that it writes there stands below the one of the device's own, so that both hold.
//!
//! If ticks stop (a stalled or crashed controller) the last budgets stay in force: limits go on to
//! be kept, because leases are computed from time and not handed out by ticks; only a pause ends.
//! If the policy fails, [`Engine::keep_limits`] puts what it wanted outside of experiments in its
//! place.

mod deep;

pub(crate) use deep::{DeepRule, or_nobody};

use crate::engine::Engine;
use crate::tenant::Tenant;
use nyx_base::{DevicePs, Instant, Latencies, Nanos, TenantId, WorkerId};
use nyx_gate::{Budget, CostTable, DELAY_INFINITE, Limit, Rate, Usage};
use nyx_policy::mechanism::queueing::{Capacity, Reads};
use nyx_policy::sharing::limit::Kept;
use nyx_policy::{Decision, Delay, Groups, Policy, Seen, Standing, Want};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A pause ends after this long if no tick prolongs it. Ticks are at most 100 ms apart.
const PAUSE_MOST: Nanos = Nanos::from_millis(500);
/// A tick may have waited so long for the one before it.
const LATE_MOST: Nanos = Nanos::from_secs(1);
/// How many decisions are kept for those who ask.
const DECISIONS_KEPT: usize = 256;

/// What a controller governs: an account and latencies that it reads, a budget that it writes. An
/// engine's tenants are, and those of drivers that have no engine.
pub trait Governed {
    /// What it has used of its device.
    fn usage(&self) -> Usage;
    /// Adds what was recorded of its latencies.
    fn add_latencies(&self, sum: &mut Latencies);
    /// What it may use.
    fn budget(&self) -> &Budget;
    /// Its device's prices.
    fn cost(&self) -> &CostTable;
    /// Its reads of its device, where that tells how long each takes. What there is to divide is
    /// then what the device is seen to give, and not what its prices say.
    fn reads(&self) -> Option<Reads> {
        None
    }
    /// How long the workers that serve it were at work since their start, on the mean, whoever it
    /// was for.
    fn worked(&self) -> Nanos {
        Nanos::ZERO
    }
    /// What it has on a further device, which a policy governs too that goes by latencies; none
    /// where it has none.
    fn further(&self) -> Option<Further<'_>> {
        None
    }
    /// Told at each tick whether the policy looks at its latencies.
    fn set_measured(&self, measured: bool) {
        let _ = measured;
    }
}

/// What a governed tenant has on a further device.
pub struct Further<'a> {
    /// What it has used of it.
    pub usage: Usage,
    /// What it may use.
    pub budget: &'a Budget,
    /// The device's prices.
    pub cost: &'a CostTable,
}

/// Who decides over an engine's devices.
pub struct Policies {
    /// Over the devices that all tenants are on.
    pub fast: Box<dyn Policy>,
    /// Over the deep ones, in their order; over those that have none here, nobody. Its tenants are
    /// all of the engine's, in the same order.
    pub deep: Vec<Box<dyn Policy>>,
}

impl From<Box<dyn Policy>> for Policies {
    fn from(fast: Box<dyn Policy>) -> Policies {
        let deep = Vec::new();
        Policies { fast, deep }
    }
}

impl<P: Policy + 'static> From<Box<P>> for Policies {
    fn from(fast: Box<P>) -> Policies {
        let fast: Box<dyn Policy> = fast;
        fast.into()
    }
}

/// What a tenant had used at the last tick: of its device, and of a further one.
#[derive(Clone, Copy, Default)]
struct Account {
    usage: Usage,
    reads: Reads,
    worked: Nanos,
    further: Usage,
}

impl Account {
    /// The reads since the last tick, where the device tells of them, and how long workers were at
    /// work.
    fn read(&mut self, tenant: &impl Governed) -> Option<(Reads, Nanos)> {
        let reads = tenant.reads()?;
        let worked = tenant.worked();
        let worked_ns = worked.0 - std::mem::replace(&mut self.worked, worked).0;
        let reads = reads - std::mem::replace(&mut self.reads, reads);
        Some((reads, Nanos(worked_ns)))
    }
}

/// What somebody did to a device, or to two.
struct Load {
    used: DevicePs,
    harm: DevicePs,
    bytes: u64,
    ops: u64,
    holds: u64,
}

impl Load {
    /// Of what was used since the last tick, which is `before`.
    fn since(before: &mut Usage, usage: Usage, cost: &CostTable) -> Load {
        let did = usage - std::mem::replace(before, usage);
        Load {
            used: did.used(),
            harm: cost.harm(&did),
            bytes: did.read_bytes.wrapping_add(did.written_bytes),
            ops: did.reads.wrapping_add(did.writes),
            holds: did.holds,
        }
    }

    /// Device time of two devices does not add up: who may use a part of each has used what it
    /// used of the one that it used more.
    fn and(self, other: Load) -> Load {
        Load {
            used: self.used.max(other.used),
            harm: DevicePs(self.harm.0.wrapping_add(other.harm.0)),
            bytes: self.bytes.wrapping_add(other.bytes),
            ops: self.ops.wrapping_add(other.ops),
            holds: self.holds.wrapping_add(other.holds),
        }
    }

    fn add_to(&self, seen: &mut Seen) {
        seen.used = DevicePs(seen.used.0.wrapping_add(self.used.0));
        seen.harm = DevicePs(seen.harm.0.wrapping_add(self.harm.0));
        seen.bytes = seen.bytes.wrapping_add(self.bytes);
        seen.ops = seen.ops.wrapping_add(self.ops);
        seen.holds = seen.holds.wrapping_add(self.holds);
    }
}

/// The policy and what it last saw, wanted and did.
pub struct Controller {
    policy: Box<dyn Policy>,
    /// When the last tick was.
    ticked: Instant,
    /// What the device gives, where it tells.
    capacity: Capacity,
    seen: Vec<Seen>,
    /// The accounts at the last tick: harm is added up tick by tick, because what an access hurts
    /// depends on its size, and accounts know the mean of a stretch of time only.
    usage: Vec<Account>,
    want: Vec<Want>,
    in_force: Vec<Option<Want>>,
    /// Of which tenants it governs what they do on further devices: as it says, and as it said when
    /// it last wanted something.
    spans: Vec<bool>,
    spanned: Vec<bool>,
    further_in_force: Vec<Option<Want>>,
    groups: Groups,
    /// The budgets of the groups.
    budgets: Vec<Arc<Budget>>,
    /// Whether the groups are those of an earlier policy.
    is_new: bool,
    /// What it wanted when it tried nothing, without pauses.
    safe: Vec<Want>,
    decisions: VecDeque<Decision>,
    /// How many there ever were.
    decided: u64,
}

impl Controller {
    /// Of so many tenants, which are handed in at each tick, always the same.
    pub fn new(policy: Box<dyn Policy>, tenants: usize) -> Controller {
        Controller {
            policy,
            ticked: Instant(0),
            capacity: Capacity::default(),
            seen: vec![Seen::default(); tenants],
            usage: vec![Account::default(); tenants],
            want: vec![Want::default(); tenants],
            in_force: vec![None; tenants],
            spans: vec![false; tenants],
            spanned: vec![false; tenants],
            further_in_force: vec![None; tenants],
            groups: Groups::default(),
            budgets: Vec::new(),
            is_new: true,
            safe: vec![Want::default(); tenants],
            decisions: VecDeque::with_capacity(DECISIONS_KEPT),
            decided: 0,
        }
    }

    /// Puts another policy in charge, from the next tick on.
    pub(crate) fn set_policy(&mut self, policy: Box<dyn Policy>) {
        (self.policy, self.is_new) = (policy, true);
    }

    /// There are so many tenants from now on: nothing is known of the new ones, and nothing wanted.
    /// A policy for all of them is to be put in charge before the next tick.
    pub(crate) fn grow(&mut self, tenants: usize) {
        let before = self.seen.len();
        self.seen.resize(tenants, Seen::default());
        self.usage.resize(tenants, Account::default());
        self.spans.resize(tenants, false);
        self.spanned.resize(tenants, false);
        self.further_in_force.resize(tenants, None);
        // The groups stand behind the tenants.
        let new = tenants - before;
        let want = || std::iter::repeat_n(Want::default(), new);
        self.want.splice(before..before, want());
        self.safe.splice(before..before, want());
        let in_force = std::iter::repeat_n(None, new);
        self.in_force.splice(before..before, in_force);
        // What was decided over a group would seem to be about a tenant.
        self.decisions.retain(|decision| decision.tenant < before);
    }

    /// Takes the groups of a new policy over, which has stepped.
    fn install(&mut self, groups: Groups, tenants: impl ExactSizeIterator<Item = impl Governed>) {
        let count = tenants.len();
        self.groups = groups;
        let groups = &self.groups.groups;
        self.budgets = groups.iter().map(|_| Arc::default()).collect();
        let budget = |group: Option<usize>| group.map(|group| self.budgets[group].clone());
        for (at, group) in groups.iter().enumerate() {
            self.budgets[at].set_above(budget(group.parent));
        }
        for (at, tenant) in tenants.enumerate() {
            let group = self.groups.of_tenant.get(at).copied().flatten();
            tenant.budget().set_above(budget(group));
        }
        let subjects = count + groups.len();
        self.safe.truncate(count);
        self.safe.resize(subjects, Want::default());
        self.in_force.truncate(count);
        self.in_force.resize(subjects, None);
        // Nobody knows any more which groups the others were about.
        let about_tenants = |decision: &Decision| decision.tenant < count;
        self.decisions.retain(about_tenants);
    }

    /// One tick. Returns when the policy wants the next one.
    pub fn tick(
        &mut self,
        now: Instant,
        tenants: impl ExactSizeIterator<Item = impl Governed> + Clone,
    ) -> Nanos {
        // Who waited for the controller's lock comes with a time from before; more is a clock that
        // went back, which policies know how to take.
        let is_late = self.ticked.since(now) < LATE_MOST;
        let now = if is_late { now.max(self.ticked) } else { now };
        let before = std::mem::replace(&mut self.ticked, now);
        let groups = std::mem::take(&mut self.is_new).then(|| self.policy.groups());
        if let Some(groups) = &groups {
            check(groups);
            self.want.clear();
            let subjects = tenants.len() + groups.groups.len();
            self.want.resize(subjects, Want::default());
        }
        self.look(now.since(before), tenants.clone());
        self.policy.step(now, &self.seen, &mut self.want);
        let is_probing = self.policy.is_probing();
        let decisions = self.policy.take_decisions();
        let period = self.policy.period();
        // The policy is asked nothing from here on: one that fails changes nothing.
        if let Some(groups) = groups {
            self.install(groups, tenants.clone());
        }
        self.spanned.copy_from_slice(&self.spans);
        self.remember(is_probing, decisions);
        self.enforce(tenants, now);
        period
    }

    fn enforce(&mut self, tenants: impl ExactSizeIterator<Item = impl Governed>, now: Instant) {
        let count = tenants.len();
        for (at, tenant) in tenants.enumerate() {
            let want = self.want[at];
            enforce(want, &mut self.in_force[at], tenant.budget(), now);
            if let Some(further) = tenant.further() {
                let want = match self.spanned[at] {
                    true => of_any_device(want),
                    false => Want::default(),
                };
                let in_force = &mut self.further_in_force[at];
                enforce(want, in_force, further.budget, now);
            }
        }
        let wants = self.want[count..].iter().zip(&mut self.in_force[count..]);
        for ((&want, in_force), budget) in wants.zip(&self.budgets) {
            enforce(want, in_force, budget, now);
        }
    }

    /// See [`Engine::keep_limits`].
    fn keep_limits(&mut self) -> Option<&'static str> {
        if self.is_new {
            return None;
        }
        let failed = self.policy.name();
        self.want.clone_from(&self.safe);
        self.policy = Box::new(Kept::new(self.safe.clone(), self.spanned.clone()));
        Some(failed)
    }

    /// The last decisions, oldest first.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter()
    }

    /// At what was done in `time`.
    fn look(&mut self, time: Nanos, tenants: impl Iterator<Item = impl Governed>) {
        let (mut used_ps, mut told) = (0, None);
        for (at, (seen, tenant)) in self.seen.iter_mut().zip(tenants).enumerate() {
            let before = &mut self.usage[at];
            let mut load = Load::since(&mut before.usage, tenant.usage(), tenant.cost());
            self.spans[at] = self.policy.spans(at);
            if let Some(further) = tenant.further() {
                let also = Load::since(&mut before.further, further.usage, further.cost);
                if self.spans[at] {
                    load = load.and(also);
                }
            }
            load.add_to(seen);
            used_ps = load.used.0.saturating_add(used_ps);
            if let Some((did, worked)) = before.read(&tenant) {
                let (took_ns, alone) = (did.took_ns as u64, did.alone(time));
                seen.took = Nanos(seen.took.0.wrapping_add(took_ns));
                seen.alone = Nanos(seen.alone.0.wrapping_add(alone.0));
                let (reads, most) = told.unwrap_or_default();
                told = Some((reads + did, worked.max(most)));
            }
            let measured = self.policy.measures(at);
            tenant.set_measured(measured);
            let read = measured && self.policy.reads(at);
            if read || !measured {
                seen.latencies.clear();
            }
            if read {
                tenant.add_latencies(&mut seen.latencies);
            }
        }
        if let Some((reads, worked)) = told {
            let used_s = DevicePs(used_ps).as_secs_f64();
            self.capacity.learn(time, used_s, reads, worked);
            self.policy.set_capacity(self.capacity.share());
        }
    }

    fn remember(&mut self, is_probing: bool, decisions: Vec<Decision>) {
        if !is_probing {
            for (safe, want) in self.safe.iter_mut().zip(&self.want) {
                let paused = want.delay == Delay::Infinite;
                let delay = if paused { safe.delay } else { want.delay };
                *safe = Want { delay, ..*want };
            }
        }
        for decision in decisions {
            if self.decisions.len() == DECISIONS_KEPT {
                self.decisions.pop_front();
            }
            self.decisions.push_back(decision);
            self.decided += 1;
        }
    }
}

/// Panics where groups form no tree.
fn check(groups: &Groups) {
    let of_tenants = groups.of_tenant.iter().flatten();
    let known = of_tenants.max() < Some(&groups.groups.len());
    assert!(known, "a tenant is in a group that is not there");
    for (at, group) in groups.groups.iter().enumerate() {
        assert!(group.parent < Some(at), "a group stands after its parent");
    }
}

impl Engine {
    /// One tick. Returns when the policy wants the next one.
    pub fn control(&self, now: Instant) -> Nanos {
        let next = lock(&self.controller).tick(now, self.tenants.iter());
        let deep = self.deep_rules.iter().enumerate();
        deep.map(|(device, rule)| rule.tick(now, device, &self.tenants))
            .fold(next, Nanos::min)
    }

    /// Puts other policies in charge, from their first tick on, without dropping a connection.
    pub fn set_policy(&self, policies: impl Into<Policies>) {
        let Policies { fast, deep } = policies.into();
        self.controller.clear_poison();
        lock(&self.controller).set_policy(fast);
        self.set_deep_policies(deep);
    }

    /// The same over the deep devices alone.
    pub fn set_deep_policies(&self, policies: Vec<Box<dyn Policy>>) {
        for (rule, policy) in self.deep_rules.iter().zip(or_nobody(policies)) {
            rule.controller.clear_poison();
            lock(&rule.controller).set_policy(policy);
        }
    }

    /// The groups of the policy in charge; wants and decisions count them after the tenants.
    pub fn groups(&self) -> Groups {
        let controller = lock(&self.controller);
        controller.groups.clone()
    }

    /// What a decision is about: a tenant's name, or a group's. None where it is about a group of
    /// an earlier policy.
    pub fn name_of(&self, subject: usize) -> Option<String> {
        let controller = lock(&self.controller);
        // Under the lock: who takes in tenants moves the groups up.
        match subject.checked_sub(self.tenants.len()) {
            None => Some(self.tenants[subject].name().into()),
            Some(group) => {
                let group = controller.groups.groups.get(group);
                group.map(|group| group.name.clone())
            }
        }
    }

    /// A policy failed, in the middle of a step: what it last wanted outside of experiments is
    /// what holds from the next tick on, and what is in force holds until then; where it has not
    /// stepped once, what the one before it wanted. Gives its name; none where another was put in
    /// charge meanwhile, which stays.
    pub fn keep_limits(&self) -> Option<&'static str> {
        let deep = self.deep_rules.iter().map(|rule| &rule.controller);
        let all = std::iter::once(&self.controller).chain(deep);
        // Who failed did so with the lock.
        let failed = all.filter(|controller| controller.is_poisoned());
        let names = failed.filter_map(|controller| {
            controller.clear_poison();
            lock(controller).keep_limits()
        });
        names.last()
    }

    /// The name of the policy in charge.
    pub fn policy_name(&self) -> &'static str {
        lock(&self.controller).policy.name()
    }

    /// The policy's decisions from the `n`-th on, oldest first, as far as they are kept; and how
    /// many there ever were, to ask for what comes next.
    pub fn decisions_since(&self, n: u64) -> (u64, Vec<Decision>) {
        let controller = lock(&self.controller);
        let new = controller.decided.saturating_sub(n) as usize;
        let kept = controller.decisions.len();
        let from = kept - new.min(kept);
        let decisions = controller.decisions.range(from..).cloned().collect();
        (controller.decided, decisions)
    }

    /// How a tenant stands with the policy in charge.
    pub fn standing(&self, tenant: TenantId) -> Standing {
        let controller = lock(&self.controller);
        controller.policy.standing(tenant.index())
    }

    /// Records that `n` requests of a tenant took so long each, from when they came to when their
    /// answer was there. For the drivers, who have the clock. Only the worker's own thread.
    #[inline]
    pub fn record(&self, worker: WorkerId, tenant: TenantId, took: Nanos, n: u32) {
        let tenant = &self.tenants[tenant.index()];
        tenant.latency_counter(worker).add(took, n);
    }

    /// What the policy wants of each tenant, in their order, and then of each group.
    pub fn wants(&self) -> Vec<Want> {
        lock(&self.controller).want.clone()
    }
}

impl Governed for Tenant {
    fn usage(&self) -> Usage {
        Tenant::usage(self)
    }

    fn add_latencies(&self, sum: &mut Latencies) {
        Tenant::add_latencies(self, sum);
    }

    fn budget(&self) -> &Budget {
        Tenant::budget(self)
    }

    fn cost(&self) -> &CostTable {
        &self.device.cost
    }

    fn further(&self) -> Option<Further<'_>> {
        let deep = self.deep.as_ref()?;
        Some(Further {
            usage: deep.usage(),
            budget: &deep.budget,
            cost: &deep.pair.deep().cost,
        })
    }

    fn set_measured(&self, measured: bool) {
        Tenant::set_measured(self, measured);
    }
}

impl<T: Governed> Governed for &T {
    fn usage(&self) -> Usage {
        T::usage(self)
    }

    fn add_latencies(&self, sum: &mut Latencies) {
        T::add_latencies(self, sum);
    }

    fn budget(&self) -> &Budget {
        T::budget(self)
    }

    fn cost(&self) -> &CostTable {
        T::cost(self)
    }

    fn reads(&self) -> Option<Reads> {
        T::reads(self)
    }

    fn worked(&self) -> Nanos {
        T::worked(self)
    }

    fn further(&self) -> Option<Further<'_>> {
        T::further(self)
    }

    fn set_measured(&self, measured: bool) {
        T::set_measured(self, measured);
    }
}

/// The controller, whatever became of who had it.
pub(crate) fn lock(controller: &Mutex<Controller>) -> MutexGuard<'_, Controller> {
    controller.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is wanted, as far as it means something on a device whose accesses take longer: units of
/// the paper's delay are a part of an access to persistent memory.
fn of_any_device(want: Want) -> Want {
    let delay = match want.delay {
        Delay::Units(_) => Delay::None,
        delay => delay,
    };
    Want { delay, ..want }
}

/// Puts into a budget what the policy wants, and notes in `in_force` what it wanted last.
fn enforce(want: Want, in_force: &mut Option<Want>, budget: &Budget, now: Instant) {
    if want.delay == Delay::Infinite {
        budget.pause_until(now + PAUSE_MOST);
    }
    // Buckets are not touched when nothing changes, so that a tick cannot refill them.
    if *in_force != Some(want) {
        apply(&want, budget, now);
        *in_force = Some(want);
    }
}

fn apply(want: &Want, budget: &Budget, now: Instant) {
    let limit = match want.rate {
        Some(DevicePs(ps_per_s)) if want.burst > Nanos::ZERO => {
            Limit::with_burst(Rate(ps_per_s), want.burst)
        }
        Some(DevicePs(ps_per_s)) => Limit::sustained(Rate(ps_per_s)),
        None => Limit::NONE,
    };
    budget.set_byte_price(want.byte_price.unwrap_or(DevicePs::ZERO));
    budget.set_limit(now, limit);
    budget.set_delay(match want.delay {
        Delay::None => 0,
        Delay::Units(units) => units.min(DELAY_INFINITE - 1),
        Delay::Infinite => DELAY_INFINITE,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_policy::baselines::Unlimited;

    /// Tells when it was stepped.
    struct Steps(Arc<std::sync::Mutex<Vec<Instant>>>);

    impl Policy for Steps {
        fn name(&self) -> &'static str {
            "steps"
        }

        fn period(&self) -> Nanos {
            Unlimited.period()
        }

        fn step(&mut self, now: Instant, _seen: &[Seen], _want: &mut [Want]) {
            self.0.lock().expect("nobody panics").push(now);
        }
    }

    #[test]
    fn a_late_tick_is_taken_for_now_and_a_clock_that_went_back_is_believed() {
        let steps = Arc::default();
        let mut controller = Controller::new(Box::new(Steps(Arc::clone(&steps))), 0);
        let none: [&crate::tenant::Tenant; 0] = [];
        for now_s in [100.0, 99.9, 101.0, 5000.0, 102.0, 102.1] {
            controller.tick(Instant((now_s * 1e9) as u64), none.iter().copied());
        }
        let steps_s: Vec<f64> = steps
            .lock()
            .expect("nobody panics")
            .iter()
            .map(|at| at.0 as f64 / 1e9)
            .collect();
        assert_eq!(steps_s, [100.0, 100.0, 101.0, 5000.0, 102.0, 102.1]);
    }
}
