//! Sessions and ephemeral keys (C4).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Subject, key, ok, refused};
use crate::{Coordination, Error, Key, Session, SessionId, Transaction};

/// Long enough for a busy machine to renew in time, short enough to wait for.
const TTL: Duration = Duration::from_millis(800);
const LONG: Duration = Duration::from_secs(60);

async fn put(store: &dyn Coordination, at: &Key, session: SessionId) {
    ok(store.commit(Transaction::new().put_ephemeral(at, "here", session)).await);
}

async fn wait_until_gone(store: &dyn Coordination, at: &Key, bound: Duration) {
    let until = Instant::now() + bound;
    while ok(store.read(at).await).is_some() {
        assert!(Instant::now() < until, "key {at} outlived its session by more than the bound");
        sleep(Duration::from_millis(5)).await;
    }
}

/// An ended session takes its own keys along, and no others.
pub(super) async fn keys_go_with_their_session(subject: &dyn Subject) {
    let (one, other) = (subject.connect().await, subject.connect().await);
    let (mine, yours) = (ok(one.open_session(LONG).await), ok(one.open_session(LONG).await));
    assert_ne!(mine, yours);
    let [a, b, handed_over, made_lasting, lasting] = ["e/a", "e/b", "e/h", "e/m", "e/l"].map(key);
    for at in [&a, &handed_over, &made_lasting] {
        put(&*one, at, mine).await;
    }
    // Written again by the same session, it still goes with it.
    put(&*one, &a, mine).await;
    put(&*one, &b, yours).await;
    put(&*one, &handed_over, yours).await;
    ok(one.commit(Transaction::new().put(&made_lasting, "stay").put(&lasting, "stay")).await);
    assert_eq!(ok(other.read(&a).await).and_then(|entry| entry.session), Some(mine));
    assert_eq!(ok(other.read(&handed_over).await).and_then(|entry| entry.session), Some(yours));

    ok(one.end_session(mine).await);
    assert_eq!(ok(other.read(&a).await), None, "gone when the end has returned");
    for at in [&b, &handed_over, &made_lasting, &lasting] {
        assert!(ok(other.read(at).await).is_some(), "{at} is not of that session");
    }
    ok(one.end_session(yours).await);
    assert_eq!(ok(other.read(&b).await), None);
    assert_eq!(ok(other.read(&handed_over).await), None);
    assert!(ok(other.read(&lasting).await).is_some());
}

/// C4: not before the owner's own deadline, and within the bound after it.
pub(super) async fn a_session_ends_after_its_owner_gave_up(subject: &dyn Subject) {
    let (owner, other) = (subject.connect().await, subject.connect().await);
    let at = key("e/silent");
    let asked = Instant::now();
    let session = ok(owner.open_session(TTL).await);
    put(&*owner, &at, session).await;
    sleep(TTL / 2).await;
    let asked_again = Instant::now();
    ok(owner.renew_session(session).await);
    assert!(asked_again > asked);
    let deadline = asked_again + TTL;
    loop {
        let gone = ok(other.read(&at).await).is_none();
        let now = Instant::now();
        assert!(!gone || now >= deadline, "gone {:?} before its owner's deadline", deadline - now);
        assert!(gone || now < deadline + subject.expiry_bound(), "still there after the bound");
        if gone {
            break;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// A session that renews itself lives on; dropped, it ends by its time.
pub(super) async fn a_renewed_session_lives_on(subject: &dyn Subject) {
    let (store, other) = (subject.connect().await, subject.connect().await);
    let at = key("e/alive");
    let session = ok(Session::open(Arc::clone(&store), TTL).await);
    put(&*store, &at, session.id()).await;
    for _ in 0..8 {
        sleep(TTL / 4).await;
        assert!(session.is_live());
        assert!(ok(other.read(&at).await).is_some());
    }
    let deadline = session.deadline();
    drop(session);
    wait_until_gone(&*other, &at, TTL + subject.expiry_bound()).await;
    assert!(partage_clock::Instant::now() >= deadline);
}

/// What has ended cannot be renewed, ended again, or used; its owner is told.
pub(super) async fn an_ended_session_stays_ended(subject: &dyn Subject) {
    let store = subject.connect().await;
    let at = key("e/late");
    let is_ended = |error: Error, session| assert_eq!(error, Error::SessionEnded { session });
    let session = ok(store.open_session(LONG).await);
    ok(store.end_session(session).await);
    is_ended(refused(store.renew_session(session).await), session);
    is_ended(refused(store.end_session(session).await), session);
    let late = store.commit(Transaction::new().put_ephemeral(&at, "late", session)).await;
    is_ended(refused(late), session);
    assert_eq!(ok(store.read(&at).await), None);

    for wrong in [Duration::ZERO, Duration::from_secs(1_000_000)] {
        assert!(matches!(refused(store.open_session(wrong).await), Error::Invalid { .. }));
    }
    let held = ok(Session::open(Arc::clone(&store), TTL).await);
    ok(store.end_session(held.id()).await);
    tokio::time::timeout(TTL, held.lost()).await.expect("the owner learns of it by its next renewal");
    assert!(!held.is_live());
}

/// A tree that every backend can hold: ephemeral keys are leaves.
pub(super) async fn nothing_lies_below_an_ephemeral_key(subject: &dyn Subject) {
    let store = subject.connect().await;
    let session = ok(store.open_session(LONG).await);
    let [leaf, below, above, child] = ["n/leaf", "n/leaf/x/y", "n/parent", "n/parent/c"].map(key);
    put(&*store, &leaf, session).await;
    refused(store.commit(Transaction::new().put(&below, "no")).await);
    ok(store.commit(Transaction::new().put(&child, "yes")).await);
    refused(store.commit(Transaction::new().put_ephemeral(&above, "no", session)).await);
    let both = Transaction::new().put_ephemeral(&key("n/p"), "no", session).put(&key("n/p/q"), "no");
    refused(store.commit(both).await);
    let instead = Transaction::new().delete(&child).put_ephemeral(&above, "yes", session);
    ok(store.commit(instead).await);
    ok(store.commit(Transaction::new().delete(&leaf).put(&below, "yes")).await);
}

/// C7: after a restart a session and its keys are there together, or gone together.
pub(super) async fn a_restart_ends_sessions_or_keeps_them_whole(subject: &dyn Subject) {
    let store = subject.connect().await;
    let at = key("e/restart");
    let session = ok(store.open_session(LONG).await);
    put(&*store, &at, session).await;
    if !subject.restart().await {
        return;
    }
    let store = subject.after_restart(store).await;
    let lives = match store.renew_session(session).await {
        Ok(()) => true,
        Err(Error::SessionEnded { .. }) => false,
        Err(error) => panic!("neither alive nor ended: {error}"),
    };
    assert_eq!(ok(store.read(&at).await).is_some(), lives);
    assert_ne!(ok(store.open_session(LONG).await), session, "a session's id came back");
}
