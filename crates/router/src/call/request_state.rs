//! What is kept of a request while it is on its way.

use super::ask::Target;
use super::body::{AnswerBody, Outgoing};
use crate::error::CallError;
use crate::options::CallOptions;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use partage_core::base::name::KeyspaceName;
use partage_core::base::time::Millis;
use partage_core::keyspace::KeyspaceKind;
use partage_core::keyspace::map::Access;
use partage_core::routing::choose::HintedNode;
use partage_core::routing::pace::Hedging;
use partage_core::routing::retry::{Attempts, Reason, RequestTraits};
use partage_wire::request::headers::{EPOCH, IDEMPOTENCY_KEY, drop_hop_by_hop};

/// A request while the router tries to have it answered.
pub struct RequestState<'a> {
    pub keyspace: &'a str,
    pub key: &'a [u8],
    pub access: Access,
    pub seed: u64,
    /// None: the map of the keyspace has not come yet.
    kind: Option<KeyspaceKind>,
    parts: Parts,
    /// None while it is being sent and there is no copy.
    body: Option<Outgoing>,
    pub traits: RequestTraits,
    pub attempts: Attempts,
    /// Nodes, by number, not to choose again.
    pub avoided: Vec<u32>,
    pub hint: Option<HintedNode>,
    pub last: Option<Target>,
    pub answer: Option<Response<AnswerBody>>,
    /// The last answer of a node that the request may have been carried out, for when there is no other try.
    pub unknown: Option<Response<AnswerBody>>,
    /// It writes to a table, whose clients go by the status: none may say that nothing was done when an earlier try may have done
    /// it.
    writes_rows: bool,
}

impl<'a> RequestState<'a> {
    /// Makes a request ready to be sent, as often as need be.
    pub async fn prepare(
        request: Request<Outgoing>,
        (keyspace, key, access): (&'a str, &'a [u8], Access),
        kind: Option<KeyspaceKind>,
        options: &CallOptions,
        now: Millis,
        seed: u64,
    ) -> Result<RequestState<'a>, CallError> {
        let (mut parts, body) = request.into_parts();
        let body = body.kept(options.kept_body_bytes).await;
        let body = body.map_err(|error| CallError::Request(format!("its body broke off: {error}")))?;
        drop_hop_by_hop(&mut parts.headers);
        parts.version = Version::HTTP_11;
        parts.extensions.clear();
        to_origin_form(&mut parts);
        let replayable = body.again().is_some();
        let reads = access == Access::Read && matches!(parts.method, Method::GET | Method::HEAD);
        let hedged = options.hedging != Hedging::Off && reads && replayable;
        // Without a kind it is not sent: `learn` says otherwise before that.
        let traits = RequestTraits { idempotent: false, hedged, replayable };
        let mut state = RequestState {
            keyspace,
            key,
            access,
            seed,
            kind: None,
            parts,
            body: Some(body),
            traits,
            attempts: Attempts::begin(now, &options.retry, traits, seed),
            avoided: Vec::new(),
            hint: None,
            last: None,
            answer: None,
            unknown: None,
            writes_rows: false,
        };
        if let Some(kind) = kind {
            state.learn(kind);
        }
        Ok(state)
    }

    /// Whether the kind of the keyspace is known.
    pub fn knows_kind(&self) -> bool {
        self.kind.is_some()
    }

    /// Takes in the kind of the keyspace, which says what may be done twice. Before the first try is sent.
    pub fn learn(&mut self, kind: KeyspaceKind) {
        self.kind = Some(kind);
        self.writes_rows = kind == KeyspaceKind::Table
            && self.access == Access::Write
            && !matches!(self.parts.method, Method::GET | Method::HEAD);
        // A read changes nothing, by whichever method it is asked for.
        let idempotent = self.access == Access::Read
            || if self.writes_rows {
                // Between two puts of one row another client may have put it, and a condition may hold once only.
                self.parts.headers.contains_key(IDEMPOTENCY_KEY)
            } else {
                is_idempotent(&self.parts.method)
            };
        self.traits.idempotent = idempotent;
        self.attempts.set_idempotent(idempotent);
    }

    /// The request, once more, or for the only time.
    pub fn request(&mut self) -> Option<Request<Outgoing>> {
        let body = match self.body.as_ref()?.again() {
            Some(body) => body,
            None => self.body.take()?,
        };
        Some(Request::from_parts(self.parts.clone(), body))
    }

    /// Takes the body back from a request that was not sent after all.
    pub fn put_back(&mut self, request: Request<Outgoing>) {
        if self.body.is_none() {
            self.body = Some(request.into_body());
        }
    }

    /// Whether an answer says less than is known, where an earlier try may have done the write: that the server has failed, or,
    /// of a write of one row, anything that does not come from a shard that serves. A door has refused only the last try.
    pub fn conceals(&self, answer: &Response<AnswerBody>) -> bool {
        let status = answer.status();
        let is_of_shard = answer.headers().contains_key(&EPOCH);
        let is_of_one_row = matches!(self.parts.method, Method::PUT | Method::DELETE);
        let is_refusal = status.is_server_error() || is_of_one_row && !status.is_success() && !is_of_shard;
        self.writes_rows && self.attempts.may_be_done() && is_refusal && status != StatusCode::GATEWAY_TIMEOUT
    }

    /// What its sender gets when there is no other try: the word of a node that the outcome is unknown, if one has said so.
    pub fn end(&mut self, reason: Reason) -> Result<Response<AnswerBody>, CallError> {
        let unknown = self.unknown.take().filter(|unknown| !self.conceals(unknown));
        unknown.ok_or_else(|| self.given_up(reason))
    }

    /// The error for its sender.
    fn given_up(&self, reason: Reason) -> CallError {
        let keyspace = match KeyspaceName::new(self.keyspace) {
            Ok(keyspace) => keyspace,
            Err(bad) => return CallError::Request(bad.to_string()),
        };
        CallError::GaveUp {
            keyspace,
            shard: self.last.as_ref().map(|target| target.shard),
            node: self.last.as_ref().and_then(|target| target.node().cloned()),
            reason,
            tries: self.attempts.tries(),
            indefinite: self.attempts.may_be_done(),
        }
    }
}

/// By what HTTP says of the method.
fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::PUT | Method::DELETE | Method::OPTIONS | Method::TRACE
    )
}

/// Path and query in the request line, the authority in `host`: HTTP/1.1's form for an origin server.
fn to_origin_form(parts: &mut Parts) {
    let Some(authority) = parts.uri.authority() else { return };
    if !parts.headers.contains_key(header::HOST)
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        parts.headers.insert(header::HOST, host);
    }
    parts.uri = match parts.uri.path_and_query() {
        Some(path) => Uri::from(path.clone()),
        None => Uri::from_static("/"),
    };
}
