//! Which node a client connects to: each in turn, those last that have failed a moment ago. For an attempt the nodes come behind
//! all others that have said that they store only.

use crate::error::Error;
use crate::settings::Settings;
use partage_shuffle_wire::transport::{
    Address, ClientAnswers, ClientCalls, ClientConnection, Closed, Timing,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long the last words of a node that has closed a connection may take to come.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Node {
    address: Address,
    failed: Mutex<Option<Instant>>,
    /// It has refused an attempt, as it stores only.
    stores_only: AtomicBool,
}

/// The nodes that a client knows.
#[derive(Debug)]
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    turn: AtomicUsize,
    avoided: Duration,
    timing: Timing,
}

/// A connection to one of them.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The place of the node among those that the client knows.
    pub(crate) at: usize,
    pub(crate) calls: ClientCalls,
    pub(crate) answers: ClientAnswers,
}

impl Nodes {
    pub(crate) fn new(addresses: Vec<Address>, settings: &Settings) -> Result<Nodes, Error> {
        if addresses.is_empty() {
            return Err(Error::NoAddress);
        }
        // Clients that begin together begin at different nodes.
        let turn = AtomicUsize::new(partage_random::one_of(addresses.len()));
        let node = |address| Node { address, failed: Mutex::new(None), stores_only: AtomicBool::new(false) };
        let nodes = addresses.into_iter().map(node).collect();
        Ok(Nodes { nodes, turn, avoided: settings.avoided, timing: settings.timing })
    }

    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn address(&self, at: usize) -> Address {
        self.nodes[at % self.nodes.len()].address.clone()
    }

    /// Notes that a node has failed: for some time the others are tried before it.
    pub(crate) fn failed(&self, at: usize) {
        let node = &self.nodes[at % self.nodes.len()];
        *node.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// A node has refused an attempt, as it stores only. It may have started again with other roles since: it stays the last
    /// choice, and no more.
    pub(crate) fn stores_only(&self, at: usize) {
        self.nodes[at % self.nodes.len()].stores_only.store(true, Ordering::Relaxed);
    }

    /// Whether each node has refused an attempt so.
    pub(crate) fn all_store_only(&self) -> bool {
        self.nodes.iter().all(|node| node.stores_only.load(Ordering::Relaxed))
    }

    fn is_avoided(&self, at: usize, now: Instant) -> bool {
        let failed = *self.nodes[at].failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.is_some_and(|failed| now.saturating_duration_since(failed) < self.avoided)
    }

    /// All nodes, in the order in which they are tried, be it for an attempt or for anything else.
    fn order(&self, writes: bool) -> Vec<usize> {
        let (now, count) = (Instant::now(), self.nodes.len());
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut order: Vec<usize> = (0..count).map(|after| turn.wrapping_add(after) % count).collect();
        let stores_only = |at: usize| writes && self.nodes[at].stores_only.load(Ordering::Relaxed);
        order.sort_by_key(|at| (stores_only(*at), self.is_avoided(*at, now)));
        order
    }

    /// Connects to the first node that accepts.
    pub(crate) async fn connect(&self) -> Result<Connection, Error> {
        self.connect_in(self.order(false)).await
    }

    /// Connects for an attempt: nodes that only store come last.
    pub(crate) async fn connect_to_write(&self) -> Result<Connection, Error> {
        self.connect_in(self.order(true)).await
    }

    async fn connect_in(&self, order: Vec<usize>) -> Result<Connection, Error> {
        let mut tried = Vec::new();
        for at in order {
            let address = &self.nodes[at].address;
            match ClientConnection::open(address, self.timing).await {
                Ok(ClientConnection { calls, answers, .. }) => return Ok(Connection { at, calls, answers }),
                Err(why) => {
                    self.failed(at);
                    tried.push(format!("{address}: {why}"));
                }
            }
        }
        Err(Error::NoNode(tried.join("; ")))
    }

    /// A connection to a node has ended.
    pub(crate) fn lost(&self, at: usize, why: Closed) -> Error {
        self.failed(at);
        Error::Lost { node: self.address(at), why }
    }
}

/// Why a node does not take a call: it may have said so before it closed the connection.
pub(crate) async fn last_words(answers: &mut ClientAnswers, why: Closed) -> Closed {
    let words = async {
        loop {
            if let Err(closed) = answers.next().await {
                return closed;
            }
        }
    };
    match timeout(LAST_WORDS, words).await {
        Ok(Closed::Refused(refusal)) => Closed::Refused(refusal),
        Ok(_) | Err(_) => why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nodes_are_asked_in_turn_and_those_that_have_failed_last() {
        let address = |port: u16| Address::Tcp(format!("127.0.0.1:{port}"));
        let nodes = Nodes::new((1..=3).map(address).collect(), &Settings::default()).unwrap();
        let firsts: Vec<usize> = (0..3).map(|_| nodes.order(false)[0]).collect();
        assert!((0..3).all(|at| firsts.contains(&at)), "{firsts:?}");
        nodes.failed(1);
        for _ in 0..6 {
            let order = nodes.order(false);
            assert_eq!((order.len(), order[2]), (3, 1), "{order:?}");
        }
        nodes.stores_only(2);
        for _ in 0..6 {
            assert_eq!(nodes.order(true), [0, 1, 2], "one that has failed may have come back");
            assert_eq!(nodes.order(false)[2], 1, "it answers all else");
        }
        assert!(!nodes.all_store_only());
        [0, 1].into_iter().for_each(|at| nodes.stores_only(at));
        assert!(nodes.all_store_only());
        assert!(matches!(Nodes::new(Vec::new(), &Settings::default()), Err(Error::NoAddress)));
    }
}
