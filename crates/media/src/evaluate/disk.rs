//! A file on a disk, read and written past the page cache (`O_DIRECT`), to compare with. It is made
//! for measuring and filled; its name is taken away at once, so that nothing is left of it however
//! the process ends.
//!
//! What it never does: overwrite a file, or flush the drive's own cache: what a write takes is what
//! the drive says.

use super::{LARGEST_BYTES, Target, measure::Buffer};
use crate::{Evidence, Front, MediaError, header};
use nyx_base::Rng;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// See the module.
#[derive(Debug)]
pub struct Disk {
    file: File,
    len_bytes: u64,
}

impl Disk {
    /// Makes a file of `len_bytes`, a multiple of 4 KiB, and fills it with bytes that cannot be
    /// compressed. An error where there is such a file, where the filesystem has no direct access,
    /// or no room.
    pub fn make(path: &Path, len_bytes: u64) -> Result<Disk, MediaError> {
        let failed = |action| {
            move |source| MediaError::File {
                path: path.to_owned(),
                action,
                source,
            }
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(path)
            .map_err(failed("make it with direct access (O_DIRECT)"))?;
        std::fs::remove_file(path).map_err(failed("take its name away"))?;
        let disk = Disk { file, len_bytes };
        header::allocate(&disk.file, path, len_bytes)?;
        disk.fill().map_err(failed("fill it"))?;
        Ok(disk)
    }

    /// Writes every byte, so that none is a hole, and waits for the drive.
    fn fill(&self) -> io::Result<()> {
        let mut buffer = Buffer::new(LARGEST_BYTES);
        Rng::with_seed(self.len_bytes).fill(buffer.bytes());
        let mut at = 0;
        while at < self.len_bytes {
            let len = (self.len_bytes - at).min(LARGEST_BYTES as u64);
            self.file
                .write_all_at(&buffer.bytes()[..len as usize], at)?;
            at += len;
        }
        self.file.sync_all()
    }
}

impl Target for Disk {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn evidence(&self) -> Evidence {
        Evidence::Real
    }

    fn sleeps(&self) -> bool {
        true
    }

    fn read(&self, _: &mut Front, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    fn write(&self, _: &mut Front, at: u64, from: &[u8], _: usize) -> io::Result<()> {
        self.file.write_all_at(from, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the tests' directory has direct access, and else nothing that could be tested.
    #[test]
    fn a_disk_is_filled_read_written_and_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk");
        let disk = match Disk::make(&path, 8 << 12) {
            Ok(disk) => disk,
            Err(error) => {
                assert!(error.to_string().contains("O_DIRECT"), "{error}");
                return;
            }
        };
        assert!(!path.exists(), "its name is gone");
        assert_eq!(disk.file.metadata().expect("a file").len(), 8 << 12);
        let (mut buffer, front) = (Buffer::new(4096), &mut Front::default());
        disk.read(front, 4096, buffer.bytes()).expect("a block");
        assert!(buffer.bytes().iter().any(|&byte| byte != 0), "not filled");
        buffer.bytes().fill(7);
        disk.write(front, 4096, buffer.bytes(), 4096)
            .expect("a block");
        buffer.bytes().fill(0);
        disk.read(front, 4096, buffer.bytes()).expect("a block");
        assert!(buffer.bytes().iter().all(|&byte| byte == 7));
        let beyond = disk.read(front, 8 << 12, buffer.bytes());
        assert!(beyond.is_err(), "behind the end");
        std::fs::write(&path, b"precious").expect("a file");
        let taken = Disk::make(&path, 8 << 12).expect_err("there is one");
        assert!(taken.to_string().contains("disk"), "{taken}");
        assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
    }
}
