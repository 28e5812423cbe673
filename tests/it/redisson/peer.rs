//! A real Redisson in a process of its own: `bench-harness/peers/redisson`, one JSON line an order.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// What a call came to: its value, or the name of the exception.
pub(super) type Answer = Result<Value, String>;

/// A Redisson client. It is killed when it is dropped.
pub(super) struct Peer {
    process: Child,
    orders: Mutex<ChildStdin>,
    waiting: Waiting,
    next: AtomicU64,
}

type Waiting = Arc<Mutex<HashMap<u64, mpsc::Sender<Answer>>>>;

/// A call under way.
pub(super) struct Pending(mpsc::Receiver<Answer>);

/// Says so, and why, if the peer cannot be had here. In CI it has to be.
pub(super) fn is_missing() -> bool {
    let Err(reason) = build() else { return false };
    let is_ci = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty());
    assert!(!is_ci, "tests against Redisson have to run in CI: {reason}");
    println!("not run against Redisson: {reason}");
    true
}

/// Builds the peer, once; `Err` says why it cannot be had here.
fn build() -> &'static Result<(), String> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    BUILT.get_or_init(|| {
        for (program, argument, what) in [("java", "-version", "a JDK"), ("mvn", "-v", "Maven")] {
            let found = Command::new(program)
                .arg(argument)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if !found.is_ok_and(|status| status.success()) {
                return Err(format!("{what} is missing (`{program}` does not run)"));
            }
        }
        let built = Command::new(script()).arg("--build").stdin(Stdio::null()).output();
        match built {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => {
                let log = String::from_utf8_lossy(&output.stderr).into_owned();
                Err(format!(
                    "the peer could not be built: {}",
                    log.lines().next().unwrap_or_default()
                ))
            }
            Err(error) => Err(format!("the peer could not be built: {error}")),
        }
    })
}

impl Peer {
    /// Starts a client of the server at this address; blocks for some seconds.
    pub(super) fn start(url: &str, watchdog: Duration, fair_wait: Duration) -> Self {
        let mut process = Command::new(script())
            .arg(url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the script is there");
        let waiting = Waiting::default();
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        thread::spawn({
            let waiting = waiting.clone();
            move || {
                for line in answers.lines().map_while(Result::ok) {
                    hear(&waiting, &line);
                }
                // Its end is the end of all calls.
                waiting.lock().unwrap().clear();
            }
        });
        let peer = Peer {
            orders: Mutex::new(process.stdin.take().expect("piped")),
            process,
            waiting,
            next: AtomicU64::new(1),
        };
        let ms = |time: Duration| u64::try_from(time.as_millis()).expect("small");
        let settings = json!({
            "op": "connect", "redis": url, "watchdog_ms": ms(watchdog), "fair_wait_ms": ms(fair_wait),
        });
        peer.order(settings).wait().expect("it connects");
        peer
    }

    /// Begins a call of a lock method by a thread of the peer.
    pub(super) fn begin(&self, thread: u64, method: &str, lock: &str, more: Value) -> Pending {
        let mut order = json!({"op": method, "lock": lock, "thread": thread});
        if let (Some(order), Value::Object(more)) = (order.as_object_mut(), more) {
            order.extend(more);
        }
        self.order(order)
    }

    /// Calls a lock method by thread 1 and waits for its end.
    pub(super) fn call(&self, method: &str, lock: &str) -> Answer {
        self.begin(1, method, lock, json!({})).wait()
    }

    /// Makes a lock of this kind, and tells what the other orders call it by. A multi lock is of this name and one more.
    pub(super) fn open(&self, kind: &str, name: &str) -> String {
        let alias = format!("{kind} {name}");
        let of = match kind {
            "multi" => vec![
                self.open("reentrant", name),
                self.open("reentrant", &format!("{name}-too")),
            ],
            _ => Vec::new(),
        };
        self.order(json!({"op": "open", "lock": alias, "kind": kind, "name": name, "of": of}))
            .wait()
            .expect("a kind that it knows");
        alias
    }

    /// Ends it as a crash does (SIGKILL).
    pub(super) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Fails only when it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn order(&self, mut order: Value) -> Pending {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, pending) = mpsc::channel();
        self.waiting.lock().unwrap().insert(id, answer);
        order["id"] = json!(id);
        let mut orders = self.orders.lock().unwrap();
        orders
            .write_all(format!("{order}\n").as_bytes())
            .expect("the peer is alive");
        Pending(pending)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.end();
    }
}

impl Pending {
    /// Waits for the end of the call.
    pub(super) fn wait(&self) -> Answer {
        self.within(ANSWER_LIMIT).expect("the peer answers")
    }

    /// Waits this long for the end of the call.
    pub(super) fn within(&self, limit: Duration) -> Option<Answer> {
        self.0.recv_timeout(limit).ok()
    }

    /// Whether the call still waits.
    pub(super) fn is_blocked(&self) -> bool {
        matches!(self.0.try_recv(), Err(mpsc::TryRecvError::Empty))
    }
}

fn hear(waiting: &Waiting, line: &str) {
    let answer: Value = serde_json::from_str(line).expect("JSON lines only");
    let Some(caller) = answer["id"].as_u64().and_then(|id| waiting.lock().unwrap().remove(&id)) else {
        return;
    };
    let result = match answer["ok"].as_bool() {
        Some(true) => Ok(answer["value"].clone()),
        _ => Err(answer["error"].as_str().unwrap_or_default().to_owned()),
    };
    // Nobody may be waiting any more.
    let _ = caller.send(result);
}

fn script() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../bench-harness/peers/redisson/run.sh")
}

/// Starting a JVM on a busy machine takes long; only a broken peer takes this long.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
