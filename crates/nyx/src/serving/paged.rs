//! A paged device from its configuration: where its pages go is looked at and opened, its profile
//! loaded - or made at the first start -, and its memory made.
//!
//! The profile is of accesses at random over all of it, as all profiles are: the mean of those
//! whose page is in memory and those that wait for one. It is made on a smaller one that has the
//! same part in memory, and is full, so that a first start does not write all of the device.
//!
//! What it never does: overwrite what may be somebody's: a file or a block device is taken where
//! its first [`HEAD_BYTES`] are zero, and they stay so.

use super::Options;
use super::devices::{Opened, in_device, priced};
use crate::config;
use crate::{Exit, Failure};
use nyx_base::{Bytes, Clock};
use nyx_gate::{CostTable, Device};
use nyx_media::profile::{Effort, Identity, Profile, measure};
use nyx_media::queue::{BlockFile, Support};
use nyx_media::{Front, Media, MediaError, Via, is_in_memory};
use nyx_swap::region::{Device as Pages, Paged, RegionError};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

/// What is left alone at the begin of a file or block device. All that file systems, volume
/// managers and partition tables are known by begins within it.
const HEAD_BYTES: u64 = 128 << 10;
/// A profile is made on so much at most.
const PROFILED_BYTES: u64 = 256 << 20;
/// No region has less in memory.
const MEMORY_MIN_BYTES: u64 = 64 << 10;

/// Opens a paged device.
///
/// Errors: exit 69 where this process may not have a userfaultfd; 73 where pages cannot go where
/// they are to; 71 where the system refuses something else.
pub(super) fn open(
    config: &config::Device,
    path: &Path,
    memory: Bytes,
    options: Options,
    clock: &dyn Clock,
) -> Result<Opened, Failure> {
    let place = Place::open(path, config.size).map_err(|failure| Failure {
        message: in_device(config, &failure),
        ..failure
    })?;
    let made = |len_bytes, memory_bytes| {
        let pages = place.pages(len_bytes).map_err(RegionError::from);
        let name = format!("{} (pages at {})", config.name, path.display());
        pages
            .and_then(|pages| Paged::new(name, len_bytes, memory_bytes, &pages))
            .map_err(|error| Failure::new(code(&error), in_device(config, &error)))
    };
    let (cost, latency) = match options.unpriced {
        true => (CostTable::unpriced(), None),
        false => {
            let identity = Identity::of_paged(path, config.size.0, memory.0);
            priced(config, identity, |identity| {
                let (len_bytes, memory_bytes) = profiled(config.size.0, memory.0);
                Ok(profile(&made(len_bytes, memory_bytes)?, identity, clock))
            })?
        }
    };
    let media = Arc::new(made(config.size.0, memory.0)?);
    tracing::info!(
        device = config.name,
        path = %path.display(),
        size = %config.size,
        %memory,
        std_ops_per_s = cost.standard_ops_per_s(),
        "paged device open; nothing survives the process"
    );
    Ok(Opened {
        medium: None,
        device: Arc::new(Device {
            name: config.name.clone(),
            media,
            cost,
        }),
        latency,
    })
}

fn code(error: &RegionError) -> Exit {
    match error {
        RegionError::NoUserfaultfd { .. } | RegionError::NotSafe { .. } => Exit::Unavailable,
        RegionError::Device(_) | RegionError::InUse { .. } => Exit::CantCreate,
        _ => Exit::Os,
    }
}

/// Where pages go.
enum Place<'a> {
    /// To files without a name there.
    Directory(&'a Path),
    /// Behind its head.
    Whole(Pages),
}

impl<'a> Place<'a> {
    fn open(path: &'a Path, size: Bytes) -> Result<Place<'a>, Failure> {
        let wrong = |what: String| {
            let path = path.display();
            Failure::new(Exit::CantCreate, format!("path {path} {what}"))
        };
        let found =
            std::fs::metadata(path).map_err(|error| wrong(format!("is not there: {error}")))?;
        let kind = found.file_type();
        if kind.is_dir() {
            warn_of_memory(path);
            return Ok(Place::Directory(path));
        }
        if !kind.is_file() && !kind.is_block_device() {
            return Err(wrong(
                "is neither a directory, a file nor a block device".into(),
            ));
        }
        let is_free = head_is_zero(path, kind.is_block_device());
        if !is_free.map_err(|error| wrong(format!("cannot be looked at: {error}")))? {
            let head = Bytes(HEAD_BYTES);
            return Err(wrong(format!(
                "is not overwritten: its first {head} are not all zero, so it may be in use"
            )));
        }
        let whole = size.0.next_multiple_of(HEAD_BYTES) + HEAD_BYTES;
        let failed = |error: MediaError| Failure::new(Exit::CantCreate, error.to_string());
        let blocks = match kind.is_file() {
            // All of its room is taken now, or a full disk would be found out later.
            true => BlockFile::create(path, whole),
            false => BlockFile::open(path),
        };
        let blocks = Arc::new(blocks.map_err(failed)?);
        let has = blocks.len_bytes();
        if has < whole {
            let (has, needs) = (Bytes(has), Bytes(whole));
            return Err(wrong(format!(
                "has {has}, and size = {size} needs {needs} of it"
            )));
        }
        let support = Support::of(&blocks).map_err(failed)?;
        Ok(Place::Whole(Pages::new(blocks).fastest(&support)))
    }

    /// Room for so many bytes, as one region at a time may have it.
    fn pages(&self, len_bytes: u64) -> Result<Pages, MediaError> {
        match self {
            Place::Directory(dir) => Pages::temporary(dir, len_bytes),
            Place::Whole(all) => {
                let whole = len_bytes.next_multiple_of(HEAD_BYTES);
                Ok(all.clone().part(HEAD_BYTES, whole))
            }
        }
    }
}

/// Whether nothing is known to be there, and nobody has the block device.
fn head_is_zero(path: &Path, is_device: bool) -> std::io::Result<bool> {
    // Of a device: unless it is mounted, is swap, or is otherwise taken.
    let exclusive = if is_device {
        OFlags::EXCL
    } else {
        OFlags::empty()
    };
    let file = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC | exclusive,
        Mode::empty(),
    )?;
    let mut head = Vec::with_capacity(HEAD_BYTES as usize);
    File::from(file).take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok(head.iter().all(|byte| *byte == 0))
}

fn warn_of_memory(dir: &Path) {
    if is_in_memory(dir) {
        let dir = dir.display();
        tracing::warn!(%dir, "pages go to memory (tmpfs), where they take as much as they leave");
    }
}

/// How large the one is that is profiled, and how much of it is in memory, in bytes.
fn profiled(len_bytes: u64, memory_bytes: u64) -> (u64, u64) {
    let small = len_bytes.min(PROFILED_BYTES);
    let part = u128::from(memory_bytes) * u128::from(small) / u128::from(len_bytes);
    (small, (part as u64).max(MEMORY_MIN_BYTES))
}

/// Fills it, so that what is not in memory is at the device, and measures.
fn profile(medium: &Paged, identity: Identity, clock: &dyn Clock) -> Profile {
    static PIECE: [u8; 64 << 10] = [1; 64 << 10];
    let mut front = Front::default();
    for at in (0..medium.len()).step_by(PIECE.len()) {
        let piece = PIECE.len().min((medium.len() - at) as usize);
        medium.write(&mut front, at, &PIECE[..piece], Via::NonTemporal);
    }
    measure(medium, identity, clock, Effort::Quick, &mut |_| {})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_profiled_has_the_same_part_in_memory() {
        const MIB: u64 = 1 << 20;
        assert_eq!(profiled(64 * MIB, 16 * MIB), (64 * MIB, 16 * MIB));
        assert_eq!(profiled(1024 * MIB, 512 * MIB), (256 * MIB, 128 * MIB));
        assert_eq!(profiled(1 << 40, MIB), (256 * MIB, MEMORY_MIN_BYTES));
        assert_eq!(profiled(1 << 43, 1 << 42), (256 * MIB, 128 * MIB));
    }
}
