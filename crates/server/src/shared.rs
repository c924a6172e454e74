//! What all threads of a server share: whether it is stopping, and its figures.
//!
//! *Thread safety*: everything here is shared. Per-worker figures have one writer each.

use nyx_base::{CachePadded, Counter};
use nyx_engine::stats::Surroundings;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub(crate) struct WorkerFigures {
    pub(crate) bytes_read: Counter,
    pub(crate) bytes_written: Counter,
    /// Answers of its connections wait until a journal is durable.
    pub(crate) waits_for_journal: AtomicBool,
    /// Connections that wait for their tenant's budget, now, by tenant.
    pub(crate) held: Box<[AtomicU64]>,
}

impl WorkerFigures {
    fn of(tenants: usize) -> WorkerFigures {
        WorkerFigures {
            bytes_read: Counter::default(),
            bytes_written: Counter::default(),
            waits_for_journal: AtomicBool::new(false),
            held: (0..tenants).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

pub(crate) struct Shared {
    stopping: AtomicBool,
    started: Instant,
    pub(crate) shutdown_allowed: bool,
    pub(crate) max_connections: u64,
    pub(crate) connections: AtomicU64,
    pub(crate) connections_total: AtomicU64,
    pub(crate) connections_rejected: AtomicU64,
    pub(crate) workers: Box<[CachePadded<WorkerFigures>]>,
    pub(crate) listening: Vec<String>,
}

impl Shared {
    pub(crate) fn new(
        (workers, tenants): (u16, usize),
        max_connections: u64,
        shutdown_allowed: bool,
        listening: Vec<String>,
    ) -> Shared {
        Shared {
            stopping: AtomicBool::new(false),
            started: Instant::now(),
            shutdown_allowed,
            max_connections,
            connections: AtomicU64::new(0),
            connections_total: AtomicU64::new(0),
            connections_rejected: AtomicU64::new(0),
            workers: (0..workers)
                .map(|_| CachePadded(WorkerFigures::of(tenants)))
                .collect(),
            listening,
        }
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, SeqCst);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    pub(crate) fn surroundings(&self, now: nyx_base::Instant) -> Surroundings {
        let sum = |of: fn(&WorkerFigures) -> u64| self.workers.iter().map(|w| of(w)).sum();
        let held = |tenant: usize| -> u64 {
            let workers = self.workers.iter();
            workers.map(|w| w.held[tenant].load(Relaxed)).sum()
        };
        let tenants = self.workers.first().map_or(0, |w| w.held.len());
        let (user_us, system_us) = cpu_us();
        Surroundings {
            now,
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            time_s: unix_seconds(),
            user_us,
            system_us,
            curr_connections: self.connections.load(Relaxed),
            total_connections: self.connections_total.load(Relaxed),
            rejected_connections: self.connections_rejected.load(Relaxed),
            max_connections: self.max_connections,
            bytes_read: sum(|w| w.bytes_read.get()),
            bytes_written: sum(|w| w.bytes_written.get()),
            held_connections: (0..tenants).map(held).collect(),
            listening: self.listening.clone(),
        }
    }
}

/// Seconds since the Unix epoch; 0 where the clock is set before it.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// CPU time of the process in user code and in the kernel; zeros where the kernel does not tell.
fn cpu_us() -> (u64, u64) {
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields are counted behind the command's name, which may hold blanks and parentheses itself.
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |n: usize| -> u64 {
        behind_name
            .split_ascii_whitespace()
            .nth(n)
            .and_then(|f| f.parse().ok())
            .unwrap_or(0)
    };
    (field(11) * 1_000_000 / ticks, field(12) * 1_000_000 / ticks)
}
