//! The image's file, or device: which one it is, and which cache used it last.
//!
//! Nothing of ours may stand in it. So the cache that has it leaves its id in an extended
//! attribute of the file (`user.nyx.block`), with whether it may have what the image lacks. Where
//! a file system, or a device, has no such attributes nobody can tell whether another cache was
//! here.
//!
//! What it never does: read or write a byte of it.

use crate::superblock::Identity;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

const ATTRIBUTE: &str = "user.nyx.block";

/// See the module.
#[derive(Clone, Debug)]
pub struct Image {
    path: PathBuf,
    /// Which one.
    pub identity: Identity,
    /// Its length, of a file.
    pub file_bytes: Option<u64>,
}

/// Who used an image last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The id of its cache.
    pub cache: [u8; 16],
    /// The cache may have what the image lacks.
    pub is_dirty: bool,
}

/// What is known of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// A cache.
    Used(Stamp),
    /// None.
    Nobody,
    /// There is no telling.
    Unknown,
}

impl Image {
    /// The one at a path. `name` is what its user calls it, or empty.
    pub fn at(path: &Path, name: &str) -> io::Result<Image> {
        let found = std::fs::metadata(path)?;
        let is_device = found.file_type().is_block_device();
        Ok(Image {
            path: path.to_owned(),
            identity: Identity {
                device: if is_device { found.rdev() } else { found.dev() },
                inode: if is_device { 0 } else { found.ino() },
                name: name.to_owned(),
            },
            file_bytes: found.is_file().then_some(found.len()),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// When it was changed last, as its file system tells.
    pub fn changed(&self) -> (i64, i64) {
        let found = std::fs::metadata(&self.path).ok();
        found.map_or((0, 0), |found| (found.mtime(), found.mtime_nsec()))
    }

    /// Who used it last.
    pub fn last(&self) -> Last {
        let mut bytes = [0; 17];
        match getxattr(&self.path, ATTRIBUTE, &mut bytes[..]) {
            Ok(17) => Last::Used(Stamp {
                cache: bytes[..16].try_into().expect("16 bytes"),
                is_dirty: bytes[16] != 0,
            }),
            Err(error) if error == rustix::io::Errno::NODATA && self.file_bytes.is_some() => {
                Last::Nobody
            }
            _ => Last::Unknown,
        }
    }

    /// Leaves a stamp; whether it could be left.
    pub fn stamp(&self, stamp: Stamp) -> bool {
        let mut bytes = [0; 17];
        bytes[..16].copy_from_slice(&stamp.cache);
        bytes[16] = u8::from(stamp.is_dirty);
        setxattr(&self.path, ATTRIBUTE, &bytes, XattrFlags::empty()).is_ok()
    }
}
