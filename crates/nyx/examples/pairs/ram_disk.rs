//! A very fast disk: a loop device with direct I/O on a file on a tmpfs, with a swap header or
//! empty; or that file itself, which is as fast as copying is.
//!
//! The tmpfs stands at a fixed place, so that what a killed run left is found and taken down by the
//! next. What it never does: touch a loop device that is not on its own file.
//!
//! *Thread safety*: one at a place; who makes one holds the lock of the output directory.

use crate::Result;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The file below the tmpfs.
const FILE: &str = "disk";
/// Beside the file the tmpfs holds its directory.
const SPARE_BYTES: u64 = 1 << 20;

/// What is on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Swap: it has a header.
    Swap,
    /// Pages of a program; nothing at first.
    Pages,
    /// Pages of a program, without a loop device.
    Copies,
}

/// Taken down when dropped.
#[derive(Debug)]
pub(crate) struct RamDisk {
    dir: PathBuf,
    device: PathBuf,
}

impl RamDisk {
    pub(crate) fn make(dir: &Path, bytes: u64, holds: Holds) -> Result<RamDisk> {
        take_down(dir);
        fs::create_dir_all(dir)?;
        // What is on it must not go to swap itself: it is what swap is on.
        let options = format!("noswap,mode=0700,size={}", bytes + SPARE_BYTES);
        let mount = ["-t", "tmpfs", "-o", &options, "nyx-pairs"];
        call(Command::new("mount").args(mount).arg(dir))?;
        let mut disk = RamDisk {
            dir: dir.to_owned(),
            device: PathBuf::new(),
        };
        let file = dir.join(FILE);
        // All of it now: no page is to be found for it, or charged to the program, while it swaps.
        fallocate(File::create(&file)?, FallocateFlags::empty(), 0, bytes)?;
        disk.device = match holds {
            Holds::Copies => file,
            Holds::Swap | Holds::Pages => {
                let flags = ["--find", "--show", "--direct-io=on"];
                let device = call(Command::new("losetup").args(flags).arg(&file))?;
                PathBuf::from(device.trim())
            }
        };
        if holds != Holds::Pages {
            call(Command::new("mkswap").arg(&disk.device))?;
        }
        Ok(disk)
    }

    pub(crate) fn device(&self) -> &Path {
        &self.device
    }
}

impl Drop for RamDisk {
    fn drop(&mut self) {
        take_down(&self.dir);
    }
}

/// Takes down what stands there, if anything does.
pub(crate) fn take_down(dir: &Path) {
    let file = dir.join(FILE);
    if file.exists() {
        let list = ["--noheadings", "--output", "NAME", "--associated"];
        let devices = call(Command::new("losetup").args(list).arg(&file));
        for device in devices.unwrap_or_default().split_whitespace() {
            // Swap is on only where a run was killed.
            let _ = call(Command::new("swapoff").arg(device));
            tell(call(Command::new("losetup").args(["--detach", device])));
        }
    }
    if is_mounted(dir) {
        tell(patiently(|| call(Command::new("umount").arg(dir))));
    }
}

/// Tries again for some seconds: what a program had open is closed a little later than it ends,
/// where the kernel carries requests of it out.
pub(crate) fn patiently<T>(mut act: impl FnMut() -> Result<T>) -> Result<T> {
    const TRIES: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(50);
    for _ in 1..TRIES {
        if let Ok(done) = act() {
            return Ok(done);
        }
        std::thread::sleep(PAUSE);
    }
    act()
}

fn is_mounted(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| fs::metadata(path).map(|about| about.dev()).ok();
    let own = device(dir);
    own.is_some() && own != dir.parent().and_then(device)
}

fn tell(result: Result<String>) {
    if let Err(error) = result {
        eprintln!("pairs: left behind: {error}");
    }
}

/// What it printed; an error where it failed.
fn call(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {}", output.status, why.trim()).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_says_why() {
        assert_eq!(call(Command::new("echo").arg("a")).unwrap(), "a\n");
        let script = ["-c", "echo because >&2; false"];
        let error = call(Command::new("sh").args(script)).unwrap_err();
        assert!(error.to_string().contains("because"), "{error}");
    }

    #[test]
    fn a_ram_disk_is_swap_or_empty_and_goes_again() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("ram");
        for (holds, end) in [(Holds::Swap, &b"SWAPSPACE2"[..]), (Holds::Pages, &[0; 10])] {
            let disk = match RamDisk::make(&place, 1 << 20, holds) {
                Ok(disk) => disk,
                Err(error) => {
                    eprintln!("skipped a_ram_disk_is_swap_or_empty: {error}");
                    assert!(!is_mounted(&place), "it is taken down");
                    return;
                }
            };
            let page = &fs::read(disk.device()).unwrap()[..4096];
            assert!(page.ends_with(end), "{holds:?}");
            // As where the run is killed: the next takes it down.
            std::mem::forget(disk);
            take_down(&place);
            assert!(!is_mounted(&place), "it is taken down");
        }
    }
}
