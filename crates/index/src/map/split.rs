//! How the table of the map grows.
//!
//! What it never does: hash a key, fail halfway: what one bucket needed is enough for two.
//!
//! *Thread safety*: one worker at a time; the protocol is in `map`.

use super::bucket::{Bucket, ENTRIES, Link, SPILL_ENTRIES};
use super::stripe::{Mark, STRIPE_BUCKETS, Seen, Stripe};
use super::{DramMap, SPLIT_BUCKETS, is_crowded};
use crate::sync::{Ordering, Wait};
use Ordering::{Acquire, Relaxed, Release};

/// One of the two buckets that a split makes of one.
struct Side<'m> {
    bucket: &'m Bucket,
    mark: Mark,
    link: Option<Link>,
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
        // how many are split at once, and that of the buckets of a stripe: all come from the same
        // half, and stripes are old or new.
        let half = (count + 1).next_power_of_two() / 2;
        let olds = count - half..count - half + SPLIT_BUCKETS;
        let stripes = || olds.clone().step_by(STRIPE_BUCKETS as usize);
        let mut marks = [Mark::default(); SPLIT_BUCKETS as usize];
        let mut kept = [None; (SPLIT_BUCKETS / STRIPE_BUCKETS) as usize];
        let of_stripes = marks.chunks_mut(STRIPE_BUCKETS as usize);
        for ((old, kept), marks) in stripes().zip(&mut kept).zip(of_stripes) {
            *kept = Some(self.split_stripe(old, half, marks));
        }
        self.buckets.set_count(count + SPLIT_BUCKETS);
        // Not before the number of buckets: who finds a hash unmarked that went elsewhere sees that
        // it did.
        (olds.clone().zip(marks)).for_each(|(old, mark)| self.buckets.at(old).mark.set(mark));
        for (old, kept) in stripes().zip(kept) {
            let stripe = self.buckets.at(old).stripe;
            stripe.unlock_changed(kept.expect("it was locked"));
        }
        self.fetch_next(count + SPLIT_BUCKETS);
    }

    /// Locks a stripe, and splits its buckets; what it and their marks are to be.
    fn split_stripe(&self, old: u64, half: u64, marks: &mut [Mark]) -> Seen {
        let stripe = self.buckets.at(old).stripe;
        let before = lock(stripe);
        stripe.begin_change(before);
        let new = self.buckets.at(old + half).stripe;
        let (mut kept, mut moved) = (before, new.look());
        for (slot, mark) in (0..STRIPE_BUCKETS).zip(marks) {
            let place = self.buckets.at(old + slot + half);
            let sides = self.split_one(before, old + slot, half);
            let [stay, go] = &sides;
            *mark = stay.mark;
            place.mark.set(go.mark);
            kept = kept.spilled(slot, stay.link.is_some());
            moved = moved.spilled(slot, go.link.is_some());
        }
        new.unlock(moved);
        kept
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
                let from = self.buckets.at(at);
                if !is_near {
                    from.bucket.prefetch_write();
                    self.buckets.at(at + half).bucket.prefetch_write();
                } else if let Some(link) = from.link(from.stripe.look()) {
                    self.spills.prefetch(link);
                }
            }
        }
    }

    /// Moves those entries of a bucket, whose stripe is marked as changing, whose hash has the bit
    /// `half` into another that nobody sees; what stays, and what goes.
    fn split_one(&self, before: Seen, old: u64, half: u64) -> [Side<'_>; 2] {
        let place = self.buckets.at(old);
        let (from, into) = (place.bucket, self.buckets.at(old + half).bucket);
        let link = place.link(before);
        let mut next = 0;
        let mut marks = [Mark::default(); 2];
        for at in 0..ENTRIES {
            let (word, value) = from.entry(at).read();
            let moves = word & half != 0;
            // Stored in any case: half of them move, so that a branch would be a guess.
            into.entry(next).fill(if moves { word } else { 0 }, value);
            from.entry(at)
                .word
                .store(if moves { 0 } else { word }, Release);
            next += usize::from(moves);
            let mark = &mut marks[usize::from(moves)];
            *mark = mark.and(if word == 0 {
                Mark::default()
            } else {
                Mark::of(word)
            });
        }
        let side = |(bucket, mark)| Side {
            bucket,
            mark,
            link: None,
        };
        let mut sides = [(from, marks[0]), (into, marks[1])].map(side);
        if let Some(link) = link {
            self.split_spills(link, &mut sides, half);
            let spilled = sides.iter().filter(|side| side.link.is_some());
            spilled.for_each(|side| side.bucket.set_link(side.link));
        }
        sides
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

fn lock(stripe: &Stripe) -> Seen {
    let mut wait = Wait::new();
    loop {
        match stripe.try_lock() {
            Some(before) => return before,
            None => wait.turn(),
        }
    }
}
