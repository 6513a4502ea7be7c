//! Tables as their user sees them, over HTTP and the command line: `partage up` with its three nodes of tables.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

/// A running `up`, stopped when dropped.
struct Up {
    process: Child,
    coordinator: String,
    nodes: Vec<String>,
    resp: String,
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn partage() -> Command {
    Command::new(env!("CARGO_BIN_EXE_partage"))
}

/// What a node has answered.
struct Answer {
    status: u16,
    body: Value,
}

impl Answer {
    /// The status and the word of an error.
    fn error(&self) -> (u16, &str) {
        (self.status, self.body["error"]["kind"].as_str().unwrap_or("none"))
    }

    fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or("none")
    }
}

impl Up {
    fn start() -> Up {
        let mut process = partage()
            .args(["up", "--port", "0", "--json", "--empty-table"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let at: Value = serde_json::from_str(&line).unwrap();
        let nodes = at["table_nodes"].as_array().unwrap().iter();
        let nodes = nodes.map(|node| node.as_str().unwrap_or_else(|| node["address"].as_str().unwrap()));
        let (nodes, coordinator) = (nodes.map(str::to_owned).collect(), at["coordinator"].as_str().unwrap());
        let resp = at["resp"][0].as_str().unwrap().to_owned();
        let up = Up { process, coordinator: coordinator.to_owned(), nodes, resp };
        let made = up.table(&["create", "stock", "--shards", "6", "--wait"], "");
        assert!(made.status.success(), "{made:?}");
        up
    }

    /// Asks the node of that number.
    fn ask(&self, node: usize, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let address = &self.nodes[node];
        let mut stream = TcpStream::connect(address).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        // A node that refuses a body by its length does not read it.
        let _ = stream.write_all(&[head.as_bytes(), body.as_bytes()].concat());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, body: serde_json::from_str(body).unwrap_or(Value::String(body.to_owned())) }
    }

    fn post(&self, node: usize, path: &str, body: &Value) -> Answer {
        self.ask(node, "POST", &format!("/v1/tables/stock/{path}"), "", &body.to_string())
    }

    /// A command about tables, with what it reads.
    fn table(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = partage();
        command.arg("table").args(arguments);
        command.env("PARTAGE_TABLE_NODE", &self.nodes[0]).env("PARTAGE_COORDINATOR", &self.coordinator);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        // One that does not read it has ended.
        let _ = process.stdin.take().unwrap().write_all(input.as_bytes());
        process.wait_with_output().unwrap()
    }

    /// Its exit code, and both its streams.
    fn said(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = self.table(arguments, "");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }

    /// What it prints as JSON, line by line, when it is done.
    #[track_caller]
    fn lines(&self, arguments: &[&str]) -> Vec<Value> {
        let (code, out, err) = self.said(&[arguments, &["--json"]].concat());
        assert_eq!(code, 0, "{arguments:?}: {err}");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[track_caller]
    fn told(&self, arguments: &[&str]) -> Value {
        let mut lines = self.lines(arguments);
        assert_eq!(lines.len(), 1, "{arguments:?}: {lines:?}");
        lines.remove(0)
    }
}

fn no_row_of_an_unknown_table_is_found(up: &Up) {
    for (node, method) in [(0, "GET"), (1, "PUT"), (2, "DELETE")] {
        let none = up.ask(node, method, "/v1/tables/none/keys/a", "", "");
        assert_eq!(none.error(), (404, "not_found"), "{method}: {}", none.body);
    }
}

#[test]
fn several_rows_are_written_and_read_with_one_outcome_for_each() {
    let up = Up::start();
    for node in 0..3 {
        let rows: Vec<Value> = (0..100)
            .map(|number| match number % 4 {
                0 => json!({ "key": format!("n{node}-{number}"), "value": "höhe" }),
                1 => json!({ "key": format!("n{node}-{number}"), "value": { "base64": "/wA=" } }),
                2 => json!({ "key": format!("n{node}-{number}"), "json": { "n": number } }),
                _ => json!({ "key": { "hex": format!("ff{node:02x}{number:02x}") }, "value": "", "if_absent": true }),
            })
            .collect();
        let put = up.post(node, "put", &json!({ "rows": rows }));
        assert_eq!((put.status, &put.body["failed"]), (200, &json!(0)), "{}", put.body);
        let again = up.post((node + 1) % 3, "put", &json!({ "rows": rows }));
        assert_eq!((again.status, &again.body["failed"]), (207, &json!(25)), "{}", again.body);
        let outcomes = again.body["results"].as_array().unwrap();
        let keys: Vec<Value> = rows.iter().map(|row| row["key"].clone()).collect();
        assert_eq!(outcomes[3]["outcome"], "not_met");
        assert_eq!((&outcomes[0]["outcome"], &outcomes[0]["existed"]), (&json!("written"), &json!(true)));
        assert!(outcomes.iter().zip(&keys).all(|(one, key)| key["hex"].is_string() || one["key"] == *key));
        for reader in 0..3 {
            for consistency in ["", "?consistency=any", "?consistency=bounded&bound_ms=60000"] {
                let mut wanted = keys.clone();
                wanted.insert(1, json!("there is none"));
                let get = up.post(reader, &format!("get{consistency}"), &json!({ "keys": wanted }));
                assert_eq!((get.status, &get.body["failed"]), (200, &json!(0)), "{}", get.body);
                let found = get.body["rows"].as_array().unwrap();
                assert_eq!(found.len(), 101);
                assert_eq!((&found[0]["value"], &found[1]["outcome"]), (&json!("höhe"), &json!("absent")));
                assert_eq!(
                    (&found[2]["value"], &found[3]["value"]),
                    (&json!({ "base64": "/wA=" }), &json!(r#"{"n":2}"#))
                );
                assert_eq!(found[4]["value"], "");
            }
        }
    }
    let large = "x".repeat(1 << 20);
    for number in 0..6 {
        let put = up.ask(0, "PUT", &format!("/v1/tables/stock/keys/large-{number}"), "", &large);
        assert_eq!(put.status, 204);
    }
    let keys: Vec<String> = (0..6).map(|number| format!("large-{number}")).collect();
    let get = up.post(1, "get", &json!({ "keys": keys }));
    let outcomes: Vec<&str> =
        get.body["rows"].as_array().unwrap().iter().map(|row| row["outcome"].as_str().unwrap()).collect();
    let count = |word: &str| outcomes.iter().filter(|outcome| **outcome == word).count();
    assert_eq!((get.status, count("found"), count("left_out")), (207, 4, 2), "{outcomes:?}");
    for (path, bad, expected) in [
        ("get", json!({ "keys": [] }), (400, "malformed")),
        ("get", json!({ "kyes": ["a"] }), (400, "malformed")),
        ("get?consistency=some", json!({ "keys": ["a"] }), (400, "malformed")),
        ("get", json!({ "keys": vec!["a"; 1_001] }), (413, "too_large")),
        ("get", json!({ "keys": ["a".repeat(4_097)] }), (400, "malformed")),
        ("put", json!({ "rows": [{ "key": "a" }] }), (400, "malformed")),
        (
            "put",
            json!({ "rows": [{ "key": "a", "value": "1" }, { "key": "a", "value": "2" }] }),
            (400, "malformed"),
        ),
        ("put", json!({ "rows": [{ "key": "a", "value": format!("{large}x") }] }), (413, "too_large")),
        ("put", json!({ "rows": [{ "key": "a", "value": "x".repeat(9 << 20) }] }), (413, "too_large")),
    ] {
        let answer = up.post(0, path, &bad);
        assert_eq!(answer.error(), expected, "{path}: {}", answer.body);
    }
    let none = up.ask(0, "POST", "/v1/tables/none/get", "", r#"{"keys":["a"]}"#);
    assert_eq!(none.error(), (404, "not_found"), "{}", none.body);
    no_row_of_an_unknown_table_is_found(&up);
    assert_eq!(up.ask(0, "GET", "/v1/tables/stock/get", "", "").error(), (405, "malformed"));
}

#[test]
fn a_batch_is_done_as_one_or_not_at_all_and_once_under_one_name() {
    let up = Up::start();
    let made = up.table(&["create", "carts", "--partition-key", "hash-tag", "--shards", "4", "--wait"], "");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let batch = |node: usize, name: &str, operations: Value| {
        let header = if name.is_empty() { String::new() } else { format!("idempotency-key: {name}\r\n") };
        let body = json!({ "operations": operations }).to_string();
        up.ask(node, "POST", "/v1/tables/carts/batch", &header, &body)
    };
    for node in 0..3 {
        let tag = format!("{{{node}}}");
        let key = |name: &str| format!("{tag}{name}");
        let operations = json!([
            { "operation": "put", "key": key("lines"), "json": ["book"], "if_absent": true, "ttl_ms": 600_000 },
            { "operation": "add", "key": key("count"), "by": 3 },
            { "operation": "append", "key": key("log"), "value": { "base64": "/w==" } },
            { "operation": "read", "key": key("count") },
            { "operation": "delete", "key": key("none") },
        ]);
        let done = batch(node, &format!("first-{node}"), operations.clone());
        assert_eq!(done.status, 200, "{}", done.body);
        let results = &done.body["results"];
        assert_eq!((&results[1]["number"], &results[3]["former"]["value"]), (&json!(3), &json!("3")));
        assert!(results[0]["expires_ms"].as_u64().is_some() && results[4]["existed"] == json!(false));
        let again = batch((node + 1) % 3, &format!("first-{node}"), operations.clone());
        assert_eq!(again.body, done.body, "the first answer, from another node");
        let other =
            batch(node, &format!("first-{node}"), json!([{ "operation": "delete", "key": key("log") }]));
        assert_eq!(other.error(), (422, "request_id_taken"));
        let not_met = batch(node, "", operations);
        assert_eq!(not_met.error(), (412, "not_met"), "{}", not_met.body);
        assert!(not_met.message().contains("operation 0"), "{}", not_met.body);
        let refused = batch(
            node,
            "",
            json!([{ "operation": "delete", "key": key("count") }, { "operation": "add", "key": key("lines"), "by": 1 }]),
        );
        assert_eq!(refused.error(), (409, "refused"), "{}", refused.body);
        let path = format!("/v1/tables/carts/keys/%7B{node}%7Dcount");
        assert_eq!(
            up.ask(node, "GET", &path, "", "").body,
            json!(3),
            "nothing of a batch that is refused is done"
        );
    }
    let two = batch(
        0,
        "",
        json!([{ "operation": "delete", "key": "{a}x" }, { "operation": "delete", "key": "{b}y" }]),
    );
    assert_eq!(two.error(), (400, "invalid"));
    assert!(two.message().contains("{a}x") && two.message().contains("{b}y"), "{}", two.message());
    let many = vec![json!({ "operation": "delete", "key": "a" }); 1_001];
    assert_eq!(batch(0, "", json!(many)).error(), (413, "too_large"));
    let half = "x".repeat(600_000);
    let large = json!([
        { "operation": "put", "key": "{a}x", "value": half }, { "operation": "put", "key": "{a}y", "value": half }
    ]);
    assert_eq!(batch(0, "", large).error(), (413, "too_large"));
    assert_eq!(batch(0, "", json!([])).error(), (400, "malformed"));
}

#[test]
fn a_scan_finds_what_its_filter_wants_and_a_table_of_json_takes_nothing_else() {
    let up = Up::start();
    let made = up.table(&["create", "parts", "--values", "json", "--shards", "4", "--wait"], "");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let shown = up.table(&["show", "parts"], "");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("json") && text.ends_with("index          none\n"), "{text}");
    let indexed = up.table(&["index", "create", "parts", "by-size", "--field", "size", "--wait"], "");
    assert!(indexed.status.success(), "{indexed:?}");
    let shown = up.table(&["show", "parts"], "");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("index          by-size of field size: ready, 4 of 4 shards are ready"), "{text}");
    let shown = up.table(&["show", "parts", "--json"], "");
    let told: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!((&told["name"], &told["indexes"][0]["field"]), (&json!("parts"), &json!("size")), "{told}");
    let rows: Vec<Value> = (0..900)
        .map(|number| {
            let section = if number % 3 == 0 { "net" } else { "web" };
            json!({ "key": format!("p{number:03}"), "json": { "section": section, "size": number } })
        })
        .collect();
    let put = up.ask(0, "POST", "/v1/tables/parts/put", "", &json!({ "rows": rows }).to_string());
    assert_eq!(put.status, 200, "{}", put.body);
    for node in 0..3 {
        for limit in [7, 1_000] {
            let (mut keys, mut token) = (Vec::new(), String::new());
            loop {
                let filter = "section+=+%22net%22%20and%20(size%3E=300)";
                let path =
                    format!("/v1/tables/parts/rows?keys_only=true&limit={limit}&filter={filter}{token}");
                let page = up.ask(node, "GET", &path, "", "");
                assert_eq!(page.status, 200, "{}", page.body);
                let found = page.body["rows"].as_array().unwrap();
                assert!(found.len() <= limit && found.iter().all(|row| row["value"].is_null()));
                keys.extend(found.iter().map(|row| row["key"].as_str().unwrap().to_owned()));
                match page.body["next"].as_str() {
                    Some(next) => token = format!("&token={next}"),
                    None => break,
                }
            }
            keys.sort_unstable();
            let expected: Vec<String> =
                (300..900).filter(|number| number % 3 == 0).map(|number| format!("p{number:03}")).collect();
            assert_eq!(keys, expected, "each once");
        }
    }
    let scanned = up.table(&["scan", "parts", "--filter", "size < 3 or size = 7.0", "--json"], "");
    assert_eq!(String::from_utf8_lossy(&scanned.stdout).lines().count(), 4, "{scanned:?}");
    let bad = up.table(&["scan", "parts", "--filter", "size > "], "");
    let said = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(bad.status.code() == Some(2) && said.contains("character 8"), "{said}");

    let refused = up.ask(0, "PUT", "/v1/tables/parts/keys/x", "", "{\"a\": x}");
    assert_eq!(refused.error(), (400, "invalid"), "{}", refused.body);
    assert!(refused.message().contains("column 7"), "{}", refused.body);
    let operations = json!({ "operations": [{ "operation": "put", "key": "x", "value": "no" }] }).to_string();
    assert_eq!(up.ask(1, "POST", "/v1/tables/parts/batch", "", &operations).error(), (400, "invalid"));
    let rows = json!({ "rows": [{ "key": "x", "value": "no" }, { "key": "y", "value": "1" }] }).to_string();
    let put = up.ask(2, "POST", "/v1/tables/parts/put", "", &rows);
    let outcomes = &put.body["results"];
    assert_eq!((put.status, &outcomes[0]["error"]["kind"]), (207, &json!("invalid")), "{}", put.body);
    assert_eq!(outcomes[1]["outcome"], "written");
    let mut resp = TcpStream::connect(&up.resp).unwrap();
    resp.write_all(b"AUTH parts x\r\nSET x no\r\nAPPEND y 1\r\nINCR y\r\nQUIT\r\n").unwrap();
    let mut heard = String::new();
    resp.read_to_string(&mut heard).unwrap();
    let lines: Vec<&str> = heard.lines().collect();
    assert!(lines[1].starts_with("-ERR") && lines[1].contains("not JSON"), "{heard}");
    assert!(lines[2].starts_with("-ERR") && lines[3] == ":2", "{heard}");
    let none = up.table(&["create", "other", "--values", "xml"], "");
    assert!(String::from_utf8_lossy(&none.stderr).contains("choose one of bytes, json"), "{none:?}");
}

#[test]
fn rows_of_files_are_loaded_and_those_that_cannot_be_are_named() {
    let up = Up::start();
    let mut file = String::from("id,name,size\n");
    for number in 0..3_000 {
        file += &format!("{number},name {number},{}\n", number * 2);
    }
    file += "7,name anew,1\n8,too few\n9,name,many\n";
    let load = |more: &[&str], input: &str| {
        let output = up.table(&[&["load", "stock", "--json"], more].concat(), input);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code().unwrap(), told, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let csv = ["--format", "csv", "--key", "id", "--number", "size"];
    let (code, told, said) = load(&[&csv[..], &["--dry-run"]].concat(), &file);
    assert_eq!(
        (code, &told["loaded"], &told["rows"], &told["failed"]),
        (4, &json!(0), &json!(3_001), &json!(2)),
        "{said}"
    );
    let (code, told, said) = load(&csv, &file);
    assert_eq!((code, &told["loaded"], &told["failed"]), (4, &json!(3_001), &json!(2)), "{said}");
    assert_eq!(
        (&told["failures"][0]["line"], &told["failures"][1]["line"]),
        (&json!(3_003), &json!(3_004)),
        "{told}"
    );
    let row = up.ask(1, "GET", "/v1/tables/stock/keys/7", "", "");
    assert_eq!(row.body, json!({ "id": "7", "name": "name anew", "size": 1 }), "the last row of a key stays");
    let scanned = up.table(&["scan", "stock", "--limit", "5000", "--json"], "");
    let rows = String::from_utf8(scanned.stdout).unwrap();
    assert_eq!(rows.lines().count(), 3_000);

    let made = up.table(&["create", "copy", "--shards", "3", "--wait"], "");
    assert!(made.status.success(), "{made:?}");
    let copied = up.table(&["load", "copy", "--format", "jsonl"], &rows);
    assert!(String::from_utf8_lossy(&copied.stdout).starts_with("loaded 3000 rows"), "{copied:?}");
    let again = up.table(&["scan", "copy", "--limit", "5000", "--filter", "size = 2"], "");
    assert!(String::from_utf8_lossy(&again.stdout).starts_with("1\t{"), "{again:?}");
    let none = up.table(&["load", "none", "--format", "jsonl"], &rows);
    assert!(
        none.status.code() == Some(4) && String::from_utf8_lossy(&none.stderr).contains("no table none"),
        "{none:?}"
    );
    let wrong = up.table(&["load", "copy"], "");
    assert!(
        wrong.status.code() == Some(2) && String::from_utf8_lossy(&wrong.stderr).contains("--format"),
        "{wrong:?}"
    );
}

#[test]
fn a_write_of_a_row_is_foreseen_and_done_once_under_one_key() {
    let up = Up::start();
    let put = ["put", "stock", "apple", "3"];
    let dry = up.told(&[&put[..], &["--dry-run", "--if-absent"]].concat());
    let key = json!("apple");
    assert_eq!(
        dry,
        json!({ "key": key, "dry_run": true, "would": "put", "existed": false, "current_version": null })
    );
    let (code, _, err) = up.said(&[&put[..], &["--dry-run", "--if-version", "*"]].concat());
    assert!(code == 4 && err.contains("no row of that key"), "{err}");
    assert_eq!(up.told(&["delete", "stock", "apple", "--dry-run"])["would"], "nothing");
    assert_eq!(up.said(&["get", "stock", "apple"]).0, 4, "nothing was written");

    let named = ["--idempotency-key", "order 17"];
    let done = up.told(&[&put[..], &named].concat());
    assert_eq!(up.told(&[&put[..], &named].concat()), done, "the first answer");
    let (code, _, err) = up.said(&[&["put", "stock", "apple", "4", "--json"], &named[..]].concat());
    let refused: Value = serde_json::from_str(&err).unwrap();
    assert_eq!((code, &refused["error"]["kind"]), (4, &json!("request_id_taken")));
    let help = refused["error"]["help"].as_str().unwrap();
    assert!(!help.is_empty() && refused["error"]["message"].as_str().unwrap().ends_with(help), "{err}");

    let version = done["version"].as_str().unwrap();
    let dry = up.told(&["delete", "stock", "apple", "--dry-run", "--if-version", version]);
    assert_eq!((&dry["would"], &dry["current_version"]), (&json!("delete"), &json!(version)));
    let (code, out, _) = up.said(&[&put[..], &["--dry-run"]].concat());
    assert!(
        code == 0
            && out.contains(&format!("1 byte to key \"apple\" of table stock, which has version {version}"))
    );
    let (code, _, err) = up.said(&[&put[..], &["--dry-run", "--if-absent"]].concat());
    assert!(code == 4 && err.contains(version), "{err}");
    assert_eq!(up.told(&["get", "stock", "apple"])["version"], json!(version), "nothing was written");
    assert_eq!(up.said(&["put", "none", "apple", "3", "--dry-run"]).0, 4, "there is no such table");
    for wrong in [["--if-version", "x"], ["--idempotency-key", ""]] {
        assert_eq!(up.said(&[&put[..], &wrong].concat()).0, 2, "{wrong:?}");
    }
}

#[test]
fn a_row_of_any_bytes_is_read_and_reads_can_be_monotonic() {
    let up = Up::start();
    let bytes = json!({ "base64": "/wA=" });
    let rows = json!({ "rows": [{ "key": bytes, "value": bytes }, { "key": "apple", "value": "3" }] });
    assert_eq!(up.post(0, "put", &rows).status, 200);
    let found = up.told(&["get", "stock", "ff00", "--hex"]);
    assert_eq!((&found["key"], &found["value"]), (&bytes, &bytes));
    assert_eq!(up.told(&["scan", "stock", "--hex", "--prefix", "ff", "--keys-only"])["key"], bytes);
    assert_eq!(up.told(&["delete", "stock", "ff00", "--hex"])["existed"], json!(true));
    let (code, _, err) = up.said(&["get", "stock", "ff00", "--hex"]);
    assert!(code == 4 && err.contains("has no key 0xff00, read as of "), "{err}");
    assert_eq!(up.said(&["get", "stock", "ff0", "--hex"]).0, 2, "no bytes have three digits");

    let first = up.told(&["get", "stock", "apple"]);
    assert!(first["age_ms"].is_u64(), "{first}");
    let applied = first["applied"].as_str().unwrap();
    for consistency in ["any", "60000", "linearizable"] {
        let read = ["get", "stock", "apple", "--consistency", consistency, "--at-least", applied];
        assert_eq!(up.told(&read)["value"], "3", "{consistency}");
    }
    let (code, out, err) = up.said(&["get", "stock", "apple"]);
    assert_eq!((code, out.as_str()), (0, "3"));
    let version = first["version"].as_str().unwrap();
    assert!(err.starts_with(&format!("version {version}, read as of ")) && err.contains(" ms old"), "{err}");
    let ahead = ["get", "stock", "apple", "--consistency", "any", "--at-least", "1-999999999"];
    let (code, _, err) = up.said(&ahead);
    assert_eq!(code, 3, "no replica has that yet: {err}");
    assert_eq!(up.said(&["get", "stock", "apple", "--at-least", "17"]).0, 2);
}

#[test]
fn a_list_that_its_limit_cuts_says_so_and_goes_on_from_its_token() {
    let up = Up::start();
    let row = |number: usize| json!({ "key": format!("k{number:03}"), "json": { "n": number } });
    let rows: Vec<Value> = (0..150).map(row).collect();
    assert_eq!(up.post(0, "put", &json!({ "rows": rows })).status, 200);
    up.told(&["index", "create", "stock", "by-n", "--field", "n", "--wait", "--timeout", "60"]);
    // The name of the flag of before.
    up.told(&["index", "create", "stock", "by-n", "--field", "n", "--wait", "--wait-s", "60"]);
    for list in [&["scan", "stock"][..], &["index", "query", "stock", "by-n", "--from", "0"]] {
        let (code, out, err) = up.said(&[list, &["--json"]].concat());
        assert_eq!(code, 0, "{err}");
        let first: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let next: Value = serde_json::from_str(&err).unwrap_or_else(|_| panic!("{list:?}: {err}"));
        let token = next["next"].as_str().unwrap();
        let rest = up.lines(&[list, &["--limit", "1000", "--token", token]].concat());
        let keys: BTreeSet<&str> =
            first.iter().chain(&rest).map(|row| row["key"].as_str().unwrap()).collect();
        assert_eq!((first.len(), rest.len(), keys.len()), (100, 50, 150), "{list:?}");
        let (code, out, err) = up.said(&[list, &["--limit", "7"]].concat());
        assert_eq!((code, out.lines().count()), (0, 7), "{out}");
        let token = err.split("--token ").nth(1).unwrap_or_else(|| panic!("{err}"));
        let token = token.split(';').next().unwrap();
        let rest = up.lines(&[list, &["--limit", "1000", "--token", token]].concat());
        assert_eq!(rest.len(), 143, "{list:?}");
        let (_, out, err) = up.said(&[list, &["--limit", "1000"]].concat());
        assert_eq!((out.lines().count(), err.as_str()), (150, ""), "{list:?}");
    }
}

#[test]
fn a_write_whose_connection_breaks_may_be_done_and_its_key_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // It takes each request, and answers none.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().read(&mut [0; 4_096]);
        }
    });
    let error = |arguments: &[&str]| {
        let mut command = partage();
        command.args(["--json", "table"]).args(arguments).env("PARTAGE_TABLE_NODE", &address);
        let output = command.output().unwrap();
        let told: Value = serde_json::from_slice(&output.stderr).unwrap();
        (output.status.code().unwrap(), told["error"].clone())
    };
    for write in [&["put", "stock", "apple", "3"][..], &["delete", "stock", "apple"]] {
        let (code, told) = error(&[write, &["--idempotency-key", "order 17"]].concat());
        assert_eq!((code, &told["kind"]), (1, &json!("unknown_outcome")), "{told}");
        let message = told["message"].as_str().unwrap();
        assert!(message.contains("outcome is unknown") && message.contains("'order 17'"), "{message}");
        assert!(message.ends_with(told["help"].as_str().unwrap()), "{message}");
        let (_, told) = error(write);
        assert!(told["help"].as_str().unwrap().contains("--idempotency-key '"), "{told}");
    }
    for read in
        [&["get", "stock", "apple"][..], &["put", "stock", "apple", "3", "--dry-run"], &["scan", "stock"]]
    {
        let (code, told) = error(read);
        assert_eq!((code, &told["kind"]), (3, &json!("not_reachable")), "{told}");
    }
}
