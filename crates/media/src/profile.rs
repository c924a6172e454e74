//! The profile of a device: how many random reads and writes of each size it does at most (MaxIOPS,
//! NyxCache section 3.3, figure 3). 1/MaxIOPS is the price of an operation, so this file is what
//! makes a device chargeable. Beside this price of its capacity stands what an operation adds to
//! the latency of others, [`Latency`].
//!
//! * [`mod@measure`]: over any medium, in real time. [`mod@simulate`]: of a device model, in
//!   virtual time.
//! * [`Profile::load`] and [`Profile::save`]: the file; its fields are `docs/format.md`, "Profile".
//! * [`mod@latency`]: idle latencies and latency prices.
//! * [`Profile::check`]: whether a profile is of this device. [`RateCard`]: prices for people.
//!
//! What this module never does: charge anybody; the table of prices is `nyx-gate`'s.

mod latency;
mod measure;
mod rate_card;
mod simulate;

pub(crate) use latency::median;
pub use latency::{Delays, Latency, MEASURED_SHARE, PROBED_BYTES, VICTIM_BYTES};
pub use measure::measure;
pub(crate) use measure::pin;
pub use rate_card::RateCard;
pub use simulate::simulate;

use crate::model::Params;
use crate::{Evidence, Mapped, Media, MediaError, Op};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Sizes are profiled in steps of this many bytes.
pub const STEP_BYTES: usize = 64;
/// How many sizes there are: 64 B to 4 KiB.
pub const STEPS: usize = 64;
/// The format that this build writes.
const VERSION: u32 = 2;
/// The oldest format that it reads: one without latencies.
const VERSION_OLDEST: u32 = 1;

/// How thoroughly a device is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// About a second: some sizes are measured and the others interpolated.
    Quick,
    /// Every size, for some ten seconds.
    #[default]
    Normal,
    /// Every size, several times as long.
    Full,
}

/// Which device a profile is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The medium: `anon`, `file`, `dax` or `paged`; `none` where only a model was profiled.
    pub kind: String,
    /// The medium's file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The medium's size.
    pub len_bytes: u64,
    /// How much of it may be in memory, where that is not all or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The device model over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// [`Params::hash`] of that model, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_hash: Option<String>,
    /// The processor, by its own name.
    pub host_cpu: String,
}

/// One kind of operation: its rates by size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Curve {
    /// Entry `i` is for `(i + 1) * 64` bytes.
    max_ops_per_s: Vec<f64>,
    /// The number of threads that reached it.
    best_threads: Vec<usize>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    version: u32,
    /// What kind of numbers these are.
    pub evidence: Evidence,
    /// How thoroughly they were made.
    pub effort: Effort,
    /// When, in seconds since the Unix epoch.
    pub made_unix_s: u64,
    /// The numbers of threads that were tried.
    pub thread_counts: Vec<usize>,
    /// The sizes that were measured; the rates of all others are interpolated between these.
    pub measured_bytes: Vec<usize>,
    /// Of which device.
    pub device: Identity,
    read: Curve,
    write: Curve,
    /// None where it was not measured: in format 1, with one processor, on a busy machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    latency: Option<Latency>,
}

/// Whether a profile fits a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It is this device's.
    Fresh,
    /// It is this device's, but the device has changed since.
    Stale {
        /// What changed.
        why: String,
    },
    /// It is another device's.
    Foreign {
        /// What differs.
        why: String,
    },
}

/// A point that has just been measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Points measured so far, this one included.
    pub points: usize,
    /// Points in all.
    pub points_total: usize,
    /// Its operation.
    pub op: Op,
    /// Its size in bytes.
    pub bytes: usize,
    /// The number of threads.
    pub threads: usize,
    /// What was reached.
    pub ops_per_s: f64,
}

/// A size in bytes, the best rate of it in operations per second, and how many threads reached it.
type Best = (usize, (f64, usize));

/// Tries every number of threads at every size, reads first, tells of each point, and keeps the
/// best of each size.
fn sweep(
    sizes: &[usize],
    counts: &[usize],
    progress: &mut dyn FnMut(Progress),
    mut rate: impl FnMut(Op, usize, usize) -> f64,
) -> [Vec<Best>; 2] {
    let points_total = 2 * sizes.len() * counts.len();
    let mut points = 0;
    [Op::Read, Op::Write].map(|op| {
        let mut best_of = |bytes: usize| {
            let mut best = (0.0, 0);
            for &threads in counts {
                let ops_per_s = rate(op, bytes, threads);
                if ops_per_s > best.0 {
                    best = (ops_per_s, threads);
                }
                points += 1;
                progress(Progress {
                    points,
                    points_total,
                    op,
                    bytes,
                    threads,
                    ops_per_s,
                });
            }
            (bytes, best)
        };
        sizes.iter().map(|&bytes| best_of(bytes)).collect()
    })
}

impl Identity {
    /// Of a mapped medium, with the model that is laid over it, if there is one.
    pub fn of(medium: &Mapped, model: Option<&Params>) -> Identity {
        Identity {
            kind: medium.kind().name().to_owned(),
            path: medium.path().map(|path| path.display().to_string()),
            len_bytes: medium.len(),
            memory_bytes: None,
            model: model.map(|params| params.name.clone()),
            model_hash: model.map(hex_hash),
            host_cpu: host_cpu(),
        }
    }

    /// Of a medium of so many bytes of which so many may be in memory; the others are at the path.
    pub fn of_paged(path: &Path, len_bytes: u64, memory_bytes: u64) -> Identity {
        Identity {
            kind: "paged".to_owned(),
            path: Some(path.display().to_string()),
            len_bytes,
            memory_bytes: Some(memory_bytes),
            model: None,
            model_hash: None,
            host_cpu: host_cpu(),
        }
    }

    /// Of a model alone.
    pub fn of_model(params: &Params) -> Identity {
        Identity {
            kind: "none".to_owned(),
            path: None,
            len_bytes: 0,
            memory_bytes: None,
            model: Some(params.name.clone()),
            model_hash: Some(hex_hash(params)),
            host_cpu: host_cpu(),
        }
    }
}

impl Profile {
    /// Puts a profile together. `read` and `write` hold a rate and its number of threads for every
    /// size.
    fn assemble(
        device: Identity,
        evidence: Evidence,
        effort: Effort,
        thread_counts: Vec<usize>,
        measured_bytes: Vec<usize>,
        [read, write]: [Vec<(f64, usize)>; 2],
        latency: Option<Latency>,
    ) -> Profile {
        let curve = |points: Vec<(f64, usize)>| {
            let (max_ops_per_s, best_threads) = points
                .into_iter()
                .map(|(rate, threads)| (rate.round().max(1.0), threads))
                .unzip();
            Curve {
                max_ops_per_s,
                best_threads,
            }
        };
        let made_unix_s = std::time::UNIX_EPOCH
            .elapsed()
            .unwrap_or_default()
            .as_secs();
        let (read, write) = (curve(read), curve(write));
        let version = VERSION;
        Profile {
            version,
            evidence,
            effort,
            made_unix_s,
            thread_counts,
            measured_bytes,
            device,
            read,
            write,
            latency,
        }
    }

    /// `MaxIOPS` in operations per second; entry `i` is for `(i + 1) * 64` bytes.
    pub fn max_ops_per_s(&self, op: Op) -> &[f64; STEPS] {
        let rates = self.curve(op).max_ops_per_s.as_slice();
        rates.try_into().expect("validated when made or loaded")
    }

    /// The number of threads that reached each of [`Self::max_ops_per_s`].
    pub fn best_threads(&self, op: Op) -> &[usize] {
        &self.curve(op).best_threads
    }

    /// Idle latencies and latency prices. None where they were not measured: then nobody knows that
    /// a device second of one operation hurts more than one of another.
    pub fn latency(&self) -> Option<&Latency> {
        self.latency.as_ref()
    }

    fn curve(&self, op: Op) -> &Curve {
        match op {
            Op::Read => &self.read,
            Op::Write => &self.write,
        }
    }

    /// The prices in standard operations.
    pub fn rate_card(&self) -> RateCard {
        RateCard::of(self)
    }

    /// Whether it is a profile of `device`. A profile of a model in virtual time depends on that
    /// model alone; any other also on the medium and the processor.
    pub fn check(&self, device: &Identity) -> Fit {
        let own = &self.device;
        let differs = |what: &str, own: &str, theirs: &str| {
            (own != theirs).then(|| format!("profiled {what} {own}, this is {theirs}"))
        };
        let text = |option: &Option<String>| option.clone().unwrap_or_else(|| "none".to_owned());
        let foreign = differs("with device model", &text(&own.model), &text(&device.model));
        let stale = differs(
            "with model parameters",
            &text(&own.model_hash),
            &text(&device.model_hash),
        );
        let (foreign, stale) = match self.evidence {
            Evidence::Simulated => (foreign, stale),
            _ => (
                foreign
                    .or_else(|| differs("medium", &own.kind, &device.kind))
                    .or_else(|| differs("file", &text(&own.path), &text(&device.path)))
                    .or_else(|| {
                        // Another part of it in memory makes another device of it.
                        let memory = |bytes: Option<u64>| match bytes {
                            Some(bytes) => format!("{bytes} bytes"),
                            None => "none".to_owned(),
                        };
                        let (own, theirs) = (own.memory_bytes, device.memory_bytes);
                        differs("with memory", &memory(own), &memory(theirs))
                    })
                    .or_else(|| differs("processor", &own.host_cpu, &device.host_cpu)),
                stale.or_else(|| {
                    let bytes = |n: u64| format!("{n} bytes");
                    differs(
                        "a medium of",
                        &bytes(own.len_bytes),
                        &bytes(device.len_bytes),
                    )
                }),
            ),
        };
        match (foreign, stale) {
            (Some(why), _) => Fit::Foreign { why },
            (None, Some(why)) => Fit::Stale { why },
            (None, None) => Fit::Fresh,
        }
    }

    /// Reads and validates a profile.
    pub fn load(path: &Path) -> Result<Profile, MediaError> {
        let text = std::fs::read_to_string(path).map_err(|source| MediaError::File {
            path: path.to_owned(),
            action: "read the profile",
            source,
        })?;
        Profile::from_toml(&text).map_err(|reason| MediaError::Profile {
            path: path.to_owned(),
            reason,
        })
    }

    /// Writes the profile; a reader sees the old file or the whole new one.
    pub fn save(&self, path: &Path) -> Result<(), MediaError> {
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        let written = std::fs::write(&draft, self.to_toml());
        written
            .and_then(|()| std::fs::rename(&draft, path))
            .map_err(|source| MediaError::File {
                path: path.to_owned(),
                action: "write the profile",
                source,
            })
    }

    /// The text of the file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("numbers, strings and tables are TOML")
    }

    fn from_toml(text: &str) -> Result<Profile, String> {
        /// The one field whose place no version changes.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let found: Versioned = toml::from_str(text).map_err(|e| e.to_string())?;
        if !(VERSION_OLDEST..=VERSION).contains(&found.version) {
            return Err(format!(
                "format {}, but this build reads formats {VERSION_OLDEST} to {VERSION} only",
                found.version
            ));
        }
        let profile: Profile = toml::from_str(text).map_err(|e| e.to_string())?;
        if let Some(latency) = &profile.latency {
            if found.version == VERSION_OLDEST {
                return Err(format!("format {VERSION_OLDEST} has no latencies"));
            }
            latency.validate()?;
        }
        for (name, curve) in [("read", &profile.read), ("write", &profile.write)] {
            curve.validate(name)?;
        }
        Ok(profile)
    }
}

impl Curve {
    fn validate(&self, name: &str) -> Result<(), String> {
        for (what, len) in [
            ("rates", self.max_ops_per_s.len()),
            ("thread counts", self.best_threads.len()),
        ] {
            if len != STEPS {
                return Err(format!("{name} has {len} {what}, not {STEPS}"));
            }
        }
        let bad = self
            .max_ops_per_s
            .iter()
            .position(|rate| !(rate.is_finite() && *rate > 0.0));
        bad.map_or(Ok(()), |i| {
            let (bytes, rate) = ((i + 1) * STEP_BYTES, self.max_ops_per_s[i]);
            Err(format!(
                "the {name} rate of {bytes} B is {rate} operations/s"
            ))
        })
    }
}

fn hex_hash(params: &Params) -> String {
    format!("{:016x}", params.hash())
}

/// The processor's name as Linux knows it, or the architecture.
fn host_cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let name = line.map(|rest| rest.trim_start_matches([' ', '\t', ':']).trim().to_owned());
    name.filter(|name| !name.is_empty())
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

#[cfg(test)]
mod tests;
