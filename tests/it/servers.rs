//! Servers of our own: started, restarted, frozen, and always ended with their owner.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold_bench::servers::{RedisServer, ServerError, ServerOptions};
use redis::TypedCommands;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use tests::{direct, eventually, fresh_server};

#[test]
fn two_servers_run_side_by_side() {
    let (one, other) = (fresh_server(), fresh_server());
    direct(&one).set("key", "one").unwrap();
    direct(&other).set("key", "other").unwrap();
    assert_eq!(direct(&one).get("key").unwrap().as_deref(), Some("one"));
    assert_ne!(one.pid(), other.pid());
    assert!(one.is_at_least((6, 2)));
    assert!(one.socket().as_os_str().len() < 100);
}

#[test]
fn a_restart_keeps_what_the_append_only_file_holds() {
    let server = RedisServer::start(&ServerOptions {
        append_only: true,
        ..Default::default()
    })
    .unwrap();
    direct(&server).set("key", "kept").unwrap();
    let before = server.pid();
    server.restart().unwrap();
    assert_ne!(server.pid(), before);
    assert_eq!(direct(&server).get("key").unwrap().as_deref(), Some("kept"));
    server.restart_empty().unwrap();
    assert_eq!(direct(&server).get("key").unwrap(), None);
}

#[test]
fn what_a_server_appends_can_be_read_and_cut_while_it_goes_on() {
    let server = RedisServer::start(&ServerOptions {
        append_only: true,
        ..Default::default()
    })
    .unwrap();
    let names = || -> Vec<String> {
        let file = server.append_only().unwrap();
        let (commands, unread) = leasehold_bench::check::commands(&file);
        assert_eq!(unread, 0);
        let of_sets = commands.iter().filter(|words| words[0].eq_ignore_ascii_case(b"SET"));
        of_sets
            .map(|words| String::from_utf8_lossy(words[1]).into_owned())
            .collect()
    };
    direct(&server).set("one", "1").unwrap();
    direct(&server).set("other", "2").unwrap();
    assert_eq!(names(), ["one", "other"]);
    server.cut_append_only().unwrap();
    assert_eq!(names(), [""; 0]);
    direct(&server).set("third", "3").unwrap();
    assert_eq!(names(), ["third"]);
    server.restart().unwrap();
    assert_eq!(direct(&server).get("third").unwrap().as_deref(), Some("3"));
    assert_eq!(
        fresh_server().append_only().unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
}

#[test]
fn a_server_that_shut_itself_down_can_be_restarted() {
    let server = RedisServer::start(&ServerOptions {
        append_only: true,
        ..Default::default()
    })
    .unwrap();
    direct(&server).set("key", "kept").unwrap();
    let pid = server.pid();
    // The answer is the end of the connection.
    let _ = redis::cmd("SHUTDOWN").arg("NOSAVE").exec(&mut direct(&server));
    eventually(LIMIT, || {
        redis::Client::open(server.url()).unwrap().get_connection().is_err()
    });
    server.restart().unwrap();
    assert_ne!(server.pid(), pid);
    assert_eq!(direct(&server).get("key").unwrap().as_deref(), Some("kept"));
}

#[test]
fn a_killed_server_is_gone_until_it_is_restarted() {
    let server = fresh_server();
    let pid = server.pid().unwrap();
    server.kill().unwrap();
    assert!(!is_alive(pid));
    assert_eq!(server.pid(), None);
    assert!(matches!(server.kill(), Err(ServerError::NotRunning)));
    assert!(matches!(server.freeze(), Err(ServerError::NotRunning)));
    server.restart().unwrap();
    direct(&server).ping().unwrap();
}

#[test]
fn a_frozen_server_answers_nothing_until_it_is_thawed() {
    let server = fresh_server();
    let mut connection = direct(&server);
    server.freeze().unwrap();
    connection.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(connection.ping().is_err());
    server.thaw().unwrap();
    direct(&server).ping().unwrap();
}

#[test]
fn dropping_a_server_ends_it_even_when_it_is_frozen() {
    let server = fresh_server();
    let (pid, dir) = (server.pid().unwrap(), server.socket().parent().unwrap().to_owned());
    server.freeze().unwrap();
    server.stop();
    assert!(!is_alive(pid));
    assert!(!dir.exists());
}

#[test]
fn a_server_ends_when_its_owner_is_killed() {
    let owner = Owner::start("serve");
    kill_process(owner.pid(), Signal::KILL).unwrap();
    owner.expect_nothing_left();
}

#[test]
fn a_frozen_server_ends_when_its_owner_is_killed() {
    let owner = Owner::start("freeze");
    kill_process(owner.pid(), Signal::KILL).unwrap();
    owner.expect_nothing_left();
}

#[test]
fn a_server_ends_on_ctrl_c() {
    let owner = Owner::start("serve");
    // The terminal sends it to the whole group; the guardian has to outlive that.
    kill_process_group(owner.pid(), Signal::INT).unwrap();
    owner.expect_nothing_left();
}

#[test]
fn a_server_ends_when_its_owner_panics() {
    Owner::start("panic").expect_nothing_left();
}

#[test]
fn a_server_that_does_not_start_shows_its_log() {
    let options = ServerOptions {
        config: vec!["no-such-option yes".into()],
        ..Default::default()
    };
    let Err(ServerError::NotReady { log }) = RedisServer::start(&options) else {
        panic!("it started")
    };
    assert!(log.contains("no-such-option"), "{log}");
}

/// Not a test: what [`Owner`] runs in a process of its own.
#[test]
#[ignore = "started by other tests"]
fn owner() {
    let Ok(task) = std::env::var(OWNER) else {
        return;
    };
    let server = fresh_server();
    if task == "freeze" {
        server.freeze().unwrap();
    }
    println!("\nserver {} {}", server.pid().unwrap(), server.socket().display());
    assert_ne!(task, "panic", "a panic, as asked for");
    loop {
        std::thread::park();
    }
}

/// Another process that owns a server.
struct Owner {
    process: Child,
    server: u32,
    socket: PathBuf,
}

impl Owner {
    fn start(task: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "servers::owner", "--ignored", "--nocapture"])
            .env(OWNER, task)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let line = stdout
            .lines()
            .map_while(Result::ok)
            .find(|line| line.starts_with("server "))
            .unwrap();
        let mut words = line.split(' ').skip(1);
        Self {
            process,
            server: words.next().unwrap().parse().unwrap(),
            socket: words.next().unwrap().into(),
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn expect_nothing_left(mut self) {
        self.process.wait().unwrap();
        eventually(LIMIT, || !is_alive(self.server));
        eventually(LIMIT, || !self.socket.parent().unwrap().exists());
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Only when a test failed before its end; a process that has ended cannot be killed, which is fine.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn is_alive(pid: u32) -> bool {
    test_kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap()).is_ok()
}

const OWNER: &str = "TESTS_SERVER_OWNER";
const LIMIT: Duration = Duration::from_secs(20);
