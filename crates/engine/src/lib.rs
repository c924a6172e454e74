//! Runs: tenants, their budgets and their commands. What the NyxCache paper calls the controller
//! (section 3.1) and the cache instances that it governs.
//!
//! What it never does: open a socket, start a thread, read a clock, draw a random number. The
//! server drives it from threads, the simulator from a loop; both run the very same code.
//!
//! The road of a command through it: [`Engine::request`] binds a parsed command to its tenant and
//! hashes its key, the `warm_*` calls bring what it will touch near, [`Engine::execute`] does it. A
//! command whose tenant has had its part comes back as [`Outcome::Held`] and is asked again later;
//! nothing waits inside. One whose value is on a deep device and not here yet comes back as
//! [`Outcome::Away`].
//!
//! * [`config`]: what an engine is made from. [`session`]: what a connection may reach.
//! * [`tenant`]: one cache instance. [`tenants`]: their table, which only grows.
//! * [`counters`]: a tenant's figures. [`stats`]: as clients ask for them.
//! * [`control`]: the tick: accounts in, policy, budgets out.

mod change;
pub mod config;
pub mod control;
pub mod counters;
mod deep_stats;
mod durable;
mod engine;
mod ground;
mod lease;
mod meta;
mod retrieve;
mod scan;
pub mod session;
pub mod stats;
pub mod tenant;
pub mod tenants;
mod worker;

pub use config::{DeepShare, EngineConfig, EngineError, HoldAction, Ranges, TenantConfig};
pub use control::Policies;
pub use durable::Settled;
pub use engine::{Engine, Outcome, Request};
pub use nyx_store::{Journal, SyncMode, WriteMode};
pub use nyx_tier::{Away, Wait};
pub use session::{Binding, OpenDoor, Prefixes, Session, User, Users};
pub use tenant::Tenant;
pub use tenants::Tenants;
pub use worker::Worker;
