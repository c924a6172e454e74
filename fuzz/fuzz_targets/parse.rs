//! The parser of requests, the encoder, and the meta replies.
//!
//! What it never does: know a property. It is `nyx_proto::fuzzing::check_parse`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nyx_proto::fuzzing::check_parse(bytes));
