//! An index under power cuts: `fill` writes to it and says what is durable, until the power goes;
//! `check` says afterwards whether all of that is there, and nothing that should not be.
//!
//! Operations follow from the seed and their number alone, and are carried out one after the other.
//! So an index that was cut off holds what so many operations leave, no fewer than were
//! acknowledged; `check` finds out how many, and `fill` goes on from there. Every look-up, both
//! directions of a scan, the census of nodes and the sweep of the heap must agree.
//!
//! What it never does: cut the power. On a machine with persistent memory let another one keep what
//! `fill` prints (over ssh, or a serial line), pull the plug, and hand the last number to `check`.
//! `cargo xtask test vm` does that to an emulated machine. That one has no CPU caches, so only a
//! real one shows that no flush is missing; see `nyx_media::pmem::crash` for states of caches.
//!
//! `cargo run --release -p nyx-index --example power_cut -- fill /mnt/pmem/fast-fair`

use clap::{Args, Parser, ValueEnum};
use nyx_base::{Rng, WorkerId};
use nyx_index::fast_fair::FastFair;
use nyx_index::fp_tree::FpTree;
use nyx_index::heap::Heap;
use nyx_index::ordered::KEY_MAX;
use nyx_index::skip_list::SkipList;
use nyx_index::{Eras, Ordered, Persistent};
use nyx_media::{Mapped, Origin};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

const WORKER: WorkerId = WorkerId(0);
const CHUNK_BYTES: u64 = 64 << 10;
/// What may be done beyond what was heard of: acknowledgements that were on their way.
const AHEAD_MAX: u64 = 1 << 16;

type Failed = Box<dyn Error>;
type Entries = BTreeMap<u64, u64>;

/// Writes to an index until the power goes, and finds out what is left of it.
#[derive(Parser)]
enum Command {
    /// Checks the index, or makes a new one, and goes on from what it holds.
    Fill {
        #[command(flatten)]
        subject: Subject,
        /// How many operations; without, until the file is full.
        #[arg(long, default_value_t = u64::MAX)]
        operations: u64,
        /// Operations from one acknowledgement to the next.
        #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
        every: u64,
    },
    /// Checks the index.
    Check {
        #[command(flatten)]
        subject: Subject,
    },
}

#[derive(Args)]
struct Subject {
    /// The data file.
    file: PathBuf,
    /// What is in it.
    #[arg(long, value_enum, default_value_t = Kind::FastFair)]
    index: Kind,
    /// What the file lies on.
    #[arg(long, value_enum, default_value_t = Medium::Dax)]
    medium: Medium,
    /// How large a new file becomes.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..1 << 30))]
    size_mib: u64,
    /// What the operations follow from; the same as before.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The greatest number of operations that was acknowledged.
    #[arg(long, default_value_t = 0)]
    acknowledged: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    FastFair,
    FpTree,
    SkipList,
}

#[derive(Clone, Copy, ValueEnum)]
enum Medium {
    /// Persistent memory, under a filesystem with direct access.
    Dax,
    /// The page cache: survives the process, not the power.
    File,
}

fn main() -> ExitCode {
    let command = Command::parse();
    let (Command::Fill { subject, .. } | Command::Check { subject }) = &command;
    let done = match subject.index {
        Kind::FastFair => run::<FastFair<Mapped>>(&command, subject),
        Kind::FpTree => run::<FpTree<Mapped>>(&command, subject),
        Kind::SkipList => run::<SkipList<Mapped>>(&command, subject),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", subject.file.display());
            ExitCode::FAILURE
        }
    }
}

fn run<I: Persistent<Mapped> + Ordered>(
    command: &Command,
    subject: &Subject,
) -> Result<(), Failed> {
    let index: I = open(subject)?;
    let name = subject.file.display();
    let holds = check(&index, subject)?;
    println!("holds {holds} in {name}");
    if let Command::Fill {
        operations, every, ..
    } = *command
    {
        let end = holds.saturating_add(operations);
        let acknowledge = |count| println!("acknowledged {count} in {name}");
        fill(&index, subject.seed, holds..end, every, acknowledge)?;
        acknowledge(end);
    }
    index.heap().pm().mark_clean()?;
    Ok(())
}

fn open<I: Persistent<Mapped>>(subject: &Subject) -> Result<I, Failed> {
    let bytes = subject.size_mib << 20;
    let file = match subject.medium {
        Medium::Dax => Mapped::dax(&subject.file, bytes)?,
        Medium::File => Mapped::file(&subject.file, bytes)?,
    };
    println!("{}", file.describe());
    let eras = Arc::new(Eras::new(1));
    let heap = match file.origin() {
        Origin::Fresh => Heap::format(file, CHUNK_BYTES, 1, eras)?,
        _ => Heap::open(file, eras)?,
    };
    Ok(I::open(Arc::new(heap), 0, WORKER)?)
}

/// Carries out the operations of so many numbers and says what is done.
fn fill(
    index: &impl Persistent<Mapped>,
    seed: u64,
    numbers: std::ops::Range<u64>,
    every: u64,
    mut acknowledge: impl FnMut(u64),
) -> Result<(), Failed> {
    let eras = index.heap().eras();
    for number in numbers {
        eras.enter(WORKER);
        match Operation::numbered(seed, number) {
            Operation::Put(key) => index.put(WORKER, key, number)?,
            Operation::Remove(key) => index.remove(WORKER, key)?,
        };
        let done = number + 1;
        if done.is_multiple_of(every) {
            acknowledge(done);
        }
    }
    eras.leave(WORKER);
    Ok(())
}

/// How many operations it holds, once everything agrees with that.
fn check(index: &(impl Persistent<Mapped> + Ordered), subject: &Subject) -> Result<u64, Failed> {
    let entries = contents(index)?;
    let holds = judge(subject.seed, subject.acknowledged, &entries)?;
    let census = index.check()?;
    if census.entries != entries.len() as u64 {
        return Err(format!("{census:?}, but scans find {} entries", entries.len()).into());
    }
    let mut sweep = index.heap().sweep();
    let reachable = index.mark(&mut sweep)?;
    let swept = sweep.finish().map_err(|_| "somebody is within an era")?;
    // A heap without a past has no old blocks.
    if holds > 0 && swept.used_blocks != reachable {
        return Err(format!("{reachable} blocks are reachable, but {swept:?}").into());
    }
    println!("{census:?}, {swept:?}");
    Ok(holds)
}

/// What it holds, by points and by scans both ways, which must agree.
fn contents(index: &impl Ordered) -> Result<Entries, Failed> {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    index.scan(0..=KEY_MAX, |key, value| {
        up.push((key, value));
        ControlFlow::Continue(())
    })?;
    index.scan_back(0..=KEY_MAX, |key, value| {
        down.push((key, value));
        ControlFlow::Continue(())
    })?;
    down.reverse();
    if up != down || !up.is_sorted_by(|a, b| a.0 < b.0) {
        return Err("scans up and down do not agree".into());
    }
    for &(key, value) in &up {
        let got = index.get(key)?;
        if got != Some(value) {
            return Err(format!("key {key}: a scan finds {value}, a look-up {got:?}").into());
        }
    }
    Ok(up.into_iter().collect())
}

/// What is done to an index. The value that is put is the operation's number.
enum Operation {
    Put(u64),
    Remove(u64),
}

impl Operation {
    /// Three of five put a new key, the others change or remove one that was new before.
    fn numbered(seed: u64, number: u64) -> Operation {
        let mut rng = Rng::with_seed(!mixed(seed, number));
        let before = rng.u64(0..=number);
        match rng.u8(0..5) {
            0 => Operation::Remove(key(seed, before)),
            1 => Operation::Put(key(seed, before)),
            _ => Operation::Put(key(seed, number)),
        }
    }

    /// Carries it out; the key that it is about.
    fn apply(&self, number: u64, entries: &mut Entries) -> u64 {
        match *self {
            Operation::Put(key) => {
                entries.insert(key, number);
                key
            }
            Operation::Remove(key) => {
                entries.remove(&key);
                key
            }
        }
    }
}

fn mixed(seed: u64, number: u64) -> u64 {
    Rng::with_seed(seed).u64(..) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The key that is new with that number.
fn key(seed: u64, number: u64) -> u64 {
    Rng::with_seed(mixed(seed, number)).u64(0..=KEY_MAX)
}

/// The least number of operations, from `acknowledged` on, that leaves just these entries; an error
/// where there is none.
fn judge(seed: u64, acknowledged: u64, found: &Entries) -> Result<u64, String> {
    let mut expected = Entries::new();
    for number in 0..acknowledged {
        Operation::numbered(seed, number).apply(number, &mut expected);
    }
    let differs = |expected: &Entries, key: &u64| expected.get(key) != found.get(key);
    let keys: BTreeSet<u64> = expected.keys().chain(found.keys()).copied().collect();
    let all = keys.into_iter().filter(|key| differs(&expected, key));
    let mut wrong: BTreeSet<u64> = all.collect();
    // What the closest of the states looked like.
    let mut least = (wrong.len(), acknowledged, String::new());
    for number in acknowledged..acknowledged + AHEAD_MAX {
        if wrong.is_empty() {
            return Ok(number);
        }
        if wrong.len() < least.0 || least.2.is_empty() {
            least = (wrong.len(), number, told(&wrong, &expected, found));
        }
        let key = Operation::numbered(seed, number).apply(number, &mut expected);
        match differs(&expected, &key) {
            true => wrong.insert(key),
            false => wrong.remove(&key),
        };
    }
    let (count, number, told) = least;
    Err(format!(
        "holds what no number of operations from {acknowledged} on leaves; after {number} of them \
         {count} keys should be otherwise{told}"
    ))
}

/// Some of the keys that are wrong.
fn told(wrong: &BTreeSet<u64>, expected: &Entries, found: &Entries) -> String {
    let some = wrong.iter().take(5).map(|key| {
        let (is, should) = (found.get(key), expected.get(key));
        format!("; key {key} is {is:?}, should be {should:?}")
    });
    some.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 9;

    fn after(count: u64) -> Entries {
        let mut entries = Entries::new();
        for number in 0..count {
            Operation::numbered(SEED, number).apply(number, &mut entries);
        }
        entries
    }

    #[test]
    fn a_state_is_found_from_what_was_acknowledged_on() {
        let entries = after(1000);
        for acknowledged in [0, 900, 999, 1000] {
            // An operation that changes nothing may be missing.
            let holds = judge(SEED, acknowledged, &entries).expect("a state");
            assert_eq!(after(holds), entries);
            assert!((acknowledged..=1000).contains(&holds), "{holds}");
        }
        assert_eq!(judge(SEED, 0, &Entries::new()), Ok(0));
    }

    #[test]
    fn what_is_lost_or_wrong_is_told() {
        let whole = after(1000);
        let (&key, &value) = whole.iter().nth(70).expect("an entry");
        let mut lost = whole.clone();
        lost.remove(&key);
        let mut stale = whole.clone();
        stale.insert(key, value ^ 1);
        let mut alien = whole.clone();
        alien.insert(key + 1, 5);
        for (entries, wrong) in [(lost, key), (stale, key), (alien, key + 1)] {
            let told = judge(SEED, 990, &entries).expect_err("it is wrong");
            assert!(told.contains(&format!("key {wrong} is")), "{told}");
        }
        assert!(judge(SEED, 1001, &after(900)).is_err(), "too few");
    }
}
