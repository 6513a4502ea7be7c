//! The connection to a coordinator: opened, read, lost, opened again at the next one.
//!
//! | state        | ends by                                   | next                                                 |
//! |--------------|-------------------------------------------|------------------------------------------------------|
//! | `Backoff`    | time                                      | `Connecting`, when the driver gives the registration |
//! | `Connecting` | answer of the server                      | `Open`                                               |
//! | `Connecting` | "another one leads"                       | `Backoff`, then that one, at once; the next          |
//! |              |                                           | coordinator, if that one has said nothing lately     |
//! | `Connecting` | error, time                               | `Backoff`, then the next coordinator                 |
//! | `Open`       | the stream's end                          | `Backoff`, then the next coordinator                 |
//! | `Open`       | [`CoordinatorConnection::leave_for_next`] | `Backoff`, then the next coordinator                 |
//!
//! Core says how long it backs off ([`partage_core::node::reconnect`]). A coordinator that has lost its leader may name
//! the dead one for as long as its session lasts: so a worker that was redirected there in vain asks the next one, too.
//! TLS is not here yet: addresses are taken as plain HTTP/2.

use crate::limits;
use futures::future::BoxFuture;
use partage_core::base::time::Millis;
use partage_core::node::reconnect::{ReconnectBackoff, Silent};
use partage_dialer::{Dialer, coordinator_error};
use partage_maps::AddressRotation;
use partage_wire::limits::MESSAGE_BYTES;
use partage_wire::proto::worker_client::WorkerClient;
use partage_wire::proto::{FromWorker, Register, from_worker, to_worker};
use partage_wire::request::headers::LEADER;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// An open stream to a coordinator; its first message was the registration.
pub struct CoordinatorStream {
    out: mpsc::Sender<FromWorker>,
    from: Streaming<partage_wire::proto::ToWorker>,
}

enum ConnectionState {
    Backoff(Instant),
    Connecting(BoxFuture<'static, Result<CoordinatorStream, Refused>>),
    Open(Box<CoordinatorStream>),
}

/// What happens on the connection.
pub enum ConnectionEvent {
    /// The backoff is over: [`CoordinatorConnection::open`] the next stream.
    BackoffOver,
    /// A stream is open, the registration is on its way.
    Opened,
    /// The coordinator says something.
    Message(to_worker::Message),
    /// The stream is lost, or there was none. A backoff has begun, then the next coordinator is tried.
    Lost {
        /// The lost or refusing one.
        coordinator: String,
        /// What it says, or what is known.
        why: String,
    },
    /// The coordinator stands by, and has said who leads: that one is next.
    Redirected(String),
}

/// The one stream that is open, or is being opened, and which other coordinators there are.
pub struct CoordinatorConnection {
    coordinators: Vec<String>,
    at: usize,
    rotation: AddressRotation,
    /// The leader that a standby has named: tried first, and once.
    leader: Option<String>,
    backoff: ReconnectBackoff,
    silent: Silent,
    begun: Instant,
    state: ConnectionState,
}

impl CoordinatorConnection {
    /// `coordinators`: `host:port` or URLs, at least one.
    pub fn new(coordinators: Vec<String>) -> CoordinatorConnection {
        let begun = Instant::now();
        CoordinatorConnection {
            coordinators,
            at: 0,
            rotation: AddressRotation::begin(),
            leader: None,
            backoff: ReconnectBackoff::of_worker(),
            silent: Silent::default(),
            begun,
            state: ConnectionState::Backoff(begun),
        }
    }

    /// The coordinator that is talked to, or tried.
    pub fn coordinator(&self) -> &str {
        self.leader.as_deref().unwrap_or(&self.coordinators[self.at])
    }

    /// Waits for what happens next. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> ConnectionEvent {
        match &mut self.state {
            ConnectionState::Backoff(until) => {
                sleep_until(*until).await;
                ConnectionEvent::BackoffOver
            }
            ConnectionState::Connecting(opening) => match opening.await {
                Ok(stream) => {
                    self.state = ConnectionState::Open(Box::new(stream));
                    ConnectionEvent::Opened
                }
                Err(Refused { leader: Some(leader), why, .. })
                    if self.leader.is_none() && !self.silent.is_passed_over(&leader, self.now()) =>
                {
                    self.leader = Some(leader);
                    self.reopen();
                    ConnectionEvent::Redirected(why)
                }
                Err(Refused { why, said_nothing, .. }) => {
                    if said_nothing {
                        self.said_nothing();
                    }
                    self.lose(why)
                }
            },
            ConnectionState::Open(stream) => match stream.from.message().await {
                Ok(Some(message)) => message.message.map_or_else(
                    || self.lose("it sent a message of a later version".to_owned()),
                    ConnectionEvent::Message,
                ),
                Ok(None) => self.lose("it closed the stream".to_owned()),
                Err(status) => {
                    // A stream that breaks may have been kept alive in vain.
                    self.said_nothing();
                    self.lose(coordinator_error(&status))
                }
            },
        }
    }

    fn now(&self) -> Millis {
        Millis(self.begun.elapsed().as_millis() as u64)
    }

    /// The present coordinator has not answered: the others come first for a while.
    pub fn said_nothing(&mut self) {
        let (coordinator, now) = (self.coordinator().to_owned(), self.now());
        self.silent.said_nothing(&coordinator, now);
    }

    fn lose(&mut self, why: String) -> ConnectionEvent {
        let coordinator = self.coordinator().to_owned();
        self.leave_for_next();
        ConnectionEvent::Lost { coordinator, why }
    }

    /// Opens a stream and registers on it.
    pub fn open(&mut self, register: Register) {
        let (coordinator, rotation) = (self.coordinator().to_owned(), self.rotation.clone());
        let opening = async move { open(&rotation.url(&coordinator).await, register).await };
        self.state = ConnectionState::Connecting(Box::pin(async move {
            timeout(limits::CONNECT, opening)
                .await
                .unwrap_or_else(|_| Err(Refused::silence(format!("no answer within {:?}", limits::CONNECT))))
        }));
    }

    /// Closes the stream and backs off; then tries the next coordinator.
    pub fn leave_for_next(&mut self) {
        let now = Instant::now();
        self.state = ConnectionState::Backoff(now + self.go_on(now));
    }

    /// Goes on to the next coordinator, and says how long to back off before it is tried.
    fn go_on(&mut self, now: Instant) -> Duration {
        self.leader = None;
        let now = Millis(now.duration_since(self.begun).as_millis() as u64);
        self.at = self.silent.next(&self.coordinators, self.at, now);
        self.rotation.advance();
        let places = self.rotation.places(self.coordinators.len());
        Duration::from_millis(self.backoff.next_delay_ms(now, places, partage_random::jitter()))
    }

    /// Closes the stream; the same coordinator is tried next, at once.
    pub fn reopen(&mut self) {
        self.state = ConnectionState::Backoff(Instant::now());
    }

    /// A coordinator has us, and gives leases of that length.
    pub fn settled(&mut self, lease_ms: u64) {
        self.backoff.connected();
        self.silent.told_lease(lease_ms);
        let coordinator = self.coordinator().to_owned();
        self.silent.answered(&coordinator);
    }

    /// A coordinator says over how long to spread when it is lost.
    pub fn told(&mut self, spread_ms: u64) {
        self.backoff.set_spread(spread_ms);
    }

    /// Whether a message can be sent now.
    pub fn is_free(&self) -> bool {
        matches!(&self.state, ConnectionState::Open(stream) if stream.out.capacity() > 0)
    }

    /// Sends the message if [`CoordinatorConnection::is_free`]; else drops it.
    pub fn send(&self, message: from_worker::Message) {
        if let ConnectionState::Open(stream) = &self.state {
            // A full or closed stream loses it: the next whole beat says it again.
            let _ = stream.out.try_send(FromWorker { message: Some(message) });
        }
    }

    /// Returns when the other side has closed the stream, after the last message was sent.
    pub async fn closed(&mut self, within: Duration) {
        if let ConnectionState::Open(stream) = &mut self.state {
            let end = async { while let Ok(Some(_)) = stream.from.message().await {} };
            // A coordinator that does not close it has the goodbye all the same, or hears the stream's end.
            let _ = timeout(within, end).await;
        }
    }
}

/// Why a coordinator refused us.
struct Refused {
    why: String,
    /// The coordinator that leads instead of it, if it has named one.
    leader: Option<String>,
    /// No answer came, so the coordinator may not be there at all.
    said_nothing: bool,
}

impl Refused {
    fn silence(why: String) -> Refused {
        Refused { why, leader: None, said_nothing: true }
    }
}

impl From<String> for Refused {
    fn from(why: String) -> Refused {
        Refused { why, leader: None, said_nothing: false }
    }
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        let leader = status.metadata().get(LEADER.as_str()).and_then(|address| address.to_str().ok());
        // A status with a source is tonic's own: no coordinator answered.
        let said_nothing = leader.is_none() && std::error::Error::source(&status).is_some();
        Refused { leader: leader.map(str::to_owned), why: coordinator_error(&status), said_nothing }
    }
}

async fn open(url: &str, register: Register) -> Result<CoordinatorStream, Refused> {
    let channel = Dialer::LEASE
        .grpc(url)
        .map_err(|error| format!("{url:?} is no address: {error}"))?
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
    Ok(CoordinatorStream { out, from })
}

/// What tonic calls "transport error" is explained by its sources, some of which say the same.
fn with_source(error: &dyn std::error::Error) -> String {
    let mut parts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(source) = next {
        let part = source.to_string();
        if parts.last() != Some(&part) {
            parts.push(part);
        }
        next = source.source();
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use partage_core::limits::{RECONNECT_MS, WORKER_REST_MS};

    const MOST: Duration = Duration::from_millis(RECONNECT_MS);

    /// Which one was tried in vain, so long after the beginning, and the backoff after it.
    fn tried(connection: &mut CoordinatorConnection, seconds: u64) -> (String, Duration) {
        let tried = connection.coordinator().to_owned();
        (tried, connection.go_on(connection.begun + Duration::from_secs(seconds)))
    }

    #[test]
    fn r7_coordinators_are_tried_in_turn_with_the_rests_of_core() {
        let mut connection = CoordinatorConnection::new(vec!["a:1".into(), "b:1".into()]);
        for tries in ["a:1", "b:1", "a:1", "b:1"] {
            let (tried, rest) = tried(&mut connection, 0);
            assert_eq!(tried, tries);
            assert!((MOST / 2..=MOST).contains(&rest), "{rest:?}");
        }
        assert!(tried(&mut connection, 60).1 <= MOST, "the other one may have us");
        let longest = Duration::from_millis(WORKER_REST_MS);
        let rest = tried(&mut connection, 60).1;
        assert!((longest / 2..=longest).contains(&rest), "{rest:?}");
        connection.settled(3_000);
        assert!(tried(&mut connection, 60).1 <= MOST, "in a small cluster");
    }

    #[test]
    fn r7_a_lost_line_is_made_anew_within_the_spread_that_was_told() {
        let mut connection = CoordinatorConnection::new(vec!["a:1".into()]);
        connection.told(20_000);
        let mut rests = (0..100).map(|_| {
            connection.settled(3_000);
            tried(&mut connection, 1).1
        });
        let longest = rests.by_ref().max().unwrap_or_default();
        // All of a hundred in the first quarter: once in 10^60 times.
        let spread = Duration::from_secs(20);
        assert!((spread / 4..=spread).contains(&longest), "{longest:?}");
    }

    #[tokio::test]
    async fn one_that_names_a_leader_which_is_not_there_is_left_for_the_next() {
        let mut connection = CoordinatorConnection::new(vec!["a:1".into(), "b:1".into()]);
        connection.state = ConnectionState::Connecting(Box::pin(async {
            Err(Refused { leader: Some("gone:1".into()), ..Refused::from("it stands by".to_owned()) })
        }));
        assert!(matches!(connection.next().await, ConnectionEvent::Redirected(_)));
        assert_eq!(connection.coordinator(), "gone:1");
        assert!(matches!(connection.next().await, ConnectionEvent::BackoffOver), "at once");
        connection.state =
            ConnectionState::Connecting(Box::pin(async { Err("nobody is there".to_owned().into()) }));
        let ConnectionEvent::Lost { coordinator, why } = connection.next().await else {
            panic!("it is not there")
        };
        assert_eq!((coordinator.as_str(), why.as_str()), ("gone:1", "nobody is there"));
        assert_eq!(connection.coordinator(), "b:1");
    }

    /// D19: whom the others still name, and who was given up because it said nothing, is not tried again and again.
    #[tokio::test]
    async fn a_leader_that_said_nothing_is_passed_over_though_others_name_it() {
        let mut connection = CoordinatorConnection::new(vec!["a:1".into(), "b:1".into(), "c:1".into()]);
        connection.settled(8_000);
        connection.said_nothing();
        connection.leave_for_next();
        for at in ["b:1", "c:1", "b:1"] {
            assert_eq!(connection.coordinator(), at);
            connection.state = ConnectionState::Connecting(Box::pin(async {
                Err(Refused { leader: Some("a:1".into()), ..Refused::from("it stands by".to_owned()) })
            }));
            assert!(
                matches!(connection.next().await, ConnectionEvent::Lost { .. }),
                "it is sent to a:1 and does not go"
            );
        }
    }

    /// D19: one that takes the connection and never answers is found out while most of a lease is left.
    #[tokio::test]
    async fn one_that_is_paused_is_found_out_within_a_part_of_the_lease() {
        let paused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = paused.local_addr().unwrap().to_string();
        let mut connection = CoordinatorConnection::new(vec![address.clone(), "b:1".into()]);
        let begun = Instant::now();
        connection.open(Register::default());
        let ConnectionEvent::Lost { coordinator, .. } = connection.next().await else {
            panic!("nobody answers there")
        };
        assert_eq!(coordinator, address);
        assert!(begun.elapsed() < Duration::from_millis(2_700), "{:?}", begun.elapsed());
        assert_eq!(connection.coordinator(), "b:1");
        let now = connection.now();
        assert!(connection.silent.is_passed_over(&address, now), "so it is passed over");
    }
}
