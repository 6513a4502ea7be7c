//! Nodes: worker processes, as they announce themselves.

mod allowed;
pub mod disk;
pub mod exchange;
pub mod health;
pub mod lease;
pub mod load;
pub mod reconnect;
pub mod store;

use crate::base::id::Incarnation;
use crate::base::name::{Label, NodeId, Zone};
use crate::keyspace::KeyspaceKind;
use crate::limits;
use std::collections::BTreeSet;
use std::fmt;

/// What the coordinator checks at the announced address (A11).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum CheckBack {
    /// That a TCP connection opens.
    #[default]
    Connect,
    /// That `GET` of this path answers 200. The SDK mounts one that also names the node and incarnation.
    Get(String),
}

/// What a worker says of itself when it registers.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSpec {
    /// Its name, kept across restarts.
    pub id: NodeId,
    /// Where requests for its shards go: `host:port`.
    pub address: String,
    /// Its share of every load, relative to other nodes. 1 is usual.
    pub capacity: f64,
    /// What fails with it: a data centre, a building. Replicas are spread over zones.
    pub zone: Option<Zone>,
    /// A smaller failure domain inside the zone.
    pub rack: Option<Zone>,
    /// Free words to pin and exclude by.
    pub labels: BTreeSet<Label>,
    /// Which kinds of keyspaces it serves; shards of others never go there. A worker that names none serves `app` keyspaces.
    pub kinds: BTreeSet<KeyspaceKind>,
    /// How the coordinator checks the address.
    pub check_back: CheckBack,
    /// Where the desired set is posted on every change, beside the answers to heartbeats: a URL at the announced address,
    /// for workers over plain HTTP that want it.
    pub callback: Option<String>,
    /// Where clients of Redis reach it, `host:port`, if it listens for them: what redirects name. None: other nodes do not
    /// redirect to it.
    pub resp_address: Option<String>,
}

/// An announcement that cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NodeSpecError {
    /// Zero, negative, infinite or not a number.
    #[error("node {node}: capacity {capacity} is not usable: give a number from {low} to {high} (1 is usual)", low = limits::CAPACITIES.start(), high = limits::CAPACITIES.end())]
    Capacity {
        /// The node that announced the capacity.
        node: NodeId,
        /// The capacity that was announced: the node's share of every load, relative to other nodes.
        capacity: f64,
    },
    /// No host or no port.
    #[error("node {node}: address {address:?} is not usable: give host:port, where other processes reach it")]
    Address {
        /// The node that announced the address.
        node: NodeId,
        /// The address that was announced, which is not of the form `host:port`.
        address: String,
    },
    /// The address for clients of Redis has no host or no port.
    #[error(
        "node {node}: resp_address {address:?} is not usable: give host:port, where clients of Redis reach it"
    )]
    RespAddress {
        /// The node that announced the address.
        node: NodeId,
        /// The address that was announced, which is not of the form `host:port`.
        address: String,
    },
    /// A callback elsewhere than at the announced address: the coordinator would send requests for a stranger to
    /// wherever the stranger says (Z1).
    #[error(
        "node {node}: callback {callback:?} is not at the announced address: give http://{address}/ and a path"
    )]
    Callback {
        /// The node that announced the callback.
        node: NodeId,
        /// The callback URL that was announced.
        callback: String,
        /// The address that the node announced.
        address: String,
    },
    /// The node announces more than [`limits::LABELS`] labels.
    #[error("node {node} has {count} labels: the limit is {limit}", limit = limits::LABELS)]
    Labels {
        /// The node that announced the labels.
        node: NodeId,
        /// The number of labels that were announced.
        count: usize,
    },
}

impl NodeSpec {
    /// A node of capacity 1 in no zone.
    pub fn new(id: NodeId, address: impl Into<String>) -> NodeSpec {
        NodeSpec {
            id,
            address: address.into(),
            capacity: 1.0,
            zone: None,
            rack: None,
            labels: BTreeSet::new(),
            kinds: [KeyspaceKind::App].into(),
            check_back: CheckBack::default(),
            callback: None,
            resp_address: None,
        }
    }

    /// What the coordinator does to see whether the address answers.
    pub fn check_text(&self) -> String {
        match &self.check_back {
            CheckBack::Connect => format!("a TCP connection to {}", self.address),
            CheckBack::Get(path) => format!("GET http://{}{path}", self.address),
        }
    }

    /// Refuses what nothing could be placed on.
    pub fn check(&self) -> Result<(), NodeSpecError> {
        if !limits::CAPACITIES.contains(&self.capacity) {
            return Err(NodeSpecError::Capacity { node: self.id.clone(), capacity: self.capacity });
        }
        if !is_address(&self.address) {
            return Err(NodeSpecError::Address { node: self.id.clone(), address: self.address.clone() });
        }
        if let Some(address) = self.resp_address.as_ref().filter(|address| !is_address(address)) {
            return Err(NodeSpecError::RespAddress { node: self.id.clone(), address: address.clone() });
        }
        if let Some(callback) = self.callback.as_ref().filter(|url| !is_at(url, &self.address)) {
            let (node, callback) = (self.id.clone(), callback.clone());
            return Err(NodeSpecError::Callback { node, callback, address: self.address.clone() });
        }
        if self.labels.len() > limits::LABELS {
            return Err(NodeSpecError::Labels { node: self.id.clone(), count: self.labels.len() });
        }
        Ok(())
    }
}

/// Whether it is `host:port`: a name, an IPv4 address or an IPv6 address in brackets, and nothing by which a URL made
/// of it would lead elsewhere.
fn is_address(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let is_name = |host: &str| {
        !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
    };
    let is_v6 = |host: &str| {
        host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ':' | '.' | '%')) && host.contains(':')
    };
    let host_is_good = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => is_v6(host),
        None => is_name(host),
    };
    host_is_good && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Whether a URL leads to `address`.
fn is_at(url: &str, address: &str) -> bool {
    let rest = url.strip_prefix("http://").and_then(|rest| rest.strip_prefix(address));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
}

/// How a node looks from the coordinator. See [`crate::node::health`] for how it gets there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    /// In the map or the records, not heard of since this coordinator started (R6).
    Unknown,
    /// Beats, and its address answers.
    Up,
    /// Has missed beats; still holds its lease.
    Suspect,
    /// Beats, but the address it announced does not answer: given nothing new.
    Unreachable,
    /// Silent for `dead_after_ms`, and its lease is over. The coordinator declares it dead next, unless the brake is on.
    Down,
    /// It sent `leave`: the coordinator has ended its lease, whatever it still held.
    Left,
}

impl Health {
    /// Every one, in order.
    pub const ALL: [Health; 6] =
        [Health::Unknown, Health::Up, Health::Suspect, Health::Unreachable, Health::Down, Health::Left];
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Health::Unknown => "unknown",
            Health::Up => "up",
            Health::Suspect => "suspect",
            Health::Unreachable => "unreachable",
            Health::Down => "down",
            Health::Left => "left",
        })
    }
}

/// Where other processes reach a node, and whether they should: what the coordinator publishes of it beside the maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    /// The id of the node.
    pub id: NodeId,
    /// The start of the node that announced the address.
    pub incarnation: Incarnation,
    /// Where requests for its shards go, as `host:port`.
    pub address: String,
    /// The zone that the node announced: routers prefer replicas in their own.
    pub zone: Option<Zone>,
    /// The health of the node, as the coordinator sees it.
    pub health: Health,
    /// Where clients of Redis reach it, `host:port`; none = it has announced no such listener.
    pub resp_address: Option<String>,
    /// The labels of a node that serves shuffles, by which the nodes of a pool know each other. Empty for any other node: no
    /// process needs them there, and the coordinator sends each change of a node to all that follow the maps.
    pub labels: BTreeSet<Label>,
    /// Whether it is drained, or wants to leave: nothing new should go there.
    pub drains: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_announcements_are_named() {
        let good = NodeSpec::new(NodeId::new("a").unwrap(), "127.0.0.1:7000");
        assert_eq!(good.check(), Ok(()));
        for capacity in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(
                NodeSpec { capacity, ..good.clone() }.check(),
                Err(NodeSpecError::Capacity { .. })
            ));
        }
        let elsewhere =
            ["a/b:80", "a@b:80", "a?b:80", "a#b:80", "a\\b:80", "a b:80", "[a]:80", "[::1:80", "::1:80"];
        for address in ["", "host", "host:", ":80", "host:0", "host:99999"].into_iter().chain(elsewhere) {
            let spec = NodeSpec { address: address.into(), ..good.clone() };
            assert!(matches!(spec.check(), Err(NodeSpecError::Address { .. })), "{address}");
        }
        for address in ["node-1.local:80", "my_node:80", "10.0.0.1:80", "[fe80::1%eth0]:80"] {
            assert_eq!(NodeSpec { address: address.into(), ..good.clone() }.check(), Ok(()), "{address}");
        }
    }

    #[test]
    fn z1_callbacks_lead_to_the_announced_address_only() {
        let called = |callback: &str| {
            let good = NodeSpec::new(NodeId::new("a").unwrap(), "10.0.0.7:7000");
            NodeSpec { callback: Some(callback.to_owned()), ..good }.check()
        };
        for good in ["http://10.0.0.7:7000", "http://10.0.0.7:7000/orders", "http://10.0.0.7:7000?of=a"] {
            assert_eq!(called(good), Ok(()), "{good}");
        }
        for bad in [
            "http://10.0.0.8:7000/orders",
            "http://10.0.0.7:70001/orders",
            "http://10.0.0.7:7000@evil/orders",
            "http://evil/10.0.0.7:7000",
            "https://10.0.0.7:7000/orders",
        ] {
            assert!(matches!(called(bad), Err(NodeSpecError::Callback { .. })), "{bad}");
        }
    }
}
