//! Stand-alone runs: how fast would a tenant be if it had the device for itself (NyxCache section
//! 3.3, "SlowDown Estimation")? Short pauses of everybody else tell, one tenant at a time.
//!
//! A run has four phases. *Lifted*: the tenant has no limit, so that clients that wait under one
//! come back; nobody is paused yet. *Draining*: the others are paused and the device finishes what
//! they left. *Alone*: this is counted. *Settling*: everybody is back, but what piled up in the
//! pause is not counted as company. Of very many tenants company then begins for some after the
//! others, in steps that follow closely: latencies are totals that are read where it begins, and a
//! step that reads those of all would be several times as long as any other.
//!
//! Speed is accesses per second where clients wait for answers (a closed loop), and answers per
//! second of latency where they do not (an open loop, whose throughput is its demand whether it is
//! slowed or not). A slowdown is the speed alone over the speed in company. It is never below 1: a
//! tenant that is not faster alone is not slowed. So whoever stands still in its own runs looks
//! well served, and is given less, not more.
//!
//! Runs scale: but in the paper's mode, the part of the time in which anybody is paused is bounded,
//! however many tenants there are. More tenants wait longer for their turn; nobody's tail pays. The
//! bound is on pauses as long as they were, not as long as they were to be: where the controller
//! comes late, the next run is the further away.
//!
//! What it never does: pause anybody for a tenant that is idle; let a run that differs from those
//! before it count before a second one does; believe a run or a stretch of company that lasted so
//! much longer than planned that the controller or its clock must have stood still or jumped; read
//! a clock or a random number: runs are spread by a sequence that follows from a seed.
//!
//! *Invariants*: at most one tenant runs alone; company is counted outside of runs only; a clock
//! that went back ends the run, and what was counted in it is dropped.

use super::throttle;
use super::window::{Tally, Total, ratio};
use crate::{Seen, Want};
use nyx_base::{Instant, Nanos};

/// How often stand-alone speeds are measured again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refresh {
    /// Until the estimate is good, then when the workload changed, and now and then in any case.
    #[default]
    OnChange,
    /// Each tenant every `refresh`, whatever part of the time that takes, and only the last run
    /// counts (Algorithm 3).
    Paper,
}

/// How a tenant's clients behave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clients {
    /// They wait for an answer before they ask again: throughput tells how they fare.
    #[default]
    Closed,
    /// They ask at their own times: latency tells, where it is measured, or else throughput.
    Open,
}

/// What can be set about stand-alone runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// How often a tenant runs alone.
    pub mode: Refresh,
    /// For how long a run is counted.
    pub pause: Nanos,
    /// How long the device needs to finish what the others left.
    pub drain: Nanos,
    /// How long clients need to come back from a wait.
    pub settle: Nanos,
    /// `P` of the paper's mode.
    pub refresh: Nanos,
    /// The longest that an estimate is trusted where nothing seems to have changed.
    pub backstop: Nanos,
    /// The change of accesses per second, bytes or cost per access that is one of the workload, as
    /// a part.
    pub change: f64,
    /// The most of the time that may be taken by pauses, as a part; not in the paper's mode.
    pub paused_most: f64,
    /// The relative standard error at which an estimate is good enough.
    pub error: f64,
    /// For how long company is counted at least.
    pub window: Nanos,
    /// For how long it is counted at most, where accesses are few.
    pub window_most: Nanos,
    /// How many accesses of each tenant make a window.
    pub samples: u64,
    /// Makes the times of runs different from those of another server.
    pub seed: u64,
}

impl Default for Params {
    /// Pauses of 1 ms and `P` of 1 s are the paper's (section 4.1).
    fn default() -> Params {
        Params {
            mode: Refresh::OnChange,
            pause: Nanos::from_millis(1),
            drain: Nanos::from_micros(250),
            settle: Nanos::from_millis(2),
            refresh: Nanos::from_secs(1),
            backstop: Nanos::from_secs(30),
            change: 0.1,
            paused_most: 0.005,
            error: 0.003,
            window: Nanos::from_millis(100),
            window_most: Nanos::from_secs(1),
            samples: 1000,
            seed: 0,
        }
    }
}

/// How a tenant fared in company, in one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fare {
    /// The share of the device that it used.
    pub share: f64,
    /// Whether it did too little to be judged.
    pub idle: bool,
    /// By which factor it was slower than alone, at least 1. None where it was idle, or where its
    /// speed alone is not known yet.
    pub slowdown: Option<f64>,
}

/// With fewer accesses in a window than this a tenant is idle.
const IDLE_OPS: f64 = 10.0;
/// Of more tenants than these not all latencies are read in any one step.
const READ_MOST: usize = 128;
/// How soon the next of them are read where their company is to begin.
const NEXT_READ: Nanos = Nanos::from_millis(1);
/// Runs that an estimate needs, unless there was work enough in fewer.
const RUNS_LEAST: usize = 3;
/// Work that makes an estimate, give or take a tenth at worst.
const WORK_LEAST: f64 = 100.0;
/// Runs that an estimate is made of at most; older ones are forgotten.
const RUNS_KEPT: usize = 32;
/// A run that lasted so many times its length was not alone to the end: pauses that nobody prolongs
/// are over by then.
const LATE: u64 = 20;
/// A stretch of company that lasted so many times a window is a stall or a jump of the clock.
const STALLED: u64 = 10;
/// Standard deviations beyond which a run is a stray among the runs before it.
const OUTLIER: f64 = 3.0;

/// How fast a tenant was, by the latency of its answers or by its accesses.
fn run_of(total: &Total, by_latency: bool) -> Run {
    let (work, time_s) = match by_latency {
        true => (total.answers, total.answers_s),
        false => (total.ops, total.time_s),
    };
    Run { work, time_s }
}

/// What a workload is known by.
fn character_of(total: &Total) -> Option<Character> {
    Some(Character {
        ops_per_s: ratio(total.ops, total.time_s)?,
        bytes_per_op: ratio(total.bytes, total.ops)?,
        device_s_per_op: ratio(total.device_s, total.ops)?,
    })
}

/// Work and the time that it took.
#[derive(Clone, Copy, Debug)]
struct Run {
    work: f64,
    time_s: f64,
}

impl Run {
    /// Whether it differs from a speed by more than `change`, and by more than chance.
    fn is_off(&self, speed: f64, change: f64) -> bool {
        let expected = speed * self.time_s;
        let off = (self.work - expected).abs();
        off > change * expected && off > OUTLIER * expected.max(1.0).sqrt()
    }
}

/// The runs that an estimate is made of, oldest first.
#[derive(Clone, Debug, Default)]
struct Runs {
    kept: Vec<Run>,
    /// The last one, where it does not belong to those before it.
    stray: Option<Run>,
}

impl Runs {
    fn work(&self) -> f64 {
        self.kept.iter().map(|run| run.work).sum()
    }

    fn clear(&mut self) {
        *self = Runs::default();
    }

    /// How many are kept.
    fn len(&self) -> usize {
        self.kept.len()
    }

    /// Work per second of all runs together.
    fn speed(&self) -> Option<f64> {
        ratio(self.work(), self.kept.iter().map(|run| run.time_s).sum())
    }

    /// The relative standard error of the speed, as that of a ratio estimator, and more where there
    /// are few: runs that agree by chance are no evidence (Student's distribution, 95 %).
    fn error(&self) -> f64 {
        let (n, speed) = (self.len() as f64, self.speed().unwrap_or(0.0));
        let work = self.work();
        if self.len() < RUNS_LEAST || work <= 0.0 {
            return f64::INFINITY;
        }
        let residual = |run: &Run| (run.work - speed * run.time_s).powi(2);
        let squares: f64 = self.kept.iter().map(residual).sum();
        let doubt = 1.0 + 2.4 / (n - 1.0);
        doubt * (squares * n / (n - 1.0)).sqrt() / work
    }

    /// One run that does not belong to those before it is the machine's doing as likely as the
    /// workload's, and is put by. Two after each other are a change: everything before is dropped.
    fn add(&mut self, run: Run, change: f64) {
        let is_stray = self.speed().is_some_and(|speed| run.is_off(speed, change));
        match (is_stray, self.stray.take()) {
            (true, None) => self.stray = Some(run),
            (true, Some(stray)) => self.kept = vec![stray, run],
            (false, _) => self.keep(run),
        }
    }

    fn keep(&mut self, run: Run) {
        if self.len() == RUNS_KEPT {
            self.kept.remove(0);
        }
        self.kept.push(run);
    }
}

/// What a workload is known by.
#[derive(Clone, Copy, Debug)]
struct Character {
    ops_per_s: f64,
    bytes_per_op: f64,
    device_s_per_op: f64,
}

/// What is known of one tenant.
#[derive(Clone, Debug)]
struct Tenant {
    clients: Clients,
    /// Runs of the workload as it is now.
    runs: Runs,
    /// How often it ran alone in all.
    run_count: usize,
    /// When it last ran alone.
    ran: Option<Instant>,
    /// By which factor it was slowed when that was last known.
    slowdown: Option<f64>,
    /// How it was when it last ran alone, as far as seen since.
    character: Option<Character>,
    /// Whether something changed since.
    changed: bool,
    /// Whether it did too little to be judged when that was last asked.
    idle: bool,
    /// Where the stretch of company begins that is not counted yet.
    mark: Tally,
    company: Total,
    by_latency: bool,
}

impl Tenant {
    /// A stretch of company begins.
    fn begin(&mut self, now: Instant, seen: &Seen) {
        self.mark = Tally::new(now, seen);
        self.by_latency = self.clients == Clients::Open && self.mark.has_answers();
    }

    /// Another kind of access makes what was learned worthless; another rate may be our own doing,
    /// or the company's, and only asks for another run.
    fn compare(&mut self, params: &Params) {
        if self.company.ops < params.samples as f64 {
            return;
        }
        let Some(now) = character_of(&self.company) else {
            return;
        };
        let was = *self.character.get_or_insert(now);
        let moved = |now: f64, was: f64| (now - was).abs() > params.change * was;
        let other = moved(now.bytes_per_op, was.bytes_per_op)
            || moved(now.device_s_per_op, was.device_s_per_op);
        if other {
            self.runs.clear();
            self.character = Some(now);
        }
        self.changed |= other || moved(now.ops_per_s, was.ops_per_s);
    }

    /// Until a changed workload has run alone the last slowdown stands, so that nobody escapes
    /// judgement by changing all the time.
    fn fare(&mut self) -> Fare {
        self.idle = self.company.ops < IDLE_OPS;
        let run = run_of(&self.company, self.by_latency);
        let company = ratio(run.work, run.time_s).filter(|&speed| speed > 0.0);
        if let Some(company) = company
            && self.runs.len() > 0
        {
            // Whoever answered nobody when it was alone cannot have been faster.
            self.slowdown = Some((self.runs.speed().unwrap_or(0.0) / company).max(1.0));
        }
        let known = self.run_count >= RUNS_LEAST || self.runs.work() >= WORK_LEAST;
        Fare {
            share: self.company.share(),
            idle: self.idle,
            slowdown: self.slowdown.filter(|_| known && !self.idle),
        }
    }

    /// Whether its company was long enough, and had accesses enough, to be judged.
    fn is_ready(&self, params: &Params) -> bool {
        let few = self.company.ops > 0.0 && self.company.ops < params.samples as f64;
        let least = if few {
            params.window_most
        } else {
            params.window
        };
        self.company.time_s > 0.0 && self.company.time_s >= least.as_secs_f64()
    }

    fn is_due(&self, now: Instant, params: &Params) -> bool {
        let runs = self.runs.len();
        let rough = runs < RUNS_LEAST
            || self.runs.stray.is_some()
            || (runs < RUNS_KEPT && self.runs.error() > params.error);
        let old = self.ran.is_none_or(|at| now.since(at) >= params.backstop);
        !self.idle && (params.mode == Refresh::Paper || rough || old || self.changed)
    }
}

#[derive(Clone, Debug)]
enum Phase {
    Together,
    Lifted(usize),
    Draining(usize),
    Alone(usize, Tally),
    Settling,
    /// Company has begun for the tenants of so many turns.
    Beginning(usize),
}

/// Learns how fast each tenant is alone, and compares.
#[derive(Clone, Debug)]
pub struct Alone {
    params: Params,
    tenants: Vec<Tenant>,
    phase: Phase,
    began: Instant,
    ends: Instant,
    /// When the others were last paused.
    paused: Instant,
    /// No run begins before; none until the first step.
    next: Option<Instant>,
    rounds: u64,
    steps: usize,
    now: Instant,
}

impl Alone {
    /// For these tenants.
    pub fn new(params: Params, clients: &[Clients]) -> Alone {
        let tenant = |&clients: &Clients| Tenant {
            clients,
            runs: Runs::default(),
            run_count: 0,
            ran: None,
            slowdown: None,
            character: None,
            changed: false,
            idle: true,
            mark: Tally::default(),
            company: Total::default(),
            by_latency: false,
        };
        Alone {
            params,
            tenants: clients.iter().map(tenant).collect(),
            phase: Phase::Together,
            began: Instant(0),
            ends: Instant(0),
            paused: Instant(0),
            next: None,
            rounds: 0,
            steps: 0,
            now: Instant(0),
        }
    }

    /// What was set.
    pub fn params(&self) -> Params {
        self.params
    }

    /// Whether the tenant's latencies are needed.
    pub fn measures(&self, tenant: usize) -> bool {
        self.tenants[tenant].clients == Clients::Open
    }

    /// Whether the coming step looks at the tenant's latencies. In company they are totals, so of
    /// very many tenants each is read in its turn, and a judgement is a few steps behind.
    pub fn reads(&self, tenant: usize) -> bool {
        let is_turn = |turn: usize| tenant % self.turns() == turn;
        match self.phase {
            Phase::Together if self.next.is_some() => is_turn(self.steps % self.turns()),
            Phase::Lifted(alone) | Phase::Draining(alone) | Phase::Alone(alone, _) => {
                alone == tenant
            }
            Phase::Together | Phase::Settling => is_turn(0),
            Phase::Beginning(turns) => is_turn(turns),
        }
    }

    /// In how many turns all tenants are read.
    fn turns(&self) -> usize {
        self.tenants.len().div_ceil(READ_MOST).max(1)
    }

    /// The accesses per second of the tenant alone, or its answers per second of latency.
    pub fn speed(&self, tenant: usize) -> Option<f64> {
        self.tenants[tenant].runs.speed()
    }

    /// Whether somebody runs alone, or will in a moment, or did a moment ago; of very many tenants
    /// also while company begins.
    pub fn is_running(&self) -> bool {
        !matches!(self.phase, Phase::Together)
    }

    /// Lets one tenant run alone, of those for which `may` holds and whose speed is not known well,
    /// if it is time for a run at all; tells whether it will. Asked after a step.
    pub fn start(&mut self, may: impl Fn(usize) -> bool) -> bool {
        let is_time = self.next.is_some_and(|next| self.now >= next);
        if self.is_running() || !is_time {
            return false;
        }
        let due = self.due(may);
        if let Some(tenant) = due {
            self.enter(Phase::Lifted(tenant), self.params.settle);
        }
        due.is_some()
    }

    /// One step. [`Alone::apply`] is to follow.
    pub fn step(&mut self, now: Instant, seen: &[Seen]) {
        self.now = now;
        self.steps = self.steps.wrapping_add(1);
        if self.next.is_none() {
            self.wait(self.params.pause + self.params.drain);
            return self.begin_turn(0, now, seen);
        }
        let over = now >= self.ends;
        match &self.phase {
            _ if now < self.began => {
                self.wait(self.params.pause + self.params.drain);
                self.together(now, seen);
            }
            Phase::Together => self.count(now, seen),
            _ if !over => {}
            &Phase::Lifted(tenant) => {
                self.paused = now;
                self.enter(Phase::Draining(tenant), self.params.drain);
            }
            &Phase::Draining(tenant) => {
                let mark = Tally::new(now, &seen[tenant]);
                self.enter(Phase::Alone(tenant, mark), self.params.pause);
            }
            Phase::Alone(tenant, mark) => {
                let (tenant, total) = (*tenant, mark.since(now, &seen[*tenant]));
                if now.since(self.began).0 <= LATE * self.params.pause.0 {
                    self.learn(tenant, &total);
                }
                let most = Nanos(LATE * (self.params.pause + self.params.drain).0);
                self.wait(now.since(self.paused).min(most));
                self.enter(Phase::Settling, self.params.settle);
            }
            Phase::Settling => self.begin_turn(0, now, seen),
            &Phase::Beginning(turns) => self.begin_turn(turns, now, seen),
        }
    }

    /// How long to wait until the next step.
    pub fn period(&self) -> Nanos {
        let tick = Nanos(self.params.window.0 / 10);
        let event = match (&self.phase, self.next) {
            (Phase::Together, Some(next)) if next > self.now => next.since(self.now),
            (Phase::Together, _) => tick,
            _ => self.ends.since(self.now),
        };
        event.min(tick).max(Nanos(1_000))
    }

    /// Puts the run into what is wanted, over what the policy wants otherwise.
    pub fn apply(&self, want: &mut [Want]) {
        match self.phase {
            Phase::Together | Phase::Settling | Phase::Beginning(_) => {}
            Phase::Lifted(tenant) => want[tenant] = Want::default(),
            Phase::Draining(tenant) | Phase::Alone(tenant, _) => {
                want.fill(throttle::pause());
                want[tenant] = Want::default();
            }
        }
    }

    /// How everybody fared since this was last given; none until enough was seen of all.
    pub fn take(&mut self) -> Option<Vec<Fare>> {
        let fares = self.take_of(|_| true)?;
        Some(fares.into_iter().map(|(_, fare)| fare).collect())
    }

    /// How these tenants fared since this was last given, each with its place; none until enough
    /// was seen of all of them.
    pub fn take_of(&mut self, is_one: impl Fn(usize) -> bool) -> Option<Vec<(usize, Fare)>> {
        let all = (0..self.tenants.len()).filter(|&i| is_one(i));
        let all: Vec<usize> = all.collect();
        let is_ready = all.iter().all(|&i| self.tenants[i].is_ready(&self.params));
        (is_ready && !all.is_empty()).then(|| all.into_iter().map(|i| (i, self.fare(i))).collect())
    }

    /// How one tenant fared since this was last given; none until enough was seen of it.
    pub fn take_one(&mut self, tenant: usize) -> Option<Fare> {
        let ready = self.tenants[tenant].is_ready(&self.params);
        ready.then(|| self.fare(tenant))
    }

    fn fare(&mut self, tenant: usize) -> Fare {
        let tenant = &mut self.tenants[tenant];
        tenant.compare(&self.params);
        let fare = tenant.fare();
        tenant.company = Total::default();
        fare
    }

    fn enter(&mut self, phase: Phase, length: Nanos) {
        self.phase = phase;
        self.began = self.now;
        self.ends = self.now + length;
    }

    /// Company begins to be counted, of the tenants of one turn; of all after the last.
    fn begin_turn(&mut self, turn: usize, now: Instant, seen: &[Seen]) {
        let turns = self.turns();
        let each = self.tenants.iter_mut().zip(seen);
        for (tenant, seen) in each.skip(turn).step_by(turns) {
            tenant.begin(now, seen);
        }
        match turn + 1 < turns {
            true => self.enter(Phase::Beginning(turn + 1), NEXT_READ),
            false => self.enter(Phase::Together, Nanos::ZERO),
        }
    }

    /// Company begins to be counted, of all at once.
    fn together(&mut self, now: Instant, seen: &[Seen]) {
        for (tenant, seen) in self.tenants.iter_mut().zip(seen) {
            tenant.begin(now, seen);
        }
        self.enter(Phase::Together, Nanos::ZERO);
    }

    fn count(&mut self, now: Instant, seen: &[Seen]) {
        if now.since(self.began).0 > STALLED * self.params.window.0 {
            return self.together(now, seen);
        }
        for (tenant, seen) in self.tenants.iter_mut().zip(seen) {
            tenant.company.add(&tenant.mark.since(now, seen));
            tenant.begin(now, seen);
        }
        self.began = now;
    }

    /// Who runs alone next: of those who need it, the one with the fewest runs, then the one whose
    /// last run is the longest ago.
    fn due(&self, may: impl Fn(usize) -> bool) -> Option<usize> {
        let due = |&i: &usize| may(i) && self.tenants[i].is_due(self.now, &self.params);
        let order = |&i: &usize| (self.tenants[i].runs.len(), self.tenants[i].ran);
        (0..self.tenants.len()).filter(due).min_by_key(order)
    }

    fn learn(&mut self, tenant: usize, total: &Total) {
        let tenant = &mut self.tenants[tenant];
        if self.params.mode == Refresh::Paper {
            tenant.runs.clear();
        }
        tenant
            .runs
            .add(run_of(total, tenant.by_latency), self.params.change);
        tenant.run_count += 1;
        tenant.ran = Some(self.now);
        tenant.changed = false;
        tenant.character = None;
    }

    /// Nobody runs alone for some time after a pause of such a length: as long as the bound on
    /// pauses asks for and up to half as long again, so that no tenant can be in step with it. In
    /// the paper's mode runs are spread over `P`, each up to a quarter earlier or later.
    fn wait(&mut self, paused: Nanos) {
        self.rounds += 1;
        let draw = splitmix(self.params.seed.wrapping_add(self.rounds)) as f64 / u64::MAX as f64;
        let gap_ns = match self.params.mode {
            Refresh::OnChange => paused.0 as f64 / self.params.paused_most * (1.0 + draw / 2.0),
            Refresh::Paper => {
                let each_ns = self.params.refresh.0 as f64 / self.tenants.len().max(1) as f64;
                each_ns * (0.75 + draw / 2.0)
            }
        };
        self.next = Some(self.now + Nanos(gap_ns as u64));
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): equal numbers in, equal numbers out.
fn splitmix(of: u64) -> u64 {
    let mut z = of.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A device that is shared in proportion to how much each tenant pulls.
#[cfg(test)]
pub(crate) mod toy {
    use crate::{Delay, Seen, Want};
    use nyx_base::{DevicePs, Instant, LatencyCounter, Nanos};

    /// How a tenant behaves.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(crate) enum Way {
        /// Always the same.
        Steady,
        /// It stands still whenever it is alone.
        StillAlone,
        /// It stands still every second time that it is alone.
        StillEverySecondTime,
        /// It is so fast at most, in shares of the device.
        AtMost(f64),
    }

    pub(crate) struct Plant {
        pub(crate) now: Instant,
        pub(crate) seen: Vec<Seen>,
        pub(crate) want: Vec<Want>,
        /// How much each tenant pulls; nothing is idle.
        pub(crate) pulls: Vec<f64>,
        pub(crate) bytes_per_op: f64,
        pub(crate) paused_ns: u64,
        pub(crate) runs: Vec<(Instant, usize)>,
        ways: Vec<Way>,
        latencies: Vec<LatencyCounter>,
    }

    /// Accesses per second of a tenant that has the device for itself.
    pub(crate) const OPS_PER_S: f64 = 1e6;

    impl Plant {
        /// Counters begin shortly before they wrap.
        pub(crate) fn new(tenants: &[(f64, Way)]) -> Plant {
            let seen = Seen {
                used: DevicePs(u64::MAX - 1_000_000_000),
                bytes: u64::MAX - 1000,
                ops: u64::MAX - 1000,
                ..Seen::default()
            };
            Plant {
                now: Instant(5_000_000_000),
                seen: vec![seen; tenants.len()],
                want: vec![Want::default(); tenants.len()],
                pulls: tenants.iter().map(|tenant| tenant.0).collect(),
                bytes_per_op: 1024.0,
                paused_ns: 0,
                runs: Vec::new(),
                ways: tenants.iter().map(|tenant| tenant.1).collect(),
                latencies: tenants.iter().map(|_| LatencyCounter::default()).collect(),
            }
        }

        fn is_paused(&self, tenant: usize) -> bool {
            self.want[tenant].delay == Delay::Infinite
        }

        /// Who runs alone.
        fn alone(&self) -> Option<usize> {
            let mut there = (0..self.pulls.len()).filter(|&i| !self.is_paused(i));
            let first = there.next()?;
            (there.next().is_none() && self.pulls.len() > 1).then_some(first)
        }

        /// The most that a tenant can use of the device now.
        fn most(&self, tenant: usize) -> f64 {
            let limit = self.want[tenant]
                .rate
                .map_or(1.0, |rate| rate.0 as f64 / 1e12);
            let alone = self.alone() == Some(tenant);
            let odd = self.runs.len() % 2 == 1;
            match self.ways[tenant] {
                _ if self.is_paused(tenant) => 0.0,
                Way::StillAlone if alone => 0.0,
                Way::StillEverySecondTime if alone && odd => 0.0,
                Way::AtMost(share) => share.min(limit),
                _ => limit,
            }
        }

        /// The share of the device that each gets: what one cannot use goes to the others.
        pub(crate) fn shares(&self) -> Vec<f64> {
            let mut shares = vec![0.0; self.pulls.len()];
            let mut open: Vec<usize> = (0..self.pulls.len()).collect();
            open.retain(|&i| self.pulls[i] > 0.0);
            let mut left = 1.0;
            loop {
                let pull: f64 = open.iter().map(|&i| self.pulls[i]).sum();
                let part = |i: usize| left * self.pulls[i] / pull;
                let (full, rest): (Vec<usize>, Vec<usize>) =
                    open.iter().partition(|&&i| self.most(i) < part(i));
                if full.is_empty() {
                    rest.iter().for_each(|&i| shares[i] = part(i));
                    return shares;
                }
                for i in full {
                    shares[i] = self.most(i);
                    left -= shares[i];
                }
                open = rest;
            }
        }

        pub(crate) fn run(&mut self, length: Nanos) {
            let alone = self.alone();
            if let Some(tenant) = alone {
                self.paused_ns += length.0;
                if self
                    .runs
                    .last()
                    .is_none_or(|run| self.now.since(run.0).0 > 10_000_000)
                {
                    self.runs.push((self.now, tenant));
                }
            }
            for (i, share) in self.shares().into_iter().enumerate() {
                let ops = share * OPS_PER_S * length.as_secs_f64();
                let (seen, wrapping) = (&mut self.seen[i], |add: f64| add.round() as u64);
                let used = wrapping(share * length.as_secs_f64() * 1e12);
                seen.used = DevicePs(seen.used.0.wrapping_add(used));
                seen.ops = seen.ops.wrapping_add(wrapping(ops));
                seen.bytes = seen.bytes.wrapping_add(wrapping(ops * self.bytes_per_op));
                if share > 0.0 {
                    self.latencies[i].add(Nanos((1000.0 / share) as u64), ops.round() as u32);
                }
                seen.latencies.clear();
                self.latencies[i].add_to(&mut seen.latencies);
            }
            self.now += length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::toy::{OPS_PER_S, Plant, Way};
    use super::*;

    /// Steps `alone` for some time; the last windows.
    fn drive(alone: &mut Alone, plant: &mut Plant, for_s: u64) -> Vec<Fare> {
        let (end, mut fares) = (plant.now + Nanos::from_secs(for_s), Vec::new());
        while plant.now < end {
            alone.step(plant.now, &plant.seen);
            alone.start(|_| true);
            fares = alone.take().unwrap_or(fares);
            plant.want.fill(Want::default());
            alone.apply(&mut plant.want);
            plant.run(alone.period());
        }
        fares
    }

    fn closed(params: Params, plant: &Plant) -> Alone {
        Alone::new(params, &vec![Clients::Closed; plant.pulls.len()])
    }

    #[test]
    fn slowdowns_are_learned_while_counters_wrap_and_pauses_stay_few() {
        let mut plant = Plant::new(&[(3.0, Way::Steady), (1.0, Way::Steady)]);
        let mut alone = closed(Params::default(), &plant);
        let fares = drive(&mut alone, &mut plant, 10);
        let slowdowns: Vec<f64> = fares.iter().filter_map(|fare| fare.slowdown).collect();
        assert!((slowdowns[0] * 0.75 - 1.0).abs() < 0.01, "{slowdowns:?}");
        assert!((slowdowns[1] * 0.25 - 1.0).abs() < 0.01, "{slowdowns:?}");
        let speed = alone.speed(0).expect("learned");
        assert!((speed / OPS_PER_S - 1.0).abs() < 0.01, "{speed}");
        // Good at once, so nobody is paused again before the backstop.
        assert_eq!(plant.runs.len(), 2 * RUNS_LEAST);
        drive(&mut alone, &mut plant, 60);
        assert!(plant.runs.len() <= 2 * (RUNS_LEAST + 3), "{:?}", plant.runs);
    }

    #[test]
    fn pauses_never_take_more_than_their_part() {
        let mut plant = Plant::new(&[(1.0, Way::StillEverySecondTime); 4]);
        let mut alone = closed(Params::default(), &plant);
        drive(&mut alone, &mut plant, 20);
        assert!(plant.runs.len() > 40, "never good enough, so always due");
        let part = plant.paused_ns as f64 / 20e9;
        assert!(part < 0.005 && part > 0.003, "{part}");
    }

    #[test]
    fn another_workload_is_measured_again_and_judged_meanwhile() {
        let mut plant = Plant::new(&[(1.0, Way::Steady), (1.0, Way::Steady)]);
        let mut alone = closed(Params::default(), &plant);
        drive(&mut alone, &mut plant, 5);
        let before = plant.runs.len();
        plant.bytes_per_op = 4096.0;
        let fares = drive(&mut alone, &mut plant, 1);
        assert!(fares.iter().all(|fare| fare.slowdown.is_some()));
        drive(&mut alone, &mut plant, 5);
        assert_eq!(plant.runs.len(), before + 2 * RUNS_LEAST);
        plant.pulls[1] = 2.0;
        // The next run is as far away as so long a pause asks for.
        drive(&mut alone, &mut plant, 20);
        let again = plant.runs.len() - before - 2 * RUNS_LEAST;
        assert!(
            (2..=4).contains(&again),
            "one run tells that only company changed: {again}"
        );
    }

    #[test]
    fn one_stray_run_changes_nothing_and_two_begin_anew() {
        let run = |work: f64| Run { work, time_s: 1e-3 };
        let mut runs = Runs::default();
        (0..5).for_each(|_| runs.add(run(1000.0), 0.1));
        runs.add(run(700.0), 0.1);
        assert_eq!((runs.len(), runs.speed()), (5, Some(1e6)));
        assert!(runs.stray.is_some(), "it is measured again soon");
        runs.add(run(1020.0), 0.1);
        runs.add(run(690.0), 0.1);
        assert_eq!(runs.len(), 6, "strays are not counted across good runs");
        runs.add(run(710.0), 0.1);
        assert_eq!((runs.len(), runs.speed()), (2, Some(7e5)));
        assert!(runs.stray.is_none());
    }

    #[test]
    fn whoever_is_not_faster_alone_is_not_slowed() {
        let mut plant = Plant::new(&[(1.0, Way::AtMost(0.2)), (1.0, Way::StillAlone)]);
        let mut alone = closed(Params::default(), &plant);
        let fares = drive(&mut alone, &mut plant, 5);
        assert!((fares[0].slowdown.expect("known") - 1.0).abs() < 0.01);
        assert_eq!(fares[1].slowdown, Some(1.0));
    }

    #[test]
    fn open_loops_are_judged_by_latency() {
        let mut plant = Plant::new(&[(1.0, Way::Steady), (3.0, Way::Steady)]);
        let mut alone = Alone::new(Params::default(), &[Clients::Open, Clients::Closed]);
        assert!(alone.measures(0) && !alone.measures(1));
        let fares = drive(&mut alone, &mut plant, 5);
        // Latency counters are a few percent coarse.
        assert!((fares[0].slowdown.expect("known") / 4.0 - 1.0).abs() < 0.05);
    }

    #[test]
    fn of_three_hundred_tenants_each_is_read_in_its_turn() {
        let tenants = 300;
        let mut plant = Plant::new(&vec![(1.0, Way::Steady); tenants]);
        let params = Params {
            // For so many the default takes minutes.
            paused_most: 0.5,
            ..Params::default()
        };
        let mut alone = Alone::new(params, &vec![Clients::Open; tenants]);
        let end = plant.now + Nanos::from_secs(10);
        let (mut fares, mut seen, mut most) = (Vec::new(), plant.seen.clone(), 0);
        while plant.now < end {
            let reads = |i: &usize| alone.reads(*i);
            let read: Vec<usize> = (0..tenants).filter(reads).collect();
            most = most.max(read.len());
            for (i, seen) in seen.iter_mut().enumerate() {
                let latencies = std::mem::take(&mut seen.latencies);
                *seen = plant.seen[i].clone();
                if !read.contains(&i) {
                    seen.latencies = latencies;
                }
            }
            alone.step(plant.now, &seen);
            alone.start(|_| true);
            fares = alone.take().unwrap_or(fares);
            plant.want.fill(Want::default());
            alone.apply(&mut plant.want);
            plant.run(alone.period());
        }
        assert!((1..=READ_MOST).contains(&most), "{most} at once");
        let known = fares.iter().filter_map(|fare| fare.slowdown);
        let known: Vec<f64> = known.collect();
        assert!(known.len() > 200, "{}", known.len());
        for slowdown in known {
            assert!((slowdown / tenants as f64 - 1.0).abs() < 0.05, "{slowdown}");
        }
    }

    #[test]
    fn nobody_is_paused_for_a_tenant_that_is_idle() {
        let mut plant = Plant::new(&[(1.0, Way::Steady), (0.0, Way::Steady)]);
        let mut alone = closed(Params::default(), &plant);
        let fares = drive(&mut alone, &mut plant, 5);
        assert!(plant.runs.iter().all(|run| run.1 == 0), "{:?}", plant.runs);
        assert!(fares[1].idle && fares[1].slowdown.is_none());
        assert_eq!(fares[0].slowdown, Some(1.0));
    }

    #[test]
    fn the_paper_measures_everybody_each_second_at_times_that_the_seed_moves() {
        let times = |seed| {
            let params = Params {
                mode: Refresh::Paper,
                seed,
                ..Params::default()
            };
            let mut plant = Plant::new(&[(1.0, Way::Steady), (1.0, Way::Steady)]);
            drive(&mut closed(params, &plant), &mut plant, 20);
            plant.runs
        };
        let runs = times(1);
        assert!((37..=43).contains(&runs.len()), "{}", runs.len());
        assert!(runs.windows(2).all(|two| two[0].1 != two[1].1), "in turn");
        assert_eq!(runs, times(1));
        assert_ne!(runs, times(2));
    }

    #[test]
    fn a_clock_that_goes_back_pauses_nobody_for_long() {
        let mut plant = Plant::new(&[(1.0, Way::Steady), (1.0, Way::Steady)]);
        let mut alone = closed(Params::default(), &plant);
        while plant.runs.is_empty() {
            alone.step(plant.now, &plant.seen);
            alone.start(|_| true);
            alone.take();
            alone.apply(&mut plant.want);
            plant.run(alone.period());
        }
        alone.step(Instant(1), &plant.seen);
        let mut want = vec![Want::default(); 2];
        alone.apply(&mut want);
        assert_eq!(want, [Want::default(); 2]);
    }

    #[test]
    fn a_controller_that_comes_late_pauses_the_more_seldom() {
        let mut plant = Plant::new(&[(1.0, Way::StillEverySecondTime); 4]);
        let mut alone = closed(Params::default(), &plant);
        let end = plant.now + Nanos::from_secs(20);
        while plant.now < end {
            alone.step(plant.now, &plant.seen);
            alone.start(|_| true);
            alone.take();
            plant.want.fill(Want::default());
            alone.apply(&mut plant.want);
            // A thread that sleeps is late by milliseconds now and then.
            plant.run(alone.period() + Nanos::from_millis(4));
        }
        let part = plant.paused_ns as f64 / 20e9;
        assert!(part < 0.005 && part > 0.003, "{part}");
    }

    #[test]
    fn a_run_through_which_the_controller_slept_teaches_nothing() {
        let mut plant = Plant::new(&[(3.0, Way::Steady), (1.0, Way::Steady)]);
        let mut alone = closed(Params::default(), &plant);
        drive(&mut alone, &mut plant, 5);
        let known = [0, 1].map(|i| alone.speed(i));
        plant.bytes_per_op = 4096.0;
        let runs = plant.runs.len();
        while plant.runs.len() == runs {
            alone.step(plant.now, &plant.seen);
            alone.start(|_| true);
            alone.take();
            plant.want.fill(Want::default());
            alone.apply(&mut plant.want);
            plant.run(alone.period());
        }
        // In the pause, and everybody is back long before it wakes.
        plant.want.fill(Want::default());
        plant.run(Nanos::from_secs(10));
        let fares = drive(&mut alone, &mut plant, 1);
        assert!(
            fares
                .iter()
                .all(|fare| fare.slowdown.is_none_or(|s| s < 5.0)),
            "{fares:?}"
        );
        // The next run is as far away as so long a pause asks for.
        drive(&mut alone, &mut plant, 20);
        let again = [0, 1].map(|i| alone.speed(i));
        for (known, again) in known.iter().zip(again) {
            let (known, again) = (known.expect("learned"), again.expect("learned"));
            assert!((again / known - 1.0).abs() < 0.01, "{known}, {again}");
        }
    }

    #[test]
    fn fifty_tenants_are_all_learned_and_the_papers_way_pauses_a_hundredth_of_the_time() {
        for tenants in [12, 50] {
            let mut plant = Plant::new(&vec![(1.0, Way::Steady); tenants]);
            let mut alone = closed(Params::default(), &plant);
            let fares = drive(&mut alone, &mut plant, 80);
            let slowdown = |fare: &Fare| fare.slowdown.expect("learned in 80 s");
            for fare in &fares {
                assert!(
                    (slowdown(fare) / tenants as f64 - 1.0).abs() < 0.02,
                    "{fare:?}"
                );
            }
            let part = plant.paused_ns as f64 / 80e9;
            assert!(part <= 0.005, "{tenants} tenants: {part}");
            let paper = Params {
                mode: Refresh::Paper,
                ..Params::default()
            };
            let mut plant = Plant::new(&vec![(1.0, Way::Steady); tenants]);
            drive(&mut closed(paper, &plant), &mut plant, 20);
            let part = plant.paused_ns as f64 / 20e9;
            let each = 0.00125 * tenants as f64;
            assert!(
                part > 0.01 && (part / each - 1.0).abs() < 0.2,
                "{tenants}: {part}"
            );
        }
    }
}
