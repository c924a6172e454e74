//! Readers of one node beside a writer, and of a chain or a tree beside one who unlinks, in many
//! orders of their single accesses:
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --release -p nyx-index interleavings`
//!
//! draws them at random, and finds the bugs that were planted (`docs/open.md`). With `--cfg loom`
//! what the memory model allows is looked at too, but loom 0.7 never runs the reader between the
//! writer's lock and its first store, and finds half of them.
#![cfg(any(loom, shuttle))]

use super::node::{Draft, Mode, Node, words};
use crate::ordered::END;
#[cfg(loom)]
use loom::{sync::Arc, thread};
use nyx_media::Pmem;
use nyx_media::pmem::Word;
#[cfg(shuttle)]
use shuttle::{sync::Arc, thread};
use std::sync::atomic::Ordering::Release;

const GENERATION: u64 = 1;
const SLOTS: usize = 4;

/// Memory of nodes, of which nothing is lost. Most tests have one.
struct Memory(Vec<Word>);

impl Pmem for Memory {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64 * 8
    }

    fn words(&self, at: u64, count: usize) -> &[Word] {
        &self.0[at as usize / 8..][..count]
    }

    fn store(&self, word: &Word, value: u64) {
        word.store(value, Release);
    }

    fn flush(&self, _: &[Word]) {}

    fn fence(&self) {}
}

impl Memory {
    fn node(&self) -> Node<'_, Memory> {
        self.node_at(0)
    }

    fn node_at(&self, at: u64) -> Node<'_, Memory> {
        Node::new(self, at, self.words(at, words(SLOTS)))
    }

    fn put(&self, key: u64, value: u64) {
        let locked = self.node().lock(GENERATION, Mode::Right);
        let spot = locked.spot(key).expect("no leftovers");
        match spot.found {
            true => locked.update(spot.slot, value),
            false => locked.insert(spot, key, value),
        }
    }

    fn remove(&self, key: u64) {
        let locked = self.node().lock(GENERATION, Mode::Left);
        let spot = locked.spot(key).expect("no leftovers");
        assert!(spot.found);
        locked.remove(spot.slot);
    }

    /// What `read` makes of the node, when at most one writer was at it.
    fn read<T>(&self, mut read: impl FnMut(Node<'_, Memory>, Option<Mode>) -> T) -> T {
        loop {
            let node = self.node();
            let seen = node.look(GENERATION);
            let found = read(node, seen.mode);
            if node.is_same(seen) {
                return found;
            }
            thread::yield_now();
        }
    }

    fn find(&self, key: u64) -> Option<u64> {
        self.read(|node, mode| node.find(key, mode))
    }

    fn all(&self) -> Vec<(u64, u64)> {
        self.read(|node, mode| {
            let mut entries = Vec::new();
            node.collect(0, mode, &mut entries);
            entries
        })
    }
}

/// A leaf with these entries.
fn node(entries: &[(u64, u64)]) -> Arc<Memory> {
    let memory = Memory((0..words(SLOTS)).map(|_| Word::new(0)).collect());
    let draft = Draft {
        level: 0,
        leftmost: 0,
        sibling: 0,
        fence: END,
        entries,
    };
    memory.node().write(&draft, GENERATION);
    memory.node().release(GENERATION);
    Arc::new(memory)
}

/// The address of a leaf of a chain, from 1.
fn place(number: u64) -> u64 {
    number * words(SLOTS) as u64 * 8
}

/// Three leaves, the second of which holds nothing: keys below 10, below 20, and all others. The
/// first has a key beyond its fence that a split left.
fn chain() -> Arc<Memory> {
    let memory = Memory((0..4 * words(SLOTS)).map(|_| Word::new(0)).collect());
    let leaves: [(u64, &[(u64, u64)]); 3] =
        [(10, &[(5, 50), (15, 0)]), (20, &[]), (END, &[(30, 300)])];
    for (number, (fence, entries)) in (1..).zip(leaves) {
        let draft = Draft {
            level: 0,
            leftmost: 0,
            sibling: if fence == END { 0 } else { place(number + 1) },
            fence,
            entries,
        };
        memory.node_at(place(number)).write(&draft, GENERATION);
        memory.node_at(place(number)).release(GENERATION);
    }
    Arc::new(memory)
}

impl Memory {
    /// What `FastFair` does to the second leaf, without the parent.
    fn unlink(&self) {
        let left = self.node_at(place(1)).lock(GENERATION, Mode::Right);
        let node = self.node_at(place(2)).lock(GENERATION, Mode::Right);
        if node.spot(10).is_ok_and(|spot| spot.used == 0) {
            let used = left.spot(9).expect("no leftovers").used;
            left.absorb(&node, used, GENERATION);
        }
    }

    /// The leaf that `key` belongs to, from one to its left on, and its value, as readers find it.
    fn seek(&self, mut at: u64, key: u64) -> (u64, Option<u64>) {
        loop {
            let node = self.node_at(at);
            let seen = node.look(GENERATION);
            let (fence, sibling) = (node.fence_key(), node.sibling());
            let is_here = key < fence || fence == END;
            let found = is_here.then(|| node.find(key, seen.mode));
            if !node.is_same(seen) {
                thread::yield_now();
                continue;
            }
            match found {
                Some(value) => return (at, value),
                None => at = sibling,
            }
        }
    }

    /// The same for a writer, who puts it there.
    fn put_from(&self, mut at: u64, key: u64, value: u64) {
        loop {
            let node = self.node_at(at).lock(GENERATION, Mode::Right);
            let fence = node.fence_key();
            if key < fence || fence == END {
                return node.insert(node.spot(key).expect("no leftovers"), key, value);
            }
            at = node.sibling();
        }
    }
}

#[cfg(loom)]
fn model(program: impl Fn() + Sync + Send + 'static) {
    // No bound on preemptions: with one, loom 0.7 tried a single execution of these.
    loom::model(program);
}

#[cfg(shuttle)]
fn model(program: impl Fn() + Sync + Send + 'static) {
    shuttle::check_random(program, 20_000);
}

#[test]
fn what_is_shifted_right_is_found() {
    model(|| {
        let memory = node(&[(20, 2), (30, 3)]);
        let other = memory.clone();
        let writer = thread::spawn(move || other.put(10, 1));
        assert_eq!(memory.find(30), Some(3));
        assert_eq!(memory.find(20), Some(2));
        let new = memory.find(10);
        assert!(new.is_none() || new == Some(1), "{new:?}");
        writer.join().expect("no panic");
        assert_eq!(memory.find(10), Some(1));
    });
}

#[test]
fn what_is_shifted_left_is_found() {
    model(|| {
        let memory = node(&[(10, 1), (20, 2), (30, 3)]);
        let other = memory.clone();
        let writer = thread::spawn(move || other.remove(10));
        assert_eq!(memory.find(20), Some(2));
        assert_eq!(memory.find(30), Some(3));
        let old = memory.find(10);
        assert!(old.is_none() || old == Some(1), "{old:?}");
        writer.join().expect("no panic");
        assert_eq!(memory.all(), [(20, 2), (30, 3)]);
    });
}

#[test]
fn a_key_that_went_and_came_again_has_no_value_of_another() {
    model(|| {
        let memory = node(&[(10, 1)]);
        let other = memory.clone();
        let writer = thread::spawn(move || {
            other.remove(10);
            other.put(10, 7);
        });
        let found = memory.find(10);
        assert!([None, Some(1), Some(7)].contains(&found), "{found:?}");
        writer.join().expect("no panic");
    });
}

#[test]
fn a_scan_sees_what_stays_once_and_in_order() {
    for remove in [false, true] {
        model(move || {
            let memory = node(&[(10, 1), (20, 2)]);
            let other = memory.clone();
            let writer = thread::spawn(move || match remove {
                true => other.remove(10),
                false => other.put(5, 0),
            });
            let all = memory.all();
            let allowed: [&[(u64, u64)]; 3] =
                [&[(10, 1), (20, 2)], &[(20, 2)], &[(5, 0), (10, 1), (20, 2)]];
            let is_other = if remove { 2 } else { 1 };
            let at = allowed.iter().position(|entries| *entries == all);
            assert!(at.is_some_and(|at| at != is_other), "{all:?}");
            writer.join().expect("no panic");
        });
    }
}

#[test]
fn writers_keep_each_other_out() {
    model(|| {
        let memory = node(&[(20, 2)]);
        let other = memory.clone();
        let writer = thread::spawn(move || other.put(10, 1));
        memory.put(30, 3);
        writer.join().expect("no panic");
        assert_eq!(memory.all(), [(10, 1), (20, 2), (30, 3)]);
    });
}

#[test]
fn the_way_down_is_never_too_far_right() {
    model(|| {
        let memory = node(&[(20, 200), (40, 400)]);
        let other = memory.clone();
        let writer = thread::spawn(move || other.put(30, 300));
        let (from, child) = memory.read(|node, mode| node.child(35, mode));
        assert!(child == 200 || child == 300, "{child}");
        assert!(from == child / 10, "{from}");
        writer.join().expect("no panic");
    });
}

#[test]
fn nobody_goes_too_far_while_a_leaf_is_taken_out() {
    for start in [1, 2] {
        model(move || {
            let memory = chain();
            let other = memory.clone();
            let writer = thread::spawn(move || other.unlink());
            let (at, found) = memory.seek(place(start), 15);
            assert!(
                at != place(3),
                "a writer would put it where nobody finds it"
            );
            assert_eq!(found, None, "what a split left came to life");
            assert_eq!(memory.seek(place(start), 30).1, Some(300));
            writer.join().expect("no panic");
            assert_eq!(memory.seek(place(start), 15), (place(1), None));
            assert_eq!(memory.seek(place(start), 30).1, Some(300));
        });
    }
}

#[test]
fn who_waits_for_a_leaf_that_is_taken_out_goes_to_the_one_that_has_its_range() {
    for start in [1, 2] {
        model(move || {
            let memory = chain();
            let other = memory.clone();
            let writer = thread::spawn(move || other.unlink());
            memory.put_from(place(start), 15, 150);
            assert_eq!(memory.seek(place(start), 15).1, Some(150));
            writer.join().expect("no panic");
            assert_eq!(memory.seek(place(1), 15).1, Some(150));
            assert_eq!(memory.seek(place(2), 15).1, Some(150));
            assert_eq!(memory.seek(place(1), 5).1, Some(50));
        });
    }
}

#[test]
fn an_entry_that_goes_leads_nobody_too_far_right() {
    model(|| {
        let memory = node(&[(20, 200), (30, 300), (40, 400)]);
        let other = memory.clone();
        let writer = thread::spawn(move || other.remove(30));
        let (from, child) = memory.read(|node, mode| node.child(35, mode));
        assert!(child == 200 || child == 300, "{child}");
        assert!(from == child / 10, "{from}");
        let (from, child) = memory.read(|node, mode| node.child(45, mode));
        assert!(from == child / 10 && from <= 40, "{from}");
        writer.join().expect("no panic");
        assert_eq!(memory.read(|node, mode| node.child(35, mode)), (20, 200));
    });
}

/// Whole trees, which loom would never be done with.
#[cfg(shuttle)]
mod trees {
    use super::{Memory, Mode, Word, thread};
    use crate::fast_fair::FastFair;
    use crate::heap::Heap;
    use crate::{Eras, Index, Ordered, Persistent};
    use nyx_base::WorkerId;
    use std::ops::ControlFlow;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};

    const WRITER: WorkerId = WorkerId(0);

    type Tree = FastFair<Memory, 6>;

    /// A tree of two leaves, the first with five keys. The last held 6 and 7, holds nothing, and
    /// its parent does not name it any more.
    fn tree() -> Tree {
        /// The superblock, the table, and chunks for the leaves and the root.
        const BYTES: u64 = 4 * 4096;
        let memory = Memory((0..BYTES / 8).map(|_| Word::new(0)).collect());
        let heap = Heap::format(memory, 4096, 1, Arc::new(Eras::new(1))).expect("it fits");
        let tree = Tree::open(Arc::new(heap), 0, WRITER).expect("an empty tree");
        (1..8).for_each(|key| assert_eq!(tree.put(WRITER, key, key), Ok(None)));
        for (key, level) in [(6, 0), (7, 0), (6, 1)] {
            let node = tree.descend(key, level).expect("sound");
            let (node, spot) = tree.lock(node, key, Mode::Left).expect("sound");
            assert!(spot.found);
            node.remove(spot.slot);
        }
        assert_eq!(tree.check().expect("sound").nodes, 3);
        tree
    }

    /// The rest of what is done to take the last leaf out.
    fn unlink(tree: &Tree) {
        let generation = tree.heap().generation();
        let left = tree.descend(5, 0).expect("sound");
        let left = left.lock(generation, Mode::Right);
        let last = tree.neighbour(*left).expect("sound");
        let last = last.lock(generation, Mode::Right);
        left.absorb(&last, 5, generation);
    }

    /// `look`, again and again, beside a writer who takes the last leaf out.
    fn beside_unlinking(look: fn(&Tree)) {
        let program = move || {
            let tree = Arc::new(tree());
            let is_over = Arc::new(AtomicBool::new(false));
            let others = (tree.clone(), is_over.clone());
            let writer = thread::spawn(move || {
                let (tree, is_over) = others;
                unlink(&tree);
                is_over.store(true, Release);
            });
            while !is_over.load(Acquire) {
                look(&tree);
            }
            writer.join().expect("no panic");
            assert_eq!(tree.check().expect("sound").nodes, 2);
        };
        shuttle::check_random(program, 5_000);
    }

    #[test]
    fn who_looks_for_a_key_of_the_last_leaf_while_that_goes_is_told_of_no_damage() {
        beside_unlinking(|tree| assert_eq!(tree.get(7), Ok(None)));
        beside_unlinking(|tree| assert!(tree.get_many(&[7], &mut [None]).is_ok()));
        // From the leaf before it, as one who was on the way while the last was split off.
        beside_unlinking(|tree| {
            let left = tree.descend(5, 0).expect("sound");
            assert_eq!(tree.find(left, 7), Ok(None));
        });
    }

    #[test]
    fn who_asks_for_what_is_below_it_is_told_of_no_damage_either() {
        beside_unlinking(|tree| assert_eq!(tree.floor(7), Ok(Some((5, 5)))));
        beside_unlinking(|tree| {
            let mut keys = Vec::new();
            let each = |key, _| {
                keys.push(key);
                ControlFlow::Continue(())
            };
            tree.scan_back(5..=7, each).expect("sound");
            assert_eq!(keys, [5]);
        });
    }
}
