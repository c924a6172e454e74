//! The meta commands: flags and their tokens, answers and their order, quiet mode, binary keys.
//!
//! What these tests never do: look inside the parser.

use nyx_proto::reply::{self, MetaFacts, MetaStatus};
use nyx_proto::{
    ArithOp, Command, ErrorKind, Exptime, KeyBuf, Limits, MetaArith, MetaDelete, MetaGet, MetaHead,
    MetaSet, Out, Parse, StoreVerb, parse,
};

#[track_caller]
fn done(input: &[u8]) -> Command<'_> {
    match parse(input, &Limits::default()) {
        Parse::Done { command, used } if used == input.len() => command,
        other => panic!("{} is {other:?}", input.escape_ascii()),
    }
}

/// Each of `inputs` is refused as a whole and with an answer: quiet mode hides no error.
#[track_caller]
fn all_bad(kind: ErrorKind, inputs: &[&str]) {
    for input in inputs {
        let bad = Parse::Bad {
            error: kind.into(),
            used: input.len(),
        };
        assert_eq!(
            parse(input.as_bytes(), &Limits::default()),
            bad,
            "{input:?}"
        );
    }
}

macro_rules! meta {
    ($name:ident, $variant:ident, $type:ident) => {
        #[track_caller]
        fn $name(input: &[u8]) -> $type<'_> {
            match done(input) {
                Command::$variant(meta) => meta,
                other => panic!("{} is {other:?}", input.escape_ascii()),
            }
        }
    };
}

meta!(mg, MetaGet, MetaGet);
meta!(ms, MetaSet, MetaSet);
meta!(md, MetaDelete, MetaDelete);
meta!(ma, MetaArith, MetaArith);

/// What the answer's function writes.
fn written(write: impl FnOnce(&mut Out)) -> String {
    let mut out = Out::new();
    write(&mut out);
    out.pending()
        .escape_ascii()
        .to_string()
        .replace("\\r\\n", "|")
}

#[test]
fn mg_understands_all_of_its_flags() {
    let get = mg(b"mg Zm9v bxyz\r\n");
    assert!(
        get.head.is_base64(),
        "what follows a flag without a token is ignored"
    );
    let get = mg(b"mg  key   c f h k l q s t u v C5 E6 N30 R40 T-1 Oopaque Px Ly \r\n");
    assert_eq!(get.head.key(), b"key");
    assert_eq!(
        get.head.tokens(),
        b"c f h k l q s t u v C5 E6 N30 R40 T-1 Oopaque Px Ly "
    );
    assert_eq!((get.cas(), get.cas_new()), (Some(5), Some(6)));
    assert_eq!(
        (get.vivify(), get.recache()),
        (Some(Exptime(30)), Some(Exptime(40)))
    );
    assert_eq!(get.ttl(), Some(Exptime(-1)));
    assert!(get.wants_value() && get.no_bump() && get.head.is_quiet());
    let plain = mg(b"mg key\r\n");
    assert_eq!(
        (plain.head.key(), plain.head.tokens()),
        (&b"key"[..], &b""[..])
    );
    assert_eq!(
        (plain.cas(), plain.cas_new(), plain.ttl()),
        (None, None, None)
    );
    assert_eq!((plain.vivify(), plain.recache()), (None, None));
    assert!(!plain.wants_value() && !plain.no_bump() && !plain.head.is_quiet());
}

#[test]
fn ms_understands_all_of_its_flags() {
    let set = ms(b"ms key 4 c k s q C7 E8 F4294967295 T60 N30 I Ox\r\na\r\nb\r\n");
    assert_eq!((set.head.key(), set.data), (&b"key"[..], &b"a\r\nb"[..]));
    assert_eq!(set.head.tokens(), b"c k s q C7 E8 F4294967295 T60 N30 I Ox");
    assert_eq!((set.cas(), set.cas_new()), (Some(7), Some(8)));
    assert_eq!(
        (set.ttl(), set.vivify()),
        (Some(Exptime(60)), Some(Exptime(30)))
    );
    assert_eq!((set.client_flags, set.verb), (u32::MAX, StoreVerb::Set));
    assert!(set.invalidates() && set.head.is_quiet());
    let plain = ms(b"ms key 0\n\r\n");
    assert_eq!(
        (plain.data, plain.client_flags, plain.verb),
        (&b""[..], 0, StoreVerb::Set)
    );
    assert_eq!(
        (plain.cas(), plain.ttl(), plain.invalidates()),
        (None, None, false)
    );
    let verbs = [
        (b'S', StoreVerb::Set),
        (b'E', StoreVerb::Add),
        (b'R', StoreVerb::Replace),
        (b'A', StoreVerb::Append),
        (b'P', StoreVerb::Prepend),
    ];
    for (mode, verb) in verbs {
        let input = format!("ms key 1 M{}\r\nx\r\n", char::from(mode));
        assert_eq!(ms(input.as_bytes()).verb, verb);
    }
}

#[test]
fn md_ma_me_and_mn() {
    let delete = md(b"md key q I x T30 C9 E10 k Ox\r\n");
    assert!(delete.invalidates() && delete.clears_value() && delete.head.is_quiet());
    assert_eq!((delete.cas(), delete.cas_new()), (Some(9), Some(10)));
    assert_eq!(delete.ttl(), Some(Exptime(30)));
    let arith = ma(b"ma key N60 J13 D5 MD T70 C1 E2 t c v q\r\n");
    assert_eq!(
        (arith.op, arith.delta, arith.initial),
        (ArithOp::Decr, 5, 13)
    );
    assert_eq!(
        (arith.vivify(), arith.ttl()),
        (Some(Exptime(60)), Some(Exptime(70)))
    );
    assert_eq!((arith.cas(), arith.cas_new()), (Some(1), Some(2)));
    let plain = ma(b"ma key\r\n");
    assert_eq!(
        (plain.op, plain.delta, plain.initial),
        (ArithOp::Incr, 1, 0)
    );
    let ops = [
        ("I", ArithOp::Incr),
        ("+", ArithOp::Incr),
        ("D", ArithOp::Decr),
    ];
    for (mode, op) in ops.into_iter().chain([("-", ArithOp::Decr)]) {
        assert_eq!(ma(format!("ma key M{mode}\r\n").as_bytes()).op, op);
    }
    assert!(matches!(done(b"me key\r\n"), Command::MetaDebug(me) if !me.base64));
    assert!(matches!(done(b"me Zm9v b\r\n"), Command::MetaDebug(me) if me.base64));
    assert_eq!(done(b"mn\r\n"), Command::MetaNoop);
    assert_eq!(done(b"mn whatever\r\n"), Command::MetaNoop);
}

#[test]
fn mistakes_in_flags_have_their_own_answers() {
    all_bad(
        ErrorKind::Unknown,
        &["mg\r\n", "ms\r\n", "md\r\n", "ma \r\n", "mx a\r\n"],
    );
    all_bad(
        ErrorKind::Format,
        &["ms a\r\n", "ms a x\r\n", "ms a -1\r\n", "ms a S1\r\n"],
    );
    all_bad(
        ErrorKind::Format,
        &["me\r\n", "me !!!! b\r\n", "ms a 1 Fx\r\n1\r\n"],
    );
    all_bad(
        ErrorKind::FlagInvalid,
        &["mg a z\r\n", "md a S1\r\n", "mg a \x7f\r\n", "ma a 1\r\n"],
    );
    all_bad(
        ErrorKind::FlagDuplicate,
        &["mg a v t v\r\n", "ms a 1 T1 T2\r\n1\r\n"],
    );
    all_bad(
        ErrorKind::FlagToken,
        &["mg a T\r\n", "mg a Nx\r\n", "md a C-1\r\n", "ma a E1x\r\n"],
    );
    all_bad(ErrorKind::MetaDelta, &["ma a D\r\n", "ma a D-1\r\n"]);
    all_bad(ErrorKind::Initial, &["ma a Jx\r\n"]);
    all_bad(
        ErrorKind::ModeLength,
        &["ma a M\r\n", "ms a 1 MSS q\r\n1\r\n"],
    );
    all_bad(ErrorKind::ModeStore, &["ms a 1 MI\r\n1\r\n"]);
    all_bad(ErrorKind::ModeArith, &["ma a MS\r\n"]);
    let opaque = |len: usize| format!("mg a O{}\r\n", "x".repeat(len));
    mg(opaque(31).as_bytes());
    all_bad(ErrorKind::OpaqueTooLong, &[&opaque(32)]);
}

#[test]
fn binary_keys_come_as_base64() {
    let mut scratch = KeyBuf::default();
    assert_eq!(
        mg(b"mg Zm9vAP8= b\r\n").head.decode_key(&mut scratch),
        b"foo\x00\xff"
    );
    assert_eq!(mg(b"mg Zm9v\r\n").head.decode_key(&mut scratch), b"Zm9v");
    all_bad(
        ErrorKind::KeyBase64,
        &["mg Zm9 b\r\n", "md Zm9! b\r\n", "ms ==== 1 b\r\n1\r\n"],
    );
    let longest = format!("mg {} b k\r\n", "QUFB".repeat(62));
    assert_eq!(
        mg(longest.as_bytes()).head.decode_key(&mut scratch),
        [b'A'; 186]
    );
    let head = mg(b"mg Zm9v b k\r\n").head;
    assert_eq!(written(|out| reply::meta_miss(out, &head)), "EN kZm9v b|");
}

const FACTS: MetaFacts = MetaFacts {
    cas: 7,
    client_flags: 8,
    len: 9,
    ttl_s: Some(10),
    idle_s: 11,
    hit_before: true,
    won: false,
    stale: false,
    won_before: false,
};

fn hit(head: MetaHead<'_>, facts: &MetaFacts) -> String {
    written(|out| reply::meta_hit(out, &head, facts))
}

#[test]
fn answers_repeat_the_flags_in_the_order_of_the_request() {
    let head = mg(b"mg key s t v Oxyz k h l f c q T5\r\n").head;
    assert_eq!(hit(head, &FACTS), "HD s9 t10 Oxyz kkey h1 l11 f8 c7|");
    let reversed = mg(b"mg key c f l h k Oxyz t s\r\n").head;
    let value = written(|out| reply::meta_value(out, &reversed, &FACTS));
    assert_eq!(value, "VA 9 c7 f8 l11 h1 kkey Oxyz t10 s9|");
    let forever = MetaFacts {
        ttl_s: None,
        hit_before: false,
        ..FACTS
    };
    assert_eq!(hit(mg(b"mg key t h\r\n").head, &forever), "HD t-1 h0|");
    let won = MetaFacts {
        won: true,
        stale: true,
        won_before: false,
        ..FACTS
    };
    assert_eq!(hit(mg(b"mg key O1\r\n").head, &won), "HD O1 X W|");
    let lost = MetaFacts {
        won: false,
        stale: true,
        won_before: true,
        ..FACTS
    };
    assert_eq!(hit(mg(b"mg key\r\n").head, &lost), "HD Z X|");
    let miss = written(|out| reply::meta_miss(out, &mg(b"mg key s O1 k t\r\n").head));
    assert_eq!(miss, "EN O1 kkey|");
}

#[test]
fn answers_to_ms_md_ma_and_me() {
    let set = ms(b"ms key 0 k c s O1 t\r\n\r\n").head;
    assert_eq!(
        written(|out| reply::meta_stored(out, &set, 5, 6)),
        "HD kkey c5 s6 O1|"
    );
    let failed = |status| written(|out| reply::meta_store_failed(out, &set, status, 6));
    assert_eq!(failed(MetaStatus::NotStored), "NS kkey c0 s6 O1|");
    assert_eq!(failed(MetaStatus::Exists), "EX kkey c0 s6 O1|");
    assert_eq!(failed(MetaStatus::NotFound), "NF kkey c0 s6 O1|");
    let delete = md(b"md key c k O1\r\n").head;
    assert_eq!(
        written(|out| reply::meta_deleted(out, &delete)),
        "HD kkey O1|"
    );
    let not_found = written(|out| reply::meta_status(out, &delete, MetaStatus::NotFound));
    assert_eq!(not_found, "NF kkey O1|");
    let arith = ma(b"ma key c t v k O1 s\r\n").head;
    let value = written(|out| reply::meta_arith(out, &arith, 123, &FACTS));
    assert_eq!(value, "VA 3 c7 t10 kkey O1|123|");
    let arith = ma(b"ma key t\r\n").head;
    assert_eq!(
        written(|out| reply::meta_arith(out, &arith, 123, &FACTS)),
        "HD t10|"
    );
    let debug = written(|out| reply::meta_debug(out, b"key", &FACTS, 3, 99));
    assert_eq!(debug, "ME key exp=10 la=11 cas=7 fetch=yes cls=3 size=99|");
}

#[test]
fn quiet_mode_hides_the_usual_answer_alone() {
    let head = ms(b"ms key 0 q\r\n\r\n").head;
    assert_eq!(written(|out| reply::meta_miss(out, &head)), "");
    assert_eq!(written(|out| reply::meta_stored(out, &head, 1, 2)), "");
    assert_eq!(written(|out| reply::meta_deleted(out, &head)), "");
    assert_eq!(written(|out| reply::meta_arith(out, &head, 1, &FACTS)), "");
    assert_eq!(hit(head, &FACTS), "HD|");
    assert_eq!(
        written(|out| reply::meta_status(out, &head, MetaStatus::NotFound)),
        "NF|"
    );
    let failed = written(|out| reply::meta_store_failed(out, &head, MetaStatus::Exists, 2));
    assert_eq!(failed, "EX|");
}
