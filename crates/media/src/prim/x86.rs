//! The primitives of x86-64 in assembly. Short copies load both ends into registers that overlap
//! in the middle, so that no size has a loop over bytes. At the AVX-512 level the registers are
//! zmm16 to zmm19, which need no `vzeroupper` before SSE code; the AVX2 level does need it.
//!
//! What it never does: detect anything per call. The level is an argument.

use super::{CopyLevel, FlushLevel, LINE_BYTES, Line, PREFETCH_LINES_MAX, WORD_BYTES, portable};
use std::arch::asm;
use std::arch::x86_64::{
    __cpuid, __cpuid_count, _MM_HINT_NTA, _MM_HINT_T0, _mm_prefetch, _mm_sfence,
};
use std::sync::atomic::AtomicU64;

pub(super) fn copy_level() -> CopyLevel {
    if std::is_x86_feature_detected!("avx512f") {
        CopyLevel::Avx512
    } else if std::is_x86_feature_detected!("avx2") {
        CopyLevel::Avx2
    } else {
        CopyLevel::Sse2
    }
}

/// CPUID leaf 7, EBX: bit 24 is `clwb`, bit 23 `clflushopt`. Every x86-64 has `clflush`.
pub(super) fn flush_level() -> FlushLevel {
    if __cpuid(0).eax < 7 {
        return FlushLevel::Clflush;
    }
    match __cpuid_count(7, 0).ebx {
        ebx if ebx & (1 << 24) != 0 => FlushLevel::Clwb,
        ebx if ebx & (1 << 23) != 0 => FlushLevel::Clflushopt,
        _ => FlushLevel::Clflush,
    }
}

/// Two units of general registers, the first and the last of a copy.
macro_rules! two_words {
    ($into:ident, $from:ident, $last:expr, $modifier:literal, $unit:literal) => {
        asm!(
            concat!("mov {a", $modifier, "}, ", $unit, " ptr [{from}]"),
            concat!("mov {b", $modifier, "}, ", $unit, " ptr [{from} + {last}]"),
            concat!("mov ", $unit, " ptr [{into}], {a", $modifier, "}"),
            concat!("mov ", $unit, " ptr [{into} + {last}], {b", $modifier, "}"),
            a = out(reg) _, b = out(reg) _,
            from = in(reg) $from, into = in(reg) $into, last = in(reg) $last,
            options(nostack, preserves_flags)
        )
    };
}

/// Two vector units of `$w` bytes, the first and the last of a copy.
macro_rules! two_units {
    ($into:ident, $from:ident, $len:ident, $w:literal, $mov:literal, $a:tt, $b:tt) => {
        asm!(
            concat!($mov, " ", $a, ", [{from}]"),
            concat!($mov, " ", $b, ", [{from} + {last}]"),
            concat!($mov, " [{into}], ", $a),
            concat!($mov, " [{into} + {last}], ", $b),
            from = in(reg) $from, into = in(reg) $into, last = in(reg) $len - $w,
            out($a) _, out($b) _,
            options(nostack, preserves_flags)
        )
    };
}

/// Four vector units, two at either end. `$finish` ends the block, `$clobber` are the registers
/// that it changes besides the four.
macro_rules! four_units {
    ($into:ident, $from:ident, $len:ident, $w:literal, $mov:literal, $finish:literal,
     $a:tt, $b:tt, $c:tt, $d:tt $(, $clobber:tt)*) => {
        asm!(
            concat!($mov, " ", $a, ", [{from}]"),
            concat!($mov, " ", $b, ", [{from} + ", $w, "]"),
            concat!($mov, " ", $c, ", [{from} + {last} - ", $w, "]"),
            concat!($mov, " ", $d, ", [{from} + {last}]"),
            concat!($mov, " [{into}], ", $a),
            concat!($mov, " [{into} + ", $w, "], ", $b),
            concat!($mov, " [{into} + {last} - ", $w, "], ", $c),
            concat!($mov, " [{into} + {last}], ", $d),
            $finish,
            from = in(reg) $from, into = in(reg) $into, last = in(reg) $len - $w,
            out($a) _, out($b) _, out($c) _, out($d) _, $(out($clobber) _,)*
            options(nostack, preserves_flags)
        )
    };
}

/// Blocks of four vector units while more than one block is left, then the block that ends at the
/// last byte. More than one block in all.
macro_rules! blocks {
    ($into:ident, $from:ident, $len:ident, $w:literal, $mov:literal, $finish:literal,
     $a:tt, $b:tt, $c:tt, $d:tt $(, $clobber:tt)*) => {
        asm!(
            "2:",
            concat!($mov, " ", $a, ", [{from}]"),
            concat!($mov, " ", $b, ", [{from} + ", $w, "]"),
            concat!($mov, " ", $c, ", [{from} + 2 * ", $w, "]"),
            concat!($mov, " ", $d, ", [{from} + 3 * ", $w, "]"),
            concat!($mov, " [{into}], ", $a),
            concat!($mov, " [{into} + ", $w, "], ", $b),
            concat!($mov, " [{into} + 2 * ", $w, "], ", $c),
            concat!($mov, " [{into} + 3 * ", $w, "], ", $d),
            concat!("add {from}, 4 * ", $w),
            concat!("add {into}, 4 * ", $w),
            concat!("sub {left}, 4 * ", $w),
            concat!("cmp {left}, 4 * ", $w),
            "ja 2b",
            concat!($mov, " ", $a, ", [{from} + {left} - 4 * ", $w, "]"),
            concat!($mov, " ", $b, ", [{from} + {left} - 3 * ", $w, "]"),
            concat!($mov, " ", $c, ", [{from} + {left} - 2 * ", $w, "]"),
            concat!($mov, " ", $d, ", [{from} + {left} - ", $w, "]"),
            concat!($mov, " [{into} + {left} - 4 * ", $w, "], ", $a),
            concat!($mov, " [{into} + {left} - 3 * ", $w, "], ", $b),
            concat!($mov, " [{into} + {left} - 2 * ", $w, "], ", $c),
            concat!($mov, " [{into} + {left} - ", $w, "], ", $d),
            $finish,
            from = inout(reg) $from => _, into = inout(reg) $into => _,
            left = inout(reg) $len => _,
            out($a) _, out($b) _, out($c) _, out($d) _, $(out($clobber) _,)*
            options(nostack)
        )
    };
}

/// Whole lines, each by as many non-temporal stores as its registers need.
macro_rules! lines_nt {
    ($into:ident, $from:ident, $lines:ident, $w:literal, $load:literal, $store:literal,
     $finish:literal, [$($at:literal $register:tt),*] $(, $clobber:tt)*) => {
        asm!(
            "2:",
            $(concat!($load, " ", $register, ", [{from} + ", $at, "]"),)*
            $(concat!($store, " [{into} + ", $at, "], ", $register),)*
            "add {from}, 64",
            "add {into}, 64",
            "dec {lines}",
            "jnz 2b",
            $finish,
            from = inout(reg) $from => _, into = inout(reg) $into => _,
            lines = inout(reg) $lines => _,
            $(out($register) _,)* $(out($clobber) _,)*
            options(nostack)
        )
    };
}

/// # Safety
///
/// As [`super::Prim::copy`], and the processor has `level`.
#[inline]
pub(super) unsafe fn copy(level: CopyLevel, into: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise; each arm's length is one that its function takes.
    unsafe {
        match (len, level) {
            (_, CopyLevel::Portable) => portable::copy(into, from, len),
            (0..=16, _) => copy_to_16(into, from, len),
            (17..=32, _) => two_units!(into, from, len, 16, "movdqu", "xmm0", "xmm1"),
            (33..=64, _) => {
                four_units!(
                    into, from, len, 16, "movdqu", "", "xmm0", "xmm1", "xmm2", "xmm3"
                );
            }
            (_, CopyLevel::Avx512) => copy_from_65_avx512(into, from, len),
            (_, CopyLevel::Avx2) => copy_from_65_avx2(into, from, len),
            (_, CopyLevel::Sse2) => {
                blocks!(
                    into, from, len, 16, "movdqu", "", "xmm0", "xmm1", "xmm2", "xmm3"
                );
            }
        }
    }
}

/// # Safety
///
/// As [`copy`], with `len` at most 16.
#[inline]
unsafe fn copy_to_16(into: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the two units of each arm begin at the first byte and end at the last, and neither
    // is longer than `len`.
    unsafe {
        match len {
            0 => {}
            1 => asm!(
                "mov {a}, byte ptr [{from}]", "mov byte ptr [{into}], {a}",
                a = out(reg_byte) _, from = in(reg) from, into = in(reg) into,
                options(nostack, preserves_flags)
            ),
            2..=3 => two_words!(into, from, len - 2, ":x", "word"),
            4..=7 => two_words!(into, from, len - 4, ":e", "dword"),
            _ => two_words!(into, from, len - 8, ":r", "qword"),
        }
    }
}

/// # Safety
///
/// As [`copy`], with `len` from 65 on and a processor that has AVX-512F.
#[inline]
unsafe fn copy_from_65_avx512(into: *mut u8, from: *const u8, len: usize) {
    // SAFETY: each arm's length is one that its macro takes; the registers exist by the promise.
    unsafe {
        match len {
            0..=128 => two_units!(into, from, len, 64, "vmovdqu64", "zmm16", "zmm17"),
            129..=256 => four_units!(
                into,
                from,
                len,
                64,
                "vmovdqu64",
                "",
                "zmm16",
                "zmm17",
                "zmm18",
                "zmm19"
            ),
            _ => blocks!(
                into,
                from,
                len,
                64,
                "vmovdqu64",
                "",
                "zmm16",
                "zmm17",
                "zmm18",
                "zmm19"
            ),
        }
    }
}

/// # Safety
///
/// As [`copy`], with `len` from 65 on and a processor that has AVX2.
unsafe fn copy_from_65_avx2(into: *mut u8, from: *const u8, len: usize) {
    // SAFETY: as for AVX-512. `vzeroupper` changes the upper halves of all 16 registers, so all of
    // them are declared.
    unsafe {
        match len {
            0..=128 => four_units!(
                into,
                from,
                len,
                32,
                "vmovdqu",
                "vzeroupper",
                "ymm0",
                "ymm1",
                "ymm2",
                "ymm3",
                "ymm4",
                "ymm5",
                "ymm6",
                "ymm7",
                "ymm8",
                "ymm9",
                "ymm10",
                "ymm11",
                "ymm12",
                "ymm13",
                "ymm14",
                "ymm15"
            ),
            _ => blocks!(
                into,
                from,
                len,
                32,
                "vmovdqu",
                "vzeroupper",
                "ymm0",
                "ymm1",
                "ymm2",
                "ymm3",
                "ymm4",
                "ymm5",
                "ymm6",
                "ymm7",
                "ymm8",
                "ymm9",
                "ymm10",
                "ymm11",
                "ymm12",
                "ymm13",
                "ymm14",
                "ymm15"
            ),
        }
    }
}

/// Copies whole lines past the cache. [`fence`] orders them.
///
/// # Safety
///
/// As [`copy`] for `64 * lines` bytes; `into` begins at a line, and there is at least one.
#[inline]
pub(super) unsafe fn copy_lines_nt(level: CopyLevel, into: *mut u8, from: *const u8, lines: usize) {
    debug_assert!(lines > 0 && (into as usize).is_multiple_of(LINE_BYTES));
    // SAFETY: the caller's promise; alignment to 64 bytes is alignment to every register's width.
    unsafe {
        match level {
            CopyLevel::Portable => portable::copy(into, from, lines * LINE_BYTES),
            CopyLevel::Sse2 => lines_nt!(
                into, from, lines, 16, "movdqu", "movntdq", "",
                [0 "xmm0", 16 "xmm1", 32 "xmm2", 48 "xmm3"]
            ),
            CopyLevel::Avx2 => lines_nt!(
                into, from, lines, 32, "vmovdqu", "vmovntdq", "vzeroupper",
                [0 "ymm0", 32 "ymm1"],
                "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10",
                "ymm11", "ymm12", "ymm13", "ymm14", "ymm15"
            ),
            CopyLevel::Avx512 => lines_nt!(
                into, from, lines, 64, "vmovdqu64", "vmovntdq", "", [0 "zmm16"]
            ),
        }
    }
}

/// Copies whole words of 8 bytes past the cache. [`fence`] orders them.
///
/// # Safety
///
/// As [`copy`] for `8 * words` bytes.
#[inline]
pub(super) unsafe fn copy_words_nt(into: *mut u8, from: *const u8, words: usize) {
    for at in (0..words).map(|word| word * WORD_BYTES) {
        // SAFETY: the word lies inside both ranges by the caller's promise.
        unsafe {
            asm!(
                "mov {word}, qword ptr [{from}]", "movnti qword ptr [{into}], {word}",
                word = out(reg) _, from = in(reg) from.add(at), into = in(reg) into.add(at),
                options(nostack, preserves_flags)
            );
        }
    }
}

/// Writes whole lines back.
///
/// # Safety
///
/// The lines are mapped, `at` begins one, and the processor has `level`.
pub(super) unsafe fn flush_lines(level: FlushLevel, at: *const u8, lines: usize) {
    for i in 0..lines {
        let line = at.wrapping_add(i * LINE_BYTES);
        // SAFETY: the line is mapped by the caller's promise; a flush changes no byte.
        unsafe {
            match level {
                FlushLevel::None => return,
                FlushLevel::Clflush => {
                    asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                FlushLevel::Clflushopt => {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                FlushLevel::Clwb => {
                    asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
                }
            }
        }
    }
}

/// Stores a word in one piece. A release store, as every store of this processor is, that the
/// compiler neither drops, nor merges with another, nor moves across another: what is made durable
/// in the order of the program must be stored in that order.
#[inline]
pub fn store_word(word: &AtomicU64, value: u64) {
    // SAFETY: the reference is to eight aligned bytes; to the other threads the store is what an
    // atomic one would be.
    unsafe {
        asm!(
            "mov qword ptr [{at}], {value}",
            at = in(reg) word.as_ptr(), value = in(reg) value,
            options(nostack, preserves_flags)
        );
    }
}

/// As [`super::Prim::find_word`].
#[inline]
pub(super) fn find_word(level: CopyLevel, line: &Line, word: u64) -> Option<usize> {
    let at = std::ptr::from_ref(line);
    // SAFETY: the reference is to a line that is aligned as one, and the level is one that this
    // processor has. Aligned words are loaded in one piece also by wider loads, so that to other
    // threads each is what an atomic load would be.
    unsafe {
        match level {
            CopyLevel::Avx512 => {
                let equal = equal_avx512(at, word);
                (equal != 0).then(|| equal.trailing_zeros() as usize)
            }
            _ => {
                // The bits of both halves of a word.
                let equal = equal_sse2(at, word);
                let equal = equal & equal >> 1 & 0x5555;
                (equal != 0).then(|| equal.trailing_zeros() as usize / 2)
            }
        }
    }
}

/// The words of a line that are equal, a bit each.
///
/// # Safety
///
/// `line` is one, and the processor has AVX-512F.
#[inline]
unsafe fn equal_avx512(line: *const Line, word: u64) -> u32 {
    let equal: u32;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "vpbroadcastq zmm16, {word}",
            "vpcmpeqq k1, zmm16, zmmword ptr [{line}]",
            "kmovw {equal:e}, k1",
            line = in(reg) line, word = in(reg) word, equal = lateout(reg) equal,
            out("zmm16") _, out("k1") _,
            options(nostack, preserves_flags)
        );
    }
    equal
}

/// The halves of words of a line that are equal, a bit each.
///
/// # Safety
///
/// `line` is one.
#[inline]
unsafe fn equal_sse2(line: *const Line, word: u64) -> u32 {
    let equal: u32;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "movq {wanted}, {word}",
            "punpcklqdq {wanted}, {wanted}",
            "movdqa {a}, xmmword ptr [{line}]",
            "movdqa {b}, xmmword ptr [{line} + 16]",
            "pcmpeqd {a}, {wanted}",
            "pcmpeqd {b}, {wanted}",
            "packssdw {a}, {b}",
            "movdqa {c}, xmmword ptr [{line} + 32]",
            "pcmpeqd {c}, {wanted}",
            "pcmpeqd {wanted}, xmmword ptr [{line} + 48]",
            "packssdw {c}, {wanted}",
            "packsswb {a}, {c}",
            "pmovmskb {equal:e}, {a}",
            line = in(reg) line, word = in(reg) word, equal = lateout(reg) equal,
            wanted = out(xmm_reg) _, a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
    equal
}

#[inline]
pub(super) fn fence() {
    // SAFETY: SSE is part of x86-64, and the instruction only orders.
    unsafe { _mm_sfence() }
}

/// The lines of `[at, at + len)`, at most [`PREFETCH_LINES_MAX`].
#[inline]
fn first_lines(at: *const u8, len: usize) -> impl Iterator<Item = *const u8> {
    // Counted from the first line's begin: 100 B may lie on three lines.
    let lines = (at as usize % LINE_BYTES + len).div_ceil(LINE_BYTES);
    (0..lines.min(PREFETCH_LINES_MAX)).map(move |i| at.wrapping_add(i * LINE_BYTES))
}

/// Asks for the first lines of `[at, at + len)`, at most [`PREFETCH_LINES_MAX`]. Any address is
/// allowed: a prefetch never faults.
#[inline]
pub fn prefetch(at: *const u8, len: usize) {
    for line in first_lines(at, len) {
        // SAFETY: a hint; it reads nothing that the program can see and ignores bad addresses.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }
}

/// As [`prefetch`], for lines that are looked at once and soon: they come to the innermost cache
/// only.
#[inline]
pub fn prefetch_once(at: *const u8, len: usize) {
    for line in first_lines(at, len) {
        // SAFETY: a hint as above.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(line.cast()) }
    }
}

/// As [`prefetch`], for lines that are about to be written: they come as this core's own.
#[inline]
pub fn prefetch_write(at: *const u8, len: usize) {
    for line in first_lines(at, len) {
        // SAFETY: a hint as above; where the processor has no such instruction it does nothing.
        unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)) }
    }
}
