//! The in-process TCP proxy: every client talks to Redis through a leg of its own, and a fault is a mode of a leg.
//!
//! The proxy runs on a thread and a runtime of its own, so neither a blocked runtime of the user nor a caller that
//! waits here can stall it. Both directions of a connection are queues: a reader fills one, a writer empties it, and
//! the mode of the leg decides, chunk by chunk, what may enter and what may leave.

mod connection;
mod lane;
mod shared;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::servers::RedisServer;
use shared::{Cut, Shared};

/// Where the proxy passes connections on to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

impl From<&RedisServer> for Upstream {
    fn from(server: &RedisServer) -> Self {
        Self::Unix(server.socket())
    }
}

/// What a leg does with its connections, those that exist and those to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everything goes through at once.
    Pass,
    /// Connections are reset, and connecting fails at once with a refused connection.
    ///
    /// The listener is really closed; a second socket, bound but never listening, keeps the port for us meanwhile.
    Refuse,
    /// Connecting succeeds, but bytes and closes vanish in both directions, as behind a firewall that drops.
    ///
    /// A byte stream with a hole is corrupt: a connection that lost something is reset when this mode ends.
    Swallow,
    /// Both directions are kept back and delivered when this mode ends.
    Hold {
        /// What becomes of the requests of a client that has closed meanwhile: `true` delivers them like a stopped
        /// server (SIGSTOP), which finds them in its socket; `false` drops them at once like CLIENT PAUSE.
        deliver_after_close: bool,
    },
    /// Requests are kept back and delivered when this mode ends, also those of clients that have left.
    ///
    /// Replies go through.
    HoldRequests,
    /// Requests go through, replies are kept back: Redis has done what the client does not hear of.
    HoldReplies,
    /// Every byte arrives this much later, in each direction; order and throughput stay. The timer adds up to 2 ms.
    Delay(Duration),
    /// The same, only that each piece is late by a length of its own, at random between these two; order stays.
    DelayBetween(Duration, Duration),
}

/// Where, around a chosen request, a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutPoint {
    /// The request never reaches the server.
    BeforeRequest,
    /// The server gets the request and runs it; no byte of the reply reaches the client.
    BeforeReply,
    /// The first chunk of the reply reaches the client, then the connection is reset.
    AfterReply,
}

/// How many bytes went through a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes {
    /// From clients to the server.
    pub to_server: u64,
    /// From the server to clients.
    pub to_client: u64,
}

/// Why the proxy cannot do what it was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The thread or its runtime could not be started.
    #[error("cannot start the thread of the proxy")]
    Start(#[source] io::Error),
    /// No port of 127.0.0.1 could be bound or listened on; see the limit of open files (`ulimit -n`).
    #[error("cannot listen on a port of 127.0.0.1; is the limit of open files (ulimit -n) reached?")]
    Listen(#[source] io::Error),
    /// The proxy of this leg has been dropped.
    #[error("the proxy of this leg has ended; keep the Proxy as long as its legs")]
    Ended,
}

/// A running proxy. Dropping it closes all its legs and their connections.
#[derive(Debug)]
pub struct Proxy {
    upstream: Upstream,
    runtime: Handle,
    // Dropped to end the thread.
    end: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Proxy {
    /// Starts the proxy's thread. Nothing is connected before the first client of a leg comes.
    ///
    /// # Errors
    /// [`ProxyError::Start`].
    pub fn start(upstream: impl Into<Upstream>) -> Result<Self, ProxyError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ProxyError::Start)?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name("lockbench-proxy".into())
            .spawn(move || {
                // An error is the end as well: the sender was dropped.
                let _ = runtime.block_on(ended);
            })
            .map_err(ProxyError::Start)?;
        Ok(Self {
            upstream: upstream.into(),
            runtime: handle,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Opens a leg on a free port of 127.0.0.1, in [`Mode::Pass`]. It lives as long as the proxy.
    ///
    /// # Errors
    /// [`ProxyError::Listen`].
    pub fn leg(&self) -> Result<Leg, ProxyError> {
        let upstream = self.upstream.clone();
        let shared = on(&self.runtime, Shared::open(upstream))
            .ok_or(ProxyError::Ended)?
            .map_err(ProxyError::Listen)?;
        Ok(Leg {
            shared,
            runtime: self.runtime.clone(),
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the proxy's thread has been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}

/// One way to the server; a clone is the same leg.
#[derive(Debug, Clone)]
pub struct Leg {
    shared: Arc<Shared>,
    runtime: Handle,
}

impl Leg {
    /// The URL for clients, `redis://127.0.0.1:PORT/`.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.shared.address)
    }

    /// The address for clients; the same for the life of the leg.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// The mode the leg is in.
    pub fn mode(&self) -> Mode {
        self.shared.state().mode
    }

    /// Switches the leg; returns when the mode holds for all connections. Blocks for well under a millisecond.
    ///
    /// # Errors
    /// [`ProxyError::Listen`] when leaving [`Mode::Refuse`] fails, [`ProxyError::Ended`] when the proxy is gone.
    pub fn switch(&self, mode: Mode) -> Result<(), ProxyError> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.switch(mode).await })?
            .map_err(ProxyError::Listen)
    }

    /// Resets all connections once; the mode stays. Returns when they are reset.
    ///
    /// # Errors
    /// [`ProxyError::Ended`] when the proxy is gone.
    pub fn cut(&self) -> Result<(), ProxyError> {
        let shared = Arc::clone(&self.shared);
        self.run(async move { shared.cut().await })
    }

    /// Resets, once, the connection that carries the `nth` request from now on (the first is 1).
    ///
    /// A request is what the proxy reads in one piece: commands sent without waiting for a reply may count as one.
    /// Replaces a cut that is still waiting for its request.
    pub fn cut_after_requests(&self, nth: u64, point: CutPoint) {
        self.shared.state().cut = Some(Cut {
            requests_left: nth.max(1),
            point,
        });
    }

    /// How many bytes have been passed on; what is held or swallowed does not count.
    pub fn bytes(&self) -> Bytes {
        Bytes {
            to_server: self.shared.to_server.load(Ordering::Relaxed),
            to_client: self.shared.to_client.load(Ordering::Relaxed),
        }
    }

    /// How many connections have been accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.state().accepted
    }

    /// How many connections are open now.
    pub fn open_connections(&self) -> usize {
        self.shared.open_connections()
    }

    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T, ProxyError> {
        on(&self.runtime, work).ok_or(ProxyError::Ended)
    }
}

/// Runs `work` on the proxy's thread and waits for it; `None` if that thread has ended.
fn on<T: Send + 'static>(runtime: &Handle, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
    // Not a channel of tokio: its blocking receive refuses to be called inside a runtime.
    let (done, result) = mpsc::sync_channel(1);
    runtime.spawn(async move {
        // Nobody waits only if the caller's thread is gone.
        let _ = done.send(work.await);
    });
    result.recv().ok()
}
