//! `nyx swap` on this machine: real control groups and real swap, on a file or on zram. Where
//! either cannot be had the tests say why and count as passed.
//!
//! What they never do: rest on how long something takes.

use nyx_swap::SwapError;
use nyx_swap::kernel::{Entry, Memory, Plan, Reads, Session};
use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Read, Write, pipe};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

#[path = "swap/ahead.rs"]
mod ahead;
#[path = "swap/arena.rs"]
mod arena;
#[path = "swap/hungry.rs"]
mod hungry;
#[path = "swap/rotation.rs"]
mod rotation;
#[path = "swap/tenant.rs"]
mod tenant;
#[path = "swap/waiting.rs"]
mod waiting;

const NYX: &str = env!("CARGO_BIN_EXE_nyx");
/// Says that it runs, and goes on until it is told.
const UNTIL_END: &str = "touch ready; until test -e end; do sleep 0.01; done";
/// The processes of a control group.
const PROCS: &str = "cgroup.procs";

/// What the runs of one test have: what it leaves where it fails is killed.
struct Rig {
    dir: tempfile::TempDir,
    /// Where runs write down what they made; other tests do not see it.
    state: PathBuf,
    /// Where memory goes: a file beside this test's, or zram.
    device: String,
}

/// What can be had here, found once: whether a file can be swap, or zram; else why not.
fn device_kind() -> &'static Result<&'static str, String> {
    static KIND: OnceLock<Result<&str, String>> = OnceLock::new();
    KIND.get_or_init(|| {
        let dir = scratch();
        let file = dir.path().join("probe").display().to_string();
        let mut whys = Vec::new();
        for (kind, device) in [("file", file.as_str()), ("zram", "zram")] {
            let run = ["run", "--memory", "64M", "--device", device];
            let more = ["--device-size", "64M", "--no-probe", "--", "true"];
            let output = nyx_swap(&dir.path().join("state"))
                .args(run)
                .args(more)
                .output()
                .unwrap();
            if output.status.success() {
                return Ok(kind);
            }
            whys.push(text(&output.stderr));
        }
        Err(whys.join("; "))
    })
}

/// Temporary files of the build lie on a disk; `/tmp` may be tmpfs, which cannot hold swap.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// None where this machine cannot; it says so.
fn rig(test: &str) -> Option<Rig> {
    match device_kind() {
        Ok(kind) => {
            let dir = scratch();
            let device = match *kind {
                "file" => dir.path().join("swap").display().to_string(),
                kind => kind.to_owned(),
            };
            let state = dir.path().join("state");
            Some(Rig { dir, state, device })
        }
        Err(why) => {
            eprintln!("skipped {test}: no program can be run under nyx swap here: {why}");
            None
        }
    }
}

/// This program again, for one of its tests that is what another one runs.
fn own_program(test: &str) -> [String; 5] {
    let own = std::env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    [own, "--exact", test, "--ignored", "--nocapture"].map(str::to_owned)
}

/// `nyx swap`, which knows of the runs that are written down there.
fn nyx_swap(state: &Path) -> Command {
    let mut nyx = Command::new(NYX);
    nyx.arg("swap").env("NYX_SWAP_STATE", state);
    nyx
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

impl Rig {
    /// `nyx swap`, which knows of this test's runs alone.
    fn nyx(&self) -> Command {
        nyx_swap(&self.state)
    }

    /// `nyx swap run` in so much memory, with a device of its own.
    fn run(&self, memory: &str, flags: &[&str], command: &[impl AsRef<OsStr>]) -> Command {
        let mut run = self.nyx();
        run.args(["run", "--memory", memory, "--device", &self.device]);
        run.args(["--device-size", "512M"])
            .args(flags)
            .arg("--")
            .args(command);
        run.current_dir(self.dir.path()).stdin(Stdio::null());
        run
    }

    /// A run by this process.
    fn plan(&self) -> Plan {
        let enter = |entry: &Entry<'_>| {
            let mut enter = Command::new(NYX);
            enter.args(["swap", "enter"]);
            for group in entry.groups {
                enter.arg("--group").arg(group);
            }
            enter.arg("--").args(entry.command);
            enter
        };
        Plan {
            memory: Some(Memory::Bytes(64 << 20)),
            source: self.device.parse().unwrap(),
            area_size: Some(64 << 20),
            rule: nyx_policy::paging::pool::Rule::Off,
            oom_waits: false,
            reads: Reads::Kernel,
            cpu: None,
            probe: None,
            enter,
            watch: None,
            is_over: Arc::default(),
            arena: None,
            meter: None,
        }
    }

    /// The program has begun.
    fn until_ready(&self) {
        until("program", || {
            self.dir.path().join("ready").exists().then_some(())
        });
    }

    fn report(&self, name: &str) -> serde_json::Value {
        let text = fs::read(self.dir.path().join(name)).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    /// What `nyx swap status` knows of a launcher.
    fn status_of(&self, launcher: u32) -> Option<serde_json::Value> {
        let output = self.nyx().args(["status", "--json"]).output().unwrap();
        let lines = text(&output.stdout);
        let lines = lines
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.into_iter().find(|line| line["launcher"] == launcher)
    }

    /// What its runs wrote down and have not taken down yet.
    fn records(&self) -> Vec<serde_json::Value> {
        let entries = fs::read_dir(&self.state).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let records = paths.filter(|path| path.extension().is_some_and(|name| name == "json"));
        records
            .filter_map(|path| serde_json::from_slice(&fs::read(path).ok()?).ok())
            .collect()
    }

    /// Kills what runs in the groups of its runs; whether all is gone, and its launchers too.
    fn kill_all(&self) -> bool {
        let records = self.records();
        let groups = records
            .iter()
            .filter_map(|record| record["groups"].as_array());
        let dirs = groups.flatten().filter_map(|group| group.as_str());
        let texts = dirs.filter_map(|dir| fs::read_to_string(Path::new(dir).join(PROCS)).ok());
        let pids: Vec<String> = texts
            .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect();
        if !pids.is_empty() {
            let _ = Command::new("kill").arg("-KILL").args(&pids).status();
        }
        let launchers = records
            .iter()
            .filter_map(|record| record["launcher"]["pid"].as_u64());
        let mut launchers = launchers.map(|pid| PathBuf::from(format!("/proc/{pid}/exe")));
        // A zombie has no program.
        pids.is_empty() && !launchers.any(|exe| fs::read_link(exe).is_ok())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.records().is_empty() {
            return;
        }
        for name in ["end", "gone"] {
            let _ = fs::write(self.dir.path().join(name), "");
        }
        let begin = Instant::now();
        while !self.kill_all() && begin.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(10));
        }
        // It fails, but not before it has taken down what others left.
        let mut next = self.nyx();
        next.args(["run", "--memory", "64M", "--device", "/nonexistent/swap"]);
        let _ = next.args(["--", "true"]).output();
    }
}

/// Waits for something that is on its way; fails where it never comes.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(120), "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn groups_of(launcher: u32) -> Vec<PathBuf> {
    fn below(dir: &Path, prefix: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(prefix) {
                    found.push(entry.path());
                }
                below(&entry.path(), prefix, found);
            }
        }
    }
    let mut found = Vec::new();
    let root = Path::new("/sys/fs/cgroup");
    below(root, &format!("nyx-swap-{launcher}-"), &mut found);
    found
}

/// The swap areas of the machine, by one read: between two the kernel may pass over one.
fn swaps() -> String {
    let mut bytes = vec![0; 1 << 16];
    let read = fs::File::open("/proc/swaps").and_then(|mut file| file.read(&mut bytes));
    text(&bytes[..read.unwrap()])
}

/// Nothing of a run is there any more.
fn is_clean(rig: &Rig, launcher: u32) {
    assert_eq!(groups_of(launcher), Vec::<PathBuf>::new());
    assert!(rig.status_of(launcher).is_none());
    let swaps = swaps();
    let dir = rig.dir.path().display().to_string();
    assert!(!swaps.contains(&dir), "{swaps}");
    assert!(!rig.dir.path().join("swap").exists());
}

/// Whether a process goes on; a zombie does not.
fn runs(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/cwd")).exists()
}

/// Sorts some 15 MB of numbers with twice as much beside them, and gives their checksum.
const SORT: &str = "seq 2000000 -1 1 | sort -n --buffer-size=200M --parallel=2 | cksum";

#[test]
fn a_program_in_a_fifth_of_its_memory_does_what_it_does_with_all_of_it() {
    let Some(rig) = rig("a_program_in_a_fifth") else {
        return;
    };
    let expected = Command::new("sh").args(["-c", SORT]).output().unwrap();
    for (memory, limit) in [("40M", 40 << 20), ("20%", 0)] {
        let flags = ["--report", "report.json"];
        let mut run = rig.run(memory, &flags, &["sh", "-c", SORT]);
        let child = run
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let launcher = child.id();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), text(&expected.stdout));
        assert!(text(&output.stderr).contains("faults"), "a report is shown");
        let report = rig.report("report.json");
        let number = |key: &str| report[key].as_u64().unwrap();
        assert!(
            number("swapped_peak_bytes") > 0 && number("major_faults") > 0,
            "{report:#}"
        );
        assert!(number("reclaims") > 0, "{report:#}");
        if limit > 0 {
            assert_eq!(number("limit_bytes"), limit);
            assert!(number("peak_bytes") <= limit, "{report:#}");
        }
        is_clean(&rig, launcher);
    }
}

#[test]
fn the_limit_holds_without_a_reclaimer_and_inline_reclaims_are_counted() {
    let Some(rig) = rig("the_limit_holds_without_a_reclaimer") else {
        return;
    };
    let flags = ["--pool", "off", "--no-probe", "--report", "report.json"];
    let output = rig
        .run("40M", &flags, &["sh", "-c", SORT])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = rig.report("report.json");
    assert!(
        report["peak_bytes"].as_u64().unwrap() <= 40 << 20,
        "{report:#}"
    );
    assert!(
        report["inline_reclaims"].as_u64().unwrap() > 100,
        "{report:#}"
    );
    // What woke it where the kernel would have killed it is all that was done for it.
    assert_eq!(report["reclaims"], report["rescues"], "{report:#}");
}

#[test]
fn it_ends_as_the_program_ends() {
    let Some(rig) = rig("it_ends_as_the_program_ends") else {
        return;
    };
    let code = |command: &[&str]| {
        let mut run = rig.run("64M", &["--no-probe", "--no-report"], command);
        let output = run.output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(code(&["sh", "-c", "exit 7"]), (Some(7), String::new()));
    assert_eq!(code(&["sh", "-c", "kill -9 $$"]).0, Some(128 + 9));
    let (not_found, why) = code(&["/nonexistent/program"]);
    assert_eq!(not_found, Some(127));
    assert!(why.contains("/nonexistent/program"), "{why}");
    assert_eq!(code(&["/etc/passwd"]).0, Some(126));
}

#[test]
fn a_signal_goes_on_to_the_program_and_what_it_left_is_waited_for() {
    let Some(rig) = rig("a_signal_goes_on") else {
        return;
    };
    // The program ends by the signal; the child that it leaves behind writes a last line.
    let script = "(trap '' TERM; until test -e gone; do sleep 0.01; done; echo last) & \
                  trap 'exit 9' TERM; touch ready; while :; do sleep 0.01; done";
    let mut run = rig.run("64M", &["--no-probe"], &["sh", "-c", script]);
    let child = run
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let launcher = child.id();
    rig.until_ready();
    kill("TERM", launcher);
    let program = until("status", || rig.status_of(launcher))["program"].as_u64();
    let program = u32::try_from(program.unwrap()).unwrap();
    until("end", || (!runs(program)).then_some(()));
    assert!(
        rig.status_of(launcher).is_some(),
        "it waits for what was left"
    );
    fs::write(rig.dir.path().join("gone"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(9));
    assert_eq!(text(&output.stdout), "last");
    is_clean(&rig, launcher);
}

fn kill(signal: &str, pid: u32) {
    let sent = Command::new("sh")
        .args(["-c", &format!("kill -{signal} {pid}")])
        .status();
    assert!(sent.unwrap().success());
}

/// It is gone then, and has given back the lock that it takes now and then.
fn kill_watcher(watcher: u32) {
    kill("KILL", watcher);
    until("end of the watcher", || (!runs(watcher)).then_some(()));
}

/// A run whose launcher is gone.
fn orphan(rig: &Rig) -> (u32, u32) {
    let mut run = rig.run("64M", &["--no-probe"], &["sh", "-c", UNTIL_END]);
    let mut child: Child = run
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let launcher = child.id();
    rig.until_ready();
    let program = until("program's number", || {
        rig.status_of(launcher)?["program"].as_u64()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    (launcher, u32::try_from(program).unwrap())
}

#[test]
fn what_a_killed_launcher_left_is_taken_down_by_the_next_run_once_it_has_ended() {
    let Some(rig) = rig("what_a_killed_launcher_left") else {
        return;
    };
    let (launcher, program) = orphan(&rig);
    // Nobody is left to do it at once.
    kill_watcher(watcher_of(&rig));
    let line = rig.status_of(launcher).unwrap();
    assert_eq!(line["launcher_runs"], false);
    assert_eq!(line["limit_bytes"], 64 << 20, "the limit holds");
    let start_ticks = &rig.records()[0]["launcher"]["start_ticks"];
    let name = format!("nyx-swap-{launcher}-{start_ticks}");
    assert!(groups_of(launcher).iter().all(|dir| dir.ends_with(&name)));
    assert!(!groups_of(launcher).is_empty(), "they are called {name}");

    let other = Rig {
        dir: scratch(),
        state: rig.state.clone(),
        device: rig.device.replace("/swap", "/swap2"),
    };
    let next = || {
        other
            .run("64M", &["--no-probe", "--no-report"], &["true"])
            .output()
            .unwrap()
    };
    let told = text(&next().stderr);
    assert!(told.contains(&program.to_string()), "{told}");
    assert!(
        Path::new(&format!("/proc/{program}")).exists(),
        "it goes on"
    );

    end(&rig, launcher);
    next();
    is_clean(&rig, launcher);
}

#[test]
fn what_one_test_leaves_no_other_sees_and_is_killed() {
    let (Some(rig), Some(other)) = (rig("what_one_test_leaves"), rig("what_one_test_leaves"))
    else {
        return;
    };
    let (launcher, program) = orphan(&rig);
    let mut next = other.run("64M", &["--no-probe", "--no-report"], &["true"]);
    let output = next.output().unwrap();
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(0), String::new())
    );
    assert!(other.status_of(launcher).is_none());
    assert!(rig.status_of(launcher).is_some());
    assert!(runs(program));

    drop(rig);
    assert_eq!(groups_of(launcher), Vec::<PathBuf>::new());
    assert!(!runs(program));
}

#[test]
fn what_a_killed_launcher_left_is_taken_down_by_its_watcher_when_it_has_ended() {
    let Some(rig) = rig("what_a_killed_launcher_left_watcher") else {
        return;
    };
    let (launcher, program) = orphan(&rig);
    let watcher = watcher_of(&rig);
    // On version 1 the kernel is to decide at once, since nobody would wake the program.
    let control = groups_of(launcher).into_iter();
    let mut control = control.map(|dir| dir.join("memory.oom_control"));
    if let Some(control) = control.find(|path| path.exists()) {
        let is_left_to_kernel = || {
            let is_watched = runs(watcher);
            let text = fs::read_to_string(&control).unwrap();
            let is_done = text.contains("oom_kill_disable 0");
            assert!(is_watched || is_done, "the watcher {watcher} has ended");
            is_done.then_some(())
        };
        until("decision by the kernel", is_left_to_kernel);
    }
    assert!(runs(program));
    fs::write(rig.dir.path().join("end"), "").unwrap();
    records_are_gone(&rig, watcher);
    is_clean(&rig, launcher);
}

/// Who takes down what the only run of a rig made; it runs.
fn watcher_of(rig: &Rig) -> u32 {
    let records = rig.records();
    let watcher = records[0]["watcher"]["pid"].as_u64();
    let watcher = u32::try_from(watcher.expect("the run has a watcher")).unwrap();
    assert!(runs(watcher), "the watcher {watcher} does not run");
    watcher
}

/// Waits until a watcher has taken all down; fails at once where it has ended without.
fn records_are_gone(rig: &Rig, watcher: u32) {
    until("taking down", || {
        let is_watched = runs(watcher);
        let is_done = rig.records().is_empty();
        assert!(
            is_watched || is_done,
            "the watcher has ended and left something"
        );
        is_done.then_some(())
    });
}

#[test]
fn a_program_in_a_group_below_its_own_is_waited_for() {
    let Some(rig) = rig("a_program_in_a_group_below") else {
        return;
    };
    // The child outlives the program, in a group below that of the run.
    let script = "for dir in $(cat groups); do mkdir $dir/below; done; \
                  (for dir in $(cat groups); do \
                  sh -c 'echo $PPID' > $dir/below/cgroup.procs; done; \
                  touch ready; until test -e end; do sleep 0.01; done; echo last) & \
                  until test -e ready; do sleep 0.01; done";
    let script = format!("until test -e groups; do sleep 0.01; done; {script}");
    let mut run = rig.run("64M", &["--no-probe"], &["sh", "-c", &script]);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::null());
    let child = run.spawn().unwrap();
    let launcher = child.id();
    let program = until("program", || rig.status_of(launcher)?["program"].as_u64());
    let groups = rig.records()[0]["groups"].clone();
    let groups = groups.as_array().unwrap().iter();
    let groups: Vec<&str> = groups.map(|group| group.as_str().unwrap()).collect();
    fs::write(rig.dir.path().join("new"), groups.join("\n")).unwrap();
    fs::rename(rig.dir.path().join("new"), rig.dir.path().join("groups")).unwrap();
    rig.until_ready();
    until("end of the program", || {
        (!runs(u32::try_from(program).unwrap())).then_some(())
    });
    assert!(rig.status_of(launcher).is_some(), "its child is waited for");
    fs::write(rig.dir.path().join("end"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "last");
    is_clean(&rig, launcher);
}

#[test]
fn a_signal_while_a_run_is_set_up_ends_it() {
    let Some(rig) = rig("a_signal_while_a_run_is_set_up") else {
        return;
    };
    fs::create_dir_all(&rig.state).unwrap();
    let path = rig.state.join("lock");
    let lock = fs::File::create(&path).unwrap();
    lock.lock().unwrap();
    let mut run = rig.run("64M", &["--no-probe"], &["touch", "begun"]);
    let child = run.stderr(Stdio::piped()).spawn().unwrap();
    let launcher = child.id();
    until("waiting for the lock", || {
        let files = fs::read_dir(format!("/proc/{launcher}/fd")).ok()?.flatten();
        let mut files = files.filter_map(|file| fs::read_link(file.path()).ok());
        files.any(|file| file == path).then_some(())
    });
    kill("INT", launcher);
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(128 + 2),
        "{}",
        text(&output.stderr)
    );
    assert!(!rig.dir.path().join("begun").exists());
    drop(lock);
    is_clean(&rig, launcher);
}

#[test]
fn a_signal_after_the_lock_was_taken_ends_a_run_before_its_program_begins() {
    let Some(rig) = rig("a_signal_after_the_lock_was_taken") else {
        return;
    };
    // Of this run the next one tells, while it is set up.
    let (orphan, program) = orphan(&rig);
    kill_watcher(watcher_of(&rig));
    let other = Rig {
        dir: scratch(),
        state: rig.state.clone(),
        device: rig.device.replace("/swap", "/swap2"),
    };
    // It tells into a pipe that is full, and so goes no further.
    let (mut said, full) = full_pipe();
    let flags = ["--no-probe", "--report", "report.json"];
    let mut run = other.run("64M", &flags, &["true"]);
    let mut child = run.stderr(full).spawn().unwrap();
    drop(run);
    let lock = fs::File::open(rig.state.join("lock")).unwrap();
    until("set-up", || match lock.try_lock() {
        Ok(()) => {
            lock.unlock().unwrap();
            None
        }
        Err(_) => Some(()),
    });
    kill("INT", child.id());
    let mut text = Vec::new();
    said.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains(&program.to_string()), "it told: {text}");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 2));
    let report = other.dir.path().join("report.json");
    assert!(!report.exists(), "the program has begun");
    is_clean(&other, child.id());
    end(&rig, orphan);
}

/// A pipe into which nothing can be written until it is read.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let (reader, mut writer) = pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    // By whole pages, which leave no room behind them.
    let page = [b'.'; 4096];
    let refused = loop {
        if let Err(refused) = writer.write(&page) {
            break refused;
        }
    };
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

#[test]
fn a_run_that_is_over_while_its_watcher_starts_begins_no_program() {
    static IS_OVER: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    let Some(rig) = rig("a_run_that_is_over_while_its_watcher_starts") else {
        return;
    };
    // The last thing that is started before the program.
    let watch = |record: &Path| {
        IS_OVER.get_or_init(Arc::default).store(true, Relaxed);
        let mut watch = Command::new(NYX);
        watch.args(["swap", "watch", "--record"]).arg(record);
        watch
    };
    let plan = Plan {
        watch: Some(watch),
        is_over: Arc::clone(IS_OVER.get_or_init(Arc::default)),
        ..rig.plan()
    };
    let refused = Session::start(&plan, &["true".into()], |_| {});
    assert!(
        matches!(refused, Err(SwapError::Interrupted)),
        "{refused:?}"
    );
    is_clean(&rig, std::process::id());
}

#[test]
fn an_area_that_another_run_uses_stays_until_that_ends() {
    let Some(rig) = rig("an_area_that_another_run_uses") else {
        return;
    };
    let other = Rig {
        dir: scratch(),
        state: rig.state.clone(),
        device: rig.device.clone(),
    };
    let begin = |rig: &Rig, device: &str| {
        let mut run = rig.nyx();
        run.args(["run", "--memory", "64M", "--no-probe"]);
        run.args(["--device", device, "--device-size", "512M"]);
        run.args(["--", "sh", "-c", UNTIL_END])
            .current_dir(rig.dir.path());
        let child = run.stderr(Stdio::null()).spawn().unwrap();
        rig.until_ready();
        child
    };
    let mut first = begin(&rig, &rig.device);
    let path = until("status", || {
        let line = rig.status_of(first.id())?;
        line["swap"].as_str().map(str::to_owned)
    });
    let mut second = begin(&other, &path);
    let is_on = || swaps().contains(&path);
    fs::write(rig.dir.path().join("end"), "").unwrap();
    assert!(first.wait().unwrap().success());
    assert!(is_on(), "the other run uses it");
    fs::write(other.dir.path().join("end"), "").unwrap();
    assert!(second.wait().unwrap().success());
    assert!(!is_on());
    is_clean(&rig, first.id());
}

#[test]
fn what_a_run_does_is_told_as_metrics() {
    let Some(rig) = rig("what_a_run_does_is_told_as_metrics") else {
        return;
    };
    let mut run = rig.run("64M", &[], &["sh", "-c", UNTIL_END]);
    let mut child = run.stderr(Stdio::null()).spawn().unwrap();
    rig.until_ready();
    let program = until("program", || rig.status_of(child.id())?["program"].as_u64());
    let value = |name: &str| {
        let output = rig.nyx().args(["status", "--metrics"]).output().unwrap();
        let lines = text(&output.stdout);
        let start = format!("nyx_swap_{name}{{pid=\"{program}\"");
        let line = lines.lines().find(|line| line.starts_with(&start))?;
        line.rsplit_once(' ')?.1.parse::<f64>().ok()
    };
    assert_eq!(value("limit_bytes"), Some(f64::from(64 << 20)));
    assert!(value("resident_bytes").unwrap() > 0.0);
    assert!(value("faults_total").unwrap() > 0.0);
    assert!(value("inline_reclaims_total").is_some());
    until("reclaimer's CPU time", || {
        value("reclaimer_cpu_seconds_total")
    });
    // Pages of the probe go out where the reclaimer or the kernel takes them.
    until("touches", || value("touches_total"));
    fs::write(rig.dir.path().join("end"), "").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(value("limit_bytes"), None);
}

#[test]
fn a_session_that_is_dropped_takes_down_what_it_made() {
    let Some(rig) = rig("a_session_that_is_dropped") else {
        return;
    };
    let mut session = Session::start(&rig.plan(), &["true".into()], |_| {}).unwrap();
    let group = session.group().dir().to_owned();
    session.wait(|| false).unwrap();
    assert!(group.exists());
    drop(session);
    assert!(!group.exists());
    is_clean(&rig, std::process::id());
}

#[test]
fn a_probe_ends_when_nobody_listens_any_more() {
    let mut probe = Command::new(NYX);
    probe.args(["swap", "probe", "--every-ms", "1"]);
    let mut child = probe.stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    until("end of the probe", || child.try_wait().unwrap());
}

/// Lets an orphan end, and waits until it has.
fn end(rig: &Rig, launcher: u32) {
    fs::write(rig.dir.path().join("end"), "").unwrap();
    let is_over = || groups_of(launcher).iter().all(|group| is_empty(group));
    until("end", || is_over().then_some(()));
}

fn is_empty(group: &Path) -> bool {
    fs::read_to_string(group.join(PROCS)).is_ok_and(|procs| procs.is_empty())
}

#[test]
fn a_process_that_has_a_limit_can_be_attached_to_and_has_it_back_afterwards() {
    let Some(rig) = rig("a_process_that_has_a_limit") else {
        return;
    };
    let (launcher, program) = orphan(&rig);
    let mut attach = rig.nyx();
    attach.args(["attach", &program.to_string(), "--memory", "32M"]);
    let attached = attach.stderr(Stdio::piped()).spawn().unwrap();
    until("new limit", || {
        (rig.status_of(launcher)?["limit_bytes"] == 32 << 20).then_some(())
    });
    let second = rig.nyx().args(["attach", &program.to_string()]).output();
    let second = second.unwrap();
    assert_eq!(second.status.code(), Some(64));
    assert!(text(&second.stderr).contains(&attached.id().to_string()));

    kill("INT", attached.id());
    let output: Output = attached.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(rig.status_of(launcher).unwrap()["limit_bytes"], 64 << 20);
    end(&rig, launcher);
    let mut next = rig.run("64M", &["--no-probe", "--no-report"], &["true"]);
    assert!(next.output().unwrap().status.success());
    is_clean(&rig, launcher);
}

#[test]
fn a_limit_that_somebody_else_has_set_meanwhile_stays() {
    let Some(rig) = rig("a_limit_that_somebody_else_has_set") else {
        return;
    };
    let (launcher, program) = orphan(&rig);
    let mut attach = rig.nyx();
    attach.args(["attach", &program.to_string(), "--memory", "32M"]);
    let attached = attach.stderr(Stdio::piped()).spawn().unwrap();
    let has_limit = |bytes: u64| rig.status_of(launcher).unwrap()["limit_bytes"] == bytes;
    until("new limit", || has_limit(32 << 20).then_some(()));
    // All is set up only then: a run that waits for the lock has it.
    let next = || {
        let mut next = rig.nyx();
        next.args(["attach", &program.to_string()])
            .output()
            .unwrap()
    };
    assert!(!next().status.success());

    let names = ["memory.limit_in_bytes", "memory.max"];
    let files = groups_of(launcher).into_iter();
    let mut files = files.flat_map(|dir| names.map(|name| dir.join(name)));
    let file = files.find(|file| file.exists()).unwrap();
    fs::write(file, (48 << 20).to_string()).unwrap();
    kill("INT", attached.id());
    let output = attached.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(has_limit(48 << 20));
}

#[test]
fn a_file_that_is_no_swap_area_is_refused_and_stays_as_it_is() {
    let dir = scratch();
    let path = dir.path().join("letters.txt");
    fs::write(&path, vec![b'a'; 1 << 20]).unwrap();
    let device = path.display().to_string();
    let run = ["run", "--memory", "64M", "--device", &device, "--", "true"];
    let output = nyx_swap(&dir.path().join("state")).args(run).output();
    let output = output.unwrap();
    assert!(!output.status.success());
    assert_eq!(fs::read(&path).unwrap(), vec![b'a'; 1 << 20]);
}

#[test]
fn who_may_not_is_told_what_is_missing() {
    let Some(rig) = rig("who_may_not_is_told") else {
        return;
    };
    let mut plain = Command::new("setpriv");
    plain.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        NYX,
        "swap",
        "run",
    ]);
    plain.args(["--memory", "64M", "--device", "zram", "--", "true"]);
    plain
        .env_remove("XDG_RUNTIME_DIR")
        .current_dir(rig.dir.path());
    let Ok(output) = plain.output() else {
        eprintln!("skipped who_may_not_is_told: setpriv is not here");
        return;
    };
    let told = text(&output.stderr);
    if told.contains("setpriv") {
        eprintln!("skipped who_may_not_is_told: {told}");
        return;
    }
    assert_eq!(output.status.code(), Some(77), "{told}");
    assert!(
        told.contains("sudo") && told.contains("cannot make"),
        "{told}"
    );
}
