//! Clients that ask for gigabytes and never read: bounded in memory, and nobody else's business.
//! In a file of its own, because the memory is that of the process.

mod rig;

use rig::{Client, Server, until};
use std::net::Shutdown;

/// The longest line of keys, each key a value of 500 kB: 16 GB.
const KEYS: usize = 32_000;
const VALUE_LEN: usize = 500_000;
const STALLED: usize = 24;
/// What a stalled client may cost: a part of an answer, one value above it, and what growing takes.
const COST_BYTES: u64 = 6 << 20;

/// Memory of this process in bytes, as the system counts it.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok())
        .expect("VmRSS in kB")
        * 1024
}

#[test]
fn who_never_reads_is_bounded_and_delays_nobody() {
    let server = Server::new();
    let value = "z".repeat(VALUE_LEN);
    let mut other = server.client(0);
    other.ask(
        format!("set k 0 0 {VALUE_LEN}\r\n{value}\r\n"),
        "STORED\r\n",
    );
    other.ask("set small 0 0 1\r\nx\r\n", "STORED\r\n");
    let before = resident_bytes();
    let (in_before, out_before) = (other.figure("bytes_read"), other.figure("bytes_written"));
    let line = format!("get{}\r\n", " k".repeat(KEYS));
    let mut stalled: Vec<Client> = (0..STALLED).map(|_| server.client(0)).collect();
    for (i, client) in stalled.iter_mut().enumerate() {
        match i % 2 {
            0 => client.send(&line),
            _ => client.send("get k\r\n".repeat(1000)),
        }
    }
    let sent = (STALLED / 2 * (line.len() + 7 * 1000)) as u64;
    until("all of it is read", || {
        other.figure("bytes_read") - in_before >= sent
    });
    let small = "VALUE small 0 1\r\nx\r\nEND\r\n";
    for _ in 0..10_000 {
        other.ask("get small\r\n", small);
    }
    let grown = resident_bytes().saturating_sub(before);
    let most = COST_BYTES * STALLED as u64;
    assert!(
        grown < most,
        "{STALLED} stalled clients take {grown} B, above {most} B"
    );
    // They were served as far as their sockets took it.
    assert!(other.figure("bytes_written") - out_before > STALLED as u64 * 100_000);
    // One of them wakes up: its answer is whole.
    let mut awake = stalled.swap_remove(1);
    awake.half_close();
    let one = format!("VALUE k 0 {VALUE_LEN}\r\n{value}\r\nEND\r\n");
    for _ in 0..1000 {
        awake.expect(&one);
    }
    assert_eq!(awake.rest(), "");
    // The others go away without a word.
    for client in &stalled {
        client
            .0
            .shutdown(Shutdown::Both)
            .expect("a connected socket");
    }
    drop(stalled);
    until("they are forgotten", || {
        other.figure("curr_connections") == 1
    });
}
