//! An answer that is not a success, as both APIs tell it.
//!
//! | kind             | HTTP | gRPC                  | what to do |
//! |------------------|------|-----------------------|------------|
//! | `malformed`      | 400  | `INVALID_ARGUMENT`    | mend the request |
//! | `invalid`        | 400  | `INVALID_ARGUMENT`    | mend the request |
//! | `not_found`      | 404  | `NOT_FOUND`           | name something else |
//! | `already_exists` | 409  | `ALREADY_EXISTS`      | go on, or take another name |
//! | `conflict`       | 409  | `ABORTED`             | try again later |
//! | `refused`        | 422  | `FAILED_PRECONDITION` | do first what the help says |
//! | `too_large`      | 413  | `RESOURCE_EXHAUSTED`  | send less |
//! | `unavailable`    | 503  | `UNAVAILABLE`         | try again in a moment |
//! | `not_stored`     | 503  | `UNAVAILABLE`         | nothing was changed: do what the help says, try again |
//! | `unknown`        | 504  | `UNKNOWN`             | look whether it was done |
//!
//! Refusals of workers have kinds of their own; see [`crate::api::http`].

use crate::lead::decision_loop::{CallError, LoopStopped, NotStored};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use partage_core::cluster::admin::AdminError;
use partage_wire::Malformed;
use partage_wire::json::ErrorBody;
use std::collections::HashMap;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The table of this module.
const KINDS: [(&str, StatusCode, Code); 10] = [
    ("malformed", StatusCode::BAD_REQUEST, Code::InvalidArgument),
    ("invalid", StatusCode::BAD_REQUEST, Code::InvalidArgument),
    ("not_found", StatusCode::NOT_FOUND, Code::NotFound),
    ("already_exists", StatusCode::CONFLICT, Code::AlreadyExists),
    ("conflict", StatusCode::CONFLICT, Code::Aborted),
    ("refused", StatusCode::UNPROCESSABLE_ENTITY, Code::FailedPrecondition),
    ("too_large", StatusCode::PAYLOAD_TOO_LARGE, Code::ResourceExhausted),
    ("unavailable", StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
    ("not_stored", StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
    ("unknown", StatusCode::GATEWAY_TIMEOUT, Code::Unknown),
];

/// An answer that is not a success.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    code: Code,
    pub(crate) body: ErrorBody,
    /// In whole seconds.
    retry_after_s: Option<u64>,
}

impl ApiError {
    /// An error of a kind that the table has.
    pub(crate) fn of(body: ErrorBody) -> ApiError {
        let row = KINDS.into_iter().find(|(kind, ..)| *kind == body.error.kind);
        let (_, status, code) = row.unwrap_or(("", StatusCode::INTERNAL_SERVER_ERROR, Code::Internal));
        ApiError { status, code, body, retry_after_s: None }
    }

    /// An error of HTTP alone.
    pub(crate) fn http(status: StatusCode, body: ErrorBody) -> ApiError {
        ApiError { status, code: Code::Internal, body, retry_after_s: None }
    }

    /// A change whose outcome is unknown.
    pub(crate) fn unknown(why: impl std::fmt::Display) -> ApiError {
        let help = "before you ask again, look whether it was done: `partage status`, `partage plan list`";
        ApiError::of(ErrorBody::new("unknown", format!("{why}: it may have been done; {help}"), help))
    }

    /// The same, and when the request is worth another try.
    pub(crate) fn retry_after(self, rest: Duration) -> ApiError {
        ApiError { retry_after_s: Some(rest.as_millis().div_ceil(1_000) as u64), ..self }
    }

    /// The answer over HTTP, with the error in that form.
    pub(crate) fn answer(&self, body: impl IntoResponse) -> Response {
        let mut response = (self.status, body).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }

    pub(crate) fn malformed(field: &str, why: impl std::fmt::Display) -> ApiError {
        Malformed::new(field, why).into()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.answer(axum::Json(&self.body))
    }
}

impl From<ApiError> for Status {
    fn from(ApiError { code, body, .. }: ApiError) -> Status {
        let help = HashMap::from([("help".to_owned(), body.error.help)]);
        let details = ErrorDetails::with_error_info(body.error.kind, "partage", help);
        Status::with_error_details(code, body.error.message, details)
    }
}

impl From<AdminError> for ApiError {
    fn from(error: AdminError) -> ApiError {
        ApiError::of((&error).into())
    }
}

impl From<Malformed> for ApiError {
    fn from(error: Malformed) -> ApiError {
        ApiError::of((&error).into())
    }
}

impl From<LoopStopped> for ApiError {
    fn from(error: LoopStopped) -> ApiError {
        ApiError::of(ErrorBody::new("unavailable", error, "try again in a moment"))
    }
}

impl From<NotStored> for ApiError {
    fn from(error: NotStored) -> ApiError {
        let way_out = error.way_out();
        ApiError::of(ErrorBody::told("not_stored", error, way_out))
    }
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> ApiError {
        match error {
            CallError::Stopped(error) => error.into(),
            CallError::NotStored(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_core_is_in_the_table_and_keeps_its_words_over_grpc() {
        use partage_core::base::id::PlanId;
        let sentence = || ("it is full".to_owned(), "wait".to_owned());
        let (problem, way_out) = sentence();
        let conflict = AdminError::Conflict { problem, way_out };
        let (problem, way_out) = sentence();
        let refused = AdminError::Refused { problem, way_out };
        let (problem, way_out) = sentence();
        let invalid = AdminError::Invalid { problem, way_out };
        let exists = AdminError::KeyspaceExists("kv".parse().unwrap());
        for (error, code) in [
            (conflict, Code::Aborted),
            (refused, Code::FailedPrecondition),
            (invalid, Code::InvalidArgument),
            (exists, Code::AlreadyExists),
            (AdminError::NoPlan(PlanId(7)), Code::NotFound),
        ] {
            let answer = ApiError::from(error.clone());
            assert_ne!(answer.status, StatusCode::INTERNAL_SERVER_ERROR, "{error}");
            let ErrorBody { error: detail } = answer.body.clone();
            let status = Status::from(answer);
            assert_eq!((status.code(), status.message()), (code, detail.message.as_str()));
            let info = status.get_details_error_info().unwrap();
            assert_eq!((info.reason, info.domain.as_str()), (detail.kind, "partage"));
            assert_eq!(info.metadata["help"], error.way_out());
            assert!(detail.message.ends_with(&error.way_out()), "{}", detail.message);
        }
    }
}
