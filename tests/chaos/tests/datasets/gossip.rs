//! Gossip behind a key, and what nodes do that do not have it.

use chaos::dataset::source::{DATASET, key};
use chaos::dataset::{Ground, Nodes, status};
use chaos::until;
use std::fs::{self, Permissions};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;

const FIRST: &str = "6f1c5d0a9b8e7f60112233445566778899aabbccddeeff00a1b2c3d4e5f60718";
const SECOND: &str = "0a4e5d0a9b8e7f60112233445566778899aabbccddeeff00a1b2c3d4e5f60718";

/// Garbage in the suite; `./test long` sends for ten minutes.
const GARBAGE: usize = 60_000;

fn write_keys(path: &Path, keys: &[&str]) {
    fs::write(path, keys.join("\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

/// Datagrams that a node has not heard, for a reason.
async fn unheard(nodes: &Nodes, node: usize, reason: &str) -> Result<u64, String> {
    let text = nodes.http.get(nodes.address(node), "/-/metrics").await?.text();
    let name = format!("partage_dataset_gossip_unheard_total{{reason=\"{reason}\"}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(&name));
    value.and_then(|value| value.parse().ok()).ok_or(format!("there is no {name}: {text}"))
}

async fn comes_to(nodes: &Nodes, node: usize, reason: &str, least: u64) {
    until(&format!("node {node} counts {least} of {reason}"), async || {
        match unheard(nodes, node, reason).await? {
            count if count >= least => Ok(()),
            count => Err(count.to_string()),
        }
    })
    .await;
}

/// Three nodes with a key upgrade together; one that has another key, and one that has none, are nobody to them. The key is
/// changed in three steps, without a restart and without a node going.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z5_behind_a_key_only_those_who_have_it_are_heard() {
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("gossip.key");
    write_keys(&keys, &[FIRST]);
    let settings = [("replication", "3"), ("min_replication", "3")];
    let mut nodes = Nodes::new(Ground::Sealed(keys.clone()), 3, &settings);
    nodes.start_with("v1").await;
    nodes.are_acquainted("v1").await;

    let other = folder.path().join("other.key");
    write_keys(&other, &[SECOND]);
    let stranger = nodes.add(&[("min_replication", "1")]);
    nodes.source(stranger).add("v9");
    nodes.ground = Ground::Sealed(other);
    nodes.start(stranger);
    nodes.serves(stranger, "v9").await;
    comes_to(&nodes, 1, "other_key", 10).await;
    let in_the_clear = nodes.add(&[("min_replication", "1")]);
    nodes.source(in_the_clear).add("v9");
    nodes.ground = Ground::Gossip;
    nodes.start(in_the_clear);
    nodes.serves(in_the_clear, "v9").await;
    comes_to(&nodes, 1, "unsealed", 10).await;
    for alone in [stranger, in_the_clear] {
        let known = status::known(&nodes.http, nodes.address(alone), "v1").await.unwrap();
        assert_eq!(known.len(), 0, "it has heard of somebody: {known:?}");
        let known = status::known(&nodes.http, nodes.address(1), "v9").await.unwrap();
        assert_eq!(known.len(), 0, "it was heard: {known:?}");
        nodes.stop(alone).await;
    }

    nodes.ground = Ground::Sealed(keys.clone());
    for (step, now) in [&[FIRST, SECOND][..], &[SECOND, FIRST], &[SECOND]].into_iter().enumerate() {
        write_keys(&keys, now);
        for node in [1, 2, 3] {
            nodes.logs(node, "gossip has other keys from now on", step + 1).await;
        }
        let version = format!("v{}", step + 2);
        for node in [1, 2, 3] {
            nodes.source(node).add(&version);
            nodes.refresh(node);
        }
        // All three must have it: they hear each other.
        for node in [1, 2, 3] {
            nodes.serves(node, &version).await;
        }
    }
    let seen = "v1 -> v2 -> v3 -> v4";
    nodes.have_seen(&[seen, seen, seen, "v9 -> down", "v9 -> down"]).await;
}

/// What looks like the protocol's, what looks sealed, and what looks like nothing.
fn garbage(number: usize) -> Vec<u8> {
    let beginning: &[u8] = match number % 4 {
        0 => b"\x53\xb0\x01\x00",
        1 => b"PGS1",
        2 => b"",
        _ => b"\x53\xb0\x00\x01",
    };
    let length = [0, 9, 60, 300, 1_400, 9_000][number % 6];
    let mut state = number as u64;
    let rest = (0..length).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    });
    beginning.iter().copied().chain(rest).collect()
}

/// The 99th of a hundred times that reads of a key take at a node, of `count` of them.
async fn reads(nodes: &Nodes, node: usize, count: u32) -> Duration {
    let mut times = Vec::new();
    for number in 0..count {
        let began = Instant::now();
        let path = format!("/{DATASET}/{}", key(number % 16));
        let answer = nodes.http.get(nodes.address(node), &path).await.unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        times.push(began.elapsed());
    }
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

/// Sends garbage as long as `goes_on` says to two nodes with keys.
async fn gets_garbage(goes_on: impl Fn(usize) -> bool) {
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("gossip.key");
    write_keys(&keys, &[FIRST]);
    let mut nodes = Nodes::new(Ground::Sealed(keys), 2, &[("min_replication", "2")]);
    nodes.start_with("v1").await;
    nodes.are_acquainted("v1").await;
    let at = nodes.address(1).replace(":9599", ":7480");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut sent, mut before, mut most) = (0, 0, 0);
    let calm = reads(&nodes, 1, 1_000).await;
    let mut strained = Vec::new();
    while goes_on(sent) {
        for _ in 0..1_000 {
            socket.send_to(&garbage(sent), &at).unwrap();
            sent += 1;
        }
        // It has heard what it could of these.
        let heard = async || -> Result<u64, String> {
            Ok(unheard(&nodes, 1, "unsealed").await?
                + unheard(&nodes, 1, "damaged").await?
                + unheard(&nodes, 1, "other_key").await?)
        };
        let least = heard().await.unwrap();
        until("node 1 goes on", async || if heard().await? >= least { Ok(()) } else { Err(String::new()) })
            .await;
        strained.push(reads(&nodes, 1, 100).await);
        if sent == 5_000 {
            before = nodes.process(1).resident_kib();
        }
        most = most.max(nodes.process(1).resident_kib());
    }
    strained.sort_unstable();
    comes_to(&nodes, 1, "unsealed", 100).await;
    comes_to(&nodes, 1, "other_key", 100).await;
    assert!(most < before + 16_384, "{before} KiB before and {most} KiB while it got {sent} datagrams");
    // It was told of, in a few lines, and nothing else has happened.
    let lines =
        nodes.log(1).lines().filter(|line| line.contains("not heard") || line.contains("chitchat")).count();
    #[expect(clippy::print_stdout, reason = "the figures are wanted")]
    {
        println!(
            "{sent} datagrams: {before} KiB before, {most} KiB at the most, {lines} lines; the 99th of a hundred reads: \
             {calm:?} before, {:?} meanwhile (median of {})",
            strained[strained.len() / 2],
            strained.len(),
        );
    }
    assert!((1..200).contains(&lines), "{lines} lines");
    nodes.upgrade("v2").await;
    nodes.have_all_seen("v1 -> v2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn z5_garbage_is_counted_told_of_in_a_few_lines_and_kept_nowhere() {
    gets_garbage(|sent| sent < GARBAGE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "ten minutes: `./test long` runs it"]
async fn z5_ten_minutes_of_garbage() {
    let begun = tokio::time::Instant::now();
    gets_garbage(|_| begun.elapsed().as_secs() < 600).await;
}
