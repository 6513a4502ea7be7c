//! What a keyspace cannot be asked for that is a table: its shards stay as they were created, as no driver of this version carries
//! the log of a shard over to others.

use super::AdminError;
use crate::keyspace::{Keyspace, KeyspaceKind, Ownership};

fn is_table(keyspace: &Keyspace) -> bool {
    keyspace.kind == KeyspaceKind::Table && keyspace.ownership == Ownership::Replicated
}

/// Refuses a split or a merge of the shards of a table.
pub(super) fn refuse_reshaped(keyspace: &Keyspace) -> Result<(), AdminError> {
    if !is_table(keyspace) {
        return Ok(());
    }
    Err(AdminError::Refused {
        problem: format!(
            "keyspace {} is a table, and tables of this version keep their shards",
            keyspace.name
        ),
        way_out: "create another table with as many shards as are wanted, and copy the rows".into(),
    })
}

/// Refuses a table that leases would guard, and settings of a table by which its shards would split.
pub(super) fn check_settings(keyspace: &Keyspace) -> Result<(), AdminError> {
    if keyspace.kind == KeyspaceKind::Table && !is_table(keyspace) {
        return Err(AdminError::Refused {
            problem: format!("keyspace {} is of kind table, and would not be replicated", keyspace.name),
            way_out: "create tables with `partage table create`, or choose ownership replicated".into(),
        });
    }
    let splits = keyspace.resharding.split_bytes > 0 || keyspace.resharding.split_requests_per_s > 0.0;
    if splits && is_table(keyspace) {
        return Err(AdminError::Refused {
            problem: format!(
                "table {} would split its shards, and tables of this version keep them",
                keyspace.name
            ),
            way_out: "set split_bytes and split_requests_per_s to 0".into(),
        });
    }
    Ok(())
}
