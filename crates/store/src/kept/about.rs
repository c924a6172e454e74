//! What the image of a tenant says of whom it was made for, and whether that is who asks for it.
//!
//! What it never does: look at the parts of an image.

use crate::config::{
    DeepPart, Durability, Eviction, Keep, Layout, Purpose, StoreConfig, StoreError, WriteMode,
};
use crate::header::VALUE_LEN_LIMIT;
use nyx_media::{Image, Left};
use std::ops::Range;
use std::path::Path;

/// The layout of a tenant's image.
const FORMAT: u32 = 3;
/// Where the tenant's name begins.
const NAME_AT: usize = 96;

/// What an image says of the tenant that it was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// All bytes that the tenant may use.
    pub size: u64,
    /// Where its range on the medium begins, in bytes.
    pub medium_base: u64,
    /// How long that is, in bytes.
    pub medium_len: u64,
    /// Bytes of values per segment.
    pub segment_bytes: u64,
    /// Seeds the hash of keys.
    pub hash_seed: u64,
    /// The id of the data file that its values are in.
    pub data_id: [u8; 16],
    /// Where the values of its deep segments are; none where it has no deep device.
    pub deep: Option<DeepRange>,
    /// The tenant's name.
    pub name: String,
}

/// A tenant's range of a deep device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeepRange {
    /// The id of the device's file.
    pub id: [u8; 16],
    /// Where it begins, in bytes.
    pub base: u64,
    /// How long it is, in bytes.
    pub len: u64,
}

impl DeepRange {
    /// That of a tenant's part of a device.
    pub(super) fn of(part: &DeepPart) -> DeepRange {
        let &DeepPart { id, base, len, .. } = part;
        DeepRange { id, base, len }
    }

    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        self.base.saturating_add(self.len)
    }
}

impl About {
    /// The layout that this build writes and reads.
    pub const FORMAT: u32 = FORMAT;

    pub(super) fn of(config: &StoreConfig, keep: &Keep) -> About {
        About {
            size: config.size,
            medium_base: config.medium_base,
            medium_len: config.medium_len,
            segment_bytes: u64::from(config.segment_bytes),
            hash_seed: config.hash_seed,
            data_id: keep.data_id,
            deep: config.deep.as_ref().map(DeepRange::of),
            name: keep.name.clone(),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend((self.name.len() as u32).to_le_bytes());
        for word in [
            self.size,
            self.medium_base,
            self.medium_len,
            self.segment_bytes,
            self.hash_seed,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.data_id);
        let none = DeepRange {
            id: [0; 16],
            base: 0,
            len: 0,
        };
        let DeepRange { id, base, len } = self.deep.unwrap_or(none);
        bytes.extend(base.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend(id);
        assert_eq!(bytes.len(), NAME_AT);
        bytes.extend(self.name.as_bytes());
        bytes
    }

    /// What is said in the format that this build knows.
    fn read(bytes: &[u8]) -> Option<About> {
        let word = |at: usize| {
            let bytes: [u8; 8] = bytes.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let id = |at: usize| bytes.get(at..at + 16)?.try_into().ok();
        let name_len = (word(0)? >> 32) as usize;
        let name = bytes.get(NAME_AT..NAME_AT + name_len)?;
        let deep = DeepRange {
            base: word(64)?,
            len: word(72)?,
            id: id(80)?,
        };
        let about = About {
            size: word(8)?,
            medium_base: word(16)?,
            medium_len: word(24)?,
            segment_bytes: word(32)?,
            hash_seed: word(40)?,
            data_id: id(48)?,
            deep: (deep.len > 0).then_some(deep),
            name: String::from_utf8_lossy(name).into_owned(),
        };
        Some(about)
    }

    /// What an image says of its tenant.
    pub fn of_image(image: &Image) -> Result<About, StoreError> {
        let damaged = |reason: String| StoreError::Damaged {
            path: image.path().to_owned(),
            reason,
        };
        let format = image.about().first_chunk::<4>().copied();
        match format.map(u32::from_le_bytes) {
            Some(FORMAT) => About::read(image.about()),
            Some(other) => {
                let reason = format!("it is of format {other}, and this build knows {FORMAT} only");
                return Err(damaged(reason));
            }
            None => None,
        }
        .ok_or_else(|| damaged("it does not say what it is for".to_owned()))
    }

    /// A store for one thread that goes on with the image at `path` for `purpose`, however it was
    /// left. Its policy of eviction is not known, and is of no matter to who stores nothing.
    pub fn store(&self, path: &Path, purpose: Purpose) -> StoreConfig {
        let segment_bytes = u32::try_from(self.segment_bytes).unwrap_or_default();
        StoreConfig {
            size: self.size,
            medium_base: self.medium_base,
            medium_len: self.medium_len,
            segment_bytes,
            item_len_max: segment_bytes.min(VALUE_LEN_LIMIT),
            eviction: Eviction::default(),
            layout: Layout::Split,
            workers: 1,
            hash_seed: self.hash_seed,
            order: None,
            deep: self.deep.map(|DeepRange { id, base, len }| DeepPart {
                id,
                base,
                len,
                item_len_min: 0,
                day_bytes: None,
                write: WriteMode::Back,
            }),
            keep: Some(Keep {
                path: path.to_owned(),
                name: self.name.clone(),
                durability: Durability::Crash,
                data_id: self.data_id,
                purpose,
                journal: None,
            }),
        }
    }

    /// Whether it was made for this tenant. Another shape is an error: it takes somebody's decision
    /// to throw the items away.
    pub(super) fn check(&self, config: &StoreConfig, keep: &Keep) -> Result<(), StoreError> {
        let differs = |what, made: u64, asked: u64| {
            (made != asked).then(|| StoreError::OtherShape {
                path: keep.path.clone(),
                what,
                made,
                asked,
            })
        };
        if self.name != keep.name {
            return Err(StoreError::OtherTenant {
                path: keep.path.clone(),
                made: self.name.clone(),
                asked: keep.name.clone(),
            });
        }
        let segment_bytes = u64::from(config.segment_bytes);
        let found = differs("a size", self.size, config.size)
            .or_else(|| differs("segments", self.segment_bytes, segment_bytes))
            .or_else(|| differs("a range", self.medium_len, config.medium_len))
            .or_else(|| differs("a range from", self.medium_base, config.medium_base));
        found.map_or(Ok(()), Err)
    }

    /// Why nothing of an image can be used, where that is so.
    pub(super) fn why_empty(&self, image: &Image, keep: &Keep) -> Option<String> {
        if keep.purpose != Purpose::Serve {
            return None;
        }
        if self.data_id != keep.data_id {
            return Some("its values were in another data file, which is not there".to_owned());
        }
        let why = match (image.left(), keep.durability) {
            (Left::Lost, _) => {
                "it was not closed before the machine was started again, or before its tenant had \
                 no durability"
            }
            (Left::Killed, Durability::Warm) => "it was not closed, and durability is \"warm\"",
            _ => return None,
        };
        Some(why.to_owned())
    }
}

/// The range of the medium that a tenant's image names, and that of a deep device; none where there
/// is no image, or none of that data file.
pub fn ranges_in_image(keep: &Keep) -> Option<(Range<u64>, Option<DeepRange>)> {
    let image = Image::open(&keep.path).ok()??;
    let about = About::of_image(&image).ok()?;
    if about.data_id != keep.data_id {
        return None;
    }
    let end = about.medium_base.checked_add(about.medium_len)?;
    Some((about.medium_base..end, about.deep))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_format_is_refused_by_its_number() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("image");
        let mut bytes = vec![0; NAME_AT];
        for (format, is_known) in [(FORMAT - 1, false), (FORMAT, true), (FORMAT + 1, false)] {
            bytes[..4].copy_from_slice(&format.to_le_bytes());
            let image = Image::create(&path, &bytes, 4096).expect("a new image");
            match About::of_image(&image) {
                Ok(_) => assert!(is_known, "{format}"),
                Err(error) => {
                    let told = error.to_string();
                    let knows = format!("format {format}, and this build knows {FORMAT} only");
                    assert!(!is_known && told.contains(&knows), "{told}");
                }
            }
        }
    }

    /// Byte for byte, so that no edit changes the format unnoticed.
    #[test]
    fn what_is_said_is_the_documented_bytes() {
        let mut about = About {
            size: 1,
            medium_base: 2,
            medium_len: 3,
            segment_bytes: 4,
            hash_seed: 5,
            data_id: [6; 16],
            deep: Some(DeepRange {
                id: [7; 16],
                base: 8,
                len: 9,
            }),
            name: "web".to_owned(),
        };
        let words = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        let head = [words(&[3 << 32 | 3, 1, 2, 3, 4, 5]), vec![6; 16]].concat();
        let golden = [&head[..], &words(&[8, 9]), &[7; 16], b"web"].concat();
        assert_eq!(about.encode(), golden);
        assert_eq!(About::read(&golden).as_ref(), Some(&about));
        about.deep = None;
        let golden = [&head[..], &[0; 32], b"web"].concat();
        assert_eq!(about.encode(), golden);
        assert_eq!(About::read(&golden[..golden.len() - 1]), None);
        assert_eq!(About::read(&golden), Some(about));
    }
}
