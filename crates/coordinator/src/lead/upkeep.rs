//! Sees to it that each map is kept by as many metadata servers as it should be, while this coordinator leads.
//! What is to be done says [`partage_service::metadata::upkeep`].

use crate::backend::local_metadata::Addresses;
use crate::backend::store::{ServerLists, StoreError};
use crate::clock::Clock;
use crate::lead::decision_loop::DecisionLoop;
use crate::limits;
use partage_core::base::name::KeyspaceName;
use partage_metadata::ChangeError;
use partage_service::metadata::upkeep::{Absences, Replacement};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;

/// Looks again and again, and when somebody comes or goes, until the decision loop is gone.
pub async fn run(
    decision_loop: DecisionLoop,
    lists: ServerLists,
    mut directory: watch::Receiver<Addresses>,
    clock: Clock,
) {
    let mut absences = Absences::default();
    let mut ticks = tokio::time::interval(Duration::from_millis(limits::UPKEEP_MS));
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Ok(()) = directory.changed() => {}
        }
        let all = lists.heads.all();
        let listed: BTreeSet<_> =
            all.iter().flat_map(|(_, seen)| seen.head.servers.iter().cloned()).collect();
        let (present, _) = lists.maps.present();
        absences.look(clock.now(), &listed, &present);
        if decision_loop.call(|_, _| ()).await.is_err() {
            return;
        }
        for (keyspace, seen) in all {
            let seed = lists.maps.seed();
            let Some(replacement) = absences.mend(clock.now(), &seen.head.servers, &present, seed) else {
                continue;
            };
            if decision_loop.call(|_, _| ()).await.is_err() {
                return;
            }
            let Replacement { joins, leaves } = &replacement;
            match replace(&lists, &keyspace, &replacement).await {
                Ok(()) => tracing::info!(%keyspace, ?joins, ?leaves, "the map is kept by other servers"),
                // Tried again with the next look.
                Err(error) => tracing::warn!(%keyspace, ?joins, %error, "the map is not kept by others yet"),
            }
            if let Ok(Some(now)) = lists.maps.head(&keyspace).await {
                lists.heads.refresh(&keyspace, now);
            }
        }
    }
}

/// What was done before an error stays, and the next look goes on from there.
async fn replace(
    lists: &ServerLists,
    keyspace: &KeyspaceName,
    replacement: &Replacement,
) -> Result<(), StoreError> {
    if let Some(server) = &replacement.joins {
        lists.maps.join(keyspace, server).await?;
    }
    let Some(server) = &replacement.leaves else { return Ok(()) };
    let seen = lists.maps.head(keyspace).await.map_err(ChangeError::from)?;
    let seen = seen.ok_or_else(|| ChangeError::NoMap(keyspace.clone()))?;
    let servers: Vec<_> = seen.head.servers.iter().filter(|other| *other != server).cloned().collect();
    if servers.len() < seen.head.servers.len() {
        lists.set(keyspace, seen, servers).await?;
    }
    Ok(())
}
