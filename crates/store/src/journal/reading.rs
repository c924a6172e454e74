//! Reading a journal: which of its records count, where it ends, what of it is damaged.
//!
//! What it never does: know what a change means.

use super::files::Found;
use super::{Change, FOLLOWS_WHOLE, Kind, SYNCED, files, record};
use crate::config::StoreError;
use nyx_media::{LogFile, MediaError};
use std::path::Path;

/// What a journal had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Changes that were made again.
    pub changes: u64,
    /// Bytes of them in the journal.
    pub bytes: u64,
    /// Bytes of all of its files.
    pub file_bytes: u64,
    /// Places at which something had been synced and is no longer what it was. Changes that were
    /// there are lost.
    pub damaged: u64,
    /// Items for which there was no room, or no longer any.
    pub dropped: u64,
}

/// How the reading of a file ended.
enum Ending {
    /// At its end.
    Whole,
    /// Where the journal does.
    Torn(usize),
}

/// What is known of a file before it is read.
#[derive(Clone, Copy, Debug)]
struct Known {
    number: u64,
    /// A later file says that it was synced whole.
    is_durable: bool,
    /// Up to here it was synced.
    synced: usize,
    /// Where it ends, as it says.
    end: Option<usize>,
}

/// Who is told of each change, and of what was read up to it.
type Each<'e> = &'e mut dyn FnMut(&Change<'_>, &mut Replayed);

/// A reading.
pub(super) struct Reading<'e> {
    pub(super) read: Replayed,
    each: Each<'e>,
}

/// What a journal is, for who looks at it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalHealth {
    /// Whose it is; none where no file says.
    pub name: Option<String>,
    /// The numbers of its first file and its last.
    pub files: Option<(u64, u64)>,
    /// What it has.
    pub read: Replayed,
    /// Changes that are items, those that a rewriting has appended among them.
    pub sets: u64,
    /// Changes that are deletes.
    pub deletes: u64,
    /// Where it ends: the file's number, and the byte behind the last whole record.
    pub end: Option<(u64, u64)>,
}

impl JournalHealth {
    /// Looks at the journal in a directory, which no server may use meanwhile.
    pub fn of(dir: &Path) -> Result<JournalHealth, StoreError> {
        let found = files::find(dir, None)?;
        let (mut sets, mut deletes) = (0, 0);
        let mut each = |change: &Change<'_>, _: &mut Replayed| match change.kind {
            Kind::Set => sets += 1,
            Kind::Delete => deletes += 1,
            _ => {}
        };
        let mut reading = Reading::new(&mut each);
        let end = reading.all(&found)?;
        let read = reading.read;
        let name = found.iter().find_map(Found::name);
        let numbers = found.first().zip(found.last());
        Ok(JournalHealth {
            name: name.map(str::to_owned),
            files: numbers.map(|(first, last)| (first.number, last.number)),
            read,
            sets,
            deletes,
            end: end
                .filter(|&(_, at)| at != usize::MAX)
                .map(|(number, at)| (number, at as u64)),
        })
    }
}

impl<'e> Reading<'e> {
    pub(super) fn new(each: Each<'e>) -> Reading<'e> {
        Reading {
            read: Replayed::default(),
            each,
        }
    }

    /// Reads all; the file in which the journal ends, and where.
    pub(super) fn all(&mut self, files: &[Found]) -> Result<Option<(u64, usize)>, StoreError> {
        let durable_upto = files.iter().rposition(|one| one.word(FOLLOWS_WHOLE) == 1);
        let mut follows = files.first().map_or(0, |one| one.number);
        for (at, file) in files.iter().enumerate() {
            let known = Known {
                number: file.number,
                is_durable: durable_upto.is_some_and(|upto| at < upto),
                synced: file.word(SYNCED) as usize,
                end: file.end(),
            };
            let is_missed = file.number != follows || file.page.is_none();
            let is_lost = is_missed && !file.is_blank;
            self.read.damaged += u64::from(is_lost);
            if is_missed && !known.is_durable && durable_upto != Some(at) {
                // Nothing says that there was anything durable in it, or behind it.
                let before = at.checked_sub(1).map_or(0, |before| files[before].number);
                return Ok(Some((before, usize::MAX)));
            }
            follows = file.number + 1;
            if file.page.is_none() {
                continue;
            }
            if let Ending::Torn(end) = self.file(file, known)? {
                return Ok(Some((file.number, end)));
            }
        }
        Ok(None)
    }

    fn file(&mut self, file: &Found, known: Known) -> Result<Ending, StoreError> {
        let bytes = match LogFile::read(&file.path, true) {
            Ok(read) => read.bytes,
            Err(error @ MediaError::File { .. }) => return Err(error.into()),
            Err(_) => {
                self.read.damaged += 1;
                return Ok(Ending::Whole);
            }
        };
        self.read.file_bytes += bytes.len() as u64;
        let end = known.end.unwrap_or(bytes.len()).min(bytes.len());
        let mut at = 0;
        while at < end {
            let seed = record::seed(known.number, at);
            if let Some((change, len)) = Change::decode(&bytes[at..], seed) {
                self.read.changes += 1;
                self.read.bytes += len as u64;
                (self.each)(&change, &mut self.read);
                at += len;
                continue;
            }
            // What had been synced has another record behind it; else the journal ends here.
            let was_synced = known.is_durable && known.end.is_some() || at < known.synced;
            let looks_on = was_synced || known.is_durable;
            let next = looks_on.then(|| next_record(&bytes[..end], at, known.number));
            let next = next.flatten();
            self.read.damaged += u64::from(was_synced || next.is_some());
            match next {
                Some(next) => at = next,
                None if known.is_durable => return Ok(Ending::Whole),
                None => return Ok(Ending::Torn(at)),
            }
        }
        let is_whole = known.is_durable || known.end == Some(at);
        Ok(if is_whole {
            Ending::Whole
        } else {
            Ending::Torn(at)
        })
    }
}

/// Where the next record begins behind one that is none.
fn next_record(bytes: &[u8], from: usize, number: u64) -> Option<usize> {
    let mut places = (from + record::ALIGN..bytes.len()).step_by(record::ALIGN);
    places.find(|&at| Change::decode(&bytes[at..], record::seed(number, at)).is_some())
}
