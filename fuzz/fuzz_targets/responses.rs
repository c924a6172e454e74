//! The parsers of answers.
//!
//! What it never does: know a property. It is `nyx_proto::fuzzing::check_responses`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nyx_proto::fuzzing::check_responses(bytes));
