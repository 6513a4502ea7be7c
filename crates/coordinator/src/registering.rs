//! How both doors of workers bring a registration to the mind.
//!
//! A worker that comes back with the incarnation it has changes nothing that is stored, as a rule: it is taken in also
//! during a commit that takes long, and while nothing can be stored, so that its lease goes on.

use crate::mind::{Mind, Unanswered};
use partage_core::cluster::{RegisterError, Registration, Welcome};

/// Takes a worker in, or back.
pub(crate) async fn register(
    mind: &Mind,
    registration: Registration,
) -> Result<Result<Welcome, RegisterError>, Unanswered> {
    let answer = if registration.incarnation.is_some() {
        match mind.resume(registration).await? {
            Ok(welcome) => Ok(welcome),
            Err(waits) => mind.call(move |cluster, at| cluster.register(at, *waits)).await?,
        }
    } else {
        mind.change(move |cluster, at| cluster.register(at, registration)).await?
    };
    mind.has_joined();
    Ok(answer)
}
