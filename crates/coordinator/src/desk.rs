//! The desk that both doors of administration lead to: every command, and every question that a person or program
//! may have, once.
//!
//! Commands come as the JSON forms, as in them is said what a name, a key or a word may be; the gRPC door makes
//! them from its messages. Answers are core's, and each door writes them down in its own way. Questions change
//! nothing.

use crate::audience::Herald;
use crate::failed::Failed;
use crate::limits;
use crate::mind::{Gone, Mind, Unanswered, transaction};
use axum::http::HeaderMap;
use partage_core::cluster::admin::{AdminError, Answer, Command, DrainStatus};
use partage_core::cluster::explain::Explanation;
use partage_core::cluster::moves::MoveRow;
use partage_core::cluster::node_detail::NodeDetail;
use partage_core::cluster::status::{NodeRow, ShardRow, Summary};
use partage_core::id::{PlanId, ShardId};
use partage_core::key::Key;
use partage_core::keyspace::Keyspace;
use partage_core::name::{KeyspaceName, NodeId};
use partage_core::plan::ShownPlan;
use partage_wire::Malformed;
use partage_wire::json::{CommandRequest, Dump, EventPage, Events, KeyText};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Mutex;

/// The handler of every administrative command and query, shared by the JSON and the gRPC API.
#[derive(Clone)]
pub(crate) struct Desk {
    mind: Mind,
    herald: Arc<Herald>,
    /// Held while a dry run is made: each has a copy of the whole cluster, so there is one at a time.
    foresight: Arc<Mutex<()>>,
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

impl Desk {
    pub(crate) fn new(mind: Mind, herald: Arc<Herald>) -> Desk {
        Desk { mind, herald, foresight: Arc::default() }
    }

    pub(crate) async fn command(&self, by: String, request: CommandRequest) -> Result<Answer, Failed> {
        let CommandRequest { command, dry_run } = request;
        let command = command.try_into().map_err(|error: Malformed| error.within("do"))?;
        if dry_run {
            return self.foresee(by, command).await;
        }
        let decided = Arc::new(AtomicBool::new(false));
        let deciding = decided.clone();
        let answer = self.mind.change(move |cluster, at| {
            deciding.store(true, Ordering::Relaxed);
            cluster.command(at, transaction(), &by, command, false)
        });
        match answer.await {
            Ok(answer) => Ok(answer?),
            Err(Unanswered::Gone(_)) if decided.load(Ordering::Relaxed) => {
                Err(Failed::unknown("this coordinator ceased to lead while it committed the change"))
            }
            Err(unanswered) => Err(unanswered.into()),
        }
    }

    /// What would follow from a command. The planner looks at everything for that, which takes longer than a beat may wait:
    /// it does so on a copy, beside the mind.
    async fn foresee(&self, by: String, command: Command) -> Result<Answer, Failed> {
        let alone = self.foresight.clone().lock_owned().await;
        let (mut copy, at) = self.mind.call(|cluster, at| (cluster.clone(), at)).await?;
        let foreseen = tokio::task::spawn_blocking(move || {
            let answer = copy.command(at, transaction(), &by, command, true);
            drop(alone);
            answer
        });
        Ok(foreseen.await.map_err(|_| Gone)??)
    }

    pub(crate) async fn status(&self) -> Result<Summary, Failed> {
        let mut status = self.mind.call(|cluster, at| cluster.status(at)).await?;
        status.problems.splice(..0, self.herald.problems_of_leaders());
        Ok(status)
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<NodeRow>, Failed> {
        Ok(self.mind.call(|cluster, at| cluster.node_table(at)).await?)
    }

    pub(crate) async fn node(&self, node: &str, limit: Option<usize>) -> Result<NodeDetail, Failed> {
        let id = node_id(node)?;
        let limit = page_limit(limit)?;
        Ok(self.mind.call(move |cluster, at| cluster.node_detail(at, &id, limit)).await??)
    }

    pub(crate) async fn keyspaces(&self) -> Result<Vec<Keyspace>, Failed> {
        let settings = self.mind.call(|cluster, _| {
            cluster.keyspaces().values().map(|state| state.record.keyspace.clone()).collect()
        });
        Ok(settings.await?)
    }

    pub(crate) async fn keyspace(&self, keyspace: &str) -> Result<Keyspace, Failed> {
        let name = name(keyspace)?;
        let found = self
            .mind
            .call(move |cluster, _| cluster.keyspace(&name).map(|state| state.record.keyspace.clone()));
        Ok(found.await??)
    }

    pub(crate) async fn shards(
        &self,
        keyspace: &str,
        after: Option<u64>,
        limit: Option<usize>,
    ) -> Result<Page<ShardRow>, Failed> {
        let name = name(keyspace)?;
        let limit = page_limit(limit)?;
        let after = after.map(ShardId);
        let rows = self.mind.call(move |cluster, at| cluster.shard_table(at, &name, after, limit + 1));
        Ok(Page::of(rows.await??, limit, |row| row.shard.0))
    }

    pub(crate) async fn plans(
        &self,
        keyspace: Option<&str>,
        before: Option<u64>,
        limit: Option<usize>,
    ) -> Result<Page<ShownPlan>, Failed> {
        let of = keyspace.map(name).transpose()?;
        let limit = page_limit(limit)?;
        let before = PlanId(before.unwrap_or(u64::MAX));
        let found = self.mind.call(move |cluster, _| {
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

    pub(crate) async fn plan(&self, plan: u64) -> Result<ShownPlan, Failed> {
        let id = PlanId(plan);
        let found = self.mind.call(move |cluster, _| cluster.shown_plan(id)).await?;
        Ok(found.ok_or(AdminError::NoPlan(id))?)
    }

    pub(crate) async fn explain(&self, keyspace: &str, key: KeyText) -> Result<Explanation, Failed> {
        let name = name(keyspace)?;
        let key = Key::try_from(key)?;
        Ok(self.mind.call(move |cluster, at| cluster.explain(at, &name, &key)).await??)
    }

    pub(crate) async fn moves(
        &self,
        keyspace: Option<&str>,
        limit: Option<usize>,
    ) -> Result<(Vec<MoveRow>, bool), Failed> {
        let of = keyspace.map(name).transpose()?;
        let limit = page_limit(limit)?;
        let rows = self.mind.call(move |cluster, at| cluster.moves(at, of.as_ref(), limit + 1));
        let mut rows = rows.await??;
        let more = rows.len() > limit;
        rows.truncate(limit);
        Ok((rows, more))
    }

    pub(crate) async fn drains(&self) -> Result<Vec<DrainStatus>, Failed> {
        Ok(self.mind.call(|cluster, at| cluster.drains(at)).await?)
    }

    /// What happened lately. A leader that was deposed meanwhile answers nothing, like to every other question.
    pub(crate) async fn events(&self, asked: EventPage) -> Result<Events, Failed> {
        let limit = page_limit(asked.limit)?;
        let after = asked.after.as_deref().map(str::parse).transpose()?;
        asked.keyspace.as_deref().map(name).transpose()?;
        asked.node.as_deref().map(node_id).transpose()?;
        self.mind.call(|_, _| ()).await?;
        Ok(self.herald.events().page(&asked, after, limit))
    }

    /// Everything durable, as one JSON document.
    pub(crate) async fn dump(&self) -> Result<Vec<u8>, Failed> {
        let records = self.mind.call(|cluster, _| cluster.records()).await?;
        // A large cluster is a second of work, which must not hold up other answers.
        let written = tokio::task::spawn_blocking(move || serde_json::to_vec(&Dump::from(&records))).await;
        match written {
            Ok(Ok(document)) => Ok(document),
            Ok(Err(_)) | Err(_) => Err(Gone.into()),
        }
    }
}

fn name(keyspace: &str) -> Result<KeyspaceName, Failed> {
    keyspace.parse().map_err(|error| Failed::malformed("keyspace", error))
}

fn node_id(node: &str) -> Result<NodeId, Failed> {
    node.parse().map_err(|error| Failed::malformed("node", error))
}

fn page_limit(asked: Option<usize>) -> Result<usize, Failed> {
    match asked.unwrap_or(limits::PAGE) {
        limit @ 1..=limits::PAGE_MOST => Ok(limit),
        limit => Err(Failed::malformed("limit", format!("{limit} is not from 1 to {}", limits::PAGE_MOST))),
    }
}

/// Who asks: the header, or the metadata, `partage-user`.
pub(crate) fn user(headers: &HeaderMap) -> Result<String, Failed> {
    let Some(value) = headers.get("partage-user") else { return Ok("anonymous".to_owned()) };
    let text = std::str::from_utf8(value.as_bytes()).unwrap_or_default();
    let fits = (1..=limits::USER_BYTES).contains(&text.len()) && !text.contains(char::is_control);
    match fits {
        true => Ok(text.to_owned()),
        false => {
            let why = format!("give 1 to {} bytes of readable text, or leave it out", limits::USER_BYTES);
            Err(Failed::malformed("partage-user", why))
        }
    }
}
