//! Formats of lines.
//!
//! What it never does: buffer a line of unlimited length, or take a number that does not fit.

use super::binary::bare;
use super::{Format, Op, Request, SHOWN_BYTES, TraceError};
use nyx_base::Instant;
use std::io::{BufRead, Read};
use xxhash_rust::xxh3::xxh3_64;

/// The longest line, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// The most requests that one line may stand for (`op_count` at Meta, the page count of ARC).
const REPEAT_MAX: u64 = 1 << 20;

type Parsed = Result<Line, &'static str>;

/// What a line says.
enum Line {
    /// Nothing: it is empty, or names the columns.
    Nothing,
    /// `count` requests; where `step` is 1 their keys follow each other.
    Requests {
        first: Request,
        count: u64,
        step: u64,
    },
}

/// The lines of one file.
pub(super) struct Lines {
    format: Format,
    input: Box<dyn BufRead + Send>,
    buffer: Vec<u8>,
    line: u64,
    /// What is left of the last line: the next request, how many, and how far their keys are apart.
    rest: Option<(Request, u64, u64)>,
    done: bool,
}

impl Lines {
    pub(super) fn new(format: Format, input: Box<dyn BufRead + Send>) -> Lines {
        Lines {
            format,
            input,
            buffer: Vec::new(),
            line: 0,
            rest: None,
            done: false,
        }
    }

    pub(super) fn next(&mut self) -> Option<Result<Request, TraceError>> {
        loop {
            if let Some((request, count, step)) = self.rest.take() {
                if count > 1 {
                    let key = request.key.wrapping_add(step);
                    self.rest = Some((Request { key, ..request }, count - 1, step));
                }
                return Some(Ok(request));
            }
            match self.read_line()? {
                Ok(Line::Nothing) => {}
                Ok(Line::Requests { count: 0, .. }) => {}
                Ok(Line::Requests { first, count, step }) => self.rest = Some((first, count, step)),
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
    }

    fn read_line(&mut self) -> Option<Result<Line, TraceError>> {
        if self.done {
            return None;
        }
        self.buffer.clear();
        let mut limited = self.input.by_ref().take(LINE_BYTES_MAX);
        match limited.read_until(b'\n', &mut self.buffer) {
            Ok(0) => return None,
            Ok(_) => self.line += 1,
            Err(source) => {
                return Some(Err(TraceError::Read {
                    record: self.line,
                    source,
                }));
            }
        }
        let cut = self.buffer.len() as u64 == LINE_BYTES_MAX && !self.buffer.ends_with(b"\n");
        let line = self.buffer.trim_ascii();
        let parsed = if cut {
            Err("the line is longer than 64 KiB")
        } else {
            self.parse(line)
        };
        Some(parsed.map_err(|reason| TraceError::Line {
            format: self.format,
            line: self.line,
            reason,
            text: String::from_utf8_lossy(&line[..line.len().min(SHOWN_BYTES)]).into_owned(),
        }))
    }

    fn parse(&self, line: &[u8]) -> Parsed {
        if line.is_empty() {
            return Ok(Line::Nothing);
        }
        match self.format {
            Format::Twitter => twitter(line),
            Format::Meta if self.line == 1 && line.starts_with(b"op_time,") => Ok(Line::Nothing),
            Format::Meta => meta(line),
            Format::CloudPhysics if self.line == 1 && line.starts_with(b"version,") => {
                Ok(Line::Nothing)
            }
            Format::CloudPhysics => cloud_physics(line),
            Format::AdaptSize => adapt_size(line),
            Format::Arc => arc(line),
            Format::Keys | Format::OracleGeneral | Format::Cache2k => Ok(one(key_of(line))),
        }
    }
}

fn one(first: Request) -> Line {
    Line::Requests {
        first,
        count: 1,
        step: 0,
    }
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

/// A number as the field's type has it; `reason` where it is none or too large.
fn field<T: TryFrom<u64>>(text: Option<&[u8]>, reason: &'static str) -> Result<T, &'static str> {
    text.and_then(number)
        .and_then(|n| T::try_from(n).ok())
        .ok_or(reason)
}

fn seconds(text: Option<&[u8]>) -> Result<Instant, &'static str> {
    let s: u32 = field(text, "the time is not a number of seconds below 2^32")?;
    Ok(Instant(u64::from(s) * 1_000_000_000))
}

/// A read of a key that is a number, or else any text.
fn key_of(text: &[u8]) -> Request {
    let key_len = u16::try_from(text.len()).unwrap_or(u16::MAX);
    Request {
        key_len,
        ..bare(number(text).unwrap_or_else(|| xxh3_64(text)))
    }
}

/// `timestamp,key,key size,value size,client id,operation,TTL`; the key itself may hold commas, so
/// the last five columns are counted from the end.
fn twitter(line: &[u8]) -> Parsed {
    const COLUMNS: &str = "7 columns are expected: time,key,key size,value size,client,op,TTL";
    let mut from_end = line.rsplitn(6, |&b| b == b',');
    let (ttl, op, client) = (from_end.next(), from_end.next(), from_end.next());
    let (value_len, key_len, front) = (from_end.next(), from_end.next(), from_end.next());
    let front = front.ok_or(COLUMNS)?;
    let comma = front.iter().position(|&b| b == b',').ok_or(COLUMNS)?;
    let (time, key) = (&front[..comma], &front[comma + 1..]);
    let op = match op.ok_or(COLUMNS)? {
        b"get" | b"gets" => Op::Get,
        b"set" | b"add" | b"replace" | b"cas" | b"append" | b"prepend" => Op::Set,
        b"delete" => Op::Delete,
        b"incr" | b"decr" => Op::Incr,
        _ => return Err("the operation is none of memcached's"),
    };
    let value_len: u32 = field(
        value_len,
        "the value size is not a number of bytes below 2^32",
    )?;
    Ok(one(Request {
        at: seconds(Some(time))?,
        op,
        key: xxh3_64(key),
        key_len: field(key_len, "the key size is not a number of bytes below 2^16")?,
        // A get of a key that was not there is recorded with a size of 0.
        value_len: (value_len > 0 || op == Op::Set).then_some(value_len),
        ttl_s: field(ttl, "the TTL is not a number of seconds below 2^32")?,
        tenant: field(client, "the client id is not a number")?,
    }))
}

/// `op_time,key,key_size,op,op_count,size,cache_hits,ttl,usecase,sub_usecase`. The use case is the
/// tenant. A read that missed has size 0.
fn meta(line: &[u8]) -> Parsed {
    let mut columns = line.split(|&b| b == b',');
    let mut next = || columns.next();
    let at = seconds(next())?;
    let key = next().filter(|k| !k.is_empty()).ok_or("there is no key")?;
    let key_len = field(next(), "the key size is not a number of bytes below 2^16")?;
    let op = match next().ok_or("there is no operation")? {
        b"GET" | b"GET_LEASE" => Op::Get,
        b"SET" | b"SET_LEASE" => Op::Set,
        b"DELETE" => Op::Delete,
        _ => return Err("the operation is none of GET, SET, GET_LEASE, SET_LEASE, DELETE"),
    };
    let count: u64 = field(next(), "the number of operations is not a number")?;
    let size: u32 = field(next(), "the size is not a number of bytes below 2^32")?;
    let _hits: u64 = field(next(), "the number of hits is not a number")?;
    let ttl_s = field(next(), "the TTL is not a number of seconds below 2^32")?;
    let tenant = field(next(), "the use case is not a number")?;
    if count > REPEAT_MAX {
        return Err("a line stands for more than 2^20 operations");
    }
    let value_len = (size > 0 || op == Op::Set).then_some(size);
    let first = Request {
        at,
        op,
        key: xxh3_64(key),
        key_len,
        value_len,
        ttl_s,
        tenant,
    };
    Ok(Line::Requests {
        first,
        count,
        step: 0,
    })
}

/// `version,time(us),op (28 = read, 2a = write),size (B),lbn`.
fn cloud_physics(line: &[u8]) -> Parsed {
    let mut columns = line.split(|&b| b == b',').skip(1);
    let at_us: u64 = field(columns.next(), "the time is not a number of microseconds")?;
    let op = match columns.next().ok_or("there is no operation")? {
        b"28" => Op::Get,
        b"2a" => Op::Set,
        _ => return Err("the operation is neither 28 (read) nor 2a (write)"),
    };
    let size = field(
        columns.next(),
        "the size is not a number of bytes below 2^32",
    )?;
    let lbn = field(columns.next(), "the block number is not a number")?;
    let at = Instant(at_us.saturating_mul(1000));
    Ok(one(Request {
        at,
        op,
        value_len: Some(size),
        ..bare(lbn)
    }))
}

/// `time id size`; the time counts requests, so it paces nothing.
fn adapt_size(line: &[u8]) -> Parsed {
    let mut columns = line
        .split(u8::is_ascii_whitespace)
        .filter(|c| !c.is_empty());
    let _time: u64 = field(columns.next(), "the time is not a number")?;
    let id = field(columns.next(), "the id is not a number")?;
    let size = field(
        columns.next(),
        "the size is not a number of bytes below 2^32",
    )?;
    Ok(one(Request {
        value_len: Some(size),
        ..bare(id)
    }))
}

/// `first page, count`, and what follows is not used: `count` reads of successive pages.
fn arc(line: &[u8]) -> Parsed {
    let mut columns = line
        .split(u8::is_ascii_whitespace)
        .filter(|c| !c.is_empty());
    let first = field(columns.next(), "the first page is not a number")?;
    let count: u64 = field(columns.next(), "the number of pages is not a number")?;
    match count {
        0 => Err("the number of pages is zero"),
        1..=REPEAT_MAX => Ok(Line::Requests {
            first: bare(first),
            count,
            step: 1,
        }),
        _ => Err("a line stands for more than 2^20 pages"),
    }
}
