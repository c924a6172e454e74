//! `scan`: keys in their order, where a tenant has one.
//!
//! A scan looks at a bounded number of keys and answers a bounded number of bytes; then it ends
//! with `MORE` and the key behind which to go on, and its connection's next request waits until
//! others had their turn. It pays for each value as a get does. Where its tenant's budget is used
//! up after some values it ends with `MORE`, too: it never overdraws by more than one item. Where a
//! value has to be fetched from a deep device, some of those behind it are fetched, too; what there
//! is before is answered.
//!
//! A scan is no access: what it reads stays as likely to be evicted as it was.

use crate::engine::{Cx, Step};
use nyx_base::{Now, WorkerId};
use nyx_gate::Gate;
use nyx_proto::reply::{self, ScanKeys};
use nyx_proto::{KeyBuf, Out, Scan};
use nyx_store::{Item, KEY_LEN_MAX, Presence, Range, RangeError, Store};
use nyx_tier::{Away, Lane};
use std::ops::{Bound, ControlFlow};

/// A scan that has answered this many bytes ends.
const PART_BYTES: usize = 256 << 10;

/// Values that are fetched together.
const FETCHED_TOGETHER: u32 = 16;

/// What is left to look at, and what was.
struct Part<'a> {
    store: &'a Store,
    worker: WorkerId,
    scan: &'a Scan<'a>,
    keys: ScanKeys,
    now: Now,
    /// Items and keys that may still be.
    items_left: u32,
    keys_left: u32,
    answered: u32,
    last: LastKey,
    /// Values that are being fetched.
    fetched: u32,
    end: End,
}

/// How a scan ended.
#[derive(Clone, Copy)]
enum End {
    /// There is nothing behind.
    Whole,
    /// There may be.
    More,
    /// It may not read now.
    Closed(Gate),
    /// The next value is being fetched.
    Away(Away),
    /// A key that is no text is next.
    NoText,
}

/// The key that was looked at last.
struct LastKey {
    bytes: [u8; KEY_LEN_MAX],
    len: usize,
}

impl LastKey {
    fn set(&mut self, key: &[u8]) {
        self.len = key.len();
        self.bytes[..self.len].copy_from_slice(key);
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Cx<'_, '_> {
    pub(crate) fn scan(&mut self, scan: &Scan<'_>, out: &mut Out) -> Step {
        let keys_max = self.tenant.config.ranges.map_or(1, |it| it.max_scan_keys);
        let mut part = Part {
            store: self.store,
            worker: self.writer.worker(),
            scan,
            keys: ScanKeys {
                base64: scan.has(Scan::BASE64),
            },
            now: self.now,
            items_left: scan.limit,
            keys_left: keys_max.max(1),
            answered: 0,
            last: LastKey {
                bytes: [0; KEY_LEN_MAX],
                len: 0,
            },
            fetched: 0,
            end: End::Whole,
        };
        let most = out.len() + PART_BYTES;
        let scanned = with_range(scan, |range| {
            let now = self.now.unix;
            self.store.scan(
                self.writer,
                &mut self.lane,
                range,
                now,
                |lane, key, item| {
                    let next = part.take(lane, key, item, out);
                    if next.is_continue() && out.len() >= most {
                        part.end = End::More;
                        return ControlFlow::Break(());
                    }
                    next
                },
            )
        });
        match (part.end, part.answered) {
            (End::Closed(gate), 0) => return self.pass(gate),
            (End::Away(away), 0) => return Step::Away(away),
            (End::Closed(_) | End::Away(_), _) => part.end = End::More,
            _ => {}
        }
        self.counters.cmd_scan.add(1);
        self.counters.scan_items.add(u64::from(part.answered));
        match (scanned, part.end) {
            (Err(error @ RangeError::NoOrder), _) => {
                reply::client_error(out, &error.to_string());
            }
            (Err(error), _) => reply::server_error(out, &error.to_string()),
            (Ok(()), End::NoText) => {
                reply::client_error(out, "the next key is no text: ask with base64");
            }
            (Ok(()), End::More) => part.keys.more(out, part.last.get()),
            (Ok(()), _) => reply::end(out),
        }
        Step::Done
    }
}

impl Part<'_> {
    /// One key and its item, where that has not ended.
    fn take(
        &mut self,
        lane: &mut Lane<'_>,
        key: &[u8],
        item: Option<Item<'_>>,
        out: &mut Out,
    ) -> ControlFlow<()> {
        if self.fetched > 0 {
            return self.look_ahead(lane, item);
        }
        if !self.keys.can_send(key) {
            return self.stop(End::NoText);
        }
        if let Some(mut item) = item {
            let is_here = self.scan.has(Scan::KEYS) || self.reach(lane, &mut item)?;
            if self.fetched > 0 {
                return ControlFlow::Continue(());
            }
            if !is_here {
                return self.count(key);
            }
            self.send(lane, key, item, out);
            self.answered += 1;
            self.items_left -= 1;
        }
        self.count(key)
    }

    /// Behind a value that is being fetched: what is there is fetched with it, and sent later.
    fn look_ahead(&mut self, lane: &mut Lane<'_>, item: Option<Item<'_>>) -> ControlFlow<()> {
        if let Some(mut item) = item {
            self.reach(lane, &mut item)?;
        }
        self.keys_left -= 1;
        match self.keys_left {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    /// A key is done.
    fn count(&mut self, key: &[u8]) -> ControlFlow<()> {
        self.last.set(key);
        self.keys_left -= 1;
        match self.items_left.min(self.keys_left) {
            0 => self.stop(End::More),
            _ => ControlFlow::Continue(()),
        }
    }

    /// Asks for the value of an item: whether it can be sent, not where it is lost or being
    /// fetched. Breaks where it may not be read now, or where enough are being fetched.
    fn reach(&mut self, lane: &mut Lane<'_>, item: &mut Item<'_>) -> ControlFlow<(), bool> {
        let mono = self.now.mono;
        let presence = match item.is_deep() {
            true => self.store.fetch(self.worker, lane, item, mono),
            false => match lane.gate(mono) {
                Gate::Open => Presence::Here,
                gate => Presence::Closed(gate),
            },
        };
        match presence {
            Presence::Here => return ControlFlow::Continue(true),
            Presence::Lost => return ControlFlow::Continue(false),
            Presence::Closed(gate) if self.fetched == 0 => self.end = End::Closed(gate),
            Presence::Closed(_) => {}
            Presence::Away(away) => {
                if self.fetched == 0 {
                    self.end = End::Away(away);
                }
                self.fetched += 1;
                if self.fetched < FETCHED_TOGETHER {
                    return ControlFlow::Continue(false);
                }
            }
        }
        ControlFlow::Break(())
    }

    fn stop(&mut self, end: End) -> ControlFlow<()> {
        self.end = end;
        ControlFlow::Break(())
    }

    fn send(&self, lane: &mut Lane<'_>, key: &[u8], item: Item<'_>, out: &mut Out) {
        let cas = self.scan.has(Scan::CAS).then(|| item.cas(lane));
        let (flags, len) = (item.flags(), item.value_len());
        if self.scan.has(Scan::KEYS) {
            self.keys.key(out, key, flags, len, cas);
            return;
        }
        self.keys.value(out, key, flags, len, cas);
        item.read(lane, out.space(len));
        reply::crlf(out);
    }
}

/// Calls `run` with the range that is meant.
fn with_range<T>(scan: &Scan<'_>, run: impl FnOnce(&Range<'_>) -> T) -> T {
    let mut scratch: [KeyBuf; 3] = Default::default();
    let [prefix, begin, end] = &mut scratch;
    let decode = |key, scratch| decode(scan, key, scratch);
    let bound = |key: Option<_>, outside| match (key, scan.has(outside)) {
        (None, _) => Bound::Unbounded,
        (Some(key), false) => Bound::Included(key),
        (Some(key), true) => Bound::Excluded(key),
    };
    let begin = scan.begin.map(|key| decode(key, begin));
    let end = scan.end.map(|key| decode(key, end));
    let (begin, end) = (bound(begin, Scan::AFTER), bound(end, Scan::BEFORE));
    let descending = scan.has(Scan::DOWN);
    let (from, to) = match descending {
        false => (begin, end),
        true => (end, begin),
    };
    run(&Range {
        prefix: decode(scan.prefix, prefix),
        from,
        to,
        descending,
    })
}

fn decode<'s>(scan: &Scan<'_>, key: &'s [u8], scratch: &'s mut KeyBuf) -> &'s [u8] {
    match scan.has(Scan::BASE64) && !key.is_empty() {
        true => scratch.decode(key),
        false => key,
    }
}
