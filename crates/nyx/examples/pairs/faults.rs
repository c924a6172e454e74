//! How long each fault of a program takes, told the same way for every engine: by software events
//! of the kernel (perf_event_open(2)), one where a fault begins and one where it is over. A touch
//! of a page that is there costs no fault, and is not in the figures.
//!
//! A fault that ends without its page begins anew, and counts from its first beginning. What the
//! launcher itself faults is left out; what it starts beside the program, how the program begins
//! and what pages for it in its own process are not: some hundreds of faults. To be heard of costs
//! the program more than a microsecond for each fault, and who listens takes CPU time: run times
//! are not to be compared with others.
//!
//! *Shapes*: nanoseconds. *Thread safety*: one owner; a thread of its own listens.

use crate::Result;
use crate::log::FaultTimes;
use hdrhistogram::Histogram;
use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What the kernel keeps of events that were not taken yet, for each kind and CPU: some 130,000.
const KEPT_BYTES: usize = 4 << 20;
const LOOK: Duration = Duration::from_millis(2);
/// No fault takes longer, in nanoseconds.
const LONGEST_NS: u64 = 100_000_000_000;

/// See the module.
pub(crate) struct Watch {
    /// Who sees it set has to see all that was told before, hence `Release` and `Acquire`.
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Listener>>,
}

/// However it ends, nobody listens on.
impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Release);
    }
}

impl Watch {
    /// Of programs that the calling thread starts from now on, and of all that they start.
    pub(crate) fn start() -> Result<Watch> {
        let allowed = sched_getaffinity(None)?;
        let mut ears = Vec::new();
        for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)) {
            for (event, begins) in [
                (Software::PAGE_FAULTS, true),
                (Software::PAGE_FAULTS_MAJ, false),
                (Software::PAGE_FAULTS_MIN, false),
            ] {
                let sampler = listen(cpu, event);
                let sampler = sampler.map_err(|error| format!("faults of CPU {cpu}: {error}"))?;
                ears.push((sampler, begins));
            }
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut listener = Listener::default();
            loop {
                let is_last = seen.load(Acquire);
                listener.take(&mut ears);
                listener.hear(is_last);
                if is_last {
                    return listener;
                }
                thread::sleep(LOOK);
            }
        });
        Ok(Watch {
            is_over,
            thread: Some(thread),
        })
    }

    /// What was heard until now, but of that process.
    pub(crate) fn end(mut self, but: u32) -> Result<FaultTimes> {
        self.is_over.store(true, Release);
        let thread = self.thread.take().expect("it is there until it ends");
        let listener = thread.join().map_err(|_| "who listens panicked")?;
        Ok(listener.times(but))
    }
}

fn listen(cpu: usize, event: Software) -> io::Result<Sampler> {
    let mut builder = Builder::new(event);
    builder.observe_self().one_cpu(cpu).inherit(true);
    builder.enable_on_exec(true).sample_period(1);
    builder.sample(SampleFlag::TID).sample(SampleFlag::TIME);
    builder.sample(SampleFlag::ADDR);
    // In a system call too.
    builder.include_kernel().build()?.sampled(KEPT_BYTES)
}

/// A fault begins, or is over.
#[derive(Clone, Copy, Debug)]
struct Moment {
    ns: u64,
    process: u32,
    thread: u32,
    at: u64,
    begins: bool,
}

/// What was heard.
#[derive(Default)]
struct Listener {
    /// Not put together yet: an event of another CPU may come before them.
    moments: Vec<Moment>,
    /// All until then are there.
    complete_ns: u64,
    /// Of a thread: the address, and when that began.
    open: HashMap<u32, (u64, u64)>,
    processes: HashMap<u32, Times>,
    lost: u64,
}

struct Times {
    histogram: Histogram<u64>,
    sum_ns: u64,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            histogram: Histogram::new_with_max(LONGEST_NS, 3).expect("bounds are right"),
            sum_ns: 0,
        }
    }
}

impl Listener {
    fn take(&mut self, ears: &mut [(Sampler, bool)]) {
        // What comes while others are looked at may be older than what they have.
        let last = self.moments.iter().map(|moment| moment.ns).max();
        self.complete_ns = last.unwrap_or(0);
        for (sampler, begins) in ears {
            while let Some(record) = sampler.next_record() {
                match record.parse_record() {
                    Ok(Record::Sample(sample)) => {
                        let ids = sample.pid().zip(sample.tid());
                        let when = sample.time().zip(sample.addr());
                        if let Some(((process, thread), (ns, at))) = ids.zip(when) {
                            self.moments.push(Moment {
                                ns,
                                process,
                                thread,
                                at,
                                begins: *begins,
                            });
                        }
                    }
                    Ok(Record::Lost(lost)) => self.lost += lost.lost,
                    _ => {}
                }
            }
        }
    }

    /// Puts together what is complete; all of it in the end.
    fn hear(&mut self, is_last: bool) {
        let mut moments = std::mem::take(&mut self.moments);
        // An end that comes in the same nanosecond as a beginning is of the fault before.
        moments.sort_by_key(|moment| (moment.ns, moment.begins));
        let complete = match is_last {
            true => moments.len(),
            false => moments.partition_point(|moment| moment.ns <= self.complete_ns),
        };
        for moment in moments.drain(..complete) {
            self.put(moment);
        }
        self.moments = moments;
    }

    fn put(&mut self, moment: Moment) {
        let Moment { ns, thread, at, .. } = moment;
        if moment.begins {
            let open = self.open.entry(thread).or_insert((at, ns));
            if open.0 != at {
                *open = (at, ns);
            }
            return;
        }
        // Where its beginning was lost it is not counted.
        let Some((_, began)) = self.open.remove(&thread).filter(|open| open.0 == at) else {
            return;
        };
        let times = self.processes.entry(moment.process).or_default();
        let took = ns.saturating_sub(began);
        times.histogram.saturating_record(took);
        times.sum_ns += took;
    }

    fn times(&self, but: u32) -> FaultTimes {
        let Times {
            histogram: mut all,
            mut sum_ns,
        } = Times::default();
        let others = self
            .processes
            .iter()
            .filter(|(process, _)| **process != but);
        for (_, times) in others {
            all.add(&times.histogram).expect("bounds are the same");
            sum_ns += times.sum_ns;
        }
        FaultTimes {
            count: all.len(),
            p50_ns: all.value_at_quantile(0.5),
            p99_ns: all.value_at_quantile(0.99),
            p999_ns: all.value_at_quantile(0.999),
            longest_ns: all.max(),
            sum_ns,
            lost: self.lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn moment(ns: u64, thread: u32, at: u64, begins: bool) -> Moment {
        Moment {
            ns,
            process: thread / 10,
            thread,
            at,
            begins,
        }
    }

    fn heard(moments: &[Moment]) -> Listener {
        let mut listener = Listener {
            moments: moments.to_vec(),
            ..Listener::default()
        };
        listener.hear(true);
        listener
    }

    #[test]
    fn a_fault_takes_from_its_first_beginning_to_its_end() {
        let times = heard(&[
            // Of another CPU, and so told first.
            moment(150, 10, 1, false),
            moment(100, 10, 1, true),
            // Ends without its page, and is tried again.
            moment(200, 10, 2, true),
            moment(210, 10, 2, true),
            moment(1_200, 10, 2, false),
            // Its beginning was lost; and one whose end was.
            moment(1_300, 11, 3, false),
            moment(1_300, 11, 4, true),
            moment(1_400, 11, 5, true),
            moment(1_410, 11, 5, false),
            // Both at once.
            moment(1_500, 12, 7, true),
            moment(1_900, 12, 8, false),
            // The launcher's.
            moment(0, 20, 6, true),
            moment(90_000, 20, 6, false),
        ])
        .times(2);
        assert_eq!((times.count, times.sum_ns), (3, 50 + 1_000 + 10));
        assert_eq!((times.p50_ns, times.longest_ns, times.lost), (50, 1_000, 0));
    }

    #[test]
    fn what_may_still_lack_its_beginning_waits() {
        let mut listener = Listener {
            moments: vec![moment(100, 10, 1, true), moment(200, 10, 2, false)],
            complete_ns: 150,
            ..Listener::default()
        };
        listener.hear(false);
        listener.moments.push(moment(160, 10, 2, true));
        // The first was over without a page.
        listener.hear(true);
        assert_eq!(listener.times(0).sum_ns, 40);
    }

    #[test]
    fn faults_of_a_program_take_time() {
        let watch = match Watch::start() {
            Ok(watch) => watch,
            Err(error) => {
                eprintln!("skipped: faults cannot be heard of here: {error}");
                return;
            }
        };
        let mut program = Command::new("ls");
        let told = program.arg("/").stdout(Stdio::null()).status().unwrap();
        assert!(told.success());
        let times = watch.end(0).unwrap();
        assert!(times.count > 20, "{times:?}");
        assert!(
            times.p50_ns > 0 && times.sum_ns >= times.longest_ns,
            "{times:?}"
        );
    }
}
