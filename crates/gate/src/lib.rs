//! The toll: every access to a medium passes a [`Lane`], which charges it to its tenant in device
//! time and makes the tenant wait where it has had its part. This room is what the NyxCache paper
//! calls the Nyx library (sections 3.1 and 3.3).
//!
//! What it never does: decide how much a tenant may have (that is `nyx-policy`), block a thread for
//! longer than [`SPIN_MAX`], or offer a way to a medium that is not metered.
//!
//! * [`cost`]: the price of an operation, `1/MaxIOPS(op, size)`, as a table.
//! * [`account`]: what a (tenant, worker, device) has used; written by the worker, read by anyone.
//! * [`budget`]: what a (tenant, device) may use; written by the controller, leased by the workers.
//! * [`lane`]: an access: gate, charge, copy.

pub mod account;
pub mod budget;
pub mod cost;
pub mod lane;
mod sync;

pub use account::{Account, Usage};
pub use budget::{Budget, DELAY_INFINITE, DELAY_UNIT, Limit, Rate};
pub use cost::CostTable;
pub use lane::{Device, Draw, Gate, Lane, Pace, SPIN_MAX, TURN, Toll, Tolls};
pub use nyx_media::Op;
