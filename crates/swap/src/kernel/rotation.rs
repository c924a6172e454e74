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
//! *Thread safety*: the word is the machine's. Whoever turns an area on such a disk on or off, or
//! reads its word for that, holds a lock on its attribute meanwhile, whatever registry he has; for
//! [`PATIENCE`] at most, since anybody may lock what he may read.

use super::disk;
use crate::error::{SwapError, Trying};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Drivers that say it of any disk: KVM's and Xen's.
const DRIVERS: [&str; 2] = ["virtio_blk", "vbd"];
/// For so long a lock is waited for; then it goes on without one.
const PATIENCE: Duration = Duration::from_secs(10);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// What such a disk says while an area on it is turned on, and off again.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Rotation {
    /// The attribute that has it.
    attribute: PathBuf,
    /// What it says then.
    rotates: bool,
    /// Whether it says another thing at other times.
    is_denied: bool,
}

impl Rotation {
    /// That of the disk on which a file lies, or which is that device; none where it is nothing to
    /// doubt. What the disk says of itself `is_believed`, or denied where it may be.
    pub(super) fn of(path: &Path, is_believed: bool) -> Option<Rotation> {
        Rotation::of_disk(&disk::below(path)?, is_believed)
    }

    /// The same, of a whole disk.
    fn of_disk(disk: &Path, is_believed: bool) -> Option<Rotation> {
        let driver = fs::canonicalize(disk.join("device/driver")).ok()?;
        let attribute = disk.join("queue/rotational");
        if !DRIVERS.iter().any(|name| driver.ends_with(name)) {
            return None;
        }
        // Somebody else may just have it say otherwise.
        let _lock = lock(&attribute);
        let rotates = says(&attribute)?;
        let is_denied = rotates && !is_believed && can_be_changed(&attribute);
        Some(Rotation {
            attribute,
            rotates: rotates && !is_denied,
            is_denied,
        })
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
        let _lock = lock(&self.attribute);
        // Where somebody was killed in the middle of this it says it still.
        let before = self.is_denied || says(&self.attribute).unwrap_or(self.rotates);
        if let Err(error) = self.say(self.rotates) {
            tracing::warn!(%error, "the kernel may read ahead otherwise from now on");
        }
        let done = act();
        let said = self.say(before);
        done.and_then(|done| said.map(|()| done))
    }

    /// It says what it said before, where somebody was killed meanwhile.
    pub(super) fn restore(&self) -> Result<(), SwapError> {
        if !self.is_denied {
            return Ok(());
        }
        let _lock = lock(&self.attribute);
        self.say(true)
    }

    /// Of a disk that is gone nothing is to be said.
    fn say(&self, rotates: bool) -> Result<(), SwapError> {
        if says(&self.attribute) == Some(rotates) {
            return Ok(());
        }
        let word = if rotates { "1" } else { "0" };
        match fs::write(&self.attribute, word) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.trying("change for a moment", &self.attribute),
        }
    }
}

/// Whether the disk says that it rotates; none where it says nothing.
fn says(attribute: &Path) -> Option<bool> {
    let word = fs::read_to_string(attribute).ok()?;
    Some(word.trim() != "0")
}

fn can_be_changed(attribute: &Path) -> bool {
    let file = File::options().write(true).open(attribute);
    file.inspect_err(|error| tracing::info!(%error, "the kernel believes that the disk rotates"))
        .is_ok()
}

/// Held until it is dropped; none where that cannot be, or takes too long.
fn lock(attribute: &Path) -> Option<File> {
    let file = File::open(attribute).ok()?;
    let begin = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begin.elapsed() > PATIENCE {
            tracing::warn!(?attribute, "somebody else has it locked");
            return None;
        }
        thread::sleep(LOCK_PAUSE);
    }
    Some(file)
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
            ("virtio_blk", "1\n", Some(true)),
            ("vbd", "1\n", Some(true)),
            ("virtio_blk", "0\n", Some(false)),
            ("sd", "1\n", None),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (disk, part) = disk(dir.path(), driver, says);
            for path in [disk, part] {
                let disk = disk::whole(&path).unwrap();
                let found = Rotation::of_disk(&disk, false);
                let found = found.map(|rotation| rotation.is_denied());
                assert_eq!(found, is_doubted, "{driver} says {says:?}");
                let believed = Rotation::of_disk(&disk, true);
                assert!(believed.is_none_or(|rotation| !rotation.is_denied()));
            }
        }
        let nothing = Rotation::of_disk(Path::new("/sys/dev/block/none"), false);
        assert_eq!(nothing, None);
    }

    #[test]
    fn its_word_is_another_for_a_moment_and_nobody_elses_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, _) = disk(dir.path(), "virtio_blk", "1\n");
        let word = disk.join("queue/rotational");
        let is_locked = || {
            let file = File::open(&word).unwrap();
            flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
        };
        let seen = |rotation: &Rotation| {
            let act = || Ok((says(&word), is_locked()));
            rotation.during(act).unwrap()
        };
        let doubted = Rotation::of_disk(&disk, false).unwrap();
        let believed = Rotation::of_disk(&disk, true).unwrap();
        assert_eq!(seen(&doubted), (Some(false), true));
        assert_eq!((says(&word), is_locked()), (Some(true), false));
        assert_eq!(seen(&believed), (Some(true), true));
        let failed: Result<(), SwapError> = doubted.during(|| Err(SwapError::NoSwap));
        assert!(failed.is_err());
        assert_eq!(says(&word), Some(true));

        // Somebody was killed in the middle, and somebody else believes what he left.
        fs::write(&word, "0").unwrap();
        let deceived = Rotation::of_disk(&disk, true).unwrap();
        assert_eq!(seen(&deceived), (Some(false), true));
        doubted.restore().unwrap();
        assert_eq!(says(&word), Some(true));
        // He hears the same when he turns it off.
        assert_eq!(seen(&deceived), (Some(false), true));
        assert_eq!(says(&word), Some(true));
        // And who believed that it rotates hears that, whatever it says by now.
        fs::write(&word, "0").unwrap();
        assert_eq!(seen(&believed), (Some(true), true));
        assert_eq!(says(&word), Some(false));
        assert_eq!(seen(&doubted), (Some(false), true));
        assert_eq!(says(&word), Some(true));

        fs::remove_dir_all(&disk).unwrap();
        doubted.restore().unwrap();
    }
}
