//! The tree against an ordered map, against damage, and under readers and writers at once.

use super::*;
use nyx_media::Mapped;
use nyx_media::pmem::crash::Recorder;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::eras::Eras;

const W: WorkerId = WorkerId(0);
/// Slots of nodes of two lines, so that small trees have many levels.
const FEW: usize = 6;

type Tree<const N: usize> = FastFair<Mapped, N>;

fn tree<const N: usize>(bytes: u64, workers: u16) -> Tree<N> {
    let pm = Mapped::anonymous(bytes).expect("memory");
    let eras = Arc::new(Eras::new(workers));
    let heap = Heap::format(pm, 64 << 10, 1, eras).expect("it fits");
    FastFair::open(Arc::new(heap), 0, W).expect("an empty tree")
}

/// What a scan meets, in its order.
pub(super) fn listed(
    scan: impl FnOnce(&mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<(), Unsound>,
) -> Result<Vec<(u64, u64)>, Unsound> {
    let mut all = Vec::new();
    scan(&mut |key, value| {
        all.push((key, value));
        ControlFlow::Continue(())
    })?;
    Ok(all)
}

fn up<const N: usize>(tree: &Tree<N>, from: u64, to: u64) -> Vec<(u64, u64)> {
    listed(|each| tree.scan(from..=to, each)).expect("sound")
}

fn down<const N: usize>(tree: &Tree<N>, from: u64, to: u64) -> Vec<(u64, u64)> {
    let mut all = listed(|each| tree.scan_back(from..=to, each)).expect("sound");
    all.reverse();
    all
}

#[derive(Clone, Debug)]
enum Step {
    Put(u64, u64),
    Remove(u64),
    Get(u64),
    Scan(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let key = || prop_oneof![0..50u64, 0..400u64, Just(KEY_MAX), Just(0)];
    prop_oneof![
        4 => (key(), 0..4u64).prop_map(|(key, value)| Step::Put(key, value)),
        2 => key().prop_map(Step::Remove),
        1 => key().prop_map(Step::Get),
        1 => (key(), key()).prop_map(|(from, to)| Step::Scan(from, to)),
    ]
}

fn agrees<const N: usize>(steps: &[Step]) {
    let tree = tree::<N>(4 << 20, 1);
    let mut model = BTreeMap::new();
    for step in steps {
        match *step {
            Step::Put(key, value) => {
                assert_eq!(tree.put(W, key, value), Ok(model.insert(key, value)));
            }
            Step::Remove(key) => assert_eq!(tree.remove(W, key), Ok(model.remove(&key))),
            Step::Get(key) => assert_eq!(tree.get(key), Ok(model.get(&key).copied())),
            Step::Scan(from, to) if from <= to => {
                let expected: Vec<_> = model.range(from..=to).map(|(&k, &v)| (k, v)).collect();
                assert_eq!(up(&tree, from, to), expected);
                assert_eq!(down(&tree, from, to), expected);
            }
            Step::Scan(from, to) => {
                assert!(up(&tree, from, to).is_empty() && down(&tree, from, to).is_empty());
            }
        }
    }
    let census = tree.check().expect("sound");
    assert_eq!(census.entries, model.len() as u64);
    assert_eq!((census.leftovers, census.unlinked, census.empty), (0, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_agrees_with_an_ordered_map(steps in prop::collection::vec(step(), 0..600)) {
        agrees::<FEW>(&steps);
        agrees::<SLOTS>(&steps);
    }
}

#[test]
fn in_order_in_reverse_and_shuffled_all_keys_are_found() {
    let mut rng = nyx_base::Rng::with_seed(5);
    let mut shuffled: Vec<u64> = (0..20_000).collect();
    rng.shuffle(&mut shuffled);
    let orders: [Vec<u64>; 3] = [(0..20_000).collect(), (0..20_000).rev().collect(), shuffled];
    for order in orders {
        let tree = tree::<SLOTS>(8 << 20, 1);
        for &key in &order {
            assert_eq!(tree.put(W, key, key + 1), Ok(None));
        }
        assert!(order.iter().all(|&key| tree.get(key) == Ok(Some(key + 1))));
        let census = tree.check().expect("sound");
        assert_eq!((census.entries, census.unlinked), (20_000, 0));
        println!("{census:?}");
        assert_eq!(up(&tree, 0, KEY_MAX).len(), 20_000);
        for &key in &order {
            assert_eq!(tree.remove(W, key), Ok(Some(key + 1)));
        }
        assert!(up(&tree, 0, KEY_MAX).is_empty() && down(&tree, 0, KEY_MAX).is_empty());
    }
}

#[test]
fn the_greatest_key_is_told_to_whoever_goes_beyond() {
    let tree = tree::<FEW>(1 << 20, 1);
    assert_eq!(tree.put(W, KEY_MAX, 1), Ok(None));
    assert_eq!(
        tree.put(W, u64::MAX, 1),
        Err(PutError::Key { key: u64::MAX })
    );
    assert_eq!(tree.get(u64::MAX), Ok(None));
    assert_eq!(tree.remove(W, u64::MAX), Ok(None));
    assert_eq!(up(&tree, 0, u64::MAX), [(KEY_MAX, 1)]);
    assert_eq!(down(&tree, 0, u64::MAX), [(KEY_MAX, 1)]);
}

#[test]
fn a_full_heap_refuses_new_nodes_and_nothing_else() {
    let tree = tree::<FEW>(192 << 10, 1);
    let mut key = 0;
    let full = loop {
        match tree.put(W, key * 7919 % 10_007, key) {
            Ok(_) => key += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, PutError::Full(_)), "{full}");
    assert!(key > 1000, "{key} keys");
    let census = tree.check().expect("sound");
    assert_eq!(census.entries, key);
    for at in 0..key {
        let key = at * 7919 % 10_007;
        assert_eq!(tree.get(key), Ok(Some(at)));
        assert_eq!(tree.put(W, key, 5), Ok(Some(at)), "an update needs no room");
        assert_eq!(tree.remove(W, key), Ok(Some(5)));
        assert_eq!(tree.put(W, key, 6), Ok(None), "and there is what was freed");
    }
}

/// A tree whose nodes were written over does not answer wrongly for ever, panic or hang.
#[test]
fn a_damaged_image_is_an_error_or_an_answer() {
    let pm = Recorder::new(96 << 10);
    Heap::format(&pm, 4096, 1, Arc::new(Eras::new(1))).expect("it fits");
    fn open(pm: &Recorder) -> Option<FastFair<&Recorder, FEW>> {
        let heap = Heap::open(pm, Arc::new(Eras::new(1))).ok()?;
        FastFair::open(Arc::new(heap), 0, W).ok()
    }
    let whole = open(&pm).expect("an empty tree");
    (0..300).for_each(|key| assert_eq!(whole.put(W, key * 3, key), Ok(None)));
    let image = pm.image();
    let mut rng = nyx_base::Rng::with_seed(3);
    // The words of chunks that have nodes.
    const USED: std::ops::Range<usize> = 1024..2200;
    let mut refused = 0;
    for _ in 0..2_000 {
        let mut image = image.clone();
        for _ in 0..rng.usize(1..4) {
            let word = rng.usize(USED);
            image[word] = match rng.u8(0..3) {
                0 => image[word] ^ 1 << rng.u8(0..64),
                1 => rng.u64(..),
                _ => image[rng.usize(USED)],
            };
        }
        let pm = Recorder::with_image(&image);
        let Some(tree) = open(&pm) else {
            refused += 1;
            continue;
        };
        let mut wrong = tree.check().is_err();
        for key in 0..900 {
            wrong |= tree.get(key).is_err();
        }
        let go_on = |_, _| ControlFlow::Continue(());
        wrong |= tree.scan(0..=KEY_MAX, go_on).is_err();
        wrong |= tree.scan_back(0..=KEY_MAX, go_on).is_err();
        for key in 0..100 {
            wrong |= tree.put(W, key * 9 + 1, key).is_err();
            wrong |= tree.remove(W, key * 6).is_err();
        }
        refused += u64::from(wrong);
    }
    println!("{refused} of 2000 were noticed");
    assert!(refused > 300);
}

/// Readers and writers on real threads. Each key has one writer, which only ever makes its value
/// grow, so that what a reader sees can be judged.
#[test]
fn readers_miss_nothing_and_never_go_back_while_writers_write() {
    const KEYS: u64 = 600;
    let tree = tree::<FEW>(8 << 20, 4);
    let rounds = 3_000;
    // Every third key is there all the time; the others come and go between them.
    let is_fixed = |key: u64| key.is_multiple_of(3);
    (0..KEYS).filter(|&key| is_fixed(key)).for_each(|key| {
        tree.put(W, key, 0).expect("room");
    });
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let tree = &tree;
            scope.spawn(move || {
                let worker = WorkerId(writer as u16);
                let mine = |key: &u64| key / 3 % 2 == writer;
                for round in 1..=rounds {
                    tree.heap().eras().enter(worker);
                    for key in (0..KEYS).filter(mine) {
                        if is_fixed(key) || (key + round) % 2 == 0 {
                            tree.put(worker, key, round).expect("room");
                        } else {
                            tree.remove(worker, key).expect("sound");
                        }
                    }
                }
                tree.heap().eras().leave(worker);
            });
        }
        for reader in 2..4 {
            let tree = &tree;
            scope.spawn(move || {
                let mut last = vec![0; KEYS as usize];
                let mut rng = nyx_base::Rng::with_seed(reader.into());
                while last[0] < rounds || last[3] < rounds {
                    tree.heap().eras().enter(WorkerId(reader));
                    for key in (0..KEYS).filter(|&key| is_fixed(key)) {
                        let value = tree.get(key).expect("sound").expect("it is there");
                        assert!(value >= last[key as usize], "key {key} went back");
                        last[key as usize] = value;
                    }
                    let (from, to) = (rng.u64(0..KEYS), rng.u64(0..KEYS));
                    let (from, to) = (from.min(to), from.max(to));
                    for entries in [up(tree, from, to), down(tree, from, to)] {
                        assert!(entries.is_sorted_by(|a, b| a.0 < b.0), "{entries:?}");
                        let fixed = entries.iter().filter(|(key, _)| is_fixed(*key));
                        let expected = (from..=to).filter(|&key| is_fixed(key)).count();
                        assert_eq!(fixed.count(), expected, "{from} to {to}: {entries:?}");
                        for &(key, value) in &entries {
                            assert!(value <= rounds, "key {key} has {value}");
                        }
                    }
                }
                tree.heap().eras().leave(WorkerId(reader));
            });
        }
    });
    let census = tree.check().expect("sound");
    assert_eq!(census.leftovers, 0);
}
