//! The handler behind both administration APIs, JSON and gRPC: every command, and every question that a person or
//! program may have, once.
//!
//! Each API makes core's [`Command`]s from its own forms, which say what a name, a key or a word may be. Answers are
//! core's, and each API writes them down in its own way. Questions change nothing.

use crate::api::error::ApiError;
use crate::lead::decision_loop::{CallError, DecisionLoop, LoopStopped, transaction};
use crate::limits;
use crate::publish::notifier::Notifier;
use axum::http::HeaderMap;
use partage_core::base::id::{PlanId, ShardId};
use partage_core::base::name::{KeyspaceName, NodeId};
use partage_core::cluster::admin::{AdminError, Answer, Command, DrainStatus};
use partage_core::cluster::explain::Explanation;
use partage_core::cluster::moves::MoveRow;
use partage_core::cluster::node_detail::NodeDetail;
use partage_core::cluster::status::{NodeRow, ShardRow, Summary};
use partage_core::keyspace::Keyspace;
use partage_core::keyspace::key::Key;
use partage_core::plan::ShownPlan;
use partage_wire::json::{Dump, EventPage, Events, KeyText};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Mutex;

/// The handler of every administrative command and query, shared by the JSON and the gRPC API.
#[derive(Clone)]
pub(crate) struct AdminHandler {
    decision_loop: DecisionLoop,
    notifier: Arc<Notifier>,
    /// Held while a dry run is made: each has a copy of the whole cluster, so there is one at a time.
    dry_run_lock: Arc<Mutex<()>>,
}

/// One page of a list, and where the next one begins.
pub(crate) struct Page<T> {
    pub(crate) rows: Vec<T>,
    pub(crate) next: Option<u64>,
}

impl<T> Page<T> {
    /// Of rows that are one more than asked for, if there are more.
    fn of(mut rows: Vec<T>, limit: usize, number: impl Fn(&T) -> u64) -> Page<T> {
        let next = (rows.len() > limit).then(|| number(&rows[limit - 1]));
        rows.truncate(limit);
        Page { rows, next }
    }
}

impl AdminHandler {
    pub(crate) fn new(decision_loop: DecisionLoop, notifier: Arc<Notifier>) -> AdminHandler {
        AdminHandler { decision_loop, notifier, dry_run_lock: Arc::default() }
    }

    pub(crate) async fn command(
        &self,
        by: String,
        command: Command,
        dry_run: bool,
    ) -> Result<Answer, ApiError> {
        if dry_run {
            return self.dry_run(by, command).await;
        }
        let decided = Arc::new(AtomicBool::new(false));
        let deciding = decided.clone();
        let answer = self.decision_loop.change(move |cluster, at| {
            deciding.store(true, Ordering::Relaxed);
            cluster.command(at, transaction(), &by, command)
        });
        match answer.await {
            Ok(answer) => Ok(answer?),
            Err(CallError::Stopped(_)) if decided.load(Ordering::Relaxed) => {
                Err(ApiError::unknown("this coordinator ceased to lead while it committed the change"))
            }
            Err(unanswered) => Err(unanswered.into()),
        }
    }

    /// What would follow from a command. The planner looks at everything for that, which takes longer than a beat may wait:
    /// it does so on a copy, beside the decision loop.
    async fn dry_run(&self, by: String, command: Command) -> Result<Answer, ApiError> {
        let permit = self.dry_run_lock.clone().lock_owned().await;
        let (copy, at) = self.decision_loop.call(|cluster, at| (cluster.clone(), at)).await?;
        let answer = tokio::task::spawn_blocking(move || {
            let answer = copy.dry_run(at, transaction(), &by, command);
            drop(permit);
            answer
        });
        Ok(answer.await.map_err(|_| LoopStopped)??)
    }

    pub(crate) async fn status(&self) -> Result<Summary, ApiError> {
        let mut status = self.decision_loop.call(|cluster, at| cluster.status(at)).await?;
        status.problems.splice(..0, self.notifier.problems_of_leaders());
        Ok(status)
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<NodeRow>, ApiError> {
        Ok(self.decision_loop.call(|cluster, at| cluster.node_table(at)).await?)
    }

    pub(crate) async fn node(&self, node: &str, limit: Option<usize>) -> Result<NodeDetail, ApiError> {
        let id = node_id(node)?;
        let limit = page_limit(limit)?;
        Ok(self.decision_loop.call(move |cluster, at| cluster.node_detail(at, &id, limit)).await??)
    }

    pub(crate) async fn keyspaces(&self) -> Result<Vec<Keyspace>, ApiError> {
        let settings = self.decision_loop.call(|cluster, _| {
            cluster.keyspaces().values().map(|state| state.record.keyspace.clone()).collect()
        });
        Ok(settings.await?)
    }

    pub(crate) async fn keyspace(&self, keyspace: &str) -> Result<Keyspace, ApiError> {
        let name = name(keyspace)?;
        let found = self
            .decision_loop
            .call(move |cluster, _| cluster.keyspace(&name).map(|state| state.record.keyspace.clone()));
        Ok(found.await??)
    }

    pub(crate) async fn shards(
        &self,
        keyspace: &str,
        after: Option<u64>,
        limit: Option<usize>,
    ) -> Result<Page<ShardRow>, ApiError> {
        let name = name(keyspace)?;
        let limit = page_limit(limit)?;
        let after = after.map(ShardId);
        let rows =
            self.decision_loop.call(move |cluster, at| cluster.shard_table(at, &name, after, limit + 1));
        Ok(Page::of(rows.await??, limit, |row| row.shard.0))
    }

    pub(crate) async fn plans(
        &self,
        keyspace: Option<&str>,
        before: Option<u64>,
        limit: Option<usize>,
    ) -> Result<Page<ShownPlan>, ApiError> {
        let of = keyspace.map(name).transpose()?;
        let limit = page_limit(limit)?;
        let before = PlanId(before.unwrap_or(u64::MAX));
        let found = self.decision_loop.call(move |cluster, _| {
            if let Some(name) = &of {
                cluster.keyspace(name)?;
            }
            let plans = cluster.plans().range(..before).rev();
            let plans = plans.filter(|(_, plan)| of.as_ref().is_none_or(|name| plan.keyspace == *name));
            let shown = plans.take(limit + 1).filter_map(|(id, _)| cluster.shown_plan(*id));
            Ok::<_, AdminError>(shown.collect::<Vec<_>>())
        });
        Ok(Page::of(found.await??, limit, |plan| plan.id.0))
    }

    pub(crate) async fn plan(&self, plan: u64) -> Result<ShownPlan, ApiError> {
        let id = PlanId(plan);
        let found = self.decision_loop.call(move |cluster, _| cluster.shown_plan(id)).await?;
        Ok(found.ok_or(AdminError::NoPlan(id))?)
    }

    pub(crate) async fn explain(&self, keyspace: &str, key: KeyText) -> Result<Explanation, ApiError> {
        let name = name(keyspace)?;
        let key = Key::try_from(key)?;
        Ok(self.decision_loop.call(move |cluster, at| cluster.explain(at, &name, &key)).await??)
    }

    pub(crate) async fn moves(
        &self,
        keyspace: Option<&str>,
        limit: Option<usize>,
    ) -> Result<(Vec<MoveRow>, bool), ApiError> {
        let of = keyspace.map(name).transpose()?;
        let limit = page_limit(limit)?;
        let rows = self.decision_loop.call(move |cluster, at| cluster.moves(at, of.as_ref(), limit + 1));
        let mut rows = rows.await??;
        let more = rows.len() > limit;
        rows.truncate(limit);
        Ok((rows, more))
    }

    pub(crate) async fn drains(&self) -> Result<Vec<DrainStatus>, ApiError> {
        Ok(self.decision_loop.call(|cluster, at| cluster.drains(at)).await?)
    }

    /// What happened lately. A leader that was deposed meanwhile answers nothing, like to every other question.
    pub(crate) async fn events(&self, asked: EventPage) -> Result<Events, ApiError> {
        let limit = page_limit(asked.limit)?;
        let after = asked.after.as_deref().map(str::parse).transpose()?;
        asked.keyspace.as_deref().map(name).transpose()?;
        asked.node.as_deref().map(node_id).transpose()?;
        self.decision_loop.call(|_, _| ()).await?;
        Ok(self.notifier.events().page(&asked, after, limit))
    }

    /// Everything durable, as one JSON document.
    pub(crate) async fn dump(&self) -> Result<Vec<u8>, ApiError> {
        let records = self.decision_loop.call(|cluster, _| cluster.records()).await?;
        // A large cluster is a second of work, which must not hold up other answers.
        let written = tokio::task::spawn_blocking(move || serde_json::to_vec(&Dump::from(&records))).await;
        match written {
            Ok(Ok(document)) => Ok(document),
            Ok(Err(_)) | Err(_) => Err(LoopStopped.into()),
        }
    }
}

fn name(keyspace: &str) -> Result<KeyspaceName, ApiError> {
    keyspace.parse().map_err(|error| ApiError::malformed("keyspace", error))
}

fn node_id(node: &str) -> Result<NodeId, ApiError> {
    node.parse().map_err(|error| ApiError::malformed("node", error))
}

fn page_limit(asked: Option<usize>) -> Result<usize, ApiError> {
    match asked.unwrap_or(limits::PAGE) {
        limit @ 1..=limits::PAGE_MOST => Ok(limit),
        limit => Err(ApiError::malformed("limit", format!("{limit} is not from 1 to {}", limits::PAGE_MOST))),
    }
}

/// Who asks: the header, or the metadata, `partage-user`.
pub(crate) fn user(headers: &HeaderMap) -> Result<String, ApiError> {
    let Some(value) = headers.get("partage-user") else { return Ok("anonymous".to_owned()) };
    let text = std::str::from_utf8(value.as_bytes()).unwrap_or_default();
    let fits = (1..=limits::USER_BYTES).contains(&text.len()) && !text.contains(char::is_control);
    match fits {
        true => Ok(text.to_owned()),
        false => {
            let why = format!("give 1 to {} bytes of readable text, or leave it out", limits::USER_BYTES);
            Err(ApiError::malformed("partage-user", why))
        }
    }
}
