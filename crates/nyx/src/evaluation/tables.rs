//! Tables 3 to 8: latencies of one thread, at random and at sequential addresses, and beside DRAM.
//! What was published has columns of its own.
//!
//! What it never does: print a published value where nothing was measured beside it.

use super::grid::{Grid, gb_per_s, latency, none, ratio, size, time};
use super::{Evaluation, Named};
use nyx_media::evaluate::paper::{self, Latencies};
use nyx_media::evaluate::{Flow, Order, Reading, Sheet, Work};

/// Tables of small accesses end here, and tables of large ones begin here.
const SMALL_BYTES_MOST: usize = 1 << 10;

/// A table of the paper.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its number and title.
    pub title: String,
    /// Its rows.
    pub grid: Grid,
}

/// Tables 3 to 8.
pub fn all(evaluation: &Evaluation) -> Vec<Table> {
    let small = |bytes: usize| bytes <= SMALL_BYTES_MOST;
    let large = |bytes: usize| bytes >= SMALL_BYTES_MOST;
    let (reads, writes) = (Work::ReadChained, Work::Write);
    let orders =
        |number: u32, title: &str, work, published: &[Latencies], kept: fn(usize) -> bool| {
            let rows: Vec<&Latencies> = published.iter().filter(|row| kept(row.bytes)).collect();
            Table {
                title: format!("Table {number}: {title}, one thread"),
                grid: by_order(evaluation, work, &rows),
            }
        };
    vec![
        orders(3, "small reads by order", reads, &paper::READS, small),
        orders(4, "large reads by order", reads, &paper::READS, large),
        orders(5, "small writes by order", writes, &paper::WRITES, small),
        orders(6, "large writes by order", writes, &paper::WRITES, large),
        beside_dram(evaluation, 7, "random reads beside DRAM", reads),
        beside_dram(evaluation, 8, "random writes beside DRAM", writes),
    ]
}

/// What one thread read.
fn reading(sheet: &Sheet, work: Work, order: Order, bytes: usize) -> Option<&Reading> {
    let flow = Flow {
        work,
        order,
        bytes,
        threads: 1,
    };
    sheet.get(flow, None)
}

/// Two latencies and their ratio, or dashes.
fn pair(one: Option<&Reading>, other: Option<&Reading>) -> [String; 3] {
    let told = |reading: Option<&Reading>| reading.map_or_else(none, latency);
    let by = match (one, other) {
        (Some(one), Some(other)) => ratio(one.latency_ns / other.latency_ns),
        _ => none(),
    };
    [told(one), told(other), by]
}

fn by_order(evaluation: &Evaluation, work: Work, published: &[&Latencies]) -> Grid {
    let sheets = evaluation.device_sheets();
    let columns = |named: &Named<'_>| {
        let of = named.column();
        [
            format!("random ({of})"),
            format!("sequential ({of})"),
            format!("ratio ({of})"),
        ]
    };
    let mut head = vec!["size".to_owned()];
    head.extend(sheets.iter().flat_map(columns));
    head.extend(["random (paper)", "sequential (paper)", "ratio (paper)"].map(str::to_owned));
    let row = |row: &&Latencies| {
        let mut cells = vec![size(row.bytes)];
        for named in &sheets {
            let of = |order| reading(named.sheet, work, order, row.bytes);
            cells.extend(pair(of(Order::Random), of(Order::Sequential)));
        }
        cells.extend([time(row.random_ns), time(row.sequential_ns)]);
        cells.push(ratio(row.random_ns / row.sequential_ns));
        cells
    };
    Grid {
        head,
        rows: published.iter().map(row).collect(),
    }
}

fn beside_dram(evaluation: &Evaluation, number: u32, title: &str, work: Work) -> Table {
    let device = evaluation.device_sheets()[0];
    let dram = evaluation.dram_sheet();
    let published = match work {
        Work::Write => &paper::WRITES,
        _ => &paper::READS,
    };
    let row = |(own, &(bytes, dram_read_ns, dram_write_ns)): (&Latencies, &(usize, f64, f64))| {
        let of = |named: Named<'_>| reading(named.sheet, work, Order::Random, bytes).copied();
        let dram_ns = match work {
            Work::Write => dram_write_ns,
            _ => dram_read_ns,
        };
        let mut cells = vec![size(bytes)];
        cells.extend(pair(of(device).as_ref(), of(dram).as_ref()));
        cells.extend([time(own.random_ns), time(dram_ns)]);
        cells.push(ratio(own.random_ns / dram_ns));
        cells
    };
    let head = [
        "size".to_owned(),
        device.column(),
        dram.column(),
        "ratio".to_owned(),
        "AEP (paper)".to_owned(),
        "DRAM (paper)".to_owned(),
        "ratio (paper)".to_owned(),
    ];
    Table {
        title: format!("Table {number}: {title}, one thread"),
        grid: Grid {
            head: head.to_vec(),
            rows: published
                .iter()
                .zip(&paper::DRAM_RANDOM_NS)
                .map(row)
                .collect(),
        },
    }
}

/// Section 2.2.3: the most that each of them reads and writes, at which size and with how many
/// threads, in whatever order.
pub fn most(evaluation: &Evaluation) -> Grid {
    let both = |rates: [f64; 2]| rates.map(|rate| rate.to_string()).join(" and ");
    let published = |name: &str| match name {
        "device" => format!("{} (one AEP module)", both(paper::MODULE_GB_PER_S)),
        "DRAM" => format!("more than {}", paper::DRAM_GB_PER_S_LEAST),
        "disk" => both(paper::SSD_GB_PER_S),
        _ => none(),
    };
    let row = |named: &Named<'_>| {
        let mut cells = vec![named.column()];
        for is_read in [true, false] {
            let of = named.sheet.readings.iter();
            let of = of.filter(|one| {
                one.beside.is_none()
                    && is_read == matches!(one.flow.work, Work::Read)
                    && one.flow.work != Work::ReadChained
            });
            let best = of.max_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s));
            cells.push(best.map_or_else(none, |one| gb_per_s(one.bytes_per_s)));
            cells.push(best.map_or_else(none, |one| {
                let fenced = match one.flow.work {
                    Work::WriteFenced => ", fenced",
                    _ => "",
                };
                let order = match one.flow.order {
                    Order::Random => "random",
                    Order::Sequential => "sequential",
                };
                let (bytes, threads) = (size(one.flow.bytes), one.flow.threads);
                format!(
                    "{order} {bytes}{fenced}, {}",
                    super::figures::threads(threads)
                )
            }));
        }
        cells.push(published(named.name));
        cells
    };
    let head = [
        "",
        "reads, GB/s",
        "at",
        "writes, GB/s",
        "at",
        "reads and writes in the paper, GB/s",
    ];
    Grid {
        head: head.map(str::to_owned).to_vec(),
        rows: evaluation.sheets().iter().map(row).collect(),
    }
}
