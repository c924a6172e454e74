//! YCSB's core workloads: operations on numbered records (B. F. Cooper, A. Silberstein, E. Tam,
//! R. Ramakrishnan and R. Sears, "Benchmarking cloud serving systems with YCSB", SoCC 2010,
//! section 4; workload F came with the code later).
//!
//! A record is a number; [`key`] spreads the numbers over all 64 bits, as YCSB hashes them, so that
//! records that were inserted one after the other are no neighbours. Popularity is scattered over
//! the numbers in turn, so that the popular records were not all inserted first.
//!
//! Where it differs from YCSB: ranks are drawn by the exact law over the records that there are.
//! YCSB's scrambled generator draws from 10^10 ranks and hashes them onto the records, so that
//! several meet in one. Records that come while a workload runs are its least popular ones here;
//! what was popular stays so.
//!
//! What it never does: count the records; its caller says how many there are at each operation.

use super::popularity::Scatter;
use super::zipf::Zipf;
use super::{WorkloadError, spread};
use nyx_base::Rng;
use std::fmt;

/// YCSB's exponent of Zipf's law.
pub const ALPHA: f64 = 0.99;

/// The longest scan that workload E asks for by default, in records.
pub const SCAN_LEN_MAX: u32 = 100;

/// Digits of a key as text: all numbers of 64 bits have that many at most.
pub const KEY_DIGITS: usize = 20;

const HINT: &str = "write letters of A to F (A, or A,B,C), a range (A..F) or all";

/// The key of record `number`: a bijection, so that no two records share one.
#[inline]
pub fn key(number: u64) -> u64 {
    spread(number.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// One of the core workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Core {
    /// Update heavy.
    A,
    /// Read mostly.
    B,
    /// Read only.
    C,
    /// Read latest.
    D,
    /// Short ranges.
    E,
    /// Read, modify, write.
    F,
}

/// The order that YCSB recommends after one load: what adds records comes last.
pub const ORDER: [Core; 6] = [Core::A, Core::B, Core::C, Core::F, Core::D, Core::E];

impl Core {
    /// Its letter.
    pub fn name(self) -> &'static str {
        match self {
            Core::A => "A",
            Core::B => "B",
            Core::C => "C",
            Core::D => "D",
            Core::E => "E",
            Core::F => "F",
        }
    }

    /// What it does, in words.
    pub fn mix(self) -> &'static str {
        match self {
            Core::A => "50 % read, 50 % update",
            Core::B => "95 % read, 5 % update",
            Core::C => "100 % read",
            Core::D => "95 % read of the latest, 5 % insert",
            Core::E => "95 % scan, 5 % insert",
            Core::F => "50 % read, 50 % read-modify-write",
        }
    }

    /// Whether it asks for ranges.
    pub fn scans(self) -> bool {
        self == Core::E
    }

    /// The share of its first operation, in percent; the rest is its second one.
    fn first_pct(self) -> u32 {
        match self {
            Core::A | Core::F => 50,
            Core::B | Core::D | Core::E => 95,
            Core::C => 100,
        }
    }
}

impl fmt::Display for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Workloads as people write them: `A`, `A,B,C`, `A..F` (both ends included) or `all`; each once,
/// in [`ORDER`].
pub fn cores(text: &str) -> Result<Vec<Core>, WorkloadError> {
    let wanted = parse(text).ok_or_else(|| WorkloadError::Syntax {
        what: "YCSB workload",
        text: text.to_owned(),
        hint: HINT,
    })?;
    Ok((ORDER.into_iter())
        .filter(|core| wanted.contains(core.name()))
        .collect())
}

/// The letters that `text` stands for.
fn parse(text: &str) -> Option<String> {
    let letter = |word: &str| match *word.trim().as_bytes() {
        [letter] => Some(letter.to_ascii_uppercase()).filter(|l| (b'A'..=b'F').contains(l)),
        _ => None,
    };
    let mut letters = String::new();
    for word in text.split(',') {
        let (from, to) = match word.split_once("..") {
            _ if word.trim().eq_ignore_ascii_case("all") => (b'A', b'F'),
            Some((from, to)) => (letter(from)?, letter(to)?),
            None => (letter(word)?, letter(word)?),
        };
        if from > to {
            return None;
        }
        letters.extend((from..=to).map(char::from));
    }
    Some(letters)
}

/// One operation, on records by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Read a record.
    Read(u64),
    /// Write a record anew.
    Update(u64),
    /// Write a record that is not there yet. Which number it gets is its caller's to say.
    Insert,
    /// Read records in the order of their keys.
    Scan {
        /// The first one.
        from: u64,
        /// How many, from 1 on.
        len: u32,
    },
    /// Read a record, then write it.
    ReadModifyWrite(u64),
}

/// The operations of one stream, without end.
#[derive(Clone, Debug)]
pub struct Acts {
    core: Core,
    alpha: f64,
    scan_len_max: u32,
    /// How many records there were at first: their popularity is scattered.
    first: u64,
    scatter: Scatter,
    /// The law over as many records as were there at the last operation.
    zipf: Zipf,
    records: u64,
    rng: Rng,
}

impl Acts {
    /// Stream number `stream` of `core`, over `records` records (1 to 2^32) at first, drawn by
    /// Zipf's law with exponent `alpha` (0: all alike); scans have 1 to `scan_len_max` records, at
    /// least 1. Streams of one seed are independent of each other, and so are workloads.
    pub fn new(
        core: Core,
        records: u64,
        alpha: f64,
        scan_len_max: u32,
        seed: u64,
        stream: u64,
    ) -> Result<Acts, WorkloadError> {
        if records == 0 || records > 1 << 32 {
            return Err(WorkloadError::Keys { keys: records });
        }
        let stream = (core as u64 + 1) << 56 | stream;
        Ok(Acts {
            core,
            alpha,
            scan_len_max: scan_len_max.max(1),
            first: records,
            scatter: Scatter::new(records),
            zipf: Zipf::new(records, alpha),
            records,
            rng: Rng::with_seed(spread(seed ^ spread(stream))),
        })
    }

    /// The next operation, where `records` records are there by now.
    #[inline]
    pub fn next(&mut self, records: u64) -> Act {
        if records != self.records {
            self.zipf = Zipf::new(records, self.alpha);
            self.records = records;
        }
        let first = match self.core.first_pct() {
            100 => true,
            pct => self.rng.u32(0..100) < pct,
        };
        match (self.core, first) {
            (Core::D, true) => Act::Read(records - 1 - self.zipf.sample(&mut self.rng)),
            (Core::E, true) => Act::Scan {
                from: self.popular(),
                len: self.rng.u32(1..=self.scan_len_max),
            },
            (_, true) => Act::Read(self.popular()),
            (Core::D | Core::E, false) => Act::Insert,
            (Core::F, false) => Act::ReadModifyWrite(self.popular()),
            (Core::A | Core::B | Core::C, false) => Act::Update(self.popular()),
        }
    }

    fn popular(&mut self) -> u64 {
        let rank = self.zipf.sample(&mut self.rng);
        match rank < self.first {
            true => self.scatter.index(rank),
            false => rank,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const RECORDS: u64 = 10_000;
    const DRAWS: usize = 100_000;

    fn acts(core: Core) -> Acts {
        Acts::new(core, RECORDS, ALPHA, SCAN_LEN_MAX, 7, 0).expect("enough records")
    }

    /// The kinds of operations that a workload has, in percent.
    fn shares(core: Core) -> BTreeMap<&'static str, f64> {
        let mut acts = acts(core);
        let mut shares = BTreeMap::new();
        for _ in 0..DRAWS {
            let kind = match acts.next(RECORDS) {
                Act::Read(_) => "read",
                Act::Update(_) => "update",
                Act::Insert => "insert",
                Act::Scan { .. } => "scan",
                Act::ReadModifyWrite(_) => "rmw",
            };
            *shares.entry(kind).or_default() += 100.0 / DRAWS as f64;
        }
        shares
    }

    #[test]
    fn each_workload_has_its_mix() {
        let published: [(Core, &[(&str, f64)]); 6] = [
            (Core::A, &[("read", 50.0), ("update", 50.0)]),
            (Core::B, &[("read", 95.0), ("update", 5.0)]),
            (Core::C, &[("read", 100.0)]),
            (Core::D, &[("insert", 5.0), ("read", 95.0)]),
            (Core::E, &[("insert", 5.0), ("scan", 95.0)]),
            (Core::F, &[("read", 50.0), ("rmw", 50.0)]),
        ];
        for (core, mix) in published {
            let seen = shares(core);
            assert_eq!(seen.len(), mix.len(), "{core}: {seen:?}");
            for (kind, pct) in mix {
                assert!((seen[kind] - pct).abs() < 0.7, "{core}: {seen:?}");
            }
        }
    }

    fn reads(core: Core, records: u64) -> BTreeMap<u64, usize> {
        let mut acts = acts(core);
        let mut seen = BTreeMap::new();
        for _ in 0..DRAWS {
            if let Act::Read(number) = acts.next(records) {
                *seen.entry(number).or_default() += 1;
            }
        }
        seen
    }

    /// The share of the requests that the `hot` most popular of [`RECORDS`] records have.
    fn law(hot: u64) -> f64 {
        let sum = |n: u64| (1..=n).map(|k| (k as f64).powf(-ALPHA)).sum::<f64>();
        sum(hot) / sum(RECORDS)
    }

    #[test]
    fn few_records_get_most_requests_and_lie_apart() {
        let seen = reads(Core::C, RECORDS);
        let mut by_count: Vec<(usize, u64)> = seen.iter().map(|(&n, &count)| (count, n)).collect();
        by_count.sort_unstable_by(|a, b| b.cmp(a));
        for hot in [1, 10, 100] {
            let got: usize = by_count[..hot].iter().map(|&(count, _)| count).sum();
            let (got, law) = (got as f64 / DRAWS as f64, law(hot as u64));
            assert!(
                (got - law).abs() < 0.01,
                "{hot} records got {got}, not {law}"
            );
        }
        // Of numbers and of keys each quarter of the room has its part of the hundred hottest.
        for place in [|n: u64| n * 4 / RECORDS, |n: u64| key(n) >> 62] {
            let mut quarters = [0; 4];
            (by_count[..100].iter()).for_each(|&(_, n)| quarters[place(n) as usize] += 1);
            assert!(quarters.iter().all(|&q| q >= 12), "{quarters:?}");
        }
    }

    #[test]
    fn latest_follows_what_was_inserted() {
        for records in [RECORDS, RECORDS + 1, RECORDS + 5_000] {
            let seen = reads(Core::D, records);
            assert_eq!(seen.keys().next_back(), Some(&(records - 1)));
            let of_reads = seen.values().sum::<usize>() as f64;
            let newest: usize = seen.range(records - 10..).map(|(_, count)| count).sum();
            let share = newest as f64 / of_reads;
            assert!((share - law(10)).abs() < 0.02, "{records}: {share}");
        }
    }

    #[test]
    fn new_records_are_asked_for_and_what_was_popular_stays_so() {
        let (before, after) = (reads(Core::C, RECORDS), reads(Core::C, RECORDS + 1_000));
        let hottest =
            |seen: &BTreeMap<u64, usize>| seen.iter().max_by_key(|(_, c)| **c).map(|s| *s.0);
        assert_eq!(hottest(&before), hottest(&after));
        assert!(before.keys().all(|&n| n < RECORDS));
        let new: usize = after.range(RECORDS..).map(|(_, count)| count).sum();
        assert!(new > 300 && new < 2_000, "{new} reads of new records");
    }

    #[test]
    fn scans_have_every_length_alike_and_begin_at_records() {
        let mut acts = acts(Core::E);
        let mut lens = vec![0; SCAN_LEN_MAX as usize + 1];
        for _ in 0..DRAWS {
            if let Act::Scan { from, len } = acts.next(RECORDS) {
                assert!(from < RECORDS);
                lens[len as usize] += 1;
            }
        }
        assert_eq!(lens[0], 0);
        assert!(
            lens[1..].iter().all(|l| (750..1150).contains(l)),
            "{lens:?}"
        );
    }

    #[test]
    fn a_seed_repeats_and_streams_differ() {
        let run = |core, seed, stream| {
            let mut acts = Acts::new(core, RECORDS, ALPHA, 10, seed, stream).expect("fine");
            (0..200)
                .map(|i| acts.next(RECORDS + i / 10))
                .collect::<Vec<_>>()
        };
        for core in ORDER {
            assert_eq!(run(core, 1, 0), run(core, 1, 0));
            assert_ne!(run(core, 1, 0), run(core, 1, 1), "{core}");
            assert_ne!(run(core, 1, 0), run(core, 2, 0), "{core}");
        }
        assert!(Acts::new(Core::A, 0, ALPHA, 10, 1, 0).is_err());
    }

    #[test]
    fn keys_are_distinct_and_known_by_number() {
        let mut keys: Vec<u64> = (0..100_000).map(key).collect();
        assert_eq!(key(0), 0xe220_a839_7b1d_cdaf);
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 100_000);
    }

    #[test]
    fn workloads_are_written_in_any_order_and_run_in_ycsbs() {
        for (text, order) in [
            ("c", "C"),
            ("all", "ABCFDE"),
            ("A..F", "ABCFDE"),
            ("e,a,B..C,a", "ABCE"),
        ] {
            let names: String = cores(text).expect(text).iter().map(|c| c.name()).collect();
            assert_eq!(names, order, "{text}");
        }
        for text in ["", "G", "AB", "A..", "C..A", "A,,B"] {
            let error = cores(text).expect_err(text).to_string();
            assert!(error.contains("(A..F) or all"), "{error}");
        }
    }
}
