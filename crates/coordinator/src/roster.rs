//! Who the coordinators are, as the backend has it: for whoever asks, of whichever of them.

use crate::backing::{Footing, coordinators};
use crate::failed::Failed;
use partage_coordination::{Coordination, Election};
use partage_wire::json::{Coordinators, ErrorBody};
use std::sync::Arc;

/// A view of the backend; none while there is no connection to it.
#[derive(Clone, Default)]
pub struct Roster(Option<(Arc<dyn Coordination>, Election)>);

impl Roster {
    /// Through that connection.
    pub fn of(footing: &Footing) -> Roster {
        Roster(Some((footing.coordination.clone(), footing.election.clone())))
    }

    /// All that are there, the leader first.
    pub async fn list(&self) -> Result<Coordinators, Failed> {
        let unavailable = |why: String| {
            Failed::of(ErrorBody::new(
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
