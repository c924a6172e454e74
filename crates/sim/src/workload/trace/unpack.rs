//! What is around a trace: gzip, xz or zstd, told by the first bytes and not by the name.
//!
//! What it never does: hold more than a decompressor's window.

use std::io::{self, BufRead, BufReader, Cursor, Read};

const BUFFER_BYTES: usize = 1 << 16;

/// The bytes inside `input`. Several gzip members or zstd frames in a row count as one.
pub(super) fn unpack(mut input: Box<dyn BufRead + Send>) -> io::Result<Box<dyn BufRead + Send>> {
    let mut magic = Vec::with_capacity(6);
    input.by_ref().take(6).read_to_end(&mut magic)?;
    let whole = Cursor::new(magic.clone()).chain(input);
    let boxed = |inner: Box<dyn Read + Send>| -> Box<dyn BufRead + Send> {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, inner))
    };
    Ok(match magic.as_slice() {
        [0x1f, 0x8b, ..] => boxed(Box::new(flate2::bufread::MultiGzDecoder::new(whole))),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => boxed(Box::new(
            liblzma::bufread::XzDecoder::new_multi_decoder(whole),
        )),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            boxed(Box::new(zstd::stream::read::Decoder::with_buffer(whole)?))
        }
        _ => Box::new(whole),
    })
}
