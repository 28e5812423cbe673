//! Faults: each takes effect, tells when, and heals with its guard.

mod server;

use std::io::ErrorKind;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use leasehold_bench::clock;
use leasehold_bench::faults::{Fault, FaultError, Observed, Targets, inject};
use leasehold_bench::proxy::{Leg, Mode, Proxy};
use leasehold_bench::servers::RedisServer;
use redis::TypedCommands;
use tests::{direct, fresh_server};

#[test]
fn a_write_pause_blocks_writes_while_reads_pass() {
    let server = fresh_server();
    let (mut reader, mut writer) = (direct(&server), direct(&server));
    let guard = inject(&Fault::PauseWrite { limit: FOR_EVER }, &Targets::server(&server)).unwrap();
    reader.set_read_timeout(Some(LIMIT)).unwrap();
    writer.set_read_timeout(Some(BRIEFLY)).unwrap();
    assert!(writer.set("key", 1).is_err());
    assert_eq!(reader.get("key").unwrap(), None);
    guard.heal().unwrap();
    direct(&server).set("key", 2).unwrap();
}

#[test]
fn a_write_pause_heals_when_its_guard_drops() {
    let server = fresh_server();
    drop(inject(&Fault::PauseWrite { limit: FOR_EVER }, &Targets::url(server.url())).unwrap());
    direct(&server).set("key", 1).unwrap();
}

#[test]
fn an_outlasted_write_pause_is_as_long_as_asked_for() {
    let server = fresh_server();
    let limit = Duration::from_millis(150);
    let guard = inject(&Fault::PauseWrite { limit }, &Targets::server(&server)).unwrap();
    let observed = guard.outlast().unwrap();
    // Redis counts in whole milliseconds.
    assert!(observed.duration() + Duration::from_millis(1) >= limit, "{observed:?}");
    assert!(observed.to_ns <= clock::now_ns());
}

#[test]
fn the_observed_end_of_a_pause_is_its_own_not_that_of_the_healing() {
    let server = fresh_server();
    let guard = inject(&Fault::PauseWrite { limit: BRIEFLY }, &Targets::server(&server)).unwrap();
    direct(&server).set("key", "written when the pause is over").unwrap();
    // The probe began to wait before that write, so it has been answered as well; its thread gets time to notice.
    thread::sleep(10 * BRIEFLY);
    let healing_ns = clock::now_ns();
    let observed = guard.heal().unwrap();
    assert!(observed.to_ns < healing_ns, "{observed:?} {healing_ns}");
}

#[test]
fn a_frozen_server_works_again_when_its_guard_drops() {
    let server = fresh_server();
    let mut connection = direct(&server);
    let guard = inject(&Fault::FreezeServer, &Targets::server(&server)).unwrap();
    connection.set_read_timeout(Some(BRIEFLY)).unwrap();
    assert!(connection.ping().is_err());
    drop(guard);
    direct(&server).ping().unwrap();
}

#[test]
fn a_fault_on_legs_hits_only_those() {
    let (_server, _proxy, hit, spared) = two_legs();
    for fault in [
        Fault::Refuse,
        Fault::Swallow,
        Fault::Hold {
            deliver_after_close: false,
        },
    ] {
        let guard = inject(&fault, &Targets::legs([hit.clone()])).unwrap();
        assert!(ping(&hit, BRIEFLY).is_err(), "{fault:?}");
        ping(&spared, LIMIT).unwrap();
        drop(guard);
        assert_eq!(hit.mode(), Mode::Pass, "{fault:?}");
        ping(&hit, LIMIT).unwrap();
    }
}

#[test]
fn a_healed_leg_returns_to_the_mode_it_had() {
    let (_server, _proxy, leg, _) = two_legs();
    let slow = Mode::Delay(Duration::from_millis(1));
    leg.switch(slow).unwrap();
    let guard = inject(&Fault::Refuse, &Targets::legs([leg.clone()])).unwrap();
    assert_eq!(
        TcpStream::connect(leg.address()).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    guard.heal().unwrap();
    assert_eq!(leg.mode(), slow);
}

#[test]
fn the_observed_interval_covers_the_time_between_injecting_and_healing() {
    let (server, _proxy, leg, _) = two_legs();
    let targets = Targets {
        legs: vec![leg],
        ..Targets::server(&server)
    };
    for fault in [
        Fault::PauseWrite { limit: FOR_EVER },
        Fault::FreezeServer,
        Fault::Refuse,
        Fault::Swallow,
        Fault::Hold {
            deliver_after_close: true,
        },
    ] {
        let before_ns = clock::now_ns();
        let guard = inject(&fault, &targets).unwrap();
        let injected_ns = clock::now_ns();
        thread::sleep(BRIEFLY);
        let healing_ns = clock::now_ns();
        let Observed { from_ns, to_ns } = guard.heal().unwrap();
        assert!(before_ns <= from_ns && from_ns <= injected_ns, "{fault:?}");
        assert!(healing_ns <= to_ns && to_ns <= clock::now_ns(), "{fault:?}");
    }
}

#[test]
fn a_given_server_is_never_frozen() {
    let server = fresh_server();
    let refused = inject(&Fault::FreezeServer, &Targets::url(server.url()));
    assert!(matches!(refused, Err(FaultError::NoTarget { .. })));
}

fn two_legs() -> (RedisServer, Proxy, Leg, Leg) {
    let server = fresh_server();
    let proxy = Proxy::start(&server).unwrap();
    let (one, other) = (proxy.leg().unwrap(), proxy.leg().unwrap());
    (server, proxy, one, other)
}

fn ping(leg: &Leg, limit: Duration) -> redis::RedisResult<()> {
    let client = redis::Client::open(leg.url())?;
    let mut connection = client.get_connection_with_timeout(limit)?;
    connection.set_read_timeout(Some(limit))?;
    connection.ping().map(drop)
}

const BRIEFLY: Duration = Duration::from_millis(60);
const LIMIT: Duration = Duration::from_secs(20);
/// A pause that lasts until it is healed.
const FOR_EVER: Duration = Duration::from_secs(600);
