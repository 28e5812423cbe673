//! Looks up single locks of a round in the evidence that was kept.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::evidence::{self, Record};
use crate::faults::Observed;
use crate::job::first_key;
use crate::measure::{Outcome, Round};

use super::RunError;
use super::facts::RoundFacts;
use super::held::{prefix, round_folder};
use super::seen::{STRUCK, Seen};
use super::server_side::{self, Kept, ServerFacts};

/// The round of that number, counted from one, with the timelines of these locks: a policy and the number of a lock that it held.
pub(crate) fn look_up(
    outcome: &Outcome,
    folder: &Path,
    round: usize,
    locks: &[(String, u64)],
) -> Result<Round, RunError> {
    let no_such = |text: String| RunError::NoSuchLock(text);
    let index = round.checked_sub(1);
    let found = index.and_then(|index| Some((outcome.rounds.get(index)?, outcome.scenario.faults.get(index)?)));
    let Some((measured, spec)) = found else {
        let count = outcome.rounds.len();
        return Err(no_such(format!("there is no round {round}: the result has {count}")));
    };
    let (folder, attempt) = folder_of(folder, round)?;
    let (evidence, struck) = evidence_of(&folder)?;
    let seen = Seen::of(&evidence, &struck);
    let file = server_side::file(&folder);
    let prefix = prefix(&outcome.run, round - 1, attempt);
    let server = measured.server.as_ref().filter(|_| file.exists());
    let server = server.map(|side| {
        let kept = Kept {
            path: &file,
            prefix: &prefix,
            offset_ns: side.offset_ns,
            // Nobody counts orphans here.
            finish_ns: u64::MAX,
        };
        ServerFacts::read(&kept, &outcome.scenario, &seen)
    });
    let server = server.transpose()?;
    let struck_ns = measured.fault.struck_ns;
    let facts = RoundFacts {
        scenario: &outcome.scenario,
        spec,
        observed: Observed {
            from_ns: struck_ns,
            to_ns: struck_ns + (measured.fault.observed_ms * 1e6) as u64,
        },
        server: server.as_ref(),
        stall: Duration::ZERO,
        busy: Duration::ZERO,
        evidence: &evidence,
        seen,
    };
    let policies = outcome.scenario.policies();
    let mut timelines = Vec::new();
    for (policy, number) in locks {
        let place = policies.iter().position(|known| known == policy);
        let place = place.ok_or_else(|| no_such(format!("no policy {policy:?}: there are {}", policies.join(", "))))?;
        let timeline = facts.timeline_of(place, policy, first_key(place) + number);
        timelines.push(timeline.ok_or_else(|| no_such(format!("{policy} held no lock {number} in round {round}")))?);
    }
    Ok(Round {
        timelines,
        ..measured.clone()
    })
}

/// Where the evidence of a round lies, and how often the round was run before. A repeated round counts as it was measured last.
fn folder_of(folder: &Path, round: usize) -> Result<(PathBuf, u32), RunError> {
    let attempts = (0..=9)
        .rev()
        .map(|attempt| (folder.join(round_folder(round - 1, attempt)), attempt));
    let kept = |(folder, _): &(PathBuf, u32)| of_worker(folder, 0).exists();
    attempts.into_iter().find(kept).ok_or_else(|| {
        RunError::NoSuchLock(format!(
            "the evidence of round {round} was not kept: run it again with --keep-evidence"
        ))
    })
}

/// What the workers of a round wrote down, in the order of the workers, and what the coordinator did.
fn evidence_of(folder: &Path) -> Result<(Vec<Vec<Record>>, Vec<Record>), RunError> {
    let read = |path: PathBuf| {
        evidence::read(&path).map_err(|source| RunError::System {
            what: format!("read the evidence in {}", path.display()),
            source,
        })
    };
    let files = (0..).map(|number| of_worker(folder, number));
    let evidence = files
        .take_while(|path| path.exists())
        .map(read)
        .collect::<Result<_, _>>()?;
    let struck = folder.join(STRUCK);
    let struck = if struck.exists() { read(struck)? } else { Vec::new() };
    Ok((evidence, struck))
}

fn of_worker(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("evidence-{number}.bin"))
}
