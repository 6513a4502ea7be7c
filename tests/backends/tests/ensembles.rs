//! Engines of three members, each struck in turn under work: outcomes are definite or unknown as they should be, watches go
//! on where they were, sessions live.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its own small functions")]

use backends::etcd::Etcd;
use backends::link::{Link, Way};
use backends::until;
use backends::work::Work;
use backends::zookeeper::ZooKeeper;
use partage_coordination::{Coordination, Error, Key, Transaction, connect};
use std::sync::Arc;

fn key(path: &str) -> Key {
    Key::new(path).unwrap()
}

/// A link to each, and their addresses as a target takes them.
async fn linked(addresses: impl IntoIterator<Item = String>) -> (Vec<Link>, String) {
    let mut links = Vec::new();
    for address in addresses {
        links.push(Link::open("127.0.0.1:0", &address).await);
    }
    let all = links.iter().map(Link::address).collect::<Vec<_>>().join(",");
    (links, all)
}

/// The link over which `store` reads just now.
async fn in_use(links: &[Link], store: &dyn Coordination) -> usize {
    let carried = || links.iter().map(|link| link.carried(Way::Back)).collect::<Vec<_>>();
    let before = carried();
    for _ in 0..20 {
        store.read(&key("nothing")).await.unwrap();
    }
    let grown: Vec<_> = carried().iter().zip(before).map(|(now, before)| now - before).collect();
    (0..links.len()).max_by_key(|at| grown[*at]).unwrap()
}

/// Without a majority nothing is changed. Nothing is read either, as soon as the last one knows that it is alone: it
/// could be old.
async fn nothing_is_said(store: &dyn Coordination) {
    let place = key("w/0/0");
    let reading = until("nothing is read", async || match store.read(&place).await {
        Ok(entry) => Err(format!("{entry:?}")),
        Err(error) => Ok(error),
    });
    let (read, put) = tokio::join!(reading, store.commit(Transaction::new().put(&key("minority"), "")));
    assert!(matches!(read, Error::Unavailable { .. }), "{read:?}");
    assert!(matches!(put, Err(Error::Unavailable { .. } | Error::Indefinite { .. })), "{put:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_of_three() {
    let mut members = Etcd::start_three().await;
    let (links, all) = linked(members.iter().map(Etcd::address)).await;
    let store = connect(&members[0].target_through(&all, "r")).await.unwrap();
    let work = Work::begin(Arc::clone(&store)).await;
    work.goes_on().await;

    let leader = members.iter().position(Etcd::leads).unwrap();
    members[leader].kill();
    work.goes_on().await;
    members[leader].revive().await;

    // The member that we are connected to falls silent; when it is back, it says nothing that is old.
    let silent = in_use(&links, &*store).await;
    let alone = connect(&members[silent].target("r")).await.unwrap();
    members[silent].process().pause();
    work.goes_on().await;
    let latest = store.commit(Transaction::new().put(&key("latest"), "")).await.unwrap();
    members[silent].process().wake();
    let read =
        until("it answers", async || alone.read(&key("latest")).await.map_err(|error| error.to_string()));
    assert_eq!(read.await.map(|entry| entry.version), Some(latest), "C1");
    work.goes_on().await;

    let mine = in_use(&links, &*store).await;
    let others: Vec<_> = (0..3).filter(|at| *at != mine).collect();
    others.iter().for_each(|at| members[*at].kill());
    nothing_is_said(&*store).await;
    for at in others {
        members[at].relaunch();
    }
    work.goes_on().await;

    let account = work.fits_together(&*connect(&members[0].target("r")).await.unwrap()).await;
    println!("etcd: {account:?}");
    assert!(account.acknowledged >= 200 && account.unknown + account.not_done > 0, "{account:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_of_three() {
    let mut servers = ZooKeeper::start_three().await;
    let (links, all) = linked(servers.iter().map(ZooKeeper::address)).await;
    let store = connect(&servers[0].target_through(&all, "r")).await.unwrap();
    let work = Work::begin(Arc::clone(&store)).await;
    work.goes_on().await;

    let leader = leader(&servers).await;
    servers[leader].kill();
    work.goes_on().await;
    servers[leader].revive().await;

    let mine = in_use(&links, &*store).await;
    servers[mine].kill();
    work.goes_on().await;
    servers[mine].revive().await;

    let silent = in_use(&links, &*store).await;
    servers[silent].pause();
    work.goes_on().await;
    servers[silent].wake();
    work.goes_on().await;

    let mine = in_use(&links, &*store).await;
    let others: Vec<_> = (0..3).filter(|at| *at != mine).collect();
    others.iter().for_each(|at| servers[*at].kill());
    nothing_is_said(&*store).await;
    for at in others {
        servers[at].relaunch();
    }
    work.goes_on().await;

    let account = work.fits_together(&*connect(&servers[0].target("r")).await.unwrap()).await;
    println!("ZooKeeper: {account:?}");
    assert!(account.acknowledged >= 200 && account.unknown + account.not_done > 0, "{account:?}");
}

async fn leader(servers: &[ZooKeeper]) -> usize {
    for (at, server) in servers.iter().enumerate() {
        if server.leads().await {
            return at;
        }
    }
    panic!("nobody leads");
}
