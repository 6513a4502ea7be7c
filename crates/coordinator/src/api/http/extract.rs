//! Extractors: how the JSON API reads requests. The refusal of what is not understood is JSON; see [`crate::api::error`].

use crate::api::admin::user;
use crate::api::error::ApiError;
use crate::limits;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use partage_wire::json::{ErrorBody, parse};
use serde::de::DeserializeOwned;

/// A JSON body of at most [`limits::BODY_BYTES`].
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        // The door has refused bodies that announce to be longer.
        let read = Limited::new(request.into_body(), limits::BODY_BYTES).collect().await;
        let bytes = read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => too_large(),
            None => ApiError::malformed("body", "ended before it was whole"),
        })?;
        let bytes = bytes.to_bytes();
        parse(&bytes).map(Body).map_err(ApiError::of)
    }
}

fn too_large() -> ApiError {
    let message = format!("the body is larger than {} bytes, the most that is read", limits::BODY_BYTES);
    ApiError::of(ErrorBody::new("too_large", message, "send less at once"))
}

/// The query of a URL; the refusal of one that is not understood is JSON.
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let read = axum::extract::Query::from_request_parts(parts, state).await;
        let axum::extract::Query(query) =
            read.map_err(|error: QueryRejection| ApiError::malformed("query", error.body_text()))?;
        Ok(Query(query))
    }
}

/// What the segments of a path name; the refusal of one that is not understood is JSON.
pub(crate) struct Path<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let read = axum::extract::Path::from_request_parts(parts, state).await;
        let axum::extract::Path(path) =
            read.map_err(|error: PathRejection| ApiError::malformed("path", error.body_text()))?;
        Ok(Path(path))
    }
}

/// A name that stands in a path or a query.
pub(crate) fn name<T: std::str::FromStr<Err: std::fmt::Display>>(
    text: &str,
    field: &str,
) -> Result<T, ApiError> {
    text.parse().map_err(|error| ApiError::malformed(field, error))
}

/// Who asks: the header `partage-user`.
pub(crate) struct User(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for User {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        user(&parts.headers).map(User)
    }
}
