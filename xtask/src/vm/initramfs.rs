//! The guest's root: busybox, programs with the libraries that they are linked to, modules, and a
//! first process, as the archive that the kernel unpacks.
//!
//! What it never does: compress it. QEMU hands it over as it is, while the guest would take seconds
//! of emulated time to unpack it.

use super::kernel::empty;
use crate::run::output;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What goes into the archive.
pub(super) struct Contents<'c> {
    pub(super) busybox: &'c Path,
    /// Programs by the names that they get in `/usr/bin`.
    pub(super) programs: &'c [(&'c str, PathBuf)],
    /// The first process, a script.
    pub(super) init: &'static str,
    /// Loaded in this order.
    pub(super) modules: &'c [PathBuf],
}

/// Makes the archive in `dir`.
pub(super) fn make(dir: &Path, contents: &Contents) -> Result<PathBuf, String> {
    let root = dir.join("root");
    empty(&root)?;
    add_program(&root, contents.busybox, "busybox")?;
    for (name, program) in contents.programs {
        add_program(&root, program, name)?;
    }
    for module in contents.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        copy(module, &root.join("modules").join(&*name))?;
    }
    let init = root.join("init");
    let written = fs::write(&init, contents.init)
        .and_then(|()| fs::set_permissions(&init, fs::Permissions::from_mode(0o755)));
    written.map_err(|error| format!("{}: {error}", init.display()))?;
    let pack = "\"$0\" find . | \"$0\" cpio -o -H newc > ../initramfs";
    let mut shell = Command::new(contents.busybox);
    shell.args(["sh", "-c", pack]).arg(contents.busybox);
    output(shell.current_dir(&root))?;
    fs::remove_dir_all(&root).map_err(|error| error.to_string())?;
    Ok(dir.join("initramfs"))
}

/// A program as `/usr/bin/NAME`, and its libraries where the loader looks for them.
fn add_program(root: &Path, program: &Path, name: &str) -> Result<(), String> {
    copy(program, &root.join("usr/bin").join(name))?;
    // A program that is linked statically makes ldd fail.
    let listed = output(Command::new("ldd").arg(program)).unwrap_or_default();
    for library in libraries(&listed) {
        copy(Path::new(library), &root.join(&library[1..]))?;
    }
    Ok(())
}

/// The paths in what ldd prints.
fn libraries(listed: &str) -> impl Iterator<Item = &str> {
    let words = listed.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.find(|word| word.starts_with('/'))
    });
    words.filter(|path| !path.ends_with(':'))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let dir = to.parent().unwrap_or(to);
    let copied = fs::create_dir_all(dir).and_then(|()| fs::copy(from, to));
    let copied = copied.map_err(|error| format!("{}: {error}", from.display()));
    copied.map(|_| ())
}

#[cfg(test)]
mod tests {
    #[test]
    fn libraries_are_read_from_ldd() {
        let listed = "\tlinux-vdso.so.1 (0x00007f8)\n\
                      \tlibc.so.6 => /usr/lib/x86_64-linux-gnu/libc.so.6 (0x00007f9)\n\
                      \t/usr/lib64/ld-linux-x86-64.so.2 (0x00007fa)\n";
        let found: Vec<&str> = super::libraries(listed).collect();
        let expected = [
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
            "/usr/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(found, expected);
    }
}
