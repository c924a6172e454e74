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

    fn is_on(&self) -> bool {
        let swaps = fs::read_to_string("/proc/swaps").unwrap();
        swaps.lines().any(|line| line.starts_with(&self.device))
    }

    /// It was not taken, and what is to be done is said.
    fn is_refused(&self, output: &Output) {
        let why = text(&output.stderr);
        assert!(!output.status.success(), "{} was taken", self.device);
        for word in [&self.device, "holes", "fallocate", &self.file(), "noswap"] {
            assert!(why.contains(word), "no {word:?} in {why:?}");
        }
        assert!(!self.is_on());
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if !self.device.is_empty()
            && let Err(why) = call("losetup", &["--detach", &self.device])
        {
            eprintln!("left behind: {why}");
        }
        // The device lets go of its file a little later than it is told to.
        let dir = self.mount.path().to_str().unwrap();
        let umount = || call("umount", &[dir]);
        for _ in 0..100 {
            if umount().is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("left behind: {:?}", umount().err());
    }
}

/// None where this machine cannot have one; it says so.
fn hungry(test: &str) -> Option<Loop> {
    let made = Loop::make();
    made.inspect_err(|why| eprintln!("skipped {test}: no such device can be had here: {why}"))
        .ok()
}

#[test]
fn a_loop_device_over_holes_in_memory_is_refused_until_they_are_filled() {
    let test = "a_loop_device_over_holes_in_memory_is_refused";
    let (Some(mut rig), Some(hungry)) = (rig(test), hungry(test)) else {
        return;
    };
    rig.device.clone_from(&hungry.device);
    let mut run = rig.run("64M", &["--no-probe"], &["true"]);
    hungry.is_refused(&run.output().unwrap());
    let reserve = ["-l", &FILE_BYTES.to_string(), &hungry.file()];
    call("fallocate", &reserve).unwrap();
    let output = run.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!hungry.is_on(), "it is turned off again");
}

#[test]
fn an_arenas_pages_do_not_go_there_either() {
    let test = "an_arenas_pages_do_not_go_there_either";
    let (Some(rig), Some(hungry)) = (arena::arena_rig(test), hungry(test)) else {
        return;
    };
    let nyx = arena::launcher(&rig);
    let flags = ["--memory", "64M", "--pages", &hungry.device];
    let mut run = arena::run(&rig, &nyx, &flags, &["sh", "-c", "true"]);
    hungry.is_refused(&run.output().unwrap());
}
