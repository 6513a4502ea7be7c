//! Who the coordinators are, as the backend has it: every coordinator answers every client.

use crate::api::error::ApiError;
use crate::backend::{BackendConnection, coordinators};
use partage_coordination::{Coordination, Election};
use partage_wire::json::{Coordinators, ErrorBody};
use std::sync::Arc;

/// A view of the backend; none while there is no connection to it.
#[derive(Clone, Default)]
pub struct CoordinatorList(Option<(Arc<dyn Coordination>, Election)>);

impl CoordinatorList {
    /// Through that connection.
    pub fn of(connection: &BackendConnection) -> CoordinatorList {
        CoordinatorList(Some((connection.coordination.clone(), connection.election.clone())))
    }

    /// All that are there, the leader first.
    pub async fn list(&self) -> Result<Coordinators, ApiError> {
        let unavailable = |why: String| {
            ApiError::of(ErrorBody::new(
                "unavailable",
                why,
                "try again in a moment, or ask another coordinator",
            ))
        };
        let Some((coordination, election)) = &self.0 else {
            return Err(unavailable("this coordinator has no connection to the backend".to_owned()));
        };
        coordinators(&**coordination, election).await.map_err(|error| unavailable(error.to_string()))
    }
}
