//! Two as one: a tenant's fast device, which is mapped, and its deep one, a device of blocks that
//! is read and written by requests, behind one metered way (docs/decisions/0011-two-tiers.md).
//!
//! * [`Deep`]: a deep device as all tenants on it share it: its file, its prices, how it is doing.
//! * [`Costs`]: what requests take of it. [`DeepProfile`]: that, measured once and kept.
//! * [`Hand`]: one worker's queues to it: fetches of what somebody waits for, and writes that
//!   nobody does; the two never share a queue.
//! * [`Pair`]: who decides where a request goes that either device could serve.
//! * [`Tolls`], [`Lane`]: a worker's metered ways to both devices of each tenant.
//!
//! What it never does: know of keys, items or segments; retry what a device refused; wait.
//!
//! Source: Orthus, section 4; Ultraswap section 3.1 for the queues.

mod costs;
mod device;
mod hand;
mod lane;
mod pair;
mod profile;

pub use costs::Costs;
pub use device::{Deep, DeepFigures, Drill};
pub use hand::{Away, Done, Hand, Landing, Looked, Wait, What};
pub use lane::{Lane, Tolls};
pub use nyx_policy::nhc::{Bounds, Nhc, Side};
pub use pair::Pair;
pub use profile::DeepProfile;
