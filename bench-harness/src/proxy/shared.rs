//! One leg from the inside: its listener, its mode and its connections.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::connection::{self, Connection};
use super::{CutPoint, Mode, Upstream};

/// What the leg's handles, its listener and its connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) upstream: Upstream,
    pub(super) address: SocketAddr,
    /// Bound and never listening: keeps others off the port while the listener is closed.
    _reservation: TcpSocket,
    /// The accepting task, `None` while refusing. Locked for the whole of a switch, so that switches come one by one.
    switching: tokio::sync::Mutex<Option<Accepting>>,
    state: Mutex<State>,
    pub(super) to_server: AtomicU64,
    pub(super) to_client: AtomicU64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) mode: Mode,
    pub(super) cut: Option<Cut>,
    pub(super) accepted: u64,
    connections: Vec<Entry>,
}

#[derive(Debug)]
pub(super) struct Cut {
    pub(super) requests_left: u64,
    pub(super) point: CutPoint,
}

#[derive(Debug)]
struct Entry {
    connection: Arc<Connection>,
    task: JoinHandle<()>,
}

/// The task that accepts connections.
#[derive(Debug)]
struct Accepting {
    end: oneshot::Sender<()>,
    task: JoinHandle<TcpListener>,
}

impl Accepting {
    /// From here on connecting is refused.
    async fn end(self) {
        drop(self.end);
        let Ok(listener) = self.task.await.map(TcpListener::into_std) else {
            // It panicked, which closed the listener too.
            return;
        };
        // Closing is not enough: while some thread starts a process, the child has a copy of the listener for a
        // moment. A socket shut down listens no more, however many copies there are; any will do as a TcpStream.
        if let Ok(listener) = listener {
            let _ = TcpStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    /// Binds a free port and listens on it.
    pub(super) async fn open(upstream: Upstream) -> io::Result<Arc<Self>> {
        let reservation = socket(0)?;
        let shared = Arc::new(Self {
            upstream,
            address: reservation.local_addr()?,
            _reservation: reservation,
            switching: tokio::sync::Mutex::new(None),
            state: Mutex::new(State {
                mode: Mode::Pass,
                cut: None,
                accepted: 0,
                connections: Vec::new(),
            }),
            to_server: AtomicU64::new(0),
            to_client: AtomicU64::new(0),
        });
        shared.listen(&mut *shared.switching.lock().await)?;
        Ok(shared)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this lock; if it ever does, the state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn switch(self: &Arc<Self>, mode: Mode) -> io::Result<()> {
        let mut listener = self.switching.lock().await;
        self.state().mode = mode;
        match mode {
            Mode::Refuse => {
                if let Some(accepting) = listener.take() {
                    accepting.end().await;
                }
                self.reset(|_| true).await;
            }
            Mode::Swallow => self.each(|connection| connection.discard()),
            _ => self.reset(|connection| connection.has_lost_bytes()).await,
        }
        self.each(|connection| connection.look_again());
        if mode != Mode::Refuse && listener.is_none() {
            self.listen(&mut listener)?;
        }
        Ok(())
    }

    /// Resets all connections.
    pub(super) async fn cut(&self) {
        let _turn = self.switching.lock().await;
        self.reset(|_| true).await;
    }

    pub(super) fn open_connections(&self) -> usize {
        let state = self.state();
        state
            .connections
            .iter()
            .filter(|entry| !entry.task.is_finished())
            .count()
    }

    fn listen(self: &Arc<Self>, accepting: &mut Option<Accepting>) -> io::Result<()> {
        let listener = socket(self.address.port())?.listen(BACKLOG)?;
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(Arc::clone(self).accept(listener, ended));
        *accepting = Some(Accepting { end, task });
        Ok(())
    }

    /// Accepts until the end is called, and gives the listener back.
    async fn accept(self: Arc<Self>, listener: TcpListener, mut ended: oneshot::Receiver<()>) -> TcpListener {
        loop {
            let accepted = tokio::select! {
                biased;
                _ = &mut ended => return listener,
                accepted = listener.accept() => accepted,
            };
            let Ok((client, _)) = accepted else {
                // Out of file descriptors, or a client that left at once: try again, but do not spin.
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            };
            let connection = Arc::new(Connection::default());
            let task = tokio::spawn(connection::serve(Arc::clone(&self), Arc::clone(&connection), client));
            let mut state = self.state();
            state.accepted += 1;
            state.connections.retain(|entry| !entry.task.is_finished());
            state.connections.push(Entry { connection, task });
        }
    }

    fn each(&self, act: impl Fn(&Connection)) {
        self.state().connections.iter().for_each(|entry| act(&entry.connection));
    }

    /// Resets the chosen connections; returns when their sockets are closed.
    async fn reset(&self, chosen: impl Fn(&Connection) -> bool) {
        let chosen: Vec<Entry> = self
            .state()
            .connections
            .extract_if(.., |entry| chosen(&entry.connection))
            .collect();
        for entry in &chosen {
            entry.connection.reset();
        }
        for entry in chosen {
            // An error is a panic, which has been printed, and closed the socket as well.
            let _ = entry.task.await;
        }
    }

    /// Counts a request against the waiting cut; tells where to cut if it is this one's turn.
    pub(super) fn cut_at_this_request(&self) -> Option<CutPoint> {
        let mut state = self.state();
        let cut = state.cut.as_mut()?;
        cut.requests_left -= 1;
        let point = cut.point;
        (cut.requests_left == 0).then(|| {
            state.cut = None;
            point
        })
    }
}

/// A socket bound to this port of 127.0.0.1; several may be bound as long as no earlier one listens.
fn socket(port: u16) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    #[cfg(not(target_os = "linux"))]
    socket.set_reuseport(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    Ok(socket)
}

const BACKLOG: u32 = 1024;
