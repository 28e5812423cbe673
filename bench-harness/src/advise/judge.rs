//! Which lock, from what was measured and what is guarded. Pure, and every reason cites a number of this run.

mod no_lock;
mod reasons;
mod rules;

use leasehold::LockKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::clause::{Clause, Measured, Row};
use super::{FREE, GENERATOR, SCRIPT, WRITERS_FIRST};
use crate::capacity::{GENERATOR_MARGIN, number};
use crate::exit;
use crate::scenario::{LockType, Scenario};

/// What to take, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Advice {
    /// In words.
    pub take: String,
    /// The kind of lock; null for none.
    pub lock: Option<LockType>,
    /// The reasons, the one that decided first.
    pub because: Vec<Clause>,
    /// The lock to take where the advice is none, and none will not do.
    pub otherwise: Option<Box<Advice>>,
}

/// What follows from the measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The advice, if the measurements bear one.
    pub advice: Option<Advice>,
    /// Two at work at once, and what they did.
    pub dangers: Vec<Clause>,
    /// Why these are no measurements.
    pub invalid: Vec<String>,
    /// The exit code.
    pub exit: u8,
}

/// Judges what was measured: an overlap goes before everything, and what is no measurement bears no advice.
pub fn judge(scenario: &Scenario, rows: &[Row]) -> Judgement {
    let case = Case { scenario, rows };
    let dangers: Vec<Clause> = rows.iter().flat_map(dangers).collect();
    let mut invalid = case.flaws();
    let mut advice = None;
    if dangers.is_empty() && invalid.is_empty() {
        advice = case.advice();
        if advice.is_none() {
            invalid.push("too little was measured to say anything: give it longer with --for".to_owned());
        }
    }
    let exit = match (&dangers[..], &invalid[..]) {
        ([_, ..], _) => exit::SAFETY,
        (_, [_, ..]) => exit::INVALID,
        _ => exit::GOOD,
    };
    Judgement {
        advice,
        dangers,
        invalid,
        exit,
    }
}

/// Two at work at once under this lock, and what they did.
pub(super) fn dangers(row: &Row) -> Vec<Clause> {
    let told = |(metric, sentence): (&str, &str)| {
        row.get(metric).filter(|count| *count > 0.0)?;
        let sentence = format!("{}: {sentence}", row.name);
        Clause::new(&sentence, [row.cite(metric), row.cite("acquired")])
    };
    let tried = row.name == SCRIPT || is_lock(row);
    DANGERS.into_iter().filter(|_| tried).filter_map(told).collect()
}

struct Case<'a> {
    scenario: &'a Scenario,
    rows: &'a [Row],
}

impl Case<'_> {
    fn flaws(&self) -> Vec<String> {
        let of_row = |row: &Row| {
            let said = |flaw: &String| format!("{}: {flaw}", row.name);
            row.flaws.iter().map(said).collect::<Vec<_>>()
        };
        let mut flaws: Vec<String> = self.rows.iter().flat_map(of_row).collect();
        let tried = self.rows.iter().filter(|row| row.name == SCRIPT || is_lock(row));
        let most = tried.filter_map(|row| row.get("throughput")).fold(0.0, f64::max);
        let alone = self.value(GENERATOR, "throughput").unwrap_or(0.0);
        if alone < most * GENERATOR_MARGIN * NEARLY {
            flaws.push(format!(
                "alone, without locks, the generator does {} a second, less than {GENERATOR_MARGIN} times {}",
                number(alone),
                number(most)
            ));
        }
        flaws
    }

    fn advice(&self) -> Option<Advice> {
        let otherwise = self.lock();
        match self.script().or_else(|| self.unique()).or_else(|| self.versions()) {
            Some(none) => Some(Advice {
                otherwise: otherwise.map(Box::new),
                ..none
            }),
            None => otherwise,
        }
    }

    /// The lock to take, if it must be one: the first rule that applies. What keeps the work right goes before what makes it fast.
    fn lock(&self) -> Option<Advice> {
        let rules = [
            Self::several_masters,
            Self::several_keys,
            Self::long_or_dear,
            Self::in_order,
            Self::many_readers,
            Self::tokens,
            Self::starved,
            Self::short,
            Self::plain,
        ];
        let mut advice = rules.iter().find_map(|rule| rule(self))?;
        let kind = advice.lock.map(String::from).unwrap_or_default();
        advice.because.extend(self.unmet(&kind));
        advice.because.extend(self.try_once(&kind));
        advice.because.extend(self.never_free(&kind));
        Some(advice)
    }

    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    fn value(&self, name: &str, metric: &str) -> Option<f64> {
        self.row(name)?.get(metric)
    }

    fn cite(&self, name: &str, metric: &str) -> Option<Measured> {
        self.row(name)?.cite(metric)
    }
}

/// Advice stands on its first reason.
fn advice(take: &str, kind: Option<LockKind>, because: impl IntoIterator<Item = Option<Clause>>) -> Option<Advice> {
    let because: Vec<Clause> = because.into_iter().flatten().collect();
    (!because.is_empty()).then(|| Advice {
        take: take.to_owned(),
        lock: kind.map(LockType::Kind),
        because,
        otherwise: None,
    })
}

fn is_lock(row: &Row) -> bool {
    row.name == WRITERS_FIRST || row.name.parse::<LockKind>().is_ok()
}

/// As much is done, and the slowest wait no longer.
fn is_as_good(row: &Row, other: &Row) -> bool {
    let tail = tail(row, other).metric;
    let pair = |metric| Some((row.get(metric)?, other.get(metric)?));
    let (Some(done), Some(waited)) = (pair("throughput"), pair(tail)) else {
        return false;
    };
    done.0 >= done.1 * NEARLY && waited.0 <= waited.1
}

/// More is done by a tenth, or the slowest wait is shorter by as much.
fn gains(row: &Row, other: &Row) -> bool {
    let tail = tail(row, other).metric;
    let pair = |metric| Some((row.get(metric)?, other.get(metric)?));
    pair("throughput").is_some_and(|(more, done)| more >= done * GAIN)
        || pair(tail).is_some_and(|(sooner, waited)| sooner * GAIN <= waited)
}

fn is_mostly_refused(row: &Row) -> bool {
    row.get("timeouts") > row.get("acquired")
}

/// How the slowest fared, in the finest number that both can bear.
struct Tail {
    metric: &'static str,
    words: &'static str,
}

fn tail(row: &Row, other: &Row) -> Tail {
    let p99 = "acquire.p99";
    if row.get(p99).is_some() && other.get(p99).is_some() {
        Tail {
            metric: p99,
            words: "at p99",
        }
    } else {
        Tail {
            metric: "acquire.max",
            words: "at most",
        }
    }
}

const PLAIN: &str = "reentrant";
const FAIR: &str = "fair";
const READ_WRITE: &str = "read_write";
const SPIN: &str = "spin";
const FENCED: &str = "fenced";
const MULTI: &str = "multi";
const QUORUM: &str = "quorum";

const DANGERS: [(&str, &str); 3] = [
    ("overlap.count", "two were at work at once {} times, in {} locks."),
    ("lost_updates", "{} updates are missing, of {} locks."),
    ("fence.disorder", "{} fencing tokens did not grow, of {}."),
];

/// Up to this share of collisions, doing it again costs less than a lock each time.
const FEW_MEET: f64 = 0.05;

/// What is gained counts from a tenth on: two runs of the same differ by less.
const GAIN: f64 = 1.1;

/// Two runs of the same differ by this much.
const NEARLY: f64 = 0.95;

#[cfg(test)]
mod tests;
