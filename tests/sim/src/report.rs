//! What a run has shown.

use crate::clock::True;
use crate::scene::Violation;
use std::collections::BTreeMap;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was wrong.
    Passed,
    /// Nothing was wrong, but too little was tried to say so.
    Unknown,
    /// Something was wrong.
    Failed(Violation),
}

/// What is left of a run.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How it ended.
    pub verdict: Verdict,
    /// Over everything that happened.
    pub hash: u64,
    /// Events.
    pub events: u64,
    /// Simulated time.
    pub simulated: True,
    /// Maps committed.
    pub commits: u64,
    /// Operations begun and done.
    pub operations: (u64, u64),
    /// What was tried, and how often.
    pub exercised: BTreeMap<&'static str, u64>,
    /// The last events in words, if asked for.
    pub words: Vec<String>,
}
