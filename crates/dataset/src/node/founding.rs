//! The keyspace of a dataset: created by whichever node first knows how its files are divided.
//!
//! Every node asks for it with each look at the source, and mostly hears that it is there. So nobody has to be told
//! which node is the first, and a keyspace that somebody deleted by mistake comes back.

use super::driving::Input;
use crate::limits::FOUND;
use partage_core::dataset::DatasetName;
use partage_core::keyspace::Keyspace;
use partage_wire::proto::admin_client::AdminClient;
use partage_wire::proto::{self, CommandRequest, CreateKeyspace, GetKeyspaceRequest, command_request};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Code;
use tonic::transport::Endpoint;

/// Sees to it that there is such a keyspace, at the first coordinator that answers, and tells.
pub async fn found(
    coordinators: Vec<String>,
    dataset: DatasetName,
    keyspace: Keyspace,
    inputs: mpsc::Sender<Input>,
) {
    let mut why = String::from("no coordinator is named");
    for coordinator in coordinators {
        let asked = timeout(FOUND, found_at(&coordinator, &keyspace)).await;
        match asked.unwrap_or_else(|_| Err(format!("{coordinator} does not answer"))) {
            Ok(is_new) => {
                if is_new {
                    tracing::info!(%dataset, shards = %keyspace.sharding, "its keyspace is created");
                }
                why.clear();
                break;
            }
            Err(error) => why = error,
        }
    }
    let told = if why.is_empty() { Ok(()) } else { Err(why) };
    // Without a receiver the node has ended.
    let _ = inputs.send(Input::Founded(dataset, told)).await;
}

/// Whether it was created now.
async fn found_at(coordinator: &str, keyspace: &Keyspace) -> Result<bool, String> {
    let told = |status: tonic::Status| format!("{coordinator}: {}", status.message());
    let url =
        if coordinator.contains("://") { coordinator.to_owned() } else { format!("http://{coordinator}") };
    let endpoint = Endpoint::from_shared(url).map_err(|error| format!("{coordinator}: {error}"))?;
    let channel = endpoint.connect().await.map_err(|error| format!("{coordinator}: {error}"))?;
    let mut admin = AdminClient::new(channel);
    let asked = GetKeyspaceRequest { name: keyspace.name.to_string() };
    match admin.get_keyspace(asked).await {
        Ok(_) => return Ok(false),
        Err(status) if status.code() == Code::NotFound => {}
        Err(status) => return Err(told(status)),
    }
    let create = CreateKeyspace {
        keyspace: Some(proto::Keyspace::from(keyspace)),
        presplit: None,
        // The first node does not wait for the others.
        ahead: true,
    };
    let command = Some(command_request::Command::CreateKeyspace(create));
    match admin.command(CommandRequest { dry_run: false, command }).await {
        Ok(_) => Ok(true),
        Err(status) if status.code() == Code::AlreadyExists => Ok(false),
        Err(status) => Err(told(status)),
    }
}
