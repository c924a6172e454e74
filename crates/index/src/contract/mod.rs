//! What every persistent index must do, as tests that any of them is put through: it agrees with an
//! ordered map, survives crashes ([`crash`]) and damage, serves readers beside writers, and takes
//! memory in proportion to its keys, however many come and go ([`churn`]). What it is asked for
//! beyond single keys is all that it can list ([`Lists`]), in order or not.
#![cfg(all(test, not(any(loom, shuttle))))]

pub(crate) mod churn;
pub(crate) mod crash;

use crate::eras::Eras;
use crate::heap::{CLASS_BYTES, Heap};
use crate::ordered::{KEY_MAX, PutError, ScanError};
use crate::pm_hash::PmHash;
use crate::{Index, Ordered, Persistent, Unordered};
use churn::Watch;
use nyx_base::{Rng, WorkerId};
use nyx_media::pmem::crash::Recorder;
use nyx_media::{Mapped, Pmem};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

const W: WorkerId = WorkerId(0);

/// A kind of index, with so few slots in a node that few keys make many nodes.
pub(crate) trait Kind {
    /// Of a recorded memory.
    type Small<'p>: Persistent<&'p Recorder> + Lists;

    /// The memory in which crashes are tried.
    const MEDIUM_BYTES: u64 = 40 << 10;
    /// Changes in each run of one process; fewer where a change has many states.
    const STEPS: usize = 500;
    /// Pairs of processes that are tried for each of several kills.
    const PAIRS: u64 = 16;
    /// Whether a sweep takes away what a crash left, which may need a new block.
    const TIDIES: bool = false;

    /// Does what there is to do after it was opened, before it can list.
    fn make_ready(_: &Self::Small<'_>) {}

    /// Writes anything over the locks on the medium: what a process of the generation `gone` may
    /// have left.
    fn scribble(recorder: &Recorder, gone: u64, rng: &mut Rng);
}

/// The addresses of all blocks of so many bytes that there may be.
pub(crate) fn blocks(recorder: &Recorder, bytes: u64) -> impl Iterator<Item = u64> {
    /// Where the heap's table begins, and its chunks.
    const TABLE_AT: u64 = 4096;
    const CHUNKS_AT: u64 = 8192;
    let class = CLASS_BYTES.iter().position(|&of| of == bytes);
    let class = class.expect("a size of blocks") as u64 + 1;
    let in_chunk = crash::CHUNK_BYTES / bytes;
    let chunks = (recorder.size_bytes() - CHUNKS_AT) / crash::CHUNK_BYTES;
    let table = recorder.words(TABLE_AT, chunks as usize).iter();
    let serves = table.map(move |word| word.load(Relaxed) == class);
    let chunks = (0..chunks).zip(serves).filter(|&(_, serves)| serves);
    chunks.flat_map(move |(chunk, _)| {
        let chunk = CHUNKS_AT + chunk * crash::CHUNK_BYTES;
        (0..in_chunk).map(move |at| chunk + at * bytes)
    })
}

/// What an index can list.
pub(crate) trait Lists: Index {
    /// The entries of a range in ascending order, by each road that there is.
    fn lists(&self, from: u64, to: u64) -> Result<Vec<Vec<(u64, u64)>>, ScanError>;
}

impl<I: Ordered> Lists for I {
    fn lists(&self, from: u64, to: u64) -> Result<Vec<Vec<(u64, u64)>>, ScanError> {
        let up = listed(|each| self.scan(from..=to, each))?;
        let mut down = listed(|each| self.scan_back(from..=to, each))?;
        down.reverse();
        Ok(vec![up, down])
    }
}

impl<P: Pmem, const BUCKETS: usize, const SLOTS: usize, const BITS: u32> Lists
    for PmHash<P, BUCKETS, SLOTS, BITS>
{
    fn lists(&self, from: u64, to: u64) -> Result<Vec<Vec<(u64, u64)>>, ScanError> {
        let (mut all, mut some) = (Vec::new(), Vec::new());
        let mut next = Some(0);
        while let Some(at) = next {
            next = self.walk(at, &mut some)?;
            all.extend(some.iter().filter(|&&(key, _)| (from..=to).contains(&key)));
        }
        all.sort_unstable();
        Ok(vec![all])
    }
}

/// An empty index.
pub(crate) fn empty<I: Persistent<Mapped>>(bytes: u64, workers: u16) -> I {
    let pm = Mapped::anonymous(bytes).expect("memory");
    let eras = Arc::new(Eras::new(workers));
    let heap = Heap::format(pm, 64 << 10, 1, eras).expect("it fits");
    I::open(Arc::new(heap), 0, W).expect("an empty index")
}

/// What a scan meets, in its order.
pub(crate) fn listed(
    scan: impl FnOnce(&mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<(), ScanError>,
) -> Result<Vec<(u64, u64)>, ScanError> {
    let mut all = Vec::new();
    scan(&mut |key, value| {
        all.push((key, value));
        ControlFlow::Continue(())
    })?;
    Ok(all)
}

/// Whether each list of a range is this.
pub(crate) fn assert_lists(index: &impl Lists, from: u64, to: u64, expected: &[(u64, u64)]) {
    for list in index.lists(from, to).expect("sound") {
        assert_eq!(list, expected, "{from} to {to}");
    }
}

fn entries(model: &BTreeMap<u64, u64>) -> Vec<(u64, u64)> {
    model.iter().map(|(&key, &value)| (key, value)).collect()
}

/// What can be asked of an index.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Put(u64, u64),
    Remove(u64),
    Get(u64),
    Scan(u64, u64),
}

/// Any steps, on keys that meet often.
pub(crate) fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || prop_oneof![0..50u64, 0..400u64, Just(KEY_MAX), Just(0)];
    let step = prop_oneof![
        4 => (key(), 0..4u64).prop_map(|(key, value)| Step::Put(key, value)),
        2 => key().prop_map(Step::Remove),
        1 => key().prop_map(Step::Get),
        1 => (key(), key()).prop_map(|(from, to)| Step::Scan(from, to)),
    ];
    prop::collection::vec(step, 0..600)
}

/// It does what an ordered map does, and is whole after it.
pub(crate) fn agrees<I: Persistent<Mapped> + Lists>(steps: &[Step]) {
    let index = empty::<I>(4 << 20, 1);
    let mut model = BTreeMap::new();
    for step in steps {
        match *step {
            Step::Put(key, value) => {
                assert_eq!(index.put(W, key, value), Ok(model.insert(key, value)));
            }
            Step::Remove(key) => assert_eq!(index.remove(W, key), Ok(model.remove(&key))),
            Step::Get(key) => assert_eq!(index.get(key), Ok(model.get(&key).copied())),
            Step::Scan(from, to) if from <= to => {
                let expected: Vec<_> = model.range(from..=to).map(|(&k, &v)| (k, v)).collect();
                assert_lists(&index, from, to, &expected);
            }
            Step::Scan(from, to) => assert_lists(&index, from, to, &[]),
        }
    }
    // Some twice, most of them there or beside one that is; with no room for the last.
    let keys: Vec<u64> = (0..60)
        .chain(0..450)
        .chain([u64::MAX, KEY_MAX, 7])
        .collect();
    let mut found = vec![None; keys.len() - 1];
    assert_eq!(index.get_many(&keys, &mut found), Ok(()));
    let expected = keys.iter().map(|key| model.get(key).copied());
    assert!(expected.take(found.len()).eq(found));
    let census = index.check().expect("sound");
    assert_eq!(census.entries, model.len() as u64);
    assert_eq!((census.leftovers, census.unlinked, census.empty), (0, 0, 0));
}

/// Whatever the order in which keys come and go.
pub(crate) fn holds_any_order<I: Persistent<Mapped> + Lists>() {
    let mut shuffled: Vec<u64> = (0..20_000).collect();
    Rng::with_seed(5).shuffle(&mut shuffled);
    let orders: [Vec<u64>; 3] = [(0..20_000).collect(), (0..20_000).rev().collect(), shuffled];
    for order in orders {
        let index = empty::<I>(8 << 20, 1);
        for &key in &order {
            assert_eq!(index.put(W, key, key + 1), Ok(None));
        }
        assert!(order.iter().all(|&key| index.get(key) == Ok(Some(key + 1))));
        let census = index.check().expect("sound");
        assert_eq!((census.entries, census.unlinked), (20_000, 0));
        println!("{census:?}");
        for list in index.lists(0, KEY_MAX).expect("sound") {
            assert!(list.into_iter().eq((0..20_000).map(|key| (key, key + 1))));
        }
        for &key in &order {
            assert_eq!(index.remove(W, key), Ok(Some(key + 1)));
        }
        assert_lists(&index, 0, KEY_MAX, &[]);
    }
}

/// The greatest key is told to whoever goes beyond.
pub(crate) fn ends_at_the_greatest_key<I: Persistent<Mapped> + Lists>() {
    let index = empty::<I>(1 << 20, 1);
    assert_eq!(index.put(W, KEY_MAX, 1), Ok(None));
    assert_eq!(
        index.put(W, u64::MAX, 1),
        Err(PutError::Key { key: u64::MAX })
    );
    assert_eq!(index.get(u64::MAX), Ok(None));
    assert_eq!(index.remove(W, u64::MAX), Ok(None));
    assert_lists(&index, 0, u64::MAX, &[(KEY_MAX, 1)]);
}

/// Somebody else who may know is asked once, and before anything was read that decides: whatever
/// changes while they are asked is told.
pub(crate) fn asks_before_it_decides<I: Persistent<Mapped>>() {
    const KEYS: u64 = 16_000;
    let index = empty::<I>(16 << 20, 1);
    let eras = index.heap().eras().clone();
    let put = |key, value| {
        index.put(W, key, value).expect("room");
    };
    let remove = |key| {
        index.remove(W, key).expect("sound");
    };
    (0..KEYS).step_by(8).for_each(|key| put(key, key));
    let mut rng = Rng::with_seed(6);
    for round in 0..600 {
        eras.enter(W);
        let key = rng.u64(0..KEYS);
        let near = key.saturating_sub(100)..key + 100;
        let mut asked = 0;
        let is_fetched = Cell::new(false);
        let fetch = || assert!(!is_fetched.replace(true));
        let found = index.get_beside(key, fetch, || {
            assert!(is_fetched.get());
            asked += 1;
            match round % 4 {
                0 => put(key, KEYS + round),
                1 => near.for_each(remove),
                2 => near.for_each(|key| put(key, KEYS + round)),
                _ => remove(key),
            }
            None
        });
        assert_eq!((asked, &found), (1, &index.get(key)), "{key}, {round}");
        assert_eq!(
            index.get_beside(key, || (), || Some(round)),
            Ok(Some(round))
        );
    }
    eras.leave(W);
}

/// A full heap refuses new nodes and nothing else.
pub(crate) fn refuses_when_full<I: Persistent<Mapped>>() {
    let index = empty::<I>(192 << 10, 1);
    let mut key = 0;
    let full = loop {
        match index.put(W, key * 7919 % 10_007, key) {
            Ok(_) => key += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, PutError::Full(_)), "{full}");
    assert!(key > 1000, "{key} keys");
    let census = index.check().expect("sound");
    assert_eq!(census.entries, key);
    for at in 0..key {
        let key = at * 7919 % 10_007;
        assert_eq!(index.get(key), Ok(Some(at)));
        assert_eq!(
            index.put(W, key, 5),
            Ok(Some(at)),
            "an update needs no room"
        );
        assert_eq!(index.remove(W, key), Ok(Some(5)));
        assert_eq!(
            index.put(W, key, 6),
            Ok(None),
            "and there is what was freed"
        );
    }
}

/// What was there when it was closed is there when it is opened again, on a heap that is swept
/// while the index is used.
pub(crate) fn opens_again<K: Kind>() {
    let pm = Recorder::new(256 << 10);
    Heap::format(&pm, crash::CHUNK_BYTES, 1, Arc::new(Eras::new(1))).expect("it fits");
    let mut model = BTreeMap::new();
    for round in 0..6 {
        let heap = Heap::open(&pm, Arc::new(Eras::new(1))).expect("a heap");
        let index = K::Small::open(Arc::new(heap), 0, W).expect("an index");
        K::make_ready(&index);
        assert_lists(&index, 0, KEY_MAX, &entries(&model));
        let mut sweep = index.heap().sweep();
        let work = |model: &mut BTreeMap<u64, u64>, keys: std::ops::Range<u64>| {
            for key in keys {
                let key = key * (7 + round) % 1_009;
                match (key + round).is_multiple_of(3) {
                    true => assert_eq!(index.remove(W, key), Ok(model.remove(&key))),
                    false => assert_eq!(index.put(W, key, round), Ok(model.insert(key, round))),
                }
            }
        };
        work(&mut model, 0..100);
        index.mark(&mut sweep).expect("sound");
        work(&mut model, 100..200);
        sweep.finish().expect("nobody is within an era");
        work(&mut model, 200..700);
        let census = index.check().expect("sound");
        assert_eq!(census.entries, model.len() as u64);
    }
}

/// An index whose nodes were written over does not answer wrongly for ever, panic or hang. Tells
/// how often that was noticed, of 2,000 times.
pub(crate) fn bears_damage<K: Kind>() -> u32 {
    let pm = Recorder::new(96 << 10);
    Heap::format(&pm, 4096, 1, Arc::new(Eras::new(1))).expect("it fits");
    fn open<K: Kind>(pm: &Recorder) -> Option<K::Small<'_>> {
        let heap = Heap::open(pm, Arc::new(Eras::new(1))).ok()?;
        let index = Persistent::open(Arc::new(heap), 0, W).ok()?;
        K::make_ready(&index);
        Some(index)
    }
    let whole = open::<K>(&pm).expect("an empty index");
    (0..300).for_each(|key| assert_eq!(whole.put(W, key * 3, key), Ok(None)));
    let image = pm.image();
    let mut rng = Rng::with_seed(3);
    // The generation, roots, the table of chunks, and the words of chunks that have nodes.
    let last = image.iter().rposition(|&word| word != 0).expect("nodes");
    let head = (8..9).chain(16..18).chain(512..522);
    let used: Vec<usize> = head.cycle().take(last / 8).chain(1024..last).collect();
    let mut refused = 0;
    for _ in 0..2_000 {
        let mut image = image.clone();
        for _ in 0..rng.usize(1..4) {
            let word = used[rng.usize(0..used.len())];
            image[word] = match rng.u8(0..3) {
                0 => image[word] ^ 1 << rng.u8(0..64),
                1 => rng.u64(..),
                _ => image[used[rng.usize(0..used.len())]],
            };
        }
        let pm = Recorder::with_image(&image);
        let noticed = open::<K>(&pm).is_none_or(|index| !is_well(&index));
        refused += u32::from(noticed);
    }
    println!("{refused} of 2000 were noticed");
    refused
}

/// Whether everything that can be asked is answered without an error.
fn is_well<'p>(index: &(impl Persistent<&'p Recorder> + Lists)) -> bool {
    let mut well = index.check().is_ok();
    well &= index.mark(&mut index.heap().sweep()).is_ok();
    for key in 0..900 {
        well &= index.get(key).is_ok();
    }
    well &= index.lists(0, KEY_MAX).is_ok();
    for key in 0..100 {
        well &= index.put(W, key * 9 + 1, key).is_ok();
        well &= index.remove(W, key * 6).is_ok();
    }
    well
}

/// Readers and writers on real threads. Each key has one writer, which only ever makes its value
/// grow and says whose it is, so that what a reader sees can be judged: nothing is missed, nothing
/// goes back, and nothing is another's. Where one of them fails the others stop: nobody waits for
/// rounds that do not come.
pub(crate) fn serves_all_at_once<I: Persistent<Mapped> + Lists>() {
    const KEYS: u64 = 600;
    const ROUNDS: u64 = 3_000;
    let index = empty::<I>(8 << 20, 4);
    (0..KEYS).filter(|&key| is_fixed(key)).for_each(|key| {
        index.put(W, key, key).expect("room");
    });
    let has_failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (index, has_failed) = (&index, &has_failed);
        for writer in 0..2u64 {
            scope.spawn(move || {
                let _watch = Watch(has_failed);
                let worker = WorkerId(writer as u16);
                let rounds = (1..=ROUNDS).take_while(|_| !has_failed.load(Acquire));
                for round in rounds {
                    index.heap().eras().enter(worker);
                    for key in (0..KEYS).filter(|key| key / 3 % 2 == writer) {
                        if is_fixed(key) || (key + round) % 2 == 0 {
                            index.put(worker, key, round * KEYS + key).expect("room");
                        } else {
                            index.remove(worker, key).expect("sound");
                        }
                    }
                }
                index.heap().eras().leave(worker);
            });
        }
        for reader in 2..4 {
            scope.spawn(move || {
                let _watch = Watch(has_failed);
                let mut last = vec![0; KEYS as usize];
                let mut rng = Rng::with_seed(reader.into());
                while (last[0] < ROUNDS || last[3] < ROUNDS) && !has_failed.load(Acquire) {
                    index.heap().eras().enter(WorkerId(reader));
                    read_all(index, &mut last);
                    let (from, to) = (rng.u64(0..KEYS), rng.u64(0..KEYS));
                    scan_all(index, from.min(to), from.max(to), (KEYS, ROUNDS));
                }
                index.heap().eras().leave(WorkerId(reader));
            });
        }
    });
    let census = index.check().expect("sound");
    assert_eq!(census.leftovers, 0);
}

/// It grows under two writers, and whoever was told of a key finds it.
pub(crate) fn serves_while_it_grows<I: Persistent<Mapped> + Lists>() {
    const KEYS: u64 = 20_000;
    let index = empty::<I>(16 << 20, 4);
    let told: [AtomicU64; 2] = Default::default();
    // Neighbours come from different writers.
    let key = |writer: u64, at: u64| at * 2 + writer;
    let has_failed = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (index, told) = (&index, &told[writer as usize]);
            scope.spawn(move || {
                let _watch = Watch(has_failed);
                for at in 0..KEYS {
                    index.heap().eras().enter(WorkerId(writer as u16));
                    let put = index.put(WorkerId(writer as u16), key(writer, at), at);
                    assert_eq!(put, Ok(None));
                    told.store(at + 1, Release);
                }
                index.heap().eras().leave(WorkerId(writer as u16));
            });
        }
        for reader in 2..4 {
            let (index, told) = (&index, &told);
            scope.spawn(move || {
                let _watch = Watch(has_failed);
                let mut rng = Rng::with_seed(reader);
                let mut known = [0, 0];
                while known != [KEYS; 2] && !has_failed.load(Acquire) {
                    index.heap().eras().enter(WorkerId(reader as u16));
                    known = [0, 1].map(|writer: usize| told[writer].load(Acquire));
                    let at = known.map(|known| rng.u64(0..known.max(1)));
                    let keys = [key(0, at[0]), key(1, at[1])];
                    let mut found = keys.map(|key| index.get(key).expect("sound"));
                    let check = |found: [Option<u64>; 2]| {
                        let is_right = |of: usize| match found[of] {
                            Some(value) => value == at[of],
                            None => known[of] == 0,
                        };
                        assert!(is_right(0) && is_right(1), "{at:?} gave {found:?}");
                    };
                    check(found);
                    index.get_many(&keys, &mut found).expect("sound");
                    check(found);
                    if rng.u8(..) == 0 {
                        let (from, to) = (rng.u64(0..2 * KEYS), 2 * KEYS);
                        let expected = (from..to).filter(|key| key / 2 < known[(key % 2) as usize]);
                        for list in index.lists(from, to).expect("sound") {
                            assert!(list.is_sorted_by(|a, b| a.0 < b.0));
                            let keys = list.iter().map(|entry| entry.0);
                            let known = keys.filter(|key| key / 2 < known[(key % 2) as usize]);
                            assert!(known.eq(expected.clone()));
                        }
                    }
                }
                index.heap().eras().leave(WorkerId(reader as u16));
            });
        }
    });
    let census = index.check().expect("sound");
    assert_eq!(
        (census.entries, census.leftovers, census.unlinked),
        (2 * KEYS, 0, 0)
    );
}

/// Every third key is there all the time; the others come and go between them.
fn is_fixed(key: u64) -> bool {
    key.is_multiple_of(3)
}

fn read_all(index: &impl Index, last: &mut [u64]) {
    let keys = last.len() as u64;
    for (key, last) in (0..).zip(last) {
        let Some(value) = index.get(key).expect("sound") else {
            assert!(!is_fixed(key), "key {key} is missed");
            continue;
        };
        assert_eq!(value % keys, key, "another's value");
        assert!(value / keys >= *last, "key {key} went back");
        *last = value / keys;
    }
}

fn scan_all(index: &impl Lists, from: u64, to: u64, (keys, rounds): (u64, u64)) {
    for entries in index.lists(from, to).expect("sound") {
        assert!(entries.is_sorted_by(|a, b| a.0 < b.0), "{entries:?}");
        let fixed = entries.iter().filter(|(key, _)| is_fixed(*key));
        let expected = (from..=to).filter(|&key| is_fixed(key)).count();
        assert_eq!(fixed.count(), expected, "{from} to {to}: {entries:?}");
        for &(key, value) in &entries {
            assert_eq!(value % keys, key, "another's value");
            assert!(value / keys <= rounds, "key {key} has {value}");
        }
    }
}
