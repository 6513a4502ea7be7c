//! The maps of the cluster, followed while somebody scans: as a worker does, a node opens no second connection to the
//! coordinator before it needs one, and closes it when nobody has scanned for [`limits::MAPS_IDLE`].

use crate::limits;
use partage_maps::{Cache, Following, follow};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::{Instant, sleep};

#[derive(Debug)]
pub(crate) struct Maps {
    coordinators: Vec<String>,
    followed: Mutex<Option<Followed>>,
}

#[derive(Debug)]
struct Followed {
    cache: Arc<Cache>,
    asked: Instant,
    _following: Following,
}

impl Maps {
    pub(super) fn new(coordinators: Vec<String>) -> Maps {
        Maps { coordinators, followed: Mutex::default() }
    }

    fn followed(&self) -> MutexGuard<'_, Option<Followed>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The maps; they may still have to come.
    pub(crate) fn cache(self: &Arc<Maps>) -> Arc<Cache> {
        let now = Instant::now();
        let mut followed = self.followed();
        if followed.is_none() {
            self.clone().rest();
        }
        let followed = followed.get_or_insert_with(|| {
            let (cache, following) = follow(self.coordinators.clone(), BTreeSet::new(), None);
            Followed { cache, asked: now, _following: following }
        });
        followed.asked = now;
        Arc::clone(&followed.cache)
    }

    /// Ends the following when nobody has asked for long, or when the node has ended.
    fn rest(self: Arc<Maps>) {
        let maps = Arc::downgrade(&self);
        tokio::spawn(async move {
            loop {
                sleep(limits::MAPS_IDLE / 2).await;
                let Some(maps) = maps.upgrade() else { return };
                let mut followed = maps.followed();
                if followed.as_ref().is_none_or(|followed| followed.asked.elapsed() >= limits::MAPS_IDLE) {
                    *followed = None;
                    return;
                }
            }
        });
    }
}
