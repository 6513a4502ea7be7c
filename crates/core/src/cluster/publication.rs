//! Publication of maps: what happened lately, and what to tell a subscriber who has the map of some
//! generation.
//!
//! A subscriber that has the last map but one gets the last change; one that was away for a few changes gets
//! those; one that was away for too long gets the whole map, marked as such (W4). Nothing is queued for
//! a subscriber. Each remembers what it was sent last and asks for what leads from there to now; so a slow
//! one gets the latest map and delays no other (W6), and what is sent is in proportion to the change.
//!
//! Not here: connections, when to send, and whole maps, which the driver takes from the cluster.

use crate::base::id::{Generation, ShardId};
use crate::base::name::{KeyspaceName, Label, NodeId};
use crate::base::planted::{self, Planted};
use crate::base::time::Millis;
use crate::cluster::Cluster;
use crate::keyspace::KeyspaceKind;
use crate::keyspace::map::MapDiff;
use crate::node::exchange::KeyspaceBrief;
use crate::node::{NodeAddress, NodeSpec};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How much is kept for subscribers that were away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Changes of one keyspace.
    pub diffs: usize,
    /// Shards in the changes of one keyspace, together; the last change is kept however large it is.
    pub shards: usize,
    /// Nodes that were forgotten.
    pub forgotten: usize,
}

/// What leads a subscriber to the current map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Since {
    /// The subscriber has the current map, or the keyspace is in quarantine: send it nothing.
    Nothing,
    /// The changes that it lacks, in order; each begins where the one before ends.
    Changes(Vec<Arc<MapDiff>>),
    /// Its generation is not known any more: it needs the whole map.
    Whole,
    /// The keyspace is gone, if its shards began below [`WatchCache::horizon`]; else it is not known here yet.
    Deleted,
}

/// Addresses that a subscriber has not heard of yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodesSince {
    /// Nodes that are new, or whose address or labels have changed.
    pub changed: Vec<NodeAddress>,
    /// Gone. Not those that were forgotten and have come back.
    pub forgotten: Vec<NodeId>,
    /// To be asked from next time.
    pub version: u64,
}

/// The labels of a node that others hear of with its address ([`NodeAddress::labels`]).
fn published_labels(spec: &NodeSpec) -> BTreeSet<Label> {
    if spec.kinds.contains(&KeyspaceKind::Shuffle) { spec.labels.clone() } else { BTreeSet::new() }
}

#[derive(Debug)]
struct History {
    brief: KeyspaceBrief,
    diffs: VecDeque<Arc<MapDiff>>,
    shards: usize,
}

/// The watch cache of all maps: what subscribers are answered from.
#[derive(Debug)]
pub struct WatchCache {
    kept: Retention,
    keyspaces: BTreeMap<KeyspaceName, History>,
    /// Keyspaces of which nothing is published: neither a map nor that they are gone.
    quarantine: BTreeSet<KeyspaceName>,
    /// Keyspaces whose shards begin below this are in the cache, or are gone. One that begins above may be there all the
    /// same: this coordinator may lag behind.
    horizon: ShardId,
    /// Addresses, each with the version at which it changed.
    nodes: BTreeMap<NodeId, (NodeAddress, u64)>,
    /// Nodes that were forgotten, each with the version at which it was.
    forgotten: VecDeque<(NodeId, u64)>,
    version: u64,
}

impl WatchCache {
    /// An empty cache. [`WatchCache::refresh`] puts the current maps into it, with no history.
    pub fn new(kept: Retention) -> WatchCache {
        WatchCache {
            kept,
            keyspaces: BTreeMap::new(),
            quarantine: BTreeSet::new(),
            horizon: ShardId(0),
            nodes: BTreeMap::new(),
            forgotten: VecDeque::new(),
            version: 0,
        }
    }

    /// Takes up changes that were committed, in their order.
    pub fn publish(&mut self, cluster: &Cluster, diffs: Vec<MapDiff>, now: Millis) {
        for diff in diffs {
            if let Some(history) = self.keyspaces.get_mut(&diff.keyspace) {
                history.push(diff, &self.kept);
            }
        }
        self.refresh(cluster, now);
    }

    /// Brings settings and addresses up to date.
    pub fn refresh(&mut self, cluster: &Cluster, now: Millis) {
        // It goes back with the counters, when somebody puts an older state in the place of the newest: what is created then
        // begins below what this cache knew.
        self.horizon = cluster.horizon();
        self.quarantine = cluster.faults().quarantine.keys().cloned().collect();
        // What was published of a keyspace in quarantine stays known: a map that was set back behind it is refused for as
        // long as this process lives.
        let quarantine = &self.quarantine;
        self.keyspaces.retain(|name, _| cluster.keyspaces().contains_key(name) || quarantine.contains(name));
        for state in cluster.keyspaces().values() {
            let brief = state.brief();
            let fresh = || History { brief: brief.clone(), diffs: VecDeque::new(), shards: 0 };
            let history = self.keyspaces.entry(brief.name.clone()).or_insert_with(fresh);
            if history.brief.generation != brief.generation {
                // Something in between was never in this cache: a coordinator takes the lead after another.
                *history = fresh();
            }
            history.brief = brief;
        }
        let gone: Vec<_> =
            self.nodes.keys().filter(|id| !cluster.nodes().contains_key(*id)).cloned().collect();
        let seen = cluster.nodes().iter().map(|(id, node)| NodeAddress {
            id: id.clone(),
            incarnation: node.record.incarnation,
            address: node.record.spec.address.clone(),
            zone: node.record.spec.zone.clone(),
            health: node.signs.health(now, cluster.settings()),
            resp_address: node.record.spec.resp_address.clone(),
            labels: published_labels(&node.record.spec),
            drains: node.record.drain.is_some() || node.leaving,
        });
        self.addresses(seen, gone);
    }

    /// Takes up addresses, of which any may be known already, and forgets others.
    fn addresses(
        &mut self,
        seen: impl IntoIterator<Item = NodeAddress>,
        gone: impl IntoIterator<Item = NodeId>,
    ) {
        let version = self.version + 1;
        for id in gone {
            if self.nodes.remove(&id).is_none() {
                continue;
            }
            self.forgotten.push_back((id, version));
            while self.forgotten.len() > self.kept.forgotten {
                self.forgotten.pop_front();
            }
            self.version = version;
        }
        for node in seen {
            if self.nodes.get(&node.id).is_none_or(|(known, _)| *known != node) {
                self.nodes.insert(node.id.clone(), (node, version));
                self.version = version;
            }
        }
    }

    /// Passes on a change that another cache has published, for the readers of this one: `brief` is as it is after
    /// the change. What does not follow on what is here begins the history anew.
    pub fn pass_on(&mut self, brief: KeyspaceBrief, diff: MapDiff) {
        self.quarantine.remove(&brief.name);
        let fresh = || History { brief: brief.clone(), diffs: VecDeque::new(), shards: 0 };
        let history = self.keyspaces.entry(brief.name.clone()).or_insert_with(fresh);
        let follows = history.brief.generation == diff.from || planted::is(Planted::StandbyGap);
        if follows && diff.from != diff.to {
            history.push(diff, &self.kept);
        } else if history.brief.generation != brief.generation {
            *history = fresh();
        }
        history.brief = brief;
    }

    /// Passes on addresses that another cache has published, for the readers of this one.
    pub fn pass_on_nodes(&mut self, changed: Vec<NodeAddress>, forgotten: Vec<NodeId>) {
        self.addresses(changed, forgotten);
    }

    /// Passes on that a keyspace is gone whose shards began below `horizon`.
    pub fn pass_on_end(&mut self, keyspace: &KeyspaceName, horizon: ShardId) {
        self.quarantine.remove(keyspace);
        if self.brief(keyspace).is_some_and(|brief| brief.first_shard < horizon) {
            self.keyspaces.remove(keyspace);
        }
        self.pass_on_horizon(horizon);
    }

    /// Passes on that keyspaces whose shards begin below `horizon` are in the cache, or are gone; 0 says nothing. As the leader
    /// says it, also where that is less than before ([`WatchCache::refresh`]).
    pub fn pass_on_horizon(&mut self, horizon: ShardId) {
        if horizon > ShardId(0) {
            self.horizon = horizon;
        }
    }

    /// Said with each [`Since::Deleted`]: a subscriber whose map of that keyspace begins above keeps it. While a keyspace
    /// is in quarantine this coordinator does not know where its shards begin, so it vouches for none: a coordinator
    /// that stands by and never had that keyspace would say that it is gone.
    pub fn horizon(&self) -> ShardId {
        if self.quarantine.is_empty() { self.horizon } else { ShardId(0) }
    }

    /// Of the addresses: grows with each change of them.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// All keyspaces that there are.
    pub fn keyspaces(&self) -> impl Iterator<Item = &KeyspaceName> {
        self.keyspaces.keys()
    }

    /// The settings of all keyspaces, each at its latest generation.
    pub fn briefs(&self) -> impl Iterator<Item = &KeyspaceBrief> {
        self.keyspaces.values().map(|history| &history.brief)
    }

    /// A keyspace's settings, at its latest generation.
    pub fn brief(&self, keyspace: &KeyspaceName) -> Option<&KeyspaceBrief> {
        self.keyspaces.get(keyspace).map(|history| &history.brief)
    }

    /// What leads from `have` to now. Of a keyspace in quarantine the cache says nothing, so that subscribers keep
    /// what they have.
    pub fn since(&self, keyspace: &KeyspaceName, have: Option<Generation>) -> Since {
        if self.quarantine.contains(keyspace) {
            return Since::Nothing;
        }
        let Some(history) = self.keyspaces.get(keyspace) else {
            // A coordinator that does not vouch for it says so later.
            return if self.quarantine.is_empty() { Since::Deleted } else { Since::Nothing };
        };
        let Some(have) = have else { return Since::Whole };
        if have == history.brief.generation || planted::is(Planted::L3) {
            return Since::Nothing;
        }
        let missed = usize::from(planted::is(Planted::W4));
        // From the back: nearly every subscriber lacks the last one only.
        match history.diffs.iter().rposition(|diff| diff.from == have) {
            Some(first) => Since::Changes(history.diffs.iter().skip(first + missed).cloned().collect()),
            None => Since::Whole,
        }
    }

    /// Addresses that changed after `version`.
    pub fn nodes_since(&self, version: u64) -> NodesSince {
        if version == self.version {
            return NodesSince { changed: vec![], forgotten: vec![], version };
        }
        let changed = self.nodes.values().filter(|(_, at)| *at > version).map(|(node, _)| node.clone());
        let is_back = |id: &NodeId| self.nodes.contains_key(id) && !planted::is(Planted::ForgottenNode);
        let is_gone = |(id, at): &&(NodeId, u64)| *at > version && !is_back(id);
        let forgotten = self.forgotten.iter().filter(is_gone).map(|(id, _)| id.clone());
        NodesSince { changed: changed.collect(), forgotten: forgotten.collect(), version: self.version }
    }
}

impl History {
    fn push(&mut self, diff: MapDiff, kept: &Retention) {
        self.brief.generation = diff.to;
        self.shards += diff.changed.len();
        self.diffs.push_back(Arc::new(diff));
        while self.diffs.len() > kept.diffs || (self.shards > kept.shards && self.diffs.len() > 1) {
            self.shards -= self.diffs.pop_front().map_or(0, |diff| diff.changed.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::{Incarnation, TransactionId};
    use crate::keyspace::Ownership;
    use crate::keyspace::hash::HashFunction;
    use crate::keyspace::map::ShardMap;
    use crate::keyspace::sharding::{PartitionKey, Sharding, Slot};
    use crate::node::Health;

    const RETENTION: Retention = Retention { diffs: 4, shards: 100, forgotten: 10 };

    fn maps(count: u32, kept: Retention) -> (Vec<ShardMap>, WatchCache) {
        let name = KeyspaceName::new("k").unwrap();
        let sharding = Sharding::Fixed { hash: HashFunction::Xxh3_64, shards: 1_000 };
        let mut maps = vec![ShardMap::empty(name.clone(), sharding, PartitionKey::default())];
        let brief = KeyspaceBrief {
            name: name.clone(),
            sharding,
            partition_key: PartitionKey::default(),
            ownership: Ownership::Exclusive,
            generation: maps[0].generation(),
            first_shard: crate::base::id::ShardId(1),
            durable: false,
            min_in_sync: 0,
            kind: crate::keyspace::KeyspaceKind::App,
            values: crate::keyspace::RowValues::Bytes,
            feed_ms: 0,
        };
        let mut cache = WatchCache::new(kept);
        cache.keyspaces.insert(name.clone(), History { brief, diffs: VecDeque::new(), shards: 0 });
        for (at, slot) in Slot::all(count).into_iter().enumerate() {
            let mut map = maps.last().unwrap().clone();
            let mut edit = map.edit();
            edit.create_shard(slot).unwrap();
            let diff = edit.commit(TransactionId([at as u8; 20]));
            map.apply(&diff).unwrap();
            cache.keyspaces.get_mut(&name).unwrap().push(diff, &kept);
            maps.push(map);
        }
        (maps, cache)
    }

    #[test]
    fn w1_w4_a_subscriber_gets_what_it_missed_or_is_told_to_take_the_whole() {
        let (maps, cache) = maps(9, RETENTION);
        let last = maps.last().unwrap();
        for (at, map) in maps.iter().enumerate() {
            match cache.since(last.keyspace(), Some(map.generation())) {
                Since::Nothing => assert_eq!(at, 9),
                Since::Whole => assert!(9 - at > RETENTION.diffs, "from map {at}"),
                Since::Changes(diffs) => {
                    assert!(9 - at <= RETENTION.diffs, "from map {at}");
                    let mut has = map.clone();
                    diffs.iter().for_each(|diff| has.apply(diff).unwrap());
                    assert_eq!(has.whole(), last.whole());
                }
                Since::Deleted => panic!("it is there"),
            }
        }
        assert_eq!(cache.since(last.keyspace(), None), Since::Whole);
        assert_eq!(cache.since(&KeyspaceName::new("other").unwrap(), None), Since::Deleted);
    }

    #[test]
    fn m2_what_was_published_of_a_keyspace_in_quarantine_stays_known() {
        let (maps, mut cache) = maps(3, RETENTION);
        let last = maps.last().unwrap();
        let (at, settings) = (crate::cluster::Moment { now: Millis(0), wall_ms: 0 }, Default::default());
        let mut cluster = Cluster::recover(at, settings, Default::default()).unwrap();
        let mut faults = crate::cluster::StoredFaults::default();
        faults.quarantine.insert(last.keyspace().clone(), "it was set back".to_owned());
        cluster.take_faults(faults, vec![]);
        cache.refresh(&cluster, Millis(1));
        let known: Vec<_> = cache.briefs().map(|brief| brief.generation).collect();
        assert_eq!(known, [last.generation()], "the next table refuses what is older");
        assert_eq!(cache.since(last.keyspace(), None), Since::Nothing);
        cluster.take_faults(Default::default(), vec![]);
        cache.refresh(&cluster, Millis(2));
        assert_eq!(cache.briefs().count(), 0, "it was given up");
    }

    /// Seen in the simulator (seed 1985, touched): an older snapshot was restored under coordinators, the leader's numbers went
    /// far beyond, and the newest state was put back. The next keyspace began below what caches knew, and a coordinator that
    /// had not heard of it told a router that it is gone.
    #[test]
    fn m2_d11_a_horizon_goes_back_with_the_counters() {
        let (maps, mut leads) = maps(3, RETENTION);
        let (name, brief) = (maps[3].keyspace(), leads.brief(maps[3].keyspace()).unwrap().clone());
        let mut table = crate::routing::table::RouteTable::default();
        table.change(Some(brief), true, &maps[3].whole()).unwrap();
        let mut stands_by = WatchCache::new(RETENTION);
        leads.horizon = ShardId(99);
        stands_by.pass_on_horizon(leads.horizon());
        let (at, settings) = (crate::cluster::Moment { now: Millis(0), wall_ms: 0 }, Default::default());
        let cluster = Cluster::recover(at, settings, Default::default()).unwrap();
        leads.refresh(&cluster, Millis(1));
        assert!(leads.horizon() <= table.brief(name).unwrap().first_shard);
        stands_by.pass_on_horizon(leads.horizon());
        assert!(!table.delete(name, stands_by.horizon()), "the keyspace is there");
    }

    /// L3: a node that a person has removed, or that was away for long, registers again; then a router subscribes anew.
    #[test]
    fn l3_a_node_that_was_forgotten_and_has_come_back_is_there_for_each_subscriber() {
        let node = |incarnation| NodeAddress {
            id: NodeId::new("n1").unwrap(),
            incarnation: Incarnation(incarnation),
            address: "n1:1".to_owned(),
            zone: None,
            health: Health::Up,
            resp_address: None,
            labels: BTreeSet::new(),
            drains: false,
        };
        let mut cache = WatchCache::new(RETENTION);
        cache.pass_on_nodes(vec![node(1)], vec![]);
        let before = cache.version();
        cache.pass_on_nodes(vec![], vec![node(1).id]);
        assert_eq!(cache.nodes_since(before).forgotten, [node(1).id]);
        cache.pass_on_nodes(vec![node(2)], vec![]);
        for version in 0..cache.version() {
            let since = cache.nodes_since(version);
            assert_eq!((since.changed, since.forgotten), (vec![node(2)], vec![]), "since {version}");
        }
    }

    #[test]
    fn labels_are_published_of_nodes_that_serve_shuffles() {
        let labels: BTreeSet<Label> = [Label::new("shuffle-storage:default").unwrap()].into();
        let of = |kind| NodeSpec {
            kinds: [kind].into(),
            labels: labels.clone(),
            ..NodeSpec::new(NodeId::new("n1").unwrap(), "n1:1")
        };
        assert_eq!(published_labels(&of(KeyspaceKind::Shuffle)), labels);
        assert_eq!(published_labels(&of(KeyspaceKind::Table)), BTreeSet::new());
    }

    #[test]
    fn w4_a_generation_of_another_history_is_answered_by_the_whole() {
        let (maps, cache) = maps(3, RETENTION);
        let stranger = Generation { sequence: 2, transaction: TransactionId([9; 20]) };
        assert_eq!(cache.since(maps[3].keyspace(), Some(stranger)), Since::Whole);
    }

    #[test]
    fn m2_w4_a_board_that_passes_on_says_what_the_first_one_says() {
        let (maps, first) = maps(9, RETENTION);
        let (name, mut second) = (maps[0].keyspace().clone(), WatchCache::new(RETENTION));
        let brief = |at: usize| {
            let brief = first.brief(&name).unwrap().clone();
            KeyspaceBrief { generation: maps[at].generation(), ..brief }
        };
        second.pass_on(brief(6), maps[6].whole());
        assert_eq!(second.since(&name, Some(maps[5].generation())), Since::Whole);
        for (at, map) in maps.iter().enumerate().skip(6).take(3) {
            let diff = first.since(&name, Some(map.generation()));
            let Since::Changes(diffs) = diff else { panic!("kept") };
            second.pass_on(brief(at + 1), MapDiff::clone(&diffs[0]));
        }
        // Said again by the next one that is followed: nothing is lost by it.
        second.pass_on(brief(9), maps[9].whole());
        for map in &maps[6..] {
            let have = Some(map.generation());
            assert_eq!(second.since(&name, have), first.since(&name, have));
        }
        second.pass_on(brief(3), maps[3].whole());
        assert_eq!(second.since(&name, Some(maps[2].generation())), Since::Whole, "a gap begins it anew");
        second.pass_on_end(&name, ShardId(99));
        assert_eq!(second.since(&name, None), Since::Deleted);
    }

    /// M2, D11: a coordinator that stands by, and began to while the leader has a keyspace in quarantine, has never had
    /// that keyspace: who reads there keeps it.
    #[test]
    fn m2_d11_a_quarantine_is_no_end_for_who_reads_at_a_coordinator_that_stands_by() {
        let (maps, mut leads) = maps(3, RETENTION);
        let (name, have) = (maps[3].keyspace(), Some(maps[3].generation()));
        leads.horizon = ShardId(99);
        let mut table = crate::routing::table::RouteTable::default();
        let brief = leads.brief(name).unwrap().clone();
        table.change(Some(brief), true, &maps[3].whole()).unwrap();
        leads.keyspaces.clear();
        leads.quarantine.insert(name.clone());
        assert_eq!(leads.since(name, have), Since::Nothing);
        let other = KeyspaceName::new("deleted-meanwhile").unwrap();
        assert_eq!(leads.since(&other, have), Since::Nothing, "it is said when the quarantine is over");
        let mut stands_by = WatchCache::new(RETENTION);
        stands_by.pass_on_horizon(leads.horizon());
        assert!(!table.delete(name, stands_by.horizon()), "the keyspace is there");
        leads.quarantine.clear();
        stands_by.pass_on_horizon(leads.horizon());
        assert!(table.delete(name, stands_by.horizon()), "it was given up");
    }

    /// L3: a coordinator that led with a keyspace in quarantine stands by, and the next leader has that keyspace again.
    #[test]
    fn l3_what_the_next_leader_publishes_is_in_quarantine_no_more() {
        let (maps, cache) = maps(3, RETENTION);
        let (name, brief) = (maps[3].keyspace(), cache.brief(maps[3].keyspace()).unwrap().clone());
        let had_led = || {
            let mut led = WatchCache::new(RETENTION);
            led.horizon = ShardId(99);
            led.quarantine.insert(name.clone());
            led
        };
        let mut stands_by = had_led();
        stands_by.pass_on_horizon(ShardId(0));
        assert_eq!(
            (stands_by.since(name, None), stands_by.horizon()),
            (Since::Nothing, ShardId(0)),
            "it leads on so"
        );
        stands_by.pass_on(brief, maps[3].whole());
        assert_eq!((stands_by.since(name, None), stands_by.horizon()), (Since::Whole, ShardId(99)));
        let mut gone = had_led();
        gone.pass_on_end(name, ShardId(99));
        assert_eq!((gone.since(name, None), gone.horizon()), (Since::Deleted, ShardId(99)));
        // The one that says so may be another that stands by, and not have that keyspace yet (seed 460533).
        let mut lags = had_led();
        lags.pass_on_horizon(ShardId(120));
        assert_eq!((lags.since(name, None), lags.horizon()), (Since::Nothing, ShardId(0)));
    }

    #[test]
    fn large_changes_are_kept_in_so_far_as_they_are_few() {
        let (maps, cache) = maps(5, Retention { shards: 2, ..RETENTION });
        let changes = |at: usize| cache.since(maps[5].keyspace(), Some(maps[at].generation()));
        assert!(matches!(changes(3), Since::Changes(diffs) if diffs.len() == 2));
        assert_eq!(changes(2), Since::Whole);
    }
}
