//! The begin of the fast device: whose image it caches, in which sizes, and how it was left.
//! The layout is `docs/format.md`, "Fast file of a block export".
//!
//! What it never does: change what it says of the image once it was written; that needs another
//! cache.

use crate::fast::{Fast, NotDurable};
use crate::geometry::{Geometry, SUPERBLOCK_BYTES};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"NYXBLOCK";
/// The format that this build writes and reads.
pub const VERSION: u32 = 1;
/// Bytes of an export's name for its image, at most.
pub const NAME_BYTES: usize = 64;
const CHECK_AT: usize = 112;
const STATE_AT: usize = 2048;
const STATE_CHECK_AT: usize = 48;
const STATE_BYTES: usize = 56;

/// Which image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The device that its file is on, or the device's own number.
    pub device: u64,
    /// The number of its file.
    pub inode: u64,
    /// What its user calls it; empty where it has no name.
    pub name: String,
}

/// How a cache was left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// It was closed in order.
    pub is_clean: bool,
    /// Its barriers held back until the medium had everything, so that it survives a power failure.
    pub survives_power: bool,
    /// The start of the machine at which it was used, as Linux tells it.
    pub boot: [u8; 16],
    /// When the image was changed last, in seconds and nanoseconds since the Unix epoch, as its
    /// file system told when the cache was closed.
    pub changed: (i64, i64),
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The sizes.
    pub geometry: Geometry,
    /// The image.
    pub identity: Identity,
    /// How it was left; none where that was not written as a whole.
    pub state: Option<State>,
}

/// Why a fast device is none of a block export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSuperblock {
    /// Something else.
    #[error("it holds something else than a block cache: it begins with \"{}\"", .0.escape_ascii())]
    Other([u8; 8]),
    /// Another format.
    #[error("it is of format {0}, but this build reads format {VERSION}")]
    Version(u32),
    /// Damage.
    #[error("its superblock is damaged")]
    Damaged,
}

impl Superblock {
    /// What is there; none where there is nothing but zeroes.
    pub fn read(fast: &mut impl Fast) -> Result<Option<Superblock>, BadSuperblock> {
        let mut page = [0; SUPERBLOCK_BYTES as usize];
        if fast.len_bytes() < SUPERBLOCK_BYTES {
            return Ok(None);
        }
        fast.read(0, &mut page);
        if page[..CHECK_AT + 8].iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        Superblock::decode(&page).map(Some)
    }

    fn decode(page: &[u8]) -> Result<Superblock, BadSuperblock> {
        let u32_at = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
        let magic: [u8; 8] = page[..8].try_into().expect("8 bytes");
        if magic != MAGIC {
            return Err(BadSuperblock::Other(magic));
        }
        if u32_at(8) != VERSION {
            return Err(BadSuperblock::Version(u32_at(8)));
        }
        let geometry = Geometry::of(u32_at(12), u32_at(16), u64_at(24));
        let name = page[48..CHECK_AT].split(|&byte| byte == 0).next();
        let name = std::str::from_utf8(name.unwrap_or_default());
        let is_whole = xxh3_64(&page[..CHECK_AT]) == u64_at(CHECK_AT);
        let (Ok(geometry), Ok(name), true) = (geometry, name, is_whole) else {
            return Err(BadSuperblock::Damaged);
        };
        let state = &page[STATE_AT..STATE_AT + STATE_BYTES];
        let state_is_whole =
            xxh3_64(&state[..STATE_CHECK_AT]).to_le_bytes() == state[STATE_CHECK_AT..];
        let i64_at = |at: usize| u64_at(STATE_AT + at).cast_signed();
        Ok(Superblock {
            geometry,
            identity: Identity {
                device: u64_at(32),
                inode: u64_at(40),
                name: name.to_owned(),
            },
            state: state_is_whole.then(|| State {
                is_clean: state[0] != 0,
                survives_power: state[1] != 0,
                boot: state[8..24].try_into().expect("16 bytes"),
                changed: (i64_at(24), i64_at(32)),
            }),
        })
    }

    /// Writes all of it but the state. When the records are zero.
    pub fn write(&self, fast: &mut impl Fast) -> Result<(), NotDurable> {
        fast.write(0, &self.encode());
        let whole = 0..SUPERBLOCK_BYTES;
        fast.persist(std::slice::from_mut(&mut whole.clone()))
    }

    fn encode(&self) -> Vec<u8> {
        let Identity {
            device,
            inode,
            name,
        } = &self.identity;
        assert!(name.len() <= NAME_BYTES, "{name:?} is too long");
        let mut page = Vec::with_capacity(SUPERBLOCK_BYTES as usize);
        page.extend(MAGIC);
        page.extend(VERSION.to_le_bytes());
        page.extend((self.geometry.line_bytes() as u32).to_le_bytes());
        page.extend(self.geometry.slots().to_le_bytes());
        page.extend([0; 4]);
        page.extend(self.geometry.image_bytes().to_le_bytes());
        page.extend(device.to_le_bytes());
        page.extend(inode.to_le_bytes());
        page.extend(name.bytes());
        page.resize(CHECK_AT, 0);
        page.extend(xxh3_64(&page).to_le_bytes());
        page.resize(STATE_AT, 0);
        page.extend(self.state.unwrap_or_default().encode());
        page.resize(SUPERBLOCK_BYTES as usize, 0);
        page
    }
}

impl State {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.is_clean), u8::from(self.survives_power)];
        bytes.resize(8, 0);
        bytes.extend(self.boot);
        bytes.extend(self.changed.0.to_le_bytes());
        bytes.extend(self.changed.1.to_le_bytes());
        bytes.resize(STATE_CHECK_AT, 0);
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// Writes it. What is not written as a whole is found as none.
    pub fn write(&self, fast: &mut impl Fast) -> Result<(), NotDurable> {
        let at = STATE_AT as u64;
        fast.write(at, &self.encode());
        let range = at..at + STATE_BYTES as u64;
        fast.persist(std::slice::from_mut(&mut range.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            geometry: Geometry::of(4096, 7, 1 << 20).expect("sound"),
            identity: Identity {
                device: 0x11,
                inode: 0x22,
                name: "root".to_owned(),
            },
            state: Some(State {
                is_clean: true,
                survives_power: true,
                boot: [9; 16],
                changed: (-1, 5),
            }),
        }
    }

    /// Byte for byte, so that no edit changes the format unnoticed.
    #[test]
    fn the_superblock_is_the_documented_bytes() {
        let page = sample().encode();
        let mut golden = b"NYXBLOCK\x01\0\0\0\0\x10\0\0\x07\0\0\0\0\0\0\0".to_vec();
        golden.extend([0, 0, 0x10, 0, 0, 0, 0, 0]);
        golden.extend([0x11, 0, 0, 0, 0, 0, 0, 0, 0x22, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend(b"root");
        golden.resize(112, 0);
        assert_eq!(page[..112], golden);
        assert_eq!(page[112..120], xxh3_64(&golden).to_le_bytes());
        let mut state = vec![1, 1, 0, 0, 0, 0, 0, 0];
        state.extend([9; 16]);
        state.extend([0xff; 8]);
        state.extend([5, 0, 0, 0, 0, 0, 0, 0]);
        state.resize(48, 0);
        assert_eq!(page[2048..2096], state);
        assert_eq!(page[2096..2104], xxh3_64(&state).to_le_bytes());
        assert!(page.len() == 4096 && page[2104..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn it_is_read_as_it_was_written_and_damage_is_noticed() {
        let page = sample().encode();
        assert_eq!(Superblock::decode(&page), Ok(sample()));
        let with = |at: usize| {
            let mut page = page.clone();
            page[at] ^= 1;
            Superblock::decode(&page)
        };
        assert!(matches!(with(0), Err(BadSuperblock::Other(_))));
        assert_eq!(with(8), Err(BadSuperblock::Version(0)));
        assert_eq!(with(50), Err(BadSuperblock::Damaged));
        assert_eq!(with(2050).map(|found| found.state), Ok(None));
    }
}
