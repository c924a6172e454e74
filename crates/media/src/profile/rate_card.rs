//! The rate card: what operations cost on a device, in standard operations. One standard operation
//! is one random read of 1 KiB of this device; limits are stated in them (NyxCache section 3.4).
//!
//! What it never does: compare two devices. A standard operation of one is not one of another.

use super::{Profile, STEP_BYTES};
use crate::{Evidence, Op};
use serde::Serialize;
use std::fmt;

/// The size of a standard operation in bytes.
const STANDARD_BYTES: usize = 1024;
/// The sizes that a card shows.
const SHOWN_BYTES: [usize; 9] = [64, 128, 256, 512, 768, 1024, 2048, 3072, 4096];

/// One line of a rate card.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// Size of the operation.
    pub bytes: usize,
    /// The price of reading it, in standard operations.
    pub read_std_ops: f64,
    /// The price of writing it, in standard operations.
    pub write_std_ops: f64,
}

/// See the module. Prints as a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RateCard {
    /// Standard operations that the whole device does in a second.
    pub std_ops_per_s: f64,
    /// What kind of numbers these are.
    pub evidence: Evidence,
    /// Prices by size.
    pub rates: Vec<Rate>,
}

impl RateCard {
    pub(super) fn of(profile: &Profile) -> RateCard {
        let rate = |op, bytes: usize| profile.max_ops_per_s(op)[bytes / STEP_BYTES - 1];
        let std_ops_per_s = rate(Op::Read, STANDARD_BYTES);
        let rates = SHOWN_BYTES.iter().map(|&bytes| Rate {
            bytes,
            read_std_ops: std_ops_per_s / rate(Op::Read, bytes),
            write_std_ops: std_ops_per_s / rate(Op::Write, bytes),
        });
        RateCard {
            std_ops_per_s,
            evidence: profile.evidence,
            rates: rates.collect(),
        }
    }
}

impl fmt::Display for RateCard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "Rate card in standard operations (1 = a random read of 1 KiB), {}",
            self.evidence
        )?;
        writeln!(
            f,
            "the whole device: {:.0} standard operations/s",
            self.std_ops_per_s
        )?;
        writeln!(f, "{:>8}  {:>8}  {:>8}", "bytes", "read", "write")?;
        for rate in &self.rates {
            let Rate {
                bytes,
                read_std_ops,
                write_std_ops,
            } = rate;
            writeln!(f, "{bytes:>8}  {read_std_ops:>8.2}  {write_std_ops:>8.2}")?;
        }
        write!(
            f,
            "above 4096 bytes: the price of each 4 KiB and of the rest, added up"
        )
    }
}
