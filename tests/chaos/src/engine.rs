//! The engine that several coordinators stand on: a real server, whichever it is.

use backends::etcd::Etcd;
use backends::mariadb::MariaDb;
use backends::zookeeper::ZooKeeper;
use partage_coordination::{Backend, Target};

/// The root of the one cluster that is there.
const ROOT: &str = "chaos";

/// A server. It dies with its handle.
#[derive(Debug)]
pub enum Engine {
    /// etcd.
    Etcd(Etcd),
    /// MariaDB.
    MariaDb(MariaDb),
    /// ZooKeeper.
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

    /// Where it listens.
    pub fn address(&self) -> String {
        match self {
            Engine::Etcd(server) => server.address(),
            Engine::MariaDb(server) => server.address(),
            Engine::ZooKeeper(server) => server.address(),
        }
    }

    /// The cluster's root, through something that listens at `address`.
    pub fn target_through(&self, address: &str) -> Target {
        match self {
            Engine::Etcd(server) => server.target_through(address, ROOT),
            Engine::MariaDb(server) => server.target_through(address, ROOT),
            Engine::ZooKeeper(server) => server.target_through(address, ROOT),
        }
    }

    /// `kill -9`, and a new start on the same data.
    pub async fn restart(&mut self) {
        match self {
            Engine::Etcd(server) => {
                server.kill();
                server.revive().await;
            }
            Engine::MariaDb(server) => {
                server.kill();
                server.revive().await;
            }
            Engine::ZooKeeper(server) => server.restart().await,
        }
    }
}
