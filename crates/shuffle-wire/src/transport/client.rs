//! A client's end of a connection: calls go out, answers come back, in whatever order the node has them.

use super::Timing;
use super::address::Address;
use super::framed::{Closed, FrameReader, FrameWriter};
use super::peer_connection::greet;
use crate::client::{Answer, Call, Request};
use crate::frame::{Kind, Side};
use crate::malformed::{FrameError, Malformed};
use crate::node::{Control, Hello, Peer};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

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
        let node = greet(&mut reader, &mut writer, Hello::Client, timing.opening).await?;
        // A node that has no room reads nothing, for as long as it waits for disks of others: its client waits as well.
        reader.opened(timing.client_silent, writer.progress());
        writer.wait_for(timing.client_silent);
        let (writer, is_waiting) = (Arc::new(Mutex::new(writer)), Arc::<AtomicBool>::default());
        let pings = ping(Arc::clone(&writer), Arc::clone(&is_waiting), timing.ping);
        let pings = tokio::spawn(pings).abort_handle();
        let answers = ClientAnswers { reader, is_waiting, pings };
        Ok(ClientConnection { node, calls: ClientCalls { writer }, answers })
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

/// What the node answers. When it is dropped, the connection is of no use any more.
pub struct ClientAnswers {
    reader: FrameReader,
    /// Whether a call to [`ClientAnswers::next`] waits for an answer.
    is_waiting: Arc<AtomicBool>,
    pings: AbortHandle,
}

impl fmt::Debug for ClientAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAnswers").finish_non_exhaustive()
    }
}

impl ClientAnswers {
    /// Whether the connection is there, as far as is known now, and nothing has come that was not asked for. One that was not in
    /// use for a while is looked at so before it is used again: its node may have ended meanwhile.
    pub fn is_quiet(&mut self) -> bool {
        self.reader.is_quiet()
    }

    /// The next answer, to whichever call. While it waits, pings go out beside it, so that the node keeps a client that waits. If
    /// it is dropped before it is done, there is no next one.
    ///
    /// # Errors
    /// The node is gone, or says why it has closed the connection.
    pub async fn next(&mut self) -> Result<Call<Answer>, Closed> {
        let _waiting = Waiting::begin(&self.is_waiting);
        loop {
            let frame = self.reader.next().await?.ok_or(Closed::Ended)?;
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

/// Says that an answer is waited for, until it is dropped.
struct Waiting(Arc<AtomicBool>);

impl Waiting {
    fn begin(is_waiting: &Arc<AtomicBool>) -> Waiting {
        is_waiting.store(true, Ordering::Relaxed);
        Waiting(Arc::clone(is_waiting))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Drop for ClientAnswers {
    fn drop(&mut self) {
        self.pings.abort();
    }
}

/// Pings while an answer is waited for. A client that is sending is not silent, and needs none. It is a task of its own: a
/// node may take no ping before the client has read an answer.
async fn ping(writer: Arc<Mutex<FrameWriter>>, is_waiting: Arc<AtomicBool>, every: Duration) {
    let Ok(frame) = Control::Ping.frame() else { return };
    // Most answers come sooner.
    let mut pings = interval_at(Instant::now() + every, every);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        pings.tick().await;
        if is_waiting.load(Ordering::Relaxed)
            && let Ok(mut writer) = writer.try_lock()
            && writer.write(std::slice::from_ref(&frame)).await.is_err()
        {
            // That the node is gone is heard by the reader.
            return;
        }
    }
}
