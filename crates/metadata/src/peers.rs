//! The other metadata servers: where they are, and what is asked of them.

use crate::limits::{ASK, FETCH, STORE, STORE_OPERATION};
use crate::store_stream::StoreStream;
use futures::stream;
use partage_core::base::id::Generation;
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::keyspace::map::ShardMap;
use partage_dialer::Dialer;
use partage_service::metadata::change::{Change, Notice};
use partage_wire::limits::MESSAGE_BYTES;
use partage_wire::map::metadata::{ChangeJoiner, MapQuestion, answer, in_one, in_parts, notice_form};
use partage_wire::proto;
use partage_wire::proto::metadata_client::MetadataClient;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// Where metadata servers are: `host:port` by id, of those that are there now. The process that hands it in keeps it up
/// to date, by a watch of the ephemeral keys `coordinators/<id>`.
pub trait Directory: Send + Sync + 'static {
    /// The address of a server; none when it is not there.
    fn address(&self, server: &NodeId) -> Option<String>;

    /// All that are there.
    fn present(&self) -> Vec<NodeId>;
}

impl Directory for BTreeMap<NodeId, String> {
    fn address(&self, server: &NodeId) -> Option<String> {
        self.get(server).cloned()
    }

    fn present(&self) -> Vec<NodeId> {
        self.keys().cloned().collect()
    }
}

impl<D: Directory + Clone> Directory for tokio::sync::watch::Receiver<D> {
    fn address(&self, server: &NodeId) -> Option<String> {
        self.borrow().address(server)
    }

    fn present(&self) -> Vec<NodeId> {
        self.borrow().present()
    }
}

/// Connections to the other servers. A copy shares them.
#[derive(Clone)]
pub struct Peers {
    directory: Arc<dyn Directory>,
    channels: Arc<Mutex<BTreeMap<String, Channel>>>,
    /// By the address, as the channels are.
    streams: Arc<Mutex<BTreeMap<String, StoreStream>>>,
}

type Client = MetadataClient<Channel>;

impl Peers {
    /// To the servers of that directory.
    pub fn new(directory: Arc<dyn Directory>) -> Peers {
        Peers { directory, channels: Arc::default(), streams: Arc::default() }
    }

    /// All servers that are there.
    pub fn present(&self) -> Vec<NodeId> {
        self.directory.present()
    }

    /// Whether `server` is there.
    pub(crate) fn is_there(&self, server: &NodeId) -> bool {
        self.directory.address(server).is_some()
    }

    fn address(&self, server: &NodeId) -> Result<String, Status> {
        let address = self.directory.address(server);
        address.ok_or_else(|| Status::unavailable(format!("metadata server {server} is not there")))
    }

    fn client(&self, server: &NodeId) -> Result<Client, Status> {
        let address = self.address(server)?;
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(&address) {
            return Ok(client(channel.clone()));
        }
        let endpoint = Dialer::PEER
            .grpc(format!("http://{address}"))
            .map_err(|why| Status::unavailable(format!("metadata server {server} at {address:?}: {why}")))?;
        // Addresses that are no longer in use are few, and their channels cost little; but not for ever.
        if channels.len() >= 2 * partage_service::metadata::SERVERS_MOST {
            channels.clear();
        }
        let channel = endpoint.connect_lazy();
        channels.insert(address, channel.clone());
        Ok(client(channel))
    }

    /// Has `server` store a change.
    pub(crate) async fn store(&self, server: &NodeId, change: &Change) -> Result<(), Status> {
        if let Some(operation) = in_one(change) {
            return self.store_operation(server, operation).await;
        }
        let mut client = self.client(server)?;
        let parts: Vec<_> = in_parts(change).collect();
        within(STORE, client.store(stream::iter(parts))).await.map(drop)
    }

    async fn store_operation(&self, server: &NodeId, operation: proto::MapDiff) -> Result<(), Status> {
        let address = self.address(server)?;
        let stream = {
            let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
            streams.retain(|_, stream| !stream.is_broken());
            match streams.get(&address) {
                Some(stream) => stream.clone(),
                None => {
                    streams.entry(address.clone()).or_insert(StoreStream::begin(self.client(server)?)).clone()
                }
            }
        };
        timeout(STORE_OPERATION, stream.store(operation)).await.unwrap_or_else(|_| {
            // A server that does not answer may not hear either: the next operation takes another stream.
            self.streams.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
            Err(late(STORE_OPERATION))
        })
    }

    /// Which map `server` has on disk, if it is the latest.
    pub(crate) async fn holds(&self, server: &NodeId, question: &MapQuestion) -> Result<Generation, Status> {
        let mut client = self.client(server)?;
        let form = within(ASK, client.holds(Request::new(question.into()))).await?;
        answer(form).map_err(malformed)
    }

    /// The latest map of a keyspace, from `server`.
    ///
    /// # Errors
    /// What the server said, or the network.
    pub async fn fetch(&self, server: &NodeId, question: &MapQuestion) -> Result<Arc<ShardMap>, Status> {
        let mut client = self.client(server)?;
        let fetched = async {
            let mut parts = client.fetch(Request::new(question.into())).await?.into_inner();
            let mut joiner = ChangeJoiner::default();
            while let Some(part) = parts.message().await? {
                match joiner.take(part).map_err(malformed)? {
                    Some(Change::Whole(map)) if *map.keyspace() == question.keyspace => return Ok(map),
                    Some(_) => return Err(Status::internal("what came is not the whole map")),
                    None => {}
                }
            }
            Err(Status::unavailable("the map was cut off"))
        };
        timeout(FETCH, fetched).await.unwrap_or_else(|_| Err(late(FETCH)))
    }

    /// Tells `server` what became of a change.
    pub(crate) async fn tell(
        &self,
        server: &NodeId,
        keyspace: &KeyspaceName,
        notice: Notice,
    ) -> Result<(), Status> {
        let mut client = self.client(server)?;
        within(ASK, client.tell(notice_form(keyspace, notice))).await.map(drop)
    }

    /// Has `server` become one of the metadata servers of a keyspace.
    pub(crate) async fn join(&self, server: &NodeId, keyspace: &KeyspaceName) -> Result<Generation, Status> {
        let mut client = self.client(server)?;
        let question = MapQuestion { keyspace: keyspace.clone(), sequence: 0 };
        let form = within(FETCH, client.join(Request::new((&question).into()))).await?;
        answer(form).map_err(malformed)
    }
}

fn client(channel: Channel) -> Client {
    MetadataClient::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES)
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, Status> {
    match timeout(limit, call).await {
        Ok(answered) => answered.map(tonic::Response::into_inner),
        Err(_) => Err(late(limit)),
    }
}

fn late(limit: Duration) -> Status {
    Status::deadline_exceeded(format!("no answer within {limit:?}"))
}

fn malformed(why: partage_wire::Malformed) -> Status {
    Status::internal(format!("the answer of a metadata server cannot be: {why}"))
}
