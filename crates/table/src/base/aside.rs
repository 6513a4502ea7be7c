//! What a parent changes while its snapshot is copied: it waits in a file of the child ([`Spool`]), and is applied to the
//! parent's part when the snapshot is whole, while more may come.
//!
//! | what has come | what is done |
//! |---|---|
//! | the first chunk of a snapshot | `core` asks for what is changed from then on |
//! | changes that follow | they are written to the file; then `core` asks for the next |
//! | the snapshot is whole | what is in the file is applied, some at a time, at the pace of the node; if the file has grown meanwhile, without rests |
//! | all of the file is applied | changes are applied as they come, as always |
//! | another snapshot of the parent | the file is removed |
//!
//! One task at a time has the file, and one part of the changes is on its way: `core` asks for the next when the one before is in
//! the file.

use super::parts::{at, useful};
use super::spool::{Spool, Spooled};
use super::{BaseWork, LocalBase, State};
use crate::limits::{BASE_FLUSH_BYTES, JOIN_GROUP_BYTES};
use crate::node::{Shared, folders};
use crate::pacing::{CopyDirection, FinishedStep};
use crate::rows::RowsError;
use crate::transport::{ParentGiven, change_bytes};
use partage_core::base::id::ShardId;
use partage_core::base::time::Millis;
use partage_engine::replica::{Change, Store, TreeStore};
use partage_service::table::copy::deadline::Urgency;
use partage_service::table::split::{Given, Taken};
use std::sync::Arc;

/// What waits for the snapshot of one parent.
pub(super) struct Aside {
    generation: u64,
    /// None before there is anything, and while a task has it.
    spool: Option<Spool>,
    is_busy: bool,
    /// What has come while a task has the file.
    pending: Option<ParentGiven>,
    /// The snapshot is here: what waits is applied to it.
    is_whole: bool,
    /// Nothing is applied before.
    next_step_at: Millis,
}

/// What a task has done.
pub(crate) enum AsideStep {
    /// These changes are in the file.
    Added(Given),
    /// All up to that entry is applied to the part, and the next may be at that time.
    Applied(u64, Millis),
}

impl Aside {
    fn is_due(&self) -> bool {
        self.is_whole && !self.is_busy
    }

    fn is_empty(&self) -> bool {
        self.spool.as_ref().is_none_or(|spool| spool.unread() == 0)
    }
}

impl LocalBase {
    /// The first chunk of a snapshot has come.
    pub(super) fn begin_aside(&mut self, parent: ShardId, given: &Given) {
        if self.base.copy_begins(self.shared.clock.now(), given) {
            self.drop_aside(parent);
        }
    }

    /// Changes come that are to wait.
    pub(super) fn put_aside(&mut self, given: ParentGiven) {
        let parent = given.given.parent;
        let next_generation = &mut self.next_generation;
        let aside = self.asides.entry(parent).or_insert_with(|| {
            let generation = *next_generation;
            *next_generation += 1;
            let (spool, pending, next_step_at) = (None, None, Millis(0));
            Aside { generation, spool, is_busy: false, pending, is_whole: false, next_step_at }
        });
        if aside.is_busy {
            aside.pending = Some(given);
            return;
        }
        aside.is_busy = true;
        let (spool, generation) = (aside.spool.take(), aside.generation);
        let folder = folders::of(&self.shared.folder, &self.queue.key, generation);
        let queue = Arc::clone(&self.queue);
        self.tasks += 1;
        self.shared.pool.add(self.queue.key.placement, move || {
            let ParentGiven { given, changes } = given;
            let add = || -> Result<Spool, RowsError> {
                let mut spool = match spool {
                    Some(spool) => spool,
                    None => Spool::create(&folder)?,
                };
                spool.add(useful(&given), &changes)?;
                Ok(spool)
            };
            let result = add().map(|spool| (spool, AsideStep::Added(given)));
            queue.add(|waiting| waiting.base_done.push(BaseWork::Aside { parent, generation, result }));
        });
    }

    /// The snapshot of a parent is whole, and is its part.
    pub(super) fn part_is_whole(&mut self, parent: ShardId) {
        match self.asides.get_mut(&parent) {
            Some(aside) => aside.is_whole = true,
            None => self.caught_up(parent),
        }
    }

    fn caught_up(&mut self, parent: ShardId) {
        let effects = self.base.caught_up(self.shared.clock.now(), parent);
        self.carry_out(effects);
    }

    /// A task is done.
    pub(super) fn aside_done(
        &mut self,
        parent: ShardId,
        generation: u64,
        result: Result<(Spool, AsideStep), RowsError>,
    ) {
        // What was given up is removed already.
        let Some(aside) = self.asides.get_mut(&parent).filter(|aside| aside.generation == generation) else {
            return;
        };
        aside.is_busy = false;
        let pending = aside.pending.take();
        let step = match result {
            Ok((spool, step)) => {
                aside.spool = Some(spool);
                step
            }
            Err(error) => return self.begin_anew(&error.to_string()),
        };
        self.queue.figures.step();
        match step {
            AsideStep::Added(given) => {
                let (taken, effects) = self.base.take(self.shared.clock.now(), &given);
                if taken != Taken::Aside {
                    return self.begin_anew("changes do not follow on those that wait");
                }
                self.carry_out(effects);
            }
            AsideStep::Applied(index, next_step_at) => {
                aside.next_step_at = next_step_at;
                if let Some(part) = self.parts.get_mut(&parent) {
                    part.at = index;
                }
            }
        }
        if let Some(pending) = pending.filter(|pending| self.base.is_aside(&pending.given)) {
            self.put_aside(pending);
        }
    }

    /// When something that waits is to be applied.
    pub(super) fn asides_wake_at(&self) -> Millis {
        let due = self.asides.values().filter(|aside| aside.is_due());
        due.map(|aside| aside.next_step_at).min().unwrap_or(Millis::NEVER)
    }

    /// Applies some of what waits where the snapshot is whole, or finds that all is applied.
    pub(super) fn tend_asides(&mut self, now: Millis) {
        let due = self.asides.iter().filter(|(_, aside)| aside.is_due());
        let due: Vec<(ShardId, bool)> = due
            .filter(|(_, aside)| aside.is_empty() || now >= aside.next_step_at)
            .map(|(parent, aside)| (*parent, aside.is_empty()))
            .collect();
        for (parent, is_empty) in due {
            if !matches!(self.state, State::Taking) {
                return;
            }
            if is_empty {
                self.drop_aside(parent);
                self.caught_up(parent);
            } else {
                self.apply_aside(parent);
            }
        }
    }

    fn apply_aside(&mut self, parent: ShardId) {
        let (Some(aside), Some(part)) = (self.asides.get_mut(&parent), self.parts.get(&parent)) else {
            return;
        };
        let Some(mut spool) = aside.spool.take() else { return };
        aside.is_busy = true;
        let (generation, from, store) = (aside.generation, part.at, Arc::clone(&part.store));
        let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(&self.queue));
        let compactions = Arc::clone(&self.compactions);
        let serves = self.order.in_sync;
        self.tasks += 1;
        self.shared.pool.add(self.queue.key.placement, move || {
            let applied = apply_some(&shared, &store, &mut spool, (from, serves));
            if matches!(&applied, Ok(step) if step.has_flushed) {
                compactions.flushed(&shared.pool, &queue, &store);
            }
            drop(store);
            let result = applied.map(|step| (spool, AsideStep::Applied(step.index, step.until)));
            queue.add(|waiting| waiting.base_done.push(BaseWork::Aside { parent, generation, result }));
        });
    }

    /// What waits for the snapshot of a parent is of no use.
    pub(super) fn drop_aside(&mut self, parent: ShardId) {
        if let Some(Aside { generation, spool, .. }) = self.asides.remove(&parent) {
            self.remove(generation, spool);
        }
    }

    /// Drops what is set aside of all parents.
    pub(super) fn drop_asides(&mut self) {
        let parents: Vec<ShardId> = self.asides.keys().copied().collect();
        parents.into_iter().for_each(|parent| self.drop_aside(parent));
    }
}

struct AppliedStep {
    /// Up to where the store has all.
    index: u64,
    /// When more may be applied.
    until: Millis,
    has_flushed: bool,
}

/// Applies some of what waits to a store that has all up to `from`. If the child `serves`, clients wait for it.
fn apply_some(
    shared: &Shared,
    store: &TreeStore,
    spool: &mut Spool,
    (from, serves): (u64, bool),
) -> Result<AppliedStep, RowsError> {
    let began_us = shared.pacing.now_us();
    let urgency = if spool.grows() || serves { Urgency::Pressed } else { Urgency::GivesWay };
    let (mut index, mut bytes) = (from, 0);
    // Not more than comes at once: one part of what comes is added between two steps.
    while bytes < JOIN_GROUP_BYTES
        && let Some(Spooled { to, changes }) = spool.next()?
    {
        bytes += changes.iter().map(change_bytes).sum::<usize>();
        if index < to {
            let borrowed: Vec<Change<'_>> =
                changes.iter().map(|(key, value)| Change { key, value: value.as_deref() }).collect();
            store.apply(at(index), at(to), &borrowed)?;
            index = to;
        }
    }
    let flushes = store.unflushed_bytes() >= BASE_FLUSH_BYTES;
    if flushes {
        store.flush()?;
    }
    let (rows, copied) = (0, CopyDirection::Within);
    let until = shared.pacing.done(FinishedStep { began_us, bytes, rows, copied, urgency });
    Ok(AppliedStep { index, until, has_flushed: flushes })
}
