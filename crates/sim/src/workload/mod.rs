//! What clients ask for: seeded generators of requests, and readers of recorded ones.
//!
//! Everything here is a pure function of its seed or its input, so that the simulator, the load
//! generator and the figures can all run the very same stream again.
//!
//! What it never does: read a clock, start a thread, open a socket, keep a trace in memory.
//!
//! * [`popularity`], [`zipf`]: which key; [`keys`]: that key's text.
//! * [`lengths`]: how long a key's value is; [`value`]: its bytes, so that a reply can be verified.
//! * [`mix`]: which operation, which time to live.
//! * [`generator`]: all of these together, for one tenant; [`preset`]: published caches as such.
//! * [`ycsb`]: YCSB's core workloads, on records that become more.
//! * [`trace`]: recorded requests, streamed from files of the formats that the field uses.

pub mod generator;
pub mod keys;
pub mod lengths;
mod meta;
pub mod mix;
pub mod popularity;
pub mod preset;
pub mod trace;
mod twitter;
pub mod value;
pub mod ycsb;
pub mod zipf;

pub use generator::{Generator, Spec, Step};
pub use keys::KeySpace;
pub use lengths::Lengths;
pub use mix::{OpMix, TtlMix};
pub use popularity::Popularity;
pub use value::Values;

/// What a client asks for. Other verbs of the protocols count as the one that they most resemble
/// (`gets` as `Get`, `add` as `Set`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Read a value.
    Get,
    /// Write a value.
    Set,
    /// Forget a key.
    Delete,
    /// Add to a number.
    Incr,
    /// Give a new time to live.
    Touch,
}

/// All operations, in the order of their declaration.
pub const OPS: [Op; 5] = [Op::Get, Op::Set, Op::Delete, Op::Incr, Op::Touch];

impl Op {
    /// Its name on the command line, in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::Set => "set",
            Op::Delete => "delete",
            Op::Incr => "incr",
            Op::Touch => "touch",
        }
    }
}

/// A description of a workload that makes no sense. The message names the text and what to write.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum WorkloadError {
    /// A word that is none of the known ones, or a number out of its range.
    #[error("{what} {text:?} is not understood: {hint}")]
    Syntax {
        /// What was being described.
        what: &'static str,
        /// What was written.
        text: String,
        /// What may be written.
        hint: &'static str,
    },
    /// Keys' texts would not fit or not be distinct.
    #[error("{keys} keys with prefix {prefix:?} need a key length of {need} to 250 B, got {len} B")]
    KeyLen {
        /// How many keys.
        keys: u64,
        /// The common prefix.
        prefix: String,
        /// The shortest length that tells the keys apart, in bytes.
        need: usize,
        /// The length asked for, in bytes.
        len: usize,
    },
    /// A preset that was not published.
    #[error("preset {text:?} is not known: {hint}")]
    Preset {
        /// What was written.
        text: String,
        /// Which there are.
        hint: String,
    },
    /// Too few or too many keys.
    #[error("{keys} keys are asked for: between 1 and 2^32 are possible")]
    Keys {
        /// The number asked for.
        keys: u64,
    },
}

/// Spreads the bits of `x` over the whole word: a bijection, so that distinct keys stay distinct
/// (the finaliser of SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
#[inline]
pub(crate) fn spread(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
