//! The errors of this room: what cannot be reserved, mapped, read as a profile or understood as a
//! device model. Each message carries the path and the values with their units. None of them
//! arises on the path of a request: accesses to a medium do not fail.

use std::io;
use std::path::PathBuf;

/// Why a medium, a reserved region, a model or a profile could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The kernel refused address space.
    #[error("cannot reserve {len_bytes} bytes of memory: {source}")]
    Reserve {
        /// Bytes asked for.
        len_bytes: u64,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A medium of no bytes, or of more than an address can name.
    #[error(
        "a medium of {len_bytes} bytes cannot be: it has 1 to {} bytes",
        isize::MAX
    )]
    Length {
        /// Bytes asked for.
        len_bytes: u64,
    },
    /// A file could not be opened, read, written or mapped.
    #[error("{}: cannot {action}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried, as a verb with its object.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A path that names something else than a regular file.
    #[error("{}: not a regular file, so it cannot hold a medium", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A path that names neither a regular file nor a block device.
    #[error("{}: neither a file nor a block device", path.display())]
    NotOfBlocks {
        /// The path.
        path: PathBuf,
    },
    /// A device without a single block.
    #[error("{}: shorter than a block of 4096 bytes", path.display())]
    NoBlock {
        /// The path.
        path: PathBuf,
    },
    /// The filesystem has no room, or cannot allocate ahead.
    #[error("{}: cannot allocate {len_bytes} bytes: {source}", path.display())]
    Allocate {
        /// The file.
        path: PathBuf,
        /// Bytes that the whole file needs.
        len_bytes: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// Another process has the file, or the directory.
    #[error("{}: in use by another process; it serves one server", path.display())]
    InUse {
        /// The file or the directory.
        path: PathBuf,
    },
    /// The file does not begin as a Nyx data file does.
    #[error(
        "{}: not a Nyx data file: it begins with {found:02x?}, not \"NYXDATA\"",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its first eight bytes.
        found: [u8; 8],
    },
    /// The file does not begin as an image does.
    #[error(
        "{}: not a Nyx image: it begins with {found:02x?}, not \"NYXIMAGE\"",
        path.display()
    )]
    NoImage {
        /// The file.
        path: PathBuf,
        /// Its first eight bytes.
        found: [u8; 8],
    },
    /// The file does not begin as a file of a log does.
    #[error(
        "{}: not a file of a Nyx log: it begins with {found:02x?}, not \"NYXLOG\"",
        path.display()
    )]
    NoLog {
        /// The file.
        path: PathBuf,
        /// Its first eight bytes.
        found: [u8; 8],
    },
    /// The file, or device, does not begin as a deep file does.
    #[error(
        "{}: not a Nyx deep file: it begins with {found:02x?}, not \"NYXDEEP\"; what is there \
         stays as it is (wipe the device, or remove the file, if Nyx may have it)",
        path.display()
    )]
    NotDeep {
        /// The file or device.
        path: PathBuf,
        /// Its first eight bytes.
        found: [u8; 8],
    },
    /// The file was allocated but never got its header.
    #[error("{}: its header is all zero: an interrupted creation; remove the file", path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// The file is of a format that this build does not know.
    #[error(
        "{}: of format {found}, but this build reads format {known} only", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The format in its header.
        found: u32,
        /// The format of this build.
        known: u32,
    },
    /// The header's checksum does not match its bytes.
    #[error(
        "{}: header damaged: checksum {stored:#018x} stored, {computed:#018x} computed",
        path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The checksum in the header.
        stored: u64,
        /// The checksum of the header's bytes.
        computed: u64,
    },
    /// The file is shorter than its own header says.
    #[error(
        "{}: truncated: the file has {file_bytes} bytes, its header says {header_bytes}",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The file's length.
        file_bytes: u64,
        /// The length that the header asks for.
        header_bytes: u64,
    },
    /// The file holds a smaller medium than the one asked for.
    #[error(
        "{}: holds a medium of {found_bytes} bytes, {asked_bytes} bytes were asked for",
        path.display()
    )]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// The size of its medium.
        found_bytes: u64,
        /// The size asked for.
        asked_bytes: u64,
    },
    /// No direct access to persistent memory here.
    #[error("{}: no direct access (DAX): {reason}", path.display())]
    NoDax {
        /// The file.
        path: PathBuf,
        /// Why, and what would help.
        reason: String,
    },
    /// No device model of this name.
    #[error(
        "no device model {name:?}: known are {known} (with /N to divide the rates), or FILE.toml"
    )]
    UnknownModel {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A device model that makes no sense.
    #[error("device model {origin}: {reason}")]
    BadModel {
        /// Its name or file.
        origin: String,
        /// What is wrong, with the value.
        reason: String,
    },
    /// A profile that cannot be used.
    #[error("{}: {reason}", path.display())]
    Profile {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the value.
        reason: String,
    },
}
