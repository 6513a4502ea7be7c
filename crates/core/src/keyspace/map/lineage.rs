//! Where a shard is in its own life, and what it comes from.

use super::{Family, Stage};
use crate::base::id::ShardId;

/// Of nearly all shards there is nothing to tell: they serve, and began with their keyspace. So it is a single
/// pointer, and takes no memory beyond it where that is so.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Lineage(Option<Box<(Stage, Family)>>);

impl Lineage {
    /// A shard at that stage, of those parents.
    pub fn new(stage: Stage, parents: Family) -> Lineage {
        let is_plain = stage == Stage::Serving && parents.is_empty();
        Lineage((!is_plain).then(|| Box::new((stage, parents))))
    }

    pub(super) fn stage(&self) -> &Stage {
        self.0.as_deref().map_or(&Stage::Serving, |(stage, _)| stage)
    }

    pub(super) fn parents(&self) -> &[ShardId] {
        self.0.as_deref().map_or(&[], |(_, parents)| parents)
    }

    /// The same parents, at another stage.
    pub(super) fn turn(&mut self, stage: Stage) {
        let parents = self.0.take().map(|told| told.1).unwrap_or_default();
        *self = Lineage::new(stage, parents);
    }
}

impl std::fmt::Debug for Lineage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lineage").field("stage", self.stage()).field("parents", &self.parents()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_it_was_told_and_turns() {
        let family = |ids: &[u64]| -> Family { ids.iter().copied().map(ShardId).collect() };
        let stages =
            [Stage::Serving, Stage::Forming(family(&[3, 4])), Stage::Closing(family(&[5])), Stage::Removing];
        for parents in [family(&[]), family(&[1, 2])] {
            for stage in &stages {
                let lineage = Lineage::new(stage.clone(), parents.clone());
                assert_eq!((lineage.stage(), lineage.parents()), (stage, &*parents));
                assert_eq!(lineage == Lineage::default(), *stage == Stage::Serving && parents.is_empty());
                for other in &stages {
                    let mut turned = lineage.clone();
                    turned.turn(other.clone());
                    assert_eq!(turned, Lineage::new(other.clone(), parents.clone()));
                }
            }
        }
    }
}
