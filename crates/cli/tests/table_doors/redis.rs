//! Redis Cluster redirects: who answers for which key, and clients that follow, also over the death of a leader.

use crate::cluster::tools::{go_program, tool};
use crate::cluster::{Cluster, eventually};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const REDIRECTS: &[&str] = &["--redis-listen", "127.0.0.1:0"];
const FORWARDS: &[&str] = &["--redis-listen", "127.0.0.1:0", "--redis-forward"];
const NO_LISTENER: &[&str] = &[];
const CARTS: &[&str] = &["carts", "--hash", "crc16", "--partition-key", "hash-tag", "--shards", "6"];

/// What a listener says to commands, as it comes.
fn say(address: &str, table: &str, commands: &[&str]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(format!("AUTH {table} x\r\n{}\r\nQUIT\r\n", commands.join("\r\n")).as_bytes())?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    let (first, rest) = said.split_once("\r\n").unwrap_or_default();
    match first {
        "+OK" => Ok(rest.strip_suffix("+OK\r\n").unwrap_or(rest).trim_end().to_owned()),
        _ => Err(std::io::Error::other(said)),
    }
}

/// Waits until a listener knows who leads each slot.
#[track_caller]
fn wait_for_slots(address: &str) {
    eventually("all slots are led", || match say(address, "carts", &["CLUSTER INFO"]) {
        Ok(info) if info.contains("cluster_state:ok") => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// A script of the tests of the protocol.
fn script(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../resp/tests/clients").join(path)
}

fn go_client() -> PathBuf {
    go_program(&script("go"), "go-redis")
}

/// A client that writes until the test ends it.
struct Survivor {
    process: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Survivor {
    fn start(mut command: Command, address: &str) -> Survivor {
        let (_, port) = address.rsplit_once(':').unwrap();
        command.args(["survive", port, "carts"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("./test setup installs it");
        let said = BufReader::new(process.stdout.take().unwrap());
        let mut survivor = Survivor { process, said };
        assert_eq!(survivor.line(), "written");
        survivor
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    #[track_caller]
    fn end(mut self) {
        self.process.stdin.take().unwrap().write_all(b"end\n").unwrap();
        let said = self.line();
        assert!(said.contains("all is well"), "{said}");
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Survivor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn clients_of_a_cluster_find_the_leaders_and_go_on_when_one_is_killed() {
    let mut cluster = Cluster::with_flags(&[REDIRECTS, REDIRECTS, REDIRECTS]);
    cluster.create(CARTS);
    let resp: Vec<String> = cluster.nodes.iter().map(|node| node.resp.clone()).collect();
    cluster.evenly_led("carts");
    for at in &resp {
        wait_for_slots(at);
    }
    let told = cluster.told("/v1/nodes");
    assert_eq!(told["nodes"][1]["resp_address"], resp[1], "{told}");
    let lines = say(&resp[0], "carts", &["CLUSTER NODES"]).unwrap();
    let myself = lines.lines().find(|line| line.contains("myself,master")).unwrap();
    let id = say(&resp[0], "carts", &["CLUSTER MYID"]).unwrap();
    assert!(myself.contains(&resp[0]) && myself.contains(id.lines().last().unwrap()), "{lines}");
    assert!(resp.iter().all(|at| lines.contains(&format!("{at}@"))), "{lines}");

    let mut leads = [0; 3];
    for number in 0..60 {
        let set = format!("SET k{number} {number}");
        let slot = say(&resp[0], "carts", &[&format!("CLUSTER KEYSLOT k{number}")]).unwrap();
        // A node may hear later than another who leads.
        leads[eventually("one node does it, and the others name that one", || {
            let said: Vec<String> = resp.iter().map(|at| say(at, "carts", &[&set]).unwrap()).collect();
            let leader = said.iter().position(|said| said == "+OK").ok_or_else(|| format!("{said:?}"))?;
            let moved = format!("-MOVED {} {}", &slot[1..], resp[leader]);
            match said.iter().filter(|said| **said == moved).count() {
                2 => Ok(leader),
                _ => Err(format!("{moved}: {said:?}")),
            }
        })] += 1;
    }
    assert!(leads.iter().all(|count| *count > 0), "each node leads some: {leads:?}");
    let counts = resp.iter().map(|at| say(at, "carts", &["DBSIZE"]).unwrap()[1..].parse::<u32>().unwrap());
    assert_eq!(counts.sum::<u32>(), 60, "each leader counts its own rows");
    for at in &resp {
        let port = at.rsplit_once(':').unwrap().1;
        let mut command = Command::new("redis-cli");
        command.args(["-c", "-p", port, "--user", "carts", "--pass", "x", "--no-auth-warning", "get", "k7"]);
        let ended = command.stdin(Stdio::null()).output().expect("./test setup installs it");
        assert_eq!(String::from_utf8_lossy(&ended.stdout).trim(), "7", "{ended:?}");
    }

    let mut python = Command::new(tool("redis/bin/python"));
    python.arg(script("redis_py.py"));
    let survivors = [Survivor::start(python, &resp[0]), Survivor::start(Command::new(go_client()), &resp[2])];
    cluster.nodes[1].process.kill();
    eventually("other nodes lead what it led", || {
        let lines = say(&resp[0], "carts", &["CLUSTER NODES"]).map_err(|error| error.to_string())?;
        let stays =
            lines.lines().any(|line| line.contains(&resp[1]) && line.trim_end().ends_with(char::is_numeric));
        let is_whole = say(&resp[0], "carts", &["CLUSTER INFO"]).is_ok_and(|info| info.contains("state:ok"));
        if stays || !is_whole { Err(lines) } else { Ok(()) }
    });
    survivors.into_iter().for_each(Survivor::end);
}

#[test]
fn a_node_asks_on_where_it_is_told_to_or_cannot_redirect() {
    let cluster = Cluster::with_flags(&[REDIRECTS, NO_LISTENER, FORWARDS]);
    cluster.create(CARTS);
    cluster.create(&["stock", "--shards", "3"]);
    let (redirects, forwards) = (&cluster.nodes[0].resp, &cluster.nodes[2].resp);
    wait_for_slots(redirects);
    let (mut moved, mut done) = (0, 0);
    for number in 0..60 {
        let set = format!("SET k{number} {number}");
        match say(redirects, "carts", &[&set]).unwrap().as_str() {
            "+OK" => done += 1,
            said if said.starts_with("-MOVED") && said.ends_with(forwards) => moved += 1,
            other => panic!("{other}"),
        }
        assert_eq!(say(forwards, "carts", &[&set]).unwrap(), "+OK");
        for at in [redirects, forwards] {
            assert_eq!(
                say(at, "stock", &[&set]).unwrap(),
                "+OK",
                "a table without slots is answered anywhere"
            );
        }
    }
    // Nodes 1 and 2 lead about two thirds, and node 1 answers for both.
    assert!(moved > 0 && done > moved, "{moved} of 60 are moved");
    assert_eq!(say(forwards, "carts", &["DBSIZE"]).unwrap(), ":60", "all rows, also of other nodes");
    for (at, table) in [(forwards, "carts"), (redirects, "stock")] {
        let said = say(at, table, &["CLUSTER INFO"]).unwrap();
        assert!(said.contains("cluster support disabled"), "{said}");
    }
    let said = say(redirects, "carts", &["CLUSTER NODES"]).unwrap();
    let nodes = said.lines().filter(|line| line.contains("master"));
    assert_eq!(nodes.count(), 2, "the node without a listener is not named: {said}");
}
