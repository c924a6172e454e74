//! Policies and deep devices: a policy of its own divides each, and one that goes by latencies
//! governs both devices of a tenant. All time here is virtual.

mod rig;

use nyx_base::{DevicePs, Instant, Nanos};
use nyx_engine::{DeepShare, Outcome, Policies, Session, TenantConfig};
use nyx_gate::Usage;
use nyx_policy::baselines::Unlimited;
use nyx_policy::mechanism::throttle::Bounds;
use nyx_policy::nhc::Nhc;
use nyx_policy::plan::{Kind, Member, Plan, Terms, Who};
use nyx_policy::sharing::limit::{Epoch, Leased};
use nyx_policy::sharing::share::{Gauge, Settings};
use nyx_policy::{Delay, Policy, Seen, Want};
use nyx_proto::Out;
use rig::{DEEP_OPS_PER_S, Rig, deep};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// Keys that lie on the deep device, and others, which do not.
const KEYS: u32 = 400;
const NEAR: u32 = 20;
/// One per cent of a device.
const LIMIT: DevicePs = DevicePs(DevicePs::SECOND.0 / 100);

/// A tenant nothing of whose values is copied when it is read.
fn tenant(name: &str) -> TenantConfig {
    let tenant = deep(name);
    TenantConfig {
        deep: tenant.deep.map(|share| DeepShare {
            nhc: Nhc::Split(1.0),
            ..share
        }),
        ..tenant
    }
}

fn set(rig: &mut Rig, session: &mut Session, key: &str, len: usize) {
    let value = "x".repeat(len);
    let request = format!("set {key} 0 0 {len} noreply\r\n{value}\r\n");
    rig.ask(session, request.as_bytes());
    rig.land();
}

/// Two tenants, whose first keys have gone deep.
fn two() -> Rig {
    let mut rig = Rig::new(vec![tenant("one"), tenant("other")]);
    for at in 0..2 {
        let mut session = rig.to(at);
        for number in 0..KEYS {
            set(&mut rig, &mut session, &format!("key{number}"), 1000);
        }
        for number in 0..2500 {
            set(&mut rig, &mut session, &format!("filler{number}"), 4000);
        }
        for number in 0..NEAR {
            set(&mut rig, &mut session, &format!("near{number}"), 10);
        }
    }
    rig
}

/// One that reads the keys of a kind in turn, whenever it may.
struct Reader {
    session: Session,
    kind: &'static str,
    keys: u32,
    next: u32,
    out: Out,
}

impl Reader {
    fn of(rig: &Rig, tenant: u16, (kind, keys): (&'static str, u32)) -> Reader {
        Reader {
            session: rig.to(tenant),
            kind,
            keys,
            next: 0,
            out: Out::new(),
        }
    }

    fn deep(rig: &Rig, tenant: u16) -> Reader {
        Reader::of(rig, tenant, ("key", KEYS))
    }

    fn near(rig: &Rig, tenant: u16) -> Reader {
        Reader::of(rig, tenant, ("near", NEAR))
    }

    /// Reads the next key, if it may: else until when it is held.
    fn read(&mut self, rig: &mut Rig) -> Option<Instant> {
        let request = format!("get {}{}\r\n", self.kind, self.next % self.keys);
        loop {
            match rig.try_once(&mut self.session, request.as_bytes(), &mut self.out) {
                Outcome::Away { .. } => rig.land(),
                Outcome::Held { until, .. } => return Some(until),
                Outcome::Done => break,
                other => panic!("{other:?}"),
            }
        }
        let answer = self.out.pending();
        assert!(answer.starts_with(b"VALUE"), "{}", answer.escape_ascii());
        (self.out, self.next) = (Out::new(), self.next + 1);
        None
    }

    /// How many it may read at once, up to `most`.
    fn reads(&mut self, rig: &mut Rig, most: u32) -> u32 {
        let may = (0..most).take_while(|_| self.read(rig).is_none());
        may.count() as u32
    }
}

fn deep_usage(rig: &Rig, tenant: usize) -> Usage {
    let usage = rig.engine.tenants()[tenant].deep_usage();
    usage.expect("it has a deep device")
}

/// Reads for two seconds as fast as it may; the share of the deep device in the second of them.
fn settled_share(rig: &mut Rig, reader: &mut Reader) -> f64 {
    let mut before = deep_usage(rig, 0);
    for ms in 0..2000 {
        if ms == 1000 {
            before = deep_usage(rig, 0);
        }
        reader.read(rig);
        rig.clock.advance(Nanos::from_millis(1));
    }
    share_of_deep(rig, 0, before, Nanos::from_secs(1))
}

fn share_of_deep(rig: &Rig, tenant: usize, before: Usage, time: Nanos) -> f64 {
    let did = deep_usage(rig, tenant) - before;
    did.used().as_secs_f64() / (time.0 as f64 / 1e9)
}

#[test]
fn a_limit_of_a_deep_device_holds_what_goes_there() {
    let mut rig = two();
    rig.engine.set_policy(Policies {
        fast: Box::new(Unlimited),
        deep: vec![Box::new(Leased::new(vec![Some(LIMIT), None]))],
    });
    rig.engine.control(rig.now().mono);
    let (mut held, mut free) = (Reader::deep(&rig, 0), Reader::deep(&rig, 1));
    let share = settled_share(&mut rig, &mut held);
    assert!((0.0098..=0.0101).contains(&share), "{share}");
    assert_eq!(free.reads(&mut rig, 300), 300);
    // What it has on the other device is none of this.
    assert_eq!(Reader::near(&rig, 0).reads(&mut rig, 300), 300);
    rig.engine.set_deep_policies(Vec::new());
    rig.engine.control(rig.now().mono);
    assert_eq!(held.reads(&mut rig, 300), 300);
}

#[test]
fn a_deep_device_is_divided_by_weights_and_what_is_idle_is_lent() {
    let mut rig = two();
    let member = |(tenant, weight): (usize, f64)| Member {
        name: tenant.to_string(),
        who: Who::Tenant(tenant),
        terms: Terms {
            weight,
            bounds: Bounds::NONE,
            ..Terms::default()
        },
    };
    let plan = Plan {
        kind: Kind::Share(Settings {
            gauge: Gauge::Told,
            epoch: Epoch {
                tick: Nanos::from_millis(1),
                ticks: 10,
            },
            ..Settings::default()
        }),
        members: [(0, 3.0), (1, 1.0)].map(member).into(),
    };
    rig.engine.set_policy(Policies {
        fast: Box::new(Unlimited),
        deep: vec![Plan::build(&[plan], 2)],
    });
    let mut readers = [Reader::deep(&rig, 0), Reader::deep(&rig, 1)];
    // Each asks for all of the device; then one of them for nothing.
    let mut shares = |asking: &[usize], time: Nanos| {
        let mut before = [0, 1].map(|tenant| deep_usage(&rig, tenant));
        let access = Nanos((1e9 / DEEP_OPS_PER_S) as u64);
        for step in 0..time.0 / access.0 {
            if step == time.0 / access.0 / 2 {
                before = [0, 1].map(|tenant| deep_usage(&rig, tenant));
            }
            asking.iter().for_each(|&at| {
                readers[at].read(&mut rig);
            });
            rig.clock.advance(access);
            if step % 10 == 0 {
                rig.engine.control(rig.now().mono);
            }
        }
        [0, 1].map(|tenant| share_of_deep(&rig, tenant, before[tenant], Nanos(time.0 / 2)))
    };
    let both = shares(&[0, 1], Nanos::from_millis(400));
    assert!(
        (both[0] - 0.75).abs() < 0.03 && (both[1] - 0.25).abs() < 0.03,
        "{both:?}"
    );
    let one = shares(&[1], Nanos::from_millis(400));
    assert!(one[0] == 0.0 && one[1] > 0.9, "{one:?}");
}

/// Wants the same of the first tenant all the time, of each of its devices or not.
struct Wants {
    want: Want,
    spans: bool,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Wants {
    fn new(want: Want, spans: bool) -> Wants {
        let seen = Arc::default();
        Wants { want, spans, seen }
    }
}

impl Policy for Wants {
    fn name(&self) -> &'static str {
        "wants"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(10)
    }

    fn spans(&self, _tenant: usize) -> bool {
        self.spans
    }

    fn step(&mut self, _: Instant, seen: &[Seen], want: &mut [Want]) {
        want[0] = self.want;
        self.seen.lock().expect("no panic").push(seen[0].clone());
    }
}

fn limited() -> Want {
    Want {
        rate: Some(LIMIT),
        ..Want::default()
    }
}

#[test]
fn who_goes_by_latencies_governs_both_devices_and_nobody_else_does() {
    let mut rig = two();
    let paused = Want {
        delay: Delay::Infinite,
        ..Want::default()
    };
    // Of what a tenant may do, what is more: its reads of 300 from the near device and the deep.
    for (want, spans, near, far) in [
        (limited(), true, false, false),
        (limited(), false, false, true),
        (paused, true, false, false),
        (paused, false, false, true),
        (Want::default(), true, true, true),
    ] {
        rig.engine.set_policy(Box::new(Wants::new(want, spans)));
        rig.clock.advance(Nanos::from_secs(2));
        rig.engine.control(rig.now().mono);
        let may_near = Reader::near(&rig, 0).reads(&mut rig, 20_000) == 20_000;
        let may_far = Reader::deep(&rig, 0).reads(&mut rig, 300) == 300;
        assert_eq!((may_near, may_far), (near, far), "{want:?} {spans}");
        assert_eq!(Reader::deep(&rig, 1).reads(&mut rig, 300), 300);
    }
}

#[test]
fn both_limits_of_a_deep_device_hold() {
    let mut rig = two();
    let half = DevicePs(DevicePs::SECOND.0 / 2);
    let wide = Want {
        rate: Some(half),
        ..Want::default()
    };
    for (latency, own) in [(limited(), half), (wide, LIMIT)] {
        rig.engine.set_policy(Policies {
            fast: Box::new(Wants::new(latency, true)),
            deep: vec![Box::new(Leased::new(vec![Some(own), None]))],
        });
        rig.engine.control(rig.now().mono);
        let reader = &mut Reader::deep(&rig, 0);
        let share = settled_share(&mut rig, reader);
        assert!((0.0098..=0.0101).contains(&share), "{share}");
    }
}

#[test]
fn a_deep_device_tells_its_policy_how_its_reads_fare() {
    let mut rig = two();
    let wants = Wants::new(Want::default(), false);
    let seen = wants.seen.clone();
    rig.engine.set_policy(Policies {
        fast: Box::new(Unlimited),
        deep: vec![Box::new(wants)],
    });
    let (mut own, mut other) = (Reader::deep(&rig, 0), Reader::deep(&rig, 1));
    let mut alone = Vec::new();
    for reads in [0, 100, 100, 0] {
        own.reads(&mut rig, reads);
        // Another's are none of its own.
        other.reads(&mut rig, 10);
        rig.clock.advance(Nanos::from_secs(1));
        rig.engine.control(rig.now().mono);
        let seen = seen.lock().expect("no panic");
        alone.push(seen.last().expect("it was stepped").alone.0);
    }
    let since: Vec<u64> = alone.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(since[0] > 0 && since[1] > 0 && since[2] == 0, "{since:?}");
}

#[test]
fn what_is_seen_of_a_tenant_is_what_it_does_to_both() {
    let mut rig = two();
    let (mut on_near, mut on_deep) = (Reader::near(&rig, 0), Reader::deep(&rig, 0));
    for spans in [false, true] {
        let policy = Wants::new(Want::default(), spans);
        let seen = policy.seen.clone();
        rig.engine.set_policy(Box::new(policy));
        rig.engine.control(rig.now().mono);
        // In turn more of the one and more of the other.
        for (near, far) in [(5, 30), (4000, 10)] {
            let before = (rig.engine.tenants()[0].usage(), deep_usage(&rig, 0));
            on_near.reads(&mut rig, near);
            on_deep.reads(&mut rig, far);
            let near = (rig.engine.tenants()[0].usage() - before.0).used().0;
            let far = (deep_usage(&rig, 0) - before.1).used().0;
            rig.engine.control(rig.now().mono);
            let seen = seen.lock().expect("no panic");
            let (before, now) = (&seen[seen.len() - 2], &seen[seen.len() - 1]);
            let did = (now.used.0 - before.used.0, now.harm.0 - before.harm.0);
            let expected = match spans {
                true => (near.max(far), near + far),
                false => (near, near),
            };
            assert_eq!(did, expected, "{spans}");
            assert!(near > 0 && far > 0);
        }
        let seen = seen.lock().expect("no panic");
        let ops = |at: usize| seen[at].ops - seen[0].ops;
        assert_eq!((ops(1), ops(2)), if spans { (35, 4045) } else { (5, 4005) });
    }
}

/// A policy that panics.
struct Fails;

impl Policy for Fails {
    fn name(&self) -> &'static str {
        "fails"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(10)
    }

    fn step(&mut self, _: Instant, _: &[Seen], _: &mut [Want]) {
        panic!("as it was made to");
    }
}

#[test]
fn of_policies_the_one_that_fails_is_replaced() {
    let mut rig = two();
    let deep_limit = || Box::new(Leased::new(vec![Some(LIMIT), None]));
    rig.engine.set_policy(Policies {
        fast: Box::new(Wants::new(limited(), true)),
        deep: vec![deep_limit()],
    });
    rig.engine.control(rig.now().mono);
    let fail = |rig: &Rig| {
        let now = rig.now().mono;
        catch_unwind(AssertUnwindSafe(|| rig.engine.control(now))).expect_err("it fails");
        rig.engine.keep_limits()
    };
    let holds = |rig: &mut Rig| {
        rig.engine.control(rig.now().mono);
        Reader::deep(rig, 0).reads(rig, 300) < 300
    };
    rig.engine.set_deep_policies(vec![Box::new(Fails)]);
    assert_eq!(fail(&rig), Some("fails"));
    assert_eq!(rig.engine.policy_name(), "wants");
    assert!(holds(&mut rig));
    // The one of both devices: what it wanted of the deep one holds, too.
    rig.engine.set_policy(Policies {
        fast: Box::new(Fails),
        deep: Vec::new(),
    });
    assert_eq!(fail(&rig), Some("fails"));
    assert_eq!(rig.engine.policy_name(), "limit (kept)");
    assert!(holds(&mut rig));
    assert_eq!(rig.engine.keep_limits(), None, "nobody failed");
}

#[test]
fn a_newcomer_is_limited_on_its_deep_device_from_its_first_request() {
    let spare_bytes = 64 << 20;
    let mut rig = Rig::roomy(vec![tenant("one")], Box::new(Unlimited), spare_bytes, 2);
    let newcomer = TenantConfig {
        deep: None,
        ..tenant("other")
    };
    let limits = |limits: Vec<Option<DevicePs>>| Policies {
        fast: Box::new(Unlimited),
        deep: vec![Box::new(Leased::new(limits))],
    };
    let taken_in = rig
        .engine
        .take_in(vec![newcomer], limits(vec![Some(LIMIT), Some(LIMIT)]));
    taken_in.expect("there is room");
    rig.engine.control(rig.now().mono);
    let mut session = rig.to(0);
    for number in 0..KEYS {
        set(&mut rig, &mut session, &format!("key{number}"), 1000);
    }
    let before = deep_usage(&rig, 0);
    for number in 0..3000 {
        set(&mut rig, &mut session, &format!("filler{number}"), 4000);
        rig.clock.advance(Nanos::from_micros(100));
    }
    // Writes are held too: what does not go there is dropped.
    let share = share_of_deep(&rig, 0, before, Nanos::from_millis(300));
    assert!(share < 0.2, "{share}");
}
