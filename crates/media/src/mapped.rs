//! Media that are mapped into the address space: anonymous memory, a file, or persistent memory by
//! direct access (DAX). An access is a copy and nothing else.
//!
//! What it never does: fail on an access, grow, or let a full disk turn into a SIGBUS; the whole
//! length is allocated when the medium is made.
//!
//! *Thread safety*: shared by all workers; accesses go through [`crate::prim`], so a racing read
//! gets stale or mixed bytes. *Invariants*: `base` is valid for `len` bytes while `backing` lives;
//! the only state that changes is a count of failed `msync` calls, which is relaxed because it
//! orders nothing.

use crate::header::{DataFile, HEADER_BYTES, file_error};
use crate::mapping::Mapping;
use crate::prim::{self, FlushLevel, LINE_BYTES, Prim};
use crate::{Evidence, Front, Media, MediaError, Via};
use nyx_base::Bytes;
use rustix::mm::Advice;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

pub use crate::header::{Origin, uuid};

/// From this size on, a write to memory that is cached DRAM goes past the cache if it may. Below,
/// the fence that non-temporal stores need costs more than the cache misses that they save
/// (`cargo run --release -p nyx-media --example copies`). Persistent memory has no such limit.
const NT_FROM_DRAM_BYTES: usize = 1024;
/// What one thread prefaults at a time.
const PRETOUCH_BYTES: usize = 16 << 20;

/// What a medium's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anonymous memory; gone with the process.
    Anonymous,
    /// A file's pages in the page cache.
    File,
    /// Persistent memory, mapped directly.
    Dax,
}

impl Kind {
    /// The word for it in configuration, logs and profiles.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Anonymous => "anon",
            Kind::File => "file",
            Kind::Dax => "dax",
        }
    }
}

/// What [`Media::persist`] makes a file's bytes survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, however violent: the bytes are the kernel's as soon as they are
    /// stored, so `persist` does nothing. A power failure may lose any of them.
    #[default]
    ProcessCrash,
    /// A power failure too: `persist` is an `msync`, which waits for the disk.
    PowerLoss,
}

/// A mapped medium. See the module.
#[derive(Debug)]
pub struct Mapped {
    base: NonNull<u8>,
    len: u64,
    prim: Prim,
    nt_from_bytes: usize,
    kind: Kind,
    durability: Durability,
    flushes: bool,
    failed_syncs: AtomicU64,
    mapping: Mapping,
    file: Option<DataFile>,
}

// SAFETY: `base` points into `mapping`, which is `Send`; everything else is `Send` by itself.
unsafe impl Send for Mapped {}
// SAFETY: all access to the bytes goes through `prim`, which is made for racing threads; the other
// fields are `Sync` or never change.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Anonymous zero bytes, on 2 MiB pages where the kernel has them.
    pub fn anonymous(len: u64) -> Result<Mapped, MediaError> {
        let failed = |source| MediaError::Reserve {
            len_bytes: len,
            source,
        };
        let mapping = Mapping::anonymous(checked_len(len, 0)?).map_err(failed)?;
        // Best effort: a kernel without huge pages serves small ones.
        let _ = mapping.advise(0, mapping.len(), Advice::LinuxHugepage);
        Ok(Mapped::over(mapping, len, Kind::Anonymous, None))
    }

    /// The bytes of a data file, which is created where there is none. Its header page is not part
    /// of the medium.
    pub fn file(path: &Path, len: u64) -> Result<Mapped, MediaError> {
        let whole = checked_len(len, HEADER_BYTES)?;
        let file = DataFile::open(path, len)?;
        let mapping =
            Mapping::shared(&file.file, 0, whole, false).map_err(file_error(path, "map it"))?;
        Ok(Mapped::over(mapping, len, Kind::File, Some(file)))
    }

    /// The bytes of a data file, all of them, to be looked at: the file is only read, and what is
    /// written here is gone with the medium. Others may look at it meanwhile, but not use it.
    pub fn look(path: &Path) -> Result<Mapped, MediaError> {
        let (file, len) = DataFile::look(path)?;
        let whole = checked_len(len, HEADER_BYTES)?;
        let mapping = Mapping::private(&file.file, 0, whole).map_err(file_error(path, "map it"))?;
        Ok(Mapped::over(mapping, len, Kind::File, Some(file)))
    }

    /// The bytes of a data file on persistent memory: stores are durable as soon as their cache
    /// lines are flushed, without the kernel. An error where the filesystem cannot do that.
    pub fn dax(path: &Path, len: u64) -> Result<Mapped, MediaError> {
        let refused = |reason: String| MediaError::NoDax {
            path: path.to_owned(),
            reason,
        };
        if Prim::detect().flush_level() == FlushLevel::None {
            return Err(refused("this processor has no cache-line flush".to_owned()));
        }
        let whole = checked_len(len, HEADER_BYTES)?;
        let file = DataFile::open(path, len)?;
        let mapping = Mapping::shared(&file.file, 0, whole, true).map_err(|source| {
            if file.origin == Origin::Fresh {
                // Just created for nothing; a file that was here before stays.
                let _ = std::fs::remove_file(path);
            }
            refused(format!(
                "mapping with MAP_SYNC failed: {source}; it needs persistent memory under ext4 or \
                 XFS mounted with -o dax"
            ))
        })?;
        Ok(Mapped::over(mapping, len, Kind::Dax, Some(file)))
    }

    fn over(mapping: Mapping, len: u64, kind: Kind, file: Option<DataFile>) -> Mapped {
        let skip = if file.is_some() {
            HEADER_BYTES as usize
        } else {
            0
        };
        assert!(skip as u64 + len <= mapping.len() as u64);
        let base = mapping.base().as_ptr().wrapping_add(skip);
        let base = NonNull::new(base).expect("inside a mapping");
        let nt_from_bytes = if kind == Kind::Dax {
            LINE_BYTES
        } else {
            NT_FROM_DRAM_BYTES
        };
        let (prim, durability) = (Prim::detect(), Durability::default());
        let failed_syncs = AtomicU64::new(0);
        Mapped {
            base,
            len,
            prim,
            nt_from_bytes,
            kind,
            durability,
            flushes: kind == Kind::Dax,
            failed_syncs,
            mapping,
            file,
        }
    }

    /// Chooses what [`Media::persist`] makes a file's bytes survive. Without effect on the other
    /// kinds.
    pub fn with_durability(self, durability: Durability) -> Mapped {
        Mapped { durability, ..self }
    }

    /// Chooses whether [`crate::Pmem::flush`] writes cache lines back. On persistent memory it
    /// must, unless the machine flushes its caches when the power fails (eADR); elsewhere it need
    /// not, unless what that costs is to be measured.
    pub fn with_flushes(self, flushes: bool) -> Mapped {
        Mapped { flushes, ..self }
    }

    /// Whether cache lines are written back.
    pub(crate) fn flushes(&self) -> bool {
        self.flushes
    }

    /// What its bytes are.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The data file's path; none for anonymous memory.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// The data file's id; none for anonymous memory.
    pub fn id(&self) -> Option<[u8; 16]> {
        self.file.as_ref().map(DataFile::id)
    }

    /// When the data file was made, in seconds since the Unix epoch; none for anonymous memory.
    pub fn created_unix_s(&self) -> Option<u64> {
        self.file.as_ref().map(DataFile::created_unix_s)
    }

    /// How it was found.
    pub fn origin(&self) -> Origin {
        self.file.as_ref().map_or(Origin::Fresh, |file| file.origin)
    }

    /// How many `msync` calls failed: bytes that [`Durability::PowerLoss`] promised and the disk
    /// did not take.
    pub fn failed_syncs(&self) -> u64 {
        self.failed_syncs.load(Relaxed)
    }

    /// One line for logs.
    pub fn describe(&self) -> String {
        let mut line = format!("{} of {}", self.kind.name(), Bytes(self.len));
        if let Some(file) = &self.file {
            line += &format!(" at {} (id {})", file.path.display(), uuid(&file.id()));
        }
        let survives = match (self.kind, self.durability) {
            (Kind::Anonymous, _) => "nothing survives the process",
            (Kind::File, Durability::ProcessCrash) => "survives the process",
            (Kind::File, Durability::PowerLoss) => "survives power loss (msync)",
            (Kind::Dax, _) => "survives power loss (cache-line flush)",
        };
        let (copy, flush) = (self.prim.copy_level(), self.prim.flush_level());
        format!("{line}; {copy:?} copies, {flush:?}; {survives}")
    }

    /// Writes everything to the disk and marks the file as closed cleanly. The caller makes no
    /// write afterwards. Nothing for anonymous memory.
    pub fn mark_clean(&self) -> Result<(), MediaError> {
        self.file.as_ref().map_or(Ok(()), DataFile::mark_clean)
    }

    /// Brings every page in now, with `threads` threads (at least one), so that no request pays for
    /// a first touch. Changes no byte; other threads may use the medium meanwhile.
    pub fn pretouch(&self, threads: usize) {
        let next = AtomicU64::new(0);
        let work = || {
            loop {
                let from = next.fetch_add(PRETOUCH_BYTES as u64, Relaxed);
                if from >= self.mapping.len() as u64 {
                    return;
                }
                let from = from as usize;
                self.pretouch_span(from, PRETOUCH_BYTES.min(self.mapping.len() - from));
            }
        };
        std::thread::scope(|scope| {
            (1..threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
    }

    fn pretouch_span(&self, from: usize, len: usize) {
        if self
            .mapping
            .advise(from, len, Advice::LinuxPopulateWrite)
            .is_ok()
        {
            return;
        }
        // A kernel before 5.14: write to each page what it holds.
        for at in (from..from + len).step_by(crate::mapping::PAGE_BYTES) {
            let byte = self.mapping.base().as_ptr().wrapping_add(at);
            // SAFETY: inside the mapping; an atomic that changes nothing disturbs no other user.
            unsafe { AtomicU8::from_ptr(byte).fetch_or(0, Relaxed) };
        }
    }

    /// Copies `from` to `at` by non-temporal stores, whatever the medium gains by it, with a fence
    /// behind each `fence_bytes` and behind the last: how published measurements of persistent
    /// memory write.
    #[inline]
    pub(crate) fn stream(&self, at: u64, from: &[u8], fence_bytes: usize) {
        let mut into = self.at(at, from.len() as u64);
        for piece in from.chunks(fence_bytes) {
            // SAFETY: as for `write`; the pieces partition `from`, and `into` moves along.
            unsafe {
                self.prim.copy_nt_words(into, piece.as_ptr(), piece.len());
                into = into.add(piece.len());
            }
            prim::fence();
        }
    }

    /// Where its bytes begin.
    #[inline]
    pub(crate) fn base(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Its copies and flushes.
    #[inline]
    pub(crate) fn prim(&self) -> Prim {
        self.prim
    }

    /// The address of `at`, after checking that `len` bytes from there are inside.
    #[inline]
    pub(crate) fn at(&self, at: u64, len: u64) -> *mut u8 {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(
            inside,
            "{len} bytes at {at} leave a medium of {} bytes",
            self.len
        );
        self.base.as_ptr().wrapping_add(at as usize)
    }
}

impl Media for Mapped {
    #[inline]
    fn len(&self) -> u64 {
        self.len
    }

    #[inline]
    fn read(&self, _: &mut Front, at: u64, into: &mut [u8]) {
        let from = self.at(at, into.len() as u64);
        // SAFETY: `from` is valid for the length by the check above; `into` is borrowed mutably, so
        // it overlaps nothing and nobody else touches it.
        unsafe { self.prim.copy(into.as_mut_ptr(), from, into.len()) }
    }

    #[inline]
    fn write(&self, _: &mut Front, at: u64, from: &[u8], via: Via) {
        let into = self.at(at, from.len() as u64);
        // SAFETY: as for `read`, in the other direction; the mapping is no Rust object, so no
        // borrow of `from` can overlap it.
        unsafe {
            if via == Via::NonTemporal && from.len() >= self.nt_from_bytes {
                self.prim.copy_nt(into, from.as_ptr(), from.len());
            } else {
                self.prim.copy(into, from.as_ptr(), from.len());
            }
        }
    }

    fn persist(&self, _: &mut Front, at: u64, len: u64) {
        let from = self.at(at, len);
        match (self.kind, self.durability) {
            (Kind::Anonymous, _) | (Kind::File, Durability::ProcessCrash) => {}
            (Kind::File, Durability::PowerLoss) => {
                let offset = from as usize - self.mapping.base().as_ptr() as usize;
                if self.mapping.sync(offset, len as usize).is_err() {
                    self.failed_syncs.fetch_add(1, Relaxed);
                }
            }
            (Kind::Dax, _) => {
                // SAFETY: the range is inside the mapping by the check above.
                unsafe { self.prim.flush(from, len as usize) };
                prim::fence();
            }
        }
    }

    #[inline]
    fn prefetch(&self, at: u64, len: usize) {
        prim::prefetch(self.at(at, len as u64), len);
    }

    #[inline]
    fn prefetch_write(&self, at: u64, len: usize) {
        if len < self.nt_from_bytes {
            prim::prefetch_write(self.at(at, len as u64), len);
        }
    }

    fn evidence(&self) -> Evidence {
        Evidence::Real
    }
}

/// The length of a mapping of `len` bytes behind `header` bytes.
fn checked_len(len: u64, header: u64) -> Result<usize, MediaError> {
    let whole = len
        .checked_add(header)
        .filter(|&whole| len > 0 && whole <= isize::MAX as u64);
    whole
        .map(|whole| whole as usize)
        .ok_or(MediaError::Length { len_bytes: len })
}

#[cfg(test)]
mod tests;
