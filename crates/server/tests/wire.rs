//! Requests as no well-behaved client sends them, over real sockets: malformed, truncated,
//! oversized, byte by byte, thousands at once, half-closed. Each gets its clear answer and the next
//! request is understood.

mod rig;

use nyx_base::TenantId;
use nyx_engine::{Binding, User, Users};
use nyx_policy::baselines::Unlimited;
use nyx_server::Door;
use rig::{Server, config, door, engine, tenant};
use std::sync::Arc;

const FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";

#[test]
fn malformed_requests_get_their_error_and_the_next_one_its_answer() {
    let server = Server::new();
    let mut client = server.client(0);
    let long_key = "k".repeat(251);
    for (request, want) in [
        ("nonsense\r\n", "ERROR\r\n"),
        ("\r\n", "ERROR\r\n"),
        ("get\r\n", "ERROR\r\n"),
        ("set k 0 0\r\n", "ERROR\r\n"),
        ("set k 0 0 -1\r\n", FORMAT),
        ("set k x 0 2\r\nab\r\n", FORMAT),
        // The announced bytes and two more are dropped.
        ("set k 0 0 2\r\nabcd", "CLIENT_ERROR bad data chunk\r\n"),
        (
            "incr k many\r\n",
            "CLIENT_ERROR invalid numeric delta argument\r\n",
        ),
        (
            "touch k soon\r\n",
            "CLIENT_ERROR invalid exptime argument\r\n",
        ),
        ("mg k !\r\n", "CLIENT_ERROR invalid flag\r\n"),
        ("mg k v v\r\n", "CLIENT_ERROR duplicate flag\r\n"),
        ("mg %% b\r\n", "CLIENT_ERROR error decoding key\r\n"),
        ("ms k nan\r\n", FORMAT),
        (
            "ms k 2 MZ\r\nab\r\n",
            "CLIENT_ERROR invalid mode for ms M token\r\n",
        ),
        (&format!("get {long_key}\r\n"), FORMAT),
        (&format!("get a {long_key} b\r\n"), FORMAT),
        (&format!("set {long_key} 0 0 2\r\nab\r\n"), FORMAT),
    ] {
        client.send(request);
        client.expect(want);
        client.check();
    }
    let bytes: Vec<u8> = (0..=255u8).filter(|&byte| byte != b'\n').collect();
    client.send([&bytes[..], b"\n"].concat());
    client.expect("ERROR\r\n");
    client.check();
}

#[test]
fn a_line_without_an_end_is_refused_and_the_connection_closed() {
    let server = Server::new();
    let mut client = server.client(0);
    client.send("x".repeat(2048));
    assert_eq!(client.rest(), "CLIENT_ERROR line too long\r\n");
    let mut client = server.client(0);
    client.send(format!("get {}", "k ".repeat(32 << 10)));
    assert_eq!(client.rest(), "CLIENT_ERROR line too long\r\n");
    let mut client = server.client(0);
    client.send("POST / HTTP/1.1\r\nHost: x\r\n\r\nflush_all\r\n");
    assert_eq!(client.rest(), "ERROR\r\n");
    server.client(0).check();
}

#[test]
fn data_that_is_too_long_is_skipped_wherever_it_is_cut() {
    let server = Server::new();
    let mut client = server.client(0);
    client.ask("set k 0 0 1\r\nx\r\n", "STORED\r\n");
    let data = "version\r\n".repeat((3 << 20) / 9);
    let head = format!("set k 0 0 {}\r\n", data.len());
    // The refusal does not wait for the data.
    client.ask(&head, TOO_LARGE);
    for part in data.as_bytes().chunks(70_001) {
        client.send(part);
    }
    client.ask("\r\nget k\r\n", "END\r\n");
    // In one piece with what comes before and behind it.
    let whole = format!("mn\r\n{head}{data}\r\nversion\r\n");
    client.ask(whole, format!("MN\r\n{TOO_LARGE}VERSION "));
    let longest = "y".repeat(1 << 20);
    let set = format!("set k 0 0 {}\r\n{longest}\r\n", longest.len());
    server.client(0).ask(set, "STORED\r\n");
    let value = format!("VALUE k 0 {}\r\n{longest}\r\nEND\r\n", longest.len());
    server.client(0).ask("get k\r\n", value);
}

#[test]
fn a_request_that_is_cut_off_does_nothing() {
    let server = Server::new();
    server.client(0).ask("set k 0 0 3\r\nold\r\n", "STORED\r\n");
    for cut in [
        "get",
        "set k 0 0 3\r\n",
        "set k 0 0 3\r\nne",
        "set k 0 0 3\r\nnew\r",
        "delete k",
    ] {
        let mut client = server.client(0);
        client.send(format!("mn\r\n{cut}"));
        client.half_close();
        assert_eq!(client.rest(), "MN\r\n", "{cut}");
    }
    let old = "VALUE k 0 3\r\nold\r\nEND\r\n";
    server.client(0).ask("get k\r\n", old);
}

#[test]
fn bytes_may_arrive_one_at_a_time() {
    let server = Server::new();
    let mut client = server.client(0);
    let requests = "set k 5 0 10\r\n01234\r\n789\r\nget k none\r\nms m 2 c0 T0\r\nab\r\n\
        mg m v s\r\nincr k 1\r\ndelete k\r\nbogus\r\nmn\r\n";
    let answers = "STORED\r\nVALUE k 5 10\r\n01234\r\n789\r\nEND\r\n";
    for byte in requests.as_bytes() {
        client.send([*byte]);
    }
    client.expect(answers);
    client.expect("HD c");
    let rest = client_rest_until(&mut client, "MN\r\n");
    assert!(
        rest.ends_with(
            "\r\nVA 2 s2\r\nab\r\n\
             CLIENT_ERROR cannot increment or decrement non-numeric value\r\n\
             DELETED\r\nERROR\r\nMN\r\n"
        ),
        "{rest}"
    );
}

/// Reads byte by byte up to `end`.
fn client_rest_until(client: &mut rig::Client, end: &str) -> String {
    use std::io::Read;
    let mut got = Vec::new();
    let mut byte = [0];
    while !got.ends_with(end.as_bytes()) {
        client.0.read_exact(&mut byte).expect("more bytes");
        got.push(byte[0]);
    }
    String::from_utf8(got).expect("text")
}

#[test]
fn a_pipeline_longer_than_any_buffer_is_answered_in_order() {
    let server = Server::new();
    let client = server.client(0);
    const N: usize = 60_000;
    let writer = std::thread::spawn({
        let mut half = rig::Client(client.0.try_clone().expect("a clone"));
        move || {
            let mut requests = String::new();
            for i in 0..N {
                requests.push_str(&format!("set k{i} 0 0 5\r\n{i:05}\r\nget k{i}\r\nbad\r\n"));
            }
            half.send(requests);
            half.half_close();
        }
    });
    let mut client = client;
    let mut want = String::new();
    for i in 0..N {
        want.push_str(&format!(
            "STORED\r\nVALUE k{i} 0 5\r\n{i:05}\r\nEND\r\nERROR\r\n"
        ));
    }
    client.expect(want);
    assert_eq!(client.rest(), "");
    writer.join().expect("the writer");
}

#[test]
fn connections_do_not_mix_however_their_bytes_interleave() {
    let server = Server::new();
    let mut clients: Vec<_> = (0..40).map(|_| server.client(0)).collect();
    let requests: Vec<String> = (0..40)
        .map(|i| format!("set own{i} {i} 0 4\r\nv{i:03}\r\ngets nothing\r\nget own{i}\r\n"))
        .collect();
    let longest = requests.iter().map(String::len).max().expect("requests");
    for at in (0..longest).step_by(7) {
        for (client, request) in clients.iter_mut().zip(&requests) {
            let end = request.len().min(at + 7);
            client.send(&request[at.min(end)..end]);
        }
    }
    for (i, client) in clients.iter_mut().enumerate() {
        client.expect(format!(
            "STORED\r\nEND\r\nVALUE own{i} {i} 4\r\nv{i:03}\r\nEND\r\n"
        ));
    }
}

#[test]
fn a_half_closed_client_gets_all_of_its_answers_and_the_end() {
    let server = Server::new();
    let value = "z".repeat(500_000);
    let set = format!("set big 0 0 {}\r\n{value}\r\n", value.len());
    server.client(0).ask(set, "STORED\r\n");
    let one = format!("VALUE big 0 {}\r\n{value}\r\nEND\r\n", value.len());
    for (requests, want) in [
        ("get none\r\n".to_owned(), "END\r\n".to_owned()),
        ("get big\r\n".repeat(20), one.repeat(20)),
        // Behind the answers stands a request that will never be complete.
        ("get big\r\n".repeat(20) + "get bi", one.repeat(20)),
        (String::new(), String::new()),
    ] {
        let mut client = server.client(0);
        client.send(requests);
        client.half_close();
        client.expect(want);
        assert_eq!(client.rest(), "");
    }
}

#[test]
fn an_incomplete_request_does_not_hold_up_the_ones_before_it() {
    let server = Server::new();
    let value = "z".repeat(500_000);
    let set = format!("set big 0 0 {}\r\n{value}\r\n", value.len());
    server.client(0).ask(set, "STORED\r\n");
    let one = format!("VALUE big 0 {}\r\n{value}\r\nEND\r\n", value.len());
    let mut client = server.client(0);
    client.send("get big\r\n".repeat(20) + "set k 0 0 900000\r\nstart");
    client.expect(one.repeat(20));
    client.send(format!("{}\r\n", &value[..450_000]));
    client.ask(format!("{}\r\n", &value[..449_993]), "STORED\r\n");
}

#[test]
fn quit_closes_behind_the_answers() {
    let server = Server::new();
    let mut client = server.client(0);
    client.send("set k 0 0 1\r\nx\r\nget k\r\nquit\r\n");
    assert_eq!(client.rest(), "STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn before_the_login_nothing_else_is_understood() {
    let user = |name: &str, tenant| User {
        name: name.into(),
        password: b"secret".to_vec(),
        tenant: TenantId(tenant),
    };
    let users = Arc::new(Users::new(vec![user("ann", 0), user("bob", 1)]));
    let login = Door {
        binding: Binding::Login { users },
        ..door(0)
    };
    let engine = engine(vec![tenant("zero"), tenant("one")], Box::new(Unlimited));
    let server = Server::start(engine, &config(vec![login, door(0)])).expect("a server");
    let mut client = server.client(0);
    let unauthenticated = "CLIENT_ERROR unauthenticated\r\n";
    for request in [
        "get k\r\n",
        "mg k v\r\n",
        "flush_all\r\n",
        "stats\r\n",
        "version\r\n",
    ] {
        client.ask(request, unauthenticated);
    }
    client.ask(
        "set x 0 0 9\r\nann wrong\r\n",
        "CLIENT_ERROR authentication failure\r\n",
    );
    // In one piece: the requests behind the login are those of who has logged in.
    client.ask(
        "set x 0 0 10\r\nbob secret\r\nset k 0 0 3\r\nbob\r\nget k\r\n",
        "STORED\r\nSTORED\r\nVALUE k 0 3\r\nbob\r\nEND\r\n",
    );
    server.client(1).ask("get k\r\n", "END\r\n");
}
