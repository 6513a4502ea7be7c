//! Administration over gRPC; see `admin.proto`. What it says and does is said and done by the [`Desk`].

use crate::desk::{Desk, user};
use crate::failed::Failed;
use crate::limits;
use partage_wire::json::{CommandRequest, KeyText};
use partage_wire::proto::admin_server::Admin;
use partage_wire::proto::{self, DumpPiece};
use tokio_stream::Iter;
use tonic::{Request, Response, Status};

/// Serves [`Admin`].
pub struct AdminDoor {
    desk: Desk,
}

impl AdminDoor {
    /// In front of that desk.
    pub(crate) fn new(desk: Desk) -> AdminDoor {
        AdminDoor { desk }
    }
}

type Told<T> = Result<Response<T>, Status>;

/// A number that any limit refuses, where one does not fit.
fn limit(asked: Option<u64>) -> Option<usize> {
    asked.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

#[tonic::async_trait]
impl Admin for AdminDoor {
    type DumpStream = Iter<std::vec::IntoIter<Result<DumpPiece, Status>>>;

    async fn command(&self, request: Request<proto::CommandRequest>) -> Told<proto::CommandAnswer> {
        let by = user(request.metadata().as_ref())?;
        let request = CommandRequest::try_from(request.into_inner()).map_err(Failed::from)?;
        Ok(Response::new((&self.desk.command(by, request).await?).into()))
    }

    async fn status(&self, _: Request<proto::StatusRequest>) -> Told<proto::ClusterStatus> {
        Ok(Response::new((&self.desk.status().await?).into()))
    }

    async fn list_nodes(&self, _: Request<proto::ListNodesRequest>) -> Told<proto::NodeList> {
        let nodes = self.desk.nodes().await?;
        Ok(Response::new(proto::NodeList { nodes: nodes.iter().map(Into::into).collect() }))
    }

    async fn get_node(&self, request: Request<proto::GetNodeRequest>) -> Told<proto::NodeDetail> {
        let asked = request.get_ref();
        Ok(Response::new((&self.desk.node(&asked.node, limit(asked.limit)).await?).into()))
    }

    async fn list_keyspaces(&self, _: Request<proto::ListKeyspacesRequest>) -> Told<proto::KeyspaceList> {
        let keyspaces = self.desk.keyspaces().await?;
        let keyspaces = keyspaces.iter().map(Into::into).collect();
        Ok(Response::new(proto::KeyspaceList { keyspaces }))
    }

    async fn get_keyspace(&self, request: Request<proto::GetKeyspaceRequest>) -> Told<proto::Keyspace> {
        Ok(Response::new((&self.desk.keyspace(&request.get_ref().name).await?).into()))
    }

    async fn list_shards(&self, request: Request<proto::ListShardsRequest>) -> Told<proto::ShardList> {
        let asked = request.get_ref();
        let page = self.desk.shards(&asked.keyspace, asked.after, limit(asked.limit)).await?;
        let shards = page.rows.iter().map(Into::into).collect();
        Ok(Response::new(proto::ShardList { shards, next: page.next }))
    }

    async fn list_plans(&self, request: Request<proto::ListPlansRequest>) -> Told<proto::PlanList> {
        let asked = request.get_ref();
        let keyspace = Some(asked.keyspace.as_str()).filter(|name| !name.is_empty());
        let page = self.desk.plans(keyspace, asked.before, limit(asked.limit)).await?;
        let plans = page.rows.iter().map(Into::into).collect();
        Ok(Response::new(proto::PlanList { plans, next: page.next }))
    }

    async fn get_plan(&self, request: Request<proto::GetPlanRequest>) -> Told<proto::Plan> {
        Ok(Response::new((&self.desk.plan(request.get_ref().plan).await?).into()))
    }

    async fn list_moves(&self, request: Request<proto::ListMovesRequest>) -> Told<proto::MoveList> {
        let asked = request.get_ref();
        let keyspace = Some(asked.keyspace.as_str()).filter(|name| !name.is_empty());
        let (rows, more) = self.desk.moves(keyspace, limit(asked.limit)).await?;
        Ok(Response::new(proto::MoveList { moves: rows.iter().map(Into::into).collect(), more }))
    }

    async fn list_drains(&self, _: Request<proto::ListDrainsRequest>) -> Told<proto::DrainList> {
        let drains = self.desk.drains().await?;
        Ok(Response::new(proto::DrainList { drains: drains.iter().map(Into::into).collect() }))
    }

    async fn list_events(&self, request: Request<proto::ListEventsRequest>) -> Told<proto::EventList> {
        Ok(Response::new(self.desk.events(request.into_inner().into()).await?.into()))
    }

    async fn explain(&self, request: Request<proto::ExplainRequest>) -> Told<proto::Explanation> {
        let proto::ExplainRequest { keyspace, key } = request.into_inner();
        Ok(Response::new((&self.desk.explain(&keyspace, KeyText::from(key)).await?).into()))
    }

    async fn dump(&self, _: Request<proto::DumpRequest>) -> Told<Self::DumpStream> {
        let document = self.desk.dump().await?;
        let piece = |bytes: &[u8]| Ok(DumpPiece { json: bytes.to_vec() });
        let pieces: Vec<_> = document.chunks(limits::DUMP_PIECE_BYTES).map(piece).collect();
        Ok(Response::new(tokio_stream::iter(pieces)))
    }
}
