//! What a scenario must be to make sense, and where it is wrong if it does not.

mod faults;
mod workload;

use std::ops::Range;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::evidence::SET_BY_AOF;
use super::fault::not_here;
use super::{Arrival, LockType, Model, RedisMode, Scenario, ScenarioError, ServerEvidence, overrides};
use crate::measure::metrics;
use crate::real::RealClient;

/// The policies a scenario may name.
pub const POLICIES: [(&str, &str); 8] = [
    (
        "deadline",
        "retries until a local deadline before the lease ends, and tells the holder then",
    ),
    ("deadline-strict", "the same with a margin of a third of the lease"),
    (
        "cancel-told",
        "gives up at the first error and tells the holder at once",
    ),
    ("retry-3", "retries three times, then tells the holder"),
    ("retry-10", "retries ten times, then tells the holder, perhaps too late"),
    (
        "naive-cancel",
        "gives up at the first error and tells nobody: what people write by hand",
    ),
    (
        "redisson-3.27",
        "Redisson 3.14.0 to 3.43.0: sends a command three more times, then gives up and tells nobody",
    ),
    (
        "redisson-3.44",
        "Redisson 3.44.0 and later: sends a command four more times, again each period, and tells nobody",
    ),
];

/// A value that makes no sense, by its path in the file.
pub(super) struct Wrong {
    pub(super) path: String,
    pub(super) message: String,
}

/// Where a scenario came from, to say where it is wrong.
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
    pub(super) overrides: &'a [String],
}

/// Refuses a scenario whose values contradict one another.
pub(super) fn check(scenario: &Scenario) -> Result<(), Wrong> {
    basics(scenario)?;
    lock(scenario)?;
    workload::check(scenario)?;
    rate(scenario)?;
    guards(scenario)?;
    faults::check(scenario)?;
    evidence(scenario)?;
    thresholds(scenario)
}

fn basics(scenario: &Scenario) -> Result<(), Wrong> {
    ensure(scenario.schema == 1, "schema", || {
        format!("this lockbench reads schema 1, not {}", scenario.schema)
    })?;
    ensure(!scenario.name.trim().is_empty(), "name", || {
        "give the scenario a name".to_owned()
    })?;
    ensure(scenario.scale > 0.0 && scenario.scale <= 10.0, "scale", || {
        format!(
            "scale {} is not in 0 … 10: 1 runs as written, 0.1 ten times faster",
            scenario.scale
        )
    })?;
    let redis = &scenario.redis;
    ensure(
        (redis.mode == RedisMode::Url) == redis.url.is_some(),
        "redis.mode",
        || "mode \"url\" and the key url go together: write both, or neither to start a server".to_owned(),
    )?;
    ensure(
        redis.mode == RedisMode::Spawn || redis.config.is_empty(),
        "redis.config",
        || "a server that is yours is not configured: leave config out, or use mode \"spawn\"".to_owned(),
    )
}

fn lock(scenario: &Scenario) -> Result<(), Wrong> {
    ensure(!scenario.lock.lease.0.is_zero(), "lock.lease", || {
        "a lease of 0 holds nothing: write how long Redis keeps a lock, as \"30s\"".to_owned()
    })?;
    ensure(scenario.lease() >= SHORTEST_LEASE, "lock.lease", || {
        format!(
            "the lease runs as {:?} after scale {}: period, attempt and a margin of at least 50 ms do not nest \
             in it; use at least {SHORTEST_LEASE:?}",
            scenario.lease(),
            scenario.scale
        )
    })?;
    ensure(
        !scenario.lock.command.timeout.0.is_zero(),
        "lock.command.timeout",
        || "a command needs time: write a timeout above 0, as \"3s\"".to_owned(),
    )?;
    let names: Vec<_> = POLICIES.iter().map(|(name, _)| *name).collect();
    let known = |path: &str, policy: &String| {
        ensure(names.contains(&policy.as_str()), path, || {
            let meant = nearest(policy, &names).map_or_else(String::new, |name| format!("; did you mean {name:?}?"));
            format!("unknown policy {policy:?}{meant} (see lockbench list policies)")
        })
    };
    known("lock.policy", &scenario.lock.policy)?;
    let mut real = false;
    for policy in &scenario.matrix.policies {
        match RealClient::of(policy) {
            Some(_) => real = true,
            None => known("matrix.lock.policy", policy)?,
        }
    }
    let is_fenced = scenario.lock.kind == LockType::Kind(leasehold::LockKind::Fenced);
    ensure(!real || is_fenced, "lock.type", || {
        "a real client takes fenced locks: use type = \"fenced\"".to_owned()
    })?;
    let held = scenario.workload.model == Model::Held;
    ensure(held || scenario.matrix.policies.is_empty(), "matrix", || {
        "policies run side by side only in the model \"held\": use lock.policy here".to_owned()
    })?;
    let on_ours = scenario.redis.mode == RedisMode::Spawn;
    ensure(on_ours || scenario.lock.kind.masters() == 1, "lock.type", || {
        "one server is no quorum: leave out --redis, then lockbench starts three".to_owned()
    })?;
    let shared = scenario.lock.kind.is_shared_by_readers();
    ensure(shared || !scenario.lock.writers_first, "lock.writers_first", || {
        "only the lock \"read_write\" has readers that can go behind: leave it out".to_owned()
    })?;
    let locks = matches!(scenario.lock.kind, LockType::Kind(_));
    ensure(!held || locks, "lock.type", || {
        "the model \"held\" needs a lock that is renewed: any type but \"script\" and \"none\"".to_owned()
    })?;
    ensure(!held || scenario.lock.kind.masters() == 1, "lock.type", || {
        "the model \"held\" predicts from the renewals of one master: use \"closed\" or \"open\" for a quorum"
            .to_owned()
    })
}

/// Refuses to ask more of the user's server than they allow. Closed workloads are paced instead.
fn rate(scenario: &Scenario) -> Result<(), Wrong> {
    let Some(most) = scenario.max_rate() else {
        return Ok(());
    };
    ensure(most.0 > 0.0, "redis.max_rate", || {
        "at that rate nothing is ever asked: write one above 0".to_owned()
    })?;
    let work = &scenario.workload;
    let (asked, of_what) = match work.model {
        Model::Closed => return Ok(()),
        Model::Open => {
            let arrivals = work
                .arrival
                .iter()
                .chain(scenario.stages.iter().map(|stage| &stage.arrival));
            (arrivals.map(Arrival::peak).fold(0.0, f64::max), "arrivals")
        }
        Model::Held => {
            let held = f64::from(work.keys.count) * scenario.policies().len() as f64;
            (held * 3.0 / scenario.lease().as_secs_f64(), "renewals")
        }
    };
    ensure(asked <= most.0, "redis.max_rate", || {
        format!(
            "{asked:.0} {of_what} a second are more than the {:.0} that the server may be asked for: lower them, or allow more \
             with redis.max_rate = \"{asked:.0}/s\"",
            most.0
        )
    })
}

fn guards(scenario: &Scenario) -> Result<(), Wrong> {
    let together = scenario.guards.keys_together;
    ensure((1..=MOST_TOGETHER).contains(&together), "guards.keys_together", || {
        format!("{together} names at once are not in 1 … {MOST_TOGETHER}")
    })
}

fn evidence(scenario: &Scenario) -> Result<(), Wrong> {
    let aof = scenario.evidence.server == ServerEvidence::Aof;
    ensure(
        !aof || scenario.redis.mode == RedisMode::Spawn,
        "evidence.server",
        || "the file of a server that is yours is not read: leave server out, or use redis.mode \"spawn\"".to_owned(),
    )?;
    ensure(
        !aof || scenario.workload.model == Model::Held,
        "evidence.server",
        || "the server's file is held against work only in the model \"held\": leave server out".to_owned(),
    )?;
    for name in SET_BY_AOF {
        ensure(
            !aof || !scenario.redis.config.contains_key(name),
            format!("redis.config.{name}"),
            || "evidence.server = \"aof\" sets it: leave it out".to_owned(),
        )?;
    }
    Ok(())
}

fn thresholds(scenario: &Scenario) -> Result<(), Wrong> {
    for (name, limit) in &scenario.thresholds {
        let path = format!("thresholds.{name}");
        let (metric, policy) = name
            .split_once('@')
            .map_or((name.as_str(), None), |(m, p)| (m, Some(p)));
        let Some(known) = metrics::find(metric) else {
            let names: Vec<_> = metrics::METRICS.iter().map(|metric| metric.name).collect();
            let meant = nearest(metric, &names).map_or_else(String::new, |name| format!("; did you mean {name:?}?"));
            let message = format!("unknown metric {metric:?}{meant} (see lockbench list metrics)");
            return Err(Wrong { path, message });
        };
        ensure(known.unit == limit.unit, &path, || {
            format!("{metric} counts {}: {limit} is of another unit", known.unit_name())
        })?;
        ensure(known.models.contains(&scenario.workload.model), &path, || {
            format!("{metric} is not measured in this workload model")
        })?;
        if let Some(policy) = policy {
            let runs = scenario.workload.model == Model::Held && scenario.policies().iter().any(|name| name == policy);
            ensure(runs, &path, || {
                format!("the policy {policy:?} does not run here: add it to [matrix] \"lock.policy\"")
            })?;
        }
    }
    Ok(())
}

impl Source<'_> {
    /// An error of reading, with its line, column and a suggestion.
    pub(super) fn of_toml(&self, error: &toml::de::Error) -> ScenarioError {
        let place = match error.span() {
            Some(span) => self.at(span),
            None => self.file.to_owned(),
        };
        ScenarioError {
            place,
            message: suggestion(error.message()),
        }
    }

    /// An error of a value: its line and column, or the override that set it.
    pub(super) fn of_value(&self, path: &str, message: String) -> ScenarioError {
        let set = self.overrides.iter().rev().find(|text| {
            let set = text.split('=').next().unwrap_or_default().trim();
            !set.is_empty() && (path.starts_with(set) || set.starts_with(path))
        });
        let place = match set {
            Some(text) => format!("--set {text}"),
            None => match find_span(self.text, path) {
                Some(span) => self.at(span),
                None => self.file.to_owned(),
            },
        };
        ScenarioError { place, message }
    }

    fn at(&self, span: Range<usize>) -> String {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        format!("{}:{line}:{column}", self.file)
    }
}

/// The place of the value at a path, or of the nearest thing above it that is there.
fn find_span(text: &str, path: &str) -> Option<Range<usize>> {
    let root = DeTable::parse(text).ok()?;
    let mut value = DeValue::Table(root.into_inner());
    let mut span = None;
    for step in overrides::steps(path) {
        let next = match &value {
            DeValue::Table(table) => table.get(step),
            DeValue::Array(list) => step.parse::<usize>().ok().and_then(|index| list.get(index)),
            _ => None,
        };
        let Some(next) = next else { break };
        span = Some(next.span());
        value = next.get_ref().clone();
    }
    span
}

/// A message of the TOML reader in our words, with the nearest of the names that would have been right.
pub(super) fn suggestion(message: &str) -> String {
    let mut names = message.split('`').skip(1).step_by(2);
    if message.starts_with("missing field") {
        return names.next().map_or_else(
            || message.to_owned(),
            |name| format!("the key {name:?} is missing: add it"),
        );
    }
    let what = if message.starts_with("unknown field") {
        "key"
    } else if message.starts_with("unknown variant") {
        "value"
    } else {
        return message.to_owned();
    };
    let Some(wrong) = names.next() else {
        return message.to_owned();
    };
    if let Some(reason) = not_here(wrong).filter(|_| what == "value") {
        return reason;
    }
    let right: Vec<&str> = names.collect();
    match nearest(wrong, &right) {
        Some(name) => format!("unknown {what} {wrong:?}; did you mean {name:?}?"),
        None => format!("unknown {what} {wrong:?}; here may stand: {}", right.join(", ")),
    }
}

/// The name most like the one given, if any is like it.
pub(super) fn nearest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    names
        .iter()
        .map(|&known| (strsim::jaro_winkler(name, known), known))
        .filter(|(likeness, _)| *likeness > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

fn ensure(holds: bool, path: impl Into<String>, message: impl FnOnce() -> String) -> Result<(), Wrong> {
    if holds {
        Ok(())
    } else {
        Err(Wrong {
            path: path.into(),
            message: message(),
        })
    }
}

/// The margin is at least 50 ms and at most the period, a third of the lease; an attempt must fit between.
pub const SHORTEST_LEASE: Duration = Duration::from_millis(500);

/// A script with more names keeps Redis from everybody else.
const MOST_TOGETHER: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn error(change: impl Fn(String) -> String) -> ScenarioError {
        Scenario::parse("bad.toml", &change(GOOD.to_owned()), &[]).unwrap_err()
    }

    #[test]
    fn an_unknown_key_has_line_column_and_a_suggestion() {
        let error = error(|text| text.replace("duration", "durration"));
        assert_eq!(error.place, "bad.toml:11:1");
        assert_eq!(error.message, "unknown key \"durration\"; did you mean \"duration\"?");
    }

    #[test]
    fn values_that_make_no_sense_are_refused_where_they_stand() {
        let cases = [
            ("lease = \"30s\"", "lease = \"0s\"", "bad.toml:6:9", "a lease of 0"),
            ("lease = \"30s\"", "lease = \"100ms\"", "bad.toml:6:9", "do not nest"),
            ("count = 5", "count = 0", "bad.toml:9:18", "not in 1"),
            ("\"closed\"", "\"open\"", "bad.toml:", "needs arrival"),
            (
                "scope = \"all\"",
                "scope = \"holders\"",
                "bad.toml:16:9",
                "only the model \"held\"",
            ),
            (
                "\"acquire.p99\"",
                "\"aquire.p99\"",
                "bad.toml:19:16",
                "did you mean \"acquire.p99\"?",
            ),
            ("< 50ms", "< 50", "bad.toml:19:17", "another unit"),
            (
                "\"deadline\"",
                "\"retry3\"",
                "bad.toml:7:10",
                "did you mean \"retry-3\"?",
            ),
        ];
        for (from, to, place, message) in cases {
            let error = error(|text| text.replace(from, to));
            assert!(error.place.starts_with(place), "{to}: {error}");
            assert!(error.message.contains(message), "{to}: {error}");
        }
    }

    #[test]
    fn server_evidence_needs_a_server_of_ours_that_is_configured_for_it_and_locks_that_are_held() {
        let read = |sets: &[&str]| {
            let sets: Vec<_> = ["evidence.server=aof"]
                .iter()
                .chain(sets)
                .map(|set| (*set).to_owned())
                .collect();
            Scenario::read("pause-demo", &sets).map_err(|error| error.to_string())
        };
        assert!(read(&[]).is_ok() && read(&["redis.config.appendfsync=everysec"]).is_ok());
        let theirs = read(&["redis.mode=url", "redis.url=redis://localhost"]).unwrap_err();
        assert!(theirs.contains("a server that is yours"), "{theirs}");
        let overridden = read(&["redis.config.appendonly=no"]).unwrap_err();
        assert!(overridden.contains("sets it: leave it out"), "{overridden}");
        // Where nothing is asked for, it is done if it can be.
        let is_read = |scenario: &str, sets: &[&str]| {
            let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
            Scenario::read(scenario, &sets).unwrap().reads_append_only()
        };
        assert!(is_read("pause-demo", &[]) && !is_read("pause-demo", &["evidence.server=none"]));
        assert!(!is_read("pause-demo", &["redis.config.appendonly=yes"]) && !is_read("hot-key", &[]));
        assert!(!is_read(
            "pause-demo",
            &["redis.mode=url", "redis.url=redis://localhost"]
        ));
        let load = Scenario::read("hot-key", &["evidence.server=aof".to_owned()]).unwrap_err();
        assert!(load.to_string().contains("only in the model \"held\""), "{load}");
    }

    #[test]
    fn the_good_one_is_good() {
        Scenario::parse("good.toml", GOOD, &[]).unwrap();
    }

    const GOOD: &str = r#"schema = 1
name = "t"
question = "does it read?"
[lock]
type = "reentrant"
lease = "30s"
policy = "deadline"
[workload]
keys = { count = 5, dist = "uniform" }
model = "closed"
duration = "5s"
hold = { kind = "fixed", mean = "1ms" }
[[fault]]
at = "1s"
for = "1s"
scope = "all"
kind = "refuse"
[thresholds]
"acquire.p99" = "< 50ms"
"#;
}
