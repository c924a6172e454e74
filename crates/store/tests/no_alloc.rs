//! In steady state neither a GET nor a put allocates, evictions and compactions included.

mod rig;

use nyx_base::Instant;
use nyx_store::{Eviction, Presence, StoreConfig};
use rig::{Rig, TENANT, deep, small};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: as for the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as for the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What one test allocates must not be counted in the other.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn gets_and_puts_do_not_allocate() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for eviction in Eviction::ALL {
        let rig = Rig::new(StoreConfig {
            eviction,
            ..small(4 << 20)
        });
        let mut w = rig.worker(0);
        let mut rng = fastrand::Rng::with_seed(5);
        let (value, mut out) = ([7; 300], [0; 300]);
        let mut run = |operations: u32| {
            for _ in 0..operations {
                let key = rng.u32(..30_000).to_le_bytes();
                w.store(&key, &value);
                let key = rng.u32(..30_000).to_le_bytes();
                let lane = &mut w.tolls.lane(TENANT);
                if let Some(item) = w.store.get(lane, &key, w.store.hash(&key), w.now) {
                    item.mark_access(lane, w.now);
                    item.read(lane, &mut out);
                }
                w.enter();
            }
        };
        run(30_000);
        let before = ALLOCATIONS.load(Relaxed);
        run(100_000);
        assert_eq!(ALLOCATIONS.load(Relaxed) - before, 0, "{eviction}");
        assert!(rig.store.figures().evictions > 0);
    }
}

/// Fetches, writes and what comes back from the deep device included.
#[test]
fn two_devices_do_not_allocate_either() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for eviction in Eviction::ALL {
        let rig = Rig::new(StoreConfig {
            eviction,
            ..deep(4 << 20, 4 << 20)
        });
        let mut w = rig.worker(0);
        let mut rng = fastrand::Rng::with_seed(5);
        let (value, mut out) = ([7; 300], [0; 300]);
        let mut run = |operations: u32| {
            for _ in 0..operations {
                w.store(&rng.u32(..30_000).to_le_bytes(), &value);
                w.enter();
                let key = rng.u32(..30_000).to_le_bytes();
                let (store, worker, now) = (w.store, w.writer.worker(), w.now);
                loop {
                    let lane = &mut w.tolls.lane(TENANT);
                    let Some(mut item) = store.get(lane, &key, store.hash(&key), now) else {
                        break;
                    };
                    if store.fetch(worker, lane, &mut item, Instant(0)) == Presence::Here {
                        item.mark_access(lane, now);
                        item.read(lane, &mut out);
                        store.promote(&w.writer, lane, &item, now);
                        break;
                    }
                    w.land();
                }
                let lane = &mut w.tolls.lane(TENANT);
                let is_writing = store.write_back(&mut w.writer, lane, Instant(0));
                w.compact();
                if is_writing {
                    w.land();
                }
            }
        };
        run(20_000);
        let before = ALLOCATIONS.load(Relaxed);
        run(20_000);
        assert_eq!(ALLOCATIONS.load(Relaxed) - before, 0, "{eviction}");
        let told = rig.store.figures().deep.expect("a deep device");
        assert!(told.demotions > 1000 && told.promotions > 100, "{told:?}");
        assert!(told.compactions > 10, "{told:?}");
    }
}
