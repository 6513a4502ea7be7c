//! One round of the planner: the keyspaces that are due, one after another, in slices of bounded work.
//!
//! A plan of a large keyspace takes longer than a worker may wait for the answer to its beat. So what is planned is
//! kept between decisions, and each does a slice of it ([`super::super::Slice`]); beats are answered between them:
//!
//! ```text
//!  count ──► survey ──► place ──► write ──► submit ──► the next keyspace
//!  footprints  shards    policy    changes    plans
//! ```
//!
//! | what                                          | in slices                                             |
//! |-----------------------------------------------|-------------------------------------------------------|
//! | footprints, survey, changes                   | of so many shards, replicas or changes                |
//! | the policy `balanced`                         | of one phase each, and of so many steps weighed       |
//! | any other policy                              | no: it is one call, in a slice of its own             |
//! | plans                                         | of so many changes; what is left is the next plan     |
//!
//! A round always ends, whatever happens meanwhile, and nothing sets it back: so no change of the world, however often,
//! keeps a keyspace from being planned. What has become false is left out when the changes are written
//! ([`super::changes`]) and again when a plan is made ([`check::sift`]), and the keyspace is looked at again. A repair
//! waits for the rest of a round at most: every run makes repairs first, whatever else it was begun for.
//!
//! Not done: the phases of `balanced` that look at every shard and stop in the middle.

use super::changes::{ChangeBuilder, DesiredChanges};
use super::footprint::Count;
use super::own_plans::{PlanningFailure, Suggestion};
use super::problem::PlanningInput;
use super::reshape;
use super::survey::{KnownLoads, Survey};
use crate::base::count::counted_with;
use crate::base::id::ShardId;
use crate::base::name::KeyspaceName;
use crate::base::settings::Settings;
use crate::base::time::Millis;
use crate::cluster::{Cluster, KeyspaceState, Moment, Outbox};
use crate::keyspace::{Mode, Ownership};
use crate::limits;
use crate::placement::balanced::Placing;
use crate::plan::check;
use crate::plan::reshard::Proposals;
use crate::plan::{Change, Origin, Planned};
use std::collections::{BTreeSet, VecDeque};

/// The keyspaces that one round of the planner has still to do, and the step at which it is. See the module.
#[derive(Debug, Clone, Default)]
pub(in crate::cluster) struct Round {
    /// Keyspaces of which it is counted first what they carry.
    counts: VecDeque<KeyspaceName>,
    /// Keyspaces that have not had their turn.
    names: VecDeque<KeyspaceName>,
    /// What is being done for which.
    under_way: Option<(KeyspaceName, Step)>,
}

/// Where a run over one keyspace is.
#[derive(Debug, Clone)]
enum Step {
    Count(Box<Count>),
    Survey(Box<Run>, Box<Survey>),
    Place(Box<Run>, Box<PlanningInput>, Option<Placing>),
    Write(Box<Run>, Box<ChangeBuilder>),
    Submit(Box<Run>, Box<Submission>),
}

/// What holds for a run from its beginning on.
#[derive(Debug, Clone)]
struct Run {
    /// The keyspace, as another of the same name has later shards.
    first_shard: ShardId,
    /// More than one decision has worked on it.
    is_interrupted: bool,
    proposals: Proposals,
    heard: KnownLoads,
}

/// Changes that become plans.
#[derive(Debug, Clone)]
struct Submission {
    repair: std::vec::IntoIter<Planned>,
    drain: std::vec::IntoIter<Planned>,
    rebalance: std::vec::IntoIter<Planned>,
    /// Nothing was left out because something else is under way.
    is_complete: bool,
    /// Plans of changes that somebody waits for were made.
    is_ready: bool,
    /// What could only be better may be made, too.
    is_rebalancing: bool,
    /// What could be better is who leads: that goes by numbers, and not by loads.
    only_leads: bool,
}

impl Round {
    /// Whether nothing is left of it.
    pub(in crate::cluster) fn is_over(&self) -> bool {
        self.counts.is_empty() && self.names.is_empty() && self.under_way.is_none()
    }
}

impl Submission {
    /// The next plan of what somebody waits for, of at most so many changes.
    fn next_urgent(&mut self, mode: Mode, most: usize) -> Option<(Origin, Vec<Planned>)> {
        if self.repair.len() > 0 && mode != Mode::Manual {
            return Some((Origin::Repair, self.repair.by_ref().take(most).collect()));
        }
        (self.drain.len() > 0).then(|| (Origin::Drain, self.drain.by_ref().take(most).collect()))
    }

    /// The next plan of what could only be better; none when that is not planned now.
    fn next_rebalance(&mut self, mode: Mode, most: usize) -> Option<(Origin, Vec<Planned>)> {
        let most = match mode {
            Mode::Automatic => most,
            // A person is asked once, about all of it.
            Mode::Suggested => usize::MAX,
            Mode::Manual => return None,
        };
        self.is_rebalancing.then(|| (Origin::Rebalance, self.rebalance.by_ref().take(most).collect()))
    }
}

/// What a keyspace remembers of a run whose changes are written.
struct Written {
    /// What could not be placed, in sentences.
    unplaced: Vec<String>,
    leads_wait: bool,
    /// When leadership is spread, if the map stays as it is.
    rest_from: Millis,
    /// Shards that the planner looks at again when they have settled.
    blocked: BTreeSet<ShardId>,
    /// Some of what was decided was too late.
    is_stale: bool,
}

impl KeyspaceState {
    /// Whether it may be planned by itself, as far as its own state says; what holds no more is forgotten first. While
    /// nothing is placed it waits until nodes have come, at `settled_at`.
    fn may_be_planned(
        &mut self,
        at: Moment,
        settled_at: Millis,
        settings: &Settings,
        outbox: &mut Outbox,
    ) -> bool {
        if self.record.brake.is_some() {
            return false;
        }
        outbox.writes.extend(self.clear_survivors(at, settings));
        self.forget_avoided(at);
        let waits = at.now < settled_at && self.map.shards().all(|shard| shard.replicas.is_empty());
        if waits {
            self.planning.plan_due = settled_at;
        }
        !waits
    }

    fn take_written(&mut self, at: Moment, written: Written, outbox: &mut Outbox) {
        self.report_unplaced(at, written.unplaced, outbox);
        self.note_leads(at, written.leads_wait, written.rest_from);
        self.planning.blocked = written.blocked;
        if written.is_stale {
            self.plan_again(at);
        }
    }
}

impl Cluster {
    /// Whether there is something to plan.
    pub(in crate::cluster) fn has_to_plan(&self, at: Moment) -> bool {
        !self.budget.round.is_over() || self.next_plan_due() <= at.now
    }

    /// Plans every keyspace that is due, or a slice of that. Returns whether a plan is ready to be carried out, or there
    /// is more to plan.
    pub(in crate::cluster) fn plan(&mut self, at: Moment) -> bool {
        let mut round = std::mem::take(&mut self.budget.round);
        if round.is_over() {
            let due =
                self.keyspaces.by_name.iter().filter(|(_, keyspace)| keyspace.planning.plan_due <= at.now);
            round.names = due.map(|(name, _)| name.clone()).collect();
            round.counts = round.names.clone();
        }
        let mut left = self.budget.slice.planned;
        let mut ready = false;
        while left > 0 && !round.is_over() {
            let before = left;
            ready |= self.plan_on(at, &mut round, &mut left);
            self.budget.planned += (before - left) as u64;
        }
        if let Some((_, step)) = &mut round.under_way {
            step.interrupt();
        }
        self.budget.round = round;
        ready || !self.budget.round.is_over()
    }

    /// Does the next step, or a part of it, and takes its work from what is `left`. Returns whether a plan is ready.
    fn plan_on(&mut self, at: Moment, round: &mut Round, left: &mut usize) -> bool {
        let Some((name, step)) = round.under_way.take() else {
            round.under_way = self.begin_next(at, round);
            // Also what is done at once is done.
            let begun = round.under_way.as_ref().map_or(1, |(name, _)| self.passing_over(name));
            self.budget.charge(left, begun);
            return false;
        };
        let is_still_there = |run: &Run| {
            self.keyspaces.get(&name).is_some_and(|state| state.record.first_shard == run.first_shard)
        };
        if step.run().is_some_and(|run| !is_still_there(run)) {
            return false;
        }
        let mut ready = false;
        let next = match step {
            Step::Count(mut count) => {
                let is_done = self.keyspaces.go_on_counting(&self.plans, &name, &mut count, left);
                (!is_done).then_some(Step::Count(count))
            }
            Step::Survey(run, survey) => self.survey_on(at, &name, (run, survey), left),
            Step::Place(run, input, placing) => {
                let (placed, work) = self.place(&name, (run, input, placing), *left);
                self.budget.charge(left, work);
                match placed {
                    Ok(step) => step,
                    Err(why) => {
                        if let Some(failure) = PlanningFailure::find(self, at, &name, why) {
                            failure.apply(self);
                        }
                        None
                    }
                }
            }
            Step::Write(run, builder) => {
                self.write_on(at, &name, (run, builder), *left).map(|(step, written, work)| {
                    self.budget.charge(left, work);
                    let keyspace = self.keyspaces.get_mut(&name);
                    if let (Some(keyspace), Some(written)) = (keyspace, written) {
                        keyspace.take_written(at, written, &mut self.outbox);
                    }
                    step
                })
            }
            Step::Submit(run, submission) => {
                let (next, submitted) = self.submit_on(at, &name, (run, submission), left);
                ready = submitted;
                next
            }
        };
        if ready && !matches!(next, Some(Step::Submit(..))) {
            // The others see what this one will carry.
            round.counts.push_front(name.clone());
        }
        round.under_way = next.map(|step| (name, step));
        ready
    }

    /// What it is to go through all shards of a keyspace once.
    fn passing_over(&self, name: &KeyspaceName) -> usize {
        self.keyspaces.get(name).map_or(0, |keyspace| keyspace.map.len() / limits::SHARDS_PASSED_OVER) + 1
    }

    /// Begins to count what the next keyspace carries, or to plan it, unless it waits for something.
    fn begin_next(&mut self, at: Moment, round: &mut Round) -> Option<(KeyspaceName, Step)> {
        if let Some(name) = round.counts.pop_front() {
            let count = self.keyspaces.begin_count((&self.plans, self.record.next_plan), &name)?;
            return Some((name, Step::Count(Box::new(count))));
        }
        let name = round.names.pop_front()?;
        let replacement = self.next_replacement(at, self.keyspaces.get(&name)?);
        let Cluster { settings, times, record, members, keyspaces, guard, outbox, .. } = &mut *self;
        let keyspace = keyspaces.get_mut(&name)?;
        keyspace.planning.plan_due = replacement.min(at.now + settings.rebalance_ms);
        let settled_at = members.last_join + settings.settle_ms;
        if record.brake.is_some() || !keyspace.may_be_planned(at, settled_at, settings, outbox) {
            return None;
        }
        if guard.waits_for_nodes(members.view(at.now, settings), times.started, outbox) {
            return None;
        }
        let step = self.first_step(at, self.keyspaces.get(&name)?);
        Some((name, step))
    }

    fn first_step(&self, at: Moment, keyspace: &KeyspaceState) -> Step {
        let run = Run {
            first_shard: keyspace.record.first_shard,
            is_interrupted: false,
            proposals: Proposals::default(),
            heard: KnownLoads { any: false, all: true },
        };
        Step::Survey(Box::new(run), Box::new(self.survey(at, keyspace)))
    }

    fn survey_on(
        &mut self,
        at: Moment,
        name: &KeyspaceName,
        (mut run, mut survey): (Box<Run>, Box<Survey>),
        left: &mut usize,
    ) -> Option<Step> {
        let keyspace = self.keyspaces.get(name)?;
        *left = left.saturating_sub(self.go_on(at, keyspace, &mut survey, *left));
        if !survey.is_over() {
            return Some(Step::Survey(run, survey));
        }
        run.heard = survey.heard;
        let keyspace = self.keyspaces.get_mut(name)?;
        survey.short.drain(..).for_each(|id| keyspace.queue.enqueue(id));
        run.proposals = keyspace.reshape(at, std::mem::take(&mut survey.carried), &mut self.outbox);
        let keyspace = self.keyspaces.get(name)?;
        let input = self.planning_input(at, keyspace, *survey, &run.proposals);
        Some(Step::Place(run, Box::new(input), None))
    }

    /// Asks the policy, piece by piece, for about `left` units of work. Returns the next step, or why the keyspace cannot be
    /// planned; and how much work that was.
    fn place(
        &self,
        name: &KeyspaceName,
        (run, input, placing): (Box<Run>, Box<PlanningInput>, Option<Placing>),
        left: usize,
    ) -> (Result<Option<Step>, String>, usize) {
        let problem = &input.problem;
        let least = match &placing {
            Some(Placing::UnderWay(pieces)) => pieces.least(problem),
            Some(Placing::Done(_)) => 1,
            None => (problem.shard_count() + problem.current.replicas()).max(1),
        };
        // Where a piece cannot be cut and is much, it has a slice of its own.
        if least > left && left < self.budget.slice.planned {
            return (Ok(Some(Step::Place(run, input, placing))), left);
        }
        let Some(keyspace) = self.keyspaces.get(name) else { return (Ok(None), 0) };
        let (next, work) = match placing {
            Some(Placing::UnderWay(pieces)) => {
                let (placing, work) = pieces.go_on(problem, left);
                (Ok(placing), work)
            }
            Some(done @ Placing::Done(_)) => (Ok(done), least),
            None => (self.policies.begin(&keyspace.record.keyspace.policy, problem), least),
        };
        let step = match next {
            Ok(Placing::Done(solution)) => {
                Ok(Some(Step::Write(run, Box::new(ChangeBuilder::of(*input, *solution)))))
            }
            Ok(placing) => Ok(Some(Step::Place(run, input, Some(placing)))),
            Err(error) => Err(error.to_string()),
        };
        (step, work)
    }

    /// Writes the changes down, for about `left` units of work. Returns the next step, what the keyspace is to remember once
    /// all are written, and how much work that was.
    fn write_on(
        &self,
        at: Moment,
        name: &KeyspaceName,
        (mut run, mut builder): (Box<Run>, Box<ChangeBuilder>),
        left: usize,
    ) -> Option<(Step, Option<Written>, usize)> {
        let keyspace = self.keyspaces.get(name)?;
        let mut work = self.write(keyspace, &mut builder, left);
        if !builder.is_over() {
            return Some((Step::Write(run, builder), None, work));
        }
        let problem = &builder.input.problem;
        let measured =
            if builder.is_measured() { problem.shard_count() + problem.current.replicas() } else { 0 };
        work += self.passing_over(name) + measured;
        let fixed = std::mem::take(&mut builder.input.fixed);
        let (desired, unplaced) = self.desired_changes(at, name, *builder)?;
        // What waits for calm is no answer: a suggestion that a person has before them stays.
        let is_complete = desired.blocked.is_empty() && !desired.is_stale && !desired.leads_wait;
        let rebalance = reshape::with_reshapes(std::mem::take(&mut run.proposals), desired.rebalance);
        let only_leads = keyspace.record.keyspace.ownership == Ownership::Replicated
            && !rebalance.is_empty()
            && rebalance.iter().all(|planned| matches!(planned.change, Change::Lead { .. }));
        let mut blocked = desired.blocked;
        blocked.extend(fixed);
        let (leads_wait, is_stale) = (desired.leads_wait, desired.is_stale);
        let rest_from = self.leads_rest_from(keyspace);
        let written = Written { unplaced, leads_wait, rest_from, blocked, is_stale };
        let submission = Submission {
            repair: desired.repair.into_iter(),
            drain: desired.drain.into_iter(),
            rebalance: rebalance.into_iter(),
            is_complete,
            is_ready: false,
            is_rebalancing: false,
            only_leads,
        };
        Some((Step::Submit(run, Box::new(submission)), Some(written), work))
    }

    /// What the policy would have changed, and what it cannot place.
    fn desired_changes(
        &self,
        at: Moment,
        name: &KeyspaceName,
        builder: ChangeBuilder,
    ) -> Option<(DesiredChanges, Vec<String>)> {
        let keyspace = self.keyspaces.get(name)?;
        let (mut desired, input, solution) = builder.into_desired();
        self.spread_leaders(at, keyspace, &mut desired);
        let mut unplaced = solution.complaints(&input.problem);
        if keyspace.record.keyspace.mode == Mode::Manual && !desired.repair.is_empty() {
            let count = desired.repair.len();
            unplaced.insert(0, format!(
                "{} for a person, because the keyspace is in mode manual: use `partage shard add`, or `partage keyspace update --mode automatic`",
                counted_with(count, "replica", ("waits", "wait"))
            ));
        }
        for (shard, rule) in &keyspace.record.rules {
            if let Some(why) = rule.set_aside.as_ref().filter(|_| unplaced.len() < limits::COMPLAINTS) {
                unplaced.push(format!("{shard} is set aside and placed nowhere new: {why}"));
            }
        }
        let room = limits::COMPLAINTS.saturating_sub(unplaced.len());
        unplaced.extend(
            keyspace
                .suspicion
                .held_back
                .keys()
                .take(room)
                .map(|shard| format!("{shard} is held back until it is known whether it kills its nodes")),
        );
        Some((desired, unplaced))
    }

    /// Makes the next plan of what is allowed now, the most urgent first. Returns whether it is ready to be carried out.
    fn submit_on(
        &mut self,
        at: Moment,
        name: &KeyspaceName,
        (run, mut rest): (Box<Run>, Box<Submission>),
        left: &mut usize,
    ) -> (Option<Step>, bool) {
        let Some(mode) = self.keyspaces.get(name).map(|keyspace| keyspace.record.keyspace.mode) else {
            return (None, false);
        };
        let most = self.budget.slice.plan_lines();
        let mut part = rest.next_urgent(mode, most);
        if part.is_none() {
            // What could only be better is planned when nothing that somebody waits for is.
            if !rest.is_rebalancing && !rest.is_ready && self.unrest().is_none() {
                let known = (self.is_carrying_out(at, name), &self.patience(at));
                let keyspace = self.keyspaces.get_mut(name);
                rest.is_rebalancing = keyspace.is_some_and(|keyspace| {
                    keyspace.begins_to_rebalance(at, known, run.heard, rest.only_leads)
                });
            }
            part = rest.next_rebalance(mode, most);
        }
        let Some((origin, mut changes)) = part else { return (None, rest.is_ready) };
        self.budget.charge(left, changes.len().max(1));
        if run.is_interrupted && self.sift(at, name, &mut changes) {
            rest.is_complete = false;
            if let Some(keyspace) = self.keyspaces.get_mut(name) {
                keyspace.plan_again(at);
            }
        }
        let ready = match (&origin, mode) {
            (Origin::Rebalance, Mode::Suggested) => {
                let suggestion = Suggestion::find(self, at, name, changes, rest.is_complete);
                suggestion.is_some_and(|suggestion| suggestion.apply(self))
            }
            _ if changes.is_empty() => false,
            _ => self.make_own_plan(at, name, origin, changes),
        };
        rest.is_ready |= ready;
        let is_over = rest.is_rebalancing && rest.rebalance.len() == 0;
        let is_ready = rest.is_ready;
        ((!is_over).then_some(Step::Submit(run, rest)), is_ready)
    }

    /// Everything that the policy would have changed, in one piece, and what it cannot place: for a dry run.
    pub(super) fn desired_at_once(
        &mut self,
        at: Moment,
        name: &KeyspaceName,
    ) -> Result<(DesiredChanges, Vec<String>), String> {
        let Some(keyspace) = self.keyspaces.get(name) else { return Ok(Default::default()) };
        let mut survey = self.survey(at, keyspace);
        self.go_on(at, keyspace, &mut survey, usize::MAX);
        let carried = std::mem::take(&mut survey.carried);
        let reshaped = self.keyspaces.get_mut(name);
        let proposals = reshaped.map(|keyspace| keyspace.reshape(at, carried, &mut self.outbox));
        let proposals = proposals.unwrap_or_default();
        let Some(keyspace) = self.keyspaces.get(name) else { return Ok(Default::default()) };
        let input = self.planning_input(at, keyspace, survey, &proposals);
        let placed = self.policies.place(&keyspace.record.keyspace.policy, &input.problem);
        let mut builder = ChangeBuilder::of(input, placed.map_err(|error| error.to_string())?);
        self.write(keyspace, &mut builder, usize::MAX);
        let (mut desired, unplaced) = self.desired_changes(at, name, builder).unwrap_or_default();
        desired.rebalance = reshape::with_reshapes(proposals, desired.rebalance);
        Ok((desired, unplaced))
    }

    /// Leaves out what cannot be done any more, so that the rest can. Returns whether there was something.
    fn sift(&self, at: Moment, name: &KeyspaceName, changes: &mut Vec<Planned>) -> bool {
        let Some(keyspace) = self.keyspaces.get(name) else { return false };
        let before = changes.len();
        check::sift(&keyspace.map, changes, &|node| self.closed(at, node));
        changes.len() < before
    }
}

impl Step {
    /// None while footprints are counted.
    fn run(&self) -> Option<&Run> {
        match self {
            Step::Count(_) => None,
            Step::Survey(run, _) | Step::Place(run, ..) | Step::Write(run, _) | Step::Submit(run, _) => {
                Some(run)
            }
        }
    }

    /// It goes on in another decision.
    fn interrupt(&mut self) {
        match self {
            Step::Count(_) => {}
            Step::Survey(run, _) | Step::Place(run, ..) | Step::Write(run, _) | Step::Submit(run, _) => {
                run.is_interrupted = true;
            }
        }
    }
}
