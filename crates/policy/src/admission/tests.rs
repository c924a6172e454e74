//! Admission on a device of round figures: each refusal with its message, and what is no refusal.

use super::*;
use crate::plan::Terms;
use crate::sharing::qos;
use crate::sharing::share::Settings;
use nyx_base::Nanos;

/// A read of 1 KiB takes 1 us on the idle device and a thousandth of a millisecond of its time.
fn reads() -> Ask {
    Ask {
        part: 1.0,
        what: "reads of 1024 B".into(),
        price: DevicePs(1_000_000),
        access: Some(Access::Read {
            idle_ns: 1_000.0,
            line_idle_ns: 1_000.0,
            lines: 1,
        }),
    }
}

fn writes() -> Ask {
    Ask {
        part: 1.0,
        what: "writes of 64 B".into(),
        price: DevicePs(2_000_000),
        access: Some(Access::Write { idle_ns: 100.0 }),
    }
}

fn device(tenants: usize) -> Device {
    let known = Known {
        asks: vec![reads()],
        used: None,
    };
    Device {
        basis: Some(Basis {
            standard_growth_ns: 4_000.0,
            measured_share: 0.25,
        }),
        cpu_ns: 500.0,
        tenants: vec![known; tenants],
        typical: vec![reads()],
    }
}

fn used(reads: f64, writes: f64) -> Option<Load> {
    let used = |share: f64, price: f64| Used {
        share,
        harm: share * price,
    };
    Some(Load {
        reads: used(reads, 1.0),
        writes: used(writes, 3.0),
    })
}

fn p99(us: f64) -> Option<Target> {
    Some(Target::Quantile(0.99, Nanos((us * 1e3) as u64)))
}

fn mean(us: f64) -> Option<Target> {
    Some(Target::Mean(Nanos((us * 1e3) as u64)))
}

fn terms(target: Option<Target>, min: f64) -> Terms {
    Terms {
        target,
        bounds: Bounds {
            min: min.max(Bounds::NONE.min),
            max: None,
        },
        ..Terms::default()
    }
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn plan<const N: usize>(kind: Kind, terms: [Terms; N]) -> Plan {
    Plan::flat(kind, NAMES.map(String::from).into_iter().zip(terms))
}

fn qos<const N: usize>(terms: [Terms; N]) -> Plan {
    plan(Kind::Qos(qos::Params::default()), terms)
}

/// The only finding.
fn only(plan: &Plan, device: &Device) -> Finding {
    let [finding] = judge(plan, device).try_into().expect("one promise");
    finding
}

fn refusal(plan: &Plan, device: &Device) -> String {
    let finding = only(plan, device);
    assert!(finding.is_refusal() && !finding.is_doubt(), "{finding}");
    finding.to_string()
}

fn doubt(plan: &Plan, device: &Device) -> String {
    let finding = only(plan, device);
    assert!(finding.is_doubt() && !finding.is_refusal(), "{finding}");
    finding.to_string()
}

fn assert_sound(plan: &Plan, device: &Device) {
    let finding = only(plan, device);
    assert_eq!(finding.verdict, Verdict::Sound, "{finding}");
    assert!(!finding.is_refusal() && !finding.is_doubt());
}

#[test]
fn a_target_below_the_idle_latency_is_refused_with_both() {
    let told = refusal(&qos([terms(mean(1.4), 0.0)]), &device(1));
    assert_eq!(
        told,
        "\"a\": target mean 1.40 us is too tight even alone: reads of 1024 B take 1.00 us on the \
         idle device, and the CPU 0.50 us"
    );
    assert_sound(&qos([terms(mean(1.7), 0.0)]), &device(1));
}

#[test]
fn minima_of_the_best_effort_break_a_target_and_what_they_use_beyond_does_not() {
    let with_min = |min| qos([terms(mean(2.0), 0.0), terms(None, min)]);
    assert_sound(&with_min(0.0), &device(2));
    let told = refusal(&with_min(0.5), &device(2));
    // 0.5 of the device in reads: 4 us per device, less a quarter, and twice for the queue.
    assert_eq!(
        told,
        "\"a\": target mean 2.00 us would be missed: a mean of 4.50 us is predicted (0.50 us of it \
         CPU) beside what cannot be taken from the others (b 50.0 %)"
    );
    let mut busy = device(2);
    busy.tenants[1].used = used(0.0, 0.9);
    assert_sound(&with_min(0.0), &busy);
}

#[test]
fn what_a_minimum_is_used_for_counts() {
    let plan = qos([terms(mean(2.2), 0.0), terms(None, 0.1)]);
    let mut device = device(2);
    assert_sound(&plan, &device);
    // The same tenth of writes, which hurt three times as much: 1 + 0.1 * 12 + 0.5.
    device.tenants[1].used = used(0.0, 0.02);
    let told = refusal(&plan, &device);
    assert!(told.contains("a mean of 2.70 us"), "{told}");
}

#[test]
fn use_of_the_latency_critical_counts_as_measured_and_ones_own_too() {
    let plan = qos([
        terms(mean(2.5), 0.0),
        terms(mean(1000.0), 0.0),
        terms(None, 0.0),
    ]);
    let judged = |device: &Device| judge(&plan, device).swap_remove(0);
    let mut device = device(3);
    assert_eq!(judged(&device).verdict, Verdict::Sound);
    device.tenants[1].used = used(0.4, 0.0);
    let told = judged(&device);
    assert!(
        told.is_refusal() && told.to_string().contains("(b 40.0 %)"),
        "{told}"
    );
    device.tenants[1].used = used(0.0, 0.0);
    device.tenants[0].used = used(0.4, 0.0);
    let told = judged(&device).to_string();
    assert!(
        told.ends_with("(nobody) and 40.0 % of the device of its own"),
        "{told}"
    );
}

#[test]
fn a_tail_is_judged_by_the_p99_and_beyond_it_by_what_it_must_be() {
    let mut device = device(2);
    device.tenants[1].used = used(0.2, 0.0);
    let judged = |quantile, us: f64| {
        let target = Some(Target::Quantile(quantile, Nanos((us * 1e3) as u64)));
        let plan = qos([terms(target, 0.0), terms(mean(1e6), 0.0)]);
        judge(&plan, &device).swap_remove(0)
    };
    // Reads wait for 4000 * 0.75 / 0.8 with probability 0.2: P99 11.2 us later, 12.7 in all.
    let told = judged(0.99, 8.0).to_string();
    assert!(told.contains("a p99 of 12.73 us"), "{told}");
    assert_eq!(judged(0.99, 16.0).verdict, Verdict::Sound);
    assert!(judged(0.999, 8.0).is_refusal(), "longer than the P99");
    assert!(
        judged(0.999, 16.0).is_doubt(),
        "how much longer nobody knows"
    );
    assert_eq!(
        judged(0.9, 16.0).verdict,
        Verdict::Sound,
        "shorter than the P99"
    );
    assert!(judged(0.9, 8.0).is_doubt());
    let told = judged(0.99, 12.5).to_string();
    assert_eq!(
        told,
        "\"a\": target p99 12.50 us may or may not be kept: the p99 is predicted as 12.73 us, \
         which says too little"
    );
}

#[test]
fn of_a_mixture_the_mean_is_weighed_and_the_tail_is_that_of_the_slower() {
    let mut device = device(1);
    let (mut reads, mut writes) = (reads(), writes());
    (reads.part, writes.part) = (0.1, 0.9);
    device.tenants[0].asks = vec![reads, writes];
    // 0.1 * 1000 + 0.9 * 100 + 500 ns.
    assert_sound(&qos([terms(mean(0.8), 0.0)]), &device);
    let told = refusal(&qos([terms(p99(1.4), 0.0)]), &device);
    assert!(told.contains("writes of 64 B take 1.00 us"), "{told}");
    // Of fewer than one in a hundred no P99 takes notice.
    (
        device.tenants[0].asks[0].part,
        device.tenants[0].asks[1].part,
    ) = (0.005, 0.995);
    assert_sound(&qos([terms(p99(1.4), 0.0)]), &device);
}

#[test]
fn near_saturation_and_without_latencies_it_cannot_tell() {
    let plan = qos([terms(mean(100.0), 0.0), terms(None, 0.8)]);
    let told = doubt(&plan, &device(2));
    assert!(told.contains("80 % of the device are in use"), "{told}");
    let mut blind = device(2);
    blind.basis = None;
    let told = doubt(&plan, &blind);
    assert!(
        told.contains("the device's profile has no latencies"),
        "{told}"
    );
}

#[test]
fn accesses_per_second_need_room_beside_the_guarantees() {
    let plan = |ops| qos([terms(Some(Target::OpsPerS(ops)), 0.0), terms(None, 0.6)]);
    assert_sound(&plan(399_000.0), &device(2));
    assert_eq!(
        refusal(&plan(500_000.0), &device(2)),
        "\"a\": target 500000 accesses/s has no room: so many reads of 1024 B take 50.0 % of the \
         device, and 40.0 % are left for it beside what others are guaranteed (b 60.0 %)"
    );
    // Two such promises stand in each other's way, and an upper bound in its own.
    let both = [700_000.0, 400_000.0].map(|ops| terms(Some(Target::OpsPerS(ops)), 0.0));
    let findings = judge(&qos(both), &device(2));
    assert!(findings.iter().all(Finding::is_refusal), "{findings:?}");
    let mut bounded = terms(Some(Target::OpsPerS(500_000.0)), 0.0);
    bounded.bounds.max = Some(0.3);
    let told = refusal(&qos([bounded]), &device(1));
    assert!(
        told.contains("take 50.0 % of the device, and 30.0 % are left"),
        "{told}"
    );
}

#[test]
fn shares_bound_a_slowdown_and_a_latency() {
    let share = |terms: [Terms; 2]| plan(Kind::Share(Settings::default()), terms);
    let mut limited = terms(None, 0.0);
    (limited.weight, limited.slowdown_max) = (1.0, Some(1.5));
    let told = refusal(&share([limited, terms(None, 0.0)]), &device(2));
    assert_eq!(
        told,
        "\"a\": slowdown limit of 1.5 is less than its entitlement gives: with 50.0 % of the \
         device it may get 2.00 times slower"
    );
    limited.weight = 2.0;
    assert_sound(&share([limited, terms(None, 0.0)]), &device(2));
    // The third that the other is entitled to: 1 + 0.33 * 3 / 0.67 + 0.5 us.
    let with = |us| {
        let mut own = terms(mean(us), 0.0);
        own.weight = 2.0;
        share([own, terms(None, 0.0)])
    };
    assert!(refusal(&with(2.0), &device(2)).contains("a mean of 3.00 us"));
    assert_sound(&with(4.0), &device(2));
}

#[test]
fn who_is_outside_of_a_group_counts_and_is_not_throttled_by_its_policy() {
    let inside = qos([terms(mean(2.0), 0.0), terms(None, 0.0)]);
    let group = |weight| Plan {
        kind: Kind::Share(Settings::default()),
        members: vec![
            Member {
                name: "g".into(),
                who: Who::Group(inside.clone()),
                terms: Terms {
                    weight,
                    ..Terms::default()
                },
            },
            Member {
                name: "out".into(),
                who: Who::Tenant(2),
                terms: Terms::default(),
            },
        ],
    };
    let told = refusal(&group(1.0), &device(3));
    assert!(
        told.contains("\"a\"") && told.contains("(out 50.0 %)"),
        "{told}"
    );
    assert_sound(&group(19.0), &device(3));
}

#[test]
fn what_is_inside_of_a_group_is_guaranteed_to_it() {
    let inside = qos([
        terms(Some(Target::OpsPerS(200_000.0)), 0.0),
        terms(None, 0.3),
    ]);
    let outer = Plan {
        kind: Kind::Qos(qos::Params::default()),
        members: vec![
            Member {
                name: "g".into(),
                who: Who::Group(inside),
                terms: Terms::default(),
            },
            Member {
                name: "out".into(),
                who: Who::Tenant(2),
                terms: terms(Some(Target::OpsPerS(600_000.0)), 0.0),
            },
        ],
    };
    let findings = judge(&outer, &device(3));
    let told = findings[1].to_string();
    assert!(
        told.contains("50.0 % are left") && told.contains("(g 50.0 %)"),
        "{told}"
    );
}

#[test]
fn where_no_policy_looks_at_a_promise_nothing_is_judged() {
    for kind in [Kind::None, Kind::Limit] {
        assert_eq!(judge(&plan(kind, [terms(mean(0.1), 0.0)]), &device(1)), []);
    }
}
