//! Runs steps and keeps the score: one line per step with its verdict and time, the output of a
//! step only where it failed, and the totals at the end.
//!
//! What it never does: stop at the first failure. A run tells everything that is wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// The score of a run.
pub(crate) struct Report {
    passed: usize,
    failed: usize,
    /// Names of what was skipped, each with its reason.
    skipped: Vec<String>,
    /// What the current step has to tell where it fails.
    told: String,
}

impl Report {
    pub(crate) fn new() -> Report {
        Report {
            passed: 0,
            failed: 0,
            skipped: Vec::new(),
            told: String::new(),
        }
    }

    /// Runs a step, whose checks report to this, and prints its line.
    pub(crate) fn step(&mut self, name: &str, run: impl FnOnce(&mut Report)) {
        let (passed, failed, skipped) = (self.passed, self.failed, self.skipped.len());
        let start = Instant::now();
        self.told.clear();
        run(self);
        let seconds = start.elapsed().as_secs_f64();
        let (passed, failed) = (self.passed - passed, self.failed - failed);
        let verdict = match (passed, failed) {
            (_, 1..) => "FAILED",
            (0, 0) => "skipped",
            _ => "ok",
        };
        let mut counts = format!("{passed} passed");
        if failed > 0 {
            counts += &format!(", {failed} failed");
        }
        if self.skipped.len() > skipped {
            counts += &format!(", {} skipped", self.skipped.len() - skipped);
        }
        println!("{name:<12} {verdict:<8} {seconds:>6.1} s   {counts}");
        if failed > 0 {
            println!("{}", indented(&self.told));
        }
    }

    /// One check that is right, or wrong with what there is to tell.
    pub(crate) fn check(&mut self, name: &str, result: Result<(), String>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(why) => {
                self.failed += 1;
                self.told += &format!("{name}: {}\n", why.trim_end());
            }
        }
    }

    /// One check that cannot be made here.
    pub(crate) fn skip(&mut self, name: &str, reason: &str) {
        self.skipped.push(format!("{name}: {reason}"));
    }

    /// A command that is one check: right when it exits with 0.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command) {
        let outcome = output(command);
        self.check(name, outcome.map(|_| ()));
    }

    /// `cargo test` with these arguments, its tests counted one by one.
    pub(crate) fn cargo_test(&mut self, args: &[&str]) {
        let mut command = cargo("test");
        command.args(["--no-fail-fast"]).args(args);
        let (is_good, text) = match output(&mut command) {
            Ok(text) => (true, text),
            Err(text) => (false, text),
        };
        let failed_before = self.failed;
        for line in text.lines().filter(|line| line.starts_with("test ")) {
            match line.rsplit_once(" ... ") {
                Some((_, "ok")) => self.passed += 1,
                Some((name, ignored)) if ignored.starts_with("ignored") => {
                    let reason = ignored
                        .trim_start_matches("ignored")
                        .trim_start_matches(", ");
                    let reason = if reason.is_empty() {
                        "ignored, no reason given"
                    } else {
                        reason
                    };
                    self.skip(name.trim_start_matches("test "), reason);
                }
                Some((_, "FAILED")) => self.failed += 1,
                _ => {}
            }
        }
        if !is_good {
            // A build that fails, or a test that aborts, fails no test by name.
            self.failed += usize::from(self.failed == failed_before);
            self.told += &failures(&text);
        }
    }

    /// Prints what was skipped and the totals.
    pub(crate) fn end(self) -> ExitCode {
        for skipped in &self.skipped {
            println!("skipped {skipped}");
        }
        println!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed,
            self.skipped.len()
        );
        match self.failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }
}

/// `cargo SUBCOMMAND` in the workspace's root, by the cargo that runs us.
pub(crate) fn cargo(subcommand: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .arg(subcommand)
        .current_dir(root())
        .env("CARGO_TERM_COLOR", "never");
    command
}

/// Runs a command without input. All that it printed, as an error where it did not exit with 0.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}");
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{shown} does not start: {error}"))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(text),
        false => Err(format!("{text}\n{shown}: {}", output.status)),
    }
}

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// The workspace as cargo has it, without what it depends on.
pub(crate) fn metadata() -> Result<serde_json::Value, String> {
    let metadata = output(cargo("metadata").args(["--no-deps", "--format-version", "1", "-q"]))?;
    serde_json::from_str(metadata.trim()).map_err(|error| error.to_string())
}

/// Where cargo puts what it builds.
pub(crate) fn target_directory() -> Result<PathBuf, String> {
    let metadata = metadata()?;
    let target = metadata["target_directory"].as_str();
    target
        .map(PathBuf::from)
        .ok_or_else(|| "no target directory".to_owned())
}

/// Of what `cargo test` printed: what failed tests said, and its last lines.
///
/// Tests print to standard output and builds to standard error, which comes after it: the end alone
/// would be the names of what was built.
fn failures(text: &str) -> String {
    const END_LINES: usize = 40;
    let mut inside = false;
    let said = text.lines().filter(|line| {
        inside = (inside || *line == "failures:") && !line.starts_with("test result:");
        inside
    });
    let lines: Vec<&str> = text.lines().collect();
    let end = &lines[lines.len().saturating_sub(END_LINES)..];
    said.chain(end.iter().copied())
        .fold(String::new(), |told, line| told + line + "\n")
}

#[test]
fn what_a_failed_test_said_is_told_however_much_was_built() {
    let built = "   Compiling something\n".repeat(500);
    let text = format!(
        "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nwhy\n\n\
         failures:\n    b\n\ntest result: FAILED. 1 passed\n{built}error: 1 target failed\n"
    );
    let told = indented(&failures(&text));
    assert!(told.contains("---- b stdout ----\n    why"), "{told}");
    assert!(told.contains("error: 1 target failed"), "{told}");
    assert!(!told.contains("test a"), "{told}");
}

/// The end of a long text, set off from the lines of steps.
fn indented(text: &str) -> String {
    const LINES_MAX: usize = 200;
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(LINES_MAX);
    let cut = if from > 0 {
        format!("    ({from} lines before this)\n")
    } else {
        String::new()
    };
    cut + &lines[from..]
        .iter()
        .map(|line| format!("    {line}\n"))
        .collect::<String>()
}
