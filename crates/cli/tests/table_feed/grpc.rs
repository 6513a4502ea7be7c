//! The change feed over gRPC: a stream that a reader takes up again at another node when it breaks.

use crate::cluster::{Cluster, ask, eventually, put};
use partage_wire::proto::table as proto;
use partage_wire::proto::table::table_client::TableClient;
use proto::change::Kind;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

/// How long a page may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn client(address: &str) -> Result<TableClient<Channel>, String> {
    TableClient::connect(format!("http://{address}")).await.map_err(|error| error.to_string())
}

fn of(table: &str) -> proto::FeedRequest {
    proto::FeedRequest { table: table.to_owned(), ..Default::default() }
}

async fn begun(address: &str, asked: proto::FeedRequest) -> Streaming<proto::FeedPage> {
    client(address).await.unwrap().feed(asked).await.unwrap().into_inner()
}

async fn page(pages: &mut Streaming<proto::FeedPage>) -> Result<Option<proto::FeedPage>, Status> {
    timeout(PATIENCE, pages.message()).await.expect("a page, or the end")
}

/// All pages of a feed that does not follow, to its end.
async fn all(address: &str, asked: proto::FeedRequest) -> Result<(Vec<proto::Change>, String), Status> {
    let mut pages = client(address).await.unwrap().feed(asked).await?.into_inner();
    let (mut changes, mut token) = (Vec::new(), String::new());
    while let Some(page) = page(&mut pages).await? {
        changes.extend(page.changes);
        token = page.token;
    }
    Ok((changes, token))
}

fn version(change: &proto::Change) -> (u64, u64) {
    let (epoch, index) = change.version.split_once('-').unwrap();
    (epoch.parse().unwrap(), index.parse().unwrap())
}

/// A value that was put, behind the entry that put it.
type Put = ((u64, u64), Vec<u8>);

/// What a reader of a stream has got.
#[derive(Default)]
pub struct StreamReader {
    token: String,
    /// Of each key the values that were put, with the entries that put them.
    pub seen: BTreeMap<Vec<u8>, Vec<Put>>,
    pub breaks: usize,
}

impl StreamReader {
    fn take(&mut self, page: proto::FeedPage) {
        for change in page.changes {
            assert_eq!(change.kind(), Kind::Put);
            let version = version(&change);
            self.seen.entry(change.key).or_default().push((version, change.value.unwrap()));
        }
        self.token = page.token;
    }

    fn asked(&self, follow: bool) -> proto::FeedRequest {
        proto::FeedRequest { after: self.token.clone(), follow, page_changes: 7, ..of("stock") }
    }

    /// Follows until it is to stop, and reads the rest then, at a node that is there.
    pub fn read(mut self, nodes: &[String], done: &AtomicBool) -> StreamReader {
        runtime().block_on(async {
            while !done.load(Ordering::Relaxed) {
                let node = &nodes[self.breaks % nodes.len()];
                let asked = proto::FeedRequest { idle_ms: 500, ..self.asked(true) };
                let why = match client(node).await {
                    Ok(mut client) => self.follow(&mut client, asked, done).await,
                    Err(_) => None,
                };
                if let Some(why) = why {
                    let broken = [Code::Unavailable, Code::Unknown, Code::Cancelled, Code::Internal];
                    assert!(broken.contains(&why.code()), "{why:?}");
                }
                self.breaks += 1;
                sleep(Duration::from_millis(100)).await;
            }
        });
        self
    }

    /// Why the stream has ended; none: the reader is to stop.
    async fn follow(
        &mut self,
        client: &mut TableClient<Channel>,
        asked: proto::FeedRequest,
        done: &AtomicBool,
    ) -> Option<Status> {
        let mut pages = match client.feed(asked).await {
            Ok(pages) => pages.into_inner(),
            Err(why) => return Some(why),
        };
        loop {
            match page(&mut pages).await {
                Ok(Some(page)) => self.take(page),
                Ok(None) => panic!("a stream that follows has no end"),
                Err(why) => return Some(why),
            }
            if done.load(Ordering::Relaxed) {
                return None;
            }
        }
    }

    /// One call that does not follow gives all that is left.
    pub fn read_rest(&mut self, node: &str) {
        let (changes, token) = runtime().block_on(all(node, self.asked(false))).unwrap();
        self.take(proto::FeedPage { changes, token });
    }

    /// Each change came once, and those of a key in the order of its writes.
    pub fn check(&self, acknowledged: &BTreeMap<String, Vec<u64>>) {
        for (key, numbers) in acknowledged {
            let seen = &self.seen[key.as_bytes()];
            assert!(seen.is_sorted_by(|one, next| one.0 < next.0), "{key}: each once, in order: {seen:?}");
            let values: Vec<u64> =
                seen.iter().map(|(_, value)| std::str::from_utf8(value).unwrap().parse().unwrap()).collect();
            assert!(values.is_sorted(), "{key}: {values:?}");
            let missing: Vec<_> = numbers.iter().filter(|number| !values.contains(number)).collect();
            assert!(missing.is_empty(), "{key} lacks {missing:?} of {numbers:?}");
        }
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, word: &str) -> Status {
    let status = answer.unwrap_err();
    let reason = status.get_error_details().error_info().map(|info| info.reason.clone());
    assert_eq!((status.code(), reason.as_deref()), (code, Some(word)), "{status:?}");
    status
}

/// Streams that clients hold open at a node.
fn streams(address: &str) -> Result<u64, String> {
    let answer =
        ask(address, "GET", "/partage/worker/metrics", &[], &[]).map_err(|error| error.to_string())?;
    let text = String::from_utf8(answer.body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("partage_table_feed_streams "));
    line.and_then(|count| count.parse().ok()).ok_or(text)
}

fn streams_are(address: &str, count: u64) {
    eventually("the streams at a node", || match streams(address)? {
        found if found == count => Ok(()),
        found => Err(format!("{found}, not {count}")),
    });
}

async fn what_a_stream_has(cluster: &Cluster, first: &str, second: &str) {
    for number in 0..5 {
        cluster.put("stock", format!("k{number}").as_bytes(), "", b"1");
    }
    cluster.put("stock", b"k0", "?ttl_ms=3600000", b"2");
    cluster.delete("stock", b"k1");
    let (changes, token) = all(first, of("stock")).await.unwrap();
    assert_eq!(changes.len(), 7);
    let of_key = |key: &str| changes.iter().filter(|change| change.key == key.as_bytes()).collect::<Vec<_>>();
    let (k0, k1) = (of_key("k0"), of_key("k1"));
    assert_eq!((k0[1].kind(), k0[1].value.as_deref()), (Kind::Put, Some(&b"2"[..])));
    assert!(k0[1].expires_ms.is_some() && version(k0[0]) < version(k0[1]));
    assert_eq!((k1[1].kind(), &k1[1].value), (Kind::Delete, &None));
    let rest = proto::FeedRequest { after: token.clone(), ..of("stock") };
    assert_eq!(all(second, rest).await.unwrap().0, [], "it has all, at another node too");
    // Some of them, and the rest behind the last page's token.
    let some = proto::FeedRequest { limit: 3, page_changes: 2, ..of("stock") };
    let (some, token) = all(second, some).await.unwrap();
    assert_eq!(some.len(), 3);
    let rest = proto::FeedRequest { after: token, ..of("stock") };
    assert_eq!(all(first, rest).await.unwrap().0.len(), 4);
    // Of one shard.
    let shard = changes[0].shard;
    let of_shard = proto::FeedRequest { shard: Some(shard), ..of("stock") };
    let found = all(second, of_shard).await.unwrap().0;
    let expected = changes.iter().filter(|change| change.shard == shard).count();
    assert!(found.len() == expected && found.iter().all(|change| change.shard == shard), "{found:?}");

    // One that follows has what comes from now on, and a page now and then where nothing does.
    let asked = proto::FeedRequest { after: "now".into(), follow: true, idle_ms: 500, ..of("stock") };
    let mut pages = begun(second, asked).await;
    let now = page(&mut pages).await.unwrap().unwrap();
    assert!(now.changes.is_empty() && !now.token.is_empty());
    let waited = Instant::now();
    let idle = page(&mut pages).await.unwrap().unwrap();
    assert!(idle.changes.is_empty() && (400..8_000).contains(&waited.elapsed().as_millis()));
    cluster.put("stock", b"k9", "", b"new");
    loop {
        let page = page(&mut pages).await.unwrap().unwrap();
        if let [change] = &page.changes[..] {
            assert_eq!((&change.key[..], change.value.as_deref()), (&b"k9"[..], Some(&b"new"[..])));
            break;
        }
        assert!(page.changes.is_empty() && waited.elapsed() < PATIENCE);
    }
}

async fn what_cannot_be(first: &str, old: &str) {
    refused(all(first, of("plain")).await, Code::FailedPrecondition, "refused");
    refused(all(first, of("none")).await, Code::NotFound, "not_found");
    let shard = proto::FeedRequest { shard: Some(99), ..of("stock") };
    refused(all(first, shard).await, Code::NotFound, "not_found");
    let after = |after: &str| proto::FeedRequest { after: after.to_owned(), ..of("brief") };
    refused(all(first, after("abc")).await, Code::InvalidArgument, "malformed");
    let other = proto::FeedRequest { after: old.to_owned(), ..of("stock") };
    refused(all(first, other).await, Code::InvalidArgument, "malformed");
    let until = Instant::now() + PATIENCE;
    let gone = loop {
        match all(first, after(old)).await {
            Ok(_) if Instant::now() < until => sleep(Duration::from_millis(200)).await,
            other => break other,
        }
    };
    let status = refused(gone, Code::OutOfRange, "gone");
    assert!(status.message().contains("too old"), "{status:?}");
}

#[test]
fn a_feed_over_grpc_has_what_it_has_over_http_and_leaves_nothing_behind() {
    let cluster = Cluster::start(2);
    cluster.create(&["stock", "--shards", "4", "--replicas", "2", "--feed", "10m"]);
    cluster.create(&["brief", "--shards", "1", "--replicas", "2", "--feed", "1s"]);
    cluster.create(&["plain", "--shards", "1", "--replicas", "2"]);
    let [first, second] = [0, 1].map(|at: usize| cluster.nodes[at].address.clone());
    let runtime = runtime();
    cluster.put("brief", b"a", "", b"1");
    let page_of_one = proto::FeedRequest { limit: 1, ..of("brief") };
    let (_, old) = runtime.block_on(all(&first, page_of_one)).unwrap();
    cluster.put("brief", b"a", "", b"2");
    runtime.block_on(what_a_stream_has(&cluster, &first, &second));
    runtime.block_on(what_cannot_be(&first, &old));

    // A client that takes no page and one that waits, on one connection: one call is given up, then the connection is.
    streams_are(&first, 0);
    for number in 0..300 {
        put(&first, "stock", format!("long{number}").as_bytes(), "", &[7; 20_000]);
    }
    let follow = || proto::FeedRequest { follow: true, ..of("stock") };
    let connected = runtime.block_on(async {
        let mut client = client(&first).await.unwrap();
        let idle = client.feed(follow()).await.unwrap().into_inner();
        let now = proto::FeedRequest { after: "now".into(), ..follow() };
        let mut waits = client.feed(now).await.unwrap().into_inner();
        page(&mut waits).await.unwrap();
        streams_are(&first, 2);
        drop(waits);
        (client, idle)
    });
    runtime.block_on(async { sleep(Duration::from_millis(500)).await });
    streams_are(&first, 1);
    drop(connected);
    drop(runtime);
    streams_are(&first, 0);
}

#[test]
fn a_node_that_stops_ends_its_streams_and_another_one_goes_on() {
    let cluster = Cluster::start(3);
    cluster.create(&["stock", "--shards", "2", "--feed", "10m"]);
    cluster.put("stock", b"a", "", b"1");
    let [first, second] = [0, 1].map(|at: usize| cluster.nodes[at].address.clone());
    runtime().block_on(async {
        let mut pages = begun(&second, proto::FeedRequest { follow: true, ..of("stock") }).await;
        let mut token = String::new();
        while token.is_empty() {
            let page = page(&mut pages).await.unwrap().unwrap();
            token = if page.changes.is_empty() { String::new() } else { page.token };
        }
        let pid = cluster.nodes[1].process.0.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let status = refused(page(&mut pages).await, Code::Unavailable, "stopped");
        assert!(status.get_error_details().retry_info().is_some(), "{status:?}");
        cluster.put("stock", b"b", "", b"2");
        let mut rest = begun(&first, proto::FeedRequest { after: token, follow: true, ..of("stock") }).await;
        let until = Instant::now() + PATIENCE;
        loop {
            let page = page(&mut rest).await.unwrap().unwrap();
            if let [change] = &page.changes[..] {
                assert_eq!(change.key, b"b");
                break;
            }
            assert!(page.changes.is_empty() && Instant::now() < until);
        }
    });
}
