//! From the entries of a slot to its copy.

use super::LAST;
use crate::forms;
use crate::forms::decision::{Item, decode};
use partage_service::shuffle::log::Decisions;
use partage_service::table::replication::{EntryKind, Stored};

/// Whether a record is in the form of a later version of the program.
pub(super) fn is_later(stored: &Stored) -> bool {
    let mut begins = true;
    stored.entries.iter().any(|entry| {
        let EntryKind::Write(payload) = &entry.kind else { return false };
        let Some((mark, piece)) = payload.split_first() else { return false };
        let is_first = std::mem::replace(&mut begins, *mark == LAST);
        is_first && forms::is_later(piece)
    })
}

/// The copy that the entries of a slot make. None: its decisions were lost before, an entry has a form that is not known, or what
/// follows does not follow.
pub(super) fn copy(stored: &Stored, ended_kept: usize) -> Option<Decisions> {
    let (mut copy, mut is_lost) = (Decisions::default(), false);
    let mut form = Vec::new();
    for entry in &stored.entries {
        let EntryKind::Write(payload) = &entry.kind else { return None };
        let (mark, piece) = payload.split_first()?;
        form.extend_from_slice(piece);
        if *mark != LAST {
            continue;
        }
        match decode(&std::mem::take(&mut form))? {
            Item::Whole(whole) => (copy, is_lost) = (whole, false),
            Item::Lost => is_lost = true,
            Item::After(before, decisions) if before == copy.sequence => {
                for (shuffle, decision) in decisions {
                    copy.push(shuffle, decision, ended_kept);
                }
            }
            Item::After(..) => return None,
        }
    }
    // One record has all of its entries, or none.
    if is_lost || !form.is_empty() {
        return None;
    }
    // Its epoch is that of the leader that it is a copy of: the node may have heard of a later one, and not got its copy.
    Some(copy)
}
