//! A reverse proxy that sends each HTTP request to the node that has its key, so that an existing service is
//! sharded without a line of code.
//!
//! ```text
//!  client ──► rule: which keyspace, which key? ──► Caller (one for each thread) ──► node
//!                │ none                                │ given up
//!                └──► 400, 404 as JSON                 └──► 502, 503, 504 as JSON
//! ```
//!
//! It speaks HTTP/1.1 and HTTP/2 (without TLS) to clients and HTTP/1.1 to nodes. Bodies are streamed both ways;
//! a request body of known, small length is kept instead, so that the request can be sent again.
//!
//! One thread for each core, each with its own listener on the same port, its own connections and its own
//! budget: a request never crosses threads. Three paths are the proxy's own: `/partage/health`,
//! `/partage/metrics`, `/partage/routes`.
//!
//! Not here: upgrades (WebSocket), which are a connection and no request, and `CONNECT`, which is refused.

mod dataset;
mod pages;
mod rule;
mod serve;

pub use rule::{KeyFrom, KeyspaceFrom, Rule, RuleError};
pub use serve::{Proxy, ProxyError, serve};

use std::net::{Ipv4Addr, SocketAddr};

/// Where a proxy listens, and how it finds the key of a request.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens; port 0 = any free one.
    pub listen: SocketAddr,
    /// How it finds the key; the first rule that fits counts.
    pub rules: Vec<Rule>,
    /// How many threads; 0 = one for each core.
    pub threads: usize,
    /// Who may connect, and what that may cost.
    pub door: partage_door::Settings,
}

impl Default for Config {
    /// Port 7440 of loopback, and the default [`Rule`].
    fn default() -> Config {
        Config {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7_440)),
            rules: vec![Rule::default()],
            threads: 0,
            door: partage_door::Settings::default(),
        }
    }
}
