//! Scenarios from files: a configuration with clients, run in virtual time or in real time.
//!
//! A scenario file is a server's configuration - the same knobs, the same words - and says besides
//! who asks for what: `[run]` (how long, how often, on which simulator or in real time), `[[load]]`
//! (the clients of a tenant), `[[sweep]]` (settings that are varied), `[[expect]]` (what must come
//! out) and `[[draw]]` (what is drawn). So a configuration in use can be tried with other policies,
//! other tenants or another device by adding loads to it, and tested by adding expectations.
//!
//! * [`mod@file`]: the file and its cases. [`run`]: its runs. [`metric`]: what can be said of one.
//! * [`expect`]: what must come out. [`report`]: tables. [`draw`]: pictures.
//! * [`figures`]: the files that redraw the evaluation of NyxCache.
//! * [`paging`]: Ultraswap's evaluation, which has no files: its programs are modelled.
//!
//! What it never does: show a number without its kind, which is *simulated* in virtual time and
//! *emulated* in real time, or two kinds in one table.

pub mod draw;
pub mod expect;
pub mod figures;
pub mod file;
pub mod metric;
pub mod paging;
pub mod report;
pub mod run;
