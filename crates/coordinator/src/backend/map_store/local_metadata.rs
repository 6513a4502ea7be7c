//! A coordinator's part in keeping the maps, where the backend does not keep them: a metadata server beside it, and
//! the list of the others, which are the coordinators that are there.
//!
//! ```text
//!  <data dir>/maps/<cluster>/<keyspace>/<transaction>.metadata
//! ```
//!
//! The files of another cluster are never touched: a wrong address, or a root that was restored from a backup, costs
//! nobody a map.

use crate::backend::store::StoreError;
use crate::limits;
use axum::Router;
use partage_coordination::{ClusterId, Coordination, Key, Scope, View};
use partage_core::base::name::NodeId;
use partage_metadata::{Heads, LocalServer, MetadataServerClient, MetadataService, Notices, Peers};
use partage_wire::stored::{COORDINATORS, Presence};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Where the files of all clusters are, below a data directory.
const MAPS: &str = "maps";

/// Addresses of metadata servers, by their names.
pub type Addresses = BTreeMap<NodeId, String>;

/// The metadata server of this process, and the way to the others. Dropped, it looks for nobody any more.
pub struct LocalMetadata {
    server: LocalServer,
    client: MetadataServerClient,
    directory: watch::Receiver<Addresses>,
    watching: AbortHandle,
}

impl LocalMetadata {
    /// Opens the files in `dir` of that cluster, as the server that `presence` says.
    ///
    /// # Errors
    /// When the name is none that a list can hold, or the directory is not to be had.
    pub async fn open(
        coordination: Arc<dyn Coordination>,
        cluster: ClusterId,
        dir: &Path,
        presence: &Presence,
    ) -> Result<LocalMetadata, StoreError> {
        let me = NodeId::new(&presence.id).map_err(StoreError::Name)?;
        let others = others(dir, cluster);
        if !others.is_empty() {
            let names = others.join(", ");
            tracing::warn!(
                dir = %dir.join(MAPS).display(), names,
                "maps of other clusters are there too: remove them when those clusters are gone"
            );
        }
        let own = (me.clone(), presence.address.clone());
        let directory = watch::Sender::new(Addresses::from([own.clone()]));
        let there = directory.subscribe();
        let peers = Peers::new(Arc::new(there.clone()));
        let heads = Heads::new(coordination.clone());
        let scope = Scope::Children(Key::new(COORDINATORS)?);
        let watching = tokio::spawn(watch_directory(coordination, scope, own, directory)).abort_handle();
        let data = dir.join(MAPS).join(cluster.to_string());
        let server = LocalServer::start(me, &data, heads.clone(), peers.clone())?;
        let notices = Notices::start(peers.clone());
        let client = MetadataServerClient::new(heads, peers, notices, Some(server.clone()));
        Ok(LocalMetadata { server, client, directory: there, watching })
    }

    /// The routes that others ask. Maps are changed by the leader alone.
    pub fn routes(&self) -> Router {
        let service = MetadataService::server(self.server.clone(), None);
        tonic::service::Routes::new(service).into_axum_router().reset_fallback()
    }

    /// Reads and changes maps by way of all servers.
    pub fn client(&self) -> &MetadataServerClient {
        &self.client
    }

    /// Who is there; changes when somebody comes or goes.
    pub fn directory(&self) -> watch::Receiver<Addresses> {
        self.directory.clone()
    }

    /// Ends; returns when the directory is free.
    pub async fn stop(&self) {
        self.server.stop().await;
    }
}

impl Drop for LocalMetadata {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Other clusters of which there are files.
fn others(dir: &Path, cluster: ClusterId) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir.join(MAPS)) else { return vec![] };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| *name != cluster.to_string()).collect()
}

/// Keeps up to date who is there: the coordinators, and always ourselves.
async fn watch_directory(
    coordination: Arc<dyn Coordination>,
    scope: Scope,
    own: (NodeId, String),
    directory: watch::Sender<Addresses>,
) {
    loop {
        if let Err(error) = until_broken(&*coordination, &scope, &own, &directory).await {
            tracing::debug!(%error, "who is there cannot be seen; looking again");
        }
        tokio::time::sleep(Duration::from_millis(limits::LOOK_AGAIN_MS)).await;
    }
}

async fn until_broken(
    coordination: &dyn Coordination,
    scope: &Scope,
    own: &(NodeId, String),
    directory: &watch::Sender<Addresses>,
) -> partage_coordination::Result<()> {
    let mut changes = coordination.watch(scope.clone(), None).await?;
    let mut view = View::new();
    loop {
        view.fold(changes.next().await?);
        let mut there = present(view.entries().iter().map(|(key, entry)| (key.as_str(), &entry.value[..])));
        there.extend([own.clone()]);
        directory.send_if_modified(|known| {
            let changed = *known != there;
            *known = there;
            changed
        });
    }
}

/// The metadata servers among these keys and values: the coordinators that are there.
pub fn present<'a>(coordinators: impl Iterator<Item = (&'a str, &'a [u8])>) -> Addresses {
    let read = coordinators.filter_map(|(key, value)| Presence::from_bytes(key, value).ok());
    read.filter_map(|one| Some((NodeId::new(&one.id).ok()?, one.address))).collect()
}
