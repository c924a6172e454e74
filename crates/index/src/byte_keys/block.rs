//! Blocks of byte keys in the heap (`docs/format.md`, "Byte keys"): a head and up to
//! [`KEY_BYTES_MAX`] bytes behind it, which are written once, before anybody knows of the block.

use super::KEY_BYTES_MAX;
use crate::heap::{Class, Heap};
use crate::ordered::{PutError, Unsound};
use nyx_base::WorkerId;
use nyx_media::Pmem;
use std::sync::atomic::Ordering::Acquire;

const WORD_BYTES: usize = 8;
const LONGEST_BYTES: usize = KEY_BYTES_MAX.next_multiple_of(WORD_BYTES);

/// A string of at most [`KEY_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    len: usize,
    bytes: [u8; LONGEST_BYTES],
}

impl Text {
    pub(super) fn of(from: &[u8]) -> Text {
        let mut bytes = [0; LONGEST_BYTES];
        bytes[..from.len()].copy_from_slice(from);
        Text {
            len: from.len(),
            bytes,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The class of a block with so many words before so many bytes.
fn class(heads: usize, len: usize) -> Class {
    Class::of((heads * WORD_BYTES + len) as u64).expect("there are blocks for the longest key")
}

/// Makes a block durable that nobody knows of: `head`, then `text`.
pub(super) fn write<P: Pmem>(
    heap: &Heap<P>,
    worker: WorkerId,
    head: &[u64],
    text: &[u8],
) -> Result<u64, PutError> {
    let at = heap.take(worker, class(head.len(), text.len()))?;
    let count = head.len() + text.len().div_ceil(WORD_BYTES);
    let words = heap.pm().words(at, count);
    let tail = text.chunks(WORD_BYTES).map(|chunk| {
        let mut bytes = [0; WORD_BYTES];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(bytes)
    });
    for (word, value) in words.iter().zip(head.iter().copied().chain(tail)) {
        heap.pm().store(word, value);
    }
    heap.pm().persist(words);
    Ok(at)
}

/// The head of the block at `at` and the bytes behind it, of which there are as many as `len`
/// reads from the head.
pub(super) fn read<P: Pmem, const HEAD: usize>(
    heap: &Heap<P>,
    at: u64,
    len: impl Fn(&[u64; HEAD]) -> Option<usize>,
) -> Result<([u64; HEAD], Text, Class), Unsound> {
    let no_node = || Unsound::NoNode { at };
    let words = heap.block(at, (HEAD * WORD_BYTES) as u64);
    let words = words.ok_or_else(no_node)?;
    let head = std::array::from_fn(|i| words[i].load(Acquire));
    let len = len(&head).filter(|&len| len <= KEY_BYTES_MAX);
    let len = len.ok_or_else(no_node)?;
    let class = class(HEAD, len);
    heap.check(at, class)?;
    let count = HEAD + len.div_ceil(WORD_BYTES);
    let mut bytes = [0; LONGEST_BYTES];
    let tail = &heap.pm().words(at, count)[HEAD..];
    for (word, into) in tail.iter().zip(bytes.chunks_exact_mut(WORD_BYTES)) {
        into.copy_from_slice(&word.load(Acquire).to_le_bytes());
    }
    Ok((head, Text { len, bytes }, class))
}
