//! A scripted server for tests: what it would tell at whole seconds. One critical tenant misses its
//! target, one best-effort tenant is throttled for it, one is limited and has a journal, one is
//! idle.
//!
//! What it never does: change with the machine or the clock.

use super::sample::{Decision, Sample, Tenant};

/// The reading at second `s`, at least 1.
pub(crate) fn sample(s: u64) -> Sample {
    Sample {
        now_s: s as f64,
        pid: 4242,
        version: "1.6.18-nyx-0.1.0".into(),
        uptime_s: s + 3600,
        cpu_s: 1.5 * s as f64,
        connections: 66,
        policy: "qos".into(),
        tenants: vec![web(s), batch(s), feed(s), idle()],
        decisions: decisions(s),
    }
}

fn tenant(name: &str, per_s: &[(&str, f64)], s: u64, fields: &[(&str, &str)]) -> Tenant {
    let mut tenant = Tenant::new(name);
    tenant.set("device", "main");
    tenant.set("evidence", "emulated");
    for (key, per_s) in per_s {
        tenant.set(key, per_s * s as f64);
    }
    for (key, value) in fields {
        tenant.set(key, value);
    }
    tenant
}

fn latencies(tenant: &mut Tenant, per_s: &[(u64, u32)], s: u64) {
    for &(ns, n) in per_s {
        let counter = nyx_base::LatencyCounter::default();
        counter.add(nyx_base::Nanos(ns), n * s as u32);
        counter.add_to(&mut tenant.latencies);
    }
}

fn web(s: u64) -> Tenant {
    let per_s = [
        ("get_hits", 9_000.0),
        ("get_misses", 1_000.0),
        ("device_seconds", 0.125),
        ("holds", 0.0),
    ];
    let fields = [
        ("items", "250000"),
        ("used_bytes", "47185920"),
        ("size_bytes", "67108864"),
        ("target", "mean 15.00 us"),
        ("target_had", "19.00 us"),
        ("slack", "-0.2667"),
        ("hurt_by", "batch=0.380 feed=0.020"),
        ("held_connections", "0"),
    ];
    let mut tenant = tenant("web", &per_s, s, &fields);
    latencies(
        &mut tenant,
        &[(12_000, 9_800), (190_000, 190), (400_000, 10)],
        s,
    );
    tenant
}

fn batch(s: u64) -> Tenant {
    let per_s = [
        ("device_seconds", 0.5),
        ("holds", 1_234.0),
        ("evictions", 300.0),
    ];
    let fields = [
        ("items", "1000000"),
        ("used_bytes", "268435456"),
        ("size_bytes", "268435456"),
        ("limit_device_share", "0.5000"),
        ("throttle_device_share", "0.5000"),
        ("best_effort", "yes"),
        ("held_connections", "31"),
    ];
    let mut tenant = tenant("batch", &per_s, s, &fields);
    latencies(&mut tenant, &[(1_500_000, 49_000), (6_000_000, 1_000)], s);
    tenant
}

fn feed(s: u64) -> Tenant {
    let per_s = [
        ("get_hits", 70.0),
        ("device_seconds", 0.22),
        ("holds", 12.0),
        ("journal_syncs", 10.0),
    ];
    let fields = [
        ("items", "512"),
        ("used_bytes", "1048576"),
        ("size_bytes", "67108864"),
        ("limit_device_share", "0.2200"),
        ("promised_device_share", "0.2200"),
        ("durability", "crash"),
        ("sync", "100ms"),
        ("journal_bytes", "8388608"),
        ("journal_unsynced_bytes", "5120"),
        ("best_effort", "yes"),
        ("held_connections", "2"),
    ];
    let mut tenant = tenant("feed", &per_s, s, &fields);
    latencies(&mut tenant, &[(2_500_000, 70)], s);
    tenant
}

fn idle() -> Tenant {
    let fields = [
        ("items", "0"),
        ("size_bytes", "67108864"),
        ("best_effort", "yes"),
    ];
    tenant("idle", &[], 0, &fields)
}

fn decisions(s: u64) -> Vec<Decision> {
    let decision = |ago_s: f64, tenant: &str, act: &str, why: &str| Decision {
        at_s: s as f64 - ago_s,
        tenant: tenant.into(),
        act: act.into(),
        why: Some(why.into()),
    };
    vec![
        decision(
            90.0,
            "feed",
            "relaxed without a limit",
            "the tightest target has 45 % slack",
        ),
        decision(
            0.5,
            "batch",
            "throttled from 78.0 to 50.0 %",
            "web has a mean of 19.00 us, over its target of 15.00 us; throttling batch helped by \
             38 %, feed by 2 %",
        ),
    ]
}
