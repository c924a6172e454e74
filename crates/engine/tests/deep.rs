//! A tenant on two devices, from bytes to bytes: every command that needs a value which is not here
//! is answered as if it were.

mod rig;

use nyx_base::{Nanos, TenantId};
use nyx_engine::{DeepShare, Outcome, Session, TenantConfig};
use nyx_policy::nhc::Nhc;
use nyx_proto::Out;
use nyx_store::Tree;
use rig::{Rig, deep};

/// Keys that lie on the deep device, with values of 1,000 bytes, in the order of their numbers.
const KEYS: u32 = 400;

fn value(number: u32) -> String {
    format!("{number:0>1000}")
}

fn set(rig: &mut Rig, session: &mut Session, key: &str, value: &str) {
    let request = format!("set {key} 7 0 {} noreply\r\n{value}\r\n", value.len());
    rig.ask(session, request.as_bytes());
    rig.land();
}

/// An engine whose first keys have gone deep.
fn rig(tenant: TenantConfig) -> (Rig, Session) {
    let mut rig = Rig::new(vec![tenant]);
    let mut session = rig.to(0);
    for number in 0..KEYS {
        set(
            &mut rig,
            &mut session,
            &format!("key{number:03}"),
            &value(number),
        );
    }
    set(&mut rig, &mut session, "count", "41");
    for number in 0..2500 {
        let filler = "x".repeat(4000);
        set(&mut rig, &mut session, &format!("filler{number}"), &filler);
    }
    (rig, session)
}

fn reads(rig: &Rig) -> u64 {
    rig.deep.as_ref().expect("a deep device").figures().reads
}

/// How often a request has to wait for a fetch; its answer.
fn waits(rig: &mut Rig, session: &mut Session, request: &str) -> (u32, String) {
    let (mut out, mut waits) = (Out::new(), 0);
    loop {
        match rig.try_once(session, request.as_bytes(), &mut out) {
            Outcome::Away { tenant, .. } => {
                assert_eq!(tenant, TenantId(0));
                waits += 1;
                rig.land();
            }
            Outcome::Done | Outcome::Turn => {
                let answer = out.pending().to_vec();
                return (waits, String::from_utf8(answer).expect("text"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn commands_on_what_is_deep_wait_once_and_are_counted_once() {
    let (mut rig, mut session) = rig(deep("one"));
    let before = rig.engine.tenants()[0].counts();
    let block = |number: u32| format!("VALUE key{number:03} 7 1000\r\n{}\r\n", value(number));
    let more = |number: u32| {
        let head = format!("VALUE key{number:03} 7 1004\r\n");
        format!("{head}{}more\r\nEND\r\n", value(number))
    };
    let asked = [
        ("get key000\r\n", format!("{}END\r\n", block(0))),
        ("append key001 0 0 4\r\nmore\r\n", "STORED\r\n".to_owned()),
        ("get key001\r\n", more(1)),
        ("incr count 1\r\n", "42\r\n".to_owned()),
        ("touch key002 100\r\n", "TOUCHED\r\n".to_owned()),
        ("gat 100 key003\r\n", format!("{}END\r\n", block(3))),
        ("mg key004 v\r\n", format!("VA 1000\r\n{}\r\n", value(4))),
        ("mg key005 t s\r\n", "HD t-1 s1000\r\n".to_owned()),
        ("ms key006 4 MA s\r\nmore\r\n", "HD s1004\r\n".to_owned()),
        ("md key007 I\r\n", "HD\r\n".to_owned()),
        ("mg key007 s\r\n", "HD s1000 X W\r\n".to_owned()),
        ("delete key008\r\n", "DELETED\r\n".to_owned()),
    ];
    let expected = [1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 0, 0];
    for ((request, answer), expected) in asked.into_iter().zip(expected) {
        let told = waits(&mut rig, &mut session, request);
        assert_eq!(told, (expected, answer), "{request:?}");
    }
    assert_eq!(reads(&rig), 8);
    let counts = rig.engine.tenants()[0].counts();
    assert_eq!(counts.get_hits - before.get_hits, 6);
    assert_eq!(counts.cmd_touch - before.cmd_touch, 2);
    assert_eq!(counts.cmd_set - before.cmd_set, 2);
    let usage = rig.engine.tenants()[0].deep_usage().expect("it has one");
    assert_eq!(usage.reads, 8, "each is paid for once");
}

#[test]
fn several_keys_are_fetched_together() {
    let (mut rig, mut session) = rig(deep("one"));
    let keys: Vec<String> = (0..100).map(|number| format!("key{number:03}")).collect();
    let request = format!("get {}\r\n", keys.join(" "));
    let (waited, answer) = waits(&mut rig, &mut session, &request);
    assert!(waited <= 7, "100 keys in {waited} waits");
    let expected: String = (0..100)
        .map(|number| format!("VALUE key{number:03} 7 1000\r\n{}\r\n", value(number)))
        .collect();
    assert!(answer == expected + "END\r\n");
    assert_eq!(reads(&rig), 100);
    assert_eq!(rig.engine.tenants()[0].counts().get_hits, 100);
}

#[test]
fn a_range_is_fetched_some_keys_at_a_time_and_leaves_none_out() {
    let mut tenant = deep("one");
    tenant.ranges = Some(nyx_engine::Ranges {
        tree: Tree::FastFair,
        max_scan_keys: 1000,
    });
    let (mut rig, mut session) = rig(tenant);
    let (mut found, mut waited, mut pages) = (Vec::new(), 0, 0);
    let mut request = "scan key limit 200\r\n".to_owned();
    loop {
        let told = waits(&mut rig, &mut session, &request);
        (waited, pages) = (waited + told.0, pages + 1);
        for (at, line) in told.1.lines().enumerate() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["VALUE", key, ..] => found.push(key.to_owned()),
                ["MORE", key, ..] => request = format!("scan key after {key} limit 200\r\n"),
                ["END"] => {
                    let expected = (0..KEYS).map(|number| format!("key{number:03}"));
                    assert_eq!(found, expected.collect::<Vec<_>>());
                    assert!(waited <= 60 && pages <= 60, "{waited} waits, {pages} pages");
                    return;
                }
                [value] => assert_eq!(value.len(), 1000, "line {at}"),
                _ => panic!("{line:?}"),
            }
        }
    }
}

#[test]
fn what_cannot_be_read_is_a_miss() {
    let (mut rig, mut session) = rig(deep("one"));
    let device = rig.deep.clone().expect("a deep device");
    device.drill.fail_reads(Some(5));
    let asked = [
        "get key000\r\n",
        "append key001 0 0 1\r\nx\r\n",
        "mg key002 v\r\n",
    ];
    let answers = ["END\r\n", "NOT_STORED\r\n", "EN\r\n"];
    for (request, answer) in asked.into_iter().zip(answers) {
        assert_eq!(
            waits(&mut rig, &mut session, request),
            (1, answer.to_owned())
        );
    }
    device.drill.fail_reads(None);
    let counts = rig.engine.tenants()[0].counts();
    assert_eq!((counts.get_hits, counts.get_misses), (0, 2));
    assert!(rig.say(&mut session, "get key003\r\n").starts_with("VALUE"));
}

#[test]
fn the_pair_knows_how_long_its_worker_was_at_work() {
    let mut rig = Rig::new(vec![deep("one")]);
    let mut session = rig.to(0);
    set(&mut rig, &mut session, "key", &value(1));
    // What was done before the tenant was there is not told.
    for (worked, known_ms) in [(5, 0), (3, 3), (4, 7)] {
        rig.worker.worked(Nanos::from_millis(worked));
        assert_eq!(waits(&mut rig, &mut session, "get key\r\n").0, 0);
        let seen = rig.engine.tenants()[0].pair().expect("a pair").seen();
        assert_eq!(seen.worked_ns, known_ms * 1_000_000);
    }
}

#[test]
fn what_many_wait_for_is_mirrored_and_read_from_both_devices() {
    let mut tenant = deep("one");
    tenant.deep = tenant.deep.map(|share| DeepShare {
        nhc: Nhc::ShortestDelay,
        ..share
    });
    let mut rig = Rig::new(vec![tenant]);
    let mut session = rig.to(0);
    for number in 0..100 {
        let key = format!("key{number:03}");
        set(&mut rig, &mut session, &key, &value(number));
    }
    // Nothing that is shorter than what may go deep gets a twin.
    set(&mut rig, &mut session, "empty", "");
    let mut read_all = |waiting: u32| {
        let before = reads(&rig);
        for number in 0..100 {
            rig.worker.set_waiting(waiting);
            let request = format!("get key{number:03}\r\n");
            let answer = waits(&mut rig, &mut session, &request).1;
            let head = format!("VALUE key{number:03} 7 1000\r\n");
            let block = format!("{head}{}\r\nEND\r\n", value(number));
            assert_eq!(answer, block);
            let answer = waits(&mut rig, &mut session, "get empty\r\n").1;
            assert_eq!(answer, "VALUE empty 7 0\r\n\r\nEND\r\n");
        }
        rig.clock.advance(Nanos::from_millis(10));
        let now = rig.now();
        rig.engine.maintain(&mut rig.worker, now);
        rig.land();
        let figures = rig.engine.tenants()[0].store().figures();
        let mirrors = figures.deep.expect("it has one").mirrors;
        (mirrors, reads(&rig) - before)
    };
    // Nobody waits: the fast device is as good as any.
    for _ in 0..5 {
        assert_eq!(read_all(0), (0, 0));
    }
    // Many do: what is read often gets a twin, and some are read from there. (The clock stands
    // still while the fast device is read, which looks quick; the deep one takes its own time.)
    let told: Vec<(u64, u64)> = (0..10).map(|_| read_all(1_000_000_000)).collect();
    // What was fetched once is there for a while: with so few keys it is fetched once.
    let deep: u64 = told.iter().map(|(_, deep)| deep).sum();
    assert!((51..=100).contains(&told[9].0) && deep > 30, "{told:?}");
    assert!(
        read_all(0).1 <= 5,
        "from the fast device, but for what is tried out"
    );
}
