//! What every lock must do: each rule is written once and run for each kind. A new kind adds a line at the end.

mod ends;
mod hand_off;
mod holding;
mod refusals;

use std::time::Duration;

use leasehold::{AcquireError, AcquireOptions, Lease, LockKind, Lockable, Locks, LocksBuilder, Period, RenewalPolicy};
use leasehold_bench::servers::RedisServer;
use tests::{LONG, eventually_async, fresh_server, holders, keys, pttl, query, settings};

/// A lock under test.
#[derive(Clone, Copy)]
struct Subject {
    kind: LockKind,
    reads: bool,
    /// How many names it holds as one; the first is the one that rivals want.
    names: usize,
    /// How many independent masters it is on.
    masters: usize,
}

const fn lock(kind: LockKind) -> Subject {
    Subject {
        kind,
        reads: false,
        names: 1,
        masters: 1,
    }
}

const fn reading(kind: LockKind) -> Subject {
    Subject {
        reads: true,
        ..lock(kind)
    }
}

const fn of_names(kind: LockKind, names: usize) -> Subject {
    Subject { names, ..lock(kind) }
}

const fn over(masters: usize, kind: LockKind) -> Subject {
    Subject { masters, ..lock(kind) }
}

impl Subject {
    fn of(self, locks: &Locks) -> Box<dyn Lockable> {
        self.named(locks, "n")
    }

    fn named(self, locks: &Locks, name: &str) -> Box<dyn Lockable> {
        match (self.names, self.reads) {
            (2.., _) => Box::new(locks.multi(self.names_of(name))),
            (_, true) => locks.lock_for_reading(self.kind, name),
            (_, false) => locks.lock(self.kind, name),
        }
    }

    fn names_of(self, name: &str) -> impl Iterator<Item = String> {
        let others = (1..self.names).map(move |n| format!("{name}:{n}"));
        std::iter::once(name.to_owned()).chain(others)
    }

    /// The name that it shows.
    fn shown(self, name: &str) -> String {
        self.names_of(name).collect::<Vec<_>>().join(", ")
    }

    /// What this lock keeps out, and is kept out by: a reader is by a writer.
    fn rival(self, locks: &Locks) -> Box<dyn Lockable> {
        locks.lock(self.kind, "n")
    }

    /// The keys that stay when nobody holds the lock: the counter of fencing tokens, so that it never falls back.
    fn keys_that_stay(self) -> &'static [&'static str] {
        match self.kind {
            LockKind::Fenced => &["redisson_lock_token:{n}"],
            _ => &[],
        }
    }
}

/// Masters of its own with two clients.
struct Bench {
    /// The one that everything is on, and those beside it.
    servers: Vec<RedisServer>,
    here: Locks,
    there: Locks,
}

impl Bench {
    async fn new(subject: Subject) -> Self {
        let servers: Vec<RedisServer> = (0..subject.masters).map(|_| fresh_server()).collect();
        let client = || async { over_all(&servers).build().await.expect("servers of our own") };
        let (here, there) = (client().await, client().await);
        Bench { servers, here, there }
    }

    fn server(&self) -> &RedisServer {
        &self.servers[0]
    }

    /// A client whose waiters ask again by themselves only after minutes: what they hear sooner came by message.
    async fn patient(&self) -> Locks {
        let settings = over_all(&self.servers).watchdog_time(10 * MINUTE);
        settings.build().await.expect("servers of our own")
    }

    /// One command to each master.
    fn everywhere(&self, command: &redis::Cmd) {
        for server in &self.servers {
            query::<redis::Value>(server, command);
        }
    }

    /// The holders on every master. Of a lock on several, the last may learn of it a little later than the holder.
    async fn fields(&self) -> Vec<Vec<(String, String)>> {
        let all = || -> Vec<_> { self.servers.iter().map(|server| holders(server, "n")).collect() };
        eventually_async(LONG, || {
            let all = all();
            all.iter().all(|fields| fields.len() == all[0].len())
        })
        .await;
        all()
    }

    async fn is_held(&self) -> bool {
        self.fields().await.iter().all(|fields| !fields.is_empty())
    }

    /// What a majority of the masters has left of the lock, at least.
    fn time_left(&self) -> i64 {
        let mut left: Vec<i64> = self.servers.iter().map(|server| pttl(server, "n")).collect();
        left.sort_unstable();
        left[left.len() / 2]
    }

    /// Whether nothing is left but the keys that stay.
    fn looks_free(&self, subject: Subject) -> bool {
        let nothing = |server| keys(server) == subject.keys_that_stay();
        self.servers.iter().all(nothing)
    }

    /// The same right after a release. Of several masters, the last may learn of it a little later.
    async fn is_free(&self, subject: Subject) -> bool {
        if subject.masters > 1 {
            eventually_async(LONG, || self.looks_free(subject)).await;
        }
        self.looks_free(subject)
    }

    /// Takes the lock away on every master, and says whether it was there.
    async fn force_release(&self) -> bool {
        let mut was_there = true;
        for server in &self.servers {
            was_there &= client(server).await.admin().force_release("n").await.unwrap();
        }
        was_there
    }
}

/// Renewals so often and leases so long that a busy machine loses none, and a loss is known soon all the same.
fn steady(server: &RedisServer) -> LocksBuilder {
    let mut policy = RenewalPolicy::deadline();
    policy.period = Period::Fixed(PERIOD);
    settings(server).watchdog_time(LEASE).renewal(policy)
}

/// The same over all of these.
fn over_all(servers: &[RedisServer]) -> LocksBuilder {
    let urls: Vec<String> = servers[1..].iter().map(RedisServer::url).collect();
    steady(&servers[0]).masters_beside(urls.iter().map(String::as_str))
}

async fn client(server: &RedisServer) -> Locks {
    steady(server).build().await.expect("a server of our own")
}

fn plain() -> AcquireOptions {
    AcquireOptions::new()
}

fn for_a_minute() -> AcquireOptions {
    plain().lease_time(MINUTE)
}

/// A lease that is acquired in time. Of three masters one may be too slow for it, and one that is not renewed is not completed later:
/// then it is acquired anew, since the rules compare what all masters have.
async fn hold(lock: &dyn Lockable, options: AcquireOptions) -> Lease {
    loop {
        let lease = tokio::time::timeout(LONG, lock.acquire_with(options.clone())).await;
        let lease = lease.expect("it is acquired in time").expect("it is acquired");
        for _ in 0..100 {
            if lease.masters_held() != 2 {
                return lease;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        lease.release().await.expect("a majority answers");
    }
}

/// The error of a wait that a busy lock ends. On a machine that stands still at that very moment the last attempt may stay without
/// an answer, which is told apart: then it waits again.
async fn in_vain(lock: &dyn Lockable, limit: Duration) -> AcquireError {
    for _ in 0..20 {
        match lock.acquire_with(plain().wait_limit(limit)).await {
            Err(AcquireError::Unavailable { .. } | AcquireError::NoQuorum { .. }) => {}
            other => return other.expect_err("it is busy"),
        }
    }
    panic!("never an answer in time");
}

const MINUTE: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(20);
const PERIOD: Duration = Duration::from_millis(150);

macro_rules! contract {
    ($($kind:ident = $subject:expr;)*) => { $(
        mod $kind {
            use super::*;
            run_for! { $subject;
                holding: it_is_held_by_one_side_only_and_free_when_given_back;
                holding: a_busy_lock_is_an_answer_and_leaves_nothing;
                holding: its_owner_enters_again_and_it_is_free_when_all_are_given_back;
                holding: re_entry_is_refused_at_once_where_it_is_ruled_out;
                holding: a_wait_ends_at_its_limit_and_leaves_nothing;
                holding: a_release_reaches_a_waiter_long_before_the_lease_is_over;
                holding: a_waiter_that_is_cancelled_leaves_nothing;
                holding: a_lease_that_is_dropped_gives_back;
                holding: work_runs_under_the_lock_and_not_without_it;
                holding: every_helper_key_has_an_end_and_is_gone_with_the_lock;
                holding: a_mapped_name_is_the_key_and_the_given_one_is_shown;
                ends: a_deleted_key_is_told_and_not_created_again;
                ends: a_held_lock_is_renewed;
                ends: a_given_lease_time_ends_the_hold_and_tells;
                ends: a_holder_that_overran_its_lease_harms_not_the_next;
                ends: a_forced_release_wakes_waiters_and_tells_the_holder;
                ends: an_extension_sets_the_time_left_and_neither_adds_nor_shortens;
                ends: an_extension_of_what_has_ended_revives_nothing;
                ends: a_longest_hold_ends_on_both_sides_and_is_told;
                ends: a_longest_hold_within_one_lease_ends_too;
                hand_off: what_is_handed_off_goes_on_elsewhere_and_only_once;
                hand_off: only_the_last_lease_is_handed_off;
                hand_off: what_is_handed_off_ends_when_its_lease_does;
                refusals: a_key_that_holds_something_else_is_refused_and_left_alone;
                refusals: every_way_to_fail_has_an_error_of_its_own;
                refusals: what_is_no_write_lock_is_not_downgraded_and_stays_held;
            }
        }
    )*
        const UNDER_CONTRACT: &[Subject] = &[$($subject),*];
    };
}

macro_rules! run_for {
    ($subject:expr; $($group:ident: $rule:ident;)*) => { $(
        #[tokio::test]
        async fn $rule() {
            super::$group::$rule($subject).await;
        }
    )* };
}

contract! {
    reentrant = lock(LockKind::Reentrant);
    fair = lock(LockKind::Fair);
    fenced = lock(LockKind::Fenced);
    spin = lock(LockKind::Spin);
    multi = lock(LockKind::Multi);
    multi_of_three = of_names(LockKind::Multi, 3);
    quorum = over(3, LockKind::Quorum);
    quorum_of_one = lock(LockKind::Quorum);
    write = lock(LockKind::ReadWrite);
    read = reading(LockKind::ReadWrite);
}

#[test]
fn every_kind_is_under_contract() {
    for kind in LockKind::ALL {
        let has_a_line = UNDER_CONTRACT.iter().any(|subject| subject.kind == *kind);
        assert!(has_a_line, "{kind} has no line in contract!");
    }
}
