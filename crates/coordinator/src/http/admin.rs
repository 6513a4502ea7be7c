//! Administration as JSON over HTTP: every command, and every question that a person or program may have.
//!
//! Commands are one path with one closed set of bodies, not a path for each: so what can be asked is what
//! [`partage_core::cluster::admin::Command`] says and nothing else, a dry run is a field, and the same body
//! goes over gRPC. Questions are `GET`s that change nothing. The OpenAPI document is made from this file.

use super::Doors;
use super::answer::{Body, Failed, Path, Query, User, name};
use crate::limits;
use crate::mind::{Gone, transaction};
use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use partage_core::cluster::admin::AdminError;
use partage_core::id::{PlanId, ShardId};
use partage_core::key::Key;
use partage_core::name::KeyspaceName;
use partage_wire::json::{
    Answer, CommandRequest, Drains, Dump, ErrorBody, Explained, Keyspace, Keyspaces, Nodes, Plan, PlanPage,
    Plans, ShardPage, Shards, Summary, WhichKey,
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
    let command = request.command.try_into().map_err(|error: partage_wire::Malformed| error.within("do"))?;
    let dry_run = request.dry_run;
    let answer =
        doors.mind.call(move |cluster, at| cluster.command(at, transaction(), &by, command, dry_run)).await?;
    Ok(Json((&answer?).into()))
}

/// The cluster at a glance.
#[utoipa::path(get, path = "/v1/status", tag = "admin", responses((status = 200, body = Summary)))]
pub(super) async fn status(State(doors): State<Doors>) -> Told<Summary> {
    Ok(Json(doors.mind.call(|cluster, at| (&cluster.status(at)).into()).await?))
}

/// All nodes.
#[utoipa::path(get, path = "/v1/nodes", tag = "admin", responses((status = 200, body = Nodes)))]
pub(super) async fn nodes(State(doors): State<Doors>) -> Told<Nodes> {
    let rows = doors.mind.call(|cluster, at| cluster.node_table(at)).await?;
    Ok(Json(Nodes { nodes: rows.iter().map(Into::into).collect() }))
}

/// All keyspaces.
#[utoipa::path(get, path = "/v1/keyspaces", tag = "admin", responses((status = 200, body = Keyspaces)))]
pub(super) async fn keyspaces(State(doors): State<Doors>) -> Told<Keyspaces> {
    let keyspaces = doors.mind.call(|cluster, _| {
        cluster.keyspaces().values().map(|state| (&state.record.keyspace).into()).collect()
    });
    Ok(Json(Keyspaces { keyspaces: keyspaces.await? }))
}

/// One keyspace.
#[utoipa::path(
    get, path = "/v1/keyspaces/{keyspace}", tag = "admin",
    params(("keyspace" = String, Path, description = "Its name")),
    responses((status = 200, body = Keyspace), (status = 404, body = ErrorBody))
)]
pub(super) async fn keyspace(State(doors): State<Doors>, Path(keyspace): Path<String>) -> Told<Keyspace> {
    let name: KeyspaceName = name(&keyspace, "keyspace")?;
    let found = doors
        .mind
        .call(move |cluster, _| cluster.keyspace(&name).map(|state| Keyspace::from(&state.record.keyspace)));
    Ok(Json(found.await??))
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
    Query(page): Query<ShardPage>,
) -> Told<Shards> {
    let name: KeyspaceName = name(&keyspace, "keyspace")?;
    let limit = page_limit(page.limit)?;
    let after = page.after.map(ShardId);
    let rows = doors.mind.call(move |cluster, at| cluster.shard_table(at, &name, after, limit + 1)).await??;
    let next = (rows.len() > limit).then(|| rows[limit - 1].shard.0);
    Ok(Json(Shards { shards: rows.iter().take(limit).map(Into::into).collect(), next }))
}

/// Plans, newest first.
#[utoipa::path(
    get, path = "/v1/plans", tag = "admin", params(PlanPage),
    responses((status = 200, body = Plans), (status = 404, body = ErrorBody))
)]
pub(super) async fn plans(State(doors): State<Doors>, Query(page): Query<PlanPage>) -> Told<Plans> {
    let of = page.keyspace.as_deref().map(|text| name::<KeyspaceName>(text, "keyspace")).transpose()?;
    let limit = page_limit(page.limit)?;
    let before = PlanId(page.before.unwrap_or(u64::MAX));
    let found = doors.mind.call(move |cluster, _| {
        if let Some(name) = &of {
            cluster.keyspace(name)?;
        }
        let plans = cluster.plans().range(..before).rev().map(|(_, plan)| plan);
        let plans = plans.filter(|plan| of.as_ref().is_none_or(|name| plan.keyspace == *name));
        Ok::<_, AdminError>(plans.take(limit + 1).map(Plan::from).collect::<Vec<_>>())
    });
    let mut plans = found.await??;
    let next = (plans.len() > limit).then(|| plans[limit - 1].id);
    plans.truncate(limit);
    Ok(Json(Plans { plans, next }))
}

/// One plan.
#[utoipa::path(
    get, path = "/v1/plans/{plan}", tag = "admin",
    params(("plan" = u64, Path, description = "Its number")),
    responses((status = 200, body = Plan), (status = 404, body = ErrorBody))
)]
pub(super) async fn plan(State(doors): State<Doors>, Path(plan): Path<u64>) -> Told<Plan> {
    let id = PlanId(plan);
    let found = doors.mind.call(move |cluster, _| cluster.plans().get(&id).map(Plan::from)).await?;
    Ok(Json(found.ok_or(AdminError::NoPlan(id))?))
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
    let name: KeyspaceName = name(&keyspace, "keyspace")?;
    let key = Key::try_from(which)?;
    let told = doors.mind.call(move |cluster, at| cluster.explain(at, &name, &key)).await??;
    Ok(Json((&told).into()))
}

/// How the drains stand that were asked for.
#[utoipa::path(get, path = "/v1/drains", tag = "admin", responses((status = 200, body = Drains)))]
pub(super) async fn drains(State(doors): State<Doors>) -> Told<Drains> {
    let drains = doors.mind.call(|cluster, at| cluster.drains(at)).await?;
    Ok(Json(Drains { drains: drains.iter().map(Into::into).collect() }))
}

/// Everything durable, as one document: to keep, to check with `partage check`, to begin again from.
#[utoipa::path(get, path = "/v1/dump", tag = "admin", responses((status = 200, body = Dump)))]
pub(super) async fn dump(State(doors): State<Doors>) -> Result<Response, Failed> {
    let records = doors.mind.call(|cluster, _| cluster.records()).await?;
    // A large cluster is a second of work, which must not hold up other answers.
    let written = tokio::task::spawn_blocking(move || serde_json::to_vec(&Dump::from(&records))).await;
    match written {
        Ok(Ok(document)) => Ok(([(header::CONTENT_TYPE, "application/json")], document).into_response()),
        Ok(Err(_)) | Err(_) => Err(Gone.into()),
    }
}

fn page_limit(asked: Option<usize>) -> Result<usize, Failed> {
    match asked.unwrap_or(limits::PAGE) {
        limit @ 1..=limits::PAGE_MOST => Ok(limit),
        limit => Err(Failed::malformed("limit", format!("{limit} is not from 1 to {}", limits::PAGE_MOST))),
    }
}
