//! The clients that people use, as they are.

use crate::cluster::TwoNodes;
use crate::support::Server;
use partage_core::keyspace::sharding::PartitionKey;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A file beside the tests.
fn script(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(path)
}

/// A file of what `./test setup` has installed for itself.
fn tool(path: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    cache.or_else(home).unwrap_or_default().join("partage/tools").join(path)
}

fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("./test setup installs it");
    let [said, complained] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{said}\n{complained}");
    said
}

fn cli(port: &str, arguments: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    run(command.args(["-p", port]).args(arguments).stdin(Stdio::null())).trim_end().to_owned()
}

#[test]
fn redis_cli() {
    let server = Server::in_memory(PartitionKey::HashTag);
    let port = server.port();
    assert_eq!(cli(&port, &["ping"]), "PONG");
    assert_eq!(cli(&port, &["-3", "set", "a", "1"]), "OK");
    assert_eq!(cli(&port, &["-3", "incrby", "a", "41"]), "42");
    assert_eq!(cli(&port, &["get", "nothing"]), "");
    assert_eq!(cli(&port, &["--scan", "--pattern", "a*"]), "a");
    assert!(cli(&port, &["info", "server"]).contains("server_name:partage"));
    assert!(cli(&port, &["-3", "hello", "3"]).contains("proto"));
    assert!(cli(&port, &["command", "docs", "get"]).contains("Reads a value"));
    // As a person types: the program asks for the commands first, to complete them.
    let folder = tempfile::TempDir::new().unwrap();
    let words = folder.path().join("words");
    std::fs::write(&words, "multi\nset b 1\nincr b\nexec\nget b\nnothing here\n").unwrap();
    let mut command = Command::new("redis-cli");
    let said = run(command.args(["-p", &port]).stdin(std::fs::File::open(words).unwrap()));
    let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    let unknown = "ERR unknown command 'nothing', with args beginning with: 'here' ";
    assert_eq!(lines, ["OK", "QUEUED", "QUEUED", "OK", "2", "2", unknown]);
    // Thousands of commands without waiting, as for an import.
    let pipe = folder.path().join("pipe");
    let sets = |n: usize| format!("*3\r\n$3\r\nSET\r\n$5\r\nk{n:04}\r\n$1\r\nx\r\n");
    std::fs::write(&pipe, (0..5_000).map(sets).collect::<String>()).unwrap();
    let mut command = Command::new("redis-cli");
    let said = run(command.args(["-p", &port, "--pipe"]).stdin(std::fs::File::open(pipe).unwrap()));
    assert!(said.contains("errors: 0, replies: 5000"), "{said}");
    assert_eq!(cli(&port, &["dbsize"]), "5002");

    let nodes = TwoNodes::start();
    // `foo` and `bar` are led by different nodes, and the program follows.
    for key in ["foo", "bar"] {
        assert_eq!(cli(&nodes.servers[0].port(), &["-c", "set", key, key]), "OK");
        assert_eq!(cli(&nodes.servers[1].port(), &["-c", "get", key]), key);
    }
}

#[test]
fn redis_py() {
    let (server, nodes) = (Server::in_memory(PartitionKey::HashTag), TwoNodes::start());
    let mut command = Command::new(tool("redis/bin/python"));
    let said = run(command.arg(script("redis_py.py")).args([server.port(), nodes.servers[0].port()]));
    assert!(said.contains("all is well"), "{said}");
}

#[test]
fn go_redis() {
    let own = tool("redis/bin/go");
    let go = if own.exists() { own } else { PathBuf::from("go") };
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-redis");
    let mut build = Command::new(go);
    run(build
        .args(["build", "-o"])
        .arg(&out)
        .arg(".")
        .current_dir(script("go"))
        .env("GOFLAGS", "-buildvcs=false"));
    let (server, nodes) = (Server::in_memory(PartitionKey::HashTag), TwoNodes::start());
    let said = run(Command::new(out).args([server.port(), nodes.servers[0].port()]));
    assert!(said.contains("all is well"), "{said}");
}
