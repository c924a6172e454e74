//! Traces as clients: each request of a trace is made of a target, in the trace's order for each
//! key.
//!
//! Reads are look-aside: a get that misses is followed by a set of the trace's size. A key always
//! goes over the same connection, and a read of a key is not sent while an earlier one may still
//! miss, so that a pipelined replay misses where a slow one would. Between keys the order may
//! differ by what the connections have under way; one connection of depth 1 keeps the trace's own.
//!
//! What it never does: hold more of a trace than what the connections have queued.

use super::LoadError;
use super::address::{Address, Login};
use super::link::{Ask, Asked, Link, Outcome, Reading, Sink};
use super::tally::Tally;
use super::wire::exptime;
use mio::{Events, Poll, Token};
use nyx_proto::{Command, request};
use nyx_sim::workload::trace::Request;
use nyx_sim::workload::{Op, Values, keys};
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

/// Requests that wait for one connection at most: enough to fill its pipeline again and again.
const QUEUE_MAX: usize = 256;
/// How long a wait for replies lasts before the time is looked at, where nothing is due.
const NAP: Duration = Duration::from_millis(20);
/// Below this a wait for a due time is spent polling.
const SPIN: Duration = Duration::from_millis(2);

/// What requests of a trace are made of.
pub(crate) trait Target {
    /// Takes a request; `due` is when it should be made, `None` as soon as possible. May wait until
    /// earlier ones are done.
    fn request(&mut self, request: &Request, due: Option<Instant>) -> Result<(), LoadError>;

    /// Sees everything through to its end.
    fn finish(&mut self) -> Result<(), LoadError>;

    /// What has been counted so far.
    fn tally(&mut self) -> &mut Tally;
}

/// How a trace is played against a server.
#[derive(Clone, Debug)]
pub(crate) struct Manner {
    /// Where.
    pub(crate) address: Address,
    /// Who logs in.
    pub(crate) login: Option<Login>,
    /// What every key begins with.
    pub(crate) prefix: String,
    /// Connections.
    pub(crate) connections: usize,
    /// Requests outstanding on each at most.
    pub(crate) depth: usize,
    /// Whether to poll without sleeping.
    pub(crate) busy_poll: bool,
    /// Whether hits' bytes are checked.
    pub(crate) verify: bool,
    /// How long nothing may move while replies are outstanding.
    pub(crate) stall: Duration,
}

/// A server, over sockets.
pub(crate) struct SocketTarget {
    manner: Manner,
    poll: Poll,
    events: Events,
    conns: Vec<Conn>,
    values: Values,
    tally: Tally,
    epoch: Instant,
    moved: Instant,
    version: u64,
    /// The text of the key of the request that is being written.
    text: Vec<u8>,
}

struct Conn {
    link: Link,
    /// Requests that wait for their turn, and when they were due (nanoseconds since the epoch).
    queue: VecDeque<(Request, Option<u64>)>,
    /// Reads that missed and are to be stored.
    fills: VecDeque<Asked>,
}

impl Conn {
    /// Whether a read of `key` may still miss, or its fill is still to be sent.
    fn may_fill(&self, key: u64) -> bool {
        self.link.pending.reads(key) || self.fills.iter().any(|fill| fill.key == key)
    }
}

impl SocketTarget {
    /// Connects.
    pub(crate) fn new(manner: Manner) -> Result<SocketTarget, LoadError> {
        let system = |source| LoadError::System {
            what: "cannot make a poller".into(),
            source,
        };
        let poll = Poll::new().map_err(system)?;
        let mut conns = Vec::with_capacity(manner.connections);
        for token in 0..manner.connections {
            let socket = manner.address.connect(manner.login.as_ref())?;
            let mut link = Link::new(socket, manner.address.clone());
            link.socket()
                .register(poll.registry(), Token(token))
                .map_err(system)?;
            conns.push(Conn {
                link,
                queue: VecDeque::new(),
                fills: VecDeque::new(),
            });
        }
        Ok(SocketTarget {
            manner,
            poll,
            events: Events::with_capacity(1024),
            conns,
            values: Values::new(),
            tally: Tally::new(),
            epoch: Instant::now(),
            moved: Instant::now(),
            version: 0,
            text: Vec::new(),
        })
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// Waits for replies for `timeout` at most, and sends what they make room for.
    fn turn(&mut self, timeout: Duration) -> Result<(), LoadError> {
        let timeout = if self.manner.busy_poll {
            Duration::ZERO
        } else {
            timeout
        };
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                return Err(LoadError::System {
                    what: "cannot wait for sockets".into(),
                    source: e,
                });
            }
            _ => {}
        }
        let ready: Vec<(usize, bool, bool)> = (self.events.iter())
            .map(|e| {
                let closing = e.is_read_closed() || e.is_error();
                (e.token().0, e.is_readable(), closing)
            })
            .collect();
        for &(i, readable, closing) in &ready {
            if readable || closing {
                self.receive(i, closing)?;
            }
            self.send(i)?;
        }
        self.look_for_a_stall(ready.is_empty())
    }

    fn look_for_a_stall(&mut self, idle: bool) -> Result<(), LoadError> {
        let outstanding: usize = self.conns.iter().map(|c| c.link.pending.len()).sum();
        if !idle || outstanding == 0 {
            self.moved = Instant::now();
            return Ok(());
        }
        let waited = self.moved.elapsed();
        match waited < self.manner.stall {
            true => Ok(()),
            false => {
                let address = self.manner.address.clone();
                Err(LoadError::Stalled {
                    address,
                    waited,
                    outstanding,
                })
            }
        }
    }

    fn receive(&mut self, i: usize, closing: bool) -> Result<(), LoadError> {
        let conn = &mut self.conns[i];
        let reading = Reading {
            prefix_len: self.manner.prefix.len(),
            with_data: self.manner.verify,
        };
        let mut desk = Desk {
            epoch: self.epoch,
            now_ns: 0,
            tally: &mut self.tally,
            values: &self.values,
            verify: self.manner.verify,
            fills: &mut conn.fills,
        };
        conn.link.receive(reading, closing, &mut desk)?;
        Ok(())
    }

    /// Sends on connection `i` what may be sent now.
    fn send(&mut self, i: usize) -> Result<(), LoadError> {
        let now_ns = self.now_ns();
        while self.conns[i].link.pending.len() < self.manner.depth {
            let conn = &mut self.conns[i];
            if let Some(fill) = conn.fills.pop_front() {
                self.store(
                    i,
                    Asked {
                        ask: Ask::Fill,
                        keys: 1,
                        since_ns: now_ns,
                        ..fill
                    },
                    0,
                );
                continue;
            }
            let Some(&(request, due_ns)) = conn.queue.front() else {
                break;
            };
            if request.op == Op::Get && conn.may_fill(request.key) {
                break;
            }
            conn.queue.pop_front();
            self.write(i, &request, due_ns.unwrap_or(now_ns));
        }
        self.conns[i].link.flush()?;
        Ok(())
    }

    /// Writes a request. An `incr` is played as a read: what it found is not in a trace.
    fn write(&mut self, i: usize, request: &Request, since_ns: u64) {
        let ask = match request.op {
            Op::Set => Ask::Set,
            Op::Delete => Ask::Delete,
            Op::Touch => Ask::Touch,
            Op::Get | Op::Incr => Ask::Get,
        };
        let mut asked = Asked {
            ask,
            keys: 1,
            key: request.key,
            key_len: request.key_len,
            value_len: request.value_len.unwrap_or(0),
            since_ns,
        };
        if ask == Ask::Set {
            return self.store(i, asked, request.ttl_s);
        }
        self.write_key(&asked);
        asked.key_len = self.text.len() as u16;
        let link = &mut self.conns[i].link;
        match ask {
            Ask::Delete => request::delete(&mut link.out, &self.text),
            Ask::Touch => {
                let (key, exptime) = (&self.text, exptime(request.ttl_s));
                request::encode(
                    &mut link.out,
                    &Command::Touch {
                        key,
                        exptime,
                        noreply: false,
                    },
                );
            }
            _ => request::get(&mut link.out, &self.text),
        }
        link.pending.push(asked);
    }

    fn store(&mut self, i: usize, mut asked: Asked, ttl_s: u32) {
        self.version += 1;
        self.write_key(&asked);
        asked.key_len = self.text.len() as u16;
        let len = asked.value_len as usize;
        let link = &mut self.conns[i].link;
        request::set_line(&mut link.out, &self.text, 0, exptime(ttl_s), len);
        self.values
            .write(asked.key, self.version, len, &mut link.out);
        request::crlf(&mut link.out);
        link.pending.push(asked);
    }

    fn write_key(&mut self, asked: &Asked) {
        self.text.clear();
        let len = usize::from(asked.key_len);
        keys::write_padded(
            self.manner.prefix.as_bytes(),
            asked.key,
            len,
            &mut self.text,
        );
    }
}

impl Target for SocketTarget {
    fn request(&mut self, request: &Request, due: Option<Instant>) -> Result<(), LoadError> {
        // The upper half of the product depends on all bits of the key.
        let spread = request.key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let i = (spread % self.conns.len() as u64) as usize;
        while self.conns[i].queue.len() >= QUEUE_MAX {
            (0..self.conns.len()).try_for_each(|i| self.send(i))?;
            self.turn(NAP)?;
        }
        let due_ns = due.map(|due| (due - self.epoch).as_nanos() as u64);
        self.conns[i].queue.push_back((*request, due_ns));
        if let Some(due) = due {
            loop {
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                self.turn(if left > SPIN {
                    NAP.min(left - SPIN / 2)
                } else {
                    Duration::ZERO
                })?;
            }
            self.send(i)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), LoadError> {
        while self
            .conns
            .iter()
            .any(|c| !c.queue.is_empty() || !c.fills.is_empty() || !c.link.pending.is_empty())
        {
            (0..self.conns.len()).try_for_each(|i| self.send(i))?;
            self.turn(NAP)?;
        }
        Ok(())
    }

    fn tally(&mut self) -> &mut Tally {
        &mut self.tally
    }
}

/// Where the replies of one connection are counted.
struct Desk<'a> {
    epoch: Instant,
    now_ns: u64,
    tally: &'a mut Tally,
    values: &'a Values,
    verify: bool,
    fills: &'a mut VecDeque<Asked>,
}

impl Sink for Desk<'_> {
    fn arrived(&mut self) {
        self.now_ns = self.epoch.elapsed().as_nanos() as u64;
    }

    fn key(&mut self, asked: &Asked, key: u64, outcome: Outcome<'_>) {
        self.tally.key(asked.ask, asked.value_len, outcome);
        match outcome {
            Outcome::Hit(Some(data)) if self.verify && !self.values.verify(key, data) => {
                self.tally.counts.corrupt += 1;
            }
            Outcome::Miss if asked.ask == Ask::Get => self.fills.push_back(*asked),
            _ => {}
        }
    }

    fn reply(&mut self, asked: &Asked) {
        if asked.ask != Ask::Fill {
            self.tally
                .latency(asked.ask, self.now_ns.saturating_sub(asked.since_ns));
        }
    }
}
