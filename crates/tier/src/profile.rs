//! The profile of a deep device: what reads take, and how many bytes a second writes move. It is
//! measured once, when the device's file is new, and kept beside those of mapped devices; its
//! fields are `docs/format.md`, "Profile of a device of blocks".
//!
//! A file that was allocated and never written is read without the device. So it is written first,
//! as far as that goes in some tenths of a second, and read where it was written. One that is not
//! new is somebody's: it is not written, and what writes take is assumed.
//!
//! What it never does: write to a file that is not new; measure a modelled device, whose parameters
//! say what it does.

use crate::costs::Costs;
use crate::lane::Lane;
use nyx_base::{Clock, DevicePs, Nanos};
use nyx_gate::CostTable;
use nyx_media::model::block::BlockParams;
use nyx_media::profile::STEPS;
use nyx_media::queue::{BLOCK_BYTES, DeepFile, Pool, Queue, QueueShape, Request, Through};
use nyx_media::{Evidence, MediaError, TscClock};
use nyx_policy::nhc::Cost;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The format that this build writes and reads.
const VERSION: u32 = 1;
/// Writes are measured for so long, and over so many bytes, at most.
const WRITE_MOST: Nanos = Nanos::from_millis(300);
const WRITE_BYTES_MOST: u64 = 256 << 20;
/// So many pieces at once, as many as a worker writes.
const WRITE_DEPTH: u32 = 8;
/// Where writes are not measured, they take so many times what long reads do: the NVMe flash disk
/// of Orthus' table 1 reads 3,000 MB/s and writes 2,000.
const WRITE_ASSUMED: f64 = 1.5;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeepProfile {
    version: u32,
    /// What kind of numbers these are.
    pub evidence: Evidence,
    /// When it was made, in seconds since the Unix epoch.
    pub made_unix_s: u64,
    /// Whether writes were not measured.
    pub write_is_assumed: bool,
    /// Bytes a second of long writes, with enough in flight.
    pub write_bytes_per_s: f64,
    /// What a read takes of its worker's processor beside the copy, in ns.
    pub read_cpu_ns: f64,
    device: Identity,
    read_small: Point,
    read_large: Point,
}

/// Whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    path: String,
    /// The deep file's id, in hexadecimal.
    id: String,
    len_bytes: u64,
}

/// Reads of a length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Point {
    bytes: u64,
    alone_ns: f64,
    each_ns: f64,
}

impl DeepProfile {
    /// Measures a device; takes up to a second where it is no slower than a hard disk.
    ///
    /// Errors: where there is no memory or no queue.
    pub fn measure(file: &DeepFile, through: Through) -> Result<DeepProfile, MediaError> {
        let begin = file.begin_bytes();
        let queue = |through| {
            move |pools: &[Pool], depth| {
                let shape = QueueShape { depth, through };
                Queue::new(file.blocks(), pools, shape)
            }
        };
        let written = match file.is_fresh() {
            // Polled queues have no flush.
            true => write(begin, file.len_bytes(), queue(Through::Auto))?,
            false => None,
        };
        let len_bytes = written.map_or(file.len_bytes(), |(bytes, _)| bytes);
        let costs = Costs::measure(begin..begin + len_bytes, queue(through))?;
        let large_per_s = Costs::LARGE_BYTES as f64 * 1e9 / costs.large.each_ns;
        let write_bytes_per_s = written.map(|(_, bytes_per_s)| bytes_per_s);
        Ok(DeepProfile {
            version: VERSION,
            evidence: Evidence::Real,
            made_unix_s: now_unix_s(),
            write_is_assumed: written.is_none(),
            write_bytes_per_s: write_bytes_per_s.unwrap_or(large_per_s / WRITE_ASSUMED),
            read_cpu_ns: costs.cpu_ns,
            device: Identity::of(file),
            read_small: Point::of(Costs::SMALL_BYTES, costs.small),
            read_large: Point::of(Costs::LARGE_BYTES, costs.large),
        })
    }

    /// What a model's parameters say, which is laid over a file.
    pub fn of_model(params: &BlockParams, file: &DeepFile) -> DeepProfile {
        let point = |bytes| Point {
            bytes,
            alone_ns: params.alone_ns(false, bytes),
            each_ns: 1e9 / params.per_second(false, bytes),
        };
        let piece = Lane::PIECE_BYTES as u64;
        DeepProfile {
            version: VERSION,
            evidence: Evidence::Emulated,
            made_unix_s: now_unix_s(),
            write_is_assumed: false,
            write_bytes_per_s: params.per_second(true, piece) * piece as f64,
            read_cpu_ns: 0.0,
            device: Identity::of(file),
            read_small: point(Costs::SMALL_BYTES),
            read_large: point(Costs::LARGE_BYTES),
        }
    }

    /// Whether it is of that file: one that was made anew may lie on another disk.
    pub fn is_of(&self, file: &DeepFile) -> bool {
        self.device.id == Identity::of(file).id
    }

    /// What requests take, for those who choose between devices.
    pub fn costs(&self) -> Costs {
        Costs {
            small: self.read_small.cost(),
            large: self.read_large.cost(),
            cpu_ns: self.read_cpu_ns,
        }
    }

    /// Prices for the gate. Nothing is read in less than a block, and further blocks of a request
    /// cost what they add to it.
    pub fn prices(&self) -> CostTable {
        let chunk = BLOCK_BYTES as f64;
        let small_ns = self.read_small.each_ns;
        let beyond = (self.read_large.bytes - self.read_small.bytes) as f64;
        let further_ns = (self.read_large.each_ns - small_ns).max(0.0) * chunk / beyond;
        let write_ns = chunk * 1e9 / self.write_bytes_per_s;
        let per_s = |ns: f64| [1e9 / ns; STEPS];
        let prices = CostTable::from_max_iops(&per_s(small_ns), &per_s(write_ns));
        let ps = |ns: f64| DevicePs((ns * 1e3).round() as u64);
        // A device that reads 64 KiB as fast as 4 KiB has a bus all the same.
        prices.with_further_chunks(ps(further_ns.max(small_ns / 100.0)), ps(write_ns))
    }

    /// Reads a profile.
    ///
    /// Errors: where it cannot be read, or makes no sense.
    pub fn load(path: &Path) -> Result<DeepProfile, MediaError> {
        let text = std::fs::read_to_string(path).map_err(file_error(path, "read the profile"))?;
        DeepProfile::from_toml(&text).map_err(|reason| MediaError::Profile {
            path: path.to_owned(),
            reason,
        })
    }

    /// Writes it; a reader sees the old file or the whole new one.
    ///
    /// Errors: the system's.
    pub fn save(&self, path: &Path) -> Result<(), MediaError> {
        let text = toml::to_string(self).expect("numbers, strings and tables are TOML");
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        let written = std::fs::write(&draft, text);
        let renamed = written.and_then(|()| std::fs::rename(&draft, path));
        renamed.map_err(file_error(path, "write the profile"))
    }

    fn from_toml(text: &str) -> Result<DeepProfile, String> {
        /// The one field whose place no version changes.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = toml::from_str(text).map_err(|error| error.to_string())?;
        if version != VERSION {
            return Err(format!(
                "format {version}, but this build reads format {VERSION} only"
            ));
        }
        let profile: DeepProfile = toml::from_str(text).map_err(|error| error.to_string())?;
        let (small, large) = (profile.read_small, profile.read_large);
        if (small.bytes, large.bytes) != (Costs::SMALL_BYTES, Costs::LARGE_BYTES) {
            let (small, large) = (small.bytes, large.bytes);
            return Err(format!(
                "reads of {small} B and {large} B, not 4096 and 65536"
            ));
        }
        let numbers = [
            profile.write_bytes_per_s,
            small.alone_ns,
            small.each_ns,
            large.alone_ns,
            large.each_ns,
        ];
        let is_bad = |number: &&f64| !(number.is_finite() && **number > 0.0);
        match numbers.iter().find(is_bad) {
            Some(number) => Err(format!("{number} is no time and no rate")),
            None => Ok(profile),
        }
    }
}

impl Identity {
    fn of(file: &DeepFile) -> Identity {
        Identity {
            path: file.blocks().path().display().to_string(),
            id: file.id().iter().map(|byte| format!("{byte:02x}")).collect(),
            len_bytes: file.len_bytes(),
        }
    }
}

impl Point {
    fn of(bytes: u64, cost: Cost) -> Point {
        Point {
            bytes,
            alone_ns: cost.alone_ns,
            each_ns: cost.each_ns,
        }
    }

    fn cost(self) -> Cost {
        Cost {
            alone_ns: self.alone_ns,
            each_ns: self.each_ns,
        }
    }
}

/// Writes pieces from `begin` on, one behind the other, for a while, and has them durable; how many
/// bytes, and how many a second. None where a write failed.
fn write(
    begin: u64,
    len_bytes: u64,
    queue: impl FnOnce(&[Pool], u32) -> Result<Queue, MediaError>,
) -> Result<Option<(u64, f64)>, MediaError> {
    let piece = (Lane::PIECE_BYTES as u64).min(len_bytes);
    let pool = Pool::new(WRITE_DEPTH, piece as usize)?;
    let mut queue = queue(std::slice::from_ref(&pool), WRITE_DEPTH)?;
    let most = WRITE_BYTES_MOST.min(len_bytes - len_bytes % piece);
    let clock = TscClock::start();
    let began = clock.now();
    let (mut sent, mut has_failed) = (0, false);
    loop {
        let goes_on = sent < most && clock.now().since(began) < WRITE_MOST && !has_failed;
        if !goes_on && queue.in_flight() == 0 {
            break;
        }
        while goes_on && sent < most && queue.in_flight() < WRITE_DEPTH {
            let request = Request::Write {
                at: begin + sent,
                from: pool.take().expect("as many as are in flight"),
                is_durable: false,
            };
            queue.submit(request, 0).expect("it is deep enough");
            sent += piece;
        }
        queue.rest();
        while let Some(done) = queue.reap() {
            has_failed |= done.result.is_err();
        }
    }
    let flushed = queue.poll(Request::Flush, 0).expect("nothing is in flight");
    let took = clock.now().since(began).as_secs_f64();
    let is_measured = !has_failed && flushed.result.is_ok() && sent > 0;
    Ok(is_measured.then(|| (sent, sent as f64 / took.max(1e-9))))
}

fn now_unix_s() -> u64 {
    std::time::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default()
        .as_secs()
}

fn file_error(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> MediaError {
    move |source| MediaError::File {
        path: path.to_owned(),
        action,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_media::Op;

    fn deep(dir: &Path) -> DeepFile {
        DeepFile::open(&dir.join("deep"), Some(8 << 20)).expect("room")
    }

    #[test]
    fn a_new_file_is_written_to_be_measured_and_an_old_one_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, file) = (dir.path().join("profile"), deep(dir.path()));
        let first = DeepProfile::measure(&file, Through::Auto).expect("measured");
        assert!(!first.write_is_assumed && first.is_of(&file), "{first:?}");
        first.save(&path).expect("room");
        assert_eq!(DeepProfile::load(&path).expect("ours"), first);
        drop(file);
        let bytes: Vec<u8> = (0..2u32 << 20).flat_map(u32::to_le_bytes).collect();
        let mut whole = std::fs::read(dir.path().join("deep")).expect("a file");
        whole[4096..].copy_from_slice(&bytes);
        std::fs::write(dir.path().join("deep"), &whole).expect("room");
        let file = deep(dir.path());
        let again = DeepProfile::measure(&file, Through::Auto).expect("measured");
        assert!(again.write_is_assumed && first.is_of(&file), "{again:?}");
        drop(file);
        assert!(std::fs::read(dir.path().join("deep")).expect("a file") == whole);
        std::fs::remove_file(dir.path().join("deep")).expect("a file");
        assert!(!first.is_of(&deep(dir.path())), "another file");
    }

    #[test]
    fn prices_are_what_the_model_does() {
        let dir = tempfile::tempdir().expect("a directory");
        let params = BlockParams::preset("sata-flash").expect("known");
        let profile = DeepProfile::of_model(&params, &deep(dir.path()));
        let prices = profile.prices();
        for (op, len) in [
            (Op::Read, 4096),
            (Op::Read, 64 << 10),
            (Op::Write, 256 << 10),
        ] {
            let per_s = 1.0 / prices.price(op, len).as_secs_f64();
            let expected = params.per_second(op == Op::Write, len as u64);
            assert!(
                (per_s / expected - 1.0).abs() < 0.01,
                "{per_s} of {expected}"
            );
        }
        assert_eq!(prices.price(Op::Read, 100), prices.price(Op::Read, 4096));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let params = BlockParams::preset("nvm").expect("known");
        let profile = DeepProfile::of_model(&params, &deep(dir.path()));
        let text = toml::to_string(&profile).expect("TOML");
        let with = |from: &str, to: &str| {
            assert!(text.contains(from), "{text}");
            DeepProfile::from_toml(&text.replace(from, to)).expect_err("refused")
        };
        assert!(with("version = 1", "version = 9").contains("format 9"));
        assert!(with("bytes = 65536", "bytes = 8192").contains("8192 B"));
        assert!(with("write_bytes_per_s = ", "write_bytes_per_s = -").contains("no rate"));
        assert!(with("made_unix_s", "made").contains("made"));
    }
}
