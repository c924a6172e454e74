//! A device of blocks: a regular file or a block device, past the kernel's page cache where it can
//! be.
//!
//! What it never does: look at a byte of it. Formats are made and checked by whoever uses it.
//!
//! *Thread safety*: shared by all queues. The lock is held for the life of a [`BlockFile`], so that
//! no two processes of ours have one device.

use super::BLOCK_BYTES;
use crate::MediaError;
use crate::header::{allocate, file_error, lock};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Debug)]
pub struct BlockFile {
    file: File,
    path: PathBuf,
    len_bytes: u64,
    is_direct: bool,
}

impl BlockFile {
    /// One that is there; what is behind its last whole block is not used.
    pub fn open(path: &Path) -> Result<BlockFile, MediaError> {
        let mut options = OpenOptions::new();
        BlockFile::with(path, options.read(true).write(true), None)
    }

    /// A regular file of that many bytes, whole blocks, all of them allocated; made where there is
    /// none. One that is longer stays so.
    pub fn create(path: &Path, len_bytes: u64) -> Result<BlockFile, MediaError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let len_bytes = len_bytes.next_multiple_of(BLOCK_BYTES);
        BlockFile::with(path, &mut options, Some(len_bytes))
    }

    fn with(
        path: &Path,
        options: &mut OpenOptions,
        at_least: Option<u64>,
    ) -> Result<BlockFile, MediaError> {
        let (mut file, is_direct) =
            open(path, options).map_err(file_error(path, "open it for reading and writing"))?;
        let metadata = file.metadata();
        let kind = metadata
            .map_err(file_error(path, "ask for its size"))?
            .file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let path = path.to_owned();
            return Err(MediaError::NotOfBlocks { path });
        }
        lock(&file, path)?;
        if let Some(len_bytes) = at_least
            && kind.is_file()
        {
            allocate(&file, path, len_bytes)?;
        }
        // A block device has a length for whoever seeks its end, and none in its metadata.
        let end = file.seek(SeekFrom::End(0));
        let len_bytes = end.map_err(file_error(path, "ask for its size"))?;
        let len_bytes = len_bytes - len_bytes % BLOCK_BYTES;
        if len_bytes == 0 {
            let path = path.to_owned();
            return Err(MediaError::NoBlock { path });
        }
        let path = path.to_owned();
        Ok(BlockFile {
            file,
            path,
            len_bytes,
            is_direct,
        })
    }

    /// Its bytes, a multiple of [`BLOCK_BYTES`].
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Whether requests go past the kernel's page cache (`O_DIRECT`). Where the file system has no
    /// such thing they go through it, and a flush is what makes them durable all the same.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For drivers.
    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

impl AsFd for BlockFile {
    /// For a child of `fork` that opens it again.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for BlockFile {
    fn drop(&mut self) {
        // A ring that is gone lets go of its files later; the next one to open this is not to wait.
        let _ = self.file.unlock();
    }
}

/// Opens a file past the page cache, or through it where that is refused.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<(File, bool)> {
    let direct = options
        .clone()
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(path);
    match direct {
        Ok(file) => Ok((file, true)),
        Err(refused) if refused.kind() == io::ErrorKind::InvalidInput => {
            Ok((options.open(path)?, false))
        }
        Err(other) => Err(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_whole_blocks_long_and_locked() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("deep");
        let device = BlockFile::create(&path, 10_000).expect("room");
        assert_eq!(device.len_bytes(), 12_288);
        let again = BlockFile::open(&path).expect_err("it is ours");
        assert!(
            again.to_string().contains("in use by another process"),
            "{again}"
        );
        drop(device);
        std::fs::write(&path, [1; 9000]).expect("room");
        assert_eq!(
            BlockFile::open(&path).expect("it is there").len_bytes(),
            8192
        );
    }

    #[test]
    fn what_has_no_blocks_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let refused = |path: &Path| BlockFile::open(path).expect_err("no device").to_string();
        assert!(refused(&dir.path().join("none")).contains("No such file"));
        assert!(refused(Path::new("/dev/null")).contains("/dev/null: neither a file nor a block"));
        let empty = dir.path().join("empty");
        std::fs::write(&empty, []).expect("room");
        assert!(refused(&empty).contains("empty: shorter than a block"));
    }
}
