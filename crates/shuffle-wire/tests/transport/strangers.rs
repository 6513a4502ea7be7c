//! Who connects and does not say who it is, and how many may.

use super::*;
use tokio::time::sleep;

#[tokio::test]
async fn a_stranger_may_not_send_a_long_frame() {
    let running = Running::start("b", &tcp()).await;
    let mut stream = raw(&running.at).await;
    put(&mut stream, &bulk(1 << 20), 0).await;
    let why = goodbye(&mut stream).await;
    assert_eq!(why.word, RefusalWord::BadFrame);
    assert!(why.why.contains("may have 8192"), "{why}");
    running.end().await;
}

#[tokio::test]
async fn a_stranger_that_says_a_byte_now_and_then_is_let_go_in_time() {
    let running = Running::start("b", &tcp()).await;
    let (mut read, mut write) = raw(&running.at).await.into_split();
    let mut bytes = Vec::new();
    hello("b").encode(0, &mut bytes);
    // Each byte comes sooner than a connection is silent; all of them take longer than anything here.
    let drips = tokio::spawn(async move {
        for byte in bytes {
            if write.write_all(&[byte]).await.is_err() {
                return;
            }
            sleep(timing().opening / 2).await;
        }
    });
    let why = goodbye(&mut read).await;
    assert_eq!(why.word, RefusalWord::ConnectionSilent);
    assert!(why.why.contains("who it is"), "{why}");
    until("counts", || running.server.counts().silent == 1).await;
    drips.abort();
    running.end().await;
}

#[tokio::test]
async fn r1_clients_do_not_take_the_connections_of_nodes() {
    let bounds = ConnectionBounds { opening: 4, nodes: 1, clients: 2 };
    let mut running = Running::bounded("b", &tcp(), bounds).await;
    let client = || ClientConnection::open(&running.at, timing());
    let (first, second) = (client().await.unwrap(), client().await.unwrap());
    let third = client().await.unwrap_err();
    let is_refused = |closed: &Closed| matches!(closed, Closed::Refused(why) if why.word == RefusalWord::TooManyConnections);
    assert!(is_refused(&third) && third.to_string().contains("2 connections of clients"), "{third}");
    let peers = sender(&running.at);
    peers.send(&peer("b").node, ask(1)).unwrap();
    assert_eq!(running.next().await, (peer("a"), Message::Ask(ShuffleId(1))));
    // Another connection of a node has no room, and one of a client has when another client has gone.
    let mut stream = raw(&running.at).await;
    put(&mut stream, &hello("b"), 0).await;
    assert!(goodbye(&mut stream).await.why.contains("1 connections of nodes"));
    drop(first);
    until("room", || running.server.open() == 2).await;
    let fourth = ClientConnection::open(&running.at, timing()).await.unwrap();
    assert_eq!(running.server.counts().refused, 2);
    drop((second, fourth));
    running.end().await;
}

#[tokio::test]
async fn r1_a_connection_waits_while_others_have_not_said_whose_they_are() {
    let bounds = ConnectionBounds { opening: 1, ..ConnectionBounds::default() };
    let running = Running::bounded("b", &tcp(), bounds).await;
    let stranger = raw(&running.at).await;
    until("the stranger", || running.server.open() == 1).await;
    let patient = Timing { opening: PATIENCE, ..timing() };
    let client = soon("a welcome", ClientConnection::open(&running.at, patient)).await.unwrap();
    assert_eq!(running.server.counts().silent, 1, "the stranger was given up before");
    drop((stranger, client));
    running.end().await;
}
