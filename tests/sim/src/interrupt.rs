//! Handovers that are interrupted at every single step (O9): the same short scenario again and again from the
//! same seed, each time with one process killed one event later.
//!
//! ```text
//!  settle ──► act ──► e1 ──► e2 ──► … ──► eN   the scenario, undisturbed: N events until all is settled
//!                      │      │
//!                      ✗      ✗                 the same, with one process killed after e1, after e2, …
//! ```
//!
//! After each kill the process comes back, soon or only after it was declared dead, and within a bound everything
//! has to be served, settled and known to the router; all oracles look on. When it was the coordinator that was
//! killed, the layout in the end is that of the undisturbed run or that of before: a handover ends the same,
//! or has not begun.
//!
//! A split and a merge of a table are interrupted in the same way, while clients write: the children take their bases, the
//! parents' logs close, the children open, the parents go. Whichever process was killed, the shards in the end are those of the
//! undisturbed run or those of before, each replica is in sync and has all that is committed, and no worker holds anything that
//! no map names.

use crate::changes;
use crate::clock::{MS, SECOND, True};
use crate::faults::Mend;
use crate::message::Place;
use crate::model::{KeyAt, Space};
use crate::oracle::Finding;
use crate::scene::Violation;
use crate::shape::Shape;
use crate::world::World;
use partage_core::base::name::NodeId;
use partage_core::cluster::admin::{Command, KeyspaceChanges, SplitAt};
use partage_core::keyspace::Mode;
use partage_core::keyspace::key::Key;
use partage_core::keyspace::map::Shard;
use std::collections::BTreeMap;

/// Small, so that every step can be tried.
const SHAPE: Shape = Shape {
    coordinators: 1,
    nodes: 4,
    routers: 1,
    faulty: 0,
    calm: 0,
    stuck: false,
    person: None,
    leaders: false,
    durable: false,
    replicated: false,
    touched: false,
};

/// The seed of all scenarios.
const SEED: u64 = 9;

/// Before the scenario begins.
const SETTLED: True = 6 * SECOND;

/// Within that time after the kill everything is well again.
const BOUND: True = 40 * SECOND;

/// How long nothing must be under way for a scenario to be over.
const QUIET: True = SECOND;

/// Something that is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Everything is placed for the first time.
    FirstPlacement,
    /// A shard moves to another node.
    Move,
    /// A node is drained.
    Drain,
    /// A shard is split.
    Split,
    /// Two shards are merged.
    Merge,
    /// An owner dies for good.
    Failover,
    /// A shard of a table is split.
    TableSplit,
    /// Two shards of a table are merged.
    TableMerge,
}

/// What is killed, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kill {
    /// The process that is killed: the coordinator's or a worker's.
    pub victim: Place,
    /// After how many events of the scenario.
    pub step: u64,
}

/// Which nodes hold each shard, by keyspace and bounds.
pub type Layout = BTreeMap<String, Vec<String>>;

/// What became of a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Events from its beginning until all was settled.
    pub steps: u64,
    /// The layout when all was settled.
    pub layout: Layout,
    /// Over everything that happened.
    pub hash: u64,
    /// The first invariant that was broken; none: all held.
    pub violation: Option<Violation>,
    /// The last events in words, if asked for.
    pub words: Vec<String>,
}

impl Scenario {
    /// All scenarios, as `--interrupt all` runs them.
    pub const ALL: [Scenario; 8] = [
        Scenario::FirstPlacement,
        Scenario::Move,
        Scenario::Drain,
        Scenario::Split,
        Scenario::Merge,
        Scenario::Failover,
        Scenario::TableSplit,
        Scenario::TableMerge,
    ];

    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::FirstPlacement => "first-placement",
            Scenario::Move => "move",
            Scenario::Drain => "drain",
            Scenario::Split => "split",
            Scenario::Merge => "merge",
            Scenario::Failover => "failover",
            Scenario::TableSplit => "table-split",
            Scenario::TableMerge => "table-merge",
        }
    }

    /// Whether it is about the table.
    fn is_of_table(self) -> bool {
        matches!(self, Scenario::TableSplit | Scenario::TableMerge)
    }

    /// Every process that takes part, but for those that are dead already.
    pub fn victims(self) -> Vec<Place> {
        let alive = match self {
            Scenario::Failover => 1..SHAPE.nodes,
            _ => 0..SHAPE.nodes,
        };
        std::iter::once(Place::Coordinator(0)).chain(alive.map(Place::Node)).collect()
    }

    /// The layout when nothing has begun yet.
    pub fn before(self) -> Layout {
        let mut world = self.settled(None);
        world.run_until(world.scene.now + QUIET);
        layout(&world)
    }

    fn settled(self, words: Option<usize>) -> World {
        let shape = Shape { replicated: self.is_of_table(), ..SHAPE };
        let mut world = World::still(SEED, shape, words);
        world.begin();
        if self != Scenario::FirstPlacement {
            world.run_until(SETTLED);
        }
        let limit = world.scene.now + BOUND;
        while self.is_of_table() && !is_finished(&world) && world.scene.now < limit && world.step() {}
        world
    }

    /// Runs it, undisturbed or with a kill.
    pub fn run(self, kill: Option<Kill>, words: Option<usize>) -> Outcome {
        let mut world = self.settled(words);
        // Only the coordinator's death leaves nothing to repair; then no other plans are to blur the end.
        let alone = kill.is_none_or(|kill| matches!(kill.victim, Place::Coordinator(_)));
        self.act(&mut world, alone);
        let mut steps = 0;
        let mut quiet_since = None;
        let limit = world.scene.now + BOUND;
        while world.scene.violation.is_none() {
            if kill.is_some_and(|kill| kill.step == steps) {
                break;
            }
            if world.scene.now >= limit || !world.step() {
                let open = world.unfinished();
                let (_, text) = open.into_iter().next().unwrap_or(("O9", "nothing settles".to_owned()));
                world.scene.violate("O9", text);
            }
            steps += 1;
            quiet_since = is_finished(&world).then(|| quiet_since.unwrap_or((world.scene.now, steps)));
            if let Some((_, last)) = quiet_since.filter(|(since, _)| world.scene.now >= since + QUIET) {
                steps = last;
                break;
            }
        }
        if let Some(kill) = kill {
            self.kill(&mut world, kill);
        }
        finish(&world, steps)
    }

    /// Whether `layout` is what it may end as when the coordinator was killed.
    fn ends_as(self, layout: &Layout, before: &Layout, whole: &Layout) -> bool {
        match self {
            // What is placed where is for the planner to say, which sees the nodes as they are by then.
            Scenario::FirstPlacement | Scenario::Failover => true,
            Scenario::Drain => layout == before || !layout.values().flatten().any(|node| node == "node-0"),
            Scenario::Move
            | Scenario::Split
            | Scenario::Merge
            | Scenario::TableSplit
            | Scenario::TableMerge => layout == before || layout == whole,
        }
    }

    /// Whether the shards are the right ones, when a worker was killed: where their replicas are then is for the planner to say.
    fn has_shards_of(self, layout: &Layout, before: &Layout, whole: &Layout) -> bool {
        let is_same = |other: &Layout| layout.keys().eq(other.keys());
        !self.is_of_table() || is_same(before) || is_same(whole)
    }

    /// Does what the scenario begins with, as a person or a crash would.
    fn act(self, world: &mut World, alone: bool) {
        let spaces = std::rc::Rc::clone(&world.scene.oracles.spaces);
        let is_it = |space: &&Space| space.is_replicated() == self.is_of_table();
        let space = spaces.iter().find(is_it).unwrap_or(&spaces[0]);
        let keyspace = space.keyspace.name.clone();
        let shards = first_shards(world, space);
        let node = |at: usize| NodeId::new(&format!("node-{at}")).expect("a plain word is a name");
        let command = match self {
            Scenario::FirstPlacement => return,
            Scenario::Failover => {
                world.nodes[0].crash(&mut world.scene);
                return;
            }
            Scenario::Move => {
                let from = shards[0].staying().next().map(|r| r.node.clone()).unwrap_or(node(0));
                let to = (0..SHAPE.nodes).map(node).find(|to| *to != from).unwrap_or(node(0));
                Command::MoveShard { keyspace, shard: shards[0].id, from, to }
            }
            Scenario::Drain => {
                Command::DrainNode { node: node(0), reason: "new disks".to_owned(), max_down: None }
            }
            Scenario::Split | Scenario::TableSplit => {
                let at = space.keys.get(1).and_then(|key| Key::new(key).ok());
                Command::SplitShard {
                    keyspace,
                    shard: shards[0].id,
                    at: SplitAt::Keys(at.into_iter().collect()),
                }
            }
            Scenario::Merge | Scenario::TableMerge => {
                Command::MergeShards { keyspace, left: shards[0].id, right: shards[1].id }
            }
        };
        if alone && self != Scenario::Drain {
            let changes = KeyspaceChanges { mode: Some(Mode::Manual), ..KeyspaceChanges::default() };
            let keyspace = space.keyspace.name.clone();
            let manual = Command::UpdateKeyspace { keyspace, changes: Box::new(changes), ahead: false };
            while !changes::by_hand(world, &manual) && world.step() {}
        }
        while !changes::by_hand(world, &command) && world.step() {}
    }

    fn kill(self, world: &mut World, kill: Kill) {
        // Soon, or after all others have noticed.
        let soon = kill.step.is_multiple_of(2);
        let down = if soon { 300 * MS } else { 4 * SECOND };
        let mend = match kill.victim {
            Place::Coordinator(at) => {
                world.coordinators[at].crash(&mut world.scene);
                Mend::Coordinator(at)
            }
            Place::Node(at) => {
                world.nodes[at].crash(&mut world.scene);
                Mend::Start(at)
            }
            Place::Router(_) => return,
        };
        world.scene.after(down, crate::message::Event::Mend(mend));
        let end = world.scene.now + BOUND;
        world.run_until(world.scene.now + down + QUIET);
        let has_ended = |world: &World| is_finished(world) && self.leaks(world).is_empty();
        while world.scene.violation.is_none() && world.scene.now < end && !has_ended(world) {
            world.run_until(world.scene.now + QUIET / 2);
        }
        let oracles = &world.scene.oracles;
        let mut findings = world.unfinished();
        findings.extend(world.unserved_tables());
        findings.extend(self.leaks(world));
        findings.extend(oracles.at_the_end());
        findings.into_iter().for_each(|(invariant, text)| world.scene.violate(invariant, text));
    }
}

impl Scenario {
    /// What is left of a split or merge of a table, done or undone, and no map names (L7).
    fn leaks(self, world: &World) -> Vec<Finding> {
        if self.is_of_table() { world.leaks() } else { Vec::new() }
    }
}

fn first_shards(world: &World, space: &Space) -> Vec<Shard> {
    let map = world.scene.oracles.maps.latest(&space.keyspace.name);
    let mut shards: Vec<Shard> = map.into_iter().flat_map(|map| map.shards().cloned()).collect();
    shards.sort_by_key(|shard| shard.id);
    shards
}

/// Whether all is served, settled and known, and no node that lives is still to be emptied.
fn is_finished(world: &World) -> bool {
    let oracles = &world.scene.oracles;
    let first = KeyAt { keyspace: 0, key: 0 };
    // The quick look first: this is asked after every event.
    oracles.ownership.owner(world.scene.now, first).is_some()
        && oracles.maps.all().flat_map(|map| map.shards()).all(Shard::is_settled)
        && world.unfinished().is_empty()
        && world.unserved_tables().is_empty()
}

fn layout(world: &World) -> Layout {
    let shards = |map: &partage_core::keyspace::map::ShardMap| {
        let name = map.keyspace().clone();
        let held = |shard: &Shard| shard.replicas.iter().map(|r| r.node.to_string()).collect();
        map.shards().map(|shard| (format!("{name} {:?}", shard.bounds), held(shard))).collect::<Vec<_>>()
    };
    let mut layout: Layout = world.scene.oracles.maps.all().flat_map(shards).collect();
    layout.values_mut().for_each(|nodes| nodes.sort());
    layout
}

fn finish(world: &World, steps: u64) -> Outcome {
    Outcome {
        steps,
        layout: layout(world),
        hash: world.scene.trace.hash(),
        violation: world.scene.violation.clone(),
        words: world.scene.trace.words().cloned().collect(),
    }
}

/// A kill after which something was wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The scenario that was interrupted.
    pub scenario: Scenario,
    /// What was killed and when; none for the undisturbed run.
    pub kill: Option<Kill>,
    /// The invariant that was broken, and how.
    pub text: String,
}

impl Failure {
    /// The command that shows it again.
    pub fn again(&self) -> String {
        let kill = self.kill.map_or(String::new(), |kill| {
            let victim = match kill.victim {
                Place::Node(at) => format!(" --victim {at}"),
                Place::Coordinator(_) | Place::Router(_) => String::new(),
            };
            format!(" --step {}{victim}", kill.step)
        });
        format!("cargo run --release -p sim -- --interrupt {}{kill}", self.scenario.name())
    }
}

/// Every `stride`-th step of a scenario, with every victim. Gives how many kills were tried, and what failed.
pub fn every_step(scenario: Scenario, stride: u64) -> (u64, Vec<Failure>) {
    let whole = scenario.run(None, None);
    if let Some(violation) = &whole.violation {
        let text = format!("{}: {}", violation.invariant, violation.text);
        return (0, vec![Failure { scenario, kill: None, text }]);
    }
    let before = (scenario != Scenario::FirstPlacement).then(|| scenario.before());
    if scenario.is_of_table() && before.as_ref() == Some(&whole.layout) {
        let text = "O9: nothing is split or merged in the undisturbed run".to_owned();
        return (0, vec![Failure { scenario, kill: None, text }]);
    }
    let mut failures = Vec::new();
    let mut kills = 0;
    for (number, victim) in scenario.victims().into_iter().enumerate() {
        // With a stride, each victim has other steps.
        for step in (number as u64 % stride..whole.steps).step_by(stride as usize) {
            let kill = Kill { victim, step };
            let outcome = scenario.run(Some(kill), None);
            kills += 1;
            let wrong = outcome.violation.as_ref().map(|v| format!("{}: {}", v.invariant, v.text));
            let ends_the_same = before.as_ref().is_none_or(|before| match victim {
                Place::Node(_) => scenario.has_shards_of(&outcome.layout, before, &whole.layout),
                Place::Coordinator(_) | Place::Router(_) => {
                    scenario.ends_as(&outcome.layout, before, &whole.layout)
                }
            });
            let other = (!ends_the_same)
                .then(|| format!("O9: ends as {:?}, undisturbed as {:?}", outcome.layout, whole.layout));
            failures.extend(wrong.or(other).map(|text| Failure { scenario, kill: Some(kill), text }));
        }
    }
    (kills, failures)
}
