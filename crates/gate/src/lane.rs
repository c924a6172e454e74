//! An access: gate, charge, copy. A [`Lane`] is tenant + worker + device and the only way to touch
//! a mapped medium; it is always metered, so unmetered access cannot be written (NyxCache section
//! 3.1: "must use Nyx library APIs").
//!
//! Where the paper's library spins, for ever if it must, a Nyx worker serves many tenants: short
//! delays add up to a debt that is paid by spinning for at most [`SPIN_MAX`] at a time; anything
//! longer is [`Gate::Closed`], and the caller parks the request, never the thread.
//!
//! A [`Toll`] is the charge without the copy, for devices whose bytes come by requests.
//!
//! *Thread safety*: a [`Tolls`] belongs to one worker. What it shares with the controller are the
//! accounts (it writes) and the budgets (it reads and leases).

use crate::account::Account;
use crate::budget::{Budget, DELAY_INFINITE, DELAY_UNIT, Reserved};
use crate::cost::{CHUNK_BYTES, CostTable};
use nyx_base::{CachePadded, Clock, DevicePs, Instant, Nanos, TenantId, WorkerId};
use nyx_media::{Front, Media, Op, Via};
use std::sync::Arc;

/// The longest that a worker spins for one tenant's sake.
pub const SPIN_MAX: Nanos = Nanos(2_000);
/// Delays are paid in pieces of at least this: a spin of 10 ns takes 23 ns, one of 200 is exact.
const SPIN_MIN: Nanos = Nanos(200);

/// What somebody reserves at once who makes accesses elsewhere: what is earned in [`TURN_MIN`], and
/// no more than this. Others of his tenant, or of its group, wait as long for him, and get less in
/// their turns; he asks for each.
pub const TURN: DevicePs = DevicePs(200_000_000);
const TURN_MIN: Nanos = Nanos::from_millis(1);

/// What a worker leases where nothing is limited, so that it looks again soon: 20 us of the device.
const FREE_LEASE_PS: i64 = 20_000_000;

/// One device as every tenant on it shares it.
pub struct Device {
    /// Its name in configuration and figures.
    pub name: String,
    /// Its bytes.
    pub media: Arc<dyn Media>,
    /// Its prices.
    pub cost: CostTable,
}

/// Whether an access may go ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Go ahead.
    Open,
    /// Come again at `until`; [`Instant::NEVER`] means "when the controller says so".
    Closed {
        /// When to ask again.
        until: Instant,
    },
}

/// What somebody gets who makes accesses elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// So much device time.
    Granted(DevicePs),
    /// Nothing is limited.
    Free,
    /// Nothing now: come again at `until`, as with [`Gate::Closed`].
    Closed {
        /// When to ask again.
        until: Instant,
    },
}

impl Gate {
    /// Whether to go ahead.
    #[inline]
    pub fn is_open(self) -> bool {
        self == Gate::Open
    }
}

/// What one worker has of one tenant's part of one device: it charges and paces, whatever the
/// bytes come from. *Thread safety*: one worker's.
pub struct Toll {
    account: Arc<CachePadded<Account>>,
    budget: Arc<Budget>,
    /// Leased and not yet spent; negative after an access that cost more than was left.
    lease_ps: i64,
    /// What the worker waits for, where it was granted too little.
    reserved: Option<Reserved>,
    /// Delay owed and not yet paid.
    debt: Nanos,
    draws: Draws,
}

/// Of a toll, what is for accesses that are made elsewhere.
#[derive(Default)]
struct Draws {
    /// Leased and not yet given.
    left_ps: u64,
    reserved: Option<Reserved>,
}

/// What one worker holds for one tenant.
struct LaneState {
    device: Arc<Device>,
    toll: Toll,
}

/// All lanes of one worker, and the front end that they share: the worker's own memory pipeline.
pub struct Tolls {
    worker: WorkerId,
    clock: Arc<dyn Clock>,
    front: Front,
    hold_min: Nanos,
    lanes: Vec<Option<LaneState>>,
    /// The devices of the lanes, each once.
    devices: Vec<Arc<Device>>,
}

/// How a worker waits.
#[derive(Clone, Copy)]
pub struct Pace<'w> {
    clock: &'w dyn Clock,
    hold_min: Nanos,
}

/// A tenant's metered way to its device, for the length of one command.
pub struct Lane<'w> {
    state: &'w mut LaneState,
    front: &'w mut Front,
    pace: Pace<'w>,
}

impl Tolls {
    /// The lanes of `worker`, none yet.
    pub fn new(worker: WorkerId, clock: Arc<dyn Clock>) -> Tolls {
        Tolls {
            worker,
            clock,
            front: Front::default(),
            hold_min: Nanos::ZERO,
            lanes: Vec::new(),
            devices: Vec::new(),
        }
    }

    /// Whose lanes these are.
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Who has to wait waits for what is earned in at least `hold_min`. Zero, where it begins, is
    /// for drivers that come back to the nanosecond and makes bursts of a few accesses; one that
    /// sleeps and is late gives the time below which waking is not worth its cost. Workers that
    /// share tenants must agree on it: they take turns, and each turn is for so much.
    pub fn hold_at_least(&mut self, hold_min: Nanos) {
        self.hold_min = hold_min;
    }

    /// Opens a lane for `tenant` to `device`, or replaces the one that it had.
    pub fn open(
        &mut self,
        tenant: TenantId,
        device: Arc<Device>,
        account: Arc<CachePadded<Account>>,
        budget: Arc<Budget>,
    ) {
        let at = tenant.index();
        if self.lanes.len() <= at {
            self.lanes.resize_with(at + 1, || None);
        }
        if !self.devices.iter().any(|known| Arc::ptr_eq(known, &device)) {
            self.devices.push(device.clone());
        }
        let toll = Toll::new(account, budget);
        self.lanes[at] = Some(LaneState { device, toll });
    }

    /// Waits until every read of this worker has arrived. Call it once per batch, before the bytes
    /// are handed out; it matters for modelled devices only.
    pub fn settle(&mut self) {
        for device in &self.devices {
            device.media.settle(&mut self.front);
        }
    }

    /// The lane of `tenant`. Panics where none was opened.
    #[inline]
    pub fn lane(&mut self, tenant: TenantId) -> Lane<'_> {
        self.opened(tenant).expect("the tenant's lane is open")
    }

    /// The lane of `tenant`, where one was opened.
    #[inline]
    pub fn opened(&mut self, tenant: TenantId) -> Option<Lane<'_>> {
        Some(Lane {
            state: self.lanes.get_mut(tenant.index())?.as_mut()?,
            front: &mut self.front,
            pace: Pace {
                clock: &*self.clock,
                hold_min: self.hold_min,
            },
        })
    }
}

impl Pace<'_> {
    /// The worker's clock.
    #[inline]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }
}

/// What so many accesses of so many bytes together take, of which each page beyond an access' first
/// costs the same; shorter ones are as long as their mean.
fn price_of_all(cost: &CostTable, op: Op, accesses: u64, bytes: u64) -> u64 {
    let pages = bytes / CHUNK_BYTES as u64;
    if pages < accesses {
        let len = usize::try_from(bytes / accesses).unwrap_or(CHUNK_BYTES);
        return cost.price(op, len).0.saturating_mul(accesses);
    }
    let [one, two] = [1, 2].map(|pages| cost.price(op, pages * CHUNK_BYTES).0);
    let further = two.saturating_sub(one).saturating_mul(pages - accesses);
    one.saturating_mul(accesses).saturating_add(further)
}

impl Toll {
    /// One that has leased nothing yet.
    pub fn new(account: Arc<CachePadded<Account>>, budget: Arc<Budget>) -> Toll {
        Toll {
            account,
            budget,
            lease_ps: 0,
            reserved: None,
            debt: Nanos::ZERO,
            draws: Draws::default(),
        }
    }

    /// Whether the tenant may access its device now. Ask before each command that will; what one
    /// access costs beyond the lease is owed and paid back before the next.
    #[inline]
    pub fn gate(&mut self, pace: Pace<'_>, now: Instant) -> Gate {
        if cfg!(feature = "unmetered") {
            return Gate::Open;
        }
        if (self.debt >= SPIN_MIN || self.budget.delay_units() == DELAY_INFINITE)
            && let closed @ Gate::Closed { .. } = self.pay_delay(pace.clock, now)
        {
            return closed;
        }
        if self.lease_ps > 0 || !self.budget.is_limited() {
            return Gate::Open;
        }
        self.renew(pace.hold_min, now)
    }

    #[cold]
    fn pay_delay(&mut self, clock: &dyn Clock, now: Instant) -> Gate {
        if self.budget.is_paused(now) {
            self.account.holds.add(1);
            return Gate::Closed {
                until: Instant::NEVER,
            };
        }
        let debt = std::mem::take(&mut self.debt);
        if debt <= SPIN_MAX {
            clock.spin_until(clock.now() + debt);
            return Gate::Open;
        }
        self.account.holds.add(1);
        Gate::Closed { until: now + debt }
    }

    /// Leases some more. Out of line: it happens once for many accesses.
    #[inline(never)]
    fn renew(&mut self, hold_min: Nanos, now: Instant) -> Gate {
        let budget = &self.budget;
        match self
            .reserved
            .as_ref()
            .map(|reserved| budget.redeem(now, reserved))
        {
            Some(Err(until)) => {
                self.account.holds.add(1);
                return Gate::Closed { until };
            }
            Some(Ok(ps)) => {
                self.lease_ps += ps as i64;
                self.reserved = None;
            }
            None => {}
        }
        // The limit may just have been lifted, or there is none above either.
        let Some(portion) = budget.portion(hold_min) else {
            self.lease_ps = FREE_LEASE_PS;
            return Gate::Open;
        };
        if self.lease_ps <= 0 {
            let owed = self.lease_ps.unsigned_abs();
            self.lease_ps += budget.lease(now, owed + portion.lease_ps) as i64;
        }
        if self.lease_ps > 0 {
            return Gate::Open;
        }
        self.account.holds.add(1);
        let missing = self.lease_ps.unsigned_abs() + portion.hold_ps;
        let reserved = budget.reserve(now, missing);
        let until = reserved.from;
        self.reserved = Some(reserved);
        Gate::Closed { until }
    }

    /// Device time for somebody who makes accesses of the tenant's elsewhere: `want` of it, or
    /// less. Where there is next to none some is reserved, as [`Toll::gate`] does, up to
    /// [`TURN`]: he comes seldom, and those who ask for each access take turns with him. What he
    /// does with it comes back by [`Toll::note`].
    pub fn draw(&mut self, now: Instant, want: DevicePs) -> Draw {
        if cfg!(feature = "unmetered") {
            return Draw::Free;
        }
        let Toll {
            account,
            budget,
            draws,
            ..
        } = self;
        let held = |until| {
            account.holds.add(1);
            Draw::Closed { until }
        };
        if budget.delay_units() == DELAY_INFINITE && budget.is_paused(now) {
            return held(Instant::NEVER);
        }
        // Of the tightest limit: there may be one above alone.
        let Some(portion) = budget.portion(TURN_MIN) else {
            *draws = Draws::default();
            return Draw::Free;
        };
        if let Some(reserved) = &draws.reserved {
            match budget.redeem(now, reserved) {
                Err(until) => return held(until),
                Ok(ps) => draws.left_ps += ps,
            }
            draws.reserved = None;
        }
        draws.left_ps += budget.lease(now, want.0.saturating_sub(draws.left_ps));
        let turn = want.0.min(portion.hold_ps.min(TURN.0));
        if draws.left_ps >= turn.div_ceil(2) {
            let granted = draws.left_ps.min(want.0);
            draws.left_ps -= granted;
            return Draw::Granted(DevicePs(granted));
        }
        let reserved = budget.reserve(now, turn - draws.left_ps);
        let until = reserved.from;
        draws.reserved = Some(reserved);
        held(until)
    }

    /// What an access of so many bytes takes of what was drawn.
    pub fn price(&self, cost: &CostTable, op: Op, len: usize) -> DevicePs {
        match self.budget.byte_price_ps() {
            0 => cost.price(op, len),
            per_byte => DevicePs(per_byte * len as u64),
        }
    }

    /// Charges accesses that somebody made with what he had drawn: so many, of so many bytes
    /// together. The budget has given for them already.
    pub fn note(&mut self, cost: &CostTable, op: Op, accesses: u64, bytes: u64) {
        if cfg!(feature = "unmetered") || accesses == 0 {
            return;
        }
        let price_ps = price_of_all(cost, op, accesses, bytes);
        self.account.add(op, price_ps, accesses, bytes);
    }

    /// Charges one access. Whoever makes accesses calls it for each.
    #[inline]
    pub fn charge(&mut self, cost: &CostTable, op: Op, len: usize) {
        if cfg!(feature = "unmetered") {
            return;
        }
        let price = cost.price(op, len);
        self.account.add(op, price.0, 1, len as u64);
        let budget = &self.budget;
        if budget.is_limited() {
            let spent = match budget.byte_price_ps() {
                0 => price.0,
                per_byte => per_byte * len as u64,
            };
            self.lease_ps -= spent as i64;
        }
        let delay = budget.delay_units();
        if delay != 0 && delay != DELAY_INFINITE {
            self.debt = self.debt + Nanos(u64::from(delay) * DELAY_UNIT.0);
        }
    }
}

impl<'w> Lane<'w> {
    /// How its worker waits.
    #[inline]
    pub fn pace(&self) -> Pace<'w> {
        self.pace
    }

    /// Whether the tenant may access its device now: see [`Toll::gate`].
    #[inline]
    pub fn gate(&mut self, now: Instant) -> Gate {
        self.state.toll.gate(self.pace, now)
    }

    /// For somebody who makes accesses elsewhere: see [`Toll::draw`].
    pub fn draw(&mut self, now: Instant, want: DevicePs) -> Draw {
        self.state.toll.draw(now, want)
    }

    /// What an access takes of what was drawn: see [`Toll::price`].
    pub fn price(&self, op: Op, len: usize) -> DevicePs {
        self.state.toll.price(&self.state.device.cost, op, len)
    }

    /// Charges what was made with it: see [`Toll::note`].
    pub fn note(&mut self, op: Op, accesses: u64, bytes: u64) {
        let LaneState { device, toll } = &mut *self.state;
        toll.note(&device.cost, op, accesses, bytes);
    }

    #[inline]
    fn charge(&mut self, op: Op, len: usize) {
        let LaneState { device, toll } = &mut *self.state;
        toll.charge(&device.cost, op, len);
    }

    /// Copies `into.len()` bytes from `at`.
    #[inline]
    pub fn read(&mut self, at: u64, into: &mut [u8]) {
        self.charge(Op::Read, into.len());
        self.state.device.media.read(self.front, at, into);
    }

    /// Copies `from` to `at` by non-temporal stores.
    #[inline]
    pub fn write(&mut self, at: u64, from: &[u8]) {
        self.charge(Op::Write, from.len());
        self.state
            .device
            .media
            .write(self.front, at, from, Via::NonTemporal);
    }

    /// Copies `from` to `at` through the CPU cache.
    #[inline]
    pub fn write_cached(&mut self, at: u64, from: &[u8]) {
        self.charge(Op::Write, from.len());
        self.state
            .device
            .media
            .write(self.front, at, from, Via::Cached);
    }

    /// Makes earlier writes to the range durable, as far as the medium can. Not charged: profiles
    /// are made of plain writes.
    pub fn persist(&mut self, at: u64, len: u64) {
        self.state.device.media.persist(self.front, at, len);
    }

    /// Asks for bytes to be brought near.
    #[inline]
    pub fn prefetch(&self, at: u64, len: usize) {
        self.state.device.media.prefetch(at, len);
    }

    /// Asks for the place of a write that is to come.
    #[inline]
    pub fn prefetch_write(&self, at: u64, len: usize) {
        self.state.device.media.prefetch_write(at, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Limit, Rate};
    use nyx_media::mapped::Mapped;

    /// Nobody spins here.
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Instant {
            Instant(0)
        }
        fn spin_until(&self, _until: Instant) {}
    }

    const TENANT: TenantId = TenantId(0);
    const MS: u64 = 1_000_000;

    fn tolls(worker: u16, device: &Arc<Device>, budget: &Arc<Budget>) -> Tolls {
        let mut tolls = Tolls::new(WorkerId(worker), Arc::new(Still));
        let account = Arc::new(CachePadded(Account::default()));
        tolls.open(TENANT, device.clone(), account, budget.clone());
        tolls
    }

    /// One whose accesses take a microsecond each.
    fn device() -> Arc<Device> {
        device_of(1e6)
    }

    fn device_of(ops_per_s: f64) -> Arc<Device> {
        let rates = [ops_per_s; crate::cost::STEPS];
        Arc::new(Device {
            name: "test".into(),
            media: Arc::new(Mapped::anonymous(1 << 16).expect("memory")),
            cost: CostTable::from_max_iops(&rates, &rates),
        })
    }

    /// Reads while the gate lets it, at most `most` times; when to come again.
    fn read_all(tolls: &mut Tolls, now: Instant, most: u64, reads: &mut u64) -> Instant {
        let mut into = [0; 64];
        for _ in 0..most {
            let mut lane = tolls.lane(TENANT);
            match lane.gate(now) {
                Gate::Open => lane.read(0, &mut into),
                Gate::Closed { until } => return until,
            }
            *reads += 1;
        }
        now
    }

    #[test]
    fn a_worker_that_sleeps_as_it_was_told_gets_as_much_as_one_that_keeps_asking() {
        let (device, budget) = (device(), Arc::new(Budget::unlimited()));
        budget.set_limit(Instant(0), Limit::sustained(Rate::of_share(0.1)));
        let mut restless = tolls(0, &device, &budget);
        let mut patient = tolls(1, &device, &budget);
        let (mut often, mut seldom, mut wake) = (0, 0, Instant(0));
        for now in (MS..1_000 * MS).step_by(1_000).map(Instant) {
            read_all(&mut restless, now, 8, &mut often);
            if wake <= now {
                wake = read_all(&mut patient, now, u64::MAX, &mut seldom);
            }
        }
        let share = seldom as f64 / (often + seldom) as f64;
        assert!(
            (0.45..0.55).contains(&share),
            "{seldom} of {}",
            often + seldom
        );
        let used = (often + seldom) as f64 * 1e-6;
        assert!((used - 0.1).abs() < 0.002, "{used} of the device");
    }

    /// Draws so much whenever it may, as who makes accesses elsewhere: what it was granted, until
    /// a second is over.
    fn drawn(tolls: &mut Tolls, want: DevicePs) -> u64 {
        let (mut now, mut sum) = (Instant(MS), 0);
        while now < Instant(1_000 * MS) {
            match tolls.lane(TENANT).draw(now, want) {
                Draw::Granted(granted) => {
                    assert!(granted <= want && granted.0 >= 50_000_000);
                    sum += granted.0;
                }
                Draw::Closed { until } => {
                    assert!(until > now, "it would ask for ever");
                    now = until;
                }
                Draw::Free => panic!("there is a limit"),
            }
        }
        sum
    }

    #[test]
    fn who_draws_gets_the_limit_and_asks_seldom() {
        let (device, budget) = (device(), Arc::new(Budget::unlimited()));
        budget.set_limit(Instant(0), Limit::sustained(Rate::of_share(0.1)));
        let mut tolls = tolls(0, &device, &budget);
        let want = DevicePs(1_000_000_000);
        let share = drawn(&mut tolls, want) as f64 * 1e-12;
        assert!((0.098..0.102).contains(&share), "{share} of the device");
        let asked = tolls.lane(TENANT).state.toll.account.usage().holds;
        assert!((900..=1_100).contains(&asked), "{asked} holds for a second");
    }

    #[test]
    fn who_draws_and_who_reads_share_the_limit() {
        let (device, budget) = (device(), Arc::new(Budget::unlimited()));
        budget.set_limit(Instant(0), Limit::sustained(Rate::of_share(0.1)));
        let mut tolls = tolls(0, &device, &budget);
        let want = DevicePs(100_000_000);
        let (mut reads, mut wakes, mut drawn_ps) = (0, [Instant(MS); 2], 0);
        for now in (MS..1_000 * MS).step_by(1_000).map(Instant) {
            if wakes[0] <= now {
                wakes[0] = read_all(&mut tolls, now, u64::MAX, &mut reads);
            }
            if wakes[1] <= now {
                match tolls.lane(TENANT).draw(now, want) {
                    Draw::Granted(granted) => drawn_ps += granted.0,
                    Draw::Closed { until } => wakes[1] = until,
                    Draw::Free => panic!("there is a limit"),
                }
            }
        }
        let used = reads as f64 * 1e-6 + drawn_ps as f64 * 1e-12;
        assert!((used - 0.1).abs() < 0.003, "{used} of the device");
        // Turns are equal in number, not in device time.
        assert!(reads > 900 && drawn_ps > 90_000_000_000, "{reads} reads");
    }

    #[test]
    fn what_was_made_elsewhere_is_charged_and_not_paid_twice() {
        let (device, budget) = (device(), Arc::new(Budget::unlimited()));
        let mut tolls = tolls(0, &device, &budget);
        let want = DevicePs(1_000);
        assert_eq!(tolls.lane(TENANT).draw(Instant(0), want), Draw::Free);
        budget.set_limit(Instant(0), Limit::sustained(Rate::of_share(0.1)));
        let mut lane = tolls.lane(TENANT);
        assert_eq!(lane.price(Op::Read, 4096), DevicePs(1_000_000));
        lane.note(Op::Read, 3, 3 * 8192);
        lane.note(Op::Write, 1, 4096);
        lane.note(Op::Write, 0, 4096);
        let usage = lane.state.toll.account.usage();
        let used = [usage.read_used.0, usage.write_used.0];
        assert_eq!(used, [6_000_000, 1_000_000], "two chunks each, and one");
        assert_eq!((usage.reads, usage.read_bytes), (3, 24_576));
        assert_eq!((usage.writes, usage.written_bytes), (1, 4_096));
        // It owes nothing: the budget had given it before.
        assert_eq!(lane.state.toll.lease_ps, 0);
        budget.set_byte_price(DevicePs(7));
        assert_eq!(tolls.lane(TENANT).price(Op::Read, 4096), DevicePs(28_672));
    }

    #[test]
    fn each_page_beyond_the_first_of_an_access_costs_the_same_whatever_the_mix() {
        let rates = [1e6; crate::cost::STEPS];
        let further = DevicePs(100_000);
        let cost = CostTable::from_max_iops(&rates, &rates).with_further_chunks(further, further);
        let price =
            |accesses: u64, pages: u64| price_of_all(&cost, Op::Read, accesses, pages * 4096);
        assert_eq!(price(1, 1), 1_000_000);
        assert_eq!(price(2, 5), 2_000_000 + 3 * 100_000);
        assert_eq!(price(3, 34), price(2, 2) + price(1, 32));
        assert_eq!(price_of_all(&cost, Op::Read, 4, 1_000), 4_000_000);
        assert_eq!(price_of_all(&cost, Op::Read, 1 << 32, u64::MAX), u64::MAX);
    }

    #[test]
    fn where_only_a_budget_above_has_no_limit_either_nothing_is_limited() {
        let (device, budget) = (device(), Arc::new(Budget::unlimited()));
        let above = Arc::new(Budget::unlimited());
        budget.set_above(Some(above.clone()));
        let mut tolls = tolls(0, &device, &budget);
        let want = DevicePs(1_000);
        assert_eq!(tolls.lane(TENANT).draw(Instant(MS), want), Draw::Free);
        above.set_limit(Instant(MS), Limit::sustained(Rate::of_share(0.1)));
        let drawn = tolls.lane(TENANT).draw(Instant(2 * MS), want);
        assert_eq!(drawn, Draw::Granted(want));
    }

    #[test]
    fn a_pause_that_nobody_prolongs_ends_and_limits_stay() {
        let (device, budget) = (device(), Arc::new(Budget::unlimited()));
        budget.set_limit(Instant(0), Limit::sustained(Rate::of_share(0.1)));
        budget.set_delay(DELAY_INFINITE);
        budget.pause_until(Instant(50 * MS));
        let mut tolls = tolls(0, &device, &budget);
        let mut reads = 0;
        let until = read_all(&mut tolls, Instant(49 * MS), u64::MAX, &mut reads);
        assert_eq!((until, reads), (Instant::NEVER, 0));
        let until = read_all(&mut tolls, Instant(50 * MS), u64::MAX, &mut reads);
        assert!(
            reads > 0 && until < Instant::NEVER,
            "held by its limit alone"
        );
    }

    /// How much device time comes at once when workers that never have enough come back so long
    /// after they were told to, at most, in 100 ms of a limit; how much each got; how often each
    /// was held.
    fn backlog(share: f64, hold_min: Nanos, late: u64) -> (f64, [u64; 2], u64) {
        let (device, budget) = (device_of(2e7), Arc::new(Budget::unlimited()));
        budget.set_limit(Instant(0), Limit::sustained(Rate::of_share(share)));
        let mut workers = [tolls(0, &device, &budget), tolls(1, &device, &budget)];
        let (mut got, mut wakes, mut most) = ([0; 2], [Instant(MS); 2], 0);
        let (mut holds, mut rng) = (0, nyx_base::Rng::with_seed(7));
        workers
            .iter_mut()
            .for_each(|tolls| tolls.hold_at_least(hold_min));
        while wakes.iter().min() < Some(&Instant(151 * MS)) {
            let at = usize::from(wakes[1] < wakes[0]);
            let (now, mut reads) = (wakes[at], 0);
            let until = read_all(&mut workers[at], now, u64::MAX, &mut reads);
            wakes[at] = until + Nanos(rng.u64(..=late));
            // What was saved up before it was asked for is no portion.
            if now > Instant(51 * MS) {
                got[at] += reads;
                holds += 1;
                most = reads.max(most);
            }
        }
        (most as f64 * 0.05, got, holds)
    }

    /// Whose limits move up and down at each tick.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Moves {
        Tenants,
        Group,
        All,
    }

    /// How much of a device eight workers of two tenants of a group use who never have enough.
    fn used_while_limits_move(moves: Moves, ops_per_s: f64, tick: Nanos) -> f64 {
        let device = device_of(ops_per_s);
        let limit = |budget: &Budget, now, share| {
            budget.set_limit(now, Limit::sustained(Rate::of_share(share)));
        };
        let group = Arc::new(Budget::unlimited());
        limit(&group, Instant(0), 0.3);
        let tenants: [Arc<Budget>; 2] = std::array::from_fn(|_| Arc::default());
        for tenant in &tenants {
            tenant.set_above(Some(group.clone()));
            limit(tenant, Instant(0), 0.2);
        }
        let mut workers: Vec<(Tolls, Instant)> = (0..8)
            .map(|at| {
                let mut tolls = tolls(at, &device, &tenants[usize::from(at % 2)]);
                tolls.hold_at_least(Nanos::from_micros(50));
                (tolls, Instant(MS))
            })
            .collect();
        let (mut reads, mut next, mut up) = (0, Instant(0), 0.01);
        loop {
            let first = workers.iter_mut().min_by_key(|(_, wake)| *wake);
            let (tolls, wake) = first.expect("eight of them");
            let now = *wake;
            if now >= Instant(500 * MS) {
                return reads as f64 / ops_per_s / 0.5;
            }
            while next <= now {
                if moves != Moves::Group {
                    tenants.iter().for_each(|one| limit(one, next, 0.2 + up));
                }
                if moves != Moves::Tenants {
                    limit(&group, next, 0.3 + up);
                }
                (next, up) = (next + tick, -up);
            }
            let until = read_all(tolls, now, u64::MAX, &mut reads);
            // Nobody sleeps longer: a limit may have been raised.
            *wake = until.min(now + Nanos::from_millis(20));
        }
    }

    #[test]
    fn limits_that_move_lose_nothing_of_what_a_group_may_use() {
        for moves in [Moves::Tenants, Moves::Group, Moves::All] {
            // Accesses of 50 ns, and some that are waited for longer than limits stay.
            for (ops_per_s, tick_ms) in [(2e7, 10), (2e7, 2), (2e3, 10), (2e3, 2)] {
                let tick = Nanos::from_millis(tick_ms);
                let used = used_while_limits_move(moves, ops_per_s, tick);
                let at = format!("{moves:?}, {ops_per_s} ops/s, {tick}: {used}");
                // An access of each worker may be owed at the end.
                let most = 0.301 + 8.0 / ops_per_s / 0.5;
                assert!((0.299..most).contains(&used), "{at}");
            }
        }
    }

    #[test]
    fn in_a_group_who_sleeps_as_told_gets_as_much_as_who_keeps_asking() {
        let (device, group) = (device(), Arc::new(Budget::unlimited()));
        group.set_limit(Instant(0), Limit::sustained(Rate::of_share(0.1)));
        // One has a limit of its own, which does not matter.
        let tenants: [Arc<Budget>; 2] = std::array::from_fn(|_| Arc::default());
        tenants[0].set_limit(Instant(0), Limit::sustained(Rate::of_share(0.3)));
        for tenant in &tenants {
            tenant.set_above(Some(group.clone()));
        }
        for patient_at in [0, 1] {
            let mut restless = tolls(0, &device, &tenants[1 - patient_at]);
            let mut patient = tolls(1, &device, &tenants[patient_at]);
            let from = MS + patient_at as u64 * 1_000 * MS;
            let (mut often, mut seldom, mut wake) = (0, 0, Instant(from));
            for now in (from..from + 999 * MS).step_by(1_000).map(Instant) {
                read_all(&mut restless, now, 8, &mut often);
                if wake <= now {
                    wake = read_all(&mut patient, now, u64::MAX, &mut seldom);
                }
            }
            let share = seldom as f64 / (often + seldom) as f64;
            assert!((0.45..0.55).contains(&share), "{seldom} and {often}");
        }
    }

    /// What a group of two greedy tenants may use and uses in a second, in parts of the device,
    /// while limits of both kinds change at random, late, and those of tenants are lifted and set.
    fn may_use_and_uses(seed: u64) -> (f64, f64) {
        let mut rng = nyx_base::Rng::with_seed(seed);
        let (device, group) = (device_of(1e5), Arc::new(Budget::unlimited()));
        let tenants: [Arc<Budget>; 2] = std::array::from_fn(|_| Arc::default());
        for tenant in &tenants {
            tenant.set_above(Some(group.clone()));
        }
        // Whoever was late may catch up at once.
        let limit = |share| Limit::with_burst(Rate::of_share(share), Nanos::from_millis(100));
        let mut share = 0.3;
        group.set_limit(Instant(0), limit(share));
        let mut workers: Vec<(Tolls, Instant)> = (0..6)
            .map(|at| {
                (
                    tolls(at, &device, &tenants[usize::from(at % 2)]),
                    Instant(MS),
                )
            })
            .collect();
        let (mut reads, mut earned, mut since) = (0, 0.0, 0);
        loop {
            let first = workers.iter_mut().min_by_key(|(_, wake)| *wake);
            let (tolls, wake) = first.expect("six of them");
            let now = *wake;
            if now >= Instant(1_000 * MS) {
                earned += share * (1_000 * MS - since) as f64 / 1e9;
                return (earned, reads as f64 * 1e-5);
            }
            if rng.u32(..8) == 0 {
                let late = since.max(now.0.saturating_sub(rng.u64(..2 * MS)));
                earned += share * (late - since) as f64 / 1e9;
                (share, since) = (0.1 + 0.8 * rng.f64(), late);
                group.set_limit(Instant(late), limit(share));
            }
            if rng.u32(..8) == 0 {
                let limit = match rng.bool() {
                    true => Limit::NONE,
                    false => limit(0.9 + rng.f64()),
                };
                tenants[rng.usize(..2)].set_limit(now, limit);
            }
            let until = read_all(tolls, now, u64::MAX, &mut reads);
            *wake = until.min(now + Nanos::from_millis(1)) + Nanos(rng.u64(..20_000));
        }
    }

    #[test]
    fn whatever_limits_do_a_group_uses_what_it_may() {
        for seed in 0..8 {
            let (may, uses) = may_use_and_uses(seed);
            assert!((uses - may).abs() < 0.003, "{seed}: {uses} of {may}");
        }
    }

    #[test]
    fn a_backlog_comes_a_few_accesses_at_a_time_whatever_the_limit() {
        for share in [0.02, 0.1, 0.42, 0.9] {
            let (burst_us, got, _) = backlog(share, Nanos::ZERO, 0);
            assert!(burst_us <= 1.05, "{share}: {burst_us} us of the device");
            let used = (got[0] + got[1]) as f64 * 0.05e-6 / 0.1;
            assert!((used / share - 1.0).abs() < 0.005, "{share}: {used}");
        }
        // Nobody waits for it longer than for a lease.
        let (burst_us, ..) = backlog(0.01, Nanos::ZERO, 0);
        assert!(burst_us <= 0.25, "{burst_us} us of the device");
    }

    #[test]
    fn who_comes_seldom_is_held_seldom_and_workers_still_take_turns() {
        for late in [0, 10_000, 40_000] {
            let (burst_us, got, holds) = backlog(0.42, Nanos::from_micros(50), late);
            assert!((20.0..=22.0).contains(&burst_us), "{late}: {burst_us} us");
            assert!((1_900..=2_100).contains(&holds), "{late}: {holds} holds");
            let used = (got[0] + got[1]) as f64 * 0.05e-6 / 0.1;
            assert!((used - 0.42).abs() < 0.005, "{late}: {used}");
            let part = got[0] as f64 / (got[0] + got[1]) as f64;
            assert!((0.49..0.51).contains(&part), "{late}: {got:?}");
        }
    }
}
