//! A loop device over a file on tmpfs: as swap it takes memory for what leaves memory, of the
//! program itself, unless the file was reserved before.

use super::*;

const FILE_BYTES: u64 = 64 << 20;

/// A tmpfs that does not swap, where the kernel has that (6.4), and a loop device over a file there
/// with a swap header and holes.
struct Loop {
    mount: tempfile::TempDir,
    device: String,
}

/// What it printed, or why it failed.
fn call(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!("{program}: {}", text(&output.stderr))),
    }
}

impl Loop {
    fn make() -> Result<Loop, String> {
        let mount = scratch();
        let dir = mount.path().to_str().unwrap().to_owned();
        let mount_with = |option| call("mount", &["-t", "tmpfs", "-o", option, "nyx-hungry", &dir]);
        mount_with("noswap").or_else(|_| mount_with("mode=0700"))?;
        let mut made = Loop {
            mount,
            device: String::new(),
        };
        let file = made.file();
        fs::File::create(&file)
            .and_then(|file| file.set_len(FILE_BYTES))
            .unwrap();
        made.device = call("losetup", &["--find", "--show", &file])?;
        call("mkswap", &[&made.device])?;
        Ok(made)
    }

    fn file(&self) -> String {
        self.mount.path().join("disk").display().to_string()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let mut left = Vec::new();
        if !self.device.is_empty() {
            left.extend(call("losetup", &["--detach", &self.device]).err());
        }
        left.extend(call("umount", &[self.mount.path().to_str().unwrap()]).err());
        if !left.is_empty() {
            eprintln!("left behind: {left:?}");
        }
    }
}

#[test]
fn a_loop_device_over_holes_in_memory_is_refused_until_they_are_filled() {
    let test = "a_loop_device_over_holes_in_memory_is_refused";
    let Some(mut rig) = rig(test) else {
        return;
    };
    let hungry = match Loop::make() {
        Ok(hungry) => hungry,
        Err(why) => return eprintln!("skipped {test}: no such device can be had here: {why}"),
    };
    let is_on = || {
        let swaps = fs::read_to_string("/proc/swaps").unwrap();
        swaps.lines().any(|line| line.starts_with(&hungry.device))
    };
    let file = rig.device.clone();
    for device in [&hungry.device, &file] {
        rig.device.clone_from(device);
        let flags: &[&str] = match device == &file {
            false => &["--no-probe"],
            true => &["--engine", "uffd", "--pages", &hungry.device, "--no-probe"],
        };
        let run = rig.run("64M", flags, &[NYX, "--version"]).output().unwrap();
        let why = text(&run.stderr);
        assert!(!run.status.success(), "{device} {flags:?} was taken");
        if why.contains("userfaultfd") || why.contains("libnyx_preload") {
            eprintln!("skipped {test}, engine uffd: {why}");
            continue;
        }
        for word in [
            &hungry.device,
            "holes",
            "fallocate",
            &hungry.file(),
            "noswap",
        ] {
            assert!(why.contains(word), "no {word:?} in {why:?}");
        }
        assert!(!is_on());
    }
    let reserve = ["-l", &FILE_BYTES.to_string(), &hungry.file()];
    call("fallocate", &reserve).unwrap();
    rig.device.clone_from(&hungry.device);
    let run = rig.run("64M", &["--no-probe"], &["true"]).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    assert!(!is_on(), "it is turned off again");
}
