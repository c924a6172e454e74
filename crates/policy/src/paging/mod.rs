//! Decides for programs that have less memory than they use: how much is to be free, how much
//! they may have, and which pages those are.
//!
//! * [`pool`]: when memory is reclaimed, and how much, so that a fault finds some free (Ultraswap
//!   section 3.2: reclaim on a CPU of its own).
//! * [`budget`]: how much memory a program gets, from what it has or from how it fares.
//! * [`readahead`]: what a program that pages by the kernel will want next.
//! * [`pager`]: which pages are in memory, for an engine that maps, reads and writes them itself.
//!
//! What it never does: take a page, read a clock, know a control group.

pub mod budget;
pub mod pager;
pub mod pool;
pub mod readahead;
