//! What policies are made of (NyxCache section 3.3): windows of what tenants did, limits that move
//! by steps, and the two analyses, each a state machine that is stepped with its policy.
//!
//! * [`alone`]: how much faster a tenant would be alone.
//! * [`interference`]: who hurts a victim most.
//! * [`window`]: what a tenant did between two moments.
//! * [`throttle`]: a tenant's limit as policies move it.

pub mod alone;
pub mod interference;
pub mod throttle;
pub mod window;
