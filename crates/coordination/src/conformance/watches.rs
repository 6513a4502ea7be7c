//! Watches: in order, once, whole, resumable, gaps marked, latest instead of backlog (C5, W1 to W6).

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use super::{Draw, Subject, key, ok};
use crate::{Coordination, Entry, Key, Scope, Transaction, Update, Version, View, Watch};

/// The content after each transaction, as the one writer knows it.
type Truth = BTreeMap<Version, BTreeMap<Key, Entry>>;

/// What a watch had folded, after each update.
type Seen = Vec<View>;

/// Random transactions on a few keys; the truth after each.
async fn write(store: &dyn Coordination, truth: &mut Truth, draw: &mut Draw, count: usize) {
    for _ in 0..count {
        let mut content = truth.last_key_value().map(|(_, content)| content.clone()).unwrap_or_default();
        let mut transaction = Transaction::new();
        let mut changed: BTreeMap<Key, Option<Bytes>> = BTreeMap::new();
        for _ in 0..=draw.below(3) {
            let at = key(["w", "w/a", "w/b", "w/b/c", "w/d/e", "x/a"][draw.below(6) as usize]);
            let value = Bytes::from(vec![0; draw.below(20) as usize]);
            changed.insert(at, (draw.below(3) > 0).then_some(value));
        }
        for (at, value) in &changed {
            transaction = match value {
                Some(value) => transaction.put(at, value.clone()),
                None => transaction.delete(at),
            };
        }
        let version = ok(store.commit(transaction).await);
        for (at, value) in changed {
            match value {
                Some(value) => content.insert(at, Entry { value, version, session: None }),
                None => content.remove(&at),
            };
        }
        truth.insert(version, content);
    }
}

fn in_scope(content: &BTreeMap<Key, Entry>, scope: &Scope) -> BTreeMap<Key, Entry> {
    content
        .iter()
        .filter(|(key, _)| scope.contains(key))
        .map(|(key, entry)| (key.clone(), entry.clone()))
        .collect()
}

/// Each view is the truth at its version: nothing half, nothing missing, nothing invented.
fn check(truth: &Truth, scope: &Scope, seen: &Seen) {
    let empty = BTreeMap::new();
    for view in seen {
        let at_that_time = truth.range(..=view.at()).next_back().map_or(&empty, |(_, content)| content);
        assert_eq!(*view.entries(), in_scope(at_that_time, scope), "{scope} at {}", view.at());
    }
    assert!(seen.windows(2).all(|pair| pair[0].at() < pair[1].at()), "{scope}: out of order, or twice");
}

async fn next(watch: &mut Watch) -> Update {
    let update = tokio::time::timeout(Duration::from_secs(10), watch.next()).await;
    ok(update.expect("an update comes within ten seconds"))
}

/// Follows until the view is as `done` says.
async fn follow(watch: &mut Watch, view: &mut View, done: impl Fn(&View) -> bool) -> Seen {
    let mut seen = Vec::new();
    while !done(view) {
        let update = next(watch).await;
        if let Update::Changes { changes, .. } = &update {
            assert!(!changes.is_empty(), "an update says something");
            assert!(changes.windows(2).all(|pair| pair[0].key < pair[1].key), "each key once, in order");
        }
        view.fold(update);
        seen.push(view.clone());
    }
    seen
}

const LAST: &str = "w/last";

fn has_last(view: &View) -> bool {
    view.entries().keys().any(|key| key.as_str() == LAST)
}

async fn write_last(store: &dyn Coordination, truth: &mut Truth) {
    let mut content = truth.last_key_value().map(|(_, content)| content.clone()).unwrap_or_default();
    let version = ok(store.commit(Transaction::new().put(&key(LAST), "")).await);
    content.insert(key(LAST), Entry { value: Bytes::new(), version, session: None });
    truth.insert(version, content);
}

/// W1, W2, W3, W4: several watches, while somebody writes.
pub(super) async fn updates_fold_to_the_truth(subject: &dyn Subject) {
    let writer = subject.connect().await;
    let (mut truth, mut draw) = (Truth::new(), Draw(42));
    write(&*writer, &mut truth, &mut draw, 5).await;
    let mut followers = tokio::task::JoinSet::new();
    for scope in [Scope::All, Scope::Below(key("w")), Scope::Children(key("w")), Scope::One(key(LAST))] {
        for pause in [Duration::ZERO, Duration::from_millis(3)] {
            let mut watch = ok(subject.connect().await.watch(scope.clone(), None).await);
            let scope = scope.clone();
            followers.spawn(async move {
                let mut view = View::new();
                let first = next(&mut watch).await;
                assert!(matches!(first, Update::Resync { .. }), "a new watch begins with all there is");
                view.fold(first);
                let mut seen = vec![view.clone()];
                while !has_last(&view) {
                    view.fold(next(&mut watch).await);
                    seen.push(view.clone());
                    tokio::time::sleep(pause).await;
                }
                (scope, seen)
            });
        }
    }
    write(&*writer, &mut truth, &mut draw, 150).await;
    write_last(&*writer, &mut truth).await;
    for (scope, seen) in followers.join_all().await {
        check(&truth, &scope, &seen);
    }
}

/// W5: a watch that broke off goes on from its cursor, on another handle.
pub(super) async fn a_watch_resumes(subject: &dyn Subject) {
    let writer = subject.connect().await;
    let (mut truth, mut draw, mut view) = (Truth::new(), Draw(7), View::new());
    let scope = Scope::Below(key("w"));
    let mut seen = Vec::new();
    let mut watch = ok(writer.watch(scope.clone(), None).await);
    view.fold(next(&mut watch).await);
    for _ in 0..10 {
        drop(watch);
        write(&*writer, &mut truth, &mut draw, 7).await;
        watch = ok(subject.connect().await.watch(scope.clone(), Some(view.at())).await);
        let wanted = in_scope(truth.last_key_value().expect("written").1, &scope);
        seen.extend(follow(&mut watch, &mut view, |view| *view.entries() == wanted).await);
        // The content can be as wanted before the last update of it has come; a resume allows that.
    }
    check(&truth, &scope, &seen);
    // A cursor at the present brings nothing until something happens.
    let present = *truth.last_key_value().expect("written").0;
    let mut watch = ok(writer.watch(scope.clone(), Some(present)).await);
    let early = tokio::time::timeout(Duration::from_millis(50), watch.next()).await;
    assert!(early.is_err(), "nothing has happened, and yet: {early:?}");
    write_last(&*writer, &mut truth).await;
    assert!(next(&mut watch).await.at() > present);
}

/// W4: from a cursor long ago, or of another store, what comes folds to the truth all the same.
pub(super) async fn an_old_cursor_is_resynced(subject: &dyn Subject) {
    let writer = subject.connect().await;
    let (mut truth, mut draw) = (Truth::new(), Draw(99));
    let scope = Scope::Below(key("w"));
    let mut watch = ok(writer.watch(scope.clone(), None).await);
    let mut view = View::new();
    write(&*writer, &mut truth, &mut draw, 3).await;
    view.fold(next(&mut watch).await);
    write(&*writer, &mut truth, &mut draw, 1_100).await;
    write_last(&*writer, &mut truth).await;
    let mut watch = ok(writer.watch(scope.clone(), Some(view.at())).await);
    let seen = follow(&mut watch, &mut view, has_last).await;
    check(&truth, &scope, &seen);

    let future = Version::new(truth.last_key_value().expect("written").0.get() + 1_000_000);
    let mut watch = ok(writer.watch(scope.clone(), Some(future)).await);
    let update = next(&mut watch).await;
    assert!(matches!(update, Update::Resync { .. }), "a cursor that this store never gave is a gap");
    let mut view = View::new();
    view.fold(update);
    check(&truth, &scope, &vec![view]);
}

/// W6: somebody who does not listen costs the others nothing and gets the latest when it does.
pub(super) async fn a_slow_subscriber_delays_nobody(subject: &dyn Subject) {
    let writer = subject.connect().await;
    let (mut truth, mut draw) = (Truth::new(), Draw(3));
    let scope = Scope::All;
    let mut slow = ok(writer.watch(scope.clone(), None).await);
    let mut view = View::new();
    view.fold(next(&mut slow).await);
    write(&*writer, &mut truth, &mut draw, 1_500).await;
    let mut quick = ok(subject.connect().await.watch(scope.clone(), None).await);
    let mut other = View::new();
    other.fold(next(&mut quick).await);
    write_last(&*writer, &mut truth).await;
    let seen = follow(&mut quick, &mut other, has_last).await;
    assert!(seen.len() <= 2, "the quick one waited for the slow one");
    let seen = follow(&mut slow, &mut view, has_last).await;
    assert!(seen.len() < 1_200, "the slow one was given a backlog of {}", seen.len());
    check(&truth, &scope, &seen);
}

/// W5 with C7: the cursor holds over a restart of the store.
pub(super) async fn a_watch_survives_a_restart(subject: &dyn Subject) {
    let writer = subject.connect().await;
    let (mut truth, mut draw, mut view) = (Truth::new(), Draw(11), View::new());
    let scope = Scope::Below(key("w"));
    let mut watch = ok(writer.watch(scope.clone(), None).await);
    write(&*writer, &mut truth, &mut draw, 10).await;
    view.fold(next(&mut watch).await);
    drop((watch, writer));
    if !subject.restart().await {
        return;
    }
    let writer = subject.connect().await;
    write(&*writer, &mut truth, &mut draw, 10).await;
    write_last(&*writer, &mut truth).await;
    let mut watch = ok(writer.watch(scope.clone(), Some(view.at())).await);
    let seen = follow(&mut watch, &mut view, has_last).await;
    check(&truth, &scope, &seen);
}
