//! From a coordinator that stands by to the one that leads: requests go there, answers come back.
//!
//! | what is asked                      | no coordinator leads    | the leader cannot be reached | it breaks off in the middle |
//! |------------------------------------|-------------------------|------------------------------|-----------------------------|
//! | a question (`GET`)                 | waits, then 503         | waits for the next, then 503 | asked again, then 503       |
//! | a change, a heartbeat              | waits, then 503         | waits for the next, then 503 | 504: it may have been done  |
//! | a worker's stream (gRPC)           | is redirected           | gets the id of the leader    | –                           |
//!
//! A worker's stream is not passed on: it lives long, and the worker finds the leader by the answer. A request
//! that was passed on to us by another coordinator is never passed on again: who sent it is told with a 421 that
//! nobody leads here, or not yet, and looks again.

use crate::api::error::ApiError;
use crate::limits;
use crate::standby::{LastFailure, LeaderInfo, LeaderWatch};
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use partage_dialer::Dialer;
use partage_wire::json::ErrorBody;
use partage_wire::request::headers::{FORWARDED_BY, LEADER, drop_hop_by_hop};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::metadata::AsciiMetadataKey;

/// The method of a worker's stream.
const ATTEND: &str = "/partage.v1.Worker/Attend";

/// The part of a standby coordinator that passes requests on to the leader and returns its answers.
#[derive(Clone)]
pub struct Forwarder {
    client: Client<HttpConnector, Full<Bytes>>,
    leads: LeaderWatch,
    /// Who passes it on.
    me: HeaderValue,
    slots: Arc<Semaphore>,
    failure: LastFailure,
}

/// Why there is no answer.
enum ForwardError {
    /// Nothing was sent.
    Unsent,
    /// It may have arrived.
    Sent(String),
}

impl Forwarder {
    /// To the leader. While there is none, `failure` says why.
    pub fn new(leads: LeaderWatch, me: &str, failure: LastFailure) -> Forwarder {
        let mut builder = Client::builder(TokioExecutor::new());
        builder.http2_only(true).timer(hyper_util::rt::TokioTimer::new());
        if let Some((every, answer)) = Dialer::LEADER.pings() {
            builder.http2_keep_alive_interval(every).http2_keep_alive_timeout(answer);
        }
        let client = builder.build(Dialer::LEADER.http());
        let me = HeaderValue::from_str(me).unwrap_or(HeaderValue::from_static("a coordinator"));
        Forwarder { client, leads, me, slots: Arc::new(Semaphore::new(limits::FORWARDED)), failure }
    }

    /// The leader's answer to `request`, or why there is none.
    pub async fn forward(self, request: Request) -> Response {
        let grpc = request.headers().get(header::CONTENT_TYPE);
        let grpc = grpc.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        let answer = match self.answer(request).await {
            Ok(answer) => return answer,
            Err(error) => error,
        };
        let misdirected = answer.status == StatusCode::MISDIRECTED_REQUEST;
        if grpc && !misdirected { tonic::Status::from(answer).into_http() } else { answer.into_response() }
    }

    async fn answer(mut self, request: Request) -> Result<Response, ApiError> {
        if request.uri().path() == ATTEND {
            return Ok(self.redirect());
        }
        if let Some(refused) = refuse_forwarded(&request) {
            return Err(refused);
        }
        let busy =
            || unavailable("this coordinator has too much to pass on to the leader: try again in a moment");
        let Ok(_slot) = self.slots.clone().try_acquire_owned() else { return Err(busy()) };
        let (head, body) = request.into_parts();
        let body = Limited::new(body, limits::BODY_BYTES).collect().await.map_err(|_| {
            let message = format!("the body cannot be read, or is above {} bytes", limits::BODY_BYTES);
            ApiError::of(ErrorBody::new("too_large", message, "send less"))
        })?;
        let body = body.to_bytes();
        let question = [Method::GET, Method::HEAD].contains(&head.method);
        let latest = Instant::now() + Duration::from_millis(limits::LEADER_WAIT_MS);
        loop {
            let leads = self.leader(latest).await?;
            match self.send(&leads, &head, body.clone()).await {
                // It has just ceased to lead, or has not begun yet, and has done nothing.
                Ok(answer) if answer.status() == StatusCode::MISDIRECTED_REQUEST => {}
                Ok(answer) if question && answer.status() == StatusCode::SERVICE_UNAVAILABLE => {}
                Ok(answer) => return Ok(answer),
                Err(ForwardError::Sent(why)) if !question => {
                    let why = format!("the leader {} broke off before it answered ({why})", leads.address);
                    return Err(ApiError::unknown(why));
                }
                Err(ForwardError::Unsent | ForwardError::Sent(_)) => {}
            }
            if Instant::now() >= latest {
                return Err(self.nobody_leads());
            }
            sleep(Duration::from_millis(limits::LOOK_AGAIN_MS)).await;
        }
    }

    /// Who leads, as soon as somebody does.
    async fn leader(&mut self, latest: Instant) -> Result<LeaderInfo, ApiError> {
        let leads = match timeout_at(latest, self.leads.wait_for(Option::is_some)).await {
            Ok(Ok(leads)) => leads.clone(),
            Ok(Err(_)) | Err(_) => None,
        };
        leads.ok_or_else(|| self.nobody_leads())
    }

    fn nobody_leads(&self) -> ApiError {
        unavailable(&format!("{}: try again in a moment", self.failure.nobody_leads()))
    }

    async fn send(
        &self,
        leads: &LeaderInfo,
        head: &axum::http::request::Parts,
        body: Bytes,
    ) -> Result<Response, ForwardError> {
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let uri: Uri = format!("http://{}{path}", leads.address).parse().map_err(|_| ForwardError::Unsent)?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = head.headers.clone();
        drop_hop_by_hop(request.headers_mut());
        request.headers_mut().remove(header::HOST);
        request.headers_mut().insert(FORWARDED_BY, self.me.clone());
        match self.client.request(request).await {
            Ok(answer) => Ok(answer.map(Body::new)),
            Err(error) if error.is_connect() => Err(ForwardError::Unsent),
            Err(error) => Err(ForwardError::Sent(error.to_string())),
        }
    }

    /// The answer to a worker's stream: who leads.
    fn redirect(&self) -> Response {
        let leads = self.leads.borrow().clone();
        let Some(leads) = leads else { return tonic::Status::from(self.nobody_leads()).into_http() };
        let mut status = tonic::Status::failed_precondition(format!(
            "this coordinator stands by: {} leads",
            leads.address
        ));
        if let (Ok(name), Ok(address)) =
            (AsciiMetadataKey::from_bytes(LEADER.as_ref()), leads.address.parse())
        {
            status.metadata_mut().insert(name, address);
        }
        status.into_http()
    }
}

fn unavailable(message: &str) -> ApiError {
    ApiError::of(ErrorBody::new("unavailable", message, "try again in a moment"))
}

/// The answer to another coordinator that takes us for the leader while we are not.
pub fn refuse_forwarded(request: &Request) -> Option<ApiError> {
    request.headers().contains_key(FORWARDED_BY).then(|| {
        let body = ErrorBody::new("unavailable", "this coordinator does not lead", "look again who does");
        ApiError::http(StatusCode::MISDIRECTED_REQUEST, body)
    })
}
