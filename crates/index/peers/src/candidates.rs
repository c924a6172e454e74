//! What is compared, behind one trait.
//!
//! What it never does: help a candidate beyond what its documentation says: a guard per operation,
//! no room made before.
//!
//! *Thread safety*: all are shared; `thread` counts from 0.

use congee::U64Congee;
use congee::epoch::pin;
use crossbeam_skiplist::SkipMap;
use dashmap::DashMap;
use foldhash::fast::FixedState;
use nyx_base::WorkerId;
use nyx_index::fast_fair::FastFair;
use nyx_index::fp_tree::FpTree;
use nyx_index::heap::Heap;
use nyx_index::map::DramMap;
use nyx_index::{Eras, Index, Ordered, Persistent};
use nyx_media::Mapped;
use scc::{Guard, TreeIndex};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError, RwLock};

const CHUNK_BYTES: u64 = 2 << 20;
const WORKERS: u16 = 2;

/// What is measured, the same for all.
pub(crate) trait Candidate: Sync {
    fn insert(&self, thread: u16, key: u64, value: u64);
    fn get(&self, thread: u16, key: u64) -> Option<u64>;
    /// The sum of the values of `count` keys from `key` on; none where there is no order of keys.
    fn scan(&self, _thread: u16, _key: u64, _count: usize) -> Option<u64> {
        None
    }
    /// What it holds in bytes, where that is not the allocator's.
    fn bytes(&self) -> Option<u64> {
        None
    }
}

type Make = fn(u64) -> Box<dyn Candidate>;

pub(crate) const CANDIDATES: [(&str, Make); 11] = [
    ("nyx map", |keys| {
        let map = DramMap::new(keys, WORKERS);
        Box::new(map.expect("memory"))
    }),
    ("nyx fast-fair", |keys| made::<FastFair<Mapped>>(keys)),
    ("nyx fp-tree", |keys| made::<FpTree<Mapped>>(keys)),
    ("papaya HashMap", |_| {
        Box::new(papaya::HashMap::<u64, u64, _>::with_hasher(
            FixedState::default(),
        ))
    }),
    ("dashmap DashMap", |_| {
        Box::new(DashMap::<u64, u64, _>::with_hasher(FixedState::default()))
    }),
    ("scc HashMap", |_| {
        Box::new(scc::HashMap::<u64, u64, _>::with_hasher(
            FixedState::default(),
        ))
    }),
    ("scc HashIndex", |_| {
        Box::new(scc::HashIndex::<u64, u64, _>::with_hasher(
            FixedState::default(),
        ))
    }),
    ("scc TreeIndex", |_| Box::new(TreeIndex::<u64, u64>::new())),
    ("congee U64Congee", |_| Box::new(U64Congee::<usize>::new())),
    (
        "crossbeam SkipMap",
        |_| Box::new(SkipMap::<u64, u64>::new()),
    ),
    ("std RwLock<BTreeMap>", |_| {
        Box::new(RwLock::new(BTreeMap::<u64, u64>::new()))
    }),
];

/// One of ours that are ordered, on memory that is not flushed.
struct Ours<I>(I);

fn made<I: Persistent<Mapped> + Ordered + 'static>(keys: u64) -> Box<dyn Candidate> {
    let memory = Mapped::anonymous(keys * 40 + (64 << 20)).expect("memory");
    let eras = Arc::new(Eras::new(WORKERS));
    let heap = Heap::format(memory.with_flushes(false), CHUNK_BYTES, 1, eras);
    let heap = Arc::new(heap.expect("room for a heap"));
    Box::new(Ours(I::open(heap, 0, WorkerId(0)).expect("room")))
}

impl<I: Persistent<Mapped> + Ordered> Candidate for Ours<I> {
    fn insert(&self, thread: u16, key: u64, value: u64) {
        self.0.heap().eras().enter(WorkerId(thread));
        self.0.put(WorkerId(thread), key, value).expect("room");
    }

    fn get(&self, thread: u16, key: u64) -> Option<u64> {
        self.0.heap().eras().enter(WorkerId(thread));
        self.0.get(key).expect("sound")
    }

    fn scan(&self, thread: u16, key: u64, count: usize) -> Option<u64> {
        self.0.heap().eras().enter(WorkerId(thread));
        let (mut sum, mut left) = (0u64, count);
        let each = |_, value| {
            sum = sum.wrapping_add(value);
            left -= 1;
            match left {
                0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        };
        self.0.scan(key..=u64::MAX, each).expect("sound");
        Some(sum)
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.0.heap().claimed_bytes())
    }
}

impl Candidate for DramMap {
    fn insert(&self, thread: u16, key: u64, value: u64) {
        self.put(WorkerId(thread), key, value).expect("room");
    }

    fn get(&self, _: u16, key: u64) -> Option<u64> {
        Index::get(self, key).expect("sound")
    }

    fn bytes(&self) -> Option<u64> {
        Some(DramMap::bytes(self))
    }
}

impl Candidate for papaya::HashMap<u64, u64, FixedState> {
    fn insert(&self, _: u16, key: u64, value: u64) {
        self.pin().insert(key, value);
    }

    fn get(&self, _: u16, key: u64) -> Option<u64> {
        self.pin().get(&key).copied()
    }
}

impl Candidate for DashMap<u64, u64, FixedState> {
    fn insert(&self, _: u16, key: u64, value: u64) {
        DashMap::insert(self, key, value);
    }

    fn get(&self, _: u16, key: u64) -> Option<u64> {
        DashMap::get(self, &key).map(|value| *value)
    }
}

impl Candidate for scc::HashMap<u64, u64, FixedState> {
    fn insert(&self, _: u16, key: u64, value: u64) {
        self.upsert_sync(key, value);
    }

    fn get(&self, _: u16, key: u64) -> Option<u64> {
        self.read_sync(&key, |_, value| *value)
    }
}

impl Candidate for scc::HashIndex<u64, u64, FixedState> {
    fn insert(&self, _: u16, key: u64, value: u64) {
        self.insert_sync(key, value).expect("it is new");
    }

    fn get(&self, _: u16, key: u64) -> Option<u64> {
        self.peek_with(&key, |_, value| *value)
    }
}

impl Candidate for TreeIndex<u64, u64> {
    fn insert(&self, _: u16, key: u64, value: u64) {
        self.insert_sync(key, value).expect("it is new");
    }

    fn get(&self, _: u16, key: u64) -> Option<u64> {
        self.peek_with(&key, |_, value| *value)
    }

    fn scan(&self, _: u16, key: u64, count: usize) -> Option<u64> {
        let guard = Guard::new();
        let values = self.range(key.., &guard).take(count);
        Some(values.fold(0, |sum, (_, value)| sum.wrapping_add(*value)))
    }
}

impl Candidate for U64Congee<usize> {
    fn insert(&self, _: u16, key: u64, value: u64) {
        let inserted = U64Congee::insert(self, key, value as usize, &pin());
        inserted.expect("memory");
    }

    fn get(&self, _: u16, key: u64) -> Option<u64> {
        U64Congee::get(self, key, &pin()).map(|value| value as u64)
    }

    fn scan(&self, _: u16, key: u64, count: usize) -> Option<u64> {
        let mut entries = vec![([0; 8], 0); count];
        let found = self.range(key, u64::MAX, &mut entries, &pin());
        let values = entries[..found].iter().map(|&(_, value)| value as u64);
        Some(values.fold(0, u64::wrapping_add))
    }
}

impl Candidate for SkipMap<u64, u64> {
    fn insert(&self, _: u16, key: u64, value: u64) {
        SkipMap::insert(self, key, value);
    }

    fn get(&self, _: u16, key: u64) -> Option<u64> {
        SkipMap::get(self, &key).map(|entry| *entry.value())
    }

    fn scan(&self, _: u16, key: u64, count: usize) -> Option<u64> {
        let values = self.range(key..).take(count);
        Some(values.fold(0, |sum, entry| sum.wrapping_add(*entry.value())))
    }
}

impl Candidate for RwLock<BTreeMap<u64, u64>> {
    fn insert(&self, _: u16, key: u64, value: u64) {
        let mut map = self.write().unwrap_or_else(PoisonError::into_inner);
        map.insert(key, value);
    }

    fn get(&self, _: u16, key: u64) -> Option<u64> {
        let map = self.read().unwrap_or_else(PoisonError::into_inner);
        map.get(&key).copied()
    }

    fn scan(&self, _: u16, key: u64, count: usize) -> Option<u64> {
        let map = self.read().unwrap_or_else(PoisonError::into_inner);
        let values = map.range(key..).take(count).map(|(_, &value)| value);
        Some(values.fold(0, u64::wrapping_add))
    }
}
