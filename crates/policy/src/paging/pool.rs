//! The free pool: who reclaims for a program, so that the program does not.
//!
//! A program that takes memory at its limit has to free some first, in the middle of its fault
//! (Ultraswap section 2.2, "direct reclaim"). A reclaimer on another CPU that keeps a little free
//! spares it that. How little: what the program takes until the reclaimer has looked again and has
//! freed the next batch. It is refilled from [`Levels::low`] to [`Levels::high`], so that
//! the reclaimer does not run for each page. More than that is memory that the program goes
//! without: where nearly all of it fits, each free page is a fault more.
//!
//! [`Rule::Paper`] is the paper's watermark, 70 % of the limit (section 3.2). Under lasting
//! pressure it settles there: the program has 70 % of the memory that it was promised.
//!
//! *Shapes*: bytes, nanoseconds. *Thread safety*: one owner.

use nyx_base::{Instant, Nanos};

/// How much is kept free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// As much as is taken until more is freed.
    Demand,
    /// So many percent of the limit.
    Percent(u8),
    /// The paper's: reclaim above 70 % of the limit.
    Paper,
    /// Nothing: the program reclaims for itself, as it does without Nyx.
    Off,
}

/// Percent of the limit above which the paper reclaims.
const PAPER_WATERMARK_PERCENT: u64 = 70;
/// Looks are so far apart at least: a shorter sleep costs more than the look.
const LOOK_LEAST: Nanos = Nanos::from_micros(200);
/// And at most, where nothing happens.
const LOOK_MOST: Nanos = Nanos::from_millis(10);
/// Demand that was seen, and looks that came late, count half after this time.
const HALF_NS: f64 = 50e6;
/// The pool takes this part of the limit at most: one in so many.
const POOL_ONE_IN: u64 = 8;
/// What is to be free lasts for so many gaps between looks.
const POOL_GAPS: f64 = 2.0;
/// Demand is told by what is taken in so long at least: the kernel takes pages by the batch, and
/// one batch in a few microseconds would look like a flood.
const SEEN_LEAST: Nanos = Nanos::from_millis(1);

/// Free bytes at which reclaim begins and at which it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// Reclaim where less is free.
    pub low: u64,
    /// Until so much is.
    pub high: u64,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Free memory until so many bytes are used, then tell [`Pool::reclaimed`] of it.
    Reclaim {
        /// Bytes used afterwards.
        down_to: u64,
    },
    /// Look again after this time.
    Sleep(Nanos),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Pool {
    rule: Rule,
    floor_bytes: u64,
    last: Option<(Instant, u64)>,
    /// Bytes per nanosecond that the program takes.
    demand: f64,
    /// When that was last told, and what was seen since: nanoseconds, and bytes taken in them.
    told: Instant,
    seen: (u64, u64),
    /// How late looks come: the reclaimer has a CPU to wait for.
    late_ns: f64,
    /// When the next look is due.
    due: Instant,
    /// The next sleep at most.
    look: Nanos,
}

impl Pool {
    /// A pool that is never smaller than `floor_bytes`: what the kernel takes at once for all of
    /// its CPUs has to be in it.
    pub fn new(rule: Rule, floor_bytes: u64) -> Pool {
        Pool {
            rule,
            floor_bytes,
            last: None,
            demand: 0.0,
            told: Instant(0),
            seen: (0, 0),
            late_ns: 0.0,
            due: Instant::NEVER,
            look: LOOK_LEAST,
        }
    }

    /// What is to be done where `used` bytes of `limit` are.
    pub fn look(&mut self, now: Instant, used: u64, limit: u64) -> Act {
        self.learn(now, used);
        if self.rule == Rule::Off {
            return Act::Sleep(LOOK_MOST);
        }
        let levels = self.levels(limit);
        match limit.saturating_sub(used).checked_sub(levels.low) {
            Some(spare) => {
                let time = self.until_low(spare);
                self.due = now + time;
                Act::Sleep(time)
            }
            None => Act::Reclaim {
                down_to: limit.saturating_sub(levels.high),
            },
        }
    }

    /// A reclaim is over, and so much is used now.
    pub fn reclaimed(&mut self, now: Instant, used: u64) {
        // What was taken meanwhile is not known, since both went on at once.
        self.last = Some((now, used));
        self.due = now;
        self.look = LOOK_LEAST;
    }

    /// How much is to be free now.
    pub fn levels(&self, limit: u64) -> Levels {
        let most = limit / POOL_ONE_IN;
        let percent = |percent: u64| {
            let low = limit / 100 * percent;
            let high = low + self.floor_bytes.min(most);
            Levels {
                low,
                high: high.min(limit - most / 2),
            }
        };
        match self.rule {
            Rule::Off => Levels::default(),
            Rule::Percent(kept) => percent(u64::from(kept)),
            Rule::Paper => percent(100 - PAPER_WATERMARK_PERCENT),
            Rule::Demand => {
                let gap_ns = LOOK_LEAST.0 as f64 + self.late_ns;
                let wanted = (self.demand * gap_ns * POOL_GAPS) as u64;
                let low = wanted.max(self.floor_bytes).min(most / 2);
                Levels {
                    low,
                    high: low + self.floor_bytes.min(most / 2),
                }
            }
        }
    }

    /// Bytes per second that the program takes, as it was seen lately.
    pub fn demand_bytes_per_s(&self) -> u64 {
        (self.demand * 1e9) as u64
    }

    fn learn(&mut self, now: Instant, used: u64) {
        let Some((at, before)) = self.last.replace((now, used)) else {
            return;
        };
        let (ns, taken) = (now.since(at).0, used.saturating_sub(before));
        if ns == 0 {
            return;
        }
        let late_ns = now.since(self.due).0 as f64;
        self.late_ns = (self.late_ns * faded(ns)).max(late_ns);
        self.seen = (self.seen.0 + ns, self.seen.1 + taken);
        if self.seen.0 >= SEEN_LEAST.0 {
            let (ns, taken) = std::mem::take(&mut self.seen);
            let before = self.demand * faded(now.since(self.told).0);
            self.demand = before.max(taken as f64 / ns as f64);
            self.told = now;
        }
    }

    /// Until half of what is spare may be taken; longer each time, since it may never be.
    fn until_low(&mut self, spare: u64) -> Nanos {
        let lasts_ns = match self.demand > 0.0 {
            true => (spare as f64 / self.demand / 2.0) as u64,
            false => LOOK_MOST.0,
        };
        let look = self.look;
        self.look = Nanos(look.0 * 2).min(LOOK_MOST);
        Nanos(lasts_ns).clamp(LOOK_LEAST, look)
    }
}

/// What is left after so long of what was seen.
fn faded(ns: u64) -> f64 {
    (-(ns as f64) / HALF_NS).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A program and its reclaimer: what it takes, and how fast memory is freed.
    struct World {
        pool: Pool,
        limit: u64,
        used: u64,
        now: Instant,
        taken_per_ns: f64,
        freed_per_ns: f64,
        /// By so much each sleep of the reclaimer is longer than it should be.
        late_ns: u64,
        /// What is used grows by so much at once.
        batch: u64,
        /// Taken of the next batch.
        taken: u64,
        /// Times that the program found nothing free.
        stalls: u64,
        looks: u64,
        least_used: u64,
    }

    impl World {
        fn new(rule: Rule, taken_mib_per_s: f64) -> World {
            World {
                pool: Pool::new(rule, MIB),
                limit: 256 * MIB,
                used: 256 * MIB - 4 * MIB,
                now: Instant(0),
                taken_per_ns: taken_mib_per_s * MIB as f64 / 1e9,
                freed_per_ns: 700.0 * MIB as f64 / 1e9,
                late_ns: 0,
                batch: 1,
                taken: 0,
                stalls: 0,
                looks: 0,
                least_used: u64::MAX,
            }
        }

        fn take(&mut self, ns: u64) {
            self.taken += (self.taken_per_ns * ns as f64) as u64;
            self.used += self.taken - self.taken % self.batch;
            self.taken %= self.batch;
            // A program that finds nothing free frees as much as it takes.
            if self.used > self.limit {
                self.stalls += 1;
                self.used = self.limit;
            }
            self.now += Nanos(ns);
        }

        fn run(&mut self, millis: u64) {
            let end = self.now + Nanos::from_millis(millis);
            while self.now < end {
                self.looks += 1;
                self.take(2_000);
                match self.pool.look(self.now, self.used, self.limit) {
                    Act::Sleep(time) => self.take(time.0 + self.late_ns),
                    Act::Reclaim { down_to } => {
                        while self.used > down_to {
                            self.take(10_000);
                            self.used -= (self.freed_per_ns * 10_000.0) as u64;
                        }
                        self.pool.reclaimed(self.now, self.used);
                    }
                }
                self.least_used = self.least_used.min(self.used);
            }
        }
    }

    #[test]
    fn a_program_that_takes_steadily_never_finds_nothing_free() {
        for taken_mib_per_s in [1.0, 50.0, 200.0, 500.0] {
            for late_ns in [0, 2_000_000] {
                let mut world = World::new(Rule::Demand, taken_mib_per_s);
                world.late_ns = late_ns;
                world.run(200);
                world.stalls = 0;
                world.run(2_000);
                let how = format!("at {taken_mib_per_s} MiB/s, {late_ns} ns late");
                assert_eq!(world.stalls, 0, "{how}");
            }
        }
    }

    #[test]
    fn without_a_pool_the_program_reclaims_for_itself() {
        let mut world = World::new(Rule::Off, 50.0);
        world.run(2_000);
        assert!(world.stalls > 100, "{}", world.stalls);
    }

    #[test]
    fn the_pool_is_small_and_grows_where_much_is_taken_before_the_next_look() {
        let free_most = |taken, late_ns| {
            let mut world = World::new(Rule::Demand, taken);
            world.late_ns = late_ns;
            world.run(500);
            world.least_used = u64::MAX;
            world.run(1_000);
            world.limit - world.least_used
        };
        let most = 256 * MIB / POOL_ONE_IN;
        for (taken, late_ns, free) in [
            (10.0, 0, MIB..=3 * MIB),
            (500.0, 0, MIB..=3 * MIB),
            (500.0, 4_000_000, 4 * MIB..=most),
            (500.0, 400_000_000, most / 2..=most + 4096),
        ] {
            let is = free_most(taken, late_ns);
            assert!(free.contains(&is), "{taken} MiB/s, {late_ns} ns late: {is}");
        }
    }

    #[test]
    fn pages_that_the_kernel_takes_by_the_batch_are_no_flood() {
        let mut world = World::new(Rule::Demand, 150.0);
        world.batch = MIB / 4;
        world.run(500);
        (world.least_used, world.stalls) = (u64::MAX, 0);
        world.run(1_000);
        let free = world.limit - world.least_used;
        assert!(free <= 2 * MIB + MIB / 8, "{free} bytes were free");
        assert_eq!(world.stalls, 0);
        let demand = world.pool.demand_bytes_per_s() / MIB;
        assert!((100..=600).contains(&demand), "{demand} MiB/s");
    }

    #[test]
    fn a_larger_pool_is_refilled_by_the_same_step() {
        let mut world = World::new(Rule::Demand, 500.0);
        world.late_ns = 4_000_000;
        world.run(500);
        let levels = world.pool.levels(world.limit);
        assert!(levels.low > 2 * MIB, "{levels:?}");
        assert_eq!(levels.high - levels.low, MIB);
    }

    #[test]
    fn what_was_taken_long_ago_is_forgotten() {
        let mut world = World::new(Rule::Demand, 500.0);
        world.run(200);
        assert!(world.pool.demand_bytes_per_s() > 400 * MIB);
        world.taken_per_ns = 0.0;
        world.run(1_000);
        let demand = world.pool.demand_bytes_per_s();
        assert!(demand < MIB, "{demand} bytes/s");
    }

    #[test]
    fn the_papers_watermark_settles_at_70_percent_of_the_limit() {
        let mut world = World::new(Rule::Paper, 50.0);
        world.run(2_000);
        let percent = world.used as f64 / world.limit as f64 * 100.0;
        assert!((68.0..=70.1).contains(&percent), "{percent}");
        assert_eq!(world.stalls, 0);
    }

    #[test]
    fn where_nothing_is_taken_it_looks_a_hundred_times_a_second() {
        let mut world = World::new(Rule::Demand, 0.0);
        world.run(100);
        world.looks = 0;
        world.run(10_000);
        assert!(world.looks <= 1_001, "{}", world.looks);
    }

    #[test]
    fn a_limit_that_is_smaller_than_the_floor_leaves_the_program_most_of_it() {
        let pool = Pool::new(Rule::Demand, 4 * MIB);
        let levels = pool.levels(8 * MIB);
        assert!(levels.high <= MIB && levels.low > 0, "{levels:?}");
    }
}
