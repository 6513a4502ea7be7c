//! How both worker APIs bring a registration to the decision loop, and give a new process its token.
//!
//! A worker that comes back with the incarnation it has changes nothing that is stored, as a rule: it is taken in also
//! during a commit that takes long, and while nothing can be stored, so that its lease goes on.

use crate::lead::decision_loop::{CallError, DecisionLoop};
use partage_core::base::id::SessionDigest;
use partage_core::cluster::RegisterError;
use partage_core::node::exchange::Registration;
use partage_core::node::exchange::Welcome;
use partage_door::Peer;
use partage_wire::Token;

/// The answer to a worker taken in.
pub(crate) struct Registered {
    /// What core says.
    pub welcome: Welcome,
    /// To a new process.
    pub token: Option<Token>,
    /// What its later messages are compared with.
    pub session: SessionDigest,
}

/// Takes a worker in, or back, that asks from that address.
pub(crate) async fn register(
    decision_loop: &DecisionLoop,
    mut registration: Registration,
    from: Option<Peer>,
) -> Result<Result<Registered, RegisterError>, CallError> {
    registration.from = from.map(Peer::client_group);
    let token = registration.incarnation.is_none().then(|| Token::of(partage_random::bytes()));
    if let Some(token) = &token {
        registration.session = token.digest();
    }
    let session = registration.session;
    let answer = if registration.incarnation.is_some() {
        match decision_loop.resume(registration).await? {
            Ok(welcome) => Ok(welcome),
            Err(waits) => decision_loop.call(move |cluster, at| cluster.register(at, *waits)).await?,
        }
    } else {
        decision_loop.change(move |cluster, at| cluster.register(at, registration)).await?
    };
    if answer.is_ok() {
        decision_loop.notify_registration();
    }
    Ok(answer.map(|welcome| Registered { welcome, token, session }))
}
