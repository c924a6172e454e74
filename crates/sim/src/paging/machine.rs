//! Processors in virtual time: some run programs, one reclaims. They tell whoever ages the pages
//! ([`Ageing`]) what happens to them, and carry out what it answers.
//!
//! What an act does to memory and tables is done at once, in the order of the acts; its time is
//! paid by the processor that carries it out, and a request reaches the device when its software is
//! over. Interrupts come to the processor that submitted; they take its time, between two parts.
//!
//! Nyx's pager learns which pages are used by unmapping them early, since there are no accessed
//! bits in user space. The paper's kernels have these bits, and dirty bits: a touch of a page that
//! was unmapped and is not on its way out, and a first write, take no time here, as there.
//!
//! What it never does: decide which page leaves; draw by chance. *Thread safety*: one owner.
//! *Invariants*: no more pages in memory than the limit, counted anew beside the ager (U12).

mod cpu;
mod reads;

use super::ageing::{Ageing, Ages};
use super::costs::{Costs, Part, Parts};
use super::device::{Device, PAGE_BYTES, Request, Service};
use super::lists::Writes;
use super::program::Touch;
use cpu::{Block, Cpu, Effect, Task};
use nyx_base::{Instant, Nanos};
use nyx_policy::paging::pager::{Act, CLUSTER_PAGES_MAX, Counts, Prefetch, Shape, State};
use nyx_policy::paging::pool::{self, Pool, Rule};

/// Pages that are reclaimed at once (`SWAP_CLUSTER_MAX`).
const BATCH_PAGES: u32 = 32;

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// One queue in the order of addresses, completed by interrupts, plugged; who faults reclaims.
    Linux,
    /// All of it: critical pages first and polled, the others and writes by interrupts in a queue
    /// of their own, reclaim on a processor of its own.
    Ultraswap,
    /// As `Ultraswap`, but nothing is polled (section 4.4.1).
    InterruptOnly,
    /// As `Ultraswap`, but all is polled: whoever submits waits.
    PollOnly,
    /// As `Ultraswap`, but who faults reclaims (section 4.4.2).
    NoOffload,
    /// As `Linux`, but pages are copied from memory (section 4.2).
    Ideal,
}

impl Variant {
    /// All.
    pub const ALL: [Variant; 6] = [
        Variant::Linux,
        Variant::Ultraswap,
        Variant::InterruptOnly,
        Variant::PollOnly,
        Variant::NoOffload,
        Variant::Ideal,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Linux => "linux",
            Variant::Ultraswap => "ultraswap",
            Variant::InterruptOnly => "interrupt-only",
            Variant::PollOnly => "poll-only",
            Variant::NoOffload => "no-offload",
            Variant::Ideal => "ideal",
        }
    }

    fn has_reclaimer(self) -> bool {
        !matches!(self, Variant::Linux | Variant::NoOffload | Variant::Ideal)
    }

    /// Whether a page has been written when its write returns.
    fn writes(self) -> Writes {
        match self {
            Variant::PollOnly | Variant::Ideal => Writes::Synchronous,
            _ => Writes::Asynchronous,
        }
    }

    fn polls_critical(self) -> bool {
        matches!(
            self,
            Variant::Ultraswap | Variant::PollOnly | Variant::NoOffload
        )
    }
}

/// A machine.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// What it does.
    pub variant: Variant,
    /// How it ages pages.
    pub ageing: Ageing,
    /// What its software takes.
    pub costs: Costs,
    /// How the device serves a queue.
    pub service: Service,
    /// Pages that may be in memory.
    pub limit_pages: u32,
    /// Places on the device.
    pub slots: u32,
    /// When reclaim begins, where the variant is not Linux' own.
    pub rule: Rule,
    /// What is read ahead.
    pub prefetch: Prefetch,
    /// The reclaimer never runs (a fault that is put in).
    pub is_reclaimer_stopped: bool,
    /// Keep what happened at the device.
    pub has_log: bool,
}

impl Setup {
    /// The paper's machine with so many pages of memory, which Nyx's pager ages.
    pub fn new(variant: Variant, limit_pages: u32) -> Setup {
        Setup {
            variant,
            ageing: Ageing::Nyx,
            costs: Costs::PAPER,
            service: Service::Parallel,
            limit_pages,
            slots: u32::MAX,
            rule: Rule::Demand,
            prefetch: Prefetch::Cluster,
            is_reclaimer_stopped: false,
            has_log: false,
        }
    }
}

/// What happened at the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request came.
    Submitted(Request),
    /// It was done.
    Done(Request),
    /// A program goes on after a fault.
    Resumed {
        /// The page.
        page: u32,
    },
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Until the last program ended.
    pub run_ns: u64,
    /// Time of the processors that run programs.
    pub programs: Parts,
    /// Time of the one that reclaims.
    pub reclaimer: Parts,
    /// What the ager counted.
    pub counts: Counts,
    /// From each touch that needs the device until the program goes on, sorted.
    pub fault_ns: Vec<u64>,
    /// From each critical read's submission until it is done, sorted.
    pub critical_ns: Vec<u64>,
    /// What of it was spun for, sorted (U3).
    pub spin_after_submit_ns: Vec<u64>,
    /// Touches of pages that could not be had.
    pub failed_touches: u64,
    /// Pages in memory at most.
    pub used_pages_max: u32,
    /// What happened at the device, where it is kept.
    pub log: Vec<(Instant, Event)>,
}

impl Outcome {
    /// The value below which `part` of sorted ones are; zero of none.
    pub fn quantile(sorted: &[u64], part: f64) -> u64 {
        let at = (sorted.len() as f64 * part) as usize;
        let last = sorted.len().saturating_sub(1);
        sorted.get(at.min(last)).copied().unwrap_or(0)
    }

    /// Time of all processors.
    pub fn cpu_ns(&self) -> u64 {
        let busy = |parts: &Parts| parts.sum(Part::is_busy);
        busy(&self.programs) + busy(&self.reclaimer)
    }
}

/// What is known of a page besides what the ager knows.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Mapped, and whether it may be written to.
    mapped: Option<bool>,
    /// In memory.
    has_frame: bool,
    /// Its table entry was taken away for good, so that a touch goes through the swap cache.
    is_leaving: bool,
    /// Read ahead, and not touched yet.
    is_ahead: bool,
}

struct Machine {
    setup: Setup,
    ager: Box<dyn Ages>,
    pool: Pool,
    device: Device,
    pages: Vec<Page>,
    frames: u32,
    /// Those of the programs, and the reclaimer last.
    cpus: Vec<Cpu>,
    writing: u32,
    is_awake: bool,
    /// It found nothing to reclaim, and waits for writes.
    is_short: bool,
    acts: Vec<Act>,
    out: Outcome,
}

/// Runs programs that share so many pages until all have ended, each on a processor of its own.
///
/// # Panics
///
/// Where the ager breaks its word: more pages in memory than may be, or a program that waits for
/// ever.
pub fn run(setup: &Setup, pages: u32, programs: &[&[Touch]]) -> Outcome {
    let mut machine = Machine::new(setup, pages, programs);
    while let Some((at, cpu)) = machine.next() {
        match cpu {
            None => machine.device_events(at),
            Some(cpu) => machine.step(cpu),
        }
    }
    machine.finish()
}

impl Machine {
    fn new(setup: &Setup, pages: u32, programs: &[&[Touch]]) -> Machine {
        let programs = programs.iter().map(|touches| Cpu::new(touches.to_vec()));
        let cpus: Vec<Cpu> = programs.chain([Cpu::new(Vec::new())]).collect();
        let floor_bytes = u64::from(BATCH_PAGES) * PAGE_BYTES;
        let shape = Shape {
            pages,
            limit_pages: setup.limit_pages,
            slots: setup.slots.min(pages),
            prefetch: setup.prefetch,
        };
        Machine {
            setup: *setup,
            ager: setup.ageing.start(shape, setup.variant.writes()),
            pool: Pool::new(setup.rule, floor_bytes),
            // Two for each processor: of interrupts, and polled.
            device: Device::new(setup.service, cpus.len() * 2),
            pages: vec![Page::default(); pages as usize],
            frames: 0,
            cpus,
            writing: 0,
            is_awake: false,
            is_short: false,
            acts: Vec::new(),
            out: Outcome::default(),
        }
    }

    fn reclaimer(&self) -> usize {
        self.cpus.len() - 1
    }

    fn finish(mut self) -> Outcome {
        assert!(
            self.cpus.iter().all(|cpu| cpu.want.is_none()),
            "a program waits for ever"
        );
        let reclaimer = self.reclaimer();
        for (at, cpu) in self.cpus.iter().enumerate() {
            match at == reclaimer {
                true => self.out.reclaimer.add_all(&cpu.parts),
                false => self.out.programs.add_all(&cpu.parts),
            }
        }
        self.out.counts = self.ager.counts();
        self.out.fault_ns.sort_unstable();
        self.out.critical_ns.sort_unstable();
        self.out.spin_after_submit_ns.sort_unstable();
        self.out
    }

    /// Who is next, and when; the device (none) before processors.
    fn next(&self) -> Option<(Instant, Option<usize>)> {
        let device = self.device.next_event().map(|at| (at, None));
        let cpus = (0..self.cpus.len()).filter(|&cpu| self.is_runnable(cpu));
        let cpus = cpus.map(|cpu| (self.cpus[cpu].at, Some(cpu)));
        device.into_iter().chain(cpus).min_by_key(|&(at, cpu)| {
            let order = cpu.map_or(0, |cpu| cpu + 1);
            (at, order)
        })
    }

    fn is_runnable(&self, cpu: usize) -> bool {
        let one = &self.cpus[cpu];
        if one.pending.is_some() || !one.interrupts.is_empty() {
            return true;
        }
        match one.block {
            Some(block) => one.is_over(block),
            None => !one.tasks.is_empty() || one.has_touches(),
        }
    }

    fn device_events(&mut self, now: Instant) {
        while let Some(request) = self.device.done(now) {
            self.log(now, Event::Done(request));
            if request.is_critical {
                let took = now.since(request.submitted);
                self.out.critical_ns.push(took.0);
            }
            let cpu = &mut self.cpus[request.queue / 2];
            match request.queue % 2 {
                0 => {
                    cpu.interrupts.push_back(request);
                    cpu.at = cpu.at.max(now);
                }
                _ => {
                    cpu.polled.push((request.page, request.is_write));
                    if cpu.block.is_some() {
                        cpu.at = cpu.at.max(now);
                    }
                }
            }
        }
    }

    fn log(&mut self, now: Instant, event: Event) {
        if self.setup.has_log {
            self.out.log.push((now, event));
        }
    }

    /// The processor does what comes next.
    fn step(&mut self, cpu: usize) {
        let one = &mut self.cpus[cpu];
        if let Some(effect) = one.pending.take() {
            return self.apply(cpu, effect);
        }
        if let Some(request) = one.interrupts.pop_front() {
            return self.interrupt(cpu, request);
        }
        if one.block.is_some() {
            if let Some(ns) = one.unblock() {
                self.out.spin_after_submit_ns.push(ns);
            }
            return;
        }
        if let Some(task) = one.tasks.pop_front() {
            return one.begin(task);
        }
        self.touch(cpu);
    }

    fn interrupt(&mut self, cpu: usize, request: Request) {
        let costs = &self.setup.costs;
        let (part, ns, effect) = match request.is_write {
            true => (
                Part::WriteComplete,
                costs.write_interrupt_ns,
                Effect::WriteDone(request.page),
            ),
            false => {
                let wakes = |one: &Cpu| one.is_asleep() && one.waits_for(request.page);
                let wake_up_ns = match self.cpus.iter().any(wakes) {
                    true => costs.wake_up_ns,
                    false => 0,
                };
                let ns = costs.interrupt_ns + wake_up_ns;
                (Part::Complete, ns, Effect::ReadDone(request.page))
            }
        };
        let one = &mut self.cpus[cpu];
        one.account_block();
        one.begin(Task { part, ns, effect });
        one.block_again();
    }

    fn apply(&mut self, cpu: usize, effect: Effect) {
        let now = self.cpus[cpu].at;
        match effect {
            Effect::None => {}
            Effect::Fault => self.fault(cpu),
            Effect::Submit {
                page,
                is_write,
                is_critical,
                is_polled,
            } => {
                let request = Request {
                    page,
                    is_write,
                    is_critical,
                    queue: cpu * 2 + usize::from(is_polled),
                    submitted: now,
                };
                self.log(now, Event::Submitted(request));
                self.device.submit(request);
            }
            Effect::Sleep => self.sleep(cpu),
            Effect::Spin {
                page,
                is_write,
                is_critical,
            } => self.cpus[cpu].block(Block::Spin {
                page,
                is_write,
                is_critical,
                ns: 0,
            }),
            Effect::ReadDone(page) => {
                self.ager.read_done(page, &mut self.acts);
                self.carry_out(cpu);
            }
            Effect::WriteDone(page) => self.write_done(cpu, page),
            Effect::Resume => self.resume(cpu),
            Effect::Reclaim { down_to } => self.reclaim(cpu, down_to),
        }
    }

    fn write_done(&mut self, cpu: usize, page: u32) {
        self.writing -= 1;
        self.ager.write_done(page, &mut self.acts);
        self.carry_out(cpu);
        if std::mem::take(&mut self.is_short) {
            self.begin_reclaim(self.cpus[cpu].at);
        }
    }

    /// A program touches its next page, or that again for which it faulted.
    fn touch(&mut self, cpu: usize) {
        let now = self.cpus[cpu].at;
        let Some(touch) = self.cpus[cpu].wants() else {
            return;
        };
        let page = self.pages[touch.page as usize];
        if page
            .mapped
            .is_some_and(|writable| writable || !touch.is_write)
        {
            self.ager.touched(touch.page);
            let one = &mut self.cpus[cpu];
            if let Some(began) = one.fault_began.take()
                && std::mem::take(&mut one.is_major)
            {
                self.out.fault_ns.push(now.since(began).0);
            }
            one.went_on();
            one.begin(Task {
                part: Part::Compute,
                ns: u64::from(touch.compute_ns),
                effect: Effect::None,
            });
            self.out.run_ns = self.out.run_ns.max(one.at.0);
            return;
        }
        let state = self.ager.state(touch.page);
        let costs = &self.setup.costs;
        let is_by_bits = match state {
            State::Resident => true,
            State::Unmapped => !page.is_leaving && !page.is_ahead,
            _ => false,
        };
        let one = &mut self.cpus[cpu];
        one.fault_began.get_or_insert(now);
        one.is_by_bits = is_by_bits;
        one.is_hit = state == State::Unmapped;
        let (part, ns) = match state {
            State::OnDevice | State::Reading => {
                one.is_major |= state == State::OnDevice;
                (Part::Lookup, costs.lookup_ns)
            }
            State::Unmapped if !is_by_bits => (Part::Hit, costs.lookup_ns),
            _ => (Part::Fresh, 0),
        };
        one.begin(Task {
            part,
            ns,
            effect: Effect::Fault,
        });
    }

    fn fault(&mut self, cpu: usize) {
        let one = &mut self.cpus[cpu];
        let Some(touch) = one.want else {
            return;
        };
        one.is_waiting = true;
        self.ager.fault(touch.page, touch.is_write, &mut self.acts);
        self.carry_out(cpu);
        if !self.cpus[cpu].is_waiting {
            return;
        }
        if self.ager.wants_room(touch.page) {
            let down_to = self.setup.limit_pages - self.batch_pages().max(1);
            self.cpus[cpu].then(Part::Take, 0, Effect::Reclaim { down_to });
        }
        self.cpus[cpu].then(Part::Device, 0, Effect::Sleep);
    }

    /// Sleeps until its page is mapped, once it has nothing else to do.
    fn sleep(&mut self, cpu: usize) {
        let one = &mut self.cpus[cpu];
        let Some(touch) = one.want.filter(|_| one.is_waiting) else {
            return;
        };
        one.tasks.retain(|task| task.effect != Effect::Sleep);
        if !one.tasks.is_empty() {
            return one.then(Part::Device, 0, Effect::Sleep);
        }
        let part = match self.ager.state(touch.page) {
            State::Reading => Part::Device,
            _ => Part::Room,
        };
        one.block(Block::Sleep { part });
    }

    /// A fault is over: is there memory for the next?
    fn resume(&mut self, cpu: usize) {
        let now = self.cpus[cpu].at;
        if let Some(touch) = self.cpus[cpu].want {
            self.log(now, Event::Resumed { page: touch.page });
        }
        let Some(down_to) = self.level(now) else {
            return;
        };
        if !self.setup.variant.has_reclaimer() {
            return self.cpus[cpu].then(Part::Take, 0, Effect::Reclaim { down_to });
        }
        if !self.is_awake && !self.is_short && !self.setup.is_reclaimer_stopped {
            let wake_ns = self.setup.costs.wake_ns;
            self.cpus[cpu].then(Part::Wake, wake_ns, Effect::None);
            self.begin_reclaim(now + Nanos(wake_ns));
        }
    }

    /// Pages that are free after a reclaim by who faults.
    fn batch_pages(&self) -> u32 {
        BATCH_PAGES.min(self.setup.limit_pages / 4)
    }

    /// How many pages may be used after a reclaim, where there is to be one.
    fn level(&mut self, now: Instant) -> Option<u32> {
        let (used, limit) = (self.ager.used_pages(), self.setup.limit_pages);
        if matches!(self.setup.variant, Variant::Linux | Variant::Ideal) {
            let least = CLUSTER_PAGES_MAX.min(limit / 8);
            return (limit - used < least).then_some(limit - self.batch_pages());
        }
        let bytes = |pages: u32| u64::from(pages) * PAGE_BYTES;
        let free = bytes(limit - used);
        if free >= self.pool.levels(bytes(limit)).low {
            return None;
        }
        match self.pool.look(now, bytes(used), bytes(limit)) {
            pool::Act::Reclaim { down_to } => Some((down_to / PAGE_BYTES) as u32),
            pool::Act::Sleep(_) => None,
        }
    }

    fn begin_reclaim(&mut self, now: Instant) {
        let level = self.level(now);
        self.is_awake = level.is_some();
        if let Some(down_to) = level {
            let reclaimer = self.reclaimer();
            let one = &mut self.cpus[reclaimer];
            one.at = one.at.max(now);
            one.then(Part::Take, 0, Effect::Reclaim { down_to });
        }
    }

    fn reclaim(&mut self, cpu: usize, down_to: u32) {
        let now = self.cpus[cpu].at;
        let too_many = self.ager.used_pages().saturating_sub(down_to);
        let is_reclaimer = cpu == self.reclaimer();
        if too_many > 0 {
            let wanted = too_many.min(BATCH_PAGES);
            let freed = self.ager.reclaim(cpu, wanted, &mut self.acts);
            let has_begun = self.acts.iter().any(|act| matches!(act, Act::Write { .. }));
            self.carry_out(cpu);
            if freed > 0 || has_begun {
                return self.cpus[cpu].then(Part::Take, 0, Effect::Reclaim { down_to });
            }
            self.is_short = is_reclaimer && self.writing > 0;
        }
        self.ager.reclaimed(cpu);
        if is_reclaimer {
            self.is_awake = false;
            let used = u64::from(self.ager.used_pages()) * PAGE_BYTES;
            self.pool.reclaimed(now, used);
        }
    }

    /// Does what the ager has answered: to the tables now, to the processor's time after what it
    /// has to do already.
    fn carry_out(&mut self, cpu: usize) {
        let now = self.cpus[cpu].at;
        let mut acts = std::mem::take(&mut self.acts);
        let mut reads = reads::Reads::default();
        for act in acts.drain(..) {
            match act {
                Act::Zero { page, writable } => {
                    self.take_frame(page);
                    let ns = self.setup.costs.fresh_ns;
                    self.map(now, page, writable, (Part::Fresh, ns));
                }
                Act::Map { page, writable } => {
                    let ns = self.setup.costs.map_ns;
                    self.map(now, page, writable, (Part::Map, ns));
                }
                Act::Allow { page } => self.pages[page as usize].mapped = Some(true),
                Act::Unmap { page } => {
                    self.pages[page as usize].mapped = None;
                    self.cpus[cpu].then(Part::Take, self.setup.costs.take_ns, Effect::None);
                }
                Act::Read {
                    page, is_critical, ..
                } => {
                    self.take_frame(page);
                    self.pages[page as usize].is_ahead = !is_critical;
                    reads.push(page, is_critical);
                }
                Act::Write { page, .. } => self.write(cpu, page),
                Act::Free { page } => self.free(cpu, page),
                Act::Fail { page, .. } => self.fail(now, page),
            }
        }
        self.acts = acts;
        self.plan(cpu, &reads);
        assert_eq!(self.frames, self.ager.used_pages());
        assert!(self.frames <= self.setup.limit_pages);
        self.out.used_pages_max = self.out.used_pages_max.max(self.frames);
    }

    fn take_frame(&mut self, page: u32) {
        let page = &mut self.pages[page as usize];
        assert!(!page.has_frame, "it is in memory already");
        *page = Page {
            has_frame: true,
            ..Page::default()
        };
        self.frames += 1;
    }

    /// All that wait for the page go on.
    fn map(&mut self, now: Instant, page: u32, writable: bool, paid: (Part, u64)) {
        let known = &mut self.pages[page as usize];
        known.mapped = Some(writable);
        (known.is_leaving, known.is_ahead) = (false, false);
        let waiting = self.cpus.iter_mut().filter(|one| one.waits_for(page));
        for one in waiting {
            let (part, ns) = match one.is_hit {
                _ if one.is_by_bits => (paid.0, 0),
                true => (Part::Hit, paid.1),
                false => paid,
            };
            one.is_waiting = false;
            one.at = one.at.max(now);
            one.then(part, ns, Effect::Resume);
        }
    }

    /// Those that wait for the page do without it.
    fn fail(&mut self, now: Instant, page: u32) {
        let waiting = self.cpus.iter_mut().filter(|one| one.waits_for(page));
        for one in waiting {
            one.is_waiting = false;
            one.went_on();
            (one.fault_began, one.is_major) = (None, false);
            one.at = one.at.max(now);
            one.then(Part::Map, 0, Effect::None);
            self.out.failed_touches += 1;
        }
    }

    fn write(&mut self, cpu: usize, page: u32) {
        self.pages[page as usize].is_leaving = true;
        self.writing += 1;
        let costs = self.setup.costs;
        let variant = self.setup.variant;
        let is_polled = variant == Variant::PollOnly;
        let one = &mut self.cpus[cpu];
        one.then(Part::Slot, costs.slot_ns, Effect::None);
        one.then(Part::Unmap, costs.unmap_ns, Effect::None);
        let submit = Effect::Submit {
            page,
            is_write: true,
            is_critical: false,
            is_polled,
        };
        match variant {
            Variant::Ideal => {
                one.then(Part::WriteSubmit, costs.copy_ns, Effect::WriteDone(page));
            }
            Variant::PollOnly => {
                one.then(Part::WriteSubmit, costs.poll_write_ns, submit);
                one.spin_for(page, true, false);
                one.then(Part::WriteComplete, 0, Effect::WriteDone(page));
            }
            Variant::Linux => one.then(Part::WriteSubmit, costs.write_submit_ns, submit),
            _ => one.then(Part::WriteSubmit, costs.write_submit_light_ns, submit),
        }
    }

    fn free(&mut self, cpu: usize, page: u32) {
        let known = &mut self.pages[page as usize];
        assert!(known.has_frame && known.mapped.is_none());
        let costs = &self.setup.costs;
        if !known.is_leaving && !known.is_ahead {
            self.cpus[cpu].then(Part::Unmap, costs.unmap_ns, Effect::None);
        }
        self.cpus[cpu].then(Part::Free, costs.free_ns, Effect::None);
        *known = Page::default();
        self.frames -= 1;
    }
}
