//! Hears of a program's faults, without being in it: software events of the kernel
//! (perf_event_open(2)), which it writes to memory that is shared with this process.
//!
//! Each fault with a read is heard of, and one in [`MINOR_ONE_IN`] of the others: where what is
//! wanted next was read ahead, those are what tells how far the program is. That costs the program
//! more than a microsecond each, so that nobody should listen where nothing follows from it.
//!
//! What it never does: wait; wake anybody; stop the program.
//!
//! *Thread safety*: one owner.

use nyx_policy::paging::readahead::Fault;
use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};
use std::fs;
use std::io;

/// Of faults without a read one in so many is heard of.
const MINOR_ONE_IN: u64 = 8;
/// Bytes in which the kernel keeps what was not taken yet, per CPU: some 2,700 faults with a read
/// and 680 others.
const MAJOR_BYTES: usize = 64 << 10;
const MINOR_BYTES: usize = 16 << 10;
/// On more CPUs nobody listens: that takes two files each, and of the kernel two events for each
/// thread.
const CPUS_MOST: usize = 256;
/// Where CPUs are named that are on: `0-3,8`.
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// See the module.
pub(super) struct Faults {
    ears: Vec<Ear>,
    own: u32,
}

/// Faults of one kind on one CPU.
struct Ear {
    sampler: Sampler,
    is_major: bool,
}

impl Faults {
    /// Those of programs that the calling thread starts from now on, from when they execute, and of
    /// all that they start.
    pub(super) fn of_children() -> io::Result<Faults> {
        let cpus = cpus(&fs::read_to_string(ONLINE)?);
        if cpus.len() > CPUS_MOST {
            let why = format!("{} CPUs are more than {CPUS_MOST}", cpus.len());
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let mut ears = Vec::new();
        for cpu in cpus {
            for is_major in [true, false] {
                match listen(cpu, is_major) {
                    Ok(sampler) => ears.push(Ear { sampler, is_major }),
                    // It is off by now.
                    Err(error) if is_no_device(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let own = std::process::id();
        Ok(Faults { ears, own })
    }

    /// All that was heard since the last time, of one CPU after the other.
    pub(super) fn take(&mut self, mut hear: impl FnMut(Fault)) {
        for Ear { sampler, is_major } in &mut self.ears {
            while let Some(record) = sampler.next_record() {
                // What was lost, and what cannot be read, was not heard.
                let Ok(Record::Sample(sample)) = record.parse_record() else {
                    continue;
                };
                let (Some(process), Some(at)) = (sample.pid(), sample.addr()) else {
                    continue;
                };
                if process != self.own {
                    hear(Fault {
                        process,
                        at,
                        is_major: *is_major,
                    });
                }
            }
        }
    }

    /// From now on they are heard of, or not.
    pub(super) fn set_heard(&mut self, are_heard: bool) -> io::Result<()> {
        for Ear { sampler, .. } in &mut self.ears {
            match are_heard {
                true => sampler.enable()?,
                false => sampler.disable()?,
            }
        }
        Ok(())
    }
}

fn listen(cpu: usize, is_major: bool) -> io::Result<Sampler> {
    let (event, period, bytes) = match is_major {
        true => (Software::PAGE_FAULTS_MAJ, 1, MAJOR_BYTES),
        false => (Software::PAGE_FAULTS_MIN, MINOR_ONE_IN, MINOR_BYTES),
    };
    let mut builder = Builder::new(event);
    builder.observe_self().one_cpu(cpu).inherit(true);
    builder.enable_on_exec(true).sample_period(period);
    builder.sample(SampleFlag::TID).sample(SampleFlag::ADDR);
    // In a system call too, where that may be heard of.
    let counter = builder.include_kernel().build();
    let counter = counter.or_else(|_| builder.exclude_kernel(true).build())?;
    counter.sampled(bytes)
}

fn is_no_device(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

/// The CPUs that a list of the kernel's names.
fn cpus(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Lines, Write};
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpus("0\n"), [0]);
        assert_eq!(cpus("0-2,5,8-9\n"), [0, 1, 2, 5, 8, 9]);
        assert_eq!(cpus("\n"), [0; 0]);
    }

    /// A program of which a child touches some memory for each line that it is told; it answers.
    struct Toucher {
        child: Child,
        to: ChildStdin,
        from: Lines<BufReader<ChildStdout>>,
    }

    impl Toucher {
        fn start() -> Toucher {
            let script = "while read x; do \
                          (a=0123456789; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do a=$a$a; done); \
                          echo done; done";
            let mut sh = Command::new("sh");
            sh.args(["-c", script]);
            sh.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = sh.spawn().unwrap();
            let to = child.stdin.take().unwrap();
            let from = BufReader::new(child.stdout.take().unwrap()).lines();
            Toucher { child, to, from }
        }

        /// Faults that are heard of while it does so once more.
        fn touch(&mut self, faults: &mut Faults) -> usize {
            faults.take(|_| {});
            // This process touches some too.
            std::hint::black_box(vec![1u8; 4 << 20]);
            writeln!(self.to, "once more").unwrap();
            assert_eq!(self.from.next().unwrap().unwrap(), "done");
            let mut heard = 0;
            faults.take(|fault| {
                assert_ne!(fault.process, std::process::id());
                heard += 1;
            });
            heard
        }
    }

    #[test]
    fn faults_of_a_program_are_heard_of_while_somebody_listens() {
        let mut faults = match Faults::of_children() {
            Ok(faults) => faults,
            Err(error) => {
                eprintln!("skipped: faults cannot be heard of here: {error}");
                return;
            }
        };
        let mut toucher = Toucher::start();
        assert!(toucher.touch(&mut faults) > 4);
        for _ in 0..3 {
            faults.set_heard(false).unwrap();
            assert_eq!(toucher.touch(&mut faults), 0);
            faults.set_heard(true).unwrap();
            assert!(toucher.touch(&mut faults) > 0);
        }
        drop(toucher.to);
        assert!(toucher.child.wait().unwrap().success());
    }
}
