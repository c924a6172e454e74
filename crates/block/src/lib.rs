//! Exports: two devices as one block device, a cache of an image, for clients of NBD.
//!
//! The *image* lies on a deep device as it is, without a byte of ours in it; a *fast* device, which
//! is mapped memory that survives, has copies of its lines and what was not written back yet.
//!
//! * [`cache`]: who has what, and in which order things are done; driven by plain calls.
//! * [`mode`], [`geometry`], [`lines`], [`record`]: its words. [`route`]: which device reads.
//! * [`fast`]: the fast device; [`superblock`]: what it says of itself. [`image`]: whose it is;
//!   [`mod@attach`]: whether it may be used.
//! * [`wire`]: the protocol, bytes in and bytes out. [`serve`]: sockets and the loop.
//!
//! What this room never does: write into the image anything but what clients wrote there.

pub mod attach;
pub mod cache;
pub mod fast;
pub mod geometry;
pub mod image;
pub mod lines;
pub mod mode;
pub mod record;
pub mod route;
pub mod serve;
pub mod superblock;
pub mod wire;

pub use attach::{AttachError, Attached, Terms, attach, close};
pub use cache::{Cache, Command, Figures, Outcome, Piece, Refusal, Verb};
pub use fast::{Fast, MappedFast, NotDurable};
pub use geometry::{BadGeometry, Geometry};
pub use image::Image;
pub use lines::LINE_DRAM_BYTES;
pub use mode::Mode;
pub use route::{Costs, Router};
pub use serve::{Config, ServeError, Server, measure};
