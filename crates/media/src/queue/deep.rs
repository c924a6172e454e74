//! A deep device's file, or device of blocks: one block that says what it is, then the bytes that
//! tenants share. The layout is `docs/format.md`, "Deep file".
//!
//! What it never does: write over something that is not ours; look at the bytes behind the block.
//!
//! *Thread safety*: shared by all queues. Its lock is held for the life of a [`DeepFile`].

use super::{BLOCK_BYTES, BlockFile, Pool};
use crate::MediaError;
use crate::header::{check_page, file_error, random_uuid};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// The format that this build writes and reads.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"NYXDEEP\0";
const CHECKSUM_AT: usize = 48;
const HEADER_BYTES: u64 = BLOCK_BYTES;

/// See the module.
#[derive(Debug)]
pub struct DeepFile {
    blocks: Arc<BlockFile>,
    id: [u8; 16],
    len_bytes: u64,
    is_fresh: bool,
}

impl DeepFile {
    /// The deep device at a path: a file that is there, or is made with that many bytes behind its
    /// first block, all of them allocated; or a device of blocks, which is all taken where no
    /// length is named.
    ///
    /// Errors: where something else is there, of another format, damaged or shorter than that; and
    /// where a file is to be made and no length is named.
    pub fn open(path: &Path, len_bytes: Option<u64>) -> Result<DeepFile, MediaError> {
        let is_new = std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0);
        match (is_new || !path.exists(), len_bytes) {
            (true, Some(len_bytes)) => DeepFile::create(path, len_bytes),
            (true, None) => Err(MediaError::Length { len_bytes: 0 }),
            (false, _) => DeepFile::reopen(path, len_bytes),
        }
    }

    fn create(path: &Path, len_bytes: u64) -> Result<DeepFile, MediaError> {
        let len_bytes = len_bytes.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES);
        let made = BlockFile::create(path, HEADER_BYTES + len_bytes);
        let made = made.and_then(|blocks| DeepFile::begin(blocks, len_bytes));
        if made.is_err() {
            // What failed half-way is ours and empty; left behind, it would look damaged.
            let _ = std::fs::remove_file(path);
        }
        made
    }

    /// Writes the first block of what is new.
    fn begin(blocks: BlockFile, len_bytes: u64) -> Result<DeepFile, MediaError> {
        let id = random_uuid().map_err(file_error(blocks.path(), "draw an id for it"))?;
        let created = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let mut block = Pool::new(1, BLOCK_BYTES as usize)?.take().expect("free");
        block.copy_from_slice(&encode(len_bytes, &id, created.as_secs()));
        let file = blocks.file();
        let written = file.write_all_at(&block, 0);
        let synced = written.and_then(|()| file.sync_all());
        synced.map_err(file_error(blocks.path(), "write its header"))?;
        Ok(DeepFile {
            blocks: Arc::new(blocks),
            id,
            len_bytes,
            is_fresh: true,
        })
    }

    fn reopen(path: &Path, asked: Option<u64>) -> Result<DeepFile, MediaError> {
        let blocks = BlockFile::open(path)?;
        let mut block = Pool::new(1, BLOCK_BYTES as usize)?.take().expect("free");
        let read = blocks.file().read_exact_at(&mut block, 0);
        read.map_err(file_error(path, "read its header"))?;
        let found_bytes = blocks.len_bytes() - HEADER_BYTES;
        let owned = || path.to_owned();
        if block.iter().all(|&byte| byte == 0) {
            let kind = blocks.file().metadata().map(|found| found.file_type());
            let kind = kind.map_err(file_error(path, "ask for its kind"))?;
            // A device that was wiped is new; a file of zeroes was never finished.
            return match kind.is_block_device() {
                true if asked.unwrap_or(BLOCK_BYTES) <= found_bytes => {
                    DeepFile::begin(blocks, found_bytes)
                }
                true => Err(too_small(path, found_bytes, asked)),
                false => Err(MediaError::Unfinished { path: owned() }),
            };
        }
        let page: &[u8; BLOCK_BYTES as usize] = (&block[..]).try_into().expect("one block");
        let found: [u8; 8] = page[..8].try_into().expect("8 bytes");
        if found != MAGIC {
            let path = owned();
            return Err(MediaError::NotDeep { path, found });
        }
        check_page(page, path, VERSION, CHECKSUM_AT)?;
        let len_bytes = u64::from_le_bytes(page[16..24].try_into().expect("8 bytes"));
        if found_bytes < len_bytes {
            return Err(MediaError::Truncated {
                path: owned(),
                file_bytes: blocks.len_bytes(),
                header_bytes: HEADER_BYTES.saturating_add(len_bytes),
            });
        }
        if asked.is_some_and(|asked| len_bytes < asked) {
            return Err(too_small(path, len_bytes, asked));
        }
        Ok(DeepFile {
            id: page[24..40].try_into().expect("16 bytes"),
            blocks: Arc::new(blocks),
            len_bytes,
            is_fresh: false,
        })
    }

    /// Its blocks, the first of them included: what tenants share begins at [`Self::begin_bytes`].
    pub fn blocks(&self) -> &Arc<BlockFile> {
        &self.blocks
    }

    /// Where on the device its bytes begin.
    pub fn begin_bytes(&self) -> u64 {
        HEADER_BYTES
    }

    /// Bytes behind the first block.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Its id, by which a tenant's image knows it again.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Waits until everything that was written to it is durable.
    pub fn sync(&self) -> Result<(), MediaError> {
        let synced = self.blocks.file().sync_data();
        synced.map_err(file_error(self.blocks.path(), "sync it"))
    }

    /// Whether it was made, or found empty, just now.
    pub fn is_fresh(&self) -> bool {
        self.is_fresh
    }
}

fn too_small(path: &Path, found_bytes: u64, asked: Option<u64>) -> MediaError {
    MediaError::TooSmall {
        path: path.to_owned(),
        found_bytes,
        asked_bytes: asked.unwrap_or_default(),
    }
}

fn encode(len_bytes: u64, id: &[u8; 16], created_unix_s: u64) -> Vec<u8> {
    let mut block = Vec::with_capacity(BLOCK_BYTES as usize);
    block.extend(MAGIC);
    block.extend(VERSION.to_le_bytes());
    block.extend((HEADER_BYTES as u32).to_le_bytes());
    block.extend(len_bytes.to_le_bytes());
    block.extend(id);
    block.extend(created_unix_s.to_le_bytes());
    assert_eq!(block.len(), CHECKSUM_AT);
    block.extend(xxh3_64(&block).to_le_bytes());
    block.resize(BLOCK_BYTES as usize, 0);
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, OpenOptions};

    /// Byte for byte, so that no edit changes the format unnoticed.
    #[test]
    fn the_first_block_is_the_documented_bytes() {
        let block = encode(1 << 20, &std::array::from_fn(|at| at as u8), 7);
        let golden = [
            &b"NYXDEEP\0"[..],
            &[1, 0, 0, 0, 0, 0x10, 0, 0],
            &[0, 0, 0x10, 0, 0, 0, 0, 0],
            &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            &[7, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(block[..48], golden);
        assert_eq!(block[48..56], xxh3_64(&golden).to_le_bytes());
        assert!(block.len() == 4096 && block[56..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn it_is_found_again_as_it_was_made() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("deep");
        let made = DeepFile::open(&path, Some(100_000)).expect("room");
        assert!(made.is_fresh());
        let (id, len_bytes) = (made.id(), made.len_bytes());
        assert_eq!(len_bytes, 102_400, "whole blocks");
        assert_eq!(made.blocks().len_bytes(), 4096 + 102_400);
        let error = DeepFile::open(&path, None).expect_err("it is ours");
        assert!(error.to_string().contains("in use by another"), "{error}");
        drop(made);
        let found = DeepFile::open(&path, Some(50_000)).expect("ours");
        assert!(!found.is_fresh());
        assert_eq!((found.id(), found.len_bytes()), (id, len_bytes));
    }

    #[test]
    fn what_is_not_ours_is_refused_and_stays_as_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("deep");
        drop(DeepFile::open(&path, Some(1 << 20)).expect("room"));
        let whole = fs::read(&path).expect("a file");
        let told = |asked| {
            let error = DeepFile::open(&path, asked).expect_err("it is refused");
            error.to_string()
        };
        assert!(told(Some(2 << 20)).contains("holds a medium of 1048576 bytes, 2097152"));
        let file = OpenOptions::new().write(true).open(&path).expect("a file");
        let with = |at: u64, bytes: &[u8], expected: &str| {
            file.write_all_at(bytes, at).expect("room");
            let (before, told) = (fs::read(&path).expect("a file"), told(None));
            assert!(told.contains(expected), "{told}");
            assert!(fs::read(&path).expect("a file") == before, "it was changed");
            file.write_all_at(&whole[..4096], 0).expect("room");
        };
        with(0, b"LABELONE", "not a Nyx deep file");
        with(8, &[9], "of format 9, but this build reads format 1");
        with(24, &[0xff; 4], "header damaged");
        with(0, &[0; 4096], "interrupted creation");
        file.set_len(500_000).expect("shorter");
        assert!(told(None).contains("truncated"), "{}", told(None));
        let absent = DeepFile::open(&dir.path().join("none"), None);
        assert!(absent.is_err() && !dir.path().join("none").exists());
    }
}
