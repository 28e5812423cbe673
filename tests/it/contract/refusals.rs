//! What is refused, and how it is said.

use std::time::Duration;

use leasehold::{AcquireError, CallError, DowngradeError, LockKind};
use leasehold_bench::servers::RedisServer;
use tests::{LONG, eventually_async, is_idle, keys, query};

use super::{Bench, Subject, for_a_minute, hold, in_vain, plain};

type Content = (Option<Vec<u8>>, bool, Vec<String>);

fn content(servers: &[RedisServer]) -> Vec<Content> {
    let content = |server| {
        let dump = query(server, redis::cmd("DUMP").arg("n"));
        (dump, tests::pttl(server, "n") == -1, keys(server))
    };
    servers.iter().map(content).collect()
}

pub(super) async fn a_key_that_holds_something_else_is_refused_and_left_alone(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lock = subject.of(&bench.here);
    let mut found: Vec<(&str, Vec<&str>)> = vec![
        ("a string", vec!["SET", "n", "1"]),
        ("a list", vec!["RPUSH", "n", "1"]),
        ("a sorted set", vec!["ZADD", "n", "1", "x"]),
    ];
    // A lock without an end; a lock of the other family with one.
    let other_kind: &[&[&str]] = match subject.kind {
        LockKind::ReadWrite => {
            found.push(("a hash without an end", vec!["HSET", "n", "mode", "read", "x:1", "1"]));
            &[&["HSET", "n", "x:1", "1"], &["PEXPIRE", "n", "60000"]]
        }
        _ => {
            found.push(("a hash without an end", vec!["HSET", "n", "x:1", "1"]));
            &[
                &["HSET", "n", "mode", "write", "x:1:write", "1"],
                &["PEXPIRE", "n", "60000"],
            ]
        }
    };
    let mut cases: Vec<(&str, Vec<Vec<&str>>)> =
        found.into_iter().map(|(what, command)| (what, vec![command])).collect();
    cases.push((
        "another kind of lock",
        other_kind.iter().map(|command| command.to_vec()).collect(),
    ));
    for (what, commands) in cases {
        bench.everywhere(&redis::cmd("FLUSHALL"));
        for command in commands {
            let mut words = redis::Cmd::new();
            words.arg(command);
            bench.everywhere(&words);
        }
        let before = content(&bench.servers);
        for error in [
            lock.acquire_with(plain().wait_limit(LONG)).await.unwrap_err(),
            lock.try_acquire_with(plain()).await.unwrap_err(),
        ] {
            match &error {
                AcquireError::NoTimeToLive { .. } => assert_eq!(what, "a hash without an end"),
                AcquireError::Refused {
                    source: CallError::WrongKeyType { .. },
                    ..
                } => {}
                other => panic!("{what}: {other:?}"),
            }
            assert!(!error.is_retryable() && !error.outcome_unknown(), "{what}");
        }
        eventually_async(LONG, || is_idle(&bench.here)).await;
        assert_eq!(content(&bench.servers), before, "{what}");
    }
}

/// G74: busy, deadline, cancelled, server down, lost all gave the same error.
pub(super) async fn every_way_to_fail_has_an_error_of_its_own(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lock = subject.of(&bench.here);
    let short = Duration::from_millis(50);
    let held = hold(&*subject.rival(&bench.there), for_a_minute()).await;
    let busy = in_vain(&*lock, short).await;
    assert!(
        matches!(busy, AcquireError::WaitLimit { .. }) && busy.is_retryable(),
        "{busy}"
    );
    held.release().await.unwrap();

    let nonsense = lock.acquire_with(plain().lease_time(Duration::ZERO)).await.unwrap_err();
    assert!(
        matches!(nonsense, AcquireError::Times(_)) && !nonsense.is_retryable(),
        "{nonsense}"
    );

    let lost = hold(&*lock, plain()).await;
    bench.everywhere(redis::cmd("DEL").arg("n"));
    let gone = lost.reenter().await.unwrap_err();
    assert!(
        matches!(gone, AcquireError::Lost { .. }) && !gone.is_retryable(),
        "{gone}"
    );
    drop(lost);
    eventually_async(LONG, || is_idle(&bench.here)).await;

    let Bench { servers, here, .. } = bench;
    drop(servers);
    let down = lock.acquire_with(plain().wait_limit(short)).await.unwrap_err();
    match &down {
        AcquireError::Unavailable { .. } => assert_ne!(subject.kind, LockKind::Quorum),
        // Of several masters each has its reason.
        AcquireError::NoQuorum { masters, .. } => assert!(masters.iter().all(Option::is_some), "{down}"),
        other => panic!("{other}"),
    }
    assert!(down.is_retryable(), "{down}");
    assert!(lock.try_acquire_with(plain()).await.is_err(), "not the same as busy");

    let _ = here.shutdown(short).await;
    let closed = lock.acquire_with(plain()).await.unwrap_err();
    assert!(
        matches!(closed, AcquireError::Closed { .. }) && !closed.is_retryable(),
        "{closed}"
    );
}

pub(super) async fn what_is_no_write_lock_is_not_downgraded_and_stays_held(subject: Subject) {
    let bench = Bench::new(subject).await;
    let lease = hold(&*subject.of(&bench.here), plain()).await;
    let writes = subject.kind == LockKind::ReadWrite && !subject.reads;
    match lease.downgrade().await {
        Ok(read) => {
            assert!(writes);
            let reader = bench.there.lock_for_reading(subject.kind, "n");
            let beside = hold(&*reader, for_a_minute()).await;
            let writer = subject.of(&bench.there);
            assert!(writer.try_acquire_with(plain()).await.unwrap().is_none());
            beside.release().await.unwrap();
            read.release().await.unwrap();
        }
        Err(DowngradeError::NotAWriteLock { lease }) => {
            assert!(!writes && lease.is_valid());
            lease.release().await.unwrap();
        }
        Err(other) => panic!("{other}"),
    }
    assert!(bench.is_free(subject).await, "{:?}", keys(bench.server()));
}
