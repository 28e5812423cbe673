//! The proxy: each mode of a leg, seen by a client that speaks to it over a plain socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use leasehold_bench::clock;
use leasehold_bench::proxy::{CutPoint, Leg, Mode, Proxy, ProxyError};
use leasehold_bench::servers::RedisServer;
use redis::TypedCommands;
use tests::{direct, eventually, fresh_server};

#[test]
fn a_passing_leg_forwards_and_counts() {
    let (server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut client = Client::connect(&leg);
    assert_eq!(client.ask("PING"), "+PONG");
    assert_eq!(leg.connections(), 1);
    assert_eq!(leg.open_connections(), 1);
    // "PING\r\n" and "+PONG\r\n"
    eventually(LIMIT, || leg.bytes().to_server == 6 && leg.bytes().to_client == 7);
    drop(client);
    eventually(LIMIT, || leg.open_connections() == 0);
    drop(server);
}

#[test]
fn a_leg_serves_the_redis_client() {
    let (_server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut connection = redis::Client::open(leg.url()).unwrap().get_connection().unwrap();
    connection.set("key", 1).unwrap();
    assert_eq!(connection.get("key").unwrap().as_deref(), Some("1"));
}

#[test]
fn a_large_value_arrives_whole() {
    let (_server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut connection = redis::Client::open(leg.url()).unwrap().get_connection().unwrap();
    let value: String = (0..500_000).map(|n| char::from(b'a' + (n % 26) as u8)).collect();
    connection.set("key", &value).unwrap();
    leg.switch(Mode::Delay(Duration::from_millis(5))).unwrap();
    assert_eq!(connection.get("key").unwrap(), Some(value));
}

#[test]
fn a_refusing_leg_resets_and_refuses_at_once_then_serves_again_on_its_port() {
    let (_server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let other = proxy.leg().unwrap();
    let mut client = Client::connect(&leg);
    let mut bystander = Client::connect(&other);
    client.ask("PING");
    leg.switch(Mode::Refuse).unwrap();
    assert_eq!(client.read_line().unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(
        TcpStream::connect(leg.address()).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    // Nobody gets the port meanwhile.
    for _ in 0..100 {
        assert_ne!(proxy.leg().unwrap().address(), leg.address());
    }
    assert_eq!(bystander.ask("PING"), "+PONG");
    leg.switch(Mode::Pass).unwrap();
    assert_eq!(Client::connect(&leg).ask("PING"), "+PONG");
}

#[test]
fn swallowed_bytes_never_arrive() {
    let (server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut client = Client::connect(&leg);
    client.ask("PING");
    leg.switch(Mode::Swallow).unwrap();
    client.send("INCR lost");
    let mut newcomer = Client::connect(&leg);
    newcomer.send("INCR lost");
    client.expect_silence();
    newcomer.expect_silence();
    leg.switch(Mode::Pass).unwrap();
    // A hole in the stream: both are reset, and what they sent is gone for good.
    assert_eq!(client.read_line().unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(newcomer.read_line().unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(Client::connect(&leg).ask("PING"), "+PONG");
    assert_eq!(direct(&server).get("lost").unwrap(), None);
}

#[test]
fn swallowing_hides_replies_and_closes() {
    let (server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut subscriber = Client::connect(&leg);
    subscriber.send("SUBSCRIBE news");
    while subscriber.read_line().unwrap() != ":1" {}
    leg.switch(Mode::Swallow).unwrap();
    assert_eq!(direct(&server).publish("news", "lost").unwrap(), 1);
    subscriber.expect_silence();
    drop(subscriber);
    thread::sleep(BRIEFLY);
    // The server has not heard of the close: for it the subscriber is still there.
    assert_eq!(direct(&server).publish("news", "lost").unwrap(), 1);
    leg.switch(Mode::Pass).unwrap();
    eventually(LIMIT, || direct(&server).publish("news", "nobody").unwrap() == 0);
}

#[test]
fn an_idle_connection_survives_swallowing() {
    let (_server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut client = Client::connect(&leg);
    client.ask("PING");
    leg.switch(Mode::Swallow).unwrap();
    leg.switch(Mode::Pass).unwrap();
    assert_eq!(client.ask("PING"), "+PONG");
}

#[test]
fn held_bytes_arrive_when_the_leg_passes_again() {
    let (server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut client = Client::connect(&leg);
    client.ask("PING");
    leg.switch(Mode::Hold {
        deliver_after_close: false,
    })
    .unwrap();
    client.send("INCR held");
    client.send("INCR held");
    client.expect_silence();
    assert_eq!(direct(&server).get("held").unwrap(), None);
    leg.switch(Mode::Pass).unwrap();
    assert_eq!(client.read_line().unwrap(), ":1");
    assert_eq!(client.read_line().unwrap(), ":2");
}

#[test]
fn held_requests_of_a_client_that_left_are_delivered_if_asked_for() {
    let (server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    leg.switch(Mode::Hold {
        deliver_after_close: true,
    })
    .unwrap();
    let mut client = Client::connect(&leg);
    client.send("INCR held");
    drop(client);
    thread::sleep(BRIEFLY);
    assert_eq!(direct(&server).get("held").unwrap(), None);
    leg.switch(Mode::Pass).unwrap();
    eventually(LIMIT, || direct(&server).get("held").unwrap().as_deref() == Some("1"));
    eventually(LIMIT, || leg.open_connections() == 0);
}

#[test]
fn held_requests_of_a_client_that_left_are_dropped_by_default() {
    let (server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    leg.switch(Mode::Hold {
        deliver_after_close: false,
    })
    .unwrap();
    let mut client = Client::connect(&leg);
    client.send("INCR held");
    drop(client);
    // Dropped while still holding: the server sees the client leave.
    eventually(LIMIT, || leg.connections() == 1 && leg.open_connections() == 0);
    leg.switch(Mode::Pass).unwrap();
    assert_eq!(Client::connect(&leg).ask("PING"), "+PONG");
    assert_eq!(direct(&server).get("held").unwrap(), None);
}

#[test]
fn holding_replies_lets_requests_through() {
    let (server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut client = Client::connect(&leg);
    leg.switch(Mode::HoldReplies).unwrap();
    client.send("INCR done");
    eventually(LIMIT, || direct(&server).get("done").unwrap().as_deref() == Some("1"));
    client.expect_silence();
    leg.switch(Mode::Pass).unwrap();
    assert_eq!(client.read_line().unwrap(), ":1");
}

#[test]
fn holding_requests_lets_messages_through() {
    let (server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut client = Client::connect(&leg);
    client.send("SUBSCRIBE news");
    while client.read_line().unwrap() != ":1" {}
    leg.switch(Mode::HoldRequests).unwrap();
    client.send("PING");
    client.expect_silence();
    direct(&server).publish("news", "heard").unwrap();
    while client.read_line().unwrap() != "heard" {}
    leg.switch(Mode::Pass).unwrap();
    while client.read_line().unwrap() != "pong" {}
}

#[test]
fn delay_counts_in_each_direction() {
    let (_server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut client = Client::connect(&leg);
    let delay = Duration::from_millis(60);
    leg.switch(Mode::Delay(delay)).unwrap();
    let start_ns = clock::now_ns();
    assert_eq!(client.ask("PING"), "+PONG");
    assert!(clock::since(start_ns) >= 2 * delay);
}

#[test]
fn delay_keeps_order_and_throughput() {
    let (_server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut client = Client::connect(&leg);
    let (delay, count) = (Duration::from_millis(60), 200);
    leg.switch(Mode::Delay(delay)).unwrap();
    let start_ns = clock::now_ns();
    for n in 0..count {
        client.send(&format!("ECHO {n}"));
        // A chunk each.
        thread::sleep(Duration::from_millis(1));
    }
    for n in 0..count {
        client.read_line().unwrap();
        assert_eq!(client.read_line().unwrap(), n.to_string());
    }
    // One sleep a chunk would have taken `count` delays.
    assert!(clock::since(start_ns) < count / 2 * delay);
}

#[test]
fn a_cut_resets_connections_once() {
    let (_server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut client = Client::connect(&leg);
    client.ask("PING");
    leg.cut().unwrap();
    assert_eq!(client.read_line().unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(leg.mode(), Mode::Pass);
    assert_eq!(Client::connect(&leg).ask("PING"), "+PONG");
}

#[test]
fn every_cut_point_around_the_second_request_can_be_walked() {
    for (point, increments, replies) in [
        (CutPoint::BeforeRequest, "1", 1),
        (CutPoint::BeforeReply, "2", 1),
        (CutPoint::AfterReply, "2", 2),
    ] {
        let (server, proxy) = proxied();
        let leg = proxy.leg().unwrap();
        let mut client = Client::connect(&leg);
        leg.cut_after_requests(2, point);
        let mut seen = 0;
        for _ in 0..3 {
            if client.try_send("INCR cut").is_err() || client.read_line().is_err() {
                break;
            }
            seen += 1;
        }
        assert_eq!(seen, replies, "{point:?}");
        eventually(LIMIT, || {
            direct(&server).get("cut").unwrap().as_deref() == Some(increments)
        });
        // Once only.
        assert_eq!(Client::connect(&leg).ask("PING"), "+PONG");
    }
}

#[test]
fn a_dead_server_looks_dead_through_the_leg() {
    let (server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut client = Client::connect(&leg);
    client.ask("PING");
    server.kill().unwrap();
    assert!(client.read_line().is_err());
    // Connecting to the leg succeeds, as its port is open, but leads to a reset.
    let mut newcomer = Client::connect(&leg);
    assert!(newcomer.try_send("PING").is_err() || newcomer.read_line().is_err());
    server.restart().unwrap();
    assert_eq!(Client::connect(&leg).ask("PING"), "+PONG");
}

#[test]
fn switches_from_many_threads_come_one_by_one() {
    let (_server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let modes = [
        Mode::Refuse,
        Mode::Swallow,
        Mode::Pass,
        Mode::Hold {
            deliver_after_close: true,
        },
    ];
    thread::scope(|scope| {
        for mode in modes {
            let leg = &leg;
            scope.spawn(move || (0..50).for_each(|_| leg.switch(mode).unwrap()));
        }
        for _ in 0..50 {
            // Whatever happens to it, it must not hang.
            drop(TcpStream::connect(leg.address()));
        }
    });
    leg.switch(Mode::Pass).unwrap();
    assert_eq!(Client::connect(&leg).ask("PING"), "+PONG");
}

#[test]
fn a_leg_says_when_its_proxy_is_gone() {
    let (_server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let mut client = Client::connect(&leg);
    client.ask("PING");
    drop(proxy);
    assert!(client.read_line().is_err());
    assert!(matches!(leg.switch(Mode::Refuse), Err(ProxyError::Ended)));
}

#[test]
fn a_leg_can_be_switched_from_inside_a_runtime() {
    let (_server, proxy) = proxied();
    let leg = proxy.leg().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async { leg.switch(Mode::Refuse) }).unwrap();
    assert_eq!(leg.mode(), Mode::Refuse);
}

fn proxied() -> (RedisServer, Proxy) {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    (server, proxy)
}

/// A client that sends inline commands and reads lines.
struct Client(TcpStream);

impl Client {
    fn connect(leg: &Leg) -> Self {
        let stream = TcpStream::connect(leg.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self(stream)
    }

    fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.read_line().unwrap()
    }

    fn send(&mut self, command: &str) {
        self.try_send(command).unwrap();
    }

    fn try_send(&mut self, command: &str) -> io::Result<()> {
        self.0.write_all(format!("{command}\r\n").as_bytes())
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            self.0.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// Nothing comes for a moment. Too short a moment can only miss an error, not make one up.
    fn expect_silence(&mut self) {
        self.0.set_read_timeout(Some(BRIEFLY)).unwrap();
        assert_eq!(self.read_line().unwrap_err().kind(), ErrorKind::WouldBlock);
        self.0.set_read_timeout(Some(LIMIT)).unwrap();
    }
}

const BRIEFLY: Duration = Duration::from_millis(60);
const LIMIT: Duration = Duration::from_secs(20);
