//! Tenants whose changes survive a power failure, through sockets: what was acknowledged is in the
//! journal when the image is gone, and nothing is acknowledged before it is durable.
//!
//! That the disk has what was synced is the kernel's word here; `crates/store/tests/journal.rs`
//! plays what a disk may have besides.

#[path = "rig/surviving.rs"]
mod surviving;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use surviving::{Connection, Server};
use tempfile::TempDir;

const CLIENTS: usize = 8;
const KEYS: usize = 50;

fn directory(sync: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    configure(dir.path(), "crash", sync);
    dir
}

fn configure(dir: &Path, durability: &str, sync: &str) {
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\nworkers = 2\ndata_dir = {dir:?}\n\
         [policy]\nkind = \"none\"\n\
         [[device]]\nkind = \"file\"\nsize = \"48MiB\"\n\
         [[tenant]]\nname = \"first\"\nsize = \"32MiB\"\n\
         durability = \"{durability}\"\nsync = \"{sync}\"\n"
    );
    fs::write(dir.join("nyx.toml"), text).expect("a configuration");
}

/// Leaves a directory as a power failure would if nothing of image and values had reached the disk.
fn lose_power(dir: &Path) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str());
        if !matches!(name, Some("nyx.toml" | "first.journal")) {
            fs::remove_file(path).expect("a file");
        }
    }
}

/// What one client knows of its keys: the last that was acknowledged.
type Known = Vec<Option<Vec<u8>>>;

/// One client's changes, one at a time; some of them without an answer.
fn change(to: &mut Connection, id: usize, known: &mut Known, rng: &mut fastrand::Rng) {
    let at = rng.usize(..KEYS);
    let key = format!("client-{id}-{at}");
    let value = format!("{}-{}", rng.u64(..), "x".repeat(rng.usize(..300)));
    let (len, noreply) = (value.len(), rng.u8(..8) == 0);
    let (ask, expected) = match rng.u8(..4) {
        0 => (format!("delete {key}"), ["DELETED", "NOT_FOUND"]),
        1 => (format!("append {key} 0 0 {len}"), ["STORED", "NOT_STORED"]),
        _ => (format!("set {key} 7 0 {len}"), ["STORED", "STORED"]),
    };
    let is_there = known[at].is_some();
    let data = if ask.starts_with("delete") {
        String::new()
    } else {
        format!("{value}\r\n")
    };
    let tail = if noreply { " noreply" } else { "" };
    write!(to.stream, "{ask}{tail}\r\n{data}").expect("a server");
    if noreply {
        // Known once something behind it is answered.
        write!(to.stream, "touch {key} 0\r\n").expect("a server");
        to.line().expect("an answer");
    } else {
        let line = to.line().expect("an answer");
        assert_eq!(line.trim_end(), expected[usize::from(!is_there)], "{ask}");
    }
    match ask.as_bytes()[0] {
        b'd' => known[at] = None,
        b'a' => {
            if let Some(old) = &mut known[at] {
                old.extend(value.as_bytes());
            }
        }
        _ => known[at] = Some(value.into_bytes()),
    }
}

fn check(server: &Server, clients: &[Known]) {
    let mut to = server.connect();
    for (id, known) in clients.iter().enumerate() {
        for (at, value) in known.iter().enumerate() {
            let key = format!("client-{id}-{at}");
            assert_eq!(to.get(&key).as_ref(), value.as_ref(), "{key}");
        }
    }
}

/// How many changes `nyx inspect` finds in the journal, which must be sound.
fn inspected(dir: &Path) -> u64 {
    let inspect = Command::new(env!("CARGO_BIN_EXE_nyx"))
        .env_clear()
        .args(["inspect", "--json"])
        .arg(dir.join("first.journal"))
        .output()
        .expect("the binary");
    assert!(inspect.status.success(), "{inspect:?}");
    let report: serde_json::Value = serde_json::from_slice(&inspect.stdout).expect("JSON");
    assert_eq!(report["facts"]["tenant"], "first");
    report["facts"]["changes"].as_u64().expect("a number")
}

#[test]
fn what_was_acknowledged_is_there_after_a_power_failure() {
    let dir = directory("each");
    let mut clients: Vec<Known> = vec![vec![None; KEYS]; CLIENTS];
    for round in 0..4 {
        let mut server = Server::start(dir.path());
        check(&server, &clients);
        std::thread::scope(|scope| {
            for (id, known) in clients.iter_mut().enumerate() {
                let mut to = server.connect();
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(100 * round + id as u64);
                    (0..300).for_each(|_| change(&mut to, id, known, &mut rng));
                });
            }
        });
        let mut to = server.connect();
        // Everybody was answered, so everything is durable; and clients shared syncs.
        assert_eq!(to.stat("journal_unsynced_bytes"), 0);
        let syncs = to.stat("journal_syncs");
        println!("{syncs} syncs for {} changes", 300 * CLIENTS);
        assert!((1..300 * CLIENTS as u64).contains(&syncs), "{syncs} syncs");
        server.kill();
        assert!(inspected(dir.path()) > 1000, "a journal that is sound");
        if round % 2 == 0 {
            lose_power(dir.path());
        }
    }
    let server = Server::start(dir.path());
    check(&server, &clients);
}

#[test]
fn nothing_is_acknowledged_before_it_is_durable() {
    let dir = directory("each");
    let server = Server::start(dir.path());
    let (mut to, mut other) = (server.connect(), server.connect());
    for number in 0..200 {
        write!(
            to.stream,
            "ms key-{number} 2 T0\r\nab\r\nma n N0 J{number}\r\n"
        )
        .expect("a server");
        assert_eq!(to.line().as_deref(), Some("HD\r\n"));
        assert_eq!(to.line().as_deref(), Some("HD\r\n"));
        assert_eq!(other.stat("journal_unsynced_bytes"), 0, "change {number}");
    }
}

#[test]
fn within_its_period_what_was_acknowledged_becomes_durable() {
    let dir = directory("100ms");
    let mut server = Server::start(dir.path());
    let mut to = server.connect();
    let mut known: Known = vec![None; KEYS];
    let mut rng = fastrand::Rng::with_seed(5);
    (0..500).for_each(|_| change(&mut to, 0, &mut known, &mut rng));
    let began = Instant::now();
    while to.stat("journal_unsynced_bytes") > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "never");
    }
    server.kill();
    lose_power(dir.path());
    let server = Server::start(dir.path());
    check(&server, &[known]);
}

#[test]
fn a_tenant_without_sync_leaves_its_journal_behind() {
    let dir = directory("100ms");
    let set = |value: u32| {
        let mut server = Server::start(dir.path());
        let mut to = server.connect();
        let was = to.get("key");
        write!(to.stream, "set key 0 0 1\r\n{value}\r\n").expect("a server");
        assert_eq!(to.line().as_deref(), Some("STORED\r\n"));
        server.kill();
        was
    };
    assert_eq!(set(1), None);
    configure(dir.path(), "crash", "none");
    assert_eq!(set(2), Some(b"1".to_vec()));
    // Where it cannot be removed, nobody starts: it would be taken for the newest there is.
    let (journal, gone) = (
        dir.path().join("first.journal"),
        dir.path().join("first.journal.gone"),
    );
    assert!(!journal.exists());
    fs::write(&gone, "in the way").expect("a file");
    let refused = Command::new("timeout")
        .args(["60", env!("CARGO_BIN_EXE_nyx"), "serve", "--config"])
        .arg(dir.path().join("nyx.toml"))
        .output()
        .expect("the binary");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("has no sync, and a journal"), "{said}");
    fs::remove_file(&gone).expect("a file");
    // Whatever the journal had is older than that.
    configure(dir.path(), "crash", "100ms");
    lose_power(dir.path());
    assert_eq!(set(3), None);
}
