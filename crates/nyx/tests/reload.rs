//! The real binary told by SIGHUP to read its configuration again: policies change under an open
//! connection, and what cannot change or cannot be kept changes nothing.

mod rig;

use rig::number;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use tempfile::TempDir;

/// A server, killed at the end, and what it writes to its log.
struct Server {
    child: Child,
    log: BufReader<ChildStderr>,
    config: PathBuf,
    _dir: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }
}

fn write_config(path: &Path, policy: &str, first: &str) {
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 1\ndata_dir = {:?}\n\
         [policy]\nkind = \"{policy}\"\n\
         [[device]]\nkind = \"anon\"\nsize = \"64MiB\"\nmodel = \"optane-2dimm/8\"\n\
         [[tenant]]\nname = \"first\"\n{first}\n\
         [[tenant]]\nname = \"second\"\nkey_prefix = \"s:\"\n",
        path.parent().expect("a directory")
    );
    fs::write(path, text).expect("a configuration");
}

impl Server {
    fn start(policy: &str, first: &str) -> (Server, TcpStream) {
        let dir = tempfile::tempdir().expect("a directory");
        let config = dir.path().join("nyx.toml");
        write_config(&config, policy, first);
        let mut child = Command::new(env!("CARGO_BIN_EXE_nyx"))
            .env_clear()
            .args(["serve", "--config"])
            .arg(&config)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary");
        let log = BufReader::new(child.stderr.take().expect("piped"));
        let mut server = Server {
            child,
            log,
            config,
            _dir: dir,
        };
        let line = server.wait_for(&["listening"]);
        let (_, address) = line.split_once("127.0.0.1:").expect("an address");
        let port: String = address.chars().take_while(char::is_ascii_digit).collect();
        let stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("a connection");
        (server, stream)
    }

    /// The next line of the log that has one of these in it.
    fn wait_for(&mut self, words: &[&str]) -> String {
        let mut line = String::new();
        while self.log.read_line(&mut line).expect("its log") > 0 {
            if words.iter().any(|words| line.contains(words)) {
                return line;
            }
            line.clear();
        }
        panic!("the server has ended without {words:?}");
    }

    /// How a reload ended.
    fn outcome(&mut self) -> String {
        self.wait_for(&["configuration read again", "everything stays as it is"])
    }

    fn reload(&self, policy: &str, first: &str) {
        write_config(&self.config, policy, first);
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("a signal");
    }
}

/// A request on a connection that stays open, and its answer up to `end`.
fn say(stream: &mut TcpStream, request: &str, end: &str) -> String {
    stream.write_all(request.as_bytes()).expect("written");
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(end.as_bytes()) {
        stream.read_exact(&mut byte).expect("an answer");
        answer.push(byte[0]);
    }
    String::from_utf8(answer).expect("text")
}

fn policy_of(stream: &mut TcpStream) -> String {
    let stats = say(stream, "stats settings\r\n", "END\r\n");
    let line = stats
        .lines()
        .find(|line| line.starts_with("STAT nyx_policy"));
    line.expect("a policy").replace("STAT nyx_policy ", "")
}

#[test]
fn sighup_changes_the_policy_under_an_open_connection() {
    let (mut server, mut stream) = Server::start("limit", "limit = \"30%\"");
    assert_eq!(
        say(&mut stream, "set a 0 0 1\r\nx\r\n", "\r\n"),
        "STORED\r\n"
    );
    assert_eq!(policy_of(&mut stream), "limit");
    for (policy, terms) in [
        ("share", "weight = 3"),
        ("slowdown", "slowdown_limit = 1.5"),
        ("qos", "target = \"p99 1s\""),
        ("partition", ""),
        ("none", ""),
    ] {
        server.reload(policy, terms);
        let told = server.outcome();
        assert!(told.contains("policy=changed"), "{told}");
        // The tick that installs it may still be to come; every answer is right meanwhile.
        assert_eq!(
            say(&mut stream, "get a\r\n", "END\r\n"),
            "VALUE a 0 1\r\nx\r\nEND\r\n"
        );
        assert_eq!(policy_of(&mut stream), policy);
    }
}

#[test]
fn what_cannot_be_kept_or_changed_leaves_everything_as_it_was() {
    let (mut server, mut stream) = Server::start("share", "min = \"40%\"");
    server.reload(
        "share",
        "min = \"100%\"\n[[group]]\nname = \"g\"\nmin = \"10%\"",
    );
    let told = server.outcome();
    assert!(told.contains("guarantees 110.0 % of the device"), "{told}");
    server.reload("limit", "size = \"16MiB\"");
    let told = server.outcome();
    assert!(
        told.contains("everything stays") && told.contains("a restart is needed for tenant"),
        "{told}"
    );
    server.reload("limti", "");
    let told = server.outcome();
    assert!(told.contains("did you mean `limit`?"), "{told}");
    assert_eq!(policy_of(&mut stream), "share");
    server.reload("share", "min = \"40%\"");
    let told = server.outcome();
    assert!(told.contains("the same"), "{told}");
}

/// A target that only just can be kept on the idle device is taken over while nobody does anything,
/// and refused, with everything left as it is, while a tenant whose own target is generous reads.
#[test]
fn what_residents_use_decides_over_a_new_target() {
    let generous = "[[tenant]]\nname = \"busy\"\nkey_prefix = \"b:\"\nlimit = \"30%\"\n\
                    target = \"p99 10s\"";
    let with = |target: &str| format!("target = \"{target}\"\n{generous}");
    let (mut server, mut stream) = Server::start("qos", &with("p99 10s"));
    server.reload("qos", &with("p99 1us"));
    let told = server.outcome();
    assert!(
        told.contains("everything stays as it is") && told.contains("too tight even alone"),
        "{told}"
    );
    let idle_us = number(&told, "(assumed) take ", " us on the idle device");
    let cpu_us = number(&told, "and the CPU ", " us");
    let tight = with(&format!("p99 {:.0}ns", (idle_us * 1.02 + cpu_us) * 1e3));
    server.reload("qos", &tight);
    let told = server.outcome();
    assert!(told.contains("policy=changed"), "{told}");
    // Values of 64 KiB keep the device busy for long with few requests.
    let value = "x".repeat(64 << 10);
    let set = format!("set b:big 0 0 {}\r\n{value}\r\n", value.len());
    assert_eq!(say(&mut stream, &set, "\r\n"), "STORED\r\n");
    let mut got = vec![0; "VALUE b:big 0 65536\r\n\r\nEND\r\n".len() + value.len()];
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        // Its readings are a second apart: until one has seen enough it may still say yes.
        for _ in 0..200 {
            stream.write_all(b"get b:big\r\n").expect("written");
            stream.read_exact(&mut got).expect("an answer");
        }
        assert!(got.ends_with(b"x\r\nEND\r\n"));
        server.reload("qos", &with("p99 10s"));
        assert!(
            !server.outcome().contains("stays"),
            "what is generous is always admitted"
        );
        server.reload("qos", &tight);
        let told = server.outcome();
        if told.contains("everything stays as it is") {
            let words = [
                "would be missed: a p99 of",
                "cannot be taken from the others (busy ",
            ];
            assert!(words.iter().all(|word| told.contains(word)), "{told}");
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{told}");
    }
    server.reload("qos", &with("p99 10s"));
    let told = server.outcome();
    assert!(told.contains("the same"), "{told}");
}
