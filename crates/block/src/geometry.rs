//! Where what lies: blocks, lines and stripes of an image, slots of a fast device.
//!
//! An *image* is the bytes that clients see, as they lie on the deep device. It is cut into
//! *lines*, the unit of the cache, and each line that is cached has a *slot* on the fast device. A
//! line has 1 to 16 *blocks* of 4 KiB, which are valid and dirty one by one. A *stripe* is 64 KiB,
//! whole lines: requests are cut at stripes, so that a piece of one touches a mask of 16 blocks.
//!
//! What it never does: read or write.

use nyx_media::queue::BLOCK_BYTES;
use std::fmt;
use std::ops::Range;

/// Bytes of a stripe, and of the longest line.
pub const STRIPE_BYTES: u64 = 64 << 10;
/// Blocks of a stripe, bits of a [`Mask`].
pub const STRIPE_BLOCKS: u32 = (STRIPE_BYTES / BLOCK_BYTES) as u32;
/// Bytes of the superblock, at the begin of the fast device.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// Bytes of a slot's record, and of its claim.
pub const RECORD_BYTES: u64 = 8;
/// Slots that a fast device has, at most; one number more says "none".
pub const SLOTS_MAX: u32 = u32::MAX - 1;

/// Blocks of a line or of a stripe, the lowest bit the first.
pub type Mask = u16;

/// The sizes that everything else follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    line_bytes: u32,
    slots: u32,
    image_bytes: u64,
}

/// Why a cache cannot have such sizes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGeometry {
    /// The line.
    #[error("a line of {0} bytes: it has 4096, 8192, 16384, 32768 or 65536")]
    Line(u64),
    /// The image.
    #[error(
        "an image of {image_bytes} bytes: with lines of {line_bytes} bytes it has 1 block to \
         {} bytes, in whole blocks of 4096 bytes", (1u64 << 32) * u64::from(*.line_bytes)
    )]
    Image {
        /// Its bytes.
        image_bytes: u64,
        /// Bytes of a line.
        line_bytes: u32,
    },
    /// The fast device.
    #[error("a fast device of {fast_bytes} bytes holds no line of {line_bytes} bytes")]
    Fast {
        /// Its bytes.
        fast_bytes: u64,
        /// Bytes of a line.
        line_bytes: u32,
    },
}

impl Geometry {
    /// As many slots as a fast device of that size holds.
    pub fn fit(
        fast_bytes: u64,
        line_bytes: u64,
        image_bytes: u64,
    ) -> Result<Geometry, BadGeometry> {
        let is_line =
            line_bytes.is_power_of_two() && (BLOCK_BYTES..=STRIPE_BYTES).contains(&line_bytes);
        if !is_line {
            return Err(BadGeometry::Line(line_bytes));
        }
        let line = line_bytes as u32;
        let lines = image_bytes.div_ceil(line_bytes);
        if lines == 0 || lines > 1 << 32 || !image_bytes.is_multiple_of(BLOCK_BYTES) {
            let line_bytes = line;
            return Err(BadGeometry::Image {
                image_bytes,
                line_bytes,
            });
        }
        // Records and claims are rounded up to a block.
        let rounding = 2 * (BLOCK_BYTES - RECORD_BYTES);
        let room = fast_bytes.saturating_sub(SUPERBLOCK_BYTES + rounding);
        let slots = room / (line_bytes + 2 * RECORD_BYTES);
        if slots == 0 {
            let line_bytes = line;
            return Err(BadGeometry::Fast {
                fast_bytes,
                line_bytes,
            });
        }
        Ok(Geometry {
            line_bytes: line,
            slots: slots.min(u64::from(SLOTS_MAX)) as u32,
            image_bytes,
        })
    }

    /// One that was written down; checked as a whole.
    pub fn of(line_bytes: u32, slots: u32, image_bytes: u64) -> Result<Geometry, BadGeometry> {
        let fits = Geometry::fit(u64::MAX, u64::from(line_bytes), image_bytes)?;
        let fast_bytes = 0;
        match (1..=SLOTS_MAX).contains(&slots) {
            true => Ok(Geometry { slots, ..fits }),
            false => Err(BadGeometry::Fast {
                fast_bytes,
                line_bytes,
            }),
        }
    }

    /// Bytes of a line.
    pub fn line_bytes(&self) -> u64 {
        u64::from(self.line_bytes)
    }

    /// Slots of the fast device.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of the image.
    pub fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    /// Blocks of a line.
    pub fn line_blocks(&self) -> u32 {
        self.line_bytes / BLOCK_BYTES as u32
    }

    /// Bytes of the fast device that are used.
    pub fn fast_bytes(&self) -> u64 {
        self.data_at(self.slots)
    }

    /// Where a slot's record is on the fast device.
    pub fn record_at(&self, slot: u32) -> u64 {
        SUPERBLOCK_BYTES + u64::from(slot) * RECORD_BYTES
    }

    /// Where a slot's claim is on the fast device.
    pub fn claim_at(&self, slot: u32) -> u64 {
        self.record_at(slot) + self.records_bytes()
    }

    /// Where a slot's bytes begin on the fast device.
    pub fn data_at(&self, slot: u32) -> u64 {
        let records = 2 * self.records_bytes();
        SUPERBLOCK_BYTES + records + u64::from(slot) * self.line_bytes()
    }

    /// Bytes of all records, in whole blocks.
    fn records_bytes(&self) -> u64 {
        (u64::from(self.slots) * RECORD_BYTES).next_multiple_of(BLOCK_BYTES)
    }

    /// All blocks of a line; the image's last line may have fewer than others.
    pub fn full(&self, line: u32) -> Mask {
        let begin = u64::from(line) * self.line_bytes();
        let bytes = (self.image_bytes - begin).min(self.line_bytes());
        first((bytes / BLOCK_BYTES) as u32)
    }

    /// Lines of a stripe, as far as blocks of a mask lie in them: each line, which of its blocks,
    /// and which block of the stripe is its first.
    pub fn lines_of(&self, stripe: u64, mask: Mask) -> impl Iterator<Item = Part> + use<> {
        let per_line = self.line_blocks();
        let per_stripe = STRIPE_BLOCKS / per_line;
        (0..per_stripe).filter_map(move |nth| {
            let first_block = nth * per_line;
            let blocks = (mask >> first_block) & first(per_line);
            let line = stripe * u64::from(per_stripe) + u64::from(nth);
            (blocks != 0).then_some(Part {
                line: line as u32,
                blocks,
                first_block,
            })
        })
    }

    /// A mask of a stripe's blocks, rounded out to lines and cut at the image's end.
    pub fn whole_lines(&self, stripe: u64, mask: Mask) -> Mask {
        let parts = self.lines_of(stripe, mask);
        parts.fold(0, |all, part| {
            all | (self.full(part.line) << part.first_block)
        })
    }

    /// The stripe of a line, and which of its blocks is the line's first.
    pub fn place_of(&self, line: u32) -> (u64, u32) {
        let at = u64::from(line) * self.line_bytes();
        (at / STRIPE_BYTES, (at % STRIPE_BYTES / BLOCK_BYTES) as u32)
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Geometry {
            line_bytes,
            slots,
            image_bytes,
        } = self;
        write!(
            f,
            "{slots} lines of {line_bytes} bytes before an image of {image_bytes} bytes"
        )
    }
}

/// What a piece touches of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which line of the image.
    pub line: u32,
    /// Which of its blocks.
    pub blocks: Mask,
    /// Which block of the stripe is its first.
    pub first_block: u32,
}

/// The first `count` blocks, at most 16.
pub fn first(count: u32) -> Mask {
    ((1u32 << count) - 1) as Mask
}

/// The blocks of a stripe in which these bytes of it lie.
pub fn blocks_of(bytes: Range<u64>) -> Mask {
    let begin = bytes.start / BLOCK_BYTES;
    let end = bytes.end.div_ceil(BLOCK_BYTES);
    first(end as u32) & !first(begin as u32)
}

/// The bytes from the first block of a mask to its last.
pub fn span(mask: Mask) -> Range<u64> {
    let begin = u64::from(mask.trailing_zeros().min(STRIPE_BLOCKS));
    let end = u64::from(STRIPE_BLOCKS - mask.leading_zeros());
    begin.min(end) * BLOCK_BYTES..end * BLOCK_BYTES
}

/// The runs of neighbours in a mask, as bytes.
pub fn runs(mut mask: Mask) -> impl Iterator<Item = Range<u64>> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let begin = mask.trailing_zeros();
            let len = (mask >> begin).trailing_ones();
            mask &= !(first(len) << begin);
            u64::from(begin) * BLOCK_BYTES..u64::from(begin + len) * BLOCK_BYTES
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_holds_as_many_lines_as_fit_with_their_records() {
        let geometry = Geometry::fit(1 << 20, 4096, 1 << 30).expect("fits");
        assert_eq!(geometry.slots(), 252);
        assert!(geometry.fast_bytes() <= 1 << 20);
        assert_eq!(geometry.data_at(0), 12_288);
        for (line, fast) in [(4096, 20_480), (65536, 100_000), (16384, 77_777)] {
            let geometry = Geometry::fit(fast, line, 1 << 30).expect("fits");
            assert!(geometry.fast_bytes() <= fast, "{geometry}");
        }
        assert!(Geometry::fit(1 << 20, 2048, 1 << 30).is_err());
        assert!(Geometry::fit(1 << 20, 12_288, 1 << 30).is_err());
        assert!(Geometry::fit(16_383, 4096, 1 << 30).is_err());
        assert!(Geometry::fit(1 << 20, 4096, 1000).is_err());
        assert!(Geometry::fit(1 << 20, 4096, (4096 << 32) + 4096).is_err());
    }

    #[test]
    fn the_last_line_may_be_short() {
        let geometry = Geometry::fit(1 << 20, 16384, 5 * 4096).expect("fits");
        assert_eq!((geometry.full(0), geometry.full(1)), (0b1111, 0b1));
        assert_eq!(geometry.whole_lines(0, 0b1_0000), 0b1_0000);
        assert_eq!(geometry.whole_lines(0, 0b0_0010), 0b0_1111);
        let parts: Vec<Part> = geometry.lines_of(0, 0b1_1000).collect();
        assert_eq!(parts.len(), 2);
        assert_eq!((parts[0].line, parts[0].blocks), (0, 0b1000));
        assert_eq!((parts[1].line, parts[1].first_block), (1, 4));
        assert_eq!(geometry.place_of(5), (1, 4));
    }

    #[test]
    fn masks_are_the_blocks_of_bytes() {
        assert_eq!(blocks_of(0..1), 1);
        assert_eq!(blocks_of(4095..4097), 0b11);
        assert_eq!(blocks_of(0..65536), u16::MAX);
        assert_eq!(span(0b0110), 4096..12288);
        assert_eq!(span(u16::MAX), 0..65536);
        let all: Vec<_> = runs(0b1000_0000_0000_0110).collect();
        assert_eq!(all, [4096..12288, 61440..65536]);
    }
}
