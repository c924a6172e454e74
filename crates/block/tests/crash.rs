//! The cache against a client that knows what it may find: random requests, failures of the deep
//! device, kills, power failures at any moment, and another mode each time.

mod rig;

use nyx_base::{Clock, Instant, Nanos, Rng};
use nyx_block::geometry::STRIPE_BYTES;
use nyx_block::{Cache, Command, Costs, Geometry, Mode, Outcome, Piece, Router, Verb};
use nyx_media::queue::{BlockError, BlockOp, Buffer, Pool, Request};
use nyx_policy::nhc::{Choice, Controller, PairSeen, Routing};
use rig::{BLOCK, CHUNK, Client, CrashDeep, CrashFast, Killed, Site, fill};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Two stripes and a half: the last line is short.
const IMAGE: usize = 41 * BLOCK;
const CHUNKS: usize = IMAGE / CHUNK;

/// Nobody waits here.
struct Still;

impl Clock for Still {
    fn now(&self) -> Instant {
        Instant(0)
    }
    fn spin_until(&self, _until: Instant) {}
}

/// Half of what both devices have is read from either, and misses are admitted or not.
#[derive(Debug)]
struct Half {
    admits: bool,
}

impl Controller for Half {
    fn name(&self) -> &'static str {
        "half"
    }
    fn period(&self) -> Nanos {
        Nanos::from_millis(1)
    }
    fn step(&mut self, _now: Instant, _seen: &PairSeen) -> Routing {
        self.start()
    }
    fn start(&self) -> Routing {
        Routing {
            data_admit: self.admits,
            reads: Choice::Share(0.5),
            ..Routing::CLASSIC
        }
    }
}

/// A request of the deep device that is done.
struct Done {
    tag: u64,
    buffer: Option<Buffer>,
    result: Result<(), BlockError>,
}

/// What a request was.
#[derive(Debug)]
enum Asked {
    Read(usize, usize),
    Write(u64),
    Flush,
}

struct World {
    rng: Rng,
    geometry: Geometry,
    mode: Mode,
    fast: CrashFast,
    cache: Option<Cache<CrashFast>>,
    deep: CrashDeep,
    client: Client,
    pool: Pool,
    commands: Vec<Command>,
    /// What the deep device has done and not told of yet.
    done: Vec<Done>,
    asked: BTreeMap<u64, Asked>,
    /// Chunks of zeroes in flight, which do not mix with writes: they have no number.
    zeroes: BTreeMap<u64, (usize, usize)>,
    next: u64,
    faults: bool,
}

fn router(seed: u64) -> Router {
    let rng = Rng::with_seed(seed);
    let admits = !seed.is_multiple_of(4);
    Router::new(
        Box::new(Half { admits }),
        Costs::default(),
        Arc::new(Still),
        rng,
    )
}

fn open(
    fast: CrashFast,
    geometry: Geometry,
    mode: Mode,
    seed: u64,
    has_run: bool,
) -> Cache<CrashFast> {
    let cache = Cache::open(fast, geometry, mode, router(seed), has_run);
    let mut cache = cache.expect("no damage");
    let count = Cache::<CrashFast>::CLEANING_BUFFERS;
    cache.clean_from(Pool::new(count, STRIPE_BYTES as usize).expect("memory"));
    cache
}

impl World {
    fn new(seed: u64, pool: &Pool) -> World {
        let mut rng = Rng::with_seed(seed);
        let line = 4096u64 << rng.u32(..5);
        let slots = rng.u64(1..12);
        let fast_bytes = 4096 + 8192 + slots * (line + 16);
        let geometry = Geometry::fit(fast_bytes, line, IMAGE as u64).expect("fits");
        let mut fast = CrashFast::new(geometry.fast_bytes() as usize);
        Cache::format(&mut fast, &geometry).expect("durable");
        let mode = Mode::ALL[rng.usize(..5)];
        World {
            geometry,
            mode,
            cache: Some(open(fast.clone(), geometry, mode, seed, true)),
            fast,
            deep: CrashDeep::new(IMAGE),
            client: Client::new(IMAGE),
            pool: pool.clone(),
            commands: Vec::new(),
            done: Vec::new(),
            asked: BTreeMap::new(),
            zeroes: BTreeMap::new(),
            next: 1,
            faults: rng.bool(),
            rng,
        }
    }

    fn cache(&mut self) -> &mut Cache<CrashFast> {
        self.cache.as_mut().expect("it is open")
    }

    /// Chunks of one stripe, whole blocks where that is wanted.
    fn range(&mut self, whole: bool) -> (usize, usize) {
        let unit = if whole { BLOCK / CHUNK } else { 1 };
        let first = self.rng.usize(..CHUNKS / unit) * unit;
        let per_stripe = STRIPE_BYTES as usize / CHUNK;
        let end = ((first / per_stripe + 1) * per_stripe).min(CHUNKS);
        let most = ((end - first) / unit).min(if self.rng.u8(..8) == 0 {
            1024
        } else {
            192 / unit
        });
        (first, self.rng.usize(1..=most.max(1)) * unit)
    }

    fn submit(&mut self, token: u64, verb: Verb, (first, len): (usize, usize), value: u64) {
        let (at, len_bytes) = ((first * CHUNK) as u64, (len * CHUNK) as u64);
        let mut buffer = self.pool.take().expect("enough");
        let begin = (at % STRIPE_BYTES) as usize;
        if verb == Verb::Write {
            fill(&mut buffer, u64::MAX);
            fill(&mut buffer[begin..begin + len * CHUNK], value);
        }
        let spare = Some(self.pool.take().expect("enough"));
        self.cache().submit(Piece {
            token,
            verb,
            at,
            len_bytes,
            buffer,
            spare,
        });
    }

    fn overlaps_zeroes(&self, (first, len): (usize, usize)) -> bool {
        let mut zeroes = self.zeroes.values();
        zeroes.any(|&(other, count)| first < other + count && other < first + len)
    }

    fn step(&mut self) -> Result<(), String> {
        let token = self.next;
        self.next += 1;
        match self.rng.u8(..16) {
            0..=4 if self.asked.len() < 12 => {
                let whole = self.rng.u8(..3) > 0;
                let range = self.range(whole);
                if !self.overlaps_zeroes(range) {
                    self.client.write(token, range.0..range.0 + range.1, token);
                    self.asked.insert(token, Asked::Write(token));
                    self.submit(token, Verb::Write, range, token);
                }
            }
            5..=7 if self.asked.len() < 12 => {
                let range = self.range(false);
                self.client.read(token, range.0..range.0 + range.1);
                self.asked.insert(token, Asked::Read(range.0, range.1));
                self.submit(token, Verb::Read, range, 0);
            }
            8 if self.asked.is_empty() => {
                let range = self.range(true);
                self.client.write(token, range.0..range.0 + range.1, 0);
                self.asked.insert(token, Asked::Write(0));
                self.zeroes.insert(token, range);
                self.submit(token, Verb::Zero, range, 0);
            }
            9 => {
                self.client.flush(token);
                self.asked.insert(token, Asked::Flush);
                self.cache().flush(token);
            }
            10 => self.cache().publish(),
            11 => {
                let most = self.rng.u32(..3);
                self.cache().resume_cleaning();
                self.cache().clean(most);
            }
            12 if !self.commands.is_empty() => {
                let at = self.rng.usize(..self.commands.len());
                let command = self.commands.swap_remove(at);
                let done = self.execute(command);
                self.done.push(done);
            }
            13 if !self.done.is_empty() => {
                let at = self.rng.usize(..self.done.len());
                let done = self.done.swap_remove(at);
                self.tell(done);
            }
            _ if !self.commands.is_empty() => {
                let at = self.rng.usize(..self.commands.len());
                let command = self.commands.swap_remove(at);
                self.carry_out(command);
            }
            _ => {}
        }
        self.settle()
    }

    /// The end of a turn.
    fn settle(&mut self) -> Result<(), String> {
        self.cache().barrier();
        while let Some(command) = self.cache().command() {
            self.commands.push(command);
        }
        while let Some(Outcome {
            token,
            buffer,
            result,
        }) = self.cache().outcome()
        {
            self.zeroes.remove(&token);
            match self.asked.remove(&token).expect("asked") {
                Asked::Write(value) => self.client.written(token, value, result.is_ok()),
                Asked::Flush => self.client.flushed(token, result.is_ok()),
                Asked::Read(first, len) => {
                    let begin = first * CHUNK % STRIPE_BYTES as usize;
                    let buffer = buffer.expect("it had one");
                    let bytes = &buffer[begin..begin + len * CHUNK];
                    self.client
                        .was_read(token, result.is_ok().then_some(bytes))?;
                }
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, command: Command) {
        let done = self.execute(command);
        self.tell(done);
    }

    fn tell(&mut self, done: Done) {
        self.cache().complete(done.tag, done.buffer, done.result);
    }

    /// What a request does to the deep device.
    fn execute(&mut self, command: Command) -> Done {
        let Command { request, tag, .. } = command;
        let fails = self.faults && self.rng.u8(..12) == 0;
        let rng = &mut self.rng;
        let mut which = || !fails || rng.bool();
        let (op, buffer): (BlockOp, Option<Buffer>) = match request {
            Request::Read { at, mut into } => {
                match fails {
                    true => fill(&mut into, 0xbad),
                    false => self.deep.read(at, &mut into),
                }
                (BlockOp::Read, Some(into))
            }
            Request::Write { at, from, .. } => {
                self.deep.write(at, &from, &mut which);
                (BlockOp::Write, Some(from))
            }
            Request::Zero { at, len_bytes } => {
                let zeroes = vec![0; len_bytes as usize];
                self.deep.write(at, &zeroes, &mut which);
                (BlockOp::Zero, None)
            }
            Request::Flush => {
                if !fails {
                    self.deep.flush();
                }
                (BlockOp::Flush, None)
            }
        };
        let unable = op == BlockOp::Zero && self.rng.bool();
        let error = BlockError {
            op,
            at: 0,
            len_bytes: 0,
            os_error: Some(if unable { 95 } else { 5 }),
        };
        let result = if fails { Err(error) } else { Ok(()) };
        Done {
            tag,
            buffer,
            result,
        }
    }

    /// The process ends, and perhaps the power; another one begins, in another mode.
    fn crash(&mut self, power_fails: bool) -> Result<(), String> {
        self.done.clear();
        for command in std::mem::take(&mut self.commands) {
            let rng = &mut self.rng;
            match command.request {
                Request::Write { at, from, .. } => self.deep.write(at, &from, || rng.bool()),
                Request::Zero { at, len_bytes } => {
                    let zeroes = vec![0; len_bytes as usize];
                    self.deep.write(at, &zeroes, || rng.bool());
                }
                _ => {}
            }
        }
        self.cache = None;
        self.fast.memory().acts_left = None;
        if power_fails {
            self.fast.memory().lose_power(&mut self.rng);
            self.deep.lose_power(&mut self.rng);
        }
        self.asked.clear();
        self.zeroes.clear();
        self.mode = Mode::ALL[self.rng.usize(..5)];
        let seed = self.rng.u64(..);
        self.cache = Some(open(
            self.fast.clone(),
            self.geometry,
            self.mode,
            seed,
            !power_fails,
        ));
        let bytes = self.read_all();
        self.client.restarted(&bytes, power_fails)
    }

    /// What a client reads.
    fn read_all(&mut self) -> Vec<u8> {
        let faults = std::mem::replace(&mut self.faults, false);
        let mut bytes = vec![0; IMAGE];
        for (stripe, bytes) in bytes.chunks_mut(STRIPE_BYTES as usize).enumerate() {
            let range = (stripe * STRIPE_BYTES as usize / CHUNK, bytes.len() / CHUNK);
            self.submit(u64::MAX - 1, Verb::Read, range, 0);
            let buffer = loop {
                self.cache().barrier();
                if let Some(outcome) = self.cache().outcome() {
                    break outcome.buffer.expect("it had one");
                }
                let command = self.cache().command().expect("it waits for something");
                self.carry_out(command);
            };
            bytes.copy_from_slice(&buffer[..bytes.len()]);
        }
        self.faults = faults;
        bytes
    }

    /// Everything is written back: whoever looks at the image without us sees what clients see.
    fn detach(&mut self) -> Result<(), String> {
        self.faults = false;
        while let Some(done) = self.done.pop() {
            self.tell(done);
        }
        for _ in 0..10_000 {
            self.cache().resume_cleaning();
            self.cache().clean(0);
            self.settle()?;
            match self.commands.pop() {
                Some(command) => self.carry_out(command),
                None if self.cache().filled().1 == 0 => break,
                None => {}
            }
        }
        assert_eq!(self.cache().filled().1, 0, "lines stay dirty");
        let seen = self.read_all();
        let mut image = vec![0; IMAGE];
        self.deep.read(0, &mut image);
        assert!(seen == image, "the image is not what clients see");
        self.client.restarted(&seen, false)
    }
}

/// One life after another; what went wrong, and in which world.
fn live(
    seed: u64,
    pool: &Pool,
    forgets: Option<Site>,
    deep: bool,
) -> (Result<(), String>, Vec<Site>) {
    let mut world = World::new(seed, pool);
    // The barrier of the format has nothing to order: all was zero before.
    world.fast.memory().sites.clear();
    world.fast.memory().forgets = forgets;
    world.deep.forgets = deep;
    let mut result = Ok(());
    for _ in 0..10 {
        // Some live to see nothing but what the last one left.
        let most = [12, 60, 300][world.rng.usize(..3)];
        let acts = world.rng.u32(..most);
        world.fast.memory().acts_left = Some(acts);
        let life = AssertUnwindSafe(|| (0..120).try_for_each(|_| world.step()));
        let lived = catch_unwind(life).unwrap_or_else(|why| match why.is::<Killed>() {
            true => Ok(()),
            false => std::panic::resume_unwind(why),
        });
        result = result.and(lived);
        let power_fails = world.rng.u8(..3) > 0;
        result = result.and_then(|()| world.crash(power_fails));
    }
    if forgets.is_none() && !deep {
        result = result.and_then(|()| world.detach());
    }
    let sites = world.fast.memory().sites.iter().copied().collect();
    let line = world.geometry;
    let mode = world.mode;
    (
        result.map_err(|why| format!("seed {seed} ({line}, last {mode}): {why}")),
        sites,
    )
}

fn pool() -> Pool {
    Pool::new(64, STRIPE_BYTES as usize).expect("memory")
}

#[test]
fn nothing_flushed_is_lost_and_nothing_stale_is_read() {
    let worlds = std::env::var("NYX_BLOCK_WORLDS").map_or(300, |n| n.parse().expect("a number"));
    let first = std::env::var("NYX_BLOCK_SEED").map_or(0, |n| n.parse().expect("a number"));
    let pool = pool();
    for seed in first..first + worlds {
        give_up_twice(seed, &pool, None).expect("sound");
        live(seed, &pool, None, false).0.expect("sound");
    }
}

/// A kill between a record's store and its barrier, then another process, then a power failure:
/// a slot that was given up must not be found with its old line and the bytes of its new one.
fn give_up_twice(seed: u64, pool: &Pool, forgets: Option<Site>) -> Result<(), String> {
    let mut world = World::new(seed, pool);
    let geometry = Geometry::fit(20_480, 4096, IMAGE as u64).expect("fits");
    world.geometry = geometry;
    world.fast = CrashFast::new(20_480);
    world.faults = false;
    let block = BLOCK / CHUNK;
    for life in 0..2 {
        world.cache = Some(open(world.fast.clone(), geometry, Mode::WriteBack, 1, true));
        world.fast.memory().forgets = forgets;
        if life == 0 {
            // The only slot has the first line, and says so.
            world.read_all();
            world.client.read(1, 0..block);
            world.asked.insert(1, Asked::Read(0, block));
            world.submit(1, Verb::Read, (0, block), 0);
            world.cache().publish();
            for _ in 0..8 {
                world.settle()?;
                if let Some(command) = world.commands.pop() {
                    world.carry_out(command);
                }
            }
            world.cache().publish();
            for _ in 0..8 {
                world.settle()?;
                if let Some(command) = world.commands.pop() {
                    world.carry_out(command);
                }
            }
            assert_eq!(world.cache().filled(), (1, 0));
            // Killed after the store of its record.
            world.fast.memory().acts_left = Some(1);
        }
        let token = 10 + life;
        world.client.write(token, 64..64 + block, token);
        world.asked.insert(token, Asked::Write(token));
        let write = |world: &mut World| {
            world.submit(token, Verb::Write, (64, block), token);
            world.settle()
        };
        match catch_unwind(AssertUnwindSafe(|| write(&mut world))) {
            Ok(result) => result?,
            Err(why) if why.is::<Killed>() => {}
            Err(why) => std::panic::resume_unwind(why),
        }
        world.asked.clear();
    }
    world.crash(true)
}

/// The check notices each barrier that is taken away.
#[test]
fn every_barrier_matters() {
    let pool = pool();
    let mut sites: Vec<Site> = (0..40)
        .flat_map(|seed| live(seed, &pool, None, false).1)
        .collect();
    sites.sort();
    sites.dedup();
    assert!(sites.len() >= 4, "{sites:?}");
    for site in sites {
        let notices = |seed| {
            live(seed, &pool, Some(site), false).0.is_err()
                || give_up_twice(seed, &pool, Some(site)).is_err()
        };
        let noticed = (0..300).any(notices);
        assert!(noticed, "nobody misses the barrier at {site:?}");
    }
    let noticed = (0..300).any(|seed| live(seed, &pool, None, true).0.is_err());
    assert!(noticed, "nobody misses the flushes of the deep device");
}
