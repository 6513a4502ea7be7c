//! A request that is not carried out: which status, which word for programs, which sentence for people.

use http::StatusCode;
use partage_service::dataset::fetch::Failure;
use partage_wire::json::told;
use std::borrow::Cow;
use std::fmt;

/// The way out when another node can.
const OTHER: &str = "ask another one";

/// A request that is not carried out. It becomes a [`partage_wire::json::ErrorBody`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    /// A word that programs can compare; the text may change.
    pub kind: &'static str,
    /// For people: what is wrong, and the way out.
    pub text: String,
    /// The way out alone.
    pub way_out: Cow<'static, str>,
    /// The methods of the path, where the request has another.
    pub allow: Option<&'static str>,
}

impl Refusal {
    /// Any: what is wrong, and the way out.
    pub fn new(
        status: StatusCode,
        kind: &'static str,
        what: impl fmt::Display,
        way_out: impl Into<Cow<'static, str>>,
    ) -> Refusal {
        let way_out = way_out.into();
        let text = told(what, &way_out);
        Refusal { status, kind, text, way_out, allow: None }
    }

    /// A refusal of a malformed request (400).
    pub fn bad(
        kind: &'static str,
        what: impl fmt::Display,
        way_out: impl Into<Cow<'static, str>>,
    ) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, kind, what, way_out)
    }

    /// 404, without the header that tells an absent key.
    pub fn no_dataset(name: &str) -> Refusal {
        let name: String = name.chars().take(64).collect();
        let what = format!("there is no dataset {name:?} here");
        Refusal::new(StatusCode::NOT_FOUND, "no_dataset", what, "GET / lists those there are")
    }

    /// 503: the dataset is known, and nothing of it serves yet.
    pub fn no_version(name: &str) -> Refusal {
        let what = format!("no version of dataset {name} is active yet");
        let way_out = format!("GET /{name} shows how far loading is");
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_version", what, way_out)
    }

    /// 400: the key lacks the column that says where it is, or has too many.
    pub fn not_that_many_columns(name: &str, columns: u8) -> Refusal {
        let what = format!("dataset {name} is divided by one of the {columns} columns of its keys");
        Refusal::bad("key_columns", what, "give all of them, in their order, with %00%01 between two")
    }

    /// 503: a store file lost bytes while an answer was copied from one. The next lookup finds which.
    pub fn lost() -> Refusal {
        let what = "a store file of this node lost some of its bytes while this was read";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "store_lost", what, "ask again")
    }

    /// 503: a node that was just started does not know yet what there is.
    pub fn starting(awaited: &str) -> Refusal {
        let what = format!("this node was just started, {awaited}");
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "starting", what, "ask again, or ask another node")
    }

    /// 421 to a peer: it believes that this version is here.
    pub fn not_that_version(name: &str, version: &str) -> Refusal {
        let version: String = version.chars().take(64).collect();
        let what = format!("dataset {name} has no version {version:?} on this node");
        Refusal::new(StatusCode::MISDIRECTED_REQUEST, "not_that_version", what, OTHER)
    }

    /// 421 to a peer: it believes that this partition is here.
    pub fn not_that_partition(name: &str, version: &str, partition: u32) -> Refusal {
        let what = format!("partition {partition} of {name}, version {version}, is not on this node");
        Refusal::new(StatusCode::MISDIRECTED_REQUEST, "not_that_partition", what, OTHER)
    }

    /// 412: clients of other nodes get a later version already.
    pub fn behind(name: &str, at_least: &str) -> Refusal {
        let what = format!("dataset {name} is not as far as {at_least} on this node yet");
        Refusal::new(StatusCode::PRECONDITION_FAILED, "behind", what, OTHER)
    }

    /// 502 or 504: those who have it did not answer.
    pub fn of_peers(failure: &Failure, what: String) -> Refusal {
        let (status, kind) = match failure {
            Failure::TimedOut(_) => (StatusCode::GATEWAY_TIMEOUT, "timed_out"),
            Failure::NoPeers | Failure::All(_) => (StatusCode::BAD_GATEWAY, "no_peer"),
        };
        Refusal::new(status, kind, what, "try again")
    }

    /// 405: the path answers these, as the header `allow` has them.
    pub fn method(allow: &'static str) -> Refusal {
        let what = format!("this path answers {allow} only");
        let way_out = "ask by one of them";
        Refusal {
            allow: Some(allow),
            ..Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method", what, way_out)
        }
    }
}
