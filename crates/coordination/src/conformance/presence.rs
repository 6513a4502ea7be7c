//! Presence alone: the two operations that need no service, publish and list, and watches of them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use super::{Subject, key, ok, refused};
use crate::{Coordination, Error, Expected, Key, Scope, SessionId, Transaction, Update, View};

const LONG: Duration = Duration::from_secs(60);

struct Node {
    store: Arc<dyn Coordination>,
    session: SessionId,
}

async fn node(subject: &dyn Subject) -> Node {
    let store = subject.connect().await;
    let session = ok(store.open_session(LONG).await);
    Node { store, session }
}

impl Node {
    async fn publish(&self, at: &Key, value: &'static str) {
        ok(self.store.commit(Transaction::new().put_ephemeral(at, value, self.session)).await);
    }

    async fn names(&self) -> Vec<String> {
        let listing = ok(self.store.list(&Scope::Children(key("nodes")), None, 100).await);
        listing.entries.into_iter().map(|(key, _)| key.name().to_owned()).collect()
    }
}

/// Looks until it is so, for as long as news may take.
async fn in_the_end(subject: &dyn Subject, what: &str, mut look: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + subject.expiry_bound();
    while !look().await {
        assert!(Instant::now() < until, "not within the bound: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Whatever each says is heard by all, with its session; the speaker sees it at once.
pub(super) async fn what_is_published_is_seen_by_all(subject: &dyn Subject) {
    let nodes = [node(subject).await, node(subject).await, node(subject).await];
    for (name, node) in ["a", "b", "c"].into_iter().zip(&nodes) {
        let at = key(&format!("nodes/{name}"));
        node.publish(&at, "here").await;
        let entry = ok(node.store.read(&at).await).expect("one's own word is heard at once");
        assert_eq!((entry.value, entry.session), (Bytes::from_static(b"here"), Some(node.session)));
    }
    for node in &nodes {
        in_the_end(subject, "all three are known to all", async || node.names().await == ["a", "b", "c"])
            .await;
    }
    let at = key("nodes/b");
    let seen = ok(nodes[0].store.read(&at).await).expect("listed just now");
    assert_eq!(seen.session, Some(nodes[1].session));
    nodes[1].publish(&at, "there").await;
    in_the_end(subject, "a new value is heard", async || {
        let entry = ok(nodes[0].store.read(&at).await).expect("it was never gone");
        assert!(entry.version >= seen.version);
        entry.value == "there" && entry.version > seen.version
    })
    .await;
    ok(nodes[1].store.commit(Transaction::new().delete(&at)).await);
    assert_eq!(ok(nodes[1].store.read(&at).await), None);
    in_the_end(subject, "a key that was taken back is gone", async || nodes[2].names().await == ["a", "c"])
        .await;
}

/// W1 to W4 on the handle: updates say something, in order, and fold to what a list shows.
pub(super) async fn updates_fold_to_the_mirror(subject: &dyn Subject) {
    let (speaker, listener) = (node(subject).await, node(subject).await);
    let mut watch = ok(listener.store.watch(Scope::Children(key("nodes")), None).await);
    let first = ok(watch.next().await);
    assert!(matches!(first, Update::Resync { .. }), "a new watch begins with all there is");
    let mut view = View::new();
    view.fold(first);
    for round in 0..20 {
        speaker
            .publish(&key(&format!("nodes/{}", round % 7)), if round % 2 == 0 { "even" } else { "odd" })
            .await;
        speaker.publish(&key("elsewhere"), "not watched").await;
        if round % 5 == 4 {
            ok(speaker.store.commit(Transaction::new().delete(&key("nodes/3"))).await);
        }
    }
    speaker.publish(&key("nodes/last"), "").await;
    let last = key("nodes/last");
    while !view.entries().contains_key(&last) {
        let update =
            ok(timeout(subject.expiry_bound(), watch.next()).await.expect("an update comes in the end"));
        let Update::Changes { at, changes } = &update else {
            panic!("a resync that nobody needs: {update:?}")
        };
        assert!(*at > view.at() && !changes.is_empty(), "out of order, twice, or empty: {update:?}");
        assert!(changes.windows(2).all(|pair| pair[0].key < pair[1].key), "each key once, in order");
        view.fold(update);
    }
    let wanted = ok(speaker.store.list(&Scope::Children(key("nodes")), None, 100).await).entries;
    let values = |entries: Vec<(Key, crate::Entry)>| -> Vec<_> {
        entries.into_iter().map(|(key, entry)| (key, entry.value, entry.session)).collect()
    };
    let listed = ok(listener.store.list(&Scope::Children(key("nodes")), None, 100).await).entries;
    assert_eq!(Vec::from_iter(view.entries().clone()), listed);
    assert_eq!(values(listed), values(wanted));
    let early = timeout(Duration::from_millis(50), watch.next()).await;
    assert!(early.is_err(), "nothing has happened, and yet: {early:?}");
}

/// An ended session takes its keys along; one that is not renewed ends, not before its time.
pub(super) async fn keys_go_with_their_session(subject: &dyn Subject) {
    let (one, other) = (node(subject).await, node(subject).await);
    one.publish(&key("nodes/one"), "").await;
    other.publish(&key("nodes/other"), "").await;
    in_the_end(subject, "both are known", async || other.names().await == ["one", "other"]).await;
    ok(one.store.end_session(one.session).await);
    assert_eq!(ok(one.store.read(&key("nodes/one")).await), None, "gone when the end has returned");
    in_the_end(subject, "the end is heard", async || other.names().await == ["other"]).await;

    let ttl = Duration::from_millis(800);
    let opened = Instant::now();
    let session = ok(one.store.open_session(ttl).await);
    assert_ne!(session, one.session, "a session's id came back");
    ok(one.store.commit(Transaction::new().put_ephemeral(&key("nodes/one"), "again", session)).await);
    in_the_end(subject, "a session that was not renewed is over", async || {
        let gone = ok(one.store.read(&key("nodes/one")).await).is_none();
        assert!(!gone || opened.elapsed() >= ttl, "gone before its time");
        gone
    })
    .await;
    in_the_end(subject, "its end is heard", async || other.names().await == ["other"]).await;
}

/// C6: at the limit it goes round, one above it is refused and nothing has changed.
pub(super) async fn too_large_is_refused_before_sending(subject: &dyn Subject) {
    let (one, other) = (node(subject).await, node(subject).await);
    let (at, most) = (key("nodes/large"), one.store.limits().max_value_bytes);
    let put = |bytes: usize| Transaction::new().put_ephemeral(&at, vec![0xff; bytes], one.session);
    assert!(matches!(refused(one.store.commit(put(most + 1)).await), Error::TooLarge { .. }));
    assert_eq!(ok(one.store.read(&at).await), None);
    ok(one.store.commit(put(most)).await);
    in_the_end(subject, "the largest value is heard", async || {
        ok(other.store.read(&at).await).is_some_and(|entry| entry.value.len() == most)
    })
    .await;
}

/// What needs somebody who decides is refused, and nothing has changed.
pub(super) async fn what_it_lacks_is_refused_by_name(subject: &dyn Subject) {
    let one = node(subject).await;
    let [a, b] = ["nodes/a", "nodes/b"].map(key);
    one.publish(&a, "here").await;
    let before = ok(one.store.list(&Scope::All, None, 10).await);
    let put = |at: &Key| Transaction::new().put_ephemeral(at, "x", one.session);
    for transaction in [
        Transaction::new().put(&b, "lasting"),
        put(&b).when(&a, Expected::Present),
        put(&a).put_ephemeral(&b, "x", one.session),
    ] {
        let refusal = refused(one.store.commit(transaction).await);
        assert!(matches!(refusal, Error::Unsupported { .. }), "{refusal}");
    }
    assert!(matches!(refused(one.store.open_session(LONG).await), Error::Unsupported { .. }));
    refused(one.store.commit(put(&key("nodes/a/below"))).await);
    let other = node(subject).await;
    in_the_end(subject, "the key is heard", async || ok(other.store.read(&a).await).is_some()).await;
    let foreign = refused(other.store.commit(Transaction::new().delete(&a)).await);
    assert!(matches!(foreign, Error::Unsupported { .. }), "{foreign}");
    assert_eq!(ok(one.store.list(&Scope::All, None, 10).await), before);
}
