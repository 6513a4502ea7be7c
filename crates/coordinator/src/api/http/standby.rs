//! The routes of a coordinator that stands by: it answers for itself, serves the maps, and passes the rest on.

use super::{live, openmetrics};
use crate::api::coordinator_list::CoordinatorList;
use crate::api::error::ApiError;
use crate::api::forward::Forwarder;
use crate::api::grpc::MapsService;
use crate::publish::Publisher;
use crate::publish::notifier::Notifier;
use crate::standby::{LastFailure, LeaderWatch};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use partage_wire::json::Coordinators;
use std::sync::Arc;

/// Serves the maps of `publisher`; `me` says to the leader who passes something on.
pub(crate) fn router(
    publisher: Arc<Publisher>,
    notifier: Arc<Notifier>,
    leads: LeaderWatch,
    coordinators: CoordinatorList,
    me: &str,
    failure: LastFailure,
) -> Router {
    let forwarder = Forwarder::new(leads.clone(), me, failure.clone());
    let ready = async move || match &*leads.borrow() {
        Some(leader) => (StatusCode::OK, format!("ok, standing by: {} leads\n", leader.address)),
        None => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", failure.nobody_leads())),
    };
    let local = Router::new()
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/metrics", get(async move || openmetrics(notifier.metrics_text(None, None))))
        .route("/v1/coordinators", get(async move || list(coordinators).await))
        .fallback(async move |request: Request| forwarder.forward(request).await);
    let maps = tonic::service::Routes::new(MapsService::new(publisher));
    maps.into_axum_router().reset_fallback().merge(local)
}

async fn list(coordinators: CoordinatorList) -> Result<Json<Coordinators>, ApiError> {
    coordinators.list().await.map(Json)
}
