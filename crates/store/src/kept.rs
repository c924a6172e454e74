//! A store that survives its process: its tables lie in an image, and what is found there when it
//! is opened again is put right (docs/decisions/0008-tenants-that-survive.md). The layout is
//! `docs/format.md`, "Image of a tenant".
//!
//! At the start, in time that grows with segments and chunks but not with items:
//!
//! * segments that were open, being filled or being emptied, are sealed; their chunks are those
//!   whose entries name them and are younger than their use;
//! * how far a chunk was filled that nobody closed is found by reading it, item by item;
//! * a worker notes the item that it is about to take out of the index before it does: if that is
//!   out, it is marked as dead, as the worker would have done. So is the last item of a chunk, if
//!   it was never published.
//!
//! After that the store serves. Chains of the index are put right by who needs them, and by
//! [`Store::sweep`]; until it is through, a value is compared with its check before it is given
//! out.
//!
//! What it never does: believe a number from an image before it was checked against what must be
//! so.
//!
//! *Thread safety*: opening is done by one thread; the rest as `store`.

use crate::check::{self, Pieces};
use crate::chunks::{CHUNK_BYTES, Chunks, Entry};
use crate::config::{Durability, Keep, StoreConfig, StoreError};
use crate::header::Header;
use crate::items::{Items, Source};
use crate::request::KeyHash;
use crate::segment::Segment;
use crate::shape::Plan;
use crate::store::{Found, Store};
use nyx_base::{UnixSeconds, WorkerId};
use nyx_gate::Lane;
use nyx_index::{Hash, HashGround, HashShape, Place, Places, Revived};
use nyx_media::{Array, Image, Left, MediaError, Region};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
    Ordering::Release,
};

/// The layout of a tenant's image.
const FORMAT: u32 = 1;
/// Words before the workers' notes.
const NOTES: usize = 8;
const FLUSH_MARK: usize = 0;
const FLUSH_DUE: usize = 1;
/// Workers that may have notes.
const WORKERS_MAX: usize = 1024;
/// Chains that one call of [`Store::sweep`] looks at.
const SWEEP_CHAINS: usize = 64;
/// Values are read in pieces of this many bytes.
const PIECE_BYTES: usize = 4096;
/// Parts of an image begin at a page; large ones at a large page.
const PAGE_BYTES: u64 = 4096;
const LARGE_PAGE_BYTES: u64 = 2 << 20;

/// What a store of an image has besides its items.
#[derive(Debug)]
pub(crate) struct Kept {
    image: Image,
    control: Array<AtomicU64>,
    /// Of each segment that was found: items and bytes that the sweep saw alive.
    live: Box<[AtomicU64]>,
    recounted: AtomicBool,
    beginning: Beginning,
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
}

/// What a store is made of, wherever that lies.
pub(crate) struct Ground {
    pub(crate) segments: Array<Segment>,
    pub(crate) entries: Option<Array<Entry>>,
    pub(crate) keys: Option<Region>,
    pub(crate) index: Hash,
    pub(crate) kept: Option<Box<Kept>>,
}

/// Where the parts of an image are.
struct Parts {
    control: u64,
    segments: u64,
    entries: u64,
    counts: u64,
    buckets: u64,
    pool: u64,
    keys: u64,
    end: u64,
}

impl Beginning {
    /// Whether there are items from before.
    pub fn is_found(&self) -> bool {
        matches!(self, Beginning::Stopped | Beginning::Killed)
    }
}

impl Ground {
    /// Memory that is gone with the process.
    pub(crate) fn anonymous(plan: &Plan) -> Result<Ground, MediaError> {
        let chunks = plan.chunk_count;
        let keys = chunks.map(|count| Region::reserve(Chunks::bytes(count), plan.huge));
        Ok(Ground {
            segments: Array::reserve(plan.segments as usize, false)?,
            entries: chunks
                .map(|count| Array::reserve(count as usize, false))
                .transpose()?,
            keys: keys.transpose()?,
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
        let parts = Parts::of(plan);
        let (image, beginning) = match Image::open(&keep.path)? {
            None => (None, Beginning::New),
            Some(image) => {
                let about = About::decode(image.about(), &keep)?;
                about.check(config, &keep)?;
                match about.why_empty(&image, &keep) {
                    Some(why) => (None, Beginning::Empty(why)),
                    None => {
                        config.hash_seed = about.hash_seed;
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
        parts.ground(plan, image, beginning)
    }
}

impl Parts {
    fn of(plan: &Plan) -> Parts {
        let mut end = 0u64;
        let mut part = |bytes: u64| {
            let large = bytes >= LARGE_PAGE_BYTES;
            let align = if large { LARGE_PAGE_BYTES } else { PAGE_BYTES };
            let at = end.next_multiple_of(align);
            end = at + bytes.next_multiple_of(PAGE_BYTES);
            at
        };
        let chunks = plan.chunk_count.unwrap_or_default();
        let parts = Parts {
            control: part(8 * (NOTES + WORKERS_MAX) as u64),
            segments: part(Array::<Segment>::bytes(plan.segments as usize) as u64),
            entries: part(Array::<Entry>::bytes(chunks as usize) as u64),
            counts: part(HashGround::KEPT_BYTES),
            buckets: part(plan.index.buckets_bytes()),
            pool: part(plan.index.buckets_bytes()),
            keys: part(Chunks::bytes(chunks) as u64),
            end: 0,
        };
        Parts { end, ..parts }
    }

    fn ground(
        &self,
        plan: &Plan,
        image: Image,
        beginning: Beginning,
    ) -> Result<Ground, StoreError> {
        let (chunks, found) = (plan.chunk_count.unwrap_or_default(), beginning.is_found());
        let control: Array<AtomicU64> = image.array(self.control, NOTES + WORKERS_MAX, false)?;
        let segments: Array<Segment> = image.array(self.segments, plan.segments as usize, false)?;
        let entries: Array<Entry> = image.array(self.entries, chunks as usize, false)?;
        // A copy of an image may have holes that the image had not.
        let room = |allocated: std::io::Result<()>| {
            allocated.map_err(|source| MediaError::Allocate {
                path: image.path().to_owned(),
                len_bytes: self.buckets,
                source,
            })
        };
        room(control.allocate(0, control.len()))?;
        room(segments.allocate(0, segments.len()))?;
        room(entries.allocate(0, entries.len()))?;
        let bytes = plan.index.buckets_bytes() as usize;
        let ground = HashGround {
            buckets: image.region(self.buckets, bytes, plan.huge)?,
            pool: image.region(self.pool, bytes, plan.huge)?,
            kept: image.region(self.counts, HashGround::KEPT_BYTES as usize, false)?,
        };
        image.begin()?;
        let index = open_index(plan.index, ground, found, &image)?;
        Ok(Ground {
            keys: Some(image.region(self.keys, Chunks::bytes(chunks), plan.huge)?),
            entries: Some(entries),
            index,
            kept: Some(Box::new(Kept {
                live: (0..segments.len()).map(|_| AtomicU64::new(0)).collect(),
                recounted: AtomicBool::new(!found),
                image,
                control,
                beginning,
            })),
            segments,
        })
    }
}

fn open_index(
    shape: HashShape,
    ground: HashGround,
    found: bool,
    image: &Image,
) -> Result<Hash, StoreError> {
    if !found {
        return Ok(Hash::create(shape, ground)?);
    }
    Hash::open(shape, ground)?.map_err(|reason| StoreError::Damaged {
        path: image.path().to_owned(),
        reason: reason.to_string(),
    })
}

impl Kept {
    pub(crate) fn beginning(&self) -> &Beginning {
        &self.beginning
    }

    /// Notes the item that a worker is about to take out of the index.
    #[inline]
    pub(crate) fn note(&self, worker: WorkerId, place: Place) {
        let note = &self.control[NOTES + worker.index()];
        note.store(u64::from(place.0) + 1, Release);
    }

    /// The item that was noted is out, and marked.
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

    /// What was kept of flushes: the mark and the due second.
    pub(crate) fn flush(&self, next_seq: u64) -> (u64, UnixSeconds) {
        let mark = self.control[FLUSH_MARK].load(Relaxed).min(next_seq);
        // Zero, as an image is at first, is never.
        let before_never = self.control[FLUSH_DUE].load(Relaxed) as u32;
        let due = UnixSeconds(UnixSeconds::NEVER.0 - before_never);
        (mark, due)
    }

    pub(crate) fn close(&self) -> Result<(), MediaError> {
        self.image.mark_clean()
    }

    /// Counts an item that the sweep saw alive.
    fn count_live(&self, segment: u32, bytes: u32) {
        self.live[segment as usize].fetch_add(1 << 32 | u64::from(bytes), Relaxed);
    }
}

/// What an image says of the tenant that it was made for.
#[derive(Debug, PartialEq, Eq)]
struct About {
    size: u64,
    medium_base: u64,
    medium_len: u64,
    segment_bytes: u64,
    hash_seed: u64,
    data_id: [u8; 16],
    name: String,
}

impl About {
    fn of(config: &StoreConfig, keep: &Keep) -> About {
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

    fn encode(&self) -> Vec<u8> {
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

    fn decode(bytes: &[u8], keep: &Keep) -> Result<About, StoreError> {
        let damaged = |reason: String| StoreError::Damaged {
            path: keep.path.clone(),
            reason,
        };
        match About::read(bytes) {
            Some((FORMAT, about)) => Ok(about),
            Some((other, _)) => Err(damaged(format!(
                "it is of format {other}, and this build knows {FORMAT} only"
            ))),
            None => Err(damaged("it does not say what it is for".to_owned())),
        }
    }

    /// Whether it was made for this tenant. Another shape is an error: it takes somebody's decision
    /// to throw the items away.
    fn check(&self, config: &StoreConfig, keep: &Keep) -> Result<(), StoreError> {
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
    fn why_empty(&self, image: &Image, keep: &Keep) -> Option<String> {
        if self.data_id != keep.data_id {
            return Some("its values were in another data file, which is not there".to_owned());
        }
        let why = match (image.left(), keep.durability) {
            (Left::Lost, _) => "the machine was started again before it was closed",
            (Left::Killed, Durability::Warm) => "it was not closed, and durability is \"warm\"",
            _ => return None,
        };
        Some(why.to_owned())
    }
}

/// The range of the medium that the image at a path names; none where there is no image, or none
/// that says so.
pub fn range_in_image(path: &Path) -> Option<Range<u64>> {
    let image = Image::open(path).ok()??;
    let (_, about) = About::read(image.about())?;
    Some(about.medium_base..about.medium_base.checked_add(about.medium_len)?)
}

/// What a store does with a table that was found.
impl Store {
    /// How a store that survives began; none where it does not survive.
    pub fn beginning(&self) -> Option<&Beginning> {
        self.kept.as_ref().map(|kept| kept.beginning())
    }

    /// How far the sweep of what was found is; none where nothing was found.
    pub fn revived(&self) -> Option<Revived> {
        self.index.revived()
    }

    /// Writes everything to the disk and marks the image as closed in order. No worker writes
    /// afterwards.
    pub fn close(&self) -> Result<(), StoreError> {
        let closed = self.kept.as_ref().map_or(Ok(()), |kept| kept.close());
        Ok(closed?)
    }

    /// Looks at some of what was found, so that nothing has to be checked any more when all is;
    /// true where there is more. Bounded work: call it from the tick.
    pub fn sweep(&self, lane: &mut Lane<'_>) -> bool {
        if !self.index.is_reviving() {
            return false;
        }
        let Some(kept) = &self.kept else {
            return false;
        };
        let mut item = |place| self.item_at(place);
        let mut is_whole = |place: Place| {
            let Some((header, hash)) = self.head_at(place) else {
                return false;
            };
            let whole = self.is_value_whole(lane, place, &header, hash);
            let segment = self.items.segment_of(place);
            if whole && self.items.segments.is_found(segment) {
                kept.count_live(segment, self.items.footprint(&header).total());
            }
            whole
        };
        let more = (0..SWEEP_CHAINS).all(|_| self.index.sweep(&mut item, &mut is_whole));
        if !self.index.is_reviving() && !kept.recounted.swap(true, AcqRel) {
            self.recount(kept);
        }
        more
    }

    /// Tells what had died in segments that were found.
    fn recount(&self, kept: &Kept) {
        // Under the lock no segment comes to another use.
        let _space = self.space.lock();
        let segments = &self.items.segments;
        for segment in (0..segments.len()).filter(|&segment| segments.is_found(segment)) {
            let live = kept.live[segment as usize].load(Acquire);
            segments.set_dead_before(segment, live);
        }
    }

    /// Before a chain is used: whether its items are known to be whole.
    #[inline]
    pub(crate) fn approach(&self, hash: u64) -> bool {
        !self.index.is_reviving() || self.revive(hash)
    }

    #[cold]
    fn revive(&self, hash: u64) -> bool {
        self.index.revive(hash, &mut |place| self.item_at(place))
    }

    /// Whether an item of a chain that may not be whole is what was stored.
    #[cold]
    pub(crate) fn is_whole(&self, lane: &mut Lane<'_>, hash: KeyHash, found: Found) -> bool {
        self.is_value_whole(lane, found.place, &found.header, hash)
    }

    /// The hash of the item at a place, if there is one.
    fn item_at(&self, place: Place) -> Option<u64> {
        self.head_at(place).map(|(_, hash)| hash.0)
    }

    /// The head at a place, if there is one that is sound, in a chunk that is in use.
    pub(crate) fn head_at(&self, place: Place) -> Option<(Header, KeyHash)> {
        let (chunk, _) = self.items.chunks.as_ref()?.chunk_of(place)?;
        self.items.owner(chunk)?;
        self.items.sound_head(place)
    }

    /// Compares a value with its check.
    fn is_value_whole(
        &self,
        lane: &mut Lane<'_>,
        place: Place,
        header: &Header,
        hash: KeyHash,
    ) -> bool {
        let Some(checks) = header.checks else {
            return false;
        };
        let (at, len) = (self.items.value_at(place, header), header.value_len);
        checks.value == self.check_of(lane, hash, &[Source::Medium { at, len }])
    }

    /// The check of a value of several pieces, read from where they are.
    pub(crate) fn check_of(&self, lane: &mut Lane<'_>, hash: KeyHash, value: &[Source<'_>]) -> u32 {
        let mut pieces = Pieces::new(hash);
        let mut piece = [0; PIECE_BYTES];
        for source in value {
            match *source {
                Source::Bytes(bytes) => pieces.add(bytes),
                Source::Medium { at, len } => {
                    for from in (0..len as usize).step_by(PIECE_BYTES) {
                        let piece = &mut piece[..PIECE_BYTES.min(len as usize - from)];
                        lane.read(at + from as u64, piece);
                        pieces.add(piece);
                    }
                }
            }
        }
        pieces.check()
    }

    /// What has to be done before the first request. One thread.
    pub(crate) fn put_right(&self, unclosed: &[u32]) -> Result<(), StoreError> {
        let (Some(kept), Some(chunks)) = (&self.kept, &self.items.chunks) else {
            return Ok(());
        };
        let used = chunks.used();
        chunks
            .allocate_all(0, used)
            .map_err(|source| MediaError::Allocate {
                path: kept.image.path().to_owned(),
                len_bytes: u64::from(used) * u64::from(CHUNK_BYTES),
                source,
            })?;
        let last = unclosed
            .iter()
            .filter_map(|&chunk| self.find_fill(chunks, chunk));
        let mut suspects: Vec<Place> = last.collect();
        self.index
            .put_right(WorkerId(0), &mut |place| self.item_at(place));
        for note in &kept.control[NOTES..] {
            let noted = note.load(Relaxed);
            suspects.extend(u32::try_from(noted.wrapping_sub(1)).ok().map(Place));
        }
        for place in suspects {
            let Some(hash) = self.item_at(place) else {
                continue;
            };
            self.revive(hash);
            if self.index.find(hash, |other| other == place).is_none() {
                chunks.mark_dead(place);
            }
        }
        for note in &kept.control[NOTES..] {
            if note.load(Relaxed) != 0 {
                note.store(0, Release);
            }
        }
        Ok(())
    }
}

impl Store {
    /// Finds how far a chunk was filled that nobody closed; the last item in it.
    fn find_fill(&self, chunks: &Chunks, chunk: u32) -> Option<Place> {
        let (mut fill, mut last) = (0, None);
        while fill < CHUNK_BYTES {
            let place = Chunks::place(chunk, fill);
            let Some((header, _)) = self.head_at(place) else {
                break;
            };
            fill += self.items.footprint(&header).dram;
            last = Some(place);
        }
        chunks.set_fill(chunk, fill);
        last
    }
}

impl Items {
    /// The segment that a chunk belongs to, in this use of both.
    pub(crate) fn owner(&self, chunk: u32) -> Option<u32> {
        let chunks = self.chunks.as_ref()?;
        let segment = chunks.segment(chunk);
        (segment < self.segments.len() && self.segments.at(segment).is_since(chunks.seq(chunk)))
            .then_some(segment)
    }

    /// The head at a place of a chunk, if it is sound.
    pub(crate) fn sound_head(&self, place: Place) -> Option<(Header, KeyHash)> {
        let chunks = self.chunks.as_ref()?;
        let (_, offset) = chunks.chunk_of(place)?;
        let header = chunks.header(place);
        let checks = header.checks?;
        let head = offset as usize + header.head_len();
        let value = u64::from(header.value_offset) + u64::from(header.value_len);
        if head > CHUNK_BYTES as usize || value > u64::from(self.segment_bytes()) {
            return None;
        }
        let hash = self.hash(chunks.key(place, &header));
        (check::head(&header, hash, self.unique(place)) == checks.head).then_some((header, hash))
    }
}
