//! The sharing policies of NyxCache section 3.4.

pub mod limit;
pub mod qos;
pub mod share;
pub mod slowdown;
