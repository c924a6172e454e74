//! Recorded requests, streamed from files.
//!
//! A file is unpacked by what it holds (gzip, xz, zstd, or plain), its format is told from its
//! first bytes and its name, and its requests come out one by one; memory stays constant however
//! long the file is.
//!
//! What it never does: keep a trace, sort it, panic on bytes that are no trace, or go on silently
//! after something that it does not understand.
//!
//! * `detect`: which format; `unpack`: what is around it; `text`, `binary`: lines and records.

mod binary;
mod detect;
mod text;
mod unpack;

use super::Op;
use nyx_base::Instant;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it was made, on the trace's own clock. Zero where the format has no time.
    pub at: Instant,
    /// What was asked for.
    pub op: Op,
    /// Which key: the trace's number, or a 64-bit hash of its text.
    pub key: u64,
    /// The key's length in bytes as recorded, or 0 where the format has none.
    pub key_len: u16,
    /// The value's length in bytes, or `None` where the format (or the record) has none.
    pub value_len: Option<u32>,
    /// The time to live that a write gave, in seconds; 0 is for ever, or not recorded.
    pub ttl_s: u32,
    /// Whose request it was, on the trace's own numbering; 0 where the format does not say.
    pub tenant: u64,
}

/// The formats that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Twitter's cache-trace: `timestamp,key,key size,value size,client id,operation,TTL`.
    Twitter,
    /// Meta's kvcache: `op_time,key,key_size,op,op_count,size,cache_hits,ttl,usecase,sub_usecase`.
    Meta,
    /// libCacheSim's oracleGeneral: 24 B records, u32 time, u64 id, u32 size, i64 next access.
    OracleGeneral,
    /// CloudPhysics block I/O: `version,time(us),op,size(B),lbn`.
    CloudPhysics,
    /// One key a line.
    Keys,
    /// cache2k's benchmark traces: big-endian i32 keys.
    Cache2k,
    /// AdaptSize: `time id size` a line.
    AdaptSize,
    /// The ARC paper's `.lis`: `first page, count, ignored, sequence` a line.
    Arc,
}

const FORMATS: [(Format, &str); 8] = [
    (Format::Twitter, "twitter"),
    (Format::Meta, "meta"),
    (Format::OracleGeneral, "oracle"),
    (Format::CloudPhysics, "cloudphysics"),
    (Format::Keys, "keys"),
    (Format::Cache2k, "cache2k"),
    (Format::AdaptSize, "adaptsize"),
    (Format::Arc, "arc"),
];

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = FORMATS
            .iter()
            .find(|(format, _)| format == self)
            .map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        FORMATS
            .iter()
            .find(|(_, name)| *name == text)
            .map(|(format, _)| *format)
            .ok_or_else(|| {
                let names: Vec<&str> = FORMATS.iter().map(|(_, name)| *name).collect();
                format!(
                    "{text:?} is not a trace format: choose one of {}",
                    names.join(", ")
                )
            })
    }
}

/// A trace that cannot be read, or not further.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file does not open.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Bytes could not be read or unpacked.
    #[error("cannot read on after record {record}: {source}")]
    Read {
        /// How many records (lines, in text formats) came before.
        record: u64,
        /// What the system or the decompressor said.
        source: io::Error,
    },
    /// Nothing fits the first bytes.
    #[error("the format is not recognised from {start:?}: name one with --format")]
    Unknown {
        /// How the file begins.
        start: String,
    },
    /// A line that the format does not allow.
    #[error("{format} line {line}: {reason}: {text:?}")]
    Line {
        /// The format that it is read as.
        format: Format,
        /// Its number, from 1.
        line: u64,
        /// What is wrong with it.
        reason: &'static str,
        /// The line, cut to what is useful.
        text: String,
    },
    /// The file ends within a record.
    #[error("{format} record {record} has {got} B of {want} B: the file is cut off")]
    Short {
        /// The format that it is read as.
        format: Format,
        /// Its number, from 1.
        record: u64,
        /// Bytes that there are.
        got: usize,
        /// Bytes that a record has.
        want: usize,
    },
}

/// How much of a text line is shown in an error, in bytes.
const SHOWN_BYTES: usize = 80;

/// The requests of one trace.
pub struct Reader {
    format: Format,
    records: Records,
}

enum Records {
    Text(text::Lines),
    Binary(binary::Records),
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a file. `format` overrides what the file's name and first bytes say.
    pub fn open(path: &Path, format: Option<Format>) -> Result<Reader, TraceError> {
        let file = File::open(path).map_err(|source| TraceError::Open {
            path: path.to_owned(),
            source,
        })?;
        let name = path
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        Reader::new(
            Box::new(io::BufReader::with_capacity(1 << 16, file)),
            &name,
            format,
        )
    }

    /// Reads from `input`, a file's bytes; `name` helps to tell the format.
    pub fn new(
        input: Box<dyn BufRead + Send>,
        name: &str,
        format: Option<Format>,
    ) -> Result<Reader, TraceError> {
        let begin = |source| TraceError::Read { record: 0, source };
        let mut input = unpack::unpack(input).map_err(begin)?;
        let head = detect::peek(&mut input).map_err(begin)?;
        let format = match format.or_else(|| detect::format(&head, name)) {
            Some(format) => format,
            None => {
                let shown = &head[..head.len().min(SHOWN_BYTES)];
                let start = String::from_utf8_lossy(shown).into_owned();
                return Err(TraceError::Unknown { start });
            }
        };
        let input = Box::new(io::Cursor::new(head).chain(input));
        let records = match format {
            Format::OracleGeneral | Format::Cache2k => {
                Records::Binary(binary::Records::new(format, input))
            }
            _ => Records::Text(text::Lines::new(format, input)),
        };
        Ok(Reader { format, records })
    }

    /// The format that it is read as.
    pub fn format(&self) -> Format {
        self.format
    }
}

impl Iterator for Reader {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Result<Request, TraceError>> {
        match &mut self.records {
            Records::Text(lines) => lines.next(),
            Records::Binary(records) => records.next(),
        }
    }
}

#[cfg(test)]
mod tests;
