//! Those who know the truth: true time, every map that was committed, every owner, every write.
//!
//! | file           | holds                                           |
//! |----------------|-------------------------------------------------|
//! | `ownership.rs` | O1, O6, O7                                      |
//! | `maps.rs`      | M1–M8 by core's check, M2, M3, O3, O8, O10, O11, D4 |
//! | `data.rs`      | D1, D2                                          |
//! | `liveness.rs`  | L1, L2, L3, once faults have stopped            |

pub mod data;
pub mod liveness;
pub mod maps;
pub mod ownership;

use crate::clock::True;
use crate::message::Request;
use crate::model::{KeyAt, Space, Storage};
use ownership::Claim;
use partage_core::id::Incarnation;
use partage_core::worker::gates::Permit;
use std::rc::Rc;

/// An invariant that was broken, and how.
pub type Finding = (&'static str, String);

/// A process of a node: its place, its start, and what the coordinator calls it.
pub type Who = (usize, u32, Option<Incarnation>);

/// The oracles of a run.
#[derive(Debug)]
pub struct Oracles {
    /// The keyspaces of the run.
    pub spaces: Rc<[Space]>,
    /// What is stored.
    pub storage: Storage,
    /// Who believes to own what.
    pub ownership: ownership::Ownership,
    /// What was committed.
    pub maps: maps::Maps,
    /// What was read and written.
    pub data: data::Data,
}

impl Oracles {
    /// Of a run with these keyspaces and that many nodes.
    pub fn new(spaces: Rc<[Space]>, nodes: usize) -> Oracles {
        Oracles {
            storage: Storage::default(),
            ownership: ownership::Ownership::new(nodes),
            maps: maps::Maps::new(&spaces),
            data: data::Data::default(),
            spaces,
        }
    }

    /// A process believes to own exactly `claims`, until `until` if nothing happens (O1, O6).
    pub fn own(&mut self, now: True, who: Who, claims: Vec<Claim>, until: True) -> Vec<Finding> {
        let mut findings = self.ownership.check(now, who.0, &claims);
        if let Some(incarnation) = who.2
            && !claims.is_empty()
            && self.maps.has_ended(who.0, incarnation)
        {
            findings.push(("O6", format!("node-{} acts as {incarnation}, which has ended", who.0)));
        }
        self.ownership.claims(who.0, who.1, claims, until);
        findings
    }

    /// A request was let in (D4, O3).
    pub fn served(
        &self,
        now: True,
        (node, incarnation): (usize, Option<Incarnation>),
        request: &Request,
        permit: &Permit,
    ) -> Vec<Finding> {
        let mut findings = self.maps.permitted(&self.spaces, node, incarnation, request, permit);
        if self.spaces[request.key.keyspace].is_exclusive() {
            findings.extend(self.ownership.alone(now, node, request.key));
        }
        findings
    }

    /// A permit was said to hold all along (O7).
    pub fn still_held(
        &self,
        now: True,
        node: usize,
        permit: &Permit,
        key: KeyAt,
        owners: u64,
    ) -> Vec<Finding> {
        if !self.spaces[key.keyspace].is_exclusive() || permit.role != partage_core::map::Role::Leader {
            return Vec::new();
        }
        let mut findings = self.ownership.alone(now, node, key);
        let seen = self.ownership.owners(key);
        if seen != owners {
            let text =
                format!("node-{node} says mine all along of {key:?}, but {} others were", seen - owners);
            findings.push(("O7", text));
        }
        findings
    }
}
