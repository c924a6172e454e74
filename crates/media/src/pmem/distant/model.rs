//! How long a persistent memory keeps a thread waiting beyond DRAM, in virtual time.
//!
//! What it never does: read a clock, wait, move a byte. It is told what is accessed and when, and
//! says until when the thread has to wait; [`Distant`](super::Distant) waits.
//!
//! *Thread safety*: a [`Near`] is one thread's; the [`Device`] is shared.
//!
//! Source: HybridIndex+ section 2.2, tables 3, 4, 7 and 8; section 2.3 for bandwidths.

use super::queue::Queue;
use crate::evaluate::paper::{DRAM_RANDOM_NS, Latencies, MODULE_GB_PER_S, READS, WRITES};
use crate::prim::LINE_BYTES;
use std::ops::Range;

const LINE: u64 = LINE_BYTES as u64;
/// What the device reads and writes inside of itself at a time, in bytes (section 2.3).
const UNIT_BYTES: u64 = 256;
const UNIT_LINES: u64 = UNIT_BYTES / LINE;

/// Rows of tables 3 to 8 from the one of a line on. Lines are read and written back whole, so that
/// the rows for less do not apply.
const ROWS: Range<usize> = 3..8;
/// Latencies by size: bytes, nanoseconds.
type ByBytes = [(u64, f64); ROWS.end - ROWS.start];

/// Units that the device keeps at hand after reading them, for each thread. The paper shows that
/// there is a buffer, not its size: that is a choice.
const BUFFERED: usize = 16;
/// Units that may wait to be written before a fence has to wait for the device: a choice too.
const QUEUED: u64 = 64;
/// Lines that a core waits for at once.
const IN_FLIGHT: usize = 12;
const WAYS: usize = 8;
/// Ranges that are near for being looked at once: a few, each a line or two.
const PASSING: usize = 8;
/// Ranges that are known to be near without looking at each line, a power of two.
const RECENT: usize = 2048;
/// The bits of a unit's lines, below its tag.
const UNIT_MASK: u16 = (1 << UNIT_LINES) - 1;

/// What is added to an access that leaves the caches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extra {
    read: ByBytes,
    buffered_ns: f64,
    /// Whether it keeps units at hand.
    has_buffer: bool,
    write: ByBytes,
    unit_read_ns: f64,
    unit_write_ns: f64,
    /// What the memory beneath takes, where that begins when a line is asked for ahead.
    beneath_ns: f64,
}

/// Which device is emulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// The same memory: what the model itself costs.
    None,
    /// AEP: what its latency has more than `dram_ns`, which is this machine's.
    Aep {
        /// The latency of a dependent read of 64 bytes at random on this machine's DRAM.
        dram_ns: f64,
    },
    /// As far from this machine's DRAM as AEP is from the DRAM of the paper, in nanoseconds.
    AepAbove {
        /// As that of [`Kind::Aep`].
        dram_ns: f64,
    },
}

/// A device of the paper's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    /// Its module of persistent memory.
    Aep,
    /// Its DRAM, whose bandwidth is not modelled.
    Dram,
}

/// This machine's DRAM is slower than the device that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "this machine's DRAM takes {dram_ns:.0} ns, AEP {aep_ns:.0} ns: it cannot be emulated here"
)]
pub struct TooSlow {
    /// This machine's.
    pub dram_ns: f64,
    /// The device's.
    pub aep_ns: f64,
}

impl Extra {
    /// What `kind` adds; an error where this machine is too slow for it.
    pub fn new(kind: Kind) -> Result<Extra, TooSlow> {
        let (_, papers_dram_ns, _) = DRAM_RANDOM_NS[ROWS.start];
        let (slower_by, beneath_ns) = match kind {
            Kind::None => return Ok(Extra::none()),
            Kind::Aep { dram_ns } => (dram_ns - papers_dram_ns, dram_ns),
            Kind::AepAbove { dram_ns } => (0.0, dram_ns),
        };
        let read = beyond_dram(&READS, |(_, read, _)| read + slower_by);
        if let Some(&(_, ns)) = read.iter().find(|(_, ns)| *ns < 0.0) {
            let dram_ns = slower_by + papers_dram_ns;
            return Err(TooSlow {
                dram_ns,
                aep_ns: dram_ns + ns,
            });
        }
        let line = READS[ROWS.start];
        let buffered_less_ns = line.random_ns - line.sequential_ns;
        let [read_ns, write_ns] = MODULE_GB_PER_S.map(|gb_per_s| UNIT_BYTES as f64 / gb_per_s);
        Ok(Extra {
            read,
            buffered_ns: (read[0].1 - buffered_less_ns).max(0.0),
            has_buffer: true,
            write: beyond_dram(&WRITES, |(_, _, write)| write),
            unit_read_ns: read_ns,
            unit_write_ns: write_ns,
            beneath_ns,
        })
    }

    /// Whether nothing is added to anything.
    fn is_none(&self) -> bool {
        self.read[0].0 == 0
    }

    /// All that the device takes, for a processor whose time is virtual.
    pub(super) fn whole(kind: Whole) -> Extra {
        let [read_ns, write_ns] = MODULE_GB_PER_S.map(|gb_per_s| UNIT_BYTES as f64 / gb_per_s);
        match kind {
            Whole::Aep => Extra {
                read: beyond_dram(&READS, |_| 0.0),
                buffered_ns: READS[ROWS.start].sequential_ns,
                has_buffer: true,
                write: beyond_dram(&WRITES, |_| 0.0),
                unit_read_ns: read_ns,
                unit_write_ns: write_ns,
                beneath_ns: 0.0,
            },
            Whole::Dram => Extra {
                read: std::array::from_fn(|at| {
                    let (bytes, read_ns, _) = DRAM_RANDOM_NS[ROWS.start + at];
                    (bytes as u64, read_ns)
                }),
                has_buffer: false,
                ..Extra::none()
            },
        }
    }

    /// Nothing.
    pub(super) fn none() -> Extra {
        let free = ByBytes::default();
        Extra {
            read: free,
            buffered_ns: 0.0,
            has_buffer: true,
            write: free,
            unit_read_ns: 0.0,
            unit_write_ns: 0.0,
            beneath_ns: 0.0,
        }
    }

    /// Nanoseconds that a random read of so many lines takes longer.
    pub fn read_ns(&self, lines: u64) -> f64 {
        between(&self.read, lines * LINE)
    }

    /// Nanoseconds that a line takes longer whose unit was just read.
    pub fn buffered_ns(&self) -> f64 {
        self.buffered_ns
    }

    /// Nanoseconds that a write of so many lines takes longer.
    pub fn write_ns(&self, lines: u64) -> f64 {
        between(&self.write, lines * LINE)
    }
}

/// What AEP takes longer than DRAM at random addresses, by size.
fn beyond_dram(aep: &[Latencies], dram: impl Fn((usize, f64, f64)) -> f64) -> ByBytes {
    let rows = aep[ROWS].iter().zip(&DRAM_RANDOM_NS[ROWS]);
    let mut extra = rows.map(|(aep, &row)| (aep.bytes as u64, aep.random_ns - dram(row)));
    std::array::from_fn(|_| extra.next().unwrap_or_default())
}

/// The value at `bytes`, on the straight lines between the points and beyond the last two; zero
/// of nothing, and where there are no points.
fn between(points: &ByBytes, bytes: u64) -> f64 {
    if bytes == 0 || points[0].0 == 0 {
        return 0.0;
    }
    let at = points[1..points.len() - 1].partition_point(|&(size, _)| size < bytes);
    let ((from, low), (to, high)) = (points[at], points[at + 1]);
    let part = (bytes.max(from) - from) as f64 / (to - from) as f64;
    low + part * (high - low)
}

/// What all threads share: how far behind the device is.
#[derive(Debug)]
pub(super) struct Device {
    extra: Extra,
    reads: Queue,
    writes: Queue,
}

impl Device {
    /// An idle one, with a queue for each direction.
    pub(super) fn new(extra: Extra, queue: fn() -> Queue) -> Device {
        Device {
            extra,
            reads: queue(),
            writes: queue(),
        }
    }

    /// What it adds.
    pub(super) fn extra(&self) -> &Extra {
        &self.extra
    }
}

/// What one thread has near: lines in its part of the processor's caches, lines on their way,
/// units that the device has at hand for it, lines that it wrote back and has not fenced.
#[derive(Debug)]
pub(super) struct Near {
    /// Units by set, the last that came first: 12 bits that tell a unit from all but one in 4,096
    /// others, and a bit for each of its lines that is near. So few, because looking here is what
    /// the model costs. A unit that is near in part takes the place of a whole one.
    sets: Box<[[u16; WAYS]]>,
    /// Ranges that were read last, by where they begin: nodes that all look-ups pass. Such a range
    /// is near until another one takes its place, whatever `sets` says; as in an inner cache.
    recent: Box<[u64; RECENT]>,
    in_flight: [(u64, u64); IN_FLIGHT],
    /// Ranges that were asked for to be looked at once: in an innermost cache, and nowhere else.
    passing: [(u64, u64); PASSING],
    next_passing: usize,
    /// No line is on its way after this; 0 where it is known that none is.
    landed_by: u64,
    buffered: [u64; BUFFERED],
    next_buffered: usize,
    flushed: Vec<u64>,
    written: u64,
}

/// Where a range of less than 64 lines is kept that was read of late, and what tells it from all
/// others.
#[inline]
fn recent_place(first: u64, end: u64) -> (usize, u64) {
    let place = (first ^ (first >> RECENT.ilog2())) as usize % RECENT;
    (place, first << 6 | (end - first))
}

/// What tells units of one set apart.
#[inline]
fn tag_of(high: u64) -> u16 {
    (high.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16 & !UNIT_MASK
}

/// The way that has a tag: without a branch, since any may be it.
#[inline]
fn way_of(set: &[u16; WAYS], tag: u16) -> Option<usize> {
    let is_it = |way: usize| u32::from(set[way] & !UNIT_MASK == tag) << way;
    let found = (0..WAYS).map(is_it).fold(0, |found, it| found | it);
    (found != 0).then(|| found.trailing_zeros() as usize % WAYS)
}

/// The place of a line that is here first.
fn first_free(in_flight: &mut [(u64, u64); IN_FLIGHT]) -> &mut (u64, u64) {
    let mut first = 0;
    for at in 1..IN_FLIGHT {
        if in_flight[at].1 < in_flight[first].1 {
            first = at;
        }
    }
    &mut in_flight[first]
}

/// What of a range is not near.
#[derive(Clone, Copy, Debug, Default)]
struct Missing {
    /// Lines of units that the device has to read.
    lines: u64,
    /// Those units.
    units: u64,
    /// Lines of units that it has at hand.
    buffered: u64,
}

impl Near {
    /// With nothing near, and room for `cache_bytes` of lines, rounded down to a power of two.
    pub(super) fn new(cache_bytes: u64) -> Near {
        let sets = (cache_bytes / (UNIT_BYTES * WAYS as u64)).max(1);
        let sets = 1 << sets.ilog2();
        Near {
            sets: vec![[0; WAYS]; sets].into(),
            recent: Box::new([0; RECENT]),
            in_flight: [(0, 0); IN_FLIGHT],
            passing: [(0, 0); PASSING],
            next_passing: 0,
            landed_by: 0,
            buffered: [u64::MAX; BUFFERED],
            next_buffered: 0,
            flushed: Vec::new(),
            written: u64::MAX,
        }
    }

    /// The number of a unit's set, and what tells it apart there.
    #[inline]
    fn place_of(&self, unit: u64) -> (usize, u16) {
        let sets = self.sets.len() as u64;
        ((unit & (sets - 1)) as usize, tag_of(unit >> sets.ilog2()))
    }

    /// Brings some lines of a unit near, one bit for each; those which were not.
    #[inline]
    fn touch(&mut self, unit: u64, lines: u16) -> u16 {
        let (set, tag) = self.place_of(unit);
        let set = &mut self.sets[set];
        let Some(way) = way_of(set, tag) else {
            set.copy_within(..WAYS - 1, 1);
            set[0] = tag | lines;
            return lines;
        };
        let way = &mut set[way];
        let missing = lines & !*way;
        *way |= lines;
        missing
    }

    /// Brings all lines of `[first, end)` near, and tells which were not.
    #[inline]
    fn bring(
        &mut self,
        device: &Device,
        (first, end): (u64, u64),
        mut each: impl FnMut(u64),
    ) -> Missing {
        let mut missing = Missing::default();
        for unit in first / UNIT_LINES..end.div_ceil(UNIT_LINES) {
            let begin = unit * UNIT_LINES;
            let below = |line: u64| (1u16 << (line.clamp(begin, begin + UNIT_LINES) - begin)) - 1;
            let mut lines = self.touch(unit, below(end) & !below(first));
            if lines == 0 {
                continue;
            }
            let count = u64::from(lines.count_ones());
            while lines != 0 {
                each(begin + u64::from(lines.trailing_zeros()));
                lines &= lines - 1;
            }
            match device.extra.has_buffer && self.buffer(unit) {
                true => missing.buffered += count,
                false => {
                    missing.lines += count;
                    missing.units += 1;
                }
            }
        }
        missing
    }

    /// Whether the device has the unit at hand; it has now.
    fn buffer(&mut self, unit: u64) -> bool {
        let is_there = self.buffered.contains(&unit);
        if !is_there {
            self.buffered[self.next_buffered] = unit;
            self.next_buffered = (self.next_buffered + 1) % BUFFERED;
        }
        is_there
    }

    /// When what is missing is here, asked for at `now`.
    fn here_by(device: &Device, missing: Missing, now: u64) -> u64 {
        let extra = &device.extra;
        let mut ns = extra.read_ns(missing.lines);
        if missing.buffered > 0 {
            ns += extra.buffered_ns;
        }
        let by = now + ns as u64;
        if missing.units == 0 {
            return by;
        }
        let busy = missing.units as f64 * extra.unit_read_ns;
        by.max(device.reads.reserve(now, busy))
    }

    /// Whether a range was read of late: it is near, and not on its way any more.
    #[inline]
    fn is_recent(&self, first: u64, end: u64) -> bool {
        let (place, range) = recent_place(first, end);
        self.recent[place] == range
    }

    #[inline]
    fn is_recent_now(&mut self, first: u64, end: u64) {
        let (place, range) = recent_place(first, end);
        self.recent[place] = range;
    }

    /// Reads the lines `[first, end)`; until when that takes longer than on DRAM. `now` is asked
    /// only where it matters.
    #[inline]
    pub(super) fn read(
        &mut self,
        device: &Device,
        first: u64,
        end: u64,
        now: impl Fn() -> u64,
    ) -> Option<u64> {
        if self.is_recent(first, end) {
            return None;
        }
        if self.passing.contains(&(first, end)) {
            return match self.landed_by {
                0 => None,
                _ => self.landing(first, end, now()),
            };
        }
        self.is_recent_now(first, end);
        if device.extra.is_none() {
            // Who waits spends the time that it takes to look at the clock in waiting.
            self.bring(device, (first, end), |_| ());
            return None;
        }
        // From the first line that is missing on, the model's own time is part of the wait.
        let mut begin = None;
        let missing = self.bring(device, (first, end), |_| {
            begin.get_or_insert_with(&now);
        });
        if begin.is_none() && self.landed_by == 0 {
            return None;
        }
        let now = begin.unwrap_or_else(now);
        let landed = self.landing(first, end, now);
        let until = match missing.lines + missing.buffered {
            0 => landed,
            _ => Some(Near::here_by(device, missing, now).max(landed.unwrap_or(0))),
        };
        if until.is_some_and(|until| until >= self.landed_by) {
            self.landed_by = 0;
        }
        until
    }

    /// When those of the lines that are on their way are here.
    fn landing(&mut self, first: u64, end: u64, now: u64) -> Option<u64> {
        if self.landed_by <= now {
            self.landed_by = 0;
            return None;
        }
        let on_their_way = self.in_flight.iter().filter(|(line, by)| {
            let is_asked = (first..end).contains(line);
            is_asked && *by > now
        });
        on_their_way.map(|&(_, by)| by).max()
    }

    /// Asks for the lines `[first, end)` and does not wait.
    #[inline]
    pub(super) fn prefetch(
        &mut self,
        device: &Device,
        first: u64,
        end: u64,
        now: impl Fn() -> u64,
    ) {
        if self.is_recent(first, end) {
            return;
        }
        if device.extra.is_none() {
            self.bring(device, (first, end), |_| ());
            return;
        }
        let mut lines = [0; IN_FLIGHT];
        let mut count = 0;
        let mut begin = None;
        let missing = self.bring(device, (first, end), |line| {
            begin.get_or_insert_with(&now);
            lines[count % IN_FLIGHT] = line;
            count += 1;
        });
        match begin {
            Some(now) => self.send_for(device, &lines[..count.min(IN_FLIGHT)], missing, now),
            None if self.landed_by == 0 => self.is_recent_now(first, end),
            None => {}
        }
    }

    /// The same for lines that are looked at once: they take no place of others.
    pub(super) fn prefetch_once(
        &mut self,
        device: &Device,
        first: u64,
        end: u64,
        now: impl Fn() -> u64,
    ) {
        let is_near = self.is_recent(first, end) || self.is_near(first, end);
        if is_near || device.extra.is_none() {
            return;
        }
        self.passing[self.next_passing] = (first, end);
        self.next_passing = (self.next_passing + 1) % PASSING;
        let mut lines = [0; IN_FLIGHT];
        let count = ((end - first) as usize).min(IN_FLIGHT);
        for (line, number) in lines[..count].iter_mut().zip(first..) {
            *line = number;
        }
        let missing = Missing {
            lines: end - first,
            ..Missing::default()
        };
        self.send_for(device, &lines[..count], missing, now());
    }

    /// Whether all lines of a range are near.
    fn is_near(&self, first: u64, end: u64) -> bool {
        (first..end).all(|line| {
            let (set, tag) = self.place_of(line / UNIT_LINES);
            let set = &self.sets[set];
            way_of(set, tag).is_some_and(|way| set[way] >> (line % UNIT_LINES) & 1 != 0)
        })
    }

    /// Has lines on their way from `now` on. What has to wait for a place waits for the one that is
    /// free first.
    fn send_for(&mut self, device: &Device, lines: &[u64], missing: Missing, now: u64) {
        let extra = &device.extra;
        let busy = missing.units as f64 * extra.unit_read_ns;
        let read_by = match busy > 0.0 {
            true => device.reads.reserve(now, busy),
            false => now,
        };
        let beyond_ns = match missing.lines > 0 {
            true => extra.read[0].1,
            false => extra.buffered_ns,
        };
        let ns = (beyond_ns + extra.beneath_ns) as u64;
        let are_all_free = self.landed_by <= now;
        for (at, &line) in lines.iter().enumerate() {
            let place = match are_all_free {
                true => &mut self.in_flight[at],
                false => first_free(&mut self.in_flight),
            };
            let by = (place.1.max(now) + ns).max(read_by);
            *place = (line, by);
            self.landed_by = self.landed_by.max(by);
        }
    }

    /// Notes that the lines `[first, end)` are written back.
    #[inline]
    pub(super) fn flush(&mut self, first: u64, end: u64) {
        self.flushed.extend(first..end);
    }

    /// Until when the thread waits for what it wrote back, as for one write of so many bytes, and
    /// for the device where too much waits to be written.
    pub(super) fn fence(&mut self, device: &Device, now: impl Fn() -> u64) -> Option<u64> {
        if self.flushed.is_empty() {
            return None;
        }
        self.flushed.sort_unstable();
        self.flushed.dedup();
        let extra = &device.extra;
        let ns = extra.write_ns(self.flushed.len() as u64);
        let mut units = 0;
        for line in self.flushed.drain(..) {
            // The unit that was written last is still open.
            let unit = line / UNIT_LINES;
            units += u64::from(unit != self.written);
            self.written = unit;
        }
        if extra.is_none() {
            return None;
        }
        let now = now();
        let written_by = device
            .writes
            .reserve(now, units as f64 * extra.unit_write_ns);
        let queued = (QUEUED as f64 * extra.unit_write_ns) as u64;
        Some((now + ns as u64).max(written_by.saturating_sub(queued)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHE_BYTES: u64 = 1 << 20;
    const CACHE_LINES: u64 = CACHE_BYTES / LINE;

    fn device() -> Device {
        Device::new(
            Extra::new(Kind::AepAbove { dram_ns: 0.0 }).expect("it has no bounds"),
            Queue::in_order,
        )
    }

    fn read(near: &mut Near, device: &Device, first: u64, lines: u64, now: u64) -> u64 {
        let by = near.read(device, first, first + lines, || now);
        by.map_or(0, |by| by - now)
    }

    #[test]
    fn a_read_takes_longer_by_the_difference_of_the_table_and_once() {
        let (device, near) = (device(), &mut Near::new(CACHE_BYTES));
        assert_eq!(read(near, &device, 0, 1, 1000), 161, "64 bytes");
        assert_eq!(read(near, &device, 0, 1, 2000), 0, "near");
        assert_eq!(read(near, &device, 1, 1, 3000), 61, "of a unit at hand");
        assert_eq!(read(near, &device, 400, 4, 4000), 184, "256 bytes");
        assert_eq!(read(near, &device, 800, 8, 5000), 216, "512 bytes");
        assert_eq!(
            read(near, &device, 1200, 12, 6000),
            327,
            "768 bytes, between"
        );
    }

    #[test]
    fn it_adds_only_what_this_machine_lacks_and_refuses_where_it_lacks_nothing() {
        let at = |dram_ns| Extra::new(Kind::Aep { dram_ns });
        let extra = at(120.0).expect("faster than AEP");
        assert_eq!(extra.read_ns(1), 81.0);
        assert_eq!(extra.buffered_ns(), 0.0);
        let refused = at(200.0).expect_err("as slow as AEP");
        assert_eq!(refused.aep_ns.round(), 195.0);
        let none = Extra::new(Kind::None).expect("nothing");
        assert_eq!((none.read_ns(8), none.write_ns(8)), (0.0, 0.0));
    }

    #[test]
    fn lines_leave_when_others_take_their_place() {
        let (device, near) = (device(), &mut Near::new(CACHE_BYTES));
        let units = CACHE_LINES / UNIT_LINES;
        for unit in 0..units {
            assert_eq!(near.touch(unit, 0b0110), 0b0110);
            assert_eq!(near.touch(unit, 0b1110), 0b1000, "what was not near");
        }
        assert_eq!(read(near, &device, 1, 3, 0), 0, "it holds so many");
        assert_eq!(read(near, &device, 0, 1, 0), 161, "the first line was not");
        // A set comes again after so many units.
        let others = (1..=WAYS as u64).map(|at| at * units / WAYS as u64 + units);
        others.for_each(|unit| {
            near.touch(unit + 5, 1);
        });
        let line = 5 * UNIT_LINES + 1;
        assert_eq!(read(near, &device, line, 1, 0), 161, "its set was taken");
    }

    #[test]
    fn lines_that_were_asked_for_together_come_together() {
        let (device, near) = (device(), &mut Near::new(CACHE_BYTES));
        let lines: Vec<u64> = (0..8).map(|at| at * 100).collect();
        for &line in &lines {
            near.prefetch(&device, line, line + 1, || 1000);
        }
        let waits: Vec<u64> = (lines.iter())
            .map(|&line| read(near, &device, line, 1, 1010))
            .collect();
        assert_eq!(waits[..4], [151; 4], "none waits for another");
        assert_eq!(
            waits[7],
            8 * 36 - 10,
            "but for the device, which reads a unit in 36 ns"
        );
        assert_eq!(read(near, &device, lines[0], 1, 1400), 0, "all are here");
    }

    #[test]
    fn a_line_that_was_asked_for_takes_what_dram_takes_too() {
        // Who asks for it ahead has the memory beneath begin; who just reads it waits there after.
        let extra = Extra::new(Kind::AepAbove { dram_ns: 100.0 }).expect("it has no bounds");
        let (device, near) = (
            Device::new(extra, Queue::in_order),
            &mut Near::new(CACHE_BYTES),
        );
        near.prefetch(&device, 0, 8, || 1000);
        assert_eq!(read(near, &device, 0, 8, 1020), 100 + 161 - 20);
        assert_eq!(read(near, &device, 100, 1, 2000), 161);
        near.prefetch(&device, 200, 201, || 3000);
        assert_eq!(read(near, &device, 200, 1, 4000), 0, "long here");
    }

    #[test]
    fn what_is_looked_at_once_takes_no_place_of_others() {
        let (device, near) = (device(), &mut Near::new(CACHE_BYTES));
        let units = CACHE_LINES / UNIT_LINES;
        assert_eq!(read(near, &device, 0, 1, 0), 161);
        // Others of its set, more than there are ways.
        for at in 1..=2 * WAYS as u64 {
            let line = at * units / WAYS as u64 * UNIT_LINES;
            let now = 1000 * at;
            near.prefetch_once(&device, line, line + 2, || now);
            assert_eq!(read(near, &device, line, 2, now + 11), 150, "on its way");
            assert_eq!(read(near, &device, line, 2, now + 500), 0, "here");
        }
        let line = units / WAYS as u64 * UNIT_LINES;
        assert_eq!(read(near, &device, line, 1, 90_000), 161, "not for long");
        assert_eq!(near.touch(0, 1), 0, "it was not pushed out");
    }

    #[test]
    fn who_asks_for_too_many_lines_waits_for_a_place() {
        let (device, near) = (device(), &mut Near::new(CACHE_BYTES));
        // Three units, of each of which the device has all at hand after the first line.
        let last = IN_FLIGHT as u64;
        (0..=last).for_each(|line| near.prefetch(&device, line, line + 1, || 1000));
        assert_eq!(read(near, &device, last, 1, 1000), 61 + 161);
    }

    #[test]
    fn a_device_that_reads_for_many_is_waited_for() {
        let device = device();
        let waits: Vec<u64> = (0..10)
            .map(|at| read(&mut Near::new(CACHE_BYTES), &device, at * 100, 1, 1000))
            .collect();
        assert_eq!(waits[3], 161, "four units take 146 ns");
        assert_eq!(waits[9], 360, "ten take 36 ns each");
    }

    #[test]
    fn so_is_one_that_was_asked_by_many() {
        let device = device();
        let wait = |at: u64| {
            let near = &mut Near::new(CACHE_BYTES);
            near.prefetch(&device, at * 100, at * 100 + 1, || 1000);
            read(near, &device, at * 100, 1, 1000)
        };
        let waits: Vec<u64> = (0..10).map(wait).collect();
        assert_eq!((waits[3], waits[9]), (161, 360));
    }

    #[test]
    fn a_fence_costs_what_the_lines_cost_as_one_write() {
        let (device, near) = (device(), &mut Near::new(CACHE_BYTES));
        let mut fence = |lines: &[u64]| {
            lines.iter().for_each(|&line| near.flush(line, line + 1));
            near.fence(&device, || 1000).map(|by| by - 1000)
        };
        assert_eq!(fence(&[]), None);
        assert_eq!(fence(&[4]), Some(16));
        assert_eq!(fence(&[5, 5]), Some(16), "a line counts once");
        assert_eq!(fence(&[0, 1, 2, 3]), Some(18));
        assert_eq!(device.writes.reserve(0, 0.0), 1000 + 2 * 128, "two units");
    }

    #[test]
    fn who_writes_faster_than_the_device_waits_for_it() {
        let (device, near) = (device(), &mut Near::new(CACHE_BYTES));
        let mut now = 0;
        for unit in 0..1000 {
            near.flush(unit * UNIT_LINES, unit * UNIT_LINES + 1);
            now = near.fence(&device, || now).expect("it waits");
        }
        assert_eq!(
            now,
            1000 * 128 - QUEUED * 128,
            "2 GB/s, less what is queued"
        );
    }
}
