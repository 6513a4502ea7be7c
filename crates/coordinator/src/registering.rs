//! How both doors of workers bring a registration to the mind, and give a new process its token.
//!
//! A worker that comes back with the incarnation it has changes nothing that is stored, as a rule: it is taken in also
//! during a commit that takes long, and while nothing can be stored, so that its lease goes on.

use crate::mind::{Mind, Unanswered, drawn};
use partage_core::cluster::{RegisterError, Registration, Welcome};
use partage_core::id::SessionDigest;
use partage_door::Peer;
use partage_wire::Token;

/// What a worker is told that was taken in.
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
    mind: &Mind,
    mut registration: Registration,
    from: Option<Peer>,
) -> Result<Result<Registered, RegisterError>, Unanswered> {
    registration.from = from.map(Peer::origin);
    let token = registration.incarnation.is_none().then(|| Token::of(drawn()));
    if let Some(token) = &token {
        registration.session = token.digest();
    }
    let session = registration.session;
    let answer = if registration.incarnation.is_some() {
        match mind.resume(registration).await? {
            Ok(welcome) => Ok(welcome),
            Err(waits) => mind.call(move |cluster, at| cluster.register(at, *waits)).await?,
        }
    } else {
        mind.change(move |cluster, at| cluster.register(at, registration)).await?
    };
    mind.has_joined();
    Ok(answer.map(|welcome| Registered { welcome, token, session }))
}
