//! The numbers a threshold may ask for, by name.

use crate::scenario::{Model, Unit};

/// A number that a run measures.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name in thresholds and in `result.json`.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// The workload models that measure it.
    pub models: &'static [Model],
    /// What it means.
    pub what: &'static str,
}

/// Every metric.
pub const METRICS: [Metric; 45] = [
    metric(
        "acquire.p50",
        Unit::Millis,
        LOAD,
        "time to get a lock, from the intended start (open) or the call (closed)",
    ),
    metric("acquire.p90", Unit::Millis, LOAD, "the same, 90 of 100 are faster"),
    metric("acquire.p99", Unit::Millis, LOAD, "the same, 99 of 100 are faster"),
    metric(
        "acquire.p999",
        Unit::Millis,
        LOAD,
        "the same, 999 of 1000 are faster; needs 10 000 samples",
    ),
    metric("acquire.max", Unit::Millis, LOAD, "the longest"),
    metric("service.p99", Unit::Millis, LOAD, "time to get a lock, from the call"),
    metric(
        "throughput",
        Unit::PerSecond,
        LOAD,
        "completed critical sections per second of the measured time",
    ),
    metric("attempts", Unit::Count, LOAD, "acquire scripts sent per success"),
    metric(
        "commands",
        Unit::Count,
        LOAD,
        "commands sent per lock got, warm-up included: scripts to take, renew and give back, subscriptions; also those of others, \
         if the server is yours",
    ),
    metric("acquired", Unit::Count, LOAD, "requests that got their lock"),
    metric("timeouts", Unit::Count, LOAD, "requests that waited in vain"),
    metric("errors", Unit::Count, LOAD, "requests and releases that failed"),
    metric(
        "cancelled",
        Unit::Count,
        LOAD,
        "requests that drop_future dropped before they had an answer",
    ),
    metric("dropped", Unit::Count, OPEN, "arrivals that found no free slot"),
    metric("hold.mean", Unit::Millis, LOAD, "how long a lock was worked under"),
    metric("hold.max", Unit::Millis, LOAD, "the longest"),
    metric(
        "hand_over.mean",
        Unit::Millis,
        LOAD,
        "from the end of work to the lock, for the next one that waited for it to change something",
    ),
    metric(
        "read.share",
        Unit::Count,
        LOAD,
        "the part of the locks got that readers shared",
    ),
    metric(
        "contended.share",
        Unit::Count,
        LOAD,
        "the part of the locks got for which somebody else's work had to end first",
    ),
    metric(
        "in_system",
        Unit::Count,
        LOAD,
        "requests that waited or held, on the mean over the measured time",
    ),
    metric(
        "gen.lag.p99",
        Unit::Millis,
        OPEN,
        "actual minus intended start: the generator's own lateness",
    ),
    metric(
        "fairness.jain",
        Unit::Count,
        LOAD,
        "how evenly the clients (open: the processes) were served in 10 s: 1 all alike, 1/n one of n got all",
    ),
    metric(
        "fairness.overtakes.max",
        Unit::Count,
        LOAD,
        "how many came later and got the lock sooner, for the one hit most; 0 in a strict queue",
    ),
    metric(
        "fairness.overtakes.p99",
        Unit::Count,
        LOAD,
        "the same, 99 of 100 are hit less",
    ),
    metric(
        "fairness.starved",
        Unit::Count,
        LOAD,
        "requests that waited over ten times the median of their key, and over 100 ms",
    ),
    metric(
        "lost_updates",
        Unit::Count,
        LOAD,
        "increments of unprotected counters that are not there; needs workload.counter",
    ),
    metric(
        "overlap.count",
        Unit::Count,
        ALL,
        "times two workers were at work under one lock",
    ),
    metric("overlap.max", Unit::Millis, ALL, "the longest of them"),
    metric(
        "frozen.count",
        Unit::Count,
        ALL,
        "times a worker was at work under a lock whose holder stood still: by itself no harm",
    ),
    metric("frozen.max", Unit::Millis, ALL, "the longest of them"),
    metric(
        "stale.accepted",
        Unit::Count,
        ALL,
        "writes of overtaken holders that had no fencing token to be told by",
    ),
    metric(
        "stale.rejected",
        Unit::Count,
        ALL,
        "writes of overtaken holders that a guard refuses by their fencing token",
    ),
    metric(
        "fence.disorder",
        Unit::Count,
        ALL,
        "locks got with a fencing token not above all before",
    ),
    metric("held", Unit::Count, HELD, "locks held when the fault struck"),
    metric(
        "lost.total",
        Unit::Count,
        HELD,
        "locks that ended before their holder released them",
    ),
    metric(
        "lost.needless",
        Unit::Count,
        HELD,
        "of these, those a renewal after the fault would have saved",
    ),
    metric(
        "told.max",
        Unit::Millis,
        HELD,
        "latest notice of a loss, relative to the lease's end at the server",
    ),
    metric(
        "exposure.count",
        Unit::Count,
        HELD,
        "times somebody worked under a lock that the server did not let it own, by its append-only file",
    ),
    metric("exposure.max", Unit::Millis, HELD, "the longest of them"),
    metric(
        "orphan.count",
        Unit::Count,
        ALL,
        "times a lock stayed owned without its holder: in a load one that was killed, else one that had stopped",
    ),
    metric(
        "orphan.max",
        Unit::Millis,
        ALL,
        "the longest of them: in a load until somebody else had the lock, else by the server's append-only file",
    ),
    metric(
        "server.owned_twice",
        Unit::Count,
        HELD,
        "grants of a lock that was not free, by the server's append-only file",
    ),
    metric(
        "server.tokens_that_fell",
        Unit::Count,
        HELD,
        "grants whose fencing token is not above the one before, by the same file",
    ),
    metric(
        "server.grants_without_work",
        Unit::Count,
        HELD,
        "grants under which nobody worked, by the same file: their answers were lost",
    ),
    metric(
        "prediction.mismatches",
        Unit::Count,
        HELD,
        "locks whose fate the model got wrong, outside its tolerance",
    ),
];

/// The metric of that name.
pub fn find(name: &str) -> Option<Metric> {
    METRICS.into_iter().find(|metric| metric.name == name)
}

impl Metric {
    /// What it counts, in words.
    pub fn unit_name(&self) -> &'static str {
        match self.unit {
            Unit::Count => "a plain number",
            Unit::Millis => "time",
            Unit::PerSecond => "events per second",
        }
    }
}

const fn metric(name: &'static str, unit: Unit, models: &'static [Model], what: &'static str) -> Metric {
    Metric {
        name,
        unit,
        models,
        what,
    }
}

const LOAD: &[Model] = &[Model::Closed, Model::Open];
const OPEN: &[Model] = &[Model::Open];
const HELD: &[Model] = &[Model::Held];
const ALL: &[Model] = &[Model::Closed, Model::Open, Model::Held];
