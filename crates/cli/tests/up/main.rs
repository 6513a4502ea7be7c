//! `partage up` as its user sees it: the real binary, real requests, a node that dies.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of a process waits by the clock")]

mod shuffles;

use partage_wire::proto::{self, admin_client::AdminClient, change::Kind};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running `up`, stopped when dropped.
struct Up {
    process: Child,
    at: Value,
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

impl Up {
    fn start() -> Up {
        Up::with(&["--empty-table"])
    }

    fn with(flags: &[&str]) -> Up {
        let mut up = partage();
        up.args(["up", "--port", "0", "--json"]).args(flags);
        let mut process = up.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Up { at: serde_json::from_str(&line).unwrap(), process }
    }

    fn address(&self, of: &str) -> &str {
        self.at[of].as_str().unwrap()
    }

    fn ask(&self, of: &str, method: &str, path: &str) -> (u16, String) {
        request(self.address(of), method, path)
    }

    fn cli(&self, arguments: &[&str]) -> (i32, String) {
        let output = partage().args(arguments).args(["--coordinator", self.address("coordinator")]).output();
        let output = output.unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn request(address: &str, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\npartage-request: 1\r\ncontent-length: 0\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "it never came to be that {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The commands of the README's tour, one block after the other, with the addresses of this `up`.
fn blocks_of_the_tour(up: &Up) -> Vec<String> {
    let readme = include_str!("../../../../README.md");
    let tour = readme.split("\n## ").find(|part| part.starts_with("Five minutes")).unwrap();
    let blocks = tour.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let node = up.at["dataset_nodes"][0]["address"].as_str().unwrap();
    let here = |block: &str| {
        block
            .replace("127.0.0.1:7401", up.address("router"))
            .replace("127.0.0.1:7402", up.address("control"))
            .replace("127.0.0.1:7481", node)
    };
    blocks.map(here).collect()
}

/// What a script of the tour prints.
fn types(up: &Up, script: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_partage");
    let output = Command::new("bash")
        .args(["-uc", &format!("partage() {{ {binary} \"$@\"; }}\n{script}")])
        .env("PARTAGE_COORDINATOR", up.address("coordinator"))
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(!said.concat().contains("error:"), "{script}\n{}", said.concat());
    said.concat()
}

/// Every step of the README's tour does what the README says of it. Where it says "after a moment" that is waited for.
#[test]
fn the_tour_of_the_readme_works_step_by_step() {
    let up = Up::start();
    let blocks = blocks_of_the_tour(&up);
    let [look, kill, versions, join, drain] = blocks.as_slice() else { panic!("{blocks:#?}") };

    let said = types(&up, look);
    assert!(
        said.contains("\"package\":\"libc6\"") && said.contains("libc6 of packages is in shard"),
        "{said}"
    );

    let said = types(&up, kill);
    assert!(said.contains("d2 is dead") && said.contains("\"package\":\"libc6\""), "{said}");
    eventually("the shards have two replicas again", || {
        let status: Value = serde_json::from_str(&up.cli(&["status", "--json"]).1).unwrap();
        status["nodes"]["down"] == 1 && status["short"] == 0 && status["shards"]["unserved"] == 0
    });

    let [back, ask, forth]: [&str; 3] = versions.lines().collect::<Vec<_>>().try_into().unwrap();
    types(&up, back);
    eventually("clients get the earlier version", || types(&up, ask).contains("partage-version: day-1"));
    types(&up, forth);
    eventually("clients get the latest version", || types(&up, ask).contains("partage-version: day-2"));

    let (node, plans) = join.split_once('\n').unwrap();
    assert_eq!(node, "partage node --id n4 &");
    let mut n4 = partage();
    n4.args(["node", "--id", "n4"]).env("PARTAGE_COORDINATORS", up.address("coordinator"));
    let n4 = Up { process: n4.stderr(Stdio::null()).spawn().unwrap(), at: Value::Null };
    eventually("a plan for notes waits for a person", || up.cli(&["plan", "list"]).1.contains("suggested"));
    let said = types(&up, plans);
    assert!(said.contains("of notes by rebalance, suggested: ") && said.contains("approved"), "{said}");

    let (add, rest) = drain.split_once('\n').unwrap();
    types(&up, add);
    eventually("the new node is up", || {
        let status: Value = serde_json::from_str(&up.cli(&["status", "--json"]).1).unwrap();
        status["nodes"]["up"] == 13 && status["short"] == 0
    });
    let said = types(&up, rest);
    assert!(!said.contains("blocked") && said.contains("drain d1"), "{said}");
    eventually("the drained node is empty", || {
        up.cli(&["status"]).1.contains("d1 (maintenance): empty: safe to stop")
    });
    drop(n4);
}

#[test]
fn up_serves_real_lookups_through_a_death_a_join_and_a_drain() {
    let up = Up::start();
    assert_eq!(up.at["nodes"].as_array().unwrap().len(), 3);
    assert_eq!(up.at["dataset_nodes"].as_array().unwrap().len(), 3);
    assert_eq!(up.at["shuffle"].as_array().unwrap().len(), 3);
    let flight = format!("grpc+tcp://{}", up.at["shuffle"][0].as_str().unwrap());
    assert_eq!(up.at["flight"][0], flight, "the program is built with Arrow Flight");
    let libc6 = || {
        let (status, body) = up.ask("router", "GET", "/packages/libc6");
        status == 200 && serde_json::from_str::<Value>(&body).unwrap()["package"] == "libc6"
    };
    assert!(libc6());
    assert_eq!(up.ask("router", "GET", "/packages/no-such-package").0, 404);
    assert_eq!(up.ask("router", "GET", "/no-such-keyspace/x").0, 404);
    assert_eq!(up.ask("router", "PUT", "/packages/libc6").0, 405, "a dataset is written by batch jobs");

    assert_eq!(up.ask("control", "POST", "/kill/d2").0, 200);
    for _ in 0..20 {
        assert!(libc6(), "a lookup fails while a node is dead");
    }
    eventually("the dead node's shards are placed again", || {
        let (_, status) = up.cli(&["status", "--json"]);
        let status: Value = serde_json::from_str(&status).unwrap();
        status["nodes"]["down"] == 1 && status["short"] == 0 && status["shards"]["unserved"] == 0
    });

    assert_eq!(up.ask("control", "POST", "/add/n9").0, 200);
    assert_eq!(up.ask("control", "POST", "/add/n9").0, 409);
    assert_eq!(up.ask("control", "POST", "/kill/n77").0, 404);
    eventually("a plan for notes waits for a person", || up.cli(&["plan", "list"]).1.contains("suggested"));

    assert_eq!(up.ask("control", "POST", "/add/d9").0, 200);
    assert_eq!(up.cli(&["node", "drain", "d1", "--dry-run"]).0, 0);
    assert_eq!(up.cli(&["node", "drain", "d1"]).0, 0);
    let moves: Value =
        serde_json::from_str(&up.cli(&["shard", "list", "packages", "--moves", "--json"]).1).unwrap();
    for row in moves["moves"].as_array().unwrap() {
        assert!(row["waits_for"].as_str().is_some_and(|what| !what.is_empty()), "{row}");
        assert!(row["stage"].is_string() && row["since_ms"].is_u64() && row["shard"].is_u64(), "{row}");
    }
    let status: Value = serde_json::from_str(&up.cli(&["status", "--json"]).1).unwrap();
    assert!(status["under_way"].is_array());
    eventually("the drained node is empty", || {
        assert!(libc6(), "a lookup fails during a drain");
        up.cli(&["status"]).1.contains("d1 (maintenance): empty: safe to stop")
    });

    let (code, told) = up.cli(&["explain", "packages", "libc6"]);
    assert_eq!(code, 0);
    assert!(told.contains("libc6 of packages is in shard") && told.contains("leader on"), "{told}");
    assert!(up.cli(&["shard", "list", "packages"]).1.contains('█'));
}

/// Which shard leaves which node, in the order of the shards.
type Leaving = BTreeSet<(String, u64, String)>;

fn leaving_by_json(answer: &Value) -> Leaving {
    let plans = answer["follows"].as_array().unwrap();
    let lines = |plan: &Value| {
        let keyspace = plan["keyspace"].as_str().unwrap().to_owned();
        let line = move |line: &Value| {
            assert!(line["reason"].as_str().unwrap().contains("n1 is being drained"), "{line}");
            let from = line["change"]["from_node"].as_str().unwrap().to_owned();
            (keyspace.clone(), line["change"]["shard"].as_u64().unwrap(), from)
        };
        plan["changes"].as_array().unwrap().iter().map(line).collect::<Vec<_>>()
    };
    plans.iter().flat_map(lines).collect()
}

fn leaving_by_grpc(answer: &proto::CommandAnswer) -> Leaving {
    let lines = |plan: &proto::Plan| {
        let keyspace = plan.keyspace.clone();
        let line = move |line: proto::Planned| match line.change.unwrap().kind.unwrap() {
            Kind::Move(change) => (keyspace.clone(), change.shard, change.from_node.unwrap()),
            other => panic!("{other:?}"),
        };
        plan.changes.clone().into_iter().map(line).collect::<Vec<_>>()
    };
    answer.follows.iter().flat_map(lines).collect()
}

#[test]
fn a_dry_run_shows_the_same_moves_through_every_door_and_none_begins() {
    let up = Up::start();
    let status = || serde_json::from_str::<Value>(&up.cli(&["status", "--json"]).1).unwrap();
    eventually("everything is placed", || {
        let now = status();
        now["short"] == 0 && now["moves"] == 0 && now["loads"] == 0
    });
    let drain = ["node", "drain", "n1", "--dry-run"];
    let told: Value = serde_json::from_str(&up.cli(&[&drain[..], &["--json"]].concat()).1).unwrap();
    let leaving = leaving_by_json(&told);
    let share = told["shares"].as_array().unwrap().iter().find(|share| share["node"] == "n1").unwrap();
    assert_eq!(share["before"], json!(leaving.len()), "all that it holds: {told}");
    assert_eq!(share["after"], 0);

    let ask = async {
        let address = format!("http://{}", up.address("coordinator"));
        let mut admin = AdminClient::connect(address).await.unwrap();
        let drain = proto::DrainNode { node: "n1".into(), reason: "maintenance".into(), max_down: None };
        let command = Some(proto::command_request::Command::DrainNode(drain));
        admin.command(proto::CommandRequest { dry_run: true, command }).await.unwrap().into_inner()
    };
    let answer = tokio::runtime::Runtime::new().unwrap().block_on(ask);
    assert_eq!(leaving_by_grpc(&answer), leaving);

    let (code, text) = up.cli(&drain);
    assert_eq!(code, 0);
    assert!(
        text.starts_with(&format!("would: drain n1 ({} replicas)\na plan for ", leaving.len())),
        "{text}"
    );
    assert!(
        text.contains("by drain, which would begin at once: ") && text.contains(" from n1 to n"),
        "{text}"
    );
    assert!(text.contains(&format!("n1 {} → 0", leaving.len())), "{text}");
    assert_eq!(status()["drains"], json!([]), "nothing has begun");
}

#[test]
fn mistakes_have_their_exit_codes() {
    let up = Up::start();
    assert_eq!(up.cli(&["keyspace", "show", "pakages"]).0, 4, "refused: no such keyspace");
    assert_eq!(up.cli(&["keyspace", "create", "a/b"]).0, 2, "wrong usage: no name");
    assert_eq!(up.cli(&["keyspace", "create", "packages"]).0, 4, "refused: there is one");
    assert_eq!(up.cli(&["shard", "move", "packages", "nonsense", "--from", "n1", "--to", "n2"]).0, 2);
    for other in ["router", "dataset"] {
        let address = match other {
            "router" => up.address("router").to_owned(),
            _ => up.at["dataset_nodes"][0]["address"].as_str().unwrap_or_default().to_owned(),
        };
        if address.is_empty() {
            continue;
        }
        let said = partage().args(["status", "--coordinator", &address]).output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(2), "{text}");
        assert!(text.contains(other) && text.contains("--coordinator HOST:PORT"), "{text}");
    }
    for other in ["router", "coordinator"] {
        let arguments = ["dataset", "rollback", "packages", "day-1", "--node", up.address(other)];
        let said = partage().args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.code() == Some(2) && text.contains("is no dataset node"), "{text}");
    }
    for (wrong, says) in [
        (&["plan", "show", "plan-x"][..], "5 or plan-5"),
        (&["keyspace", "update", "notes"], "--replicas 2"),
        (&["shard", "split", "notes", "1", "--at", "c3"], "--at-point"),
    ] {
        let said = partage().args(wrong).args(["--coordinator", up.address("coordinator")]).output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.code() == Some(2) && text.contains(says), "{wrong:?}: {text}");
    }
    assert_eq!(up.cli(&["plan", "show", "plan-1"]), up.cli(&["plan", "show", "1"]));
    for (method, path, status) in
        [("GET", "/kill/n1", 405), ("POST", "/kill/x9", 404), ("POST", "/else", 404)]
    {
        let (told, body) = up.ask("control", method, path);
        let body: Value = serde_json::from_str(&body).unwrap();
        assert!(told == status && body["error"]["help"].is_string(), "{method} {path}: {told} {body}");
    }
    let nobody = partage().args(["status", "--coordinator", "127.0.0.1:9"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(3), "not reachable");
    let typo = partage().args(["coordinator", "--config", "/nowhere.toml"]).output().unwrap();
    assert_eq!(typo.status.code(), Some(2));
}

#[test]
fn the_next_up_in_the_same_directory_finds_nothing_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--data-dir", dir.path().to_str().unwrap()];
    let mut first = Up::with(&flags);
    let interrupt = ["-INT".to_owned(), first.process.id().to_string()];
    assert!(Command::new("kill").args(interrupt).status().unwrap().success());
    assert!(first.process.wait().unwrap().success());
    let next = Up::with(&flags);
    assert_eq!(next.ask("router", "GET", "/packages/libc6").0, 200);
    let status: Value = serde_json::from_str(&next.cli(&["status", "--json"]).1).unwrap();
    assert_eq!((&status["unrest"], &status["problems"]), (&Value::Null, &json!([])), "{status}");
}

#[test]
fn a_signal_is_heard_from_the_first_line_on() {
    let mut up = partage();
    up.args(["up", "--port", "0", "--json"]).stdout(Stdio::null());
    let mut process = up.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(process.stderr.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    let terminate = ["-TERM".to_owned(), process.id().to_string()];
    assert!(Command::new("kill").args(terminate).status().unwrap().success());
    assert!(process.wait().unwrap().success());
}

#[test]
fn one_node_serves_the_sample_and_the_second_replicas_wait_for_more() {
    let up = Up::with(&["--nodes", "1"]);
    assert_eq!(up.ask("router", "GET", "/packages/libc6").0, 200);
    let status: Value = serde_json::from_str(&up.cli(&["status", "--json"]).1).unwrap();
    assert_eq!((&status["unplaced"][0]["have"], &status["unplaced"][0]["want"]), (&1.into(), &2.into()));
    assert_eq!(up.ask("control", "POST", "/add/d2").0, 200);
    eventually("they are placed", || {
        let status: Value = serde_json::from_str(&up.cli(&["status", "--json"]).1).unwrap();
        status["short"] == 0
    });
}

/// A command of Redis, as a person types it, and the line that answers.
fn redis(address: &str, command: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "{command}\r\n").unwrap();
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    answer.read_line(&mut line).unwrap();
    if line.starts_with('$') && line.trim_end() != "$-1" {
        line.clear();
        answer.read_line(&mut line).unwrap();
    }
    line.trim_end().to_owned()
}

#[test]
fn d10_the_table_has_what_redis_clients_wrote_after_the_process_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().display().to_string();
    for round in 1..=2 {
        let mut up = Up::with(&["--data-dir", &data_dir, "--empty-table"]);
        let listeners: Vec<_> = up.at["resp"].as_array().unwrap().to_vec();
        assert_eq!(listeners.len(), 3);
        for (number, listener) in listeners.iter().enumerate() {
            let address = listener.as_str().unwrap();
            for key in 0..10 {
                let before = if round == 1 { "$-1".to_owned() } else { key.to_string() };
                assert_eq!(redis(address, &format!("GET n{number}-{key}")), before);
                assert_eq!(redis(address, &format!("SET n{number}-{key} {key}")), "+OK");
            }
            assert_eq!(redis(address, "INCR rounds"), format!(":{}", 3 * (round - 1) + number + 1));
        }
        up.process.kill().unwrap();
        up.process.wait().unwrap();
    }
}

/// The last part of what `up` says about its table, once that is loaded.
fn loaded(up: &Up) -> Value {
    let node = up.at["table_nodes"][0]["address"].as_str().unwrap();
    let mut found = Value::Null;
    eventually("the index of the table is ready", || {
        let (status, body) = request(node, "GET", "/v1/tables/inventory/indexes");
        found = serde_json::from_str::<Value>(&body).unwrap_or_default()["indexes"][0].clone();
        status == 200 && found["state"] == "ready"
    });
    found
}

/// An answer of a node of the table, once the shard is led: a leader may just have changed.
fn ask_table(up: &Up, path: &str) -> (u16, String) {
    let node = up.at["table_nodes"][0]["address"].as_str().unwrap();
    let mut answer = (0, String::new());
    eventually("the table answers", || {
        answer = request(node, "GET", &format!("/v1/tables/inventory/{path}"));
        answer.0 != 503
    });
    answer
}

/// The keys that all pages of a question have.
fn keys(up: &Up, of: &str) -> BTreeSet<String> {
    let (mut keys, mut token) = (BTreeSet::new(), String::new());
    loop {
        let (status, body) = ask_table(up, &format!("{of}limit=1000&keys_only=true{token}"));
        assert_eq!(status, 200, "{body}");
        let page: Value = serde_json::from_str(&body).unwrap();
        let rows = page["rows"].as_array().unwrap().iter();
        for key in rows.map(|row| row["key"].as_str().unwrap().to_owned()) {
            assert!(keys.insert(key.clone()), "{key} comes twice");
        }
        match page["next"].as_str() {
            Some(next) => token = format!("&token={next}"),
            None => return keys,
        }
    }
}

/// Keys of a section, by the index.
fn games(up: &Up) -> BTreeSet<String> {
    keys(up, "indexes/section?equals=games&")
}

/// A row of the table, as a node has it.
fn row(up: &Up, key: &str) -> (u16, String) {
    ask_table(up, &format!("keys/{key}"))
}

fn put_row(up: &Up, key: &str, value: &str) {
    let node = up.at["table_nodes"][0]["address"].as_str().unwrap();
    let put = partage().args(["table", "put", "inventory", key, value, "--node", node]).output().unwrap();
    assert!(put.status.success(), "{put:?}");
}

#[test]
fn the_table_has_the_package_index_also_where_loading_was_broken_off() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().display().to_string();
    let flags = ["--data-dir", &data_dir];
    let mut first = Up::with(&flags);
    eventually("loading has begun", || row(&first, "0ad").0 == 200);
    put_row(&first, "0ad", "7");
    first.process.kill().unwrap();
    first.process.wait().unwrap();

    let mut second = Up::with(&flags);
    let index = loaded(&second);
    assert_eq!((&index["name"], &index["ready"]), (&json!("section"), &index["shards"]), "{index}");
    let found = games(&second);
    assert_eq!(found.len(), 1107, "all packages of the section but 0ad, which has another value now");
    assert_eq!(row(&second, "0ad"), (200, "7".to_owned()), "what was written meanwhile stays");
    // A row of the sample gets another value, and a new one comes into the section.
    let package = row(&second, "apt");
    assert!(package.0 == 200 && package.1.contains("admin"), "{package:?}");
    put_row(&second, "bash", "8");
    put_row(&second, "zz-own", r#"{"section": "games"}"#);
    let (rows, own) = (keys(&second, "rows?"), row(&second, "zz-own"));
    second.process.kill().unwrap();
    second.process.wait().unwrap();

    // The process was killed after that was acknowledged: everything is there, and nothing of the sample comes over it.
    let third = Up::with(&flags);
    assert_eq!(loaded(&third)["ready"], index["ready"]);
    assert_eq!(keys(&third, "rows?"), rows);
    assert_eq!(row(&third, "0ad"), (200, "7".to_owned()));
    assert_eq!(row(&third, "bash"), (200, "8".to_owned()));
    assert_eq!((row(&third, "apt"), row(&third, "zz-own")), (package, own));
    let games_then = games(&third);
    assert_eq!(games_then, &found | &BTreeSet::from(["zz-own".to_owned()]));
    // And the index goes on: a row leaves the section, and another comes.
    put_row(&third, "zz-own", "9");
    put_row(&third, "zz-other", r#"{"section": "games"}"#);
    assert_eq!(games(&third), &found | &BTreeSet::from(["zz-other".to_owned()]));
}

/// The commands that `up` prints about its table, each as it stands there, once it has said that the table is loaded.
#[test]
fn the_commands_about_the_table_work_as_they_are_printed() {
    let mut command = partage();
    command.args(["up", "--port", "0"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut up = Up { process: command.spawn().unwrap(), at: Value::Null };
    let printed = BufReader::new(up.process.stdout.take().unwrap()).lines();
    let printed: Vec<String> =
        printed.map(Result::unwrap).take_while(|line| !line.contains("Ctrl-C stops")).collect();
    let mut said = BufReader::new(up.process.stderr.take().unwrap()).lines().map(Result::unwrap);
    let done = said.find(|line| line.contains("inventory")).unwrap();
    assert!(
        done.starts_with("inventory: 63436 rows are loaded; index section is ready in 6 shards"),
        "{done}"
    );

    let table = printed.iter().skip_while(|line| !line.starts_with("`inventory` is a table"));
    let table = table.take_while(|line| !line.starts_with("A shuffle takes"));
    let commands: Vec<String> = table
        .filter_map(|line| line.strip_prefix("  "))
        .map(|line| line.split("  ").next().unwrap().trim().to_owned())
        .collect();
    assert_eq!(commands.len(), 10, "{commands:#?}");
    for (number, (command, shows)) in commands
        .iter()
        .zip([
            "version ",
            "HTTP/1.1 200 OK",
            "5",
            "0ad",
            "leader on t",
            "is dead",
            "5",
            "is up at",
            "split shard",
            "served",
        ])
        .enumerate()
    {
        let has_redis = Command::new("redis-cli").arg("--version").output().is_ok();
        let command = match command.strip_prefix("redis-cli") {
            Some(_) if !has_redis => commands[0].replace("apple 3", "apple 5"),
            _ => command.clone(),
        };
        let shows = if number == 2 && !has_redis { "version " } else { shows };
        let binary = env!("CARGO_BIN_EXE_partage");
        let script = format!("partage() {{ {binary} \"$@\"; }}\n{command}");
        // A leader that has just begun reports its median with a heartbeat.
        eventually("the shard can be split", || {
            let tried = script.replace("--wait", "--dry-run");
            number != 8 || Command::new("bash").args(["-uc", &tried]).output().unwrap().status.success()
        });
        let output = Command::new("bash").args(["-uc", &script]).output().unwrap();
        let said =
            [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(output.status.success() && said.contains(shows), "$ {command}\n{said}");
    }

    let coordinator = printed.iter().find_map(|line| line.strip_prefix("  coordinator  http://")).unwrap();
    for (shards, code) in [("1", 0), ("2", 2)] {
        let create = ["table", "create", "one", "--sharding", "key-range", "--shards", shards, "--wait"];
        let made = partage().args(create).args(["--coordinator", coordinator]).output().unwrap();
        assert_eq!(made.status.code(), Some(code), "{made:?}");
    }
}
