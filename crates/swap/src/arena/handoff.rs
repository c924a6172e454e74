//! Values that one thread waits for from another, and a queue of them.
//!
//! By a lock and a condition, no more: channels of the standard library have state of each thread
//! that is taken down at its end, which takes a lock of the dynamic linker; a thread that loads a
//! library has that, and may wait for us.
//!
//! *Thread safety*: all of it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Values in their order.
#[derive(Debug)]
pub(super) struct Queue<T> {
    values: Mutex<VecDeque<T>>,
    one_came: Condvar,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Arc<Queue<T>> {
        Arc::new(Queue {
            values: Mutex::new(VecDeque::new()),
            one_came: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.values.lock().expect("nobody panics with it")
    }

    pub(super) fn put(&self, value: T) {
        self.lock().push_back(value);
        self.one_came.notify_one();
    }

    /// Puts it unless so many wait already; whether it did.
    pub(super) fn put_within(&self, value: T, most: usize) -> bool {
        let mut values = self.lock();
        let has_room = values.len() < most;
        if has_room {
            values.push_back(value);
            self.one_came.notify_one();
        }
        has_room
    }

    /// Waits for one.
    pub(super) fn take(&self) -> T {
        let is_empty = |values: &mut VecDeque<T>| values.is_empty();
        let values = self.one_came.wait_while(self.lock(), is_empty);
        let mut values = values.expect("nobody panics with it");
        values.pop_front().expect("it is not empty")
    }

    /// The same, for so long; none where none came.
    pub(super) fn take_within(&self, time: Duration) -> Option<T> {
        let is_empty = |values: &mut VecDeque<T>| values.is_empty();
        let waited = self
            .one_came
            .wait_timeout_while(self.lock(), time, is_empty);
        let (mut values, _) = waited.expect("nobody panics with it");
        values.pop_front()
    }
}
