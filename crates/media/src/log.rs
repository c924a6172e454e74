//! A file of a log: as long from the start as it will ever be, mapped, written from its begin to
//! its end by one thread at a time and synced by another. The layout is `docs/format.md`, "Log
//! file".
//!
//! What is written is the kernel's as soon as it is there, so that a process that is killed loses
//! none of it; what was synced survives a power failure too. Between the two, pages and even parts
//! of them are of different ages, and who reads the file finds out with checks of its own.
//!
//! What it never does: look at the bytes behind its page; touch a byte for which the disk may have
//! no room.
//!
//! *Thread safety*: a [`LogWriter`] is one thread's at a time; a [`LogFile`] is anybody's.

use crate::MediaError;
use crate::dram::Region;
use crate::header::{allocate, check_page, file_error};
use crate::mapping::PAGE_BYTES;
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Release};
use xxhash_rust::xxh3::xxh3_64;

const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"NYXLOG\0\0";
const ABOUT_LEN_AT: usize = 24;
const ABOUT_AT: usize = 32;
/// The most bytes that may be said about a file.
const ABOUT_BYTES_MAX: usize = 1024;
const CHECKSUM_AT: usize = ABOUT_AT + ABOUT_BYTES_MAX;
/// Words that change, on lines of their own behind everything that never does.
const WORDS_AT: usize = 2048;

thread_local! {
    static OBSERVER: RefCell<Option<Observer>> = const { RefCell::new(None) };
}

/// Who is told of each file that was synced.
pub type Observer = Box<dyn FnMut(&Path)>;

/// Tells `observer` of each file of a log that this thread syncs from now on: for tests that play
/// power failures, which need to know what is durable when.
pub fn observe_syncs(observer: Option<Observer>) {
    OBSERVER.set(observer);
}

fn synced(path: &Path) {
    OBSERVER.with_borrow_mut(|observer| {
        if let Some(observer) = observer {
            observer(path);
        }
    });
}

/// A file of a log.
#[derive(Debug)]
pub struct LogFile {
    file: Arc<File>,
    path: PathBuf,
    len: u64,
}

/// The hand that writes a file of a log.
#[derive(Debug)]
pub struct LogWriter {
    region: Region,
}

/// What a file of a log holds, read into memory.
#[derive(Debug)]
pub struct LogBytes {
    /// What its maker said about it.
    pub about: Vec<u8>,
    /// Its words, as they were read.
    pub words: [u64; LogFile::WORDS],
    /// Everything behind its page.
    pub bytes: Vec<u8>,
}

impl LogFile {
    /// The format that this build writes and reads.
    pub const VERSION: u32 = VERSION;
    /// Words of eight bytes that its user may change at any time, zero at first.
    pub const WORDS: usize = 8;

    /// A new file with room for `len` bytes behind its page, all zero and all of them allocated,
    /// and what `about` says of it. It is durable when this returns, its name in the directory
    /// excepted.
    ///
    /// Panics where `about` is longer than 1 KiB.
    pub fn create(path: &Path, about: &[u8], len: u64) -> Result<(LogFile, LogWriter), MediaError> {
        let failed = |action| file_error(path, action);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let file = Arc::new(options.open(path).map_err(failed("create it"))?);
        let filled = || {
            allocate(&file, path, PAGE_BYTES as u64 + len)?;
            let written = file.write_all_at(&page(about, len), 0);
            written.map_err(failed("write its header"))?;
            file.sync_all().map_err(failed("sync it"))?;
            let whole = PAGE_BYTES + len as usize;
            Region::of_file(&file, 0, whole, false, false).map_err(failed("map it"))
        };
        // What failed half-way is ours and empty; left behind, it would look damaged, and be in the
        // way of whoever tries again.
        let region = filled().inspect_err(|_| {
            let _ = std::fs::remove_file(path);
        })?;
        synced(path);
        let path = path.to_owned();
        Ok((LogFile { file, path, len }, LogWriter { region }))
    }

    /// One that is there, to be synced or to have its words changed.
    pub fn open(path: &Path) -> Result<(LogFile, LogWriter), MediaError> {
        let failed = |action| file_error(path, action);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(path);
        let file = Arc::new(file.map_err(failed("open it for reading and writing"))?);
        let mut page = [0; PAGE_BYTES];
        let read = file.read_exact_at(&mut page, 0);
        read.map_err(failed("read its header"))?;
        let (_, len) = read_page(&page, path)?;
        let region = Region::of_file(&file, 0, PAGE_BYTES, false, false);
        let region = region.map_err(failed("map it"))?;
        let path = path.to_owned();
        Ok((LogFile { file, path, len }, LogWriter { region }))
    }

    /// Reads the page of one that is there, and what is behind it where `whole` says so.
    pub fn read(path: &Path, whole: bool) -> Result<LogBytes, MediaError> {
        let failed = |action| file_error(path, action);
        let file = File::open(path).map_err(failed("open it for reading"))?;
        let mut page = [0; PAGE_BYTES];
        let read = file.read_exact_at(&mut page, 0);
        read.map_err(failed("read its header"))?;
        let (about, len) = read_page(&page, path)?;
        let metadata = file.metadata().map_err(failed("ask for its size"))?;
        let header_bytes = (PAGE_BYTES as u64).saturating_add(len);
        if metadata.len() < header_bytes {
            return Err(MediaError::Truncated {
                path: path.to_owned(),
                file_bytes: metadata.len(),
                header_bytes,
            });
        }
        let mut bytes = vec![0; if whole { len as usize } else { 0 }];
        let read = file.read_exact_at(&mut bytes, PAGE_BYTES as u64);
        read.map_err(failed("read it"))?;
        Ok(LogBytes {
            about,
            words: std::array::from_fn(|at| word(&page, WORDS_AT + 8 * at)),
            bytes,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Room in bytes behind its page.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is only a page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Waits until everything that was written is on the disk.
    pub fn sync(&self) -> Result<(), MediaError> {
        let done = self.file.sync_data();
        done.map_err(file_error(&self.path, "sync it"))?;
        synced(&self.path);
        Ok(())
    }
}

impl LogWriter {
    /// `len` bytes at `at` behind the page, to be written.
    ///
    /// Panics where they leave the file, and where it was not created but opened.
    #[inline]
    pub fn room(&mut self, at: usize, len: usize) -> &mut [u8] {
        let from = PAGE_BYTES + at;
        let fits = from
            .checked_add(len)
            .is_some_and(|end| end <= self.region.len());
        assert!(fits, "{len} bytes at {at} leave a file of a log");
        // SAFETY: the bytes are within the mapping, which lives as long as `self`, and all of them
        // were allocated in the file. Nobody else writes them: there is one writer of a file, and
        // it is borrowed for as long as the slice is. (The kernel reads them when it writes them
        // out, which needs no care.)
        unsafe { std::slice::from_raw_parts_mut(self.region.base().as_ptr().add(from), len) }
    }

    /// Changes one of the words, after everything that was written before it.
    #[inline]
    pub fn set_word(&self, word: usize, value: u64) {
        assert!(word < LogFile::WORDS);
        // SAFETY: the word is within the first page of the mapping and aligned; whoever writes it
        // does it here.
        let word = unsafe {
            self.region
                .base()
                .as_ptr()
                .add(WORDS_AT)
                .cast::<AtomicU64>()
                .add(word)
        };
        // SAFETY: as above; `self` outlives the reference.
        unsafe { &*word }.store(value, Release);
    }
}

fn page(about: &[u8], len: u64) -> Vec<u8> {
    assert!(about.len() <= ABOUT_BYTES_MAX);
    let mut page = Vec::with_capacity(PAGE_BYTES);
    page.extend(MAGIC);
    page.extend(VERSION.to_le_bytes());
    page.extend((PAGE_BYTES as u32).to_le_bytes());
    page.extend(len.to_le_bytes());
    assert_eq!(page.len(), ABOUT_LEN_AT);
    page.extend((about.len() as u64).to_le_bytes());
    page.extend(about);
    page.resize(CHECKSUM_AT, 0);
    page.extend(xxh3_64(&page).to_le_bytes());
    page.resize(PAGE_BYTES, 0);
    page
}

/// What was said about a file, and its room.
fn read_page(page: &[u8; PAGE_BYTES], path: &Path) -> Result<(Vec<u8>, u64), MediaError> {
    if page[..8] != MAGIC {
        return Err(MediaError::NoLog {
            path: path.to_owned(),
            found: page[..8].try_into().expect("8 bytes"),
        });
    }
    check_page(page, path, VERSION, CHECKSUM_AT)?;
    let len = (word(page, ABOUT_LEN_AT) as usize).min(ABOUT_BYTES_MAX);
    Ok((page[ABOUT_AT..ABOUT_AT + len].to_vec(), word(page, 16)))
}

fn word(page: &[u8; PAGE_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_by_whoever_opens_the_file_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.log");
        let (file, mut writer) = LogFile::create(&path, b"mine", 8192).unwrap();
        writer.room(8190, 2).copy_from_slice(b"ab");
        writer.room(0, 3).copy_from_slice(b"xyz");
        writer.set_word(7, 42);
        file.sync().unwrap();
        assert!(
            LogFile::create(&path, b"other", 8192).is_err(),
            "never over another"
        );
        drop((file, writer));
        let read = LogFile::read(&path, true).unwrap();
        assert_eq!(
            (read.about.as_slice(), read.words[7]),
            (b"mine".as_slice(), 42)
        );
        assert_eq!(
            (&read.bytes[..4], &read.bytes[8189..]),
            (&b"xyz\0"[..], &b"\0ab"[..])
        );
        let (file, writer) = LogFile::open(&path).unwrap();
        writer.set_word(0, 7);
        assert_eq!(
            (file.len(), LogFile::read(&path, false).unwrap().words[0]),
            (8192, 7)
        );
    }

    #[test]
    #[should_panic(expected = "leave a file of a log")]
    fn nobody_writes_behind_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let (_, mut writer) = LogFile::create(&dir.path().join("1.log"), b"", 4096).unwrap();
        writer.room(4090, 7);
    }

    #[test]
    fn what_is_no_log_is_refused_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.log");
        drop(LogFile::create(&path, b"mine", 4096).unwrap());
        let good = std::fs::read(&path).unwrap();
        let spoiled = |change: fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            std::fs::write(&path, bytes).unwrap();
            LogFile::read(&path, true).unwrap_err()
        };
        let foreign = spoiled(|bytes| bytes[0] = b'x');
        assert!(matches!(foreign, MediaError::NoLog { .. }), "{foreign}");
        let newer = spoiled(|bytes| bytes[8] = 2);
        assert!(
            matches!(newer, MediaError::Version { found: 2, .. }),
            "{newer}"
        );
        let flipped = spoiled(|bytes| bytes[ABOUT_AT] ^= 1);
        assert!(matches!(flipped, MediaError::Checksum { .. }), "{flipped}");
        let short = spoiled(|bytes| bytes.truncate(5000));
        assert!(matches!(short, MediaError::Truncated { .. }), "{short}");
        let shorter = spoiled(|bytes| bytes.truncate(500));
        assert!(matches!(shorter, MediaError::File { .. }), "{shorter}");
    }
}
