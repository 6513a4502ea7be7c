//! When an entry is committed.

/// The index up to which entries are committed: all that `required` replicas have synced, among them the leader.
///
/// Nothing is before `begin`, the first entry of the leader's epoch, is committed (0: it has appended none). While fewer than
/// `min_in_sync` replicas are in the set (`is_enough` says that they suffice), nothing behind it is: so a shard with one replica
/// left can begin, and ask for others, and no write counts that too few have.
pub(super) fn committed(required: &[u64], begin: u64, is_enough: bool) -> Option<u64> {
    let all_have = required.iter().copied().min()?;
    let up_to = if is_enough { all_have } else { all_have.min(begin) };
    (begin > 0 && up_to >= begin).then_some(up_to)
}
