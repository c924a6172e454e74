//! Tenants that a running engine takes in: they serve on workers that were there before, by their
//! own terms, and nobody else notices; one that has no place changes nothing.

mod rig;

use nyx_base::{Bytes, DevicePs, Instant, Nanos, Rng, TenantId, UnixSeconds, WorkerId};
use nyx_engine::stats::Surroundings;
use nyx_engine::{
    Binding, Engine, EngineConfig, EngineError, OpenDoor, Outcome, Prefixes, Session, TenantConfig,
};
use nyx_gate::{CostTable, Device};
use nyx_media::Mapped;
use nyx_policy::Policy;
use nyx_policy::baselines::Unlimited;
use nyx_policy::mechanism::throttle::Bounds;
use nyx_policy::plan::{Kind, Member, Plan, Terms, Who};
use nyx_policy::sharing::limit::Leased;
use nyx_proto::{Out, Parse, parse};
use rig::{HandClock, OPS_PER_S, Rig, roomy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Release};

const MIB: u64 = 1 << 20;

fn small(name: &str) -> TenantConfig {
    TenantConfig {
        size: Bytes(4 * MIB),
        ..roomy(name)
    }
}

fn limits(shares: &[Option<f64>]) -> Box<dyn Policy> {
    let limits = shares.iter().map(|share| {
        let ps = |share: f64| DevicePs((share * 1e12) as u64);
        share.map(ps)
    });
    Box::new(Leased::new(limits.collect()))
}

/// A door that leads to the first tenant, and the door itself, to lead it elsewhere.
fn door() -> (Binding, Arc<OpenDoor>) {
    let door = Arc::new(OpenDoor::new(to_all(1)));
    (Binding::Open(door.clone()), door)
}

/// The first tenant by default and each other by `tN:`.
fn to_all(tenants: u16) -> Prefixes {
    let prefixes = (1..tenants).map(|at| (format!("t{at}:"), TenantId(at)));
    Prefixes::new(Some(TenantId(0)), &prefixes.collect::<Vec<_>>())
}

fn stats(engine: &Engine, session: &Session, arg: &str) -> String {
    let mut out = Out::new();
    let around = Surroundings::default();
    engine.stats(session, arg.as_bytes(), &around, &mut out);
    String::from_utf8(out.pending().to_vec()).expect("figures are text")
}

/// Everything of an engine that a refusal must leave alone.
fn state(rig: &Rig, session: &Session) -> (usize, String, String, usize) {
    let engine = &rig.engine;
    (
        engine.tenants().len(),
        stats(engine, session, "tenants"),
        stats(engine, session, "policy"),
        engine.wants().len(),
    )
}

#[test]
fn a_newcomer_serves_on_a_worker_and_a_connection_that_were_there_before() {
    let mut rig = Rig::roomy(vec![small("old")], Box::new(Unlimited), 4 * MIB, 2);
    let (binding, door) = door();
    let mut session = Session::new(&binding);
    for key in ["a", "t1:a"] {
        let set = format!("set {key} 0 0 3\r\nold\r\n");
        assert_eq!(rig.say(&mut session, &set), "STORED\r\n");
    }
    rig.engine
        .take_in(vec![small("new")], Box::new(Unlimited))
        .expect("there is room");
    assert_eq!(rig.engine.tenants().len(), 2);
    assert_eq!(rig.engine.tenants()[1].name(), "new");
    door.replace(to_all(2));
    assert!(session.follow());
    // From now on the key is the newcomer's, which does not have it.
    assert_eq!(rig.say(&mut session, "get t1:a\r\n"), "END\r\n");
    let set = "set t1:a 0 0 3\r\nnew\r\n";
    assert_eq!(rig.say(&mut session, set), "STORED\r\n");
    let both = "VALUE a 0 3\r\nold\r\nVALUE t1:a 0 3\r\nnew\r\nEND\r\n";
    assert_eq!(rig.say(&mut session, "get a t1:a\r\n"), both);
    rig.engine.control(rig.now().mono);
    let told = stats(&rig.engine, &session, "tenants");
    for line in [
        "STAT old:items 2\r\n",
        "STAT new:items 1\r\n",
        "STAT new:get_misses 1\r\n",
    ] {
        assert!(told.contains(line), "{line:?} is missing in {told}");
    }
}

#[test]
fn a_worker_that_never_asked_for_a_newcomer_keeps_house_for_it_too() {
    let mut rig = Rig::roomy(vec![small("old")], Box::new(Unlimited), 4 * MIB, 2);
    let taken_in = rig.engine.take_in(vec![small("new")], Box::new(Unlimited));
    taken_in.expect("there is room");
    rig.worker.enter();
    let now = rig.now();
    while rig.engine.maintain(&mut rig.worker, now) {}
    rig.worker.leave();
    let set = "set k 0 0 1\r\nx\r\n";
    let mut session = rig.to(1);
    assert_eq!(rig.say(&mut session, set), "STORED\r\n");
}

/// Values fill the newcomer's range and the resident's, and none is where another one's is.
#[test]
fn a_newcomers_range_is_its_own() {
    let mut rig = Rig::roomy(vec![small("old")], Box::new(Unlimited), 6 * MIB, 3);
    let newcomers = vec![small("one"), small("two")];
    let taken_in = rig.engine.take_in(newcomers, Box::new(Unlimited));
    taken_in.expect("there is room");
    let value = |tenant: u16, key: u32| format!("{tenant}-{key}-").repeat(100);
    for key in 0..3_000 {
        for tenant in 0..3 {
            let value = value(tenant, key);
            let set = format!("set k{key} 0 0 {}\r\n{value}\r\n", value.len());
            assert_eq!(rig.say(&mut rig.to(tenant), &set), "STORED\r\n");
        }
    }
    let mut found = [0; 3];
    for key in 0..3_000 {
        for tenant in 0..3 {
            let got = rig.say(&mut rig.to(tenant), &format!("get k{key}\r\n"));
            if got != "END\r\n" {
                assert!(got.contains(&value(tenant, key)), "{tenant} {key}: {got}");
                found[usize::from(tenant)] += 1;
            }
        }
    }
    assert!(found.iter().all(|found| *found > 1_000), "{found:?}");
}

#[test]
fn a_newcomers_limit_holds_from_its_first_request() {
    let mut rig = Rig::roomy(vec![small("old")], limits(&[None]), 4 * MIB, 2);
    rig.wait_s(5);
    let taken_in = rig
        .engine
        .take_in(vec![small("new")], limits(&[None, Some(0.1)]));
    taken_in.expect("there is room");
    rig.engine.control(rig.now().mono);
    let mut session = rig.to(1);
    let begin = rig.now().mono;
    let mut out = Out::new();
    let set = b"set k 0 0 2\r\nab\r\n";
    while rig.try_once(&mut session, set, &mut out) != Outcome::Done {
        rig.clock.advance(Nanos::from_micros(10));
    }
    let mut gets = 0;
    while rig.now().mono < begin + Nanos::from_secs(1) {
        match rig.try_once(&mut session, b"get k\r\n", &mut out) {
            Outcome::Done => gets += 1,
            Outcome::Held { until, .. } => {
                let wait = until.since(rig.now().mono);
                rig.clock.advance(wait);
            }
            other => panic!("{other:?}"),
        }
        out.consume(out.len());
    }
    let share = f64::from(gets) / OPS_PER_S;
    assert!((0.0995..0.1005).contains(&share), "{share}");
    let used = rig.engine.tenants()[1].usage();
    assert!(used.holds > 0 && rig.engine.tenants()[0].usage().holds == 0);
}

#[test]
fn who_has_no_place_is_refused_and_everything_stays_as_it_was() {
    // Beside the rig's own 2 MiB.
    let mut rig = Rig::roomy(vec![small("old")], limits(&[Some(0.2)]), 6 * MIB, 3);
    let (binding, door) = door();
    let mut session = Session::new(&binding);
    rig.wait_s(1);
    rig.say(&mut session, "set a 0 0 3\r\nold\r\n");
    rig.engine.control(rig.now().mono);
    let before = state(&rig, &session);
    let refused = |rig: &Rig, newcomers: Vec<TenantConfig>| {
        let refused = rig.engine.take_in(newcomers, Box::new(Unlimited));
        rig.engine.control(rig.now().mono);
        refused.expect_err("there is no place").to_string()
    };
    let large = TenantConfig {
        size: Bytes(9 * MIB),
        ..roomy("large")
    };
    let said = refused(&rig, vec![large.clone()]);
    assert_eq!(
        said,
        "device \"memory\" has 12 MiB; tenant \"large\" needs 9 MiB and only 8 MiB are left"
    );
    // The second has no place: there is no first one either, and what it took is given back.
    let said = refused(&rig, vec![small("first"), small("second"), small("third")]);
    assert_eq!(said, "there is room for 3 tenants, and 4 are wanted");
    let said = refused(&rig, vec![small("first"), large]);
    assert!(
        said.contains("\"large\" needs 9 MiB and only 4 MiB are left"),
        "{said}"
    );
    let tiny = TenantConfig {
        size: Bytes(64 << 10),
        ..roomy("tiny")
    };
    let said = refused(&rig, vec![tiny]);
    assert!(
        said.starts_with("tenant \"tiny\": 65536 B are too few"),
        "{said}"
    );
    let elsewhere = TenantConfig {
        device: 1,
        ..small("elsewhere")
    };
    let said = refused(&rig, vec![elsewhere]);
    assert_eq!(said, "tenant \"elsewhere\" names device 1, but there are 1");
    assert_eq!(state(&rig, &session), before);
    rig.wait_s(1);
    let answer = rig.say(&mut session, "get a\r\n");
    assert_eq!(answer, "VALUE a 0 3\r\nold\r\nEND\r\n");
    // All of the space is there for who fits.
    let newcomers = vec![small("one"), small("two")];
    let taken_in = rig
        .engine
        .take_in(newcomers, limits(&[Some(0.2), None, None]));
    taken_in.expect("there is room");
    door.replace(to_all(3));
    assert!(session.follow());
    assert_eq!(
        rig.say(&mut session, "set t2:a 0 0 1\r\nx\r\n"),
        "STORED\r\n"
    );
    let said = refused(&rig, vec![small("more")]);
    assert_eq!(said, "there is room for 3 tenants, and 4 are wanted");
    assert!(matches!(
        rig.engine.take_in(vec![small("more")], Box::new(Unlimited)),
        Err(EngineError::TooMany { wanted: 4, most: 3 })
    ));
}

/// Each may use 30 % of the device: a group of the first tenant, and each of the others.
fn grouped(tenants: usize) -> Box<dyn Policy> {
    let member = |name: String, who: Who, most: Option<f64>| {
        let terms = Terms {
            bounds: Bounds::below(most),
            ..Terms::default()
        };
        Member { name, who, terms }
    };
    let inside = Plan {
        kind: Kind::None,
        members: vec![member("t0".into(), Who::Tenant(0), None)],
    };
    let others = (1..tenants).map(|at| member(format!("t{at}"), Who::Tenant(at), Some(0.3)));
    let group = member("group".into(), Who::Group(inside), Some(0.3));
    let plan = Plan {
        kind: Kind::Limit,
        members: others.chain([group]).collect(),
    };
    Plan::build(&[plan], tenants)
}

#[test]
fn a_group_moves_up_behind_the_newcomer() {
    let rig = Rig::roomy(vec![small("zero")], grouped(1), 4 * MIB, 2);
    let name = |subject| rig.engine.name_of(subject);
    let rates = || {
        let wants = rig.engine.wants();
        wants.iter().map(|want| want.rate).collect::<Vec<_>>()
    };
    let limit = Some(DevicePs(300_000_000_000));
    assert_eq!(name(1).as_deref(), Some("group"));
    assert_eq!(rates(), [None, limit]);
    let taken_in = rig.engine.take_in(vec![small("one")], grouped(2));
    taken_in.expect("there is room");
    // Before the new policy has stepped and after it.
    for newcomer in [None, limit] {
        assert_eq!(rates(), [None, newcomer, limit]);
        assert_eq!(name(0).as_deref(), Some("zero"));
        assert_eq!(name(1).as_deref(), Some("one"));
        assert_eq!(name(2).as_deref(), Some("group"));
        assert_eq!(name(3), None);
        rig.engine.control(Instant(1_000_000));
    }
    assert_eq!(rig.engine.groups().of_tenant, [Some(0), None]);
    // What was in force for the group was not taken for what is for the newcomer.
    let share = rig.engine.tenants()[1].budget().sustained().share();
    assert!((share - 0.3).abs() < 1e-9, "{share}");
}

/// Fails in its first step.
struct Fails;

impl Policy for Fails {
    fn name(&self) -> &'static str {
        "fails"
    }
    fn period(&self) -> Nanos {
        Nanos::from_millis(1)
    }
    fn step(&mut self, _: Instant, seen: &[nyx_policy::Seen], want: &mut [nyx_policy::Want]) {
        assert_eq!((seen.len(), want.len()), (2, 2));
        panic!("the first step");
    }
}

#[test]
fn a_policy_that_fails_in_its_first_step_leaves_the_residents_limits_in_force() {
    let rig = Rig::roomy(vec![small("old")], limits(&[Some(0.2)]), 4 * MIB, 2);
    rig.engine.control(Instant(1));
    let taken_in = rig.engine.take_in(vec![small("new")], Box::new(Fails));
    taken_in.expect("there is room");
    let step = || rig.engine.control(Instant(2));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(step)).expect_err("it fails");
    assert_eq!(rig.engine.keep_limits(), Some("fails"));
    rig.engine.control(Instant(3));
    let share = |at: usize| rig.engine.tenants()[at].budget().sustained().share();
    assert!((share(0) - 0.2).abs() < 1e-9);
    assert!(!rig.engine.tenants()[1].budget().is_limited());
}

const WORKERS: u16 = 4;
const NEWCOMERS: u16 = 40;

/// Requests for another worker's key and for one's own, and what their answers must be.
fn asks(key: &str, other: &str, value: &str) -> [(String, Option<String>); 5] {
    let len = value.len();
    let block = format!("VALUE {key} 0 {len}\r\n{value}\r\n");
    [
        (format!("get {other}\r\n"), None),
        (format!("get {other} {other}\r\n"), None),
        (
            format!("set {key} 0 0 {len}\r\n{value}\r\n"),
            Some("STORED\r\n".into()),
        ),
        (format!("get {key}\r\n"), Some(format!("{block}END\r\n"))),
        (
            format!("get {key} {key}\r\n"),
            Some(format!("{block}{block}END\r\n")),
        ),
    ]
}

/// What one worker does while tenants come: it looks for another worker's key, and sets and gets
/// its own, in tenants that its connection reaches; gives how often it did so in each.
fn drive(engine: &Engine, binding: &Binding, worker: u16, stop: &AtomicBool) -> Vec<u64> {
    let clock = Arc::new(HandClock::default());
    let mut hands = engine.worker(WorkerId(worker), clock);
    let mut session = Session::new(binding);
    let mut limits = engine.limits(&session);
    let mut rng = Rng::with_seed(u64::from(worker));
    let mut done = vec![0; usize::from(NEWCOMERS) + 1];
    let now = nyx_base::Now {
        mono: Instant(1),
        unix: UnixSeconds(rig::START_S),
    };
    let mut out = Out::new();
    let mut last = false;
    loop {
        let stopping = stop.load(Acquire);
        if session.follow() {
            limits = engine.limits(&session);
        }
        let reach = session.tenants().len();
        // Once all are there, each of them.
        let tenants: Vec<usize> = match stopping {
            true => (0..reach).collect(),
            false => vec![rng.usize(..reach), reach - 1],
        };
        for tenant in tenants {
            let key = |worker: u16| match tenant {
                0 => format!("w{worker}"),
                _ => format!("t{tenant}:w{worker}"),
            };
            let other = key((worker + 1) % WORKERS);
            let key = key(worker);
            assert_eq!(
                session.tenant_of(key.as_bytes()),
                Some(TenantId(tenant as u16))
            );
            let value = format!("{key}-{}", rng.u32(..));
            for (request, want) in asks(&key, &other, &value) {
                let Parse::Done { command, .. } = parse(request.as_bytes(), &limits) else {
                    panic!("{request} is whole");
                };
                hands.enter();
                let mut bound = engine.request(&session, command);
                engine.warm_item(&mut bound);
                engine.warm_value(&mut hands, &bound);
                let outcome = engine.execute(&mut hands, &mut session, &bound, now, &mut out);
                assert_eq!(outcome, Outcome::Done);
                let got = String::from_utf8_lossy(out.pending()).into_owned();
                assert!(want.is_none_or(|want| got == want), "{request}: {got}");
                out.consume(out.len());
                hands.leave();
            }
            done[tenant] += 1;
        }
        hands.enter();
        engine.maintain(&mut hands, now);
        hands.leave();
        if std::mem::replace(&mut last, stopping) {
            return done;
        }
    }
}

/// Several workers serve all the while, and open each newcomer at the same time as the others.
#[test]
fn many_newcomers_under_load_of_several_workers() {
    let room = usize::from(NEWCOMERS) + 1;
    let device = Device {
        name: "memory".into(),
        media: Arc::new(Mapped::anonymous(room as u64 * 4 * MIB).expect("memory")),
        cost: CostTable::from_max_iops(&[OPS_PER_S; _], &[OPS_PER_S; _]),
    };
    let engine = Engine::new(EngineConfig {
        devices: vec![Arc::new(device)],
        deep_devices: Vec::new(),
        tenants: vec![small("zero")],
        tenants_max: room,
        policy: Box::new(Unlimited).into(),
        workers: WORKERS,
        hash_seed: 7,
    });
    let engine = engine.expect("an engine");
    let (binding, door) = door();
    let (stop, ticks) = (AtomicBool::new(false), AtomicUsize::new(0));
    let done = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                scope.spawn({
                    let (engine, binding, stop) = (&engine, &binding, &stop);
                    move || drive(engine, binding, worker, stop)
                })
            })
            .collect();
        scope.spawn(|| {
            let mut now = Instant(1);
            while !stop.load(Acquire) {
                now = now + engine.control(now).min(Nanos::from_millis(1));
                assert!(engine.wants().len() <= room);
                ticks.fetch_add(1, Release);
            }
        });
        for tenant in 1..=NEWCOMERS {
            let newcomer = small(&format!("t{tenant}"));
            let taken_in = engine.take_in(vec![newcomer], Box::new(Unlimited));
            taken_in.expect("there is room");
            door.replace(to_all(tenant + 1));
            // Somebody has asked the newcomer for something before the next one comes.
            let came = || engine.tenants()[usize::from(tenant)].counts().cmd_set > 0;
            while !came() {
                std::thread::yield_now();
            }
        }
        stop.store(true, Release);
        let join = |worker: std::thread::ScopedJoinHandle<'_, Vec<u64>>| {
            worker.join().expect("nobody lost anything")
        };
        workers.into_iter().map(join).collect::<Vec<_>>()
    });
    for (worker, done) in done.iter().enumerate() {
        assert!(done.iter().all(|n| *n > 0), "{worker}: {done:?}");
    }
    for tenant in engine.tenants().iter() {
        let at = tenant.id().index();
        let all: u64 = done.iter().map(|by| by[at]).sum();
        let counts = tenant.counts();
        assert_eq!((counts.cmd_set, counts.cmd_get), (all, 6 * all), "{at}");
        assert!(counts.get_hits >= 3 * all, "{at}");
    }
    assert!(ticks.load(Acquire) > 0);
}
