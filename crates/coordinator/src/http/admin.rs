//! Administration as JSON over HTTP: every command, and every question that a person or program may have.
//!
//! Commands are one path with one closed set of bodies, not a path for each: so what can be asked is what
//! [`partage_core::cluster::admin::Command`] says and nothing else, a dry run is a field, and the same body
//! goes over gRPC. Questions are `GET`s that change nothing. The OpenAPI document is made from this file; what
//! is done is in [`crate::desk`].

use super::Doors;
use super::answer::{Body, Path, Query, User};
use crate::failed::Failed;
use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use partage_wire::json::{
    Answer, CommandRequest, Drains, Dump, ErrorBody, EventPage, Events, Explained, Keyspace, Keyspaces,
    Moves, NodeDetail, NodePage, Nodes, Plan, PlanPage, Plans, ShardPage, Shards, Summary, WhichKey,
    WhichMoves,
};

type Told<T> = Result<Json<T>, Failed>;

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
    State(doors): State<Doors>,
    User(by): User,
    Body(request): Body<CommandRequest>,
) -> Told<Answer> {
    Ok(Json((&doors.desk.command(by, request).await?).into()))
}

/// The cluster at a glance.
#[utoipa::path(get, path = "/v1/status", tag = "admin", responses((status = 200, body = Summary)))]
pub(super) async fn status(State(doors): State<Doors>) -> Told<Summary> {
    Ok(Json((&doors.desk.status().await?).into()))
}

/// All nodes.
#[utoipa::path(get, path = "/v1/nodes", tag = "admin", responses((status = 200, body = Nodes)))]
pub(super) async fn nodes(State(doors): State<Doors>) -> Told<Nodes> {
    let rows = doors.desk.nodes().await?;
    Ok(Json(Nodes { nodes: rows.iter().map(Into::into).collect() }))
}

/// One node, with every shard that has a replica on it.
#[utoipa::path(
    get, path = "/v1/nodes/{node}", tag = "admin",
    params(("node" = String, Path, description = "Its name"), NodePage),
    responses((status = 200, body = NodeDetail), (status = 404, body = ErrorBody))
)]
pub(super) async fn node(
    State(doors): State<Doors>,
    Path(node): Path<String>,
    Query(asked): Query<NodePage>,
) -> Told<NodeDetail> {
    Ok(Json((&doors.desk.node(&node, asked.limit).await?).into()))
}

/// All keyspaces.
#[utoipa::path(get, path = "/v1/keyspaces", tag = "admin", responses((status = 200, body = Keyspaces)))]
pub(super) async fn keyspaces(State(doors): State<Doors>) -> Told<Keyspaces> {
    let keyspaces = doors.desk.keyspaces().await?;
    Ok(Json(Keyspaces { keyspaces: keyspaces.iter().map(Into::into).collect() }))
}

/// One keyspace.
#[utoipa::path(
    get, path = "/v1/keyspaces/{keyspace}", tag = "admin",
    params(("keyspace" = String, Path, description = "Its name")),
    responses((status = 200, body = Keyspace), (status = 404, body = ErrorBody))
)]
pub(super) async fn keyspace(State(doors): State<Doors>, Path(keyspace): Path<String>) -> Told<Keyspace> {
    Ok(Json((&doors.desk.keyspace(&keyspace).await?).into()))
}

/// The shards of a keyspace, a page at a time.
#[utoipa::path(
    get, path = "/v1/keyspaces/{keyspace}/shards", tag = "admin",
    params(("keyspace" = String, Path, description = "Its name"), ShardPage),
    responses((status = 200, body = Shards), (status = 404, body = ErrorBody))
)]
pub(super) async fn shards(
    State(doors): State<Doors>,
    Path(keyspace): Path<String>,
    Query(asked): Query<ShardPage>,
) -> Told<Shards> {
    let page = doors.desk.shards(&keyspace, asked.after, asked.limit).await?;
    Ok(Json(Shards { shards: page.rows.iter().map(Into::into).collect(), next: page.next }))
}

/// Plans, newest first.
#[utoipa::path(
    get, path = "/v1/plans", tag = "admin", params(PlanPage),
    responses((status = 200, body = Plans), (status = 404, body = ErrorBody))
)]
pub(super) async fn plans(State(doors): State<Doors>, Query(asked): Query<PlanPage>) -> Told<Plans> {
    let page = doors.desk.plans(asked.keyspace.as_deref(), asked.before, asked.limit).await?;
    Ok(Json(Plans { plans: page.rows.iter().map(Into::into).collect(), next: page.next }))
}

/// One plan.
#[utoipa::path(
    get, path = "/v1/plans/{plan}", tag = "admin",
    params(("plan" = u64, Path, description = "Its number")),
    responses((status = 200, body = Plan), (status = 404, body = ErrorBody))
)]
pub(super) async fn plan(State(doors): State<Doors>, Path(plan): Path<u64>) -> Told<Plan> {
    Ok(Json((&doors.desk.plan(plan).await?).into()))
}

/// Why a key is where it is.
#[utoipa::path(
    get, path = "/v1/explain/{keyspace}", tag = "admin",
    params(("keyspace" = String, Path, description = "Its name"), WhichKey),
    responses((status = 200, body = Explained), (status = 404, body = ErrorBody))
)]
pub(super) async fn explain(
    State(doors): State<Doors>,
    Path(keyspace): Path<String>,
    Query(which): Query<WhichKey>,
) -> Told<Explained> {
    Ok(Json((&doors.desk.explain(&keyspace, which.try_into()?).await?).into()))
}

/// What is on its way: one line for each replica that is not yet, or not any more, live.
#[utoipa::path(
    get, path = "/v1/moves", tag = "admin", params(WhichMoves),
    responses((status = 200, body = Moves), (status = 404, body = ErrorBody))
)]
pub(super) async fn moves(State(doors): State<Doors>, Query(asked): Query<WhichMoves>) -> Told<Moves> {
    let (rows, more) = doors.desk.moves(asked.keyspace.as_deref(), asked.limit).await?;
    Ok(Json(Moves { moves: rows.iter().map(Into::into).collect(), more }))
}

/// How the drains stand that were asked for.
#[utoipa::path(get, path = "/v1/drains", tag = "admin", responses((status = 200, body = Drains)))]
pub(super) async fn drains(State(doors): State<Doors>) -> Told<Drains> {
    let drains = doors.desk.drains().await?;
    Ok(Json(Drains { drains: drains.iter().map(Into::into).collect() }))
}

/// What changed, when, why and by whom: the latest, or those after a place, the oldest first.
#[utoipa::path(
    get, path = "/v1/events", tag = "admin", params(EventPage),
    responses((status = 200, body = Events), (status = 400, body = ErrorBody))
)]
pub(super) async fn events(State(doors): State<Doors>, Query(asked): Query<EventPage>) -> Told<Events> {
    doors.desk.events(asked).await.map(Json)
}

/// Everything durable, as one document: to keep, to check with `partage check`, to begin again from.
#[utoipa::path(get, path = "/v1/dump", tag = "admin", responses((status = 200, body = Dump)))]
pub(super) async fn dump(State(doors): State<Doors>) -> Result<Response, Failed> {
    let document = doors.desk.dump().await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], document).into_response())
}
