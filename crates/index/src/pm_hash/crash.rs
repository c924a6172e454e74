//! Crashes of small tables, and the bugs that are planted to see whether they are found.

use super::PmHash;
use crate::contract::{self, Kind, crash};
use crate::heap::Heap;
use crate::ordered::Census;
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
fn who_reads_beside_a_writer_is_told_of_nothing_that_a_crash_takes_back() {
    let places = crash::tells_nothing_that_is_undone::<Tables>();
    assert!(places > 50, "{places}");
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

/// Shows each state that a power failure may leave while 200 keys are put, as what is counted in it
/// and how many were acknowledged.
fn each_state(recorder: &mut Recorder, mut see: impl FnMut(Census, u64)) {
    fn open(recorder: &Recorder) -> Table<'_> {
        let heap = Heap::open(recorder, Arc::new(Eras::new(1))).expect("a heap");
        Table::open(Arc::new(heap), 0, W).expect("a table")
    }
    Heap::format(&*recorder, 4096, 1, Arc::new(Eras::new(1))).expect("it fits");
    recorder.restart();
    let table = open(recorder);
    for key in 0..200 {
        assert_eq!(table.put(W, key, key), Ok(None));
        recorder.acknowledge(key + 1);
    }
    recorder.crashes(Depth::default(), |crash| {
        let recorder = Recorder::with_image(crash.image);
        let census = open(&recorder).check().expect("sound");
        see(census, crash.acknowledged);
    });
}

#[test]
fn splits_under_way_and_tables_below_tables_are_among_the_states() {
    let [mut under_way, mut lags, mut levels] = [0; 3];
    each_state(&mut Recorder::new(64 << 10), |census, put| {
        assert!((put..=put + 1).contains(&census.entries));
        under_way += u32::from(census.leftovers > 0);
        lags += u32::from(census.unlinked > 0);
        levels = levels.max(census.levels);
    });
    println!("{under_way} under way, in {lags} the directory lags, {levels} levels");
    assert!(under_way > 100 && lags > 100 && levels > 2);
}

#[test]
fn the_directory_misses_the_last_split_at_most() {
    /// How many segments it does not know of, at most, after the last key.
    fn unlinked_most(recorder: &mut Recorder) -> u64 {
        let mut most = 0;
        each_state(recorder, |census, put| {
            if put == 200 {
                most = most.max(census.unlinked);
            }
        });
        most
    }
    let mut recorder = Recorder::new(64 << 10);
    assert!(unlinked_most(&mut recorder) <= 1);
    let told =
        |&(act, site): &(Act, Site)| act == Act::Flush && crash::function_of(site) == "tell_table";
    let (_, site) = recorder.sites().into_keys().find(told).expect("it is told");
    let mut forgetful = Recorder::new(64 << 10).with_mutation(Mutation::NoFlush(site));
    assert!(unlinked_most(&mut forgetful) > 1);
}
