//! A policy's input: shards, nodes, rules, and the current placement.

use crate::base::id::ShardId;
use crate::base::name::NodeId;
use crate::keyspace::sharding::nodes::SchemeError;
use crate::limits;
use std::sync::Arc;

/// Index of a shard in a [`Problem`], from 0.
pub type ShardIndex = u32;
/// Index of a node in a [`Problem`], from 0.
pub type NodeIndex = u32;

/// The zone or rack of a node that has none: shared with no other node.
pub const UNKNOWN_DOMAIN: u32 = u32::MAX;

/// One kind of load that is to be spread: requests per second, bytes, CPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// The word that sentences and tables show: "requests", "bytes".
    pub name: Arc<str>,
    /// How far above its share a node may stay: 0.05 lets it carry 1.05 times what its capacity entitles
    /// it to. Zero is allowed and rarely reachable.
    pub tolerance: f64,
    /// The part of a node's capacity that nothing new may exceed, if capacity is a hard limit for this
    /// metric (disk: 0.95). Without it a capacity is only a weight.
    pub limit: Option<f64>,
}

/// What may be done with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It takes new replicas.
    Accepts,
    /// It keeps what it has and gets nothing new: it is suspect or unreachable, say.
    Keeps,
    /// It is being drained. A replica that finds no other place stays, and is reported.
    Drains,
    /// It is lost, and its replicas with it.
    Gone,
}

/// A node as a policy sees it: its domains, and whether it takes replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeSpec {
    /// For people, and the only thing about a node that enters a hash: so the order of nodes in a problem
    /// does not matter to the policies that compute.
    pub name: NodeId,
    /// Its place among the nodes for `ring_index` (S11); nodes with one number take the same shards.
    pub ring_index: u32,
    /// Its larger failure domain: an index that the caller gives out, or [`UNKNOWN_DOMAIN`].
    pub zone: u32,
    /// Its smaller failure domain, numbered across zones, or [`UNKNOWN_DOMAIN`].
    pub rack: u32,
    /// Whether it takes, keeps or loses replicas.
    pub standing: Standing,
}

/// How strictly replicas of one shard go to different domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spread {
    /// Replicas may share a domain of this level.
    Ignore,
    /// Different domains where nodes allow it.
    #[default]
    Soft,
    /// Different domains always; a replica that finds none stays unplaced.
    Hard,
}

/// A kind of failure domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The smallest: one process.
    Node,
    /// A smaller failure domain: [`NodeSpec::rack`].
    Rack,
    /// A larger failure domain: [`NodeSpec::zone`].
    Zone,
}

/// A set of nodes of one problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSet {
    words: Vec<u64>,
}

impl NodeSet {
    /// The nodes for which `allowed` is true: has the labels, is among the pinned, is not excluded.
    pub fn of(nodes: usize, mut allowed: impl FnMut(NodeIndex) -> bool) -> NodeSet {
        let mut words = vec![0; nodes.div_ceil(64)];
        for node in 0..nodes {
            words[node / 64] |= u64::from(allowed(node as NodeIndex)) << (node % 64);
        }
        NodeSet { words }
    }

    /// Whether `node` is in the set.
    pub fn contains(&self, node: NodeIndex) -> bool {
        self.words.get(node as usize / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
    }

    /// How many nodes are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no node is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }
}

/// What must hold for the nodes of a shard. Shards share rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// The nodes that may hold it, or none for "any". Labels, pins and exclusions are resolved into this.
    pub nodes: Option<NodeSet>,
    /// Whether its replicas are in different zones.
    pub zone: Spread,
    /// Whether its replicas are in different racks.
    pub rack: Spread,
    /// Whether two replicas may be on one node when there is no other (A5: only if asked). Only
    /// `work_stealing` makes use of it.
    pub share_node: bool,
}

/// For each shard its nodes, the leader first.
///
/// Stored as one flat array of nodes and one of offsets, 4 bytes a replica and 4 a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    offsets: Vec<u32>,
    nodes: Vec<NodeIndex>,
}

impl Default for Placement {
    fn default() -> Self {
        Placement::with_capacity(0, 0)
    }
}

impl Placement {
    /// No shards, with room for so many.
    pub fn with_capacity(shards: usize, replicas: usize) -> Placement {
        let mut offsets = Vec::with_capacity(shards + 1);
        offsets.push(0);
        Placement { offsets, nodes: Vec::with_capacity(replicas) }
    }

    /// `shards` shards without replicas.
    pub fn nowhere(shards: usize) -> Placement {
        Placement { offsets: vec![0; shards + 1], nodes: Vec::new() }
    }

    /// Appends the next shard, with its nodes, the leader first.
    pub fn push(&mut self, nodes: impl IntoIterator<Item = NodeIndex>) {
        self.nodes.extend(nodes);
        self.offsets.push(self.nodes.len() as u32);
    }

    /// The nodes of a shard, the leader first.
    pub fn of(&self, shard: ShardIndex) -> &[NodeIndex] {
        &self.nodes[self.offsets[shard as usize] as usize..self.offsets[shard as usize + 1] as usize]
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.offsets.len() - 1
    }

    /// How many replicas there are in all.
    pub fn replicas(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes of each shard in turn.
    pub fn iter(&self) -> impl Iterator<Item = &[NodeIndex]> {
        self.offsets.windows(2).map(|ends| &self.nodes[ends[0] as usize..ends[1] as usize])
    }
}

impl<N: IntoIterator<Item = NodeIndex>> FromIterator<N> for Placement {
    fn from_iter<I: IntoIterator<Item = N>>(shards: I) -> Self {
        let mut placement = Placement::default();
        shards.into_iter().for_each(|nodes| placement.push(nodes));
        placement
    }
}

/// Numbers that steer policies; the defaults are the documented ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `work_stealing`: a node above this many times the average gives up the excess (A6).
    pub steal_above: f64,
    /// `work_stealing`: how many nodes are looked at in random order before giving up (A5).
    pub steal_tries: u32,
    /// `ring`: tokens of a node of average capacity.
    pub ring_tokens: u32,
    /// `balanced`: a node below this part of its share, in every metric, has just joined or come back and
    /// draws replicas until it has its share. 0 never draws.
    pub draw_below: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            steal_above: limits::STEAL_ABOVE,
            steal_tries: limits::STEAL_TRIES,
            ring_tokens: limits::RING_TOKENS,
            draw_below: limits::DRAW_BELOW,
        }
    }
}

/// All that a policy may look at. Arrays over shards are in shard order, arrays over nodes in node order.
#[derive(Debug, Clone)]
pub struct Problem {
    /// The kinds of load, the most important first. May be empty: then replicas are counted.
    pub metrics: Vec<Metric>,
    /// The nodes. Indexes are given out by the caller and mean nothing beyond this problem.
    pub nodes: Vec<NodeSpec>,
    /// Capacity of each node in each metric, node-major: `capacities[node * metrics.len() + metric]`.
    /// Weights the share a node gets (K11), and is in the metric's own unit where the metric has a limit.
    pub capacities: Vec<f64>,
    /// The ids of the shards, for people.
    pub shards: Vec<ShardId>,
    /// A hash of each shard's name that never changes, for the hash policies and for tie-breaks.
    pub hashes: Vec<u64>,
    /// Replicas wanted of each shard (K12: they may differ). 0 for a shard that is to be placed nowhere.
    pub replicas: Vec<u8>,
    /// The load that one replica of each shard puts on its node, shard-major:
    /// `loads[shard * metrics.len() + metric]`.
    pub loads: Vec<f64>,
    /// The load of other keyspaces on each node, which no decision changes. Node-major, as the capacities; empty for
    /// none.
    pub background: Vec<f64>,
    /// What a move of one replica costs, by shard; empty when all cost the same.
    pub bytes: Vec<u64>,
    /// Which of `rules` each shard follows; empty when all follow the first.
    pub rule_of: Vec<u32>,
    /// The rules; empty stands for one default rule.
    pub rules: Vec<Rule>,
    /// Where the replicas of each shard are now.
    pub current: Placement,
    /// Most moves for drains, forbidden places and imbalance: further ones wait for the next plan. Lost and missing
    /// replicas are placed regardless.
    pub budget: Option<u32>,
    /// Source of every "random" choice.
    pub seed: u64,
    /// Numbers that steer policies.
    pub settings: Settings,
}

/// Why a problem is nonsense. Each names the thing and the way out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say it")]
pub enum ProblemError {
    #[error("{array} has {found} entries where {expected} are needed: give one for each {each}")]
    Length { array: &'static str, found: usize, expected: usize, each: &'static str },
    #[error("{found} {what} are too many: the limit is {limit}; cut the keyspace in several")]
    TooMany { what: &'static str, found: usize, limit: usize },
    #[error("the {metric} load of shard {shard} is {load}: report a finite number, zero or more")]
    Load { shard: ShardId, metric: Arc<str>, load: f64 },
    #[error(
        "the {metric} load of other keyspaces on node {node} is {load}: give a finite number, zero or more"
    )]
    Background { node: NodeId, metric: Arc<str>, load: f64 },
    #[error(
        "the {metric} capacity of node {node} is {capacity}: set a finite number above zero, or drain the node"
    )]
    Capacity { node: NodeId, metric: Arc<str>, capacity: f64 },
    #[error("the {what} of metric {metric} is {value}: set {allowed}")]
    Metric { metric: Arc<str>, what: &'static str, value: f64, allowed: &'static str },
    #[error("the setting {what} is {value}: set {allowed}")]
    Setting { what: &'static str, value: f64, allowed: &'static str },
    #[error("node {node} is listed twice: remove one of them")]
    DuplicateNode { node: NodeId },
    #[error("shard {shard} wants {replicas} replicas: the limit is {max}; split it, or lower the replicas", max = limits::REPLICAS)]
    Replicas { shard: ShardId, replicas: u8 },
    #[error(
        "shard {shard} is said to be on node number {node}, but there are {nodes} nodes: list that node, as gone if it is"
    )]
    NoSuchNode { shard: ShardId, node: NodeIndex, nodes: usize },
    #[error(
        "shard {shard} is said to be on node {node} twice, which its rule does not allow: drop one of the replicas"
    )]
    DuplicateReplica { shard: ShardId, node: NodeId },
    #[error("shard {shard} follows rule number {rule}, but there are {rules} rules: add it or name another")]
    NoSuchRule { shard: ShardId, rule: u32, rules: usize },
    #[error(transparent)]
    Scheme(#[from] SchemeError),
    #[error("the sharder behind policy {policy} refuses: {why}")]
    Sharder { policy: &'static str, why: String },
}

impl Problem {
    /// A problem without metrics, rules or history: what most tests and small callers start from. Node
    /// names must be distinct; capacities are to be filled in when metrics are added.
    pub fn new(nodes: Vec<NodeSpec>, replicas: Vec<u8>) -> Problem {
        let shards = replicas.len();
        Problem {
            metrics: Vec::new(),
            nodes,
            capacities: Vec::new(),
            shards: (0..shards as u64).map(ShardId).collect(),
            hashes: (0..shards as u64).map(spread_bits).collect(),
            replicas,
            loads: Vec::new(),
            background: Vec::new(),
            bytes: Vec::new(),
            rule_of: Vec::new(),
            rules: Vec::new(),
            current: Placement::nowhere(shards),
            budget: None,
            seed: 0,
            settings: Settings::default(),
        }
    }

    /// How many shards there are.
    pub fn shard_count(&self) -> usize {
        self.replicas.len()
    }

    /// The number of the rule that a shard follows.
    pub fn rule_index(&self, shard: ShardIndex) -> usize {
        self.rule_of.get(shard as usize).map_or(0, |rule| *rule as usize)
    }

    /// What a move of one replica of the shard costs.
    pub fn move_bytes(&self, shard: ShardIndex) -> u64 {
        self.bytes.get(shard as usize).copied().unwrap_or(1)
    }

    /// Whether nodes carry load that is not this keyspace's to move, so that other keyspaces see what its moves do.
    pub fn is_shared(&self) -> bool {
        self.background.iter().any(|load| *load > 0.0)
    }

    /// Refuses nonsense. Every policy calls it first; it reads each number once.
    pub fn check(&self) -> Result<(), ProblemError> {
        self.check_lengths()?;
        self.check_metrics()?;
        self.check_nodes()?;
        self.check_shards()
    }

    fn check_lengths(&self) -> Result<(), ProblemError> {
        let (nodes, shards, metrics) = (self.nodes.len(), self.replicas.len(), self.metrics.len());
        for (what, found, limit) in [
            ("nodes", nodes, limits::NODES),
            ("shards", shards, limits::SHARDS),
            ("metrics", metrics, limits::METRICS),
        ] {
            if found > limit {
                return Err(ProblemError::TooMany { what, found, limit });
            }
        }
        let or_empty = |len: usize, found: usize| if found == 0 { 0 } else { len };
        for (array, found, expected, each) in [
            ("capacities", self.capacities.len(), nodes * metrics, "node and metric"),
            ("shards", self.shards.len(), shards, "shard"),
            ("hashes", self.hashes.len(), shards, "shard"),
            ("loads", self.loads.len(), shards * metrics, "shard and metric"),
            (
                "background",
                self.background.len(),
                or_empty(nodes * metrics, self.background.len()),
                "node and metric, or none at all",
            ),
            ("bytes", self.bytes.len(), or_empty(shards, self.bytes.len()), "shard, or none at all"),
            ("rule_of", self.rule_of.len(), or_empty(shards, self.rule_of.len()), "shard, or none at all"),
            ("current", self.current.shards(), shards, "shard"),
        ] {
            if found != expected {
                return Err(ProblemError::Length { array, found, expected, each });
            }
        }
        Ok(())
    }

    fn check_metrics(&self) -> Result<(), ProblemError> {
        for metric in &self.metrics {
            let wrong = |what, value, allowed| {
                Err(ProblemError::Metric { metric: metric.name.clone(), what, value, allowed })
            };
            if !(metric.tolerance >= 0.0 && metric.tolerance.is_finite()) {
                return wrong(
                    "tolerance",
                    metric.tolerance,
                    "a finite number, zero or more (0.05 is five percent)",
                );
            }
            if let Some(limit) = metric.limit.filter(|limit| !(*limit > 0.0 && limit.is_finite())) {
                return wrong("limit", limit, "a part of the capacity above zero (0.95), or none");
            }
        }
        let settings = &self.settings;
        for (what, value, good, allowed) in [
            (
                "steal_above",
                settings.steal_above,
                settings.steal_above >= 1.0,
                "1 or more (1.3 is the default)",
            ),
            (
                "draw_below",
                settings.draw_below,
                (0.0..1.0).contains(&settings.draw_below),
                "from 0 to below 1",
            ),
        ] {
            if !good || !value.is_finite() {
                return Err(ProblemError::Setting { what, value, allowed });
            }
        }
        Ok(())
    }

    fn check_nodes(&self) -> Result<(), ProblemError> {
        let metrics = self.metrics.len();
        for (at, capacity) in self.capacities.iter().enumerate() {
            if !(*capacity > 0.0 && capacity.is_finite()) {
                let (node, metric) = (at / metrics, at % metrics);
                return Err(ProblemError::Capacity {
                    node: self.nodes[node].name.clone(),
                    metric: self.metrics[metric].name.clone(),
                    capacity: *capacity,
                });
            }
        }
        let is_load = |load: &f64| *load >= 0.0 && load.is_finite();
        if let Some(at) = self.background.iter().position(|load| !is_load(load)) {
            return Err(ProblemError::Background {
                node: self.nodes[at / metrics].name.clone(),
                metric: self.metrics[at % metrics].name.clone(),
                load: self.background[at],
            });
        }
        let mut order: Vec<&NodeSpec> = self.nodes.iter().collect();
        order.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if let Some(twice) = order.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(ProblemError::DuplicateNode { node: twice[0].name.clone() });
        }
        Ok(())
    }

    fn check_shards(&self) -> Result<(), ProblemError> {
        if let Some(at) = self.loads.iter().position(|load| !(*load >= 0.0 && load.is_finite())) {
            let metrics = self.metrics.len();
            return Err(ProblemError::Load {
                shard: self.shards[at / metrics],
                metric: self.metrics[at % metrics].name.clone(),
                load: self.loads[at],
            });
        }
        if let Some(at) = self.replicas.iter().position(|wanted| *wanted as usize > limits::REPLICAS) {
            return Err(ProblemError::Replicas { shard: self.shards[at], replicas: self.replicas[at] });
        }
        let rules = self.rules.len().max(1);
        if let Some(at) = self.rule_of.iter().position(|rule| *rule as usize >= rules) {
            return Err(ProblemError::NoSuchRule { shard: self.shards[at], rule: self.rule_of[at], rules });
        }
        self.current.iter().enumerate().try_for_each(|(shard, nodes)| self.check_replicas(shard, nodes))
    }

    fn check_replicas(&self, shard: usize, nodes: &[NodeIndex]) -> Result<(), ProblemError> {
        for (at, node) in nodes.iter().enumerate() {
            if *node as usize >= self.nodes.len() {
                let (shard, node) = (self.shards[shard], *node);
                return Err(ProblemError::NoSuchNode { shard, node, nodes: self.nodes.len() });
            }
            if nodes[..at].contains(node) {
                let shared =
                    self.rules.get(self.rule_index(shard as ShardIndex)).is_some_and(|rule| rule.share_node);
                if !shared {
                    let node = self.nodes[*node as usize].name.clone();
                    return Err(ProblemError::DuplicateReplica { shard: self.shards[shard], node });
                }
            }
        }
        Ok(())
    }
}

impl NodeSpec {
    /// A node that accepts, in no known zone or rack, whose ring index is its place in the list.
    pub fn new(name: NodeId, ring_index: u32) -> NodeSpec {
        NodeSpec { name, ring_index, zone: UNKNOWN_DOMAIN, rack: UNKNOWN_DOMAIN, standing: Standing::Accepts }
    }
}

/// Mixes a number, which may be small or of a sequence: the source of seeded choices.
pub(crate) fn spread_bits(n: u64) -> u64 {
    crate::keyspace::hash::mix(n.wrapping_add(0x9e37_79b9_7f4a_7c15))
}
