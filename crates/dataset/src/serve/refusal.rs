//! A request that is not carried out: which status, which word for programs, which sentence for people.

use http::StatusCode;

/// Becomes `{"error": kind, "message": text}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Of the answer.
    pub status: StatusCode,
    /// For programs.
    pub kind: &'static str,
    /// For people: what is wrong, and the way out.
    pub text: String,
    /// The methods of the path, where the request has another.
    pub allow: Option<&'static str>,
}

impl Refusal {
    /// Any.
    pub fn new(status: StatusCode, kind: &'static str, text: String) -> Refusal {
        Refusal { status, kind, text, allow: None }
    }

    /// 400.
    pub fn bad(kind: &'static str, text: String) -> Refusal {
        Refusal::new(StatusCode::BAD_REQUEST, kind, text)
    }

    /// 404, without the header that tells an absent key.
    pub fn no_dataset(name: &str) -> Refusal {
        let name: String = name.chars().take(64).collect();
        let text = format!("there is no dataset {name:?} here: GET / lists those there are");
        Refusal::new(StatusCode::NOT_FOUND, "no_dataset", text)
    }

    /// 503: the dataset is known, and nothing of it serves yet.
    pub fn no_version(name: &str) -> Refusal {
        let text =
            format!("no version of dataset {name} is active yet: GET /{name} shows how far loading is");
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_version", text)
    }

    /// 503: a node that was just started does not know yet what there is.
    pub fn starting(awaited: &str) -> Refusal {
        let text = format!("this node was just started: {awaited}; ask again, or ask another node");
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "starting", text)
    }

    /// 421 to a peer: it believes that this version is here.
    pub fn not_that_version(name: &str, version: &str) -> Refusal {
        let version: String = version.chars().take(64).collect();
        let text = format!("dataset {name} has no version {version:?} on this node: ask another one");
        Refusal::new(StatusCode::MISDIRECTED_REQUEST, "not_that_version", text)
    }

    /// 421 to a peer: it believes that this partition is here.
    pub fn not_that_partition(name: &str, version: &str, partition: u32) -> Refusal {
        let text = format!(
            "partition {partition} of {name}, version {version}, is not on this node: ask another one"
        );
        Refusal::new(StatusCode::MISDIRECTED_REQUEST, "not_that_partition", text)
    }

    /// 412: clients of other nodes get a later version already.
    pub fn behind(name: &str, at_least: &str) -> Refusal {
        let text = format!("dataset {name} is not as far as {at_least} on this node yet: ask another one");
        Refusal::new(StatusCode::PRECONDITION_FAILED, "behind", text)
    }

    /// 405: the path answers these, as the header `allow` has them.
    pub fn method(allow: &'static str) -> Refusal {
        let text = format!("this path answers {allow} only");
        Refusal { allow: Some(allow), ..Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method", text) }
    }
}
