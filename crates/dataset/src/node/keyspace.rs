//! The keyspace of a dataset, under a coordinator: each node that looks at the source makes the keyspace as the source
//! says. [`upkeep`] in core decides what to do.
//!
//! Every node asks a coordinator with each look, and mostly hears that all is well. So no node needs to be the first, a
//! keyspace that was deleted by mistake comes back, and the keyspace of a dataset that is no longer served goes, also
//! when no coordinator was there at the time. A node that has not looked since may create it once more; the next look
//! of any node deletes it again.

use super::driving::Input;
use crate::catalogue::Trouble;
use partage_clock::unix_seconds;
use partage_core::keyspace::Keyspace;
use partage_service::dataset::DatasetName;
use partage_service::dataset::node::Layout;
use partage_service::dataset::shards::{Upkeep, Wanted, detour, upkeep};
use partage_wire::proto::{
    self, CreateKeyspace, DeleteKeyspace, KeyspaceChanges, UpdateKeyspace, command_request,
};
use partage_worker::KeyspaceAdmin;
use std::collections::BTreeMap;
use tokio::sync::mpsc;

/// What a coordinator was asked to see to, and what came of it.
#[derive(Debug)]
pub struct Reconciled {
    pub dataset: DatasetName,
    /// The replication of the settings, if the node told it.
    said: Option<u32>,
    /// The keyspace as it is now.
    told: Result<Option<Keyspace>, String>,
}

/// What is known of the keyspaces of datasets.
#[derive(Debug, Default)]
pub struct Keyspaces {
    replicas: BTreeMap<DatasetName, u32>,
    /// The replication that this node told coordinators last. It tells only changes: so a node that reads changed
    /// settings late takes back nothing that others have told since.
    said: BTreeMap<DatasetName, u32>,
    troubles: BTreeMap<DatasetName, Trouble>,
    /// What the log has advised last.
    advised: BTreeMap<DatasetName, String>,
}

impl Keyspaces {
    /// How many nodes are to have each shard of a dataset, as far as a coordinator has told.
    pub fn replicas(&self, dataset: &DatasetName) -> Option<u32> {
        self.replicas.get(dataset).copied()
    }

    /// The replication, if this node has not told it to a coordinator.
    pub fn news(&self, dataset: &DatasetName, said: Option<u32>) -> Option<u32> {
        said.filter(|said| self.said.get(dataset) != Some(said))
    }

    /// Takes the answer of a coordinator, or why none answered. `layout` is that of what clients get; `min` is
    /// min_replication.
    pub fn take(&mut self, reconciled: Reconciled, layout: Option<Layout>, min: u32) {
        let Reconciled { dataset, said, told } = reconciled;
        let there = match told {
            Ok(there) => there,
            Err(why) => return self.fail(dataset, why),
        };
        self.troubles.remove(&dataset);
        let Some(keyspace) = there else {
            self.replicas.remove(&dataset);
            self.advised.remove(&dataset);
            return;
        };
        if let Some(said) = said {
            self.said.insert(dataset.clone(), said);
        }
        self.replicas.insert(dataset.clone(), keyspace.replicas);
        self.advise(dataset, &keyspace, layout, min);
    }

    /// Logs it when it begins, and now and then.
    fn fail(&mut self, dataset: DatasetName, why: String) {
        let (trouble, is_said) = Trouble::again(self.troubles.get(&dataset), why, unix_seconds());
        if is_said {
            let why = &trouble.reason;
            tracing::warn!(%dataset, why, "its keyspace was not seen to; the next look tries again");
        }
        self.troubles.insert(dataset, trouble);
    }

    /// Says once what a person may want to change.
    fn advise(&mut self, dataset: DatasetName, keyspace: &Keyspace, layout: Option<Layout>, min: u32) {
        let replicas = keyspace.replicas;
        let is_short = replicas < min;
        let advice = match layout.and_then(|layout| detour(keyspace.sharding, layout)) {
            _ if is_short => format!(
                "no version gets whole: min_replication is {min}, and its keyspace has {replicas} replicas: `partage \
                 keyspace update {dataset} --replicas {min}`, or give the dataset a lower min_replication"
            ),
            Some(detour) => format!("requests through the router take a hop more: {detour}"),
            None => {
                self.advised.remove(&dataset);
                return;
            }
        };
        if self.advised.get(&dataset) == Some(&advice) {
            return;
        }
        match is_short {
            true => tracing::warn!(%dataset, "{advice}"),
            false => tracing::info!(%dataset, "{advice}"),
        }
        self.advised.insert(dataset, advice);
    }
}

/// Has one coordinator after the other reconcile it until one has, and tells.
pub async fn reconcile(
    coordinators: Vec<String>,
    dataset: DatasetName,
    wanted: Wanted,
    inputs: mpsc::Sender<Input>,
) {
    let said = match &wanted {
        Wanted::There { said, .. } => *said,
        Wanted::Gone => None,
    };
    let seen_to = |admin| reconcile_at(admin, &dataset, wanted.clone());
    let told = KeyspaceAdmin::first_answer(&coordinators, seen_to).await;
    // Without a receiver the node has ended.
    let _ = inputs.send(Input::Keyspace(Reconciled { dataset, said, told })).await;
}

async fn reconcile_at(
    mut admin: KeyspaceAdmin,
    dataset: &DatasetName,
    wanted: Wanted,
) -> Result<Option<Keyspace>, String> {
    let there = admin.get(dataset.as_str()).await?;
    let Some(command) = command(dataset, upkeep(wanted, there.as_ref()))? else { return Ok(there) };
    admin.carry_out(command).await?;
    admin.get(dataset.as_str()).await
}

/// The command that does it, if there is anything to do.
fn command(dataset: &DatasetName, upkeep: Upkeep) -> Result<Option<command_request::Command>, String> {
    use command_request::Command;
    let keyspace = dataset.to_string();
    // Nodes that are still to join will have the replicas for which there are too few nodes now.
    let ahead = true;
    Ok(Some(match upkeep {
        Upkeep::Nothing => return Ok(None),
        Upkeep::Create(created) => Command::CreateKeyspace(CreateKeyspace {
            keyspace: Some(proto::Keyspace::from(&*created)),
            presplit: None,
            ahead,
        }),
        Upkeep::Tell(said) => {
            let changes = KeyspaceChanges { dataset_replication: Some(said), ..KeyspaceChanges::default() };
            Command::UpdateKeyspace(UpdateKeyspace { keyspace, changes: Some(changes), ahead })
        }
        Upkeep::Delete => Command::DeleteKeyspace(DeleteKeyspace { keyspace }),
        Upkeep::Taken(kind) => {
            return Err(format!(
                "there is a keyspace {keyspace} of kind {kind}: give the dataset another name, or delete that keyspace"
            ));
        }
    }))
}
