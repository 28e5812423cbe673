//! What a workload must be to make sense.

use std::time::Duration;

use super::super::{Arrival, KeyDist, Keys, Length, Model, Rate, Reentry, Scenario, Time};
use super::{Wrong, ensure};

/// Refuses a workload whose values contradict one another.
pub(super) fn check(scenario: &Scenario) -> Result<(), Wrong> {
    let work = &scenario.workload;
    let (open, held) = (work.model == Model::Open, work.model == Model::Held);
    ensure(open == work.arrival.is_some(), "workload.arrival", || {
        if open {
            "the model \"open\" needs arrival = { kind = \"constant\", rate = \"200/s\" }".to_owned()
        } else {
            "only the model \"open\" has arrivals: leave it out, or set model = \"open\"".to_owned()
        }
    })?;
    ensure(open || scenario.stages.is_empty(), "stage", || {
        "only the model \"open\" has stages: its rate can change".to_owned()
    })?;
    if let Some(first) = &work.arrival {
        arrival("workload.arrival", first)?;
    }
    for (index, stage) in scenario.stages.iter().enumerate() {
        ensure(stage.at < work.duration, format!("stage.{index}.at"), || {
            format!("the stage would begin after the measured {}", work.duration)
        })?;
        arrival(&format!("stage.{index}.arrival"), &stage.arrival)?;
    }
    keys(&work.keys)?;
    ensure(
        !held || work.keys.dist == KeyDist::Uniform,
        "workload.keys.dist",
        || "in the model \"held\" every lock has one holder: leave dist out".to_owned(),
    )?;
    length("workload.hold", &work.hold)?;
    let fixed = matches!(work.hold, Length::Fixed { .. });
    ensure(!held || fixed, "workload.hold", || {
        "in the model \"held\" all rivals work equally long: use kind = \"fixed\"".to_owned()
    })?;
    if let Some(think) = &work.think {
        ensure(work.model == Model::Closed, "workload.think", || {
            "only the model \"closed\" has clients that think: leave it out".to_owned()
        })?;
        length("workload.think", think)?;
    }
    if let Some(ratio) = work.read_ratio {
        share("workload.read_ratio", ratio, "0.9 reads nine times of ten")?;
        let reads = scenario.lock.kind.is_shared_by_readers() && !held;
        ensure(reads, "workload.read_ratio", || {
            "only the lock \"read_write\" tells readers from writers, in the models \"closed\" and \"open\"".to_owned()
        })?;
    }
    if let Some(Reentry { depth, prob }) = work.reentry {
        share("workload.reentry.prob", prob, "0.1 re-enters one time of ten")?;
        ensure((1..=DEEPEST).contains(&depth), "workload.reentry.depth", || {
            format!("a depth of {depth} is not in 1 … {DEEPEST}: 1 takes the lock once more")
        })?;
        ensure(!held, "workload.reentry", || {
            "in the model \"held\" nobody re-enters: leave it out".to_owned()
        })?;
    }
    ensure(!work.counter || !held, "workload.counter", || {
        "in the model \"held\" nobody counts: leave counter out".to_owned()
    })?;
    let counts = [
        ("workload.keys.count", work.keys.count, 1_000_000),
        ("workload.processes", work.processes, 64),
        ("workload.clients", work.clients, 100_000),
    ];
    for (path, count, most) in counts {
        ensure((1..=most).contains(&count), path, || {
            format!("{count} is not in 1 … {most}")
        })?;
    }
    ensure(work.clients >= work.processes, "workload.clients", || {
        format!(
            "{} clients leave some of {} processes without one",
            work.clients, work.processes
        )
    })?;
    ensure(
        scenario.scaled(work.duration) >= Duration::from_millis(200),
        "workload.duration",
        || {
            format!(
                "{} × scale {} is too short to measure anything: use at least 200ms",
                work.duration, scenario.scale
            )
        },
    )?;
    ensure(
        work.step.is_none_or(|step| !step.0.is_zero() && !held),
        "workload.step",
        || match held {
            true => "in the model \"held\" holders act all the time: leave step out".to_owned(),
            false => "a step of no length is none: leave it out to act all the time".to_owned(),
        },
    )?;
    ensure(!work.wait.0.is_zero(), "workload.wait", || {
        "a request that does not wait cannot be served under contention: write a wait above 0".to_owned()
    })
}

fn arrival(path: &str, arrival: &Arrival) -> Result<(), Wrong> {
    let at = |key: &str| format!("{path}.{key}");
    let rates = arrival.rates();
    for (key, Rate(rate)) in &rates {
        ensure((0.0..=HIGHEST_RATE).contains(rate), at(key), || {
            format!("a rate of {rate}/s is not in 0 … {HIGHEST_RATE}/s")
        })?;
    }
    if let Some((key, _)) = rates.first() {
        let anybody = rates.iter().any(|(_, rate)| rate.0 > 0.0);
        ensure(anybody, at(key), || {
            "at a rate of 0 nobody ever comes: write how many a second, as \"200/s\"".to_owned()
        })?;
    }
    let lasts = |key: &str, time: Time, what: &str| {
        ensure(time.0 >= SHORTEST_PART, at(key), || {
            format!("{what} of {time} is none: write at least {SHORTEST_PART:?}, as \"5s\"")
        })
    };
    match arrival {
        Arrival::Constant { .. } | Arrival::Poisson { .. } | Arrival::Trace(_) => Ok(()),
        Arrival::Onoff { on, off, .. } => {
            lasts("on", *on, "a busy time")?;
            lasts("off", *off, "a quiet time")
        }
        Arrival::Ramp { over, .. } => lasts("over", *over, "a ramp"),
        Arrival::Steps { rates, each } => {
            ensure(!rates.is_empty(), at("rates"), || {
                "steps need rates: write [\"100/s\", \"200/s\"]".to_owned()
            })?;
            lasts("each", *each, "a step")
        }
        Arrival::Flash {
            base,
            peak,
            rise,
            hold,
            decay,
        } => {
            ensure(peak.0 > base.0, at("peak"), || {
                format!("a rush is more than what comes anyway: write a peak above the base of {base}")
            })?;
            let length = rise.0.saturating_add(hold.0).saturating_add(decay.0);
            lasts("hold", Time(length), "a rush")
        }
    }
}

fn keys(keys: &Keys) -> Result<(), Wrong> {
    let is_zipf = keys.dist == KeyDist::Zipf;
    ensure(is_zipf || keys.s.is_none(), "workload.keys.s", || {
        "only dist = \"zipf\" has an exponent: leave it out".to_owned()
    })?;
    ensure(is_zipf || !keys.scramble, "workload.keys.scramble", || {
        "only dist = \"zipf\" has ranks to scramble: leave it out".to_owned()
    })?;
    let exponent = keys.s.unwrap_or(1.0);
    ensure((0.0..=5.0).contains(&exponent), "workload.keys.s", || {
        format!("{exponent} is no exponent of a zipf distribution: use 0 to 5, like 0.99")
    })?;
    let parts = [
        ("workload.keys.hot_keys", keys.hot_keys, "0.1 makes a tenth of them hot"),
        (
            "workload.keys.hot_requests",
            keys.hot_requests,
            "0.9 sends nine of ten requests to the hot keys",
        ),
    ];
    let is_hotspot = keys.dist == KeyDist::Hotspot;
    for (path, part, example) in parts {
        ensure(is_hotspot == part.is_some(), path, || {
            if is_hotspot {
                format!("dist = \"hotspot\" needs it: {example}")
            } else {
                "only dist = \"hotspot\" has hot keys: leave it out".to_owned()
            }
        })?;
        share(path, part.unwrap_or(0.0), example)?;
    }
    ensure(
        !is_hotspot || keys.hot_count() < keys.count,
        "workload.keys.hot_keys",
        || {
            format!(
                "all {} keys would be hot: lower it, or use dist = \"uniform\"",
                keys.count
            )
        },
    )
}

fn length(path: &str, length: &Length) -> Result<(), Wrong> {
    let at = |key: &str| format!("{path}.{key}");
    match length {
        Length::Fixed { .. } | Length::Exp { .. } | Length::Trace(_) => Ok(()),
        Length::Lognormal { p50, p99 } | Length::Pareto { p50, p99 } => {
            ensure(!p50.0.is_zero(), at("p50"), || {
                "a median of 0 makes all of them 0: write it above 0, or use kind = \"fixed\"".to_owned()
            })?;
            ensure(p99 > p50, at("p99"), || {
                format!(
                    "99 of 100 are longer than half of them: write a p99 above the p50 of {p50}, or use kind = \"fixed\""
                )
            })
        }
        Length::Bimodal {
            short,
            long,
            long_share,
        } => {
            ensure(long > short, at("long"), || {
                format!("the long ones are longer than the short ones of {short}: write more")
            })?;
            share(&at("long_share"), *long_share, "0.01 makes one of a hundred long")
        }
    }
}

fn share(path: &str, share: f64, example: &str) -> Result<(), Wrong> {
    ensure((0.0..=1.0).contains(&share), path, || {
        format!("a share of {share} is not in 0 … 1: {example}")
    })
}

/// Above this the generator would measure itself.
const HIGHEST_RATE: f64 = 100_000.0;

/// Deeper calls would measure the stack of the caller.
const DEEPEST: u32 = 100;

/// A rate that changes more often is one of its own.
const SHORTEST_PART: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::super::super::Scenario;

    /// What a scenario with this workload is refused with.
    fn refusal(model: &str, lines: &str) -> String {
        let text = TEXT.replace("MODEL", model).replace("LINES", lines);
        let error = Scenario::parse("bad.toml", &text, &[]).map(|_| ()).unwrap_err();
        assert!(error.place.starts_with("bad.toml:"), "{error}");
        error.message
    }

    #[test]
    fn arrivals_that_make_no_sense_are_refused_with_what_to_write() {
        for (arrival, message) in [
            (r#"kind = "constant", rate = "0/s""#, "nobody ever comes"),
            (r#"kind = "poisson", rate = "-1/s""#, "is not in 0"),
            (r#"kind = "poisson", rate = "nan/s""#, "is not in 0"),
            (r#"kind = "poisson", rate = "1e9/s""#, "is not in 0"),
            (r#"kind = "poisson""#, "the key \"rate\" is missing"),
            (r#"kind = "poison", rate = "1/s""#, "did you mean \"poisson\""),
            (
                r#"kind = "onoff", rate = "9/s", on = "0s", off = "1s""#,
                "a busy time of 0s is none",
            ),
            (
                r#"kind = "onoff", rate = "9/s", on = "1s", off = "10us""#,
                "a quiet time of",
            ),
            (
                r#"kind = "ramp", from = "0/s", to = "0/s", over = "1s""#,
                "nobody ever comes",
            ),
            (
                r#"kind = "ramp", from = "1/s", to = "9/s", over = "0s""#,
                "a ramp of 0s is none",
            ),
            (r#"kind = "steps", rates = [], each = "1s""#, "write [\"100/s\""),
            (r#"kind = "steps", rates = ["1/s", "x"], each = "1s""#, "is not a rate"),
            (r#"kind = "steps", rates = ["1/s"], each = "0s""#, "a step of 0s"),
            (
                r#"kind = "flash", base = "9/s", peak = "9/s", rise = "1s", hold = "1s", decay = "1s""#,
                "above the base of 9/s",
            ),
            (
                r#"kind = "flash", base = "1/s", peak = "9/s", rise = "0s", hold = "0s", decay = "0s""#,
                "a rush of 0s",
            ),
            (
                r#"kind = "flash", base = "1/s", peak = "9/s", rais = "1s", hold = "0s", decay = "0s""#,
                "did you mean \"rise\"",
            ),
            (
                r#"kind = "trace", file = "nowhere.txt""#,
                "counts from the folder of the scenario",
            ),
        ] {
            let refusal = refusal(
                "open",
                &format!("hold = {{ kind = \"fixed\", mean = \"1ms\" }}\nkeys.count = 5\narrival = {{ {arrival} }}"),
            );
            assert!(refusal.contains(message), "{arrival}: {refusal}");
        }
    }

    #[test]
    fn keys_that_make_no_sense_are_refused_with_what_to_write() {
        for (keys, message) in [
            (r#"count = 5, s = 1.0"#, "only dist = \"zipf\""),
            (r#"count = 5, dist = "zipf", s = -1.0"#, "use 0 to 5"),
            (r#"count = 5, dist = "zipf", s = nan"#, "use 0 to 5"),
            (r#"count = 5, scramble = true"#, "ranks to scramble"),
            (r#"count = 5, hot_keys = 0.5"#, "only dist = \"hotspot\""),
            (r#"count = 5, dist = "hotspot", hot_keys = 0.5"#, "sends nine of ten"),
            (
                r#"count = 5, dist = "hotspot", hot_requests = 0.5"#,
                "makes a tenth of them hot",
            ),
            (
                r#"count = 5, dist = "hotspot", hot_keys = 1.5, hot_requests = 0.5"#,
                "is not in 0",
            ),
            (
                r#"count = 5, dist = "hotspot", hot_keys = 0.5, hot_requests = nan"#,
                "is not in 0",
            ),
            (
                r#"count = 5, dist = "hotspot", hot_keys = 0.9, hot_requests = 0.5"#,
                "all 5 keys would be hot",
            ),
            (r#"count = 0"#, "not in 1"),
            (r#"count = 5, dist = "hotpot""#, "did you mean \"hotspot\""),
        ] {
            let refusal = refusal(
                "closed",
                &format!("hold = {{ kind = \"fixed\", mean = \"1ms\" }}\nkeys = {{ {keys} }}"),
            );
            assert!(refusal.contains(message), "{keys}: {refusal}");
        }
    }

    #[test]
    fn re_entries_that_make_no_sense_are_refused_with_what_to_write() {
        for (model, reentry, message) in [
            ("closed", "depth = 0, prob = 0.5", "1 takes the lock once more"),
            ("closed", "depth = 101, prob = 0.5", "is not in 1"),
            ("closed", "depth = 1, prob = 1.5", "one time of ten"),
            ("closed", "depth = 1", "\"prob\" is missing"),
            ("held", "depth = 1, prob = 0.5", "nobody re-enters"),
        ] {
            let lines =
                format!("keys.count = 5\nhold = {{ kind = \"fixed\", mean = \"1ms\" }}\nreentry = {{ {reentry} }}");
            let refusal = refusal(model, &lines);
            assert!(refusal.contains(message), "{reentry}: {refusal}");
        }
    }

    #[test]
    fn lengths_that_make_no_sense_are_refused_with_what_to_write() {
        for (hold, message) in [
            (r#"kind = "lognormal", p50 = "0s", p99 = "1s""#, "a median of 0"),
            (r#"kind = "lognormal", p50 = "1s", p99 = "1s""#, "a p99 above the p50"),
            (r#"kind = "pareto", p50 = "2s", p99 = "1s""#, "a p99 above the p50"),
            (r#"kind = "pareto", p50 = "2s""#, "\"p99\" is missing"),
            (r#"kind = "lognormal", p50 = "1s", mean = "1s""#, "unknown key \"mean\""),
            (
                r#"kind = "bimodal", short = "1s", long = "1s", long_share = 0.1"#,
                "longer than the short",
            ),
            (
                r#"kind = "bimodal", short = "1s", long = "2s", long_share = 1.1"#,
                "one of a hundred",
            ),
            (r#"kind = "trace", file = "nowhere.txt""#, "cannot be read"),
            (r#"kind = "fix", mean = "1s""#, "did you mean \"fixed\""),
        ] {
            let refusal = refusal("closed", &format!("keys.count = 5\nhold = {{ {hold} }}"));
            assert!(refusal.contains(message), "{hold}: {refusal}");
        }
    }

    const TEXT: &str = r#"schema = 1
name = "t"
question = "does it read?"
[lock]
type = "reentrant"
[workload]
model = "MODEL"
duration = "5s"
LINES
"#;
}
