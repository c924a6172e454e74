//! The order of a tenant's keys, for those that are asked for ranges: a tree of keys beside the
//! hash, as HybridIndex+ has it (section 3.1, figure 16): a point is looked up in the hash, a range
//! in the tree, whose keys are then looked up in the hash.
//!
//! The tree has copies of the keys, not places: to overwrite or to move an item costs it nothing,
//! and only keys that come and go do. It is changed under the lock of the key's bucket, before the
//! hash when a key comes and after it when it goes, so that it has every key that the hash has,
//! at every moment; what it has more is left out of ranges by whom the hash does not find.
//! [`Tree::Hybrid`] is told of keys later (`backlog`), at the latest before a range is read.
//!
//! Its memory is the tenant's, taken in chunks like that of the hash: where there is none, the item
//! is not stored until something has gone for it.
//!
//! The tree lies in DRAM. That of a store that was found in an image is built anew, some chains of
//! the hash at a time ([`Store::reorder`]), beside everything else; until then ranges are refused.
//!
//! What it never does: hold a lock while a range's items are looked at, make somebody who asks for
//! a point wait.
//!
//! *Thread safety*: as `store`.

use crate::backlog::{Backlog, News};
use crate::config::{StoreError, Tree};
use crate::item::Item;
use crate::request::{KEY_LEN_MAX, KeyHash};
use crate::space::Taker;
use crate::store::Store;
use crate::writer::Writer;
use arrayvec::ArrayVec;
use nyx_base::{UnixSeconds, WorkerId};
use nyx_index::fast_fair::FastFair;
use nyx_index::fp_tree::FpTree;
use nyx_index::heap::Heap;
use nyx_index::ordered::{PutError, ScanError};
use nyx_index::skip_list::SkipList;
use nyx_index::{ByteMap, Eras, Full, Guard, Ordered, Persistent, Place, Slot};
use nyx_media::pmem::Dram;
use nyx_tier::Lane;
use std::fmt::Debug;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex};

/// Chains of the hash that one call of [`Store::reorder`] looks at.
const CHAINS_AT_ONCE: u64 = 64;
/// Keys of a range whose items are brought near together.
const TOGETHER: usize = 8;
/// Roots of the heap, which the tree has for itself.
const ROOT: usize = 0;
/// A chunk is one part in this many of the tenant, within bounds.
const CHUNK_ONE_IN: u64 = 512;
const CHUNK_BYTES_MIN: u64 = 4 << 10;
const CHUNK_BYTES_MAX: u64 = 64 << 10;
/// Chunks that the smallest tree takes: one for each size of its blocks.
const CHUNKS_MIN: u64 = 16;

/// A range of keys. Bounds and prefix hold together.
#[derive(Clone, Copy, Debug)]
pub struct Range<'a> {
    /// What all keys begin with.
    pub prefix: &'a [u8],
    /// The lower bound.
    pub from: Bound<&'a [u8]>,
    /// The upper bound.
    pub to: Bound<&'a [u8]>,
    /// Whether the greatest key comes first.
    pub descending: bool,
}

/// Why a range cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum RangeError {
    /// The tenant's keys have no order.
    #[error("this tenant has no order of keys (tenant.index)")]
    NoOrder,
    /// There is no memory for keys that have come lately.
    #[error("the tenant has no memory for the order of its keys")]
    Full,
    /// Its order is being built.
    #[error("the order of keys is being built: {:.0} % are in it", .built * 100.0)]
    Building {
        /// From 0 to 1.
        built: f64,
    },
    /// The tree cannot be right.
    #[error("the order of keys is damaged: {0}")]
    Damaged(#[from] ScanError),
}

/// The tree of a store's keys.
#[derive(Debug)]
pub(crate) struct Order {
    keys: Box<dyn Keys>,
    /// What the tree is told of later, where that is so.
    backlog: Option<Backlog>,
    heap: Arc<Heap<Dram>>,
    /// Bytes that are paid for.
    granted_bytes: AtomicU64,
    /// Chains of the hash whose keys it has; [`ALL_CHAINS`] where it has every key.
    chains_done: AtomicU64,
    /// Held by who puts those of more chains in.
    building: Mutex<()>,
}

/// However many chains the hash comes to have.
const ALL_CHAINS: u64 = u64::MAX;

/// What has no room for another key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lack {
    Index(Full),
    Order,
    /// The tree refuses the key whatever room it has.
    Tree,
    Journal,
}

/// What a tree of keys does, whichever it is.
trait Keys: Send + Sync + Debug {
    fn put(&self, worker: WorkerId, key: &[u8]) -> Result<(), PutError>;
    fn remove(&self, worker: WorkerId, key: &[u8]) -> Result<(), PutError>;
    fn range(&self, range: &Bounds<'_>, each: Each<'_>) -> Result<(), ScanError>;
    /// Bytes that it uses beside the heap.
    fn dram_bytes(&self) -> u64;
}

type Each<'e> = &'e mut dyn FnMut(&[u8]) -> ControlFlow<()>;

/// Keys whose items are brought near together.
struct Window {
    keys: [([u8; KEY_LEN_MAX], u8, KeyHash); TOGETHER],
    len: usize,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            keys: [([0; KEY_LEN_MAX], 0, KeyHash(0)); TOGETHER],
            len: 0,
        }
    }
}

impl Window {
    fn push(&mut self, key: &[u8], hash: KeyHash) {
        let (bytes, len, of) = &mut self.keys[self.len];
        bytes[..key.len()].copy_from_slice(key);
        (*len, *of) = (key.len() as u8, hash);
        self.len += 1;
    }

    fn keys(&self) -> impl Iterator<Item = (&[u8], KeyHash)> {
        let keys = self.keys[..self.len].iter();
        keys.map(|(bytes, len, hash)| (&bytes[..usize::from(*len)], *hash))
    }
}

/// The bounds of a range, its prefix among them.
struct Bounds<'a> {
    from: Bound<&'a [u8]>,
    to: Bound<&'a [u8]>,
    descending: bool,
}

impl<I: Persistent<Dram> + Ordered + Debug> Keys for ByteMap<Dram, I> {
    fn put(&self, worker: WorkerId, key: &[u8]) -> Result<(), PutError> {
        ByteMap::put(self, worker, key, 0).map(drop)
    }

    fn remove(&self, worker: WorkerId, key: &[u8]) -> Result<(), PutError> {
        ByteMap::remove(self, worker, key).map(drop)
    }

    fn range(&self, range: &Bounds<'_>, each: Each<'_>) -> Result<(), ScanError> {
        let each = |key: &[u8], _| each(key);
        match range.descending {
            false => self.scan(range.from, range.to, each),
            true => self.scan_back(range.from, range.to, each),
        }
    }

    fn dram_bytes(&self) -> u64 {
        self.keys().dram_bytes()
    }
}

impl Order {
    /// An empty tree for a tenant of `size` bytes.
    pub(crate) fn new(tree: Tree, size: u64, eras: Arc<Eras>) -> Result<Order, StoreError> {
        let chunk_bytes = chunk_bytes(size);
        let memory = Dram::new(size.next_multiple_of(chunk_bytes) + CHUNKS_MIN * chunk_bytes)?;
        let heap = match Heap::format(memory, chunk_bytes, 0, eras) {
            Ok(heap) => Arc::new(heap),
            Err(error) => unreachable!("the size was chosen to fit: {error}"),
        };
        let order = Order {
            keys: keys(tree, &heap)?,
            backlog: (tree == Tree::Hybrid).then(Backlog::new),
            heap,
            granted_bytes: AtomicU64::new(0),
            chains_done: AtomicU64::new(ALL_CHAINS),
            building: Mutex::new(()),
        };
        order.grant(order.claimed_bytes());
        Ok(order)
    }

    /// What it uses.
    fn claimed_bytes(&self) -> u64 {
        self.heap.claimed_bytes() + self.dram_bytes()
    }

    /// What it uses beside the heap.
    fn dram_bytes(&self) -> u64 {
        let backlog = self.backlog.as_ref().map_or(0, |_| Backlog::bytes());
        self.keys.dram_bytes() + backlog
    }

    /// What is paid for.
    pub(crate) fn bytes(&self) -> u64 {
        self.granted_bytes.load(Acquire)
    }

    /// What is to be paid for before another chunk can be used.
    fn step_bytes(&self) -> u64 {
        (self.claimed_bytes() + self.heap.chunk_bytes()).saturating_sub(self.bytes())
    }

    /// Lets the tree use `bytes` in all.
    fn grant(&self, bytes: u64) {
        self.granted_bytes.store(bytes, Release);
        self.heap.set_limit(bytes.saturating_sub(self.dram_bytes()));
    }

    /// There are keys from before: it has none of them.
    pub(crate) fn begin_anew(&self) {
        self.chains_done.store(0, Release);
    }

    /// How much of it is built, from 0 to 1, of a store with so many chains.
    fn built(&self, chains: u64) -> f64 {
        match self.chains_done.load(Acquire) {
            ALL_CHAINS => 1.0,
            // Until it is said to have every key, some may be missing.
            done => done as f64 / (chains + 1) as f64,
        }
    }
}

/// The least memory of a tree, in bytes.
pub(crate) fn bytes_min(tree: Tree, size: u64) -> u64 {
    let backlog = if tree == Tree::Hybrid {
        Backlog::bytes()
    } else {
        0
    };
    CHUNKS_MIN * chunk_bytes(size) + backlog
}

fn chunk_bytes(size: u64) -> u64 {
    let share = (size / CHUNK_ONE_IN).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
    1 << share.ilog2()
}

fn keys(tree: Tree, heap: &Arc<Heap<Dram>>) -> Result<Box<dyn Keys>, PutError> {
    fn open<I>(heap: &Arc<Heap<Dram>>) -> Result<Box<dyn Keys>, PutError>
    where
        I: Persistent<Dram> + Ordered + Debug + 'static,
    {
        let map: ByteMap<Dram, I> = ByteMap::open(heap.clone(), ROOT, WorkerId(0))?;
        Ok(Box::new(map))
    }
    match tree {
        Tree::FastFair | Tree::Hybrid => open::<FastFair<Dram>>(heap),
        Tree::FpTree => open::<FpTree<Dram>>(heap),
        Tree::SkipList => open::<SkipList<Dram>>(heap),
    }
}

/// What a store does with the order of its keys.
impl Store {
    /// Calls `each` with the keys of a range in their order, and with their items where those have
    /// not ended, until it breaks. To go on, ask for the range behind the last key.
    ///
    /// May end the worker's era before the first key. The range is no snapshot: a key that is there
    /// all the while is met once; one that comes or goes meanwhile may be met or not.
    pub fn scan<'s, 'l>(
        &'s self,
        w: &mut Writer,
        lane: &mut Lane<'l>,
        range: &Range<'_>,
        now: UnixSeconds,
        mut each: impl FnMut(&mut Lane<'l>, &[u8], Option<Item<'s>>) -> ControlFlow<()>,
    ) -> Result<(), RangeError> {
        let order = self.order.as_ref().ok_or(RangeError::NoOrder)?;
        if let Some(built) = self.ordered().filter(|&built| built < 1.0) {
            return Err(RangeError::Building { built });
        }
        if self.follow(w, lane, now) {
            return Err(RangeError::Full);
        }
        let end = end_of_prefix(range.prefix);
        let bounds = bounds(range, end.as_deref());
        let (mut window, mut goes_on) = (Window::default(), ControlFlow::Continue(()));
        let mut show = |window: &mut Window| {
            self.warm(lane, window);
            let shown = window.keys().try_for_each(|(key, hash)| {
                let item = self.get(lane, key, hash, now);
                each(lane, key, item)
            });
            window.len = 0;
            shown
        };
        order.keys.range(&bounds, &mut |key| {
            let hash = self.hash(key);
            self.prefetch_bucket(hash);
            window.push(key, hash);
            if window.len == TOGETHER {
                goes_on = show(&mut window);
            }
            goes_on
        })?;
        if goes_on.is_continue() {
            let _ = show(&mut window);
        }
        Ok(())
    }

    /// Whether the tree is to be told of keys.
    #[inline]
    pub fn is_behind(&self) -> bool {
        let backlog = self.order.as_ref().and_then(|order| order.backlog.as_ref());
        backlog.is_some_and(|backlog| backlog.waiting() > 0)
    }

    /// Tells the tree of all keys that have come or gone, even if something must go for their
    /// memory; true where it could not be. Bounded work: call it from the tick. May end the
    /// worker's era.
    pub fn follow(&self, w: &mut Writer, lane: &mut Lane<'_>, now: UnixSeconds) -> bool {
        let Some(order) = self.order.as_ref().filter(|_| self.is_behind()) else {
            return false;
        };
        let Some(backlog) = &order.backlog else {
            return false;
        };
        let worker = w.worker();
        let mut tell = |news, key: &[u8]| self.tell_tree(order, worker, news, key);
        while let Err(lack) = backlog.tell_all(&mut tell) {
            if !matches!(lack, Lack::Order) || !self.grant_order(w, lane, now) {
                return true;
            }
        }
        false
    }

    /// Brings the items of keys near whose buckets are.
    fn warm(&self, lane: &Lane<'_>, window: &Window) {
        let likely: ArrayVec<_, TOGETHER> = window
            .keys()
            .map(|(_, hash)| self.prefetch_item(hash))
            .collect();
        for likely in likely.into_iter().flatten() {
            self.prefetch_value(lane, likely);
        }
    }

    /// How much of the order of keys is built, from 0 to 1; none where there is none.
    pub fn ordered(&self) -> Option<f64> {
        let order = self.order.as_ref()?;
        Some(order.built(self.index.chains()))
    }

    /// Bytes of the tree of keys.
    pub fn order_bytes(&self) -> u64 {
        self.order.as_ref().map_or(0, Order::bytes)
    }

    /// Whether the order of keys is being built, and can be: what was found has been looked at.
    #[inline]
    pub fn is_reordering(&self) -> bool {
        self.ordered().is_some_and(|built| built < 1.0) && !self.is_sweeping()
    }

    /// Puts the keys of some chains into the order; true where there are more. Bounded work: call
    /// it from the tick. May end the worker's era.
    pub fn reorder(&self, w: &mut Writer, lane: &mut Lane<'_>, now: UnixSeconds) -> bool {
        let Some(order) = self.order.as_ref().filter(|_| self.is_reordering()) else {
            return false;
        };
        let Ok(_building) = order.building.try_lock() else {
            return true;
        };
        let begin = order.chains_done.load(Acquire);
        let end = self.index.chains().min(begin + CHAINS_AT_ONCE);
        for chain in begin..end {
            while let Err(lack) = self.order_chain(order, w, lane, chain) {
                if !matches!(lack, Lack::Order) || !self.grant_order(w, lane, now) {
                    // What is there stays; a later call tries again.
                    return true;
                }
            }
            order.chains_done.store(chain + 1, Release);
        }
        let more = end < self.index.chains();
        if !more {
            // What the hash grows by from now on comes from these.
            order.chains_done.store(ALL_CHAINS, Release);
        }
        more
    }

    /// Puts the keys of one chain into the order.
    fn order_chain(
        &self,
        order: &Order,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        chain: u64,
    ) -> Result<(), Lack> {
        let worker = w.worker();
        let guard = self.index.lock(worker, chain);
        let mut put = Ok(());
        guard.each(|place| {
            let header = self.items.header(lane, place);
            self.items.with_key(lane, place, &header, |key| {
                put = put.and_then(|()| self.arrive(order, worker, key));
            });
        });
        put
    }

    /// Before a key comes into the hash. Under the lock of its bucket.
    fn arrive(&self, order: &Order, worker: WorkerId, key: &[u8]) -> Result<(), Lack> {
        self.news(order, worker, News::Came, key)
    }

    /// A key comes or goes: the tree is told now or later.
    fn news(&self, order: &Order, worker: WorkerId, news: News, key: &[u8]) -> Result<(), Lack> {
        let Some(backlog) = &order.backlog else {
            return self.tell_tree(order, worker, news, key);
        };
        let mut tell = |news, key: &[u8]| self.tell_tree(order, worker, news, key);
        backlog.note(self.hash(key).0, (news, key), &mut tell)
    }

    /// Tells the tree of a key.
    fn tell_tree(
        &self,
        order: &Order,
        worker: WorkerId,
        news: News,
        key: &[u8],
    ) -> Result<(), Lack> {
        let told = self.within_era(worker, || match news {
            News::Came => order.keys.put(worker, key),
            // A key that stays where this fails is left out of ranges.
            News::Went => order.keys.remove(worker, key).or(Ok(())),
        });
        told.map_err(|error| match error {
            PutError::Full(_) => Lack::Order,
            _ => Lack::Tree,
        })
    }

    /// Adds an item of a new key to the index, and the key to the order.
    #[inline]
    pub(crate) fn enlist(
        &self,
        guard: &mut Guard<'_>,
        worker: WorkerId,
        key: &[u8],
        place: Place,
    ) -> Result<(), Lack> {
        if let Some(order) = &self.order {
            self.arrive(order, worker, key)?;
        }
        guard.insert(place).map_err(|full| {
            self.leave(worker, key);
            Lack::Index(full)
        })
    }

    /// Takes an item out of the index, and its key out of the order.
    #[inline]
    pub(crate) fn strike(&self, guard: &mut Guard<'_>, slot: Slot, worker: WorkerId, key: &[u8]) {
        guard.remove(slot);
        self.leave(worker, key);
    }

    /// After a key went from the hash. Under the lock of its bucket.
    #[inline]
    fn leave(&self, worker: WorkerId, key: &[u8]) {
        if let Some(order) = &self.order {
            // What goes is always noted.
            let _ = self.news(order, worker, News::Went, key);
        }
    }

    /// The reclaimer works outside of eras, and the tree is read within them.
    fn within_era<T>(&self, worker: WorkerId, run: impl FnOnce() -> T) -> T {
        if self.eras.is_within(worker) {
            return run();
        }
        self.eras.enter(worker);
        let result = run();
        self.eras.leave(worker);
        result
    }

    /// More memory for the order, from the tenant's budget.
    fn extend_order(&self, taker: Taker) -> bool {
        let Some(order) = &self.order else {
            return false;
        };
        let mut space = self.space.lock();
        let bytes = order.step_bytes();
        let granted = space.charge(&self.items, taker, bytes);
        if granted {
            order.grant(order.bytes() + bytes);
        }
        granted
    }

    /// More memory for the order, even if something must go for it.
    #[cold]
    pub(crate) fn grant_order(
        &self,
        w: &mut Writer,
        lane: &mut Lane<'_>,
        now: UnixSeconds,
    ) -> bool {
        self.extend_order(w.taker())
            || self.within_reclaim(w, lane, now, |w| self.extend_order(w.taker()))
    }
}

/// What is above all keys that begin with `prefix`; none where nothing is.
fn end_of_prefix(prefix: &[u8]) -> Option<Box<[u8]>> {
    let last = prefix.iter().rposition(|&byte| byte < u8::MAX)?;
    let mut end: Box<[u8]> = prefix[..=last].into();
    end[last] += 1;
    Some(end)
}

/// The narrower of the bounds and the prefix, which ends before `end`.
fn bounds<'a>(range: &Range<'a>, end: Option<&'a [u8]>) -> Bounds<'a> {
    let from = match range.from {
        Bound::Included(key) | Bound::Excluded(key) if key >= range.prefix => range.from,
        Bound::Unbounded if range.prefix.is_empty() => Bound::Unbounded,
        _ => Bound::Included(range.prefix),
    };
    let to = match (range.to, end) {
        (Bound::Included(key) | Bound::Excluded(key), Some(end)) if key >= end => {
            Bound::Excluded(end)
        }
        (Bound::Unbounded, Some(end)) => Bound::Excluded(end),
        (to, _) => to,
    };
    Bounds {
        from,
        to,
        descending: range.descending,
    }
}
