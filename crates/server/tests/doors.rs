//! Starting and stopping: addresses in use, sockets left behind, orders to stop.

mod rig;

use nyx_base::TenantId;
use nyx_engine::Binding;
use nyx_policy::Policy;
use nyx_policy::baselines::Unlimited;
use nyx_policy::sharing::limit::Leased;
use nyx_server::{Address, Door, ServerError};
use rig::{Client, Server, config, door, engine, tenant, until};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;

fn serve(doors: Vec<Door>) -> Result<Server, ServerError> {
    let engine = engine(vec![tenant("one")], Box::new(Unlimited));
    Server::start(engine, &config(doors))
}

fn at(address: Address) -> Door {
    Door {
        address,
        binding: Binding::to(TenantId(0)),
    }
}

fn unix(path: &Path) -> Door {
    at(Address::Unix {
        path: path.to_owned(),
        mode: 0o600,
    })
}

/// Why it does not start.
fn refusal(doors: Vec<Door>) -> (ErrorKind, String) {
    match serve(doors) {
        Ok(_) => panic!("it starts"),
        Err(error) => {
            let text = error.to_string();
            match error {
                ServerError::Bind { source, .. } => (source.kind(), text),
                other => panic!("{other}"),
            }
        }
    }
}

fn check_unix(path: &Path) {
    let mut stream = UnixStream::connect(path).expect("a connection");
    stream
        .set_read_timeout(Some(rig::PATIENCE))
        .expect("a timeout");
    stream.write_all(b"mn\r\n").expect("the server takes it");
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"MN\r\n");
}

#[test]
fn a_port_in_use_is_an_error_that_names_it() {
    let first = Server::new();
    let taken = first.address(0);
    let (kind, text) = refusal(vec![door(0), at(Address::Tcp(taken))]);
    assert_eq!(kind, ErrorKind::AddrInUse);
    assert!(text.contains(&taken.to_string()), "{text}");
    first.client(0).check();
    // As soon as the first has stopped the port is free, whoever was connected.
    let mut client = first.client(0);
    client.check();
    first.running.stop();
    let second = serve(vec![at(Address::Tcp(taken))]).expect("the port is free");
    second.client(0).check();
}

#[test]
fn a_socket_in_use_is_left_alone_and_a_dead_one_taken_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("nyx.sock");
    // Left behind by somebody who died.
    drop(UnixListener::bind(&path).expect("a socket"));
    assert!(path.exists());
    let first = serve(vec![unix(&path)]).expect("a dead socket is taken over");
    let mode = std::fs::metadata(&path)
        .expect("a socket")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    check_unix(&path);
    let (kind, text) = refusal(vec![unix(&path)]);
    assert_eq!(kind, ErrorKind::AddrInUse);
    assert!(text.contains("nyx.sock"), "{text}");
    check_unix(&path);
    first.running.stop();
    assert!(!path.exists(), "a server clears its socket away");
}

#[test]
fn what_is_not_ours_is_never_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("precious");
    std::fs::write(&path, "data").expect("a file");
    let (kind, _) = refusal(vec![unix(&path)]);
    assert_eq!(kind, ErrorKind::AddrInUse);
    assert_eq!(std::fs::read(&path).expect("the file"), b"data");
    // A socket of another kind, in use, is not dead because it does not take our call.
    let datagrams = dir.path().join("datagrams");
    let _bound = UnixDatagram::bind(&datagrams).expect("a socket");
    refusal(vec![unix(&datagrams)]);
    assert!(datagrams.exists());
    let (kind, _) = refusal(vec![unix(&dir.path().join("none").join("nyx.sock"))]);
    assert_eq!(kind, ErrorKind::NotFound);
}

#[test]
fn it_stops_whatever_its_clients_are_doing() {
    let engine = engine(vec![tenant("one")], Box::new(Unlimited));
    let server = Server::start(engine, &config(vec![door(0)])).expect("a server");
    let value = "v".repeat(500_000);
    let mut idle = server.client(0);
    idle.ask(format!("set k 0 0 500000\r\n{value}\r\n"), "STORED\r\n");
    let (mut stalled, mut half) = (server.client(0), server.client(0));
    stalled.send("get k\r\n".repeat(100));
    half.send("set k 0 0 500000\r\nxyz");
    idle.check();
    // From here on everybody is held.
    let policy: Box<dyn Policy> = Box::new(Leased::new(vec![Some(nyx_base::DevicePs(1))]));
    server.engine.set_policy(policy);
    let budget = server.engine.tenants()[0].budget();
    until("the limit is in force", || budget.is_limited());
    let mut held = server.client(0);
    held.send("get k\r\n".repeat(3));
    until("one is held", || idle.figure("nyx_held_connections") > 0);
    let address = server.address(0);
    server.running.stop();
    assert_eq!(idle.rest(), "");
    assert_eq!(half.rest(), "");
    drop(stalled);
    let refused = std::net::TcpStream::connect(address).map_err(|error| error.kind());
    assert_eq!(refused.err(), Some(ErrorKind::ConnectionRefused));
}

#[test]
fn the_shutdown_command_is_obeyed_only_where_it_is_allowed() {
    let server = Server::new();
    let mut client = server.client(0);
    client.ask("shutdown\r\n", "ERROR: shutdown not enabled\r\n");
    client.ask("shutdown graceful\r\n", "ERROR: shutdown not enabled\r\n");
    assert!(!server.running.is_stopping());
    let engine = engine(vec![tenant("one")], Box::new(Unlimited));
    let mut allowed = config(vec![door(0)]);
    allowed.shutdown_allowed = true;
    let server = Server::start(engine, &allowed).expect("a server");
    let mut client = server.client(0);
    client.send("shutdown\r\n");
    assert_eq!(client.rest(), "");
    until("it stops", || server.running.is_stopping());
}

#[test]
fn each_door_leads_to_its_tenant() {
    let engine = engine(vec![tenant("zero"), tenant("one")], Box::new(Unlimited));
    let server = Server::start(engine, &config(vec![door(0), door(1)])).expect("a server");
    let (mut zero, mut one): (Client, Client) = (server.client(0), server.client(1));
    zero.ask("set k 0 0 4\r\nzero\r\n", "STORED\r\n");
    one.ask("get k\r\n", "END\r\n");
    one.ask("flush_all\r\n", "OK\r\n");
    zero.ask("get k\r\n", "VALUE k 0 4\r\nzero\r\nEND\r\n");
}
