//! A worker's metered ways to both devices of its tenants.
//!
//! What it never does: offer a way to a device that is not charged.
//!
//! *Thread safety*: a [`Tolls`] belongs to one worker.

use crate::device::Deep;
use crate::hand::{Away, Done, Hand, Landing, Looked, PIECE_BYTES};
use crate::pair::{Desk, Pair, Toil};
use nyx_base::{CachePadded, Clock, DevicePs, Instant, Nanos, TenantId, WorkerId};
use nyx_gate::{Account, Budget, Device, Draw, Gate, Toll};
use nyx_media::Op;
use nyx_policy::nhc::{Kind, Side};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// All of one worker's ways: a lane of *gate*'s to the fast device of each tenant, and for those
/// that have a deep one a toll and a hand on it.
pub struct Tolls {
    fast: nyx_gate::Tolls,
    hands: Vec<Hand>,
    /// By tenant.
    deep: Vec<Option<DeepToll>>,
    toil: Toil,
}

struct DeepToll {
    hand: usize,
    toll: Toll,
    desk: Desk,
}

/// A tenant's metered way to its devices, for the length of one command: what *gate*'s lane does
/// for the fast one, and fetches and writes on the deep one.
pub struct Lane<'w> {
    fast: nyx_gate::Lane<'w>,
    deep: Option<DeepLane<'w>>,
}

struct DeepLane<'w> {
    tenant: TenantId,
    hand: &'w mut Hand,
    toll: &'w mut Toll,
    desk: &'w mut Desk,
    toil: Toil,
}

impl Tolls {
    /// The ways of `worker`, none yet.
    pub fn new(worker: WorkerId, clock: Arc<dyn Clock>) -> Tolls {
        Tolls {
            fast: nyx_gate::Tolls::new(worker, clock),
            hands: Vec::new(),
            deep: Vec::new(),
            toil: Toil::default(),
        }
    }

    /// Whose they are.
    pub fn worker(&self) -> WorkerId {
        self.fast.worker()
    }

    /// See [`nyx_gate::Tolls::hold_at_least`].
    pub fn hold_at_least(&mut self, hold_min: Nanos) {
        self.fast.hold_at_least(hold_min);
    }

    /// Opens a lane to a tenant's fast device, or replaces the one that it had.
    pub fn open(
        &mut self,
        tenant: TenantId,
        device: Arc<Device>,
        account: Arc<CachePadded<Account>>,
        budget: Arc<Budget>,
    ) {
        self.fast.open(tenant, device, account, budget);
    }

    /// Adds a hand on a deep device.
    pub fn add(&mut self, mut hand: Hand) {
        hand.number = self.hands.len();
        self.hands.push(hand);
    }

    /// Whether there is a hand on a device.
    pub fn has(&self, deep: &Arc<Deep>) -> bool {
        self.hands.iter().any(|hand| Arc::ptr_eq(hand.deep(), deep))
    }

    /// Says how many requests wait for this worker, beside the one that is executed.
    #[inline]
    pub fn set_waiting(&mut self, requests: u32) {
        self.toil.waiting = requests;
    }

    /// Says that this worker was at work for so long: all of them together are how busy it is.
    #[inline]
    pub fn worked(&mut self, time: Nanos) {
        self.toil.worked = self.toil.worked + time;
    }

    /// Opens the way to a tenant's deep device, as one of its pair.
    ///
    /// Panics where there is no hand on it.
    pub fn open_deep(
        &mut self,
        tenant: TenantId,
        pair: &Arc<Pair>,
        account: Arc<CachePadded<Account>>,
        budget: Arc<Budget>,
    ) {
        let is_it = |hand: &Hand| Arc::ptr_eq(hand.deep(), pair.deep());
        let hand = self.hands.iter().position(is_it).expect("there is a hand");
        let at = tenant.index();
        if self.deep.len() <= at {
            self.deep.resize_with(at + 1, || None);
        }
        let toll = Toll::new(account, budget);
        let desk = Desk::new(pair.clone(), self.worker());
        self.deep[at] = Some(DeepToll { hand, toll, desk });
    }

    /// See [`nyx_gate::Tolls::settle`].
    pub fn settle(&mut self) {
        self.fast.settle();
    }

    /// The lane of `tenant`. Panics where none was opened.
    #[inline]
    pub fn lane(&mut self, tenant: TenantId) -> Lane<'_> {
        self.opened(tenant).expect("the tenant's lane is open")
    }

    /// The lane of `tenant`, where one was opened.
    #[inline]
    pub fn opened(&mut self, tenant: TenantId) -> Option<Lane<'_>> {
        let fast = self.fast.opened(tenant)?;
        let deep = self.deep.get_mut(tenant.index()).and_then(Option::as_mut);
        let deep = deep.map(|DeepToll { hand, toll, desk }| DeepLane {
            tenant,
            hand: &mut self.hands[*hand],
            toll,
            desk,
            toil: self.toil,
        });
        Some(Lane { fast, deep })
    }

    /// Takes in what has landed on all hands; tells of fetches that somebody may wait for.
    pub fn land(&mut self, now: Instant, mut landed: impl FnMut(Away)) {
        for hand in &mut self.hands {
            hand.land(now, &mut landed);
        }
    }

    /// A write, or a read that nobody waited for, that is done or has failed, on any hand.
    pub fn next_done(&mut self) -> Option<Done> {
        self.hands.iter_mut().find_map(Hand::next_done)
    }

    /// Whether anything is on its way, or is to be taken in.
    pub fn is_busy(&self) -> bool {
        self.hands.iter().any(Hand::is_busy)
    }

    /// Whether [`Tolls::land`] is to be called again without waiting for an event.
    pub fn is_restless(&self) -> bool {
        self.hands.iter().any(Hand::is_restless)
    }

    /// Its hands, to watch their events.
    pub fn hands(&mut self) -> &mut [Hand] {
        &mut self.hands
    }
}

impl<'w> From<nyx_gate::Lane<'w>> for Lane<'w> {
    fn from(fast: nyx_gate::Lane<'w>) -> Lane<'w> {
        Lane { fast, deep: None }
    }
}

impl<'w> Deref for Lane<'w> {
    type Target = nyx_gate::Lane<'w>;

    #[inline]
    fn deref(&self) -> &nyx_gate::Lane<'w> {
        &self.fast
    }
}

impl<'w> DerefMut for Lane<'w> {
    #[inline]
    fn deref_mut(&mut self) -> &mut nyx_gate::Lane<'w> {
        &mut self.fast
    }
}

impl Lane<'_> {
    /// The longest piece that [`Lane::write_deep`] takes, in bytes.
    pub const PIECE_BYTES: usize = PIECE_BYTES;

    /// Whether the tenant has a deep device.
    #[inline]
    pub fn has_deep(&self) -> bool {
        self.deep.is_some()
    }

    /// Whether the tenant may access its deep device now. Asked before each fetch and each write.
    #[inline]
    pub fn deep_gate(&mut self, now: Instant) -> Gate {
        let pace = self.fast.pace();
        match &mut self.deep {
            Some(deep) => deep.toll.gate(pace, now),
            None => Gate::Open,
        }
    }

    /// For somebody who makes accesses elsewhere, of the deep device where there is one: see
    /// [`Toll::draw`].
    pub fn draw(&mut self, now: Instant, want: DevicePs) -> Draw {
        match &mut self.deep {
            Some(deep) => deep.toll.draw(now, want),
            None => self.fast.draw(now, want),
        }
    }

    /// What an access there takes of what was drawn: see [`Toll::price`].
    pub fn price(&self, op: Op, len: usize) -> DevicePs {
        match &self.deep {
            Some(deep) => deep.toll.price(&deep.hand.deep().cost, op, len),
            None => self.fast.price(op, len),
        }
    }

    /// Charges what was made there with it: see [`Toll::note`].
    pub fn note(&mut self, op: Op, accesses: u64, bytes: u64) {
        match &mut self.deep {
            Some(deep) => {
                let cost = &deep.hand.deep().cost;
                deep.toll.note(cost, op, accesses, bytes);
            }
            None => self.fast.note(op, accesses, bytes),
        }
    }

    /// How it goes with the fetch of what has this unique number.
    pub fn look_deep(&mut self, unique: u64) -> Looked {
        let Some(deep) = &mut self.deep else {
            return Looked::None;
        };
        let looked = deep.hand.look((deep.tenant, unique));
        if let Looked::Here(landing) = looked
            && let Some(trip) = deep.hand.trip(landing)
        {
            deep.desk.note(deep.toil.worked);
            deep.desk.read_deep(trip.bytes, trip.took, trip.expected_ns);
        }
        looked
    }

    /// Where a read goes of what both devices have.
    pub fn reads(&mut self, len: usize, now: Instant) -> Side {
        match &mut self.deep {
            Some(deep) => deep.desk.reads(len, deep.toil, now),
            None => Side::Fast,
        }
    }

    /// Where a new object goes.
    #[inline]
    pub fn news(&mut self, len: usize) -> Side {
        let now = self.fast.pace().now();
        match &mut self.deep {
            Some(deep) => deep.desk.news(len, deep.toil.waiting, now),
            None => Side::Fast,
        }
    }

    /// What only the fast device has is read; whether it is to be mirrored.
    pub fn lone_read(&mut self, len: usize, now: Instant) -> bool {
        let deep = self.deep.as_mut();
        deep.is_some_and(|deep| deep.desk.lone_read(len, deep.toil, now))
    }

    /// Whether what was read from the deep device may be copied to the fast one.
    pub fn admits(&mut self) -> bool {
        let now = self.fast.pace().now();
        let deep = self.deep.as_mut();
        deep.is_some_and(|deep| deep.desk.routing(now).data_admit)
    }

    /// A client's read found its item, on the fast device or not.
    #[inline]
    pub fn looked(&self, is_hit: bool) {
        if let Some(deep) = &self.deep {
            deep.desk.looked(is_hit);
        }
    }

    /// Copies from the fast device what a client asked for: see [`nyx_gate::Lane::read`].
    #[inline]
    pub fn read_for_client(&mut self, at: u64, into: &mut [u8]) {
        let began = self.begin();
        self.fast.read(at, into);
        self.end(began, Kind::Read, into.len());
    }

    /// A client's item begins to be written to the fast device; hand that to [`Lane::written`].
    #[inline]
    pub fn begin(&mut self) -> Option<Instant> {
        let deep = self.deep.as_mut()?;
        let is_timed = deep.desk.is_timed();
        is_timed.then(|| self.fast.pace().now())
    }

    /// A value of so many bytes was written.
    #[inline]
    pub fn written(&mut self, began: Option<Instant>, len: usize) {
        self.end(began, Kind::Write, len);
    }

    #[inline]
    fn end(&mut self, began: Option<Instant>, kind: Kind, len: usize) {
        if let Some(deep) = &self.deep {
            let took = began.map(|began| self.fast.pace().now().since(began));
            deep.desk.did_fast(kind, len, took);
        }
    }

    /// Fetches `len` bytes from `at` of the deep device for what has this unique number; what to
    /// wait for. Charged when it is set off.
    ///
    /// Panics where the tenant has no deep device, or the range is empty, leaves it or is longer
    /// than a value may be.
    pub fn fetch_deep(&mut self, unique: u64, at: u64, len: usize) -> Away {
        let deep = self.deep.as_mut().expect("there is a deep device");
        let (away, bytes) = deep.hand.fetch((deep.tenant, unique), at, len);
        if bytes > 0 {
            deep.toll.charge(&deep.hand.deep().cost, Op::Read, bytes);
        }
        away
    }

    /// What has landed.
    pub fn landed(&self, landing: Landing) -> &[u8] {
        self.deep().hand.bytes(landing)
    }

    /// Whether what has landed was found right before.
    pub fn is_checked(&self, landing: Landing) -> bool {
        self.deep().hand.is_checked(landing)
    }

    /// Says that it is right.
    pub fn set_checked(&mut self, landing: Landing) {
        if let Some(deep) = &mut self.deep {
            deep.hand.set_checked(landing);
        }
    }

    /// Forgets what has landed.
    pub fn forget(&mut self, landing: Landing) {
        if let Some(deep) = &mut self.deep {
            deep.hand.forget(landing);
        }
    }

    fn deep(&self) -> &DeepLane<'_> {
        self.deep.as_ref().expect("there is a deep device")
    }

    /// Whether a piece may be written to the deep device now: it has a buffer, and works.
    pub fn takes_deep(&self, now: Instant) -> bool {
        let deep = self.deep.as_ref();
        deep.is_some_and(|deep| deep.hand.takes_pieces() && deep.hand.deep().takes_writes(now))
    }

    /// Writes a piece of `len` bytes, whole blocks and at most [`Lane::PIECE_BYTES`], at `at` of
    /// the deep device. [`Tolls::next_done`] tells when it is done.
    ///
    /// Panics where [`Lane::takes_deep`] does not say so.
    pub fn write_deep(&mut self, tag: u64, at: u64, len: usize, fill: impl FnOnce(&mut [u8])) {
        let deep = self.deep.as_mut().expect("there is a deep device");
        deep.hand.write((deep.tenant, tag), at, len, fill);
        deep.desk.wrote_deep(len);
        deep.toll.charge(&deep.hand.deep().cost, Op::Write, len);
    }

    /// Reads `len` bytes from `at` of the deep device, for which nobody waits; false where there is
    /// no buffer for that now. [`Tolls::next_done`] hands them over. Charged when it is set off, by
    /// whole blocks.
    ///
    /// Panics where the tenant has no deep device, or the range is empty, leaves it or is longer
    /// than a value may be.
    pub fn read_behind(&mut self, tag: u64, at: u64, len: usize) -> bool {
        let deep = self.deep.as_mut().expect("there is a deep device");
        let is_sent = deep.hand.read_behind((deep.tenant, tag), at, len);
        if is_sent {
            let (_, blocks, _) = deep.hand.deep().blocks_of(at, len);
            deep.toll.charge(&deep.hand.deep().cost, Op::Read, blocks);
        }
        is_sent
    }
}
