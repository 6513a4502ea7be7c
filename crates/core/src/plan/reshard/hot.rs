//! Hot keys and hot shards (K12): one key that draws most requests gets a shard of its own; a shard that is
//! hot and cannot be cut gets more replicas; and where that is used up, the planner asks a person to pin it.

use super::{Candidate, Carried, Proposals, SustainedLoad, Terms};
use crate::keyspace::Resharding;
use crate::keyspace::key::Key;
use crate::limits;

/// The key that draws more than its share of the shard's requests, if one does.
pub fn heavy<'a>(carried: &'a Carried, limits: &Resharding) -> Option<&'a Key> {
    let first = carried.hot_keys.first()?;
    (first.requests_per_s > limits.hot_key_share * carried.requests_per_s).then_some(&first.key)
}

/// How many replicas a shard that is not being cut should have, when that is not the keyspace's own count.
/// What it has now is the memory: a coordinator that has just started keeps it until it has been calm for
/// a whole window.
pub(super) fn replicas(
    candidate: &Candidate<'_>,
    terms: &Terms<'_>,
    sustained: &SustainedLoad,
    out: &mut Proposals,
) {
    let (has, own, most) = (candidate.copies() as u32, terms.replicas, terms.resharding.max_replicas);
    let id = candidate.shard.id;
    let wanted = match sustained {
        SustainedLoad { strained: true, .. } if has < most => has + 1,
        SustainedLoad { strained: true, .. } => {
            if out.advice.len() < limits::COMPLAINTS {
                out.advice.push(advice(candidate, most.max(own)));
            }
            has
        }
        SustainedLoad { calm: true, .. } => has - 1,
        _ => has,
    };
    let wanted = wanted.min(most).max(own);
    if wanted != own {
        out.replicas.insert(id, wanted);
    }
}

fn advice(candidate: &Candidate<'_>, most: u32) -> String {
    let (id, rate) = (candidate.shard.id, candidate.carried.requests_per_s);
    format!(
        "{id} has {rate:.0} requests a second on {} of at most {most} replicas and cannot be cut: raise \
         max_replicas, or pin it to a node of its own with `partage shard pin`",
        candidate.copies()
    )
}
