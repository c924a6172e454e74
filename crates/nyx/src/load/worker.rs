//! One generator thread: its connections, its tenants' streams, and the loop over them.
//!
//! A connection of a closed loop sends `depth` requests in one write, reads all replies and sends
//! the next; one of an open loop sends each request when it is due, with up to `depth` outstanding,
//! and its latency counts from when it was due, however late it was sent.
//!
//! What it never does: share anything with another generator thread but the phase and its figures.

use super::LoadError;
use super::cpu;
use super::link::{Ask, Link, Reading};
use super::plan::Plan;
use super::shared::{Figures, Phase, Shared};
use super::sift::Sift;
use super::stream::{Conn, Desk, Stream};
use super::tally::{Counts, Tally};
use super::ycsb::counter::Counter;
use mio::{Events, Poll, Token};
use nyx_sim::workload::Values;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An open loop sleeps only where nothing is due for this long, in nanoseconds: a wake-up is late
/// by up to a millisecond.
const SPIN_NS: u64 = 2_000_000;
/// How long a sleeping generator may overlook the end of a phase.
const NAP: Duration = Duration::from_millis(20);
/// How long the last replies are waited for when a run is over.
const LAST_REPLIES: Duration = Duration::from_secs(2);
/// How often figures are handed over while a run is on, in nanoseconds.
const PUBLISH_NS: u64 = 200_000_000;

/// What a thread brings home, by tenant.
#[derive(Debug)]
pub(crate) struct Yield {
    /// What was measured.
    pub(crate) tally: Tally,
    /// What happened while the keys were stored.
    pub(crate) fill: Counts,
    /// Requests that were due when the run ended and had not been sent.
    pub(crate) unsent: u64,
}

/// One generator thread.
pub(crate) struct Worker<'a> {
    plan: &'a Plan,
    shared: &'a Shared,
    figures: &'a Figures,
    values: Values,
    poll: Poll,
    conns: Vec<Conn>,
    streams: Vec<Stream>,
    phase: Phase,
    /// Keys that it may ask for while it measures.
    quota: u64,
    moved_ns: u64,
    published_ns: u64,
    reported: bool,
    sift: Option<Sift>,
}

impl<'a> Worker<'a> {
    /// Thread `index` of the run, connected. `quota` bounds the keys that it asks for per tenant
    /// while it measures.
    pub(crate) fn new(
        plan: &'a Plan,
        shared: &'a Shared,
        index: usize,
        quota: u64,
    ) -> Result<Worker<'a>, LoadError> {
        if !plan.pins.is_empty() {
            cpu::pin(plan.pins[index % plan.pins.len()])?;
        }
        let system = |source| LoadError::System {
            what: "cannot make a poller".into(),
            source,
        };
        let poll = Poll::new().map_err(system)?;
        let (mut conns, mut streams) = (Vec::new(), Vec::new());
        for (number, tenant) in plan.tenants.iter().enumerate() {
            let share = share(tenant.connections, plan.threads, index);
            let first = conns.len();
            for _ in share.clone() {
                let socket = tenant.address.connect(tenant.login.as_ref())?;
                let mut link = Link::new(socket, tenant.address.clone());
                link.socket()
                    .register(poll.registry(), Token(conns.len()))
                    .map_err(system)?;
                conns.push(Conn {
                    link,
                    stream: number,
                    sequels: VecDeque::new(),
                });
            }
            let stream_number = (number * plan.threads + index) as u64;
            let stream = Stream::new(plan, tenant, stream_number, share, first..conns.len())?;
            streams.push(stream);
        }
        Ok(Worker {
            plan,
            shared,
            figures: &shared.figures[index],
            values: Values::new(),
            poll,
            conns,
            streams,
            phase: Phase::Fill,
            quota,
            moved_ns: shared.now_ns(),
            published_ns: 0,
            reported: false,
            sift: plan.sift.map(Sift::new).transpose()?,
        })
    }

    /// Runs to the end of the run and gives what was counted, by tenant.
    pub(crate) fn run(mut self) -> Result<Vec<Yield>, LoadError> {
        let mut events = Events::with_capacity(1024);
        let mut now_ns = self.shared.now_ns();
        (self.streams.iter_mut()).for_each(|stream| stream.due_ns = now_ns as f64);
        (0..self.conns.len()).try_for_each(|i| self.next_batch(i, now_ns))?;
        while self.phase != Phase::Stop {
            if self.shared.phase() != self.phase {
                self.enter(now_ns)?;
                continue;
            }
            self.wait(&mut events, self.timeout(now_ns))?;
            self.serve(&events)?;
            now_ns = self.shared.now_ns();
            self.send_due(now_ns)?;
            self.report_done();
            self.sift(now_ns);
            self.watch(now_ns)?;
        }
        self.last_replies(&mut events)?;
        Ok((self.streams.into_iter())
            .map(|s| Yield {
                tally: s.total,
                fill: s.fill,
                unsent: s.unsent,
            })
            .collect())
    }

    fn wait(&mut self, events: &mut Events, timeout: Duration) -> Result<(), LoadError> {
        match self.poll.poll(events, Some(timeout)) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(LoadError::System {
                what: "cannot wait for sockets".into(),
                source: e,
            }),
            _ => Ok(()),
        }
    }

    /// How long the thread may sleep.
    fn timeout(&self, now_ns: u64) -> Duration {
        if self.plan.busy_poll {
            return Duration::ZERO;
        }
        let due = self
            .streams
            .iter()
            .filter(|s| s.is_open(self.phase))
            .map(|s| s.due_ns as u64);
        match due.min() {
            Some(due_ns) if due_ns < now_ns.saturating_add(SPIN_NS) => Duration::ZERO,
            Some(due_ns) => NAP.min(Duration::from_nanos(due_ns - now_ns - SPIN_NS / 2)),
            None => NAP,
        }
    }

    fn serve(&mut self, events: &Events) -> Result<(), LoadError> {
        for event in events {
            let i = event.token().0;
            if event.is_writable() {
                let went = self.conns[i].link.flush()?;
                self.note_progress(went);
            }
            let closing = event.is_read_closed() || event.is_error();
            if event.is_readable() || closing {
                let now_ns = self.receive(i, closing)?;
                self.next_batch(i, now_ns)?;
            }
        }
        Ok(())
    }

    /// Reads replies of connection `i`; gives the time at which they were read.
    fn receive(&mut self, i: usize, closing: bool) -> Result<u64, LoadError> {
        let conn = &mut self.conns[i];
        let stream = &mut self.streams[conn.stream];
        let reading = Reading {
            prefix_len: stream.generator.spec().prefix.len(),
            with_data: self.plan.verify,
        };
        let filled = stream.recent.counts.ops[Ask::Fill as usize];
        let mut desk = Desk {
            shared: self.shared,
            values: &self.values,
            generator: &stream.generator,
            tally: &mut stream.recent,
            sequels: &mut conn.sequels,
            fill_on_miss: self.plan.fill_on_miss && self.phase != Phase::Fill,
            verify: self.plan.verify,
            several: self.plan.multiget > 1,
            now_ns: 0,
            keys: 0,
        };
        let bytes = match self.plan.ycsb {
            Some(_) => {
                let mut counter = Counter::at(&mut desk);
                conn.link.receive(reading, closing, &mut counter)?
            }
            None => conn.link.receive(reading, closing, &mut desk)?,
        };
        let (now_ns, keys) = (desk.now_ns, desk.keys);
        self.figures.keys.add(keys);
        if self.phase == Phase::Fill {
            let now_filled = stream.recent.counts.ops[Ask::Fill as usize];
            self.figures.filled.add(now_filled - filled);
        }
        // An event may tell of bytes that an earlier one has already brought.
        if bytes == 0 {
            return Ok(self.shared.now_ns());
        }
        self.moved_ns = now_ns;
        Ok(now_ns)
    }

    fn note_progress(&mut self, bytes: usize) {
        if bytes > 0 {
            self.moved_ns = self.shared.now_ns();
        }
    }

    /// Sends what connection `i` may send now that replies have come.
    fn next_batch(&mut self, i: usize, now_ns: u64) -> Result<(), LoadError> {
        let conn = &mut self.conns[i];
        let stream = &mut self.streams[conn.stream];
        let idle = conn.link.pending.is_empty();
        match self.phase {
            Phase::Stop => return Ok(()),
            Phase::Fill if idle && self.plan.fill => stream.fill_batch(conn, &self.values, now_ns),
            Phase::Fill => return Ok(()),
            _ if stream.gap_ns.is_some() => {
                stream.follow_up(conn, &self.values, now_ns, usize::MAX);
            }
            _ if idle => {
                let sequels = stream.follow_up(conn, &self.values, now_ns, self.plan.depth);
                let (multiget, records) = (self.plan.multiget, &self.shared.records);
                for _ in sequels..self.plan.depth {
                    if !stream.ask(conn, &self.values, multiget, records, now_ns) {
                        break;
                    }
                }
            }
            _ => return Ok(()),
        }
        conn.link.flush()?;
        Ok(())
    }

    /// Sends what open loops owe.
    fn send_due(&mut self, now_ns: u64) -> Result<(), LoadError> {
        match self.phase {
            Phase::Fill if self.plan.fill_rate.is_some() => return self.fill_due(now_ns),
            Phase::Fill | Phase::Stop => return Ok(()),
            Phase::WarmUp | Phase::Measure => {}
        }
        for stream in self.streams.iter_mut().filter(|s| s.gap_ns.is_some()) {
            let mut sent = false;
            while stream.due_ns <= now_ns as f64 && stream.left > 0 {
                let Some(i) = stream.free_conn(&self.conns, self.plan.depth) else {
                    break;
                };
                let due_ns = stream.due_ns as u64;
                let (multiget, records) = (self.plan.multiget, &self.shared.records);
                stream.ask(&mut self.conns[i], &self.values, multiget, records, due_ns);
                stream.schedule(self.plan.poisson);
                sent = true;
            }
            if sent {
                flush(&mut self.conns[stream.conns.clone()])?;
            }
        }
        Ok(())
    }

    /// Sends what first stores that keep a pace owe.
    fn fill_due(&mut self, now_ns: u64) -> Result<(), LoadError> {
        for stream in self.streams.iter_mut().filter(|_| self.plan.fill) {
            if stream.fill_due(&mut self.conns, &self.values, now_ns) {
                flush(&mut self.conns[stream.conns.clone()])?;
            }
        }
        Ok(())
    }

    /// Follows the run into its present phase.
    fn enter(&mut self, now_ns: u64) -> Result<(), LoadError> {
        let from = self.phase;
        self.phase = self.shared.phase();
        self.reported = false;
        for stream in &mut self.streams {
            if from == Phase::Fill {
                stream.fill = stream.recent.counts;
                stream.due_ns = now_ns as f64;
            }
            match self.phase {
                Phase::Stop => {
                    // The last slice has not come to its end.
                    stream.recent.judge(false);
                    stream.stop(now_ns);
                }
                _ => stream.recent.clear(),
            }
            stream.left = if self.phase == Phase::Measure {
                self.quota
            } else {
                u64::MAX
            };
        }
        if from == Phase::Fill {
            (0..self.conns.len()).try_for_each(|i| self.next_batch(i, now_ns))?;
        }
        Ok(())
    }

    /// Tells, once per phase, that there is nothing left to do in it.
    fn report_done(&mut self) {
        if self.reported {
            return;
        }
        let nothing_left = match self.phase {
            Phase::Fill => !self.plan.fill || self.streams.iter().all(|s| s.to_fill.is_empty()),
            _ => self.streams.iter().all(|s| s.left == 0),
        };
        if nothing_left && self.conns.iter().all(|c| c.link.pending.is_empty()) {
            self.reported = true;
            let counter = if self.phase == Phase::Fill {
                &self.shared.filled
            } else {
                &self.shared.done
            };
            counter.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Keeps the latencies of the last slice, or sets them aside.
    fn sift(&mut self, now_ns: u64) {
        let Some(counts) = self.sift.as_mut().and_then(|sift| sift.slice(now_ns)) else {
            return;
        };
        for stream in &mut self.streams {
            stream.recent.judge(counts);
        }
    }

    /// Hands figures over, and notices when nothing moves any more.
    fn watch(&mut self, now_ns: u64) -> Result<(), LoadError> {
        if now_ns - self.published_ns < PUBLISH_NS {
            return Ok(());
        }
        self.published_ns = now_ns;
        // What is sifted is not to be handed over before it is judged.
        let handed_over = self.shared.watched && self.sift.is_none();
        if handed_over && self.phase == Phase::Measure {
            let mut recent = self
                .figures
                .recent
                .lock()
                .unwrap_or_else(|e| e.into_inner());
            for stream in &mut self.streams {
                recent.add(&mut stream.recent);
                stream.recent.drain_into(&mut stream.total);
            }
        }
        let pending = self
            .conns
            .iter()
            .filter_map(|c| Some((c, c.link.pending.oldest_ns()?)));
        let Some((stuck, since_ns)) = pending.min_by_key(|&(_, since_ns)| since_ns) else {
            return Ok(());
        };
        // A slow stream's first request after a pause has not waited since before the pause.
        let waited = Duration::from_nanos(now_ns.saturating_sub(self.moved_ns.max(since_ns)));
        if waited < self.plan.stall {
            return Ok(());
        }
        let address = stuck.link.address().clone();
        let outstanding = self.conns.iter().map(|c| c.link.pending.len()).sum();
        Err(LoadError::Stalled {
            address,
            waited,
            outstanding,
        })
    }

    /// Reads what is still on its way, for a while, so that the server is idle afterwards.
    fn last_replies(&mut self, events: &mut Events) -> Result<(), LoadError> {
        let until = Instant::now() + LAST_REPLIES;
        while self.conns.iter().any(|c| !c.link.pending.is_empty()) && Instant::now() < until {
            self.wait(events, NAP)?;
            self.serve(events)?;
        }
        Ok(())
    }
}

/// The part of `count` things that falls to `index` of `parts`.
fn share(count: usize, parts: usize, index: usize) -> Range<usize> {
    count * index / parts..count * (index + 1) / parts
}

/// Sends what was written for some connections, as far as their sockets take it.
fn flush(conns: &mut [Conn]) -> Result<(), LoadError> {
    (conns.iter_mut()).try_for_each(|conn| conn.link.flush().map(drop))
}
