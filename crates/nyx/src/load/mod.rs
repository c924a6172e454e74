//! The client side: what `nyx bench` and `nyx replay` share.
//!
//! A generator thread drives many connections through one readiness loop, sends a batch of requests
//! in one write, and reads replies by their first byte and the length that it already knows: one
//! core of client can saturate one core of server.
//!
//! What it never does: measure from when it got round to sending (an open loop measures from when
//! the request was due), count a reply that it did not understand, or hang: a run without progress
//! ends with an error that says what was outstanding.
//!
//! * [`address`]: where a server listens, logging in; [`wire`]: what replies mean; [`link`]: one
//!   connection.
//! * [`plan`]: a run, described; [`run`]: made, by [`worker`] threads that play [`stream`]s and
//!   [`shared`] the phase; [`tally`]: what is counted.
//! * [`cpu`]: CPU time of a server, pinning; [`sift`]: what the machine disturbed; [`pair`]:
//!   servers compared in interleaved rounds.
//! * [`ycsb`]: YCSB's core workloads, one after the other.
//! * [`report`]: tables and JSON; [`replay`]: traces instead of generators, against a server or,
//!   through [`engine`], in this process.

pub(crate) mod address;
pub(crate) mod cpu;
pub(crate) mod engine;
pub(crate) mod link;
pub(crate) mod pair;
pub(crate) mod plan;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod shared;
pub(crate) mod sift;
pub(crate) mod stream;
pub(crate) mod tally;
pub(crate) mod wire;
pub(crate) mod worker;
pub(crate) mod ycsb;

#[cfg(test)]
mod tests;

use crate::{Exit, Failure};
use address::Address;
use std::io;
use std::time::Duration;

/// Why a run could not be made, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// Nobody answers there.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Where.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
    /// User name or password were refused, or no authentication is offered.
    #[error("{address} refused the login of {user:?}: {reply:?}")]
    Login {
        /// Where.
        address: Address,
        /// Who.
        user: String,
        /// What the server answered.
        reply: String,
    },
    /// The other side went away.
    #[error("{address} closed a connection with {outstanding} replies outstanding")]
    Closed {
        /// Which server.
        address: Address,
        /// How many requests of that connection had no reply yet.
        outstanding: usize,
    },
    /// The connection broke.
    #[error("{address}: {source}, with {outstanding} replies outstanding")]
    Broken {
        /// Which server.
        address: Address,
        /// How many requests of that connection had no reply yet.
        outstanding: usize,
        /// What the system said.
        source: io::Error,
    },
    /// A reply that fits no request.
    #[error("{address} answered {what} with {reply:?}")]
    Protocol {
        /// Which server.
        address: Address,
        /// What had been asked.
        what: &'static str,
        /// The beginning of the reply.
        reply: String,
    },
    /// Ranges are asked for where there are none.
    #[error("{address} answers no scans, of which workload E is made ({reply}): {hint}")]
    Ranges {
        /// Which server.
        address: Address,
        /// What it said.
        reply: String,
        /// What to do.
        hint: &'static str,
    },
    /// Nothing moved any more.
    #[error("{address} made no progress for {waited:?}, with {outstanding} replies outstanding")]
    Stalled {
        /// Which server.
        address: Address,
        /// How long, in seconds.
        waited: Duration,
        /// How many requests of all connections to it had no reply yet.
        outstanding: usize,
    },
    /// The run is described wrongly.
    #[error(transparent)]
    Workload(#[from] nyx_sim::workload::WorkloadError),
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] nyx_sim::workload::trace::TraceError),
    /// The system refused something that the generator needs.
    #[error("{what}: {source}")]
    System {
        /// What was wanted.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        let code = match &error {
            LoadError::Connect { .. }
            | LoadError::Closed { .. }
            | LoadError::Stalled { .. }
            | LoadError::Ranges { .. } => Exit::Unavailable,
            LoadError::Login { .. } => Exit::NoPerm,
            LoadError::Broken { .. } | LoadError::Protocol { .. } => Exit::Io,
            LoadError::Workload(_) => Exit::Usage,
            LoadError::Trace(_) => Exit::NoInput,
            LoadError::System { .. } => Exit::Os,
        };
        Failure::new(code, error.to_string())
    }
}

/// A time as people write it: `10s`, `500ms`, `2m`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let scale = match &text[split..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    let seconds: f64 = text[..split].parse().unwrap_or(f64::NAN);
    Some(seconds * scale)
        .filter(|s| (0.0..=1e9).contains(s))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("{text:?} is not a time: write 10s, 500ms or 2m"))
}
