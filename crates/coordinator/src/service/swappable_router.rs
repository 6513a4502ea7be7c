//! What the one port answers at the moment: the routes of a leader, those of one that stands by, or none yet.
//!
//! Connections stay while the routes behind them change; each request goes to those that are there when it comes.

use axum::Router;
use axum::extract::Request;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError, RwLock};
use tower::ServiceExt;

/// An HTTP router whose routes can be replaced while it serves.
#[derive(Clone)]
pub struct SwappableRouter {
    current: Arc<RwLock<Router>>,
}

impl SwappableRouter {
    /// With these routes.
    pub fn new(routes: Router) -> SwappableRouter {
        SwappableRouter { current: Arc::new(RwLock::new(routes)) }
    }

    /// Other routes from here on.
    pub fn replace(&self, routes: Router) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = routes;
    }

    /// What a listener serves.
    pub fn router(&self) -> Router {
        let router = self.clone();
        Router::new().fallback_service(tower::service_fn(move |request: Request| {
            let routes = router.current.read().unwrap_or_else(PoisonError::into_inner).clone();
            async move {
                Ok::<_, Infallible>(routes.oneshot(request).await.unwrap_or_else(|never| match never {}))
            }
        }))
    }
}
