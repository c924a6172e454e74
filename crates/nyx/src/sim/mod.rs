//! Scenarios from files: a configuration with clients, run in virtual time.
//!
//! A scenario file is a server's configuration - the same knobs, the same words - and says besides
//! who asks for what: `[run]` (how long, how often, on which of the two simulators), `[[load]]`
//! (the clients of a tenant) and `[[sweep]]` (settings that are varied). So a configuration in use
//! can be tried with other policies, other tenants or another device by adding loads to it.
//!
//! * [`mod@file`]: the file and its cases. [`run`]: its runs.
//! * [`report`]: tables. [`draw`]: pictures.
//!
//! What it never does: show a number that was not simulated, or that is of another kind: what comes
//! out is *simulated*, and says so.

pub mod draw;
pub mod file;
pub mod report;
pub mod run;
