//! The journal of a tenant: every change, in the order in which the changes of each key took place,
//! so that what was acknowledged survives a power failure
//! (docs/decisions/0010-changes-in-a-journal.md). The layout is `docs/format.md`, "Journal of a
//! tenant".
//!
//! A change is appended under the lock of its key's bucket, to a file that is mapped: a killed
//! process loses none, and nothing is written twice by the kernel. A thread of the driver's calls
//! [`Journal::sync`], which makes durable what was appended before; how far that is, [`Journal`]
//! tells, and who has promised durability waits for it ([`SyncMode`]).
//!
//! Files are as long as they will be from the start; the next one is made before it is needed. Once
//! they are twice as long as what the tenant holds, all of that is appended again
//! ([`crate::Store::rewrite`]) and the files before it go.
//!
//! When the image of the tenant cannot be used, [`crate::Store::replay`] stores what the journal
//! has. *What may be left of a file after a power failure*: everything that was synced, and of what
//! was not any parts. A file's predecessor was synced whole before anything in the file was
//! acknowledged, which the file says from then on. So the first record that is not whole ends the
//! journal, unless something says that it had been synced: then it is damage.
//!
//! What it never does: wait, but for its lock; grow beyond its files; know what an item is.
//!
//! *Thread safety*: changes are appended by all workers, one at a time; one thread syncs.

mod files;
mod reading;
mod record;
mod replay;
mod rewrite;

pub(crate) use files::Start;
pub use files::forget_journal;
pub use reading::{JournalHealth, Replayed};
pub(crate) use record::{Change, Kind};
pub(crate) use replay::First;

use crate::config::{Journaling, StoreError, SyncMode};
use files::About;
use nyx_base::{Instant, Nanos};
use nyx_media::{LogFile, LogWriter, MediaError};
use rewrite::Rewrite;
use std::collections::VecDeque;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

/// How far the file was written.
const TAIL: usize = 0;
/// A sequence number of the store's above all that it had given, and the same with all bits the
/// other way round.
const SEQ: usize = 1;
const SEQ_INVERSE: usize = 2;
/// How far it was synced at least.
const SYNCED: usize = 3;
/// 1 where the file before it was synced whole.
const FOLLOWS_WHOLE: usize = 4;
/// One more than where it ends, once nothing more is appended to it.
const END: usize = 5;

/// A file of a journal, as a part of the tenant, within bounds.
const FILE_ONE_IN: u64 = 8;
const FILE_BYTES_MIN: u64 = 4 << 20;
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Files that a journal has at least before it is written anew.
const FILES_MIN: usize = 4;
/// Records that one worker appends at most between two looks at whether there is room: a value that
/// is too long for its tenant is not stored, and what it was to replace is deleted.
const RECORDS_BETWEEN: usize = 2;
/// Changes wait for a sync that takes longer than this.
const SYNC_TOO_LONG: Nanos = Nanos::from_secs(1);

/// The journal of a tenant.
#[derive(Debug)]
pub struct Journal {
    config: Journaling,
    /// Keeps others from its directory.
    _lock: File,
    about: About,
    /// Bytes of a file.
    file_bytes: usize,
    /// Bytes that must be left in the open one for a change to begin, and those of them that are
    /// for changes that cannot be refused any more.
    reserve: usize,
    last_bytes: usize,
    tail: Mutex<Tail>,
    /// There is room enough for what workers append before they look again.
    is_roomy: AtomicBool,
    /// Bytes that were appended since the start, and how many of those are durable.
    appended: AtomicU64,
    durable: AtomicU64,
    syncing: Mutex<()>,
    /// When the sync began that is under way; zero where none is.
    sync_began: AtomicU64,
    syncs: AtomicU64,
    /// Why nothing more is promised.
    failed: OnceLock<String>,
    /// What is wrong with its files at the moment.
    trouble: Mutex<Option<String>>,
    /// There is no next file.
    is_starved: AtomicBool,
    /// Who syncs, and whether it was asked to.
    syncer: OnceLock<Thread>,
    is_asked: AtomicBool,
    rewrite: Rewrite,
    /// It is being read: what takes place meanwhile is what it has.
    is_replaying: AtomicBool,
}

/// Where changes are appended.
#[derive(Debug, Default)]
struct Tail {
    open: Option<Open>,
    next: Option<Open>,
    /// Files that are at their end and not known to be durable.
    ended: VecDeque<Open>,
    /// Where all files are, the oldest first.
    files: VecDeque<(u64, PathBuf)>,
}

/// A file that is written.
#[derive(Debug)]
struct Open {
    number: u64,
    file: Arc<LogFile>,
    writer: LogWriter,
    /// How far it is written.
    at: usize,
    /// What was appended before its begin.
    before: u64,
}

/// Room for one record, held with the journal's lock.
pub(crate) struct Room<'a> {
    journal: &'a Journal,
    tail: MutexGuard<'a, Tail>,
}

/// Whether changes can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready<'a> {
    /// They can.
    Yes,
    /// Not yet: the disk is behind.
    Soon,
    /// Not before somebody makes room on the disk, or ever; the reason.
    No(&'a str),
}

/// A journal's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalFigures {
    /// Bytes of its files on the disk.
    pub file_bytes: u64,
    /// Bytes that were appended since the start.
    pub appended_bytes: u64,
    /// Bytes of those that are not known to be durable.
    pub unsynced_bytes: u64,
    /// Syncs since the start.
    pub syncs: u64,
    /// How often all of the tenant was written anew since the start.
    pub rewrites: u64,
}

impl Journal {
    /// When a change is durable.
    pub fn sync_mode(&self) -> SyncMode {
        self.config.sync
    }

    /// Bytes that were appended: what a change appended before is durable when [`Self::durable`]
    /// has come to this.
    #[inline]
    pub fn appended(&self) -> u64 {
        self.appended.load(Acquire)
    }

    /// Bytes that are durable.
    #[inline]
    pub fn durable(&self) -> u64 {
        self.durable.load(Acquire)
    }

    /// The calling thread will sync; it is unparked when there is reason not to wait longer.
    pub fn attend(&self) {
        // A second one would be told nothing, and may sync all the same.
        let _ = self.syncer.set(std::thread::current());
    }

    /// Asks whoever syncs to do it.
    #[inline]
    pub fn ask(&self) {
        if let Some(syncer) = self.syncer.get()
            && !self.is_asked.swap(true, AcqRel)
        {
            syncer.unpark();
        }
    }

    /// Whether a change can be made now: to be asked before each.
    #[inline]
    pub fn ready(&self, now: Instant) -> Ready<'_> {
        if let Some(why) = self.failed.get() {
            return Ready::No(why);
        }
        if self.is_replaying() {
            return Ready::No("the journal is being read");
        }
        let began = self.sync_began.load(Relaxed);
        if began != 0 && now.since(Instant(began)) > SYNC_TOO_LONG {
            return Ready::Soon;
        }
        match self.is_roomy.load(Relaxed) {
            true => Ready::Yes,
            false => self.not_ready(),
        }
    }

    #[cold]
    fn not_ready(&self) -> Ready<'_> {
        self.ask();
        match self.is_starved.load(Relaxed) {
            true => Ready::No("the disk has no room for the journal"),
            false => Ready::Soon,
        }
    }

    /// What is wrong with it, if anything is: why nothing more is promised, or why it cannot have
    /// its next file, or not be rid of an old one.
    pub fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        self.failed.get().or(trouble.as_ref()).cloned()
    }

    fn say(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Its figures.
    pub fn figures(&self) -> JournalFigures {
        let (appended, durable) = (self.appended(), self.durable());
        JournalFigures {
            file_bytes: self.lock().files.len() as u64 * self.file_bytes as u64,
            appended_bytes: appended,
            unsynced_bytes: appended.saturating_sub(durable),
            syncs: self.syncs.load(Relaxed),
            rewrites: self.rewrite.ended(),
        }
    }

    /// Nothing can be changed before [`crate::Store::replay`], where that is so.
    pub(crate) fn wait_for_replay(&self, is_to_replay: bool) {
        self.is_replaying.store(is_to_replay, Release);
    }

    /// Whether what takes place comes from it.
    #[inline]
    pub(crate) fn is_replaying(&self) -> bool {
        self.is_replaying.load(Relaxed)
    }

    /// Room for a record of this length, and the journal to oneself; none where there is none,
    /// which who asked [`Journal::ready`] before is not told, or after a failure.
    #[inline]
    pub(crate) fn room(&self, len: usize) -> Option<Room<'_>> {
        let mut tail = self.lock();
        if self.has_failed() || !self.make_room(&mut tail, len, self.last_bytes) {
            return None;
        }
        Some(Room {
            journal: self,
            tail,
        })
    }

    /// Room for `change`, which has taken place or will whatever happens here.
    #[inline]
    pub(crate) fn append(&self, change: &Change<'_>) {
        let mut tail = self.lock();
        if self.has_failed() {
            return;
        }
        match self.make_room(&mut tail, change.len(), 0) {
            true => Room {
                journal: self,
                tail,
            }
            .write(change),
            false => self.fail("a change found no room in the journal".to_owned()),
        }
    }

    /// Makes room for `len` bytes, and leaves others where there is no next file.
    #[inline]
    fn make_room(&self, tail: &mut Tail, len: usize, others: usize) -> bool {
        let Some(open) = &tail.open else { return false };
        let left = self.file_bytes - open.at;
        let fits = left >= len && (left >= len + others || tail.next.is_some());
        fits || len + others <= self.file_bytes && self.turn_over(tail)
    }

    /// Goes on in the next file, if there is one.
    #[cold]
    fn turn_over(&self, tail: &mut Tail) -> bool {
        let Some(mut next) = tail.next.take() else {
            return false;
        };
        if let Some(open) = tail.open.take() {
            next.before = open.before + open.at as u64;
            open.end();
            tail.ended.push_back(open);
        }
        tail.open = Some(next);
        self.ask();
        true
    }

    fn lock(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nothing is promised any more.
    pub fn has_failed(&self) -> bool {
        self.failed.get().is_some()
    }

    /// From now on nothing is promised, and nothing appended.
    fn fail(&self, why: String) {
        let _ = self.failed.set(why);
        self.ask();
    }

    /// Makes durable what was appended before, and sees that there is a next file; what is durable
    /// then. `seq` is above all sequence numbers that the store has given, and the image keeps the
    /// number of the newest file in `numbered`.
    ///
    /// Errors: after one, nothing more can be changed; what was synced before stays durable.
    pub(crate) fn sync(
        &self,
        seq: u64,
        numbered: &AtomicU64,
        now: Instant,
    ) -> Result<u64, StoreError> {
        let _one = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_failed() {
            return Ok(self.durable());
        }
        // Who asks from now on may have appended behind what is synced here.
        self.is_asked.store(false, Release);
        self.prepare_next(numbered);
        self.sync_began.store(now.0.max(1), Relaxed);
        let synced = self.sync_files(seq);
        self.sync_began.store(0, Relaxed);
        if let Err(error) = &synced {
            self.fail(error.to_string());
        }
        Ok(synced?)
    }

    fn sync_files(&self, seq: u64) -> Result<u64, MediaError> {
        let mut tail = self.lock();
        let Some(open) = &tail.open else {
            return Ok(self.durable());
        };
        let (file, number, at) = (open.file.clone(), open.number, open.at);
        let position = open.before + at as u64;
        if position == self.durable() && tail.ended.is_empty() {
            return Ok(position);
        }
        open.writer.set_word(SEQ, seq);
        open.writer.set_word(SEQ_INVERSE, !seq);
        let ended = std::mem::take(&mut tail.ended);
        drop(tail);
        let mut ended = ended.into_iter().peekable();
        while let Some(one) = ended.next() {
            one.file.sync()?;
            match ended.peek() {
                Some(next) if next.number == one.number + 1 => {
                    next.writer.set_word(FOLLOWS_WHOLE, 1);
                }
                _ => self.lock().set_word(one.number + 1, FOLLOWS_WHOLE, 1),
            }
        }
        // What is promised of this file rests on what it says of the one before.
        file.sync()?;
        self.syncs.fetch_add(1, Relaxed);
        self.lock().set_word(number, SYNCED, at as u64);
        self.durable.store(position, Release);
        Ok(position)
    }

    /// Makes the next file, if there is none.
    fn prepare_next(&self, numbered: &AtomicU64) {
        let number = match &*self.lock() {
            Tail {
                next: None,
                open: Some(open),
                ..
            } => open.number + 1,
            _ => return,
        };
        let made = self.make(number, numbered);
        self.say(made.as_ref().err().map(ToString::to_string));
        self.is_starved.store(made.is_err(), Relaxed);
        if let Ok(next) = made {
            let mut tail = self.lock();
            tail.files.push_back((number, next.file.path().to_owned()));
            tail.next = Some(next);
            self.is_roomy.store(true, Relaxed);
        }
    }

    /// A new file, durable with its name. The image has its number before it is there.
    fn make(&self, number: u64, numbered: &AtomicU64) -> Result<Open, MediaError> {
        numbered.store(number, Release);
        let path = files::path(&self.config.dir, number);
        let about = self.about.encode(number);
        let (file, writer) = LogFile::create(&path, &about, self.file_bytes as u64)?;
        files::sync_dir(&self.config.dir).inspect_err(|_| {
            let _ = std::fs::remove_file(&path);
        })?;
        Ok(Open {
            number,
            file: Arc::new(file),
            writer,
            at: 0,
            before: 0,
        })
    }
}

impl Tail {
    /// Whether there is room for `reserve` bytes of records.
    fn has(&self, reserve: usize) -> bool {
        self.open.as_ref().is_some_and(|open| {
            self.next.is_some() || open.file.len() as usize - open.at >= reserve
        })
    }

    /// Changes a word of the file of a number, if that is written or was.
    fn set_word(&self, number: u64, word: usize, value: u64) {
        let mut all = self.ended.iter().chain(&self.open);
        if let Some(one) = all.find(|one| one.number == number) {
            one.writer.set_word(word, value);
        }
    }
}

impl Open {
    /// Says that nothing more comes behind what there is.
    fn end(&self) {
        self.writer.set_word(TAIL, self.at as u64);
        self.writer.set_word(END, self.at as u64 + 1);
    }
}

impl Room<'_> {
    /// Appends a change, whose record is no longer than was asked for.
    #[inline]
    pub(crate) fn write(self, change: &Change<'_>) {
        let len = change.len();
        self.write_with(len, |room, seed| change.encode(room, seed));
    }

    /// The same with a value of `value_len` bytes that `fill` writes.
    #[inline]
    fn write_from(self, change: &Change<'_>, value_len: usize, fill: impl FnOnce(&mut [u8])) {
        let len = change.len_with(value_len);
        self.write_with(len, |room, seed| {
            change.encode_with(room, seed, value_len, fill);
        });
    }

    #[inline]
    fn write_with(mut self, len: usize, encode: impl FnOnce(&mut [u8], u64)) {
        let open = self.tail.open.as_mut().expect("there was room in it");
        let seed = record::seed(open.number, open.at);
        encode(open.writer.room(open.at, len), seed);
        open.at += len;
        // Only now: whoever finds the file after a kill takes it at its word.
        open.writer.set_word(TAIL, open.at as u64);
        let appended = open.before + open.at as u64;
        let Journal { reserve, .. } = *self.journal;
        self.journal.appended.store(appended, Release);
        let is_roomy = self.tail.has(reserve);
        if is_roomy != self.journal.is_roomy.load(Relaxed) {
            self.journal.is_roomy.store(is_roomy, Relaxed);
        }
    }
}
