//! An access: gate, charge, copy. A [`Lane`] is tenant + worker + device and the only way to touch
//! a medium; it is always metered, so unmetered access cannot be written (NyxCache section 3.1:
//! "must use Nyx library APIs").
//!
//! Where the paper's library spins, for ever if it must, a Nyx worker serves many tenants: short
//! delays add up to a debt that is paid by spinning for at most [`SPIN_MAX`] at a time; anything
//! longer is [`Gate::Closed`], and the caller parks the request, never the thread.
//!
//! *Thread safety*: a [`Tolls`] belongs to one worker. What it shares with the controller are the
//! accounts (it writes) and the budgets (it reads and leases).

use crate::account::Account;
use crate::budget::{Budget, DELAY_INFINITE, DELAY_UNIT};
use crate::cost::CostTable;
use nyx_base::{CachePadded, Clock, Instant, Nanos, TenantId, WorkerId};
use nyx_media::{Front, Media, Op, Via};
use std::sync::Arc;

/// The longest that a worker spins for one tenant's sake.
pub const SPIN_MAX: Nanos = Nanos(2_000);
/// Delays are paid in pieces of at least this: a spin of 10 ns takes 23 ns, one of 200 is exact.
const SPIN_MIN: Nanos = Nanos(200);

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

/// What one worker holds for one tenant.
struct LaneState {
    device: Arc<Device>,
    account: Arc<CachePadded<Account>>,
    budget: Arc<Budget>,
    /// Leased and not yet spent; negative after an access that cost more than was left.
    lease_ps: i64,
    /// Delay owed and not yet paid.
    debt: Nanos,
}

/// All lanes of one worker, and the front end that they share: the worker's own memory pipeline.
pub struct Tolls {
    worker: WorkerId,
    clock: Arc<dyn Clock>,
    front: Front,
    lanes: Vec<Option<LaneState>>,
    /// The devices of the lanes, each once.
    devices: Vec<Arc<Device>>,
}

/// A tenant's metered way to its device, for the length of one command.
pub struct Lane<'w> {
    state: &'w mut LaneState,
    front: &'w mut Front,
    clock: &'w dyn Clock,
}

impl Tolls {
    /// The lanes of `worker`, none yet.
    pub fn new(worker: WorkerId, clock: Arc<dyn Clock>) -> Tolls {
        Tolls {
            worker,
            clock,
            front: Front::default(),
            lanes: Vec::new(),
            devices: Vec::new(),
        }
    }

    /// Whose lanes these are.
    pub fn worker(&self) -> WorkerId {
        self.worker
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
        self.lanes[at] = Some(LaneState {
            device,
            account,
            budget,
            lease_ps: 0,
            debt: Nanos::ZERO,
        });
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
        let state = self.lanes[tenant.index()]
            .as_mut()
            .expect("the tenant's lane is open");
        Lane {
            state,
            front: &mut self.front,
            clock: &*self.clock,
        }
    }
}

impl Lane<'_> {
    /// Whether the tenant may access its device now. Ask before each command that will; what one
    /// access costs beyond the lease is owed and paid back before the next.
    #[inline]
    pub fn gate(&mut self, now: Instant) -> Gate {
        if cfg!(feature = "unmetered") {
            return Gate::Open;
        }
        if self.state.debt >= SPIN_MIN || self.state.budget.delay_units() == DELAY_INFINITE {
            return self.pay_delay(now);
        }
        if self.state.lease_ps > 0 || !self.state.budget.is_limited() {
            return Gate::Open;
        }
        self.renew(now)
    }

    #[cold]
    fn pay_delay(&mut self, now: Instant) -> Gate {
        if self.state.budget.delay_units() == DELAY_INFINITE {
            self.state.account.holds.add(1);
            return Gate::Closed {
                until: Instant::NEVER,
            };
        }
        let debt = std::mem::take(&mut self.state.debt);
        if debt <= SPIN_MAX {
            self.clock.spin_until(self.clock.now() + debt);
            return Gate::Open;
        }
        self.state.account.holds.add(1);
        Gate::Closed { until: now + debt }
    }

    /// Leases some more. Out of line: it happens once for many accesses.
    #[inline(never)]
    fn renew(&mut self, now: Instant) -> Gate {
        let quantum = self.state.budget.quantum();
        let owed = self.state.lease_ps.unsigned_abs();
        self.state.lease_ps += self.state.budget.lease(now, owed + quantum) as i64;
        if self.state.lease_ps > 0 {
            return Gate::Open;
        }
        self.state.account.holds.add(1);
        let missing = self.state.lease_ps.unsigned_abs() + quantum;
        Gate::Closed {
            until: self.state.budget.next(now, missing),
        }
    }

    #[inline]
    fn charge(&mut self, op: Op, len: usize) {
        if cfg!(feature = "unmetered") {
            return;
        }
        let price = self.state.device.cost.price(op, len);
        let account = &self.state.account;
        account.used_ps.add(price.0);
        match op {
            Op::Read => {
                account.reads.add(1);
                account.read_bytes.add(len as u64);
            }
            Op::Write => {
                account.writes.add(1);
                account.written_bytes.add(len as u64);
            }
        }
        let budget = &self.state.budget;
        if budget.is_limited() {
            let spent = match budget.byte_price_ps() {
                0 => price.0,
                per_byte => per_byte * len as u64,
            };
            self.state.lease_ps -= spent as i64;
        }
        let delay = budget.delay_units();
        if delay != 0 && delay != DELAY_INFINITE {
            self.state.debt = self.state.debt + Nanos(u64::from(delay) * DELAY_UNIT.0);
        }
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
