//! A coordinator and nodes of a pool in this process, and clients of Flight.

use arrow_array::RecordBatch;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::{Action, FlightClient, FlightData, FlightDescriptor, FlightInfo, Ticket};
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use partage_coordinator::{Config as CoordinatorConfig, Coordinator};
use partage_core::base::settings::Settings;
use partage_shuffle::node::NodeSettings;
use partage_shuffle::server::{Config, ShuffleNode};
use partage_worker::DiskLimits;
use serde_json::{Value, json};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tonic::transport::Channel;
use tonic::{Code, Status};

pub struct Pool {
    nodes: Vec<ShuffleNode>,
    coordinator: Coordinator,
    _folder: TempDir,
}

impl Pool {
    pub async fn start(count: usize) -> Pool {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { settle_ms: 100, ..Settings::default() };
        let listen = "127.0.0.1:0".parse().unwrap();
        let config = CoordinatorConfig { settings, ..CoordinatorConfig::new(listen) };
        let coordinator = Coordinator::start(config).await.unwrap();
        let mut nodes = Vec::new();
        for number in 1..=count {
            let name = format!("s{number}");
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let joins = vec![coordinator.address().to_string()];
            let folder = folder.path().join(&name);
            let config = Config {
                slots: 12,
                settings: NodeSettings::of_memory(128 << 20),
                // The disk of a machine that tests is as full as it is.
                disk: DiskLimits::NONE,
                routes: Some(Arc::new(partage_shuffle_flight::routes)),
                ..Config::new(name, joins, listener, folder)
            };
            nodes.push(ShuffleNode::start(config).await.unwrap());
        }
        Pool { nodes, coordinator, _folder: folder }
    }

    pub async fn client(&self, node: usize) -> Client {
        let address = self.nodes[node % self.nodes.len()].address();
        Client::of(&format!("http://{address}")).await
    }

    pub async fn stop(self) {
        for node in self.nodes {
            node.shutdown().await;
        }
        self.coordinator.stop().await;
    }
}

/// What a call has said when it was refused.
pub fn refused(why: FlightError) -> Status {
    match why {
        FlightError::Tonic(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// The error as JSON.
pub fn details(status: &Status) -> Value {
    serde_json::from_str(status.metadata().get("partage-error").unwrap().to_str().unwrap()).unwrap()
}

#[track_caller]
pub fn is(why: FlightError, code: Code, kind: &str) {
    let status = refused(why);
    assert_eq!((status.code(), details(&status)["kind"].as_str()), (code, Some(kind)), "{status}");
    assert!(status.message().starts_with(&format!("{kind}: ")), "{status}");
}

pub fn path(parts: &[&str]) -> FlightDescriptor {
    FlightDescriptor::new_path(parts.iter().map(|part| (*part).to_owned()).collect())
}

fn messages(
    descriptor: FlightDescriptor,
    batches: Vec<RecordBatch>,
) -> impl Stream<Item = Result<FlightData, FlightError>> + Send + 'static {
    let encoder = FlightDataEncoderBuilder::new().with_flight_descriptor(Some(descriptor));
    encoder.build(stream::iter(batches.into_iter().map(Ok)))
}

pub struct Client(pub FlightClient<Channel>);

impl Client {
    pub async fn of(uri: &str) -> Client {
        let channel = Channel::from_shared(uri.replace("grpc+tcp://", "http://")).unwrap();
        Client(FlightClient::new(channel.connect().await.unwrap()))
    }

    /// All results of an action.
    pub async fn act(&mut self, name: &str, body: &Value) -> Result<Vec<Bytes>, FlightError> {
        self.0.do_action(Action::new(name, body.to_string())).await?.try_collect().await
    }

    /// The first one, as JSON.
    pub async fn ask(&mut self, name: &str, body: &Value) -> Result<Value, FlightError> {
        let results = self.act(name, body).await?;
        Ok(serde_json::from_slice(&results[0]).unwrap())
    }

    pub async fn start(&mut self, body: &Value) -> String {
        self.ask("start", body).await.unwrap()["handle"].as_str().unwrap().to_owned()
    }

    /// Writes an attempt, and says what its result says.
    pub async fn put(
        &mut self,
        descriptor: FlightDescriptor,
        batches: Vec<RecordBatch>,
    ) -> Result<Value, FlightError> {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        self.put_marked(descriptor, batches, Some(rows)).await
    }

    /// The same with an end mark that counts so many rows, or without one.
    pub async fn put_marked(
        &mut self,
        descriptor: FlightDescriptor,
        batches: Vec<RecordBatch>,
        rows: Option<usize>,
    ) -> Result<Value, FlightError> {
        let marks = rows.map(|rows| json!({ "records": rows }).to_string());
        let marks = marks.map(|mark| Ok(FlightData { app_metadata: mark.into(), ..FlightData::default() }));
        let messages = messages(descriptor, batches).chain(stream::iter(marks));
        let results: Vec<_> = self.0.do_put(messages).await?.try_collect().await?;
        assert_eq!(results.len(), 1);
        Ok(serde_json::from_slice(&results[0].app_metadata).unwrap())
    }

    /// Writes some batches, and then nothing, for ever.
    pub async fn put_and_stay(&mut self, descriptor: FlightDescriptor, batches: Vec<RecordBatch>) {
        let messages = messages(descriptor, batches).chain(stream::pending());
        let results = self.0.do_put(messages).await.unwrap();
        results.try_collect::<Vec<_>>().await.unwrap();
    }

    pub async fn info(&mut self, descriptor: FlightDescriptor) -> Result<FlightInfo, FlightError> {
        self.0.get_flight_info(descriptor).await
    }

    pub async fn get(&mut self, ticket: Ticket) -> Result<Vec<RecordBatch>, FlightError> {
        self.0.do_get(ticket).await?.try_collect().await
    }

    pub async fn ticket(&mut self, ticket: &Value) -> Result<Vec<RecordBatch>, FlightError> {
        self.get(Ticket { ticket: ticket.to_string().into() }).await
    }

    /// Seals with the input partitions 0 to before that one.
    pub async fn seal(&mut self, handle: &str, inputs: u32) -> Result<Value, FlightError> {
        self.ask("seal", &json!({ "shuffle": handle, "inputs": inputs })).await
    }
}
