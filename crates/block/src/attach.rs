//! Puts a cache before an image: finds out whether what the cache has is of this image and still
//! true, and takes what is not for nothing.
//!
//! What it never does: drop a dirty line unless it is told to ([`Terms::forgets`]); serve a line of
//! which nobody knows whether it is stale.

use crate::cache::{Cache, Damaged};
use crate::fast::{Fast, NotDurable};
use crate::geometry::{BadGeometry, Geometry};
use crate::image::{Image, Last, Stamp};
use crate::mode::Mode;
use crate::route::Router;
use crate::superblock::{BadSuperblock, State, Superblock};

/// What is asked of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Bytes of a line; none for those that it has, or 4096 where it is new.
    pub line_bytes: Option<u64>,
    /// The mode.
    pub mode: Mode,
    /// Whatever it has is dropped, dirty lines too.
    pub forgets: bool,
    /// Nobody but this cache ever writes the image, says its user.
    pub is_sole: bool,
    /// Its barriers make it survive a power failure.
    pub survives_power: bool,
    /// The id of the fast device.
    pub id: [u8; 16],
    /// The start of the machine that this is.
    pub boot: [u8; 16],
}

/// Why a cache is not put before an image.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The fast device has another use.
    #[error("the fast device cannot be used: {0}")]
    Superblock(#[from] BadSuperblock),
    /// The sizes are impossible.
    #[error("{0}")]
    Geometry(#[from] BadGeometry),
    /// A record is damaged.
    #[error("{0}; dirty lines may be lost. --forget drops all that the cache has and begins anew")]
    Record(#[from] Damaged),
    /// It has what the image lacks, and must not be used.
    #[error(
        "the cache has {dirty_lines} dirty lines, and {why}. --forget drops them and begins anew"
    )]
    Dirty {
        /// How many.
        dirty_lines: u32,
        /// What speaks against it.
        why: String,
    },
    /// Another cache has what the image lacks.
    #[error(
        "another cache (id {}) may have dirty lines of this image: write them back first (nyx \
         block --flush-only with that cache), or drop them with --forget",
        nyx_media::mapped::uuid(.0)
    )]
    Elsewhere([u8; 16]),
    /// The medium failed.
    #[error("{0}")]
    NotDurable(#[from] NotDurable),
}

/// A cache before its image.
pub struct Attached<F> {
    /// It.
    pub cache: Cache<F>,
    /// What its user may want to know.
    pub notes: Vec<String>,
}

/// Puts it there. Where barriers do not survive a power failure the caller makes the whole fast
/// device durable once, before anything is served, and before and after [`close`]: that is how the
/// next one knows what to think of it. `image_bytes` is the image's length in whole blocks.
pub fn attach<F: Fast>(
    mut fast: F,
    image: &Image,
    image_bytes: u64,
    terms: &Terms,
    router: Router,
) -> Result<Attached<F>, AttachError> {
    let last = image.last();
    let mut notes = Vec::new();
    if let Last::Used(stamp) = last
        && stamp.is_dirty
        && stamp.cache != terms.id
        && !terms.forgets
    {
        return Err(AttachError::Elsewhere(stamp.cache));
    }
    // What was never a block cache is not forgotten, but kept.
    let found = match Superblock::read(&mut fast) {
        Err(BadSuperblock::Other(magic)) => return Err(BadSuperblock::Other(magic).into()),
        _ if terms.forgets => None,
        found => found?,
    };
    let mut cache = match found {
        None => {
            let line_bytes = terms.line_bytes.unwrap_or(4096);
            let geometry = Geometry::fit(fast.len_bytes(), line_bytes, image_bytes)?;
            make(&mut fast, geometry, image)?;
            Cache::open(fast, geometry, terms.mode, router, false)?
        }
        Some(found) => {
            let taken = take_up(fast, &found, image, image_bytes, terms, last, router)?;
            notes.extend(taken.notes);
            taken.cache
        }
    };
    let state = State {
        is_clean: false,
        survives_power: terms.survives_power,
        boot: terms.boot,
        changed: (0, 0),
    };
    // What says so already is not written: a kill in between would make it say nothing.
    let says = Superblock::read(cache.fast())?.and_then(|found| found.state);
    if says != Some(state) {
        state.write(cache.fast())?;
    }
    let stamp = Stamp {
        cache: terms.id,
        is_dirty: terms.mode == Mode::WriteBack || cache.filled().1 > 0,
    };
    if !image.stamp(stamp) && !terms.is_sole {
        notes.push(
            "this image cannot be marked as in use by a cache: clean lines are dropped at each \
             start (--sole keeps them)"
                .to_owned(),
        );
    }
    Ok(Attached { cache, notes })
}

/// Writes a new cache: first that it has nothing, then whose it is.
fn make<F: Fast>(fast: &mut F, geometry: Geometry, image: &Image) -> Result<(), NotDurable> {
    let nothing = 0..4096u64;
    fast.write(0, &[0; 4096]);
    fast.persist(std::slice::from_mut(&mut nothing.clone()))?;
    Cache::format(fast, &geometry)?;
    let identity = image.identity.clone();
    let superblock = Superblock {
        geometry,
        identity,
        state: None,
    };
    superblock.write(fast)
}

fn take_up<F: Fast>(
    mut fast: F,
    found: &Superblock,
    image: &Image,
    image_bytes: u64,
    terms: &Terms,
    last: Last,
    router: Router,
) -> Result<Attached<F>, AttachError> {
    // What was not written as a whole was being written, when all else was durable.
    let state = found.state.unwrap_or(State {
        survives_power: true,
        ..State::default()
    });
    let other_image = differs(found, image, image_bytes);
    let is_untold = match last {
        Last::Used(stamp) if stamp.cache == terms.id => None,
        Last::Used(_) => Some("the image was used with another cache since"),
        Last::Nobody => Some("the image does not say that this cache has used it"),
        Last::Unknown if terms.is_sole => None,
        Last::Unknown => Some("nobody can tell whether the image was changed since"),
    };
    let was_changed = (state.is_clean && !terms.is_sole && state.changed != image.changed())
        .then_some("the image was changed since");
    let has_run = state.boot == terms.boot && !state.is_clean;
    let power_failed = (!state.is_clean && !state.survives_power && state.boot != terms.boot)
        .then_some("the machine has stopped while the cache was used with --survive process");
    let new_line = terms
        .line_bytes
        .filter(|&line| line != found.geometry.line_bytes());
    let geometry = found.geometry;
    if fast.len_bytes() < geometry.fast_bytes() {
        return Err(BadSuperblock::Damaged.into());
    }
    // Where it is of no use any more its records are looked at for dirty lines all the same.
    let dirty = dirty_lines(&mut fast, &geometry, has_run);
    let dirty_is_unsure = match (last, is_untold) {
        (Last::Unknown, _) | (_, None) => None,
        (_, why) => why,
    };
    let against_dirty = (other_image.clone())
        .or(new_line.map(|line| format!("they are not lines of {line} bytes")))
        .or(power_failed.map(str::to_owned))
        .or(dirty_is_unsure.map(str::to_owned))
        .or(was_changed.map(str::to_owned));
    if let (1.., Some(why)) = (dirty, against_dirty) {
        let dirty_lines = dirty;
        return Err(AttachError::Dirty { dirty_lines, why });
    }
    if other_image.is_some() || new_line.is_some() || power_failed.is_some() {
        let line_bytes = terms.line_bytes.unwrap_or(geometry.line_bytes());
        let anew = Geometry::fit(fast.len_bytes(), line_bytes, image_bytes)?;
        make(&mut fast, anew, image)?;
        let why = other_image.or(power_failed.map(str::to_owned));
        let why = why.unwrap_or_else(|| "its lines had another length".to_owned());
        let cache = Cache::open(fast, anew, terms.mode, router, false)?;
        let notes = vec![format!("the cache begins anew: {why}")];
        return Ok(Attached { cache, notes });
    }
    let mut cache = Cache::open(fast, geometry, terms.mode, router, has_run)?;
    let mut notes = Vec::new();
    if let Some(why) = is_untold.or(was_changed) {
        let (used, dirty) = cache.filled();
        cache.forget_clean()?;
        notes.push(format!("{} clean lines are dropped: {why}", used - dirty));
    }
    Ok(Attached { cache, notes })
}

/// What of the image is not what the cache was made for.
fn differs(found: &Superblock, image: &Image, image_bytes: u64) -> Option<String> {
    let (was, is) = (&found.identity, &image.identity);
    let had_bytes = found.geometry.image_bytes();
    if had_bytes != image_bytes {
        return Some(format!(
            "its image has {had_bytes} bytes, this one {image_bytes}"
        ));
    }
    let is_same = match (was.name.as_str(), is.name.as_str()) {
        ("", "") => (was.device, was.inode) == (is.device, is.inode),
        (was, is) => was == is,
    };
    (!is_same).then(|| match (was.name.as_str(), is.name.as_str()) {
        ("", "") => format!(
            "its image is file {} of device {}, this one is file {} of device {}",
            was.inode, was.device, is.inode, is.device
        ),
        (was, is) => format!("its image is called {was:?}, this one {is:?}"),
    })
}

/// Lines that a cache tells or claims as dirty.
fn dirty_lines(fast: &mut impl Fast, geometry: &Geometry, has_run: bool) -> u32 {
    use crate::record::Record;
    let dirty = (0..geometry.slots()).filter(|&slot| {
        let is_dirty = |word| {
            // What is damaged may have been dirty.
            !matches!(
                Record::decode(slot, word),
                Some(Record::Free | Record::Clean { .. })
            )
        };
        is_dirty(fast.word(geometry.record_at(slot)))
            || (has_run && is_dirty(fast.word(geometry.claim_at(slot))))
    });
    dirty.count() as u32
}

/// Says that a cache was closed in order. After everything that it has is durable and told of.
pub fn close<F: Fast>(cache: Cache<F>, image: &Image, terms: &Terms) -> Result<F, NotDurable> {
    let has_dirty = cache.filled().1 > 0;
    let mut fast = cache.into_fast();
    let state = State {
        is_clean: true,
        survives_power: terms.survives_power,
        boot: terms.boot,
        changed: image.changed(),
    };
    state.write(&mut fast)?;
    image.stamp(Stamp {
        cache: terms.id,
        is_dirty: has_dirty,
    });
    Ok(fast)
}
