//! The worker protocol over plain HTTP, for any language (A14); `docs/src/protocols/worker-http.md` is its
//! document.
//!
//! The state machine is the same as for the gRPC stream. Instead of a push of new orders there is a long poll: the coordinator
//! answers a heartbeat with `wait_ms` when there are new orders, or when that time is over. A worker that asks for `text/plain`
//! gets one order a line, for shells ([`partage_wire::worker::lines`]).
//!
//! | refusal                                   | status | what to do               |
//! |-------------------------------------------|--------|--------------------------|
//! | `malformed`                               | 400    | mend the request         |
//! | `name_taken`, `address_taken`, `full`     | 409    | try again later          |
//! | `other_cluster`                           | 409    | keep all, ask its own    |
//! | `ahead`                                   | 409    | keep all, register again |
//! | `late`                                    | 409    | nothing: go on           |
//! | `on_trust`                                | 409    | stop; the lease runs out |
//! | `too_many`                                | 429    | after `retry-after`      |
//! | `not_registered`, `register_again`        | 428    | register, as it is       |
//! | `ended`, `unknown_node`, `wrong_token`    | 410    | keep data, register anew |

use super::ApiState;
use super::extract::{Body, Query, name};
use crate::api::error::ApiError;
use crate::api::registering::Registered;
use crate::lead::decision_loop::LoopStopped;
use crate::limits;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use partage_core::base::id::Incarnation;
use partage_core::base::name::NodeId;
use partage_core::cluster::{BeatError, RegisterError};
use partage_core::node::exchange::Registration;
use partage_core::node::exchange::{Beat, Orders};
use partage_door::Peer;
use partage_wire::json::{self, ErrorBody};
use partage_wire::worker::lines;
use partage_wire::{Refusal, Retry, Token};
use std::time::Duration;
use tokio::time::timeout;

/// Takes a worker in, or back when it names the incarnation it has.
#[utoipa::path(
    post, path = "/v1/worker/register", tag = "worker", request_body = json::Register,
    responses(
        (status = 200, body = json::Welcome),
        (status = 400, body = ErrorBody, description = "malformed"),
        (status = 409, body = ErrorBody, description = "the name or the address is taken, or no room"),
        (status = 410, body = ErrorBody, description = "that incarnation has ended, or the token is not its own"),
        (status = 429, body = ErrorBody, description = "the address has registered too many: try again after `retry-after`"),
    )
)]
pub(super) async fn register(
    State(state): State<ApiState>,
    from: Option<Extension<Peer>>,
    headers: HeaderMap,
    form: Result<Body<json::Register>, ApiError>,
) -> Result<Response, WorkerError> {
    let plain = wants_lines(&headers);
    let heard = async {
        let Body(form) = form?;
        let registration = Registration::try_from(form)?;
        Ok(crate::api::registering::register(
            &state.decision_loop,
            registration,
            from.map(|Extension(peer)| peer),
        )
        .await??)
    };
    let registered: Registered = heard.await.map_err(|error| WorkerError { error, plain })?;
    let Registered { welcome, token, .. } = registered;
    Ok(match plain {
        true => lines::welcome(&welcome, token.as_ref()).into_response(),
        false => {
            let token = token.map(|token| token.as_str().to_owned());
            Json(json::Welcome { token, ..(&welcome).into() }).into_response()
        }
    })
}

/// "I live, and this is how my replicas are"; answered with the lease and what has changed.
#[utoipa::path(
    post, path = "/v1/worker/heartbeat", tag = "worker", params(json::Patience), request_body = json::Beat,
    responses(
        (status = 200, body = json::Orders),
        (status = 400, body = ErrorBody, description = "malformed"),
        (status = 409, body = ErrorBody, description = "overtaken by a later heartbeat"),
        (status = 410, body = ErrorBody, description = "that incarnation has ended, the node is not known, or the token is not its own"),
        (status = 428, body = ErrorBody, description = "register again, as it is"),
    )
)]
pub(super) async fn heartbeat(
    State(state): State<ApiState>,
    headers: HeaderMap,
    patience: Result<Query<json::Patience>, ApiError>,
    form: Result<Body<json::Beat>, ApiError>,
) -> Result<Response, WorkerError> {
    let plain = wants_lines(&headers);
    let heard = async {
        let (Query(patience), Body(form)) = (patience?, form?);
        beat(&state, patience, form).await
    };
    let orders = heard.await.map_err(|error| WorkerError { error, plain })?;
    Ok(match plain {
        true => lines::orders(&orders).into_response(),
        false => Json(json::Orders::from(&orders)).into_response(),
    })
}

async fn beat(state: &ApiState, patience: json::Patience, form: json::Beat) -> Result<Orders, ApiError> {
    let wait_ms = patience.wait_ms.unwrap_or(0);
    if wait_ms > limits::WAIT_MS {
        return Err(ApiError::malformed("wait_ms", format!("{wait_ms} is above {}", limits::WAIT_MS)));
    }
    let beat = Beat::try_from(form)?;
    let (node, incarnation, applied) = (beat.node.clone(), beat.incarnation, beat.applied);
    // Subscribes before the cluster applies the heartbeat, so that it misses no orders.
    let mut receiver = state.decision_loop.subscribe_orders(&node, applied);
    let orders = state.decision_loop.beat(beat).await??;
    if wait_ms == 0 || is_news(&orders, applied) {
        return Ok(orders);
    }
    let lease_ms = orders.lease.map_or(0, |lease| lease.lease_ms);
    let wait = Duration::from_millis(wait_ms.min(lease_ms / 3));
    match timeout(wait, receiver.next()).await {
        // No orders changed in that time.
        Err(_) => Ok(orders),
        // The decision loop is gone.
        Ok(None) => Err(LoopStopped.into()),
        // The lease counts from when the worker sent the heartbeat, not from now.
        Ok(Some(later)) if later.incarnation == incarnation => {
            Ok(Orders { lease: orders.lease, permissions: orders.permissions, ..later })
        }
        Ok(Some(_)) => Err(BeatError::Ended { node, incarnation }.into()),
    }
}

/// Whether the orders say more than the worker knows.
fn is_news(orders: &Orders, applied: u64) -> bool {
    let is_empty = orders.changed.is_empty() && orders.removed.is_empty() && orders.permissions.is_empty();
    orders.base != applied || orders.may_go || !is_empty
}

/// The last word of a worker: it acts no more.
#[utoipa::path(
    post, path = "/v1/worker/leave", tag = "worker", request_body = json::Leave,
    responses(
        (status = 204, description = "it has left"),
        (status = 400, body = ErrorBody, description = "malformed"),
        (status = 409, body = ErrorBody, description = "its token is taken on trust, and it holds shards"),
        (status = 410, body = ErrorBody, description = "that incarnation has ended, the node is not known, or the token is not its own"),
        (status = 428, body = ErrorBody, description = "register again, as it is"),
    )
)]
pub(super) async fn leave(
    State(state): State<ApiState>,
    headers: HeaderMap,
    form: Result<Body<json::Leave>, ApiError>,
) -> Result<StatusCode, WorkerError> {
    let left = async {
        let Body(form) = form?;
        let node: NodeId = name(&form.node, "node")?;
        let (incarnation, session) = (Incarnation(form.incarnation), form.token.parse::<Token>()?.digest());
        Ok(state
            .decision_loop
            .change(move |cluster, at| cluster.leave(at, &node, incarnation, session))
            .await??)
    };
    left.await.map_err(|error| WorkerError { error, plain: wants_lines(&headers) })?;
    Ok(StatusCode::NO_CONTENT)
}

fn wants_lines(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.trim_start().starts_with("text/plain"))
}

/// An error in the form that the worker asked for.
pub(super) struct WorkerError {
    error: ApiError,
    plain: bool,
}

impl IntoResponse for WorkerError {
    fn into_response(self) -> Response {
        match self.plain {
            true => self.error.answer(lines::error(&self.error.body)),
            false => self.error.into_response(),
        }
    }
}

impl From<RegisterError> for ApiError {
    fn from(error: RegisterError) -> ApiError {
        let refusal = Refusal::from(&error);
        match error {
            RegisterError::TooMany { wait_ms, .. } => {
                let error = ApiError::http(StatusCode::TOO_MANY_REQUESTS, (&refusal).into());
                error.retry_after(Duration::from_millis(wait_ms))
            }
            _ => refusal.into(),
        }
    }
}

impl From<BeatError> for ApiError {
    fn from(error: BeatError) -> ApiError {
        Refusal::from(&error).into()
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        let status = match refusal.retry {
            Retry::Never => StatusCode::BAD_REQUEST,
            Retry::Later | Retry::Needless => StatusCode::CONFLICT,
            Retry::Register => StatusCode::PRECONDITION_REQUIRED,
            Retry::AsNew => StatusCode::GONE,
        };
        ApiError::http(status, (&refusal).into())
    }
}
