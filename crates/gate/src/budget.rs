//! What a tenant may use of a device, as exact leased budgets.
//!
//! The controller writes a [`Limit`]; the workers of the tenant *lease* small amounts of device
//! time from the budget and spend them without looking again. Because a worker checks its own lease
//! before every access, the limit is exact at any moment and cannot be gamed by loading the last
//! tick of an epoch, as the paper's Algorithm 1 can (there a 5 % tenant may exceed its limit by a
//! fifth, every epoch). The paper's behaviour stays available through [`Budget::set_delay`].
//!
//! Two token buckets bound what is leased. The *sustained* bucket holds the limit over the long run
//! and remembers what a stalled machine did not let the tenant use; the *peak* bucket lets it catch
//! up at a rate only a little above the limit. So the use in any window of length `T` is at most
//! `peak.rate * T + peak.depth` plus one lease per worker and one access, of each of its tenants
//! where it is a group's, and the use over a long time is the limit exactly.
//!
//! *Thread safety*: all methods take `&self` and may be called from any thread.
//!
//! Budgets may stand *above* others: what a tenant leases it leases from its own budget and from
//! each above it, so that the tenants of a group together stay below the group's limit, exactly and
//! without anybody dividing it among them.
//!
//! A worker that finds the buckets empty *reserves* what it needs next, little enough that what
//! then comes at once disturbs nobody, and whoever asks after it comes after it: two workers of one
//! tenant take turns, whichever of them asks more often.
//!
//! *Invariants*: a bucket is one word, the time at which it was (or will be) empty; it only moves
//! forward by what is taken and back by what is given back, so that tokens are neither lost nor
//! made. It lies in the future only by what is reserved. A change of the limit rewrites it, so that
//! it holds, or owes, as much device time as before: what is reserved stays so and comes at the new
//! rate, in the order of asking, and a change that comes late gives nothing twice. Only a lease
//! that meets a change may be priced at the other of the two rates. Budgets above each other form
//! no circle.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, RwLock};
use nyx_base::{CachePadded, DevicePs, Instant, Nanos};
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, PoisonError};

/// A rate of device time: device picoseconds for each second of time. 42 % of a device is 0.42e12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

impl Rate {
    /// No limit.
    pub const UNLIMITED: Rate = Rate(u64::MAX);

    /// A rate given as a share of the device; 1.0 is the whole device.
    ///
    /// Panics where the share is not positive and finite: configurations are checked before.
    pub fn of_share(share: f64) -> Rate {
        assert!(
            share.is_finite() && share > 0.0,
            "a share of a device must be positive, got {share}"
        );
        Rate((share * 1e12).round() as u64)
    }

    /// As a share of the device.
    pub fn share(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// Device time earned in `time`.
    fn earned(self, time: Nanos) -> u64 {
        saturated(u128::from(self.0) * u128::from(time.0) / 1_000_000_000)
    }

    /// Time in which `ps` of device time is earned, rounded up so that a limit is never exceeded.
    fn time_to_earn(self, ps: u64) -> u64 {
        saturated((u128::from(ps) * 1_000_000_000).div_ceil(u128::from(self.0.max(1))))
    }

    /// Time in which no more than `ps` of device time is earned.
    fn time_of(self, ps: u64) -> u64 {
        saturated(u128::from(ps) * 1_000_000_000 / u128::from(self.0.max(1)))
    }
}

fn saturated(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// Device time that is a worker's own from some moment on.
#[derive(Debug)]
pub struct Reserved {
    /// From when on it may be spent, if no limit changes.
    pub from: Instant,
    ps: u64,
    /// What the budget must have earned for it.
    due: Earned,
    /// The same in the budget that stood above.
    above: Option<Box<(Arc<Budget>, Reserved)>>,
}

/// What the two buckets of a budget have earned since there is a limit, in device picoseconds. It
/// never wraps.
#[derive(Clone, Copy, Debug, Default)]
struct Earned {
    sustained_ps: u128,
    peak_ps: u128,
}

/// How much device time a worker takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    /// Where there is some: it lowers how often the buckets are touched, and delays nobody.
    pub(crate) lease_ps: u64,
    /// Where there is none and it has to be waited for: it comes at once when its time has come,
    /// so this is how large the bursts of a tenant with a backlog are.
    pub(crate) hold_ps: u64,
}

/// What a budget had earned when its limit was changed last: by that reservations stand in line,
/// whatever the limit becomes.
#[derive(Debug, Default)]
struct Line {
    since: Instant,
    earned: Earned,
}

impl Line {
    /// What is earned at these rates by the times at which the buckets are empty.
    fn earned_by(&self, [sustained, peak]: [Rate; 2], empty_ns: [u64; 2]) -> Earned {
        let [sustained_ns, peak_ns] = empty_ns.map(|ns| Instant(ns).since(self.since));
        Earned {
            sustained_ps: self.earned.sustained_ps + u128::from(sustained.earned(sustained_ns)),
            peak_ps: self.earned.peak_ps + u128::from(peak.earned(peak_ns)),
        }
    }

    /// When so much will be earned, or was.
    fn when(&self, [sustained, peak]: [Rate; 2], due: Earned) -> Instant {
        let wait = |rate: Rate, due_ps: u128, earned_ps: u128| {
            let ps = u64::try_from(due_ps.saturating_sub(earned_ps));
            Nanos(ps.map_or(u64::MAX, |ps| rate.time_to_earn(ps)))
        };
        let first = wait(sustained, due.sustained_ps, self.earned.sustained_ps);
        let second = wait(peak, due.peak_ps, self.earned.peak_ps);
        self.since + first.max(second)
    }
}

/// What a tenant may use of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The limit over the long run.
    pub sustained: Rate,
    /// How much unused time is remembered, in time of the clock, not of the device.
    pub memory: Nanos,
    /// The rate at which remembered time may be caught up with; at least `sustained`.
    pub peak: Rate,
    /// How far ahead of `peak` a burst may run.
    pub burst: DevicePs,
}

impl Limit {
    /// The default shape of a limit: remember up to a quarter second, catch up at 0.3 % of the
    /// device above the limit, and let no burst be longer than 0.4 ms of device time. In any 100 ms
    /// that makes 0.7 % of the device above the limit at most; the last 0.3 % is for leases, for
    /// the access that overdraws one, and for a batch that spends later than the time at which the
    /// gate let it pass. The promise is: limit + 1 % of the device in any 100 ms.
    pub fn sustained(rate: Rate) -> Limit {
        Limit {
            sustained: rate,
            memory: Nanos::from_millis(250),
            peak: Rate(rate.0.saturating_add(CATCH_UP.0)),
            burst: DevicePs(BURST.0.min(rate.earned(Nanos::from_millis(10)).max(1))),
        }
    }

    /// The same, but what was not used in the last `burst` may be used at once: a bucket as deep as
    /// `burst` at the limit's rate, emptied no faster than the whole device works.
    pub fn with_burst(rate: Rate, burst: Nanos) -> Limit {
        let plain = Limit::sustained(rate);
        Limit {
            memory: Nanos(plain.memory.0.max(burst.0)),
            peak: Rate(rate.0.saturating_add(WHOLE.0)),
            burst: DevicePs(plain.burst.0.max(rate.earned(burst))),
            ..plain
        }
    }

    /// No limit.
    pub const NONE: Limit = Limit {
        sustained: Rate::UNLIMITED,
        memory: Nanos::ZERO,
        peak: Rate::UNLIMITED,
        burst: DevicePs::ZERO,
    };
}

/// A lease, in time of the limit: enough that the buckets are touched once for many accesses and
/// little enough that no window notices.
const LEASE: Nanos = Nanos::from_micros(20);
/// What is waited for. What a burst does to others depends on the device time in it, whatever the
/// limit: this is a few accesses. Where it would be waited for longer than for a lease, a lease.
const HOLD: DevicePs = DevicePs(1_000_000);

const WHOLE: Rate = Rate(DevicePs::SECOND.0);
const CATCH_UP: Rate = Rate(3_000_000_000);
const BURST: DevicePs = DevicePs(400_000_000);

/// The paper's "t = INFINITE": accesses are held until the controller sets a finite delay.
pub const DELAY_INFINITE: u32 = u32::MAX;
/// The unit of the paper's delay (NyxCache section 3.3).
pub const DELAY_UNIT: Nanos = Nanos(10);

/// The terms under which a (tenant, device) is let through: written by the controller, rarely.
#[derive(Debug)]
struct Terms {
    sustained: AtomicU64,
    memory_ns: AtomicU64,
    peak: AtomicU64,
    burst_ps: AtomicU64,
    delay_units: AtomicU32,
    byte_price_ps: AtomicU64,
    /// When [`DELAY_INFINITE`] ends, if nobody prolongs it.
    pause_ends_ns: AtomicU64,
    /// Whether there is something to lease from: a limit, or a budget above.
    is_limited: AtomicBool,
    has_above: AtomicBool,
}

/// What has been leased, and the locks on the way: written by workers, once per lease.
#[derive(Debug, Default)]
struct Buckets {
    sustained_empty_ns: AtomicU64,
    peak_empty_ns: AtomicU64,
    above: RwLock<Option<Arc<Budget>>>,
    /// Held while a limit is changed and while something is reserved or redeemed, all of which are
    /// rare, so that nothing is booked at one limit's rate and waited for at another's.
    line: Mutex<Line>,
}

impl Buckets {
    /// When each was or will be empty, sustained and peak.
    fn empty_ns(&self) -> [&AtomicU64; 2] {
        [&self.sustained_empty_ns, &self.peak_empty_ns]
    }
}

/// The budget of one (tenant, device).
#[derive(Debug)]
pub struct Budget {
    terms: CachePadded<Terms>,
    buckets: CachePadded<Buckets>,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::unlimited()
    }
}

impl Budget {
    /// A budget without a limit.
    pub fn unlimited() -> Budget {
        Budget {
            terms: CachePadded(Terms {
                sustained: AtomicU64::new(u64::MAX),
                memory_ns: AtomicU64::new(0),
                peak: AtomicU64::new(u64::MAX),
                burst_ps: AtomicU64::new(0),
                delay_units: AtomicU32::new(0),
                byte_price_ps: AtomicU64::new(0),
                pause_ends_ns: AtomicU64::new(u64::MAX),
                is_limited: AtomicBool::new(false),
                has_above: AtomicBool::new(false),
            }),
            buckets: CachePadded(Buckets::default()),
        }
    }

    /// Sets the limit from now on. A limit set for the first time starts with empty buckets, so
    /// that time before it does not count as unused; another limit keeps what the buckets hold, and
    /// what is reserved comes at the new rate. Where the limit is lifted, it comes at once.
    pub fn set_limit(&self, now: Instant, limit: Limit) {
        let mut line = self.line();
        // A change cannot come before the last one.
        let now = now.max(line.since);
        let old = self.rates();
        let new = [limit.sustained, limit.peak.max(limit.sustained)];
        let depths_ns = self.depths_ns();
        let mut before_ns = [now.0; 2];
        for (at, empty) in self.buckets.empty_ns().into_iter().enumerate() {
            let moved = |seen: u64| revalued(seen, now, depths_ns[at], old[at], new[at]);
            let before = empty.fetch_update(Relaxed, Relaxed, |seen| Some(moved(seen)));
            // Who has something reserved need not wait for it where there is no limit any more.
            if old[at] != Rate::UNLIMITED && new[at] == Rate::UNLIMITED {
                before_ns[at] = before.unwrap_or_else(|seen| seen).max(now.0);
            }
        }
        if old[0] != Rate::UNLIMITED {
            line.earned = line.earned_by(old, before_ns);
        }
        line.since = now;
        let terms = &self.terms;
        terms.memory_ns.store(limit.memory.0, Relaxed);
        terms.peak.store(new[1].0, Relaxed);
        terms.burst_ps.store(limit.burst.0, Relaxed);
        // Who sees the new limit sees its shape and its buckets.
        terms.sustained.store(new[0].0, Release);
        self.note_change();
    }

    /// Puts this budget below another, or below none: from now on leases count there too. What is
    /// reserved counts where it was reserved.
    pub fn set_above(&self, above: Option<Arc<Budget>>) {
        let _line = self.line();
        let terms = &self.terms;
        let place = self.buckets.above.write();
        let mut place = place.unwrap_or_else(PoisonError::into_inner);
        terms.has_above.store(above.is_some(), Relaxed);
        *place = above;
        drop(place);
        self.note_change();
    }

    /// With the line held.
    fn note_change(&self) {
        let terms = &self.terms;
        let own = self.sustained() != Rate::UNLIMITED;
        let above = terms.has_above.load(Relaxed);
        terms.is_limited.store(own || above, Relaxed);
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        let line = self.buckets.line.lock();
        line.unwrap_or_else(PoisonError::into_inner)
    }

    /// The rates of the buckets, sustained and peak.
    fn rates(&self) -> [Rate; 2] {
        [self.sustained(), Rate(self.terms.peak.load(Relaxed))]
    }

    /// How much time the buckets remember.
    fn depths_ns(&self) -> [u64; 2] {
        let [_, peak] = self.rates();
        let burst_ns = peak.time_to_earn(self.terms.burst_ps.load(Relaxed));
        [self.terms.memory_ns.load(Relaxed), burst_ns]
    }

    fn above(&self) -> Option<Arc<Budget>> {
        if !self.terms.has_above.load(Relaxed) {
            return None;
        }
        let above = self.buckets.above.read();
        above.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the paper's actuator: a delay of `units` x 10 ns before each access, or
    /// [`DELAY_INFINITE`].
    pub fn set_delay(&self, units: u32) {
        // Who sees a pause sees the end that was set for it before.
        self.terms.delay_units.store(units, Release);
    }

    /// Lets [`DELAY_INFINITE`] end at `end` unless it is prolonged by then, so that a controller
    /// that stops within a pause stops nobody for ever. Set it before the delay.
    pub fn pause_until(&self, end: Instant) {
        self.terms.pause_ends_ns.store(end.0, Relaxed);
    }

    /// Whether accesses are held until the controller says otherwise.
    pub(crate) fn is_paused(&self, now: Instant) -> bool {
        self.delay_units() == DELAY_INFINITE && now.0 < self.terms.pause_ends_ns.load(Relaxed)
    }

    /// Makes leases count bytes at this price instead of device time: the `bytes` baseline, a
    /// bandwidth limit. Accounts still record device time. Zero switches it off.
    pub fn set_byte_price(&self, price: DevicePs) {
        self.terms.byte_price_ps.store(price.0, Relaxed);
    }

    /// The price of a byte under the `bytes` baseline; zero where device time counts.
    #[inline]
    pub(crate) fn byte_price_ps(&self) -> u64 {
        self.terms.byte_price_ps.load(Relaxed)
    }

    /// The delay before each access, in units of 10 ns.
    #[inline]
    pub fn delay_units(&self) -> u32 {
        self.terms.delay_units.load(Acquire)
    }

    /// Whether leases are needed at all: there is a limit, or a budget above.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.terms.is_limited.load(Relaxed)
    }

    /// The limit over the long run.
    pub fn sustained(&self) -> Rate {
        Rate(self.terms.sustained.load(Acquire))
    }

    /// The tightest limit over the long run, this one or one above.
    pub fn tightest(&self) -> Rate {
        let own = self.sustained();
        self.above().map_or(own, |above| own.min(above.tightest()))
    }

    /// What a worker takes at a time that cannot come again sooner than after `hold_min`. None
    /// where there is no limit.
    pub(crate) fn portion(&self, hold_min: Nanos) -> Option<Portion> {
        let rate = self.tightest();
        (rate != Rate::UNLIMITED).then(|| {
            let lease_ps = rate.earned(LEASE).max(1);
            Portion {
                lease_ps,
                hold_ps: lease_ps.min(HOLD.0).max(rate.earned(hold_min)),
            }
        })
    }

    /// Takes up to `want_ps` of device time, at least nothing.
    pub fn lease(&self, now: Instant, want_ps: u64) -> u64 {
        let rates = self.rates();
        let own = self.lease_own(now, rates, want_ps);
        let Some(above) = self.above() else {
            return own;
        };
        let granted = above.lease(now, own);
        // Where there was no limit nothing was taken, even if there is one now.
        if granted < own && rates[0] != Rate::UNLIMITED {
            for (empty, rate) in self.buckets.empty_ns().into_iter().zip(self.rates()) {
                give_back(empty, rate, own, granted);
            }
        }
        granted
    }

    fn lease_own(&self, now: Instant, rates: [Rate; 2], want_ps: u64) -> u64 {
        if rates[0] == Rate::UNLIMITED {
            return want_ps;
        }
        let (depths_ns, empty_ns) = (self.depths_ns(), self.buckets.empty_ns());
        let first = take(empty_ns[0], rates[0], depths_ns[0], now, want_ps);
        let second = take(empty_ns[1], rates[1], depths_ns[1], now, first);
        if second < first {
            give_back(empty_ns[0], rates[0], first, second);
        }
        second
    }

    /// Makes the next `ps` of device time that nobody has reserved yet the caller's. It counts as
    /// taken, whether it is redeemed or not.
    pub fn reserve(&self, now: Instant, ps: u64) -> Reserved {
        let (due, own) = self.reserve_own(now, ps);
        let above = self.above().map(|above| {
            let reserved = above.reserve(now, ps);
            Box::new((above, reserved))
        });
        let later = above.as_ref().map_or(now, |above| above.1.from);
        Reserved {
            from: own.max(later).max(now),
            ps,
            due,
            above,
        }
    }

    fn reserve_own(&self, now: Instant, ps: u64) -> (Earned, Instant) {
        let line = self.line();
        let (rates, depths_ns) = (self.rates(), self.depths_ns());
        if rates[0] == Rate::UNLIMITED {
            return (Earned::default(), now);
        }
        let [first, second] = self.buckets.empty_ns();
        let then_ns = [
            book(first, rates[0], depths_ns[0], now, ps),
            book(second, rates[1], depths_ns[1], now, ps),
        ];
        let due = line.earned_by(rates, then_ns);
        (due, line.when(rates, due))
    }

    /// What was reserved, when its time has come; the moment to come again where it is too early.
    pub fn redeem(&self, now: Instant, reserved: &Reserved) -> Result<u64, Instant> {
        match self.when(reserved) {
            Some(from) if now < from => Err(from),
            _ => Ok(reserved.ps),
        }
    }

    /// When something reserved may be spent, as the limits are now; none where there are none.
    fn when(&self, reserved: &Reserved) -> Option<Instant> {
        let line = self.line();
        let rates = self.rates();
        let own = (rates[0] != Rate::UNLIMITED).then(|| line.when(rates, reserved.due));
        drop(line);
        let above = match (reserved.above.as_deref(), self.above()) {
            (Some((then, reserved)), Some(now)) if Arc::ptr_eq(then, &now) => now.when(reserved),
            // Who was moved waits no longer for those that it has left.
            _ => None,
        };
        own.max(above)
    }
}

/// Where a bucket is empty after a change of its rate: it holds, or owes, as much device time as
/// before. It starts empty where there was no limit.
fn revalued(empty_ns: u64, now: Instant, depth_ns: u64, old: Rate, new: Rate) -> u64 {
    if old == Rate::UNLIMITED {
        return now.0;
    }
    let owed = old.earned(Nanos(empty_ns.saturating_sub(now.0)));
    let held = old.earned(Nanos(now.0.saturating_sub(empty_ns).min(depth_ns)));
    let later = now.0.saturating_add(new.time_to_earn(owed));
    later.saturating_sub(new.time_of(held))
}

/// Gives back what was taken from a bucket beyond what was `granted`. A bucket without a limit
/// holds what anybody asks for.
fn give_back(empty: &AtomicU64, rate: Rate, taken: u64, granted: u64) {
    if rate == Rate::UNLIMITED {
        return;
    }
    let back_ns = rate.time_to_earn(taken) - rate.time_to_earn(granted);
    // It cannot fail: the closure always gives a value.
    let _ = empty.fetch_update(Relaxed, Relaxed, |empty| {
        Some(empty.saturating_sub(back_ns))
    });
}

/// Takes `ps` from one bucket, beforehand where it does not hold as much; gives the time at which
/// it will have earned it.
fn book(empty: &AtomicU64, rate: Rate, depth_ns: u64, now: Instant, ps: u64) -> u64 {
    let then = |seen: u64| {
        let begin = seen.max(now.0.saturating_sub(depth_ns));
        begin.saturating_add(rate.time_to_earn(ps))
    };
    let before = empty.fetch_update(Relaxed, Relaxed, |seen| Some(then(seen)));
    then(before.unwrap_or_else(|seen| seen))
}

/// Takes up to `want_ps` from one bucket: a bucket that was empty at `empty` has earned
/// `rate * (now - empty)` since, capped at `depth_ns` worth.
fn take(empty: &AtomicU64, rate: Rate, depth_ns: u64, now: Instant, want_ps: u64) -> u64 {
    let mut seen = empty.load(Relaxed);
    loop {
        let from = seen.max(now.0.saturating_sub(depth_ns));
        let there = rate.earned(Nanos(now.0.saturating_sub(from)));
        let granted = there.min(want_ps);
        if granted == 0 {
            return 0;
        }
        let then = from + rate.time_to_earn(granted);
        match empty.compare_exchange_weak(seen, then, Relaxed, Relaxed) {
            Ok(_) => return granted,
            Err(other) => seen = other,
        }
    }
}

#[cfg(test)]
mod loom;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn limited(share: f64) -> Budget {
        let budget = Budget::unlimited();
        budget.set_limit(Instant(0), Limit::sustained(Rate::of_share(share)));
        budget
    }

    fn drain(budget: &Budget, at_ns: u64) -> u64 {
        budget.lease(Instant(at_ns), u64::MAX >> 20)
    }

    #[test]
    fn without_a_limit_everything_is_granted() {
        assert_eq!(Budget::unlimited().lease(Instant(0), 12345), 12345);
        // A portion of no limit would be a lease of minutes, good under the next limit.
        assert_eq!(Budget::unlimited().portion(Nanos::ZERO), None);
    }

    #[test]
    fn a_greedy_tenant_gets_its_limit_exactly() {
        let budget = limited(0.42);
        let used: u64 = (1..=40_000).map(|tick| drain(&budget, tick * MS / 4)).sum();
        let share = used as f64 / 1e13;
        assert!((share - 0.42).abs() < 0.42 * 1e-4, "{share}");
    }

    #[test]
    fn no_window_of_100_ms_exceeds_the_limit_by_a_hundredth_of_the_device() {
        let budget = limited(0.42);
        let mut rng = nyx_base::Rng::with_seed(7);
        let mut grants = Vec::new();
        let mut at = 0;
        while at < 5_000 * MS {
            // A machine with stalls: mostly fine steps, now and then a gap of up to 60 ms.
            at += if rng.u32(..200) == 0 {
                rng.u64(..60 * MS)
            } else {
                rng.u64(..200_000)
            };
            grants.push((at, drain(&budget, at)));
        }
        for (i, &(start, _)) in grants.iter().enumerate() {
            let window = grants[i..]
                .iter()
                .take_while(|&&(t, _)| t < start + 100 * MS);
            let used: u64 = window.map(|&(_, ps)| ps).sum();
            assert!(
                used as f64 / 1e11 < 0.43,
                "from {start} ns: {}",
                used as f64 / 1e11
            );
        }
    }

    #[test]
    fn time_lost_to_a_stall_is_caught_up_with() {
        let budget = limited(0.42);
        let mut used = 0;
        for tick in 1..=40_000 {
            // 20 ms of every 4 s are lost: 0.5 %.
            if tick % 16_000 >= 80 {
                used += drain(&budget, tick * MS / 4);
            }
        }
        let share = used as f64 / 1e13;
        assert!((share - 0.42).abs() < 0.001, "{share}");
    }

    #[test]
    fn idleness_is_not_saved_up_for_ever() {
        let budget = limited(0.1);
        let after_an_hour: u64 = (0..100)
            .map(|ms| drain(&budget, 3600 * 1000 * MS + ms * MS))
            .sum();
        assert!(
            after_an_hour as f64 / 1e11 < 0.11,
            "{}",
            after_an_hour as f64 / 1e11
        );
    }

    #[test]
    fn what_is_reserved_comes_in_the_order_of_asking() {
        let budget = limited(0.5);
        while drain(&budget, 10 * MS) > 0 {}
        let now = Instant(10 * MS);
        let first = budget.reserve(now, 1_000_000);
        let second = budget.reserve(now, 1_000_000);
        assert!(now < first.from && first.from < second.from);
        assert_eq!(budget.redeem(now, &first), Err(first.from));
        // Whoever comes later gets nothing of it, even if it asks before the others redeem.
        assert_eq!(budget.lease(second.from, u64::MAX >> 20), 0);
        assert_eq!(budget.redeem(second.from, &first), Ok(1_000_000));
        assert_eq!(budget.redeem(second.from, &second), Ok(1_000_000));
    }

    #[test]
    fn a_new_limit_does_not_wait_for_what_was_reserved_under_the_old_one() {
        let budget = limited(1e-6);
        let now = Instant(10 * MS);
        let reserved = budget.reserve(now, 1_000_000_000);
        assert!(reserved.from.since(now) > Nanos::from_secs(100));
        budget.set_limit(now, Limit::sustained(Rate::of_share(0.5)));
        let until = budget
            .redeem(now, &reserved)
            .expect_err("2 ms at the new rate");
        let wait_ns = until.since(now).0;
        assert!((1_999_900..=2_000_000).contains(&wait_ns), "{wait_ns} ns");
        assert_eq!(budget.redeem(until, &reserved), Ok(1_000_000_000));
        // Nothing of it was given twice, and nothing lost.
        assert_eq!(drain(&budget, until.0), 0);
        let soon = until + Nanos::from_micros(500);
        assert_eq!(drain(&budget, soon.0), 250_000_000);
    }

    #[test]
    fn what_was_earned_of_a_reservation_survives_a_change_of_the_limit() {
        let budget = limited(0.5);
        while drain(&budget, 10 * MS) > 0 {}
        let reserved = budget.reserve(Instant(10 * MS), 1_000_000_000);
        let length = reserved.from.since(Instant(10 * MS)).0;
        let half = Instant(10 * MS + length / 2);
        budget.set_limit(half, Limit::sustained(Rate::of_share(0.4)));
        let until = budget.redeem(half, &reserved).expect_err("half is missing");
        // There is enough unused time: what it waits for is the rate of catching up.
        let rest_ns = (length - length / 2) * 503 / 403;
        assert!(until.since(half).0.abs_diff(rest_ns) <= 2, "{until:?}");
        assert_eq!(budget.redeem(until, &reserved), Ok(1_000_000_000));
        // Where there is no limit any more nobody waits, nor under a limit that comes later.
        let reserved = budget.reserve(until, 1_000_000_000);
        budget.set_limit(until, Limit::NONE);
        assert_eq!(budget.redeem(until, &reserved), Ok(1_000_000_000));
        budget.set_limit(until, Limit::sustained(Rate::of_share(1e-6)));
        assert_eq!(budget.redeem(until, &reserved), Ok(1_000_000_000));
    }

    fn below(above: &Arc<Budget>, share: Option<f64>) -> Budget {
        let budget = share.map_or_else(Budget::unlimited, limited);
        budget.set_above(Some(above.clone()));
        budget
    }

    #[test]
    fn a_group_stays_below_its_limit_and_each_tenant_below_its_own() {
        let group = Arc::new(limited(0.3));
        let tenants = [below(&group, Some(0.1)), below(&group, None)];
        let mut used = [0; 2];
        for tick in 1..=40_000 {
            // Who asks first differs from time to time.
            let first = tick as usize % 2;
            for at in [first, 1 - first] {
                used[at] += drain(&tenants[at], tick * MS / 4);
            }
        }
        let shares = used.map(|used| used as f64 / 1e13);
        assert!((shares[0] + shares[1] - 0.3).abs() < 1e-4, "{shares:?}");
        assert!(shares[0] <= 0.1001, "{shares:?}");
        // Alone the limited one has its own limit, not half of the group's.
        let alone: u64 = (40_001..=80_000)
            .map(|t| drain(&tenants[0], t * MS / 4))
            .sum();
        assert!((alone as f64 / 1e13 - 0.1).abs() < 1e-4, "{alone}");
    }

    #[test]
    fn what_the_group_does_not_grant_is_not_lost() {
        let group = Arc::new(limited(1e-6));
        let tenant = below(&group, Some(0.5));
        assert!(drain(&tenant, 100 * MS) < 1_000_000);
        group.set_limit(Instant(100 * MS), Limit::NONE);
        let there = drain(&tenant, 101 * MS);
        assert!(there >= 400_000_000, "{there}");
    }

    #[test]
    fn who_waits_for_its_group_waits_for_the_groups_limit() {
        let group = Arc::new(limited(0.5));
        let tenants = [below(&group, None), below(&group, None)];
        while drain(&tenants[0], 10 * MS) > 0 {}
        let now = Instant(10 * MS);
        let first = tenants[0].reserve(now, 1_000_000_000);
        let second = tenants[1].reserve(now, 1_000_000_000);
        let waits = |reserved: &Reserved| reserved.from.since(now).0 as f64 / 1e6;
        assert!((waits(&first) - 2.0).abs() < 0.1, "{first:?}");
        assert!((waits(&second) - 4.0).abs() < 0.1, "{second:?}");
        assert_eq!(tenants[1].redeem(now, &second), Err(second.from));
        // Out of the group nobody waits for it.
        tenants[1].set_above(None);
        assert!(tenants[1].redeem(now, &second).is_ok());
        assert!(!tenants[1].is_limited());
        group.set_limit(Instant(11 * MS), Limit::NONE);
        assert!(tenants[0].redeem(Instant(11 * MS), &first).is_ok());
        assert_eq!(tenants[0].portion(Nanos::ZERO), None);
    }

    #[test]
    fn what_workers_write_lies_apart_from_what_every_access_reads() {
        let budget = Budget::unlimited();
        // The padding keeps lines apart that are fetched in pairs.
        let pair = |at: *const u8| at.addr() / size_of::<CachePadded<u8>>();
        let read = [
            pair((&raw const budget.terms.is_limited).cast()),
            pair((&raw const budget.terms.delay_units).cast()),
            pair((&raw const budget.terms.byte_price_ps).cast()),
        ];
        let written = [
            pair((&raw const budget.buckets.line).cast()),
            pair((&raw const budget.buckets.above).cast()),
            pair((&raw const budget.buckets.peak_empty_ns).cast()),
        ];
        assert!(read.iter().all(|at| !written.contains(at)));
    }

    #[test]
    fn a_change_that_comes_late_gives_nothing_twice() {
        let budget = limited(0.5);
        while drain(&budget, 10 * MS) > 0 {}
        // The tick began a millisecond ago; what was leased since is spent.
        budget.set_limit(Instant(9 * MS), Limit::sustained(Rate::of_share(0.4)));
        assert_eq!(drain(&budget, 10 * MS), 0);
        let reserved = budget.reserve(Instant(10 * MS), 400_000_000);
        let then = reserved.from;
        assert_eq!(budget.redeem(then, &reserved), Ok(400_000_000));
        budget.set_limit(Instant(9 * MS), Limit::sustained(Rate::of_share(0.4)));
        assert_eq!(drain(&budget, then.0), 0);
    }

    #[test]
    fn a_burst_uses_what_was_saved_up_and_no_more() {
        let budget = Budget::unlimited();
        let limit = Limit::with_burst(Rate::of_share(0.1), Nanos::from_secs(1));
        budget.set_limit(Instant(0), limit);
        // After ten idle seconds: a tenth of a second of the device, as fast as it goes.
        let burst: u64 = (0..200)
            .map(|ms| drain(&budget, 10_000 * MS + ms * MS))
            .sum();
        let share = burst as f64 / 1e12;
        assert!((0.1..0.13).contains(&share), "{share}");
        let then: u64 = (200..2_200)
            .map(|ms| drain(&budget, 10_000 * MS + ms * MS))
            .sum();
        assert!((then as f64 / 2e12 - 0.1).abs() < 0.001, "{then}");
    }

    #[test]
    fn two_workers_together_get_no_more_than_one() {
        let budget = limited(0.3);
        let used: u64 = std::thread::scope(|scope| {
            let worker = || {
                (1..=20_000u64)
                    .map(|t| budget.lease(Instant(t * 50_000), 9_000_000))
                    .sum()
            };
            let threads: [std::thread::ScopedJoinHandle<'_, u64>; 2] =
                [scope.spawn(worker), scope.spawn(worker)];
            threads.into_iter().map(|t| t.join().expect("worker")).sum()
        });
        assert!(used as f64 / 1e12 <= 0.3 * 1.0001, "{}", used as f64 / 1e12);
    }
}
