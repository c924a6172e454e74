//! The tree against what every index must do.

use super::FastFair;
use crate::contract;
use crate::{Index, Persistent};
use nyx_base::{Rng, WorkerId};
use nyx_media::Mapped;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Slots of nodes of two lines, so that small trees have many levels.
type Small = FastFair<Mapped, 6>;
type Whole = FastFair<Mapped>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn it_agrees_with_an_ordered_map(steps in contract::any_steps()) {
        contract::agrees::<Small>(&steps);
        contract::agrees::<Whole>(&steps);
    }
}

#[test]
fn in_order_in_reverse_and_shuffled_all_keys_are_found() {
    contract::holds_any_order::<Whole>();
}

#[test]
fn the_greatest_key_is_told_to_whoever_goes_beyond() {
    contract::ends_at_the_greatest_key::<Small>();
}

#[test]
fn somebody_else_is_asked_before_it_decides() {
    contract::asks_before_it_decides::<Small>();
}

#[test]
fn a_full_heap_refuses_new_nodes_and_nothing_else() {
    contract::refuses_when_full::<Small>();
}

#[test]
fn readers_miss_nothing_and_never_go_back_while_writers_write() {
    contract::serves_all_at_once::<Small>();
}

#[test]
fn it_grows_under_writers_and_who_was_told_of_a_key_finds_it() {
    contract::serves_while_it_grows::<Small>();
}

#[test]
fn the_greatest_key_up_to_another_is_found_across_nodes() {
    let worker = WorkerId(0);
    let tree: Small = contract::empty(1 << 20, 1);
    let mut model = BTreeMap::new();
    let mut rng = Rng::with_seed(9);
    for round in 0..4_000 {
        let (key, probe) = (rng.u64(0..500), rng.u64(0..600));
        // First it grows, then whole nodes are emptied.
        if rng.u64(0..4_000) > round {
            tree.put(worker, key, round).expect("room");
            model.insert(key, round);
        } else {
            tree.remove(worker, key).expect("sound");
            model.remove(&key);
        }
        let expected = model.range(..=probe).next_back().map(|(&k, &v)| (k, v));
        assert_eq!(tree.floor(probe), Ok(expected));
    }
    tree.check().expect("sound");
}

#[test]
fn its_memory_is_in_proportion_to_the_keys_of_one_time() {
    contract::churn::stays_small::<Small>();
    contract::churn::stays_small::<Whole>();
}

#[test]
fn whole_nodes_come_and_go_beside_readers_who_miss_nothing() {
    contract::churn::serves_while_keys_come_and_go::<Small>();
}

#[test]
fn the_last_node_comes_and_goes_beside_readers_who_are_told_of_no_damage() {
    contract::churn::serves_while_the_last_node_comes_and_goes::<Small>();
}

#[test]
fn a_node_that_is_linked_already_is_not_named_twice() {
    let worker = WorkerId(0);
    let tree: Small = contract::empty(1 << 20, 1);
    (0..500).for_each(|key| assert_eq!(tree.put(worker, key, key), Ok(None)));
    let entries = || {
        let (mut node, mut entries) = (tree.descend(0, 1).expect("sound"), 0);
        loop {
            entries += (0..6)
                .filter(|&slot| node.key(slot) < node.fence_key())
                .count();
            match node.sibling() {
                0 => return entries,
                next => node = tree.node(next).expect("sound"),
            }
        }
    };
    let before = entries();
    let mut leaf = tree.descend(0, 0).expect("sound");
    while leaf.sibling() != 0 {
        let (low, at) = (leaf.fence_key(), leaf.sibling());
        tree.link(worker, 1, low, at).expect("sound");
        leaf = tree.node(at).expect("sound");
    }
    assert_eq!(entries(), before);
}

#[test]
fn a_node_that_is_gone_is_not_named_again() {
    let worker = WorkerId(0);
    let tree: Small = contract::empty(1 << 20, 1);
    (0..500).for_each(|key| assert_eq!(tree.put(worker, key, key), Ok(None)));
    let left = tree.descend(200, 0).expect("sound");
    let (low, at) = (left.fence_key(), left.sibling());
    let beyond = tree.node(at).expect("sound").fence_key();
    tree.heap().eras().enter(worker);
    (low..beyond).for_each(|key| assert_eq!(tree.remove(worker, key), Ok(Some(key))));
    assert!(tree.node(at).expect("sound").is_gone());
    tree.link(worker, 1, low, at).expect("sound");
    tree.heap().eras().leave(worker);
    let census = tree.check().expect("nothing leads to it");
    assert_eq!(census.entries, 500 - (beyond - low));
}
