//! A coordinator, as dataset nodes know one: it orders shards, mostly made before broken, and now and then not.

use super::{Happening, World};
use partage_core::dataset::node::{Event, Readiness};
use partage_core::dataset::shards::partitions_of;
use partage_core::sharding::Slot;
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Debug)]
pub struct Office {
    shards: u32,
    replicas: usize,
    /// Who is to have each shard, in which life: a restart ends it.
    given: BTreeMap<u32, BTreeMap<usize, u64>>,
}

impl Office {
    pub fn new(shards: u32, replicas: usize) -> Office {
        Office { shards, replicas, given: (0..shards).map(|shard| (shard, BTreeMap::new())).collect() }
    }

    fn slot(&self, shard: u32) -> Slot {
        Slot::new(shard, self.shards).expect("below the number of shards")
    }

    fn slots_of(&self, node: usize) -> BTreeSet<Slot> {
        let of = |(shard, nodes): (&u32, &BTreeMap<usize, u64>)| {
            nodes.contains_key(&node).then(|| self.slot(*shard))
        };
        self.given.iter().filter_map(of).collect()
    }
}

impl World {
    /// The office looks at its shards, and sends orders to those who get others.
    pub(super) fn plan(&mut self) {
        let Some(mut office) = self.office.take() else { return };
        self.soon(300, 3_000, Happening::Plan);
        let mut told = BTreeSet::new();
        for shard in 0..office.shards {
            let slot = office.slot(shard);
            let mut nodes = office.given.remove(&shard).unwrap_or_default();
            nodes.retain(|node, life| self.machines[*node].is_up() && self.machines[*node].life == *life);
            if !self.is_calm && self.draw.chance(10) {
                // All of them lose it at once: none was asked whether another has it.
                told.extend(nodes.keys().copied());
                nodes.clear();
            }
            let is_moved = !self.is_calm && nodes.len() == office.replicas && self.draw.chance(60);
            if nodes.len() < office.replicas || is_moved {
                told.extend(self.give(&mut nodes));
            }
            let ready: Vec<usize> = nodes.keys().copied().filter(|node| self.is_ready(*node, slot)).collect();
            if nodes.len() > office.replicas && ready.len() > office.replicas {
                let gone = self.draw.pick(&ready).copied();
                nodes.retain(|node, _| Some(*node) != gone);
                told.extend(gone);
            }
            office.given.insert(shard, nodes);
        }
        self.office = Some(office);
        for node in told {
            let life = self.machines[node].life;
            self.soon(5, 800, Happening::Ordered(node, life));
        }
    }

    /// One node more, if there is one.
    fn give(&mut self, nodes: &mut BTreeMap<usize, u64>) -> Option<usize> {
        let is_free = |node: &usize| self.machines[*node].is_up() && !nodes.contains_key(node);
        let free: Vec<usize> = (0..self.machines.len()).filter(is_free).collect();
        let node = *self.draw.pick(&free)?;
        nodes.insert(node, self.machines[node].life);
        Some(node)
    }

    fn is_ready(&self, node: usize, slot: Slot) -> bool {
        let mind = self.machines[node].mind.as_ref();
        mind.is_some_and(|mind| mind.readiness(&self.dataset, slot) == Readiness::Ready)
    }

    /// Orders arrive as they are by then: a worker hears the whole of what it is to have.
    pub(super) fn ordered(&mut self, node: usize, life: u64) -> Result<(), String> {
        let Some(office) = self.office.as_ref().filter(|_| self.machines[node].life == life) else {
            return Ok(());
        };
        let event = Event::Ordered(self.dataset.clone(), office.slots_of(node));
        self.tell(node, event)
    }

    /// S18: long after the last fault every shard is where it was ordered, as often as was asked for, and nowhere else.
    pub(super) fn all_is_as_ordered(&self) -> Result<(), String> {
        let Some(office) = &self.office else { return Ok(()) };
        for (shard, nodes) in &office.given {
            if nodes.len() != office.replicas {
                return Err(format!("S18: shard {shard} is at {nodes:?}, and not at {}", office.replicas));
            }
        }
        for (node, machine) in self.machines.iter().enumerate() {
            let Some(serving) = &machine.catalogue.serving else { continue };
            let Some(written) = self.source.get(serving) else { continue };
            let ordered = partitions_of(&office.slots_of(node), written.layout.partitions);
            let here = machine.disk.versions.get(serving).map(|(_, here)| here.clone()).unwrap_or_default();
            if here != ordered {
                let who = &machine.address;
                return Err(format!("S18: {who} has {here:?} of {serving}, and {ordered:?} was ordered"));
            }
        }
        Ok(())
    }
}
