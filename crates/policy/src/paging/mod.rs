//! Decides for programs that have less memory than they use: how much is to be free, and how much
//! they may have.
//!
//! * [`pool`]: when memory is reclaimed, and how much, so that a fault finds some free (Ultraswap
//!   section 3.2: reclaim on a CPU of its own).
//! * [`budget`]: how much memory a program gets, from what it has or from how it fares.
//!
//! What it never does: take a page, read a clock, know a control group.

pub mod budget;
pub mod pool;
