//! The two devices that are measured: files, devices of blocks, models laid over either.
//!
//! What exists is read and never written, unless the user said that it may be overwritten; a device
//! that is mounted not even then. What is made has no name any more as soon as it is open, so that
//! nothing is left behind, however the run ends.
//!
//! What it never does: take a wrong name for a file that is to be made.

use super::refused;
use crate::{Exit, Failure};
use nyx_base::Bytes;
use nyx_media::model::block::{BlockModel, BlockParams};
use nyx_media::queue::{BlockFile, Emulation, Pool, Queue, QueueShape, Through};
use nyx_media::{Evidence, MediaError};
use nyx_policy::nhc::Side;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Where a model's bytes lie, where that is memory.
const MEMORY: &str = "/dev/shm";

/// What the user said of a device.
#[derive(Clone, Copy, Debug)]
pub struct Said<'a> {
    /// A file, a device of blocks, or a model.
    pub what: &'a str,
    /// A model that is laid over it.
    pub model: Option<&'a str>,
    /// What is there may be overwritten.
    pub may_overwrite: bool,
}

/// A device.
#[derive(Debug)]
pub struct Target {
    /// For people.
    pub name: String,
    /// Its bytes.
    pub file: Arc<BlockFile>,
    /// The model that is laid over it.
    pub model: Option<BlockParams>,
    /// Whether it is ours, or may be overwritten: what was not written is not checked either.
    pub may_write: bool,
    emulation: Option<Arc<Mutex<Emulation>>>,
    /// Held, so that nobody mounts the device meanwhile.
    _claim: Option<File>,
}

/// The option that names a device.
pub fn option(side: Side) -> &'static str {
    match side {
        Side::Fast => "--fast",
        Side::Deep => "--deep",
    }
}

impl Target {
    /// Opens what the user named, or makes it, with `len_bytes` at least. `writes` says why it is
    /// going to be written, where it is.
    pub fn open(
        said: Said<'_>,
        side: Side,
        len_bytes: u64,
        writes: Option<&str>,
    ) -> Result<Target, Failure> {
        let option = option(side);
        let usage = |error: MediaError| Failure::usage(format!("{option}: {error}"));
        let path = Path::new(said.what);
        let is_model = said.what.ends_with(".toml") || !is_file(path);
        let (model, file) = match (is_model, said.model) {
            (true, None) => (Some(BlockParams::resolve(said.what)), None),
            (true, Some(_)) => {
                return Err(Failure::usage(format!(
                    "{option} {}: a model, and {option}-model lays another over it; name a file",
                    said.what
                )));
            }
            (false, model) => (model.map(BlockParams::resolve), Some(path)),
        };
        let model = model.transpose().map_err(|error| {
            let hint = match (is_model, error) {
                (true, error @ MediaError::UnknownModel { .. }) => {
                    format!("{option}: {error}; a file that is to be made is named as ./NAME")
                }
                (_, error) => usage(error).message,
            };
            Failure::usage(hint)
        })?;
        let (file, may_write, claim) = match file {
            None => (in_memory(side, len_bytes)?, true, None),
            Some(path) if path.exists() => existing(path, said, option, writes)?,
            Some(path) => (made(path, len_bytes).map_err(refused)?, true, None),
        };
        if file.len_bytes() < len_bytes {
            return Err(Failure::usage(format!(
                "{option} {}: has {}, and {} are asked for (--cache, --data)",
                said.what,
                Bytes(file.len_bytes()),
                Bytes(len_bytes)
            )));
        }
        let name = match (&model, file_of(said, is_model)) {
            (Some(model), None) => model.name.clone(),
            (Some(model), Some(file)) => format!("{} over {file}", model.name),
            (None, file) => file.unwrap_or_default().to_owned(),
        };
        let emulation = model.as_ref().map(|model| {
            let model = BlockModel::new(model.clone(), side as u64 + 1);
            Arc::new(Mutex::new(Emulation::new(model)))
        });
        Ok(Target {
            name,
            file: Arc::new(file),
            model,
            may_write,
            emulation,
            _claim: claim,
        })
    }

    /// Of which kind figures from it are.
    pub fn evidence(&self) -> Evidence {
        match self.model {
            Some(_) => Evidence::Emulated,
            None => Evidence::Real,
        }
    }

    /// A queue to it.
    pub fn queue(&self, pool: &Pool, depth: u32) -> Result<Queue, Failure> {
        let through = Through::Auto;
        let (shape, pools) = (QueueShape { depth, through }, std::slice::from_ref(pool));
        let queue = match &self.emulation {
            None => Queue::new(&self.file, pools, shape),
            Some(model) => Queue::emulated(&self.file, pools, shape, model),
        };
        queue.map_err(refused)
    }
}

fn file_of<'a>(said: Said<'a>, is_model: bool) -> Option<&'a str> {
    (!is_model).then_some(said.what)
}

/// What is there, or is named with its directory; anything else is a model's name.
fn is_file(path: &Path) -> bool {
    let begins = |with: &str| path.starts_with(with);
    path.exists() || path.is_absolute() || begins(".") || begins("..")
}

/// A file or a device that is there; whether it may be written; what keeps others from it.
fn existing(
    path: &Path,
    said: Said<'_>,
    option: &str,
    writes: Option<&str>,
) -> Result<(BlockFile, bool, Option<File>), Failure> {
    if let (Some(why), false) = (writes, said.may_overwrite) {
        return Err(Failure::usage(format!(
            "{option} {}: exists and would be overwritten ({why}). Say --overwrite {} if nothing \
             in it is of any use, or name a file that does not exist",
            said.what,
            option.trim_start_matches('-')
        )));
    }
    let unreadable = |error| Failure::unreadable(path, &error);
    let kind = std::fs::metadata(path).map_err(unreadable)?.file_type();
    let claim = match kind.is_block_device() && said.may_overwrite {
        true => Some(claim(path)?),
        false => None,
    };
    let file = BlockFile::open(path).map_err(|error| match error {
        MediaError::NotOfBlocks { .. } | MediaError::NoBlock { .. } => {
            Failure::usage(format!("{option}: {error}"))
        }
        error => Failure::new(Exit::NoInput, error.to_string()),
    })?;
    Ok((file, said.may_overwrite, claim))
}

/// Makes a device of blocks ours alone, which the kernel refuses where it is mounted.
fn claim(path: &Path) -> Result<File, Failure> {
    let mut options = OpenOptions::new();
    let exclusive = options
        .read(true)
        .custom_flags(OFlags::EXCL.bits() as i32)
        .open(path);
    exclusive.map_err(|error| {
        Failure::new(
            Exit::Unavailable,
            format!(
                "{}: not overwritten, since somebody has it, as where it is mounted: {error}",
                path.display()
            ),
        )
    })
}

/// A new file that nobody sees.
fn made(path: &Path, len_bytes: u64) -> Result<BlockFile, MediaError> {
    let failed = |action| {
        move |source| MediaError::File {
            path: path.to_owned(),
            action,
            source,
        }
    };
    File::create_new(path).map_err(failed("make it"))?;
    let made = BlockFile::create(path, len_bytes);
    let removed = std::fs::remove_file(path).map_err(failed("take its name away"));
    made.and_then(|file| removed.map(|()| file))
}

/// A new file in memory, or else where temporary files are.
fn in_memory(side: Side, len_bytes: u64) -> Result<BlockFile, Failure> {
    let name = format!(
        "nyx-model-{}-{}-{:08x}",
        std::process::id(),
        option(side).trim_start_matches('-'),
        nyx_base::Rng::new().u32(..)
    );
    let within = |directory: PathBuf| made(&directory.join(&name), len_bytes);
    let made = within(PathBuf::from(MEMORY)).or_else(|_| within(std::env::temp_dir()));
    made.map_err(|error| {
        Failure::new(
            Exit::CantCreate,
            format!(
                "no room for a model of {}, neither in {MEMORY} nor where temporary files are: \
                 {error}; make --data and --cache smaller",
                Bytes(len_bytes)
            ),
        )
    })
}
