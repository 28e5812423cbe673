//! Whole append-only files beside the work that was done under them, clean and with one violation planted: what is there is found, and
//! nothing else.

use super::{Gap, Named, Owned, Work, commands, exposures, holds_of, ownership, unattended};

/// One key after the other, as a server would write it, and the work under each hold. Times in microseconds.
struct History {
    file: Vec<u8>,
    holds: Vec<Hold>,
    /// How the server's clock, which the file has, lies to that of the work.
    offset_us: i64,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    fence: u64,
    granted: u64,
    ended: u64,
    /// Ended by its expiry, and not by a release.
    expired: bool,
    work: (u64, u64),
}

impl History {
    fn clean(rng: &mut fastrand::Rng) -> Self {
        let mut history = Self {
            file: Vec::new(),
            holds: Vec::new(),
            offset_us: rng.i64(-5_000_000..5_000_000),
        };
        let (mut clock, mut next_tick) = (rng.u64(10_000_000..11_000_000), 0);
        for fence in 1..=HOLDS {
            let granted = clock;
            history.tick_until(granted, &mut next_tick, rng);
            history.line(&format!("HSET lock holder-{fence} 1"));
            history.line(&format!("PEXPIREAT lock {}", granted / 1_000 + LEASE_MS));
            history.line("INCR token");
            let renewed = granted + rng.u64(0..LEASE_MS * 1_000);
            history.tick_until(renewed, &mut next_tick, rng);
            history.line(&format!("PEXPIREAT lock {}", renewed / 1_000 + LEASE_MS));
            // It is there until the millisecond of its expiry is over.
            let expires = (renewed / 1_000 + LEASE_MS + 1) * 1_000;
            let expired = rng.bool();
            let ended = if expired { expires } else { rng.u64(renewed..expires) };
            history.tick_until(ended, &mut next_tick, rng);
            history.line("DEL lock");
            let begun = granted + rng.u64(0..400);
            history.holds.push(Hold {
                fence,
                granted,
                ended,
                expired,
                work: (begun, ended.max(begun)),
            });
            // Some get it in the very microsecond in which the one before ended.
            clock = ended + rng.u64(0..2) * rng.u64(0..50_000);
        }
        history.tick_until(clock + 10_000, &mut next_tick, rng);
        history
    }

    fn line(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        self.file.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            self.file.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
        }
    }

    /// A tick every other millisecond or a little later, up to this instant.
    fn tick_until(&mut self, until: u64, next: &mut u64, rng: &mut fastrand::Rng) {
        if *next == 0 {
            *next = until;
        }
        while *next < until {
            self.line(&format!("SET tick {next}"));
            *next += rng.u64(2_000..=LONGEST_TICK_US);
        }
    }

    fn read(&self) -> (Vec<Owned>, Vec<Work>) {
        let (commands, unread) = commands(&self.file);
        assert_eq!(unread, 0);
        let read = ownership(
            &commands,
            LEASE_MS * 1_000_000,
            self.offset_us * 1_000,
            |key| match key {
                b"lock" => Named::Lock(0),
                b"token" => Named::Token(0),
                b"tick" => Named::Tick,
                _ => Named::Other,
            },
        );
        assert_eq!(
            (read.owned_twice, read.tokens_that_fell, read.ends_without_tick),
            (0, 0, 0)
        );
        let work = self.holds.iter().map(|hold| Work {
            key: 0,
            owner: hold.fence,
            from: self.clock(hold.work.0),
            to: self.clock(hold.work.1),
            reads: false,
            fence: hold.fence,
        });
        (read.owned, work.collect())
    }

    /// An instant of the server on the clock of the work, in nanoseconds.
    fn clock(&self, server_us: u64) -> u64 {
        (server_us * 1_000).saturating_add_signed(self.offset_us * 1_000)
    }

    /// Exposures and orphans.
    fn gaps(&self, tokens: bool) -> (Vec<Gap>, Vec<Gap>) {
        let (owned, mut work) = self.read();
        if !tokens {
            work.iter_mut().for_each(|work| work.fence = 0);
        }
        let holds = holds_of(&owned, &work);
        (
            exposures(&owned, &work, &holds),
            unattended(&owned, &work, &holds, u64::MAX),
        )
    }
}

#[test]
fn clean_files_give_every_hold_and_no_alarm() {
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let history = History::clean(&mut rng);
        let (owned, _) = history.read();
        assert_eq!(owned.len() as u64, HOLDS, "seed {seed}");
        for (owned, hold) in owned.iter().zip(&history.holds) {
            let [granted, ended] = [hold.granted, hold.ended].map(|us| history.clock(us));
            assert!(
                (owned.from..owned.from + MS).contains(&granted),
                "seed {seed}: {owned:?} {hold:?}"
            );
            assert!(
                (owned.surely_to..=owned.to).contains(&ended),
                "seed {seed}: {owned:?} {hold:?}"
            );
        }
        assert_eq!(history.gaps(true), (vec![], vec![]), "seed {seed}");
    }
}

#[test]
fn a_millisecond_of_work_behind_an_expiry_is_found_with_its_length_and_behind_a_release_once_it_outlasts_the_tick() {
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut history = History::clean(&mut rng);
        let hold = &mut history.holds[rng.usize(0..HOLDS as usize)];
        let unseen = if hold.expired { 0 } else { LONGEST_TICK_US };
        // From a millisecond to half a second.
        let length = unseen + (1_000 << (seed % 10));
        hold.work.1 = hold.ended + length;
        let owner = hold.fence;
        let (exposed, orphaned) = history.gaps(true);
        assert_eq!((exposed.len(), orphaned.len()), (1, 0), "seed {seed}");
        let found = (exposed[0].to - exposed[0].from) / 1_000;
        assert_eq!(exposed[0].owner, Some(owner), "seed {seed}");
        assert!(
            (length - unseen..=length).contains(&found),
            "seed {seed}: {found} of {length}"
        );
    }
}

#[test]
fn less_than_a_millisecond_behind_an_expiry_may_be_nothing() {
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut history = History::clean(&mut rng);
        let hold = &mut history.holds[rng.usize(0..HOLDS as usize)];
        hold.work.1 = hold.ended + rng.u64(0..1_000);
        assert_eq!(history.gaps(true).0, [], "seed {seed}");
    }
}

#[test]
fn work_that_nothing_was_granted_for_is_found_whole() {
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut history = History::clean(&mut rng);
        let hold = &mut history.holds[rng.usize(0..HOLDS as usize)];
        (hold.fence, hold.work.1) = (HOLDS + 7, hold.work.1.max(hold.work.0 + 1_000));
        let exposed = history.gaps(true).0;
        let found: Vec<_> = exposed.iter().map(|gap| gap.owner).collect();
        assert_eq!(found, [Some(HOLDS + 7)], "seed {seed}");
    }
}

#[test]
fn a_hold_that_its_worker_left_is_found_with_a_token_or_without() {
    for seed in 0..SEEDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut history = History::clean(&mut rng);
        let tokens = rng.bool();
        let hold = &mut history.holds[rng.usize(0..HOLDS as usize)];
        let length = LONGEST_TICK_US + 2_000 + (1_000 << (seed % 6));
        if hold.ended < hold.work.0 + length {
            continue;
        }
        hold.work.1 = hold.ended - length;
        let (exposed, orphaned) = history.gaps(tokens);
        assert_eq!((exposed.len(), orphaned.len()), (0, 1), "seed {seed}");
        let found = (orphaned[0].to - orphaned[0].from) / 1_000;
        assert!(
            (length - LONGEST_TICK_US..=length).contains(&found),
            "seed {seed}: {found} of {length}"
        );
    }
}

const SEEDS: u64 = 400;
const HOLDS: u64 = 20;
const LEASE_MS: u64 = 300;
const MS: u64 = 1_000_000;

/// In microseconds; a timer of two milliseconds is late.
const LONGEST_TICK_US: u64 = 3_500;
