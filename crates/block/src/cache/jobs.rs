//! Pieces of requests that are under way, and which of them have to wait for which.
//!
//! A piece lies in one stripe and touches a mask of its blocks. What it does there it says by a
//! [`Hold`]; two holds that do not go together are not had at once on one block:
//!
//! ```text
//!            Look  Clean  Solo
//! Quick       +      +      -     done at once, on the fast device alone
//! Look        +      -      -     reads the deep device
//! Clean       -      -      -     writes dirty blocks to the deep device
//! Solo        -      -      -     all else
//! ```
//!
//! Who waits is asked again each time that a piece of its stripe is over, in order of arrival; who
//! comes later waits behind it where one of both writes.
//!
//! What it never does: decide what a piece does.
//!
//! *Thread safety*: one thread's.

use crate::geometry::{Mask, STRIPE_BYTES, blocks_of};
use crate::route::Flight;
use nyx_media::queue::{BLOCK_BYTES, Buffer};
use std::ops::Range;

/// Stripes are spread over so many lists.
const BUCKETS: usize = 1024;

/// What a piece asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Fills the buffer.
    Read,
    /// Writes the buffer.
    Write,
    /// Makes whole blocks zero.
    Zero,
}

/// How a piece has its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// Not at all yet.
    Waiting,
    /// For the length of a call.
    Quick,
    /// It reads the deep device and changes nothing.
    Look,
    /// It writes dirty blocks back.
    Clean,
    /// Nobody else touches them.
    Solo,
}

/// Where a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It has not begun.
    New,
    /// The deep device reads what the client wants.
    Look,
    /// The deep device reads what is to be cached.
    Fill,
    /// The deep device reads the blocks that are written in part.
    Edges,
    /// The fast device is written when the records are durable.
    Mark,
    /// The deep device is written, when the records are durable.
    Through,
    /// The deep device makes zeroes, when the records are durable.
    Zero,
    /// The deep device is written dirty blocks.
    Clean,
}

/// A piece that is under way.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) token: u64,
    pub(super) verb: Verb,
    pub(super) stripe: u64,
    /// Bytes of the stripe, and of the buffer.
    pub(super) bytes: Range<u64>,
    pub(super) buffer: Option<Buffer>,
    pub(super) spare: Option<Buffer>,
    pub(super) hold: Hold,
    /// The blocks that it has, or waits for.
    pub(super) held: Mask,
    pub(super) step: Step,
    /// Blocks whose lines it has pinned.
    pub(super) pinned: Mask,
    pub(super) flight: Option<Flight>,
    /// It was counted as hit or miss.
    pub(super) is_counted: bool,
}

impl Job {
    /// The blocks that it asks for.
    pub(super) fn mask(&self) -> Mask {
        blocks_of(self.bytes.clone())
    }

    /// Where in the image its stripe begins.
    pub(super) fn begin(&self) -> u64 {
        self.stripe * STRIPE_BYTES
    }

    /// Whether it is whole blocks.
    pub(super) fn is_whole(&self) -> bool {
        self.bytes.start.is_multiple_of(BLOCK_BYTES) && self.bytes.end.is_multiple_of(BLOCK_BYTES)
    }
}

/// Whether a piece may have blocks while another has them.
fn goes_with(new: Hold, held: Hold) -> bool {
    match (new, held) {
        (_, Hold::Solo) => false,
        (Hold::Quick, _) | (Hold::Look, Hold::Look) => true,
        _ => false,
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Jobs {
    all: Vec<Option<Job>>,
    free: Vec<u32>,
    buckets: Box<[Vec<u32>]>,
    count: u32,
}

impl Jobs {
    pub(super) fn new() -> Jobs {
        Jobs {
            all: Vec::new(),
            free: Vec::new(),
            buckets: (0..BUCKETS).map(|_| Vec::new()).collect(),
            count: 0,
        }
    }

    /// Adds a piece, behind all others.
    pub(super) fn add(&mut self, job: Job) -> u32 {
        let bucket = Jobs::bucket(job.stripe);
        let id = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            (self.all.len() - 1) as u32
        });
        self.all[id as usize] = Some(job);
        self.buckets[bucket].push(id);
        self.count += 1;
        id
    }

    /// Takes a piece out that is over, and tells which list may go on.
    pub(super) fn remove(&mut self, id: u32) -> (Job, usize) {
        let job = self.all[id as usize].take().expect("it is under way");
        let bucket = Jobs::bucket(job.stripe);
        self.buckets[bucket].retain(|&other| other != id);
        self.free.push(id);
        self.count -= 1;
        (job, bucket)
    }

    pub(super) fn get(&self, id: u32) -> &Job {
        self.all[id as usize].as_ref().expect("it is under way")
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut Job {
        self.all[id as usize].as_mut().expect("it is under way")
    }

    /// Pieces that are under way or wait.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Whether somebody has blocks in a way that this does not go with, or waits for them and came
    /// first. `who` is a piece, or none for one that is not added yet.
    pub(super) fn is_blocked(&self, who: Option<u32>, stripe: u64, hold: Hold, mask: Mask) -> bool {
        if who.is_some_and(|id| self.get(id).hold == Hold::Solo) {
            return false;
        }
        let mut came_first = true;
        self.buckets[Jobs::bucket(stripe)].iter().any(|&id| {
            if Some(id) == who {
                came_first = false;
                return false;
            }
            let other = self.get(id);
            if other.stripe != stripe || other.held & mask == 0 {
                return false;
            }
            match other.hold {
                Hold::Waiting => {
                    let writes = matches!(hold, Hold::Solo | Hold::Clean);
                    came_first && (writes || other.verb != Verb::Read)
                }
                held => !goes_with(hold, held),
            }
        })
    }

    /// The first of a list that waits, from a place in it on: its place and its number.
    pub(super) fn waiting(&self, bucket: usize, from: usize) -> Option<(usize, u32)> {
        let rest = self.buckets[bucket].iter().enumerate().skip(from);
        let mut waits = rest.filter(|&(_, &id)| self.get(id).hold == Hold::Waiting);
        waits.next().map(|(at, &id)| (at, id))
    }

    fn bucket(stripe: u64) -> usize {
        stripe as usize % BUCKETS
    }
}
