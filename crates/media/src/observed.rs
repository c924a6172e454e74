//! Who is told of the DRAM that indexes read: a simulated processor
//! ([`crate::pmem::distant::Machine`]). Without the feature `simulate` nobody is, and reads are
//! what they would be without this.
//!
//! What it never does: change what is read.
//!
//! *Thread safety*: a thread has its own observer.

use std::sync::Arc;

/// Whether anybody is told.
pub const IS_ON: bool = cfg!(feature = "simulate");

/// Hears of reads.
pub trait Observer {
    /// So many bytes from address `at` on are about to be read.
    fn read(&self, at: usize, bytes: usize);

    /// The same are asked for.
    fn fetch(&self, at: usize, bytes: usize);

    /// The same are asked for, to be looked at once.
    fn fetch_once(&self, at: usize, bytes: usize);
}

#[cfg(feature = "simulate")]
mod told {
    use super::{Arc, Observer};
    use std::cell::RefCell;

    thread_local! {
        static OBSERVER: RefCell<Option<Arc<dyn Observer>>> = const { RefCell::new(None) };
    }

    /// From now on this thread's reads are told to `observer`.
    pub fn observe(observer: Option<Arc<dyn Observer>>) {
        OBSERVER.set(observer);
    }

    fn tell<T>(what: &[T], each: impl FnOnce(&dyn Observer, usize, usize)) {
        OBSERVER.with_borrow(|observer| {
            if let Some(observer) = observer {
                each(&**observer, what.as_ptr().addr(), size_of_val(what));
            }
        });
    }

    /// `what` is about to be read.
    pub fn read<T>(what: &[T]) {
        tell(what, |observer, at, bytes| observer.read(at, bytes));
    }

    /// `what` is asked for.
    pub fn fetch<T>(what: &[T]) {
        tell(what, |observer, at, bytes| observer.fetch(at, bytes));
    }

    /// `what` is asked for, to be looked at once.
    pub fn fetch_once<T>(what: &[T]) {
        tell(what, |observer, at, bytes| observer.fetch_once(at, bytes));
    }
}

#[cfg(not(feature = "simulate"))]
mod told {
    use super::{Arc, Observer};

    /// Nobody is told.
    pub fn observe(_: Option<Arc<dyn Observer>>) {}

    /// Nobody is told.
    #[inline(always)]
    pub fn read<T>(_: &[T]) {}

    /// Nobody is told.
    #[inline(always)]
    pub fn fetch<T>(_: &[T]) {}

    /// Nobody is told.
    #[inline(always)]
    pub fn fetch_once<T>(_: &[T]) {}
}

pub use told::*;

#[cfg(all(test, feature = "simulate"))]
mod tests {
    use super::*;
    use crate::pmem::{Dram, Pmem};
    use std::sync::Mutex;

    #[derive(Default)]
    struct Heard(Mutex<Vec<(char, usize)>>);

    impl Observer for Heard {
        fn read(&self, _: usize, bytes: usize) {
            self.0.lock().expect("no panic").push(('r', bytes));
        }

        fn fetch(&self, _: usize, bytes: usize) {
            self.0.lock().expect("no panic").push(('f', bytes));
        }

        fn fetch_once(&self, _: usize, bytes: usize) {
            self.0.lock().expect("no panic").push(('o', bytes));
        }
    }

    #[test]
    fn a_thread_is_heard_from_when_it_asks_until_it_asks_no_more() {
        let (memory, heard) = (Dram::new(4096).expect("memory"), Arc::new(Heard::default()));
        let use_it = || {
            memory.fetch(64, 128);
            memory.fetch(u64::MAX - 7, 8);
            memory.words(64, 2);
            memory.fetch_once(64, 64);
        };
        use_it();
        observe(Some(heard.clone()));
        use_it();
        std::thread::scope(|scope| scope.spawn(use_it).join()).expect("no panic");
        observe(None);
        use_it();
        assert_eq!(
            *heard.0.lock().expect("no panic"),
            [('f', 128), ('r', 16), ('o', 64)]
        );
    }
}
