//! A held lock goes to another process: what arrives there, what two who want it get, and what is left when somebody leaves.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use leasehold::{AcquireOptions, AdoptError, HandOffError, HandedOff, Lease, LockKind, Lockable, Locks};
use leasehold_bench::proxy::{Mode, Proxy};
use leasehold_bench::servers::RedisServer;
use serde_json::{Value, json};
use tests::{LONG, WATCHDOG, client, eventually_async, fresh_server, holders, is_idle, keys, pttl, query, settings};

/// Every sort of lock there is on one master.
fn all(locks: &Locks) -> Vec<Box<dyn Lockable>> {
    let mut all: Vec<Box<dyn Lockable>> = LockKind::ALL
        .iter()
        .map(|kind| locks.lock(*kind, kind.name()))
        .collect();
    all.push(locks.lock_for_reading(LockKind::ReadWrite, "read"));
    all.push(Box::new(locks.multi(["one", "two"])));
    all
}

async fn hold(lock: &dyn Lockable) -> Lease {
    lock.acquire_with(AcquireOptions::new()).await.unwrap()
}

#[tokio::test]
async fn it_is_sent_as_text_and_says_what_it_is() {
    let server = fresh_server();
    let locks = client(&server).await;
    for lock in all(&locks) {
        let lease = hold(&*lock).await;
        let (name, holder) = (lease.name().to_string(), lease.holder().to_string());
        let handed_off = lease.hand_off().await.unwrap();
        let text = serde_json::to_string(&handed_off).unwrap();
        let read: HandedOff = serde_json::from_str(&text).unwrap();
        assert_eq!(read, handed_off, "{text}");
        let names: Vec<String> = read.names().map(|name| name.to_string()).collect();
        assert_eq!(
            (names.join(", "), read.holder(), read.kind()),
            (name, &holder[..], lock.kind())
        );
        locks.adopt(&read).await.unwrap().release().await.unwrap();
    }
    eventually_async(LONG, || is_idle(&locks)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_goes_on_with_it_when_the_first_has_ended() {
    let server = fresh_server();
    let first = client(&server).await;
    let mut handed_off = Vec::new();
    for lock in all(&first) {
        handed_off.push(hold(&*lock).await.hand_off().await.unwrap());
    }
    first.shutdown(LONG).await.unwrap();
    drop(first);
    let mut other = OtherProcess::start(&server, &handed_off);
    let tokens: Vec<Option<u64>> = serde_json::from_str(&other.says()).unwrap();
    let expected: Vec<Option<u64>> = handed_off.iter().map(HandedOff::fencing_token).collect();
    assert_eq!(tokens, expected);
    // Renewed there: without it all would have ended.
    tokio::time::sleep(2 * WATCHDOG).await;
    let rival = client(&server).await;
    for lock in all(&rival) {
        let names = lock.name().to_string();
        // For writing, since another reader would be let in.
        let wanted = rival.lock(lock.kind(), names.split(", ").next().unwrap());
        assert!(
            wanted.try_acquire_with(AcquireOptions::new()).await.unwrap().is_none(),
            "{names}"
        );
    }
    other.tell("give back");
    assert_eq!(other.says(), "given back");
    for lock in all(&rival) {
        let lease = lock.try_acquire_with(AcquireOptions::new()).await.unwrap();
        lease
            .unwrap_or_else(|| panic!("{:?} is free", lock.name()))
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_adopted_that_is_killed_ends_with_its_lease() {
    let server = fresh_server();
    let first = client(&server).await;
    let lease = first.fenced("n").acquire().await.unwrap();
    let token = lease.fencing_token().unwrap();
    let mut other = OtherProcess::start(&server, &[lease.hand_off().await.unwrap()]);
    other.says();
    other.process.kill().unwrap();
    let next = first.fenced("n").acquire().wait_limit(LONG).await.unwrap();
    assert!(next.fencing_token().unwrap() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_who_adopt_at_once_one_goes_on() {
    let server = fresh_server();
    let (first, one, other) = (client(&server).await, client(&server).await, client(&server).await);
    for _ in 0..10 {
        for lock in all(&first) {
            let handed_off = hold(&*lock).await.hand_off().await.unwrap();
            let adopt = |locks: &Locks| {
                let (locks, handed_off) = (locks.clone(), handed_off.clone());
                tokio::spawn(async move { locks.adopt(&handed_off).await })
            };
            let (one, other) = (adopt(&one), adopt(&other));
            let (one, other) = (one.await.unwrap(), other.await.unwrap());
            let (lease, refused) = match (one, other) {
                (Ok(lease), Err(refused)) | (Err(refused), Ok(lease)) => (lease, refused),
                both => panic!("{both:?}"),
            };
            assert!(matches!(refused, AdoptError::Gone { .. }), "{refused}");
            assert!(lease.is_valid());
            lease.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_majority_is_adopted_by_one_or_by_nobody() {
    let servers = [fresh_server(), fresh_server(), fresh_server()];
    let clients = || async {
        let beside = [servers[1].url(), servers[2].url()];
        let builder = settings(&servers[0]).masters_beside(beside.iter().map(String::as_str));
        builder.build().await.unwrap()
    };
    let (first, one, other) = (clients().await, clients().await, clients().await);
    let held = || servers.iter().filter(|server| !holders(server, "n").is_empty()).count();
    let mut adopted = 0;
    for _ in 0..30 {
        let lease = first.quorum().reentrant("n").acquire().wait_limit(LONG).await.unwrap();
        let handed_off = lease.hand_off().await.unwrap();
        let (one, other) = tokio::join!(one.adopt(&handed_off), other.adopt(&handed_off));
        assert!(one.is_err() || other.is_err());
        for lease in [one, other].into_iter().flatten() {
            adopted += 1;
            assert!(lease.is_valid() && lease.masters_held() >= 2);
            lease.release().await.unwrap();
        }
        // What neither has is given back, and does not wait for the end of the lease.
        eventually_async(LONG, || held() == 0).await;
    }
    assert!(adopted > 0);

    // A master less is no hindrance.
    let lease = first.quorum().reentrant("n").acquire().await.unwrap();
    eventually_async(LONG, || lease.masters_held() == 3).await;
    let handed_off = lease.hand_off().await.unwrap();
    let _: i64 = query(&servers[2], redis::cmd("DEL").arg("n"));
    let lease = one.adopt(&handed_off).await.unwrap();
    // It is repaired like any other.
    eventually_async(LONG, || lease.masters_held() == 3).await;
    let refused = client(&servers[0])
        .await
        .adopt(&lease.hand_off().await.unwrap())
        .await
        .unwrap_err();
    assert!(
        matches!(
            refused,
            AdoptError::OtherMasters {
                here: 1,
                handed_off: 3,
                ..
            }
        ),
        "{refused}"
    );
}

#[tokio::test]
async fn what_describes_no_hold_here_is_refused_and_changes_nothing() {
    let (server, elsewhere) = (fresh_server(), fresh_server());
    let (here, there) = (client(&server).await, client(&elsewhere).await);
    let lease = here.reentrant("n").acquire().await.unwrap();
    let handed_off = lease.hand_off().await.unwrap();
    let refused = there.adopt(&handed_off).await.unwrap_err();
    assert!(matches!(refused, AdoptError::Gone { .. }), "{refused}");
    assert!(keys(&elsewhere).is_empty());

    let fields = holders(&server, "n");
    let with = |key: &str, value: Value| -> HandedOff {
        let mut changed = serde_json::to_value(&handed_off).unwrap();
        changed[key] = value;
        serde_json::from_value(changed).unwrap()
    };
    let mut writes = serde_json::to_value(&handed_off).unwrap();
    (writes["kind"], writes["part"]) = (json!("read_write"), json!("write"));
    for (changed, malformed) in [
        (serde_json::from_value(writes).unwrap(), false),
        (with("kind", json!("read_write")), true),
        (with("kind", json!("quorum")), true),
        (with("names", json!([])), true),
        (with("names", json!([[]])), true),
        (with("holders", json!([])), true),
        (with("holders", json!([[0, "somebody:1"]])), false),
    ] {
        let refused = here.adopt(&changed).await.unwrap_err();
        match malformed {
            true => assert!(matches!(refused, AdoptError::Malformed), "{refused}"),
            false => assert!(matches!(refused, AdoptError::Gone { .. }), "{refused}"),
        }
    }
    assert_eq!(holders(&server, "n"), fields);
    here.adopt(&handed_off).await.unwrap().release().await.unwrap();
    here.shutdown(LONG).await.unwrap();
    let refused = here.adopt(&handed_off).await.unwrap_err();
    assert!(matches!(refused, AdoptError::Closed { .. }), "{refused}");
}

#[tokio::test]
async fn an_adoption_that_is_dropped_or_unanswered_leaves_nothing_held() {
    let server = fresh_server();
    let (first, other) = (client(&server).await, client(&server).await);
    for micros in (0..2_000).step_by(100) {
        let handed_off = first.reentrant("n").acquire().await.unwrap().hand_off().await.unwrap();
        match tokio::time::timeout(Duration::from_micros(micros), other.adopt(&handed_off)).await {
            Ok(adopted) => drop(adopted.unwrap()),
            Err(_) => {
                eventually_async(LONG, || is_idle(&other)).await;
                // Either it ran, and was given back; or it did not, and anybody can adopt.
                if !holders(&server, "n").is_empty() {
                    first.adopt(&handed_off).await.unwrap().release().await.unwrap();
                }
            }
        }
        eventually_async(LONG, || holders(&server, "n").is_empty()).await;
    }

    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let settings = Locks::builder().standalone(&leg.url()).watchdog_time(WATCHDOG);
    let silenced = settings
        .command_timeout(Duration::from_millis(500))
        .build()
        .await
        .unwrap();
    let handed_off = first.reentrant("n").acquire().await.unwrap().hand_off().await.unwrap();
    leg.switch(Mode::HoldReplies).unwrap();
    let unknown = silenced.adopt(&handed_off).await.unwrap_err();
    assert!(
        matches!(unknown, AdoptError::Call { .. }) && unknown.outcome_unknown(),
        "{unknown}"
    );
    leg.switch(Mode::Pass).unwrap();
    eventually_async(LONG, || is_idle(&silenced)).await;
    assert_eq!(pttl(&server, "n"), -2, "what it took was given back");
}

/// From here on the server knows the script, so an adoption is one call.
async fn adopted_before(locks: &Locks) {
    let handed_off = hold(&locks.reentrant("loading")).await.hand_off().await.unwrap();
    locks.adopt(&handed_off).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_longest_hold_ends_no_later_for_an_answer_that_took_long() {
    let server = fresh_server();
    let first = client(&server).await;
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    // Its margin is a second.
    let other = Locks::builder()
        .standalone(&leg.url())
        .watchdog_time(Duration::from_secs(10));
    let other = other.build().await.unwrap();
    adopted_before(&first).await;
    let lock = first.reentrant("n");
    let handed_off = lock
        .acquire()
        .max_hold(2 * WATCHDOG)
        .await
        .unwrap()
        .hand_off()
        .await
        .unwrap();
    // As if it came from another machine.
    let mut there = serde_json::to_value(&handed_off).unwrap();
    there["boot"] = json!("another");
    let handed_off: HandedOff = serde_json::from_value(there).unwrap();
    leg.switch(Mode::HoldReplies).unwrap();
    let fields = holders(&server, "n");
    let adopting = tokio::spawn(async move { other.adopt(&handed_off).await });
    eventually_async(LONG, || holders(&server, "n") != fields).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    leg.switch(Mode::Pass).unwrap();
    let lease = adopting.await.unwrap().unwrap();
    let left = pttl(&server, "n");
    let trusted = lease.remaining();
    assert!(
        trusted.as_millis() as i64 <= left,
        "trusted for {trusted:?}, kept for {left} ms"
    );
}

#[tokio::test]
async fn what_is_adopted_while_the_client_is_shut_down_is_given_back() {
    let server = fresh_server();
    let first = client(&server).await;
    let proxy = Proxy::start(&server).unwrap();
    let leg = proxy.leg().unwrap();
    let other = Locks::builder().standalone(&leg.url()).build().await.unwrap();
    adopted_before(&first).await;
    let handed_off = first.reentrant("n").acquire().await.unwrap().hand_off().await.unwrap();
    leg.switch(Mode::HoldReplies).unwrap();
    let fields = holders(&server, "n");
    let adopting = tokio::spawn({
        let other = other.clone();
        async move { other.adopt(&handed_off).await }
    });
    eventually_async(LONG, || holders(&server, "n") != fields).await;
    other.shutdown(LONG).await.unwrap();
    leg.switch(Mode::Pass).unwrap();
    let refused = adopting
        .await
        .unwrap()
        .map(|lease| lease.holder().to_string())
        .unwrap_err();
    assert!(matches!(refused, AdoptError::Closed { .. }), "{refused}");
    eventually_async(LONG, || is_idle(&other) && keys(&server).is_empty()).await;
}

#[tokio::test]
async fn neither_half_is_handed_off_while_its_owner_has_the_other() {
    let server = fresh_server();
    let locks = client(&server).await;
    let (me, lock) = (locks.owner(), locks.read_write("n"));
    let writing = lock.write().acquire().owner(&me).await.unwrap();
    let reading = lock.read().acquire().owner(&me).await.unwrap();
    let HandOffError::HeldAgain { lease: writing } = writing.hand_off().await.unwrap_err() else {
        panic!("its owner reads beside it");
    };
    let HandOffError::HeldAgain { lease: reading } = reading.hand_off().await.unwrap_err() else {
        panic!("its owner writes beside it");
    };
    assert!(writing.is_valid() && reading.is_valid());
    reading.release().await.unwrap();
    let handed_off = writing.hand_off().await.unwrap();
    locks.adopt(&handed_off).await.unwrap().release().await.unwrap();
}

/// A process of its own that adopts what it is given and holds it until it is told otherwise.
struct OtherProcess {
    process: Child,
    orders: Option<ChildStdin>,
    words: BufReader<std::process::ChildStdout>,
}

impl OtherProcess {
    fn start(server: &RedisServer, handed_off: &[HandedOff]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "hand_off::a_process_that_adopts", "--ignored", "--nocapture"])
            .env(URL, server.url())
            .env(HANDED_OFF, serde_json::to_string(handed_off).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let words = BufReader::new(process.stdout.take().unwrap());
        OtherProcess {
            orders: process.stdin.take(),
            process,
            words,
        }
    }

    /// Its next word, past what the test harness prints.
    fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.words.read_line(&mut line).unwrap() > 0, "it has ended");
            if let Some((_, word)) = line.split_once(WORD) {
                return word.trim().to_owned();
            }
        }
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test: the other process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by another test"]
async fn a_process_that_adopts() {
    let (Ok(url), Ok(handed_off)) = (std::env::var(URL), std::env::var(HANDED_OFF)) else {
        return;
    };
    let handed_off: Vec<HandedOff> = serde_json::from_str(&handed_off).unwrap();
    let settings = Locks::builder().standalone(&url).watchdog_time(WATCHDOG);
    let locks = settings.build().await.unwrap();
    let mut adopted = Vec::new();
    for each in &handed_off {
        adopted.push(locks.adopt(each).await.unwrap());
    }
    let tokens: Vec<Option<u64>> = adopted.iter().map(Lease::fencing_token).collect();
    println!("{WORD}{}", serde_json::to_string(&tokens).unwrap());
    let order = tokio::task::spawn_blocking(|| std::io::stdin().lines().next());
    // Its end means that the test is gone.
    if order.await.unwrap().is_some() {
        for lease in adopted {
            lease.release().await.unwrap();
        }
        println!("{WORD}given back");
    }
}

const URL: &str = "LEASEHOLD_TEST_HAND_OFF_URL";
const HANDED_OFF: &str = "LEASEHOLD_TEST_HANDED_OFF";
const WORD: &str = "hand_off says: ";
