//! Tests of profiles: the file, the checks, the rate card, and both ways of making one.

use super::*;
use crate::{Emulated, TscClock};
use std::sync::{Arc, LazyLock};

fn preset(name: &str) -> Params {
    Params::resolve(name).expect(name)
}

fn simulated(name: &str) -> Profile {
    simulate(&preset(name), Effort::Quick, &mut |_| {})
}

/// The profile that most tests only look at.
fn optane() -> Profile {
    static PROFILE: LazyLock<Profile> = LazyLock::new(|| simulated("optane-2dimm"));
    PROFILE.clone()
}

#[test]
fn a_profile_survives_its_file_and_is_deterministic() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("optane.profile");
    let profile = simulated("optane-2dimm/8");
    profile.save(&path).expect("a file");
    assert_eq!(Profile::load(&path).expect("the file"), profile);
    let again = simulated("optane-2dimm/8");
    assert_eq!((&again.read, &again.write), (&profile.read, &profile.write));
    assert_eq!(again.latency, profile.latency);
}

#[test]
fn a_profile_of_format_1_is_read_and_has_no_latencies() {
    let mut old = optane();
    (old.version, old.latency) = (1, None);
    let text = old.to_toml();
    assert!(!text.contains("latency"), "{text}");
    assert_eq!(Profile::from_toml(&text).as_ref(), Ok(&old));
    let mixed = optane().to_toml().replace("version = 2", "version = 1");
    let error = Profile::from_toml(&mixed).expect_err("format 1 has none");
    assert!(error.contains("format 1 has no latencies"), "{error}");
}

/// Figure 1: a device second of small writes hurts a reader much more than one of reads. At the
/// paper's own point, 61 % of the device in reads against 22 % in writes, they hurt alike, which
/// makes 2.7; at a quarter of the device reads queue less behind reads.
#[test]
fn writes_have_a_higher_latency_price_than_reads() {
    let latency = simulate(&preset("optane-2dimm"), Effort::Normal, &mut |_| {}).latency;
    let latency = latency.expect("simulated");
    let [reads, writes] = [Op::Read, Op::Write].map(|op| latency.probed_prices(op));
    for (at, price) in writes.iter().enumerate() {
        assert!((2.0..3.2).contains(price), "{at}: {price}");
    }
    let of_256_b = writes[1] / reads[1];
    assert!((3.6..4.6).contains(&of_256_b), "{of_256_b}");
    let idle = |op, bytes| latency.idle_ns(op, bytes);
    assert!((idle(Op::Read, 256) - 490.7).abs() < 1.0, "442 + 48.7 ns");
    assert!(
        (idle(Op::Write, 256) - 4.0 * 18.3).abs() < 1.0,
        "4 x 18.3 ns"
    );
}

#[test]
fn a_device_that_serves_reads_and_writes_alike_prices_them_alike() {
    let profile = simulated("ull-ssd");
    let latency = profile.latency().expect("simulated");
    for price in latency.probed_prices(Op::Write) {
        assert!((0.7..1.4).contains(&price), "{price}");
    }
}

#[test]
fn broken_profiles_are_refused_with_path_and_value() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("broken.profile");
    let text = optane().to_toml();
    let first = text.split("max_ops_per_s = [").nth(1).expect("a list");
    let first = &first[..first.find(',').expect("several rates")];
    let cases = [
        (text.replace("version = 2", "version = 9"), "format 9"),
        (
            text.replacen("growth_error_ns = [", "growth_error_ns = [-1.0, ", 1),
            "latency.read.growth_error_ns has 5 values, not 4",
        ),
        (
            text.replacen(first, "0.0", 1),
            "the read rate of 64 B is 0 operations/s",
        ),
        (
            text.replacen(first, "nan", 1),
            "the read rate of 64 B is NaN operations/s",
        ),
        (
            text.replacen(&format!("{first},"), "", 1),
            "read has 63 rates, not 64",
        ),
        (
            text.replace("evidence = \"simulated\"", "evidence = \"hearsay\""),
            "hearsay",
        ),
        (text.replace("effort = ", "zeal = 3\neffort = "), "zeal"),
        ("not TOML at all".to_owned(), "TOML"),
    ];
    for (broken, reason) in cases {
        std::fs::write(&path, broken).expect("a file");
        let error = Profile::load(&path).expect_err(reason).to_string();
        assert!(
            error.contains(reason) && error.contains("broken.profile"),
            "{error}"
        );
    }
    let missing = Profile::load(Path::new("/nonexistent/x.profile")).expect_err("no file");
    assert!(missing.to_string().contains("/nonexistent/x.profile"));
}

#[test]
fn a_profile_knows_its_device() {
    let profile = optane();
    let medium = Mapped::anonymous(1 << 20).expect("memory");
    let same = Identity::of(&medium, Some(&preset("optane-2dimm")));
    assert_eq!(
        profile.check(&same),
        Fit::Fresh,
        "the model decides, not the medium beneath"
    );
    let other = Identity::of(&medium, Some(&preset("cxl")));
    assert!(matches!(profile.check(&other), Fit::Foreign { why } if why.contains("cxl")));
    let none = Identity::of(&medium, None);
    assert!(matches!(profile.check(&none), Fit::Foreign { .. }));
    let mut changed = preset("optane-2dimm");
    changed.media.read_ns *= 2.0;
    let changed = Identity::of_model(&changed);
    assert!(matches!(profile.check(&changed), Fit::Stale { why } if why.contains("parameters")));
}

#[test]
fn a_measured_profile_also_depends_on_medium_and_processor() {
    let medium = Mapped::anonymous(1 << 20).expect("memory");
    let device = Identity::of(&medium, None);
    let mut profile = optane();
    (profile.evidence, profile.device) = (Evidence::Real, device.clone());
    assert_eq!(profile.check(&device), Fit::Fresh);
    let larger = Identity {
        len_bytes: 2 << 20,
        ..device.clone()
    };
    assert!(matches!(profile.check(&larger), Fit::Stale { why } if why.contains("2097152 bytes")));
    let foreign = [
        Identity {
            host_cpu: "another".to_owned(),
            ..device.clone()
        },
        Identity {
            path: Some("/data".to_owned()),
            ..device.clone()
        },
        Identity {
            kind: "file".to_owned(),
            ..device.clone()
        },
        Identity {
            memory_bytes: Some(1 << 19),
            ..device
        },
    ];
    for other in foreign {
        assert!(
            matches!(profile.check(&other), Fit::Foreign { .. }),
            "{other:?}"
        );
    }
}

#[test]
fn the_rate_card_has_one_standard_operation_at_1_kib() {
    let profile = optane();
    let card = profile.rate_card();
    let rate = |bytes| {
        *card
            .rates
            .iter()
            .find(|rate| rate.bytes == bytes)
            .expect("shown")
    };
    assert_eq!(rate(1024).read_std_ops, 1.0);
    assert_eq!(
        rate(64).write_std_ops,
        card.std_ops_per_s / profile.max_ops_per_s(Op::Write)[0]
    );
    assert!(
        rate(4096).write_std_ops > 2.0 * rate(4096).read_std_ops,
        "{card}"
    );
    assert!(card.to_string().contains("simulated"), "{card}");
}

/// The anchors of figure 3: see the event model's tests for the same from the reference.
#[test]
fn the_simulated_optane_has_the_papers_anchors() {
    let profile = optane();
    let rate = |op, bytes: usize| profile.max_ops_per_s(op)[bytes / STEP_BYTES - 1];
    let near = |value: f64, anchor: f64, part: f64| {
        assert!(
            (value / anchor - 1.0).abs() < part,
            "{value} is not near {anchor}"
        );
    };
    near(rate(Op::Read, 4096), 2.94e6, 0.03);
    near(rate(Op::Write, 64), 17.1e6, 0.05);
    near(rate(Op::Write, 256), 17.1e6, 0.05);
    near(rate(Op::Write, 320), 8.9e6, 0.08);
    near(rate(Op::Read, 4096) / rate(Op::Write, 4096), 2.7, 0.08);
}

/// A quick real profile of a small emulated device: bounded, complete, plausible.
#[test]
fn an_emulated_device_can_be_measured_in_real_time() {
    let params = preset("ull-ssd");
    let clock = Arc::new(TscClock::start());
    let medium = Mapped::anonymous(4 << 20).expect("memory");
    medium.pretouch(1);
    let device = Identity::of(&medium, Some(&params));
    let emulated = Emulated::in_real_time(medium, params, clock.clone());
    let mut reports = Vec::new();
    let profile = measure(&emulated, device, &*clock, Effort::Quick, &mut |p| {
        reports.push(p)
    });
    assert_eq!(profile.evidence, Evidence::Emulated);
    assert_eq!(reports.len(), reports[0].points_total);
    let most = 5.0 / 8.5e-6;
    for &rate in profile.max_ops_per_s(Op::Read) {
        assert!(
            rate > 0.0 && rate < most * 1.02,
            "{rate}/s of at most {most}/s"
        );
    }
    if let Some(latency) = profile.latency() {
        let idle_ns = latency.idle_ns(Op::Read, 256);
        // A page takes 8.9 us in the model, and a busy machine can only add to that.
        assert!(idle_ns > 8_800.0, "{idle_ns} ns");
    }
    let text = profile.to_toml();
    assert_eq!(Profile::from_toml(&text).as_ref(), Ok(&profile), "{text}");
}
