//! A server on a port of the system's choice, and clients that give up instead of hanging.
//!
//! What it never does: measure time. Deadlines here only turn a hang into a failure.
#![allow(dead_code, reason = "each test uses its part of the rig")]

use nyx_base::{Bytes, TenantId};
use nyx_engine::{Binding, Engine, EngineConfig, HoldAction, TenantConfig};
use nyx_gate::{CostTable, Device};
use nyx_media::{Mapped, TscClock};
use nyx_policy::Policy;
use nyx_policy::baselines::Unlimited;
use nyx_server::{Address, Answer, Door, Running, ServerConfig, ServerError, bind};
use nyx_store::{Eviction, Layout};
use nyx_tier::Deep;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a client waits before it calls a silence a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Accesses a second, of any kind and size up to 4 KiB, that the rig's device is priced at.
pub(crate) const OPS_PER_S: f64 = 1e6;

/// A tenant of 64 MiB that takes items of up to 1 MiB.
pub(crate) fn tenant(name: &str) -> TenantConfig {
    TenantConfig {
        name: name.to_owned(),
        device: 0,
        size: Bytes(64 << 20),
        segment_bytes: 1 << 20,
        item_len_max: 1 << 20,
        eviction: Eviction::S3Fifo,
        layout: Layout::Split,
        hold: HoldAction::Delay,
        keep: None,
        ranges: None,
        deep: None,
    }
}

/// A door on any free port, leading to one tenant.
pub(crate) fn door(tenant: u16) -> Door {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Door {
        address: Address::Tcp(any),
        binding: Binding::to(TenantId(tenant)),
    }
}

/// What a test server is made from; one worker, so that everybody shares it.
pub(crate) fn config(doors: Vec<Door>) -> ServerConfig {
    ServerConfig {
        doors,
        max_connections: 20_000,
        idle_timeout_s: None,
        backlog: 1024,
        pin_workers: false,
        record_latencies: true,
        shutdown_allowed: false,
    }
}

/// An engine for one worker.
pub(crate) fn engine(tenants: Vec<TenantConfig>, policy: Box<dyn Policy>) -> Arc<Engine> {
    engine_over(tenants, policy, None)
}

/// The same, with a deep device for those tenants that have a share of it.
pub(crate) fn engine_over(
    tenants: Vec<TenantConfig>,
    policy: Box<dyn Policy>,
    deep: Option<Arc<Deep>>,
) -> Arc<Engine> {
    let len = tenants.iter().map(|tenant| tenant.size.0 + (2 << 20)).sum();
    let device = Device {
        name: "memory".into(),
        media: Arc::new(Mapped::anonymous(len).expect("anonymous memory")),
        cost: CostTable::from_max_iops(&[OPS_PER_S; _], &[OPS_PER_S; _]),
    };
    let engine = Engine::new(EngineConfig {
        devices: vec![Arc::new(device)],
        deep_devices: deep.into_iter().collect(),
        tenants,
        tenants_max: 0,
        policy: policy.into(),
        workers: 1,
        hash_seed: 42,
    });
    Arc::new(engine.expect("an engine"))
}

/// A running server and its engine.
pub(crate) struct Server {
    pub(crate) engine: Arc<Engine>,
    pub(crate) running: Running,
}

impl Server {
    /// One tenant behind one door.
    pub(crate) fn new() -> Server {
        let engine = engine(vec![tenant("one")], Box::new(Unlimited));
        Server::start(engine, &config(vec![door(0)])).expect("a server")
    }

    /// A server for an engine.
    pub(crate) fn start(engine: Arc<Engine>, config: &ServerConfig) -> Result<Server, ServerError> {
        let answer = Answer::Engine(engine.clone());
        let running = bind(config.clone())?.start(answer, 1, Arc::new(TscClock::start()))?;
        Ok(Server { engine, running })
    }

    /// The address of its n-th door.
    pub(crate) fn address(&self, door: usize) -> SocketAddr {
        let address = &self.running.listening()[door];
        address.parse().expect("a TCP door")
    }

    /// A client at its n-th door.
    pub(crate) fn client(&self, door: usize) -> Client {
        Client::connect(self.address(door))
    }
}

/// A client that blocks, but not for ever.
pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    /// Connects.
    pub(crate) fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Client(stream)
    }

    /// Sends.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0
            .write_all(bytes.as_ref())
            .expect("the server takes it");
    }

    /// Sends no more.
    pub(crate) fn half_close(&mut self) {
        self.0.shutdown(Shutdown::Write).expect("half a close");
    }

    /// Reads exactly what is expected.
    pub(crate) fn expect(&mut self, want: impl AsRef<[u8]>) {
        let want = want.as_ref();
        let mut got = vec![0; want.len()];
        let mut at = 0;
        while at < got.len() {
            match self.0.read(&mut got[at..]) {
                Ok(0) => panic!(
                    "closed after {:?}, wanted {:?}",
                    lossy(&got[..at]),
                    lossy(want)
                ),
                Ok(n) => at += n,
                Err(error) => {
                    panic!(
                        "{error} after {:?}, wanted {:?}",
                        lossy(&got[..at]),
                        lossy(want)
                    )
                }
            }
            assert!(
                want.starts_with(&got[..at]),
                "{:?} is not {:?}",
                lossy(&got[..at]),
                lossy(want)
            );
        }
    }

    /// Sends and reads exactly what is expected.
    pub(crate) fn ask(&mut self, request: impl AsRef<[u8]>, want: impl AsRef<[u8]>) {
        self.send(request);
        self.expect(want);
    }

    /// Reads up to the end; a reset is one, too.
    pub(crate) fn rest(&mut self) -> String {
        let mut got = Vec::new();
        match self.0.read_to_end(&mut got) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            Err(error) => panic!("{error} after {:?}", lossy(&got)),
        }
        String::from_utf8_lossy(&got).into_owned()
    }

    /// Still served?
    pub(crate) fn check(&mut self) {
        self.ask("mn\r\n", "MN\r\n");
    }

    /// One figure of `stats`.
    pub(crate) fn figure(&mut self, name: &str) -> u64 {
        self.send("stats\r\n");
        let mut got = Vec::new();
        let mut part = [0; 4096];
        while !got.ends_with(b"END\r\n") {
            let n = self.0.read(&mut part).expect("figures");
            assert!(n > 0, "closed while telling figures");
            got.extend_from_slice(&part[..n]);
        }
        let text = String::from_utf8(got).expect("figures are text");
        let line = text.lines().find_map(|line| {
            line.strip_prefix("STAT ")?
                .strip_prefix(name)?
                .strip_prefix(' ')
        });
        line.and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no figure {name} in {text}"))
    }
}

/// Bytes for people, shortened.
fn lossy(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(300)];
    let more = bytes.len() - shown.len();
    format!("{} (+{more} B)", shown.escape_ascii())
}

/// Waits until something is so; fails where it does not come to be.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: never");
        std::thread::sleep(Duration::from_millis(2));
    }
}
