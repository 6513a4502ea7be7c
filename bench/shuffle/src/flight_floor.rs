//! The floor of Arrow over Flight: a server that takes batches, encodes their rows as a shuffle does, and gives the same batches
//! back. It orders nothing, keeps all in memory, and is one process.
//!
//! ```text
//!  DoPut: batches ─► rows of `arrow-row`, which are dropped
//!            └────► kept ─► DoGet
//! ```
//!
//! A descriptor and an end mark are those of a shuffle, so that the clients are the same; a ticket is the name of an input
//! partition.

use crate::Done;
use arrow_array::RecordBatch;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{ArrowError, SchemaRef};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryStreamExt, future};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Builder;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

/// The longest message, as at a node.
const MESSAGE_BYTES: usize = 66 << 20;
/// Bytes that a client may send before the server has taken them: of a stream, and of a connection, as at a node.
const WINDOWS: (u32, u32) = (256 << 10, 16 << 20);
/// Threads of the server.
const THREADS: usize = 3;
/// It ends by itself after this time.
const LIFE: Duration = Duration::from_secs(4 * 3_600);

/// What the process does.
pub fn process(words: &[String]) -> Done {
    let [_, at] = words else { return Err("flight-floor ADDRESS".into()) };
    let at: SocketAddr = at.parse()?;
    let floor = FlightServiceServer::new(FlightFloor::default()).max_decoding_message_size(MESSAGE_BYTES);
    let runtime = Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?;
    let (stream, connection) = WINDOWS;
    let ended = runtime.block_on(async move {
        let served = Server::builder()
            .initial_stream_window_size(stream)
            .initial_connection_window_size(connection)
            .add_service(floor)
            .serve(at);
        tokio::time::timeout(LIFE, served).await
    });
    match ended {
        Ok(served) => Ok(served?),
        Err(_) => Err(format!("the floor was not ended within {LIFE:?}").into()),
    }
}

/// The record batches of one input partition.
#[derive(Debug, Clone)]
struct Batches {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

/// The server of the floor: all input partitions, by their names. A copy is the same server.
#[derive(Debug, Clone, Default)]
struct FlightFloor {
    partitions: Arc<Mutex<BTreeMap<String, Batches>>>,
}

fn wrong(why: ArrowError) -> Status {
    Status::internal(why.to_string())
}

fn none<T>() -> Result<T, Status> {
    Err(Status::unimplemented("the floor has DoPut and DoGet only"))
}

/// Encodes all columns of a batch; gives the bytes of its rows.
fn encode(converter: &RowConverter, batch: &RecordBatch) -> Result<usize, Status> {
    let rows = converter.convert_columns(batch.columns()).map_err(wrong)?;
    Ok(std::hint::black_box(rows).size())
}

impl FlightFloor {
    /// Takes an input partition, in the place of what it had of it before.
    async fn put<S>(self, mut messages: S) -> Result<PutResult, Status>
    where
        S: Stream<Item = Result<FlightData, Status>> + Send + Unpin + 'static,
    {
        let Some(first) = messages.next().await else {
            return Err(Status::invalid_argument("the stream has no message"));
        };
        let first = first?;
        let path = first.flight_descriptor.as_ref().map(|descriptor| descriptor.path.clone());
        let Some(partition) = path.and_then(|path| path.into_iter().nth(1)) else {
            return Err(Status::invalid_argument(
                "the path of the descriptor is shuffle, partition, attempt",
            ));
        };
        // The end mark has no rows.
        let with_rows = stream::iter([Ok(first)])
            .chain(messages)
            .try_filter(|message| future::ready(!message.data_header.is_empty()))
            .map_err(FlightError::from);
        let mut decoded = FlightRecordBatchStream::new_from_flight_data(with_rows);
        let (mut batches, mut converter, mut count) = (Vec::new(), None::<RowConverter>, 0);
        while let Some(batch) = decoded.next().await {
            let batch = batch.map_err(Status::from)?;
            let converter = match &mut converter {
                Some(converter) => converter,
                empty => empty.insert(converter_of(&batch)?),
            };
            encode(converter, &batch)?;
            count += batch.num_rows();
            batches.push(batch);
        }
        let Some(schema) = decoded.schema().cloned() else {
            return Err(Status::invalid_argument("the stream has no schema"));
        };
        self.partitions().insert(partition, Batches { schema, batches });
        let told = serde_json::json!({ "records": count });
        Ok(PutResult { app_metadata: told.to_string().into() })
    }

    fn get(&self, ticket: &[u8]) -> Result<BoxStream<'static, Result<FlightData, Status>>, Status> {
        let name = String::from_utf8_lossy(ticket);
        let found = self.partitions().get(&*name).cloned();
        let Batches { schema, batches } =
            found.ok_or_else(|| Status::not_found(format!("no client has put the partition {name}")))?;
        let batches = stream::iter(batches.into_iter().map(Ok::<_, FlightError>));
        let messages = FlightDataEncoderBuilder::new().with_schema(schema).build(batches);
        Ok(messages.map_err(Status::from).boxed())
    }

    fn partitions(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Batches>> {
        // Nothing is done by halves under the lock.
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn converter_of(batch: &RecordBatch) -> Result<RowConverter, Status> {
    let schema = batch.schema();
    let fields = schema.fields().iter().map(|field| SortField::new(field.data_type().clone()));
    RowConverter::new(fields.collect()).map_err(wrong)
}

#[tonic::async_trait]
impl FlightService for FlightFloor {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoActionStream = BoxStream<'static, Result<arrow_flight::Result, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;

    async fn do_put(
        &self,
        request: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoPutStream>, Status> {
        Ok(Response::new(stream::once(self.clone().put(request.into_inner())).boxed()))
    }

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        self.get(&request.get_ref().ticket).map(Response::new)
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        none()
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        none()
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        none()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        none()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        none()
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        none()
    }

    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        none()
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, Int64Array, StringArray};

    fn rows() -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), None, Some(1)]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "", "longer than eight"]));
        RecordBatch::try_from_iter([("numbers", numbers), ("texts", texts)]).unwrap()
    }

    #[tokio::test]
    async fn what_is_put_is_got_as_it_is() {
        let encoder =
            FlightDataEncoderBuilder::new().with_flight_descriptor(Some(FlightDescriptor::new_path(vec![
                "-".into(),
                "7".into(),
                "x".into(),
            ])));
        let written = encoder.build(stream::iter([Ok(rows()), Ok(rows())])).map_err(Status::from);
        let mark = FlightData { app_metadata: "{\"records\": 6}".into(), ..FlightData::default() };
        let floor = FlightFloor::default();
        let told = floor.clone().put(written.chain(stream::iter([Ok(mark)]))).await.unwrap();
        assert_eq!(told.app_metadata, r#"{"records":6}"#);
        let messages = floor.get(b"7").unwrap().map_err(FlightError::from);
        let read: Vec<RecordBatch> =
            FlightRecordBatchStream::new_from_flight_data(messages).try_collect().await.unwrap();
        assert_eq!(read, [rows(), rows()]);
        assert!(floor.get(b"8").is_err());
    }

    #[test]
    fn rows_are_encoded_with_all_columns() {
        let batch = rows();
        let all = encode(&converter_of(&batch).unwrap(), &batch).unwrap();
        let one = batch.project(&[0]).unwrap();
        assert!(all > encode(&converter_of(&one).unwrap(), &one).unwrap());
    }
}
