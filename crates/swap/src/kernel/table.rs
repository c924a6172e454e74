//! The machine's table of swap areas: which are on, and turning one on and off.
//!
//! *Thread safety*: the table is the machine's; whoever changes it holds the registry's lock.

use crate::error::{SwapError, Trying};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const TABLE: &str = "/proc/swaps";
/// More than it has: the kernel knows some thirty areas at most.
const TABLE_BYTES: usize = 1 << 16;
/// Above all others: what a run brings is used first.
const PRIORITY_MOST: libc::c_int = libc::c_int::MAX & SWAP_FLAG_PRIO_MASK;
/// swapon(2).
const SWAP_FLAG_PREFER: libc::c_int = 0x8000;
const SWAP_FLAG_PRIO_MASK: libc::c_int = 0x7fff;

/// An area that is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    pub(super) used: u64,
}

/// All areas that are on.
pub(super) fn entries() -> Result<Vec<Entry>, SwapError> {
    let path = Path::new(TABLE);
    let text = File::open(path).and_then(read).trying("read", path)?;
    Ok(text.lines().skip(1).filter_map(parse).collect())
}

/// All of the table by reads of which one is enough: where somebody turns an area off between two,
/// the kernel passes over another that is on.
fn read(mut table: impl Read) -> io::Result<String> {
    let (mut text, mut bytes) = (Vec::new(), vec![0; TABLE_BYTES]);
    loop {
        match table.read(&mut bytes)? {
            0 => return String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into()),
            len => text.extend_from_slice(&bytes[..len]),
        }
    }
}

/// Whether an area is on, by whatever name.
pub(super) fn is_on(path: &Path) -> Result<bool, SwapError> {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Ok(entries()?.iter().any(|entry| entry.path == real))
}

/// Bytes that are in an area; none where it is not on.
pub(super) fn used(path: &Path) -> Option<u64> {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let entries = entries().ok()?;
    let found = entries.iter().find(|entry| entry.path == real);
    found.map(|entry| entry.used)
}

/// Turns an area on, to be used before all others.
pub(super) fn turn_on(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name ends with a zero and outlives the call, which keeps nothing of it.
    let code = unsafe { libc::swapon(name.as_ptr(), SWAP_FLAG_PREFER | PRIORITY_MOST) };
    answer(code)
}

/// Turns an area off; what is in it is read back first.
pub(super) fn turn_off(path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: as above.
    let code = unsafe { libc::swapoff(name.as_ptr()) };
    answer(code)
}

fn answer(code: libc::c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A line of the table, as proc_swaps(5) has it: name, type, size and use in KiB, priority.
fn parse(line: &str) -> Option<Entry> {
    let mut fields = line.split_whitespace();
    let (path, _, size, used) = (
        fields.next()?,
        fields.next()?,
        fields.next()?,
        fields.next()?,
    );
    let kib = |text: &str| text.parse::<u64>().ok().map(|kib| kib << 10);
    Some(Entry {
        path: PathBuf::from(path.replace("\\040", " ")),
        size: kib(size)?,
        used: kib(used)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_at_once() {
        /// Gives what it has where that fits, and then nothing.
        struct Table(Vec<u8>);
        impl Read for Table {
            fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
                assert!(bytes.len() >= self.0.len(), "in parts of {}", bytes.len());
                let len = self.0.len();
                bytes[..len].copy_from_slice(&self.0);
                self.0.clear();
                Ok(len)
            }
        }
        let text = "a line of the table\n".repeat(100);
        assert_eq!(read(Table(text.clone().into_bytes())).unwrap(), text);
    }

    #[test]
    fn a_line_of_the_table_is_read() {
        let line = "/mnt/a\\040b/swap                        file\t\t1048572\t\t12\t\t-2";
        let expected = Entry {
            path: PathBuf::from("/mnt/a b/swap"),
            size: 1048572 << 10,
            used: 12 << 10,
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(""), None);
    }
}
