//! Renewals that leave together: one script over many holds, one answer a hold.

use std::time::Duration;

use crate::clock::Moment;
use crate::lease::FailureCause;
use crate::mode::Renewable;
use crate::owner::HolderId;
use crate::renewal::Answer;
use crate::script::{Call, RENEW, Value};

/// One attempt of a hold, and what it renews.
pub(crate) type Due = (HolderId, u64, Vec<Renewable>);

/// What leaves in one script, to be kept for as long.
pub(crate) struct Batch {
    pub(crate) due: Vec<Due>,
    pub(crate) lease: Duration,
    /// When the last of these attempts is given up.
    pub(crate) until: Moment,
    /// Whether they wait for a link that is being opened, however often that is begun anew.
    pub(crate) waits: bool,
}

/// A script over these holds.
pub(crate) fn renewal_of(due: &[Due], lease: Duration) -> Call {
    renewal(due.iter().flat_map(|(_, _, named)| named), lease)
}

/// The call that keeps these holds alive for this long from now. It creates nothing and shortens nothing.
pub(crate) fn renewal<'a>(named: impl Iterator<Item = &'a Renewable> + Clone, lease: Duration) -> Call {
    let locks: Vec<_> = named
        .clone()
        .map(|renewable| {
            let hash = std::iter::once(renewable.key.key());
            let keys: Vec<&[u8]> = hash.chain(renewable.hold_keys.iter().map(Vec::as_slice)).collect();
            let args = vec![
                Value::Bytes(&renewable.field),
                Value::Number(renewable.hold_keys.len() as u64),
            ];
            (keys, args)
        })
        .collect();
    RENEW.call([], [Value::Number(crate::options::lease_millis(lease))], &locks)
}

/// How the answers of a batch read: one a hold, of so many results each. The worst of a hold's results is its answer.
pub(crate) fn answers(reply: redis::Value, holds: impl Iterator<Item = usize>) -> Option<Vec<Answer>> {
    let redis::Value::Array(results) = reply else {
        return None;
    };
    let mut results = results.into_iter();
    let of_hold = |locks| {
        let mut codes = results.by_ref().take(locks).map(|result| match result {
            redis::Value::Int(code) => Some(code),
            _ => None,
        });
        let codes: Vec<i64> = codes.by_ref().collect::<Option<_>>()?;
        if codes.len() != locks {
            return None;
        }
        match codes {
            codes if codes.contains(&2) => Some(Answer::Clobbered),
            codes if codes.contains(&0) => Some(Answer::No),
            codes if codes.contains(&3) => Some(Answer::Failed(FailureCause::Refused("NOPERM".into()))),
            codes => codes.iter().all(|code| *code == 1).then_some(Answer::Yes),
        }
    };
    holds.map(of_hold).collect()
}

/// More in one script gains nothing and keeps other commands waiting: 100 take 0.7-1.5 ms on Redis 7.0.
pub(crate) const MOST_IN_A_BATCH: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(codes: &[i64], holds: &[usize]) -> Option<Vec<Answer>> {
        let reply = redis::Value::Array(codes.iter().copied().map(redis::Value::Int).collect());
        answers(reply, holds.iter().copied())
    }

    #[test]
    fn a_hold_of_several_locks_is_only_as_good_as_its_worst() {
        let refused = || Answer::Failed(FailureCause::Refused("NOPERM".into()));
        assert_eq!(
            read(&[1, 0, 2, 3, 1, 1, 1, 0, 1, 2], &[1, 1, 1, 1, 2, 2, 2]),
            Some(vec![
                Answer::Yes,
                Answer::No,
                Answer::Clobbered,
                refused(),
                Answer::Yes,
                Answer::No,
                Answer::Clobbered
            ])
        );
        assert_eq!(read(&[1], &[1, 1]), None, "too few answers are none");
        assert_eq!(read(&[7], &[1]), None);
        assert_eq!(answers(redis::Value::Nil, std::iter::once(1)), None);
    }
}
