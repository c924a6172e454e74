//! The same reads by fio, and what it says of them.
//!
//! What it never does: measure anything itself.

use crate::Found;
use serde_json::Value;
use std::error::Error;
use std::path::Path;
use std::process::Command;

pub(crate) fn is_there() -> bool {
    let version = Command::new("fio").arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

/// One turn.
pub(crate) fn run(
    file: &Path,
    len_bytes: u64,
    depth: u32,
    seconds: u64,
) -> Result<Found, Box<dyn Error>> {
    let output = Command::new("fio")
        .args([
            "--name=reads",
            "--ioengine=io_uring",
            "--rw=randread",
            "--bs=4k",
        ])
        .args([
            "--direct=1",
            "--fixedbufs",
            "--registerfiles",
            "--thread",
            "--norandommap",
        ])
        .args(["--time_based", "--randrepeat=0", "--output-format=json"])
        .args(["--lat_percentiles=1", "--clat_percentiles=0"])
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--size={len_bytes}"))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--runtime={seconds}"))
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let told: Value = serde_json::from_slice(&output.stdout)?;
    let job = &told["jobs"][0];
    let number = |value: &Value, what: &str| {
        value
            .as_f64()
            .ok_or_else(|| format!("fio says nothing of {what}"))
    };
    let reads = &job["read"];
    let (latency, count) = (&reads["lat_ns"], number(&reads["total_ios"], "total_ios")?);
    let cpu_pct = number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?;
    let runtime_ns = number(&reads["runtime"], "runtime")? * 1e6;
    Ok(Found {
        per_second: number(&reads["iops"], "iops")?,
        mean_ns: number(&latency["mean"], "the mean")?,
        p50_ns: number(&latency["percentile"]["50.000000"], "P50")?,
        p99_ns: number(&latency["percentile"]["99.000000"], "P99")?,
        cpu_ns: cpu_pct / 100.0 * runtime_ns / count,
    })
}
