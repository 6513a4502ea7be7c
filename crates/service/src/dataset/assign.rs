//! Which partitions a node takes, computed by each node alone (S11).
//!
//! Each node knows how many partitions there are and which seats are taken, so it computes its own share by a rule that all
//! nodes have. A node that has heard of fewer or more seats computes another share; a partition that two nodes hold for that
//! reason does no harm, and what counts afterwards is which partitions nodes hold (S12).
//!
//! | dealing | rule |
//! |---|---|
//! | `interleaved` (the default) | round after round; each time the further copies go another way around |
//! | `ring_index` | Sequins' rule: copy number i to seat i mod n ([`ring_index`]) |
//! | `rendezvous`, `ring`, `jump` | the placement policy of that name, over the seats |
//!
//! - (da) every partition is at min(R, n) different seats, for R replicas and n seats;
//! - (db) by `interleaved` and `ring_index` all seats have the same number of partitions, give or take one;
//! - (dc) by `interleaved` no two seats have the same partitions, if there are at least as many partitions as seats and
//!   more seats than replicas; by `ring_index` they come in groups that do whenever R divides n;
//! - (dd) the same seats give the same dealing, in whichever order nodes were heard of;
//! - (de) a partition that `max` others hold already is not taken.
//!
//! **How `interleaved` deals.** With n seats, round k gives each seat one new partition, and its further copies to R − 1
//! seats in a row, which begin k + 1 seats further on; each round is a permutation for each copy, so all get as many. In
//! the first round a seat's partitions are R in a row, which no other seat has. What is left for the last round, fewer
//! than n, begins evenly spaced and goes to R seats in a row, so that no seat gets more than one more than another.
//!
//! Not done: weights (nodes of a dataset cluster are alike; under a coordinator its policies weigh), and keeping what is
//! here when nodes come and go: a version is loaded once, so there is nothing to keep.

use partage_core::placement::{self, NodeSpec, Problem, Standing, UNKNOWN_DOMAIN, ring_index};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::seats::Seat;

/// How partitions are dealt to seats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Dealing {
    /// Deals in rounds; in each round the further copies begin one seat further on. The default. See the module.
    #[default]
    Interleaved,
    /// Sequins' rule: copy number i to seat i mod n ([`ring_index::dealt_to`]).
    RingIndex,
    /// The policy [`placement::Rendezvous`], over the seats.
    Rendezvous,
    /// The policy [`placement::Ring`], over the seats.
    Ring,
    /// The policy [`placement::Jump`], over the seats.
    Jump,
}

/// A name that no dealing has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no way {name:?} to deal out partitions: did you mean {nearest:?}? Known are {}", Dealing::ALL.map(Dealing::name).join(", "))]
pub struct UnknownDealing {
    /// As given, cut to 40 characters.
    pub name: String,
    /// The one that takes the fewest edits.
    pub nearest: &'static str,
}

impl Dealing {
    /// All, the default first.
    pub const ALL: [Dealing; 5] =
        [Dealing::Interleaved, Dealing::RingIndex, Dealing::Rendezvous, Dealing::Ring, Dealing::Jump];

    /// The name by which it is chosen.
    pub const fn name(self) -> &'static str {
        match self {
            Dealing::Interleaved => "interleaved",
            Dealing::RingIndex => "ring_index",
            Dealing::Rendezvous => "rendezvous",
            Dealing::Ring => "ring",
            Dealing::Jump => "jump",
        }
    }

    /// The seats of each partition, `replicas` of them if there are so many.
    pub fn deal(self, seats: &BTreeSet<Seat>, partitions: u32, replicas: u32) -> Vec<Vec<Seat>> {
        let seats: Vec<Seat> = seats.iter().copied().collect();
        let many = seats.len() as u32;
        let replicas = replicas.min(many);
        if replicas == 0 {
            return vec![Vec::new(); partitions as usize];
        }
        let places: Vec<Vec<u32>> = match self {
            Dealing::Interleaved => {
                (0..partitions).map(|partition| interleaved(partition, partitions, many, replicas)).collect()
            }
            Dealing::RingIndex => around(partitions, many, replicas),
            Dealing::Rendezvous | Dealing::Ring | Dealing::Jump => {
                return placed(self.name(), &seats, partitions, replicas);
            }
        };
        let named = |places: Vec<u32>| places.into_iter().map(|place| seats[place as usize]).collect();
        places.into_iter().map(named).collect()
    }
}

/// The places of a partition by `interleaved`.
fn interleaved(partition: u32, partitions: u32, places: u32, replicas: u32) -> Vec<u32> {
    let (round, first) = (partition / places, partition % places);
    if round < partitions / places {
        let along = |copy: u32| match copy {
            0 => 0,
            _ => 1 + (round + copy - 1) % (places - 1),
        };
        return (0..replicas).map(|copy| (first + along(copy)) % places).collect();
    }
    let left = partitions % places;
    let start = (u64::from(first) * u64::from(places) / u64::from(left)) as u32;
    (0..replicas).map(|copy| (start + copy) % places).collect()
}

/// The places of each partition by `ring_index`.
fn around(partitions: u32, places: u32, replicas: u32) -> Vec<Vec<u32>> {
    let mut found = vec![Vec::new(); partitions as usize];
    for place in 0..places {
        let dealt = ring_index::dealt_to(place.into(), places.into(), partitions.into(), replicas.into());
        dealt.into_iter().for_each(|partition| found[partition as usize].push(place));
    }
    found
}

/// The seats of each partition by a placement policy that computes.
fn placed(policy: &str, seats: &[Seat], partitions: u32, replicas: u32) -> Vec<Vec<Seat>> {
    let node = |seat: &Seat| NodeSpec {
        name: seat.node_id(),
        ring_index: seat.0,
        zone: UNKNOWN_DOMAIN,
        rack: UNKNOWN_DOMAIN,
        standing: Standing::Accepts,
    };
    let replicas = replicas.min(partage_core::limits::REPLICAS as u32) as u8;
    let problem = Problem::new(seats.iter().map(node).collect(), vec![replicas; partitions as usize]);
    let solution = placement::by_name(policy).ok().and_then(|policy| policy.place(&problem).ok());
    let named = |nodes: &[u32]| nodes.iter().map(|node| seats[*node as usize]).collect();
    // Seats are distinct and within the limits of a problem, so there is a solution; none would leave all untaken.
    solution
        .map_or(vec![Vec::new(); partitions as usize], |found| found.placement.iter().map(named).collect())
}

/// How many nodes have each partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replication {
    /// The number of seats to which each partition is dealt.
    pub wanted: u32,
    /// How many nodes must have each partition before clients get the version (S10).
    pub min: u32,
    /// A partition that so many others have is not taken, if there is a limit.
    pub max: Option<u32>,
}

impl Default for Replication {
    fn default() -> Replication {
        Replication { wanted: 2, min: 1, max: None }
    }
}

/// Why numbers of replicas make no sense together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the sentences say it")]
pub enum ReplicationError {
    #[error("replication is 0: no node would take a partition; set 1 or more")]
    Nothing,
    #[error("replication is {0}: the limit is {max}", max = partage_core::limits::REPLICAS)]
    TooMany(u32),
    #[error(
        "min_replication is {min} and replication {wanted}: set min_replication to 1 at least, and to the replication at most, else no version is ever upgraded to"
    )]
    Min { min: u32, wanted: u32 },
    #[error(
        "max_replication is {max}, below the replication of {wanted}: raise it to {wanted}, or leave it out"
    )]
    Max { max: u32, wanted: u32 },
}

impl Replication {
    /// Refuses what could never come true.
    ///
    /// # Errors
    /// [`ReplicationError`].
    pub fn check(&self) -> Result<(), ReplicationError> {
        let Replication { wanted, min, max } = *self;
        match max {
            _ if wanted == 0 => Err(ReplicationError::Nothing),
            _ if wanted as usize > partage_core::limits::REPLICAS => Err(ReplicationError::TooMany(wanted)),
            _ if min == 0 || min > wanted => Err(ReplicationError::Min { min, wanted }),
            Some(max) if max < wanted => Err(ReplicationError::Max { max, wanted }),
            _ => Ok(()),
        }
    }

    /// The partitions that are dealt to `me` and not held by too many others already (de).
    pub fn share(&self, dealt: &[Vec<Seat>], me: Seat, held: impl Fn(u32) -> usize) -> BTreeSet<u32> {
        let is_full = |partition: u32| self.max.is_some_and(|max| held(partition) >= max as usize);
        let all = (0u32..).zip(dealt);
        all.filter(|(partition, seats)| seats.contains(&me) && !is_full(*partition)).map(|(p, _)| p).collect()
    }

    /// The partitions that `me` takes to make good for lost replicas: the first of the seats that a partition is dealt to and
    /// that lack it take it, as many as replicas are lost. `holders` are the seats of the nodes that have it, `me` not among
    /// them.
    pub fn mend(
        &self,
        dealt: &[Vec<Seat>],
        me: Seat,
        here: &BTreeSet<u32>,
        holders: impl Fn(u32) -> Vec<Seat>,
    ) -> BTreeSet<u32> {
        let takes = |(partition, seats): (u32, &Vec<Seat>)| {
            let held = holders(partition);
            let lacking = seats.len().saturating_sub(held.len());
            let mut next = seats.iter().filter(|seat| !held.contains(seat)).take(lacking);
            (!here.contains(&partition) && next.any(|seat| *seat == me)).then_some(partition)
        };
        (0u32..).zip(dealt).filter_map(takes).collect()
    }
}

impl fmt::Display for Dealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Dealing {
    type Err = UnknownDealing;

    fn from_str(name: &str) -> Result<Dealing, UnknownDealing> {
        let found = Dealing::ALL.into_iter().find(|dealing| dealing.name() == name);
        let nearest = || {
            partage_core::base::suggest::nearest(name, Dealing::ALL.map(Dealing::name))
                .unwrap_or("interleaved")
        };
        found.ok_or_else(|| UnknownDealing { name: name.chars().take(40).collect(), nearest: nearest() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seats(many: u32) -> BTreeSet<Seat> {
        (1..=many).map(Seat).collect()
    }

    /// What each seat has, the first seat's first.
    fn held(dealing: Dealing, many: u32, partitions: u32, replicas: u32) -> Vec<Vec<u32>> {
        let dealt = dealing.deal(&seats(many), partitions, replicas);
        let of = |seat: Seat| Replication::default().share(&dealt, seat, |_| 0).into_iter().collect();
        seats(many).into_iter().map(of).collect()
    }

    #[test]
    fn da_sequins_example_by_name() {
        let dealing: Dealing = "ring_index".parse().unwrap();
        let golden = [[0, 1, 3], [0, 2, 3], [0, 2, 4], [1, 2, 4], [1, 3, 4]];
        assert_eq!(held(dealing, 5, 5, 3), golden);
        // With one node more they come in groups: what the default is there to avoid.
        let groups: [&[u32]; 6] = [&[0, 2, 4], &[0, 2, 4], &[0, 2, 4], &[1, 3], &[1, 3], &[1, 3]];
        assert_eq!(held(dealing, 6, 5, 3), groups);
    }

    #[test]
    fn dc_six_partitions_on_six_nodes() {
        let golden = [[0, 5], [0, 1], [1, 2], [2, 3], [3, 4], [4, 5]];
        assert_eq!(held(Dealing::Interleaved, 6, 6, 2), golden);
        // Later rounds pair each seat with other seats.
        let dealt = Dealing::Interleaved.deal(&seats(6), 30, 2);
        let beside: BTreeSet<Seat> =
            dealt.iter().filter(|seats| seats.contains(&Seat(1))).flatten().copied().collect();
        assert_eq!(beside, seats(6));
    }

    #[test]
    fn de_what_others_hold_is_not_taken() {
        let dealt = Dealing::RingIndex.deal(&seats(3), 5, 2);
        let replication = Replication { max: Some(2), ..Replication::default() };
        assert!(replication.share(&dealt, Seat(3), |_| 2).is_empty());
        assert_eq!(
            Replication::default().share(&dealt, Seat(3), |_| 2).into_iter().collect::<Vec<_>>(),
            [1, 2, 4]
        );
        assert_eq!(
            replication.share(&dealt, Seat(3), |partition| 2 * usize::from(partition != 4)),
            [4].into()
        );
    }

    #[test]
    fn lost_replicas_are_made_good_by_as_many_as_are_lacking() {
        let dealt = vec![vec![Seat(1), Seat(2), Seat(3)]];
        let replication = Replication { wanted: 3, ..Replication::default() };
        let takes = |me, holders: &[u32]| {
            let holders: Vec<_> = holders.iter().map(|seat| Seat(*seat)).collect();
            !replication.mend(&dealt, Seat(me), &BTreeSet::new(), |_| holders.clone()).is_empty()
        };
        assert_eq!([1, 2, 3].map(|me| takes(me, &[])), [true; 3]);
        assert_eq!([1, 2, 3].map(|me| takes(me, &[2])), [true, false, true]);
        assert_eq!(
            [1, 2, 3].map(|me| takes(me, &[7, 8])),
            [true, false, false],
            "one is lacking, the first takes it"
        );
        assert_eq!([1, 2, 3].map(|me| takes(me, &[7, 8, 9])), [false; 3]);
        assert!(replication.mend(&dealt, Seat(1), &[0].into(), |_| vec![]).is_empty(), "it is here");
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let told =
            |wanted, min, max| Replication { wanted, min, max }.check().map_err(|error| error.to_string());
        assert_eq!(told(2, 1, None), Ok(()));
        assert_eq!(told(2, 2, Some(2)), Ok(()));
        assert!(told(0, 0, None).is_err() && told(65, 1, None).is_err() && told(2, 0, None).is_err());
        assert!(told(2, 3, None).unwrap_err().contains("min_replication is 3"));
        assert!(told(2, 1, Some(1)).unwrap_err().contains("raise it to 2"));
        assert!(
            "ring_indx".parse::<Dealing>().unwrap_err().to_string().contains("did you mean \"ring_index\"")
        );
    }

    proptest! {
        #[test]
        fn da_as_many_different_seats_as_replicas(many in 1u32..12, partitions in 0u32..60, replicas in 1u32..6) {
            for dealing in Dealing::ALL {
                let dealt = dealing.deal(&seats(many), partitions, replicas);
                prop_assert_eq!(dealt.len(), partitions as usize);
                for of in dealt {
                    let different: BTreeSet<_> = of.iter().collect();
                    prop_assert_eq!(different.len() as u32, replicas.min(many), "{} {:?}", dealing, of);
                    prop_assert_eq!(of.len(), different.len());
                }
            }
        }

        #[test]
        fn db_all_have_as_many(many in 1u32..40, partitions in 0u32..200, replicas in 1u32..6) {
            for dealing in [Dealing::Interleaved, Dealing::RingIndex] {
                let counts: Vec<usize> = held(dealing, many, partitions, replicas).iter().map(Vec::len).collect();
                let spread = counts.iter().max().unwrap() - counts.iter().min().unwrap();
                prop_assert!(spread <= 1, "{} {:?}", dealing, counts);
            }
        }

        #[test]
        fn dc_no_two_have_the_same(replicas in 1u32..6, more in 1u32..20, further in 0u32..100) {
            let many = replicas + more;
            let held = held(Dealing::Interleaved, many, many + further, replicas);
            let different: BTreeSet<_> = held.iter().collect();
            prop_assert_eq!(different.len(), many as usize, "{:?}", held);
        }

        #[test]
        fn dd_seats_count_and_not_who_came_first(ids in prop::collection::btree_set(1u32..1_000, 1..8), partitions in 1u32..40) {
            let forth: BTreeSet<Seat> = ids.iter().map(|id| Seat(*id)).collect();
            let back: BTreeSet<Seat> = ids.iter().rev().map(|id| Seat(*id)).collect();
            for dealing in Dealing::ALL {
                prop_assert_eq!(dealing.deal(&forth, partitions, 2), dealing.deal(&back, partitions, 2));
            }
        }
    }
}
