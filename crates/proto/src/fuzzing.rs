//! What must hold for any bytes: the fuzz targets are thin wrappers around the `check_*` functions
//! here, and where no fuzzer is at hand [`soup`] feeds them.
//!
//! What it never does: run outside of tests. Each check panics where its property does not hold.

use nyx_base::Rng;

use crate::auth::{self, Auth};
use crate::reply::{self, MetaFacts, MetaStatus};
use crate::response::{self, Skim, Step};
use crate::{Command, KeyBuf, Limits, Out, Parse, parse, request};

/// Inputs longer than this are cut at some places only: all of them would cost its square.
const CUT_ALL_LEN_MAX: usize = 256;

/// Small limits, so that short inputs reach them.
const LIMITS_SMALL: Limits = Limits {
    key_len_max: 12,
    item_len_max: 16,
    line_len_max: 2100,
};

/// The parser of requests: it never panics, always makes progress, and gives the same requests
/// however their bytes arrive; each request is read back from what the encoder makes of it.
pub fn check_parse(bytes: &[u8]) {
    for limits in [Limits::default(), LIMITS_SMALL] {
        let mut input = bytes;
        loop {
            let whole = parse(input, &limits);
            let used = match whole {
                Parse::Need { at_least } => {
                    assert!(at_least > input.len(), "asks for bytes that are there");
                    break;
                }
                Parse::Done { command, used } => {
                    let skips = matches!(command, Command::TooLarge(_));
                    assert!(
                        skips || used <= input.len(),
                        "{command:?} uses bytes to come"
                    );
                    check_command(&command, &limits);
                    used
                }
                Parse::Bad { used, .. } => used,
            };
            assert!(used > 0, "no progress at {whole:?}");
            for cut in cuts(used.min(input.len())) {
                match parse(&input[..cut], &limits) {
                    Parse::Need { at_least } => {
                        assert!(
                            cut < at_least && at_least <= used,
                            "{cut} of {used}: {at_least}"
                        );
                    }
                    early => assert_eq!(early, whole, "cut at {cut} of {used}"),
                }
            }
            input = &input[used.min(input.len())..];
        }
    }
}

/// One request: it can be written and read back, and every answer to it can be written.
fn check_command(command: &Command<'_>, limits: &Limits) {
    let mut first = Vec::new();
    request::encode(&mut first, command);
    let again = match parse(&first, limits) {
        Parse::Done { command, .. } => command,
        other => panic!(
            "{command:?} is written as {} and read as {other:?}",
            first.escape_ascii()
        ),
    };
    let mut second = Vec::new();
    request::encode(&mut second, &again);
    assert_eq!(
        first.escape_ascii().to_string(),
        second.escape_ascii().to_string()
    );
    assert_eq!(command.first_key(), again.first_key());
    if let (Some(key), true) = (command.first_key(), command.is_base64()) {
        assert!(
            !KeyBuf::default().decode(key).is_empty(),
            "{command:?} has no key"
        );
    }
    if let Command::Get(get) = command {
        assert_eq!(get.keys().count(), get.count as usize);
        assert!(
            get.keys()
                .all(|key| (1..=limits.key_len_max).contains(&key.len()))
        );
    }
    check_meta_replies(command);
}

/// Every answer to a meta request is one that a client understands.
fn check_meta_replies(command: &Command<'_>) {
    let head = match command {
        Command::MetaGet(meta) => &meta.head,
        Command::MetaSet(meta) => &meta.head,
        Command::MetaDelete(meta) => &meta.head,
        Command::MetaArith(meta) => &meta.head,
        _ => return,
    };
    let facts = MetaFacts {
        stale: true,
        won: true,
        won_before: true,
        ..MetaFacts::default()
    };
    let mut out = Out::new();
    reply::meta_value(&mut out, head, &facts);
    reply::crlf(&mut out);
    reply::meta_hit(&mut out, head, &facts);
    reply::meta_miss(&mut out, head);
    reply::meta_stored(&mut out, head, 1, 2);
    reply::meta_store_failed(&mut out, head, MetaStatus::NotStored, 2);
    reply::meta_deleted(&mut out, head);
    reply::meta_arith(&mut out, head, u64::MAX, &facts);
    reply::meta_status(&mut out, head, MetaStatus::Exists);
    let quiet_answers = if head.is_quiet() { 0 } else { 4 };
    assert_eq!(count_responses(out.pending()), 4 + quiet_answers);
}

fn count_responses(mut input: &[u8]) -> usize {
    let mut count = 0;
    while let response::Parse::Done { used, .. } = response::parse(input) {
        input = &input[used..];
        count += 1;
    }
    assert!(input.is_empty(), "no answer: {}", input.escape_ascii());
    count
}

/// The parser of logins: as [`check_parse`].
pub fn check_auth(bytes: &[u8]) {
    let whole = auth::parse(bytes);
    let used = match whole {
        Auth::Need { at_least } => return assert!(at_least > bytes.len()),
        Auth::Login { used, .. } => {
            assert!(used <= bytes.len());
            used
        }
        Auth::Bad { used, .. } => used,
    };
    assert!(used > 0);
    for cut in cuts(used.min(bytes.len())) {
        match auth::parse(&bytes[..cut]) {
            Auth::Need { at_least } => assert!(cut < at_least && at_least <= used),
            early => assert_eq!(early, whole, "cut at {cut} of {used}"),
        }
    }
}

/// The parsers of answers: they never panic, always make progress, and agree with each other
/// however the bytes arrive.
pub fn check_responses(bytes: &[u8]) {
    let mut input = bytes;
    while let response::Parse::Done { response, used } = response::parse(input) {
        assert!(used > 0 && used <= input.len());
        for cut in cuts(used) {
            match response::parse(&input[..cut]) {
                response::Parse::Need { at_least } => assert!(cut < at_least && at_least <= used),
                early => panic!("cut at {cut} of {used}: {early:?}"),
            }
            assert_eq!(
                skim_in_two(&input[..used], cut),
                Some(response.kind),
                "cut at {cut}"
            );
        }
        input = &input[used..];
    }
}

/// The answer that `input` is, arriving in two pieces.
fn skim_in_two(input: &[u8], cut: usize) -> Option<response::Kind> {
    let mut skim = Skim::default();
    let used = match skim.next(&input[..cut]) {
        Step::Need { used } => used,
        other => panic!("whole after {cut} bytes: {other:?}"),
    };
    match skim.next(&input[used..]) {
        Step::Done { kind, used: rest } if used + rest == input.len() => Some(kind),
        _ => None,
    }
}

/// Where to cut a request of `len` bytes: everywhere, or where it is long at its ends and at some
/// places between.
fn cuts(len: usize) -> impl Iterator<Item = usize> {
    let stride = if len <= CUT_ALL_LEN_MAX { 1 } else { len / 16 };
    let ends = if stride == 1 { 0 } else { 64 };
    (0..ends)
        .chain((ends..len.saturating_sub(ends)).step_by(stride))
        .chain(len - ends..len)
}

/// What requests and answers are made of, with the mistakes that clients make.
#[rustfmt::skip]
const INGREDIENTS: &[&[u8]] = &[
    b"get ", b"gets ", b"gat 10 ", b"gats 0 ", b"set ", b"add ", b"replace ", b"append ",
    b"prepend ", b"cas ", b"delete ", b"incr ", b"decr ", b"touch ", b"flush_all ", b"verbosity ",
    b"version\r\n", b"quit\r\n", b"stats ", b"shutdown ", b"cache_memlimit ", b"watch ",
    b"slabs reassign 1 2\r\n", b"lru_crawler metadump all\r\n", b"GET / HTTP/1.1\r\n", b"mg ",
    b"scan ", b"from ", b"after ", b"to ", b"before ", b"down ", b"limit ", b"keys ", b"cas ",
    b"base64 ", b"* ", b"KEY ", b"MORE ", b"lease a 1 0 0 0 0\r\n", b"LEASE ", b"free ",
    b"ms ", b"md ", b"ma ", b"mn\r\n", b"me ", b"noreply\r\n", b"set k 0 0 3\r\nabc\r\n", b"a ",
    b"key ", b"Zm9v ", b"a_key_beyond_the_small_limit ", b"0 ", b"1 ", b"3 ", b"17 ", b"-1 ",
    b"2592001 ",
    b"4294967296 ", b"18446744073709551616 ", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b" ", b"\0",
    b"abc\r\n", b"b ", b"c ", b"f ", b"h ", b"k ", b"l ", b"q ", b"s ", b"t ", b"u ", b"v ", b"x ",
    b"C1 ", b"D2 ", b"E3 ", b"F4 ", b"I ", b"J5 ", b"MA ", b"ME ", b"MD ", b"N6 ", b"Oq ", b"T0 ",
    b"R30 ", b"S1 ", b"Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ", b"VALUE ", b"VA ", b"HD ", b"EN\r\n",
    b"END\r\n", b"STORED\r\n", b"SERVER_ERROR 307 busy\r\n", b"user pass\r\n", b"set a 0 0 9\r\n",
];

/// Appends `pieces` random ingredients to `into`: bytes that reach deeper than random ones.
pub fn soup(rng: &mut Rng, pieces: usize, into: &mut Vec<u8>) {
    for _ in 0..pieces {
        match rng.u8(..) {
            0..=3 => into.push(rng.u8(..)),
            4 => into.extend(std::iter::repeat_n(b'k', rng.usize(..300))),
            5 => into.extend(std::iter::repeat_n(b' ', rng.usize(..1500))),
            _ => into.extend_from_slice(INGREDIENTS[rng.usize(..INGREDIENTS.len())]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checks_hold_for_any_soup() {
        let mut rng = Rng::with_seed(1);
        let mut bytes = Vec::new();
        for _ in 0..30_000 {
            bytes.clear();
            let pieces = rng.usize(..24);
            soup(&mut rng, pieces, &mut bytes);
            check_parse(&bytes);
            check_auth(&bytes);
            check_responses(&bytes);
        }
    }

    #[test]
    fn the_checks_hold_for_long_lines_of_keys() {
        let mut bytes = b"gets".to_vec();
        for _ in 0..3_000 {
            bytes.extend_from_slice(b" some_key_or_other");
            bytes.truncate(70_000);
            if bytes.len() % 997 < 18 {
                let mut whole = bytes.clone();
                whole.extend_from_slice(b"\r\nget a\r\n");
                check_parse(&whole);
                check_parse(&bytes);
            }
        }
    }
}
