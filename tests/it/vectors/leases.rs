//! Our leases, by who took them in the recording and of which lock.

use std::collections::HashMap;

use leasehold::{AcquireError, Lease};
use serde_json::{Value, json};

/// What is held, by (who, lock), innermost last; and who is behind a holder id, for ever.
#[derive(Default)]
pub(super) struct Leases {
    pub(super) held: HashMap<(String, String), Vec<Lease>>,
    pub(super) names: Vec<(String, String)>,
}

impl Leases {
    /// What the recording calls this result; a lease is kept.
    pub(super) fn take(
        &mut self,
        at: (String, String),
        what: &str,
        result: Result<Option<Lease>, AcquireError>,
    ) -> Value {
        let wants_token = what.ends_with("AndGetToken");
        match result {
            Ok(Some(lease)) => {
                let (client, thread) = at.0.split_once(':').unwrap();
                self.names
                    .push((lease.holder().to_string(), format!("{{{client}}}:{{{thread}}}")));
                // The longest first: an id can be the beginning of another.
                self.names.sort_by_key(|(id, _)| std::cmp::Reverse(id.len()));
                let token = lease.fencing_token();
                self.held.entry(at).or_default().push(lease);
                match what {
                    _ if wants_token => tokens(json!({"value": token})),
                    "lock" | "lockInterruptibly" => json!({"void": true}),
                    _ => json!({"value": true}),
                }
            }
            Ok(None) | Err(AcquireError::WaitLimit { .. }) if wants_token => json!({"value": null}),
            Ok(None) | Err(AcquireError::WaitLimit { .. }) => json!({"value": false}),
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
