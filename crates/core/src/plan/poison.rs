//! Poison: a shard that kills the processes that serve it, and how it differs from other deaths.
//!
//! When a node dies, the coordinator suspects each shard that the node had taken on a short while before, and gives it a strike
//! as long as nodes without it live; whatever else the node held had shown that a node can live with it. A suspect that an owner
//! survives for the window is cleared. The coordinator holds one back that collects `poison_deaths` strikes in a row, more than
//! any other that died with it: it places the shard nowhere new for [`hold_ms`]. If nodes go on dying without it meanwhile, the
//! cause is another (a bad release, a power line), and the shard is placed again. If none does, the shard is set aside until a
//! person has looked; otherwise it would kill one node after the other (A20, R5). A shard whose load fails on as many nodes is
//! set aside, too, unless other shards fail there as well and none is served (L5).
//!
//! | event                                                         | strikes | the shard                       |
//! |---------------------------------------------------------------|---------|---------------------------------|
//! | its node dies within the window after taking it, or its lead, on, and [`Evidence`] points to it | +1 | held back when they reach `poison_deaths` and no other suspect of that death has as many |
//! | its process is followed by another before it is given up: it has died, the same | +1 | the same          |
//! | it went from one lost node to the next, the brake would go on, and the evidence points to it and to no other that went the same way | – | held back |
//! | held back for [`hold_ms`], and the evidence still points to it | –      | set aside                       |
//! | held back or lately set aside, and nodes without it die, too  | 0       | placed again                    |
//! | its node dies later, leaves, or is lost while the brake is on | –       |                                 |
//! | an owner survives the window                                  | 0       |                                 |
//! | its load is given up on `poison_deaths` different nodes       | –       | set aside                       |
//! | the same, where others cannot be loaded, either, and most of these nodes serve none of the keyspace | – | |
//! | a person releases it                                          | 0       | placed again                    |
//!
//! Innocent shards that happen to follow a poison one from node to node are scattered by every repair, so few
//! collect strikes with it, and while one has as many strikes as another neither is held back. So in a cluster of two
//! or three nodes it may take a few more deaths until the one is known, and where every node holds every shard it
//! never is: there the brake and a person must do.
//!
//! What was not done: to blame by the time between taking a shard on and dying. A poison key kills when it is asked
//! for, which may be at once or in a minute.

use crate::base::count::counted;
use crate::base::name::NodeId;
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::limits;
use crate::plan::brake::ShardName;
use std::collections::{BTreeSet, VecDeque};

/// A process that ended without a goodbye, and the shards that it had taken on shortly before.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Death {
    at: Millis,
    node: NodeId,
    suspects: BTreeSet<ShardName>,
}

/// The processes that ended lately: nodes that were given up, and nodes that came back as a new process before that.
/// Not stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deaths {
    log: VecDeque<Death>,
}

impl Deaths {
    /// A process has ended. At most [`limits::DEATHS`] are remembered, each for as long as a shard may take to
    /// collect its strikes.
    pub fn add(&mut self, node: NodeId, now: Millis, suspects: BTreeSet<ShardName>, settings: &Settings) {
        let kept_ms = settings.poison_window_ms.saturating_mul(u64::from(settings.poison_deaths));
        self.log.retain(|death| now.since(death.at) < kept_ms.max(settings.brake_window_ms));
        if self.log.len() >= limits::DEATHS {
            self.log.pop_front();
        }
        self.log.push_back(Death { at: now, node, suspects });
    }

    /// A person has looked: count from here.
    pub fn clear(&mut self) {
        self.log.clear();
    }

    /// Nodes that died without suspecting the shard; counts no further than one more than `most`.
    pub fn nodes_without(&self, shard: &ShardName, most: usize) -> BTreeSet<&NodeId> {
        let mut nodes = BTreeSet::new();
        for death in self.log.iter().rev() {
            if nodes.len() > most {
                break;
            }
            if !death.suspects.contains(shard) {
                nodes.insert(&death.node);
            }
        }
        nodes
    }

    /// Nodes that died with the shard as a suspect.
    pub fn nodes_with(&self, shard: &ShardName) -> BTreeSet<&NodeId> {
        self.log.iter().filter(|death| death.suspects.contains(shard)).map(|death| &death.node).collect()
    }

    /// Nodes that died within the last `window_ms`, and when the first of these deaths is older than that.
    pub fn lately(&self, now: Millis, window_ms: u64) -> (BTreeSet<&NodeId>, Millis) {
        let recent = self.log.iter().filter(|death| now.since(death.at) < window_ms);
        let next = recent.clone().map(|death| death.at + window_ms).min().unwrap_or(Millis::NEVER);
        (recent.map(|death| &death.node).collect(), next)
    }
}

/// What speaks for and against a shard that is suspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// Its strikes, the latest included.
    pub strikes: u32,
    /// Nodes that have died lately without it.
    pub others: usize,
    /// Nodes that live without it, and have not died without it lately.
    pub witnesses: usize,
}

impl Evidence {
    /// Whether it is the shard rather than anything else: nodes live without it, and of those without it fewer have
    /// died than it has strikes, and not more than a quarter.
    pub fn points_to_the_shard(&self) -> bool {
        let few = self.others < (self.strikes as usize).max(2) && self.others * 3 <= self.witnesses;
        self.witnesses > 0 && few
    }
}

/// How long a shard is held back until it is set aside: time for the other nodes to die, if they do so without it. A
/// process that crashes again and again is started again within seconds.
pub fn hold_ms(settings: &Settings) -> u64 {
    (settings.poison_window_ms / 4).max(1)
}

/// Whether a node that has died at `died` is a witness against a shard that it took on at `taken`.
pub fn is_suspect(taken: Millis, died: Millis, settings: &Settings) -> bool {
    died.since(taken) < settings.poison_window_ms
}

/// Whether a node that still lives at `now` clears a shard that it took on at `taken`.
pub fn is_cleared(taken: Millis, now: Millis, settings: &Settings) -> bool {
    now.since(taken) >= settings.poison_window_ms
}

/// Why a shard with so many `strikes`, the last from `node`, is set aside; none while it is not.
pub fn after_death(strikes: u32, node: &NodeId, settings: &Settings) -> Option<String> {
    (strikes >= settings.poison_deaths).then(|| {
        format!(
            "{} in a row died soon after they had taken it on, the last was {node}",
            counted(strikes, "node")
        )
    })
}

/// Why a shard is set aside that `deaths` nodes have died of one after the other, with no more to spare: one
/// more loss would stop everything (see [`crate::plan::brake`]).
pub fn before_brake(deaths: usize) -> String {
    format!(
        "{} died one after the other, each soon after it had taken the shard on from the last",
        counted(deaths, "node")
    )
}

/// Why a shard that `nodes` could not load is set aside; none while others may still be tried.
pub fn after_failures(nodes: &[&NodeId], reason: &str, settings: &Settings) -> Option<String> {
    (nodes.len() >= settings.poison_deaths as usize).then(|| {
        format!("it could not be loaded on {}, the last said: {reason}", counted(nodes.len(), "node"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { poison_deaths: 3, poison_window_ms: 1_000, ..Settings::default() }
    }

    #[test]
    fn the_window_is_exact_and_every_moment_is_either_suspect_or_cleared() {
        for taken in [0, 500, 5_000] {
            for later in 0..3_000 {
                let (taken, now) = (Millis(taken), Millis(taken + later));
                assert_eq!(is_suspect(taken, now, &settings()), later < 1_000);
                assert_ne!(is_suspect(taken, now, &settings()), is_cleared(taken, now, &settings()));
            }
        }
        assert!(is_suspect(Millis(9), Millis(5), &settings()), "given to a node that was dead already");
    }

    fn shard(id: u64) -> ShardName {
        (crate::base::name::KeyspaceName::new("k").unwrap(), crate::base::id::ShardId(id))
    }

    #[test]
    fn r5_evidence_needs_nodes_that_live_without_the_shard() {
        let points =
            |strikes, others, witnesses| Evidence { strikes, others, witnesses }.points_to_the_shard();
        assert!(points(3, 0, 1) && points(1, 0, 9) && points(3, 2, 6));
        assert!(!points(3, 0, 0), "every node that lives holds it");
        assert!(!points(3, 2, 5), "more than a quarter of those without it have died");
        assert!(!points(3, 3, 100), "as many have died without it as with it");
    }

    #[test]
    fn deaths_are_remembered_for_as_long_as_strikes_may_take_and_are_bounded() {
        let node = |at: usize| NodeId::new(&format!("n{at}")).unwrap();
        let mut deaths = Deaths::default();
        deaths.add(node(0), Millis(0), [shard(1)].into(), &settings());
        deaths.add(node(1), Millis(1), [shard(2)].into(), &settings());
        assert_eq!(deaths.nodes_with(&shard(1)), [&node(0)].into());
        assert_eq!(deaths.nodes_without(&shard(1), 9), [&node(1)].into());
        assert_eq!(deaths.lately(Millis(10), 10), ([&node(1)].into(), Millis(11)));
        let kept_ms = Settings::default().brake_window_ms;
        deaths.add(node(2), Millis(kept_ms), BTreeSet::new(), &settings());
        assert!(deaths.nodes_with(&shard(1)).is_empty() && !deaths.nodes_with(&shard(2)).is_empty());
        let many = 2 * limits::DEATHS;
        (0..many).for_each(|at| deaths.add(node(at), Millis(kept_ms), BTreeSet::new(), &settings()));
        assert_eq!(deaths.lately(Millis(kept_ms), 1).0.len(), limits::DEATHS);
        assert_eq!(deaths.nodes_without(&shard(1), 4).len(), 5, "it stops counting");
    }

    #[test]
    fn three_deaths_or_three_nodes_that_cannot_load_are_enough_and_two_are_not() {
        let node = NodeId::new("n7").unwrap();
        assert_eq!(after_death(2, &node, &settings()), None);
        assert!(after_death(3, &node, &settings()).unwrap().contains("n7"));
        let [a, b] = ["a", "b"].map(|name| NodeId::new(name).unwrap());
        assert_eq!(after_failures(&[&a, &b], "no such file", &settings()), None);
        assert!(
            after_failures(&[&a, &b, &node], "no such file", &settings()).unwrap().contains("no such file")
        );
    }
}
