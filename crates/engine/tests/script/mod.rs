//! Random commands: what a client may send, how to draw it, and how it looks on the wire.
//!
//! What it never does: know what the answer is, or use the engine's or the parser's own types.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

/// The keys in use, each with its base64 form.
pub(crate) const KEYS: [(&str, &str); 4] = [
    ("a", "YQ=="),
    ("key", "a2V5"),
    ("user:1001", "dXNlcjoxMDAx"),
    ("a-key-that-is-longer", "YS1rZXktdGhhdC1pcy1sb25nZXI="),
];

/// The longest value in bytes that the tested tenant takes.
pub(crate) const VALUE_LEN_MAX: usize = 4096;

/// The values in use: numbers at their limits, what is almost a number, line ends within, and
/// lengths around those at which something changes.
pub(crate) fn value(at: usize) -> Vec<u8> {
    let texts: [&[u8]; 13] = [
        b"",
        b"0",
        b"5",
        b"99",
        b"00010",
        b"18446744073709551615",
        b"18446744073709551616",
        b"000000000000000000001",
        b"12x",
        b"-1",
        b"a\r\nget key\r\nb",
        b"END\r\n",
        b"\x00\xff",
    ];
    let lengths = [63, 64, 300, 2500, VALUE_LEN_MAX, VALUE_LEN_MAX + 1, 20_000];
    match texts.get(at) {
        Some(text) => text.to_vec(),
        None => vec![b'a' + at as u8; lengths[at - texts.len()]],
    }
}
const VALUES: usize = 20;

/// A cas value that a client sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pick {
    /// The item's own.
    Current,
    /// One that was seen before, of whatever item.
    Seen(usize),
    /// This.
    Exact(u64),
}

/// What stands behind the letter of a meta flag.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Token {
    Nothing,
    Number(u64),
    Time(i64),
    Cas(Pick),
    Text(&'static str),
}

/// A meta flag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag {
    pub(crate) letter: char,
    pub(crate) token: Token,
}

/// Which classic store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
}

/// Which meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetaVerb {
    Get,
    Set,
    Delete,
    Arith,
}

/// A meta command with flags.
#[derive(Clone, Debug)]
pub(crate) struct Meta {
    pub(crate) verb: MetaVerb,
    pub(crate) key: usize,
    pub(crate) value: usize,
    pub(crate) flags: Vec<Flag>,
}

/// One step of a script. Keys and values are places in their tables.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Get {
        keys: Vec<usize>,
        with_cas: bool,
        touch: Option<i64>,
    },
    Store {
        verb: Verb,
        key: usize,
        value: usize,
        flags: u32,
        exptime: i64,
        cas: Pick,
        noreply: bool,
    },
    Delete {
        key: usize,
        noreply: bool,
    },
    Arith {
        key: usize,
        up: bool,
        delta: u64,
        noreply: bool,
    },
    Touch {
        key: usize,
        exptime: i64,
        noreply: bool,
    },
    Meta(Meta),
    Debug {
        key: usize,
        base64: bool,
    },
    FlushAll {
        delay: i64,
        noreply: bool,
    },
    /// A line whose answer does not depend on what is stored: the line and the answer.
    Fixed(&'static str, &'static str),
    /// Time moves on.
    Wait(u32),
    /// Housekeeping takes place.
    Maintain,
}

impl Meta {
    /// The flag with this letter.
    pub(crate) fn flag(&self, letter: char) -> Option<Token> {
        let found = self.flags.iter().find(|flag| flag.letter == letter);
        found.map(|flag| flag.token)
    }

    /// Whether there is a flag with this letter.
    pub(crate) fn has(&self, letter: char) -> bool {
        self.flag(letter).is_some()
    }

    /// A flag's number.
    pub(crate) fn number(&self, letter: char) -> Option<u64> {
        match self.flag(letter)? {
            Token::Number(number) | Token::Cas(Pick::Exact(number)) => Some(number),
            other => panic!("{letter} has {other:?}"),
        }
    }

    /// A flag's time.
    pub(crate) fn time(&self, letter: char) -> Option<i64> {
        match self.flag(letter)? {
            Token::Time(time) => Some(time),
            other => panic!("{letter} has {other:?}"),
        }
    }

    /// The letter behind `M`, or the default.
    pub(crate) fn mode(&self, default: char) -> char {
        match self.flag('M') {
            Some(Token::Text(mode)) => mode.chars().next().expect("a mode"),
            _ => default,
        }
    }

    /// The key as it stands in the request.
    pub(crate) fn written_key(&self) -> &'static str {
        written_key(self.key, self.has('b'))
    }
}

/// A key as a request writes it.
pub(crate) fn written_key(key: usize, base64: bool) -> &'static str {
    if base64 { KEYS[key].1 } else { KEYS[key].0 }
}

fn times() -> impl Strategy<Value = i64> {
    prop_oneof![
        3 => Just(0),
        1 => Just(-1),
        6 => select(&[1i64, 2, 5, 30, 60, 3600][..]),
        1 => Just(30 * 86_400),
        // Absolute times: just ahead, long gone, and beyond what 32 bits hold.
        2 => (1i64..200).prop_map(|s| i64::from(super::rig::START_S) + s),
        1 => select(&[30 * 86_400 + 1, 5_000_000_000, i64::MAX, i64::MIN][..]),
    ]
}

fn picks() -> impl Strategy<Value = Pick> {
    prop_oneof![
        4 => Just(Pick::Current),
        3 => any::<usize>().prop_map(Pick::Seen),
        1 => select(&[0, u64::MAX][..]).prop_map(Pick::Exact),
    ]
}

fn deltas() -> impl Strategy<Value = u64> {
    select(&[0u64, 1, 7, 100, u64::MAX][..])
}

/// Explicit cas values lie above all that a store makes by itself in a test's time.
fn explicit_cas() -> impl Strategy<Value = u64> {
    (0u64..6).prop_map(|n| (1 << 62) + n)
}

fn flag(verb: MetaVerb, letter: char) -> BoxedStrategy<Flag> {
    let modes: &'static [&'static str] = match verb {
        MetaVerb::Set => &["S", "E", "R", "A", "P"],
        _ => &["I", "D", "+", "-"],
    };
    let token = match letter {
        'C' => picks().prop_map(Token::Cas).boxed(),
        'E' => explicit_cas().prop_map(Token::Number).boxed(),
        'F' => select(&[0u64, 7, u32::MAX as u64][..])
            .prop_map(Token::Number)
            .boxed(),
        'D' => deltas().prop_map(Token::Number).boxed(),
        'J' => select(&[0u64, 13, u64::MAX][..])
            .prop_map(Token::Number)
            .boxed(),
        'N' | 'T' => times().prop_map(Token::Time).boxed(),
        'R' => select(&[-1i64, 0, 2, 45, 4000][..])
            .prop_map(Token::Time)
            .boxed(),
        'M' => select(modes).prop_map(Token::Text).boxed(),
        'O' => select(&["opaque", "0", ""][..])
            .prop_map(Token::Text)
            .boxed(),
        _ => Just(Token::Nothing).boxed(),
    };
    token.prop_map(move |token| Flag { letter, token }).boxed()
}

fn metas() -> impl Strategy<Value = Op> {
    let verbs = prop_oneof![
        5 => Just((MetaVerb::Get, "bcfhklOqstvuTNRCE")),
        4 => Just((MetaVerb::Set, "bcCEFIkOqsTNM")),
        3 => Just((MetaVerb::Delete, "bCEIkOqxT")),
        3 => Just((MetaVerb::Arith, "bcCEkNJDTMOqtv")),
    ];
    let flags = |(verb, letters): (MetaVerb, &'static str)| {
        let letters: Vec<char> = letters.chars().collect();
        let most = letters.len().min(7);
        subsequence(letters, 0..=most)
            .prop_shuffle()
            .prop_flat_map(move |letters| {
                let flags: Vec<_> = letters.into_iter().map(|l| flag(verb, l)).collect();
                (Just(verb), flags)
            })
    };
    (verbs.prop_flat_map(flags), 0..KEYS.len(), 0..VALUES).prop_map(
        |((verb, flags), key, value)| {
            Op::Meta(Meta {
                verb,
                key,
                value,
                flags,
            })
        },
    )
}

fn stores() -> impl Strategy<Value = Op> {
    let verbs = [
        Verb::Set,
        Verb::Set,
        Verb::Add,
        Verb::Replace,
        Verb::Append,
        Verb::Prepend,
        Verb::Cas,
        Verb::Cas,
    ];
    (
        select(verbs.to_vec()),
        0..KEYS.len(),
        0..VALUES,
        select(&[0u32, 9, u32::MAX][..]),
        times(),
        picks(),
        prop::bool::weighted(0.15),
    )
        .prop_map(
            |(verb, key, value, flags, exptime, cas, noreply)| Op::Store {
                verb,
                key,
                value,
                flags,
                exptime,
                cas,
                noreply,
            },
        )
}

fn fixed() -> impl Strategy<Value = Op> {
    let version = concat!("VERSION 1.6.18-nyx-", env!("CARGO_PKG_VERSION"), "\r\n");
    select(vec![
        Op::Fixed("mn\r\n", "MN\r\n"),
        Op::Fixed("version\r\n", version),
        Op::Fixed("verbosity 1\r\n", "OK\r\n"),
        Op::Fixed("verbosity 1 noreply\n", ""),
        Op::Fixed("bogus\r\n", "ERROR\r\n"),
        Op::Fixed("get\r\n", "ERROR\r\n"),
        Op::Fixed("incr key\r\n", "ERROR\r\n"),
        Op::Fixed(
            "incr key x\r\n",
            "CLIENT_ERROR invalid numeric delta argument\r\n",
        ),
        Op::Fixed(
            "touch key x\r\n",
            "CLIENT_ERROR invalid exptime argument\r\n",
        ),
        Op::Fixed("touch key x noreply\r\n", ""),
        Op::Fixed(
            "set key x 0 3\r\nabc\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        Op::Fixed(
            "set key 0 0 3\r\nabcd\r\n",
            "CLIENT_ERROR bad data chunk\r\n",
        ),
        Op::Fixed("ms key 3 Z\r\nabc\r\n", "CLIENT_ERROR invalid flag\r\n"),
        Op::Fixed("mg key v v\r\n", "CLIENT_ERROR duplicate flag\r\n"),
        Op::Fixed(
            "cache_memlimit 4\r\n",
            "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n",
        ),
    ])
}

/// A script.
pub(crate) fn scripts() -> impl Strategy<Value = Vec<Op>> {
    let key = || 0..KEYS.len();
    let noreply = || prop::bool::weighted(0.15);
    let touch = prop_oneof![3 => Just(None), 1 => times().prop_map(Some)];
    let op = prop_oneof![
        12 => (prop::collection::vec(key(), 1..6), any::<bool>(), touch)
            .prop_map(|(keys, with_cas, touch)| Op::Get { keys, with_cas, touch }),
        14 => stores(),
        3 => (key(), noreply()).prop_map(|(key, noreply)| Op::Delete { key, noreply }),
        6 => (key(), any::<bool>(), deltas(), noreply())
            .prop_map(|(key, up, delta, noreply)| Op::Arith { key, up, delta, noreply }),
        4 => (key(), times(), noreply())
            .prop_map(|(key, exptime, noreply)| Op::Touch { key, exptime, noreply }),
        30 => metas(),
        3 => (key(), any::<bool>()).prop_map(|(key, base64)| Op::Debug { key, base64 }),
        1 => (select(&[0i64, 0, 1, 40, -1][..]), noreply())
            .prop_map(|(delay, noreply)| Op::FlushAll { delay, noreply }),
        2 => fixed(),
        5 => select(&[0u32, 1, 1, 2, 10, 50, 3000][..]).prop_map(Op::Wait),
        2 => Just(Op::Maintain),
    ];
    prop::collection::vec(op, 1..160)
}

impl Op {
    /// The key whose own cas value the op names, or whose order it depends on.
    pub(crate) fn needs_cas_of(&self) -> Option<usize> {
        match self {
            Op::Store {
                verb: Verb::Cas,
                cas: Pick::Current,
                key,
                ..
            } => Some(*key),
            Op::Meta(meta) => match meta.flag('C')? {
                Token::Cas(Pick::Current) => Some(meta.key),
                _ => meta.has('I').then_some(meta.key),
            },
            _ => None,
        }
    }

    /// The op with every cas value as `exact` names it.
    pub(crate) fn resolved(mut self, exact: impl Fn(Pick, usize) -> u64) -> Op {
        match &mut self {
            Op::Store { cas, key, .. } => *cas = Pick::Exact(exact(*cas, *key)),
            Op::Meta(meta) => {
                for flag in &mut meta.flags {
                    if let Token::Cas(pick) = flag.token {
                        flag.token = Token::Cas(Pick::Exact(exact(pick, meta.key)));
                    }
                }
            }
            _ => {}
        }
        self
    }

    /// The bytes that a client sends; none for what is no command.
    pub(crate) fn wire(&self) -> Vec<u8> {
        let tail = |noreply: &bool| if *noreply { " noreply\r\n" } else { "\r\n" };
        let line = match self {
            Op::Get {
                keys,
                with_cas,
                touch,
            } => {
                let verb = ["get", "gets", "gat", "gats"]
                    [usize::from(*with_cas) + 2 * usize::from(touch.is_some())];
                let time = touch.map(|time| format!(" {time}")).unwrap_or_default();
                let keys: Vec<&str> = keys.iter().map(|&key| KEYS[key].0).collect();
                format!("{verb}{time} {}\r\n", keys.join(" "))
            }
            Op::Store { .. } => return self.store_wire(),
            Op::Delete { key, noreply } => format!("delete {}{}", KEYS[*key].0, tail(noreply)),
            Op::Arith {
                key,
                up,
                delta,
                noreply,
            } => {
                let verb = if *up { "incr" } else { "decr" };
                format!("{verb} {} {delta}{}", KEYS[*key].0, tail(noreply))
            }
            Op::Touch {
                key,
                exptime,
                noreply,
            } => format!("touch {} {exptime}{}", KEYS[*key].0, tail(noreply)),
            Op::Meta(meta) => return meta.wire(),
            Op::Debug { key, base64 } => {
                let b = if *base64 { " b" } else { "" };
                format!("me {}{b}\r\n", written_key(*key, *base64))
            }
            Op::FlushAll { delay, noreply } => format!("flush_all {delay}{}", tail(noreply)),
            Op::Fixed(line, _) => (*line).to_owned(),
            Op::Wait(_) | Op::Maintain => String::new(),
        };
        line.into_bytes()
    }

    fn store_wire(&self) -> Vec<u8> {
        let Op::Store {
            verb,
            key,
            value: at,
            flags,
            exptime,
            cas,
            noreply,
        } = self
        else {
            panic!("{self:?} is no store");
        };
        let data = value(*at);
        let name = match verb {
            Verb::Set => "set",
            Verb::Add => "add",
            Verb::Replace => "replace",
            Verb::Append => "append",
            Verb::Prepend => "prepend",
            Verb::Cas => "cas",
        };
        let mut line = format!("{name} {} {flags} {exptime} {}", KEYS[*key].0, data.len());
        if let (Verb::Cas, Pick::Exact(cas)) = (verb, cas) {
            line.push_str(&format!(" {cas}"));
        }
        if *noreply {
            line.push_str(" noreply");
        }
        [line.as_bytes(), b"\r\n", &data, b"\r\n"].concat()
    }
}

impl Meta {
    fn wire(&self) -> Vec<u8> {
        let (verb, data) = match self.verb {
            MetaVerb::Get => ("mg", None),
            MetaVerb::Set => ("ms", Some(value(self.value))),
            MetaVerb::Delete => ("md", None),
            MetaVerb::Arith => ("ma", None),
        };
        let mut line = format!("{verb} {}", self.written_key());
        if let Some(data) = &data {
            line.push_str(&format!(" {}", data.len()));
        }
        for Flag { letter, token } in &self.flags {
            let token = match token {
                Token::Nothing => String::new(),
                Token::Number(number) | Token::Cas(Pick::Exact(number)) => number.to_string(),
                Token::Time(time) => time.to_string(),
                Token::Text(text) => (*text).to_owned(),
                Token::Cas(pick) => panic!("{pick:?} is not resolved"),
            };
            line.push_str(&format!(" {letter}{token}"));
        }
        match data {
            Some(data) => [line.as_bytes(), b"\r\n", &data, b"\r\n"].concat(),
            None => [line.as_bytes(), b"\r\n"].concat(),
        }
    }
}
