//! Random operations beside a model of what each page holds.
//!
//! What it never does: depend on how threads interleave; the thread beside has memory of its own.

use crate::heap;
use crate::memory::{Block, KIB, PAGE, word};
use crate::sys::{self, PRIVATE, RW};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};

/// What a page of a piece holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Held {
    Zero,
    /// What was written with this seed.
    Seed(u64),
    /// That or zeros, as the system likes.
    Maybe(u64),
    /// Whatever an allocator left there.
    Any,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Heap,
    Map,
}

struct Piece {
    kind: Kind,
    at: usize,
    len: usize,
    /// Bytes that were before it when it was made; what is written tells its place from there.
    skipped: usize,
    /// Of each page from its beginning, which need not be aligned.
    held: Vec<Held>,
    is_read_only: bool,
    /// The system may not be able to move it in one.
    is_mixed: bool,
}

impl Piece {
    fn new(kind: Kind, block: Block, held: Held) -> Piece {
        Piece {
            kind,
            at: block.at,
            len: block.len,
            skipped: 0,
            held: vec![held; block.len.div_ceil(PAGE)],
            is_read_only: false,
            is_mixed: false,
        }
    }

    /// With what was before it, whether that is there or not.
    fn block(&self) -> Block {
        Block {
            at: self.at.wrapping_sub(self.skipped),
            len: self.skipped + self.len,
        }
    }

    fn page(&self, page: usize) -> Range<usize> {
        self.skipped + page * PAGE..self.skipped + ((page + 1) * PAGE).min(self.len)
    }

    fn write(&mut self, page: usize, seed: u64) {
        if !self.is_read_only {
            self.block().fill(self.page(page), seed);
            self.held[page] = Held::Seed(seed);
        }
    }

    fn check(&self, page: usize) {
        let (block, range) = (self.block(), self.page(page));
        let is_zero = word(block.at.wrapping_add(range.start)).load(Relaxed) == 0;
        match self.held[page] {
            Held::Zero => block.zero(range),
            Held::Maybe(_) if is_zero => block.zero(range),
            Held::Seed(seed) | Held::Maybe(seed) => block.check(range, seed),
            Held::Any => {}
        }
    }

    fn check_all(&self) {
        (0..self.held.len()).for_each(|page| self.check(page));
    }

    /// Some of its pages as a piece of their own.
    fn part(&self, pages: Range<usize>) -> Piece {
        Piece {
            kind: Kind::Map,
            at: self.at + pages.start * PAGE,
            len: pages.len() * PAGE,
            skipped: self.skipped + pages.start * PAGE,
            held: self.held[pages].to_vec(),
            ..*self
        }
    }
}

fn give_back(piece: Piece) {
    let (at, len) = (piece.at, piece.len);
    match piece.kind {
        Kind::Heap => heap::free(Block { at, len }),
        Kind::Map => sys::munmap(at, len).expect("unmapped"),
    }
}

struct Run {
    rng: fastrand::Rng,
    pieces: Vec<Piece>,
    next_seed: u64,
    has_company: bool,
}

const PIECES_MAX: usize = 12;
const OPERATIONS: usize = 140;

pub(crate) fn run(seed: u64) {
    let is_done = AtomicBool::new(false);
    let block = Block::map(512 * KIB);
    let beside = || {
        let mut round = 0;
        while !is_done.load(SeqCst) {
            round += 1;
            block.fill(0..block.len, round);
            block.check(0..block.len, round);
        }
    };
    std::thread::scope(|scope| {
        if seed.is_multiple_of(3) {
            scope.spawn(beside);
        }
        let mut run = Run {
            rng: fastrand::Rng::with_seed(seed),
            pieces: Vec::new(),
            next_seed: seed << 20,
            has_company: seed.is_multiple_of(3),
        };
        // The other thread ends where this one panics.
        let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.go()));
        is_done.store(true, SeqCst);
        said.unwrap_or_else(|why| std::panic::resume_unwind(why));
    });
}

impl Run {
    fn go(&mut self) {
        for _ in 0..OPERATIONS {
            match self.rng.u8(..100) {
                0..14 => self.make(),
                14..44 => self.write(),
                44..60 => self.check(),
                60..66 => self.free(),
                66..73 => self.resize(),
                73..79 => self.advise(),
                79..83 => self.unmap_part(),
                83..86 => self.map_over(),
                86..90 => self.protect(),
                90..94 => self.lock(),
                94..97 => self.call(),
                _ => self.fork(),
            }
        }
        for piece in std::mem::take(&mut self.pieces) {
            piece.check_all();
            give_back(piece);
        }
    }

    fn seed(&mut self) -> u64 {
        self.next_seed += 1;
        self.next_seed
    }

    fn piece(&mut self) -> Option<&mut Piece> {
        let count = self.pieces.len();
        let at = if count == 0 {
            return None;
        } else {
            self.rng.usize(..count)
        };
        self.pieces.get_mut(at)
    }

    /// A piece of maps, and some pages of it.
    fn part(&mut self) -> Option<(usize, Range<usize>)> {
        let count = self.pieces.len();
        let at = if count == 0 {
            return None;
        } else {
            self.rng.usize(..count)
        };
        let pages = self.pieces[at].held.len();
        let first = self.rng.usize(..pages);
        let end = (first + self.rng.usize(1..40)).min(pages);
        (self.pieces[at].kind == Kind::Map).then_some((at, first..end))
    }

    fn make(&mut self) {
        if self.pieces.len() >= PIECES_MAX {
            return self.free();
        }
        let len = match self.rng.u8(..4) {
            0 => self.rng.usize(1..32) * PAGE,
            1 => self.rng.usize(32..40) * PAGE,
            _ => self.rng.usize(40..300) * PAGE,
        };
        let (kind, block, held) = match self.rng.u8(..4) {
            0 => (
                Kind::Heap,
                heap::malloc(len - self.rng.usize(..500)),
                Held::Any,
            ),
            1 => (Kind::Heap, heap::calloc(len), Held::Zero),
            _ => (Kind::Map, Block::map(len), Held::Zero),
        };
        self.pieces.push(Piece::new(kind, block, held));
    }

    fn write(&mut self) {
        let seed = self.seed();
        let mut rng = self.rng.clone();
        let Some(piece) = self.piece() else { return };
        let pages = piece.held.len();
        match rng.u8(..3) {
            0 => (0..pages).for_each(|page| piece.write(page, seed)),
            1 => {
                let first = rng.usize(..pages);
                (first..(first + 24).min(pages)).for_each(|page| piece.write(page, seed));
            }
            _ => (0..12).for_each(|_| piece.write(rng.usize(..pages), seed)),
        }
    }

    fn check(&mut self) {
        if let Some(piece) = self.piece() {
            piece.check_all();
        }
    }

    fn free(&mut self) {
        if self.pieces.is_empty() {
            return;
        }
        let piece = self.pieces.swap_remove(self.rng.usize(..self.pieces.len()));
        if self.rng.bool() {
            piece.check_all();
        }
        give_back(piece);
    }

    fn resize(&mut self) {
        let pages = self.rng.usize(1..300);
        let Some(piece) = self.piece() else { return };
        if piece.is_read_only {
            return;
        }
        let len = pages * PAGE;
        let (at, old) = (piece.at, piece.len);
        match piece.kind {
            Kind::Heap => {
                // Of a last page that was no whole one only a part is known.
                if !old.is_multiple_of(PAGE) && len > old {
                    piece.held.pop();
                }
                piece.at = heap::resized(Block { at, len: old }, len).at;
                piece.held.resize(pages, Held::Any);
            }
            Kind::Map => {
                piece.at = match sys::mremap(at, old, len, libc::MREMAP_MAYMOVE, 0) {
                    Ok(at) => at,
                    Err(libc::EFAULT) if piece.is_mixed => return,
                    Err(why) => panic!("mremap {at:x}, {old} bytes to {len}: errno {why}"),
                };
                piece.held.resize(pages, Held::Zero);
            }
        }
        piece.len = len;
    }

    fn advise(&mut self) {
        let Some((at, pages)) = self.part() else {
            return;
        };
        let kind = self.rng.u8(..4);
        let piece = &mut self.pieces[at];
        let first = piece.at + pages.start * PAGE;
        let advice = [
            libc::MADV_DONTNEED,
            libc::MADV_FREE,
            libc::MADV_WILLNEED,
            libc::MADV_COLD,
        ][kind as usize];
        sys::madvise(first, pages.len() * PAGE, advice).expect("heard");
        for held in &mut piece.held[pages] {
            *held = match (*held, advice) {
                (_, libc::MADV_DONTNEED) => Held::Zero,
                (Held::Seed(seed), libc::MADV_FREE) => Held::Maybe(seed),
                (held, _) => held,
            };
        }
    }

    fn unmap_part(&mut self) {
        let Some((at, pages)) = self.part() else {
            return;
        };
        let piece = &mut self.pieces[at];
        let first = piece.at + pages.start * PAGE;
        sys::munmap(first, pages.len() * PAGE).expect("unmapped");
        // Another thread's memory may be there at once.
        assert!(self.has_company || sys::is_gone(first));
        // What is left are pieces of their own: the addresses may be another's by now.
        let piece = self.pieces.swap_remove(at);
        let rests = [0..pages.start, pages.end..piece.held.len()];
        let rests = rests.into_iter().filter(|rest| !rest.is_empty());
        self.pieces.extend(rests.map(|rest| piece.part(rest)));
    }

    fn map_over(&mut self) {
        let Some((at, pages)) = self.part() else {
            return;
        };
        let piece = &mut self.pieces[at];
        if piece.is_read_only {
            return;
        }
        let first = piece.at + pages.start * PAGE;
        let flags = PRIVATE | libc::MAP_FIXED;
        let said = sys::mmap(first, pages.len() * PAGE, RW, flags, -1);
        assert_eq!(said, Ok(first));
        piece.held[pages].fill(Held::Zero);
        piece.is_mixed = true;
    }

    fn protect(&mut self) {
        let Some((at, _)) = self.part() else { return };
        let piece = &mut self.pieces[at];
        piece.is_read_only = !piece.is_read_only;
        let prot = if piece.is_read_only {
            libc::PROT_READ
        } else {
            RW
        };
        sys::mprotect(piece.at, piece.len, prot).expect("protected");
    }

    fn lock(&mut self) {
        let Some((at, pages)) = self.part() else {
            return;
        };
        let piece = &mut self.pieces[at];
        let (first, len) = (piece.at + pages.start * PAGE, pages.len() * PAGE);
        match sys::mlock(first, len) {
            Ok(()) => {
                pages.for_each(|page| piece.check(page));
                sys::munlock(first, len).expect("unlocked");
            }
            Err(why) => assert!(matches!(why, libc::ENOMEM | libc::EPERM | libc::EAGAIN)),
        }
    }

    /// Through a pipe, from one page to another.
    fn call(&mut self) {
        let Some((at, pages)) = self.part() else {
            return;
        };
        let piece = &mut self.pieces[at];
        let Held::Seed(_) = piece.held[pages.start] else {
            return;
        };
        let (from, to) = sys::pipe();
        let target = Block::map(40 * PAGE);
        let first = piece.at + pages.start * PAGE;
        assert_eq!(sys::write(to, first, PAGE), Ok(PAGE));
        sys::read_all(from, target.at + PAGE, PAGE);
        for place in (0..PAGE).step_by(8) {
            let held = word(first + place).load(Relaxed);
            assert_eq!(word(target.at + PAGE + place).load(Relaxed), held);
        }
        piece.check(pages.start);
        target.unmap();
        sys::close(from);
        sys::close(to);
    }

    fn fork(&mut self) {
        let seed = self.seed();
        let child = sys::fork(|| {
            self.pieces.iter().for_each(Piece::check_all);
            for piece in &mut self.pieces {
                (0..piece.held.len()).for_each(|page| piece.write(page, seed));
                piece.check_all();
            }
            self.make();
            self.resize();
            self.pieces.iter().for_each(Piece::check_all);
            0
        });
        // Either way the other is not disturbed.
        if self.rng.bool() {
            self.write();
            self.check();
        }
        sys::passed(child);
    }
}
