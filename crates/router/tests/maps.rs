//! How maps come and stay: streams that break, coordinators that lag, die, or send too little.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod world;

use partage_router::{CallOptions, Options, Router};
use std::time::Duration;
use world::coordinator::Coordinator;
use world::node::Node;
use world::{LONG, Maps, address, eventually, router};

fn maps() -> Maps {
    let mut maps = Maps::new("ks", &[("", &["a"]), ("m", &["b"])]);
    maps.nodes = ["a", "b", "c"].map(|name| address(name, "127.0.0.1:9")).to_vec();
    maps
}

fn sequence(router: &Router) -> u64 {
    router.lookup("ks", b"x").map_or(0, |placed| placed.generation.sequence)
}

#[tokio::test]
async fn w5_a_broken_stream_is_resumed_with_what_there_is() {
    let coordinator = Coordinator::start(maps()).await;
    let router = router(&coordinator, CallOptions::default()).await;
    coordinator.push(|maps| maps.hand_over(1, "c"));
    eventually("the second map", || sequence(&router) == 2).await;
    coordinator.cut();
    coordinator.change_silently(|maps| maps.hand_over(1, "a"));
    eventually("the third map", || sequence(&router) == 3).await;
    let known: Vec<_> =
        coordinator.watches().iter().map(|watch| watch.known.values().next().map(|g| g.sequence)).collect();
    assert_eq!(known, [None, Some(2)]);
}

#[tokio::test]
async fn w4_a_gap_is_noticed_and_the_whole_asked_for() {
    let coordinator = Coordinator::start(maps()).await;
    let router = router(&coordinator, CallOptions::default()).await;
    coordinator.change_silently(|maps| maps.hand_over(1, "c"));
    coordinator.push(|maps| maps.hand_over(2, "c"));
    eventually("the third map", || sequence(&router) == 3).await;
    let known: Vec<usize> = coordinator.watches().iter().map(|watch| watch.known.len()).collect();
    assert_eq!(known, [0, 0], "the whole was asked for");
    let placed = router.lookup("ks", b"a").unwrap();
    assert_eq!(placed.leader.unwrap().node.id.as_str(), "c");
}

#[tokio::test]
async fn without_a_coordinator_the_maps_stay_and_the_next_one_is_found() {
    let first = Coordinator::start(maps()).await;
    let mut later = maps();
    later.hand_over(1, "c");
    let second = Coordinator::start(later.clone()).await;
    let router = router(&first, CallOptions::default()).await;
    drop(router);
    // One that is gone, one that has all: whichever is tried first, the maps come.
    let gone = Coordinator::start(maps()).await;
    let address = gone.address.clone();
    gone.stop().await;
    let router = Router::connect(vec![address, second.address.clone()], Options::default()).await;
    assert!(router.ready(LONG).await);
    assert_eq!(sequence(&router), 2);
    second.stop().await;
    eventually("the stream ends", || !router.is_connected()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(sequence(&router), 2, "for ever");
}

#[tokio::test]
async fn m2_a_coordinator_that_lags_is_not_believed() {
    let behind = Coordinator::start(maps()).await;
    let mut later = maps();
    later.hand_over(1, "c");
    later.hand_over(1, "b");
    let ahead = Coordinator::start(later).await;
    let both = vec![ahead.address.clone(), behind.address.clone()];
    let router = Router::connect(both, Options::default()).await;
    // It may have begun with the other, and then stays there as long as that lives.
    let found = || {
        if sequence(&router) == 1 {
            behind.cut();
        }
        sequence(&router) == 3
    };
    eventually("the third map", found).await;
    ahead.cut();
    // It goes round: the lagging one is asked and refused, and the other found again.
    eventually("it is back", || router.is_connected() && ahead.watches().len() >= 2).await;
    for _ in 0..50 {
        assert_eq!(sequence(&router), 3);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_burst_of_changes_ends_with_the_latest() {
    let coordinator = Coordinator::start(maps()).await;
    let router = router(&coordinator, CallOptions::default()).await;
    for at in 0..200 {
        coordinator.push(|maps| maps.hand_over(1, ["c", "a", "b"][at % 3]));
    }
    eventually("the last map", || sequence(&router) == coordinator.generation().sequence).await;
    assert_eq!(router.streams(), 1, "nothing was lost on the way");
}

#[tokio::test]
async fn kept_maps_serve_without_any_coordinator() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("maps");
    let node = Node::start("a").await;
    let mut known = maps();
    known.nodes = vec![node.at()];
    let coordinator = Coordinator::start(known).await;
    let options = || Options { maps_file: Some(file.clone()), ..Options::default() };
    let router = Router::connect(vec![coordinator.address.clone()], options()).await;
    eventually("the file", || file.exists()).await;
    drop(router);
    coordinator.stop().await;
    let router = Router::connect(vec!["127.0.0.1:9".to_owned()], options()).await;
    assert!(router.ready(Duration::ZERO).await, "at once");
    assert_eq!(router.lookup("ks", b"a").unwrap().leader.unwrap().node.address, node.address);
    // A damaged file is left aside.
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let router = Router::connect(vec![], options()).await;
    assert!(!router.ready(Duration::from_millis(50)).await);
}
