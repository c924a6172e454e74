//! What policies are made of (NyxCache section 3.3): windows of what tenants did, limits that move
//! by steps, and the analyses, each a state machine that is stepped with its policy.
//!
//! * [`alone`]: how much faster a tenant would be alone.
//! * [`queueing`]: the same, and what there is to divide, where a device tells of its requests.
//! * [`forecast`]: how long a newcomer's accesses would take.
//! * [`interference`]: who hurts a victim most.
//! * [`contrast`]: who is there when a victim suffers and is not when it does not.
//! * [`window`]: what a tenant did between two moments.
//! * [`throttle`]: a tenant's limit as policies move it.

pub mod alone;
pub mod contrast;
pub mod forecast;
pub mod interference;
pub mod queueing;
pub mod throttle;
pub mod window;
