//! Crashes of small lists, and the bugs that are planted to see whether they are found.

use super::{FLAGS, NODE_BYTES, SkipList};
use crate::contract::{self, Kind, crash};
use nyx_base::Rng;
use nyx_media::Pmem;
use nyx_media::pmem::crash::Recorder;
use std::sync::atomic::Ordering::Relaxed;

struct Lists;

impl Kind for Lists {
    type Small<'p> = SkipList<&'p Recorder>;
    const STEPS: usize = 120;
    const PAIRS: u64 = 4;

    fn scribble(recorder: &Recorder, _: u64, rng: &mut Rng) {
        for at in contract::blocks(recorder, NODE_BYTES) {
            let link = &recorder.words(at, 1)[0];
            link.fetch_or(rng.u64(..) & FLAGS, Relaxed);
        }
    }
}

#[test]
fn what_was_acknowledged_survives_and_the_rest_is_all_or_nothing() {
    crash::survives::<Lists>();
}

#[test]
fn a_kill_and_a_power_failure_after_it_lose_nothing_either() {
    crash::survives_a_kill_first::<Lists>();
}

#[test]
fn nor_does_a_second_kill_while_that_is_put_right() {
    crash::survives_two_kills_first::<Lists>();
}

#[test]
fn who_reads_beside_a_writer_is_told_of_nothing_that_a_crash_takes_back() {
    let places = crash::tells_nothing_that_is_undone::<Lists>();
    assert!(places > 50, "{places}");
}

#[test]
fn it_opens_again_on_a_heap_that_is_swept_meanwhile() {
    contract::opens_again::<Lists>();
}

#[test]
fn a_damaged_image_is_an_error_or_an_answer() {
    let noticed = contract::bears_damage::<Lists>();
    assert!(noticed > 300, "{noticed}");
}

#[test]
fn each_forgotten_flush_and_fence_is_found() {
    let found = crash::forgotten_is_found::<Lists>(&[]);
    assert!(found >= 12, "{found}");
}

#[test]
fn each_store_whose_order_matters_is_found_when_it_comes_too_late() {
    // The link before it is flushed, the mark of a value that is changing, and stores of a word
    // that is stored again afterwards: a late one would undo the other.
    let found = [("lead_to", 1), ("recover", 1), ("unlink", 1), ("update", 1)];
    // Stores that are the last to their line before it is flushed, those to a node that nobody
    // knows of, and those that take a mark away.
    let others = [
        "begin",
        "lead_to",
        "set_class",
        "set_root",
        "update",
        "write",
    ];
    crash::late_is_found::<Lists>(&found, &others);
}
