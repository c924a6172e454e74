//! Every state that a crash can leave of small indexes: recovery, what must be there, and going on.
//! Also after a process was killed and another one went on before the power failed.

use super::{Kind, Lists, entries};
use crate::eras::Eras;
use crate::heap::{Heap, Swept};
use crate::ordered::KEY_MAX;
use crate::{Index, Persistent};
use nyx_base::{Rng, WorkerId};
use nyx_media::pmem::crash::{Act, Crash, Depth, Killed, Mutation, Recorder, Site};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const W: WorkerId = WorkerId(0);
pub(super) const CHUNK_BYTES: u64 = 4096;
/// Where the index's root stands.
const ROOT_WORD: usize = 16;
/// Where the generation stands.
const GENERATION_WORD: usize = 8;
/// The bits of it that are not there to check the others.
const GENERATION_MASK: u64 = (1 << 40) - 1;

type Model = BTreeMap<u64, u64>;

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

    fn run(self, index: &impl Index) -> Result<Option<u64>, String> {
        let done = match self {
            Step::Put(key, value) => index.put(W, key, value),
            Step::Remove(key) => index.remove(W, key),
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

/// The same, where stretches of neighbouring keys come or go, upwards or downwards, so that whole
/// nodes are emptied.
fn waves(seed: u64, count: usize, keys: u64) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let mut all = Vec::new();
    while all.len() < count {
        let mut wave: Vec<u64> = (rng.u64(0..keys / 2)..keys)
            .take(rng.usize(4..keys as usize))
            .collect();
        if rng.bool() {
            wave.reverse();
        }
        let (goes, value) = (rng.bool(), rng.u64(0..3));
        all.extend(wave.into_iter().map(|key| match goes {
            true => Step::Remove(3 * key),
            false => Step::Put(3 * key, value),
        }));
    }
    all.truncate(count);
    all
}

/// What one process did to the memory, one after the other.
#[derive(Debug)]
struct Life {
    steps: Vec<Step>,
    /// Killed after so many stores, flushes and fences.
    acts: Option<u64>,
    /// Whether it looks at everything before it does anything.
    looks: bool,
    /// Whether it sweeps the heap before it does anything, so that it may use what is free.
    sweeps: bool,
}

fn open<K: Kind>(pm: &Recorder) -> Result<K::Small<'_>, String> {
    let eras = Arc::new(Eras::new(1));
    let heap = Heap::open(pm, eras).map_err(|error| error.to_string())?;
    let index = Persistent::open(Arc::new(heap), 0, W).map_err(|error| error.to_string())?;
    K::make_ready(&index);
    Ok(index)
}

/// A formatted memory, from which on is recorded.
fn fresh<K: Kind>() -> Recorder {
    let mut recorder = Recorder::new(K::MEDIUM_BYTES);
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
    fn live<K: Kind>(&mut self, recorder: &Recorder, life: &Life) -> Result<(), String> {
        let run = || self.run::<K>(recorder, life);
        recorder.kill_after(life.acts);
        let done = catch_unwind(AssertUnwindSafe(run));
        recorder.kill_after(None);
        match done {
            Ok(done) => done,
            Err(killed) if killed.is::<Killed>() => Ok(()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn run<K: Kind>(&mut self, recorder: &Recorder, life: &Life) -> Result<(), String> {
        let index = open::<K>(recorder)?;
        self.acknowledge(recorder, index.heap().generation(), None);
        if life.sweeps {
            sweep(&index)?;
        }
        let mut models = self.after.last().expect("never empty").clone();
        if life.looks || models.len() == 1 {
            let found = contents(&index, &keys(&life.steps))?;
            if !models.contains(&found) {
                return Err(format!("the next process found {found:?}, not {models:?}"));
            }
            models = vec![found];
            self.acknowledge(recorder, index.heap().generation(), Some(models.clone()));
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
            let found = step.run(&index)?;
            // What it answers tells which of the models it was.
            let is_it = |at: &usize| had[*at] == found;
            let left: Vec<_> = (0..models.len()).filter(is_it).collect();
            models = left.iter().map(|&at| models[at].clone()).collect();
            if models.is_empty() {
                return Err(format!("{step:?} gave {found:?} instead of {had:?}"));
            }
            self.acknowledge(recorder, index.heap().generation(), Some(models.clone()));
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

/// What an index holds, by points and by all lists, which must agree.
fn contents(index: &impl Lists, keys: &[u64]) -> Result<Model, String> {
    let lists = index.lists(0, KEY_MAX).map_err(|error| error.to_string())?;
    let mut points = Model::new();
    let listed = lists.iter().flatten().map(|entry| entry.0);
    for key in keys.iter().copied().chain(listed) {
        let value = index.get(key).map_err(|error| error.to_string())?;
        points.extend(value.map(|value| (key, value)));
    }
    let expected = entries(&points);
    match lists.iter().all(|list| *list == expected) {
        true => Ok(points),
        false => Err(format!("points {expected:?}, lists {lists:?}")),
    }
}

/// Finds out which blocks are in use: how many are reachable, and what the heap says.
fn sweep<'p>(index: &impl Persistent<&'p Recorder>) -> Result<(u64, Swept), String> {
    let mut sweep = index.heap().sweep();
    let reachable = index.mark(&mut sweep).map_err(|error| error.to_string())?;
    let swept = sweep.finish().map_err(|_| "nobody is within an era")?;
    Ok((reachable, swept))
}

/// Recovers from one state, looks at everything, goes on with other steps and looks again.
fn check<K: Kind>(crash: &Crash<'_>, promise: &Promise, rng: &mut Rng) -> Result<(), String> {
    let at = crash.acknowledged as usize;
    if crash.image[GENERATION_WORD] & GENERATION_MASK < promise.generations[at] {
        return Err("a generation would come again".to_owned());
    }
    let mut recorder = Recorder::with_image(crash.image);
    let gone = crash.image[GENERATION_WORD];
    if rng.bool() {
        K::scribble(&recorder, gone, rng);
    }
    recorder.restart();
    let index = open::<K>(&recorder)?;
    let sound = |index: &K::Small<'_>| index.check().map_err(|error| error.to_string());
    sound(&index)?;
    let mut keys: Vec<u64> = promise.after[at]
        .iter()
        .flat_map(|m| m.keys())
        .copied()
        .collect();
    keys.push(0);
    let mut found = contents(&index, &keys)?;
    if !promise.after[at].contains(&found) {
        let expected = &promise.after[at];
        return Err(format!("after {at} there is {found:?}, not {expected:?}"));
    }
    let mut index = index;
    if K::TIDIES {
        sweep(&index)?;
        // To the next process there is nothing left to do, and no block is new.
        index = open::<K>(&recorder)?;
        let census = index.check().map_err(|error| error.to_string())?;
        if (census.leftovers, contents(&index, &keys)?) != (0, found.clone()) {
            return Err(format!("after it was tidied there is {census:?}"));
        }
    }
    let (reachable, swept) = sweep(&index)?;
    // A first leaf that was not there yet is new.
    let old = if crash.image[ROOT_WORD] == 0 && !K::TIDIES {
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
        let (had, expected) = (step.run(&index)?, step.apply(&mut found));
        if had != expected {
            return Err(format!("going on, {step:?} gave {had:?}, not {expected:?}"));
        }
    }
    let after = contents(&index, &keys)?;
    if after != found {
        return Err(format!("after going on there is {after:?}, not {found:?}"));
    }
    sound(&index).map(|_| ())
}

/// How often each function stored.
pub(crate) type Stores = BTreeMap<String, u64>;

/// Adds what was recorded.
fn count_stores(recorder: &Recorder, stores: &mut Stores) {
    for ((act, site), count) in recorder.sites() {
        if act == Act::Store {
            *stores.entry(function_of(site)).or_default() += count;
        }
    }
}

/// How many states were fine, or what was wrong with the first that was not.
fn explore<K: Kind>(recorder: &Recorder, lives: &[Life], depth: Depth) -> Result<u64, String> {
    let mut promise = Promise::new();
    for life in lives {
        promise.live::<K>(recorder, life)?;
    }
    let mut rng = Rng::with_seed(depth.seed);
    let mut wrong = None;
    let states = recorder.crashes(depth, |crash| {
        if wrong.is_none() {
            wrong = check::<K>(crash, &promise, &mut rng).err();
        }
    });
    wrong.map_or(Ok(states), Err)
}

fn one_life(steps: Vec<Step>) -> [Life; 1] {
    [Life {
        steps,
        acts: None,
        looks: true,
        sweeps: false,
    }]
}

/// Two processes; the first is killed after so many acts. With odd seeds it empties nodes.
fn two_lives(seed: u64, acts: u64, [first, second]: [usize; 2]) -> [Life; 2] {
    [
        Life {
            steps: match seed.is_multiple_of(2) {
                true => steps(seed, first, 40, 0.3),
                false => waves(seed, first, 40),
            },
            acts: Some(acts),
            looks: true,
            sweeps: false,
        },
        Life {
            steps: steps(seed + 1000, second, 40, 0.5),
            acts: None,
            looks: (seed + acts).is_multiple_of(2),
            sweeps: (seed + acts).is_multiple_of(3),
        },
    ]
}

/// Three processes; the second only opens the index, sweeps and looks, and is killed at that.
fn three_lives(seed: u64, acts: [u64; 2]) -> [Life; 3] {
    let [first, third] = two_lives(seed, acts[0], [60, 8]);
    let second = Life {
        steps: Vec::new(),
        acts: Some(acts[1]),
        looks: false,
        sweeps: true,
    };
    let third = Life {
        steps: steps(seed + 1000, 8, 40, 0.2),
        sweeps: true,
        ..third
    };
    [first, second, third]
}

/// How many stores, flushes and fences it takes to put right what the first of these left.
fn acts_of_second<K: Kind>(lives: &[Life; 3]) -> u64 {
    let recorder = fresh::<K>();
    let mut promise = Promise::new();
    let acts = || recorder.sites().values().sum::<u64>();
    promise.live::<K>(&recorder, &lives[0]).expect("no fault");
    let before = acts();
    promise.live::<K>(&recorder, &lives[1]).expect("no fault");
    acts() - before
}

/// Seeds, how many keys, and which part of the steps takes one away.
const RUNS: [(u64, u64, f64); 7] = [
    (1, 90, 0.0),
    (2, 60, 0.3),
    (3, 60, 0.5),
    (4, 120, 0.1),
    (5, 100, 0.2),
    (6, 40, 0.4),
    (7, 110, 0.2),
];

/// Seeds of waves, and how many keys.
const WAVES: [(u64, u64); 3] = [(1, 40), (2, 60), (3, 90)];

/// What was acknowledged survives, and the rest is all or nothing. Tells which functions stored.
pub(crate) fn survives<K: Kind>() -> Stores {
    let runs = RUNS.map(|(seed, keys, removes)| steps(seed, K::STEPS, keys, removes));
    let waves = WAVES.map(|(seed, keys)| waves(seed, K::STEPS, keys));
    let (mut states, mut stores) = (0, Stores::new());
    for (run, steps) in runs.into_iter().chain(waves).enumerate() {
        let recorder = fresh::<K>();
        states += explore::<K>(&recorder, &one_life(steps), Depth::default())
            .unwrap_or_else(|wrong| panic!("run {run}: {wrong}"));
        count_stores(&recorder, &mut stores);
    }
    println!("{states} states, {stores:?}");
    assert!(states > 10_000, "{states} states");
    stores
}

/// A kill and a power failure after it lose nothing either. Tells which functions stored.
pub(crate) fn survives_a_kill_first<K: Kind>() -> Stores {
    let depth = Depth {
        all_up_to: 32,
        drawn: 4,
        seed: 1,
    };
    let (mut states, mut stores) = (0, Stores::new());
    for seed in 0..K::PAIRS {
        for acts in (seed..1200).step_by(141) {
            let (recorder, lives) = (fresh::<K>(), two_lives(seed, acts, [80, 8]));
            states += explore::<K>(&recorder, &lives, depth).unwrap_or_else(|wrong| {
                panic!("seed {seed}, killed after {acts}: {wrong}");
            });
            count_stores(&recorder, &mut stores);
        }
    }
    println!("{states} states, {stores:?}");
    assert!(states > 10_000, "{states} states");
    stores
}

/// Nor does a second kill while the next process puts right what the first left: at each of its
/// stores, flushes and fences.
pub(crate) fn survives_two_kills_first<K: Kind>() {
    /// Any process makes as many, to count that the heap was opened.
    const ALWAYS: u64 = 3;
    const REPAIRS: u64 = 30;
    let depth = Depth {
        all_up_to: 16,
        drawn: 2,
        seed: 1,
    };
    let (mut states, mut repairs) = (0, [0, 0]);
    // Of even seeds and of odd ones, which empty nodes.
    for (odd, repairs) in (0..).zip(&mut repairs) {
        for (seed, first) in (0..6).flat_map(|seed| (10..400).map(move |at| (2 * seed + odd, at))) {
            if *repairs == REPAIRS {
                break;
            }
            let acts = acts_of_second::<K>(&three_lives(seed, [first, u64::MAX]));
            *repairs += u64::from(acts > ALWAYS);
            for second in ALWAYS + 1..=acts {
                let lives = three_lives(seed, [first, second]);
                states += explore::<K>(&fresh::<K>(), &lives, depth).unwrap_or_else(|wrong| {
                    panic!("seed {seed}, killed after {first} and {second}: {wrong}");
                });
            }
        }
    }
    println!("{repairs:?} repairs, {states} states");
    assert_eq!(repairs, [REPAIRS; 2], "there is too little to put right");
}

/// Whoever reads beside a writer, wherever that one is, is told of nothing that a crash takes back.
/// For indexes whose readers do not wait. Tells at how many places the writer was stopped.
pub(crate) fn tells_nothing_that_is_undone<K: Kind>() -> u64 {
    const KEYS: u64 = 20;
    let mixed = stopped_anywhere::<K>(KEYS, &steps(9, 30, KEYS, 0.2), &steps(10, 25, KEYS, 0.4));
    let all: Vec<_> = (0..KEYS).map(|key| Step::Put(3 * key, key)).collect();
    let none: Vec<_> = (0..KEYS).map(|key| Step::Remove(3 * key)).collect();
    mixed + stopped_anywhere::<K>(KEYS, &all, &none)
}

/// The same of a writer that does `first`, and is stopped anywhere in `more`.
fn stopped_anywhere<K: Kind>(keys: u64, first: &[Step], more: &[Step]) -> u64 {
    for acts in 0.. {
        let recorder = fresh::<K>();
        let index = open::<K>(&recorder).expect("an index");
        let run = |steps: &[Step]| steps.iter().try_for_each(|step| step.run(&index).map(drop));
        run(first).expect("room");
        // Where it is killed it stays, with its locks.
        recorder.kill_after(Some(acts));
        let done = catch_unwind(AssertUnwindSafe(|| run(more).expect("room")));
        recorder.kill_after(None);
        if done.is_ok() {
            return acts;
        }
        // On a thread of its own, whose fences are not the writer's.
        let read = || (0..3 * keys).map(|key| index.get(key)).collect::<Vec<_>>();
        let told = std::thread::scope(|scope| scope.spawn(read).join().expect("no panic"));
        recorder.acknowledge(1);
        recorder.crashes(Depth::default(), |crash| {
            if crash.acknowledged == 1 {
                let recorder = Recorder::with_image(crash.image);
                let index = open::<K>(&recorder).expect("an index");
                for (key, told) in (0..).zip(&told) {
                    let found = index.get(key);
                    assert_eq!(found, *told, "key {key}, stopped after {acts}");
                }
            }
        });
    }
    unreachable!("the steps end")
}

/// The sites of this room that act while indexes are used.
fn sites<K: Kind>() -> BTreeSet<(Act, Site)> {
    let mut all = BTreeSet::new();
    let mut live = |lives: &[Life]| {
        let recorder = fresh::<K>();
        let mut promise = Promise::new();
        for life in lives {
            promise.live::<K>(&recorder, life).expect("no fault");
        }
        all.extend(recorder.sites().into_keys());
    };
    for acts in (1..300).step_by(9) {
        live(&two_lives(2, acts, [40, 8]));
    }
    live(&one_life(waves(1, K::STEPS, 40)));
    all
}

/// The function that a site stands in, by the source.
pub(crate) fn function_of(site: Site) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let source = std::fs::read_to_string(format!("{root}/{}", site.file)).expect("the source");
    let before: Vec<&str> = source.lines().take(site.line as usize).collect();
    let head = before.iter().rev().find_map(|line| line.split_once("fn "));
    let name = head.expect("in a function").1;
    name.split(['(', '<']).next().expect("a name").to_owned()
}

/// Whether any run finds it: of one process, or of two of which the first is killed anywhere.
fn is_found<K: Kind>(mutation: Mutation) -> bool {
    let depth = Depth {
        all_up_to: 16,
        drawn: 2,
        seed: 1,
    };
    let found = |lives: &[Life]| {
        let recorder = fresh::<K>().with_mutation(mutation);
        explore::<K>(&recorder, lives, depth).is_err()
    };
    (0..2).any(|seed| found(&one_life(steps(seed, 120, 60, 0.3))))
        || (0..200).any(|acts| found(&two_lives(2 + 2 * (acts / 2 % 2), acts, [20, 2])))
        || found(&one_life(waves(1, K::STEPS, 40)))
        || (200..600)
            .step_by(16)
            .any(|acts| found(&two_lives(1, acts, [80, 2])))
}

/// Forgotten flushes and fences are noticed, but for those that `only_speed` needs. Tells how many.
pub(crate) fn forgotten_is_found<K: Kind>(only_speed: &[(&str, Act)]) -> usize {
    let (mut found, mut survivors) = (0, BTreeSet::new());
    for (act, site) in sites::<K>() {
        let mutation = match act {
            Act::Store => continue,
            Act::Flush => Mutation::NoFlush(site),
            Act::Fence => Mutation::NoFence(site),
        };
        match is_found::<K>(mutation) {
            true => found += 1,
            false => survivors.extend([(function_of(site), act)]),
        }
    }
    println!("{found} found, {survivors:?} not");
    // With one worker the next fence of the same thread comes in time for these two; with several,
    // another one could build on what is not durable.
    let needed_by_others = [("set_class", Act::Fence), ("set_root", Act::Fence)];
    let expected = needed_by_others.iter().chain(only_speed);
    let expected = expected.map(|&(function, act)| (function.to_owned(), act));
    assert_eq!(survivors, expected.collect());
    found
}

/// Stores that come too late are noticed in the functions `in_these`, so many in each, and some
/// are not, in those of `not_in`.
pub(crate) fn late_is_found<K: Kind>(in_these: &[(&str, u32)], not_in: &[&str]) {
    let [mut found, mut survivors] = [BTreeMap::new(), BTreeMap::new()];
    for (act, site) in sites::<K>() {
        if act == Act::Store {
            let into = match is_found::<K>(Mutation::Late(site)) {
                true => &mut found,
                false => &mut survivors,
            };
            *into.entry(function_of(site)).or_default() += 1;
        }
    }
    println!("{found:?} found, {survivors:?} not");
    let in_these = in_these
        .iter()
        .map(|&(name, count)| (name.to_owned(), count));
    assert_eq!(found, in_these.collect());
    let names: Vec<&str> = survivors.keys().map(String::as_str).collect();
    assert_eq!(names, not_in);
}
