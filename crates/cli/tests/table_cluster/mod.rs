//! A coordinator and nodes of tables as processes of their own, and commands against them: for all test programs of tables.

#![allow(dead_code, reason = "each test program uses a part")]

#[path = "../process/mod.rs"]
pub mod process;
pub mod tools;

pub use process::{Process, Said, partage};

use process::{PATIENCE, SETTINGS};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Where a node listens for Redis' protocol that is given no port.
const ANY_PORT: &str = "127.0.0.1:0";

/// An answer over HTTP.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let value = |line: &'_ str| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().len())
        };
        self.head
            .lines()
            .find_map(|line| value(line).map(|length| &line.trim_end()[line.trim_end().len() - length..]))
    }
}

pub fn ask(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    ask_within(Duration::from_secs(20), address, method, path, headers, body)
}

/// The same, without an answer after so long.
pub fn ask_within(
    patience: Duration,
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(patience))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    head += &format!("content-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or_else(|| std::io::Error::other("the answer has no end of its head"))?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::other("no status"))?;
    Ok(Answer { status, head, body: answer[end + 4..].to_vec() })
}

/// The status and the JSON of an answer over HTTP; none if there was none.
pub fn ask_json(address: &str, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
    let answer = ask(address, method, path, &[], body.as_bytes()).ok()?;
    Some((answer.status, serde_json::from_slice(&answer.body).unwrap_or(Value::Null)))
}

#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        match look() {
            Ok(found) => return found,
            Err(why) if Instant::now() >= until => panic!("{what}: {why}"),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// A key as a path has it.
pub fn coded(key: &[u8]) -> String {
    key.iter().map(|byte| format!("%{byte:02X}")).collect()
}

pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// A node of tables.
pub struct Node {
    pub process: Process,
    /// The address for HTTP and gRPC.
    pub address: String,
    /// The address for Redis' protocol, if it listens for that.
    pub resp: String,
    /// The folder with its data.
    pub data_dir: PathBuf,
    flags: Vec<String>,
    environment: Vec<(String, PathBuf)>,
}

/// A coordinator and some nodes: `t1`, `t2` and so on.
pub struct Cluster {
    pub nodes: Vec<Node>,
    coordinator: Process,
    address: String,
    dir: TempDir,
}

impl Cluster {
    pub fn start(nodes: usize) -> Cluster {
        Cluster::with_flags(&vec![&[][..]; nodes])
    }

    /// One node for each list of flags.
    pub fn with_flags(nodes: &[&[&str]]) -> Cluster {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("coordinator.toml"), SETTINGS).unwrap();
        let (coordinator, address) = coordinator(dir.path(), "127.0.0.1:0");
        let mut cluster = Cluster { nodes: Vec::new(), coordinator, address, dir };
        for flags in nodes {
            let data_dir = cluster.path(&Cluster::id(cluster.nodes.len()));
            cluster.add(flags, data_dir);
        }
        cluster
    }

    /// Where the coordinator listens.
    pub fn coordinator(&self) -> &str {
        &self.address
    }

    /// Ends the coordinator as `kill -9` does.
    pub fn kill_coordinator(&mut self) {
        self.coordinator.kill();
    }

    /// Starts the coordinator again, with what it has stored, where it was.
    pub fn start_coordinator_again(&mut self) {
        (self.coordinator, self.address) = coordinator(self.dir.path(), &self.address);
        eventually("the coordinator answers", || match ask(&self.address, "GET", "/v1/status", &[], &[]) {
            Ok(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    /// Starts another node, which has its data in that folder.
    pub fn add(&mut self, flags: &[&str], data_dir: PathBuf) {
        self.add_in(flags, data_dir, Vec::new());
    }

    /// The same, with these variables in its environment.
    pub fn add_in(&mut self, flags: &[&str], data_dir: PathBuf, environment: Vec<(String, PathBuf)>) {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let node = self.node(self.nodes.len(), "127.0.0.1:0", flags, data_dir, environment);
        self.nodes.push(node);
    }

    /// The same, which listens there.
    pub fn add_at(&mut self, listen: &str, flags: &[&str], data_dir: PathBuf) {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let node = self.node(self.nodes.len(), listen, flags, data_dir, Vec::new());
        self.nodes.push(node);
    }

    /// The command by which a node of that name starts.
    pub fn serve(&self, id: &str, listen: &str, data_dir: &Path) -> Command {
        let arguments = ["table", "serve", "--id", id, "--listen", listen, "--join", &self.address];
        partage(&[&arguments[..], &["--data-dir", data_dir.to_str().unwrap()]].concat())
    }

    fn node(
        &self,
        number: usize,
        listen: &str,
        flags: Vec<String>,
        data_dir: PathBuf,
        environment: Vec<(String, PathBuf)>,
    ) -> Node {
        let mut command = self.serve(&Cluster::id(number), listen, &data_dir);
        command.args(&flags).envs(environment.iter().map(|(name, value)| (name, value)));
        let (process, said) = Process::start(command, &self.log_of(number));
        let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
        Node { process, address: text("address"), resp: text("resp"), data_dir, flags, environment }
    }

    /// The name of the node with that number, from 0.
    pub fn id(number: usize) -> String {
        format!("t{}", number + 1)
    }

    fn log_of(&self, number: usize) -> PathBuf {
        self.path(&format!("{}.log", Cluster::id(number)))
    }

    /// What the node has logged, in all its starts.
    pub fn logged(&self, number: usize) -> String {
        std::fs::read_to_string(self.log_of(number)).unwrap()
    }

    /// What the node measures.
    pub fn metrics(&self, number: usize) -> String {
        let answer = ask(&self.nodes[number].address, "GET", "/partage/worker/metrics", &[], &[]).unwrap();
        String::from_utf8(answer.body).unwrap()
    }

    /// Starts a node again that was killed, with what it has stored.
    pub fn start_again(&mut self, number: usize) {
        let Node { address, resp, flags, data_dir, environment, .. } = &self.nodes[number];
        // Clients of Redis find it where it was, too.
        let where_it_was = |flag: &String| if flag == ANY_PORT { resp.clone() } else { flag.clone() };
        let flags = flags.iter().map(where_it_was).collect();
        let (data_dir, environment) = (data_dir.clone(), environment.clone());
        self.nodes[number] = self.node(number, address, flags, data_dir, environment);
    }

    /// The same, with these flags instead of those that it had.
    pub fn start_again_with(&mut self, number: usize, flags: &[&str]) {
        self.nodes[number].flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.start_again(number);
    }

    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.address.clone()).collect()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A folder for backups.
    pub fn folder(&self) -> String {
        self.path("backups").to_str().unwrap().to_owned()
    }

    /// A command; any node may be asked.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = partage(arguments);
        command.env("PARTAGE_COORDINATOR", &self.address);
        command.env("PARTAGE_TABLE_NODE", self.addresses().join(","));
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Said {
        Said::of(self.command(arguments))
    }

    /// `partage table …` with `--json`.
    pub fn table(&self, arguments: &[&str]) -> Said {
        self.run(&[&["table"], arguments, &["--json"]].concat())
    }

    #[track_caller]
    pub fn create(&self, arguments: &[&str]) {
        let said = self.run(&[&["table", "create"], arguments, &["--wait"]].concat());
        assert_eq!(said.code, Some(0), "{said:?}");
    }

    #[track_caller]
    pub fn backup(&self, table: &str) -> Value {
        self.table(&["backup", "create", table, &self.folder()]).json()
    }

    /// Puts a row, and again until a node has done it.
    #[track_caller]
    pub fn put(&self, table: &str, key: &[u8], query: &str, value: &[u8]) {
        put(&self.nodes[0].address, table, key, query, value);
    }

    pub fn delete(&self, table: &str, key: &[u8]) {
        let path = format!("/v1/tables/{table}/keys/{}", coded(key));
        eventually("a row is deleted", || match ask(&self.nodes[0].address, "DELETE", &path, &[], &[]) {
            Ok(answer) if answer.status == 204 => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }

    pub fn get(&self, table: &str, key: &[u8]) -> Answer {
        let path = format!("/v1/tables/{table}/keys/{}", coded(key));
        eventually("a row is read", || match ask(&self.nodes[0].address, "GET", &path, &[], &[]) {
            Ok(answer) if answer.status == 200 => Ok(answer),
            // That of a table that the node does not know yet has no place in a log.
            Ok(answer) if answer.status == 404 && answer.header("partage-applied").is_some() => Ok(answer),
            other => Err(format!("{other:?}")),
        })
    }

    /// All rows of a table.
    pub fn rows(&self, table: &str) -> Rows {
        let (mut rows, mut token) = (Rows::new(), String::new());
        loop {
            let path = format!("/v1/tables/{table}/rows?limit=1000{token}");
            let page = eventually("a page", || match ask(&self.nodes[0].address, "GET", &path, &[], &[]) {
                Ok(answer) if answer.status == 200 => Ok(answer.json()),
                other => Err(format!("{other:?}")),
            });
            let row = |row: &Value| (bytes(&row["key"]), bytes(&row["value"]));
            rows.extend(page["rows"].as_array().unwrap().iter().map(row));
            match page["next"].as_str() {
                Some(next) => token = format!("&token={next}"),
                None => return rows,
            }
        }
    }

    /// What the coordinator answers to a `GET`.
    pub fn told(&self, path: &str) -> Value {
        ask(&self.address, "GET", path, &[], &[]).unwrap().json()
    }

    pub fn shards(&self, table: &str) -> Vec<Value> {
        self.told(&format!("/v1/keyspaces/{table}/shards"))["shards"].as_array().unwrap().clone()
    }

    pub fn keyspaces(&self) -> Vec<String> {
        self.told("/v1/keyspaces")["keyspaces"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Of the map of a table: what a person gives who gives data up.
    pub fn generation(&self, table: &str) -> String {
        let said = self.run(&["shard", "force-join", table, "1", "--node", "t1", "--generation", "0"]);
        let after =
            said.err.split_once(&format!("keyspace {table} is at ")).map(|(_, after)| after.to_owned());
        let after = after.unwrap_or_else(|| "0".to_owned());
        after.chars().take_while(char::is_ascii_digit).collect()
    }

    /// A check of the table compares everything, and nothing differs.
    #[track_caller]
    pub fn nothing_differs(&self, table: &str) {
        eventually("a check finds nothing", || {
            let said = self.table(&["check", table]);
            assert_ne!(said.code, Some(1), "{said:?}");
            if said.code == Some(0) { Ok(()) } else { Err(format!("{said:?}")) }
        });
    }

    /// Each node leads as many shards of the table as another, or one more or less; and it stays so.
    #[track_caller]
    pub fn evenly_led(&self, table: &str) {
        eventually("leads are even", || {
            let mut leads = vec![0_usize; self.nodes.len()];
            self.shards(table).iter().try_for_each(|shard| {
                let leader = self.leader_of(shard).ok_or_else(|| shard.to_string())?;
                leads[leader] += 1;
                Ok::<_, String>(())
            })?;
            match leads.iter().max().zip(leads.iter().min()) {
                Some((most, least)) if most - least <= 1 => Ok(()),
                _ => Err(format!("{leads:?}")),
            }
        });
    }

    /// The number of the node that leads a shard, if one does.
    fn leader_of(&self, shard: &Value) -> Option<usize> {
        let leader = shard["replicas"].as_array()?.iter().find(|replica| replica["role"] == "leader")?;
        let number: usize = leader["node"].as_str()?[1..].parse().ok()?;
        Some(number - 1)
    }

    /// The number of the node that leads a shard.
    pub fn leader(&self, shard: &Value) -> usize {
        self.leader_of(shard).unwrap()
    }
}

/// Starts a coordinator that has its settings and its state in that folder; says where it listens.
fn coordinator(folder: &Path, listen: &str) -> (Process, String) {
    let [file, state] = ["coordinator.toml", "state"].map(|name| folder.join(name));
    let arguments = ["coordinator", "--listen", listen, "--data-dir", state.to_str().unwrap()];
    let command = partage(&[&arguments[..], &["--config", file.to_str().unwrap()]].concat());
    let (process, said) = Process::start(command, &folder.join("coordinator.log"));
    (process, said["coordinator"].as_str().unwrap().to_owned())
}

pub fn put(address: &str, table: &str, key: &[u8], query: &str, value: &[u8]) {
    let path = format!("/v1/tables/{table}/keys/{}{query}", coded(key));
    eventually("a row is put", || match ask(address, "PUT", &path, &[], value) {
        Ok(answer) if answer.status == 204 => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Bytes as JSON has them: text, base64 or hex.
pub fn bytes(value: &Value) -> Vec<u8> {
    let text: partage_wire::table::BytesText = serde_json::from_value(value.clone()).unwrap();
    text.bytes().unwrap()
}

/// Bytes that do not compress, others for each seed.
pub fn noise(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..count).map(|_| next() as u8).collect()
}

/// All files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

/// Flips a bit in the middle of a file.
pub fn flip(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(file, bytes).unwrap();
}
