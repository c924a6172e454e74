//! Python's programs: threads, forks, processes, files, arrays.
//!
//! What it never does: install anything; `NYX_TEST_PYTHON` names another interpreter.

use crate::rig::{self, MIB};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter itself, past whatever stands for it on the path; none where there is none.
fn python(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os("NYX_TEST_PYTHON");
    let named = named.unwrap_or_else(|| "python3".into());
    let mut ask = Command::new(named);
    let output = ask
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let path = String::from_utf8(output.stdout).expect("text");
            Some(path.trim().into())
        }
        said => {
            rig::skip(test, &format!("there is no python3: {said:?}"));
            None
        }
    }
}

fn script(python: &Path, name: &str) -> Command {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let mut command = Command::new(python);
    // A warning that names a process is another one each time; modules are not written down.
    command.args(["-W", "ignore", "-B"]).arg(dir.join(name));
    command
}

fn compare(test: &str, name: &str, limit: u64) {
    if let Some(python) = python(test) {
        rig::compare(test, limit, || script(&python, name));
    }
}

#[test]
fn python_computes_in_threads() {
    compare("python_computes_in_threads", "threads.py", 20 * MIB);
}

#[test]
fn a_python_server_forks() {
    compare("a_python_server_forks", "server.py", 17 * MIB);
}

#[test]
fn python_starts_other_programs() {
    compare("python_starts_other_programs", "processes.py", 12 * MIB);
}

#[test]
fn python_reads_and_writes_files_from_its_buffers() {
    compare(
        "python_reads_and_writes_files_from_its_buffers",
        "files.py",
        12 * MIB,
    );
}

#[test]
fn numpy_computes() {
    let name = "numpy_computes";
    let Some(python) = python(name) else { return };
    let has = Command::new(&python).args(["-c", "import numpy"]).output();
    match has.is_ok_and(|output| output.status.success()) {
        true => rig::compare(name, 25 * MIB, || script(&python, "numbers.py")),
        false => drop(rig::skip(name, "numpy is missing")),
    }
}
