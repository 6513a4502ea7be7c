//! Where a node is reached, and whether it is.

use super::*;

#[tokio::test]
async fn a_node_that_moves_is_reached_where_it_is_and_one_without_an_address_is_not() {
    let (mut first, mut second) = (Running::start("b", &tcp()).await, Running::start("b", &tcp()).await);
    let (peers, to) = (sender(&first.at), peer("b").node);
    peers.send(&to, ask(1)).unwrap();
    first.next().await;
    peers.set_addresses(&BTreeMap::from([(to.clone(), second.at.clone())]));
    // What was under way to the former place is lost.
    let comes = async {
        loop {
            let _ = peers.send(&to, ask(2));
            if let Ok((_, message)) = second.messages.try_recv() {
                return message;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert_eq!(soon("a message at the new place", comes).await, Message::Ask(ShuffleId(2)));
    peers.set_addresses(&BTreeMap::new());
    assert_eq!(peers.send(&to, ask(3)), Err(Dropped::NoAddress));
    assert_eq!(peers.send_bulk(&to, bulk(9)).await, Err(Dropped::NoAddress));
    first.end().await;
    second.end().await;
}

#[tokio::test]
async fn l1_a_node_that_was_not_reached_is_looked_for_again_though_nothing_is_sent() {
    let first = Running::start("b", &tcp()).await;
    let (at, to) = (first.at.clone(), peer("b").node);
    let peers = sender(&at);
    assert!(!peers.has_failed(&to), "it was not tried");
    peers.send(&to, ask(1)).unwrap();
    until("a connection", || peers.counts().opened == 1).await;
    assert!(!peers.has_failed(&to));
    first.end().await;
    until("its end", || peers.has_failed(&to)).await;
    // While it is away it is tried again and again.
    let failed = peers.counts().failed;
    let is_reached = || {
        peers.look_for(&to);
        !peers.has_failed(&to)
    };
    until("another try", || !is_reached() && peers.counts().failed > failed + 1).await;
    let mut second = Running::start("b", &at).await;
    until("the node", is_reached).await;
    peers.send(&to, ask(2)).unwrap();
    assert_eq!(second.next().await.1, Message::Ask(ShuffleId(2)));
    second.end().await;
    assert!(!peers.has_failed(&peer("c").node), "nothing is known of a node without an address");
}
