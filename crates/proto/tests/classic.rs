//! The classic commands, one table for each: what they parse to, and what is wrong with what does
//! not. The replies to refused requests are memcached 1.6.18's unless a comment says otherwise.
//!
//! What these tests never do: look inside the parser.

use nyx_proto::{
    ArithOp, Command, ErrorKind, Exptime, Get, LINE_LEN_MAX, Limits, Parse, Store, StoreVerb,
    TooLarge, parse,
};

/// The request that all of `input` is.
#[track_caller]
fn done(input: &[u8]) -> Command<'_> {
    match parse(input, &Limits::default()) {
        Parse::Done { command, used } if used == input.len() => command,
        other => panic!("{} is {other:?}", input.escape_ascii()),
    }
}

/// What is wrong with `input`, whether that is sent, and how many bytes are dropped.
#[track_caller]
fn bad(input: &[u8]) -> (ErrorKind, bool, usize) {
    match parse(input, &Limits::default()) {
        Parse::Bad { error, used } => (error.kind, !error.silent, used),
        other => panic!("{} is {other:?}", input.escape_ascii()),
    }
}

/// Each of `inputs` is refused as a whole, with an answer where `sent`.
#[track_caller]
fn all_bad(kind: ErrorKind, sent: bool, inputs: &[&str]) {
    for input in inputs {
        assert_eq!(
            bad(input.as_bytes()),
            (kind, sent, input.len()),
            "{input:?}"
        );
    }
}

fn get<'a>(first: &'a [u8], rest: &'a [u8], count: u32) -> Get<'a> {
    Get {
        first,
        rest,
        count,
        with_cas: false,
        touch: None,
    }
}

#[test]
fn get_and_its_kin() {
    let a = get(b"a", b"", 1);
    assert_eq!(done(b"get a\r\n"), Command::Get(a));
    assert_eq!(done(b"get a\n"), Command::Get(a));
    assert_eq!(done(b"  get   a  \r\n"), Command::Get(a));
    assert_eq!(
        done(b"gets a\r\n"),
        Command::Get(Get {
            with_cas: true,
            ..a
        })
    );
    let touch = Some(Exptime(-5));
    assert_eq!(done(b"gat -5 a\r\n"), Command::Get(Get { touch, ..a }));
    assert_eq!(
        done(b"gats -5 a\r\n"),
        Command::Get(Get {
            touch,
            with_cas: true,
            ..a
        })
    );
    let many = get(b"a", b"bb  ccc", 3);
    assert_eq!(done(b"get a bb  ccc \r\n"), Command::Get(many));
    assert_eq!(many.keys().collect::<Vec<_>>(), [&b"a"[..], b"bb", b"ccc"]);
    // Only the blank and the line end separate, in memcached too.
    assert_eq!(
        done(b"get a\tb\x00\rc\xff\r\n"),
        Command::Get(get(b"a\tb\x00\rc\xff", b"", 1))
    );
    all_bad(
        ErrorKind::Unknown,
        true,
        &["get\r\n", "get \r\n", "gets\n", "gat\r\n", "gat 1\r\n"],
    );
    all_bad(
        ErrorKind::Exptime,
        true,
        &["gat x a\r\n", "gats 1x a b\r\n", "gat - a\r\n"],
    );
    assert_eq!(
        parse(b"get a", &Limits::default()),
        Parse::Need { at_least: 6 }
    );
}

#[test]
fn keys_end_at_250_bytes() {
    let (long, too_long) = ("k".repeat(250), "k".repeat(251));
    let requests = |key: &str| {
        [
            format!("get {key}\r\n"),
            format!("get {key}\n"),
            format!("get a {key} b\r\n"),
            format!("gat 0 {key}\r\n"),
            format!("delete {key}\r\n"),
            format!("incr {key} 1\r\n"),
            format!("touch {key} 1\r\n"),
            format!("set {key} 0 0 1\r\nx\r\n"),
            format!("mg {key} v\r\n"),
            format!("ms {key} 1\r\nx\r\n"),
            format!("md {key}\r\n"),
            format!("ma {key}\r\n"),
            format!("me {key}\r\n"),
        ]
    };
    for request in requests(&long) {
        done(request.as_bytes());
    }
    // A storage request takes its data with it.
    for request in requests(&too_long) {
        all_bad(ErrorKind::Format, true, &[&request]);
    }
}

#[test]
fn stores() {
    let set = Store {
        key: b"a",
        data: b"x\r\ny",
        cas: 0,
        exptime: Exptime(-1),
        flags: u32::MAX,
        verb: StoreVerb::Set,
        noreply: false,
    };
    assert_eq!(
        done(b"set a 4294967295 -1 4\r\nx\r\ny\r\n"),
        Command::Store(set)
    );
    assert_eq!(
        done(b"set a 4294967295 -1 4 foo\nx\r\ny\r\n"),
        Command::Store(set)
    );
    let verbs = [
        ("add", StoreVerb::Add),
        ("replace", StoreVerb::Replace),
        ("append", StoreVerb::Append),
        ("prepend", StoreVerb::Prepend),
    ];
    for (name, verb) in verbs {
        let input = format!("{name} a 4294967295 -1 4 noreply\r\nx\r\ny\r\n");
        assert_eq!(
            done(input.as_bytes()),
            Command::Store(Store {
                verb,
                noreply: true,
                ..set
            })
        );
    }
    let cas = Store {
        verb: StoreVerb::Cas,
        cas: u64::MAX,
        data: b"",
        ..set
    };
    let input = b"cas a 4294967295 -1 0 18446744073709551615\r\n\r\n";
    assert_eq!(done(input), Command::Store(cas));
    let input = b"cas a 4294967295 -1 0 18446744073709551615 noreply\r\n\r\n";
    assert_eq!(
        done(input),
        Command::Store(Store {
            noreply: true,
            ..cas
        })
    );
}

#[test]
fn a_store_that_is_refused_takes_its_data_with_it_where_its_length_is_known() {
    let lengths_unknown = [
        "set a 0 0 x\r\n",
        "set a 0 0 -1\r\n",
        "set a 0 0 2147483646\r\n",
        "set a 0 0 99999999999999999999\r\n",
    ];
    all_bad(ErrorKind::Format, true, &lengths_unknown);
    all_bad(
        ErrorKind::Format,
        false,
        &["set a 0 0 x noreply\r\n", "set a 0 0 noreply\r\n"],
    );
    // memcached 1.6.18 leaves the data to be taken for requests; its later versions do not.
    all_bad(
        ErrorKind::Format,
        true,
        &[
            "set a x 0 1\r\n1\r\n",
            "set a 4294967296 0 1\r\n1\r\n",
            "set a -1 0 1\r\n1\r\n",
            "set a 0 x 1\r\n1\r\n",
            "cas a 0 0 1 x\r\n1\r\n",
            "cas a 0 0 1 -1\r\n1\r\n",
        ],
    );
    all_bad(ErrorKind::Format, false, &["set a x 0 1 noreply\r\n1\r\n"]);
    let wrong_count = [
        "set a 0 0\r\n",
        "set a 0 0 1 noreply x\r\n",
        "cas a 0 0 1\r\n",
        "set\r\n",
        "add a\r\n",
    ];
    all_bad(ErrorKind::Unknown, true, &wrong_count);
}

#[test]
fn data_must_end_where_its_length_says() {
    all_bad(
        ErrorKind::DataChunk,
        true,
        &["set a 0 0 3\r\nabcde", "set a 0 0 0\r\nab"],
    );
    all_bad(
        ErrorKind::DataChunk,
        true,
        &["set a 0 0 3\r\nabc\nd", "ms a 3 q\r\nabcde"],
    );
    all_bad(
        ErrorKind::DataChunk,
        false,
        &["set a 0 0 3 noreply\r\nabcde"],
    );
    // What is left of the data is the next request, as in memcached.
    assert_eq!(
        bad(b"set a 0 0 3\r\nabcdef\r\n"),
        (ErrorKind::DataChunk, true, 18)
    );
    assert_eq!(
        parse(b"set a 0 0 100\r\nabc", &Limits::default()),
        Parse::Need { at_least: 15 + 102 }
    );
}

#[test]
fn what_is_too_large_is_skipped_and_never_awaited() {
    let limits = Limits {
        item_len_max: 10,
        ..Limits::default()
    };
    let too_large = |input| match parse(input, &limits) {
        Parse::Done {
            command: Command::TooLarge(too_large),
            used,
        } => (too_large, used),
        other => panic!("{other:?}"),
    };
    let of_set = TooLarge {
        key: b"a",
        base64: false,
        drop_old: true,
        noreply: false,
        data_len: 11,
    };
    assert_eq!(too_large(b"set a 0 0 11\r\n"), (of_set, 14 + 13));
    assert_eq!(too_large(b"ms a 11\r\n"), (of_set, 9 + 13));
    assert!(too_large(b"ms Zm9v 11 b q\r\n").0.base64);
    let of_add = TooLarge {
        drop_old: false,
        noreply: true,
        ..of_set
    };
    assert_eq!(too_large(b"add a 0 0 11 noreply\r\n"), (of_add, 22 + 13));
    assert!(matches!(
        parse(b"set a 0 0 10\r\n", &limits),
        Parse::Need { at_least: 26 }
    ));
    let input = b"set a 0 0 2147483645\r\n";
    assert_eq!(too_large(input).1, input.len() + 2_147_483_647);
}

#[test]
fn delete_takes_the_zero_of_old_clients() {
    for (input, noreply) in [
        ("delete a\r\n", false),
        ("delete a 0\r\n", false),
        ("delete a noreply\r\n", true),
        ("delete a 0 noreply\r\n", true),
    ] {
        assert_eq!(
            done(input.as_bytes()),
            Command::Delete { key: b"a", noreply }
        );
    }
    assert_eq!(
        done(b"delete noreply\n"),
        Command::Delete {
            key: b"noreply",
            noreply: false
        }
    );
    let usage = [
        "delete a 5\r\n",
        "delete a noreply 0\r\n",
        "delete a 0 0\r\n",
    ];
    all_bad(ErrorKind::DeleteUsage, true, &usage);
    all_bad(ErrorKind::DeleteUsage, false, &["delete a 5 noreply\r\n"]);
    all_bad(
        ErrorKind::Unknown,
        true,
        &["delete\r\n", "delete a 0 noreply x\r\n"],
    );
}

#[test]
fn incr_decr_and_touch() {
    let incr = |op, delta, noreply| Command::Arith {
        key: b"a",
        op,
        delta,
        noreply,
    };
    assert_eq!(done(b"incr a 1\r\n"), incr(ArithOp::Incr, 1, false));
    assert_eq!(
        done(b"incr a 18446744073709551615 x\n"),
        incr(ArithOp::Incr, u64::MAX, false)
    );
    assert_eq!(done(b"decr a 0 noreply\r\n"), incr(ArithOp::Decr, 0, true));
    all_bad(
        ErrorKind::Delta,
        true,
        &["incr a -1\r\n", "decr a x\r\n", "incr a 1.5 0\r\n"],
    );
    all_bad(
        ErrorKind::Delta,
        false,
        &["incr a noreply\r\n", "decr a x noreply\r\n"],
    );
    let touch = Command::Touch {
        key: b"a",
        exptime: Exptime(-1),
        noreply: true,
    };
    assert_eq!(done(b"touch a -1 noreply\r\n"), touch);
    all_bad(ErrorKind::Exptime, true, &["touch a x\r\n"]);
    all_bad(ErrorKind::Exptime, false, &["touch a noreply\r\n"]);
    let wrong_count = [
        "incr a\r\n",
        "decr\r\n",
        "touch a 1 2 3\r\n",
        "incr a 1 2 3\r\n",
    ];
    all_bad(ErrorKind::Unknown, true, &wrong_count);
}

#[test]
fn commands_without_a_key() {
    let flush = |delay, noreply| Command::FlushAll {
        delay: Exptime(delay),
        noreply,
    };
    assert_eq!(done(b"flush_all\r\n"), flush(0, false));
    assert_eq!(done(b"flush_all noreply\r\n"), flush(0, true));
    assert_eq!(done(b"flush_all -10\r\n"), flush(-10, false));
    assert_eq!(done(b"flush_all 10 noreply\r\n"), flush(10, true));
    all_bad(ErrorKind::Exptime, true, &["flush_all x\r\n"]);
    all_bad(ErrorKind::Unknown, true, &["flush_all 1 2 3\r\n"]);
    assert_eq!(done(b"version\r\n"), Command::Version);
    assert_eq!(done(b"quit\r\n"), Command::Quit);
    assert_eq!(done(b"stats\r\n"), Command::Stats { arg: b"" });
    assert_eq!(
        done(b"stats  detail on \r\n"),
        Command::Stats { arg: b"detail on" }
    );
    assert_eq!(
        done(b"verbosity 2\r\n"),
        Command::Verbosity {
            level: 2,
            noreply: false
        }
    );
    all_bad(ErrorKind::Format, true, &["verbosity x\r\n"]);
    all_bad(ErrorKind::Format, false, &["verbosity noreply\r\n"]);
    all_bad(
        ErrorKind::Unknown,
        true,
        &["verbosity\r\n", "verbosity 1 2 3\r\n"],
    );
    assert_eq!(done(b"shutdown\r\n"), Command::Shutdown { graceful: false });
    assert_eq!(
        done(b"shutdown graceful\r\n"),
        Command::Shutdown { graceful: true }
    );
    all_bad(ErrorKind::ShutdownMode, true, &["shutdown now\r\n"]);
    let memlimit = |mib, noreply| Command::CacheMemlimit { mib, noreply };
    assert_eq!(done(b"cache_memlimit 64\r\n"), memlimit(64, false));
    assert_eq!(done(b"cache_memlimit 8 noreply\r\n"), memlimit(8, true));
    all_bad(ErrorKind::MemlimitTooSmall, true, &["cache_memlimit 7\r\n"]);
    all_bad(
        ErrorKind::MemlimitNotMib,
        true,
        &["cache_memlimit 1000000001\r\n"],
    );
    all_bad(
        ErrorKind::Unknown,
        true,
        &["cache_memlimit\r\n", "cache_memlimit x\r\n"],
    );
}

#[test]
fn what_is_not_spoken_here() {
    let unknown = [
        "\r\n",
        "\n",
        "  \r\n",
        "GET a\r\n",
        "getx a\r\n",
        "g\r\n",
        "slabs x\r\n",
        "lru x\r\n",
    ];
    all_bad(ErrorKind::Unknown, true, &unknown);
    all_bad(
        ErrorKind::WatchNotAllowed,
        true,
        &["watch\r\n", "watch fetchers\r\n"],
    );
    all_bad(ErrorKind::SlabReassign, true, &["slabs reassign 1 2\r\n"]);
    all_bad(ErrorKind::Crawler, true, &["lru_crawler metadump all\r\n"]);
    all_bad(
        ErrorKind::Http,
        true,
        &["GET / HTTP/1.1\r\n", "POST /x HTTP/2 \n"],
    );
}

#[test]
fn lines_end_or_the_connection_does() {
    let limits = Limits::default();
    let close_after = |used| Parse::Bad {
        error: ErrorKind::LineTooLong.into(),
        used,
    };
    let stats = |len: usize| [b"stats ", vec![b'x'; len - 6].as_slice()].concat();
    assert!(matches!(
        parse(&stats(LINE_LEN_MAX - 1), &limits),
        Parse::Need { .. }
    ));
    assert_eq!(
        parse(&stats(LINE_LEN_MAX), &limits),
        close_after(LINE_LEN_MAX)
    );
    for verb in ["get", "gets", "gat", "gats"] {
        let mut line = format!("{verb} 1");
        while line.len() < limits.line_len_max - 100 {
            line.push_str(" some_key");
        }
        assert!(
            matches!(parse(line.as_bytes(), &limits), Parse::Need { .. }),
            "{verb}"
        );
        done((line.clone() + "\r\n").as_bytes());
        line.push_str(&" key".repeat(100));
        let too_long = close_after(limits.line_len_max);
        assert_eq!(parse(line.as_bytes(), &limits), too_long, "{verb}");
        assert_eq!(
            parse((line + "\r\n").as_bytes(), &limits),
            too_long,
            "{verb}"
        );
    }
    assert!(ErrorKind::LineTooLong.line().ends_with(b"too long\r\n"));
}
