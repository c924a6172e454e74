//! Formats of fixed records: oracleGeneral (24 B, little-endian) and cache2k (4 B, big-endian).
//!
//! What it never does: take a record that is cut off for a whole one.

use super::{Format, Op, Request, TraceError};
use nyx_base::Instant;
use std::io::{self, BufRead, Read};

/// The length of an oracleGeneral record.
pub(super) const ORACLE_BYTES: usize = 24;
const CACHE2K_BYTES: usize = 4;

/// The records of one file.
pub(super) struct Records {
    format: Format,
    input: Box<dyn BufRead + Send>,
    read: u64,
    done: bool,
}

impl Records {
    pub(super) fn new(format: Format, input: Box<dyn BufRead + Send>) -> Records {
        Records {
            format,
            input,
            read: 0,
            done: false,
        }
    }

    pub(super) fn next(&mut self) -> Option<Result<Request, TraceError>> {
        if self.done {
            return None;
        }
        let mut record = [0; ORACLE_BYTES];
        let want = if self.format == Format::Cache2k {
            CACHE2K_BYTES
        } else {
            ORACLE_BYTES
        };
        let got = match fill(&mut self.input, &mut record[..want]) {
            Ok(got) => got,
            Err(source) => {
                self.done = true;
                return Some(Err(TraceError::Read {
                    record: self.read,
                    source,
                }));
            }
        };
        self.read += 1;
        if got < want {
            self.done = true;
            let short = TraceError::Short {
                format: self.format,
                record: self.read,
                got,
                want,
            };
            return (got > 0).then_some(Err(short));
        }
        Some(Ok(match self.format {
            Format::Cache2k => bare(u64::from(u32::from_be_bytes([
                record[0], record[1], record[2], record[3],
            ]))),
            _ => {
                let (time_s, id, size, _) = oracle(&record);
                Request {
                    at: Instant(u64::from(time_s) * 1_000_000_000),
                    value_len: Some(size),
                    ..bare(id)
                }
            }
        }))
    }
}

/// A read of `key` of which nothing else is known.
pub(super) fn bare(key: u64) -> Request {
    Request {
        at: Instant::default(),
        op: Op::Get,
        key,
        key_len: 0,
        value_len: None,
        ttl_s: 0,
        tenant: 0,
    }
}

/// Time in seconds, id, size in bytes and next access (-1: none) of one record of 24 B.
pub(super) fn oracle(record: &[u8]) -> (u32, u64, u32, i64) {
    let mut word = [0; 8];
    let mut at = |from: usize, len: usize| {
        word = [0; 8];
        word[..len].copy_from_slice(&record[from..from + len]);
        u64::from_le_bytes(word)
    };
    (
        at(0, 4) as u32,
        at(4, 8),
        at(12, 4) as u32,
        at(16, 8) as i64,
    )
}

/// Reads until `into` is full or the input ends.
fn fill(input: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < into.len() {
        match input.read(&mut into[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}
