//! `lease`, an extension of Nyx: device time for accesses of a tenant's that are made elsewhere.
//!
//! What it never does: judge what was used; the engine does.

use super::Request;
use super::words::{number, split};
use crate::{Command, ErrorKind, Lease};

/// `lease <tenant> <want> <reads> <read bytes> <writes> <written bytes>`.
pub(super) fn parse<'a>(
    request: &Request<'a, '_>,
    args: &'a [u8],
) -> Result<Command<'a>, ErrorKind> {
    let words = split(args);
    let [tenant, want, reads, read_bytes, writes, written_bytes] = words.as_slice() else {
        return Err(ErrorKind::LeaseUsage);
    };
    if !request.is_key(tenant) {
        return Err(ErrorKind::Format);
    }
    let number = |word: &[u8]| number(word).ok_or(ErrorKind::LeaseUsage);
    Ok(Command::Lease(Lease {
        tenant,
        want_ps: number(want)?,
        reads: number(reads)?,
        read_bytes: number(read_bytes)?,
        writes: number(writes)?,
        written_bytes: number(written_bytes)?,
    }))
}
