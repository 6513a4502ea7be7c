//! Somebody changes the election with the engine's own tools: the leader hears so while its session lives, and what it
//! does late is refused.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

use backends::etcd::Etcd;
use backends::mariadb::MariaDb;
use backends::zookeeper::ZooKeeper;
use bytes::Bytes;
use partage_coordination::{
    Coordination, Deposed, Election, Error, Key, LeaderLease, Leadership, Session, Target, Term, Transaction,
    connect,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// As coordinators have it, so that the figures are theirs.
const TTL: Duration = Duration::from_secs(3);

struct Led {
    store: Arc<dyn Coordination>,
    election: Election,
    session: Arc<Session>,
    leadership: Leadership,
    lease: LeaderLease,
}

impl Led {
    async fn on(target: &Target) -> Led {
        let store = connect(target).await.unwrap();
        let election = Election::new(store.clone(), &Key::new("election").unwrap()).unwrap();
        let session = Arc::new(Session::open(store.clone(), TTL).await.unwrap());
        let leadership = election.lead(&session, Bytes::new).await.unwrap();
        let lease = LeaderLease::begin(store.clone(), session.clone(), &leadership, None).await.unwrap();
        Led { store, election, session, leadership, lease }
    }

    /// Hears within the bound that its key is gone, and never leads under that term again.
    async fn hears(self, place: &str) -> Duration {
        let begun = Instant::now();
        let deposed = timeout(LeaderLease::bound(TTL), self.lease.lost()).await.expect("within the bound");
        let took = begun.elapsed();
        assert_eq!(deposed, Deposed::KeyGone(Key::new("election/leader").unwrap()), "{place}");
        assert!(self.session.is_live(), "{place}: it heard so while its session lives");
        let late = self.leadership.fence(Transaction::new().put(&Key::new("map").unwrap(), "late"));
        let refused = self.leadership.commit(&*self.store, late).await;
        assert!(matches!(refused, Err(Error::Refused { .. })), "{place}: {refused:?}");
        let again = self.election.lead(&self.session, Bytes::new).await.unwrap();
        assert!(again.term() > self.leadership.term(), "{place}");
        took
    }
}

/// A look is due every second; a watch is faster, where the engine's own tool wakes it.
#[expect(clippy::print_stdout, reason = "the figure is wanted")]
fn in_time(place: &str, took: Duration) {
    println!("{place}: the leader heard after {took:?}");
    assert!(took < TTL / 2 + Duration::from_secs(1), "{place}: {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_etcdctl_del_deposes_the_leader() {
    let server = Etcd::start(&[]).await;
    let led = Led::on(&server.target("c")).await;
    server.control(&["del", "/partage/c/election/leader"]);
    in_time("etcd", led.hears("etcd").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_a_znode_that_is_deleted_deposes_the_leader() {
    let server = ZooKeeper::start(&[]).await;
    let led = Led::on(&server.target("c")).await;
    server.delete("/c/election/leader").await;
    in_time("ZooKeeper", led.hears("ZooKeeper").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o1_a_row_that_is_deleted_deposes_the_leader() {
    let server = MariaDb::start(&[]).await;
    let led = Led::on(&server.target("c")).await;
    server.sql("DELETE FROM partage.partage_keys WHERE path = 'election/leader'");
    in_time("MariaDB", led.hears("MariaDB").await);
}

/// An older state of etcd, with the session of one that stood by in it: the key of the election is gone, the count of
/// terms is lower, and all sessions live.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m5_a_count_of_terms_that_etcdctl_sets_back_is_passed_over() {
    let server = Etcd::start(&[]).await;
    let first = Led::on(&server.target("c")).await;
    first.election.raise(Term::new(30));
    server.control(&["del", "--prefix", "/partage/c/election/"]);
    let election = first.election.clone();
    let session = first.session.clone();
    first.hears("etcd").await;
    let now = election.try_lead(&session, &Bytes::new()).await.unwrap().unwrap();
    assert!(now.term() > Term::new(30), "{}", now.term());
}
