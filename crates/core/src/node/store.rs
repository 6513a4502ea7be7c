//! Stores: to which disk or folder a file belongs.
//!
//! A node numbers its folder when it begins it, and each file there that says what is stored names that number. The node names
//! the number with each stored replica when it registers ([`Stored::store`](super::exchange::Stored::store)).
//!
//! What a file of another store holds was true of another folder: of an earlier one of this node, which may have the same replica
//! as it was before, or of another node's. So a node resumes nothing from such a file. This decision is here, and the log and the
//! file of stored replicas ask it when they are opened.
//!
//! The coordinator decides the same by nodes: it resumes a replica only from what the node that the map names has stored
//! (`cluster/stored.rs`). It does not compare the numbers: a placement is on one node, and a node that comes back without it
//! loses the placement, so that it is never on two stores of one node.

/// Whether a file that names the store `found` belongs to the store `own`.
pub fn is_own(own: u128, found: u128) -> bool {
    own == found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d10_a_file_without_a_number_belongs_to_no_store_that_has_one() {
        assert!(is_own(7, 7));
        assert!(!is_own(7, 8) && !is_own(7, 0) && !is_own(0, 7));
    }
}
