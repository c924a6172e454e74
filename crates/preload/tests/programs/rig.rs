//! Runs programs, with and without the library, and ends those that hang.
//!
//! Thread safety: runs share nothing but what is built once; each has a directory of its own.
//!
//! What it never does: end a process that it did not start; leave one that it did.

use nyx_swap::arena::{ArenaFigures, LIBRARY, Terms};
use nyx_swap::region::{Device, Region, RegionError};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;

/// Longer than any run takes; who takes that long hangs.
const HANGS: Duration = Duration::from_secs(90);
/// A killed process is gone by then.
const GONE: Duration = Duration::from_secs(20);

/// What the tests are about.
pub(crate) struct Built {
    pub(crate) library: PathBuf,
    pub(crate) abuse: PathBuf,
}

/// Builds both in this test's own profile: cargo builds no `cdylib` for a test of the same package.
pub(crate) fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let me = std::env::current_exe().expect("this test");
        let dir = me.ancestors().nth(2).expect("of a target directory");
        let target = dir.parent().expect("of a target directory");
        let profile = match dir.file_name().and_then(OsStr::to_str) {
            Some("debug") => "dev",
            name => name.expect("a profile"),
        };
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME")]);
        cargo.args(["--lib", "--example", "abuse", "--profile", profile]);
        cargo.arg("--target-dir").arg(target);
        let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(status.expect("cargo").success(), "the library is not built");
        Built {
            library: dir.join(LIBRARY),
            abuse: dir.join("examples/abuse"),
        }
    })
}

/// A directory for a run, where pages may lie: none in memory only.
pub(crate) fn dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// Whether this machine has what an arena needs; else the test is skipped by its name.
pub(crate) fn can_page(test: &str) -> bool {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    let missing = MISSING.get_or_init(|| {
        let dir = dir();
        let device = Device::temporary(dir.path(), MIB).expect("a device");
        match Region::new(MIB, 256 << 10, &device) {
            Ok(_) => None,
            Err(missing @ RegionError::NoUserfaultfd { .. }) => Some(missing.to_string()),
            Err(error) => panic!("{error}"),
        }
    });
    match missing {
        None => true,
        Some(why) => skip(test, why),
    }
}

/// Says that a test is skipped, and why.
pub(crate) fn skip(test: &str, why: &str) -> bool {
    eprintln!("skipped: {test}: {why}");
    false
}

/// Where a program is; none where the machine has none.
pub(crate) fn program(test: &str, name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = dirs.map(|dir| dir.join(name)).find(|file| file.is_file());
    if found.is_none() {
        skip(test, &format!("{name} is missing"));
    }
    found
}

/// Of a run's directory: out of which its arenas pay, where there is one.
pub(crate) const PURSE: &str = "purse";

/// How much an arena may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) limit: u64,
    pub(crate) len: u64,
}

/// What came of a run.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    /// All arenas of it together.
    pub(crate) figures: Option<ArenaFigures>,
}

impl Ended {
    /// It ended well.
    pub(crate) fn well(self, what: &str) -> Ended {
        let (status, stderr) = (self.status, &self.stderr);
        assert!(status.success(), "{what}: {status}; it said: {stderr}");
        self
    }

    /// What its arenas did, which there were, and without a fault that failed.
    pub(crate) fn paged(&self, what: &str) -> &ArenaFigures {
        let figures = self.figures.as_ref();
        let figures = figures.unwrap_or_else(|| panic!("{what}: no arena; {}", self.stderr));
        assert_eq!(figures.refused, None, "{what}");
        assert_eq!(figures.failed, 0, "{what}: {figures:?}");
        figures
    }
}

/// A run that is under way.
pub(crate) struct Going {
    process: Child,
    /// Can be read once it has ended.
    end: OwnedFd,
    pub(crate) pid: i32,
    what: String,
    /// Of this run: `stdout`, `stderr`, `pages` and `figures`.
    pub(crate) own: TempDir,
    is_over: bool,
}

/// Begins a program; with the library where it has room for an arena.
pub(crate) fn begin(command: &mut Command, room: Option<Room>) -> Going {
    let own = dir();
    let file = |name| File::create(own.path().join(name)).expect("a file");
    command.stdout(file("stdout"));
    begin_with(command, room, own)
}

/// The same, whose standard output goes where the command says.
pub(crate) fn begin_with(command: &mut Command, room: Option<Room>, own: TempDir) -> Going {
    begin_as(command, room, own, &built().library)
}

/// The same, with the library at another place.
pub(crate) fn begin_as(
    command: &mut Command,
    room: Option<Room>,
    own: TempDir,
    library: &Path,
) -> Going {
    let path = |name| own.path().join(name);
    fs::create_dir_all(path("pages")).expect("a directory");
    fs::create_dir_all(path("figures")).expect("a directory");
    if let Some(room) = room {
        let terms = Terms {
            limit_bytes: room.limit,
            len_bytes: room.len,
            pages: path("pages"),
            stat: None,
            figures: Some(path("figures")),
            purse: Some(path(PURSE)).filter(|path| path.exists()),
        };
        let (name, value) = terms.variable();
        command.env(name, value);
        command.env("LD_PRELOAD", library);
    }
    let stderr = File::create(path("stderr")).expect("a file");
    command.stderr(stderr).process_group(0);
    if command.get_current_dir().is_none() {
        command.current_dir(own.path());
    }
    let what = format!("{command:?}");
    let what = what.chars().take(300).collect();
    let process = command.spawn();
    let process = process.unwrap_or_else(|why| panic!("{what}: {why}"));
    let pid = process.id() as i32;
    // SAFETY: the call takes numbers only, and gives a new descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32;
    assert!(fd >= 0, "pidfd_open: {}", io::Error::last_os_error());
    // SAFETY: a new one, which nobody else has.
    let end = unsafe { OwnedFd::from_raw_fd(fd) };
    Going {
        process,
        end,
        pid,
        what,
        own,
        is_over: false,
    }
}

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command, room: Option<Room>) -> Ended {
    begin(command.stdin(Stdio::null()), room).end()
}

impl Going {
    /// Waits for its end; where that does not come, says where it is and fails.
    pub(crate) fn end(mut self) -> Ended {
        if !is_ready(self.end.as_fd(), HANGS) {
            let places = places(self.pid);
            self.kill();
            panic!("{} hangs:\n{places}\n{}", self.what, self.said());
        }
        let status = self.reap();
        let own = self.own.path();
        let left: Vec<_> = fs::read_dir(own.join("pages")).expect("there").collect();
        assert!(left.is_empty(), "{} left {left:?}", self.what);
        Ended {
            status,
            stdout: fs::read(own.join("stdout")).unwrap_or_default(),
            stderr: self.said(),
            figures: ArenaFigures::read_all(&own.join("figures")),
        }
    }

    /// Ends it and what it started.
    pub(crate) fn kill(&self) {
        // SAFETY: its own group, which it leads and which is not waited for yet.
        unsafe { libc::kill(-self.pid, libc::SIGKILL) };
    }

    fn said(&self) -> String {
        let said = fs::read(self.own.path().join("stderr")).unwrap_or_default();
        // The end says what was wrong.
        let end = said.len().saturating_sub(4_000);
        String::from_utf8_lossy(&said[end..]).into_owned()
    }

    fn reap(&mut self) -> ExitStatus {
        let status = self.process.wait().expect("a child of this process");
        self.is_over = true;
        status
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
            if is_ready(self.end.as_fd(), GONE) {
                self.reap();
            } else {
                eprintln!("{} cannot be killed:\n{}", self.what, places(self.pid));
            }
        }
    }
}

/// Whether a process ends before that.
fn is_ready(child: BorrowedFd<'_>, within: Duration) -> bool {
    use std::os::fd::AsRawFd;
    let mut poll = libc::pollfd {
        fd: child.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let within = i32::try_from(within.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one of them.
    unsafe { libc::poll(&raw mut poll, 1, within) == 1 }
}

/// Where each thread of a process and of its children is in the kernel.
fn places(pid: i32) -> String {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let mut lines = Vec::new();
    let mut pids = vec![pid];
    while let Some(pid) = pids.pop() {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let word = |name: &str| read(&task.path().join(name)).trim().to_owned();
            let id = task.file_name().to_string_lossy().into_owned();
            let (name, place, call) = (word("comm"), word("wchan"), word("syscall"));
            lines.push(format!("{pid}/{id} {name}: {place}; system call {call}"));
            let children = word("children");
            pids.extend(
                children
                    .split(' ')
                    .filter_map(|pid| pid.parse::<i32>().ok()),
            );
        }
    }
    lines.join("\n")
}

/// Runs what `command` makes without the library, then with it in about a third of what it has of
/// large memory: all is said as before, and some of it was on the device.
pub(crate) fn compare(test: &str, limit: u64, mut command: impl FnMut() -> Command) {
    if !can_page(test) {
        return;
    }
    let plain = run(&mut command(), None).well(test);
    let room = Room {
        limit,
        len: 4 << 30,
    };
    let paged = run(&mut command(), Some(room)).well(test);
    let figures = paged.paged(test);
    assert!(figures.major_faults > 0, "{test}: {figures:?}");
    assert!(plain.stdout == paged.stdout, "{test}: other output");
    assert_eq!(paged.stderr, plain.stderr, "{test}");
}
