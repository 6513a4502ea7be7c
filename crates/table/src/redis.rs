//! Tables for clients of Redis: what the listener of that protocol ([`partage_resp`]) asks is asked of the node.
//!
//! Any node answers for any key. A node knows the tables of which it has a replica.

use crate::access::TableClient;
use crate::rows::ScanRange;
use crate::scans::{ScanError, Scans, TableScan, Token};
use crate::service::{Refusal, Refused};
use async_trait::async_trait;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::PartitionKey;
use partage_core::service::table::replication::Consistency;
use partage_core::service::table::rows::{Outcome, Row, Write};
use partage_resp::table::{Found, Page, RequestError, ScanFrom, SlotNode, SlotOwner, Table, Tables};
use partage_worker::{Assignment, KeyspaceKind, KeyspaceName};
use std::net::SocketAddr;
use std::sync::Arc;

/// The tables of a node, for its listener.
#[derive(Debug, Clone)]
pub struct RedisTables {
    client: TableClient,
    scans: Scans,
    /// The table of a connection that names none.
    default: Option<KeyspaceName>,
    /// Where the listener is.
    address: SocketAddr,
}

impl RedisTables {
    /// Of the node that `client` asks; `default` is the table of a connection that names none: without it the only table that
    /// the node knows, if there is one only.
    pub fn new(
        client: TableClient,
        scans: Scans,
        default: Option<KeyspaceName>,
        address: SocketAddr,
    ) -> RedisTables {
        RedisTables { client, scans, default, address }
    }

    fn known(&self) -> Vec<Arc<Assignment>> {
        let mut known: Vec<Arc<Assignment>> = Vec::new();
        for replica in self.client.worker().replicas() {
            let assignment = replica.assignment;
            let is_new = known.iter().all(|other| other.keyspace() != assignment.keyspace());
            if assignment.brief.kind == KeyspaceKind::Table && is_new {
                known.push(assignment);
            }
        }
        known
    }

    fn table(&self, known: &Assignment) -> Arc<dyn Table> {
        let name = known.keyspace().clone();
        let (partition_key, least) = (known.brief.partition_key, known.brief.min_in_sync as usize);
        Arc::new(RedisTable {
            client: self.client.clone(),
            scans: self.scans.clone(),
            name,
            partition_key,
            least,
            address: self.address,
        })
    }
}

impl Tables for RedisTables {
    fn default_table(&self) -> Option<Arc<dyn Table>> {
        match (&self.default, self.known().as_slice()) {
            (Some(name), _) => self.named(name.as_str()),
            (None, [only]) => Some(self.table(only)),
            (None, _) => None,
        }
    }

    fn named(&self, name: &str) -> Option<Arc<dyn Table>> {
        let known = self.known();
        known.iter().find(|known| known.keyspace().as_str() == name).map(|known| self.table(known))
    }

    fn names(&self) -> Vec<String> {
        self.known().iter().map(|known| known.keyspace().to_string()).collect()
    }
}

/// One table.
#[derive(Debug, Clone)]
struct RedisTable {
    client: TableClient,
    scans: Scans,
    name: KeyspaceName,
    partition_key: PartitionKey,
    /// How many replicas have each write that was acknowledged, at the least.
    least: usize,
    address: SocketAddr,
}

impl From<Refused> for RequestError {
    fn from(Refused { refusal, message }: Refused) -> RequestError {
        match refusal {
            Refusal::Invalid => RequestError::Invalid(message),
            Refusal::TooFewInSync => RequestError::TooFewInSync(message),
            Refusal::Busy => RequestError::Busy(message),
            Refusal::NoRoom => RequestError::LogIsFull(message),
            Refusal::Soon | Refusal::Stopped | Refusal::TooOld => RequestError::NotServed(message),
            Refusal::Unknown => RequestError::Unknown(message),
        }
    }
}

impl From<ScanError> for RequestError {
    fn from(error: ScanError) -> RequestError {
        match error {
            ScanError::Refused(refused) => refused.into(),
            other => RequestError::Invalid(other.to_string()),
        }
    }
}

#[async_trait]
impl Table for RedisTable {
    fn name(&self) -> &str {
        self.name.as_str()
    }

    fn partition_key(&self) -> PartitionKey {
        self.partition_key
    }

    async fn write(&self, write: Write) -> Result<Outcome, RequestError> {
        Ok(self.client.write(&self.name, write).await?)
    }

    async fn read(&self, key: &Key, consistency: Consistency) -> Result<Option<Row>, RequestError> {
        Ok(self.client.read(&self.name, key, consistency).await?.row)
    }

    async fn scan(&self, from: ScanFrom, consistency: Consistency) -> Result<Page, RequestError> {
        let damaged = |_| RequestError::Invalid("the cursor is damaged: begin at 0".to_owned());
        let token = from.token.map(|token| String::from_utf8(token).map_err(damaged)).transpose()?;
        let token = token.map(|text| Token::parse(&text)).transpose();
        let token = token.map_err(|error| RequestError::Invalid(error.to_string()))?;
        let prefix = Key::new(&from.prefix).map_err(|error| RequestError::Invalid(error.to_string()))?;
        let range = ScanRange { prefix, most: from.most, with_values: false, ..ScanRange::default() };
        let asked = TableScan { table: self.name.clone(), range, filter: None, consistency, token };
        let page = self.scans.page(&asked).await?;
        let keys = page.rows.into_iter().map(|row| Found { key: row.key, expires_ms: row.expires_ms });
        Ok(Page { keys: keys.collect(), next: page.next.map(|token| token.text().into_bytes()) })
    }

    /// Of a shard that this node has a replica of, what the coordinator said last; of others, what each write needs.
    async fn in_sync(&self, key: Option<&Key>) -> Result<usize, RequestError> {
        let (tables, name) = (self.client.tables(), &self.name);
        let of_table = tables.in_sync().into_iter().filter(|(assigned, _)| assigned.keyspace == *name);
        let holds = |replica: &partage_worker::ReplicaKey, key: &Key| {
            let held = self.client.worker().replicas();
            held.iter()
                .any(|held| held.assignment.replica == *replica && held.assignment.holds(key.as_bytes()))
        };
        let counts = of_table.filter(|(replica, _)| key.is_none_or(|key| holds(replica, key)));
        Ok(counts.map(|(_, count)| count).min().unwrap_or(self.least))
    }

    /// Each node sends on what it does not have, so that clients need not know who has what.
    fn slots(&self) -> Option<Vec<SlotOwner>> {
        None
    }

    fn own_node(&self) -> SlotNode {
        let (host, port) = (self.address.ip().to_string(), self.address.port());
        SlotNode { name: self.client.worker().node().to_string(), host, port }
    }
}
