//! Where things are on the medium: the superblock and the table of chunks. `docs/format.md`,
//! "Heap", says it byte by byte.

use super::{CLASS_BYTES, Class, PM_UNIT_BYTES};
use nyx_base::Bytes;
use nyx_media::pmem::{LINE_WORDS, Pmem, WORD_BYTES, Word};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Relaxed;
use xxhash_rust::xxh3::xxh3_64;

/// "NYXHEAP" and a zero byte.
const MAGIC: u64 = u64::from_le_bytes(*b"NYXHEAP\0");
/// The format that this build writes and reads.
const VERSION: u32 = 1;
/// Bytes before the table.
const SUPERBLOCK_BYTES: u64 = 4096;
/// The line of the generation.
const GENERATION_AT: u64 = 64;
/// The bits of its word that count; the others check them.
const GENERATION_MASK: u64 = (1 << 40) - 1;
/// The line of the roots.
pub(super) const ROOTS_AT: u64 = 128;
/// How many roots a heap has.
pub const ROOTS: usize = LINE_WORDS;
/// How large a chunk may be, in bytes; a power of two.
pub const CHUNK_BYTES: RangeInclusive<u64> = 4096..=2 << 20;
/// More chunks than this are not counted.
const CHUNKS_MAX: u64 = u32::MAX as u64;

/// Why a heap cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// The magic is another.
    #[error("no heap: it begins with {found:#018x} instead of {MAGIC:#018x} (\"NYXHEAP\")")]
    NotAHeap {
        /// The first word.
        found: u64,
    },
    /// A version that this build does not know.
    #[error("a heap of format version {found}; this build reads version {VERSION}")]
    Version {
        /// What it says.
        found: u32,
    },
    /// The superblock contradicts its checksum.
    #[error("the heap's superblock is damaged: its checksum is {found:#018x}, not {right:#018x}")]
    Checksum {
        /// What it says.
        found: u64,
        /// What its bytes give.
        right: u64,
    },
    /// The generation contradicts the bits that check it.
    #[error("the heap's generation is damaged: its word is {found:#018x}, not {right:#018x}")]
    Generation {
        /// What it says.
        found: u64,
        /// What its lower bits give.
        right: u64,
    },
    /// The heap is longer than its medium.
    #[error(
        "a heap of {} on a medium of {}: it was cut off",
        Bytes(*.heap_bytes),
        Bytes(*.medium_bytes)
    )]
    Truncated {
        /// What the superblock says.
        heap_bytes: u64,
        /// What there is.
        medium_bytes: u64,
    },
    /// Chunks of a size that cannot be.
    #[error("chunks of {chunk_bytes} bytes: a power of two from {} to {}",
        CHUNK_BYTES.start(), CHUNK_BYTES.end())]
    ChunkBytes {
        /// What was asked for or found.
        chunk_bytes: u64,
    },
    /// There is no room for a single chunk.
    #[error(
        "a medium of {medium_bytes} bytes is too small for a heap with chunks of {chunk_bytes}"
    )]
    TooSmall {
        /// What there is.
        medium_bytes: u64,
        /// What a chunk takes.
        chunk_bytes: u64,
    },
    /// A chunk serves a size that there is not.
    #[error("the heap's table is damaged: chunk {chunk} serves size class {found}")]
    Class {
        /// Which chunk.
        chunk: u32,
        /// Its word.
        found: u64,
    },
}

/// Sizes and places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) id: u64,
    heap_bytes: u64,
    pub(super) chunk_bytes: u64,
    pub(super) chunk_count: u32,
    pub(super) chunks_at: u64,
}

impl Layout {
    fn new(id: u64, heap_bytes: u64, chunk_bytes: u64) -> Result<Layout, HeapError> {
        if !chunk_bytes.is_power_of_two() || !CHUNK_BYTES.contains(&chunk_bytes) {
            return Err(HeapError::ChunkBytes { chunk_bytes });
        }
        // The table is as long as if the superblock and itself were chunks too.
        let most = (heap_bytes / chunk_bytes).min(CHUNKS_MAX);
        let chunks_at = (SUPERBLOCK_BYTES + most * WORD_BYTES).next_multiple_of(chunk_bytes);
        let chunk_count = (heap_bytes.saturating_sub(chunks_at) / chunk_bytes).min(CHUNKS_MAX);
        if chunk_count == 0 {
            return Err(HeapError::TooSmall {
                medium_bytes: heap_bytes,
                chunk_bytes,
            });
        }
        Ok(Layout {
            id,
            heap_bytes,
            chunk_bytes,
            chunk_count: chunk_count as u32,
            chunks_at,
        })
    }

    /// The first byte of a chunk.
    pub(super) fn begin(&self, chunk: u32) -> u64 {
        self.chunks_at + u64::from(chunk) * self.chunk_bytes
    }

    /// Which chunk an address lies in, and where in it.
    pub(super) fn place(&self, at: u64) -> Option<(u32, u64)> {
        let offset = at.checked_sub(self.chunks_at)?;
        let chunk = offset / self.chunk_bytes;
        (chunk < u64::from(self.chunk_count)).then_some((chunk as u32, offset % self.chunk_bytes))
    }

    fn entry<'p>(&self, pm: &'p impl Pmem, chunk: u32) -> &'p Word {
        &pm.words(SUPERBLOCK_BYTES + u64::from(chunk) * WORD_BYTES, 1)[0]
    }

    /// Which size a chunk serves.
    pub(super) fn class(&self, pm: &impl Pmem, chunk: u32) -> Result<Option<Class>, HeapError> {
        match self.entry(pm, chunk).load(Relaxed) {
            0 => Ok(None),
            word if word <= CLASS_BYTES.len() as u64 => Ok(Some(Class(word as u8 - 1))),
            found => Err(HeapError::Class { chunk, found }),
        }
    }

    /// Says, durably, which size a chunk serves.
    pub(super) fn set_class(&self, pm: &impl Pmem, chunk: u32, class: Option<Class>) {
        let entry = self.entry(pm, chunk);
        pm.store(entry, class.map_or(0, |class| u64::from(class.0) + 1));
        pm.persist(std::slice::from_ref(entry));
    }
}

/// The first page.
#[derive(Debug)]
pub(super) struct Superblock {
    pub(super) layout: Layout,
}

/// The words that the checksum covers.
const COVERED: usize = 5;

impl Superblock {
    /// Writes a new one and an empty table. A crash on the way leaves no heap at all.
    pub(super) fn write(pm: &impl Pmem, chunk_bytes: u64, id: u64) -> Result<(), HeapError> {
        let heap_bytes = pm.size_bytes() / PM_UNIT_BYTES * PM_UNIT_BYTES;
        let layout = Layout::new(id, heap_bytes, chunk_bytes)?;
        let words = pm.words(0, (SUPERBLOCK_BYTES / WORD_BYTES) as usize);
        pm.store(&words[0], 0);
        pm.persist(&words[..LINE_WORDS]);
        let table = pm.words(SUPERBLOCK_BYTES, layout.chunk_count as usize);
        words[1..]
            .iter()
            .chain(table)
            .for_each(|word| pm.store(word, 0));
        pm.flush(words);
        pm.flush(table);
        pm.fence();
        let fields = [MAGIC, u64::from(VERSION), heap_bytes, chunk_bytes, id];
        for (word, value) in words.iter().zip(fields).skip(1) {
            pm.store(word, value);
        }
        pm.store(&words[COVERED], checksum(&fields));
        pm.store(&words[0], MAGIC);
        pm.persist(&words[..LINE_WORDS]);
        Ok(())
    }

    pub(super) fn read(pm: &impl Pmem) -> Result<Superblock, HeapError> {
        let medium_bytes = pm.size_bytes();
        if medium_bytes < SUPERBLOCK_BYTES {
            let chunk_bytes = *CHUNK_BYTES.start();
            return Err(HeapError::TooSmall {
                medium_bytes,
                chunk_bytes,
            });
        }
        let words = pm.words(0, LINE_WORDS);
        let fields: [u64; COVERED] = std::array::from_fn(|i| words[i].load(Relaxed));
        let [magic, version, heap_bytes, chunk_bytes, id] = fields;
        if magic != MAGIC {
            return Err(HeapError::NotAHeap { found: magic });
        }
        if version != u64::from(VERSION) {
            let found = version as u32;
            return Err(HeapError::Version { found });
        }
        let (found, right) = (words[COVERED].load(Relaxed), checksum(&fields));
        if found != right {
            return Err(HeapError::Checksum { found, right });
        }
        if heap_bytes > medium_bytes {
            return Err(HeapError::Truncated {
                heap_bytes,
                medium_bytes,
            });
        }
        let layout = Layout::new(id, heap_bytes, chunk_bytes)?;
        Ok(Superblock { layout })
    }

    /// Counts, durably, that the heap was opened once more. A root that the process before stored
    /// and did not flush, when it was killed, becomes durable before anybody builds on it. (A chunk
    /// whose size is not durable has no block that was handed out.)
    pub(super) fn begin(&self, pm: &impl Pmem) -> Result<u64, HeapError> {
        let words = pm.words(0, (SUPERBLOCK_BYTES / WORD_BYTES) as usize);
        let word = &words[(GENERATION_AT / WORD_BYTES) as usize];
        let found = word.load(Relaxed);
        let last = found & GENERATION_MASK;
        let right = generation_word(last);
        if found != right {
            return Err(HeapError::Generation { found, right });
        }
        let generation = (last + 1) & GENERATION_MASK;
        pm.store(word, generation_word(generation));
        pm.persist(&words[..3 * LINE_WORDS]);
        Ok(generation)
    }
}

/// A generation with bits to check it by: one that came again would make locks of the past look
/// like those of today. Zero is that of a heap that was never opened.
fn generation_word(generation: u64) -> u64 {
    match generation {
        0 => 0,
        _ => generation | xxh3_64(&generation.to_le_bytes()) & !GENERATION_MASK,
    }
}

fn checksum(fields: &[u64; COVERED]) -> u64 {
    let mut bytes = [0; COVERED * 8];
    for (bytes, field) in bytes.chunks_exact_mut(8).zip(fields) {
        bytes.copy_from_slice(&field.to_le_bytes());
    }
    xxh3_64(&bytes)
}
