//! A connection to one other node, for bulk or for all other frames: opened when something waits for it, or the owner looks for
//! a node that was not reached, and opened again when it ends.
//!
//! ```text
//!  idle ── a frame ──► opening ── welcome ──► sending, and a ping each second
//!   ▲                     │ failed               │ ended, silent, stalled
//!   └──── rested ◄── away, frames are dropped ◄──┘
//! ```
//!
//! When the address changes, the next connection is opened at once, whatever the present one does.
//!
//! Rests become longer until a connection has stayed for as long as a silent one may: that it was accepted is no success, as what
//! is sent on it may be what ends it, each time that the machines send it again.

use super::Timing;
use super::address::Address;
use super::counts::{SendCounters, add};
use super::framed::{Closed, FrameReader, FrameWriter};
use super::peer_queue::PeerQueue;
use crate::client::{Again, Refusal, RefusalWord};
use crate::malformed::{FrameError, Malformed};
use crate::node::{Control, Hello, Peer};
use partage_clock::Clock;
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use partage_core::node::reconnect::ReconnectBackoff;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Sends what waits for one other node.
pub(super) struct PeerConnection {
    pub(super) own: Peer,
    pub(super) to: NodeId,
    pub(super) timing: Timing,
    pub(super) queue: Arc<PeerQueue>,
    pub(super) counters: Arc<SendCounters>,
}

impl PeerConnection {
    /// Sends until the owner of the address is gone.
    pub(super) async fn run(self, mut address: watch::Receiver<Address>) {
        let (clock, mut backoff) = (Clock::start(), ReconnectBackoff::of_peer());
        let mut told = None;
        loop {
            self.queue.wanted().await;
            let at = address.borrow_and_update().clone();
            let mut opened = None;
            let closed = tokio::select! {
                closed = self.connection(&at, &clock, &mut opened) => closed,
                changed = address.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            self.counters.failed(self.queue.set_away());
            self.tell(&at, closed, &mut told);
            if opened.is_some_and(|at| Duration::from_millis(clock.now().since(at)) >= self.timing.silent) {
                backoff.connected();
            }
            let rest_ms = backoff.next_delay_ms(clock.now(), 1, partage_random::jitter());
            tokio::select! {
                () = sleep(Duration::from_millis(rest_ms)) => {}
                changed = address.changed() => match changed {
                    // What it looked for is elsewhere: the attempts before say nothing about that.
                    Ok(()) => backoff = ReconnectBackoff::of_peer(),
                    Err(_) => return,
                },
            }
            self.queue.set_present();
        }
    }

    /// Logs why a connection ended, each reason once.
    fn tell(&self, at: &Address, closed: Closed, told: &mut Option<Closed>) {
        if told.as_ref() == Some(&closed) {
            return;
        }
        let (node, why) = (&self.to, &closed);
        match closed {
            Closed::Refused(_) | Closed::Frame(_) => {
                tracing::warn!(%node, %at, %why, "the node refuses frames of shuffles");
            }
            _ => tracing::info!(%node, %at, %why, "the connection to a node ended"),
        }
        *told = Some(closed);
    }

    /// One connection, to its end. It says when the node has accepted it.
    async fn connection(&self, at: &Address, clock: &Clock, opened: &mut Option<Millis>) -> Closed {
        match self.try_connection(at, clock, opened).await {
            Ok(never) => match never {},
            Err(closed) => closed,
        }
    }

    async fn try_connection(
        &self,
        at: &Address,
        clock: &Clock,
        opened: &mut Option<Millis>,
    ) -> Result<Infallible, Closed> {
        let (read, write) = at.connect().await?;
        let mut reader = FrameReader::new(read, self.timing.opening);
        let mut writer = FrameWriter::new(write, self.timing.stalled);
        let hello = Hello::Node(self.own.clone(), self.to.clone());
        let welcome = greet(&mut reader, &mut writer, hello, self.timing.opening).await?;
        if welcome.node != self.to {
            let why = format!("node {} answers at {at}, and node {} is meant", welcome.node, self.to);
            return Err(Closed::Refused(Refusal::new(RefusalWord::OtherNode, Again::Request, why)));
        }
        *opened = Some(clock.now());
        self.queue.set_opened();
        add(&self.counters.opened, 1);
        let (node, incarnation) = (&welcome.node, welcome.incarnation.0);
        tracing::debug!(%node, incarnation, %at, "the node accepts frames of shuffles");
        reader.opened(self.timing.silent, writer.progress());
        tokio::select! {
            closed = hear(&mut reader) => closed,
            closed = self.send(&mut writer) => closed,
        }
    }

    /// Writes what waits, and pings.
    async fn send(&self, writer: &mut FrameWriter) -> Result<Infallible, Closed> {
        let mut pings = interval(self.timing.ping);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ping = Control::Ping.frame()?;
        loop {
            tokio::select! {
                frames = self.queue.next() => {
                    writer.write(&frames).await?;
                    self.counters.sent(&frames);
                }
                _ = pings.tick() => writer.write(std::slice::from_ref(&ping)).await?,
            }
        }
    }
}

/// Says who connects, and hears who was reached, all in that time.
pub(super) async fn greet(
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
    hello: Hello,
    within: Duration,
) -> Result<Peer, Closed> {
    let frame = Control::Hello(hello).frame()?;
    let greeting = async {
        writer.write(&[frame]).await?;
        welcome(reader).await
    };
    timeout(within, greeting).await.map_err(|_| Closed::Late(within))?
}

/// Reads the answer to a hello: the node that was reached, or why it refuses.
async fn welcome(reader: &mut FrameReader) -> Result<Peer, Closed> {
    let frame = reader.next().await?.ok_or(Closed::Ended)?;
    match Control::of(&frame)? {
        Control::Welcome(peer) => Ok(peer),
        Control::Goodbye(why) => Err(Closed::Refused(why)),
        _ => Err(FrameError::Body(frame.kind(), Malformed::Unexpected(frame.kind())).into()),
    }
}

/// Hears answers to pings, until there are none.
async fn hear(reader: &mut FrameReader) -> Result<Infallible, Closed> {
    loop {
        let frame = reader.next().await?.ok_or(Closed::Ended)?;
        match Control::of(&frame)? {
            Control::Pong => {}
            Control::Goodbye(why) => return Err(Closed::Refused(why)),
            _ => return Err(FrameError::Body(frame.kind(), Malformed::Unexpected(frame.kind())).into()),
        }
    }
}
