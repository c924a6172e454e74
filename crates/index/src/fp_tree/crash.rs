//! Crashes of small trees, and the bugs that are planted to see whether they are found.

use super::{FpTree, leaf};
use crate::contract::{self, Kind, crash};
use nyx_base::Rng;
use nyx_media::Pmem;
use nyx_media::pmem::crash::Recorder;
use std::sync::atomic::Ordering::Relaxed;

const SLOTS: usize = 6;
/// The block that a leaf of so few slots takes.
const LEAF_BYTES: u64 = 192;

struct Trees;

impl Kind for Trees {
    type Small<'p> = FpTree<&'p Recorder, SLOTS>;

    fn scribble(recorder: &Recorder, _: u64, rng: &mut Rng) {
        const { assert!(leaf::words(SLOTS) as u64 * 8 <= LEAF_BYTES) };
        for at in contract::blocks(recorder, LEAF_BYTES) {
            recorder.words(at, 1)[0].store(rng.u64(..), Relaxed);
        }
    }
}

#[test]
fn what_was_acknowledged_survives_and_the_rest_is_all_or_nothing() {
    let stores = crash::survives::<Trees>();
    assert!(stores["absorb"] > 100, "{stores:?}");
}

#[test]
fn a_kill_and_a_power_failure_after_it_lose_nothing_either() {
    let stores = crash::survives_a_kill_first::<Trees>();
    assert!(stores["absorb"] > 100, "{stores:?}");
}

#[test]
fn nor_does_a_second_kill_while_that_is_put_right() {
    crash::survives_two_kills_first::<Trees>();
}

#[test]
fn it_opens_again_on_a_heap_that_is_swept_meanwhile() {
    contract::opens_again::<Trees>();
}

#[test]
fn a_sweep_beside_nodes_that_go_marks_none_twice() {
    contract::churn::is_swept_while_nodes_go::<Trees>();
}

#[test]
fn a_damaged_image_is_an_error_or_an_answer() {
    let noticed = contract::bears_damage::<Trees>();
    assert!(noticed > 300, "{noticed}");
}

#[test]
fn each_forgotten_flush_and_fence_is_found() {
    let found = crash::forgotten_is_found::<Trees>(&[]);
    assert!(found >= 15, "{found}");
}

#[test]
fn each_store_whose_order_matters_is_found_when_it_comes_too_late() {
    // The fence before the bits of what is kept, and the fingerprint before the bit.
    let found = [("cede", 1), ("insert", 1)];
    // Stores that are the last to their line before it is flushed, those to a slot that does not
    // hold yet, and those to a leaf that nobody knows of, or that is gone.
    let others = [
        "absorb",
        "begin",
        "cede",
        "insert",
        "remove",
        "set_class",
        "set_root",
        "update",
        "write",
    ];
    crash::late_is_found::<Trees>(&found, &others);
}
