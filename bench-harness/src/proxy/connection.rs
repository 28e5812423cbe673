//! One connection: four loops in one task, a reader and a writer for each direction.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

use super::lane::{Lane, Next};
use super::shared::Shared;
use super::{CutPoint, Mode, Upstream};
use crate::clock;

/// What a leg knows of one of its connections.
#[derive(Debug, Default)]
pub(super) struct Connection {
    to_server: Lane,
    to_client: Lane,
    /// Something was swallowed, so that what follows would make no sense.
    lossy: AtomicBool,
    /// The reply that passes next is the last.
    cut_after_reply: AtomicBool,
    reset: Notify,
}

impl Connection {
    /// Swallows what is on its way.
    pub(super) fn discard(&self) {
        let (requests, replies) = (self.to_server.discard(), self.to_client.discard());
        if requests || replies {
            self.lossy.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn has_lost_bytes(&self) -> bool {
        self.lossy.load(Ordering::Relaxed)
    }

    /// The mode has changed: what waits may have become free to go.
    pub(super) fn look_again(&self) {
        self.to_server.look_again();
        self.to_client.look_again();
    }

    /// Ends the connection's task with a reset towards the client.
    pub(super) fn reset(&self) {
        self.reset.notify_one();
    }

    fn lane(&self, direction: Direction) -> &Lane {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

/// How a connection ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The server has closed, and all it sent was written.
    Closed,
    /// The client gets a reset.
    Reset,
    /// The client gets a reset, but the server is to run what it was sent.
    ResetAfterRequest,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Serves one client until one side ends it or the leg resets it.
pub(super) async fn serve(leg: Arc<Shared>, connection: Arc<Connection>, mut client: TcpStream) {
    let mut server = tokio::select! {
        server = connect(&leg.upstream) => server.ok(),
        () = connection.reset.notified() => None,
    };
    let end = match &mut server {
        Some(server) => tokio::select! {
            // The reset first: not a byte passes after it was asked for.
            biased;
            () = connection.reset.notified() => End::Reset,
            end = forward(&leg, &connection, &mut client, server) => end,
        },
        // A server that cannot be reached looks to the client like one that hangs up.
        None => End::Reset,
    };
    if end != End::Closed {
        // Closing with a linger time of zero is what sends a reset instead of an orderly end.
        let _ = client.set_zero_linger();
    }
    drop(client);
    if let (Some(mut server), End::ResetAfterRequest) = (server, end) {
        // Closing a socket with unread replies could take the request back from the server: wait until it has answered.
        // Apart from this task, which counts as ended when the client is gone.
        tokio::spawn(async move {
            if server.shutdown().await.is_ok() {
                let _ = tokio::io::copy(&mut server, &mut tokio::io::sink()).await;
            }
        });
    }
}

async fn connect(upstream: &Upstream) -> io::Result<Box<dyn Stream>> {
    Ok(match upstream {
        Upstream::Unix(path) => Box::new(UnixStream::connect(path).await?),
        Upstream::Tcp(address) => {
            let server = TcpStream::connect(address).await?;
            server.set_nodelay(true)?;
            Box::new(server)
        }
    })
}

async fn forward(leg: &Shared, connection: &Connection, client: &mut TcpStream, server: &mut Box<dyn Stream>) -> End {
    if client.set_nodelay(true).is_err() {
        return End::Reset;
    }
    let (from_client, mut into_client) = client.split();
    let (from_server, mut into_server) = tokio::io::split(server);
    let readers = async {
        tokio::join!(
            read(leg, connection, from_client, Direction::ToServer),
            read(leg, connection, from_server, Direction::ToClient),
        );
        std::future::pending().await
    };
    let requests = async {
        match write_requests(leg, connection, &mut into_server).await {
            Some(end) => end,
            // The client has closed; the server answers with its own close.
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        end = requests => end,
        end = write_replies(leg, connection, &mut into_client) => end,
        end = readers => end,
    }
}

/// Fills a lane until its source has closed.
async fn read(leg: &Shared, connection: &Connection, mut source: impl AsyncRead + Unpin, direction: Direction) {
    let lane = connection.lane(direction);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        // A reset by the source is its close.
        let count = source.read(&mut buffer).await.unwrap_or(0);
        // From here to the queue nothing waits, so no switch of the mode can come between.
        match leg.state().mode {
            // After a hole nothing passes, not even in the moment between the end of the mode and the reset.
            _ if connection.has_lost_bytes() => {}
            Mode::Swallow => connection.lossy.store(true, Ordering::Relaxed),
            Mode::Hold {
                deliver_after_close: false,
            } if count == 0 && direction == Direction::ToServer => {
                lane.discard();
                // Closed before the mode ends: the server sees the client leave now.
                connection.reset();
            }
            _ if count == 0 => lane.close(),
            Mode::Delay(delay) => lane.push(&buffer[..count], clock::now_ns() + nanos(delay)),
            Mode::DelayBetween(least, most) => {
                let delay = fastrand::u64(nanos(least)..=nanos(most.max(least)));
                lane.push(&buffer[..count], clock::now_ns() + delay);
            }
            _ => lane.push(&buffer[..count], 0),
        }
        if count == 0 {
            return;
        }
    }
}

/// Empties the lane to the server. `None` when the client has closed and the server was told.
async fn write_requests(leg: &Shared, connection: &Connection, sink: &mut (impl AsyncWrite + Unpin)) -> Option<End> {
    while let Some(bytes) = next(leg, connection, Direction::ToServer).await {
        let cut = leg.cut_at_this_request();
        if cut == Some(CutPoint::BeforeRequest) {
            return Some(End::Reset);
        }
        if cut == Some(CutPoint::AfterReply) {
            // Before the request leaves: its reply may be here before the write returns.
            connection.cut_after_reply.store(true, Ordering::Relaxed);
        }
        if write(sink, &bytes, &leg.to_server).await.is_err() {
            return Some(End::Reset);
        }
        if cut == Some(CutPoint::BeforeReply) {
            return Some(End::ResetAfterRequest);
        }
    }
    // An error means that the server has closed: its own lane tells.
    let _ = sink.shutdown().await;
    None
}

/// Empties the lane to the client until the server has closed.
async fn write_replies(leg: &Shared, connection: &Connection, sink: &mut (impl AsyncWrite + Unpin)) -> End {
    let mut client_listens = true;
    while let Some(bytes) = next(leg, connection, Direction::ToClient).await {
        // A client that left has a right to have its earlier requests run: only its replies are for nobody.
        client_listens = client_listens && write(sink, &bytes, &leg.to_client).await.is_ok();
        if connection.cut_after_reply.load(Ordering::Relaxed) {
            return End::Reset;
        }
    }
    End::Closed
}

/// The next chunk that may leave, or `None` when the lane is closed and empty.
async fn next(leg: &Shared, connection: &Connection, direction: Direction) -> Option<Vec<u8>> {
    let lane = connection.lane(direction);
    loop {
        let gate_open = gate_is_open(leg.state().mode, direction);
        match lane.next(gate_open, clock::now_ns()) {
            Next::Bytes(bytes) => return Some(bytes),
            Next::Close => return None,
            Next::Wait => lane.changed().await,
            Next::At(due_ns) => {
                let wait = Duration::from_nanos(due_ns.saturating_sub(clock::now_ns()));
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = lane.changed() => {}
                }
            }
        }
    }
}

async fn write(sink: &mut (impl AsyncWrite + Unpin), bytes: &[u8], count: &AtomicU64) -> io::Result<()> {
    sink.write_all(bytes).await?;
    count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    Ok(())
}

fn gate_is_open(mode: Mode, direction: Direction) -> bool {
    match (mode, direction) {
        (Mode::Hold { .. } | Mode::Swallow | Mode::Refuse, _) => false,
        (Mode::HoldRequests, direction) => direction == Direction::ToClient,
        (Mode::HoldReplies, direction) => direction == Direction::ToServer,
        (Mode::Pass | Mode::Delay(_) | Mode::DelayBetween(..), _) => true,
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_opens_the_gates_it_says() {
        let gates = |mode| {
            (
                gate_is_open(mode, Direction::ToServer),
                gate_is_open(mode, Direction::ToClient),
            )
        };
        assert_eq!(gates(Mode::Pass), (true, true));
        assert_eq!(gates(Mode::Delay(Duration::ZERO)), (true, true));
        assert_eq!(
            gates(Mode::Hold {
                deliver_after_close: true
            }),
            (false, false)
        );
        assert_eq!(gates(Mode::HoldRequests), (false, true));
        assert_eq!(gates(Mode::HoldReplies), (true, false));
        assert_eq!(gates(Mode::Swallow), (false, false));
    }
}
