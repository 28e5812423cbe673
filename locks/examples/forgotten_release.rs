//! A pitfall: a lease that is kept somewhere and forgotten. It is renewed for as long as it lives, and everybody else waits.
//! The cure: let it end with the scope that needs it; when it is dropped, the lock is given back.
//!
//! `cargo run --example forgotten_release -- redis://127.0.0.1/`

use std::time::Duration;

use leasehold::Locks;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".into());
    let locks = Locks::connect(&url).await?;
    let wait = Duration::from_millis(500);

    let mut kept = Vec::new();
    kept.push(locks.reentrant("job").acquire().await?);
    println!(
        "work is done, the lease lies in a list: {}",
        locks.reentrant("job").acquire().wait_limit(wait).await.unwrap_err()
    );

    kept.clear();
    let lease = locks.reentrant("job").acquire().wait_limit(wait).await?;
    println!("dropped, and {} is free for the next one", lease.name());
    lease.release().await?;
    Ok(())
}
