//! A pitfall: a fixed lease shorter than the work. Two workers are inside at once; the cure is a lease that is renewed.
//!
//! `cargo run --example fixed_lease -- redis://127.0.0.1/`

use std::time::Duration;

use leasehold::{Lease, Locks};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".into());
    let (first, second) = (Locks::connect(&url).await?, Locks::connect(&url).await?);

    println!("with a fixed lease of 300 ms for 600 ms of work:");
    let lease = first
        .reentrant("report")
        .acquire()
        .lease_time(Duration::from_millis(300))
        .await?;
    let rival = tokio::spawn(second_worker(second.clone()));
    work(&lease).await;
    rival.await?;
    println!("  first: its release says: {}", lease.release().await.unwrap_err());

    println!("with a lease that is renewed until it is released:");
    let lease = first.reentrant("report").acquire().await?;
    let rival = tokio::spawn(second_worker(second));
    work(&lease).await;
    lease.release().await?;
    rival.await?;
    Ok(())
}

async fn work(lease: &Lease) {
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        println!("  first: at work, the lease is valid: {}", lease.is_valid());
    }
}

async fn second_worker(locks: Locks) {
    match locks.reentrant("report").acquire().await {
        Ok(lease) => {
            println!("  second: at work");
            drop(lease);
        }
        Err(error) => println!("  second: {error}"),
    }
}
