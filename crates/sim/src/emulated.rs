//! A scenario in real time, on a modelled device laid over memory: the engine, the gate and the
//! policy take the time that they take on this machine, and the device takes the model's. Numbers
//! from here are *emulated*; two runs differ, whatever their seed.
//!
//! Threads are few, as a server's are: each is one worker of the engine and serves its part of the
//! clients, dealt out to the threads in turn, tenant by tenant, each beginning where the one before
//! it ended. So every tenant has as many clients on each thread as on any other, give or take one,
//! and every thread has as many. In virtual time each client has a thread of its own, and the one
//! that is furthest behind comes first; here, of the clients of a thread that can go on, the one
//! that has had the least of its time (start-time fair queueing, batch by batch; who was away has
//! had as much as whoever is served). So clients share a thread as busy threads share a CPU: a
//! tenant of long batches does not get more than one of short ones. Where a tenant is held, all
//! its clients on that thread are, and the thread goes on with the others. A controlling thread
//! ticks the controller, as a server's does, and reads the windows at their ends.
//!
//! What this shows, and virtual time does not: that what a policy promises is kept where engine,
//! gate and controller cost time, come late, and run side by side.
//!
//! What it cannot show:
//!
//! * *More company than there are threads.* A thread waits for what its batch reads, so at most
//!   `threads` batches are at the device at once, however many clients there are. Clients that
//!   share a thread wait for each other as well as for the device, and a tenant slows another by
//!   the threads' time that it takes. Loads in flight together come from [`Load::batch`].
//! * *Tails.* They are the machine's.
//! * *A device that is quicker than the threads*: take a divided one (`optane-2dimm/8`).
//!
//! So latencies count from when a thread took the batch up, in closed loops: the device, the gate
//! and the waiting after a hold are in them, the waiting for the thread before is not. Who compares
//! closed loops by how fast they were compares throughput, in which it is. In open loops latencies
//! count from when the batch was due, as for whoever sent it. Nothing is taken out of them. How
//! long clients waited for their threads, and what the machine did meanwhile, stands beside the
//! outcome ([`Disturbance`]), for whoever wants to know what to believe. What a hypervisor takes
//! without telling the system does not. A window ends when the controlling thread comes to read it,
//! about 0.1 ms late on a quiet machine.
//!
//! What it never does: sleep in a thread that has clients, so each keeps a CPU busy; begin the
//! clock before all values are stored; stop early. A run that fails takes as long as one that does
//! not.
//!
//! *Thread safety*: threads share the engine, the clock and one counter each, which they write and
//! the controlling thread reads. *Invariant*: a client stays on its thread.
//!
//! [`Load::batch`]: crate::client::Load::batch

use crate::scenario::{
    Caller, HOLD_MOST, Outcome, Reading, Scenario, ScenarioError, WindowOutcome, both_at, parts_of,
};
use nyx_base::{CachePadded, Clock, Counter, DevicePs, Instant, Nanos, Now, TenantId, WorkerId};
use nyx_engine::{Engine, Worker};
use nyx_media::{Emulated, TscClock};
use nyx_policy::Decision;
use nyx_policy::baselines::Unlimited;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::time::Duration;

/// From when the threads are started until the scenario does.
const AHEAD: Nanos = Nanos::from_millis(5);
/// How soon a tenant that waits for the controller is asked again, as in the server.
const ASK_AGAIN: Nanos = Nanos::from_millis(1);
/// How often a thread looks whether it had a CPU.
const LOOK: Nanos = Nanos::from_millis(1);
/// A window is disturbed where its threads had no CPU for more than this part of their time, or
/// where it was read later than this part of its length. On two CPUs and a quiet machine the
/// controlling thread alone takes 2 to 3 % where it ticks every millisecond.
const DISTURBED: f64 = 0.05;

/// How far a run in real time was one of the scenario alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Disturbance {
    /// How many threads served the clients.
    pub threads: u16,
    /// The part of their time in which they had no CPU: the controlling thread had it, or others.
    pub lost: f64,
    /// In how many windows that, or the lateness of the reading, was more than a twentieth.
    pub windows: usize,
    /// Of each tenant, the part of its clients' time in which they could have gone on and their
    /// thread was busy with others.
    pub waited: Vec<f64>,
}

/// As many threads as this process may keep busy.
pub fn threads_default() -> u16 {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(threads).unwrap_or(u16::MAX)
}

/// The frame of a run: what all its threads see.
struct Run<'a> {
    engine: &'a Engine,
    clock: &'a dyn Clock,
    start: Instant,
    end: Instant,
    window: Nanos,
    /// By thread: nanoseconds in which it had no CPU.
    lost_ns: Vec<CachePadded<Counter>>,
}

/// What one thread has: a worker, and its clients.
struct Hand<'a> {
    run: &'a Run<'a>,
    worker: Worker,
    queue: Queue,
    /// By tenant: how long its clients waited for this thread.
    waited: Vec<Nanos>,
}

/// The clients of a thread, and whose turn it is.
struct Queue {
    callers: Vec<Caller>,
    /// By tenant: when it is worth while to ask its gate again.
    opens: Vec<Instant>,
    /// What the client that was served last had had before.
    level: Nanos,
}

impl Scenario {
    /// Runs it in real time with so many threads, at least one and not more than clients: see
    /// [`crate::emulated`]. It takes as long as the scenario is, and the fill. The outcome's traces
    /// have no meaning.
    ///
    /// Errors: where memory or a thread cannot be had. Panics where the policy does.
    pub fn run_emulated(mut self, threads: u16) -> Result<Outcome, ScenarioError> {
        let clock: Arc<dyn Clock> = Arc::new(TscClock::start());
        let mut callers = self.callers();
        let threads = threads.min(callers.len() as u16).max(1);
        let (engine, media) = self.build(Some(threads), |medium, params| {
            medium.pretouch(usize::from(threads));
            Emulated::in_real_time(medium, params, clock.clone())
        })?;
        let worker = |index| engine.worker(WorkerId(index), clock.clone());
        let mut workers: Vec<Worker> = (0..threads).map(worker).collect();
        for tenant in 0..engine.tenants().len() {
            if let Some(caller) = callers.iter_mut().find(|c| c.tenant == tenant) {
                let client = &mut caller.client;
                client.fill(&engine, &mut workers[0], Now::default());
            }
        }
        engine.set_policy(std::mem::replace(&mut self.policy, Box::new(Unlimited)));
        let start = clock.now() + AHEAD;
        callers.iter_mut().for_each(|caller| caller.begin(start));
        let run = Run {
            engine: &engine,
            clock: &*clock,
            start,
            end: start + self.length,
            window: self.window,
            lost_ns: workers.iter().map(|_| CachePadded::default()).collect(),
        };
        let tenants = engine.tenants().len();
        let dealt = deal(callers, |caller| caller.tenant, workers.len());
        let hand = |(worker, callers)| Hand {
            run: &run,
            worker,
            queue: Queue::new(callers, tenants),
            waited: vec![Nanos::ZERO; tenants],
        };
        let hands = workers.into_iter().zip(dealt).map(hand).collect();
        let (watched, hands) = run.play(hands, &|| media.busy())?;
        let callers: Vec<&Caller> = hands.iter().flat_map(|hand| &hand.queue.callers).collect();
        let parts = parts_of(
            &callers,
            [&watched.before, &watched.after],
            &watched.windows,
        );
        Ok(Outcome {
            busy: watched.busy,
            decisions: run.decisions(),
            trace: 0,
            disturbance: Some(run.disturbance(&watched, &hands)),
            parts,
        })
    }
}

/// Deals things out to so many threads, those of a tenant after each other: see the module.
fn deal<T>(mut all: Vec<T>, tenant: impl Fn(&T) -> usize, threads: usize) -> Vec<Vec<T>> {
    all.sort_by_key(tenant);
    let mut dealt: Vec<Vec<T>> = (0..threads).map(|_| Vec::new()).collect();
    for (at, one) in all.into_iter().enumerate() {
        dealt[at % threads].push(one);
    }
    dealt
}

impl Hand<'_> {
    /// Serves its clients from the start to the end.
    fn work(mut self) -> Self {
        let (clock, end) = (self.run.clock, self.run.end);
        clock.spin_until(self.run.start);
        // From then on it should have had a CPU.
        let mut watch = Watch::since(self.run.start);
        loop {
            let now = clock.now();
            let lost = watch.look(now);
            self.run.lost_ns[self.worker.id().index()].add(lost.0);
            if now >= end {
                self.worker.leave();
                return self;
            }
            match self.queue.next(now) {
                Some((at, ready)) if ready <= now => self.step(at, now),
                Some((_, ready)) => clock.spin_until(ready.min(end).min(now + LOOK)),
                None => clock.spin_until(end.min(now + LOOK)),
            }
        }
    }

    fn step(&mut self, at: usize, now: Instant) {
        let ready = self.queue.ready(&self.queue.callers[at]);
        let (run, caller) = (self.run, &mut self.queue.callers[at]);
        if now.since(run.start) >= caller.of.active.end {
            caller.time = Instant::NEVER;
            return;
        }
        let tenant = caller.tenant;
        self.waited[tenant] = self.waited[tenant] + now.since(ready);
        caller.take_up(now);
        let before = caller.client.done().ops;
        let wait = caller
            .client
            .step(run.engine, &mut self.worker, both_at(now));
        let spent = run.clock.now();
        let done = (caller.client.done().ops - before) as u32;
        if done > 0 {
            let took = spent.since(caller.due);
            let tenant = TenantId(tenant as u16);
            run.engine.record(self.worker.id(), tenant, took, done);
        }
        match wait {
            Some(Instant::NEVER) => self.queue.opens[tenant] = spent + ASK_AGAIN,
            Some(until) => self.queue.opens[tenant] = until.min(spent + HOLD_MOST),
            None => caller.next_batch(spent, run.start),
        }
        self.queue.charge(at, spent.since(now));
    }
}

impl Queue {
    fn new(callers: Vec<Caller>, tenants: usize) -> Queue {
        Queue {
            callers,
            opens: vec![Instant(0); tenants],
            level: Nanos::ZERO,
        }
    }

    /// When a client can go on.
    fn ready(&self, caller: &Caller) -> Instant {
        caller.time.max(self.opens[caller.tenant])
    }

    /// Whose turn it is, and from when on: of those that can go on now, whoever has had least.
    fn next(&self, now: Instant) -> Option<(usize, Instant)> {
        let turn = |caller: &Caller| (self.ready(caller).max(now), caller.had.max(self.level));
        let all = self.callers.iter().enumerate();
        let (at, caller) = all.min_by_key(|(_, caller)| turn(caller))?;
        Some((at, self.ready(caller)))
    }

    /// A client has had so much of the thread's time.
    fn charge(&mut self, at: usize, took: Nanos) {
        let caller = &mut self.callers[at];
        self.level = self.level.max(caller.had);
        caller.had = self.level + took;
    }
}

/// Notices when the calling thread has no CPU: time goes by that it was not charged for.
struct Watch {
    looked: Instant,
    cpu_ns: u64,
}

impl Watch {
    fn since(looked: Instant) -> Watch {
        let cpu_ns = thread_cpu_ns();
        Watch { looked, cpu_ns }
    }

    /// Time without a CPU since the last look, where that is due.
    fn look(&mut self, now: Instant) -> Nanos {
        let went_ns = now.since(self.looked).0;
        if went_ns < LOOK.0 {
            return Nanos::ZERO;
        }
        let before = std::mem::replace(self, Watch::since(now));
        Nanos(went_ns.saturating_sub(self.cpu_ns - before.cpu_ns))
    }
}

/// CPU time of the calling thread so far.
fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What the controlling thread saw.
struct Watched {
    /// At the start and at the end.
    before: Vec<Reading>,
    after: Vec<Reading>,
    windows: Vec<Vec<WindowOutcome>>,
    /// How many of them were disturbed.
    disturbed: usize,
    /// What the device did meanwhile.
    busy: DevicePs,
}

impl<'a> Run<'a> {
    /// Runs the threads, and controls them.
    fn play(
        &self,
        hands: Vec<Hand<'a>>,
        busy: &dyn Fn() -> DevicePs,
    ) -> Result<(Watched, Vec<Hand<'a>>), ScenarioError> {
        // The policy is in force before the first request.
        let tick = self.start + self.engine.control(self.start);
        std::thread::scope(|scope| {
            let mut threads = Vec::with_capacity(hands.len());
            for hand in hands {
                let name = format!("nyx-emulated-{}", threads.len());
                let builder = std::thread::Builder::new().name(name);
                let thread = builder.spawn_scoped(scope, move || hand.work());
                threads.push(thread.map_err(ScenarioError::Thread)?);
            }
            let watched = self.control(tick, busy);
            let hands = threads.into_iter().map(|thread| match thread.join() {
                Ok(hand) => hand,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            Ok((watched, hands.collect()))
        })
    }

    /// Ticks the controller until the end, and reads the windows.
    fn control(&self, mut tick: Instant, busy: &dyn Fn() -> DevicePs) -> Watched {
        let (before, busy_before) = (Reading::of(self.engine), busy());
        let (mut last, mut lost) = (before.clone(), Nanos::ZERO);
        let (mut windows, mut disturbed) = (Vec::new(), 0);
        let mut close = self.start + self.window;
        let tolerated_ns = self.window.0 as f64 * DISTURBED;
        loop {
            let next = tick.min(close).min(self.end);
            let left = next.since(self.clock.now());
            std::thread::sleep(Duration::from_nanos(left.0));
            let now = self.clock.now();
            // More than one where this thread was late: what they share is the first one's.
            while close <= now.min(self.end) {
                let (reading, lost_until) = (Reading::of(self.engine), self.lost());
                windows.push(Reading::windows_since(&reading, &last));
                let without = (lost_until.0 - lost.0) as f64 / self.lost_ns.len() as f64;
                let late = now.since(close).0 as f64;
                disturbed += usize::from(without.max(late) > tolerated_ns);
                (last, lost) = (reading, lost_until);
                close += self.window;
            }
            if now >= self.end {
                break;
            }
            if tick <= now {
                tick = now + self.engine.control(now);
            }
        }
        Watched {
            before,
            after: Reading::of(self.engine),
            windows,
            disturbed,
            busy: busy().saturating_sub(busy_before),
        }
    }

    /// Time in which threads had no CPU, all of them together.
    fn lost(&self) -> Nanos {
        Nanos(self.lost_ns.iter().map(|thread| thread.get()).sum())
    }

    /// What the policy did, in the scenario's time.
    fn decisions(&self) -> Vec<Decision> {
        let all = self.engine.decisions_since(0).1.into_iter();
        all.map(|decision| Decision {
            at: Instant(decision.at.since(self.start).0),
            ..decision
        })
        .collect()
    }

    fn disturbance(&self, watched: &Watched, hands: &[Hand<'_>]) -> Disturbance {
        // Threads may come late to the end.
        let took = self.clock.now().since(self.start);
        let length = self.end.since(self.start);
        let waited = |tenant: usize| {
            let callers = hands.iter().flat_map(|hand| &hand.queue.callers);
            let there_s = callers.filter(|caller| caller.tenant == tenant).map(|of| {
                let (begin, end) = (of.of.active.start.min(length), of.of.active.end.min(length));
                (end.0 - begin.0) as f64 / 1e9
            });
            let waited = hands.iter().map(|hand| hand.waited[tenant].as_secs_f64());
            waited.sum::<f64>() / there_s.sum::<f64>().max(1e-9)
        };
        let threads = self.lost_ns.len();
        Disturbance {
            threads: threads as u16,
            lost: self.lost().as_secs_f64() / (threads as f64 * took.as_secs_f64()),
            windows: watched.disturbed,
            waited: (0..watched.after.len()).map(waited).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Load;
    use crate::modelled::Modelled;
    use crate::scenario::Part;
    use nyx_media::model::Params;

    /// One client of long batches, two of short ones.
    fn queue() -> Queue {
        let part = |name: &str, clients| {
            Part::closed(name, Load::uniform(10, 64, 1.0, 1), clients, Nanos(0))
        };
        let scenario = Scenario {
            device: Modelled {
                params: Params::resolve("optane-2dimm/8").expect("a preset"),
                cost: nyx_gate::CostTable::unpriced(),
            },
            parts: vec![part("long", 1), part("short", 2)],
            policy: Box::new(Unlimited),
            length: Nanos::from_secs(1),
            window: Nanos::from_secs(1),
            seed: 1,
        };
        Queue::new(scenario.callers(), 2)
    }

    /// Serves from one time to another; gives what each client had, in microseconds.
    fn serve(queue: &mut Queue, mut now: Instant, until: Instant) -> [u64; 3] {
        let mut had_us = [0; 3];
        while now < until {
            let (at, ready) = queue.next(now).expect("there are clients");
            assert!(ready <= now, "somebody can always go on");
            let took_us = if at == 0 { 85 } else { 3 };
            queue.charge(at, Nanos::from_micros(took_us));
            now += Nanos::from_micros(took_us);
            queue.callers[at].time = now;
            had_us[at] += took_us;
        }
        had_us
    }

    #[test]
    fn clients_share_a_thread_by_time_and_nobody_saves_up_what_he_was_held() {
        let (mut queue, ms) = (queue(), 1_000_000);
        let even = |had_us: [u64; 3]| had_us.iter().all(|had| had.abs_diff(10_000) <= 200);
        let had_us = serve(&mut queue, Instant(0), Instant(30 * ms));
        assert!(even(had_us), "{had_us:?}");
        queue.opens[0] = Instant(60 * ms);
        let had_us = serve(&mut queue, Instant(30 * ms), Instant(60 * ms));
        assert_eq!(had_us[0], 0, "its tenant is held");
        assert!(had_us[1].abs_diff(had_us[2]) <= 3, "{had_us:?}");
        let had_us = serve(&mut queue, Instant(61 * ms), Instant(91 * ms));
        assert!(even(had_us), "{had_us:?}");
    }

    #[test]
    fn who_can_go_on_first_is_waited_for() {
        let mut queue = queue();
        queue.opens = vec![Instant(500), Instant(300)];
        queue.callers[1].time = Instant(400);
        assert_eq!(queue.next(Instant(100)), Some((2, Instant(300))));
        // It has had its part, but there is nobody else.
        queue.charge(2, Nanos::from_micros(9));
        assert_eq!(queue.next(Instant(350)), Some((2, Instant(300))));
        assert_eq!(queue.next(Instant(400)), Some((1, Instant(400))));
    }

    #[test]
    fn every_tenant_and_every_thread_has_as_many_clients_as_any_other() {
        let tenants = [0, 1, 1, 1, 0, 2, 0, 3, 1, 1];
        for threads in 1..=5 {
            let dealt = deal(tenants.to_vec(), |&tenant| tenant, threads);
            let even = |counts: Vec<usize>| {
                let (least, most) = (counts.iter().min(), counts.iter().max());
                most.copied() <= least.map(|least| least + 1)
            };
            let counts = dealt.iter().map(Vec::len).collect::<Vec<usize>>();
            assert_eq!(counts.iter().sum::<usize>(), tenants.len());
            assert!(even(counts), "{threads} threads: {dealt:?}");
            for tenant in 0..4 {
                let of = |hand: &Vec<usize>| hand.iter().filter(|&&one| one == tenant).count();
                assert!(even(dealt.iter().map(of).collect()), "{threads}: {dealt:?}");
            }
        }
    }
}
