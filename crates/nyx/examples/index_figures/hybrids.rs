//! HybridIndex beside HybridIndex+ (HybridIndex+ section 3.1, figure 17): look-ups, updates, mixes
//! and ranges by one thread and two, and how soon each answers after a crash.
//!
//! A crash here is the end of an index that nobody closes, on memory that is opened again by a
//! thread with nothing near.
//!
//! What it never does: have a thread of its own for what is put off.

use crate::report::{Report, Row};
use crate::rig::{Law, Memory, Pace, Subject, Work, key, load, sum};
use crate::{Bench, THREADS_MAX, made};
use nyx_base::WorkerId;
use nyx_index::fast_fair::FastFair;
use nyx_index::heap::Heap;
use nyx_index::hybrid::Hybrid;
use nyx_index::hybrid_plus::{HybridPlus, Update};
use nyx_index::pm_hash::PmHash;
use nyx_index::{Eras, Ordered, Persistent};
use std::ops::ControlFlow;
use std::sync::Arc;

const HYBRID: &str = "HybridIndex";
const MODES: [(&str, Update); 3] = [
    ("HybridIndex+, synchronous", Update::Synchronous),
    ("HybridIndex+, asynchronous", Update::Asynchronous),
    ("HybridIndex+, adaptive", Update::Adaptive),
];
const WORKS: [Work; 5] = [
    Work::Points { writes_pct: 0 },
    Work::Points { writes_pct: 5 },
    Work::Points { writes_pct: 50 },
    Work::Points { writes_pct: 100 },
    Work::Ranges,
];
/// So much is settled or rebuilt at a time.
const STEP: usize = 4096;
/// As many as ever run together.
const WORKERS: u16 = THREADS_MAX as u16;
const WORKER: WorkerId = WorkerId(0);

type Baseline<'a, C> = Hybrid<PmHash<&'a Memory<C>>>;
type Plus<'a, C> = HybridPlus<FastFair<&'a Memory<C>>>;

pub(crate) fn run<C: Pace>(bench: &Bench<C>, report: &mut Report) {
    let memories = [bench.memory(), bench.memory()];
    let eras = Arc::new(Eras::new(WORKERS));
    let hybrid: Baseline<'_, C> = made(&memories[0], &eras);
    let mut plus: Plus<'_, C> = made(&memories[1], &eras);
    eprintln!("hybrids: loading {} keys", bench.keys);
    let settle = |index: &Baseline<'_, C>| {
        index.settle(STEP).expect("room");
    };
    let insert = load(&hybrid, (bench.keys, &bench.clock), &eras, |_| {
        settle(&hybrid)
    });
    report.tell(format!("{HYBRID}: {insert:.0} ns of CPU per insert"));
    let insert = load(&plus, (bench.keys, &bench.clock), &eras, |_| ());
    let name = MODES[0].0;
    report.tell(format!("{name}: {insert:.0} ns of CPU per insert"));
    for round in 0..bench.rounds {
        eprintln!("hybrids: round {} of {}", round + 1, bench.rounds);
        for work in WORKS {
            for law in [Law::Uniform, Law::Zipf(bench.theta)] {
                for &threads in bench.threads {
                    let row = |candidate| Row::new("hybrids", candidate, law, work, threads);
                    let (of, how) = ((bench.keys, law), (bench.ops, threads));
                    let behind = &|_| settle(&hybrid);
                    let (index, eras) = (&hybrid, &*eras);
                    let subject = Subject {
                        index,
                        eras,
                        behind,
                    };
                    let found = subject.run(of, work, how, (round, &bench.clock));
                    report.note(row(HYBRID), found);
                    for (name, mode) in MODES {
                        plus = plus.updating(mode);
                        let settle = |worker| plus.settle(worker, STEP).expect("room");
                        let behind = &|worker| {
                            settle(worker);
                        };
                        let subject = Subject {
                            index: &plus,
                            eras,
                            behind,
                        };
                        let found = subject.run(of, work, how, (round, &bench.clock));
                        while settle(WORKER) > 0 {}
                        report.note(row(name), found);
                    }
                }
            }
        }
    }
    drop((hybrid, plus));
    restarts(bench, report, &memories);
}

fn restarts<C: Pace>(bench: &Bench<C>, report: &mut Report, memories: &[Memory<C>; 2]) {
    for round in 1..=bench.rounds {
        eprintln!("hybrids: crash {round} of {}", bench.rounds);
        let rebuild = |index: &Baseline<'_, C>| index.rebuild(STEP).expect("room");
        report.tell(restart(bench, HYBRID, &memories[0], rebuild));
        let rebuild = |index: &Plus<'_, C>| index.rebuild(WORKER, STEP).expect("room");
        report.tell(restart(bench, "HybridIndex+", &memories[1], rebuild));
    }
}

/// Opens what is on `memory` and says when it answers, and when it is what it was. `rebuild` makes
/// a step and tells whether all is built.
fn restart<'a, C: Pace, I: Persistent<&'a Memory<C>> + Ordered>(
    bench: &Bench<C>,
    name: &str,
    memory: &'a Memory<C>,
    rebuild: impl Fn(&I) -> bool + Sync,
) -> String {
    bench.clock.prepare(1);
    let open = || {
        let _running = bench.clock.begin(0);
        let begin = bench.clock.now();
        let ms = || bench.clock.now().since(begin).0 as f64 / 1e6;
        let heap = Heap::open(memory, Arc::new(Eras::new(WORKERS))).expect("a heap");
        let index = I::open(Arc::new(heap), 0, WORKER).expect("an index");
        let eras = index.heap().eras().clone();
        eras.enter(WORKER);
        let value = index.get(key(0)).expect("sound");
        value.expect("it was put");
        let point = ms();
        let is_answered = || {
            let one = |_, _| ControlFlow::Break(());
            index.scan(key(0)..=u64::MAX, one).is_ok()
        };
        while !is_answered() && !rebuild(&index) {}
        sum(&index, key(0));
        let range = ms();
        while !rebuild(&index) {}
        (point, range, ms())
    };
    let opened = std::thread::scope(|scope| scope.spawn(open).join());
    let (point, range, all) = opened.expect("no panic");
    format!(
        "{name} after a crash: first point after {point:.3} ms, first range after {range:.3} ms, \
         all built after {all:.0} ms"
    )
}
