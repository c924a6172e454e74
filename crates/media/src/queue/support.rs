//! What a device and this machine's kernel can do for a queue, found by reading the device's first
//! blocks.
//!
//! What it never does: write.

use super::{BLOCK_BYTES, BlockFile, Done, Pool, Queue, QueueShape, Request, Through};
use crate::MediaError;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fmt;
use std::io::IoSliceMut;
use std::sync::Arc;

/// Reads that the ways are compared by.
const READS: u64 = 64;
/// A kernel's thread has to save so much, since it takes a processor.
const THREAD_PAYS_BELOW: f64 = 0.9;
/// And there have to be so many processors.
const THREAD_PROCESSORS_MIN: usize = 4;
/// System calls have to take so little of io_uring's time: else the device is not done within the
/// call, and one request after the other would take longer than several at once.
const CALLS_PAY_BELOW: f64 = 0.5;
/// And so little time, in nanoseconds: what takes longer is not the CPU's work alone.
const CALLS_PAY_BELOW_NS: u64 = 8_000;

/// Ways to one device: the median time of a 4 KiB read, one at a time, spinning; none where it is
/// not to be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Support {
    /// By threads.
    pub threads_ns: Option<u64>,
    /// By system calls; not tried where io_uring does without a thread of the kernel for each
    /// request.
    pub calls_ns: Option<u64>,
    /// By io_uring.
    pub uring_ns: Option<u64>,
    /// By io_uring that polls the device.
    pub polled_ns: Option<u64>,
    /// By io_uring and a thread of the kernel; not tried where there are fewer than four
    /// processors.
    pub uring_thread_ns: Option<u64>,
}

impl Support {
    /// Tries all ways. Takes some milliseconds; writes nothing.
    pub fn of(device: &Arc<BlockFile>) -> Result<Support, MediaError> {
        let pool = Pool::new(1, BLOCK_BYTES as usize)?;
        let try_out = |through| tried(device, &pool, through);
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
        let has_spare = processors >= THREAD_PROCESSORS_MIN;
        Ok(Support {
            threads_ns: try_out(Through::Threads),
            calls_ns: is_handed_over(device, &pool)
                .then(|| try_out(Through::Calls))
                .flatten(),
            uring_ns: try_out(Through::Uring),
            polled_ns: try_out(Through::UringPolled),
            uring_thread_ns: has_spare.then(|| try_out(Through::UringThread)).flatten(),
        })
    }

    /// Whether the device has a queue that can be polled.
    pub fn is_polled(&self) -> bool {
        self.polled_ns.is_some()
    }

    /// The way for requests that somebody waits for: polled where that is possible and no slower, a
    /// kernel's thread where it saves a tenth, else interrupts; threads without io_uring. System
    /// calls where the device is done within them.
    pub fn critical(&self) -> Through {
        let Some(uring_ns) = self.uring_ns else {
            return Through::Threads;
        };
        let pays =
            |ns: Option<u64>, share: f64| ns.is_some_and(|ns| ns as f64 <= uring_ns as f64 * share);
        let at_once = self.calls_ns.filter(|&ns| ns < CALLS_PAY_BELOW_NS);
        if pays(at_once, CALLS_PAY_BELOW) {
            Through::Calls
        } else if pays(self.polled_ns, 1.0) {
            Through::UringPolled
        } else if pays(self.uring_thread_ns, THREAD_PAYS_BELOW) {
            Through::UringThread
        } else {
            Through::Uring
        }
    }

    /// The way for requests that nobody waits for.
    pub fn background(&self) -> Through {
        match (self.uring_ns, self.critical()) {
            (Some(_), Through::Calls) => Through::Calls,
            (Some(_), _) => Through::Uring,
            (None, _) => Through::Threads,
        }
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = [
            ("threads", self.threads_ns),
            ("calls", self.calls_ns),
            ("io_uring", self.uring_ns),
            ("polled", self.polled_ns),
            ("kernel thread", self.uring_thread_ns),
        ];
        for (at, (name, ns)) in ways.into_iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match ns {
                Some(ns) => write!(f, "{comma}{name} {:.1} us", ns as f64 / 1000.0)?,
                None => write!(f, "{comma}{name} no")?,
            }
        }
        Ok(())
    }
}

/// Whether the device may have to be waited for within a call, as far as the kernel knows: io_uring
/// has a thread of the kernel make it then.
fn is_handed_over(device: &Arc<BlockFile>, pool: &Pool) -> bool {
    let Some(mut buffer) = pool.take() else {
        return false;
    };
    let into = &mut [IoSliceMut::new(&mut buffer)];
    preadv2(device.file(), into, 0, ReadWriteFlags::NOWAIT) == Err(Errno::OPNOTSUPP)
}

/// The median of some reads; none where one of them fails.
fn tried(device: &Arc<BlockFile>, pool: &Pool, through: Through) -> Option<u64> {
    let shape = QueueShape { depth: 1, through };
    let mut queue = Queue::new(device, std::slice::from_ref(pool), shape).ok()?;
    let blocks = device.len_bytes() / BLOCK_BYTES;
    let mut times_ns = Vec::new();
    for read in 0..READS {
        let request = Request::Read {
            at: read % blocks * BLOCK_BYTES,
            into: pool.take()?,
        };
        let Done { result, took, .. } = queue.poll(request, 0).ok()?;
        result.ok()?;
        times_ns.push(took.0);
    }
    times_ns.sort_unstable();
    Some(times_ns[times_ns.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_is_chosen_by_what_was_measured() {
        let ways = |uring_ns, polled_ns, uring_thread_ns| Support {
            threads_ns: Some(20_000),
            calls_ns: Some(5_001),
            uring_ns,
            polled_ns,
            uring_thread_ns,
        };
        let critical = |support: Support| (support.critical(), support.background());
        assert_eq!(
            critical(ways(None, None, None)),
            (Through::Threads, Through::Threads)
        );
        let plain = ways(Some(10_000), None, Some(9_500));
        assert_eq!(critical(plain), (Through::Uring, Through::Uring));
        let threaded = ways(Some(10_000), Some(11_000), Some(8_900));
        assert_eq!(critical(threaded), (Through::UringThread, Through::Uring));
        let polled = ways(Some(10_000), Some(9_999), Some(8_900));
        assert_eq!(critical(polled), (Through::UringPolled, Through::Uring));
        let at_once = Support {
            calls_ns: Some(5_000),
            ..polled
        };
        assert_eq!(critical(at_once), (Through::Calls, Through::Calls));
        let is_waited_for = Support {
            calls_ns: Some(8_000),
            ..ways(Some(30_000), None, None)
        };
        assert_eq!(critical(is_waited_for), (Through::Uring, Through::Uring));
        assert_eq!(
            plain.to_string(),
            "threads 20.0 us, calls 5.0 us, io_uring 10.0 us, polled no, kernel thread 9.5 us"
        );
    }
}
