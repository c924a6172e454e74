//! `nyx model`: what two devices give together, by the formulas of Orthus section 2, and what the
//! controllers make of it in virtual time.
//!
//! With `--measure` it runs them on two devices too (`measure.rs`). Figures are formulas,
//! simulated, emulated or real, and say which.
//!
//! What it never does: touch a device without `--measure`.

mod measure;
mod tables;

use crate::cmd::print;
use crate::evaluation::grid::Grid;
use crate::plot::{self, Across, Legend, Line, Mark, Panel, Point, Scale};
use crate::{Exit, Failure};
use nyx_base::{Bytes, Nanos};
use nyx_media::model::block::BlockParams;
use nyx_policy::nhc::{Both, Nhc, Side, formula};
use nyx_sim::pair::{Objects, PairScenario, cost_of, run as simulated};
use std::path::PathBuf;

/// Show what two devices give together: as a cache, split, and with hits read from either.
///
/// Formulas need no more than the rates at which both devices read. --simulate runs the controllers
/// on models of them in virtual time beside that; --measure runs them in real time, on devices,
/// files, or models laid over memory.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx model                                        the paper's Optane SSD before flash
  nyx model --fast nvm --deep optane-ssd --simulate
  nyx model --fast nvme-flash --deep sata-flash --len 4KiB --svg model.svg
  nyx model --fast dram --deep nvm --clients 32 --simulate
  nyx model --measure --fast optane-ssd/10 --deep nvme-flash/10      emulated, in memory
  nyx model --measure --fast /dev/nvme0n1 --deep /dev/sdb --overwrite fast --hits 0.8
  nyx model --measure --fast ./new.bin --fast-model nvm/10 --deep image.raw --tables loads --hits 1

Devices are models of the paper's table: dram, nvm, optane-ssd, nvme-flash, sata-flash; NAME/8 is
one with an eighth of the rates and eight times the latency. FILE.toml is a model of your own: name,
channels, read_latency_ns, write_latency_ns, read_bytes_per_s, write_bytes_per_s, and spread (of
latencies, 0 to 1).

Columns, in GB/s of reads; H is the hit ratio, s the share of the fast device:
  cache, one    B_cache,1: one request at a time; misses are read, then installed
  cache, many   B_cache,many: enough requests to keep both devices busy
  either, many  the most where hits may be read from either device, and at which load_admit
  split, one    B_split,1
  split, many   B_split,many
  simulated     what --clients with one request each get, from a controller (classic,
                shortest-delay, split:s); each asks again at once. Classic answers a miss when
                it is installed, which takes a write of the fast device: so it is worse than
                cache, many where writes are slower than reads. Shortest-delay installs in the
                background, 16 at a time

--measure does the same in real time: figures of files and devices of blocks are *real*, those of
models laid over them (or over memory, where a model alone is named) *emulated*. First it measures
what a request takes of either device, alone and of many; the formulas are of these rates. Then,
each beside its formula, the ratio of both, and the mean and P99 latency:
  over H        classic, one and --parallel at a time, and shortest-delay. Classic caches each miss
                before it is answered, as HFIO does, which takes a write of the fast device: so does
                the formula beside it. The paper's, in which it takes a read, has its own column
  over s        split:s, one and --parallel at a time
  over loads    --controllers; clients keep a pace, which offers so many times what saturates the
                fast device. The ceiling is the formula, or what is offered, if that is less
Hit ratios are forced by addresses: so many reads as that go to what both devices have, the others
behind it. Writes (--reads below 100) are of what no read hits, on either device.

What exists is only read, or else has to be named by --overwrite; without it nothing that would be
written is measured. Files that are made have no name and are gone at the end.")]
pub struct Args {
    /// The fast device: a model; with --measure a file or a device of blocks too.
    #[arg(long, value_name = "MODEL", default_value = "optane-ssd")]
    fast: String,
    /// The deep device: the same.
    #[arg(long, value_name = "MODEL", default_value = "nvme-flash")]
    deep: String,
    /// The size of a request.
    #[arg(long, value_name = "SIZE", default_value = "32KiB")]
    len: Bytes,
    /// Run the controllers in virtual time as well.
    #[arg(long)]
    simulate: bool,
    /// --simulate: so many clients, each with one request at a time.
    #[arg(long, value_name = "N", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    clients: u32,
    /// Draw the tables to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    options: measure::Options,
}

/// The abscissas of both tables, in percent.
const PERCENTS: [u32; 12] = [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 100];
const LEN_MAX: u64 = 1 << 30;

/// Prints the tables, and draws them.
pub fn run(args: Args) -> Result<(), Failure> {
    if args.options.measure {
        let names = [args.fast.as_str(), args.deep.as_str()];
        return measure::run(&args.options, names, args.len, args.svg.as_deref());
    }
    let pair = Pair::of(&args)?;
    let [cached, split] = [pair.cached(), pair.split()];
    let (fast, deep) = (&pair.devices[Side::Fast], &pair.devices[Side::Deep]);
    let how = match args.simulate {
        true => format!("formulas, and simulated with {} clients", args.clients),
        false => "formulas".to_owned(),
    };
    let title = format!(
        "{} before {}, reads of {}: {how}",
        fast.name, deep.name, args.len
    );
    let curves = [&cached, &split].map(|table| table.grid().markdown());
    print(&format!("{title}; GB/s\n\n{}\n{}", curves[0], curves[1]))?;
    let Some(path) = &args.svg else {
        return Ok(());
    };
    let panels = [
        cached.panel("hit ratio"),
        split.panel("share of the fast device"),
    ];
    let svg = plot::draw(&title, &panels, 380)
        .map_err(|why| Failure::new(Exit::Software, format!("cannot draw: {why}")))?;
    std::fs::write(path, svg)
        .map_err(|error| Failure::new(Exit::CantCreate, format!("{}: {error}", path.display())))
}

/// What the tables are made of.
struct Pair {
    devices: Both<BlockParams>,
    len_bytes: u64,
    /// In GB/s: of one request at a time, and of many.
    one: Both<f64>,
    many: Both<f64>,
    /// How many, where that is to be simulated.
    clients: Option<u32>,
}

/// A table: columns by name, each with a value for each of [`PERCENTS`].
struct Table {
    along: &'static str,
    columns: Vec<(String, Vec<f64>)>,
}

impl Pair {
    fn of(args: &Args) -> Result<Pair, Failure> {
        let usage = |message: String| Failure::new(Exit::Usage, message);
        let device = |name: &str, option: &str| {
            BlockParams::resolve(name).map_err(|error| usage(format!("{option}: {error}")))
        };
        let devices = Both([device(&args.fast, "--fast")?, device(&args.deep, "--deep")?]);
        let len_bytes = args.len.0;
        if !(1..=LEN_MAX).contains(&len_bytes) {
            let most = Bytes(LEN_MAX);
            return Err(usage(format!("--len {}: not from 1 to {most}", args.len)));
        }
        let rates = |ns_of: fn(nyx_policy::nhc::Cost) -> f64| {
            Both(Side::ALL.map(|side| {
                let cost = cost_of(&devices[side], nyx_policy::nhc::Kind::Read, len_bytes);
                len_bytes as f64 / ns_of(cost)
            }))
        };
        Ok(Pair {
            one: rates(|cost| cost.alone_ns),
            many: rates(|cost| cost.each_ns),
            clients: args.simulate.then_some(args.clients),
            len_bytes,
            devices,
        })
    }

    /// Over the hit ratio.
    fn cached(&self) -> Table {
        let over = |value: &dyn Fn(f64) -> f64| over_percents(value);
        let mut columns = vec![
            column(
                "cache, one",
                over(&|hits| formula::cache_one(self.one, hits)),
            ),
            column(
                "cache, many",
                over(&|hits| formula::cache_many(self.many, hits)),
            ),
            column(
                "either, many",
                over(&|hits| formula::nhc_many(self.many, hits)),
            ),
            column(
                "load_admit",
                over(&|hits| formula::best_load_admit(self.many, hits)),
            ),
        ];
        if self.clients.is_some() {
            for nhc in [Nhc::Classic, Nhc::ShortestDelay] {
                let simulated = over(&|hits| self.simulated(nhc, hits));
                columns.push(column(&format!("{nhc}, simulated"), simulated));
            }
        }
        Table {
            along: "H",
            columns,
        }
    }

    /// Over the share of the fast device.
    fn split(&self) -> Table {
        let over = |value: &dyn Fn(f64) -> f64| over_percents(value);
        let mut columns = vec![
            column(
                "split, one",
                over(&|split| formula::split_one(self.one, split)),
            ),
            column(
                "split, many",
                over(&|split| formula::split_many(self.many, split)),
            ),
        ];
        if self.clients.is_some() {
            let simulated = over(&|split| self.simulated(Nhc::Split(split), 1.0));
            columns.push(column("split, simulated", simulated));
        }
        Table {
            along: "s",
            columns,
        }
    }

    /// What clients get, in GB/s.
    fn simulated(&self, nhc: Nhc, hits: f64) -> f64 {
        /// Clients never wait for their time to come.
        const AT_ONCE: f64 = 1e6;
        let scenario = PairScenario {
            devices: self.devices.clone(),
            clients: self.clients.unwrap_or(1),
            load: AT_ONCE,
            len_bytes: self.len_bytes,
            writes: 0.0,
            objects: Objects::Drawn { hits },
            installs: measure::installs_of(nhc),
            changes: Vec::new(),
            warm_up: Nanos::from_millis(300),
            length: Nanos::from_millis(200),
            window: Nanos::from_millis(200),
            seed: 1,
        };
        let alone_ns = Both(Side::ALL.map(|side| self.len_bytes as f64 / self.one[side]));
        simulated(&scenario, nhc.controller(alone_ns))
            .total
            .bytes_per_s()
            / 1e9
    }
}

fn over_percents(value: &dyn Fn(f64) -> f64) -> Vec<f64> {
    PERCENTS
        .map(|percent| value(f64::from(percent) / 100.0))
        .into()
}

fn column(name: &str, values: Vec<f64>) -> (String, Vec<f64>) {
    (name.to_owned(), values)
}

impl Table {
    fn grid(&self) -> Grid {
        let names = self.columns.iter().map(|(name, _)| name.clone());
        let row = |(at, percent): (usize, &u32)| {
            let values = self
                .columns
                .iter()
                .map(|(_, values)| format!("{:.2}", values[at]));
            let percent = format!("{:.2}", f64::from(*percent) / 100.0);
            std::iter::once(percent).chain(values).collect()
        };
        Grid {
            head: std::iter::once(self.along.to_owned())
                .chain(names)
                .collect(),
            rows: PERCENTS.iter().enumerate().map(row).collect(),
        }
    }

    /// Bandwidths only.
    fn panel(&self, along: &str) -> Panel {
        let bandwidths = self.columns.iter().filter(|(name, _)| name != "load_admit");
        let line = |(name, values): &(String, Vec<f64>)| Line {
            name: name.clone(),
            points: (PERCENTS.iter().zip(values))
                .map(|(percent, &y)| Point {
                    x: f64::from(*percent) / 100.0,
                    y,
                    mark: Mark::Dot,
                })
                .collect(),
        };
        Panel {
            title: "GB/s".to_owned(),
            along: along.to_owned(),
            across: Across::Numbers(1.0),
            scale: Scale::Linear,
            written: plot::number,
            lines: bandwidths.map(line).collect(),
            levels: Vec::new(),
            legend: Legend::Left,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use nyx_policy::nhc::formula::{Mix, Rates, installs_many};

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(fast: &str, deep: &str) -> Args {
        let words = ["model", "--simulate", "--fast", fast, "--deep", deep];
        Line::try_parse_from(words).expect("a command line").args
    }

    fn values<'t>(table: &'t Table, name: &str) -> &'t [f64] {
        let found = table.columns.iter().find(|(column, _)| column == name);
        &found.expect("a column").1
    }

    #[test]
    fn what_is_simulated_is_what_the_formulas_say() {
        let pair = Pair::of(&args("optane-ssd", "nvme-flash")).expect("known");
        let near = |found: &[f64], expected: &[f64]| {
            for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
                let ratio = found / expected;
                assert!(
                    (0.97..1.03).contains(&ratio),
                    "{}: {found} of {expected}",
                    PERCENTS[at]
                );
            }
        };
        let split = pair.split();
        near(
            values(&split, "split, simulated"),
            values(&split, "split, many"),
        );
        let cached = pair.cached();
        let either = values(&cached, "either, many");
        near(values(&cached, "shortest-delay, simulated"), either);
        let rates = |is_write| {
            Both(Side::ALL.map(|side| pair.devices[side].per_second(is_write, 32 << 10)))
        };
        let rates = Rates {
            reads: rates(false),
            writes: rates(true),
        };
        let installs = over_percents(&|hits| {
            let mix = Mix { hits, writes: 0.0 };
            installs_many(&rates, mix) * f64::from(32 << 10) / 1e9
        });
        near(values(&cached, "classic, simulated"), &installs);
        // Below that, misses that are installed take more of the SSD than reads do.
        assert!((either[11] / values(&cached, "cache, many")[11] - 2.2).abs() < 0.01);
    }

    #[test]
    fn a_wrong_device_and_a_wrong_size_are_told() {
        let refused = |args: Args| Pair::of(&args).err().expect("refused").message;
        let device = refused(args("tape", "dram"));
        assert!(
            device.contains("--fast") && device.contains("sata-flash"),
            "{device}"
        );
        let size = refused(Args {
            len: Bytes(0),
            ..args("dram", "nvm")
        });
        assert!(size.contains("--len"), "{size}");
    }
}
