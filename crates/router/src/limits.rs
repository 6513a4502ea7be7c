//! Every limit of a router, with its reason.

use std::time::Duration;

/// Idle connections kept to one node by one thread: as many requests as one node usually answers at once.
pub const IDLE_CONNECTIONS: usize = 256;

/// Requests under way in one caller (one thread of the proxy, or one [`crate::Router`]). Beyond it the caller refuses
/// a new one at once: work after its client has given up is wasted.
pub const IN_FLIGHT: usize = 16_384;

/// Largest request body that is kept to be sent again, by default. A larger one is streamed, and then sent
/// once only.
pub const KEPT_BODY_BYTES: usize = 64 << 10;

/// Largest body of a refusal that is read for its reason.
pub const REFUSAL_BYTES: u64 = 16 << 10;

/// How long an idle connection to a node is kept: less than what servers commonly allow (Node.js: 5 s;
/// others 60 s and more), as one that the server closes under a request costs a try.
pub const IDLE: Duration = Duration::from_secs(4);

/// Largest body of a request for several keys of a dataset that is kept, to be sent to another node if one is behind: ten
/// thousand keys of a hundred bytes.
pub const KEYS_BYTES: usize = 1 << 20;

/// Nodes that the proxy asks for a dataset while each is behind: all of them, where there are no more; else, when half of
/// them have the new version, 1 of 256 requests finds none.
pub const BEHIND_TRIES: u32 = 8;

/// How often the router checks idle connections.
pub const SWEEP: Duration = Duration::from_secs(1);

/// Clients connected to the proxy: a file descriptor each, and as many to nodes.
pub const CLIENTS: usize = 20_000;

/// How long the proxy waits at its end for requests under way.
pub const DRAIN: Duration = Duration::from_secs(10);

/// Shards in one answer of `/partage/routes`.
pub const ROUTES_SHOWN: usize = 10_000;

/// HTTP/2 pings to clients that send nothing: the proxy closes connections whose client is gone.
pub const CLIENT_PING: Duration = Duration::from_secs(30);
