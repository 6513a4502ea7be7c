//! The brake: when so much seems lost that the fault is more likely in what we see than in the nodes, stop.
//!
//! A night watchman who finds one door open closes it. If he finds every door open he does not start closing
//! doors; he calls somebody. So here: one dead node is replaced, but when more than a fifth of all nodes die
//! within a minute (a cut network, a bad release, a power line) moving their shards would bury the rest under
//! work and would have to be undone. Then nothing moves, no further node is given up, the last good map goes
//! on serving, and a person is asked (K18, R4).
//!
//! | seen                                                          | follows                               |
//! |---------------------------------------------------------------|---------------------------------------|
//! | more than max(2, `brake_share`) of the nodes lost in the window | the brake is on until a person releases it |
//! | more than `brake_setbacks` nodes lost in the window soon after each took a shard on | the same: a cascade |
//! | more than `brake_setbacks` shards of a keyspace given up on more than as many nodes | its own brake is on |
//! | more than max(2, half) of the nodes do not answer, none given up yet | planning waits until they answer |
//! | no node would be left that answers and could take the shards   | the brake is on, however small the cluster |
//! | too many are dying or silent, but not all of them for long enough | no node is given up yet           |
//! | a lost node registers again                                   | it does not count as lost             |
//! | a node leaves as announced                                    | it never counted as lost              |
//! | nodes lost one after the other, each soon after taking a shard from the last | they count as one, and the shard is held back, unless nodes have died without it, too, or another shard went the same way |
//!
//! The lines on setbacks are for failures that *follow* the moves: the shards of a dead node bury the next one,
//! which dies of them, and so on. In a large cluster that never reaches a fifth of the nodes within a window, and
//! each repair feeds it. One node on which nothing can be loaded is passed by, and one shard that can be loaded
//! nowhere is set aside; so failed loads count only when several shards fail on several nodes. They stop their own
//! keyspace only: the service is broken, not the cluster.
//!
//! The line on silent nodes has no latch: nothing was decided yet, so nothing has to be undone by hand.
//!
//! A brake that is on is released by a person, or by itself when every node is heard again; and nodes that are started
//! anew before they are given up put no brake on, but nothing except repairs begins while they are many: both in
//! `cluster/brake_release.rs`.
//!
//! The last line is a shard that kills ([`crate::plan::poison`]): in a cluster of fewer than fifteen nodes its third victim
//! would put the brake on, and the shard would go on killing once a person lets it go. What tells it from a cut
//! network is the order: it can only kill a node that it has come to *after* the last one was given up, and
//! nodes that fall together have not taken anything from each other. Should chance have made such a chain,
//! little is lost: a shard that is set aside comes to no further node, so at most `poison_deaths` losses count
//! as one, and only one chain at a time is believed.

use crate::base::count::{counted, counted_with};
use crate::base::id::ShardId;
use crate::base::name::{KeyspaceName, NodeId};
use crate::base::planted::{self, Planted};
use crate::base::settings::Settings;
use crate::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet};

/// Losses that are always borne, however small the cluster: one, and another while it is being repaired.
const ALWAYS_BORNE: usize = 2;

/// A shard of a keyspace.
pub type ShardName = (KeyspaceName, ShardId);

/// The shards that a node had taken on shortly before it was last heard, and when it took them.
pub type Suspects = BTreeMap<ShardName, Millis>;

/// A node that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Loss {
    at: Millis,
    suspects: Suspects,
}

/// Nodes that were given up lately. Not stored: what died while no coordinator looked is lost at one moment
/// for the next one, and counts together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses {
    lost: BTreeMap<NodeId, Loss>,
}

/// The nodes that have not been given up, as they are now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fleet {
    /// All of them, those that are dying included.
    pub standing: usize,
    /// Those that have not been heard lately, but not for so long that they would be given up.
    pub silent: usize,
    /// Those that answer and could take the shards of others.
    pub able: usize,
    /// Whether a dying one holds any shard.
    pub laden: bool,
}

/// What follows from the nodes that are dying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// So few that the planner replaces them.
    Acceptable,
    /// No node is given up yet: with those that are only silent so far they would be too many, and those may answer
    /// in a moment.
    Waits,
    /// So many would be too many, but these shards may have killed that many of them one after the other: where the
    /// evidence points to exactly one of them it is held back, and the nodes are replaced. Otherwise the brake goes on.
    Poisoned {
        /// The shards under which the most nodes died, one after the other.
        shards: Vec<ShardName>,
        /// How many nodes died so.
        deaths: usize,
        /// Why the brake goes on if none of them is to blame.
        otherwise: String,
    },
    /// The brake goes on, for this reason.
    TooMany(String),
}

impl Loss {
    /// Whether it was in the window.
    fn counts(&self, now: Millis, settings: &Settings) -> bool {
        now.since(self.at) < settings.brake_window_ms
    }
}

impl Losses {
    /// A node was given up.
    pub fn add(&mut self, node: NodeId, now: Millis, suspects: Suspects) {
        self.lost.insert(node, Loss { at: now, suspects });
    }

    /// Forgets what was lost before the window.
    pub fn forget_old(&mut self, now: Millis, settings: &Settings) {
        self.lost.retain(|_, loss| loss.counts(now, settings));
    }

    /// It is back, as a new process, or was removed by a person.
    pub fn returned(&mut self, node: &NodeId) {
        self.lost.remove(node);
    }

    /// A person has looked: count from here.
    pub fn clear(&mut self) {
        self.lost.clear();
    }

    /// Whether no node is missing that was lost in the window.
    pub fn are_all_back(&self, now: Millis, settings: &Settings) -> bool {
        !self.lost.values().any(|loss| loss.counts(now, settings))
    }

    /// Whether it matters what `dying` had taken on: where far too many are dying no shard is to blame, and to find out
    /// would take as long as to look at all that they hold.
    pub fn asks_for_suspects(
        &self,
        dying: &BTreeSet<NodeId>,
        fleet: Fleet,
        now: Millis,
        settings: &Settings,
    ) -> bool {
        let is_earlier =
            |(node, loss): &(&NodeId, &Loss)| loss.counts(now, settings) && !dying.contains(*node);
        let earlier = self.lost.iter().filter(is_earlier).count();
        let (count, borne) = (earlier + dying.len(), borne(earlier + fleet.standing, settings));
        let waits = count <= borne && count + fleet.silent > borne;
        let is_within = count < borne + settings.poison_deaths as usize
            || planted::is(Planted::BrakeMargin) && count <= borne + 1;
        !waits && is_within
    }

    /// Whether giving up `dying` now would be too much.
    pub fn judge(
        &self,
        dying: &BTreeMap<NodeId, Suspects>,
        fleet: Fleet,
        now: Millis,
        settings: &Settings,
    ) -> Verdict {
        let earlier =
            self.lost.iter().filter(|(node, loss)| loss.counts(now, settings) && !dying.contains_key(*node));
        let mut losses: Vec<(Millis, &Suspects)> =
            earlier.map(|(_, loss)| (loss.at, &loss.suspects)).collect();
        let nodes = losses.len() + fleet.standing;
        losses.extend(dying.values().map(|suspects| (now, suspects)));
        let borne = borne(nodes, settings);
        if dying.is_empty() {
            return Verdict::Acceptable;
        }
        // The last holders of shards are never given up: what they hold may be the only copy.
        if fleet.able == 0 && fleet.laden {
            let none = "no node answers that could take the shards of those that do not";
            return if fleet.silent > 0 { Verdict::Waits } else { Verdict::TooMany(none.to_owned()) };
        }
        if losses.len() <= borne && losses.len() + fleet.silent > borne {
            return Verdict::Waits;
        }
        if losses.len() <= borne + usize::from(planted::is(Planted::BrakeMargin)) {
            return cascade(&losses, dying, settings);
        }
        let otherwise = format!(
            "{} of {nodes} nodes were lost within {} s, more than the {borne} that are replaced without asking",
            losses.len(),
            settings.brake_window_ms.div_ceil(1_000)
        );
        let count = losses.len();
        let (shards, deaths) = longest_chain(losses);
        let enough = (ALWAYS_BORNE + 1).min(settings.poison_deaths as usize);
        let as_one = deaths.min(settings.poison_deaths as usize);
        if deaths >= enough && count - as_one < borne {
            return Verdict::Poisoned { shards, deaths, otherwise };
        }
        Verdict::TooMany(otherwise)
    }
}

/// Few were lost, but how many of them just after they had taken something on?
fn cascade(
    losses: &[(Millis, &Suspects)],
    dying: &BTreeMap<NodeId, Suspects>,
    settings: &Settings,
) -> Verdict {
    let laden = losses.iter().filter(|(_, suspects)| !suspects.is_empty()).count();
    let another = dying.values().any(|suspects| !suspects.is_empty());
    if !another || laden <= settings.brake_setbacks as usize {
        return Verdict::Acceptable;
    }
    Verdict::TooMany(format!(
        "failures follow the moves: {} lost within {} s soon after they had taken shards on, and \
         their shards may do the same to the next ones",
        counted_with(laden, "node", ("was", "were")),
        settings.brake_window_ms.div_ceil(1_000)
    ))
}

/// Why the moves of one keyspace stop: `shards` of it could not be loaded on `nodes` different nodes, all
/// of them lately.
pub fn loads_fail(shards: usize, nodes: usize, settings: &Settings) -> Option<String> {
    (shards.min(nodes) > settings.brake_setbacks as usize).then(|| {
        format!(
            "failures follow the moves: {} could not be loaded on {} lately",
            counted(shards, "shard"),
            counted(nodes, "node")
        )
    })
}

/// The shards that went furthest from one lost node to the next, and how many they went through.
fn longest_chain(mut losses: Vec<(Millis, &Suspects)>) -> (Vec<ShardName>, usize) {
    losses.sort_by_key(|(at, _)| *at);
    let mut chains: BTreeMap<&ShardName, (usize, Millis)> = BTreeMap::new();
    for (at, suspects) in losses {
        for (shard, taken) in suspects {
            let chain = chains.entry(shard).or_insert((0, Millis(0)));
            // Whatever it had already when the last one was given up did not come to it from there.
            if chain.0 == 0 || *taken >= chain.1 {
                *chain = (chain.0 + 1, at);
            }
        }
    }
    let longest = chains.values().map(|(deaths, _)| *deaths).max().unwrap_or(0);
    let furthest = chains.iter().filter(|(_, (deaths, _))| *deaths == longest);
    (furthest.map(|(shard, _)| (*shard).clone()).collect(), longest)
}

/// Why nothing but repairs begins: of so many `nodes`, `ended` have died in the window, or were started anew without
/// having said goodbye.
pub fn unrest(ended: usize, nodes: usize, settings: &Settings) -> Option<String> {
    (ended > borne(nodes, settings)).then(|| {
        format!(
            "{ended} of {nodes} nodes died or were started anew within {} s",
            settings.brake_window_ms.div_ceil(1_000)
        )
    })
}

/// Whether what `unreachable` nodes hold may move off them, when `reachable` others can take it. A coordinator that
/// reaches fewer than it does not reach is cut off itself; and more than the brake bears are not moved at once.
pub fn are_unreachable_borne(
    unreachable: usize,
    reachable: usize,
    standing: usize,
    settings: &Settings,
) -> bool {
    unreachable <= reachable && unreachable <= borne(standing, settings)
}

/// How many of so many nodes may be lost in a window.
fn borne(nodes: usize, settings: &Settings) -> usize {
    ALWAYS_BORNE.max((settings.brake_share * nodes as f64) as usize)
}

/// Why planning waits: of `nodes` that should take shards only `answering` do.
pub fn too_few(answering: usize, nodes: usize) -> Option<String> {
    let missing = nodes.saturating_sub(answering);
    (missing > ALWAYS_BORNE.max(nodes / 2)).then(|| {
        format!(
            "only {answering} of {nodes} nodes answer: nothing is planned until more than half of them do"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nodes(count: usize) -> Vec<NodeId> {
        (0..count).map(|at| NodeId::new(&format!("n{at}")).unwrap()).collect()
    }

    fn is_too_many(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::TooMany(_))
    }

    fn judge(losses: &Losses, dying: &[NodeId], standing: usize, now: u64) -> Verdict {
        let dying = dying.iter().map(|node| (node.clone(), Suspects::new())).collect();
        losses.judge(&dying, fleet(standing), Millis(now), &Settings::default())
    }

    /// Of so many nodes, and one that comes back just now.
    fn fleet(standing: usize) -> Fleet {
        Fleet { standing, silent: 0, able: 1, laden: true }
    }

    proptest! {
        #[test]
        fn r4_the_threshold_is_exact(count in 1usize..200, dying in 0usize..200) {
            let dying = dying.min(count);
            let verdict = judge(&Losses::default(), &nodes(dying), count, 0);
            let allowed = f64::max(2.0, 0.2 * count as f64);
            prop_assert_eq!(is_too_many(&verdict), dying as f64 > allowed + 1e-9);
        }
    }

    proptest! {
        #[test]
        fn k18_what_nobody_asks_for_changes_no_verdict(
            earlier in proptest::collection::vec((0usize..40, 0u64..6), 0..12),
            dying in proptest::collection::btree_map(0usize..40, proptest::collection::btree_map(0u64..3, 0u64..70_000, 0..3), 0..16),
            standing in 16usize..40,
            (silent, able) in (0usize..4, 0usize..2),
        ) {
            let (settings, all, now) = (Settings::default(), nodes(40), Millis(70_000));
            let keyspace = KeyspaceName::new("k").unwrap();
            let named = |shards: &BTreeMap<u64, u64>| -> Suspects {
                shards.iter().map(|(id, taken)| ((keyspace.clone(), ShardId(*id)), Millis(*taken))).collect()
            };
            let mut losses = Losses::default();
            for (node, minute) in earlier {
                losses.add(all[node].clone(), Millis(minute * 12_000), named(&[(1, minute * 11_000)].into()));
            }
            let fleet = Fleet { standing, silent, able, laden: true };
            let dying: BTreeMap<NodeId, Suspects> =
                dying.iter().map(|(node, shards)| (all[*node].clone(), named(shards))).collect();
            let names: BTreeSet<NodeId> = dying.keys().cloned().collect();
            let asked = losses.asks_for_suspects(&names, fleet, now, &settings);
            let unasked = names.into_iter().map(|node| (node, Suspects::new())).collect();
            let with = losses.clone().judge(&dying, fleet, now, &settings);
            let without = losses.judge(&unasked, fleet, now, &settings);
            prop_assert!(asked || with == without, "{with:?}, and {without:?}");
        }
    }

    proptest! {
        #[test]
        fn k18_deaths_count_as_a_cascade_when_each_followed_a_move(
            laden in proptest::collection::vec(any::<bool>(), 0..24),
            setbacks in 1u32..6,
            gap_ms in 0u64..12_000,
        ) {
            let settings = Settings { brake_setbacks: setbacks, ..Settings::default() };
            let mut losses = Losses::default();
            let mut stopped = None;
            for (at, (node, laden)) in nodes(laden.len()).into_iter().zip(&laden).enumerate() {
                let now = Millis(at as u64 * gap_ms);
                // Another shard each time: no single one is to blame.
                let name = (KeyspaceName::new("k").unwrap(), ShardId(at as u64));
                let suspects: Suspects = laden.then_some((name, now)).into_iter().collect();
                let dying = [(node.clone(), suspects.clone())].into();
                if is_too_many(&losses.judge(&dying, fleet(1_000 - at), now, &settings)) {
                    stopped = Some(at);
                    break;
                }
                losses.add(node, now, suspects);
            }
            let in_window = |at: usize| {
                let kept = (0..=at).filter(|earlier| (at - earlier) as u64 * gap_ms < settings.brake_window_ms);
                kept.filter(|at| laden[*at]).count()
            };
            let expected = (0..laden.len()).find(|at| laden[*at] && in_window(*at) > setbacks as usize);
            prop_assert_eq!(stopped, expected);
        }

        #[test]
        fn k18_neither_one_bad_shard_nor_one_bad_node_stops_a_keyspace(many in 0usize..1_000, setbacks in 1u32..9) {
            let settings = Settings { brake_setbacks: setbacks, ..Settings::default() };
            prop_assert!(loads_fail(1, many, &settings).is_none());
            prop_assert!(loads_fail(many, 1, &settings).is_none());
            prop_assert_eq!(loads_fail(many, many, &settings).is_some(), many > setbacks as usize);
        }
    }

    proptest! {
        /// However small the cluster, and whichever node is silent: no node is given up unless another answers that could
        /// take over, and never more than are borne.
        #[test]
        fn r4_the_last_that_could_take_over_is_never_given_up(
            dying in 1usize..40, silent in 0usize..40, able in 0usize..40,
        ) {
            let count = dying + silent + able;
            let dead = nodes(dying).into_iter().map(|node| (node, Suspects::new())).collect();
            let fleet = Fleet { standing: count, silent, able, laden: true };
            let verdict = Losses::default().judge(&dead, fleet, Millis(0), &Settings::default());
            let borne = f64::max(2.0, 0.2 * count as f64) + 1e-9;
            let given_up = able > 0 && (dying + silent) as f64 <= borne;
            prop_assert_eq!(verdict == Verdict::Acceptable, given_up, "{:?}", verdict);
            let too_many = if able == 0 { silent == 0 } else { dying as f64 > borne };
            prop_assert_eq!(is_too_many(&verdict), too_many);
        }
    }

    #[test]
    fn losses_count_together_within_the_window_only() {
        let all = nodes(10);
        let mut losses = Losses::default();
        losses.add(all[0].clone(), Millis(0), Suspects::new());
        losses.add(all[1].clone(), Millis(1_000), Suspects::new());
        let later = losses.clone();
        assert!(is_too_many(&judge(&losses, &all[2..3], 8, 59_999)));
        assert_eq!(judge(&later, &all[2..3], 8, 60_000), Verdict::Acceptable);
    }

    #[test]
    fn who_returns_does_not_count_and_nobody_dying_trips_nothing() {
        let all = nodes(10);
        let mut losses = Losses::default();
        all[..2].iter().for_each(|node| losses.add(node.clone(), Millis(0), Suspects::new()));
        losses.returned(&all[0]);
        assert_eq!(judge(&losses, &all[2..3], 9, 1), Verdict::Acceptable);
        losses.add(all[2].clone(), Millis(1), Suspects::new());
        losses.add(all[3].clone(), Millis(1), Suspects::new());
        assert_eq!(judge(&losses, &[], 7, 2), Verdict::Acceptable);
        losses.clear();
        assert_eq!(losses, Losses::default());
    }

    /// Node `at` falls every ten seconds, a second after it took these.
    fn fallen(deaths: &[&[u64]]) -> Losses {
        let mut losses = Losses::default();
        for (at, shards) in deaths.iter().enumerate() {
            let at = at as u64;
            losses.add(
                nodes(20)[at as usize].clone(),
                Millis(at * 10_000),
                suspects(at * 10_000 - at.min(1) * 9_000, shards),
            );
        }
        losses
    }

    fn suspects(taken: u64, shards: &[u64]) -> Suspects {
        shards.iter().map(|shard| (shard_name(*shard), Millis(taken))).collect()
    }

    fn shard_name(shard: u64) -> ShardName {
        (KeyspaceName::new("k").unwrap(), ShardId(shard))
    }

    fn dies_now(losses: &Losses, taken: u64, shards: &[u64], standing: usize) -> Verdict {
        let dying = BTreeMap::from([(nodes(20)[19].clone(), suspects(taken, shards))]);
        losses.judge(&dying, fleet(standing), Millis(20_000), &Settings::default())
    }

    #[test]
    fn r5_a_shard_that_went_from_one_lost_node_to_the_next_is_set_aside_before_the_brake_goes_on() {
        let losses = fallen(&[&[1, 2, 7], &[3, 7]]);
        let verdict = dies_now(&losses, 11_000, &[4, 7], 8);
        let Verdict::Poisoned { shards, deaths: 3, otherwise } = verdict else { panic!("{verdict:?}") };
        assert_eq!(shards, [shard_name(7)]);
        assert!(otherwise.starts_with("3 of 10 nodes were lost"), "{otherwise}");
        let other = dies_now(&losses, 11_000, &[4, 2], 8);
        assert!(is_too_many(&other), "2 was on the first and the third only");
    }

    #[test]
    fn r4_nodes_that_fall_together_explain_nothing_to_each_other() {
        let losses = Losses::default();
        let dying = nodes(3).into_iter().map(|node| (node, suspects(11_000, &[7]))).collect();
        assert!(is_too_many(&losses.judge(&dying, fleet(10), Millis(20_000), &Settings::default())));
        let losses = fallen(&[&[7], &[7]]);
        assert!(is_too_many(&dies_now(&losses, 9_999, &[7], 8)), "it was there before the second fell");
    }

    #[test]
    fn r4_what_a_shard_explains_counts_as_one_and_the_rest_as_ever() {
        let mut losses = fallen(&[&[7], &[7]]);
        losses.add(nodes(20)[18].clone(), Millis(15_000), Suspects::new());
        assert!(matches!(dies_now(&losses, 11_000, &[7], 7), Verdict::Poisoned { deaths: 3, .. }));
        losses.add(nodes(20)[17].clone(), Millis(15_000), Suspects::new());
        assert!(is_too_many(&dies_now(&losses, 11_000, &[7], 7)));
    }

    #[test]
    fn r4_a_shard_explains_no_more_than_poison_deaths() {
        let mut losses = fallen(&[&[7], &[7]]);
        let settings = Settings { poison_deaths: 2, ..Settings::default() };
        let dying =
            |at: u64| BTreeMap::from([(nodes(20)[at as usize].clone(), suspects(at * 10_000 - 9_000, &[7]))]);
        assert!(matches!(
            losses.judge(&dying(2), fleet(8), Millis(20_000), &settings),
            Verdict::Poisoned { deaths: 3, .. }
        ));
        losses.add(nodes(20)[2].clone(), Millis(20_000), suspects(11_000, &[7]));
        assert!(is_too_many(&losses.judge(&dying(3), fleet(7), Millis(30_000), &settings)));
    }

    #[test]
    fn planning_waits_when_more_than_half_are_silent() {
        assert!(too_few(0, 2).is_none() && too_few(1, 3).is_none());
        assert!(too_few(0, 3).is_some());
        assert!(too_few(5, 10).is_none() && too_few(4, 10).is_some());
    }
}
