//! Looks up single locks of a round in the evidence that was kept.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::evidence::{self, Record};
use crate::faults::Observed;
use crate::job::first_key;
use crate::measure::{Outcome, Round};

use super::RunError;
use super::facts::RoundFacts;
use super::seen::{STRUCK, Seen};

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
    let (evidence, struck) = evidence_of(folder, round)?;
    let struck_ns = measured.fault.struck_ns;
    let facts = RoundFacts {
        scenario: &outcome.scenario,
        spec,
        observed: Observed {
            from_ns: struck_ns,
            to_ns: struck_ns + (measured.fault.observed_ms * 1e6) as u64,
        },
        stall: Duration::ZERO,
        busy: Duration::ZERO,
        evidence: &evidence,
        seen: Seen::of(&evidence, &struck),
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

/// What the workers of a round wrote down, in the order of the workers, and what the coordinator did. A repeated round counts as it
/// was measured last.
fn evidence_of(folder: &Path, round: usize) -> Result<(Vec<Vec<Record>>, Vec<Record>), RunError> {
    let again = (1..=9).rev().map(|again| format!("round-{round}-again-{again}"));
    let mut folders = again.chain([format!("round-{round}")]).map(|name| folder.join(name));
    let of_worker = |folder: &Path, number: usize| folder.join(format!("evidence-{number}.bin"));
    let Some(folder) = folders.find(|folder| of_worker(folder, 0).exists()) else {
        return Err(RunError::NoSuchLock(format!(
            "the evidence of round {round} was not kept: run it again with --keep-evidence"
        )));
    };
    let read = |path: PathBuf| {
        evidence::read(&path).map_err(|source| RunError::System {
            what: format!("read the evidence in {}", path.display()),
            source,
        })
    };
    let files = (0..).map(|number| of_worker(&folder, number));
    let evidence = files
        .take_while(|path| path.exists())
        .map(read)
        .collect::<Result<_, _>>()?;
    let struck = folder.join(STRUCK);
    let struck = if struck.exists() { read(struck)? } else { Vec::new() };
    Ok((evidence, struck))
}
