//! The server's side: who owned each lock, from the effects that an append-only file holds, against who worked.
//!
//! The file has no clock of its own. A grant's instant is its expiry less the lease; the end of a hold lies between two ticks, keys
//! into which the server's time is written about each millisecond. So all of it is good to a millisecond, and nothing under two counts.
//! Instants are nanoseconds; the caller brings the server's clock and that of the workers together with `offset`.

use std::collections::BTreeMap;

use super::Work;

/// What a key of the file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The hash of this lock.
    Lock(u64),
    /// The counter of this lock's fencing tokens.
    Token(u64),
    /// Where the server's time is written, in microseconds.
    Tick,
    /// Nothing of ours.
    Other,
}

/// One hold of one lock as the server had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The lock.
    pub key: u64,
    /// The field of its holder.
    pub holder: Vec<u8>,
    /// The fencing token, 0 if there was none.
    pub fence: u64,
    /// When it was granted.
    pub from: u64,
    /// When it ended: released, or expired. The latest instant that the file allows.
    pub to: u64,
}

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Every hold, in the order of the grants. One that had not ended in the file ends with its expiry.
    pub owned: Vec<Owned>,
    /// Grants to one holder while another still held the lock: the server broke its own rule.
    pub owned_twice: u64,
    /// Grants whose token is not above the one before.
    pub tokens_that_fell: u64,
    /// Holds that were ended after the last tick: when is unknown, so their ends, taken as the expiry, are no evidence.
    pub ends_without_tick: u64,
}

/// How ownership and work differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Work outside the holder's own ownership: how often, and in sum and at most how long.
    pub exposed: Lengths,
    /// Ownership while nobody worked.
    pub orphaned: Lengths,
    /// Grants that no worker worked under.
    pub grants_without_work: u64,
    /// Workers that worked under no grant.
    pub work_without_grant: u64,
}

/// Lengths that count, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub total: u64,
    /// The longest.
    pub max: u64,
}

impl Lengths {
    fn add(&mut self, length: u64) {
        if length >= COUNTS {
            self.count += 1;
            self.total += length;
            self.max = self.max.max(length);
        }
    }
}

/// The commands of a file, in its order; those of a transaction that was not written to its end are left out, as is a torn tail.
pub fn commands(file: &[u8]) -> Vec<Vec<&[u8]>> {
    let (mut rest, mut found, mut begun) = (file, Vec::new(), None);
    while let Some((command, after)) = command(rest) {
        rest = after;
        match command.first() {
            Some(name) if name.eq_ignore_ascii_case(b"MULTI") => begun = Some(found.len()),
            Some(name) if name.eq_ignore_ascii_case(b"EXEC") => begun = None,
            Some(_) => found.push(command),
            None => {}
        }
    }
    found.truncate(begun.unwrap_or(found.len()));
    found
}

/// Who owned what, by these commands. The lease must be that of every grant; `offset` is added to the server's clock.
pub fn ownership(commands: &[Vec<&[u8]>], lease: u64, offset: i64, named: impl Fn(&[u8]) -> Named) -> Ownership {
    let clock = |nanos: u64| nanos.saturating_add_signed(offset);
    let mut next_tick = Vec::with_capacity(commands.len());
    let mut tick = u64::MAX;
    for command in commands.iter().rev() {
        if let [name, key, value, ..] = command[..]
            && name.eq_ignore_ascii_case(b"SET")
            && named(key) == Named::Tick
        {
            tick = number(value).map_or(tick, |micros| clock(micros * 1_000));
        }
        next_tick.push(tick);
    }
    next_tick.reverse();

    let mut found = Ownership::default();
    let mut locks: BTreeMap<u64, Lock> = BTreeMap::new();
    for (command, &by) in commands.iter().zip(&next_tick) {
        let [name, key, ..] = command[..] else { continue };
        match (&name.to_ascii_uppercase()[..], named(key), &command[2..]) {
            (b"HSET" | b"HINCRBY", Named::Lock(key), [holder, ..]) => {
                let lock = locks.entry(key).or_default();
                let mine = lock.open.is_some_and(|open| found.owned[open].holder == *holder);
                if !mine {
                    found.owned_twice += u64::from(lock.open.is_some());
                    lock.open = Some(found.owned.len());
                    lock.granted = false;
                    found.owned.push(Owned {
                        key,
                        holder: holder.to_vec(),
                        fence: 0,
                        from: by,
                        to: by,
                    });
                }
            }
            (b"PEXPIREAT", Named::Lock(key), [expires, ..]) => {
                let lock = locks.entry(key).or_default();
                if let (Some(open), Some(millis)) = (lock.open, number(expires)) {
                    let owned = &mut found.owned[open];
                    owned.to = clock(millis * 1_000_000);
                    if !lock.granted {
                        owned.from = owned.to.saturating_sub(lease);
                        lock.granted = true;
                    }
                }
            }
            (b"HDEL", Named::Lock(key), holders) => {
                let lock = locks.entry(key).or_default();
                if lock
                    .open
                    .is_some_and(|open| holders.contains(&&found.owned[open].holder[..]))
                {
                    found.ends_without_tick += lock.end(&mut found.owned, by);
                }
            }
            (b"DEL" | b"UNLINK", _, _) => {
                for key in &command[1..] {
                    if let Named::Lock(key) = named(key) {
                        found.ends_without_tick += locks.entry(key).or_default().end(&mut found.owned, by);
                    }
                }
            }
            (b"INCR", Named::Token(key), _) => {
                let lock = locks.entry(key).or_default();
                lock.token += 1;
                lock.number(&mut found.owned);
            }
            (b"SET", Named::Token(key), [value, ..]) => {
                let lock = locks.entry(key).or_default();
                lock.token = number(value).unwrap_or(0);
                lock.number(&mut found.owned);
            }
            _ => {}
        }
    }
    let mut newest: BTreeMap<u64, (usize, u64)> = BTreeMap::new();
    for index in 0..found.owned.len() {
        let Owned { key, from, fence, .. } = found.owned[index];
        if let Some((before, token)) = newest.insert(key, (index, fence)) {
            // A hold that ended between the same two ticks as the next began ended before it.
            let to = &mut found.owned[before].to;
            *to = (*to).min(from);
            found.tokens_that_fell += u64::from(fence > 0 && fence <= token);
        }
    }
    found
}

/// Holds each worker's work against the hold with its token; needs the tokens of a fenced lock.
pub fn difference(owned: &[Owned], work: &[Work]) -> Difference {
    let mut found = Difference::default();
    let grants: BTreeMap<_, _> = owned.iter().map(|owned| ((owned.key, owned.fence), owned)).collect();
    let mut of_key: BTreeMap<u64, Vec<&Work>> = BTreeMap::new();
    let mut worked = BTreeMap::new();
    for work in work {
        of_key.entry(work.key).or_default().push(work);
        worked.insert((work.key, work.fence), ());
        match grants.get(&(work.key, work.fence)) {
            Some(owned) => {
                let early = owned.from.min(work.to).saturating_sub(work.from);
                found
                    .exposed
                    .add(early.max(work.to.saturating_sub(owned.to.max(work.from))));
            }
            None => found.work_without_grant += 1,
        }
    }
    of_key
        .values_mut()
        .for_each(|works| works.sort_by_key(|work| work.from));
    for owned in owned {
        found.grants_without_work += u64::from(!worked.contains_key(&(owned.key, owned.fence)));
        let mut idle_from = owned.from;
        for work in of_key.get(&owned.key).into_iter().flatten() {
            if work.to > idle_from && work.from < owned.to {
                found.orphaned.add(work.from.saturating_sub(idle_from));
                idle_from = work.to;
            }
        }
        found.orphaned.add(owned.to.saturating_sub(idle_from));
    }
    found
}

/// What is known of a lock while the file is read.
#[derive(Default)]
struct Lock {
    /// The place of the hold that has not ended.
    open: Option<usize>,
    /// Its first expiry was seen.
    granted: bool,
    token: u64,
}

impl Lock {
    /// The hold is gone: it had expired, or was released before the next tick. How many ended with no tick to come.
    fn end(&mut self, owned: &mut [Owned], by: u64) -> u64 {
        let Some(open) = self.open.take() else { return 0 };
        owned[open].to = owned[open].to.min(by);
        u64::from(by == u64::MAX)
    }

    /// A grant comes with its token in one script, which may count and then set it.
    fn number(&self, owned: &mut [Owned]) {
        if let Some(open) = self.open {
            owned[open].fence = self.token;
        }
    }
}

/// One command and what follows it, or nothing where the file is torn.
fn command(file: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let (head, mut rest) = line(file)?;
    let Some(length) = head.strip_prefix(b"*") else {
        // A time stamp, where the server writes some.
        return head.starts_with(b"#").then_some((Vec::new(), rest));
    };
    let mut words = Vec::new();
    for _ in 0..number(length)? {
        let (head, after) = line(rest)?;
        let length = usize::try_from(number(head.strip_prefix(b"$")?)?).ok()?;
        let (word, after) = after.split_at_checked(length)?;
        words.push(word);
        rest = after.strip_prefix(b"\r\n")?;
    }
    Some((words, rest))
}

fn line(file: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = file.windows(2).position(|two| two == b"\r\n")?;
    Some((&file[..end], &file[end + 2..]))
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Evidence of a millisecond on both sides: what is shorter may be nothing.
const COUNTS: u64 = 2_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LEASE: u64 = 100 * MS;

    /// A file as a server would write it.
    #[derive(Default)]
    struct Written(Vec<u8>);

    impl Written {
        fn command(mut self, text: &str) -> Self {
            let words: Vec<_> = text.split(' ').collect();
            self.0.extend(format!("*{}\r\n", words.len()).bytes());
            for word in words {
                self.0.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
            }
            self
        }

        fn tick(self, millis: u64) -> Self {
            self.command(&format!("set tick {}", millis * 1_000))
        }

        /// A grant in a transaction, at this millisecond.
        fn grant(self, holder: &str, millis: u64, token: u64) -> Self {
            self.command("MULTI")
                .command(&format!("hincrby lock {holder} 1"))
                .command(&format!("PEXPIREAT lock {}", millis + 100))
                .command("incr token")
                .command(&format!("set token {token}"))
                .command("EXEC")
        }

        fn read(&self) -> Ownership {
            ownership(&commands(&self.0), LEASE, 0, |key| match key {
                b"lock" => Named::Lock(1),
                b"token" => Named::Token(1),
                b"tick" => Named::Tick,
                _ => Named::Other,
            })
        }
    }

    /// Held from 1,000 to 1,050 and released, then from 1,060 until it expires at 1,160.
    fn clean() -> Written {
        let first = Written::default().grant("a", 1_000, 5).tick(1_049);
        let released = first.command("DEL lock").tick(1_050).tick(1_059);
        let second = released.grant("b", 1_060, 6).tick(1_061).tick(1_160);
        second.command("DEL lock").tick(1_161)
    }

    fn work(fence: u64, from: u64, to: u64) -> Work {
        Work {
            key: 1,
            owner: fence,
            from,
            to,
            reads: false,
            fence,
        }
    }

    #[test]
    fn a_clean_history_gives_the_holds_and_no_difference() {
        let read = clean().read();
        let times: Vec<_> = read
            .owned
            .iter()
            .map(|owned| (owned.fence, owned.from, owned.to))
            .collect();
        assert_eq!(times, [(5, 1_000 * MS, 1_050 * MS), (6, 1_060 * MS, 1_160 * MS)]);
        assert_eq!(
            (read.owned_twice, read.tokens_that_fell, read.ends_without_tick),
            (0, 0, 0)
        );
        let works = [work(5, 1_001 * MS, 1_050 * MS), work(6, 1_061 * MS, 1_159 * MS)];
        assert_eq!(difference(&read.owned, &works), Difference::default());
    }

    #[test]
    fn work_two_milliseconds_beyond_the_hold_is_exposed_and_one_is_not() {
        let owned = clean().read().owned;
        let exposed = |late: u64| {
            let works = [work(5, 1_000 * MS, 1_050 * MS), work(6, 1_060 * MS, 1_160 * MS + late)];
            difference(&owned, &works).exposed
        };
        assert_eq!(exposed(MS), Lengths::default());
        let two = Lengths {
            count: 1,
            total: 2 * MS,
            max: 2 * MS,
        };
        assert_eq!(exposed(2 * MS), two);
    }

    #[test]
    fn a_hold_that_outlives_its_worker_is_an_orphan() {
        let works = [work(5, 1_000 * MS, 1_050 * MS), work(6, 1_060 * MS, 1_100 * MS)];
        let found = difference(&clean().read().owned, &works);
        assert_eq!((found.orphaned.count, found.orphaned.max), (1, 60 * MS));
    }

    #[test]
    fn grants_and_work_that_have_no_counterpart_are_told() {
        let works = [work(5, 1_000 * MS, 1_050 * MS), work(7, 1_060 * MS, 1_160 * MS)];
        let found = difference(&clean().read().owned, &works);
        assert_eq!((found.grants_without_work, found.work_without_grant), (1, 1));
    }

    #[test]
    fn a_token_that_does_not_grow_and_a_lock_owned_twice_are_told() {
        let again = clean().grant("c", 1_170, 6).tick(1_171);
        assert_eq!(again.read().tokens_that_fell, 1);
        let twice = again.grant("d", 1_180, 9).tick(1_181);
        assert_eq!(twice.read().owned_twice, 1);
    }

    #[test]
    fn an_end_with_no_tick_to_come_is_told() {
        let read = clean().grant("c", 1_170, 7).tick(1_171).command("DEL lock").read();
        assert_eq!((read.ends_without_tick, read.owned[2].to), (1, 1_270 * MS));
    }

    #[test]
    fn a_renewal_moves_the_end_and_not_the_grant() {
        let renewed = Written::default().grant("a", 1_000, 5).command("PEXPIREAT lock 1130");
        let owned = renewed.tick(1_131).command("DEL lock").tick(1_132).read().owned;
        assert_eq!((owned[0].from, owned[0].to), (1_000 * MS, 1_130 * MS));
    }

    #[test]
    fn wherever_the_file_is_torn_what_lies_before_is_read_and_no_part_of_a_transaction() {
        let whole = clean();
        let all = commands(&whole.0);
        let transaction = commands(&Written::default().grant("a", 1_000, 5).0).len();
        for end in 0..whole.0.len() {
            let read = commands(&whole.0[..end]);
            assert!(read.len() < all.len() && all.starts_with(&read));
            assert!(read.is_empty() || read.len() >= transaction);
        }
        assert_eq!(commands(b"#TS:1796086353\r\n*1\r\n$4\r\nPING\r\n"), [[b"PING"]]);
    }
}
