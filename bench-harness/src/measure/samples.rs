//! Outcomes with made-up numbers, for the tests of what is made from outcomes.

use std::collections::BTreeMap;

use super::*;
use crate::scenario::{FaultKind, Scenario, Scope};

fn outcome(name: &str) -> Outcome {
    let scenario = Scenario::read(name, &[]).unwrap();
    Outcome {
        schema: 1,
        run: format!("{name}-test"),
        started_unix_s: 1_790_000_000,
        took_s: 41.5,
        repeat: format!("lockbench run {name} --seed 42"),
        scenario,
        versions: Versions {
            lockbench: "0.1.0".to_owned(),
            redis: "7.0.15".to_owned(),
            ..Versions::default()
        },
        machine: Machine {
            cores: 2,
            cpu: "test <cpu>".to_owned(),
            memory_mib: 4096,
        },
        interrupted: false,
        load: None,
        rounds: Vec::new(),
        grid: None,
        faults: Vec::new(),
        checked: Checked {
            records: 400,
            intervals: 200,
            ..Checked::default()
        },
        stall_max_ms: 3.0,
        metrics: BTreeMap::new(),
        thresholds: Vec::new(),
        findings: Vec::new(),
        verdict: String::new(),
        exit: 0,
    }
}

/// An outcome as a load run gives it, with made-up numbers.
pub(crate) fn load_outcome() -> Outcome {
    let mut outcome = outcome("flash-sale");
    let mut rng = fastrand::Rng::with_seed(1);
    let mut all = histogram();
    let mut series = Vec::new();
    for second in 0..20 {
        let mut each = histogram();
        let rush = (6..13).contains(&second);
        for _ in 0..if rush { 600 } else { 60 } {
            let nanos = 400_000 + (-(1.0 - rng.f64()).ln() * if rush { 3e8 } else { 4e6 }) as u64;
            record(&mut each, nanos);
            record(&mut all, nanos);
        }
        series.push(Second::of(second, &each));
    }
    outcome.load = Some(Load {
        window_s: 20.0,
        acquire: Latency::of(&all),
        service: Latency::of(&all),
        hold: Latency::of(&all),
        generator_lag: Latency::of(&histogram()),
        successes: all.len(),
        throughput_per_s: all.len() as f64 / 20.0,
        attempts_per_success: Some(1.4),
        series,
        little: Some(Little {
            mean_in_system: 3.2,
            rate_per_s: all.len() as f64 / 20.0,
            mean_time_ms: 3.2e3 * 20.0 / all.len() as f64,
            edges: 0.0,
        }),
        ..Load::default()
    });
    outcome.faults = vec![FaultRun {
        kind: FaultKind::PauseWrite,
        scope: Scope::All,
        asked_ms: 2_000.0,
        from_ms: 14_000.0,
        observed_ms: 2_040.0,
        struck_ns: 0,
    }];
    outcome
}

/// An outcome as the grid gives it, with made-up numbers.
pub(crate) fn grid_outcome() -> Outcome {
    let mut outcome = held_outcome();
    outcome.grid = Some(Grid::of(&outcome.rounds, outcome.scenario.scale));
    outcome.rounds.iter_mut().for_each(Round::thin);
    outcome
}

/// An outcome as the demo gives it, with made-up numbers.
pub(crate) fn held_outcome() -> Outcome {
    let mut outcome = outcome("pause-demo");
    for (index, fault) in outcome.scenario.faults.clone().iter().enumerate() {
        let asked_ms = outcome.scenario.scaled(fault.length).as_secs_f64() * 1e3;
        let fault = FaultRun {
            kind: fault.kind,
            scope: fault.scope,
            asked_ms,
            from_ms: 6_500.0,
            observed_ms: asked_ms + 20.0,
            struck_ns: 0,
        };
        outcome.faults.push(fault.clone());
        outcome.rounds.push(round(fault, index as u64));
    }
    let rows = || outcome.rounds.iter().flat_map(|round| &round.policies);
    outcome.checked.overlaps.count = rows().map(|row| row.overlaps.count).sum();
    outcome.checked.overlaps.max_ms = 800.0;
    outcome
}

fn round(fault: FaultRun, index: u64) -> Round {
    let row = |policy: &str, lost: u64, told: Option<f64>| PolicyRow {
        policy: policy.to_owned(),
        held: 60,
        lost,
        needless: lost / 2,
        predicted_lost: lost,
        mismatches: 0,
        in_band: 3,
        told: told.map(|at| Told {
            count: lost,
            min_ms: at - 5.0,
            median_ms: at,
            max_ms: at + 4.0,
        }),
        predicted_told: told.map(|at| Told {
            count: lost,
            min_ms: at,
            median_ms: at,
            max_ms: at,
        }),
        predicted_overlaps: if told.is_none() { (lost, lost) } else { (0, 0) },
        exposure: None,
        orphan: None,
        fencing: Fencing::default(),
        overlaps: match told {
            None => Overlaps {
                count: lost,
                total_ms: lost as f64 * 400.0,
                max_ms: 800.0,
            },
            Some(_) => Overlaps::default(),
        },
        commands_in_fault: 12,
        locks: (0..60)
            .map(|key| LockRow {
                key: index * 1_000 + key,
                renewal_to_heal_ms: fault.observed_ms + key as f64 * 16.0,
                lost: key >= 60 - lost,
                predicted_lost: key >= 60 - lost,
                distance_ms: (key as f64 - (60 - lost) as f64) * 16.0,
                band_ms: 30.0,
                told_ms: told.filter(|_| key >= 60 - lost),
                predicted_told_ms: told.filter(|_| key >= 60 - lost),
                overlap_ms: if told.is_none() { 400.0 } else { 0.0 },
                ended_ms: None,
                wrong: Vec::new(),
            })
            .collect(),
    };
    let policies = vec![
        row("naive-cancel", 60, None),
        row("retry-3", 60, Some(-1_650.0)),
        row("deadline", 14, Some(-298.0)),
    ];
    let timelines = ["naive-cancel", "retry-3", "deadline"]
        .iter()
        .flat_map(|policy| {
            (0..3).map(|key| {
                let silent = *policy == "naive-cancel";
                let end = 2_500.0 + key as f64 * 130.0;
                Timeline {
                    policy: (*policy).to_owned(),
                    key,
                    server: (-2_000.0, end),
                    owned: Vec::new(),
                    exposed: Vec::new(),
                    holder: (-2_000.0, if silent { end + 1_500.0 } else { end - 300.0 }),
                    told: (!silent).then_some(end - 305.0),
                    rivals: vec![(end + 2.0, end + 202.0)],
                    overlaps: if silent { vec![(end + 2.0, end + 202.0)] } else { vec![] },
                }
            })
        })
        .collect();
    let overhead = Overhead {
        held: 180,
        window_s: 4.0,
        commands: 0.3,
        bytes: Some(410.0),
        server_us: 14.2,
    };
    Round {
        fault,
        lease_ms: 3_000.0,
        stall_ms: 3.0,
        late_ms: 0.0,
        busy_ms: 0.0,
        out_of_phase: 0,
        server: None,
        overhead,
        policies,
        timelines,
    }
}

/// The same as if the server's append-only file had been read: holders that nobody told worked on for 1.5 s, the others stopped 0.3 s
/// before their leases ended.
pub(crate) fn of_both_sides(mut outcome: Outcome) -> Outcome {
    for round in &mut outcome.rounds {
        round.server = Some(server_side());
        for row in &mut round.policies {
            let silent = row.told.is_none();
            let of_lost = |length: f64, is_any: bool| Lengths::of((0..row.lost).filter(|_| is_any).map(|_| length));
            (row.exposure, row.orphan) = (Some(of_lost(1_500.0, silent)), Some(of_lost(300.0, !silent)));
        }
        for lane in &mut round.timelines {
            lane.owned = vec![lane.server, lane.rivals[0]];
            lane.exposed
                .extend(lane.told.is_none().then_some((lane.server.1, lane.holder.1)));
        }
    }
    outcome.grid = outcome.grid.map(|_| Grid::of(&outcome.rounds, outcome.scenario.scale));
    outcome
}

/// What a file says of a round in which all went well.
pub(crate) fn server_side() -> ServerSide {
    ServerSide {
        bytes: 123_456,
        read_ms: 1.5,
        holds: 360,
        offset_ns: -1_790_000_000_000_000_000,
        offset_bound_us: Some(12.5),
        unread_bytes: 0,
        owned_twice: 0,
        tokens_that_fell: 0,
        ends_without_time: 0,
        grants_without_work: 0,
        work_without_grant: 0,
    }
}
