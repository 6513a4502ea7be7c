//! The engine that several coordinators stand on: a real server, whichever it is.

use backends::etcd::Etcd;
use backends::link::Link;
use backends::mariadb::MariaDb;
use backends::zookeeper::ZooKeeper;
use partage_coordination::{Backend, Coordination, Key, Target, Transaction, connect};
use std::time::Duration;
use tokio::time::Instant;

/// The root of the one cluster that is there.
const ROOT: &str = "chaos";

/// Where commits are timed, beside the cluster.
const PROBE: &str = "probe";

/// Commits that are timed; the median counts.
const COMMITS: u32 = 15;

/// How late messages are made to find out how many of them a commit waits for.
const LATE: Duration = Duration::from_millis(20);

/// How to make commits take longer.
#[derive(Debug, Clone, Copy)]
pub struct Slower {
    /// What a commit takes as it is.
    pub commit: Duration,
    /// How many messages it waits for, one after the other, there and back.
    pub messages: u32,
    /// What each of them must take longer.
    pub delay: Duration,
}

/// A server. It dies with its handle.
#[derive(Debug)]
pub enum Engine {
    /// A server of etcd, whose settings are flags.
    Etcd(Etcd),
    /// A server of MariaDB, whose settings are flags.
    MariaDb(MariaDb),
    /// A server of ZooKeeper, whose settings are lines of `zoo.cfg`.
    ZooKeeper(ZooKeeper),
}

impl Engine {
    /// Starts one with `settings` beside ours: flags, or lines of `zoo.cfg`.
    pub async fn start(backend: Backend, settings: &[&str]) -> Engine {
        match backend {
            Backend::Etcd => Engine::Etcd(Etcd::start(settings).await),
            Backend::MySql => Engine::MariaDb(MariaDb::start(settings).await),
            Backend::ZooKeeper => Engine::ZooKeeper(ZooKeeper::start(settings).await),
            Backend::Embedded | Backend::Gossip => panic!("{backend} is not shared by coordinators"),
        }
    }

    /// Where clients reach the server, `host:port`.
    pub fn address(&self) -> String {
        match self {
            Engine::Etcd(server) => server.address(),
            Engine::MariaDb(server) => server.address(),
            Engine::ZooKeeper(server) => server.address(),
        }
    }

    /// The cluster's root, through something that listens at `address`.
    pub fn target_through(&self, address: &str) -> Target {
        self.root_through(address, ROOT)
    }

    /// Any root of it, likewise.
    pub fn root_through(&self, address: &str, root: &str) -> Target {
        match self {
            Engine::Etcd(server) => server.target_through(address, root),
            Engine::MariaDb(server) => server.target_through(address, root),
            Engine::ZooKeeper(server) => server.target_through(address, root),
        }
    }

    /// How late messages must be for a commit to take `times` as long as it takes now, beside whatever else is done.
    pub async fn slower(&self, times: u32) -> Slower {
        let link = Link::open("127.0.0.1:0", &self.address()).await;
        let store = connect(&self.root_through(link.address(), PROBE)).await.unwrap();
        let commit = median(&*store).await;
        link.delay(LATE);
        let later = median(&*store).await.saturating_sub(commit);
        let messages = (later.as_secs_f64() / LATE.as_secs_f64()).round().max(1.0) as u32;
        Slower { commit, messages, delay: commit * (times - 1) / messages }
    }

    /// Deletes a key of the cluster with the engine's own tool.
    pub async fn delete(&self, key: &str) {
        match self {
            Engine::Etcd(server) => {
                let deleted = server.control(&["del", &format!("/partage/{ROOT}/{key}")]);
                assert_eq!(deleted.trim(), "1", "there was no key {key}");
            }
            Engine::MariaDb(server) => {
                drop(server.sql(&format!("DELETE FROM partage.partage_keys WHERE path = '{key}'")));
            }
            Engine::ZooKeeper(server) => server.delete(&format!("/{ROOT}/{key}")).await,
        }
    }

    /// Writes a value to a key of the cluster that is there, past its coordinators: `etcdctl put`, `zkCli.sh set`, an
    /// `UPDATE` that leaves the version as it was. `store` sees the same engine.
    pub async fn overwrite(&self, store: &dyn Coordination, key: &str, value: &[u8]) {
        match self {
            Engine::Etcd(_) => {
                let put = Transaction::new().put(&Key::new(key).unwrap(), value.to_vec());
                store.commit(put).await.unwrap();
            }
            Engine::MariaDb(server) => {
                let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
                let keys = "partage.partage_keys";
                drop(server.sql(&format!("UPDATE {keys} SET value = x'{hex}' WHERE path = '{key}'")));
            }
            Engine::ZooKeeper(server) => {
                // The first byte of a znode says that a value follows.
                let path = format!("/{ROOT}/{key}");
                let first = server.data(&path).await[0];
                server.set(&path, &[&[first], value].concat()).await;
            }
        }
    }

    /// Kills the server at once, as `kill -9` does; its folder stays.
    pub fn kill(&mut self) {
        match self {
            Engine::Etcd(server) => server.kill(),
            Engine::MariaDb(server) => server.kill(),
            Engine::ZooKeeper(server) => server.kill(),
        }
    }

    /// Starts it again on the same data.
    pub async fn revive(&mut self) {
        match self {
            Engine::Etcd(server) => server.revive().await,
            Engine::MariaDb(server) => server.revive().await,
            Engine::ZooKeeper(server) => server.revive().await,
        }
    }

    /// It sleeps, wherever it is.
    pub fn pause(&self) {
        match self {
            Engine::Etcd(server) => server.process().pause(),
            Engine::MariaDb(server) => server.process().pause(),
            Engine::ZooKeeper(server) => server.pause(),
        }
    }

    /// It goes on as if nothing had happened.
    pub fn wake(&self) {
        match self {
            Engine::Etcd(server) => server.process().wake(),
            Engine::MariaDb(server) => server.process().wake(),
            Engine::ZooKeeper(server) => server.wake(),
        }
    }

    /// `kill -9`, and a new start on the same data.
    pub async fn restart(&mut self) {
        self.kill();
        self.revive().await;
    }
}

/// What a commit takes.
async fn median(store: &dyn Coordination) -> Duration {
    let at = Key::new("at").unwrap();
    let mut all = Vec::new();
    for _ in 0..COMMITS {
        let began = Instant::now();
        store.commit(Transaction::new().put(&at, "x")).await.unwrap();
        all.push(began.elapsed());
    }
    all.sort();
    all[all.len() / 2]
}
