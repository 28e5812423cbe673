//! Which fault of a load strikes next: at its time, again and again, or when something has happened.

use std::collections::BTreeMap;

use crate::job::Going;
use crate::scenario::{FaultSpec, Scenario, When, nanos};

/// The faults that have not struck yet. They strike one at a time: one that is due while another lasts comes after it.
#[derive(Debug)]
pub(super) struct Schedule<'a> {
    scenario: &'a Scenario,
    pending: Vec<Pending<'a>>,
    /// When the faults that have a name were over last.
    ended: BTreeMap<&'a str, u64>,
}

#[derive(Debug)]
struct Pending<'a> {
    spec: &'a FaultSpec,
    /// From when on it may strike.
    from_ns: u64,
}

impl<'a> Schedule<'a> {
    /// The faults of a scenario whose measured time begins at `origin_ns`.
    pub(super) fn new(scenario: &'a Scenario, origin_ns: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(scenario.seed);
        let duration = nanos(scenario.scaled(scenario.workload.duration));
        let mut pending = Vec::new();
        for spec in &scenario.faults {
            let first = nanos(scenario.scaled(spec.at));
            let Some(every) = spec.every.map(|every| nanos(scenario.scaled(every))) else {
                let from_ns = origin_ns + first;
                pending.push(Pending { spec, from_ns });
                continue;
            };
            let most = nanos(scenario.scaled(spec.every_jitter.unwrap_or_default()));
            let count = spec.count.map_or(u64::MAX, u64::from);
            for turn in 0..count {
                let at = first + turn * every;
                if at >= duration {
                    break;
                }
                let from_ns = origin_ns + at + rng.u64(0..=most);
                pending.push(Pending { spec, from_ns });
            }
        }
        pending.sort_by_key(|pending| pending.from_ns);
        Self {
            scenario,
            pending,
            ended: BTreeMap::new(),
        }
    }

    /// The next fault, if one is due; it is taken out.
    pub(super) fn due(&mut self, now_ns: u64, seen: Going) -> Option<&'a FaultSpec> {
        let is_due = |pending: &Pending<'_>| {
            let happened = match &pending.spec.when {
                None => true,
                Some(When::Held(count)) => seen.held >= *count,
                Some(When::Waiters(count)) => seen.waiting >= *count,
                Some(When::After { fault, later }) => {
                    let ended = self.ended.get(fault.as_str());
                    ended.is_some_and(|ended| now_ns >= ended + nanos(self.scenario.scaled(*later)))
                }
            };
            happened && now_ns >= pending.from_ns
        };
        let next = self.pending.iter().position(is_due)?;
        Some(self.pending.remove(next).spec)
    }

    /// A fault is over.
    pub(super) fn over(&mut self, spec: &'a FaultSpec, at_ns: u64) {
        if let Some(name) = &spec.name {
            self.ended.insert(name, at_ns);
        }
    }

    /// The faults that never struck.
    pub(super) fn left(&self) -> Vec<&'a FaultSpec> {
        self.pending.iter().map(|pending| pending.spec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{FaultKind, Scope, Time};

    const MS: u64 = 1_000_000;

    fn scenario(faults: Vec<FaultSpec>) -> Scenario {
        let mut scenario = Scenario::read("flash-sale", &[]).unwrap();
        (scenario.faults, scenario.scale) = (faults, 1.0);
        scenario.workload.duration = Time::millis(1_000);
        scenario
    }

    fn fault(at_ms: u64) -> FaultSpec {
        FaultSpec::once(FaultKind::Refuse, Scope::All, Time::millis(at_ms), Time::millis(10))
    }

    /// When each fault is taken, by a look every millisecond.
    fn taken(scenario: &Scenario, seen: impl Fn(u64) -> Going) -> (Vec<u64>, usize) {
        let mut schedule = Schedule::new(scenario, 0);
        let mut taken = Vec::new();
        for ms in 0..1_500 {
            while let Some(spec) = schedule.due(ms * MS, seen(ms)) {
                taken.push(ms);
                schedule.over(spec, (ms + 10) * MS);
            }
        }
        (taken, schedule.left().len())
    }

    #[test]
    fn faults_strike_at_their_times_whatever_their_order_in_the_file() {
        let scenario = scenario(vec![fault(500), fault(200)]);
        assert_eq!(taken(&scenario, |_| Going::default()), (vec![200, 500], 0));
    }

    #[test]
    fn a_repeated_fault_strikes_so_often_or_until_the_end() {
        let mut repeated = fault(100);
        repeated.every = Some(Time::millis(300));
        assert_eq!(
            taken(&scenario(vec![repeated.clone()]), |_| Going::default()).0,
            [100, 400, 700]
        );
        repeated.count = Some(2);
        assert_eq!(
            taken(&scenario(vec![repeated.clone()]), |_| Going::default()).0,
            [100, 400]
        );
        repeated.every_jitter = Some(Time::millis(200));
        let scenario = scenario(vec![repeated]);
        let (first, _) = taken(&scenario, |_| Going::default());
        assert!(
            (100..=300).contains(&first[0]) && (400..=600).contains(&first[1]),
            "{first:?}"
        );
        assert_eq!(
            taken(&scenario, |_| Going::default()).0,
            first,
            "the same seed, the same times"
        );
    }

    #[test]
    fn a_fault_waits_for_what_has_to_happen_first() {
        let mut held = fault(100);
        (held.when, held.name) = (Some("held>=5".parse().unwrap()), Some("first".to_owned()));
        let mut then = fault(0);
        then.when = Some("after(first)+50ms".parse().unwrap());
        let seen = |ms| Going {
            held: ms / 60,
            ..Going::default()
        };
        assert_eq!(taken(&scenario(vec![held.clone(), then]), seen), (vec![300, 360], 0));
        held.when = Some("waiters>=1".parse().unwrap());
        assert_eq!(taken(&scenario(vec![held]), seen), (vec![], 1), "never");
    }
}
