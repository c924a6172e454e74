//! The reference: a plain map that answers as `docs/protocol.md` says, and memcached's protocol.txt
//! where that page is silent.
//!
//! What it never does: use a type or a function of the engine, the store or the parser. Cas values
//! are the store's own choice: the reference names the write they stand for and learns the number
//! from the first answer that carries it.

use super::script::{KEYS, Meta, MetaVerb, Op, Pick, VALUE_LEN_MAX, Verb, value, written_key};
use std::collections::BTreeMap;

/// The longest relative time to live: 30 days.
const RELATIVE_MAX_S: i64 = 30 * 86_400;
/// The last second at which an item can end.
const LAST_S: i64 = u32::MAX as i64 - 1;
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";
const NON_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// These bytes.
    Bytes(Vec<u8>),
    /// The cas value of this write.
    Cas(u64),
}

/// An answer, piece by piece.
#[derive(Debug, Default)]
pub(crate) struct Answer(pub(crate) Vec<Piece>);

impl Answer {
    fn put(mut self, bytes: impl AsRef<[u8]>) -> Answer {
        self.0.push(Piece::Bytes(bytes.as_ref().to_vec()));
        self
    }

    fn put_cas(mut self, write: u64) -> Answer {
        self.0.push(Piece::Cas(write));
        self
    }

    fn unless(self, silent: bool) -> Answer {
        if silent { Answer::default() } else { self }
    }
}

fn line(text: impl AsRef<[u8]>) -> Answer {
    Answer::default().put(text)
}

#[derive(Clone, Debug, Default)]
struct Item {
    value: Vec<u8>,
    flags: u64,
    /// The second from which on it is gone.
    end: Option<i64>,
    /// Which write made it: names its cas value.
    write: u64,
    accessed: i64,
    hit: bool,
    stale: bool,
    won: bool,
}

/// What is stored, and what is known of cas values.
pub(crate) struct Reference {
    now: i64,
    items: BTreeMap<usize, Item>,
    flush_at: Option<i64>,
    writes: u64,
    /// The cas values that are known, by the write that they stand for.
    known: BTreeMap<u64, u64>,
}

impl Reference {
    /// Empty, at this second.
    pub(crate) fn new(now: u32) -> Reference {
        Reference {
            now: i64::from(now),
            items: BTreeMap::new(),
            flush_at: None,
            writes: 0,
            known: BTreeMap::new(),
        }
    }

    /// The cas value to send for `pick`.
    pub(crate) fn exact(&self, pick: Pick, key: usize) -> u64 {
        let current = || self.known.get(&self.items.get(&key)?.write).copied();
        match pick {
            Pick::Exact(cas) => cas,
            Pick::Current => current().unwrap_or(3),
            Pick::Seen(at) => {
                let mut seen = self.known.values();
                seen.nth(at % self.known.len().max(1)).map_or(3, |&cas| cas)
            }
        }
    }

    /// Whether the item's cas value must be asked for before it can be compared.
    pub(crate) fn is_cas_unknown(&self, key: usize) -> bool {
        let item = self.items.get(&key);
        item.is_some_and(|item| !self.known.contains_key(&item.write))
    }

    /// Whether an item is there whose value has no bytes.
    pub(crate) fn has_an_empty_value(&self) -> bool {
        self.items.values().any(|item| item.value.is_empty())
    }

    /// Time moves on.
    pub(crate) fn wait_s(&mut self, seconds: u32) {
        self.now += i64::from(seconds);
        if self.flush_at.is_some_and(|at| at <= self.now) {
            self.flush_at = None;
            self.items.clear();
        }
        self.forget_ended();
    }

    fn forget_ended(&mut self) {
        let now = self.now;
        self.items
            .retain(|_, item| item.end.is_none_or(|end| end > now));
    }

    fn end_of(&self, time: i64) -> Option<i64> {
        match time {
            0 => None,
            t if t < 0 => Some(self.now),
            t if t <= RELATIVE_MAX_S => Some((self.now + t).min(LAST_S)),
            t => Some(t.min(LAST_S)),
        }
    }

    fn ttl(&self, end: Option<i64>) -> String {
        match end {
            None => "-1".to_owned(),
            Some(end) => (end - self.now).max(0).to_string(),
        }
    }

    /// A new item as it is written now; `cas` is a value that the client gives it.
    fn write(&mut self, key: usize, mut item: Item, cas: Option<u64>) -> u64 {
        self.writes += 1;
        item.write = self.writes;
        item.accessed = self.now;
        if let Some(cas) = cas {
            self.known.insert(self.writes, cas);
        }
        self.items.insert(key, item);
        self.writes
    }

    fn has_cas(&self, item: &Item, cas: u64) -> bool {
        self.known.get(&item.write) == Some(&cas)
    }

    /// What the command answers, which it carries out.
    pub(crate) fn answer(&mut self, op: &Op) -> Answer {
        let answer = match op {
            Op::Get {
                keys,
                with_cas,
                touch,
            } => self.get(keys, *with_cas, *touch),
            Op::Store { noreply, .. } => self.store(op).unless(*noreply),
            Op::Delete { key, noreply } => match self.items.remove(key) {
                Some(_) => line("DELETED\r\n"),
                None => line("NOT_FOUND\r\n"),
            }
            .unless(*noreply),
            Op::Arith {
                key,
                up,
                delta,
                noreply,
            } => {
                let answer = match self.change_number(*key, *up, *delta, None) {
                    None => line("NOT_FOUND\r\n"),
                    Some(None) => line(NON_NUMERIC),
                    Some(Some(number)) => line(format!("{number}\r\n")),
                };
                answer.unless(*noreply)
            }
            Op::Touch {
                key,
                exptime,
                noreply,
            } => {
                let end = self.end_of(*exptime);
                match self.items.get_mut(key) {
                    Some(item) => {
                        item.end = end;
                        line("TOUCHED\r\n")
                    }
                    None => line("NOT_FOUND\r\n"),
                }
                .unless(*noreply)
            }
            Op::Meta(meta) => match meta.verb {
                MetaVerb::Get => self.meta_get(meta),
                MetaVerb::Set => self.meta_set(meta),
                MetaVerb::Delete => self.meta_delete(meta),
                MetaVerb::Arith => self.meta_arith(meta),
            },
            Op::Debug { key, base64 } => self.debug(*key, *base64),
            Op::FlushAll { delay, noreply } => {
                // The last flush takes the place of one that is still to come.
                self.flush_at = self.end_of(*delay).filter(|&at| at > self.now);
                if self.flush_at.is_none() {
                    self.items.clear();
                }
                line("OK\r\n").unless(*noreply)
            }
            Op::Fixed(_, answer) => line(answer),
            Op::Wait(_) | Op::Maintain => Answer::default(),
        };
        self.forget_ended();
        answer
    }

    fn get(&mut self, keys: &[usize], with_cas: bool, touch: Option<i64>) -> Answer {
        let end = touch.map(|time| self.end_of(time));
        let mut answer = Answer::default();
        for key in keys {
            let Some(item) = self.items.get_mut(key) else {
                continue;
            };
            let (name, len) = (KEYS[*key].0, item.value.len());
            answer = answer.put(format!("VALUE {name} {} {len}", item.flags));
            if with_cas {
                answer = answer.put(" ").put_cas(item.write);
            }
            answer = answer.put("\r\n").put(&item.value).put("\r\n");
            (item.hit, item.accessed) = (true, self.now);
            if let Some(end) = end {
                item.end = end;
            }
            self.forget_ended();
        }
        answer.put("END\r\n")
    }

    fn store(&mut self, op: &Op) -> Answer {
        let &Op::Store {
            verb,
            key,
            value: at,
            flags,
            exptime,
            cas,
            ..
        } = op
        else {
            panic!("{op:?} is no store");
        };
        let data = value(at);
        if data.len() > VALUE_LEN_MAX {
            if verb == Verb::Set {
                self.items.remove(&key);
            }
            return line(TOO_LARGE);
        }
        let old = self.items.get(&key).cloned();
        let refused = match (verb, &old, cas) {
            (Verb::Add, Some(_), _) | (Verb::Replace | Verb::Append | Verb::Prepend, None, _) => {
                Some("NOT_STORED\r\n")
            }
            (Verb::Cas, None, _) => Some("NOT_FOUND\r\n"),
            (Verb::Cas, Some(old), Pick::Exact(cas)) if !self.has_cas(old, cas) => {
                Some("EXISTS\r\n")
            }
            _ => None,
        };
        if let Some(refused) = refused {
            return line(refused);
        }
        if let (Verb::Append | Verb::Prepend, Some(old)) = (verb, old) {
            return match self.extend(key, old, &data, verb == Verb::Append, None) {
                Some(_) => line("STORED\r\n"),
                None => line(TOO_LARGE),
            };
        }
        let item = Item {
            value: data,
            flags: u64::from(flags),
            end: self.end_of(exptime),
            ..Item::default()
        };
        self.write(key, item, None);
        line("STORED\r\n")
    }

    /// Appends or prepends: all but the value stays as it is, and the cas value is `cas` or the
    /// store's choice. None where it grows too large.
    fn extend(
        &mut self,
        key: usize,
        old: Item,
        data: &[u8],
        append: bool,
        cas: Option<u64>,
    ) -> Option<()> {
        let value = match append {
            true => [&old.value, data].concat(),
            false => [data, &old.value].concat(),
        };
        if value.len() > VALUE_LEN_MAX {
            return None;
        }
        let accessed = old.accessed;
        self.write(key, Item { value, ..old }, cas);
        self.items.get_mut(&key)?.accessed = accessed;
        Some(())
    }

    /// None on a miss, none within where there is no number.
    fn change_number(
        &mut self,
        key: usize,
        up: bool,
        delta: u64,
        cas: Option<u64>,
    ) -> Option<Option<u64>> {
        let old = self.items.get(&key)?.clone();
        let digits = !old.value.is_empty()
            && old.value.len() <= 20
            && old.value.iter().all(u8::is_ascii_digit);
        let number = || -> Option<u64> { std::str::from_utf8(&old.value).ok()?.parse().ok() };
        let Some(number) = number().filter(|_| digits) else {
            return Some(None);
        };
        let number = match up {
            true => number.wrapping_add(delta),
            false => number.saturating_sub(delta),
        };
        let value = number.to_string().into_bytes();
        let item = Item {
            value,
            hit: false,
            ..old
        };
        self.write(key, item, cas);
        Some(Some(number))
    }

    /// The flags that an answer repeats, in the request's order.
    fn returned(&self, mut answer: Answer, meta: &Meta, which: &str, item: &Item) -> Answer {
        for flag in &meta.flags {
            let letter = flag.letter;
            if !which.contains(letter) {
                continue;
            }
            answer = answer.put(format!(" {letter}"));
            answer = match letter {
                'k' if meta.has('b') => answer.put(meta.written_key()).put(" b"),
                'k' => answer.put(meta.written_key()),
                'O' => match flag.token {
                    super::script::Token::Text(text) => answer.put(text),
                    other => panic!("O has {other:?}"),
                },
                'c' if item.write == 0 => answer.put("0"),
                'c' => answer.put_cas(item.write),
                'f' => answer.put(item.flags.to_string()),
                's' => answer.put(item.value.len().to_string()),
                't' => answer.put(self.ttl(item.end)),
                'l' => answer.put((self.now - item.accessed).to_string()),
                'h' => answer.put(if item.hit { "1" } else { "0" }),
                _ => panic!("{letter} is never returned"),
            };
        }
        answer
    }

    fn meta_get(&mut self, meta: &Meta) -> Answer {
        let mut won = false;
        if !self.items.contains_key(&meta.key) {
            let Some(ttl) = meta.time('N') else {
                let miss = self.returned(line("EN"), meta, "kO", &Item::default());
                return miss.put("\r\n").unless(meta.has('q'));
            };
            let empty = Item {
                end: self.end_of(ttl),
                won: true,
                ..Item::default()
            };
            self.write(meta.key, empty, meta.number('E'));
            won = true;
        }
        let created = won;
        let mut item = self.items[&meta.key].clone();
        let left = item.end.map(|end| end - self.now);
        let ends_soon = match (meta.time('R'), left) {
            (Some(within), Some(left)) => left < within,
            _ => false,
        };
        let lost = item.won && !created;
        if (item.stale || ends_soon) && !item.won {
            won = true;
            item.won = true;
        }
        if let (Some(time), false) = (meta.time('T'), created) {
            item.end = self.end_of(time);
        }
        let same = !created && meta.number('C').is_some_and(|cas| self.has_cas(&item, cas));
        let sends_value = meta.has('v') && !same;
        let head = match sends_value {
            true => line(format!("VA {}", item.value.len())),
            false => line("HD"),
        };
        let mut answer = self.returned(head, meta, "cfhklOst", &item);
        for (mark, text) in [(lost, " Z"), (item.stale, " X"), (won, " W")] {
            answer = if mark { answer.put(text) } else { answer };
        }
        answer = answer.put("\r\n");
        if sends_value {
            answer = answer.put(&item.value).put("\r\n");
        }
        if !meta.has('u') && !created {
            (item.hit, item.accessed) = (true, self.now);
        }
        self.items.insert(meta.key, item);
        answer
    }

    fn meta_set(&mut self, meta: &Meta) -> Answer {
        let data = value(meta.value);
        if data.len() > VALUE_LEN_MAX {
            self.items.remove(&meta.key);
            return line(TOO_LARGE);
        }
        let sent = Item {
            value: data.clone(),
            flags: meta.number('F').unwrap_or(0),
            end: self.end_of(meta.time('T').unwrap_or(0)),
            ..Item::default()
        };
        let old = self.items.get(&meta.key).cloned();
        let status = match meta.mode('S') {
            'A' | 'P' => return self.meta_extend(meta, sent, old),
            // An add needs no check of the cas value.
            'E' if old.is_some() => "NS",
            'E' => "",
            mode => match (meta.number('C'), &old) {
                (None, None) if mode == 'R' => "NS",
                (None, _) => "",
                (Some(_), None) => "NF",
                (Some(cas), Some(old)) if self.has_cas(old, cas) => "",
                (Some(cas), Some(old)) => match self.known.get(&old.write) {
                    Some(&current) if meta.has('I') && cas < current => "stale",
                    _ => "EX",
                },
            },
        };
        self.finish_set(meta, sent, status)
    }

    fn finish_set(&mut self, meta: &Meta, mut sent: Item, status: &str) -> Answer {
        if !matches!(status, "" | "stale") {
            return self.returned(line(status), meta, "ckOs", &sent).put("\r\n");
        }
        sent.stale = status == "stale";
        sent.write = self.write(meta.key, sent.clone(), meta.number('E'));
        let answer = self.returned(line("HD"), meta, "ckOs", &sent).put("\r\n");
        answer.unless(meta.has('q'))
    }

    fn meta_extend(&mut self, meta: &Meta, sent: Item, old: Option<Item>) -> Answer {
        let Some(old) = old else {
            let Some(ttl) = meta.time('N') else {
                return self.finish_set(meta, sent, "NS");
            };
            let end = self.end_of(ttl);
            return self.finish_set(meta, Item { end, ..sent }, "");
        };
        let other = |cas| !self.has_cas(&old, cas);
        if meta.number('C').is_some_and(other) {
            return self.finish_set(meta, sent, "EX");
        }
        let append = meta.mode('S') == 'A';
        match self.extend(meta.key, old, &sent.value, append, meta.number('E')) {
            None => line(TOO_LARGE),
            Some(_) => {
                // The length is that of the whole value.
                let item = &self.items[&meta.key];
                let answer = self.returned(line("HD"), meta, "ckOs", item).put("\r\n");
                answer.unless(meta.has('q'))
            }
        }
    }

    fn meta_delete(&mut self, meta: &Meta) -> Answer {
        let Some(old) = self.items.get(&meta.key).cloned() else {
            return self.status(meta, "NF");
        };
        if meta.number('C').is_some_and(|cas| !self.has_cas(&old, cas)) {
            return self.status(meta, "EX");
        }
        let end = match meta.time('T') {
            Some(time) if meta.has('I') => self.end_of(time),
            _ => old.end,
        };
        let cas = meta.number('E');
        if meta.has('x') {
            let empty = Item {
                end,
                stale: meta.has('I'),
                ..Item::default()
            };
            self.write(meta.key, empty, cas);
        } else if meta.has('I') {
            let accessed = old.accessed;
            let stale = Item {
                end,
                stale: true,
                won: false,
                ..old
            };
            self.write(meta.key, stale, cas);
            if let Some(item) = self.items.get_mut(&meta.key) {
                item.accessed = accessed;
            }
        } else {
            self.items.remove(&meta.key);
        }
        self.status(meta, "HD").unless(meta.has('q'))
    }

    fn status(&self, meta: &Meta, status: &str) -> Answer {
        let answer = self.returned(line(status), meta, "kO", &Item::default());
        answer.put("\r\n")
    }

    fn meta_arith(&mut self, meta: &Meta) -> Answer {
        let up = matches!(meta.mode('I'), 'I' | '+');
        let delta = meta.number('D').unwrap_or(1);
        let cas = meta.number('E');
        match self.items.get(&meta.key) {
            None => {
                let Some(ttl) = meta.time('N') else {
                    return self.status(meta, "NF");
                };
                let initial = meta.number('J').unwrap_or(0).to_string();
                let item = Item {
                    value: initial.into_bytes(),
                    end: self.end_of(ttl),
                    ..Item::default()
                };
                self.write(meta.key, item, cas);
            }
            Some(old) => {
                if meta.number('C').is_some_and(|cas| !self.has_cas(old, cas)) {
                    return self.status(meta, "EX");
                }
                match self.change_number(meta.key, up, delta, cas) {
                    Some(Some(_)) => {}
                    _ => return line(NON_NUMERIC),
                }
                let end = meta.time('T').map(|time| self.end_of(time));
                if let (Some(end), Some(item)) = (end, self.items.get_mut(&meta.key)) {
                    item.end = end;
                }
            }
        }
        let item = &self.items[&meta.key];
        let head = match meta.has('v') {
            true => line(format!("VA {}", item.value.len())),
            false => line("HD"),
        };
        let answer = self.returned(head, meta, "ckOt", item).put("\r\n");
        let answer = match meta.has('v') {
            true => answer.put(&item.value).put("\r\n"),
            false => answer,
        };
        answer.unless(meta.has('q'))
    }

    fn debug(&self, key: usize, base64: bool) -> Answer {
        let Some(item) = self.items.get(&key) else {
            return line("EN\r\n");
        };
        let size = KEYS[key].0.len() + item.value.len();
        let hit = if item.hit { "yes" } else { "no" };
        let (end, idle_s) = (self.ttl(item.end), self.now - item.accessed);
        line(format!(
            "ME {} exp={end} la={idle_s} cas=",
            written_key(key, base64)
        ))
        .put_cas(item.write)
        .put(format!(" fetch={hit} cls=1 size={size}\r\n"))
    }

    /// Compares what was answered, and learns its cas values.
    pub(crate) fn check(&mut self, want: &Answer, got: &[u8]) -> Result<(), String> {
        let mut rest = got;
        let told = |rest: &[u8], what: &str| {
            let at = got.len() - rest.len();
            let got = got.escape_ascii();
            Err(format!("at byte {at} of {got}: {what}"))
        };
        for piece in &want.0 {
            match piece {
                Piece::Bytes(bytes) => match rest.strip_prefix(&bytes[..]) {
                    Some(behind) => rest = behind,
                    None => return told(rest, &format!("wanted {}", bytes.escape_ascii())),
                },
                Piece::Cas(write) => {
                    let len = rest.iter().take_while(|b| b.is_ascii_digit()).count();
                    let (digits, behind) = rest.split_at(len);
                    let text = String::from_utf8_lossy(digits);
                    let Ok(cas) = text.parse::<u64>() else {
                        return told(rest, "wanted a cas value");
                    };
                    if let Err(why) = self.learn(*write, cas) {
                        return told(rest, &why);
                    }
                    rest = behind;
                }
            }
        }
        match rest.is_empty() {
            true => Ok(()),
            false => told(rest, "wanted nothing more"),
        }
    }

    /// A write keeps its cas value, and no other write ever has the same from the store.
    fn learn(&mut self, write: u64, cas: u64) -> Result<(), String> {
        match self.known.get(&write) {
            Some(&known) if known == cas => return Ok(()),
            Some(known) => return Err(format!("the cas value of this write was {known} before")),
            None => {}
        }
        if self.known.values().any(|&known| known == cas) {
            return Err(format!("{cas} is the cas value of an earlier write"));
        }
        self.known.insert(write, cas);
        Ok(())
    }
}
