//! One worker's hand on one deep device: two queues, and what was fetched by the first of them.
//!
//! A fetch is known by whose it is and by the unique number of what it is for, so that several who
//! want the same share one, and nobody has to be told which of them is theirs. What has landed
//! stays until its buffer is needed for another: whoever waited for it comes back for it, and where
//! that takes too long fetches it again.
//!
//! What nobody waits for (writes, and reads of what is to be written elsewhere) is an errand, told
//! of by its tag when it is done.
//!
//! What it never does: wait; look at the bytes; touch the critical queue for something that nobody
//! waits for, or the background queue for something that somebody does.
//!
//! *Thread safety*: one worker's. *Invariants*: a buffer is in one of the pools, in flight, or in
//! the one entry that landed with it.

use crate::device::Deep;
use nyx_base::{Instant, Nanos, TenantId};
use nyx_media::MediaError;
use nyx_media::queue::{BLOCK_BYTES, Buffer, Pool, Queue, Request};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Buffers for values of up to 16 KiB wherever they begin, and how many.
const SMALL_BYTES: usize = (16 << 10) + BLOCK_BYTES as usize;
const SMALL_SLOTS: u32 = 128;
/// Buffers for the longest values. They are not registered: that would take their memory.
const LARGE_BYTES: usize = (16 << 20) + 2 * BLOCK_BYTES as usize;
const LARGE_SLOTS: u32 = 4;
/// Entries beyond buffers, for fetches that failed and nobody came back for.
const SPARE_ENTRIES: u32 = 16;
/// What is written goes in pieces of so many bytes at most, so many at a time.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
const PIECE_SLOTS: u32 = 8;
/// So many of these are left to writes by reads that nobody waits for.
const WRITE_SLOTS_MIN: usize = PIECE_SLOTS as usize / 2;
/// Keys are told apart by this much before any fetch is looked at.
const LOTS: usize = 256;
/// Who waited has so many turns to come back.
const TURNS_KEPT: u64 = 2;

/// See the module.
#[derive(Debug)]
pub struct Hand {
    /// Which of its worker's.
    pub(crate) number: usize,
    deep: Arc<Deep>,
    critical: Queue,
    background: Queue,
    small: Pool,
    large: Pool,
    pieces: Pool,
    fetches: Box<[Fetch]>,
    /// How many fetches there may be of each lot of keys: none of most.
    lots: Box<[u8; LOTS]>,
    /// Whether somebody was told to come again when there is a small, a large buffer.
    refused: [bool; 2],
    /// Fetches that failed before they were submitted.
    fallen: Vec<u16>,
    /// Errands that did.
    failed: Vec<usize>,
    turn: u64,
    errands: Box<[Option<Errand>]>,
    done: VecDeque<Done>,
}

/// What a fetch is for.
type Key = (TenantId, u64);

fn lot((tenant, unique): Key) -> usize {
    (unique as usize ^ usize::from(tenant.0)) % LOTS
}

#[derive(Debug)]
struct Fetch {
    key: Key,
    /// Which use of the entry it is.
    number: u32,
    /// When it landed, or was last looked at.
    turn: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Free,
    Flying {
        skip: u32,
        len: u32,
        expected_ns: f64,
    },
    Landed {
        buffer: Buffer,
        skip: u32,
        len: u32,
        is_checked: bool,
        is_taken: bool,
        /// Until somebody has asked for it.
        trip: Option<Trip>,
    },
    Failed,
}

/// How long a fetch took, and should have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trip {
    pub(crate) bytes: usize,
    pub(crate) took: Nanos,
    pub(crate) expected_ns: f64,
}

/// What is on its way and nobody waits for.
#[derive(Clone, Copy, Debug)]
struct Errand {
    tenant: TenantId,
    tag: u64,
    /// Bytes of whole blocks.
    blocks: usize,
    /// Where in them those begin that are read, and how many; none of a write.
    reads: Option<(usize, usize)>,
}

/// What is waited for on one hand: a fetch, or anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait(u16);

impl Wait {
    /// Until a fetch, whichever, has landed.
    pub const ANY: Wait = Wait(u16::MAX);

    /// Numbers that an entry of a hand may have, and one more for [`Wait::ANY`].
    pub const COUNT: usize = (SMALL_SLOTS + LARGE_SLOTS + SPARE_ENTRIES + 1) as usize;

    /// Its number, below [`Wait::COUNT`].
    pub fn index(self) -> usize {
        usize::from(self.0).min(Wait::COUNT - 1)
    }
}

/// What somebody waits for: a fetch on one of the worker's hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away {
    /// Which hand, in the order in which they were added.
    pub hand: usize,
    /// What of it.
    pub wait: Wait,
}

/// How it goes with a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// It has landed: [`crate::Lane::landed`].
    Here(Landing),
    /// It is on its way.
    Coming(Away),
    /// The device could not read it. Said once.
    Failed,
    /// There is none.
    None,
}

/// Bytes that have landed: they stay until the next [`crate::Tolls::land`] after they were looked
/// at, and mostly longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landing {
    entry: u16,
    /// Which use of the entry.
    number: u32,
}

/// A write, or a read that nobody waited for, that is done or has failed.
#[derive(Debug)]
pub struct Done {
    /// Whose it was.
    pub tenant: TenantId,
    /// What it was asked with.
    pub tag: u64,
    /// What came of it.
    pub what: What,
}

/// What came of an errand.
#[derive(Debug)]
pub enum What {
    /// Something was written.
    Written,
    /// It could not be.
    NotWritten,
    /// The bytes that were read. Others wait for the buffer: it is not to be kept.
    Read(Buffer),
    /// They could not be.
    NotRead,
}

impl Drop for Hand {
    /// What is on its way is waited for by the queues, and is on nobody's way any more.
    fn drop(&mut self) {
        for fetch in &self.fetches {
            if let State::Flying { skip, len, .. } = fetch.state {
                self.deep.come_back(blocks(skip, len));
            }
        }
        for errand in self.errands.iter().flatten() {
            self.deep.come_back(errand.blocks);
        }
    }
}

/// Bytes of whole blocks that are read for `len` bytes behind `skip`.
fn blocks(skip: u32, len: u32) -> usize {
    (skip + len).next_multiple_of(BLOCK_BYTES as u32) as usize
}

impl Hand {
    /// One on a device, for the thread that will use it.
    pub fn new(deep: Arc<Deep>) -> Result<Hand, MediaError> {
        let small = Pool::new(SMALL_SLOTS, SMALL_BYTES)?;
        let large = Pool::new(LARGE_SLOTS, LARGE_BYTES)?;
        let pieces = Pool::new(PIECE_SLOTS, PIECE_BYTES)?;
        let depth = SMALL_SLOTS + LARGE_SLOTS;
        let entries = depth + SPARE_ENTRIES;
        let free = |_| Fetch {
            key: (TenantId(0), 0),
            number: 0,
            turn: 0,
            state: State::Free,
        };
        Ok(Hand {
            number: 0,
            critical: deep.queue(std::slice::from_ref(&small), depth)?,
            background: deep.queue(std::slice::from_ref(&pieces), PIECE_SLOTS)?,
            small,
            large,
            pieces,
            fetches: (0..entries).map(free).collect(),
            lots: Box::new([0; LOTS]),
            refused: [false; 2],
            fallen: Vec::with_capacity(entries as usize),
            failed: Vec::with_capacity(PIECE_SLOTS as usize),
            turn: 0,
            errands: vec![None; PIECE_SLOTS as usize].into(),
            done: VecDeque::with_capacity(PIECE_SLOTS as usize),
            deep,
        })
    }

    /// The device.
    pub fn deep(&self) -> &Arc<Deep> {
        &self.deep
    }

    /// How it goes with the fetch for that.
    pub(crate) fn look(&mut self, key: Key) -> Looked {
        if self.lots[lot(key)] == 0 {
            return Looked::None;
        }
        let is_it = |fetch: &Fetch| fetch.key == key && !matches!(fetch.state, State::Free);
        let Some(at) = self.fetches.iter().position(is_it) else {
            return Looked::None;
        };
        let fetch = &mut self.fetches[at];
        match &mut fetch.state {
            State::Landed { is_taken, .. } => {
                *is_taken = true;
                fetch.turn = self.turn;
                Looked::Here(Landing {
                    entry: at as u16,
                    number: fetch.number,
                })
            }
            State::Flying { .. } => Looked::Coming(self.away(Wait(at as u16))),
            State::Failed | State::Free => {
                // Who comes long after that is to try anew: the device may have recovered.
                let is_news = fetch.turn + TURNS_KEPT >= self.turn;
                self.release(at);
                match is_news {
                    true => Looked::Failed,
                    false => Looked::None,
                }
            }
        }
    }

    /// An entry is free again.
    fn release(&mut self, at: usize) {
        let fetch = &mut self.fetches[at];
        if !matches!(fetch.state, State::Free) {
            self.lots[lot(fetch.key)] -= 1;
            fetch.state = State::Free;
        }
    }

    /// How long the fetch took of what has landed, the first time that it is asked for.
    pub(crate) fn trip(&mut self, landing: Landing) -> Option<Trip> {
        let fetch = self.entry(landing)?;
        match &mut fetch.state {
            State::Landed { trip, .. } => trip.take(),
            _ => None,
        }
    }

    fn away(&self, wait: Wait) -> Away {
        let hand = self.number;
        Away { hand, wait }
    }

    /// The entry that something has landed in, while it is there.
    fn entry(&mut self, Landing { entry, number }: Landing) -> Option<&mut Fetch> {
        let fetch = &mut self.fetches[usize::from(entry)];
        let is_there = fetch.number == number && matches!(fetch.state, State::Landed { .. });
        is_there.then_some(fetch)
    }

    /// The bytes that have landed.
    ///
    /// Panics where they are gone.
    pub(crate) fn bytes(&self, Landing { entry, number }: Landing) -> &[u8] {
        let fetch = &self.fetches[usize::from(entry)];
        match &fetch.state {
            State::Landed {
                buffer, skip, len, ..
            } if fetch.number == number => &buffer[*skip as usize..(*skip + *len) as usize],
            _ => panic!("what has landed there is gone"),
        }
    }

    /// Whether [`Hand::set_checked`] was called for it.
    pub(crate) fn is_checked(&self, Landing { entry, number }: Landing) -> bool {
        let fetch = &self.fetches[usize::from(entry)];
        let is_checked = matches!(
            fetch.state,
            State::Landed {
                is_checked: true,
                ..
            }
        );
        is_checked && fetch.number == number
    }

    /// Its bytes were found right.
    pub(crate) fn set_checked(&mut self, landing: Landing) {
        let state = self.entry(landing).map(|fetch| &mut fetch.state);
        if let Some(State::Landed { is_checked, .. }) = state {
            *is_checked = true;
        }
    }

    /// Forgets what has landed.
    pub(crate) fn forget(&mut self, landing: Landing) {
        if self.entry(landing).is_some() {
            self.release(usize::from(landing.entry));
        }
    }

    /// Fetches `len` bytes from `at`, of which there is no fetch yet; what to wait for. Bytes of
    /// the device that are read, none where all buffers are in use.
    pub(crate) fn fetch(&mut self, key: Key, at: u64, len: usize) -> (Away, usize) {
        let (from, blocks, skip) = self.deep.blocks_of(at, len);
        let Some((entry, mut into)) = self.room(blocks) else {
            self.refused[usize::from(blocks > SMALL_BYTES)] = true;
            return (self.away(Wait::ANY), 0);
        };
        self.lots[lot(key)] += 1;
        let fetch = &mut self.fetches[usize::from(entry)];
        *fetch = Fetch {
            key,
            number: fetch.number.wrapping_add(1),
            turn: self.turn,
            state: State::Flying {
                skip: skip as u32,
                len: len as u32,
                expected_ns: self.deep.set_off(blocks),
            },
        };
        if self.deep.drill.read_error().is_some() {
            self.fallen.push(entry);
            return (self.away(Wait(entry)), blocks);
        }
        into.narrow(0..blocks);
        let read = Request::Read { at: from, into };
        let submitted = self.critical.submit(read, u64::from(entry));
        submitted.expect("it is as deep as there are buffers");
        // For each: who is set off together is done together.
        self.critical.kick();
        (self.away(Wait(entry)), blocks)
    }

    /// The pool of buffers for so many bytes.
    fn pool(&self, is_large: bool) -> &Pool {
        match is_large {
            false => &self.small,
            true => &self.large,
        }
    }

    /// An entry that is free and a buffer of so many bytes.
    fn room(&mut self, blocks: usize) -> Option<(u16, Buffer)> {
        let is_large = blocks > SMALL_BYTES;
        if self.pool(is_large).free() == 0 {
            let oldest = self.oldest(|state| self.is_landed_in(state, is_large))?;
            self.release(oldest);
        }
        let entry = self.free_entry()?;
        self.release(entry);
        Some((entry as u16, self.pool(is_large).take()?))
    }

    fn free_entry(&self) -> Option<usize> {
        let is_free = |fetch: &Fetch| matches!(fetch.state, State::Free);
        let free = self.fetches.iter().position(is_free);
        free.or_else(|| self.oldest(|state| matches!(state, State::Failed)))
    }

    fn is_landed_in(&self, state: &State, is_large: bool) -> bool {
        let slot_bytes = self.pool(is_large).slot_bytes();
        matches!(state, State::Landed { buffer, .. } if buffer.pool().slot_bytes() == slot_bytes)
    }

    /// The entry of those that is missed least: somebody was there for it before this turn, or had
    /// time to be.
    fn oldest(&self, which: impl Fn(&State) -> bool) -> Option<usize> {
        let is_taken = |fetch: &Fetch| matches!(fetch.state, State::Landed { is_taken: true, .. });
        let is_over = |fetch: &Fetch| {
            let kept = if is_taken(fetch) { 1 } else { TURNS_KEPT };
            fetch.turn + kept <= self.turn
        };
        let each = self.fetches.iter().enumerate();
        let those = each.filter(|(_, fetch)| which(&fetch.state) && is_over(fetch));
        let least = those.min_by_key(|(_, fetch)| (!is_taken(fetch), fetch.turn));
        least.map(|(at, _)| at)
    }

    /// Whether who was refused would find room now.
    fn has_room(&self, is_large: bool) -> bool {
        let landed = || self.oldest(|state| self.is_landed_in(state, is_large));
        // A buffer that is given up leaves its entry.
        match self.pool(is_large).free() {
            0 => landed().is_some(),
            _ => self.free_entry().is_some(),
        }
    }

    /// Whether another piece may be written now.
    pub(crate) fn takes_pieces(&self) -> bool {
        // One that failed leaves its buffer at once, but is to be told of first.
        let has_entry = self.errands.iter().any(Option::is_none);
        self.pieces.free() > 0 && has_entry && !self.deep.drill.is_stalled()
    }

    /// Writes a piece of `len` bytes, whole blocks, at `at`, that `fill` fills.
    ///
    /// Panics where [`Hand::takes_pieces`] does not say so, or the piece is too long.
    pub(crate) fn write(
        &mut self,
        (tenant, tag): Key,
        at: u64,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let (to, blocks, skip) = self.deep.blocks_of(at, len);
        assert!(
            skip == 0 && blocks == len,
            "{len} bytes at {at} are not whole blocks"
        );
        let mut from = self.pieces.take().expect("it takes pieces");
        from.narrow(0..len);
        fill(&mut from);
        let errand = Errand {
            tenant,
            tag,
            blocks,
            reads: None,
        };
        let write = Request::Write {
            at: to,
            from,
            is_durable: false,
        };
        self.send(errand, write, self.deep.drill.write_error().is_some());
    }

    /// Reads `len` bytes from `at`, for which nobody waits; false where writes have the buffers.
    pub(crate) fn read_behind(&mut self, (tenant, tag): Key, at: u64, len: usize) -> bool {
        let (from, blocks, skip) = self.deep.blocks_of(at, len);
        let (pool, kept) = match blocks > PIECE_BYTES {
            false => (&self.pieces, WRITE_SLOTS_MIN),
            true => (&self.large, LARGE_SLOTS as usize / 2),
        };
        let entries = self.errands.iter().filter(|errand| errand.is_none());
        let has_entry = entries.count() > WRITE_SLOTS_MIN;
        if pool.free() <= kept || !has_entry || self.deep.drill.is_stalled() {
            return false;
        }
        let Some(mut into) = pool.take() else {
            return false;
        };
        into.narrow(0..blocks);
        let errand = Errand {
            tenant,
            tag,
            blocks,
            reads: Some((skip, len)),
        };
        let read = Request::Read { at: from, into };
        self.send(errand, read, self.deep.drill.read_error().is_some());
        true
    }

    /// Sets off what nobody waits for, or has it fail.
    fn send(&mut self, errand: Errand, request: Request, fails: bool) {
        let is_free = |errand: &Option<Errand>| errand.is_none();
        let number = self.errands.iter().position(is_free).expect("as buffers");
        self.errands[number] = Some(errand);
        self.deep.set_off(errand.blocks);
        if fails {
            self.failed.push(number);
            return;
        }
        let submitted = self.background.submit(request, number as u64);
        submitted.expect("it is as deep as there are entries");
        self.background.kick();
    }

    /// Takes in what has landed since; tells of fetches in `landed`, of all else in
    /// [`Hand::next_done`].
    pub(crate) fn land(&mut self, now: Instant, landed: &mut impl FnMut(Away)) {
        self.turn += 1;
        if self.deep.drill.is_stalled() {
            return;
        }
        while let Some(entry) = self.fallen.pop() {
            self.deep.count_read(0, false);
            self.settle(entry, None, Nanos::ZERO);
            landed(self.away(Wait(entry)));
        }
        while let Some(done) = self.critical.reap() {
            let entry = done.tag as u16;
            let buffer = done.buffer.filter(|_| done.result.is_ok());
            let bytes = buffer.as_ref().map_or(0, |buffer| buffer.len());
            self.deep.count_read(bytes, buffer.is_some());
            self.settle(entry, buffer, done.took);
            landed(self.away(Wait(entry)));
        }
        while let Some(number) = self.failed.pop() {
            self.count(number, None, now);
        }
        while let Some(done) = self.background.reap() {
            let buffer = done.buffer.filter(|_| done.result.is_ok());
            self.count(done.tag as usize, buffer, now);
        }
        for is_large in [false, true] {
            let at = usize::from(is_large);
            if self.refused[at] && self.has_room(is_large) {
                self.refused[at] = false;
                landed(self.away(Wait::ANY));
            }
        }
    }

    /// A fetch has landed; without a buffer where it failed.
    fn settle(&mut self, entry: u16, buffer: Option<Buffer>, took: Nanos) {
        let fetch = &mut self.fetches[usize::from(entry)];
        let State::Flying {
            skip,
            len,
            expected_ns,
        } = fetch.state
        else {
            panic!("fetch {entry} was not on its way");
        };
        let bytes = blocks(skip, len);
        self.deep.come_back(bytes);
        fetch.turn = self.turn;
        fetch.state = match buffer {
            None => State::Failed,
            Some(buffer) => State::Landed {
                buffer,
                skip,
                len,
                is_checked: false,
                is_taken: false,
                trip: Some(Trip {
                    bytes,
                    took,
                    expected_ns,
                }),
            },
        };
    }

    /// An errand is done; without its buffer where it failed.
    fn count(&mut self, number: usize, buffer: Option<Buffer>, now: Instant) {
        let errand = self.errands[number].take().expect("it was asked for");
        let Errand {
            tenant,
            tag,
            blocks,
            reads,
        } = errand;
        self.deep.come_back(blocks);
        let what = match (reads, buffer) {
            (None, buffer) => {
                self.deep.count_write(blocks, buffer.is_some(), now);
                buffer.map_or(What::NotWritten, |_| What::Written)
            }
            (Some((skip, len)), Some(mut buffer)) => {
                self.deep.count_read(blocks, true);
                buffer.narrow(skip..skip + len);
                What::Read(buffer)
            }
            (Some(_), None) => {
                self.deep.count_read(0, false);
                What::NotRead
            }
        };
        self.done.push_back(Done { tenant, tag, what });
    }

    /// An errand that is done, or has failed.
    pub(crate) fn next_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    /// Whether there is anything to take in, now or later.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight() > 0
            || !(self.fallen.is_empty() && self.failed.is_empty())
            || !self.done.is_empty()
            || self.refused.contains(&true)
    }

    /// Whether [`crate::Tolls::land`] is to be called again without waiting for an event: the
    /// device is polled, something failed before it was submitted, or somebody was refused a buffer
    /// whose owner has had its time after some more turns.
    pub fn is_restless(&self) -> bool {
        let waits = |is_large: bool| {
            let landed = |fetch: &Fetch| {
                self.is_landed_in(&fetch.state, is_large) || matches!(fetch.state, State::Failed)
            };
            self.refused[usize::from(is_large)] && self.fetches.iter().any(landed)
        };
        let has_no_event = self.deep.is_polled() || self.deep.drill.is_stalled();
        let told = self.fallen.is_empty() && self.failed.is_empty() && self.done.is_empty();
        !told || (has_no_event && self.in_flight() > 0) || waits(false) || waits(true)
    }

    /// Requests that are on their way.
    pub fn in_flight(&self) -> u32 {
        self.critical.in_flight() + self.background.in_flight()
    }

    /// What becomes readable when something may have landed, on the critical and on the background
    /// queue; none of a queue that is polled. What does not need the device has no event: see
    /// [`Hand::is_restless`]. To be asked for by the thread that uses the hand.
    pub fn events(&mut self) -> [Option<BorrowedFd<'_>>; 2] {
        [self.critical.event(), self.background.event()]
    }
}
