//! The JSON API: health, metrics, the worker protocol for any language, administration.

mod admin;
mod extract;
mod openapi;
pub(crate) mod standby;
mod worker;

use crate::api::admin::AdminHandler;
use crate::api::coordinator_list::CoordinatorList;
use crate::api::error::ApiError;
use crate::api::forward::refuse_forwarded;
use crate::lead::decision_loop::{DecisionLoop, LoopStopped};
use crate::publish::metrics::MetricsSnapshot;
use crate::publish::notifier::Notifier;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use partage_wire::json::{Coordinators, ErrorBody};
use std::sync::Arc;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct ApiState {
    pub(crate) decision_loop: DecisionLoop,
    pub(crate) admin: AdminHandler,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) coordinators: CoordinatorList,
    /// At which it leads.
    pub(crate) term: u64,
}

/// The head of the API document; its paths and forms come from the handlers.
#[derive(OpenApi)]
#[openapi(info(
    title = "Partage",
    description = "Shards on nodes: the worker protocol for any language, and administration."
))]
struct ApiDocument;

/// Everything over HTTP, of a coordinator that leads.
pub(crate) fn router(
    decision_loop: DecisionLoop,
    notifier: Arc<Notifier>,
    coordinators: CoordinatorList,
    term: u64,
) -> Router {
    let admin = AdminHandler::new(decision_loop.clone(), notifier.clone());
    let state = ApiState { decision_loop, admin, notifier, coordinators, term };
    let (documented, document) = documented();
    let document = Arc::new(openapi::complete(&document));
    documented
        .route("/v1/openapi.json", get(async move || Json(document.clone())))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(state)
}

/// What the API document is of, and that document as it is derived.
fn documented() -> (Router<ApiState>, utoipa::openapi::OpenApi) {
    OpenApiRouter::with_openapi(ApiDocument::openapi())
        .routes(routes!(admin::command))
        .routes(routes!(admin::status))
        .routes(routes!(admin::nodes))
        .routes(routes!(admin::node))
        .routes(routes!(admin::keyspaces))
        .routes(routes!(admin::keyspace))
        .routes(routes!(admin::shards))
        .routes(routes!(admin::plans))
        .routes(routes!(admin::plan))
        .routes(routes!(admin::explain))
        .routes(routes!(admin::moves))
        .routes(routes!(admin::drains))
        .routes(routes!(admin::events))
        .routes(routes!(admin::dump))
        .routes(routes!(coordinators))
        .routes(routes!(worker::register))
        .routes(routes!(worker::heartbeat))
        .routes(routes!(worker::leave))
        .routes(routes!(live))
        .routes(routes!(ready))
        .routes(routes!(metrics))
        .split_for_parts()
}

/// Of a coordinator that starts or stops.
pub(crate) fn unavailable() -> Router {
    let gone =
        async |request: Request| refuse_forwarded(&request).unwrap_or_else(|| ApiError::from(LoopStopped));
    Router::new().route("/health/live", get(live)).fallback(gone)
}

/// Whether the process lives: always, when it answers.
#[utoipa::path(get, path = "/health/live", tag = "health", responses((status = 200, body = String)))]
async fn live() -> &'static str {
    "ok\n"
}

/// Whether it decides: 200, or 503 while it starts or stops.
#[utoipa::path(get, path = "/health/ready", tag = "health", responses(
    (status = 200, body = String),
    (status = 503, body = String),
))]
async fn ready(State(state): State<ApiState>) -> (StatusCode, &'static str) {
    match state.decision_loop.call(|_, _| ()).await {
        Ok(()) => (StatusCode::OK, "ok\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the coordinator is starting or stopping\n"),
    }
}

/// Numbers for Prometheus, as OpenMetrics text.
#[utoipa::path(get, path = "/metrics", tag = "health", responses(
    (status = 200, body = String, content_type = "application/openmetrics-text"),
))]
async fn metrics(State(state): State<ApiState>) -> MetricsResponse {
    let snapshot = state.decision_loop.call(|cluster, at| MetricsSnapshot::of(cluster, at)).await;
    openmetrics(state.notifier.metrics_text(snapshot.ok().as_ref(), Some(state.term)))
}

type MetricsResponse = ([(&'static str, &'static str); 1], String);

fn openmetrics(text: String) -> MetricsResponse {
    ([("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}

/// The coordinators of the cluster, and who leads. Answered by each of them.
#[utoipa::path(get, path = "/v1/coordinators", tag = "admin", responses((status = 200, body = Coordinators)))]
async fn coordinators(State(state): State<ApiState>) -> Result<Json<Coordinators>, ApiError> {
    state.coordinators.list().await.map(Json)
}

/// Programs that speak gRPC get the refusal in gRPC, all others in JSON.
async fn no_such_path(request: Request) -> Response {
    let kind = request.headers().get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return tonic::Status::unimplemented("this coordinator does not offer that service").into_http();
    }
    let message = format!("there is nothing at {}", request.uri().path());
    let body = ErrorBody::new("not_found", message, "see /v1/openapi.json for what there is");
    ApiError::http(StatusCode::NOT_FOUND, body).into_response()
}

async fn no_such_method(method: Method, request: Request) -> Response {
    let message = format!("{method} is not for {}", request.uri().path());
    let body = ErrorBody::new("malformed", message, "see /v1/openapi.json for the method");
    ApiError::http(StatusCode::METHOD_NOT_ALLOWED, body).into_response()
}
