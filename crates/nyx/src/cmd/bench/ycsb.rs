//! `nyx bench --ycsb`: YCSB's core workloads instead of a mix and a popularity.
//!
//! What it never does: take an option that has no meaning here and ignore it.

use super::{Args, Load, One, deliver};
use crate::cmd::print;
use crate::load::plan::{Plan, Ycsb};
use crate::load::report;
use crate::load::run::Frame;
use crate::load::ycsb::report::Report;
use crate::load::ycsb::{self, KEY_LEN, USER};
use crate::{Exit, Failure};
use nyx_sim::workload::ycsb::{ALPHA, Core, cores};
use nyx_sim::workload::{Lengths, Popularity};
use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

/// Connections where none are asked for: the clients of Orthus-KV's evaluation.
pub(super) const CLIENTS: u64 = 32;
/// The length of a value in bytes: YCSB's ten fields of 100 B.
const VALUE_LEN: u32 = 1000;

/// Which of YCSB's workloads.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "YCSB")]
pub(super) struct Options {
    /// Play core workloads of YCSB: A,B,C or A..F or all.
    ///
    /// Stores all records (--keys, 1000000), then plays the workloads one after the other, each for
    /// --warm-up and --duration (or --ops) with 32 clients (--connections).
    ///
    /// A: 50 % read, 50 % update. B: 95 % read, 5 % update. C: read alone. D: 95 % read, what is
    /// newest most, 5 % insert. E: 95 % scan of 1 to --scan-len records, 5 % insert. F: 50 % read,
    /// 50 % read-modify-write.
    ///
    /// Records are popular by Zipf's law, --popularity zipf:0.99, and the popular ones are
    /// scattered over the keys. A record is one value (--value-len, 1000 B: YCSB's ten fields of
    /// 100 B together); its key is `user` and 20 digits behind --prefix. Every value is verified.
    ///
    /// The order is YCSB's: A, B, C, F, D, E. D and E add records. YCSB stores all records anew
    /// before E; here E goes on with those that D has added, unless it is asked for alone. With
    /// --no-fill the first --keys records are taken to be there.
    ///
    /// A read that misses is counted apart, as read-miss; with --fill-on-miss its record is stored
    /// again. E needs a tenant of Nyx whose keys have an order (`index = "hybrid+"` in its
    /// [[tenant]]); all others run on any server.
    #[arg(long, value_name = "WORKLOADS", conflicts_with = "pair")]
    ycsb: Option<Cores>,
    /// The longest scan of workload E, in records [default: 100].
    #[arg(long, value_name = "N", requires = "ycsb",
        value_parser = clap::value_parser!(u16).range(1..=10_000))]
    scan_len: Option<u16>,
}

/// Workloads as they are to be run.
#[derive(Clone, Debug)]
struct Cores(Vec<Core>);

impl FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Cores, String> {
        cores(text).map(Cores).map_err(|e| e.to_string())
    }
}

impl Options {
    /// The workloads that are asked for, in the order in which they are played.
    pub(super) fn cores(&self) -> Option<&[Core]> {
        self.ycsb.as_ref().map(|cores| cores.0.as_slice())
    }

    /// The longest scan, in records.
    pub(super) fn scan_len_max(&self) -> u16 {
        self.scan_len
            .unwrap_or(nyx_sim::workload::ycsb::SCAN_LEN_MAX as u16)
    }
}

/// The one tenant that plays workloads of YCSB, as the options describe it.
pub(super) fn tenant(
    mut ones: Vec<One>,
    cores: &[Core],
    scan_len_max: u16,
) -> Result<(Vec<One>, Option<Ycsb>), Failure> {
    let [one] = &mut ones[..] else {
        let message = "--ycsb plays one tenant: give --tenant once";
        return Err(Failure::usage(message));
    };
    let load = &one.load;
    for (is_there, option, why) in [
        (load.workload.is_some(), "--workload", "it says the same"),
        (load.mix.is_some(), "--mix", "each workload has its own"),
        (
            load.key_len.is_some(),
            "--key-len",
            "keys have 24 B, and --prefix",
        ),
        (load.multiget > 1, "--multiget", "a read has one key"),
    ] {
        if is_there {
            let message = format!("leave {option} out where --ycsb is given: {why}");
            return Err(Failure::usage(message));
        }
    }
    let alpha = match load.popularity {
        None => ALPHA,
        Some(Popularity::Zipf { alpha }) => alpha,
        Some(other) => {
            return Err(Failure::usage(format!(
                "--ycsb draws records by Zipf's law, not by {other}: write --popularity zipf:0.99, \
                 or zipf:0 for all alike"
            )));
        }
    };
    one.load = Load {
        key_len: Some(load.prefix.len() + KEY_LEN),
        prefix: format!("{}{USER}", load.prefix),
        value_len: load.value_len.or(Some(Lengths::Fixed(VALUE_LEN))),
        popularity: Some(Popularity::Zipf { alpha }),
        ..load.clone()
    };
    let ycsb = cores.first().map(|&core| Ycsb {
        core,
        alpha,
        scan_len_max,
    });
    Ok((ones, ycsb))
}

/// Plays `cores`, and prints what came out.
pub(super) fn run(args: &Args, plan: &Plan, frame: &Frame, cores: &[Core]) -> Result<(), Failure> {
    let to = args.json.as_deref();
    let mut printed = Ok(());
    let tell = |text: &str| {
        if to != Some(Path::new("-")) && printed.is_ok() {
            printed = print(text);
        }
    };
    let (loaded, played) = ycsb::play(plan, frame, cores, tell)?;
    printed?;
    let corrupt: u64 = played.iter().map(|p| p.corrupt()).sum();
    let report = Report::new(settings(args, plan), loaded, played);
    deliver(to, &report::json(&report), "")?;
    match corrupt {
        0 => Ok(()),
        _ => {
            let message = format!(
                "{corrupt} values were not what had been stored, or out of their order in a scan"
            );
            Err(Failure::new(Exit::Software, message))
        }
    }
}

/// What was measured, by option, for the JSON.
fn settings(args: &Args, plan: &Plan) -> BTreeMap<&'static str, String> {
    let mut settings = super::settings(args, plan);
    settings.remove("multiget");
    settings.remove("tenants");
    for t in &plan.tenants {
        settings.extend([
            ("server", t.address.to_string()),
            ("connections", t.connections.to_string()),
            ("records", t.spec.keys.to_string()),
            ("value_len", t.spec.values.to_string()),
            ("popularity", t.spec.popularity.to_string()),
            ("ttl_s", t.spec.ttl.to_string()),
            (
                "rate",
                t.rate.map_or("closed loop".to_owned(), |r| r.to_string()),
            ),
        ]);
    }
    settings.insert("scan_len_max", args.ycsb.scan_len_max().to_string());
    settings
}
