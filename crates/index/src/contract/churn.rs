//! Keys that come and go: what an index keeps of memory is in proportion to the keys that it had at
//! one time, however many there ever were; and readers and writers miss nothing while whole nodes
//! are emptied and filled.

use super::crash::CHUNK_BYTES;
use super::{Kind, Lists, W, assert_lists, empty};
use crate::eras::Eras;
use crate::heap::Heap;
use crate::ordered::KEY_MAX;
use crate::{Index, Persistent};
use nyx_base::{Rng, WorkerId};
use nyx_media::Mapped;
use nyx_media::pmem::crash::Recorder;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Release};

/// Keys that there are at one time.
const LIVE: u64 = 8_000;
/// How many come and go, for each of those.
const TIMES: u64 = 25;

/// The memory that an index keeps is bounded by the keys that it has at one time.
pub(crate) fn stays_small<I: Persistent<Mapped> + Lists>() {
    let first: Vec<u64> = (0..LIVE).collect();
    let held = peak::<I>(first.iter().copied(), LIVE as usize);
    let mut rng = Rng::with_seed(11);
    let up = 0..LIVE * TIMES;
    let down = (0..LIVE * TIMES).rev();
    let random: Vec<u64> = up.clone().map(|_| rng.u64(0..KEY_MAX)).collect();
    // Half empty nodes are not merged: at random, a node keeps less than one that was just filled.
    let peaks = [
        (peak::<I>(up, LIVE as usize), 2 * held),
        (peak::<I>(down, LIVE as usize), 4 * held),
        (peak::<I>(random.into_iter(), LIVE as usize), 8 * held),
        (peak_of_waves::<I>(), 4 * held),
    ];
    println!("{held} bytes of chunks at first, then {peaks:?}");
    assert!(peaks.iter().all(|(peak, most)| peak <= most), "{peaks:?}");
}

/// Bytes of chunks that it took while keys came in this order and went in the same, `live` of them
/// there at one time. At last all go.
fn peak<I: Persistent<Mapped> + Lists>(keys: impl Iterator<Item = u64>, live: usize) -> u64 {
    let index = empty::<I>(16 << 20, 1);
    let mut there = VecDeque::new();
    for key in keys {
        assert_eq!(index.put(W, key, key ^ 1), Ok(None));
        there.push_back(key);
        if there.len() > live {
            let key = there.pop_front().expect("not empty");
            assert_eq!(index.remove(W, key), Ok(Some(key ^ 1)));
        }
    }
    let mut left: Vec<_> = there.iter().map(|&key| (key, key ^ 1)).collect();
    left.sort_unstable();
    assert_lists(&index, 0, KEY_MAX, &left);
    for key in there {
        assert_eq!(index.remove(W, key), Ok(Some(key ^ 1)));
    }
    assert_is_bare(&index);
    index.heap().claimed_bytes()
}

/// The same where all come and all go, in any order, each time others.
fn peak_of_waves<I: Persistent<Mapped> + Lists>() -> u64 {
    let index = empty::<I>(16 << 20, 1);
    let mut rng = Rng::with_seed(12);
    for round in 0..TIMES {
        let mut keys: Vec<u64> = (0..LIVE).map(|key| round * LIVE + key).collect();
        for come in [true, false] {
            match rng.u8(0..3) {
                0 => rng.shuffle(&mut keys),
                1 => keys.reverse(),
                _ => keys.sort_unstable(),
            }
            for &key in &keys {
                match come {
                    true => assert_eq!(index.put(W, key, key), Ok(None)),
                    false => assert_eq!(index.remove(W, key), Ok(Some(key))),
                }
            }
        }
        assert_is_bare(&index);
    }
    index.heap().claimed_bytes()
}

/// Without keys there is at most a node per level.
fn assert_is_bare<I: Persistent<Mapped> + Lists>(index: &I) {
    assert_lists(index, 0, KEY_MAX, &[]);
    let census = index.check().expect("sound");
    assert!(census.nodes <= u64::from(census.levels), "{census:?}");
}

/// A sweep beside somebody who takes all keys away marks no node twice, and frees none in use.
pub(crate) fn is_swept_while_nodes_go<K: Kind>() {
    const KEYS: u64 = 1_500;
    let [sweeper, remover] = [WorkerId(0), WorkerId(1)];
    for round in 0..20 {
        let pm = Recorder::new(160 << 10);
        Heap::format(&pm, CHUNK_BYTES, 1, Arc::new(Eras::new(2))).expect("it fits");
        let open = || {
            let heap = Heap::open(&pm, Arc::new(Eras::new(2))).expect("a heap");
            K::Small::open(Arc::new(heap), 0, W).expect("an index")
        };
        let index = open();
        (0..KEYS).for_each(|key| assert_eq!(index.put(W, key, key), Ok(None)));
        drop(index);
        let index = open();
        let (eras, is_done) = (index.heap().eras(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _watch = Watch(&is_done);
                for at in 0..KEYS {
                    eras.enter(remover);
                    let key = if round % 2 == 0 { KEYS - 1 - at } else { at };
                    assert_eq!(index.remove(remover, key), Ok(Some(key)));
                }
                eras.leave(remover);
                is_done.store(true, Release);
            });
            while !is_done.load(Acquire) {
                eras.enter(sweeper);
                index.mark(&mut index.heap().sweep()).expect("sound");
            }
            eras.leave(sweeper);
        });
        let mut sweep = index.heap().sweep();
        let nodes = index.mark(&mut sweep).expect("sound");
        let swept = sweep.finish().expect("nobody is within an era");
        // What was retired last may still wait.
        assert!(swept.used_blocks >= nodes, "{nodes} nodes, {swept:?}");
        assert!(nodes <= u64::from(index.check().expect("sound").levels));
    }
}

/// Of so many keys of a writer one stays.
const STAYS: u64 = 64;
/// So many steps later the others go again.
const WINDOW: u64 = 300;
const STEPS: u64 = 40_000;
/// After so many steps a writer waits for the readers, who keep what it freed in use.
const PACE: u64 = 256;

/// What writers and readers tell each other.
#[derive(Default)]
struct Told {
    /// Steps that each writer did.
    steps: [AtomicU64; 2],
    /// How often each reader looked.
    looks: [AtomicU64; 2],
    has_failed: AtomicBool,
}

/// Says so when its thread panics, so that nobody waits for it.
pub(super) struct Watch<'a>(pub(super) &'a AtomicBool);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Release);
    }
}

/// Two writers put ever greater keys and take them away again, neighbours from different writers,
/// in a heap that has no room for all of them; readers find those that are there.
pub(crate) fn serves_while_keys_come_and_go<I: Persistent<Mapped> + Lists>() {
    let index = empty::<I>(768 << 10, 4);
    let told = Told::default();
    std::thread::scope(|scope| {
        let (index, told) = (&index, &told);
        for number in 0..2 {
            scope.spawn(move || come_and_go(index, number, told));
            scope.spawn(move || look_on(index, number, told));
        }
    });
    let stay = (0..2 * STEPS).filter(|&key| is_there(key, [STEPS; 2], [STEPS - 1; 2]));
    let stay: Vec<_> = stay.map(|key| (key, key ^ 1)).collect();
    assert_lists(&index, 0, KEY_MAX, &stay);
    index.check().expect("sound");
    for &(key, value) in &stay {
        assert_eq!(index.remove(W, key), Ok(Some(value)));
    }
    assert_is_bare(&index);
}

/// Keys that stay before the last node, which comes and goes: one less than fill a small node.
const BEFORE: u64 = 5;
/// How often the last node comes and goes.
const ROUNDS: u64 = 400_000;

/// The last node comes and goes beside a reader of its greatest key, who is at the node before it
/// while that becomes the last and leads nowhere. What that reader is told is no damage.
pub(crate) fn serves_while_the_last_node_comes_and_goes<I: Persistent<Mapped> + Lists>() {
    let index = empty::<I>(1 << 20, 2);
    let (looks, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    (0..BEFORE).for_each(|key| assert_eq!(index.put(W, key, key), Ok(None)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _watch = Watch(&is_over);
            look_at_the_last(&index, &looks, &is_over);
        });
        let _watch = Watch(&is_over);
        last_comes_and_goes(&index, &looks, &is_over);
        is_over.store(true, Release);
    });
    let stay: Vec<_> = (0..BEFORE).map(|key| (key, key)).collect();
    assert_lists(&index, 0, KEY_MAX, &stay);
}

fn last_comes_and_goes(index: &impl Persistent<Mapped>, looks: &AtomicU64, is_over: &AtomicBool) {
    let eras = index.heap().eras();
    for round in 0..ROUNDS {
        eras.enter(W);
        let last = BEFORE..BEFORE + 2;
        (last.clone()).for_each(|key| assert_eq!(index.put(W, key, key), Ok(None)));
        last.for_each(|key| assert_eq!(index.remove(W, key), Ok(Some(key))));
        if round % PACE == 0 {
            eras.leave(W);
            let before = looks.load(Acquire);
            while looks.load(Acquire) == before {
                if is_over.load(Acquire) {
                    return;
                }
                std::thread::yield_now();
            }
        }
    }
    eras.leave(W);
}

fn look_at_the_last(
    index: &(impl Persistent<Mapped> + Lists),
    looks: &AtomicU64,
    is_over: &AtomicBool,
) {
    let (reader, key) = (WorkerId(1), BEFORE + 1);
    let mut many = [None; 2];
    while !is_over.load(Acquire) {
        index.heap().eras().enter(reader);
        let found = index.get(key).expect("sound");
        assert!(found.is_none_or(|value| value == key), "{found:?}");
        if looks.load(Acquire).is_multiple_of(8) {
            index.get_many(&[key, key], &mut many).expect("sound");
            drop(index.lists(key, key).expect("sound"));
        }
        index.heap().eras().leave(reader);
        looks.fetch_add(1, Release);
    }
}

/// What a writer does. It tells after each step.
fn come_and_go(index: &impl Persistent<Mapped>, writer: u64, told: &Told) {
    let _watch = Watch(&told.has_failed);
    let (worker, eras) = (WorkerId(writer as u16), index.heap().eras());
    let looks = || told.looks.each_ref().map(|looks| looks.load(Acquire));
    for step in 0..STEPS {
        eras.enter(worker);
        let key = 2 * step + writer;
        assert_eq!(index.put(worker, key, key ^ 1), Ok(None));
        if let Some(old) = step.checked_sub(WINDOW).filter(|old| old % STAYS != 0) {
            let key = 2 * old + writer;
            assert_eq!(index.remove(worker, key), Ok(Some(key ^ 1)));
        }
        told.steps[writer as usize].store(step + 1, Release);
        let before = looks();
        let is_slow = || std::iter::zip(before, looks()).any(|(before, now)| before == now);
        if step % PACE == 0 {
            eras.leave(worker);
            while is_slow() && !told.has_failed.load(Acquire) {
                std::thread::yield_now();
            }
        }
    }
    eras.leave(worker);
}

/// What a reader does.
fn look_on(index: &(impl Persistent<Mapped> + Lists), reader: u64, told: &Told) {
    let _watch = Watch(&told.has_failed);
    let worker = WorkerId(2 + reader as u16);
    let mut rng = Rng::with_seed(reader);
    let is_over = || told.steps.iter().all(|steps| steps.load(Acquire) == STEPS);
    while !is_over() && !told.has_failed.load(Acquire) {
        index.heap().eras().enter(worker);
        look(index, &told.steps, &mut rng);
        index.heap().eras().leave(worker);
        told.looks[reader as usize].fetch_add(1, Release);
    }
}

/// Whether a key is there from when its writer had done `before` steps to when it had done `after`.
fn is_there(key: u64, before: [u64; 2], after: [u64; 2]) -> bool {
    let (step, writer) = (key / 2, (key % 2) as usize);
    // The step that takes it away may be under way.
    let stays = step % STAYS == 0 || step + WINDOW > after[writer];
    step < before[writer] && stays
}

/// Looks for single keys and at a range both ways, and judges what is found.
fn look(index: &impl Lists, steps: &[AtomicU64; 2], rng: &mut Rng) {
    let now = || [0, 1].map(|writer: usize| steps[writer].load(Acquire));
    let before = now();
    let last = before[0].max(before[1]).max(1);
    let key = 2 * rng.u64(last.saturating_sub(2 * WINDOW)..last) + rng.u64(0..2);
    let found = index.get(key).expect("sound");
    assert!(
        found.is_none_or(|value| value == key ^ 1),
        "{key}: {found:?}"
    );
    let expected = is_there(key, before, now());
    assert!(found.is_some() || !expected, "{key} is missed");
    let from = 2 * rng.u64(0..last);
    let to = from + rng.u64(0..4 * WINDOW);
    let before = now();
    let lists = index.lists(from, to).expect("sound");
    let after = now();
    for list in lists {
        assert!(list.is_sorted_by(|a, b| a.0 < b.0), "{list:?}");
        assert!(
            list.iter().all(|&(key, value)| value == key ^ 1),
            "{list:?}"
        );
        let is_in = |key: u64| list.binary_search(&(key, key ^ 1)).is_ok();
        let missed = (from..=to).find(|&key| is_there(key, before, after) && !is_in(key));
        assert_eq!(missed, None, "{from} to {to} after {before:?}");
    }
}
