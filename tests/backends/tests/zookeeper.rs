//! ZooKeeper behind the contract: the conformance suite, and what only this backend can get wrong.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

use async_trait::async_trait;
use backends::link::{Link, Way};
use backends::zookeeper::ZooKeeper;
use backends::{free_port, sleeper, until};
use bytes::Bytes;
use partage_coordination::conformance::{self, Subject};
use partage_coordination::{
    Coordination, Error, Expected, Key, Scope, Secret, Session, Target, Transaction, Version, View, connect,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use zookeeper_client::{Acls, Client, CreateMode};

struct Root {
    server: Arc<Mutex<ZooKeeper>>,
    target: Target,
}

#[async_trait]
impl Subject for Root {
    /// Tried again for a while: the client gives a handshake a third of a second, and a busy machine may need more.
    async fn connect(&self) -> Arc<dyn Coordination> {
        until("connected", async || connect(&self.target).await.map_err(|error| error.to_string())).await
    }
    async fn restart(&self) -> bool {
        self.server.lock().await.restart().await;
        true
    }
    /// A session and its keys live through it, with the handle that opened it.
    async fn after_restart(&self, before: Arc<dyn Coordination>) -> Arc<dyn Coordination> {
        before
    }
    fn expiry_bound(&self) -> Duration {
        Duration::from_secs(2)
    }
}

async fn conforms(target: impl Fn(&ZooKeeper, &str) -> Target) {
    let server = ZooKeeper::start(&[]).await;
    let roots = AtomicUsize::new(0);
    let targets = |number| target(&server, &format!("check/{number}"));
    let targets: Vec<Target> = (0..100).map(targets).collect();
    let server = Arc::new(Mutex::new(server));
    conformance::run(|| {
        let target = targets[roots.fetch_add(1, Ordering::Relaxed)].clone();
        let server = Arc::clone(&server);
        async move { Root { server, target } }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_clear_conforms() {
    conforms(ZooKeeper::target).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_with_a_password_conforms() {
    conforms(ZooKeeper::secured_target).await;
}

fn key(path: &str) -> Key {
    Key::new(path).unwrap()
}

async fn put(store: &dyn Coordination, at: &Key, value: &'static str) -> Result<Version, Error> {
    store.commit(Transaction::new().put(at, value)).await
}

/// Puts until it is done: what was not known, is now.
async fn put_at_last(store: &dyn Coordination, at: &Key, value: &'static str) {
    let done = || async { put(store, at, value).await.map_err(|error| error.to_string()) };
    until("a commit after the trouble", done).await;
}

async fn value_at(store: &dyn Coordination, at: &Key) -> Option<Bytes> {
    let read = || async { store.read(at).await.map_err(|error| error.to_string()) };
    until("a read", read).await.map(|entry| entry.value)
}

/// A handle whose way to the server can be cut, and one whose cannot.
async fn linked(server: &ZooKeeper, root: &str) -> (Link, Arc<dyn Coordination>, Arc<dyn Coordination>) {
    let link = Link::open("127.0.0.1:0", &server.address()).await;
    let target = Target::parse(&format!("zookeeper://{}/{root}", link.address())).unwrap();
    let (far, near) = (connect(&target).await.unwrap(), connect(&server.target(root)).await.unwrap());
    (link, far, near)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_else_wrote_is_named_and_left_alone() {
    let server = ZooKeeper::start(&[]).await;
    let store = connect(&server.target("mine")).await.unwrap();
    let other = Client::connect(&server.address()).await.unwrap();
    let lasting = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let (at, free) = (key("k"), key("free"));
    put(&*store, &free, "here").await.unwrap();
    other.create("/mine/k", b"hello", &lasting).await.unwrap();
    let mut watch = store.watch(Scope::All, None).await.unwrap();
    let swapped = store.compare_and_swap(&at, Expected::Absent, Bytes::new()).await;
    for error in [
        store.read(&at).await.unwrap_err(),
        swapped.unwrap_err(),
        put(&*store, &at, "mine").await.unwrap_err(),
        put(&*store, &key("k/below"), "mine").await.unwrap_err(),
        store.commit(Transaction::new().delete(&at)).await.unwrap_err(),
        store.list(&Scope::All, None, 10).await.unwrap_err(),
        watch.next().await.unwrap_err(),
    ] {
        assert!(matches!(&error, Error::Invalid { what } if what.contains("key `k` holds")), "{error}");
    }
    assert_eq!(other.get_data("/mine/k").await.unwrap().0, b"hello");
    // A key of ours that was written over, while its state was remembered.
    other.set_data("/mine/free", b"hello", None).await.unwrap();
    let error = put(&*store, &free, "again").await.unwrap_err();
    assert!(error.to_string().contains("key `free` holds"), "{error}");
    // A root that another program uses.
    other.create("/theirs", b"data", &lasting).await.unwrap();
    let error = connect(&server.target("theirs")).await.unwrap_err().to_string();
    assert!(error.contains("/theirs") && error.contains("choose another root"), "{error}");
    let error = connect(&server.target("zookeeper/x")).await.unwrap_err().to_string();
    assert!(error.contains("ZooKeeper's own"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_the_target_and_the_path_are_named() {
    let server = ZooKeeper::start(&["maxSessionTimeout=600"]).await;
    let ours = server.secured_target("ours");
    let store = connect(&ours).await.unwrap();
    put(&*store, &key("k"), "secret").await.unwrap();
    // In the clear: over TLS our certificate would do, as what it makes belongs to it, too.
    let mut wrong = server.target("ours");
    (wrong.user, wrong.password) = (ours.user.clone(), Some(Secret::new("guess")));
    for target in [wrong, server.target("ours"), server.target("ours/deeper")] {
        let error = connect(&target).await.unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, Error::Denied { .. }), "{said}");
        assert!(said.contains(&target.to_string()) && said.contains("`/ours"), "{said}");
        assert!(!said.contains("guess"), "{said}");
    }
    let mut half = ours.clone();
    half.password = None;
    assert!(matches!(connect(&half).await, Err(Error::Invalid { .. })));
    let mut nobody_signed = ours.clone();
    nobody_signed.tls.as_mut().unwrap().ca = ours.tls.as_ref().unwrap().identity.as_ref().unwrap().0.clone();
    let error = connect(&nobody_signed).await.unwrap_err().to_string();
    assert!(error.contains("certificate that our CA signed"), "{error}");
    let nowhere = Target::parse(&format!("zookeeper://127.0.0.1:{}/x", free_port())).unwrap();
    let error = connect(&nowhere).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }) && error.to_string().contains("refused"), "{error}");
    let error = store.open_session(Duration::from_secs(5)).await.unwrap_err().to_string();
    assert!(error.contains("600ms") && error.contains("maxSessionTimeout"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_sessions_expire_and_the_handle_goes_on() {
    let server = ZooKeeper::start(&["maxSessionTimeout=600"]).await;
    let (link, far, near) = linked(&server, "expiring").await;
    let (mine, news) = (key("e/mine"), key("news"));
    let session = far.open_session(Duration::from_millis(500)).await.unwrap();
    far.commit(Transaction::new().put_ephemeral(&mine, "here", session)).await.unwrap();
    let mut watch = far.watch(Scope::All, None).await.unwrap();
    let mut view = View::new();
    view.fold(watch.next().await.unwrap());
    assert!(view.entries().contains_key(&mine));
    link.cut();
    let gone = || async {
        let there = near.read(&mine).await.map_err(|error| error.to_string())?;
        if there.is_none() { Ok(()) } else { Err("still there".to_owned()) }
    };
    until("the key goes with its session", gone).await;
    put(&*near, &news, "new").await.unwrap();
    // The other session, which reads and watches, is no longer than that one.
    sleep(Duration::from_secs(1)).await;
    link.mend();
    assert_eq!(value_at(&*far, &news).await, Some(Bytes::from_static(b"new")));
    while !view.entries().contains_key(&news) {
        view.fold(watch.next().await.unwrap());
    }
    assert!(!view.entries().contains_key(&mine));
    assert_eq!(far.renew_session(session).await, Err(Error::SessionEnded { session }));
    let late = far.commit(Transaction::new().put_ephemeral(&mine, "late", session)).await;
    assert_eq!(late, Err(Error::SessionEnded { session }));
    let next = far.open_session(Duration::from_millis(500)).await.unwrap();
    far.commit(Transaction::new().put_ephemeral(&mine, "again", next)).await.unwrap();
    assert_eq!(value_at(&*near, &mine).await, Some(Bytes::from_static(b"again")));
}

/// The server alone would end no session for as long as the test waits here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_end_a_session_in_time_and_what_it_sends_late_does_nothing() {
    let server = ZooKeeper::start(&["minSessionTimeout=99000"]).await;
    let (link, far, near) = linked(&server, "ended").await;
    let ttl = Duration::from_millis(800);
    let mine = key("e/mine");
    let session = far.open_session(ttl).await.unwrap();
    far.commit(Transaction::new().put_ephemeral(&mine, "here", session)).await.unwrap();
    let mut others = Vec::new();
    for name in ["e/one", "e/two"] {
        let handle = connect(&server.target("ended")).await.unwrap();
        let other = Session::open(handle.clone(), ttl).await.unwrap();
        handle.commit(Transaction::new().put_ephemeral(&key(name), name, other.id())).await.unwrap();
        others.push(other);
    }
    // So the handle knows all that it needs, and reads nothing before it sends what comes late.
    far.commit(Transaction::new().put_ephemeral(&mine, "still", session)).await.unwrap();
    link.hold(Way::There);
    let late = Transaction::new().put_ephemeral(&mine, "late", session);
    let committing = tokio::spawn(async move { far.commit(late).await });
    let gone = || async {
        let there = near.read(&mine).await.map_err(|error| error.to_string())?;
        if there.is_none() { Ok(()) } else { Err("still there".to_owned()) }
    };
    until("the key goes with its session", gone).await;
    link.mend();
    assert_eq!(committing.await.unwrap(), Err(Error::SessionEnded { session }));
    assert_eq!(near.read(&mine).await.unwrap(), None);
    for (other, name) in others.iter().zip(["e/one", "e/two"]) {
        assert!(other.is_live(), "{name} renews its session, and has seen another one end");
        assert!(near.read(&key(name)).await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flapping_link_costs_no_outcome_and_no_exit() {
    let server = ZooKeeper::start(&[]).await;
    let (link, far, near) = linked(&server, "flapping").await;
    let at = key("counter");
    let stop = Arc::new(AtomicBool::new(false));
    let (writer, place, ending) = (Arc::clone(&far), at.clone(), Arc::clone(&stop));
    let writing = tokio::spawn(async move {
        let (mut done, mut unknown) = (0_u64, 0_u64);
        while !ending.load(Ordering::Relaxed) {
            let Ok(entry) = writer.read(&place).await else { continue };
            let value =
                entry.as_ref().map_or(0, |entry| u64::from_be_bytes(entry.value[..].try_into().unwrap()));
            let next = Bytes::copy_from_slice(&(value + 1).to_be_bytes());
            match writer.compare_and_swap(&place, Expected::unchanged(entry.as_ref()), next).await {
                Ok(_) => done += 1,
                Err(Error::Indefinite { .. }) => unknown += 1,
                Err(Error::Unavailable { .. }) => {}
                Err(error) => panic!("a lone writer on a bad link: {error}"),
            }
        }
        (done, unknown)
    });
    for _ in 0..10 {
        sleep(Duration::from_millis(60)).await;
        link.cut();
        sleep(Duration::from_millis(40)).await;
        link.mend();
    }
    put_at_last(&*far, &key("through"), "yes").await;
    stop.store(true, Ordering::Relaxed);
    let (done, unknown) = writing.await.unwrap();
    let value =
        value_at(&*near, &at).await.map_or(0, |value| u64::from_be_bytes(value[..].try_into().unwrap()));
    assert!((done..=done + unknown).contains(&value), "{value} of {done} done and {unknown} unknown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_in_the_middle_of_a_commit_the_outcome_is_unknown() {
    let server = ZooKeeper::start(&[]).await;
    let (link, far, near) = linked(&server, "cut").await;
    let at = key("k");
    for (way, arrives) in [(Way::Back, true), (Way::There, false)] {
        put_at_last(&*far, &at, "before").await;
        link.hold(way);
        let (store, place) = (Arc::clone(&far), at.clone());
        let committing = tokio::spawn(async move { put(&*store, &place, "after").await });
        if arrives {
            let seen = || async {
                let value = value_at(&*near, &at).await;
                if value == Some(Bytes::from_static(b"after")) { Ok(()) } else { Err(format!("{value:?}")) }
            };
            until("the commit arrives", seen).await;
        } else {
            // Long enough to be sent; if it was not, it is refused as unavailable, below.
            sleep(Duration::from_millis(200)).await;
        }
        link.cut();
        let outcome = committing.await.unwrap();
        assert!(matches!(outcome, Err(Error::Indefinite { .. })), "{outcome:?}");
        link.mend();
        let wanted: &[u8] = if arrives { b"after" } else { b"before" };
        assert_eq!(value_at(&*far, &at).await, Some(Bytes::from_static(wanted)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_started_again_it_is_gone_on_with() {
    let mut server = ZooKeeper::start(&[]).await;
    let store = connect(&server.target("restarted")).await.unwrap();
    let (at, mine) = (key("k"), key("e"));
    let session = store.open_session(Duration::from_secs(30)).await.unwrap();
    store.commit(Transaction::new().put_ephemeral(&mine, "here", session)).await.unwrap();
    let mut watch = store.watch(Scope::All, None).await.unwrap();
    let mut view = View::new();
    view.fold(watch.next().await.unwrap());
    for value in ["one", "two"] {
        server.restart().await;
        put_at_last(&*store, &at, value).await;
        while view.entries().get(&at).is_none_or(|entry| entry.value != value) {
            view.fold(watch.next().await.unwrap());
        }
        store.renew_session(session).await.unwrap();
        assert!(view.entries().contains_key(&mine), "the session lived through it, and its key with it");
    }
}

/// ZooKeeper says that something changed, and not what: nothing is read for a subscriber that does not ask.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w6_a_subscriber_that_does_not_listen_costs_little() {
    let server = ZooKeeper::start(&[]).await;
    let link = Link::open("127.0.0.1:0", &server.address()).await;
    let near = connect(&server.target("sleeper")).await.unwrap();
    let far = connect(&server.target_through(link.address(), "sleeper")).await.unwrap();
    let came = sleeper::costs_little(&*near, &*far, &link, 1 << 20).await;
    println!("{came} bytes came to somebody who does not listen");
}

/// A server whose connections live and which answers no request, once it is told to: a proxy that lets pings and the beginnings
/// of sessions through. The number of a request is positive.
async fn mute(server: &ZooKeeper, is_mute: Arc<AtomicBool>) -> String {
    let (listener, server) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), server.address());
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut from, mut to) = TcpStream::connect(&server).await.unwrap().into_split();
            let (mut asks, mut hears) = client.into_split();
            tokio::spawn(async move { drop(tokio::io::copy(&mut asks, &mut to).await) });
            let is_mute = Arc::clone(&is_mute);
            tokio::spawn(async move {
                while let Ok(length) = from.read_u32().await {
                    let mut answer = vec![0; length as usize];
                    let Ok(_) = from.read_exact(&mut answer).await else { return };
                    let number = i32::from_be_bytes(*answer.first_chunk().unwrap());
                    if !(is_mute.load(Ordering::SeqCst) && number > 0) {
                        let Ok(()) = hears.write_u32(length).await else { return };
                        let Ok(()) = hears.write_all(&answer).await else { return };
                    }
                }
            });
        }
    });
    address
}

/// It takes half a minute: that is how long a request is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_gets_no_answer_on_a_connection_that_lives_ends() {
    let server = ZooKeeper::start(&[]).await;
    let is_mute = Arc::new(AtomicBool::new(false));
    let address = mute(&server, Arc::clone(&is_mute)).await;
    let store = connect(&server.target_through(&address, "mute")).await.unwrap();
    let at = key("k");
    put(&*store, &at, "before").await.unwrap();
    let mut watch = store.watch(Scope::One(at.clone()), None).await.unwrap();
    watch.next().await.unwrap();
    is_mute.store(true, Ordering::SeqCst);
    // The watch hears of the change, and reads until it is given up.
    let (read, written, watched) = tokio::join!(
        store.read(&at),
        put(&*store, &at, "unknown"),
        timeout(Duration::from_secs(35), watch.next())
    );
    assert!(watched.is_err(), "it read nothing: {watched:?}");
    let read = read.unwrap_err();
    assert!(matches!(&read, Error::Unavailable { what } if what.contains("no answer")), "{read}");
    let written = written.unwrap_err();
    assert!(matches!(&written, Error::Indefinite { what } if what.contains("no answer")), "{written}");
    is_mute.store(false, Ordering::SeqCst);
    put(&*store, &at, "after").await.unwrap();
    assert_eq!(store.read(&at).await.unwrap().unwrap().value, "after");
    // It goes on, on another connection.
    let version = store.read(&at).await.unwrap().unwrap().version;
    let sees = async { while watch.next().await.unwrap().at() < version {} };
    timeout(Duration::from_secs(60), sees).await.expect("the watch goes on");
}
