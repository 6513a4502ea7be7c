//! MariaDB behind the contract: the conformance suite, and what only this backend can get wrong.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

use async_trait::async_trait;
use backends::certs::Authority;
use backends::link::Link;
use backends::mariadb::MariaDb;
use backends::{DEADLINE, free_port, sleeper, until};
use partage_coordination::conformance::{self, Subject};
use partage_coordination::mysql::EXPIRY_BOUND;
use partage_coordination::{
    Advice, Coordination, Error, Expected, Key, Result, Scope, Secret, Target, Tls, Transaction, Update,
    View, connect, limits,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

struct Root {
    server: Arc<Mutex<MariaDb>>,
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

/// All roots are in one database. The server lives in a time zone that is neither ours nor UTC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    let server = Arc::new(Mutex::new(MariaDb::start(&["--default-time-zone=-11:30"]).await));
    let roots = AtomicUsize::new(0);
    conformance::run(|| {
        let name = format!("check/{}", roots.fetch_add(1, Ordering::Relaxed));
        let server = Arc::clone(&server);
        async move { Root { server, name } }
    })
    .await;
}

fn key(path: &str) -> Key {
    Key::new(path).unwrap()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

async fn number_at(store: &dyn Coordination, at: &Key) -> u64 {
    store.read(at).await.unwrap().map_or(0, |entry| number(&entry.value))
}

/// The error of a connect, which must name the target.
async fn refused(target: &Target) -> Error {
    let error = connect(target).await.expect_err("must be refused");
    assert!(error.to_string().contains(&target.to_string()), "{error} does not name {target}");
    assert!(!error.to_string().contains("wrong word"), "{error}");
    error
}

#[track_caller]
fn says(error: &Error, advice: Advice, words: &str) {
    assert!(error.advice() == advice && error.to_string().contains(words), "{words:?} is not in: {error}");
}

/// A client that may not come in is told why, and what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_come_in_is_told_why() {
    let server = MariaDb::start(&[]).await;
    let good = server.target("door");
    let wrong_password = Target { password: Some(Secret::new("wrong word")), ..good.clone() };
    says(&refused(&wrong_password).await, Advice::CallAPerson, "Access denied");
    let nobody = Target { user: None, ..good.clone() };
    says(&refused(&nobody).await, Advice::GiveUp, "mysql://user@host/database");
    let elsewhere = Target { database: Some("elsewhere".into()), ..good.clone() };
    says(&refused(&elsewhere).await, Advice::CallAPerson, "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE");
    server.sql("GRANT ALL ON elsewhere.* TO partage@'%'");
    says(&refused(&elsewhere).await, Advice::CallAPerson, "CREATE DATABASE");

    let closed = server.target_through(&format!("127.0.0.1:{}", free_port()), "door");
    says(&refused(&closed).await, Advice::Retry, &format!("{}", closed.hosts[0]));
    let unknown = server.target_through("no-such-host.invalid:3306", "door");
    says(&refused(&unknown).await, Advice::Retry, "no-such-host.invalid");
    let secured = Target { tls: Some(Tls { ca: "/no/such/file".into(), identity: None }), ..good.clone() };
    assert_ne!(refused(&secured).await.advice(), Advice::GiveUp);

    server.sql("CREATE USER reader@'%'; GRANT SELECT ON partage.* TO reader@'%'");
    let reader = Target { user: Some("reader".into()), password: None, ..good.clone() };
    says(&refused(&reader).await, Advice::CallAPerson, "command denied");
    let store = connect(&good).await.unwrap();
    server.sql("REVOKE INSERT ON partage.* FROM partage@'%'");
    let denied = store.commit(Transaction::new().put(&key("a"), "1")).await.unwrap_err();
    says(&denied, Advice::CallAPerson, "INSERT command denied");
    assert_eq!(store.read(&key("a")).await.unwrap(), None);
}

/// Our tables are made step by step, a later schema is refused, and what is not ours is left as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_made_migrated_or_left_alone() {
    let server = MariaDb::start(&[]).await;
    let target = server.target("schema");
    // Many at once on an empty database.
    let mut opening = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let target = target.clone();
        opening.spawn(async move { connect(&target).await });
    }
    for opened in opening.join_all().await {
        opened.unwrap();
    }
    let store = connect(&target).await.unwrap();
    let version = store.commit(Transaction::new().put(&key("kept"), "1")).await.unwrap();

    // As if the client that made them had died before the last step.
    server.sql("DROP TABLE partage.partage_history; UPDATE partage.partage_schema SET version = 3");
    let store = connect(&target).await.unwrap();
    assert_eq!(store.read(&key("kept")).await.unwrap().map(|entry| entry.version), Some(version));
    store.commit(Transaction::new().put(&key("more"), "1")).await.unwrap();
    assert_eq!(server.sql("SELECT version FROM partage.partage_schema"), ["5"]);

    server.sql("UPDATE partage.partage_schema SET version = 6");
    says(&refused(&target).await, Advice::GiveUp, "schema version 6");
    server.sql("UPDATE partage.partage_schema SET version = 5");

    server.sql(
        "CREATE DATABASE theirs; GRANT ALL ON theirs.* TO partage@'%'; \
         CREATE TABLE theirs.partage_keys (a INT) COMMENT='sessions of the web shop'; INSERT INTO theirs.partage_keys VALUES (7)",
    );
    let theirs = Target { database: Some("theirs".into()), ..target };
    says(
        &refused(&theirs).await,
        Advice::GiveUp,
        "the table `partage_keys` there was not made by this program",
    );
    assert_eq!(server.sql("SELECT a FROM theirs.partage_keys"), ["7"]);
    assert_eq!(server.sql("SHOW TABLES IN theirs"), ["partage_keys"]);
}

/// A server that takes no changes is passed over, and says so; one that takes small packets makes limits small.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_set_otherwise_is_seen_through() {
    let server = MariaDb::start(&[]).await;
    let target = server.target("set");
    let store = connect(&target).await.unwrap();
    store.commit(Transaction::new().put(&key("a"), "1")).await.unwrap();
    server.sql("SET GLOBAL read_only = 1");
    let replica = store.commit(Transaction::new().put(&key("a"), "2")).await.unwrap_err();
    says(&replica, Advice::Retry, "read-only");
    says(&refused(&target).await, Advice::Retry, "read-only, as replicas are");
    server.sql("SET GLOBAL read_only = 0");
    store.commit(Transaction::new().put(&key("a"), "3")).await.unwrap();
    let second = server.target_through(&format!("127.0.0.1:{},{}", free_port(), server.address()), "set");
    connect(&second).await.unwrap().commit(Transaction::new().put(&key("a"), "4")).await.unwrap();

    server.sql("SET GLOBAL max_allowed_packet = 65536");
    says(&refused(&target).await, Advice::GiveUp, "max_allowed_packet");
    server.sql("SET GLOBAL max_allowed_packet = 2097152");
    let small = connect(&target).await.unwrap();
    let most = small.limits().max_value_bytes;
    assert!(most < 2_097_152 && most > 2_000_000, "{most}");
    small.commit(Transaction::new().put(&key("a"), vec![0xff; most])).await.unwrap();
    assert_eq!(small.read(&key("a")).await.unwrap().map(|entry| entry.value.len()), Some(most));
}

/// Roots in one database do not see each other, and the history of each is trimmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roots_are_apart_and_histories_are_short() {
    let server = MariaDb::start(&["--innodb-flush-log-at-trx-commit=0"]).await;
    let one = connect(&server.target("one")).await.unwrap();
    let other = connect(&server.target("one/below")).await.unwrap();
    let session = one.open_session(Duration::from_secs(60)).await.unwrap();
    for round in 0..limits::MYSQL_HISTORY_VERSIONS + 2 * limits::MYSQL_TRIM_EVERY {
        let puts = Transaction::new().put(&key("a"), round.to_be_bytes().to_vec());
        one.commit(puts.put_ephemeral(&key("e"), "", session)).await.unwrap();
    }
    assert_eq!(other.list(&Scope::All, None, 10).await.unwrap().entries, []);
    assert!(matches!(other.renew_session(session).await, Err(Error::SessionEnded { .. })));
    let versions = server.sql("SELECT COUNT(DISTINCT version) FROM partage.partage_history");
    let versions: u64 = versions[0].parse().unwrap();
    let most = limits::MYSQL_HISTORY_VERSIONS + limits::MYSQL_TRIM_EVERY;
    assert!((limits::MYSQL_HISTORY_VERSIONS..=most).contains(&versions), "{versions} versions are kept");
}

/// Sessions end by the server's clock, in UTC; after it went back, they end by their time-to-live all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_clock_of_the_server_counts() {
    let server = MariaDb::start(&["--default-time-zone=+13:00"]).await;
    let store = connect(&server.target("clock")).await.unwrap();
    let (ttl, at) = (Duration::from_secs(2), key("e"));
    let session = store.open_session(ttl).await.unwrap();
    store.commit(Transaction::new().put_ephemeral(&at, "", session)).await.unwrap();
    let left = server.sql(
        "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires) BETWEEN 0 AND 2000000 FROM partage.partage_sessions",
    );
    assert_eq!(left, ["1"]);
    // What a clock that was an hour ahead when the session was renewed has left behind.
    server.sql("UPDATE partage.partage_sessions SET expires = expires + INTERVAL 1 HOUR");
    let renewed = Instant::now();
    let other = connect(&server.target("clock")).await.unwrap();
    while other.read(&at).await.unwrap().is_some() {
        assert!(renewed.elapsed() < DEADLINE, "the session lives on in the hour that was taken back");
        sleep(Duration::from_millis(50)).await;
    }
    assert!(matches!(store.renew_session(session).await, Err(Error::SessionEnded { .. })));
    assert!(renewed.elapsed() >= ttl - EXPIRY_BOUND);
}

/// Adds one to a counter of its own until it is told to stop. Returns what was acknowledged, and whether the last
/// one is not known.
fn count(store: Arc<dyn Coordination>, at: Key) -> JoinHandle<(u64, bool)> {
    tokio::spawn(async move {
        let first = number_at(&*store, &at).await;
        for before in first.. {
            let entry = store.read(&at).await.unwrap_or(None);
            let expected = Expected::unchanged(entry.as_ref());
            let value = (before + 1).to_be_bytes().to_vec();
            match store.compare_and_swap(&at, expected, value.into()).await {
                Ok(_) => {}
                Err(Error::Indefinite { .. }) => return (before, true),
                Err(error) => {
                    says(&error, Advice::Retry, "mysql://");
                    return (before, false);
                }
            }
        }
        unreachable!("nobody counts that far")
    })
}

/// `kill -9` in the middle of commits: what was acknowledged is there, what is not known is there at most once,
/// what was refused is not there. Handles, sessions of the living and watches go on; versions never come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_nothing() {
    let mut server = MariaDb::start(&[]).await;
    let target = server.target("killed");
    let watcher = connect(&target).await.unwrap();
    let mut watch = watcher.watch(Scope::All, None).await.unwrap();
    let mut view = View::new();
    view.fold(watch.next().await.unwrap());
    for round in 0..3 {
        let mut counters = Vec::new();
        for task in 0..4 {
            let (store, at) = (connect(&target).await.unwrap(), key(&format!("task/{task}")));
            let start = number_at(&*store, &at).await;
            counters.push((at.clone(), start, store.clone(), count(store, at)));
        }
        let (first, start, ..) = &counters[0];
        until("the first has counted", async || {
            let now = number_at(&*watcher, first).await;
            (now > start + 20).then_some(()).ok_or(format!("{now}"))
        })
        .await;
        let seen = watcher.list(&Scope::All, None, 1).await.unwrap().at;
        server.kill();
        let mut outcomes = Vec::new();
        for (at, _, store, counter) in counters {
            outcomes.push((at, store, counter.await.unwrap()));
        }
        server.revive().await;
        for (at, store, (acknowledged, unknown)) in outcomes {
            let now = until("the same handle works again", async || {
                store.read(&at).await.map_err(|error| error.to_string())
            });
            let now = now.await.map_or(0, |entry| number(&entry.value));
            assert!(
                (acknowledged..=acknowledged + u64::from(unknown)).contains(&now),
                "{acknowledged} {now} {unknown}"
            );
        }
        let after = watcher.commit(Transaction::new().put(&key("round"), vec![round])).await.unwrap();
        assert!(
            after.get() > seen.get() + limits::MYSQL_LIFE_GAP / 2,
            "{after} may have been seen before: {seen}"
        );
        while view.entries().get(&key("round")).is_none_or(|entry| entry.version != after) {
            match timeout(DEADLINE, watch.next()).await.expect("an update comes") {
                Ok(update) => view.fold(update),
                Err(error) => says(&error, Advice::Retry, "mysql://"),
            }
        }
        let all = watcher.list(&Scope::All, None, 100).await.unwrap();
        assert_eq!(Vec::from_iter(view.entries().clone()), all.entries);
    }
}

async fn committing(server: &MariaDb) {
    until("a commit waits in the server", async || {
        let waiting = server.sql(
            "SELECT id FROM information_schema.processlist WHERE user = 'partage' AND state LIKE 'Waiting for backup lock'",
        );
        if waiting.is_empty() { Err("none".to_owned()) } else { Ok(()) }
    })
    .await;
}

/// A link that is cut or held while the server commits: not known, and then there once or not at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_without_an_answer_is_not_known() {
    let server = MariaDb::start(&[]).await;
    let link = Link::open("127.0.0.1:0", &server.address()).await;
    let far = connect(&server.target_through(link.address(), "link")).await.unwrap();
    let near = connect(&server.target("link")).await.unwrap();
    let at = key("a");
    let put = |value: &'static str| {
        let (far, at) = (Arc::clone(&far), at.clone());
        tokio::spawn(async move { far.compare_and_swap(&at, Expected::Absent, value.into()).await })
    };
    type Break<'a> = (&'static str, Box<dyn Fn() + 'a>);
    let breaks: [Break; 2] = [("cut", Box::new(|| link.cut())), ("held", Box::new(|| ()))];
    for (name, break_it) in breaks {
        // The server is made to stop right before it commits, and nowhere else.
        let held = server.hold("BACKUP STAGE START; BACKUP STAGE BLOCK_COMMIT").await;
        let asked = put(name);
        committing(&server).await;
        break_it();
        let outcome = timeout(DEADLINE, asked).await.expect("it has a deadline").unwrap();
        assert!(
            matches!(&outcome, Err(error @ Error::Indefinite { .. }) if !error.is_definite()),
            "{outcome:?}"
        );
        drop(held);
        link.mend();
        // Repeating it is safe: the second swap is refused.
        until("the commit is over", async || {
            match near.compare_and_swap(&at, Expected::Absent, "again".into()).await {
                Ok(_) | Err(Error::Refused { .. }) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
        let value = near.read(&at).await.unwrap().unwrap().value;
        assert!(value == name || value == "again", "{value:?}");
        near.commit(Transaction::new().delete(&at)).await.unwrap();
    }
    // Before the commit was sent: certain that nothing happened.
    link.cut();
    let outcome = timeout(DEADLINE, put("before")).await.expect("it has a deadline").unwrap();
    says(&outcome.unwrap_err(), Advice::Retry, "mysql://");
    link.mend();
    until("the link carries again", async || far.read(&at).await.map_err(|error| error.to_string())).await;
    assert_eq!(near.read(&at).await.unwrap(), None);
}

/// Somebody sits on the lock of the root: nothing happened, said within the bound; and a client that is cut off
/// with the lock in its hand loses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_held_is_waited_for_and_given_up() {
    let mut server = MariaDb::start(&[]).await;
    let store = connect(&server.target("lock")).await.unwrap();
    let at = key("a");
    let held = server.hold("START TRANSACTION; SELECT * FROM partage.partage_roots FOR UPDATE").await;
    let session = store.open_session(Duration::from_secs(1)).await;
    says(&session.unwrap_err(), Advice::Retry, "Lock wait timeout");
    drop(held);
    until("the lock is free", async || {
        store.commit(Transaction::new().put(&at, "1")).await.map_err(|error| error.to_string())
    })
    .await;
    server.process().pause();
    let asked = Instant::now();
    let error = store.read(&at).await.unwrap_err();
    says(&error, Advice::Retry, "no answer within");
    assert!(asked.elapsed() < DEADLINE);
    server.process().wake();
    until("it answers", async || store.read(&at).await.map_err(|error| error.to_string())).await;
    server.kill();
    says(&store.read(&at).await.unwrap_err(), Advice::Retry, "mysql://");
}

async fn works(target: &Target) -> Result<()> {
    let store = connect(target).await?;
    let mut watch = store.watch(Scope::All, None).await?;
    store.commit(Transaction::new().put(&key("a"), "1")).await?;
    assert!(matches!(watch.next().await?, Update::Resync { .. }));
    Ok(())
}

/// The server must have a certificate of our authority for its name, and we one that it trusts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_protected_both_ways() {
    let server = MariaDb::start_with_tls().await;
    let good = server.target("tls");
    works(&good).await.unwrap();
    let tls = good.tls.clone().unwrap();
    let in_the_clear = Target { tls: None, ..good.clone() };
    says(&refused(&in_the_clear).await, Advice::CallAPerson, "Access denied");
    let without_ours = Target { tls: Some(Tls { identity: None, ..tls.clone() }), ..good.clone() };
    says(&refused(&without_ours).await, Advice::CallAPerson, "Access denied");

    let folder = tempfile::tempdir().unwrap();
    let stranger = Authority::new(folder.path(), "stranger");
    let other_ca = Target { tls: Some(Tls { ca: stranger.ca.clone(), ..tls.clone() }), ..good.clone() };
    says(&refused(&other_ca).await, Advice::CallAPerson, "certificate");
    let other_name = server.target_through(&format!("127.0.0.2:{}", good.hosts[0].port), "tls");
    let relay = Link::open(&other_name.hosts[0].to_string(), &server.address()).await;
    says(&refused(&other_name).await, Advice::CallAPerson, "certificate");
    drop(relay);
    let forged = stranger.sign("forged", &[]);
    let identity = Some((forged.certificate, forged.key));
    let not_ours = Target { tls: Some(Tls { identity, ..tls }), ..good };
    assert_eq!(refused(&not_ours).await.advice(), Advice::CallAPerson);
}

/// Only versions are looked at for a subscriber that does not ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w6_a_subscriber_that_does_not_listen_costs_little() {
    let server = MariaDb::start(&[]).await;
    let link = Link::open("127.0.0.1:0", &server.address()).await;
    let near = connect(&server.target("sleeper")).await.unwrap();
    let far = connect(&server.target_through(link.address(), "sleeper")).await.unwrap();
    let came = sleeper::costs_little(&*near, &*far, &link, 1 << 20).await;
    println!("{came} bytes came to somebody who does not listen");
}
