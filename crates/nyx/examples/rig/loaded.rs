//! Servers on a CPU of their own, and `nyx bench` on another, as JSON.
//!
//! What it never does: configure a server; judge a figure.

use super::rig::Running;
use nyx::{Exit, Failure};
use serde_json::Value;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
/// The server's CPU, and the generator's.
const CPUS: [&str; 2] = ["0", "1"];

/// What failed, and how.
pub(crate) fn failed(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Os, format!("{what}: {error}"))
}

/// A server that answers on `port` of this machine.
pub(crate) struct Loaded {
    running: Running,
    port: u16,
}

impl Loaded {
    /// Starts a server, bound to its CPU, and waits until it answers.
    pub(crate) fn start(command: &Command, port: u16) -> Result<Loaded, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut bound = Command::new("taskset");
        bound
            .args(["-c", CPUS[0]])
            .arg(&name)
            .args(command.get_args());
        let spawned = bound.stdin(Stdio::null()).spawn();
        let mut running = Running(spawned.map_err(|error| failed(&name, error))?);
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = running.0.try_wait().ok().flatten() {
                return Err(failed(&name, status));
            }
            if Instant::now() > deadline {
                return Err(failed(&name, "it does not answer"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(Loaded { running, port })
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.running.0.id()
    }

    /// What the load generator `nyx` found, of 32 connections, where it is told these words too.
    pub(crate) fn bench(&self, nyx: &Path, words: &str) -> Result<Value, Failure> {
        let output = Command::new(nyx)
            .args(["bench", "--no-progress", "--json", "-", "--pin", CPUS[1]])
            .args(["--server", &format!("127.0.0.1:{}", self.port)])
            .args(["--server-pid", &self.pid().to_string()])
            .args(["--connections", "32", "--verify"])
            .args(words.split_ascii_whitespace())
            .output()
            .map_err(|error| failed("nyx bench", error))?;
        if !output.status.success() {
            return Err(failed("nyx bench", String::from_utf8_lossy(&output.stderr)));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| failed("nyx bench", error))
    }

    /// Stops it in order, and waits.
    pub(crate) fn stop(mut self) -> Result<(), Failure> {
        let pid = self.pid().to_string();
        let asked = Command::new("kill").args(["-TERM", &pid]).status();
        asked.map_err(|error| failed("kill", error))?;
        let ended = self.running.0.wait();
        ended.map_err(|error| failed("a server", error)).map(drop)
    }
}

/// How `nyx` serves with a configuration, which is written to a directory.
pub(crate) fn serves(nyx: &Path, dir: &Path, config: &str) -> Result<Command, Failure> {
    let file = dir.join("nyx.toml");
    std::fs::write(&file, config).map_err(|error| failed("the configuration", error))?;
    let mut command = Command::new(nyx);
    command.args(["serve", "-qq", "--config"]).arg(file);
    Ok(command)
}

/// A port that is free now.
pub(crate) fn free_port() -> Result<u16, Failure> {
    let listener = TcpListener::bind(("127.0.0.1", 0));
    let address = listener.and_then(|listener| listener.local_addr());
    Ok(address.map_err(|error| failed("a port", error))?.port())
}
