//! Crashes of small trees, and the bugs that are planted to see whether they are found.

use super::FastFair;
use crate::contract::{Kind, crash};
use nyx_base::Rng;
use nyx_media::Pmem;
use nyx_media::pmem::crash::Recorder;
use std::sync::atomic::Ordering::Relaxed;

/// Nodes of two lines: the header with two slots, and four slots.
const SLOTS: usize = 6;
const NODE_BYTES: u64 = 128;

struct Trees;

impl Kind for Trees {
    type Small<'p> = FastFair<&'p Recorder, SLOTS>;

    fn scribble(recorder: &Recorder, gone: u64, rng: &mut Rng) {
        for at in crate::contract::blocks(recorder, NODE_BYTES) {
            let lock = &recorder.words(at, 4)[3];
            lock.store(gone << 40 | rng.u64(0..1 << 40), Relaxed);
        }
    }
}

/// Nodes were taken out of the tree, and some stale keys cleared for it.
fn assert_unlinks(stores: &crash::Stores) {
    assert!(stores["absorb"] > 100, "{stores:?}");
    assert!(stores["wipe"] > 10, "{stores:?}");
}

#[test]
fn what_was_acknowledged_survives_and_the_rest_is_all_or_nothing() {
    assert_unlinks(&crash::survives::<Trees>());
}

#[test]
fn a_kill_and_a_power_failure_after_it_lose_nothing_either() {
    assert_unlinks(&crash::survives_a_kill_first::<Trees>());
}

#[test]
fn nor_does_a_second_kill_while_that_is_put_right() {
    crash::survives_two_kills_first::<Trees>();
}

#[test]
fn who_reads_beside_a_writer_is_told_of_nothing_that_a_crash_takes_back() {
    let places = crash::tells_nothing_that_is_undone::<Trees>();
    assert!(places > 50, "{places}");
}

#[test]
fn it_opens_again_on_a_heap_that_is_swept_meanwhile() {
    crate::contract::opens_again::<Trees>();
}

#[test]
fn a_sweep_beside_nodes_that_go_marks_none_twice() {
    crate::contract::churn::is_swept_while_nodes_go::<Trees>();
}

#[test]
fn a_damaged_image_is_an_error_or_an_answer() {
    let noticed = crate::contract::bears_damage::<Trees>();
    assert!(noticed > 300, "{noticed}");
}

#[test]
fn each_forgotten_flush_and_fence_is_found() {
    let found = crash::forgotten_is_found::<Trees>(&[]);
    assert!(found >= 20, "{found}");
}

#[test]
fn each_store_whose_order_matters_is_found_when_it_comes_too_late() {
    // Both stores of an entry, in both directions, and the sibling before the fence.
    // And the fence before the sibling where a node takes over the range of the next.
    let found = [("absorb", 1), ("cede", 1), ("fill", 2), ("remove", 2)];
    // Stores that are the last to their line before it is flushed, those to a node that nobody
    // knows of, or that is gone, and keys that are cleared, in any order.
    let others = [
        "absorb",
        "begin",
        "cede",
        "lead_to",
        "set_class",
        "set_root",
        "update",
        "wipe",
        "write",
    ];
    crash::late_is_found::<Trees>(&found, &others);
}
