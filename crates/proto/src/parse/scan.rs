//! `scan`, an extension of Nyx: keys in their order.
//!
//! What it never does: guess. Options may stand in any order, each once.

use super::Request;
use super::words::{number_u32, take_word};
use crate::{Command, ErrorKind, KeyBuf, Scan};

/// All keys.
const ANY: &[u8] = b"*";

/// `scan <prefix>|* <option>*`.
pub(super) fn parse<'a>(
    request: &Request<'a, '_>,
    mut args: &'a [u8],
) -> Result<Command<'a>, ErrorKind> {
    let prefix = take_word(&mut args).ok_or(ErrorKind::ScanUsage)?;
    let mut scan = Scan {
        prefix: if prefix == ANY { b"" } else { prefix },
        begin: None,
        end: None,
        limit: u32::MAX,
        options: 0,
    };
    let mut has_limit = false;
    while let Some(word) = take_word(&mut args) {
        let is_new = match word {
            b"from" => put(&mut scan.begin, &mut args),
            b"after" => put(&mut scan.begin, &mut args) && set(&mut scan, Scan::AFTER),
            b"to" => put(&mut scan.end, &mut args),
            b"before" => put(&mut scan.end, &mut args) && set(&mut scan, Scan::BEFORE),
            b"limit" => {
                let limit = take_word(&mut args).and_then(number_u32);
                scan.limit = limit
                    .filter(|&limit| limit > 0)
                    .ok_or(ErrorKind::ScanUsage)?;
                !std::mem::replace(&mut has_limit, true)
            }
            b"down" => set(&mut scan, Scan::DOWN),
            b"keys" => set(&mut scan, Scan::KEYS),
            b"cas" => set(&mut scan, Scan::CAS),
            b"base64" => set(&mut scan, Scan::BASE64),
            _ => false,
        };
        if !is_new {
            return Err(ErrorKind::ScanUsage);
        }
    }
    check_keys(request, &scan)?;
    Ok(Command::Scan(scan))
}

/// Takes the key of an option; false where there is none, or it has one already.
fn put<'a>(key: &mut Option<&'a [u8]>, args: &mut &'a [u8]) -> bool {
    let word = take_word(args);
    word.is_some() && std::mem::replace(key, word).is_none()
}

/// Sets an option; false where it is set.
fn set(scan: &mut Scan<'_>, option: u8) -> bool {
    let is_new = !scan.has(option);
    scan.options |= option;
    is_new
}

fn check_keys(request: &Request<'_, '_>, scan: &Scan<'_>) -> Result<(), ErrorKind> {
    let prefix = Some(scan.prefix).filter(|prefix| !prefix.is_empty());
    for key in [prefix, scan.begin, scan.end].into_iter().flatten() {
        if !request.is_key(key) {
            return Err(ErrorKind::Format);
        }
        if scan.has(Scan::BASE64) && KeyBuf::default().decode(key).is_empty() {
            return Err(ErrorKind::KeyBase64);
        }
    }
    Ok(())
}
