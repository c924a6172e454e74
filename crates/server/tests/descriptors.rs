//! A server that has run out of descriptors: who is connected is served, who is not waits, and a
//! stop is obeyed. In a file of its own, because the limit is that of the process.

mod rig;

use rig::{Client, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, SockAddr, Socket, Type};

/// How many more the server may accept.
const FREE: u64 = 5;
const CLIENTS: usize = 40;

/// Sets how many descriptors may be open; returns what it was.
fn allow(current: Option<u64>) -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    let limit = Rlimit {
        current,
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, limit).expect("a lower limit");
    before
}

#[test]
fn without_descriptors_it_serves_on_and_can_be_stopped() {
    let server = Server::new();
    let mut connected = server.client(0);
    connected.check();
    let address = SockAddr::from(server.address(0));
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    // Made while there are descriptors, connected when there are none left to accept with.
    let sockets: Vec<Socket> = (0..CLIENTS).map(|_| socket()).collect();
    let next = sockets.iter().map(std::os::fd::AsRawFd::as_raw_fd).max();
    let next = u64::try_from(next.expect("sockets")).expect("a descriptor") + 1;
    let before = allow(Some(next + FREE));
    for socket in &sockets {
        socket.connect(&address).expect("the backlog takes it");
    }
    for _ in 0..1000 {
        connected.check();
    }
    // Descriptors are there again: those who waited are served.
    allow(before.current);
    let mut clients: Vec<Client> = sockets.into_iter().map(|s| Client(s.into())).collect();
    for client in &mut clients {
        client
            .0
            .set_read_timeout(Some(rig::PATIENCE))
            .expect("a timeout");
        client.check();
    }
    drop(clients);
    rig::until("they are gone", || {
        connected.figure("curr_connections") == 1
    });
    // Once more; this time it is to stop meanwhile.
    let sockets: Vec<Socket> = (0..CLIENTS).map(|_| socket()).collect();
    let next = sockets.iter().map(std::os::fd::AsRawFd::as_raw_fd).max();
    let next = u64::try_from(next.expect("sockets")).expect("a descriptor") + 1;
    let before = allow(Some(next + FREE));
    for socket in &sockets {
        socket.connect(&address).expect("the backlog takes it");
    }
    connected.check();
    let (stopped, told) = std::sync::mpsc::channel();
    let running = server.running;
    std::thread::spawn(move || {
        running.stop();
        stopped.send(())
    });
    told.recv_timeout(rig::PATIENCE).expect("it stops");
    allow(before.current);
}
