//! Connections between the nodes of a pool, and of clients to nodes, over TCP or a Unix socket.
//!
//! ```text
//!  machines ── send ─────► queue of each node ──► connection ═══ frames ═══► Server ── Service ──► machines of the other node
//!             never waits    bounded, and one      two for each pair and direction       │
//!           ── send_bulk ─►  for bulk                                                    └─ calls of clients, answers
//!             waits for room
//! ```
//!
//! | question | file |
//! |---|---|
//! | where a node listens | `address.rs` |
//! | how frames are read from and written to a socket | `framed.rs` |
//! | which nodes there are, and what is sent to them | `peers.rs` |
//! | what waits for a node, what is dropped, what goes first | `peer_queue.rs` |
//! | when a connection is opened, given up and opened again | `peer_connection.rs` |
//! | who is accepted, and who is let go and why | `server.rs` |
//! | a client's end | `client.rs` |
//!
//! # Loss
//!
//! Core's machines send again what was not answered, or ask about it, and expect nothing else of a network. So what waits for a
//! node that is not reached is dropped, and so is what does not fit. Bulk is not dropped while its node takes it: a sender that
//! has more waits, does not read from its clients meanwhile, and TCP holds these back. Otherwise a node that is slow for a moment
//! would get each batch twice.
//!
//! # Silence
//!
//! A node pings each second, and hears an answer as long as the other one reads. Both ends give a connection up on which nothing
//! was heard for ten seconds, or nothing was taken. Time-outs are for progress, not for frames: an end that takes the bytes of a
//! long frame on a slow line is not silent, though it answers no ping before it has all of them.
//!
//! # Strangers
//!
//! Who connects says who it is in one short frame, within five seconds, and hears whom it has reached. Until then a server makes
//! no room for more than that, and such connections have a bound of their own, as those of nodes and those of clients have. Long
//! frames are read when there is room for them, again for nodes and for clients apart.
//!
//! # What was not done
//!
//! No encryption: connections are opened by the dialer and will be certified there, as all others.

mod address;
mod client;
mod counts;
mod framed;
mod peer_connection;
mod peer_queue;
mod peers;
mod server;

pub use address::{Address, BadAddress, Listener};
pub use client::{ClientAnswers, ClientCalls, ClientConnection};
pub use counts::{SendCounts, ServerCounts};
pub use framed::Closed;
pub use peer_queue::Dropped;
pub use peers::Peers;
pub use server::{Answers, Calls, ConnectionBounds, Server, Service};

use crate::limits;
use std::time::Duration;

/// How long connections wait for what. But for the opening each is for progress: a byte is enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The first frame and its answer must both come within this.
    pub opening: Duration,
    /// The time between two pings, of a node, or of a client that waits for an answer.
    pub ping: Duration,
    /// Between nodes: an end that sends no byte for so long is let go.
    pub silent: Duration,
    /// The same between a client and a node. A client pings only while it waits for an answer.
    pub client_silent: Duration,
    /// An end that takes no byte for so long is let go. A client gives its node `client_silent` once it is welcome.
    pub stalled: Duration,
    /// How long an end may take to say why it closes a connection.
    pub goodbye: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            opening: limits::OPENING,
            ping: limits::PING,
            silent: limits::SILENT,
            client_silent: limits::CLIENT_SILENT,
            stalled: limits::STALLED,
            goodbye: limits::GOODBYE,
        }
    }
}
