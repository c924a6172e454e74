//! How the table of the map grows.
//!
//! What it never does: hash a key, fail halfway: what one bucket needed is enough for two.
//!
//! *Thread safety*: one worker at a time; the protocol is in `map`.

use super::bucket::{Bucket, ENTRIES, Head, Link, Mark, SPILL_ENTRIES, Seen};
use super::{DramMap, SPLIT_BUCKETS, is_crowded};
use crate::sync::{Ordering, Wait};
use Ordering::{Acquire, Relaxed, Release};

/// One of the two buckets that a split makes of one.
struct Side<'m> {
    bucket: &'m Bucket,
    mark: Mark,
    link: Option<Link>,
}

impl Side<'_> {
    /// What is in place in `bucket`, which is not spilled.
    fn of(bucket: &Bucket) -> Side<'_> {
        Side {
            bucket,
            mark: bucket.mark(),
            link: None,
        }
    }

    /// What its head is, that was `before`.
    fn head(&self, before: Seen) -> Seen {
        before.marked(self.mark).spilled(self.link.is_some())
    }
}

impl DramMap {
    /// Splits buckets until there are enough of them. The caller holds no lock.
    #[cold]
    pub(super) fn grow(&self) {
        if !self.is_crowded() || self.growing.swap(1, Acquire) != 0 {
            return;
        }
        while self.is_crowded() {
            self.split();
        }
        self.growing.store(0, Release);
    }

    /// Without room chains get longer.
    fn is_crowded(&self) -> bool {
        let count = self.buckets.count();
        // Removals may have been told before the insertions that others made.
        let told = self.told.load(Relaxed).cast_signed().max(0);
        is_crowded(told.cast_unsigned(), count) && count < self.buckets.capacity()
    }

    /// Splits the next buckets. Holder of `growing` only, and while there is room.
    fn split(&self) {
        let count = self.buckets.count();
        // The number of buckets at first, and so any power of two from there on, is a multiple of
        // how many are split at once: all come from the same half.
        let half = (count + 1).next_power_of_two() / 2;
        let mut heads = [None; SPLIT_BUCKETS as usize];
        for (at, old) in (count - half..).zip(&mut heads) {
            let ((head, from), into) = (self.buckets.at(at), self.buckets.at(at + half));
            let before = lock(head);
            head.begin_change(before);
            *old = Some(self.split_one((before, from), into, half));
        }
        self.buckets.set_count(count + SPLIT_BUCKETS);
        for (at, old) in (count - half..).zip(heads) {
            // Not before the number of buckets: who finds a hash unmarked that went elsewhere sees
            // that it did.
            let (head, _) = self.buckets.at(at);
            head.unlock_changed(old.expect("it was locked"));
        }
        self.fetch_next(count + SPLIT_BUCKETS);
    }

    /// Asks for what the next splits change to be brought near: the buckets of the one after the
    /// next, and the spills of the next, whose buckets are.
    fn fetch_next(&self, count: u64) {
        for (count, is_near) in [(count, true), (count + SPLIT_BUCKETS, false)] {
            if count >= self.buckets.capacity() {
                return;
            }
            let half = (count + 1).next_power_of_two() / 2;
            for at in count - half..count - half + SPLIT_BUCKETS {
                let (head, from) = self.buckets.at(at);
                if !is_near {
                    from.prefetch_write();
                    self.buckets.at(at + half).1.prefetch_write();
                } else if let Some(link) = from.link(head.look()) {
                    self.spills.prefetch(link);
                }
            }
        }
    }

    /// Moves those entries of a bucket, which is marked as changing, whose hash has the bit `half`
    /// into another that nobody sees; the head of what is left.
    fn split_one(
        &self,
        (before, from): (Seen, &Bucket),
        (head, into): (&Head, &Bucket),
        half: u64,
    ) -> Seen {
        let link = from.link(before);
        let mut next = 0;
        for at in 0..ENTRIES {
            let (word, value) = from.entry(at).read();
            let moves = word != 0 && word & half != 0;
            // Stored in any case: half of them move, so that a branch would be a guess.
            into.entry(next).fill(if moves { word } else { 0 }, value);
            from.entry(at)
                .word
                .store(if moves { 0 } else { word }, Release);
            next += usize::from(moves);
        }
        let mut sides = [from, into].map(Side::of);
        if let Some(link) = link {
            self.split_spills(link, &mut sides, half);
            let spilled = sides.iter().filter(|side| side.link.is_some());
            spilled.for_each(|side| side.bucket.set_link(side.link));
        }
        let [kept, moved] = sides;
        head.unlock(moved.head(head.look()));
        kept.head(before)
    }

    /// Gives what was spilled to either side. A spill that is emptied is used again by the first
    /// who needs one: after each there are as many spare ones as both sides can have need of. (If
    /// one side spills, it has at most what was spilled before; if both do, seven less.)
    #[cold]
    fn split_spills(&self, link: Link, sides: &mut [Side<'_>; 2], half: u64) {
        let (mut link, mut spare) = (Some(link), None);
        while let Some(at) = link {
            let spill = self.spills.at(at);
            link = spill.next();
            let entries: [_; SPILL_ENTRIES] = std::array::from_fn(|at| {
                let entry = spill.entry(at);
                let read = entry.read();
                entry.clear();
                read
            });
            spill.set_next(spare);
            spare = Some(at);
            for (word, value) in entries.into_iter().take(at.entries()) {
                let side = &mut sides[usize::from(word & half != 0)];
                side.mark = side.mark.and(Mark::of(word));
                let take = || {
                    let taken = spare.expect("as many as both sides need");
                    spare = self.spills.at(taken).next();
                    Some(taken.index())
                };
                if side.link.is_some() {
                    side.link = self.spills.push(side.link, word, value, take);
                } else if let Some(vacancy) = side.bucket.vacancy(self.prim) {
                    vacancy.fill(word, value);
                } else {
                    side.link = self.spills.spill(side.bucket, word, value, take);
                }
            }
        }
        while let Some(at) = spare {
            spare = self.spills.at(at).next();
            self.spills.give_back(at.index());
        }
    }
}

fn lock(head: &Head) -> Seen {
    let mut wait = Wait::new();
    loop {
        match head.try_lock() {
            Some(head) => return head,
            None => wait.turn(),
        }
    }
}
