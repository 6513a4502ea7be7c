//! Gossip over UDP on loopback: the part of the suite that is about presence, deaths, returns and partitions.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

use async_trait::async_trait;
use backends::udp::Relay;
use partage_coordination::conformance::{self, Subject};
use partage_coordination::gossip::{EXPIRY_BOUND, Gossip};
use partage_coordination::{
    Coordination, Error, Key, Listen, Scope, SessionId, Target, Transaction, connect,
};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(60);

fn free() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn target(seeds: &[SocketAddr], listen: Option<Listen>) -> Target {
    let seeds: Vec<String> = seeds.iter().map(ToString::to_string).collect();
    let mut target = Target::parse(&format!("gossip://{}/test", seeds.join(","))).unwrap();
    target.listen = listen;
    target
}

/// Every handle is told of the first one alone, by a name that has to be looked up.
struct Neighbours {
    first: SocketAddr,
    joined: Mutex<Vec<Arc<Gossip>>>,
}

#[async_trait]
impl Subject for Neighbours {
    async fn connect(&self) -> Arc<dyn Coordination> {
        let mut joined = self.joined.lock().await;
        let listen = joined.is_empty().then_some(Listen { at: self.first, advertise: self.first });
        let mut target = target(&[self.first], listen);
        target.hosts[0].name = "localhost".into();
        joined.push(Gossip::join(&target).await.unwrap());
        joined.last().unwrap().clone()
    }
    async fn restart(&self) -> bool {
        false
    }
    fn expiry_bound(&self) -> Duration {
        EXPIRY_BOUND
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms_where_it_is_about_presence() {
    conformance::run_presence(|| async { Neighbours { first: free(), joined: Mutex::default() } }).await;
}

/// A node behind a relay: all that the others know of it is the relay's address.
struct Node {
    name: &'static str,
    listen: Listen,
    relay: Relay,
    handle: Option<Arc<dyn Coordination>>,
    session: Option<SessionId>,
}

impl Node {
    async fn new(name: &'static str) -> Node {
        let at = free();
        let relay = Relay::open(at).await;
        let listen = Listen { at, advertise: relay.address() };
        Node { name, listen, relay, handle: None, session: None }
    }

    async fn join(&mut self, seeds: &[SocketAddr]) {
        let handle = connect(&target(seeds, Some(self.listen))).await.unwrap();
        let session = handle.open_session(TTL).await.unwrap();
        let at = Key::new(format!("nodes/{}", self.name)).unwrap();
        handle.commit(Transaction::new().put_ephemeral(&at, "here", session)).await.unwrap();
        (self.handle, self.session) = (Some(handle), Some(session));
    }

    async fn sees(&self, names: &[&str]) {
        let (handle, since) = (self.handle.as_ref().unwrap(), Instant::now());
        loop {
            let all = handle.list(&Scope::All, None, 10).await.unwrap();
            let seen: Vec<&str> = all.entries.iter().map(|(key, _)| key.name()).collect();
            if seen == names {
                return;
            }
            assert!(
                since.elapsed() < EXPIRY_BOUND,
                "{} sees {seen:?}, not {names:?}, after the bound",
                self.name
            );
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Cuts `one` off from `others`, or lets it back.
fn part(one: &Node, others: &[&Node], cut: bool) {
    one.relay.shut(cut);
    others.iter().for_each(|other| other.relay.ban(one.listen.at, cut));
}

/// A death is seen within the bound, a return as well; a partition is seen by both sides, and heals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaths_returns_and_partitions_are_seen() {
    let (mut a, mut b, mut c) = (Node::new("a").await, Node::new("b").await, Node::new("c").await);
    let seeds = [a.listen.advertise, b.listen.advertise];
    for node in [&mut a, &mut b, &mut c] {
        node.join(&seeds).await;
    }
    for node in [&a, &b, &c] {
        node.sees(&["a", "b", "c"]).await;
    }

    let before = c.session;
    c.handle = None;
    a.sees(&["a", "b"]).await;
    b.sees(&["a", "b"]).await;
    c.join(&seeds).await;
    assert_ne!(c.session, before);
    for node in [&a, &b, &c] {
        node.sees(&["a", "b", "c"]).await;
    }

    part(&c, &[&a, &b], true);
    a.sees(&["a", "b"]).await;
    b.sees(&["a", "b"]).await;
    c.sees(&["c"]).await;
    let late = Key::new("nodes/late").unwrap();
    let told = Transaction::new().put_ephemeral(&late, "while parted", c.session.unwrap());
    c.handle.as_ref().unwrap().commit(told).await.unwrap();
    part(&c, &[&a, &b], false);
    for node in [&a, &b, &c] {
        node.sees(&["a", "b", "c", "late"]).await;
    }
}

/// Other roots are other clusters, and what cannot be listened on or reached is refused by name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_and_bad_addresses_are_kept_out() {
    let first = free();
    let one = Gossip::join(&target(&[first], Some(Listen { at: first, advertise: first }))).await.unwrap();
    let mut elsewhere = target(&[first], None);
    elsewhere.root = Key::new("elsewhere").unwrap();
    let stranger = Gossip::join(&elsewhere).await.unwrap();
    let friend = Gossip::join(&target(&[first], None)).await.unwrap();
    assert!(friend.at().advertise.ip().is_loopback());
    for handle in [&one, &stranger, &friend] {
        let session = handle.open_session(TTL).await.unwrap();
        let at = Key::new(format!("nodes/{}", handle.at().at.port())).unwrap();
        handle.commit(Transaction::new().put_ephemeral(&at, "", session)).await.unwrap();
    }
    let count = async |handle: &Gossip| handle.list(&Scope::All, None, 10).await.unwrap().entries.len();
    let since = Instant::now();
    while count(&one).await < 2 || count(&friend).await < 2 {
        assert!(since.elapsed() < EXPIRY_BOUND, "friends do not meet");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((count(&one).await, count(&stranger).await), (2, 1));

    let taken =
        Gossip::join(&target(&[first], Some(Listen { at: first, advertise: first }))).await.unwrap_err();
    assert!(matches!(&taken, Error::Unavailable { what } if what.contains(&first.to_string())), "{taken}");
    let nowhere = Listen { at: free(), advertise: "0.0.0.0:7480".parse().unwrap() };
    let nowhere = Gossip::join(&target(&[first], Some(nowhere))).await.unwrap_err();
    assert!(matches!(&nowhere, Error::Invalid { what } if what.contains("0.0.0.0:7480")), "{nowhere}");
}
