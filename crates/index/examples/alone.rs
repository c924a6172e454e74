//! An index without a cache around it: counts how often it was run, in a file that outlives it.
//!
//! `cargo run --release -p nyx-index --example alone -- /tmp/runs.nyx`

use nyx_base::WorkerId;
use nyx_index::fast_fair::FastFair;
use nyx_index::heap::Heap;
use nyx_index::hybrid_plus::HybridPlus;
use nyx_index::{Eras, Index, Ordered, Persistent};
use nyx_media::{Mapped, Origin};
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("the path of a file")?;
    let worker = WorkerId(0);
    // On persistent memory `Mapped::dax`; nothing else changes.
    let file = Mapped::file(Path::new(&path), 16 << 20)?;
    let eras = Arc::new(Eras::new(1));
    let heap = match file.origin() {
        Origin::Fresh => Heap::format(file, 64 << 10, 1, eras)?,
        _ => Heap::open(file, eras)?,
    };
    // Or FpTree, SkipList, or a FastFair alone: all of them are `Persistent`.
    let index: HybridPlus<FastFair<Mapped>> = Persistent::open(Arc::new(heap), 0, worker)?;

    let eras = index.heap().eras().clone();
    eras.enter(worker);
    let runs = index.get(0)?.unwrap_or(0) + 1;
    index.put(worker, 0, runs)?;
    index.put(worker, runs, std::process::id().into())?;
    println!("run {runs}; the last five had these process ids:");
    let mut left = 5;
    index.scan_back(1..=runs, |run, id| {
        println!("  {run}: {id}");
        left -= 1;
        match left {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    })?;
    // Behind the first requests: the map of an index that was there before, and what is free.
    while !index.rebuild(worker, 1000)? {}
    let mut sweep = index.heap().sweep();
    index.mark(&mut sweep)?;
    eras.leave(worker);
    let swept = sweep.finish().map_err(|_| "somebody is within an era")?;
    println!("{} blocks of before are in use", swept.used_blocks);
    Ok(())
}
