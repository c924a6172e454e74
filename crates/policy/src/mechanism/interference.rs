//! Interference analysis (NyxCache section 3.3): which of some candidates hurts a victim most, by
//! experiment. Each candidate in turn is throttled by the same expense, the victim is measured, and
//! the throttle is taken back; no model of the device is assumed.
//!
//! Beyond the paper: the victim is measured without any throttle before, between and after the
//! trials, so that a change of its load does not look like help; a trial that could not take the
//! whole expense from its candidate is scaled; what a trial withheld may come back when it ends,
//! and until its candidate has caught up nothing is measured; and nobody is named where who helped
//! most helped no more than the noise of two means. Judged is the mean delay: one window's P99
//! misjudges.
//!
//! Two designs: one candidate after another, as in the paper, or all at once
//! ([`Design::LockIn`]): each is throttled by its own pattern over a row of runs, and the victim's
//! delay is compared along each pattern. Then every measurement says something about everybody, so
//! that the same samples say more (docs/decisions/0007-lock-in.md).
//!
//! What it never does: change the throttles of the policy that runs it: it says what is to hold
//! during a trial, and whoever stops stepping it has restored everything.

use crate::mechanism::throttle::Throttle;
use crate::mechanism::window::{Mark, Window};
use crate::{Seen, Want};
use nyx_base::{Instant, Nanos};

/// How much worse than independent samples the victim's are: they queue behind each other.
const CORRELATION: f64 = 3.0;
/// The least part of the expense from which the whole is concluded: who pays nearly nothing says
/// nearly nothing about what it would do for more.
const PAID_MIN: f64 = 0.25;
/// A difference counts from so many standard deviations on.
const SIGNIFICANT: f64 = 3.0;
/// Who uses at most so many times what it used before a trial has caught up with what the trial
/// withheld.
const CAUGHT_UP: f64 = 1.1;

/// In lock-in candidate `i` is throttled in a run whose number has an odd count of these bits, so
/// that with each number below two to the power of the candidates each combination occurs once. For
/// three, no pattern is a slow one: each is orthogonal to a linear drift by itself.
const PATTERNS: [u32; 3] = [0b110, 0b101, 0b111];

/// Who is throttled when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Design {
    /// One after another, and nobody before, between and after.
    #[default]
    Sequential,
    /// Two or three candidates at once, in all combinations and then in the same ones backwards:
    /// what two throttles do together is not taken for what a third does, a linear drift drops out,
    /// and what the same throttles measured twice differ by is noise. It takes as many samples as
    /// one after another does, but throttles each candidate half of the time. One candidate, or
    /// more than three, are tried one after another.
    LockIn,
}

/// How trials are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trials {
    /// What each candidate pays, in bytes per second (`ExperimentStep`).
    pub expense_bytes_per_s: f64,
    /// Samples of the victim that a measurement needs; in lock-in its runs together need as many as
    /// all measurements of the sequential design would.
    pub samples: u64,
    /// A measurement is at most so long, even if there are fewer; in lock-in the same holds.
    pub window_max: Nanos,
    /// Left out after each change.
    pub settle: Nanos,
    /// Who is throttled when.
    pub design: Design,
}

/// An experiment that is under way.
#[derive(Debug)]
pub struct Experiment {
    trials: Trials,
    victim: usize,
    candidates: Vec<Candidate>,
    /// Which of the candidates each run throttles.
    runs: Vec<Vec<usize>>,
    /// The victim's mean delays in the runs that are done.
    delays: Vec<Delay>,
    settled_at: Instant,
    mark: Option<Mark>,
    catching_up: Vec<CatchingUp>,
}

/// After a trial: its candidate, and until when it is waited for at most.
#[derive(Debug)]
struct CatchingUp {
    candidate: Candidate,
    mark: Mark,
    ends: Instant,
}

/// Who may be the culprit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its place.
    pub tenant: usize,
    /// Its throttle during its trial.
    pub trial: Throttle,
    /// The share of the device that it used before.
    pub used: f64,
    /// What the trial takes from it, as a part of the expense: it may have had less.
    pub paid: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Delay {
    mean_ns: f64,
    error_ns: f64,
}

/// What an experiment found.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The victim.
    pub victim: usize,
    /// By which part of its mean delay the victim fared better when the candidate paid the
    /// expense, for each candidate in the order given; negative where it fared worse.
    pub helped: Vec<(usize, f64)>,
    /// Who helped most, if that was more than noise.
    pub culprit: Option<usize>,
}

impl Design {
    /// What it comes to for so many candidates.
    fn of(self, candidates: usize) -> Design {
        match candidates {
            2..=3 => self,
            _ => Design::Sequential,
        }
    }

    /// Which of so many candidates each run throttles.
    fn runs(self, candidates: usize) -> Vec<Vec<usize>> {
        match self.of(candidates) {
            Design::Sequential => {
                let trial = |run: usize| (run % 2 == 1).then_some(run / 2);
                let all = 0..=2 * candidates;
                all.map(|run| trial(run).into_iter().collect()).collect()
            }
            Design::LockIn => {
                let is_on = |run: u32, at: usize| (run & PATTERNS[at]).count_ones() % 2 == 1;
                let run = |run| (0..candidates).filter(|&at| is_on(run, at)).collect();
                let all = 0..1 << candidates;
                all.clone().chain(all.rev()).map(run).collect()
            }
        }
    }
}

impl Candidate {
    /// A candidate that did `window` under `now`, and what the expense means for it. None where it
    /// moved nothing that could be taken away.
    pub fn of(
        tenant: usize,
        now: Throttle,
        window: &Window,
        expense_bytes_per_s: f64,
    ) -> Option<Candidate> {
        let expense = expense_bytes_per_s * window.share_of_byte_per_s()?;
        let trial = now.tightened(window.share, expense);
        let paid = (window.share - trial.share()?) / expense;
        (paid > 0.0).then_some(Candidate {
            tenant,
            trial,
            used: window.share,
            paid: paid.min(1.0),
        })
    }
}

impl Experiment {
    /// Tries some candidates, at least one, on behalf of `victim`.
    pub fn new(
        now: Instant,
        victim: usize,
        candidates: Vec<Candidate>,
        trials: Trials,
    ) -> Experiment {
        let runs = trials.design.runs(candidates.len());
        // Of what all measurements of the sequential design have together, each run has its part.
        let part = |of: u64| match trials.design.of(candidates.len()) {
            Design::Sequential => of,
            Design::LockIn => (of / runs.len() as u64) * (2 * candidates.len() as u64 + 1),
        };
        let trials = Trials {
            samples: part(trials.samples),
            window_max: Nanos(part(trials.window_max.0)),
            ..trials
        };
        Experiment {
            trials,
            victim,
            candidates,
            runs,
            delays: Vec::new(),
            settled_at: now,
            mark: None,
            catching_up: Vec::new(),
        }
    }

    /// The candidates that are throttled in the run under way.
    fn throttled(&self) -> &[usize] {
        self.runs.get(self.delays.len()).map_or(&[], Vec::as_slice)
    }

    /// Puts the run under way into what is wanted.
    pub fn apply(&self, want: &mut [Want]) {
        for &at in self.throttled() {
            let candidate = &self.candidates[at];
            want[candidate.tenant] = candidate.trial.want();
        }
    }

    /// One step; the verdict when all runs are done.
    pub fn step(&mut self, now: Instant, seen: &[Seen]) -> Option<Verdict> {
        let victim = &seen[self.victim];
        if now < self.settled_at {
            return None;
        }
        self.catching_up.retain_mut(|one| !one.is_done(now, seen));
        if !self.catching_up.is_empty() {
            return None;
        }
        let mark = self.mark.get_or_insert_with(|| Mark::new(now, victim));
        let window = mark.window(now, victim);
        let enough = window.latencies.count() >= self.trials.samples;
        if !enough && window.length < self.trials.window_max {
            return None;
        }
        let done = self.throttled().to_vec();
        self.delays.push(Delay::of(&window));
        let released = done.iter().filter(|at| !self.throttled().contains(at));
        let catches_up = |&at: &usize| CatchingUp {
            candidate: self.candidates[at],
            mark: Mark::new(now, &seen[self.candidates[at].tenant]),
            ends: now + self.trials.window_max,
        };
        self.catching_up = released.map(catches_up).collect();
        self.mark = None;
        self.settled_at = now + self.trials.settle;
        (self.delays.len() == self.runs.len()).then(|| self.verdict())
    }

    /// By which part of the victim's mean delay each candidate's trial helped, and whether that is
    /// more than noise.
    fn help(&self) -> Vec<(f64, bool)> {
        match self.trials.design.of(self.candidates.len()) {
            Design::Sequential => {
                let around = self.delays.windows(3).step_by(2);
                around.map(|d| d[1].against(d[0], d[2])).collect()
            }
            Design::LockIn => self.along_patterns(),
        }
    }

    /// The same in lock-in: the runs with a candidate's throttle against those without.
    fn along_patterns(&self) -> Vec<(f64, bool)> {
        let n = self.delays.len() as f64;
        let mean_ns = self.delays.iter().map(|one| one.mean_ns).sum::<f64>() / n;
        let less_ns = |at: usize| {
            let all = self.runs.iter().zip(&self.delays);
            let sign = |run: &[usize]| if run.contains(&at) { -1.0 } else { 1.0 };
            all.map(|(run, delay)| sign(run) * delay.mean_ns)
                .sum::<f64>()
                * 2.0
                / n
        };
        let less_ns: Vec<f64> = (0..self.candidates.len()).map(less_ns).collect();
        let squares: f64 = self.delays.iter().map(|one| one.error_ns.powi(2)).sum();
        // Of a difference between two halves of the runs.
        let error_ns = (squares / n).sqrt().max(self.repeated_ns()) * 2.0 / n.sqrt();
        // On average each one's throttle helps half of the time.
        let without_ns = mean_ns + less_ns.iter().sum::<f64>() / 2.0;
        let part = |less_ns: f64| match without_ns > 0.0 {
            true => less_ns / without_ns,
            false => 0.0,
        };
        let found = less_ns.into_iter();
        found
            .map(|less_ns| (part(less_ns), less_ns.abs() > SIGNIFICANT * error_ns))
            .collect()
    }

    /// The standard error of one run of lock-in, from how much two runs with the same throttles
    /// differ beside what a linear drift explains.
    fn repeated_ns(&self) -> f64 {
        let half = self.delays.len() / 2;
        let (forth, back) = self.delays.split_at(half);
        let differ_ns = back
            .iter()
            .rev()
            .zip(forth)
            .map(|(b, f)| b.mean_ns - f.mean_ns);
        // Two runs in the middle are one apart, the first and the last are all but one.
        let apart = (0..half).map(|at| (2 * (half - at) - 1) as f64);
        let pairs: Vec<(f64, f64)> = apart.zip(differ_ns).collect();
        let drift_ns = pairs.iter().map(|(apart, ns)| apart * ns).sum::<f64>()
            / pairs.iter().map(|(apart, _)| apart * apart).sum::<f64>();
        let left = pairs
            .iter()
            .map(|(apart, ns)| (ns - drift_ns * apart).powi(2));
        // A difference has the noise of two runs; one pair's worth went into the drift.
        (left.sum::<f64>() / (half - 1) as f64 / 2.0).sqrt()
    }

    fn verdict(&self) -> Verdict {
        let tried = self.candidates.iter().zip(self.help());
        let found: Vec<(usize, f64, bool)> = tried
            .map(|(one, (helped, is_sure))| (one.tenant, helped / one.paid.max(PAID_MIN), is_sure))
            .collect();
        // Where the one that seems to have helped most is not sure, nobody is.
        let most = found.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let most = most.filter(|&&(_, helped, is_sure)| is_sure && helped > 0.0);
        Verdict {
            victim: self.victim,
            culprit: most.map(|&(tenant, ..)| tenant),
            helped: found
                .iter()
                .map(|&(tenant, helped, _)| (tenant, helped))
                .collect(),
        }
    }
}

impl CatchingUp {
    /// Whether the candidate uses again what it used before the trial; or nobody waits any longer.
    fn is_done(&mut self, now: Instant, seen: &[Seen]) -> bool {
        let seen = &seen[self.candidate.tenant];
        let share = self.mark.window(now, seen).share;
        self.mark = Mark::new(now, seen);
        share <= CAUGHT_UP * self.candidate.used || now >= self.ends
    }
}

impl Delay {
    /// The victim's mean latency; where none is measured, the time for each of its accesses.
    fn of(window: &Window) -> Delay {
        match window.latencies.mean_ns() {
            Some(mean_ns) => Delay {
                mean_ns,
                error_ns: CORRELATION * window.latencies.standard_error_ns().unwrap_or(mean_ns),
            },
            None => {
                let mean_ns = 1e9 / window.ops_per_s.max(1.0);
                let ops = window.ops_per_s * window.length.0 as f64 / 1e9;
                Delay {
                    mean_ns,
                    error_ns: CORRELATION * mean_ns / ops.max(1.0).sqrt(),
                }
            }
        }
    }

    /// By which part it is less than two delays around it, and whether that is more than noise.
    fn against(self, before: Delay, after: Delay) -> (f64, bool) {
        let mean_ns = (before.mean_ns + after.mean_ns) / 2.0;
        let around_ns = before.error_ns.hypot(after.error_ns) / 2.0;
        // Two measurements of the same thing that differ more than they should: the load moved.
        let drift_ns = (before.mean_ns - after.mean_ns).abs() / 2.0;
        let error_ns = self.error_ns.hypot(around_ns).max(drift_ns / SIGNIFICANT);
        let less_ns = mean_ns - self.mean_ns;
        let part = if mean_ns > 0.0 {
            less_ns / mean_ns
        } else {
            0.0
        };
        (part, less_ns.abs() > SIGNIFICANT * error_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::{DevicePs, LatencyCounter, Rng};

    const TRIALS: Trials = Trials {
        expense_bytes_per_s: 100.0,
        samples: 1000,
        window_max: Nanos::from_millis(500),
        settle: Nanos::from_millis(1),
        design: Design::Sequential,
    };
    const MS: Nanos = Nanos::from_millis(1);

    fn candidate(tenant: usize) -> Candidate {
        Candidate {
            tenant,
            trial: Throttle::at(0.1),
            used: 0.2,
            paid: 1.0,
        }
    }

    /// Runs an experiment on a victim whose mean delay is what `delay_ns` says of who is throttled,
    /// by tenant from 1 on, and of the time.
    fn run(
        trials: Trials,
        tried: usize,
        delay_ns: impl Fn(&[bool], u64) -> f64,
        seed: u64,
    ) -> Verdict {
        let mut rng = Rng::with_seed(seed);
        let counter = LatencyCounter::default();
        let mut seen = vec![Seen::default(); tried + 1];
        let candidates = (1..=tried).map(candidate).collect();
        let mut experiment = Experiment::new(Instant(0), 0, candidates, trials);
        let mut now = Instant(0);
        for ms in 0.. {
            let mut want = vec![Want::default(); tried + 1];
            experiment.apply(&mut want);
            let throttled: Vec<bool> = want.iter().map(|one| *one != Want::default()).collect();
            for _ in 0..200 {
                let ns = -(1.0 - rng.f64()).ln() * delay_ns(&throttled, ms);
                counter.add(Nanos(ns as u64), 1);
            }
            seen[0].latencies.clear();
            counter.add_to(&mut seen[0].latencies);
            now += MS;
            if let Some(verdict) = experiment.step(now, &seen) {
                return verdict;
            }
        }
        unreachable!("an experiment ends")
    }

    fn with(design: Design) -> Trials {
        Trials { design, ..TRIALS }
    }

    #[test]
    fn the_one_who_helps_is_named() {
        for (design, tried) in [
            (Design::Sequential, 2),
            (Design::LockIn, 2),
            (Design::LockIn, 3),
        ] {
            for seed in 0..20 {
                let helps = |throttled: &[bool], _| if throttled[2] { 600.0 } else { 1000.0 };
                let verdict = run(with(design), tried, helps, seed);
                assert_eq!(verdict.culprit, Some(2), "{verdict:?}");
                assert!((verdict.helped[1].1 - 0.4).abs() < 0.15, "{verdict:?}");
            }
        }
    }

    #[test]
    fn a_placebo_names_nobody() {
        for design in [Design::Sequential, Design::LockIn] {
            let named = |&seed: &u64| run(with(design), 3, |_, _| 1000.0, seed).culprit.is_some();
            assert_eq!((0..200).filter(named).count(), 0, "{design:?}");
        }
    }

    #[test]
    fn a_load_that_falls_meanwhile_is_not_taken_for_help() {
        let falls = |_: &[bool], ms| f64::max(2000.0 - 30.0 * ms as f64, 100.0);
        for (design, tried) in [
            (Design::Sequential, 2),
            (Design::LockIn, 2),
            (Design::LockIn, 3),
        ] {
            let named = |&seed: &u64| run(with(design), tried, falls, seed).culprit.is_some();
            assert!((0..50).filter(named).count() <= 1, "{design:?} of {tried}");
        }
    }

    #[test]
    fn lock_in_is_sure_where_the_same_samples_in_turn_are_not() {
        let helps = |throttled: &[bool], _| if throttled[1] { 720.0 } else { 1000.0 };
        let [in_turn, at_once] = [Design::Sequential, Design::LockIn].map(|design| {
            let named = |&seed: &u64| run(with(design), 3, helps, seed).culprit == Some(1);
            (0..100).filter(named).count()
        });
        assert!(
            in_turn < 50 && at_once > 90,
            "{in_turn} and {at_once} of 100"
        );
    }

    /// A write buffer overflows where both of two write and neither is throttled.
    #[test]
    fn what_two_do_together_is_not_put_on_a_third() {
        for (design, seed) in (0..20).map(|seed| (Design::LockIn, seed)) {
            let either = |throttled: &[bool], _| match throttled[1] || throttled[2] {
                true => 500.0,
                false => 1500.0,
            };
            let verdict = run(with(design), 3, either, seed);
            assert!(matches!(verdict.culprit, Some(1 | 2)), "{verdict:?}");
            assert!(verdict.helped[2].1.abs() < 0.2, "{verdict:?}");
        }
    }

    #[test]
    fn patterns_tell_candidates_apart() {
        for tried in [2, 3] {
            let runs = Design::LockIn.runs(tried);
            for throttled in &runs {
                let times = runs.iter().filter(|&run| run == throttled).count();
                assert_eq!(times, 2, "{throttled:?} in {runs:?}");
            }
            assert_eq!(runs.len(), 2 << tried);
            for at in 0..tried {
                let sign = |run: &[usize]| if run.contains(&at) { -1 } else { 1 };
                let drift = runs.iter().zip(0..).map(|(run, time)| sign(run) * time);
                assert_eq!(drift.sum::<i32>(), 0, "{at} in {runs:?}");
            }
        }
    }

    #[test]
    fn one_or_many_candidates_are_tried_in_turn() {
        for tried in [1, 4, 100] {
            let in_turn = Design::Sequential.runs(tried);
            assert_eq!(Design::LockIn.runs(tried), in_turn);
            assert_eq!(in_turn.len(), 2 * tried + 1);
        }
        let in_turn: [&[usize]; 5] = [&[], &[0], &[], &[1], &[]];
        assert_eq!(Design::Sequential.runs(2), in_turn);
    }

    /// Both candidates do later what they may not do during their trial. It is the first that hurts
    /// the victim; but while the second catches up it hurts more than the first ever does.
    #[test]
    fn who_catches_up_after_its_trial_is_not_taken_for_the_culprit() {
        for design in [Design::Sequential, Design::LockIn] {
            let verdict = run_with_debts(design);
            assert_eq!(verdict.culprit, Some(1), "{verdict:?}");
            assert!(verdict.helped[1].1.abs() < 0.1, "{verdict:?}");
        }
    }

    fn run_with_debts(design: Design) -> Verdict {
        let mut rng = Rng::with_seed(1);
        let counter = LatencyCounter::default();
        let mut seen = [Seen::default(), Seen::default(), Seen::default()];
        let candidates = vec![candidate(1), candidate(2)];
        let mut experiment = Experiment::new(Instant(0), 0, candidates, with(design));
        let (mut now, mut owed) = (Instant(0), [0.0; 3]);
        loop {
            let mut want = [Want::default(); 3];
            experiment.apply(&mut want);
            let mut delay_ns = 1000.0;
            for at in 1..3 {
                let throttled = want[at] != Want::default();
                let share = match (throttled, owed[at] > 0.0) {
                    (true, _) => 0.1,
                    (false, true) => 0.3,
                    (false, false) => 0.2,
                };
                owed[at] += 0.2 - share;
                seen[at].used = DevicePs(seen[at].used.0 + (share * 1e9) as u64);
                let hurts_ns = [0.0, 3000.0, 30_000.0][at];
                delay_ns += hurts_ns * f64::max(share - 0.2, 0.0);
                delay_ns -= if throttled && at == 1 { 300.0 } else { 0.0 };
            }
            for _ in 0..200 {
                let ns = -(1.0 - rng.f64()).ln() * delay_ns;
                counter.add(Nanos(ns as u64), 1);
            }
            seen[0].latencies.clear();
            counter.add_to(&mut seen[0].latencies);
            now += MS;
            if let Some(verdict) = experiment.step(now, &seen) {
                break verdict;
            }
        }
    }

    #[test]
    fn a_candidate_pays_what_it_has() {
        let window = |bytes_per_s| Window {
            length: MS,
            share: 0.2,
            harm: 0.2,
            bytes_per_s,
            ops_per_s: 1.0,
            holds: 0,
            latencies: nyx_base::Latencies::default(),
        };
        let rich = Candidate::of(1, Throttle::NONE, &window(400.0), 100.0).expect("it pays");
        assert!((rich.trial.share().expect("throttled") - 0.15).abs() < 1e-9);
        assert!((rich.paid - 1.0).abs() < 1e-9);
        let poor = Candidate::of(1, Throttle::NONE, &window(50.0), 100.0).expect("it pays");
        assert!((0.45..0.5).contains(&poor.paid), "{poor:?}");
        assert_eq!(Candidate::of(1, Throttle::NONE, &window(0.0), 100.0), None);
        assert_eq!(poor.trial.want().rate, Some(DevicePs(1_000_000_000)));
    }
}
