//! What the JSON doors have in common: how requests are read, and how errors are told.
//!
//! | kind                              | status | what to do |
//! |-----------------------------------|--------|------------|
//! | `malformed`, `invalid`            | 400    | mend the request |
//! | `not_found`                       | 404    | name something else |
//! | `already_exists`, `conflict`      | 409    | go on, take another name, or try again later |
//! | `refused`                         | 422    | do first what the help says |
//! | `too_large`                       | 413    | send less |
//! | `unavailable`                     | 503    | try again in a moment |
//!
//! Refusals of workers have kinds of their own; see [`super::worker`].

use crate::limits;
use crate::mind::Gone;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use partage_core::cluster::admin::{AdminError, Kind};
use partage_wire::Malformed;
use partage_wire::json::{ErrorBody, parse};
use serde::de::DeserializeOwned;

/// An answer that is not a success.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) status: StatusCode,
    pub(crate) body: ErrorBody,
}

impl Failed {
    pub(crate) fn new(status: StatusCode, body: ErrorBody) -> Failed {
        Failed { status, body }
    }

    pub(crate) fn malformed(field: &str, why: impl std::fmt::Display) -> Failed {
        Malformed::new(field, why).into()
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (self.status, axum::Json(self.body)).into_response()
    }
}

impl From<AdminError> for Failed {
    fn from(error: AdminError) -> Failed {
        let status = match error.kind() {
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::AlreadyExists | Kind::Conflict => StatusCode::CONFLICT,
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::Refused => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Failed::new(status, (&error).into())
    }
}

impl From<Malformed> for Failed {
    fn from(error: Malformed) -> Failed {
        Failed::new(StatusCode::BAD_REQUEST, (&error).into())
    }
}

impl From<Gone> for Failed {
    fn from(error: Gone) -> Failed {
        let body = ErrorBody::new("unavailable", error, "try again in a moment");
        Failed::new(StatusCode::SERVICE_UNAVAILABLE, body)
    }
}

/// A JSON body of at most [`limits::BODY_BYTES`].
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Failed;

    async fn from_request(request: Request, _: &S) -> Result<Self, Failed> {
        // Whoever says beforehand how much comes need not send it in vain.
        let told = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
        if told.is_some_and(|bytes: usize| bytes > limits::BODY_BYTES) {
            return Err(too_large());
        }
        let read = Limited::new(request.into_body(), limits::BODY_BYTES).collect().await;
        let bytes = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => too_large(),
            None => Failed::malformed("body", "ended before it was whole"),
        })?;
        let bytes = bytes.to_bytes();
        parse(&bytes).map(Body).map_err(|body| Failed::new(StatusCode::BAD_REQUEST, body))
    }
}

fn too_large() -> Failed {
    let message = format!("the body is larger than {} bytes, the most that is read", limits::BODY_BYTES);
    let body = ErrorBody::new("too_large", message, "send less at once");
    Failed::new(StatusCode::PAYLOAD_TOO_LARGE, body)
}

/// The query of a URL; one that is not understood is told as JSON.
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failed> {
        let read = axum::extract::Query::from_request_parts(parts, state).await;
        let axum::extract::Query(query) =
            read.map_err(|error: QueryRejection| Failed::malformed("query", error.body_text()))?;
        Ok(Query(query))
    }
}

/// What the segments of a path name; one that is not understood is told as JSON.
pub(crate) struct Path<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failed> {
        let read = axum::extract::Path::from_request_parts(parts, state).await;
        let axum::extract::Path(path) =
            read.map_err(|error: PathRejection| Failed::malformed("path", error.body_text()))?;
        Ok(Path(path))
    }
}

/// A name that stands in a path or a query.
pub(crate) fn name<T: std::str::FromStr<Err: std::fmt::Display>>(
    text: &str,
    field: &str,
) -> Result<T, Failed> {
    text.parse().map_err(|error| Failed::malformed(field, error))
}

/// Who asks: the header `partage-user`.
pub(crate) struct User(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for User {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failed> {
        user(&parts.headers).map(User)
    }
}

fn user(headers: &HeaderMap) -> Result<String, Failed> {
    let Some(value) = headers.get("partage-user") else { return Ok("anonymous".to_owned()) };
    let text = std::str::from_utf8(value.as_bytes()).unwrap_or_default();
    let fits = (1..=limits::USER_BYTES).contains(&text.len()) && !text.contains(char::is_control);
    match fits {
        true => Ok(text.to_owned()),
        false => {
            let why = format!("give 1 to {} bytes of readable text, or leave it out", limits::USER_BYTES);
            Err(Failed::malformed("partage-user", why))
        }
    }
}
