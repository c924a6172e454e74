//! Whether a preload library reaches a program: what a command will execute, as far as its files
//! tell.
//!
//! The loader of a dynamically linked executable is what heeds `LD_PRELOAD`. A script is looked
//! through to its interpreter. What a program starts later is its own: what is static there runs
//! without an arena, within the limit of all.
//!
//! What it never does: run anything; say yes to what it cannot tell.

use object::elf::FileHeader32;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader};
use object::{FileKind, ReadCache, ReadRef};
use rustix::fs::{Access, access, getxattr_query};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Interpreters that are looked through, one behind the other (execve(2) has as many).
const INTERPRETERS_MAX: usize = 4;
/// Bytes of a script's first line that the kernel reads (`BINPRM_BUF_SIZE`).
const LINE_BYTES: u64 = 256;
/// Set-user-ID and set-group-ID (inode(7)).
const SET_ID_BITS: u32 = 0o6000;
/// Of an executable with capabilities (capabilities(7)).
const CAPABILITIES: &str = "security.capability";
/// Where programs are looked for without a `PATH`, as execvp(3) does.
const PATH_UNSET: &str = "/bin:/usr/bin";

/// Why a preload library does not reach a program.
#[derive(Debug)]
pub(super) enum Unreachable {
    /// There is no such program.
    NotFound(PathBuf),
    /// There is, and it cannot be executed.
    NotRunnable(PathBuf, io::Error),
    /// It would run without the library.
    Ignored { path: PathBuf, reason: String },
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unreachable::NotFound(path) => write!(
                f,
                "cannot run {}: {}",
                path.display(),
                io::Error::from_raw_os_error(rustix::io::Errno::NOENT.raw_os_error())
            ),
            Unreachable::NotRunnable(path, error) => {
                write!(f, "cannot run {}: {error}", path.display())
            }
            Unreachable::Ignored { path, reason } => write!(
                f,
                "engine uffd cannot reach {}: {reason}; --engine kernel runs any program",
                path.display()
            ),
        }
    }
}

/// What an executable is, as far as a library has to be like it.
#[derive(Debug, PartialEq, Eq)]
struct Image {
    /// Its class (of 64 bits or not), byte order and machine.
    kind: (bool, bool, u16),
    /// The loader that it asks for; none where it is static.
    loader: Option<PathBuf>,
}

/// Sees that `program` will be executed as something that a library made like this executable
/// reaches.
pub(super) fn check(program: &OsStr) -> Result<(), Unreachable> {
    let own = Path::new("/proc/self/exe");
    let like = image(own).map_err(|reason| Unreachable::Ignored {
        path: own.to_owned(),
        reason,
    })?;
    let path = std::env::var_os("PATH").unwrap_or_else(|| PATH_UNSET.into());
    check_like(program, &path, &like)
}

fn check_like(program: &OsStr, path: &OsStr, like: &Image) -> Result<(), Unreachable> {
    let mut found = find(program, path)?;
    for _ in 0..=INTERPRETERS_MAX {
        let Some(next) = interpreter(&found)? else {
            return check_image(&found, like);
        };
        found = match next {
            Next::File(next) => runnable(next)?,
            Next::Named(name) => find(&name, path)?,
        };
    }
    let reason = format!("it is a script of more than {INTERPRETERS_MAX} interpreters");
    Err(ignored(&found, reason))
}

fn ignored(path: &Path, reason: impl Into<String>) -> Unreachable {
    Unreachable::Ignored {
        path: path.to_owned(),
        reason: reason.into(),
    }
}

/// As execvp(3) does.
fn find(program: &OsStr, path: &OsStr) -> Result<PathBuf, Unreachable> {
    if program.as_bytes().contains(&b'/') {
        return runnable(PathBuf::from(program));
    }
    let mut refused = None;
    for dir in std::env::split_paths(path) {
        match runnable(dir.join(program)) {
            Ok(found) => return Ok(found),
            Err(Unreachable::NotFound(_)) => {}
            Err(other) => refused = refused.or(Some(other)),
        }
    }
    Err(refused.unwrap_or_else(|| Unreachable::NotFound(program.into())))
}

fn runnable(path: PathBuf) -> Result<PathBuf, Unreachable> {
    let data = match fs::metadata(&path) {
        Ok(data) => data,
        Err(error) => {
            return Err(match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                    Unreachable::NotFound(path)
                }
                _ => Unreachable::NotRunnable(path, error),
            });
        }
    };
    if !data.is_file() {
        return Err(Unreachable::NotRunnable(
            path,
            io::ErrorKind::PermissionDenied.into(),
        ));
    }
    match access(&path, Access::EXEC_OK) {
        Ok(()) => Ok(path),
        Err(error) => Err(Unreachable::NotRunnable(path, error.into())),
    }
}

/// What a script asks for.
enum Next {
    /// An interpreter, by its path.
    File(PathBuf),
    /// A program that env(1) looks for.
    Named(OsString),
}

/// None where it is no script.
fn interpreter(path: &Path) -> Result<Option<Next>, Unreachable> {
    let mut begin = Vec::new();
    let file = File::open(path).and_then(|file| file.take(LINE_BYTES).read_to_end(&mut begin));
    file.map_err(|error| ignored(path, format!("it cannot be read: {error}")))?;
    let Some(line) = begin.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty());
    let Some(first) = words.next() else {
        return Err(ignored(path, "its first line names no interpreter"));
    };
    let interpreter = PathBuf::from(OsStr::from_bytes(first));
    if interpreter.file_name() != Some(OsStr::new("env")) {
        return Ok(Some(Next::File(interpreter)));
    }
    // Flags, and variables that it sets, come before the name.
    let is_name = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
    match words.find(is_name) {
        Some(name) => Ok(Some(Next::Named(OsString::from_vec(name.to_vec())))),
        None => Err(ignored(path, "its first line names nothing for env to run")),
    }
}

fn check_image(path: &Path, like: &Image) -> Result<(), Unreachable> {
    let is = image(path).map_err(|reason| ignored(path, reason))?;
    if is.kind != like.kind {
        return Err(ignored(path, "it is of another kind of machine than nyx"));
    }
    let Some(loader) = &is.loader else {
        let reason = "it is static: nothing loads a library before it (LD_PRELOAD)";
        return Err(ignored(path, reason));
    };
    let name = |loader: &Path| loader.file_name().map(OsStr::to_owned);
    if let Some(own) = &like.loader
        && name(own) != name(loader)
    {
        let (own, its) = (own.display(), loader.display());
        let reason = format!("its loader is {its}, of another C library than nyx has ({own})");
        return Err(ignored(path, reason));
    }
    let mode = fs::metadata(path).map(|data| data.permissions().mode());
    let sets_id = mode.is_ok_and(|mode| mode & SET_ID_BITS != 0);
    let has_capabilities = getxattr_query(path, CAPABILITIES).is_ok_and(|len| len > 0);
    match (sets_id, has_capabilities) {
        (false, false) => Ok(()),
        (true, _) => Err(ignored(
            path,
            "it is setuid or setgid, for which LD_PRELOAD is void",
        )),
        (_, true) => Err(ignored(
            path,
            "it has capabilities, for which LD_PRELOAD is void",
        )),
    }
}

/// An executable's; else why there is none.
fn image(path: &Path) -> Result<Image, String> {
    let unknown = |error: &dyn fmt::Display| format!("it is no ELF executable: {error}");
    let file = File::open(path).map_err(|error| format!("it cannot be read: {error}"))?;
    let data = ReadCache::new(file);
    match FileKind::parse(&data).map_err(|error| unknown(&error))? {
        FileKind::Elf64 => image_of::<FileHeader64<object::Endianness>, _>(&data),
        FileKind::Elf32 => image_of::<FileHeader32<object::Endianness>, _>(&data),
        _ => return Err(unknown(&"it is of another format")),
    }
    .map_err(|error| unknown(&error))
}

fn image_of<'data, Header, R>(data: R) -> object::Result<Image>
where
    Header: FileHeader,
    R: ReadRef<'data>,
{
    let header = Header::parse(data)?;
    let endian = header.endian()?;
    let mut loader = None;
    for segment in header.program_headers(endian, data)? {
        loader = loader.or(segment.interpreter(endian, data)?);
    }
    Ok(Image {
        kind: (
            header.is_class_64(),
            header.is_big_endian(),
            header.e_machine(endian).0,
        ),
        loader: loader.map(|path| PathBuf::from(OsStr::from_bytes(path))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: u16 = 62;
    const OTHER_MACHINE: u16 = 183;
    const LOADER: &str = "/usr/lib64/ld-linux-x86-64.so.2";

    /// An ELF file of 64 bits with at most one segment, that of its loader.
    fn elf(machine: u16, loader: Option<&str>) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        let segments = u16::from(loader.is_some());
        for half in [3, machine, 1, 0] {
            bytes.extend(half.to_le_bytes());
        }
        // Entry, segments, sections.
        for word in [0u64, 64, 0] {
            bytes.extend(word.to_le_bytes());
        }
        for half in [0, 0, 64, 56, segments, 64, 0, 0] {
            bytes.extend(half.to_le_bytes());
        }
        if let Some(loader) = loader {
            let len = loader.len() as u64 + 1;
            bytes.extend(3u32.to_le_bytes());
            bytes.extend(4u32.to_le_bytes());
            for word in [64 + 56u64, 0, 0, len, len, 1] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(loader.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    struct Programs(tempfile::TempDir);

    impl Programs {
        fn new() -> Programs {
            let programs = Programs(tempfile::tempdir().unwrap());
            programs.add("dynamic", &elf(MACHINE, Some(LOADER)));
            programs
        }

        fn add(&self, name: &str, bytes: &[u8]) -> PathBuf {
            let path = self.0.path().join(name);
            fs::write(&path, bytes).unwrap();
            self.set_mode(name, 0o755);
            path
        }

        fn set_mode(&self, name: &str, mode: u32) {
            let path = self.0.path().join(name);
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }

        /// Empty where it is reached.
        fn says(&self, program: impl AsRef<OsStr>) -> String {
            let like = Image {
                kind: (true, false, MACHINE),
                loader: Some(LOADER.into()),
            };
            let path = self.0.path().as_os_str();
            let told = check_like(program.as_ref(), path, &like);
            told.map_or_else(|error| error.to_string(), |()| String::new())
        }
    }

    #[test]
    fn what_the_loader_loads_is_reached_and_nothing_else() {
        let programs = Programs::new();
        assert_eq!(programs.says("dynamic"), "");
        assert_eq!(programs.says(programs.0.path().join("dynamic")), "");
        programs.add("static", &elf(MACHINE, None));
        programs.add("other", &elf(OTHER_MACHINE, Some(LOADER)));
        programs.add("musl", &elf(MACHINE, Some("/usr/lib/ld-musl-x86_64.so.1")));
        let mut narrow = elf(MACHINE, None);
        narrow[4] = 1;
        programs.add("narrow", &narrow);
        programs.add("text", b"echo\n");
        programs.add("empty", b"");
        programs.add("torn", &elf(MACHINE, Some(LOADER))[..100]);
        for (name, part) in [
            ("static", "it is static"),
            ("other", "another kind of machine"),
            ("narrow", "another kind of machine"),
            ("musl", "another C library"),
            ("text", "no ELF executable"),
            ("empty", "no ELF executable"),
            ("torn", "no ELF executable"),
        ] {
            let said = programs.says(name);
            assert!(said.contains(part) && said.contains(name), "{name}: {said}");
        }
    }

    #[test]
    fn an_executable_that_gains_privilege_is_refused() {
        let programs = Programs::new();
        for mode in [0o4755, 0o2755] {
            programs.set_mode("dynamic", mode);
            let said = programs.says("dynamic");
            assert!(said.contains("setuid or setgid"), "{mode:o}: {said}");
        }
        programs.set_mode("dynamic", 0o755);
        // CAP_NET_RAW, permitted and effective, as version 2 has it.
        let words = [0x0200_0001u32, 1 << 13, 0, 0, 0];
        let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let path = programs.0.path().join("dynamic");
        let flags = rustix::fs::XattrFlags::empty();
        match rustix::fs::setxattr(&path, CAPABILITIES, &value, flags) {
            Ok(()) => assert!(programs.says("dynamic").contains("it has capabilities")),
            Err(error) => eprintln!("skipped capabilities: none can be given here: {error}"),
        }
    }

    #[test]
    fn a_script_is_looked_through_to_what_runs_it() {
        let programs = Programs::new();
        let dir = programs.0.path().display().to_string();
        programs.add("static", &elf(MACHINE, None));
        programs.add("script", format!("#!{dir}/dynamic -u\nx").as_bytes());
        programs.add("second", format!("#! {dir}/script\n").as_bytes());
        programs.add("of-static", format!("#!{dir}/static").as_bytes());
        for (name, line) in [
            ("by-env", "dynamic"),
            ("by-env-flags", "-S A=b dynamic -u"),
            ("env-static", "static"),
            ("env-none", "-S A=b"),
            ("env-missing", "missing"),
        ] {
            programs.add(name, format!("#!/usr/bin/env {line}\n").as_bytes());
        }
        programs.add("nothing", b"#!\n");
        let circle = programs.0.path().join("circle");
        programs.add("circle", format!("#!{}\n", circle.display()).as_bytes());
        for reached in ["script", "second", "by-env", "by-env-flags"] {
            assert_eq!(programs.says(reached), "", "{reached}");
        }
        for (name, part) in [
            ("of-static", "/static: it is static"),
            ("env-static", "/static: it is static"),
            ("env-none", "nothing for env"),
            ("env-missing", "cannot run missing"),
            ("nothing", "no interpreter"),
            ("circle", "more than 4"),
        ] {
            let said = programs.says(name);
            assert!(said.contains(part), "{name}: {said}");
        }
    }

    #[test]
    fn what_a_shell_cannot_run_is_told_as_a_shell_does() {
        let programs = Programs::new();
        programs.add("data", b"");
        programs.set_mode("data", 0o644);
        let path = programs.0.path().as_os_str();
        let like = image(Path::new("/proc/self/exe")).unwrap();
        let kind = |program: &OsStr| check_like(program, path, &like).unwrap_err();
        let is_missing = |error| matches!(error, Unreachable::NotFound(_));
        let is_refused = |error| matches!(error, Unreachable::NotRunnable(..));
        assert!(is_missing(kind("missing".as_ref())));
        assert!(is_missing(kind("/nonexistent/program".as_ref())));
        assert!(is_refused(kind("data".as_ref())));
        assert!(is_refused(kind(path)), "a directory");
    }

    #[test]
    fn this_executable_is_reached() {
        let own = std::env::current_exe().unwrap();
        let like = image(&own).unwrap();
        match like.loader {
            Some(_) => assert!(check(own.as_os_str()).is_ok()),
            None => assert!(check(own.as_os_str()).is_err()),
        }
    }
}
