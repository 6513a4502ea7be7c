//! Sees to it that each map is kept by as many metadata servers as it should be, while this coordinator leads.
//! What is to be done says [`partage_service::metadata::upkeep`].

use super::StillLeads;
use super::replicated::ReplicatedMaps;
use crate::backend::store::StoreError;
use crate::clock::Clock;
use crate::limits;
use partage_core::base::name::KeyspaceName;
use partage_metadata::ChangeError;
use partage_service::metadata::upkeep::{Absences, Replacement};
use std::collections::BTreeSet;
use std::time::Duration;

/// Looks again and again, and when somebody comes or goes, while this coordinator leads.
pub async fn run(maps: &ReplicatedMaps, clock: Clock, leads: &StillLeads) {
    let mut directory = maps.directory.clone();
    let mut absences = Absences::default();
    let mut ticks = tokio::time::interval(Duration::from_millis(limits::UPKEEP_MS));
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            Ok(()) = directory.changed() => {}
        }
        let all = maps.heads().clone();
        let listed: BTreeSet<_> = all.values().flat_map(|seen| seen.head.servers.iter().cloned()).collect();
        let (present, _) = maps.client.present();
        absences.look(clock.now(), &listed, &present);
        if !leads().await {
            return;
        }
        for (keyspace, seen) in all {
            let seed = maps.client.seed();
            let Some(replacement) = absences.mend(clock.now(), &seen.head.servers, &present, seed) else {
                continue;
            };
            if !leads().await {
                return;
            }
            let Replacement { joins, leaves } = &replacement;
            match replace(maps, &keyspace, &replacement).await {
                Ok(()) => tracing::info!(%keyspace, ?joins, ?leaves, "the map is kept by other servers"),
                // Tried again with the next look.
                Err(error) => tracing::warn!(%keyspace, ?joins, %error, "the map is not kept by others yet"),
            }
            // A commit may have seen a later one meanwhile.
            if let Ok(Some(now)) = maps.client.head(&keyspace).await
                && let Some(seen) = maps.heads().get_mut(&keyspace).filter(|seen| seen.version < now.version)
            {
                *seen = now;
            }
        }
    }
}

/// What was done before an error stays, and the next look goes on from there.
async fn replace(
    maps: &ReplicatedMaps,
    keyspace: &KeyspaceName,
    replacement: &Replacement,
) -> Result<(), StoreError> {
    if let Some(server) = &replacement.joins {
        maps.client.join(keyspace, server).await?;
    }
    let Some(server) = &replacement.leaves else { return Ok(()) };
    let seen = maps.client.head(keyspace).await.map_err(ChangeError::from)?;
    let seen = seen.ok_or_else(|| ChangeError::NoMap(keyspace.clone()))?;
    let servers: Vec<_> = seen.head.servers.iter().filter(|other| *other != server).cloned().collect();
    if servers.len() < seen.head.servers.len() {
        maps.set_servers(keyspace, seen, servers).await?;
    }
    Ok(())
}
