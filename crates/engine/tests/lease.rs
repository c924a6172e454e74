//! Device time for accesses that are made elsewhere: what is charged, what is given, what is
//! refused.

mod rig;

use nyx_base::{Clock, DevicePs, Instant, Nanos};
use nyx_engine::{Binding, Session};
use nyx_gate::Usage;
use nyx_policy::Policy;
use nyx_policy::sharing::limit::Leased;
use nyx_proto::response::{self, Parse};
use rig::{DEEP_OPS_PER_S, OPS_PER_S, Rig, deep, roomy};

/// What the rig's device takes for an access up to 4 KiB.
const PRICE_PS: u64 = (1e12 / OPS_PER_S) as u64;
const DEEP_PRICE_PS: u64 = (1e12 / DEEP_OPS_PER_S) as u64;

fn leased(answer: &str) -> nyx_proto::Leased {
    match response::parse(answer.as_bytes()) {
        Parse::Done { response, .. } => {
            response::leased(response.rest).unwrap_or_else(|| panic!("{answer}"))
        }
        other => panic!("{answer}: {other:?}"),
    }
}

/// A tenth of the device for the first tenant.
fn a_tenth() -> Box<dyn Policy> {
    Box::new(Leased::new(vec![Some(DevicePs(DevicePs::SECOND.0 / 10))]))
}

#[test]
fn what_was_made_elsewhere_is_the_tenants() {
    let mut rig = Rig::new(vec![roomy("one"), roomy("two")]);
    let mut session = rig.to(1);
    let answer = rig.say(&mut session, "lease two 1000 3 12288 2 65536\r\n");
    let told = leased(&answer);
    assert_eq!(told.granted_ps, None, "nothing is limited");
    assert_eq!(told.again_us, 10_000);
    assert_eq!(told.read_ps, [PRICE_PS; 2]);
    assert_eq!(told.write_ps, [PRICE_PS; 2]);
    let usage = rig.engine.tenants()[1].usage();
    let want = Usage {
        read_used: DevicePs(3 * PRICE_PS),
        write_used: DevicePs(2 * 8 * PRICE_PS),
        reads: 3,
        read_bytes: 12_288,
        writes: 2,
        written_bytes: 65_536,
        holds: 0,
    };
    assert_eq!(usage, want);
    assert_eq!(rig.engine.tenants()[0].usage(), Usage::default());
    assert_eq!(rig.engine.tenants()[1].counts().cmd_lease, 1);
}

#[test]
fn of_a_tenant_on_two_devices_it_is_the_deep_one() {
    let mut rig = Rig::new(vec![deep("one")]);
    let mut session = rig.to(0);
    let told = leased(&rig.say(&mut session, "lease one 0 5 20480 0 0\r\n"));
    assert_eq!(told.granted_ps, Some(0), "nothing was asked for");
    assert_eq!(told.read_ps, [DEEP_PRICE_PS; 2]);
    let tenant = &rig.engine.tenants()[0];
    assert_eq!(tenant.usage(), Usage::default());
    let deep = tenant.deep_usage().expect("it has one");
    assert_eq!(deep.read_used, DevicePs(5 * DEEP_PRICE_PS));
}

#[test]
fn who_asks_as_he_is_told_gets_the_limit_and_no_more() {
    let mut rig = Rig::under(vec![roomy("one")], a_tenth());
    let mut session = rig.to(0);
    rig.engine.control(Instant(0));
    let (mut granted_ps, mut asked) = (0, 0);
    while rig.clock.now() < Instant(2_000_000_000) {
        let told = leased(&rig.say(&mut session, "lease one 1000000000 0 0 0 0\r\n"));
        let granted = told.granted_ps.expect("there is a limit");
        assert!(granted <= 1_000_000_000);
        granted_ps += granted;
        asked += 1;
        if granted == 0 {
            assert!(told.again_us > 0, "it would ask for ever");
            rig.clock.advance(Nanos(told.again_us * 1_000));
        }
    }
    let share = granted_ps as f64 / 2e12;
    assert!((0.097..=0.1005).contains(&share), "{share} of the device");
    assert!(asked < 4_500, "{asked} requests for 2,000 turns");
}

#[test]
fn what_cannot_be_is_refused_and_charges_nothing() {
    let mut rig = Rig::new(vec![roomy("one"), roomy("two")]);
    let mut session = rig.to(0);
    let usage = "CLIENT_ERROR bad command line format.  Usage: lease <tenant> <want ps> <reads> \
                 <read bytes> <writes> <written bytes>\r\n";
    for (asked, right) in [
        ("lease", usage),
        ("lease one", usage),
        ("lease one 1 2 3 4", usage),
        ("lease one 1 2 3 4 5 6", usage),
        ("lease one -1 0 0 0 0", usage),
        ("lease one 1 2 x 0 0", usage),
        (
            "lease two 1 0 0 0 0",
            "CLIENT_ERROR no tenant two within reach of this connection\r\n",
        ),
        (
            "lease one 1 0 4096 0 0",
            "CLIENT_ERROR 0 reads cannot be of 4096 bytes\r\n",
        ),
        (
            "lease one 1 1 281474976710656 0 0",
            "CLIENT_ERROR 1 reads cannot be of 281474976710656 bytes\r\n",
        ),
        (
            "lease one 1 0 0 7 0",
            "CLIENT_ERROR 7 writes cannot be of 0 bytes\r\n",
        ),
        (
            "lease one 1 4294967297 4294967297 0 0",
            "CLIENT_ERROR 4294967297 reads of 4294967297 bytes are too many at once: 4294967296 of \
             281474976710656 bytes at most\r\n",
        ),
    ] {
        let answer = rig.say(&mut session, &format!("{asked}\r\n"));
        assert_eq!(answer, right, "{asked}");
    }
    for tenant in rig.engine.tenants().iter() {
        assert_eq!(tenant.usage(), Usage::default());
    }
}

#[test]
fn where_several_tenants_share_a_port_each_is_reached_by_its_name() {
    let mut rig = Rig::new(vec![roomy("one"), roomy("two")]);
    let ids: Vec<_> = rig.engine.tenants().iter().map(|it| it.id()).collect();
    let binding = Binding::open(Some(ids[0]), &[("two:", ids[1])]);
    let mut session = Session::new(&binding);
    for (at, name) in ["one", "two"].into_iter().enumerate() {
        rig.say(&mut session, &format!("lease {name} 0 1 4096 0 0\r\n"));
        assert_eq!(rig.engine.tenants()[at].usage().reads, 1, "{name}");
    }
}
