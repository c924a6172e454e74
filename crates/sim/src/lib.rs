//! Dreams: virtual clock, modelled media, workloads, and the figures that come out of them.
//!
//! What it never does: open a socket, or look at a real clock outside of [`emulated`].
//!
//! * [`workload`]: what clients ask for, generated or recorded.
//! * [`client`]: a closed-loop client of an engine, without a socket.
//! * [`modelled`]: a device model and its prices.
//! * [`scenario`]: an engine, its clients and a modelled device in virtual time; [`clock`] is
//!   theirs.
//! * [`library`]: the same scenarios without an engine, on the model that has tails.
//! * [`pair`]: two devices as one.
//! * [`paging`]: programs in less memory than they use.
//! * [`emulated`]: the same scenarios in real time, on threads.

pub mod client;
pub mod clock;
pub mod emulated;
pub mod library;
pub mod modelled;
pub mod paging;
pub mod pair;
pub mod scenario;
pub mod workload;
