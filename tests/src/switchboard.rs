//! A way to Redis whose connections take one leg of the proxy now and another later.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_bench::proxy::Leg;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

/// Connects clients through a leg that can be exchanged: what a client sent on the connection it had can be kept back,
/// while the connections that it opens afterwards are served.
#[derive(Debug)]
pub struct Switchboard {
    address: SocketAddr,
    leg: Arc<Mutex<SocketAddr>>,
    // Apart from the test's own runtime, which may be blocked or gone.
    runtime: Option<Runtime>,
}

impl Switchboard {
    /// Listens on a free port and leads to this leg.
    pub fn new(leg: &Leg) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a thread can be started");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.set_nonblocking(true).expect("sockets can be non-blocking");
        let address = listener.local_addr().expect("it is bound");
        let leg = Arc::new(Mutex::new(leg.address()));
        runtime.spawn(serve(listener, leg.clone()));
        Switchboard {
            address,
            leg,
            runtime: Some(runtime),
        }
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Leads connections to this leg from now on; those that exist stay where they are.
    pub fn lead_to(&self, leg: &Leg) {
        *self.leg.lock().unwrap_or_else(PoisonError::into_inner) = leg.address();
    }
}

impl Drop for Switchboard {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(listener: std::net::TcpListener, leg: Arc<Mutex<SocketAddr>>) {
    let listener = TcpListener::from_std(listener).expect("a runtime with I/O");
    while let Ok((mut client, _)) = listener.accept().await {
        let leg = *leg.lock().unwrap_or_else(PoisonError::into_inner);
        tokio::spawn(async move {
            if let Ok(mut leg) = TcpStream::connect(leg).await {
                let _ = tokio::io::copy_bidirectional(&mut client, &mut leg).await;
            }
        });
    }
}
