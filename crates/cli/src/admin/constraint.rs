//! Where shards may be, as flags.

use clap::Args;
use partage_wire::json::Constraint;

/// Where shards may be. A flag that is not given leaves its part as it is.
#[derive(Debug, Args)]
pub struct ConstraintArgs {
    /// Place replicas only on these nodes, separated by commas
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    pin: Option<Vec<String>>,
    /// Never place replicas on these nodes, separated by commas
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    exclude: Option<Vec<String>>,
    /// Place replicas only on nodes with all of these labels, separated by commas
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    label: Option<Vec<String>>,
}

impl ConstraintArgs {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.pin.is_none() && self.exclude.is_none() && self.label.is_none()
    }

    /// The constraint to ask for, where this is the one now.
    pub fn over(self, now: Constraint) -> Constraint {
        Constraint {
            pinned: self.pin.unwrap_or(now.pinned),
            excluded: self.exclude.unwrap_or(now.excluded),
            labels: self.label.unwrap_or(now.labels),
        }
    }
}

/// The flag with which a person says that the cluster will grow.
#[derive(Debug, Clone, Copy, Args)]
pub struct Ahead {
    /// Accept more replicas than the nodes that have joined can hold; more nodes are about to join
    #[arg(long)]
    pub ahead: bool,
}
