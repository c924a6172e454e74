//! A process that works on a store is stopped after every single instruction. Wherever that has
//! changed a byte of the image or of the medium, a copy is opened as after a `kill -9` at that
//! moment, and must hold everything that was acknowledged; what was under way is done or not done;
//! nothing is lost for good; and the store goes on.
//!
//! The work is done by a child of ours, which is single-stepped (`ptrace`); the image and the
//! medium are mapped shared, so that this process sees each store as it is made. That is the whole
//! of what being killed can do to one thread: the stores that were made are a prefix of those that
//! would have been. Of several threads each is at a place of its own; `crates/nyx/tests/survive.rs`
//! kills those.
//!
//! `NYX_LONG=1 cargo test -p nyx-store --test killed -- --nocapture` looks at more than ten
//! thousand moments; without it at some of each kind.
//!
//! Where a machine does not let a process trace its child the test says so and passes.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod rig;

use nyx_base::{Instant, UnixSeconds};
use nyx_media::mapped::Mapped;
use nyx_media::{Front, Media, Via};
use nyx_store::{
    Beginning, Condition, Durability, Journaling, Keep, Presence, Purpose, Put, PutOutcome, Side,
    StoreConfig, SyncMode, TouchOutcome,
};
use rig::stepped::{in_child, map, shared_progress};
use rig::{Rig, START, Worker, deep, small, value_of};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

const PAGE: usize = 4096;
const SIZE: u64 = 2 << 20;
/// Operations that the child does in one episode.
const STEPS: usize = 80;
const STEPS_TIGHT: usize = 30;
/// In these a segment of the fast device goes deep, and one of the deep device is written or goes.
const STEPS_DEEP: usize = 4;
/// The most of the deep device, and the least that a tenant may have.
const DEEP_MAX: u64 = 2 << 20;
const DEEP_MIN: u64 = 8 * SEGMENT;
const SEGMENT: u64 = 64 << 10;
/// In so many turns all keys are looked at that nobody changes, where there is a deep device.
const TURNS: u32 = 8;

/// What an episode begins with and what it is about.
#[derive(Clone, Copy, Debug)]
struct Episode {
    seed: u64,
    /// Changes before the child begins.
    before: usize,
    keys: u32,
    value_len_max: usize,
    /// The tenant is full: items may be missing, but never old.
    is_tight: bool,
    /// Changes go to a journal too, which must have what the image has.
    is_journaled: bool,
    /// Bytes of a deep device; none where there is none.
    deep: Option<u64>,
    /// What is changed was read before and has a twin, where there is a deep device.
    has_twins: bool,
}

impl Episode {
    /// Operations that the child does.
    fn steps(&self) -> usize {
        match (self.deep, self.is_tight) {
            (Some(_), _) => STEPS_DEEP,
            (None, true) => STEPS_TIGHT,
            (None, false) => STEPS,
        }
    }
}

fn config(directory: &Path, episode: &Episode) -> StoreConfig {
    let journaling = || Journaling {
        dir: directory.join("journal"),
        name: "test".to_owned(),
        sync: SyncMode::Each,
        file_bytes: Some(4 << 20),
    };
    StoreConfig {
        item_len_max: 16 << 10,
        keep: Some(Keep {
            path: directory.join("image"),
            name: "test".to_owned(),
            durability: Durability::Crash,
            data_id: [7; 16],
            purpose: Purpose::Serve,
            journal: episode.is_journaled.then(journaling),
        }),
        ..episode
            .deep
            .map_or_else(|| small(SIZE), |len| deep(SIZE, len))
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key:{number:05}").into_bytes()
}

/// A change of one key.
#[derive(Clone, Debug)]
enum Change {
    Set(u32, Vec<u8>, UnixSeconds),
    Append(u32, Vec<u8>),
    Add(u32, Vec<u8>),
    Touch(u32, UnixSeconds),
    Delete(u32),
}

impl Change {
    fn any(rng: &mut fastrand::Rng, episode: &Episode) -> Change {
        let number = rng.u32(..episode.keys);
        Change::of(number, rng, episode)
    }

    fn of(number: u32, rng: &mut fastrand::Rng, episode: &Episode) -> Change {
        let value = value_of(
            &key(number),
            rng.u64(..),
            rng.usize(..episode.value_len_max),
        );
        let end = match rng.bool() {
            true => UnixSeconds::NEVER,
            false => UnixSeconds(START.0 + rng.u32(10..10_000)),
        };
        // What these do depends on what was evicted.
        let no_more = if episode.is_tight { 6 } else { 9 };
        match rng.u8(..12) {
            at if at < 6 || (no_more..9).contains(&at) => Change::Set(number, value, end),
            6 => Change::Append(number, value[..value.len().min(40)].to_vec()),
            7 => Change::Add(number, value),
            8 => Change::Touch(number, end),
            _ => Change::Delete(number),
        }
    }

    fn number(&self) -> u32 {
        match self {
            Change::Set(number, ..)
            | Change::Append(number, _)
            | Change::Add(number, _)
            | Change::Touch(number, _)
            | Change::Delete(number) => *number,
        }
    }

    /// Makes it; what is full is written to the deep device.
    fn make(&self, worker: &mut Worker<'_>) {
        worker.enter();
        while self.is_away(worker) {
            worker.land();
        }
        if worker.store.is_deep() {
            worker.write_back();
        }
    }

    /// Makes it, or tells that a value has to be fetched first.
    fn is_away(&self, worker: &mut Worker<'_>) -> bool {
        let key = key(self.number());
        let hash = worker.hash(&key);
        let lane = &mut worker.tolls.lane(rig::TENANT);
        let (store, w, now) = (worker.store, &mut worker.writer, worker.now);
        match self {
            Change::Set(_, value, expiry) => {
                let put = Put {
                    expiry: *expiry,
                    ..Put::set(&key, hash, value)
                };
                let outcome = store.put(w, lane, &put, now);
                assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
                false
            }
            Change::Add(_, value) => {
                let condition = Condition::Absent;
                let put = Put {
                    condition,
                    ..Put::set(&key, hash, value)
                };
                store.put(w, lane, &put, now);
                false
            }
            Change::Append(_, value) => {
                let put = Put::set(&key, hash, value);
                let outcome = store.extend(w, lane, &put, Side::Append, now);
                matches!(outcome, PutOutcome::Away(_))
            }
            Change::Touch(_, expiry) => {
                let outcome = store.touch(w, lane, &key, hash, *expiry, now);
                matches!(outcome, TouchOutcome::Away(_))
            }
            Change::Delete(_) => {
                store.delete(w, lane, &key, hash, Condition::Always, now);
                false
            }
        }
    }

    /// What it makes of the item of its key: value and end.
    fn apply(&self, item: Option<&Item>) -> Option<Item> {
        match (self, item) {
            (Change::Set(_, value, expiry), _) => Some((value.clone(), *expiry)),
            (Change::Add(_, value), None) => Some((value.clone(), UnixSeconds::NEVER)),
            (Change::Append(_, more), Some((value, end))) => {
                Some(([&value[..], more].concat(), *end))
            }
            (Change::Touch(_, end), Some((value, _))) => Some((value.clone(), *end)),
            (Change::Delete(_), _) => None,
            (_, item) => item.cloned(),
        }
    }
}

type Item = (Vec<u8>, UnixSeconds);
type Model = BTreeMap<u32, Item>;

fn apply(model: &mut Model, change: &Change) {
    let number = change.number();
    match change.apply(model.get(&number)) {
        Some(item) => drop(model.insert(number, item)),
        None => drop(model.remove(&number)),
    }
}

fn find(worker: &mut Worker<'_>, number: u32) -> Option<Item> {
    let key = key(number);
    let hash = worker.hash(&key);
    loop {
        let lane = &mut worker.tolls.lane(rig::TENANT);
        let mut item = worker.store.get(lane, &key, hash, worker.now)?;
        let id = worker.writer.worker();
        match worker.store.fetch(id, lane, &mut item, Instant(0)) {
            Presence::Here => {
                let mut value = vec![0; item.value_len()];
                item.read(lane, &mut value);
                return Some((value, item.expiry()));
            }
            Presence::Away(_) => worker.land(),
            told => panic!("key {number} is {told:?}"),
        }
    }
}

/// In memory: a disk would write back what is changed all the time.
fn fast_directory() -> tempfile::TempDir {
    let fast = Path::new("/dev/shm");
    let directory = match fast.is_dir() {
        true => tempfile::tempdir_in(fast),
        false => tempfile::tempdir(),
    };
    directory.expect("a directory")
}

/// A page: of which file, and which one.
type Page = (usize, usize);
const IMAGE: usize = 0;
const MEDIUM: usize = 1;
const JOURNAL: usize = 2;
const DEEP: usize = 3;
const WORDS: usize = PAGE / 8;

/// Pages of the image and of the medium's file: what they were at some moment.
struct Pages(Vec<(Page, Box<[u64; WORDS]>)>);

/// A store that a child will work on, and how its bytes are looked at from outside.
struct Scene {
    rig: Rig,
    /// All bytes of the image, of the medium's file, of the journal's and of the deep one, as the
    /// child stores them.
    bytes: [&'static [AtomicU64]; 4],
    _directory: tempfile::TempDir,
}

/// The journal's first file, and its only one while nobody syncs.
const FIRST_FILE: &str = "journal/0000000001.log";

impl Scene {
    fn new(episode: &Episode) -> Scene {
        let directory = fast_directory();
        let medium = directory.path().join("medium");
        let mapped = Arc::new(Mapped::file(&medium, SIZE).expect("a medium"));
        let deep = directory.path().join("deep");
        let rig = Rig::on_both(mapped, Some(&deep), config(directory.path(), episode));
        let if_any = |is_there, path: &Path| match is_there {
            true => map(path),
            false => &[],
        };
        let journal = directory.path().join(FIRST_FILE);
        Scene {
            rig: rig.expect("a store"),
            bytes: [
                map(&directory.path().join("image")),
                map(&medium),
                if_any(episode.is_journaled, &journal),
                if_any(episode.deep.is_some(), &deep),
            ],
            _directory: directory,
        }
    }

    fn words(&self, page: Page) -> &[AtomicU64] {
        &self.bytes[page.0][page.1 * WORDS..][..WORDS]
    }

    fn page(&self, page: Page) -> Box<[u64; WORDS]> {
        let words = self.words(page);
        Box::new(std::array::from_fn(|at| words[at].load(Relaxed)))
    }

    /// Whether the image is as it was; what medium and stages hold matters when an image names it.
    fn is_as(&self, pages: &Pages, stages: usize) -> bool {
        let is_as = |(page, was): &(Page, Box<[u64; WORDS]>)| {
            let words = self.words(*page).iter().zip(&was[..]);
            words.fold(0, |differ, (word, was)| differ | word.load(Relaxed) ^ was) == 0
        };
        // So with the journal, whose first page says how far it was written.
        let is_table = |page: &Page| page.0 == IMAGE && page.1 < stages;
        let matters = |page: &Page| is_table(page) || *page == (JOURNAL, 0);
        pages.0.iter().filter(|(page, _)| matters(page)).all(is_as)
    }

    fn look(&self, pages: &[Page]) -> Pages {
        Pages(pages.iter().map(|&page| (page, self.page(page))).collect())
    }

    /// All pages that are not zero.
    fn all(&self) -> Pages {
        let pages = |of: usize| (0..self.bytes[of].len() / WORDS).map(move |page| (of, page));
        let pages: Vec<Page> = [IMAGE, MEDIUM, JOURNAL, DEEP]
            .into_iter()
            .flat_map(pages)
            .collect();
        let mut all = self.look(&pages);
        all.0
            .retain(|(_, words)| words.iter().any(|&word| word != 0));
        all
    }

    fn wipe(&self, pages: &[Page]) {
        let words = pages.iter().flat_map(|&page| self.words(page));
        words.for_each(|word| word.store(0, Relaxed));
    }

    fn restore(&self, pages: &Pages) {
        for (page, was) in &pages.0 {
            let words = self.words(*page).iter().zip(&was[..]);
            words.for_each(|(word, &was)| word.store(was, Relaxed));
        }
    }

    /// Which pages differ from what they were.
    fn changed(&self, before: &Pages) -> Vec<Page> {
        let before: BTreeMap<Page, _> = before.0.iter().map(|(page, was)| (*page, was)).collect();
        let now = self.all();
        let changed = now
            .0
            .iter()
            .filter(|(page, is)| before.get(page) != Some(&is));
        let changed = changed.map(|(page, _)| *page);
        // Notes and counts may be as they were in the end, and not in between.
        let tables = (0..=COUNTS.1 + 2).map(|page| (IMAGE, page));
        let segments = segments_page(
            self.bytes[IMAGE].len() / WORDS,
            !self.bytes[DEEP].is_empty(),
        );
        let all: BTreeSet<Page> = changed.chain(tables).chain([segments]).collect();
        all.into_iter().collect()
    }
}

/// A moment at which the child may have been killed.
struct Moment {
    number: u32,
    begun: usize,
    done: usize,
    /// The pages that it changes, as they were.
    hot: Pages,
}

/// What an episode came to.
struct Run {
    episode: Episode,
    image_len: u64,
    base: Pages,
    moments: Vec<Moment>,
    /// After each number of changes.
    models: Vec<Model>,
    changes: Vec<Change>,
}

/// Reads what is deep until it comes back and leaves a twin there; the numbers of some.
fn mirror(worker: &mut Worker<'_>, model: &Model) -> Vec<u32> {
    let mut twins = Vec::new();
    for &number in model.keys().take(200) {
        worker.enter();
        let key = key(number);
        let (store, hash, now) = (worker.store, worker.hash(&key), worker.now);
        let was_deep = store
            .get(&mut worker.lane(), &key, hash, now)
            .is_some_and(|item| item.is_deep());
        for _ in 0..2 {
            worker.get(&key);
        }
        let is_deep = store
            .get(&mut worker.lane(), &key, hash, now)
            .is_some_and(|item| item.is_deep());
        twins.extend((was_deep && !is_deep).then_some(number));
        worker.write_back();
    }
    assert!(twins.len() >= STEPS_DEEP, "{} came back", twins.len());
    twins
}

/// What the child does.
fn changes(
    worker: &mut Worker<'_>,
    model: &Model,
    rng: &mut fastrand::Rng,
    episode: &Episode,
) -> Vec<Change> {
    let twins = episode.has_twins.then(|| mirror(worker, model));
    let change = |at| match &twins {
        None => Change::any(rng, episode),
        // One of them goes for certain.
        Some(twins) if at == 0 => Change::Delete(twins[0]),
        Some(twins) => Change::of(twins[at], rng, episode),
    };
    (0..episode.steps()).map(change).collect()
}

/// Steps a child through an episode; none where the machine does not allow that.
fn play(episode: Episode) -> Option<Run> {
    let rng = &mut fastrand::Rng::with_seed(episode.seed);
    let scene = Scene::new(&episode);
    let mut worker = scene.rig.worker(0);
    let mut model = Model::new();
    for _ in 0..episode.before {
        let change = Change::any(rng, &episode);
        change.make(&mut worker);
        apply(&mut model, &change);
    }
    let changes = changes(&mut worker, &model, rng, &episode);
    let mut models = vec![model];
    for change in &changes {
        let mut next = models.last().expect("one").clone();
        apply(&mut next, change);
        models.push(next);
    }
    let base = scene.all();
    let progress = shared_progress();
    let mut work = |begin: &dyn Fn()| {
        if worker.store.is_deep() {
            // The queues are those of whoever made them, and not for a child to touch.
            std::mem::forget(std::mem::replace(&mut worker.tolls, scene.rig.tolls(0)));
        }
        begin();
        for change in &changes {
            progress.begun.fetch_add(1, SeqCst);
            change.make(&mut worker);
            progress.done.fetch_add(1, SeqCst);
        }
    };
    // Once without looking, to know where to look.
    in_child(&mut work, None);
    let hot = scene.changed(&base);
    scene.wipe(&hot);
    scene.restore(&base);
    progress.begun.store(0, SeqCst);
    progress.done.store(0, SeqCst);

    let mut moments: Vec<Moment> = Vec::new();
    let stages = segments_page(scene.bytes[IMAGE].len() / WORDS, episode.deep.is_some()).1 + 1;
    let mut each = || {
        let begun = progress.begun.load(SeqCst) as usize;
        let done = progress.done.load(SeqCst) as usize;
        let is_known = moments.last().is_some_and(|last| {
            (last.begun, last.done) == (begun, done) && scene.is_as(&last.hot, stages)
        });
        if !is_known {
            let hot = scene.look(&hot);
            let number = moments.len() as u32;
            moments.push(Moment {
                number,
                begun,
                done,
                hot,
            });
        }
    };
    let stepped = in_child(work, Some(&mut each));
    let image_len = scene.bytes[IMAGE].len() as u64 * 8;
    stepped.then_some(Run {
        episode,
        image_len,
        base,
        moments,
        models,
        changes,
    })
}

impl Run {
    /// The page of its image that the table of segments is on.
    fn segments(&self) -> Page {
        let pages = self.image_len as usize / PAGE;
        segments_page(pages, self.episode.deep.is_some())
    }
}

/// Where copies are opened.
struct Copies {
    directory: tempfile::TempDir,
    medium: Arc<Mapped>,
}

impl Copies {
    fn new() -> Copies {
        Copies {
            directory: fast_directory(),
            medium: Arc::new(Mapped::anonymous(SIZE).expect("memory")),
        }
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    /// An empty file where the journal's first is.
    fn journal(&self) -> File {
        let path = self.directory.path().join(FIRST_FILE);
        let directory = path.parent().expect("a directory");
        let _ = std::fs::remove_dir_all(directory);
        std::fs::create_dir(directory).expect("a directory");
        File::create(path).expect("a file")
    }

    /// Lays down the bytes of a moment, as `plant` changes them.
    fn lay(&self, run: &Run, moment: &Moment, plant: Plant) {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let image = options.open(self.image()).expect("a file");
        image.set_len(run.image_len).expect("its length");
        let journal = run.episode.is_journaled.then(|| self.journal());
        let deep = run.episode.deep.map(|len| {
            let file = File::create(self.deep()).expect("a file");
            file.set_len(PAGE as u64 + DEEP_BASE + len)
                .expect("its length");
            file
        });
        if let Some(journal) = &journal {
            journal
                .set_len((4 << 20) + PAGE as u64)
                .expect("its length");
        }
        let blank = vec![0; SIZE as usize];
        self.medium
            .write(&mut Front::default(), 0, &blank, Via::Cached);
        for ((of, page), words) in run.base.0.iter().chain(&moment.hot.0) {
            let mut words = words.clone();
            plant(run, (*of, *page), &mut words);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let at = (page * PAGE) as u64;
            match *of {
                IMAGE => image.write_all_at(&bytes, at).expect("a page"),
                JOURNAL => {
                    let journal = journal.as_ref().expect("there is one");
                    journal.write_all_at(&bytes, at).expect("a page");
                }
                DEEP => {
                    let deep = deep.as_ref().expect("there is one");
                    deep.write_all_at(&bytes, at).expect("a page");
                }
                // The first page of a medium's file is its header.
                _ if *page == 0 => {}
                _ => {
                    self.medium
                        .write(&mut Front::default(), at - PAGE as u64, &bytes, Via::Cached)
                }
            }
        }
        if let Some(deep) = deep.filter(|_| moment.number.is_multiple_of(2)) {
            self.garble(run, &image, &deep);
        }
    }

    /// Garbles what the deep device has of segments that are in their stages: a write that was
    /// under way when the process was killed may have got anywhere.
    fn garble(&self, run: &Run, image: &File, deep: &File) {
        let at = (run.segments().1 * PAGE) as u64;
        let fast = SIZE / SEGMENT;
        for segment in 0..run.episode.deep.unwrap_or_default() / SEGMENT {
            let mut stage = [0; 4];
            let entry = at + 64 * (fast + segment);
            image
                .read_exact_at(&mut stage, entry + 36)
                .expect("an entry");
            if stage != [0; 4] {
                let range = PAGE as u64 + DEEP_BASE + segment * SEGMENT;
                let bytes = [0x5a; SEGMENT as usize];
                deep.write_all_at(&bytes, range).expect("a segment");
            }
        }
    }

    fn deep(&self) -> PathBuf {
        self.directory.path().join("deep")
    }

    fn open(&self, run: &Run) -> Rig {
        let config = config(self.directory.path(), &run.episode);
        let rig = Rig::on_both(self.medium.clone(), Some(&self.deep()), config);
        let rig = rig.expect("an image that can be used");
        assert_eq!(rig.store.beginning(), Some(&Beginning::Killed));
        replay(&rig);
        rig
    }

    /// The same after a power failure that has left the journal alone.
    fn open_after_power_failure(&self, run: &Run) -> Rig {
        std::fs::remove_file(self.image()).expect("the image");
        let config = config(self.directory.path(), &run.episode);
        let rig = Rig::on(self.medium.clone(), config).expect("a journal that can be used");
        assert!(rig.store.is_to_replay());
        replay(&rig);
        rig
    }
}

/// Makes image and journal the same, where that is to be done.
fn replay(rig: &Rig) {
    if rig.store.is_to_replay() {
        let mut worker = rig.worker(0);
        let lane = &mut worker.tolls.lane(rig::TENANT);
        let (w, now) = (&mut worker.writer, worker.now);
        let replayed = rig.store.replay(w, lane, now, &mut |_| {});
        assert_eq!(replayed.expect("a journal").damaged, 0);
    }
}

/// A fault that is planted: changes a page of the image as if a store had been forgotten.
type Plant = fn(&Run, Page, &mut [u64; WORDS]);

/// What every moment must allow.
fn check(copies: &Copies, run: &Run, moment: &Moment, plant: Plant) -> Result<(), String> {
    copies.lay(run, moment, plant);
    let seen = {
        let rig = copies.open(run);
        let mut worker = rig.worker(0);
        let seen = compare(&mut worker, run, moment)?;
        if moment.done.is_multiple_of(2) {
            sweep(&mut worker)?;
        }
        seen
    };
    // Killed again, in the middle of it or after: the same is there, and it goes on.
    let rig = copies.open(run);
    let mut worker = rig.worker(0);
    let again: Vec<Option<Item>> = numbers(run, moment).map(|n| find(&mut worker, n)).collect();
    if again != seen {
        return Err("another time something else is there".to_owned());
    }
    sweep(&mut worker)?;
    let figures = rig.store.figures();
    let (found, counted) = (seen.iter().flatten().count(), figures.items as usize);
    let is_right = match (run.episode.deep, run.episode.is_tight) {
        (None, _) => counted == found,
        (Some(_), true) => counted >= found,
        (Some(_), false) => {
            let (done, begun) = (&run.models[moment.done], &run.models[moment.begun]);
            counted == done.len() || counted == begun.len()
        }
    };
    if !is_right {
        return Err(format!("{found} items are found and {counted} counted"));
    }
    let at_work = figures.segments.draining + figures.segments.limbo;
    if at_work != 0 {
        return Err(format!("{at_work} segments are left at work"));
    }
    if run.episode.deep.is_some() {
        written(&mut worker, run, moment, &seen)?;
    }
    for number in [0, 1, run.episode.keys] {
        let value = value_of(&key(number), 77, 50);
        Change::Set(number, value.clone(), UnixSeconds::NEVER).make(&mut worker);
        if find(&mut worker, number) != Some((value, UnixSeconds::NEVER)) {
            return Err(format!("key {number} cannot be set"));
        }
    }
    if run.episode.has_twins {
        drop(worker);
        drop(rig);
        return remade(copies, run, moment, &seen);
    }
    if !run.episode.is_journaled {
        return Ok(());
    }
    // The journal has what the image has, and what came after.
    let has: Vec<Option<Item>> = numbers(run, moment).map(|n| find(&mut worker, n)).collect();
    drop(worker);
    drop(rig);
    let rig = copies.open_after_power_failure(run);
    let mut worker = rig.worker(0);
    let journal: Vec<Option<Item>> = numbers(run, moment).map(|n| find(&mut worker, n)).collect();
    match has == journal {
        true => Ok(()),
        false => Err("the journal has something else".to_owned()),
    }
}

/// Where the index is made anew from the records nothing comes back that had gone.
fn remade(
    copies: &Copies,
    run: &Run,
    moment: &Moment,
    seen: &[Option<Item>],
) -> Result<(), String> {
    let image = nyx_media::Image::look(&copies.image()).expect("an image");
    let about = nyx_store::About::of_image(&image.expect("it was begun")).expect("a tenant's");
    let config = about.store(&copies.image(), Purpose::Repair);
    let rig = Rig::on_both(copies.medium.clone(), Some(&copies.deep()), config);
    let rig = rig.expect("an image that can be used");
    let mut worker = rig.worker(0);
    for (number, was) in numbers(run, moment).zip(seen) {
        // Those were set since.
        let is_set = [0, 1, run.episode.keys].contains(&number);
        if !is_set && find(&mut worker, number) != *was {
            let deleted = was.is_none();
            return Err(format!(
                "key {number} differs when made anew, deleted: {deleted}"
            ));
        }
    }
    Ok(())
}

/// What waits to be written is written from its stage, and is then there as before.
fn written(
    worker: &mut Worker<'_>,
    run: &Run,
    moment: &Moment,
    seen: &[Option<Item>],
) -> Result<(), String> {
    worker.write_back();
    worker.enter();
    let lane = &mut worker.tolls.lane(rig::TENANT);
    worker.store.expire(&mut worker.writer, lane, worker.now);
    let figures = worker.store.figures().deep.unwrap_or_default();
    let again: Vec<Option<Item>> = numbers(run, moment).map(|n| find(worker, n)).collect();
    match (figures.stages.0, figures.lost, again == seen) {
        (0, 0, true) => Ok(()),
        told => Err(format!(
            "stages in use, items lost, all as before: {told:?}"
        )),
    }
}

/// Whether a fault makes any difference to a moment.
fn differs(run: &Run, moment: &Moment, plant: Plant) -> bool {
    moment.hot.0.iter().any(|(page, words)| {
        let mut planted = words.clone();
        plant(run, *page, &mut planted);
        planted != *words
    })
}

/// Whether a moment allows what it must; a panic is a no.
fn passes(copies: &Copies, run: &Run, moment: &Moment, plant: Plant) -> bool {
    let checked = std::panic::AssertUnwindSafe(|| check(copies, run, moment, plant));
    std::panic::catch_unwind(checked).is_ok_and(|checked| checked.is_ok())
}

/// The keys that there are at some time, and some that there are not. Where there is a deep device,
/// which takes its time, those that nobody changes are looked at in turns.
fn numbers(run: &Run, moment: &Moment) -> impl Iterator<Item = u32> {
    let changed = run.changes.iter().map(Change::number);
    let turns = if run.episode.deep.is_some() { TURNS } else { 1 };
    let turn = moment.number % turns;
    let first = run.models[0].keys().copied();
    let first = first.filter(move |number| number % turns == turn);
    let all: BTreeSet<u32> = changed.chain(first).chain(0..10).collect();
    all.into_iter()
}

/// What is found, if it is what may be.
fn compare(
    worker: &mut Worker<'_>,
    run: &Run,
    moment: &Moment,
) -> Result<Vec<Option<Item>>, String> {
    let (done, begun) = (&run.models[moment.done], &run.models[moment.begun]);
    let mut seen = Vec::new();
    for number in numbers(run, moment) {
        let found = find(worker, number);
        let is_right = found.as_ref() == done.get(&number) || found.as_ref() == begun.get(&number);
        let is_gone = run.episode.is_tight && found.is_none();
        if !is_right && !is_gone {
            let wanted = done.get(&number).map(|(value, end)| (value.len(), *end));
            let found = found.map(|(value, end)| (value.len(), end));
            let under_way = run.changes.get(moment.done).map(Change::number);
            return Err(format!(
                "key {number}: {found:?} instead of {wanted:?} (length, end), at key {under_way:?}"
            ));
        }
        seen.push(found);
    }
    Ok(seen)
}

fn sweep(worker: &mut Worker<'_>) -> Result<(), String> {
    while worker.store.sweep(&mut worker.tolls.lane(rig::TENANT)) {}
    match worker.store.revived() {
        Some(revived) if revived.chains == revived.chains_all => Ok(()),
        other => Err(format!("the sweep ended at {other:?}")),
    }
}

fn nothing(_: &Run, _: Page, _: &mut [u64; WORDS]) {}

/// Pages of the image (docs/format.md, "Image of a tenant"), for a store of this shape.
const CHUNKS: Page = (IMAGE, 6);
const COUNTS: Page = (IMAGE, 7);

/// Where the table of segments is, in an image of so many pages: the last, but for the stages.
fn segments_page(image_pages: usize, is_deep: bool) -> Page {
    let stages = if is_deep {
        STAGES * SEGMENT as usize
    } else {
        0
    };
    (IMAGE, image_pages - stages / PAGE - 1)
}

/// Stages of a store of this size.
const STAGES: usize = 2;
/// Where its range of a deep device begins.
const DEEP_BASE: u64 = 64 << 10;

/// Makes words as they were when the child began.
fn forget(run: &Run, page: Page, words: &mut [u64; WORDS], which: std::ops::Range<usize>) {
    let base = run.base.0.iter().find(|(of, _)| *of == page);
    let was = base.map_or([0; WORDS], |(_, was)| **was);
    words[which.clone()].copy_from_slice(&was[which]);
}

/// What the image would be if a store had been forgotten.
const FORGOTTEN: [(&str, Plant); 5] = [
    (
        "the note of an item on its way to a new bucket",
        |run, page, words| {
            if page == COUNTS {
                forget(run, page, words, 8..WORDS);
            }
        },
    ),
    ("the count of buckets", |run, page, words| {
        if page == COUNTS {
            forget(run, page, words, 0..1);
        }
    }),
    ("the count of the pool's buckets", |run, page, words| {
        if page == COUNTS {
            forget(run, page, words, 1..2);
        }
    }),
    ("whose a chunk is", |run, page, words| {
        if page == CHUNKS {
            forget(run, page, words, 0..WORDS);
        }
    }),
    ("what a segment is in use for", |run, page, words| {
        if page == run.segments() {
            forget(run, page, words, 0..WORDS);
        }
    }),
];

/// The same for those that only a store with a deep device makes.
const FORGOTTEN_DEEP: [(&str, Plant); 2] = [
    ("the stage that a segment is in", |run, page, words| {
        if page == run.segments() {
            let mut was = *words;
            forget(run, page, &mut was, 0..WORDS);
            // The upper half of the fifth word of each entry.
            for at in (4..WORDS).step_by(8) {
                words[at] = words[at] & 0xffff_ffff | was[at] >> 32 << 32;
            }
        }
    }),
    ("what is in a stage", |run, page, words| {
        if page.0 == IMAGE && page.1 > run.segments().1 {
            forget(run, page, words, 0..WORDS);
        }
    }),
];

/// Whether all are played, which takes some minutes, or some of each kind.
fn is_long() -> bool {
    std::env::var_os("NYX_LONG").is_some()
}

/// Roomy ones with chains and tables that grow, and full ones in which segments are emptied.
fn episodes() -> Vec<Episode> {
    let of = |seed, before, keys, value_len_max, is_tight| Episode {
        seed,
        before,
        keys,
        value_len_max,
        is_tight,
        is_journaled: false,
        deep: None,
        has_twins: false,
    };
    let deep_of = |episode, len| Episode {
        deep: Some(len),
        ..episode
    };
    let journaled = |episode: Episode| Episode {
        is_journaled: true,
        ..episode
    };
    // The table splits a bucket at 480 items, and for each 7.5 more.
    let roomy = [
        of(0, 0, 20, 100, false),
        of(1, 60, 30, 300, false),
        of(2, 1500, 900, 60, false),
        of(3, 2500, 1500, 30, false),
        of(4, 2600, 1500, 200, false),
        of(5, 4000, 1000, 100, false),
        of(6, 2500, 1600, 20, false),
        of(7, 2300, 1700, 90, false),
    ];
    let tight = [
        of(100, 4000, 1500, 2500, true),
        of(101, 4100, 1500, 2500, true),
        of(102, 6000, 2000, 1500, true),
    ];
    // With room for all on both devices, and with a deep device that is full.
    let both = [
        deep_of(of(205, 4017, 3000, 1800, false), DEEP_MAX),
        deep_of(of(208, 3501, 1500, 2500, true), DEEP_MIN),
        Episode {
            has_twins: true,
            ..deep_of(of(209, 4000, 3000, 1800, false), DEEP_MAX)
        },
    ];
    let kept = [roomy[0], roomy[1], roomy[7]].map(journaled);
    match is_long() {
        true => roomy
            .into_iter()
            .chain(tight)
            .chain(kept)
            .chain(both)
            .collect(),
        false => vec![roomy[0], roomy[3], tight[0], kept[0], both[0], both[2]],
    }
}

#[test]
fn whatever_the_instruction_nothing_acknowledged_is_lost() {
    let copies = Copies::new();
    let mut states = 0;
    let mut planted = [FORGOTTEN.to_vec(), FORGOTTEN_DEEP.to_vec()];
    for episode in episodes() {
        let Some(run) = play(episode) else {
            println!("skipped: this machine does not let a process trace its child");
            return;
        };
        let finds = |plant| {
            let mut differ = run.moments.iter().filter(|one| differs(&run, one, plant));
            differ.any(|moment| !passes(&copies, &run, moment, plant))
        };
        let planted = &mut planted[usize::from(episode.deep.is_some())];
        planted.retain(|(_, plant)| run.episode.is_tight || !finds(*plant));
        let stride = if run.moments.len() > 1000 && episode.deep.is_some() && !is_long() {
            9
        } else {
            1
        };
        for (at, moment) in run.moments.iter().enumerate().step_by(stride) {
            if let Err(wrong) = check(&copies, &run, moment, nothing) {
                panic!(
                    "{episode:?}, moment {at} in change {}: {wrong}",
                    moment.begun
                );
            }
        }
        println!("{episode:?}: {} states", run.moments.len());
        states += run.moments.len();
    }
    println!("{states} states");
    let missed = planted.iter().flatten().map(|(what, _)| *what);
    let missed: Vec<&str> = missed.collect();
    let may_miss = if is_long() { 0 } else { 1 };
    assert!(
        missed.len() <= may_miss,
        "nobody notices where these are forgotten: {missed:?}"
    );
    assert!(states > if is_long() { 10_000 } else { 1_000 }, "{states}");
}
