//! A client's end of a connection: calls go out, answers come back, in whatever order the node has them.

use super::Timing;
use super::address::Address;
use super::framed::{Closed, FrameReader, FrameWriter};
use super::peer_connection::welcome;
use crate::client::{Answer, Call, Request};
use crate::frame::{Kind, Side};
use crate::malformed::{FrameError, Malformed};
use crate::node::{Control, Hello, Peer};
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval};

/// A connection of a client to a node.
#[derive(Debug)]
pub struct ClientConnection {
    /// The node, and which process of it.
    pub node: Peer,
    /// What the client calls for.
    pub calls: ClientCalls,
    /// What the node answers.
    pub answers: ClientAnswers,
}

impl ClientConnection {
    /// Connects to the node that listens there.
    ///
    /// # Errors
    /// No node listens there, or it refuses the client.
    pub async fn open(address: &Address, timing: Timing) -> Result<ClientConnection, Closed> {
        let (read, write) = address.connect().await?;
        let mut reader = FrameReader::new(read, timing.opening);
        let mut writer = FrameWriter::new(write, timing.stalled);
        writer.write(&[Control::Hello(Hello::Client).frame()?]).await?;
        let node = welcome(&mut reader).await?;
        // A node that has no room reads nothing, for as long as it waits for disks of others: its client waits as well.
        reader.wait_for(timing.client_silent);
        writer.wait_for(timing.client_silent);
        let writer = Arc::new(Mutex::new(writer));
        let calls = ClientCalls { writer: Arc::clone(&writer) };
        Ok(ClientConnection { node, calls, answers: ClientAnswers { reader, writer, ping: timing.ping } })
    }
}

/// What a client calls for. A copy calls on the same connection.
#[derive(Clone)]
pub struct ClientCalls {
    writer: Arc<Mutex<FrameWriter>>,
}

impl fmt::Debug for ClientCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCalls").finish_non_exhaustive()
    }
}

impl ClientCalls {
    /// Calls, and waits until the node takes it: a node without room for records takes none.
    ///
    /// # Errors
    /// The node is gone, or takes nothing for too long. Why it has closed the connection is among the answers.
    pub async fn send(&self, call: &Call<Request>) -> Result<(), Closed> {
        let frame = call.frame()?;
        self.writer.lock().await.write(&[frame]).await
    }
}

/// What the node answers.
pub struct ClientAnswers {
    reader: FrameReader,
    writer: Arc<Mutex<FrameWriter>>,
    ping: Duration,
}

impl fmt::Debug for ClientAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAnswers").finish_non_exhaustive()
    }
}

impl ClientAnswers {
    /// The next answer, to whichever call. It pings meanwhile, so that the node keeps a client that waits. If it is dropped
    /// before it is done, there is no next one.
    ///
    /// # Errors
    /// The node is gone, or says why it has closed the connection.
    pub async fn next(&mut self) -> Result<Call<Answer>, Closed> {
        let mut pings = interval(self.ping);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once.
        pings.tick().await;
        loop {
            let mut read = pin!(self.reader.next());
            let frame = loop {
                tokio::select! {
                    frame = &mut read => break frame?.ok_or(Closed::Ended)?,
                    _ = pings.tick() => ping(&self.writer).await,
                }
            };
            match (frame.kind(), frame.kind().side()) {
                (Kind::Pong, _) => {}
                (Kind::Goodbye, _) => {
                    if let Control::Goodbye(why) = Control::of(&frame)? {
                        return Err(Closed::Refused(why));
                    }
                }
                (_, Side::Server) => return Ok(Call::<Answer>::of(&frame)?),
                (kind, _) => return Err(FrameError::Body(kind, Malformed::Unexpected(kind)).into()),
            }
        }
    }
}

/// Sends a ping. A client that is sending is not silent, and needs none.
async fn ping(writer: &Mutex<FrameWriter>) {
    if let (Ok(mut writer), Ok(frame)) = (writer.try_lock(), Control::Ping.frame()) {
        // That the node is gone is heard by the reader.
        let _ = writer.write(&[frame]).await;
    }
}
