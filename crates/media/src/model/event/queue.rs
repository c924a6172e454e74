//! What is to happen, in the order of time; what happens at one time, in the order in which it was
//! planned.
//!
//! Nearly everything is planned less than some microseconds ahead, so that lies in a wheel of short
//! buckets: planning and taking cost a few steps whatever the load, where a heap of all events
//! spent two thirds of a simulation. What lies further ahead waits in a heap.
//!
//! What it never does: allocate for an event, once its buckets are as large as they ever are.
//!
//! *Invariants*: what lies in the wheel is less than one turn ahead of the event taken last, so
//! that a bucket never holds two turns' events; a bit is set where its bucket is not empty.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Ticks of a bucket, as a shift: 16 ns, in which a busy device does a thing or two.
const BUCKET_SHIFT: u32 = 8;
const BUCKETS: usize = 256;
const WORDS: usize = BUCKETS / 64;
/// Ticks of one turn of the wheel: 4 us.
const TURN: u64 = (BUCKETS as u64) << BUCKET_SHIFT;

/// Something that happens to the device or to one of its threads. Small: events are moved often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A thread looks what it can do.
    Step(u32),
    /// A partition has finished what it was doing.
    Served(u32),
    /// A waiting write of a partition may have grown old.
    Aged(u32),
    /// A read for which nobody waits reaches its partition.
    Fetch { place: u16, units: u32 },
    /// The bytes of a line of one of its operations have arrived at a thread.
    Line { thread: u16, op: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    time: u64,
    sequence: u64,
    event: Event,
}

/// See the module. Times in ticks.
#[derive(Debug)]
pub(super) struct Queue {
    buckets: Box<[Vec<Planned>]>,
    full: [u64; WORDS],
    far: BinaryHeap<Planned>,
    sequence: u64,
    /// The time of the event that was taken last.
    now: u64,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue {
            buckets: vec![Vec::new(); BUCKETS].into_boxed_slice(),
            full: [0; WORDS],
            far: BinaryHeap::new(),
            sequence: 0,
            now: 0,
        }
    }

    /// Plans an event, at the time of the one taken last or later.
    pub(super) fn push(&mut self, time: u64, event: Event) {
        debug_assert!(time >= self.now, "{time} is before {}", self.now);
        self.sequence += 1;
        let planned = Planned {
            time,
            sequence: self.sequence,
            event,
        };
        // A turn is counted from the begin of the bucket that time is in.
        if time - (self.now & !((1 << BUCKET_SHIFT) - 1)) < TURN {
            let bucket = bucket_of(time);
            self.buckets[bucket].push(planned);
            self.full[bucket / 64] |= 1 << (bucket % 64);
        } else {
            self.far.push(planned);
        }
    }

    /// Takes the next event before `until`, and its time.
    pub(super) fn pop_before(&mut self, until: u64) -> Option<(u64, Event)> {
        let near = self.next_near();
        let near_first = match (&near, self.far.peek()) {
            (None, None) => return None,
            (Some((_, _, near)), Some(far)) => near.key() < far.key(),
            (near, _) => near.is_some(),
        };
        let planned = match near.filter(|_| near_first) {
            Some((bucket, at, planned)) => {
                if planned.time >= until {
                    return None;
                }
                self.buckets[bucket].swap_remove(at);
                if self.buckets[bucket].is_empty() {
                    self.full[bucket / 64] &= !(1 << (bucket % 64));
                }
                planned
            }
            None if self.far.peek()?.time >= until => return None,
            None => self.far.pop()?,
        };
        self.now = planned.time;
        Some((planned.time, planned.event))
    }

    /// The next event in the wheel: its bucket, its place in that, and itself.
    fn next_near(&self) -> Option<(usize, usize, Planned)> {
        let bucket = self.first_full(bucket_of(self.now))?;
        let each = self.buckets[bucket].iter().copied().enumerate();
        let (at, planned) = each.min_by_key(|(_, planned)| planned.key())?;
        Some((bucket, at, planned))
    }

    /// The first bucket from `from` on, round the wheel, that is not empty.
    fn first_full(&self, from: usize) -> Option<usize> {
        let (word, bit) = (from / 64, from % 64);
        let first = self.full[word] & (!0 << bit);
        if first != 0 {
            return Some(word * 64 + first.trailing_zeros() as usize);
        }
        (1..=WORDS)
            .map(|ahead| (word + ahead) % WORDS)
            .find(|&word| self.full[word] != 0)
            .map(|word| word * 64 + self.full[word].trailing_zeros() as usize)
    }
}

fn bucket_of(time: u64) -> usize {
    (time >> BUCKET_SHIFT) as usize % BUCKETS
}

impl Planned {
    fn key(&self) -> (u64, u64) {
        (self.time, self.sequence)
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Planned) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Planned) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The earliest is the greatest, because the heap gives the greatest first.
impl Ord for Planned {
    fn cmp(&self, other: &Planned) -> Ordering {
        other.key().cmp(&self.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::Rng;

    #[test]
    fn events_come_in_the_order_of_a_sorted_list_however_far_ahead_they_were_planned() {
        for seed in 0..20 {
            let mut rng = Rng::with_seed(seed);
            let (mut queue, mut sorted) = (Queue::new(), Vec::new());
            let (mut now, mut planned) = (0, 0);
            while planned < 5_000 || !sorted.is_empty() {
                for _ in 0..rng.u32(0..4) {
                    if planned >= 5_000 {
                        break;
                    }
                    // Now, near, about a turn ahead, or far.
                    let most = [1, 500, 2 * TURN, 50 * TURN][rng.usize(0..4)];
                    let time = now + rng.u64(0..most);
                    queue.push(time, Event::Step(planned));
                    sorted.push((time, planned));
                    planned += 1;
                }
                let Some(&(time, first)) = sorted.iter().min() else {
                    continue;
                };
                assert_eq!(queue.pop_before(time), None, "not before its time");
                let popped = queue.pop_before(time + 1);
                assert_eq!(popped, Some((time, Event::Step(first))), "seed {seed}");
                sorted.retain(|&(_, one)| one != first);
                now = time;
            }
            assert_eq!(queue.pop_before(u64::MAX), None);
        }
    }
}
