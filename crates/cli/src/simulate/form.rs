//! The answer for programs: everything, in one JSON object.

use super::{Answer, findings};
use partage_service::whatif::{Balance, Balances, Comparison, Load, Moved, Movement, Outcome, Step};
use serde::Serialize;
use std::collections::BTreeMap;

/// What `partage simulate --json` prints.
#[derive(Debug, Serialize)]
pub struct Form {
    keys: String,
    hash: &'static str,
    seed: u64,
    weight: Option<String>,
    bytes: Option<String>,
    /// Lines of the keys that could not be used.
    left_out_lines: u64,
    nodes: Vec<NodeForm>,
    scenes: Vec<SceneForm>,
    schemes: Vec<SchemeForm>,
    findings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct NodeForm {
    name: String,
    capacity: u32,
    zone: Option<String>,
}

#[derive(Debug, Serialize)]
struct SceneForm {
    /// What happened; empty for the start.
    event: String,
    keys: u64,
    weight: f64,
    bytes: u64,
    nodes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SchemeForm {
    name: String,
    lookups_per_s: Option<f64>,
    /// The steps of the scheme, one for each scene.
    steps: Vec<StepForm>,
}

#[derive(Debug, Serialize)]
struct StepForm {
    shards: Option<usize>,
    memory_bytes: usize,
    balance: BalancesForm,
    moved: Option<MovementForm>,
    nodes: Vec<LoadForm>,
    zones: BTreeMap<String, f64>,
    hottest_node: String,
    hottest_keys: Vec<HotKeyForm>,
}

#[derive(Debug, Serialize)]
struct BalancesForm {
    keys: BalanceForm,
    weight: BalanceForm,
    bytes: BalanceForm,
}

#[derive(Debug, Serialize)]
struct BalanceForm {
    max_over_mean: f64,
    variation: f64,
}

#[derive(Debug, Serialize)]
struct MovementForm {
    keys: MovedForm,
    weight: MovedForm,
    bytes: MovedForm,
}

#[derive(Debug, Serialize)]
struct MovedForm {
    moved: f64,
    least: f64,
    of: f64,
}

#[derive(Debug, Serialize)]
struct LoadForm {
    node: String,
    keys: u64,
    weight: f64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct HotKeyForm {
    key: String,
    weight: f64,
    nodes: Vec<String>,
}

/// Everything that was found.
pub fn form(answer: &Answer) -> Form {
    let comparison = &answer.comparison;
    let node = |node: &partage_service::whatif::Node| NodeForm {
        name: node.name.to_string(),
        capacity: node.capacity,
        zone: node.zone.as_ref().map(ToString::to_string),
    };
    let scene = |scene: &partage_service::whatif::Scene| SceneForm {
        event: scene.title.clone(),
        keys: scene.total.keys,
        weight: scene.total.weight,
        bytes: scene.total.bytes,
        nodes: scene.present.iter().map(|at| name(comparison, *at)).collect(),
    };
    let schemes = comparison.outcomes.iter().zip(&answer.lookups_per_s);
    Form {
        keys: answer.keys.clone(),
        hash: answer.hash.name(),
        seed: answer.seed,
        weight: answer.weight.clone(),
        bytes: answer.bytes.clone(),
        left_out_lines: answer.left_out.lines,
        nodes: comparison.roster.iter().map(node).collect(),
        scenes: comparison.scenes.iter().map(scene).collect(),
        schemes: schemes.map(|(outcome, rate)| scheme(comparison, outcome, *rate)).collect(),
        findings: findings::findings(answer),
    }
}

fn name(comparison: &Comparison, at: u32) -> String {
    comparison.roster[at as usize].name.to_string()
}

fn scheme(comparison: &Comparison, outcome: &Outcome, lookups_per_s: Option<f64>) -> SchemeForm {
    let steps = outcome.steps.iter().zip(&comparison.scenes);
    SchemeForm {
        name: outcome.scheme.to_string(),
        lookups_per_s,
        steps: steps.map(|(found, scene)| step(comparison, found, &scene.present)).collect(),
    }
}

fn step(comparison: &Comparison, found: &Step, present: &[u32]) -> StepForm {
    let load = |at: &u32| {
        let Load { keys, weight, bytes } = found.loads[*at as usize];
        LoadForm { node: name(comparison, *at), keys, weight, bytes }
    };
    let mut zones = BTreeMap::new();
    for at in present {
        if let Some(zone) = &comparison.roster[*at as usize].zone {
            *zones.entry(zone.to_string()).or_default() += found.loads[*at as usize].weight;
        }
    }
    let hot = |hot: &partage_service::whatif::HotKey| HotKeyForm {
        key: hot.key.to_string(),
        weight: hot.weight,
        nodes: hot.nodes.iter().map(|at| name(comparison, *at)).collect(),
    };
    StepForm {
        shards: found.shards,
        memory_bytes: found.memory_bytes,
        balance: balances(&found.balances),
        moved: found.movement.as_ref().map(movement),
        nodes: present.iter().map(load).collect(),
        zones,
        hottest_node: name(comparison, found.hottest_node),
        hottest_keys: found.hottest_keys.iter().map(hot).collect(),
    }
}

fn balances(found: &Balances) -> BalancesForm {
    let form =
        |found: Balance| BalanceForm { max_over_mean: found.max_over_mean, variation: found.variation };
    BalancesForm { keys: form(found.keys), weight: form(found.weight), bytes: form(found.bytes) }
}

fn movement(found: &Movement) -> MovementForm {
    let form = |found: Moved| MovedForm { moved: found.moved, least: found.least, of: found.of };
    MovementForm { keys: form(found.keys), weight: form(found.weight), bytes: form(found.bytes) }
}
