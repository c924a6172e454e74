//! The optimised binary as its users meet it: exit codes of bad configurations, a server that
//! answers over a real socket, memcached's own conformance test, and a stop by signal.
//!
//! What it never does: wait without a deadline, or leave a process behind.

use crate::packages;
use crate::run::{Report, cargo, output, root, target_directory};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A first start measures the device before it listens.
const START_MAX: Duration = Duration::from_secs(60);
/// A server that is told to stop has nothing to wait for.
const STOP_MAX: Duration = Duration::from_secs(10);
/// An answer over the loopback device, however busy the machine.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Builds the binary and makes every check.
pub(crate) fn run(report: &mut Report) {
    let binary = match build() {
        Ok(binary) => binary,
        Err(why) => return report.check("optimised build", Err(why)),
    };
    report.check("optimised build", Ok(()));
    let dir = match tempfile::tempdir() {
        Ok(dir) => dir,
        Err(error) => return report.check("temporary directory", Err(error.to_string())),
    };
    exit_codes(report, &binary, dir.path());
    port_in_use(report, &binary, dir.path());
    let serve = |args: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(args).current_dir(dir.path());
        command
    };
    let file_backed = ["serve", "--device-size", "64MiB", "--workers", "2"];
    server(report, "serve", serve(&file_backed));
    server(report, "serve again", serve(&file_backed));
    server(
        report,
        "memcached",
        serve(&["memcached", "-m", "64", "-t", "1", "-l", "127.0.0.1"]),
    );
}

/// The path of a fresh binary, optimised as a release is.
pub(crate) fn build() -> Result<PathBuf, String> {
    output(cargo("build").args(["--profile", "ci", "--package", "nyx"]))?;
    Ok(target_directory()?.join("ci/nyx"))
}

/// What the command line promises of exit codes, and that each failure names its cause.
fn exit_codes(report: &mut Report, binary: &Path, dir: &Path) {
    let unknown_key = dir.join("unknown-key.toml");
    let too_large = dir.join("too-large.toml");
    let written = std::fs::write(&unknown_key, "[server]\nworkrs = 2\n").and_then(|()| {
        std::fs::write(
            &too_large,
            "[[tenant]]\nsize = \"1TiB\"\n[[device]]\nsize = \"64MiB\"\n",
        )
    });
    report.check(
        "write configurations",
        written.map_err(|error| error.to_string()),
    );
    let sample = root().join("config/nyx.toml");
    let cases: [(&[&str], i32, &str); 9] = [
        (&["--version"], 0, "nyx "),
        (&["--help"], 0, "check-config"),
        (&["frobnicate"], 64, "frobnicate"),
        (&["serve", "--no-such-flag"], 64, "--no-such-flag"),
        (&["check-config", &sample.to_string_lossy()], 0, "at least"),
        (&["check-config", "no-such.toml"], 66, "no-such.toml"),
        (
            &["check-config", &unknown_key.to_string_lossy()],
            64,
            ":2:1: server.workrs",
        ),
        (
            &["serve", "--config", &too_large.to_string_lossy()],
            64,
            ":2:8: tenant.size",
        ),
        (&["memcached", "-Z"], 64, "-Z"),
    ];
    for (args, code, told) in cases {
        let output = Command::new(binary)
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::null())
            .output();
        let result = output
            .map_err(|error| error.to_string())
            .and_then(|output| {
                let text = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&text);
                match output.status.code() == Some(code) && text.contains(told) {
                    true => Ok(()),
                    false => Err(format!(
                        "{}, not {code} and {told:?}:\n{text}",
                        output.status
                    )),
                }
            });
        report.check(&format!("nyx {}", args.join(" ")), result);
    }
}

/// A port that someone else has is told by its address, soon, and the server ends.
fn port_in_use(report: &mut Report, binary: &Path, dir: &Path) {
    let result = (|| {
        let taken = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let address = taken
            .local_addr()
            .map_err(|error| error.to_string())?
            .to_string();
        let mut command = Command::new(binary);
        command.args(["serve", "--device-kind", "anon", "--device-size", "64MiB"]);
        command.args(["--listen", &address]).current_dir(dir);
        let mut server = Server::start(command)?;
        let code = server.wait(START_MAX)?;
        let log = server.log();
        match [69, 71].contains(&code) && log.contains(&address) {
            true => Ok(()),
            false => Err(format!(
                "exit code {code}, not 69 or 71 and {address}:\n{log}"
            )),
        }
    })();
    report.check("port in use", result);
}

/// Starts a server, talks to it, runs memccapable against it, stops it.
fn server(report: &mut Report, name: &str, mut command: Command) {
    let result = free_port().and_then(|port| {
        match name {
            "memcached" => command.args(["-p", &port.to_string()]),
            _ => command.args(["--listen", &format!("127.0.0.1:{port}")]),
        };
        let mut server = Server::start(command)?;
        let talked = server.wait_for(port).and_then(talk);
        let conformed = talked.and_then(|()| conformance(report, name, port));
        let stopped = conformed.and_then(|()| server.stop());
        stopped.map_err(|why| format!("{why}\n{}", server.log()))
    });
    report.check(name, result);
}

/// A first session: the commands of the README, answered as memcached answers them.
fn talk(mut stream: TcpStream) -> Result<(), String> {
    let session = [
        ("version\r\n", "VERSION "),
        ("set greeting 7 0 5\r\nhello\r\n", "STORED"),
        ("get greeting\r\n", "VALUE greeting 7 5\nhello\nEND"),
        ("mg greeting v t\r\n", "VA 5 t-1\nhello"),
        ("append greeting 0 0 6\r\n world\r\n", "STORED"),
        ("gets greeting absent\r\n", "VALUE greeting 7 11 "),
        ("delete greeting\r\n", "DELETED"),
        ("get greeting\r\n", "END"),
        ("nonsense\r\n", "ERROR"),
    ];
    let read_max = Some(ANSWER_MAX);
    stream
        .set_read_timeout(read_max)
        .map_err(|error| error.to_string())?;
    let mut answers = BufReader::new(stream.try_clone().map_err(|error| error.to_string())?);
    for (request, expected) in session {
        stream
            .write_all(request.as_bytes())
            .map_err(|error| format!("{request:?}: {error}"))?;
        let mut got = String::new();
        for _ in expected.lines() {
            answers
                .read_line(&mut got)
                .map_err(|error| format!("{request:?}: {error}"))?;
        }
        let got = got.replace("\r\n", "\n");
        if !got.starts_with(expected) {
            return Err(format!("{request:?} is answered {got:?}, not {expected:?}"));
        }
        // The values and the END of a `gets` follow the line that was compared.
        if request.starts_with("gets") {
            let mut rest = String::new();
            while !rest.ends_with("END\r\n") {
                let n = answers
                    .read_line(&mut rest)
                    .map_err(|error| error.to_string())?;
                if n == 0 {
                    return Err(format!("{request:?} ends with {rest:?}"));
                }
            }
        }
    }
    Ok(())
}

/// libmemcached's conformance test of the ASCII protocol.
fn conformance(report: &mut Report, name: &str, port: u16) -> Result<(), String> {
    match packages::program("memccapable", "libmemcached-tools") {
        Err(reason) => report.skip(&format!("{name}: memccapable -a"), &reason),
        Ok(program) => {
            let port = port.to_string();
            let args = ["-h", "127.0.0.1", "-p", &port, "-a"];
            report.command(
                &format!("{name}: memccapable -a"),
                Command::new(program).args(args),
            );
        }
    }
    Ok(())
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    Ok(listener
        .local_addr()
        .map_err(|error| error.to_string())?
        .port())
}

/// A server process; killed when this is dropped.
struct Server {
    child: Child,
    log: tempfile::NamedTempFile,
}

impl Server {
    fn start(mut command: Command) -> Result<Server, String> {
        let log = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        let stderr = log.reopen().map_err(|error| error.to_string())?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr);
        let child = command
            .spawn()
            .map_err(|error| format!("{command:?}: {error}"))?;
        Ok(Server { child, log })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap_or_default()
    }

    /// A connection, as soon as the server accepts one.
    fn wait_for(&mut self, port: u16) -> Result<TcpStream, String> {
        let start = Instant::now();
        loop {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                return Ok(stream);
            }
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("ended before it listened: {status}"));
            }
            if start.elapsed() > START_MAX {
                return Err(format!("does not listen after {} s", START_MAX.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The exit code, once the process has ended by itself.
    fn wait(&mut self, max: Duration) -> Result<i32, String> {
        let start = Instant::now();
        while start.elapsed() < max {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return status.code().ok_or_else(|| format!("died: {status}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("still runs after {} s", max.as_secs()))
    }

    /// Ends the server as a service manager does, and checks that it leaves in peace.
    fn stop(&mut self) -> Result<(), String> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .map_err(|error| format!("SIGTERM: {error}"))?;
        match self.wait(STOP_MAX)? {
            0 => Ok(()),
            code => Err(format!("exit code {code} after SIGTERM")),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has usually ended by now, which makes both calls errors.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
