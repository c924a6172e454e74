//! zram devices: compressed memory as a block device.
//!
//! What it never does: touch a device that is in use.
//!
//! *Thread safety*: devices are the machine's; whoever takes one holds the registry's lock.

use crate::error::{SwapError, Trying};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const CONTROL: &str = "/sys/class/zram-control";
const BLOCK: &str = "/sys/block";
/// Best first: a fault waits for its page to be unpacked.
const ALGORITHMS: [&str; 2] = ["lz4", "lzo-rle"];

/// Others who look for one at the same moment may be so many times quicker.
const TAKE_TRIES: u32 = 100;

/// A device that nobody uses yet.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Zram {
    number: u32,
    /// It was made for this run, and goes with it.
    is_new: bool,
}

impl Zram {
    /// One of so many bytes, with the algorithm that swap gets. A registry's lock keeps only runs
    /// with the same records apart: another may take a device after it was found unused, and what
    /// was set first holds.
    pub fn take(size: u64) -> Result<Zram, SwapError> {
        let mut tries = 0;
        loop {
            let zram = Zram::find()?;
            match zram.set_up(size) {
                Ok(()) => return Ok(zram),
                Err(error) if error.is_busy() && tries < TAKE_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// One that is there and unused, or else a new one.
    fn find() -> Result<Zram, SwapError> {
        let control = Path::new(CONTROL);
        if !control.exists() {
            return Err(SwapError::Unusable {
                path: PathBuf::from("zram"),
                reason: format!("this kernel has none: {CONTROL} is not there (modprobe zram)"),
            });
        }
        let there = fs::read_dir(BLOCK).into_iter().flatten().flatten();
        let mut numbers: Vec<u32> = there
            .filter_map(|entry| {
                entry
                    .file_name()
                    .to_str()?
                    .strip_prefix("zram")?
                    .parse()
                    .ok()
            })
            .filter(|&number| is_unused(number))
            .collect();
        numbers.sort_unstable();
        if let Some(&number) = numbers.first() {
            let is_new = false;
            return Ok(Zram { number, is_new });
        }
        let path = control.join("hot_add");
        let text = fs::read_to_string(&path).trying("make a zram device by", &path)?;
        let number = text.trim().parse().map_err(|_| SwapError::Unusable {
            path,
            reason: format!("it answers {text:?}, which is no number"),
        })?;
        let is_new = true;
        Ok(Zram { number, is_new })
    }

    /// Gives it a size in bytes, and the quickest algorithm that there is.
    fn set_up(&self, size: u64) -> Result<(), SwapError> {
        let known = fs::read_to_string(self.attribute("comp_algorithm")).unwrap_or_default();
        let known: Vec<&str> = known
            .split_whitespace()
            .map(|name| name.trim_matches(['[', ']']))
            .collect();
        // One that is listed may be refused: it has no module. The kernel's own is left then.
        let path = self.attribute("comp_algorithm");
        let _ = ALGORITHMS
            .iter()
            .filter(|name| known.contains(name))
            .find(|name| fs::write(&path, name).is_ok());
        let path = self.attribute("disksize");
        fs::write(&path, size.to_string()).trying("set", &path)
    }

    /// Gives up what is in it, and the device where it is new. It is not in use any more.
    pub fn take_down(&self) -> Result<(), SwapError> {
        if !self.attribute("reset").exists() {
            return Ok(());
        }
        if self.is_new {
            // That resets it too; one that was reset first might be taken before it is removed.
            let path = Path::new(CONTROL).join("hot_remove");
            return fs::write(&path, self.number.to_string()).trying("remove a device by", &path);
        }
        let path = self.attribute("reset");
        fs::write(&path, "1").trying("reset", &path)
    }

    /// The device.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/zram{}", self.number))
    }

    fn attribute(&self, name: &str) -> PathBuf {
        Path::new(BLOCK)
            .join(format!("zram{}", self.number))
            .join(name)
    }
}

fn is_unused(number: u32) -> bool {
    let path = Path::new(BLOCK).join(format!("zram{number}/initstate"));
    let state: io::Result<String> = fs::read_to_string(path);
    state.is_ok_and(|text| text.trim() == "0")
}
