//! One run: clients, a controller, both devices, in real time.
//!
//! Each client has one request at a time. It asks again at once, or at its pace where a load is
//! offered; it never catches up, so that a load above what the devices give finds as many requests
//! in flight as there are clients.
//!
//! What it never does: sleep, or allocate while it measures, but for the controller's step.
//!
//! Source: Orthus, section 3; the load is that of `nyx_sim::pair`.

use super::Rig;
use crate::Failure;
use nyx_base::{Clock, Instant, Nanos, Rng};
use nyx_media::queue::{Buffer, Done};
use nyx_policy::nhc::{Both, Kind, Nhc, Side};
use nyx_sim::pair::{
    Desk, Flight, Installs, PairWindow, Place, Then, next_ask, pace_ns, saturating_per_s,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The controller.
    pub nhc: Nhc,
    /// The share of reads that find their block on both devices.
    pub hits: f64,
    /// The share of requests that write.
    pub writes: f64,
    /// Clients, each with one request at a time.
    pub clients: u32,
    /// What they offer, in multiples of what saturates the fast device; as much as they can where
    /// none is said.
    pub load: Option<f64>,
    /// When what was missed is cached.
    pub installs: Installs,
    /// Nothing before counts.
    pub warm_up: Nanos,
    /// For how long is measured, at least: there are more answers than clients, too, so that some
    /// were asked for meanwhile.
    pub length: Nanos,
    /// Of all draws.
    pub seed: u64,
}

/// A request that a device has.
#[derive(Clone, Copy, Debug)]
struct Job {
    flight: Flight,
    block: u64,
    of: Of,
}

/// Whose it is.
#[derive(Clone, Copy, Debug)]
enum Of {
    /// That client's, whose number is the tag.
    Client(Then),
    /// The same client's, who waits for what this read has missed to be cached.
    Install { read: Flight, took: Nanos },
    /// Nobody's.
    Copy,
}

/// See the module.
struct Run<'r> {
    rig: &'r mut Rig,
    cell: Cell,
    desk: Desk,
    rng: Rng,
    pace_ns: f64,
    /// By tag: first those of clients, then those of copies.
    jobs: Box<[Option<Job>]>,
    free_copies: Vec<u32>,
    /// Answers since the warm-up.
    answers: u32,
    /// When clients ask next.
    next: BinaryHeap<Reverse<(Instant, u32)>>,
}

impl Rig {
    /// Runs it.
    pub fn run(&mut self, cell: Cell) -> Result<PairWindow, Failure> {
        let window = Run::new(self, cell).go()?;
        self.drain()?;
        Ok(window)
    }
}

impl<'r> Run<'r> {
    fn new(rig: &'r mut Rig, cell: Cell) -> Run<'r> {
        let alone_ns = Both(Side::ALL.map(|side| rig.costs[side][Kind::Read as usize].alone_ns));
        let controller = cell.nhc.controller(alone_ns);
        let desk = Desk::new(controller, cell.installs, rig.costs, rig.layout.len_bytes);
        let copies: u32 = Desk::COPIES_MAX.0.iter().sum();
        let per_s = saturating_per_s(&rig.costs, cell.writes);
        let load = |load| pace_ns(load, cell.clients, per_s);
        let (pace_ns, now) = (cell.load.map_or(0.0, load), rig.clock.now());
        let mut rng = Rng::with_seed(cell.seed);
        let next = (0..cell.clients).map(|client| {
            let at = now + Nanos((rng.f64() * pace_ns) as u64);
            Reverse((at, client))
        });
        Run {
            answers: 0,
            next: next.collect(),
            jobs: vec![None; (cell.clients + copies) as usize].into(),
            free_copies: (cell.clients..cell.clients + copies).collect(),
            pace_ns,
            rng,
            desk,
            cell,
            rig,
        }
    }

    fn go(mut self) -> Result<PairWindow, Failure> {
        let begin = self.rig.clock.now();
        let warm = begin + self.cell.warm_up;
        let (mut end, mut next_step) = (None, begin + self.desk.period());
        loop {
            let now = self.rig.clock.now();
            if now >= next_step {
                self.desk.step(now);
                next_step = now + self.desk.period();
            }
            match &end {
                None if now >= warm => {
                    self.answers = 0;
                    end = Some((self.desk.window(now), now + self.cell.length));
                }
                Some((first, end)) if now >= *end && self.answers > self.cell.clients => {
                    return Ok(self.desk.window(now).since(first));
                }
                _ => {}
            }
            while let Some(&Reverse((at, client))) = self.next.peek()
                && at <= now
            {
                self.next.pop();
                self.ask(client);
            }
            for side in Side::ALL {
                while let Some(done) = self.rig.queues[side].reap() {
                    self.done(side, done)?;
                }
            }
            std::hint::spin_loop();
        }
    }

    fn ask(&mut self, client: u32) {
        let now = self.rig.clock.now();
        let is_write = self.rng.f64() < self.cell.writes;
        let draw = self.rng.f64();
        let (layout, hits) = (self.rig.layout, self.cell.hits);
        let buffer = self.rig.buffer();
        if is_write {
            let side = self.desk.write(true, draw);
            let block = layout.draw_missed(&mut self.rng);
            let flight = self.desk.begin(Kind::Write, side, now);
            let of = Of::Client(Then::Answer);
            self.jobs[client as usize] = Some(Job { flight, block, of });
            self.rig.submit_write(side, block, buffer, client.into());
            return;
        }
        let block = layout.draw(&mut self.rng, hits);
        let place = match block < layout.kept {
            true => Place::Mirrored,
            false => Place::One(Side::Deep),
        };
        let (side, then) = self.desk.read(place, draw);
        let flight = self.desk.begin(Kind::Read, side, now);
        let of = Of::Client(then);
        self.jobs[client as usize] = Some(Job { flight, block, of });
        self.rig
            .submit(Kind::Read, side, block, buffer, client.into());
    }

    fn done(&mut self, side: Side, done: Done) -> Result<(), Failure> {
        done.result.map_err(|error| self.rig.failed(side, error))?;
        let now = self.rig.clock.now();
        let buffer = done.buffer.expect("reads and writes have one");
        let tag = done.tag as u32;
        let job = self.jobs[tag as usize].take();
        let Job { flight, block, of } = job.expect("it was submitted");
        self.desk.end(&flight);
        if flight.kind == Kind::Read {
            self.rig.check(side, block, &buffer)?;
        }
        let took = now.since(flight.began);
        match of {
            Of::Copy => {
                self.desk.end_copy(side);
                self.free_copies.push(tag);
            }
            Of::Install { read, took } => self.answer(tag, &read, took, now),
            Of::Client(Then::Install) => {
                let read = flight;
                let flight = self.desk.begin_install(now);
                let of = Of::Install { read, took };
                self.jobs[tag as usize] = Some(Job { flight, block, of });
                self.rig.submit_write(Side::Fast, block, buffer, tag.into());
            }
            Of::Client(Then::Copy(to)) => {
                self.copy(to, block, buffer, now);
                self.answer(tag, &flight, took, now);
            }
            Of::Client(Then::Answer) => {
                drop(buffer);
                self.answer(tag, &flight, took, now);
            }
        }
        Ok(())
    }

    /// What was read goes to the other device too, where there are not too many of those.
    fn copy(&mut self, to: Side, block: u64, buffer: Buffer, now: Instant) {
        if !self.desk.begin_copy(to) {
            return;
        }
        let tag = self.free_copies.pop().expect("as many as the desk allows");
        let flight = self.desk.begin(Kind::Write, to, now);
        let of = Of::Copy;
        self.jobs[tag as usize] = Some(Job { flight, block, of });
        self.rig.submit_write(to, block, buffer, tag.into());
    }

    fn answer(&mut self, client: u32, flight: &Flight, took: Nanos, now: Instant) {
        let asked = flight.began;
        self.desk.answered(flight, took, now.since(asked));
        self.answers = self.answers.saturating_add(1);
        let next = next_ask(self.pace_ns, asked, now, self.rng.f64());
        self.next.push(Reverse((next, client)));
    }
}
