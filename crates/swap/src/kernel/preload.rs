//! What a program gets that is to have an arena (engine `uffd`): the preload library, by
//! `LD_PRELOAD`, and its terms.
//!
//! What it never does: make anything before all is found to be there.
//!
//! *Thread safety*: plain data.

use super::area::{self, PAGE_BYTES};
use super::disk;
use super::group::Group;
use super::record::Record;
use super::session::Memory;
use super::table;
use crate::arena::{LIBRARY, Terms};
use crate::error::{SwapError, Trying};
use crate::region::{self, Till};
use nyx_media::is_in_memory;
use rustix::fs::{Access, access};
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;

/// The loader's variable; several names are separated by colons or spaces.
const PRELOAD: &str = "LD_PRELOAD";
/// What separates them, so that no name can have it.
const SEPARATORS: [u8; 2] = *b": ";
/// The file of a purse, beside the figures.
const PURSE: &str = "purse";
/// Where the library lies, as seen from the launcher's directory.
const PLACES: [&str; 2] = ["", "../lib/nyx"];

/// An arena that a program is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// The preload library ([`Arena::library`]).
    pub library: PathBuf,
    /// Where its pages go: a directory; a block device, which is overwritten; or a file with a swap
    /// header, behind which it is overwritten.
    pub pages: PathBuf,
    /// Its length; none for as much as the machine has memory, and in a directory no more than half
    /// of what is free there; never more than a device has.
    pub len_bytes: Option<u64>,
}

impl Arena {
    /// The preload library beside this executable, or where packages put it.
    pub fn library() -> Result<PathBuf, SwapError> {
        let own = std::env::current_exe().trying("find", Path::new("this executable"))?;
        let dir = own.parent().unwrap_or(Path::new("/"));
        let mut found = PLACES.iter().map(|place| dir.join(place).join(LIBRARY));
        found.find(|path| path.is_file()).ok_or_else(|| {
            let [beside, packaged] = PLACES.map(|place| dir.join(place).join(LIBRARY));
            let (beside, packaged) = (beside.display(), packaged.display());
            refused(format!(
                "the preload library is missing: neither {beside} nor {packaged} is there"
            ))
        })
    }
}

/// An arena that can be had.
#[derive(Debug)]
pub(super) struct Preload {
    library: PathBuf,
    pages: PathBuf,
    /// None for a directory.
    device_bytes: Option<u64>,
    len_bytes: Option<u64>,
    limit_bytes: u64,
}

impl Preload {
    /// Sees that all is there.
    pub(super) fn check(wanted: &Arena, memory: Option<Memory>) -> Result<Preload, SwapError> {
        let Some(Memory::Bytes(limit_bytes)) = memory else {
            return Err(refused(
                "the memory of an arena is a size (--memory 512M); a percentage and `auto` are \
                 found by what the kernel has on swap, where an arena's pages are not",
            ));
        };
        region::probe().map_err(|error| refused(error.to_string()))?;
        let library = fs::canonicalize(&wanted.library).trying("find", &wanted.library)?;
        if has_separator(library.as_os_str()) {
            let library = library.display();
            return Err(refused(format!(
                "{PRELOAD} cannot name {library}: it has a colon or a space"
            )));
        }
        let pages = fs::canonicalize(&wanted.pages).trying("find", &wanted.pages)?;
        let device_bytes = check_pages(&pages)?;
        Ok(Preload {
            library,
            pages,
            device_bytes,
            len_bytes: wanted.len_bytes,
            limit_bytes,
        })
    }

    /// The variables of a program in this group. Makes the directory of its figures, which goes
    /// with the record.
    pub(super) fn variables(
        &self,
        group: &Group,
        record: &Record,
        meter: Option<&SyncSender<Till>>,
    ) -> Result<Vec<(OsString, OsString)>, SwapError> {
        let figures = record.arena_dir();
        fs::create_dir(&figures).trying("make", &figures)?;
        let figures = std::path::absolute(&figures).trying("find", &figures)?;
        let purse = meter.map(|meter| purse(&figures, meter)).transpose()?;
        let terms = Terms {
            limit_bytes: self.limit_bytes,
            len_bytes: self.len_bytes()?,
            pages: self.pages.clone(),
            stat: Some(group.dir().join("memory.stat")),
            figures: Some(figures),
            purse,
        };
        let (name, value) = terms.variable();
        let others = std::env::var_os(PRELOAD);
        let preload = before(&self.library, others.as_deref());
        Ok(vec![(PRELOAD.into(), preload), (name.into(), value)])
    }

    fn len_bytes(&self) -> Result<u64, SwapError> {
        let most = match self.device_bytes {
            Some(bytes) => bytes,
            None if self.len_bytes.is_some() => u64::MAX,
            None => area::bytes_on_disk(&self.pages)?,
        };
        let len = self.len_bytes.unwrap_or(most).min(most);
        Ok(len / PAGE_BYTES * PAGE_BYTES)
    }
}

/// Makes a purse, and hands its till to who will grant.
fn purse(dir: &Path, meter: &SyncSender<Till>) -> Result<PathBuf, SwapError> {
    let path = dir.join(PURSE);
    let till = Till::create(&path).trying("make", &path)?;
    // Where nobody takes it nothing is held.
    let _ = meter.send(till);
    Ok(path)
}

/// The bytes of a block device that nobody uses, or of a file with a swap header behind that; none
/// of a directory on a disk.
fn check_pages(path: &Path) -> Result<Option<u64>, SwapError> {
    let shown = path.display();
    if path.to_str().is_none() {
        return Err(refused(format!("the path {shown} is not UTF-8")));
    }
    let kind = fs::metadata(path).trying("look at", path)?.file_type();
    if kind.is_dir() {
        if is_in_memory(path) {
            return Err(refused(format!(
                "{shown} is in memory (tmpfs), where pages would count again: name a directory on \
                 a disk, or a block device (--pages)"
            )));
        }
        access(path, Access::WRITE_OK).trying("make files in", path)?;
        return Ok(None);
    }
    if kind.is_file() {
        return check_file(path).map(Some);
    }
    if !kind.is_block_device() {
        return Err(refused(format!(
            "{shown} is neither a directory nor a block device (--pages)"
        )));
    }
    let mut options = OpenOptions::new();
    // Of a device it means: unless it is mounted, is swap, or is otherwise taken.
    let options = options.read(true).write(true).custom_flags(libc::O_EXCL);
    match options.open(path) {
        Ok(_) => match disk::hunger(path) {
            Some(why) => Err(refused(format!("{shown}: {why} (--pages)"))),
            None => area::device_bytes(path).map(Some),
        },
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            Err(refused(format!("{shown} is in use (--pages)")))
        }
        Err(error) => Err(error).trying("open", path),
    }
}

/// Only a file that says that it may be overwritten.
fn check_file(path: &Path) -> Result<u64, SwapError> {
    let shown = path.display();
    if area::uuid(path).is_err() {
        return Err(refused(format!(
            "{shown} has no swap header, and will not be overwritten (--pages); mkswap(8) makes one"
        )));
    }
    if table::is_on(path)? {
        return Err(refused(format!("{shown} is in use as swap (--pages)")));
    }
    access(path, Access::WRITE_OK).trying("write to", path)?;
    let len = fs::metadata(path).trying("look at", path)?.len();
    Ok(len - PAGE_BYTES)
}

fn has_separator(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes.iter().any(|byte| SEPARATORS.contains(byte))
}

/// The library, and then what was to be preloaded anyway.
fn before(library: &Path, others: Option<&OsStr>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

fn refused(reason: impl Into<String>) -> SwapError {
    SwapError::NoArena {
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_before_what_is_preloaded_anyway() {
        let library = Path::new("/opt/nyx/a.so");
        let all = |others: Option<&str>| before(library, others.map(OsStr::new));
        assert_eq!(all(None), "/opt/nyx/a.so");
        assert_eq!(all(Some("")), "/opt/nyx/a.so");
        assert_eq!(all(Some("b.so c.so")), "/opt/nyx/a.so:b.so c.so");
    }

    #[test]
    fn an_arena_is_no_longer_than_its_device() {
        let dir = tempfile::tempdir().unwrap();
        let len = |device_bytes, len_bytes| {
            let preload = Preload {
                library: PathBuf::new(),
                pages: dir.path().to_owned(),
                device_bytes,
                len_bytes,
                limit_bytes: 0,
            };
            preload.len_bytes().unwrap()
        };
        assert_eq!(len(Some(8 << 20), None), 8 << 20);
        assert_eq!(len(Some(8 << 20), Some(16 << 20)), 8 << 20);
        assert_eq!(len(Some(8 << 20), Some(4 << 20)), 4 << 20);
        assert_eq!(len(None, Some((16 << 20) + 1)), 16 << 20, "whole pages");
        let most = area::bytes_on_disk(dir.path()).unwrap();
        assert!(most > 0 && len(None, None).is_multiple_of(PAGE_BYTES));
    }

    #[test]
    fn a_device_that_somebody_uses_gets_no_pages() {
        let zram = match super::super::zram::Zram::take(1 << 20) {
            Ok(zram) => zram,
            Err(error) => {
                eprintln!("skipped a_device_that_somebody_uses: {error}");
                return;
            }
        };
        let path = zram.path();
        let free = check_pages(&path);
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(libc::O_EXCL);
        let user = options.open(&path);
        let taken = check_pages(&path);
        drop(user.unwrap());
        zram.take_down().unwrap();
        assert_eq!(free.unwrap(), Some(1 << 20));
        let said = taken.unwrap_err().to_string();
        assert!(said.contains("is in use"), "{said}");
    }

    #[test]
    fn what_cannot_hold_pages_or_be_preloaded_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let odd = dir.path().join("a b.so");
        fs::write(&odd, "").unwrap();
        let says = |library: &Path, pages: &Path, memory| {
            let wanted = Arena {
                library: library.to_owned(),
                pages: pages.to_owned(),
                len_bytes: None,
            };
            let refused = Preload::check(&wanted, Some(memory));
            refused.map(|_| ()).unwrap_err().to_string()
        };
        let said = says(&file, dir.path(), Memory::Percent(20));
        assert!(said.contains("--memory 512M"), "{said}");
        if let Err(error) = region::probe() {
            let told = says(&file, dir.path(), Memory::Bytes(1 << 26));
            assert!(told.contains(&error.to_string()), "{told}");
            eprintln!("skipped what_cannot_hold_pages, the rest: {error}");
            return;
        }
        let says = |library: &Path, pages: &Path| says(library, pages, Memory::Bytes(1 << 26));
        for (library, pages, part) in [
            (odd.as_path(), dir.path(), "colon or a space"),
            (&file, file.as_path(), "has no swap header"),
            (
                &file,
                Path::new("/dev/null"),
                "neither a directory nor a block device",
            ),
            (&file, Path::new("/nonexistent/dir"), "/nonexistent/dir"),
            (
                Path::new("/nonexistent/a.so"),
                dir.path(),
                "/nonexistent/a.so",
            ),
        ] {
            let said = says(library, pages);
            assert!(said.contains(part), "{part}: {said}");
        }
        fs::write(&file, vec![0; 64 << 12]).unwrap();
        area::format(&file, 64 << 12, [7; 16]).unwrap();
        assert_eq!(check_pages(&file).unwrap(), Some(63 << 12));
        let in_memory = Path::new("/dev/shm");
        match is_in_memory(in_memory) {
            true => assert!(says(&file, in_memory).contains("tmpfs")),
            false => eprintln!("skipped tmpfs: /dev/shm is none here"),
        }
    }
}
