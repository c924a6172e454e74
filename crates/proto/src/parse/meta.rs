//! The meta commands.
//!
//! Every flag's token is checked here, whether the command has a use for it or not: memcached does
//! the same, and a client learns of its mistake wherever it makes it. What it never does: leave
//! data behind that could be taken for a request; once its length is known, it is skipped.

use super::words::{number, number_u32, signed, skip_blanks, take_word};
use super::{Parse, Request, data_len};
use crate::meta::Values;
use crate::{
    ArithOp, Command, ErrorKind, Exptime, FlagSet, KeyBuf, MetaArith, MetaDebug, MetaDelete,
    MetaGet, MetaHead, MetaSet, StoreVerb, TooLarge,
};

/// The longest token of the flag `O` in bytes; memcached counts the letter too and says 32.
const OPAQUE_LEN_MAX: usize = 31;

/// The request whose line begins with the word `m<letter>` and goes on with `args`.
pub(super) fn parse<'a>(request: &Request<'a, '_>, letter: u8, args: &'a [u8]) -> Parse<'a> {
    let outcome = match letter {
        b'g' => key_and_flags(request, args).map(get),
        b's' => return set(request, args),
        b'd' => key_and_flags(request, args).map(delete),
        b'a' => key_and_flags(request, args).and_then(arith),
        b'e' => debug(request, args),
        b'n' => Ok(Command::MetaNoop),
        _ => Err(ErrorKind::Unknown),
    };
    match outcome {
        Ok(command) => request.done(command),
        Err(error) => request.bad(error),
    }
}

/// All that flags can say, whatever the command.
#[derive(Default)]
struct Flags {
    set: FlagSet,
    values: Values,
    recache: Exptime,
    client_flags: u32,
    delta: Option<u64>,
    initial: u64,
    /// 0 where no mode is named.
    mode: u8,
}

/// A key with its flags. Inlined by force, like the two below: their results are large, and a third
/// of the time of an `mg` would go into moving them.
#[inline(always)]
fn key_and_flags<'a>(
    request: &Request<'a, '_>,
    args: &'a [u8],
) -> Result<(MetaHead<'a>, Flags), ErrorKind> {
    let line = skip_blanks(args);
    let mut rest = line;
    let key = take_word(&mut rest).ok_or(ErrorKind::Unknown)?;
    head(request, line, key, rest)
}

/// The head of the request with the key at the front of `line`, and its flags in `rest`, its end.
#[inline(always)]
fn head<'a>(
    request: &Request<'a, '_>,
    line: &'a [u8],
    key: &[u8],
    rest: &[u8],
) -> Result<(MetaHead<'a>, Flags), ErrorKind> {
    if !request.is_key(key) {
        return Err(ErrorKind::Format);
    }
    let tokens = skip_blanks(rest);
    let offset = |at: usize| u16::try_from(at).map_err(|_| ErrorKind::Format);
    let key_len = offset(key.len())?;
    let tokens_at = offset(line.len() - tokens.len())?;
    let flags = flags(key, tokens)?;
    Ok((
        MetaHead {
            line,
            key_len,
            tokens_at,
            flags: flags.set,
        },
        flags,
    ))
}

/// The flags in `tokens`.
#[inline(always)]
fn flags(key: &[u8], mut tokens: &[u8]) -> Result<Flags, ErrorKind> {
    let mut flags = Flags::default();
    while let Some([letter, token @ ..]) = take_word(&mut tokens) {
        if !FlagSet::is_flag(*letter) {
            return Err(ErrorKind::FlagInvalid);
        }
        if !flags.set.insert(*letter) {
            return Err(ErrorKind::FlagDuplicate);
        }
        // Flags without a token ignore what follows their letter, as in memcached.
        match letter {
            b'b' => check_base64(key)?,
            b'C' => flags.values.cas = number(token).ok_or(ErrorKind::FlagToken)?,
            b'E' => flags.values.cas_new = number(token).ok_or(ErrorKind::FlagToken)?,
            b'T' => flags.values.ttl = exptime(token)?,
            b'N' => flags.values.vivify = exptime(token)?,
            b'R' => flags.recache = exptime(token)?,
            b'F' => flags.client_flags = number_u32(token).ok_or(ErrorKind::Format)?,
            b'D' => flags.delta = Some(number(token).ok_or(ErrorKind::MetaDelta)?),
            b'J' => flags.initial = number(token).ok_or(ErrorKind::Initial)?,
            b'O' if token.len() > OPAQUE_LEN_MAX => return Err(ErrorKind::OpaqueTooLong),
            b'M' => match token {
                [mode] => flags.mode = *mode,
                _ => return Err(ErrorKind::ModeLength),
            },
            _ => {}
        }
    }
    Ok(flags)
}

fn exptime(token: &[u8]) -> Result<Exptime, ErrorKind> {
    signed(token).map(Exptime).ok_or(ErrorKind::FlagToken)
}

/// Whether the executor will be able to decode `key`.
#[cold]
fn check_base64(key: &[u8]) -> Result<(), ErrorKind> {
    if KeyBuf::default().decode(key).is_empty() {
        Err(ErrorKind::KeyBase64)
    } else {
        Ok(())
    }
}

/// `mg <key> <flag>*`.
#[inline]
fn get<'a>((head, flags): (MetaHead<'a>, Flags)) -> Command<'a> {
    Command::MetaGet(MetaGet {
        head,
        values: flags.values,
        recache: flags.recache,
    })
}

/// `md <key> <flag>*`.
fn delete<'a>((head, flags): (MetaHead<'a>, Flags)) -> Command<'a> {
    Command::MetaDelete(MetaDelete {
        head,
        values: flags.values,
    })
}

/// `ma <key> <flag>*`.
fn arith<'a>((head, flags): (MetaHead<'a>, Flags)) -> Result<Command<'a>, ErrorKind> {
    let op = match flags.mode {
        0 | b'I' | b'+' => ArithOp::Incr,
        b'D' | b'-' => ArithOp::Decr,
        _ => return Err(ErrorKind::ModeArith),
    };
    let delta = flags.delta.unwrap_or(1);
    let values = flags.values;
    Ok(Command::MetaArith(MetaArith {
        head,
        values,
        delta,
        initial: flags.initial,
        op,
    }))
}

/// `me <key> [b]`.
#[cold]
fn debug<'a>(request: &Request<'a, '_>, mut args: &'a [u8]) -> Result<Command<'a>, ErrorKind> {
    let key = take_word(&mut args).ok_or(ErrorKind::Format)?;
    let base64 = take_word(&mut args) == Some(b"b");
    if !request.is_key(key) || base64 && check_base64(key).is_err() {
        return Err(ErrorKind::Format);
    }
    Ok(Command::MetaDebug(MetaDebug { key, base64 }))
}

/// `ms <key> <len> <flag>*` and its data.
fn set<'a>(request: &Request<'a, '_>, args: &'a [u8]) -> Parse<'a> {
    let line = skip_blanks(args);
    let mut rest = line;
    let Some(key) = take_word(&mut rest) else {
        return request.bad(ErrorKind::Unknown);
    };
    let Some(data_len) = take_word(&mut rest).and_then(data_len) else {
        return request.bad(ErrorKind::Format);
    };
    let used = request.used_with_data(data_len);
    let checked = head(request, line, key, rest)
        .and_then(|(head, flags)| Ok((head, store_verb(flags.mode)?, flags)));
    let (head, verb, flags) = match checked {
        Ok(checked) => checked,
        Err(error) => return request.bad_with_data(error, data_len),
    };
    if data_len > request.limits.item_len_max {
        let base64 = head.is_base64();
        let too_large = TooLarge {
            key,
            base64,
            drop_old: true,
            noreply: false,
            data_len,
        };
        return Parse::Done {
            command: Command::TooLarge(too_large),
            used,
        };
    }
    match request.data(data_len, false) {
        Err(instead) => instead,
        Ok(data) => {
            let Flags {
                values,
                client_flags,
                ..
            } = flags;
            let set = MetaSet {
                head,
                data,
                values,
                client_flags,
                verb,
            };
            Parse::Done {
                command: Command::MetaSet(set),
                used,
            }
        }
    }
}

fn store_verb(mode: u8) -> Result<StoreVerb, ErrorKind> {
    match mode {
        0 | b'S' => Ok(StoreVerb::Set),
        b'E' => Ok(StoreVerb::Add),
        b'R' => Ok(StoreVerb::Replace),
        b'A' => Ok(StoreVerb::Append),
        b'P' => Ok(StoreVerb::Prepend),
        _ => Err(ErrorKind::ModeStore),
    }
}
