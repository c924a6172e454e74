//! Ids: small, dense integers that index arrays. They never carry meaning beyond identity.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $repr:ty, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $repr);

        impl $name {
            /// The id as an array index.
            #[inline]
            pub fn index(self) -> usize {
                usize::from(self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A tenant: one cache instance with its own keys, space and policy.
    TenantId, u16, "tenant "
);
id!(
    /// A worker: one data-path thread (or, in the simulator, one virtual one).
    WorkerId, u16, "worker "
);
id!(
    /// A device: one medium with its own profile and its own queue of costs.
    DeviceId, u8, "device "
);
