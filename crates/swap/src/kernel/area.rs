//! A swap area: what a program's memory goes to when it is above its limit.
//!
//! Swap is the machine's: the area of a run is used before all others, and others that are short of
//! memory use it too. No control group of either version has an area of its own.
//!
//! What it never does: write to a file or a device that holds anything else; it has to have the
//! header of a swap area, or be made here.
//!
//! *Thread safety*: whoever sets one up or takes one down holds the registry's lock.

use super::disk;
use super::record::{OwnArea, OwnFile, Record, Uses};
use super::rotation::Rotation;
use super::table;
use super::zram::Zram;
use crate::error::{SwapError, Trying};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub(super) const PAGE_BYTES: u64 = 4096;
/// The header's magic, at the end of its page (mkswap(8), `include/linux/swap.h`).
const MAGIC: &[u8; 10] = b"SWAPSPACE2";
const MAGIC_AT: u64 = PAGE_BYTES - MAGIC.len() as u64;
/// Version, last page and number of bad pages, after the boot block.
const HEADER_AT: u64 = 1024;
const UUID_AT: u64 = HEADER_AT + 12;
/// What tells one area from all others.
pub(super) const UUID_BYTES: usize = 16;
const LABEL_AT: u64 = HEADER_AT + 28;
const VERSION: u32 = 1;
/// The kernel refuses less.
const PAGES_MIN: u64 = 10;
/// A file takes this part of what is free on its disk, where no size was given: one in so many.
const FREE_ONE_IN: u64 = 2;

/// Where memory goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// To the areas that the machine has.
    Machine,
    /// To compressed memory.
    Zram,
    /// To a file, which is made where there is none, or to a block device.
    Path(PathBuf),
}

impl FromStr for Source {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Source, Self::Err> {
        Ok(match text {
            "zram" => Source::Zram,
            path => Source::Path(PathBuf::from(path)),
        })
    }
}

/// An area that is on, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Its path in `/proc/swaps`; none where the machine's areas are used.
    pub path: Option<PathBuf>,
    /// Bytes that it holds, or that all of the machine's do.
    pub size: u64,
    /// Whether it was turned on as one that does not rotate, though its disk says so
    /// ([`Rotation`]).
    pub is_doubted: bool,
}

impl Area {
    /// Sees that there is swap, of so many bytes where it is made. What is made is written to
    /// `record` before it is made. What a disk says of itself `is_believed`, or may be doubted.
    pub fn set_up(
        source: &Source,
        size: Option<u64>,
        is_believed: bool,
        record: &mut Record,
    ) -> Result<Area, SwapError> {
        match source {
            Source::Machine => {
                record.uses = Uses::Machine;
                Area::of_machine()
            }
            Source::Zram => {
                // Until it has a size it takes nothing, and may be somebody else's after all.
                let zram = Zram::take(size.unwrap_or_else(memory_of_machine))?;
                let path = zram.path();
                let uuid = new_uuid()?;
                record.areas.push(OwnArea {
                    path: path.clone(),
                    uuid,
                    file: None,
                    zram: Some(zram),
                    rotation: None,
                });
                record.save()?;
                format(&path, device_bytes(&path)?, uuid)?;
                Area::turn_on(&path, None)
            }
            Source::Path(path) if table::is_on(path)? => {
                refuse_hungry(path)?;
                let area = Area::of(path)?;
                record.uses = area.path.clone().map_or(Uses::None, Uses::Area);
                Ok(area)
            }
            Source::Path(path) => {
                if path.exists() {
                    check(path)?;
                    refuse_hungry(path)?;
                    record.areas.push(OwnArea {
                        path: fs::canonicalize(path).trying("find", path)?,
                        uuid: uuid(path).trying("read the header of", path)?,
                        file: None,
                        zram: None,
                        rotation: Rotation::of(path, is_believed),
                    });
                    record.save()?;
                } else {
                    // An empty file first: what cannot be made is somebody else's, and stays.
                    let file = create(path)?;
                    let at = absolute(path)?;
                    let (uuid, own) = (new_uuid()?, OwnFile::of(at.clone(), &file));
                    record.areas.push(OwnArea {
                        path: at,
                        uuid,
                        file: Some(own.trying("look at", path)?),
                        zram: None,
                        rotation: Rotation::of(path, is_believed),
                    });
                    record.save()?;
                    fill(path, size, uuid)?;
                }
                let own = record.areas.last().and_then(|own| own.rotation.clone());
                Area::turn_on(path, own.as_ref())
            }
        }
    }

    fn of_machine() -> Result<Area, SwapError> {
        let size = table::entries()?.iter().map(|entry| entry.size).sum();
        match size {
            0 => Err(SwapError::NoSwap),
            size => Ok(Area {
                path: None,
                size,
                is_doubted: false,
            }),
        }
    }

    fn of(path: &Path) -> Result<Area, SwapError> {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let entries = table::entries()?;
        let size = entries.iter().find(|entry| entry.path == real);
        Ok(Area {
            size: size.map_or(0, |entry| entry.size),
            path: Some(real),
            is_doubted: false,
        })
    }

    fn turn_on(path: &Path, rotation: Option<&Rotation>) -> Result<Area, SwapError> {
        match rotation {
            Some(rotation) => rotation.during(|| turn_on(path))?,
            None => turn_on(path)?,
        }
        let is_doubted = rotation.is_some_and(Rotation::is_denied);
        Area::of(path).map(|area| Area { is_doubted, ..area })
    }

    /// Whether what is read from it is unpacked by who reads, as compressed memory is. Of the
    /// machine's areas: whether all are so.
    pub(super) fn is_zram(&self) -> bool {
        let is_zram = |path: &Path| path.to_string_lossy().starts_with("/dev/zram");
        match &self.path {
            Some(path) => is_zram(path),
            None => table::entries().is_ok_and(|all| all.iter().all(|one| is_zram(&one.path))),
        }
    }

    /// Bytes that are free in all areas of the machine: what does not fit in one goes to the next.
    /// None where the kernel does not tell.
    pub fn free(&self) -> Option<u64> {
        let entries = table::entries().ok()?;
        Some(entries.iter().map(|entry| entry.size - entry.used).sum())
    }
}

fn turn_on(path: &Path) -> Result<(), SwapError> {
    match table::turn_on(path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(SwapError::Unusable {
            path: path.to_owned(),
            reason: "the kernel refuses it: a file has to be without holes, on a filesystem that \
                     can hold swap (ext4, xfs; not tmpfs)"
                .to_owned(),
        }),
        other => other.trying("turn on swap on", path),
    }
}

fn create(path: &Path) -> Result<File, SwapError> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.trying("make", path)
}

/// Gives a new file that size, or [`bytes_on_disk`].
fn fill(path: &Path, size: Option<u64>, uuid: [u8; UUID_BYTES]) -> Result<(), SwapError> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let parent = parent.unwrap_or(Path::new("."));
    let size = size.map_or_else(|| bytes_on_disk(parent), Ok)?;
    let size = size / PAGE_BYTES * PAGE_BYTES;
    let file = OpenOptions::new()
        .write(true)
        .open(path)
        .trying("open", path)?;
    fallocate(&file, FallocateFlags::empty(), 0, size).trying("reserve the space of", path)?;
    format(path, size, uuid)
}

/// Half of what is free on a directory's disk, but no more than the machine has memory.
pub(super) fn bytes_on_disk(dir: &Path) -> Result<u64, SwapError> {
    let free = statvfs(dir).trying("look at the disk of", dir)?;
    let free = free.f_bavail * free.f_frsize;
    Ok(memory_of_machine().min(free / FREE_ONE_IN))
}

fn new_uuid() -> Result<[u8; UUID_BYTES], SwapError> {
    let path = Path::new("/dev/urandom");
    let mut uuid = [0; UUID_BYTES];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut uuid));
    read.trying("read", path)?;
    // Version 4 of RFC 9562.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

/// That of the area at a path; an error where there is none.
pub(super) fn uuid(path: &Path) -> io::Result<[u8; UUID_BYTES]> {
    let file = File::open(path)?;
    let (mut magic, mut uuid) = ([0; MAGIC.len()], [0; UUID_BYTES]);
    file.read_exact_at(&mut magic, MAGIC_AT)?;
    file.read_exact_at(&mut uuid, UUID_AT)?;
    match &magic == MAGIC {
        true => Ok(uuid),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Writes the header of a swap area of so many bytes.
pub(super) fn format(path: &Path, size: u64, uuid: [u8; UUID_BYTES]) -> Result<(), SwapError> {
    let pages = size / PAGE_BYTES;
    if pages < PAGES_MIN {
        return Err(SwapError::Unusable {
            path: path.to_owned(),
            reason: format!("{size} bytes are too few: it needs {PAGES_MIN} pages of {PAGE_BYTES}"),
        });
    }
    let file = OpenOptions::new()
        .write(true)
        .open(path)
        .trying("open", path)?;
    let last = u32::try_from(pages - 1).unwrap_or(u32::MAX);
    let mut page = [0; PAGE_BYTES as usize];
    let mut at = |from: u64, bytes: &[u8]| {
        page[from as usize..][..bytes.len()].copy_from_slice(bytes);
    };
    // Of the machine's byte order: no other machine reads it.
    at(HEADER_AT, &VERSION.to_le_bytes());
    at(HEADER_AT + 4, &last.to_le_bytes());
    at(UUID_AT, &uuid);
    at(LABEL_AT, b"nyx");
    at(MAGIC_AT, MAGIC);
    file.write_all_at(&page, 0)
        .trying("write the header of", path)?;
    file.sync_all().trying("write the header of", path)
}

/// Refuses what is there and is no swap area.
fn check(path: &Path) -> Result<(), SwapError> {
    let file = File::open(path).trying("open", path)?;
    let mut magic = [0; MAGIC.len()];
    let is_read = file.read_exact_at(&mut magic, MAGIC_AT).is_ok();
    if is_read && &magic == MAGIC {
        return Ok(());
    }
    let kind = file.metadata().map(|data| data.file_type());
    let is_device = kind.is_ok_and(|kind| kind.is_block_device());
    Err(SwapError::Unusable {
        path: path.to_owned(),
        reason: match is_device {
            true => "it has no swap header; mkswap(8) writes one, and what is on it is gone then",
            false => "it is there and no swap area; name a file that is not there, to have it made",
        }
        .to_owned(),
    })
}

/// Refuses a device that takes the program's memory for what leaves it.
fn refuse_hungry(path: &Path) -> Result<(), SwapError> {
    match disk::hunger(path) {
        None => Ok(()),
        Some(reason) => Err(SwapError::Unusable {
            path: path.to_owned(),
            reason,
        }),
    }
}

pub(super) fn device_bytes(path: &Path) -> Result<u64, SwapError> {
    let mut file = File::open(path).trying("open", path)?;
    io::Seek::seek(&mut file, io::SeekFrom::End(0)).trying("measure", path)
}

fn absolute(path: &Path) -> Result<PathBuf, SwapError> {
    std::path::absolute(path).trying("find", path)
}

/// Bytes of memory that the machine has.
fn memory_of_machine() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram * u64::from(info.mem_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_swap_area_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("photos.tar");
        fs::write(&path, vec![7; 65536]).unwrap();
        let error = check(&path).unwrap_err().to_string();
        assert!(error.contains("no swap area"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), vec![7; 65536]);
    }

    #[test]
    fn a_file_that_is_made_has_a_header_that_is_known_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("swap");
        create(&path).unwrap();
        assert!(create(&path).is_err(), "it is there");
        let made = new_uuid().unwrap();
        fill(&path, Some(1 << 20), made).unwrap();
        assert_eq!(uuid(&path).unwrap(), made);
        assert_ne!(made, new_uuid().unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
        check(&path).unwrap();
        let error = format(&path, 4096, made).unwrap_err().to_string();
        assert!(error.contains("10 pages"), "{error}");
    }
}
