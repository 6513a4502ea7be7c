//! Elections: one leader, terms that only grow, a deposed leader refused (O10).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Subject, key, ok, refused};
use crate::{
    Coordination, Deposed, Election, Error, Expected, Key, Leader, LeaderLease, Leadership, Scope, Session,
    Term, Transaction, Version,
};

const TTL: Duration = Duration::from_millis(800);

async fn candidate(subject: &dyn Subject) -> (Arc<dyn Coordination>, Election, Session) {
    let store = subject.connect().await;
    let election = ok(Election::new(Arc::clone(&store), &key("election")));
    let session = ok(Session::open(Arc::clone(&store), TTL).await);
    (store, election, session)
}

async fn leads(election: &Election, session: &Session, name: &Bytes, bound: Duration) -> Leadership {
    let led = tokio::time::timeout(bound, election.lead(session, || name.clone())).await;
    ok(led.expect("elected within the bound"))
}

/// The second is told no, waits, and leads as soon as the first resigns.
pub(super) async fn one_leads_and_the_next_waits(subject: &dyn Subject) {
    let (_, first, first_session) = candidate(subject).await;
    let (_, second, second_session) = candidate(subject).await;
    let (one, two) = (Bytes::from_static(b"one"), Bytes::from_static(b"two"));
    assert_eq!(ok(first.leader().await), None);
    let leadership = leads(&first, &first_session, &one, TTL).await;
    let leader = Leader { term: leadership.term(), candidate: one.clone() };
    assert_eq!(ok(second.leader().await), Some(leader));
    assert_eq!(ok(second.try_lead(&second_session, &two).await), None);
    let again = ok(first.try_lead(&first_session, &one).await);
    assert_eq!(
        again,
        Some(leadership.clone()),
        "asking again after an unknown outcome finds the same leadership"
    );

    let waiting = leads(&second, &second_session, &two, Duration::from_secs(10));
    let (next, resigned) = tokio::join!(waiting, async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        first.resign(leadership.clone()).await
    });
    ok(resigned);
    assert!(next.term() > leadership.term());
    let refusal = refused(first.resign(leadership).await);
    assert!(matches!(refusal, Error::Refused { .. }), "resigning twice must not depose the next");
    assert_eq!(ok(first.leader().await).map(|leader| leader.candidate), Some(two));
}

/// O10: a leader that went silent is followed within the bound, and refused when it wakes.
pub(super) async fn a_deposed_leader_is_refused(subject: &dyn Subject) {
    let (store, first, first_session) = candidate(subject).await;
    let (_, second, second_session) = candidate(subject).await;
    let (one, two) = (Bytes::from_static(b"one"), Bytes::from_static(b"two"));
    let map = key("map");
    let old = leads(&first, &first_session, &one, TTL).await;
    ok(old.commit(&*store, old.fence(Transaction::new().put(&map, "first"))).await);
    let deadline = first_session.deadline();
    // Dropped, not ended: as if the process had been stopped.
    drop(first_session);
    let new = leads(&second, &second_session, &two, TTL + subject.expiry_bound()).await;
    assert!(partage_clock::Instant::now() >= deadline, "elected while the old leader could think it led");
    assert!(new.term() > old.term());
    ok(new.commit(&*store, new.fence(Transaction::new().put(&map, "second"))).await);
    let late = old.commit(&*store, old.fence(Transaction::new().put(&map, "late"))).await;
    assert!(matches!(refused(late), Error::Refused { .. }));
    assert_eq!(ok(store.read(&map).await).map(|entry| entry.value), Some(Bytes::from_static(b"second")));
}

/// D20: somebody else has written to the leader key, and nobody's session ends it: it would stay for ever.
pub(super) async fn a_leader_key_of_no_session_is_nobodys(subject: &dyn Subject) {
    let (store, first, first_session) = candidate(subject).await;
    let (_, second, second_session) = candidate(subject).await;
    let (one, two) = (Bytes::from_static(b"one"), Bytes::from_static(b"two"));
    let leader = key("election/leader");
    for value in [&b"short"[..], b"not of this program", &[0xff; 20]] {
        let old = leads(&first, &first_session, &one, TTL).await;
        ok(store.commit(Transaction::new().put(&leader, Bytes::copy_from_slice(value))).await);
        let new = leads(&second, &second_session, &two, TTL).await;
        assert_eq!(new.term().get(), old.term().get() + 1, "terms go on as they were counted");
        let late = old.commit(&*store, old.fence(Transaction::new().put(&key("map"), "late"))).await;
        assert!(matches!(refused(late), Error::Refused { .. }), "the former leader changes nothing");
        ok(second.resign(new).await);
    }
}

/// Many candidates, many leaders, each term once, also over a restart.
pub(super) async fn terms_only_grow(subject: &dyn Subject) {
    let mut tasks = tokio::task::JoinSet::new();
    for name in 0..4_u8 {
        let (store, election, session) = candidate(subject).await;
        tasks.spawn(async move {
            let mut terms = Vec::new();
            for _ in 0..5 {
                let me = Bytes::from(vec![name]);
                let leadership = leads(&election, &session, &me, Duration::from_secs(20)).await;
                let at = key(&format!("led/{:04}", leadership.term().get()));
                let said = Transaction::new().when(&at, crate::Expected::Absent).put(&at, me);
                ok(leadership.commit(&*store, leadership.fence(said)).await);
                terms.push(leadership.term());
                ok(election.resign(leadership).await);
            }
            assert!(terms.is_sorted_by(|one, next| one < next));
            ok(session.end().await);
            terms
        });
    }
    let mut terms: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    terms.sort_unstable();
    let last = terms[terms.len() - 1];
    terms.dedup();
    assert_eq!(terms.len(), 20, "a term had two leaders");
    if subject.restart().await {
        let (_, election, session) = candidate(subject).await;
        let after = leads(&election, &session, &Bytes::new(), Duration::from_secs(10)).await;
        assert!(after.term() > last, "a term came back after a restart");
    }
}

/// A handle that knows of a higher term than the store says leads above it, and says so.
pub(super) async fn a_term_that_was_set_back_is_not_given_again(subject: &dyn Subject) {
    let (store, election, session) = candidate(subject).await;
    let first = leads(&election, &session, &Bytes::new(), TTL).await;
    assert_eq!(first.set_back(), None);
    ok(election.resign(first.clone()).await);
    let (term, before) = ok(Election::last_term(&key("election"), Term::new(0)));
    for (highest, stored) in [(first.term().get(), Some(before)), (30, None)] {
        election.raise(Term::new(highest));
        match stored {
            Some(stored) => ok(store.commit(Transaction::new().put(&term, stored)).await),
            None => ok(store.delete(&term, Expected::Present).await),
        };
        let next = leads(&election, &session, &Bytes::new(), TTL).await;
        assert_eq!(next.term().get(), highest + 1);
        assert_eq!(next.set_back(), Some(Term::new(0)));
        ok(election.resign(next).await);
    }
    // One that stands by knows the terms of those that it has seen lead.
    let (_, other, other_session) = candidate(subject).await;
    let seen = leads(&election, &session, &Bytes::new(), TTL).await;
    assert_eq!(ok(other.try_lead(&other_session, &Bytes::new()).await), None);
    ok(store.delete(&key("election/leader"), Expected::Present).await);
    ok(store.delete(&term, Expected::Present).await);
    let next = leads(&other, &other_session, &Bytes::new(), TTL).await;
    assert!(next.term() > seen.term(), "{:?} after {:?}", next.term(), seen.term());
}

/// A leader with a lease of its lead, whose session is renewed all the while.
async fn leader_with_lease(
    subject: &dyn Subject,
) -> (Arc<dyn Coordination>, Election, Arc<Session>, Leadership, LeaderLease) {
    let (store, election, session) = candidate(subject).await;
    let session = Arc::new(session);
    let about = Bytes::from_static(b"mine");
    ok(store.commit(Transaction::new().put(&key("about"), about.clone())).await);
    let leadership = leads(&election, &session, &Bytes::new(), TTL).await;
    let lease = LeaderLease::begin(Arc::clone(&store), Arc::clone(&session), &leadership, Some(about)).await;
    (store, election, session, leadership, ok(lease))
}

async fn is_deposed(lease: &LeaderLease, session: &Session) -> Deposed {
    let bound = LeaderLease::bound(session.ttl());
    let deposed = tokio::time::timeout(bound, lease.lost()).await.expect("within the bound");
    assert_eq!(lease.check(), Err(deposed.clone()));
    assert!(session.is_live(), "it heard so while its session lives");
    deposed
}

/// D16: a leader hears that its key is gone or another one's, by any hand, while its session lives; and stays the
/// leader as long as nobody touches the key.
pub(super) async fn a_leader_hears_that_it_is_deposed(subject: &dyn Subject) {
    let at = key("election/leader");
    for replaced in [false, true] {
        let (store, election, session, leadership, lease) = leader_with_lease(subject).await;
        tokio::time::sleep(2 * TTL).await;
        assert_eq!(lease.check(), Ok(()), "nobody has touched the key");
        let tampering = subject.connect().await;
        if replaced {
            ok(tampering.commit(Transaction::new().put(&at, Bytes::from_static(b"12345678?"))).await);
        } else {
            ok(tampering.delete(&at, Expected::Present).await);
        }
        let deposed = is_deposed(&lease, &session).await;
        let expected: fn(Key) -> Deposed = if replaced { Deposed::KeyReplaced } else { Deposed::KeyGone };
        assert_eq!(deposed, expected(at.clone()));
        let late =
            leadership.commit(&*store, leadership.fence(Transaction::new().put(&key("map"), "late"))).await;
        assert!(matches!(refused(late), Error::Refused { .. }));
        if !replaced {
            let again = leads(&election, &session, &Bytes::new(), TTL).await;
            assert!(again.term() > leadership.term());
            assert!(lease.check().is_err(), "a later lead does not revive the lease of an earlier one");
        }
        ok(tampering.delete(&at, Expected::Present).await);
    }
}

/// D19: what says whose root it is changes under a leader.
pub(super) async fn a_leader_hears_that_the_root_is_not_its_clusters(subject: &dyn Subject) {
    let at = key("about");
    for value in [Some("another's"), None] {
        let (store, election, session, leadership, lease) = leader_with_lease(subject).await;
        match value {
            Some(value) => ok(store.commit(Transaction::new().put(&at, value)).await),
            None => ok(store.delete(&at, Expected::Present).await),
        };
        assert_eq!(is_deposed(&lease, &session).await, Deposed::AnotherCluster(at.clone()));
        ok(election.resign(leadership).await);
    }
}

/// D20: the backend is at a lower version than one that it gave to the leader: it was restored from an older state.
pub(super) async fn a_leader_hears_that_the_store_went_back(subject: &dyn Subject) {
    let (store, election, session, leadership, lease) = leader_with_lease(subject).await;
    for _ in 0..3 {
        ok(leadership.commit(&*store, leadership.fence(Transaction::new().put(&key("map"), "new"))).await);
    }
    tokio::time::sleep(TTL).await;
    assert_eq!(lease.check(), Ok(()), "it is where the leader left it");
    let now = ok(store.list(&Scope::One(key("map")), None, 1).await).at;
    let before = Version::new(now.get() + 1);
    leadership.committed(before);
    // Both are true, and which of the leader's two looks comes first is a matter of time.
    match is_deposed(&lease, &session).await {
        Deposed::CommitLost { acknowledged, .. } => assert_eq!(acknowledged, before),
        why => assert_eq!(why, Deposed::SetBack { now, before }),
    }
    ok(election.resign(leadership).await);
    // The next leadership counts from what is there.
    let next = leads(&election, &session, &Bytes::new(), TTL).await;
    let lease = LeaderLease::begin(Arc::clone(&store), Arc::clone(&session), &next, None).await;
    assert_eq!(ok(lease).check(), Ok(()));
}

/// D20: the backend lacks a commit that it acknowledged, though its version grew: it was restored from an older state, and
/// versions leapt, as they do at each start of a MySQL, and after a restore of etcd that bumps revisions.
pub(super) async fn a_leader_hears_that_its_commit_is_gone(subject: &dyn Subject) {
    let (store, election, session, leadership, lease) = leader_with_lease(subject).await;
    let found =
        ok(leadership.commit(&*store, leadership.fence(Transaction::new().put(&key("map"), "new"))).await);
    // What others commit, or the leader by no fence, is not the leader's.
    for value in ["other", "another"] {
        ok(store.commit(Transaction::new().put(&key("others"), value)).await);
    }
    tokio::time::sleep(TTL).await;
    assert_eq!(lease.check(), Ok(()), "its last commit is there");
    let acknowledged = Version::new(found.get() + 1);
    leadership.committed(acknowledged);
    assert_eq!(is_deposed(&lease, &session).await, Deposed::CommitLost { found, acknowledged });
    ok(election.resign(leadership).await);
}

/// D20: what each commit of a leader writes is deleted or replaced: somebody touched the election.
pub(super) async fn a_leader_hears_that_the_mark_of_its_commits_was_touched(subject: &dyn Subject) {
    let at = key("election/commit");
    for replaced in [false, true] {
        let (store, election, session, leadership, lease) = leader_with_lease(subject).await;
        let expected: fn(Key) -> Deposed = if replaced { Deposed::KeyReplaced } else { Deposed::KeyGone };
        match replaced {
            true => ok(store.commit(Transaction::new().put(&at, "?")).await),
            false => ok(store.delete(&at, Expected::Present).await),
        };
        assert_eq!(is_deposed(&lease, &session).await, expected(at.clone()));
        ok(election.resign(leadership).await);
    }
}
