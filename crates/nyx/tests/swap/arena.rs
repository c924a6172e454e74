//! Engine `uffd` as far as the launcher goes: what a program is told, what is told of it, what is
//! refused and what is taken down. The library here is an empty file, which the loader passes over:
//! what the real one does is tested where it is.

use super::{NYX, Rig, end, is_clean, kill_watcher, records_are_gone, rig, text, watcher_of};
use nyx_swap::arena::{ArenaFigures, LIBRARY, TERMS, Terms};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Writes its terms down, and goes on until it is told to end.
const TELLS: &str = "printf %s \"$NYX_SWAP_ARENA\" > terms; printf %s \"$LD_PRELOAD\" > preload; \
                     touch ready; until test -e end; do sleep 0.01; done";

/// None where this machine cannot.
pub(crate) fn arena_rig(test: &str) -> Option<Rig> {
    if let Err(error) = nyx_swap::region::probe() {
        eprintln!("skipped {test}: {error}");
        return None;
    }
    rig(test)
}

/// The launcher in a directory of its own, with a library beside it.
pub(crate) fn launcher(rig: &Rig) -> PathBuf {
    let nyx = bare_launcher(rig, "bin");
    fs::write(nyx.with_file_name(LIBRARY), "").unwrap();
    nyx
}

/// The same without a library.
fn bare_launcher(rig: &Rig, name: &str) -> PathBuf {
    let dir = rig.dir.path().join(name);
    fs::create_dir_all(&dir).unwrap();
    let nyx = dir.join("nyx");
    // A link costs nothing; it cannot lead to another filesystem.
    let linked = fs::hard_link(NYX, &nyx);
    linked.or_else(|_| fs::copy(NYX, &nyx).map(|_| ())).unwrap();
    nyx
}

pub(crate) fn run(rig: &Rig, nyx: &Path, flags: &[&str], command: &[&str]) -> Command {
    let mut run = Command::new(nyx);
    run.env("NYX_SWAP_STATE", &rig.state);
    run.args(["swap", "run", "--engine", "uffd", "--no-probe"]);
    run.args(["--device", &rig.device, "--device-size", "512M"]);
    run.args(flags).arg("--").args(command);
    run.current_dir(rig.dir.path()).stdin(Stdio::null());
    run
}

/// A program that goes on, and its terms.
pub(crate) fn begin(rig: &Rig, flags: &[&str]) -> (Child, Terms) {
    let nyx = launcher(rig);
    let mut run = run(rig, &nyx, flags, &["sh", "-c", TELLS]);
    let child = run.stderr(Stdio::piped()).spawn().unwrap();
    rig.until_ready();
    let terms = fs::read(rig.dir.path().join("terms")).unwrap();
    (child, serde_json::from_slice(&terms).unwrap())
}

#[test]
fn a_program_is_told_its_terms_and_its_figures_are_told_on() {
    let Some(rig) = arena_rig("a_program_is_told_its_terms") else {
        return;
    };
    let flags = ["--memory", "64M", "--report", "report.json"];
    let (child, terms) = begin(&rig, &flags);
    let figures = terms.figures.unwrap();
    assert!(figures.is_dir());
    assert_eq!((terms.limit_bytes, terms.len_bytes), (64 << 20, 512 << 20));
    let pages = match rig.device.as_str() {
        "zram" => PathBuf::from("/var/tmp"),
        _ => rig.dir.path().to_owned(),
    };
    assert_eq!(terms.pages, fs::canonicalize(pages).unwrap());
    let stat = fs::read_to_string(terms.stat.unwrap()).unwrap();
    assert!(stat.contains("inactive_anon"), "{stat}");
    let preload = fs::read_to_string(rig.dir.path().join("preload")).unwrap();
    let library = fs::canonicalize(rig.dir.path().join("bin").join(LIBRARY));
    assert_eq!(Path::new(&preload), library.unwrap());

    let line = || rig.status_of(child.id()).unwrap();
    assert!(line()["arena"].is_null(), "no process has said anything");
    let one = ArenaFigures {
        processes: 1,
        major_faults: 5,
        minor_faults: 6,
        p50_ns: 7_000,
        ..ArenaFigures::default()
    };
    let other = ArenaFigures {
        refused: Some("it is of no use".to_owned()),
        ..one.clone()
    };
    one.write(&figures, 1).unwrap();
    other.write(&figures, 2).unwrap();
    assert_eq!(line()["arena"]["major_faults"], 10);
    let metrics = rig.nyx().args(["status", "--metrics"]).output().unwrap();
    let metrics = text(&metrics.stdout);
    let mut metrics = metrics.lines();
    let is_it = |line: &&str| line.starts_with("nyx_swap_arena_minor_faults_total{");
    assert!(metrics.find(is_it).unwrap().ends_with(" 12"));

    fs::write(rig.dir.path().join("end"), "").unwrap();
    let launcher = child.id();
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("10 major, 12 minor"), "{said}");
    assert!(said.contains("without arena: it is of no use"), "{said}");
    let report = rig.report("report.json");
    assert_eq!(report["arena"]["processes"], 2, "{report:#}");
    assert_eq!(report["has_reclaimer"], false, "{report:#}");
    assert!(!figures.exists());
    is_clean(&rig, launcher);
}

#[test]
fn only_the_program_has_the_library_and_one_that_is_asked_for_keeps_memory_free() {
    let Some(rig) = arena_rig("only_the_program_has_the_library") else {
        return;
    };
    let nyx = launcher(&rig);
    let flags = [
        "--memory",
        "64M",
        "--pool",
        "auto",
        "--report",
        "report.json",
    ];
    let script = "echo $LD_PRELOAD; tr '\\0' '\\n' < /proc/$PPID/environ";
    let mut run = run(&rig, &nyx, &flags, &["sh", "-c", script]);
    let run = run.env("LD_PRELOAD", "/nonexistent/other.so");
    let output = run.output().unwrap();
    let said = text(&output.stdout);
    let (preload, of_launcher) = said.split_once('\n').unwrap();
    assert!(
        preload.ends_with(&format!("{LIBRARY}:/nonexistent/other.so")),
        "{preload}"
    );
    assert!(!of_launcher.contains(TERMS) && !of_launcher.contains(LIBRARY));
    // What is to load it says that it cannot: the shell and `tr`, not what enters the group.
    let said = text(&output.stderr);
    let loads = said.lines().filter(|line| line.contains(LIBRARY));
    assert_eq!(loads.count(), 2, "{said}");
    let report = rig.report("report.json");
    assert_eq!(report["has_reclaimer"], true, "{report:#}");
    assert_eq!(report["arena"]["processes"], 0, "{report:#}");
    assert!(said.contains("no process had one"), "{said}");
}

#[test]
fn the_kernels_engine_has_no_library() {
    let Some(rig) = rig("the_kernels_engine_has_no_library") else {
        return;
    };
    for engine in ["auto", "kernel"] {
        let flags = ["--engine", engine, "--no-probe", "--report", "report.json"];
        let script = "echo \"[$LD_PRELOAD$NYX_SWAP_ARENA]\"";
        let output = rig.run("64M", &flags, &["sh", "-c", script]).output();
        assert_eq!(text(&output.unwrap().stdout), "[]", "{engine}");
        assert!(rig.report("report.json")["arena"].is_null(), "{engine}");
    }
}

#[test]
fn figures_that_a_killed_launcher_left_go_with_its_record() {
    for has_watcher in [true, false] {
        let Some(rig) = arena_rig("figures_that_a_killed_launcher_left") else {
            return;
        };
        let (mut child, terms) = begin(&rig, &["--memory", "64M"]);
        let figures = terms.figures.unwrap();
        ArenaFigures::default().write(&figures, 1).unwrap();
        let launcher = child.id();
        let watcher = watcher_of(&rig);
        child.kill().unwrap();
        child.wait().unwrap();
        if has_watcher {
            assert!(figures.exists(), "the program goes on");
            fs::write(rig.dir.path().join("end"), "").unwrap();
            records_are_gone(&rig, watcher);
        } else {
            kill_watcher(watcher);
            end(&rig, launcher);
            assert!(figures.exists(), "nobody has taken it down");
            let mut next = rig.run("64M", &["--no-probe", "--no-report"], &["true"]);
            assert!(next.output().unwrap().status.success());
        }
        assert!(!figures.exists(), "has_watcher: {has_watcher}");
        is_clean(&rig, launcher);
    }
}

/// An executable of the launcher's kind that asks for no loader.
fn static_program(rig: &Rig) -> String {
    let mut header = fs::read(NYX).unwrap();
    // The header of an ELF file of 64 bits, without segments.
    header.truncate(64);
    header[32..40].fill(0);
    header[56..58].fill(0);
    let path = rig.dir.path().join("static");
    fs::write(&path, header).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

#[test]
fn what_cannot_be_right_is_refused_before_anything_is_made() {
    let Some(rig) = arena_rig("what_cannot_be_right_is_refused") else {
        return;
    };
    let nyx = launcher(&rig);
    let bare = bare_launcher(&rig, "bare");
    let fixed = static_program(&rig);
    let with = ["--memory", "64M"];
    for (nyx, flags, program, code, part) in [
        (&nyx, &with[..], "/nonexistent/program", 127, "/nonexistent"),
        (&nyx, &with, "no-such-program", 127, "no-such-program"),
        (&nyx, &with, "/etc/passwd", 126, "/etc/passwd"),
        (&nyx, &with, &fixed, 69, "it is static"),
        (&nyx, &["--memory", "20%"], "true", 69, "--memory 512M"),
        (&nyx, &["--memory", "auto"], "true", 69, "--memory 512M"),
        (&bare, &with, "true", 69, "library is missing"),
        (
            &nyx,
            &["--memory", "64M", "--pages", "/dev/null"],
            "true",
            69,
            "neither a directory nor a block device",
        ),
    ] {
        let output = run(&rig, nyx, flags, &[program]).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(part), "{part}: {said}");
        assert!(!rig.state.exists(), "{part}: nothing is written down");
        assert!(!Path::new(&rig.device).exists(), "{part}");
    }
    let flags = ["--pages", "/var/tmp"];
    let output = rig.run("64M", &flags, &["true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64), "{}", text(&output.stderr));
}

#[test]
fn who_may_have_no_userfaultfd_is_told_so() {
    const TEST: &str = "who_may_have_no_userfaultfd_is_told_so";
    let Some(rig) = arena_rig(TEST) else {
        return;
    };
    let allowed = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let device = fs::metadata("/dev/userfaultfd").map(|data| data.permissions().mode());
    if allowed.is_ok_and(|text| text.trim() != "0") || device.is_ok_and(|mode| mode & 0o006 != 0) {
        eprintln!("skipped {TEST}: everybody may have one here");
        return;
    }
    let nyx = launcher(&rig);
    let mut plain = Command::new("setpriv");
    plain.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    plain.arg(&nyx).args(["swap", "run", "--engine", "uffd"]);
    plain.args(["--memory", "64M", "--", "true"]);
    let output = match plain.output() {
        Ok(output) if !text(&output.stderr).contains("setpriv") => output,
        Ok(output) => return eprintln!("skipped {TEST}: {}", text(&output.stderr)),
        Err(error) => return eprintln!("skipped {TEST}: setpriv: {error}"),
    };
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("no userfaultfd"), "{said}");
}
