//! Checks of tables: shard by shard, all replicas that serve, each as of the same entry of the log.
//!
//! ```text
//!  leader ── an entry ──► all replicas sum up what they have as of it
//!  this node ◄── the sums ── each of them ── compared (core)
//! ```
//!
//! Shards are looked at in the order of their ids, which are never used again: those that come from splits and merges meanwhile
//! are looked at after those that they come from. Replicas that are loading are not looked at: they are not in the map's routes.

use super::forms::digest;
use super::shards::{Holder, Shard, shards};
use super::{IndexError, Indexes};
use crate::limits;
use crate::scans::{self, TokenError};
use partage_core::base::id::ShardId;
use partage_core::base::name::KeyspaceName;
use partage_service::table::check::{Difference, Digest, Part, compare};
use partage_service::table::replication::LogPosition;
use partage_wire::table::{
    BytesText, CheckAnswer, CheckDifference, CheckUnchecked, ShardIndexAnswer, ShardIndexRequest,
};
use std::collections::BTreeMap;
use tokio::time::{Instant, sleep};

/// Differences of one shard that an answer names.
const DIFFERENCES: usize = 100;

/// Where a check goes on: with the first shard of that id or above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckToken(u64);

impl CheckToken {
    /// Reads the text that an answer has as `next`.
    ///
    /// # Errors
    /// The text is no such token.
    pub fn parse(text: &str) -> Result<CheckToken, TokenError> {
        text.parse()
            .map(CheckToken)
            .map_err(|_| TokenError::Damaged("leave token out to begin at the first shard"))
    }
}

impl Indexes {
    /// Checks some shards of a table.
    ///
    /// # Errors
    /// There is no such table. What cannot be compared is named in the answer.
    pub async fn check(&self, table: &KeyspaceName, from: CheckToken) -> Result<CheckAnswer, IndexError> {
        let began = Instant::now();
        let (maps, _) = self.scans.ways();
        scans::table(&maps.cache(), table, began + limits::PATIENCE).await?;
        let mut answer = CheckAnswer::default();
        let mut next = from.0;
        for _ in 0..limits::CHECK_SHARDS {
            let all = shards(&maps, table);
            let Some(shard) = all.into_iter().filter(|shard| shard.id.0 >= next).min_by_key(|shard| shard.id)
            else {
                return Ok(answer);
            };
            if began.elapsed() >= limits::CHECK_TIME {
                break;
            }
            next = shard.id.0 + 1;
            let part = self.check_shard(table, shard.id).await;
            answer.shards += part.shards;
            answer.replicas += part.replicas;
            answer.unchecked.extend(part.unchecked);
            answer.differences.extend(part.differences);
        }
        answer.next = Some(next.to_string());
        Ok(answer)
    }

    /// Compares the replicas of a shard, once more if one could not be compared: a replica that was filled from another one
    /// meanwhile has not seen the entry, and sees a later one.
    async fn check_shard(&self, table: &KeyspaceName, id: ShardId) -> CheckAnswer {
        let found = self.compare_replicas(table, id).await;
        if found.unchecked.iter().all(|part| part.node.is_none()) {
            return found;
        }
        self.compare_replicas(table, id).await
    }

    /// Compares the replicas of a shard as of an entry that its leader logs now.
    async fn compare_replicas(&self, table: &KeyspaceName, id: ShardId) -> CheckAnswer {
        let mut answer = CheckAnswer::default();
        let until = Instant::now() + limits::CHECK_PATIENCE;
        let number = partage_random::seed();
        let shard = match self.begin_check(table, id, number, until).await {
            Ok(Some(shard)) => shard,
            // The shard was split or merged: its children are looked at later.
            Ok(None) => return answer,
            Err(reason) => {
                answer.unchecked.push(CheckUnchecked { shard: id.0, node: None, index: None, reason });
                return answer;
            }
        };
        let mut digests = BTreeMap::new();
        for holder in &shard.holders {
            match self.result(table, id, holder, number, until).await {
                Ok(found) => drop(digests.insert(holder.node.clone(), found)),
                Err(reason) => {
                    let node = Some(holder.node.to_string());
                    answer.unchecked.push(CheckUnchecked { shard: id.0, node, index: None, reason });
                }
            }
        }
        // A request that was sent again may have been logged twice, and a replica that came by a snapshot have seen the second
        // one only.
        let earliest = digests.values().map(|(position, _)| *position).min();
        let (digests, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            digests.into_iter().partition(|(_, (position, _))| Some(*position) == earliest);
        for node in others.into_keys() {
            let reason = "it was summed up as of another entry of the log: check again".to_owned();
            let node = Some(node.to_string());
            answer.unchecked.push(CheckUnchecked { shard: id.0, node, index: None, reason });
        }
        answer.shards += u64::from(!digests.is_empty());
        answer.replicas += digests.len() as u64;
        let digests: BTreeMap<_, Digest> =
            digests.into_iter().map(|(node, (_, digest))| (node, digest)).collect();
        for name in digests.values().next().into_iter().flat_map(|digest| &digest.unfinished) {
            let (shard, index) = (id.0, Some(name.to_string()));
            let reason =
                "the index is being built or dropped: whether it fits the rows cannot be said".to_owned();
            answer.unchecked.push(CheckUnchecked { shard, node: None, index, reason });
        }
        let found = compare(&digests).into_iter().take(DIFFERENCES);
        answer.differences.extend(found.map(|difference| told(id, &difference)));
        answer
    }

    /// Has the leader log the entry as of which the replicas are compared. None: the shard was split or merged.
    async fn begin_check(
        &self,
        table: &KeyspaceName,
        id: ShardId,
        number: u64,
        until: Instant,
    ) -> Result<Option<Shard>, String> {
        let (maps, _) = self.scans.ways();
        loop {
            let Some(shard) = shards(&maps, table).into_iter().find(|shard| shard.id == id) else {
                return Ok(None);
            };
            let check = ShardIndexRequest::Check { number };
            match self.ask_leader(table, shard.clone(), &check).await.1 {
                Ok(ShardIndexAnswer::Changed) => return Ok(Some(shard)),
                Ok(_) => return Err("its leader has answered what is not understood".to_owned()),
                Err(refused) if Instant::now() >= until => return Err(refused.message),
                Err(_) => sleep(limits::LOOK_AGAIN).await,
            }
        }
    }

    /// What a replica has; it may still have to come to the entry.
    async fn result(
        &self,
        table: &KeyspaceName,
        id: ShardId,
        holder: &Holder,
        number: u64,
        until: Instant,
    ) -> Result<(LogPosition, Digest), String> {
        loop {
            let result = ShardIndexRequest::Result { number };
            let why = match self.ask(table, id, holder, &result).await {
                Ok(ShardIndexAnswer::Digest(form)) => {
                    return digest(form).ok_or_else(|| "its answer is not understood".to_owned());
                }
                Ok(ShardIndexAnswer::Failed(why)) => return Err(why),
                Ok(ShardIndexAnswer::Working) => {
                    "it has not come to the entry of the check in time, was filled from another replica meanwhile, or has many \
                     checks under way"
                        .to_owned()
                }
                Ok(_) => return Err("its answer is not understood".to_owned()),
                Err(refused) => refused.message,
            };
            if Instant::now() >= until {
                return Err(why);
            }
            sleep(limits::LOOK_AGAIN).await;
        }
    }
}

fn told(shard: ShardId, difference: &Difference) -> CheckDifference {
    let index = match &difference.part {
        Part::Index(name) => Some(name.to_string()),
        _ => None,
    };
    CheckDifference {
        shard: shard.0,
        node: difference.node.to_string(),
        part: difference.part.to_string(),
        index,
        first_key: BytesText::from(&difference.first),
        message: difference.kind.to_string(),
    }
}
