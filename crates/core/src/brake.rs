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
//! | more than max(2, half) of the nodes do not answer, none given up yet | planning waits until they answer |
//! | a lost node registers again                                   | it does not count as lost             |
//! | a node leaves as announced                                    | it never counted as lost              |
//!
//! The second line has no latch: nothing was decided yet, so nothing has to be undone by hand.

use crate::name::NodeId;
use crate::settings::Settings;
use crate::time::Millis;
use std::collections::BTreeMap;

/// Losses that are always borne, however small the cluster: one, and another while it is being repaired.
const ALWAYS_BORNE: usize = 2;

/// Nodes that were given up lately. Not stored: what died while no coordinator looked is lost at one moment
/// for the next one, and counts together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses {
    lost: BTreeMap<NodeId, Millis>,
}

impl Losses {
    /// A node was given up.
    pub fn add(&mut self, node: NodeId, now: Millis) {
        self.lost.insert(node, now);
    }

    /// It is back, as a new process, or was removed by a person.
    pub fn returned(&mut self, node: &NodeId) {
        self.lost.remove(node);
    }

    /// A person has looked: count from here.
    pub fn clear(&mut self) {
        self.lost.clear();
    }

    /// Whether giving up `dying` now would be too much, in a sentence. `standing` counts the nodes that have
    /// not been given up, `dying` ones included.
    pub fn too_many(
        &mut self,
        dying: &[NodeId],
        standing: usize,
        now: Millis,
        settings: &Settings,
    ) -> Option<String> {
        self.lost.retain(|_, at| now.since(*at) < settings.brake_window_ms);
        let earlier = self.lost.keys().filter(|node| !dying.contains(node)).count();
        let (lost, nodes) = (earlier + dying.len(), earlier + standing);
        let borne = ALWAYS_BORNE.max((settings.brake_share * nodes as f64) as usize);
        (!dying.is_empty() && lost > borne).then(|| {
            format!(
                "{lost} of {nodes} nodes were lost within {} s, more than the {borne} that are replaced without \
                 asking",
                settings.brake_window_ms.div_ceil(1_000)
            )
        })
    }
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

    proptest! {
        #[test]
        fn r4_the_threshold_is_exact(count in 1usize..200, dying in 0usize..200) {
            let dying = nodes(dying.min(count));
            let verdict = Losses::default().too_many(&dying, count, Millis(0), &Settings::default());
            let allowed = f64::max(2.0, 0.2 * count as f64);
            prop_assert_eq!(verdict.is_some(), dying.len() as f64 > allowed + 1e-9);
        }
    }

    #[test]
    fn losses_count_together_within_the_window_only() {
        let (settings, all) = (Settings::default(), nodes(10));
        let mut losses = Losses::default();
        losses.add(all[0].clone(), Millis(0));
        losses.add(all[1].clone(), Millis(1_000));
        let mut later = losses.clone();
        assert!(losses.too_many(&all[2..3], 8, Millis(59_999), &settings).is_some());
        assert!(later.too_many(&all[2..3], 8, Millis(60_000), &settings).is_none());
    }

    #[test]
    fn who_returns_does_not_count_and_nobody_dying_trips_nothing() {
        let (settings, all) = (Settings::default(), nodes(10));
        let mut losses = Losses::default();
        all[..2].iter().for_each(|node| losses.add(node.clone(), Millis(0)));
        losses.returned(&all[0]);
        assert!(losses.too_many(&all[2..3], 9, Millis(1), &settings).is_none());
        losses.add(all[2].clone(), Millis(1));
        losses.add(all[3].clone(), Millis(1));
        assert!(losses.too_many(&[], 7, Millis(2), &settings).is_none());
        losses.clear();
        assert_eq!(losses, Losses::default());
    }

    #[test]
    fn planning_waits_when_more_than_half_are_silent() {
        assert!(too_few(0, 2).is_none() && too_few(1, 3).is_none());
        assert!(too_few(0, 3).is_some());
        assert!(too_few(5, 10).is_none() && too_few(4, 10).is_some());
    }
}
