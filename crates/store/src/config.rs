//! What a store is made from, and why it may refuse to be made.

use nyx_base::Nanos;
use nyx_index::ordered::PutError;
use nyx_media::MediaError;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The shape of one tenant's store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// All bytes that the tenant may use: values, keys, index and tables together.
    pub size: u64,
    /// Where its range on the medium begins, in bytes; a multiple of `segment_bytes` is best.
    pub medium_base: u64,
    /// The length of its range on the medium in bytes. `size` is enough for any mix of items.
    pub medium_len: u64,
    /// Bytes of values per segment: a power of two, 64 KiB to 1 GiB.
    pub segment_bytes: u32,
    /// The longest value in bytes that is accepted; at most `segment_bytes` and 16 MiB - 1.
    pub item_len_max: u32,
    /// Which items go when the tenant is full.
    pub eviction: Eviction,
    /// Where keys lie.
    pub layout: Layout,
    /// How many workers will share the store.
    pub workers: u16,
    /// Seeds the hash of keys, so that clients cannot aim at one bucket. A store that goes on with
    /// an image goes on with the image's.
    pub hash_seed: u64,
    /// Where its tables are to survive; none where they are gone with the process.
    pub keep: Option<Keep>,
    /// What keeps its keys in order, for ranges; none where nobody asks for those.
    pub order: Option<Tree>,
    /// Its part of a deep device; none where it has none.
    pub deep: Option<DeepPart>,
}

/// A tenant's part of a deep device: values that leave the fast one lie there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeepPart {
    /// The id of its file: what a store that survives has there is in no other.
    pub id: [u8; 16],
    /// Where its range on the device begins, in bytes; a multiple of 4 KiB.
    pub base: u64,
    /// The length of that in bytes, of which whole segments are used.
    pub len: u64,
    /// Values of less bytes do not go there.
    pub item_len_min: u32,
    /// Bytes that may be written to it in a day; none where there is no bound.
    pub day_bytes: Option<u64>,
    /// Where new items are written.
    pub write: WriteMode,
}

/// Where a new item of a tenant on two devices is written. Answered are all of them at once:
/// nothing waits for the deep device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteMode {
    /// To the fast device; to the deep one when it leaves that.
    #[default]
    Back,
    /// To both, as far as there is a stage.
    Through,
    /// To the deep device, where there is a stage; to the fast one when it is asked for often.
    Around,
}

impl WriteMode {
    /// Every mode.
    pub const ALL: [WriteMode; 3] = [WriteMode::Back, WriteMode::Through, WriteMode::Around];
}

impl fmt::Display for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            WriteMode::Back => "back",
            WriteMode::Through => "through",
            WriteMode::Around => "around",
        })
    }
}

/// What keeps keys in order (`nyx-index` has what each is good at).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tree {
    /// FAST-FAIR, a B+tree: the fastest ranges.
    #[default]
    FastFair,
    /// FAST-FAIR that is told of keys later: a key that comes or goes waits for the hash alone, and
    /// a range for the tree (HybridIndex's way).
    Hybrid,
    /// FP-Tree, with unsorted leaves: the fastest to change on persistent memory.
    FpTree,
    /// A skip list: memory follows what is stored.
    SkipList,
}

impl Tree {
    /// Every tree.
    pub const ALL: [Tree; 4] = [Tree::FastFair, Tree::Hybrid, Tree::FpTree, Tree::SkipList];
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Tree::FastFair => "fast-fair",
            Tree::Hybrid => "hybrid",
            Tree::FpTree => "fp-tree",
            Tree::SkipList => "skip-list",
        })
    }
}

/// How a store survives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Its image, a file that is created where there is none. It grows with what the store holds,
    /// up to twice the store's size.
    pub path: PathBuf,
    /// Whose image it is: it is not used for another.
    pub name: String,
    /// What it survives.
    pub durability: Durability,
    /// The id of the data file that its values are in.
    pub data_id: [u8; 16],
    /// What the image is opened for.
    pub purpose: Purpose,
    /// What makes changes survive a power failure; none where they need not.
    pub journal: Option<Journaling>,
}

/// How changes are kept in a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journaling {
    /// The directory of its files, made where there is none; nothing else may be in it.
    pub dir: PathBuf,
    /// Whose journal it is: it is not used for another.
    pub name: String,
    /// When a change is durable.
    pub sync: SyncMode,
    /// Bytes of each of its files; none for what suits the tenant's size.
    pub file_bytes: Option<u64>,
}

/// When a change survives a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncMode {
    /// So long after it was made, and as much as the disk takes for it.
    Every(Nanos),
    /// Before it is acknowledged.
    Each,
}

impl fmt::Display for SyncMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyncMode::Every(period) => write!(f, "{}ms", period.0 / 1_000_000),
            SyncMode::Each => f.pad("each"),
        }
    }
}

/// What an image is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// To be used, if it may be; the index is made anew from the items where it cannot be used.
    #[default]
    Serve,
    /// To be looked at, however it was left: the file stays as it is.
    Look,
    /// To keep all that is sound of it, however it was left: the index is made anew.
    Repair,
}

/// What a store survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// That its process stops in order.
    Warm,
    /// That its process is killed, too.
    Crash,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Durability::Warm => "warm",
            Durability::Crash => "crash",
        })
    }
}

/// Which items go when a tenant is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Eviction {
    /// The oldest segment, whole.
    Fifo,
    /// The oldest segment; items that were accessed since they were written are written again, once
    /// (CLOCK, an approximation of LRU).
    Lru,
    /// The oldest segment, except its items that are among the frequently used.
    Lfu,
    /// A small queue, a main queue and a ghost queue (Yang et al., "FIFO queues are all you need
    /// for cache eviction", SOSP'23).
    #[default]
    S3Fifo,
    /// Several old segments into one that keeps the most frequent per byte (Yang et al.,
    /// "Segcache", NSDI'21).
    Merge,
}

impl Eviction {
    /// Every policy, in the order of the documentation.
    pub const ALL: [Eviction; 5] = [
        Eviction::Fifo,
        Eviction::Lru,
        Eviction::Lfu,
        Eviction::S3Fifo,
        Eviction::Merge,
    ];

    fn name(self) -> &'static str {
        match self {
            Eviction::Fifo => "fifo",
            Eviction::Lru => "lru",
            Eviction::Lfu => "lfu",
            Eviction::S3Fifo => "s3-fifo",
            Eviction::Merge => "merge",
        }
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Eviction {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Eviction, StoreError> {
        Eviction::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| StoreError::UnknownEviction(text.to_owned()))
    }
}

/// Where keys lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Header and key in DRAM, value on the medium by non-temporal stores (NyxCache section 3.5).
    #[default]
    Split,
    /// Header, key and value together on the medium by cached stores: the unoptimised store that
    /// NyxCache's Figure 4 compares with.
    Inline,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Layout::Split => "split",
            Layout::Inline => "inline",
        })
    }
}

impl FromStr for Layout {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Layout, StoreError> {
        match text {
            "split" => Ok(Layout::Split),
            "inline" => Ok(Layout::Inline),
            _ => Err(StoreError::UnknownLayout(text.to_owned())),
        }
    }
}

/// Why a store cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Not the name of an eviction policy.
    #[error("{0:?} is no eviction policy: choose fifo, lru, lfu, s3-fifo or merge")]
    UnknownEviction(String),
    /// Not the name of a layout.
    #[error("{0:?} is no layout: choose split or inline")]
    UnknownLayout(String),
    /// A segment must be a power of two within bounds.
    #[error("a segment of {0} B is not a power of two from 64 KiB to 1 GiB")]
    SegmentBytes(u32),
    /// The largest item must fit a segment.
    #[error("items of up to {item} B do not fit segments of {segment} B (and 16 MiB - 1 at most)")]
    ItemLenMax {
        /// The asked `item_len_max`.
        item: u32,
        /// The asked `segment_bytes`.
        segment: u32,
    },
    /// The budget does not hold the segments that the workers keep open.
    #[error("{size} B are too few: {workers} workers and segments of {segment} B take {needed} B")]
    TooSmall {
        /// The asked `size` in bytes.
        size: u64,
        /// The asked `segment_bytes`.
        segment: u32,
        /// How many workers.
        workers: u16,
        /// The least `size` in bytes.
        needed: u64,
    },
    /// Places have 32 bits.
    #[error("{size} B are too many for one tenant: at most {most} B in this layout")]
    TooLarge {
        /// The asked size in bytes.
        size: u64,
        /// The most in bytes.
        most: u64,
    },
    /// Not every store can survive.
    #[error(
        "a tenant that survives has its keys apart from its values (layout \"split\") and at most \
         {workers_max} workers"
    )]
    CannotKeep {
        /// The most workers.
        workers_max: usize,
    },
    /// Not every store can have a deep device.
    #[error("a tenant with a deep device {0}")]
    CannotBeDeep(&'static str),
    /// A part of a deep device that holds next to nothing.
    #[error("{len} B of a deep device are too few: segments of {segment} B take {needed} B")]
    TooShallow {
        /// The asked length in bytes.
        len: u64,
        /// The asked `segment_bytes`.
        segment: u32,
        /// The least length in bytes.
        needed: u64,
    },
    /// An image that was made for another tenant.
    #[error("{}: the image of tenant {made:?}, not of {asked:?}", path.display())]
    OtherTenant {
        /// The image.
        path: PathBuf,
        /// Whose it is.
        made: String,
        /// Who wants it.
        asked: String,
    },
    /// An image that was made for a store of another shape.
    #[error(
        "{}: made for {what} of {made} B, and {asked} B are asked for now; go back to that, or \
         remove the file to begin empty",
        path.display()
    )]
    OtherShape {
        /// The image.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// As it was made, in bytes.
        made: u64,
        /// As it is asked for, in bytes.
        asked: u64,
    },
    /// An image that cannot be used.
    #[error("{}: damaged: {reason}; remove the file to begin empty", path.display())]
    Damaged {
        /// The image.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tree of keys cannot be made.
    #[error("no memory for the order of keys: {0}")]
    Order(#[from] PutError),
    /// DRAM for keys or the index cannot be reserved, or an image not used.
    #[error("no memory for keys or index: {0}")]
    Memory(#[from] MediaError),
}
