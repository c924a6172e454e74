//! A run, described: whom the generator plays, and how.
//!
//! What it never does: hold anything that changes while the run is on.

use super::address::{Address, Login};
use super::tally::Tally;
use super::ycsb;
use nyx_sim::workload::Spec;
use nyx_sim::workload::ycsb::Core;
use std::time::Duration;

/// One tenant of the server, as a client.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    /// What it is called in tables.
    pub(crate) name: String,
    /// Where it is reached.
    pub(crate) address: Address,
    /// Who it logs in as.
    pub(crate) login: Option<Login>,
    /// What it asks for.
    pub(crate) spec: Spec,
    /// Connections, over all generator threads.
    pub(crate) connections: usize,
    /// Requests a second over all connections; `None` is a closed loop.
    pub(crate) rate: Option<f64>,
}

/// One of YCSB's core workloads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ycsb {
    /// Which one.
    pub(crate) core: Core,
    /// The exponent of Zipf's law, by which records are popular.
    pub(crate) alpha: f64,
    /// The longest scan, in records.
    pub(crate) scan_len_max: u16,
}

/// A run, described.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Whom it plays.
    pub(crate) tenants: Vec<Tenant>,
    /// Generator threads.
    pub(crate) threads: usize,
    /// CPUs that they are bound to, in turn; none: not bound.
    pub(crate) pins: Vec<usize>,
    /// Requests in a batch (closed loop) or outstanding at most (open loop), per connection.
    pub(crate) depth: usize,
    /// Keys of one `get`.
    pub(crate) multiget: usize,
    /// Whether arrivals of an open loop come at random times (Poisson) or evenly.
    pub(crate) poisson: bool,
    /// Whether the threads poll without sleeping.
    pub(crate) busy_poll: bool,
    /// Whether all keys are stored first.
    pub(crate) fill: bool,
    /// How many keys of each tenant are stored a second; none: as fast as the server takes them.
    pub(crate) fill_rate: Option<f64>,
    /// Whether a read that misses stores the key.
    pub(crate) fill_on_miss: bool,
    /// Whether the bytes of every hit are checked.
    pub(crate) verify: bool,
    /// How long nothing may move while replies are outstanding.
    pub(crate) stall: Duration,
    /// The server's process, where latencies that the machine disturbed are to be set aside.
    pub(crate) sift: Option<u32>,
    /// The seed of everything random.
    pub(crate) seed: u64,
    /// What the one tenant does instead of its mix, and which of its keys it asks for.
    pub(crate) ycsb: Option<Ycsb>,
}

impl Plan {
    /// Nothing counted yet.
    pub(crate) fn tally(&self) -> Tally {
        match self.ycsb {
            Some(_) => Tally::of(ycsb::KINDS.len()),
            None => Tally::new(),
        }
    }
}
