//! What reads take of either device, measured when an export is opened.
//!
//! What it never does: write.

use crate::fast::Fast;
use crate::route::Costs;
use nyx_base::Clock;
use nyx_media::queue::{BlockFile, Queue, QueueShape, Through};
use nyx_media::{MediaError, TscClock};
use nyx_policy::nhc::{Both, Cost};
use std::sync::Arc;

/// Copies of a length.
const READS: u64 = 64;

/// Takes some tens of milliseconds.
pub fn measure(
    fast: &mut impl Fast,
    deep: &Arc<BlockFile>,
    through: Through,
) -> Result<Costs, MediaError> {
    let clock = TscClock::start();
    let costs = nyx_tier::Costs::measure(0..deep.len_bytes(), |pools, depth| {
        Queue::new(deep, pools, QueueShape { depth, through })
    })?;
    let mut of = |len_bytes: u64, read: Cost| {
        let fast_ns = fast_ns(fast, &clock, len_bytes);
        let copy = Cost {
            alone_ns: fast_ns,
            each_ns: fast_ns,
        };
        Both([copy, read])
    };
    Ok(Costs {
        small: of(Costs::SMALL_BYTES, costs.small),
        large: of(Costs::LARGE_BYTES, costs.large),
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
