//! A coordinator as small as it can be: it holds the maps, takes wishes (rule 5), changes leaders (rule 7), gives out new
//! placements and incarnations, and makes read replicas members. What it has committed it never loses; it may be away for long.

use crate::clock::{MS, True};
use crate::draw::Draw;
use crate::replication::node::Report;
use crate::replication::weather::Weather;
use partage_core::base::id::{Configuration, Epoch, Incarnation, PlacementId};
use partage_core::base::name::NodeId;
use partage_core::base::planted::{self, Planted};
use partage_service::table::replication::{Order, Peer, Wish};
use std::collections::{BTreeMap, BTreeSet};

/// What a node tells of itself.
#[derive(Debug, Clone)]
pub struct Beat {
    pub node: usize,
    pub incarnation: Incarnation,
    pub reports: BTreeMap<PlacementId, Report>,
}

/// The name of a node.
pub fn name(node: usize) -> NodeId {
    NodeId::new(&format!("n{node}")).expect("a name")
}

#[derive(Debug)]
pub struct Coordinator {
    /// The map of each shard, as the order that follows from it.
    pub maps: Vec<Order>,
    /// Grows with each change of any.
    pub generation: u64,
    /// When each node was last heard, and which process.
    heard: Vec<(True, Incarnation)>,
    /// Which replicas find their leader silent, under which epoch.
    silent: BTreeMap<PlacementId, Epoch>,
    pub away: True,
    last_placement: u64,
    dead_after: True,
    /// How often the leader of a shard has changed.
    pub changes: u64,
    /// How many read replicas were made members.
    pub promoted: u64,
    /// How many wishes of each shard were granted.
    pub granted: Vec<u64>,
}

impl Coordinator {
    pub fn new(weather: &Weather) -> Coordinator {
        let Weather { nodes, shards, replicas, readers, dead_after, .. } = *weather;
        let heard = vec![(0, Incarnation(1)); nodes];
        let mut coordinator = Coordinator {
            maps: Vec::new(),
            generation: 1,
            heard,
            silent: BTreeMap::new(),
            away: 0,
            last_placement: 0,
            dead_after,
            changes: 0,
            promoted: 0,
            granted: vec![0; shards],
        };
        for shard in 0..shards {
            let all = 0..replicas + readers;
            let mut peers: Vec<_> = all.map(|at| coordinator.new_peer((shard + at) % nodes)).collect();
            peers.iter_mut().skip(replicas).for_each(|peer| peer.may_join = false);
            let in_sync = peers.iter().filter(|peer| peer.may_join).map(|peer| peer.placement).collect();
            let leader = peers[0].placement;
            let (epoch, configuration) = (Epoch(1), Configuration(1));
            let (closes, hand_over_to) = (false, None);
            coordinator.maps.push(Order {
                epoch,
                configuration,
                leader,
                in_sync,
                peers,
                closes,
                hand_over_to,
            });
        }
        coordinator
    }

    fn new_peer(&mut self, node: usize) -> Peer {
        self.last_placement += 1;
        let placement = PlacementId(self.last_placement);
        Peer { placement, node: name(node), incarnation: self.heard[node].1, may_join: true }
    }

    /// On which node a replica is.
    pub fn node_of(&self, shard: usize, placement: PlacementId) -> Option<usize> {
        let peer = self.maps[shard].peers.iter().find(|peer| peer.placement == placement)?;
        (0..self.heard.len()).find(|node| name(*node) == peer.node)
    }

    /// Whether it is there to be read from only.
    pub fn is_reader(&self, shard: usize, placement: PlacementId) -> bool {
        let mut peers = self.maps[shard].peers.iter();
        peers.any(|peer| peer.placement == placement && !peer.may_join)
    }

    /// A read replica becomes a member. Returns whether there was one.
    pub fn promote(&mut self, shard: usize) -> bool {
        let Some(reader) = self.maps[shard].peers.iter_mut().find(|peer| !peer.may_join) else {
            return false;
        };
        reader.may_join = true;
        self.generation += 1;
        self.promoted += 1;
        true
    }

    /// It has been away until now, and excuses the silence meanwhile.
    pub fn comes_back(&mut self, now: True) {
        self.silent.clear();
        self.heard.iter_mut().for_each(|(heard, _)| *heard = (*heard).max(now));
    }

    fn is_heard(&self, shard: usize, placement: PlacementId, within: True, now: True) -> bool {
        self.node_of(shard, placement).is_some_and(|node| self.heard[node].0 + within > now)
    }

    /// Takes a beat; the wishes that it refuses are returned.
    pub fn beat(&mut self, now: True, beat: Beat, draw: &mut Draw) -> Vec<Wish> {
        let (_, known) = self.heard[beat.node];
        if beat.incarnation < known {
            return Vec::new();
        }
        self.heard[beat.node] = (now, beat.incarnation);
        if beat.incarnation > known {
            self.registers(now, beat.node, beat.incarnation, draw);
        }
        let mut refused = Vec::new();
        for (placement, report) in beat.reports {
            let Some(shard) = self.shard_of(placement) else { continue };
            match report.silent {
                Some(epoch) => drop(self.silent.insert(placement, epoch)),
                None => drop(self.silent.remove(&placement)),
            }
            if let Some(wish) = report.wish
                && !self.takes(shard, &wish, draw)
            {
                refused.push(wish);
            }
            if let Some(heir) = report.heir.filter(|_| self.maps[shard].leader == placement) {
                self.elect(now, shard, Some(heir), false, draw);
            }
        }
        refused
    }

    fn shard_of(&self, placement: PlacementId) -> Option<usize> {
        self.maps.iter().position(|map| map.peers.iter().any(|peer| peer.placement == placement))
    }

    /// Another process of that node: its replicas go on with it, and another replica leads what it led, under a later epoch.
    fn registers(&mut self, now: True, node: usize, incarnation: Incarnation, draw: &mut Draw) {
        self.generation += 1;
        for shard in 0..self.maps.len() {
            let map = &mut self.maps[shard];
            let mut leads = false;
            for peer in map.peers.iter_mut().filter(|peer| peer.node == name(node)) {
                peer.incarnation = incarnation;
                leads |= peer.placement == map.leader;
            }
            if leads {
                self.elect(now, shard, None, false, draw);
            }
        }
    }

    fn takes(&mut self, shard: usize, wish: &Wish, draw: &mut Draw) -> bool {
        let map = &mut self.maps[shard];
        let has = |placement: &PlacementId| {
            map.peers.iter().any(|peer| peer.placement == *placement && peer.may_join)
        };
        let is_current = wish.configuration == map.configuration || planted::is(Planted::OldConfiguration);
        let is_right = is_current
            && wish.epoch == map.epoch
            && wish.placement == map.leader
            && wish.in_sync.contains(&map.leader)
            && wish.in_sync.iter().all(has);
        // Now and then it does not like one.
        if !is_right || draw.chance(80) {
            return false;
        }
        // The present set is asked for by a leader that cannot lead under an epoch that it knows. And the cluster's coordinator
        // counts the epoch on when a member leaves the set, as copies are told apart by it after a restore. Here it is drawn, so
        // that both are tried.
        let leaves = !map.in_sync.is_subset(&wish.in_sync);
        if wish.in_sync == map.in_sync || (leaves && draw.chance(500)) {
            map.epoch = map.epoch.next();
            map.hand_over_to = None;
        }
        map.in_sync = wish.in_sync.clone();
        self.granted[shard] += 1;
        map.configuration = map.configuration.next();
        self.generation += 1;
        true
    }

    /// Orders the leader of a shard to hand over to that replica, or takes that back where it is ordered already.
    pub fn order_hand_over(&mut self, shard: usize, heir: PlacementId) {
        let map = &mut self.maps[shard];
        map.hand_over_to = if map.hand_over_to == Some(heir) { None } else { Some(heir) };
        self.generation += 1;
    }

    /// Takes all orders to hand over back.
    pub fn take_hand_overs_back(&mut self) {
        self.maps.iter_mut().for_each(|map| map.hand_over_to = None);
        self.generation += 1;
    }

    /// Makes a member of the in-sync set the leader: `heir`, or one that is heard. In the same commit those that
    /// are silent may go from the set, and the former leader if it is not believed to live.
    pub fn elect(
        &mut self,
        now: True,
        shard: usize,
        heir: Option<PlacementId>,
        drops: bool,
        draw: &mut Draw,
    ) {
        let map = &self.maps[shard];
        let any = planted::is(Planted::OutOfSet);
        let all: BTreeSet<_> = map.peers.iter().map(|peer| peer.placement).collect();
        let from = if any { &all } else { &map.in_sync };
        let heard = from.iter().copied().filter(|one| self.is_heard(shard, *one, 1_000 * MS, now));
        let heard: Vec<_> = heard.collect();
        let others: Vec<_> = heard.iter().copied().filter(|one| *one != map.leader).collect();
        let drawn =
            if others.is_empty() || draw.chance(200) { draw.pick(&heard) } else { draw.pick(&others) };
        let Some(leader) = heir.filter(|heir| from.contains(heir)).or(drawn.copied()) else { return };
        let former = map.leader;
        let mut in_sync: BTreeSet<_> = map.in_sync.iter().copied().collect();
        in_sync.insert(leader);
        let goes = |placement: &PlacementId| {
            let is_silent = !self.is_heard(shard, *placement, 1_000 * MS, now);
            drops && *placement != leader && (is_silent || *placement == former)
        };
        in_sync.retain(|placement| !goes(placement));
        let map = &mut self.maps[shard];
        map.leader = leader;
        map.hand_over_to = None;
        map.epoch = map.epoch.next();
        map.configuration = map.configuration.next();
        map.in_sync = in_sync;
        self.generation += 1;
        self.changes += 1;
    }

    /// Changes leaders that are dead, or silent to most others, and replaces what is lost.
    pub fn decide(&mut self, now: True, draw: &mut Draw) {
        for shard in 0..self.maps.len() {
            let map = &self.maps[shard];
            let others: Vec<_> = map.in_sync.iter().filter(|one| **one != map.leader).collect();
            let silent = others.iter().filter(|one| self.silent.get(one) == Some(&map.epoch)).count();
            let says_otherwise = self.is_heard(shard, map.leader, 700 * MS, now);
            let is_dead = !self.is_heard(shard, map.leader, self.dead_after, now);
            if is_dead || (!others.is_empty() && silent > others.len() / 2 && !says_otherwise) {
                let drops = draw.chance(700);
                self.elect(now, shard, None, drops, draw);
            }
            self.replace(now, shard, draw);
        }
    }

    /// A replica out of sync whose node is long dead makes room for one on a node that has none. If it was a member, and there
    /// is a read replica, that one becomes a member, and the new one a read replica.
    fn replace(&mut self, now: True, shard: usize, draw: &mut Draw) {
        let map = &self.maps[shard];
        let is_gone = |peer: &&Peer| {
            !map.in_sync.contains(&peer.placement)
                && !self.is_heard(shard, peer.placement, 2 * self.dead_after, now)
        };
        let gone = map.peers.iter().find(is_gone).map(|peer| peer.placement);
        if let Some(gone) = gone.filter(|_| draw.chance(200)) {
            self.exchange(shard, gone, draw);
        }
    }

    /// Gives a replica out of sync up for a new one on another node, or on its own if that one has lost its disk.
    pub fn exchange(&mut self, shard: usize, gone: PlacementId, draw: &mut Draw) {
        let has = |map: &Order, node: usize| map.peers.iter().any(|peer| peer.node == name(node));
        let free: Vec<_> = (0..self.heard.len()).filter(|node| !has(&self.maps[shard], *node)).collect();
        let node = draw.pick(&free).copied().or_else(|| self.node_of(shard, gone));
        if let Some(node) = node.filter(|_| !self.maps[shard].in_sync.contains(&gone)) {
            let is_reader = self.is_reader(shard, gone) || self.promote(shard);
            let peer = Peer { may_join: !is_reader, ..self.new_peer(node) };
            let peers = &mut self.maps[shard].peers;
            peers.retain(|peer| peer.placement != gone);
            peers.push(peer);
            self.generation += 1;
        }
    }

    /// The orders of a node: for each shard of which it has a replica.
    pub fn orders(&self, node: usize) -> Vec<(usize, Order)> {
        let maps = self.maps.iter().cloned().enumerate();
        maps.filter(|(_, map)| map.peers.iter().any(|peer| peer.node == name(node))).collect()
    }
}
