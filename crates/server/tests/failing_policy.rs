//! A policy that panics, in the real controller's thread: it is told of and replaced by its last
//! limits, and requests go on. Alone in its file, because it listens to the log of the process.

mod rig;

use nyx_base::{DevicePs, Instant, Nanos};
use nyx_policy::{Delay, Policy, Seen, Want};
use rig::{Server, config, door, engine, tenant, until};
use std::sync::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Errors that were logged, each field as text.
static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Errors;

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        ERRORS.lock().expect("nobody panics").push(text.0);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

const LIMIT: DevicePs = DevicePs(500_000_000_000);

/// Limits the first tenant, then begins an experiment in which it is free and the second pauses,
/// and panics in the middle of it.
struct Fails(u32);

impl Policy for Fails {
    fn name(&self) -> &'static str {
        "fails"
    }

    fn period(&self) -> Nanos {
        Nanos::from_millis(1)
    }

    fn is_probing(&self) -> bool {
        self.0 > 10
    }

    fn step(&mut self, _now: Instant, _seen: &[Seen], want: &mut [Want]) {
        self.0 += 1;
        assert!(self.0 < 15, "the policy had enough");
        want.fill(Want::default());
        if self.is_probing() {
            want[1].delay = Delay::Infinite;
        } else {
            want[0].rate = Some(LIMIT);
        }
    }
}

#[test]
fn a_policy_that_panics_is_replaced_by_its_last_limits_and_requests_go_on() {
    tracing::subscriber::set_global_default(Errors).expect("the first");
    let tenants = vec![tenant("one"), tenant("two")];
    let server = Server::start(
        engine(tenants, Box::new(Fails(0))),
        &config(vec![door(0), door(1)]),
    );
    let server = server.expect("a server");
    let (mut one, mut two) = (server.client(0), server.client(1));
    one.ask("set k 0 0 3\r\nabc\r\n", "STORED\r\n");
    until("the policy is replaced", || {
        server.engine.policy_name() == "limit (kept)"
    });
    let kept = Want {
        rate: Some(LIMIT),
        ..Want::default()
    };
    until("its limits are in force, and no pause", || {
        server.engine.wants() == [kept, Want::default()]
    });
    two.ask("set k 0 0 3\r\nabc\r\n", "STORED\r\n");
    one.ask("get k\r\n", "VALUE k 0 3\r\nabc\r\nEND\r\n");
    let errors = ERRORS.lock().expect("nobody panics").clone();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let told = [
        "fails",
        "the policy had enough",
        "its last limits stay in force",
    ];
    assert!(
        told.iter().all(|told| errors[0].contains(told)),
        "{errors:?}"
    );
    // Whoever asks for another policy gets it.
    server
        .engine
        .set_policy(Box::new(nyx_policy::baselines::Unlimited));
    until("another is in charge", || {
        server.engine.wants() == [Want::default(); 2]
    });
}
