//! What must hold, judged by the true state of the world.

use super::machine::{Machine, Versions};
use super::reading::{Part, Reading};
use partage_service::dataset::node::{Key, Layout, Served, Value};
use partage_service::dataset::{DatasetName, VersionName};
use std::collections::BTreeMap;

/// For so long a death may be unheard: until the session ends, and mirrors have it.
const UNHEARD_MS: u64 = 12_000;

/// What the oracle remembers.
#[derive(Debug, Default)]
pub struct Oracle {
    /// What the clients of each node saw last, and the last order of an operator then.
    seen: BTreeMap<usize, (u64, VersionName)>,
}

impl Oracle {
    /// The disk of a node is lost, and with it what its clients may rely on.
    pub fn forget(&mut self, node: usize) {
        self.seen.remove(&node);
    }

    /// A client's request begins, and will see that version, which the node gives by that order of an operator.
    pub fn began(&mut self, node: usize, order: u64, version: &VersionName) -> Result<(), String> {
        let now = (order, version.clone());
        match self.seen.insert(node, now.clone()) {
            Some(before) if now < before => {
                Err(format!("S14: clients of node {node} saw {before:?} and now {now:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// D5: a request sees one version.
pub fn answered(reading: &Reading) -> Result<(), String> {
    let other = |part: &&Part| matches!(&part.answer, Some(Ok(version)) if *version != reading.version);
    match reading.parts.iter().find(other) {
        Some(part) => {
            let (asked, partition, got) = (&reading.version, part.partition, &part.answer);
            Err(format!("D5: a request of version {asked} got partition {partition} of {got:?}"))
        }
        None => Ok(()),
    }
}

/// S10: what clients get from now on is at enough nodes, as far as this one can see, or was theirs before a restart.
pub fn upgraded(machine: &Machine, dataset: &DatasetName, version: &VersionName) -> Result<(), String> {
    let state = machine.mind.as_ref().and_then(|mind| mind.dataset(dataset));
    let layout = state.and_then(|state| state.versions().find(|(name, _)| *name == version)?.1.layout());
    let Some(layout) = layout else { return Err(format!("S10: {version} with nothing known of it")) };
    let here = machine.disk.versions.get(version).map(|(_, here)| here.clone()).unwrap_or_default();
    for partition in 0..layout.partitions {
        let key = Key::Partition(dataset.clone(), version.clone(), partition);
        let others = machine.seen.iter().filter(|((address, named), value)| {
            *address != machine.address && *named == key && value.0 == Value::Layout(layout)
        });
        let replicas = others.count() + usize::from(here.contains(&partition));
        if replicas < machine.settings.spread.replication.min as usize {
            return Err(format!(
                "S10: {} upgrades to {version} with {replicas} of partition {partition}",
                machine.address
            ));
        }
    }
    Ok(())
}

/// Z5: what clients get is what the node's own source has, be it at peers or here.
pub fn is_own(
    machine: &Machine,
    dataset: &DatasetName,
    version: &VersionName,
    own: Option<Layout>,
) -> Result<(), String> {
    let state = machine.mind.as_ref().and_then(|mind| mind.dataset(dataset));
    let layout = state.and_then(|state| state.versions().find(|(name, _)| *name == version)?.1.layout());
    if own.is_some() && own == layout {
        return Ok(());
    }
    let who = &machine.address;
    Err(format!("Z5: {who} gives {version} as {layout:?}, and its own source has it as {own:?}"))
}

/// S18: a partition of what clients get is let go only while another has it, or died so lately that nobody can have heard.
pub fn let_go(
    machines: &[Machine],
    node: usize,
    (version, partition): (&VersionName, u32),
    now: u64,
) -> Result<(), String> {
    let has = |versions: &Versions| versions.get(version).is_some_and(|(_, here)| here.contains(&partition));
    let others = machines.iter().enumerate().filter(|(other, _)| *other != node);
    let mut seen_to_have = others.filter(|(_, machine)| {
        let died_with_it = machine.fell.as_ref().is_some_and(|(at, had)| at + UNHEARD_MS > now && has(had));
        (machine.is_up() && has(&machine.disk.versions)) || died_with_it
    });
    let mut serving = machines.iter().filter(|machine| machine.catalogue.serving.as_ref() == Some(version));
    if seen_to_have.next().is_some() || serving.next().is_none() {
        return Ok(());
    }
    let who = &machines[node].address;
    Err(format!("S18: {who} lets partition {partition} of {version} go, the last one"))
}

/// S14: what is remembered as served only goes forward.
pub fn remembered(before: Option<&Served>, now: Option<&Served>) -> Result<(), String> {
    match (before, now) {
        (Some(before), Some(now)) if now < before => Err(format!("S14: {now:?} after {before:?}")),
        _ => Ok(()),
    }
}

/// S12: what is published of a version is here, in that layout.
pub fn published(machine: &Machine, version: &VersionName) -> Result<(), String> {
    let Some((layout, held)) = machine.held.get(version) else { return Ok(()) };
    let here = machine.disk.versions.get(version);
    if here.is_some_and(|(known, here)| known == layout && held.is_subset(here)) {
        return Ok(());
    }
    let who = &machine.address;
    Err(format!("S12: {who} publishes {held:?} of {version} as {layout:?}, and has {here:?}"))
}

/// S12: the driver publishes nothing that the mind has withdrawn.
pub fn follows(machine: &Machine, dataset: &DatasetName) -> Result<(), String> {
    let Some(mind) = &machine.mind else { return Ok(()) };
    for (version, (_, held)) in &machine.held {
        let is_withdrawn = |partition: &&u32| {
            let key = Key::Partition(dataset.clone(), version.clone(), **partition);
            !mind.published().contains_key(&key)
        };
        if let Some(partition) = held.iter().find(is_withdrawn) {
            let who = &machine.address;
            return Err(format!(
                "S12: the driver of {who} still publishes partition {partition} of {version}"
            ));
        }
    }
    Ok(())
}

/// S15: a version goes when no client reads from it and none has asked for it in a long time.
pub fn retired(machine: &Machine, version: &VersionName, now: u64) -> Result<(), String> {
    let (who, catalogue) = (&machine.address, &machine.catalogue);
    let readers = catalogue.in_flight.get(version).copied().unwrap_or_default();
    if readers > 0 {
        return Err(format!("S15: {who} lets {version} go while {readers} read from it"));
    }
    let last = catalogue.shown.get(version).map_or(0, |entry| entry.last_request);
    if last > 0 && last + machine.settings.keep_ms > now {
        return Err(format!("S15: {who} lets {version} go, asked for {} ms ago", now - last));
    }
    if catalogue.serving.as_ref() == Some(version) {
        return Err(format!("S15: {who} lets {version} go, which its clients get"));
    }
    Ok(())
}
