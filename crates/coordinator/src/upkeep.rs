//! Sees to it that each map is kept by as many metadata servers as it should be, while this coordinator leads.
//! What is to be done says [`partage_core::metadata::upkeep`].

use crate::clock::Clock;
use crate::limits;
use crate::mind::Mind;
use crate::part::Addresses;
use crate::store::Known;
use partage_core::metadata::upkeep::Absences;
use partage_metadata::Maps;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;

/// Looks again and again, and when somebody comes or goes, until the mind is gone.
pub async fn run(
    mind: Mind,
    maps: Maps,
    known: Known,
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
        if mind.call(|_, _| ()).await.is_err() {
            return;
        }
        let all = known.all();
        let listed: BTreeSet<_> =
            all.iter().flat_map(|(_, seen)| seen.head.servers.iter().cloned()).collect();
        let (present, _) = maps.present();
        absences.look(clock.now(), &listed, &present);
        for (keyspace, seen) in all {
            let seed = maps.seed();
            let Some(replacement) = absences.mend(clock.now(), &seen.head.servers, &present, seed) else {
                continue;
            };
            let (joins, leaves) = (&replacement.joins, replacement.leaves.as_ref());
            match maps.replace(&keyspace, Some(joins), leaves).await {
                Ok(()) => tracing::info!(%keyspace, %joins, ?leaves, "another server keeps the map"),
                // Tried again with the next look.
                Err(error) => {
                    tracing::warn!(%keyspace, %joins, %error, "the map is not kept by another server yet")
                }
            }
            if let Ok(Some(now)) = maps.head(&keyspace).await {
                known.refresh(&keyspace, now);
            }
        }
    }
}
