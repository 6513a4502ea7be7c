//! What a run has shown.

use crate::clock::True;
use crate::scene::Violation;
use std::collections::BTreeMap;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was wrong, and enough was tried to say so.
    Passed,
    /// Nothing was wrong, but too little was tried to say so.
    Unknown,
    /// An invariant was broken: this is the first one.
    Failed(Violation),
}

/// What is left of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed that gives this run again.
    pub seed: u64,
    /// Whether an invariant was broken.
    pub verdict: Verdict,
    /// Over everything that happened.
    pub hash: u64,
    /// How many events the trace has.
    pub events: u64,
    /// For how much true time it went on, in microseconds.
    pub simulated: True,
    /// How many maps were committed.
    pub commits: u64,
    /// Operations begun and done.
    pub operations: (u64, u64),
    /// What was tried, and how often.
    pub exercised: BTreeMap<&'static str, u64>,
    /// The last events in words, if asked for.
    pub words: Vec<String>,
}
