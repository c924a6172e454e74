//! A thread beside a program, which goes before or after it where both want a CPU, and may be kept
//! to one: it takes turns, with pauses, until it is told to end.
//!
//! What it never does: end in the middle of a turn; go on when its owner is gone.
//!
//! *Thread safety*: one owner; a [`Thread`] of it wakes it from anywhere.

use crate::error::{SwapError, Trying};
use nyx_base::Nanos;
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

/// How much nicer than the program a thread is that leaves it the CPU where there is no other: it
/// does then what the program could do for itself, for no less (decision 0018).
pub(super) const AFTER_PROGRAMS: i32 = 10;
/// And one that goes before the program, if that is allowed.
pub(super) const BEFORE_PROGRAMS: i32 = -10;
/// And one that goes before those too: it has little to do, and somebody waits for it.
pub(super) const BEFORE_ALL: i32 = -19;

/// What the thread shares with its owner. Each is a word of its own and nothing is published by
/// it, so `Relaxed` is enough; what a turn leaves behind is ordered by joining.
#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    cpu_ns: AtomicU64,
}

/// See the module; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Aside {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Aside {
    /// Begins to take turns on that CPU, or on any, and by so much nicer than this process; each
    /// says how long to pause after it, if at all, or that it was the last.
    pub(super) fn start(
        name: &str,
        (cpu, nicer): (Option<usize>, i32),
        mut turn: impl FnMut() -> ControlFlow<(), Option<Nanos>> + Send + 'static,
    ) -> Result<Aside, SwapError> {
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            settle_down(cpu, nicer);
            while !seen.is_over.load(Relaxed) {
                let next = turn();
                seen.cpu_ns.store(own_cpu_ns(), Relaxed);
                match next {
                    ControlFlow::Continue(None) => {}
                    ControlFlow::Continue(Some(pause)) => {
                        thread::park_timeout(Duration::from_nanos(pause.0));
                    }
                    ControlFlow::Break(()) => return,
                }
            }
        });
        Ok(Aside {
            shared,
            thread: Some(thread.trying("start", Path::new("a thread"))?),
        })
    }

    /// To wake it.
    pub(super) fn thread(&self) -> Thread {
        let thread = self.thread.as_ref().expect("it is there until it ends");
        thread.thread().clone()
    }

    /// CPU time that it took until its last turn.
    pub(super) fn cpu(&self) -> Nanos {
        Nanos(self.shared.cpu_ns.load(Relaxed))
    }

    /// Ends it, and waits until it has.
    pub(super) fn end(&mut self) {
        self.shared.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.end();
    }
}

fn own_cpu_ns() -> u64 {
    let cpu = clock_gettime(ClockId::ThreadCPUTime);
    cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64
}

/// How many CPUs this process may use, and the last of them where there are several.
pub(super) fn allowed_cpus() -> (u64, Option<usize>) {
    let Ok(set) = sched_getaffinity(None) else {
        return (1, None);
    };
    let all = || (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    let last = all().next_back().filter(|_| set.count() > 1);
    (u64::from(set.count()), last)
}

/// Keeps this thread to a CPU, where it is to be, and has it go before or after others. Where
/// neither is allowed it works all the same.
fn settle_down(on_cpu: Option<usize>, nicer: i32) {
    if let Some(cpu) = on_cpu {
        let mut one = CpuSet::new();
        one.set(cpu);
        if let Err(error) = sched_setaffinity(None, &one) {
            tracing::warn!(cpu, %error, "a thread cannot be kept to this CPU");
        }
    }
    // Of this thread alone; the kernel takes what is out of range for what is next to it.
    let own = getpriority_process(None).unwrap_or(0);
    if let Err(error) = setpriority_process(None, own + nicer) {
        tracing::debug!(nicer, %error, "a thread goes neither before nor after programs");
    }
}
