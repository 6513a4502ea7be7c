//! The doors of a coordinator that stands by: it answers for itself, serves the maps, and passes the rest on.

use super::{live, openmetrics};
use crate::audience::Herald;
use crate::failed::Failed;
use crate::forward::Forward;
use crate::grpc::MapsDoor;
use crate::publish::Publisher;
use crate::roster::Roster;
use crate::standby::{LastFailure, WhoLeads};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use partage_wire::json::Coordinators;
use std::sync::Arc;

/// In front of that board; `me` says to the leader who passes something on.
pub(crate) fn router(
    publisher: Arc<Publisher>,
    herald: Arc<Herald>,
    leads: WhoLeads,
    roster: Roster,
    me: &str,
    failure: LastFailure,
) -> Router {
    let forward = Forward::new(leads.clone(), me, failure.clone());
    let ready = async move || match &*leads.borrow() {
        Some(leader) => (StatusCode::OK, format!("ok, standing by: {} leads\n", leader.address)),
        None => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", failure.nobody_leads())),
    };
    let local = Router::new()
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/metrics", get(async move || openmetrics(herald.metrics_text(None, None))))
        .route("/v1/coordinators", get(async move || list(roster).await))
        .fallback(async move |request: Request| forward.pass_on(request).await);
    let maps = tonic::service::Routes::new(MapsDoor::new(publisher));
    maps.into_axum_router().reset_fallback().merge(local)
}

async fn list(roster: Roster) -> Result<Json<Coordinators>, Failed> {
    roster.list().await.map(Json)
}
