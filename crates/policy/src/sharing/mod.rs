//! The sharing policies of NyxCache section 3.4. All work on the same gate and the same figures
//! ([`Want`](crate::Want), [`Seen`](crate::Seen)). What each has to control and to know (table 1):
//!
//! | | limit | qos | slowdown | share |
//! |---|---|---|---|---|
//! | request regulation (`nyx_gate::Budget`) | yes | yes | yes | yes |
//! | resource usage (`nyx_gate::Account`) | yes | for steps | for steps | yes |
//! | interference ([`interference`], [`contrast`]) | | yes | | by the donor's slowdown |
//! | application slowdown ([`alone`]) | | | yes | yes |
//!
//! [`interference`]: crate::mechanism::interference
//! [`contrast`]: crate::mechanism::contrast
//! [`alone`]: crate::mechanism::alone

pub mod limit;
pub mod qos;
pub mod share;
pub mod slowdown;
