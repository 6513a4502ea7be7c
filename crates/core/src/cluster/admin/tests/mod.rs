//! Commands against a small test cluster of obedient workers: each does at once what it is ordered to.
//!
//! [`AdminTestCluster::done`] runs every command as a dry run first and [`AdminTestCluster::refused`] looks at the whole state,
//! so each test of a command is also a test that dry runs and refusals change nothing.

mod dry_run;
mod keyspaces;
mod nodes;
mod plans;
mod queries;
mod room;
mod shards;

use super::*;
use crate::base::id::Incarnation;
use crate::base::name::{PartitionName, Zone};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::{Records, ShardRule};
use crate::keyspace::hash::HashFunction;
use crate::keyspace::key::Key;
use crate::keyspace::lifecycle::ReplicaState;
use crate::keyspace::sharding::Sharding;
use crate::keyspace::{Constraint, Keyspace, Mode, Resharding, Spread};
use crate::node::NodeSpec;
use crate::node::exchange::Registration;
use crate::node::exchange::{Beat, Order, Phase, Report};
use crate::node::load::Load;
use crate::plan::Status;
use std::collections::{BTreeMap, BTreeSet};

pub(in crate::cluster) fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

pub(in crate::cluster) fn name(name: &str) -> KeyspaceName {
    KeyspaceName::new(name).unwrap()
}

pub(in crate::cluster) fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

fn partitions(names: &[&str]) -> Vec<PartitionName> {
    names.iter().map(|name| PartitionName::new(name).unwrap()).collect()
}

const HASHES: Sharding = Sharding::HashRange { hash: HashFunction::Xxh3_64 };

pub(in crate::cluster) struct AdminTestCluster {
    pub cluster: Cluster,
    pub at: Moment,
    /// What a driver would have on its disk.
    pub records: Records,
    /// Nodes whose process runs, with their incarnation and last beat.
    alive: BTreeMap<NodeId, (Incarnation, u64)>,
    /// Nodes whose loads and unloads fail.
    broken: BTreeSet<NodeId>,
    /// Loads that are reported by shard.
    loads: BTreeMap<ShardId, Load>,
    draws: u8,
}

impl AdminTestCluster {
    /// Nodes in zones "z0", "z1", "z0" …
    pub fn new(names: &[&str]) -> AdminTestCluster {
        let at = Moment { now: Millis(1_000), wall_ms: 1_700_000_000_000 };
        let cluster = Cluster::recover(at, Settings::default(), Records::default()).unwrap();
        let (alive, broken, loads) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let mut test =
            AdminTestCluster { cluster, at, records: Records::default(), alive, broken, loads, draws: 0 };
        names.iter().enumerate().for_each(|(i, name)| test.start(name, i));
        test.rounds(1);
        test
    }

    pub fn start(&mut self, id: &str, number: usize) {
        let mut spec = NodeSpec::new(node(id), format!("127.0.0.1:{}", 7_000 + number));
        spec.zone = Some(Zone::new(&format!("z{}", number % 2)).unwrap());
        let welcome = self.cluster.register(self.at, Registration::new(spec)).unwrap();
        self.alive.insert(node(id), (welcome.incarnation, 0));
    }

    pub fn kill(&mut self, id: &str) {
        self.alive.remove(&node(id));
    }

    pub fn transaction(&mut self) -> TransactionId {
        self.draws = self.draws.wrapping_add(1);
        TransactionId([self.draws; 20])
    }

    /// Everybody beats and the cluster decides, so often, 500 ms apart.
    pub fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.at.now = self.at.now + 500;
            self.at.wall_ms += 500;
            let ids: Vec<_> = self.alive.keys().cloned().collect();
            for (id, incarnation, ..) in self.cluster.checks_due(self.at.now) {
                self.cluster.checked_back(self.at, &id, incarnation, self.alive.contains_key(&id));
            }
            ids.iter().for_each(|id| self.beat(id));
            let transaction = self.transaction();
            self.cluster.decide(self.at, transaction);
            self.flush();
        }
    }

    fn beat(&mut self, id: &NodeId) {
        let orders = self.cluster.orders_since(id, 0, None).unwrap();
        let reports = orders.changed.iter().map(|order| self.obey(id, order)).collect();
        let (incarnation, sequence) = self.alive.get_mut(id).unwrap();
        *sequence += 1;
        let beat = Beat {
            session: crate::base::id::SessionDigest::default(),
            node: id.clone(),
            incarnation: *incarnation,
            sequence: *sequence,
            sent_at: self.at.now,
            applied: orders.version,
            sent: 0,
            whole: true,
            reports,
            leaving: Some(false),
            busy: 0.0,
            lease_expired: false,
            disk: Default::default(),
        };
        self.cluster.beat(self.at, beat).unwrap();
    }

    fn obey(&self, id: &NodeId, order: &Order) -> Report {
        let phase = match order.state {
            ReplicaState::Load | ReplicaState::Unload if self.broken.contains(id) => {
                Phase::failed(1, "disk full".into())
            }
            ReplicaState::Load => Phase::Ready,
            ReplicaState::Live if order.granted => Phase::Serving,
            ReplicaState::Live => Phase::Ready,
            ReplicaState::Unload => Phase::Unloaded,
            ReplicaState::UnloadFinal => Phase::Dropped,
        };
        let load = self.loads.get(&order.replica.shard).cloned();
        let (epoch, progress) = (order.epoch, 0);
        Report {
            replica: order.replica.clone(),
            phase,
            epoch,
            load,
            progress,
            served: None,
            replication: None,
        }
    }

    /// Takes what is to be written to the disk.
    pub fn flush(&mut self) -> super::super::Outbox {
        let outbox = self.cluster.take_outbox();
        outbox.writes.iter().for_each(|write| store(&mut self.records, write));
        outbox
    }

    pub fn run(&mut self, command: Command, dry_run: bool) -> Result<Answer, AdminError> {
        let transaction = self.transaction();
        match dry_run {
            true => self.cluster.clone().dry_run(self.at, transaction, "ada", command),
            false => self.cluster.command(self.at, transaction, "ada", command),
        }
    }

    /// Carries out a command, first as a dry run, which must say the same and change nothing.
    pub fn done(&mut self, command: Command) -> Answer {
        let before = format!("{:?}", self.cluster);
        let dry = self.run(command.clone(), true).unwrap_or_else(|e| panic!("{command:?}: {e}"));
        assert_eq!(before, format!("{:?}", self.cluster), "the dry run of {command:?} changed something");
        let answer = self.run(command, false).unwrap();
        assert!(dry.dry_run && !answer.dry_run);
        assert_eq!(dry.summary, answer.summary);
        assert!(dry.warnings.starts_with(&answer.warnings), "{dry:?}\n{answer:?}");
        assert_eq!(dry.plan, answer.plan);
        self.flush();
        self.check_disk();
        answer
    }

    /// Expects a refusal that says `needle`, and that nothing has changed.
    pub fn refused(&mut self, command: Command, kind: Kind, needle: &str) {
        let before = format!("{:?}", self.cluster);
        for dry_run in [true, false] {
            let error = match self.run(command.clone(), dry_run) {
                Err(error) => error,
                Ok(answer) => panic!("{command:?} was not refused: {answer:?}"),
            };
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(needle), "{error:?} does not say {needle:?}: {error}");
            assert_eq!(
                before,
                format!("{:?}", self.cluster),
                "{command:?} was refused and changed something"
            );
        }
    }

    /// What is durable gives the same cluster back.
    fn check_disk(&self) {
        let back = Cluster::recover(self.at, Settings::default(), self.records.clone()).unwrap();
        let maps = |cluster: &Cluster| -> Vec<_> {
            cluster.keyspaces.by_name.values().map(|k| (k.record.clone(), k.map.clone())).collect()
        };
        assert_eq!(maps(&back), maps(&self.cluster));
        let nodes = |cluster: &Cluster| -> Vec<_> {
            cluster.members.nodes.values().map(|n| n.record.clone()).collect()
        };
        assert_eq!(nodes(&back), nodes(&self.cluster));
        assert_eq!(back.record, self.cluster.record);
        assert_eq!(
            back.plans.by_id.keys().collect::<Vec<_>>(),
            self.cluster.plans.by_id.keys().collect::<Vec<_>>()
        );
    }

    /// A keyspace that nobody but a person changes.
    pub fn keyspace(&mut self, of: &str, sharding: Sharding, presplit: Presplit) {
        let keyspace = Keyspace { mode: Mode::Manual, ..settings(of, sharding) };
        self.done(Command::CreateKeyspace { keyspace: Box::new(keyspace), presplit, ahead: false });
    }

    /// Puts a shard on nodes, the first of which leads.
    pub fn put(&mut self, of: &str, shard: u64, nodes: &[&str]) {
        for id in nodes {
            let (keyspace, shard, node) = (name(of), ShardId(shard), node(id));
            self.done(Command::AddReplica { keyspace, shard, node });
            self.rounds(3);
        }
    }

    pub fn shard(&self, of: &str, shard: u64) -> &Shard {
        self.cluster.keyspaces.by_name[&name(of)].map.shard(ShardId(shard)).unwrap()
    }

    /// Where a shard is, the leader's node first.
    pub fn homes(&self, of: &str, shard: u64) -> Vec<String> {
        let mut replicas: Vec<_> = self.shard(of, shard).replicas.iter().collect();
        replicas.sort_by_key(|r| (r.role, r.placement));
        replicas.into_iter().map(|r| r.node.to_string()).collect()
    }
}

/// Settings with a policy that is there in every build.
pub(in crate::cluster) fn settings(of: &str, sharding: Sharding) -> Keyspace {
    Keyspace { policy: "work_stealing".into(), ..Keyspace::new(name(of), sharding) }
}

/// What a driver does with a write.
fn store(records: &mut Records, write: &Write) {
    match write.clone() {
        Write::Cluster(record) => records.cluster = record,
        Write::Keyspace(record) => {
            let of = &record.keyspace;
            match records.keyspaces.iter_mut().find(|(r, _)| r.keyspace.name == of.name) {
                Some((old, _)) => *old = record,
                None => {
                    let map =
                        crate::keyspace::map::ShardMap::empty(of.name.clone(), of.sharding, of.partition_key);
                    records.keyspaces.push((record, map));
                    records.keyspaces.sort_by(|(a, _), (b, _)| a.keyspace.name.cmp(&b.keyspace.name));
                }
            }
        }
        Write::DropKeyspace(name) => records.keyspaces.retain(|(r, _)| r.keyspace.name != name),
        Write::Map(diff) => {
            let (_, map) =
                records.keyspaces.iter_mut().find(|(_, map)| *map.keyspace() == diff.keyspace).unwrap();
            map.apply(&diff).unwrap();
        }
        Write::Node(record) => {
            records.nodes.retain(|old| old.spec.id != record.spec.id);
            records.nodes.push(record);
        }
        Write::DropNode(id) => records.nodes.retain(|old| old.spec.id != id),
        Write::Plan(plan) => {
            records.plans.retain(|old| old.id != plan.id);
            records.plans.push(plan);
        }
        Write::DropPlan(id) => records.plans.retain(|old| old.id != id),
    }
}
