//! The files of a journal: their names, what each says of itself, which of them belong together,
//! and how a journal begins with those that it finds.
//!
//! What it never does: read a record.

use super::{END, FILE_BYTES_MAX, FILE_BYTES_MIN, FILE_ONE_IN, FOLLOWS_WHOLE};
use super::{Journal, Open, TAIL, Tail};
use super::{RECORDS_BETWEEN, SEQ, SEQ_INVERSE};
use crate::config::{Journaling, StoreConfig, StoreError};
use crate::kept::Kept;
use crate::request::KEY_LEN_MAX;
use crate::segment::SEQ_MAX;
use nyx_media::{LogBytes, LogFile, MediaError};
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The layout of a journal's records.
const FORMAT: u32 = 1;
const SUFFIX: &str = ".log";
/// Behind the name of a journal's directory that is being removed.
const GONE: &str = ".gone";
/// Of a file's number in its name.
const DIGITS: usize = 10;
/// Sequence numbers that a store may have given since the last sync of its journal.
const SEQ_GAP: u64 = 1 << 20;
/// Bytes of a record beside key and value, at most.
const RECORD_BYTES: usize = 48;

/// Whose journal it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct About {
    /// Of the image of its tenant.
    pub(super) image_id: [u8; 16],
    /// The tenant's name.
    pub(super) name: String,
}

/// A file that was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    /// What it says of itself; none where its page is damaged.
    pub(super) page: Option<(About, [u64; LogFile::WORDS])>,
    /// It was never begun: whoever made it was cut off.
    pub(super) is_blank: bool,
}

/// How a journal begins.
pub(crate) enum Start {
    /// Its tenant's image cannot be used: what it has is to be stored.
    Replay(Vec<Found>),
    /// It goes on with files that hold all that the image does.
    GoOn,
    /// It begins anew, and knows nothing of what the image has.
    Anew,
}

impl About {
    pub(super) fn encode(&self, number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(u64::from(FORMAT).to_le_bytes());
        bytes.extend(number.to_le_bytes());
        bytes.extend(self.image_id);
        bytes.extend(self.name.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<(u32, u64, About)> {
        let word = |at: usize| {
            let bytes: [u8; 8] = bytes.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let about = About {
            image_id: bytes.get(16..32)?.try_into().ok()?,
            name: String::from_utf8_lossy(&bytes[32..]).into_owned(),
        };
        Some((u32::try_from(word(0)?).ok()?, word(8)?, about))
    }
}

impl Found {
    /// A word of its page; zero where that is damaged.
    pub(super) fn word(&self, word: usize) -> u64 {
        self.page.as_ref().map_or(0, |(_, words)| words[word])
    }

    /// How far it was written, as it says.
    pub(super) fn tail(&self) -> usize {
        self.word(TAIL) as usize
    }

    /// Where it ends, if nothing more was to come.
    pub(super) fn end(&self) -> Option<usize> {
        let end = self.word(END).checked_sub(1)? as usize;
        (end == self.tail()).then_some(end)
    }

    /// The sequence number that it states; none where that cannot be one.
    fn seq(&self) -> Option<u64> {
        let seq = self.word(SEQ);
        (self.word(SEQ_INVERSE) == !seq && seq < SEQ_MAX / 2).then_some(seq)
    }

    /// The tenant's name, as it says.
    pub(super) fn name(&self) -> Option<&str> {
        self.page.as_ref().map(|(about, _)| about.name.as_str())
    }

    fn read(number: u64, path: PathBuf, name: Option<&str>) -> Result<Found, StoreError> {
        let damaged = |reason: String| StoreError::Damaged {
            path: path.clone(),
            reason,
        };
        let mut is_blank = false;
        let page = match LogFile::read(&path, false) {
            Ok(LogBytes { about, words, .. }) => match About::decode(&about) {
                Some((FORMAT, stated, about)) if name.is_none_or(|name| about.name == name) => {
                    (stated == number).then_some((about, words))
                }
                Some((FORMAT, _, about)) => {
                    return Err(StoreError::OtherTenant {
                        path,
                        made: about.name,
                        asked: name.unwrap_or_default().to_owned(),
                    });
                }
                Some((other, ..)) => {
                    return Err(damaged(format!(
                        "it is of format {other}, and this build knows {FORMAT} only"
                    )));
                }
                None => None,
            },
            Err(error @ MediaError::Version { .. }) => return Err(error.into()),
            Err(error @ MediaError::File { .. }) if is_unreadable(&error) => {
                return Err(error.into());
            }
            Err(error) => {
                let begins_blank = |found: &[u8; 8]| *found == [0; 8];
                is_blank = match &error {
                    MediaError::NoLog { found, .. } => begins_blank(found),
                    error => matches!(error, MediaError::File { .. }),
                };
                None
            }
        };
        Ok(Found {
            number,
            path,
            page,
            is_blank,
        })
    }
}

/// Whether an error is the system's and not that of a file that is too short.
fn is_unreadable(error: &MediaError) -> bool {
    let eof = ErrorKind::UnexpectedEof;
    matches!(error, MediaError::File { source, .. } if source.kind() != eof)
}

/// Where the file of a number is.
pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:0DIGITS$}{SUFFIX}"))
}

/// Keeps others from a journal for as long as this lives.
fn lock(dir: &Path) -> Result<File, MediaError> {
    let failed = |source| MediaError::File {
        path: dir.to_owned(),
        action: "lock it",
        source,
    };
    let lock = File::open(dir).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(MediaError::InUse {
            path: dir.to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// Makes names durable that came or went.
pub(super) fn sync_dir(dir: &Path) -> Result<(), MediaError> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|source| MediaError::File {
        path: dir.to_owned(),
        action: "sync it",
        source,
    })
}

/// The files of a directory, the oldest first.
fn list(dir: &Path) -> Result<Vec<(u64, PathBuf)>, MediaError> {
    let failed = |source| MediaError::File {
        path: dir.to_owned(),
        action: "list it",
        source,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_suffix(SUFFIX));
        let number = number.filter(|number| number.len() == DIGITS);
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            files.push((number, path));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// The files of a journal, which is `name`'s where that is asked.
pub(super) fn find(dir: &Path, name: Option<&str>) -> Result<Vec<Found>, StoreError> {
    let files = list(dir)?.into_iter();
    files
        .map(|(number, path)| Found::read(number, path, name))
        .collect()
}

/// Removes files, the oldest first, so that those that are there whatever happens follow each
/// other.
pub(super) fn remove<'p>(
    dir: &Path,
    files: impl Iterator<Item = &'p Path>,
) -> Result<(), MediaError> {
    let mut any = false;
    for path in files {
        match std::fs::remove_file(path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(MediaError::File {
                    path: path.to_owned(),
                    action: "remove it",
                    source,
                });
            }
            _ => any = true,
        }
    }
    if any { sync_dir(dir) } else { Ok(()) }
}

/// Removes the journal in a directory, if there is one: its tenant goes on without, and nobody is
/// to find later what was so before. What else is in the directory stays, under another name.
/// Whether there was one.
pub fn forget_journal(dir: &Path) -> Result<bool, StoreError> {
    let failed = |source| MediaError::File {
        path: dir.to_owned(),
        action: "remove it",
        source,
    };
    // What a kill leaves in the middle must not be taken for a journal: it has another name first.
    let mut gone = dir.as_os_str().to_owned();
    gone.push(GONE);
    let gone = Path::new(&gone);
    remove_gone(gone)?;
    if !dir.try_exists().map_err(failed)? || list(dir)?.is_empty() {
        return Ok(false);
    }
    let _lock = lock(dir)?;
    std::fs::rename(dir, gone).map_err(failed)?;
    sync_dir(above(dir))?;
    remove_gone(gone)?;
    Ok(true)
}

/// Removes what [`forget_journal`] gave another name.
fn remove_gone(gone: &Path) -> Result<(), StoreError> {
    if !gone.exists() {
        return Ok(());
    }
    let files = list(gone)?;
    remove(gone, files.iter().map(|(_, path)| path.as_path()))?;
    match std::fs::remove_dir(gone) {
        Err(source) if source.kind() != ErrorKind::DirectoryNotEmpty => {
            Err(StoreError::from(MediaError::File {
                path: gone.to_owned(),
                action: "remove it",
                source,
            }))
        }
        _ => Ok(()),
    }
}

impl Journal {
    /// The journal of a tenant with this image. Also the sequence number that the store is to begin
    /// above, where it begins anew.
    pub(crate) fn open(
        config: &StoreConfig,
        journaling: &Journaling,
        kept: &Kept,
    ) -> Result<(Journal, Start, u64), StoreError> {
        let (image_id, numbered) = (kept.image_id(), kept.numbered());
        let found = kept.beginning().is_found();
        let name = &journaling.name;
        make_dir(&journaling.dir)?;
        let lock = lock(&journaling.dir)?;
        let mut files = find(&journaling.dir, Some(name))?;
        // Who made it was cut off: it never had anything.
        while let Some(blank) = files.pop_if(|last| last.is_blank) {
            remove(&journaling.dir, [blank.path.as_path()].into_iter())?;
        }
        let seq = files.iter().filter_map(Found::seq).max();
        let seq = seq.map_or(0, |seq| seq + SEQ_GAP);
        let journal = Journal::of(config, journaling, image_id, lock);
        let was = numbered.load(Acquire);
        let start = match files.last() {
            Some(_) if !found => Start::Replay(files),
            Some(last) if last.is_of(&image_id, was) => {
                journal.go_on(files, numbered)?;
                Start::GoOn
            }
            _ => {
                remove(&journaling.dir, files.iter().map(|one| one.path.as_path()))?;
                let newest = files.last().map_or(0, |last| last.number);
                // Before there is a file: whoever finds it after a kill goes on with it.
                kept.journal_is_whole().store(u64::from(!found), Release);
                journal.begin(was.max(newest) + 1, numbered)?;
                if found { Start::Anew } else { Start::GoOn }
            }
        };
        Ok((journal, start, seq))
    }

    fn of(
        config: &StoreConfig,
        journaling: &Journaling,
        image_id: [u8; 16],
        lock: File,
    ) -> Journal {
        let small = KEY_LEN_MAX + RECORD_BYTES;
        let last_bytes = usize::from(config.workers) * RECORDS_BETWEEN * small;
        let reserve = config.item_len_max as usize + small + last_bytes;
        let part = (config.size / FILE_ONE_IN).clamp(FILE_BYTES_MIN, FILE_BYTES_MAX);
        let file_bytes = journaling
            .file_bytes
            .unwrap_or(part)
            .max(4 * reserve as u64);
        Journal {
            about: About {
                image_id,
                name: journaling.name.clone(),
            },
            config: journaling.clone(),
            _lock: lock,
            file_bytes: file_bytes.next_multiple_of(4096) as usize,
            reserve,
            last_bytes,
            tail: Default::default(),
            appended: Default::default(),
            durable: Default::default(),
            syncing: Default::default(),
            sync_began: Default::default(),
            syncs: Default::default(),
            failed: Default::default(),
            trouble: Default::default(),
            is_asked: Default::default(),
            is_starved: Default::default(),
            syncer: Default::default(),
            rewrite: Default::default(),
            is_roomy: Default::default(),
            is_replaying: Default::default(),
        }
    }

    /// Goes on behind files that were found. Those that are not at their end are now: how far they
    /// were written each says itself, since the machine has run on or all was synced.
    fn go_on(&self, mut files: Vec<Found>, numbered: &AtomicU64) -> Result<(), StoreError> {
        let is_spare = |one: &Found| one.tail() == 0 && one.end().is_none();
        let spare = files.pop_if(|last| is_spare(last));
        remove(&self.config.dir, spare.iter().map(|one| one.path.as_path()))?;
        let number = match (files.last(), &spare) {
            (Some(last), _) => last.number + 1,
            (None, Some(spare)) => spare.number,
            (None, None) => 1,
        };
        self.adopt(files, None)?;
        self.begin(number, numbered)
    }

    /// Takes over files that were found, the last of which may be known to end somewhere. Those
    /// that are not known to be durable are made so before anything behind them.
    pub(super) fn adopt(&self, files: Vec<Found>, end: Option<usize>) -> Result<(), StoreError> {
        // Only its successor says so of a file.
        let follows = files
            .iter()
            .skip(1)
            .map(|next| next.word(FOLLOWS_WHOLE) == 1);
        let is_durable = follows.chain([false]);
        let mut ended = Vec::new();
        for (at, (one, _)) in (files.iter().zip(is_durable))
            .enumerate()
            .filter(|(_, (one, is_durable))| !is_durable && one.page.is_some())
        {
            let (file, writer) = LogFile::open(&one.path)?;
            let end = end.filter(|_| at + 1 == files.len());
            let open = Open {
                number: one.number,
                at: end.unwrap_or(one.tail()).min(file.len() as usize),
                file: Arc::new(file),
                writer,
                before: 0,
            };
            if end.is_some() || one.end().is_none() {
                open.end();
            }
            ended.push(open);
        }
        let mut tail = self.lock();
        let paths = files.into_iter().map(|one| (one.number, one.path));
        tail.files.extend(paths);
        tail.ended.extend(ended);
        Ok(())
    }

    /// Begins a file to be appended to.
    pub(super) fn begin(&self, number: u64, numbered: &AtomicU64) -> Result<(), StoreError> {
        let open = self.make(number, numbered)?;
        let mut tail = self.lock();
        let Tail { files, .. } = &mut *tail;
        files.push_back((number, open.file.path().to_owned()));
        tail.open = Some(open);
        self.is_roomy.store(true, Relaxed);
        Ok(())
    }
}

impl Found {
    /// Whether it is the newest file of the journal of this image, which says how many there were:
    /// the one that it has the number of, or the one before, if that was not made any more.
    fn is_of(&self, image_id: &[u8; 16], numbered: u64) -> bool {
        let is_newest = self.number == numbered || self.number + 1 == numbered;
        is_newest && (self.page.as_ref()).is_some_and(|(about, _)| about.image_id == *image_id)
    }
}

fn make_dir(dir: &Path) -> Result<(), MediaError> {
    let failed = |action| {
        let path = dir.to_owned();
        move |source| MediaError::File {
            path,
            action,
            source,
        }
    };
    std::fs::create_dir_all(dir).map_err(failed("make it"))?;
    sync_dir(above(dir))
}

/// The directory that a directory is in.
fn above(dir: &Path) -> &Path {
    let above = dir.parent().filter(|above| !above.as_os_str().is_empty());
    above.unwrap_or(Path::new("."))
}
