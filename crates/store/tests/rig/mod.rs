//! What every test of the store needs: a medium, an unlimited lane for each worker, a store.
//!
//! What it never does: check anything.

#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod journaled;
pub(crate) mod stepped;
pub(crate) mod surviving;

use nyx_base::{CachePadded, Clock, Instant, TenantId, UnixSeconds, WorkerId};
use nyx_gate::cost::STEPS;
use nyx_gate::{Account, Budget, CostTable, Device};
use nyx_media::Media;
use nyx_media::mapped::Mapped;
use nyx_media::queue::{DeepFile, Through};
use nyx_store::{
    DeepPart, Eras, Eviction, KeyHash, Layout, Presence, Put, PutOutcome, Store, StoreConfig,
    StoreError, WriteMode, Writer,
};
use nyx_tier::{Bounds, Deep, Done, Hand, Lane, Nhc, Pair, Tolls, What};
use std::path::Path;
use std::sync::Arc;

/// The one tenant.
pub(crate) const TENANT: TenantId = TenantId(0);
/// The time at which tests begin.
pub(crate) const START: UnixSeconds = UnixSeconds(1_800_000_000);

/// Time that stands still: nothing is paced here.
struct Still;

impl Clock for Still {
    fn now(&self) -> Instant {
        Instant(0)
    }
    fn spin_until(&self, _until: Instant) {}
}

/// A store on a medium of its own.
pub(crate) struct Rig {
    pub(crate) store: Store,
    pub(crate) eras: Arc<Eras>,
    device: Arc<Device>,
    /// Its deep device, if it has one.
    pub(crate) deep: Option<Arc<Deep>>,
    /// Its two devices and who decides between them: classic caching, unless it was said.
    pub(crate) pair: Option<Arc<Pair>>,
    _dir: Option<tempfile::TempDir>,
}

/// One worker's part of a rig.
pub(crate) struct Worker<'r> {
    pub(crate) store: &'r Store,
    pub(crate) eras: &'r Eras,
    pub(crate) tolls: Tolls,
    pub(crate) writer: Writer,
    pub(crate) now: UnixSeconds,
}

/// A small store: 64 KiB segments, one worker, default policy.
pub(crate) fn small(size: u64) -> StoreConfig {
    StoreConfig {
        size,
        medium_base: 0,
        medium_len: size,
        segment_bytes: 64 << 10,
        item_len_max: 32 << 10,
        eviction: Eviction::S3Fifo,
        layout: Layout::Split,
        workers: 1,
        hash_seed: 7,
        keep: None,
        order: None,
        deep: None,
    }
}

/// A store like [`small`] with so many bytes of a deep device.
pub(crate) fn deep(size: u64, len: u64) -> StoreConfig {
    StoreConfig {
        deep: Some(DeepPart {
            id: [0; 16],
            base: 64 << 10,
            len,
            item_len_min: 0,
            day_bytes: None,
            write: WriteMode::Back,
        }),
        ..small(size)
    }
}

impl Rig {
    pub(crate) fn new(config: StoreConfig) -> Rig {
        let end = config.medium_base + config.medium_len;
        let media: Arc<dyn Media> = Arc::new(Mapped::anonymous(end).expect("memory"));
        Rig::on(media, config).expect("a good configuration")
    }

    /// A store on a medium that there is, and on a deep device of its own where it has one.
    pub(crate) fn on(media: Arc<dyn Media>, config: StoreConfig) -> Result<Rig, StoreError> {
        let dir = config
            .deep
            .map(|_| tempfile::tempdir().expect("a directory"));
        let path = dir.as_ref().map(|dir| dir.path().join("deep"));
        let rig = Rig::on_both(media, path.as_deref(), config)?;
        Ok(Rig { _dir: dir, ..rig })
    }

    /// A store on a medium that there is, and on a deep file that is there or is made.
    pub(crate) fn on_both(
        media: Arc<dyn Media>,
        deep: Option<&Path>,
        mut config: StoreConfig,
    ) -> Result<Rig, StoreError> {
        let eras = Arc::new(Eras::new(config.workers));
        let rates = [1e6; STEPS];
        let cost = CostTable::from_max_iops(&rates, &rates);
        let device = Arc::new(Device {
            name: "test".to_owned(),
            media,
            cost,
        });
        let deep = config.deep.as_mut().map(|part| {
            let len = part.base + part.len;
            let path = deep.expect("it has a deep device");
            let file = DeepFile::open(path, Some(len)).expect("room");
            part.id = file.id();
            let cost = device.cost.clone();
            let deep = Deep::new("deep".to_owned(), file, cost, Through::Auto, None);
            Arc::new(deep)
        });
        let workers = config.workers;
        let pair = deep.as_ref().map(|deep| {
            let rule = (Nhc::Classic, Bounds::default());
            Arc::new(Pair::new(deep.clone(), device.cost.clone(), rule, workers))
        });
        let store = Store::new(config, eras.clone())?;
        Ok(Rig {
            store,
            eras,
            device,
            deep,
            pair,
            _dir: None,
        })
    }

    /// The same with another controller than classic caching.
    pub(crate) fn ruled(mut self, nhc: Nhc) -> Rig {
        let deep = self.deep.clone().expect("a deep device");
        let rule = (nhc, Bounds::default());
        let workers = self.store.config().workers;
        let pair = Pair::new(deep, self.device.cost.clone(), rule, workers);
        self.pair = Some(Arc::new(pair));
        self
    }

    /// Worker `id`, within an era.
    pub(crate) fn worker(&self, id: u16) -> Worker<'_> {
        let tolls = self.tolls(id);
        self.eras.enter(WorkerId(id));
        let writer = self.store.writer(WorkerId(id));
        Worker {
            store: &self.store,
            eras: &self.eras,
            tolls,
            writer,
            now: START,
        }
    }

    /// Its ways to the devices.
    pub(crate) fn tolls(&self, id: u16) -> Tolls {
        let mut tolls = Tolls::new(WorkerId(id), Arc::new(Still));
        let account = Arc::new(CachePadded(Account::default()));
        tolls.open(
            TENANT,
            self.device.clone(),
            account,
            Arc::new(Budget::unlimited()),
        );
        if let Some(pair) = &self.pair {
            tolls.add(Hand::new(pair.deep().clone()).expect("queues"));
            let (account, budget) = (Arc::default(), Arc::new(Budget::unlimited()));
            tolls.open_deep(TENANT, pair, account, budget);
        }
        tolls
    }
}

impl Worker<'_> {
    pub(crate) fn lane(&mut self) -> Lane<'_> {
        self.tolls.lane(TENANT)
    }

    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        self.store.hash(key)
    }

    pub(crate) fn put(&mut self, put: &Put<'_>) -> PutOutcome {
        let lane = &mut self.tolls.lane(TENANT);
        self.store.put(&mut self.writer, lane, put, self.now)
    }

    pub(crate) fn set(&mut self, key: &[u8], value: &[u8]) -> PutOutcome {
        self.put(&Put::set(key, self.hash(key), value))
    }

    /// A set that must succeed.
    pub(crate) fn store(&mut self, key: &[u8], value: &[u8]) -> u64 {
        match self.set(key, value) {
            PutOutcome::Stored { cas } => cas,
            other => panic!("set gave {other:?}"),
        }
    }

    /// The value of a key; counts an access.
    pub(crate) fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let (store, now, hash) = (self.store, self.now, self.store.hash(key));
        loop {
            let lane = &mut self.tolls.lane(TENANT);
            let mut item = store.get(lane, key, hash, now)?;
            match store.fetch(self.writer.worker(), lane, &mut item, Instant(0)) {
                Presence::Here => {
                    store.answered(lane, &item);
                    item.mark_access(lane, now);
                    let mut value = vec![0; item.value_len()];
                    item.read(lane, &mut value);
                    store.promote(&self.writer, lane, &item, now);
                    return Some(value);
                }
                Presence::Lost => return None,
                Presence::Away(_) => self.land(),
                Presence::Closed(gate) => panic!("{gate:?}"),
            }
        }
    }

    /// Waits for all that was asked of the deep device, in an era of its own.
    pub(crate) fn land(&mut self) {
        self.enter();
        loop {
            self.tolls.land(Instant(0), |_| {});
            while let Some(Done { tag, what, .. }) = self.tolls.next_done() {
                let lane = &mut self.tolls.lane(TENANT);
                let (store, w, now) = (self.store, &mut self.writer, self.now);
                match what {
                    What::Written => store.written(w, lane, (tag, true), now),
                    What::NotWritten => store.written(w, lane, (tag, false), now),
                    What::Read(bytes) => store.compacted(w, lane, (tag, Some(bytes)), now),
                    What::NotRead => store.compacted(w, lane, (tag, None), now),
                }
            }
            if self.tolls.hands().iter().all(|hand| hand.in_flight() == 0) {
                return;
            }
        }
    }

    /// Writes what is full to the deep device, until no more is, and frees segments there where few
    /// are left; true where the device takes no more.
    pub(crate) fn write_back(&mut self) -> bool {
        for _ in 0..1000 {
            let lane = &mut self.tolls.lane(TENANT);
            let is_written = !self.store.write_back(&mut self.writer, lane, Instant(0));
            self.compact();
            let is_busy = self.tolls.hands().iter().any(|hand| hand.in_flight() > 0);
            if is_written && !is_busy {
                return false;
            }
            self.land();
        }
        true
    }

    /// Takes the next step of compaction.
    pub(crate) fn compact(&mut self) {
        let lane = &mut self.tolls.lane(TENANT);
        let now = (Instant(0), self.now);
        self.store.compact(&self.writer, lane, now);
    }

    /// A new batch of events.
    pub(crate) fn enter(&self) {
        self.eras.enter(self.writer.worker());
    }

    /// Nothing is held until the next batch.
    pub(crate) fn leave(&self) {
        self.eras.leave(self.writer.worker());
    }
}

/// The value that belongs to a key and a version: any other key's or version's bytes differ.
pub(crate) fn value_of(key: &[u8], version: u64, len: usize) -> Vec<u8> {
    let mut seed = xxhash_rust::xxh3::xxh3_64_with_seed(key, version);
    let mut value = Vec::with_capacity(len + 8);
    while value.len() < len {
        value.extend_from_slice(&seed.to_le_bytes());
        seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
    value.truncate(len);
    value
}
