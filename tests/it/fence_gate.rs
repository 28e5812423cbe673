//! The guarded side of fencing: an older token is refused, by the gate and by the SQL clause of its documentation.

use std::time::Duration;

use leasehold::{CallError, FenceError, FenceGate};
use tests::{client, fresh_server, keys, pttl, query};

async fn is_stale(gate: &FenceGate, token: u64, newest: u64) {
    match gate.admit(token).await {
        Err(FenceError::Stale {
            token: refused,
            newest: known,
            ..
        }) => assert_eq!((refused, known), (token, newest)),
        other => panic!("{token}: {other:?}"),
    }
}

#[tokio::test]
async fn the_newest_token_is_admitted_again_and_an_older_one_never() {
    let server = fresh_server();
    let (here, there) = (client(&server).await, client(&server).await);
    let (gate, same) = (FenceGate::new(&here, "n"), FenceGate::new(&there, "n"));
    gate.admit(9).await.unwrap();
    same.admit(10).await.unwrap();
    same.admit(10).await.unwrap();
    is_stale(&gate, 9, 10).await;
    is_stale(&gate, 0, 10).await;
    FenceGate::new(&here, "another").admit(1).await.unwrap();
    assert_eq!(pttl(&server, "leasehold_gate:{n}"), -1, "it has no end");
}

#[tokio::test]
async fn tokens_are_compared_exactly_up_to_the_largest() {
    let server = fresh_server();
    let locks = client(&server).await;
    let gate = FenceGate::new(&locks, "n");
    // Beyond 2^53 neighbours are the same number to Lua.
    gate.admit(u64::MAX).await.unwrap();
    is_stale(&gate, u64::MAX - 1, u64::MAX).await;
    is_stale(&gate, 99, u64::MAX).await;
    gate.admit(u64::MAX).await.unwrap();
}

#[tokio::test]
async fn what_is_no_gate_is_left_alone() {
    let server = fresh_server();
    let locks = client(&server).await;
    query::<()>(&server, redis::cmd("SET").arg("leasehold_gate:{n}").arg("mine"));
    query::<()>(&server, redis::cmd("RPUSH").arg("leasehold_gate:{m}").arg("mine"));
    for name in ["n", "m"] {
        match FenceGate::new(&locks, name).admit(1).await {
            Err(FenceError::Call {
                source: CallError::WrongKeyType { .. },
                ..
            }) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
    let kept: String = query(&server, redis::cmd("GET").arg("leasehold_gate:{n}"));
    assert_eq!(kept, "mine");
    assert!(matches!(
        FenceGate::new(&locks, "").admit(1).await,
        Err(FenceError::EmptyName)
    ));
}

/// Two holders, of which the first overran its lease.
async fn tokens() -> (u64, u64) {
    let server = fresh_server();
    let locks = client(&server).await;
    let lock = locks.fenced("account");
    let stale = lock.acquire().lease_time(Duration::from_millis(100)).await.unwrap();
    stale.lost().await;
    let current = lock.acquire().await.unwrap();
    let gate = FenceGate::new(&locks, "account");
    let (old, new) = (stale.fencing_token().unwrap(), current.fencing_token().unwrap());
    gate.admit(old).await.unwrap();
    gate.admit(new).await.unwrap();
    is_stale(&gate, old, new).await;
    (old, new)
}

#[tokio::test]
async fn a_holder_that_overran_its_lease_writes_neither_past_the_gate_nor_into_the_table() {
    let (old, new) = tokens().await;
    let database = rusqlite::Connection::open_in_memory().unwrap();
    database
        .execute_batch(
            "CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0);
             INSERT INTO account (id, balance) VALUES (1, 0);",
        )
        .unwrap();
    let write = |balance: i64, token: u64| {
        let clause = "UPDATE account SET balance = :balance, fence = :token WHERE id = :id AND fence <= :token";
        // SQL integers are signed: tokens are counts of microseconds at most, far below.
        let values = rusqlite::named_params! { ":balance": balance, ":token": token as i64, ":id": 1 };
        database.execute(clause, values).unwrap()
    };
    assert_eq!(write(10, old), 1);
    assert_eq!(write(20, new), 1);
    assert_eq!(write(30, new), 1, "the same holder writes again");
    assert_eq!(write(99, old), 0, "no row changed: the token is stale");
    let balance: i64 = database
        .query_row("SELECT balance FROM account", [], |row| row.get(0))
        .unwrap();
    assert_eq!(balance, 30);
}

#[tokio::test]
async fn counters_stay_small_and_removing_them_lets_no_token_go_backwards() {
    // G67: one counter a name stays in Redis for ever. They may be removed: the server's time is the floor of the next token.
    let server = fresh_server();
    let locks = client(&server).await;
    let mut tokens = Vec::new();
    for number in 0..500 {
        let lease = locks.fenced(format!("n{number}")).acquire().await.unwrap();
        tokens.push(lease.fencing_token().unwrap());
        lease.release().await.unwrap();
    }
    let counters = keys(&server);
    assert_eq!(counters.len(), 500);
    assert!(counters.iter().all(|key| key.starts_with("redisson_lock_token:{n")));
    let bytes: i64 = query(&server, redis::cmd("MEMORY").arg("USAGE").arg(&counters[0]));
    println!("a counter takes {bytes} bytes with its key");
    query::<()>(&server, redis::cmd("UNLINK").arg(&counters));
    for (number, before) in tokens.into_iter().enumerate() {
        let lease = locks.fenced(format!("n{number}")).acquire().await.unwrap();
        assert!(lease.fencing_token().unwrap() > before);
        lease.release().await.unwrap();
    }
}
