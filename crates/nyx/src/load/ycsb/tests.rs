//! YCSB against small servers that live in a thread of the test.
//!
//! What they never do: depend on how fast anything is.

use super::{KEY_LEN, USER, play};
use crate::load::address::Address;
use crate::load::link::Ask;
use crate::load::plan::{Plan, Ycsb};
use crate::load::run::{self, Outcome};
use crate::load::tally::Counts;
use crate::load::tests::{Items, cache, frame, healthy, plan as plain, server};
use nyx_sim::workload::Lengths;
use nyx_sim::workload::ycsb::{self, ALPHA, Core};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

const RECORDS: u64 = 300;

fn plan(address: &Address, core: Core) -> Plan {
    let mut plan = plain(address);
    let spec = &mut plan.tenants[0].spec;
    (spec.keys, spec.key_len) = (RECORDS, 2 + KEY_LEN);
    spec.prefix += USER;
    spec.values = Lengths::Fixed(200);
    plan.depth = 1;
    plan.ycsb = Some(Ycsb {
        core,
        alpha: ALPHA,
        scan_len_max: 20,
    });
    plan
}

fn counts(outcome: &Outcome) -> Counts {
    outcome.tenants[0].tally.counts
}

fn ops(counts: &Counts, ask: Ask) -> u64 {
    counts.ops[ask as usize]
}

#[test]
fn records_are_stored_under_keys_that_follow_from_their_numbers() {
    let (address, items) = healthy();
    let outcome = run::run(&plan(&address, Core::C), &frame(1_000)).expect("a healthy server");
    let counts = counts(&outcome);
    assert_eq!((counts.hits, counts.misses, counts.errors()), (1_000, 0, 0));
    let stored: Vec<String> = items.lock().expect("free").keys().cloned().collect();
    let mut named: Vec<String> = (0..RECORDS)
        .map(|number| format!("t:user{:020}", ycsb::key(number)))
        .collect();
    named.sort_unstable();
    assert_eq!(stored, named);
}

#[test]
fn scans_go_on_until_they_are_whole_and_inserts_are_found() {
    let (address, items) = healthy();
    let mut outcome = run::run(&plan(&address, Core::E), &frame(2_000)).expect("a healthy server");
    let counts = counts(&outcome);
    assert_eq!((counts.total_ops(), counts.errors()), (2_000, 0));
    let (scans, inserts) = (ops(&counts, Ask::Scan), ops(&counts, Ask::Insert));
    assert_eq!(scans + inserts, 2_000);
    assert_eq!(outcome.records, RECORDS + inserts);
    assert_eq!(items.lock().expect("free").len() as u64, outcome.records);
    // Lengths of 1 to 20 alike, in parts of seven: few scans meet the end of the keys.
    let mean = counts.scanned as f64 / scans as f64;
    assert!((9.5..11.0).contains(&mean), "{mean} records in a scan");
    let tally = &mut outcome.tenants[0].tally;
    assert_eq!(tally.class(super::Kind::Scan as usize).len(), scans);
    assert_eq!(tally.all().len(), 2_000);
}

#[test]
fn what_one_workload_inserts_is_there_for_the_next() {
    let (address, items) = healthy();
    let mut told = Vec::new();
    let (loaded, played) = play(
        &plan(&address, Core::C),
        &frame(1_000),
        &[Core::D, Core::E],
        |text| told.push(text.to_owned()),
    )
    .expect("a healthy server");
    assert_eq!((told.len(), played.len()), (3, 2));
    assert!(
        loaded.is_some() && told[0].contains("300 records"),
        "{told:?}"
    );
    let misses = played
        .iter()
        .map(|p| serde_json::to_value(p).expect("plain"));
    let told: Vec<_> = misses
        .map(|p| {
            let number = |name: &str| p[name].as_u64().expect("a number");
            (number("records"), number("inserted"), number("misses"))
        })
        .collect();
    let [(first, added, 0), (second, more, 0)] = told[..] else {
        panic!("{told:?}");
    };
    assert!(added > 0 && more > 0);
    assert_eq!((first, second), (RECORDS, RECORDS + added));
    assert_eq!(items.lock().expect("free").len() as u64, second + more);
}

/// Misses all gets, takes all sets, and notes both.
fn forgetful(stream: TcpStream, seen: &Mutex<Vec<String>>) {
    let mut input = BufReader::new(stream.try_clone().expect("a second handle"));
    let (mut output, mut line) = (stream, String::new());
    while input.read_line(&mut line).is_ok_and(|n| n > 0) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        seen.lock().expect("free").push(words[..2].join(" "));
        let reply: &[u8] = match words[..] {
            ["set", _, _, _, len] => {
                let mut data = vec![0; len.parse::<usize>().expect("a length") + 2];
                input.read_exact(&mut data).expect("the data");
                b"STORED\r\n"
            }
            _ => b"END\r\n",
        };
        if output.write_all(reply).is_err() {
            return;
        }
        line.clear();
    }
}

fn on_forgetful(core: Core, fill_on_miss: bool) -> (Outcome, Vec<String>) {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&seen);
    let address = server(move |stream| forgetful(stream, &noted));
    let mut plan = plan(&address, core);
    (plan.threads, plan.tenants[0].connections) = (1, 1);
    (plan.fill, plan.fill_on_miss) = (false, fill_on_miss);
    let outcome = run::run(&plan, &frame(500)).expect("in step");
    let seen = std::mem::take(&mut *seen.lock().expect("free"));
    (outcome, seen)
}

#[test]
fn a_read_modify_write_reads_first_and_is_one_operation() {
    let (mut outcome, seen) = on_forgetful(Core::F, false);
    let counts = counts(&outcome);
    assert_eq!(counts.total_ops(), 500);
    let rmws = ops(&counts, Ask::Rmw);
    assert!((200..300).contains(&rmws), "{counts:?}");
    // The same record, right before.
    let pairs = (seen.windows(2)).filter(|pair| match pair[1].strip_prefix("set ") {
        Some(key) => pair[0] == format!("get {key}"),
        None => false,
    });
    assert_eq!(pairs.count() as u64, rmws);
    assert_eq!(seen.len() as u64, 500 + rmws);
    assert_eq!((counts.misses, counts.look_misses), (500, rmws));
    let tally = &mut outcome.tenants[0].tally;
    let of = |tally: &mut crate::load::tally::Tally, kind| tally.class(kind as usize).len();
    assert_eq!(of(tally, super::Kind::Rmw), rmws);
    assert_eq!(of(tally, super::Kind::ReadMiss), 500 - rmws);
    assert_eq!(of(tally, super::Kind::Read), 0);
}

#[test]
fn a_miss_is_stored_where_that_is_wanted() {
    for (fill_on_miss, fills) in [(false, 0), (true, 500)] {
        let (outcome, seen) = on_forgetful(Core::C, fill_on_miss);
        let counts = counts(&outcome);
        assert_eq!((counts.total_ops(), counts.misses), (500, 500));
        let sets = seen.iter().filter(|line| line.starts_with("set ")).count();
        // The last one may still be under way when the run is over.
        assert!(fills - sets as u64 <= 1, "{sets} stored");
    }
}

#[test]
fn wrong_bytes_are_counted_in_reads_and_scans() {
    let items = Items::default();
    let address = server(move |stream| cache(stream, &items, |data| data[20] ^= 1));
    for core in [Core::C, Core::E] {
        let outcome = run::run(&plan(&address, core), &frame(200)).expect("in step all the same");
        let counts = counts(&outcome);
        assert_eq!(counts.corrupt, counts.hits + counts.scanned, "{core}");
        assert!(counts.corrupt >= 190, "{core}: {counts:?}");
    }
}

/// Stores nothing, and begins every scan at the least key of a filled cache.
fn astray(stream: TcpStream, items: &Items) {
    let mut input = BufReader::new(stream.try_clone().expect("a second handle"));
    let (mut output, mut line) = (stream, String::new());
    while input.read_line(&mut line).is_ok_and(|n| n > 0) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let reply = match words[..] {
            ["set", _, _, _, len] => {
                let mut data = vec![0; len.parse::<usize>().expect("a length") + 2];
                input.read_exact(&mut data).expect("the data");
                b"STORED\r\n".to_vec()
            }
            _ => {
                let items = items.lock().expect("free");
                let (key, data) = items.first_key_value().expect("filled");
                let head = format!("VALUE {key} 0 {}\r\n", data.len());
                [head.as_bytes(), data, b"\r\nEND\r\n"].concat()
            }
        };
        if output.write_all(&reply).is_err() {
            return;
        }
        line.clear();
    }
}

#[test]
fn records_out_of_their_order_are_counted() {
    let (address, items) = healthy();
    run::run(&plan(&address, Core::C), &frame(1)).expect("a healthy server");
    let address = server(move |stream| astray(stream, &items));
    let mut plan = plan(&address, Core::E);
    plan.fill = false;
    let outcome = run::run(&plan, &frame(200)).expect("in step all the same");
    let counts = counts(&outcome);
    // Only scans that do begin at the least key are right.
    assert_eq!(counts.scanned, ops(&counts, Ask::Scan));
    assert!(counts.corrupt > counts.scanned / 2, "{counts:?}");
}

#[test]
fn without_ranges_workload_e_says_what_to_do_before_anything_is_stored() {
    for (reply, hint) in [
        (&b"ERROR\r\n"[..], "leave E out"),
        (
            b"CLIENT_ERROR this tenant has no order of keys (tenant.index)\r\n",
            "index = \"hybrid+\"",
        ),
        (
            b"SERVER_ERROR the order of keys is being built: 42 % are in it\r\n",
            "wait until",
        ),
    ] {
        let address = server(move |mut stream| {
            let mut line = String::new();
            let mut input = BufReader::new(stream.try_clone().expect("a second handle"));
            while input.read_line(&mut line).is_ok_and(|n| n > 0) {
                assert!(
                    line.starts_with("scan t:user from t:user limit 1"),
                    "{line}"
                );
                let _ = stream.write_all(reply);
                line.clear();
            }
        });
        let error = play(
            &plan(&address, Core::A),
            &frame(10),
            &[Core::A, Core::E],
            |_| (),
        )
        .map(drop)
        .expect_err("no ranges")
        .to_string();
        let reply = String::from_utf8_lossy(reply);
        assert!(
            error.contains(hint) && error.contains(reply.trim()),
            "{error}"
        );
    }
}
