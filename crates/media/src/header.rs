//! The first page of a data file: what it is, how long, and whether it was closed cleanly. The
//! layout is `docs/format.md`, "Data file".
//!
//! What it never does: look at the bytes behind the page; those belong to the store.
//!
//! The lock on the file is held for the life of a [`DataFile`], so two servers cannot share one.

use crate::MediaError;
use crate::mapping::PAGE_BYTES;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes before the medium's first.
pub(crate) const HEADER_BYTES: u64 = PAGE_BYTES as u64;
/// The format that this build writes and reads.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"NYXDATA\0";
/// The checksum covers the bytes before it; the mark behind it is changed by one aligned store.
const CHECKSUM_AT: usize = 48;
const MARK_AT: u64 = 56;
const MARK_CLEAN: u64 = u64::from_le_bytes(*b"clean\0\0\0");
const MARK_DIRTY: u64 = u64::from_le_bytes(*b"dirty\0\0\0");

/// How a data file was found when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// New: all bytes are zero.
    Fresh,
    /// Closed by [`crate::Mapped::mark_clean`]: all bytes are as they were left.
    Clean,
    /// Its last user did not close it: bytes may be torn wherever that user was writing.
    Dirty,
}

/// An open, locked data file whose whole length is allocated.
#[derive(Debug)]
pub(crate) struct DataFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) origin: Origin,
    uuid: [u8; 16],
    created_unix_s: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Header {
    medium_bytes: u64,
    uuid: [u8; 16],
    created_unix_s: u64,
    mark: u64,
}

impl DataFile {
    /// Opens the file for a medium of `len` bytes and marks it dirty; creates it where there is
    /// none or an empty one.
    pub(crate) fn open(path: &Path, len: u64) -> Result<DataFile, MediaError> {
        let failed = |action| file_error(path, action);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options
            .open(path)
            .map_err(failed("open it for reading and writing"))?;
        let metadata = file.metadata().map_err(failed("ask for its size"))?;
        if !metadata.is_file() {
            return Err(MediaError::NotAFile {
                path: path.to_owned(),
            });
        }
        lock(&file, path)?;
        // Asked again under the lock: another process may have created the file meanwhile.
        let file_bytes = file.metadata().map_err(failed("ask for its size"))?.len();
        let data = match file_bytes {
            0 => DataFile::create(file, path, len)?,
            _ => DataFile::reopen(file, path, len, file_bytes)?,
        };
        // One that is marked so already need not wait for all that its last user wrote.
        if data.origin != Origin::Dirty {
            data.mark(MARK_DIRTY)?;
        }
        Ok(data)
    }

    fn create(file: File, path: &Path, len: u64) -> Result<DataFile, MediaError> {
        let made = DataFile::fill_new(&file, path, len);
        if made.is_err() {
            // What failed half-way is ours and empty; left behind, it would look damaged.
            let _ = std::fs::remove_file(path);
        }
        Ok(DataFile {
            origin: Origin::Fresh,
            ..DataFile::found(file, path, &made?)
        })
    }

    fn fill_new(file: &File, path: &Path, len: u64) -> Result<Header, MediaError> {
        allocate(file, path, HEADER_BYTES + len)?;
        let uuid = random_uuid().map_err(file_error(path, "draw an id for it"))?;
        let created = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        let created_unix_s = created.as_secs();
        let header = Header {
            medium_bytes: len,
            uuid,
            created_unix_s,
            mark: MARK_DIRTY,
        };
        file.write_all_at(&header.encode(), 0)
            .map_err(file_error(path, "write its header"))?;
        file.sync_all().map_err(file_error(path, "sync it"))?;
        Ok(header)
    }

    /// A file to be looked at, which stays as it is, and the length of its medium.
    pub(crate) fn look(path: &Path) -> Result<(DataFile, u64), MediaError> {
        let failed = |action| file_error(path, action);
        let file = File::open(path).map_err(failed("open it for reading"))?;
        lock_shared(&file, path)?;
        let file_bytes = file.metadata().map_err(failed("ask for its size"))?.len();
        let header = Header::read_whole(&file, path, file_bytes)?;
        let len = header.medium_bytes;
        Ok((DataFile::found(file, path, &header), len))
    }

    fn found(file: File, path: &Path, header: &Header) -> DataFile {
        let origin = match header.mark {
            MARK_CLEAN => Origin::Clean,
            _ => Origin::Dirty,
        };
        DataFile {
            file,
            path: path.to_owned(),
            origin,
            uuid: header.uuid,
            created_unix_s: header.created_unix_s,
        }
    }

    fn reopen(file: File, path: &Path, len: u64, file_bytes: u64) -> Result<DataFile, MediaError> {
        let header = Header::read_whole(&file, path, file_bytes)?;
        if header.medium_bytes < len {
            let (path, found_bytes) = (path.to_owned(), header.medium_bytes);
            return Err(MediaError::TooSmall {
                path,
                found_bytes,
                asked_bytes: len,
            });
        }
        // A copy of the file may have holes; writing to one on a full disk would be a SIGBUS.
        allocate(&file, path, HEADER_BYTES + header.medium_bytes)?;
        Ok(DataFile::found(file, path, &header))
    }

    /// Everything written so far to the disk, then the mark that says so.
    pub(crate) fn mark_clean(&self) -> Result<(), MediaError> {
        self.file
            .sync_data()
            .map_err(file_error(&self.path, "sync it"))?;
        self.mark(MARK_CLEAN)
    }

    fn mark(&self, mark: u64) -> Result<(), MediaError> {
        let written = self.file.write_all_at(&mark.to_le_bytes(), MARK_AT);
        let synced = written.and_then(|()| self.file.sync_data());
        synced.map_err(file_error(&self.path, "write its clean mark"))
    }

    /// The file's id.
    pub(crate) fn id(&self) -> [u8; 16] {
        self.uuid
    }

    /// When it was made, in seconds since the Unix epoch.
    pub(crate) fn created_unix_s(&self) -> u64 {
        self.created_unix_s
    }
}

/// An id of a file in the usual form.
pub fn uuid(id: &[u8; 16]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    [&id[0..4], &id[4..6], &id[6..8], &id[8..10], &id[10..16]]
        .map(hex)
        .join("-")
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(PAGE_BYTES);
        page.extend(MAGIC);
        page.extend(VERSION.to_le_bytes());
        page.extend((HEADER_BYTES as u32).to_le_bytes());
        page.extend(self.medium_bytes.to_le_bytes());
        page.extend(self.uuid);
        page.extend(self.created_unix_s.to_le_bytes());
        assert_eq!(page.len(), CHECKSUM_AT);
        page.extend(xxh3_64(&page).to_le_bytes());
        page.extend(self.mark.to_le_bytes());
        page.resize(PAGE_BYTES, 0);
        page
    }

    /// The header of a file that is as long as it says.
    fn read_whole(file: &File, path: &Path, file_bytes: u64) -> Result<Header, MediaError> {
        let header = Header::read(file, path, file_bytes)?;
        let needed = HEADER_BYTES.saturating_add(header.medium_bytes);
        match file_bytes < needed {
            true => Err(MediaError::Truncated {
                path: path.to_owned(),
                file_bytes,
                header_bytes: needed,
            }),
            false => Ok(header),
        }
    }

    fn read(file: &File, path: &Path, file_bytes: u64) -> Result<Header, MediaError> {
        let path = path.to_owned();
        let mut page = [0u8; PAGE_BYTES];
        let present = file_bytes.min(HEADER_BYTES) as usize;
        if let Err(source) = file.read_exact_at(&mut page[..present], 0) {
            return Err(MediaError::File {
                path,
                action: "read its header",
                source,
            });
        }
        let u64_at = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
        let magic: [u8; 8] = page[..8].try_into().expect("8 bytes");
        if page.iter().all(|&byte| byte == 0) {
            return Err(MediaError::Unfinished { path });
        }
        if magic != MAGIC {
            return Err(MediaError::Foreign { path, found: magic });
        }
        if file_bytes < HEADER_BYTES {
            return Err(MediaError::Truncated {
                path,
                file_bytes,
                header_bytes: HEADER_BYTES,
            });
        }
        check_page(&page, &path, VERSION, CHECKSUM_AT)?;
        let uuid = page[24..40].try_into().expect("16 bytes");
        let (medium_bytes, created_unix_s) = (u64_at(16), u64_at(40));
        Ok(Header {
            medium_bytes,
            uuid,
            created_unix_s,
            mark: u64_at(MARK_AT as usize),
        })
    }
}

/// Whether the page of a header, or of an image's, has this version, and the checksum of what
/// stands before `checksum_at`. Whose page it is was looked at before.
pub(crate) fn check_page(
    page: &[u8; PAGE_BYTES],
    path: &Path,
    version: u32,
    checksum_at: usize,
) -> Result<(), MediaError> {
    let path = || path.to_owned();
    let found = u32::from_le_bytes(page[8..12].try_into().expect("4 bytes"));
    // Before the checksum: another format may keep its checksum elsewhere.
    if found != version {
        return Err(MediaError::Version {
            path: path(),
            found,
            known: version,
        });
    }
    let (before, from) = page.split_at(checksum_at);
    let stored = u64::from_le_bytes(from[..8].try_into().expect("8 bytes"));
    let computed = xxh3_64(before);
    match stored == computed {
        true => Ok(()),
        false => Err(MediaError::Checksum {
            path: path(),
            stored,
            computed,
        }),
    }
}

pub(crate) fn file_error(
    path: &Path,
    action: &'static str,
) -> impl FnOnce(io::Error) -> MediaError {
    let path = path.to_owned();
    move |source| MediaError::File {
        path,
        action,
        source,
    }
}

/// Keeps others from a file.
pub(crate) fn lock(file: &File, path: &Path) -> Result<(), MediaError> {
    locked(file.try_lock(), path)
}

/// Keeps others from changing a file.
pub(crate) fn lock_shared(file: &File, path: &Path) -> Result<(), MediaError> {
    locked(file.try_lock_shared(), path)
}

fn locked(tried: Result<(), TryLockError>, path: &Path) -> Result<(), MediaError> {
    match tried {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(MediaError::InUse {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(file_error(path, "lock it")(source)),
    }
}

/// Gives the whole length its blocks, so that a full disk is an error now and not a SIGBUS at some
/// later store.
pub(crate) fn allocate(file: &File, path: &Path, len_bytes: u64) -> Result<(), MediaError> {
    // On tmpfs to look at each page takes its time. As many blocks as bytes leave no hole, where
    // none of them are the file system's own; if some are, it keeps runs and is quick.
    let has_all = |metadata: std::fs::Metadata| {
        metadata.blocks() * 512 == metadata.len().next_multiple_of(PAGE_BYTES as u64)
            && metadata.len() >= len_bytes
    };
    if file.metadata().is_ok_and(has_all) {
        return Ok(());
    }
    fallocate(file, FallocateFlags::empty(), 0, len_bytes).map_err(|e| {
        let path = path.to_owned();
        MediaError::Allocate {
            path,
            len_bytes,
            source: e.into(),
        }
    })
}

/// A random (version 4) UUID.
pub(crate) fn random_uuid() -> io::Result<[u8; 16]> {
    let mut uuid = [0u8; 16];
    File::open("/dev/urandom")?.read_exact(&mut uuid)?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte for byte, so that no edit changes the format unnoticed.
    #[test]
    fn the_header_is_the_documented_bytes() {
        let uuid = std::array::from_fn(|i| i as u8);
        let header = Header {
            medium_bytes: 1 << 20,
            uuid,
            created_unix_s: 7,
            mark: MARK_CLEAN,
        };
        let page = header.encode();
        assert_eq!(page.len(), 4096);
        let golden = [
            &b"NYXDATA\0"[..],
            &[1, 0, 0, 0, 0, 0x10, 0, 0],
            &[0, 0, 0x10, 0, 0, 0, 0, 0],
            &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
            &[7, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(page[..48], golden);
        assert_eq!(page[48..56], xxh3_64(&golden).to_le_bytes());
        assert_eq!(&page[56..64], b"clean\0\0\0");
        assert!(page[64..].iter().all(|&b| b == 0));
    }

    #[test]
    fn a_uuid_is_of_version_4_and_not_the_last_one() {
        let (a, b) = (
            random_uuid().expect("random bytes"),
            random_uuid().expect("random bytes"),
        );
        assert_ne!(a, b);
        assert_eq!((a[6] >> 4, a[8] >> 6), (4, 2));
    }
}
