//! Blocks, restarts, sweeps, and what is no heap.

use super::*;
use nyx_media::pmem::crash::Recorder;
use std::collections::BTreeSet;

const W: WorkerId = WorkerId(0);
const CHUNK: u64 = 4096;
const NODE: Class = Class::of(512).expect("a class");
const RECORD: Class = Class::of(64).expect("a class");

fn eras() -> Arc<Eras> {
    Arc::new(Eras::new(2))
}

/// A heap of `chunks` chunks: the superblock and the table take two.
fn heap(pm: &Recorder) -> Heap<&Recorder> {
    Heap::format(pm, CHUNK, 7, eras()).expect("it fits")
}

fn memory(chunks: u64) -> Recorder {
    Recorder::new((chunks + 2) * CHUNK)
}

/// All blocks of a size that there are.
fn drain(heap: &Heap<&Recorder>, class: Class) -> BTreeSet<u64> {
    let mut blocks = BTreeSet::new();
    while let Ok(at) = heap.take(W, class) {
        assert!(blocks.insert(at), "{at} was handed out twice");
    }
    blocks
}

#[test]
fn blocks_are_distinct_aligned_and_of_their_size_until_there_are_none() {
    let pm = memory(5);
    let heap = heap(&pm);
    let nodes: Vec<u64> = (0..16).map(|_| heap.take(W, NODE).expect("room")).collect();
    let records = drain(&heap, RECORD);
    assert_eq!(records.len(), 3 * 64);
    let mut ends: Vec<(u64, u64)> = nodes.iter().map(|&at| (at, at + 512)).collect();
    ends.extend(records.iter().map(|&at| (at, at + 64)));
    ends.sort_unstable();
    assert!(
        ends.windows(2).all(|pair| pair[0].1 <= pair[1].0),
        "they overlap"
    );
    assert!(nodes.iter().all(|at| at % PM_UNIT_BYTES == 0));
    assert!(nodes.iter().all(|&at| heap.class_of(at) == Some(NODE)));
    assert_eq!(heap.class_of(nodes[0] + 64), None, "inside of a block");
    assert_eq!(heap.class_of(0), None);
    let full = heap.take(W, NODE).expect_err("nothing is left");
    assert_eq!(full.asked_bytes, 512);
    assert_eq!(
        full.to_string(),
        "no block of 512 bytes is left in a heap of 28 KiB"
    );
    heap.give_back(W, nodes[3]);
    assert_eq!(heap.take(W, NODE), Ok(nodes[3]));
}

#[test]
fn a_retired_block_is_used_again_when_its_era_is_over() {
    let pm = memory(1);
    let heap = heap(&pm);
    let blocks: Vec<u64> = drain(&heap, NODE).into_iter().collect();
    heap.eras().enter(WorkerId(1));
    heap.retire(W, blocks[0]);
    assert!(heap.take(W, NODE).is_err(), "worker 1 may still look at it");
    heap.eras().leave(WorkerId(1));
    assert_eq!(heap.take(W, NODE), Ok(blocks[0]));
}

#[test]
fn after_a_restart_only_what_is_reachable_is_in_use() {
    let mut pm = memory(4);
    let (mut kept, count) = {
        let heap = heap(&pm);
        let records: Vec<u64> = (0..100)
            .map(|_| heap.take(W, RECORD).expect("room"))
            .collect();
        heap.take(W, NODE).expect("room");
        heap.set_root(2, records[7]);
        (records, 100)
    };
    pm.restart();
    let heap = Heap::open(&pm, eras()).expect("a heap");
    assert_eq!(
        (heap.read_root(2), heap.generation(), heap.id()),
        (kept[7], 2, 7)
    );
    assert!(!heap.is_swept());
    // Before the sweep there are new chunks only: one is left.
    let new = drain(&heap, RECORD);
    assert!(new.len() == 64 && new.is_disjoint(&kept.iter().copied().collect()));

    let mut sweep = heap.sweep();
    let freed: Vec<u64> = kept.drain(90..).collect();
    for &at in &kept {
        sweep.mark(at, RECORD).expect("a block");
    }
    // One that is freed after it was seen.
    heap.give_back(W, kept[0]);
    let swept = sweep.finish().expect("nobody is within an era");
    assert_eq!(swept.used_blocks, 89);
    assert_eq!(swept.empty_chunks, 1, "the node's");
    assert!(heap.is_swept());
    let again = drain(&heap, RECORD);
    let expected: BTreeSet<u64> = freed.iter().copied().chain([kept[0]]).collect();
    assert!(again.is_superset(&expected));
    assert!(kept[1..].iter().all(|at| !again.contains(at)));
    assert_eq!(
        again.len(),
        2 * 64 - count + 11 + 64,
        "what was left, and the node's chunk"
    );
}

#[test]
fn what_is_in_limbo_when_a_sweep_ends_is_free_once() {
    let mut pm = memory(2);
    let at = {
        let heap = heap(&pm);
        heap.take(W, NODE).expect("room")
    };
    pm.restart();
    let heap = Heap::open(&pm, eras()).expect("a heap");
    let other = WorkerId(1);
    heap.eras().enter(other);
    let sweep = heap.sweep();
    heap.retire(W, at);
    let sweep = sweep
        .finish()
        .expect_err("somebody was within an era all the time");
    heap.eras().enter(other);
    let swept = sweep.finish().expect("all are further");
    assert_eq!(swept.used_blocks, 1, "it waits in limbo");
    heap.eras().leave(other);
    heap.retire(W, heap.take(W, NODE).expect("room"));
    assert!(drain(&heap, NODE).contains(&at));
}

#[test]
fn references_that_cannot_be_right_are_told() {
    let mut pm = memory(2);
    let at = heap(&pm).take(W, NODE).expect("room");
    pm.restart();
    let heap = Heap::open(&pm, eras()).expect("a heap");
    let mut sweep = heap.sweep();
    sweep.mark(at, NODE).expect("a block");
    assert_eq!(sweep.mark(at, NODE), Err(Damage::Twice { at }));
    for at in [0, at + 8, at + 256, u64::MAX, 1 << 40] {
        assert_eq!(
            sweep.mark(at, NODE),
            Err(Damage::NoBlock { at, class: NODE })
        );
    }
    assert!(matches!(
        sweep.mark(at, RECORD),
        Err(Damage::NoBlock { .. })
    ));
}

#[test]
fn what_is_no_heap_or_another_one_is_refused() {
    let pm = memory(2);
    let open = |pm: &Recorder| Heap::open(pm, eras()).expect_err("no heap").to_string();
    let changed = |word: usize, value: u64| {
        drop(heap(&pm));
        let mut image = pm.image();
        image[word] = value;
        open(&Recorder::with_image(&image))
    };
    assert!(open(&memory(2)).starts_with("no heap: it begins with 0x0000000000000000"));
    assert!(changed(1, 9).starts_with("a heap of format version 9; this build reads version 1"));
    assert!(changed(3, 8192).contains("superblock is damaged"));
    assert!(changed(512, 99).contains("chunk 0 serves size class 99"));
    drop(heap(&pm));
    let cut = Recorder::with_image(&pm.image()[..1024]);
    assert_eq!(
        open(&cut),
        "a heap of 16 KiB on a medium of 8 KiB: it was cut off"
    );
    let small = Recorder::new(64);
    assert!(open(&small).contains("too small"));
    for chunk_bytes in [0, 5000, 2048, 4 << 20] {
        let refused = Heap::format(&pm, chunk_bytes, 1, eras()).expect_err("no such chunks");
        assert_eq!(refused, HeapError::ChunkBytes { chunk_bytes });
    }
}
