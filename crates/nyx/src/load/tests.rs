//! Runs and replays against small servers that live in a thread of the test, some of them ill.
//!
//! What they never do: depend on how fast anything is.

use super::LoadError;
use super::address::{Address, Login};
use super::link::Ask;
use super::plan::{Plan, Tenant};
use super::replay::{Manner, SocketTarget, Target};
use super::run::{self, Frame, Until};
use nyx_sim::workload::trace::Request;
use nyx_sim::workload::{Lengths, Op, OpMix, Popularity, Spec, TtlMix};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

pub(crate) type Items = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// Serves every connection to a fresh port by `serve`, for as long as the test runs.
pub(crate) fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = Arc::clone(&serve);
            stream.set_nodelay(true).expect("a fresh connection");
            thread::spawn(move || serve(stream));
        }
    });
    Address::Tcp(address)
}

/// A cache of six commands. `spoil` may change what a get or a scan finds.
pub(crate) fn cache(stream: TcpStream, items: &Items, spoil: fn(&mut Vec<u8>)) {
    let mut input = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut output = stream;
    let mut line = String::new();
    while input.read_line(&mut line).is_ok_and(|n| n > 0) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let mut items = items.lock().expect("no test panics while it holds this");
        let reply = match words[..] {
            ["get", ref keys @ ..] => {
                let mut reply = Vec::new();
                for &key in keys {
                    let Some(data) = items.get(key) else { continue };
                    reply.extend(value(key, data, spoil));
                }
                reply.extend_from_slice(b"END\r\n");
                reply
            }
            ["scan", _, "from", from, "limit", limit] => {
                let limit: usize = limit.parse().expect("a number");
                let part: Vec<_> = (items.range(from.to_owned()..))
                    .take(limit.min(SCAN_PART))
                    .collect();
                let mut reply = Vec::new();
                (part.iter()).for_each(|(key, data)| reply.extend(value(key, data, spoil)));
                reply.extend(match part.last() {
                    Some((key, _)) => format!("MORE {key}\r\n").into_bytes(),
                    None => b"END\r\n".to_vec(),
                });
                reply
            }
            [verb @ ("set" | "add"), key, _, _, len] => {
                let mut data = vec![0; len.parse::<usize>().expect("a length") + 2];
                input.read_exact(&mut data).expect("the data");
                data.truncate(data.len() - 2);
                if verb == "set" || !items.contains_key(key) {
                    items.insert(key.to_owned(), data);
                }
                b"STORED\r\n".to_vec()
            }
            ["delete", key] => match items.remove(key) {
                Some(_) => b"DELETED\r\n".to_vec(),
                None => b"NOT_FOUND\r\n".to_vec(),
            },
            ["touch", key, _] if items.contains_key(key) => b"TOUCHED\r\n".to_vec(),
            ["incr", key, _] if items.contains_key(key) => b"1\r\n".to_vec(),
            _ => b"NOT_FOUND\r\n".to_vec(),
        };
        if output.write_all(&reply).is_err() {
            return;
        }
        line.clear();
    }
}

/// Items of a part of a scan at most.
const SCAN_PART: usize = 7;

/// An item as it is answered.
fn value(key: &str, data: &[u8], spoil: fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut data = data.to_vec();
    spoil(&mut data);
    let mut reply = format!("VALUE {key} 0 {}\r\n", data.len()).into_bytes();
    reply.extend_from_slice(&data);
    reply.extend_from_slice(b"\r\n");
    reply
}

pub(crate) fn healthy() -> (Address, Items) {
    let items = Items::default();
    let shared = Arc::clone(&items);
    (server(move |stream| cache(stream, &shared, |_| ())), items)
}

pub(crate) fn plan(address: &Address) -> Plan {
    let spec = Spec {
        keys: 200,
        key_len: 12,
        prefix: "t:".to_owned(),
        popularity: Popularity::Zipf { alpha: 1.0 },
        values: Lengths::Uniform(0, 300),
        mix: OpMix::default(),
        ttl: TtlMix::default(),
    };
    Plan {
        tenants: vec![Tenant {
            name: "one".to_owned(),
            address: address.clone(),
            login: None,
            spec,
            connections: 3,
            rate: None,
        }],
        threads: 2,
        pins: Vec::new(),
        depth: 4,
        multiget: 1,
        poisson: true,
        busy_poll: false,
        fill: true,
        fill_rate: None,
        fill_on_miss: false,
        verify: true,
        sift: None,
        stall: Duration::from_secs(60),
        seed: 1,
        ycsb: None,
    }
}

pub(crate) fn frame(keys: u64) -> Frame {
    Frame {
        warm_up: Duration::ZERO,
        until: Until::Keys(keys),
        server_pid: None,
        progress: false,
    }
}

#[test]
fn a_filled_cache_is_hit_and_every_byte_is_right() {
    let (address, items) = healthy();
    let outcome = run::run(&plan(&address), &frame(2_000)).expect("a healthy server");
    assert_eq!(items.lock().expect("free").len(), 200);
    let counts = outcome.tenants[0].tally.counts;
    assert_eq!((counts.misses, counts.errors()), (0, 0));
    assert!(counts.hits >= 2_000, "{counts:?}");
}

#[test]
fn a_fill_with_a_pace_is_no_faster_than_that_and_complete() {
    let (address, items) = healthy();
    let plan = Plan {
        fill_rate: Some(1_000.0),
        ..plan(&address)
    };
    let outcome = run::run(&plan, &frame(100)).expect("a healthy server");
    assert_eq!(items.lock().expect("free").len(), 200);
    // 200 keys of two threads; the first of each goes at once.
    assert!(
        outcome.fill >= Duration::from_millis(150),
        "{:?}",
        outcome.fill
    );
}

#[test]
fn what_is_set_aside_is_no_latency_and_all_others_are() {
    let (address, _) = healthy();
    let plan = Plan {
        sift: Some(std::process::id()),
        ..plan(&address)
    };
    let mut outcome = run::run(&plan, &frame(20_000)).expect("a healthy server");
    let tally = &mut outcome.tenants[0].tally;
    let latencies = tally.reads().len() + tally.writes().len() + tally.aside;
    assert_eq!(latencies, tally.counts.total_ops());
    // Nobody judged the last slice.
    assert!(tally.aside > 0);
}

#[test]
fn all_operations_and_multigets_stay_in_step() {
    let (address, _) = healthy();
    let mut plan = plan(&address);
    plan.tenants[0].spec.mix = "get:50,set:20,delete:10,incr:10,touch:10"
        .parse()
        .expect("a mix");
    plan.multiget = 5;
    let mut outcome = run::run(&plan, &frame(4_000)).expect("a healthy server");
    let tally = &mut outcome.tenants[0].tally;
    assert_eq!(tally.counts.errors(), 0);
    assert!(
        (tally.counts.ops[..=Ask::Touch as usize].iter()).all(|&n| n > 0),
        "{:?}",
        tally.counts
    );
    assert!(
        tally.counts.misses > 0,
        "deleted keys were read: {:?}",
        tally.counts
    );
    let gets = tally.counts.hits + tally.counts.misses;
    assert_eq!(
        gets,
        5 * tally.reads().len(),
        "one latency for each get, five keys in it"
    );
}

#[test]
fn misses_are_filled_where_that_is_wanted() {
    let (address, items) = healthy();
    let plan = Plan {
        fill: false,
        fill_on_miss: true,
        ..plan(&address)
    };
    let outcome = run::run(&plan, &frame(3_000)).expect("a healthy server");
    let counts = outcome.tenants[0].tally.counts;
    let stored = items.lock().expect("free").len() as u64;
    assert!(
        counts.misses >= stored && stored > 50,
        "{counts:?}, {stored} stored"
    );
    assert!(counts.hits > counts.misses, "{counts:?}");
}

#[test]
fn an_open_loop_sends_what_is_due() {
    let (address, _) = healthy();
    let mut plan = plan(&address);
    plan.tenants[0].rate = Some(50_000.0);
    let outcome = run::run(&plan, &frame(1_000)).expect("a healthy server");
    assert_eq!(outcome.tenants[0].tally.counts.total_ops(), 1_000);
}

#[test]
fn wrong_bytes_are_counted() {
    let items = Items::default();
    let address = server(move |stream| {
        cache(stream, &items, |data| {
            data.iter_mut().for_each(|byte| *byte ^= 1)
        });
    });
    let mut plan = plan(&address);
    plan.tenants[0].spec.values = Lengths::Fixed(40);
    let outcome = run::run(&plan, &frame(500)).expect("in step all the same");
    let counts = outcome.tenants[0].tally.counts;
    assert_eq!(counts.corrupt, counts.hits);
    assert!(counts.corrupt >= 500);
}

/// Reads something, answers `reply`, and keeps the connection open or not.
fn once(reply: &'static [u8], keep: bool) -> Address {
    server(move |mut stream| {
        let mut some = [0; 64];
        let _ = stream.read(&mut some);
        let _ = stream.write_all(reply);
        while keep && stream.read(&mut some).is_ok_and(|n| n > 0) {}
    })
}

fn failure(address: &Address, stall: Duration) -> LoadError {
    let plan = Plan {
        fill: false,
        stall,
        ..plan(address)
    };
    run::run(&plan, &frame(100)).expect_err("an ill server")
}

#[test]
fn ill_servers_end_a_run_with_a_reason() {
    let long = Duration::from_secs(60);
    let error = failure(&once(b"VALUE t:0000000000 0 40\r\nhalf", false), long);
    assert!(
        matches!(error, LoadError::Closed { .. } | LoadError::Broken { .. }),
        "{error}"
    );
    assert!(
        error.to_string().contains("4 replies outstanding"),
        "{error}"
    );

    let error = failure(&once(b"HTTP/1.1 400 Bad Request\r\n", true), long);
    assert!(
        error.to_string().contains("answered get with \"HTTP/1.1"),
        "{error}"
    );

    let error = failure(&once(b"VALUE t:9999999999 0 1\r\nx\r\nEND\r\n", true), long);
    assert!(
        matches!(error, LoadError::Protocol { .. }),
        "a value nobody asked for: {error}"
    );

    let error = failure(&once(b"", true), Duration::from_millis(300));
    assert!(
        matches!(
            error,
            LoadError::Stalled {
                outstanding: 4..,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_refused_login_names_the_user_and_the_reply() {
    let address = once(b"CLIENT_ERROR authentication failure\r\n", true);
    let login = Login {
        user: "eve".to_owned(),
        password: "x".to_owned(),
    };
    let error = address
        .connect(Some(&login))
        .map(drop)
        .expect_err("refused")
        .to_string();
    assert!(
        error.contains("\"eve\"") && error.contains("authentication failure"),
        "{error}"
    );
}

fn request(key: u64, op: Op) -> Request {
    Request {
        at: Default::default(),
        op,
        key,
        key_len: 20,
        value_len: Some(100 + key as u32),
        ttl_s: 0,
        tenant: 0,
    }
}

#[test]
fn a_replay_misses_each_key_once_however_deep_its_pipeline() {
    let (address, items) = healthy();
    let manner = Manner {
        address,
        login: None,
        prefix: "r:".to_owned(),
        connections: 3,
        depth: 16,
        busy_poll: false,
        verify: true,
        stall: Duration::from_secs(60),
    };
    let mut target = SocketTarget::new(manner).expect("a healthy server");
    for i in 0..5_000u64 {
        target
            .request(&request(i * i % 50, Op::Get), None)
            .expect("a healthy server");
    }
    target
        .request(&request(7, Op::Delete), None)
        .expect("a healthy server");
    target
        .request(&request(7, Op::Get), None)
        .expect("a healthy server");
    target.finish().expect("a healthy server");
    let distinct = (0..50u64)
        .map(|i| i * i % 50)
        .collect::<std::collections::BTreeSet<_>>()
        .len();
    let counts = target.tally().counts;
    // Key 7 is no square modulo 50: its delete finds nothing, its read misses.
    assert_eq!(counts.misses, distinct as u64 + 1);
    assert_eq!((counts.hits + counts.misses, counts.errors()), (5_001, 0));
    assert_eq!(items.lock().expect("free").len(), distinct + 1);
}
