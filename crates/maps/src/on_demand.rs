//! Maps for a process that needs them now and then: it opens no connection to a coordinator before the first question, and
//! closes it when none was asked for [`limits::IDLE`].

use crate::cache::Cache;
use crate::{MapClient, limits};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::time::{Instant, sleep};

/// A map client that begins when it is needed.
#[derive(Debug)]
pub struct MapsOnDemand {
    coordinators: Vec<String>,
    followed: Mutex<Option<Followed>>,
}

#[derive(Debug)]
struct Followed {
    client: MapClient,
    asked: Instant,
}

impl MapsOnDemand {
    /// Finds the maps at one of `coordinators`.
    pub fn new(coordinators: Vec<String>) -> Arc<MapsOnDemand> {
        Arc::new(MapsOnDemand { coordinators, followed: Mutex::default() })
    }

    fn followed(&self) -> MutexGuard<'_, Option<Followed>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The maps; they may still have to come. Must be called in a tokio runtime.
    pub fn cache(self: &Arc<MapsOnDemand>) -> Arc<Cache> {
        let now = Instant::now();
        let mut followed = self.followed();
        let followed = followed.get_or_insert_with(|| {
            tokio::spawn(end_when_idle(Arc::downgrade(self)));
            let client = MapClient::follow(self.coordinators.clone(), BTreeSet::new(), None);
            Followed { client, asked: now }
        });
        followed.asked = now;
        Arc::clone(followed.client.cache())
    }

    /// The maps, if they are followed now.
    pub fn followed_cache(&self) -> Option<Arc<Cache>> {
        let mut followed = self.followed();
        let followed = followed.as_mut()?;
        followed.asked = Instant::now();
        Some(Arc::clone(followed.client.cache()))
    }

    /// Whether maps are followed now.
    pub fn is_following(&self) -> bool {
        self.followed().is_some()
    }
}

/// Ends the following when no question was asked for long, or when the process has dropped the maps.
async fn end_when_idle(maps: Weak<MapsOnDemand>) {
    loop {
        sleep(limits::IDLE / 2).await;
        let Some(maps) = maps.upgrade() else { return };
        let mut followed = maps.followed();
        if followed.as_ref().is_none_or(|followed| followed.asked.elapsed() >= limits::IDLE) {
            *followed = None;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn maps_are_followed_from_the_first_question_until_long_after_the_last() {
        let maps = MapsOnDemand::new(vec![]);
        assert!(maps.followed_cache().is_none() && !maps.is_following());
        maps.cache();
        sleep(limits::IDLE * 3 / 4).await;
        assert!(maps.followed_cache().is_some(), "this question counts, too");
        sleep(limits::IDLE * 3 / 4).await;
        assert!(maps.is_following());
        sleep(limits::IDLE).await;
        assert!(!maps.is_following());
        maps.cache();
        assert!(maps.is_following(), "it begins anew");
    }
}
