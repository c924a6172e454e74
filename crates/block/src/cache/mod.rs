//! The cache: which device has what of an image, and what is done in which order so that this
//! stays true whenever the process or the power ends.
//!
//! Pieces of requests go in ([`Cache::submit`], [`Cache::flush`]), requests to the deep device come
//! out ([`Cache::command`]) and are told of when they are done ([`Cache::complete`]); what clients
//! are to be told comes out of [`Cache::outcome`]. The fast device is memory and is used at once.
//! A driver calls [`Cache::barrier`] at the end of each turn, before it answers anybody.
//!
//! **What the fast device says** ([`crate::record`]) is true at any moment, whatever of the last
//! stores has reached the medium. So:
//!
//! * blocks of a line that it tells as clean are not written before it was told otherwise and that
//!   is durable;
//! * a slot is not given to another line before its record is durably free;
//! * a block is told as dirty when its bytes are durable, which a flush waits for; until then the
//!   write may be lost, as that of any disk;
//! * a dirty block is told as clean, or as nothing, when the deep device has written *and flushed*
//!   it;
//! * a line is told as clean when its bytes are durable and whatever of them was written to the
//!   deep device was flushed there.
//!
//! Beside that it *claims* blocks as dirty as soon as they were written. Claims count where the
//! machine has run all the time: so a kill loses nothing that was answered, flushed or not.
//!
//! **Overlapping pieces** are put into an order by [`jobs`]; a block is never read from one device
//! while the other is being written.
//!
//! What it never does: read a clock, start a thread, wait.
//!
//! *Thread safety*: one thread's. *Invariants*: what a slot has as valid is what a read returns;
//! what is valid and not dirty is the same on the deep device, but for blocks that a piece holds.
//!
//! Source: Orthus (FAST'21) section 4, over a block cache with the modes of Open CAS.

mod clean;
mod jobs;
mod read;
mod rounds;
mod write;

pub use jobs::Verb;

use crate::fast::{Fast, NotDurable};
use crate::geometry::{Geometry, Mask, Part, RECORD_BYTES, STRIPE_BYTES};
use crate::lines::{Lines, Told};
use crate::mode::Mode;
use crate::record::Record;
use crate::route::Router;
use clean::Cleaner;
use jobs::{Hold, Job, Jobs, Step};
use nyx_media::queue::{BLOCK_BYTES, BlockError, Buffer, Request};
use nyx_policy::nhc::{Kind, Side};
use rounds::Rounds;
use std::collections::VecDeque;
use std::ops::Range;

/// A part of a request that lies in one stripe.
#[derive(Debug)]
pub struct Piece {
    /// What its outcome is told with.
    pub token: u64,
    /// What is asked.
    pub verb: Verb,
    /// The first byte in the image.
    pub at: u64,
    /// How many; the last lies in the same stripe.
    pub len_bytes: u64,
    /// A stripe's bytes: those of the piece lie where they lie in the stripe.
    pub buffer: Buffer,
    /// Another one, for a write that is not whole blocks.
    pub spare: Option<Buffer>,
}

/// Why a piece or a flush was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A device failed.
    #[error("a device failed")]
    Io,
    /// The deep device has no room.
    #[error("the deep device has no room")]
    NoSpace,
}

/// A piece, or a flush, that is over.
#[derive(Debug)]
pub struct Outcome {
    /// What it was submitted with.
    pub token: u64,
    /// Its buffer.
    pub buffer: Option<Buffer>,
    /// Whether it was done.
    pub result: Result<(), Refusal>,
}

/// A request to the deep device.
#[derive(Debug)]
pub struct Command {
    /// Whether a client waits for it.
    pub is_critical: bool,
    /// It.
    pub request: Request,
    /// What [`Cache::complete`] is to be told with.
    pub tag: u64,
}

/// What was done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Pieces that were read.
    pub reads: u64,
    /// Those that the fast device had.
    pub hits: u64,
    /// Those of the hits that the deep device served.
    pub hits_deep: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Pieces that were written or made zero.
    pub writes: u64,
    /// Bytes of those.
    pub written_bytes: u64,
    /// Pieces that the fast device alone was written.
    pub writes_fast: u64,
    /// Flushes that were answered.
    pub flushes: u64,
    /// Lines that were given up for others.
    pub evictions: u64,
    /// Dirty lines, or parts of one, that were written back.
    pub cleaned: u64,
    /// Write-backs that failed; their lines stay dirty.
    pub clean_errors: u64,
    /// Requests of clients that were refused since a device failed or was full.
    pub refused: u64,
}

/// A record of the fast device that is none: what it says of a slot is not to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record of slot {slot} is damaged (word {word:#018x})")]
pub struct Damaged {
    /// Which slot.
    pub slot: u32,
    /// What it says.
    pub word: u64,
}

/// See the module.
pub struct Cache<F> {
    fast: F,
    geometry: Geometry,
    mode: Mode,
    lines: Lines,
    router: Router,
    jobs: Jobs,
    /// Lists of pieces of which one may go on.
    woken: Vec<usize>,
    commands: VecDeque<Command>,
    outcomes: VecDeque<Outcome>,
    /// Records that were stored and are not durable.
    stored: Vec<Range<u64>>,
    /// Pieces that wait for that.
    marked: Vec<u32>,
    rounds: Rounds,
    cleaner: Cleaner,
    figures: Figures,
    is_broken: bool,
}

/// The tag of a flush.
const FLUSH: u64 = u64::MAX;

impl<F: Fast> Cache<F> {
    /// Makes a fast device hold nothing. Its superblock is the caller's.
    pub fn format(fast: &mut F, geometry: &Geometry) -> Result<(), NotDurable> {
        let records = geometry.record_at(0)..geometry.data_at(0);
        let zeroes = [0; BLOCK_BYTES as usize];
        for at in records.clone().step_by(zeroes.len()) {
            fast.write(at, &zeroes);
        }
        fast.persist(&mut [records])
    }

    /// Takes up what a fast device holds; its claims too, where the machine has run since they were
    /// made. Where it has not there are none afterwards.
    pub fn open(
        mut fast: F,
        geometry: Geometry,
        mode: Mode,
        router: Router,
        has_run: bool,
    ) -> Result<Cache<F>, Damaged> {
        let fast_bytes = fast.len_bytes();
        assert!(
            geometry.fast_bytes() <= fast_bytes,
            "{geometry} need more than {fast_bytes} bytes"
        );
        let (mut lines, mut rounds) = (Lines::new(geometry.slots()), Rounds::new());
        for slot in 0..geometry.slots() {
            let (record_at, claim_at) = (geometry.record_at(slot), geometry.claim_at(slot));
            let mut word = fast.word(record_at);
            if !has_run {
                fast.store(claim_at, 0);
            }
            let claim = fast.word(claim_at);
            let damaged = |word| Damaged { slot, word };
            let told = Record::decode(slot, word).ok_or(damaged(word))?;
            if claim != 0 {
                word = claim;
            }
            take_up(&mut lines, &geometry, slot, word, told).ok_or(damaged(word))?;
            if lines.slot(slot).dirty != 0 {
                lines.slot_mut(slot).is_touched = true;
                rounds.touched.push(slot);
            }
        }
        // Whoever was killed here may have left records that are not durable.
        let records = geometry.record_at(0)..geometry.data_at(0);
        let is_broken = fast.persist(&mut [records]).is_err();
        Ok(Cache {
            fast,
            geometry,
            mode,
            lines,
            router,
            jobs: Jobs::new(),
            woken: Vec::new(),
            commands: VecDeque::new(),
            outcomes: VecDeque::new(),
            stored: Vec::new(),
            marked: Vec::new(),
            rounds,
            cleaner: Cleaner::new(),
            figures: Figures::default(),
            is_broken,
        })
    }

    /// Forgets what is clean: the deep device may have been changed. Before the first piece only.
    pub fn forget_clean(&mut self) -> Result<(), NotDurable> {
        assert_eq!(self.jobs.count(), 0, "pieces are under way");
        for slot in 0..self.lines.count() {
            if self.lines.slot(slot).told == Told::Clean {
                self.tell(slot, Told::Free);
                self.lines.free(slot);
            }
        }
        self.settle_records()
    }

    /// Takes a piece.
    ///
    /// Panics where it leaves its stripe or the image, has no bytes, or is a write of parts of
    /// blocks without a spare buffer or a zero of parts of blocks.
    pub fn submit(&mut self, piece: Piece) {
        let Piece {
            at,
            len_bytes,
            verb,
            ..
        } = piece;
        let (stripe, begin) = (at / STRIPE_BYTES, at % STRIPE_BYTES);
        let bytes = begin..begin + len_bytes;
        assert!(
            len_bytes > 0
                && bytes.end <= STRIPE_BYTES
                && at + len_bytes <= self.geometry.image_bytes(),
            "{len_bytes} bytes at {at} are no piece"
        );
        let mut job = Job {
            token: piece.token,
            verb,
            stripe,
            bytes,
            buffer: Some(piece.buffer),
            spare: piece.spare,
            hold: Hold::Waiting,
            held: 0,
            step: Step::New,
            pinned: 0,
            flight: None,
            is_counted: false,
        };
        assert!(
            job.is_whole() || verb == Verb::Read || (verb == Verb::Write && job.spare.is_some())
        );
        job.held = self.geometry.whole_lines(stripe, job.mask());
        let id = self.jobs.add(job);
        self.start(id);
        self.wake();
    }

    /// A request to the deep device is done, or has failed.
    pub fn complete(&mut self, tag: u64, buffer: Option<Buffer>, result: Result<(), BlockError>) {
        let refused = |error: BlockError| match error.os_error {
            Some(code) if NO_ROOM.contains(&code) => Refusal::NoSpace,
            _ => Refusal::Io,
        };
        if tag == FLUSH {
            self.deep_flushed(result.map_err(refused));
        } else {
            let id = tag as u32;
            let job = self.jobs.get_mut(id);
            if let Some(mut buffer) = buffer {
                buffer.narrow(0..STRIPE_BYTES as usize);
                match job.step {
                    Step::Edges => job.spare = Some(buffer),
                    _ => job.buffer = Some(buffer),
                }
            }
            if let Some(flight) = job.flight.take() {
                self.router.end(flight, result.is_ok());
            }
            let unable = result
                .is_err_and(|error| error.os_error.is_some_and(|code| UNABLE.contains(&code)));
            match self.jobs.get(id).step {
                Step::Look => self.end_look(id, result.map_err(refused)),
                Step::Fill => self.end_fill(id, result.map_err(refused)),
                Step::Edges => self.end_edges(id, result.map_err(refused)),
                Step::Zero if unable => self.write_zeroes(id),
                Step::Through | Step::Zero => self.end_through(id, result.map_err(refused)),
                Step::Clean => self.end_clean(id, result.is_ok()),
                Step::New | Step::Mark => unreachable!("it asked nothing of the deep device"),
            }
        }
        self.wake();
    }

    /// The end of a turn: records that were stored become durable, and what waited for that goes
    /// on. Before anybody is answered.
    pub fn barrier(&mut self) {
        while !self.stored.is_empty() || !self.marked.is_empty() {
            let result = self.settle_records().map_err(|NotDurable| Refusal::Io);
            let mut marked = std::mem::take(&mut self.marked);
            for id in marked.drain(..) {
                match self.jobs.get(id).step {
                    Step::Mark => self.end_mark(id, result),
                    _ if result.is_ok() => self.go_deep(id),
                    _ => self.end_through(id, result),
                }
            }
            if self.marked.is_empty() {
                self.marked = marked;
            }
            self.wake();
        }
        self.router.turn();
    }

    /// The next request for the deep device.
    pub fn command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// The next piece or flush that is over. After [`Self::barrier`].
    pub fn outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// The sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What was done.
    pub fn figures(&self) -> Figures {
        self.figures
    }

    /// Lines that are cached, and those of them that are dirty.
    pub fn filled(&self) -> (u32, u32) {
        (self.lines.used_count(), self.lines.dirty_count())
    }

    /// Whether something is under way or waits.
    pub fn is_busy(&self) -> bool {
        self.jobs.count() > 0 || self.rounds.is_busy()
    }

    /// Whether the fast device failed to make something durable: writes are refused since.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// The router.
    pub fn router(&mut self) -> &mut Router {
        &mut self.router
    }

    /// The fast device.
    pub fn fast(&mut self) -> &mut F {
        &mut self.fast
    }

    /// Gives the fast device back. What is not durable is not made so.
    pub fn into_fast(self) -> F {
        self.fast
    }

    fn start(&mut self, id: u32) {
        match self.jobs.get(id).verb {
            Verb::Read => self.start_read(id),
            Verb::Write => self.start_write(id),
            Verb::Zero => self.start_zero(id),
        }
    }

    /// Lets those go on who waited for what is over.
    fn wake(&mut self) {
        while let Some(bucket) = self.woken.pop() {
            let mut from = 0;
            while let Some((at, id)) = self.jobs.waiting(bucket, from) {
                let count = self.jobs.count();
                self.start(id);
                // Who was done at once is gone from the list.
                from = if self.jobs.count() < count {
                    at
                } else {
                    at + 1
                };
            }
        }
    }

    /// A piece is over.
    fn finish(&mut self, id: u32, result: Result<(), Refusal>) {
        self.unpin(id);
        let (job, bucket) = self.jobs.remove(id);
        self.figures.refused += u64::from(result.is_err());
        self.woken.push(bucket);
        self.outcomes.push_back(Outcome {
            token: job.token,
            buffer: job.buffer,
            result,
        });
    }

    /// A piece has its blocks.
    fn hold(&mut self, id: u32, hold: Hold, mask: Mask, step: Step) {
        let job = self.jobs.get_mut(id);
        (job.hold, job.held, job.step) = (hold, mask, step);
    }

    /// Keeps the lines of a piece that have slots, until it is over.
    fn pin(&mut self, id: u32, part: Part, slot: u32) {
        self.lines.slot_mut(slot).pins += 1;
        self.jobs.get_mut(id).pinned |= part.blocks << part.first_block;
    }

    fn unpin(&mut self, id: u32) {
        let job = self.jobs.get_mut(id);
        let pinned = std::mem::take(&mut job.pinned);
        let stripe = job.stripe;
        for part in self.geometry.lines_of(stripe, pinned) {
            let slot = self.lines.find(part.line).expect("it is pinned");
            let state = self.lines.slot_mut(slot);
            state.pins -= 1;
            if state.pins == 0 && state.valid == 0 {
                self.lines.free(slot);
            }
        }
    }

    /// A slot for a line that has none; none where no line can be given up.
    fn allocate(&mut self, line: u32) -> Option<u32> {
        if let Some(slot) = self.lines.take(line) {
            return Some(slot);
        }
        let victim = self.lines.victim()?;
        self.tell(victim, Told::Free);
        self.lines.free(victim);
        self.figures.evictions += 1;
        self.lines.take(line)
    }

    /// Stores what the fast device is to say of a slot, durable by the next barrier.
    fn tell(&mut self, slot: u32, told: Told) {
        if self.lines.slot(slot).told == told {
            return;
        }
        let at = self.store(slot, told);
        self.stored.push(at..at + RECORD_BYTES);
    }

    fn store(&mut self, slot: u32, told: Told) -> u64 {
        let line = self.lines.slot(slot).line;
        let record = match told {
            Told::Free => Record::Free,
            Told::Clean => Record::Clean { line },
            Told::Dirty(blocks) => Record::Dirty { line, blocks },
        };
        let at = self.geometry.record_at(slot);
        self.fast.store(at, record.encode(slot));
        self.lines.slot_mut(slot).told = told;
        at
    }

    /// Claims what is dirty of a slot now.
    fn claim(&mut self, slot: u32) {
        let state = self.lines.slot(slot);
        let (line, blocks) = (state.line, state.dirty);
        let record = match blocks {
            0 => Record::Free,
            blocks => Record::Dirty { line, blocks },
        };
        let at = self.geometry.claim_at(slot);
        self.fast.store(at, record.encode(slot));
    }

    fn settle_records(&mut self) -> Result<(), NotDurable> {
        let result = match self.is_broken {
            true => Err(NotDurable),
            false => self.fast.persist(&mut self.stored),
        };
        self.stored.clear();
        self.is_broken |= result.is_err();
        result
    }

    /// Where on the fast device a block of a slot is.
    fn block_at(&self, slot: u32, bytes: &Range<u64>) -> u64 {
        self.geometry.data_at(slot) + bytes.start
    }

    /// Asks something of the deep device.
    fn ask(&mut self, id: u32, request: Request) {
        let (kind, len_bytes) = match &request {
            Request::Read { into, .. } => (Kind::Read, into.len() as u64),
            Request::Write { from, .. } => (Kind::Write, from.len() as u64),
            Request::Zero { .. } | Request::Flush => (Kind::Write, BLOCK_BYTES),
        };
        let flight = self.router.begin(Side::Deep, kind, len_bytes);
        let job = self.jobs.get_mut(id);
        job.flight = Some(flight);
        self.commands.push_back(Command {
            is_critical: job.step != Step::Clean,
            request,
            tag: u64::from(id),
        });
    }
}

/// The system's numbers for a device without room: ENOSPC, EDQUOT.
const NO_ROOM: [i32; 2] = [28, 122];
/// And for one that does not know how: EINVAL, ENODEV, ENOTTY, EOPNOTSUPP.
const UNABLE: [i32; 4] = [22, 19, 25, 95];

/// Takes up what a slot's word says, of which that much is told durably; none where that cannot be.
fn take_up(
    lines: &mut Lines,
    geometry: &Geometry,
    slot: u32,
    word: u64,
    told: Record,
) -> Option<()> {
    let (line, dirty) = match Record::decode(slot, word)? {
        Record::Free => return Some(()),
        Record::Clean { line } => (line, 0),
        Record::Dirty { line, blocks } => (line, blocks),
    };
    let told = match told {
        Record::Free => Told::Free,
        Record::Clean { line: other } if other == line => Told::Clean,
        Record::Dirty {
            line: other,
            blocks,
        } if other == line && blocks & !dirty == 0 => Told::Dirty(blocks),
        _ => return None,
    };
    let is_inside = u64::from(line) * geometry.line_bytes() < geometry.image_bytes();
    if !is_inside || lines.find(line).is_some() || dirty & !geometry.full(line) != 0 {
        return None;
    }
    let valid = match dirty {
        0 => geometry.full(line),
        dirty => dirty,
    };
    lines.put(slot, line);
    let state = lines.slot_mut(slot);
    (state.valid, state.dirty, state.told) = (valid, dirty, told);
    lines.sort(slot);
    Some(())
}
