//! What the one port answers at the moment: the doors of a leader, those of one that stands by, or none yet.
//!
//! Connections stay while the doors behind them change; each request goes to those that are there when it comes.

use axum::Router;
use axum::extract::Request;
use std::convert::Infallible;
use std::sync::{Arc, PoisonError, RwLock};
use tower::ServiceExt;

/// The doors of the moment.
#[derive(Clone)]
pub struct Front {
    doors: Arc<RwLock<Router>>,
}

impl Front {
    /// With these doors.
    pub fn new(doors: Router) -> Front {
        Front { doors: Arc::new(RwLock::new(doors)) }
    }

    /// Other doors from here on.
    pub fn open(&self, doors: Router) {
        *self.doors.write().unwrap_or_else(PoisonError::into_inner) = doors;
    }

    /// What a listener serves.
    pub fn router(&self) -> Router {
        let front = self.clone();
        Router::new().fallback_service(tower::service_fn(move |request: Request| {
            let doors = front.doors.read().unwrap_or_else(PoisonError::into_inner).clone();
            async move { Ok::<_, Infallible>(doors.oneshot(request).await.unwrap_or_else(|never| match never {})) }
        }))
    }
}
