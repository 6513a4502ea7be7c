//! Which node a client connects to: each in turn, those last that have failed a moment ago. For an attempt the nodes come behind
//! all others that have said that they store only.
//!
//! A connection on which everything was answered is kept for a while, for the next call to its node: to open one takes two round
//! trips. Its node may let it go just then: a call that gets no answer for that is made once more on a new one, and says nothing
//! against the node.
//!
//! Nodes name numbers of which they would lead the shuffles ([`Nodes::number_led_by`]), so that a start, and what is asked of its
//! shuffle later, goes to the leader without a detour. Starts go to each node in turn, so that each leads as many of these
//! shuffles; a client that knows one node only draws its numbers.

use crate::ShuffleId;
use crate::error::Error;
use crate::settings::Settings;
use partage_core::base::name::NodeId;
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
    /// Its name, as it has said when it was connected to last.
    name: Mutex<Option<NodeId>>,
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
    /// The turn of starts: what is asked between them does not count, or one node might get all of them.
    start_turn: AtomicUsize,
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
    /// It was kept from an earlier call, and nothing was answered on it since: its node may have let it go.
    pub(crate) is_kept: bool,
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
            self.is_kept = false;
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
        let [turn, start_turn] = [(); 2].map(|()| AtomicUsize::new(partage_random::one_of(addresses.len())));
        let node = |address| {
            let (name, failed, stores_only, idle, numbers) = Default::default();
            Node { address, name, failed, stores_only, idle, numbers }
        };
        let nodes = addresses.into_iter().map(node).collect();
        let Settings { avoided, idle_connections: most_idle, idle, timing, .. } = *settings;
        // A node lets a client go that is silent for long.
        let idle = idle.min(timing.client_silent / 4);
        Ok(Nodes { nodes, turn, start_turn, avoided, most_idle, idle, timing, leaders: Mutex::default() })
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
        self.order_by(&self.turn, writes, better)
    }

    fn order_by(&self, turn: &AtomicUsize, writes: bool, better: Option<usize>) -> Vec<usize> {
        let (now, count) = (Instant::now(), self.nodes.len());
        let turn = turn.fetch_add(1, Ordering::Relaxed);
        let mut order: Vec<usize> = (0..count).map(|after| turn.wrapping_add(after) % count).collect();
        let stores_only = |at: usize| writes && self.nodes[at].stores_only.load(Ordering::Relaxed);
        order.sort_by_key(|at| (stores_only(*at), self.is_avoided(*at, now), better != Some(*at)));
        order
    }

    /// Connects to the first node that accepts.
    pub(crate) async fn connect(&self) -> Result<Connection, Error> {
        self.connect_in(self.order(false, None)).await
    }

    /// Connects to a node for a start: each has its turn.
    pub(crate) async fn connect_to_start(&self) -> Result<Connection, Error> {
        self.connect_in(self.order_by(&self.start_turn, false, None)).await
    }

    /// Connects to the leader of a shuffle, if it is known and accepts; else to another node, which asks it.
    pub(crate) async fn connect_for(&self, shuffle: ShuffleId) -> Result<Connection, Error> {
        let leader = lock(&self.leaders).iter().find(|(known, _)| *known == shuffle).map(|(_, at)| *at);
        self.connect_in(self.order(false, leader)).await
    }

    /// The place of a node. None: the client knows no such node, or has not spoken with it.
    pub(crate) fn place_of(&self, name: &NodeId) -> Option<usize> {
        self.nodes.iter().position(|node| lock(&node.name).as_ref() == Some(name))
    }

    /// Connects to this node, unless it has failed a moment ago; else to another one.
    pub(crate) async fn connect_near(&self, at: usize) -> Result<Connection, Error> {
        self.connect_in(self.order(false, Some(at))).await
    }

    /// Connects for an attempt: nodes that only store come last.
    pub(crate) async fn connect_to_write(&self) -> Result<Connection, Error> {
        self.connect_in(self.order(true, None)).await
    }

    /// A number of a shuffle that the node would lead. None: it has named none that was not used, or it would lead all shuffles
    /// of the client, which knows no other node.
    pub(crate) fn number_led_by(&self, at: usize) -> Option<ShuffleId> {
        if self.nodes.len() < 2 {
            return None;
        }
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
        let is_watched = {
            let mut idle = lock(&self.nodes[at].idle);
            if idle.connections.len() >= self.most_idle {
                return;
            }
            idle.connections.push((Instant::now(), connection));
            std::mem::replace(&mut idle.is_watched, true)
        };
        if !is_watched {
            // A runtime that ends drops the task at once, which takes the lock.
            let watching = Watching { nodes: Arc::downgrade(self), at };
            tokio::spawn(close_idle(watching, self.idle));
        }
    }

    /// A connection to the node that is there already. Those that have ended meanwhile are let go.
    fn take_idle(&self, at: usize) -> Option<Connection> {
        let mut idle = lock(&self.nodes[at].idle);
        while let Some((since, mut connection)) = idle.connections.pop() {
            if since.elapsed() < self.idle && connection.answers.is_quiet() {
                connection.is_kept = true;
                return Some(connection);
            }
        }
        None
    }

    /// A new connection to a node. If it accepts none, it has failed.
    async fn open(&self, at: usize) -> Result<Connection, Closed> {
        let opened = ClientConnection::open(&self.nodes[at % self.nodes.len()].address, self.timing).await;
        let ClientConnection { node, calls, answers } = opened.inspect_err(|_| self.failed(at))?;
        *lock(&self.nodes[at % self.nodes.len()].name) = Some(node.node);
        Ok(Connection { at, calls, answers, last_call: 0, is_kept: false })
    }

    /// A new connection to a node in place of one that has ended, if that was kept and nothing was answered on it. It happens
    /// once for a call, as the new one was not kept. Else the node has failed.
    pub(crate) async fn in_place_of(
        &self,
        at: usize,
        is_kept: bool,
        why: Closed,
    ) -> Result<Connection, Error> {
        if !is_kept || !is_let_go(&why) {
            return Err(self.lost(at, why));
        }
        tracing::debug!(node = %self.address(at), %why, "a connection that was kept has ended");
        self.open(at).await.map_err(|why| Error::Lost { node: self.address(at), why })
    }

    async fn connect_in(&self, order: Vec<usize>) -> Result<Connection, Error> {
        let mut tried = Vec::new();
        for at in order {
            if let Some(connection) = self.take_idle(at) {
                return Ok(connection);
            }
            match self.open(at).await {
                Ok(connection) => return Ok(connection),
                Err(why) => tried.push(format!("{}: {why}", self.nodes[at].address)),
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

/// Whether a node has let a connection go, or the system has: the node may be well, and was not silent.
fn is_let_go(why: &Closed) -> bool {
    match why {
        Closed::Ended | Closed::Refused(_) | Closed::Broken | Closed::Failed(..) => true,
        Closed::Frame(_) | Closed::Silent(_) | Closed::Late(_) | Closed::Stalled(_) => false,
    }
}

/// What the task has that closes idle connections to a node. If it is dropped before it is done, with its runtime, the next
/// connection that is kept gets another task.
struct Watching {
    nodes: Weak<Nodes>,
    at: usize,
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(nodes) = self.nodes.upgrade() {
            lock(&nodes.nodes[self.at].idle).is_watched = false;
        }
    }
}

/// Closes connections to a node that wait for too long, or that the node has ended, until none waits.
async fn close_idle(mut watching: Watching, after: Duration) {
    loop {
        sleep(after.min(IDLE_LOOK)).await;
        let Some(nodes) = watching.nodes.upgrade() else { return };
        let mut idle = lock(&nodes.nodes[watching.at].idle);
        let stays = |(since, connection): &mut (Instant, Connection)| {
            since.elapsed() < after && connection.answers.is_quiet()
        };
        idle.connections.retain_mut(stays);
        if idle.connections.is_empty() {
            idle.is_watched = false;
            // Another task may watch them from now on.
            watching.nodes = Weak::new();
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

    #[tokio::test]
    async fn starts_go_to_each_node_in_turn_whatever_is_asked_between_them() {
        let address = |port: u16| Address::Tcp(format!("127.0.0.1:{port}"));
        let nodes = Nodes::new((1..=3).map(address).collect(), &Settings::default()).unwrap();
        let mut firsts = [0; 3];
        for _ in 0..9 {
            firsts[nodes.order_by(&nodes.start_turn, false, None)[0]] += 1;
            // Three calls with each start: the next one would go to the same node.
            (0..2).for_each(|_| drop(nodes.order(false, None)));
        }
        assert_eq!(firsts, [3; 3]);
    }

    #[test]
    fn connections_are_watched_anew_after_the_runtime_of_the_task_has_ended() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let first = runtime();
        let address = Address::Tcp("127.0.0.1:1".to_owned());
        let nodes = Arc::new(Nodes::new(vec![address], &Settings::default()).unwrap());
        lock(&nodes.nodes[0].idle).is_watched = true;
        let watching = Watching { nodes: Arc::downgrade(&nodes), at: 0 };
        drop(first.spawn(close_idle(watching, Duration::from_secs(60))));
        assert!(lock(&nodes.nodes[0].idle).is_watched);
        drop(first);
        assert!(!lock(&nodes.nodes[0].idle).is_watched, "the task has gone with its runtime");
        // A task that finds no connection any more is done.
        lock(&nodes.nodes[0].idle).is_watched = true;
        let watching = Watching { nodes: Arc::downgrade(&nodes), at: 0 };
        runtime().block_on(close_idle(watching, Duration::from_millis(1)));
        assert!(!lock(&nodes.nodes[0].idle).is_watched);
    }

    #[test]
    fn a_client_of_one_node_does_not_have_it_lead_all_shuffles() {
        let nodes = Nodes::new(vec![Address::Tcp("127.0.0.1:1".to_owned())], &Settings::default()).unwrap();
        nodes.led_by(0, vec![ShuffleId(1)]);
        assert_eq!(nodes.number_led_by(0), None);
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
