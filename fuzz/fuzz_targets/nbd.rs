//! The handshake and the requests of NBD.
//!
//! What it never does: know a property. It is `nyx_block::wire::fuzzing::check_nbd`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nyx_block::wire::fuzzing::check_nbd(bytes));
