//! A fault by its parts, and a critical page by its place in the cluster.
//!
//! What this module never does: count the program's own time.

use super::{grid, percents};
use crate::evaluation::grid::{Grid, none};
use crate::plot::bars::{Bars, Stand};
use nyx_sim::paging::costs::{Part, Parts};
use nyx_sim::paging::machine::Event;
use nyx_sim::paging::{Costs, Outcome, Service, Setup, Touch, Variant, run};

type Name = &'static str;

/// Table 2's rows: the paper's name, our parts, the paper's range in percent.
const WAY_IN: [(Name, &[Part], Name); 9] = [
    ("swap cache lookup", &[Part::Lookup], "0.5 to 1.5"),
    ("page and swap cache", &[Part::Cache], "11 to 17.5"),
    ("lists", &[Part::Lists], "3.5 to 5.5"),
    ("map", &[Part::Map], "1.5 to 8"),
    ("plug", &[Part::Plug], "2.5 to 14"),
    ("submit", &[Part::Submit], "24 to 40"),
    ("complete", &[Part::Complete], "12.5 to 26"),
    ("device: asleep", &[Part::Device], "12 to 20"),
    ("device: spinning", &[Part::Spin], "-"),
];

/// Table 3's; the device is not waited for, so shares are of the software.
const WAY_OUT: [(Name, &[Part], Name); 7] = [
    ("take page", &[Part::Take], "0.7"),
    ("slot and swap cache", &[Part::Slot], "6.2"),
    ("unmap", &[Part::Unmap], "18.4"),
    ("free", &[Part::Free], "10.6"),
    ("submit", &[Part::WriteSubmit], "31.6"),
    ("complete", &[Part::WriteComplete], "32.6"),
    ("device: spinning", &[Part::WriteSpin], "-"),
];

fn sum(parts: &Parts, of: &[Part]) -> f64 {
    of.iter().map(|&part| parts.get(part)).sum::<u64>() as f64
}

/// All of its processors.
fn both(outcome: &Outcome) -> Parts {
    let mut parts = outcome.programs;
    parts.add_all(&outcome.reclaimer);
    parts
}

/// Linux and Ultraswap, in whole clusters and at random: time per fault, and Linux' shares.
pub(super) fn table_2(shown: [[&Outcome; 2]; 2]) -> Grid {
    let mut grid = grid(&[
        "part",
        "clusters",
        "paper",
        "at random",
        "clusters",
        "at random",
    ]);
    grid.head[1] += ", linux";
    grid.head[3] += ", linux";
    grid.head[4] += ", ultraswap";
    grid.head[5] += ", ultraswap";
    let faults = |outcome: &Outcome| outcome.counts.major_faults as f64;
    let all = |outcome: &Outcome| outcome.programs.sum(Part::is_swap_in) as f64;
    let [clusters, random] = shown;
    let cell = |outcome: &Outcome, ns: f64| {
        let share = ns / all(outcome);
        format!("{:.1} us, {}", ns / faults(outcome) / 1e3, percents(share))
    };
    for (name, parts, paper) in WAY_IN {
        let one = |outcome: &Outcome| cell(outcome, sum(&outcome.programs, parts));
        grid.rows.push(vec![
            name.to_owned(),
            one(clusters[0]),
            paper.to_owned(),
            one(random[0]),
            one(clusters[1]),
            one(random[1]),
        ]);
    }
    let total = |outcome: &Outcome| cell(outcome, all(outcome));
    grid.rows.push(vec![
        "all".to_owned(),
        total(clusters[0]),
        none(),
        total(random[0]),
        total(clusters[1]),
        total(random[1]),
    ]);
    grid
}

/// Linux and Ultraswap: time per page that is written.
pub(super) fn table_3(shown: [&Outcome; 2]) -> Grid {
    let mut grid = grid(&["part", "linux", "paper", "ultraswap"]);
    for (name, parts, paper) in WAY_OUT {
        let one = |outcome: &Outcome| {
            let all = both(outcome);
            let ns = sum(&all, parts);
            let share = ns / all.sum(Part::is_swap_out) as f64;
            let each_us = ns / outcome.counts.writes as f64 / 1e3;
            format!("{each_us:.2} us, {}", percents(share))
        };
        grid.rows.push(vec![
            name.to_owned(),
            one(shown[0]),
            paper.to_owned(),
            one(shown[1]),
        ]);
    }
    grid
}

pub(super) fn parts_in(title: &str, all: &[(Name, &Outcome)]) -> Bars {
    let mut rows: Vec<(Name, &[Part])> = WAY_IN.iter().map(|row| (row.0, row.1)).collect();
    rows.push(("copy", &[Part::Copy]));
    let of = |outcome: &Outcome, parts: &[Part]| {
        sum(&outcome.programs, parts) / outcome.counts.major_faults as f64
    };
    stacked(title, all, &rows, of)
}

pub(super) fn parts_out(title: &str, all: &[(Name, &Outcome)]) -> Bars {
    let rows: Vec<(Name, &[Part])> = WAY_OUT.iter().map(|row| (row.0, row.1)).collect();
    let of = |outcome: &Outcome, parts: &[Part]| {
        sum(&both(outcome), parts) / outcome.counts.writes as f64
    };
    stacked(title, all, &rows, of)
}

fn stacked(
    title: &str,
    all: &[(Name, &Outcome)],
    rows: &[(Name, &[Part])],
    of: impl Fn(&Outcome, &[Part]) -> f64,
) -> Bars {
    let one = |&(name, parts): &(Name, &[Part])| {
        let values = all.iter().map(|(_, outcome)| of(outcome, parts) / 1e3);
        (name.to_owned(), values.collect())
    };
    Bars {
        title: title.to_owned(),
        height: "us".to_owned(),
        places: all.iter().map(|(name, _)| (*name).to_owned()).collect(),
        series: rows.iter().map(one).collect(),
        stand: Stand::Stacked,
    }
}

const CLUSTER: u32 = 8;
const PAGES: u32 = 1_024;

/// Software costs nothing here: what is left is the device and its queues.
pub(super) fn by_place() -> Grid {
    let mut grid = grid(&[
        "place",
        "shared queue",
        "its own",
        "shared queue",
        "its own",
    ]);
    grid.head[1] += ", in order";
    grid.head[2] += ", in order";
    grid.head[3] += ", P4800X";
    grid.head[4] += ", P4800X";
    for place in 0..CLUSTER {
        let cells = [Service::InOrder, Service::Parallel]
            .into_iter()
            .flat_map(|service| {
                [Variant::Linux, Variant::Ultraswap]
                    .map(|variant| latency_us(variant, service, place))
            });
        let mut row = vec![place.to_string()];
        row.extend(cells.map(|us| format!("{us:.1} us")));
        grid.rows.push(row);
    }
    grid
}

/// From the first submission of its cluster until the critical page is done.
fn latency_us(variant: Variant, service: Service, place: u32) -> f64 {
    let touch = |page, is_write, compute_ns| Touch {
        page,
        is_write,
        compute_ns,
    };
    let page = PAGES / 8 + place;
    let mut touches: Vec<Touch> = (0..PAGES).map(|page| touch(page, true, 20_000)).collect();
    touches.extend((0..8 * CLUSTER).map(|page| touch(page, false, 100_000)));
    touches.push(touch(page, false, 1_000_000));
    let setup = Setup {
        costs: Costs::NONE,
        service,
        has_log: true,
        ..Setup::new(variant, PAGES / 4)
    };
    let outcome = run(&setup, PAGES, &[&touches]);
    let first = outcome.log.iter().find_map(|(at, event)| match event {
        Event::Submitted(one) if !one.is_write && one.page / CLUSTER == page / CLUSTER => Some(*at),
        _ => None,
    });
    let done = outcome.log.iter().find_map(|(at, event)| match event {
        Event::Done(one) if one.is_critical && one.page == page => Some(*at),
        _ => None,
    });
    match (first, done) {
        (Some(first), Some(done)) => done.since(first).0 as f64 / 1e3,
        _ => f64::NAN,
    }
}
