//! An older state of an engine, kept and put back as people do it.
//!
//! | way     | etcd                                | MariaDB                                     | ZooKeeper       |
//! |---------|-------------------------------------|---------------------------------------------|-----------------|
//! | `Tool`  | `etcdctl snapshot save`, `restore`  | rows as `mariadb-dump` has them; it runs on | it has none     |
//! | `Files` | not done: its tool is the way       | stopped, its folder replaced, and started   | the same        |

use crate::engine::Engine;
use backends::mariadb::MariaDb;

/// How a state is kept and put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// With the engine's own tool.
    Tool,
    /// With a copy of the server's data folder.
    Files,
}

const TABLES: [&str; 4] = ["partage_roots", "partage_keys", "partage_sessions", "partage_history"];

impl Engine {
    /// Keeps what it is now, under a name.
    pub fn keep(&self, way: Way, name: &str) {
        match (self, way) {
            (Engine::Etcd(server), Way::Tool) => server.save(name),
            (Engine::MariaDb(server), Way::Tool) => dump(server, name),
            (Engine::MariaDb(server), Way::Files) => server.keep_files(name),
            (Engine::ZooKeeper(server), Way::Files) => server.keep_files(name),
            _ => panic!("{way:?} is no way to keep a state of {self:?}"),
        }
    }

    /// Makes it what it was then.
    pub async fn set_back(&mut self, way: Way, name: &str) {
        match (self, way) {
            (Engine::Etcd(server), Way::Tool) => server.set_back(name).await,
            (Engine::MariaDb(server), Way::Tool) => load(server, name),
            (Engine::MariaDb(server), Way::Files) => server.set_files_back(name).await,
            (Engine::ZooKeeper(server), Way::Files) => server.set_files_back(name).await,
            (engine, _) => panic!("{way:?} is no way to put back a state of {engine:?}"),
        }
    }
}

fn at_once(server: &MariaDb, statements: &[String]) {
    drop(server.sql(&format!("START TRANSACTION; {}; COMMIT", statements.join("; "))));
}

/// What `mariadb-dump` writes to a file, in the server itself.
fn dump(server: &MariaDb, name: &str) {
    let of = |table: &str| format!("CREATE TABLE partage.{name}_{table} AS SELECT * FROM partage.{table}");
    at_once(server, &TABLES.map(of));
}

/// The rows of that dump in place of those that are there.
fn load(server: &MariaDb, name: &str) {
    let of = |table: &str| {
        let dumped = format!("SELECT * FROM partage.{name}_{table}");
        format!("DELETE FROM partage.{table}; INSERT INTO partage.{table} {dumped}")
    };
    at_once(server, &TABLES.map(of));
}
