//! Administration as JSON over HTTP: every command, and every question that a person or program may have.
//!
//! Commands are one path with one closed set of bodies, not a path for each: so what can be asked is what
//! [`partage_core::cluster::admin::Command`] says and nothing else, a dry run is a field, and the same body
//! goes over gRPC. Questions are `GET`s that change nothing. The OpenAPI document is made from this file; what
//! is done is in [`crate::api::admin`].

use super::ApiState;
use super::extract::{Body, Path, Query, User};
use crate::api::error::ApiError;
use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use partage_wire::Malformed;
use partage_wire::json::{
    Answer, CommandRequest, Drains, Dump, ErrorBody, EventPage, Events, Explained, Keyspace, Keyspaces,
    Moves, NodeDetail, NodePage, Nodes, Plan, PlanPage, Plans, ShardPage, Shards, Summary, WhichKey,
    WhichMoves,
};

type JsonResult<T> = Result<Json<T>, ApiError>;

/// Carries out a command, or says what it would do.
#[utoipa::path(
    post, path = "/v1/commands", tag = "admin", request_body = CommandRequest,
    params(("partage-user" = Option<String>, Header, description = "Who asks; anonymous when absent")),
    responses(
        (status = 200, body = Answer),
        (status = 400, body = ErrorBody, description = "malformed, or can never be carried out as given"),
        (status = 404, body = ErrorBody, description = "names something that does not exist"),
        (status = 409, body = ErrorBody, description = "exists already, or something else is under way"),
        (status = 413, body = ErrorBody, description = "too large"),
        (status = 422, body = ErrorBody, description = "not as things are"),
    )
)]
pub(super) async fn command(
    State(state): State<ApiState>,
    User(by): User,
    Body(request): Body<CommandRequest>,
) -> JsonResult<Answer> {
    let CommandRequest { command, dry_run } = request;
    let command = command.try_into().map_err(|error: Malformed| ApiError::from(error.within("do")))?;
    Ok(Json((&state.admin.command(by, command, dry_run).await?).into()))
}

/// The cluster at a glance.
#[utoipa::path(get, path = "/v1/status", tag = "admin", responses((status = 200, body = Summary)))]
pub(super) async fn status(State(state): State<ApiState>) -> JsonResult<Summary> {
    Ok(Json((&state.admin.status().await?).into()))
}

/// All nodes.
#[utoipa::path(get, path = "/v1/nodes", tag = "admin", responses((status = 200, body = Nodes)))]
pub(super) async fn nodes(State(state): State<ApiState>) -> JsonResult<Nodes> {
    let rows = state.admin.nodes().await?;
    Ok(Json(Nodes { nodes: rows.iter().map(Into::into).collect() }))
}

/// One node, with every shard that has a replica on it.
#[utoipa::path(
    get, path = "/v1/nodes/{node}", tag = "admin",
    params(("node" = String, Path, description = "Its name"), NodePage),
    responses((status = 200, body = NodeDetail), (status = 404, body = ErrorBody))
)]
pub(super) async fn node(
    State(state): State<ApiState>,
    Path(node): Path<String>,
    Query(asked): Query<NodePage>,
) -> JsonResult<NodeDetail> {
    Ok(Json((&state.admin.node(&node, asked.limit).await?).into()))
}

/// All keyspaces.
#[utoipa::path(get, path = "/v1/keyspaces", tag = "admin", responses((status = 200, body = Keyspaces)))]
pub(super) async fn keyspaces(State(state): State<ApiState>) -> JsonResult<Keyspaces> {
    let keyspaces = state.admin.keyspaces().await?;
    Ok(Json(Keyspaces { keyspaces: keyspaces.iter().map(Into::into).collect() }))
}

/// One keyspace.
#[utoipa::path(
    get, path = "/v1/keyspaces/{keyspace}", tag = "admin",
    params(("keyspace" = String, Path, description = "Its name")),
    responses((status = 200, body = Keyspace), (status = 404, body = ErrorBody))
)]
pub(super) async fn keyspace(
    State(state): State<ApiState>,
    Path(keyspace): Path<String>,
) -> JsonResult<Keyspace> {
    Ok(Json((&state.admin.keyspace(&keyspace).await?).into()))
}

/// The shards of a keyspace, a page at a time.
#[utoipa::path(
    get, path = "/v1/keyspaces/{keyspace}/shards", tag = "admin",
    params(("keyspace" = String, Path, description = "Its name"), ShardPage),
    responses((status = 200, body = Shards), (status = 404, body = ErrorBody))
)]
pub(super) async fn shards(
    State(state): State<ApiState>,
    Path(keyspace): Path<String>,
    Query(asked): Query<ShardPage>,
) -> JsonResult<Shards> {
    let page = state.admin.shards(&keyspace, asked.after, asked.limit).await?;
    Ok(Json(Shards { shards: page.rows.iter().map(Into::into).collect(), next: page.next }))
}

/// Plans, newest first.
#[utoipa::path(
    get, path = "/v1/plans", tag = "admin", params(PlanPage),
    responses((status = 200, body = Plans), (status = 404, body = ErrorBody))
)]
pub(super) async fn plans(State(state): State<ApiState>, Query(asked): Query<PlanPage>) -> JsonResult<Plans> {
    let page = state.admin.plans(asked.keyspace.as_deref(), asked.before, asked.limit).await?;
    Ok(Json(Plans { plans: page.rows.iter().map(Into::into).collect(), next: page.next }))
}

/// One plan.
#[utoipa::path(
    get, path = "/v1/plans/{plan}", tag = "admin",
    params(("plan" = u64, Path, description = "Its number")),
    responses((status = 200, body = Plan), (status = 404, body = ErrorBody))
)]
pub(super) async fn plan(State(state): State<ApiState>, Path(plan): Path<u64>) -> JsonResult<Plan> {
    Ok(Json((&state.admin.plan(plan).await?).into()))
}

/// Why a key is where it is.
#[utoipa::path(
    get, path = "/v1/explain/{keyspace}", tag = "admin",
    params(("keyspace" = String, Path, description = "Its name"), WhichKey),
    responses((status = 200, body = Explained), (status = 404, body = ErrorBody))
)]
pub(super) async fn explain(
    State(state): State<ApiState>,
    Path(keyspace): Path<String>,
    Query(which): Query<WhichKey>,
) -> JsonResult<Explained> {
    Ok(Json((&state.admin.explain(&keyspace, which.try_into()?).await?).into()))
}

/// What is on its way: one line for each replica that is not yet, or not any more, live.
#[utoipa::path(
    get, path = "/v1/moves", tag = "admin", params(WhichMoves),
    responses((status = 200, body = Moves), (status = 404, body = ErrorBody))
)]
pub(super) async fn moves(
    State(state): State<ApiState>,
    Query(asked): Query<WhichMoves>,
) -> JsonResult<Moves> {
    let (rows, more) = state.admin.moves(asked.keyspace.as_deref(), asked.limit).await?;
    Ok(Json(Moves { moves: rows.iter().map(Into::into).collect(), more }))
}

/// How the drains stand that were asked for.
#[utoipa::path(get, path = "/v1/drains", tag = "admin", responses((status = 200, body = Drains)))]
pub(super) async fn drains(State(state): State<ApiState>) -> JsonResult<Drains> {
    let drains = state.admin.drains().await?;
    Ok(Json(Drains { drains: drains.iter().map(Into::into).collect() }))
}

/// What changed, when, why and by whom: the latest, or those after a place, the oldest first.
#[utoipa::path(
    get, path = "/v1/events", tag = "admin", params(EventPage),
    responses((status = 200, body = Events), (status = 400, body = ErrorBody))
)]
pub(super) async fn events(
    State(state): State<ApiState>,
    Query(asked): Query<EventPage>,
) -> JsonResult<Events> {
    state.admin.events(asked).await.map(Json)
}

/// Everything durable, as one document: to keep, to check with `partage check`, to begin again from.
#[utoipa::path(get, path = "/v1/dump", tag = "admin", responses((status = 200, body = Dump)))]
pub(super) async fn dump(State(state): State<ApiState>) -> Result<Response, ApiError> {
    let document = state.admin.dump().await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], document).into_response())
}
