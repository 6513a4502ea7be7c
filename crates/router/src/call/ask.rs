//! One try: asks one node, and puts its answer into one of few classes.

use super::body::{AnswerBody, Outgoing};
use super::pool::{Connected, PoolHandle, Pools, Unanswered};
use crate::limits;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use partage_core::base::id::{Generation, ShardId};
use partage_core::base::name::NodeId;
use partage_core::node::NodeAddress;
use partage_core::routing::choose::Hint;
use partage_wire::request::headers::{
    EPOCH, FORWARDED_HOST, GENERATION, HOP, IDEMPOTENCY_KEY, NODE, OWNER_ADDRESS, OWNER_NODE, PROXIED_TO,
    number,
};
use partage_wire::request::unavailable::{SOON, UNKNOWN_OUTCOME, is_not_begun, kind_of};
use std::sync::Arc;

/// A node to ask.
#[derive(Debug, Clone)]
pub struct Target {
    /// The node and its number, unless only a hint knows it.
    pub place: Option<(u32, Arc<NodeAddress>)>,
    /// `host:port`, where only a hint knows it.
    pub told: Option<String>,
    pub shard: ShardId,
    pub generation: Generation,
    /// Whether there is a choice of replicas.
    pub choice: bool,
}

impl Target {
    pub fn address(&self) -> &str {
        match (&self.told, &self.place) {
            (Some(told), _) => told,
            (None, Some((_, node))) => &node.address,
            (None, None) => "",
        }
    }

    pub fn node(&self) -> Option<&NodeId> {
        self.place.as_ref().map(|(_, node)| &node.id)
    }

    pub fn number(&self) -> Option<u32> {
        self.place.as_ref().map(|(number, _)| *number)
    }
}

/// What became of a try.
#[derive(Debug)]
pub enum Outcome {
    Answer {
        answer: Response<AnswerBody>,
        /// The node forwarded it to the owner.
        sent_on: bool,
    },
    Misdirected(Hint),
    NotReady {
        after_ms: u64,
    },
    /// Nothing was sent; here is the request.
    NotConnected {
        request: Box<Request<Outgoing>>,
        why: String,
    },
    Broken(hyper::Error),
    /// The node says that the request may have been carried out: here is what it says. Only of a request that may be done twice.
    Unknown(Response<AnswerBody>),
}

/// Whether a request may be done twice.
#[derive(Debug, Clone, Copy)]
struct Repeatable {
    idempotent: bool,
    /// By the client's name for it, and its body is kept: then the service knows a repetition, and its own refusals may be asked
    /// again too.
    named: bool,
}

/// Asks the target. `once`: the request cannot be sent again, so the node may forward it.
pub async fn ask(
    pools: &Arc<Pools>,
    target: &Target,
    mut request: Request<Outgoing>,
    once: bool,
    idempotent: bool,
) -> Outcome {
    let headers = request.headers_mut();
    headers.insert(GENERATION, target.generation.sequence.into());
    if !once {
        headers.insert(HOP, HeaderValue::from_static("1"));
    }
    // A node answers to its own names only.
    if let Ok(host) = HeaderValue::from_str(target.address())
        && let Some(asked) = headers.insert(header::HOST, host)
        && !headers.contains_key(&FORWARDED_HOST)
    {
        headers.insert(FORWARDED_HOST, asked);
    }
    let named = idempotent && !once && headers.contains_key(IDEMPOTENCY_KEY);
    let repeatable = Repeatable { idempotent, named };
    let pool = PoolHandle::new(pools, target.place.clone());
    loop {
        let pooled = match &target.place {
            Some((number, node)) => pools.take(*number, node).await,
            None => None,
        };
        let fresh = pooled.is_none();
        let mut connected = match pooled {
            Some(connected) => connected,
            None => match Box::pin(Connected::open(target.address())).await {
                Ok(connected) => connected,
                Err(why) => return Outcome::NotConnected { request: Box::new(request), why },
            },
        };
        match connected.exchange(request).await {
            Ok(answer) => {
                let answer = answer.map(|incoming| AnswerBody::driven(incoming, connected, pool));
                return classify(answer, repeatable).await;
            }
            Err(Unanswered::Broken(error)) => return Outcome::Broken(error),
            Err(Unanswered::Unsent(unsent)) if fresh => {
                return Outcome::NotConnected { request: unsent, why: "it closed at once".to_owned() };
            }
            // An idle connection had been closed: take the next, or open one.
            Err(Unanswered::Unsent(unsent)) => request = *unsent,
        }
    }
}

async fn classify(answer: Response<AnswerBody>, repeatable: Repeatable) -> Outcome {
    let headers = answer.headers();
    match answer.status() {
        StatusCode::MISDIRECTED_REQUEST => {
            let hint = hint(headers);
            // Read to its end, so that the connection can be used again.
            Box::pin(answer.into_body().at_most(limits::REFUSAL_BYTES)).await;
            Outcome::Misdirected(hint)
        }
        StatusCode::SERVICE_UNAVAILABLE if is_refusal(headers) => {
            Box::pin(refused(answer, repeatable.idempotent)).await
        }
        StatusCode::SERVICE_UNAVAILABLE if repeatable.named => Box::pin(not_begun(answer)).await,
        StatusCode::GATEWAY_TIMEOUT if repeatable.idempotent => Box::pin(unknown(answer)).await,
        _ => delivered(answer),
    }
}

/// Whether a 503 says to ask again. A shard that serves names its epoch: then the service itself has answered, and
/// means its client.
fn is_refusal(headers: &HeaderMap) -> bool {
    headers.contains_key(header::RETRY_AFTER) && !headers.contains_key(&EPOCH)
}

fn delivered(answer: Response<AnswerBody>) -> Outcome {
    let sent_on = answer.headers().contains_key(PROXIED_TO);
    Outcome::Answer { answer, sent_on }
}

fn hint(headers: &HeaderMap) -> Hint {
    let text = |name| headers.get(name)?.to_str().ok();
    Hint {
        node: text(&OWNER_NODE).and_then(|node| NodeId::new(node).ok()),
        address: text(&OWNER_ADDRESS).filter(|address| address.contains(':')).map(str::to_owned),
        sequence: number(headers, &GENERATION),
    }
}

/// A 503 of the service itself. Where the leader of a table has not begun, the client of a named write need not hear of it.
async fn not_begun(answer: Response<AnswerBody>) -> Outcome {
    let (parts, body) = answer.into_parts();
    let (said, body) = body.peeked(limits::REFUSAL_BYTES).await;
    if said.and_then(|said| kind_of(&said)).as_deref() == Some(SOON) {
        return Outcome::NotReady { after_ms: 0 };
    }
    delivered(Response::from_parts(parts, body))
}

/// A 504, by which a node may say that the outcome is unknown.
async fn unknown(answer: Response<AnswerBody>) -> Outcome {
    let (parts, body) = answer.into_parts();
    let (said, body) = body.peeked(limits::REFUSAL_BYTES).await;
    let is_unknown = said.and_then(|said| kind_of(&said)).as_deref() == Some(UNKNOWN_OUTCOME);
    let answer = Response::from_parts(parts, body);
    if is_unknown { Outcome::Unknown(answer) } else { delivered(answer) }
}

/// A 503 with `Retry-After` that the service has not given. An idempotent request is sent again; any other only after a
/// reason that says that nothing was done ([`partage_wire::request::unavailable`]). After any other reason of a node, as that the
/// shard had to be handed over in the midst of the request, it may have been carried out.
async fn refused(answer: Response<AnswerBody>, idempotent: bool) -> Outcome {
    let by_node = answer.headers().contains_key(NODE);
    // A worker means a moment, and HTTP knows no less than a second.
    let after_s = if by_node { 0 } else { number(answer.headers(), &header::RETRY_AFTER).unwrap_or(0) };
    let not_ready = Outcome::NotReady { after_ms: after_s.saturating_mul(1_000) };
    if !idempotent && !by_node {
        return delivered(answer);
    }
    let (parts, body) = answer.into_parts();
    let (reason, body) = body.peeked(limits::REFUSAL_BYTES).await;
    if !by_node || reason.is_some_and(|reason| is_not_begun(&reason)) {
        return not_ready;
    }
    let answer = Response::from_parts(parts, body);
    if idempotent { Outcome::Unknown(answer) } else { delivered(answer) }
}
