//! What is in Redis, and raw commands to it.

use std::collections::BTreeMap;

use leasehold_bench::servers::RedisServer;
use serde_json::{Value, json};
use tests::{direct, query};

use super::leases::{Leases, tokens};

/// All that is in Redis, in the words of the file: key -> value and time to live.
pub(super) fn state(server: &RedisServer, leases: &Leases) -> BTreeMap<String, (Value, i64)> {
    let mut redis = direct(server);
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis).unwrap();
    let mut state = BTreeMap::new();
    for key in keys {
        let kind: String = redis::cmd("TYPE").arg(&key).query(&mut redis).unwrap();
        let value = match kind.as_str() {
            "hash" => {
                let fields: BTreeMap<String, String> = redis::cmd("HGETALL").arg(&key).query(&mut redis).unwrap();
                let fields = fields.into_iter().map(|(field, n)| (leases.named(&field), n));
                json!(fields.collect::<BTreeMap<_, _>>())
            }
            "list" => {
                let items: Vec<String> = redis::cmd("LRANGE").arg(&key).arg(0).arg(-1).query(&mut redis).unwrap();
                json!(items.iter().map(|item| leases.named(item)).collect::<Vec<_>>())
            }
            "zset" => {
                let mut all = redis::cmd("ZRANGE");
                let members: Vec<(String, i64)> = all
                    .arg(&key)
                    .arg("0")
                    .arg("-1")
                    .arg("WITHSCORES")
                    .query(&mut redis)
                    .unwrap();
                let now = now_ms(server);
                let members = members
                    .into_iter()
                    .map(|(member, score)| json!({"member": leases.named(&member), "score_minus_now_ms": score - now}));
                json!(members.collect::<Vec<_>>())
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
            state.insert(leases.named(&key), (value, ttl));
        }
    }
    state
}

/// The holder ids in the queues of fair locks.
pub(super) fn queued(server: &RedisServer) -> Vec<String> {
    let keys: Vec<String> = query(server, redis::cmd("KEYS").arg("redisson_lock_queue:*"));
    let ids = keys
        .iter()
        .flat_map(|key| query::<Vec<String>>(server, redis::cmd("LRANGE").arg(key).arg(0).arg(-1)));
    ids.collect()
}

/// A command from outside, with the placeholders of holders and times filled in.
pub(super) fn raw(server: &RedisServer, words: &[String], leases: &Leases) -> Value {
    let mut command = redis::Cmd::new();
    for word in words {
        let mut word = word.clone();
        for (id, name) in &leases.names {
            word = word.replace(name, id);
        }
        let before = word.strip_prefix("{now-").and_then(|rest| rest.strip_suffix('}'));
        if let Some(before) = before {
            word = (now_ms(server) - before.parse::<i64>().unwrap()).to_string();
        }
        command.arg(word);
    }
    json!({"value": match query::<redis::Value>(server, &command) {
        redis::Value::Int(number) => json!(number),
        redis::Value::Okay => json!("OK"),
        redis::Value::Nil => json!(0),
        redis::Value::BulkString(bytes) => tokens(json!(String::from_utf8_lossy(&bytes))),
        other => panic!("{other:?}"),
    }})
}

/// The time that scores are compared with, in milliseconds since 1970.
fn now_ms(server: &RedisServer) -> i64 {
    let (seconds, micros): (i64, i64) = query(server, &redis::cmd("TIME"));
    seconds * 1_000 + micros / 1_000
}
