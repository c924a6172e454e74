//! Serves: threads, sockets, the event loops. The only room with sockets.
//!
//! ```text
//!   listeners -> acceptor --round robin--> worker 0 ... worker n   (an epoll loop each)
//!                                             |  reads, parses a batch, prefetches, executes,
//!                                             |  writes once per connection
//!                                           engine  <-- controller (steps the policy)
//! ```
//!
//! What it never does: decide anything about a tenant, parse a byte itself, block a worker for a
//! tenant's sake (a held request parks its connection), use an async runtime on the data path.
//!
//! * [`listen`]: doors, bound.
//! * [`conn`]: a connection and its buffers.
//! * [`worker`]: the event loop; [`batch`]: what happens between reading and writing.
//! * [`held`]: connections whose tenant must wait.
//! * [`sync`]: who makes changes durable.
//! * [`null`]: the same loop with a canned answer, the limit of what a server can reach.

mod away;
mod batch;
mod conn;
mod group;
mod held;
pub mod listen;
mod null;
mod running;
mod shared;
mod sync;
mod timer;
mod worker;

pub use listen::{Address, Door};
pub use running::{Answer, Bound, Running, ServerConfig, ServerError, bind, tick};
