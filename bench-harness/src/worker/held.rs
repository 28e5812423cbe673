//! The workload `held`: holders keep their locks through a fault while rivals wait for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::{Acquired, Post, say, sleep_until};
use crate::clock;
use crate::driver::{Access, Driver, Hold, Refusal};
use crate::evidence::Kind;
use crate::job::{Note, Tally};
use crate::scenario::nanos;

/// Takes its locks at so many moments, evenly spread over a renewal period, so that the fault meets them in as many phases of it;
/// then works under all of them until told that one is lost, or until the end.
pub(super) async fn hold<D: Driver>(post: Post, driver: D, first_key: u64, moments: u32) -> Result<Tally, String> {
    let count = u64::from(post.job.scenario.workload.keys.count);
    let period = nanos(post.job.scenario.lease()) / 3;
    let moments = u64::from(moments);
    let post = Arc::new(post);
    let mut acquiring = JoinSet::new();
    for number in 0..count {
        let (post, driver) = (Arc::clone(&post), driver.clone());
        acquiring.spawn(async move {
            let moment = number * moments / count;
            sleep_until(post.start_ns + moment * period / moments).await;
            take(&post, &driver, first_key + number, ACQUIRE_LIMIT).await
        });
    }
    let mut holding = JoinSet::new();
    while let Some(taken) = acquiring.join_next().await {
        let taken = taken.map_err(|error| format!("a holder failed: {error}"))?;
        let (key, held) = taken.map_err(|refusal| format!("a holder did not get its lock: {refusal:?}"))?;
        let post = Arc::clone(&post);
        holding.spawn(async move { work_until_told(&post, key, held).await });
    }
    say(&Note::Holding);
    let mut tally = Tally {
        successes: count,
        ..Tally::default()
    };
    while let Some(told) = holding.join_next().await {
        tally.lost += u64::from(told.unwrap_or(false));
    }
    Ok(tally)
}

/// Waits for every lock that a holder has; works for a while under the ones it gets.
pub(super) async fn rival<D: Driver>(post: Post, driver: D, first_keys: Vec<u64>) -> Tally {
    sleep_until(post.start_ns).await;
    let count = u64::from(post.job.scenario.workload.keys.count);
    let hold = post.job.scenario.workload.rival_hold();
    let post = Arc::new(post);
    let mut waiting = JoinSet::new();
    for key in first_keys.into_iter().flat_map(|first| first..first + count) {
        let (post, driver) = (Arc::clone(&post), driver.clone());
        waiting.spawn(async move {
            let held = tokio::select! {
                held = persist(&post, &driver, key) => held,
                () = post.finished() => return,
            };
            tokio::select! {
                () = tokio::time::sleep(hold) => {}
                () = post.finished() => {}
            }
            end_work(&post, key, held).await;
        });
    }
    while waiting.join_next().await.is_some() {}
    post.finished().await;
    Tally::default()
}

/// Waits for a lock, whatever happens to the server: it may be away just now, and that is what rivals wait for.
async fn persist<D: Driver>(post: &Post, driver: &D, key: u64) -> D::Hold {
    loop {
        match take(post, driver, key, RIVAL_WAIT).await {
            Ok((_, held)) => return held,
            Err(_) => tokio::time::sleep(RIVAL_PAUSE).await,
        }
    }
}

async fn take<D: Driver>(post: &Post, driver: &D, key: u64, wait: Duration) -> Result<(u64, D::Hold), Refusal> {
    let called_ns = clock::now_ns();
    let hold = driver.acquire(&post.name(key), Access::Write, wait).await?;
    post.note_acquired(&Acquired {
        key,
        owner: post.owner(key),
        access: Access::Write,
        fence: hold.fence(),
        called_ns,
        got_ns: clock::now_ns(),
    });
    Ok((key, hold))
}

/// Works until told that the lock is lost, if the workload honours that, or until the end. Says whether it was told.
async fn work_until_told<H: Hold>(post: &Post, key: u64, held: H) -> bool {
    let workload = &post.job.scenario.workload;
    let told = tokio::select! {
        () = held.lost() => true,
        () = post.finished() => false,
    };
    if told {
        post.note(key, post.owner(key), Kind::Told, clock::now_ns(), 0);
        if workload.honours_lost {
            tokio::time::sleep(workload.reaction.0).await;
        } else {
            post.finished().await;
        }
    }
    end_work(post, key, held).await;
    told
}

async fn end_work<H: Hold>(post: &Post, key: u64, held: H) {
    let owner = post.owner(key);
    post.note(key, owner, Kind::WorkEnd, clock::now_ns(), 0);
    let still_ours = tokio::time::timeout(RELEASE_LIMIT, held.release()).await;
    let still_ours = matches!(still_ours, Ok(Ok(true)));
    post.note(key, owner, Kind::Released, clock::now_ns(), u64::from(still_ours));
}

/// Nothing is wrong yet when holders acquire.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(20);

/// Longer than any round.
const RIVAL_WAIT: Duration = Duration::from_secs(3_600);

/// Between two attempts of a rival whose server is away.
const RIVAL_PAUSE: Duration = Duration::from_millis(20);

/// A holder that is still cut off does not keep the round from ending.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
