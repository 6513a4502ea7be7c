//! The gRPC service of a metadata server; see `metadata.proto` for what each call means.

use crate::client::{ChangeError, MetadataServerClient};
use crate::limits;
use crate::server::LocalServer;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use partage_service::metadata::change::{Change, Failed};
use partage_service::metadata::discover::Discoverer;
use partage_service::metadata::server::Refused;
use partage_wire::limits::MESSAGE_BYTES;
use partage_wire::map::metadata::{
    ChangeJoiner, DiscoverRequest, MapQuestion, answer_form, discoveries_form, in_parts, notice, one,
};
use partage_wire::proto::metadata_server::{Metadata, MetadataServer};
use partage_wire::{Malformed, proto};
use std::sync::Arc;
use tonic::{Code, Request, Response, Status, Streaming};

/// Answers for a metadata server.
pub struct MetadataService {
    server: LocalServer,
    /// None: changes are not made by this service.
    client: Option<MetadataServerClient>,
}

impl MetadataService {
    /// In front of that server. `client` makes the changes that clients ask for; without it they are refused: where a
    /// leader changes maps together with other records, it alone may.
    pub fn server(
        server: LocalServer,
        client: Option<MetadataServerClient>,
    ) -> MetadataServer<MetadataService> {
        MetadataServer::new(MetadataService { server, client })
            .max_decoding_message_size(MESSAGE_BYTES)
            .max_encoding_message_size(MESSAGE_BYTES)
    }
}

fn malformed(why: Malformed) -> Status {
    Status::invalid_argument(why.to_string())
}

fn refused(why: Refused) -> Status {
    let text = why.to_string();
    match why {
        Refused::Behind | Refused::NoHead | Refused::Full(_) | Refused::Away(_) => Status::unavailable(text),
        Refused::Superseded | Refused::NotMine(_) => Status::failed_precondition(text),
        Refused::NoMap => Status::not_found(text),
        // By this code the client knows that the disk is the reason.
        Refused::Disk(_) => Status::resource_exhausted(text),
    }
}

fn failed(why: ChangeError) -> Status {
    let text = why.to_string();
    match why {
        ChangeError::Refused(_) => Status::failed_precondition(text),
        ChangeError::Failed(Failed::Conflict) => Status::aborted(text),
        ChangeError::Failed(Failed::Unknown) => Status::unknown(text),
        ChangeError::NoMap(_) => Status::not_found(text),
        ChangeError::Failed(Failed::TooFew { .. })
        | ChangeError::Head(_)
        | ChangeError::NoServers
        | ChangeError::NoAnswer { .. } => Status::unavailable(text),
    }
}

async fn joined(request: Request<Streaming<proto::MapPart>>) -> Result<Change, Status> {
    let mut parts = request.into_inner();
    let mut joiner = ChangeJoiner::default();
    while let Some(part) = parts.message().await? {
        if let Some(change) = joiner.take(part).map_err(malformed)? {
            return Ok(change);
        }
    }
    Err(Status::invalid_argument("the change was cut off: its last part is missing"))
}

async fn store_one(
    server: LocalServer,
    order: Result<proto::StoreOrder, Status>,
) -> Result<proto::StoreOutcome, Status> {
    let order = order?;
    let diff = one(order.operation).map_err(malformed)?;
    let keyspace = diff.keyspace.clone();
    let stored = server.store(&keyspace, Change::Operation(Arc::new(diff))).await.map_err(refused);
    let (code, message) =
        stored.err().map_or((Code::Ok, String::new()), |why| (why.code(), why.message().to_owned()));
    Ok(proto::StoreOutcome { number: order.number, code: (code as i32).cast_unsigned(), message })
}

#[tonic::async_trait]
impl Metadata for MetadataService {
    type StoreEachStream = BoxStream<'static, Result<proto::StoreOutcome, Status>>;

    async fn store_each(
        &self,
        request: Request<Streaming<proto::StoreOrder>>,
    ) -> Result<Response<Self::StoreEachStream>, Status> {
        let server = self.server.clone();
        let orders = request.into_inner();
        // Each is begun before the next one is, and so they are in order where order counts.
        let outcomes = orders
            .map(move |order| store_one(server.clone(), order))
            .buffer_unordered(limits::STORES_IN_FLIGHT);
        Ok(Response::new(outcomes.boxed()))
    }

    type FetchStream = BoxStream<'static, Result<proto::MapPart, Status>>;

    async fn store(
        &self,
        request: Request<Streaming<proto::MapPart>>,
    ) -> Result<Response<proto::StoredAnswer>, Status> {
        let change = joined(request).await?;
        let keyspace = match &change {
            Change::Operation(diff) => diff.keyspace.clone(),
            Change::Whole(map) => map.keyspace().clone(),
        };
        self.server.store(&keyspace, change).await.map_err(refused)?;
        Ok(Response::new(proto::StoredAnswer {}))
    }

    async fn fetch(
        &self,
        request: Request<proto::MapQuestion>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let question = MapQuestion::try_from(request.into_inner()).map_err(malformed)?;
        let map = self.server.map(question).await.map_err(refused)?;
        let parts = in_parts(&Change::Whole(map));
        Ok(Response::new(stream::iter(parts.map(Ok)).boxed()))
    }

    async fn holds(
        &self,
        request: Request<proto::MapQuestion>,
    ) -> Result<Response<proto::MapAnswer>, Status> {
        let question = MapQuestion::try_from(request.into_inner()).map_err(malformed)?;
        let map = self.server.map(question).await.map_err(refused)?;
        Ok(Response::new(answer_form(map.generation())))
    }

    async fn tell(&self, request: Request<proto::Notice>) -> Result<Response<proto::NoticeAnswer>, Status> {
        let (keyspace, notice) = notice(request.into_inner()).map_err(malformed)?;
        self.server.tell(&keyspace, notice).await.map_err(refused)?;
        Ok(Response::new(proto::NoticeAnswer {}))
    }

    async fn join(&self, request: Request<proto::MapQuestion>) -> Result<Response<proto::MapAnswer>, Status> {
        let question = MapQuestion::try_from(request.into_inner()).map_err(malformed)?;
        let at = self.server.join(&question.keyspace).await.map_err(refused)?;
        Ok(Response::new(answer_form(at)))
    }

    async fn change(
        &self,
        request: Request<Streaming<proto::MapPart>>,
    ) -> Result<Response<proto::MapAnswer>, Status> {
        let elsewhere = || {
            Status::failed_precondition(
                "the leader alone changes maps here: send it a command, by any coordinator",
            )
        };
        let client = self.client.as_ref().ok_or_else(elsewhere)?;
        let at = match joined(request).await? {
            Change::Operation(diff) => {
                let (seen, map) = client.latest(&diff.keyspace).await.map_err(failed)?;
                client.change(seen, &map, (*diff).clone()).await.map_err(failed)?
            }
            Change::Whole(map) => client.create((*map).clone()).await.map_err(failed)?,
        };
        Ok(Response::new(answer_form(at)))
    }

    async fn discover(
        &self,
        request: Request<proto::DiscoverRequest>,
    ) -> Result<Response<proto::DiscoverAnswer>, Status> {
        let request = DiscoverRequest::try_from(request.into_inner()).map_err(malformed)?;
        if request.shards.len() > limits::DISCOVERIES {
            let (count, limit) = (request.shards.len(), limits::DISCOVERIES);
            return Err(Status::invalid_argument(format!(
                "{count} partitions at once: the limit is {limit}"
            )));
        }
        let question = MapQuestion { keyspace: request.keyspace, sequence: request.generation.sequence };
        let map = self.server.map(question).await.map_err(refused)?;
        let discoverer = Discoverer::new(&map);
        let tell = |shard| discoverer.tell(shard, &request.node, request.incarnation);
        let told: Vec<_> = request.shards.into_iter().map(tell).collect();
        Ok(Response::new(discoveries_form(map.generation(), &told)))
    }
}
