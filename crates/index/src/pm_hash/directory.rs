//! The directory: from the upper bits of a hash to a segment, or to one left of it.
//!
//! A tree of tables, each for [`BITS`](super::BITS) bits of a hash, the highest first. An entry is
//! the address of a segment, or of a table for the next bits, plus 1. Tables are never moved,
//! resized or given back: where a segment becomes deeper than its table, one table for the next
//! bits takes its entry's place, and has that entry everywhere. So the directory grows where hashes
//! are, and never all at once.
//!
//! A table is durable before it is linked to. The entries themselves are written back and not
//! waited for: each is right whenever it becomes durable, and the one before it remains right for
//! ever.

use super::segment::Segment;
use super::{DEPTH_MAX, PmHash, Span};
use crate::heap::{Class, Sweep};
use crate::ordered::{PutError, Steps, Unsound};
use crate::sync::lock;
use nyx_base::WorkerId;
use nyx_media::Pmem;
use nyx_media::pmem::Word;
use std::ops::Range;
use std::sync::atomic::Ordering::Acquire;

/// Added to the address of a table.
const IS_TABLE: u64 = 1;

/// Who goes through the directory.
pub(super) struct Visit<'v, 'h, P> {
    /// Is told of the tables.
    pub(super) sweep: Option<&'v mut Sweep<'h, P>>,
    /// Is called with the address of each segment and the lowest hash that leads there.
    pub(super) see: &'v mut dyn FnMut(u64, u64) -> Result<(), Unsound>,
    /// How far one may go yet.
    pub(super) steps: Steps,
    /// Tables that were met.
    pub(super) tables: u64,
    /// And how many are one above the other.
    pub(super) levels: u32,
}

impl<P: Pmem, const BUCKETS: usize, const SLOTS: usize, const BITS: u32>
    PmHash<P, BUCKETS, SLOTS, BITS>
{
    const TABLE_BYTES: u64 = 8 << BITS;
    const TABLE: Class = match Class::of(Self::TABLE_BYTES) {
        Some(class) if class.bytes() == Self::TABLE_BYTES => class,
        _ => panic!("there are no blocks as large as a table"),
    };
    /// Tables that are one above the other, at most.
    const LEVELS: u32 = DEPTH_MAX.div_ceil(BITS);

    /// How many tables one may come to.
    pub(super) fn tables(&self) -> Steps {
        Steps::among(&self.heap, Self::TABLE_BYTES)
    }

    /// The table at `at`, of `level`.
    #[inline]
    fn table(&self, at: u64, level: u32) -> Result<&[Word], Unsound> {
        if level >= Self::LEVELS {
            return Err(Unsound::Level { at });
        }
        let words = self.heap.block(at, Self::TABLE_BYTES);
        words.ok_or(Unsound::NoNode { at })
    }

    /// The entry of a table of `level` that `hash` leads to.
    #[inline]
    fn entry(hash: u64, level: u32) -> usize {
        (hash << (level * BITS) >> (64 - BITS)) as usize
    }

    /// The entries of a table of `level` for the hashes of `span`, some of which lead there.
    fn entries(span: Span, level: u32) -> Range<usize> {
        let first = Self::entry(span.low, level);
        // Bits that all have in common beyond those of this level count for one entry.
        let free = (BITS * (level + 1)).saturating_sub(span.depth);
        let end = first + (1 << free.min(BITS));
        // Beyond the table in a damaged image only.
        first..end.min(1 << BITS)
    }

    /// The segment that has `hash`, or one to its left.
    #[inline]
    pub(super) fn descend(&self, hash: u64) -> Result<Segment<'_, P>, Unsound> {
        let mut at = self.heap.read_root(self.root);
        let mut level = 0;
        loop {
            let entry = self.table(at, level)?[Self::entry(hash, level)].load(Acquire);
            if entry & IS_TABLE == 0 {
                return self.segment(entry);
            }
            at = entry & !IS_TABLE;
            level += 1;
        }
    }

    /// A durable table that nobody knows of, with `entry` everywhere.
    pub(super) fn draft_directory(&self, worker: WorkerId, entry: u64) -> Result<u64, PutError> {
        let at = self.heap.take(worker, Self::TABLE)?;
        let table = self.table(at, 0)?;
        table
            .iter()
            .for_each(|word| self.heap.pm().store(word, entry));
        self.heap.pm().persist(table);
        Ok(at)
    }

    /// Makes the hashes of `span` lead to the segment at `right`, whose lowest that one's is.
    pub(super) fn tell(&self, worker: WorkerId, span: Span, right: u64) -> Result<(), PutError> {
        let _telling = lock(&self.telling);
        let root = self.heap.read_root(self.root);
        let mut steps = self.tables();
        self.tell_table(worker, (root, 0), span, right, &mut steps)
    }

    /// The same of one table, at an address and of a level, and those below.
    fn tell_table(
        &self,
        worker: WorkerId,
        (at, level): (u64, u32),
        span: Span,
        right: u64,
        steps: &mut Steps,
    ) -> Result<(), PutError> {
        let table = steps.to(self.table(at, level)?)?;
        let range = Self::entries(span, level);
        for word in &table[range.clone()] {
            let mut entry = word.load(Acquire);
            let is_table = entry & IS_TABLE != 0;
            // Who is further right already was told of before.
            if !is_table && self.segment(entry)?.bucket(0).span().low >= span.low {
                continue;
            }
            if !is_table && span.depth <= BITS * (level + 1) {
                self.heap.pm().store(word, right);
                continue;
            }
            if !is_table {
                entry = self.draft_directory(worker, entry)? | IS_TABLE;
                self.heap.pm().store(word, entry);
            }
            let below = (entry & !IS_TABLE, level + 1);
            self.tell_table(worker, below, span, right, steps)?;
        }
        self.heap.pm().flush(&table[range]);
        Ok(())
    }

    /// Goes through all of the directory.
    pub(super) fn visit(&self, visit: &mut Visit<'_, '_, P>) -> Result<(), Unsound> {
        self.visit_table(self.heap.read_root(self.root), 0, 0, visit)
    }

    /// Goes through the table at `at`, of `level`, to which `low` is the lowest hash to lead, and
    /// those below.
    fn visit_table(
        &self,
        at: u64,
        level: u32,
        low: u64,
        visit: &mut Visit<'_, '_, P>,
    ) -> Result<(), Unsound> {
        let table = visit.steps.to(self.table(at, level)?)?;
        match &mut visit.sweep {
            Some(sweep) => sweep.mark(at, Self::TABLE)?,
            None => self.heap.check(at, Self::TABLE)?,
        }
        visit.tables += 1;
        visit.levels = visit.levels.max(level + 1);
        for (number, word) in table.iter().enumerate() {
            let low = low | (number as u64) << (64 - BITS * (level + 1));
            let entry = word.load(Acquire);
            match entry & IS_TABLE {
                0 => (visit.see)(entry, low)?,
                _ => self.visit_table(entry & !IS_TABLE, level + 1, low, visit)?,
            }
        }
        Ok(())
    }
}
