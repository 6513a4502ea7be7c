//! What coordinators keep durable, and who of them leads: the contract of the coordination crate in its
//! outlines. A transaction is all or nothing, and refused to whoever's term is not the latest (O10).

use crate::clock::True;
use partage_core::cluster::{Records, Write};
use partage_core::map::ShardMap;
use partage_core::planted::{self, Planted};

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// Durable.
    Yes,
    /// Not durable, and the coordinator is told so.
    No,
    /// Another leads under a later term; not durable.
    Deposed,
}

/// The store.
#[derive(Debug, Default)]
pub struct Store {
    /// What is durable.
    pub records: Records,
    /// The latest term.
    pub term: u64,
    /// Until when, in true time, the leader's session lives if it is not renewed.
    session: Option<(u64, True)>,
}

impl Store {
    /// Takes the lead if nobody has it. Gives the term.
    pub fn try_lead(&mut self, now: True, ttl: True) -> Option<u64> {
        if self.session.is_some_and(|(_, end)| now < end) {
            return None;
        }
        self.term += 1;
        self.session = Some((self.term, now + ttl));
        Some(self.term)
    }

    /// Renews the session of `term`, if it still lives.
    pub fn renew(&mut self, now: True, term: u64, ttl: True) -> bool {
        match &mut self.session {
            Some((leader, end)) if *leader == term && now < *end => {
                *end = now + ttl;
                true
            }
            _ => false,
        }
    }

    /// Ends the session of `term`.
    pub fn resign(&mut self, term: u64) {
        self.session = self.session.filter(|(leader, _)| *leader != term);
    }

    /// Makes `writes` durable. A map that does not follow the last one is given back as the reason why not.
    pub fn commit(&mut self, term: u64, writes: &[Write]) -> Result<Committed, String> {
        if term != self.term && !planted::is(Planted::O10) {
            return Ok(Committed::Deposed);
        }
        writes.iter().try_for_each(|write| self.apply(write))?;
        Ok(Committed::Yes)
    }

    fn apply(&mut self, write: &Write) -> Result<(), String> {
        let records = &mut self.records;
        match write {
            Write::Cluster(record) => records.cluster = record.clone(),
            Write::Keyspace(record) => {
                let name = &record.keyspace.name;
                match records.keyspaces.iter_mut().find(|(r, _)| r.keyspace.name == *name) {
                    Some((held, _)) => *held = record.clone(),
                    None => {
                        let settings = &record.keyspace;
                        let map = ShardMap::empty(name.clone(), settings.sharding, settings.partition_key);
                        records.keyspaces.push((record.clone(), map));
                    }
                }
            }
            Write::DropKeyspace(name) => records.keyspaces.retain(|(r, _)| r.keyspace.name != *name),
            Write::Map(diff) => {
                let of_it = |(record, _): &&mut (_, ShardMap)| {
                    let record: &partage_core::cluster::KeyspaceRecord = record;
                    record.keyspace.name == diff.keyspace
                };
                let Some((_, map)) = records.keyspaces.iter_mut().find(of_it) else {
                    return Err(format!("a map of {}, which is no keyspace", diff.keyspace));
                };
                map.apply(diff).map_err(|error| error.to_string())?;
            }
            Write::Node(node) => match records.nodes.iter_mut().find(|held| held.spec.id == node.spec.id) {
                Some(held) => *held = node.clone(),
                None => records.nodes.push(node.clone()),
            },
            Write::DropNode(id) => records.nodes.retain(|held| held.spec.id != *id),
            Write::Plan(plan) => match records.plans.iter_mut().find(|held| held.id == plan.id) {
                Some(held) => *held = plan.clone(),
                None => records.plans.push(plan.clone()),
            },
            Write::DropPlan(id) => records.plans.retain(|held| held.id != *id),
        }
        Ok(())
    }
}
