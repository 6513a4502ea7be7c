//! A bit that flips on the disk of a stopped node, in its log or in a run: the replicas that it touches neither lead nor serve,
//! are filled again from other nodes, no read is wrong, and the node says where it is. Where all have it, the shard stops.

use crate::cluster::{Cluster, Rows, ask, coded, eventually, files, noise};
use crate::writers::Quiet;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ROWS: u64 = 300;

fn key(number: u64) -> Vec<u8> {
    format!("k{number:05}").into_bytes()
}

/// Writes rows, which are larger together than what a store keeps in memory.
fn fill(cluster: &Cluster, bytes: usize) -> Rows {
    let rows: Rows = (0..ROWS).map(|number| (key(number), noise(number, bytes))).collect();
    rows.iter().for_each(|(key, value)| cluster.put("stock", key, "", value));
    rows
}

/// All replicas of the table are live and in sync.
fn are_whole(cluster: &Cluster) -> Result<(), String> {
    let shards = cluster.shards("stock");
    let replicas: Vec<&Value> =
        shards.iter().flat_map(|shard| shard["replicas"].as_array().unwrap()).collect();
    let whole = |replica: &&&Value| replica["state"] == "live" && replica["in_sync"] == true;
    match replicas.iter().filter(whole).count() {
        count if count == 3 * shards.len() => Ok(()),
        _ => Err(format!("{replicas:?}")),
    }
}

/// Reads each row through that node, in both ways; no answer may be wrong.
#[track_caller]
fn read_all(cluster: &Cluster, node: usize, rows: &Rows) {
    for (number, (key, value)) in rows.iter().enumerate() {
        let consistency = if number % 2 == 0 { "any" } else { "linearizable" };
        let path = format!("/v1/tables/stock/keys/{}?consistency={consistency}", coded(key));
        eventually("a row is read", || match ask(&cluster.nodes[node].address, "GET", &path, &[], &[]) {
            Ok(answer) if answer.status == 200 => {
                assert!(answer.body == *value, "a wrong answer for {}", String::from_utf8_lossy(key));
                Ok(())
            }
            Ok(answer) if answer.status == 404 && answer.header("partage-applied").is_some() => {
                panic!("{} is lost", String::from_utf8_lossy(key))
            }
            other => Err(format!("{other:?}")),
        });
    }
}

/// The segment of a node's log that has the most, and a place in the value of a row at about so many percent of that.
fn in_a_value(data_dir: &Path, percent: usize) -> (PathBuf, u64) {
    let (path, end) = segment(data_dir);
    let bytes = std::fs::read(&path).unwrap();
    // Between the groups, and around what they begin with, there are zeros.
    let is_value = |at: &usize| bytes[*at..at + 600].iter().filter(|byte| **byte != 0).count() > 580;
    // Behind the values there may be much that is of no row: what leaders and in-sync sets were.
    let from = end as usize * percent / 100;
    let at = (from..end as usize).chain((0..from).rev()).find(is_value).unwrap();
    // Heads are stored more than once: their damage touches no replica.
    (path, at as u64 + 300)
}

/// The segment of a node's log that has the most, and where what it has ends.
fn segment(data_dir: &Path) -> (PathBuf, u64) {
    let logs = files(&data_dir.join("log"))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|it| it == "log"));
    let ends = logs.map(|path| {
        let bytes = std::fs::read(&path).unwrap();
        let end = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0);
        (path, end as u64)
    });
    ends.max_by_key(|(_, end)| *end).unwrap()
}

/// Flips a bit of a file.
fn flip_at(path: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// The runs of a node.
fn runs(data_dir: &Path) -> Vec<PathBuf> {
    let is_run = |path: &PathBuf| path.parent().is_some_and(|folder| folder.ends_with("tables"));
    files(&data_dir.join("rows")).into_iter().filter(is_run).collect()
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

#[test]
fn a_flipped_bit_in_the_midst_of_a_log_is_told_and_its_replica_is_filled_again() {
    let mut cluster = Cluster::start(3);
    cluster.create(&["stock", "--shards", "2"]);
    eventually("all have all", || are_whole(&cluster));
    let rows = fill(&cluster, 1_000);
    let quiet = Quiet::start(&cluster);
    // Each time the node that leads the first shard.
    for share in [10, 50, 80] {
        let node = cluster.leader(&cluster.shards("stock")[0]);
        cluster.nodes[node].process.kill();
        let (segment, at) = in_a_value(&cluster.nodes[node].data_dir, share);
        flip_at(&segment, at);
        cluster.start_again(node);
        read_all(&cluster, node, &rows);
        let logged = cluster.logged(node);
        let says = logged
            .lines()
            .any(|line| line.contains("damaged") && line.contains(name(&segment)) && line.contains("byte "));
        assert!(says, "the damage at byte {at} is not told: {logged}");
        eventually("its replicas are filled again", || are_whole(&cluster));
        cluster.nothing_differs("stock");
        read_all(&cluster, node, &rows);
    }
    quiet.is_unchanged(&cluster);
}

#[test]
fn a_flipped_bit_in_a_run_is_told_and_its_replica_is_filled_again() {
    let mut cluster = Cluster::start(3);
    cluster.create(&["stock", "--shards", "1"]);
    eventually("all have all", || are_whole(&cluster));
    let rows = fill(&cluster, 40_000);
    let node = cluster.leader(&cluster.shards("stock")[0]);
    eventually("there is a run", || match runs(&cluster.nodes[node].data_dir).len() {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    });
    cluster.nodes[node].process.kill();
    let runs = runs(&cluster.nodes[node].data_dir);
    let run = runs.iter().max_by_key(|path| std::fs::metadata(path).unwrap().len()).unwrap();
    flip_at(run, std::fs::metadata(run).unwrap().len() / 2);
    cluster.start_again(node);
    let begun = Instant::now();
    read_all(&cluster, node, &rows);
    eventually("all have all", || are_whole(&cluster));
    // A check reads everything: what no read has met is found now.
    cluster.nothing_differs("stock");
    eventually("all have all", || are_whole(&cluster));
    assert!(begun.elapsed() < Duration::from_secs(30), "at once: {:?}", begun.elapsed());
    cluster.nothing_differs("stock");
    read_all(&cluster, node, &rows);
    let logged = cluster.logged(node);
    let loads = logged.lines().filter(|line| line.contains("callback=Load") && line.contains("failed"));
    assert!(loads.count() <= 1, "what is damaged is tried once: {logged}");
    let folder = run.parent().unwrap().parent().unwrap();
    let says = logged.lines().any(|line| line.contains("damaged") && line.contains(name(folder)));
    assert!(says, "the damage is not told with its file: {logged}");
}

#[test]
fn a_shard_of_which_every_log_is_damaged_stops_and_a_person_decides() {
    let mut cluster = Cluster::start(3);
    cluster.create(&["stock", "--shards", "1"]);
    eventually("all have all", || are_whole(&cluster));
    fill(&cluster, 1_000);
    (0..3).for_each(|node| cluster.nodes[node].process.kill());
    for node in 0..3 {
        let (segment, at) = in_a_value(&cluster.nodes[node].data_dir, 50);
        flip_at(&segment, at);
    }
    (0..3).for_each(|node| cluster.start_again(node));
    let said = eventually("the shard waits for a person", || {
        let said = cluster.run(&["status"]);
        let text = format!("{}{}", said.out, said.err);
        if text.contains("none can be read") { Ok(text) } else { Err(text) }
    });
    assert!(said.contains("partage shard force-join") && said.contains("partage shard recreate"), "{said}");
    for node in 0..3 {
        let path = format!("/v1/tables/stock/keys/{}?consistency=any", coded(&key(1)));
        let answer = ask(&cluster.nodes[node].address, "GET", &path, &[], &[]).unwrap();
        assert!(answer.status >= 500, "nothing is served: {answer:?}");
        assert!(cluster.logged(node).contains("damaged"), "{}", cluster.logged(node));
    }
    let generation = cluster.generation("stock");
    let join = ["shard", "force-join", "stock", "1", "--node", "t1", "--generation", &generation];
    cluster.run(&join).refused(4, &["cannot be read"]);
    let recreate = ["shard", "recreate", "stock", "1", "--generation", &generation, "--wait"];
    let said = cluster.run(&recreate);
    assert_eq!(said.code, Some(0), "{said:?}");
    cluster.put("stock", &key(1), "", b"anew");
    assert_eq!(cluster.get("stock", &key(1)).body, b"anew");
    assert_eq!(cluster.get("stock", &key(2)).status, 404);
}
