//! A client's request at one node: several keys, of one version, here and at peers.

use partage_service::dataset::{Fetch, VersionName};

/// One key of a request.
#[derive(Debug)]
pub struct Part {
    pub partition: u32,
    /// The peers that may be asked, by number of the node.
    pub peers: Vec<usize>,
    pub fetch: Fetch,
    /// The version that the answer was of, or that there is none.
    pub answer: Option<Result<VersionName, String>>,
}

/// A client's request at one node for several keys of one version, with the answers so far.
#[derive(Debug)]
pub struct Reading {
    pub node: usize,
    pub life: u64,
    pub version: VersionName,
    pub began: u64,
    pub parts: Vec<Part>,
    /// When the client has taken it all, if it is slow.
    pub until: Option<u64>,
}

impl Reading {
    /// Whether every key has its answer.
    pub fn is_answered(&self) -> bool {
        self.parts.iter().all(|part| part.answer.is_some())
    }
}
