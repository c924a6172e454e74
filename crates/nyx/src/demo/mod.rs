//! Nyx on a stage: an engine in this process, on a modelled device in real time, with tenants whose
//! clients call it directly. `nyx demo` and the examples stand on it.
//!
//! What it never does: open a socket or a file, or need any right. Its numbers are *emulated*,
//! unless the stage's device is memory as it is.
//!
//! * [`stage`]: the engine, its device and its clock.
//! * [`cast`]: the tenants and the acts. [`crew`]: the threads that play them.
//! * [`scores`]: what is measured. [`words`]: the same as sentences. [`layout`]: as lines.
//! * [`screen`]: a terminal. [`mod@show`]: the show from its beginning to its end.

mod cast;
mod crew;
mod layout;
mod scores;
mod screen;
mod show;
pub mod stage;
mod words;

pub(crate) use scores::rate;
pub use show::{Settings, show};
