//! Every state that a crash can leave of small trees: recovery, what must be there, and going on.
//! Also after a process was killed and another one went on before the power failed.

use super::tests::listed;
use super::{FastFair, KEY_MAX};
use crate::eras::Eras;
use crate::heap::Heap;
use nyx_base::{Rng, WorkerId};
use nyx_media::Pmem;
use nyx_media::pmem::crash::{Act, Crash, Depth, Killed, Mutation, Recorder, Site};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const W: WorkerId = WorkerId(0);
const MEDIUM_BYTES: u64 = 40 << 10;
const CHUNK_BYTES: u64 = 4096;
/// Nodes of two lines: the header with two slots, and four slots.
const SLOTS: usize = 6;
const NODE_BYTES: u64 = 128;
/// Where the heap's chunks begin: behind superblock and table.
const CHUNKS_AT: u64 = 8192;
/// Where the tree's root stands.
const ROOT_WORD: usize = 16;
/// Where the generation stands.
const GENERATION_WORD: usize = 8;

type Model = BTreeMap<u64, u64>;
type Tree<'p> = FastFair<&'p Recorder, SLOTS>;

#[derive(Clone, Copy, Debug)]
enum Step {
    Put(u64, u64),
    Remove(u64),
}

impl Step {
    fn apply(self, model: &mut Model) -> Option<u64> {
        match self {
            Step::Put(key, value) => model.insert(key, value),
            Step::Remove(key) => model.remove(&key),
        }
    }

    fn run(self, tree: &Tree<'_>) -> Result<Option<u64>, String> {
        let done = match self {
            Step::Put(key, value) => tree.put(W, key, value),
            Step::Remove(key) => tree.remove(W, key),
        };
        done.map_err(|error| format!("{self:?}: {error}"))
    }

    fn key(self) -> u64 {
        match self {
            Step::Put(key, _) | Step::Remove(key) => key,
        }
    }
}

/// Steps on `keys` keys; values repeat, so that neighbours have equal ones.
fn steps(seed: u64, count: usize, keys: u64, removes: f64) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let mut step = || {
        let key = rng.u64(0..keys) * 3;
        match rng.f64() < removes {
            true => Step::Remove(key),
            false => Step::Put(key, rng.u64(0..3)),
        }
    };
    (0..count).map(|_| step()).collect()
}

/// What one process did to the memory, one after the other.
#[derive(Debug)]
struct Life {
    steps: Vec<Step>,
    /// Killed after so many stores, flushes and fences.
    acts: Option<u64>,
    /// Whether it looks at everything before it does anything.
    looks: bool,
}

fn open(pm: &Recorder) -> Result<Tree<'_>, String> {
    let eras = Arc::new(Eras::new(1));
    let heap = Heap::open(pm, eras).map_err(|error| error.to_string())?;
    FastFair::open(Arc::new(heap), 0, W).map_err(|error| error.to_string())
}

/// A formatted memory, from which on is recorded.
fn fresh() -> Recorder {
    let mut recorder = Recorder::new(MEDIUM_BYTES);
    let eras = Arc::new(Eras::new(1));
    Heap::format(&recorder, CHUNK_BYTES, 7, eras).expect("it fits");
    recorder.restart();
    recorder
}

/// What must be there after so many acknowledgements: one model, or two where a step was under way.
struct Promise {
    after: Vec<Vec<Model>>,
    /// The generation after so many.
    generations: Vec<u64>,
}

impl Promise {
    fn new() -> Promise {
        Promise {
            after: vec![vec![Model::new()]],
            generations: vec![0],
        }
    }

    /// A process runs; each step and its first look are acknowledged.
    fn live(&mut self, recorder: &Recorder, life: &Life) -> Result<(), String> {
        let run = || self.run(recorder, life);
        recorder.kill_after(life.acts);
        let done = catch_unwind(AssertUnwindSafe(run));
        recorder.kill_after(None);
        match done {
            Ok(done) => done,
            Err(killed) if killed.is::<Killed>() => Ok(()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn run(&mut self, recorder: &Recorder, life: &Life) -> Result<(), String> {
        let tree = open(recorder)?;
        self.acknowledge(recorder, tree.heap().generation(), None);
        let mut models = self.after.last().expect("never empty").clone();
        if life.looks || models.len() == 1 {
            let found = contents(&tree, &keys(&life.steps))?;
            if !models.contains(&found) {
                return Err(format!("the next process found {found:?}, not {models:?}"));
            }
            models = vec![found];
            self.acknowledge(recorder, tree.heap().generation(), Some(models.clone()));
        }
        for step in &life.steps {
            let before = models.clone();
            let mut had: Vec<_> = Vec::new();
            for model in &mut models {
                had.push(step.apply(model));
            }
            // From here on the step may be there.
            let both: BTreeSet<_> = before.iter().chain(&models).cloned().collect();
            *self.after.last_mut().expect("never empty") = both.into_iter().collect();
            let found = step.run(&tree)?;
            // What it answers tells which of the models it was.
            let is_it = |at: &usize| had[*at] == found;
            let left: Vec<_> = (0..models.len()).filter(is_it).collect();
            models = left.iter().map(|&at| models[at].clone()).collect();
            if models.is_empty() {
                return Err(format!("{step:?} gave {found:?} instead of {had:?}"));
            }
            self.acknowledge(recorder, tree.heap().generation(), Some(models.clone()));
        }
        Ok(())
    }

    fn acknowledge(&mut self, recorder: &Recorder, generation: u64, models: Option<Vec<Model>>) {
        let models = models.unwrap_or_else(|| self.after.last().expect("never empty").clone());
        self.after.push(models);
        self.generations.push(generation);
        recorder.acknowledge(self.after.len() as u64 - 1);
    }
}

fn keys(steps: &[Step]) -> Vec<u64> {
    let keys: BTreeSet<u64> = steps.iter().map(|step| step.key()).collect();
    keys.into_iter().collect()
}

/// What a tree holds, by points and by scans both ways, which must agree.
fn contents(tree: &Tree<'_>, keys: &[u64]) -> Result<Model, String> {
    let error = |error: super::Unsound| error.to_string();
    let up = listed(|each| tree.scan(0..=KEY_MAX, each)).map_err(error)?;
    let mut down = listed(|each| tree.scan_back(0..=KEY_MAX, each)).map_err(error)?;
    down.reverse();
    let mut points = Model::new();
    for key in keys.iter().copied().chain(up.iter().map(|entry| entry.0)) {
        let value = tree.get(key).map_err(error)?;
        points.extend(value.map(|value| (key, value)));
    }
    let listed: Vec<_> = points.iter().map(|(&key, &value)| (key, value)).collect();
    match up == listed && down == up {
        true => Ok(points),
        false => Err(format!("points {listed:?}, up {up:?}, down {down:?}")),
    }
}

/// Recovers from one state, looks at everything, goes on with other steps and looks again.
fn check(crash: &Crash<'_>, promise: &Promise, rng: &mut Rng) -> Result<(), String> {
    let at = crash.acknowledged as usize;
    if crash.image[GENERATION_WORD] < promise.generations[at] {
        return Err("a generation would come again".to_owned());
    }
    let mut recorder = Recorder::with_image(crash.image);
    scribble_locks(&recorder, rng);
    recorder.restart();
    let tree = open(&recorder)?;
    let sound = |tree: &Tree<'_>| tree.check().map_err(|error| error.to_string());
    sound(&tree)?;
    let mut keys: Vec<u64> = promise.after[at]
        .iter()
        .flat_map(|m| m.keys())
        .copied()
        .collect();
    keys.push(0);
    let mut found = contents(&tree, &keys)?;
    if !promise.after[at].contains(&found) {
        let expected = &promise.after[at];
        return Err(format!("after {at} there is {found:?}, not {expected:?}"));
    }
    let mut sweep = tree.heap().sweep();
    let reachable = tree.mark(&mut sweep).map_err(|error| error.to_string())?;
    let swept = sweep.finish().map_err(|_| "nobody is within an era")?;
    // A first leaf that was not there yet is new.
    let old = if crash.image[ROOT_WORD] == 0 {
        0
    } else {
        reachable
    };
    if swept.used_blocks != old {
        return Err(format!("{reachable} nodes, and {swept:?}"));
    }
    for at in 0..12 {
        let key = keys[rng.usize(0..keys.len())] + u64::from(rng.bool());
        let step = match rng.u8(0..3) {
            0 => Step::Remove(key),
            _ => Step::Put(key, 100 + at),
        };
        let (had, expected) = (step.run(&tree)?, step.apply(&mut found));
        if had != expected {
            return Err(format!("going on, {step:?} gave {had:?}, not {expected:?}"));
        }
    }
    let after = contents(&tree, &keys)?;
    if after != found {
        return Err(format!("after going on there is {after:?}, not {found:?}"));
    }
    sound(&tree).map(|_| ())
}

/// Locks on the medium may say anything of a process that is gone.
fn scribble_locks(recorder: &Recorder, rng: &mut Rng) {
    if rng.bool() {
        return;
    }
    let gone = recorder.words(0, GENERATION_WORD + 1)[GENERATION_WORD].load(Relaxed);
    for at in (CHUNKS_AT..recorder.size_bytes()).step_by(NODE_BYTES as usize) {
        let lock = &recorder.words(at, 4)[3];
        lock.store(gone << 40 | rng.u64(0..1 << 40), Relaxed);
    }
}

/// How many states were fine, or what was wrong with the first that was not.
fn explore(recorder: &Recorder, lives: &[Life], depth: Depth) -> Result<u64, String> {
    let mut promise = Promise::new();
    for life in lives {
        promise.live(recorder, life)?;
    }
    let mut rng = Rng::with_seed(depth.seed);
    let mut wrong = None;
    let states = recorder.crashes(depth, |crash| {
        if wrong.is_none() {
            wrong = check(crash, &promise, &mut rng).err();
        }
    });
    wrong.map_or(Ok(states), Err)
}

fn one_life(steps: Vec<Step>) -> [Life; 1] {
    [Life {
        steps,
        acts: None,
        looks: true,
    }]
}

/// Two processes; the first is killed after so many acts.
fn two_lives(seed: u64, acts: u64, [first, second]: [usize; 2]) -> [Life; 2] {
    [
        Life {
            steps: steps(seed, first, 40, 0.3),
            acts: Some(acts),
            looks: true,
        },
        Life {
            steps: steps(seed + 1000, second, 40, 0.5),
            acts: None,
            looks: (seed + acts).is_multiple_of(2),
        },
    ]
}

#[test]
fn what_was_acknowledged_survives_and_the_rest_is_all_or_nothing() {
    let mut states = 0;
    for (seed, keys, removes) in [(1, 90, 0.0), (2, 60, 0.3), (3, 60, 0.5), (4, 120, 0.1)] {
        let lives = one_life(steps(seed, 500, keys, removes));
        states += explore(&fresh(), &lives, Depth::default()).unwrap_or_else(|wrong| {
            panic!("seed {seed}: {wrong}");
        });
    }
    println!("{states} states");
    assert!(states > 10_000, "{states} states");
}

#[test]
fn a_kill_and_a_power_failure_after_it_lose_nothing_either() {
    let depth = Depth {
        all_up_to: 32,
        drawn: 4,
        seed: 1,
    };
    let mut states = 0;
    for seed in 0..40 {
        for acts in (seed..1200).step_by(141) {
            let lives = two_lives(seed, acts, [80, 8]);
            states += explore(&fresh(), &lives, depth).unwrap_or_else(|wrong| {
                panic!("seed {seed}, killed after {acts}: {wrong}");
            });
        }
    }
    println!("{states} states");
    assert!(states > 10_000, "{states} states");
}

/// The sites of this room that act while trees are used.
fn sites() -> BTreeSet<(Act, Site)> {
    let mut all = BTreeSet::new();
    for acts in (1..300).step_by(9) {
        let recorder = fresh();
        let mut promise = Promise::new();
        for life in &two_lives(1, acts, [40, 8]) {
            promise.live(&recorder, life).expect("no fault");
        }
        all.extend(recorder.sites().into_keys());
    }
    all
}

/// The function that a site stands in, by the source.
fn function_of(site: Site) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let source = std::fs::read_to_string(format!("{root}/{}", site.file)).expect("the source");
    let before: Vec<&str> = source.lines().take(site.line as usize).collect();
    let head = before.iter().rev().find_map(|line| line.split_once("fn "));
    let name = head.expect("in a function").1;
    name.split(['(', '<']).next().expect("a name").to_owned()
}

/// Whether any run finds it: of one process, or of two of which the first is killed anywhere.
fn is_found(mutation: Mutation) -> bool {
    let depth = Depth::default();
    let found = |lives: &[Life]| {
        let recorder = fresh().with_mutation(mutation);
        explore(&recorder, lives, depth).is_err()
    };
    (0..2).any(|seed| found(&one_life(steps(seed, 120, 60, 0.3))))
        || (0..200).any(|acts| found(&two_lives(1 + acts % 2, acts, [20, 2])))
}

#[test]
fn each_forgotten_flush_and_fence_is_found() {
    // With one worker the next fence of the same thread comes in time for these two; with several,
    // another one could build on what is not durable.
    let needed_by_others = [("set_class", Act::Fence), ("set_root", Act::Fence)];
    let mut survivors = BTreeSet::new();
    let mut found = 0;
    for (act, site) in sites() {
        let mutation = match act {
            Act::Store => continue,
            Act::Flush => Mutation::NoFlush(site),
            Act::Fence => Mutation::NoFence(site),
        };
        match is_found(mutation) {
            true => found += 1,
            false => survivors.extend([(function_of(site), act)]),
        }
    }
    println!("{found} found, {survivors:?} not");
    let expected = needed_by_others.map(|(function, act)| (function.to_owned(), act));
    assert_eq!(survivors, BTreeSet::from(expected));
    assert!(found >= 15, "{found}");
}

#[test]
fn each_store_whose_order_matters_is_found_when_it_comes_too_late() {
    let mut survivors = BTreeMap::<String, u32>::new();
    let mut found = BTreeMap::<String, u32>::new();
    for (act, site) in sites() {
        if act == Act::Store {
            let into = match is_found(Mutation::Late(site)) {
                true => &mut found,
                false => &mut survivors,
            };
            *into.entry(function_of(site)).or_default() += 1;
        }
    }
    println!("{found:?} found, {survivors:?} not");
    // Both stores of an entry, in both directions, and the sibling before the fence.
    let expected = [("cede", 1), ("fill", 2), ("remove", 2)];
    let expected = expected.map(|(function, count)| (function.to_owned(), count));
    assert_eq!(found, BTreeMap::from(expected));
    // Stores that are the last to their line before it is flushed, and those to a node that nobody
    // knows of.
    let names: Vec<&str> = survivors.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["begin", "cede", "set_class", "set_root", "update", "write"]
    );
}
