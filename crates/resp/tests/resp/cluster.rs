//! Two listeners that share the slots of a table.

use crate::support::{Client, Server, connect, memory};
use partage_core::keyspace::hash::crc16;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::sharding::PartitionKey;
use partage_resp::memory::MemoryTable;
use partage_resp::{OneTable, Page, RequestError, ScanFrom, SlotNode, SlotOwner, Table};
use partage_service::table::replication::Consistency;
use partage_service::table::rows::{Outcome, Row, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

/// A table of two nodes, as one of them has it: the rows are the same, and each leads some of the slots.
struct Half {
    own: usize,
    shared: Arc<Cluster>,
}

struct Cluster {
    rows: Arc<MemoryTable>,
    nodes: Mutex<Vec<SlotNode>>,
    /// The first slot of the second node.
    border: AtomicU16,
}

impl Half {
    fn leader(&self, slot: u16) -> usize {
        usize::from(slot >= self.shared.border.load(Ordering::Relaxed))
    }

    fn here(&self, key: &Key) -> Result<(), RequestError> {
        let slot = crc16::slot(crc16::hash_tag(key.as_bytes()));
        match self.leader(slot) {
            leader if leader == self.own => Ok(()),
            leader => {
                let node = self.shared.nodes.lock().unwrap()[leader].clone();
                Err(RequestError::Moved { slot, address: format!("{}:{}", node.host, node.port) })
            }
        }
    }
}

#[async_trait::async_trait]
impl Table for Half {
    fn name(&self) -> &str {
        "half"
    }

    fn partition_key(&self) -> PartitionKey {
        PartitionKey::HashTag
    }

    async fn write(&self, write: Write) -> Result<Outcome, RequestError> {
        write.operations.iter().try_for_each(|operation| self.here(&operation.key))?;
        self.shared.rows.write(write).await
    }

    async fn read(&self, key: &Key, consistency: Consistency) -> Result<Option<Row>, RequestError> {
        if consistency == Consistency::Linearizable {
            self.here(key)?;
        }
        self.shared.rows.read(key, consistency).await
    }

    async fn scan(&self, from: ScanFrom, consistency: Consistency) -> Result<Page, RequestError> {
        let mut page = self.shared.rows.scan(from, consistency).await?;
        page.keys.retain(|found| self.here(&found.key).is_ok());
        Ok(page)
    }

    async fn in_sync(&self, _: Option<&Key>) -> Result<usize, RequestError> {
        Ok(2)
    }

    fn has_slots(&self) -> bool {
        true
    }

    async fn slots(&self) -> Result<Vec<SlotOwner>, RequestError> {
        let (border, nodes) = (self.shared.border.load(Ordering::Relaxed), self.shared.nodes.lock().unwrap());
        let owner = |first, last, leader: usize| SlotOwner {
            first,
            last,
            leader: Some(nodes[leader].clone()),
            followers: vec![nodes[1 - leader].clone()],
        };
        Ok(vec![owner(0, border - 1, 0), owner(border, crc16::SLOTS - 1, 1)])
    }

    fn own_node(&self) -> SlotNode {
        self.shared.nodes.lock().unwrap()[self.own].clone()
    }
}

/// Two listeners, and what moves the border between them.
pub struct TwoNodes {
    pub servers: Vec<Server>,
    cluster: Arc<Cluster>,
}

impl TwoNodes {
    pub fn start() -> TwoNodes {
        let rows = memory(PartitionKey::HashTag);
        let cluster = Arc::new(Cluster { rows, nodes: Mutex::default(), border: AtomicU16::new(8_000) });
        let start = |own: usize| {
            Server::start_with(|address: SocketAddr| {
                let (name, host) = (format!("n{own}"), "127.0.0.1".to_owned());
                cluster.nodes.lock().unwrap().push(SlotNode { name, host, port: address.port() });
                Arc::new(OneTable(Arc::new(Half { own, shared: cluster.clone() })))
            })
        };
        TwoNodes { servers: (0..2).map(start).collect(), cluster: cluster.clone() }
    }

    fn client(&self, node: usize) -> Client<std::net::TcpStream> {
        Client::new(connect(self.servers[node].address))
    }
}

#[test]
fn a_key_is_answered_by_its_leader_and_others_say_who_that_is() {
    let nodes = TwoNodes::start();
    let (mut first, mut second) = (nodes.client(0), nodes.client(1));
    // `foo` is in slot 12,182.
    let moved = format!("-MOVED 12182 127.0.0.1:{}", nodes.servers[1].port());
    assert_eq!(first.say("SET foo 1"), moved);
    assert_eq!(second.say("SET foo 1"), "+OK");
    assert_eq!(first.say("GET foo"), moved);
    assert_eq!((first.say("READONLY"), first.say("GET foo")), ("+OK".into(), "1".into()));
    assert_eq!(first.say("READWRITE"), "+OK");
    first.say("MULTI");
    first.say("GET foo");
    assert_eq!(first.say("EXEC"), moved);
    assert_eq!(first.say("CLUSTER KEYSLOT {foo}x"), ":12182");
    let crossed = "-CROSSSLOT Keys in request don't hash to the same slot";
    assert_eq!(second.say("MGET foo bar"), crossed);
    assert_eq!(second.say("DEL foo bar"), crossed);
    assert_eq!(
        (second.say("WAIT 1 0"), second.say("DBSIZE"), first.say("DBSIZE")),
        (":1".into(), ":1".into(), ":0".into())
    );

    let nodes_said = first.say("CLUSTER NODES");
    assert!(nodes_said.contains("myself,master - 0 0 1 connected 0-7999"), "{nodes_said}");
    assert!(nodes_said.contains(&first.say("CLUSTER MYID")), "{nodes_said}");
    assert!(first.say("CLUSTER INFO").contains("cluster_state:ok"));
    assert!(first.say("CLUSTER SLOTS").starts_with("[[:0 :7999 [127.0.0.1 :"));
    assert!(first.say("CLUSTER SHARDS").starts_with("[[slots [:0 :7999] nodes [[id "));

    nodes.cluster.border.store(13_000, Ordering::Relaxed);
    assert_eq!(first.say("GET foo"), "1");
    assert_eq!(second.say("GET foo"), format!("-MOVED 12182 127.0.0.1:{}", nodes.servers[0].port()));
}
