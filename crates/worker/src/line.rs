//! The line to a coordinator: opened, listened to, lost, opened again at the next one.
//!
//! | state     | ends by               | next                                              |
//! |-----------|-----------------------|---------------------------------------------------|
//! | `Resting` | time                  | `Opening`, when the driver gives the registration |
//! | `Opening` | answer of the server  | `Open`                                            |
//! | `Opening` | "another one leads"   | `Resting`, then that one, at once                 |
//! | `Opening` | error, time           | `Resting`, then the next coordinator              |
//! | `Open`    | the stream's end      | `Resting`, then the same coordinator              |
//! | `Open`    | [`Lines::leave_for`]  | `Resting`, then the next coordinator              |
//!
//! Rests double with each round through the coordinators in which none would have us, and are jittered. TLS is
//! not here yet: addresses are taken as plain HTTP/2.

use crate::{entropy, limits};
use futures::future::BoxFuture;
use partage_maps::Turns;
use partage_wire::headers::LEADER;
use partage_wire::limits::MESSAGE_BYTES;
use partage_wire::proto::worker_client::WorkerClient;
use partage_wire::proto::{FromWorker, Register, from_worker, to_worker};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

/// An open line.
pub struct Line {
    out: mpsc::Sender<FromWorker>,
    from: Streaming<partage_wire::proto::ToWorker>,
}

enum State {
    Resting(Instant),
    Opening(BoxFuture<'static, Result<Line, Refused>>),
    Open(Box<Line>),
}

/// What the driver hears.
pub enum Heard {
    /// The rest is over: [`Lines::open`] the next line.
    Due,
    /// A line is open, the registration is on its way.
    Opened,
    /// The coordinator says something.
    Message(to_worker::Message),
    /// The line is lost, or there was none. A rest has begun.
    Lost(String),
}

/// The one line that is open, or is being opened, and where else there could be one.
pub struct Lines {
    coordinators: Vec<String>,
    at: usize,
    turns: Turns,
    /// Who leads, as one that stands by has said: tried first, and once.
    leader: Option<String>,
    /// Attempts in vain since a coordinator had us.
    attempts: u32,
    state: State,
}

impl Lines {
    /// `coordinators`: `host:port` or URLs, at least one.
    pub fn new(coordinators: Vec<String>) -> Lines {
        Lines {
            coordinators,
            at: 0,
            turns: Turns::begin(),
            leader: None,
            attempts: 0,
            state: State::Resting(Instant::now()),
        }
    }

    /// The coordinator that is talked to, or tried.
    pub fn coordinator(&self) -> &str {
        self.leader.as_deref().unwrap_or(&self.coordinators[self.at])
    }

    /// Waits for what happens next. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Heard {
        match &mut self.state {
            State::Resting(until) => {
                sleep_until(*until).await;
                Heard::Due
            }
            State::Opening(opening) => match opening.await {
                Ok(line) => {
                    self.state = State::Open(Box::new(line));
                    Heard::Opened
                }
                Err(Refused { leader: Some(leader), why }) if self.leader.is_none() => {
                    self.leader = Some(leader);
                    self.reopen();
                    Heard::Lost(why)
                }
                Err(Refused { why, .. }) => {
                    self.leave_for_next();
                    Heard::Lost(why)
                }
            },
            State::Open(line) => match line.from.message().await {
                Ok(Some(message)) => message.message.map_or_else(
                    || self.lose("it sent a message of a later version".to_owned()),
                    Heard::Message,
                ),
                Ok(None) => self.lose("it closed the line".to_owned()),
                Err(status) => self.lose(status.message().to_owned()),
            },
        }
    }

    fn lose(&mut self, reason: String) -> Heard {
        self.state = State::Resting(Instant::now() + entropy::jittered(limits::RETRY));
        Heard::Lost(reason)
    }

    /// Opens a line and registers on it.
    pub fn open(&mut self, register: Register) {
        let (coordinator, turns) = (self.coordinator().to_owned(), self.turns.clone());
        let opening = async move { open(&turns.url(&coordinator).await, register).await };
        self.state = State::Opening(Box::pin(async move {
            timeout(limits::CONNECT, opening)
                .await
                .unwrap_or_else(|_| Err(format!("no answer within {:?}", limits::CONNECT).into()))
        }));
    }

    /// Closes the line and rests; then tries the next coordinator.
    pub fn leave_for_next(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
        // One that led and is not there any more: those of the list know who does.
        if self.leader.take().is_none() {
            self.at = (self.at + 1) % self.coordinators.len();
            self.turns.go_on();
        }
        let rounds = self.attempts / self.coordinators.len() as u32;
        let most = limits::RETRY.saturating_mul(1 << rounds.min(8)).min(limits::RETRY_MAX);
        self.state = State::Resting(Instant::now() + entropy::jittered(most));
    }

    /// Closes the line; the same coordinator is tried next, at once.
    pub fn reopen(&mut self) {
        self.state = State::Resting(Instant::now());
    }

    /// A coordinator has us.
    pub fn settled(&mut self) {
        self.attempts = 0;
    }

    /// Whether a message can be sent now.
    pub fn is_free(&self) -> bool {
        matches!(&self.state, State::Open(line) if line.out.capacity() > 0)
    }

    /// Sends, if [`Lines::is_free`].
    pub fn send(&self, message: from_worker::Message) {
        if let State::Open(line) = &self.state {
            // A full or closed line loses it: the next whole beat says it again.
            let _ = line.out.try_send(FromWorker { message: Some(message) });
        }
    }

    /// Returns when the other side has closed the line, after the last word was sent.
    pub async fn closed(&mut self, within: Duration) {
        if let State::Open(line) = &mut self.state {
            let end = async { while let Ok(Some(_)) = line.from.message().await {} };
            // A coordinator that does not close it has the goodbye all the same, or hears the stream's end.
            let _ = timeout(within, end).await;
        }
    }
}

/// Why a coordinator would not have us.
struct Refused {
    why: String,
    /// Who leads instead of it.
    leader: Option<String>,
}

impl From<String> for Refused {
    fn from(why: String) -> Refused {
        Refused { why, leader: None }
    }
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        let leader = status.metadata().get(LEADER.as_str()).and_then(|address| address.to_str().ok());
        Refused { leader: leader.map(str::to_owned), why: status.message().to_owned() }
    }
}

async fn open(url: &str, register: Register) -> Result<Line, Refused> {
    let channel = Endpoint::from_shared(url.to_owned())
        .map_err(|error| format!("{url:?} is no address: {error}"))?
        .connect_timeout(limits::CONNECT)
        .http2_keep_alive_interval(limits::KEEP_ALIVE)
        .keep_alive_timeout(limits::KEEP_ALIVE_ANSWER)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true)
        .connect()
        .await
        .map_err(|error| with_source(&error))?;
    let mut client = WorkerClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES);
    let (out, outgoing) = mpsc::channel(limits::OUTGOING);
    // Sent first: a server may wait for it before it answers the call.
    let register = FromWorker { message: Some(from_worker::Message::Register(register)) };
    out.try_send(register).map_err(|_| "the registration could not be sent".to_owned())?;
    let from = client.attend(ReceiverStream::new(outgoing)).await?.into_inner();
    Ok(Line { out, from })
}

/// What tonic calls "transport error" is explained by its sources.
fn with_source(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(lines: &Lines) -> Duration {
        match lines.state {
            State::Resting(until) => until - Instant::now(),
            State::Opening(_) | State::Open(_) => panic!("no rest"),
        }
    }

    #[tokio::test]
    async fn coordinators_are_tried_in_turn_and_rests_grow_by_rounds_to_the_limit() {
        let mut lines = Lines::new(vec!["a:1".into(), "b:1".into()]);
        let mut tried = Vec::new();
        let mut rests = Vec::new();
        for _ in 0..20 {
            tried.push(lines.coordinator().to_owned());
            lines.leave_for_next();
            rests.push(rest(&lines));
        }
        assert_eq!(tried[..4], ["a:1", "b:1", "a:1", "b:1"]);
        assert!(rests[0] <= limits::RETRY && rests[0] >= limits::RETRY / 2);
        assert!(rests[19] <= limits::RETRY_MAX && rests[19] >= limits::RETRY_MAX / 2);
        lines.settled();
        lines.leave_for_next();
        assert!(rest(&lines) <= limits::RETRY);
    }
}
