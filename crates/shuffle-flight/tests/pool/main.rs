//! A pool of three nodes in one process, used by the client of Flight alone: what is put comes back in order, in equal
//! partitions, at each node; and what makes no sense is refused by name.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise, in its helping functions too")]

mod nodes;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BinaryArray, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_flight::{FlightDescriptor, FlightInfo, IpcMessage, SchemaAsIpc};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, Schema};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::TryStreamExt;
use nodes::{Client, Pool, details, is, path, refused};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

const INPUTS: u32 = 3;
const ROWS: i64 = 5_000;

fn schema() -> Schema {
    Schema::new(vec![
        Field::new("name", DataType::Utf8, true),
        Field::new("size", DataType::Int64, false),
        Field::new("input", DataType::Int64, false),
    ])
}

fn schema_text(schema: &Schema) -> String {
    let options = IpcWriteOptions::default();
    let IpcMessage(message) = SchemaAsIpc::new(schema, &options).try_into().unwrap();
    STANDARD.encode(message)
}

/// Rows of an input partition: sizes repeat, within it and from one to the next.
fn rows(input: i64) -> Vec<(Option<String>, i64, i64)> {
    let row = |at: i64| ((at % 5 != 0).then(|| format!("row {at} of {input}")), at * 7_919 % 1_000, input);
    (0..ROWS).map(row).collect()
}

fn batch(rows: &[(Option<String>, i64, i64)]) -> RecordBatch {
    let names: StringArray = rows.iter().map(|row| row.0.clone()).collect();
    let sizes: Int64Array = rows.iter().map(|row| row.1).collect();
    let inputs: Int64Array = rows.iter().map(|row| row.2).collect();
    RecordBatch::try_new(Arc::new(schema()), vec![Arc::new(names), Arc::new(sizes), Arc::new(inputs)])
        .unwrap()
}

fn rows_of(batches: &[RecordBatch]) -> Vec<(Option<String>, i64, i64)> {
    let of = |batch: &RecordBatch| {
        let (names, sizes) =
            (batch.column(0).as_string::<i32>(), batch.column(1).as_primitive::<Int64Type>());
        let inputs = batch.column(2).as_primitive::<Int64Type>();
        let numbers = sizes.values().iter().zip(inputs.values());
        names
            .iter()
            .zip(numbers)
            .map(|(name, (size, input))| (name.map(str::to_owned), *size, *input))
            .collect()
    };
    let all: Vec<Vec<_>> = batches.iter().map(of).collect();
    all.concat()
}

/// The largest size first; those of one size by input partition, and by place in it.
fn expected() -> Vec<(Option<String>, i64, i64)> {
    let mut all: Vec<_> = (0..i64::from(INPUTS)).flat_map(rows).collect();
    all.sort_by_key(|row| -row.1);
    all
}

fn start() -> Value {
    json!({ "schema": schema_text(&schema()), "by": [{ "column": "size", "descending": true }], "partitions": 7 })
}

/// A row of the column that rows are ordered by, as text.
fn end(size: i64) -> String {
    let schema = Schema::new(vec![Field::new("size", DataType::Int64, false)]);
    let row = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int64Array::from(vec![size]))]).unwrap();
    let mut writer = StreamWriter::try_new(Vec::new(), row.schema_ref()).unwrap();
    writer.write(&row).unwrap();
    STANDARD.encode(writer.into_inner().unwrap())
}

async fn write(pool: &Pool, handle: &str) {
    for input in 0..INPUTS {
        let all = rows(input.into());
        let batches = all.chunks(1_700).map(batch).collect();
        let mut client = pool.client(input as usize).await;
        let told = client.put(path(&[handle, &input.to_string()]), batches).await.unwrap();
        assert_eq!(told["records"], ROWS, "{told}");
    }
}

/// Reads each endpoint at another of its nodes.
async fn read(info: &FlightInfo) -> Vec<Vec<(Option<String>, i64, i64)>> {
    let mut parts = Vec::new();
    for (at, endpoint) in info.endpoint.iter().enumerate() {
        assert_eq!(endpoint.location.len(), 3, "{endpoint}");
        let mut client = Client::of(&endpoint.location[at % 3].uri).await;
        let part = rows_of(&client.get(endpoint.ticket.clone().unwrap()).await.unwrap());
        let told: Value = serde_json::from_slice(&endpoint.app_metadata).unwrap();
        assert_eq!(told["records"], part.len());
        parts.push(part);
    }
    parts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x13_rows_come_back_in_order_and_exactly_divided_at_each_node() {
    let pool = Pool::start(3).await;
    let mut client = pool.client(0).await;
    let handle = client.start(&start()).await;
    write(&pool, &handle).await;
    let early = client.info(path(&[&handle, "7"])).await.unwrap_err();
    is(early, Code::FailedPrecondition, "not-sealed");
    let lacks = refused(client.seal(&handle, INPUTS + 2).await.unwrap_err());
    assert_eq!((lacks.code(), &details(&lacks)["lacking"]), (Code::FailedPrecondition, &json!([3, 4])));
    let sealed = client.seal(&handle, INPUTS).await.unwrap();
    assert_eq!(sealed["records"], i64::from(INPUTS) * ROWS);

    for n in [1, 7, 16] {
        let info = client.info(path(&[&handle, &n.to_string()])).await.unwrap();
        assert!(info.ordered && info.total_records == i64::from(INPUTS) * ROWS, "{info}");
        let parts = read(&info).await;
        let sizes = || parts.iter().map(Vec::len);
        assert!(parts.len() == n && sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        assert_eq!(parts.concat(), expected());
    }
    let command = json!({ "shuffle": handle, "partitions": 1, "compression": "lz4" }).to_string();
    let info = client.info(FlightDescriptor::new_cmd(command)).await.unwrap();
    assert_eq!(read(&info).await.concat(), expected());
    assert_eq!(client.0.get_schema(path(&[&handle])).await.unwrap(), schema());

    // An interval of keys: from 900, included, down to 500, excluded.
    let command = json!({ "shuffle": handle, "first": end(900), "end": end(500) }).to_string();
    let info = client.info(FlightDescriptor::new_cmd(command)).await.unwrap();
    let found = client.get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap();
    let within = expected().into_iter().filter(|row| (501..=900).contains(&row.1));
    assert_eq!(rows_of(&found), within.collect::<Vec<_>>());

    let results = client.act("bounds", &json!({ "shuffle": handle, "n": 4 })).await.unwrap();
    let bounds = StreamReader::try_new(&results[1][..], None).unwrap().next().unwrap().unwrap();
    let all = expected();
    let at = [0, all.len() / 4, all.len() / 2, all.len() * 3 / 4, all.len() - 1].map(|at| all[at].1);
    assert_eq!(bounds.column(0).as_primitive::<Int64Type>().values()[..], at);

    let listed: Vec<FlightInfo> = client.0.list_flights("").await.unwrap().try_collect().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].flight_descriptor.as_ref().unwrap().path, [handle[..32].to_owned()]);
    let status = client.ask("status", &json!({ "shuffle": handle })).await.unwrap();
    assert_eq!((status["stage"].as_str(), status["winners"].as_u64()), (Some("sealed"), Some(3)));
    client.ask("keep-alive", &json!({ "shuffle": handle })).await.unwrap();
    client.ask("delete", &json!({ "shuffle": handle })).await.unwrap();
    client.ask("delete", &json!({ "shuffle": handle })).await.unwrap();
    let gone = client.ask("keep-alive", &json!({ "shuffle": handle })).await.unwrap_err();
    is(gone, Code::NotFound, "shuffle-deleted");
    pool.stop().await;
}

fn raw(key: &[u8], value: &[u8]) -> RecordBatch {
    let column = |bytes: &[u8]| -> ArrayRef { Arc::new(BinaryArray::from_vec(vec![bytes])) };
    RecordBatch::try_from_iter([("key", column(key)), ("value", column(value))]).unwrap()
}

/// The keys of raw records.
fn keys(batches: &[RecordBatch]) -> Vec<Vec<u8>> {
    let keys = batches.iter().flat_map(|batch| batch.column(0).as_binary::<i32>().iter());
    keys.map(|key| key.unwrap().to_vec()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_records_are_two_columns_and_of_two_attempts_one_is_read() {
    let pool = Pool::start(3).await;
    let mut client = pool.client(1).await;
    let handle = client.start(&json!({ "kind": "raw" })).await;
    let mut other = pool.client(2).await;
    for key in [b"b", b"a"] {
        other.put(path(&[&handle, "0"]), vec![raw(key, b"value"), raw(b"c", b"")]).await.unwrap();
    }
    // A stream of a schema and nothing else is an attempt without records.
    other.put(path(&[&handle, "1"]), vec![raw(b"", b"").slice(0, 0)]).await.unwrap();
    let told = client.seal(&handle, 2).await.unwrap();
    assert_eq!(told["records"], 2, "{told}");
    let found = client.ticket(&json!({ "shuffle": handle, "partition": 0, "of": 1 })).await.unwrap();
    assert!(
        [[b"a".to_vec(), b"c".to_vec()], [b"b".to_vec(), b"c".to_vec()]]
            .contains(&keys(&found).try_into().unwrap())
    );
    let from = json!({ "shuffle": handle, "first_key": STANDARD.encode("b!") });
    assert_eq!(keys(&client.ticket(&from).await.unwrap()), [b"c"]);
    client.ask("delete", &json!({ "shuffle": handle })).await.unwrap();
    pool.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_makes_no_sense_is_refused_by_name() {
    let pool = Pool::start(3).await;
    let mut client = pool.client(0).await;
    let handle = client.start(&start()).await;
    let good = || vec![batch(&rows(0)[..10])];
    let unknown = format!("{}-30-48", "0".repeat(32));
    is(client.put(path(&[&unknown, "0"]), good()).await.unwrap_err(), Code::NotFound, "shuffle-unknown");
    is(
        client.put(path(&[&handle[..32], "0"]), good()).await.unwrap_err(),
        Code::InvalidArgument,
        "malformed",
    );
    is(
        client.put(path(&[&handle, "x"]), good()).await.unwrap_err(),
        Code::InvalidArgument,
        "no-such-partition",
    );
    is(
        client.put(path(&[&handle, "0", "first"]), good()).await.unwrap_err(),
        Code::InvalidArgument,
        "malformed",
    );
    let other: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    let other = RecordBatch::try_from_iter([("size", other)]).unwrap();
    let differs = client.put(path(&[&handle, "0"]), vec![other]).await.unwrap_err();
    is(differs, Code::InvalidArgument, "record-kind-differs");

    let attempt = "6f1c2b8e-0f0a-4b57-9d3b-0123456789ab";
    client.put(path(&[&handle, "0", attempt]), good()).await.unwrap();
    let twice = refused(client.put(path(&[&handle, "0", attempt]), good()).await.unwrap_err());
    assert_eq!(
        (twice.code(), details(&twice)["kind"].as_str()),
        (Code::Unavailable, Some("attempt-id-used"))
    );
    assert!(twice.message().ends_with("[again: attempt]"), "{twice}");

    client.seal(&handle, 1).await.unwrap();
    let late = client.put(path(&[&handle, "5"]), good()).await.unwrap_err();
    is(late, Code::InvalidArgument, "partition-not-expected");
    for n in ["0", "65537"] {
        is(client.info(path(&[&handle, n])).await.unwrap_err(), Code::InvalidArgument, "no-such-partition");
    }
    is(client.info(path(&[&handle, "many"])).await.unwrap_err(), Code::InvalidArgument, "malformed");
    // More partitions than records is fine: some are empty.
    let info = client.info(path(&[&handle, "25"])).await.unwrap();
    assert_eq!(read(&info).await.concat().len(), 10);
    let bad = [
        (json!({ "shuffle": handle, "partition": 3, "of": 3 }), "no-such-partition"),
        (json!({ "shuffle": handle, "partition": 3 }), "malformed"),
        (json!("ticket"), "malformed"),
    ];
    for (ticket, kind) in bad {
        is(client.ticket(&ticket).await.unwrap_err(), Code::InvalidArgument, kind);
    }
    let bad = [
        ("start", json!({})),
        ("start", json!({ "schema": schema_text(&schema()), "by": ["absent"] })),
        ("seal", json!({ "shuffle": handle })),
        ("bounds", json!({ "shuffle": "7", "n": 1 })),
        ("open", json!({})),
    ];
    for (action, body) in bad {
        is(client.act(action, &body).await.unwrap_err(), Code::InvalidArgument, "malformed");
    }
    let no_order = client.act("start", &json!({ "schema": schema_text(&schema()) })).await.unwrap_err();
    is(no_order, Code::InvalidArgument, "record-kind-differs");
    let polled = client.0.poll_flight_info(path(&[&handle])).await.unwrap_err();
    is(polled, Code::Unimplemented, "unimplemented");
    client.ask("delete", &json!({ "shuffle": handle })).await.unwrap();
    is(client.seal(&handle, 1).await.unwrap_err(), Code::NotFound, "shuffle-deleted");
    pool.stop().await;
}

/// A stream that ends in order, or is cut, without having counted its rows behind the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_is_whole_only_if_its_end_mark_counts_its_rows() {
    let pool = Pool::start(3).await;
    let mut client = pool.client(0).await;
    let handle = client.start(&start()).await;
    let half = || rows(0)[..200].chunks(100).map(batch).collect::<Vec<_>>();
    for mark in [None, Some(100), Some(201)] {
        let why = client.put_marked(path(&[&handle, "0"]), half(), mark).await.unwrap_err();
        is(why, Code::Unavailable, "count-differs");
    }
    let (mut away, of) = (pool.client(1).await, path(&[&handle, "0"]));
    let writer = tokio::spawn(async move { away.put_and_stay(of, half()).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!writer.is_finished(), "it is half-way");
    writer.abort();
    assert!(writer.await.unwrap_err().is_cancelled());
    tokio::time::sleep(Duration::from_millis(500)).await;
    is(client.seal(&handle, 1).await.unwrap_err(), Code::FailedPrecondition, "inputs-lacking");
    let whole = client.put(path(&[&handle, "0"]), half()).await.unwrap();
    assert_eq!(whole["records"], 200);
    assert_eq!(client.seal(&handle, 1).await.unwrap()["records"], 200);
    client.ask("delete", &json!({ "shuffle": handle })).await.unwrap();
    pool.stop().await;
}
