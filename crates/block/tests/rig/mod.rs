//! Two devices that forget on a power failure what was not flushed, or some of it, and a client
//! that knows what it may find.
//!
//! Bytes are looked at in chunks of 64. Each write has a number of its own, which fills all of its
//! chunks; a chunk is wrong where it has a number that it cannot have, or two.

#![allow(dead_code, reason = "each test uses its part")]

use nyx_base::Rng;
use nyx_block::{Fast, NotDurable};
use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::Location;
use std::rc::Rc;

pub(crate) const CHUNK: usize = 64;
pub(crate) const BLOCK: usize = 4096;

/// A place that asks for durability.
pub(crate) type Site = (&'static str, u32);

/// What a process unwinds with that is killed.
pub(crate) struct Killed;

/// Memory that survives: of each cache line, after a power failure, some prefix of its stores.
/// Copies share it.
#[derive(Clone)]
pub(crate) struct CrashFast(Rc<RefCell<Memory>>);

pub(crate) struct Memory {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: BTreeMap<usize, Vec<(usize, Vec<u8>)>>,
    /// The place whose barriers are forgotten.
    pub(crate) forgets: Option<Site>,
    pub(crate) sites: BTreeSet<Site>,
    /// Stores and barriers until the process is killed.
    pub(crate) acts_left: Option<u32>,
}

impl CrashFast {
    pub(crate) fn new(len: usize) -> CrashFast {
        CrashFast(Rc::new(RefCell::new(Memory {
            now: vec![0; len],
            durable: vec![0; len],
            pending: BTreeMap::new(),
            forgets: None,
            sites: BTreeSet::new(),
            acts_left: None,
        })))
    }

    pub(crate) fn memory(&self) -> RefMut<'_, Memory> {
        self.0.borrow_mut()
    }

    /// The same, unless the process is killed before.
    fn act(&self) -> RefMut<'_, Memory> {
        let mut memory = self.memory();
        if memory.acts_left == Some(0) {
            memory.acts_left = None;
            drop(memory);
            std::panic::resume_unwind(Box::new(Killed));
        }
        memory.acts_left = memory.acts_left.map(|left| left - 1);
        memory
    }
}

impl Memory {
    /// What a process sees.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.now
    }

    /// The power fails.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) {
        let style = rng.u8(..4);
        for (line, stores) in std::mem::take(&mut self.pending) {
            let count = match style {
                0 => 0,
                1 => stores.len(),
                _ => rng.usize(0..=stores.len()),
            };
            for (at, bytes) in &stores[..count] {
                let at = line * CHUNK + at;
                self.durable[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        self.now = self.durable.clone();
    }

    fn put(&mut self, at: u64, from: &[u8]) {
        let at = at as usize;
        self.now[at..at + from.len()].copy_from_slice(from);
        let mut begin = at;
        while begin < at + from.len() {
            let end = (begin / CHUNK + 1) * CHUNK;
            let end = end.min(at + from.len());
            let bytes = from[begin - at..end - at].to_vec();
            let line = self.pending.entry(begin / CHUNK).or_default();
            line.push((begin % CHUNK, bytes));
            begin = end;
        }
    }
}

impl Fast for CrashFast {
    fn len_bytes(&self) -> u64 {
        self.memory().now.len() as u64
    }

    fn read(&mut self, at: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.memory().now[at as usize..at as usize + into.len()]);
    }

    fn write(&mut self, at: u64, from: &[u8]) {
        self.act().put(at, from);
    }

    fn word(&mut self, at: u64) -> u64 {
        let bytes = &self.memory().now[at as usize..at as usize + 8];
        u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
    }

    fn store(&mut self, at: u64, word: u64) {
        assert!(at.is_multiple_of(8));
        self.act().put(at, &word.to_le_bytes());
    }

    #[track_caller]
    fn persist(&mut self, ranges: &mut [Range<u64>]) -> Result<(), NotDurable> {
        let site = (Location::caller().file(), Location::caller().line());
        let mut memory = self.act();
        let memory = &mut *memory;
        if !ranges.is_empty() {
            memory.sites.insert(site);
        }
        if memory.forgets == Some(site) {
            return Ok(());
        }
        for range in ranges {
            let lines = range.start as usize / CHUNK..(range.end as usize).div_ceil(CHUNK);
            for line in lines {
                for (at, bytes) in memory.pending.remove(&line).unwrap_or_default() {
                    let at = line * CHUNK + at;
                    memory.durable[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
        }
        Ok(())
    }
}

/// A disk with a cache of its own: of each block, after a power failure, some prefix of its writes.
#[derive(Clone)]
pub(crate) struct CrashDeep {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Flushes do nothing.
    pub(crate) forgets: bool,
}

impl CrashDeep {
    pub(crate) fn new(len: usize) -> CrashDeep {
        CrashDeep {
            now: vec![0; len],
            durable: vec![0; len],
            pending: BTreeMap::new(),
            forgets: false,
        }
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.now[at as usize..at as usize + into.len()]);
    }

    /// Writes those blocks of it that `which` chooses.
    pub(crate) fn write(&mut self, at: u64, from: &[u8], mut which: impl FnMut() -> bool) {
        for (nth, bytes) in from.chunks(BLOCK).enumerate() {
            if which() {
                let block = at as usize / BLOCK + nth;
                self.now[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(bytes);
                self.pending.entry(block).or_default().push(bytes.to_vec());
            }
        }
    }

    pub(crate) fn flush(&mut self) {
        if !self.forgets {
            self.pending.clear();
            self.durable.clone_from(&self.now);
        }
    }

    pub(crate) fn lose_power(&mut self, rng: &mut Rng) {
        let style = rng.u8(..4);
        for (block, writes) in std::mem::take(&mut self.pending) {
            let count = match style {
                0 => 0,
                1 => writes.len(),
                _ => rng.usize(0..=writes.len()),
            };
            if let Some(bytes) = count.checked_sub(1).map(|last| &writes[last]) {
                self.durable[block * BLOCK..(block + 1) * BLOCK].copy_from_slice(bytes);
            }
        }
        self.now.clone_from(&self.durable);
    }
}

/// What chunks may have.
type Values = BTreeSet<u64>;

/// What a client knows.
pub(crate) struct Client {
    /// What a chunk may have now.
    may: Vec<Values>,
    /// What it may have after a power failure.
    durable: Vec<Values>,
    /// Writes in flight: their chunks, and what was older than they are.
    writes: BTreeMap<u64, (Range<usize>, Vec<Values>)>,
    /// Flushes in flight: what will be durable at least.
    flushes: BTreeMap<u64, Vec<Values>>,
    /// Reads in flight: their chunks, and what they may return.
    reads: BTreeMap<u64, (Range<usize>, Vec<Values>)>,
}

impl Client {
    pub(crate) fn new(len: usize) -> Client {
        let zero = vec![BTreeSet::from([0]); len / CHUNK];
        Client {
            may: zero.clone(),
            durable: zero,
            writes: BTreeMap::new(),
            flushes: BTreeMap::new(),
            reads: BTreeMap::new(),
        }
    }

    pub(crate) fn write(&mut self, token: u64, chunks: Range<usize>, value: u64) {
        let flying: BTreeSet<u64> = self.writes.keys().copied().collect();
        let old = |may: &Values| -> Values { may.difference(&flying).copied().collect() };
        let older = self.may[chunks.clone()].iter().map(old).collect();
        for at in chunks.clone() {
            self.may[at].insert(value);
            self.durable[at].insert(value);
            for snapshot in self.flushes.values_mut() {
                snapshot[at].insert(value);
            }
            for (of, may) in self.reads.values_mut() {
                if of.contains(&at) {
                    may[at - of.start].insert(value);
                }
            }
        }
        // A zero has the value 0 and a token of its own: it is never "in flight" by value.
        self.writes.insert(token, (chunks, older));
    }

    pub(crate) fn written(&mut self, token: u64, value: u64, is_done: bool) {
        let (chunks, older) = self.writes.remove(&token).expect("in flight");
        if !is_done {
            return;
        }
        for (at, older) in chunks.zip(older) {
            self.may[at].retain(|other| *other == value || !older.contains(other));
        }
    }

    pub(crate) fn flush(&mut self, token: u64) {
        self.flushes.insert(token, self.may.clone());
    }

    pub(crate) fn flushed(&mut self, token: u64, is_done: bool) {
        let snapshot = self.flushes.remove(&token).expect("in flight");
        if is_done {
            // What another flush has ruled out meanwhile does not come back.
            for (durable, snapshot) in self.durable.iter_mut().zip(snapshot) {
                let both: Values = durable.intersection(&snapshot).copied().collect();
                *durable = if both.is_empty() { snapshot } else { both };
            }
        }
    }

    pub(crate) fn read(&mut self, token: u64, chunks: Range<usize>) {
        let may = self.may[chunks.clone()].to_vec();
        self.reads.insert(token, (chunks, may));
    }

    pub(crate) fn was_read(&mut self, token: u64, bytes: Option<&[u8]>) -> Result<(), String> {
        let (chunks, may) = self.reads.remove(&token).expect("in flight");
        let Some(bytes) = bytes else { return Ok(()) };
        for ((at, may), bytes) in chunks.zip(may).zip(bytes.chunks(CHUNK)) {
            let value = value_of(bytes).ok_or_else(|| format!("chunk {at} is torn"))?;
            if !may.contains(&value) {
                return Err(format!("chunk {at} has {value}, may have {may:?}"));
            }
            let is_still = self.writes.values().all(|(of, _)| !of.contains(&at));
            if is_still && self.may[at].contains(&value) {
                // From now on it has this.
                self.may[at] = BTreeSet::from([value]);
            }
        }
        Ok(())
    }

    /// The process or the power has ended: what was in flight is done or not. `bytes` is what a
    /// client finds then.
    pub(crate) fn restarted(&mut self, bytes: &[u8], power_failed: bool) -> Result<(), String> {
        self.writes.clear();
        self.flushes.clear();
        self.reads.clear();
        for (at, bytes) in bytes.chunks(CHUNK).enumerate() {
            let value = value_of(bytes).ok_or_else(|| format!("chunk {at} is torn"))?;
            let may = match power_failed {
                true => &self.durable[at],
                false => &self.may[at],
            };
            if !may.contains(&value) {
                let cause = if power_failed {
                    "power failure"
                } else {
                    "kill"
                };
                return Err(format!(
                    "chunk {at} has {value} after a {cause}, not {may:?}"
                ));
            }
            self.may[at] = BTreeSet::from([value]);
            if power_failed {
                self.durable[at] = BTreeSet::from([value]);
            }
        }
        Ok(())
    }
}

pub(crate) fn fill(bytes: &mut [u8], value: u64) {
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&value.to_le_bytes());
    }
}

fn value_of(chunk: &[u8]) -> Option<u64> {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let first = word(&chunk[..8]);
    chunk
        .chunks(8)
        .all(|bytes| word(bytes) == first)
        .then_some(first)
}
