//! Quality of service (NyxCache section 3.4, Algorithm 2): latency-critical tenants (LC) keep their
//! targets, best-effort tenants (BE) get the rest. When a target is missed, the one tenant is
//! throttled whose throttling helps most, which an experiment finds
//! ([`mechanism::interference`](crate::mechanism::interference)); when all have slack, throttles
//! are taken back.
//!
//! Where the paper is silent or slow: the step is as large as the experiment says that it must be;
//! an experiment that names nobody is made again, for longer and for a larger expense; a culprit
//! that was found a moment ago is not looked for again; a single candidate is tried like any other;
//! no step takes more than half of what somebody uses, or gives back more than he has; a step that
//! did not help as the experiment said is taken back with the verdict it came from, as the harm may
//! come from where no throttle reaches, from a CPU or from the victim itself; a throttle that made
//! another LC miss its target is taken back and not tried again for a while; and what a tenant was
//! throttled for is given back the more slowly the more often that went
//! wrong, and slower still while it does not come up to its limit: that all is well then says
//! nothing about it. Who comes and goes faster than experiments take is found by that
//! ([`mechanism::contrast`](crate::mechanism::contrast)). [`Mode::Paper`] has the paper's fixed
//! steps and windows.
//!
//! What it never does: throttle on a window with too few samples, or throttle below
//! [`SHARE_MIN`](crate::mechanism::throttle::SHARE_MIN).
//!
//! *Invariants*: at most one experiment is under way; outside of it what is wanted is exactly the
//! throttles.

use crate::mechanism::contrast::Contrast;
use crate::mechanism::interference::{Candidate, Design, Experiment, Trials, Verdict};
use crate::mechanism::throttle::{Bounds, Throttle};
use crate::mechanism::window::{self, Mark, Window};
use crate::{Act, Decision, Policy, Seen, Want};
use nyx_base::{Instant, Nanos};
use std::fmt;

/// What a tenant is promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Class {
    /// Latency-critical.
    Critical(Target),
    /// Best effort: whatever is left.
    BestEffort,
}

/// A target of a latency-critical tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// A mean latency of at most so much.
    Mean(Nanos),
    /// A part of all requests (0.99 for P99), each within so much.
    Quantile(f64, Nanos),
    /// At least so many accesses per second.
    OpsPerS(f64),
}

/// One tenant, in the order of the policy's tenants.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its name, for reasons.
    pub name: String,
    /// What it is promised.
    pub class: Class,
    /// Between which shares of the device its limit moves.
    pub bounds: Bounds,
}

/// How steps are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As large as they must be, by windows of samples.
    Adaptive,
    /// As Algorithm 2: `ExperimentStep` each, a window of 500 ms, the candidate with the largest
    /// improvement whether or not that is more than noise.
    Paper,
}

/// Parameters, with the paper's defaults where it names them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Params {
    /// How steps are taken.
    pub mode: Mode,
    /// `ExperimentStep`: what a throttled candidate pays, in bytes per second. The paper's 500 MB/s
    /// are 4 % of what its device reads; smaller devices want a smaller step.
    pub step_bytes_per_s: f64,
    /// From this slack on throttles are taken back, and an LC tenant may be throttled (0.2).
    pub slack_ample: f64,
    /// Candidates of an experiment: those that do the most harm, in the paper's mode those that use
    /// the device most (3).
    pub candidates: usize,
    /// A window is at most so long (500 ms, as Parties).
    pub window_max: Nanos,
    /// How often it is stepped.
    pub tick: Nanos,
    /// In which design an experiment tries candidates.
    pub design: Design,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            mode: Mode::Adaptive,
            step_bytes_per_s: 500e6,
            slack_ample: 0.2,
            candidates: 3,
            window_max: Nanos::from_millis(500),
            tick: Nanos::from_millis(2),
            design: Design::Sequential,
        }
    }
}

/// A step aims at this part of the target, so that noise alone does not miss it again.
const AIM: f64 = 0.9;
/// One step takes at most so many times the expense of an experiment.
const STEPS_MOST: f64 = 8.0;
/// So many are given back at once at most.
const STEPS_BACK_MOST: f64 = 2.0;
/// A verdict is trusted for so many windows,
const VERDICT_WINDOWS: u32 = 8;
/// and as long as steps bring this part of the help that it says.
const HELP_LEAST: f64 = 0.5;
/// One step takes at most this part of what a tenant uses.
const STEP_PART_MOST: f64 = 0.5;
/// Who made another LC miss its target by being throttled is no candidate for so many windows.
const BARRED_WINDOWS: u32 = 20;
/// The most windows of slack that are waited for before a throttle is taken back.
const PATIENCE_MOST: u32 = 64;
/// So many windows in which a tenant did not come up to its limit count as one in which it did.
const ABSENT_WINDOWS: u32 = 16;
/// A tenant that uses this part of its limit comes up to it.
const PRESENT: f64 = 0.5;
/// An experiment looks at most four times to the power of this longer than the first,
const DOUBTS_MOST: u32 = 4;
/// and its expense is at most two to the power of this larger.
const DOUBLINGS_MOST: u32 = 3;
/// Decisions that wait to be taken.
const DECISIONS_MOST: usize = 64;

/// Samples that a judgement needs.
const SAMPLES_MEAN: u64 = 2_000;
const SAMPLES_TAIL: f64 = 70.0;

impl Target {
    /// Samples that a window needs: 70 beyond the quantile make it good to about a tenth.
    fn samples(self) -> u64 {
        match self {
            Target::Mean(_) => SAMPLES_MEAN,
            Target::OpsPerS(_) => 0,
            Target::Quantile(q, _) => (SAMPLES_TAIL / (1.0 - q).max(1e-4)) as u64,
        }
    }

    /// What is promised, in nanoseconds: a rate as the time of one access.
    fn most_ns(self) -> f64 {
        match self {
            Target::Mean(most) | Target::Quantile(_, most) => most.0 as f64,
            Target::OpsPerS(least) => 1e9 / least,
        }
    }

    /// Which latency it bounds; nothing for a rate.
    fn what(self) -> String {
        match self {
            Target::Mean(_) => "mean".into(),
            Target::Quantile(q, _) => format!("p{}", (q * 1e6).round() / 1e4),
            Target::OpsPerS(_) => String::new(),
        }
    }

    /// What a tenant has of it, in nanoseconds as [`crate::Standing::had_ns`], for people.
    pub fn show(self, ns: f64) -> String {
        match self {
            Target::OpsPerS(_) => format!("{:.0} accesses/s", 1e9 / ns),
            Target::Mean(_) | Target::Quantile(..) => format!("{:.2} us", ns / 1e3),
        }
    }

    /// What the tenant has and what it should have at most, in nanoseconds. None where the window
    /// says nothing.
    fn compare(self, window: &Window) -> Option<(f64, f64)> {
        let has_ns = match self {
            Target::Mean(_) => window.latencies.mean_ns(),
            Target::Quantile(q, _) => window.latencies.quantile_ns(q),
            Target::OpsPerS(_) => (window.ops_per_s > 0.0).then(|| 1e9 / window.ops_per_s),
        };
        Some((has_ns?, self.most_ns()))
    }
}

/// Shows what is measured and the bound: `mean 1.50 us`, `p99 2000.00 us`, `20000 accesses/s`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, most) = (self.what(), self.show(self.most_ns()));
        f.write_str(format!("{what} {most}").trim_start())
    }
}

/// One tenant as the policy treats it.
#[derive(Debug)]
struct Tenant {
    member: Member,
    throttle: Throttle,
    /// Windows for which it is no candidate.
    barred: u32,
    /// Windows with slack before its throttle is taken back, and how many there were, in parts of
    /// which [`ABSENT_WINDOWS`] are one.
    patience: u32,
    quiet: u32,
    /// Whether something was given back since it was last throttled.
    was_relaxed: bool,
    /// How it stood when it was last judged, and who was found to hurt it.
    stood: Option<Standing>,
    hurt_by: Vec<(usize, Option<f64>)>,
}

impl Tenant {
    /// Whether it comes up to its limit.
    fn is_present(&self, window: &Window) -> bool {
        let share = self.throttle.share();
        share.is_some_and(|share| window.share >= PRESENT * share)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Qos {
    params: Params,
    tenants: Vec<Tenant>,
    marks: Vec<Mark>,
    experiment: Option<(Experiment, Vec<Window>)>,
    /// The last verdict, and how many windows it is old.
    verdict: Option<(Verdict, u32)>,
    /// The step that was taken by it in the last window.
    step: Option<Step>,
    /// How often in a row an experiment named nobody: the next one looks longer.
    doubts: u32,
    contrast: Contrast,
    decisions: Vec<Decision>,
}

/// A step for a victim, which the next window is to bear out.
#[derive(Clone, Copy, Debug)]
struct Step {
    victim: usize,
    culprit: usize,
    /// The culprit's throttle before.
    from: Throttle,
    /// The victim's mean delay before, and by which part it should be less.
    mean_ns: f64,
    hoped: f64,
    /// Whether more was called for than a step may take.
    is_cut: bool,
}

/// How an LC tenant stands.
#[derive(Clone, Copy, Debug)]
struct Standing {
    tenant: usize,
    slack: f64,
    has_ns: f64,
    target_ns: f64,
}

impl Qos {
    /// Of tenants in the order of the engine's.
    pub fn new(members: Vec<Member>, params: Params) -> Qos {
        let tenants = members.into_iter().map(|member| Tenant {
            throttle: Throttle::within(member.bounds),
            member,
            barred: 0,
            patience: 1,
            quiet: 0,
            was_relaxed: true,
            stood: None,
            hurt_by: Vec::new(),
        });
        let tenants: Vec<Tenant> = tenants.collect();
        Qos {
            params,
            contrast: Contrast::new(tenants.len()),
            tenants,
            marks: Vec::new(),
            experiment: None,
            verdict: None,
            step: None,
            doubts: 0,
            decisions: Vec::new(),
        }
    }

    fn target(&self, tenant: usize) -> Option<Target> {
        match self.tenants[tenant].member.class {
            Class::Critical(target) => Some(target),
            Class::BestEffort => None,
        }
    }

    /// What everybody did since the last window, if that is enough to judge by; begins the next.
    fn windows(&mut self, now: Instant, seen: &[Seen]) -> Option<Vec<Window>> {
        if self.marks.len() != seen.len() {
            self.begin_window(now, seen);
            return None;
        }
        let enough = |tenant: usize| {
            let Some(target) = self.target(tenant) else {
                return true;
            };
            self.marks[tenant].samples(&seen[tenant]) >= target.samples()
        };
        let length = now.since(self.marks[0].at());
        let least = match self.params.mode {
            Mode::Paper => self.params.window_max,
            Mode::Adaptive => self.params.tick,
        };
        let full = length >= self.params.window_max;
        let judged = length >= least && (full || (0..seen.len()).all(enough));
        judged.then(|| {
            let marks = self.marks.iter().zip(seen);
            let windows = marks.map(|(mark, seen)| mark.window(now, seen)).collect();
            self.begin_window(now, seen);
            windows
        })
    }

    fn begin_window(&mut self, now: Instant, seen: &[Seen]) {
        window::mark_all(&mut self.marks, now, seen);
    }

    /// How the LC tenants stand, the one with the least slack first.
    fn standings(&self, windows: &[Window]) -> Vec<Standing> {
        let mut all: Vec<Standing> = (0..self.tenants.len())
            .filter_map(|tenant| {
                let (has_ns, target_ns) = self.target(tenant)?.compare(&windows[tenant])?;
                Some(Standing {
                    tenant,
                    slack: (target_ns - has_ns) / target_ns,
                    has_ns,
                    target_ns,
                })
            })
            .collect();
        all.sort_by(|a, b| a.slack.total_cmp(&b.slack));
        all
    }

    /// Steps 1 and 2 of Algorithm 2.
    fn judge(&mut self, now: Instant, windows: Vec<Window>) {
        for tenant in &mut self.tenants {
            tenant.barred = tenant.barred.saturating_sub(1);
        }
        if let Some((_, age)) = &mut self.verdict {
            *age += 1;
        }
        let standings = self.standings(&windows);
        self.tenants
            .iter_mut()
            .for_each(|tenant| tenant.stood = None);
        for one in &standings {
            self.tenants[one.tenant].stood = Some(*one);
        }
        // Who asks for nothing misses nothing: where no LC tenant is active all have slack.
        let slack = standings.first().map_or(1.0, |worst| worst.slack);
        for (at, window) in windows.iter().enumerate() {
            let limited = self.tenants[at].is_present(window);
            let share = (!limited).then_some(window.share);
            self.contrast.note(at, share, slack < 0.0);
        }
        if slack < 0.0 {
            self.protect(now, standings[0], &standings, windows);
        } else if let Some((culprit, helped)) = self.unfinished(&standings) {
            self.throttle(now, culprit, standings[0], Some(helped), &windows);
        } else if slack > self.params.slack_ample || self.may_have_erred() {
            self.relax_all(now, slack, &windows);
        } else {
            self.tenants.iter_mut().for_each(|tenant| tenant.quiet = 0);
        }
    }

    /// Of several who are throttled some may be so by mistake, and would be for ever where targets
    /// are kept without ample slack. They are relaxed a little, too: what an innocent one gets back
    /// it keeps, and a culprit is found again and is relaxed the later.
    fn may_have_erred(&self) -> bool {
        let throttled = self.tenants.iter().filter(|one| one.throttle.is_set());
        self.params.mode == Mode::Adaptive && throttled.count() > 1
    }

    fn protect(
        &mut self,
        now: Instant,
        victim: Standing,
        standings: &[Standing],
        windows: Vec<Window>,
    ) {
        if self.params.mode == Mode::Paper {
            self.tenants.iter_mut().for_each(|tenant| tenant.quiet = 0);
        }
        if self.tenants[victim.tenant].throttle.is_set() {
            self.roll_back(now, victim, &windows);
            return;
        }
        if let Some(step) = self.step.take()
            && self.disproved(now, step, victim, &windows)
        {
            return;
        }
        let candidates = self.candidates(victim.tenant, standings, &windows);
        let is_one = |at: usize| candidates.iter().any(|one| one.tenant == at);
        let known = self.known_culprit(victim.tenant, is_one);
        let suspect = self.suspect(&candidates);
        // Of one that an experiment has named it is known by how much less will do.
        if let Some((suspect, more)) = suspect.filter(|one| known.is_none_or(|it| it.0 != one.0)) {
            return self.restrain(now, suspect, more, victim, &windows);
        }
        let told = self.told(victim);
        match candidates[..] {
            [] => self.note(now, victim.tenant, Act::GaveUp, || {
                format!("{told}, and nobody is left to throttle")
            }),
            // The paper throttles a single candidate untested, down to nothing where the harm comes
            // from elsewhere.
            [only] if self.params.mode == Mode::Paper => {
                self.throttle(now, only.tenant, victim, None, &windows);
            }
            _ => match known {
                Some((culprit, helped)) => {
                    self.throttle(now, culprit, victim, Some(helped), &windows);
                }
                None => self.experiment(now, victim.tenant, candidates, windows),
            },
        }
    }

    /// The culprit of a step that was cut short and has not brought the victim as far below its
    /// target as it was to, and by how much a whole step helped.
    fn unfinished(&mut self, standings: &[Standing]) -> Option<(usize, f64)> {
        let (step, worst) = (self.step.take()?, standings.first()?);
        let is_near = worst.tenant == step.victim && worst.slack < 1.0 - AIM;
        let known = self.known_culprit(step.victim, |at| at == step.culprit);
        known.filter(|_| step.is_cut && is_near)
    }

    /// Takes a step back that did not bring what the verdict said, and forgets the verdict. Tells
    /// whether that was so.
    fn disproved(
        &mut self,
        now: Instant,
        step: Step,
        victim: Standing,
        windows: &[Window],
    ) -> bool {
        let mean_ns = delay_ns(&windows[victim.tenant]);
        let fell = 1.0 - mean_ns / step.mean_ns;
        if victim.tenant != step.victim || fell >= HELP_LEAST * step.hoped {
            return false;
        }
        self.verdict = None;
        self.doubts += 1;
        let told = self.told(victim);
        let culprit = &mut self.tenants[step.culprit];
        culprit.throttle = step.from;
        let (to, name) = (step.from.share(), culprit.member.name.clone());
        let (was_us, is_us) = (step.mean_ns / 1e3, mean_ns / 1e3);
        self.note(now, step.culprit, Act::RollBack { to }, || {
            format!("{told}; with less of {name} its mean went from {was_us:.2} to {is_us:.2} us")
        });
        true
    }

    /// The candidate that is there when targets are missed and else is not, if there is one, and
    /// how much more it uses then.
    fn suspect(&self, candidates: &[Candidate]) -> Option<(usize, f64)> {
        let adaptive = self.params.mode == Mode::Adaptive;
        let known = |one: &Candidate| Some((one.tenant, self.contrast.of(one.tenant)?));
        let suspects = candidates.iter().filter(|_| adaptive).filter_map(known);
        suspects.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn any_suspect(&self) -> bool {
        (0..self.tenants.len()).any(|at| self.contrast.of(at).is_some())
    }

    /// Takes half of what it uses from somebody who comes and goes with the harm.
    fn restrain(
        &mut self,
        now: Instant,
        suspect: usize,
        more: f64,
        victim: Standing,
        windows: &[Window],
    ) {
        let used = windows[suspect].share;
        self.tighten(suspect, used, used / 2.0);
        let to = self.tenants[suspect].throttle.share().unwrap_or(1.0);
        let act = Act::Throttle { from: used, to };
        let told = self.told(victim);
        self.note(now, suspect, act, || {
            let more = more * 100.0;
            format!("{told}; when it is, this one uses {more:.1} % more")
        });
    }

    /// A limit that is `step` of the device lower, and given back the later where something was
    /// given back before.
    fn tighten(&mut self, at: usize, used: f64, step: f64) {
        let tenant = &mut self.tenants[at];
        tenant.throttle = tenant.throttle.tightened(used, step);
        if std::mem::take(&mut tenant.was_relaxed) {
            tenant.patience = (tenant.patience * 2).min(PATIENCE_MOST);
        }
        tenant.quiet = 0;
    }

    /// The culprit of a verdict that is fresh enough, and by how much it helped.
    fn known_culprit(&self, victim: usize, may: impl Fn(usize) -> bool) -> Option<(usize, f64)> {
        let (verdict, age) = self.verdict.as_ref()?;
        let culprit = verdict.culprit?;
        let fresh = self.params.mode == Mode::Adaptive && *age <= VERDICT_WINDOWS;
        (fresh && verdict.victim == victim && may(culprit)).then(|| {
            let helped = verdict.helped.iter().find(|one| one.0 == culprit);
            (culprit, helped.map_or(0.0, |one| one.1))
        })
    }

    /// Those of the BE tenants that do the most harm (in the paper: that use most, which looks past
    /// a small writer behind large readers); where there are none that can pay, LC tenants with
    /// ample slack; where there are none, the one with the most.
    fn candidates(
        &self,
        victim: usize,
        standings: &[Standing],
        windows: &[Window],
    ) -> Vec<Candidate> {
        let of = |tenant: usize| {
            let own = &self.tenants[tenant];
            let expense = self.params.step_bytes_per_s * self.steps_of_expense();
            let candidate = Candidate::of(tenant, own.throttle, &windows[tenant], expense);
            candidate.filter(|_| tenant != victim && own.barred == 0)
        };
        let largest = |mut tenants: Vec<Candidate>| {
            let weight = |one: &Candidate| match self.params.mode {
                Mode::Adaptive => windows[one.tenant].harm,
                Mode::Paper => windows[one.tenant].share,
            };
            tenants.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
            tenants.truncate(self.params.candidates);
            tenants
        };
        let best_effort = (0..self.tenants.len()).filter(|&at| self.target(at).is_none());
        let found = largest(best_effort.filter_map(of).collect());
        if !found.is_empty() {
            return found;
        }
        let ample = |one: &&Standing| one.slack > self.params.slack_ample;
        let with_slack = standings.iter().filter(ample);
        let found = largest(with_slack.filter_map(|one| of(one.tenant)).collect());
        if !found.is_empty() {
            return found;
        }
        let most = standings.iter().rev().filter(|one| one.slack > 0.0);
        most.filter_map(|one| of(one.tenant)).take(1).collect()
    }

    fn experiment(
        &mut self,
        now: Instant,
        victim: usize,
        candidates: Vec<Candidate>,
        windows: Vec<Window>,
    ) {
        let samples = match self.params.mode {
            Mode::Paper => u64::MAX,
            Mode::Adaptive => SAMPLES_MEAN << (2 * self.doubts.min(DOUBTS_MOST)),
        };
        let trials = Trials {
            expense_bytes_per_s: self.params.step_bytes_per_s * self.steps_of_expense(),
            samples,
            window_max: self.params.window_max,
            settle: self.params.tick,
            design: self.params.design,
        };
        let experiment = Experiment::new(now, victim, candidates, trials);
        self.experiment = Some((experiment, windows));
    }

    /// The expense of the next experiment, or of the one under way, in steps.
    fn steps_of_expense(&self) -> f64 {
        f64::from(1u32 << self.doubts.min(DOUBLINGS_MOST))
    }

    /// What follows from a verdict: the culprit is throttled.
    fn conclude(&mut self, now: Instant, mut verdict: Verdict, windows: &[Window]) {
        let victim = verdict.victim;
        // From here on the help of one step counts.
        let steps = self.steps_of_expense();
        verdict.helped.iter_mut().for_each(|one| one.1 /= steps);
        let best = verdict.helped.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let named = match self.params.mode {
            // Somebody who was quiet meanwhile would be innocent, and somebody else guilty.
            Mode::Adaptive if self.any_suspect() => None,
            Mode::Adaptive => verdict.culprit,
            Mode::Paper => best.map(|best| best.0),
        };
        let standings = self.standings(windows);
        let standing = standings.iter().find(|one| one.tenant == victim).copied();
        let helped = named.and_then(|named| {
            let found = verdict.helped.iter().find(|one| one.0 == named);
            found.map(|one| (named, one.1))
        });
        let mut hurt_by = verdict.helped.clone();
        hurt_by.sort_by(|a, b| b.1.total_cmp(&a.1));
        self.tenants[victim].hurt_by = hurt_by.iter().map(|&(at, by)| (at, Some(by))).collect();
        self.verdict = Some((verdict, 0));
        match (helped, standing) {
            (Some((culprit, helped)), Some(standing)) => {
                self.doubts = 0;
                self.throttle(now, culprit, standing, Some(helped), windows);
            }
            (None, Some(standing)) => {
                self.doubts += 1;
                let had = self.told(standing);
                self.note(now, victim, Act::GaveUp, || {
                    format!("{had}, but throttling nobody helped more than noise: tries for more")
                });
            }
            _ => {}
        }
    }

    fn throttle(
        &mut self,
        now: Instant,
        culprit: usize,
        victim: Standing,
        helped: Option<f64>,
        windows: &[Window],
    ) {
        let window = &windows[culprit];
        let Some(price) = window.share_of_byte_per_s() else {
            return;
        };
        let expense = self.params.step_bytes_per_s * price;
        let called_for = expense * steps_needed(victim, helped);
        let step = match self.params.mode {
            Mode::Paper => expense,
            Mode::Adaptive => called_for.min(window.share * STEP_PART_MOST),
        };
        if self.params.mode == Mode::Adaptive {
            self.step = helped.map(|helped| Step {
                victim: victim.tenant,
                culprit,
                from: self.tenants[culprit].throttle,
                mean_ns: delay_ns(&windows[victim.tenant]),
                hoped: helped * (step / expense).min(1.0),
                is_cut: step < called_for,
            });
        }
        self.tighten(culprit, window.share, step);
        let to = self.tenants[culprit].throttle.share().unwrap_or(1.0);
        let act = Act::Throttle {
            from: window.share,
            to,
        };
        if helped.is_none() {
            self.tenants[victim.tenant].hurt_by = vec![(culprit, None)];
        }
        let why = match helped {
            None => format!("{}, and nobody else can be throttled", self.told(victim)),
            Some(part) => {
                let (had, name) = (self.told(victim), &self.tenants[culprit].member.name);
                let (percent, others) = (part * 100.0, self.others_helped(culprit));
                format!("{had}; throttling {name} helped by {percent:.0} %{others}")
            }
        };
        self.note(now, culprit, act, || why);
    }

    /// What throttling the others did, by the last verdict.
    fn others_helped(&self, culprit: usize) -> String {
        let Some((verdict, _)) = &self.verdict else {
            return String::new();
        };
        let others = verdict.helped.iter().filter(|one| one.0 != culprit);
        others
            .map(|&(tenant, helped)| {
                let name = &self.tenants[tenant].member.name;
                format!(", {name} by {:.0} %", helped * 100.0)
            })
            .collect()
    }

    /// A throttled LC tenant misses its own target: it gets back a step, and is let alone.
    fn roll_back(&mut self, now: Instant, victim: Standing, windows: &[Window]) {
        let at = victim.tenant;
        let used = windows[at].share;
        let price = windows[at].share_of_byte_per_s().unwrap_or(0.0);
        let step = (self.params.step_bytes_per_s * price).max(0.01);
        let tenant = &mut self.tenants[at];
        tenant.throttle = tenant.throttle.relaxed(used, step);
        tenant.barred = BARRED_WINDOWS;
        let to = tenant.throttle.share();
        let told = self.told(victim);
        self.note(now, at, Act::RollBack { to }, || {
            format!("{told} because it was throttled")
        });
    }

    fn relax_all(&mut self, now: Instant, slack: f64, windows: &[Window]) {
        let paper = self.params.mode == Mode::Paper;
        let steps = match paper {
            true => 1.0,
            false => (slack / self.params.slack_ample - 1.0).clamp(0.25, STEPS_BACK_MOST),
        };
        let expense = self.params.step_bytes_per_s;
        let mut relaxed = false;
        for (at, window) in windows.iter().enumerate() {
            let tenant = &mut self.tenants[at];
            if !tenant.throttle.is_set() {
                continue;
            }
            let present = tenant.is_present(window);
            tenant.quiet += if present { ABSENT_WINDOWS } else { 1 };
            // Without ample slack one at a time, so that it is seen who does the harm.
            let waits = tenant.quiet < tenant.patience * ABSENT_WINDOWS;
            if !paper && (waits || (relaxed && slack <= self.params.slack_ample)) {
                continue;
            }
            relaxed = true;
            tenant.was_relaxed = true;
            tenant.quiet = 0;
            if present {
                // What goes well is tried sooner.
                tenant.patience -= tenant.patience / 8;
            }
            let step = window
                .share_of_byte_per_s()
                .map_or(0.01, |price| expense * price);
            let has = tenant.throttle.share().unwrap_or(1.0);
            let step = match paper {
                true => step,
                false => (steps * step).min(has * steps / STEPS_BACK_MOST),
            };
            tenant.throttle = tenant.throttle.relaxed(window.share, step);
            let to = tenant.throttle.share();
            self.note(now, at, Act::Relax { to }, || {
                format!("the tightest target has {:.0} % slack", slack * 100.0)
            });
        }
        if !self.tenants.iter().any(|tenant| tenant.throttle.is_set()) {
            self.tenants.iter_mut().for_each(|t| t.hurt_by.clear());
        }
    }

    /// How a tenant that misses its target stands, for a reason.
    fn told(&self, standing: Standing) -> String {
        let name = &self.tenants[standing.tenant].member.name;
        let Some(target) = self.target(standing.tenant) else {
            return name.clone();
        };
        let (has, most) = (target.show(standing.has_ns), target.show(target.most_ns()));
        match target {
            Target::OpsPerS(_) => format!("{name} does {has}, below its target of {most}"),
            Target::Mean(_) | Target::Quantile(..) => {
                let (what, slack) = (target.what(), standing.slack);
                let how = if slack < 0.0 { "over" } else { "near" };
                format!("{name} has a {what} of {has}, {how} its target of {most}")
            }
        }
    }

    fn note(&mut self, now: Instant, tenant: usize, act: Act, why: impl FnOnce() -> String) {
        if self.decisions.len() < DECISIONS_MOST {
            self.decisions.push(Decision {
                at: now,
                tenant,
                act,
                why: why(),
            });
        }
    }
}

/// The mean delay of a tenant's requests, or the time for each of its accesses.
fn delay_ns(window: &Window) -> f64 {
    let mean_ns = window.latencies.mean_ns();
    mean_ns.unwrap_or(1e9 / window.ops_per_s.max(1.0))
}

/// How many expenses it takes to bring a victim to its target, by how much one of them helped.
fn steps_needed(victim: Standing, helped: Option<f64>) -> f64 {
    let too_much = 1.0 - AIM * victim.target_ns / victim.has_ns;
    match helped {
        Some(helped) if helped > 0.0 => (too_much / helped).clamp(1.0, STEPS_MOST),
        _ => 1.0,
    }
}

impl Policy for Qos {
    fn name(&self) -> &'static str {
        match self.params.mode {
            Mode::Adaptive => "qos",
            Mode::Paper => "qos (paper)",
        }
    }

    fn period(&self) -> Nanos {
        self.params.tick
    }

    fn measures(&self, tenant: usize) -> bool {
        self.target(tenant).is_some()
    }

    fn spans(&self, _tenant: usize) -> bool {
        true
    }

    fn is_probing(&self) -> bool {
        self.experiment.is_some()
    }

    fn standing(&self, tenant: usize) -> crate::Standing {
        let target = self.target(tenant);
        let tenant = &self.tenants[tenant];
        crate::Standing {
            limit: tenant.member.bounds.max,
            throttle: tenant.throttle.share(),
            best_effort: target.is_none(),
            target,
            had_ns: tenant.stood.map(|stood| stood.has_ns),
            slack: tenant.stood.map(|stood| stood.slack),
            hurt_by: tenant.hurt_by.clone(),
            ..crate::Standing::default()
        }
    }

    fn step(&mut self, now: Instant, seen: &[Seen], want: &mut [Want]) {
        // A clock that went back: what was begun would not end until it has caught up.
        if self.marks.first().is_some_and(|mark| now < mark.at()) {
            self.experiment = None;
            self.begin_window(now, seen);
        }
        match self.experiment.take() {
            Some((mut experiment, windows)) => match experiment.step(now, seen) {
                Some(verdict) => {
                    self.conclude(now, verdict, &windows);
                    self.begin_window(now, seen);
                }
                None => self.experiment = Some((experiment, windows)),
            },
            None => {
                if let Some(windows) = self.windows(now, seen) {
                    self.judge(now, windows);
                }
            }
        }
        for (want, tenant) in want.iter_mut().zip(&self.tenants) {
            *want = tenant.throttle.want();
        }
        if let Some((experiment, _)) = &self.experiment {
            experiment.apply(want);
        }
    }

    fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::{DevicePs, LatencyCounter, Rng};

    const MS: Nanos = Nanos::from_millis(1);
    /// What a whole device of standard operations would do.
    const STANDARD_HURTS_NS: f64 = 1000.0;

    /// A device as a formula: what each tenant asks of it, as a share, and by how many nanoseconds
    /// a whole device of it delays each LC tenant.
    struct Plant {
        asks: Vec<f64>,
        hurts_ns: Vec<f64>,
        base_ns: f64,
        counters: Vec<LatencyCounter>,
        seen: Vec<Seen>,
        want: Vec<Want>,
        now: Instant,
        rng: Rng,
    }

    impl Plant {
        fn new(asks: &[f64], hurts_ns: &[f64], seed: u64) -> Plant {
            let tenants = asks.len();
            Plant {
                asks: asks.to_vec(),
                hurts_ns: hurts_ns.to_vec(),
                base_ns: 1000.0,
                counters: (0..tenants).map(|_| LatencyCounter::default()).collect(),
                seen: vec![Seen::default(); tenants],
                want: vec![Want::default(); tenants],
                now: Instant(0),
                rng: Rng::with_seed(seed),
            }
        }

        fn gets(&self, tenant: usize) -> f64 {
            let rate = self.want[tenant].rate;
            self.asks[tenant].min(rate.map_or(1.0, DevicePs::as_secs_f64))
        }

        /// One millisecond. A tenant that may not use what it asks for waits as long again.
        fn run(&mut self, qos: &mut Qos) {
            let tenants = self.asks.len();
            let harm: Vec<f64> = (0..tenants)
                .map(|at| self.gets(at) * self.hurts_ns[at])
                .collect();
            for at in 0..tenants {
                let gets = self.gets(at);
                let others: f64 = harm.iter().sum::<f64>() - harm[at];
                let mean_ns = (self.base_ns + others) * self.asks[at] / gets;
                for _ in 0..500 {
                    let ns = mean_ns * (0.5 + self.rng.f64());
                    self.counters[at].add(Nanos(ns as u64), 1);
                }
                let seen = &mut self.seen[at];
                seen.used = DevicePs(seen.used.0 + (gets * 1e9) as u64);
                let price = self.hurts_ns[at] / STANDARD_HURTS_NS;
                seen.harm = DevicePs(seen.harm.0 + (gets * price * 1e9) as u64);
                // A whole device moves 10 GB/s, whoever uses it.
                seen.bytes += (gets * 1e7) as u64;
                seen.ops += 500;
                seen.latencies.clear();
                self.counters[at].add_to(&mut seen.latencies);
            }
            self.now += MS;
            qos.step(self.now, &self.seen, &mut self.want);
        }
    }

    fn qos(targets_ns: &[Option<u64>], mode: Mode) -> Qos {
        let member = |(at, &target): (usize, &Option<u64>)| Member {
            name: format!("t{at}"),
            class: target.map_or(Class::BestEffort, |ns| {
                Class::Critical(Target::Mean(Nanos(ns)))
            }),
            bounds: Bounds::NONE,
        };
        let params = Params {
            mode,
            window_max: Nanos::from_millis(20),
            tick: MS,
            ..Params::default()
        };
        Qos::new(targets_ns.iter().enumerate().map(member).collect(), params)
    }

    fn throttled(qos: &Qos) -> Vec<bool> {
        let tenants = qos.tenants.iter();
        tenants.map(|tenant| tenant.throttle.is_set()).collect()
    }

    #[test]
    fn the_small_tenant_that_does_the_harm_is_throttled_and_not_the_large_one() {
        let both = [Design::Sequential, Design::LockIn];
        let modes = [Mode::Adaptive, Mode::Paper];
        for (mode, design) in modes
            .into_iter()
            .flat_map(|mode| both.map(|design| (mode, design)))
        {
            let mut plant = Plant::new(&[0.1, 0.5, 0.2], &[0.0, 100.0, 5000.0], 1);
            let mut qos = qos(&[Some(1500), None, None], mode);
            qos.params.design = design;
            (0..1000).for_each(|_| plant.run(&mut qos));
            assert_eq!(
                throttled(&qos),
                [false, false, true],
                "{mode:?}, {design:?}"
            );
            let harm: f64 = (1..3).map(|at| plant.gets(at) * plant.hurts_ns[at]).sum();
            assert!(
                plant.base_ns + harm <= 1500.0 * 1.02,
                "{mode:?}, {design:?}: {harm} ns of harm"
            );
            assert!(
                plant.gets(2) > 0.02,
                "{mode:?}, {design:?}: not further than it takes"
            );
        }
    }

    /// Three readers use more of the device than the culprit, which does most of the harm: it is a
    /// candidate by its harm, and would not be one by its use.
    #[test]
    fn a_small_culprit_behind_large_users_is_found_by_its_harm() {
        let found = |mode| {
            let hurts_ns = [0.0, 100.0, 100.0, 100.0, 8000.0];
            let mut plant = Plant::new(&[0.1, 0.2, 0.2, 0.2, 0.1], &hurts_ns, 7);
            let mut qos = qos(&[Some(1500), None, None, None, None], mode);
            (0..1000).for_each(|_| plant.run(&mut qos));
            throttled(&qos)
        };
        assert_eq!(found(Mode::Adaptive), [false, false, false, false, true]);
        assert!(!found(Mode::Paper)[4], "it uses least");
    }

    #[test]
    fn a_step_too_small_to_tell_grows_until_it_does() {
        for seed in 1..=5 {
            let mut plant = Plant::new(&[0.1, 0.5, 0.2], &[0.0, 100.0, 5000.0], seed);
            let mut qos = qos(&[Some(1500), None, None], Mode::Adaptive);
            // A five-hundredth of the device: 10 of 2,050 ns, and 20 ms of samples vary by more.
            qos.params.step_bytes_per_s = 20e6;
            (0..3000).for_each(|_| plant.run(&mut qos));
            assert_eq!(throttled(&qos), [false, false, true], "seed {seed}");
            let harm: f64 = (1..3).map(|at| plant.gets(at) * plant.hurts_ns[at]).sum();
            assert!(plant.base_ns + harm <= 1500.0 * 1.02, "{harm} ns of harm");
        }
    }

    #[test]
    fn throttles_are_taken_back_when_the_victim_rests() {
        let mut plant = Plant::new(&[0.1, 0.5, 0.2], &[0.0, 100.0, 5000.0], 2);
        let mut qos = qos(&[Some(1500), None, None], Mode::Adaptive);
        (0..500).for_each(|_| plant.run(&mut qos));
        assert_eq!(throttled(&qos), [false, false, true]);
        plant.hurts_ns[2] = 0.0;
        (0..2000).for_each(|_| plant.run(&mut qos));
        assert_eq!(throttled(&qos), [false; 3]);
    }

    #[test]
    fn a_victim_that_falls_silent_frees_everybody() {
        let mut plant = Plant::new(&[0.1, 0.5, 0.2], &[0.0, 100.0, 5000.0], 6);
        let mut qos = qos(&[Some(1500), None, None], Mode::Adaptive);
        (0..500).for_each(|_| plant.run(&mut qos));
        assert_eq!(throttled(&qos), [false, false, true]);
        for ms in 0..3000 {
            // Nothing is counted any more: the clock alone goes on.
            let now = plant.now + Nanos::from_millis(ms);
            qos.step(now, &plant.seen, &mut plant.want);
        }
        assert_eq!(throttled(&qos), [false; 3]);
    }

    #[test]
    fn where_nobody_does_the_harm_nobody_is_throttled() {
        let mut plant = Plant::new(&[0.1, 0.3, 0.3], &[0.0, 0.0, 0.0], 3);
        plant.base_ns = 2000.0;
        let mut qos = qos(&[Some(1500), None, None], Mode::Adaptive);
        (0..2000).for_each(|_| plant.run(&mut qos));
        assert_eq!(throttled(&qos), [false; 3]);
        let decisions = qos.take_decisions();
        assert!(decisions.iter().all(|decision| decision.act == Act::GaveUp));
        assert!(!decisions.is_empty());
    }

    /// What makes it slow need not be on the device: its own load, or a CPU that others use.
    #[test]
    fn the_only_neighbour_is_not_throttled_for_what_it_does_not_do() {
        let mut plant = Plant::new(&[0.1, 0.5], &[0.0, 0.0], 9);
        plant.base_ns = 2000.0;
        let mut qos = qos(&[Some(1500), None], Mode::Adaptive);
        (0..2000).for_each(|_| plant.run(&mut qos));
        assert_eq!(throttled(&qos), [false; 2]);
        plant.hurts_ns[1] = 4000.0;
        plant.base_ns = 1000.0;
        (0..2000).for_each(|_| plant.run(&mut qos));
        assert_eq!(throttled(&qos), [false, true]);
        assert!(
            plant.gets(1) > 0.05,
            "{}: not further than it takes",
            plant.gets(1)
        );
        assert!(plant.base_ns + plant.gets(1) * 4000.0 <= 1500.0 * 1.02);
    }

    /// The harm moves from a neighbour to where no throttle reaches, just when it was named.
    #[test]
    fn a_step_that_does_not_help_is_taken_back_with_its_verdict() {
        let mut plant = Plant::new(&[0.1, 0.5, 0.2], &[0.0, 100.0, 20_000.0], 11);
        let mut qos = qos(&[Some(1500), None, None], Mode::Adaptive);
        while !throttled(&qos)[2] {
            plant.run(&mut qos);
        }
        assert!(plant.gets(2) >= 0.1 - 1e-9, "half of what it used at most");
        plant.hurts_ns[2] = 0.0;
        plant.base_ns = 5000.0;
        (0..2000).for_each(|_| plant.run(&mut qos));
        assert_eq!(throttled(&qos), [false; 3], "{:?}", qos.take_decisions());
        let decisions = qos.take_decisions();
        let back = decisions
            .iter()
            .find(|one| one.act == Act::RollBack { to: None });
        let why = &back.expect("the step was taken back").why;
        assert!(why.contains("with less of t2 its mean went from"), "{why}");
        let throttles = decisions
            .iter()
            .filter(|one| matches!(one.act, Act::Throttle { .. }));
        assert_eq!(throttles.count(), 1, "{decisions:?}");
    }

    #[test]
    fn steps_take_and_give_parts_of_what_somebody_has() {
        // It does much harm with little, and uses less than a step.
        let mut plant = Plant::new(&[0.1, 0.5, 0.04], &[0.0, 0.0, 1e5], 12);
        let mut qos = qos(&[Some(1500), None, None], Mode::Adaptive);
        let (mut down, mut up) = (0, 0);
        let mut has = 0.04;
        for ms in 0..6000 {
            plant.hurts_ns[2] = if ms < 2000 { 1e5 } else { 0.0 };
            plant.run(&mut qos);
            for decision in qos.take_decisions() {
                match decision.act {
                    Act::Throttle { from, to } => {
                        assert!(decision.tenant == 2 && to >= from * 0.499, "{decision:?}");
                        (down, has) = (down + 1, to);
                    }
                    Act::Relax { to: Some(to) } => {
                        assert!(to <= has * 2.001, "{decision:?}, had {has}");
                        (up, has) = (up + 1, to);
                    }
                    _ => {}
                }
            }
        }
        assert!(down > 2 && up > 2, "{down} {up}");
        assert_eq!(throttled(&qos), [false; 3], "nobody does harm any more");
    }

    #[test]
    fn a_critical_tenant_that_was_throttled_gets_it_back_when_it_misses_its_own_target() {
        // Both are critical and hurt each other; only the first is over its target.
        let mut plant = Plant::new(&[0.2, 0.4], &[0.0, 3000.0], 4);
        let mut qos = qos(&[Some(2000), Some(1300)], Mode::Adaptive);
        let mut rolled_back = 0;
        for _ in 0..1000 {
            plant.run(&mut qos);
            let decisions = qos.take_decisions();
            let of = |decision: &&Decision| matches!(decision.act, Act::RollBack { .. });
            rolled_back += decisions.iter().filter(of).count();
        }
        assert!(
            rolled_back > 0,
            "throttling it makes it miss its own target"
        );
        assert!(
            plant.gets(1) > 0.2,
            "{} of the 0.4 that it asks",
            plant.gets(1)
        );
    }

    #[test]
    fn how_a_tenant_stands_is_told_with_who_hurts_it() {
        let mut plant = Plant::new(&[0.1, 0.5, 0.2], &[0.0, 100.0, 5000.0], 8);
        let mut qos = qos(&[Some(1500), None, None], Mode::Adaptive);
        plant.run(&mut qos);
        assert_eq!(qos.standing(0).slack, None, "nothing was judged yet");
        (0..60).for_each(|_| plant.run(&mut qos));
        let stands = qos.standing(0);
        let (had_ns, slack) = (
            stands.had_ns.expect("judged"),
            stands.slack.expect("judged"),
        );
        assert!((slack - (1.0 - had_ns / 1500.0)).abs() < 1e-9);
        assert_eq!(stands.target, Some(Target::Mean(Nanos(1500))));
        let [(worst, Some(by)), (_, Some(other))] = stands.hurt_by[..] else {
            panic!("{:?}", stands.hurt_by);
        };
        assert!(worst == 2 && by > other, "{:?}", stands.hurt_by);
        let other = qos.standing(2);
        assert!(other.best_effort && other.target.is_none() && other.hurt_by.is_empty());
        plant.hurts_ns[2] = 0.0;
        (0..2000).for_each(|_| plant.run(&mut qos));
        assert_eq!(qos.standing(0).hurt_by, [], "nobody is throttled for it");
        assert!(qos.standing(0).slack > Some(0.0));
    }

    #[test]
    fn targets_read_well() {
        let shown = |target: Target| (target.to_string(), target.show(2e6));
        let two = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let mean = Target::Mean(Nanos(1500));
        assert_eq!(shown(mean), two("mean 1.50 us", "2000.00 us"));
        let tail = Target::Quantile(0.999, Nanos::from_millis(1));
        assert_eq!(shown(tail), two("p99.9 1000.00 us", "2000.00 us"));
        let ops = Target::OpsPerS(20_000.0);
        assert_eq!(shown(ops), two("20000 accesses/s", "500 accesses/s"));
    }

    #[test]
    fn a_reason_has_the_figures() {
        let mut plant = Plant::new(&[0.1, 0.5, 0.2], &[0.0, 100.0, 5000.0], 5);
        let mut qos = qos(&[Some(1500), None, None], Mode::Adaptive);
        (0..500).for_each(|_| plant.run(&mut qos));
        let decisions = qos.take_decisions();
        let first = decisions
            .iter()
            .find(|one| matches!(one.act, Act::Throttle { .. }));
        let why = &first.expect("somebody was throttled").why;
        assert!(why.contains("t0 has a mean of"), "{why}");
        assert!(why.contains("over its target of 1.50 us"), "{why}");
        assert!(why.contains("throttling t2 helped by"), "{why}");
        assert!(why.contains("helped by") && why.contains("t1 by"), "{why}");
    }
}
