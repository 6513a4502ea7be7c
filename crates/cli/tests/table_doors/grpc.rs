//! The gRPC door: what HTTP answers, as messages; streams of rows; errors that say whether a write is done.

use crate::cluster::{Cluster, eventually};
use partage_wire::proto::table as proto;
use partage_wire::proto::table::table_client::TableClient;
use proto::operation::Action;
use proto::{get_result, put_result};
use std::io::{Read, Write};
use std::net::TcpStream;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt;

pub type Client = TableClient<Channel>;

pub const MIB: usize = 1 << 20;

pub async fn client(address: &str) -> Client {
    let client = TableClient::connect(format!("http://{address}")).await.unwrap();
    client.max_decoding_message_size(8 * MIB).max_encoding_message_size(16 * MIB)
}

pub fn put(table: &str, key: impl AsRef<[u8]>, value: impl Into<Vec<u8>>) -> proto::PutRequest {
    let (table, key) = (table.to_owned(), key.as_ref().to_vec());
    proto::PutRequest { table, key, value: value.into(), ..Default::default() }
}

fn get(table: &str, key: impl AsRef<[u8]>) -> proto::GetRequest {
    proto::GetRequest { table: table.to_owned(), key: key.as_ref().to_vec(), ..Default::default() }
}

pub fn row(key: impl AsRef<[u8]>, value: impl Into<Vec<u8>>) -> proto::PutRow {
    proto::PutRow { key: key.as_ref().to_vec(), value: value.into(), ..Default::default() }
}

/// The code and the word of an error, and whether a write may be done.
pub fn told(status: &Status) -> (Code, String, String) {
    let details = status.get_error_details();
    let (reason, outcome) = match details.error_info() {
        Some(info) => (info.reason.clone(), info.metadata.get("outcome").cloned().unwrap_or_default()),
        None => Default::default(),
    };
    (status.code(), reason, outcome)
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, word: &str) -> Status {
    let status = answer.unwrap_err();
    assert_eq!(told(&status), (code, word.to_owned(), "not_done".to_owned()), "{status:?}");
    status
}

/// The head and the body of an answer over HTTP.
fn http(address: &str, method: &str, path: &str, header: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n{header}\r\n"
    );
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

async fn one_row_from_any_node(cluster: &Cluster, clients: &mut [Client]) {
    for at in 0..3 {
        let key = format!("one-{at}");
        let next = (at + 1) % 3;
        let absent = proto::PutRequest { if_absent: true, ttl_ms: Some(1 << 52), ..put("stock", &key, "1") };
        let written = clients[at].put(absent.clone()).await.unwrap().into_inner();
        assert!(!written.existed);
        let status = refused(clients[next].put(absent).await, Code::Aborted, "not_met");
        let details = status.get_error_details();
        assert_eq!(details.error_info().unwrap().metadata["version"], written.version);
        let newer = proto::PutRequest { if_version: written.version.clone(), ..put("stock", &key, "2") };
        let newer = clients[next].put(newer).await.unwrap().into_inner();
        assert!(newer.existed);
        for consistency in [0, 1, 3, 2] {
            let bound_ms = (consistency == 2).then_some(60_000);
            let asked = proto::GetRequest {
                consistency,
                bound_ms,
                at_least: newer.version.clone(),
                ..get("stock", &key)
            };
            let found = eventually_some(|| {
                let (mut client, asked) = (clients[at].clone(), asked.clone());
                async move { client.get(asked).await }
            });
            let found = found.await.into_inner();
            let row = found.row.unwrap();
            assert_eq!((row.value.as_slice(), row.version.as_str()), (&b"2"[..], newer.version.as_str()));
        }
        let over_http =
            http(&cluster.nodes[at].address, "GET", &format!("/v1/tables/stock/keys/{key}"), "", "");
        assert!(over_http.contains(&format!("etag: \"{}\"", newer.version)), "{over_http}");
        let delete =
            proto::DeleteRequest { table: "stock".into(), key: key.clone().into(), ..Default::default() };
        assert!(clients[at].delete(delete.clone()).await.unwrap().into_inner().existed);
        assert!(!clients[next].delete(delete).await.unwrap().into_inner().existed);
        assert_eq!(clients[at].get(get("stock", &key)).await.unwrap().into_inner().row, None);

        // A name is the same through both doors.
        let path = format!("/v1/tables/stock/keys/named-{at}");
        let first =
            http(&cluster.nodes[at].address, "PUT", &path, &format!("idempotency-key: name-{at}\r\n"), "v");
        let named = proto::PutRequest {
            idempotency_key: format!("name-{at}"),
            ..put("stock", format!("named-{at}"), "v")
        };
        let again = clients[next].put(named.clone()).await.unwrap().into_inner();
        assert!(first.contains(&format!("partage-applied: {}", again.version)), "{first}");
        let other = proto::PutRequest { value: b"w".to_vec(), ..named };
        refused(clients[at].put(other).await, Code::AlreadyExists, "request_id_taken");
    }
}

/// Reads at followers may have to wait until they have what is wanted.
async fn eventually_some<T, F: Future<Output = Result<T, Status>>>(mut ask: impl FnMut() -> F) -> T {
    for _ in 0..200 {
        match ask().await {
            Ok(answer) => return answer,
            Err(status) if status.code() == Code::Unavailable => {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            Err(status) => panic!("{status:?}"),
        }
    }
    panic!("it stays unavailable");
}

async fn what_cannot_be(clients: &mut [Client]) {
    for client in clients {
        let at_limit = vec![b'k'; 4_096];
        client.put(put("stock", &at_limit, vec![0; MIB])).await.unwrap();
        client.put(put("stock", b"", "the empty key")).await.unwrap();
        client.put(put("stock", b"\xff\0", b"\xff\0".to_vec())).await.unwrap();
        let long = vec![b'k'; 4_097];
        refused(client.put(put("stock", &long, "")).await, Code::InvalidArgument, "malformed");
        refused(client.get(get("stock", &long)).await, Code::InvalidArgument, "malformed");
        refused(client.put(put("stock", "a", vec![0; MIB + 1])).await, Code::ResourceExhausted, "too_large");
        refused(client.get(get("none", "a")).await, Code::NotFound, "not_found");
        refused(client.put(put("none", "a", "")).await, Code::NotFound, "not_found");
        refused(client.get(get("no/name", "a")).await, Code::InvalidArgument, "malformed");
        let many = |count: usize| proto::GetManyRequest {
            table: "stock".into(),
            keys: vec![b"a".to_vec(); count],
            ..Default::default()
        };
        for count in [1_001, 4_000, 500_000] {
            refused(client.get_many(many(count)).await, Code::ResourceExhausted, "too_large");
        }
        refused(client.get_many(many(0)).await, Code::InvalidArgument, "malformed");
        let rows = |rows| proto::PutManyRequest { table: "stock".into(), rows, ..Default::default() };
        let twice = rows(vec![row("a", "1"), row("a", "2")]);
        refused(client.put_many(twice).await, Code::InvalidArgument, "malformed");
        let large = rows((0..5).map(|at| row(format!("{at}"), vec![0; 900_000])).collect());
        refused(client.put_many(large).await, Code::ResourceExhausted, "too_large");
        let too_long = client.put(put("stock", "a", vec![0; 6 * MIB])).await.unwrap_err();
        assert_eq!(too_long.code(), Code::OutOfRange, "{too_long:?}");
        let delete = |key: &str| proto::Operation {
            key: key.as_bytes().to_vec(),
            action: Some(Action::Delete(proto::DeleteAction {})),
            ..Default::default()
        };
        let batch =
            |operations| proto::BatchRequest { table: "carts".into(), operations, ..Default::default() };
        let several = client.batch(batch(vec![delete("{a}x"), delete("{b}y")])).await;
        refused(several, Code::InvalidArgument, "invalid");
        refused(client.batch(batch(vec![])).await, Code::InvalidArgument, "malformed");
        refused(client.batch(batch(vec![delete("a"); 1_001])).await, Code::ResourceExhausted, "too_large");
        for (bad, code, word) in [
            (proto::ScanRequest { table: "none".into(), ..Default::default() }, Code::NotFound, "not_found"),
            (
                proto::ScanRequest { table: "stock".into(), token: "x".into(), ..Default::default() },
                Code::InvalidArgument,
                "malformed",
            ),
            (
                proto::ScanRequest { table: "stock".into(), filter: "size > ".into(), ..Default::default() },
                Code::InvalidArgument,
                "malformed",
            ),
        ] {
            let first = match client.scan(bad).await {
                Ok(pages) => pages.into_inner().message().await.map(|_| ()),
                Err(status) => Err(status),
            };
            refused(first, code, word);
        }
    }
}

async fn several_rows(clients: &mut [Client]) {
    let tagged = |name: &str| format!("{{7}}{name}").into_bytes();
    let operation = |name: &str, action| proto::Operation {
        key: tagged(name),
        action: Some(action),
        ..Default::default()
    };
    let operations = vec![
        operation("lines", Action::Put(proto::PutAction { value: b"[]".to_vec(), ttl_ms: Some(600_000) })),
        operation("count", Action::Add(3)),
        operation("log", Action::Append(b"\xff".to_vec())),
        operation("count", Action::Read(proto::ReadAction {})),
    ];
    let batch = proto::BatchRequest { table: "carts".into(), idempotency_key: "b".into(), operations };
    let mut answers = Vec::new();
    for client in clients.iter_mut() {
        answers.push(client.batch(batch.clone()).await.unwrap().into_inner());
    }
    let done = &answers[0];
    assert!(answers.iter().all(|answer| answer == done), "the first answer, from any node");
    assert_eq!(
        (done.results[1].number, &done.results[3].former.as_ref().unwrap().value[..]),
        (Some(3), &b"3"[..])
    );
    assert!(done.results[0].expires_ms.is_some());
    let not_a_number = proto::BatchRequest {
        idempotency_key: String::new(),
        operations: vec![operation("count", Action::Add(1)), operation("lines", Action::Add(1))],
        ..batch
    };
    refused(clients[1].batch(not_a_number).await, Code::FailedPrecondition, "refused");

    let rows: Vec<proto::PutRow> = (0..300)
        .map(|at| proto::PutRow { if_absent: at % 3 == 0, ..row(format!("m{at}"), format!("{at}")) })
        .collect();
    let many = proto::PutManyRequest { table: "stock".into(), rows, ..Default::default() };
    let outcomes = |answer: proto::PutManyResponse, wanted: put_result::Outcome| {
        answer.results.iter().filter(|result| result.outcome() == wanted).count()
    };
    let first = clients[0].put_many(many.clone()).await.unwrap().into_inner();
    assert_eq!(outcomes(first, put_result::Outcome::Written), 300);
    let again = clients[1].put_many(many).await.unwrap().into_inner();
    assert_eq!(outcomes(again, put_result::Outcome::NotMet), 100);
    let keys = (0..301).map(|at| format!("m{at}").into_bytes()).collect();
    let many = proto::GetManyRequest { table: "stock".into(), keys, ..Default::default() };
    let found = clients[2].get_many(many).await.unwrap().into_inner().results;
    assert!(found[..300].iter().all(|one| one.outcome() == get_result::Outcome::Found));
    assert_eq!(
        (found[300].outcome(), found[7].row.as_ref().unwrap().value.as_slice()),
        (get_result::Outcome::Absent, &b"7"[..])
    );
}

/// Messages of a load of `rows` rows, of whose keys the last one comes twice.
fn messages(name: &str, rows: usize) -> Vec<proto::LoadRequest> {
    let all: Vec<proto::PutRow> =
        (0..rows).map(|at| row(format!("l{at:05}"), format!(r#"{{"size": {at}}}"#))).collect();
    let first = |at: usize, text: &str| if at == 0 { text.to_owned() } else { String::new() };
    let mut messages: Vec<proto::LoadRequest> = all
        .chunks(500)
        .enumerate()
        .map(|(at, rows)| proto::LoadRequest {
            table: first(at, "loaded"),
            idempotency_key: first(at, name),
            rows: rows.to_vec(),
        })
        .collect();
    let anew = row(format!("l{:05}", rows - 1), r#"{"size": -1}"#);
    messages.push(proto::LoadRequest { rows: vec![anew], ..Default::default() });
    messages
}

async fn scanned(client: &mut Client, asked: proto::ScanRequest) -> (Vec<proto::Row>, Vec<String>) {
    let mut pages = client.scan(asked).await.unwrap().into_inner();
    let (mut rows, mut tokens) = (Vec::new(), Vec::new());
    while let Some(page) = pages.message().await.unwrap() {
        rows.extend(page.rows);
        tokens.push(page.token);
    }
    (rows, tokens)
}

async fn streams(clients: &mut [Client]) {
    let said = clients[0].load(tokio_stream::iter(messages("load", 3_000))).await.unwrap().into_inner();
    assert_eq!((said.rows, said.written, said.failures.len()), (3_001, 3_001, 0), "{said:?}");
    let again = clients[1].load(tokio_stream::iter(messages("load", 3_000))).await.unwrap().into_inner();
    assert_eq!(again.written, 3_001, "the first answers, from another node");
    let scan = |page_rows| proto::ScanRequest { table: "loaded".into(), page_rows, ..Default::default() };
    for (at, client) in clients.iter_mut().enumerate() {
        let (mut rows, tokens) = scanned(client, scan(100 + at as u32)).await;
        rows.sort_by(|a, b| a.key.cmp(&b.key));
        let keys: Vec<String> =
            rows.iter().map(|row| String::from_utf8_lossy(&row.key).into_owned()).collect();
        let expected: Vec<String> = (0..3_000).map(|at| format!("l{at:05}")).collect();
        assert_eq!(keys, expected, "each once");
        assert_eq!(rows.last().unwrap().value, br#"{"size": -1}"#, "the last message's row stays");
        assert!(tokens.len() >= 29 && tokens.last().unwrap().is_empty() && !tokens[0].is_empty());
        let some = proto::ScanRequest { limit: 250, ..scan(100) };
        assert_eq!(scanned(client, some).await.0.len(), 250);
        let filtered = proto::ScanRequest { filter: "size < 10".into(), keys_only: true, ..scan(0) };
        let (rows, _) = scanned(client, filtered).await;
        assert!(rows.len() == 11 && rows.iter().all(|row| row.value.is_empty()), "{}", rows.len());
    }
    // A client takes some pages, and goes on at another node.
    let mut pages = clients[0].scan(scan(700)).await.unwrap().into_inner();
    let (first, second) = (pages.message().await.unwrap().unwrap(), pages.message().await.unwrap().unwrap());
    drop(pages);
    let rest = proto::ScanRequest { token: second.token, ..scan(0) };
    let (rest, _) = scanned(&mut clients[2], rest).await;
    assert_eq!(first.rows.len() + second.rows.len() + rest.len(), 3_000);

    refused(clients[0].load(tokio_stream::iter(vec![])).await, Code::InvalidArgument, "malformed");
    let mut bad = messages("", 1_000);
    bad[1].rows[7].if_version = "x".into();
    let status = refused(clients[0].load(tokio_stream::iter(bad)).await, Code::InvalidArgument, "malformed");
    let details = status.get_error_details();
    assert_eq!(details.error_info().unwrap().metadata["messages"], "1", "{status:?}");
    assert!(status.message().starts_with("row 7: "), "{status:?}");
    // A message that cannot be read ends it too, and says what was done before.
    for large in [vec![row("a", vec![0; 6 * MIB])], vec![row("a", ""); 5_000]] {
        let mut bad = messages("", 1_000);
        bad[1].rows = large;
        let status = clients[0].load(tokio_stream::iter(bad)).await.unwrap_err();
        assert!(matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted), "{status:?}");
        let details = status.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!(info.reason, "too_large");
        for (name, value) in [("messages", "1"), ("written", "500"), ("failed", "0"), ("outcome", "not_done")]
        {
            assert_eq!(info.metadata[name], value, "{name}: {status:?}");
        }
    }
    let mut other = messages("", 1_000);
    other[1].table = "stock".into();
    refused(clients[0].load(tokio_stream::iter(other)).await, Code::InvalidArgument, "malformed");
}

/// Puts a row until that is done; says how often the outcome was unknown.
async fn put_until_done(mut client: Client, at: usize) -> usize {
    let named = proto::PutRequest {
        idempotency_key: format!("d{at}"),
        ..put("stock", format!("d{at}"), format!("{at}"))
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut unknown = 0;
    while let Err(status) = client.put(named.clone()).await {
        let (code, word, outcome) = told(&status);
        assert!(matches!(code, Code::Unavailable | Code::Unknown), "{status:?}");
        assert_eq!(outcome == "unknown", code == Code::Unknown, "{word}: {status:?}");
        unknown += usize::from(code == Code::Unknown);
        assert!(std::time::Instant::now() < until, "{status:?}");
    }
    unknown
}

/// Kills a leader while writes are under way; what was acknowledged is there. The node that is asked sends the writes again
/// itself, so none is of unknown outcome.
async fn a_leader_dies(cluster: &mut Cluster, clients: &mut [Client]) {
    let (mut puts, mut left) = (JoinSet::new(), 0..400);
    for at in left.by_ref().take(16) {
        puts.spawn(put_until_done(clients[0].clone(), at));
    }
    let (mut done, mut unknown) = (0, 0);
    while let Some(of_one) = puts.join_next().await {
        (done, unknown) = (done + 1, unknown + of_one.unwrap());
        if let Some(at) = left.next() {
            puts.spawn(put_until_done(clients[0].clone(), at));
        }
        if done == 100 {
            // Fifteen others are under way, some of them at this node.
            cluster.nodes[1].process.kill();
        }
    }
    for at in 0..400 {
        let found = clients[2].get(get("stock", format!("d{at}"))).await.unwrap().into_inner();
        assert_eq!(found.row.unwrap().value, format!("{at}").into_bytes());
    }
    assert_eq!(unknown, 0, "each write has a name");
}

#[test]
fn tables_are_read_and_written_over_grpc() {
    let mut cluster = Cluster::with_flags(&[&[], &[], &[]]);
    cluster.create(&["stock", "--shards", "4"]);
    cluster.create(&["carts", "--partition-key", "hash-tag", "--shards", "4"]);
    cluster.create(&["loaded", "--shards", "4"]);
    eventually("the node has its shards", || {
        match http(&cluster.nodes[2].address, "GET", "/v1/tables/carts/keys/a", "", "") {
            // That of a table that the node does not know yet has no place in a log.
            answer if answer.contains(" 404 ") && answer.contains("partage-applied") => Ok(()),
            other => Err(other),
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut clients = Vec::new();
        for node in &cluster.nodes {
            clients.push(client(&node.address).await);
        }
        one_row_from_any_node(&cluster, &mut clients).await;
        what_cannot_be(&mut clients).await;
        several_rows(&mut clients).await;
        streams(&mut clients).await;
        a_leader_dies(&mut cluster, &mut clients).await;
    });
}
