//! What the encoder writes the parser reads, one request or many, whole or in pieces; and nothing
//! that a client may send makes any parser panic.
//!
//! What these tests never do: know an answer by heart; the tables next door do.

use nyx_proto::{
    ArithOp, Command, Exptime, Get, LINE_LEN_MAX, Limits, Parse, Store, StoreVerb, fuzzing, parse,
    request,
};
use proptest::prelude::*;

/// A request with its own keys and data, from which a [`Command`] can borrow.
#[derive(Clone, Debug)]
struct Owned {
    shape: u8,
    keys: Vec<Vec<u8>>,
    data: Vec<u8>,
    number: u64,
    exptime: i64,
    flags: u32,
    choice: bool,
    noreply: bool,
}

fn owned() -> impl Strategy<Value = Owned> {
    // Any byte but the blank and the line end can be part of a key.
    let byte = any::<u8>().prop_map(|byte| {
        if matches!(byte, b' ' | b'\n') {
            b'_'
        } else {
            byte
        }
    });
    let key = prop::collection::vec(byte, 1..40);
    let keys = prop::collection::vec(key, 1..20);
    let data = prop::collection::vec(any::<u8>(), 0..300);
    let numbers = (any::<u64>(), any::<i64>(), any::<u32>());
    (0..13u8, keys, data, numbers, any::<bool>(), any::<bool>()).prop_map(
        |(shape, keys, data, (number, exptime, flags), choice, noreply)| Owned {
            shape,
            keys,
            data,
            number,
            exptime,
            flags,
            choice,
            noreply,
        },
    )
}

impl Owned {
    /// `rest` is where the keys but the first are joined.
    fn command<'a>(&'a self, rest: &'a mut Vec<u8>) -> Command<'a> {
        let &Owned {
            number,
            noreply,
            choice,
            flags,
            ..
        } = self;
        let (key, exptime) = (self.keys[0].as_slice(), Exptime(self.exptime));
        *rest = self.keys[1..].join(&b' ');
        let verb = match self.shape {
            0 | 1 => {
                let touch = (self.shape == 1).then_some(exptime);
                let count = self.keys.len() as u32;
                return Command::Get(Get {
                    first: key,
                    rest,
                    count,
                    with_cas: choice,
                    touch,
                });
            }
            2 => return Command::Delete { key, noreply },
            3 => {
                let op = if choice { ArithOp::Incr } else { ArithOp::Decr };
                return Command::Arith {
                    key,
                    op,
                    delta: number,
                    noreply,
                };
            }
            4 => {
                return Command::Touch {
                    key,
                    exptime,
                    noreply,
                };
            }
            5 => {
                return Command::FlushAll {
                    delay: exptime,
                    noreply,
                };
            }
            6 => {
                return Command::Verbosity {
                    level: flags,
                    noreply,
                };
            }
            7 => StoreVerb::Set,
            8 => StoreVerb::Add,
            9 => StoreVerb::Replace,
            10 => StoreVerb::Append,
            11 => StoreVerb::Prepend,
            _ => StoreVerb::Cas,
        };
        let cas = if verb == StoreVerb::Cas { number } else { 0 };
        Command::Store(Store {
            key,
            data: &self.data,
            cas,
            exptime,
            flags,
            verb,
            noreply,
        })
    }
}

proptest! {
    #[test]
    fn what_is_encoded_is_parsed(requests in prop::collection::vec(owned(), 1..8)) {
        let limits = Limits::default();
        let mut wire = Vec::new();
        let mut rests = vec![Vec::new(); requests.len()];
        let commands: Vec<_> =
            requests.iter().zip(&mut rests).map(|(request, rest)| request.command(rest)).collect();
        commands.iter().for_each(|command| request::encode(&mut wire, command));
        let mut input = &wire[..];
        for command in &commands {
            match parse(input, &limits) {
                Parse::Done { command: parsed, used } => {
                    prop_assert_eq!(&parsed, command);
                    input = &input[used..];
                }
                other => prop_assert!(false, "{:?} is read as {:?}", command, other),
            }
        }
        prop_assert!(input.is_empty());
    }

    #[test]
    fn pieces_give_what_the_whole_gives(requests in prop::collection::vec(owned(), 1..3)) {
        let mut wire = Vec::new();
        for request in &requests {
            request::encode(&mut wire, &request.command(&mut Vec::new()));
        }
        fuzzing::check_parse(&wire);
    }

    #[test]
    fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzzing::check_parse(&bytes);
        fuzzing::check_auth(&bytes);
        fuzzing::check_responses(&bytes);
    }

    #[test]
    fn long_lines_are_bounded_wherever_they_are_cut(
        blanks in 0..LINE_LEN_MAX + 10,
        verb in prop::sample::select(vec!["get k ", "gats 1 k ", "set k ", "stats ", "mg k "]),
        len in 0..3 * LINE_LEN_MAX,
    ) {
        let mut line = vec![b' '; blanks];
        line.extend_from_slice(verb.as_bytes());
        line.resize(line.len() + len, b'0');
        line.extend_from_slice(b"\r\nget a\r\n");
        fuzzing::check_parse(&line);
    }
}
