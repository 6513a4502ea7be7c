//! Tables for clients of Redis: what the listener of that protocol ([`partage_resp`]) asks is asked of the node.
//!
//! A node knows the tables of which it has a replica. Of a table that is sharded by `crc16` and hash tags, clients are sent to
//! the listener of the leader, as nodes of Redis Cluster do it ([`slots`]); unless [`Settings::forwards`]. Of other tables, any
//! node answers for any key by asking on.

mod slots;

use crate::access::TableClient;
use crate::limits;
use crate::rows::ScanRange;
use crate::scans::{self, Place, ScanError, Scans, TableScan, Token};
use crate::service::{Refusal, Refused};
use async_trait::async_trait;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::PartitionKey;
use partage_core::node::exchange::KeyspaceBrief;
use partage_maps::MapsOnDemand;
use partage_resp::table::{
    BegunRead, Found, Page, RequestError, ScanFrom, SlotNode, SlotOwner, Table, Tables,
};
use partage_service::table::replication::Consistency;
use partage_service::table::rows::{Outcome, Row, Write};
use partage_worker::{Assignment, KeyspaceKind, KeyspaceName};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::time::Instant;

/// The tables of a node, for its listener.
#[derive(Debug, Clone)]
pub struct RedisTables {
    client: TableClient,
    scans: Scans,
    settings: Arc<Settings>,
}

/// The settings of the listener for clients of Redis.
#[derive(Debug)]
pub struct Settings {
    /// The table of a connection that names none; without it the only table that the node knows, if there is one only.
    pub table: Option<KeyspaceName>,
    /// The address of the listener, which clients get where `announced` is none or no address.
    pub address: SocketAddr,
    /// Where clients reach it, `host:port`, as the node has announced it. None: no client is sent anywhere.
    pub announced: Option<String>,
    /// Asks on for keys of other nodes, where it could send the client there: for clients that know of no cluster.
    pub forwards: bool,
}

impl RedisTables {
    /// Tables as Redis clients see them at the node that `client` asks.
    pub fn new(client: TableClient, scans: Scans, settings: Settings) -> RedisTables {
        RedisTables { client, scans, settings: Arc::new(settings) }
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
        let brief = known.brief.clone();
        let redirects = self.settings.announced.is_some() && !self.settings.forwards;
        let has_slots = redirects && slots::has_slots(&brief);
        let (maps, _) = self.scans.ways();
        if has_slots {
            // So that the maps are there when the first key of another node comes.
            maps.cache();
        }
        let (client, scans, settings) = (self.client.clone(), self.scans.clone(), self.settings.clone());
        Arc::new(RedisTable { client, scans, maps, brief, has_slots, settings })
    }
}

impl Tables for RedisTables {
    fn default_table(&self) -> Option<Arc<dyn Table>> {
        match (&self.settings.table, self.known().as_slice()) {
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

#[derive(Debug, Clone)]
struct RedisTable {
    client: TableClient,
    scans: Scans,
    maps: Arc<MapsOnDemand>,
    brief: KeyspaceBrief,
    has_slots: bool,
    settings: Arc<Settings>,
}

impl RedisTable {
    /// Where a client is sent for a key that this node does not serve; none: the node asks on.
    fn moved(&self, key: &Key) -> Option<RequestError> {
        if !self.has_slots {
            return None;
        }
        let routes = self.maps.cache().routes();
        slots::moved(&routes, self.name(), key, self.client.worker().node())
    }

    /// Where a scan goes on from a place: of a table with slots, at the next shard that this listener answers for.
    fn next_own(&self, from: Place) -> Option<Place> {
        if !self.has_slots {
            return Some(from);
        }
        let routes = self.maps.cache().routes();
        slots::next_own(&routes, self.name(), self.client.worker().node(), from)
    }
}

impl From<Refused> for RequestError {
    fn from(Refused { refusal, message }: Refused) -> RequestError {
        match refusal {
            Refusal::Invalid => RequestError::Invalid(message),
            Refusal::TooFewInSync => RequestError::TooFewInSync(message),
            Refusal::Busy => RequestError::Busy(message),
            Refusal::NoRoom => RequestError::DiskIsFull(message),
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
        self.brief.name.as_str()
    }

    fn partition_key(&self) -> PartitionKey {
        self.brief.partition_key
    }

    async fn write(&self, write: Write) -> Result<Outcome, RequestError> {
        self.client.write_or(&self.brief.name, write, |key| self.moved(key)).await
    }

    async fn read(&self, key: &Key, consistency: Consistency) -> Result<Option<Row>, RequestError> {
        let answer = self.client.read_or(&self.brief.name, key, consistency, 0, |key| self.moved(key)).await;
        Ok(answer?.row)
    }

    fn begin_read(self: Arc<Self>, key: Key, consistency: Consistency) -> BegunRead {
        match self.client.begin_read(&self.brief.name, &key, consistency) {
            Ok(found) => BegunRead::Now(found.row),
            Err(admission) => BegunRead::Later(Box::pin(async move {
                let (asked, moved) = ((&self.brief.name, &key), |key: &Key| self.moved(key));
                Ok(self.client.read_admitted(admission, asked, consistency, 0, moved).await?.row)
            })),
        }
    }

    async fn scan(&self, from: ScanFrom, consistency: Consistency) -> Result<Page, RequestError> {
        let damaged = |_| RequestError::Invalid("the cursor is damaged: begin at 0".to_owned());
        let token = from.token.map(|token| String::from_utf8(token).map_err(damaged)).transpose()?;
        let token = token.map(|text| Token::parse(&text)).transpose();
        let token = token.map_err(|error| RequestError::Invalid(error.to_string()))?;
        let prefix = Key::new(&from.prefix).map_err(|error| RequestError::Invalid(error.to_string()))?;
        let range = ScanRange { prefix, most: from.most, with_values: false, ..ScanRange::default() };
        let table = self.brief.name.clone();
        let asked = TableScan { table, range, filter: None, consistency, token };
        let page = self.scans.page_of(&asked, |from| self.next_own(from)).await?;
        let keys = page.rows.into_iter().map(|row| Found { key: row.key, expires_ms: row.expires_ms });
        Ok(Page { keys: keys.collect(), next: page.next.map(|token| token.text().into_bytes()) })
    }

    /// Of a shard that this node has a replica of, what the coordinator said last; of others, what each write needs.
    async fn in_sync(&self, key: Option<&Key>) -> Result<usize, RequestError> {
        let (tables, name) = (self.client.tables(), &self.brief.name);
        let of_table = tables.in_sync().into_iter().filter(|(assigned, _)| assigned.keyspace == *name);
        let holds = |replica: &partage_worker::ReplicaKey, key: &Key| {
            let held = self.client.worker().replicas();
            held.iter()
                .any(|held| held.assignment.replica == *replica && held.assignment.holds(key.as_bytes()))
        };
        let counts = of_table.filter(|(replica, _)| key.is_none_or(|key| holds(replica, key)));
        Ok(counts.map(|(_, count)| count).min().unwrap_or(self.brief.min_in_sync as usize))
    }

    fn has_slots(&self) -> bool {
        self.has_slots
    }

    async fn slots(&self) -> Result<Vec<SlotOwner>, RequestError> {
        let cache = self.maps.cache();
        let brief = scans::table(&cache, &self.brief.name, Instant::now() + limits::PATIENCE).await?;
        Ok(slots::owners(&cache.routes(), &brief, self.client.worker().node(), &self.own_node()))
    }

    fn own_node(&self) -> SlotNode {
        let node = self.client.worker().node();
        let announced = self.settings.announced.as_deref();
        announced.and_then(|address| slots::slot_node(node, address)).unwrap_or_else(|| {
            let (host, port) = (self.settings.address.ip().to_string(), self.settings.address.port());
            SlotNode { name: node.to_string(), host, port }
        })
    }
}
