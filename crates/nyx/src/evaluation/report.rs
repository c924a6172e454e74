//! The whole report as one Markdown text: what was measured, how, on what, and all tables.
//!
//! What it never does: read a clock or the machine; both are in what it is given.

use super::figures::{CROWDED_MARK, FIGURES};
use super::grid::{NOISY, NOISY_MARK, is_noisy, ratio, time};
use super::{Beside, Evaluation, Named, tables};
use nyx_base::Bytes;
use nyx_media::Evidence;
use nyx_media::evaluate::{LARGEST_BYTES, ROUNDS_LEAST};
use std::fmt::Write;
use time::OffsetDateTime;

/// A medium of fewer caches than this is partly read from them.
const CACHES_LEAST: u64 = 8;

/// The report; with `pictures` each figure shows its drawing, a file beside the report.
pub fn report(evaluation: &Evaluation, pictures: bool) -> String {
    let mut out = format!("# Device evaluation: {}\n\n", evaluation.name);
    subject(evaluation, &mut out);
    method(evaluation, &mut out);
    out.push_str("\n## Tables\n");
    for table in tables::all(evaluation) {
        let _ = write!(out, "\n### {}\n\n{}", table.title, table.grid.markdown());
    }
    out.push_str(
        "\nRatios of published values are computed from the published times; the paper prints 1.04 \
         and 1.03\nfor reads of 4 and 16 KiB, which its times do not give.\n",
    );
    let most = tables::most(evaluation).markdown();
    let _ = write!(out, "\n### The most that each moves\n\n{most}");
    out.push_str("\n## Figures\n");
    for figure in &FIGURES {
        let _ = write!(
            out,
            "\n### {}\n\nThe paper: {}.\n",
            figure.title(),
            figure.says
        );
        if pictures {
            let name = figure.file_name();
            let _ = write!(out, "\n![{}]({name}.svg)\n", figure.title());
        }
        for (name, grid) in figure.grids(evaluation) {
            let unit = match figure.is_bandwidth() {
                true => ", GB/s",
                false => "",
            };
            let _ = write!(out, "\n{name}{unit}:\n\n{}", grid.markdown());
        }
    }
    out
}

/// The day of a Unix time, in UTC.
fn day(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).map(OffsetDateTime::from_unix_timestamp);
    match time {
        Ok(Ok(time)) => time.date().to_string(),
        _ => format!("{unix_s} s after 1970"),
    }
}

/// What was measured, where and when.
fn subject(evaluation: &Evaluation, out: &mut String) {
    let Evaluation {
        device, machine, ..
    } = evaluation;
    let kind = match evaluation.own.evidence {
        Evidence::Real => "**Real**: this machine's medium in real time",
        Evidence::Emulated => "**Emulated**: real time, modelled device",
        Evidence::Simulated => "**Simulated**: a device model in virtual time",
    };
    let _ = writeln!(out, "{kind}. {}.\n", day(evaluation.made_unix_s));
    let size = match device.len_bytes {
        0 => String::new(),
        bytes => format!(", {}", Bytes(bytes)),
    };
    let _ = writeln!(out, "* Device: {}{size}.", evaluation.name);
    let dram = Bytes(evaluation.dram_bytes);
    let again = match (device.kind.as_str(), evaluation.own.evidence) {
        ("anon", Evidence::Real) => {
            " The device is DRAM too: where the two differ, that is noise, and no more."
        }
        _ => "",
    };
    let _ = writeln!(out, "* DRAM beside it (real): {dram} of memory.{again}");
    let Beside { name, skipped, .. } = &evaluation.disk;
    let _ = match skipped {
        None => writeln!(out, "* Disk beside it (real): {name}, past the page cache."),
        Some(why) => writeln!(out, "* No disk beside it: {why}."),
    };
    let cpus = match machine.cpus {
        1 => "1 processor".to_owned(),
        n => format!("{n} processors"),
    };
    let cache = machine.cache_bytes.map_or_else(String::new, |bytes| {
        format!(", largest cache {}", Bytes(bytes))
    });
    let (cpu, memory) = (&device.host_cpu, Bytes(machine.memory_bytes));
    let (kernel, load) = (&machine.kernel, ratio(machine.load));
    let _ = writeln!(
        out,
        "* Machine: {cpus} ({cpu}){cache}, {memory} of memory, {kernel}; load {load} when it began."
    );
}

/// How it was measured, and what is to be known of the figures.
fn method(evaluation: &Evaluation, out: &mut String) {
    out.push_str("\n## Method\n\n");
    rounds(evaluation, out);
    accesses(evaluation, out);
    noise(evaluation, out);
    if is_simulated(evaluation) {
        out.push_str(
            "* Simulated readings are of the event model in virtual time, with the prefetcher off. \
             The model knows\n  no fences, no caches, and no buffer in front of reads: a sequence \
             costs what random addresses do. A write\n  ends when its stores are buffered.\n",
        );
    }
    if evaluation.own.evidence == Evidence::Emulated {
        out.push_str(
            "* Emulated readings are never shorter than what the medium beneath and the processor \
             take. Fences are\n  the medium's; the model charges nothing for them.\n",
        );
    }
    out.push_str(
        "* The paper: one module of 128 GB, App Direct, Xeon Gold 5215, prefetcher off, means of \
         five runs.\n  It publishes no values of its figures. Its 33 ns for DRAM are less than a \
         read takes that waits for the\n  one before, so that its reads seem to have overlapped \
         where they were small.\n",
    );
}

fn is_simulated(evaluation: &Evaluation) -> bool {
    let sheets = evaluation.device_sheets();
    let is = |named: &Named<'_>| named.sheet.evidence == Evidence::Simulated;
    sheets.iter().any(is)
}

fn rounds(evaluation: &Evaluation, out: &mut String) {
    let plan = &evaluation.plan;
    let [point, round] = [plan.point_ns, plan.round_ns].map(|ns| time(ns as f64));
    let _ = writeln!(
        out,
        "* Each reading is the median of the rounds of {round} in {point}, and of {ROUNDS_LEAST} \
         rounds at least. A round in\n  which a thread lost its processor is left out. Latencies \
         are means of all accesses of a round."
    );
    let counts: Vec<String> = plan.thread_counts.iter().map(usize::to_string).collect();
    let counts = counts.join(", ");
    let _ = writeln!(
        out,
        "* {counts} threads. A thread is one of the system's, pinned to a processor where that is \
         allowed, in a closed\n  loop: it begins an access when the one before is done."
    );
    let cpus = evaluation.machine.cpus;
    if plan.thread_counts.iter().any(|&count| count > cpus) {
        let _ = writeln!(
            out,
            "* `{CROWDED_MARK}`: more threads than the {cpus} processors. They take turns, and \
             their latency has the waiting for\n  a processor in it; this says nothing of the \
             device."
        );
    }
}

fn accesses(evaluation: &Evaluation, out: &mut String) {
    let loop_time = time(evaluation.loop_ns);
    let _ = writeln!(
        out,
        "* Random: multiples of the size, drawn by wyrand with a fixed seed for each thread. \
         Sequential: each\n  thread from a place of its own, round and round."
    );
    let _ = writeln!(
        out,
        "* Reads are copies into a buffer of the thread, as large as the access. For latencies \
         each read begins\n  when the bytes of the one before are there; for bandwidths they may \
         overlap. The loop itself, with\n  bytes from the nearest cache, takes {loop_time} of \
         each, which are not taken away."
    );
    let _ = writeln!(
        out,
        "* Writes are non-temporal stores of whole lines, and of words of 8 bytes below 64 B, with \
         a fence behind\n  each access, as in the paper; on the disk system calls."
    );
    let _ = writeln!(
        out,
        "* The processor's prefetcher is as the machine has it, which the paper switched off: \
         sequential and large\n  reads gain by it."
    );
    let of_cache = |bytes: u64| bytes < CACHES_LEAST * evaluation.machine.cache_bytes.unwrap_or(0);
    if of_cache(evaluation.dram_bytes) {
        let _ = writeln!(
            out,
            "* **{} are less than {CACHES_LEAST} times the largest cache: part of the accesses \
             never reach the memory.**",
            Bytes(evaluation.dram_bytes)
        );
    }
    if evaluation.dram_bytes < 4 * LARGEST_BYTES as u64 {
        let _ = writeln!(
            out,
            "* The largest accesses have only {} places.",
            evaluation.dram_bytes / LARGEST_BYTES as u64
        );
    }
}

/// How far rounds differed.
fn noise(evaluation: &Evaluation, out: &mut String) {
    let of = |named: Named<'_>| {
        let readings = named.sheet.readings.iter();
        let noisy = readings.filter(|one| is_noisy(one)).count();
        format!(
            "{noisy} of {} ({})",
            named.sheet.readings.len(),
            named.column()
        )
    };
    let measured = evaluation.sheets().into_iter();
    let measured = measured.filter(|named| named.sheet.evidence != Evidence::Simulated);
    let noisy: Vec<String> = measured.map(of).collect();
    let percent = 100.0 * NOISY;
    let _ = writeln!(
        out,
        "* `{NOISY_MARK}`: the quartiles of the rounds differ by more than {percent} % of the \
         median, or too few rounds were\n  left: {}.",
        noisy.join(", ")
    );
}
