//! Where no lock is the answer: a script, a unique key or a version does it.

use super::{Advice, Case, Clause, FEW_MEET, FREE, PLAIN, Row, SCRIPT, advice, is_as_good, is_lock, tail};

impl Case<'_> {
    /// One script does the work, and does it better than any lock.
    pub(super) fn script(&self) -> Option<Advice> {
        let script = self.row(SCRIPT).filter(|_| self.scenario.guards.script)?;
        let locks = self.rows.iter().filter(|row| is_lock(row));
        let best = locks.max_by(|a, b| {
            let done = |row: &Row| row.get("throughput").unwrap_or(0.0);
            done(a).total_cmp(&done(b))
        })?;
        if !is_as_good(script, best) {
            return None;
        }
        let tail = tail(script, best);
        let faster = Clause::new(
            &format!(
                "One script does the whole work: {{}}, {{}} at p50 and {{}} {}, where the best lock, {}, does {{}} with {{}} and {{}}.",
                tail.words, best.name
            ),
            [
                script.cite("throughput"),
                script.cite("acquire.p50"),
                script.cite(tail.metric),
                best.cite("throughput"),
                best.cite("acquire.p50"),
                best.cite(tail.metric),
            ],
        )?;
        let right = Clause::new(
            "It is right without a lock: {} of {} updates are missing.",
            [script.cite("lost_updates"), script.cite("acquired")],
        );
        let cheaper = Clause::new(
            &format!("It is {{}} commands a piece of work; {} sends {{}} a lock.", best.name),
            [script.cite("commands"), best.cite("commands")],
        );
        advice("no lock: one atomic script", None, [Some(faster), right, cheaper])
    }

    /// A unique key refuses whoever comes second.
    pub(super) fn unique(&self) -> Option<Advice> {
        if !self.scenario.guards.unique {
            return None;
        }
        let reason = Clause::new(
            "An insert under a unique key refuses whoever comes second in about a round trip, {}, and nobody waits; reentrant took {} at \
             p50 and {} commands a lock.",
            [
                self.cite(FREE, "acquire.p50"),
                self.cite(PLAIN, "acquire.p50"),
                self.cite(PLAIN, "commands"),
            ],
        );
        advice("no lock: a unique key", None, [reason])
    }

    /// A write that is refused because of a newer version is done again, which few have to.
    pub(super) fn versions(&self) -> Option<Advice> {
        let plain = self.row(PLAIN).filter(|_| self.scenario.guards.versions)?;
        if plain.get("contended.share")? > FEW_MEET {
            return None;
        }
        let reason = Clause::new(
            "Few meet: a share of {} came while another was at work, and about as many writes would be refused for their version and \
             done again. A write on a version takes about a round trip, {}; reentrant took {} at p50 and {} commands a lock.",
            [
                plain.cite("contended.share"),
                self.cite(FREE, "acquire.p50"),
                plain.cite("acquire.p50"),
                plain.cite("commands"),
            ],
        );
        advice("no lock: an optimistic version", None, [reason])
    }
}
