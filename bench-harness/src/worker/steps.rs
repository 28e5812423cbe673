//! Work in steps: one act at the end of each, before which a careful holder asks whether its lease is still valid.

use std::future::Future;
use std::time::Duration;

use crate::clock;
use crate::driver::Hold;

/// How work in steps ended.
pub(super) struct Stepped {
    /// The last act, or when work began if there was none.
    pub(super) last_ns: u64,
    /// Whether it ended because the lease was not valid any more.
    pub(super) told: bool,
}

/// Acts, from when the lock was got, at the end of each step and when `end` has come. If `asks`, an act whose lease is not valid is left out, and is the end.
///
/// Nothing lies between the question and the act, so only a standstill just there lets a careful holder act too late.
pub(super) async fn work<H: Hold>(
    held: &H,
    begun_ns: u64,
    asks: bool,
    step: Duration,
    end: impl Future<Output = ()>,
) -> Stepped {
    tokio::pin!(end);
    let mut last_ns = begun_ns;
    loop {
        let is_last = tokio::select! {
            () = &mut end => true,
            () = tokio::time::sleep(step) => false,
        };
        if asks && !held.is_valid() {
            return Stepped { last_ns, told: true };
        }
        last_ns = clock::now_ns();
        if is_last {
            return Stepped { last_ns, told: false };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::driver::Refusal;

    struct Lent(Arc<AtomicBool>);

    impl Hold for Lent {
        fn attempts(&self) -> u64 {
            1
        }
        fn fence(&self) -> u64 {
            0
        }
        fn is_valid(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
        fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
            std::future::pending()
        }
        async fn reenter(&self, _wait: Duration) -> Result<Self, Refusal> {
            Ok(Self(Arc::clone(&self.0)))
        }
        async fn release(self) -> Result<bool, Refusal> {
            Ok(true)
        }
    }

    #[tokio::test]
    async fn a_holder_that_asks_does_not_act_after_its_lease_and_another_does() {
        for asks in [true, false] {
            let valid = Arc::new(AtomicBool::new(true));
            let held = Lent(Arc::clone(&valid));
            let over = tokio::sync::Notify::new();
            let begun_ns = clock::now_ns();
            let (stepped, invalid_ns) = tokio::join!(
                work(&held, begun_ns, asks, Duration::from_millis(2), over.notified()),
                async {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    valid.store(false, Ordering::Relaxed);
                    let invalid_ns = clock::now_ns();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    over.notify_one();
                    invalid_ns
                }
            );
            assert_eq!(stepped.told, asks);
            assert!(stepped.last_ns >= begun_ns);
            assert_eq!(stepped.last_ns > invalid_ns, !asks);
        }
    }
}
