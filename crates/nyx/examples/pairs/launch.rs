//! One run of a program under `nyx swap run`.
//!
//! What it never does: wait for ever; after the timeout the program is ended, then its launcher.
//!
//! *Thread safety*: one thread.

use crate::faults::Watch;
use crate::log::{Output, Report, Row};
use crate::plan::{Device, Engine, Key, Kind, Program, Runs};
use crate::{Places, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// More than any program here has: a limit that is not felt.
const NO_LIMIT_BYTES: u64 = 1 << 40;
const PAGE_BYTES: u64 = 4096;
/// Swap beyond what a program may have there.
const SPARE_BYTES: u64 = 64 << 20;
/// The launcher gets so long to write its report once its program was ended.
const GRACE: Duration = Duration::from_secs(30);

/// What is there for runs on a device; a file in the output directory where nothing is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Disks<'d> {
    /// Swap, for [`Device::Loop`].
    pub(crate) swap: Option<&'d Path>,
    /// Another device of the kind, for the pages of [`Engine::Uffd`].
    pub(crate) pages: Option<&'d Path>,
    /// A file in memory, for those of [`Engine::Ideal`].
    pub(crate) ideal: Option<&'d Path>,
}

/// Where runs take place.
#[derive(Debug)]
pub(crate) struct Runner<'p> {
    pub(crate) places: &'p Places,
    pub(crate) python: &'p Path,
    pub(crate) timeout: Duration,
    /// Whether each fault is timed.
    pub(crate) times_faults: bool,
}

/// Swap for a program that has had so much without a limit: all of it, and half again, since a page
/// that came back may keep its place.
pub(crate) fn swap_bytes(base: Option<&Report>) -> u64 {
    let peak = base.map_or(0, |report| report.peak_bytes);
    (peak + peak / 2 + SPARE_BYTES).next_multiple_of(PAGE_BYTES)
}

fn limit_bytes(base: Option<&Report>, ratio_percent: u8) -> u64 {
    let limit = base.map(|report| report.peak_bytes * u64::from(ratio_percent) / 100);
    limit.map_or(NO_LIMIT_BYTES, |bytes| bytes / PAGE_BYTES * PAGE_BYTES)
}

impl Runner<'_> {
    /// Makes what a program needs before it is measured; an error where it cannot run here.
    pub(crate) fn prepare(&self, kind: &Kind) -> Result<()> {
        let (program, scale) = (kind.program, kind.scale.to_string());
        let (Runs::Python, _) = kind.command() else {
            return Ok(());
        };
        fs::write(
            self.script(),
            include_str!("../../../swap/examples/programs/numeric.py"),
        )?;
        self.python(&["check", &program.to_string()])?;
        if program == Program::Inference {
            self.python(&["--scale", &scale, "--model", &self.model(), "model"])?;
        }
        Ok(())
    }

    fn python(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(self.python);
        command.arg(self.script()).args(words);
        let told = command.output();
        let told = told.map_err(|error| format!("cannot run {command:?}: {error}"))?;
        if told.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&told.stderr);
        let why = said.lines().last().unwrap_or("no reason").to_owned();
        let hint = "pip install numpy scipy scikit-learn onnx onnxruntime; --python FILE";
        Err(format!("{}: {why} ({hint})", self.python.display()).into())
    }

    fn script(&self) -> PathBuf {
        self.places.out.join("numeric.py")
    }

    fn model(&self) -> String {
        let path = self.places.out.join("network.onnx");
        path.to_string_lossy().into_owned()
    }

    /// Runs a program; an error where it could not begin. `base` is the run without a limit, none
    /// for that run itself.
    pub(crate) fn run(&self, key: &Key, base: Option<&Row>, disks: Disks<'_>) -> Result<Row> {
        let out = &self.places.out;
        let [report, printed, said] =
            ["report.json", "stdout", "stderr"].map(|name| out.join(name));
        // One that an earlier run left would be taken for this one's.
        fs::write(&report, "")?;
        let mut command = self.command(key, base, disks, &report);
        command.stdin(Stdio::null());
        command.stdout(File::create(&printed)?);
        command.stderr(File::create(&said)?);
        let watch = self.times_faults.then(Watch::start).transpose()?;
        let child = command.spawn();
        let child = child.map_err(|error| format!("cannot run {command:?}: {error}"))?;
        let launcher = child.id();
        let (_, is_late) = wait(child, self.timeout)?;
        let faults = watch.map(|watch| watch.end(launcher)).transpose()?;
        let report = serde_json::from_str::<Report>(&fs::read_to_string(&report)?).ok();
        if report.is_none() && !is_late {
            let said = fs::read_to_string(&said)?;
            let why = said.lines().next().unwrap_or("no report");
            return Err(format!("{key}: could not begin: {why}").into());
        }
        let output = Output::of(&fs::read_to_string(&printed)?);
        Ok(Row {
            faults,
            ..row(key, base, (report, output), is_late)
        })
    }

    fn command(&self, key: &Key, base: Option<&Row>, disks: Disks<'_>, report: &Path) -> Command {
        let base = base.and_then(|row| row.report.as_ref());
        let (runs, words) = key.kind.command();
        let file = self.places.out.join("swap");
        let device = match key.device {
            Device::Zram => Path::new("zram"),
            Device::Disk => &file,
            Device::Loop => disks.swap.unwrap_or(&file),
        };
        let mut run = Command::new(&self.places.nyx);
        run.args([
            "swap",
            "run",
            "--no-probe",
            "--no-report",
            "--end-with-launcher",
        ]);
        run.arg("--memory")
            .arg(limit_bytes(base, key.ratio_percent).to_string());
        run.arg("--device").arg(device);
        run.arg("--device-size").arg(swap_bytes(base).to_string());
        run.args(key.engine.flags()).arg("--report").arg(report);
        if key.engine.has_arena() {
            let pages = match key.engine {
                Engine::Ideal => disks.ideal,
                _ => disks.pages,
            };
            run.arg("--pages").arg(pages.unwrap_or(&self.places.out));
        }
        run.arg("--");
        match runs {
            Runs::Example(example) => run.arg(self.places.examples.join(example)),
            Runs::Python => {
                run.arg(self.python).arg(self.script());
                run.args(["--model", &self.model()])
            }
        };
        run.args(words);
        run
    }
}

fn row(key: &Key, base: Option<&Row>, told: (Option<Report>, Output), is_late: bool) -> Row {
    let (report, output) = told;
    let ended = report.as_ref().and_then(|report| report.ended.clone());
    let ended = ended.unwrap_or("unknown".to_owned());
    let expected = base.and_then(|row| row.checksum.as_ref());
    let both = expected.zip(output.checksum.as_ref());
    let limit = limit_bytes(base.and_then(|row| row.report.as_ref()), key.ratio_percent);
    Row {
        key: key.clone(),
        limit_bytes: (key.engine != Engine::Unlimited).then_some(limit),
        is_success: !is_late && ended == ExitStatus::default().to_string(),
        ended: if is_late {
            "timed out".to_owned()
        } else {
            ended
        },
        is_checksum_equal: both.map(|(expected, is)| expected == is),
        checksum: output.checksum,
        touch_p50_ns: output.p50_ns,
        touch_p99_ns: output.p99_ns,
        faults: None,
        report,
    }
}

/// Waits until it ends, at the latest until it was made to; whether it was.
fn wait(mut child: Child, timeout: Duration) -> Result<(ExitStatus, bool)> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let watch = pidfd_open(pid.ok_or("a child has no id")?, PidfdFlags::empty())?;
    let mut is_late = false;
    for (time, signal) in [(timeout, Signal::TERM), (GRACE, Signal::KILL)] {
        if is_over(&watch, time)? {
            break;
        }
        is_late = true;
        // It may have ended just now.
        let _ = pidfd_send_signal(&watch, signal);
    }
    Ok((child.wait()?, is_late))
}

fn is_over(watch: &impl std::os::fd::AsFd, time: Duration) -> Result<bool> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(watch, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::row as logged;

    #[test]
    fn a_limit_is_a_part_of_the_peak_in_whole_pages() {
        let base = Report {
            peak_bytes: 100 * PAGE_BYTES + 50,
            ..Report::default()
        };
        assert_eq!(limit_bytes(Some(&base), 20), 20 * PAGE_BYTES);
        assert_eq!(limit_bytes(Some(&base), 99), 99 * PAGE_BYTES);
        assert_eq!(limit_bytes(None, 20), NO_LIMIT_BYTES);
        assert_eq!(swap_bytes(None), SPARE_BYTES);
        assert_eq!(swap_bytes(Some(&base)), SPARE_BYTES + 151 * PAGE_BYTES);
    }

    #[test]
    fn pages_go_to_the_same_kind_of_device_as_swap() {
        let places = Places {
            nyx: PathBuf::from("nyx"),
            examples: PathBuf::from("examples"),
            build: "release".to_owned(),
            out: PathBuf::from("out"),
        };
        let runner = Runner {
            places: &places,
            python: Path::new("python3"),
            timeout: Duration::ZERO,
            times_faults: false,
        };
        let words = |engine, disks| {
            let key = logged(engine, 1, 1.0).key;
            let key = Key {
                device: Device::Loop,
                ..key
            };
            let command = runner.command(&key, None, disks, Path::new("report"));
            let words = command.get_args().map(|word| word.to_string_lossy());
            words.collect::<Vec<_>>().join(" ")
        };
        let disks = Disks {
            swap: Some(Path::new("swap-disk")),
            pages: Some(Path::new("pages-disk")),
            ideal: Some(Path::new("memory")),
        };
        let with = words(Engine::Uffd, disks);
        assert!(with.contains("--device swap-disk"), "{with}");
        assert!(
            with.contains("--engine uffd --pool off --oom wait"),
            "{with}"
        );
        assert!(with.contains("--pages pages-disk"), "{with}");
        let ideal = words(Engine::Ideal, disks);
        assert!(ideal.contains("--pages memory "), "{ideal}");
        let on_disk = words(Engine::Uffd, Disks::default());
        assert!(on_disk.contains("--device out/swap"), "{on_disk}");
        assert!(on_disk.contains("--pages out "), "{on_disk}");
        let without = words(Engine::Kernel, disks);
        assert!(without.contains("--engine kernel"), "{without}");
        assert!(!without.contains("--pages"), "{without}");
    }

    #[test]
    fn a_row_says_whether_the_result_is_right() {
        let base = logged(Engine::Unlimited, 0, 1.0);
        let key = logged(Engine::Kernel, 1, 1.0).key;
        let judge = |ended: &str, sum: Option<&str>, is_late| {
            let report = Report {
                ended: Some(ended.to_owned()),
                ..Report::default()
            };
            let output = Output {
                checksum: sum.map(str::to_owned),
                ..Output::default()
            };
            row(&key, Some(&base), (Some(report), output), is_late)
        };
        assert!(judge("exit status: 0", Some("a"), false).is_good());
        let wrong = judge("exit status: 0", Some("b"), false);
        assert_eq!(wrong.is_checksum_equal, Some(false));
        assert_eq!(
            (wrong.is_good(), wrong.failure()),
            (false, "another checksum".to_owned())
        );
        let silent = judge("exit status: 0", None, false);
        assert_eq!((silent.is_good(), silent.is_checksum_equal), (false, None));
        let killed = judge("signal: 9 (SIGKILL)", None, false);
        assert_eq!(
            (killed.is_good(), killed.failure()),
            (false, "signal: 9 (SIGKILL)".to_owned())
        );
        assert_eq!(
            judge("signal: 15 (SIGTERM)", None, true).failure(),
            "timed out"
        );
    }

    #[test]
    fn a_child_that_ends_is_not_late_and_one_that_does_not_is_ended() {
        let quick = Command::new("true").spawn().unwrap();
        let (status, is_late) = wait(quick, Duration::from_secs(60)).unwrap();
        assert!(status.success() && !is_late);
        let endless = Command::new("sleep").arg("1000").spawn().unwrap();
        let (status, is_late) = wait(endless, Duration::ZERO).unwrap();
        assert!(!status.success() && is_late);
    }
}
