//! The JSON doors: health, metrics, the worker protocol for any language, administration.

mod admin;
mod answer;
mod document;
pub(crate) mod standby;
mod worker;

use crate::audience::Herald;
use crate::desk::Desk;
use crate::failed::Failed;
use crate::forward::refuse_forwarded;
use crate::metrics::Glance;
use crate::mind::{Gone, Mind};
use crate::roster::Roster;
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
pub(crate) struct Doors {
    pub(crate) mind: Mind,
    pub(crate) desk: Desk,
    pub(crate) herald: Arc<Herald>,
    pub(crate) roster: Roster,
    /// At which it leads.
    pub(crate) term: u64,
}

/// The head of the API document; its paths and forms come from the handlers.
#[derive(OpenApi)]
#[openapi(info(
    title = "Partage",
    description = "Shards on nodes: the worker protocol for any language, and administration."
))]
struct Document;

/// Everything over HTTP, of a coordinator that leads.
pub(crate) fn router(mind: Mind, herald: Arc<Herald>, roster: Roster, term: u64) -> Router {
    let doors = Doors { desk: Desk::new(mind.clone(), herald.clone()), mind, herald, roster, term };
    let (documented, document) = documented();
    let document = Arc::new(document::complete(&document));
    documented
        .route("/v1/openapi.json", get(async move || Json(document.clone())))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(doors)
}

/// What the API document is of, and that document as it is derived.
fn documented() -> (Router<Doors>, utoipa::openapi::OpenApi) {
    OpenApiRouter::with_openapi(Document::openapi())
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
pub(crate) fn closed() -> Router {
    let gone = async |request: Request| refuse_forwarded(&request).unwrap_or_else(|| Failed::from(Gone));
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
async fn ready(State(doors): State<Doors>) -> (StatusCode, &'static str) {
    match doors.mind.call(|_, _| ()).await {
        Ok(()) => (StatusCode::OK, "ok\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the coordinator is starting or stopping\n"),
    }
}

/// Numbers for Prometheus, as OpenMetrics text.
#[utoipa::path(get, path = "/metrics", tag = "health", responses(
    (status = 200, body = String, content_type = "application/openmetrics-text"),
))]
async fn metrics(State(doors): State<Doors>) -> Text {
    let glance = doors.mind.call(|cluster, at| Glance::of(cluster, at)).await;
    openmetrics(doors.herald.metrics_text(glance.ok().as_ref(), Some(doors.term)))
}

type Text = ([(&'static str, &'static str); 1], String);

fn openmetrics(text: String) -> Text {
    ([("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}

/// The coordinators of the cluster, and who leads. Answered by each of them.
#[utoipa::path(get, path = "/v1/coordinators", tag = "admin", responses((status = 200, body = Coordinators)))]
async fn coordinators(State(doors): State<Doors>) -> Result<Json<Coordinators>, Failed> {
    doors.roster.list().await.map(Json)
}

/// Programs that speak gRPC are told so in gRPC, all others in JSON.
async fn no_such_path(request: Request) -> Response {
    let kind = request.headers().get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return tonic::Status::unimplemented("this coordinator does not offer that service").into_http();
    }
    let message = format!("there is nothing at {}", request.uri().path());
    let body = ErrorBody::new("not_found", message, "see /v1/openapi.json for what there is");
    Failed::http(StatusCode::NOT_FOUND, body).into_response()
}

async fn no_such_method(method: Method, request: Request) -> Response {
    let message = format!("{method} is not for {}", request.uri().path());
    let body = ErrorBody::new("malformed", message, "see /v1/openapi.json for the method");
    Failed::http(StatusCode::METHOD_NOT_ALLOWED, body).into_response()
}
