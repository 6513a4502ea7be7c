//! The serving end: it accepts nodes and clients, hands in what they send, and lets those go that are silent or malformed, with
//! the reason.
//!
//! | what comes | what becomes of it |
//! |---|---|
//! | hello of a node, that means this one | welcome; its messages are handed in one after the other; while one is handed in, nothing is read |
//! | hello of a node, that means another one | goodbye: it should look up the address again |
//! | hello of a client | welcome; the service reads its calls when it has room |
//! | a ping | a pong |
//! | nothing in time, a frame that is not as it must be, or does not belong there | goodbye, with the reason, and the connection is closed |

use super::Timing;
use super::address::{Listener, ReadHalf, WriteHalf, of_tcp};
use super::counts::{ServerCounters, ServerCounts, add};
use super::framed::{Closed, FrameReader, FrameWriter};
use crate::client::{Again, Answer, Call, Refusal, RefusalWord, Request};
use crate::frame::{Frame, Kind, Side};
use crate::limits::CONNECTIONS;
use crate::malformed::{FrameError, Malformed};
use crate::node::{Control, Hello, Peer, Received};
use crate::relay::Relay;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// After a connection could not be accepted, as when the process has no file descriptors left.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// What a node does with what it gets.
pub trait Service: Send + Sync + 'static {
    /// A message of another node. What the same process sent on one connection comes in its order. Nothing is read from the
    /// connection before this is done: so a node that has no room holds the other one back. What it waits for must not wait for a
    /// message of that node, which would stand behind this one: room for batches may depend on the own disk, not on what others
    /// have stored.
    fn received(&self, from: &Peer, received: Received) -> impl Future<Output = ()> + Send;

    /// Another node asks for one of its clients, or answers. As of [`Service::received`]; one that relays nothing drops it.
    fn relayed(&self, from: &Peer, relay: Relay) -> impl Future<Output = ()> + Send {
        let _ = (from, relay);
        async {}
    }

    /// A client has connected. It is let go when this is done.
    fn client(&self, calls: &mut Calls<'_>, answers: Answers) -> impl Future<Output = ()> + Send;
}

/// Accepts connections for one node.
pub struct Server<S> {
    own: Peer,
    timing: Timing,
    service: S,
    connections: Semaphore,
    counters: ServerCounters,
}

impl<S> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("own", &self.own).finish_non_exhaustive()
    }
}

impl<S: Service> Server<S> {
    /// For that process.
    pub fn new(own: Peer, timing: Timing, service: S) -> Arc<Server<S>> {
        let connections = Semaphore::new(CONNECTIONS);
        Arc::new(Server { own, timing, service, connections, counters: ServerCounters::default() })
    }

    /// What it has done since it was made.
    pub fn counts(&self) -> ServerCounts {
        self.counters.counts()
    }

    /// Connections that are open now.
    pub fn open(&self) -> usize {
        CONNECTIONS - self.connections.available_permits()
    }

    /// Accepts what comes in there, until it is to end; then all connections are told so. When this is dropped, they are closed
    /// without a word.
    pub async fn serve(self: Arc<Self>, listener: Listener, ending: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(halves) => {
                        let (server, ending) = (Arc::clone(&self), ending.clone());
                        connections.spawn(async move { server.connection(halves, ending).await });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        sleep(ACCEPT_REST).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                () = ending.cancelled() => break,
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    /// Serves a connection that somebody else has accepted, as who listens for other protocols at the same address, until it is
    /// over or is to end. Nothing may have been read from it.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn serve_stream(
        &self,
        stream: TcpStream,
        ending: CancellationToken,
    ) -> Result<(), std::io::Error> {
        stream.set_nodelay(true)?;
        self.connection(of_tcp(stream), ending).await;
        Ok(())
    }

    /// One connection, from its first frame to its last words.
    async fn connection(&self, (read, write): (ReadHalf, WriteHalf), ending: CancellationToken) {
        let mut reader = FrameReader::new(read, self.timing.opening);
        let writer = Arc::new(Mutex::new(FrameWriter::new(write, self.timing.stalled)));
        let served = async {
            let _permit = self.connections.try_acquire().map_err(|_| {
                add(&self.counters.refused, 1);
                let why =
                    format!("node {} has {CONNECTIONS} connections, and may have no more", self.own.node);
                Closed::Refused(Refusal::new(RefusalWord::TooManyConnections, Again::Attempt, why))
            })?;
            self.serve_one(&mut reader, &writer).await
        };
        let closed = tokio::select! {
            served = served => served.err().unwrap_or(Closed::Ended),
            () = ending.cancelled() => {
                let why = format!("node {} ends", self.own.node);
                Closed::Refused(Refusal::new(RefusalWord::Ending, Again::Attempt, why))
            }
        };
        self.count(&closed);
        tracing::debug!(why = %closed, "a connection has ended");
        let last = async {
            let mut writer = writer.lock().await;
            if let Some(Ok(frame)) = closed.goodbye().map(|why| Control::Goodbye(why).frame()) {
                // An end that does not read does not hear of it.
                let _ = writer.write(&[frame]).await;
            }
            writer.end().await;
            drop(writer);
            reader.drain().await;
        };
        let _ = timeout(self.timing.goodbye, last).await;
    }

    fn count(&self, closed: &Closed) {
        match closed {
            Closed::Frame(_) => add(&self.counters.malformed, 1),
            Closed::Silent(_) | Closed::Stalled(_) => add(&self.counters.silent, 1),
            Closed::Ended | Closed::Refused(_) | Closed::Broken | Closed::Failed(..) => {}
        }
    }

    async fn serve_one(
        &self,
        reader: &mut FrameReader,
        writer: &Arc<Mutex<FrameWriter>>,
    ) -> Result<(), Closed> {
        let Some(first) = reader.next().await? else { return Ok(()) };
        let hello = match Control::of(&first)? {
            Control::Hello(hello) => hello,
            _ => return Err(unexpected(&first)),
        };
        if let Hello::Node(from, to) = &hello
            && *to != self.own.node
        {
            add(&self.counters.refused, 1);
            let why = format!(
                "this is node {}, and the connection of node {} is for node {to}: ask anew where that is",
                self.own.node, from.node
            );
            return Err(Closed::Refused(Refusal::new(RefusalWord::OtherNode, Again::Request, why)));
        }
        let welcome = Control::Welcome(self.own.clone()).frame()?;
        writer.lock().await.write(&[welcome]).await?;
        match hello {
            Hello::Node(from, _) => {
                add(&self.counters.nodes, 1);
                reader.wait_for(self.timing.silent);
                self.node(&from, reader, writer).await
            }
            Hello::Client => {
                add(&self.counters.clients, 1);
                // It may compute between two calls, and between two answers.
                reader.wait_for(self.timing.client_silent);
                writer.lock().await.wait_for(self.timing.client_silent);
                let mut calls = Calls { reader, writer: Arc::clone(writer), closed: None };
                self.service.client(&mut calls, Answers { writer: Arc::clone(writer) }).await;
                calls.closed.map_or(Ok(()), Err)
            }
        }
    }

    /// Hands in what a node sends.
    async fn node(
        &self,
        from: &Peer,
        reader: &mut FrameReader,
        writer: &Mutex<FrameWriter>,
    ) -> Result<(), Closed> {
        let pong = Control::Pong.frame()?;
        while let Some(frame) = reader.next().await? {
            match (frame.kind(), frame.kind().side()) {
                (Kind::Ping, _) => writer.lock().await.write(std::slice::from_ref(&pong)).await?,
                (kind, Side::Node) if Relay::is(kind) => {
                    add(&self.counters.received, 1);
                    self.service.relayed(from, Relay::of(&frame)?).await;
                }
                (_, Side::Node) => {
                    add(&self.counters.received, 1);
                    self.service.received(from, Received::of(&frame)?).await;
                }
                _ => return Err(unexpected(&frame)),
            }
        }
        Ok(())
    }
}

fn unexpected(frame: &Frame) -> Closed {
    FrameError::Body(frame.kind(), Malformed::Unexpected(frame.kind())).into()
}

/// What a client calls for.
pub struct Calls<'a> {
    reader: &'a mut FrameReader,
    writer: Arc<Mutex<FrameWriter>>,
    closed: Option<Closed>,
}

impl fmt::Debug for Calls<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").field("closed", &self.closed).finish_non_exhaustive()
    }
}

impl Calls<'_> {
    /// The next call; none: the client is gone, or is let go ([`Calls::closed`]). If it is dropped before it is done, there is no
    /// next one.
    pub async fn next(&mut self) -> Option<Call<Request>> {
        if self.closed.is_some() {
            return None;
        }
        match self.read().await {
            Ok(call) => Some(call),
            Err(closed) => {
                self.closed = Some(closed);
                None
            }
        }
    }

    /// Why there are no more calls.
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    async fn read(&mut self) -> Result<Call<Request>, Closed> {
        loop {
            let frame = self.reader.next().await?.ok_or(Closed::Ended)?;
            match (frame.kind(), frame.kind().side()) {
                (Kind::Ping, _) => {
                    let pong = Control::Pong.frame()?;
                    self.writer.lock().await.write(&[pong]).await?;
                }
                (_, Side::Client) => return Ok(Call::<Request>::of(&frame)?),
                _ => return Err(unexpected(&frame)),
            }
        }
    }
}

/// Answers to a client. A copy answers the same one.
#[derive(Clone)]
pub struct Answers {
    writer: Arc<Mutex<FrameWriter>>,
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").finish_non_exhaustive()
    }
}

impl Answers {
    /// Answers, and waits until the client takes it.
    ///
    /// # Errors
    /// The client is gone, or takes nothing.
    pub async fn send(&self, answer: &Call<Answer>) -> Result<(), Closed> {
        let frame = answer.frame()?;
        self.writer.lock().await.write(&[frame]).await
    }
}
