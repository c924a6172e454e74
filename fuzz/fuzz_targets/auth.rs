//! The parser of logins.
//!
//! What it never does: know a property. It is `nyx_proto::fuzzing::check_auth`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nyx_proto::fuzzing::check_auth(bytes));
