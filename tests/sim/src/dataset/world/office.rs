//! A coordinator, as dataset nodes know one: it orders shards, mostly made before broken, and now and then not. And the
//! keyspace, which follows what the source says of replication, as nodes tell of it, and what a person says by hand.

use super::{Happening, OWN, World};
use crate::draw::Draw;
use partage_core::base::planted::{self, Planted};
use partage_core::keyspace::Keyspace;
use partage_core::keyspace::sharding::Slot;
use partage_service::dataset::node::{Event, Layout, Readiness};
use partage_service::dataset::shards::{self, Upkeep, Wanted, partitions_of, upkeep};
use partage_service::dataset::{DatasetName, Partitioner, VersionName};
use std::collections::{BTreeMap, BTreeSet};

/// Most shards of the keyspace.
const SHARDS: u32 = 24;

/// A simulated coordinator as dataset nodes know one, with one keyspace and the nodes that are to have its shards.
#[derive(Debug)]
pub struct Office {
    shards: u32,
    keyspace: Keyspace,
    /// What the source says of replication.
    says: u32,
    /// What a person has said last, where that holds.
    by_hand: Option<u32>,
    /// What each node has told of it, in this life.
    told: BTreeMap<usize, (u64, u32)>,
    /// The nodes that are to have each shard, in which life: a restart ends it.
    given: BTreeMap<u32, BTreeMap<usize, u64>>,
}

impl Office {
    pub fn new(dataset: &DatasetName, shards: u32, says: u32) -> Office {
        let layout = Layout { partitioner: Partitioner::JavaBytes, partitions: shards, digest: OWN };
        let keyspace = shards::keyspace(dataset, layout, says).expect("a name of a keyspace");
        let given = (0..shards).map(|shard| (shard, BTreeMap::new())).collect();
        Office { shards, keyspace, says, by_hand: None, told: BTreeMap::new(), given }
    }

    fn slot(&self, shard: u32) -> Slot {
        Slot::new(shard, self.shards).expect("below the number of shards")
    }

    /// A node tells what it has read, late perhaps.
    fn hear(&mut self, said: u32) {
        let wanted = Wanted::There { keyspace: Box::new(self.keyspace.clone()), said: Some(said) };
        if upkeep(wanted, Some(&self.keyspace)) == Upkeep::Tell(said) {
            self.keyspace = self.keyspace.following(said);
            // Of one mind with the settings again, and whoever set it has nothing of their own any more.
            self.by_hand = self.by_hand.filter(|replicas| *replicas != said);
            if planted::is(Planted::Theirs) {
                self.keyspace.replicas = said;
            }
        }
    }

    /// A person sets the replicas.
    fn set(&mut self, replicas: u32) {
        self.by_hand = (self.keyspace.dataset_replication != Some(replicas)).then_some(replicas);
        self.keyspace.replicas = replicas;
    }

    /// A person has shards split or merged, all at a time: parts of a shard are where it was, and what is joined is where
    /// one of its parts was.
    fn reshard(&mut self, draw: &mut Draw) {
        let factor = draw.between(2, 4) as u32;
        let before = std::mem::take(&mut self.given);
        let to = match self.shards.is_multiple_of(factor) && draw.chance(500) {
            true => self.shards / factor,
            false if self.shards * factor <= SHARDS => self.shards * factor,
            false => self.shards,
        };
        self.given = (0..to).map(|shard| (shard, before[&(shard % self.shards)].clone())).collect();
        self.shards = to;
    }

    fn slots_of(&self, node: usize) -> BTreeSet<Slot> {
        let of = |(shard, nodes): (&u32, &BTreeMap<usize, u64>)| {
            nodes.contains_key(&node).then(|| self.slot(*shard))
        };
        self.given.iter().filter_map(of).collect()
    }
}

impl World {
    /// The office looks at its shards, and sends orders to the nodes that get others.
    pub(super) fn plan(&mut self) {
        self.soon(300, 3_000, Happening::Plan);
        if self.is_office_away() {
            return;
        }
        let Some(mut office) = self.office.take() else { return };
        let mut told = BTreeSet::new();
        let replicas = self.machines.len().min(office.keyspace.replicas as usize);
        for shard in 0..office.shards {
            let slot = office.slot(shard);
            let mut nodes = office.given.remove(&shard).unwrap_or_default();
            nodes.retain(|node, life| self.machines[*node].is_up() && self.machines[*node].life == *life);
            if !self.is_calm && self.draw.chance(10) {
                // All of them lose it at once: none was asked whether another has it.
                told.extend(nodes.keys().copied());
                nodes.clear();
            }
            let is_moved = !self.is_calm && nodes.len() == replicas && self.draw.chance(60);
            if nodes.len() < replicas || is_moved {
                told.extend(self.give(&mut nodes));
            }
            let ready: Vec<usize> = nodes.keys().copied().filter(|node| self.is_ready(*node, slot)).collect();
            if nodes.len() > replicas && ready.len() > replicas {
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

    fn is_office_away(&self) -> bool {
        self.now < self.office_away
    }

    /// S18: with no coordinator in their life, nodes have what goes with the shards that they had, of what clients get and
    /// of what they get next.
    pub(super) fn all_went_on(&mut self, wanted: Option<&VersionName>) -> Result<(), String> {
        let Some((name, written)) = wanted.and_then(|name| self.source.get_key_value(name)) else {
            return Ok(());
        };
        for machine in &self.machines {
            let ordered = partitions_of(&machine.disk.slots, written.layout.partitions);
            let here = machine.disk.versions.get(name).map(|(_, here)| here.clone()).unwrap_or_default();
            if !ordered.is_subset(&here) {
                let who = &machine.address;
                return Err(format!("S18: {who} remembers {ordered:?} of {name}, and has {here:?}"));
            }
            self.outcome.went_on += u64::from(!ordered.is_empty());
        }
        Ok(())
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
        if self.is_office_away() && self.machines[node].life == life {
            self.soon(500, 2_000, Happening::Ordered(node, life));
            return Ok(());
        }
        let Some(office) = self.office.as_ref().filter(|_| self.machines[node].life == life) else {
            return Ok(());
        };
        let event = Event::ShardsOrdered(self.dataset.clone(), office.slots_of(node));
        self.tell(node, event)
    }

    /// The settings in the source change, or a person changes the keyspace.
    pub(super) fn change_keyspace(&mut self) {
        if self.is_calm {
            return;
        }
        self.soon(10_000, 60_000, Happening::Keyspace);
        if self.is_office_away() {
            return;
        }
        // With fewer than must have a version, none would get whole.
        let (least, most) = (self.machines[0].settings.spread.replication.min, self.machines.len() as u64);
        let replicas = self.draw.between(u64::from(least), most + 1) as u32;
        let Some(office) = &mut self.office else { return };
        match self.draw.between(0, 4) {
            0 | 1 => office.says = replicas,
            2 => office.set(replicas),
            _ => office.reshard(&mut self.draw),
        }
        for node in 0..self.machines.len() {
            let life = self.machines[node].life;
            self.soon(5, 800, Happening::Ordered(node, life));
        }
    }

    /// A node has looked at the source: what it read, and has not told yet, it tells. The answer may be lost.
    pub(super) fn tell_settings(&mut self, node: usize) {
        let life = self.machines[node].life;
        let Some(office) = &self.office else { return };
        let said = office.says;
        if office.told.get(&node) != Some(&(life, said)) {
            self.soon(5, 4_000, Happening::Told(node, life, said));
        }
    }

    /// It arrives, whatever has become of the node that told it.
    pub(super) fn told_settings(&mut self, node: usize, life: u64, said: u32) {
        let is_away = self.is_office_away();
        let Some(office) = self.office.as_mut().filter(|_| !is_away) else { return };
        office.hear(said);
        if !self.draw.chance(100) {
            office.told.insert(node, (life, said));
        }
    }

    /// S18: long after the last fault every shard is where it was ordered, as often as was asked for, and nowhere else.
    pub(super) fn all_is_as_ordered(&self) -> Result<(), String> {
        let Some(office) = &self.office else { return Ok(()) };
        let replicas = self.machines.len().min(office.keyspace.replicas as usize);
        for (shard, nodes) in &office.given {
            if nodes.len() != replicas {
                return Err(format!("S18: shard {shard} is at {nodes:?}, and not at {replicas}"));
            }
        }
        let Office { says, by_hand, keyspace, .. } = office;
        if keyspace.replicas != by_hand.unwrap_or(*says) {
            let now = (keyspace.replicas, keyspace.dataset_replication);
            return Err(format!(
                "S18: the source says {says}, a person {by_hand:?}, and replicas are {now:?}"
            ));
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
