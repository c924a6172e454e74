//! A worker: one thread, one epoll loop, its own connections.
//!
//! Each turn of the loop: wait, release held connections whose tenant's time has come, adopt new
//! ones, then serve whoever is ready in groups: read each once, execute the group, write each once.
//!
//! What it never does: wait for anything but its poll.

use crate::away::Waiting;
use crate::conn::{Conn, Input, Pool};
use crate::group::{Conns, Group, Member, Process, Stop};
use crate::held::{ConnId, Held};
use crate::listen::Stream;
use crate::shared::Shared;
use crate::timer::Timer;
use mio::event::Event;
use mio::{Events, Poll, Registry, Token, Waker};
use nyx_base::{Clock, Instant, Nanos, Now, UnixSeconds};
use nyx_engine::{Session, Settled};
use nyx_proto::{Limits, Out};
use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many connections are read, executed and written together.
const GROUP: usize = 64;
/// How many held connections of a tenant are released at once.
const RELEASE: usize = 16;
/// A wait shorter than this is not worth a timer: to sleep and to be woken take as long. It is far
/// below [`crate::held::HOLD_MIN`], or a worker whose tenant is held would never sleep.
const TIMER_MIN: Nanos = Nanos::from_micros(10);
const EVENTS: usize = 512;
const WAKE: Token = Token(usize::MAX);
const TIMER: Token = Token(usize::MAX - 1);
const LANDED: Token = Token(usize::MAX - 2);

/// A connection that was accepted and goes to a worker.
pub(crate) struct Arrival {
    pub(crate) stream: Stream,
    pub(crate) session: Session,
    pub(crate) limits: Limits,
}

/// Where a worker's new connections wait.
pub(crate) struct Inbox {
    arrivals: Mutex<Vec<Arrival>>,
    waker: Waker,
}

impl Inbox {
    pub(crate) fn put(&self, arrival: Arrival) -> io::Result<()> {
        self.arrivals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(arrival);
        self.waker.wake()
    }

    pub(crate) fn wake(&self) -> io::Result<()> {
        self.waker.wake()
    }

    fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) struct WorkerLoop {
    poll: Poll,
    timer: Timer,
    inbox: Arc<Inbox>,
    index: usize,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    idle_timeout: Option<Nanos>,
    process: Box<dyn Process>,
    conns: Conns,
    pool: Pool,
    held: Held,
    away: Waiting,
    group: Group,
    ready: Vec<usize>,
    serving: Vec<usize>,
    due: Vec<ConnId>,
    /// Connections whose output waits for a journal.
    unsettled: Vec<ConnId>,
    next_housekeeping: Instant,
    turn: Turn,
}

/// The turn that the worker is in, to tell how long it is at work.
#[derive(Clone, Copy, Debug)]
struct Turn {
    began: Instant,
    /// Whether somebody was to be served.
    had_work: bool,
    /// When there was nothing more to do.
    ended: Option<Instant>,
}

impl WorkerLoop {
    pub(crate) fn new(
        index: usize,
        shared: Arc<Shared>,
        clock: Arc<dyn Clock>,
        idle_timeout_s: Option<u32>,
        process: Box<dyn Process>,
    ) -> io::Result<WorkerLoop> {
        let poll = Poll::new()?;
        let timer = Timer::new(poll.registry(), TIMER)?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        Ok(WorkerLoop {
            poll,
            timer,
            inbox: Arc::new(Inbox {
                arrivals: Mutex::default(),
                waker,
            }),
            index,
            shared,
            clock,
            idle_timeout: idle_timeout_s.map(|s| Nanos::from_secs(u64::from(s))),
            process,
            conns: Conns::default(),
            pool: Pool::default(),
            held: Held::default(),
            away: Waiting::default(),
            group: Group::default(),
            ready: Vec::new(),
            serving: Vec::new(),
            due: Vec::new(),
            unsettled: Vec::new(),
            next_housekeeping: Instant(0),
            turn: Turn {
                began: Instant(0),
                had_work: false,
                ended: None,
            },
        })
    }

    pub(crate) fn inbox(&self) -> Arc<Inbox> {
        self.inbox.clone()
    }

    fn now(&self) -> Now {
        let unix = crate::shared::unix_seconds();
        Now {
            mono: self.clock.now(),
            unix: UnixSeconds(u32::try_from(unix).unwrap_or(u32::MAX)),
        }
    }

    /// Runs until the server stops.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        self.process.watch(self.poll.registry(), LANDED)?;
        while !self.shared.is_stopping() {
            let timeout = self.timeout()?;
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            }
            let now = self.now();
            self.count_work(now.mono);
            self.turn(&events, now);
        }
        Ok(())
    }

    /// The last turn and the wait behind it are over.
    fn count_work(&mut self, now: Instant) {
        let last = self.turn;
        if last.had_work {
            let ended = last.ended.unwrap_or(now);
            self.process.worked(ended.since(last.began));
        }
        self.turn = Turn {
            began: now,
            had_work: false,
            ended: None,
        };
    }

    /// What follows a wait.
    fn turn(&mut self, events: &Events, now: Now) {
        // Before those who just came: on a busy worker some always have, and what their tenant has
        // earned since the last turn would be theirs each time.
        self.release(now);
        self.land(now);
        for event in events {
            match event.token() {
                WAKE => {
                    self.adopt(now);
                    self.send_settled(now);
                }
                TIMER | LANDED => {}
                Token(slot) => self.touched(slot, event, now),
            }
        }
        self.turn.had_work = !self.ready.is_empty();
        self.serve(now);
        self.send_settled(now);
        self.count_held();
        self.housekeep(now);
    }

    /// How long to wait for events.
    fn timeout(&mut self) -> io::Result<Option<Duration>> {
        if !self.ready.is_empty() {
            return Ok(Some(Duration::ZERO));
        }
        self.process.rest();
        let now = self.clock.now();
        self.turn.ended = Some(now);
        if self.process.is_restless() {
            return Ok(Some(Duration::ZERO));
        }
        let wake = self.held.next();
        if wake != Instant::NEVER {
            let wait = wake.since(now);
            if wait < TIMER_MIN {
                return Ok(Some(Duration::ZERO));
            }
            self.timer.set(wait)?;
        }
        let wait_ms = self.next_housekeeping.since(now).0.div_ceil(1_000_000);
        Ok(Some(Duration::from_millis(wait_ms)))
    }

    fn adopt(&mut self, now: Now) {
        for arrival in self.inbox.take() {
            let Arrival {
                stream,
                session,
                limits,
            } = arrival;
            let slot = self
                .conns
                .insert(Conn::new(stream, session, limits, now.mono));
            let conn = self.conns.at(slot);
            match conn.stream.register(self.poll.registry(), Token(slot)) {
                Ok(()) => self.enqueue(slot),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be watched and is closed");
                    self.close(slot);
                }
            }
        }
    }

    /// An event: the socket has something for us, or takes something again.
    fn touched(&mut self, slot: usize, event: &Event, now: Now) {
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        conn.readable |= event.is_readable();
        // The end may come with the last bytes and has no event of its own then: the socket is to
        // be read until it says so itself.
        conn.ending |= event.is_read_closed();
        if event.is_writable() && conn.out.is_some() && !conn.unsettled {
            self.resume_output(slot, now);
        }
        self.enqueue(slot);
    }

    /// Puts a connection on the ready list, unless it is there or must wait.
    fn enqueue(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        if !conn.queued && !conn.held && conn.out.is_none() {
            conn.queued = true;
            self.ready.push(slot);
        }
    }

    /// Connections whose tenant's time has come go on.
    fn release(&mut self, now: Now) {
        if self.held.len() == 0 {
            return;
        }
        let mut due = std::mem::take(&mut self.due);
        self.held.take_due(now.mono, RELEASE, &mut due);
        for id in due.drain(..) {
            if let Some(conn) = self.conns.by_id(id) {
                conn.held = false;
                conn.released = true;
                self.enqueue(id.0);
            }
        }
        self.due = due;
    }

    /// Takes in what has come from deep devices; who waits for that goes on.
    fn land(&mut self, now: Now) {
        let mut due = std::mem::take(&mut self.due);
        let away = &mut self.away;
        self.process
            .land(now, &mut |landed| away.take(landed, &mut due));
        for id in due.drain(..) {
            if let Some(conn) = self.conns.by_id(id) {
                conn.held = false;
                self.enqueue(id.0);
            }
        }
        self.due = due;
    }

    /// Tells how many wait for whom, once those that were released have had their turn.
    fn count_held(&mut self) {
        let Some(news) = self.held.news() else {
            return;
        };
        let told = &self.shared.workers[self.index].held;
        for (told, n) in told.iter().zip(news) {
            told.store(n as u64, Relaxed);
        }
    }

    fn serve(&mut self, now: Now) {
        let mut serving = std::mem::take(&mut self.serving);
        std::mem::swap(&mut serving, &mut self.ready);
        for slots in serving.chunks(GROUP) {
            for &slot in slots {
                self.admit(slot, now);
            }
            self.process.process(&mut self.group, &mut self.conns, now);
            self.settle(now);
        }
        serving.clear();
        self.serving = serving;
    }

    /// Reads a ready connection once and takes it into the group.
    fn admit(&mut self, slot: usize, now: Now) {
        let Some(conn) = self.conns.get_mut(slot) else {
            return;
        };
        conn.queued = false;
        if conn.held || conn.out.is_some() {
            return;
        }
        let mut input = conn.input.take().unwrap_or_else(|| self.pool.input());
        if conn.readable && !conn.eof {
            match receive(conn, &mut input) {
                Ok(n) => {
                    self.shared.workers[self.index].bytes_read.add(n as u64);
                    conn.stirred = now.mono;
                }
                Err(_) => {
                    // The client is gone; what it had sent before is of no use to anybody.
                    self.close(slot);
                    return;
                }
            }
        }
        if input.bytes().len() < conn.need && !conn.eof {
            // Not yet the rest of the request: parsing would only say so again.
            conn.input = Some(input);
            if conn.readable {
                self.enqueue(slot);
            }
            return;
        }
        if !input.is_empty() {
            self.group.push(slot, input, self.pool.out());
            return;
        }
        self.pool.take_input(input);
        if conn.eof {
            self.close(slot);
        } else if conn.readable {
            self.enqueue(slot);
        }
    }

    /// Writes what a group has answered and sees how each connection goes on.
    fn settle(&mut self, now: Now) {
        let mut group = std::mem::take(&mut self.group);
        let parts = group
            .members
            .drain(..)
            .zip(group.inputs.drain(..))
            .zip(group.outs.drain(..));
        for ((member, input), out) in parts {
            self.settle_member(member, input, out, now);
        }
        self.group = group;
    }

    fn settle_member(&mut self, member: Member, mut input: Input, mut out: Out, now: Now) {
        let slot = member.slot;
        let id = self.conns.id(slot);
        let conn = self.conns.at(slot);
        let len = input.bytes().len();
        conn.swallow = member.cursor.saturating_sub(len);
        input.consume(member.cursor.min(len));
        // What the last request needs does not matter while one before it is to be executed.
        let stopped = member.stop.is_some();
        conn.need = member.need.filter(|_| !stopped).unwrap_or(0);
        match input.is_empty() {
            true => self.pool.take_input(input),
            false => conn.input = Some(input),
        }
        conn.closing |= member.stop == Some(Stop::Closing);
        match member.stop {
            Some(Stop::Held { tenant, until }) => {
                conn.held = true;
                let first = conn.released && !member.progressed;
                self.held.hold(tenant, id, until, now.mono, first);
            }
            Some(Stop::Away(away)) => {
                conn.held = true;
                self.away.add(away, id);
            }
            Some(Stop::Full | Stop::Closing) | None => {}
        }
        conn.released = false;
        let starved = (member.need.is_some() && !stopped) || conn.input.is_none();
        let figures = &self.shared.workers[self.index];
        if !out.is_empty() && conn.session.owes_anything() {
            conn.out = Some(out);
            conn.unsettled = true;
            self.unsettled.push(id);
            return;
        }
        match send(conn, self.poll.registry(), slot, &mut out) {
            Ok(n) => {
                figures.bytes_written.add(n as u64);
                conn.stirred = now.mono;
            }
            Err(_) => {
                self.close(slot);
                return;
            }
        }
        if !out.is_empty() {
            conn.out = Some(out);
            return;
        }
        self.pool.take_out(out);
        if conn.closing || (conn.eof && starved && !conn.held) {
            self.close(slot);
        } else if conn.readable || !starved {
            self.enqueue(slot);
        }
    }

    /// Sends answers that wait for a journal, where they may be sent now.
    fn send_settled(&mut self, now: Now) {
        // Said before it is looked at: what is made durable after that brings another wake.
        let waits = &self.shared.workers[self.index].waits_for_journal;
        waits.store(!self.unsettled.is_empty(), Relaxed);
        for id in std::mem::take(&mut self.unsettled) {
            let Some(conn) = self.conns.by_id(id) else {
                continue;
            };
            match self.process.is_settled(conn) {
                Settled::NotYet => self.unsettled.push(id),
                Settled::Never => self.close(id.0),
                Settled::Yes => {
                    conn.unsettled = false;
                    self.send_out(id.0, now);
                    self.enqueue(id.0);
                }
            }
        }
    }

    /// The socket takes bytes again.
    fn resume_output(&mut self, slot: usize, now: Now) {
        if !self.send_out(slot, now) {
            return;
        }
        let registry = self.poll.registry();
        let conn = self.conns.at(slot);
        if conn
            .stream
            .want_write(registry, Token(slot), false)
            .is_err()
        {
            self.close(slot);
        }
    }

    /// Sends what a connection still has to be sent; whether that is all, and it stays open.
    fn send_out(&mut self, slot: usize, now: Now) -> bool {
        let conn = self.conns.at(slot);
        let Some(mut out) = conn.out.take() else {
            return false;
        };
        let Ok(n) = send(conn, self.poll.registry(), slot, &mut out) else {
            self.close(slot);
            return false;
        };
        self.shared.workers[self.index].bytes_written.add(n as u64);
        conn.stirred = now.mono;
        if !out.is_empty() {
            conn.out = Some(out);
            return false;
        }
        self.pool.take_out(out);
        if conn.closing {
            self.close(slot);
            return false;
        }
        true
    }

    /// Once a second: expiry, and connections that have been silent too long.
    fn housekeep(&mut self, now: Now) {
        if now.mono < self.next_housekeeping {
            return;
        }
        let more = self.process.maintain(now);
        self.next_housekeeping = now.mono
            + if more {
                Nanos::from_millis(1)
            } else {
                Nanos::from_secs(1)
            };
        let Some(limit) = self.idle_timeout else {
            return;
        };
        for slot in self.conns.slots() {
            let silent = self.conns.get_mut(slot).is_some_and(|conn| {
                // Who is on the ready list has something to do; its slot must not change hands.
                let busy = conn.held || conn.queued || conn.unsettled;
                !busy && now.mono.since(conn.stirred) > limit
            });
            if silent {
                self.close(slot);
            }
        }
    }

    fn close(&mut self, slot: usize) {
        if self.conns.remove(slot).is_some() {
            self.shared.connections.fetch_sub(1, Relaxed);
        }
    }
}

/// Reads once. Fewer bytes than there was room for mean that the socket is empty: the next ones
/// bring an event of their own.
fn receive(conn: &mut Conn, input: &mut Input) -> io::Result<usize> {
    let room = input.room(conn.need);
    let asked = room.len();
    if asked == 0 {
        // Full of requests that have to wait: what else there is to read stays where it is.
        return Ok(0);
    }
    match conn.stream.recv(room) {
        Ok(0) => {
            conn.eof = true;
            conn.readable = false;
            Ok(0)
        }
        Ok(n) => {
            conn.readable = n == asked || conn.ending;
            input.filled(n);
            let dropped = conn.swallow.min(input.bytes().len());
            input.consume(dropped);
            conn.swallow -= dropped;
            Ok(n)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            conn.readable = false;
            Ok(0)
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

/// Writes once what is pending. Where the socket takes only a part, it is watched for the rest.
fn send(conn: &mut Conn, registry: &Registry, slot: usize, out: &mut Out) -> io::Result<usize> {
    if out.is_empty() {
        return Ok(0);
    }
    let n = match conn.stream.send(out.pending()) {
        Ok(n) => n,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
        Err(error) => return Err(error),
    };
    out.consume(n);
    if !out.is_empty() {
        conn.stream.want_write(registry, Token(slot), true)?;
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyx_base::TenantId;
    use nyx_engine::Binding;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Nobody looks at it.
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Instant {
            Instant(0)
        }
        fn spin_until(&self, _until: Instant) {}
    }

    /// A tenant that has earned one request whenever the worker has gone round.
    struct OneATurn;

    impl Process for OneATurn {
        fn process(&mut self, group: &mut Group, _conns: &mut Conns, now: Now) {
            let members = group.members.iter_mut().zip(&group.inputs);
            for (at, (member, input)) in members.enumerate() {
                if at == 0 {
                    member.cursor = input.bytes().len();
                    member.progressed = true;
                    group.outs[at].put(b"a");
                } else {
                    member.stop = Some(Stop::Held {
                        tenant: TenantId(0),
                        until: now.mono,
                    });
                }
            }
        }

        fn is_settled(&self, _conn: &mut Conn) -> Settled {
            Settled::Yes
        }

        fn maintain(&mut self, _now: Now) -> bool {
            false
        }

        fn rest(&mut self) {}
    }

    /// Each look at it is a millisecond later.
    struct Ticking(AtomicU64);

    impl Clock for Ticking {
        fn now(&self) -> Instant {
            Instant(self.0.fetch_add(1_000_000, Ordering::Relaxed))
        }
        fn spin_until(&self, _until: Instant) {}
    }

    #[test]
    fn waits_are_no_work_and_turns_without_anybody_to_serve_are_none_either() {
        struct Worked(Arc<AtomicU64>);
        impl Process for Worked {
            fn process(&mut self, _: &mut Group, _: &mut Conns, _: Now) {}
            fn is_settled(&self, _: &mut Conn) -> Settled {
                Settled::Yes
            }
            fn maintain(&mut self, _: Now) -> bool {
                false
            }
            fn worked(&mut self, time: Nanos) {
                self.0.fetch_add(time.0, Ordering::Relaxed);
            }
            fn rest(&mut self) {}
        }
        let worked = Arc::new(AtomicU64::new(0));
        let shared = Arc::new(Shared::new((1, 1), 8, false, Vec::new()));
        let clock = Arc::new(Ticking(AtomicU64::new(0)));
        let process = Box::new(Worked(worked.clone()));
        let worker = WorkerLoop::new(0, shared, clock.clone(), None, process);
        let mut worker = worker.expect("a poll");
        let mut turn = |had_work: bool, ends: bool| {
            let began = worker.clock.now();
            worker.count_work(began);
            worker.turn.had_work = had_work;
            if ends {
                worker.turn.ended = Some(worker.clock.now());
            }
            clock.0.fetch_add(50_000_000, Ordering::Relaxed);
        };
        turn(true, true);
        turn(false, true);
        turn(true, false);
        turn(false, true);
        turn(false, true);
        // The first until it ended; the third until the next, which began at once.
        let ms = worked.load(Ordering::Relaxed) / 1_000_000;
        assert_eq!(ms, 1 + 51);
    }

    #[test]
    fn on_a_busy_worker_who_is_held_has_its_turn_before_those_who_just_came() {
        let shared = Arc::new(Shared::new((1, 1), 8, false, Vec::new()));
        let worker = WorkerLoop::new(0, shared, Arc::new(Still), None, Box::new(OneATurn));
        let mut worker = worker.expect("a poll");
        let binding = Binding::to(TenantId(0));
        let mut clients: Vec<UnixStream> = (0..4)
            .map(|_| {
                let (ours, theirs) = UnixStream::pair().expect("a pair");
                ours.set_nonblocking(true).expect("not to block");
                theirs.set_nonblocking(true).expect("not to block");
                let stream = Stream::Unix(mio::net::UnixStream::from_std(theirs));
                let session = Session::new(&binding);
                let limits = Limits::default();
                let arrival = Arrival {
                    stream,
                    session,
                    limits,
                };
                worker.inbox.put(arrival).expect("a waker");
                ours
            })
            .collect();
        let mut events = Events::with_capacity(EVENTS);
        let mut answered = [0; 4];
        clients.iter_mut().for_each(|client| {
            client.write_all(b"q").expect("room");
        });
        for turn in 0..40 {
            worker
                .poll
                .poll(&mut events, Some(Duration::ZERO))
                .expect("events");
            let mono = Instant(turn);
            let unix = UnixSeconds(0);
            worker.turn(&events, Now { mono, unix });
            // Whoever has its answer asks again at once.
            for (client, answered) in clients.iter_mut().zip(&mut answered) {
                if client.read(&mut [0]).is_ok() {
                    *answered += 1;
                    client.write_all(b"q").expect("room");
                }
            }
        }
        assert_eq!(answered, [10; 4]);
    }
}
