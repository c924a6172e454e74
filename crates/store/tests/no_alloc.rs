//! In steady state neither a GET nor a put allocates, evictions and compactions included.

mod rig;

use nyx_store::{Eviction, StoreConfig};
use rig::{Rig, TENANT, small};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

#[test]
fn gets_and_puts_do_not_allocate() {
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
