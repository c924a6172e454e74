//! Ranges of the real binary: beside tenants without an order, at a shared door, after `kill -9`,
//! and beside others' requests on the same connection.
//!
//! What it never does: measure time. Deadlines only turn a hang into a failure.

#[path = "rig/surviving.rs"]
mod surviving;

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};
use surviving::{Connection, Server, directory};

/// After this long what should have happened never will.
const PATIENCE: Duration = Duration::from_secs(90);

/// The lines of an answer, and its last one.
fn ask(connection: &mut Connection, request: &str) -> (Vec<String>, String) {
    write!(connection.stream, "{request}\r\n").expect("a server");
    let mut lines = Vec::new();
    loop {
        let line = connection.line().expect("an answer");
        let line = line.trim_end().to_owned();
        let is_last = ["END", "MORE", "STORED", "CLIENT_ERROR", "SERVER_ERROR"]
            .iter()
            .any(|last| line.starts_with(last));
        if is_last {
            return (lines, line);
        }
        lines.push(line);
    }
}

fn set(connection: &mut Connection, key: &str) {
    let (_, stored) = ask(connection, &format!("set {key} 0 0 {}\r\n{key}", key.len()));
    assert_eq!(stored, "STORED", "{key}");
}

/// The keys of a range, however many scans that takes.
fn keys(connection: &mut Connection, range: &str) -> Vec<String> {
    let (mut keys, mut after) = (Vec::new(), String::new());
    loop {
        let (lines, last) = ask(connection, &format!("scan {range} keys{after}"));
        for line in lines {
            let key = line.strip_prefix("KEY ").expect("a key");
            keys.push(key.split(' ').next().expect("a word").to_owned());
        }
        match last.strip_prefix("MORE ") {
            Some(key) => after = format!(" after {key}"),
            None => {
                assert_eq!(last, "END");
                return keys;
            }
        }
    }
}

/// The first tenant with an order, and another one behind a prefix without.
fn give_order(dir: &std::path::Path, index: &str) {
    let file = dir.join("nyx.toml");
    let text = fs::read_to_string(&file).expect("a configuration");
    let text = format!(
        "{text}index = \"{index}\"\nmax_scan_keys = 100\n\
         [[tenant]]\nname = \"hash\"\nsize = \"14MiB\"\nkey_prefix = \"h:\"\n"
    );
    fs::write(file, text).expect("a configuration");
}

#[test]
fn ranges_are_answered_and_are_there_again_after_a_kill() {
    for index in ["hybrid+", "fp-tree", "skip-list"] {
        let dir = directory("crash");
        give_order(dir.path(), index);
        let mut server = Server::start(dir.path());
        let mut connection = server.connect();
        for number in (0..2000).rev() {
            set(&mut connection, &format!("k:{number:04}"));
        }
        set(&mut connection, "h:1");
        let right: Vec<String> = (0..2000).map(|number| format!("k:{number:04}")).collect();
        assert_eq!(keys(&mut connection, "k:"), right, "{index}");
        let (_, refused) = ask(&mut connection, "scan h:");
        assert!(refused.contains("no order of keys"), "{refused}");
        let (_, refused) = ask(&mut connection, "scan *");
        assert!(refused.contains("several tenants"), "{refused}");
        server.kill();
        let server = Server::start(dir.path());
        let mut connection = server.connect();
        assert_eq!(connection.get("k:0007").as_deref(), Some(&b"k:0007"[..]));
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Until its order is built a tenant says how far that is.
            let (_, last) = ask(&mut connection, "scan k: limit 1");
            if !last.contains("order of keys is being built") {
                break;
            }
            assert!(Instant::now() < deadline, "{last}");
        }
        assert_eq!(keys(&mut connection, "k:"), right, "{index}");
    }
}

/// Answers come in the order of the requests, though a scan's connection waits for its turn behind
/// each.
#[test]
fn scans_and_gets_that_are_sent_together_are_answered_in_turn() {
    let dir = directory("warm");
    give_order(dir.path(), "hybrid+");
    let server = Server::start(dir.path());
    let mut connection = server.connect();
    for number in 0..300 {
        set(&mut connection, &format!("k:{number:03}"));
    }
    let mut requests = String::new();
    for number in 0..200 {
        requests += &format!("scan k:{number:03} keys\r\nget k:{number:03}\r\nscan k: keys\r\n");
    }
    connection
        .stream
        .write_all(requests.as_bytes())
        .expect("a server");
    for number in 0..200 {
        let key = format!("k:{number:03}");
        let mut line = || connection.line().expect("an answer").trim_end().to_owned();
        assert_eq!(line(), format!("KEY {key} 0 5"));
        assert_eq!(line(), "END");
        assert_eq!(line(), format!("VALUE {key} 0 5"));
        assert_eq!(line(), key);
        assert_eq!(line(), "END");
        for at in 0..100 {
            assert_eq!(line(), format!("KEY k:{at:03} 0 5"));
        }
        assert_eq!(line(), "MORE k:099");
    }
}
