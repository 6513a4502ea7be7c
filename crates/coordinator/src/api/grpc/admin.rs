//! Administration over gRPC; see `admin.proto`. What it says and does is said and done by the [`AdminHandler`].

use crate::api::admin::{AdminHandler, user};
use crate::api::error::ApiError;
use crate::limits;
use partage_wire::json::KeyText;
use partage_wire::proto::admin_server::Admin;
use partage_wire::proto::{self, DumpPiece};
use tokio_stream::Iter;
use tonic::{Request, Response, Status};

/// Serves [`Admin`].
pub struct AdminService {
    admin: AdminHandler,
}

impl AdminService {
    /// Every command and query goes to `admin`.
    pub(crate) fn new(admin: AdminHandler) -> AdminService {
        AdminService { admin }
    }
}

type RpcResult<T> = Result<Response<T>, Status>;

/// A number that any limit refuses, where one does not fit.
fn limit(asked: Option<u64>) -> Option<usize> {
    asked.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

#[tonic::async_trait]
impl Admin for AdminService {
    type DumpStream = Iter<std::vec::IntoIter<Result<DumpPiece, Status>>>;

    async fn command(&self, request: Request<proto::CommandRequest>) -> RpcResult<proto::CommandAnswer> {
        let by = user(request.metadata().as_ref())?;
        let request = request.into_inner();
        let dry_run = request.dry_run;
        let command = request.try_into().map_err(ApiError::from)?;
        Ok(Response::new((&self.admin.command(by, command, dry_run).await?).into()))
    }

    async fn status(&self, _: Request<proto::StatusRequest>) -> RpcResult<proto::ClusterStatus> {
        Ok(Response::new((&self.admin.status().await?).into()))
    }

    async fn list_nodes(&self, _: Request<proto::ListNodesRequest>) -> RpcResult<proto::NodeList> {
        let nodes = self.admin.nodes().await?;
        Ok(Response::new(proto::NodeList { nodes: nodes.iter().map(Into::into).collect() }))
    }

    async fn get_node(&self, request: Request<proto::GetNodeRequest>) -> RpcResult<proto::NodeDetail> {
        let asked = request.get_ref();
        Ok(Response::new((&self.admin.node(&asked.node, limit(asked.limit)).await?).into()))
    }

    async fn list_keyspaces(
        &self,
        _: Request<proto::ListKeyspacesRequest>,
    ) -> RpcResult<proto::KeyspaceList> {
        let keyspaces = self.admin.keyspaces().await?;
        let keyspaces = keyspaces.iter().map(Into::into).collect();
        Ok(Response::new(proto::KeyspaceList { keyspaces }))
    }

    async fn get_keyspace(&self, request: Request<proto::GetKeyspaceRequest>) -> RpcResult<proto::Keyspace> {
        Ok(Response::new((&self.admin.keyspace(&request.get_ref().name).await?).into()))
    }

    async fn list_shards(&self, request: Request<proto::ListShardsRequest>) -> RpcResult<proto::ShardList> {
        let asked = request.get_ref();
        let page = self.admin.shards(&asked.keyspace, asked.after, limit(asked.limit)).await?;
        let shards = page.rows.iter().map(Into::into).collect();
        Ok(Response::new(proto::ShardList { shards, next: page.next }))
    }

    async fn list_plans(&self, request: Request<proto::ListPlansRequest>) -> RpcResult<proto::PlanList> {
        let asked = request.get_ref();
        let keyspace = Some(asked.keyspace.as_str()).filter(|name| !name.is_empty());
        let page = self.admin.plans(keyspace, asked.before, limit(asked.limit)).await?;
        let plans = page.rows.iter().map(Into::into).collect();
        Ok(Response::new(proto::PlanList { plans, next: page.next }))
    }

    async fn get_plan(&self, request: Request<proto::GetPlanRequest>) -> RpcResult<proto::Plan> {
        Ok(Response::new((&self.admin.plan(request.get_ref().plan).await?).into()))
    }

    async fn list_moves(&self, request: Request<proto::ListMovesRequest>) -> RpcResult<proto::MoveList> {
        let asked = request.get_ref();
        let keyspace = Some(asked.keyspace.as_str()).filter(|name| !name.is_empty());
        let (rows, more) = self.admin.moves(keyspace, limit(asked.limit)).await?;
        Ok(Response::new(proto::MoveList { moves: rows.iter().map(Into::into).collect(), more }))
    }

    async fn list_drains(&self, _: Request<proto::ListDrainsRequest>) -> RpcResult<proto::DrainList> {
        let drains = self.admin.drains().await?;
        Ok(Response::new(proto::DrainList { drains: drains.iter().map(Into::into).collect() }))
    }

    async fn list_events(&self, request: Request<proto::ListEventsRequest>) -> RpcResult<proto::EventList> {
        Ok(Response::new(self.admin.events(request.into_inner().into()).await?.into()))
    }

    async fn explain(&self, request: Request<proto::ExplainRequest>) -> RpcResult<proto::Explanation> {
        let proto::ExplainRequest { keyspace, key } = request.into_inner();
        Ok(Response::new((&self.admin.explain(&keyspace, KeyText::from(key)).await?).into()))
    }

    async fn dump(&self, _: Request<proto::DumpRequest>) -> RpcResult<Self::DumpStream> {
        let document = self.admin.dump().await?;
        let piece = |bytes: &[u8]| Ok(DumpPiece { json: bytes.to_vec() });
        let pieces: Vec<_> = document.chunks(limits::DUMP_PIECE_BYTES).map(piece).collect();
        Ok(Response::new(tokio_stream::iter(pieces)))
    }
}
