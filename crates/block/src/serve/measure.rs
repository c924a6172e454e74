//! What reads take of either device, measured when an export is opened.
//!
//! What it never does: write.

use crate::fast::Fast;
use crate::route::Costs;
use nyx_base::Clock;
use nyx_media::queue::{BlockFile, Pool, Queue, QueueShape, Request, Through};
use nyx_media::{MediaError, TscClock};
use nyx_policy::nhc::{Both, Cost, Side};
use std::sync::Arc;

/// Reads of a length and a device.
const READS: u64 = 64;
/// Of them at once, where a device is to have enough to do.
const DEPTH: u32 = 16;

/// Takes some tens of milliseconds.
pub fn measure(
    fast: &mut impl Fast,
    deep: &Arc<BlockFile>,
    through: Through,
) -> Result<Costs, MediaError> {
    let clock = TscClock::start();
    let pool = Pool::new(DEPTH, Costs::LARGE_BYTES as usize)?;
    let depth = DEPTH;
    let pools = std::slice::from_ref(&pool);
    let mut queue = Queue::new(deep, pools, QueueShape { depth, through })?;
    let mut of = |len_bytes: u64| {
        let fast_ns = fast_ns(fast, &clock, len_bytes);
        let copy = Cost {
            alone_ns: fast_ns,
            each_ns: fast_ns,
        };
        let alone_ns = deep_ns(&mut queue, &pool, &clock, len_bytes, 1);
        let each_ns = deep_ns(&mut queue, &pool, &clock, len_bytes, DEPTH);
        let read = Cost {
            alone_ns,
            each_ns: each_ns.min(alone_ns),
        };
        let mut both = Both::default();
        (both[Side::Fast], both[Side::Deep]) = (copy, read);
        both
    };
    Ok(Costs {
        small: of(Costs::SMALL_BYTES),
        large: of(Costs::LARGE_BYTES),
    })
}

/// The mean time of a copy from the fast device, in ns.
fn fast_ns(fast: &mut impl Fast, clock: &TscClock, len_bytes: u64) -> f64 {
    let mut bytes = vec![0; len_bytes as usize];
    let places = (fast.len_bytes() / len_bytes).max(1);
    let mut pass = || {
        for read in 0..READS {
            let at = read * (places / READS).max(1) % places * len_bytes;
            let len = bytes.len().min((fast.len_bytes() - at) as usize);
            fast.read(at, &mut bytes[..len]);
        }
    };
    // The first one pays for pages that were never touched.
    pass();
    let began = clock.now();
    pass();
    (clock.now().since(began).0 as f64 / READS as f64).max(1.0)
}

/// The mean time of a read from the deep device, with so many at once, in ns. Reads that fail count
/// as long as they took.
fn deep_ns(queue: &mut Queue, pool: &Pool, clock: &TscClock, len_bytes: u64, depth: u32) -> f64 {
    let image_bytes = queue.device().len_bytes();
    let len_bytes = len_bytes.min(image_bytes);
    let places = image_bytes / len_bytes;
    let began = clock.now();
    let mut next = 0;
    while next < READS || queue.in_flight() > 0 {
        while next < READS && queue.in_flight() < depth {
            let mut into = pool.take().expect("as many as are in flight");
            into.narrow(0..len_bytes as usize);
            let at = next * (places / READS).max(1) % places * len_bytes;
            let submitted = queue.submit(Request::Read { at, into }, 0);
            submitted.expect("it is deep enough");
            next += 1;
        }
        queue.rest();
        while queue.reap().is_some() {}
    }
    (clock.now().since(began).0 as f64 / READS as f64).max(1.0)
}
