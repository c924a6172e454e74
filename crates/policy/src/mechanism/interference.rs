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

/// How trials are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trials {
    /// What each candidate pays, in bytes per second (`ExperimentStep`).
    pub expense_bytes_per_s: f64,
    /// Samples of the victim that a measurement needs.
    pub samples: u64,
    /// A measurement is at most so long, even if there are fewer.
    pub window_max: Nanos,
    /// Left out after each change.
    pub settle: Nanos,
}

/// An experiment that is under way.
#[derive(Debug)]
pub struct Experiment {
    trials: Trials,
    victim: usize,
    candidates: Vec<Candidate>,
    /// The victim's mean delays without a throttle: before each trial, and after the last.
    without: Vec<Delay>,
    with: Vec<Delay>,
    settled_at: Instant,
    mark: Option<Mark>,
    catching_up: Option<CatchingUp>,
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
        Experiment {
            trials,
            victim,
            candidates,
            without: Vec::new(),
            with: Vec::new(),
            settled_at: now,
            mark: None,
            catching_up: None,
        }
    }

    /// The trial under way, if not the time between two.
    fn trial(&self) -> Option<&Candidate> {
        (self.without.len() > self.with.len()).then(|| self.candidates.get(self.with.len()))?
    }

    /// Puts the trial under way into what is wanted.
    pub fn apply(&self, want: &mut [Want]) {
        if let Some(candidate) = self.trial() {
            want[candidate.tenant] = candidate.trial.want();
        }
    }

    /// One step; the verdict when all trials are done.
    pub fn step(&mut self, now: Instant, seen: &[Seen]) -> Option<Verdict> {
        let victim = &seen[self.victim];
        if now < self.settled_at {
            return None;
        }
        if let Some(candidate) = &mut self.catching_up {
            if !candidate.is_done(now, seen) {
                return None;
            }
            self.catching_up = None;
        }
        let mark = self.mark.get_or_insert_with(|| Mark::new(now, victim));
        let window = mark.window(now, victim);
        let enough = window.latencies.count() >= self.trials.samples;
        if !enough && window.length < self.trials.window_max {
            return None;
        }
        let delay = Delay::of(&window);
        match self.trial().copied() {
            Some(candidate) => {
                self.with.push(delay);
                self.catching_up = Some(CatchingUp {
                    candidate,
                    mark: Mark::new(now, &seen[candidate.tenant]),
                    ends: now + self.trials.window_max,
                });
            }
            None => self.without.push(delay),
        }
        self.mark = None;
        self.settled_at = now + self.trials.settle;
        (self.without.len() > self.candidates.len()).then(|| self.verdict())
    }

    fn verdict(&self) -> Verdict {
        let trials = self.candidates.iter().zip(&self.with);
        let found: Vec<(usize, f64, bool)> = trials
            .zip(self.without.windows(2))
            .map(|((candidate, with), around)| {
                let (helped, is_sure) = with.against(around[0], around[1]);
                (
                    candidate.tenant,
                    helped / candidate.paid.max(PAID_MIN),
                    is_sure,
                )
            })
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

    /// Runs an experiment on a victim whose mean delay is what `delay_ns` says while someone is
    /// throttled.
    fn run(delay_ns: impl Fn(Option<usize>, u64) -> f64, seed: u64) -> Verdict {
        let mut rng = Rng::with_seed(seed);
        let counter = LatencyCounter::default();
        let mut seen = [Seen::default(), Seen::default(), Seen::default()];
        let candidates = vec![candidate(1), candidate(2)];
        let mut experiment = Experiment::new(Instant(0), 0, candidates, TRIALS);
        let mut now = Instant(0);
        for ms in 0.. {
            let mut want = [Want::default(); 3];
            experiment.apply(&mut want);
            let throttled = (1..3).find(|&at| want[at] != Want::default());
            for _ in 0..200 {
                let ns = -(1.0 - rng.f64()).ln() * delay_ns(throttled, ms);
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

    #[test]
    fn the_one_who_helps_is_named() {
        for seed in 0..20 {
            let helps = |throttled, _| if throttled == Some(2) { 600.0 } else { 1000.0 };
            let verdict = run(helps, seed);
            assert_eq!(verdict.culprit, Some(2), "{verdict:?}");
            assert!((verdict.helped[1].1 - 0.4).abs() < 0.15, "{verdict:?}");
        }
    }

    #[test]
    fn a_placebo_names_nobody() {
        let named = (0..200).filter(|&seed| run(|_, _| 1000.0, seed).culprit.is_some());
        assert_eq!(named.count(), 0);
    }

    #[test]
    fn a_load_that_falls_meanwhile_is_not_taken_for_help() {
        let falls = |_, ms| 2000.0 - 30.0 * ms as f64;
        let named = (0..50).filter(|&seed| run(falls, seed).culprit.is_some());
        assert!(named.count() <= 1);
    }

    /// Both candidates do later what they may not do during their trial. It is the first that hurts
    /// the victim; but while the second catches up it hurts more than the first ever does.
    #[test]
    fn who_catches_up_after_its_trial_is_not_taken_for_the_culprit() {
        let mut rng = Rng::with_seed(1);
        let counter = LatencyCounter::default();
        let mut seen = [Seen::default(), Seen::default(), Seen::default()];
        let candidates = vec![candidate(1), candidate(2)];
        let mut experiment = Experiment::new(Instant(0), 0, candidates, TRIALS);
        let (mut now, mut owed) = (Instant(0), [0.0; 3]);
        let verdict = loop {
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
        };
        assert_eq!(verdict.culprit, Some(1), "{verdict:?}");
        assert!(verdict.helped[1].1.abs() < 0.1, "{verdict:?}");
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
