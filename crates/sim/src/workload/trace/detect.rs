//! Which format a trace has, from its first bytes and its name.
//!
//! What it never does: guess between formats that the bytes allow equally; binary traces whose
//! records could be either kind are told by their order in time, and names decide before bytes.

use super::Format;
use super::binary::{ORACLE_BYTES, oracle};
use std::io::{self, BufRead, Read};

/// How many bytes are looked at.
const HEAD_BYTES: u64 = 4096;

/// Takes the first bytes of `input`; the rest stays in it.
pub(super) fn peek(input: &mut (dyn BufRead + Send)) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_BYTES as usize);
    input.take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok(head)
}

/// The format of a trace that begins with `head` and is called `name`.
pub(super) fn format(head: &[u8], name: &str) -> Option<Format> {
    if name.contains("oracleGeneral") {
        return Some(Format::OracleGeneral);
    }
    let is_text = !head.is_empty()
        && head
            .iter()
            .all(|&b| b >= b' ' && b != 0x7f || matches!(b, b'\n' | b'\r' | b'\t'));
    if is_text {
        text(head, name)
    } else {
        binary(head)
    }
}

fn text(head: &[u8], name: &str) -> Option<Format> {
    let line = head
        .split(|&b| b == b'\n')
        .map(<[u8]>::trim_ascii)
        .find(|l| !l.is_empty())?;
    let line = String::from_utf8_lossy(line);
    if line.starts_with("op_time,") {
        return Some(Format::Meta);
    }
    if line.starts_with("version,time,op,") {
        return Some(Format::CloudPhysics);
    }
    let commas: Vec<&str> = line.split(',').collect();
    let words = line.split_ascii_whitespace().collect::<Vec<_>>();
    let numbers = words.iter().all(|w| w.parse::<u64>().is_ok());
    match (commas.len(), words.len()) {
        (10, _)
            if commas[3]
                .bytes()
                .all(|b| b.is_ascii_uppercase() || b == b'_') =>
        {
            Some(Format::Meta)
        }
        (5, _) if matches!(commas[2], "28" | "2a") => Some(Format::CloudPhysics),
        (7.., _) if commas[commas.len() - 1].parse::<u64>().is_ok() => Some(Format::Twitter),
        (1, 4) if numbers => Some(Format::Arc),
        (1, 3) if numbers => Some(Format::AdaptSize),
        (1, 2) if numbers && name.contains(".lis") => Some(Format::Arc),
        (1, 1) => Some(Format::Keys),
        _ => None,
    }
}

/// oracleGeneral where every whole record fits it, and more than one does; else keys of 4 B.
fn binary(head: &[u8]) -> Option<Format> {
    let mut records = head.chunks_exact(ORACLE_BYTES).map(oracle);
    let mut last_s = 0;
    let fits = records.all(|(time_s, _, size, next)| {
        let in_order = time_s >= last_s;
        last_s = time_s;
        in_order
            && size < 1 << 31
            && (matches!(next, -1 | i64::MAX) || (1..1 << 40).contains(&next))
    });
    if fits && head.len() >= ORACLE_BYTES {
        return Some(Format::OracleGeneral);
    }
    (head.len() >= 4).then_some(Format::Cache2k)
}
