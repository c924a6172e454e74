//! The evaluation of a device as people read it: the tables and figures of Han et al. (section 2)
//! for any medium, with DRAM and a disk beside it and, for a modelled device, the model in virtual
//! time.
//!
//! * [`Evaluation`]: everything that was measured, and of what. [`machine`]: where.
//! * [`tables`]: tables 3 to 8, beside what was published. [`figures`]: figures 1 to 14.
//! * [`mod@report`]: all of it as one text. [`grid`]: how tables and values are written.
//!
//! What this module never does: measure, read a clock, or put two kinds of evidence into one
//! column.

pub mod figures;
pub mod grid;
pub mod machine;
pub mod report;
pub mod tables;

use machine::Machine;
use nyx_media::evaluate::{Plan, Sheet};
use nyx_media::profile::Identity;
use serde::Serialize;

/// The format that this build writes.
pub const VERSION: u32 = 1;

/// Everything that is in a report.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// The format of the JSON (`docs/format.md`, "Evaluation"): [`VERSION`].
    pub version: u32,
    /// The device in a few words.
    pub name: String,
    /// When it was made, in seconds since the Unix epoch.
    pub made_unix_s: u64,
    /// Which device.
    pub device: Identity,
    /// On what.
    pub machine: Machine,
    /// How much, and how long.
    pub plan: Plan,
    /// What the loop of a chained read takes where the bytes are in the nearest cache.
    pub loop_ns: f64,
    /// The device.
    pub own: Sheet,
    /// Its model in virtual time, where it has one and was itself measured in real time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<Sheet>,
    /// This machine's memory, and how much of it.
    pub dram: Sheet,
    /// Its size in bytes.
    pub dram_bytes: u64,
    /// A file on a disk.
    pub disk: Beside,
}

/// What was to be measured beside, or why it was not.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    /// What it is: the filesystem and its device.
    pub name: String,
    /// None where it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sheet: Option<Sheet>,
    /// Why it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// A sheet under the name that its columns and panels bear.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// What it is, without its evidence.
    pub name: &'a str,
    /// The readings.
    pub sheet: &'a Sheet,
}

impl Named<'_> {
    /// The name with the kind of evidence, as a column has it.
    pub fn column(&self) -> String {
        format!("{}, {}", self.name, self.sheet.evidence)
    }
}

impl Evaluation {
    /// The device, and its model where that was run besides.
    pub fn device_sheets(&self) -> Vec<Named<'_>> {
        let own = Named {
            name: "device",
            sheet: &self.own,
        };
        let model = self.model.as_ref().map(|sheet| Named {
            name: "model",
            sheet,
        });
        std::iter::once(own).chain(model).collect()
    }

    /// This machine's memory.
    pub fn dram_sheet(&self) -> Named<'_> {
        Named {
            name: "DRAM",
            sheet: &self.dram,
        }
    }

    /// All sheets that there are.
    pub fn sheets(&self) -> Vec<Named<'_>> {
        let disk = self.disk.sheet.as_ref().map(|sheet| Named {
            name: "disk",
            sheet,
        });
        let mut all = self.device_sheets();
        all.push(self.dram_sheet());
        all.extend(disk);
        all
    }
}

#[cfg(test)]
mod tests;
