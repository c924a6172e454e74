//! YCSB's core workloads against a server: one load of the records, then one workload after the
//! other (B. F. Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC 2010,
//! section 4; what is asked for is `nyx_sim::workload::ycsb`'s).
//!
//! A record is one value, the ten fields of YCSB together. Its key is `user` and twenty digits. A
//! server may be a cache: a read may miss, and is then a kind of its own.
//!
//! What it never does: clear a server.
//!
//! * [`records`]: which there are; [`counter`]: what became of operations; [`report`]: tables and
//!   JSON. The operations themselves are written by `load::stream`.

pub(crate) mod counter;
pub(crate) mod records;
pub(crate) mod report;

#[cfg(test)]
mod tests;

use super::LoadError;
use super::plan::{Plan, Tenant, Ycsb};
use super::run::{self, Frame};
use nyx_proto::request;
use nyx_sim::workload::ycsb::{Core, KEY_DIGITS};
use report::{Loaded, Played};

/// What every key begins with, behind the tenant's own prefix.
pub(crate) const USER: &str = "user";

/// The length of a key without the tenant's prefix, in bytes.
pub(crate) const KEY_LEN: usize = USER.len() + KEY_DIGITS;

/// Kinds of operations, each with its latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A record was read.
    Read,
    /// A record was asked for and not there.
    ReadMiss,
    /// Records were read in the order of their keys.
    Scan,
    /// A record was read, then written.
    Rmw,
    /// A record was written anew.
    Update,
    /// A record was added.
    Insert,
}

/// The names of [`Kind`]s in tables and JSON, in their order.
pub(crate) const KINDS: [&str; 6] = ["read", "read-miss", "scan", "rmw", "update", "insert"];

/// Plays `cores` one after the other on the records that the first of them stores, where the plan
/// says so. Each result goes to `told`, for people, as soon as it is there. Records that a workload
/// inserts are there for the next one.
pub(crate) fn play(
    plan: &Plan,
    frame: &Frame,
    cores: &[Core],
    mut told: impl FnMut(&str),
) -> Result<(Option<Loaded>, Vec<Played>), LoadError> {
    let mut plan = plan.clone();
    if let (Some(tenant), true) = (plan.tenants.first(), cores.iter().any(|core| core.scans())) {
        can_scan(tenant)?;
    }
    let (mut loaded, mut played) = (None, Vec::new());
    for &core in cores {
        if frame.progress {
            eprintln!("workload {core}: {}", core.mix());
        }
        plan.ycsb = plan.ycsb.map(|ycsb| Ycsb { core, ..ycsb });
        let outcome = run::run(&plan, frame)?;
        if plan.fill {
            let load = Loaded::of(&plan, &outcome);
            told(&load.text());
            loaded = Some(load);
        }
        let records = outcome.records;
        let result = Played::of(core, &plan, outcome);
        told(&result.text());
        played.push(result);
        plan.fill = false;
        plan.tenants.iter_mut().for_each(|t| t.spec.keys = records);
    }
    Ok((loaded, played))
}

/// Whether ranges are answered, which memcached does not know and Nyx keeps for some tenants.
fn can_scan(tenant: &Tenant) -> Result<(), LoadError> {
    let prefix = tenant.spec.prefix.as_bytes();
    let mut command = Vec::new();
    request::scan(&mut command, prefix, prefix, 1);
    let reply = tenant.address.ask(tenant.login.as_ref(), &command)?;
    let is_answer = ["VALUE ", "END", "MORE "]
        .iter()
        .any(|word| reply.starts_with(word));
    if is_answer {
        return Ok(());
    }
    let hint = match reply.as_str() {
        r if r.starts_with("ERROR") => {
            "only Nyx knows `scan`, memcached does not: leave E out, or start `nyx serve` with \
             index = \"hybrid+\" in the [[tenant]]"
        }
        r if r.contains("tenant.index") => {
            "write index = \"hybrid+\" into the [[tenant]] and start the server again, or leave E \
             out"
        }
        r if r.contains("being built") => "wait until all keys are in their order again",
        _ => "see docs/protocol.md, \"Ranges\"",
    };
    Err(LoadError::Ranges {
        address: tenant.address.clone(),
        reply,
        hint,
    })
}
