//! Which servers are to keep a map: as many as there should be, of those that are there.
//!
//! | the list                                             | what follows                                       |
//! |------------------------------------------------------|----------------------------------------------------|
//! | is shorter than it should be, and others are there   | one of them joins                                  |
//! | has one that is gone for long, and others are there  | one of them joins, and then that one leaves        |
//! | has one that is gone for long, and no other is there | stays: it may come back with its files             |
//! | is longer than it should be, with one gone for long  | that one leaves                                    |
//! | had no majority when a change was to be stored       | those that are there, see [`remaining`]            |

use super::{SERVERS, choose};
use partage_core::base::name::NodeId;
use partage_core::base::time::Millis;
use std::collections::{BTreeMap, BTreeSet};

/// How long a server may be away before another takes its place, in milliseconds: longer than a machine takes to
/// start again, so that a rolling restart copies nothing.
pub const AWAY_MS: u64 = 60_000;

/// What to do about the servers of one map: first the one joins, then the other leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// The node that becomes one of the servers.
    pub joins: Option<NodeId>,
    /// The server that is to be none any more.
    pub leaves: Option<NodeId>,
}

/// Since when servers that some list names are away.
#[derive(Debug, Clone, Default)]
pub struct Absences(BTreeMap<NodeId, Millis>);

impl Absences {
    /// Notes which servers are there now, of those that any list names.
    pub fn look(&mut self, now: Millis, listed: &BTreeSet<NodeId>, present: &[NodeId]) {
        self.0.retain(|server, _| listed.contains(server) && !present.contains(server));
        for server in listed.iter().filter(|server| !present.contains(server)) {
            self.0.entry(server.clone()).or_insert(now);
        }
    }

    fn is_long(&self, now: Millis, server: &NodeId) -> bool {
        self.0.get(server).is_some_and(|since| now.since(*since) >= AWAY_MS)
    }

    /// What to do about a map that `servers` keep, while `present` are there. `seed` draws the one that joins.
    pub fn mend(
        &self,
        now: Millis,
        servers: &[NodeId],
        present: &[NodeId],
        seed: u64,
    ) -> Option<Replacement> {
        let leaves = servers.iter().find(|server| self.is_long(now, server)).cloned();
        if servers.len() >= SERVERS && leaves.is_none() {
            return None;
        }
        if servers.len() > SERVERS {
            // Another has taken its place already.
            return Some(Replacement { joins: None, leaves });
        }
        let others: Vec<_> = present.iter().filter(|server| !servers.contains(server)).cloned().collect();
        let joins = choose(&others, 1, seed).pop()?;
        // A list that is too short has room for both.
        let leaves = leaves.filter(|_| servers.len() >= SERVERS);
        Some(Replacement { joins: Some(joins), leaves })
    }
}

/// The lists to try, in order, where too few of `servers` stored a change: those that are there, and `me` alone. A
/// list counts only when most of it has the map, so nothing is lost by it; a server left out joins again later.
pub fn remaining(servers: &[NodeId], present: &[NodeId], me: Option<&NodeId>) -> Vec<Vec<NodeId>> {
    let is_there = |server: &&NodeId| present.contains(server) || Some(*server) == me;
    let there: Vec<_> = servers.iter().filter(is_there).cloned().collect();
    let alone: Vec<_> = servers.iter().filter(|server| Some(*server) == me).cloned().collect();
    let mut lists = vec![there, alone];
    lists.retain(|list| !list.is_empty() && list.len() < servers.len());
    lists.dedup();
    lists
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(numbers: &[u8]) -> Vec<NodeId> {
        numbers.iter().map(|number| NodeId::new(&format!("m{number}")).unwrap()).collect()
    }

    fn looked(at: u64, servers: &[NodeId], present: &[NodeId]) -> Absences {
        let mut absences = Absences::default();
        absences.look(Millis(at), &servers.iter().cloned().collect(), present);
        absences
    }

    #[test]
    fn a_short_list_grows_and_a_whole_one_stays() {
        let (servers, present) = (names(&[1]), names(&[1, 2]));
        let mended = looked(0, &servers, &present).mend(Millis(1), &servers, &present, 7);
        assert_eq!(mended, Some(Replacement { joins: Some(names(&[2])[0].clone()), leaves: None }));
        let (servers, present) = (names(&[1, 2, 3]), names(&[1, 2, 3, 4]));
        assert_eq!(looked(0, &servers, &present).mend(Millis(u64::MAX), &servers, &present, 7), None);
    }

    #[test]
    fn who_is_away_for_long_is_replaced_and_not_before() {
        let (servers, present) = (names(&[1, 2, 3]), names(&[1, 2, 4]));
        let absences = looked(100, &servers, &present);
        assert_eq!(absences.mend(Millis(99 + AWAY_MS), &servers, &present, 7), None);
        let mended = absences.mend(Millis(100 + AWAY_MS), &servers, &present, 7).unwrap();
        assert_eq!((mended.joins, mended.leaves), (names(&[4]).pop(), names(&[3]).pop()));
        let nobody_else = names(&[1, 2]);
        assert_eq!(absences.mend(Millis(100 + AWAY_MS), &servers, &nobody_else, 7), None);
    }

    #[test]
    fn who_joined_for_another_that_did_not_leave_yet_is_enough() {
        let (servers, present) = (names(&[1, 2, 3, 4]), names(&[1, 2, 4]));
        let mended = looked(0, &servers, &present).mend(Millis(AWAY_MS), &servers, &present, 7).unwrap();
        assert_eq!((mended.joins, mended.leaves), (None, names(&[3]).pop()));
        let all = names(&[1, 2, 3, 4]);
        assert_eq!(looked(0, &servers, &all).mend(Millis(AWAY_MS), &servers, &all, 7), None);
    }

    #[test]
    fn who_comes_back_begins_anew() {
        let (servers, present) = (names(&[1, 2, 3]), names(&[1, 2, 4]));
        let mut absences = looked(0, &servers, &present);
        let listed = servers.iter().cloned().collect();
        absences.look(Millis(AWAY_MS - 1), &listed, &names(&[1, 2, 3, 4]));
        absences.look(Millis(AWAY_MS), &listed, &present);
        assert_eq!(absences.mend(Millis(AWAY_MS + 1), &servers, &present, 7), None);
    }

    #[test]
    fn what_remains_is_shorter_and_has_nobody_new() {
        let me = names(&[1])[0].clone();
        let lists = remaining(&names(&[1, 2, 3]), &names(&[2, 4]), Some(&me));
        assert_eq!(lists, [names(&[1, 2]), names(&[1])]);
        assert_eq!(remaining(&names(&[1, 2, 3]), &names(&[2, 3]), Some(&me)), [names(&[1])]);
        assert!(remaining(&names(&[1]), &names(&[]), Some(&me)).is_empty());
        assert!(remaining(&names(&[2]), &names(&[]), Some(&me)).is_empty());
    }

    proptest! {
        #[test]
        fn nobody_joins_who_is_in_or_away(servers in proptest::collection::btree_set(0u8..8, 1..6),
                                          present in proptest::collection::btree_set(0u8..8, 0..6),
                                          seed: u64, now in 0..3 * AWAY_MS) {
            let servers = names(&servers.into_iter().collect::<Vec<_>>());
            let present = names(&present.into_iter().collect::<Vec<_>>());
            let absences = looked(0, &servers, &present);
            if let Some(mended) = absences.mend(Millis(now), &servers, &present, seed) {
                prop_assert!(mended.joins.is_some() || mended.leaves.is_some());
                if let Some(joins) = mended.joins {
                    prop_assert!(present.contains(&joins) && !servers.contains(&joins));
                }
                if let Some(leaves) = mended.leaves {
                    prop_assert!(servers.contains(&leaves) && !present.contains(&leaves));
                    prop_assert!(now >= AWAY_MS && servers.len() >= SERVERS);
                }
            } else {
                let grows = servers.len() < SERVERS && present.iter().any(|one| !servers.contains(one));
                let away = servers.iter().any(|one| !present.contains(one)) && now >= AWAY_MS;
                prop_assert!(!(grows || away && servers.len() > SERVERS));
            }
        }
    }
}
