//! How long parsing and answering take, in nanoseconds each: the median of some runs over a batch
//! of different requests. `cargo bench -p nyx-proto`.
//!
//! What it never does: fail; it is a ruler and no test.

#![allow(clippy::disallowed_methods, reason = "a ruler has a clock of its own")]

use std::hint::black_box;
use std::time::Instant;

use nyx_proto::reply::{self, MetaFacts};
use nyx_proto::{Command, Exptime, Limits, Out, Parse, parse, request, response};

/// Requests in one buffer, as a deep pipeline fills it.
const BATCH: usize = 64;
const RUNS: usize = 201;
const BATCHES_PER_RUN: usize = 50;

/// Appends one request for a key.
type Write = fn(&mut Vec<u8>, &[u8]);

fn main() {
    let keys: Vec<Vec<u8>> = (0..BATCH)
        .map(|i| format!("user:profile:{i:06}:abcdefghijkl").into_bytes())
        .collect();
    assert!(keys.iter().all(|key| key.len() == 32));
    let shapes: [(&str, Write); 7] = [
        ("get, 32 B key", request::get),
        ("gets, 32 B key", request::gets),
        ("get, 16 keys of 32 B", |out, key| {
            request::multiget(out, [key; 16])
        }),
        ("set, 100 B", |out, key| {
            request::set(out, key, 0, Exptime(0), &[b'x'; 100])
        }),
        ("delete", request::delete),
        ("mg v", |out, key| request::meta_get(out, key, b"v")),
        ("mg k f c t v O", |out, key| {
            request::meta_get(out, key, b"k f c t v O17")
        }),
    ];
    for (name, write) in &shapes {
        let mut input = Vec::new();
        keys.iter().for_each(|key| write(&mut input, key));
        report(&format!("parse {name}"), || parse_all(&input));
    }
    replies(&keys);
}

fn parse_all(input: &[u8]) {
    let limits = black_box(Limits::default());
    let mut rest = black_box(input);
    while let Parse::Done { command, used } = parse(rest, &limits) {
        black_box(&command);
        rest = &rest[used..];
    }
    assert!(rest.is_empty(), "not parsed: {}", rest.escape_ascii());
}

fn replies(keys: &[Vec<u8>]) {
    let mut out = Out::new();
    let value = [b'x'; 100];
    report("reply VALUE, 100 B, END", || {
        for key in keys {
            reply::value_header(&mut out, black_box(key), 0, value.len(), None);
            out.put(&value);
            reply::crlf(&mut out);
            reply::end(&mut out);
        }
        out.consume(black_box(out.len()));
    });
    report("reply STORED", || {
        keys.iter().for_each(|_| reply::stored(black_box(&mut out)));
        out.consume(out.len());
    });
    let Parse::Done {
        command: Command::MetaGet(meta),
        ..
    } = parse(b"mg key k f c t v O17\r\n", &Limits::default())
    else {
        unreachable!("a fixed request parses")
    };
    let facts = MetaFacts {
        len: value.len(),
        cas: 123_456,
        ..MetaFacts::default()
    };
    report("reply VA k f c t O, 100 B", || {
        for _ in keys {
            reply::meta_value(&mut out, black_box(&meta.head), &facts);
            out.put(&value);
            reply::crlf(&mut out);
        }
        out.consume(black_box(out.len()));
    });
    for key in keys {
        reply::value_header(&mut out, key, 0, value.len(), None);
        out.put(&value);
        reply::crlf(&mut out);
        reply::end(&mut out);
    }
    let answers = out.pending().to_vec();
    report("read VALUE, 100 B, END", || {
        let mut rest = black_box(&answers[..]);
        while let response::Parse::Done { response, used } = response::parse(rest) {
            black_box(&response);
            rest = &rest[used..];
        }
    });
}

fn report(name: &str, mut batch: impl FnMut()) {
    let mut ns: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            (0..BATCHES_PER_RUN).for_each(|_| batch());
            start.elapsed().as_nanos() as f64 / (BATCHES_PER_RUN * BATCH) as f64
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    println!(
        "{name:28} median {:6.1} ns, best {:6.1} ns",
        ns[RUNS / 2],
        ns[0]
    );
}
