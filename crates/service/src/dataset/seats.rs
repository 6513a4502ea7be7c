//! The seat of a node: the number by which partitions are dealt to it, which Sequins calls shard id (S11).
//!
//! A node takes the free seat of the lowest number. Two nodes that start at once may claim the same one; both then hear of it,
//! and the same rule tells both which of them yields: a node that has had the seat for a while keeps it, and of two that
//! have just come, the one whose name is first. A configured seat is never left, and nodes that share one have the same
//! partitions.
//!
//! - (sa) a configured seat is never left, and nodes of one configured seat share it;
//! - (sb) a node that is to find one takes the lowest free seat, from 1 on, or the one it had before if that is free;
//! - (sc) of two that have one seat, and did not both configure it, exactly one yields, and both know which, as soon as
//!   both have heard of each other;
//! - (sd) a node that was there before a newcomer stays;
//! - (se) when all have heard of all, no two nodes that were to find a seat have the same.
//!
//! Not done: a lock in the coordination service. Gossip has none, and a seat that two share for a moment costs a
//! partition that is loaded twice.

use partage_core::base::name::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// A place at the table, from 1 on where it is found, any number where it is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seat(pub u32);

impl Seat {
    /// The seat as placement policies know nodes.
    pub(super) fn node_id(self) -> NodeId {
        NodeId::new(&self.0.to_string()).expect("digits are a name")
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Where a node is reached by its peers, `host:port`: what it is called in the cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(Arc<str>);

/// Why something is not where a node is reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no address of a node: write host:port, of at most 255 printable characters without / and @"
)]
pub struct AddressError(String);

impl Address {
    /// Checks that it can be part of a key of the coordination service.
    ///
    /// # Errors
    /// When it cannot, or has no port.
    pub fn new(address: &str) -> Result<Address, AddressError> {
        let is_fine = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b'@';
        let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let has_port = port.is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if has_port && address.len() <= 255 && address.bytes().all(is_fine) {
            Ok(Address(address.into()))
        } else {
            Err(AddressError(address.chars().take(300).collect()))
        }
    }

    /// The address as text: `host:port`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The right by which a node has its seat; the stronger one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// The configuration of the node names the seat.
    Configured,
    /// It has had it since nodes were stable.
    Settled,
    /// It has just taken it.
    Taken,
}

/// A node's seat, as it publishes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    /// The seat that the node claims.
    pub seat: Seat,
    /// The right by which it has the seat: of two claims the stronger one stays.
    pub right: Right,
}

/// What a node wants of a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// The seat that the configuration of the node names.
    Configured(Seat),
    /// Any; rather the one it had before.
    Any {
        /// Which it had, if it had one.
        before: Option<Seat>,
    },
}

/// Which seat `me` has from now on, when it has `mine` so far and hears of `others`.
pub fn claim(wish: Wish, me: &Address, mine: Option<Claim>, others: &BTreeMap<Address, Claim>) -> Claim {
    let before = match wish {
        Wish::Configured(seat) => return Claim { seat, right: Right::Configured },
        Wish::Any { before } => before,
    };
    let yields = |mine: &Claim| {
        let is_before = |(other, theirs): (&Address, &Claim)| {
            theirs.seat == mine.seat && (theirs.right, other) < (mine.right, me)
        };
        others.iter().any(is_before)
    };
    if let Some(mine) = mine.filter(|mine| !yields(mine)) {
        return mine;
    }
    let taken: BTreeSet<Seat> = others.values().map(|claim| claim.seat).collect();
    let free = |seat: &Seat| !taken.contains(seat);
    // One of the first so many is free, as there are fewer others than that.
    let lowest = (1..).map(Seat).find(free).unwrap_or(Seat(1));
    Claim { seat: before.filter(free).unwrap_or(lowest), right: Right::Taken }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANY: Wish = Wish::Any { before: None };

    fn address(number: usize) -> Address {
        Address::new(&format!("node-{number}:9599")).unwrap()
    }

    fn others(claims: &[(usize, u32, Right)]) -> BTreeMap<Address, Claim> {
        claims
            .iter()
            .map(|(node, seat, right)| (address(*node), Claim { seat: Seat(*seat), right: *right }))
            .collect()
    }

    fn seat(wish: Wish, me: usize, mine: Option<(u32, Right)>, claims: &[(usize, u32, Right)]) -> u32 {
        let mine = mine.map(|(seat, right)| Claim { seat: Seat(seat), right });
        claim(wish, &address(me), mine, &others(claims)).seat.0
    }

    #[test]
    fn sa_a_configured_seat_is_never_left() {
        let wish = Wish::Configured(Seat(7));
        assert_eq!(seat(wish, 5, Some((7, Right::Configured)), &[(1, 7, Right::Configured)]), 7);
        assert_eq!(
            seat(ANY, 1, Some((7, Right::Settled)), &[(5, 7, Right::Configured)]),
            1,
            "the other one yields"
        );
    }

    #[test]
    fn sb_the_lowest_free_one_or_the_one_from_before() {
        assert_eq!(seat(ANY, 9, None, &[]), 1);
        assert_eq!(seat(ANY, 9, None, &[(1, 1, Right::Settled), (2, 3, Right::Settled)]), 2);
        let before = Wish::Any { before: Some(Seat(5)) };
        assert_eq!(seat(before, 9, None, &[(1, 1, Right::Settled)]), 5);
        assert_eq!(seat(before, 9, None, &[(1, 5, Right::Taken)]), 1);
    }

    #[test]
    fn sd_who_was_there_before_stays() {
        assert_eq!(seat(ANY, 9, Some((3, Right::Settled)), &[(1, 3, Right::Taken)]), 3);
        assert_eq!(seat(ANY, 1, Some((3, Right::Taken)), &[(9, 3, Right::Settled)]), 1);
        assert_eq!(
            seat(ANY, 1, Some((3, Right::Taken)), &[(9, 3, Right::Taken)]),
            3,
            "of two newcomers, by name"
        );
    }

    #[test]
    fn addresses_are_segments_of_keys() {
        for fine in ["localhost:80", "10.0.0.1:9599", "[::1]:9599"] {
            assert!(Address::new(fine).is_ok(), "{fine}");
        }
        for bad in ["", "host", ":80", "a/b:80", "a@b:80", "h\u{e9}:80", "a b:80", "host:http", "host:70000"]
        {
            assert!(Address::new(bad).is_err(), "{bad:?}");
        }
        assert!(Address::new(&format!("{}:80", "x".repeat(253))).is_err());
    }

    proptest! {
        #[test]
        fn sc_se_all_come_to_sit_apart(
            starts in prop::collection::vec((1u32..5, 0u8..3), 2..7),
            order in prop::collection::vec(0usize..6, 0..60),
        ) {
            // Each has some claim and hears of the others at some times only, then all of all.
            let right = |number| [Right::Configured, Right::Settled, Right::Taken][usize::from(number)];
            let mut claims: BTreeMap<usize, Claim> = starts
                .iter()
                .enumerate()
                .map(|(node, (seat, number))| (node, Claim { seat: Seat(*seat), right: right(*number) }))
                .collect();
            let first = claims.clone();
            let everybody = 0..starts.len();
            let rounds = std::iter::repeat_n(everybody, starts.len() + 1).flatten();
            for node in order.into_iter().filter(|node| *node < starts.len()).chain(rounds) {
                let mine = claims[&node];
                let heard = claims.iter().filter(|(other, _)| **other != node);
                let heard = heard.map(|(other, claim)| (address(*other), *claim)).collect();
                let wish = if mine.right == Right::Configured { Wish::Configured(mine.seat) } else { ANY };
                claims.insert(node, claim(wish, &address(node), Some(mine), &heard));
            }
            for (node, claim) in &claims {
                prop_assert!(first[node].right != Right::Configured || first[node] == *claim);
                let same = claims.values().filter(|other| other.seat == claim.seat);
                let found = |claim: &Claim| claim.right != Right::Configured;
                prop_assert!(!found(claim) || same.count() == 1, "{:?}", claims);
            }
        }

        #[test]
        fn sc_exactly_one_of_two_yields(rights in (1u8..3, 1u8..3), names in (0usize..50, 50usize..99)) {
            let right = |number| if number == 1 { Right::Settled } else { Right::Taken };
            let (a, b) = (right(rights.0), right(rights.1));
            let first_moves = seat(ANY, names.0, Some((4, a)), &[(names.1, 4, b)]) != 4;
            let second_moves = seat(ANY, names.1, Some((4, b)), &[(names.0, 4, a)]) != 4;
            prop_assert!(first_moves != second_moves);
        }
    }
}
