//! Which node a client connects to: each in turn, those last that have failed a moment ago. For an attempt the nodes come behind
//! all others that have said that they store only.
//!
//! A connection on which everything was answered is kept for a while, for the next call to its node: to open one takes two round
//! trips. Nodes name numbers of which they would lead the shuffles ([`Nodes::number_led_by`]), so that a start, and what is asked
//! of its shuffle later, goes to the leader without a detour.

use crate::ShuffleId;
use crate::error::Error;
use crate::settings::Settings;
use partage_shuffle_wire::client::{Answer, Call, Request};
use partage_shuffle_wire::transport::{
    Address, ClientAnswers, ClientCalls, ClientConnection, Closed, Timing,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long the last words of a node that has closed a connection may take to come.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(500);

/// Numbers that are kept of each node: some for each start that is under way.
const NUMBERS_KEPT: usize = 64;

/// Shuffles whose leaders are remembered, the last ones.
const LEADERS_KEPT: usize = 256;

/// Between two looks at connections that wait for the next call: a node that ends waits a while for its clients to go.
const IDLE_LOOK: Duration = Duration::from_millis(200);

/// Connections to a node that wait for the next call.
#[derive(Debug, Default)]
struct Idle {
    /// Since when each waits.
    connections: Vec<(Instant, Connection)>,
    /// A task closes those that wait for too long.
    is_watched: bool,
}

#[derive(Debug)]
struct Node {
    address: Address,
    failed: Mutex<Option<Instant>>,
    /// It has refused an attempt, as it stores only.
    stores_only: AtomicBool,
    idle: Mutex<Idle>,
    /// It would lead the shuffles of these numbers, as it has said.
    numbers: Mutex<Vec<ShuffleId>>,
}

/// The nodes that a client knows.
#[derive(Debug)]
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    turn: AtomicUsize,
    avoided: Duration,
    most_idle: usize,
    idle: Duration,
    timing: Timing,
    /// Which node leads a shuffle, as far as that was said.
    leaders: Mutex<VecDeque<(ShuffleId, usize)>>,
}

/// A connection to one of them.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The place of the node among those that the client knows.
    pub(crate) at: usize,
    pub(crate) calls: ClientCalls,
    pub(crate) answers: ClientAnswers,
    /// The number of the last call on it: each has another one.
    pub(crate) last_call: u64,
}

impl Connection {
    pub(crate) fn next_call(&mut self) -> u64 {
        self.last_call += 1;
        self.last_call
    }

    /// Calls, and waits for the answer to that. One to an earlier call may be late.
    pub(crate) async fn ask(&mut self, shuffle: ShuffleId, what: Request) -> Result<Answer, Closed> {
        let number = self.next_call();
        let call = Call { number, shuffle, what };
        let sent = self.calls.send(&call).await;
        if let Err(why) = sent {
            return Err(last_words(&mut self.answers, why).await);
        }
        loop {
            let answer = self.answers.next().await?;
            if answer.number == number {
                return Ok(answer.what);
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change under these locks is one step.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nodes {
    pub(crate) fn new(addresses: Vec<Address>, settings: &Settings) -> Result<Nodes, Error> {
        if addresses.is_empty() {
            return Err(Error::NoAddress);
        }
        // Clients that begin together begin at different nodes.
        let turn = AtomicUsize::new(partage_random::one_of(addresses.len()));
        let node = |address| {
            let (failed, stores_only, idle, numbers) = Default::default();
            Node { address, failed, stores_only, idle, numbers }
        };
        let nodes = addresses.into_iter().map(node).collect();
        let Settings { avoided, idle_connections: most_idle, idle, timing, .. } = *settings;
        // A node lets a client go that is silent for long.
        let idle = idle.min(timing.client_silent / 4);
        Ok(Nodes { nodes, turn, avoided, most_idle, idle, timing, leaders: Mutex::default() })
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
        *lock(&node.failed) = Some(Instant::now());
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
        let failed = *lock(&self.nodes[at].failed);
        failed.is_some_and(|failed| now.saturating_duration_since(failed) < self.avoided)
    }

    /// All nodes, in the order in which they are tried, be it for an attempt or for anything else; one of them may be better than
    /// the others.
    fn order(&self, writes: bool, better: Option<usize>) -> Vec<usize> {
        let (now, count) = (Instant::now(), self.nodes.len());
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut order: Vec<usize> = (0..count).map(|after| turn.wrapping_add(after) % count).collect();
        let stores_only = |at: usize| writes && self.nodes[at].stores_only.load(Ordering::Relaxed);
        order.sort_by_key(|at| (stores_only(*at), self.is_avoided(*at, now), better != Some(*at)));
        order
    }

    /// Connects to the first node that accepts.
    pub(crate) async fn connect(&self) -> Result<Connection, Error> {
        self.connect_in(self.order(false, None)).await
    }

    /// Connects to the leader of a shuffle, if it is known and accepts; else to another node, which asks it.
    pub(crate) async fn connect_for(&self, shuffle: ShuffleId) -> Result<Connection, Error> {
        let leader = lock(&self.leaders).iter().find(|(known, _)| *known == shuffle).map(|(_, at)| *at);
        self.connect_in(self.order(false, leader)).await
    }

    /// Connects for an attempt: nodes that only store come last.
    pub(crate) async fn connect_to_write(&self) -> Result<Connection, Error> {
        self.connect_in(self.order(true, None)).await
    }

    /// A number of a shuffle that the node would lead. None: it has named none that was not used.
    pub(crate) fn number_led_by(&self, at: usize) -> Option<ShuffleId> {
        let number = lock(&self.nodes[at % self.nodes.len()].numbers).pop()?;
        let mut leaders = lock(&self.leaders);
        if leaders.len() >= LEADERS_KEPT {
            leaders.pop_front();
        }
        leaders.push_back((number, at));
        Some(number)
    }

    /// A node has named numbers of shuffles that it would lead. One that another node leads meanwhile costs no more than any
    /// other.
    pub(crate) fn led_by(&self, at: usize, numbers: Vec<ShuffleId>) {
        let mut known = lock(&self.nodes[at % self.nodes.len()].numbers);
        let room = NUMBERS_KEPT.saturating_sub(known.len());
        known.extend(numbers.into_iter().take(room));
    }

    /// All that was called for on a connection was answered: it is kept for the next call.
    pub(crate) fn give_back(self: &Arc<Self>, connection: Connection) {
        let at = connection.at % self.nodes.len();
        let mut idle = lock(&self.nodes[at].idle);
        if idle.connections.len() >= self.most_idle {
            return;
        }
        idle.connections.push((Instant::now(), connection));
        if !std::mem::replace(&mut idle.is_watched, true) {
            tokio::spawn(close_idle(Arc::downgrade(self), at, self.idle));
        }
    }

    /// A connection to the node that is there already. Those that have ended meanwhile are let go.
    fn take_idle(&self, at: usize) -> Option<Connection> {
        let mut idle = lock(&self.nodes[at].idle);
        while let Some((since, mut connection)) = idle.connections.pop() {
            if since.elapsed() < self.idle && connection.answers.is_quiet() {
                return Some(connection);
            }
        }
        None
    }

    async fn connect_in(&self, order: Vec<usize>) -> Result<Connection, Error> {
        let mut tried = Vec::new();
        for at in order {
            if let Some(connection) = self.take_idle(at) {
                return Ok(connection);
            }
            let address = &self.nodes[at].address;
            match ClientConnection::open(address, self.timing).await {
                Ok(ClientConnection { calls, answers, .. }) => {
                    return Ok(Connection { at, calls, answers, last_call: 0 });
                }
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

/// Closes connections to a node that wait for too long, or that the node has ended, until none waits.
async fn close_idle(nodes: Weak<Nodes>, at: usize, after: Duration) {
    loop {
        sleep(after.min(IDLE_LOOK)).await;
        let Some(nodes) = nodes.upgrade() else { return };
        let mut idle = lock(&nodes.nodes[at].idle);
        let stays = |(since, connection): &mut (Instant, Connection)| {
            since.elapsed() < after && connection.answers.is_quiet()
        };
        idle.connections.retain_mut(stays);
        if idle.connections.is_empty() {
            idle.is_watched = false;
            return;
        }
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
        let firsts: Vec<usize> = (0..3).map(|_| nodes.order(false, None)[0]).collect();
        assert!((0..3).all(|at| firsts.contains(&at)), "{firsts:?}");
        nodes.failed(1);
        for _ in 0..6 {
            let order = nodes.order(false, None);
            assert_eq!((order.len(), order[2]), (3, 1), "{order:?}");
        }
        nodes.stores_only(2);
        for _ in 0..6 {
            assert_eq!(nodes.order(true, None), [0, 1, 2], "one that has failed may have come back");
            assert_eq!(nodes.order(false, None)[2], 1, "it answers all else");
            assert_eq!(nodes.order(false, Some(2))[0], 2);
            assert_eq!(nodes.order(false, Some(1))[2], 1, "the leader has failed");
        }
        assert!(!nodes.all_store_only());
        [0, 1].into_iter().for_each(|at| nodes.stores_only(at));
        assert!(nodes.all_store_only());
        assert!(matches!(Nodes::new(Vec::new(), &Settings::default()), Err(Error::NoAddress)));
    }

    #[test]
    fn a_number_that_a_node_has_named_is_used_once_and_no_more_are_kept_than_may_be() {
        let address = |port: u16| Address::Tcp(format!("127.0.0.1:{port}"));
        let nodes = Nodes::new((1..=2).map(address).collect(), &Settings::default()).unwrap();
        assert_eq!(nodes.number_led_by(0), None);
        nodes.led_by(0, (1..=1_000).map(ShuffleId).collect());
        let used: std::collections::BTreeSet<_> = std::iter::from_fn(|| nodes.number_led_by(0)).collect();
        assert_eq!((used.len(), nodes.number_led_by(1)), (NUMBERS_KEPT, None));
        assert!(lock(&nodes.leaders).iter().all(|(_, at)| *at == 0));
        for round in 0..20 {
            nodes.led_by(1, (0..64).map(|number| ShuffleId(2_000 + 64 * round + number)).collect());
            while nodes.number_led_by(1).is_some() {}
        }
        assert_eq!(lock(&nodes.leaders).len(), LEADERS_KEPT);
    }
}
