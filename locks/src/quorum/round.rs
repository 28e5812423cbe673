//! Acquiring a majority: rounds in which every master is asked once.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Majority, Members};
use crate::acquire;
use crate::clock;
use crate::error::{AcquireError, AdoptError};
use crate::hand_off::{self, HandedOff};
use crate::lease::Single;
use crate::options::{AcquireOptions, Terms};
use crate::owner::Owner;
use crate::target::Node;

/// Acquires on a majority, waiting for it if need be.
pub(crate) async fn acquire(members: Members, options: AcquireOptions) -> Result<Majority, AcquireError> {
    let (mut bid, terms) = Bid::new(members, options)?;
    let start = clock::now();
    let end = terms.wait_limit.map(|limit| start.plus(limit));
    let first = bid.members.nodes[0].clone();
    let longest_silence = first.client.watchdog_time;
    // Only so that it is seen to wait: each waiter asks for itself.
    let _waiting = first.client.queues.enter(first.mode.name(), first.mode.part());
    let (mut answered, mut pause) = (start, FIRST_PAUSE);
    loop {
        let refusals = match bid.round().await? {
            Ok(majority) => return Ok(majority),
            Err(refusals) => refusals,
        };
        let now = clock::now();
        if refusals.is_busy() {
            answered = now;
        }
        let is_over = end.map_or(now.since(answered) >= longest_silence, |end| now >= end);
        if is_over {
            return Err(refusals.into_error(&bid.members, now.since(start)));
        }
        // At random, so that callers who split the masters among them do not do so again.
        let drawn = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        tokio::time::sleep(end.map_or(drawn, |end| drawn.min(end.since(now)))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Acquires on a majority if it is free.
pub(crate) async fn try_acquire(members: Members, options: AcquireOptions) -> Result<Option<Majority>, AcquireError> {
    let (mut bid, _) = Bid::new(members, options)?;
    let start = clock::now();
    match bid.round().await? {
        Ok(majority) => Ok(Some(majority)),
        Err(refusals) if refusals.is_busy() => Ok(None),
        Err(refusals) => Err(refusals.into_error(&bid.members, clock::now().since(start))),
    }
}

/// Takes over what was handed off, on a majority.
pub(super) async fn adopt(members: Members, handed_off: &HandedOff) -> Result<Majority, AdoptError> {
    let bid = Bid::adopted(members, handed_off);
    let (nodes, needed, name) = (&bid.members.nodes, bid.members.majority(), handed_off.name());
    let mut asked = JoinSet::new();
    for (index, from) in handed_off.holders() {
        let Some(node) = nodes.get(*index).cloned() else {
            return Err(AdoptError::Malformed);
        };
        let (index, from, handed_off, owner) = (*index, from.clone(), handed_off.clone(), bid.owner.clone());
        let adopting = async move { hand_off::adopt(node, &handed_off, &from, Some(&owner)).await };
        let within = timeout(bid.budget, adopting);
        asked.spawn(async move { (index, within.await) });
    }
    let mut adopted = Vec::new();
    let missing = || Some("not held when it was handed off".to_owned());
    let mut reasons: Vec<Option<String>> = nodes.iter().map(|_| missing()).collect();
    let (mut gone, mut outcome_unknown) = (nodes.len() - handed_off.holders().len().min(nodes.len()), false);
    while let Some(answer) = asked.join_next().await {
        let Ok((index, answer)) = answer else { continue };
        reasons[index] = match answer {
            Ok(Ok(lease)) => {
                adopted.push((index, lease));
                None
            }
            Ok(Err(error)) => {
                gone += usize::from(matches!(error, AdoptError::Gone { .. }));
                outcome_unknown |= error.outcome_unknown();
                Some(with_source(&error))
            }
            Err(_) => {
                outcome_unknown = true;
                Some(format!("no answer within {:?}", bid.budget))
            }
        };
    }
    if adopted.iter().filter(|(_, lease)| lease.is_valid()).count() >= needed {
        return Ok(Majority::new(&bid, adopted, JoinSet::new()));
    }
    match gone > nodes.len() - needed {
        true => Err(AdoptError::Gone { name }),
        false => Err(AdoptError::NoQuorum {
            name,
            needed,
            outcome_unknown,
            masters: reasons,
        }),
    }
}

/// What is asked of every master.
pub(super) struct Bid {
    pub(super) members: Members,
    /// With an owner, the same on all masters.
    pub(super) options: AcquireOptions,
    pub(super) owner: Owner,
    pub(super) renewed: bool,
    /// How long one master may take: one that hangs must not use up the lease of the others.
    budget: Duration,
    /// How often any of them was asked.
    pub(super) asked: u32,
}

/// One master's answer.
pub(super) type Answer = (usize, Result<Single, Refusal>);

impl Bid {
    fn new(members: Members, options: AcquireOptions) -> Result<(Self, Terms), AcquireError> {
        let client = &members.nodes[0].client;
        let terms = options.clone().check(client.watchdog_time, &client.policy)?;
        let owner = terms.owner.clone().unwrap_or_default();
        let bid = Bid {
            options: options.owner(&owner),
            owner,
            renewed: terms.renewed,
            budget: budget(terms.timings.lease),
            asked: 0,
            members,
        };
        Ok((bid, terms))
    }

    /// What is asked again of masters that are missing, once a hold was adopted.
    fn adopted(members: Members, handed_off: &HandedOff) -> Self {
        let owner = Owner::new();
        Bid {
            options: AcquireOptions::new().owner(&owner),
            owner,
            renewed: handed_off.is_renewed(),
            budget: budget(handed_off.lease()),
            asked: handed_off.holders().len() as u32,
            members,
        }
    }

    /// Asks every master once: a majority, or why there is none.
    async fn round(&mut self) -> Result<Result<Majority, Refusals>, AcquireError> {
        let (nodes, majority) = (&self.members.nodes, self.members.majority());
        let mut asked = JoinSet::new();
        for (index, node) in nodes.iter().enumerate() {
            asked.spawn(ask(index, node.clone(), self.options.clone(), self.budget));
        }
        self.asked += nodes.len() as u32;
        let mut granted: Vec<(usize, Single)> = Vec::new();
        let mut refused: Vec<Option<Refusal>> = nodes.iter().map(|_| None).collect();
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok((index, Ok(lease))) => granted.push((index, lease)),
                Ok((index, Err(refusal))) => refused[index] = Some(refusal),
                Err(_) => continue,
            }
            // What was granted to begin with may have ended meanwhile.
            let valid = granted.iter().filter(|(_, lease)| lease.is_valid()).count();
            if valid >= majority {
                return Ok(Ok(Majority::new(self, granted, asked)));
            }
            if refused.iter().flatten().count() > nodes.len() - majority {
                break;
            }
        }
        // All of it is given back before the next try, so that what is left does not stand in our own way.
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok((index, Ok(lease))) => granted.push((index, lease)),
                Ok((index, Err(refusal))) => refused[index] = Some(refusal),
                Err(_) => {}
            }
        }
        let mut releases = JoinSet::new();
        for (_, lease) in granted {
            releases.spawn(timeout(self.budget, lease.release()));
        }
        while releases.join_next().await.is_some() {}
        Refusals(refused).unless_final(nodes.len() - majority).map(Err)
    }
}

/// Why one master did not grant the lock.
pub(super) enum Refusal {
    Busy,
    /// It gave no answer, or none that counts.
    Silent {
        reason: String,
        outcome_unknown: bool,
    },
    /// Asking again would change nothing.
    Final(AcquireError),
}

/// Why each master did not grant the lock; `None`: it did, and was given back.
struct Refusals(Vec<Option<Refusal>>);

impl Refusals {
    /// An error if so many masters refuse for good that the others are no majority: asking again would change nothing.
    fn unless_final(mut self, bearable: usize) -> Result<Self, AcquireError> {
        let is_final = |refusal: &Option<Refusal>| matches!(refusal, Some(Refusal::Final(_)));
        if self.0.iter().filter(|refusal| is_final(refusal)).count() > bearable
            && let Some(first) = self.0.iter_mut().find(|refusal| is_final(refusal))
            && let Some(Refusal::Final(error)) = first.take()
        {
            return Err(error);
        }
        Ok(self)
    }

    /// Whether a majority answered: then it is others that hold the lock, or a part of it.
    fn is_busy(&self) -> bool {
        let answered = self
            .0
            .iter()
            .filter(|refusal| matches!(refusal, None | Some(Refusal::Busy)));
        answered.count() > self.0.len() / 2
    }

    fn into_error(self, members: &Members, waited: Duration) -> AcquireError {
        let name = members.name().to_string();
        if self.is_busy() {
            return AcquireError::WaitLimit { name, waited };
        }
        let unknown = |refusal: &Refusal| {
            matches!(
                refusal,
                Refusal::Silent {
                    outcome_unknown: true,
                    ..
                }
            )
        };
        AcquireError::NoQuorum {
            name,
            waited,
            needed: members.majority(),
            outcome_unknown: self.0.iter().flatten().any(unknown),
            masters: self.0.into_iter().map(|refusal| refusal.map(Refusal::reason)).collect(),
        }
    }
}

impl Refusal {
    fn reason(self) -> String {
        match self {
            Refusal::Busy => "busy".into(),
            Refusal::Silent { reason, .. } => reason,
            Refusal::Final(error) => with_source(&error),
        }
    }
}

/// Asks one master once.
pub(super) async fn ask(index: usize, node: Node, options: AcquireOptions, budget: Duration) -> Answer {
    let answer = match timeout(budget, acquire::try_acquire(node.client, node.mode, options)).await {
        Ok(Ok(Some(lease))) => Ok(lease),
        Ok(Ok(None)) => Err(Refusal::Busy),
        Ok(Err(error)) if error.is_retryable() => Err(Refusal::Silent {
            reason: with_source(&error),
            outcome_unknown: error.outcome_unknown(),
        }),
        Ok(Err(error)) => Err(Refusal::Final(error)),
        Err(_) => Err(Refusal::Silent {
            reason: format!("no answer within {budget:?}"),
            outcome_unknown: true,
        }),
    };
    (index, answer)
}

fn with_source(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// How long one master may take for a lease of this length.
fn budget(lease: Duration) -> Duration {
    (lease / 10).clamp(SHORTEST_BUDGET, LONGEST_BUDGET)
}

/// One master's answer should take milliseconds; RedLock asks for a small part of the lease.
const SHORTEST_BUDGET: Duration = Duration::from_millis(20);
pub(super) const LONGEST_BUDGET: Duration = Duration::from_millis(500);
/// Between rounds.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    fn silent() -> Option<Refusal> {
        Some(Refusal::Silent {
            reason: "no answer".into(),
            outcome_unknown: true,
        })
    }

    fn final_one() -> Option<Refusal> {
        Some(Refusal::Final(AcquireError::EmptyName))
    }

    #[test]
    fn busy_is_what_a_majority_says_and_a_split_vote_too() {
        let is_busy = |refusals: Vec<Option<Refusal>>| Refusals(refusals).is_busy();
        assert!(is_busy(vec![Some(Refusal::Busy), Some(Refusal::Busy), silent()]));
        assert!(
            is_busy(vec![None, Some(Refusal::Busy), silent()]),
            "granted here, taken there"
        );
        assert!(!is_busy(vec![None, silent(), silent()]));
        assert!(!is_busy(vec![Some(Refusal::Busy), silent(), final_one()]));
    }

    #[test]
    fn only_what_leaves_no_majority_is_final() {
        let ends = |refusals: Vec<Option<Refusal>>| Refusals(refusals).unless_final(1).is_err();
        assert!(!ends(vec![final_one(), Some(Refusal::Busy), None]));
        assert!(ends(vec![silent(), final_one(), final_one()]));
    }

    #[test]
    fn one_master_gets_a_small_part_of_the_lease_and_time_for_a_round_trip() {
        assert_eq!(budget(Duration::from_millis(10)), SHORTEST_BUDGET);
        assert_eq!(budget(Duration::from_secs(1)), Duration::from_millis(100));
        assert_eq!(budget(Duration::from_secs(60)), LONGEST_BUDGET);
    }
}
