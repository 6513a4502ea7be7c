//! etcd behind the contract: the conformance suite, and what only this backend can get wrong.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

use async_trait::async_trait;
use backends::certs::Authority;
use backends::etcd::Etcd;
use backends::link::{Link, Way};
use backends::{free_port, sleeper, until};
use bytes::Bytes;
use partage_coordination::conformance::{self, Subject};
use partage_coordination::etcd::EXPIRY_BOUND;
use partage_coordination::{
    Advice, Coordination, Error, Expected, Key, Scope, Secret, Session, SessionId, Target, Transaction,
    Update, Version, connect, limits,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

struct Root {
    server: Arc<Mutex<Etcd>>,
    name: String,
}

#[async_trait]
impl Subject for Root {
    async fn connect(&self) -> Arc<dyn Coordination> {
        let target = self.server.lock().await.target(&self.name);
        connect(&target).await.unwrap()
    }
    async fn restart(&self) -> bool {
        self.server.lock().await.restart().await;
        true
    }
    fn expiry_bound(&self) -> Duration {
        EXPIRY_BOUND
    }
}

async fn conforms(server: Etcd) {
    let server = Arc::new(Mutex::new(server));
    let roots = AtomicUsize::new(0);
    conformance::run(|| {
        let name = format!("check/{}", roots.fetch_add(1, Ordering::Relaxed));
        let server = Arc::clone(&server);
        async move { Root { server, name } }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_clear_conforms() {
    conforms(Etcd::start(&[]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_with_a_password_conforms() {
    conforms(Etcd::start_secured(&[]).await).await;
}

fn key(path: &str) -> Key {
    Key::new(path).unwrap()
}

async fn refused(target: &Target) -> Error {
    connect(target).await.expect_err("must be refused")
}

/// A client that cannot come in is told why, and that a person must help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_let_in_is_told_why() {
    let server = Etcd::start_secured(&[]).await;
    let good = server.target("users");
    connect(&good).await.unwrap();

    let mut wrong = good.clone();
    wrong.password = Some(Secret::new("no password"));
    let error = refused(&wrong).await;
    assert!(matches!(error, Error::Denied { .. }), "{error}");
    assert_eq!(error.advice(), Advice::CallAPerson);
    assert!(error.to_string().contains(&good.to_string()), "{error}");
    assert!(!format!("{error} {wrong:?}").contains("no password"));

    let mut halves = [good.clone(), good.clone()];
    halves[0].password = None;
    halves[1].user = None;
    for half in halves {
        assert!(matches!(refused(&half).await, Error::Invalid { .. }));
    }
    let mut elsewhere = good.clone();
    elsewhere.root = key("elsewhere");
    let error = refused(&elsewhere).await;
    assert!(matches!(error, Error::Denied { .. }), "{error}");
    assert!(error.to_string().contains("prefix /elsewhere/"), "{error}");

    let mut clear = good.clone();
    clear.tls = None;
    assert!(matches!(refused(&clear).await, Error::Unavailable { .. }));
    let mut unread = good.clone();
    unread.tls.as_mut().unwrap().ca = "/nowhere/ca.pem".into();
    assert!(refused(&unread).await.to_string().contains("/nowhere/ca.pem"));
    let stranger = tempfile::tempdir().unwrap();
    let mut other = good;
    other.tls.as_mut().unwrap().ca = Authority::new(stranger.path(), "stranger").ca;
    assert!(matches!(refused(&other).await, Error::Unavailable { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_be_reached_is_named() {
    let target = Target::parse(&format!("etcd://127.0.0.1:{}/r", free_port())).unwrap();
    let error = refused(&target).await;
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains(&target.to_string()), "{error}");
}

/// A dead server among several costs no error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_passed_over() {
    let server = Etcd::start(&[]).await;
    let hosts = format!("127.0.0.1:{},{}", free_port(), server.address());
    let store = connect(&server.target_through(&hosts, "r")).await.unwrap();
    store.commit(Transaction::new().put(&key("a"), "")).await.unwrap();
}

/// Tokens are lost with the server's memory, and rights change: the next request signs in again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_token_is_replaced() {
    let mut server = Etcd::start_secured(&[]).await;
    let store = connect(&server.target("r")).await.unwrap();
    let mut watch = store.watch(Scope::All, None).await.unwrap();
    watch.next().await.unwrap();
    server.control_as_root(&["role", "add", "another"]);
    store.commit(Transaction::new().put(&key("a"), "1")).await.unwrap();
    server.restart().await;
    let put = Transaction::new().put(&key("a"), "2");
    let version =
        until("a commit", async || store.commit(put.clone()).await.map_err(|e| e.to_string())).await;
    let mut last = Version::ZERO;
    while last < version {
        last = watch.next().await.unwrap().at();
    }
}

/// A subscriber asks once, and gets the content also if the first reads for it fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_begins_without_a_server_gets_the_content_later() {
    let mut server = Etcd::start(&[]).await;
    let store = connect(&server.target("r")).await.unwrap();
    let version = store.commit(Transaction::new().put(&key("a"), "1")).await.unwrap();
    server.kill();
    let mut watch = store.watch(Scope::All, None).await.unwrap();
    // One future from beginning to end: another call of `next` would ask again.
    let (update, ()) = tokio::join!(timeout(Duration::from_secs(30), watch.next()), async {
        sleep(Duration::from_millis(500)).await;
        server.revive().await;
    });
    let update = update.expect("the watch goes on when the server is back").unwrap();
    assert!(matches!(update, Update::Resync { .. }), "{update:?}");
    assert_eq!(update.at(), version);
}

/// A watch whose cursor was compacted away begins again with all there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_is_a_gap() {
    let server = Etcd::start(&[]).await;
    let store = connect(&server.target("r")).await.unwrap();
    let first = store.commit(Transaction::new().put(&key("a"), "1")).await.unwrap();
    let mut last = first;
    for value in ["2", "3", "4"] {
        last = store.commit(Transaction::new().put(&key("a"), value)).await.unwrap();
    }
    server.control(&["compact", &last.get().to_string()]);
    let mut watch = store.watch(Scope::All, Some(first)).await.unwrap();
    let update = watch.next().await.unwrap();
    assert!(matches!(update, Update::Resync { .. }), "{update:?}");
    assert_eq!(update.at(), last);
    let mut watch = store.watch(Scope::All, Some(last)).await.unwrap();
    let next = store.commit(Transaction::new().put(&key("b"), "")).await.unwrap();
    let update = watch.next().await.unwrap();
    assert!(
        matches!(&update, Update::Changes { at, changes } if *at == next && changes.len() == 1),
        "{update:?}"
    );
}

/// Killed in the middle of commits: what was acknowledged is there, what is unknown is there once at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_keeps_what_it_acknowledged() {
    let mut server = Etcd::start(&[]).await;
    let store = connect(&server.target("r")).await.unwrap();
    for round in 0..3 {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                let mut outcomes = Vec::new();
                for item in 0.. {
                    let at = key(&format!("k/{round}/{task}/{item}"));
                    let outcome =
                        store.compare_and_swap(&at, Expected::Absent, Bytes::from_static(b"x")).await;
                    let goes_on = outcome.is_ok();
                    outcomes.push((at, outcome));
                    if !goes_on {
                        break;
                    }
                }
                outcomes
            });
        }
        sleep(Duration::from_millis(300)).await;
        server.kill();
        let outcomes: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
        server.revive().await;
        let mut acknowledged = 0;
        for (at, outcome) in outcomes {
            let found = store.read(&at).await.unwrap();
            match outcome {
                Ok(version) => {
                    assert_eq!(found.map(|entry| entry.version), Some(version), "{at} was acknowledged");
                    acknowledged += 1;
                }
                Err(Error::Indefinite { .. }) => {}
                Err(Error::Unavailable { .. }) => assert_eq!(found, None, "{at} was not done, definitely"),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(acknowledged > 0);
    }
}

/// The answer does not come, and the change is there all the same: that must have been called unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_cut_off_is_unknown() {
    let server = Etcd::start(&[]).await;
    let direct = connect(&server.target("r")).await.unwrap();
    let link = Link::open("127.0.0.1:0", &server.address()).await;
    let store = connect(&server.target_through(link.address(), "r")).await.unwrap();
    let at = key("a");
    link.hold(Way::Back);
    let swap = store.compare_and_swap(&at, Expected::Absent, Bytes::from_static(b"x"));
    let (outcome, ()) = tokio::join!(swap, async {
        until("the change is there", async || {
            direct.read(&at).await.unwrap().map(|_| ()).ok_or_else(|| "absent".to_owned())
        })
        .await;
        link.cut();
    });
    assert!(matches!(outcome, Err(Error::Indefinite { .. })), "{outcome:?}");
    // Cut off, nothing arrives: whatever is said of it, it was not done unless that is said to be unknown.
    let other = key("b");
    let outcome = store.compare_and_swap(&other, Expected::Absent, Bytes::from_static(b"x")).await;
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Indefinite { .. } | Error::Unavailable { .. }), "{error}");
    link.mend();
    let again = until("the link is mended", async || {
        match store.compare_and_swap(&at, Expected::Absent, Bytes::from_static(b"x")).await {
            Err(Error::Refused { found, .. }) => Ok(found),
            other => Err(format!("{other:?}")),
        }
    });
    assert_eq!(again.await, direct.read(&at).await.unwrap().map(|entry| entry.version));
}

/// A session that cannot renew is given up by its owner before others see it end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_cut_off_ends_after_its_owner_gave_up() {
    let server = Etcd::start(&[]).await;
    let direct = connect(&server.target("r")).await.unwrap();
    let link = Link::open("127.0.0.1:0", &server.address()).await;
    let store = connect(&server.target_through(link.address(), "r")).await.unwrap();
    let session = Session::open(Arc::clone(&store), Duration::from_secs(2)).await.unwrap();
    let at = key("leader");
    store.commit(Transaction::new().put_ephemeral(&at, "", session.id())).await.unwrap();
    let mut watch = direct.watch(Scope::One(at), None).await.unwrap();
    watch.next().await.unwrap();
    link.hold(Way::There);
    tokio::select! {
        () = session.lost() => {}
        update = watch.next() => panic!("gone before its owner gave up: {update:?}"),
    }
    let update = timeout(EXPIRY_BOUND, watch.next()).await.expect("gone within the bound").unwrap();
    assert!(matches!(&update, Update::Changes { changes, .. } if changes[0].entry.is_none()), "{update:?}");
    link.mend();
    let late = until("the link is mended", async || {
        match store.commit(Transaction::new().put_ephemeral(&key("late"), "", session.id())).await {
            Err(error @ (Error::Indefinite { .. } | Error::Unavailable { .. })) => Err(error.to_string()),
            outcome => Ok(outcome),
        }
    });
    assert_eq!(late.await, Err(Error::SessionEnded { session: session.id() }));
}

/// A lease of another program is no session of ours, whatever it is called.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_somebody_else_is_left_alone() {
    let server = Etcd::start(&[]).await;
    let store = connect(&server.target("r")).await.unwrap();
    let granted = server.control(&["lease", "grant", "600"]);
    let id = granted.split_whitespace().nth(1).unwrap();
    let theirs = SessionId::new(u128::from_str_radix(id, 16).unwrap());
    let ended = Error::SessionEnded { session: theirs };
    let put = Transaction::new().put_ephemeral(&key("a"), "", theirs);
    assert_eq!(store.commit(put).await, Err(ended.clone()));
    assert_eq!(store.renew_session(theirs).await, Err(ended.clone()));
    assert_eq!(store.end_session(theirs).await, Err(ended));
    assert!(server.control(&["lease", "list"]).contains(id), "it was not ours to end");
}

/// More folders than etcd compares at once: checked all the same, beside a client that writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_over_many_folders_is_checked_whole() {
    let server = Etcd::start(&[]).await;
    let store = connect(&server.target("r")).await.unwrap();
    let session = store.open_session(Duration::from_secs(60)).await.unwrap();
    let leaf = key("d/77/leaf");
    store.commit(Transaction::new().put_ephemeral(&leaf, "", session)).await.unwrap();
    let wide = |last: &str| {
        (0..64_u32).fold(Transaction::new().when(&key("once"), Expected::Absent), |transaction, folder| {
            transaction.put(&key(&format!("w/{folder}/x/y/{last}")), "")
        })
    };
    let below = wide("a").put(&leaf.join("z").unwrap(), "");
    assert_eq!(store.commit(below).await, Err(Error::below_ephemeral(&leaf.join("z").unwrap(), &leaf)));
    assert!(store.list(&Scope::Below(key("w")), None, 1).await.unwrap().entries.is_empty());
    let noise = {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            loop {
                store.commit(Transaction::new().put(&key("noise"), "")).await.unwrap();
                sleep(Duration::from_millis(20)).await;
            }
        })
    };
    let done = until("it finds a quiet moment", async || match store.commit(wide("b")).await {
        Err(error @ Error::Unavailable { .. }) => Err(error.to_string()),
        outcome => Ok(outcome),
    });
    let version = done.await.unwrap();
    noise.abort();
    let listing = store.list(&Scope::Below(key("w")), None, 100).await.unwrap();
    assert_eq!(listing.entries.len(), 64);
    assert!(listing.entries.iter().all(|(_, entry)| entry.version == version));
    let once = store.commit(Transaction::new().put(&key("once"), "")).await.unwrap();
    let refusal = Error::Refused { key: key("once"), expected: Expected::Absent, found: Some(once) };
    assert_eq!(store.commit(wide("c")).await, Err(refusal));
}

/// No space left by etcd's quota: refused, definitely, with the way out; reads go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_etcd_says_so() {
    let server = Etcd::start(&["--quota-backend-bytes=16777216"]).await;
    let store = connect(&server.target("r")).await.unwrap();
    let value = Bytes::from(vec![7; limits::ETCD_MAX_VALUE_BYTES - 100]);
    let mut kept = Vec::new();
    let error = loop {
        let at = key(&format!("k/{}", kept.len()));
        match store.commit(Transaction::new().put(&at, value.clone())).await {
            Ok(_) => kept.push(at),
            Err(error) => break error,
        }
        assert!(kept.len() < 40, "the quota is 16 MiB");
    };
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    assert!(error.to_string().contains("alarm disarm"), "{error}");
    assert_eq!(error.advice(), Advice::CallAPerson);
    let listing = store.list(&Scope::Below(key("k")), None, 1000).await.unwrap();
    assert!(listing.next.is_some() && listing.entries.len() < kept.len(), "a page has a bound in bytes, too");
}

/// One of several that write until there is no room: what each was told of each of its keys.
async fn writes_until_full(store: &dyn Coordination, writer: u8, round: usize) -> Vec<(Key, Bytes, Outcome)> {
    let mut told = Vec::new();
    for item in 0..40 {
        // Now a new key, now one that all write.
        let at = if item % 2 == 0 { key(&format!("k/{round}/{writer}/{item}")) } else { key("shared") };
        let mut value = vec![writer; 300_000];
        value.extend(format!("{round} {item}").into_bytes());
        let value = Bytes::from(value);
        let outcome = store.commit(Transaction::new().put(&at, value.clone())).await;
        let is_over = outcome.is_err();
        told.push((at, value, outcome));
        if is_over {
            break;
        }
    }
    told
}

type Outcome = Result<Version, Error>;

/// etcd does what came through its door before the room was used up, and says that there is none: "nothing was changed"
/// is never said of that, and what was done is told as done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_etcd_says_that_it_did_not_do_it_did_not_do() {
    let server = Etcd::start(&["--quota-backend-bytes=16777216"]).await;
    let (mut refused, mut done) = (0, 0);
    for round in 0..5 {
        // Each has a connection of its own, and knows nothing of the others.
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..8 {
            let store = connect(&server.target("r")).await.unwrap();
            writers.spawn(async move { writes_until_full(&*store, writer, round).await });
        }
        let store = connect(&server.target("r")).await.unwrap();
        for (at, value, outcome) in writers.join_all().await.into_iter().flatten() {
            let found = store.read(&at).await.unwrap();
            let is_there = found.as_ref().is_some_and(|entry| entry.value == value);
            match outcome {
                Ok(version) => {
                    let found = found.expect("was acknowledged").version;
                    assert!(if is_there { found == version } else { found > version }, "{at}");
                    done += 1;
                }
                Err(Error::NoRoom { .. }) => {
                    assert!(!is_there, "{at} was said to be unchanged, and is not");
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        server.make_room("r");
    }
    assert!(refused > 0 && done > 0, "{refused} were refused, {done} done");
}

/// What another program keeps below the root is named, and left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_somebody_else_is_named() {
    let server = Etcd::start(&[]).await;
    let store = connect(&server.target("r")).await.unwrap();
    server.control(&["put", "/partage/r/not ours", "x"]);
    let error = store.list(&Scope::All, None, 10).await.unwrap_err();
    assert!(error.to_string().contains("/partage/r/not ours"), "{error}");
    let mut watch = store.watch(Scope::All, None).await.unwrap();
    assert_eq!(watch.next().await, Err(error));
}

/// What waits is thrown away, and the stream with it: 4 MiB, and what was under way. The rest is never sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w6_a_subscriber_that_does_not_listen_costs_little() {
    let server = Etcd::start(&[]).await;
    let link = Link::open("127.0.0.1:0", &server.address()).await;
    let near = connect(&server.target("sleeper")).await.unwrap();
    let far = connect(&server.target_through(link.address(), "sleeper")).await.unwrap();
    let came = sleeper::costs_little(&*near, &*far, &link, 12 << 20).await;
    println!("{came} bytes came to somebody who does not listen");
}
