//! Engine P of `nyx swap`: a library that is loaded before a program's own.
