//! The disk below a path, as the kernel tells of it, and one that would eat what it is to spare.
//!
//! A loop device is a disk over a file. Where that file lies on tmpfs and has holes, what is first
//! written to a place takes a page of memory, and the kernel charges it to who wrote: the program
//! that is to have less. It is at its limit then, sends more away to the same place, and waits for
//! itself; where the tmpfs may be swapped, what it sent there is sent there once more.
//!
//! *Thread safety*: plain functions.

use nyx_base::Bytes;
use nyx_media::is_in_memory;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Disks by their numbers.
const DISKS: &str = "/sys/dev/block";
/// In which `st_blocks` counts, in bytes, wherever a file lies.
const BLOCK_BYTES: u64 = 512;

/// The whole disk on which a file lies, or of which that device is all or a part.
pub(super) fn below(path: &Path) -> Option<PathBuf> {
    let data = fs::metadata(path).ok()?;
    let number = match data.file_type().is_block_device() {
        true => data.rdev(),
        false => data.dev(),
    };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    whole(&Path::new(DISKS).join(format!("{major}:{minor}")))
}

/// That of a disk or of a part of one, by their places in sysfs.
pub(super) fn whole(disk: &Path) -> Option<PathBuf> {
    let disk = fs::canonicalize(disk).ok()?;
    match disk.join("partition").exists() {
        true => disk.parent().map(Path::to_owned),
        false => Some(disk),
    }
}

/// Why pages must not go to that device: it takes memory for them, of who sends them there.
pub(super) fn hunger(path: &Path) -> Option<String> {
    let kind = fs::metadata(path).ok()?.file_type();
    let disk = below(path).filter(|_| kind.is_block_device())?;
    let file = fs::read_to_string(disk.join("loop/backing_file")).ok()?;
    let file = Path::new(file.trim_end_matches('\n'));
    let data = fs::metadata(file).ok()?;
    let missing = data.len().saturating_sub(data.blocks() * BLOCK_BYTES);
    (missing > 0 && is_in_memory(file)).then(|| {
        format!(
            "it is a loop device over a file on tmpfs that has holes ({} of {}): each page that \
             goes there would take one from the program, which may hang. Reserve it first \
             (fallocate --length {} {}), on a tmpfs that does not swap (mount -o noswap)",
            Bytes(missing),
            Bytes(data.len()),
            data.len(),
            file.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories_are_on_no_hungry_disk() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("holes");
        fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
        for path in [dir.path(), &file, Path::new("/none")] {
            assert_eq!(hunger(path), None, "{}", path.display());
        }
    }
}
