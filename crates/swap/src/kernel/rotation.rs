//! A virtual disk that says that it rotates, and does not know.
//!
//! For a disk that rotates the kernel reads ahead what lies beside a page on the disk, and has one
//! place for all CPUs to write to; for others, what lies beside it in memory, and a place for each
//! CPU. Drivers of virtual disks set the former for whatever is behind them (`virtio_blk`). Where
//! two CPUs write at once, as a program and its reclaimer do, neighbours in memory are none on the
//! disk then, and of what is read ahead less is used.
//!
//! The kernel asks the disk when an area is turned on, and again when it is turned off: it counts
//! areas that rotate, and reads ahead by address while there is none (`nr_rotate_swap` in
//! `mm/swapfile.c`, up to Linux 6.18 at least). A disk that said one thing then and another thing
//! now leaves that count wrong until the machine begins anew. So it is said for both moments, and
//! only for them.
//!
//! What it never does: doubt a disk that was asked whether it rotates (SCSI, SATA).
//!
//! *Thread safety*: the word is the machine's. Whoever turns an area on such a disk on or off holds
//! a lock on its attribute meanwhile, whatever registry he has.

use crate::error::{SwapError, Trying};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Drivers that say it of any disk: KVM's and Xen's.
const DRIVERS: [&str; 2] = ["virtio_blk", "vbd"];
/// Disks by their numbers.
const DISKS: &str = "/sys/dev/block";
const ROTATES: &str = "1";
const ROTATES_NOT: &str = "0";

/// What such a disk says while an area on it is turned on, and off again.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Rotation {
    /// The attribute that has it.
    attribute: PathBuf,
    /// Whether it says that it does not rotate.
    is_denied: bool,
}

impl Rotation {
    /// That of the disk on which a file lies, or which is that device; none where it is nothing to
    /// doubt. It is believed until [`Self::doubted`].
    pub(super) fn of(path: &Path) -> Option<Rotation> {
        let data = fs::metadata(path).ok()?;
        let number = match data.file_type().is_block_device() {
            true => data.rdev(),
            false => data.dev(),
        };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        Rotation::of_disk(&Path::new(DISKS).join(format!("{major}:{minor}")))
    }

    /// The same, of a disk or a part of one.
    fn of_disk(disk: &Path) -> Option<Rotation> {
        let disk = fs::canonicalize(disk).ok()?;
        let whole = match disk.join("partition").exists() {
            true => disk.parent()?,
            false => &disk,
        };
        let driver = fs::canonicalize(whole.join("device/driver")).ok()?;
        let is_virtual = DRIVERS.iter().any(|name| driver.ends_with(name));
        let attribute = whole.join("queue/rotational");
        let says = fs::read_to_string(&attribute).ok()?;
        (is_virtual && says.trim() == ROTATES).then_some(Rotation {
            attribute,
            is_denied: false,
        })
    }

    /// The same, denied; believed still where that may not be said here.
    pub(super) fn doubted(self) -> Rotation {
        let file = File::options().write(true).open(&self.attribute);
        if let Err(error) = &file {
            tracing::info!(%error, "the kernel believes that the disk rotates");
        }
        Rotation {
            is_denied: file.is_ok(),
            ..self
        }
    }

    /// Whether it is denied.
    pub(super) fn is_denied(&self) -> bool {
        self.is_denied
    }

    /// Does something while the disk says so; also where it cannot be made to. It says what it
    /// said before afterwards, or an error tells that it does not.
    pub(super) fn during<T>(
        &self,
        act: impl FnOnce() -> Result<T, SwapError>,
    ) -> Result<T, SwapError> {
        let _lock = self.lock();
        if self.is_denied
            && let Err(error) = fs::write(&self.attribute, ROTATES_NOT)
        {
            tracing::warn!(%error, "the kernel may read ahead otherwise from now on");
        }
        let done = act();
        let said = self.say();
        done.and_then(|done| said.map(|()| done))
    }

    /// It says what it said before, where somebody was killed meanwhile.
    pub(super) fn restore(&self) -> Result<(), SwapError> {
        let _lock = self.lock();
        self.say()
    }

    fn say(&self) -> Result<(), SwapError> {
        if !self.is_denied {
            return Ok(());
        }
        match fs::write(&self.attribute, ROTATES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.trying("restore", &self.attribute),
        }
    }

    /// Held until it is dropped; none where that cannot be.
    fn lock(&self) -> Option<File> {
        let file = File::open(&self.attribute).ok()?;
        flock(&file, FlockOperation::LockExclusive).ok()?;
        Some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A disk with one part, as sysfs has them.
    fn disk(dir: &Path, driver: &str, says: &str) -> (PathBuf, PathBuf) {
        let (disk, part) = (dir.join("vda"), dir.join("vda/vda1"));
        let driver = dir.join("drivers").join(driver);
        for dir in [&disk.join("queue"), &disk.join("device"), &part, &driver] {
            fs::create_dir_all(dir).unwrap();
        }
        symlink(driver, disk.join("device/driver")).unwrap();
        fs::write(disk.join("queue/rotational"), says).unwrap();
        fs::write(part.join("partition"), "1\n").unwrap();
        (disk, part)
    }

    #[test]
    fn only_a_virtual_disk_that_says_that_it_rotates_is_doubted() {
        for (driver, says, is_doubted) in [
            ("virtio_blk", "1\n", true),
            ("vbd", "1\n", true),
            ("virtio_blk", "0\n", false),
            ("sd", "1\n", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (disk, part) = disk(dir.path(), driver, says);
            for path in [disk, part] {
                let found = Rotation::of_disk(&path);
                assert_eq!(found.is_some(), is_doubted, "{driver} says {says:?}");
            }
        }
        let nothing = Rotation::of_disk(Path::new("/sys/dev/block/none"));
        assert_eq!(nothing, None);
    }

    #[test]
    fn its_word_is_another_for_a_moment_and_nobody_elses_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, _) = disk(dir.path(), "virtio_blk", "1\n");
        let says = || {
            let text = fs::read_to_string(disk.join("queue/rotational")).unwrap();
            text.trim().to_owned()
        };
        let believed = Rotation::of_disk(&disk).unwrap();
        let doubted = believed.clone().doubted();
        for (rotation, meanwhile) in [(&doubted, ROTATES_NOT), (&believed, ROTATES)] {
            let locked = || {
                let file = File::open(disk.join("queue/rotational")).unwrap();
                flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
            };
            let seen = rotation.during(|| Ok((says(), locked()))).unwrap();
            assert_eq!(seen, (meanwhile.to_owned(), true));
            assert_eq!((says().as_str(), locked()), (ROTATES, false));
        }
        let failed: Result<(), SwapError> = doubted.during(|| Err(SwapError::NoSwap));
        assert!(failed.is_err());
        assert_eq!(says(), ROTATES);
        fs::remove_dir_all(&disk).unwrap();
        doubted.restore().unwrap();
    }
}
