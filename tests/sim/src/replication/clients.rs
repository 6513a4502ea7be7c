//! Clients: each does one thing after the other, and asks another replica when it is refused.

use crate::clock::{MS, SECOND, True};
use crate::replication::engine::{Change, Key, Value};
use crate::replication::world::{Happening, World};
use partage_core::base::id::PlacementId;
use partage_service::table::replication::{Answer, Consistency, Failed, Request};
use std::collections::BTreeMap;

/// How long a client waits for an answer.
const PATIENCE: True = 5 * SECOND;

/// The longest that an operation takes when nothing is wrong.
const PROMPT: True = SECOND;

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub enum Asked {
    Change(Change),
    Read(Key, Consistency),
}

impl Asked {
    pub fn key(self) -> Key {
        match self {
            Asked::Change(change) => change.key(),
            Asked::Read(key, _) => key,
        }
    }
}

/// One operation of a client.
#[derive(Debug, Clone)]
pub struct Operation {
    pub client: usize,
    pub shard: usize,
    pub asked: Asked,
    pub begun: True,
    /// What had been seen of the key when it began.
    pub floor: u64,
    pub is_over: bool,
}

#[derive(Debug)]
pub struct Client {
    /// The node that it takes for the leader of each shard.
    leaders: Vec<Option<PlacementId>>,
    /// What it believes of counters.
    counters: BTreeMap<(usize, Key), u64>,
}

impl Client {
    pub fn new(shards: usize) -> Client {
        Client { leaders: vec![None; shards], counters: BTreeMap::new() }
    }
}

impl World {
    pub(super) fn client_acts(&mut self, client: usize) {
        let shard = self.draw.index(self.weather.shards);
        let request = self.operations.len() as u64 + 1;
        let (kind, number) = (self.draw.between(0, 3), self.draw.between(0, 3) as Key);
        let key = kind as Key * 16 + number;
        let expected = self.clients[client].counters.get(&(shard, key)).copied().unwrap_or(0);
        let asked = match self.draw.between(0, 100) {
            0..50 => Asked::Change(match kind {
                0 => Change::Set(key, request),
                1 => Change::Append(key, request),
                _ => Change::CompareAndSet(key, expected),
            }),
            50..78 => Asked::Read(key, Consistency::Linearizable),
            78..93 => Asked::Read(key, Consistency::Bounded(self.draw.between(1, 20) * 100)),
            _ => Asked::Read(key, Consistency::Any),
        };
        self.begin(client, shard, asked);
    }

    /// It writes to that shard, and knows which node leads it.
    pub(super) fn client_writes(&mut self, client: usize, shard: usize) {
        let (key, value) = (self.draw.between(0, 3) as Key, self.operations.len() as u64 + 1);
        self.clients[client].leaders[shard] = Some(self.coordinator.maps[shard].leader);
        self.begin(client, shard, Asked::Change(Change::Set(key, value)));
    }

    fn begin(&mut self, client: usize, shard: usize, asked: Asked) {
        let request = self.operations.len() as u64 + 1;
        let floor = self.oracle.floor(shard, asked.key());
        let operation = Operation { client, shard, asked, begun: self.now, floor, is_over: false };
        self.operations.insert(request, operation);
        self.after(PATIENCE, Happening::TimedOut(request));
        self.ask(request);
    }

    /// Sends it to a replica: as a rule to the one that it takes for the leader; a read that need not be fresh to any.
    fn ask(&mut self, request: Request) {
        let Operation { client, shard, asked, .. } = self.operations[&request];
        let peers: Vec<_> = self.coordinator.maps[shard].peers.iter().map(|peer| peer.placement).collect();
        let is_anybodys = matches!(asked, Asked::Read(_, Consistency::Bounded(_) | Consistency::Any))
            && self.must_serve.is_none();
        let known = self.clients[client].leaders[shard].filter(|_| !is_anybodys && !self.draw.chance(20));
        let Some(placement) = known.or(self.draw.pick(&peers).copied()) else { return };
        if let Some((node, _)) = self.places.get(&placement).copied() {
            let delay = self.draw.around(self.weather.delay);
            self.after(delay, Happening::Request { node, placement, request });
        }
    }

    /// An answer reaches the client.
    pub(super) fn answered(
        &mut self,
        request: Request,
        answer: Result<(Answer, Value), Failed>,
    ) -> Result<(), String> {
        let Some(operation) = self.operations.get(&request).filter(|operation| !operation.is_over).cloned()
        else {
            return Ok(());
        };
        let Operation { client, shard, asked, floor, .. } = operation;
        let key = asked.key();
        match answer {
            Ok((Answer::Written(at), value)) => {
                self.oracle.written(shard, key, at.index, floor)?;
                self.clients[client].counters.insert((shard, key), value.0.first().copied().unwrap_or(0));
            }
            Ok((Answer::Read { .. }, value)) => {
                let is_linearizable = matches!(asked, Asked::Read(_, Consistency::Linearizable));
                self.oracle.read(shard, key, &value, is_linearizable.then_some(floor))?;
                self.clients[client].counters.insert((shard, key), value.0.first().copied().unwrap_or(0));
                match asked {
                    Asked::Read(_, Consistency::Linearizable) => self.outcome.reads.0 += 1,
                    Asked::Read(_, Consistency::Bounded(_)) => self.outcome.reads.1 += 1,
                    _ => self.outcome.reads.2 += 1,
                }
            }
            Err(failed) => return self.refused(request, operation, failed),
        }
        self.ends(request, &operation)
    }

    fn refused(&mut self, request: Request, operation: Operation, failed: Failed) -> Result<(), String> {
        let Operation { client, shard, begun, .. } = operation;
        self.outcome.writes.1 += u64::from(!failed.is_definite());
        self.ends_soon(client, begun, failed.is_definite())?;
        match &failed {
            Failed::NotLeader(leader) => self.clients[client].leaders[shard] = *leader,
            // A follower is as old as the last append.
            Failed::TooOld => self.clients[client].leaders[shard] = None,
            _ if self.must_serve.is_some_and(|since| begun > since) => {
                return Err(format!("L1: nothing is wrong, and {:?} fails: {failed}", operation.asked));
            }
            _ => {}
        }
        // It tries again as long as it knows that nothing has happened. The parts of a larger request do not, before all have an
        // outcome.
        if failed.is_definite() && self.now < begun + PATIENCE && !self.writes_at_moves(client) {
            let delay = self.draw.around(10 * MS);
            self.after(delay, Happening::TimedOut(request + (1 << 40)));
            return Ok(());
        }
        self.ends(request, &operation)
    }

    /// It is over, well or not; the next one begins after a rest.
    fn ends(&mut self, request: Request, operation: &Operation) -> Result<(), String> {
        let took = self.now - operation.begun;
        if self.must_serve.is_some_and(|since| operation.begun > since) && took > PROMPT {
            return Err(format!("L1: nothing is wrong, and {:?} takes {} ms", operation.asked, took / MS));
        }
        self.ends_soon(operation.client, operation.begun, true)?;
        if let Some(operation) = self.operations.get_mut(&request) {
            operation.is_over = true;
        }
        if !self.writes_at_moves(operation.client) {
            let rest = self.rest();
            self.after(rest, Happening::Client(operation.client));
        }
        Ok(())
    }

    /// The client gives up: whether it was done is unknown. Or it is time to ask again.
    pub(super) fn timed_out(&mut self, request: Request) -> Result<(), String> {
        let (request, is_again) = (request & ((1 << 40) - 1), request >> 40 > 0);
        let Some(operation) = self.operations.get(&request).filter(|operation| !operation.is_over).cloned()
        else {
            return Ok(());
        };
        if is_again {
            self.ask(request);
            return Ok(());
        }
        self.clients[operation.client].leaders[operation.shard] = None;
        self.outcome.writes.1 += u64::from(matches!(operation.asked, Asked::Change(_)));
        self.ends(request, &operation)
    }
}
