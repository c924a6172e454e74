//! `nyx block`: a raw image behind a cache, served as a block device over NBD.

use crate::serving::once_free;
use crate::{Exit, Failure};
use nyx_base::{Bytes, Rng};
use nyx_block::{
    AttachError, Attached, Cache, Config, Costs, Image, MappedFast, Mode, Router, ServeError,
    Server, Terms, attach, close, measure,
};
use nyx_media::mapped::Durability;
use nyx_media::model::Params;
use nyx_media::queue::{BLOCK_BYTES, BlockFile, Through};
use nyx_media::{Emulated, Mapped, Media, MediaError, TscClock};
use nyx_policy::nhc::{Nhc, Side};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Serve a disk image over NBD, behind a cache on a fast device.
///
/// DEEP is a raw image, or a device, and stays one: nothing of Nyx's is written into it, and while
/// the cache has no dirty lines it can be used without Nyx. FAST is a file of Nyx's on persistent
/// memory, or any file; it is made where there is none (--fast-size).
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  nyx block --fast pm.nyx --fast-size 1GiB --deep disk.img --socket nbd.sock
  nyx block --fast pm.nyx --deep disk.img --listen 127.0.0.1:10809 --mode write-back
  nyx block --fast pm.nyx --deep disk.img --flush-only      write dirty lines back, and end

Clients:  qemu-system-x86_64 -drive file=nbd+unix:///?socket=nbd.sock,format=raw
          nbd-client -unix nbd.sock /dev/nbd0
          nbdcopy other.img 'nbd+unix:///?socket=nbd.sock'

What a client has flushed survives kill -9 and, with --survive power, a power failure; what it wrote
and did not flush survives kill -9. SIGINT and SIGTERM write dirty lines back, then end; a second
one leaves them in the cache, where they are safe, and says so (exit 74).
A cache with dirty lines is not put before another image, nor before one that was changed since.")]
pub struct Args {
    /// The fast device's file.
    #[arg(long, value_name = "FILE")]
    fast: PathBuf,
    /// The raw image, or device.
    #[arg(long, value_name = "FILE")]
    deep: PathBuf,
    /// Size of the fast device where its file is to be made.
    #[arg(long, value_name = "SIZE")]
    fast_size: Option<Bytes>,
    /// The fast device's file lies on persistent memory and is used without the page cache (DAX).
    #[arg(long)]
    dax: bool,
    /// What a flush survives: `power` waits for the disk below FAST, `process` does not.
    #[arg(long, value_name = "WHAT", default_value = "power", value_parser = ["power", "process"])]
    survive: String,
    /// A model laid over the fast device, as of `nyx profile --model`.
    #[arg(long, value_name = "MODEL")]
    fast_model: Option<String>,
    /// Serve on this Unix socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Serve on this TCP address. NBD knows no login here: keep to loopback.
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// What becomes of writes: write-through, write-back, write-around, write-invalidate,
    /// pass-through.
    #[arg(long, default_value_t = Mode::WriteThrough)]
    mode: Mode,
    /// Bytes of a line, 4KiB to 64KiB [default: those of the cache, 4KiB of a new one].
    #[arg(long, value_name = "SIZE")]
    line: Option<Bytes>,
    /// Which device serves a read that both could: shortest-delay, orthus, most, classic,
    /// split:SHARE.
    #[arg(long, value_name = "RULE", default_value_t = Nhc::ShortestDelay)]
    nhc: Nhc,
    /// Name of the export; the empty name means it too.
    #[arg(long, value_name = "NAME", default_value = "")]
    export: String,
    /// What the image is called, for the cache to know it again wherever its file lies
    /// [default: its file's number].
    #[arg(long, value_name = "NAME", default_value = "")]
    id: String,
    /// Connections at once.
    #[arg(long, value_name = "N", default_value_t = 16,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Percent of the lines that may stay dirty while there are requests.
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
          value_parser = clap::value_parser!(u8).range(0..=90))]
    dirty_most: u8,
    /// Seconds without a request after which all dirty lines are written back.
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    idle: u64,
    /// Seconds between two lines of figures; 0 for none.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    report: u64,
    /// Write dirty lines back and end; serve nobody.
    #[arg(long, conflicts_with_all = ["socket", "listen"])]
    flush_only: bool,
    /// Drop all that the cache has, dirty lines too, and begin anew.
    #[arg(long)]
    forget: bool,
    /// Nobody but this cache ever writes the image: keep clean lines where nobody can tell.
    #[arg(long)]
    sole: bool,
}

/// Who carries out requests to the deep device.
const THROUGH: Through = Through::Auto;

/// Serves until a signal ends it.
pub fn run(args: Args) -> Result<(), Failure> {
    if args.socket.is_none() && args.listen.is_none() && !args.flush_only {
        return Err(Failure::usage(
            "nobody could connect: give --socket PATH or --listen ADDR (or --flush-only)",
        ));
    }
    let stops = Arc::new(AtomicUsize::new(0));
    watch(&stops)?;
    let (mut server, image, terms) = open(&args)?;
    for address in server.listening() {
        eprintln!("nyx block: serving {address}");
    }
    let mut told = Instant::now();
    while stops.load(Relaxed) == 0 && !args.flush_only {
        server.turn().map_err(waiting)?;
        if args.report > 0 && told.elapsed() >= Duration::from_secs(args.report) {
            told = Instant::now();
            eprintln!("nyx block: {}", figures(&server));
        }
    }
    let left = write_back(&mut server, &stops)?;
    let is_durable = server.settle().map_err(waiting)?;
    eprintln!("nyx block: {}", figures(&server));
    sync(&args)?;
    let closed = close(server.into_cache(), &image, &terms);
    if !is_durable || closed.is_err() {
        let path = args.fast.display();
        let message = format!("{path}: the last changes could not be made durable");
        return Err(Failure::new(Exit::Io, message));
    }
    let fast = closed.expect("looked at");
    let marked = fast.medium().mark_clean();
    marked.map_err(|error| Failure::new(Exit::Io, error.to_string()))?;
    match left {
        0 => Ok(()),
        left => Err(Failure::new(
            Exit::Io,
            format!(
                "{left} lines are still dirty: {} has what {} lacks; --flush-only writes it back",
                args.fast.display(),
                args.deep.display()
            ),
        )),
    }
}

/// Counts signals.
fn watch(stops: &Arc<AtomicUsize>) -> Result<(), Failure> {
    let failed = |error| Failure::new(Exit::Os, format!("cannot watch for signals: {error}"));
    let signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let stops = stops.clone();
    let count = move || {
        let mut signals = signals;
        for _ in signals.forever() {
            stops.fetch_add(1, Relaxed);
        }
    };
    let spawned = std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(count);
    spawned.map(drop).map_err(failed)
}

fn open(args: &Args) -> Result<(Server<MappedFast>, Image, Terms), Failure> {
    let image =
        Image::at(&args.deep, &args.id).map_err(|error| Failure::unreadable(&args.deep, &error))?;
    let path = args.deep.display();
    if let Some(bytes) = image.file_bytes
        && !bytes.is_multiple_of(BLOCK_BYTES)
    {
        return Err(Failure::usage(format!(
            "{path} has {bytes} bytes, which is not whole blocks of {BLOCK_BYTES}: make it longer \
             (truncate -s %{BLOCK_BYTES} {path})"
        )));
    }
    if args.id.len() > nyx_block::superblock::NAME_BYTES {
        let most = nyx_block::superblock::NAME_BYTES;
        return Err(Failure::usage(format!("--id has more than {most} bytes")));
    }
    let deep = Arc::new(open_deep(&args.deep)?);
    let medium = Arc::new(open_fast(args)?);
    let over: Arc<dyn Media> = match &args.fast_model {
        None => medium.clone(),
        Some(spec) => {
            let params =
                Params::resolve(spec).map_err(|error| Failure::usage(error.to_string()))?;
            Arc::new(Emulated::in_real_time(
                medium.clone(),
                params,
                Arc::new(TscClock::start()),
            ))
        }
    };
    let fast = MappedFast::new(medium.clone(), over);
    eprintln!("nyx block: fast {}", medium.describe());
    let (cache, terms) = before(args, fast, &image, &deep)?;
    let slots = u64::from(cache.geometry().slots());
    let config = Config {
        socket: args.socket.clone(),
        listen: args.listen,
        name: args.export.clone(),
        connections_max: args.connections,
        idle: Duration::from_secs(args.idle),
        dirty_lines_most: (slots * u64::from(args.dirty_most) / 100) as u32,
    };
    let server = Server::bind(cache, args.mode, &deep, THROUGH, config);
    let server = server.map_err(|error| match error {
        ServeError::Listen { .. } => Failure::new(Exit::Unavailable, error.to_string()),
        _ => Failure::new(Exit::Os, error.to_string()),
    })?;
    Ok((server, image, terms))
}

/// The image.
fn open_deep(path: &Path) -> Result<BlockFile, Failure> {
    once_free(|| BlockFile::open(path)).map_err(|error| media(&error))
}

/// Puts the cache before the image.
fn before(
    args: &Args,
    mut fast: MappedFast,
    image: &Image,
    deep: &Arc<BlockFile>,
) -> Result<(Cache<MappedFast>, Terms), Failure> {
    let costs = measure(&mut fast, deep, THROUGH).map_err(|error| media(&error))?;
    let controller = costs.controller(args.nhc);
    let router = Router::new(controller, costs, Arc::new(TscClock::start()), Rng::new());
    let terms = Terms {
        line_bytes: args.line.map(|line| line.0),
        mode: args.mode,
        forgets: args.forget,
        is_sole: args.sole,
        survives_power: args.dax || args.survive == "power",
        id: fast.medium().id().unwrap_or_default(),
        boot: boot(),
    };
    let attached = attach(fast, image, deep.len_bytes(), &terms, router);
    let Attached { cache, notes } = attached.map_err(|error| refused(args, &error))?;
    sync(args)?;
    notes.iter().for_each(|note| eprintln!("nyx block: {note}"));
    let (used, dirty) = cache.filled();
    eprintln!(
        "nyx block: {}, {used} cached, {dirty} dirty; {}, {}; {}",
        cache.geometry(),
        args.mode,
        args.nhc,
        told(&costs)
    );
    Ok((cache, terms))
}

/// The fast device, as long as it is, or made.
fn open_fast(args: &Args) -> Result<Mapped, Failure> {
    const HEADER_BYTES: u64 = 4096;
    let found = std::fs::metadata(&args.fast).map_or(0, |found| found.len());
    let len_bytes = match (args.fast_size, found.checked_sub(HEADER_BYTES)) {
        (Some(size), _) => size.0,
        (None, Some(len_bytes)) if len_bytes > 0 => len_bytes,
        _ => {
            let path = args.fast.display();
            return Err(Failure::usage(format!(
                "{path} does not exist: say how large it is to be made (--fast-size 1GiB)"
            )));
        }
    };
    let opened = match args.dax {
        true => Mapped::dax(&args.fast, len_bytes),
        false => Mapped::file(&args.fast, len_bytes),
    };
    let durability = match args.survive.as_str() {
        "process" => Durability::ProcessCrash,
        _ => Durability::PowerLoss,
    };
    let opened = opened.map_err(|error| media(&error))?;
    Ok(opened.with_durability(durability))
}

/// Makes the whole fast device durable, where its barriers do not.
fn sync(args: &Args) -> Result<(), Failure> {
    if args.survive == "power" {
        return Ok(());
    }
    let synced = std::fs::File::open(&args.fast).and_then(|file| file.sync_all());
    synced.map_err(|error| {
        let path = args.fast.display();
        Failure::new(Exit::Io, format!("cannot sync {path}: {error}"))
    })
}

/// The start of this machine; zero where Linux does not tell.
fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id"));
    let digits: String = text.unwrap_or_default().replace('-', "");
    let number = u128::from_str_radix(digits.trim(), 16);
    number.unwrap_or_default().to_be_bytes()
}

/// Answers who is there, and writes dirty lines back with progress to standard error; how many are
/// left.
fn write_back(server: &mut Server<MappedFast>, stops: &AtomicUsize) -> Result<u32, Failure> {
    const PROGRESS: Duration = Duration::from_secs(1);
    const IN_VAIN: u32 = 5;
    let enough = stops.load(Relaxed) + 1;
    server.hang_up();
    let (mut told, mut last, mut in_vain) = (Instant::now(), u32::MAX, 0);
    loop {
        let dirty = server.drain().map_err(waiting)?;
        if dirty == 0 && !server.is_busy() {
            return Ok(0);
        }
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            in_vain = if dirty < last { 0 } else { in_vain + 1 };
            last = dirty;
            eprintln!("nyx block: writing back, {dirty} dirty lines left");
            server.resume_cleaning();
        }
        if stops.load(Relaxed) >= enough || in_vain >= IN_VAIN {
            return Ok(dirty);
        }
    }
}

fn figures(server: &Server<MappedFast>) -> String {
    let figures = server.figures();
    let (used, dirty) = server.cache().filled();
    let (connections, refused) = server.connected();
    let ratio = 100.0 * figures.hits as f64 / (figures.reads.max(1)) as f64;
    format!(
        "reads={} hits={} hit_percent={ratio:.1} hits_deep={} read_bytes={} writes={} \
         written_bytes={} writes_fast={} flushes={} lines={used} dirty={dirty} cleaned={} \
         evictions={} errors={} clean_errors={} connections={connections} turned_away={refused}",
        figures.reads,
        figures.hits,
        figures.hits_deep,
        figures.read_bytes,
        figures.writes,
        figures.written_bytes,
        figures.writes_fast,
        figures.flushes,
        figures.cleaned,
        figures.evictions,
        figures.refused,
        figures.clean_errors,
    )
}

fn told(costs: &Costs) -> String {
    let [fast, deep] = Side::ALL.map(|side| costs.small[side].alone_ns / 1000.0);
    format!("a read of 4 KiB takes {fast:.2} us fast, {deep:.2} us deep")
}

fn refused(args: &Args, error: &AttachError) -> Failure {
    let code = match error {
        AttachError::Geometry(_) => Exit::Usage,
        AttachError::NotDurable(_) => Exit::Io,
        AttachError::Dirty { .. } | AttachError::Elsewhere(_) => Exit::Unavailable,
        AttachError::Superblock(_) | AttachError::Record(_) => Exit::Damaged,
    };
    let (fast, deep) = (args.fast.display(), args.deep.display());
    Failure::new(code, format!("{fast} before {deep}: {error}"))
}

fn media(error: &MediaError) -> Failure {
    let code = match error {
        MediaError::InUse { .. } => Exit::Unavailable,
        MediaError::File { .. } | MediaError::Allocate { .. } => Exit::CantCreate,
        MediaError::Reserve { .. } => Exit::Os,
        _ => Exit::Damaged,
    };
    Failure::new(code, error.to_string())
}

fn waiting(error: std::io::Error) -> Failure {
    Failure::new(Exit::Os, format!("cannot wait for sockets: {error}"))
}
