//! HFIO, the paper's tool, in real time: requests of one size to two devices, of which the fast one
//! is a cache of the deep one, with a hit ratio that addresses force.
//!
//! The deep device has blocks 0, 1, 2...; the fast one has the first of them too ([`Layout`]). So
//! many of the reads as there are to be hits go to those, the others to blocks behind them. What is
//! installed, and what is written to the fast device, goes round a few slots at its end that no hit
//! reads, as the end of an LRU list would be: what was missed is not asked for again before it is
//! gone. A block holds its number ([`stamp`]) and is read with it, from either device, or the run
//! fails.
//!
//! One thread drives both devices' queues ([`drive`]) and spins: nothing wakes late. Where requests
//! go is the desk's of `nyx_sim::pair`, with the controllers of `nyx_policy::nhc` as they are.
//!
//! What it never does: write to what is not to be overwritten ([`target`]); allocate for a request.
//!
//! Source: Orthus, section 3.

pub mod cost;
pub mod drive;
pub mod target;
#[cfg(test)]
mod tests;

use crate::{Exit, Failure};
use nyx_base::{Bytes, Rng};
use nyx_media::TscClock;
use nyx_media::queue::{
    BLOCK_BYTES, BlockError, Buffer, Pool, Queue, QueueShape, Request, Through,
};
use nyx_policy::nhc::{Both, Cost, Kind, Side};
use nyx_sim::pair::Desk;
use target::Target;

/// A block that is measured with is no larger.
pub const LEN_MAX: u64 = 16 << 20;
/// Of the fast device's blocks, one in so many takes what is installed and written.
const SLOTS_ONE_IN: u64 = 8;
/// The first bytes of a block say which it is.
const STAMP: u64 = 0x4846_494f_b10c_0000;
const STAMP_BYTES: usize = 16;

/// Which block lies where; all in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a block.
    pub len_bytes: u64,
    /// Both devices have those below.
    pub kept: u64,
    /// The fast device has so many more, for what is new.
    pub slots: u64,
    /// The deep device's.
    pub all: u64,
}

impl Layout {
    /// Of blocks of `len`, `cache` bytes of the fast device and `data` bytes of the deep one, where
    /// so many requests are in flight at most.
    pub fn new(len: Bytes, cache: Bytes, data: Bytes, depth: u32) -> Result<Layout, Failure> {
        if !(BLOCK_BYTES..=LEN_MAX).contains(&len.0) || !len.0.is_multiple_of(BLOCK_BYTES) {
            let (least, most) = (Bytes(BLOCK_BYTES), Bytes(LEN_MAX));
            return Err(Failure::usage(format!(
                "--len {len}: with --measure a multiple of {least}, {most} at most"
            )));
        }
        let (cached, all) = (cache.0 / len.0, data.0 / len.0);
        // No two requests that are in flight write to one slot.
        let slots = (cached / SLOTS_ONE_IN).max(u64::from(depth));
        if cached < 2 * slots {
            return Err(Failure::usage(format!(
                "--cache {cache}: {cached} blocks of {len} are too few for {depth} requests at \
                 once; {} at least",
                Bytes(2 * slots * len.0)
            )));
        }
        let kept = cached - slots;
        if all <= kept {
            return Err(Failure::usage(format!(
                "--data {data}: no more than the cache keeps, so nothing could be missed; make it \
                 {} or more",
                Bytes(2 * cache.0)
            )));
        }
        Ok(Layout {
            len_bytes: len.0,
            kept,
            slots,
            all,
        })
    }

    /// What a device has to have, in blocks.
    pub fn blocks(&self, side: Side) -> u64 {
        match side {
            Side::Fast => self.kept + self.slots,
            Side::Deep => self.all,
        }
    }

    /// A block that a read asks for: one that both devices have with the probability `hits`.
    pub fn draw(&self, rng: &mut Rng, hits: f64) -> u64 {
        match rng.f64() < hits {
            true => rng.u64(0..self.kept),
            false => self.draw_missed(rng),
        }
    }

    /// One that the fast device has not.
    pub fn draw_missed(&self, rng: &mut Rng) -> u64 {
        rng.u64(self.kept..self.all)
    }
}

/// Makes a buffer that block, written for the `turn`-th time.
pub fn stamp(buffer: &mut [u8], block: u64, turn: u64) {
    buffer[..8].copy_from_slice(&(STAMP ^ block).to_le_bytes());
    buffer[8..STAMP_BYTES].copy_from_slice(&turn.to_le_bytes());
}

/// Which block a buffer is, and which time it was written.
pub fn stamped(buffer: &[u8]) -> (u64, u64) {
    let word = |at| u64::from_le_bytes(buffer[at..at + 8].try_into().expect("8 bytes"));
    (STAMP ^ word(0), word(8))
}

/// Two devices ready to be measured.
#[derive(Debug)]
pub struct Rig {
    /// What is where.
    pub layout: Layout,
    /// Of both devices.
    pub targets: Both<Target>,
    /// What requests take of them, by [`Kind`].
    pub costs: Both<[Cost; 2]>,
    queues: Both<Queue>,
    pool: Pool,
    clock: TscClock,
    /// The fast device's next slot.
    slot: u64,
    /// Writes so far.
    turn: u64,
}

/// Requests in flight, at most, where so many clients ask.
pub fn depth_of(clients: u32) -> u32 {
    clients + Desk::COPIES_MAX.0.iter().sum::<u32>()
}

impl Rig {
    /// Fills what may be written, and makes the queues. `told` hears of each part that is filled,
    /// from 0 to 1.
    pub fn new(
        targets: Both<Target>,
        layout: Layout,
        depth: u32,
        told: &mut dyn FnMut(f64),
    ) -> Result<Rig, Failure> {
        let pool = Pool::new(depth, layout.len_bytes as usize).map_err(refused)?;
        let total = layout.blocks(Side::Fast) + layout.blocks(Side::Deep);
        let mut before = 0;
        for side in Side::ALL {
            let blocks = layout.blocks(side);
            if targets[side].may_write {
                let mut told = |block| told((before + block) as f64 / total as f64);
                fill(&targets[side], &pool, &layout, side, &mut told)?;
            }
            before += blocks;
        }
        let queue = |side: Side| targets[side].queue(&pool, depth);
        Ok(Rig {
            queues: Both([queue(Side::Fast)?, queue(Side::Deep)?]),
            costs: Both::default(),
            clock: TscClock::start(),
            slot: 0,
            turn: 0,
            targets,
            layout,
            pool,
        })
    }

    /// Who carries requests out, for people.
    pub fn describe(&self, side: Side) -> String {
        self.queues[side].describe()
    }

    /// Submits a request for a block, which owns the buffer meanwhile, and sets it off.
    fn submit(&mut self, kind: Kind, side: Side, place: u64, buffer: Buffer, tag: u64) {
        let at = place * self.layout.len_bytes;
        let request = match kind {
            Kind::Read => Request::Read { at, into: buffer },
            Kind::Write => Request::Write {
                at,
                from: buffer,
                is_durable: false,
            },
        };
        let queue = &mut self.queues[side];
        queue.submit(request, tag).expect("it is deep enough");
        queue.kick();
    }

    /// The same for a write of that block: where it goes on a device, and what is in the buffer.
    fn submit_write(&mut self, side: Side, block: u64, mut buffer: Buffer, tag: u64) {
        self.turn += 1;
        stamp(&mut buffer, block, self.turn);
        let place = match side {
            Side::Deep => block,
            Side::Fast => {
                self.slot = (self.slot + 1) % self.layout.slots;
                self.layout.kept + self.slot
            }
        };
        self.submit(Kind::Write, side, place, buffer, tag);
    }

    /// A buffer for a block.
    fn buffer(&self) -> Buffer {
        self.pool.take().expect("as many as are in flight")
    }

    /// Whether what was read is what is there, as far as we know that.
    fn check(&self, side: Side, block: u64, buffer: &[u8]) -> Result<(), Failure> {
        let found = stamped(buffer).0;
        match !self.targets[side].may_write || found == block {
            true => Ok(()),
            false => Err(Failure::new(
                Exit::Io,
                format!(
                    "{}: block {block} of {} bytes reads as something else than was written there",
                    self.targets[side].name, self.layout.len_bytes
                ),
            )),
        }
    }

    fn failed(&self, side: Side, error: BlockError) -> Failure {
        Failure::new(Exit::Io, format!("{}: {error}", self.targets[side].name))
    }
}

/// Writes all blocks, past the model: a slow device is not to be waited for twice.
fn fill(
    target: &Target,
    pool: &Pool,
    layout: &Layout,
    side: Side,
    told: &mut dyn FnMut(u64),
) -> Result<(), Failure> {
    const AT_ONCE: u32 = 16;
    let depth = AT_ONCE.min(pool.free() as u32);
    let through = Through::Auto;
    let pools = std::slice::from_ref(pool);
    let queue = Queue::new(&target.file, pools, QueueShape { depth, through });
    let mut queue = queue.map_err(refused)?;
    let blocks = layout.blocks(side);
    let mut next = 0;
    while next < blocks || queue.in_flight() > 0 {
        while next < blocks && queue.in_flight() < depth {
            let mut from = pool.take().expect("as many as are in flight");
            // Bytes that no device can do without reading.
            Rng::with_seed(next).fill(&mut from);
            stamp(&mut from, next, 0);
            let at = next * layout.len_bytes;
            let is_durable = false;
            let write = Request::Write {
                at,
                from,
                is_durable,
            };
            queue.submit(write, next).expect("it is deep enough");
            next += 1;
        }
        queue.rest();
        while let Some(done) = queue.reap() {
            let failed = |error| Failure::new(Exit::Io, format!("{}: {error}", target.name));
            done.result.map_err(failed)?;
            told(done.tag);
        }
    }
    Ok(())
}

/// Why the system let us have no queue, no memory, no file.
fn refused(error: nyx_media::MediaError) -> Failure {
    Failure::new(Exit::Os, error.to_string())
}
