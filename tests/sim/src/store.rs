//! What coordinators keep durable, their sessions, and which of them leads: the contract of the coordination crate in
//! its outlines. A transaction is all or nothing, and refused to a leader whose term is not the latest (O10). A session
//! ends for all only after its owner's own deadline (C4), also when all of them end at once: the store is deaf for so
//! long first, as a backend is that has lost its sessions.

use crate::clock::{MS, SECOND, True};
use crate::draw::Draw;
use crate::touched::Touched;
use partage_core::base::id::ClusterId;
use partage_core::base::planted::{self, Planted};
use partage_core::cluster::{Records, Write};
use partage_core::keyspace::map::ShardMap;
use std::collections::BTreeMap;

/// How long a session lives without being renewed.
pub const SESSION: True = 2 * SECOND;

/// How the store fares with one coordinator. In thousandths of all transactions, and microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk {
    /// Transactions that fail, and say so.
    pub fails: u64,
    /// Transactions that end in a way that no coordinator is told, done or not; elections and renewals too.
    pub unknown: u64,
    /// How long a transaction usually takes.
    pub takes: True,
}

impl Disk {
    /// A store in which no transaction fails.
    pub const FAIR: Disk = Disk { fails: 0, unknown: 0, takes: 500 };

    /// A good one that takes a hundred times as long.
    pub const SLOW: Disk = Disk { takes: 100 * Disk::FAIR.takes, ..Disk::FAIR };

    /// A bad store, as chance has it.
    pub fn drawn(draw: &mut Draw) -> Disk {
        Disk {
            fails: draw.between(0, 100),
            unknown: draw.between(0, 100),
            takes: draw.between(200, 100 * MS),
        }
    }
}

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Committed {
    /// The transaction is durable.
    Yes,
    /// Not durable, and the coordinator is told so.
    No,
    /// Another leads under a later term; not durable.
    Deposed,
}

/// A session: of which coordinator, and which of its own.
pub type Session = (usize, u64);

/// The answer to a coordinator that asks for its session and for the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attended {
    /// It has a session from now on.
    Opened,
    /// Its session is over.
    Expired,
    /// It leads, under this term.
    Leads(u64),
    /// Another coordinator leads: that one.
    StandsBy(usize),
}

/// What coordinators share: records, sessions, and which of them leads.
#[derive(Debug, Default)]
pub struct Store {
    /// The records that are durable.
    pub records: Records,
    /// The latest term that was given.
    pub term: u64,
    /// Which cluster it says that this is.
    pub cluster: ClusterId,
    /// What operators have done to it.
    pub touched: Touched,
    /// It answers no coordinator for a while.
    pub is_away: bool,
    /// What it was asked to make durable, and how often it was asked for a session.
    pub asked: Asked,
    /// Until when, in true time, each session lives if it is not renewed.
    sessions: BTreeMap<Session, True>,
    leader: Option<(Session, u64)>,
}

/// Counts what reaches the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    /// Transactions that were asked for.
    pub commits: u64,
    /// Sessions opened, renewed, and elections.
    pub sessions: u64,
}

impl Store {
    /// The store of a cluster that begins with `records`, in which no coordinator has a session.
    pub fn of(cluster: ClusterId, term: u64, records: Records) -> Store {
        Store { cluster, term, records, ..Store::default() }
    }

    /// Opens a session, or renews it and takes the lead if no coordinator has it.
    pub fn attend(&mut self, now: True, session: Session, opens: bool) -> Attended {
        self.asked.sessions += 1;
        self.sessions.retain(|_, end| now < *end);
        if !opens && !self.sessions.contains_key(&session) {
            return Attended::Expired;
        }
        self.sessions.insert(session, now + SESSION);
        if opens {
            return Attended::Opened;
        }
        match self.leader.filter(|(leader, _)| self.sessions.contains_key(leader)) {
            Some((leader, term)) if leader == session => Attended::Leads(term),
            Some((leader, _)) => Attended::StandsBy(leader.0),
            None => {
                self.term += 1;
                self.leader = Some((session, self.term));
                Attended::Leads(self.term)
            }
        }
    }

    /// The key that says which coordinator leads is gone.
    pub fn depose(&mut self) {
        self.leader = None;
    }

    /// Ends a session, and with it the lead.
    pub fn end(&mut self, session: Session) {
        self.sessions.remove(&session);
    }

    /// Is there again. Its sessions go on as if no time had passed; or they are over, all at once.
    pub fn comes_back(&mut self, now: True, survive: bool) {
        self.is_away = false;
        if survive {
            self.sessions.values_mut().for_each(|end| *end = now + SESSION);
        } else {
            self.sessions.clear();
        }
    }

    /// Makes `writes` durable. A map that does not follow the last one is given back as the reason why not.
    pub fn commit(&mut self, term: u64, writes: &[Write]) -> Result<Committed, String> {
        self.asked.commits += 1;
        let is_deposed = term != self.term || self.touched.deposes(term);
        if is_deposed && !planted::is(Planted::O10) {
            return Ok(Committed::Deposed);
        }
        if self.touched.refuses(term, writes) {
            return Ok(Committed::No);
        }
        writes.iter().try_for_each(|write| self.apply(write))?;
        self.touched.committed(term);
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
