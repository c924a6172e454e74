//! `nyx bench --ycsb` against the real server: all six workloads, a tenant without an order of
//! keys, a tenant that is too small, and options that make no sense.
//!
//! What it never does: measure time. Every run is bounded by its operations.

#[path = "rig/surviving.rs"]
mod surviving;

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use surviving::{Server, directory};

const RECORDS: u64 = 2_000;
const OPS: u64 = 3_000;

/// A server whose first tenant has an order of keys, or not.
fn server(dir: &Path, tenant: &str) -> Server {
    let file = dir.join("nyx.toml");
    let text = fs::read_to_string(&file).expect("a configuration");
    fs::write(file, text + tenant).expect("a configuration");
    Server::start(dir)
}

fn bench(server: &Server, words: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nyx"))
        .env_clear()
        .args(["bench", "--server", &server.address(), "--warm-up", "0s"])
        .args(["--ops", &OPS.to_string()])
        .args(words.split_ascii_whitespace())
        .output()
        .expect("the binary")
}

/// The JSON of a run that goes well.
fn report(server: &Server, words: &str) -> Value {
    let output = bench(server, &format!("{words} --json -"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {said}");
    serde_json::from_slice(&output.stdout).expect("JSON alone")
}

/// How often a workload did what, by name.
fn counts(workload: &Value) -> Vec<(&str, u64)> {
    (workload["kinds"].as_array().expect("a list"))
        .iter()
        .map(|kind| {
            let count = kind["count"].as_u64().expect("a count");
            assert_eq!(kind["latency"]["count"], count, "one latency for each");
            (kind["kind"].as_str().expect("a name"), count)
        })
        .collect()
}

#[test]
fn all_workloads_run_one_after_the_other_on_a_tenant_with_ranges() {
    let dir = directory("none");
    let server = server(dir.path(), "index = \"hybrid+\"\nmax_scan_keys = 40\n");
    let report = report(&server, "--ycsb all --keys 2000");
    assert_eq!(report["load"]["records"], RECORDS);
    let workloads = report["workloads"].as_array().expect("a list");
    let kinds: [(&str, &[&str]); 6] = [
        ("A", &["read", "update"]),
        ("B", &["read", "update"]),
        ("C", &["read"]),
        ("F", &["read", "rmw"]),
        ("D", &["read", "insert"]),
        ("E", &["scan", "insert"]),
    ];
    assert_eq!(workloads.len(), kinds.len());
    let mut records = RECORDS;
    for (workload, (name, kinds)) in workloads.iter().zip(kinds) {
        let counts = counts(workload);
        let (names, done): (Vec<&str>, Vec<u64>) = counts.iter().copied().unzip();
        assert_eq!((&workload["workload"], &names[..]), (&name.into(), kinds));
        assert_eq!(done.iter().sum::<u64>(), OPS, "{name}");
        assert_eq!(workload["all"]["count"], OPS, "{name}");
        assert_eq!(workload["records"], records, "{name}");
        assert_eq!(workload["misses"], 0, "{name}");
        assert!(
            workload["errors"].as_object().expect("a table").is_empty(),
            "{name}"
        );
        let inserts = counts.iter().find(|(kind, _)| *kind == "insert");
        assert_eq!(workload["inserted"], inserts.map_or(0, |i| i.1), "{name}");
        records += workload["inserted"].as_u64().expect("a number");
    }
    // Lengths of 1 to 100 alike, though the server ends each part after 40 keys.
    let scans = counts(&workloads[5])[0].1 as f64;
    let mean = workloads[5]["scanned"].as_f64().expect("a number") / scans;
    assert!((45.0..55.0).contains(&mean), "{mean} records in a scan");

    let one = format!("user{:020}", nyx_sim::workload::ycsb::key(RECORDS));
    let value = server
        .connect()
        .get(&one)
        .expect("the first record that was added");
    assert_eq!(value.len(), 1000);
}

#[test]
fn without_an_order_of_keys_e_is_refused_and_the_others_run() {
    let dir = directory("none");
    let server = server(dir.path(), "");
    let output = bench(&server, "--ycsb C,E --keys 2000");
    assert_eq!(output.status.code(), Some(69));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("index = \"hybrid+\""), "{said}");
    assert!(server.connect().get("user00000000000000000000").is_none());

    let output = bench(&server, "--ycsb A..D --keys 2000");
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).expect("text");
    for words in [
        "workload A  50 %",
        "insert",
        "p99.9",
        "hits 100.00 %",
        "CPU",
    ] {
        assert!(table.contains(words), "{words:?} is missing in {table}");
    }
    // The records are there.
    let report = report(&server, "--ycsb C --keys 2000 --skip-load");
    assert!(report["load"].is_null());
    assert_eq!(report["workloads"][0]["hits"], OPS);
}

#[test]
fn what_a_small_tenant_has_dropped_is_a_miss_and_is_filled_on_request() {
    let dir = directory("none");
    let server = server(dir.path(), "");
    // Twice as much as the tenant holds, all of it alike.
    let words = "--ycsb C --keys 4000 --value-len 16384 --popularity zipf:0";
    let cold = report(&server, words)["workloads"][0].take();
    let [("read", hits), ("read-miss", misses)] = counts(&cold)[..] else {
        panic!("{cold}");
    };
    assert!(hits > 500 && misses > 500, "{cold}");
    assert_eq!(
        (&cold["hits"], &cold["misses"]),
        (&hits.into(), &misses.into())
    );
    assert_eq!(cold["fills"], 0);
    let words = format!("{words} --no-fill --fill-on-miss");
    let filled = report(&server, &words)["workloads"][0].take();
    let (fills, misses) = (filled["fills"].as_u64(), filled["misses"].as_u64());
    let (fills, misses) = (fills.expect("a number"), misses.expect("a number"));
    // Those of the last reads may still be under way when the run is over.
    assert!(fills <= misses && misses - fills <= 32, "{filled}");
}

#[test]
fn options_of_other_modes_are_refused_by_name() {
    for (words, named) in [
        ("--ycsb G", "(A..F) or all"),
        ("--ycsb A --mix get:1", "--mix"),
        ("--ycsb A --workload twitter:52", "--workload"),
        ("--ycsb A --key-len 40", "--key-len"),
        ("--ycsb A --multiget 2", "--multiget"),
        ("--ycsb A --popularity uniform", "zipf:0"),
        ("--ycsb A --tenant name=a --tenant name=b", "one tenant"),
        ("--ycsb A --pair a=127.0.0.1:1,1", "--pair"),
        ("--scan-len 5", "--ycsb"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_nyx"))
            .env_clear()
            .args(["bench", "--server", "127.0.0.1:1"])
            .args(words.split_ascii_whitespace())
            .output()
            .expect("the binary");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{words}: {said}");
        assert!(said.contains(named), "{words}: {said}");
    }
}
