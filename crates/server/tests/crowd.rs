//! Connections that come, stay silent, break off or are too many.

mod rig;

use nyx_policy::baselines::Unlimited;
use nyx_server::ServerConfig;
use rig::{Server, config, door, engine, tenant, until};
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::Duration;

fn server(change: impl FnOnce(&mut ServerConfig)) -> Server {
    let engine = engine(vec![tenant("one")], Box::new(Unlimited));
    let mut config = config(vec![door(0)]);
    change(&mut config);
    Server::start(engine, &config).expect("a server")
}

#[test]
fn one_connection_too_many_is_told_so() {
    let server = server(|config| config.max_connections = 3);
    let mut first: Vec<_> = (0..3).map(|_| server.client(0)).collect();
    first.iter_mut().for_each(|client| client.check());
    let refused = "ERROR Too many open connections\r\n";
    assert_eq!(server.client(0).rest(), refused);
    first[0].check();
    assert_eq!(first[0].figure("rejected_connections"), 1);
    assert_eq!(first[0].figure("max_connections"), 3);
    // A place that is free again is given to the next one.
    first.pop();
    until("a place is free", || {
        first[0].figure("curr_connections") == 2
    });
    server.client(0).check();
}

#[test]
fn silence_ends_a_connection_and_talk_keeps_it() {
    let server = server(|config| config.idle_timeout_s = Some(1));
    let silent = server.client(0);
    let (mut talking, mut half) = (server.client(0), server.client(0));
    // Half a request is a word, too, but the last one.
    half.send("set k 0 0 10\r\n01234");
    let short = Some(Duration::from_millis(20));
    silent.0.set_read_timeout(short).expect("a timeout");
    until("the silent one is closed", || {
        talking.check();
        match (&silent.0).read(&mut [0]) {
            Ok(0) => true,
            Ok(_) => panic!("nobody asked"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                false
            }
        }
    });
    assert_eq!(half.rest(), "");
    talking.check();
    talking.ask("get k\r\n", "END\r\n");
}

/// Breaks off: the other side gets a reset and whatever is under way is lost.
fn reset(stream: TcpStream) {
    let socket = socket2::Socket::from(stream);
    socket.set_linger(Some(Duration::ZERO)).expect("a linger");
}

#[test]
fn clients_that_break_off_leave_nothing_behind() {
    let server = Server::new();
    let mut other = server.client(0);
    let value = "v".repeat(300_000);
    other.ask(format!("set big 0 0 300000\r\n{value}\r\n"), "STORED\r\n");
    let cut = format!("set cut 0 0 300000\r\n{}", &value[..200_000]);
    let pipeline = "get big\r\n".repeat(100);
    for round in 0..100 {
        let mut client = server.client(0);
        match round % 5 {
            0 => {}
            1 => client.send("get bi"),
            2 => client.send(&cut),
            3 => client.send(&pipeline),
            _ => {
                client.send(&pipeline);
                client.expect("VALUE big 0 300000\r\n");
            }
        }
        reset(client.0);
        other.check();
    }
    until("they are forgotten", || {
        other.figure("curr_connections") == 1
    });
    other.ask("get cut\r\n", "END\r\n");
    other.ask(
        "get big\r\n",
        format!("VALUE big 0 300000\r\n{value}\r\nEND\r\n"),
    );
}

#[test]
fn a_burst_of_connections_is_served_in_full() {
    let server = Server::new();
    let mut clients: Vec<_> = (0..600).map(|_| server.client(0)).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.send(format!("set k{i} 0 0 4\r\n{i:04}\r\nget k{i}\r\n"));
    }
    for (i, client) in clients.iter_mut().enumerate() {
        client.expect(format!("STORED\r\nVALUE k{i} 0 4\r\n{i:04}\r\nEND\r\n"));
    }
}
