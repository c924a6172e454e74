//! A tenant's figures: one set per worker, written without a lock, added up when somebody asks.

use nyx_base::Counter;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one (tenant, worker). Names are memcached's where it has one.
        /// *Thread safety*: one writer, many readers.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub(crate) $name: Counter,)* }

        /// A reading of one or the sum of several [`Counters`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64,)* }

        impl Counts {
            /// Adds a reading of `counters`.
            pub fn add(&mut self, counters: &Counters) {
                $(self.$name += counters.$name.get();)*
            }

            /// Adds another reading.
            pub fn merge(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Keys asked for.
    cmd_get,
    /// Stores of any kind.
    cmd_set,
    /// `flush_all`.
    cmd_flush,
    /// Touches, also as part of a get.
    cmd_touch,
    /// Meta commands.
    cmd_meta,
    /// Scans.
    cmd_scan,
    /// Leases of device time for accesses that are made elsewhere.
    cmd_lease,
    /// Items that scans answered.
    scan_items,
    /// Keys asked for and found.
    get_hits,
    /// Keys asked for and not found.
    get_misses,
    /// Deletes of something.
    delete_hits,
    /// Deletes of nothing.
    delete_misses,
    /// Increments of something.
    incr_hits,
    /// Increments of nothing.
    incr_misses,
    /// Decrements of something.
    decr_hits,
    /// Decrements of nothing.
    decr_misses,
    /// Compare-and-swaps that swapped.
    cas_hits,
    /// Compare-and-swaps of nothing.
    cas_misses,
    /// Compare-and-swaps that found another value.
    cas_badval,
    /// Touches of something.
    touch_hits,
    /// Touches of nothing.
    touch_misses,
    /// Logins tried.
    auth_cmds,
    /// Logins refused.
    auth_errors,
    /// Stores that were longer than an item may be.
    store_too_large,
    /// Stores for which no room could be made.
    store_no_memory,
    /// Requests answered `busy`.
    rejected,
}
