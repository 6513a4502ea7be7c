//! A dataset that is divided by one column of its keys (K2).

use super::test_cluster::{TestCluster, until};
use std::fs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SETTINGS: &str = "format = 'tsv'\nheader = false\nkey = '2'\npartition_by = '1'\nvalues = ['3']\n\
                        layout = 'ordered'\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k2_rows_are_read_by_their_columns_and_what_lacks_one_is_told() {
    let mut test_cluster = TestCluster::new();
    let set = test_cluster.source().join("orders");
    fs::create_dir_all(set.join("v1")).unwrap();
    fs::write(set.join("_dataset.toml"), SETTINGS).unwrap();
    for file in 0..4 {
        let rows = (0..60).filter(|number| number % 4 == file);
        let rows: String =
            rows.map(|number| format!("t{}\t{number:03}\tvalue {number}\n", number % 5)).collect();
        fs::write(set.join(format!("v1/part-{file}.tsv")), rows).unwrap();
    }
    // Each has a share, so that keys and scans go to peers, too.
    for node in [1, 2] {
        let mut options = test_cluster.options(node);
        options.spread.replication.wanted = 1;
        let source = partage_dataset::source::Source::open(
            &test_cluster.source().display().to_string(),
            &std::collections::BTreeMap::new(),
        );
        test_cluster.start_silent(node, options, source.unwrap()).await;
    }
    for node in [1, 2] {
        until("the rows are served", async || {
            test_cluster.get(node, "/orders/t0%00%01000").await.body == "value 0"
                && test_cluster.get(node, "/orders/t4%00%01059").await.body == "value 59"
        })
        .await;
        for number in 0..60 {
            let path = format!("/orders/t{}%00%01{number:03}", number % 5);
            assert_eq!(test_cluster.get(node, &path).await.body, format!("value {number}"));
        }
        assert_eq!(
            test_cluster.get(node, "/orders/t1%00%01000").await.status,
            404,
            "that row is another tenant's"
        );
        for lacking in ["/orders/000", "/orders/t0", "/orders/t0%00%01000%00%01x"] {
            let refused = test_cluster.get(node, lacking).await;
            assert_eq!(refused.status, 400, "{lacking}: {refused:?}");
            assert!(refused.body.contains("2 columns of its keys"), "{refused:?}");
        }
        let scanned = test_cluster.get(node, "/orders?prefix=t3%00%01&limit=100").await.body;
        let rows: serde_json::Value = serde_json::from_str(&scanned).unwrap();
        let keys: Vec<&str> =
            rows["entries"].as_array().unwrap().iter().map(|entry| entry["key"].as_str().unwrap()).collect();
        let expected: Vec<String> =
            (0..60).filter(|n| n % 5 == 3).map(|n| format!("t3\0\u{1}{n:03}")).collect();
        assert_eq!(keys, expected);
        let address = test_cluster.nodes[&node].address();
        assert_eq!(many(address, &["t1\0\u{1}001"]).await, 200);
        assert_eq!(many(address, &["t1\0\u{1}001", "t1"]).await, 400);
    }
    let told = test_cluster.json(1, "/orders").await["versions"]["v1"].take();
    assert_eq!(told["partitioner"], "java-bytes:1/2", "{told}");
    test_cluster.end().await;
}

/// Asks for several keys; the status.
async fn many(address: std::net::SocketAddr, keys: &[&str]) -> u16 {
    let mut body = Vec::new();
    for key in keys {
        body.extend_from_slice(&(key.len() as u32).to_le_bytes());
        body.extend_from_slice(key.as_bytes());
    }
    let head = format!(
        "POST /orders HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/x-partage-keys\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().parse().unwrap()
}
