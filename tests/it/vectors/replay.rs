//! One scenario of the file, done by our library on a server of its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Lease, LockInfo, Locks, Owner};
use leasehold_bench::clock;
use leasehold_bench::servers::RedisServer;
use serde_json::{Value, json};
use tests::messages::Messages;
use tests::{LONG, direct, eventually_async, fresh_server, script_calls};
use tokio::task::JoinHandle;

use super::compare::{Difference, Ours, Tolerance, differences, unexplained};
use super::file::{LockSpec, Row, Scenario, Step, Table};
use super::kinds::{acquire, is_held, is_known, load_scripts, try_acquire};
use super::leases::{Leases, tokens};

/// What came of one replay.
#[derive(Default)]
pub(super) struct Replayed {
    pub(super) steps: usize,
    pub(super) skipped: usize,
    pub(super) open: Vec<(u32, Difference)>,
    pub(super) idle: Vec<(u32, Row)>,
    /// How long the machine kept the replay waiting.
    pub(super) stalled_ms: i64,
}

/// Replays one scenario; leaves out the steps of locks that the library does not have.
pub(super) async fn replay(scenario: &Scenario, table: &Table) -> Replayed {
    let mut stage = Stage::new(scenario).await;
    let mut replayed = Replayed::default();
    for step in &scenario.steps {
        let spec = step.lock.as_ref().map(|alias| &scenario.locks[alias]);
        let known = match (spec, &step.who) {
            (Some(spec), _) => is_known(&spec.kind),
            (None, Some(who)) => step.what != "await" || stage.started.contains_key(who),
            (None, None) => true,
        };
        if !known {
            replayed.skipped += 1;
            continue;
        }
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
    clients: BTreeMap<String, Locks>,
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
        let mut clients = BTreeMap::new();
        for who in scenario.steps.iter().filter_map(|step| step.who.as_deref()) {
            let name = who.split(':').next().unwrap_or(who).to_owned();
            if let std::collections::btree_map::Entry::Vacant(place) = clients.entry(name) {
                let settings = Locks::builder().standalone(&server.url());
                let settings = settings.watchdog_time(Duration::from_millis(scenario.watchdog_ms));
                place.insert(settings.build().await.expect("a server of our own"));
            }
        }
        if let Some(locks) = clients.values().next() {
            load_scripts(locks).await;
        }
        redis::cmd("FLUSHALL").exec(&mut direct(&server)).unwrap();
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
        let recorded = self.known_part(step);
        let done_ns = clock::now_ns();
        loop {
            let all = self.published();
            let ours = Ours {
                result: result.clone(),
                took_ms,
                messages: all[self.heard..].to_vec(),
                state: self.state(),
            };
            let tolerance = self.tolerance();
            let (open, idle) = unexplained(differences(&recorded, &ours, tolerance), rows, &ours, tolerance);
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
            ("redis", _) => self.raw(step.cmd.as_deref().unwrap_or_default()),
            // Ours writes no latch, so there is none to keep.
            ("keep_latch", _) => json!({"void": true}),
            ("replay_last_unlock", _) => json!("nothing to repeat"),
            (other, _) => panic!("{other} is not known"),
        }
    }

    async fn call(&mut self, step: &Step, who: &str, alias: &str) -> Value {
        let spec = &self.scenario.locks[alias];
        let locks = self.clients[who.split(':').next().unwrap_or(who)].clone();
        let at = (who.to_owned(), alias.to_owned());
        let owner = self.owners.entry(who.to_owned()).or_insert_with(|| locks.owner());
        let lease_time = step.lease_ms.map(Duration::from_millis);
        let wait = step.wait_ms.map(Duration::from_millis).filter(|wait| !wait.is_zero());
        match step.what.as_str() {
            // Redisson's tryLockAndGetToken without arguments waits.
            "lock" | "lockInterruptibly" | "lockAndGetToken" | "tryLock" | "tryLockAsync" | "tryLockAndGetToken"
                if !step.what.starts_with("try")
                    || wait.is_some()
                    || step.what == "tryLockAndGetToken" && step.wait_ms.is_none() =>
            {
                let mut acquire = acquire(&locks, spec).owner(owner);
                if let Some(time) = lease_time {
                    acquire = acquire.lease_time(time);
                }
                if let Some(limit) = wait {
                    acquire = acquire.wait_limit(limit);
                }
                let (leases, what) = (self.leases.clone(), step.what.clone());
                let work = async move {
                    let result = acquire.await.map(Some);
                    leases.lock().unwrap().take(at, &what, result)
                };
                if !step.start {
                    return work.await;
                }
                let (calls, started) = (script_calls(&self.server), tokio::spawn(work));
                // The second attempt comes when the waiter is subscribed.
                eventually_async(LONG, || {
                    started.is_finished() || script_calls(&self.server) >= calls + 2
                })
                .await;
                let blocked = !started.is_finished();
                self.started.insert(
                    who.to_owned(),
                    Started {
                        task: started,
                        since_ns: clock::now_ns(),
                    },
                );
                json!({"blocked": blocked})
            }
            "tryLock" | "tryLockAsync" | "tryLockAndGetToken" => {
                let mut acquire = try_acquire(&locks, spec).owner(owner);
                if let Some(time) = lease_time {
                    acquire = acquire.lease_time(time);
                }
                let result = acquire.await;
                self.leases.lock().unwrap().take(at, &step.what, result)
            }
            "unlock" => {
                let lease = self.leases.lock().unwrap().held.get_mut(&at).and_then(Vec::pop);
                let Some(lease) = lease else {
                    return json!({"error": "no lease to release"});
                };
                match lease.release().await {
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
                json!({"value": held.map_or(0, Lease::hold_count)})
            }
            "getToken" => self.raw(&["GET".into(), format!("redisson_lock_token:{{{}}}", spec.name)]),
            // Ours takes a lock away whatever it is held for, so an operator who means one half looks first.
            "forceUnlock" | "delete" => {
                let found = locks.admin().inspect(spec.name.as_str()).await.unwrap();
                let held = found.as_ref().is_some_and(|info| is_held(info, &spec.kind));
                let released = held && locks.admin().force_release(spec.name.as_str()).await.unwrap();
                json!({"value": released})
            }
            query => {
                let found = locks.admin().inspect(spec.name.as_str()).await.unwrap();
                self.answer(query, &at, spec, found.as_ref())
            }
        }
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
                let mine = leases.held.get(at).and_then(|held| held.last());
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

    /// A command from outside, with the placeholders of holders filled in.
    fn raw(&self, words: &[String]) -> Value {
        let leases = self.leases.lock().unwrap();
        let mut command = redis::Cmd::new();
        for word in words {
            let mut word = word.clone();
            for (id, name) in &leases.names {
                word = word.replace(name, id);
            }
            command.arg(word);
        }
        let reply: redis::Value = command.query(&mut direct(&self.server)).unwrap();
        json!({"value": match reply {
            redis::Value::Int(number) => json!(number),
            redis::Value::Okay => json!("OK"),
            redis::Value::Nil => json!(0),
            redis::Value::BulkString(bytes) => tokens(json!(String::from_utf8_lossy(&bytes))),
            other => panic!("{other:?}"),
        }})
    }

    /// The step without what belongs to locks that are not replayed.
    fn known_part(&self, step: &Step) -> Step {
        let mut step = step.clone();
        step.state.retain(|key, _| self.is_replayed(key));
        step.messages.retain(|(channel, _)| self.is_replayed(channel));
        step
    }

    fn is_replayed(&self, key: &str) -> bool {
        let mut unknown = self.scenario.locks.values().filter(|spec| !is_known(&spec.kind));
        !unknown.any(|spec| !spec.name.is_empty() && key.contains(&spec.name))
    }

    fn published(&self) -> Vec<(String, String)> {
        self.messages.so_far()
    }

    /// All that is in Redis, in the words of the file.
    fn state(&self) -> BTreeMap<String, (Value, i64)> {
        let mut redis = direct(&self.server);
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis).unwrap();
        let mut state = BTreeMap::new();
        for key in keys {
            let kind: String = redis::cmd("TYPE").arg(&key).query(&mut redis).unwrap();
            let value = match kind.as_str() {
                "hash" => {
                    let fields: BTreeMap<String, String> = redis::cmd("HGETALL").arg(&key).query(&mut redis).unwrap();
                    json!(
                        fields
                            .into_iter()
                            .map(|(field, n)| (self.named(&field), n))
                            .collect::<BTreeMap<_, _>>()
                    )
                }
                "string" => {
                    let text: Option<String> = redis::cmd("GET").arg(&key).query(&mut redis).unwrap();
                    tokens(json!(text))
                }
                // It ended in between.
                "none" => continue,
                other => panic!("{key} is a {other}"),
            };
            let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut redis).unwrap();
            if ttl != -2 {
                state.insert(self.named(&key), (value, ttl));
            }
        }
        state
    }

    /// With the file's placeholders in place of our holder ids.
    fn named(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (id, name) in &self.leases.lock().unwrap().names {
            text = text.replace(id, name);
        }
        text
    }
}

/// How long a woken waiter may take; only a difference that stays is reported.
const SETTLING: Duration = Duration::from_secs(2);
