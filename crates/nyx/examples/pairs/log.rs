//! Runs that were measured, a line of JSON each, and what a report and an output say of one.
//!
//! What it never does: change or remove a line.
//!
//! *Thread safety*: one owner.

use crate::Result;
use crate::plan::{Engine, Key, Kind};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

/// What is taken from a report of `nyx swap run`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) run_s: f64,
    /// User and system time of the program.
    pub(crate) cpu_s: Option<f64>,
    pub(crate) system_cpu_s: Option<f64>,
    pub(crate) reclaimer_cpu_s: f64,
    /// None where the kernel alone reads ahead.
    #[serde(default)]
    pub(crate) read_ahead: Option<Reader>,
    pub(crate) major_faults: u64,
    /// An upper bound with cgroup v1.
    pub(crate) inline_reclaims: u64,
    pub(crate) rescues: u64,
    pub(crate) oom_kills: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) ended: Option<String>,
    /// What the program did for itself; none where the kernel did all.
    pub(crate) arena: Option<Arena>,
}

/// What is taken from there of who reads ahead.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reader {
    pub(crate) cpu_ns: u64,
}

/// What is taken from there of processes that page for themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Arena {
    pub(crate) processes: u64,
    pub(crate) refused: Option<String>,
    pub(crate) major_faults: u64,
    pub(crate) inline_reclaims: u64,
    /// In the CPU time of the program.
    pub(crate) cpu_ns: u64,
}

/// What a program printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Output {
    /// Of its result; none where it printed none.
    pub(crate) checksum: Option<String>,
    /// Of the first touch of a page, reading.
    pub(crate) p50_ns: Option<u64>,
    pub(crate) p99_ns: Option<u64>,
}

/// How long the faults of a program took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FaultTimes {
    pub(crate) count: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) longest_ns: u64,
    pub(crate) sum_ns: u64,
    /// Events that were not heard of, since who listens came too late.
    pub(crate) lost: u64,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) key: Key,
    pub(crate) limit_bytes: Option<u64>,
    /// How it ended, in words.
    pub(crate) ended: String,
    /// Whether it ended by itself, with success.
    pub(crate) is_success: bool,
    pub(crate) checksum: Option<String>,
    /// Whether that is the one of the run without a limit; none where either is missing.
    pub(crate) is_checksum_equal: Option<bool>,
    pub(crate) touch_p50_ns: Option<u64>,
    pub(crate) touch_p99_ns: Option<u64>,
    /// None where nobody listened.
    #[serde(default)]
    pub(crate) faults: Option<FaultTimes>,
    /// None where the launcher had to be killed, and left no report.
    pub(crate) report: Option<Report>,
}

impl Report {
    /// The kernel's and the program's own.
    pub(crate) fn all_major_faults(&self) -> u64 {
        let own = self.arena.as_ref().map_or(0, |arena| arena.major_faults);
        self.major_faults + own
    }

    /// The same of faults that had to reclaim.
    pub(crate) fn all_inline_reclaims(&self) -> u64 {
        let own = self.arena.as_ref().map_or(0, |arena| arena.inline_reclaims);
        self.inline_reclaims + own
    }
}

impl Output {
    /// Lines that are no JSON, or of which nothing is known, are passed over.
    pub(crate) fn of(text: &str) -> Output {
        let mut output = Output::default();
        let lines = text.lines().map(serde_json::from_str::<serde_json::Value>);
        for line in lines.filter_map(|line| line.ok()) {
            if let Some(sum) = line["checksum"].as_str() {
                output.checksum = Some(sum.to_owned());
            }
            if line["pass"] == "read" {
                output.p50_ns = line["p50_ns"].as_u64();
                output.p99_ns = line["p99_ns"].as_u64();
                // It compares all bytes itself.
                output.checksum = Some(format!("{} of {} wrong", line["wrong"], line["pages"]));
            }
        }
        output
    }
}

impl Row {
    /// Whether its figures may be compared: it ended well with the right result, by the engine
    /// that it was to have.
    pub(crate) fn is_good(&self) -> bool {
        let is_right = self.checksum.is_some() && self.is_checksum_equal != Some(false);
        self.is_success && is_right && self.missing_arena().is_none()
    }

    /// Why it is not good.
    pub(crate) fn failure(&self) -> String {
        match (self.is_success, &self.checksum, self.missing_arena()) {
            (false, ..) => self.ended.clone(),
            (true, None, _) => "no checksum".to_owned(),
            (true, Some(_), Some(why)) => format!("ran without an arena: {why}"),
            (true, Some(_), None) => "another checksum".to_owned(),
        }
    }

    /// Why a program that was to page for itself did not.
    fn missing_arena(&self) -> Option<&str> {
        if !self.key.engine.has_arena() {
            return None;
        }
        let arena = self
            .report
            .as_ref()
            .and_then(|report| report.arena.as_ref());
        match arena {
            Some(Arena {
                refused: Some(why), ..
            }) => Some(why),
            Some(arena) if arena.processes > 0 => None,
            _ => Some("no process had one"),
        }
    }

    /// A line for who watches.
    pub(crate) fn summary(&self) -> String {
        let took = self.report.as_ref().map(|report| report.run_s);
        let took = took.map_or("no report".to_owned(), |s| format!("{s:.2} s"));
        match self.is_good() {
            true => format!("{}: {took}, good", self.key),
            false => format!("{}: {took}, {}", self.key, self.failure()),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    rows: Vec<Row>,
    keys: HashSet<Key>,
}

impl Log {
    pub(crate) fn open(path: &Path) -> Result<Log> {
        let mut options = OpenOptions::new();
        let mut file = options.create(true).append(true).open(path)?;
        let text = fs::read_to_string(path)?;
        let mut rows = Vec::new();
        for (i, line) in text.lines().enumerate() {
            match serde_json::from_str::<Row>(line) {
                Ok(row) => rows.push(row),
                // A run that was killed while it wrote.
                Err(error) => eprintln!("pairs: line {} of the log is no run: {error}", i + 1),
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n")?;
        }
        let keys = rows.iter().map(|row| row.key.clone()).collect();
        Ok(Log { file, rows, keys })
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(crate) fn has(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// The run without a limit with which others are compared; it has to be good.
    pub(crate) fn baseline(&self, kind: &Kind) -> Option<&Row> {
        let is_it = |row: &&Row| row.key.engine == Engine::Unlimited && row.key.kind == *kind;
        self.rows.iter().filter(is_it).find(|row| row.is_good())
    }

    /// Adds a run; it is on the file when this returns.
    pub(crate) fn append(&mut self, row: Row) -> Result<()> {
        let line = serde_json::to_string(&row)? + "\n";
        self.file.write_all(line.as_bytes())?;
        self.keys.insert(row.key.clone());
        self.rows.push(row);
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::plan::{Device, Program};

    pub(crate) fn row(engine: Engine, round: u32, run_s: f64) -> Row {
        let kind = Kind {
            program: Program::Sort,
            scale: 1,
            threads: 1,
            build: "release".to_owned(),
        };
        Row {
            key: Key {
                kind,
                device: Device::Zram,
                ratio_percent: 60,
                engine,
                round,
            },
            limit_bytes: Some(60 << 20),
            ended: "exit status: 0".to_owned(),
            is_success: true,
            checksum: Some("a".to_owned()),
            is_checksum_equal: Some(true),
            touch_p50_ns: None,
            touch_p99_ns: None,
            faults: None,
            report: Some(Report {
                run_s,
                ..Report::default()
            }),
        }
    }

    #[test]
    fn what_is_in_the_log_is_known_again_and_a_torn_line_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs.jsonl");
        let rows = [row(Engine::Linux, 1, 2.5), row(Engine::Kernel, 1, 1.5)];
        let mut log = Log::open(&path).unwrap();
        assert!(!log.has(&rows[0].key));
        log.append(rows[0].clone()).unwrap();
        assert!(log.has(&rows[0].key) && !log.has(&rows[1].key));
        let torn = serde_json::to_string(&rows[1]).unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(&torn.as_bytes()[..torn.len() / 2]).unwrap();

        let mut log = Log::open(&path).unwrap();
        assert!(log.has(&rows[0].key) && !log.has(&rows[1].key));
        log.append(rows[1].clone()).unwrap();
        assert_eq!(Log::open(&path).unwrap().rows, rows);
    }

    #[test]
    fn the_baseline_is_a_good_run_without_a_limit_of_the_same_kind() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::open(&dir.path().join("runs.jsonl")).unwrap();
        let good = row(Engine::Unlimited, 0, 1.0);
        let mut bad = good.clone();
        bad.is_success = false;
        log.append(bad).unwrap();
        log.append(row(Engine::Linux, 1, 2.0)).unwrap();
        assert_eq!(log.baseline(&good.key.kind), None);
        log.append(good.clone()).unwrap();
        assert_eq!(log.baseline(&good.key.kind), Some(&good));
        let mut other = good.key.kind.clone();
        other.scale = 2;
        assert_eq!(log.baseline(&other), None);
    }

    #[test]
    fn a_report_is_read_and_what_is_not_needed_is_passed_over() {
        let text = r#"{"command": ["sort"], "ended": "signal: 9 (SIGKILL)", "run_s": 1.25,
            "cpu_s": 1.0, "system_cpu_s": null, "limit_bytes": 5, "peak_bytes": 7, "faults": 9,
            "major_faults": 3, "inline_reclaims": 4, "rescues": 2, "reclaimer_cpu_s": 0.5,
            "touches": null, "oom_kills": 1, "read_ahead": {"pages": 5, "cpu_ns": 6}}"#;
        let report: Report = serde_json::from_str(text).unwrap();
        let expected = Report {
            run_s: 1.25,
            cpu_s: Some(1.0),
            system_cpu_s: None,
            reclaimer_cpu_s: 0.5,
            read_ahead: Some(Reader { cpu_ns: 6 }),
            major_faults: 3,
            inline_reclaims: 4,
            rescues: 2,
            oom_kills: 1,
            peak_bytes: 7,
            ended: Some("signal: 9 (SIGKILL)".to_owned()),
            arena: None,
        };
        assert_eq!(report, expected);
        let arena = r#", "arena": {"processes": 1, "refused": null, "major_faults": 11, "forks": 0,
            "minor_faults": 12, "inline_reclaims": 13, "cpu_ns": 14, "p50_ns": 15}}"#;
        let with = text.strip_suffix('}').unwrap().to_owned() + arena;
        let report: Report = serde_json::from_str(&with).unwrap();
        let arena = Arena {
            processes: 1,
            refused: None,
            major_faults: 11,
            inline_reclaims: 13,
            cpu_ns: 14,
        };
        assert_eq!(report.arena, Some(arena));
        let without = text.replace("\"rescues\": 2, ", "");
        assert!(serde_json::from_str::<Report>(&without).is_err());
    }

    #[test]
    fn a_run_that_was_to_have_an_arena_and_had_none_is_not_good() {
        let mut run = row(Engine::Uffd, 1, 1.0);
        assert_eq!(run.failure(), "ran without an arena: no process had one");
        let arena = |processes, refused: Option<&str>| Arena {
            processes,
            refused: refused.map(str::to_owned),
            ..Arena::default()
        };
        for (with, is_good) in [
            (arena(0, None), false),
            (arena(2, Some("no pages")), false),
            (arena(1, None), true),
        ] {
            run.report.as_mut().unwrap().arena = Some(with.clone());
            assert_eq!(run.is_good(), is_good, "{with:?}");
        }
        run.report.as_mut().unwrap().arena = Some(arena(2, Some("no pages")));
        assert_eq!(run.failure(), "ran without an arena: no pages");
        assert!(row(Engine::Kernel, 1, 1.0).is_good());
    }

    #[test]
    fn outputs_of_both_kinds_are_read() {
        let sort = Output::of("noise\n{\"program\":\"sort\",\"checksum\":\"00ff\"}\n");
        assert_eq!(sort.checksum.as_deref(), Some("00ff"));
        assert_eq!(sort.p99_ns, None);
        let touch = Output::of(
            "{\"pass\":\"write\",\"p50_ns\":1,\"p99_ns\":2,\"pages\":8,\"wrong\":0}\n\
             {\"pass\":\"read\",\"p50_ns\":3,\"p99_ns\":4,\"pages\":8,\"wrong\":0}\n",
        );
        assert_eq!(touch.checksum.as_deref(), Some("0 of 8 wrong"));
        assert_eq!((touch.p50_ns, touch.p99_ns), (Some(3), Some(4)));
        assert_eq!(Output::of(""), Output::default());
    }
}
