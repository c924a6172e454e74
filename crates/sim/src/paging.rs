//! Programs in less memory than they use, in virtual time: the pager of `nyx_policy::paging` as it
//! is, or the lists of the paper's kernel, on a modelled device, with the software of a fault as
//! Ultraswap (sections 2 to 4) has measured it.
//!
//! * [`ageing`]: which of the two decides what is in memory.
//! * [`costs`]: what the software of a fault and of a page's way out takes, and where that is from.
//! * [`device`]: a P4800X with as many queues as processors ask for.
//! * [`machine`]: processors that run programs, and one that reclaims; the variants.
//! * [`program`]: touches of pages that stand for the paper's five programs.
//!
//! What it never does: decide which page comes or goes; move a byte; look at a real clock.

pub mod ageing;
pub mod costs;
pub mod device;
mod lists;
pub mod machine;
pub mod program;

pub use ageing::Ageing;
pub use costs::{Costs, Part, Parts};
pub use device::{Device, Service};
pub use machine::{Outcome, Setup, Variant, run};
pub use program::{Kind, Program, Touch};
