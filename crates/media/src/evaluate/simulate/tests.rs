//! The modelled `optane-2dimm` beside the published tables. The preset claims the bandwidth of a
//! module, its unit of 256 bytes and how reads and writes disturb each other; its latencies are
//! fitted to another paper's (NyxCache, table 2), and here stands by how much they differ.

use super::*;
use crate::emulate::tests::Virtual;
use crate::evaluate::{Plan, measure, paper};
use crate::profile::Effort;
use crate::{Emulated, Mapped};
use std::sync::Arc;

fn flow(work: Work, bytes: usize, threads: usize) -> Flow {
    Flow {
        work,
        order: Order::Random,
        bytes,
        threads,
    }
}

/// One flow alone on the device.
fn alone(flow: Flow) -> Reading {
    let params = Params::resolve("optane-2dimm").expect("a preset");
    read_point(&params, Point { flow, beside: None })[0]
}

/// What it reads and writes at most, in gigabytes a second, `bytes` at a time.
fn most(work: Work, bytes: usize) -> f64 {
    let rates = [1, 4, 8, 16].map(|threads| alone(flow(work, bytes, threads)).bytes_per_s);
    rates.into_iter().fold(0.0, f64::max) / 1e9
}

fn assert_within(value: f64, range: std::ops::Range<f64>, what: &str) {
    assert!(
        range.contains(&value),
        "{what}: {value} is not in {range:?}"
    );
}

/// Figures 3 and 4: a module reads some 7 GB/s and writes some 2 GB/s. The preset has two.
#[test]
fn a_modelled_module_moves_what_the_papers_does() {
    for (work, published) in [Work::Read, Work::Write]
        .into_iter()
        .zip(paper::MODULE_GB_PER_S)
    {
        let module = most(work, 256) / 2.0;
        assert_within(module / published, 0.85..1.15, &format!("{work:?}"));
    }
}

/// Figures 3 and 4: at random addresses 256 bytes are enough for the most, and less is moved in
/// proportion to the size.
#[test]
fn the_unit_is_256_bytes() {
    for work in [Work::Read, Work::Write] {
        let [of_64, of_256, of_4096] = [64, 256, 4096].map(|bytes| most(work, bytes));
        assert_within(of_64 / of_256, 0.22..0.28, "a quarter of a unit");
        assert_within(of_256 / of_4096, 0.90..1.25, "a whole unit");
    }
}

/// Tables 3 and 4: below a unit reads take what a unit takes, and from 512 bytes on order does not
/// matter.
#[test]
fn small_reads_take_what_a_unit_takes_and_large_ones_ask_for_no_order() {
    let read = |bytes| alone(flow(Work::ReadChained, bytes, 1)).latency_ns;
    let unit = read(256);
    for row in &paper::READS[..5] {
        assert_within(read(row.bytes) / unit, 0.99..1.01, "a small read");
        assert_within(
            row.random_ns / paper::READS[5].random_ns,
            0.8..1.01,
            "the paper's",
        );
    }
    for row in &paper::READS[6..10] {
        let sequential = Flow {
            order: Order::Sequential,
            ..flow(Work::ReadChained, row.bytes, 1)
        };
        let ratio = read(row.bytes) / alone(sequential).latency_ns;
        assert_within(ratio, 0.97..1.05, "random by sequential");
        assert_within(row.random_ns / row.sequential_ns, 0.97..1.05, "the paper's");
    }
}

/// Figure 10: 16 threads make small reads some 2 times as slow, and large ones in proportion to
/// what the device can no longer serve at once.
#[test]
fn threads_slow_small_reads_little_and_large_ones_in_proportion() {
    let slower = |bytes, from, to| {
        let read = |threads| alone(flow(Work::Read, bytes, threads)).latency_ns;
        read(to) / read(from)
    };
    assert_within(slower(256, 1, 16), 1.5..2.6, "256 bytes");
    assert_within(slower(64 << 10, 8, 16), 1.9..2.1, "64 KiB, twice as many");
}

/// Figures 11 to 14: the first writer costs readers much, the following ones little, and both wait
/// about a microsecond.
#[test]
fn readers_beside_writers_lose_at_once_and_then_keep_a_floor() {
    let params = Params::resolve("optane-2dimm").expect("a preset");
    let beside = |writers| {
        let point = Point {
            flow: Flow::mixed(Work::ReadChained, 4),
            beside: Some(Flow::mixed(Work::Write, writers)),
        };
        read_point(&params, point)
    };
    let without = alone(Flow::mixed(Work::ReadChained, 4));
    let [one, eight] = [1, 8].map(beside);
    assert_within(
        one[0].bytes_per_s / without.bytes_per_s,
        0.4..0.75,
        "a writer",
    );
    assert_within(
        eight[0].bytes_per_s / one[0].bytes_per_s,
        0.85..1.01,
        "seven more",
    );
    for reading in &eight {
        assert_within(reading.latency_ns, 400.0..1500.0, "about a microsecond");
    }
}

/// What the preset does not claim, by how much it differs. Its reads were fitted to measurements of
/// another machine, and it lets a writer go on when its stores are buffered, where the paper waits
/// for a fence; nor does it know the caches that make large reads slow.
#[test]
fn the_latencies_are_of_another_paper() {
    let by_paper =
        |work, row: &paper::Latencies| alone(flow(work, row.bytes, 1)).latency_ns / row.random_ns;
    let reads = |at: usize| by_paper(Work::ReadChained, &paper::READS[at]);
    let writes = |at: usize| by_paper(Work::Write, &paper::WRITES[at]);
    assert_within(reads(3), 2.3..2.6, "reading 64 B");
    assert_within(reads(5), 1.9..2.2, "reading 256 B");
    assert_within(reads(8), 0.45..0.6, "reading 4 KiB");
    assert_within(reads(12), 0.15..0.25, "reading 1 MiB");
    assert_within(writes(0), 0.05..0.15, "writing 8 B");
    assert_within(writes(5), 0.25..0.45, "writing 256 B");
    assert_within(writes(8), 0.5..0.7, "writing 4 KiB");
    assert_within(writes(12), 0.5..0.7, "writing 1 MiB");
}

/// One thread on the model that runs in real time takes what it takes on the event model: the
/// emulated columns of a report can be read beside the simulated ones.
#[test]
fn the_emulated_device_takes_what_the_simulated_one_does() {
    let clock = Arc::new(Virtual::default());
    let params = Params::resolve("optane-2dimm").expect("a preset");
    let medium = Mapped::anonymous(4 << 20).expect("memory");
    let device = Emulated::in_virtual_time(medium, params, clock.clone());
    let points: Vec<Point> = [Work::ReadChained, Work::Write]
        .into_iter()
        .flat_map(|work| [64, 256, 1 << 10, 4 << 10].map(|bytes| flow(work, bytes, 1)))
        .map(|flow| Point { flow, beside: None })
        .collect();
    let plan = Plan::of(Effort::Quick, 1);
    let sheet = measure(&device, &*clock, &plan, &points, &mut |_| {}).expect("memory");
    for emulated in &sheet.readings {
        let ratio = emulated.latency_ns / alone(emulated.flow).latency_ns;
        assert_within(ratio, 0.85..1.10, &format!("{:?}", emulated.flow));
    }
}

#[test]
fn a_reading_of_the_model_is_always_the_same() {
    let params = Params::resolve("cxl").expect("a preset");
    let point = Point {
        flow: Flow::mixed(Work::Read, 2),
        beside: Some(Flow::mixed(Work::Write, 3)),
    };
    let [first, second] = [0, 1].map(|_| read_point(&params, point));
    assert_eq!(first, second);
    assert_eq!(first[1].beside, Some(point.flow));
}
