//! One tenant's part of one generator thread: which requests it makes, and what it learns.
//!
//! What it never does: wait, or send; its thread does.

use super::LoadError;
use super::link::{Ask, Asked, Link, Outcome, Sink};
use super::plan::{Plan, Tenant};
use super::shared::{Phase, Shared};
use super::tally::{Counts, Tally};
use super::wire::exptime;
use super::ycsb::records::Records;
use nyx_proto::{ArithOp, Command, Store, StoreVerb, request};
use nyx_sim::workload::ycsb::{self, Act, Acts};
use nyx_sim::workload::{Generator, KeySpace, Op, Step, Values};
use std::collections::VecDeque;
use std::ops::Range;

/// Requests in one write while the keys are stored at first.
const FILL_DEPTH: usize = 64;
/// Bytes in one write while the keys are stored at first, roughly.
const FILL_BYTES: usize = 256 << 10;

/// A connection of a stream.
pub(crate) struct Conn {
    /// The connection itself.
    pub(crate) link: Link,
    /// Which of its thread's streams it belongs to.
    pub(crate) stream: usize,
    /// What was asked and has to be followed up: keys to store because a request missed them, what
    /// was read to be written, scans to go on with.
    pub(crate) sequels: VecDeque<Asked>,
}

/// One tenant's part of one thread.
pub(crate) struct Stream {
    /// What it asks for.
    pub(crate) generator: Generator,
    /// What it does instead, in a run of YCSB.
    pub(crate) acts: Option<Acts>,
    /// Keys of the numbers that `incr` counts up.
    counters: Option<KeySpace>,
    /// Its connections.
    pub(crate) conns: Range<usize>,
    /// The connection that the next request of an open loop tries first.
    turn: usize,
    /// When the next request of an open loop is due, in nanoseconds.
    pub(crate) due_ns: f64,
    /// The mean time between two requests of an open loop, in nanoseconds.
    pub(crate) gap_ns: Option<f64>,
    /// The time between two of the first stores, where they keep a pace, in nanoseconds.
    fill_gap_ns: Option<f64>,
    /// Keys that are still to be stored at first.
    pub(crate) to_fill: Range<u64>,
    /// Keys that may still be asked for.
    pub(crate) left: u64,
    version: u64,
    /// The text of the keys of the request that is being written.
    text: Vec<u8>,
    /// Requests that were due when the run ended and had not been sent.
    pub(crate) unsent: u64,
    /// What happened while the keys were stored.
    pub(crate) fill: Counts,
    /// What was counted lately.
    pub(crate) recent: Tally,
    /// What was measured before that.
    pub(crate) total: Tally,
}

impl Stream {
    /// The part of `tenant` whose connections are `conns` of its thread and `share` of the
    /// tenant's.
    pub(crate) fn new(
        plan: &Plan,
        tenant: &Tenant,
        number: u64,
        share: Range<usize>,
        conns: Range<usize>,
    ) -> Result<Stream, LoadError> {
        let spec = &tenant.spec;
        let counters = match spec.mix.has(Op::Incr) {
            true => {
                let prefix = format!("{}n", spec.prefix);
                let digits = spec.keys.saturating_sub(1).max(1).ilog10() as usize + 1;
                let len = spec.key_len.max(prefix.len() + digits);
                Some(KeySpace::new(&prefix, spec.keys, len)?)
            }
            false => None,
        };
        let part =
            |conn: usize| (spec.keys as u128 * conn as u128 / tenant.connections as u128) as u64;
        let own_rate = |rate: f64| rate * share.len() as f64 / tenant.connections as f64;
        Ok(Stream {
            generator: Generator::new(spec, plan.seed, number)?,
            acts: (plan.ycsb)
                .map(|y| {
                    let len_max = y.scan_len_max.into();
                    Acts::new(y.core, spec.keys, y.alpha, len_max, plan.seed, number)
                })
                .transpose()?,
            counters,
            turn: 0,
            due_ns: 0.0,
            gap_ns: tenant.rate.map(|rate| 1e9 / own_rate(rate)),
            fill_gap_ns: plan.fill_rate.map(|rate| 1e9 / own_rate(rate)),
            to_fill: part(share.start)..part(share.end),
            left: if conns.is_empty() { 0 } else { u64::MAX },
            conns,
            version: number << 48,
            text: Vec::new(),
            unsent: 0,
            fill: Counts::default(),
            recent: match plan.sift {
                Some(_) => plan.tally().sifted(),
                None => plan.tally(),
            },
            total: plan.tally(),
        })
    }

    /// Whether it sends by the clock in `phase`.
    pub(crate) fn is_open(&self, phase: Phase) -> bool {
        match phase {
            Phase::Fill => self.fill_gap_ns.is_some() && !self.to_fill.is_empty(),
            Phase::WarmUp | Phase::Measure => self.gap_ns.is_some() && self.left > 0,
            Phase::Stop => false,
        }
    }

    /// Takes leave at the end of a run: counts the requests that are overdue at `now_ns`.
    pub(crate) fn stop(&mut self, now_ns: u64) {
        let late_ns = now_ns as f64 - self.due_ns;
        self.unsent = match self.gap_ns {
            Some(gap_ns) if late_ns > 0.0 && self.left > 0 => (late_ns / gap_ns) as u64,
            _ => 0,
        };
        self.recent.drain_into(&mut self.total);
    }

    /// Sets when the next request is due.
    pub(crate) fn schedule(&mut self, poisson: bool) {
        let gap_ns = self.gap_ns.unwrap_or(0.0);
        self.due_ns += match poisson {
            true => -(1.0 - self.generator.rng().f64()).ln() * gap_ns,
            false => gap_ns,
        };
    }

    /// The next of its connections with less than `depth` outstanding.
    pub(crate) fn free_conn(&mut self, conns: &[Conn], depth: usize) -> Option<usize> {
        let count = self.conns.len();
        let free = (0..count)
            .map(|k| (self.turn + k) % count)
            .find(|&k| conns[self.conns.start + k].link.pending.len() < depth)?;
        self.turn = (free + 1) % count;
        Some(self.conns.start + free)
    }

    /// Writes a batch of the first stores, where those keep no pace.
    pub(crate) fn fill_batch(&mut self, conn: &mut Conn, values: &Values, now_ns: u64) {
        let mut count = 0;
        let is_paced = self.fill_gap_ns.is_some();
        while !is_paced && count < FILL_DEPTH && conn.link.out.len() < FILL_BYTES {
            if !self.fill_one(conn, values, now_ns) {
                break;
            }
            count += 1;
        }
    }

    /// Writes those of the first stores that are due by their pace, to whichever connections have
    /// room; whether there were any.
    pub(crate) fn fill_due(&mut self, conns: &mut [Conn], values: &Values, now_ns: u64) -> bool {
        let Some(gap_ns) = self.fill_gap_ns else {
            return false;
        };
        let due_ns = self.due_ns;
        while self.due_ns <= now_ns as f64 {
            let Some(free) = self.free_conn(conns, FILL_DEPTH) else {
                break;
            };
            if !self.fill_one(&mut conns[free], values, now_ns) {
                break;
            }
            self.due_ns += gap_ns;
        }
        self.due_ns > due_ns
    }

    /// Writes one of the first stores; whether there was one left.
    fn fill_one(&mut self, conn: &mut Conn, values: &Values, now_ns: u64) -> bool {
        let Some(number) = self.to_fill.next() else {
            return false;
        };
        let key = match self.acts {
            Some(_) => ycsb::key(number),
            None => number,
        };
        self.store(conn, values, Ask::Fill, key, now_ns);
        true
    }

    /// Writes up to `limit` requests that follow from replies; gives how many.
    pub(crate) fn follow_up(
        &mut self,
        conn: &mut Conn,
        values: &Values,
        now_ns: u64,
        limit: usize,
    ) -> usize {
        let mut count = 0;
        while count < limit {
            let Some(asked) = conn.sequels.pop_front() else {
                break;
            };
            match asked.ask {
                Ask::Incr => self.start_counter(conn, asked.key, now_ns),
                Ask::Look => self.store(conn, values, Ask::Rmw, asked.key, asked.since_ns),
                Ask::Scan => self.scan(conn, asked.key, asked.keys, asked.since_ns),
                _ => self.store(conn, values, Ask::Fill, asked.key, now_ns),
            }
            count += 1;
        }
        count
    }

    /// Writes one request of the workload, due at `since_ns`. False where none is left.
    pub(crate) fn ask(
        &mut self,
        conn: &mut Conn,
        values: &Values,
        multiget: usize,
        records: &Records,
        since_ns: u64,
    ) -> bool {
        if self.left == 0 {
            return false;
        }
        if let Some(act) = self.acts.as_mut().map(|acts| acts.next(records.there())) {
            self.act(act, conn, values, records, since_ns);
            self.left -= 1;
            return true;
        }
        let Step { op, key, ttl_s } = self.generator.step();
        let out = &mut conn.link.out;
        self.text.clear();
        match op {
            Op::Get => self.get(conn, key, multiget, since_ns),
            Op::Set => self.store(conn, values, Ask::Set, key, since_ns),
            Op::Delete => {
                self.generator.space().write(key, &mut self.text);
                request::delete(out, &self.text);
                self.push(conn, Ask::Delete, 1, key, since_ns);
            }
            Op::Touch => {
                self.generator.space().write(key, &mut self.text);
                let (key_text, exptime) = (&self.text, exptime(ttl_s));
                let touch = Command::Touch {
                    key: key_text,
                    exptime,
                    noreply: false,
                };
                request::encode(out, &touch);
                self.push(conn, Ask::Touch, 1, key, since_ns);
            }
            Op::Incr => {
                self.write_counter_key(key);
                let (key_text, op) = (&self.text, ArithOp::Incr);
                let incr = Command::Arith {
                    key: key_text,
                    op,
                    delta: 1,
                    noreply: false,
                };
                request::encode(out, &incr);
                self.push(conn, Ask::Incr, 1, key, since_ns);
            }
        }
        let keys = if op == Op::Get { multiget as u64 } else { 1 };
        self.left = self.left.saturating_sub(keys);
        true
    }

    /// Writes one operation of YCSB, or what it begins with.
    fn act(
        &mut self,
        act: Act,
        conn: &mut Conn,
        values: &Values,
        records: &Records,
        since_ns: u64,
    ) {
        match act {
            Act::Read(number) => self.read(conn, Ask::Get, ycsb::key(number), since_ns),
            Act::ReadModifyWrite(number) => {
                self.read(conn, Ask::Look, ycsb::key(number), since_ns);
            }
            Act::Update(number) => {
                self.store(conn, values, Ask::Set, ycsb::key(number), since_ns);
            }
            Act::Insert => {
                let number = records.take();
                self.store(conn, values, Ask::Insert, ycsb::key(number), since_ns);
            }
            Act::Scan { from, len } => self.scan(conn, ycsb::key(from), len as u16, since_ns),
        }
    }

    fn read(&mut self, conn: &mut Conn, ask: Ask, key: u64, since_ns: u64) {
        self.text.clear();
        self.generator.space().write(key, &mut self.text);
        request::get(&mut conn.link.out, &self.text);
        self.push(conn, ask, 1, key, since_ns);
    }

    fn scan(&mut self, conn: &mut Conn, from: u64, len: u16, since_ns: u64) {
        self.text.clear();
        self.generator.space().write(from, &mut self.text);
        let prefix = self.generator.spec().prefix.as_bytes();
        request::scan(&mut conn.link.out, prefix, &self.text, len.into());
        self.push(conn, Ask::Scan, len, from, since_ns);
    }

    fn get(&mut self, conn: &mut Conn, key: u64, multiget: usize, since_ns: u64) {
        self.generator.space().write(key, &mut self.text);
        self.push(conn, Ask::Get, multiget as u16, key, since_ns);
        if multiget == 1 {
            return request::get(&mut conn.link.out, &self.text);
        }
        for _ in 1..multiget {
            let key = self.generator.read_key();
            self.generator.space().write(key, &mut self.text);
            conn.link.pending.push_key(key);
        }
        let key_len = self.generator.space().key_len();
        request::multiget(&mut conn.link.out, self.text.chunks_exact(key_len));
    }

    fn store(&mut self, conn: &mut Conn, values: &Values, ask: Ask, key: u64, since_ns: u64) {
        self.version += 1;
        let len = self.generator.value_len(key) as usize;
        let exptime = exptime(self.generator.ttl_s());
        self.text.clear();
        self.generator.space().write(key, &mut self.text);
        let out = &mut conn.link.out;
        request::set_line(out, &self.text, 0, exptime, len);
        values.write(key, self.version, len, out);
        request::crlf(out);
        self.push(conn, ask, 1, key, since_ns);
    }

    fn start_counter(&mut self, conn: &mut Conn, key: u64, since_ns: u64) {
        let exptime = exptime(self.generator.ttl_s());
        self.text.clear();
        self.write_counter_key(key);
        let add = Command::Store(Store {
            key: &self.text,
            data: b"0",
            cas: 0,
            exptime,
            flags: 0,
            verb: StoreVerb::Add,
            noreply: false,
        });
        request::encode(&mut conn.link.out, &add);
        self.push(conn, Ask::Fill, 1, key, since_ns);
    }

    fn write_counter_key(&mut self, key: u64) {
        let space = self.counters.as_ref().unwrap_or(self.generator.space());
        space.write(key, &mut self.text);
    }

    fn push(&self, conn: &mut Conn, ask: Ask, keys: u16, key: u64, since_ns: u64) {
        conn.link.pending.push(Asked {
            ask,
            keys,
            key,
            key_len: self.generator.space().key_len() as u16,
            value_len: self.generator.value_len(key),
            since_ns,
        });
    }
}

/// Where the replies of one connection are counted.
pub(crate) struct Desk<'a> {
    /// The run's clock.
    pub(crate) shared: &'a Shared,
    /// What values should be.
    pub(crate) values: &'a Values,
    /// Whose keys they are.
    pub(crate) generator: &'a Generator,
    /// What is counted.
    pub(crate) tally: &'a mut Tally,
    /// What has to be followed up.
    pub(crate) sequels: &'a mut VecDeque<Asked>,
    /// Whether a read that misses stores the key.
    pub(crate) fill_on_miss: bool,
    /// Whether hits' bytes are checked.
    pub(crate) verify: bool,
    /// Whether a `get` may have several keys.
    pub(crate) several: bool,
    /// When bytes last arrived, in nanoseconds.
    pub(crate) now_ns: u64,
    /// Keys finished, without fills.
    pub(crate) keys: u64,
}

impl Sink for Desk<'_> {
    #[inline]
    fn arrived(&mut self) {
        self.now_ns = self.shared.now_ns();
    }

    #[inline]
    fn key(&mut self, asked: &Asked, key: u64, outcome: Outcome<'_>) {
        let len = match self.several {
            true => self.generator.value_len(key),
            false => asked.value_len,
        };
        self.tally.key(asked.ask, len, outcome);
        self.keys += u64::from(asked.ask != Ask::Fill);
        match outcome {
            Outcome::Hit(Some(data)) if self.verify => {
                let right = data.len() == len as usize && self.values.verify(key, data);
                self.tally.counts.corrupt += u64::from(!right);
            }
            Outcome::Miss
                if asked.ask == Ask::Incr || (asked.ask == Ask::Get && self.fill_on_miss) =>
            {
                self.sequels.push_back(Asked { key, ..*asked });
            }
            _ => {}
        }
    }

    #[inline]
    fn reply(&mut self, asked: &Asked) {
        if asked.ask != Ask::Fill {
            self.tally
                .latency(asked.ask, self.now_ns.saturating_sub(asked.since_ns));
        }
    }
}
