//! The device of a region, and a thread's desk at it: a queue with the pages that are on their way.
//!
//! Pages are read into buffers, and copied into memory when they are there; they are copied out of
//! it when they are written (`memory.rs` says why). Those side by side that nobody waits for are
//! one request: one of many pages takes the CPU and the device little longer than one of a page.
//!
//! Where the kernel has no memory, for a page or for a buffer, reads wait, and one at a time is
//! tried; so do writes, and those that are not refused go on, since they make room (`short.rs`).
//!
//! What it never does: reach the device other than through `nyx_media`'s queues; sleep for want of
//! memory.
//!
//! *Thread safety*: a [`Device`] is plain data; a desk is one thread's. *Invariant*: what the pager
//! wants moved is on its way, or waits to be.

use super::core::{Kind, Move};
use super::error::RegionError;
use super::memory::{Memory, is_short};
use super::purse::{Need, Purse};
use super::short::Shortage;
use super::uffd::PAGE_BYTES;
use nyx_base::Clock;
use nyx_media::queue::{
    BlockError, BlockFile, Buffer, Emulation, Pool, Queue, QueueShape, Refusals, Request, Support,
    Through,
};
use nyx_media::{MediaError, TscClock};
use std::collections::VecDeque;
use std::fmt::Display;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// Requests of a desk that are on their way at once.
const DEPTH: u32 = 64;
/// Pages of a request that nobody waits for, at most.
const TOGETHER_MAX: u32 = 32;
/// Such requests that are on their way at once.
const LARGE: u32 = 8;
/// Who waits for a page spins so long, and sleeps then. A fast device is done by that; spinning for
/// longer keeps the CPU from a kernel's thread that may have to carry the request out there.
const SPIN_NS: u64 = 20_000;

/// Where pages go: a range of a file or of a block device, which is overwritten. Copies are of the
/// same device, of which each region has a range of its own.
#[derive(Clone, Debug)]
pub struct Device {
    blocks: Arc<BlockFile>,
    begin_bytes: u64,
    len_bytes: u64,
    critical: Through,
    background: Through,
    over: Over,
    claims: Claims,
    purse: Option<Arc<Purse>>,
}

/// Ranges that regions have, of all copies of a device.
type Claims = Arc<Mutex<Vec<Range<u64>>>>;

/// A range that nobody else has as long as this lives.
#[derive(Debug)]
pub(super) struct Claim {
    range: Range<u64>,
    claims: Claims,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = lock(&self.claims);
        claims.retain(|range| *range != self.range);
    }
}

fn lock(claims: &Claims) -> MutexGuard<'_, Vec<Range<u64>>> {
    claims.lock().expect("no holder panics")
}

#[derive(Clone, Debug)]
enum Over {
    Nothing,
    Emulation(Arc<Mutex<Emulation>>),
    Refusals(Refusals),
}

impl Device {
    /// All of a file or block device.
    pub fn new(blocks: Arc<BlockFile>) -> Device {
        Device {
            begin_bytes: 0,
            len_bytes: blocks.len_bytes(),
            blocks,
            critical: Through::Auto,
            background: Through::Auto,
            over: Over::Nothing,
            claims: Claims::default(),
            purse: None,
        }
    }

    /// A file of so many bytes in a directory, whose name is gone at once: nothing is left of it
    /// when the process ends, however it does.
    pub fn temporary(dir: &Path, len_bytes: u64) -> Result<Device, MediaError> {
        Device::nameless(dir, |path| BlockFile::create(path, len_bytes))
    }

    /// The same, of which room on the disk is taken when it is written to; a write is refused where
    /// there is none then.
    pub fn sparse(dir: &Path, len_bytes: u64) -> Result<Device, MediaError> {
        Device::nameless(dir, |path| {
            let sized = File::options()
                .write(true)
                .open(path)
                .and_then(|file| file.set_len(len_bytes));
            let failed = |source| MediaError::File {
                path: path.to_owned(),
                action: "make it so long",
                source,
            };
            sized.map_err(failed).and_then(|()| BlockFile::open(path))
        })
    }

    fn nameless(
        dir: &Path,
        make: impl Fn(&Path) -> Result<BlockFile, MediaError>,
    ) -> Result<Device, MediaError> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let failed = |path: &Path, action| {
            let path = path.to_owned();
            move |source| MediaError::File {
                path,
                action,
                source,
            }
        };
        let path = loop {
            let number = MADE.fetch_add(1, Relaxed);
            let path = dir.join(format!("nyx-region-{}-{number}", std::process::id()));
            // Never somebody else's file, nor what a link points to.
            // What it will hold is nobody else's to read.
            let mut options = File::options();
            options.write(true).create_new(true).mode(0o600);
            match options.open(&path) {
                Ok(_) => break path,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&path, "make it")(error)),
            }
        };
        let blocks = make(&path);
        std::fs::remove_file(&path).map_err(failed(&path, "remove its name"))?;
        Ok(Device::new(Arc::new(blocks?)))
    }

    /// One that is there, all of it.
    pub fn open(path: &Path) -> Result<Device, MediaError> {
        Ok(Device::new(Arc::new(BlockFile::open(path)?)))
    }

    /// The same, by what it and this machine are found to do; takes some milliseconds.
    pub fn open_fastest(path: &Path) -> Result<Device, MediaError> {
        let blocks = Arc::new(BlockFile::open(path)?);
        let support = Support::of(&blocks)?;
        Ok(Device::new(blocks).fastest(&support))
    }

    /// The same, of that range only; whole pages of it are used.
    ///
    /// # Panics
    ///
    /// Where it leaves the device or does not begin at a page.
    #[must_use]
    pub fn part(self, begin_bytes: u64, len_bytes: u64) -> Device {
        let end = begin_bytes.checked_add(len_bytes);
        let is_within = end.is_some_and(|end| end <= self.blocks.len_bytes());
        assert!(
            is_within && begin_bytes.is_multiple_of(PAGE_BYTES as u64),
            "{len_bytes} bytes at {begin_bytes} of {} bytes",
            self.blocks.len_bytes()
        );
        Device {
            begin_bytes,
            len_bytes,
            ..self
        }
    }

    /// Who carries requests out: those that somebody waits for, and the others.
    #[must_use]
    pub fn through(self, critical: Through, background: Through) -> Device {
        Device {
            critical,
            background,
            ..self
        }
    }

    /// The same by what this device and machine were found to do: polled where they can.
    #[must_use]
    pub fn fastest(self, support: &Support) -> Device {
        self.through(support.critical(), support.background())
    }

    /// Where others use it too: no request goes that was not paid for.
    #[must_use]
    pub fn metered(self, purse: Arc<Purse>) -> Device {
        Device {
            purse: Some(purse),
            ..self
        }
    }

    pub(super) fn is_metered(&self) -> bool {
        self.purse.is_some()
    }

    /// Through a modelled device, in real time.
    #[must_use]
    pub fn emulated(self, model: Arc<Mutex<Emulation>>) -> Device {
        Device {
            over: Over::Emulation(model),
            ..self
        }
    }

    /// As one that refuses requests, for tests.
    #[must_use]
    pub fn refusing(self, refusals: Refusals) -> Device {
        Device {
            over: Over::Refusals(refusals),
            ..self
        }
    }

    /// Its bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// For a child of `fork`, which reads it itself.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.blocks.as_fd()
    }

    /// Where on that the device begins.
    pub(super) fn begin_bytes(&self) -> u64 {
        self.begin_bytes
    }

    /// Pages that fit.
    pub(super) fn slots(&self) -> u32 {
        u32::try_from(self.len_bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX)
    }

    /// Takes the range, unless a region has some of it.
    pub(super) fn claim(&self) -> Result<Claim, RegionError> {
        let range = self.begin_bytes..self.begin_bytes + self.len_bytes;
        let mut claims = lock(&self.claims);
        let is_shared = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        if claims.iter().any(is_shared) {
            let path = self.blocks.path().to_owned();
            return Err(RegionError::InUse { path, range });
        }
        claims.push(range.clone());
        let claims = self.claims.clone();
        Ok(Claim { range, claims })
    }

    fn desk<C: Clock>(
        &self,
        through: Through,
        memory: &Arc<Memory>,
        large: Option<Pool>,
        clock: C,
    ) -> Result<Desk<C>, MediaError> {
        let shape = QueueShape {
            depth: DEPTH,
            through,
        };
        let small = Pool::new(DEPTH, PAGE_BYTES)?;
        // The kernel is told of no pool: it would keep all of it in memory.
        let queue = match &self.over {
            Over::Nothing => Queue::new(&self.blocks, &[], shape),
            Over::Emulation(model) => Queue::emulated(&self.blocks, &[], shape, model),
            Over::Refusals(refusals) => Queue::refusing(&self.blocks, &[], shape, refusals),
        };
        Ok(Desk {
            queue: queue?,
            memory: memory.clone(),
            small: Buffers::of(small),
            large: large.map(Buffers::of),
            begin_bytes: self.begin_bytes,
            waiting: VecDeque::with_capacity(DEPTH as usize),
            alone: Vec::new(),
            moving: Vec::with_capacity(DEPTH as usize),
            unloaded: Vec::new(),
            reads: Shortage::default(),
            writes: Shortage::default(),
            refused: 0,
            clock,
            purse: self.purse.clone(),
            is_urgent: false,
            hurried: Hurried::Nothing,
            was_held: false,
        })
    }

    /// A desk for pages that the thread waits for itself.
    pub(super) fn critical(&self, memory: &Arc<Memory>) -> Result<Desk, MediaError> {
        self.desk(self.critical, memory, None, TscClock::start())
    }

    /// A desk whose thread is woken when something is done, for pages that are moved together.
    pub(super) fn background(&self, memory: &Arc<Memory>) -> Result<Desk, MediaError> {
        self.for_many(memory, TscClock::start())
    }

    fn for_many<C: Clock>(&self, memory: &Arc<Memory>, clock: C) -> Result<Desk<C>, MediaError> {
        let large = Pool::new(LARGE, TOGETHER_MAX as usize * PAGE_BYTES)?;
        self.desk(self.background, memory, Some(large), clock)
    }
}

/// Those of a pool, the last that was used first: the CPU has its bytes at hand, and others, which
/// the kernel may have sent to its swap, are not touched.
#[derive(Debug)]
struct Buffers {
    pool: Pool,
    used: Vec<Buffer>,
}

impl Buffers {
    fn of(pool: Pool) -> Buffers {
        let used = Vec::with_capacity(pool.free());
        Buffers { pool, used }
    }

    fn take(&mut self) -> Option<Buffer> {
        self.used.pop().or_else(|| self.pool.take())
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Desk<C = TscClock> {
    queue: Queue,
    memory: Arc<Memory>,
    /// Buffers for one page, as many as may be on their way.
    small: Buffers,
    /// For several.
    large: Option<Buffers>,
    begin_bytes: u64,
    /// For which the queue or the kernel had no room.
    waiting: VecDeque<Move>,
    /// Of those that were refused together, to be tried one by one.
    alone: Vec<Move>,
    moving: Vec<Move>,
    /// For whose write memory could not be read.
    unloaded: Vec<Move>,
    /// The kernel has no memory for what is read.
    reads: Shortage,
    /// Or for what is written: the page was sent to its swap, or the request needs some.
    writes: Shortage,
    /// Pages that were refused one after the other.
    refused: u32,
    clock: C,
    /// Out of which requests are paid.
    purse: Option<Arc<Purse>>,
    /// Somebody waits for memory: all that is moved is waited for.
    is_urgent: bool,
    /// For what of that which waits somebody waits.
    hurried: Hurried,
    /// Whether something was held when it was looked at last.
    was_held: bool,
}

/// What of that which nobody waited for somebody waits for by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hurried {
    /// Nothing.
    Nothing,
    /// A page that is read ahead.
    Reads,
    /// A page that is written.
    All,
}

impl<C: Clock> Desk<C> {
    /// Sets moves off together, or has them wait for those before them.
    pub(super) fn push(&mut self, all: impl IntoIterator<Item = Move>) {
        if self.pending() == 0 {
            // What was given up is no reason to be short of patience with the next.
            self.reads.end();
            self.writes.end();
        }
        let first = self.waiting.len();
        self.waiting.extend(all);
        let pushed = &mut self.waiting.make_contiguous()[first..];
        pushed.sort_unstable_by_key(|what| (what.kind, what.page));
        self.set_off();
    }

    /// What is to be set off next, as much of it as goes together; none where all that waits is
    /// held, or waits for memory.
    fn next_off(&mut self) -> Option<Move> {
        if !self.has_waiting() {
            return None;
        }
        let need = [Need::Later, Need::Now];
        let need = need.into_iter().find(|&need| self.may(need))?;
        let has_memory = self.has_memory();
        if let Some(at) = self.alone.iter().rposition(&has_memory) {
            return Some(self.alone.remove(at));
        }
        let may_go =
            |what: &Move| has_memory(what) && (need == Need::Later || self.is_needed(what.kind));
        let at = self.waiting.iter().position(may_go)?;
        let mut what = self.waiting.remove(at)?;
        while let Some(next) = self.waiting.get(at)
            && next.kind == what.kind
            && what.kind != Kind::Critical
            && self.large.is_some()
            && (next.page, next.slot) == (what.page + what.pages, what.slot + what.pages)
            && what.pages + next.pages <= TOGETHER_MAX
        {
            what.pages += next.pages;
            self.waiting.remove(at);
        }
        Some(what)
    }

    /// Tells of a move whether the kernel has memory for it now, as far as that is known.
    fn has_memory(&self) -> impl Fn(&Move) -> bool + use<C> {
        let now = self.clock.now();
        let (reads, writes) = (self.reads.may_try(now), self.writes.may_try(now));
        move |what| match what.kind {
            Kind::Critical | Kind::Ahead => reads,
            Kind::Write => writes,
        }
    }

    /// Whether somebody waits for what is of this kind.
    fn is_needed(&self, kind: Kind) -> bool {
        match kind {
            Kind::Critical => true,
            Kind::Ahead => self.is_urgent || self.hurried >= Hurried::Reads,
            Kind::Write => self.is_urgent || self.hurried == Hurried::All,
        }
    }

    fn has_waiting(&self) -> bool {
        !self.alone.is_empty() || !self.waiting.is_empty()
    }

    /// Whether something waits that may not go yet. Not what waits for memory: no payment helps.
    pub(super) fn is_held(&self) -> bool {
        let is_shared = self.purse.is_some() && self.moving.len() < DEPTH as usize;
        let mut waiting = self.alone.iter().chain(&self.waiting);
        is_shared && waiting.any(self.has_memory())
    }

    /// Says whether somebody waits for memory.
    pub(super) fn set_urgent(&mut self, is_urgent: bool) {
        self.is_urgent = is_urgent;
    }

    /// Somebody waits for something of this: all of its kind goes, as far as it is here.
    pub(super) fn hurry(&mut self, what: Hurried) {
        self.hurried = self.hurried.max(what);
        self.set_off();
        let waits = |kind| self.waiting.iter().any(|what| what.kind == kind);
        let is_over = match self.hurried {
            Hurried::Nothing => true,
            Hurried::Reads => !waits(Kind::Ahead),
            Hurried::All => !waits(Kind::Ahead) && !waits(Kind::Write),
        };
        if is_over {
            self.hurried = Hurried::Nothing;
        }
    }

    /// Whether what somebody waits for may go now.
    pub(super) fn may_now(&self) -> bool {
        self.may(Need::Now)
    }

    fn may(&self, need: Need) -> bool {
        let purse = self.purse.as_ref();
        purse.is_none_or(|purse| purse.may(need))
    }

    fn set_off(&mut self) {
        let before = self.moving.len();
        while self.moving.len() < DEPTH as usize
            && let Some(what) = self.next_off()
        {
            let Some(mut buffer) = self.buffer(what) else {
                self.waiting.push_front(what);
                break;
            };
            if what.kind != Kind::Write {
                self.reads.tried(self.clock.now());
            } else if !self.load(what, &mut buffer) {
                self.buffers(what).used.push(buffer);
                continue;
            }
            let at = self.begin_bytes + u64::from(what.slot) * PAGE_BYTES as u64;
            if let Some(purse) = &self.purse {
                purse.spend(what.kind != Kind::Write, what.pages);
            }
            let request = match what.kind {
                Kind::Critical | Kind::Ahead => Request::Read { at, into: buffer },
                Kind::Write => Request::Write {
                    at,
                    from: buffer,
                    is_durable: false,
                },
            };
            let submitted = self.queue.submit(request, u64::from(what.page));
            submitted.expect("fewer are on their way than the queue is deep");
            self.moving.push(what);
        }
        if self.moving.len() > before {
            self.queue.kick();
        }
        let is_held = self.is_held();
        if let Some(purse) = self.purse.as_ref().filter(|_| is_held) {
            purse.ask(!self.was_held);
        }
        self.was_held = is_held;
    }

    /// A buffer for a move; none where those for several pages are all on their way.
    fn buffer(&mut self, what: Move) -> Option<Buffer> {
        let mut buffer = self.buffers(what).take()?;
        buffer.narrow(0..what.pages as usize * PAGE_BYTES);
        Some(buffer)
    }

    fn buffers(&mut self, what: Move) -> &mut Buffers {
        match &mut self.large {
            Some(large) if what.pages > 1 => large,
            _ => &mut self.small,
        }
    }

    /// Something that is done, and whether it went well; waits for nothing.
    pub(super) fn next(&mut self) -> Option<(Move, bool)> {
        loop {
            let Some(done) = self.queue.reap() else {
                return self.unloaded.pop().map(|what| (what, false));
            };
            let is_it = |what: &Move| u64::from(what.page) == done.tag;
            let at = self.moving.iter().position(is_it);
            let what = self.moving.swap_remove(at.expect("it was set off here"));
            let is_good = match (done.result, &done.buffer) {
                (Ok(()), Some(read)) if what.kind != Kind::Write => self.store(what, read),
                (Ok(()), _) => self.succeeded(what),
                (Err(error), _) => self.failed(what, needs_memory(&error), &error),
            };
            // There is a buffer for the next.
            self.buffers(what).used.extend(done.buffer);
            self.set_off();
            if let Some(is_good) = is_good {
                return Some((what, is_good));
            }
        }
    }

    /// Takes out of memory what is written, and says whether it is there.
    fn load(&mut self, what: Move, buffer: &mut [u8]) -> bool {
        let Err(error) = self.memory.load(what.page, buffer) else {
            return true;
        };
        let why = format_args!("not in memory: {error}");
        if self.failed(what, is_short(&error), &why) == Some(false) {
            self.unloaded.push(what);
        }
        false
    }

    /// Puts into memory what was read, and says whether it is there; none where it is read again.
    fn store(&mut self, what: Move, read: &[u8]) -> Option<bool> {
        match self.memory.store(what.page, read) {
            Ok(()) => self.succeeded(what),
            Err(error) => {
                let why = format_args!("no memory for it: {error}");
                self.failed(what, is_short(&error), &why)
            }
        }
    }

    fn succeeded(&mut self, what: Move) -> Option<bool> {
        self.refused = 0;
        self.shortage(what.kind).end();
        Some(true)
    }

    /// That something is not done; none where it is tried again: as it is where the kernel has no
    /// memory yet, and page by page where that would tell which of them it is.
    fn failed(&mut self, what: Move, is_short: bool, why: &dyn Display) -> Option<bool> {
        let now = self.clock.now();
        if is_short && self.shortage(what.kind).refused(now) {
            self.waiting.push_back(what);
            return None;
        }
        if what.pages > 1 {
            self.alone.extend(what.each());
            return None;
        }
        self.note_refused(what.page, why);
        Some(false)
    }

    fn shortage(&mut self, kind: Kind) -> &mut Shortage {
        match kind {
            Kind::Critical | Kind::Ahead => &mut self.reads,
            Kind::Write => &mut self.writes,
        }
    }

    /// Whether something is to be tried again soon, of which no event tells: there is no memory for
    /// it, or it may not go yet.
    pub(super) fn has_to_look(&self) -> bool {
        self.is_held() || self.is_short()
    }

    fn is_short(&self) -> bool {
        (self.reads.is_on() || self.writes.is_on()) && self.has_waiting()
    }

    fn note_refused(&mut self, page: u32, error: &dyn Display) {
        self.refused = self.refused.saturating_add(1);
        // Not each of them: a device that is gone refuses all.
        if self.refused.is_power_of_two() {
            let refused = self.refused;
            tracing::warn!(page, refused, "in a region: {error}");
        }
    }

    /// The same; spins until something is done, and sleeps where that takes long. None where
    /// nothing is on its way: what waits for memory may do so for long, and is to be given up.
    pub(super) fn wait(&mut self) -> Option<(Move, bool)> {
        let began = self.clock.now();
        while !self.moving.is_empty()
            || !self.unloaded.is_empty()
            || (self.is_held() && !self.is_short())
        {
            if let Some(done) = self.next() {
                return Some(done);
            }
            if self.is_held() {
                self.set_off();
            }
            if self.moving.is_empty() {
                self.purse.iter().for_each(|purse| purse.rest(Need::Now));
            } else if self.clock.now().since(began).0 > SPIN_NS {
                self.queue.rest();
            } else {
                std::hint::spin_loop();
            }
        }
        None
    }

    /// What waits, which another desk takes over.
    pub(super) fn give_up(&mut self) -> impl Iterator<Item = Move> {
        self.waiting.drain(..).chain(self.alone.drain(..))
    }

    /// Pages that were refused one after the other.
    pub(super) fn refused(&self) -> u32 {
        self.refused
    }

    /// Pages that are on their way or wait to be.
    pub(super) fn pending(&self) -> usize {
        let all = self.moving.iter().chain(&self.waiting);
        let all = all.chain(&self.alone).chain(&self.unloaded);
        all.map(|what| what.pages as usize).sum()
    }

    /// Becomes readable when something is done.
    pub(super) fn event(&mut self) -> Option<BorrowedFd<'_>> {
        self.queue.event()
    }
}

/// Whether the kernel has no memory to carry a request out: for itself, or to bring a buffer in
/// that is the process's like any other. No room on the disk is something else.
fn needs_memory(error: &BlockError) -> bool {
    matches!(error.os_error, Some(libc::ENOMEM | libc::EFAULT))
}

#[cfg(test)]
mod tests;
