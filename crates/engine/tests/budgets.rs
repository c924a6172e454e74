//! Tenants that have had their part: held or refused, and exactly as much as the policy says. All
//! time here is virtual (NyxCache sections 3.3 and 3.4).

mod rig;

use nyx_base::{DevicePs, Instant, Nanos, TenantId};
use nyx_engine::{Binding, HoldAction, Outcome, Session, TenantConfig};
use nyx_policy::baselines::Unlimited;
use nyx_policy::mechanism::throttle::Bounds;
use nyx_policy::plan::{Kind, Member, Plan, Terms, Who};
use nyx_policy::sharing::limit::{Epoch, Leased, Paper};
use nyx_policy::{Decision, Delay, Groups, Policy, Seen, Want};
use nyx_proto::Out;
use rig::{OPS_PER_S, Rig, WRITE_LATENCY_PRICE, roomy};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// One per cent of the device: 10,000 operations a second.
const LIMIT: DevicePs = DevicePs(DevicePs::SECOND.0 / 100);

fn limited() -> Box<Leased> {
    Box::new(Leased::new(vec![Some(LIMIT), None]))
}

/// Tenant 0, limited; tenant 1, not limited. Both hold `k0` to `k19`; nothing is left of 0's part.
fn rig(hold: HoldAction) -> Rig {
    let first = TenantConfig {
        hold,
        ..roomy("limited")
    };
    let mut rig = Rig::new(vec![first, roomy("free")]);
    for tenant in 0..2 {
        let mut session = rig.to(tenant);
        for key in 0..20 {
            let set = format!("set k{key} {tenant} 0 2\r\nab\r\n");
            assert_eq!(rig.say(&mut session, &set), "STORED\r\n");
        }
    }
    rig.engine.set_policy(limited());
    rig.engine.control(rig.now().mono);
    rig
}

/// A request, asked again whenever the engine says so; how often it was held.
fn patiently(rig: &mut Rig, session: &mut Session, request: &str) -> (String, usize) {
    let mut out = Out::new();
    for holds in 0..1000 {
        match rig.try_once(session, request.as_bytes(), &mut out) {
            Outcome::Done => {
                let text = String::from_utf8(out.pending().to_vec());
                return (text.expect("a text answer"), holds);
            }
            Outcome::Held { tenant, until } => {
                assert_eq!(tenant, TenantId(0));
                let now = rig.now().mono;
                assert!(until > now && until != Instant::NEVER, "{now:?} {until:?}");
                rig.clock.advance(until.since(now));
            }
            other => panic!("{request} ended as {other:?}"),
        }
    }
    panic!("{request} is held for ever");
}

fn is_held(rig: &mut Rig, session: &mut Session, request: &str) -> bool {
    let mut out = Out::new();
    let outcome = rig.try_once(session, request.as_bytes(), &mut out);
    assert!(
        outcome == Outcome::Done || out.is_empty(),
        "answered and held"
    );
    outcome != Outcome::Done
}

#[test]
fn whoever_touches_the_device_is_held_and_whoever_does_not_passes() {
    let mut rig = rig(HoldAction::Delay);
    let mut session = rig.to(0);
    for held in [
        "get k0\r\n",
        "gat 5 k0\r\n",
        "mg k0 v\r\n",
        "set k0 0 0 1\r\nx\r\n",
        "add new 0 0 1\r\nx\r\n",
        "append k0 0 0 1\r\nx\r\n",
        "ms k0 1\r\nx\r\n",
        "incr k0 1\r\n",
        "ma k0\r\n",
        "mg new N0\r\n",
    ] {
        assert!(is_held(&mut rig, &mut session, held), "{held}");
    }
    for passes in [
        "get missing\r\n",
        "gat 5 missing\r\n",
        "get missing too\r\n",
        "mg missing v\r\n",
        "mg k0 t f\r\n",
        "delete k19\r\n",
        "md k18\r\n",
        "version\r\n",
        "mn\r\n",
    ] {
        assert!(!is_held(&mut rig, &mut session, passes), "{passes}");
    }
    let mut free = rig.to(1);
    assert!(!is_held(&mut rig, &mut free, "get k0\r\n"));
}

#[test]
fn a_held_request_is_answered_once_and_as_if_it_had_not_been_held() {
    let mut rig = rig(HoldAction::Delay);
    let mut session = rig.to(0);
    let (answer, holds) = patiently(&mut rig, &mut session, "incr n 1\r\n");
    assert_eq!((answer.as_str(), holds), ("NOT_FOUND\r\n", 1));
    patiently(&mut rig, &mut session, "set n 0 0 1\r\n0\r\n");
    let mut held = 0;
    for n in 1..=50 {
        let (answer, holds) = patiently(&mut rig, &mut session, "incr n 1\r\n");
        assert_eq!(answer, format!("{n}\r\n"));
        held += holds;
    }
    assert!(held >= 45, "{held} of 50 were held");
}

#[test]
fn a_multiget_goes_on_where_it_was_held() {
    let mut rig = rig(HoldAction::Delay);
    let keys: Vec<String> = (0..20).map(|key| format!("k{key}")).collect();
    let request = format!("get {} missing\r\n", keys.join(" "));
    let mut session = rig.to(0);
    let (answer, holds) = patiently(&mut rig, &mut session, &request);
    let values = keys.iter().map(|key| format!("VALUE {key} 0 2\r\nab\r\n"));
    assert_eq!(answer, values.collect::<String>() + "END\r\n");
    assert!(holds >= 15, "held {holds} times");
    // The next request of the connection starts at its first key.
    let (answer, _) = patiently(&mut rig, &mut session, "get k0 k1\r\n");
    let both = "VALUE k0 0 2\r\nab\r\nVALUE k1 0 2\r\nab\r\nEND\r\n";
    assert_eq!(answer, both);
}

#[test]
fn a_multiget_over_two_tenants_waits_for_the_limited_one_only() {
    let mut rig = rig(HoldAction::Delay);
    let mut session = Session::new(&Binding::open(Some(TenantId(1)), &[("k1", TenantId(0))]));
    assert!(!is_held(&mut rig, &mut session, "get k2 k3 k4 k5\r\n"));
    let (answer, holds) = patiently(&mut rig, &mut session, "get k2 k10 k3 k11 k1missing k4\r\n");
    let value = |key, tenant| format!("VALUE {key} {tenant} 2\r\nab\r\n");
    let want = [
        value("k2", 1),
        value("k10", 0),
        value("k3", 1),
        value("k11", 0),
        value("k4", 1),
    ];
    assert_eq!(answer, want.concat() + "END\r\n");
    assert!((1..=2).contains(&holds), "held {holds} times for two keys");
}

#[test]
fn a_tenant_that_rejects_says_busy() {
    let mut rig = rig(HoldAction::Reject);
    let mut session = rig.to(0);
    let busy = "SERVER_ERROR 307 busy\r\n";
    for request in [
        "get k0\r\n",
        "set k0 0 0 1\r\nx\r\n",
        "mg k0 v\r\n",
        "incr k0 1\r\n",
    ] {
        assert_eq!(rig.say(&mut session, request), busy, "{request}");
    }
    assert_eq!(rig.say(&mut session, "get k0 k1\r\n"), busy);
    assert_eq!(rig.say(&mut session, "get missing\r\n"), "END\r\n");
    let counts = rig.engine.tenants()[0].counts();
    assert_eq!((counts.rejected, counts.get_hits), (5, 0));
    // What was refused was not done, and a refused multiget leaves nothing behind.
    rig.clock.advance(Nanos::from_secs(1));
    let want = "VALUE k0 0 2\r\nab\r\nEND\r\n";
    assert_eq!(rig.say(&mut session, "get k0\r\n"), want);
}

/// Serves a greedy tenant for `length` and returns its device time.
fn greedy(rig: &mut Rig, length: Nanos) -> DevicePs {
    let mut session = rig.to(0);
    let used = |rig: &Rig| rig.engine.tenants()[0].usage().used();
    let (before, end) = (used(rig), rig.now().mono + length);
    let mut out = Out::new();
    while rig.now().mono < end {
        let outcome = rig.try_once(&mut session, b"get k0\r\n", &mut out);
        out.consume(out.len());
        match outcome {
            Outcome::Held { until, .. } => {
                let now = rig.now().mono;
                rig.clock.advance(until.min(end).since(now));
            }
            // What an operation takes outside of the device.
            _ => rig.clock.advance(Nanos::from_micros(2)),
        }
    }
    used(rig).saturating_sub(before)
}

fn assert_share(used: DevicePs, length: Nanos, limit: DevicePs) {
    let want = limit.0 as f64 * length.as_secs_f64();
    let ratio = used.0 as f64 / want;
    assert!((0.99..=1.01).contains(&ratio), "{ratio:.4} of the limit");
}

#[test]
fn a_controller_that_stands_still_leaves_limits_in_force() {
    let mut rig = rig(HoldAction::Delay);
    let length = Nanos::from_secs(5);
    assert_share(greedy(&mut rig, length), length, LIMIT);
}

#[test]
fn a_policy_is_switched_under_an_open_connection() {
    let mut rig = rig(HoldAction::Delay);
    let mut session = rig.to(0);
    assert!(is_held(&mut rig, &mut session, "get k0\r\n"));
    assert_eq!(rig.engine.policy_name(), "limit");
    rig.engine.set_policy(Box::new(Unlimited));
    rig.engine.control(rig.now().mono);
    assert_eq!(rig.engine.policy_name(), "none");
    for _ in 0..1000 {
        assert!(!is_held(&mut rig, &mut session, "get k0\r\n"));
    }
    let length = Nanos::from_secs(2);
    let free = greedy(&mut rig, length);
    // An operation each 2 us: half of what the device can do.
    assert!(free.0 as f64 > 0.9 * length.as_secs_f64() * OPS_PER_S * 0.5e6);
    let double = DevicePs(2 * LIMIT.0);
    rig.engine
        .set_policy(Box::new(Leased::new(vec![Some(double), None])));
    rig.engine.control(rig.now().mono);
    assert_share(greedy(&mut rig, length), length, double);
    rig.engine.set_policy(limited());
    rig.engine.control(rig.now().mono);
    assert_share(greedy(&mut rig, length), length, LIMIT);
}

#[test]
fn an_infinite_delay_lasts_until_the_controller_ends_it_or_is_gone() {
    let mut rig = rig(HoldAction::Delay);
    let epoch = Epoch::default();
    rig.engine
        .set_policy(Box::new(Paper::new(vec![Some(LIMIT), None], epoch)));
    let mut session = rig.to(0);
    let mut held = None;
    for _ in 0..100 {
        let now = rig.now().mono;
        let next = rig.engine.control(now);
        // A tick's worth of the device, far above the limit.
        for _ in 0..1000 {
            let mut out = Out::new();
            if let Outcome::Held { until, .. } = rig.try_once(&mut session, b"get k0\r\n", &mut out)
            {
                held = Some(until);
            }
        }
        rig.clock.advance(next);
        if held.is_some() {
            break;
        }
    }
    assert_eq!(held, Some(Instant::NEVER));
    for _ in 0..3 {
        // Ticks that come late, but come.
        rig.clock.advance(Nanos::from_millis(300));
        let is_held = is_held(&mut rig, &mut session, "get k0\r\n");
        assert!(is_held, "no tick, no end");
        rig.engine.control(rig.now().mono);
    }
    rig.clock.advance(Nanos::from_secs(60));
    rig.engine.control(rig.now().mono);
    assert!(!is_held(&mut rig, &mut session, "get k0\r\n"));
}

#[test]
fn a_controller_that_dies_within_a_pause_stops_nobody_for_ever() {
    let mut rig = rig(HoldAction::Delay);
    rig.engine.set_policy(Box::new(Pause));
    rig.engine.control(rig.now().mono);
    let mut session = rig.to(0);
    assert!(is_held(&mut rig, &mut session, "get k0\r\n"));
    rig.clock.advance(Nanos::from_millis(400));
    assert!(is_held(&mut rig, &mut session, "get k0\r\n"));
    rig.clock.advance(Nanos::from_millis(200));
    assert!(!is_held(&mut rig, &mut session, "get k0\r\n"));
}

/// Two tenants that nothing limits but what they may use together.
fn both_in_a_group() -> Rig {
    let member = |name: &str, who: Who| Member {
        name: name.into(),
        who,
        terms: Terms::default(),
    };
    let inside = Plan {
        kind: Kind::None,
        members: (0..2).map(|at| member("t", Who::Tenant(at))).collect(),
    };
    let mut group = member("both", Who::Group(inside));
    group.terms.bounds = Bounds::below(Some(0.01));
    let plan = Plan {
        kind: Kind::Limit,
        members: vec![group],
    };
    let mut rig = Rig::new(vec![roomy("one"), roomy("two")]);
    for tenant in 0..2 {
        let mut session = rig.to(tenant);
        rig.say(&mut session, "set k0 0 0 2\r\nab\r\n");
    }
    rig.engine.set_policy(Plan::build(&[plan], 2));
    rig.engine.control(rig.now().mono);
    assert_eq!(rig.engine.name_of(2).as_deref(), Some("both"));
    rig
}

/// Asks for both tenants as often as it goes; they use what their group may.
fn assert_limited_together(rig: &mut Rig) {
    let length = Nanos::from_secs(2);
    let end = rig.now().mono + length;
    let before = both_used(rig);
    let mut sessions = [0, 1].map(|tenant| rig.to(tenant));
    while rig.now().mono < end {
        for session in &mut sessions {
            let mut out = Out::new();
            rig.try_once(session, b"get k0\r\n", &mut out);
        }
        rig.clock.advance(Nanos::from_micros(2));
    }
    assert_share(both_used(rig).saturating_sub(before), length, LIMIT);
}

#[test]
fn a_group_is_limited_as_one_and_freed_when_the_policy_changes() {
    let mut rig = both_in_a_group();
    assert_limited_together(&mut rig);
    rig.engine.set_policy(Box::new(Unlimited));
    rig.engine.control(rig.now().mono);
    assert!(rig.engine.groups().groups.is_empty());
    let mut session = rig.to(0);
    for _ in 0..1000 {
        assert!(!is_held(&mut rig, &mut session, "get k0\r\n"));
    }
}

/// Fails at its first step, in the place that it is told to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fails {
    Groups,
    Step,
    Decisions,
}

impl Policy for Fails {
    fn name(&self) -> &'static str {
        "fails"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(10)
    }

    fn groups(&self) -> Groups {
        assert_ne!(*self, Fails::Groups);
        Groups::default()
    }

    fn step(&mut self, _now: Instant, _seen: &[Seen], want: &mut [Want]) {
        want.fill(Want::default());
        assert_ne!(*self, Fails::Step);
    }

    fn take_decisions(&mut self) -> Vec<Decision> {
        assert_ne!(*self, Fails::Decisions);
        Vec::new()
    }
}

/// A tick of a policy that fails.
fn fail(rig: &Rig) {
    let now = rig.now().mono;
    catch_unwind(AssertUnwindSafe(|| rig.engine.control(now))).expect_err("it fails");
}

#[test]
fn a_policy_that_fails_at_once_leaves_all_limits_as_they_were() {
    for fails in [Fails::Groups, Fails::Step, Fails::Decisions] {
        let mut rig = both_in_a_group();
        rig.engine.set_policy(Box::new(fails));
        fail(&rig);
        rig.engine.keep_limits();
        for _ in 0..2 {
            rig.engine.control(rig.now().mono);
            assert_eq!(rig.engine.policy_name(), "limit (kept)");
            assert_eq!(rig.engine.wants().len(), 3);
            assert_limited_together(&mut rig);
        }
    }
}

#[test]
fn a_policy_put_in_charge_while_another_fails_stays_in_charge() {
    let rig = both_in_a_group();
    rig.engine.set_policy(Box::new(Fails::Step));
    fail(&rig);
    // Before the controller comes to look at what failed.
    rig.engine.set_policy(limited());
    rig.engine.keep_limits();
    rig.engine.control(rig.now().mono);
    assert_eq!(rig.engine.policy_name(), "limit");
}

#[test]
fn a_tenant_with_a_burst_uses_what_it_saved_up() {
    let terms = Terms {
        bounds: Bounds::below(Some(0.01)),
        burst: Nanos::from_secs(1),
        ..Terms::default()
    };
    let plan = |terms| {
        Plan::flat(
            Kind::Limit,
            [("one".into(), terms), ("two".into(), Terms::default())],
        )
    };
    let length = Nanos::from_millis(100);
    let used_after_a_rest = |terms: Terms| {
        let mut rig = rig(HoldAction::Delay);
        rig.engine.set_policy(Plan::build(&[plan(terms)], 2));
        rig.engine.control(rig.now().mono);
        rig.wait_s(3);
        greedy(&mut rig, length).as_secs_f64()
    };
    // A hundredth of a second of the device, saved up, and a tenth of that while it goes on.
    let with = used_after_a_rest(terms);
    assert!((0.0105..0.0115).contains(&with), "{with}");
    let without = used_after_a_rest(Terms {
        burst: Nanos::ZERO,
        ..terms
    });
    assert!(without < 0.002, "{without}");
}

fn both_used(rig: &Rig) -> DevicePs {
    let used = rig
        .engine
        .tenants()
        .iter()
        .map(|tenant| tenant.usage().used());
    used.fold(DevicePs::ZERO, |sum, one| sum + one)
}

/// Holds everybody.
struct Pause;

impl Policy for Pause {
    fn name(&self) -> &'static str {
        "pause"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(10)
    }

    fn step(&mut self, _now: Instant, _seen: &[Seen], want: &mut [Want]) {
        want.fill(Want {
            delay: Delay::Infinite,
            ..Want::default()
        });
    }
}

/// Notes what it saw of the first tenant.
struct Watch(Arc<std::sync::Mutex<Vec<Seen>>>);

impl Policy for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }
    fn period(&self) -> Nanos {
        Nanos::from_millis(1)
    }
    fn step(&mut self, _: Instant, seen: &[Seen], _: &mut [Want]) {
        self.0.lock().expect("no panic").push(seen[0].clone());
    }
}

#[test]
fn a_policy_sees_harm_as_device_time_by_latency_price_added_up_over_ticks() {
    let noted = Arc::default();
    let mut rig = Rig::new(vec![roomy("one"), roomy("other")]);
    rig.engine.set_policy(Box::new(Watch(Arc::clone(&noted))));
    let mut session = rig.to(0);
    for key in 0..20 {
        rig.say(&mut session, &format!("set k{key} 0 0 2\r\nab\r\n"));
        rig.say(&mut session, &format!("get k{}\r\n", key / 2));
        rig.engine.control(rig.now().mono);
    }
    let noted = noted.lock().expect("no panic");
    let usage = rig.engine.tenants()[0].usage();
    let harm = usage.read_used.0 + WRITE_LATENCY_PRICE as u64 * usage.write_used.0;
    let last = noted.last().expect("twenty ticks");
    assert_eq!((last.used, last.harm), (usage.used(), DevicePs(harm)));
    assert!(usage.reads >= 20 && usage.writes >= 20, "{usage:?}");
    assert!(noted.windows(2).all(|two| two[0].harm < two[1].harm));
}
