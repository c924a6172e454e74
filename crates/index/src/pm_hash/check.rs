//! What must hold of a table, and where its blocks are: for sweeps after a restart, for inspection,
//! for tests.

use super::bucket::{self, Bucket};
use super::directory::Visit;
use super::segment::Segment;
use super::{PmHash, hash_of, places};
use crate::heap::Sweep;
use crate::ordered::{Census, Unsound};
use nyx_media::Pmem;
use std::collections::BTreeSet;

/// What is known of the chain up to a segment.
struct Chain<const BUCKETS: usize> {
    census: Census,
    /// For each place the lowest hash that no bucket has yet; none beyond the highest.
    next: [Option<u64>; BUCKETS],
    /// Segments that are being made by a split, which the directory may not lead to.
    unready: BTreeSet<u64>,
    /// All.
    segments: BTreeSet<u64>,
}

impl<P: Pmem, const BUCKETS: usize, const SLOTS: usize, const BITS: u32>
    PmHash<P, BUCKETS, SLOTS, BITS>
{
    pub(super) fn mark_all(&self, sweep: &mut Sweep<'_, P>) -> Result<u64, Unsound> {
        let mut visit = Visit {
            sweep: Some(sweep),
            see: &mut |_, _| Ok(()),
            steps: self.tables(),
            tables: 0,
            levels: 0,
        };
        self.visit(&mut visit)?;
        let mut blocks = visit.tables;
        let mut steps = self.steps();
        let mut segment = self.descend(0)?;
        loop {
            sweep.mark(segment.at, Self::SEGMENT)?;
            blocks += 1;
            match segment.link().right {
                0 => return Ok(blocks),
                right => segment = steps.to(self.segment(right)?)?,
            }
        }
    }

    pub(super) fn count_all(&self) -> Result<Census, Unsound> {
        let mut chain = Chain {
            census: Census::default(),
            next: [Some(0); BUCKETS],
            unready: BTreeSet::new(),
            segments: BTreeSet::new(),
        };
        let mut steps = self.steps();
        let mut segment = self.descend(0)?;
        loop {
            self.heap.check(segment.at, Self::SEGMENT)?;
            self.check_segment(segment, &mut chain)?;
            match segment.link().right {
                0 => break,
                right => segment = steps.to(self.segment(right)?)?,
            }
        }
        if chain.next.iter().any(Option::is_some) {
            let (at, fence) = (segment.at, segment.bucket(0).span().low);
            return Err(Unsound::Fence { at, fence });
        }
        self.check_directory(&mut chain)?;
        Ok(chain.census)
    }

    fn check_segment(
        &self,
        segment: Segment<'_, P>,
        chain: &mut Chain<BUCKETS>,
    ) -> Result<(), Unsound> {
        let (at, link) = (segment.at, segment.link());
        let low = segment.bucket(0).span().low;
        chain.segments.insert(at);
        chain.census.nodes += 1;
        for place in 0..BUCKETS {
            let bucket = segment.bucket(place);
            let span = bucket.span();
            let is_under_way = span.depth + 1 == link.depth;
            if !span.is_sound() || span.low != low || (span.depth != link.depth && !is_under_way) {
                return Err(Unsound::Level { at });
            }
            if is_under_way {
                chain.unready.insert(link.right);
            }
            if chain.next[place] == Some(low) {
                self.check_bucket(segment, place)?;
                chain.census.entries += bucket.entries(bucket.meta()).count() as u64;
                chain.next[place] = span.last().checked_add(1);
                continue;
            }
            // The left sibling's bucket still has what this one will have.
            let is_left = chain.next[place] == span.last().checked_add(1);
            if !is_left || !chain.unready.contains(&at) {
                return Err(Unsound::Fence { at, fence: low });
            }
            chain.census.leftovers += bucket.entries(bucket.meta()).count() as u64;
        }
        Ok(())
    }

    fn check_bucket(&self, segment: Segment<'_, P>, place: usize) -> Result<(), Unsound> {
        let bucket = segment.bucket(place);
        let meta = bucket.meta();
        for (slot, (key, _)) in bucket.entries(meta).enumerate() {
            let hash = hash_of(key);
            let places = places::<BUCKETS>(hash);
            let find = |bucket: Bucket<'_, P>, meta| bucket.find(meta, bucket::tag(hash), key);
            let belongs = meta.span().has(hash) && places.contains(&place);
            // Once here, and not in the other place.
            let mut is_once = find(bucket, meta).is_some();
            is_once &= bucket.entries(meta).filter(|entry| entry.0 == key).count() == 1;
            for other in places.into_iter().filter(|&other| other != place) {
                is_once &= self.read(segment, hash, other, find)?.is_none();
            }
            if !belongs || !is_once {
                let at = segment.at;
                return Err(Unsound::Key { at, slot, key });
            }
        }
        Ok(())
    }

    fn check_directory(&self, chain: &mut Chain<BUCKETS>) -> Result<(), Unsound> {
        let mut named = BTreeSet::new();
        let mut see = |at, low| {
            let is_known = chain.segments.contains(&at) && !chain.unready.contains(&at);
            if !is_known || self.segment(at)?.bucket(0).span().low > low {
                return Err(Unsound::NoNode { at });
            }
            named.insert(at);
            Ok(())
        };
        let mut visit = Visit {
            sweep: None,
            see: &mut see,
            steps: self.tables(),
            tables: 0,
            levels: 0,
        };
        self.visit(&mut visit)?;
        let (tables, levels) = (visit.tables, visit.levels);
        chain.census.nodes += tables;
        chain.census.levels = levels;
        chain.census.unlinked = (chain.segments.len() - named.len()) as u64;
        Ok(())
    }
}
