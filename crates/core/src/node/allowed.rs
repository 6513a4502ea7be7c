//! Which nodes a keyspace and its constraint let a shard be on, and what its replicas would lose together.
//!
//! A keyspace does not know nodes; what it says of them is answered here, where both are known.

use crate::base::name::Zone;
use crate::keyspace::{Constraint, Keyspace, Spread};
use crate::node::NodeSpec;

impl Keyspace {
    /// Whether its shards may be on that node: the node serves its kind, and its constraint has nothing against it.
    pub fn allows(&self, node: &NodeSpec) -> bool {
        node.kinds.contains(&self.kind) && self.constraint.allows(node)
    }
}

impl Constraint {
    /// Whether a shard with this constraint may be on that node.
    pub fn allows(&self, node: &NodeSpec) -> bool {
        (self.pinned.is_empty() || self.pinned.contains(&node.id))
            && !self.excluded.contains(&node.id)
            && self.labels.is_subset(&node.labels)
    }
}

impl Spread {
    /// What would be lost together with that node, as far as it is known. Racks of different zones are different
    /// racks, whatever their names.
    pub fn domain(self, node: &NodeSpec) -> Option<(Option<&Zone>, &Zone)> {
        match self {
            Spread::Node => None,
            Spread::Zone | Spread::ZoneStrict => node.zone.as_ref().map(|zone| (None, zone)),
            Spread::Rack | Spread::RackStrict => node.rack.as_ref().map(|rack| (node.zone.as_ref(), rack)),
        }
    }
}
