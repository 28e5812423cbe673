//! The closed forms as a table: policies by fault families, a column a fault length.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{Family, Fault, Share, Timings};
use crate::scenario::Scope;

/// The policies that there is a model of: those of the library, and `next-tick`, which is `redisson-3.44` on a client without
/// command retries.
pub const POLICIES: [&str; 9] = [
    "deadline",
    "deadline-strict",
    "cancel-told",
    "retry-3",
    "retry-10",
    "naive-cancel",
    "next-tick",
    "redisson-3.27",
    "redisson-3.44",
];

/// What the policies must lose.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// How long Redis keeps a lock that is not renewed, in seconds.
    pub lease_s: f64,
    /// The fault lengths, in seconds.
    pub faults_s: Vec<f64>,
    /// For each fault length the share that no policy can keep.
    pub forced: Vec<f64>,
    /// A policy and a fault family each.
    pub rows: Vec<Row>,
}

/// One policy in faults of one family.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The policy.
    pub policy: String,
    /// The family.
    pub family: Family,
    /// For each fault length the share of held locks that is lost.
    pub lost: Vec<Share>,
    /// The longest fault that costs no lock, in seconds.
    pub survives_s: f64,
    /// When a holder that is cut off for good is told, in seconds from the end of its lease; nothing if never.
    pub told_s: Option<f64>,
    /// The longest time that two can be at work at once if only the holder is cut off and its work does not end; nothing if there
    /// is no bound.
    pub overlap_s: Option<f64>,
}

impl Table {
    /// The table of these policies, families and fault lengths; nothing if there is no model of a policy or the lease is none.
    pub fn of(policies: &[&str], families: &[Family], faults: &[Duration], lease: Duration) -> Option<Self> {
        let faults: Vec<i64> = faults.iter().map(|fault| nanos(*fault)).collect();
        let forced = Timings::of(POLICIES[0], lease)?.with_whole_periods();
        let rows = policies.iter().flat_map(|policy| {
            let timings = Timings::of(policy, lease);
            let row = |family| Some(row(policy, family, &timings.clone()?.with_whole_periods(), &faults));
            families.iter().map(|family| row(*family)).collect::<Vec<_>>()
        });
        Some(Self {
            lease_s: lease.as_secs_f64(),
            faults_s: faults.iter().map(|fault| seconds(*fault)).collect(),
            forced: faults.iter().map(|fault| forced.share_forced(*fault)).collect(),
            rows: rows.collect::<Option<_>>()?,
        })
    }
}

fn row(policy: &str, family: Family, timings: &Timings, faults: &[i64]) -> Row {
    let for_good = Fault {
        family,
        scope: Scope::Holders,
        phase: 0,
        length: timings.lease.saturating_mul(LONG_ENOUGH),
    };
    let fate = timings.fate(&for_good);
    Row {
        policy: policy.to_owned(),
        family,
        lost: faults.iter().map(|fault| timings.share_lost(family, *fault)).collect(),
        survives_s: seconds(timings.survives(family)),
        told_s: fate.told.map(|told| seconds(told - timings.lease)),
        overlap_s: fate.told.map(|_| seconds(fate.overlap(0, i64::MAX))),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<27}", "share of held locks lost")?;
        for fault in &self.faults_s {
            write!(f, "{:>9}", format!("{fault} s"))?;
        }
        writeln!(f, "{:>11}{:>10}{:>12}", "survives", "told", "two at once")?;
        for row in &self.rows {
            write!(f, "{:<16}{:<11}", row.policy, row.family)?;
            for share in &row.lost {
                write!(f, "{:>9}", words(*share))?;
            }
            let told = row.told_s.map_or("never".to_owned(), |told| format!("{told:+.1} s"));
            let overlap = row
                .overlap_s
                .map_or("no bound".to_owned(), |overlap| format!("{overlap:.1} s"));
            writeln!(f, "{:>9.1} s{told:>10}{overlap:>12}", row.survives_s)?;
        }
        write!(f, "{:<27}", "forced: no policy can help")?;
        for forced in &self.forced {
            let (from, to) = (*forced, *forced);
            write!(f, "{:>9}", words(Share { from, to }))?;
        }
        writeln!(f)?;
        writeln!(f)?;
        writeln!(
            f,
            "Lease {} s, renewed each third of it. A range is what the policy's jitter can make of it. survives: the longest fault\n\
             that costs no lock. told: when a holder that is cut off for good hears of it, from the end of its lease. two at once: for how\n\
             long at most the next holder then works beside it; \"no bound\": until its work ends.",
            self.lease_s
        )
    }
}

/// A share as the design prints it: `.30`, `1`, or a range.
fn words(share: Share) -> String {
    let one = |share: f64| match format!("{share:.2}").as_str() {
        "0.00" => "0".to_owned(),
        "1.00" => "1".to_owned(),
        part => part.trim_start_matches('0').to_owned(),
    };
    match (one(share.from), one(share.to)) {
        (from, to) if from == to => from,
        (from, to) => format!("{from}–{to}"),
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

fn seconds(nanos: i64) -> f64 {
    nanos as f64 / 1e9
}

/// So many leases outlast every policy that ends.
const LONG_ENOUGH: i64 = 100;
