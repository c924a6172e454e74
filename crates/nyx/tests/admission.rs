//! Admission through the real binary: promises that the modelled device cannot keep are refused at
//! the start and by `check-config`, with the figures, unless oversubscription is asked for.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const USAGE: i32 = 64;

struct Files {
    config: PathBuf,
    _dir: TempDir,
}

/// Two tenants under qos, the second with a guarantee.
fn files(target: &str, min: &str, oversubscribe: bool) -> Files {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("nyx.toml");
    let files = Files { config, _dir: dir };
    files.write(target, min, oversubscribe);
    files
}

impl Files {
    fn write(&self, target: &str, min: &str, oversubscribe: bool) {
        let text = format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\ndata_dir = {:?}\n\
             [policy]\nkind = \"qos\"\noversubscribe = {oversubscribe}\n\
             [[device]]\nkind = \"anon\"\nsize = \"64MiB\"\nmodel = \"optane-2dimm/8\"\n\
             [[tenant]]\nname = \"first\"\ntarget = \"{target}\"\n\
             [[tenant]]\nname = \"second\"\nkey_prefix = \"s:\"\nmin = \"{min}\"\n",
            self.config.parent().expect("a directory")
        );
        fs::write(&self.config, text).expect("a configuration");
    }
}

fn nyx(args: &[&str], config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nyx"));
    command.env_clear().args(args).arg(config);
    command
}

/// What a server says that must not start, after its exit code was checked.
fn refused(files: &Files) -> String {
    let output = nyx(&["serve", "--config"], &files.config).output();
    let output = output.expect("the binary");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(USAGE), "{said}");
    assert!(!said.contains("listening"), "{said}");
    said
}

/// What a server says before it listens; it is ended then.
fn started(files: &Files) -> String {
    let mut child = nyx(&["serve", "--config"], &files.config)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary");
    let mut log = BufReader::new(child.stderr.take().expect("piped"));
    let mut said = String::new();
    while !said.contains("listening") && log.read_line(&mut said).expect("its log") > 0 {}
    child.kill().expect("a child of ours");
    child.wait().expect("a child of ours");
    assert!(said.contains("listening"), "{said}");
    said
}

/// `check-config`: its exit code, and all that it says.
fn checked(files: &Files) -> (Option<i32>, String) {
    let output = nyx(&["check-config"], &files.config).output();
    let output = output.expect("the binary");
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word:?} is missing in: {said}");
    }
}

#[test]
fn a_target_below_the_idle_latency_is_refused_at_the_start_and_by_check_config() {
    let files = files("mean 1us", "1%", false);
    let (code, said) = checked(&files);
    assert_eq!(code, Some(0), "{said}");
    assert_says(
        &said,
        &[
            "targets can be kept (first) is not judged",
            "no profile yet",
        ],
    );
    let words = [
        "first",
        "target mean 1.00 us is too tight even alone",
        "reads of 1024 B (assumed) take",
        "and the CPU 1.00 us",
        "policy.oversubscribe = true",
    ];
    assert_says(&refused(&files), &words);
    // The refused start has left the profile that check-config judges by.
    let (code, said) = checked(&files);
    assert_eq!(code, Some(USAGE), "{said}");
    assert_says(&said, &words);
    files.write("mean 1us", "1%", true);
    assert_says(&started(&files), &["too tight even alone", "level=warn"]);
    let (code, said) = checked(&files);
    assert_eq!(code, Some(0), "{said}");
    assert_says(
        &said,
        &["warning: \"first\": target mean 1.00 us is too tight"],
    );
}

#[test]
fn a_guarantee_that_breaks_a_target_is_refused_and_one_that_leaves_room_is_not() {
    let files = files("p99 4us", "40%", false);
    let words = [
        "target p99 4.00 us would be missed: a p99 of",
        "beside what cannot be taken from the others (second 40.0 %)",
    ];
    assert_says(&refused(&files), &words);
    files.write("ops 1000000", "40%", false);
    assert_says(
        &refused(&files),
        &["1000000 accesses/s has no room", "60.0 % are left"],
    );
    files.write("p99 4us", "90%", false);
    assert_says(
        &started(&files),
        &["may or may not be kept", "90 % of the device are in use"],
    );
    files.write("p99 4us", "1%", false);
    let said = started(&files);
    assert!(!said.contains("p99"), "{said}");
}
