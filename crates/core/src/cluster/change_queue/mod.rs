//! Which changes of approved plans one decision tries to begin: as many as it has time for, and none of which it is
//! known that it cannot.
//!
//! A change is tried once when it comes. One that cannot begin is queued under what it waits for ([`Until`]), and is tried
//! again when there is room for it there; it is not tried again in every decision.
//!
//! | a change                                     | is tried                                                    |
//! |----------------------------------------------|-------------------------------------------------------------|
//! | has not been tried                           | plan after plan, the most urgent first                      |
//! | adds a replica on a node with enough loads   | when that node has room, as many as there is room for       |
//! | waits as there are enough moves, or bytes    | when there may be more of them                              |
//! | waits for anything else                      | in every decision so many, round and round                  |
//!
//! What is tried in one decision is tried in the order of the plans. So nothing waits for longer than a bounded number of
//! decisions once it could begin, however much else waits (B7, L4). Nothing of this is stored: a new coordinator tries
//! everything once.

use crate::base::id::PlanId;
use crate::base::name::NodeId;
use crate::limits;
use crate::plan::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// A change of a plan, in the order in which changes begin: that of the most urgent plan first, of the older one among
/// equals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChangeRef {
    urgency: u8,
    pub(super) plan: PlanId,
    pub(super) index: usize,
}

/// What a change waits for before it is tried again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Until {
    /// The node loads less. Repairs may load more at once than others.
    Loads { node: NodeId, is_repair: bool },
    /// Fewer moves are under way in the keyspace.
    Moves,
    /// The meter of the keyspace lets bytes be copied again.
    Bytes,
    /// Something else changes: the queue tries it again when anything has happened in the keyspace.
    Anything,
}

/// The changes that have not begun, by what they wait for.
#[derive(Debug, Clone, Default)]
pub(super) struct ChangeQueue {
    /// The first change of each plan that has not been tried.
    untried: BTreeMap<PlanId, usize>,
    waiting: BTreeMap<Until, BTreeSet<ChangeRef>>,
    /// Where those that wait for anything else go on.
    next: Option<ChangeRef>,
    /// How many of those have not been tried since something happened.
    left: usize,
}

/// What one decision tries.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// In order; each with what it has waited for, if it was tried before.
    pub(super) changes: Vec<(ChangeRef, Option<Until>)>,
    /// There is more to try.
    pub(super) is_cut_short: bool,
}

impl ChangeRef {
    fn first_of(plan: &Plan) -> ChangeRef {
        ChangeRef { urgency: plan.origin.urgency(), plan: plan.id, index: 0 }
    }

    fn behind_its_plan(self) -> ChangeRef {
        ChangeRef { plan: self.plan.next(), index: 0, ..self }
    }
}

impl Until {
    /// Whether no more are tried at once than there is room for.
    pub(super) fn is_room(&self) -> bool {
        matches!(self, Until::Loads { .. } | Until::Moves)
    }
}

impl ChangeQueue {
    /// What is tried now of `plans`, the most urgent first, where `room` says how many of those that wait for something
    /// may begin. `anew` when something has happened since the last time.
    pub(super) fn due(&mut self, plans: &[&Plan], anew: bool, room: impl Fn(&Until) -> usize) -> Due {
        let mut due = Due::default();
        let mut most = limits::CHANGES_TRIED;
        for plan in plans {
            let first = self.untried.get(&plan.id).copied().unwrap_or(0);
            let last = plan.changes.len().min(first.saturating_add(most));
            let changes = (first..last).map(|index| ChangeRef { index, ..ChangeRef::first_of(plan) });
            due.changes.extend(changes.map(|change| (change, None)));
            most -= last.saturating_sub(first);
            due.is_cut_short |= last < plan.changes.len();
        }
        let plans: BTreeSet<PlanId> = plans.iter().map(|plan| plan.id).collect();
        let mut most = limits::CHANGES_TRIED;
        for (until, changes) in self.waiting.iter().filter(|(until, _)| **until != Until::Anything) {
            let ready = allowed(changes, None, &plans).take(room(until).min(most));
            let before = due.changes.len();
            due.changes.extend(ready.map(|change| (change, Some(until.clone()))));
            most -= due.changes.len() - before;
            due.is_cut_short |= most == 0;
        }
        self.anything(&plans, anew, &mut due);
        due.changes.sort();
        due
    }

    fn anything(&mut self, plans: &BTreeSet<PlanId>, anew: bool, due: &mut Due) {
        let Some(changes) = self.waiting.get(&Until::Anything) else { return };
        self.left = if anew { changes.len() } else { self.left.min(changes.len()) };
        let behind = allowed(changes, self.next, plans);
        let before =
            allowed(changes, None, plans).take_while(|change| self.next.is_some_and(|next| *change < next));
        let tried: Vec<ChangeRef> = behind.chain(before).take(limits::CHANGES_TRIED).collect();
        self.left =
            if tried.len() < limits::CHANGES_TRIED { 0 } else { self.left.saturating_sub(tried.len()) };
        self.next = tried.last().map(|last| ChangeRef { index: last.index + 1, ..*last });
        due.is_cut_short |= self.left > 0;
        due.changes.extend(tried.into_iter().map(|change| (change, Some(Until::Anything))));
    }

    /// A change was tried that had waited for `before`, and waits for `now`; for nothing when it has begun, or never will.
    pub(super) fn note(&mut self, change: ChangeRef, before: Option<&Until>, now: Option<Until>) {
        match before {
            None => drop(self.untried.insert(change.plan, change.index + 1)),
            Some(before) if Some(before) == now.as_ref() => return,
            Some(before) => {
                if let Some(changes) = self.waiting.get_mut(before) {
                    changes.remove(&change);
                    if changes.is_empty() {
                        self.waiting.remove(before);
                    }
                }
            }
        }
        if let Some(now) = now {
            self.waiting.entry(now).or_default().insert(change);
        }
    }

    /// Whether any change waits for that.
    pub(super) fn has(&self, until: &Until) -> bool {
        self.waiting.contains_key(until)
    }

    /// A plan is over: nothing of it waits, whatever did.
    pub(super) fn forget(&mut self, plan: PlanId) {
        self.untried.remove(&plan);
        self.waiting.retain(|_, changes| {
            changes.retain(|change| change.plan != plan);
            !changes.is_empty()
        });
    }
}

/// Those of `plans`, from `first` on. All that another plan has there is passed in one step.
fn allowed<'a>(
    changes: &'a BTreeSet<ChangeRef>,
    first: Option<ChangeRef>,
    plans: &'a BTreeSet<PlanId>,
) -> impl Iterator<Item = ChangeRef> + 'a {
    let mut rest = first.or(changes.first().copied()).map(|from| changes.range(from..));
    std::iter::from_fn(move || {
        loop {
            let change = *rest.as_mut()?.next()?;
            if plans.contains(&change.plan) {
                return Some(change);
            }
            rest = Some(changes.range(change.behind_its_plan()..));
        }
    })
}

#[cfg(test)]
mod tests;
