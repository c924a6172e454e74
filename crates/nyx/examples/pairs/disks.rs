//! What runs on a device have: swap and, for programs that page for themselves, another device of
//! the same kind, or a file in memory.
//!
//! All stand at fixed places or are written down there, so that what a killed run left is found and
//! taken down by the next. What it never does: touch a device that it did not make.
//!
//! *Thread safety*: one at a place; who makes one holds the lock of the output directory.

use crate::Result;
use crate::launch;
use crate::plan::Device;
use crate::ram_disk::{self, Holds, RamDisk};
use nyx_swap::kernel::Zram;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Below the output directory: a tmpfs for swap, one for pages, and what is known of a zram device.
const SWAP: &str = "ram";
const PAGES: &str = "ram-pages";
const IDEAL: &str = "ram-ideal";
const ZRAM: &str = "zram-pages.json";
/// Another after each boot: a device is known by its number until then only.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Taken down when dropped.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    swap: Option<RamDisk>,
    ram: Option<RamDisk>,
    zram: Option<ZramDisk>,
    ideal: Option<RamDisk>,
}

impl Disks {
    /// What runs on `device` need, of so many bytes each: whether programs that page for themselves
    /// are among them, and such that do so to memory.
    pub(crate) fn make(
        out: &Path,
        device: Device,
        bytes: u64,
        [has_pages, has_ideal]: [bool; 2],
    ) -> Result<Disks> {
        let mut disks = Disks::default();
        if has_ideal {
            disks.ideal = Some(RamDisk::make(&out.join(IDEAL), bytes, Holds::Copies)?);
        }
        match device {
            Device::Loop => {
                disks.swap = Some(RamDisk::make(&out.join(SWAP), bytes, Holds::Swap)?);
                if has_pages {
                    disks.ram = Some(RamDisk::make(&out.join(PAGES), bytes, Holds::Pages)?);
                }
            }
            // Swap is made by each run.
            Device::Zram if has_pages => {
                disks.zram = Some(ZramDisk::make(&out.join(ZRAM), bytes)?);
            }
            Device::Zram | Device::Disk => {}
        }
        Ok(disks)
    }

    pub(crate) fn as_seen(&self) -> launch::Disks<'_> {
        let ram = self.ram.as_ref().map(RamDisk::device);
        let zram = self.zram.as_ref().map(|zram| zram.device.as_path());
        launch::Disks {
            swap: self.swap.as_ref().map(RamDisk::device),
            pages: ram.or(zram),
            ideal: self.ideal.as_ref().map(RamDisk::device),
        }
    }
}

/// Takes down what a killed run left.
pub(crate) fn take_down(out: &Path) -> Result<()> {
    for place in [SWAP, PAGES, IDEAL] {
        ram_disk::take_down(&out.join(place));
    }
    take_down_zram(&out.join(ZRAM))
}

/// A zram device, with the algorithm that swap on zram has.
#[derive(Debug)]
struct ZramDisk {
    device: PathBuf,
    /// Where it is written down.
    place: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Made {
    boot: String,
    zram: Zram,
}

impl ZramDisk {
    fn make(place: &Path, bytes: u64) -> Result<ZramDisk> {
        take_down_zram(place)?;
        let boot = fs::read_to_string(BOOT)?;
        let zram = Zram::take(bytes)?;
        let device = zram.path();
        let made = serde_json::to_vec(&Made {
            boot,
            zram: zram.clone(),
        })?;
        if let Err(error) = fs::write(place, made) {
            zram.take_down()?;
            return Err(error.into());
        }
        let place = place.to_owned();
        Ok(ZramDisk { device, place })
    }
}

impl Drop for ZramDisk {
    fn drop(&mut self) {
        if let Err(error) = take_down_zram(&self.place) {
            eprintln!("pairs: left behind: {error}");
        }
    }
}

fn take_down_zram(place: &Path) -> Result<()> {
    let text = match fs::read(place) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        text => text?,
    };
    // What was torn while it was written, or is of an earlier boot, names no device of ours.
    if let Ok(made) = serde_json::from_slice::<Made>(&text)
        && made.boot == fs::read_to_string(BOOT)?
    {
        ram_disk::patiently(|| Ok(made.zram.take_down()?))?;
    }
    Ok(fs::remove_file(place)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_is_taken_down_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let make = || Disks::make(dir.path(), Device::Zram, 1 << 20, [true, false]);
        let first = match make() {
            Ok(disks) => disks,
            Err(error) => {
                eprintln!("skipped what_a_killed_run_left_is_taken_down: {error}");
                assert!(!dir.path().join(ZRAM).exists());
                return;
            }
        };
        let size = |device: &Path| {
            let name = device.file_name().unwrap().to_string_lossy();
            let text = fs::read_to_string(format!("/sys/block/{name}/disksize"));
            text.ok().map(|text| text.trim().to_owned())
        };
        let is_left = |device: &Path| size(device).is_some_and(|size| size != "0");
        let device = first.as_seen().pages.unwrap().to_owned();
        assert_eq!(size(&device).as_deref(), Some("1048576"));
        assert!(is_left(&device));
        // As where it is killed.
        std::mem::forget(first);
        take_down(dir.path()).unwrap();
        assert!(!is_left(&device));
        assert!(!dir.path().join(ZRAM).exists());

        let killed = make().unwrap();
        let device = killed.as_seen().pages.unwrap().to_owned();
        std::mem::forget(killed);
        // It may be given the same device again.
        drop(make().unwrap());
        assert!(!is_left(&device));
        // Of another boot: whose it is now is not known.
        let other = make().unwrap();
        let device = other.as_seen().pages.unwrap().to_owned();
        let place = dir.path().join(ZRAM);
        let text = fs::read_to_string(&place).unwrap();
        let mut made: Made = serde_json::from_str(&text).unwrap();
        made.boot = "another".to_owned();
        fs::write(&place, serde_json::to_vec(&made).unwrap()).unwrap();
        drop(other);
        assert!(is_left(&device) && !place.exists());
        made.zram.take_down().unwrap();
    }

    #[test]
    fn a_run_on_a_disk_needs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let disks = Disks::make(dir.path(), Device::Disk, 1 << 20, [true, false]).unwrap();
        let seen = disks.as_seen();
        assert!(seen.swap.is_none() && seen.pages.is_none());
        take_down(dir.path()).unwrap();
    }
}
