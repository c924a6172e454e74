//! What becomes of YCSB's operations: counted by kind, checked, followed up.
//!
//! A read-modify-write is one operation, from when its read was due until its write was answered,
//! whether the read found anything or not. A scan is one, too, however many parts its answer has.
//!
//! What it never does: take a miss and a hit for the same kind of read.

use super::Kind;
use crate::load::link::{Ask, Asked, Outcome, Sink};
use crate::load::stream::Desk;

/// Where the replies of one connection are counted in a run of YCSB.
pub(crate) struct Counter<'d, 'a> {
    desk: &'d mut Desk<'a>,
    /// Whether the request whose reply is being read has missed.
    missed: bool,
}

impl<'d, 'a> Counter<'d, 'a> {
    /// Counts at `desk`.
    pub(crate) fn at(desk: &'d mut Desk<'a>) -> Counter<'d, 'a> {
        Counter {
            desk,
            missed: false,
        }
    }

    fn miss(&mut self, asked: &Asked) {
        let counts = &mut self.desk.tally.counts;
        let len = u64::from(asked.value_len);
        counts.misses += 1;
        counts.read_bytes += len;
        counts.missed_bytes += len;
        match asked.ask {
            Ask::Look => counts.look_misses += 1,
            _ => self.missed = true,
        }
        if asked.ask == Ask::Get && self.desk.fill_on_miss {
            self.desk.sequels.push_back(*asked);
        }
    }

    fn hit(&mut self, asked: &Asked, key: u64, data: &[u8]) {
        let desk = &mut *self.desk;
        let len = desk.generator.value_len(key);
        let counts = &mut desk.tally.counts;
        match asked.ask {
            Ask::Scan => counts.scanned += 1,
            _ => {
                counts.hits += 1;
                counts.read_bytes += u64::from(len);
            }
        }
        let in_order = asked.ask != Ask::Scan || key >= asked.key;
        let right = in_order && data.len() == len as usize && desk.values.verify(key, data);
        counts.corrupt += u64::from(!right);
    }
}

impl Sink for Counter<'_, '_> {
    #[inline]
    fn arrived(&mut self) {
        self.desk.arrived();
    }

    #[inline]
    fn key(&mut self, asked: &Asked, key: u64, outcome: Outcome<'_>) {
        match outcome {
            Outcome::Refused(refusal) => self.desk.tally.counts.refused[refusal as usize] += 1,
            Outcome::Hit(data) => self.hit(asked, key, data.unwrap_or_default()),
            Outcome::Miss if matches!(asked.ask, Ask::Get | Ask::Look) => self.miss(asked),
            Outcome::Miss | Outcome::Done => {}
        }
    }

    fn reply(&mut self, asked: &Asked) {
        let missed = std::mem::take(&mut self.missed);
        let desk = &mut *self.desk;
        desk.tally.counts.ops[asked.ask as usize] += 1;
        let kind = match asked.ask {
            Ask::Get if missed => Kind::ReadMiss,
            Ask::Get => Kind::Read,
            Ask::Scan => Kind::Scan,
            Ask::Rmw => Kind::Rmw,
            Ask::Insert => {
                desk.shared.records.done(asked.key);
                Kind::Insert
            }
            Ask::Look => return desk.sequels.push_back(*asked),
            Ask::Fill => return,
            Ask::Set | Ask::Delete | Ask::Incr | Ask::Touch => Kind::Update,
        };
        desk.keys += 1;
        let ns = desk.now_ns.saturating_sub(asked.since_ns);
        desk.tally.latency_of(kind as usize, ns);
    }

    fn more(&mut self, asked: &Asked) {
        self.desk.sequels.push_back(*asked);
    }
}
