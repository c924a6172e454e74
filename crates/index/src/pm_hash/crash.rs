//! Crashes of small tables, and the bugs that are planted to see whether they are found.

use super::PmHash;
use crate::contract::{self, Kind, crash};
use crate::heap::Heap;
use crate::{Eras, Index, Persistent};
use nyx_base::{Rng, WorkerId};
use nyx_media::Pmem;
use nyx_media::pmem::crash::{Act, Depth, Mutation, Recorder, Site};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const W: WorkerId = WorkerId(0);
const BUCKETS: usize = 2;
const BUCKET_BYTES: u64 = 256;

type Table<'p> = PmHash<&'p Recorder, BUCKETS, 4, 2>;

struct Tables;

impl Kind for Tables {
    type Small<'p> = Table<'p>;

    fn scribble(recorder: &Recorder, gone: u64, rng: &mut Rng) {
        for at in contract::blocks(recorder, BUCKETS as u64 * BUCKET_BYTES) {
            for bucket in [at, at + BUCKET_BYTES] {
                let lock = &recorder.words(bucket, 1)[0];
                lock.store(gone << 40 | rng.u64(0..1 << 40), Relaxed);
            }
        }
    }
}

#[test]
fn what_was_acknowledged_survives_and_the_rest_is_all_or_nothing() {
    crash::survives::<Tables>();
}

#[test]
fn a_kill_and_a_power_failure_after_it_lose_nothing_either() {
    crash::survives_a_kill_first::<Tables>();
}

#[test]
fn nor_does_a_second_kill_while_that_is_put_right() {
    crash::survives_two_kills_first::<Tables>();
}

#[test]
fn it_opens_again_on_a_heap_that_is_swept_meanwhile() {
    contract::opens_again::<Tables>();
}

#[test]
fn a_damaged_image_is_an_error_or_an_answer() {
    let noticed = contract::bears_damage::<Tables>();
    assert!(noticed > 300, "{noticed}");
}

#[test]
fn each_forgotten_flush_and_fence_is_found() {
    let found = crash::forgotten_is_found::<Tables>(&[("tell_table", Act::Flush)]);
    assert!(found >= 19, "{found}");
}

#[test]
fn each_store_whose_order_matters_is_found_when_it_comes_too_late() {
    // The fingerprint before the bit.
    let found = [("store_tag", 1)];
    // Stores that are the last to their line before it is flushed, those to a slot that does not
    // hold or a bucket that does not count yet, and those to what nobody knows of.
    let others = [
        "begin",
        "cede",
        "draft",
        "draft_directory",
        "insert",
        "set_class",
        "set_link",
        "set_root",
        "store_meta",
        "tell_table",
        "update",
    ];
    crash::late_is_found::<Tables>(&found, &others);
}

/// How many segments the directory does not know of, at most, if the power fails after many splits.
fn unlinked_most(recorder: &mut Recorder) -> u64 {
    fn open(recorder: &Recorder) -> Table<'_> {
        let heap = Heap::open(recorder, Arc::new(Eras::new(1))).expect("a heap");
        Table::open(Arc::new(heap), 0, W).expect("a table")
    }
    Heap::format(&*recorder, 4096, 1, Arc::new(Eras::new(1))).expect("it fits");
    recorder.restart();
    let table = open(recorder);
    (0..200).for_each(|key| assert_eq!(table.put(W, key, key), Ok(None)));
    recorder.acknowledge(200);
    let mut most = 0;
    recorder.crashes(Depth::default(), |crash| {
        if crash.acknowledged == 200 {
            let recorder = Recorder::with_image(crash.image);
            let census = open(&recorder).check().expect("sound");
            assert_eq!(census.entries, 200);
            most = most.max(census.unlinked);
        }
    });
    most
}

#[test]
fn the_directory_misses_the_last_split_at_most() {
    let mut recorder = Recorder::new(64 << 10);
    assert!(unlinked_most(&mut recorder) <= 1);
    let told =
        |&(act, site): &(Act, Site)| act == Act::Flush && crash::function_of(site) == "tell_table";
    let (_, site) = recorder.sites().into_keys().find(told).expect("it is told");
    let mut forgetful = Recorder::new(64 << 10).with_mutation(Mutation::NoFlush(site));
    assert!(unlinked_most(&mut forgetful) > 1);
}
