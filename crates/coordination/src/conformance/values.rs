//! Reads, transactions, versions, lists (C1, C2, C3, C6, C7).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Subject, key, ok, refused};
use crate::limits::{MAX_PAGE_ENTRIES, MAX_TRANSACTION_STEPS};
use crate::{Coordination, Error, Expected, Key, Scope, Transaction, Version, View};

async fn number_at(store: &dyn Coordination, at: &Key) -> (u64, Expected) {
    let entry = ok(store.read(at).await);
    let number = entry.as_ref().map_or(0, |entry| {
        u64::from_be_bytes(entry.value.as_ref().try_into().expect("the suite put eight bytes there"))
    });
    (number, Expected::unchanged(entry.as_ref()))
}

fn number(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// C1: whoever reads after a commit has returned sees it, through any handle.
pub(super) async fn reads_see_what_was_committed(subject: &dyn Subject) {
    let (one, other) = (subject.connect().await, subject.connect().await);
    let at = key("a/b");
    assert_eq!(ok(one.read(&at).await), None);
    for round in 0..20_u64 {
        let version = ok(one.commit(Transaction::new().put(&at, number(round))).await);
        let entry = ok(other.read(&at).await).expect("it was committed");
        assert_eq!((entry.value, entry.version, entry.session), (number(round), version, None));
    }
    ok(one.commit(Transaction::new().delete(&at)).await);
    assert_eq!(ok(other.read(&at).await), None);
    ok(one.commit(Transaction::new().put(&at, Bytes::new())).await);
    assert_eq!(ok(other.read(&at).await).map(|entry| entry.value), Some(Bytes::new()), "empty is not absent");
}

/// Each kind of condition, holding and not; a refusal names the key and what was found.
pub(super) async fn conditions_are_kept(subject: &dyn Subject) {
    let store = subject.connect().await;
    let at = key("k");
    let swap = |expected| store.compare_and_swap(&at, expected, Bytes::from_static(b"x"));
    let refusal = |expected, found| Error::Refused { key: key("k"), expected, found };

    assert_eq!(refused(swap(Expected::Present).await), refusal(Expected::Present, None));
    let never = Expected::At(Version::new(7));
    assert_eq!(refused(swap(never).await), refusal(never, None));
    let first = ok(swap(Expected::Absent).await);
    assert_eq!(refused(swap(Expected::Absent).await), refusal(Expected::Absent, Some(first)));
    let second = ok(swap(Expected::At(first)).await);
    assert!(second > first);
    assert_eq!(refused(swap(Expected::At(first)).await), refusal(Expected::At(first), Some(second)));
    let third = ok(swap(Expected::Present).await);
    assert_eq!(
        refused(store.delete(&at, Expected::At(second)).await),
        refusal(Expected::At(second), Some(third))
    );
    ok(store.delete(&at, Expected::At(third)).await);
    assert_eq!(ok(store.read(&at).await), None);
    ok(store.commit(Transaction::new().delete(&at)).await);
}

/// Several keys change together or not at all; conditions alone only check.
pub(super) async fn transactions_are_all_or_nothing(subject: &dyn Subject) {
    let store = subject.connect().await;
    let [a, b, c] = ["t/a", "t/b", "t/c"].map(key);
    let start = ok(store.commit(Transaction::new().put(&a, "1").put(&b, "1")).await);
    let mixed = Transaction::new()
        .when(&a, Expected::At(start))
        .when(&c, Expected::Present)
        .put(&a, "2")
        .delete(&b)
        .put(&c, "2");
    refused(store.commit(mixed).await);
    let listing = ok(store.list(&Scope::Below(key("t")), None, 10).await);
    let seen: Vec<_> = listing.entries.iter().map(|(key, entry)| (key.name(), entry.version)).collect();
    assert_eq!(seen, [("a", start), ("b", start)]);

    let good = Transaction::new()
        .when(&a, Expected::At(start))
        .when(&b, Expected::At(start))
        .when(&c, Expected::Absent)
        .put(&a, "2")
        .delete(&b)
        .put(&c, "2");
    let version = ok(store.commit(good).await);
    let listing = ok(store.list(&Scope::Below(key("t")), None, 10).await);
    let seen: Vec<_> = listing.entries.iter().map(|(key, entry)| (key.name(), entry.version)).collect();
    assert_eq!(seen, [("a", version), ("c", version)], "one transaction, one version");

    ok(store.commit(Transaction::new().when(&a, Expected::At(version))).await);
    refused(store.commit(Transaction::new().when(&a, Expected::At(start))).await);
    assert_eq!(ok(store.read(&a).await).map(|entry| entry.version), Some(version), "a check changes nothing");

    let twice = Transaction::new().put(&a, "3").delete(&a);
    assert!(matches!(refused(store.commit(twice).await), Error::Invalid { .. }));
}

/// C2: many at once, each adding one: the sum is right, and each version was swapped once.
pub(super) async fn no_update_is_lost(subject: &dyn Subject) {
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 15;
    let at = key("counter");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (store, at) = (subject.connect().await, at.clone());
        tasks.spawn(async move {
            let mut won = Vec::new();
            while (won.len() as u64) < ROUNDS {
                let (now, expected) = number_at(&*store, &at).await;
                match store.compare_and_swap(&at, expected, number(now + 1)).await {
                    Ok(version) => won.push(version),
                    Err(Error::Refused { .. }) => {}
                    Err(error) => panic!("neither done nor refused: {error}"),
                }
            }
            won
        });
    }
    let mut versions: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    let (sum, _) = number_at(&*subject.connect().await, &at).await;
    assert_eq!(sum, TASKS * ROUNDS);
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len() as u64, TASKS * ROUNDS, "two transactions got the same version");
}

/// Many at once to the same key: versions say the order, to readers and to watches.
pub(super) async fn versions_are_the_order(subject: &dyn Subject) {
    const TASKS: u64 = 16;
    const ROUNDS: u64 = 8;
    let at = key("order");
    let mut watch = ok(subject.connect().await.watch(Scope::One(at.clone()), None).await);
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let (store, at) = (subject.connect().await, at.clone());
        tasks.spawn(async move {
            let mut done = BTreeMap::new();
            for round in 0..ROUNDS {
                let value = number(task * ROUNDS + round);
                let version = ok(store.commit(Transaction::new().put(&at, value.clone())).await);
                assert!(done.keys().all(|before| *before < version));
                done.insert(version, value);
            }
            done
        });
    }
    let done: BTreeMap<Version, Bytes> = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!(done.len() as u64, TASKS * ROUNDS, "two transactions got the same version");
    let (last, value) = done.last_key_value().expect("there were some");
    let entry = ok(subject.connect().await.read(&at).await).expect("it was put");
    assert_eq!((entry.version, &entry.value), (*last, value), "the last version is what is there");
    let mut view = View::new();
    while view.entries().get(&at).is_none_or(|entry| entry.version != *last) {
        view.fold(ok(watch.next().await));
        let seen = view.entries().get(&at);
        assert!(seen.is_none_or(|entry| done.get(&entry.version) == Some(&entry.value)));
    }
}

/// C1 under load: a reader never sees less than what was acknowledged before it asked, nor goes back.
pub(super) async fn readers_never_go_back(subject: &dyn Subject) {
    let at = key("register");
    let (acknowledged, seen) = tokio::sync::watch::channel(0_u64);
    let (writer, target) = (subject.connect().await, at.clone());
    let writing = tokio::spawn(async move {
        for round in 1..=100 {
            ok(writer.commit(Transaction::new().put(&target, number(round))).await);
            acknowledged.send_replace(round);
        }
    });
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (store, at, seen) = (subject.connect().await, at.clone(), seen.clone());
        readers.spawn(async move {
            let mut last = 0;
            while last < 100 {
                let least = *seen.borrow();
                let (now, _) = number_at(&*store, &at).await;
                assert!(now >= least, "read {now} after {least} was acknowledged");
                assert!(now >= last, "read {now} after reading {last}");
                last = now;
                tokio::task::yield_now().await;
            }
        });
    }
    readers.join_all().await;
    writing.await.expect("the writer does not panic");
}

/// A key that was deleted and created again is not the same: a swap on the old version is refused.
pub(super) async fn versions_are_never_reused(subject: &dyn Subject) {
    let store = subject.connect().await;
    let at = key("again");
    let mut seen = Vec::new();
    for _ in 0..10 {
        let version = ok(store.compare_and_swap(&at, Expected::Absent, Bytes::from_static(b"same")).await);
        for old in &seen {
            refused(store.compare_and_swap(&at, Expected::At(*old), Bytes::new()).await);
        }
        assert!(seen.last().is_none_or(|last| *last < version));
        seen.push(version);
        ok(store.delete(&at, Expected::At(version)).await);
    }
    if subject.restart().await {
        let store = subject.connect().await;
        let version = ok(store.compare_and_swap(&at, Expected::Absent, Bytes::from_static(b"same")).await);
        assert!(seen.iter().all(|old| *old < version), "a version came back after a restart");
    }
}

/// C3: giving up on an answer leaves the outcome open; repeating the conditioned change does it once.
pub(super) async fn repeating_after_an_unknown_outcome_is_safe(subject: &dyn Subject) {
    let store = subject.connect().await;
    let at = key("unknown");
    for round in 0..40_u64 {
        let (before, expected) = number_at(&*store, &at).await;
        assert_eq!(before, round);
        let swap = || store.compare_and_swap(&at, expected, number(before + 1));
        let patience = Duration::from_micros(round * 25);
        let first = tokio::time::timeout(patience, swap()).await;
        match (first, swap().await) {
            (Ok(Ok(_)), Ok(_)) => panic!("one version was swapped twice"),
            (_, Ok(_) | Err(Error::Refused { .. })) => {}
            (_, Err(error)) => panic!("neither done nor refused: {error}"),
        }
        let (after, _) = number_at(&*store, &at).await;
        assert_eq!(after, before + 1);
    }
}

/// C6: at the limit it works, one above it is refused and nothing has changed.
pub(super) async fn too_large_is_refused_before_sending(subject: &dyn Subject) {
    let store = subject.connect().await;
    let limits = store.limits();
    let at = key("large");
    let value = |bytes: usize| Bytes::from(vec![7; bytes]);
    let most = limits.max_value_bytes.min(limits.max_transaction_bytes - at.as_str().len());
    ok(store.commit(Transaction::new().put(&at, value(most))).await);
    let above = store.commit(Transaction::new().put(&at, value(limits.max_value_bytes + 1))).await;
    assert!(matches!(refused(above), Error::TooLarge { .. }));
    assert_eq!(ok(store.read(&at).await).map(|entry| entry.value.len()), Some(most));

    let full = value(limits.max_value_bytes);
    let parts = limits.max_transaction_bytes / limits.max_value_bytes + 1;
    if parts <= MAX_TRANSACTION_STEPS {
        let together = (0..parts).fold(Transaction::new(), |transaction, part| {
            transaction.put(&key(&format!("part/{part}")), full.clone())
        });
        assert!(matches!(refused(store.commit(together).await), Error::TooLarge { .. }));
    }
    let steps = |count: usize| {
        (0..count).fold(Transaction::new(), |transaction, step| {
            transaction.put(&key(&format!("step/{step}")), Bytes::new())
        })
    };
    assert!(matches!(refused(store.commit(steps(MAX_TRANSACTION_STEPS + 1)).await), Error::TooLarge { .. }));
    assert!(ok(store.list(&Scope::Below(key("step")), None, 1).await).entries.is_empty());
    ok(store.commit(steps(MAX_TRANSACTION_STEPS)).await);
}

async fn pages(store: &Arc<dyn Coordination>, scope: &Scope, limit: usize) -> Vec<Key> {
    let (mut keys, mut after) = (Vec::new(), None);
    loop {
        let page = ok(store.list(scope, after.as_ref(), limit).await);
        assert!(page.entries.len() <= limit);
        keys.extend(page.entries.into_iter().map(|(key, _)| key));
        match page.next {
            Some(next) => after = Some(next),
            None => return keys,
        }
    }
}

/// Lists are in order, complete, and what their scope says, whatever the page size.
pub(super) async fn lists_have_pages(subject: &dyn Subject) {
    let store = subject.connect().await;
    let mut paths: Vec<String> = (0..MAX_PAGE_ENTRIES + 100).map(|item| format!("l/{item:04}")).collect();
    paths.extend(["l".into(), "l.x/1".into(), "l/0007/deep/er".into(), "m".into()]);
    for part in paths.chunks(100) {
        let puts = part.iter().fold(Transaction::new(), |transaction, path| transaction.put(&key(path), "v"));
        ok(store.commit(puts).await);
    }
    paths.sort();
    let parent = key("l");
    for (scope, limit) in [
        (Scope::Children(parent.clone()), 7),
        (Scope::Children(parent.clone()), MAX_PAGE_ENTRIES),
        (Scope::Below(parent.clone()), 50),
        (Scope::One(parent.clone()), 1),
        (Scope::All, 400),
        (Scope::Below(key("nothing")), 3),
    ] {
        let wanted: Vec<Key> = paths.iter().map(|path| key(path)).filter(|key| scope.contains(key)).collect();
        assert_eq!(pages(&store, &scope, limit).await, wanted, "{scope} by {limit}");
    }
    let all = ok(store.list(&Scope::All, None, usize::MAX).await);
    assert_eq!(all.entries.len(), MAX_PAGE_ENTRIES, "a page has a limit, whatever is asked");
    let after_deleted = key("l/0003/gone");
    let page = ok(store.list(&Scope::Children(parent), Some(&after_deleted), 1).await);
    assert_eq!(page.entries.first().map(|(key, _)| key.clone()), Some(key("l/0004")));
}

/// C7: what was acknowledged is there after a restart, with its version, and work goes on.
pub(super) async fn a_restart_loses_nothing(subject: &dyn Subject) {
    let store = subject.connect().await;
    let mut wanted = Vec::new();
    for item in 0..20 {
        let at = key(&format!("kept/{item:02}"));
        let version = ok(store.commit(Transaction::new().put(&at, number(item))).await);
        wanted.push((at, version));
    }
    let (gone, _) = wanted.remove(3);
    let last = ok(store.commit(Transaction::new().delete(&gone)).await);
    drop(store);
    if !subject.restart().await {
        return;
    }
    let store = subject.connect().await;
    let listing = ok(store.list(&Scope::Below(key("kept")), None, 100).await);
    let seen: Vec<_> = listing.entries.into_iter().map(|(key, entry)| (key, entry.version)).collect();
    assert_eq!(seen, wanted);
    let (at, version) = wanted[0].clone();
    let next = ok(store.compare_and_swap(&at, Expected::At(version), Bytes::new()).await);
    assert!(next > last);
}
