//! Ten thousand idle connections, in a process of their own for the sake of its descriptors: they
//! cost their sockets, and somebody else is served as if they were not there.

mod rig;

use rig::{Client, Server};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

const CONNECTIONS: usize = 10_000;
/// Descriptors for everything else.
const SPARE: u64 = 200;
/// What an idle connection may cost in memory: far below an input buffer of 16 KiB.
const COST_BYTES: u64 = 2048;
/// Tells the process of the clients where to connect.
const ADDRESS: &str = "NYX_TEST_IDLE_ADDRESS";

/// Allows this process as many descriptors as it needs; false where the system does not.
fn raise_descriptors() -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    let needed = CONNECTIONS as u64 + SPARE;
    if limit.current.is_none_or(|current| current >= needed) {
        return true;
    }
    limit.current = match limit.maximum {
        Some(most) if most < needed => return false,
        most => most,
    };
    setrlimit(Resource::Nofile, limit).is_ok()
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split_ascii_whitespace().nth(1);
    let pages: u64 = pages.and_then(|pages| pages.parse().ok()).expect("pages");
    pages * rustix::param::page_size() as u64
}

/// Not a test of its own: the clients' side of the one below, which starts it.
#[test]
#[ignore = "the clients' side of ten_thousand_idle_connections_are_in_nobodys_way"]
fn clients() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let address: SocketAddr = address.parse().expect("an address");
    assert!(raise_descriptors());
    let mut idle = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let mut client = Client::connect(address);
        client.check();
        idle.push(client);
    }
    println!("connected");
    std::io::stdout().flush().expect("stdout");
    // Until the other side has seen enough.
    std::io::stdin().lines().for_each(drop);
    for client in &mut idle {
        client.check();
    }
}

#[test]
fn ten_thousand_idle_connections_are_in_nobodys_way() {
    if !raise_descriptors() {
        eprintln!("skipped: this system does not allow {CONNECTIONS} open sockets in a process");
        return;
    }
    let server = Server::new();
    let mut other = server.client(0);
    other.check();
    let before = resident_bytes();
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "clients", "--ignored", "--nocapture"])
        .env(ADDRESS, server.address(0).to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test, again");
    let mut out = BufReader::new(child.stdout.take().expect("piped")).lines();
    let said = out
        .by_ref()
        .map_while(Result::ok)
        .any(|line| line == "connected");
    assert!(said, "the clients failed to connect");
    assert_eq!(other.figure("curr_connections"), CONNECTIONS as u64 + 1);
    let grown = resident_bytes().saturating_sub(before);
    let most = COST_BYTES * CONNECTIONS as u64;
    assert!(
        grown < most,
        "idle connections take {grown} B, above {most} B"
    );
    other.ask("set k 0 0 1\r\nx\r\n", "STORED\r\n");
    for _ in 0..5000 {
        other.ask("get k\r\n", "VALUE k 0 1\r\nx\r\nEND\r\n");
        server.client(0).check();
    }
    // They are all still there, and understood.
    drop(child.stdin.take());
    assert!(child.wait().expect("a child").success());
    rig::until("they are gone", || other.figure("curr_connections") == 1);
}
