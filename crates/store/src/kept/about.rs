//! What the image of a tenant says of whom it was made for, and whether that is who asks for it.
//!
//! What it never does: look at the parts of an image.

use crate::config::{Durability, Eviction, Keep, Layout, Purpose, StoreConfig, StoreError};
use crate::header::VALUE_LEN_LIMIT;
use nyx_media::{Image, Left};
use std::ops::Range;
use std::path::Path;

/// The layout of a tenant's image.
const FORMAT: u32 = 2;

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
    /// The tenant's name.
    pub name: String,
}

impl About {
    pub(super) fn of(config: &StoreConfig, keep: &Keep) -> About {
        About {
            size: config.size,
            medium_base: config.medium_base,
            medium_len: config.medium_len,
            segment_bytes: u64::from(config.segment_bytes),
            hash_seed: config.hash_seed,
            data_id: keep.data_id,
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
        bytes.extend(self.name.as_bytes());
        bytes
    }

    /// The format, and what follows in the one that this build knows.
    fn read(bytes: &[u8]) -> Option<(u32, About)> {
        let word = |at: usize| {
            let bytes: [u8; 8] = bytes.get(at..at + 8)?.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        };
        let first = word(0)?;
        let name = bytes.get(64..64 + (first >> 32) as usize)?;
        let about = About {
            size: word(8)?,
            medium_base: word(16)?,
            medium_len: word(24)?,
            segment_bytes: word(32)?,
            hash_seed: word(40)?,
            data_id: bytes.get(48..64)?.try_into().ok()?,
            name: String::from_utf8_lossy(name).into_owned(),
        };
        Some((first as u32, about))
    }

    /// What an image says of its tenant.
    pub fn of_image(image: &Image) -> Result<About, StoreError> {
        let damaged = |reason: String| StoreError::Damaged {
            path: image.path().to_owned(),
            reason,
        };
        match About::read(image.about()) {
            Some((FORMAT, about)) => Ok(about),
            Some((other, _)) => Err(damaged(format!(
                "it is of format {other}, and this build knows {FORMAT} only"
            ))),
            None => Err(damaged("it does not say what it is for".to_owned())),
        }
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
            deep: None,
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

/// The range of the medium that a tenant's image names; none where there is no image, or none of
/// that data file.
pub fn range_in_image(keep: &Keep) -> Option<Range<u64>> {
    let image = Image::open(&keep.path).ok()??;
    let (_, about) = About::read(image.about())?;
    if about.data_id != keep.data_id {
        return None;
    }
    Some(about.medium_base..about.medium_base.checked_add(about.medium_len)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_format_is_refused_by_its_number() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("image");
        let mut bytes = vec![0; 64];
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
}
