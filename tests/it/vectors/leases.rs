//! Our leases, by who took them in the recording and of which lock.

use std::collections::HashMap;

use leasehold::AcquireError;
use serde_json::{Value, json};

use super::kinds::Held;

/// What is held, by (who, lock), innermost last; and who is behind a holder id, for ever.
#[derive(Default)]
pub(super) struct Leases {
    pub(super) held: HashMap<(String, String), Vec<Held>>,
    pub(super) names: Vec<(String, String)>,
}

impl Leases {
    /// Whoever of these holder ids is not known yet is this one from now on. Says whether there was one.
    pub(super) fn name_strangers(&mut self, ids: impl IntoIterator<Item = String>, who: &str) -> bool {
        let before = self.names.len();
        let (client, thread) = who.split_once(':').unwrap();
        for id in ids {
            if id.len() > UUID && !self.names.iter().any(|(known, _)| *known == id) {
                self.names.push((id, format!("{{{client}}}:{{{thread}}}")));
            }
        }
        // The longest first: an id can be the beginning of another.
        self.names.sort_by_key(|(id, _)| std::cmp::Reverse(id.len()));
        self.names.len() > before
    }

    /// With the file's placeholders in place of our holder ids.
    pub(super) fn named(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (id, name) in &self.names {
            text = text.replace(id, name);
        }
        text
    }

    /// What the recording calls this result; a lease is kept.
    pub(super) fn take(
        &mut self,
        at: (String, String),
        what: &str,
        result: Result<Option<Held>, AcquireError>,
    ) -> Value {
        let wants_token = what.ends_with("AndGetToken");
        match result {
            Ok(Some(held)) => {
                let lease = held.lease();
                let token = lease.and_then(|lease| lease.fencing_token());
                self.name_strangers(lease.map(|lease| lease.holder().to_string()), &at.0);
                self.held.entry(at).or_default().push(held);
                match what {
                    _ if wants_token => tokens(json!({"value": token})),
                    "lock" | "lockInterruptibly" => json!({"void": true}),
                    _ => json!({"value": true}),
                }
            }
            Ok(None) | Err(AcquireError::WaitLimit { .. }) if wants_token => json!({"value": null}),
            Ok(None) | Err(AcquireError::WaitLimit { .. } | AcquireError::NoQuorum { .. }) => json!({"value": false}),
            // Refused at once, where Redisson lets it wait for itself.
            Err(AcquireError::WouldDeadlock { .. }) if what == "tryLock" => json!({"value": false}),
            Err(error) => json!({"error": error.to_string()}),
        }
    }
}

/// Our fencing tokens begin at the server's time, so they are never the same twice.
pub(super) fn tokens(value: Value) -> Value {
    let is_token = |text: &str| text.parse::<u64>().is_ok_and(|token| token > 1_000_000_000_000_000);
    match value {
        Value::String(text) if is_token(&text) => json!("{time_us}"),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, tokens(value))).collect(),
        Value::Number(number) if is_token(&number.to_string()) => json!("{time_us}"),
        other => other,
    }
}

/// Ids begin with the client's; shorter ones are the recording's own.
const UUID: usize = 36;
