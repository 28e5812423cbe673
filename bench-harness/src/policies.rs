//! The experiment that settles "give up at once" against "retry N times": every policy through the same faults.
//!
//! It is a scenario like any other, built here: the policies hold locks side by side, each fault of each length is a
//! window that all of them share. What the scenario demands comes from the model: no overlap where it says that there
//! is none, some where it says that there must be.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::predict::{Family, Fault, Timings};
use crate::scenario::{
    CommandSpec, Evidence, FaultKind, FaultSpec, Guards, Keys, Length, LockSpec, LockType, Matrix, Model, Redis,
    Scenario, ScenarioError, Scope, ServerEvidence, Time, Workload, nanos,
};

/// What the experiment compares, in which faults.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// The kind of lock.
    pub kind: LockType,
    /// The policies.
    pub policies: Vec<String>,
    /// The faults.
    pub faults: Vec<Window>,
    /// How long each of them lasts, as written: before the scale.
    pub lengths: Vec<Time>,
    /// How many windows of each fault and length.
    pub reps: u32,
    /// How many locks each policy holds in each window.
    pub locks: u32,
    /// Multiplies every time.
    pub scale: f64,
    /// Orders the windows.
    pub seed: u64,
    /// How it is known who owned which lock at the server.
    pub server: ServerEvidence,
}

/// For how long two are at work under a lock, and for how long its holder works when it owns it no longer.
struct Lengths {
    overlap: i64,
    exposure: i64,
}

/// A kind of fault and whom it strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// What it does to renewals.
    pub family: Family,
    /// Whom it strikes.
    pub scope: Scope,
}

/// A fault as the command line names it: a family, and a scope or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    family: Family,
    scope: Option<Scope>,
}

impl Experiment {
    /// The policies that matter most, in the faults that tell them apart: some three minutes.
    pub fn quick() -> Self {
        let window = |family, scope| Window { family, scope };
        let names = [
            "naive-cancel",
            "redisson-3.27",
            "redisson-3.44",
            "retry-3",
            "retry-10",
            "deadline",
        ];
        Self {
            kind: LockType::Kind(leasehold::LockKind::Fenced),
            policies: names.map(str::to_owned).to_vec(),
            faults: vec![
                window(Family::Refuse, Scope::All),
                window(Family::Refuse, Scope::Holders),
                window(Family::Swallow, Scope::Holders),
                window(Family::Pending, Scope::All),
                window(Family::Delivered, Scope::All),
            ],
            lengths: [5, 15, 25, 35].map(|s| Time::millis(s * 1_000)).to_vec(),
            reps: 1,
            locks: 60,
            scale: 0.1,
            seed: 42,
            server: ServerEvidence::Auto,
        }
    }

    /// A part of it with the lease as it is, 30 s: whether the scale changes anything. Some sixteen minutes.
    pub fn unscaled() -> Self {
        let window = |family, scope| Window { family, scope };
        Self {
            policies: crate::scenario::POLICIES.map(|(name, _)| name.to_owned()).to_vec(),
            faults: vec![
                window(Family::Refuse, Scope::Holders),
                window(Family::Swallow, Scope::Holders),
                window(Family::Pending, Scope::All),
                window(Family::Delivered, Scope::All),
            ],
            lengths: [15, 25, 35].map(|s| Time::millis(s * 1_000)).to_vec(),
            locks: 250,
            scale: 1.0,
            ..Self::quick()
        }
    }

    /// Every policy, every fault, eleven lengths, a thousand locks a cell: some thirteen minutes.
    pub fn full() -> Self {
        Self {
            policies: crate::scenario::POLICIES.map(|(name, _)| name.to_owned()).to_vec(),
            faults: Family::ALL
                .into_iter()
                .flat_map(|family| Choice { family, scope: None }.windows())
                .collect(),
            // 0.03, 0.1, 0.2, 1/3, 0.5, 0.6, 2/3, 0.8, 0.9, 1.0 and 1.2 leases.
            lengths: [
                900, 3_000, 6_000, 10_000, 15_000, 18_000, 20_000, 24_000, 27_000, 30_000, 36_000,
            ]
            .map(Time::millis)
            .to_vec(),
            locks: 1_000,
            ..Self::quick()
        }
    }

    /// The scenario that runs it.
    ///
    /// # Errors
    /// [`ScenarioError`], when its times do not fit together: with a lease that the scale makes too short, for one.
    pub fn scenario(&self) -> Result<Scenario, ScenarioError> {
        let mut faults: Vec<FaultSpec> = Vec::new();
        for window in &self.faults {
            for length in &self.lengths {
                let spec = FaultSpec::once(window.kind(), window.scope, Time::millis(4_000), *length);
                faults.extend((0..self.reps).map(|_| spec.clone()));
            }
        }
        // In no order, so that what the machine does in the meantime does not look like the work of one fault.
        fastrand::Rng::with_seed(self.seed).shuffle(&mut faults);
        let mut scenario = Scenario {
            schema: 1,
            name: "policies".to_owned(),
            question: "When a renewal fails, give up at once or try N times?".to_owned(),
            seed: self.seed,
            scale: self.scale,
            // A pause ends up to one tick of the server late.
            redis: Redis {
                config: BTreeMap::from([("hz".to_owned(), "100".to_owned())]),
                ..Redis::default()
            },
            lock: LockSpec {
                kind: self.kind,
                writers_first: false,
                lease: Time::millis(30_000),
                policy: "deadline".to_owned(),
                command: CommandSpec::default(),
            },
            workload: Workload {
                model: Model::Held,
                arrival: None,
                keys: Keys::uniform(self.locks),
                // Long enough to see how late a holder hears that its lock is another's.
                hold: Length::fixed(Duration::from_secs(20).mul_f64(self.scale)),
                wait: Time::millis(5_000),
                read_ratio: None,
                reentry: None,
                counter: false,
                think: None,
                processes: 2,
                clients: 10,
                warm_up: Time::millis(0),
                // A period in which every lock is renewed once.
                duration: Time::millis(10_000),
                honours_lost: true,
                reaction: Time::millis(5),
                step: None,
            },
            guards: Guards::default(),
            stages: Vec::new(),
            faults,
            evidence: Evidence { server: self.server },
            thresholds: Default::default(),
            matrix: Matrix {
                policies: self.policies.clone(),
            },
        };
        // Before the demands: they need a lease that policies can be kept in.
        scenario = scenario.checked("lockbench policies")?;
        for policy in &self.policies {
            self.demand_of(policy, &mut scenario)?;
        }
        demand(&mut scenario, "prediction.mismatches".to_owned(), "== 0")?;
        if scenario.reads_append_only() {
            for metric in ["server.owned_twice", "server.tokens_that_fell"] {
                demand(&mut scenario, metric.to_owned(), "== 0")?;
            }
        }
        scenario.checked("lockbench policies")
    }

    /// What the model says of a policy in these faults, as thresholds.
    fn demand_of(&self, policy: &str, scenario: &mut Scenario) -> Result<(), ScenarioError> {
        // The scenario was checked: there is a model of the policy.
        let Some(timings) = Timings::of(policy, scenario.lease()).map(Timings::without_jitter) else {
            return Ok(());
        };
        let shares = scenario.faults.iter().filter_map(|fault| {
            let family = fault.kind.family()?;
            let asked = nanos(scenario.scaled(fault.length)) as i64;
            let of_fault = |length: i64| {
                let of_phase = move |phase: i64| Fault {
                    family,
                    scope: fault.scope,
                    phase: timings.period.1 * phase / PHASES,
                    length,
                };
                let fates = (0..PHASES).map(of_phase).map(|fault| timings.fate(&fault));
                fates
                    .map(|fate| Lengths {
                        overlap: fate.overlap(0, 10 * timings.lease),
                        exposure: fate.exposure(timings.lease, 0),
                    })
                    .collect::<Vec<_>>()
            };
            let longer = |lengths: Vec<i64>, than: i64| lengths.into_iter().filter(|length| *length > than).count();
            // None is demanded only where a fault that ends a little late brings none either.
            let late = asked + timings.lease / 10;
            let share = |lengths: fn(&Lengths) -> i64| {
                let all = |length: i64| of_fault(length).iter().map(lengths).collect::<Vec<_>>();
                (longer(all(late), 0), longer(all(asked), timings.lease / 10))
            };
            Some([share(|lengths| lengths.overlap), share(|lengths| lengths.exposure)])
        });
        let most = |most: (usize, usize), share: (usize, usize)| (most.0.max(share.0), most.1.max(share.1));
        let [overlaps, exposures] = shares.fold([(0, 0); 2], |all, share| {
            [most(all[0], share[0]), most(all[1], share[1])]
        });
        let is_clear = |(_, clear): (usize, usize)| clear as i64 * 4 >= PHASES;
        if overlaps.0 == 0 {
            for metric in ["overlap.count", "stale.accepted", "stale.rejected"] {
                demand(scenario, format!("{metric}@{policy}"), "== 0")?;
            }
        } else if is_clear(overlaps) {
            demand(scenario, format!("overlap.count@{policy}"), "> 0")?;
        }
        if scenario.reads_append_only() {
            if exposures.0 == 0 {
                demand(scenario, format!("exposure.max@{policy}"), "== 0ms")?;
            } else if is_clear(exposures) {
                demand(scenario, format!("exposure.count@{policy}"), "> 0")?;
            }
        }
        Ok(())
    }
}

fn demand(scenario: &mut Scenario, metric: String, limit: &str) -> Result<(), ScenarioError> {
    let limit = limit.parse().map_err(|message| ScenarioError {
        place: metric.clone(),
        message,
    })?;
    scenario.thresholds.insert(metric, limit);
    Ok(())
}

impl Window {
    /// The fault that has this effect.
    pub fn kind(self) -> FaultKind {
        match (self.family, self.scope) {
            (Family::Refuse, _) => FaultKind::Refuse,
            (Family::Swallow, _) => FaultKind::Swallow,
            (Family::Pending, Scope::All) => FaultKind::PauseWrite,
            (Family::Pending, _) => FaultKind::Hold,
            (Family::Delivered, Scope::All) => FaultKind::FreezeServer,
            (Family::Delivered, _) => FaultKind::Deliver,
            (Family::Frozen, _) => FaultKind::FreezeClient,
        }
    }
}

impl Choice {
    /// What it stands for: a family alone strikes once everybody, once only the holders.
    pub fn windows(self) -> Vec<Window> {
        let scopes = match self.scope {
            Some(scope) => vec![scope],
            None => vec![Scope::All, Scope::Holders],
        };
        let window = |scope| Window {
            family: self.family,
            scope,
        };
        scopes.into_iter().map(window).collect()
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (family, scope) = text
            .split_once('/')
            .map_or((text, None), |(family, scope)| (family, Some(scope)));
        let names = || Family::ALL.map(|family| family.to_string()).join(", ");
        let known = Family::ALL.into_iter().find(|known| known.to_string() == family);
        let family = known.ok_or_else(|| format!("{family:?} is no family of faults: use one of {}", names()))?;
        let scope = match scope {
            None => None,
            Some("all") => Some(Scope::All),
            Some("holders") => Some(Scope::Holders),
            Some("rivals") => Some(Scope::Rivals),
            Some(other) => {
                return Err(format!(
                    "{other:?} is no scope: write {family}/all, {family}/holders or {family}/rivals"
                ));
            }
        };
        Ok(Self { family, scope })
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope {
            None => write!(f, "{}", self.family),
            Some(scope) => write!(f, "{}/{}", self.family, scope),
        }
    }
}

/// So many offsets of the fault after the last renewal, evenly over a period.
const PHASES: i64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(scenario: &Scenario, policy: &str) -> Vec<String> {
        let suffix = format!("@{policy}");
        let of_policy = scenario.thresholds.iter().filter(|(name, _)| name.ends_with(&suffix));
        of_policy
            .map(|(name, limit)| format!("{} {limit}", name.trim_end_matches(&suffix)))
            .collect()
    }

    #[test]
    fn the_model_says_what_is_demanded_of_a_policy() {
        for experiment in [Experiment::quick(), Experiment::unscaled(), Experiment::full()] {
            let scenario = experiment.scenario().unwrap();
            assert_eq!(
                limits(&scenario, "deadline"),
                [
                    "exposure.max == 0ms",
                    "overlap.count == 0",
                    "stale.accepted == 0",
                    "stale.rejected == 0"
                ]
            );
            for policy in ["naive-cancel", "redisson-3.27", "redisson-3.44", "retry-10"] {
                assert_eq!(
                    limits(&scenario, policy),
                    ["exposure.count > 0", "overlap.count > 0"],
                    "{policy}"
                );
            }
            assert!(limits(&scenario, "retry-3").contains(&"overlap.count == 0".to_owned()));
        }
        // Nothing is demanded of what is not known.
        let blind = Experiment {
            server: ServerEvidence::None,
            ..Experiment::quick()
        };
        assert_eq!(
            limits(&blind.scenario().unwrap(), "naive-cancel"),
            ["overlap.count > 0"]
        );
        // Too short to show anything: then nothing is demanded.
        let short = Experiment {
            lengths: vec![Time::millis(600)],
            faults: vec!["refuse/holders".parse::<Choice>().unwrap().windows()[0]],
            ..Experiment::quick()
        };
        assert_eq!(limits(&short.scenario().unwrap(), "naive-cancel"), [""; 0]);
    }

    #[test]
    fn the_full_grid_is_that_of_the_design_and_the_others_are_parts_of_it() {
        let full = Experiment::full().scenario().unwrap();
        assert_eq!(
            (full.faults.len(), full.policies().len(), full.workload.keys.count),
            (88, 8, 1_000)
        );
        let quick = Experiment::quick().scenario().unwrap();
        assert_eq!((quick.faults.len(), quick.policies().len()), (20, 6));
        assert_eq!(quick.lease(), Duration::from_secs(3));
        let unscaled = Experiment::unscaled().scenario().unwrap();
        assert_eq!((unscaled.faults.len(), unscaled.lease()), (12, Duration::from_secs(30)));
        let is_in_full = |fault: &FaultSpec| {
            full.faults
                .iter()
                .any(|f| (f.kind, f.scope) == (fault.kind, fault.scope))
        };
        assert!(unscaled.faults.iter().all(is_in_full));
    }

    #[test]
    fn the_seed_orders_the_windows_and_changes_none() {
        let order = |seed| {
            Experiment {
                seed,
                ..Experiment::quick()
            }
            .scenario()
            .unwrap()
            .faults
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let sorted = |seed| {
            let mut faults = order(seed);
            faults.sort_by_key(|fault| (fault.length, fault.kind.name(), fault.scope.to_string()));
            faults
        };
        assert_eq!(sorted(1), sorted(2));
    }

    #[test]
    fn a_scale_that_leaves_too_short_a_lease_is_refused() {
        let tiny = Experiment {
            scale: 0.001,
            ..Experiment::quick()
        };
        let error = tiny.scenario().unwrap_err();
        assert!(error.message.contains("after scale 0.001"), "{error}");
    }

    #[test]
    fn a_family_strikes_everybody_and_holders_alone_unless_a_scope_is_named() {
        let windows = |text: &str| text.parse::<Choice>().unwrap().windows();
        let kinds: Vec<_> = windows("pending").into_iter().map(Window::kind).collect();
        assert_eq!(kinds, [FaultKind::PauseWrite, FaultKind::Hold]);
        assert_eq!(windows("delivered/all")[0].kind(), FaultKind::FreezeServer);
        assert_eq!(windows("delivered/rivals")[0].kind(), FaultKind::Deliver);
        assert!("pause".parse::<Choice>().unwrap_err().contains("pending"));
        assert!(
            "refuse/nobody"
                .parse::<Choice>()
                .unwrap_err()
                .contains("refuse/holders")
        );
    }
}
