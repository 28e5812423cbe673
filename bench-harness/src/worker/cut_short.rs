//! Drops a future at one of its awaits, as a time limit, a `select!` or a client that hangs up does.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;

/// Polls a future up to a random await, and drops it there: at once, or after a random while. One that is ready sooner is not
/// dropped.
///
/// The first await is met by half of the futures, the second by half of the others, and so on: nobody knows how many there are.
pub(super) async fn cut_short<F: Future>(future: F, mut rng: Rng) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut awaits = 0_u32;
    while rng.bool() {
        awaits += 1;
    }
    let later = match rng.bool() {
        true => Duration::ZERO,
        false => Duration::from_micros(rng.u64(0..LONGEST_US)),
    };
    let ready = poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if awaits == 0 => Poll::Ready(None),
        Poll::Pending => {
            awaits -= 1;
            Poll::Pending
        }
    });
    let output = ready.await;
    match output {
        None if !later.is_zero() => tokio::time::timeout(later, future).await.ok(),
        output => output,
    }
}

/// So that also answers that are on their way meet nobody.
const LONGEST_US: u64 = 20_000;

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A future of so many awaits that counts how far it came.
    async fn awaits(count: u32, passed: &Cell<u32>) {
        for _ in 0..count {
            tokio::task::yield_now().await;
            passed.set(passed.get() + 1);
        }
    }

    #[tokio::test]
    async fn each_await_is_met_and_what_is_ready_sooner_is_kept() {
        let (mut met, mut kept) = ([0; 4], 0);
        for seed in 0..400 {
            let passed = Cell::new(0);
            match cut_short(awaits(4, &passed), Rng::with_seed(seed)).await {
                Some(()) => kept += 1,
                None => met[passed.get() as usize] += 1,
            }
        }
        assert!(met.iter().all(|count| *count > 0) && kept > 0, "{met:?}, {kept}");
        assert_eq!(cut_short(std::future::ready(5), Rng::with_seed(1)).await, Some(5));
    }

    #[tokio::test]
    async fn what_never_comes_is_always_dropped() {
        for seed in 0..20 {
            // A while may pass, but nothing is waited for without an end.
            let never = async {
                tokio::task::yield_now().await;
                std::future::pending::<()>().await;
            };
            let mut rng = Rng::with_seed(seed);
            if std::iter::repeat_with(|| rng.bool()).take_while(|more| *more).count() < 2 {
                assert_eq!(cut_short(never, Rng::with_seed(seed)).await, None);
            }
        }
    }
}
