//! The server's side: who owned each lock, from the effects that an append-only file holds.
//!
//! The file has no clock of its own. A grant's instant is its expiry less the lease, in whole milliseconds; a key is there until the
//! millisecond of its expiry is over; a release lies between two ticks, keys into which the server's time is written every other
//! millisecond. So of an end the earliest and the latest instant are known: what lies after the latest was not owned for certain, what
//! lies before the earliest was. Instants are nanoseconds; the caller brings the server's clock and that of the workers together with
//! `offset`.

use std::collections::BTreeMap;

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
    /// When it was granted. The earliest instant that the file allows.
    pub from: u64,
    /// When it ended: released, or expired. The latest instant that the file allows.
    pub to: u64,
    /// The earliest.
    pub surely_to: u64,
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

/// The commands of a file, in its order, and how many of its bytes could not be read: a torn tail, or all behind what is no command.
/// Those of a transaction that was not written to its end are left out.
pub fn commands(file: &[u8]) -> (Vec<Vec<&[u8]>>, usize) {
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
    (found, rest.len())
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
    let mut last_tick = 0;
    let mut locks: BTreeMap<u64, Lock> = BTreeMap::new();
    for (command, &by) in commands.iter().zip(&next_tick) {
        let [name, key, ..] = command[..] else { continue };
        match (&name.to_ascii_uppercase()[..], named(key), &command[2..]) {
            (b"SET", Named::Tick, [value, ..]) => {
                last_tick = number(value).map_or(last_tick, |micros| clock(micros * 1_000))
            }
            // A read-write lock says in its hash what it is held for.
            (b"HSET" | b"HINCRBY", Named::Lock(_), [b"mode", ..]) => {}
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
                        fence: std::mem::take(&mut lock.unused_token),
                        from: by,
                        to: by,
                        surely_to: by,
                    });
                }
            }
            (b"PEXPIREAT", Named::Lock(key), [expires, ..]) => {
                let lock = locks.entry(key).or_default();
                if let (Some(open), Some(millis)) = (lock.open, number(expires)) {
                    let owned = &mut found.owned[open];
                    let expires = clock(millis * MS);
                    (owned.to, owned.surely_to) = (expires.saturating_add(MS), expires);
                    if !lock.granted {
                        owned.from = expires.saturating_sub(lease);
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
                    found.ends_without_tick += lock.end(&mut found.owned, last_tick, by);
                }
            }
            (b"DEL" | b"UNLINK", _, _) => {
                for key in &command[1..] {
                    if let Named::Lock(key) = named(key) {
                        let lock = locks.entry(key).or_default();
                        found.ends_without_tick += lock.end(&mut found.owned, last_tick, by);
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
            let before = &mut found.owned[before];
            before.to = before.to.min(from.saturating_add(MS));
            before.surely_to = before.surely_to.min(from);
            found.tokens_that_fell += u64::from(fence > 0 && fence <= token);
        }
    }
    found
}

const MS: u64 = 1_000_000;

/// What is known of a lock while the file is read.
#[derive(Default)]
struct Lock {
    /// The place of the hold that has not ended.
    open: Option<usize>,
    /// Its first expiry was seen.
    granted: bool,
    token: u64,
    /// The same, if it was counted before the hold it is for was there.
    unused_token: u64,
}

impl Lock {
    /// The hold is gone: it had expired, or was released between two ticks. How many ended with no tick to come.
    fn end(&mut self, owned: &mut [Owned], after: u64, by: u64) -> u64 {
        let Some(open) = self.open.take() else { return 0 };
        let owned = &mut owned[open];
        owned.to = owned.to.min(by);
        owned.surely_to = owned.surely_to.min(after).max(owned.from);
        u64::from(by == u64::MAX)
    }

    /// A grant comes with its token in one script, which may count it before or after, and then set it.
    fn number(&mut self, owned: &mut [Owned]) {
        match self.open {
            Some(open) => owned[open].fence = self.token,
            None => self.unused_token = self.token,
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

#[cfg(test)]
mod tests {
    use super::*;

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
            ownership(&commands(&self.0).0, LEASE, 0, |key| match key {
                b"lock" => Named::Lock(1),
                b"token" => Named::Token(1),
                b"tick" => Named::Tick,
                _ => Named::Other,
            })
        }
    }

    /// Held from 1,000 to 1,050 and released, then from 1,060 until it expires with the millisecond 1,160.
    fn clean() -> Written {
        let first = Written::default().grant("a", 1_000, 5).tick(1_049);
        let released = first.command("DEL lock").tick(1_050).tick(1_059);
        let second = released.grant("b", 1_060, 6).tick(1_061).tick(1_160);
        second.command("DEL lock").tick(1_161)
    }

    #[test]
    fn a_clean_history_gives_the_holds() {
        let read = clean().read();
        let times: Vec<_> = read
            .owned
            .iter()
            .map(|owned| (owned.fence, owned.from / MS, owned.surely_to / MS, owned.to / MS))
            .collect();
        assert_eq!(times, [(5, 1_000, 1_049, 1_050), (6, 1_060, 1_160, 1_161)]);
        assert_eq!(
            (read.owned_twice, read.tokens_that_fell, read.ends_without_tick),
            (0, 0, 0)
        );
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
        assert_eq!((read.ends_without_tick, read.owned[2].to), (1, 1_271 * MS));
    }

    #[test]
    fn a_renewal_moves_the_end_and_not_the_grant() {
        let renewed = Written::default().grant("a", 1_000, 5).command("PEXPIREAT lock 1130");
        let owned = renewed.tick(1_131).command("DEL lock").tick(1_133).read().owned;
        assert_eq!((owned[0].from, owned[0].to), (1_000 * MS, 1_131 * MS));
    }

    #[test]
    fn wherever_the_file_is_torn_what_lies_before_is_read_and_no_part_of_a_transaction() {
        let whole = clean();
        let (all, unread) = commands(&whole.0);
        assert_eq!(unread, 0);
        let transaction = commands(&Written::default().grant("a", 1_000, 5).0).0.len();
        for end in 0..whole.0.len() {
            let (read, unread) = commands(&whole.0[..end]);
            assert!(read.len() < all.len() && all.starts_with(&read) && unread < 50);
            assert!(read.is_empty() || read.len() >= transaction);
        }
        assert_eq!(
            commands(b"#TS:1796086353\r\n*1\r\n$4\r\nPING\r\nREDIS0010"),
            (vec![vec![&b"PING"[..]]], 9)
        );
    }

    #[test]
    fn a_token_counted_before_its_hold_is_there_is_that_hold_s() {
        let first = clean().command("incr token").command("set token 9");
        let owned = first
            .command("hset lock c 1")
            .command("PEXPIREAT lock 1270")
            .read()
            .owned;
        assert_eq!((owned[1].fence, owned[2].fence), (6, 9));
    }

    #[test]
    fn the_mode_of_a_read_write_lock_is_no_holder() {
        let written = Written::default()
            .command("hset lock mode write")
            .command("hset lock a:write 1");
        let read = written.command("PEXPIREAT lock 1100").read();
        assert_eq!((read.owned.len(), read.owned_twice), (1, 0));
        assert_eq!(read.owned[0].holder, b"a:write");
    }
}
