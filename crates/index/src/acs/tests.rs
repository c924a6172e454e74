//! The cache against an ordered map, against readers and writers at once, and its share of hits.

use super::{ASKED_OF, Acs, AcsShape, Keep, Lookup, Mode, WANTED_MAX};
use crate::contract::{self, Step, assert_lists};
use crate::fast_fair::FastFair;
use crate::fp_tree::FpTree;
use crate::ordered::KEY_MAX;
use crate::skip_list::SkipList;
use crate::{Index, Ordered, Persistent};
use nyx_base::{Rng, WorkerId};
use nyx_media::Mapped;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

const W: WorkerId = WorkerId(0);

fn cached<I: Persistent<Mapped> + Ordered>(entries: u64, keep: Keep, lookup: Lookup) -> Acs<I> {
    let shape = AcsShape {
        entries,
        keep,
        lookup,
    };
    Acs::new(contract::empty(16 << 20, 4), shape).expect("memory")
}

fn agrees<I: Persistent<Mapped> + Ordered>(steps: &[Step], lookup: Lookup) {
    let acs = cached::<I>(64, Keep::Lru, lookup);
    let mut model = BTreeMap::new();
    for (at, step) in steps.iter().enumerate() {
        match *step {
            Step::Put(key, value) => {
                assert_eq!(acs.put(W, key, value), Ok(model.insert(key, value)));
            }
            Step::Remove(key) => assert_eq!(acs.remove(W, key), Ok(model.remove(&key))),
            Step::Get(key) => assert_eq!(acs.get(key), Ok(model.get(&key).copied())),
            Step::Scan(from, to) => {
                let expected: Vec<_> = match from <= to {
                    true => model.range(from..=to).map(|(&k, &v)| (k, v)).collect(),
                    false => Vec::new(),
                };
                assert_lists(&acs, from, to, &expected);
            }
        }
        // Whatever was asked for before changes is filled in after them.
        if at % 7 == 0 {
            acs.fill(usize::MAX).expect("sound");
        }
        for key in [0, 1, 2, 3, 40, KEY_MAX] {
            assert_eq!(acs.get(key), Ok(model.get(&key).copied()), "key {key}");
        }
    }
    assert!(acs.count() <= 64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn it_agrees_with_an_ordered_map(steps in contract::any_steps()) {
        agrees::<FastFair<Mapped>>(&steps, Lookup::Serial);
        agrees::<FpTree<Mapped>>(&steps, Lookup::Parallel);
        agrees::<SkipList<Mapped>>(&steps, Lookup::Adaptive);
    }
}

#[test]
fn what_is_asked_for_again_is_a_hit_and_what_changes_is_changed() {
    let acs = cached::<FastFair<Mapped>>(70, Keep::Lru, Lookup::Serial);
    acs.put(W, 5, 50).expect("room");
    assert_eq!((acs.get(5), acs.figures().hits), (Ok(Some(50)), 0));
    assert_eq!(acs.fill(10), Ok(1));
    assert_eq!((acs.get(5), acs.figures().hits), (Ok(Some(50)), 1));
    acs.put(W, 5, 51).expect("room");
    assert_eq!((acs.get(5), acs.figures().hits), (Ok(Some(51)), 2));
    acs.remove(W, 5).expect("sound");
    assert_eq!((acs.get(5), acs.figures().hits), (Ok(None), 2));
    assert_eq!(acs.get(u64::MAX), Ok(None));
    assert_eq!(acs.remove(W, u64::MAX), Ok(None));
    assert!(acs.put(W, u64::MAX, 1).is_err());
}

#[test]
fn while_there_is_room_every_miss_is_filled_in_and_then_few() {
    let acs = cached::<FastFair<Mapped>>(7, Keep::Lru, Lookup::Parallel);
    (0..100).for_each(|key| assert_eq!(acs.put(W, key, key), Ok(None)));
    let ask = |keys: std::ops::Range<u64>| {
        let mut filled = 0;
        for key in keys {
            assert_eq!(acs.get(key), Ok(Some(key)));
            filled += acs.fill(usize::MAX).expect("sound");
        }
        filled
    };
    assert_eq!((ask(0..7), acs.count()), (7, 7));
    let filled = ask(20..100);
    assert!((9..=11).contains(&filled), "{filled} of 80");
}

#[test]
fn what_changed_since_it_was_wanted_is_not_filled_in() {
    let acs = cached::<FastFair<Mapped>>(70, Keep::Lru, Lookup::Serial);
    acs.put(W, 5, 50).expect("room");
    assert_eq!(acs.get(5), Ok(Some(50)));
    acs.put(W, 5, 51).expect("room");
    assert_eq!(acs.fill(10), Ok(1));
    assert_eq!((acs.count(), acs.get(5)), (0, Ok(Some(51))));
    assert_eq!((acs.fill(10), acs.count()), (Ok(1), 1));
    acs.remove(W, 5).expect("sound");
    assert_eq!((acs.count(), acs.get(5)), (0, Ok(None)));
}

#[test]
fn too_many_that_are_wanted_are_dropped_and_counted() {
    let acs = cached::<FastFair<Mapped>>(7_000, Keep::Lru, Lookup::Serial);
    (0..2_000).for_each(|key| assert_eq!(acs.put(W, key, key), Ok(None)));
    (0..2_000).for_each(|key| assert_eq!(acs.get(key), Ok(Some(key))));
    let wanted = acs.fill(usize::MAX).expect("sound") as u64;
    assert_eq!(wanted + acs.figures().dropped, 2_000);
    assert_eq!(wanted, WANTED_MAX as u64);
}

/// Draws keys by Zipf's law, the most frequent first.
struct Zipf {
    sums: Vec<f64>,
}

impl Zipf {
    fn new(keys: u64, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        let sums = sums.collect();
        Zipf { sums }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let at = rng.f64() * self.sums.last().expect("there are keys");
        self.sums.partition_point(|&sum| sum < at) as u64
    }
}

/// The share of hits of a list of the least recently used, exactly.
fn exact_lru(keys: &[u64], entries: usize) -> f64 {
    let mut uses = BTreeMap::<u64, u64>::new();
    let mut order = VecDeque::new();
    let mut hits = 0;
    for (now, &key) in keys.iter().enumerate() {
        hits += u64::from(uses.insert(key, now as u64).is_some());
        order.push_back((key, now as u64));
        while uses.len() > entries {
            let (key, at) = order.pop_front().expect("as many as uses");
            if uses.get(&key) == Some(&at) {
                uses.remove(&key);
            }
        }
    }
    hits as f64 / keys.len() as f64
}

#[test]
fn hits_are_near_those_of_an_exact_list_or_above() {
    const KEYS: u64 = 20_000;
    let zipf = Zipf::new(KEYS, 0.99);
    let mut rng = Rng::with_seed(2);
    let keys: Vec<u64> = (0..300_000).map(|_| zipf.draw(&mut rng)).collect();
    let share = |keep| {
        let acs = cached::<FastFair<Mapped>>(KEYS / 10, keep, Lookup::Serial);
        (0..KEYS).for_each(|key| assert_eq!(acs.put(W, key, key), Ok(None)));
        for &key in &keys {
            assert_eq!(acs.get(key), Ok(Some(key)));
            acs.fill(1).expect("sound");
        }
        assert!(acs.count() <= KEYS / 10);
        let figures = acs.figures();
        figures.hits as f64 / figures.looks as f64
    };
    let exact = exact_lru(&keys, KEYS as usize / 10);
    let (lru, lfu) = (share(Keep::Lru), share(Keep::Lfu));
    println!("exact {exact:.3}, lru {lru:.3}, lfu {lfu:.3}");
    assert!(lru > exact - 0.02, "{lru} {exact}");
    assert!(lfu > lru, "{lfu} {lru}");
}

#[test]
fn it_asks_serially_where_it_hits_much_and_rests_where_it_hits_next_to_nothing() {
    const KEYS: u64 = 20_000;
    let acs = cached::<FastFair<Mapped>>(KEYS / 10, Keep::Lfu, Lookup::Adaptive);
    (0..KEYS).for_each(|key| assert_eq!(acs.put(W, key, key), Ok(None)));
    let zipf = Zipf::new(KEYS, 0.99);
    let mut rng = Rng::with_seed(2);
    let laws = [
        (true, Mode::Resting),
        (false, Mode::Serial),
        (true, Mode::Resting),
    ];
    for (is_uniform, expected) in laws {
        for _ in 0..800_000 {
            let key = match is_uniform {
                true => rng.u64(0..KEYS),
                false => zipf.draw(&mut rng),
            };
            assert_eq!(acs.get(key), Ok(Some(key)));
            acs.fill(1).expect("sound");
        }
        assert_eq!(acs.figures().mode, expected);
    }
}

#[test]
fn while_it_rests_few_look_ups_ask_it_and_that_wakes_it() {
    const KEYS: u64 = 20_000;
    let acs = cached::<FastFair<Mapped>>(KEYS / 10, Keep::Lru, Lookup::Parallel);
    (0..KEYS).for_each(|key| assert_eq!(acs.put(W, key, key), Ok(None)));
    let mut rng = Rng::with_seed(2);
    let mut ask = |keys: u64, times: u64| {
        let before = acs.figures().looks;
        for key in (0..times).map(|_| rng.u64(0..keys)) {
            assert_eq!(acs.get(key), Ok(Some(key)));
            acs.fill(1).expect("sound");
        }
        (
            (acs.figures().looks - before) as f64 / times as f64,
            acs.figures().mode,
        )
    };
    assert_eq!(
        ask(KEYS, 60_000),
        (1.0, Mode::Parallel),
        "while there is room"
    );
    assert_eq!(ask(KEYS, 800_000).1, Mode::Resting);
    let (asked, mode) = ask(KEYS, 100_000);
    assert!((asked * ASKED_OF as f64 - 1.0).abs() < 0.3, "{asked}");
    assert_eq!(mode, Mode::Resting);
    // Half of these have room.
    assert_eq!(ask(KEYS / 5, 800_000).1, Mode::Parallel);
    assert_eq!(ask(KEYS / 5, 1_000), (1.0, Mode::Parallel));
}

/// Two writers, each with keys of its own, whose values grow; readers by both ways of looking, and
/// one that fills in. What is read never goes back behind what any reader was told before.
#[test]
fn nobody_is_told_of_an_old_value_after_a_new_one() {
    const KEYS: u64 = 40;
    const ROUNDS: u64 = 12_000;
    let modes = [Mode::Serial, Mode::Parallel, Mode::Resting];
    for (lookup, mode) in [Lookup::Serial, Lookup::Parallel, Lookup::Parallel]
        .into_iter()
        .zip(modes)
    {
        let acs = cached::<FastFair<Mapped>>(28, Keep::Lru, lookup);
        (0..KEYS).for_each(|key| assert_eq!(acs.put(W, key, 0), Ok(None)));
        let told: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for writer in 0..2u16 {
                let (acs, told) = (&acs, &told);
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        for key in (0..KEYS).filter(|key| key % 2 == u64::from(writer)) {
                            acs.put(WorkerId(writer), key, round).expect("room");
                            told[key as usize].fetch_max(round, SeqCst);
                        }
                    }
                });
            }
            for reader in 0..2 {
                let (acs, told) = (&acs, &told);
                scope.spawn(move || {
                    let mut rng = Rng::with_seed(reader);
                    while told.iter().any(|told| told.load(SeqCst) < ROUNDS) {
                        let key = rng.u64(0..KEYS);
                        let before = told[key as usize].load(SeqCst);
                        if mode == Mode::Resting {
                            let mode = [Mode::Parallel, Mode::Resting][rng.usize(0..2)];
                            acs.mode.store(mode as u8, Relaxed);
                        }
                        let value = acs.get(key).expect("sound").expect("it is there");
                        assert!(value >= before, "key {key}: {value} after {before}");
                        told[key as usize].fetch_max(value, SeqCst);
                        acs.fill(2).expect("sound");
                    }
                });
            }
        });
    }
}
