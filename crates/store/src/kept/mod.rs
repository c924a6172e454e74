//! A store that survives its process: its tables lie in an image, and what is found there when it
//! is opened again is put right (docs/decisions/0008-tenants-that-survive.md). The layout is
//! `docs/format.md`, "Image of a tenant".
//!
//! At the start, in time that grows with segments and chunks but not with items:
//!
//! * segments that were open, being filled or being emptied, are sealed; their chunks are those
//!   whose entries name them and are younger than their use;
//! * deep segments that have a stage wait to be written, the oldest first, whether that had begun
//!   or not: what they hold is served from the stage, which is left when all of it is written.
//!   Those of another deep device than the tenant's are forgotten (`deep`);
//! * how far a chunk was filled that nobody closed is found by reading it, item by item;
//! * a worker notes the item that it is about to take out of the index before it does: if that is
//!   out, it is marked as dead, as the worker would have done. So is the last item of a chunk, if
//!   it was never published.
//!
//! After that the store serves. Chains of the index are put right by who needs them, and by
//! [`crate::Store::sweep`]; until it is through, a value is compared with its check before it is
//! given out.
//!
//! What it never does: believe a number from an image before it was checked against what must be
//! so.
//!
//! *Thread safety*: opening is done by one thread; the rest as `store`.

mod about;
mod deep;
mod found;
mod look;
mod remake;

pub use about::{About, DeepRange, ranges_in_image};
pub use deep::DeepLoss;
pub use look::{DeepHealth, Health};
pub use remake::Remade;

use crate::chunks::{Chunks, Entry};
use crate::config::{Purpose, StoreConfig, StoreError};
use crate::items::Items;
use crate::segment::{SEQ_MAX, Segment, Segments};
use crate::shape::Plan;
use crate::stage::Stages;
use nyx_base::{UnixSeconds, WorkerId};
use nyx_index::{Hash, HashGround, Place};
use nyx_media::{Array, Image, Left, MediaError, Region};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::Release};

/// Words before the workers' notes.
const NOTES: usize = 8;
const FLUSH_MARK: usize = 0;
const FLUSH_DUE: usize = 1;
/// The number of the newest file of the tenant's journal; zero where it has none.
const JOURNAL: usize = 2;
/// 1 where that journal has all that the image does.
const JOURNAL_WHOLE: usize = 3;
/// The mark of the last flush that the journal was told of.
const FLUSH_TOLD: usize = 4;
/// Workers that may have notes.
const WORKERS_MAX: usize = 1024;
/// Behind the notes: of each worker the hash of the key that it changes, in image and journal.
const INTENTS: usize = NOTES + WORKERS_MAX;
const CONTROL_WORDS: usize = INTENTS + WORKERS_MAX;
/// Parts of an image begin at a page; large ones at a large page.
const PAGE_BYTES: u64 = 4096;
const LARGE_PAGE_BYTES: u64 = 2 << 20;

/// What a store of an image has besides its items.
#[derive(Debug)]
pub(crate) struct Kept {
    image: Image,
    /// Bytes of its tables, which it always has.
    table_bytes: u64,
    control: Array<AtomicU64>,
    /// Of each segment that was found: items and bytes that the sweep saw alive.
    live: Box<[AtomicU64]>,
    /// Items whose value was another than the sweep expected.
    damaged: AtomicU64,
    /// The sweep has ended.
    recounted: AtomicBool,
    beginning: Beginning,
    deep_loss: Option<DeepLoss>,
}

/// How a store that survives began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// Its image is new.
    New,
    /// There was an image, but none to go on with; the reason.
    Empty(String),
    /// It goes on with what its image holds, which was closed in order.
    Stopped,
    /// The same, and its last user was killed.
    Killed,
    /// It goes on with the items of its image, whose index was made anew.
    Remade {
        /// What the index had, where it could not be used; none where somebody asked for it.
        why: Option<String>,
        /// What the records gave.
        from: Remade,
    },
}

/// What a store is made of, wherever that lies.
pub(crate) struct Ground {
    pub(crate) items: Items,
    pub(crate) index: Hash,
    pub(crate) kept: Option<Box<Kept>>,
}

/// Where the parts of an image are.
struct Parts {
    control: u64,
    entries: u64,
    counts: u64,
    buckets: u64,
    pool: u64,
    keys: u64,
    segments: u64,
    stages: u64,
    /// Bytes of the page and of the parts that are whole from the start.
    table_bytes: u64,
    end: u64,
}

impl Beginning {
    /// Whether there are items from before.
    pub fn is_found(&self) -> bool {
        matches!(
            self,
            Beginning::Stopped | Beginning::Killed | Beginning::Remade { .. }
        )
    }
}

impl Ground {
    /// Memory that is gone with the process.
    pub(crate) fn anonymous(plan: &Plan, config: &StoreConfig) -> Result<Ground, MediaError> {
        let chunks = plan.chunk_count.map(|count| {
            let keys = Region::reserve(Chunks::bytes(count), plan.huge)?;
            let entries = Array::reserve(count as usize, false)?;
            Ok::<_, MediaError>(Chunks::over(keys, entries))
        });
        let depth = plan.space.depth;
        let segments = plan.segments + depth.segments;
        let segments = Array::reserve(segments as usize, false)?;
        let segments = Segments::over(segments, config.workers);
        let stages = (depth.stages > 0).then(|| {
            let bytes = Stages::bytes(depth.stages, config.segment_bytes);
            let region = Region::reserve(bytes, plan.huge)?;
            Ok::<_, MediaError>(Stages::over(region, depth.stages, config.segment_bytes))
        });
        let deep = (plan.segments, stages.transpose()?);
        Ok(Ground {
            items: Items::new(chunks.transpose()?, segments, deep, config),
            index: Hash::new(plan.index)?,
            kept: None,
        })
    }

    /// The parts of an image; of one that is found, the hash's seed is taken over.
    pub(crate) fn kept(plan: &Plan, config: &mut StoreConfig) -> Result<Ground, StoreError> {
        let keep = config.keep.clone().expect("the caller looked");
        if plan.chunk_count.is_none() || config.workers as usize > WORKERS_MAX {
            return Err(StoreError::CannotKeep {
                workers_max: WORKERS_MAX,
            });
        }
        let depth = plan.space.depth;
        let parts = Parts::of(plan, (depth.segments, depth.stages));
        let opened = match keep.purpose {
            Purpose::Look => Image::look(&keep.path)?,
            Purpose::Serve | Purpose::Repair => Image::open(&keep.path)?,
        };
        let mut deep_loss = None;
        let (image, beginning) = match opened {
            None if keep.purpose != Purpose::Serve => {
                return Err(StoreError::Damaged {
                    path: keep.path,
                    reason: "it was never begun".to_owned(),
                });
            }
            None => (None, Beginning::New),
            Some(mut image) => {
                let about = About::of_image(&image)?;
                match about.why_empty(&image, &keep) {
                    Some(why) => (None, Beginning::Empty(why)),
                    None => {
                        about.check(config, &keep)?;
                        config.hash_seed = about.hash_seed;
                        deep_loss = Ground::change_deep(&mut image, &about, plan, config)?;
                        let killed = image.left() == Left::Killed;
                        let found = [Beginning::Stopped, Beginning::Killed];
                        (Some(image), found[usize::from(killed)].clone())
                    }
                }
            }
        };
        let image = match image {
            Some(image) => image,
            None => Image::create(&keep.path, &About::of(config, &keep).encode(), parts.end)?,
        };
        parts.ground(plan, config, image, (beginning, deep_loss))
    }
}

impl Parts {
    /// With so many deep segments and stages, which are at the end.
    fn of(plan: &Plan, (deep_segments, stages): (u32, u32)) -> Parts {
        let mut end = 0u64;
        let mut part = |bytes: u64| {
            let large = bytes >= LARGE_PAGE_BYTES;
            let align = if large { LARGE_PAGE_BYTES } else { PAGE_BYTES };
            let at = end.next_multiple_of(align);
            end = at + bytes.next_multiple_of(PAGE_BYTES);
            at
        };
        let chunks = plan.chunk_count.unwrap_or_default();
        let tables = [
            8 * CONTROL_WORDS as u64,
            Array::<Entry>::bytes(chunks as usize) as u64,
            HashGround::KEPT_BYTES,
        ];
        let segments = (plan.segments + deep_segments) as usize;
        let last = [
            Array::<Segment>::bytes(segments) as u64,
            Stages::bytes(stages, plan.segment_bytes) as u64,
        ];
        let all = tables.iter().chain(&last);
        let pages = all.map(|bytes| bytes.next_multiple_of(PAGE_BYTES));
        let table_bytes = PAGE_BYTES + pages.sum::<u64>();
        let [control, entries, counts] = tables.map(&mut part);
        let parts = Parts {
            control,
            entries,
            counts,
            table_bytes,
            buckets: part(plan.index.buckets_bytes()),
            pool: part(plan.index.buckets_bytes()),
            keys: part(Chunks::bytes(chunks) as u64),
            segments: part(last[0]),
            stages: part(last[1]),
            end: 0,
        };
        Parts { end, ..parts }
    }

    fn ground(
        &self,
        plan: &Plan,
        config: &StoreConfig,
        image: Image,
        (beginning, deep_loss): (Beginning, Option<DeepLoss>),
    ) -> Result<Ground, StoreError> {
        let (chunks, found) = (plan.chunk_count.unwrap_or_default(), beginning.is_found());
        let control: Array<AtomicU64> = image.array(self.control, CONTROL_WORDS, false)?;
        let depth = plan.space.depth;
        let all = (plan.segments + depth.segments) as usize;
        let segments: Array<Segment> = image.array(self.segments, all, false)?;
        let entries: Array<Entry> = image.array(self.entries, chunks as usize, false)?;
        // A copy of an image may have holes that the image had not.
        let room = |allocated| self.allocated(&image, allocated);
        room(control.allocate(0, control.len()))?;
        room(segments.allocate(0, segments.len()))?;
        room(entries.allocate(0, entries.len()))?;
        let keys = image.region(self.keys, Chunks::bytes(chunks), plan.huge)?;
        let stages = self.stages(plan, &image)?;
        let live = (0..segments.len()).map(|_| AtomicU64::new(0)).collect();
        let segments = Segments::over(segments, config.workers);
        let deep = (plan.segments, stages);
        let items = Items::new(Some(Chunks::over(keys, entries)), segments, deep, config);
        let (index, beginning) = self.index(plan, &items, &image, beginning, config)?;
        // From here on it is one: what failed before left nothing behind. It is worth nothing yet
        // where a journal may have more.
        let journaled = config
            .keep
            .as_ref()
            .is_some_and(|keep| keep.journal.is_some());
        match journaled && !found {
            true => image.begin_lost()?,
            false => image.begin()?,
        }
        let kept = Kept {
            live,
            damaged: AtomicU64::new(0),
            recounted: AtomicBool::new(!found),
            table_bytes: self.table_bytes,
            image,
            control,
            beginning,
            deep_loss,
        };
        Ok(Ground {
            items,
            index,
            kept: Some(Box::new(kept)),
        })
    }

    /// The stages, all of them allocated; none where there is no deep device.
    fn stages(&self, plan: &Plan, image: &Image) -> Result<Option<Stages>, MediaError> {
        let count = plan.space.depth.stages;
        if count == 0 {
            return Ok(None);
        }
        let bytes = Stages::bytes(count, plan.segment_bytes);
        let region = image.region(self.stages, bytes, plan.huge)?;
        self.allocated(image, region.allocate(0, bytes))?;
        Ok(Some(Stages::over(region, count, plan.segment_bytes)))
    }

    /// Whether the disk had room for the tables.
    fn allocated(&self, image: &Image, allocated: std::io::Result<()>) -> Result<(), MediaError> {
        allocated.map_err(|source| MediaError::Allocate {
            path: image.path().to_owned(),
            len_bytes: self.table_bytes,
            source,
        })
    }

    /// The index: empty, as it was found, or made anew.
    fn index(
        &self,
        plan: &Plan,
        items: &Items,
        image: &Image,
        beginning: Beginning,
        config: &StoreConfig,
    ) -> Result<(Hash, Beginning), StoreError> {
        let bytes = plan.index.buckets_bytes() as usize;
        let ground = || {
            Ok::<_, MediaError>(HashGround {
                buckets: image.region(self.buckets, bytes, plan.huge)?,
                pool: image.region(self.pool, bytes, plan.huge)?,
                kept: image.region(self.counts, HashGround::KEPT_BYTES as usize, false)?,
            })
        };
        if !beginning.is_found() {
            return Ok((Hash::create(plan.index, ground()?)?, beginning));
        }
        let keep = config.keep.as_ref();
        let why = match keep.is_some_and(|keep| keep.purpose == Purpose::Repair) {
            true => None,
            false => match Hash::open(plan.index, ground()?)? {
                Ok(index) => return Ok((index, beginning)),
                Err(unfit) => Some(unfit.to_string()),
            },
        };
        // From the first store on it is not as it was closed.
        image.begin()?;
        let (index, unsaid) = Hash::remake(plan.index, ground()?)?;
        let from = items.remake(&index)?;
        Ok((index.doubted(unsaid)?, Beginning::Remade { why, from }))
    }
}

impl Kept {
    pub(crate) fn beginning(&self) -> &Beginning {
        &self.beginning
    }

    pub(crate) fn deep_loss(&self) -> Option<&DeepLoss> {
        self.deep_loss.as_ref()
    }

    /// Notes the item that a worker is about to take out of the index.
    #[inline]
    pub(crate) fn note(&self, worker: WorkerId, place: Place) {
        let note = &self.control[NOTES + worker.index()];
        note.store(u64::from(place.0) + 1, Release);
    }

    /// The item that was noted is out, and marked, and so is its twin.
    #[inline]
    pub(crate) fn noted(&self, worker: WorkerId) {
        self.control[NOTES + worker.index()].store(0, Release);
    }

    /// Keeps that items of segments with a lower sequence number were flushed, and then that no
    /// flush is due.
    pub(crate) fn keep_flush(&self, mark: u64, due: UnixSeconds) {
        self.control[FLUSH_MARK].store(mark, Release);
        let before_never = UnixSeconds::NEVER.0 - due.0;
        self.control[FLUSH_DUE].store(u64::from(before_never), Release);
    }

    /// The sequence number that the last flush was given; none where that cannot be.
    pub(crate) fn flush_seq(&self) -> u64 {
        let mark = self.control[FLUSH_MARK].load(Relaxed);
        if mark < SEQ_MAX { mark } else { 0 }
    }

    /// What was kept of flushes: the mark and the due second.
    pub(crate) fn flush(&self, next_seq: u64) -> (u64, UnixSeconds) {
        // One that is damaged flushes all that there is, and nothing that comes.
        let mark = self.control[FLUSH_MARK].load(Relaxed).min(next_seq);
        self.control[FLUSH_MARK].store(mark, Release);
        // Zero, as an image is at first, is never.
        let before_never = self.control[FLUSH_DUE].load(Relaxed) as u32;
        let due = UnixSeconds(UnixSeconds::NEVER.0 - before_never);
        (mark, due)
    }

    /// The id of its image.
    pub(crate) fn image_id(&self) -> [u8; 16] {
        self.image.id()
    }

    /// The number of the newest file of its journal.
    pub(crate) fn numbered(&self) -> &AtomicU64 {
        &self.control[JOURNAL]
    }

    /// 1 where its journal has all that the image does.
    pub(crate) fn journal_is_whole(&self) -> &AtomicU64 {
        &self.control[JOURNAL_WHOLE]
    }

    /// The journal was told of the last flush.
    pub(crate) fn flush_told(&self) {
        let mark = self.control[FLUSH_MARK].load(Relaxed);
        self.control[FLUSH_TOLD].store(mark, Release);
    }

    /// Whether it was.
    pub(crate) fn is_flush_told(&self) -> bool {
        self.control[FLUSH_TOLD].load(Relaxed) == self.control[FLUSH_MARK].load(Relaxed)
    }

    /// A worker is about to change a key in image and journal: whoever finds the image of a process
    /// that was killed before [`Kept::intended`] tells the journal how it is.
    #[inline]
    pub(crate) fn intend(&self, worker: WorkerId, hash: u64) {
        self.control[INTENTS + worker.index()].store(hash.max(1), Release);
    }

    /// Both have the change, or neither.
    #[inline]
    pub(crate) fn intended(&self, worker: WorkerId) {
        self.control[INTENTS + worker.index()].store(0, Release);
    }

    /// The hashes of keys that a killed process was changing.
    pub(crate) fn intents(&self) -> Vec<u64> {
        let words = self.control[INTENTS..].iter();
        words
            .map(|word| word.load(Relaxed))
            .filter(|&hash| hash != 0)
            .collect()
    }

    /// The journal has been told of those.
    pub(crate) fn forget_intents(&self) {
        for word in &self.control[INTENTS..] {
            if word.load(Relaxed) != 0 {
                word.store(0, Release);
            }
        }
    }

    /// From now on the image has all that it should.
    pub(crate) fn in_use(&self) -> Result<(), MediaError> {
        self.image.mark_in_use()
    }

    pub(crate) fn close(&self) -> Result<(), MediaError> {
        self.image.mark_clean()
    }

    /// Counts an item that the sweep saw alive.
    fn count_live(&self, segment: u32, bytes: u32) {
        self.live[segment as usize].fetch_add(1 << 32 | u64::from(bytes), Relaxed);
    }
}
