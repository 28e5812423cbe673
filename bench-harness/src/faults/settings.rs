//! Faults of the server that are a setting: made by admin commands, and undone by others.

use super::{FaultError, LIMIT};
use crate::clock;
use crate::servers;

/// Settings that were changed, and how to undo that.
#[derive(Debug)]
pub(super) struct Settings {
    admin_url: String,
    /// In the order in which they are sent.
    undo: Vec<redis::Cmd>,
}

impl Settings {
    /// A replica of a master that is nowhere.
    pub(super) fn read_only(admin_url: String) -> Result<Self, FaultError> {
        let replicaof = |host: &str, port: &str| {
            let mut command = redis::cmd("REPLICAOF");
            command.arg(host).arg(port);
            command
        };
        // Nobody listens on port 1, so nothing is ever copied and no key is lost.
        replicaof("127.0.0.1", "1").exec(&mut servers::connect(&admin_url, LIMIT)?)?;
        Ok(Self {
            admin_url,
            undo: vec![replicaof("NO", "ONE")],
        })
    }

    /// One replica has to confirm, and there is none.
    pub(super) fn no_replicas(admin_url: String) -> Result<Self, FaultError> {
        Self::set(admin_url, &[("min-replicas-to-write", "1")])
    }

    /// No memory, and nothing that may be thrown away.
    pub(super) fn out_of_memory(admin_url: String) -> Result<Self, FaultError> {
        Self::set(admin_url, &[("maxmemory-policy", "noeviction"), ("maxmemory", "1")])
    }

    fn set(admin_url: String, settings: &[(&str, &str)]) -> Result<Self, FaultError> {
        let mut admin = servers::connect(&admin_url, LIMIT)?;
        let mut undo = Vec::new();
        for (name, _) in settings.iter().rev() {
            let (_, before): (String, String) = redis::cmd("CONFIG").arg("GET").arg(name).query(&mut admin)?;
            let mut command = redis::cmd("CONFIG");
            command.arg("SET").arg(name).arg(before);
            undo.push(command);
        }
        let changed = Self { admin_url, undo };
        for (name, value) in settings {
            let set = redis::cmd("CONFIG").arg("SET").arg(name).arg(value).exec(&mut admin);
            if let Err(error) = set {
                // The error that matters is the first.
                let _ = changed.heal();
                return Err(error.into());
            }
        }
        Ok(changed)
    }

    /// Tells when all was as before.
    pub(super) fn heal(self) -> Result<u64, FaultError> {
        let mut admin = servers::connect(&self.admin_url, LIMIT)?;
        for command in &self.undo {
            command.exec(&mut admin)?;
        }
        Ok(clock::now_ns())
    }
}
