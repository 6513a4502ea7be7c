//! The serving end: it accepts nodes and clients, hands in what they send, and lets those go that are silent or malformed, with
//! the reason.
//!
//! | what comes | what becomes of it |
//! |---|---|
//! | hello of a node, that means this one | welcome; its messages are handed in one after the other; while one is handed in, nothing is read |
//! | hello of a node, that means another one | goodbye: it should look up the address again |
//! | hello of a client | welcome; the service reads its calls when it has room |
//! | a long frame | it is read when there is room for it beside those that come on other connections |
//! | a ping | a pong |
//! | nothing in time, a frame that is not as it must be, or does not belong there | goodbye, with the reason, and the connection is closed |
//! | before a hello, a frame that is longer than one, or none in the time for it | the same |
//! | one connection of nodes, or of clients, more than may be | the same |

use super::Timing;
use super::address::{Listener, ReadHalf, WriteHalf, of_tcp};
use super::counts::{ServerCounters, ServerCounts, add};
use super::framed::{Closed, FrameReader, FrameWriter, Room};
use crate::client::{Again, Answer, Call, Refusal, RefusalWord, Request};
use crate::frame::{Frame, Kind, Side};
use crate::limits::{
    CLIENT_CONNECTIONS, NODE_CONNECTIONS, OPENING_CONNECTIONS, RECEIVED_CLIENT_BYTES, RECEIVED_NODE_BYTES,
};
use crate::malformed::{FrameError, Malformed};
use crate::node::{Control, Hello, Peer, Received};
use crate::relay::Relay;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
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

/// How many connections a server has at once, of each kind, and how many bytes of long frames come on them: clients, however many
/// there are, do not take what nodes need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionBounds {
    /// Connections that have not said yet what they are. The next one waits until one of these is opened or given up.
    pub opening: usize,
    /// Connections of nodes. The next one is refused.
    pub nodes: usize,
    /// Connections of clients. The next one is refused.
    pub clients: usize,
    /// Bytes of long frames of nodes that come or are handed in. The next one is not read as long as it has no room.
    pub node_bytes: usize,
    /// The same of clients.
    pub client_bytes: usize,
}

impl Default for ConnectionBounds {
    fn default() -> ConnectionBounds {
        ConnectionBounds {
            opening: OPENING_CONNECTIONS,
            nodes: NODE_CONNECTIONS,
            clients: CLIENT_CONNECTIONS,
            node_bytes: RECEIVED_NODE_BYTES,
            client_bytes: RECEIVED_CLIENT_BYTES,
        }
    }
}

/// Accepts connections for one node.
pub struct Server<S> {
    own: Peer,
    timing: Timing,
    service: S,
    bounds: ConnectionBounds,
    opening: Arc<Semaphore>,
    nodes: Arc<Semaphore>,
    clients: Arc<Semaphore>,
    room_of_nodes: Room,
    room_of_clients: Room,
    counters: ServerCounters,
}

impl<S> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("own", &self.own).finish_non_exhaustive()
    }
}

impl<S: Service> Server<S> {
    /// A server of the process `own`, with the default bounds on connections.
    pub fn new(own: Peer, timing: Timing, service: S) -> Arc<Server<S>> {
        Server::bounded(own, timing, service, ConnectionBounds::default())
    }

    /// The same, within these bounds.
    pub fn bounded(own: Peer, timing: Timing, service: S, bounds: ConnectionBounds) -> Arc<Server<S>> {
        let room = |count: usize| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        let (opening, nodes, clients) = (room(bounds.opening), room(bounds.nodes), room(bounds.clients));
        Arc::new(Server {
            own,
            timing,
            service,
            bounds,
            opening,
            nodes,
            clients,
            room_of_nodes: Room::new(bounds.node_bytes),
            room_of_clients: Room::new(bounds.client_bytes),
            counters: ServerCounters::default(),
        })
    }

    /// What it has done since it was made.
    pub fn counts(&self) -> ServerCounts {
        self.counters.counts()
    }

    /// Connections that are open now.
    pub fn open(&self) -> usize {
        let ConnectionBounds { opening, nodes, clients, .. } = self.bounds;
        let kinds = [(opening, &self.opening), (nodes, &self.nodes), (clients, &self.clients)];
        kinds.iter().map(|(bound, free)| bound.saturating_sub(free.available_permits())).sum()
    }

    /// Accepts what comes in there, until it is to end; then all connections are told so. When this is dropped, they are closed
    /// without a word.
    pub async fn serve(self: Arc<Self>, listener: Listener, ending: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(halves) => {
                        let Some(permit) = self.opening_permit(&ending).await else { break };
                        let (server, ending) = (Arc::clone(&self), ending.clone());
                        connections.spawn(async move { server.connection(halves, permit, ending).await });
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
        let Some(permit) = self.opening_permit(&ending).await else { return Ok(()) };
        self.connection(of_tcp(stream), permit, ending).await;
        Ok(())
    }

    /// Waits for room for a connection of which it is not known yet whose it is. None: the server is to end.
    async fn opening_permit(&self, ending: &CancellationToken) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            // The semaphore is never closed.
            permit = Arc::clone(&self.opening).acquire_owned() => permit.ok(),
            () = ending.cancelled() => None,
        }
    }

    /// One connection, from its first frame to its last words. It has a permit until it is closed.
    async fn connection(
        &self,
        (read, write): (ReadHalf, WriteHalf),
        mut permit: OwnedSemaphorePermit,
        ending: CancellationToken,
    ) {
        let mut reader = FrameReader::new(read, self.timing.opening);
        let outgoing = Outgoing::new(FrameWriter::new(write, self.timing.stalled));
        let closed = tokio::select! {
            served = self.serve_one(&mut reader, &outgoing, &mut permit) => {
                served.err().unwrap_or(Closed::Ended)
            }
            () = ending.cancelled() => {
                let why = format!("node {} ends", self.own.node);
                Closed::Refused(Refusal::new(RefusalWord::Ending, Again::Attempt, why))
            }
        };
        self.count(&closed);
        tracing::debug!(why = %closed, "a connection has ended");
        // Who still answers lets go of the connection.
        outgoing.ended.cancel();
        let last = async {
            let mut writer = outgoing.writer.lock().await;
            if let Some(Ok(frame)) = closed.goodbye().map(|why| Control::Goodbye(why).frame()) {
                // An end that does not read does not hear of it.
                let _ = writer.write(&[frame]).await;
            }
            writer.end().await;
            drop(writer);
            reader.drain().await;
        };
        let _ = timeout(self.timing.goodbye, last).await;
        outgoing.writer.lock().await.close();
    }

    fn count(&self, closed: &Closed) {
        match closed {
            Closed::Frame(_) => add(&self.counters.malformed, 1),
            Closed::Late(_) | Closed::Silent(_) | Closed::Stalled(_) => add(&self.counters.silent, 1),
            Closed::Ended | Closed::Refused(_) | Closed::Broken | Closed::Failed(..) => {}
        }
    }

    async fn serve_one(
        &self,
        reader: &mut FrameReader,
        outgoing: &Outgoing,
        permit: &mut OwnedSemaphorePermit,
    ) -> Result<(), Closed> {
        let within = self.timing.opening;
        let opened = timeout(within, self.hello(reader, outgoing, permit)).await;
        let Some(hello) = opened.map_err(|_| Closed::Late(within))?? else { return Ok(()) };
        let writer = &outgoing.writer;
        match hello {
            Hello::Node(from, _) => {
                add(&self.counters.nodes, 1);
                reader.opened(self.timing.silent, writer.lock().await.progress());
                reader.waits_for(&self.room_of_nodes);
                self.node(&from, reader, writer).await
            }
            Hello::Client => {
                add(&self.counters.clients, 1);
                let mut locked = writer.lock().await;
                // It may compute between two calls, and between two answers.
                reader.opened(self.timing.client_silent, locked.progress());
                reader.waits_for(&self.room_of_clients);
                locked.wait_for(self.timing.client_silent);
                drop(locked);
                let mut calls = Calls { reader, writer: Arc::clone(writer), closed: None };
                self.service.client(&mut calls, outgoing.answers()).await;
                calls.closed.map_or(Ok(()), Err)
            }
        }
    }

    /// Hears who has connected, and says who was reached. None: the other end has gone without a word.
    async fn hello(
        &self,
        reader: &mut FrameReader,
        outgoing: &Outgoing,
        permit: &mut OwnedSemaphorePermit,
    ) -> Result<Option<Hello>, Closed> {
        let Some(first) = reader.next().await? else { return Ok(None) };
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
        let (room, most, of) = match &hello {
            Hello::Node(..) => (&self.nodes, self.bounds.nodes, "nodes"),
            Hello::Client => (&self.clients, self.bounds.clients, "clients"),
        };
        *permit = Arc::clone(room).try_acquire_owned().map_err(|_| {
            add(&self.counters.refused, 1);
            let why = format!("node {} has {most} connections of {of}, and may have no more", self.own.node);
            Closed::Refused(Refusal::new(RefusalWord::TooManyConnections, Again::Attempt, why))
        })?;
        let welcome = Control::Welcome(self.own.clone()).frame()?;
        outgoing.writer.lock().await.write(&[welcome]).await?;
        Ok(Some(hello))
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

/// What goes out on a connection. The service may have it too; with the connection it ends for both.
struct Outgoing {
    writer: Arc<Mutex<FrameWriter>>,
    ended: CancellationToken,
}

impl Outgoing {
    fn new(writer: FrameWriter) -> Outgoing {
        Outgoing { writer: Arc::new(Mutex::new(writer)), ended: CancellationToken::new() }
    }

    fn answers(&self) -> Answers {
        Answers { writer: Arc::clone(&self.writer), ended: self.ended.clone() }
    }
}

impl Drop for Outgoing {
    /// Also when the task of the connection is dropped.
    fn drop(&mut self) {
        self.ended.cancel();
        if let Ok(mut writer) = self.writer.try_lock() {
            writer.close();
        }
    }
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
                // A client to which an answer is under way hears that.
                (Kind::Ping, _) => {
                    if let Ok(mut writer) = self.writer.try_lock() {
                        writer.write(&[Control::Pong.frame()?]).await?;
                    }
                }
                (_, Side::Client) => return Ok(Call::<Request>::of(&frame)?.within_memory()?),
                _ => return Err(unexpected(&frame)),
            }
        }
    }
}

/// Answers to a client. A copy answers the same one. When the connection ends, copies that are left keep nothing of it open.
#[derive(Clone)]
pub struct Answers {
    writer: Arc<Mutex<FrameWriter>>,
    ended: CancellationToken,
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
    /// The client is gone, or takes nothing, or the connection has ended.
    pub async fn send(&self, answer: &Call<Answer>) -> Result<(), Closed> {
        let frame = answer.frame()?;
        let send = async { self.writer.lock().await.write(&[frame]).await };
        let sent = tokio::select! {
            biased;
            () = self.ended.cancelled() => Err(Closed::Ended),
            sent = send => sent,
        };
        if self.ended.is_cancelled()
            && let Ok(mut writer) = self.writer.try_lock()
        {
            // The rest of an answer that was begun does not follow.
            writer.close_broken();
        }
        sent
    }
}
