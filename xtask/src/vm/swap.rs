//! Programs under `nyx swap` in an emulated machine: Debian's kernel with control groups of version
//! 2 only, of version 1 only, and without a memory controller.
//!
//! With a controller the tests of `crates/nyx/tests/swap.rs` run there, with swap files on an ext4
//! disk, and some checks that need a machine of their own; without one it is checked that each
//! command refuses and says why. A test that skips there has failed.
//!
//! What this shows: that both versions do what the engine takes them to do. It measures nothing.
//!
//! What it never does: turn on swap on this machine, or make a control group here.

use super::console::Line;
use super::machine::{Machine, Setup};
use super::{executable, initramfs, kernel, tail, told};
use crate::packages;
use crate::run::{Report, target_directory};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The first process.
const INIT: &str = include_str!("swap.sh");
/// Emulated sorts take a while.
const BOOT_MAX: Duration = Duration::from_secs(1800);
/// The disk for swap files.
const DISK_BYTES: u64 = 2 << 30;

/// What a machine has, the kernel's words for that, and the checks that are its own: they must
/// have been made, or it ended early.
const MACHINES: [(&str, &str, &[&str]); 3] = [
    ("none", "cgroup_disable=memory", &["none: run refuses"]),
    (
        "v2",
        "psi=1",
        &["v2: limit without a launcher", "v2: zram", "v2: auto"],
    ),
    (
        "v1",
        "psi=1",
        &["v1: limit without a launcher", "v1: zram", "v1: auto"],
    ),
];

/// Programs of Debian that the guest needs, and what the packages are called. Busybox has some of
/// them too, with fewer options.
const PROGRAMS: [(&str, &str); 7] = [
    ("mkfs.ext4", "e2fsprogs"),
    ("dash", "dash"),
    ("sort", "coreutils"),
    ("seq", "coreutils"),
    ("cksum", "coreutils"),
    ("setpriv", "util-linux"),
    ("losetup", "mount"),
];

/// The whole: from the tools to the last machine.
pub(crate) fn run(report: &mut Report) {
    const NAME: &str = "nyx swap in an emulated machine";
    let start = Instant::now();
    let dir = match target_directory() {
        Ok(target) => target.join("vm"),
        Err(why) => return report.check(NAME, Err(why)),
    };
    let qemu = packages::program("qemu-system-x86_64", "qemu-system-x86");
    let busybox = packages::program("busybox", "busybox-static");
    let programs = PROGRAMS.map(|(name, package)| packages::program(name, package));
    let programs: Result<Vec<PathBuf>, String> = programs.into_iter().collect();
    let found = qemu.and_then(|qemu| Ok((qemu, busybox?, programs?)));
    let tools = found.and_then(|tools| kernel::download(&dir).map(|()| tools));
    let (qemu, busybox, programs) = match tools {
        Ok(tools) => tools,
        Err(reason) => return report.skip(NAME, &reason),
    };
    told(start, "tools and Debian's kernel");
    let (mut setup, words) = match setup(&dir, qemu, &busybox, programs) {
        Ok(made) => made,
        Err(why) => return report.check(NAME, Err(why)),
    };
    told(start, "programs and initramfs");
    for (name, options, own) in MACHINES {
        setup.options = options;
        let log = dir.join(format!("swap-{name}.log"));
        let right = boot(report, &setup, &format!("{name} {words}"), &log);
        let missing = |right: &Vec<String>| {
            let missing = own
                .iter()
                .find(|check| !right.iter().any(|one| one == *check));
            missing.map_or(Ok(right.len()), |check| Err(format!("no check {check:?}")))
        };
        match right.and_then(|right| missing(&right)) {
            Ok(checks) => told(start, &format!("{name}: {checks} checks")),
            Err(why) => {
                let why = format!("{why}\n{}:\n{}", log.display(), tail(&log));
                report.check(&format!("machine {name}"), Err(why));
            }
        }
    }
    // Logs stay, large files go.
    for path in [&setup.nvme, &setup.initramfs] {
        let _ = fs::remove_file(path);
    }
}

/// What is booted, and the words that its first process gets behind the machine's name: where the
/// tests take the binary and a directory on a disk to be.
fn setup(
    dir: &Path,
    qemu: PathBuf,
    busybox: &Path,
    programs: Vec<PathBuf>,
) -> Result<(Setup, String), String> {
    let kernel = kernel::find(dir, busybox)?;
    let tests = executable("test", &["--test", "swap", "--no-run"], "swap")?;
    let target = target_directory()?;
    // Where cargo builds binaries and keeps files of tests (CARGO_TARGET_TMPDIR).
    let (nyx, files) = (target.join("debug/nyx"), target.join("tmp"));
    let mut inside = vec![("nyx", nyx.clone()), ("swap_tests", tests)];
    inside.extend(PROGRAMS.iter().map(|(name, _)| *name).zip(programs));
    for (name, _) in &mut inside {
        // What tests call.
        if *name == "dash" {
            *name = "sh";
        }
    }
    let dir = dir.join("swap");
    fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let contents = initramfs::Contents {
        busybox,
        programs: &inside,
        init: INIT,
        modules: &kernel.modules,
    };
    let setup = Setup {
        qemu,
        kernel: kernel.image,
        initramfs: initramfs::make(&dir, &contents)?,
        nvdimms: Vec::new(),
        nvme: dir.join("disk"),
        cpus: 2,
        options: "",
        time_max: BOOT_MAX,
    };
    Ok((setup, format!("{} {}", nyx.display(), files.display())))
}

/// One machine, up to its end; the checks that were right.
fn boot(
    report: &mut Report,
    setup: &Setup,
    words: &str,
    log: &Path,
) -> Result<Vec<String>, String> {
    let disk = File::create(&setup.nvme).and_then(|file| file.set_len(DISK_BYTES));
    disk.map_err(|error| format!("{}: {error}", setup.nvme.display()))?;
    let mut machine = Machine::boot(setup, words, log)?;
    let (mut right, mut wrong) = (Vec::new(), Vec::new());
    while let Some(line) = machine.next()? {
        match line {
            Line::Ok(name) => {
                println!("  ok {name}");
                report.check(&name, Ok(()));
                right.push(name);
            }
            Line::Failed(name) => {
                println!("  FAILED {name}");
                wrong.push(name);
            }
            _ => {}
        }
    }
    match wrong.is_empty() {
        true => Ok(right),
        false => Err(format!("failed: {}", wrong.join(", "))),
    }
}
