//! Whether a cache is put before an image: after stops of the machine, with other images, other
//! lines, other caches, and without attributes to tell by.

mod rig;

use nyx_base::{Clock, Instant, Rng};
use nyx_block::geometry::STRIPE_BYTES;
use nyx_block::image::Last;
use nyx_block::{
    AttachError, Cache, Costs, Image, Mode, Piece, Router, Terms, Verb, attach, close,
};
use nyx_media::queue::Pool;
use nyx_policy::nhc::Nhc;
use rig::{CrashFast, fill};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const IMAGE_BYTES: u64 = 1 << 20;

struct Still;

impl Clock for Still {
    fn now(&self) -> Instant {
        Instant(0)
    }
    fn spin_until(&self, _until: Instant) {}
}

/// A fast device, a directory with images, and the terms of the next run.
struct Place {
    dir: tempfile::TempDir,
    fast: CrashFast,
    terms: Terms,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("image"), vec![0; IMAGE_BYTES as usize]).expect("room");
        Place {
            dir,
            fast: CrashFast::new(1 << 20),
            terms: Terms {
                line_bytes: None,
                mode: Mode::WriteBack,
                forgets: false,
                is_sole: false,
                survives_power: true,
                id: [1; 16],
                boot: [1; 16],
            },
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn image(&self) -> Image {
        self.image_at(&self.path("image"), "")
    }

    fn image_at(&self, path: &Path, name: &str) -> Image {
        Image::at(path, name).expect("there is one")
    }

    fn attach_to(&self, image: &Image) -> Result<(Cache<CrashFast>, Vec<String>), AttachError> {
        let costs = Costs::default();
        let controller = costs.controller(Nhc::Classic);
        let router = Router::new(controller, costs, Arc::new(Still), Rng::with_seed(1));
        let bytes = image.file_bytes.expect("a file");
        let attached = attach(self.fast.clone(), image, bytes, &self.terms, router)?;
        Ok((attached.cache, attached.notes))
    }

    fn attach(&self) -> (Cache<CrashFast>, Vec<String>) {
        self.attach_to(&self.image()).expect("it is its own")
    }

    /// Why a cache with dirty lines is refused.
    fn refused(&self, image: &Image) -> String {
        match self.attach_to(image) {
            Ok(_) => panic!("it is put before it"),
            Err(error) => error.to_string(),
        }
    }
}

/// Writes a block, in write-back, and flushes where that is wanted.
fn write(cache: &mut Cache<CrashFast>, at: u64, flushes: bool) {
    let pool = Pool::new(1, STRIPE_BYTES as usize).expect("memory");
    let mut buffer = pool.take().expect("one");
    fill(&mut buffer, 7);
    cache.submit(Piece {
        token: 1,
        verb: Verb::Write,
        at,
        len_bytes: 4096,
        buffer,
        spare: None,
    });
    cache.barrier();
    assert_eq!(cache.outcome().expect("at once").result, Ok(()));
    if flushes {
        cache.flush(2);
        let command = cache.command().expect("what was there before is flushed");
        cache.complete(command.tag, None, Ok(()));
        assert_eq!(cache.outcome().expect("at once").result, Ok(()));
    }
}

#[test]
fn a_stop_of_the_machine_leaves_what_was_flushed() {
    let mut place = Place::new();
    let (mut cache, _) = place.attach();
    write(&mut cache, 0, true);
    write(&mut cache, 4096, false);
    drop(cache);
    assert_eq!(place.attach().0.filled(), (2, 2), "a kill takes nothing");
    place.terms.boot = [2; 16];
    assert_eq!(place.attach().0.filled(), (1, 1), "no claim is believed");
    // Nor when the machine says that it is the first one again.
    place.terms.boot = [1; 16];
    assert_eq!(place.attach().0.filled(), (1, 1));
}

#[test]
fn without_barriers_a_stop_of_the_machine_leaves_nothing_to_believe() {
    let mut place = Place::new();
    place.terms.survives_power = false;
    let (mut cache, _) = place.attach();
    write(&mut cache, 0, true);
    drop(cache);
    assert_eq!(place.attach().0.filled(), (1, 1), "a kill takes nothing");
    place.terms.boot = [2; 16];
    let why = place.refused(&place.image());
    assert!(
        why.contains("1 dirty lines, and the machine has stopped"),
        "{why}"
    );
    place.terms.forgets = true;
    assert_eq!(place.attach().0.filled(), (0, 0));
    place.terms.forgets = false;
    place.terms.boot = [3; 16];
    let (_, notes) = place.attach();
    assert!(
        notes[0].contains("begins anew: the machine has stopped"),
        "{notes:?}"
    );
    // Closed in order it is as good as any.
    let (mut cache, _) = place.attach();
    write(&mut cache, 0, true);
    close(cache, &place.image(), &place.terms).expect("durable");
    place.terms.boot = [4; 16];
    assert_eq!(place.attach().0.filled(), (1, 1));
}

#[test]
fn dirty_lines_go_before_their_image_only() {
    let mut place = Place::new();
    let (mut cache, _) = place.attach();
    write(&mut cache, 0, true);
    drop(cache);
    let other = place.path("other");
    std::fs::write(&other, vec![0; IMAGE_BYTES as usize]).expect("room");
    let why = place.refused(&place.image_at(&other, ""));
    assert!(why.contains("its image is file"), "{why}");
    std::fs::write(&other, vec![0; 2 * IMAGE_BYTES as usize]).expect("room");
    let why = place.refused(&place.image_at(&other, ""));
    assert!(
        why.contains("its image has 1048576 bytes, this one 2097152"),
        "{why}"
    );
    let why = place.refused(&place.image_at(&place.path("image"), "root"));
    assert!(
        why.contains("its image is called \"\", this one \"root\""),
        "{why}"
    );
    place.terms.line_bytes = Some(16384);
    let why = place.refused(&place.image());
    assert!(why.contains("they are not lines of 16384 bytes"), "{why}");
    place.terms.line_bytes = None;
    if place.image().last() == Last::Unknown {
        eprintln!("skipped the rest of it: no user attributes of files here");
        return;
    }
    // Another cache, that knows of nothing.
    let (id, fast) = (place.terms.id, place.fast.clone());
    (place.terms.id, place.fast) = ([9; 16], CrashFast::new(1 << 20));
    let why = place.refused(&place.image());
    assert!(why.contains("another cache (id 01010101-"), "{why}");
    place.terms.forgets = true;
    drop(place.attach());
    // Told to take the image all the same; the first one's lines are not believed any more.
    place.terms.forgets = false;
    (place.terms.id, place.fast) = (id, fast);
    let why = place.refused(&place.image());
    assert!(why.contains("another cache (id 09090909-"), "{why}");
}

#[test]
fn a_name_is_known_wherever_the_file_lies() {
    let place = Place::new();
    let image = place.image_at(&place.path("image"), "root");
    let (mut cache, _) = place.attach_to(&image).expect("new");
    write(&mut cache, 0, true);
    drop(cache);
    std::fs::rename(place.path("image"), place.path("moved")).expect("the same disk");
    let moved = place.image_at(&place.path("moved"), "root");
    let (cache, _) = place.attach_to(&moved).expect("it is its own");
    assert_eq!(cache.filled(), (1, 1));
}

#[test]
fn what_is_no_cache_is_kept() {
    let mut place = Place::new();
    nyx_block::Fast::write(&mut place.fast, 0, b"somebody's data");
    let before = place.fast.memory().bytes().to_vec();
    for forgets in [false, true] {
        place.terms.forgets = forgets;
        let why = place.refused(&place.image());
        assert!(why.contains("begins with \"somebody\""), "{why}");
        assert!(place.fast.memory().bytes() == before);
    }
}
