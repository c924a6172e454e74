//! `nyx inspect`: what is in a file that Nyx wrote, and whether that is sound.
//!
//! What it never does: change a file, but for `--repair` of a tenant's image.

mod data;
mod journal;
mod report;
mod tenant;

use crate::cmd::print;
use crate::{Exit, Failure};
use nyx_media::MediaError;
use report::Report;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Look at a file that Nyx wrote: what is in it, how it was left, whether it is sound.
///
/// FILE is the image of a tenant that survives (NAME.image in the image directory), its journal
/// (the directory NAME.journal), or a data file: that of a device, or one with an index of the
/// crate nyx-index in it. The file is only read. No server may use it meanwhile.
///
/// Everything is looked at: of an image each entry of the index, each item and, where the data file
/// is found, each value; of an index each node.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx inspect nyx-data/web.image             what the tenant web held, and whether it is sound
  nyx inspect nyx-data/web.image --repair    make its index anew, drop what is damaged
  nyx inspect nyx-data/web.journal           how many changes it has, and where it ends
  nyx inspect nyx-data/main.data --json      a device's data file, for programs

--repair keeps every item whose head and value are what was stored, and marks the image as closed in
order: the next server goes on with it. Items that were deleted or replaced do not come back, but
for what was being written at the very moment that its user was killed. Where the machine lost power
--stale is needed: of such an image old values cannot be told from new ones.

Exit codes: 0 sound, or repaired; 65 damaged; 66 no such file; 69 in use by a server.")]
pub struct Args {
    /// The file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The data file that an image's values are in [default: the one with the right id in the
    /// image's directory or the one above].
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Make an image's index anew from its items and drop what is damaged.
    #[arg(long)]
    repair: bool,
    /// With --repair: also where the machine lost power while the image was in use. Old values and
    /// deleted items may come back.
    #[arg(long, requires = "repair")]
    stale: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Looks, and repairs.
pub fn run(args: Args) -> Result<(), Failure> {
    if args.file.is_dir() {
        if args.repair {
            return Err(Failure::usage(
                "--repair is for the image of a tenant; a server mends a journal as it reads it",
            ));
        }
        return tell(&args, &journal::inspect(&args.file)?);
    }
    let report = match magic(&args.file)? {
        magic if magic == *b"NYXIMAGE" => tenant::inspect(&args)?,
        magic if magic == *b"NYXDATA\0" && !args.repair => data::inspect(&args.file)?,
        magic if magic == *b"NYXDATA\0" => {
            return Err(Failure::usage(format!(
                "--repair is for the image of a tenant, and {} is a data file",
                args.file.display()
            )));
        }
        magic => {
            let (path, magic) = (args.file.display(), magic.escape_ascii());
            return Err(Failure::new(
                Exit::Damaged,
                format!("{path} is no file of Nyx's: it begins with \"{magic}\""),
            ));
        }
    };
    tell(&args, &report)
}

fn tell(args: &Args, report: &Report) -> Result<(), Failure> {
    print(&match args.json {
        true => report.json(),
        false => report.text(),
    })?;
    report.verdict()
}

/// The first bytes of a file; zeros where it is shorter.
fn magic(path: &Path) -> Result<[u8; 8], Failure> {
    let unreadable = |error: std::io::Error| Failure::unreadable(path, &error);
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(8).read_to_end(&mut bytes).map_err(unreadable)?;
    bytes.resize(8, 0);
    Ok(bytes.try_into().expect("eight bytes"))
}

/// A file that is not as it should be, or is in use.
fn refused(error: &MediaError) -> Failure {
    let code = match error {
        MediaError::InUse { .. } => Exit::Unavailable,
        MediaError::File { source, .. } => match source.kind() {
            ErrorKind::NotFound => Exit::NoInput,
            ErrorKind::PermissionDenied => Exit::NoPerm,
            _ => Exit::Io,
        },
        MediaError::Allocate { .. } | MediaError::Reserve { .. } => Exit::Os,
        _ => Exit::Damaged,
    };
    Failure::new(code, error.to_string())
}
