//! Persistence where it is meant to be: Debian's kernel in an emulated machine with NVDIMMs, ext4
//! and XFS with direct access on them, indexes that are written to, and power that is cut.
//!
//! The tests of direct access of `nyx-media` run there; then the example `power_cut` of `nyx-index`
//! fills one index of each kind on each filesystem, all at once, and says what is acknowledged,
//! until QEMU is killed. The next boot, on the same memory, checks what is left, and goes on; one
//! is killed while it checks.
//!
//! An NVMe disk with a poll queue, which few machines have, is there for the polled rings of
//! `nyx_media::queue`: whether they work, and what a device without such a queue does instead.
//!
//! What this shows: that the kernel grants `MAP_SYNC` where it should and nowhere else, that with
//! it no block of a file is lost, and that indexes recover wherever these few cuts struck. What it
//! cannot: emulation has no CPU caches, so a flush that is missing goes unnoticed here; that is
//! what `nyx_media::pmem::crash` is for. Nor does it measure anything.
//!
//! What it never does: install a kernel, mount anything on this machine, use KVM.

mod console;
mod initramfs;
mod kernel;
mod machine;
pub(crate) mod swap;

use crate::packages;
use crate::run::{Report, cargo, output, target_directory};
use console::Line;
use fastrand::Rng;
use machine::{Machine, NVDIMM_BYTES, NVME_BYTES, Setup};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The first process.
const INIT: &str = include_str!("vm/init.sh");
/// A boot with its work takes about 20 s.
const BOOT_MAX: Duration = Duration::from_secs(150);

/// When the power of a boot is cut.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Writing,
    /// While indexes are opened and looked at, after another cut.
    Checking,
    /// It goes off by itself.
    Never,
}

const BOOTS: [Cut; 4] = [Cut::Writing, Cut::Checking, Cut::Writing, Cut::Never];
/// So many acknowledgements of all writers together are waited for at most.
const LINES_MAX: usize = 1000;
const FILESYSTEMS: [&str; 2] = ["ext4", "xfs"];
const INDEXES: [&str; 3] = ["fast-fair", "fp-tree", "skip-list"];

/// Checks of polled rings.
const POLLED: [&str; 3] = [
    "fallback without poll queues",
    "polled ring",
    "polled requests",
];

/// By writer, `FILESYSTEM/INDEX`, how many of its operations are durable.
type Counts = BTreeMap<String, u64>;

/// The whole: from the tools to the last check.
pub(crate) fn run(report: &mut Report) {
    const NAME: &str = "emulated machine";
    let start = Instant::now();
    let dir = match target_directory() {
        Ok(target) => target.join("vm"),
        Err(why) => return report.check(NAME, Err(why)),
    };
    let found = Tools::find().and_then(|tools| kernel::download(&dir).map(|()| tools));
    let tools = match found {
        Ok(tools) => tools,
        Err(reason) => return report.skip(NAME, &reason),
    };
    told(start, "tools and Debian's kernel");
    let setup = match setup(&dir, tools) {
        Ok(setup) => setup,
        Err(why) => return report.check(NAME, Err(why)),
    };
    told(start, "programs and initramfs");
    Run::new(report, &dir, start).boots(&setup);
    // Logs stay, large files go.
    for path in (setup.nvdimms.iter()).chain([&setup.nvme, &setup.initramfs]) {
        let _ = fs::remove_file(path);
    }
}

/// Programs of Debian: the first two run here, all but the first in the guest.
struct Tools {
    qemu: PathBuf,
    busybox: PathBuf,
    mkfs_ext4: PathBuf,
    mkfs_xfs: PathBuf,
}

impl Tools {
    /// Where they are; what is missing is the reason to skip.
    fn find() -> Result<Tools, String> {
        let found = [
            ("qemu-system-x86_64", "qemu-system-x86"),
            ("busybox", "busybox-static"),
            ("mkfs.ext4", "e2fsprogs"),
            ("mkfs.xfs", "xfsprogs"),
        ]
        .map(|(name, package)| packages::program(name, package));
        if let [Ok(qemu), Ok(busybox), Ok(mkfs_ext4), Ok(mkfs_xfs)] = found {
            return Ok(Tools {
                qemu,
                busybox,
                mkfs_ext4,
                mkfs_xfs,
            });
        }
        let missing: Vec<String> = found.into_iter().filter_map(Result::err).collect();
        Err(missing.join("; "))
    }
}

/// What is booted, all of it made.
fn setup(dir: &Path, tools: Tools) -> Result<Setup, String> {
    let kernel = kernel::find(dir, &tools.busybox)?;
    let power_cut = executable("build", &["--example", "power_cut"], "power_cut")?;
    let media_tests = executable("test", &["--lib", "--no-run"], "nyx_media")?;
    let contents = initramfs::Contents {
        busybox: &tools.busybox,
        programs: &[
            ("power_cut", power_cut),
            ("media_tests", media_tests),
            ("mkfs.ext4", tools.mkfs_ext4),
            ("mkfs.xfs", tools.mkfs_xfs),
        ],
        init: INIT,
        modules: &kernel.modules,
    };
    Ok(Setup {
        qemu: tools.qemu,
        kernel: kernel.image,
        initramfs: initramfs::make(dir, &contents)?,
        nvdimms: FILESYSTEMS
            .map(|name| dir.join(format!("{name}.nvdimm")))
            .to_vec(),
        nvme: dir.join("nvme"),
        cpus: 1,
        options: "",
        time_max: BOOT_MAX,
    })
}

/// One line of progress.
fn told(start: Instant, what: &str) {
    println!("  vm {:>6.1} s  {what}", start.elapsed().as_secs_f64());
}

/// What a command of cargo builds from the target `name`.
fn executable(command: &str, args: &[&str], name: &str) -> Result<PathBuf, String> {
    // As the step `test` selects packages, so that dependencies have the same features.
    let all = [
        "--workspace",
        "--exclude",
        "xtask",
        "--message-format",
        "json",
    ];
    let built = output(cargo(command).args(all).args(args))?;
    let mut found = built.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == name;
        let executable = message["executable"].as_str().filter(|_| is_it);
        executable.map(PathBuf::from)
    });
    found
        .next()
        .ok_or_else(|| format!("cargo {command} built no {name}"))
}

/// Boots with power cuts between them.
struct Run<'r> {
    report: &'r mut Report,
    dir: &'r Path,
    start: Instant,
    seed: u64,
    rng: Rng,
    acknowledged: Counts,
}

impl Run<'_> {
    fn new<'r>(report: &'r mut Report, dir: &'r Path, start: Instant) -> Run<'r> {
        let seed = std::env::var("NYX_VM_SEED").ok();
        let seed = seed.and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        let writers = FILESYSTEMS.iter().flat_map(|filesystem| {
            let of = move |index| (format!("{filesystem}/{index}"), 0);
            INDEXES.iter().map(of)
        });
        Run {
            report,
            dir,
            start,
            seed,
            rng: Rng::with_seed(seed),
            acknowledged: writers.collect(),
        }
    }

    /// All boots, up to the first that fails.
    fn boots(mut self, setup: &Setup) {
        if let Err(why) = make_devices(setup) {
            return self.report.check("devices", Err(why));
        }
        for (boot, cut) in BOOTS.into_iter().enumerate() {
            let log = self.dir.join(format!("boot-{boot}.log"));
            let heard = self.boot(setup, boot, cut, &log);
            let done = heard.and_then(|heard| self.judge(boot, cut, &heard));
            let failed = done.is_err();
            let done = done.map_err(|why| {
                let (seed, log_path) = (self.seed, log.display());
                format!("{why} (NYX_VM_SEED={seed})\n{log_path}:\n{}", tail(&log))
            });
            self.report.check(&format!("boot {boot}"), done);
            if failed {
                return;
            }
        }
    }

    /// One boot: its checks, then writers, up to its end.
    fn boot(&mut self, setup: &Setup, boot: usize, cut: Cut, log: &Path) -> Result<Heard, String> {
        let mode = match (boot, cut) {
            (0, _) => "first",
            (_, Cut::Never) => "last",
            _ => "again",
        };
        let counts = self.acknowledged.iter();
        let counts = counts.map(|(writer, count)| format!(" {writer}={count}"));
        let words = format!("{mode} {}{}", self.seed, counts.collect::<String>());
        let (lines, writers) = (self.rng.usize(0..LINES_MAX), self.acknowledged.len());
        // The first two are modules and mounts.
        let checks = 2 + self.rng.usize(0..writers);
        let mut machine = Machine::boot(setup, &words, log)?;
        let mut heard = Heard::default();
        let mut is_cut = false;
        // What was said before the cut counts, whenever it is heard.
        while let Some(line) = machine.next()? {
            heard.take(line)?;
            let is_time = match cut {
                Cut::Writing => heard.lines >= lines && heard.writing.len() == writers,
                Cut::Checking => heard.right.len() >= checks,
                Cut::Never => false,
            };
            if is_time && !is_cut {
                machine.cut();
                is_cut = true;
            }
        }
        match is_cut || cut == Cut::Never {
            true => Ok(heard),
            false => Err("the machine ended by itself".to_owned()),
        }
    }

    /// The checks that must have been made.
    fn expected(&self, boot: usize, cut: Cut) -> Vec<String> {
        let mut names = vec!["modules".to_owned(), "mounts with DAX".to_owned()];
        if boot == 0 {
            names.extend(["/mnt/ext4", "/mnt/xfs"].map(|at| format!("DAX at {at}")));
            names.extend(["/tmp", "/mnt/ext4", "/mnt/xfs"].map(|at| format!("no DAX at {at}")));
            names.extend(POLLED.map(str::to_owned));
        }
        if cut != Cut::Checking {
            let writers = self.acknowledged.keys();
            names.extend(writers.map(|writer| format!("check {writer}")));
        }
        if cut == Cut::Never {
            names.push("unmounts".to_owned());
        }
        names
    }

    /// Whether all was said that should be, and none of what is durable is lost.
    fn judge(&mut self, boot: usize, cut: Cut, heard: &Heard) -> Result<(), String> {
        let expected = self.expected(boot, cut);
        let missing = expected.iter().find(|name| !heard.right.contains(name));
        if let Some(name) = missing {
            return Err(format!("the machine ended before the check {name:?}"));
        }
        let mut ahead = 0;
        for (writer, holds) in &heard.holds {
            let acknowledged = self.acknowledged.get(writer).copied();
            let more = holds.checked_sub(acknowledged.ok_or("a writer of its own")?);
            ahead += more.ok_or_else(|| format!("{writer}: {holds} of {acknowledged:?} there"))?;
        }
        let before: u64 = self.acknowledged.values().sum();
        self.acknowledged.extend(heard.acknowledged.clone());
        let after: u64 = self.acknowledged.values().sum();
        let mut what = format!("boot {boot}: {} checks", heard.right.len());
        if boot > 0 {
            let indexes = heard.holds.len();
            what +=
                &format!("; {before} operations acknowledged, {ahead} more in {indexes} indexes");
        }
        what += match cut {
            Cut::Writing => "; power cut while writing",
            Cut::Checking => "; power cut while checking",
            Cut::Never => "",
        };
        if after > before {
            what += &format!(", {after} acknowledged");
        }
        told(self.start, &what);
        for name in &heard.right {
            self.report.check(name, Ok(()));
        }
        Ok(())
    }
}

/// Empty files for the machine's devices.
fn make_devices(setup: &Setup) -> Result<(), String> {
    let nvdimms = setup.nvdimms.iter().map(|path| (path, NVDIMM_BYTES));
    let mut all = nvdimms.chain([(&setup.nvme, NVME_BYTES)]);
    all.try_for_each(|(path, bytes)| {
        let made = File::create(path).and_then(|file| file.set_len(bytes));
        made.map_err(|error| format!("{}: {error}", path.display()))
    })
}

/// What a machine has said.
#[derive(Default)]
struct Heard {
    /// Names of checks that were right.
    right: Vec<String>,
    holds: Counts,
    acknowledged: Counts,
    /// Who has acknowledged anything since writers were started that write until they are stopped.
    writing: BTreeSet<String>,
    /// And how many acknowledgements that were.
    lines: usize,
}

impl Heard {
    fn take(&mut self, line: Line) -> Result<(), String> {
        match line {
            Line::Ok(name) => self.right.push(name),
            Line::Failed(name) => return Err(format!("{name} failed")),
            Line::Holds(writer, count) => {
                self.holds.insert(writer, count);
            }
            Line::Acknowledged(writer, count) => {
                if self.right.last().is_some_and(|name| name == "writers") {
                    self.writing.insert(writer.clone());
                    self.lines += 1;
                }
                self.acknowledged.insert(writer, count);
            }
        }
        Ok(())
    }
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    const TAIL_LINES: usize = 40;
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(TAIL_LINES);
    lines[from..].join("\n")
}
