//! What goes on while servers are struck, and what must fit together afterwards.
//!
//! | who       | does                             | afterwards                                                            |
//! |-----------|----------------------------------|-----------------------------------------------------------------------|
//! | writers   | create keys, each once           | what was acknowledged is there, at that version; what was definitely   |
//! |           |                                  | not done is not; what is unknown is there or not                       |
//! | a watcher | folds updates                    | its version never went back, and what it folded is the content (W1-W5) |
//! | a session | is renewed, and has a key        | it lives, and its key is there (C4)                                    |

use crate::until;
use bytes::Bytes;
use partage_coordination::{Coordination, Error, Expected, Key, Result, Scope, Session, Version, View};
use partage_coordination::{Transaction, limits};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

const WRITERS: usize = 4;

/// Changes of each writer that must go through before it counts as going on.
const ENOUGH: u64 = 10;

/// Rest after something was not done, and between two changes: servers share two cores with all other tests.
const REST: Duration = Duration::from_millis(10);

/// Longer than any blow, so that a session that ends was ended wrongly.
const TTL: Duration = Duration::from_secs(40);

fn key(path: &str) -> Key {
    Key::new(path).unwrap()
}

/// What became of each change.
type Outcomes = Vec<(Key, Result<Version>)>;

/// Work through one handle.
pub struct Work {
    store: Arc<dyn Coordination>,
    writers: Vec<JoinHandle<Outcomes>>,
    /// How many changes of each writer were acknowledged.
    done: Arc<[AtomicU64; WRITERS]>,
    stop: Arc<AtomicBool>,
    view: watch::Receiver<View>,
    watcher: JoinHandle<()>,
    session: Session,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Account {
    /// Changes that were acknowledged.
    pub acknowledged: usize,
    /// Changes of which it is not known.
    pub unknown: usize,
    /// Changes that were definitely not done.
    pub not_done: usize,
}

impl Work {
    /// Opens the session, and starts the writers and the watcher.
    pub async fn begin(store: Arc<dyn Coordination>) -> Work {
        let session = Session::open(Arc::clone(&store), TTL).await.unwrap();
        let mine = Transaction::new().put_ephemeral(&key("mine"), "", session.id());
        store.commit(mine).await.unwrap();
        let done: Arc<[AtomicU64; WRITERS]> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let write =
            |at: usize| tokio::spawn(write(Arc::clone(&store), at, Arc::clone(&done), Arc::clone(&stop)));
        let writers = (0..WRITERS).map(write).collect();
        let (sender, view) = watch::channel(View::new());
        let watcher = tokio::spawn(follow(Arc::clone(&store), sender));
        Work { store, writers, done, stop, view, watcher, session }
    }

    /// Waits until every writer gets on.
    pub async fn goes_on(&self) {
        let counts = || self.done.iter().map(|done| done.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = counts();
        until("every writer gets on", async || {
            let now = counts();
            let all = now.iter().zip(&before).all(|(now, before)| *now >= before + ENOUGH);
            if all { Ok(()) } else { Err(format!("{before:?}, then {now:?}")) }
        })
        .await;
    }

    /// Ends it, and looks at everything through `eyes`.
    pub async fn fits_together(self, eyes: &dyn Coordination) -> Account {
        self.stop.store(true, Ordering::Relaxed);
        let mut account = Account::default();
        for writer in self.writers {
            for (at, outcome) in writer.await.unwrap() {
                let found = eyes.read(&at).await.unwrap().map(|entry| entry.version);
                match outcome {
                    Ok(version) => {
                        assert_eq!(found, Some(version), "{at} was acknowledged");
                        account.acknowledged += 1;
                    }
                    Err(Error::Indefinite { .. }) => account.unknown += 1,
                    Err(Error::Unavailable { what }) => {
                        assert_eq!(found, None, "{at} was not done, definitely: {what}");
                        account.not_done += 1;
                    }
                    Err(error) => panic!("{at}, which nobody else writes: {error}"),
                }
            }
        }
        until("the watch has what there is", async || {
            let listed = list(eyes).await;
            let view = self.view.borrow();
            let seen: Vec<_> =
                view.entries().iter().map(|(key, entry)| (key.clone(), entry.version)).collect();
            if seen == listed { Ok(()) } else { Err(format!("{} keys of {}", seen.len(), listed.len())) }
        })
        .await;
        self.watcher.abort();
        self.store.renew_session(self.session.id()).await.unwrap();
        let mine = eyes.read(&key("mine")).await.unwrap().expect("the session lives, and its key with it");
        assert_eq!(mine.session, Some(self.session.id()));
        account
    }
}

async fn write(
    store: Arc<dyn Coordination>,
    writer: usize,
    done: Arc<[AtomicU64; WRITERS]>,
    stop: Arc<AtomicBool>,
) -> Outcomes {
    let mut outcomes = Vec::new();
    for item in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let at = key(&format!("w/{writer}/{item}"));
        let outcome = store.compare_and_swap(&at, Expected::Absent, Bytes::from_static(b"x")).await;
        if outcome.is_ok() {
            done[writer].fetch_add(1, Ordering::Relaxed);
        }
        outcomes.push((at, outcome));
        sleep(REST).await;
    }
    outcomes
}

/// Follows everything, and begins again where it was when the watch breaks.
async fn follow(store: Arc<dyn Coordination>, seen: watch::Sender<View>) {
    let mut view = View::new();
    loop {
        let from = (view.at() > Version::ZERO).then(|| view.at());
        if let Ok(mut watch) = store.watch(Scope::All, from).await {
            while let Ok(update) = watch.next().await {
                assert!(update.at() >= view.at(), "W1: {} after {}", update.at(), view.at());
                view.fold(update);
                seen.send_replace(view.clone());
            }
        }
        sleep(REST).await;
    }
}

async fn list(store: &dyn Coordination) -> Vec<(Key, Version)> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(&Scope::All, after.as_ref(), limits::MAX_PAGE_ENTRIES).await.unwrap();
        all.extend(page.entries.into_iter().map(|(key, entry)| (key, entry.version)));
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}
