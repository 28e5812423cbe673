//! The rules by which a kind of lock is taken, in the order in which they are asked.

use leasehold::LockKind;

use super::{
    Advice, Case, Clause, FAIR, FENCED, FREE, MULTI, PLAIN, QUORUM, READ_WRITE, Row, SPIN, WRITERS_FIRST, advice,
    gains, is_as_good, tail,
};

impl Case<'_> {
    pub(super) fn several_masters(&self) -> Option<Advice> {
        if !self.scenario.guards.independent_masters {
            return None;
        }
        let reason = Clause::new(
            "A lost master must not lose the lock: {} commands a lock go to three masters that know nothing of each other, where \
             reentrant sends {} to one, and {} overlaps were seen in {} locks.",
            [
                self.cite(QUORUM, "commands"),
                self.cite(PLAIN, "commands"),
                self.cite(QUORUM, "overlap.count"),
                self.cite(QUORUM, "acquired"),
            ],
        );
        advice(QUORUM, Some(LockKind::Quorum), [reason, self.price(QUORUM)])
    }

    pub(super) fn several_keys(&self) -> Option<Advice> {
        let names = self.scenario.guards.keys_together;
        if names < 2 {
            return None;
        }
        let reason = Clause::new(
            &format!(
                "All {names} names are taken in one step, all or none: {{}} commands a lock. One name alone takes {{}}, so {names} in \
                 turn take {names} times that, with some held while others are waited for."
            ),
            [self.cite(MULTI, "commands"), self.cite(PLAIN, "commands")],
        );
        advice(MULTI, Some(LockKind::Multi), [reason, self.price(MULTI)])
    }

    pub(super) fn long_or_dear(&self) -> Option<Advice> {
        let guards = &self.scenario.guards;
        let fenced = guards.tokens && self.row(FENCED).is_some();
        let (name, kind) = if fenced {
            (FENCED, LockKind::Fenced)
        } else {
            (PLAIN, LockKind::Reentrant)
        };
        let stakes = self.stakes(name);
        if stakes.is_empty() {
            return None;
        }
        let refused = fenced.then(|| self.refused());
        let unrefused = (!guards.tokens).then(|| {
            Clause::new(
                "Nothing refuses a stale holder, so let the lease be longer than the {} of the longest work; or let what is guarded \
                 refuse older tokens: fenced sends {} commands a lock, reentrant {}.",
                [
                    self.cite(name, "hold.max"),
                    self.cite(FENCED, "commands"),
                    self.cite(PLAIN, "commands"),
                ],
            )
        });
        let price = fenced.then(|| self.price(FENCED));
        let take = if fenced {
            "fenced, under the policy deadline"
        } else {
            "reentrant, under the policy deadline, with a lease longer than the work"
        };
        let rest = [refused, unrefused, price].map(Option::flatten);
        advice(take, Some(kind), stakes.into_iter().map(Some).chain(rest))
    }

    pub(super) fn in_order(&self) -> Option<Advice> {
        let at_p99 = |name| self.value(name, "fairness.overtakes.p99");
        if !self.scenario.guards.order || at_p99(FAIR)? > at_p99(PLAIN)? {
            return None;
        }
        let reason = Clause::new(
            "It matters who came first, and fair alone promises that. Under fair, {} came later and were served sooner at p99, {} at most; under reentrant {} and {}.",
            [
                self.cite(FAIR, "fairness.overtakes.p99"),
                self.cite(FAIR, "fairness.overtakes.max"),
                self.cite(PLAIN, "fairness.overtakes.p99"),
                self.cite(PLAIN, "fairness.overtakes.max"),
            ],
        );
        advice(FAIR, Some(LockKind::Fair), [reason, self.price(FAIR)])
    }

    pub(super) fn many_readers(&self) -> Option<Advice> {
        let (shared, plain) = (self.row(READ_WRITE)?, self.row(PLAIN)?);
        let enough = shared.get("read.share")? >= MANY_READERS;
        let long = shared.get("hold.mean")? >= plain.get("hand_over.mean")?;
        if !(enough && long && gains(shared, plain)) {
            return None;
        }
        let starved = |row: &Row| row.get("fairness.starved");
        let first = self.row(WRITERS_FIRST);
        let cured = first.filter(|first| starved(first) < starved(shared) && gains(first, plain));
        let taken = cured.unwrap_or(shared);
        let share = Clause::new(
            "A share of {} only reads, for {} at a time, no less than a hand-over's {}: who reads beside others spares one.",
            [
                shared.cite("read.share"),
                shared.cite("hold.mean"),
                plain.cite("hand_over.mean"),
            ],
        );
        let tail = tail(taken, plain);
        let gain = Clause::new(
            &format!(
                "{} does {{}} with {{}} at p50 and {{}} {1}; reentrant does {{}} with {{}} and {{}}.",
                taken.name, tail.words
            ),
            [
                taken.cite("throughput"),
                taken.cite("acquire.p50"),
                taken.cite(tail.metric),
                plain.cite("throughput"),
                plain.cite("acquire.p50"),
                plain.cite(tail.metric),
            ],
        );
        let price = Clause::new(
            "The price of read_write falls on writers: at p99 {} came later and were served sooner, {} at most, and {} starved \
             (reentrant: {}, {} and {}).",
            [shared, plain]
                .iter()
                .flat_map(|row| OF_WRITERS.map(|metric| row.cite(metric))),
        );
        let beside = first.and_then(|first| {
            let numbers = OF_WRITERS.into_iter().chain(["throughput", "acquire.max"]);
            Clause::new(
                "With writers_first(), where readers go behind a writer that waits, that is {}, {} and {}, for {} and {} at most.",
                numbers.map(|metric| first.cite(metric)),
            )
        });
        let take = match cured {
            Some(_) => "read_write, with writers_first()",
            None => READ_WRITE,
        };
        advice(take, Some(LockKind::ReadWrite), [share, gain, price, beside])
    }

    pub(super) fn tokens(&self) -> Option<Advice> {
        if !self.scenario.guards.tokens {
            return None;
        }
        let because = [self.refused(), self.price(FENCED)];
        advice(FENCED, Some(LockKind::Fenced), because)
    }

    pub(super) fn starved(&self) -> Option<Advice> {
        let starved = |name| self.value(name, "fairness.starved");
        if starved(FAIR)? >= starved(PLAIN)? {
            return None;
        }
        let reason = Clause::new(
            "Of {} that got reentrant, {} waited more than ten times as long as the median; of {} that got fair, {}.",
            [
                self.cite(PLAIN, "acquired"),
                self.cite(PLAIN, "fairness.starved"),
                self.cite(FAIR, "acquired"),
                self.cite(FAIR, "fairness.starved"),
            ],
        );
        advice(FAIR, Some(LockKind::Fair), [reason, self.price(FAIR)])
    }

    pub(super) fn short(&self) -> Option<Advice> {
        let plain = self.row(PLAIN)?;
        if plain.get("hold.mean")? >= 2.0 * self.value(FREE, "acquire.p50")? {
            return None;
        }
        let numbers = [plain.cite("hold.mean"), self.cite(FREE, "acquire.p50")];
        let spin = self.row(SPIN).filter(|spin| is_as_good(spin, plain));
        if spin.is_some() {
            let reason = Clause::new(
                "The work takes {}, less than two round trips of {}: who asks again is there sooner than who is woken.",
                numbers,
            );
            return advice(SPIN, Some(LockKind::Spin), [reason, self.price(SPIN)]);
        }
        let reason = Clause::new(
            "The work takes {}, less than two round trips of {}: most of the time goes into the lock, so let one script do the work, \
             if it can.",
            numbers,
        );
        advice(PLAIN, Some(LockKind::Reentrant), [reason, self.others()])
    }

    pub(super) fn plain(&self) -> Option<Advice> {
        let reason = Clause::new(
            "Nothing asks for more: {} starved, {} came later and were served sooner at p99, and {} commands a lock are sent.",
            [
                self.cite(PLAIN, "fairness.starved"),
                self.cite(PLAIN, "fairness.overtakes.p99"),
                self.cite(PLAIN, "commands"),
            ],
        );
        advice(PLAIN, Some(LockKind::Reentrant), [reason, self.others()])
    }
}

/// How those fare whom readers pass by.
const OF_WRITERS: [&str; 3] = ["fairness.overtakes.p99", "fairness.overtakes.max", "fairness.starved"];

/// From this share of readers on it is worth it to let them share.
const MANY_READERS: f64 = 0.8;
