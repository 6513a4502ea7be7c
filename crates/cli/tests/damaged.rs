//! The only copy of a durable shard cannot be read: what a person sees at the command line, and what brings the shard back
//! (D10). The coordinator and the nodes of `kv` run in this process, the files are real.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use partage_coordinator::{Config as Coordinating, Coordinator};
use partage_core::base::settings::Settings;
use partage_kv::{Config, FolderError, Node, StartError};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

struct TestCluster {
    coordinator: Coordinator,
    dir: tempfile::TempDir,
}

impl TestCluster {
    async fn start() -> TestCluster {
        let settings = Settings {
            heartbeat_ms: 100,
            lease_ms: 1_500,
            dead_after_ms: 2_000,
            settle_ms: 300,
            check_back_ms: 200,
            ..Settings::default()
        };
        let config = Coordinating { settings, ..Coordinating::new("127.0.0.1:0".parse().unwrap()) };
        TestCluster {
            coordinator: Coordinator::start(config).await.unwrap(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// `n1`, on its folder, at an address that it keeps.
    async fn node(&self, listen: &str) -> Node {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let listener = TcpListener::bind(listen).await.unwrap();
            let coordinator = self.coordinator.address().to_string();
            let durable = Some(self.dir.path().join("n1"));
            match Node::start(Config { durable, ..Config::new("n1", coordinator, listener) }).await {
                // The tasks of the one before it, in this process, have not all ended yet.
                Err(StartError::Folder(FolderError::Locked(_))) if Instant::now() < end => {
                    sleep(Duration::from_millis(50)).await;
                }
                started => return started.unwrap(),
            }
        }
    }

    /// A command line: its exit code, and all that it says.
    async fn partage(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partage"));
        let address = self.coordinator.address().to_string();
        command.args(arguments).args(["--coordinator", &address]).env("NO_COLOR", "1");
        let said = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = [said.stdout, said.stderr].concat();
        (said.status.code().unwrap(), String::from_utf8(text).unwrap())
    }

    async fn until(&self, arguments: &[&str], says: &[&str]) -> String {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let (code, said) = self.partage(arguments).await;
            if says.iter().all(|text| said.contains(text)) {
                return said;
            }
            assert!(Instant::now() < end, "{arguments:?} does not say {says:?}: {code} {said}");
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// The generation that a person is to give back.
    async fn generation(&self, shard: &str) -> String {
        let (_, said) = self.partage(&["shard", "recreate", "users", shard, "--generation", "0"]).await;
        let (_, after) = said.split_once("keyspace users is at ").unwrap_or_else(|| panic!("{said}"));
        after.chars().take_while(char::is_ascii_digit).collect()
    }
}

/// Waits until each file has a record: behind its header it is zeros before.
async fn has_records(folder: &Path) {
    let end = Instant::now() + Duration::from_secs(60);
    let has_record = |path: std::path::PathBuf| {
        std::fs::read(path).unwrap().get(96..160).is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0))
    };
    while !std::fs::read_dir(folder).unwrap().all(|file| has_record(file.unwrap().path())) {
        assert!(Instant::now() < end, "the files have no records");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Damages the first record of each file; returns the shards.
fn damage(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let damage = |path: std::path::PathBuf| {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[100] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        format!("s{}", name.split_once('-').unwrap().0)
    };
    files.map(damage).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_the_only_copy_is_damaged_and_a_person_gives_it_up() {
    let test_cluster = TestCluster::start().await;
    let node = test_cluster.node("127.0.0.1:0").await;
    let create = ["keyspace", "create", "users", "--durable", "--replicas", "1", "--shards", "1"];
    let (code, said) = test_cluster.partage(&create).await;
    assert_eq!(code, 0, "{said}");
    test_cluster.until(&["explain", "users", "alice"], &["n1", "serving"]).await;
    let address = node.address().to_string();
    has_records(&test_cluster.dir.path().join("n1/users")).await;
    node.kill().await;
    let shards = damage(&test_cluster.dir.path().join("n1/users"));
    let [shard] = &shards[..] else { panic!("{shards:?}") };

    let _node = test_cluster.node(&address).await;
    test_cluster.until(&["status"], &["none can be read", "partage shard recreate"]).await;
    test_cluster.until(&["explain", "users", "alice"], &["some of it cannot be read"]).await;
    let generation = test_cluster.generation(shard).await;
    let at = ["--generation", &generation];
    let join = [&["shard", "force-join", "users", shard, "--node", "n1"][..], &at].concat();
    let (code, said) = test_cluster.partage(&join).await;
    assert!(code != 0 && said.contains("cannot be read"), "{code} {said}");
    let recreate = [&["shard", "recreate", "users", shard][..], &at].concat();
    let (code, said) = test_cluster.partage(&recreate).await;
    assert_eq!(code, 0, "{said}");
    test_cluster.until(&["explain", "users", "alice"], &["n1", "serving"]).await;
}
