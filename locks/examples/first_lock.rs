//! A lock held while something is done that only one may do at a time.
//!
//! `cargo run --example first_lock -- redis://127.0.0.1/`

use std::time::Duration;

use leasehold::Locks;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".into());
    let locks = Locks::connect(&url).await?;

    let lease = locks
        .reentrant("order:7")
        .acquire()
        .wait_limit(Duration::from_secs(5))
        .await?;
    println!("{} is held by {}", lease.name(), lease.holder());

    // Dropped at the moment when the lease can no longer be trusted.
    let receipt = lease.run(charge_card()).await?;
    println!("charged: {receipt}");

    println!("{:?}", lease.release().await?);
    Ok(())
}

async fn charge_card() -> &'static str {
    tokio::time::sleep(Duration::from_millis(200)).await;
    "no. 4711"
}
