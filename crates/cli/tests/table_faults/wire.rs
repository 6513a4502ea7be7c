//! A bit that flips on the way between two nodes, in what replicas send to each other: the receiver refuses the message and says
//! so, it is sent again, and no replica has anything but what was written.

use crate::cluster::{Cluster, eventually, noise};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many bytes of a connection are let through unchanged after a bit was flipped: more than what connections begin with, and
/// than a chunk of a snapshot has.
const BETWEEN: usize = 300_000;

/// Passes connections on to a node, and flips a bit now and then in what goes to it, until `flips` is used up.
struct Proxy {
    address: String,
    flips: Arc<AtomicUsize>,
}

impl Proxy {
    /// To a node that will listen there.
    fn start(to: String) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let flips = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&flips);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&to) else { continue };
                let (back, forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let left = Arc::clone(&left);
                std::thread::spawn(move || pass(client, server, &left));
                std::thread::spawn(move || pass(back, forth, &AtomicUsize::new(0)));
            }
        });
        Proxy { address, flips }
    }
}

/// Passes on what comes, to the end of the connection.
fn pass(mut from: TcpStream, mut to: TcpStream, flips: &AtomicUsize) {
    let (mut piece, mut passed) = (vec![0; 16 << 10], 0);
    while let Ok(count @ 1..) = from.read(&mut piece) {
        passed += count;
        // In the midst of a large message, which has some bytes of its own in 16 KiB.
        if count > 8_000
            && passed > BETWEEN
            && flips.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
        {
            piece[count / 2] ^= 1;
            passed = 0;
        }
        if to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// A port that is free, as of now.
fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn a_bit_that_flips_between_nodes_is_found_and_a_snapshot_is_taken_as_it_was_sent() {
    let mut cluster = Cluster::start(2);
    cluster.create(&["stock", "--shards", "1", "--replicas", "2"]);
    let rows: Vec<(Vec<u8>, Vec<u8>)> =
        (0..40).map(|number| (format!("k{number:02}").into_bytes(), noise(number, 200_000))).collect();
    rows.iter().for_each(|(key, value)| cluster.put("stock", key, "", value));
    // The third node comes now: it gets a snapshot, through the proxy, in which bits flip three times.
    let listen = free_port();
    let proxy = Proxy::start(listen.clone());
    proxy.flips.store(3, Ordering::SeqCst);
    cluster.add_at(&listen, &["--address", &proxy.address], cluster.path("t3"));
    let said = cluster.run(&["keyspace", "update", "stock", "--replicas", "3"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let shard = eventually("the newcomer is in sync", || {
        let shard = cluster.shards("stock").into_iter().next().unwrap();
        let replicas = shard["replicas"].as_array().unwrap();
        let is_whole = replicas.iter().filter(|replica| replica["in_sync"] == true).count() == 3;
        if is_whole { Ok(shard) } else { Err(shard.to_string()) }
    });
    assert_eq!(proxy.flips.load(Ordering::SeqCst), 0, "all bits were flipped: {shard}");
    let said: Vec<String> = (0..2).map(|node| cluster.logged(node)).collect();
    assert!(said.iter().any(|said| said.contains("was damaged on its way")), "{said:?}");
    // The same in the log.
    proxy.flips.store(3, Ordering::SeqCst);
    for (number, (key, value)) in rows.iter().enumerate() {
        let other = [&value[..], &number.to_be_bytes()].concat();
        cluster.put("stock", key, "", &other);
    }
    assert_eq!(proxy.flips.load(Ordering::SeqCst), 0, "all bits were flipped");
    cluster.nothing_differs("stock");
    for (number, (key, value)) in rows.iter().enumerate() {
        let expected = [&value[..], &number.to_be_bytes()].concat();
        assert!(cluster.get("stock", key).body == expected, "{}", String::from_utf8_lossy(key));
    }
}
