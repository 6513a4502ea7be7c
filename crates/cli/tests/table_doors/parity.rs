//! One table of bad input through the doors of a table: HTTP, gRPC, and RESP where it has the operation. The first two say the
//! same word, RESP the first word that clients of Redis know for it; and what is within all limits is done through each.

use crate::cluster::{Answer, Cluster, Node, ask, eventually};
use crate::grpc::{self, Client, MIB};
use partage_core::limits::{KEY_BYTES, TTL_MS};
use partage_wire::proto::table as proto;
use proto::operation::Action;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const LISTENS: &[&str] = &["--redis-listen", "127.0.0.1:0"];

/// What is said of what was carried out.
const DONE: &str = "done";

/// A row that is put, and what is said of it.
struct Case {
    name: &'static str,
    table: &'static str,
    key: Vec<u8>,
    value: Vec<u8>,
    ttl_ms: Option<u64>,
    word: &'static str,
    resp: &'static str,
}

fn case(name: &'static str, word: &'static str, resp: &'static str) -> Case {
    let (key, value) = (b"k".to_vec(), b"v".to_vec());
    Case { name, table: "stock", key, value, ttl_ms: None, word, resp }
}

fn cases() -> Vec<Case> {
    vec![
        Case { key: Vec::new(), ..case("the empty key", DONE, DONE) },
        Case { key: vec![b'k'; KEY_BYTES], ..case("a key at the limit", DONE, DONE) },
        Case { key: vec![b'k'; KEY_BYTES + 1], ..case("a key above the limit", "malformed", "ERR") },
        Case { key: b"a\0b".to_vec(), ..case("a key with NUL", DONE, DONE) },
        Case { key: b"\xff\xfe".to_vec(), ..case("a key that is not UTF-8", DONE, DONE) },
        Case { value: vec![b'v'; MIB], ..case("a value at the limit", DONE, DONE) },
        Case { value: vec![b'v'; MIB + 1], ..case("a value above the limit", "too_large", "ERR") },
        Case { ttl_ms: Some(TTL_MS), ..case("a time to live at the limit", DONE, DONE) },
        Case { ttl_ms: Some(TTL_MS + 1), ..case("a time to live above the limit", "invalid", "ERR") },
        Case { ttl_ms: Some(u64::MAX), ..case("the longest time to live", "invalid", "ERR") },
        Case { table: "none", ..case("an unknown table", "not_found", "WRONGPASS") },
    ]
}

fn word_of(answer: &Answer) -> String {
    if answer.status < 300 {
        return DONE.to_owned();
    }
    answer.json()["error"]["kind"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

fn over_http(node: &Node, method: &str, path: &str, body: &[u8]) -> String {
    word_of(&ask(&node.address, method, path, &[], body).unwrap())
}

fn posted(node: &Node, path: &str, body: &Value) -> String {
    over_http(node, "POST", path, body.to_string().as_bytes())
}

/// A key in a path, in which letters stand as they are.
fn segment(key: &[u8]) -> String {
    let coded = |byte: &u8| match byte {
        byte if byte.is_ascii_alphanumeric() => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    key.iter().map(coded).collect()
}

fn of_status<T>(answer: Result<T, tonic::Status>) -> String {
    match answer {
        Ok(_) => DONE.to_owned(),
        Err(status) => grpc::told(&status).1,
    }
}

/// The first word of the answer to a command, or of the refusal of the table.
fn over_redis(node: &Node, table: &str, arguments: &[&[u8]]) -> String {
    let named: [&[u8]; 3] = [b"AUTH", table.as_bytes(), b"x"];
    let end: [&[u8]; 1] = [b"QUIT"];
    let mut sent = Vec::new();
    for command in [&named[..], arguments, &end[..]] {
        sent.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
        for argument in command {
            sent.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            sent.extend_from_slice(argument);
            sent.extend_from_slice(b"\r\n");
        }
    }
    let mut stream = TcpStream::connect(&node.resp).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut said = Vec::new();
    // A listener that refuses what comes may have closed.
    let _ = stream.write_all(&sent);
    let _ = stream.read_to_end(&mut said);
    let said = String::from_utf8_lossy(&said).into_owned();
    let mut lines = said.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let line = if first == "+OK" { lines.next().unwrap_or_default() } else { first };
    match line.strip_prefix('-') {
        Some(error) => error.split(' ').next().unwrap_or_default().to_owned(),
        None if line.is_empty() => panic!("no answer: {said:?}"),
        None => DONE.to_owned(),
    }
}

async fn single_rows(node: &Node, client: &mut Client) {
    for Case { name, table, key, value, ttl_ms, word, resp } in cases() {
        let query = ttl_ms.map(|ttl_ms| format!("?ttl_ms={ttl_ms}")).unwrap_or_default();
        let path = format!("/v1/tables/{table}/keys/{}{query}", segment(&key));
        let http = over_http(node, "PUT", &path, &value);
        let asked = proto::PutRequest { ttl_ms, ..grpc::put(table, &key, value.clone()) };
        let grpc = of_status(client.put(asked).await);
        let ends = ttl_ms.map(|ttl_ms| ttl_ms.to_string());
        let mut set: Vec<&[u8]> = vec![&b"SET"[..], &key[..], &value[..]];
        if let Some(ends) = &ends {
            set.extend([&b"PX"[..], ends.as_bytes()]);
        }
        let redis = over_redis(node, table, &set);
        assert_eq!((http.as_str(), grpc.as_str(), redis.as_str()), (word, word, resp), "{name}");
    }
}

async fn several_rows(node: &Node, client: &mut Client) {
    let put = |key: &str, ttl_ms: Option<u64>| proto::Operation {
        key: key.as_bytes().to_vec(),
        action: Some(Action::Put(proto::PutAction { value: b"v".to_vec(), ttl_ms })),
        ..Default::default()
    };
    let batch = |operations| proto::BatchRequest { table: "carts".into(), operations, ..Default::default() };
    let operation = |key: &str, ttl_ms: Option<u64>| {
        let mut operation = json!({ "operation": "put", "key": key, "value": "v" });
        ttl_ms.into_iter().for_each(|ttl_ms| operation["ttl_ms"] = json!(ttl_ms));
        operation
    };
    for (name, keys, ttl_ms, word) in [
        ("a batch of one partition key", ["{a}x", "{a}y"], Some(TTL_MS), DONE),
        ("a batch over two partition keys", ["{a}x", "{b}y"], None, "invalid"),
        ("a batch with a huge time to live", ["{a}x", "{a}y"], Some(TTL_MS + 1), "invalid"),
    ] {
        let operations = Vec::from(keys.map(|key| operation(key, ttl_ms)));
        let http = posted(node, "/v1/tables/carts/batch", &json!({ "operations": operations }));
        let operations = Vec::from(keys.map(|key| put(key, ttl_ms)));
        let grpc = of_status(client.batch(batch(operations)).await);
        assert_eq!((http.as_str(), grpc.as_str()), (word, word), "{name}");
    }
    assert_eq!(over_redis(node, "carts", &[b"MSET", b"{a}x", b"1", b"{a}y", b"2"]), DONE);
    assert_eq!(over_redis(node, "carts", &[b"MSET", b"{a}x", b"1", b"{b}y", b"2"]), "CROSSSLOT");
    for (name, table, ttl_ms, word) in [
        ("a multi-put", "stock", TTL_MS, DONE),
        ("a multi-put with a huge time to live", "stock", TTL_MS + 1, "invalid"),
        ("a multi-put into an unknown table", "none", 1_000, "not_found"),
    ] {
        let rows = json!({ "rows": [{ "key": "a", "value": "v", "ttl_ms": ttl_ms }] });
        let http = posted(node, &format!("/v1/tables/{table}/put"), &rows);
        let rows = vec![proto::PutRow { ttl_ms: Some(ttl_ms), ..grpc::row("a", "v") }];
        let asked = proto::PutManyRequest { table: table.to_owned(), rows, ..Default::default() };
        let grpc = of_status(client.put_many(asked).await);
        assert_eq!((http.as_str(), grpc.as_str()), (word, word), "{name}");
    }
}

async fn scanned(client: &mut Client, asked: proto::ScanRequest) -> String {
    let first = match client.scan(asked).await {
        Ok(pages) => pages.into_inner().message().await,
        Err(status) => Err(status),
    };
    of_status(first)
}

async fn scans(node: &Node, client: &mut Client) {
    let page = ask(&node.address, "GET", "/v1/tables/stock/rows?limit=1", &[], &[]).unwrap().json();
    let of_stock = page["next"].as_str().unwrap();
    for (name, table, filter, token, word) in [
        ("a filter that does not parse", "stock", "size > ", "", "malformed"),
        ("a token of another table", "carts", "", of_stock, "malformed"),
        ("a token that is none", "stock", "", "x", "malformed"),
        ("an unknown table", "none", "", "", "not_found"),
        ("a token of its own", "stock", "size > 1", of_stock, DONE),
    ] {
        let given = [("filter", filter), ("token", token)];
        let given = given.iter().filter(|(_, value)| !value.is_empty());
        let query: Vec<String> =
            given.map(|(name, value)| format!("{name}={}", segment(value.as_bytes()))).collect();
        let http = over_http(node, "GET", &format!("/v1/tables/{table}/rows?{}", query.join("&")), &[]);
        let asked = proto::ScanRequest {
            table: table.to_owned(),
            filter: filter.to_owned(),
            token: token.to_owned(),
            ..Default::default()
        };
        let grpc = scanned(client, asked).await;
        assert_eq!((http.as_str(), grpc.as_str()), (word, word), "{name}");
    }
    // Only HTTP has indexes.
    for (path, word) in [
        ("/v1/tables/stock/indexes/none?equals=1", "not_found"),
        ("/v1/tables/none/indexes/none?equals=1", "not_found"),
    ] {
        assert_eq!(over_http(node, "GET", path, &[]), word, "{path}");
    }
}

#[test]
fn each_door_says_the_same_of_the_same_input() {
    let cluster = Cluster::with_flags(&[LISTENS, LISTENS, LISTENS]);
    cluster.create(&["stock", "--shards", "4"]);
    cluster.create(&["carts", "--partition-key", "hash-tag", "--shards", "4"]);
    for node in &cluster.nodes {
        for table in ["stock", "carts"] {
            eventually("each listener knows the table", || match over_redis(node, table, &[b"DBSIZE"]) {
                said if said == DONE => Ok(()),
                other => Err(other),
            });
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for node in &cluster.nodes {
            let mut client = grpc::client(&node.address).await;
            single_rows(node, &mut client).await;
            several_rows(node, &mut client).await;
            scans(node, &mut client).await;
        }
    });
}
