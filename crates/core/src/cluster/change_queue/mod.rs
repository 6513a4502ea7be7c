//! Which changes of approved plans one decision tries to begin.
//!
//! A decision tries each new change once. A change that cannot begin waits for something ([`Until`]); decisions try it again
//! when that has come, and not before.
//!
//! | a change                                     | is tried                                                    |
//! |----------------------------------------------|-------------------------------------------------------------|
//! | is new                                       | plan after plan, the most urgent first                      |
//! | waits for a node that loads enough replicas  | when that node may load more, as many as it may             |
//! | waits for moves or bytes under the throttle  | when the throttle lets more begin                           |
//! | waits for any other change                   | round robin, so many in each decision                       |
//!
//! Each decision tries its changes in the order of the plans. So a change that can begin does so after a bounded number of
//! decisions, however many others wait (B7, L4). The queue is not stored: a new coordinator tries every change once.

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
    AnyChange,
}

/// The changes that have not begun, by what they wait for.
#[derive(Debug, Clone, Default)]
pub(super) struct ChangeQueue {
    /// The first change of each plan that has not been tried.
    untried: BTreeMap<PlanId, usize>,
    waiting: BTreeMap<Until, BTreeSet<ChangeRef>>,
    /// Where the next decision goes on with those that wait for [`Until::AnyChange`].
    next: Option<ChangeRef>,
    /// How many of those are left to try since something happened.
    left: usize,
}

/// What one decision tries.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// In order, each with what it waited for; none if it is new.
    pub(super) changes: Vec<(ChangeRef, Option<Until>)>,
    /// Whether more is left to try.
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
    /// Whether only so many of its changes are tried as may begin.
    pub(super) fn is_room(&self) -> bool {
        matches!(self, Until::Loads { .. } | Until::Moves)
    }
}

impl ChangeQueue {
    /// The changes of `plans` to try now, the most urgent first. `room` says how many that wait for something may begin, and
    /// `has_news` whether something has happened since the last call.
    pub(super) fn due(&mut self, plans: &[&Plan], has_news: bool, room: impl Fn(&Until) -> usize) -> Due {
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
        for (until, changes) in self.waiting.iter().filter(|(until, _)| **until != Until::AnyChange) {
            let ready = allowed(changes, None, &plans).take(room(until).min(most));
            let before = due.changes.len();
            due.changes.extend(ready.map(|change| (change, Some(until.clone()))));
            most -= due.changes.len() - before;
            due.is_cut_short |= most == 0;
        }
        self.due_after_any_change(&plans, has_news, &mut due);
        due.changes.sort();
        due
    }

    fn due_after_any_change(&mut self, plans: &BTreeSet<PlanId>, has_news: bool, due: &mut Due) {
        let Some(changes) = self.waiting.get(&Until::AnyChange) else { return };
        self.left = if has_news { changes.len() } else { self.left.min(changes.len()) };
        let behind = allowed(changes, self.next, plans);
        let before =
            allowed(changes, None, plans).take_while(|change| self.next.is_some_and(|next| *change < next));
        let tried: Vec<ChangeRef> = behind.chain(before).take(limits::CHANGES_TRIED).collect();
        self.left =
            if tried.len() < limits::CHANGES_TRIED { 0 } else { self.left.saturating_sub(tried.len()) };
        self.next = tried.last().map(|last| ChangeRef { index: last.index + 1, ..*last });
        due.is_cut_short |= self.left > 0;
        due.changes.extend(tried.into_iter().map(|change| (change, Some(Until::AnyChange))));
    }

    /// Notes that a change was tried: it waited for `before`, and waits for `now`, which is none if it began or never will.
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

    /// Whether a change waits for `until`.
    pub(super) fn has(&self, until: &Until) -> bool {
        self.waiting.contains_key(until)
    }

    /// Removes the changes of a plan that is over.
    pub(super) fn forget(&mut self, plan: PlanId) {
        self.untried.remove(&plan);
        self.waiting.retain(|_, changes| {
            changes.retain(|change| change.plan != plan);
            !changes.is_empty()
        });
    }
}

/// The changes of `plans`, from `first` on. Passes all changes of another plan in one step.
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
