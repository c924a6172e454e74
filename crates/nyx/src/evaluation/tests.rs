//! Tests of the report: fixed readings make known tables, figures and words.

use super::figures::FIGURES;
use super::report::report;
use super::*;
use nyx_media::Evidence;
use nyx_media::evaluate::{Flow, Part, Point, Reading, Work, paper};
use nyx_media::profile::Effort;

/// Readings whose latency says what they are of: `bytes` + 1000 for writes + 0.5 in sequence, times
/// the threads, times `factor`; bandwidth 1 GB/s per thread.
fn sheet(evidence: Evidence, plan: &Plan, part: Part, factor: f64) -> Sheet {
    let reading = |flow: Flow, beside| {
        let is_write = matches!(flow.work, Work::Write | Work::WriteFenced);
        let order = match flow.order {
            nyx_media::evaluate::Order::Random => 0.0,
            nyx_media::evaluate::Order::Sequential => 0.5,
        };
        let base = flow.bytes as f64 + if is_write { 1000.0 } else { 0.0 } + order;
        Reading {
            flow,
            beside,
            latency_ns: base * flow.threads as f64 * factor,
            bytes_per_s: 1e9 * flow.threads as f64,
            spread: 0.0,
            rounds: 9,
            is_quiet: true,
        }
    };
    let both = |point: Point| {
        let own = reading(point.flow, point.beside);
        let other = point.beside.map(|beside| reading(beside, Some(point.flow)));
        std::iter::once(own).chain(other)
    };
    Sheet {
        evidence,
        readings: plan.points(part).into_iter().flat_map(both).collect(),
    }
}

/// An emulated device with its model, on a machine with two processors.
fn evaluation() -> Evaluation {
    let plan = Plan::of(Effort::Quick, 4);
    Evaluation {
        version: VERSION,
        name: "optane-2dimm over anon memory".into(),
        made_unix_s: 1_795_305_600,
        device: Identity {
            kind: "anon".into(),
            path: None,
            len_bytes: 1 << 30,
            memory_bytes: None,
            model: Some("optane-2dimm".into()),
            model_hash: None,
            host_cpu: "a processor".into(),
        },
        machine: Machine {
            cpus: 2,
            cache_bytes: Some(32 << 20),
            memory_bytes: 8 << 30,
            kernel: "Linux 6.1".into(),
            load: 0.25,
        },
        loop_ns: 3.5,
        own: sheet(Evidence::Emulated, &plan, Part::Whole, 2.0),
        model: Some(sheet(Evidence::Simulated, &plan, Part::Model, 1.0)),
        dram: sheet(Evidence::Real, &plan, Part::Memory, 0.5),
        dram_bytes: 1 << 30,
        disk: Beside {
            name: "ext4 on /dev/sda".into(),
            sheet: Some(sheet(Evidence::Real, &plan, Part::Disk, 1.0)),
            skipped: None,
        },
        plan,
    }
}

/// The cells of the row of a table that begins with `first`.
fn row(grid: &grid::Grid, first: &str) -> Vec<String> {
    let found = grid.rows.iter().find(|row| row[0] == first);
    found.unwrap_or_else(|| panic!("no row {first:?}")).clone()
}

#[test]
fn tables_3_to_6_have_order_evidence_and_what_was_published_apart() {
    let tables = tables::all(&evaluation());
    let head = [
        "size",
        "random (device, emulated)",
        "sequential (device, emulated)",
        "ratio (device, emulated)",
        "random (model, simulated)",
        "sequential (model, simulated)",
        "ratio (model, simulated)",
        "random (paper)",
        "sequential (paper)",
        "ratio (paper)",
    ];
    for table in &tables[..4] {
        assert_eq!(table.grid.head, head, "{}", table.title);
        assert_eq!(table.grid.rows.len(), 8, "{}", table.title);
    }
    let reads = [
        "64 B", "128 ns", "129 ns", "0.99", "64.0 ns", "64.5 ns", "0.99", "201 ns", "101 ns",
        "1.99",
    ];
    assert_eq!(row(&tables[0].grid, "64 B"), reads);
    let writes = [
        "16 KiB", "34.8 us", "34.8 us", "1.00", "17.4 us", "17.4 us", "1.00", "8.00 us", "8.09 us",
        "0.99",
    ];
    assert_eq!(row(&tables[3].grid, "16 KiB"), writes);
}

#[test]
fn tables_7_and_8_divide_the_device_by_dram() {
    let tables = tables::all(&evaluation());
    let read = [
        "256 B", "512 ns", "128 ns", "4.00", "241 ns", "57.0 ns", "4.23",
    ];
    assert_eq!(row(&tables[4].grid, "256 B"), read);
    let write = [
        "256 B", "2.51 us", "628 ns", "4.00", "218 ns", "200 ns", "1.09",
    ];
    assert_eq!(row(&tables[5].grid, "256 B"), write);
    assert_eq!(tables[4].grid.rows.len(), paper::DRAM_RANDOM_NS.len());
}

#[test]
fn the_most_says_at_which_size_and_with_how_many_threads() {
    let mut evaluation = evaluation();
    let fastest = evaluation.own.readings.iter_mut().find(|one| {
        one.flow.work == Work::WriteFenced && one.flow.bytes == 4096 && one.flow.threads == 2
    });
    fastest.expect("it is there").bytes_per_s = 9e9;
    let most = tables::most(&evaluation);
    let device = row(&most, "device, emulated");
    assert_eq!(device[3..5], ["9.00", "random 4 KiB, fenced, 2 threads"]);
    assert_eq!(row(&most, "disk, real")[5], "0.87 and 0.68");
    assert_eq!(most.rows.len(), 4);
}

#[test]
fn figures_have_a_panel_for_each_sheet_and_mark_too_many_threads() {
    let evaluation = evaluation();
    let grids = |number: usize| FIGURES[number - 1].grids(&evaluation);
    let names = |number| -> Vec<String> { grids(number).into_iter().map(|one| one.0).collect() };
    let all = [
        "device, emulated",
        "model, simulated",
        "DRAM, real",
        "disk, real",
    ];
    assert_eq!(names(1), all);
    assert_eq!(names(5), ["device, emulated"], "nobody else has fences");
    assert_eq!(names(11), all[..2], "nobody else was mixed");
    let (_, device) = &grids(1)[0];
    assert_eq!(
        device.head,
        ["size of an access", "1 thread", "2 threads", "4 threads*"]
    );
    assert_eq!(row(device, "256 B")[1..], ["512 ns", "1.02 us", "2.05 us"]);
    let (_, model) = &grids(1)[1];
    assert_eq!(
        model.head[3], "4 threads",
        "it has as many processors as threads"
    );
    let (_, disk) = &grids(1)[3];
    assert_eq!(disk.rows[0][0], "4 KiB", "no rows without a value");
    let (_, by_threads) = &grids(10)[3];
    assert_eq!(by_threads.head, ["threads", "4 KiB", "64 KiB", "1 MiB"]);
}

#[test]
fn mixtures_begin_with_nobody_beside() {
    let evaluation = evaluation();
    let grids = |number: usize| FIGURES[number - 1].grids(&evaluation);
    let (_, readers) = &grids(11)[0];
    assert_eq!(
        readers.head,
        ["writers beside", "1 reader", "2 readers", "4 readers*"]
    );
    let places: Vec<&str> = readers.rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(places, ["0", "1", "2*", "4*"]);
    assert_eq!(row(readers, "0")[1..], ["1.00", "2.00", "4.00"]);
    let (_, writers) = &grids(14)[0];
    assert_eq!(row(writers, "1")[1..], ["2.51 us", "5.02 us", "10.0 us"]);
}

#[test]
fn every_figure_is_drawn_with_its_title_lines_and_evidence() {
    let evaluation = evaluation();
    for figure in &FIGURES {
        let svg = figure.svg(&evaluation).expect("drawn");
        let grids = figure.grids(&evaluation);
        for (name, grid) in &grids {
            assert!(svg.contains(name.as_str()), "{}: no {name}", figure.title());
            for line in &grid.head[1..] {
                assert!(svg.contains(line.as_str()), "{}: no {line}", figure.title());
            }
        }
        let values = grids.iter().flat_map(|one| &one.1.rows);
        let values = values.flat_map(|row| &row[1..]).filter(|cell| *cell != "-");
        assert_eq!(svg.matches("<circle").count(), values.count());
        assert!(svg.contains(&figure.title()));
    }
}

#[test]
fn noise_is_marked_and_counted() {
    let mut evaluation = evaluation();
    evaluation.own.readings[0].spread = 0.11;
    evaluation.own.readings[1].is_quiet = false;
    let (_, device) = &FIGURES[0].grids(&evaluation)[0];
    assert_eq!(row(device, "8 B")[1..], ["16.0 ns~", "32.0 ns~", "64.0 ns"]);
    let all = evaluation.own.readings.len();
    let told = format!("2 of {all} (device, emulated)");
    let text = report(&evaluation, false);
    assert!(text.contains(&told), "{text}");
}

#[test]
fn the_report_names_device_day_machine_method_and_what_was_skipped() {
    let mut evaluation = evaluation();
    let text = report(&evaluation, true);
    let words = [
        "# Device evaluation: optane-2dimm over anon memory",
        "**Emulated**: real time, modelled device. 2026-11-22.",
        "2 processors (a processor), largest cache 32 MiB, 8 GiB of memory, Linux 6.1; load 0.25",
        "Disk beside it (real): ext4 on /dev/sda",
        "more threads than the 2 processors",
        "wyrand",
        "prefetcher",
        "takes 3.50 ns of",
        "![Figure 14: latency of writers beside readers, 256 B](fig14.svg)",
        "The paper: it settles around 1 us.",
    ];
    for word in words {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    assert!(!text.contains("never reach the memory"), "1 GiB is enough");
    evaluation.disk = Beside {
        name: "none".into(),
        sheet: None,
        skipped: Some("no direct access".into()),
    };
    evaluation.dram_bytes = 32 << 20;
    let text = report(&evaluation, false);
    for word in [
        "No disk beside it: no direct access.",
        "never reach the memory",
    ] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    assert!(!text.contains("!["), "pictures are beside the file only");
}

/// Every reading is in the JSON, with its kind.
#[test]
fn the_json_has_all_readings_and_their_kinds() {
    let evaluation = evaluation();
    let value = serde_json::to_value(&evaluation).expect("JSON");
    let count = |of: &str| value[of]["readings"].as_array().map(Vec::len);
    assert_eq!(count("own"), Some(evaluation.own.readings.len()));
    assert_eq!(count("dram"), Some(evaluation.dram.readings.len()));
    assert_eq!(value["model"]["evidence"], "simulated");
    let first = &value["own"]["readings"][0];
    assert_eq!(first["flow"]["work"], "read-chained");
    assert_eq!(first["latency_ns"], 16.0);
}
