//! One scenario of the file, done by our library on a server of its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{LockInfo, Owner};
use leasehold_bench::clock;
use leasehold_bench::servers::RedisServer;
use serde_json::{Value, json};
use tests::messages::Messages;
use tests::{LONG, channels, eventually_async, fresh_server, holders, script_calls};
use tokio::task::JoinHandle;

use super::clients::{Client, client_of, clients};
use super::compare::{Difference, Ours, Tolerance, differences, unexplained};
use super::file::{LockSpec, Row, Scenario, Step, Table};
use super::kinds::{Acquiring, is_held};
use super::leases::Leases;
use super::seen::{queued, raw, state};

/// What came of one replay.
#[derive(Default)]
pub(super) struct Replayed {
    pub(super) steps: usize,
    pub(super) open: Vec<(u32, Difference)>,
    pub(super) idle: Vec<(u32, Row)>,
    /// How long the machine kept the replay waiting.
    pub(super) stalled_ms: i64,
}

/// Replays one scenario.
pub(super) async fn replay(scenario: &Scenario, table: &Table) -> Replayed {
    let mut stage = Stage::new(scenario).await;
    let mut replayed = Replayed::default();
    for step in &scenario.steps {
        replayed.steps += 1;
        let (open, idle) = stage.step(step, &table.of(&scenario.name, step.step)).await;
        replayed.open.extend(open.into_iter().map(|it| (step.step, it)));
        replayed.idle.extend(idle.into_iter().map(|it| (step.step, it)));
    }
    replayed.stalled_ms = stage.lag_ms() - stage.settled_ms;
    replayed
}

/// The server, the clients and what they hold.
struct Stage<'a> {
    scenario: &'a Scenario,
    server: RedisServer,
    messages: Messages,
    /// How many messages were compared already.
    heard: usize,
    clients: BTreeMap<String, Client>,
    owners: HashMap<String, Owner>,
    leases: Arc<Mutex<Leases>>,
    started: HashMap<String, Started>,
    start_ns: u64,
    /// What the file's clock says: only sleeps and waits move it.
    nominal_ms: u64,
    /// How long was waited for differences to go away.
    settled_ms: i64,
}

struct Started {
    task: JoinHandle<Value>,
    since_ns: u64,
}

impl<'a> Stage<'a> {
    async fn new(scenario: &'a Scenario) -> Self {
        let server = fresh_server();
        let clients = clients(scenario, &server).await;
        Stage {
            messages: Messages::listen(&server),
            scenario,
            server,
            heard: 0,
            clients,
            owners: HashMap::new(),
            leases: Arc::default(),
            started: HashMap::new(),
            start_ns: clock::now_ns(),
            nominal_ms: 0,
            settled_ms: 0,
        }
    }

    fn lag_ms(&self) -> i64 {
        let real = i64::try_from(clock::since(self.start_ns).as_millis()).unwrap();
        (real - i64::try_from(self.nominal_ms).unwrap()).max(0)
    }

    /// Does the step and compares, again and again until all is explained or it is clear that it will not be: a waiter that was
    /// woken needs a moment.
    async fn step(&mut self, step: &Step, rows: &[&Row]) -> (Vec<Difference>, Vec<Row>) {
        let start_ns = clock::now_ns();
        let result = self.act(step).await;
        let took_ms = u64::try_from(clock::since(start_ns).as_millis()).unwrap();
        self.nominal_ms += step.ms.or(step.took_ms).unwrap_or(0);
        let done_ns = clock::now_ns();
        loop {
            // In this order: whatever led to the state is among the messages.
            let state = state(&self.server, &self.leases.lock().unwrap());
            let all = self.messages.so_far();
            let ours = Ours {
                result: result.clone(),
                took_ms,
                messages: self.told(step, &all[self.heard..]),
                state,
            };
            let tolerance = self.tolerance();
            let (open, idle) = unexplained(differences(step, &ours, tolerance), rows, &ours, tolerance);
            if open.is_empty() && idle.is_empty() || clock::since(done_ns) > SETTLING {
                self.heard = all.len();
                self.settled_ms += i64::try_from(clock::since(done_ns).as_millis()).unwrap();
                return (open, idle);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn tolerance(&self) -> Tolerance {
        let watchdog = self.scenario.watchdog_ms;
        let renewed = self.nominal_ms >= watchdog / 3;
        Tolerance {
            lag_ms: self.lag_ms(),
            renewed_ms: renewed.then(|| i64::try_from(watchdog).unwrap()),
        }
    }

    async fn act(&mut self, step: &Step) -> Value {
        if let (Some(who), Some(alias)) = (&step.who, &step.lock) {
            return self.call(step, who, alias).await;
        }
        match (step.what.as_str(), &step.who) {
            ("sleep", _) => {
                tokio::time::sleep(Duration::from_millis(step.ms.unwrap_or(0))).await;
                json!({"void": true})
            }
            ("await", Some(who)) => {
                let started = self.started.remove(who).expect("it was started");
                let limit = Duration::from_millis(step.took_ms.unwrap_or(0)) + LONG;
                let result = tokio::time::timeout(limit, started.task).await;
                result.expect("it ends").expect("no panic")
            }
            ("check", Some(who)) => {
                let started = &self.started[who];
                // Long enough for a wake-up that should not be there.
                while !started.task.is_finished() && clock::since(started.since_ns) < Duration::from_millis(300) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                json!({"blocked": !started.task.is_finished()})
            }
            ("interrupt", Some(who)) => {
                let started = self.started.remove(who).expect("it was started");
                started.task.abort();
                let dropped = started.task.await;
                json!({"error": format!("{:?}", dropped.err().map(|error| error.is_cancelled()))})
            }
            ("kill", Some(who)) => {
                self.clients[who].kill();
                // Redis notices as well.
                eventually_async(LONG, || {
                    let leases = self.leases.lock().unwrap();
                    let listening = channels(&self.server);
                    !listening
                        .iter()
                        .any(|channel| leases.named(channel).contains(&format!("{{{who}}}")))
                })
                .await;
                json!({"void": true})
            }
            ("redis", _) => self.raw(step.cmd.as_deref().unwrap_or_default()),
            // Ours writes no latch, so there is none to keep.
            ("keep_latch", _) => json!({"void": true}),
            ("replay_last_unlock", _) => json!("nothing to repeat"),
            (other, _) => panic!("{other} is not known"),
        }
    }

    async fn call(&mut self, step: &Step, who: &str, alias: &str) -> Value {
        let spec = &self.scenario.locks[alias];
        let client = &self.clients[client_of(who)];
        let admin = client.locks.admin();
        let at = (who.to_owned(), alias.to_owned());
        match step.what.as_str() {
            "lock" | "lockInterruptibly" | "lockAndGetToken" | "tryLock" | "tryLockAsync" | "tryLockAndGetToken" => {
                let owner = self.owners.entry(who.to_owned()).or_default();
                let wait_limit = match (step.wait_ms, step.what.as_str()) {
                    (Some(wait), _) => Some(Duration::from_millis(wait)),
                    (None, "tryLock" | "tryLockAsync") => Some(Duration::ZERO),
                    // Redisson's tryLockAndGetToken without arguments waits.
                    (None, _) => None,
                };
                let lease_time = step.lease_ms.map(Duration::from_millis);
                let acquire = client.handles[alias].acquire(owner, wait_limit, lease_time);
                self.acquire(step, at, acquire).await
            }
            "unlock" => {
                let held = self.leases.lock().unwrap().held.get_mut(&at).and_then(Vec::pop);
                let Some(held) = held else {
                    return json!({"error": "no lease to release"});
                };
                match held.release().await {
                    Ok(_) => json!({"void": true}),
                    Err(error) => {
                        // Who was told of a loss lets go of all.
                        self.leases.lock().unwrap().held.remove(&at);
                        json!({"error": error.to_string()})
                    }
                }
            }
            "holdCount" => {
                let leases = self.leases.lock().unwrap();
                let held = leases.held.get(&at).and_then(|held| held.last());
                json!({"value": held.and_then(|held| held.lease()).map_or(0, |lease| lease.hold_count())})
            }
            "getToken" => self.raw(&["GET".into(), format!("redisson_lock_token:{{{}}}", spec.name)]),
            // Ours takes a lock away whatever it is held for, so an operator who means one half looks first.
            "forceUnlock" | "delete" => {
                let found = admin.inspect(spec.name.as_str()).await.unwrap();
                let held = found.as_ref().is_some_and(|info| is_held(info, &spec.kind));
                let released = held && admin.force_release(spec.name.as_str()).await.unwrap();
                json!({"value": released})
            }
            query => {
                let found = admin.inspect(spec.name.as_str()).await.unwrap();
                self.answer(query, &at, spec, found.as_ref())
            }
        }
    }

    /// Waits for the end of the acquire, or, if it is expected to block, until it waits.
    async fn acquire(&mut self, step: &Step, at: (String, String), acquire: Acquiring) -> Value {
        let kind = self.scenario.locks[&at.1].kind.as_str();
        let parts = &self.scenario.locks[&at.1].of;
        let (leases, what, who) = (self.leases.clone(), step.what.clone(), at.0.clone());
        let work = async move {
            let result = acquire.await;
            leases.lock().unwrap().take(at, &what, result)
        };
        if !step.start {
            let result = work.await;
            if kind == "red" {
                // Its lease has an id on each master.
                let holders = parts.iter().flat_map(|part| holders(&self.server, part));
                let strangers = holders.map(|(id, _)| id);
                self.leases.lock().unwrap().name_strangers(strangers, &who);
            }
            return result;
        }
        let (calls, started) = (script_calls(&self.server), tokio::spawn(work));
        eventually_async(LONG, || {
            started.is_finished()
                || match kind {
                    "fair" => self.leases.lock().unwrap().name_strangers(queued(&self.server), &who),
                    // The second attempt comes when the waiter is subscribed.
                    _ => script_calls(&self.server) >= calls + 2,
                }
        })
        .await;
        let blocked = !started.is_finished();
        let since_ns = clock::now_ns();
        self.started.insert(
            who,
            Started {
                task: started,
                since_ns,
            },
        );
        json!({"blocked": blocked})
    }

    fn answer(&self, query: &str, at: &(String, String), spec: &LockSpec, found: Option<&LockInfo>) -> Value {
        match query {
            "isLocked" => json!({"value": found.is_some_and(|info| is_held(info, &spec.kind))}),
            "remainTTL" => {
                let left = found.map(|info| {
                    info.time_left
                        .map_or(-1, |left| i64::try_from(left.as_millis()).unwrap())
                });
                json!({"value": left.unwrap_or(-2)})
            }
            "heldByMe" => {
                let leases = self.leases.lock().unwrap();
                let mine = leases.held.get(at).and_then(|held| held.last()?.lease());
                let field = mine.map(|lease| match spec.kind.as_str() {
                    "write" => format!("{}:write", lease.holder()),
                    _ => lease.holder().to_string(),
                });
                let holders = found.iter().flat_map(|info| &info.holders);
                json!({"value": holders.into_iter().any(|holder| Some(&holder.id) == field.as_ref())})
            }
            other => panic!("{other} is not known"),
        }
    }

    /// What was published, in the words of the file and without what is chance.
    fn told(&self, step: &Step, messages: &[(String, String)]) -> Vec<(String, String)> {
        let leases = self.leases.lock().unwrap();
        let named = messages
            .iter()
            .map(|(channel, payload)| (leases.named(channel), payload.clone()));
        let mut told: Vec<_> = named.collect();
        let mut kinds = self.scenario.locks.values().map(|spec| spec.kind.as_str());
        if kinds.any(|kind| kind == "fair") {
            // A waiter that happens to ask before the head has answered tells it once more.
            told.dedup();
        }
        if step
            .lock
            .as_ref()
            .is_some_and(|alias| self.scenario.locks[alias].kind == "red")
        {
            // All masters are asked at once, and any of them may be the first to speak.
            told.sort();
        }
        told
    }

    fn raw(&self, words: &[String]) -> Value {
        raw(&self.server, words, &self.leases.lock().unwrap())
    }
}

/// How long a woken waiter may take; only a difference that stays is reported.
const SETTLING: Duration = Duration::from_secs(2);
