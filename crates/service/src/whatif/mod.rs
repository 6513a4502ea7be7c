//! What would happen to my keys? Schemes compared on a sample, before anything is built on one of them.
//!
//! A simulation starts with a [`Sample`] of real keys and a [`SimulatedCluster`] of nodes, and applies a
//! list of [`Event`]s: a node joins, one leaves, the keys grow, one becomes hot. It runs the list with each [`Scheme`] from
//! the beginning, and measures the same things after every event ([`Scene`]): how even the nodes are, what had
//! to move and what the least was, which node and keys are hottest, and what the lookup table weighs.
//!
//! It runs [`sharding`](partage_core::keyspace::sharding), [`lookup`](partage_core::keyspace::lookup) and
//! [`placement`](partage_core::placement), the code that production runs. Only the splitting of ranges is decided
//! here, by a simple rule (a range with more than twice the load that ranges had at the start is cut at its
//! median), as there is no time in a what-if and thus no hysteresis.
//!
//! **The least possible.** To get from the loads before an event to the loads after it, at least what nodes
//! have gained must have moved. That sum is the yardstick of each scheme: a scheme that leaves the nodes
//! uneven needs to move less, and that shows in the balance. New keys arrive; they do not move.
//!
//! Not here: clocks (the caller times [`Layout::owner`]), replicas (each multiplies every figure alike), and
//! the pace of moves, which is the plan's.

mod direct;
mod error;
mod layout;
mod measure;
mod sample;
mod scheme;
mod shards;
mod simulated_cluster;

#[cfg(test)]
mod tests;

pub use error::WhatIfError;
pub use layout::Layout;
pub use measure::{Balance, Balances, HotKey, Load, Moved, Movement, Step};
pub use sample::{Item, Sample};
pub use scheme::{Cut, Placed, Scheme, UnknownScheme};
pub use simulated_cluster::{Event, Heat, Node, SimulatedCluster};

use partage_core::keyspace::hash::HashFunction;
use partage_core::limits;

/// What is to be compared.
#[derive(Debug, Clone)]
pub struct Question {
    /// The keys, with their loads and sizes.
    pub sample: Sample,
    /// The nodes at the start.
    pub nodes: Vec<Node>,
    /// What happens, in order, each on top of the ones before.
    pub events: Vec<Event>,
    /// The schemes that are compared: each begins at the start.
    pub schemes: Vec<Scheme>,
    /// How keys are hashed, by those schemes that hash.
    pub hash: HashFunction,
    /// Source of every "random" choice of a placement policy.
    pub seed: u64,
}

/// How each scheme fared with the same events.
#[derive(Debug)]
pub struct Comparison {
    /// The start, and then the state after each event.
    pub scenes: Vec<Scene>,
    /// How each scheme fared, in the order of the question.
    pub outcomes: Vec<Outcome>,
    /// Every node there ever was, in the order of appearance. Loads are in this order.
    pub roster: Vec<Node>,
}

/// What is the same for every scheme after an event.
#[derive(Debug, Clone)]
pub struct Scene {
    /// What happened, in words, with what the event left open filled in; empty for the start.
    pub title: String,
    /// All keys that there are then, together.
    pub total: Load,
    /// The nodes that are there, as indexes of the roster.
    pub present: Vec<u32>,
}

/// How one scheme fared.
#[derive(Debug)]
pub struct Outcome {
    /// The scheme with which the events were played.
    pub scheme: Scheme,
    /// One for each scene.
    pub steps: Vec<Step>,
    /// Its layout at the start, to be timed.
    pub start: Layout,
}

/// A step of a comparison that begins: one scheme at one event.
#[derive(Debug, Clone, Copy)]
pub struct StepStarted<'a> {
    /// Which step, from 1.
    pub number: usize,
    /// How many there are.
    pub of: usize,
    /// The title of the scene; empty for the start.
    pub event: &'a str,
    /// The scheme with which the step is played.
    pub scheme: &'a Scheme,
}

/// Plays the events with every scheme. The same question gives the same answer, to the bit.
pub fn compare(question: Question) -> Result<Comparison, WhatIfError> {
    compare_telling(question, |_| {})
}

/// The same; large samples take minutes, so it calls `begun` when a step begins.
pub fn compare_telling(
    question: Question,
    mut begun: impl FnMut(StepStarted<'_>),
) -> Result<Comparison, WhatIfError> {
    let Question { sample, nodes, events, schemes, hash, seed } = question;
    check_counts(&events, &schemes)?;
    let mut cluster = SimulatedCluster::new(sample, nodes, hash, seed)?;
    let mut scenes = vec![cluster.scene(String::new())];
    let mut outcomes = Vec::with_capacity(schemes.len());
    let mut now = Vec::with_capacity(schemes.len());
    let of = schemes.len() * (events.len() + 1);
    let mut number = 0;
    let mut tell = |event: &str, scheme: &Scheme| {
        number += 1;
        begun(StepStarted { number, of, event, scheme });
    };
    for scheme in schemes {
        tell("", &scheme);
        let start = Layout::build(&scheme, &cluster)?;
        let owners = start.owners(&cluster);
        let step = measure::step(&cluster, &start, &owners, None);
        outcomes.push(Outcome { scheme, steps: vec![step], start: start.clone() });
        now.push((start, owners));
    }
    for event in &events {
        let known = cluster.sample.len();
        let title = cluster.apply(event)?;
        scenes.push(cluster.scene(title.clone()));
        for ((layout, owners), outcome) in now.iter_mut().zip(&mut outcomes) {
            tell(&title, &outcome.scheme);
            let next = layout.follow(&outcome.scheme, &cluster)?;
            let after = next.owners(&cluster);
            outcome.steps.push(measure::step(&cluster, &next, &after, Some((owners, known))));
            (*layout, *owners) = (next, after);
        }
    }
    Ok(Comparison { scenes, outcomes, roster: cluster.roster })
}

fn check_counts(events: &[Event], schemes: &[Scheme]) -> Result<(), WhatIfError> {
    for (what, found, limit) in
        [("events", events.len(), limits::WHATIF_EVENTS), ("schemes", schemes.len(), limits::WHATIF_SCHEMES)]
    {
        if found > limit {
            return Err(WhatIfError::TooMany { what, found, limit });
        }
    }
    if schemes.is_empty() {
        return Err(WhatIfError::NoSchemes);
    }
    Ok(())
}
