//! Real programs with the preload library, in about a third of the memory that they use: what they
//! say is byte for byte what they say without it, nothing hangs, and no file is left.
//!
//! What it never does: need a control group or the launcher, since the arena's own limit holds for
//! the arena; pass where an arena can be had and was not. What a machine lacks is skipped by name,
//! with its reason on standard error.

mod abuse;
mod alone;
mod files;
mod paid;
mod python;
mod rig;
