//! The key by which a coordinator says that it is there and whether it leads, kept while its session lives, and the alarm
//! when another one says that it leads, too.

use crate::backend::leaders::problems;
use crate::backend::store::StoreError;
use crate::backend::{BackendConnection, presence_key};
use crate::limits;
use crate::publish::notifier::Notifier;
use partage_coordination::{Key, Scope, View};
use partage_wire::stored::{COORDINATORS, Presence};
use std::convert::Infallible;
use std::time::Duration;

/// Says that this coordinator leads, as `presence` has it, and raises an alarm while another one says so too. Never
/// returns.
pub async fn announce_and_watch(
    connection: &BackendConnection,
    presence: Presence,
    notifier: &Notifier,
) -> Infallible {
    notifier.leaders(1, vec![]);
    let mut alarmed = false;
    keep_presence(connection, &presence, notifier, |present| {
        let count = present.iter().filter(|one| one.leads.is_some() && one.id != presence.id).count() + 1;
        let elected = presence.leads.map(|term| (presence.id.as_str(), term));
        let problems = if count > 1 { problems(elected, present) } else { vec![] };
        if !alarmed {
            problems.iter().for_each(|problem| notifier.alarm(&problem.to_string()));
        }
        notifier.leaders(count, problems);
        alarmed = count > 1;
    })
    .await
}

/// Keeps the key that says that this coordinator is there as `presence` has it, while its session lives: without it the
/// others take this one for gone, and give its part of the maps to another. `seen` hears who is there. Never returns.
pub async fn keep_presence(
    connection: &BackendConnection,
    presence: &Presence,
    notifier: &Notifier,
    mut seen: impl FnMut(&[Presence]),
) -> Infallible {
    loop {
        if let Err(error) = until_broken(connection, presence, notifier, &mut seen).await {
            tracing::debug!(%error, "who is there beside this coordinator cannot be seen; looking again");
        }
        tokio::time::sleep(Duration::from_millis(limits::LOOK_AGAIN_MS)).await;
    }
}

async fn until_broken(
    connection: &BackendConnection,
    presence: &Presence,
    notifier: &Notifier,
    seen: &mut impl FnMut(&[Presence]),
) -> Result<(), StoreError> {
    connection.announce(presence).await?;
    let own = presence_key(presence)?;
    let mut changes = connection.coordination.watch(Scope::Children(Key::new(COORDINATORS)?), None).await?;
    let mut view = View::new();
    loop {
        // A tool of the backend may change a value and leave its version, so that no watch wakes.
        let late = Duration::from_millis(limits::PRESENCE_LOOK_MS);
        let now = match tokio::time::timeout(late, changes.next()).await {
            Ok(change) => {
                view.fold(change?);
                view.entries().get(&own).map(|entry| entry.value.clone())
            }
            Err(_) => connection.coordination.read(&own).await?.map(|entry| entry.value),
        };
        if now.as_ref().is_none_or(|now| *now != presence.to_bytes()) {
            let done = if now.is_some() { "replaced" } else { "deleted" };
            notifier.alarm(
                &format!(
                    "the key `{own}` of this coordinator was {done} while its session lives; it writes the key again: \
                     find out who did it"
                ),
            );
            connection.announce(presence).await?;
        }
        let said = view.entries().iter();
        let present: Vec<_> =
            said.filter_map(|(key, entry)| Presence::from_bytes(key.as_str(), &entry.value).ok()).collect();
        seen(&present);
    }
}
