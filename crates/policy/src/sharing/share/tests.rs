//! Proportional sharing on a plant of formulas: who asks for more than its limit is held, and what
//! others use makes a tenant slower by a factor of its own.

use super::*;
use crate::Delay;
use nyx_base::{DevicePs, LatencyCounter};

const TICK: Nanos = Nanos::from_millis(1);
const ALONE_NS: f64 = 10_000.0;

struct Plant {
    policy: Share,
    seen: Vec<Seen>,
    counters: Vec<LatencyCounter>,
    want: Vec<Want>,
    now: Instant,
    /// Shares of the device that tenants ask for.
    asked: Vec<f64>,
    /// By how much the whole device, used by others, makes a tenant slower.
    hurt: Vec<f64>,
    /// How much slower tenant 0 is in company, whatever the others use.
    company: Option<f64>,
    /// Time in which somebody paused.
    paused: Nanos,
    /// Shares used in the last epoch's worth of time, and latencies of the last step.
    used: Vec<f64>,
    slowdown: Vec<f64>,
}

fn settings() -> Settings {
    Settings {
        epoch: Epoch {
            tick: TICK,
            ticks: 10,
        },
        alone: alone::Params {
            paused_most: 0.05,
            settle: Nanos::from_micros(250),
            samples: 50,
            ..alone::Params::default()
        },
        ..Settings::default()
    }
}

const PAPER: Steps = Steps::Paper { donate_step: 0.1 };

impl Plant {
    fn new(weights: &[f64], asked: &[f64], settings: Settings) -> Plant {
        let n = weights.len();
        let begin = |_| Seen {
            used: DevicePs(u64::MAX - 10_000_000_000),
            ops: u64::MAX - 5,
            holds: u64::MAX - 5,
            ..Seen::default()
        };
        let mut plant = Plant {
            policy: Share::new(weights, settings),
            seen: (0..n).map(begin).collect(),
            counters: (0..n).map(|_| LatencyCounter::default()).collect(),
            want: vec![Want::default(); n],
            now: Instant(1_000_000),
            asked: asked.to_vec(),
            hurt: vec![0.0; n],
            company: None,
            paused: Nanos::ZERO,
            used: vec![0.0; n],
            slowdown: vec![1.0; n],
        };
        plant.control();
        plant
    }

    fn control(&mut self) {
        self.policy.step(self.now, &self.seen, &mut self.want);
    }

    fn limit(&self, i: usize) -> f64 {
        self.want[i].rate.map_or(1.0, |rate| rate.0 as f64 / 1e12)
    }

    /// Everybody works until the policy's next step.
    fn work(&mut self) {
        let length = self.policy.period();
        let pauses = |want: &Want| want.delay == Delay::Infinite;
        if self.want.iter().any(pauses) {
            self.paused = self.paused + length;
        }
        for i in 0..self.seen.len() {
            let most = if pauses(&self.want[i]) {
                0.0
            } else {
                self.limit(i)
            };
            self.used[i] = self.asked[i].min(most);
            let held = self.asked[i] > most;
            let seen = &mut self.seen[i];
            let ps = (self.used[i] * length.as_secs_f64() * 1e12) as u64;
            seen.used = DevicePs(seen.used.0.wrapping_add(ps));
            seen.ops = seen.ops.wrapping_add(ps / 1_000_000);
            seen.holds = seen.holds.wrapping_add(u64::from(held));
        }
        let sum: f64 = self.used.iter().sum();
        for i in 0..self.seen.len() {
            let others = sum - self.used[i];
            self.slowdown[i] = match self.company {
                Some(slowdown) if i == 0 && others > 0.0 => slowdown,
                _ => 1.0 + self.hurt[i] * others,
            };
            if self.used[i] > 0.0 {
                let ns = Nanos((ALONE_NS * self.slowdown[i]) as u64);
                self.counters[i].add(ns, 100);
            }
            self.seen[i].latencies.clear();
            self.counters[i].add_to(&mut self.seen[i].latencies);
        }
        self.now += length;
    }

    /// Runs for so many epochs; gives the mean of each tenant's use and slowdown.
    fn run(&mut self, epochs: u32) -> (Vec<f64>, Vec<f64>) {
        let n = self.seen.len();
        let (mut used, mut slowdown) = (vec![0.0; n], vec![0.0; n]);
        let (begin, length) = (self.now, Nanos(TICK.0 * 10 * u64::from(epochs)));
        while self.now.since(begin) < length {
            let from = self.now;
            self.work();
            self.control();
            let part = self.now.since(from).as_secs_f64() / length.as_secs_f64();
            for i in 0..n {
                used[i] += self.used[i] * part;
                slowdown[i] += self.slowdown[i] * part;
            }
        }
        (used, slowdown)
    }
}

fn near(found: f64, wanted: f64, most: f64) {
    assert!((found - wanted).abs() <= most, "{found}, not {wanted}");
}

#[test]
fn who_all_want_more_have_their_weights() {
    for steps in [Steps::Adaptive, PAPER] {
        let settings = Settings {
            steps,
            ..settings()
        };
        let mut plant = Plant::new(&[3.0, 2.0, 1.0], &[1.0; 3], settings);
        plant.hurt = vec![5.0; 3];
        let (used, _) = plant.run(20);
        for (used, weight) in used.iter().zip([3.0, 2.0, 1.0]) {
            near(*used, weight / 6.0, 1e-3);
        }
        assert_eq!(plant.paused, Nanos::ZERO, "nobody donates");
        assert!(plant.policy.take_decisions().is_empty());
    }
}

#[test]
fn naive_lends_all_that_is_idle_whatever_it_does_to_the_donor() {
    let naive = Settings {
        donation: Donation::Naive,
        ..settings()
    };
    let mut plant = Plant::new(&[2.0, 1.0], &[0.1, 1.0], naive);
    plant.hurt = vec![1.0, 0.0];
    plant.run(2);
    let (used, slowdown) = plant.run(10);
    near(used[1], 0.9, 1e-2);
    assert!(slowdown[0] > 1.8, "{slowdown:?}");
    assert!(!plant.policy.measures(0));
}

#[test]
fn aware_stops_at_the_donors_bound() {
    // Two thirds of the device: at most 1.5 times slower, which is where the other uses half.
    for (steps, least, most) in [(Steps::Adaptive, 0.40, 1.5), (PAPER, 0.45, 1.53)] {
        let settings = Settings {
            steps,
            ..settings()
        };
        let mut plant = Plant::new(&[2.0, 1.0], &[0.1, 1.0], settings);
        plant.hurt = vec![1.0, 0.0];
        plant.run(20);
        let (used, slowdown) = plant.run(100);
        assert!(used[1] > least, "{steps:?}: {used:?}");
        assert!(slowdown[0] < most, "{steps:?}: {slowdown:?}");
        near(used[0], 0.1, 1e-3);
    }
}

#[test]
fn aware_lends_all_where_it_does_no_harm() {
    for steps in [Steps::Adaptive, PAPER] {
        let settings = Settings {
            steps,
            ..settings()
        };
        let mut plant = Plant::new(&[2.0, 1.0], &[0.1, 1.0], settings);
        plant.run(40);
        let (used, _) = plant.run(100);
        near(used[1], 0.9, 0.02);
    }
}

#[test]
fn who_comes_back_is_not_held_and_has_its_part_within_an_epoch() {
    for (before, hurt) in [(0.0, 0.0), (0.0, 9.0), (0.1, 0.0), (0.1, 1.0)] {
        let mut plant = Plant::new(&[2.0, 1.0], &[before, 1.0], settings());
        plant.hurt[0] = hurt;
        plant.run(40);
        assert!(plant.limit(1) > 0.37, "{before}: {}", plant.limit(1));
        near(plant.limit(0), 2.0 / 3.0, 1e-9);
        plant.asked[0] = 1.0;
        // A pause may come first, and an epoch may have begun before.
        plant.run(2);
        near(plant.limit(1), 1.0 / 3.0, 1e-9);
        near(plant.used[0], 2.0 / 3.0, 1e-3);
    }
}

#[test]
fn as_printed_a_donor_is_held_at_what_it_kept_and_still_comes_back() {
    let paper = Settings {
        steps: PAPER,
        ..settings()
    };
    let mut plant = Plant::new(&[2.0, 1.0], &[0.1, 1.0], paper);
    plant.run(60);
    assert!(plant.limit(0) < 0.12, "{}", plant.limit(0));
    plant.asked[0] = 1.0;
    plant.run(3);
    near(plant.limit(0), 2.0 / 3.0, 1e-9);
}

#[test]
fn steps_as_printed() {
    let paper = Settings {
        steps: PAPER,
        ..settings()
    };
    let mut plant = Plant::new(&[2.0, 1.0], &[0.5, 1.0], paper);
    plant.company = Some(1.4);
    let mut kept: f64 = 2.0 / 3.0;
    for _ in 0..40 {
        let before = plant.policy.assigned()[0];
        plant.run(1);
        let now = plant.policy.assigned()[0];
        // Nothing is lent before it was measured; then a tenth of what is left, each epoch.
        if now != before {
            kept = (kept * 0.9).max(0.5);
        }
        near(now, kept, 1e-6);
    }
    near(kept, 0.5, 1e-9);
    plant.company = Some(1.6);
    plant.run(2);
    let back = plant.policy.assigned()[0];
    assert!((0.549..0.61).contains(&back), "{back}");
    plant.run(6);
    near(plant.policy.assigned()[0], 2.0 / 3.0, 1e-9);
    assert!(plant.policy.measures(0));
}

#[test]
fn nothing_is_lent_of_a_donor_whose_slowdown_is_unknown() {
    let mut never = settings();
    never.alone.paused_most = 1e-6;
    let mut plant = Plant::new(&[1.0, 1.0], &[0.1, 1.0], never);
    plant.run(20);
    near(plant.limit(1), 0.5, 1e-9);
    // It asks for nothing: there is nobody to be slowed.
    plant.asked[0] = 0.0;
    plant.run(20);
    assert!(plant.limit(1) > 0.99, "{}", plant.limit(1));
}

#[test]
fn pauses_are_rare_and_only_for_those_who_want_more() {
    let mut plant = Plant::new(&[1.0, 1.0, 1.0], &[0.1, 0.1, 1.0], settings());
    plant.run(10);
    assert!(plant.paused > Nanos::ZERO, "two donors are measured");
    plant.run(100);
    plant.paused = Nanos::ZERO;
    plant.run(400);
    // Known by now, and nothing changes.
    assert_eq!(plant.paused, Nanos::ZERO);
    let mut plant = Plant::new(&[1.0, 1.0], &[0.1, 0.1], settings());
    plant.run(100);
    assert_eq!(plant.paused, Nanos::ZERO, "nobody wants more");
}

#[test]
fn decisions_name_the_donor_and_are_bounded() {
    let mut plant = Plant::new(&[2.0, 1.0], &[0.1, 1.0], settings());
    plant.hurt = vec![1.0, 0.0];
    plant.run(30);
    let decisions = plant.policy.take_decisions();
    let first = decisions.first().expect("something was lent");
    assert!(matches!(first.act, Act::Relax { to: Some(_) }) && first.tenant == 1);
    assert!(first.why.contains("tenant 0 is slowed"), "{}", first.why);
    assert!(plant.policy.take_decisions().is_empty());
    for i in 0..600 {
        plant.asked[0] = f64::from(i / 3 % 2);
        plant.run(1);
    }
    assert_eq!(plant.policy.take_decisions().len(), DECISIONS_KEPT);
}

#[test]
fn bounds_are_parts_of_what_weights_give() {
    let bounds = |min: f64, max: Option<f64>| Bounds { min, max };
    let parts = |weights: &[f64], bounds: &[Bounds]| bounded_entitlements(weights, bounds);
    let near = |parts: Vec<f64>, wanted: &[f64]| {
        let all = parts.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9);
        assert!(all, "{parts:?}, {wanted:?}");
    };
    let free = bounds(0.0, None);
    near(parts(&[1.0, 1.0], &[free, free]), &[0.5, 0.5]);
    near(
        parts(&[1.0, 1.0, 2.0], &[bounds(0.4, None), free, free]),
        &[0.4, 0.2, 0.4],
    );
    near(
        parts(&[1.0, 1.0, 2.0], &[free, free, bounds(0.0, Some(0.2))]),
        &[0.4, 0.4, 0.2],
    );
    // A floor pushes somebody below a ceiling, and the other way round.
    let both = [bounds(0.6, None), bounds(0.0, Some(0.3)), free];
    near(parts(&[1.0, 1.0, 1.0], &both), &[0.6, 0.2, 0.2]);
    near(
        parts(&[1.0, 1.0], &[bounds(0.8, None), bounds(0.8, None)]),
        &[0.5, 0.5],
    );
    near(
        parts(
            &[1.0, 1.0],
            &[bounds(0.0, Some(0.1)), bounds(0.0, Some(0.2))],
        ),
        &[0.1, 0.2],
    );
}

#[test]
fn a_share_within_bounds_keeps_them_whoever_is_idle() {
    let bounds = vec![
        Bounds::below(Some(0.3)),
        Bounds {
            min: 0.2,
            max: None,
        },
        Bounds::NONE,
    ];
    let share = Share::new(&[5.0, 0.1, 1.0], Settings::default()).within(bounds);
    let entitled = &share.entitled;
    assert!(
        (entitled[0] - 0.3).abs() < 1e-9 && (entitled[1] - 0.2).abs() < 1e-9,
        "{entitled:?}"
    );
    assert!((entitled[2] - 0.5).abs() < 1e-9, "{entitled:?}");
    assert!(share.limit(0) <= 0.3 + 1e-9);
}

/// Tenant 0 asks for less than its part and is slower than its bound of 2 because of what tenant 1,
/// who is held at its own, does.
fn pinched(hurt: [f64; 2]) -> (f64, f64) {
    let mut plant = Plant::new(&[1.0, 1.0], &[0.45, 1.0], settings());
    plant.hurt = hurt.to_vec();
    plant.run(300);
    let (used, slowdown) = plant.run(100);
    (used[1], slowdown[0])
}

#[test]
fn who_has_room_is_pinched_for_who_is_beyond_its_bound() {
    let (used, slowdown) = pinched([2.1, 0.0]);
    assert!(slowdown < 2.0 && slowdown > 1.9, "{slowdown}");
    near(used, (PINCH_AIM * 2.0 - 1.0) / 2.1, 0.02);
    // Nobody who is at its own bound pays, and nobody pays for what cannot be helped without end.
    let (used, slowdown) = pinched([2.1, 2.3]);
    assert!(slowdown > 2.0, "{slowdown}");
    near(used, 0.5, 0.02);
    let (used, _) = pinched([10.0, 0.0]);
    near(used, 0.5 * PINCH_LEAST, 0.02);
    let (used, _) = pinched([0.5, 0.0]);
    assert!(used > 0.5, "there is room to lend: {used}");
}

#[test]
fn who_is_not_hurt_any_more_is_not_paid_for() {
    let mut plant = Plant::new(&[1.0, 1.0], &[0.45, 1.0], settings());
    plant.hurt = vec![2.1, 0.0];
    plant.run(300);
    let (pinched, _) = plant.run(50);
    plant.hurt[0] = 1.7;
    plant.run(200);
    let (after, _) = plant.run(50);
    assert!(
        pinched[1] < 0.47 && after[1] > 0.49,
        "{pinched:?}, {after:?}"
    );
}
