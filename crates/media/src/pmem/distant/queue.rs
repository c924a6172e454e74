//! How far behind one direction of a device is: when what it is asked for will be over.
//!
//! What it never does: read a clock.
//!
//! *Thread safety*: shared by all threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Virtual time is divided into so many nanoseconds, of each of which the device is busy for a
/// part.
const BIN_NS: u64 = 256;
/// Who asks is at most so many of them behind who asked before.
const BINS: usize = 1 << 12;

/// See the module.
#[derive(Debug)]
pub(super) enum Queue {
    /// Asked at times that grow: it is busy until then, in nanoseconds.
    InOrder(AtomicU64),
    /// Asked by threads of virtual time, each of which is some operations ahead of others.
    Calendar(Mutex<Box<[Bin]>>),
}

/// Which of all bins this is now, and for how long the device is busy in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bin {
    number: u64,
    busy_ns: f64,
}

impl Queue {
    /// Of an idle device.
    pub(super) fn in_order() -> Queue {
        Queue::InOrder(AtomicU64::new(0))
    }

    /// The same, for those whose times do not grow together.
    pub(super) fn calendar() -> Queue {
        Queue::Calendar(Mutex::new(vec![Bin::default(); BINS].into()))
    }

    /// Takes `ns` of the device from `now` on; when that will be over.
    pub(super) fn reserve(&self, now: u64, ns: f64) -> u64 {
        match self {
            Queue::InOrder(by) => {
                // No exchange: it would wait for all that the thread stored. Of two threads that
                // ask within the same few nanoseconds one may take nothing of the device.
                let after = by.load(Relaxed).max(now) + ns as u64;
                by.store(after, Relaxed);
                after
            }
            Queue::Calendar(bins) => {
                let mut bins = bins
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                take(&mut bins, now, ns)
            }
        }
    }
}

/// Takes what is free of the bins from that of `now` on.
fn take(bins: &mut [Bin], now: u64, ns: f64) -> u64 {
    let (mut number, mut left) = (now / BIN_NS, ns);
    loop {
        let bin = &mut bins[(number % BINS as u64) as usize];
        if bin.number < number {
            *bin = Bin {
                number,
                busy_ns: 0.0,
            };
        }
        // One of a time that is long past is as good as free.
        let is_past = bin.number > number;
        let free = if is_past {
            BIN_NS as f64
        } else {
            BIN_NS as f64 - bin.busy_ns
        };
        let part = left.min(free);
        if !is_past {
            bin.busy_ns += part;
        }
        left -= part;
        if left <= 0.0 {
            let busy = if is_past { part } else { bin.busy_ns };
            return (number * BIN_NS + busy as u64).max(now + ns as u64);
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_late_for_an_early_time_gets_what_is_free_of_it() {
        let queue = Queue::calendar();
        assert_eq!(queue.reserve(10_000, 128.0), 10_128);
        assert_eq!(queue.reserve(1_000, 128.0), 1_128, "nobody was there");
        let late = queue.reserve(10_000, 512.0);
        assert_eq!(
            late,
            10_000 / BIN_NS * BIN_NS + 128 + 512,
            "behind the first"
        );
        let in_order = Queue::in_order();
        assert_eq!(in_order.reserve(10_000, 128.0), 10_128);
        assert_eq!(in_order.reserve(1_000, 128.0), 10_256);
    }

    #[test]
    fn it_gives_no_more_than_there_is() {
        let queue = Queue::calendar();
        let mut rng = nyx_base::Rng::with_seed(1);
        let by = (0..1_000).map(|_| queue.reserve(rng.u64(0..10_000), 100.0));
        let last = by.max().unwrap_or_default();
        assert!((100_000..101_000).contains(&last), "{last}");
        assert_eq!(
            queue.reserve(BINS as u64 * BIN_NS * 9, 50.0),
            BINS as u64 * BIN_NS * 9 + 50
        );
    }
}
