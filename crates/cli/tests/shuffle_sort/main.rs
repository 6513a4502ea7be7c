//! `partage shuffle sort` over a coordinator and three nodes as processes of their own, checked by code that shares nothing with
//! it; and what it refuses.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of processes waits by the clock")]

mod files;
#[path = "../shuffle_pool/mod.rs"]
mod pool;
mod refused;

use files::{Row, check, sums};
use pool::{Pool, Said};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Partitions of each sort.
const PARTS: usize = 7;

/// The parts of a folder, in order: no other file is there.
fn parts(out: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    let is_part = |(number, path): (usize, &PathBuf)| {
        path.file_name().unwrap().to_str().unwrap().starts_with(&format!("part-{number:05}"))
    };
    assert!(found.iter().enumerate().all(is_part), "{found:?}");
    found
}

/// Sorts a file and checks all parts. Says what the command has printed.
fn sorted(pool: &Pool, file: &Path, arguments: &[&str], read: impl Fn(&Path) -> Vec<Row>) -> Value {
    let out = pool.path(&format!("sorted-{}", file.file_name().unwrap().to_str().unwrap()));
    let said = pool.sort(file, &out, PARTS, arguments).json();
    let input = read(file);
    let parts: Vec<Vec<Row>> = parts(&out).iter().map(|part| read(part)).collect();
    check(&input, &parts, PARTS);
    assert_eq!(said["records"], input.len(), "{said}");
    assert_eq!(said["partitions"], PARTS);
    said
}

/// The checker in Python, which users can run too.
fn check_in_python(file: &Path, out: &Path) -> Said {
    let mut check = Command::new("python3");
    check.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/check_shuffle.py")).arg(file);
    check.args(["--record", "100", "--key", "10", "--place", "10:18", "-o"]).arg(out);
    Said::of(check)
}

#[test]
fn files_of_each_format_come_out_sorted_and_equally_divided() {
    let pool = Pool::start(3);
    let binary = pool.path("records.bin");
    files::write_binary(&binary, 30_003);
    sorted(&pool, &binary, &["--record", "100", "--key", "10"], files::read_binary);
    let out = pool.path("sorted-records.bin");
    let right = check_in_python(&binary, &out);
    assert_eq!(
        (right.code, right.out.as_str()),
        (Some(0), "right: 30003 records in 7 parts, each once, in order\n")
    );
    // A record in the place of another.
    let mut part = std::fs::read(out.join("part-00003.bin")).unwrap();
    part.copy_within(4_200..4_300, 4_300);
    std::fs::write(out.join("part-00003.bin"), part).unwrap();
    check_in_python(&binary, &out).refused(1, &["part-00003.bin, record 43: ", "is there twice"]);

    let csv = pool.path("rows.csv");
    files::write_csv(&csv, 5_001);
    sorted(&pool, &csv, &["--by", "size:number:desc:nulls-first", "--by", "name"], files::read_csv);
    let header = |path: &Path| std::fs::read_to_string(path).unwrap().lines().next().unwrap().to_owned();
    let first = parts(&pool.path("sorted-rows.csv"))[6].clone();
    assert_eq!(header(&first), header(&csv));
    assert!(first.to_str().unwrap().ends_with("part-00006.csv"));

    let lines = pool.path("lines.jsonl");
    files::write_json_lines(&lines, 5_000);
    sorted(&pool, &lines, &["--by", "user.age"], files::read_json_lines);

    let parquet = pool.path("rows.parquet");
    files::write_parquet(&parquet, 5_005);
    sorted(&pool, &parquet, &["--by", "price:desc"], files::read_parquet);

    // Fewer records than parts, and none at all.
    let few = pool.path("few.bin");
    files::write_binary(&few, 3);
    sorted(&pool, &few, &["--record", "100", "--key", "10"], files::read_binary);
    let none = pool.path("none.bin");
    files::write_binary(&none, 0);
    sorted(&pool, &none, &["--record", "100", "--key", "10"], files::read_binary);

    let dry =
        pool.sort(&binary, &pool.path("dry"), 7, &["--record", "100", "--key", "10", "--dry-run"]).json();
    assert_eq!((&dry["dry_run"], &dry["file_bytes"]), (&Value::Bool(true), &Value::from(3_000_300)));
    assert!(!pool.path("dry").exists());
    let absent = pool.sort(&lines, &pool.path("absent"), 7, &["--by", "user.agee"]);
    absent.refused(2, &["no line has a field", "user.agee"]);
    assert!(!pool.path("absent").exists(), "what is not whole is not there");
    // Each sort has deleted its shuffle.
    pool.eventually("no shuffle is left", || {
        let listed = pool.run(&["shuffle", "list", "--json"]).json();
        if listed["shuffles"].as_array().is_some_and(Vec::is_empty) {
            Ok(())
        } else {
            Err(listed.to_string())
        }
    });
}

#[test]
fn a_node_that_is_killed_half_way_loses_and_doubles_nothing() {
    let mut pool = Pool::start(3);
    let (file, out) = (pool.path("records.bin"), pool.path("sorted"));
    files::write_binary(&file, 300_001);
    let sum = sums(&files::read_binary(&file));
    let mut sort =
        pool.begin_sort(&file, &out, PARTS, &["--record", "100", "--key", "10", "--parallel", "1"]);
    // Some input partitions are whole, and others are not. The sort stands still while it is looked at: however slow that is, it
    // does not come to its end meanwhile.
    pool.eventually("some of the input is whole", || {
        pool::process::signal(&sort, "-STOP");
        assert!(sort.try_wait().unwrap().is_none(), "the sort is over: give it more records");
        let listed = pool.run(&["shuffle", "list", "--json"]).json();
        let winners = listed["shuffles"][0]["winners"].as_u64().unwrap_or(0);
        if winners >= 3 {
            return Ok(());
        }
        pool::process::signal(&sort, "-CONT");
        Err(listed.to_string())
    });
    pool.kill(2);
    pool::process::signal(&sort, "-CONT");
    let ended = sort.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let input = files::read_binary(&file);
    let parts: Vec<Vec<Row>> = parts(&out).iter().map(|part| files::read_binary(part)).collect();
    check(&input, &parts, PARTS);
    assert_eq!(sums(&parts.concat()), sum);
}

#[test]
fn a_shuffle_is_started_shown_sealed_and_deleted_by_commands() {
    let pool = Pool::start(3);
    let options = ["--partitions", "4", "--ttl", "120", "--sealed-ttl", "7200", "--owner", "etl", "--json"];
    let started = pool.run(&[&["shuffle", "start"][..], &options].concat()).json();
    let handle = started["handle"].as_str().unwrap();
    let id = started["shuffle"].as_str().unwrap();
    assert!(handle.starts_with(id) && id.len() == 32, "{started}");
    let shown = pool.run(&["shuffle", "show", handle, "--json"]).json();
    assert_eq!((shown["stage"].as_str(), shown["winners"].as_u64()), (Some("open"), Some(0)), "{shown}");
    assert_eq!((shown["owner"].as_str(), shown["kind"].as_str()), (Some("etl"), Some("raw")), "{shown}");
    assert_eq!(shown["sealed_ttl_ms"], 7_200_000, "{shown}");
    assert!(shown["ends_in_ms"].as_u64().is_some_and(|left| (60_000..=120_000).contains(&left)), "{shown}");
    for (owner, count) in [("etl", 1), ("other", 0)] {
        let listed = pool.run(&["shuffle", "list", "--owner", owner, "--json"]).json();
        assert_eq!(listed["shuffles"].as_array().map(Vec::len), Some(count), "{listed}");
    }
    pool.run(&["shuffle", "start", "--ttl", "9"]).refused(2, &["give 10000 to 2592000000 ms"]);
    pool.run(&["shuffle", "start", "--owner", "a b"]).refused(2, &["the owner \"a b\" cannot be"]);
    let lacks = pool.run(&["shuffle", "seal", handle, "--inputs", "2"]);
    lacks.refused(5, &["input partitions 0, 1 lack a whole attempt"]);
    let sealed = pool.run(&["shuffle", "seal", id, "--inputs", "0", "--json"]).json();
    assert_eq!((sealed["sealed"].as_bool(), sealed["records"].as_u64()), (Some(true), Some(0)), "{sealed}");
    let bounds = pool.run(&["shuffle", "bounds", id, "--partitions", "3", "--cut", "keys", "--json"]).json();
    assert_eq!(bounds["bounds"].as_array().map(Vec::len), Some(0), "{bounds}");
    pool.run(&["shuffle", "bounds", id, "--partitions", "0"]).refused(4, &["ask for 1 to 16384"]);
    let shown = pool.run(&["shuffle", "show", id, "--partitions", "3", "--json"]).json();
    assert_eq!(shown["skewed_keys"].as_array().map(Vec::len), Some(0), "{shown}");
    pool.run(&["shuffle", "delete", id]).refused(2, &["say --yes"]);
    let dry = pool.run(&["shuffle", "delete", id, "--dry-run", "--json"]).json();
    assert_eq!(dry["deleted"], false);
    let deleted = pool.run(&["shuffle", "delete", id, "--yes", "--json"]).json();
    assert_eq!(deleted["deleted"], true);
    pool.run(&["shuffle", "seal", id, "--inputs", "0"]).refused(4, &["shuffle-deleted"]);
    let never = "0".repeat(32);
    pool.run(&["shuffle", "seal", &never, "--inputs", "0"]).refused(4, &["shuffle-unknown"]);
}

/// A request of a shuffle over HTTP with that header, and the status and body of its answer.
fn http(address: &str, method: &str, shuffle: &str, header: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "{method} /v1/shuffles/{shuffle} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{header}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap())
}

#[test]
fn a_shuffle_is_deleted_over_http_at_any_node() {
    let pool = Pool::start(3);
    let (first, marked) = (&pool.addresses()[0], "partage-request: 1");
    let started = pool.run(&["shuffle", "start", "--json"]).json();
    let id = started["shuffle"].as_str().unwrap();
    // A form on a page of another site has no such header.
    let (status, body) = http(first, "DELETE", id, "accept: */*");
    assert_eq!((status, &body["error"]["kind"]), (403, &Value::from("forbidden")), "{body}");
    assert_eq!(http(first, "GET", id, marked).1["stage"], "open");
    // Each node takes it, and once it is deleted it stays so.
    for node in pool.addresses() {
        let (status, body) = http(node, "DELETE", id, marked);
        assert_eq!((status, body), (200, serde_json::json!({ "shuffle": id, "deleted": true })), "at {node}");
    }
    let (status, body) = http(first, "GET", id, marked);
    assert_eq!((status, &body["error"]["kind"]), (410, &Value::from("shuffle-deleted")), "{body}");
    let (status, body) = http(first, "DELETE", &"0".repeat(32), marked);
    assert_eq!((status, &body["error"]["kind"]), (404, &Value::from("shuffle-unknown")), "{body}");
    let (status, body) = http(first, "DELETE", "all", marked);
    assert_eq!((status, &body["error"]["kind"]), (400, &Value::from("malformed")), "{body}");
    pool.eventually("nothing is listed", || {
        let listed = pool.run(&["shuffle", "list", "--json"]).json();
        if listed["shuffles"] == serde_json::json!([]) { Ok(()) } else { Err(listed.to_string()) }
    });
}
