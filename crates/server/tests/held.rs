//! A tenant that has had its part waits; whoever shares its worker does not.

mod rig;

use nyx_base::{DevicePs, Instant, Latencies, Nanos};
use nyx_engine::{HoldAction, TenantConfig};
use nyx_policy::baselines::Unlimited;
use nyx_policy::sharing::limit::Leased;
use nyx_policy::{Policy, Seen, Want};
use nyx_server::ServerConfig;
use rig::{Server, config, door, engine, tenant, until};

/// A millionth of the device: one operation a second.
const NEARLY_NOTHING: DevicePs = DevicePs(DevicePs::SECOND.0 / 1_000_000);
/// A thousandth: a thousand operations a second.
const LITTLE: DevicePs = DevicePs(DevicePs::SECOND.0 / 1_000);

fn limit(rate: DevicePs) -> Box<dyn Policy> {
    Box::new(Leased::new(vec![Some(rate), None]))
}

/// Tenant 0 behind door 0 holds `k`; tenant 1 behind door 1 is never limited.
fn server(hold: HoldAction) -> Server {
    let limited = TenantConfig {
        hold,
        ..tenant("limited")
    };
    let engine = engine(vec![limited, tenant("free")], Box::new(Unlimited));
    let server = Server::start(engine, &config(vec![door(0), door(1)])).expect("a server");
    for at in 0..2 {
        server
            .client(at)
            .ask("set k 0 0 3\r\nabc\r\n", "STORED\r\n");
    }
    server
}

/// Puts a policy in charge and waits until it is.
fn govern(server: &Server, policy: Box<dyn Policy>, limited: bool) {
    server.engine.set_policy(policy);
    let budget = server.engine.tenants()[0].budget();
    until("the policy is in force", || budget.is_limited() == limited);
}

const VALUE: &str = "VALUE k 0 3\r\nabc\r\nEND\r\n";

#[test]
fn who_is_not_held_is_served_at_once() {
    let server = server(HoldAction::Delay);
    govern(&server, limit(NEARLY_NOTHING), true);
    let mut held: Vec<_> = (0..50).map(|_| server.client(0)).collect();
    for client in &mut held {
        client.send("get k\r\n");
    }
    let mut free = server.client(1);
    until("they are held", || {
        free.figure("nyx_held_connections") >= 45
    });
    // Far more than the held ones could do in an hour.
    for _ in 0..10_000 {
        free.ask("get k\r\n", VALUE);
    }
    // Within the limited tenant misses are served as well.
    server.client(0).ask("get none\r\n", "END\r\n");
    assert!(free.figure("nyx_held_connections") >= 30);
    govern(&server, Box::new(Unlimited), false);
    for client in &mut held {
        client.expect(VALUE);
    }
    assert_eq!(free.figure("nyx_held_connections"), 0);
}

#[test]
fn a_held_pipeline_longer_than_any_buffer_loses_nothing() {
    let server = server(HoldAction::Delay);
    govern(&server, limit(NEARLY_NOTHING), true);
    // The first requests use up what the tenant has.
    let mut first = server.client(0);
    first.send("get k\r\n".repeat(5));
    let mut free = server.client(1);
    until("it is held", || free.figure("nyx_held_connections") == 1);
    let mut client = server.client(0);
    const N: usize = 20_000;
    let requests = "get k\r\n".repeat(N) + "incomple";
    let sent = requests.len() as u64;
    let before = free.figure("bytes_read");
    client.send(&requests);
    client.half_close();
    until("both are held", || free.figure("nyx_held_connections") == 2);
    // Held input is read no further than a buffer: the client's own socket holds the rest.
    let read = free.figure("bytes_read") - before;
    assert!(read < sent / 2, "{read} B of {sent} B");
    govern(&server, Box::new(Unlimited), false);
    client.expect(VALUE.repeat(N));
    assert_eq!(client.rest(), "");
    first.expect(VALUE.repeat(5));
    first.check();
}

#[test]
fn held_requests_are_answered_in_order_and_once() {
    let server = server(HoldAction::Delay);
    govern(&server, limit(LITTLE), true);
    let mut client = server.client(0);
    let mut want = String::new();
    client.send("set n 0 0 1\r\n0\r\n");
    want.push_str("STORED\r\n");
    for n in 1..=200 {
        client.send("incr n 1\r\nget none k none\r\nmn\r\n");
        want.push_str(&format!("{n}\r\n{VALUE}MN\r\n"));
    }
    client.expect(want);
    let usage = server.engine.tenants()[0].usage();
    assert!(usage.holds > 20, "held {} times", usage.holds);
}

#[test]
fn everybody_who_is_held_has_a_turn() {
    let server = server(HoldAction::Delay);
    govern(&server, limit(LITTLE), true);
    let mut clients: Vec<_> = (0..60).map(|_| server.client(0)).collect();
    for client in &mut clients {
        client.send("get k\r\n".repeat(5000));
    }
    for client in &mut clients {
        client.expect(VALUE.repeat(3));
    }
}

#[test]
fn a_held_client_that_goes_away_is_forgotten() {
    let server = server(HoldAction::Delay);
    govern(&server, limit(NEARLY_NOTHING), true);
    let mut free = server.client(1);
    let mut gone: Vec<_> = (0..20).map(|_| server.client(0)).collect();
    for client in &mut gone {
        client.send("get k\r\n");
    }
    until("they are held", || {
        free.figure("nyx_held_connections") >= 15
    });
    drop(gone);
    govern(&server, Box::new(Unlimited), false);
    until("they are closed", || free.figure("curr_connections") == 1);
    assert_eq!(free.figure("nyx_held_connections"), 0);
    server.client(0).ask("get k\r\n", VALUE);
}

#[test]
fn a_tenant_that_rejects_answers_busy_at_once() {
    let server = server(HoldAction::Reject);
    govern(&server, limit(NEARLY_NOTHING), true);
    let mut client = server.client(0);
    client.send("get k\r\n".repeat(100) + "mn\r\n");
    let mut served = 0;
    let mut answers = String::new();
    while !answers.ends_with("MN\r\n") {
        let mut byte = [0];
        std::io::Read::read_exact(&mut client.0, &mut byte).expect("an answer");
        answers.push(char::from(byte[0]));
        served += usize::from(answers.ends_with(VALUE));
    }
    let busy = answers.matches("SERVER_ERROR 307 busy\r\n").count();
    assert_eq!(served + busy, 100);
    assert!(busy >= 95, "{busy} of 100 were refused");
}

/// Looks at the latencies of tenant 1 alone.
struct Measuring;

impl Policy for Measuring {
    fn name(&self) -> &'static str {
        "measuring"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(10)
    }

    fn measures(&self, tenant: usize) -> bool {
        tenant == 1
    }

    fn step(&mut self, _now: Instant, _seen: &[Seen], _want: &mut [Want]) {}
}

fn latencies(server: &Server, tenant: usize) -> Latencies {
    let mut all = Latencies::default();
    server.engine.tenants()[tenant].add_latencies(&mut all);
    all
}

#[test]
fn where_not_all_latencies_are_recorded_those_are_that_the_policy_looks_at() {
    let engine = engine(vec![tenant("zero"), tenant("one")], Box::new(Measuring));
    let some = ServerConfig {
        record_latencies: false,
        ..config(vec![door(0), door(1)])
    };
    let server = Server::start(engine, &some).expect("a server");
    for at in [0, 1] {
        server.client(at).ask("get k\r\n", "END\r\n");
    }
    // One worker answers both, in this order.
    until("it is counted", || latencies(&server, 1).count() == 1);
    assert_eq!(latencies(&server, 0).count(), 0, "nobody looks");
}

#[test]
fn a_latency_counts_from_when_the_request_came_to_when_it_was_answered() {
    let server = server(HoldAction::Delay);
    let latencies = |tenant: usize| latencies(&server, tenant);
    govern(&server, limit(LITTLE), true);
    let (mut limited, mut free) = (server.client(0), server.client(1));
    for _ in 0..100 {
        free.ask("get k\r\n", VALUE);
    }
    let item = "VALUE k 0 3\r\nabc\r\n";
    let answer = item.repeat(3) + "END\r\nEND\r\nMN\r\n";
    free.ask("get k k k\r\nget none\r\nmn\r\n", answer);
    // A request is recorded after its answer may have been read.
    // The first of each tenant stored the value.
    until("all are counted", || latencies(1).count() == 103);
    // At a thousand a second, of which a burst of ten comes at once.
    limited.send("get k\r\n".repeat(100));
    limited.expect(VALUE.repeat(100));
    until("all are counted", || latencies(0).count() == 101);
    let most = latencies(0).quantile_ns(1.0).expect("there are some");
    assert!(most > 1e6, "the last was held: {most} ns");
}
