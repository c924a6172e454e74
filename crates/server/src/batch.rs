//! What happens between reading and writing: the requests of a group are parsed in place, what they
//! will touch is brought near for all of them together, then they are executed in order.
//!
//! What it never does: allocate, or execute a connection's requests out of order.

use crate::conn::Conn;
use crate::group::{Conns, Group, Member, Process, Stop};
use crate::shared::Shared;
use arrayvec::ArrayVec;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nyx_base::{Clock, Instant, Nanos, Now, TenantId};
use nyx_engine::{Away, Engine, Outcome, Request, Settled, Worker};
use nyx_proto::auth::{self, Auth};
use nyx_proto::{Command, Out, Parse, ProtoError, parse, reply};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// How many requests are warmed together. Enough to hide memory accesses behind each other, few
/// enough that what the first brought near is still near when its turn comes.
const BATCH: usize = 64;
/// A connection with this much unread output in bytes executes nothing until some is read.
const OUT_FULL_BYTES: usize = 1 << 20;

/// Executes groups on an engine.
pub(crate) struct EngineWork {
    pub(crate) engine: Arc<Engine>,
    pub(crate) worker: Worker,
    pub(crate) shared: Arc<Shared>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Whether the latencies of all tenants are recorded, or of measured ones only.
    pub(crate) record_all: bool,
    /// Requests to record that this group has answered: whose, when they came, how many in a row.
    pub(crate) answered: Vec<(TenantId, Instant, u32)>,
}

struct Entry<'a> {
    member: usize,
    /// Where the request begins in its input, to come back to, and where the next one does.
    at: usize,
    end: usize,
    what: What<'a>,
}

enum What<'a> {
    Request(Request<'a>),
    Refused(ProtoError),
    Login { user: &'a [u8], password: &'a [u8] },
}

impl Process for EngineWork {
    fn process(&mut self, group: &mut Group, conns: &mut Conns, now: Now) {
        self.worker.enter();
        // Answers leave when the group has been executed: each waits for all.
        let others = group.members.len().saturating_sub(1);
        self.worker.set_waiting(others as u32);
        while self.round(group, conns, now) {}
        self.worker.settle();
        self.record();
    }

    #[inline]
    fn is_settled(&self, conn: &mut Conn) -> Settled {
        self.engine.is_settled(&mut conn.session)
    }

    fn maintain(&mut self, now: Now) -> bool {
        self.worker.enter();
        self.engine.maintain(&mut self.worker, now)
    }

    fn watch(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        for hand in self.worker.deep_hands() {
            for event in hand.events().into_iter().flatten() {
                let event = event.as_raw_fd();
                registry.register(&mut SourceFd(&event), token, Interest::READABLE)?;
            }
        }
        Ok(())
    }

    fn land(&mut self, now: Now, landed: &mut dyn FnMut(Away)) {
        self.engine.land(&mut self.worker, now, landed);
    }

    fn is_restless(&self) -> bool {
        self.worker.is_restless()
    }

    fn worked(&mut self, time: Nanos) {
        self.worker.worked(time);
    }

    fn rest(&mut self) {
        self.worker.leave();
    }
}

impl EngineWork {
    /// Records the latencies of what was answered: from when the loop woke for it to now, the time
    /// for which it was held included. One look at the clock for the whole group.
    fn record(&mut self) {
        if self.answered.is_empty() {
            return;
        }
        let now = self.clock.now();
        for (tenant, came, n) in self.answered.drain(..) {
            let took = now.since(came);
            self.engine.record(self.worker.id(), tenant, took, n);
        }
    }

    /// One batch; false where nothing is left to execute.
    fn round(&mut self, group: &mut Group, conns: &mut Conns, now: Now) -> bool {
        let mut batch: ArrayVec<Entry<'_>, BATCH> = ArrayVec::new();
        for (i, (member, input)) in group.members.iter_mut().zip(&group.inputs).enumerate() {
            if batch.is_full() {
                break;
            }
            collect(
                &self.engine,
                i,
                member,
                input.bytes(),
                conns.at(member.slot),
                &mut batch,
            );
        }
        if batch.is_empty() {
            return false;
        }
        for entry in &mut batch {
            if let What::Request(request) = &mut entry.what {
                self.engine.warm_item(request);
            }
        }
        for entry in &batch {
            if let What::Request(request) = &entry.what {
                self.engine.warm_value(&mut self.worker, request);
            }
        }
        for entry in &batch {
            let member = &mut group.members[entry.member];
            if member.stop.is_none() {
                let out = &mut group.outs[entry.member];
                self.execute(entry, member, conns.at(member.slot), now, out);
            }
        }
        true
    }

    #[inline]
    fn execute(
        &mut self,
        entry: &Entry<'_>,
        member: &mut Member,
        conn: &mut Conn,
        now: Now,
        out: &mut Out,
    ) {
        if out.len() > OUT_FULL_BYTES {
            member.stop = Some(Stop::Full);
            member.cursor = entry.at;
            return;
        }
        let outcome = match &entry.what {
            What::Request(request) => {
                self.engine
                    .execute(&mut self.worker, &mut conn.session, request, now, out)
            }
            What::Refused(error) => {
                reply::proto_error(out, *error);
                if error.closes() {
                    Outcome::Close
                } else {
                    Outcome::Done
                }
            }
            What::Login { user, password } => self.login(user, password, conn, out),
        };
        match outcome {
            Outcome::Done => {
                member.progressed = true;
                self.note(entry, conn, now);
            }
            Outcome::Turn => {
                member.progressed = true;
                member.stop = Some(Stop::Full);
                member.cursor = entry.end;
                self.note(entry, conn, now);
            }
            Outcome::Held { tenant, until } => {
                conn.held_since.get_or_insert(now.mono);
                member.stop = Some(Stop::Held { tenant, until });
                member.cursor = entry.at;
            }
            Outcome::Away { away, .. } => {
                conn.held_since.get_or_insert(now.mono);
                member.stop = Some(Stop::Away(away));
                member.cursor = entry.at;
            }
            Outcome::Full => {
                member.stop = Some(Stop::Full);
                member.cursor = entry.at;
                member.progressed = true;
            }
            Outcome::Close => member.stop = Some(Stop::Closing),
            Outcome::Stats | Outcome::Shutdown => {
                self.ask_process(entry, conn, out);
                member.progressed = true;
            }
        }
    }

    /// Notes a request that was answered, where it is to be recorded. Requests of one tenant that
    /// came together are one entry.
    #[inline]
    fn note(&mut self, entry: &Entry<'_>, conn: &mut Conn, now: Now) {
        let came = conn.held_since.take().unwrap_or(now.mono);
        if let What::Request(request) = &entry.what
            && let Some(tenant) = request.tenant()
            && request.command().first_key().is_some()
            && (self.record_all || self.engine.tenants()[tenant.index()].is_measured())
        {
            match self.answered.last_mut() {
                Some((last, at, n)) if (*last, *at) == (tenant, came) => *n += 1,
                _ => self.answered.push((tenant, came, 1)),
            }
        }
    }

    fn login(&mut self, user: &[u8], password: &[u8], conn: &mut Conn, out: &mut Out) -> Outcome {
        match conn.session.login(user, password) {
            true => {
                conn.limits = self.engine.limits(&conn.session);
                reply::stored(out);
            }
            false => reply::auth_failure(out),
        }
        Outcome::Done
    }

    /// What only the process can answer.
    #[cold]
    fn ask_process(&mut self, entry: &Entry<'_>, conn: &Conn, out: &mut Out) {
        let What::Request(request) = &entry.what else {
            return;
        };
        match request.command() {
            Command::Stats { arg } => {
                let around = self.shared.surroundings(self.clock.now());
                self.engine.stats(&conn.session, arg, &around, out);
            }
            Command::Shutdown { .. } if self.shared.shutdown_allowed => self.shared.stop(),
            _ => out.put(b"ERROR: shutdown not enabled\r\n"),
        }
    }
}

/// Parses what one connection has to say into the batch.
#[inline]
fn collect<'a>(
    engine: &Engine,
    index: usize,
    member: &mut Member,
    input: &'a [u8],
    conn: &mut Conn,
    batch: &mut ArrayVec<Entry<'a>, BATCH>,
) {
    if conn.session.follow() {
        conn.limits = engine.limits(&conn.session);
    }
    while member.stop.is_none() && member.need.is_none() && !batch.is_full() {
        let at = member.cursor;
        if at >= input.len() {
            return;
        }
        if conn.session.needs_login() {
            // One at a time: what follows a login is understood only once it took place.
            collect_login(index, member, input, batch);
            return;
        }
        let (used, what) = match parse(&input[at..], &conn.limits) {
            Parse::Done { command, used } => {
                (used, What::Request(engine.request(&conn.session, command)))
            }
            Parse::Bad { error, used } => (used, What::Refused(error)),
            Parse::Need { at_least } => {
                member.need = Some(at_least);
                return;
            }
        };
        member.cursor += used;
        batch.push(Entry {
            member: index,
            at,
            end: at + used,
            what,
        });
    }
}

fn collect_login<'a>(
    index: usize,
    member: &mut Member,
    input: &'a [u8],
    batch: &mut ArrayVec<Entry<'a>, BATCH>,
) {
    let at = member.cursor;
    let (used, what) = match auth::parse(&input[at..]) {
        Auth::Login {
            user,
            password,
            used,
        } => (used, What::Login { user, password }),
        Auth::Bad { error, used } => (used, What::Refused(error)),
        Auth::Need { at_least } => {
            member.need = Some(at_least);
            return;
        }
    };
    member.cursor += used;
    batch.push(Entry {
        member: index,
        at,
        end: at + used,
        what,
    });
}
