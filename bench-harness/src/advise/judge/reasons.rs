//! Reasons that go with whatever is taken: its price, what it does not give, and what no kind of lock changes.

use super::{
    Case, Clause, FAIR, FENCED, FEW_MEET, MULTI, PLAIN, QUORUM, READ_WRITE, SPIN, is_lock, is_mostly_refused, number,
    tail,
};
use crate::workload;

impl Case<'_> {
    /// Why a renewal that fails must not go unnoticed.
    pub(super) fn stakes(&self, name: &str) -> Vec<Clause> {
        let lease = self.scenario.lease();
        let longest = self.value(name, "hold.max");
        let longer = longest.filter(|ms| *ms > lease.as_secs_f64() * 1e3).and_then(|_| {
            Clause::new(
                &format!(
                    "The work took up to {{}}, longer than the lease of {lease:?}: only renewals keep the lock, and the policy deadline \
                     tells its holder before it can be another's."
                ),
                [self.cite(name, "hold.max")],
            )
        });
        let dear = self.scenario.guards.money.then(|| {
            Clause::new(
                "Money is at stake, and {} overlaps in {} locks are no promise: a process that freezes does not hear that its lease is \
                 over.",
                [self.cite(name, "overlap.count"), self.cite(name, "acquired")],
            )
        });
        longer.into_iter().chain(dear.flatten()).collect()
    }

    /// What is asked for and this kind does not give.
    pub(super) fn unmet(&self, name: &str) -> Vec<Clause> {
        let guards = &self.scenario.guards;
        let mut unmet = Vec::new();
        if [QUORUM, MULTI].contains(&name) {
            unmet.extend(self.stakes(name));
        }
        if guards.keys_together > 1 && name != MULTI {
            let sentence = format!(
                "It takes one name a time, for {{}} commands: take the {} in sorted order, so that no two wait for each other.",
                guards.keys_together
            );
            unmet.extend(Clause::new(&sentence, [self.cite(name, "commands")]));
        }
        if guards.order && name != FAIR {
            unmet.extend(Clause::new(
                "It keeps no order: {} came later and were served sooner at p99, {} at most.",
                [
                    self.cite(name, "fairness.overtakes.p99"),
                    self.cite(name, "fairness.overtakes.max"),
                ],
            ));
        }
        if guards.tokens && name != FENCED {
            unmet.extend(Clause::new(
                "It numbers no holders, though what is guarded would refuse an older number: fenced does, with {} commands a lock.",
                [self.cite(FENCED, "commands")],
            ));
        }
        let starved = |name| self.value(name, "fairness.starved");
        if starved(FAIR) < starved(name) && [FENCED, MULTI, QUORUM, SPIN].contains(&name) {
            unmet.extend(Clause::new(
                &format!(
                    "Of {{}} that got {name}, {{}} waited more than ten times as long as the median; of {{}} that got fair, {{}}."
                ),
                [
                    self.cite(name, "acquired"),
                    self.cite(name, "fairness.starved"),
                    self.cite(FAIR, "acquired"),
                    self.cite(FAIR, "fairness.starved"),
                ],
            ));
        }
        if guards.versions {
            unmet.extend(Clause::new(
                "An optimistic version would not do: a share of {} came while another was at work, and about as many writes would be \
                 refused and done again.",
                [self
                    .cite(PLAIN, "contended.share")
                    .filter(|share| share.value > FEW_MEET)],
            ));
        }
        unmet
    }

    pub(super) fn refused(&self) -> Option<Clause> {
        Clause::new(
            "What is guarded refuses a stale holder by its token: {} of {} were out of order.",
            [self.cite(FENCED, "fence.disorder"), self.cite(FENCED, "acquired")],
        )
    }

    /// What a kind costs beside the plain one.
    pub(super) fn price(&self, name: &str) -> Option<Clause> {
        let (row, plain) = (self.row(name)?, self.row(PLAIN)?);
        let sent = || [row.cite("commands"), plain.cite("commands")];
        // Where most are refused, times only say how long they were to wait.
        if [row, plain].into_iter().any(is_mostly_refused) {
            return Clause::new("Its price: {} commands a lock, where reentrant sends {}.", sent());
        }
        let tail = tail(row, plain);
        let times = row.get("acquire.p50")? / plain.get("acquire.p50")?;
        let numbers = [
            row.cite("throughput"),
            row.cite("acquire.p50"),
            row.cite(tail.metric),
            plain.cite("throughput"),
            plain.cite("acquire.p50"),
            plain.cite(tail.metric),
        ];
        Clause::new(
            &format!(
                "Its price: {{}}, {{}} at p50 and {{}} {}, where reentrant does {{}} with {{}} and {{}} (×{} at p50), and {{}} commands a \
                 lock, where reentrant sends {{}}.",
                tail.words,
                number(times)
            ),
            numbers.into_iter().chain(sent()),
        )
    }

    /// How the plain lock does beside the other kinds.
    pub(super) fn others(&self) -> Option<Clause> {
        let plain = self.row(PLAIN)?;
        let mut sentence = "reentrant does {} with {} at p50".to_owned();
        let mut numbers = vec![plain.cite("throughput"), plain.cite("acquire.p50")];
        for row in self.rows.iter().filter(|row| is_lock(row) && row.name != PLAIN) {
            sentence += &format!("; {} {{}} with {{}}, {{}} starved", row.name);
            numbers.extend(["throughput", "acquire.p50", "fairness.starved"].map(|metric| row.cite(metric)));
        }
        Clause::new(&(sentence + "."), numbers)
    }

    /// Whoever finds it busy goes away, and most do.
    pub(super) fn try_once(&self, name: &str) -> Option<Clause> {
        let row = self.row(name).filter(|row| is_mostly_refused(row))?;
        let wait = self.scenario.workload.wait.0;
        (row.get("hold.mean")? > wait.as_secs_f64() * 1e3).then_some(())?;
        Clause::new(
            "Try once (try_acquire): {} got it and worked for {}, while {} found it busy and had nothing to wait for.",
            [row.cite("acquired"), row.cite("hold.mean"), row.cite("timeouts")],
        )
    }

    /// One lock that is hardly ever free is the limit, whatever its kind.
    pub(super) fn never_free(&self, name: &str) -> Option<Clause> {
        let row = self
            .row(name)
            .filter(|row| name != READ_WRITE && !is_mostly_refused(row))?;
        let share = workload::hottest_share(self.scenario);
        let busy_s = (row.get("hold.mean")? + row.get("hand_over.mean")?) / 1e3;
        let bound = 1.0 / (busy_s * share);
        (row.get("throughput")? >= bound * NEVER_FREE).then_some(())?;
        Clause::new(
            &format!(
                "The hottest lock is hardly ever free: it gets {} % of all, for {{}} of work and {{}} until the next one has it, so {} a \
                 second in all are the most, and {{}} were done. No kind of lock changes that: split the key, or work for a shorter time \
                 under it.",
                number(share * 100.0),
                number(bound)
            ),
            ["hold.mean", "hand_over.mean", "throughput"].map(|metric| row.cite(metric)),
        )
    }
}

/// A lock that is busy for this part of the time is the limit.
const NEVER_FREE: f64 = 0.8;
