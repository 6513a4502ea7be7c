//! The calls of Flight, at each node of a pool.

use crate::descriptor::FlightForm;
use crate::info::Flight;
use crate::kind::Kind;
use crate::limits::{KINDS, MESSAGE_BYTES};
use crate::memory::FlightMemory;
use crate::ticket::TicketForm;
use crate::{actions, get, put, status};
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use arrow_ipc::writer::IpcWriteOptions;
use arrow_schema::ArrowError;
use axum::Router;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use partage_service::shuffle::ShuffleId;
use partage_shuffle::LocalPool;
use partage_shuffle::network::LocalNode;
use serde::Deserialize;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use tonic::{Request, Response, Status, Streaming};

/// Where the service is.
const PATH: &str = "/arrow.flight.protocol.FlightService/{*method}";

/// The routes of Flight, for the listener of a node.
pub fn routes(pool: LocalPool) -> Router {
    let server = FlightServiceServer::new(ShuffleFlights::new(pool)).max_decoding_message_size(MESSAGE_BYTES);
    Router::new().route_service(PATH, server)
}

/// The location of Flight at an address, as clients take it.
pub fn uri(address: &str) -> String {
    format!("grpc+tcp://{address}")
}

/// What the records of some shuffles are, the ones that came last. It never changes.
type Kinds = VecDeque<(ShuffleId, Arc<Kind>)>;

/// Which shuffles are listed.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CriteriaForm {
    /// Only shuffles of this owner; empty: all.
    owner: String,
}

/// Shuffles for clients of Flight. A copy is the same service.
#[derive(Clone)]
pub struct ShuffleFlights {
    pool: LocalPool,
    kinds: Arc<Mutex<Kinds>>,
    memory: FlightMemory,
}

impl fmt::Debug for ShuffleFlights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShuffleFlights").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl ShuffleFlights {
    /// The service for the shuffles of that pool; the memory of the pool bounds what flights take.
    pub fn new(pool: LocalPool) -> ShuffleFlights {
        let memory = FlightMemory::of(pool.protocol_bytes());
        ShuffleFlights { pool, kinds: Arc::default(), memory }
    }

    pub(crate) fn memory(&self) -> &FlightMemory {
        &self.memory
    }

    pub(crate) fn pool(&self) -> &LocalPool {
        &self.pool
    }

    pub(crate) async fn node(&self) -> Result<LocalNode, Status> {
        self.pool.node().await.map_err(status::refused)
    }

    /// What the records of a shuffle are: its leader says so once.
    pub(crate) async fn kind(&self, node: &LocalNode, shuffle: ShuffleId) -> Result<Arc<Kind>, Status> {
        // A task that panicked while it had the lock has changed nothing by halves.
        let kinds = || self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kinds().iter().find(|(known, _)| *known == shuffle).map(|(_, kind)| Arc::clone(kind));
        if let Some(kind) = known {
            return Ok(kind);
        }
        let overview = node.overview(shuffle).await.map_err(status::refused)?;
        let kind = Arc::new(Kind::of(&overview.options.kind, overview.combine)?);
        let mut kinds = kinds();
        kinds.push_back((shuffle, Arc::clone(&kind)));
        if kinds.len() > KINDS {
            kinds.pop_front();
        }
        Ok(kind)
    }

    async fn info(&self, descriptor: FlightDescriptor) -> Result<FlightInfo, Status> {
        let (form, shuffle) = FlightForm::of(&descriptor)?;
        let node = self.node().await?;
        let plan = node.plan(shuffle).await.map_err(status::refused)?;
        let kind = self.kind(&node, shuffle).await?;
        let flight = Flight { form: &form, shuffle, kind: &kind, plan: &plan };
        flight.info(descriptor, &node, &self.pool.addresses())
    }

    async fn schema(&self, descriptor: &FlightDescriptor) -> Result<SchemaResult, Status> {
        let (_, shuffle) = FlightForm::of(descriptor)?;
        let kind = self.kind(&self.node().await?, shuffle).await?;
        let options = IpcWriteOptions::default();
        let schema: Result<SchemaResult, ArrowError> = SchemaAsIpc::new(kind.schema(), &options).try_into();
        schema.map_err(|why| Status::internal(why.to_string()))
    }

    /// The shuffles of the pool that meet the criteria. Of what their records are, [`FlightService::get_schema`] says more.
    async fn flights(&self, criteria: &[u8]) -> Result<Vec<FlightInfo>, Status> {
        let criteria = match criteria {
            [] => CriteriaForm::default(),
            text => serde_json::from_slice(text).map_err(|why| {
                status::malformed(format!("the criteria are none: {why}: give an owner, or nothing"))
            })?,
        };
        let list = self.pool.list(&criteria.owner).await.map_err(status::refused)?;
        let known = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let flights = list.shuffles.into_iter().map(|one| {
            let told = serde_json::to_vec(&one).unwrap_or_default();
            FlightInfo::new()
                .with_descriptor(FlightDescriptor::new_path(vec![one.shuffle]))
                .with_ordered(true)
                .with_total_records(known(one.records))
                .with_total_bytes(known(one.bytes))
                .with_app_metadata(told)
        });
        Ok(flights.collect())
    }

    async fn messages(
        &self,
        ticket: &Ticket,
    ) -> Result<BoxStream<'static, Result<FlightData, Status>>, Status> {
        let ticket = TicketForm::read(&ticket.ticket)?;
        let node = self.node().await?;
        // Whoever reads of a shuffle that is not sealed, or not there, hears it at once.
        node.plan(ticket.shuffle).await.map_err(status::refused)?;
        let kind = self.kind(&node, ticket.shuffle).await?;
        let held = self.memory.get().await?;
        let reading = node.read(ticket.shuffle, ticket.what);
        get::stream((reading, held), kind, (ticket.combine, ticket.compression))
    }
}

/// What is here already, as a stream.
fn all<T: Send + 'static>(
    items: impl IntoIterator<Item = T>,
) -> Response<BoxStream<'static, Result<T, Status>>> {
    let items: Vec<Result<T, Status>> = items.into_iter().map(Ok).collect();
    Response::new(stream::iter(items).boxed())
}

#[tonic::async_trait]
impl FlightService for ShuffleFlights {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoActionStream = BoxStream<'static, Result<arrow_flight::Result, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        Err(status::unimplemented("there is no handshake: nobody logs in to a pool"))
    }

    async fn list_flights(
        &self,
        request: Request<Criteria>,
    ) -> Result<Response<Self::ListFlightsStream>, Status> {
        Ok(all(self.flights(&request.get_ref().expression).await?))
    }

    async fn get_flight_info(
        &self,
        request: Request<FlightDescriptor>,
    ) -> Result<Response<FlightInfo>, Status> {
        self.info(request.into_inner()).await.map(Response::new)
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(status::unimplemented("there is nothing to wait for: ask for the info of a flight"))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        self.schema(request.get_ref()).await.map(Response::new)
    }

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        self.messages(request.get_ref()).await.map(Response::new)
    }

    async fn do_put(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        let put = put::put(self.clone(), request.into_inner());
        Ok(Response::new(stream::once(put).boxed()))
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(status::unimplemented("records are put and got, and not exchanged: use DoPut and DoGet"))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let results = self.act(request.get_ref()).await?;
        Ok(all(results.into_iter().map(arrow_flight::Result::new)))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        Ok(all(actions::list()))
    }
}
