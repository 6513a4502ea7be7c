//! What a keyspace cannot be asked for that is a table.

use super::AdminError;
use crate::keyspace::{Keyspace, KeyspaceKind, Ownership};

/// Refuses a table that leases would guard.
pub(super) fn check_settings(keyspace: &Keyspace) -> Result<(), AdminError> {
    if keyspace.kind == KeyspaceKind::Table && keyspace.ownership != Ownership::Replicated {
        return Err(AdminError::Refused {
            problem: format!("keyspace {} is of kind table, and would not be replicated", keyspace.name),
            way_out: "create tables with `partage table create`, or choose ownership replicated".into(),
        });
    }
    Ok(())
}
