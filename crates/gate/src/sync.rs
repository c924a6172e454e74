//! The one switch between real atomics and locks and loom's, so that a model checker can drive the
//! very code that paces. It adds nothing of its own.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64},
};
#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard, RwLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64},
};
