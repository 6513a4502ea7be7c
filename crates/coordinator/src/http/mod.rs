//! The JSON doors: health, metrics, the worker protocol for any language, administration.

use crate::audience::Herald;
use crate::mind::Mind;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use std::sync::Arc;

/// What the handlers share.
#[derive(Clone)]
pub(crate) struct Doors {
    pub(crate) mind: Mind,
    pub(crate) herald: Arc<Herald>,
}

/// Everything over HTTP.
pub(crate) fn router(mind: Mind, herald: Arc<Herald>) -> Router {
    let doors = Doors { mind, herald };
    Router::new()
        .route("/health/live", get(|| async { "ok\n" }))
        .route("/health/ready", get(ready))
        .route("/metrics", get(metrics))
        .with_state(doors)
}

/// Ready = the mind answers.
async fn ready(State(doors): State<Doors>) -> (StatusCode, &'static str) {
    match doors.mind.call(|_, _| ()).await {
        Ok(()) => (StatusCode::OK, "ok\n"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the coordinator is starting or stopping\n"),
    }
}

async fn metrics(State(doors): State<Doors>) -> ([(&'static str, &'static str); 1], String) {
    let kind = [("content-type", "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    (kind, doors.herald.metrics.text())
}
