//! The one place from which a process of Partage connects to another one: workers and routers to coordinators, routers and
//! nodes to nodes, coordinators to workers and to each other, commands to all. The counterpart of the door, through which
//! they are let in.
//!
//! ```text
//! who calls ──► Dialer: how long may it take to open? is it still there? ──► TCP, HTTP or gRPC
//! ```
//!
//! Certificates will be shown and looked at here. What a call may take when the connection is open is its caller's to
//! say; all time-outs of connections are in this file. The coordination backends (etcd, ZooKeeper, MySQL, gossip) and the
//! sources of datasets are reached by their own clients.

use hyper_util::client::legacy::connect::HttpConnector;
use std::io::{Error, ErrorKind};
use std::time::Duration;
use tokio::net::{TcpStream, ToSocketAddrs};
use tonic::Status;
use tonic::transport::{Endpoint, Error as TransportError};

/// HTTP/2 pings when nothing else is heard: without them a connection across a healed partition hangs for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pings {
    /// When nothing was heard for this long, a ping is sent.
    every: Duration,
    /// How long the answer to it may take, before the connection counts as broken.
    answer: Duration,
}

/// How one kind of party is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialer {
    connect: Duration,
    pings: Option<Pings>,
}

impl Dialer {
    /// A process of the same cluster that is to answer a request: a node, a metadata server, the coordinator that leads. It
    /// takes many times a round trip around the world, and is short against a request's deadline, so that another try is
    /// left.
    pub const PEER: Dialer = Dialer { connect: Duration::from_secs(1), pings: None };

    /// The same, over a connection that stays.
    pub const LEADER: Dialer = Dialer {
        connect: Duration::from_secs(1),
        pings: Some(Pings { every: Duration::from_secs(5), answer: Duration::from_secs(5) }),
    };

    /// A coordinator whose maps are followed. One whose machine is gone is found out in time for the next one.
    pub const MAPS: Dialer = Dialer {
        connect: Duration::from_secs(2),
        pings: Some(Pings { every: Duration::from_secs(3), answer: Duration::from_secs(2) }),
    };

    /// The coordinator that renews a worker's lease. Ping and answer together are how late a paused coordinator is
    /// noticed: a quarter of the lease that several coordinators give, so that there is time for a second one that is
    /// paused, and for the election.
    pub const LEASE: Dialer = Dialer {
        connect: Duration::from_secs(2),
        pings: Some(Pings { every: Duration::from_millis(500), answer: Duration::from_millis(1_500) }),
    };

    /// A node whose replicas are sent what leaders log. Where it is gone without a word, the leader asks its replicas out of
    /// the in-sync set by a time-out of its own; here it is found out soon enough for its next process to be reached.
    pub const REPLICAS: Dialer = Dialer {
        connect: Duration::from_secs(1),
        pings: Some(Pings { every: Duration::from_secs(1), answer: Duration::from_secs(2) }),
    };

    /// The process that a command asks; after that time the command tries the next address.
    pub const COMMAND: Dialer = Dialer { connect: Duration::from_secs(3), pings: None };

    /// A connection for a protocol of the caller's own.
    ///
    /// # Errors
    /// When there is none, or [`ErrorKind::TimedOut`] when it does not open in time.
    pub async fn tcp(self, address: impl ToSocketAddrs) -> Result<TcpStream, Error> {
        let late = |_| Error::new(ErrorKind::TimedOut, "it did not open in time");
        let stream =
            tokio::time::timeout(self.connect, TcpStream::connect(address)).await.map_err(late)??;
        // Small messages to and fro are all there is; waiting for more to send only delays them.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// The same over a socket of this machine, by its path.
    ///
    /// # Errors
    /// When there is none, or [`ErrorKind::TimedOut`] when it does not open in time.
    #[cfg(unix)]
    pub async fn unix(self, path: &std::path::Path) -> Result<tokio::net::UnixStream, Error> {
        let late = |_| Error::new(ErrorKind::TimedOut, "it did not open in time");
        tokio::time::timeout(self.connect, tokio::net::UnixStream::connect(path)).await.map_err(late)?
    }

    /// What a client of HTTP opens its connections with.
    pub fn http(self) -> HttpConnector {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(self.connect));
        connector.set_nodelay(true);
        connector
    }

    /// Pings on connections of HTTP/2: rest between two, and how long the answer may take.
    pub fn pings(self) -> Option<(Duration, Duration)> {
        self.pings.map(|pings| (pings.every, pings.answer))
    }

    /// Where gRPC connects to: `http://host:port`.
    ///
    /// # Errors
    /// When that is no URL.
    pub fn grpc(self, url: impl Into<String>) -> Result<Endpoint, TransportError> {
        let endpoint = Endpoint::from_shared(url.into())?.connect_timeout(self.connect).tcp_nodelay(true);
        Ok(match self.pings {
            Some(pings) => endpoint
                .http2_keep_alive_interval(pings.every)
                .keep_alive_timeout(pings.answer)
                .keep_alive_while_idle(true),
            None => endpoint,
        })
    }
}

/// Why a call over gRPC to a coordinator failed, for people. A process that does not speak gRPC answers with plain HTTP:
/// tonic then reports what it could not decode, and this function says what it means.
pub fn coordinator_error(status: &Status) -> String {
    let words = status.message();
    // tonic's own words, as it has no code for an answer without gRPC; the tests of the command line let a router and a node ask
    // a real one.
    let is_plain_http =
        ["invalid compression flag", "grpc-status header missing"].iter().any(|part| words.contains(part));
    match is_plain_http {
        true => format!(
            "what listens there is no coordinator: it answers with plain HTTP{}; give the address of a coordinator \
             (--join, --coordinator)",
            http_status(words).map_or_else(String::new, |code| format!(" {code}"))
        ),
        false => words.to_owned(),
    }
}

/// The status of HTTP that tonic names at the end of its words.
fn http_status(words: &str) -> Option<&str> {
    let after = |mark: &str| words.rsplit_once(mark).map(|(_, rest)| rest);
    let rest = after("response with status: ").or_else(|| after("HTTP status code "))?;
    rest.get(..3).filter(|code| code.bytes().all(|digit| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn what_does_not_speak_grpc_is_no_coordinator() {
        let of = |words: &str| coordinator_error(&Status::internal(words));
        let flag = "protocol error: received message with invalid compression flag: 123 (valid flags are 0 and 1) \
                    while receiving response with status: 421 Misdirected Request";
        assert!(of(flag).contains("no coordinator: it answers with plain HTTP 421;"), "{}", of(flag));
        let missing = "grpc-status header missing, mapped from HTTP status code 404";
        assert!(of(missing).contains("plain HTTP 404;"), "{}", of(missing));
        assert_eq!(of("this coordinator stands by"), "this coordinator stands by");
    }

    #[tokio::test]
    async fn it_reaches_who_listens_and_says_who_does_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stream = Dialer::PEER.tcp(address).await.unwrap();
        assert!(stream.nodelay().unwrap());
        drop((stream, listener));
        assert_eq!(Dialer::PEER.tcp(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert!(Dialer::MAPS.grpc("no url").is_err());
    }

    /// An address whose machine does not answer at all would hold a caller for minutes.
    #[tokio::test]
    async fn it_waits_for_nobody_longer_than_it_says() {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let dialer = Dialer { connect: Duration::from_millis(100), pings: None };
        // No process accepts: when the queue of the listener is full the kernel answers no more.
        let mut held = Vec::new();
        let error = loop {
            assert!(held.len() < 64, "the queue takes more than it says");
            match dialer.tcp(address).await {
                Ok(connection) => held.push(connection),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }
}
