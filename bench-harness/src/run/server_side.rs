//! The server's side of a round, from its append-only file: read at the end, held against what workers wrote down.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::check::{self, Gap, Named, Owned, Work};
use crate::clock;
use crate::job::policy_of;
use crate::measure::{Lengths, ServerSide};
use crate::scenario::{Scenario, nanos};
use crate::servers::RedisServer;

use super::seen::Seen;
use super::ticker::{ServerClock, Ticker};
use super::{RunError, millis, millis_between};

/// Who owned which lock, beside who worked.
pub(super) struct ServerFacts {
    pub(super) side: ServerSide,
    owned: Vec<Owned>,
    /// The hold under which an owner worked.
    holds: BTreeMap<(u64, u64), usize>,
    exposures: Vec<Gap>,
    orphans: Vec<Gap>,
}

/// Which file, and what its numbers mean.
pub(super) struct Kept<'a> {
    pub(super) path: &'a Path,
    /// What names of locks begin with.
    pub(super) prefix: &'a str,
    /// To be added to the server's time.
    pub(super) offset_ns: i64,
    /// When all were told to give their locks back.
    pub(super) finish_ns: u64,
}

/// Empties the file, so that it will hold one round.
pub(super) fn begin(server: &RedisServer, ticker: &Ticker) -> Result<(), RunError> {
    ticker.forget_clock();
    server.cut_append_only().map_err(system("empty the append-only file"))
}

/// Keeps the file beside what the workers wrote, in this folder, and tells how the clocks lie to one another.
pub(super) fn keep(server: &RedisServer, ticker: &Ticker, folder: &Path) -> Result<Option<ServerClock>, RunError> {
    let clock = ticker.tick();
    let bytes = server.append_only().map_err(system("read the append-only file"))?;
    std::fs::write(file(folder), bytes).map_err(system("keep the append-only file"))?;
    Ok(clock)
}

/// Where the file of a round is kept.
pub(super) fn file(folder: &Path) -> PathBuf {
    folder.join("evidence-server.aof")
}

impl ServerFacts {
    /// Reads the file of a round, in which this was seen.
    pub(super) fn read(kept: &Kept<'_>, scenario: &Scenario, seen: &Seen) -> Result<Self, RunError> {
        let Kept {
            path,
            prefix,
            offset_ns,
            finish_ns,
        } = *kept;
        let begin_ns = clock::now_ns();
        let bytes = std::fs::read(path).map_err(system("read the append-only file"))?;
        let (commands, unread) = check::commands(&bytes);
        let read = check::ownership(&commands, nanos(scenario.lease()), offset_ns, |key| named(key, prefix));
        let of_work = check::holds_of(&read.owned, &seen.work);
        let mut worked_under = vec![false; read.owned.len()];
        let mut holds = BTreeMap::new();
        for (work, place) in seen.work.iter().zip(&of_work) {
            if let Some(place) = place {
                worked_under[*place] = true;
                holds.insert((work.key, work.owner), *place);
            }
        }
        let count = |these: usize| these as u64;
        let side = ServerSide {
            bytes: count(bytes.len()),
            read_ms: millis(clock::since(begin_ns)),
            holds: count(read.owned.len()),
            offset_ns,
            offset_bound_us: None,
            unread_bytes: count(unread),
            owned_twice: read.owned_twice,
            tokens_that_fell: read.tokens_that_fell,
            ends_without_time: read.ends_without_tick,
            grants_without_work: count(worked_under.iter().filter(|worked| !**worked).count()),
            work_without_grant: count(of_work.iter().filter(|hold| hold.is_none()).count()),
        };
        Ok(Self {
            side,
            // Who stands still does nothing, but lives.
            exposures: check::exposures(&read.owned, &seen.awake, &check::holds_of(&read.owned, &seen.awake)),
            orphans: check::unattended(&read.owned, &seen.work, &of_work, finish_ns),
            owned: read.owned,
            holds,
        })
    }

    /// The hold under which this owner worked.
    pub(super) fn hold(&self, work: &Work) -> Option<&Owned> {
        let place = self.holds.get(&(work.key, work.owner))?;
        self.owned.get(*place)
    }

    /// Every hold of a lock.
    pub(super) fn holds_of(&self, key: u64) -> impl Iterator<Item = &Owned> {
        self.owned.iter().filter(move |hold| hold.key == key)
    }

    /// Work under a lock that the server did not cover.
    pub(super) fn exposures_of(&self, key: u64) -> impl Iterator<Item = &Gap> {
        self.exposures.iter().filter(move |gap| gap.key == key)
    }

    /// Work that the server did not cover, under the locks of the policy at that index.
    pub(super) fn exposure(&self, index: usize) -> Lengths {
        lengths(&self.exposures, index)
    }

    /// The locks of that policy, owned with nobody at work.
    pub(super) fn orphan(&self, index: usize) -> Lengths {
        lengths(&self.orphans, index)
    }
}

fn lengths(gaps: &[Gap], index: usize) -> Lengths {
    let of_policy = gaps.iter().filter(|gap| policy_of(gap.key) == index);
    Lengths::of(of_policy.map(|gap| millis_between(gap.from, gap.to)))
}

/// What a key of a round is. Names that a lock is made of are those of Redisson.
fn named(key: &[u8], prefix: &str) -> Named {
    let lock = |name: &[u8]| -> Option<u64> {
        let number = name.strip_prefix(prefix.as_bytes())?;
        std::str::from_utf8(number).ok()?.parse().ok()
    };
    let token = || lock(key.strip_prefix(b"redisson_lock_token:{")?.strip_suffix(b"}")?);
    if let Some(number) = lock(key) {
        Named::Lock(number)
    } else if let Some(number) = token() {
        Named::Token(number)
    } else if key
        .strip_suffix(b":tick")
        .is_some_and(|run| prefix.as_bytes().starts_with(run))
    {
        Named::Tick
    } else {
        Named::Other
    }
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> RunError {
    move |source| RunError::System {
        what: what.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_round_are_told_from_those_of_others() {
        let named = |key: &str| named(key.as_bytes(), "lockbench:grid-1-42:3.0:");
        assert_eq!(named("lockbench:grid-1-42:3.0:17"), Named::Lock(17));
        assert_eq!(
            named("redisson_lock_token:{lockbench:grid-1-42:3.0:17}"),
            Named::Token(17)
        );
        assert_eq!(named("lockbench:grid-1-42:tick"), Named::Tick);
        for other in [
            "lockbench:grid-1-42:2.0:17",
            "lockbench:grid-1-42:3.1:17",
            "lockbench:grid-1-42:3.0:",
            "redisson_lock_queue:{lockbench:grid-1-42:3.0:17}",
            "lockbench:other:tick",
        ] {
            assert_eq!(named(other), Named::Other, "{other}");
        }
    }
}
