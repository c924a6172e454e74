//! Byte keys against what every index must do ([`contract`]), for which numbers are spelled as
//! strings that keep their order and are nasty; and what only byte keys do.

use super::{ByteMap, KEY_BYTES_MAX};
use crate::contract::{self, Kind, crash};
use crate::fast_fair::FastFair;
use crate::fp_tree::FpTree;
use crate::heap::{Heap, Sweep};
use crate::hybrid_plus::HybridPlus;
use crate::ordered::{Census, END, PutError, ScanError, Unsound};
use crate::skip_list::SkipList;
use crate::{Eras, Index, Ordered, Persistent};
use nyx_base::{Rng, WorkerId};
use nyx_media::pmem::crash::Recorder;
use nyx_media::{Mapped, Pmem};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, RangeInclusive};
use std::sync::Arc;

const W: WorkerId = WorkerId(0);

/// Digits: none begins another, and they are in order.
const DIGITS: [&[u8]; 4] = [b"\0aaaa\0", b"\0aaaa\xff", b"\0aab", b"\xff"];
/// Ends: keys that begin other keys.
const ENDS: [&[u8]; 4] = [b"", b"\0", b"\0\0\0\0\0", b"\xff\xff\xff\xff\xff\xff\xff"];

/// A number as a string, in the order of numbers.
fn spell(number: u64) -> Vec<u8> {
    let digits: Vec<usize> = (0..31)
        .rev()
        .map(|at| (number >> 2 >> (2 * at) & 3) as usize)
        .skip_while(|&digit| digit == 0)
        .collect();
    let mut key = vec![digits.len() as u8];
    digits.iter().for_each(|&digit| key.extend(DIGITS[digit]));
    key.extend(ENDS[(number & 3) as usize]);
    key
}

/// The number that it is, if it is one.
fn unspell(mut key: &[u8]) -> Option<u64> {
    let count = *key.first()?;
    key = &key[1..];
    let mut number = 0;
    for _ in 0..count {
        let digit = DIGITS.iter().position(|digit| key.starts_with(digit));
        let digit = digit?;
        key = &key[DIGITS[digit].len()..];
        number = number << 2 | digit as u64;
    }
    let end = ENDS.iter().position(|&end| end == key)?;
    Some(number << 2 | end as u64)
}

#[test]
fn numbers_are_spelled_in_their_order() {
    let all = (0..3_000).chain([END - 1, END]);
    let keys: Vec<_> = all.clone().map(spell).collect();
    assert!(keys.is_sorted_by(|a, b| a < b));
    assert!(keys.iter().all(|key| key.len() <= KEY_BYTES_MAX));
    assert!(keys.iter().map(|key| unspell(key)).eq(all.map(Some)));
}

/// A map whose keys are numbers that are spelled.
struct Spelled<P, I> {
    map: ByteMap<P, I>,
}

impl<P: Pmem, I: Persistent<P> + Ordered> Index for Spelled<P, I> {
    fn get(&self, key: u64) -> Result<Option<u64>, Unsound> {
        self.map.get(&spell(key))
    }

    fn put(&self, worker: WorkerId, key: u64, value: u64) -> Result<Option<u64>, PutError> {
        PutError::check(key)?;
        self.map.put(worker, &spell(key), value)
    }

    fn remove(&self, worker: WorkerId, key: u64) -> Result<Option<u64>, PutError> {
        self.map.remove(worker, &spell(key))
    }
}

/// What takes numbers, of strings.
fn of_strings(
    mut each: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> impl FnMut(&[u8], u64) -> ControlFlow<()> {
    // A damaged image may have other strings.
    move |key, value| match unspell(key) {
        Some(key) => each(key, value),
        None => ControlFlow::Break(()),
    }
}

impl<P: Pmem, I: Persistent<P> + Ordered> Ordered for Spelled<P, I> {
    fn scan(
        &self,
        range: RangeInclusive<u64>,
        each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        let [from, to] = [*range.start(), *range.end()].map(spell);
        let (from, to) = (Bound::Included(&from[..]), Bound::Included(&to[..]));
        self.map.scan(from, to, of_strings(each))
    }

    fn scan_back(
        &self,
        range: RangeInclusive<u64>,
        each: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), ScanError> {
        let [from, to] = [*range.start(), *range.end()].map(spell);
        let (from, to) = (Bound::Included(&from[..]), Bound::Included(&to[..]));
        self.map.scan_back(from, to, of_strings(each))
    }
}

fn unsound(error: impl std::fmt::Display) -> Unsound {
    eprintln!("{error}");
    Unsound::Endless
}

impl<P: Pmem, I: Persistent<P> + Ordered> Persistent<P> for Spelled<P, I> {
    fn open(heap: Arc<Heap<P>>, root: usize, worker: WorkerId) -> Result<Self, PutError> {
        let map = ByteMap::open(heap, root, worker)?;
        Ok(Spelled { map })
    }

    fn heap(&self) -> &Arc<Heap<P>> {
        self.map.keys().index().heap()
    }

    fn mark(&self, sweep: &mut Sweep<'_, P>) -> Result<u64, Unsound> {
        self.map.mark(W, sweep).map_err(unsound)
    }

    fn check(&self) -> Result<Census, Unsound> {
        let census = self.map.check().map_err(unsound)?;
        Ok(Census {
            entries: census.keys,
            nodes: census.index.nodes + census.layers,
            empty: census.empty,
            leftovers: census.lost,
            ..census.index
        })
    }
}

type Small<P> = Spelled<P, FastFair<P, 6>>;

struct OverFastFair;

impl Kind for OverFastFair {
    type Small<'p> = Small<&'p Recorder>;
    const MEDIUM_BYTES: u64 = 80 << 10;
    const STEPS: usize = 150;
    const PAIRS: u64 = 6;
    const TIDIES: bool = true;
    fn scribble(_: &Recorder, _: u64, _: &mut Rng) {}
}

struct OverFpTree;

impl Kind for OverFpTree {
    type Small<'p> = Spelled<&'p Recorder, FpTree<&'p Recorder, 6>>;
    const MEDIUM_BYTES: u64 = 80 << 10;
    const STEPS: usize = 150;
    const PAIRS: u64 = 6;
    const TIDIES: bool = true;
    fn scribble(_: &Recorder, _: u64, _: &mut Rng) {}
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn it_agrees_with_an_ordered_map(steps in contract::any_steps()) {
        contract::agrees::<Small<Mapped>>(&steps);
        contract::agrees::<Spelled<Mapped, FpTree<Mapped, 6>>>(&steps);
        contract::agrees::<Spelled<Mapped, SkipList<Mapped>>>(&steps);
        contract::agrees::<Spelled<Mapped, HybridPlus<FastFair<Mapped, 6>>>>(&steps);
    }
}

#[test]
fn the_greatest_key_is_told_to_whoever_goes_beyond() {
    contract::ends_at_the_greatest_key::<Small<Mapped>>();
}

#[test]
fn readers_miss_nothing_and_never_go_back_while_writers_write() {
    contract::serves_all_at_once::<Small<Mapped>>();
}

#[test]
fn it_grows_under_writers_and_who_was_told_of_a_key_finds_it() {
    contract::serves_while_it_grows::<Small<Mapped>>();
}

#[test]
fn it_opens_again_on_a_heap_that_is_swept_meanwhile() {
    contract::opens_again::<OverFastFair>();
    contract::opens_again::<OverFpTree>();
}

#[test]
fn a_damaged_image_is_an_error_or_an_answer() {
    let noticed = contract::bears_damage::<OverFastFair>();
    assert!(noticed > 300, "{noticed}");
}

#[test]
fn what_was_acknowledged_survives_and_the_rest_is_all_or_nothing() {
    for stores in [
        crash::survives::<OverFastFair>(),
        crash::survives::<OverFpTree>(),
    ] {
        assert!(stores["absorb"] > 20, "{stores:?}");
    }
}

#[test]
fn a_kill_and_a_power_failure_after_it_lose_nothing_either() {
    crash::survives_a_kill_first::<OverFastFair>();
    crash::survives_a_kill_first::<OverFpTree>();
}

#[test]
fn each_forgotten_flush_and_fence_is_found() {
    let found = crash::forgotten_is_found::<OverFastFair>(&[]);
    assert!(found >= 15, "{found}");
}

fn string(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.u8(0..10) {
        0 => 1,
        1 => KEY_BYTES_MAX,
        2 => rng.usize(1..=KEY_BYTES_MAX),
        _ => rng.usize(1..14),
    };
    let (few, long) = (b"\0\xffa", rng.u8(0..3) == 0);
    (0..len)
        .map(|at| match long && at < len - 1 {
            true => b'a',
            false => few[rng.usize(0..3)],
        })
        .collect()
}

fn listed(
    scan: impl FnOnce(&mut dyn FnMut(&[u8], u64) -> ControlFlow<()>) -> Result<(), ScanError>,
) -> Vec<(Vec<u8>, u64)> {
    let mut all = Vec::new();
    scan(&mut |key, value| {
        all.push((key.to_vec(), value));
        ControlFlow::Continue(())
    })
    .expect("sound");
    all
}

fn assert_ranges(
    map: &ByteMap<Mapped, FastFair<Mapped>>,
    model: &BTreeMap<Vec<u8>, u64>,
    [a, b]: [&[u8]; 2],
) {
    let bounds = |key| [Bound::Included(key), Bound::Excluded(key), Bound::Unbounded];
    for from in bounds(a) {
        for to in bounds(b) {
            let is_in = |key: &[u8]| {
                (match from {
                    Bound::Included(from) => key >= from,
                    Bound::Excluded(from) => key > from,
                    Bound::Unbounded => true,
                }) && match to {
                    Bound::Included(to) => key <= to,
                    Bound::Excluded(to) => key < to,
                    Bound::Unbounded => true,
                }
            };
            let entries = model.iter().filter(|entry| is_in(entry.0));
            let mut expected: Vec<_> = entries.map(|(k, &v)| (k.clone(), v)).collect();
            assert_eq!(listed(|each| map.scan(from, to, each)), expected);
            expected.reverse();
            assert_eq!(listed(|each| map.scan_back(from, to, each)), expected);
        }
    }
    let with = model.iter().filter(|entry| entry.0.starts_with(a));
    let expected: Vec<_> = with.map(|(k, &v)| (k.clone(), v)).collect();
    assert_eq!(listed(|each| map.scan_prefix(a, each)), expected);
}

fn empty() -> ByteMap<Mapped, FastFair<Mapped>> {
    let pm = Mapped::anonymous(16 << 20).expect("memory");
    let heap = Heap::format(pm, 64 << 10, 1, Arc::new(Eras::new(1))).expect("it fits");
    ByteMap::open(Arc::new(heap), 0, W).expect("a map")
}

#[test]
fn any_strings_are_kept_and_listed_and_leave_nothing_behind() {
    let map = empty();
    let mut rng = Rng::with_seed(7);
    let mut model = BTreeMap::new();
    let strings: Vec<_> = (0..1_500).map(|_| string(&mut rng)).collect();
    for round in 0..12_000 {
        let key = &strings[rng.usize(0..strings.len())];
        match rng.u8(0..5) {
            0..2 => assert_eq!(map.remove(W, key), Ok(model.remove(key))),
            2..4 => assert_eq!(map.put(W, key, round), Ok(model.insert(key.clone(), round))),
            _ => assert_eq!(map.get(key), Ok(model.get(key).copied())),
        }
        if round % 300 == 0 {
            let other = &strings[rng.usize(0..strings.len())];
            assert_ranges(&map, &model, [key, other]);
        }
    }
    let census = map.check().expect("sound");
    assert_eq!(census.keys, model.len() as u64);
    assert_eq!((census.empty, census.lost), (0, 0));
    let keys: Vec<_> = model.keys().cloned().collect();
    for key in keys {
        assert_eq!(map.remove(W, &key), Ok(model.remove(&key)));
    }
    let index = map.keys().index();
    index
        .scan(0..=END - 1, |slot, value| {
            panic!("{slot:x}: {value:x} is left")
        })
        .expect("sound");
}

#[test]
fn layers_that_come_and_go_leak_no_block_and_no_number() {
    let pm = Mapped::anonymous(16 << 20).expect("memory");
    let heap = Heap::format(pm, 64 << 10, 1, Arc::new(Eras::new(1))).expect("it fits");
    let heap = Arc::new(heap);
    let map = ByteMap::<_, SkipList<Mapped>>::open(heap.clone(), 0, W).expect("a map");
    let mut rng = Rng::with_seed(8);
    let mut strings: Vec<_> = (0..800).map(|_| string(&mut rng)).collect();
    strings.sort();
    strings.dedup();
    let mut claimed = 0;
    for round in 0..60 {
        for key in &strings {
            assert_eq!(map.put(W, key, round), Ok(None));
        }
        rng.shuffle(&mut strings);
        for key in &strings {
            assert_eq!(map.remove(W, key), Ok(Some(round)));
        }
        if round == 20 {
            claimed = heap.claimed_bytes();
        }
    }
    assert_eq!(heap.claimed_bytes(), claimed);
    let (numbers, keys) = (heap.read_root(1), strings.len() as u64);
    assert!(numbers < 2 * keys, "{numbers} numbers for {keys} keys");
}

/// Keys whose beginnings are all new come and go: layers do, in an index whose keys grow.
fn bears_new_beginnings<I: Persistent<Mapped> + Ordered>() {
    const GROUPS: u64 = 20_000;
    const WINDOW: u64 = 50;
    let index: Spelled<Mapped, I> = contract::empty(4 << 20, 1);
    let keys = |group: u64| (0..4).map(move |at| format!("day {group:020} {at}").into_bytes());
    let mut claimed = 0;
    for group in 0..GROUPS {
        for key in keys(group) {
            assert_eq!(index.map.put(W, &key, group), Ok(None));
        }
        for key in group.checked_sub(WINDOW).into_iter().flat_map(keys) {
            assert_eq!(index.map.remove(W, &key), Ok(Some(group - WINDOW)));
        }
        if group == 4 * WINDOW {
            claimed = index.heap().claimed_bytes();
        }
    }
    assert_eq!(index.heap().claimed_bytes(), claimed);
    let census = index.check().expect("sound");
    assert_eq!(census.entries, 4 * WINDOW);
}

#[test]
fn keys_with_new_beginnings_take_no_more_memory_however_many_there_were() {
    bears_new_beginnings::<FastFair<Mapped, 6>>();
    bears_new_beginnings::<FastFair<Mapped>>();
    bears_new_beginnings::<FpTree<Mapped, 6>>();
}

#[test]
fn an_item_is_replaced_only_where_it_is_the_one() {
    let map = empty();
    let keys = map.keys();
    map.put(W, b"abcde", 1).expect("room");
    let old = keys.get(b"abcde").expect("sound").expect("an item");
    map.put(W, b"other", 2).expect("room");
    assert_eq!(keys.replace(W, b"abcde", old + 8, old), Ok(false));
    assert_eq!(keys.replace(W, b"abcdf", old, old), Ok(false));
    assert_eq!(keys.replace(W, b"abcde", old, old), Ok(true));
}

#[test]
fn keys_that_are_too_long_or_empty_are_refused() {
    let map = empty();
    for bytes in [0, KEY_BYTES_MAX + 1, 4096] {
        let key = vec![1; bytes];
        assert_eq!(map.put(W, &key, 1), Err(PutError::Length { bytes }));
        assert_eq!(map.get(&key), Ok(None));
        assert_eq!(map.remove(W, &key), Ok(None));
    }
}

#[test]
fn a_full_heap_refuses_new_keys_and_nothing_else() {
    let pm = Mapped::anonymous(192 << 10).expect("memory");
    let heap = Heap::format(pm, 4096, 1, Arc::new(Eras::new(1))).expect("it fits");
    let map = Small {
        map: ByteMap::open(Arc::new(heap), 0, W).expect("a map"),
    };
    let mut put = Vec::new();
    let refused = (0..).find_map(|at| {
        let key = at * 7919 % 10_007;
        let error = map.put(W, key, at).err();
        put.extend(error.is_none().then_some((key, at)));
        error
    });
    assert!(matches!(refused, Some(PutError::Full(_))), "{refused:?}");
    println!("{} keys", put.len());
    let census = map.check().expect("sound");
    assert_eq!((census.entries, census.leftovers), (put.len() as u64, 0));
    for (key, value) in put {
        assert_eq!(map.get(key), Ok(Some(value)));
        assert_eq!(map.remove(W, key), Ok(Some(value)));
    }
}

#[test]
fn a_key_that_is_refused_takes_no_number_of_a_layer() {
    let pm = Mapped::anonymous(1 << 20).expect("memory");
    let heap = Heap::format(pm, 4096, 1, Arc::new(Eras::new(1))).expect("it fits");
    let heap = Arc::new(heap);
    let map = ByteMap::<_, SkipList<Mapped>>::open(heap.clone(), 0, W).expect("a map");
    // Long keys, each in a slot of its own.
    let key = |number: u32| [&number.to_be_bytes()[..], &[7; 100]].concat();
    let full = (0..).find(|&number| map.put(W, &key(number), 0).is_err());
    let keys = full.expect("it is full") - 1;
    // There is room for an item, not for the layer that it needs beside another one.
    assert_eq!(map.remove(W, &key(keys)), Ok(Some(0)));
    let mut refused = 0;
    for number in 0..5_000 {
        let other = [&key(number % keys)[..60], &[9; 31]].concat();
        match map.put(W, &other, 0) {
            Err(_) => refused += 1,
            Ok(_) => drop(map.remove(W, &other)),
        }
    }
    assert!(refused > 4_000, "{refused}");
    assert!(heap.read_root(1) <= 17, "{}", heap.read_root(1));
}
