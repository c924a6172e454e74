//! Requests carried out by threads with system calls (`calls.rs`): for where io_uring is forbidden,
//! as in many containers.
//!
//! What it never does: keep a thread busy that has nothing to do.
//!
//! *Thread safety*: the threads share two lists; jobs go one way and what has landed the other.

use super::calls::carry_out;
use super::{BlockFile, Driver, Job, Landed, event};
use crate::MediaError;
use crossbeam_queue::ArrayQueue;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Threads of a queue, at most: a device that wants more at once is better off with io_uring.
const THREADS_MAX: u32 = 16;

/// See the module.
#[derive(Debug)]
pub(super) struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Taken and not yet handed to the threads.
    taken: Vec<Job>,
}

#[derive(Debug)]
struct Shared {
    device: Arc<BlockFile>,
    jobs: Mutex<Jobs>,
    has_jobs: Condvar,
    landed: ArrayQueue<Landed>,
    event: OwnedFd,
}

#[derive(Debug)]
struct Jobs {
    waiting: VecDeque<Job>,
    is_over: bool,
}

// SAFETY: the address in a job is lent to whoever has the job, and that is one thread at a time.
unsafe impl Send for Job {}

impl Threads {
    pub(super) fn new(device: &Arc<BlockFile>, depth: u32) -> Result<Threads, MediaError> {
        let failed = |source| MediaError::File {
            path: device.path().to_owned(),
            action: "start threads for it",
            source,
        };
        let shared = Arc::new(Shared {
            device: device.clone(),
            jobs: Mutex::new(Jobs {
                waiting: VecDeque::with_capacity(depth as usize),
                is_over: false,
            }),
            has_jobs: Condvar::new(),
            landed: ArrayQueue::new(depth as usize),
            event: event::make().map_err(failed)?,
        });
        let mut driver = Threads {
            shared,
            threads: Vec::new(),
            taken: Vec::with_capacity(depth as usize),
        };
        for _ in 0..depth.min(THREADS_MAX) {
            let shared = driver.shared.clone();
            let thread = std::thread::Builder::new().name("nyx-block".to_owned());
            let thread = thread.spawn(move || shared.work()).map_err(failed)?;
            driver.threads.push(thread);
        }
        Ok(driver)
    }
}

// SAFETY: a job goes to one thread, which tells of it once, after it touched the bytes last.
unsafe impl Driver for Threads {
    unsafe fn push(&mut self, job: Job) {
        self.taken.push(job);
    }

    fn kick(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let wanted = self.taken.len();
        self.shared.lock().waiting.extend(self.taken.drain(..));
        for _ in 0..wanted.min(self.threads.len()) {
            self.shared.has_jobs.notify_one();
        }
    }

    fn collect(&mut self, landed: &mut Vec<Landed>) {
        landed.extend(std::iter::from_fn(|| self.shared.landed.pop()));
    }

    fn rest(&mut self) {
        event::sleep(&self.shared.event);
    }

    fn event(&mut self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.event.as_fd())
    }

    fn describe(&self) -> String {
        format!("{} threads", self.threads.len())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.has_jobs.notify_all();
        for thread in self.threads.drain(..) {
            // One that panicked told of it already.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().expect("no holder panics")
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            // SAFETY: the bytes are lent to this job until it has landed.
            let result = unsafe { carry_out(&self.device, job) };
            let landed = Landed {
                flight: job.flight,
                result,
            };
            self.landed.push(landed).expect("as deep as the queue");
            event::signal(&self.event);
        }
    }

    fn next(&self) -> Option<Job> {
        let is_idle = |jobs: &mut Jobs| jobs.waiting.is_empty() && !jobs.is_over;
        let mut jobs = self
            .has_jobs
            .wait_while(self.lock(), is_idle)
            .expect("no holder panics");
        jobs.waiting.pop_front()
    }
}
