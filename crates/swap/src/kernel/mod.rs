//! Engine `kernel`: any program, by the kernel's own swap.
//!
//! A program runs in a control group with a limit. What is above the limit goes to swap, and with
//! the kernel alone the program sends it there itself, in the middle of a fault that found no
//! memory free: that is what makes one touch in a hundred fifty times slower than the others. Here
//! a [`Reclaimer`] on another CPU, whichever is idle, does it ahead, so that the program's faults
//! find memory free (Ultraswap section 3.2, "direct reclaim is handed to a CPU of its own"). Where
//! it is late, or gone, the program reclaims for itself, and the limit holds as ever.
//!
//! Another thread hears of the program's faults and reads ahead what comes next, in larger pieces
//! than the kernel does and before it is wanted ([`ReadAhead`]).
//!
//! * [`Group`]: a control group, of version 1 or 2, and what it counts.
//! * [`Area`]: swap on a file, a block device or zram.
//! * [`Record`]: what a run made, so that the next one takes it down where nobody did.
//! * [`Session`]: all of it together: a program from its start to its report.
//! * [`Arena`]: what a program gets that pages for itself (engine `uffd`), in such a session too.
//!
//! What it never does: touch the program's memory, or its code. It needs no help from the program
//! and can do it no harm. (Reading ahead advises the kernel; no page holds anything else for it.)
//!
//! *Thread safety*: a group can be read and reclaimed by several threads.

mod area;
mod aside;
mod disk;
mod faults;
mod group;
mod hierarchy;
mod preload;
mod probe;
mod readahead;
mod reclaimer;
mod record;
mod report;
mod rotation;
mod session;
mod table;
mod watcher;
mod zram;

pub use area::{Area, Source};
pub use group::{Counts, Group};
pub use hierarchy::{Hierarchy, Version};
pub use preload::Arena;
pub use probe::{ProbeReport, probe};
pub use readahead::ReadAhead;
pub use reclaimer::{Amount, Orders, Reclaimed, Reclaimer};
pub use record::{OwnArea, OwnFile, Process, Record, Registry, Residue, Uses, watch};
pub use report::{Figures, Report, TenantUse};
pub use rotation::Rotation;
pub use session::{Entry, Memory, Plan, Probe, Reads, Remote, Session};
pub use zram::Zram;

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Puts this process into groups and becomes the command: returns only where that fails.
pub fn enter(entry: &Entry<'_>) -> io::Error {
    let own = std::process::id().to_string();
    for group in entry.groups {
        if let Err(error) = std::fs::write(group.join("cgroup.procs"), &own) {
            return error;
        }
    }
    let Some((program, arguments)) = entry.command.split_first() else {
        return io::ErrorKind::InvalidInput.into();
    };
    let variables = entry.variables.iter();
    let variables = variables.map(|(name, value)| (name, value));
    Command::new(program).args(arguments).envs(variables).exec()
}
