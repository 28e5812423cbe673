//! Faults that change what the server answers, each with what a client sees of it, and that it is gone when the guard drops.

use std::thread;
use std::time::Duration;

use leasehold_bench::clock;
use leasehold_bench::faults::{Fault, FaultGuard, Targets, inject};
use leasehold_bench::servers::{RedisServer, ServerOptions};
use redis::TypedCommands;
use tests::{direct, fresh_server};

use super::{BRIEFLY, LIMIT, ping, two_legs};

#[test]
fn a_pause_of_all_keeps_reads_waiting_too_and_ends_by_itself() {
    let server = fresh_server();
    let mut reader = direct(&server);
    let guard = strike(&server, Fault::PauseAll { limit: A_WHILE });
    reader.set_read_timeout(Some(BRIEFLY)).unwrap();
    assert!(reader.get("key").is_err());
    let observed = guard.heal().unwrap();
    // Redis counts in whole milliseconds.
    assert!(
        observed.duration() + Duration::from_millis(1) >= A_WHILE,
        "{observed:?}"
    );
    direct(&server).set("key", 1).unwrap();
}

#[test]
fn a_sleeping_server_answers_when_it_wakes() {
    let server = fresh_server();
    let mut connection = direct(&server);
    let guard = strike(&server, Fault::Sleep { length: A_WHILE });
    connection.set_read_timeout(Some(BRIEFLY)).unwrap();
    assert!(connection.ping().is_err());
    let observed = guard.outlast().unwrap();
    assert!(observed.duration() >= A_WHILE, "{observed:?}");
    direct(&server).ping().unwrap();
}

#[test]
fn a_slow_script_keeps_everybody_from_work_until_it_is_killed_when_its_guard_drops() {
    let server = server_with("lua-time-limit 50");
    let mut connection = direct(&server);
    let guard = strike(&server, Fault::SlowScript { length: LIMIT });
    // Either there is no answer yet, or it is BUSY.
    connection.set_read_timeout(Some(BRIEFLY)).unwrap();
    assert!(connection.ping().is_err());
    let observed = guard.heal().unwrap();
    assert!(observed.duration() < LIMIT, "{observed:?}");
    direct(&server).ping().unwrap();
}

#[test]
fn a_server_that_refuses_writes_says_why_and_takes_them_again_when_the_guard_drops() {
    for (fault, code) in [
        (Fault::ReadOnly, "READONLY"),
        (Fault::NoReplicas, "NOREPLICAS"),
        (Fault::OutOfMemory, "OOM"),
    ] {
        let server = server_with("maxmemory 100mb");
        direct(&server).set("before", 1).unwrap();
        let guard = strike(&server, fault);
        let refused = direct(&server).set("key", 1).unwrap_err();
        assert_eq!(refused.code(), Some(code), "{fault:?}");
        assert_eq!(
            direct(&server).get("before").unwrap().as_deref(),
            Some("1"),
            "{fault:?}"
        );
        drop(guard);
        direct(&server).set("key", 2).unwrap();
        let (_, limit): (String, String) = redis::cmd("CONFIG")
            .arg("GET")
            .arg("maxmemory")
            .query(&mut direct(&server))
            .unwrap();
        assert_eq!(limit, "104857600", "{fault:?} leaves settings as they were");
        assert_eq!(
            direct(&server).get("before").unwrap().as_deref(),
            Some("1"),
            "{fault:?}"
        );
    }
}

#[test]
fn a_restarted_server_is_away_meanwhile_and_comes_back_with_its_data_or_without() {
    for (keep_data, expected) in [(true, Some("1")), (false, None)] {
        let server = RedisServer::start(&ServerOptions {
            append_only: true,
            ..ServerOptions::default()
        })
        .unwrap();
        direct(&server).set("key", 1).unwrap();
        let guard = strike(&server, Fault::Restart { keep_data });
        let client = redis::Client::open(server.url()).unwrap();
        assert!(client.get_connection_with_timeout(BRIEFLY).is_err());
        drop(guard);
        assert_eq!(direct(&server).get("key").unwrap().as_deref(), expected);
    }
}

#[test]
fn clients_are_killed_over_and_over_until_the_guard_drops() {
    let server = fresh_server();
    let mut before = direct(&server);
    before.ping().unwrap();
    let guard = strike(&server, Fault::KillClients);
    assert!(before.ping().is_err());
    let mut later = direct(&server);
    tests::eventually(LIMIT, || later.ping().is_err());
    drop(guard);
    let mut after = direct(&server);
    thread::sleep(4 * BRIEFLY);
    after.ping().unwrap();
}

#[test]
fn scripts_are_forgotten_over_and_over_until_the_guard_drops() {
    let server = fresh_server();
    let mut connection = direct(&server);
    let sha = load(&mut connection);
    let guard = strike(&server, Fault::FlushScripts);
    assert!(
        !is_known(&mut connection, &sha),
        "the first time is over when the fault is in effect"
    );
    load(&mut connection);
    tests::eventually(LIMIT, || !is_known(&mut connection, &sha));
    drop(guard);
    load(&mut connection);
    thread::sleep(4 * BRIEFLY);
    assert!(is_known(&mut connection, &sha));
}

#[test]
fn latency_makes_every_answer_late_on_these_legs_alone() {
    let (_server, _proxy, slow, other) = two_legs();
    let latency = Fault::Latency {
        least: BRIEFLY,
        most: 2 * BRIEFLY,
    };
    let guard = inject(&latency, &Targets::legs([slow.clone()])).unwrap();
    let asked_ns = clock::now_ns();
    ping(&slow, LIMIT).unwrap();
    assert!(clock::since(asked_ns) >= 2 * BRIEFLY, "there and back");
    ping(&other, LIMIT).unwrap();
    drop(guard);
    ping(&slow, LIMIT).unwrap();
    assert_eq!(slow.mode(), leasehold_bench::proxy::Mode::Pass);
}

fn strike(server: &RedisServer, fault: Fault) -> FaultGuard<'_> {
    inject(&fault, &Targets::server(server)).unwrap()
}

fn server_with(line: &str) -> RedisServer {
    RedisServer::start(&ServerOptions {
        config: vec![line.to_owned()],
        ..ServerOptions::default()
    })
    .unwrap()
}

fn load(connection: &mut redis::Connection) -> String {
    redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg("return 1")
        .query(connection)
        .unwrap()
}

fn is_known(connection: &mut redis::Connection, sha: &str) -> bool {
    let known: Vec<bool> = redis::cmd("SCRIPT").arg("EXISTS").arg(sha).query(connection).unwrap();
    known == [true]
}

/// Far longer than a busy machine keeps a test from its next step.
const A_WHILE: Duration = Duration::from_millis(1_500);
