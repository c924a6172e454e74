//! One boot of the emulated machine: QEMU with NVDIMMs and an NVMe disk, whose files outlive it,
//! and a console that is read line by line and kept in a log.
//!
//! What it never does: use KVM, which on some machines opens and boots nothing; wait without a
//! deadline; or leave a process behind.

use super::console::Line;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How instructions are emulated, where the guest has one CPU, and several: those take turns on one
/// thread. On a thread each, a guest in which programs were listened to by perf events stood still
/// after twenty rounds of one test, both CPUs in a page fault where the kernel counts it (as if one
/// had not seen what the other changed of that code: it is switched on by a static key). With turns
/// ninety rounds ended.
const ACCELERATORS: [&str; 2] = ["tcg", "tcg,thread=single"];

/// Each filesystem's memory; XFS makes none below 300 MB.
pub(super) const NVDIMM_BYTES: u64 = 320 << 20;
/// The disk's.
pub(super) const NVME_BYTES: u64 = 16 << 20;
/// What to boot.
pub(super) struct Setup {
    pub(super) qemu: PathBuf,
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
    pub(super) nvdimms: Vec<PathBuf>,
    pub(super) nvme: PathBuf,
    pub(super) cpus: usize,
    /// More words for the kernel.
    pub(super) options: &'static str,
    /// It is waited for so long.
    pub(super) time_max: Duration,
}

/// A machine that runs; its power is cut when this is dropped.
pub(super) struct Machine {
    child: Child,
    lines: Receiver<Line>,
    time_max: Duration,
    deadline: Instant,
}

impl Machine {
    /// Switches it on. `words` go to the first process, what it prints to `log` too.
    pub(super) fn boot(setup: &Setup, words: &str, log: &Path) -> Result<Machine, String> {
        let mut qemu = started_by(setup);
        let accelerator = ACCELERATORS[usize::from(setup.cpus > 1)];
        qemu.args(["-accel", accelerator, "-machine", "q35,nvdimm=on"]);
        qemu.args(["-cpu", "max"]);
        qemu.args([
            "-m",
            "768M,slots=2,maxmem=4G",
            "-nodefaults",
            "-display",
            "none",
        ]);
        qemu.args(["-no-reboot", "-serial", "stdio"]);
        qemu.args(["-smp", &setup.cpus.to_string()]);
        for (at, path) in setup.nvdimms.iter().enumerate() {
            let path = path.display();
            let memory = format!(
                "memory-backend-file,id=mem{at},share=on,mem-path={path},size={NVDIMM_BYTES}"
            );
            qemu.args(["-object", &memory]);
            qemu.args(["-device", &format!("nvdimm,id=nvdimm{at},memdev=mem{at}")]);
        }
        let nvme = setup.nvme.display();
        qemu.args(["-drive", &format!("if=none,id=disk,format=raw,file={nvme}")]);
        qemu.args(["-device", "nvme,serial=nyx,drive=disk"]);
        qemu.arg("-kernel").arg(&setup.kernel);
        qemu.arg("-initrd").arg(&setup.initramfs);
        let options = setup.options;
        let line =
            format!("console=ttyS0 quiet panic=-1 oops=panic mitigations=off {options} -- {words}");
        qemu.args(["-append", &line]);
        let started = |error: std::io::Error| format!("{}: {error}", setup.qemu.display());
        let file = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let stderr = file.try_clone().map_err(started)?;
        qemu.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr);
        let mut child = qemu.spawn().map_err(started)?;
        let lines = listen(child.stdout.take().expect("it is piped"), file);
        let time_max = setup.time_max;
        let deadline = Instant::now() + time_max;
        Ok(Machine {
            child,
            lines,
            time_max,
            deadline,
        })
    }

    /// The next line that means something; none when the machine is off.
    pub(super) fn next(&mut self) -> Result<Option<Line>, String> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("not done after {} s", self.time_max.as_secs()))
            }
        }
    }

    /// Cuts the power; what was on its way to us still comes.
    pub(super) fn cut(&mut self) {
        // Both fail where it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// QEMU; with one CPU for all of it where the guest has one.
///
/// QEMU's NVMe reads a doorbell in memory after it has said from where on it wants to be told of
/// it, with no barrier between. On two CPUs the guest's write falls between the two at times, and
/// what was asked of the disk is never done: of 25 guests with polled rings on a busy machine 14
/// stood still, of 15 that had one CPU none did.
fn started_by(setup: &Setup) -> Command {
    if setup.cpus > 1 {
        return Command::new(&setup.qemu);
    }
    let mut taskset = Command::new("taskset");
    let cpu = rustix::thread::sched_getcpu().to_string();
    taskset.args(["--cpu-list", &cpu]).arg(&setup.qemu);
    taskset
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Reads until the other side is gone.
fn listen(console: ChildStdout, mut log: File) -> Receiver<Line> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let mut console = BufReader::new(console);
        let mut bytes = Vec::new();
        while console.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
            // A log that cannot be written is missed only where something else fails.
            let _ = log.write_all(&bytes);
            // A line that was cut off is none.
            if bytes.ends_with(b"\n")
                && let Some(line) = Line::parse(&String::from_utf8_lossy(&bytes))
                && sender.send(line).is_err()
            {
                return;
            }
            bytes.clear();
        }
    });
    lines
}
