//! Ranges through the protocol: what is answered, where an answer ends, what it costs.

mod rig;

use nyx_base::{DevicePs, Instant};
use nyx_engine::{Binding, HoldAction, Outcome, Ranges, Session, TenantConfig};
use nyx_policy::sharing::limit::Leased;
use nyx_proto::Out;
use nyx_store::Tree;
use rig::{OPS_PER_S, Rig, roomy};

fn ordered(name: &str, max_scan_keys: u32) -> TenantConfig {
    TenantConfig {
        ranges: Some(Ranges {
            tree: Tree::FastFair,
            max_scan_keys,
        }),
        item_len_max: 64 << 10,
        ..roomy(name)
    }
}

/// With the items `a:0` to `a:4` and `b`, whose values are their keys.
fn rig(max_scan_keys: u32) -> (Rig, Session) {
    let mut rig = Rig::new(vec![ordered("one", max_scan_keys)]);
    let mut session = rig.to(0);
    for key in ["b", "a:3", "a:1", "a:0", "a:4", "a:2"] {
        let set = format!("set {key} 7 0 {}\r\n{key}\r\n", key.len());
        assert_eq!(rig.say(&mut session, &set), "STORED\r\n");
    }
    (rig, session)
}

/// The answer as one line: the keys, and how it ends.
fn told(answer: &str) -> String {
    let lines = answer.lines().filter_map(|line| {
        let mut words = line.split(' ');
        match words.next()? {
            "KEY" => words.next().map(str::to_owned),
            _ => Some(line.to_owned()),
        }
    });
    lines.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_range_that_is_meant_is_answered() {
    let (mut rig, mut session) = rig(256);
    for (asked, right) in [
        ("*", "a:0 a:1 a:2 a:3 a:4 b END"),
        ("a:", "a:0 a:1 a:2 a:3 a:4 END"),
        ("a:3", "a:3 END"),
        ("c", "END"),
        ("* from a:3", "a:3 a:4 b END"),
        ("* after a:3", "a:4 b END"),
        ("* from a:3 to b", "a:3 a:4 b END"),
        ("* from a:3 before b", "a:3 a:4 END"),
        ("a: from a:35", "a:4 END"),
        ("a: from 0 to z", "a:0 a:1 a:2 a:3 a:4 END"),
        ("* from b to a", "END"),
        ("* down", "b a:4 a:3 a:2 a:1 a:0 END"),
        ("a: down", "a:4 a:3 a:2 a:1 a:0 END"),
        ("* down from a:2", "a:2 a:1 a:0 END"),
        ("* down after a:2", "a:1 a:0 END"),
        ("* down after a:2 to a:1", "a:1 END"),
        ("a: down from a:9 before a:3", "a:4 END"),
        ("* limit 2", "a:0 a:1 MORE a:1"),
        ("* down limit 2", "b a:4 MORE a:4"),
        ("* limit 6", "a:0 a:1 a:2 a:3 a:4 b MORE b"),
        ("* after b", "END"),
        ("YTo= base64 limit 1", "YTow MORE YTow"),
        ("* base64 after YTo0", "Yg== END"),
    ] {
        let answer = rig.say(&mut session, &format!("scan {asked} keys\r\n"));
        assert_eq!(told(&answer), right, "scan {asked}");
    }
}

#[test]
fn values_flags_and_cas_are_those_of_gets() {
    let (mut rig, mut session) = rig(256);
    let whole = "VALUE a:0 7 3\r\na:0\r\nVALUE a:1 7 3\r\na:1\r\nMORE a:1\r\n";
    assert_eq!(rig.say(&mut session, "scan a limit 2\r\n"), whole);
    let gets = rig.say(&mut session, "gets b\r\n");
    assert_eq!(rig.say(&mut session, "scan b cas\r\n"), gets);
    let key = gets.replace("VALUE", "KEY").replace("\r\nb\r\n", "\r\n");
    assert_eq!(rig.say(&mut session, "scan b cas keys\r\n"), key);
}

#[test]
fn what_is_no_scan_is_refused_with_its_usage() {
    let (mut rig, mut session) = rig(256);
    for asked in [
        "scan",
        "scan a b",
        "scan a limit",
        "scan a limit 0",
        "scan a limit -1",
        "scan a limit 1 limit 1",
        "scan a from",
        "scan a from b after b",
        "scan a to b before b",
        "scan a keys keys",
        "scan a down down",
    ] {
        let answer = rig.say(&mut session, &format!("{asked}\r\n"));
        let usage = "CLIENT_ERROR bad command line format.  Usage: scan <prefix>|* [from|after \
                     <key>] [to|before <key>] [down] [limit <n>] [keys] [cas] [base64]\r\n";
        assert_eq!(answer, usage, "{asked}");
    }
    let answer = rig.say(&mut session, "scan a! base64\r\n");
    assert_eq!(answer, "CLIENT_ERROR error decoding key\r\n");
    let long = "k".repeat(251);
    let answer = rig.say(&mut session, &format!("scan a from {long}\r\n"));
    assert_eq!(answer, "CLIENT_ERROR bad command line format\r\n");
}

#[test]
fn who_has_no_order_or_several_tenants_is_told() {
    let mut rig = Rig::new(vec![roomy("hash"), ordered("tree", 256)]);
    let mut session = rig.to(0);
    let answer = rig.say(&mut session, "scan *\r\n");
    let right = "CLIENT_ERROR this tenant has no order of keys (tenant.index)\r\n";
    assert_eq!(answer, right);
    let tree = rig.engine.tenants()[1].id();
    let mut both = Session::new(&Binding::open(None, &[("t:", tree)]));
    let answer = rig.say(&mut both, "scan *\r\n");
    let right = "CLIENT_ERROR several tenants share this port: a scan names a prefix or a key\r\n";
    assert_eq!(answer, right);
    let answer = rig.say(&mut both, "scan x\r\n");
    assert_eq!(answer, "CLIENT_ERROR no tenant has this key's prefix\r\n");
    assert_eq!(rig.say(&mut both, "scan t:\r\n"), "END\r\n");
    assert_eq!(rig.say(&mut both, "scan * from t:\r\n"), "END\r\n");
}

#[test]
fn a_key_that_is_no_text_is_sent_as_base64_alone() {
    let (mut rig, mut session) = rig(256);
    // The bytes `a:2\n`.
    assert_eq!(rig.say(&mut session, "ms YToyCg== 1 b\r\nx\r\n"), "HD\r\n");
    let answer = rig.say(&mut session, "scan a keys\r\n");
    let right = "a:0 a:1 a:2 CLIENT_ERROR the next key is no text: ask with base64";
    assert_eq!(told(&answer), right);
    let answer = rig.say(&mut session, "scan * after YToy keys base64 limit 1\r\n");
    assert_eq!(told(&answer), "YToyCg== MORE YToyCg==");
}

/// All parts of a scan, each asked for behind the last key of the one before.
fn parts(rig: &mut Rig, session: &mut Session, options: &str) -> Vec<String> {
    let (mut answers, mut after) = (Vec::new(), String::new());
    loop {
        let answer = rig.say(session, &format!("scan * {options}{after}\r\n"));
        let last = answer.lines().last().expect("a last line").to_owned();
        answers.push(answer);
        match last.strip_prefix("MORE ") {
            Some(key) => after = format!(" after {key}"),
            None => return answers,
        }
    }
}

#[test]
fn an_answer_ends_after_so_many_keys_and_bytes() {
    let (mut rig, mut session) = rig(4);
    for options in ["keys limit 100", "keys down"] {
        let parts = parts(&mut rig, &mut session, options);
        let lines: Vec<usize> = parts.iter().map(|part| part.lines().count() - 1).collect();
        assert_eq!(lines, [4, 2], "{options}");
    }
    // Keys that have ended are looked at, and count.
    for key in ["a:1", "a:2", "a:3"] {
        let touch = format!("touch {key} 10\r\n");
        assert_eq!(rig.say(&mut session, &touch), "TOUCHED\r\n");
    }
    rig.wait_s(20);
    let told_of: Vec<String> = parts(&mut rig, &mut session, "keys")
        .iter()
        .map(|part| told(part))
        .collect();
    assert_eq!(told_of, ["a:0 MORE a:3", "a:4 b END"]);
    let mut large = Rig::new(vec![ordered("large", 256)]);
    let mut session = large.to(0);
    for key in 10..40 {
        let set = format!("set {key} 0 0 50000\r\n{}\r\n", "x".repeat(50_000));
        assert_eq!(large.say(&mut session, &set), "STORED\r\n");
    }
    let parts = parts(&mut large, &mut session, "limit 100");
    let bytes: Vec<usize> = parts.iter().map(String::len).collect();
    assert!(bytes.iter().all(|&len| len < 320_000), "{bytes:?}");
    let values: usize = parts.iter().map(|part| part.matches("VALUE").count()).sum();
    assert_eq!(values, 30);
}

#[test]
fn values_are_paid_for_as_those_of_gets_and_keys_are_free() {
    let (mut rig, mut session) = rig(256);
    let before = rig.engine.tenants()[0].usage();
    rig.say(&mut session, "get a:0 a:1 a:2 a:3 a:4\r\n");
    let gets = rig.engine.tenants()[0].usage();
    rig.say(&mut session, "scan a:\r\n");
    let scan = rig.engine.tenants()[0].usage();
    assert_eq!(scan.reads - gets.reads, gets.reads - before.reads);
    assert_eq!(
        scan.used().0 - gets.used().0,
        gets.used().0 - before.used().0
    );
    assert_eq!(gets.reads - before.reads, 5);
    rig.say(&mut session, "scan a: keys\r\n");
    assert_eq!(rig.engine.tenants()[0].usage().reads, scan.reads);
    let counts = rig.engine.tenants()[0].counts();
    assert_eq!((counts.cmd_scan, counts.scan_items), (2, 10));
}

/// A hundredth of the device, 200 items, and a scan of all again and again: it gets as many values
/// a second as gets would, and its answers end where the budget does.
#[test]
fn a_scan_keeps_to_its_tenants_limit() {
    let mut rig = Rig::new(vec![ordered("limited", 1000)]);
    let mut session = rig.to(0);
    for key in 100..300 {
        let set = format!("set {key} 0 0 2\r\nab\r\n");
        assert_eq!(rig.say(&mut session, &set), "STORED\r\n");
    }
    let limit = DevicePs(DevicePs::SECOND.0 / 100);
    rig.engine
        .set_policy(Box::new(Leased::new(vec![Some(limit)])));
    rig.engine.control(rig.now().mono);
    let (mut values, mut held, mut cut) = (0, 0, 0);
    let begin = rig.now().mono;
    let mut ticked = begin;
    while rig.now().mono.since(begin).0 < 2_000_000_000 {
        let mut out = Out::new();
        match rig.try_once(&mut session, b"scan *\r\n", &mut out) {
            Outcome::Turn => {
                let text = String::from_utf8_lossy(out.pending()).into_owned();
                let count = text.matches("VALUE").count();
                cut += usize::from(text.contains("MORE") && count < 200);
                values += count;
            }
            Outcome::Held { until, .. } => {
                assert!(out.is_empty() && until != Instant::NEVER);
                held += 1;
                rig.clock.advance(until.since(rig.now().mono));
            }
            other => panic!("{other:?}"),
        }
        if rig.now().mono.since(ticked).0 >= 1_000_000 {
            ticked = rig.now().mono;
            rig.engine.control(ticked);
        }
    }
    let most = OPS_PER_S / 100.0 * 2.0;
    let part = values as f64 / most;
    assert!((0.9..=1.2).contains(&part), "{values} values of {most}");
    assert!(held > 100 && cut > 100, "held {held}, cut {cut}");
}

#[test]
fn a_tenant_that_rejects_is_busy_instead_of_waiting() {
    let mut rig = Rig::new(vec![TenantConfig {
        hold: HoldAction::Reject,
        ..ordered("strict", 256)
    }]);
    let mut session = rig.to(0);
    assert_eq!(rig.say(&mut session, "set k 0 0 1\r\nx\r\n"), "STORED\r\n");
    let limit = DevicePs(DevicePs::SECOND.0 / 100);
    rig.engine
        .set_policy(Box::new(Leased::new(vec![Some(limit)])));
    rig.engine.control(rig.now().mono);
    let answer = rig.say(&mut session, "scan *\r\n");
    assert_eq!(answer, "SERVER_ERROR 307 busy\r\n");
    assert_eq!(rig.say(&mut session, "scan x keys\r\n"), "END\r\n");
}
