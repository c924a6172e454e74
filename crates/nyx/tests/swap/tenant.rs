//! A program as a tenant of a server: what it uses is the tenant's, and its limit holds. The
//! program here is a shell that waits, and this test spends from its purse as an arena would; that
//! arenas do is tested where the library is.

use super::arena::{arena_rig, begin, launcher, run};
use super::{NYX, Rig, is_clean, text, until};
use nyx_swap::region::{Need, Purse};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where nothing comes of it for so long it never will.
const PATIENCE: Duration = Duration::from_secs(60);
const LIMIT: f64 = 0.05;

/// A server with a tenant that has a twentieth of a modelled device.
struct Server {
    child: Child,
    door: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is gone already where that was tested.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(rig: &Rig) -> Server {
        let door = rig.dir.path().join("door");
        let config = format!(
            "[server]\nlisten = [\"unix:{}\"]\ndata_dir = \"{}\"\nworkers = 1\n\
             [[device]]\nname = \"main\"\nkind = \"anon\"\nsize = \"32MiB\"\nmodel = \
             \"optane-2dimm/8\"\n\
             [[tenant]]\nname = \"web\"\nsize = \"12MiB\"\n\
             [[tenant]]\nname = \"batch\"\nsize = \"12MiB\"\nkey_prefix = \"batch:\"\nlimit = \
             \"{}%\"\n",
            door.display(),
            rig.dir.path().join("data").display(),
            LIMIT * 100.0,
        );
        let file = rig.dir.path().join("nyx.toml");
        fs::write(&file, config).unwrap();
        let mut serve = Command::new(NYX);
        serve.args(["serve", "-qq", "--config"]).arg(file);
        let child = serve.stdin(Stdio::null()).spawn().unwrap();
        let server = Server { child, door };
        // One that is bound and does not serve yet closes what it takes.
        until("server", || server.try_ask("mn\r\n"));
        server
    }

    fn address(&self) -> String {
        format!("unix:{}", self.door.display())
    }

    fn try_ask(&self, request: &str) -> Option<String> {
        let mut stream = UnixStream::connect(&self.door).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let (mut answer, mut part) = (Vec::new(), [0; 4096]);
        while !answer.ends_with(b"END\r\n") && !answer.ends_with(b"MN\r\n") {
            match stream.read(&mut part).ok()? {
                0 => return None,
                len => answer.extend_from_slice(&part[..len]),
            }
        }
        String::from_utf8(answer).ok()
    }

    /// A figure of the tenant's.
    fn figure(&self, name: &str) -> u64 {
        let told = self.try_ask("stats tenants\r\n").expect("it answers");
        let wanted = format!("STAT batch:{name} ");
        let line = told.lines().find_map(|line| line.strip_prefix(&wanted));
        let line = line.unwrap_or_else(|| panic!("{name}: {told}"));
        line.parse().unwrap()
    }
}

#[test]
fn what_a_program_uses_is_its_tenants_and_the_limit_holds() {
    let Some(rig) = arena_rig("what_a_program_uses_is_its_tenants") else {
        return;
    };
    let server = Server::start(&rig);
    let (tenant, report) = (["--tenant", "batch"], ["--report", "report.json"]);
    let address = server.address();
    let flags = [
        &["--memory", "64M", "--server", &address],
        &tenant[..],
        &report[..],
    ]
    .concat();
    let began = Instant::now();
    let (child, terms) = begin(&rig, &flags);
    let purse = Purse::open(&terms.purse.expect("it has one")).unwrap();
    // As much as it may for so many requests, of which a tenth is waited for.
    let mut spent = 0;
    while spent < 20_000 {
        let need = if spent % 10 == 0 {
            Need::Now
        } else {
            Need::Later
        };
        if purse.may(need) {
            purse.spend(spent % 4 != 0, 1 + spent % 8);
            spent += 1;
        } else {
            purse.rest(need);
        }
        assert!(
            began.elapsed() < PATIENCE * 4,
            "{spent}: it is held for ever"
        );
    }
    let launcher = child.id();
    fs::write(rig.dir.path().join("end"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    let elapsed = began.elapsed();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("tenant     batch of unix:"), "{said}");
    let report = rig.report("report.json");
    let told = |name: &str| report["tenant"][name].as_f64().unwrap();
    assert_eq!(
        (told("reads"), told("writes")),
        (15_000.0, 5_000.0),
        "{report:#}"
    );
    assert!(
        told("holds") > 0.0 && report["tenant"]["lost"].is_null(),
        "{report:#}"
    );
    // A purse, the credit beyond it, and what a limit remembers, in milliseconds of the device.
    let most_s = elapsed.as_secs_f64() * LIMIT + 0.02;
    let device_s = told("device_s");
    assert!(
        device_s > 0.02,
        "it costs too little to be limited: {device_s} s"
    );
    assert!(
        device_s < most_s,
        "{device_s} s of the device in {elapsed:?}"
    );
    // The server has charged the same.
    assert_eq!(server.figure("device_reads"), 15_000);
    assert_eq!(server.figure("device_writes"), 5_000);
    is_clean(&rig, launcher);
}

#[test]
fn where_the_server_goes_the_program_goes_on_and_the_report_says_so() {
    let Some(rig) = arena_rig("where_the_server_goes") else {
        return;
    };
    let server = Server::start(&rig);
    let address = server.address();
    let flags = [
        "--memory",
        "64M",
        "--tenant",
        "batch",
        "--server",
        &address,
        "--report",
        "report.json",
    ];
    let (child, terms) = begin(&rig, &flags);
    let purse = Purse::open(&terms.purse.unwrap()).unwrap();
    drop(server);
    // More than was ever granted.
    let (began, mut spent) = (Instant::now(), 0);
    while spent < 50_000 {
        match purse.may(Need::Later) {
            true => {
                purse.spend(true, 8);
                spent += 1;
            }
            false => purse.rest(Need::Later),
        }
        assert!(began.elapsed() < PATIENCE, "{spent}: it hangs");
    }
    let launcher = child.id();
    fs::write(rig.dir.path().join("end"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("unmetered  in part: "), "{said}");
    let lost = rig.report("report.json")["tenant"]["lost"].to_string();
    assert!(lost.contains("door"), "{lost}");
    is_clean(&rig, launcher);
}

#[test]
fn who_cannot_be_a_tenant_is_told_before_anything_is_made() {
    let Some(rig) = arena_rig("who_cannot_be_a_tenant") else {
        return;
    };
    let server = Server::start(&rig);
    let nyx = launcher(&rig);
    let address = server.address();
    let refused = |flags: &[&str]| {
        let all = [&["--memory", "64M"], flags].concat();
        let output = run(&rig, &nyx, &all, &["true"]).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = refused(&["--tenant", "nobody", "--server", &address]);
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("no tenant nobody within reach"), "{said}");
    let nowhere = rig.dir.path().join("nowhere");
    let nowhere = format!("unix:{}", nowhere.display());
    let (code, said) = refused(&["--tenant", "batch", "--server", &nowhere]);
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains(&nowhere), "{said}");
    let (code, said) = refused(&["--server", &address]);
    assert_eq!(code, Some(64), "{said}");
    assert!(said.contains("--tenant"), "{said}");
    let mut kernel = rig.run(
        "64M",
        &["--tenant", "batch", "--server", &address],
        &["true"],
    );
    let output = kernel.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("--engine uffd"), "{said}");
    assert!(rig.records().is_empty());
}
