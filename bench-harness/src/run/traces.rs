//! What locks leave on a server that is not ours: made to end by itself, and cleared away.

use super::{RunError, Target, target};

/// Keys of the locks of a run that have no lease. Dropping it removes them.
///
/// A lock itself ends with its lease. The counter of fencing tokens never ends, nor does the queue of a fair lock whose waiters
/// have all been killed; our server takes them with it.
#[derive(Debug)]
pub(super) struct Traces {
    url: String,
    names: Vec<String>,
}

impl Traces {
    /// Lets the counters of these locks end by themselves, should we be killed; nothing if the server is ours.
    pub(super) fn of(target: &Target, names: impl Iterator<Item = String>) -> Result<Option<Self>, RunError> {
        let Target::Theirs { url, .. } = target else {
            return Ok(None);
        };
        let traces = Self {
            url: url.clone(),
            names: names.collect(),
        };
        traces.each(|pipe, name| {
            // Counting up keeps the time that is left.
            pipe.cmd("SET")
                .arg(counter(name))
                .arg(0)
                .arg("EX")
                .arg(A_DAY_S)
                .arg("NX")
                .ignore();
        })?;
        Ok(Some(traces))
    }

    fn each(&self, command: impl Fn(&mut redis::Pipeline, &str)) -> Result<(), RunError> {
        let sent = || {
            let mut connection = target::connect(&self.url)?;
            for some in self.names.chunks(AT_ONCE) {
                let mut pipe = redis::pipe();
                some.iter().for_each(|name| command(&mut pipe, name));
                pipe.exec(&mut connection)?;
            }
            Ok(())
        };
        sent().map_err(|cause: redis::RedisError| target::unreachable(&self.url, &cause))
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        let removed = self.each(|pipe, name| {
            let tables = ["redisson_lock_queue", "redisson_lock_timeout"].map(|table| format!("{table}:{{{name}}}"));
            pipe.cmd("UNLINK").arg(counter(name)).arg(&tables).ignore();
        });
        if let Err(error) = removed {
            eprintln!("keys of this run stay behind, counters for a day: {error}");
        }
    }
}

fn counter(name: &str) -> String {
    format!("redisson_lock_token:{{{name}}}")
}

const A_DAY_S: u32 = 86_400;

/// So many commands in one write.
const AT_ONCE: usize = 200;
