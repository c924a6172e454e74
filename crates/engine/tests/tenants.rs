//! Several tenants on one engine: nobody reaches, sees or evicts what is another one's.

mod rig;

use nyx_base::{Bytes, Instant, Nanos, TenantId};
use nyx_engine::stats::Surroundings;
use nyx_engine::{Binding, Outcome, Session, TenantConfig, User, Users};
use nyx_policy::sharing::qos::Target;
use nyx_policy::{Act, Decision, Policy, Seen, Standing, Want};
use nyx_proto::Out;
use nyx_store::{Eviction, Layout};
use rig::{Rig, roomy};
use std::sync::Arc;

fn three() -> Rig {
    Rig::new(vec![roomy("zero"), roomy("one"), roomy("two")])
}

/// A door at which `a:` is tenant 1 and `b:` is tenant 2.
fn prefixes(default: Option<u16>) -> Session {
    let prefixes = [("a:", TenantId(1)), ("b:", TenantId(2))];
    Session::new(&Binding::open(default.map(TenantId), &prefixes))
}

fn stats(rig: &Rig, session: &Session, arg: &str) -> String {
    let mut out = Out::new();
    let around = Surroundings {
        now: Instant(2_500_000_000),
        held_connections: vec![0, 3],
        ..Surroundings::default()
    };
    rig.engine.stats(session, arg.as_bytes(), &around, &mut out);
    String::from_utf8(out.pending().to_vec()).expect("figures are text")
}

#[test]
fn the_same_key_is_another_item_in_each_tenant() {
    let mut rig = three();
    for tenant in 0..3 {
        let mut session = rig.to(tenant);
        assert_eq!(rig.say(&mut session, "get k\r\n"), "END\r\n");
        let set = format!("set k {tenant} 0 1\r\n{tenant}\r\n");
        assert_eq!(rig.say(&mut session, &set), "STORED\r\n");
    }
    for tenant in 0..3 {
        let want = format!("VALUE k {tenant} 1\r\n{tenant}\r\nEND\r\n");
        let mut session = rig.to(tenant);
        assert_eq!(rig.say(&mut session, "get k\r\n"), want);
    }
    let mut session = rig.to(1);
    assert_eq!(rig.say(&mut session, "flush_all\r\n"), "OK\r\n");
    assert_eq!(rig.say(&mut session, "get k\r\n"), "END\r\n");
    for tenant in [0, 2] {
        let mut session = rig.to(tenant);
        assert_eq!(rig.say(&mut session, "delete k\r\n"), "DELETED\r\n");
    }
}

#[test]
fn a_prefix_leads_to_its_tenant_and_only_from_its_door() {
    let mut rig = three();
    let mut door = prefixes(Some(0));
    for key in ["a:k", "b:k", "k"] {
        let set = format!("set {key} 0 0 {}\r\n{key}\r\n", key.len());
        assert_eq!(rig.say(&mut door, &set), "STORED\r\n");
    }
    let all = "VALUE a:k 0 3\r\na:k\r\nVALUE b:k 0 3\r\nb:k\r\nVALUE k 0 1\r\nk\r\nEND\r\n";
    assert_eq!(rig.say(&mut door, "get a:k nobody b:k k a:no\r\n"), all);
    // Through a tenant's own door its keys keep their prefix, and the others' are not there.
    let mut one = rig.to(1);
    let own = "VALUE a:k 0 3\r\na:k\r\nEND\r\n";
    assert_eq!(rig.say(&mut one, "get k b:k a:k\r\n"), own);
    // The base64 of `a:k` leads where `a:k` does.
    assert_eq!(
        rig.say(&mut door, "mg YTpr b k v\r\n"),
        "VA 3 kYTpr b\r\na:k\r\n"
    );
}

#[test]
fn a_key_of_nobody_is_a_miss_or_refused() {
    let mut rig = three();
    let mut door = prefixes(None);
    let refused = "CLIENT_ERROR no tenant has this key's prefix\r\n";
    assert_eq!(rig.say(&mut door, "set k 0 0 1\r\nx\r\n"), refused);
    assert_eq!(rig.say(&mut door, "ms k 1\r\nx\r\n"), refused);
    assert_eq!(rig.say(&mut door, "get k\r\n"), "END\r\n");
    assert_eq!(rig.say(&mut door, "get k l m\r\n"), "END\r\n");
    for tenant in rig.engine.tenants().iter() {
        assert_eq!(tenant.store().figures().items, 0, "{}", tenant.name());
    }
}

#[test]
fn a_shared_door_does_not_flush_what_it_shares() {
    let mut rig = three();
    let mut door = prefixes(Some(0));
    assert_eq!(rig.say(&mut door, "set a:k 0 0 1\r\nx\r\n"), "STORED\r\n");
    let answer = rig.say(&mut door, "flush_all\r\n");
    assert!(answer.starts_with("CLIENT_ERROR "), "{answer}");
    assert_eq!(rig.say(&mut door, "flush_all noreply\r\n"), "");
    assert!(rig.say(&mut door, "get a:k\r\n").starts_with("VALUE"));
}

#[test]
fn a_login_leads_to_its_tenant_and_nowhere_else() {
    let mut rig = three();
    let user = |name: &str, tenant| User {
        name: name.into(),
        password: b"secret".to_vec(),
        tenant: TenantId(tenant),
    };
    let users = Arc::new(Users::new(vec![user("ann", 1), user("bob", 2)]));
    let door = Binding::Login { users };
    let mut nobody = Session::new(&door);
    let mut out = Out::new();
    rig.try_once(&mut nobody, b"set k 0 0 1\r\nx\r\n", &mut out);
    assert!(out.pending().starts_with(b"CLIENT_ERROR "));
    assert!(stats(&rig, &nobody, "tenants") == "END\r\n");
    let mut ann = Session::new(&door);
    assert!(ann.login(b"ann", b"secret"));
    assert!(
        !ann.login(b"bob", b"secret"),
        "who is in cannot change sides"
    );
    assert_eq!(rig.say(&mut ann, "set k 0 0 1\r\nx\r\n"), "STORED\r\n");
    let mut bob = Session::new(&door);
    assert!(bob.login(b"bob", b"secret"));
    assert_eq!(rig.say(&mut bob, "get k\r\n"), "END\r\n");
    let mut one = rig.to(1);
    assert!(rig.say(&mut one, "get k\r\n").starts_with("VALUE"));
}

#[test]
fn figures_are_of_the_tenants_within_reach() {
    let mut rig = three();
    let mut two = rig.to(2);
    rig.say(&mut two, "set k 0 0 1\r\nx\r\n");
    rig.say(&mut two, "get k\r\n");
    let of_one = stats(&rig, &rig.to(1), "");
    assert!(of_one.contains("STAT curr_items 0\r\n"), "{of_one}");
    assert!(of_one.contains("STAT get_hits 0\r\n"), "{of_one}");
    let of_one = stats(&rig, &rig.to(1), "tenants");
    assert!(of_one.contains("STAT one:items 0\r\n"), "{of_one}");
    assert!(!of_one.contains("two:"), "{of_one}");
    let of_two = stats(&rig, &two, "");
    assert!(of_two.contains("STAT get_hits 1\r\n"), "{of_two}");
    let of_door = stats(&rig, &prefixes(None), "tenants");
    assert!(of_door.contains("two:items 1") && !of_door.contains("zero:"));
}

#[test]
fn a_full_tenant_evicts_its_own_items_only() {
    for (eviction, layout) in [
        (Eviction::S3Fifo, Layout::Split),
        (Eviction::Fifo, Layout::Inline),
        (Eviction::Merge, Layout::Split),
    ] {
        let small = TenantConfig {
            size: Bytes(4 << 20),
            eviction,
            layout,
            ..roomy("greedy")
        };
        let mut rig = Rig::new(vec![
            small.clone(),
            TenantConfig {
                name: "modest".into(),
                ..small
            },
        ]);
        let (mut greedy, mut modest) = (rig.to(0), rig.to(1));
        let value = "v".repeat(1000);
        for key in 0..500 {
            let set = format!("set kept{key} 0 0 1000\r\n{value}\r\n");
            assert_eq!(rig.say(&mut modest, &set), "STORED\r\n");
        }
        for key in 0..20_000 {
            let set = format!("set k{key} 0 0 1000\r\n{value}\r\n");
            assert_eq!(rig.say(&mut greedy, &set), "STORED\r\n");
        }
        let figures = |tenant: usize| rig.engine.tenants()[tenant].store().figures();
        assert!(figures(0).evictions > 10_000, "{eviction}");
        assert!(figures(0).used_bytes <= 4 << 20, "{eviction}");
        assert_eq!(figures(1).evictions, 0, "{eviction}");
        for key in 0..500 {
            let hit = rig.say(&mut modest, &format!("get kept{key}\r\n"));
            assert!(hit.starts_with("VALUE"), "{eviction}: kept{key}");
        }
    }
}

#[test]
fn the_longest_item_is_each_tenants_own() {
    let long = TenantConfig {
        item_len_max: 32 << 10,
        ..roomy("long")
    };
    let mut rig = Rig::new(vec![roomy("zero"), roomy("short"), long]);
    let mut door = prefixes(None);
    let data = "x".repeat(20_000);
    assert_eq!(rig.say(&mut door, "set a:k 0 0 1\r\nx\r\n"), "STORED\r\n");
    let too_large = "SERVER_ERROR object too large for cache\r\n";
    let mut set = |key: &str| {
        let request = format!("set {key} 0 0 20000\r\n{data}\r\n");
        rig.say(&mut door, &request)
    };
    assert_eq!(set("b:k"), "STORED\r\n");
    assert_eq!(set("a:k"), too_large);
    // What the client meant to replace is not served any longer.
    assert_eq!(rig.say(&mut door, "get a:k\r\n"), "END\r\n");
}

#[test]
fn a_long_answer_comes_in_parts_of_bounded_length() {
    let long = TenantConfig {
        segment_bytes: 1 << 20,
        item_len_max: 300_000,
        ..roomy("long")
    };
    let mut rig = Rig::new(vec![long]);
    let mut session = rig.to(0);
    let value = "v".repeat(300_000);
    let set = format!("set k 0 0 300000\r\n{value}\r\n");
    assert_eq!(rig.say(&mut session, &set), "STORED\r\n");
    let request = format!("get{}\r\n", " k none".repeat(40));
    let mut out = Out::new();
    let mut answer = Vec::new();
    let parts = 1 + std::iter::repeat_with(|| {
        let outcome = rig.try_once(&mut session, request.as_bytes(), &mut out);
        assert!(out.len() < (1 << 20) + 301_000, "{} B at once", out.len());
        answer.extend_from_slice(out.pending());
        out.consume(out.len());
        outcome
    })
    .take_while(|outcome| *outcome == Outcome::Full)
    .count();
    let want = format!("VALUE k 0 300000\r\n{value}\r\n").repeat(40) + "END\r\n";
    assert!(
        answer == want.as_bytes(),
        "{} B of {}",
        answer.len(),
        want.len()
    );
    // Four values are a part; the end is one of its own.
    assert_eq!(parts, 11);
}

#[test]
fn commands_that_end_a_connection_or_the_process_are_the_drivers() {
    let mut rig = three();
    let mut out = Out::new();
    for (request, want) in [
        (&b"quit\r\n"[..], Outcome::Close),
        (b"shutdown\r\n", Outcome::Shutdown),
        (b"stats\r\n", Outcome::Stats),
    ] {
        let mut session = rig.to(0);
        assert_eq!(rig.try_once(&mut session, request, &mut out), want);
    }
    assert!(out.is_empty());
}

/// Does something to tenant 1, for a reason that names tenant 2.
struct Talkative;

impl Policy for Talkative {
    fn name(&self) -> &'static str {
        "talkative"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(10)
    }

    fn step(&mut self, _now: Instant, _seen: &[Seen], _want: &mut [Want]) {}

    fn standing(&self, tenant: usize) -> Standing {
        if tenant != 1 {
            return Standing::default();
        }
        Standing {
            limit: Some(0.25),
            target: Some(Target::Mean(Nanos(1500))),
            had_ns: Some(1900.0),
            slack: Some(-0.2667),
            hurt_by: vec![(2, Some(0.38)), (0, None)],
            ..Standing::default()
        }
    }

    fn take_decisions(&mut self) -> Vec<Decision> {
        let at = Instant(1_500_000_000);
        let act = Act::Throttle {
            from: 0.5,
            to: 0.25,
        };
        let why = "two misses its target".to_owned();
        vec![Decision {
            at,
            tenant: 1,
            act,
            why,
        }]
    }
}

#[test]
fn how_a_tenant_stands_is_told_and_only_who_is_within_reach_is_named() {
    let tenants = vec![roomy("zero"), roomy("one"), roomy("two")];
    let rig = Rig::under(tenants, Box::new(Talkative));
    let all = stats(&rig, &prefixes(Some(0)), "tenants");
    for line in [
        "one:held_connections 3",
        "one:promised_device_share 0.2500",
        "one:target mean 1.50 us",
        "one:target_had 1.90 us",
        "one:slack -0.2667",
        "one:hurt_by two=0.380 zero=untested",
        "two:held_connections 0",
    ] {
        assert!(all.contains(&format!("STAT {line}\r\n")), "{line}: {all}");
    }
    for absent in ["two:slack", "one:slowdown", "one:best_effort", "one:delay"] {
        assert!(!all.contains(absent), "{absent}: {all}");
    }
    let own = stats(&rig, &rig.to(1), "tenants");
    assert!(
        own.contains("one:slack") && !own.contains("hurt_by"),
        "{own}"
    );
}

#[test]
fn latencies_are_told_by_octave_to_who_may_see_the_tenant() {
    let rig = three();
    for took in [1_000, 1_000, 1_030, 70_000] {
        let worker = nyx_base::WorkerId(0);
        rig.engine.record(worker, TenantId(1), Nanos(took), 1);
    }
    let told = stats(&rig, &rig.to(1), "latencies");
    let octave = |at: usize, n: u32| {
        let counts: Vec<String> = (0..16)
            .map(|i| if i == at { n } else { 0 }.to_string())
            .collect();
        counts.join(",")
    };
    let want = format!(
        "STAT one:latency_ns_sum 73030\r\nSTAT one:latency_ns:512 {}\r\n\
         STAT one:latency_ns:1024 {}\r\nSTAT one:latency_ns:65536 {}\r\nEND\r\n",
        octave(15, 2),
        octave(0, 1),
        octave(1, 1)
    );
    assert_eq!(told, want);
    assert_eq!(
        stats(&rig, &rig.to(0), "latencies"),
        "STAT zero:latency_ns_sum 0\r\nEND\r\n"
    );
}

#[test]
fn a_decision_is_told_to_whom_it_concerns_and_its_reason_to_who_may_know_all() {
    let tenants = vec![roomy("zero"), roomy("one"), roomy("two")];
    let rig = Rig::under(tenants, Box::new(Talkative));
    let told = "STAT one:1.500s throttled from 50.0 to 25.0 %";
    let own = stats(&rig, &rig.to(1), "policy");
    assert!(own.contains(told) && !own.contains("two"), "{own}");
    let all = stats(&rig, &prefixes(Some(0)), "policy");
    assert!(
        all.contains(&format!("{told}: two misses its target")),
        "{all}"
    );
    let other = stats(&rig, &rig.to(2), "policy");
    let nothing = "STAT policy talkative\r\nSTAT now_s 2.500000\r\nEND\r\n";
    assert_eq!(other, nothing);
}

#[test]
fn housekeeping_is_not_held_up_by_tenants_with_nothing_to_do() {
    let mut rig = Rig::new((0..40).map(|at| roomy(&format!("t{at}"))).collect());
    let now = rig.now();
    let turns = (1..).find(|_| !rig.engine.maintain(&mut rig.worker, now));
    assert_eq!(turns, Some(3));
}
