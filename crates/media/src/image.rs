//! An image: a sparse file whose parts are mapped as memory ([`Region`]), so that what lies in it
//! outlives the process. The layout is `docs/format.md`, "Image".
//!
//! A page at its begin says what it is and how it was left. Its maker writes *about* it there, in
//! bytes of its own, once; they are covered by the page's checksum.
//!
//! What an image is worth depends on how it was left ([`Left`]): stores to a shared mapping are the
//! kernel's as soon as they are made, so that a process that was killed loses none. When the
//! machine lost power, pages are of different ages.
//!
//! What it never does: look at the bytes behind its page, or touch a byte for which the disk may
//! have no room: who uses a region allocates it first.
//!
//! *Thread safety*: none is needed; one thread makes, opens and closes it. The lock on the file is
//! held for the life of the image and its regions, so that two servers cannot share one.

use crate::dram::Region;
use crate::header::{check_page, file_error, lock, lock_shared, random_uuid};
use crate::mapping::PAGE_BYTES;
use crate::{Array, MediaError};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes before the first part.
const HEADER_BYTES: u64 = PAGE_BYTES as u64;
/// The format that this build writes and reads.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"NYXIMAGE";
const ABOUT_LEN_AT: usize = 48;
const ABOUT_AT: usize = 64;
/// The most bytes that may be said about an image.
const ABOUT_BYTES_MAX: usize = 1024;
const CHECKSUM_AT: usize = ABOUT_AT + ABOUT_BYTES_MAX;
/// How it was left: on a line of its own behind everything that never changes.
const MARK_AT: u64 = 2048;
const MARK_BYTES: usize = 64;
const MARK_CLEAN: [u8; 8] = *b"clean\0\0\0";
const MARK_IN_USE: [u8; 8] = *b"in use\0\0";
const MARK_LOST: [u8; 8] = *b"lost\0\0\0\0";
/// The id that Linux draws at each start.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How an image was left by its last user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It is new: all bytes are zero.
    New,
    /// It was closed in order, and all of it is as it was.
    Clean,
    /// Its user was killed, and the machine has run on: every store that was made is there.
    Killed,
    /// The machine was started again meanwhile, or nobody knows: pages are of different ages.
    Lost,
}

/// An open, locked image.
#[derive(Debug)]
pub struct Image {
    file: Arc<File>,
    path: PathBuf,
    left: Left,
    about: Vec<u8>,
    len: u64,
    id: [u8; 16],
    created_unix_s: u64,
    /// The file stays as it is, whatever is stored in the parts.
    is_looked_at: bool,
}

impl Image {
    /// The format that this build writes and reads.
    pub const VERSION: u32 = VERSION;

    /// A new image of `len` bytes behind its page, all zero, none of them allocated. Takes the
    /// place of a file that is there. It is none before [`Image::begin`]: until then whoever opens
    /// it finds nothing.
    ///
    /// Panics where `about` is longer than 1 KiB.
    pub fn create(path: &Path, about: &[u8], len: u64) -> Result<Image, MediaError> {
        assert!(about.len() <= ABOUT_BYTES_MAX);
        let failed = |action| file_error(path, action);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).map_err(failed("create it"))?;
        lock(&file, path)?;
        file.set_len(0).map_err(failed("empty it"))?;
        file.set_len(HEADER_BYTES + len)
            .map_err(failed("give it its length"))?;
        let created = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
        Ok(Image {
            file: Arc::new(file),
            path: path.to_owned(),
            left: Left::New,
            about: about.to_vec(),
            len,
            id: random_uuid().map_err(failed("draw an id for it"))?,
            created_unix_s: created.as_secs(),
            is_looked_at: false,
        })
    }

    /// The image at a path; none where there is no file, or one that was never begun. It stays as
    /// it was left until [`Image::begin`].
    pub fn open(path: &Path) -> Result<Option<Image>, MediaError> {
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(file_error(path, "open it for reading and writing"))?,
        };
        lock(&file, path)?;
        Image::read(file, path)
    }

    /// The same, to be looked at: the file is only read, and what is stored in the parts is gone
    /// with them. Others may look at it meanwhile, but not use it.
    pub fn look(path: &Path) -> Result<Option<Image>, MediaError> {
        let file = File::open(path).map_err(file_error(path, "open it for reading"))?;
        lock_shared(&file, path)?;
        let image = Image::read(file, path)?;
        Ok(image.map(|image| Image {
            is_looked_at: true,
            ..image
        }))
    }

    fn read(file: File, path: &Path) -> Result<Option<Image>, MediaError> {
        let failed = |action| file_error(path, action);
        let metadata = file.metadata().map_err(failed("ask for its size"))?;
        let mut page = [0; PAGE_BYTES];
        let present = metadata.len().min(HEADER_BYTES) as usize;
        file.read_exact_at(&mut page[..present], 0)
            .map_err(failed("read its header"))?;
        if page == [0; PAGE_BYTES] {
            return Ok(None);
        }
        let (about, len) = read_header(&page, path, metadata.len())?;
        let created = page[40..48].try_into().expect("8 bytes");
        Ok(Some(Image {
            file: Arc::new(file),
            path: path.to_owned(),
            left: left(&page),
            about,
            len,
            id: page[24..40].try_into().expect("16 bytes"),
            created_unix_s: u64::from_le_bytes(created),
            is_looked_at: false,
        }))
    }

    /// How it was left when it was opened.
    pub fn left(&self) -> Left {
        self.left
    }

    /// Its id, a random UUID.
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// When it was made, in seconds since the Unix epoch.
    pub fn created_unix_s(&self) -> u64 {
        self.created_unix_s
    }

    /// What its maker said about it.
    pub fn about(&self) -> &[u8] {
        &self.about
    }

    /// Its length in bytes, its page excluded.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is only a page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A part of it, from `at` on behind its page, a multiple of a page. With `huge`, the kernel is
    /// asked for 2 MiB pages, which it may decline.
    ///
    /// Panics where the part leaves the image.
    pub fn region(&self, at: u64, len: usize, huge: bool) -> Result<Region, MediaError> {
        let end = at.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= self.len) && at.is_multiple_of(HEADER_BYTES),
            "{len} bytes at {at} are no part of an image of {}",
            self.len
        );
        let private = self.is_looked_at;
        Region::of_file(&self.file, HEADER_BYTES + at, len, huge, private)
            .map_err(file_error(&self.path, "map it"))
    }

    /// A part of it as `len` values.
    pub fn array<T: crate::dram::Words>(
        &self,
        at: u64,
        len: usize,
        huge: bool,
    ) -> Result<Array<T>, MediaError> {
        let region = self.region(at, Array::<T>::bytes(len), huge)?;
        Ok(Array::over(region, len))
    }

    /// Says that it is in use from now on, before the first store: whoever finds it so knows that
    /// its user did not close it.
    pub fn begin(&self) -> Result<(), MediaError> {
        match self.left {
            _ if self.is_looked_at => Ok(()),
            // It says so already, and to write that again would wait for all that the last user
            // stored.
            Left::Killed => Ok(()),
            Left::New => {
                let failed = |action| file_error(&self.path, action);
                let written = self.file.write_all_at(&self.header(), 0);
                written.map_err(failed("write its header"))?;
                self.mark(MARK_IN_USE)
            }
            _ => self.mark(MARK_IN_USE),
        }
    }

    /// [`Image::begin`] of one that is new and worth nothing until [`Image::mark_in_use`].
    pub fn begin_lost(&self) -> Result<(), MediaError> {
        let failed = |action| file_error(&self.path, action);
        let written = self.file.write_all_at(&self.header(), 0);
        written.map_err(failed("write its header"))?;
        self.mark_lost()
    }

    /// Says that nothing in it is worth anything any more.
    pub fn mark_lost(&self) -> Result<(), MediaError> {
        self.mark(MARK_LOST)
    }

    /// It is in use, and has what it should.
    pub fn mark_in_use(&self) -> Result<(), MediaError> {
        self.mark(MARK_IN_USE)
    }

    /// Gives it at least so many bytes behind its page, the new ones zero. What it says of itself
    /// stays; see [`Image::describe`].
    pub fn lengthen(&mut self, len: u64) -> Result<(), MediaError> {
        if self.len < len {
            let lengthened = self.file.set_len(HEADER_BYTES + len);
            lengthened.map_err(file_error(&self.path, "give it its length"))?;
            self.len = len;
        }
        Ok(())
    }

    /// Says something else about it, and that it has `len` bytes; what lies behind those goes. No
    /// region of it may reach there. Not for one that is looked at.
    ///
    /// Panics where `about` is longer than 1 KiB, or it has less bytes than that.
    pub fn describe(&mut self, about: &[u8], len: u64) -> Result<(), MediaError> {
        assert!(about.len() <= ABOUT_BYTES_MAX && len <= self.len && !self.is_looked_at);
        (self.about, self.len) = (about.to_vec(), len);
        let failed = |action| file_error(&self.path, action);
        // One page, which no kill leaves in halves.
        let written = self
            .file
            .write_all_at(&self.header()[..MARK_AT as usize], 0);
        written.map_err(failed("write its header"))?;
        let cut = self.file.set_len(HEADER_BYTES + len);
        cut.map_err(failed("give it its length"))
    }

    /// Bytes that the file system has for it.
    pub fn allocated_bytes(&self) -> Result<u64, MediaError> {
        let metadata = self.file.metadata();
        let metadata = metadata.map_err(file_error(&self.path, "ask for its size"))?;
        Ok(metadata.blocks() * 512)
    }

    /// Writes everything to the disk and says that it was closed in order. The caller stores
    /// nothing afterwards.
    pub fn mark_clean(&self) -> Result<(), MediaError> {
        self.sync()?;
        self.mark(MARK_CLEAN)
    }

    /// Waits until everything that was stored is on the disk.
    pub fn sync(&self) -> Result<(), MediaError> {
        if self.is_looked_at {
            return Ok(());
        }
        let synced = self.file.sync_data();
        synced.map_err(file_error(&self.path, "sync it"))
    }

    fn mark(&self, mark: [u8; 8]) -> Result<(), MediaError> {
        if self.is_looked_at {
            return Ok(());
        }
        let mut bytes = [0; MARK_BYTES];
        bytes[..8].copy_from_slice(&mark);
        bytes[8..8 + 36].copy_from_slice(&boot_id().unwrap_or([0; 36]));
        let check = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&check.to_le_bytes());
        let written = self.file.write_all_at(&bytes, MARK_AT);
        let synced = written.and_then(|()| self.file.sync_data());
        synced.map_err(file_error(&self.path, "write how it was left"))
    }

    fn header(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(PAGE_BYTES);
        page.extend(MAGIC);
        page.extend(VERSION.to_le_bytes());
        page.extend((HEADER_BYTES as u32).to_le_bytes());
        page.extend(self.len.to_le_bytes());
        page.extend(self.id);
        page.extend(self.created_unix_s.to_le_bytes());
        assert_eq!(page.len(), ABOUT_LEN_AT);
        page.extend((self.about.len() as u64).to_le_bytes());
        page.resize(ABOUT_AT, 0);
        page.extend(&self.about);
        page.resize(CHECKSUM_AT, 0);
        page.extend(xxh3_64(&page).to_le_bytes());
        page.resize(PAGE_BYTES, 0);
        page
    }
}

/// The id of this start of the machine.
fn boot_id() -> Option<[u8; 36]> {
    let text = std::fs::read_to_string(BOOT_ID).ok()?;
    text.trim().as_bytes().try_into().ok()
}

fn left(page: &[u8; PAGE_BYTES]) -> Left {
    let mark = &page[MARK_AT as usize..][..MARK_BYTES];
    if xxh3_64(&mark[..56]).to_le_bytes() != mark[56..] {
        return Left::Lost;
    }
    let same_boot = || boot_id().is_some_and(|id| id == mark[8..8 + 36]);
    match mark[..8].try_into().expect("eight bytes") {
        MARK_CLEAN => Left::Clean,
        MARK_IN_USE if same_boot() => Left::Killed,
        _ => Left::Lost,
    }
}

/// What was said about an image, and its length.
fn read_header(
    page: &[u8; PAGE_BYTES],
    path: &Path,
    file_bytes: u64,
) -> Result<(Vec<u8>, u64), MediaError> {
    let path = path.to_owned();
    let u64_at = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
    if page[..8] != MAGIC {
        let found = page[..8].try_into().expect("8 bytes");
        return Err(MediaError::NoImage { path, found });
    }
    check_page(page, &path, VERSION, CHECKSUM_AT)?;
    let (len, about) = (u64_at(16), u64_at(ABOUT_LEN_AT) as usize);
    let header_bytes = HEADER_BYTES.saturating_add(len);
    if file_bytes < header_bytes {
        return Err(MediaError::Truncated {
            path,
            file_bytes,
            header_bytes,
        });
    }
    let about = page[ABOUT_AT..CHECKSUM_AT].get(..about).unwrap_or_default();
    Ok((about.to_vec(), len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    fn place() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("image");
        (directory, path)
    }

    fn patch(path: &Path, at: u64, bytes: &[u8]) {
        let file = OpenOptions::new().write(true).open(path).expect("the file");
        file.write_all_at(bytes, at).expect("a patch");
    }

    #[test]
    fn one_that_is_described_anew_keeps_what_it_had() {
        let (_directory, path) = place();
        let image = Image::create(&path, b"mine", 1 << 20).expect("a new image");
        image.begin().expect("a disk");
        let words = image.array::<AtomicU64>(0, 10, false).expect("part");
        words.allocate(0, 10).expect("room");
        words[9].store(7, Relaxed);
        drop((words, image));
        let (mut about, mut id) = (b"mine".to_vec(), None);
        for (new, len) in [(&b"longer"[..], 3 << 20), (b"shorter", 4096)] {
            let mut image = Image::open(&path).expect("sound").expect("there");
            assert_eq!((image.about(), image.left()), (&about[..], Left::Killed));
            assert_eq!(*id.get_or_insert(image.id()), image.id());
            image.lengthen(len).expect("a disk");
            let had = image.len();
            let last = image.array::<AtomicU64>(had - 4096, 512, false);
            let last = last.expect("a part of it");
            last.allocate(0, 512).expect("room");
            assert!(had == 4096 || last[511].load(Relaxed) == 0);
            drop(last);
            image.describe(new, len).expect("a disk");
            about = new.to_vec();
            let file_len = std::fs::metadata(&path).expect("it is there").len();
            assert_eq!((image.len(), file_len), (len, len + 4096));
            let words = image.array::<AtomicU64>(0, 10, false).expect("part");
            assert_eq!(words[9].load(Relaxed), 7);
        }
    }

    #[test]
    fn what_was_stored_is_there_whoever_closed_it() {
        let (_directory, path) = place();
        let image = Image::create(&path, b"mine", 3 << 20).expect("a new image");
        assert_eq!(image.left(), Left::New);
        drop(image);
        assert!(
            Image::open(&path).expect("no error").is_none(),
            "it was never begun"
        );
        let image = Image::create(&path, b"mine", 3 << 20).expect("a new image");
        image.begin().expect("a disk");
        let words = image.array::<AtomicU64>(1 << 20, 1000, true).expect("part");
        words.allocate(0, 1000).expect("room");
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        words[999].store(7, Relaxed);
        assert!(
            Image::open(&path).is_err(),
            "an image is one server's, while it is open"
        );
        drop((words, image));

        let image = Image::open(&path).expect("sound").expect("there");
        assert_eq!((image.left(), image.about()), (Left::Killed, &b"mine"[..]));
        let words = image
            .array::<AtomicU64>(1 << 20, 1000, false)
            .expect("part");
        assert_eq!(words[999].load(Relaxed), 7);
        image.mark_clean().expect("a disk");
        drop((words, image));

        let image = Image::open(&path).expect("sound").expect("there");
        assert_eq!(image.left(), Left::Clean);
        image.begin().expect("a disk");
        drop(image);
        let left = || {
            let image = Image::open(&path).expect("sound").expect("there");
            image.left()
        };
        assert_eq!(left(), Left::Killed);
        patch(&path, MARK_AT + 10, b"another start");
        assert_eq!(left(), Left::Lost);
    }

    /// What a look stores stays with it, and what it gives back reads as zero to it alone.
    #[test]
    fn a_look_changes_nothing() {
        let (_directory, path) = place();
        let image = Image::create(&path, b"mine", 1 << 20).expect("a new image");
        image.begin().expect("a disk");
        let words = image.array::<AtomicU64>(0, 1000, false).expect("part");
        words.allocate(0, 1000).expect("room");
        words.iter().for_each(|word| word.store(7, Relaxed));
        drop((words, image));
        let before = std::fs::read(&path).expect("the file");
        let image = Image::look(&path).expect("sound").expect("there");
        let region = image.region(0, 8000, false).expect("part");
        image.begin().expect("nothing to do");
        region.release(0, 4096);
        let words = Array::<AtomicU64>::over(region, 1000);
        assert_eq!((words[0].load(Relaxed), words[999].load(Relaxed)), (0, 7));
        words[999].store(8, Relaxed);
        image.mark_clean().expect("nothing to do");
        assert_eq!(words[999].load(Relaxed), 8);
        assert!(std::fs::read(&path).expect("the file") == before);
    }

    #[test]
    fn pages_of_a_part_are_given_back_and_allocated_again() {
        let (_directory, path) = place();
        let image = Image::create(&path, b"", 1 << 20).expect("a new image");
        let region = image.region(0, 1 << 20, false).expect("part");
        let blocks = || {
            let file = File::open(&path).expect("the file");
            std::os::unix::fs::MetadataExt::blocks(&file.metadata().expect("its size"))
        };
        let empty = blocks();
        region.allocate(0, 1 << 20).expect("room");
        assert_eq!(blocks() - empty, 2048, "blocks of 512 bytes");
        // SAFETY: the first byte of a region that is allocated.
        unsafe { region.base().as_ptr().write(1) };
        region.release(0, 1 << 19);
        assert_eq!(blocks() - empty, 1024);
        // SAFETY: as above.
        assert_eq!(unsafe { region.base().as_ptr().read() }, 0);
    }

    #[test]
    fn what_is_no_image_is_refused_by_name() {
        let (_directory, path) = place();
        assert!(Image::open(&path).expect("no error").is_none());
        let refusal = |path: &Path| {
            let error = Image::open(path).expect_err("not fit").to_string();
            assert!(error.contains("image"), "{error}");
            error
        };
        std::fs::write(&path, [7; 5000]).expect("a disk");
        assert!(refusal(&path).contains("not a Nyx image"));
        std::fs::write(&path, b"NYX").expect("a disk");
        refusal(&path);
        let fresh = || {
            let image = Image::create(&path, b"mine", 1 << 20).expect("a new image");
            image.begin().expect("a disk");
        };
        fresh();
        patch(&path, 8, &[9]);
        assert!(refusal(&path).contains("format 9"));
        fresh();
        patch(&path, ABOUT_AT as u64 + 1, &[9]);
        assert!(refusal(&path).contains("damaged"));
        fresh();
        let file = OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("the file");
        file.set_len(1 << 20).expect("a disk");
        assert!(refusal(&path).contains("truncated"));
    }

    /// Byte for byte, so that no edit changes the format unnoticed.
    #[test]
    fn the_header_is_the_documented_bytes() {
        let (_directory, path) = place();
        let image = Image::create(&path, b"about", 1 << 20).expect("a new image");
        let page = image.header();
        assert_eq!(page.len(), PAGE_BYTES);
        assert_eq!(page[..16], *b"NYXIMAGE\x01\0\0\0\0\x10\0\0");
        assert_eq!(page[16..24], (1u64 << 20).to_le_bytes());
        assert_eq!(page[48..56], 5u64.to_le_bytes());
        assert_eq!(page[64..69], *b"about");
        assert!(page[69..1088].iter().all(|&byte| byte == 0));
        assert_eq!(page[1088..1096], xxh3_64(&page[..1088]).to_le_bytes());
        assert!(page[1096..].iter().all(|&byte| byte == 0));
    }
}
