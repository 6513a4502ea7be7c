//! The replicas of a shard, in no more memory than they need.

use super::Replica;
use std::ops::{Deref, DerefMut};

/// Replicas in the order of their placement ids. Most shards have one, or a few that stay as they are: one lies in
/// the shard itself, several in an allocation of just their size. Reads as a slice.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Replicas(Storage);

/// Equal lists have the same variant: `Many` holds two or more.
#[derive(Clone, PartialEq, Eq, Default)]
enum Storage {
    #[default]
    None,
    One(Replica),
    Many(Box<[Replica]>),
}

impl Replicas {
    /// Adds one at the end.
    pub fn push(&mut self, replica: Replica) {
        let mut all = self.take();
        all.push(replica);
        *self = all.into();
    }

    /// Keeps those of which `keep` says so.
    pub fn retain(&mut self, keep: impl FnMut(&Replica) -> bool) {
        let mut all = self.take();
        all.retain(keep);
        *self = all.into();
    }

    fn take(&mut self) -> Vec<Replica> {
        match std::mem::take(&mut self.0) {
            Storage::None => vec![],
            Storage::One(replica) => vec![replica],
            Storage::Many(replicas) => replicas.into(),
        }
    }
}

impl From<Vec<Replica>> for Replicas {
    fn from(mut replicas: Vec<Replica>) -> Replicas {
        Replicas(match replicas.len() {
            0 | 1 => replicas.pop().map_or(Storage::None, Storage::One),
            _ => Storage::Many(replicas.into()),
        })
    }
}

impl FromIterator<Replica> for Replicas {
    fn from_iter<I: IntoIterator<Item = Replica>>(replicas: I) -> Replicas {
        Vec::from_iter(replicas).into()
    }
}

impl Deref for Replicas {
    type Target = [Replica];
    fn deref(&self) -> &[Replica] {
        match &self.0 {
            Storage::None => &[],
            Storage::One(replica) => std::slice::from_ref(replica),
            Storage::Many(replicas) => replicas,
        }
    }
}

impl DerefMut for Replicas {
    fn deref_mut(&mut self) -> &mut [Replica] {
        match &mut self.0 {
            Storage::None => &mut [],
            Storage::One(replica) => std::slice::from_mut(replica),
            Storage::Many(replicas) => replicas,
        }
    }
}

impl std::fmt::Debug for Replicas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> IntoIterator for &'a Replicas {
    type Item = &'a Replica;
    type IntoIter = std::slice::Iter<'a, Replica>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Replicas {
    type Item = &'a mut Replica;
    type IntoIter = std::slice::IterMut<'a, Replica>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::id::{Incarnation, PlacementId};
    use crate::base::name::NodeId;
    use crate::keyspace::lifecycle::ReplicaState;
    use crate::keyspace::map::Role;
    use proptest::prelude::*;

    fn replica(placement: u64) -> Replica {
        Replica {
            placement: PlacementId(placement),
            node: NodeId::new("n").unwrap(),
            incarnation: Incarnation(1),
            role: Role::Follower,
            state: ReplicaState::Load,
            in_sync: false,
            predecessor: None,
        }
    }

    proptest! {
        #[test]
        fn they_hold_what_a_vector_holds(steps in prop::collection::vec((0u64..5, 0u8..3), 0..40)) {
            let (mut replicas, mut vector) = (Replicas::default(), Vec::new());
            for (placement, what) in steps {
                match what {
                    0 => {
                        replicas.push(replica(placement));
                        vector.push(replica(placement));
                    }
                    1 => {
                        replicas.retain(|r| r.placement.0 != placement);
                        vector.retain(|r| r.placement.0 != placement);
                    }
                    _ => {
                        replicas.iter_mut().for_each(|r| r.incarnation.0 += placement);
                        vector.iter_mut().for_each(|r| r.incarnation.0 += placement);
                    }
                }
                prop_assert_eq!(&*replicas, &*vector);
                prop_assert_eq!(&replicas, &Replicas::from(vector.clone()));
            }
        }
    }
}
