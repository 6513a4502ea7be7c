//! Tables over gRPC: the service `partage.table.v1.Table`, at the address of the node.
//!
//! What a request means is decided where HTTP has it decided: single keys in [`crate::access`], several in [`crate::bulk`], scans
//! in [`crate::scans`], feeds in [`crate::feed`], errors in `table_error.rs`. Here messages become those requests, and answers
//! become messages.
//!
//! | question | file |
//! |---|---|
//! | what a message says, and which one cannot be | `form.rs` |
//! | how an answer looks | `answer.rs` |
//! | which status an error has | `status.rs` |
//! | what a stream of rows does | `load.rs` |
//! | what a stream of changes does | `feed.rs` |

mod answer;
mod feed;
mod form;
mod load;
mod status;

use crate::access::TableClient;
use crate::bulk::{Batch, Bulk, Get, Put};
use crate::feed::Feeds;
use crate::limits;
use crate::scans::{Scans, TableScan};
use crate::service::{Refusal, Refused};
use crate::table_error::TableError;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use partage_core::base::name::KeyspaceName;
use partage_service::table::rows::Write;
use partage_wire::proto::table as proto;
use partage_wire::proto::table::table_server::{Table, TableServer};
use tokio::sync::watch;
use tonic::{Request, Response, Status, Streaming};

/// Where the service is.
pub(crate) const PATH: &str = "/partage.table.v1.Table/{*method}";

/// Tables for gRPC clients of a node. A copy is the same service.
#[derive(Debug, Clone)]
pub struct TableService {
    client: TableClient,
    bulk: Bulk,
    scans: Scans,
    feeds: Feeds,
    closed: watch::Receiver<bool>,
}

impl TableService {
    /// Of the node that `bulk` asks. Streams that follow end when `closed` is true, or its sender is gone.
    pub fn new(bulk: Bulk, scans: Scans, feeds: Feeds, closed: watch::Receiver<bool>) -> TableService {
        TableService { client: bulk.client().clone(), bulk, scans, feeds, closed }
    }

    /// The service as a server of gRPC takes it, with the longest message that it reads.
    pub fn server(&self) -> TableServer<TableService> {
        TableServer::new(self.clone()).max_decoding_message_size(limits::GRPC_MESSAGE_BYTES)
    }

    /// The name of a table that there is: this node has a replica of it, or the maps have it.
    async fn known(&self, name: &str) -> Result<KeyspaceName, TableError> {
        let name = form::table(name)?;
        if self.client.worker().generation(&name).is_none() {
            self.bulk.table(&name).await?;
        }
        Ok(name)
    }

    async fn read(&self, asked: proto::GetRequest) -> Result<proto::GetResponse, TableError> {
        let consistency = form::consistency(asked.consistency, asked.bound_ms)?;
        let (key, at_least) = (form::key(&asked.key)?, form::at_least(&asked.at_least)?);
        let table = self.known(&asked.table).await?;
        let found = self.client.read_at_least(&table, &key, consistency, at_least).await?;
        Ok(answer::found(&key, found))
    }

    async fn write(
        &self,
        table: &str,
        write: Result<Write, TableError>,
    ) -> Result<proto::WriteResponse, TableError> {
        let write = write?;
        let table = self.known(table).await?;
        let outcome = self.client.write(&table, write).await?;
        let (version, results) = TableError::of(outcome, |_| String::new())?;
        Ok(answer::written(version, &results))
    }

    async fn batched(&self, asked: proto::BatchRequest) -> Result<proto::BatchResponse, TableError> {
        let proto::BatchRequest { table, idempotency_key, operations } = asked;
        let (name, table) = (form::idempotency_key(&idempotency_key)?, form::table(&table)?);
        let operations = form::operations(operations)?;
        let brief = self.bulk.table(&table).await?;
        let batch = Batch::of(brief.name.clone(), name, operations);
        batch.check(brief.partition_key)?;
        let outcome = self.bulk.settle(&brief.name, &batch, &[batch.first_key()]).await.pop();
        let none = || Err(Refused::new(Refusal::Soon, "no node was asked"));
        let (version, results) =
            TableError::of(outcome.unwrap_or_else(none)?, |at| batch.operation_name(at))?;
        Ok(answer::batched(version, batch.keys().zip(results)))
    }

    async fn read_many(&self, asked: proto::GetManyRequest) -> Result<proto::GetManyResponse, TableError> {
        let consistency = form::consistency(asked.consistency, asked.bound_ms)?;
        let keys = form::keys(asked.keys)?;
        let table = self.known(&asked.table).await?;
        let question = Get::new(table.clone(), consistency);
        let outcomes = self.bulk.settle(&table, &question, &keys).await;
        let results = keys.iter().zip(outcomes).map(|(key, outcome)| answer::got(key, outcome));
        Ok(proto::GetManyResponse { results: results.collect() })
    }

    async fn put_many(&self, asked: proto::PutManyRequest) -> Result<proto::PutManyResponse, TableError> {
        let name = form::idempotency_key(&asked.idempotency_key)?;
        let items = form::rows(asked.rows)?;
        let table = self.known(&asked.table).await?;
        let outcomes = self.bulk.settle(&table, &Put::new(table.clone(), name), &items).await;
        Ok(proto::PutManyResponse { results: outcomes.into_iter().map(answer::put).collect() })
    }

    /// The pages of a scan, each read when the client has taken the one before; `left` rows at most.
    fn pages(&self, asked: TableScan, left: u64) -> BoxStream<'static, Result<proto::ScanPage, Status>> {
        let (scans, page_rows) = (self.scans.clone(), asked.range.most);
        let pages = stream::try_unfold(Some((asked, left)), move |at| {
            let scans = scans.clone();
            async move {
                let Some((mut asked, left)) = at else { return Ok(None) };
                asked.range.most = usize::try_from(left).unwrap_or(usize::MAX).min(page_rows);
                let page = scans.page(&asked).await.map_err(|why| status::of(&why.into()))?;
                let left = left.saturating_sub(page.rows.len() as u64);
                let sent = answer::page(&page);
                asked.token = page.next;
                let goes_on = asked.token.is_some() && left > 0;
                Ok::<_, Status>(Some((sent, goes_on.then_some((asked, left)))))
            }
        });
        pages.boxed()
    }
}

fn answered<T>(answer: Result<T, TableError>) -> Result<Response<T>, Status> {
    answer.map(Response::new).map_err(|why| status::of(&why))
}

#[tonic::async_trait]
impl Table for TableService {
    type ScanStream = BoxStream<'static, Result<proto::ScanPage, Status>>;
    type FeedStream = BoxStream<'static, Result<proto::FeedPage, Status>>;

    async fn get(&self, request: Request<proto::GetRequest>) -> Result<Response<proto::GetResponse>, Status> {
        answered(self.read(request.into_inner()).await)
    }

    async fn put(
        &self,
        request: Request<proto::PutRequest>,
    ) -> Result<Response<proto::WriteResponse>, Status> {
        let asked = request.into_inner();
        let table = asked.table.clone();
        answered(self.write(&table, form::put(asked)).await)
    }

    async fn delete(
        &self,
        request: Request<proto::DeleteRequest>,
    ) -> Result<Response<proto::WriteResponse>, Status> {
        let asked = request.into_inner();
        let table = asked.table.clone();
        answered(self.write(&table, form::delete(asked)).await)
    }

    async fn batch(
        &self,
        request: Request<proto::BatchRequest>,
    ) -> Result<Response<proto::BatchResponse>, Status> {
        answered(self.batched(request.into_inner()).await)
    }

    async fn get_many(
        &self,
        request: Request<proto::GetManyRequest>,
    ) -> Result<Response<proto::GetManyResponse>, Status> {
        answered(self.read_many(request.into_inner()).await)
    }

    async fn put_many(
        &self,
        request: Request<proto::PutManyRequest>,
    ) -> Result<Response<proto::PutManyResponse>, Status> {
        answered(self.put_many(request.into_inner()).await)
    }

    async fn scan(&self, request: Request<proto::ScanRequest>) -> Result<Response<Self::ScanStream>, Status> {
        let (asked, left) = form::scan(request.into_inner()).map_err(|why| status::of(&why))?;
        Ok(Response::new(self.pages(asked, left)))
    }

    async fn load(
        &self,
        request: Request<Streaming<proto::LoadRequest>>,
    ) -> Result<Response<proto::LoadResponse>, Status> {
        load::load(self, request.into_inner()).await.map(Response::new)
    }

    async fn feed(&self, request: Request<proto::FeedRequest>) -> Result<Response<Self::FeedStream>, Status> {
        let feed = form::feed(request.into_inner()).map_err(|why| status::of(&why))?;
        Ok(Response::new(feed::pages(self.feeds.clone(), self.closed.clone(), feed)))
    }
}
