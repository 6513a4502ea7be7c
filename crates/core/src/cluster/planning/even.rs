//! Leads as even as the replicas allow: which shards another of their replicas should lead.
//!
//! The n-th lead of a node costs n divided by its capacity; of two that cost the same, the one costs less whose node leads less
//! in all. So who gives up its last lead to a node that gets one more for less makes leads more even:
//!
//! ```text
//!  n1 leads 3 ──► n3 leads 1          n1 leads 3 ──► n2 leads 2 ──► n3 leads 1
//!  directly                           by a chain: n1 and n3 have no shard in common
//! ```
//!
//! When there is neither, no other choice of leaders costs less in sum (Harvey, Ladner, Lovász, Tamir: Semi-matchings for
//! bipartite graphs and load balancing, 2006). Each transfer lowers that sum, so whatever comes of it is not undone by the next
//! look.
//!
//! Loads are not looked at: they change all the time, and each transfer holds up the writes of a shard for a moment.

use std::cmp::Ordering;
use std::collections::VecDeque;

/// How far from its share a node's leads may be, as a part of the share, where that is more than one lead.
const SLACK: f64 = 0.1;

/// How many times its share a node may lead, and one more, where leadership matters less.
const FAR: f64 = 1.3;

/// Shares are divided, so that they are whole numbers to this precision.
const PRECISION: f64 = 1e-9;

/// A node that may lead.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    /// Its share of led shards, relative to other nodes; above 0.
    pub(super) capacity: f64,
    /// How many shards of the keyspace it leads.
    pub(super) own: u64,
    /// How many shards of other keyspaces.
    pub(super) beside: u64,
}

/// What a lead costs: in the keyspace, and in all.
type Cost = (f64, f64);

impl Node {
    fn cost(&self, own: u64) -> Cost {
        let of = |leads: u64| leads as f64 / self.capacity;
        (of(own), of(own + self.beside))
    }

    fn last(&self) -> Cost {
        self.cost(self.own)
    }

    fn next(&self) -> Cost {
        self.cost(self.own + 1)
    }
}

fn compare(a: &Cost, b: &Cost) -> Ordering {
    a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
}

/// Which node leads which shard of a keyspace. Nodes go by their numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct Leads {
    pub(super) nodes: Vec<Node>,
    /// Of each shard that another node may lead: the nodes that could, its leader first.
    pub(super) shards: Vec<Vec<u32>>,
}

/// A shard gets another leader.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Transfer {
    /// Which one of [`Leads::shards`].
    pub(super) shard: usize,
    /// The number of the node that leads then.
    pub(super) to: u32,
    pub(super) because: Because,
}

/// Two nodes, of which one leads too many. The shard may be led by a third one, in a chain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Because {
    pub(super) many: (u32, u64),
    pub(super) few: (u32, u64),
    /// They lead as many of this keyspace as they should, and these are the numbers of all.
    pub(super) in_all: bool,
}

impl Leads {
    /// Whether a node is a lead or more from its share, of the keyspace or in all, and a tenth of it: only then something is
    /// done.
    pub(super) fn are_uneven(&self) -> bool {
        self.differ(|node| node.own) || self.differ(|node| node.own + node.beside)
    }

    /// Whether a node leads a lead and three tenths more than its share: as much as work stealing allows for replicas (A6). Where
    /// a lead is no more work than what follows, that is soon enough.
    pub(super) fn are_far_from_even(&self) -> bool {
        self.shares(|node| node.own).any(|(leads, share)| leads > FAR * share + 1.0)
    }

    fn differ(&self, leads: impl Fn(&Node) -> u64) -> bool {
        let far = |share: f64| (share * SLACK).max(1.0);
        self.shares(leads).any(|(leads, share)| (leads - share).abs() + PRECISION >= far(share))
    }

    /// How many shards each node leads, and its share.
    fn shares(&self, leads: impl Fn(&Node) -> u64) -> impl Iterator<Item = (f64, f64)> {
        let all: u64 = self.nodes.iter().map(&leads).sum();
        let whole: f64 = self.nodes.iter().map(|node| node.capacity).sum();
        self.nodes.iter().map(move |node| (leads(node) as f64, all as f64 * node.capacity / whole))
    }

    /// Evens them out, by at most `most` transfers, or one chain where that is longer. `looks` bounds the work: so many possible
    /// leaders are looked at for chains.
    pub(super) fn even_out(mut self, most: usize, mut looks: usize) -> Vec<Transfer> {
        let mut reasons: Vec<Option<Because>> = vec![None; self.shards.len()];
        let mut leaders: Vec<u32> = self.shards.iter().map(|able| able[0]).collect();
        let mut changed = self.hand_over_directly(&mut leaders, &mut reasons, most);
        while let Some((chain, because)) = self.find_chain(&leaders, &mut looks) {
            if changed > 0 && changed + chain.len() > most {
                break;
            }
            changed += chain.len();
            self.count(&because);
            for (shard, to) in chain {
                leaders[shard] = to;
                reasons[shard] = Some(because);
            }
        }
        let changes = leaders.into_iter().zip(reasons).zip(&self.shards).enumerate();
        let changes = changes.filter(|(_, ((leader, _), able))| *leader != able[0]);
        changes
            .filter_map(|(shard, ((to, because), _))| Some(Transfer { shard, to, because: because? }))
            .collect()
    }

    /// The bulk, shard by shard. Returns how many.
    fn hand_over_directly(
        &mut self,
        leaders: &mut [u32],
        reasons: &mut [Option<Because>],
        most: usize,
    ) -> usize {
        let mut changed = 0;
        for shard in 0..self.shards.len() {
            if changed >= most {
                break;
            }
            let from = leaders[shard];
            let next = |node: &u32| self.nodes[*node as usize].next();
            let others = self.shards[shard].iter().filter(|node| **node != from);
            let Some(to) = others.min_by(|a, b| compare(&next(a), &next(b))).copied() else { continue };
            if let Some(because) = self.because(from, to) {
                self.count(&because);
                leaders[shard] = to;
                reasons[shard] = Some(because);
                changed += 1;
            }
        }
        changed
    }

    /// Why one should give a lead to the other, if it should.
    fn because(&self, from: u32, to: u32) -> Option<Because> {
        let (giver, taker) = (&self.nodes[from as usize], &self.nodes[to as usize]);
        if compare(&taker.next(), &giver.last()).is_ge() {
            return None;
        }
        let in_all = taker.next().0.total_cmp(&giver.last().0).is_eq();
        let leads = |node: &Node| if in_all { node.own + node.beside } else { node.own };
        Some(Because { many: (from, leads(giver)), few: (to, leads(taker)), in_all })
    }

    fn count(&mut self, because: &Because) {
        self.nodes[because.many.0 as usize].own -= 1;
        self.nodes[because.few.0 as usize].own += 1;
    }

    /// The transfers by which one node leads one less and another one more, if that makes leads more even. Each node is reached
    /// once, from the one that leads most: what is reached from there and leads too much for that one does so for all others.
    fn find_chain(&self, leaders: &[u32], looks: &mut usize) -> Option<(Vec<(usize, u32)>, Because)> {
        let mut led: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        leaders.iter().enumerate().for_each(|(shard, leader)| led[*leader as usize].push(shard));
        let mut givers: Vec<u32> = (0..self.nodes.len() as u32).collect();
        givers.sort_by(|a, b| {
            compare(&self.nodes[*b as usize].last(), &self.nodes[*a as usize].last()).then(a.cmp(b))
        });
        // From whom each node was reached, and by which shard.
        let mut reached: Vec<Option<(u32, usize)>> = vec![None; self.nodes.len()];
        let mut is_known = vec![false; self.nodes.len()];
        for giver in givers {
            if std::mem::replace(&mut is_known[giver as usize], true) {
                continue;
            }
            let (mut queue, mut taker) = (VecDeque::from([giver]), None);
            while let Some(node) = queue.pop_front() {
                for shard in &led[node as usize] {
                    for able in &self.shards[*shard] {
                        *looks = looks.checked_sub(1)?;
                        if std::mem::replace(&mut is_known[*able as usize], true) {
                            continue;
                        }
                        reached[*able as usize] = Some((node, *shard));
                        queue.push_back(*able);
                        let next = |node: u32| self.nodes[node as usize].next();
                        if taker.is_none_or(|best| compare(&next(*able), &next(best)).is_lt()) {
                            taker = Some(*able);
                        }
                    }
                }
            }
            if let Some((taker, because)) = taker.and_then(|to| Some((to, self.because(giver, to)?))) {
                return Some((chain(&reached, giver, taker), because));
            }
        }
        None
    }
}

/// The way back from the one that gets a lead to the one that gives one.
fn chain(reached: &[Option<(u32, usize)>], giver: u32, taker: u32) -> Vec<(usize, u32)> {
    let (mut chain, mut at) = (Vec::new(), taker);
    while let Some((from, shard)) = reached[at as usize].filter(|_| at != giver) {
        chain.push((shard, at));
        at = from;
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: usize = usize::MAX;

    fn leads_of(capacities: &[f64], beside: &[u64], shards: Vec<Vec<u32>>) -> Leads {
        let nodes = capacities.iter().zip(beside).zip(0u32..).map(|((capacity, beside), number)| {
            let own = shards.iter().filter(|able| able[0] == number).count() as u64;
            Node { capacity: *capacity, own, beside: *beside }
        });
        Leads { nodes: nodes.collect(), shards }
    }

    /// The same with the leaders that come of it.
    fn after(leads: &Leads, transfers: &[Transfer]) -> Leads {
        let mut shards = leads.shards.clone();
        for Transfer { shard, to, .. } in transfers {
            let at = shards[*shard].iter().position(|able| able == to).expect("it has a replica");
            assert_ne!(at, 0, "it leads already");
            shards[*shard].swap(0, at);
        }
        let of = |by: fn(&Node) -> f64| leads.nodes.iter().map(by).collect::<Vec<f64>>();
        let beside: Vec<u64> = leads.nodes.iter().map(|node| node.beside).collect();
        leads_of(&of(|node| node.capacity), &beside, shards)
    }

    fn counts(leads: &Leads) -> Vec<u64> {
        leads.nodes.iter().map(|node| node.own).collect()
    }

    /// What leadership costs, in the keyspace and in all. Capacities are powers of two, so sums are exact.
    fn sum(leads: &Leads) -> Cost {
        let costs = leads.nodes.iter().flat_map(|node| (1..=node.own).map(|n| node.cost(n)));
        costs.fold((0.0, 0.0), |sum, cost| (sum.0 + cost.0, sum.1 + cost.1))
    }

    /// The least that any choice of leaders costs.
    fn least(leads: &Leads, from: usize) -> Cost {
        let Some(able) = leads.shards.get(from) else { return sum(leads) };
        let choices = (0..able.len()).map(|at| {
            let mut chosen = leads.clone();
            chosen.shards[from].swap(0, at);
            chosen.nodes[able[0] as usize].own -= 1;
            chosen.nodes[able[at] as usize].own += 1;
            least(&chosen, from + 1)
        });
        choices.min_by(compare).expect("a shard has a leader")
    }

    fn some_leads() -> impl Strategy<Value = Leads> {
        (1usize..6).prop_flat_map(|nodes| {
            let able = prop::sample::subsequence((0..nodes as u32).collect::<Vec<_>>(), 1..=nodes.min(3));
            let shards = prop::collection::vec(able.prop_shuffle(), 0..8);
            let capacities = prop::collection::vec(prop::sample::select(vec![1.0, 1.0, 2.0, 0.5]), nodes);
            (capacities, prop::collection::vec(0u64..4, nodes), shards)
                .prop_map(|(capacities, beside, shards)| leads_of(&capacities, &beside, shards))
        })
    }

    proptest! {
        #[test]
        fn no_choice_of_leaders_is_more_even_and_the_next_look_changes_nothing(leads in some_leads()) {
            let transfers = leads.clone().even_out(ALL, ALL);
            let evened = after(&leads, &transfers);
            prop_assert_eq!(sum(&evened), least(&leads, 0));
            prop_assert_eq!(evened.even_out(ALL, ALL), vec![]);
        }

        #[test]
        fn what_is_cut_short_is_no_less_even_and_ends_as_even(leads in some_leads(), most in 1usize..4) {
            let (mut now, mut steps) = (leads.clone(), 0);
            loop {
                let transfers = now.clone().even_out(most, ALL);
                if transfers.is_empty() {
                    break;
                }
                // One chain may be longer.
                prop_assert!(transfers.len() <= most.max(leads.nodes.len()));
                let then = after(&now, &transfers);
                prop_assert!(compare(&sum(&then), &sum(&now)).is_lt());
                (now, steps) = (then, steps + 1);
                prop_assert!(steps < 100, "it does not end");
            }
            prop_assert_eq!(sum(&now), least(&leads, 0));
        }

        #[test]
        fn where_each_node_could_lead_all_none_leads_less_than_its_share(nodes in 1usize..6, leaders in prop::collection::vec(0u32..6, 0..30)) {
            let able = |first: u32| -> Vec<u32> {
                let first = first % nodes as u32;
                let others = (0..nodes as u32).filter(|node| *node != first);
                std::iter::once(first).chain(others).collect()
            };
            let leads = leads_of(&vec![1.0; nodes], &vec![0; nodes], leaders.iter().map(|first| able(*first)).collect());
            let evened = after(&leads, &leads.clone().even_out(ALL, ALL));
            let (least, most) = (leaders.len() / nodes, leaders.len().div_ceil(nodes));
            prop_assert!(counts(&evened).iter().all(|count| (least..=most).contains(&(*count as usize))));
            prop_assert!(!evened.are_uneven(), "and none is a lead from its share");
        }
    }

    #[test]
    fn a_node_without_leads_is_reached_by_a_chain() {
        let able = [vec![0, 1], vec![0, 1], vec![0, 1], vec![1, 2], vec![1, 2], vec![2]];
        let leads = leads_of(&[1.0; 3], &[0; 3], able.to_vec());
        assert!(leads.are_uneven() && counts(&leads) == [3, 2, 1]);
        let transfers = leads.clone().even_out(ALL, ALL);
        assert_eq!(counts(&after(&leads, &transfers)), [2, 2, 2]);
        let because = Because { many: (0, 3), few: (2, 1), in_all: false };
        assert!(transfers.iter().any(|transfer| transfer.because == because), "{transfers:?}");
        assert_eq!(leads.even_out(ALL, 0), vec![], "work has a bound");
    }

    #[test]
    fn of_two_that_lead_as_much_the_one_gets_the_lead_that_leads_less_beside() {
        let leads = leads_of(&[1.0; 3], &[2, 2, 0], vec![vec![0, 1, 2]]);
        assert!(leads.are_uneven());
        let because = Because { many: (0, 3), few: (2, 0), in_all: true };
        assert_eq!(leads.even_out(ALL, ALL), [Transfer { shard: 0, to: 2, because }]);
    }

    #[test]
    fn l2_a_few_leads_more_or_less_of_many_are_no_reason() {
        let of = |counts: [u64; 3]| Leads {
            nodes: counts.map(|own| Node { capacity: 1.0, own, beside: 0 }).to_vec(),
            shards: Vec::new(),
        };
        assert!(!of([2, 1, 1]).are_uneven() && of([2, 2, 0]).are_uneven() && of([3, 1, 1]).are_uneven());
        assert!(of([3, 2, 1]).are_uneven() && of([11, 10, 9]).are_uneven());
        assert!(!of([105, 100, 95]).are_uneven() && of([110, 100, 90]).are_uneven());
        assert!(!of([14, 10, 6]).are_far_from_even() && of([15, 9, 6]).are_far_from_even());
    }
}
