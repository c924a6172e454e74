//! What a crash may leave of persistent memory: a memory that records every store, write-back and
//! fence, and yields every state that the model of [`super`] allows after a crash at any moment.
//!
//! Per cache line a state has some prefix of the stores made to it, at least those that a fence
//! made durable. A state that is legal at some moment stays legal until a fence forbids it, so each
//! state is shown once, at the last moment at which it is legal: when most had been acknowledged.
//! That makes the check as strict as it can be and covers a crash after each single store.
//!
//! A check that finds nothing proves nothing unless it finds bugs that are there. So a recorder can
//! be told to forget a flush or a fence, or to let a store become durable too late, by the place in
//! the source that asks for it ([`Mutation`]): a test makes each of these mutants and demands that
//! its checker finds it.
//!
//! What it never does: run threads, or decide what is right; that is its caller's checker.
//!
//! *Thread safety*: words are atomics; the log is behind a lock, so that several threads can be
//! recorded. States are enumerated when nobody writes.
//!
//! Source: the method is that of Yat (ATC'14) and Jaaru (ASPLOS'21), restricted to x86.

#![cfg(not(any(loom, shuttle)))]

mod states;

use super::{LINE_WORDS, Pmem, WORD_BYTES, Word};
use crate::prim;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard};
use std::thread::ThreadId;

pub use states::{Crash, Depth};

/// A place in the source that stores, flushes or fences.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The source file, as the compiler was given it.
    pub file: &'static str,
    /// Its line, from 1.
    pub line: u32,
    /// Its column, from 1.
    pub column: u32,
}

impl Site {
    #[track_caller]
    fn here() -> Site {
        let at = Location::caller();
        Site {
            file: at.file(),
            line: at.line(),
            column: at.column(),
        }
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// What a site asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Act {
    /// A word is stored.
    Store,
    /// Lines are written back.
    Flush,
    /// What was written back is waited for.
    Fence,
}

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// The flush at this place is forgotten.
    NoFlush(Site),
    /// The fence at this place is forgotten.
    NoFence(Site),
    /// A store at this place becomes durable only after the next one to its line: the order that
    /// a compiler, or a careless hand, makes of two stores.
    Late(Site),
}

/// One thing that happened, in order.
#[derive(Clone, Copy, Debug)]
enum Event {
    Store { word: usize, value: u64, late: bool },
    Flush { line: usize, thread: ThreadId },
    Fence { thread: ThreadId },
    Acknowledged(u64),
}

#[derive(Debug, Default)]
struct Log {
    events: Vec<Event>,
    /// How often each site acted.
    sites: BTreeMap<(Act, Site), u64>,
    /// How many acts there will be before the process is killed.
    acts_left: Option<u64>,
}

/// What [`Recorder::kill_after`] unwinds with.
#[derive(Debug)]
pub struct Killed;

/// See the module.
pub struct Recorder {
    words: Box<[Word]>,
    /// What was durable when recording began.
    durable: Vec<u64>,
    log: Mutex<Log>,
    mutation: Option<Mutation>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("size_bytes", &self.size_bytes())
            .field("mutation", &self.mutation)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// Zeroed memory of `size_bytes`, which is rounded up to whole lines, recording from now on.
    pub fn new(size_bytes: u64) -> Recorder {
        let lines = size_bytes.div_ceil(LINE_WORDS as u64 * WORD_BYTES) as usize;
        Recorder::with_image(&vec![0; lines * LINE_WORDS])
    }

    /// Memory that holds and has durable what `image` says: a machine after a crash.
    ///
    /// Panics where the image is not whole lines.
    pub fn with_image(image: &[u64]) -> Recorder {
        assert!(image.len().is_multiple_of(LINE_WORDS), "whole lines only");
        Recorder {
            words: image.iter().map(|&word| Word::new(word)).collect(),
            durable: image.to_vec(),
            log: Mutex::default(),
            mutation: None,
        }
    }

    /// The same with a bug planted.
    pub fn with_mutation(self, mutation: Mutation) -> Recorder {
        Recorder {
            mutation: Some(mutation),
            ..self
        }
    }

    /// What the words hold now: the state of a process that is killed on a machine that lives.
    pub fn image(&self) -> Vec<u64> {
        self.words.iter().map(|word| word.load(Relaxed)).collect()
    }

    /// Forgets what was recorded and takes what the words hold now for durable.
    pub fn restart(&mut self) {
        self.durable = self.image();
        *self.log() = Log::default();
    }

    /// Kills the process after `acts` more stores, flushes and fences, as far as a test can: the
    /// act after those unwinds with [`Killed`]. What was stored is there for the next process,
    /// durable or not, as on a machine that lives. No kill where `acts` is none.
    pub fn kill_after(&self, acts: Option<u64>) {
        self.log().acts_left = acts;
    }

    /// Notes that operations up to `count` were acknowledged to whoever asked for them.
    pub fn acknowledge(&self, count: u64) {
        self.log().events.push(Event::Acknowledged(count));
    }

    /// The places that acted while recording, and how often.
    pub fn sites(&self) -> BTreeMap<(Act, Site), u64> {
        self.log().sites.clone()
    }

    /// Calls `see` with every state that a crash could have left since recording began, or with
    /// those that `depth` chooses where they are too many. Returns how many it showed.
    pub fn crashes(&self, depth: Depth, see: impl FnMut(&Crash<'_>)) -> u64 {
        let log = self.log();
        states::explore(&self.durable, &log.events, depth, see)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("nobody panics while logging")
    }

    /// The index of a word of this memory.
    fn index(&self, word: *const Word) -> usize {
        let offset = word as usize - self.words.as_ptr() as usize;
        let index = offset / size_of::<Word>();
        assert!(index < self.words.len(), "not a word of this memory");
        index
    }

    /// Counts an act, unless the process is to be killed before it.
    fn begin(&self, act: Act, site: Site) -> MutexGuard<'_, Log> {
        let mut log = self.log();
        if log.acts_left == Some(0) {
            drop(log);
            std::panic::resume_unwind(Box::new(Killed));
        }
        log.acts_left = log.acts_left.map(|left| left - 1);
        *log.sites.entry((act, site)).or_default() += 1;
        log
    }
}

impl Pmem for Recorder {
    fn size_bytes(&self) -> u64 {
        self.words.len() as u64 * WORD_BYTES
    }

    fn words(&self, at: u64, count: usize) -> &[Word] {
        assert!(
            self.holds(at, count as u64 * WORD_BYTES),
            "{count} words at {at} leave a memory of {} bytes",
            self.size_bytes()
        );
        &self.words[(at / WORD_BYTES) as usize..][..count]
    }

    #[track_caller]
    fn store(&self, word: &Word, value: u64) {
        let (site, index) = (Site::here(), self.index(word));
        let late = self.mutation == Some(Mutation::Late(site));
        let mut log = self.begin(Act::Store, site);
        log.events.push(Event::Store {
            word: index,
            value,
            late,
        });
        // Under the log's lock: nobody sees a value, and flushes it, that was not logged before.
        prim::store_word(word, value);
    }

    #[track_caller]
    fn flush(&self, words: &[Word]) {
        let site = Site::here();
        let (Some(first), Some(last)) = (words.first(), words.last()) else {
            return;
        };
        let forgotten = self.mutation == Some(Mutation::NoFlush(site));
        let lines = self.index(first) / LINE_WORDS..self.index(last) / LINE_WORDS + 1;
        let thread = std::thread::current().id();
        let mut log = self.begin(Act::Flush, site);
        if !forgotten {
            let events = lines.map(|line| Event::Flush { line, thread });
            log.events.extend(events);
        }
    }

    #[track_caller]
    fn fence(&self) {
        let site = Site::here();
        let forgotten = self.mutation == Some(Mutation::NoFence(site));
        let thread = std::thread::current().id();
        let mut log = self.begin(Act::Fence, site);
        if !forgotten {
            log.events.push(Event::Fence { thread });
        }
    }
}

#[cfg(test)]
mod tests;
