//! The parameters of a device model, as a TOML file holds them, and the presets. What each preset
//! is anchored in and what in it is guessed stands in its file.
//!
//! What this module never does: compute a time. The models do that, from one and the same file.

use crate::MediaError;
use serde::{Deserialize, Serialize};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// The presets: name and file.
const PRESETS: [(&str, &str); 4] = [
    ("optane-2dimm", include_str!("presets/optane-2dimm.toml")),
    ("cxl", include_str!("presets/cxl.toml")),
    ("ull-ssd", include_str!("presets/ull-ssd.toml")),
    ("flash", include_str!("presets/flash.toml")),
];

/// A device: everything that the models know of it. Times are in nanoseconds, "lines" are units of
/// [`Geometry::line_bytes`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// Its name, with the divisor where rates are divided: `optane-2dimm/8`.
    pub name: String,
    /// The medium itself.
    pub media: Geometry,
    /// How writes wait and are served.
    pub writes: Writes,
    /// Lines read in vain per operation, by its size; linear between the points, constant outside.
    pub prefetch_waste: Vec<Waste>,
    /// Ordinary loads.
    pub load: Loads,
    /// Loads with the processor's prefetcher switched off.
    pub load_no_prefetch: Loads,
    /// Non-temporal loads.
    pub load_nt: Loads,
    /// How much of what a thread loads overlaps.
    pub window: Window,
    /// Stores.
    pub store: Stores,
}

/// The medium: partitions that each serve one access at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Modules (DIMMs), each with a write buffer of its own.
    pub modules: usize,
    /// Partitions in each.
    pub partitions_per_module: usize,
    /// The grain at which addresses spread over the partitions, in bytes; a power of two.
    pub line_bytes: u64,
    /// The least that a partition reads or writes, in bytes; divides a line.
    pub unit_bytes: u64,
    /// How long reading a whole line keeps a partition busy.
    pub read_ns: f64,
    /// How long writing one does.
    pub write_ns: f64,
}

/// How writes wait and are served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Writes {
    /// K: writes are served in batches of this many lines.
    pub batch_lines: u32,
    /// M: at most this many reads pass a batch that waits.
    pub guard_reads: u32,
    /// Q: lines that a module holds; a writer beyond that waits.
    pub buffer_lines: u32,
    /// A line older than this is served even where its batch is not full.
    pub age_ns: f64,
    /// Writers per module that do not disturb each other.
    pub writers_free: u32,
    /// What each further writer adds to the time of a write, as a part of it.
    pub writer_penalty: f64,
}

/// One point of the prefetch waste table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waste {
    /// Size of the operation.
    pub op_bytes: u64,
    /// Lines read in vain by each.
    pub lines: f64,
}

/// How a thread loads: a line is there `latency_ns` after it was issued (plus what it waited at
/// its partition), and lines are issued `gap_ns` apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loads {
    /// L. Contains the time in the partition.
    pub latency_ns: f64,
    /// g.
    pub gap_ns: f64,
}

/// How many lines may be outstanding when a thread begins its next operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// For operations of X lines, `min(lines_max, lines_base + X)`.
    pub lines_base: u64,
    /// See `lines_base`.
    pub lines_max: u64,
    /// The same without prefetching.
    pub lines_max_no_prefetch: u64,
    /// For operations smaller than a line: `small_bytes` divided by their size.
    pub small_bytes: u64,
    /// But no more than this.
    pub small_lines_max: u64,
}

/// How a thread stores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stores {
    /// The thread's own time for each 64 B stored non-temporally.
    pub nt_64b_ns: f64,
    /// A store followed by a flush of its lines: the fixed part,
    pub clwb_base_ns: f64,
    /// and the part per line.
    pub clwb_line_ns: f64,
    /// An ordinary store first reads its lines with this latency,
    pub fill_ns: f64,
    /// and the cache later writes them back in pieces of this size.
    pub evict_bytes: u64,
}

impl Params {
    /// The names of the presets.
    pub fn preset_names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|(name, _)| *name)
    }

    /// A preset with an optional divisor (`optane-2dimm/8`), or else a file, where `spec` ends in
    /// `.toml`.
    pub fn resolve(spec: &str) -> Result<Params, MediaError> {
        if spec.ends_with(".toml") {
            return Params::load(Path::new(spec));
        }
        let (name, divisor) = match spec.split_once('/') {
            Some((name, divisor)) => (name, Some(divisor)),
            None => (spec, None),
        };
        let preset = PRESETS.iter().find(|(known, _)| *known == name);
        let (_, text) = preset.ok_or_else(|| MediaError::UnknownModel {
            name: spec.to_owned(),
            known: Params::preset_names().collect::<Vec<_>>().join(", "),
        })?;
        let params = Params::parse(text, name)?;
        let Some(divisor) = divisor else {
            return Ok(params);
        };
        match divisor.parse::<f64>() {
            Ok(n) if n.is_finite() && n > 0.0 => Ok(params.divided_by(n, divisor)),
            _ => Err(bad(
                spec,
                format!("the divisor {divisor:?} is not a positive number"),
            )),
        }
    }

    /// A model of the user's own.
    pub fn load(path: &Path) -> Result<Params, MediaError> {
        let text = std::fs::read_to_string(path).map_err(|source| MediaError::File {
            path: path.to_owned(),
            action: "read the device model",
            source,
        })?;
        Params::parse(&text, &path.display().to_string())
    }

    fn parse(text: &str, origin: &str) -> Result<Params, MediaError> {
        let params: Params = toml::from_str(text).map_err(|e| bad(origin, e.to_string()))?;
        match params.fault() {
            Some(fault) => Err(bad(origin, fault)),
            None => Ok(params),
        }
    }

    /// The same device with the medium's rates divided by `n`: every queue behaves as before, `n`
    /// times slower. What belongs to the processor - latencies, gaps, windows - stays.
    fn divided_by(mut self, n: f64, shown: &str) -> Params {
        self.name = format!("{}/{shown}", self.name);
        self.media.read_ns *= n;
        self.media.write_ns *= n;
        self.writes.age_ns *= n;
        self
    }

    /// A number that differs, with near certainty, for different parameters: the models' identity
    /// in a profile.
    pub fn hash(&self) -> u64 {
        xxh3_64(
            toml::to_string(self)
                .expect("numbers and tables are TOML")
                .as_bytes(),
        )
    }

    /// Partitions in all modules.
    pub fn partitions(&self) -> usize {
        self.media.modules * self.media.partitions_per_module
    }

    /// Lines read in vain by an operation of `len` bytes, on average.
    pub fn waste_lines(&self, len: u64) -> f64 {
        let table = &self.prefetch_waste;
        let above = table.iter().position(|point| point.op_bytes >= len);
        match above {
            None => table.last().map_or(0.0, |point| point.lines),
            Some(0) => table[0].lines,
            Some(i) => {
                let (a, b) = (&table[i - 1], &table[i]);
                let part = (len - a.op_bytes) as f64 / (b.op_bytes - a.op_bytes) as f64;
                a.lines + part * (b.lines - a.lines)
            }
        }
    }

    /// How many lines may be outstanding when the thread goes on after a load of `len` bytes in
    /// `lines` lines.
    pub fn window_lines(&self, len: u64, lines: u64) -> u64 {
        let window = &self.window;
        if len < self.media.line_bytes {
            return (window.small_bytes / len.max(1)).clamp(1, window.small_lines_max);
        }
        (window.lines_base + lines).min(window.lines_max)
    }

    /// What is wrong with these values, if anything is.
    fn fault(&self) -> Option<String> {
        let positive = [
            ("media.read_ns", self.media.read_ns),
            ("media.write_ns", self.media.write_ns),
            ("load.latency_ns", self.load.latency_ns),
            ("load.gap_ns", self.load.gap_ns),
            (
                "load_no_prefetch.latency_ns",
                self.load_no_prefetch.latency_ns,
            ),
            ("load_no_prefetch.gap_ns", self.load_no_prefetch.gap_ns),
            ("load_nt.latency_ns", self.load_nt.latency_ns),
            ("load_nt.gap_ns", self.load_nt.gap_ns),
            ("store.nt_64b_ns", self.store.nt_64b_ns),
            ("store.clwb_base_ns", self.store.clwb_base_ns),
            ("store.clwb_line_ns", self.store.clwb_line_ns),
            ("store.fill_ns", self.store.fill_ns),
            ("media.modules", self.media.modules as f64),
            (
                "media.partitions_per_module",
                self.media.partitions_per_module as f64,
            ),
            ("media.unit_bytes", self.media.unit_bytes as f64),
            ("writes.batch_lines", f64::from(self.writes.batch_lines)),
            ("writes.buffer_lines", f64::from(self.writes.buffer_lines)),
            ("window.lines_max", self.window.lines_max as f64),
            (
                "window.lines_max_no_prefetch",
                self.window.lines_max_no_prefetch as f64,
            ),
            ("window.small_lines_max", self.window.small_lines_max as f64),
            ("store.evict_bytes", self.store.evict_bytes as f64),
        ];
        let bad_positive = positive
            .into_iter()
            .find(|(_, v)| !(v.is_finite() && *v > 0.0));
        if let Some((key, value)) = bad_positive {
            return Some(format!("{key} is {value}, but must be more than zero"));
        }
        let rest = [self.writes.age_ns, self.writes.writer_penalty];
        let waste = self.prefetch_waste.iter().map(|point| point.lines);
        if let Some(v) = rest
            .into_iter()
            .chain(waste)
            .find(|v| !(v.is_finite() && *v >= 0.0))
        {
            return Some(format!(
                "age_ns, writer_penalty or prefetch_waste is {v}, but never less than zero"
            ));
        }
        let (line, unit) = (self.media.line_bytes, self.media.unit_bytes);
        if !line.is_power_of_two() || line % unit != 0 {
            return Some(format!(
                "media.line_bytes is {line}: no power of two, or no multiple of unit_bytes, {unit}"
            ));
        }
        let sorted = self
            .prefetch_waste
            .windows(2)
            .all(|w| w[0].op_bytes < w[1].op_bytes);
        (!sorted).then(|| "prefetch_waste is not in order of op_bytes".to_owned())
    }
}

fn bad(origin: &str, reason: String) -> MediaError {
    MediaError::BadModel {
        origin: origin.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn optane() -> Params {
        Params::resolve("optane-2dimm").expect("a preset")
    }

    #[test]
    fn every_preset_is_sound_and_goes_through_toml_unchanged() {
        for name in Params::preset_names() {
            let params = Params::resolve(name).expect(name);
            assert_eq!(params.name, name);
            let text = toml::to_string(&params).expect("TOML");
            assert_eq!(Params::parse(&text, "test").expect(name), params);
        }
    }

    #[test]
    fn a_divisor_slows_the_medium_and_leaves_the_processor() {
        let (whole, eighth) = (
            optane(),
            Params::resolve("optane-2dimm/8").expect("a preset"),
        );
        assert_eq!(eighth.name, "optane-2dimm/8");
        assert_eq!(eighth.media.read_ns, 8.0 * whole.media.read_ns);
        assert_eq!(eighth.media.write_ns, 8.0 * whole.media.write_ns);
        assert_eq!((&eighth.load, &eighth.store), (&whole.load, &whole.store));
        assert_ne!(eighth.hash(), whole.hash());
        assert_eq!(optane().hash(), whole.hash());
    }

    #[test]
    fn the_waste_table_is_linear_between_its_points() {
        let params = optane();
        let near = |len, lines: f64| assert!((params.waste_lines(len) - lines).abs() < 1e-9);
        near(64, 0.0);
        near(384, 0.475);
        near(1024, 2.67);
        near(2560, 2.6);
        near(1 << 20, 1.3);
    }

    #[test]
    fn windows_follow_the_specification() {
        let params = optane();
        let window = |len, lines| params.window_lines(len, lines);
        assert_eq!([window(64, 1), window(128, 1), window(192, 2)], [10, 6, 4]);
        assert_eq!(
            [window(256, 1), window(512, 2), window(4096, 16)],
            [3, 4, 5]
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_name_and_value() {
        let error = |spec: &str| Params::resolve(spec).expect_err(spec).to_string();
        assert!(error("optane").contains("optane-2dimm, cxl, ull-ssd, flash"));
        assert!(error("cxl/0").contains("\"0\" is not a positive number"));
        assert!(error("cxl/x").contains("positive number"));
        assert!(error("/nonexistent/m.toml").contains("/nonexistent/m.toml"));
        let text = toml::to_string(&optane()).expect("TOML");
        let broken = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            let parsed = Params::parse(&text.replace(from, to), "my.toml");
            parsed.expect_err(to).to_string()
        };
        assert!(broken("read_ns = 115.5", "read_ns = 0.0").contains("media.read_ns is 0"));
        assert!(broken("write_ns = 338.0", "write_ns = nan").contains("media.write_ns is NaN"));
        assert!(broken("line_bytes = 256", "line_bytes = 300").contains("300"));
        assert!(broken("op_bytes = 512", "op_bytes = 1").contains("order"));
        assert!(broken("lines = 0.95", "lines = -0.95").contains("-0.95"));
        assert!(broken("gap_ns = 48.7", "gap = 48.7").contains("my.toml"));
    }
}
