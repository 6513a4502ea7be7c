//! Who connects and does not say who it is, how many may, and how much they may send at once.

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
    let bounds = ConnectionBounds { opening: 4, nodes: 1, clients: 2, ..ConnectionBounds::default() };
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

#[tokio::test]
async fn r1_long_frames_of_clients_are_read_when_there_is_room_for_them() {
    let bounds = ConnectionBounds { client_bytes: 1 << 20, ..ConnectionBounds::default() };
    let mut running = Running::bounded("b", &tcp(), bounds).await;
    // The first one takes all room for a frame that does not end. When its first call is answered, that frame has been begun.
    let mut first = raw(&running.at).await;
    let open = call(1, Request::Open(1, AttemptId(2), Terms::default()));
    let mut bytes = Vec::new();
    Control::Hello(Hello::Client).frame().unwrap().encode(0, &mut bytes);
    open.frame().unwrap().encode(1, &mut bytes);
    bulk(1 << 20).encode(2, &mut bytes);
    first.write_all(&bytes[..bytes.len() - 1]).await.unwrap();
    assert_eq!(get(&mut first).await.unwrap().kind(), Kind::Welcome);
    assert_eq!(get(&mut first).await.unwrap().kind(), Kind::Opened);
    sleep(Duration::from_millis(200)).await;
    let mut second = ClientConnection::open(&running.at, timing()).await.unwrap();
    second.calls.send(&open).await.unwrap();
    let answer = soon("an answer to a short call", second.answers.next()).await.unwrap();
    assert_eq!(answer.what, Answer::Opened);
    second.calls.send(&call(2, Request::Records(1, records(100 << 10)))).await.unwrap();
    let mut hears = tokio::spawn(async move { second.answers.next().await });
    assert!(timeout(Duration::from_millis(300), &mut hears).await.is_err(), "it is not read");
    // Nodes have room of their own.
    let peers = sender(&running.at);
    peers.send(&peer("b").node, node::frame(&Message::Fetch(Vec::new())).unwrap()).unwrap();
    assert_eq!(running.next().await.1, Message::Fetch(Vec::new()));
    drop(first);
    let answer = soon("an answer to a long call", hears).await.unwrap().unwrap();
    assert_eq!(answer.what, Answer::Taken(1));
    running.end().await;
}

#[tokio::test]
async fn r1_a_frame_of_many_records_of_nothing_is_refused_before_they_take_memory() {
    let running = Running::start("b", &tcp()).await;
    let mut stream = raw(&running.at).await;
    put(&mut stream, &Control::Hello(Hello::Client).frame().unwrap(), 0).await;
    // Each has two bytes in the body, and counts for eight in memory.
    let nothing = PackedRecords::pack(std::iter::repeat_n((&b""[..], &b""[..]), 10 << 20));
    put(&mut stream, &call(1, Request::Records(1, nothing)).frame().unwrap(), 1).await;
    let why = goodbye(&mut stream).await;
    assert_eq!(why.word, RefusalWord::BadFrame);
    assert!(why.why.contains("smaller frames"), "{why}");
    running.end().await;
}
