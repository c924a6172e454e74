//! A virtual disk that says that it rotates, and does not know.
//!
//! For a disk that rotates the kernel reads ahead what lies beside a page on the disk, and has one
//! place for all CPUs to write to; for others, what lies beside it in memory, and a place for each
//! CPU. Drivers of virtual disks set the former for whatever is behind them (`virtio_blk`). Where
//! two CPUs write at once, as a program and its reclaimer do, neighbours in memory are none on the
//! disk then, and of what is read ahead less is used. The kernel looks when an area is turned on,
//! so it is enough to say otherwise for that moment.
//!
//! What it never does: doubt a disk that was asked whether it rotates (SCSI, SATA).
//!
//! *Thread safety*: the word is the machine's; whoever changes it holds the registry's lock. Of two
//! runs with different registries one may find it restored too early, and be as it stands.

use crate::error::{SwapError, Trying};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Drivers that say it of any disk: KVM's and Xen's.
const DRIVERS: [&str; 2] = ["virtio_blk", "vbd"];
/// Disks by their numbers.
const DISKS: &str = "/sys/dev/block";
const ROTATES: &str = "1";
const ROTATES_NOT: &str = "0";

/// The word of such a disk.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Rotation {
    /// The attribute that has it.
    attribute: PathBuf,
}

impl Rotation {
    /// That of the disk on which a file lies, or which is that device; none where it is nothing to
    /// doubt.
    pub(super) fn doubted(path: &Path) -> Option<Rotation> {
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
        (is_virtual && says.trim() == ROTATES).then_some(Rotation { attribute })
    }

    /// From now on the disk says that it does not.
    pub(super) fn deny(&self) -> io::Result<()> {
        fs::write(&self.attribute, ROTATES_NOT)
    }

    /// It says what it said before.
    pub(super) fn restore(&self) -> Result<(), SwapError> {
        match fs::write(&self.attribute, ROTATES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.trying("restore", &self.attribute),
        }
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
    fn its_word_is_changed_and_restored() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, _) = disk(dir.path(), "virtio_blk", "1\n");
        let says = || fs::read_to_string(disk.join("queue/rotational")).unwrap();
        let rotation = Rotation::of_disk(&disk).unwrap();
        rotation.deny().unwrap();
        assert_eq!(says(), ROTATES_NOT);
        rotation.restore().unwrap();
        assert_eq!(says(), ROTATES);
        fs::remove_dir_all(&disk).unwrap();
        rotation.restore().unwrap();
    }
}
