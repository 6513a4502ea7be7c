//! A policy's output: the new placement, the reasons, and what could not be done.

use super::draft::Draft;
use super::problem::{Level, NodeIndex, Placement, Problem, ShardIndex, Standing};
use super::{Balance, Score};
use crate::base::id::ShardId;
use crate::base::name::NodeId;
use crate::limits;
use std::collections::BTreeSet;

/// The outcome of one run of a policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// The new placement. Replicas that stay keep their order, new ones come after them, so a leader
    /// that stays is still first.
    pub placement: Placement,
    /// The difference from the current placement, in shard order, each with its reason.
    pub decisions: Vec<Decision>,
    /// What should be placed and is not, or should leave and cannot.
    pub unplaced: Vec<Unplaced>,
    /// Replicas that should have moved and wait because [`Problem::budget`] is used up.
    pub deferred: u32,
    /// Balance of the current placement, lost nodes left out.
    pub before: Balance,
    /// Balance of the new one.
    pub after: Balance,
    /// How good the new placement is; lower is better.
    pub score: Score,
}

/// One replica that comes, goes, or moves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// The shard of the replica.
    pub shard: ShardIndex,
    /// Where it is now, if anywhere; possibly a node that is gone.
    pub from: Option<NodeIndex>,
    /// Where it should be, if anywhere.
    pub to: Option<NodeIndex>,
    /// Why the replica comes, goes or moves.
    pub reason: Reason,
}

/// Why a replica comes, goes or moves, with the facts at the moment of the decision.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the sentences say it")]
pub enum Reason {
    /// The shard has fewer replicas than it wants.
    Missing { have: u8, want: u8 },
    /// Its node is gone.
    Lost,
    /// The shard has more replicas than it wants.
    Surplus { have: u8, want: u8 },
    /// Its node is being drained.
    Drained,
    /// The shard's rule does not allow its node (any more).
    Forbidden,
    /// Another replica of the shard is in the same domain.
    Crowded { level: Level },
    /// The node carries more than `times` its share of a metric.
    Overfull { metric: u16, load: f32, share: f32, times: f32 },
    /// The node it goes to carries less than `times` its share: it has just joined.
    Underfull { metric: u16, load: f32, share: f32, times: f32 },
    /// It makes room for a replica of another shard, from a node that carries too much.
    Exchanged { with: ShardIndex, metric: u16 },
    /// A hash policy puts it there and nowhere else.
    Computed { policy: &'static str },
}

/// A replica that could not be put where it should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unplaced {
    /// The shard of the replica.
    pub shard: ShardIndex,
    /// Which of them, from 0.
    pub replica: u8,
    /// The node it should leave and stays on for now, if any.
    pub stays: Option<NodeIndex>,
    /// Why no node was found for the replica.
    pub why: Unplaceable,
}

/// Why no node was found.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the sentences say it")]
pub enum Unplaceable {
    /// There is no node that takes new replicas.
    NoNodes,
    /// The shard's rule leaves no node that takes new replicas.
    NoneAllowed,
    /// Each node that could take it has a replica already.
    TooFewNodes { needs: u8, eligible: u32 },
    /// Each domain that could take it has a replica already, and the spread is hard.
    TooFewDomains { level: Level, needs: u8, eligible: u32 },
    /// Every node that may take it would exceed its limit.
    NoRoom { metric: u16 },
    /// None was found in the tries allowed.
    TriesUsed { tries: u32 },
}

/// Why a solution fails its check.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say it")]
pub enum SolutionError {
    #[error("it places {found} shards of {expected}")]
    Shards { found: usize, expected: usize },
    #[error("it places shard {shard} on node number {node}, but there are {nodes} nodes")]
    NoSuchNode { shard: ShardId, node: NodeIndex, nodes: usize },
    #[error("it places shard {shard} on node {node} twice")]
    Twice { shard: ShardId, node: NodeId },
    #[error("it moves shard {shard} to node {node}, which takes nothing new")]
    Closed { shard: ShardId, node: NodeId },
    #[error("it moves shard {shard} to node {node}, which its rule does not allow")]
    Forbidden { shard: ShardId, node: NodeId },
    #[error("it gives shard {shard} {found} replicas, more than {wanted}")]
    TooMany { shard: ShardId, found: usize, wanted: u8 },
    #[error("its decisions on shard {shard} do not lead from its nodes to those that it is placed on")]
    Decisions { shard: ShardId },
}

/// Less than that between two placements is noise of floating point.
const NOISE: f64 = 1e-6;

impl Solution {
    /// Whether its moves are worth making, where nodes carry other keyspaces too.
    ///
    /// Each keyspace has its own level above which it relieves a node: its moves may overload a node for another
    /// keyspace, which moves in turn, and so on for ever. So moves for load must make the nodes evener by a
    /// measure that all share: the squares of [`MetricBalance::variation`], each in units of the tolerance, summed over
    /// the metrics. A plan changes the loads for all alike and only its own numbers of replicas, so the sum over all
    /// keyspaces gets smaller with each plan: there is a last one. (That is exact where keyspaces have the same nodes
    /// and loads.)
    ///
    /// [`MetricBalance::variation`]: super::MetricBalance::variation
    pub fn is_worthwhile(&self, problem: &Problem) -> bool {
        !problem.is_shared()
            || !self.decisions.iter().all(Decision::is_for_load)
            || self.after.unevenness(problem) < self.before.unevenness(problem) - NOISE
    }

    /// Whether its moves for load still are worthwhile without the decisions `left_out`, by index in
    /// [`Solution::decisions`], which cannot be carried out. Of two replicas that swap nodes one may be held up: the
    /// other alone makes nothing evener, and the next plan would move it back.
    pub fn remains_worthwhile(&self, problem: &Problem, left_out: &BTreeSet<u32>) -> bool {
        let mut draft = Draft::new(problem);
        let moves = (0u32..).zip(&self.decisions);
        for (_, decision) in moves.filter(|(at, decision)| decision.is_for_load() && !left_out.contains(at)) {
            let (Some(from), Some(to)) = (decision.from, decision.to) else { continue };
            let slot = draft.slot_range(decision.shard).find(|slot| draft.at(*slot) == Some(from));
            let Some(slot) = slot else { continue };
            draft.vacate(decision.shard, slot);
            draft.place(decision.shard, slot, to, decision.reason);
        }
        Balance::of(&draft).unevenness(problem) < self.before.unevenness(problem) - NOISE
    }

    /// Whether it can be carried out: (pa), (pb) and (pg) of the parent module, for all moves.
    ///
    /// # Errors
    /// The first thing that cannot be.
    pub fn check(&self, problem: &Problem) -> Result<(), SolutionError> {
        let (found, expected) = (self.placement.shards(), problem.shard_count());
        if found != expected {
            return Err(SolutionError::Shards { found, expected });
        }
        let mut decisions = self.decisions.as_slice();
        for shard in 0..expected as ShardIndex {
            check_nodes(problem, shard, self.placement.of(shard))?;
            let of_it = decisions.iter().take_while(|decision| decision.shard == shard).count();
            let (here, rest) = decisions.split_at(of_it);
            decisions = rest;
            if !leads(here, problem.current.of(shard), self.placement.of(shard)) {
                return Err(SolutionError::Decisions { shard: problem.shards[shard as usize] });
            }
        }
        match decisions.first() {
            None => Ok(()),
            Some(stray) => {
                let known = problem.shards.get(stray.shard as usize).copied();
                Err(SolutionError::Decisions { shard: known.unwrap_or(ShardId(u64::from(stray.shard))) })
            }
        }
    }
}

fn check_nodes(problem: &Problem, shard: ShardIndex, nodes: &[NodeIndex]) -> Result<(), SolutionError> {
    let (id, before) = (problem.shards[shard as usize], problem.current.of(shard));
    let rule = problem.rules.get(problem.rule_index(shard));
    for (at, node) in nodes.iter().enumerate() {
        let Some(spec) = problem.nodes.get(*node as usize) else {
            return Err(SolutionError::NoSuchNode { shard: id, node: *node, nodes: problem.nodes.len() });
        };
        if nodes[..at].contains(node) && !rule.is_some_and(|rule| rule.share_node) {
            return Err(SolutionError::Twice { shard: id, node: spec.name.clone() });
        }
        let comes = !before.contains(node);
        if spec.standing == Standing::Gone || comes && spec.standing != Standing::Accepts {
            return Err(SolutionError::Closed { shard: id, node: spec.name.clone() });
        }
        let allowed = |rule: &super::Rule| rule.nodes.as_ref().is_none_or(|set| set.contains(*node));
        if comes && !rule.is_none_or(allowed) {
            return Err(SolutionError::Forbidden { shard: id, node: spec.name.clone() });
        }
    }
    let wanted = problem.replicas[shard as usize];
    if nodes.len() > before.len().max(wanted.into()) {
        return Err(SolutionError::TooMany { shard: id, found: nodes.len(), wanted });
    }
    Ok(())
}

/// Whether the decisions turn one list of nodes into the other, in whatever order.
fn leads(decisions: &[Decision], from: &[NodeIndex], to: &[NodeIndex]) -> bool {
    let (mut now, mut then) = (from.to_vec(), to.to_vec());
    for decision in decisions {
        if let Some(from) = decision.from {
            let Some(at) = now.iter().position(|node| *node == from) else { return false };
            now.swap_remove(at);
        }
        now.extend(decision.to);
    }
    now.sort_unstable();
    then.sort_unstable();
    now == then
}

impl Decision {
    /// Whether it is made to spread load, and for nothing else.
    pub fn is_for_load(&self) -> bool {
        matches!(self.reason, Reason::Overfull { .. } | Reason::Underfull { .. } | Reason::Exchanged { .. })
    }

    /// The decision and its reason in one plain sentence.
    pub fn sentence(&self, problem: &Problem) -> String {
        let node =
            |at: Option<NodeIndex>| at.map_or("nowhere", |at| problem.nodes[at as usize].name.as_str());
        let (shard, from, to) = (problem.shards[self.shard as usize], node(self.from), node(self.to));
        let act = match (self.from, self.to) {
            (None, _) => format!("add a replica of {shard} on {to}"),
            (Some(_), None) => format!("remove the replica of {shard} from {from}"),
            (Some(_), Some(_)) => format!("move a replica of {shard} from {from} to {to}"),
        };
        format!("{act}: {}", self.reason.because(problem, from, to))
    }
}

impl Reason {
    /// The part after the colon.
    fn because(&self, problem: &Problem, from: &str, to: &str) -> String {
        let metric = |at: u16| problem.metrics.get(at as usize).map_or("replicas", |metric| &*metric.name);
        match *self {
            Reason::Missing { have, want } => format!("it has {have} of {want} replicas, and {to} has room"),
            Reason::Lost => format!("{from} is gone"),
            Reason::Surplus { have, want } => format!("it has {have} replicas and wants {want}"),
            Reason::Drained => format!("{from} is being drained"),
            Reason::Forbidden => format!("its rule does not allow {from}"),
            Reason::Crowded { level } => format!("another replica is in the {} of {from}", level.word()),
            Reason::Overfull { metric: at, load, share, times } => format!(
                "{from} carries {load:.0} {}, more than {times} times its share of {share:.0}",
                metric(at)
            ),
            Reason::Underfull { metric: at, load, share, times } => format!(
                "{to} carries {load:.0} {}, less than {times} times its share of {share:.0}",
                metric(at)
            ),
            Reason::Exchanged { with, metric: at } => format!(
                "it makes room for {} from a node with too many {}",
                problem.shards[with as usize],
                metric(at)
            ),
            Reason::Computed { policy } => format!("{policy} puts it there"),
        }
    }
}

impl Unplaced {
    /// What could not be done, why, and the way out, in one plain sentence.
    pub fn sentence(&self, problem: &Problem) -> String {
        let shard = problem.shards[self.shard as usize];
        let what = match self.stays {
            None => format!("replica {} of {shard} has no node", self.replica),
            Some(node) => format!(
                "replica {} of {shard} stays on {}, which it should leave",
                self.replica, problem.nodes[node as usize].name
            ),
        };
        let why = match self.why {
            Unplaceable::NoNodes => "no node takes new replicas: add a node".to_owned(),
            Unplaceable::NoneAllowed => {
                "its rule leaves no node that takes new replicas: relax its labels or pins, or add such a node"
                    .to_owned()
            }
            Unplaceable::TooFewNodes { needs, eligible } => format!(
                "it needs {needs} distinct nodes and {eligible} are eligible: add a node or lower the replicas"
            ),
            Unplaceable::TooFewDomains { level, needs, eligible } => format!(
                "it needs {needs} distinct {word}s and {eligible} are eligible: add a {word}, lower the \
                 replicas, or make the spread soft",
                word = level.word()
            ),
            Unplaceable::NoRoom { metric } => format!(
                "every node that may take it would exceed its limit of {}: add a node or raise the limit",
                problem.metrics.get(metric as usize).map_or("replicas", |metric| &*metric.name)
            ),
            Unplaceable::TriesUsed { tries } => {
                format!("no node was found in {tries} tries: add a node, or raise steal_tries")
            }
        };
        format!("{what}: {why}")
    }
}

impl Level {
    /// The word for one such domain.
    pub fn word(self) -> &'static str {
        match self {
            Level::Node => "node",
            Level::Rack => "rack",
            Level::Zone => "zone",
        }
    }
}

impl Solution {
    /// How many replicas come to a node where they are not now, for whatever reason.
    pub fn arrivals(&self) -> usize {
        self.decisions.iter().filter(|decision| decision.to.is_some()).count()
    }

    /// The first sentences of what could not be done, for people; the rest is counted.
    pub fn complaints(&self, problem: &Problem) -> Vec<String> {
        let shown = self.unplaced.iter().take(limits::COMPLAINTS);
        let mut lines: Vec<String> = shown.map(|unplaced| unplaced.sentence(problem)).collect();
        if self.unplaced.len() > lines.len() {
            lines.push(format!("and {} more like these", self.unplaced.len() - lines.len()));
        }
        lines
    }
}
